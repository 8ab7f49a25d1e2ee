"""`ctx-vector kb`: look after a knowledge base."""

from __future__ import annotations

import json as json_lib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ctx_vector.cli.common import agreed, count, note, out, print_json, size
from ctx_vector.cli.opening import DEFAULT_KB, open_encoder
from ctx_vector.cli.options import Json, Kb, Yes, guarded, new_app
from ctx_vector.cli.tables import show_table
from ctx_vector.cli.text import plain
from ctx_vector.whole_files import whole_file

if TYPE_CHECKING:
    from ctx_vector.knowledge import KnowledgeBase

kb_app = new_app("Look after a knowledge base: versions, removal, export, checks.")

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="Name of the document, as search shows it.")]


def _open(folder: str) -> KnowledgeBase:
    """Open a knowledge base that is there; what is done here needs no encoder."""
    from ctx_vector.knowledge import KnowledgeBase

    return KnowledgeBase(folder, create=False)


@kb_app.command("versions")
@guarded
def versions(kb: Kb = DEFAULT_KB, json: Json = False) -> None:
    """List the versions that can be rolled back to.

    For example:
      ctx-vector kb versions --kb kb
    """
    with _open(kb) as base:
        found = base.versions()
    if json:
        names = ("number", "action", "active", "added", "updated", "removed", "documents", "chunks")
        print_json(
            [{**{name: getattr(row, name) for name in names}, "created": row.created.isoformat()} for row in found]
        )
        return
    if not found:
        out(f"{kb} has no version yet; make one with: ctx-vector index PATH --kb {kb}")
        return
    show_table(
        ["", ">version", "created", "by", ">added", ">updated", ">removed", ">documents", ">chunks"],
        [
            [
                "*" if row.active else "",
                str(row.number),
                f"{row.created.astimezone():%Y-%m-%d %H:%M:%S}",
                row.action,
                *(f"{value:,}" for value in (row.added, row.updated, row.removed, row.documents, row.chunks)),
            ]
            for row in found
        ],
    )


@kb_app.command("rollback")
@guarded
def rollback(
    version: Annotated[int, typer.Argument(metavar="N", help="Number of the version, see kb versions.")],
    kb: Kb = DEFAULT_KB,
    json: Json = False,
) -> None:
    """Make an earlier version active, at once and without encoding.

    For example:
      ctx-vector kb rollback 3 --kb kb
    """
    with _open(kb) as base:
        before = base.version
        base.rollback(version)
    if json:
        print_json({"version": version, "before": before})
    else:
        out(f"{kb} is at version {version} (was {before})")


@kb_app.command("remove")
@guarded
def remove(source: Source, kb: Kb = DEFAULT_KB, json: Json = False) -> None:
    """Take a document out; earlier versions keep it (see purge).

    For example:
      ctx-vector kb remove docs/old.md --kb kb
    """
    with _open(kb) as base:
        version = base.remove(source)
    if json:
        print_json({"removed": source, "version": version})
    else:
        out(f"removed {plain(source)}; {kb} is at version {version}")


@kb_app.command("purge")
@guarded
def purge(
    source: Source,
    kb: Kb = DEFAULT_KB,
    yes: Yes = False,
    json: Json = False,
) -> int:
    """Delete every trace of a document from all versions, for good.

    For example:
      ctx-vector kb purge docs/secret.md --kb kb --yes
    """
    with _open(kb) as base:
        if not yes and not agreed(
            "purge asks before it deletes", f"Delete {plain(source)} from all versions in {kb}, for good? [y/N] "
        ):
            note("nothing was deleted")
            return 1
        deleted = base.purge(source)
    if json:
        print_json({"purged": source, "revisions": deleted})
    else:
        out(f"purged {plain(source)}: {count(deleted, 'revision')} deleted")
    return 0


