"""Select: fill the budget greedily, and give each candidate one fate.

`Filler` is what all ways of filling are made of (filling.py). System instructions, Task and Output are put in before
and are never cut. History is set aside first (placing.py); the rest is one greedy pass over all ranked candidates;
then, once, the best one that did not fit is shortened. Exact sizes come from the layout; nothing
is counted before a decision needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from ctx_vector.compress import LEAST_ROOM, LEAST_ROOM_EVIDENCE, Shortener
from ctx_vector.diversity import Variety
from ctx_vector.layout import EVIDENCE, Layout, Piece, part_of
from ctx_vector.ranked import Ranked
from ctx_vector.structure import Template

#: Bytes of the longest cl100k token: 128 blanks.
_LONGEST_TOKEN: Final = 128
_WIDE_WORD: Final = 8  # characters, more than most words have
_BOUNDLESS: Final = 1 << 60
_NO_ROOM: Final = "did not fit in what was left"
_MOST_LOOKED_AT: Final = 16  # rows that do not fit, of thousands


class Filler:
    """Fills one layout within the limits of its template's config."""

    def __init__(
        self,
        layout: Layout,
        template: Template,
        shortener: Shortener,
        variety: Variety | None = None,
    ) -> None:
        self.layout = layout
        self.template = template
        self.config = config = template.config
        self.shortener = shortener
        self.variety = variety
        self.chosen: list[Ranked] = []
        self.total_limit = config.max_tokens
        self.shared_limit = config.shared_limit
        self._bounds: list[Callable[[], int]] = []

    def room(self) -> int:
        """Return the tokens that are left; negative when something is over its limit."""
        size = self.layout.size()
        room = min(self.total_limit - size.total, self.shared_limit - size.shared)
        for bound in self._bounds:
            room = min(room, bound())
        return room

    def held(self, part: str) -> int:
        """Return the tokens that a part of the budget holds, with titles, labels and joiners."""
        return sum(self.layout.block(*slot) for slot in self.layout.groups() if part_of(*slot) == part)

    @contextmanager
    def within(self, *bounds: Callable[[], int]) -> Iterator[None]:
        """Hold these bounds too, functions that return what they leave, in the `with` block."""
        before, self._bounds = self._bounds, [*self._bounds, *bounds]
        try:
            yield
        finally:
            self._bounds = before

    @contextmanager
    def unlimited(self) -> Iterator[None]:
        """Hold only the bounds of `within` in the `with` block, not the limits of the whole."""
        before = self.total_limit, self.shared_limit
        self.total_limit = self.shared_limit = _BOUNDLESS
        try:
            yield
        finally:
            self.total_limit, self.shared_limit = before

    def piece(self, row: Ranked, short: str | None = None, *, marked: bool = True) -> Piece:
        """Return the piece of a row, or of a shortened body of it, with the marker of compression if `marked`."""
        slot, body = (row.section, row.group), row.body if short is None else short
        shortened = short is not None
        return self.template.piece(row.candidate, slot, row.place, body, shortened=shortened, marked=marked)

    def shorten_result(self, row: Ranked, room: int) -> tuple[Piece, str] | None:
        """Return (piece, what it leaves out) of a tool's result that is JSON, cut by rows and fields to `room` tokens.

        None for any other row, or when not even the counts of what is left out fit.
        """
        if not row.is_result:
            return None
        from ctx_vector.json_results import shorten_json  # only builds with such results pay for it

        def measure(text: str) -> int:
            piece = self.piece(row, text, marked=False)
            return max(piece.tokens, piece.message_tokens)

        found = shorten_json(row.body, room, measure, self.template.query)
        return (self.piece(row, found[0], marked=False), str(found[1])) if found else None

    def put_fixed(self, row: Ranked) -> None:
        """Put in what is never cut, whatever its size."""
        piece = self.piece(row)
        self.layout.add(row.section, row.group, piece)
        row.keep(piece)
        self.chosen.append(row)

    def put(self, row: Ranked, piece: Piece, action: str = "full") -> bool:
        """Put a row in as this piece; False when it does not fit."""
        self.layout.add(row.section, row.group, piece)
        if self.room() < 0:
            self.layout.remove(row.section, row.group, piece)
            return False
        row.keep(piece, action, "" if action == "full" else "budget")
        self.chosen.append(row)
        return True

    def take(self, row: Ranked) -> None:
        """Take a row that was chosen out again."""
        assert row.piece is not None
        self.chosen.remove(row)
        self.layout.remove(row.section, row.group, row.piece)
        row.piece = None

    def keep_if_it_fits(self, row: Ranked) -> bool:
        """Put a row in, whole; False when it does not fit, or adds nothing to what is in: then it is dropped as
        `duplicate`.
        """
        room = self.room()
        return room >= 1 and not (self.layout.counter.additive and _too_long(row, room)) and self._keep(row)

    def _keep(self, row: Ranked) -> bool:
        if self.drop_twin(row) or not self.put(row, self.piece(row)):
            return False
        if self.variety is not None:
            self.variety.keep(row)
        return True

    def drop_twin(self, row: Ranked) -> bool:
        """Drop a row as `duplicate` if it adds nothing to what is in; False when it does."""
        twin = self.variety.twin(row) if self.variety is not None else ""
        if twin:
            row.reopen()
            row.drop("duplicate", twin)
        return bool(twin)

    def greedy(self, rows: Sequence[Ranked]) -> None:
        """Take rows in order while they fit; then shorten the best one that did not, once."""
        left: list[Ranked] = []
        room, start = self.room(), 0
        while start < len(rows):
            stop = self._next(rows, start, room)
            self._leave(rows[start:stop], left)
            if left and self.config.fill == "stop":
                self._leave(rows[stop:], left)
                break
            for row in rows[stop : stop + 1]:
                if self._keep(row):
                    room = self.room()
                elif not row.reason:
                    self._drop_for_room(row, left)
            start = stop + 1
        self.shorten_first(left)

    def _leave(self, rows: Sequence[Ranked], left: list[Ranked]) -> None:
        """Drop rows that do not fit, and add them to `left`; but those that add nothing to what is in, or to what did
        not fit before, are duplicates whatever room there is, as long as few are left.
        """
        for row in rows:
            if len(left) >= _MOST_LOOKED_AT or not self.drop_twin(row):
                self._drop_for_room(row, left)

    def _drop_for_room(self, row: Ranked, left: list[Ranked]) -> None:
        row.drop("budget", _NO_ROOM)
        if self.variety is not None and len(left) < _MOST_LOOKED_AT:
            self.variety.leave(row)
        left.append(row)

    def _next(self, rows: Sequence[Ranked], start: int, room: int) -> int:
        """Return the place of the first row from `start` on that may fit, the number of rows if none may."""
        if room < 1:
            return len(rows)
        if self.layout.counter.additive:
            while start < len(rows) and _too_long(rows[start], room):
                start = _after_long(rows, start + 1, room)
        return start

    def shorten_first(self, rows: Sequence[Ranked], least: int = 0) -> None:
        """Shorten the first of some rows that adds something to what is in; see `shorten`."""
        for row in rows:
            if not self.drop_twin(row):
                self.shorten(row, least)
                return

    def shorten(self, row: Ranked, least: int = 0, *, summarise: bool = True) -> None:
        """Put a shortened row into what is left if that is over 100 tokens for evidence, else 50, or over `least`.

        `summarise` False: not by the summarizer.
        """
        if not self.config.enable_compression:
            row.drop("oversize", "compression is off")
            return
        room = self.room()
        if room <= (least or (LEAST_ROOM_EVIDENCE if row.section == EVIDENCE else LEAST_ROOM)):
            return
        bare = self.piece(row, "")
        self.layout.add(row.section, row.group, bare)
        overhead = room - min(self.room(), room) - bare.tokens
        self.layout.remove(row.section, row.group, bare)
        extra = bare.message_tokens - bare.tokens

        made: dict[str, Piece] = {}  # what is measured last is mostly what is put in

        def measure(short: str) -> int:
            piece = made[short] = self.piece(row, short)
            return max(piece.tokens, piece.message_tokens - extra if piece.message is not None else 0)

        shortener = self.shortener if summarise else replace(self.shortener, summarizer=None)
        row.detail = row.detail.replace(_NO_ROOM, "").strip("; ")
        cut = self.shorten_result(row, room - overhead)
        if cut is not None and self.put(row, cut[0], "truncated"):
            row.detail = cut[1]
            return
        for slack in (0, 1, 2, 4, 8):  # joins at the edges of the shortened piece can cost a token more
            result = shortener.shorten(row.body, room - overhead - slack, measure)
            if result is None:
                break
            if self.put(row, made.get(result[0]) or self.piece(row, result[0]), result[1]):
                return
        row.drop("budget", "did not fit, and nothing of it could be kept")

    def give_back(self, tokens: int) -> bool:
        """Take out what was chosen last, until at least `tokens` tokens are free or only history and fixed parts are
        left.

        For tokenizers whose counts do not add, when the whole turns out too large. False when there is nothing to take.
        """
        freed = 0
        while freed < tokens and self.chosen and self.chosen[-1].part != "system" and self.chosen[-1].turn < 0:
            row = self.chosen[-1]
            freed += max(row.piece.tokens, row.piece.message_tokens) if row.piece else 0
            self.take(row)
            row.drop("budget", "the whole did not fit when counted again")
        return freed > 0


