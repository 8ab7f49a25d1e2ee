"""Changing memories: one transaction an edit, and no encoding while the lock is held.

An edit is a function of an `Edit`. It is run inside a write transaction; texts that have no vector yet are noted, the
transaction is rolled back, the texts are encoded, and the edit is run again, now against whatever another process has
done meanwhile. So neither a slow encoder keeps others waiting, nor can two processes give a turn the wrong neighbours.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from ctx_vector import memory_rows as rows
from ctx_vector.common_tables import find_encodings
from ctx_vector.dialogue import NEIGHBOURS, alone_text, around_text
from ctx_vector.encoding_cache import EncodingCache, text_hash, unpack_vector
from ctx_vector.errors import StoreError
from ctx_vector.languages import language_of
from ctx_vector.memory_rows import NewMemory, Row
from ctx_vector.memory_same import SAME_COSINE, fold_turn, say_the_same
from ctx_vector.memory_view import MemoryView
from ctx_vector.store import Store

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

T = TypeVar("T")

_TRIES: Final = 20
_BLOCK: Final = 256
_PENDING_SECONDS: Final = 3_600.0  # how long another process may take from encoding a text to writing the memory


class _Missing(Exception):
    """Texts that have to be encoded before the edit can be made."""

    def __init__(self, texts: dict[bytes, str]) -> None:
        self.texts = texts


class Edit:
    """One attempt of an edit, inside its transaction, for one user.

    `view` is the user's view as it was before, for an edit that looks for near-equal vectors; `now` the time of the
    edit, aware UTC.
    """

    def __init__(
        self, conn: sqlite3.Connection, user: str, model: int, now: datetime, view: MemoryView | None = None
    ) -> None:
        self.conn = conn
        self.user = user
        self.now = now
        self.generation = rows.next_generation(conn)
        self.missing: dict[bytes, str] = {}
        self._view = view
        self._model = model
        self._known: dict[bytes, int] = {}
        self._maybe_orphans: set[int] = set()
        self._removed = False

    def encoding(self, text: str) -> int:
        """Return the row id of a text's vector; 0 when it has to be encoded first."""
        key = text_hash(text)
        if key not in self._known:
            found = find_encodings(self.conn, self._model, [key])
            if key not in found:
                self.missing[key] = text
                return 0
            self._known[key] = found[key]
        return self._known[key]

    def vector(self, encoding: int) -> Vectors:
        """Return a stored vector (dim,)."""
        row = self.conn.execute("SELECT vector FROM encodings WHERE id = ?", (encoding,)).fetchone()
        return unpack_vector(row[0])

    # -- adding -----------------------------------------------------------------------------------------------------

    def add(self, items: Sequence[NewMemory]) -> list[int]:
        """Write new memories, or merge them with what is there; return the ids, in order."""
        alone = [self.encoding(alone_text(item)) for item in items]
        near = {} if self.missing else self._near(items, alone)
        ids: list[int] = []
        sessions: dict[str, int] = {}
        for place, item in enumerate(items):
            same = rows.equal_text(self.conn, self.user, item.type, item.folded)
            if same is None and place in near:
                same = self._really_same(item.content, (ids[-to - 1] if to < 0 else to for to in near[place]))
            if same is not None:
                self._merge(same, item)
                ids.append(same.id)
                continue
            made = rows.insert(
                self.conn,
                self.user,
                item,
                created=self.now,
                language=language_of(item.content),
                alone=alone[place],
                around=alone[place],
                generation=self.generation,
            )
            ids.append(made)
            if item.session is not None:
                sessions[item.session] = sessions.get(item.session, 0) + 1
        self._maybe_orphans.update(alone)
        for session, count in sessions.items():
            # those before the new ones have got new neighbours; their own neighbours before them are needed too
            tail = rows.last_of_session(self.conn, self.user, session, count + 2 * NEIGHBOURS)
            for place in range(max(0, len(tail) - count - NEIGHBOURS), len(tail)):
                self._look_around(tail, place)
        return ids

    def _near(self, items: Sequence[NewMemory], alone: Sequence[int]) -> dict[int, list[int]]:
        """Return, by place, the memories that an item may equal by cosine, nearest first: their ids, or ``-1 - place``
        of an earlier item.

        Turns of a conversation are left out: they are short, alike, and each has its place.
        """
        found: dict[int, list[int]] = {}
        for kind in rows.TYPES:
            places = [place for place, item in enumerate(items) if item.type == kind and item.session is None]
            if not places:
                continue
            fresh = np.stack([self.vector(alone[place]) for place in places])
            ids, known = self._of_type(kind)
            for start in range(0, len(places), _BLOCK):
                block = fresh[start : start + _BLOCK]
                old, new = block @ known.T, block @ fresh[: start + len(block)].T
                for at in range(len(block)):
                    near = _over(old[at], ids)
                    near += [-1 - places[n] for n in _over(new[at, : start + at], np.arange(start + at))]
                    if near:
                        found[places[start + at]] = near
        return found

    def _of_type(self, kind: str) -> tuple[NDArray[np.int64], Vectors]:
        assert self._view is not None, "an edit that compares vectors needs the view"
        return self._view.facts_of_type(kind)

    def _really_same(self, content: str, targets: Iterable[int]) -> Row | None:
        for target in targets:
            row = rows.rows_by_id(self.conn, self.user, [target]).get(target)
            if row is not None and say_the_same(content, row.content):
                return row
        return None

    def _merge(self, kept: Row, item: NewMemory) -> None:
        """Keep one copy, with the highest importance, the newest time, and all metadata."""
        newest = max((stamp for stamp in (kept.timestamp, item.timestamp) if stamp is not None), default=None)
        rows.change(
            self.conn,
            self.user,
            kept.id,
            self.generation,
            importance=max(kept.importance, item.importance),
            timestamp=newest if kept.session is None else kept.timestamp,
            created=self.now,
            metadata={**kept.metadata, **item.metadata},
        )

    # -- neighbours -------------------------------------------------------------------------------------------------

    def _look_around(self, session: Sequence[Row], place: int) -> None:
        """Give the turn at this place of a session, or of a part of it, its vector among its neighbours of now."""
        row = session[place]
        text = around_text(session, place)
        around = row.alone if text is None else self.encoding(text)
        if around != row.around:
            self._maybe_orphans.add(row.around)
            rows.change(self.conn, self.user, row.id, self.generation, around=around)

    def _look_around_near(self, session: str, id_: int) -> None:
        """Do that for the turn with an id, if it is (still) there, and for all whose neighbour it is or was."""
        before, after = rows.neighbourhood(self.conn, self.user, session, id_, NEIGHBOURS)
        for row in (*before, *after):
            earlier, later = rows.neighbourhood(self.conn, self.user, session, row.id, NEIGHBOURS)
            self._look_around(earlier + later, len(earlier))

    # -- changing ---------------------------------------------------------------------------------------------------

    def change(self, row: Row, **columns: Any) -> None:
        """Change columns of a memory; its vectors and its neighbours' follow."""
        if columns.get("type") == "working":
            columns["created"] = self.now  # its time to live begins
        rows.change(self.conn, self.user, row.id, self.generation, **columns)
        changed = rows.rows_by_id(self.conn, self.user, [row.id])[row.id]
        alone = self.encoding(alone_text(changed))
        again: dict[str, Any] = {"folded": fold_turn(changed), "language": language_of(changed.content)}
        if alone != row.alone:
            again |= {"alone": alone, "around": alone}
            self._maybe_orphans.update((row.alone, row.around))
        rows.change(self.conn, self.user, row.id, self.generation, **again)
        if row.session is not None:
            self._look_around_near(row.session, row.id)

    def retype(self, row: Row, kind: str) -> None:
        """Give a memory another type; when the same is there in that type, merge into it and delete this one."""
        same = rows.equal_text(self.conn, self.user, kind, fold_turn(row))
        if same is None and row.session is None:
            ids, known = self._of_type(kind)
            same = self._really_same(row.content, _over(known @ self.vector(row.alone), ids))
        if same is None:
            self.change(row, type=kind)
            return
        self._merge(same, NewMemory(row.content, kind, row.importance, row.timestamp, metadata=row.metadata))
        self.remove([row])

    def remove(self, gone: Sequence[Row]) -> None:
        """Delete memories, and every trace of them in their neighbours' vectors."""
        self._removed = True
        self._maybe_orphans.update(id_ for row in gone for id_ in (row.alone, row.around))
        rows.delete(self.conn, self.user, [row.id for row in gone], self.generation)
        for row in gone:
            if row.session is not None:
                self._look_around_near(row.session, row.id)

    def finish(self, tried: Iterable[bytes]) -> None:
        """Delete vectors that nothing refers to, also those `tried` in vain by earlier attempts; raise _Missing when
        texts have to be encoded first.
        """
        if self.missing:
            raise _Missing(self.missing)
        hashes = {rows.hash_of(self.conn, id_) for id_ in self._maybe_orphans if id_} - {None}
        hashes.update(tried)
        if self._removed:  # what a killed process left may hold the removed text as a neighbour
            hashes.update(rows.unused(self.conn, self._model, time.time() - _PENDING_SECONDS))
        rows.sweep(self.conn, [hash_ for hash_ in hashes if hash_ is not None])