@kb_app.command("reencode")
@guarded
def reencode(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A known model, a folder, or owner/name.")],
    kb: Kb = DEFAULT_KB,
    json: Json = False,
) -> None:
    """Encode all passages with another model.

    Searches go on with the old vectors meanwhile. Encoding is resumed after an interruption.

    For example:
      ctx-vector kb reencode all-MiniLM-L6-v2 --kb kb
    """
    from ctx_vector.cli.progress import Watched, count_bar

    with _open(kb) as base:
        total = base.stats()["encodings"]
        encoder = open_encoder(model)
        with count_bar("encoding", total, "passages") as tick:
            encoded = base.reencode(Watched(encoder, tick))
    if json:
        print_json({"model": encoder.name, "encoded": encoded})
    else:
        out(f"{kb} uses {encoder.name}; {count(encoded, 'passage')} encoded")


@kb_app.command("export")
@guarded
def export(
    kb: Kb = DEFAULT_KB,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout.")
    ] = None,
    vectors: Annotated[bool, typer.Option("--vectors", help="With the vector of each chunk.")] = False,
    json: Annotated[bool, typer.Option("--json", help="With --output: print the counts as JSON.")] = False,
) -> None:
    """Write documents and chunks as JSON lines.

    The active version only: each document, followed by its chunks.

    For example:
      ctx-vector kb export --kb kb --output kb.jsonl
    """
    counts = {"document": 0, "chunk": 0}
    with _open(kb) as base:
        rows = base.export(vectors=vectors)
        if output is None:
            for row in rows:
                out(json_lib.dumps(row, ensure_ascii=False))
            return
        with whole_file(Path(output), errors="backslashreplace") as file:
            for row in rows:
                counts[row["type"]] += 1
                file.write(json_lib.dumps(row, ensure_ascii=False) + "\n")
    if json:
        print_json({"output": output, "documents": counts["document"], "chunks": counts["chunk"]})
    else:
        out(f"{output}: {count(counts['document'], 'document')}, {count(counts['chunk'], 'chunk')}")


@kb_app.command("stats")
@guarded
def stats(kb: Kb = DEFAULT_KB, json: Json = False) -> None:
    """Show counts, languages, the model and the size on disk.

    For example:
      ctx-vector kb stats --kb kb
    """
    with _open(kb) as base:
        found = base.stats()
    if json:
        print_json(found)
        return
    languages = ", ".join(f"{name} {number:,}" for name, number in found["languages"].items())
    files = ", ".join(f"{row['language']} {row['kind']} {row['rows']:,} rows" for row in found["index_files"])
    for name, value in (
        ("version", f"{found['version']} (of {found['versions']} kept)"),
        ("documents", f"{found['documents']:,}"),
        ("chunks", f"{found['chunks']:,}" + (f" ({languages})" if languages else "")),
        ("model", f"{found['model']} ({found['dim']} numbers a vector)" if found["model"] else "none yet"),
        ("vectors", f"{found['encodings']:,} kept"),
        ("index files", files or "none (small enough to do without)"),
        ("on disk", size(found["bytes"])),
    ):
        out(f"{name:<12} {value}")


@kb_app.command("verify")
@guarded
def verify(kb: Kb = DEFAULT_KB, json: Json = False) -> int:
    """Check rows, vectors and index files.

    Damaged index files are written anew. Exit code 1 if something is wrong that cannot be mended.

    For example:
      ctx-vector kb verify --kb kb
    """
    with _open(kb) as base:
        report = base.verify()
    if json:
        print_json(report.to_dict())
    else:
        for line in report.repaired:
            out(f"repaired: {line}")
        for line in report.problems:
            out(f"problem: {line}")
        if report.ok:
            out(f"{kb} is sound: {count(report.documents, 'document')}, {count(report.chunks, 'chunk')}")
    if not report.ok:
        note(f"error: {kb} is damaged; restore it from a backup, or delete it and index again")
    return 0 if report.ok else 1
