"""Tables for people, drawn by Rich: plain text without colours where stdout is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from ctx_vector.cli.text import coloured, columns, cut, cut_start, plain, width

_LEAST: Final = 12  # of a column that is cut or folded
_GAP: Final = 2
WIDTH: Final = 120  # where stdout is no terminal


def show_table(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    styles: Mapping[str, str] | None = None,
    folding: Sequence[str] = (),
    stretch: str = "",
    keep_start: bool = False,
) -> None:
    """Print rows of text. A name that begins with ``>`` is right-aligned; columns in `folding` may take several lines.

    `styles` gives a cell with exactly this text a Rich style. The lines of the column `stretch` are cut to the room
    that the others leave, the first one at its start unless `keep_start`. No other column is ever cut, as half a number
    is a wrong one: on a narrow terminal empty columns go, then blanks between the columns, and what is still too long
    runs on in the next line.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[plain(cell) for cell in row] for row in rows]
    names, cells, gap = _fitted(names, cells, {*folding, stretch})
    if stretch:
        _cut_column(names, cells, list(names).index(stretch), gap, keep_start=keep_start)
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, padding=(0, gap - 1, 0, 0), title=title or None, title_justify="left"
    )
    for name in names:
        label = name.removeprefix(">")
        table.add_column(
            label,
            justify="right" if name.startswith(">") else "left",
            no_wrap=label not in folding,
            overflow="fold",
        )
    for row in cells:
        table.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
    room = max(columns(WIDTH), _needed(names, cells, gap, set(folding)))
    console = Console(file=sys.stdout, width=room, no_color=not coloured(), force_terminal=coloured(), highlight=False)
    with console.capture() as drawn:
        console.print(table)
    lines = [line.rstrip() for line in drawn.get().split("\n")]  # trailing blanks would wrap on a narrower terminal
    sys.stdout.write("\n".join(lines).strip("\n") + "\n")


def _widest(names: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns that the longest line of each column takes."""
    return [
        max(width(line) for cell in [name.removeprefix(">"), *(row[at] for row in cells)] for line in cell.split("\n"))
        for at, name in enumerate(names)
    ]


def _needed(names: Sequence[str], cells: Sequence[Sequence[str]], gap: int, yielding: AbstractSet[str]) -> int:
    """Return how wide the table is at least; of the columns in `yielding` no more than _LEAST has to stand there."""
    wide = zip(names, _widest(names, cells), strict=True)
    return sum(min(w, _LEAST) if name in yielding else w for name, w in wide) + gap * (len(names) - 1) + 2


def _fitted(
    names: Sequence[str], cells: list[list[str]], yielding: AbstractSet[str]
) -> tuple[Sequence[str], list[list[str]], int]:
    """Return the table as it fits, and the blanks between its columns."""
    if _needed(names, cells, _GAP, yielding) <= columns(WIDTH):
        return names, cells, _GAP
    shown = [at for at, name in enumerate(names) if name in yielding or any(row[at] for row in cells)]
    names, cells = [names[at] for at in shown], [[row[at] for at in shown] for row in cells]
    return names, cells, _GAP if _needed(names, cells, _GAP, yielding) <= columns(WIDTH) else 1


def _cut_column(names: Sequence[str], cells: list[list[str]], at: int, gap: int, *, keep_start: bool) -> None:
    widest = _widest(names, cells)
    room = max(_LEAST, columns(WIDTH) - sum(widest) + widest[at] - gap * (len(names) - 1) - 2)
    for row in cells:
        first, *rest = row[at].split("\n")
        row[at] = "\n".join(
            [cut(first, room) if keep_start else cut_start(first, room), *(cut(line, room) for line in rest)]
        )
