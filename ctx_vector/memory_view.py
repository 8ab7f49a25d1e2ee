"""What a search in memory looks at: one user's rows, in memory, one index a language.

A row is the sum of a memory's two vectors (dialogue.py). Before a cosine is taken, what all have in common is removed:
from the rows their mean, for conversations resemble themselves, and what they share tells nothing; from the query the
mean of the questions one would expect, which is the mean of the memories' own texts, moved by the background's
difference between questions and passages (calibration.py). Means are of the user's memories in one
language, drawn towards the background's by 50 rows, so that they make sense for a handful of memories too. The cosine
becomes a relevance by a map of its own (`Calibration.centred`).

Evidence recall on five LoCoMo conversations at 500 / 1,000 / 2,000 tokens: nothing removed 0.69 / 0.77 / 0.84, the mean
of the rows from both sides 0.735 / 0.810 / 0.887, as here 0.752 / 0.820 / 0.889.

A view belongs to one generation of the store, and depends on the rows alone, not on the way they came. From one view to
the next only what changed is read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ctx_vector.calibration import Calibration
from ctx_vector.common_tables import get_meta
from ctx_vector.index import load_faiss, one_thread
from ctx_vector.keywords import best_shares, keyword_facts
from ctx_vector.languages import LANGUAGES, language_of
from ctx_vector.memory_rows import TYPES, oldest_gone
from ctx_vector.memory_words import MemoryWords
from ctx_vector.scoring import fuse_ranks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Mask = NDArray[np.bool_]
    Vectors = NDArray[np.float32]

SHRINK: Final = 50
_MOST_UNASKED: Final = 1_000
_LANGUAGES: Final = (*LANGUAGES, "other")
_NEVER: Final = np.nan


@dataclass(slots=True)
class Facts:
    """The columns that filters ask about, by row: ids ascending, times in seconds since 1970 (nan: none).

    `alone` (n, dim) are the vectors of the texts themselves, `both` the sums with those among neighbours.
    """

    ids: Ids
    types: NDArray[np.int8]
    importance: NDArray[np.float64]
    times: NDArray[np.float64]
    created: NDArray[np.float64]
    languages: NDArray[np.int8]
    spoken: NDArray[np.bool_]  # part of a conversation
    alone: Vectors
    both: Vectors

    def changed(self, stale: Mask, fresh: Facts) -> Facts:
        """Return facts without the stale rows, and with fresh ones; what is before the first stale is copied once."""
        first = int(stale.argmax()) if stale.any() else len(stale)
        kept = np.flatnonzero(~stale[first:]) + first
        parts = {}
        for name in self.__slots__:
            old = getattr(self, name)
            parts[name] = np.concatenate([old[:first], old[kept], getattr(fresh, name)])
        order = np.argsort(parts["ids"], kind="stable")
        if not bool((order[1:] > order[:-1]).all()):
            parts = {name: values[order] for name, values in parts.items()}
        return Facts(**parts)


class MemoryView:
    """One user's memories at one generation, under one model."""

    def __init__(self, generation: int, model: int, facts: Facts, calibration: Calibration) -> None:
        self.generation = generation
        self.model = model
        self.facts = facts
        self._calibration = calibration
        self._indexes: dict[int, LanguageIndex] = {}

    def __len__(self) -> int:
        return len(self.facts.ids)

    def _index(self, code: int) -> LanguageIndex:
        if code not in self._indexes:
            usual = self._calibration.mean_passage(_LANGUAGES[code])
            self._indexes[code] = LanguageIndex.made(self.facts, self.facts.languages == code, usual)
        return self._indexes[code]

    def _expected(self, asked: str, said: str, mean: Vectors) -> Vectors:
        """Return the mean vector (dim,) of questions to texts whose own mean is `mean`."""
        questions = self._calibration.questions
        return mean + questions.get(asked, questions[LANGUAGES[-1]]) - self._calibration.mean_passage(said)

    def allowed(
        self,
        *,
        types: Sequence[str] | None,
        min_importance: float,
        since: datetime | None,
        until: datetime | None,
        born_after: datetime,
    ) -> Mask:
        """Return which rows (n,) pass the filters, of working memories only those added at `born_after` or later.

        A memory without a time passes no filter of time.
        """
        facts = self.facts
        outlived = (facts.types == TYPES.index("working")) & (facts.created < born_after.timestamp())
        mask: Mask = ~outlived & (facts.importance >= min_importance)
        if types is not None:
            mask &= np.isin(facts.types, [TYPES.index(name) for name in types])
        if since is not None:
            mask &= facts.times >= since.timestamp()
        if until is not None:
            mask &= facts.times <= until.timestamp()
        return mask

    def search(self, query: str, vector: Vectors, k: int, allowed: Mask) -> tuple[Ids, NDArray[np.float64]]:
        """Return ids (m,) int64 and relevance (m,) float64 in [0, 1] of at most k of the `allowed` rows (n,) of each
        language, not ordered; `vector` is the query's, (dim,) float32 and of length 1.
        """
        asked = language_of(query)
        found: list[Ids] = []
        scores: list[NDArray[np.float64]] = []
        for code, language in enumerate(_LANGUAGES):
            wanted = allowed[self.facts.languages == code]
            if not wanted.any():
                continue
            index = self._index(code)
            centred = self._centred(asked, language, index, vector)
            at = index.rows[index.nearest(centred, k, wanted)]
            found.append(self.facts.ids[at])
            scores.append(self._calibration.centred_relevance(asked, language, self._cosines(index, at, centred)))
        if not found:
            return np.empty(0, np.int64), np.empty(0)
        return np.concatenate(found), np.concatenate(scores)

    def _centred(self, asked: str, said: str, index: LanguageIndex, vector: Vectors) -> Vectors:
        """Return the unit direction (dim,) of a query once what is usual of its kind is removed."""
        return np.asarray(_unit((vector - self._expected(asked, said, index.alone_mean))[None])[0])

    def _cosines(self, index: LanguageIndex, at: Ids, centred: Vectors) -> NDArray[np.float64]:
        rows = _unit(self.facts.both[at] - index.mean)
        # einsum adds up each row by itself: the same bits whatever else is found
        return np.asarray(np.einsum("ij,j->i", rows.astype(np.float64), centred.astype(np.float64)))

    def search_words(
        self, query: str, vector: Vectors, limit: int, allowed: Mask, words: MemoryWords, strategy: str
    ) -> tuple[Ids, NDArray[np.float64]]:
        """Return ids and relevance, as `search` does, of at least the best `limit` allowed rows, not ordered, by a
        strategy with keywords: `bm25`, `hybrid` or `hybrid_rrf`.

        The hybrid looks at the rows nearest by cosine and the best by keywords, and at more of them until no other can
        be among the best (Fagin's threshold algorithm).
        """
        width = limit
        while True:
            parts = [
                self._by_words(query, vector, words, code, width, wanted)
                if strategy != "bm25"
                else self._by_words_alone(query, words, code, width, wanted)
                for code in range(len(_LANGUAGES))
                if (wanted := allowed[self.facts.languages == code]).any()
            ]
            if not parts:
                return np.empty(0, np.int64), np.empty(0)
            both = np.concatenate([part.both for part in parts])
            others = max(part.others for part in parts)
            if others <= 0 or (len(both) >= limit and np.partition(both, -limit)[-limit] >= others):
                break
            width *= 4
        ids = np.concatenate([part.ids for part in parts])
        if strategy != "hybrid_rrf":
            return ids, both
        dense, shares = np.concatenate([part.dense for part in parts]), np.concatenate([part.shares for part in parts])
        return ids, fuse_ranks(dense, shares, both)

    def _by_words_alone(self, query: str, words: MemoryWords, code: int, k: int, wanted: Mask) -> _Named:
        mask = self.facts.languages == code
        shares = words.shares(query, code, mask)
        best = best_shares(shares, k, wanted)
        found = keyword_facts().relevance(query, shares[best])
        return _Named(self.facts.ids[np.flatnonzero(mask)[best]], found, shares[best], found, 0.0)

    def _by_words(self, query: str, vector: Vectors, words: MemoryWords, code: int, k: int, wanted: Mask) -> _Named:
        asked, language = language_of(query), _LANGUAGES[code]
        mask = self.facts.languages == code
        shares = words.shares(query, code, mask)
        by_words = best_shares(shares, k, wanted)
        index = self._index(code)
        centred = self._centred(asked, language, index, vector)
        by_cosine = index.nearest(centred, k, wanted)
        places = np.union1d(by_words, by_cosine)
        cosines = self._cosines(index, index.rows[places], centred)
        relevance = self._calibration.centred_relevance
        both = relevance(asked, language, cosines, shares[places])
        others = 0.0
        if len(by_cosine) < int(wanted.sum()):
            least_share = shares[by_words].min() if len(by_words) >= k else 0.0
            least_cosine = cosines[np.isin(places, by_cosine)].min()
            others = float(relevance(asked, language, np.array([least_cosine]), np.array([least_share]))[0])
        dense = relevance(asked, language, cosines)
        return _Named(self.facts.ids[index.rows[places]], dense, shares[places], both, others)

    def best_first(self, ids: Ids, scores: NDArray[np.float64]) -> Ids:
        """Return the places (m,) of these rows in the order of a search: by score, then newer first, then by id."""
        at = np.searchsorted(self.facts.ids, ids)
        said = self.facts.times[at]
        times = np.where(np.isnan(said), self.facts.created[at], said)
        return np.asarray(np.lexsort((ids, -times, -scores)), np.int64)

    def rows_of(self, ids: Ids) -> Vectors:
        """Return unit rows (n, dim) of these ids: the direction of both vectors together."""
        return _unit(self.facts.both[np.searchsorted(self.facts.ids, ids)])

    def facts_of_type(self, kind: str) -> tuple[Ids, Vectors]:
        """Return the ids (m,) of one type outside conversations, and the unit vectors (m, dim) of their texts."""
        mask = (self.facts.types == TYPES.index(kind)) & ~self.facts.spoken
        return self.facts.ids[mask], self.facts.alone[mask]