def _over(cosines: NDArray[np.float32], ids: NDArray[np.int64]) -> list[int]:
    """Return the ids of those that may be the same, the nearest first, then by id."""
    at = np.flatnonzero(cosines >= SAME_COSINE)
    return [int(ids[n]) for n in at[np.lexsort((ids[at], -cosines[at]))]]


def run_edit(
    store: Store,
    cache: EncodingCache,
    user: str,
    now: datetime,
    work: Callable[[Edit], T],
    view: Callable[[sqlite3.Connection], MemoryView] | None,
) -> T:
    """Run an edit to its end, encoding what it needs in between; `view` loads the view of a snapshot.

    Raises ModelMismatchError when the vectors there are another encoder's, StoreError when others never stop changing
    the same memories.
    """
    tried: set[bytes] = set()
    for _ in range(_TRIES):
        try:
            with store.write() as conn:
                conn.execute("PRAGMA defer_foreign_keys=ON")  # an attempt that is rolled back may point nowhere
                edit = Edit(conn, user, cache.model(conn), now, view(conn) if view else None)
                result = work(edit)
                edit.finish(tried)
                return result
        except _Missing as missing:
            tried.update(missing.texts)
            cache.forget(missing.texts)
            cache.ensure(missing.texts)
    raise StoreError(f"{store.path}: other processes keep changing the same memories; try again")
