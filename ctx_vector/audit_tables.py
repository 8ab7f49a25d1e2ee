"""How an audit lies in SQLite, and how it is kept within bounds.

    context_logs   a build a row: what lists and statistics ask for in columns of their own, the rest in `record`
    contents       every text that any build has seen, once; everything else holds ids of it
    copies         which contents were made from which (a rendered or shortened text from its packet)
    packets        content with time, score and metadata, and where it is kept, as digests: `owner` and `origin`
    configs        the configs of builds
    feedback       what people said of a build afterwards
    rollups        sums by day, hour, minute and source, so that statistics never read the builds
    purges         digests of what was purged and when, for builds that were on their way meanwhile
    gaps           builds that could not be recorded

`context_logs.refs` lists the contents and packets of a build: its texts are loaded by it, and rotation and purge find
by it what is still needed and which builds are affected. A purged content keeps its row, without text and hash.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from ctx_vector.common_tables import get_meta, set_meta
from ctx_vector.store import Store

KIND: Final = "audit"
PURGED: Final = "(purged)"
#: States of a content: as it was, without its text, with "(purged)" in place of a part.
WHOLE, GONE, PARTLY = 0, 1, 2
#: Fields of a config that hold texts; all others hold names and numbers.
FREE_TEXT: Final = ("output_instructions", "reminder")

log = logging.getLogger("ctx_vector.audit")


def _m001(conn: sqlite3.Connection) -> None:
    for statement in (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
        """CREATE TABLE contents (
            id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, state INTEGER NOT NULL DEFAULT 0, text TEXT NOT NULL)""",
        """CREATE TABLE copies (
            of_id INTEGER NOT NULL REFERENCES contents ON DELETE CASCADE,
            copy_id INTEGER NOT NULL REFERENCES contents ON DELETE CASCADE, PRIMARY KEY (of_id, copy_id)
            ) WITHOUT ROWID""",
        "CREATE INDEX copies_copy ON copies (copy_id)",
        """CREATE TABLE packets (
            id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, content_id INTEGER NOT NULL REFERENCES contents,
            owner BLOB, origin BLOB, timestamp TEXT, token_count INTEGER, score REAL, metadata TEXT NOT NULL)""",
        "CREATE INDEX packets_content ON packets (content_id)",
        "CREATE INDEX packets_owner ON packets (owner)",
        "CREATE INDEX packets_origin ON packets (origin)",
        "CREATE TABLE configs (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, config TEXT NOT NULL)",
        # what lists read comes first: of a long row SQLite reads the rest only when it is asked for
        """CREATE TABLE context_logs (
            number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, session_id TEXT, variant TEXT,
            created_at TEXT NOT NULL, total_tokens INTEGER NOT NULL, budget_limit INTEGER NOT NULL,
            query_id INTEGER NOT NULL, gathered INTEGER NOT NULL, kept INTEGER NOT NULL,
            dropped INTEGER NOT NULL, trimmed INTEGER NOT NULL, warnings INTEGER NOT NULL, faults INTEGER NOT NULL,
            build_ms REAL NOT NULL, knowledge_version INTEGER, strategy TEXT, model TEXT, model_fingerprint TEXT,
            tokenizer TEXT NOT NULL, tokenizer_fingerprint TEXT NOT NULL, version TEXT NOT NULL,
            config_hash TEXT NOT NULL, config_id INTEGER NOT NULL, redacted INTEGER NOT NULL,
            purged INTEGER NOT NULL DEFAULT 0, source_stats TEXT NOT NULL, stages TEXT NOT NULL,
            messages TEXT NOT NULL, refs BLOB NOT NULL, record BLOB NOT NULL)""",
        "CREATE INDEX context_logs_created ON context_logs (created_at)",
        "CREATE INDEX context_logs_session ON context_logs (session_id, created_at)",
        "CREATE INDEX context_logs_variant ON context_logs (variant, created_at) WHERE variant IS NOT NULL",
        """CREATE TABLE feedback (
            id INTEGER PRIMARY KEY, build TEXT NOT NULL REFERENCES context_logs (id) ON DELETE CASCADE,
            at TEXT NOT NULL, value REAL NOT NULL, note TEXT NOT NULL, variant TEXT)""",
        "CREATE INDEX feedback_build ON feedback (build)",
        "CREATE INDEX feedback_variant ON feedback (variant, at)",
        """CREATE TABLE rollups (
            span INTEGER NOT NULL, start INTEGER NOT NULL, source TEXT NOT NULL, builds INTEGER NOT NULL,
            tokens INTEGER NOT NULL, kept INTEGER NOT NULL, dropped INTEGER NOT NULL, cut INTEGER NOT NULL,
            quota INTEGER NOT NULL, of_quota INTEGER NOT NULL, near INTEGER NOT NULL, faults INTEGER NOT NULL,
            milliseconds REAL NOT NULL, PRIMARY KEY (span, start, source)) WITHOUT ROWID""",
        "CREATE TABLE purges (at REAL NOT NULL, key BLOB NOT NULL, PRIMARY KEY (at, key)) WITHOUT ROWID",
        "CREATE TABLE gaps (at TEXT NOT NULL, builds INTEGER NOT NULL, reason TEXT NOT NULL)",
    ):
        conn.execute(statement)


def _m002(conn: sqlite3.Connection) -> None:
    conn.execute("ALTER TABLE context_logs ADD COLUMN user_id TEXT")  # whose build it is, when that is known
    conn.execute("CREATE INDEX context_logs_user ON context_logs (user_id, created_at) WHERE user_id IS NOT NULL")


MIGRATIONS: Final = (_m001, _m002)


def open_audit(path: Path, *, create: bool = True) -> Store:
    """Open an audit. Raises StoreError when the file is damaged or something else, SchemaError when it is newer."""
    return Store(path, MIGRATIONS, kind=KIND, create=create, remedy="a new one is made")


def digest(*parts: object) -> bytes:
    """Return the key of a text or of a few names, 16 bytes."""
    return hashlib.blake2b("\0".join(map(str, parts)).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def generation(conn: sqlite3.Connection) -> int:
    """Return a number that changes when something was deleted or purged."""
    return int(get_meta(conn, "generation", 0))


def pack_refs(contents: Iterable[int], packets: Iterable[int]) -> bytes:
    """Return the ids of contents and packets, little endian, 4 bytes each, after the number of the contents; zipped."""
    first = sorted(contents)
    ids = array("I", [len(first), *first, *sorted(packets)])
    if sys.byteorder == "big":
        ids.byteswap()
    return zlib.compress(ids.tobytes(), 1)


def unpack_refs(blob: bytes) -> tuple[Sequence[int], Sequence[int]]:
    """Return what `pack_refs` was given, sorted."""
    ids = array("I")
    ids.frombytes(zlib.decompress(blob))
    if sys.byteorder == "big":
        ids.byteswap()
    return ids[1 : 1 + ids[0]], ids[1 + ids[0] :]


# -- rotation ---------------------------------------------------------------------------------------------------------


def size_of(store: Store) -> int:
    """Return the bytes an audit takes on disk, its log included."""
    files = [store.path.with_name(store.path.name + end) for end in ("", "-wal", "-shm")]
    return sum(file.stat().st_size for file in files if file.exists())


def rotate(store: Store, before: str | None, max_size: int | None, minutes_before: int) -> int:
    """Delete builds made before an ISO time, and the oldest while the file is over `max_size` bytes; return how many.

    Texts that no other build holds go with them. The sums for statistics stay as long as `before` allows, those by the
    minute only from `minutes_before` on (seconds since 1970).
    """
    deleted = 0
    with store.write() as conn:
        conn.execute("DELETE FROM rollups WHERE span = 60 AND start < ?", (minutes_before,))
        if before is not None:
            deleted += _drop(conn, conn.execute("SELECT number FROM context_logs WHERE created_at < ?", (before,)))
            start = _seconds(before)
            conn.execute("DELETE FROM rollups WHERE start + span < ?", (start,))
            conn.execute("DELETE FROM gaps WHERE at < ?", (before,))
        while max_size is not None and _used(conn) > 0.9 * max_size:
            count = conn.execute("SELECT count(*) FROM context_logs").fetchone()[0]
            over = 1 - 0.75 * max_size / _used(conn)
            oldest = conn.execute(
                "SELECT number FROM context_logs ORDER BY number LIMIT ?", (max(1, int(count * min(over, 0.9))),)
            )
            dropped = _drop(conn, oldest)
            deleted += dropped
            if not dropped:
                break
    if max_size is not None and size_of(store) > max_size:
        store.scrub()  # the file was larger before there was a bound, or the log has grown
    if deleted:
        log.info("%s: rotated out %d builds", store.path, deleted)
    return deleted


def delete_builds(store: Store, session: str | None, builds: Sequence[str], before: str) -> int:
    """Delete the builds of a session, those with these ids and those made before an ISO time; return how many.

    No byte of them is left. Statistics keep their sums.
    """
    with store.write() as conn:
        numbers = {
            row[0]
            for row in conn.execute(
                "SELECT number FROM context_logs WHERE session_id = ? OR created_at < ?", (session, before)
            )
        }
        for id_ in builds:
            numbers.update(row[0] for row in conn.execute("SELECT number FROM context_logs WHERE id = ?", (id_,)))
        deleted = _drop(conn, [(number,) for number in sorted(numbers)])
    if deleted:
        store.scrub()
    return deleted


def _seconds(stamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(stamp).timestamp()


def _used(conn: sqlite3.Connection) -> int:
    """Return the bytes in use: pages that are free are filled before the file grows."""
    pages, free, size = (
        conn.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _drop(conn: sqlite3.Connection, found: Iterable[tuple[Any, ...]]) -> int:
    """Delete builds, and what only they referred to."""
    numbers = [row[0] for row in found]
    contents: set[int] = set()
    packets: set[int] = set()
    for number in numbers:
        first, second = unpack_refs(
            conn.execute("SELECT refs FROM context_logs WHERE number = ?", (number,)).fetchone()[0]
        )
        contents.update(first)
        packets.update(second)
        conn.execute("DELETE FROM context_logs WHERE number = ?", (number,))
    for (refs,) in conn.execute("SELECT refs FROM context_logs") if numbers else ():
        first, second = unpack_refs(refs)
        contents.difference_update(first)
        packets.difference_update(second)
    conn.executemany("DELETE FROM packets WHERE id = ?", [(id_,) for id_ in packets])
    conn.executemany("DELETE FROM contents WHERE id = ?", [(id_,) for id_ in contents])
    if numbers:
        set_meta(conn, "generation", generation(conn) + 1)
        conn.execute("DELETE FROM configs WHERE id NOT IN (SELECT config_id FROM context_logs)")
    return len(numbers)
