"""`ctx-vector audit`: what was built, why it was what it was, and whether it would be the same again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ctx_vector.cli.common import UsageError, agreed, count, held_warnings, note, out, print_json, size
from ctx_vector.cli.memory import Folder
from ctx_vector.cli.opening import audit_file
from ctx_vector.cli.options import Audit, Json, Model, Yes, guarded, new_app
from ctx_vector.cli.tables import show_table
from ctx_vector.cli.text import BOLD, YELLOW, plain, style
from ctx_vector.errors import StoreError

if TYPE_CHECKING:
    from ctx_vector.audit import AuditLog
    from ctx_vector.audit_decode import BuildRecord

audit_app = new_app("Look at recorded builds: list, show, replay, compare, count, purge.")

Id = Annotated[str, typer.Argument(metavar="ID", help="First characters of a build's id, or last.")]
Kb = Annotated[str | None, typer.Option("--kb", metavar="DIR", help="Folder of the knowledge base whose audit it is.")]
Session = Annotated[str | None, typer.Option("--session", metavar="NAME", help="Only builds of this session.")]
_SHORT: Final = 10  # characters of an id


def _open(audit: str | None, kb: str | None) -> AuditLog:
    from ctx_vector.audit import AuditLog

    if audit is None and kb is not None and not Path(kb).is_dir():  # else another audit would answer for it
        raise StoreError(f"there is no knowledge base in {kb}; make one with: ctx-vector index PATH --kb {kb}")
    file = audit_file(audit, kb)
    if not file.exists():
        option = f"--audit {audit}" if audit is not None else f"--kb {kb}" if kb is not None else ""
        raise StoreError(f"there is no audit at {file}; make one with: {f'ctx-vector build QUERY {option}'.rstrip()}")
    return AuditLog(file)


@audit_app.command("list")
@guarded
def list_(
    session: Session = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="At most so many builds.")] = 5,
    before: Annotated[
        str | None, typer.Option("--before", metavar="ID", help="Go on after this build: the last one of a page.")
    ] = None,
    search: Annotated[str | None, typer.Option("--search", metavar="TEXT", help="Only queries with this text.")] = None,
    audit: Audit = None,
    kb: Kb = None,
    json: Json = False,
) -> None:
    """List recorded builds, the newest first.

    For example:
      ctx-vector audit list --session s1 --limit 5
      ctx-vector audit list --search 退货 --kb kb --json
    """
    with _open(audit, kb) as log:
        rows = log.list(session, limit + (limit > 0), before=before, search=search)
        total = log.count(session, search=search)
    older, rows = len(rows) > limit, rows[:limit]
    if json:
        print_json(rows)
        return
    if not rows:
        out("no build fits")
        return
    show_table(
        ["id", "when", "session", "query", ">tokens", ">kept", ">dropped", ""],
        [
            [
                row["id"][:_SHORT],
                _when(row["created_at"]),
                row["session_id"] or "",
                " ".join(row["query"].split()),
                f"{row['total_tokens']:,}/{row['budget_limit']:,}",
                str(row["kept"]),
                str(row["dropped"]),
                _flags(row),
            ]
            for row in rows
        ],
        stretch="query",
        keep_start=True,
    )
    if older:
        shown = f"{len(rows):,} of {total:,} builds" if before is None else "there are older ones"
        note(f"{shown}; more with --limit N, or go on with --before {rows[-1]['id'][:_SHORT]}")


@audit_app.command("show")
@guarded
def show(
    id: Id = "last",
    text: Annotated[bool, typer.Option("--text", help="Print the context as it was, and nothing else.")] = False,
    audit: Audit = None,
    kb: Kb = None,
    json: Json = False,
) -> None:
    """Show one build: what was kept and dropped and why, the budget, the settings, the feedback.

    For example:
      ctx-vector audit show last --kb kb
      ctx-vector audit show 3f9a21c7 --text
    """
    with _open(audit, kb) as log:
        record = log.show(id)
    if json:
        print_json(record.to_dict())
    elif text:
        out(plain(record.built.text).rstrip("\n"))
    else:
        _show(record)


def _show(record: BuildRecord) -> None:
    from ctx_vector.cli.explain import show_explanation

    meta = record.built.meta
    facts = [
        ("build", record.id),
        ("when", f"{record.created_at.astimezone():%Y-%m-%d %H:%M:%S}, built as of {meta['now']}"),
        ("session", record.session_id or "none"),
        ("query", " ".join(record.built.query.split())),
        ("made with", f"ctx_vector {meta['version']}, config {meta['config_hash']}, strategy {meta['strategy']}"),
        ("model", f"{meta['model'] or 'none'}, tokenizer {meta['tokenizer']}"),
        ("knowledge", f"version {meta['knowledge_version']}" if meta["knowledge_version"] is not None else "none"),
        ("took", ", ".join(f"{name} {value} ms" for name, value in meta["stages_ms"].items())),
    ]
    facts += [("user", record.listed["user_id"])] if record.listed["user_id"] else []
    facts += [("variant", record.variant)] if record.variant else []
    for item in record.feedback:
        facts.append(("feedback", f"{item['value']:g} {item['note']}".strip()))
    if record.redacted:
        facts.append(("redacted", "texts were redacted before they were stored"))
    for name, value in facts:
        out(f"{name:<10} {plain(str(value))}")
    for line in record.purged:
        out(f"{style('(purged)', YELLOW)}   {plain(line)}")
    show_explanation(record.built)


@audit_app.command("replay")
@guarded
def replay(
    id: Id = "last",
    live: Annotated[
        bool, typer.Option("--live", help="Gather again from --kb and --memory, and name each difference.")
    ] = False,
    text: Annotated[bool, typer.Option("--text", help="Print the context that comes out, too.")] = False,
    audit: Audit = None,
    kb: Kb = None,
    memory: Folder = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="ID", help="With --live: whose memories are asked.")
    ] = None,
    model: Model = None,
    json: Json = False,
) -> int:
    """Make a build again from its record, and say whether every byte is the same.

    Nothing but the record is needed, whatever the documents are now. With --live the knowledge base and the memory are
    asked again, with the settings of the record. Exit code 1 if a replay differs, or is impossible.

    For example:
      ctx-vector audit replay last --kb kb
      ctx-vector audit replay 3f9a21c7 --live --kb kb
    """
    if not live and (memory is not None or user is not None or model is not None):
        raise UsageError("--memory, --user and --model: only with --live")
    with ExitStack() as stack:
        log = stack.enter_context(_open(audit, kb))
        if live:
            record = log.show(id)
            builder = _live_builder(stack, record, kb, memory, user, model)
            stack.enter_context(held_warnings())
            again = log.replay(record.id, live=builder)
        else:
            again = log.replay(id)
    if json:
        print_json(again.to_dict())
    else:
        if text and again.built is not None:
            out(plain(again.built.text).rstrip("\n"))
        lines = again.differences if again.differences and not again.missing else (str(again),)
        if again.equal and live:
            lines = ("equal: the sources give the same now",)
        for line in lines:
            out(plain(line))
    return 0 if again.equal or (live and not again.missing) else 1


def _live_builder(
    stack: ExitStack, record: BuildRecord, kb: str | None, memory: str | None, user: str | None, model: str | None
) -> Any:
    from ctx_vector.cli.build import make_builder
    from ctx_vector.config import ContextConfig

    config = ContextConfig.from_dict(record.config)
    recalls = (memory, user or "default") if memory is not None or user is not None else None
    asked = record.built.trace.asked
    if "memory" in asked and recalls is None:
        note("note: the build used memories; name whose with --user, or they count as gone")
    if "knowledge" in asked and kb is None:
        note("note: the build used a knowledge base; name it with --kb, or its passages count as gone")
    return make_builder(stack, config, kb, model, recalls, allow_python=False, audit=None)


@audit_app.command("diff")
@guarded
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="Id of a build, as list shows it.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Id of a later one; last unless told.")] = "",
    audit: Audit = None,
    kb: Kb = None,
    json: Json = False,
) -> None:
    """Tell what came, went, moved and was shortened from build A to build B.

    For example:
      ctx-vector audit diff 3f9a21c7 last --kb kb
    """
    with _open(audit, kb) as log:
        if not b and log.show(a).id == log.show("last").id:
            raise UsageError(f"A is the last build itself ({a}); give the id of a second one, as audit list shows it")
        found = log.diff(a, b or "last")
    if json:
        print_json(found.to_dict())
        return
    for line in found.lines() or ["no difference"]:
        out(plain(" ".join(line.split())))


@audit_app.command("stats")
@guarded
def stats(
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Since when: 7d, 12h, 30m, or a date; all for everything.")
    ] = "7d",
    audit: Audit = None,
    kb: Kb = None,
    json: Json = False,
) -> None:
    """Show how many builds there were, how large, what each source took, and what is often cut.

    For example:
      ctx-vector audit stats --since 7d --kb kb
    """
    with _open(audit, kb) as log:
        found = log.stats(None if since == "all" else since)
    if json:
        print_json(found)
        return
    when = f"since {_when(found['since'])}" if found["since"] else "in all"
    out(f"{style(count(found['builds'], 'build'), BOLD)} {when}, {size(found['bytes'])} on disk")
    if found["not_recorded"]:
        out(f"{count(found['not_recorded'], 'build')} could not be recorded")
    if found["builds"]:
        out(
            f"{found['mean_tokens']:,.0f} tokens each on average, {found['usage_rate']:.0%} of the budgets, "
            f"{found['mean_ms']:.1f} ms"
        )
        out(f"something was cut in {found['trim_rate']:.0%}, a source failed in {found['fault_rate']:.0%}")
        _show_sources(found["sources"])
    for line in found["warnings"]:
        out(f"{style('Warning:', YELLOW)} {plain(line)}")


def _show_sources(sources: Mapping[str, Mapping[str, Any]]) -> None:
    rows: Sequence[Sequence[str]] = [
        [
            name,
            f"{row['builds']:,}",
            f"{row['share']:.0%}",
            f"{row['mean_tokens']:,.0f}",
            f"{row['kept']:,}",
            f"{row['dropped']:,}",
            f"{row['cut_rate']:.0%}",
            f"{row['quota_use']:.0%}" if row["quota_use"] is not None else "",
            f"{row['faults']:,}" if row["faults"] else "",
        ]
        for name, row in sorted(sources.items(), key=lambda item: -item[1]["tokens"])
    ]
    names = ["source", ">builds", ">share", ">mean tokens", ">kept", ">dropped", ">cut", ">of quota", ">failed"]
    show_table(names, rows)


@audit_app.command("feedback")
@guarded
def feedback(
    id: Id,
    value: Annotated[float, typer.Argument(metavar="VALUE", help="A number, such as 1 for good and 0 for bad.")],
    words: Annotated[str, typer.Option("--note", metavar="TEXT", help="What was good or bad.")] = "",
    audit: Audit = None,
    kb: Kb = None,
    json: Json = False,
) -> None:
    """Attach what somebody said of a build.

    For example:
      ctx-vector audit feedback last 1 --note "complete and right" --kb kb
    """
    with _open(audit, kb) as log:
        whole = log.resolve(id)
        log.feedback(whole, value, words)
    if json:
        print_json({"id": whole, "value": value, "note": words})
    else:
        out(f"noted for {whole[:_SHORT]}")


@audit_app.command("purge")
@guarded
def purge(
    builds: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Builds to delete.")] = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="NAME", help="Delete the builds of this session.")
    ] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help="Delete the builds made before: 90d, or a date.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option("--text", metavar="TEXT|@FILE", help="Blank this text wherever it stands; the builds stay."),
    ] = None,
    yes: Yes = False,
    audit: Audit = None,
    kb: Kb = None,
    json: Json = False,
) -> int:
    """Delete builds or a text from the audit, for good.

    What is purged from a knowledge base, or removed from a memory, goes by itself.

    For example:
      ctx-vector audit purge --session s1 --kb kb --yes
      ctx-vector audit purge --before 90d --kb kb --yes
    """
    from ctx_vector.cli.inputs import text_argument

    if not (builds or session is not None or before is not None or text is not None):
        raise UsageError("nothing to purge: name builds, --session, --before or --text")
    said = text_argument(text, "--text")
    if not yes and not agreed("audit purge asks before it deletes", "Delete this from the audit, for good? [y/N] "):
        note("nothing was deleted")
        return 1
    with _open(audit, kb) as log:
        touched = log.purge(*([said] if said else []), session=session, builds=builds or (), before=before)
    if json:
        print_json({"builds": touched})
    else:
        out(f"purged: {count(touched, 'build')}")
    return 0


def _when(stamp: str) -> str:
    return f"{datetime.fromisoformat(stamp).astimezone():%Y-%m-%d %H:%M:%S}"


def _flags(row: Mapping[str, Any]) -> str:
    words = [
        "cut" if row["trimmed"] else "",
        "failed" if row["faults"] else "",
        "(purged)" if row["purged"] else "",
        f"rated {row['feedback']['mean']:g}" if row["feedback"]["count"] else "",
    ]
    return " ".join(word for word in words if word)
