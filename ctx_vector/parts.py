"""Filling by part budgets: each part up to its own tokens, then parts shrink until the whole fits.

    fill     each part greedily up to `budgets[part]`, whatever the others take; what does not fit is over its `quota`.
             Only an item that would leave its part empty is shortened here
    shrink   while the whole is too large: part by part in `shrink_order`, from the lowest-ranked item up, down to the
             best item in 50 tokens; then, part by part again, without the best items

System instructions are never cut. A part without a budget is filled up to the limit that all share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ctx_vector.compress import LEAST_ROOM
from ctx_vector.config import PARTS
from ctx_vector.select import Filler
from ctx_vector.tool_rows import put_tools

if TYPE_CHECKING:
    from ctx_vector.placing import Placer
    from ctx_vector.ranked import Ranked

_NOT_ROWS: Final = ("system", "history", "images")  # fixed, placed in turns, and planned before


class PartFiller:
    """Fills one layout by part budgets. `rows` are all that is open but system instructions and history."""

    def __init__(self, filler: Filler, placer: Placer, rows: Sequence[Ranked]) -> None:
        self.filler = filler
        self.placer = placer
        self.rows: dict[str, list[Ranked]] = {part: [] for part in PARTS if part not in _NOT_ROWS}
        for row in rows:
            # a packet that says what was spoken stands before the conversation, but is no turn of it
            self.rows.setdefault(row.part, []).append(row)
        order = filler.config.shrink_order
        self.order = (*order, *(part for part in PARTS if part not in order and part != "system"))

    def fill(self) -> list[str]:
        """Fill all parts and shrink them to the limits of the whole; return warnings."""
        with self.filler.unlimited():
            warnings = self.placer.fill(())
            for part in self.rows:
                self._fill_part(part)
        if self.filler.room() < 0:
            for part in self.order:
                self._shrink(part)
        for part in self.order:  # without the best items
            self._empty(part)
        return warnings

    def _cap(self, part: str) -> int:
        limit = self.filler.config.budgets.get(part)
        return self.filler.config.shared_limit if limit is None else limit

    def _room(self, part: str, cap: int) -> int:
        return cap - self.filler.held(part)

    def _fill_part(self, part: str) -> None:
        cap, rows, kept = self._cap(part), self.rows[part], 0
        if part == "tools":
            put_tools(self.filler, rows, cap)
            return
        given = self.filler.config.budgets.get(part) is not None
        reason, detail = ("quota", f"over the {cap} tokens of {part}") if given else ("budget", "over the shared limit")
        left: list[Ranked] = []
        with self.filler.within(lambda: self._room(part, cap)):
            for row in rows:
                if not (left and self.filler.config.fill == "stop") and self.filler.keep_if_it_fits(row):
                    kept += 1
                elif not row.reason:
                    row.drop(reason, detail)
                    left.append(row)
            if not kept:
                self.filler.shorten_first(left, LEAST_ROOM - 1)

    def _shrink(self, part: str) -> None:
        """Take from a part what the whole is too large by, down to the best item in 50 tokens."""
        filler, over = self.filler, -self.filler.room()
        if part == "history" and over > 0:
            self.placer.shrink(1)
            over = -filler.room()
        if over <= 0:
            return
        if part == "tools":
            put_tools(filler, self.rows[part], max(1, filler.held(part) - over))
        else:
            target = max(LEAST_ROOM, filler.held(part) - over)
            gone: list[Ranked] = []
            for row in reversed([row for row in self.rows.get(part, ()) if row.piece]):
                if self._room(part, target) >= 0:
                    break
                filler.take(row)
                row.drop("budget", f"{part} had to shrink")
                gone.append(row)
            if gone:
                with filler.unlimited(), filler.within(lambda: self._room(part, target)):
                    filler.shorten(gone[-1], LEAST_ROOM - 1 if self._is_empty(part) else 0)

    def _is_empty(self, part: str) -> bool:
        return not any(row.piece for row in self.rows[part])

    def _empty(self, part: str) -> None:
        """Take out the best items of a part too, if the whole is still too large."""
        if part == "history":
            self.placer.shrink(0)
        for row in reversed([row for row in self.rows.get(part, ()) if row.piece]):
            if self.filler.room() >= 0:
                break
            self.filler.take(row)
            row.drop("budget", f"{part} had to shrink")
