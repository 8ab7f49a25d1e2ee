"""The index files of a knowledge base: which there are, and that they are what a view wants.

From `file_rows` rows of a language on, its index is a file made by the last run (from `graph_rows` on, a graph). SQLite
has their names, sizes and digests. A file that cannot be used is replaced by the rows of SQLite, with a warning; it is
written again by the next run or by `verify`. One that was made for another calibration is passed over until the next
run.
"""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ctx_vector import catalog
from ctx_vector.common_tables import get_meta
from ctx_vector.errors import StoreError
from ctx_vector.index import FlatIndex, GraphIndex, TailedIndex, file_digest, open_index, save_index
from ctx_vector.store import Store, file_lock

if TYPE_CHECKING:
    from ctx_vector.calibration import Calibration
    from ctx_vector.views import View

FILE_ROWS: Final = 50_000  # with fewer, reading SQLite takes under a quarter of a second
GRAPH_ROWS: Final = 100_000  # with fewer, exact search takes under 9 ms
REWRITE_SHARE: Final = 0.1  # a file is written anew when more of its rows than this have changed

_PATTERNS: Final = ("index-*.ctxidx", "index-*.ctxidx.*.part")

log = logging.getLogger("ctx_vector.knowledge")


@dataclass(frozen=True)
class IndexFile:
    """What SQLite says about an index file."""

    name: str
    fingerprint: str
    version: int
    language: str
    kind: str
    rows: int
    dim: int
    size: int
    digest: str

    @property
    def label(self) -> dict[str, Any]:
        """What the file's header has to say."""
        return {key: getattr(self, key) for key in ("fingerprint", "version", "language", "kind", "rows", "dim")}


def ranking_of(fingerprint: str, calibration: Calibration | None) -> str:
    """Return what the rows of an index file depend on."""
    return f"{fingerprint} {calibration.hash}" if calibration else ""


def known_files(conn: sqlite3.Connection) -> list[IndexFile]:
    """Return the index files that the knowledge base has, by name."""
    rows = conn.execute(
        "SELECT name, fingerprint, version, language, kind, rows, dim, size, digest FROM index_files ORDER BY name"
    )
    return [IndexFile(*row) for row in rows]


def open_file(folder: Path, file: IndexFile) -> FlatIndex | GraphIndex | None:
    """Map an index file; None, with a warning, when it is not as it was written."""
    path = folder / file.name
    try:
        size = path.stat().st_size
        if size != file.size:
            raise StoreError(f"{path} has {size} bytes, {file.size} expected")
        return open_index(path, file.label)
    except (OSError, StoreError) as error:
        log.warning("index file not used, rows are read from SQLite instead: %s; mend it with: kb verify", error)
        return None


def refresh_files(store: Store, view: View, *, file_rows: int = FILE_ROWS, graph_rows: int = GRAPH_ROWS) -> int:
    """Write the index files that this view wants and does not have, and delete those it does not want.

    Returns how many were written. Row vectors come from SQLite, never from an older file.
    """
    folder = store.path.parent
    small = all(len(index) < file_rows for index in view.indexes.values())
    if small and not view.files and next(folder.glob(_PATTERNS[0]), None) is None:
        return 0
    with file_lock(store, folder / "index.lock", -1, "writing index files beside"):
        return _refresh(store, view, file_rows, graph_rows)


def _refresh(store: Store, view: View, file_rows: int, graph_rows: int) -> int:
    folder = store.path.parent
    written = 0
    keep: dict[str, IndexFile] = {}
    for language, index in view.indexes.items():
        if len(index) < file_rows:
            continue
        kind = GraphIndex.kind if len(index) >= graph_rows else FlatIndex.kind
        file = view.files.get(language)
        if (
            file is not None
            and isinstance(index, TailedIndex)
            and file.kind == kind
            and index.changes <= REWRITE_SHARE * len(index.base)
        ):
            keep[language] = file
            continue
        keep[language] = _write_file(store, view, language, kind)
        written += 1
    with store.write() as conn:
        if int(get_meta(conn, "generation", 0)) != view.generation:
            return written  # the next run writes them for its own state; what was written here is deleted then
        if {file.name for file in keep.values()} != {file.name for file in known_files(conn)}:
            conn.execute("DELETE FROM index_files")
            conn.executemany(
                "INSERT INTO index_files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                ((f.name, f.fingerprint, f.version, f.language, f.kind, f.rows, f.dim, f.size, f.digest)
                 for f in keep.values()),
            )  # fmt: skip
            catalog.touch(conn)
    delete_files(folder, {file.name for file in keep.values()})
    return written


def _write_file(store: Store, view: View, language: str, kind: str) -> IndexFile:
    with store.read() as conn:
        ids, rows = view.ranked_rows(conn, language)
    index = (GraphIndex if kind == GraphIndex.kind else FlatIndex)(ids, rows)
    ranking = ranking_of(view.fingerprint, view.calibration)
    name = f"index-{view.fingerprint[-12:]}-{ranking[-6:]}-v{view.version}-g{view.generation}-{language}.ctxidx"
    name = "".join(char if char.isalnum() or char in "-_." else "_" for char in name)
    label = {"fingerprint": ranking, "version": view.version, "language": language}
    size, digest = save_index(store.path.parent / name, index, label)
    return IndexFile(name, ranking, view.version, language, kind, len(ids), index.dim, size, digest)


def delete_files(folder: Path, keep: set[str]) -> None:
    """Delete index files that nothing points to, best-effort: another process may have them open on Windows."""
    for pattern in _PATTERNS:
        for path in folder.glob(pattern):
            if path.name not in keep:
                try:
                    path.unlink()
                except OSError as error:
                    log.debug("%s is deleted later: %s", path, error)


def check_files(store: Store) -> list[tuple[str, str]]:
    """Return the names of index files that are missing or not as they were written, and what is wrong with them."""
    with store.read() as conn:
        files = known_files(conn)
    problems = []
    for file in files:
        path = store.path.parent / file.name
        try:
            if path.stat().st_size != file.size or file_digest(path) != file.digest:
                problems.append((file.name, f"index file {file.name} is not as it was written"))
        except OSError as error:
            problems.append((file.name, f"index file {file.name} cannot be read: {error.strerror or error}"))
    return problems
