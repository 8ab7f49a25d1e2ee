"""Variety in a context: what adds nothing to what stands in it is left out, and MMR puts first what adds most.

Near duplicates (likeness.py) are told while the context is filled: a candidate that would be put in is compared with
those that are in it, in its part of the budget. So what is like a text that found no room is no duplicate. They are
looked for among what was retrieved and can be had in plenty: knowledge, documents, other texts of sources, where a
vector is at hand; nothing is encoded or measured for it. Never left out are the caller's own packets, state, history,
memories (their vectors are of the conversation around them, and equal ones merged when they were added), tools, results
and what layers say whatever is asked.

MMR (`mmr_lambda`) orders everything that is chosen by score, and encodes what has no vector. It decides what is chosen;
what is chosen is rendered best first as ever.

What was found is noted, so that a build can be made again without vectors.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.packets import (
    TYPE_AGENT,
    TYPE_HISTORY,
    TYPE_IMAGE,
    TYPE_MEMORY,
    TYPE_RESULT,
    TYPE_STATE,
    TYPE_SYSTEM,
    TYPE_TOOL,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ctx_vector.calibration import Calibration
    from ctx_vector.config import ContextConfig
    from ctx_vector.likeness import NearDuplicates, Residuals
    from ctx_vector.ranking import Ranked

    Vectors = NDArray[np.float32]

DUPLICATES: Final = "duplicates"  # the note of what was left out: rank -> [rank of the other, how]
MMR: Final = "mmr"  # the note of what MMR put first: [lambda, ranks]
NOT_RANKED: Final = frozenset({TYPE_SYSTEM, TYPE_STATE, TYPE_HISTORY, TYPE_TOOL, TYPE_IMAGE})
_PLENTIFUL_NOT: Final = NOT_RANKED | {TYPE_MEMORY, TYPE_RESULT, TYPE_AGENT}
_AS_GIVEN: Final = frozenset({"system", "static", "tool", "agents"})
_CHARS_EACH: Final = 6  # of a token, more than there are on the average: prose in English has 4 to 5, Chinese 1


class Repeats:
    """Tells, while the context is filled from `rows`, best first, which of them add nothing to what stands in it.

    `note` holds what was told in an earlier build of the same candidates; else it is put there.
    """

    def __init__(
        self,
        rows: Sequence[Ranked],
        config: ContextConfig,
        calibration: Callable[[bool], Calibration | None],
        note: MutableMapping[str, Any],
        *,
        again: bool,
    ) -> None:
        self._rows = rows
        self._limit = config.alike_limit
        self._calibration = calibration
        self._note = note
        self._again = again
        self._groups: dict[str, tuple[list[Ranked], NearDuplicates] | None] = {}
        self._by_rank: dict[int, Ranked] = {}

    def of(self, row: Ranked) -> str:
        """Return why a row adds nothing to what stands in the context, in words; "" when it does."""
        if self._limit is None:
            return ""
        if self._again:
            return self._noted(row)
        group = self._group(row)
        if group is None:
            return ""
        others, near = group
        twin = near.twin(row.spot)
        if twin is None:
            return ""
        other = others[twin.place]
        self._note.setdefault(DUPLICATES, {})[str(row.candidate.rank)] = [other.candidate.rank, twin.how]
        return _said(other, twin.how)

    def keep(self, row: Ranked) -> None:
        """Note that a row stands in the context from now on, whole."""
        if not self._again and self._limit is not None and (group := self._group(row)) is not None:
            group[1].keep(row.spot)

    def _noted(self, row: Ranked) -> str:
        found = self._note.get(DUPLICATES, {}).get(str(row.candidate.rank))
        if not found:
            return ""
        if not self._by_rank:
            self._by_rank = {other.candidate.rank: other for other in self._rows}
        other = self._by_rank[found[0]]
        return _said(other, found[1]) if other.piece is not None else ""

    def _group(self, row: Ranked) -> tuple[list[Ranked], NearDuplicates] | None:
        """Return what a row is compared with: the plentiful rows of its part, None when it is not one of them."""
        if not _plentiful(row):
            return None
        if row.part not in self._groups:
            self._groups[row.part] = self._open(row.part)
        return self._groups[row.part]

    def _open(self, part: str) -> tuple[list[Ranked], NearDuplicates] | None:
        rows = [row for row in self._rows if row.part == part and _plentiful(row)]
        if len(rows) < 2 or self._limit is None:
            return None
        from ctx_vector.likeness import NearDuplicates

        for spot, row in enumerate(rows):
            row.spot = spot
        texts = [row.candidate.packet.content for row in rows]
        vectors = _residuals(rows, texts, self._calibration(False))
        return None if vectors is None else (rows, NearDuplicates(vectors, texts, self._limit))


def varied(
    rows: list[Ranked],
    config: ContextConfig,
    calibration: Callable[[bool], Calibration | None],
    encode: Callable[[Sequence[Ranked]], Sequence[Vectors]],
    note: MutableMapping[str, Any],
    *,
    again: bool,
) -> list[Ranked]:
    """Return `rows`, which are in order of score, in the order of maximal marginal relevance if the config asks for it.

    `encode` gives the vectors (windows, dim) of rows that have none. What was chosen is noted; `again` says that it was
    noted by an earlier build of the same candidates.
    """
    weight = config.mmr_lambda
    if weight is None:
        return rows
    room = config.max_tokens * _CHARS_EACH
    places = [place for place, row in enumerate(rows) if _by_score(row, room)]
    some = [rows[place] for place in places]
    if not again:
        first = _mmr(some, weight, room, calibration, encode)
        note[MMR] = [weight, [row.candidate.rank for row in first]]
    else:
        noted, ranks = note.get(MMR) or (None, ())
        by_rank = {row.candidate.rank: row for row in some}
        first = [by_rank[rank] for rank in ranks if rank in by_rank] if noted == weight else []
    taken = {row.candidate.rank for row in first}
    order, ordered = list(rows), [*first, *(row for row in some if row.candidate.rank not in taken)]
    for place, row in zip(places, ordered, strict=True):
        order[place] = row
    return order


def _said(other: Ranked, how: str) -> str:
    from ctx_vector.likeness import Twin

    return Twin(other.candidate.rank, how).said(f"{other.candidate.source}:{other.candidate.packet.id}")


def _plentiful(row: Ranked) -> bool:
    candidate = row.candidate
    return (
        row.vectors is not None
        and len(row.vectors) == 1  # a text of many windows says more than one vector can tell
        and candidate.source != "custom"
        and candidate.layer not in _AS_GIVEN
        and row.kind not in _PLENTIFUL_NOT
    )


def _by_score(row: Ranked, room: int) -> bool:
    """Say whether a row is chosen by its score; not one that no context of `room` characters can hold."""
    return (
        not row.reason
        and row.kind not in NOT_RANKED
        and row.candidate.layer not in _AS_GIVEN
        and len(row.candidate.packet.content) <= room
    )


def _mmr(
    some: Sequence[Ranked],
    weight: float,
    room: int,
    calibration: Callable[[bool], Calibration | None],
    encode: Callable[[Sequence[Ranked]], Sequence[Vectors]],
) -> list[Ranked]:
    """Return the rows that come first, as many as have `room` characters: more than the context can hold."""
    if len(some) < 2:
        return []
    from ctx_vector.likeness import mmr_order

    missing = [row for row in some if row.vectors is None]
    for row, block in zip(missing, encode(missing) if missing else (), strict=True):
        row.vectors = block
    texts = [row.candidate.packet.content for row in some]
    vectors = _residuals(some, texts, calibration(True))
    if vectors is None:
        return []
    return [some[at] for at in mmr_order([row.score for row in some], vectors, weight, list(map(len, texts)), room)]


def _residuals(rows: Sequence[Ranked], texts: Sequence[str], calibration: Calibration | None) -> Residuals | None:
    """Return the vectors to compare; None when some are of another model, or nothing is known of the model."""
    from ctx_vector.likeness import Residuals

    blocks = [row.vectors for row in rows if row.vectors is not None]
    if calibration is None or {block.shape[1] for block in blocks} != {calibration.dim}:
        return None
    return Residuals(blocks, texts, calibration)
