"""Tables for people, drawn by Rich: plain text without colours where stdout is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from ctx_vector.cli.text import coloured, columns, cut, cut_start, plain, width

_LEAST = 24
WIDTH = 120  # where stdout is no terminal


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
    that the others leave, the first one at its start unless `keep_start`; columns that do not fold keep their width
    while there is room.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=title or None, title_justify="left")
    for name in names:
        label = name.removeprefix(">")
        table.add_column(
            label,
            justify="right" if name.startswith(">") else "left",
            no_wrap=label not in folding,
            overflow="fold",
        )
    cells = [[plain(cell) for cell in row] for row in rows]
    if stretch:
        _cut_column(names, cells, list(names).index(stretch), keep_start=keep_start)
    for row in cells:
        table.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
    console = Console(
        file=sys.stdout, width=columns(WIDTH), no_color=not coloured(), force_terminal=coloured(), highlight=False
    )
    with console.capture() as drawn:
        console.print(table)
    lines = [line.rstrip() for line in drawn.get().split("\n")]  # trailing blanks would wrap on a narrower terminal
    sys.stdout.write("\n".join(lines).strip("\n") + "\n")


def _cut_column(names: Sequence[str], cells: list[list[str]], at: int, *, keep_start: bool) -> None:
    widest = [
        max(
            width(line)
            for row in [[name.removeprefix(">") for name in names], *cells]
            for line in row[column].split("\n")
        )
        for column, name in enumerate(names)
    ]
    room = max(_LEAST, columns(WIDTH) - sum(widest) + widest[at] - 2 * len(names) - 2)
    for row in cells:
        first, *rest = row[at].split("\n")
        row[at] = "\n".join(
            [cut(first, room) if keep_start else cut_start(first, room), *(cut(line, room) for line in rest)]
        )