def _too_long(row: Ranked, room: int) -> bool:
    """Tell, without counting, that a row has more than `room` cl100k tokens: none is longer than 128 bytes, and none
    reaches over two words.
    """
    text = row.candidate.packet.content
    if row.said is not None or not row.plain or "\x1f" in text:  # which parts words, and becomes part of one
        text = row.body
    most = room * _LONGEST_TOKEN
    return len(text.split(None, room + 1)) > room or (len(text) > most and len(row.body) > most)


def _after_long(rows: Sequence[Ranked], start: int, room: int) -> int:
    """Return the place of the first row from `start` on that is not seen at once to be too long for `room`.

    What is left of a budget is compared with thousands of rows: so the words at their beginnings are counted together.
    """
    import numpy as np

    step, most = 64, _WIDE_WORD * (room + 1)
    while start < len(rows):
        texts = [row.candidate.packet.content[:most] if row.plain else "" for row in rows[start : start + step]]
        marks = np.frombuffer(("\n" + "\n".join(texts)).encode("ascii", "replace"), np.uint8)  # one for each character
        blank = (marks == 32) | (marks - np.uint8(9) < 5) | (marks - np.uint8(28) < 3)  # not U+001F: see `_too_long`
        words = np.flatnonzero(blank[:-1] & ~blank[1:])
        upto = np.searchsorted(words, np.cumsum([len(text) + 1 for text in texts]))
        short = np.flatnonzero(np.diff(upto, prepend=0) <= room)
        if len(short):
            return start + int(short[0])
        start, step = start + step, min(2 * step, 1024)
    return len(rows)
