"""`ctx-vector index` and `ctx-vector search`."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctx_vector.cli import search as cli_search
from ctx_vector.cli.common import INTERRUPTED, count, held_warnings, note, out, print_json, seconds, some
from ctx_vector.cli.opening import DEFAULT_KB, open_kb
from ctx_vector.cli.options import Json, Kb, Model, Rerank, Retrieval, guarded
from ctx_vector.cli.text import plain
from ctx_vector.errors import InputError, OptionalDependencyError
from ctx_vector.sync_report import skip_kind

if TYPE_CHECKING:
    from ctx_vector.knowledge import KnowledgeBase
    from ctx_vector.sync_report import SyncReport

_MAX_BYTES = 20_000_000


@guarded
def index(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Files and folders to index.")],
    kb: Kb = DEFAULT_KB,
    model: Model = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done and how long.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay, and index again whenever a file changes (extra: watch).")
    ] = False,
    max_file_size: Annotated[
        str, typer.Option("--max-file-size", metavar="SIZE", help="Skip larger files: bytes, or 500kB, 20MB, 1GB.")
    ] = "20MB",
    chunk_tokens: Annotated[
        int | None,
        typer.Option("--chunk-tokens", metavar="N", help="Fill passages up to so many model tokens; it is remembered."),
    ] = None,
    json: Json = False,
) -> int:
    """Index files and folders; only what is new or changed is encoded.

    What is gone under the paths given leaves the knowledge base; other documents stay. Hidden files, what .gitignore
    excludes, binary formats and too large files are skipped, and the summary says so.

    For example:
      ctx-vector index docs notes.md --kb kb
      ctx-vector index docs --kb kb --dry-run
    """
    most = read_size(max_file_size)
    missing = [path for path in paths if not os.path.lexists(path)]
    if len(missing) == len(paths):
        raise InputError(f"no such file or folder: {', '.join(missing)}")
    watcher = _watcher() if watch else None
    with _opened(kb, model, dry_run, chunk_tokens) as base:
        code = _sync(base, paths, kb, dry_run, most, json, one_line=watch)
        if watcher is not None and code != INTERRUPTED and not dry_run:
            note(f"watching {some(paths)}; stop with Ctrl-C")
            for _ in _changes(watcher, paths, Path(kb)):
                code = _sync(base, paths, kb, False, most, json, one_line=True)
                if code == INTERRUPTED:
                    return code
            return 0
        return code


@contextmanager
def _opened(folder: str, model: str | None, dry_run: bool, chunk_tokens: int | None) -> Iterator[KnowledgeBase]:
    """Open the knowledge base; one that is not there yet is not made by a dry run."""
    absent = dry_run and not (Path(folder) / "ctx.sqlite3").exists()
    with tempfile.TemporaryDirectory() if absent else nullcontext(folder) as place:
        with open_kb(place, model, create=True, chunk_tokens=chunk_tokens) as kb:
            yield kb


def _sync(
    kb: KnowledgeBase, paths: Sequence[str], folder: str, dry_run: bool, most: int, json: bool, *, one_line: bool
) -> int:
    from ctx_vector.cli.progress import index_bar

    with held_warnings() as held:
        try:
            with index_bar() as progress:
                report = kb.sync(*paths, progress=progress, dry_run=dry_run, max_bytes=most)
        except KeyboardInterrupt:
            held.told.append("interrupted")
            note("interrupted; what was encoded is kept, run the same command again to go on")
            return INTERRUPTED
        if not json:
            held.told += [f"{source} failed: " for source in report.failed]  # the summary names them
            held.told += [f"{source} is garbled: " for source in report.garbled]
    if json:
        print_json(report.to_dict() | ({"dry_run": True} if dry_run else {}), indent=None if one_line else 2)
        for path, reason in report.failed.items():
            if path in paths:  # what could not even be looked at was not logged
                note(f"warning: {path} failed: {reason}")
    elif one_line and not (report.added or report.updated or report.removed or report.failed):
        out("nothing has changed")
    else:
        for line in summary(report, folder, dry_run):
            out(line)
    there = len(report.added) + len(report.updated) + len(report.unchanged)
    if not there and not report.removed:
        empty = f"; {folder} is there now, and empty" if not report.version and not dry_run else ""
        verb = "would be" if dry_run else "was"
        raise InputError(f"nothing {verb} indexed from {some(paths)}: {_why(report)}{empty}")
    if report.failed:
        others = "the others can be read" if dry_run else "the others are in"
        note(f"warning: {count(len(report.failed), 'file')} failed, {others}")
    return 0


def _why(report: SyncReport) -> str:
    if not report.failed:
        return f"no document was found ({len(report.skipped):,} skipped)" if report.skipped else "no document was found"
    source, reason = next(iter(report.failed.items()))
    return f"{source} failed: {reason}" if len(report.failed) == 1 else f"all {len(report.failed):,} files failed"


def summary(report: SyncReport, folder: str, dry_run: bool) -> Iterator[str]:
    """Yield the lines that tell a person what a run did, or would do."""
    changes = ", ".join(
        f"{len(names):,} {word}"
        for word, names in (
            ("added", report.added),
            ("updated", report.updated),
            ("removed", report.removed),
            ("unchanged", report.unchanged),
            ("failed", report.failed),
        )
        if names or word in ("added", "unchanged")
    )
    if dry_run:
        yield f"{folder} would get (nothing is changed yet):"
    else:
        yield f"{folder} is at version {report.version}" if report.version else f"{folder} is empty"
    yield f"  documents  {changes}"
    if dry_run:
        time = "no time" if not report.encoded else f"about {seconds(report.seconds)}"
        yield f"  chunks     {report.chunks:,} in all, {report.encoded:,} to encode"
        yield f"  time       {time}"
    else:
        speed = f", {report.encoded / report.encoder_seconds:.0f}/s" if report.encoder_seconds > 0.2 else ""
        yield f"  chunks     {report.chunks:,} in all, {report.encoded:,} encoded{speed}"
        yield f"  time       {seconds(report.seconds)}"
    for source, reason in report.failed.items():
        yield f"  failed     {plain(source)}: {plain(reason)}"
    if report.garbled:
        listed = some(map(plain, report.garbled))
        yield f"  garbled    {len(report.garbled):,} in an unknown encoding, or damaged; save as UTF-8: {listed}"
    groups: dict[str, list[str]] = {}
    for path, reason in report.skipped.items():
        groups.setdefault(skip_kind(reason), []).append(plain(_short(path)))
    for reason, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        yield f"  skipped    {len(names):,} {plain(reason)}: {some(names)}"


def _short(path: str) -> str:
    """Return a path as seen from the working directory, when it is below it."""
    near = os.path.relpath(path) if os.path.splitdrive(path)[0] == os.path.splitdrive(os.getcwd())[0] else path
    return path if near.startswith("..") else near


def read_size(text: str) -> int:
    """Return the bytes of ``20MB``, ``500 kB``, ``1GB`` or a plain number. Raises InputError for anything else.

    >>> read_size("1.5MB")
    1500000
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?)i?b?\s*", text, re.I)
    number = int(float(match[1]) * {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}[match[2].lower()]) if match else 0
    if number < 1:
        raise InputError(f"--max-file-size: expected a size such as 500kB or 20MB, got {text!r}")
    return number


