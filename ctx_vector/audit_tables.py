"""How an audit lies in SQLite, and how what was purged elsewhere is purged in it.

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

A knowledge base or a memory knows the audits that have recorded from it: their paths stand in its own file (`link`),
written before the first of its texts is. So a purge reaches them from any process, and cannot be forgotten.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import sys
import time
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from ctx_vector.errors import StoreError
from ctx_vector.escaping import escape, normalise, single_line
from ctx_vector.packets import Origin
from ctx_vector.store import IDENTITY, LOCK_SECONDS, Store, get_meta, set_meta

KIND: Final = "audit"
PURGED: Final = "(purged)"
#: States of a content: as it was, without its text, with "(purged)" in place of a part.
WHOLE, GONE, PARTLY = 0, 1, 2
#: Fields of a config that hold texts; all others hold names and numbers.
FREE_TEXT: Final = ("output_instructions", "reminder")
_LEAST_COPY: Final = 8  # characters of a text that is looked for inside other texts; of Chinese half as many
_PURGES_KEPT: Final = 30 * 86400.0
_AUDITS: Final = "audits"

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


MIGRATIONS: Final = (_m001,)


def open_audit(path: Path, *, create: bool = True) -> Store:
    """Open an audit. Raises StoreError when the file is damaged or something else, SchemaError when it is newer."""
    return Store(path, MIGRATIONS, kind=KIND, create=create, remedy="a new one is made")


def digest(*parts: object) -> bytes:
    """Return the key of a text or of a few names, 16 bytes."""
    return hashlib.blake2b("\0".join(map(str, parts)).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def owner_key(origin: Origin) -> bytes:
    """Return the key of everything that one owner keeps in one store."""
    return digest("owner", origin.store, origin.owner)


def origin_key(origin: Origin) -> bytes:
    """Return the key of one document or memory."""
    return digest("origin", origin.store, origin.owner, origin.key)


def generation(conn: sqlite3.Connection) -> int:
    """Return a number that changes when something was deleted or purged."""
    return int(get_meta(conn, "generation", 0))


def pack_refs(contents: Iterable[int], packets: Iterable[int]) -> bytes:
    """Return the ids of contents and packets, little endian, 4 bytes each, after the number of the contents."""
    first = sorted(contents)
    ids = array("I", [len(first), *first, *sorted(packets)])
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def unpack_refs(blob: bytes) -> tuple[Sequence[int], Sequence[int]]:
    """Return what `pack_refs` was given, sorted."""
    ids = array("I")
    ids.frombytes(blob)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids[1 : 1 + ids[0]], ids[1 + ids[0] :]


# -- which audits a store has to reach --------------------------------------------------------------------------------


def identity(store: Store) -> str:
    """Return a name of a store that stays when its folder is moved; its path if it was made without one."""
    with store.read() as conn:
        return str(get_meta(conn, IDENTITY) or store.path.resolve())


def link(store_file: str, audit: Path) -> None:
    """Write into a store that this audit holds texts of it. Raises StoreError when that is impossible.

    An audit in the folder of the store is named by its file alone, so that the folder can be moved.
    """
    file = Path(store_file).resolve()
    name = audit.name if audit.resolve().parent == file.parent else str(audit.resolve())
    try:
        where = f"{file.as_uri()}?mode=rw"  # never make a file
        with closing(sqlite3.connect(where, uri=True, timeout=LOCK_SECONDS, isolation_level=None)) as conn:
            if name in _linked(conn):
                return
            conn.execute("BEGIN IMMEDIATE")
            set_meta(conn, _AUDITS, json.dumps(sorted({*_linked(conn), name}), ensure_ascii=False))
            conn.execute("COMMIT")
    except sqlite3.Error as error:
        raise StoreError(f"{file} cannot be told of the audit {audit}: {error}") from None


def _linked(conn: sqlite3.Connection) -> list[str]:
    names: list[str] = json.loads(get_meta(conn, _AUDITS, "[]"))
    return names


def linked(store: Store) -> list[Path]:
    """Return the audits that hold texts of a store, and are still there."""
    with store.read() as conn:
        paths = [store.path.parent / name for name in _linked(conn)]
    return [path for path in paths if path.exists()]


def purge_linked(store: Store, owner: str, keys: Iterable[str] | None, texts: Iterable[str]) -> int:
    """Purge what was just deleted from a store in every audit that has texts of it; return how many builds it stood in.

    `keys` are the names of what was deleted, None for everything of `owner`; `texts` what it said. Raises StoreError
    when an audit could not be reached, after all others were.
    """
    paths = linked(store)
    if not paths:
        return 0
    name = identity(store)
    if keys is None:
        gone = [owner_key(Origin("", name, owner, ""))]
    else:
        gone = [origin_key(Origin("", name, owner, key)) for key in keys]
    said, builds, problems = list(texts), 0, []
    for path in paths:
        try:
            builds += purge(path, gone, said)
        except StoreError as error:
            problems.append(f"{path} still holds it ({error})")
    if problems:
        raise StoreError(
            f"deleted from {store.path}, but {'; '.join(problems)}; run it again, or delete the audit itself"
        )
    return builds


class Audits:
    """The audits of one store, as an open object knows them: it names the origin of what comes out of it, and purges.

    Audits open in this process are flushed before a purge, so that it finds what they were about to write.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._identity = ""
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, audit: Any) -> None:
        """Remember an open audit, an object with `flush(timeout)`."""
        self._open.add(audit)

    def origin(self, owner: str, key: str) -> Origin:
        """Return where something that comes out of the store is kept."""
        if not self._identity:
            self._identity = identity(self._store)
        return Origin(str(self._store.path), self._identity, owner, key)

    def purge(self, owner: str, keys: Iterable[str] | None, texts: Iterable[str]) -> None:
        """Purge what was just deleted from the store; see `purge_linked`."""
        for audit in list(self._open):
            try:
                audit.flush(5.0)
            except StoreError:  # what cannot be written now is written without what is purged
                pass
        purge_linked(self._store, owner, keys, texts)


