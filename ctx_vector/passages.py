"""A search in a knowledge base: from a query and its vector to ranked hits, within one snapshot.

Ask ── allowed rows (filters.py) ── best rows (dense.py; with keywords hybrid.py) ── hits ── second pass (rerank.py)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ctx_vector.dense import best_rows
from ctx_vector.filters import allowed_rows
from ctx_vector.hits import Hit, embedded_texts, hit_rows, looked_again, make_hit, rank
from ctx_vector.keyword_rows import KnowledgeWords
from ctx_vector.rerank import SecondPass
from ctx_vector.scoring import check_retrieval
from ctx_vector.values import as_utc
from ctx_vector.views import View

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Ask:
    """What is looked for: at most `limit` passages that score at least `min_score`.

    `vector` is the query's (dim,) float32, a unit vector; `filter` and `now` are those of `allowed_rows`; `strategy` is
    one of scoring.RETRIEVAL.
    """

    query: str
    vector: NDArray[np.float32]
    limit: int
    min_score: float = 0.0
    filter: Mapping[str, Any] | None = None
    strategy: str = "cosine"
    second: SecondPass | None = None
    now: datetime | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a search reads: a connection inside one transaction, the view of it, and its words, loaded when asked for;
    and in which context it is read (`Store.decoding`).

    A view that has rows was made with the calibration of its encoder.
    """

    conn: sqlite3.Connection
    view: View
    words: Callable[[], KnowledgeWords]
    decoding: Callable[[], AbstractContextManager[None]]


def search(on: Snapshot, ask: Ask) -> list[Hit]:
    """Return the hits, best first; none for a blank query.

    Raises InputError for an unknown strategy and a filter that is none.
    """
    if ask.second is None:
        return _first_pass(on, ask)
    # it judges what the first pass puts first, whatever that thinks of it
    hits = _first_pass(on, replace(ask, limit=max(ask.limit, ask.second.depth), min_score=0.0))
    texts = embedded_texts(on.conn, [hit.id for hit in hits[: ask.second.depth]])
    again = looked_again(hits, ask.query, texts, ask.second)
    return [hit for hit in again if hit.score >= ask.min_score][: ask.limit]


def search_newest(on: Snapshot, ask: Ask) -> list[tuple[Hit, str]]:
    """Return the same with what is said of a hit's document when it has a newer version (else ""), which then does not
    count to the limit.
    """
    with on.decoding():
        old = on.view.superseded(on.conn)
    wanted = ask.limit
    while True:
        hits = search(on, ask if wanted == ask.limit else replace(ask, limit=wanted))
        missing = ask.limit - sum(hit.source not in old for hit in hits) if old else 0
        if missing <= 0 or len(hits) < wanted:
            break
        wanted += max(missing, wanted)  # doubling: a few searches, however many old passages there are
    if not old:
        return [(hit, "") for hit in hits]
    newest = [place for place, hit in enumerate(hits) if hit.source not in old]
    last = len(hits) if len(newest) < ask.limit else newest[ask.limit - 1] + 1
    return [(hit, old.get(hit.source, "")) for hit in hits[:last]]


def _first_pass(on: Snapshot, ask: Ask) -> list[Hit]:
    with on.decoding():
        return _found(on, ask)


def _found(on: Snapshot, ask: Ask) -> list[Hit]:
    check_retrieval(ask.strategy)
    allowed = allowed_rows(on.conn, on.view, ask.filter, as_utc(ask.now, "now"))
    if not ask.query.strip() or not len(on.view.ids):
        return []
    assert on.view.calibration is not None  # rows that can be searched were ranked by it
    asked = on.view.calibration.asked(ask.query, ask.vector)
    if ask.strategy == "cosine":
        found = best_rows(on.conn, on.view, asked, ask.limit, ask.min_score, allowed)
    else:
        from ctx_vector import hybrid

        words = hybrid.Words(ask.query, on.words(), ask.strategy)
        found = hybrid.best_rows(on.conn, on.view, asked, words, ask.limit, ask.min_score, allowed)
    ids = found.ids.tolist()
    rows = hit_rows(on.conn, ids, on.view.known)
    each = zip(ids, found.scores.tolist(), found.cosines.tolist(), found.vectors, strict=True)
    hits = [make_hit(rows[id_], score, cosine, row) for id_, score, cosine, row in each]
    return sorted(hits, key=rank)[: ask.limit]
