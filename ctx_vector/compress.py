"""Shortening one packet, in a declared order.

1. `summarised`  by the caller's summarizer, when there is one and it does not fail;
2. `extracted`   the units (sentences, items, rows, lines: units.py) nearest to the query while they fit, in their own
                 order, with "…" for gaps: by BM25 of the unit within its item, or by the encoder when `compress_encode`
                 allows encodings inside a build;
3. `truncated`   the first units that fit, when none has a word of the query, and of the next one as many words as fit.

Each is measured as it will stand in the text, marker and escapes included; what does not fit falls to the next.
"""

from __future__ import annotations

import bisect
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from ctx_vector.escaping import normalise
from ctx_vector.scoring import bm25
from ctx_vector.sentences import fenced
from ctx_vector.stages import Summarizer, TokenCounter
from ctx_vector.text_cut import whole_words
from ctx_vector.units import Excerpt, Unit, units

if TYPE_CHECKING:
    from ctx_vector.stages import Encoder

_log = logging.getLogger("ctx_vector.compress")

#: The least tokens that must remain for an item to be shortened into them.
LEAST_ROOM_EVIDENCE: Final = 100
LEAST_ROOM: Final = 50
#: What a unit's score adds to that of its neighbours: the answer often stands beside the words of the question.
_SHARE: Final = 0.25
#: What a heading counts, of the best score, once something below it is in.
_HEADING: Final = 0.15
#: Sentences of one item that are encoded at most; of more BM25 tells which are near.
_MOST_ENCODED: Final = 200
#: Characters of a text that are counted at once, and those of a long token: more could hardly fit.
_AT_ONCE: Final = 2_000
_WIDE: Final = 6


Short: TypeAlias = tuple[str, str] | None  # a short body and how it was made, or nothing


class Journal:
    """What the shortener of a build gave, as (body, room, result) in order of asking.

    Its `again()` gives the same for the same questions: the summarizer and the encoder that were asked the first time
    need not be there.
    """

    def __init__(self, entries: Iterable[tuple[str, int, Short]] = ()) -> None:
        self.entries = list(entries)
        self.repeats = False
        self._known: dict[tuple[str, int], deque[Short]] = {}

    def again(self) -> Journal:
        """Return an empty journal that knows what is in this one."""
        journal = Journal()
        journal.repeats = True
        for body, room, result in self.entries:
            journal._known.setdefault((body, room), deque()).append(result)
        return journal

    def known(self, body: str, room: int) -> deque[Short] | None:
        """Return the results for a question that are not given out yet, None when there are none."""
        return self._known.get((body, room)) or None


