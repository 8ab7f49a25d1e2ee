"""Retrieval with keywords: the rows of a view with the highest relevance by `bm25`, `hybrid` or `hybrid_rrf`.

The hybrid's rows are the nearest by cosine and the best by keywords of each language, together, and more of both until
no other row can have as much as those that count (the threshold algorithm; Fagin 2001): what neither list has, has at
most the last cosine of the one and the last share of the other.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ctx_vector.dense import Found
from ctx_vector.keywords import best_shares, keyword_facts
from ctx_vector.scoring import fuse_ranks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.calibration import Asked
    from ctx_vector.index import Ids
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
    shares = {language: words.known.shares(words.query, language, view) for language in view.indexes}
    if words.strategy == "bm25":
        return _by_keywords(conn, view, asked, words, shares, limit, min_score, allowed)
    languages = list(view.indexes)
    points, more = asked.points(languages), asked.hybrid_points(languages)
    width = max(_LEAST, limit)
    while True:
        parts = [
            _named(view, asked, *shares[language], language, width, allowed, points[:, [at]], more[:, [at]])
            for at, language in enumerate(languages)
        ]
        ids = np.concatenate([part[0] for part in parts])
        groups = np.repeat(np.arange(len(languages)), [len(part[0]) for part in parts])
        own = np.concatenate([part[1] for part in parts])
        vectors = view.vectors(conn, ids)
        excess, cosines = asked.excess(vectors, points[:, groups])
        scores = asked.hybrid(excess, own, points[:, groups], more[:, groups])
        others = max(part[2] for part in parts)
        least = float(np.partition(scores, -limit)[-limit]) if len(scores) >= limit else 0.0
        if others <= max(least, min_score) or not others:
            break
        width *= _MORE
    if words.strategy == "hybrid_rrf":
        scores = fuse_ranks(asked.relevance(excess, points[:, groups]), own, scores)
        least = float(np.partition(scores, -limit)[-limit]) if len(scores) >= limit else 0.0
    return Found(ids, vectors, scores, cosines).over(max(least, min_score))


def _named(
    view: View,
    asked: Asked,
    ids: Ids,
    shares: Scores,
    language: str,
    width: int,
    allowed: Ids | None,
    points: Scores,
    more: Scores,
) -> tuple[Ids, Scores, float]:
    """Return, of one language, the ids of the rows to look at, their shares, and the most another row can have."""
    wanted = None if allowed is None else np.isin(ids, allowed)
    by_words = best_shares(shares, width, wanted, width + _MOST_TIED)
    near, products = view.indexes[language].search(asked.direction, width, allowed)
    by_cosine = np.searchsorted(ids, near)
    places = np.union1d(by_words, by_cosine)
    if len(near) < width:  # these are all there are
        return ids[places], shares[places], 0.0
    share = shares[by_words].min() if len(by_words) >= width else 0.0
    excess = asked.excess_of(products[-1:].astype(np.float64) + _APART, points)
    return ids[places], shares[places], float(asked.hybrid(excess, np.array([share]), points, more)[0])


def _by_keywords(
    conn: sqlite3.Connection,
    view: View,
    asked: Asked,
    words: Words,
    shares: dict[str, tuple[Ids, Scores]],
    limit: int,
    min_score: float,
    allowed: Ids | None,
) -> Found:
    """Return the best `limit` rows by keywords alone, with those that tie with the last, up to a thousand."""
    ids, own = (np.concatenate(columns) for columns in zip(*shares.values(), strict=True))
    places = best_shares(own, limit, None if allowed is None else np.isin(ids, allowed), limit + _MOST_TIED)
    ids, own = ids[places], own[places]
    scores = keyword_facts().relevance(words.query, own)
    vectors = view.vectors(conn, ids)
    points = asked.points(list(view.indexes))[:, :1].repeat(len(ids), 1)
    return Found(ids, vectors, scores, asked.excess(vectors, points)[1]).over(min_score)
