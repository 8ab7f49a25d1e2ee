"""Select: fill the budget greedily, and give each candidate one fate.

System instructions, Task and Output are put in by the builder before and are never cut. History is set aside first,
newest turn first and whole; the rest is one greedy pass over all ranked candidates; then, once, the best one that did
not fit is shortened. Exact sizes come from the layout; nothing is counted before a decision needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ctx_vector.compress import LEAST_ROOM, LEAST_ROOM_EVIDENCE, Shortener
from ctx_vector.config import ContextConfig
from ctx_vector.layout import EVIDENCE, Layout, Piece
from ctx_vector.ranking import Ranked
from ctx_vector.structure import Template
from ctx_vector.trim import turns_of, window

#: No cl100k token is longer than this many bytes, so a text of n bytes has at least n / 128 tokens.
_LONGEST_TOKEN: Final = 128


class Filler:
    """Fills one layout within the limits of one config."""

    def __init__(self, layout: Layout, template: Template, config: ContextConfig, shortener: Shortener) -> None:
        self.layout = layout
        self.template = template
        self.config = config
        self.shortener = shortener
        self.chosen: list[Ranked] = []

    def room(self) -> int:
        """Return the tokens that are left; negative when something is over its limit."""
        size = self.layout.size()
        return min(self.config.max_tokens - size.total, self.config.shared_limit - size.shared)

    def _put(self, row: Ranked, piece: Piece, action: str = "full", reason: str = "") -> bool:
        self.layout.add(row.section, row.group, piece)
        if self.room() < 0:
            self.layout.remove(row.section, row.group, piece)
            return False
        row.keep(piece, action, reason)
        self.chosen.append(row)
        return True

    def _take(self, row: Ranked) -> None:
        assert row.piece is not None
        self.layout.remove(row.section, row.group, row.piece)
        row.piece = None
        self.chosen.remove(row)

    def _try(self, row: Ranked) -> bool:
        room = self.room()
        least = len(row.candidate.packet.content) // _LONGEST_TOKEN if self.layout.counter.additive else 1
        if room < max(1, least):
            return False
        return self._put(row, self.template.piece(row.candidate, row.place))

    def greedy(self, rows: Sequence[Ranked]) -> None:
        """Take rows in order while they fit; then shorten the best one that did not, once."""
        left: list[Ranked] = []
        for row in rows:
            if (left and self.config.fill == "stop") or not self._try(row):
                row.drop("budget", "did not fit in what was left")
                left.append(row)
        if not left:
            return
        if not self.config.enable_compression:
            left[0].drop("oversize", "compression is off")
            return
        self._shorten(left[0])

    def _shorten(self, row: Ranked) -> None:
        room = self.room()
        if room <= (LEAST_ROOM_EVIDENCE if row.section == EVIDENCE else LEAST_ROOM):
            return
        row.detail = row.detail.replace("did not fit in what was left", "").strip("; ")
        if not self.shorten_into(row, room):
            row.drop("budget", "did not fit, and nothing of it could be kept")

    def shorten_into(self, row: Ranked, room: int) -> bool:
        """Shorten a row so that it fits into `room` tokens of the layout; say whether that worked."""
        bare = self.template.piece(row.candidate, row.place, short="")
        self.layout.add(row.section, row.group, bare)
        overhead = room - min(self.room(), room) - bare.tokens
        self.layout.remove(row.section, row.group, bare)
        is_chat = bare.message is not None

        def measure(short: str) -> int:
            piece = self.template.piece(row.candidate, row.place, short=short)
            return max(piece.tokens, piece.message_tokens - (bare.message_tokens - bare.tokens) if is_chat else 0)

        body = self.template.body(row.candidate)
        for slack in (0, 1, 2, 4, 8):  # joins at the edges of the shortened piece can cost a token more
            result = self.shortener.shorten(body, room - overhead - slack, measure)
            if result is None:
                return False
            short, action = result
            piece = self.template.piece(row.candidate, row.place, short=short)
            if self._put(row, piece, action, "budget"):
                return True
        return False

    def give_back(self, row: Ranked) -> None:
        """Take a kept row out again, because the whole does not fit after all."""
        self._take(row)
        row.drop("budget", "the whole did not fit when counted again")

    # -- history -----------------------------------------------------------------------------------------------------

    def history(self, rows: Sequence[Ranked], others: Sequence[Ranked]) -> str:
        """Set the newest turns aside, whole and without a hole; return a warning, or "".

        `rows` are in order of speaking; `others` are what the rest of the budget is for.
        """
        said = [row.candidate.message for row in rows if row.candidate.message is not None]
        turns = [[rows[index] for index in turn] for turn in turns_of(said)]
        first = window([range(len(turn)) for turn in turns], self.config.history_limit)
        for turn in turns[:first]:
            for row in turn:
                row.drop("window", f"older than the newest {self.config.history_limit} messages in whole turns")
        warning = ""
        for position in range(len(turns) - 1, first - 1, -1):
            turn = turns[position]
            newest = position == len(turns) - 1
            if newest and self._shrink_needed(turn, others):
                self._shrink_turn(turn)
            elif not self._put_turn(turn):
                if newest and self._shrink_turn(turn):
                    continue
                if newest:
                    warning = "the newest turn of the history does not fit and was left out"
                for older in turns[first : position + 1]:
                    for row in older:
                        row.drop("budget", "the turn did not fit, and no older turn may stand without it")
                break
        return warning

    def _put_turn(self, turn: Sequence[Ranked], shortened: dict[int, Piece] | None = None) -> bool:
        done: list[Ranked] = []
        for row in turn:
            piece = (shortened or {}).get(id(row))
            made = piece or self.template.piece(row.candidate, row.place)
            if not self._put(row, made, *(("truncated", "budget") if piece else ("full", ""))):
                for other in done:
                    self._take(other)
                return False
            done.append(row)
        return True

    def _shrink_needed(self, turn: Sequence[Ranked], others: Sequence[Ranked]) -> bool:
        """Tell whether the newest turn's tool results must shrink: over half of the shared limit, and not all fits."""
        if not self.config.enable_compression or not any(_is_tool(row) for row in turn):
            return False
        before = self.layout.size()
        pieces = [(row, self.template.piece(row.candidate, row.place)) for row in turn]
        for row, piece in pieces:
            self.layout.add(row.section, row.group, piece)
        after = self.layout.size()
        large = max(after.text - before.text, after.messages - before.messages) > self.config.shared_limit // 2
        if large:
            rest = [(row, self.template.piece(row.candidate, row.place)) for row in others]
            for row, piece in rest:
                self.layout.add(row.section, row.group, piece)
            large = self.room() < 0
            for row, piece in rest:
                self.layout.remove(row.section, row.group, piece)
        for row, piece in pieces:
            self.layout.remove(row.section, row.group, piece)
        return large

    def _shrink_turn(self, turn: Sequence[Ranked]) -> bool:
        """Put a turn in with its tool results cut to half of the shared limit; if that is not enough, with all of it
        cut.
        """
        if not self.config.enable_compression:
            return False
        half = min(self.room(), self.config.shared_limit // 2)
        tools = [row for row in turn if _is_tool(row)]
        for part, target in ((tools, half), (tools, self.room()), (list(turn), self.room())):
            shortened = self._cut_to(turn, part, target) if part else None
            if shortened is not None and self._put_turn(turn, shortened):
                return True
        return False

    def _cut_to(self, turn: Sequence[Ranked], part: Sequence[Ranked], target: int) -> dict[int, Piece] | None:
        """Cut the largest messages of `part` until the turn measures at most `target`; None when that is impossible."""
        pieces = {id(row): self.template.piece(row.candidate, row.place) for row in turn}
        cut: dict[int, Piece] = {}
        sizes = {key: max(piece.tokens, piece.message_tokens) for key, piece in pieces.items()}
        over = sum(sizes.values()) + 8 - target  # 8: the section's header and closing line
        for row in sorted(part, key=lambda row: -sizes[id(row)]):
            if over <= 0:
                break
            body = self.template.body(row.candidate)
            bare = self.template.piece(row.candidate, row.place, short="")
            least = max(bare.tokens, bare.message_tokens) + 1
            want = max(least, sizes[id(row)] - over)

            def measure(short: str, row: Ranked = row) -> int:
                piece = self.template.piece(row.candidate, row.place, short=short)
                return max(piece.tokens, piece.message_tokens)

            result = self.shortener.shorten(body, want, measure)
            short = result[0] if result else ""
            piece = self.template.piece(row.candidate, row.place, short=short)
            over -= sizes[id(row)] - max(piece.tokens, piece.message_tokens)
            cut[id(row)] = piece
        return cut if over <= 0 else None


def _is_tool(row: Ranked) -> bool:
    return row.candidate.message is not None and row.candidate.message.role in ("tool", "function")
