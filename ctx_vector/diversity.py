"""Variety in a context: what adds nothing to what stands in it is left out, and MMR puts first what adds most.

Duplicates are told while the context is filled: a candidate that would be put in is compared with those that are in.
So what is like a text that found no room is no duplicate. The same text is not put twice into a section, whatever its
case and white space. Near duplicates (likeness.py) are looked for in each part of the budget, among what was retrieved
and can be had in plenty: knowledge, documents, other texts of sources, where a vector is at hand; nothing is encoded or
measured for it. Memories are not compared so (their vectors are of the conversation around them, and equal ones merged
when they were added), nor tools, results and what layers say whatever is asked. Never left out are the caller's own
packets, state and history.

MMR (`mmr_lambda`) orders everything that is chosen by score, and encodes what has no vector. It decides what is chosen;
what is chosen is rendered best first as ever.

What was found by vectors is noted, so that a build can be made again without them.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, MutableMapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.packets import TYPE_AGENT, TYPE_MEMORY, TYPE_RESULT
from ctx_vector.ranked import AS_GIVEN, NOT_RANKED, Ranked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ctx_vector.calibration import Calibration
    from ctx_vector.config import ContextConfig
    from ctx_vector.likeness import NearDuplicates, Residuals

    Vectors = NDArray[np.float32]

DUPLICATES: Final = "duplicates"  # the note of what was left out: rank -> [rank of the other, how]
MMR: Final = "mmr"  # the note of what MMR put first: [lambda, ranks]
_PLENTIFUL_NOT: Final = NOT_RANKED | {TYPE_MEMORY, TYPE_RESULT, TYPE_AGENT}
_BEGINNING: Final = 4  # words
_BEGINNING_CHARS: Final = 32  # the most
_CHARS_EACH: Final = 6  # of a token, more than there are on the average: prose in English has 4 to 5, Chinese 1


class Variety:
    """What a build asks of variety: the order of its rows (`ordered`), then of one after the other whether it adds
    nothing to those that stand in the context (`twin`, `keep`).

    `encode` gives the vectors (windows, dim) of rows that have none; `calibration` is told whether it may measure.
    What is found is put into `note`; `again` says that it holds what an earlier build of the same candidates found.
    """

    def __init__(
        self,
        config: ContextConfig,
        calibration: Callable[[bool], Calibration | None],
        encode: Callable[[Sequence[Ranked]], Sequence[Vectors]],
        note: MutableMapping[str, Any],
        *,
        again: bool = False,
    ) -> None:
        self._config = config
        self._calibration = calibration
        self._encode = encode
        self._note = note
        self._again = again
        self._rows: Sequence[Ranked] = ()  # by score
        self._vectors: Residuals | None = None
        self._parts: dict[str, NearDuplicates | None] = {}
        self._texts = _Texts()
        self._left = _Texts()  # of what did not fit
        self._by_rank: dict[int, Ranked] = {}

    def ordered(self, rows: list[Ranked]) -> list[Ranked]:
        """Return `rows`, which are in order of score, in that of maximal marginal relevance if it is asked for."""
        self._rows = rows
        weight = self._config.mmr_lambda
        if weight is None:
            return rows
        room = self._config.max_tokens * _CHARS_EACH

        def score(row: Ranked) -> float:  # of what is chosen by it, but for what no context of this size can hold
            given = row.reason or row.kind in NOT_RANKED or row.candidate.layer in AS_GIVEN
            return -math.inf if given or len(row.candidate.packet.content) > room else row.score

        scores = _View(rows, score)
        if self._again:
            noted, ranks = self._note.get(MMR) or (None, ())
            at = {row.candidate.rank: place for place, row in enumerate(rows)}
            first = [at[rank] for rank in ranks] if noted == weight else []
        else:
            first = self._mmr(scores, weight, room)
            self._note[MMR] = [weight, [rows[place].candidate.rank for place in first]]
        return self._with_first(first, scores)

    def _with_first(self, first: list[int], scores: Sequence[float]) -> list[Ranked]:
        """Return the rows with those at the places `first` before others that have a score, which keep their order."""
        order, taken = list(self._rows), set(first)
        places = [place for place in range(max(first, default=-1) + 1) if scores[place] > -math.inf]  # the others stay
        for place, other in zip(places, [*first, *(place for place in places if place not in taken)], strict=True):
            order[place] = self._rows[other]
        return order

    def twin(self, row: Ranked) -> str:
        """Return why a row adds nothing to what stands in the context, in words; "" when it does."""
        if row.candidate.source == "custom" or row.kind in NOT_RANKED:
            return ""
        same = self._texts.same(row) or self._left.same(row)
        if same is not None and same is not row:
            return f"same text as {same.candidate.source}:{same.candidate.packet.id}"
        if self._again:
            return self._noted(row)
        near = self._near(row)
        found = near.twin(row.spot) if near is not None else None
        if found is None:
            return ""
        other = self._rows[found.place]
        self._note.setdefault(DUPLICATES, {})[str(row.candidate.rank)] = [other.candidate.rank, found.how]
        return _said(other, found.how)

    def keep(self, row: Ranked) -> None:
        """Note that a row stands in the context from now on, whole."""
        if row.candidate.source == "custom" or row.kind in NOT_RANKED:
            return
        self._texts.keep(row)
        if not self._again and (near := self._near(row)) is not None:
            near.keep(row.spot)

    def leave(self, row: Ranked) -> None:
        """Note that a row did not fit: what says the same is a duplicate of it, as it would be if it had."""
        if row.candidate.source != "custom" and row.kind not in NOT_RANKED:
            self._left.keep(row)

    def _noted(self, row: Ranked) -> str:
        found = self._note.get(DUPLICATES, {}).get(str(row.candidate.rank))
        if not found or self._config.alike_limit is None:
            return ""
        if not self._by_rank:
            self._by_rank = {other.candidate.rank: other for other in self._rows}
        other = self._by_rank[found[0]]
        return _said(other, found[1]) if other.piece is not None else ""

    def _near(self, row: Ranked) -> NearDuplicates | None:
        """Return what tells of the plentiful rows in a row's part of the budget; None for a row that is not one."""
        if self._config.alike_limit is None or not _plentiful(row):
            return None
        if row.part not in self._parts:
            self._parts[row.part] = None
            mine = [other.candidate for other in self._rows if other.part == row.part and _plentiful(other)]
            if len({item.source for item in mine}) == 1 and all(item.apart for item in mine if not item.reason):
                return None
            vectors = self._residuals(self._calibration(False))
            if vectors is not None:
                from ctx_vector.likeness import NearDuplicates

                self._parts[row.part] = NearDuplicates(vectors, self._config.alike_limit)
        return self._parts[row.part]

    def _mmr(self, scores: Sequence[float], weight: float, room: int) -> list[int]:
        """Return the places of the rows that come first, as many as have `room` characters: more than there is room."""
        from ctx_vector.likeness import mmr_order

        missing = [row for at, row in enumerate(self._rows) if row.vectors is None and scores[at] > -math.inf]
        for row, block in zip(missing, self._encode(missing) if missing else (), strict=True):
            row.vectors = block
        vectors = self._residuals(self._calibration(True))
        return [] if vectors is None else mmr_order(scores, vectors, weight, room)

    def _residuals(self, calibration: Calibration | None) -> Residuals | None:
        """Return the vectors to compare, by place; None when nothing is known of the model."""
        if self._vectors is None and calibration is not None:
            from ctx_vector.likeness import Residuals

            for spot, row in enumerate(self._rows):
                row.spot = spot
            texts = _View(self._rows, attrgetter("candidate.packet.content"))
            self._vectors = Residuals(_View(self._rows, attrgetter("vectors")), texts, calibration)
        return self._vectors


