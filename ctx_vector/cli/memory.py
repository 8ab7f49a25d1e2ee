"""`ctx-vector memory`: what is remembered of a user."""

from __future__ import annotations

import json as json_lib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctx_vector.cli.common import UsageError, agreed, check_query, count, note, out, print_json
from ctx_vector.cli.opening import open_encoder
from ctx_vector.cli.options import Json, Rerank, Retrieval, Yes, guarded, new_app, one_of
from ctx_vector.cli.tables import show_table
from ctx_vector.cli.text import plain, read_text
from ctx_vector.errors import InputError, StoreError
from ctx_vector.whole_files import whole_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ctx_vector.memory import Memory
    from ctx_vector.memory_rows import Row

memory_app = new_app("Look after what is remembered of a user.")

_SHOWN = 400  # characters of a memory in a table

Folder = Annotated[
    str | None,
    typer.Option("--memory", metavar="DIR", help="Folder of the memory. Default: the platform's data folder."),
]
User = Annotated[str, typer.Option("--user", metavar="ID", help="Whose memories; users see only their own.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The memory's number, as list and search show it.")]
Type = Annotated[
    str | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="One of working, episodic, semantic, profile.",
        autocompletion=one_of("working", "episodic", "semantic", "profile"),
    ),
]
Importance = Annotated[
    float | None, typer.Option("--importance", metavar="X", help="From 0 to 1; add takes 0.5 unless told.")
]
Stamp = Annotated[str | None, typer.Option("--timestamp", metavar="TIME", help="When it was said (ISO 8601).")]
Data = Annotated[str | None, typer.Option("--metadata", metavar="JSON", help="More about it, as a JSON object.")]


def memory_folder(given: str | None) -> Path:
    """Return the folder of the memory: the one given, or the default of `MemoryTool`."""
    if given is not None:
        return Path(given)
    from ctx_vector.memory import default_folder

    return default_folder()


def open_memory(given: str | None, user: str, *, create: bool = False, encoder: Any = None) -> Memory:
    """Open a user's memory. Raises StoreError when there is none, unless it may be made."""
    from ctx_vector.memory import FILE_NAME, Memory

    folder = memory_folder(given)
    if not create and not (folder / FILE_NAME).exists():
        option = "" if given is None else f" --memory {folder}"
        raise StoreError(f"there is no memory in {folder}; make one with: ctx-vector memory add TEXT{option}")
    return Memory(folder, user, encoder)


def memory_encoder(encoder: Any, model: str | None) -> Any:
    """Return the encoder for a memory: the one that is open when it is the default one, or was asked for by name."""
    from ctx_vector.model_store import cards

    return encoder if model is not None or encoder.name == next(iter(cards())) else open_encoder()


@memory_app.command("add")
@guarded
def add(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to remember (-: stdin).")],
    type: Type = None,
    importance: Importance = None,
    timestamp: Stamp = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="NAME", help="Conversation that it is a turn of.")
    ] = None,
    speaker: Annotated[str | None, typer.Option("--speaker", metavar="NAME", help="Who said it.")] = None,
    metadata: Data = None,
    memory: Folder = None,
    user: User = "default",
    json: Json = False,
) -> None:
    """Remember one thing, as an episodic memory unless told.

    What is there already stays one memory. The folder is made when absent.

    For example:
      ctx-vector memory add "Ada prefers answers in Chinese" --type semantic --importance 0.8 --user ada
    """
    given: dict[str, Any] = {
        "type": type,
        "importance": importance,
        "timestamp": timestamp,
        "session": session,
        "speaker": speaker,
        "metadata": _object(metadata),
    }
    content = read_text("-", "TEXT") if text == "-" else text
    with open_memory(memory, user, create=True, encoder=open_encoder()) as kept:
        known = {row.id for row in kept.all()}
        id_ = kept.add(content, **{name: value for name, value in given.items() if value is not None})
        new = int(id_) not in known
    if json:
        print_json({"memory_id": id_, "new": new})
    else:
        out(f"memory {id_} added" if new else f"memory {id_} says that already")