@dataclass(frozen=True, slots=True)
class Shortener:
    """How packets are shortened in one build. `encoder` gives the model, where encodings are allowed."""

    counter: TokenCounter
    query: str
    summarizer: Summarizer | None = None
    encoder: Callable[[], Encoder] | None = None
    journal: Journal = field(default_factory=Journal)

    def shorten(self, body: str, room: int, measure: Callable[[str], int]) -> Short:
        """Return (short body, action), or None when nothing worth keeping fits.

        `measure` gives the tokens of a shortened body as it will stand in the text; the result measures at most `room`.
        """
        known = self.journal.known(body, room)
        result = known.popleft() if known else self._shorten(body, room, measure)
        self.journal.entries.append((body, room, result))
        return result

    def _shorten(self, body: str, room: int, measure: Callable[[str], int]) -> Short:
        if self.summarizer is not None:
            summary = self._summary(body, room, measure)
            if summary:
                return summary, "summarised"
        allowed, count = _allowed(room, measure), self.counter.count
        if allowed <= 0:
            return None

        def filled(found: Sequence[Unit], fill: Callable[[Excerpt], None]) -> str:
            for exact in (False, True):
                excerpt = Excerpt(found, room, room - allowed, measure, count, exact=exact)
                fill(excerpt)
                if (text := excerpt.closed()) is not None:
                    return text
            return ""

        found = units(body, allowed, count)
        if len(found) > 1 and (text := filled(found, self._fill_ranked)):
            return text, "extracted"
        if fenced(body):
            found = units(body, allowed, count, blocks=False)
        text = filled(found, self._fill_first)
        return (text, "truncated") if text else None

    def _summary(self, body: str, room: int, measure: Callable[[str], int]) -> str:
        assert self.summarizer is not None
        allowed = _allowed(room, measure)
        if allowed <= 0:
            return ""
        try:
            summary = normalise(self.summarizer(body, allowed))
        except Exception as error:  # a caller's function may raise anything; a build does not fail for it
            _log.warning("the summarizer failed (%s: %s); it is not used", type(error).__name__, error)
            return ""
        if measure(summary) > room:
            _log.warning("the summarizer gave more than the %d tokens it was allowed; it is not used", allowed)
            return ""
        return summary

    def _scores(self, parts: Sequence[str]) -> list[float]:
        """Return how near each part is to the query: 0 for the farthest, or for no word of it."""
        if self.encoder is not None and self.query.strip() and len(parts) <= _MOST_ENCODED:
            model = self.encoder()
            rows = model.encode_documents(parts) @ model.encode_queries([self.query])[0]
            return [float(value - rows.min()) for value in rows]
        return bm25(self.query, parts)

    def _fill_ranked(self, excerpt: Excerpt) -> None:
        """Choose the units nearest to the query; none when no unit is nearer than another."""
        found = excerpt.found
        scores = self._scores([unit.text for unit in found])
        near = _spread([score if unit.free else 0.0 for unit, score in zip(found, scores, strict=True)])
        best = max(near)
        if best <= 0:
            return
        for place in excerpt.headings:
            near[place] = best * _HEADING
        for place in sorted(range(len(found)), key=lambda place: (-near[place], place)):
            if excerpt.full():
                break
            if excerpt.stands(place):
                excerpt.add(place)

    def _fill_first(self, excerpt: Excerpt) -> None:
        """Choose the first units, and as many words of the next one as fit."""
        for place in range(self._fill_run(excerpt), len(excerpt.found)):
            unit = excerpt.found[place]
            if (unit.free or place in excerpt.headings) and not excerpt.add(place):
                if not unit.needs:
                    self._add_part(place, excerpt)
                break

    def _fill_run(self, excerpt: Excerpt) -> int:
        """Choose the first units that need no others, and as many words of the next one as fit, all counted at once.

        Return the place where to go on. Nothing is chosen where each unit is to be measured.
        """
        if excerpt.exact:
            return 0
        run: list[str] = []
        ends: list[int] = []
        enough = max(_AT_ONCE, _WIDE * excerpt.left())
        for place in itertools.takewhile(excerpt.alone, range(len(excerpt.found))):
            run.append(excerpt.found[place].text)
            ends.append(len(run[-1]) + (ends[-1] if ends else 0))
            if ends[-1] > enough:
                break
        text = "".join(run)
        stop = len(self.counter.truncate(text, excerpt.left()))
        fit = bisect.bisect_right(ends, stop)
        if fit == len(run):
            excerpt.put(fit, self.counter.count(text))
            return fit
        rest = stop - (ends[fit - 1] if fit else 0)
        words = whole_words(run[fit], 0, rest) or (0 if fit else rest)
        excerpt.found[fit] = Unit(run[fit][:words])
        excerpt.put(fit + bool(words), excerpt.left())
        return len(excerpt.found)

    def _add_part(self, place: int, excerpt: Excerpt) -> None:
        text, left, step = excerpt.found[place].text, excerpt.left(), 1
        while left > 0:
            part = self.counter.truncate(text, left)
            end = whole_words(text, 0, len(part)) or (0 if excerpt.chosen else len(part))
            excerpt.found[place] = Unit(part[:end])
            if not end or excerpt.add(place):
                break
            left, step = left - step, step + 1


def _spread(near: Sequence[float]) -> list[float]:
    """Return scores to which each unit adds a share of its own for its neighbours, and a share of that for theirs.

    >>> _spread([0.0, 4.0, 0.0, 0.0])
    [1.0, 4.0, 1.0, 0.25]
    """
    after, before, carried = [], [], 0.0
    for score in near:
        after.append(carried)
        carried = (carried + score) * _SHARE
    carried = 0.0
    for score in reversed(near):
        before.append(carried)
        carried = (carried + score) * _SHARE
    return [sum(three) for three in zip(near, after, reversed(before), strict=True)]


def _allowed(room: int, measure: Callable[[str], int]) -> int:
    """Return how many tokens of text fit beside the marker and the line break before it."""
    return room - measure("a") + 1