class _View(Sequence[Any]):
    """What rows have, asked for only where it is looked at: of thousands that are few."""

    def __init__(self, rows: Sequence[Ranked], get: Callable[[Ranked], Any]) -> None:
        self._rows = rows
        self._get = get

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: Any) -> Any:
        return self._get(self._rows[at]) if isinstance(at, int) else [self._get(row) for row in self._rows[at]]


def _said(other: Ranked, how: str) -> str:
    from ctx_vector.likeness import Twin

    return Twin(other.candidate.rank, how).said(f"{other.candidate.source}:{other.candidate.packet.id}")


class _Texts:
    """The texts that stand in the context, by section. They are folded only once two of a section begin alike."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[str, str]] = {}  # section and beginning, by the place of a candidate
        self._rows: dict[tuple[str, str], list[Ranked]] = {}  # not folded yet, by section and beginning
        self._known: dict[tuple[str, str], Ranked] = {}  # by section and folded text

    def same(self, row: Ranked) -> Ranked | None:
        """Return the row that stands already with the text of this one."""
        key = self._begun[row.candidate.rank] = _beginning(row)
        others = self._rows.get(key)
        if others is None:
            return None
        for other in others:
            self._known.setdefault((other.section, _folded(other.candidate.packet.content)), other)
        others.clear()
        return self._known.get((row.section, _folded(row.candidate.packet.content)))

    def keep(self, row: Ranked) -> None:
        """Note that a row stands in the context."""
        key = self._begun.get(row.candidate.rank) or _beginning(row)
        self._rows.setdefault(key, []).append(row)


def _beginning(row: Ranked) -> tuple[str, str]:
    """Return section and beginning of a row, equal for equal folded texts; only the beginning is folded for it."""
    text = row.candidate.packet.content
    start = " ".join(text.split(None, _BEGINNING)[:_BEGINNING])
    if not start.isascii():  # what becomes a blank may part words
        start = " ".join(unicodedata.normalize("NFKC", start).split()[:_BEGINNING])
    return row.section, start[: 2 * _BEGINNING_CHARS].casefold()[:_BEGINNING_CHARS]


def _folded(text: str) -> str:
    return " ".join((text if text.isascii() else unicodedata.normalize("NFKC", text)).casefold().split())


def _plentiful(row: Ranked) -> bool:
    """Say whether a row is one of those that are had in plenty; it is not the caller's own."""
    candidate = row.candidate
    return (
        row.vectors is not None
        and len(row.vectors) == 1  # a text of many windows says more than one vector can tell
        and candidate.layer not in AS_GIVEN
        and row.kind not in _PLENTIFUL_NOT
    )
