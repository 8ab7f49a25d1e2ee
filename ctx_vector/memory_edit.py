"""Changing memories: one transaction an edit, and no encoding while the lock is held.

An edit is a function of an `Edit`. It is run inside a write transaction; texts that have no vector yet are noted, the
transaction is rolled back, the texts are encoded, and the edit is run again, now against whatever another process has
done meanwhile. So neither a slow encoder keeps others waiting, nor can two processes give a turn the wrong neighbours.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from ctx_vector import memory_rows as rows
from ctx_vector.calibration import language_of
from ctx_vector.dialogue import NEIGHBOURS, alone_text, around_text
from ctx_vector.encoding_cache import EncodingCache, text_hash, unpack_vector
from ctx_vector.errors import StoreError
from ctx_vector.memory_rows import NewMemory, Row
from ctx_vector.store import Store, find_encodings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.memory_view import MemoryView

    Vectors = NDArray[np.float32]

T = TypeVar("T")

#: Two memories of one type are the same from this raw cosine on.
SAME_COSINE: Final = 0.985
_TRIES: Final = 20
_BLOCK: Final = 256


class _Missing(Exception):
    """Texts that have to be encoded before the edit can be made."""

    def __init__(self, texts: dict[bytes, str]) -> None:
        self.texts = texts


class Edit:
    """One attempt of an edit, inside its transaction, for one user."""

    def __init__(self, conn: sqlite3.Connection, user: str, model: int, view: MemoryView) -> None:
        self.conn = conn
        self.user = user
        self.view = view
        self.generation = rows.next_generation(conn)
        self.missing: dict[bytes, str] = {}
        self._model = model
        self._known: dict[bytes, int] = {}
        self._maybe_orphans: set[int] = set()

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

    def add(self, items: Sequence[NewMemory], created: datetime) -> list[int]:
        """Write new memories, or merge them with what is there; return the ids, in order."""
        alone = [self.encoding(alone_text(item)) for item in items]
        near = {} if self.missing else self._near(items, alone)
        ids: list[int] = []
        sessions: dict[str, int] = {}
        for place, item in enumerate(items):
            same = rows.equal_text(self.conn, self.user, item.type, item.folded)
            if same is None and place in near:
                target = near[place]
                wanted = ids[-target - 1] if target < 0 else target  # negative: an earlier item of this call
                same = rows.rows_by_id(self.conn, self.user, [wanted]).get(wanted)
            if same is not None:
                self._merge(same, item)
                ids.append(same.id)
                continue
            made = rows.insert(
                self.conn,
                self.user,
                item,
                created=created,
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
            self._look_around(tail, range(max(0, len(tail) - count - NEIGHBOURS), len(tail)))
        return ids

    def _near(self, items: Sequence[NewMemory], alone: Sequence[int]) -> dict[int, int]:
        """Return, by place, the id of the memory an item equals by cosine, or ``-1 - place`` of an earlier item.

        Turns of a conversation are left out: they are short, alike, and each has its place.
        """
        found: dict[int, int] = {}
        for kind in rows.TYPES:
            places = [place for place, item in enumerate(items) if item.type == kind and item.session is None]
            if not places:
                continue
            fresh = np.stack([self.vector(alone[place]) for place in places])
            ids, known = self.view.of_type(kind)
            for start in range(0, len(places), _BLOCK):
                block = fresh[start : start + _BLOCK]
                if len(ids):
                    cosines = block @ known.T
                    best = cosines.argmax(1)
                    for at in np.flatnonzero(cosines[np.arange(len(block)), best] >= SAME_COSINE).tolist():
                        found[places[start + at]] = int(ids[best[at]])
                cosines = block @ fresh[: start + len(block)].T
                for at in range(len(block)):
                    before = np.flatnonzero(cosines[at, : start + at] >= SAME_COSINE)
                    if len(before):
                        found.setdefault(places[start + at], -1 - places[int(before[0])])
        return found

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
            metadata={**kept.metadata, **item.metadata},
        )

    # -- neighbours -------------------------------------------------------------------------------------------------

    def _look_around(self, session: Sequence[Row], places: Iterable[int]) -> None:
        """Give the turns at these places of a session their vectors among their neighbours of now."""
        for place in places:
            row = session[place]
            text = around_text(session, place)
            around = row.alone if text is None else self.encoding(text)
            if around != row.around:
                self._maybe_orphans.add(row.around)
                rows.change(self.conn, self.user, row.id, self.generation, around=around)

    def change(self, row: Row, **columns: Any) -> None:
        """Change columns of a memory; its vectors and its neighbours' follow."""
        rows.change(self.conn, self.user, row.id, self.generation, **columns)
        changed = rows.rows_by_id(self.conn, self.user, [row.id])[row.id]
        alone = self.encoding(alone_text(changed))
        again: dict[str, Any] = {"folded": rows.fold_turn(changed), "language": language_of(changed.content)}
        if alone != row.alone:
            again |= {"alone": alone, "around": alone}
            self._maybe_orphans.update((row.alone, row.around))
        rows.change(self.conn, self.user, row.id, self.generation, **again)
        if row.session is not None:
            session = rows.session_rows(self.conn, self.user, row.session)
            self._look_around(session, range(len(session)))

    def retype(self, row: Row, kind: str) -> None:
        """Give a memory another type; when an equal one of that type is there, merge into it and delete this one."""
        same = rows.equal_text(self.conn, self.user, kind, rows.fold_turn(row))
        if same is None:
            rows.change(self.conn, self.user, row.id, self.generation, type=kind)
            return
        self._merge(same, NewMemory(row.content, kind, row.importance, row.timestamp, metadata=row.metadata))
        self.remove([row])

    def remove(self, gone: Sequence[Row]) -> None:
        """Delete memories, and every trace of them in their neighbours' vectors."""
        self._maybe_orphans.update(id_ for row in gone for id_ in (row.alone, row.around))
        rows.delete(self.conn, self.user, [row.id for row in gone], self.generation)
        for name in dict.fromkeys(row.session for row in gone if row.session is not None):
            session = rows.session_rows(self.conn, self.user, name)
            self._look_around(session, range(len(session)))

    def finish(self) -> None:
        """Delete vectors that nothing refers to; raise _Missing when texts have to be encoded first."""
        if self.missing:
            raise _Missing(self.missing)
        rows.sweep(self.conn, self._maybe_orphans)


def run_edit(
    store: Store,
    cache: EncodingCache,
    user: str,
    view: Callable[[sqlite3.Connection], MemoryView],
    work: Callable[[Edit], T],
) -> T:
    """Run an edit to its end, encoding what it needs in between; `view` loads the view of a snapshot."""
    for _ in range(_TRIES):
        try:
            with store.write() as conn:
                conn.execute("PRAGMA defer_foreign_keys=ON")  # an attempt that is rolled back may point nowhere
                edit = Edit(conn, user, cache.model(conn), view(conn))
                result = work(edit)
                edit.finish()
                return result
        except _Missing as missing:
            cache.forget(missing.texts)
            cache.ensure(missing.texts)
    raise StoreError(f"{store.path}: other processes keep changing the same memories; try again")
