"""From a search to candidates of a build: with vectors, relevance and origin, so that a build looks up nothing again.

    search_newest ── what adds nothing to better passages (likeness.py) ── MMR ── candidates, some with a reason
    search        ── candidates

A strategy that an index cannot search by (jaccard, an object) finds what is near by cosine, for the builder to score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.memory_hits import MemoryHit, with_ours
from ctx_vector.packets import TYPE_KNOWLEDGE, TYPE_MEMORY, Candidate, ContextPacket, Origin
from ctx_vector.passages import Ask, search_newest
from ctx_vector.scoring import RETRIEVAL
from ctx_vector.stages import Retrieval

if TYPE_CHECKING:
    from ctx_vector.hits import Hit
    from ctx_vector.knowledge import KnowledgeBase
    from ctx_vector.likeness import Residuals
    from ctx_vector.memory import Memory
    from ctx_vector.stages import Encoder

_NEAREST: Final = 3  # passages that are told of when none reaches the floor
_POOL: Final = 4  # times the limit: so many passages MMR chooses from
_MOST_WANTED: Final = 16  # times the limit: so many are looked at for some that are no duplicates


def memories(
    memory: Memory, query: str, *, now: datetime, encoder: Encoder, limit: int, min_importance: float, how: Retrieval
) -> list[Candidate]:
    """Return the memories found, best first. `encoder` is the builder's; see `passages`."""
    own = encoder.fingerprint == memory.encoder.fingerprint
    vector = (encoder if own else memory.encoder).encode_queries([query])[0]
    by = _searchable(how.strategy)
    hits = memory.search_vector(
        query, vector, limit, min_importance=min_importance, strategy=by, rerank=how.second, now=now
    )
    origin = memory.audits.origin
    return [_memory_candidate(hit, origin(memory.user_id, hit.id), by, how.strategy, with_vector=own) for hit in hits]


def passages(
    knowledge: KnowledgeBase,
    query: str,
    *,
    now: datetime,
    encoder: Encoder,
    limit: int,
    min_score: float,
    filter: Mapping[str, Any] | None = None,
    how: Retrieval,
) -> list[Candidate]:
    """Return the passages found.

    `encoder` is the builder's: when it is the one of the index, its cached query vector and the stored vectors of
    the passages serve, and nothing is encoded twice. Passages of a document that has a newer version do not count
    to `limit`, and come with the reason `superseded`; nor do those that add nothing to better ones (likeness.py),
    which come along, as the better one may find no room. When nothing reaches `min_score`, what comes nearest comes
    along with the reason `below_floor`, so that the record shows how far it is.
    """
    if not query.strip():
        return []
    own = encoder.fingerprint == knowledge.encoder.fingerprint
    by = _searchable(how.strategy)
    origin = knowledge.audits.origin
    vector = (encoder if own else knowledge.encoder).encode_queries([query])[0]
    with knowledge.snapshot() as state:
        wanted = _POOL * limit if how.mmr_lambda is not None else limit
        ask = Ask(query, vector, wanted, min_score, filter, by, how.second, now)
        while True:
            found = search_newest(state, ask)
            all_of_them = len(found) < ask.limit
            few = all_of_them and len(found) <= limit
            twins, apart = ({}, False) if few else _twins(knowledge, found, how.alike_limit)
            fresh = [place for place, (_, why) in enumerate(found) if not why and place not in twins]
            if len(fresh) >= limit or all_of_them or ask.limit >= _MOST_WANTED * limit:
                break
            ask = replace(ask, limit=2 * ask.limit)
        if not found and min_score:
            return [
                _candidate(hit, origin("", hit.source), by, how.strategy, with_vector=own, below=min_score)
                for hit, why in search_newest(state, Ask(query, vector, _NEAREST, 0.0, filter, by, now=now))
                if not why
            ]
    if how.mmr_lambda is not None:
        fresh = _by_mmr(knowledge, [found[place][0] for place in fresh], fresh, how.mmr_lambda)
    chosen = set(fresh[:limit])
    last = max(chosen) if len(fresh) >= limit and chosen else len(found)
    return [
        _candidate(hit, origin("", hit.source), by, how.strategy, with_vector=own, why=why, apart=apart)
        for place, (hit, why) in enumerate(found)
        if place in chosen or twins.get(place) in chosen or (why and place < last)
    ]


def _searchable(strategy: Any) -> str:
    """Return the strategy that a search goes by: cosine for those that only score what is there."""
    return strategy if isinstance(strategy, str) and strategy in RETRIEVAL else "cosine"


def _twins(
    knowledge: KnowledgeBase, found: Sequence[tuple[Hit, str]], alike_limit: int | None
) -> tuple[dict[int, int], bool]:
    """Return the places of passages that add nothing to better ones, each with the place of such a one; and whether
    there would be none in any order.
    """
    places = [place for place, (_, why) in enumerate(found) if not why]
    if alike_limit is None or len(places) < 2:
        return {}, False
    from ctx_vector.likeness import all_apart, near_duplicates

    residuals = _residuals(knowledge, [found[place][0] for place in places])
    if all_apart(residuals, alike_limit):
        return {}, True
    return {places[at]: places[twin.place] for at, twin in near_duplicates(residuals, alike_limit).items()}, False


def _by_mmr(knowledge: KnowledgeBase, hits: Sequence[Hit], places: list[int], weight: float) -> list[int]:
    """Return the places in the order of maximal marginal relevance of their hits."""
    from ctx_vector.likeness import mmr_order

    return [places[at] for at in mmr_order([hit.score for hit in hits], _residuals(knowledge, hits), weight)]


def _residuals(knowledge: KnowledgeBase, hits: Sequence[Hit]) -> Residuals:
    from ctx_vector.likeness import Residuals

    return Residuals([hit.vector[None, :] for hit in hits], [hit.content for hit in hits], knowledge.calibration)


def _memory_candidate(hit: MemoryHit, origin: Origin, strategy: str, asked: Any, *, with_vector: bool) -> Candidate:
    metadata = with_ours({"type": TYPE_MEMORY, **hit.metadata}, {"id": hit.id})
    packet = ContextPacket(hit.content, hit.timestamp, metadata=metadata)
    vectors = hit.vector[None, :] if with_vector else None
    known = {strategy: hit.score}
    passes = hit.passes if asked == strategy else None  # else the builder makes its relevance anew
    return Candidate(packet, "memory", vectors=vectors, known=known, origin=origin, passes=passes)


def _candidate(
    hit: Hit,
    origin: Origin,
    strategy: str,
    asked: Any,
    *,
    with_vector: bool,
    why: str = "",
    apart: bool = False,
    below: float = 0.0,
) -> Candidate:
    ours = {
        "id": hit.id,
        "source": hit.source,
        "cite": hit.cite,
        "heading": list(hit.heading),
        "cosine": round(hit.cosine, 6),
    }
    metadata = with_ours({"type": TYPE_KNOWLEDGE, **hit.metadata}, ours)
    packet = ContextPacket(hit.content, hit.timestamp, metadata=metadata)
    vectors = hit.vector[None, :] if with_vector else None
    known = {strategy: hit.score} if with_vector or strategy == "bm25" else {}
    reason = "superseded" if why else "below_floor" if below else ""
    passes = hit.passes if asked == strategy and known else None  # else the builder makes its relevance anew
    return Candidate(
        packet,
        "knowledge",
        vectors=vectors,
        known=known,
        reason=reason,
        detail=f"relevance {hit.score:.3f} < knowledge_min_score {below:g}" if below else why,
        origin=origin,
        passes=passes,
        apart=apart,
    )
