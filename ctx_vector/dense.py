"""Dense retrieval: the rows of a view with the highest calibrated relevance, as if all had been scored.

Within a language, relevance ranks like the inner product of one vector (`Asked.direction`) with the rows as a view has
them (`Calibration.ranked`). So rows are named by that, a few more than are wanted, and scored exactly with the vectors
that SQLite has; then it is checked that no row that was not named could have reached the scores that count, else more
are named:

    sieve     all languages at once, by their bytes (sieve.py); the first choice
    indexes   each language by its own index: where a filter, a file or a graph is in play, or rows are few
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.calibration import Asked
    from ctx_vector.index import Ids, Vectors
    from ctx_vector.sieve import Sieve
    from ctx_vector.views import View

    Scores = NDArray[np.float64]

_NAMED: Final = 64  # and 16 more for every row wanted: the error of a sieve takes so many
_NAMED_EACH: Final = 16
_LIKELY: Final = 48  # rows that are scored at first, beyond those wanted: mostly there is nothing left to score
_USUAL: Final = 0.45  # about the relevance of what is found
_SPARE: Final = 8  # rows that an index gives beyond those wanted
_MORE: Final = 4  # times as many, when they are not enough
_MOST: Final = 8  # a sieve that names more than an eighth of the rows saves nothing
_APART: Final = 1e-5  # inner products that differ by more than this are surely in the right order


@dataclass(frozen=True, slots=True)
class Found:
    """The best rows, in no order: ids, vectors (n, dim) float32, relevance and raw cosine (n,) float64."""

    ids: Ids
    vectors: Vectors
    scores: Scores
    cosines: Scores

    def with_more(self, other: Found) -> Found:
        """Return these and the others."""
        return Found(
            np.concatenate((self.ids, other.ids)),
            np.concatenate((self.vectors, other.vectors)),
            np.concatenate((self.scores, other.scores)),
            np.concatenate((self.cosines, other.cosines)),
        )

    def over(self, least: float) -> Found:
        """Return those whose relevance is at least this."""
        kept = np.flatnonzero(self.scores >= least)
        return Found(self.ids[kept], self.vectors[kept], self.scores[kept], self.cosines[kept])


def best_rows(
    conn: sqlite3.Connection, view: View, asked: Asked, limit: int, min_score: float, allowed: Ids | None
) -> Found:
    """Return the best `limit` rows that reach `min_score`, and all that tie with the last of them."""
    if not len(view.ids):
        nothing = np.empty(0)
        return Found(view.ids, np.empty((0, view.dim), np.float32), nothing, nothing)
    points = asked.points(list(view.indexes))
    found = None
    if allowed is None and (sieve := view.sieve()) is not None:
        found = _sieved(view, sieve, asked, points, limit, min_score)
    return found or _from_indexes(conn, view, asked, points, limit, min_score, allowed)


def _least(scores: Scores, limit: int, min_score: float) -> float:
    """Return the lowest score that counts, of those known."""
    return max(min_score, float(np.partition(scores, -limit)[-limit])) if len(scores) >= limit else min_score


def _sieved(view: View, sieve: Sieve, asked: Asked, points: Scores, limit: int, min_score: float) -> Found | None:
    """Do what `best_rows` does; None when so many rows come near each other that all had better be looked at."""
    # rows are named by how far they are over what gives a usual score: in all languages about as relevance ranks
    usual = np.array(asked.least_products(_USUAL, points))
    offsets, likely = sieve.means(asked.direction) - usual, limit + _LIKELY
    named = _NAMED + _NAMED_EACH * limit
    while named <= len(sieve) // _MOST:
        places, over, error = sieve.nearest(asked.direction, named, offsets)

        def scored(some: Ids) -> Found:
            ids, ranked, groups = sieve.rows(some)
            vectors = ranked[:, : view.dim]
            excess, cosines = asked.excess(vectors, points[:, groups])
            return Found(ids, vectors, asked.relevance(excess, points[:, groups]), cosines)

        # the likely ones are scored exactly, and tell what the others would have to be at least
        best = scored(places[:likely])
        least = _least(best.scores, limit, min_score)
        floors = asked.least_products(least, points) - usual - error
        rest = over[likely:] >= floors[sieve.groups(places[likely:])]
        if rest.any():
            best = best.with_more(scored(places[likely:][rest]))
            least = _least(best.scores, limit, min_score)
            floors = asked.least_products(least, points) - usual - error
        if over[-1] < floors.min():
            return best.over(least)
        named *= _MORE
    return None


def _from_indexes(
    conn: sqlite3.Connection,
    view: View,
    asked: Asked,
    points: Scores,
    limit: int,
    min_score: float,
    allowed: Ids | None,
) -> Found:
    languages = list(view.indexes)
    found: dict[str, tuple[Ids, Vectors]] = {}  # by language: ids, and inner products with the direction
    unsure, k = languages, limit + _SPARE
    while True:
        for language in unsure:
            found[language] = view.indexes[language].search(asked.direction, k, allowed)
        ids = np.concatenate([found[language][0] for language in languages])
        products = np.concatenate([found[language][1] for language in languages])
        groups = np.repeat(np.arange(len(languages)), [len(found[language][0]) for language in languages])
        vectors = view.vectors(conn, ids)
        excess, cosines = asked.excess(vectors, points[:, groups])
        scores = asked.relevance(excess, points[:, groups])
        least = _least(scores, limit, min_score)
        unsure = [
            language
            for number, language in enumerate(languages)
            if len(found[language][0]) == k
            and not _closed(products[groups == number], scores[groups == number] < least)
        ]
        if not unsure:
            return Found(ids, vectors, scores, cosines).over(least)
        k *= _MORE


def _closed(products: Vectors, beaten: NDArray[np.bool_]) -> bool:
    """Tell whether no row after these, best first, can reach the scores that count, which those `beaten` do not.

    That is so when the last one stands clearly below one that is beaten.
    """
    return bool(beaten.any() and products[beaten].max() > products[-1] + _APART)