@memory_app.command("search")
@guarded
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for.")],
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="At most this many.")] = 10,
    min_score: Annotated[float, typer.Option("--min-score", metavar="X", help="Least relevance, 0 to 1.")] = 0.0,
    min_importance: Annotated[
        float, typer.Option("--min-importance", metavar="X", help="Least importance, 0 to 1.")
    ] = 0.0,
    type: Type = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Said at this time or later.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Said at this time or before.")] = None,
    strategy: Retrieval = "cosine",
    rerank: Rerank = None,
    memory: Folder = None,
    user: User = "default",
    json: Json = False,
) -> None:
    """Find memories by meaning, best first.

    For example:
      ctx-vector memory search "Which language does she want?" --user ada --limit 3
    """
    check_query(query)
    with open_memory(memory, user, encoder=open_encoder()) as kept:
        hits = kept.search(
            query,
            limit,
            min_importance=min_importance,
            type=type,
            min_score=min_score,
            since=since,
            until=until,
            strategy=strategy,
            rerank=rerank,
        )
    if json:
        print_json([hit.to_dict() for hit in hits])
    elif not hits:
        note(f"nothing found in the memory of {plain(user)}")
    else:
        _show([hit.memory for hit in hits], [hit.score for hit in hits])


@memory_app.command("list")
@guarded
def list_memories(
    type: Type = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Only the last N.  [default: all]")
    ] = None,
    memory: Folder = None,
    user: User = "default",
    json: Json = False,
) -> None:
    """List memories in the order they were added.

    For example:
      ctx-vector memory list --user ada --type semantic
    """
    with open_memory(memory, user) as kept:
        rows = kept.all(type)
    rows = rows[-limit:] if limit else rows
    if json:
        print_json([row.to_dict() for row in rows])
    elif not rows:
        note(f"nothing is remembered of {plain(user)}{' as ' + type if type else ''} in {memory_folder(memory)}")
    else:
        _show(rows)


@memory_app.command("update")
@guarded
def update(
    id: Id,
    text: Annotated[str | None, typer.Option("--text", metavar="TEXT", help="The new text (-: stdin).")] = None,
    type: Type = None,
    importance: Importance = None,
    timestamp: Stamp = None,
    metadata: Data = None,
    memory: Folder = None,
    user: User = "default",
    json: Json = False,
) -> None:
    """Change a memory; what is not given stays.

    For example:
      ctx-vector memory update 3 --importance 0.9 --type profile --user ada
    """
    given = {
        "content": read_text("-", "--text") if text == "-" else text,
        "type": type,
        "importance": importance,
        "timestamp": timestamp,
        "metadata": _object(metadata),
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise UsageError("nothing to change; give --text, --type, --importance, --timestamp or --metadata")
    with open_memory(memory, user) as kept:
        row = kept.update(id, **changes)
    if json:
        print_json(row.to_dict())
    else:
        _show([row])


@memory_app.command("remove")
@guarded
def remove(id: Id, memory: Folder = None, user: User = "default", json: Json = False) -> None:
    """Forget one memory, for good.

    For example:
      ctx-vector memory remove 3 --user ada
    """
    with open_memory(memory, user) as kept:
        kept.remove(id)
    if json:
        print_json({"removed": id})
    else:
        out(f"memory {plain(id)} is gone")


@memory_app.command("forget")
@guarded
def forget(
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="One of importance_based, time_based, capacity_based.",
            autocompletion=one_of("importance_based", "time_based", "capacity_based"),
        ),
    ] = "importance_based",
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", metavar="X", help="Least importance [0.2]; or how many to keep (capacity_based)."),
    ] = None,
    max_age_days: Annotated[
        float, typer.Option("--max-age-days", metavar="N", help="Older ones are forgotten (time_based).")
    ] = 90.0,
    memory: Folder = None,
    user: User = "default",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show which ones.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> int:
    """Forget many memories, for good: the unimportant, the old, or all but so many.

    For example:
      ctx-vector memory forget --dry-run --user ada
      ctx-vector memory forget --strategy capacity_based --threshold 500 --user ada
      ctx-vector memory forget --strategy time_based --max-age-days 365 --user ada
    """
    if threshold is None and strategy == "capacity_based":
        raise UsageError("--strategy capacity_based: say how many to keep, as --threshold 500")
    least = 0.2 if threshold is None else threshold
    with open_memory(memory, user) as kept:
        rows = kept.forgettable(strategy, least, max_age_days)
        if dry_run and json:
            print_json([row.to_dict() for row in rows])
            return 0
        if rows and (dry_run or (not yes and sys.stdin.isatty())):
            _show(rows)
        if dry_run:
            note(f"{count(len(rows), 'memory')} would be forgotten")
            return 0
        question = f"Forget these {count(len(rows), 'memory')}? [y/N] "
        if rows and not yes and not agreed("forget asks before it forgets", question):
            note("nothing was forgotten")
            return 1
        gone = kept.forget(strategy, least, max_age_days)
    if json:
        print_json({"forgotten": gone})
    else:
        out(f"{count(gone, 'memory')} forgotten")
    return 0


