"""Shortening one packet, in a declared order.

1. `summarised`  by the caller's summarizer, when there is one and it does not fail;
2. `extracted`   the sentences nearest to the query, in their own order: by BM25 of the sentence within its item, or by
                 the encoder when `compress_encode` allows encodings inside a build;
3. `truncated`   the longest prefix that fits, on a character boundary.

Each is measured as it will stand in the text, marker and escapes included; what does not fit falls to the next.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from ctx_vector.escaping import normalise
from ctx_vector.scoring import bm25
from ctx_vector.sentences import sentences
from ctx_vector.stages import Summarizer, TokenCounter

if TYPE_CHECKING:
    from ctx_vector.stages import Encoder

_log = logging.getLogger("ctx_vector.compress")

#: The least tokens that must remain for an item to be shortened into them.
LEAST_ROOM_EVIDENCE: Final = 100
LEAST_ROOM: Final = 50
_MOST_SENTENCES: Final = 2_000
#: Sentences of one item that are encoded at most; of more BM25 tells which are near.
_MOST_ENCODED: Final = 200


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
        extract = self._extract(body, room, measure)
        if extract:
            return extract, "extracted"
        cut = self._cut(body, room, measure)
        return (cut, "truncated") if cut else None

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
        if self.encoder is not None and self.query.strip() and len(parts) <= _MOST_ENCODED:
            model = self.encoder()
            rows = model.encode_documents(parts) @ model.encode_queries([self.query])[0]
            return [float(value) for value in rows]
        return bm25(self.query, parts)

    def _extract(self, body: str, room: int, measure: Callable[[str], int]) -> str:
        parts = sentences(body)
        if not 1 < len(parts) <= _MOST_SENTENCES:
            return ""
        scores = self._scores(parts)
        ranked = sorted((index for index in range(len(parts)) if scores[index] > 0), key=lambda i: (-scores[i], i))
        left = _allowed(room, measure)
        chosen: list[int] = []

        def joined(indices: Sequence[int]) -> str:
            return normalise("".join(parts[index] for index in sorted(indices))).rstrip()

        for index in ranked:
            if left < 0:
                break
            tokens = self.counter.count(parts[index].rstrip())
            near = left - 2 < tokens  # the joins decide; left + 1 when they save one
            if tokens <= left + 1 and (not near or measure(joined([*chosen, index])) <= room):
                chosen.append(index)
                left -= tokens
        while chosen and measure(joined(chosen)) > room:
            chosen.pop()
        return joined(chosen)

    def _cut(self, body: str, room: int, measure: Callable[[str], int]) -> str:
        allowed = _allowed(room, measure)
        while allowed > 0:
            cut = normalise(self.counter.truncate(body, allowed))
            if not cut:
                return ""
            over = measure(cut) - room
            if over <= 0:
                return cut
            allowed -= max(1, over)
        return ""


def _allowed(room: int, measure: Callable[[str], int]) -> int:
    """Return how many tokens of text fit beside the marker and the line break before it."""
    return room - measure("a") + 1
