"""What was purged from a knowledge base or a memory is purged in the audits that have recorded it.

A knowledge base or a memory knows the audits that have recorded from it: their paths stand in its own file (`link`),
written before the first of its texts is. So a purge reaches them from any process. It cannot be forgotten either: what
is to be done is noted in the transaction that deletes (`Audits.note`), and done then (`Audits.finish`), or, if that is
killed or an audit is out of reach, by the next purge or the next process that opens the store.

A purge takes the contents of packets by where they are kept (`owner_key`, `origin_key`) and contents equal to what was
deleted, everything rendered or shortened from these (the table `copies`), and copies of them inside other texts. Builds
that were on their way meanwhile are found by the table `purges` when they are written.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from ctx_vector import forks
from ctx_vector.audit_tables import FREE_TEXT, GONE, PARTLY, PURGED, digest, generation, open_audit, unpack_refs
from ctx_vector.common_tables import get_meta, set_meta
from ctx_vector.errors import StoreError
from ctx_vector.escaping import escape, normalise, single_line
from ctx_vector.packets import Origin
from ctx_vector.store import IDENTITY, LOCK_SECONDS, Store, cannot_change

_LEAST_COPY: Final = 8  # characters of a text that is looked for inside other texts; of Chinese half as many
_PURGES_KEPT: Final = 30 * 86400.0
_AUDITS: Final = "audits"
_PURGING: Final = "purging"
_STALE_SECONDS: Final = 60.0  # after which what is noted is nobody's work at this moment

log = logging.getLogger("ctx_vector.audit")


def owner_key(origin: Origin) -> bytes:
    """Return the key of everything that one owner keeps in one store."""
    return digest("owner", origin.store, origin.owner)


def origin_key(origin: Origin) -> bytes:
    """Return the key of one document or memory."""
    return digest("origin", origin.store, origin.owner, origin.key)


# -- which audits a store has to reach --------------------------------------------------------------------------------


def identity(store: Store) -> str:
    """Return a name of a store that stays when its folder is moved; its path if it was made without one."""
    with store.read() as conn:
        return str(get_meta(conn, IDENTITY) or store.path.resolve())


def link(store_file: str, audit: Path) -> None:
    """Write into a store that this audit holds texts of it. Raises StoreError when that is impossible.

    An audit in the folder of the store is named by its file alone, so that the folder can be moved. A store that can
    only be read learns nothing, and purges nothing.
    """
    file = Path(store_file).resolve()
    if cannot_change(file):
        return
    name = audit.name if audit.resolve().parent == file.parent else str(audit.resolve())
    try:
        where = f"{file.as_uri()}?mode=rw"  # never make a file
        with (
            forks.in_use(),
            closing(sqlite3.connect(where, uri=True, timeout=LOCK_SECONDS, isolation_level=None)) as conn,
        ):
            if name in _linked(conn):
                return
            conn.execute("BEGIN IMMEDIATE")
            set_meta(conn, _AUDITS, json.dumps(sorted({*_linked(conn), name}), ensure_ascii=False))
            conn.execute("COMMIT")
    except sqlite3.Error as error:
        raise StoreError(
            f"{file} cannot note that the audit {audit} has texts of it, which a purge must find: {error}; check that "
            "it can be written"
        ) from None


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

    def purge(self, owner: str, keys: Iterable[str] | None, texts: Iterable[str]) -> int:
        """Purge what was deleted from the store, and return how many builds it stood in; see `purge_linked`."""
        for audit in list(self._open):
            try:
                audit.flush(5.0)
            except StoreError:  # what cannot be written now is written without what is purged
                pass
        return purge_linked(self._store, owner, keys, texts)

    def note(self, conn: sqlite3.Connection, owner: str, keys: list[str] | None, texts: list[str]) -> None:
        """Note, in the transaction that deletes something, what `finish` has to do; arguments as of `purge_linked`."""
        known = json.loads(get_meta(conn, _PURGING, "null")) or {"at": time.time(), "noted": []}
        if _linked(conn) or len(self._open):  # else only the file is to be rewritten, and no text needed for that
            known["noted"].append([owner, keys, texts])
        set_meta(conn, _PURGING, json.dumps(known))

    def finish(self, *, stale: bool = False) -> int | None:
        """Purge what is noted in the audits, rewrite the file, and return how many builds it stood in; None when
        nothing is noted, or nothing `stale`, if only that is wanted.

        Raises StoreError when an audit could not be reached, after all else was done; it stays noted.
        """
        with self._store.read() as conn:
            known = json.loads(get_meta(conn, _PURGING, "null"))
        if known is None or (stale and abs(time.time() - known["at"]) < _STALE_SECONDS):
            return None
        builds, done, problem = 0, [], None
        for note in known["noted"]:
            try:
                builds += self.purge(*note)
                done.append(note)
            except StoreError as error:
                problem = error
        if done:
            self._renote(lambda noted: [note for note in noted if note not in done])
        self._store.scrub()
        if problem is not None:
            raise problem
        self._renote(lambda noted: noted or None)
        return builds

    def _renote(self, left: Callable[[list[Any]], list[Any] | None]) -> None:
        """Keep of what is noted what `left` returns; nothing at all, if that is None."""
        with self._store.write() as conn:
            known = json.loads(get_meta(conn, _PURGING, "null"))
            noted = None if known is None else left(known["noted"])
            if noted is None:
                conn.execute("DELETE FROM meta WHERE key = ?", (_PURGING,))
            else:
                set_meta(conn, _PURGING, json.dumps({**known, "noted": noted}))

    def finish_stale(self) -> None:
        """Do what an earlier process has left to do; what goes wrong with it is told by a WARNING."""
        try:
            if (builds := self.finish(stale=True)) is not None:
                log.warning("%s: a purge was not finished; it is now (%d builds)", self._store.path, builds)
        except StoreError as error:
            log.warning("a purge is not finished: %s", error)


# -- purging ----------------------------------------------------------------------------------------------------------


def purge(path: Path, keys: Iterable[bytes], texts: Iterable[str]) -> int:
    """Delete texts from an audit for good; return how many builds they stood in.

    `keys` are owners' or origins'. Deleted are the contents of their packets, contents equal to one of `texts`,
    everything rendered or shortened from these, and copies of `texts` inside other texts.
    """
    store = open_audit(path, create=False)
    try:
        with store.decoding(), store.write() as conn:
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