@memory_app.command("consolidate")
@guarded
def consolidate(
    from_type: Annotated[str, typer.Option("--from", metavar="TYPE", help="Type of those to look at.")] = "working",
    to_type: Annotated[str, typer.Option("--to", metavar="TYPE", help="Type that they get.")] = "episodic",
    threshold: Annotated[
        float, typer.Option("--threshold", metavar="X", help="Least importance of those, 0 to 1.")
    ] = 0.7,
    memory: Folder = None,
    user: User = "default",
    json: Json = False,
) -> None:
    """Turn the important memories of one type into another type, which lasts longer.

    For example:
      ctx-vector memory consolidate --from episodic --to semantic --threshold 0.8 --user ada
    """
    with open_memory(memory, user) as kept:
        moved = kept.consolidate(from_type, to_type, threshold)
    if json:
        print_json({"consolidated": moved})
    else:
        out(f"{count(moved, 'memory')} from {from_type} to {to_type}")


@memory_app.command("stats")
@guarded
def stats(memory: Folder = None, user: User = "default", json: Json = False) -> None:
    """Show counts by type, sessions, importance and times.

    For example:
      ctx-vector memory stats --user ada
    """
    with open_memory(memory, user) as kept:
        found = kept.stats()
    if json:
        print_json(found)
        return
    for name, value in found.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {number:,}" for key, number in value.items())
        out(f"{name.replace('_', ' '):<16} {'none' if value is None else plain(str(value))}")


@memory_app.command("export")
@guarded
def export(
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout.")
    ] = None,
    memory: Folder = None,
    user: User = "default",
    json: Annotated[bool, typer.Option("--json", help="With --output: print the count as JSON.")] = False,
) -> None:
    """Write the memories of a user as JSON lines, which import takes back.

    For example:
      ctx-vector memory export --user ada --output ada.jsonl
    """
    with open_memory(memory, user) as kept:
        lines = list(kept.export())
    if output is None:
        for line in lines:
            out(line)
        return
    with whole_file(Path(output)) as file:
        file.writelines(line + "\n" for line in lines)
    if json:
        print_json({"output": output, "memories": len(lines)})
    else:
        out(f"{output}: {count(len(lines), 'memory')}")


@memory_app.command("import")
@guarded
def import_file(
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON lines, as export writes them (-: stdin).")],
    memory: Folder = None,
    user: User = "default",
    json: Json = False,
) -> None:
    """Add memories from JSON lines: all of them, or none when a line is wrong.

    For example:
      ctx-vector memory import ada.jsonl --user ada
    """
    lines = read_text(file, "import").split("\n")
    with open_memory(memory, user, create=True, encoder=open_encoder()) as kept:
        try:
            read = kept.import_lines(lines)
        except InputError as error:
            raise InputError(f"{file}: {error}") from None
        total = kept.stats()["memories"]
    if json:
        print_json({"imported": read, "memories": total})
    else:
        out(f"{count(read, 'memory')} read; {plain(user)} has {total:,} now")


@memory_app.command("clear")
@guarded
def clear(
    memory: Folder = None,
    user: User = "default",
    yes: Yes = False,
    json: Json = False,
) -> int:
    """Forget everything about a user, for good.

    For example:
      ctx-vector memory clear --user ada --yes
    """
    with open_memory(memory, user) as kept:
        if not yes and not agreed(
            "clear asks before it forgets", f"Forget all of {plain(user)}'s memories in {memory_folder(memory)}? [y/N] "
        ):
            note("nothing was forgotten")
            return 1
        gone = kept.clear_all()
    if json:
        print_json({"removed": gone})
    else:
        out(f"{count(gone, 'memory')} forgotten")
    return 0


def _object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json_lib.loads(text)
    except ValueError as error:
        raise InputError(f"--metadata: no valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f'--metadata: expected a JSON object such as {{"topic": "pandas"}}, got {text!r:.60}')
    return found


def _show(rows: Sequence[Row], scores: Sequence[float] | None = None) -> None:
    names = [">id", *([">score"] if scores is not None else []), "type", ">importance", "said", "memory"]
    cells = []
    for place, row in enumerate(rows):
        text = row.content if len(row.content) <= _SHOWN else row.content[:_SHOWN] + "…"
        said = f"{row.timestamp.astimezone():%Y-%m-%d %H:%M}" if row.timestamp else ""
        score = [f"{scores[place]:.2f}"] if scores is not None else []
        speaker = f"{row.speaker}: " if row.speaker else ""
        cells.append([str(row.id), *score, row.type, f"{row.importance:.2f}", said, plain(speaker + text)])
    show_table(names, cells, folding=("memory",))
