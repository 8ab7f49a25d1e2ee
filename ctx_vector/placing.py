"""Placing: put the turns chosen of a conversation into the layout, exactly.

Turns go in whole, in order of choice, while they and the lines for what is left out between them fit the history's
bound and the room there is. The newest turn is always there: it is shortened when it has to be. The summary comes last,
into what is left, and goes first.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from ctx_vector.compress import LEAST_ROOM
from ctx_vector.conversation import Said
from ctx_vector.history import History
from ctx_vector.layout import CONTEXT, Piece
from ctx_vector.ranked import Ranked
from ctx_vector.select import Filler
from ctx_vector.trim import SCATTERED

_SLOT: Final = (CONTEXT, "history")
_FIRST: Final = (-1,)  # the order of the summary: before everything that was said

Cut: TypeAlias = tuple[Piece, str]  # a shortened piece and how it was shortened


class Placer:
    """Places one history. `rows` are the messages chosen, in order of speaking."""

    def __init__(self, history: History, rows: Sequence[Ranked], filler: Filler) -> None:
        self.history = history
        self.filler = filler
        self._half = filler.config.shared_limit // 2
        self._turns: dict[int, list[Ranked]] = {}
        self._said: dict[int, Said] = {}
        for (number, said), row in zip(history.chosen(), rows, strict=True):
            row.turn = number
            self._turns.setdefault(number, []).append(row)
            self._said[id(row)] = said
        self._marks: dict[int, tuple[int, Piece]] = {}  # by the turn after it: the turns left out, and the line
        self._lines: dict[int, Piece] = {}  # by the turns left out
        self._longest = 0  # tokens of a line: what a turn may save by filling a hole
        self._summary: Piece | None = None
        self._placed: list[int] = []  # the turns that are in, in order of choice

    def limit(self, tokens: int) -> None:
        """Hold the history to what a part of the budget leaves it: a bound of its own is at most half of that."""
        self._half = tokens // 2
        if self.history.bound is not None:
            self.history.bound = min(self.history.bound, self._half)

    def wanted(self) -> int:
        """Return the tokens of the turns chosen, as chat messages."""
        counter = self.filler.layout.counter
        return sum(said.size(counter) for said in self._said.values())

    def fill(self, others: Sequence[Ranked]) -> list[str]:
        """Put the turns in, in order of choice; return warnings. `others` are what the rest of the budget is for."""
        order, warnings = self.history.order, []
        if not order:
            return []
        if self.history.fallback:
            warnings.append(f"history: {self.history.fallback}; the newest turns that fit stay instead")
        if not self._put_newest(order[0], others):
            self._drop(order)
            self.history.summarised = 0
            return [*warnings, "the newest turn of the history does not fit and was left out"]
        bound = self.history.bound
        together = 1 + (len(order) - 1 if self._put_together(order[1:], bound) else 0)
        for place, number in enumerate(order[together:], together):
            if self._put(number, bound):
                continue
            if self.history.strategy not in SCATTERED:
                self._drop(order[place:])
                break
            self._drop([number])
        if bound is not None and self._held() > bound:  # an older turn may have filled the hole that was named before
            warnings.append(f"the newest turn of the history is over the bound of {bound} tokens")
        return warnings + self._put_summary()

    def give_back(self, tokens: int) -> bool:
        """Take out the summary, then whole turns from the last chosen on, until `tokens` tokens are free.

        For tokenizers whose counts do not add. False when nothing is left to take.
        """
        why = "the whole did not fit when counted again"
        freed = self._take_summary(why) if self._summary else 0
        while freed < tokens and self._placed:
            freed += self._take_last(why)
        return freed > 0

    def shrink(self, least: int) -> None:
        """Take out the summary, then turns from the last chosen on, until the whole fits or `least` turns are left."""
        if self._summary and self.filler.room() < 0:
            self._take_summary("history had to shrink")
        while self.filler.room() < 0 and len(self._placed) > least:
            self._take_last("history had to shrink")

    def _take_last(self, why: str) -> int:
        """Take out the turn that was chosen last; return its tokens."""
        number = self._placed[-1]
        freed = sum(_size(row.piece) for row in self._turns[number] if row.piece)
        self._take(number)
        for row in self._turns[number]:
            row.drop("budget", why)
        return freed

    # -- whole turns and the lines between them -----------------------------------------------------------------------

    def _put(self, number: int, bound: int | None, cuts: dict[int, Cut] | None = None) -> bool:
        """Put a turn in if it and the lines for what is left out fit."""
        rows, counter = self._turns[number], self.filler.layout.counter
        least = sum(self._said[id(row)].size(counter) for row in rows) - self._longest if cuts is None else 0
        if self.filler.room() < len(rows) or (bound is not None and self._held() + least > bound):
            return False
        pieces = []
        for row in rows:
            piece, action = (cuts or {}).get(id(row)) or (self._piece(row), "full")
            row.keep(piece, action, "" if action == "full" else "budget")
            pieces.append(piece)
        self.filler.chosen += rows
        self._placed.append(number)
        bisect.insort(self.history.kept, number)
        self._change(pieces, [], number)
        if self.filler.room() >= 0 and (bound is None or self._held() <= bound):
            return True
        self._take(number)
        return False

    def _put_together(self, numbers: Sequence[int], bound: int | None) -> bool:
        """Put turns in as `_put` would one by one, if all of them fit; for pieces that are known from earlier builds.

        Nothing new is counted for that, and it is mostly so in a conversation that goes on.
        """
        labels, rows = self.filler.template.labels, [row for number in numbers for row in self._turns[number]]
        known = [self._said[id(row)].shown for row in rows]
        if self.history.strategy in SCATTERED or not all(shown and shown[0] == labels for shown in known):
            return False
        pieces = [self._piece(row) for row in rows]
        self.filler.layout.add(*_SLOT, *pieces)
        if self.filler.room() < 0 or (bound is not None and self._held() > bound):
            self.filler.layout.remove(*_SLOT, *pieces)
            return False
        for row, piece in zip(rows, pieces, strict=True):
            row.keep(piece)
        self.filler.chosen += rows
        self._placed += numbers
        self.history.kept += numbers
        self.history.kept.sort()
        return True

    def _take(self, number: int) -> None:
        """Take out the turn that was put in last."""
        rows, chosen = self._turns[number], self.filler.chosen
        at = max(index for index, row in enumerate(chosen) if row.turn == number)
        del chosen[at + 1 - len(rows) : at + 1]
        self._placed.pop()
        self.history.kept.remove(number)
        self._change([], [row.piece for row in rows if row.piece is not None], number)
        for row in rows:
            row.piece = None

    def _held(self) -> int:
        """Return the tokens of the history so far."""
        return self.filler.layout.held(*_SLOT)

    def _piece(self, row: Ranked) -> Piece:
        """Return the piece of a whole message; its text and counts are remembered, its place is this build's."""
        said, labels = self._said[id(row)], self.filler.template.labels
        if said.shown is None or said.shown[0] != labels:
            said.shown = labels, self.filler.piece(row)
        return said.shown[1].at(row.place)

    # -- the lines for what is left out -------------------------------------------------------------------------------

    def _change(self, come: list[Piece], gone: list[Piece], number: int) -> None:
        """Put pieces in and take others out, and set the lines before the turn that changed and the one after it."""
        kept = self.history.kept
        after = bisect.bisect_right(kept, number)
        for turn in (number, *kept[after : after + 1]):
            count = self._missing(turn)
            held, line = self._marks.get(turn, (0, None))
            if held == count:
                continue
            self._marks.pop(turn, None)
            if line is not None:
                gone.append(line)
            if count:
                head, stamp, rank = self._turns[turn][0].place
                line = self._line(count).at((head, stamp, rank - 0.5))
                self._marks[turn] = (count, line)
                come.append(line)
        if gone:
            self.filler.layout.remove(*_SLOT, *gone)
        if come:
            self.filler.layout.add(*_SLOT, *come)

    def _missing(self, number: int) -> int:
        """Return how many turns are left out just before a turn; none before one that is not there."""
        kept = self.history.kept
        place = bisect.bisect_left(kept, number)
        if place == len(kept) or kept[place] != number:
            return 0
        return number - (kept[place - 1] + 1 if place else self._front(number))

    def _line(self, count: int) -> Piece:
        """Return the line for so many turns left out; an empty piece for none."""
        if count not in self._lines:
            self._lines[count] = self.filler.template.left_out(count) if count else Piece("", 0)
            self._longest = max(self._longest, _size(self._lines[count]))
        return self._lines[count]

    def _front(self, first: int) -> int:
        """Return the turn from which on what is left out before the first kept one gets a line."""
        if self._summary is not None:
            return self.history.summarised
        return 0 if self.history.strategy in SCATTERED else first

    def _drop(self, numbers: Sequence[int]) -> None:
        scattered = self.history.strategy in SCATTERED
        why = "" if scattered else ", and no older turn may stand without it"
        for row in itertools.chain(*(self._turns[number] for number in numbers)):
            row.drop("budget", f"{self.history.strategy}: the turn did not fit{why}")

    # -- the summary --------------------------------------------------------------------------------------------------

    def _put_summary(self) -> list[str]:
        """Put the summary in, shortened if need be, or say why not."""
        history, filler = self.history, self.filler
        if not history.summarised:
            return []
        shortener = replace(filler.shortener, summarizer=None)  # the summarizer has had its say
        room = min(filler.room(), (history.bound or 0) - self._held())

        def measure(body: str) -> int:
            return _size(filler.template.summary(body, _FIRST, shortened=True))

        if self._set_summary(filler.template.summary(history.summary, _FIRST)):
            return []
        for slack in (0, 16):  # what a line for a hole behind it takes
            if not filler.config.enable_compression or room - slack < LEAST_ROOM:
                break
            result = shortener.shorten(history.summary, room - slack, measure)
            if result and self._set_summary(filler.template.summary(result[0], _FIRST, shortened=True)):
                return []
        history.summarised, history.fallback = 0, "the summary did not fit"
        return [f"history: {history.fallback}"]

    def _set_summary(self, piece: Piece) -> bool:
        self._summary = piece
        self._change([piece], [], self.history.kept[0])
        if self.filler.room() >= 0 and self._held() <= (self.history.bound or 0):
            return True
        self._take_summary("")
        return False

    def _take_summary(self, why: str) -> int:
        piece, self._summary = self._summary, None
        assert piece is not None
        if why:
            self.history.summarised, self.history.fallback = 0, why
        self._change([], [piece], self.history.kept[0])
        return _size(piece)

    # -- the newest turn ----------------------------------------------------------------------------------------------

    def _put_newest(self, number: int, others: Sequence[Ranked]) -> bool:
        """Put the newest turn in: whole, else shortened to the bound, else beyond it, as far as there is room."""
        bound = self.history.bound
        if bound is None:
            if self._must_shrink(number, others) and self._shrink(number, self._half):
                return True
            return self._put(number, None) or self._shrink(number, self._half)
        if self._put(number, bound) or self._shrink(number, bound, bound):
            return True
        return self._put(number, None) or self._shrink(number, self._half)

    def _must_shrink(self, number: int, others: Sequence[Ranked]) -> bool:
        """Tell whether the newest turn's tool results must shrink: over half of the shared limit, and not all fits."""
        turn, filler = self._turns[number], self.filler
        if not filler.config.enable_compression or not any(row.is_result for row in turn):
            return False
        before = filler.layout.size()
        pieces = [(row, self._piece(row)) for row in turn]
        for row, piece in pieces:
            filler.layout.add(row.section, row.group, piece)
        after = filler.layout.size()
        if max(after.text - before.text, after.messages - before.messages) > self._half:
            for row in others:
                if filler.room() < 0:
                    break
                pieces.append((row, filler.piece(row)))
                filler.layout.add(row.section, row.group, pieces[-1][1])
            must = filler.room() < 0
        else:
            must = False
        for row, piece in pieces:
            filler.layout.remove(row.section, row.group, piece)
        return must

    def _shrink(self, number: int, tools_to: int, bound: int | None = None) -> bool:
        """Put a turn in with its tool results cut to `tools_to`; if that is not enough, with all of it cut."""
        filler, turn = self.filler, self._turns[number]
        if not filler.config.enable_compression:
            return False
        most = filler.room() if bound is None else min(filler.room(), bound)
        most -= _size(self._line(number - self._front(number)))  # what is before it, when it stands alone
        tools = [row for row in turn if row.is_result]
        for part, target in ((tools, min(tools_to, most)), (tools, most), (turn, most)):
            cuts = self._cut_to(turn, part, target) if part else None
            if cuts is not None and self._put(number, bound, cuts):
                return True
        return False

    def _cut_to(self, turn: Sequence[Ranked], part: Sequence[Ranked], target: int) -> dict[int, Cut] | None:
        """Cut the largest messages of `part` until the turn measures at most `target`; None when that is impossible."""
        filler = self.filler
        sizes = {id(row): _size(self._piece(row)) for row in turn}
        over = sum(sizes.values()) + 8 - target  # 8: the section's header and closing line
        cuts: dict[int, Cut] = {}
        for row in sorted(part, key=lambda row: -sizes[id(row)]):
            if over <= 0:
                break

            def measure(short: str, row: Ranked = row) -> int:
                return _size(filler.piece(row, short))

            room = max(measure("") + 1, sizes[id(row)] - over)
            if (found := filler.shorten_result(row, room)) is not None:
                over -= sizes[id(row)] - _size(found[0])
                cuts[id(row)] = (found[0], "truncated")
                continue
            result = filler.shortener.shorten(row.body, room, measure)
            short, action = result or ("", "truncated")
            piece = filler.piece(row, short)
            over -= sizes[id(row)] - _size(piece)
            cuts[id(row)] = (piece, action)
        return cuts if over <= 0 else None


def _size(piece: Piece) -> int:
    return max(piece.tokens, piece.message_tokens)
