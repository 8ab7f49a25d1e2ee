"""Select: fill the budget greedily, and give each candidate one fate.

System instructions, Task and Output are put in by the builder before and are never cut. History is set aside first
(placing.py); the rest is one greedy pass over all ranked candidates; then, once, the best one that did not fit is
shortened. Exact sizes come from the layout; nothing is counted before a decision needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ctx_vector.compress import LEAST_ROOM, LEAST_ROOM_EVIDENCE, Shortener
from ctx_vector.config import ContextConfig
from ctx_vector.layout import EVIDENCE, ROLE, Layout, Piece
from ctx_vector.ranking import Ranked
from ctx_vector.structure import Template

#: Bytes of the longest cl100k token: 128 blanks.
_LONGEST_TOKEN: Final = 128
_NO_ROOM: Final = "did not fit in what was left"


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

    def piece(self, row: Ranked, short: str | None = None) -> Piece:
        """Return the piece of a row, or of a shortened body of it."""
        slot, body = (row.section, row.group), row.body if short is None else short
        return self.template.piece(row.candidate, slot, row.place, body, shortened=short is not None)

    def put_fixed(self, row: Ranked) -> None:
        """Put in what is never cut, whatever its size."""
        piece = self.piece(row)
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

    def take(self) -> Ranked:
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
        return self._put(row, self.piece(row))

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
        bare = self.piece(row, "")
        self.layout.add(row.section, row.group, bare)
        overhead = room - min(self.room(), room) - bare.tokens
        self.layout.remove(row.section, row.group, bare)
        extra = bare.message_tokens - bare.tokens

        def measure(short: str) -> int:
            piece = self.piece(row, short)
            return max(piece.tokens, piece.message_tokens - extra if piece.message is not None else 0)

        row.detail = row.detail.replace(_NO_ROOM, "").strip("; ")
        for slack in (0, 1, 2, 4, 8):  # joins at the edges of the shortened piece can cost a token more
            result = self.shortener.shorten(row.body, room - overhead - slack, measure)
            if result is None:
                break
            if self._put(row, self.piece(row, result[0]), result[1]):
                return
        row.drop("budget", "did not fit, and nothing of it could be kept")

    def give_back(self, tokens: int) -> bool:
        """Take out what was chosen last, until at least `tokens` tokens are free or only history and fixed parts are
        left.

        For tokenizers whose counts do not add, when the whole turns out too large. False when there is nothing to take.
        """
        freed = 0
        while freed < tokens and self.chosen and self.chosen[-1].section != ROLE and self.chosen[-1].turn < 0:
            piece = self.chosen[-1].piece
            freed += max(piece.tokens, piece.message_tokens) if piece else 0
            self.take().drop("budget", "the whole did not fit when counted again")
        return freed > 0


def _too_long(body: str, room: int) -> bool:
    """Tell, without counting, that a text has more than `room` cl100k tokens: none is longer than 128 bytes, and none
    reaches over two words.
    """
    return len(body) > room * _LONGEST_TOKEN or len(body.split()) > room
