"""Retrieval with keywords: the rows of a view with the highest relevance by `bm25`, `hybrid` or `hybrid_rrf`.

The hybrid's rows are the nearest by cosine and the best by keywords of each language, together, and more of both until
no other row can have as much as those that count (the threshold algorithm; Fagin 2001): what neither list has, has at
most the last cosine of the one and the last share of the other.

By reciprocal rank fusion (`hybrid_rrf`) a row's ranks are those among the rows named so, as is usual for it: what is
found can differ a little with the number of hits that are asked for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ctx_vector.dense import Found
from ctx_vector.keywords import best_shares, keyword_facts
from ctx_vector.scoring import fuse_ranks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.calibration import Asked
    from ctx_vector.index import FlatIndex, Ids, TailedIndex
    from ctx_vector.keyword_rows import KnowledgeWords
    from ctx_vector.views import View

    Scores = NDArray[np.float64]

_LEAST: Final = 50
_MORE: Final = 4  # times as many, when they are not enough
_MOST_TIED: Final = 1_000
_APART: Final = 1e-5  # what rounding may do to an inner product


@dataclass(frozen=True, slots=True)
class Words:
    """What a search by keywords asks: the query's text, the words of the view, the strategy."""

    query: str
    known: KnowledgeWords
    strategy: str


def best_rows(
    conn: sqlite3.Connection,
    view: View,
    asked: Asked,
    words: Words,
    limit: int,
    min_score: float,
    allowed: Ids | None,
) -> Found:
    """Return the best `limit` rows that reach `min_score`, and all that tie with the last of them."""
    if not len(view.ids):
        return Found(view.ids, np.empty((0, view.dim), np.float32), np.empty(0), np.empty(0))
    languages = list(view.indexes)
    points, more = asked.points(languages), asked.hybrid_points(languages)
    parts = [
        _Language(
            view.indexes[language], *words.known.shares(words.query, language, view), points[:, [at]], more[:, [at]]
        )
        for at, language in enumerate(languages)
    ]
    if words.strategy == "bm25":
        ids, scores = _by_keywords(words.query, parts, limit, allowed)
        vectors = view.vectors(conn, ids)
        any_points = parts[0].points.repeat(len(ids), 1)  # the cosines are the same by any
        return Found(ids, vectors, scores, asked.excess(vectors, any_points)[1]).over(min_score)
    width = max(_LEAST, limit)
    while True:
        named = [part.named(asked, width, allowed) for part in parts]
        ids = np.concatenate([part.ids[places] for part, (places, _) in zip(parts, named, strict=True)])
        groups = np.repeat(np.arange(len(parts)), [len(places) for places, _ in named])
        own = np.concatenate([part.shares[places] for part, (places, _) in zip(parts, named, strict=True)])
        vectors = view.vectors(conn, ids)
        excess, cosines = asked.excess(vectors, points[:, groups])
        scores = asked.hybrid(excess, own, points[:, groups], more[:, groups])
        others = max(rest for _, rest in named)
        least = float(np.partition(scores, -limit)[-limit]) if len(scores) >= limit else 0.0
        if others <= max(least, min_score) or not others:
            break
        width *= _MORE
    if words.strategy == "hybrid_rrf":
        scores = fuse_ranks(asked.relevance(excess, points[:, groups]), own, scores)
        least = float(np.partition(scores, -limit)[-limit]) if len(scores) >= limit else 0.0
    return Found(ids, vectors, scores, cosines).over(max(least, min_score))


@dataclass(frozen=True, slots=True)
class _Language:
    """The rows of one language: ids (ascending) and keyword shares (n,), and what the maps have to know of it, (9, 1)
    and (6, 1).
    """

    index: FlatIndex | TailedIndex
    ids: Ids
    shares: Scores
    points: Scores
    more: Scores

    def named(self, asked: Asked, width: int, allowed: Ids | None) -> tuple[Ids, float]:
        """Return the places of the rows to look at, some `width` by either list, and the most another row can have."""
        wanted = None if allowed is None else np.isin(self.ids, allowed)
        by_words = best_shares(self.shares, width, wanted, width + _MOST_TIED)
        near, products = self.index.search(asked.direction, width, allowed)
        places: Ids = np.union1d(by_words, np.searchsorted(self.ids, near))
        if len(near) < width:  # these are all there are
            return places, 0.0
        share = self.shares[by_words].min() if len(by_words) >= width else 0.0
        excess = asked.excess_of(products[-1:].astype(np.float64) + _APART, self.points)
        return places, float(asked.hybrid(excess, np.array([share]), self.points, self.more)[0])


def _by_keywords(query: str, parts: Sequence[_Language], limit: int, allowed: Ids | None) -> tuple[Ids, Scores]:
    """Return ids and relevance of the best `limit` rows by keywords alone, with those that tie with the last, up to a
    thousand.
    """
    ids, own = np.concatenate([part.ids for part in parts]), np.concatenate([part.shares for part in parts])
    places = best_shares(own, limit, None if allowed is None else np.isin(ids, allowed), limit + _MOST_TIED)
    return ids[places], keyword_facts().relevance(query, own[places])
