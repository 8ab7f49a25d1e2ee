"""What a search in memory looks at: one user's rows, in memory, one index a language.

A row is the sum of a memory's two vectors (dialogue.py). From rows and query the mean of the user's own memories in
that language is removed before their cosine is taken: conversations resemble themselves, and what they share tells
nothing. The mean is drawn towards the background's by 50 rows, so that it makes sense for a handful of memories too.
The cosine becomes a relevance by a map of its own (`Calibration.centred`).

A view belongs to one generation of the store, and depends on the rows alone, not on the way they came. From one view to
the next only what changed is read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ctx_vector.calibration import Calibration, language_of
from ctx_vector.index import FlatIndex
from ctx_vector.memory_rows import TYPES, oldest_gone
from ctx_vector.store import get_meta

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Vectors = NDArray[np.float32]

SHRINK: Final = 50
_NEVER: Final = np.nan


@dataclass(slots=True)
class _Facts:
    """The columns that filters ask about, by row: ids ascending, times in seconds since 1970 (nan: none)."""

    ids: Ids
    types: NDArray[np.int8]
    importance: NDArray[np.float64]
    times: NDArray[np.float64]
    created: NDArray[np.float64]
    languages: NDArray[Any]
    rows: Vectors
    alone: Vectors

    def keep(self, mask: NDArray[Any]) -> _Facts:
        return _Facts(*(getattr(self, name)[mask] for name in self.__slots__))

    @classmethod
    def joined(cls, one: _Facts, two: _Facts) -> _Facts:
        both = cls(*(np.concatenate([getattr(one, name), getattr(two, name)]) for name in cls.__slots__))
        order = np.argsort(both.ids, kind="stable")
        return both if bool((order[1:] > order[:-1]).all()) else both.keep(order)


class MemoryView:
    """One user's memories at one generation."""

    def __init__(self, generation: int, facts: _Facts, calibration: Calibration) -> None:
        self.generation = generation
        self.facts = facts
        self._calibration = calibration
        self._indexes: dict[str, tuple[FlatIndex, Vectors]] = {}

    def __len__(self) -> int:
        return len(self.facts.ids)

    def _index(self, language: str) -> tuple[FlatIndex, Vectors]:
        """Return the index of the centred unit rows of a language, and the mean that was removed."""
        if language not in self._indexes:
            facts = self.facts
            mask = facts.languages == language
            rows = facts.rows[mask]
            usual = self._calibration.mean_passage(language)
            count = len(rows)
            mean = ((rows.sum(0, dtype=np.float64) + SHRINK * usual) / (count + SHRINK)).astype(np.float32)
            self._indexes[language] = FlatIndex(facts.ids[mask], _unit(rows - mean)), mean
        return self._indexes[language]

    def allowed(
        self,
        *,
        types: Sequence[str] | None,
        min_importance: float,
        since: datetime | None,
        until: datetime | None,
        alive: NDArray[np.bool_],
    ) -> Ids:
        """Return the ids that pass the filters. A memory without a time passes no filter of time."""
        facts = self.facts
        mask = alive & (facts.importance >= min_importance)
        if types is not None:
            mask &= np.isin(facts.types, [TYPES.index(name) for name in types])
        if since is not None:
            mask &= facts.times >= since.timestamp()
        if until is not None:
            mask &= facts.times <= until.timestamp()
        return facts.ids[mask]

    def alive(self, now: datetime, working_days: float) -> NDArray[np.bool_]:
        """Return which memories have not outlived their time: working ones live `working_days`."""
        facts = self.facts
        age = now.timestamp() - np.where(np.isnan(facts.times), facts.created, facts.times)
        return np.asarray(~((facts.types == TYPES.index("working")) & (age > working_days * 86_400)))

    def search(self, query: str, vector: Vectors, k: int, allowed: Ids) -> tuple[Ids, NDArray[np.float64]]:
        """Return ids and relevance of at most k rows of each language, not ordered."""
        asked = language_of(query)
        found: list[Ids] = []
        scores: list[NDArray[np.float64]] = []
        everything = len(allowed) == len(self)
        for language in sorted(set(self.facts.languages.tolist())):
            index, mean = self._index(language)
            centred = _unit((vector - mean)[None])[0]
            ids, _ = index.search(centred, k, None if everything else allowed)
            rows = index.vectors[np.searchsorted(index.ids, ids)]
            cosines = np.einsum("ij,j->i", rows.astype(np.float64), centred.astype(np.float64))
            found.append(ids)
            scores.append(self._calibration.centred_relevance(asked, language, cosines))
        if not found:
            return np.empty(0, np.int64), np.empty(0)
        return np.concatenate(found), np.concatenate(scores)

    def rows_of(self, ids: Ids) -> Vectors:
        """Return the rows (n, dim) of these ids: the mean of each memory's two vectors."""
        return self.facts.rows[np.searchsorted(self.facts.ids, ids)]

    def of_type(self, kind: str) -> tuple[Ids, Vectors]:
        """Return the ids of one type, and the vectors of their own texts."""
        mask = self.facts.types == TYPES.index(kind)
        return self.facts.ids[mask], self.facts.alone[mask]


def _unit(rows: Vectors) -> Vectors:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(norms, 1e-12), np.float32)


def load_view(conn: sqlite3.Connection, user: str, calibration: Calibration, old: MemoryView | None) -> MemoryView:
    """Return the view of the snapshot that `conn` is in; `old` itself when nothing changed."""
    generation = int(get_meta(conn, "generation", 0))
    if old is not None and old.generation == generation:
        return old
    if old is not None and oldest_gone(conn) <= old.generation:
        facts = old.facts
        gone = conn.execute(
            "SELECT id FROM gone WHERE user_id = ? AND generation > ?", (user, old.generation)
        ).fetchall()
        fresh = _read(conn, user, old.generation, facts.rows.shape[1])
        stale = np.concatenate([np.array([row[0] for row in gone], np.int64), fresh.ids])
        if len(stale):
            facts = facts.keep(~np.isin(facts.ids, stale))
        facts = _Facts.joined(facts, fresh)
        return MemoryView(generation, facts, calibration)
    dim = calibration.dim
    return MemoryView(generation, _read(conn, user, -1, dim), calibration)


def _read(conn: sqlite3.Connection, user: str, after: int, dim: int) -> _Facts:
    rows = conn.execute(
        "SELECT m.id, m.type, m.importance, m.timestamp, m.created, m.language, a.vector, b.vector FROM memories m "
        "JOIN encodings a ON a.id = m.alone JOIN encodings b ON b.id = m.around "
        "WHERE m.user_id = ? AND m.changed > ? ORDER BY m.id",
        (user, after),
    ).fetchall()
    alone = np.frombuffer(b"".join([row[6] for row in rows]), "<f4").reshape(len(rows), dim)
    around = np.frombuffer(b"".join([row[7] for row in rows]), "<f4").reshape(len(rows), dim)
    return _Facts(
        ids=np.array([row[0] for row in rows], np.int64),
        types=np.array([TYPES.index(row[1]) for row in rows], np.int8),
        importance=np.array([row[2] for row in rows], np.float64),
        times=np.array([_seconds(row[3]) for row in rows], np.float64),
        created=np.array([_seconds(row[4]) for row in rows], np.float64),
        languages=np.array([row[5] for row in rows], dtype="U8"),
        rows=(alone + around) / np.float32(2),
        alone=alone,
    )


def _seconds(stamp: str | None) -> float:
    return _NEVER if stamp is None else datetime.fromisoformat(stamp).astimezone(UTC).timestamp()
