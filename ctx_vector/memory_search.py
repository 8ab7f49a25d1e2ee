"""A search in a user's memories, in two steps: candidates within one snapshot, and hits made of them after it.

Ask ── first_pass: the best rows of a view, with what the second step needs of SQLite ── Found.hits: the second pass, if
any (rerank.py), the order, the hits
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ctx_vector import memory_rows as rows
from ctx_vector.memory_hits import MemoryHit
from ctx_vector.memory_rows import Row
from ctx_vector.memory_view import MemoryView
from ctx_vector.memory_words import MemoryWords
from ctx_vector.rerank import SecondPass

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LEAST_CANDIDATES: Final = 50


@dataclass(frozen=True, slots=True)
class Ask:
    """What is looked for: at most `limit` memories with a relevance of at least `min_score`.

    `vector` is the query's (dim,) float32, a unit vector; `strategy` is one of scoring.RETRIEVAL.
    """

    query: str
    vector: NDArray[np.float32]
    limit: int
    min_score: float
    strategy: str
    second: SecondPass | None

    @property
    def most(self) -> int:
        """How many candidates the first pass names: the second one judges those, whatever the first thinks of them."""
        return self.limit if self.second is None else max(self.limit, self.second.depth)


@dataclass(frozen=True, slots=True)
class Found:
    """What the first pass found, best first: ids (n,), relevance (n,) float64, the rows by id.

    `texts` are those that a second pass will look at, among their neighbours.
    """

    view: MemoryView
    ids: NDArray[np.int64]
    scores: NDArray[np.float64]
    rows: Mapping[int, Row]
    texts: Sequence[str]

    def hits(self, ask: Ask) -> list[MemoryHit]:
        """Return the hits, best first."""
        ids, scores = self.ids, self.scores
        passes: Sequence[tuple[float, float] | None] = [None] * len(ids)
        if ask.second is not None:
            again = list(ask.second.again(ask.query, scores.tolist(), self.texts))
            scores = np.array([score for score, _ in again])
            order = self.view.best_first(ids, scores)
            order = order[scores[order] >= ask.min_score][: ask.limit]
            ids, scores, passes = ids[order], scores[order], [again[at][1] for at in order.tolist()]
        vectors = self.view.rows_of(ids)
        cosines = np.einsum("ij,j->i", vectors.astype(np.float64), ask.vector.astype(np.float64))
        return [
            MemoryHit(self.rows[id_], score, cosine, row, both)
            for id_, score, cosine, row, both in zip(
                ids.tolist(), scores.tolist(), cosines.tolist(), vectors, passes, strict=True
            )
        ]


def first_pass(
    conn: sqlite3.Connection,
    user: str,
    view: MemoryView,
    words: Callable[[], MemoryWords],
    ask: Ask,
    allowed: NDArray[np.bool_],
) -> Found:
    """Find, among the rows of the view that are `allowed` (n,), the best; `words` is called by a search by keywords."""
    if ask.strategy == "cosine":
        ids, scores = view.search(ask.query, ask.vector, max(_LEAST_CANDIDATES, 4 * ask.most), allowed)
    else:
        width = max(_LEAST_CANDIDATES, ask.most)
        ids, scores = view.search_words(ask.query, ask.vector, width, allowed, words(), ask.strategy)
    best = view.best_first(ids, scores)[: ask.most]
    if ask.second is None:
        best = best[scores[best] >= ask.min_score]
    ids, scores = ids[best], scores[best]
    known = rows.rows_by_id(conn, user, ids.tolist())
    looked_at = [] if ask.second is None else [known[id_] for id_ in ids[: ask.second.depth].tolist()]
    return Found(view, ids, scores, known, rows.texts_around(conn, user, looked_at))