class _Named(NamedTuple):
    """At most 2k rows of one language that a search by keywords looks at: ids, relevance by cosine, keyword share, and
    relevance by both, all (n,); and the most that another wanted row can have.
    """

    ids: Ids
    dense: NDArray[np.float64]
    shares: NDArray[np.float64]
    both: NDArray[np.float64]
    others: float


@dataclass(frozen=True, slots=True)
class LanguageIndex:
    """The memories of one language: their places in the facts, the means removed, and a FAISS index of the rest.

    The index holds half-precision numbers, which halves the time of a search: it only names candidates, and their
    cosines are taken from the full vectors.
    """

    rows: Ids
    mean: Vectors
    alone_mean: Vectors
    faiss: Any

    @classmethod
    def made(cls, facts: Facts, mask: Mask, usual: Vectors) -> LanguageIndex:
        """Return the index of the rows where `mask` (n,) is true; `usual` (dim,) is their language's mean passage."""
        faiss = load_faiss()
        both, alone = (facts.both, facts.alone) if mask.all() else (facts.both[mask], facts.alone[mask])
        mean = _mean(both, 2 * usual)
        index = faiss.IndexScalarQuantizer(both.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        index.train(both[:1])  # nothing is learnt for half precision, but FAISS wants to be asked
        index.add(_unit(both - mean))
        return cls(np.flatnonzero(mask), mean, _mean(alone, usual), index)

    def nearest(self, centred: Vectors, k: int, wanted: Mask) -> Ids:
        """Return at most k places among `rows` (n,), of those that are `wanted` (n,), nearest first unless these are
        all; `centred` is (dim,).
        """
        faiss = load_faiss()
        count = int(wanted.sum())
        if k >= count:
            return np.flatnonzero(wanted)
        with one_thread(faiss):
            # asking each row whether it is wanted costs more than to find more of them, unless few are
            most = min(len(wanted), 2 * k * len(wanted) // count)
            if most <= _MOST_UNASKED:
                near = self.faiss.search(centred[None], most)[1][0]
                places: Ids = near[wanted[near]][:k]
                if len(places) == k:
                    return places
            bits = np.packbits(wanted, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
            places = self.faiss.search(centred[None], k, params=faiss.SearchParameters(sel=selector))[1][0]
        return places


def _mean(rows: Vectors, usual: Vectors) -> Vectors:
    return np.asarray((rows.sum(0, dtype=np.float64) + SHRINK * usual) / (len(rows) + SHRINK), np.float32)


def _unit(rows: Vectors) -> Vectors:
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return np.asarray(rows / np.maximum(norms, 1e-12)[:, None], np.float32)


def load_view(
    conn: sqlite3.Connection, user: str, calibration: Calibration, old: MemoryView | None, model: int
) -> MemoryView:
    """Return the view of the snapshot that `conn` is in; `old` itself when nothing changed."""
    generation = int(get_meta(conn, "generation", 0))
    if old is not None and old.model == model:
        if old.generation == generation:
            return old
        if old.generation < generation and oldest_gone(conn) <= old.generation:
            gone = conn.execute("SELECT id FROM gone WHERE generation > ?", (old.generation,)).fetchall()
            fresh = _read(conn, user, old.generation, calibration.dim)
            stale = np.isin(old.facts.ids, np.concatenate([np.array([row[0] for row in gone], np.int64), fresh.ids]))
            if stale.any() or len(fresh.ids):
                return MemoryView(generation, model, old.facts.changed(stale, fresh), calibration)
            old.generation = generation  # others' changes only
            return old
    return MemoryView(generation, model, _read(conn, user, -1, calibration.dim), calibration)


def _read(conn: sqlite3.Connection, user: str, after: int, dim: int) -> Facts:
    rows = conn.execute(
        "SELECT m.id, m.type, m.importance, m.timestamp, m.created, m.language, m.session IS NOT NULL, a.vector, "
        "b.vector FROM memories m JOIN encodings a ON a.id = m.alone JOIN encodings b ON b.id = m.around "
        "WHERE m.user_id = ? AND m.changed > ? ORDER BY m.id",
        (user, after),
    ).fetchall()
    alone = np.frombuffer(b"".join([row[7] for row in rows]), "<f4").reshape(len(rows), dim)
    around = np.frombuffer(b"".join([row[8] for row in rows]), "<f4").reshape(len(rows), dim)
    return Facts(
        ids=np.array([row[0] for row in rows], np.int64),
        types=np.array([TYPES.index(row[1]) for row in rows], np.int8),
        importance=np.array([row[2] for row in rows], np.float64),
        times=np.array([_seconds(row[3]) for row in rows], np.float64),
        created=np.array([_seconds(row[4]) for row in rows], np.float64),
        languages=np.array([_LANGUAGES.index(row[5]) for row in rows], np.int8),
        spoken=np.array([row[6] for row in rows], np.bool_),
        alone=alone,
        both=alone + around,
    )


def _seconds(stamp: str | None) -> float:
    return _NEVER if stamp is None else datetime.fromisoformat(stamp).timestamp()