# -- purging ----------------------------------------------------------------------------------------------------------


def purge(path: Path, keys: Iterable[bytes], texts: Iterable[str]) -> int:
    """Delete texts from an audit for good; return how many builds they stood in.

    `keys` are owners' or origins'. Deleted are the contents of their packets, contents equal to one of `texts`,
    everything rendered or shortened from these, and copies of `texts` inside other texts.
    """
    store = open_audit(path, create=False)
    try:
        with store.write() as conn:
            builds, found = _purge(conn, list(keys), list(dict.fromkeys(texts)))
        if found:
            store.scrub()
    finally:
        store.close()
    log.info("%s: purged in %d builds", path, builds)
    return builds


def _purge(conn: sqlite3.Connection, keys: list[bytes], texts: list[str]) -> tuple[int, bool]:
    now = time.time()
    hashes = [digest(text) for text in texts]
    conn.execute("DELETE FROM purges WHERE at < ?", (now - _PURGES_KEPT,))
    conn.executemany("INSERT OR IGNORE INTO purges VALUES (?, ?)", [(now, key) for key in (*keys, *hashes)])
    packets: set[int] = set()
    gone: set[int] = set()
    for key in keys:
        rows = conn.execute("SELECT id, content_id FROM packets WHERE origin = ?1 OR owner = ?1", (key,)).fetchall()
        packets.update(row[0] for row in rows)
        gone.update(row[1] for row in rows)
    for key in hashes:
        gone.update(row[0] for row in conn.execute("SELECT id FROM contents WHERE hash = ?", (key,)))
    for id_ in list(gone):
        texts += [row[0] for row in conn.execute("SELECT text FROM contents WHERE id = ?", (id_,))]
        gone.update(row[0] for row in conn.execute("SELECT copy_id FROM copies WHERE of_id = ?", (id_,)))
    conn.executemany(
        "UPDATE contents SET state = ?, text = '', hash = randomblob(16) WHERE id = ?", [(GONE, id_) for id_ in gone]
    )
    conn.executemany(
        "UPDATE packets SET metadata = '{}', timestamp = NULL, hash = randomblob(16) WHERE id = ?",
        [(id_,) for id_ in packets],
    )
    partly = set(_purge_copies(conn, texts))
    changed = gone | partly
    if not (changed or packets):
        return 0, False
    set_meta(conn, "generation", generation(conn) + 1)
    affected = [
        number
        for number, refs in conn.execute("SELECT number, refs FROM context_logs")
        if not (changed.isdisjoint(unpack_refs(refs)[0]) and packets.isdisjoint(unpack_refs(refs)[1]))
    ]
    conn.executemany("UPDATE context_logs SET purged = 1 WHERE number = ?", [(number,) for number in affected])
    return len(affected), True


def _purge_copies(conn: sqlite3.Connection, texts: Iterable[str]) -> Iterator[int]:
    """Put "(purged)" in place of copies of texts inside others; yield the contents that held one."""
    forms = sorted({form for text in texts for form in _forms(text)}, key=len, reverse=True)
    if not forms:
        return

    def clean(text: str) -> str:
        for form in forms:
            if form in text:
                text = text.replace(form, PURGED)
        return text

    def changed(select: str) -> list[tuple[str, int]]:  # JSON may become none: who reads it takes that for nothing
        return [(new, id_) for id_, old in conn.execute(select) if (new := clean(old)) != old]

    contents = changed("SELECT id, text FROM contents WHERE state != 1")
    conn.executemany(f"UPDATE contents SET text = ?, state = {PARTLY}, hash = randomblob(16) WHERE id = ?", contents)
    found = changed("SELECT id, metadata FROM packets")
    conn.executemany("UPDATE packets SET metadata = ?, hash = randomblob(16) WHERE id = ?", found)
    conn.executemany("UPDATE feedback SET note = ? WHERE id = ?", changed("SELECT id, note FROM feedback"))
    for id_, text in conn.execute("SELECT id, config FROM configs").fetchall():
        config = json.loads(text)
        config |= {name: clean(config[name]) for name in FREE_TEXT if config.get(name)}
        new = json.dumps(config, ensure_ascii=False)
        if new != text:
            conn.execute("UPDATE configs SET config = ?, hash = randomblob(16) WHERE id = ?", (new, id_))
    yield from (id_ for _, id_ in contents)


def _forms(text: str) -> set[str]:
    """Return a text as it may stand inside others: as it is, as rendered, each also as a JSON string.

    None when it is so short that it could stand there by chance.
    """
    bare = text.strip()
    if len(bare) + sum(char >= "\u2e80" for char in bare) < _LEAST_COPY:
        return set()
    shown = normalise(bare)
    forms = {bare, shown, escape(shown), escape(shown, ()), single_line(shown)}
    return forms | {json.dumps(form, ensure_ascii=False)[1:-1] for form in forms}


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