def _watcher() -> Any:
    try:
        import watchfiles
    except ImportError:
        raise OptionalDependencyError("index --watch", "watch") from None
    return watchfiles


def _changes(watchfiles: Any, paths: Sequence[str], kb: Path) -> Iterator[object]:
    """Yield whenever something changed under the paths, but not in the knowledge base, until Ctrl-C."""
    own = os.path.realpath(kb)

    def outside(change: object, path: str) -> bool:
        real = os.path.realpath(path)
        return real != own and not real.startswith(own + os.sep)

    try:
        yield from watchfiles.watch(*paths, watch_filter=outside, raise_interrupt=True)
    except KeyboardInterrupt:
        pass
    note("stopped watching")


@guarded
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for, in any language.")],
    kb: Kb = DEFAULT_KB,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", help="Show at most this many passages.")
    ] = cli_search.DEFAULT_LIMIT,
    min_score: Annotated[
        float, typer.Option("--min-score", metavar="X", help="Leave out passages that score less, 0 to 1.")
    ] = 0.0,
    filter: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="KEY=VALUE",
            help="Only documents with this in their metadata; 'source=docs/en/*' matches names. May be repeated.",
        ),
    ] = None,
    strategy: Retrieval = "cosine",
    rerank: Rerank = None,
    model: Model = None,
    json: Json = False,
) -> int:
    """Find the passages nearest in meaning to a question.

    Scores are calibrated: about 0.1 is the line between unrelated and related, 0.7 a typical match.

    For example:
      ctx-vector search "如何声明路径参数" --kb kb --limit 3
      ctx-vector search "path parameters" --kb kb --filter 'source=docs/en/*' --json
    """
    asked = cli_search.Search(query, kb, limit, min_score, strategy, rerank, tuple(filter or ()), model, json)
    return cli_search.search(asked)
