"""Select: fill the budget greedily, and give each candidate one fate.

System instructions, Task and Output are put in by the builder before and are never cut. History is set aside first,
newest turn first and whole; the rest is one greedy pass over all ranked candidates; then, once, the best one that did
not fit is shortened. Exact sizes come from the layout; nothing is counted before a decision needs it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, TypeAlias

from ctx_vector.compress import LEAST_ROOM, LEAST_ROOM_EVIDENCE, Shortener
from ctx_vector.config import ContextConfig
from ctx_vector.gather import TOOL_ROLES
from ctx_vector.layout import EVIDENCE, ROLE, Layout, Piece
from ctx_vector.ranking import Ranked
from ctx_vector.structure import Template

#: Bytes of the longest cl100k token: 128 blanks.
_LONGEST_TOKEN: Final = 128
_NO_ROOM: Final = "did not fit in what was left"

Cut: TypeAlias = tuple[Piece, str]  # a shortened piece and how it was shortened


class Filler:
    """Fills one layout within the limits of one config."""

    def __init__(self, layout: Layout, template: Template, config: ContextConfig, shortener: Shortener) -> None:
        self.layout = layout
        self.template = template
        self.config = config
        self.shortener = shortener
        self.chosen: list[Ranked] = []
        self._shared_limit = config.shared_limit

    def room(self) -> int:
        """Return the tokens that are left; negative when something is over its limit."""
        size = self.layout.size()
        return min(self.config.max_tokens - size.total, self._shared_limit - size.shared)

    def _piece(self, row: Ranked, short: str | None = None) -> Piece:
        """Return the piece of a row, or of a shortened body of it."""
        slot, body = (row.section, row.group), row.body if short is None else short
        return self.template.piece(row.candidate, slot, row.place, body, shortened=short is not None)

    def put_fixed(self, row: Ranked) -> None:
        """Put in what is never cut, whatever its size."""
        piece = self._piece(row)
        self.layout.add(row.section, row.group, piece)
        row.keep(piece)
        self.chosen.append(row)

    def _put(self, row: Ranked, piece: Piece, action: str = "full") -> bool:
        self.layout.add(row.section, row.group, piece)
        if self.room() < 0:
            self.layout.remove(row.section, row.group, piece)
            return False
        row.keep(piece, action, "" if action == "full" else "budget")
        self.chosen.append(row)
        return True

    def _take(self) -> Ranked:
        """Take the row chosen last out again."""
        row = self.chosen.pop()
        assert row.piece is not None
        self.layout.remove(row.section, row.group, row.piece)
        row.piece = None
        return row

    def _try(self, row: Ranked) -> bool:
        room = self.room()
        if room < 1 or (self.layout.counter.additive and _too_long(row.body, room)):
            return False
        return self._put(row, self._piece(row))

    def greedy(self, rows: Sequence[Ranked]) -> None:
        """Take rows in order while they fit; then shorten the best one that did not, once."""
        left: list[Ranked] = []
        for row in rows:
            if (left and self.config.fill == "stop") or not self._try(row):
                row.drop("budget", _NO_ROOM)
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
        bare = self._piece(row, "")
        self.layout.add(row.section, row.group, bare)
        overhead = room - min(self.room(), room) - bare.tokens
        self.layout.remove(row.section, row.group, bare)
        extra = bare.message_tokens - bare.tokens

        def measure(short: str) -> int:
            piece = self._piece(row, short)
            return max(piece.tokens, piece.message_tokens - extra if piece.message is not None else 0)

        row.detail = row.detail.replace(_NO_ROOM, "").strip("; ")
        for slack in (0, 1, 2, 4, 8):  # joins at the edges of the shortened piece can cost a token more
            result = self.shortener.shorten(row.body, room - overhead - slack, measure)
            if result is None:
                break
            if self._put(row, self._piece(row, result[0]), result[1]):
                return
        row.drop("budget", "did not fit, and nothing of it could be kept")

    def give_back(self, tokens: int) -> bool:
        """Take rows out from the last chosen on, turns whole, until at least `tokens` tokens are free.

        For tokenizers whose counts do not add, when the whole turns out too large. False when nothing is left to take.
        """
        freed = 0
        while freed < tokens and self.chosen and self.chosen[-1].section != ROLE:
            turn = self.chosen[-1].turn
            while self.chosen and self.chosen[-1].turn == turn and self.chosen[-1].section != ROLE:
                piece = self.chosen[-1].piece
                freed += max(piece.tokens, piece.message_tokens) if piece else 0
                self._take().drop("budget", "the whole did not fit when counted again")
                if turn < 0:
                    break
        return freed > 0

    # -- history -----------------------------------------------------------------------------------------------------

    def history(self, rows: Sequence[Ranked], others: Sequence[Ranked]) -> str:
        """Set the newest turns aside, whole and without a hole; return a warning, or "".

        `rows` are in order of speaking; `others` are what the rest of the budget is for.
        """
        turns = [list(turn) for _, turn in itertools.groupby(rows, key=lambda row: row.turn)]
        for position in reversed(range(len(turns))):
            turn, newest = turns[position], position == len(turns) - 1
            if newest and self._must_shrink(turn, others) and self._shrink_turn(turn):
                continue
            if self._put_turn(turn) or (newest and self._shrink_turn(turn)):
                continue
            for row in itertools.chain(*turns[: position + 1]):
                row.drop("budget", "the turn did not fit, and no older turn may stand without it")
            return "the newest turn of the history does not fit and was left out" if newest else ""
        return ""

    def _put_turn(self, turn: Sequence[Ranked], cuts: dict[int, Cut] | None = None) -> bool:
        for done, row in enumerate(turn):
            piece, action = (cuts or {}).get(id(row)) or (self._piece(row), "full")
            if not self._put(row, piece, action):
                for _ in range(done):
                    self._take()
                return False
        return True

    def _must_shrink(self, turn: Sequence[Ranked], others: Sequence[Ranked]) -> bool:
        """Tell whether the newest turn's tool results must shrink: over half of the shared limit, and not all fits."""
        if not self.config.enable_compression or not any(map(_is_tool, turn)):
            return False
        before = self.layout.size()
        pieces = [(row, self._piece(row)) for row in turn]
        for row, piece in pieces:
            self.layout.add(row.section, row.group, piece)
        after = self.layout.size()
        if max(after.text - before.text, after.messages - before.messages) > self._shared_limit // 2:
            for row in others:
                if self.room() < 0:
                    break
                pieces.append((row, self._piece(row)))
                self.layout.add(row.section, row.group, pieces[-1][1])
            must = self.room() < 0
        else:
            must = False
        for row, piece in pieces:
            self.layout.remove(row.section, row.group, piece)
        return must

    def _shrink_turn(self, turn: Sequence[Ranked]) -> bool:
        """Put a turn in with its tool results cut to half of the shared limit; if that is not enough, with all of it
        cut.
        """
        if not self.config.enable_compression:
            return False
        half = min(self.room(), self._shared_limit // 2)
        tools = [row for row in turn if _is_tool(row)]
        for part, target in ((tools, half), (tools, self.room()), (turn, self.room())):
            cuts = self._cut_to(turn, part, target) if part else None
            if cuts is not None and self._put_turn(turn, cuts):
                return True
        return False

    def _cut_to(self, turn: Sequence[Ranked], part: Sequence[Ranked], target: int) -> dict[int, Cut] | None:
        """Cut the largest messages of `part` until the turn measures at most `target`; None when that is impossible."""

        def size(piece: Piece) -> int:
            return max(piece.tokens, piece.message_tokens)

        sizes = {id(row): size(self._piece(row)) for row in turn}
        over = sum(sizes.values()) + 8 - target  # 8: the section's header and closing line
        cuts: dict[int, Cut] = {}
        for row in sorted(part, key=lambda row: -sizes[id(row)]):
            if over <= 0:
                break

            def measure(short: str, row: Ranked = row) -> int:
                return size(self._piece(row, short))

            result = self.shortener.shorten(row.body, max(measure("") + 1, sizes[id(row)] - over), measure)
            short, action = result or ("", "truncated")
            piece = self._piece(row, short)
            over -= sizes[id(row)] - size(piece)
            cuts[id(row)] = (piece, action)
        return cuts if over <= 0 else None


def _is_tool(row: Ranked) -> bool:
    return row.candidate.message is not None and row.candidate.message.role in TOOL_ROLES


def _too_long(body: str, room: int) -> bool:
    """Tell, without counting, that a text has more than `room` cl100k tokens: none is longer than 128 bytes, and none
    reaches over two words.
    """
    return len(body) > room * _LONGEST_TOKEN or len(body.split()) > room
