"""Putting tool definitions into a layout: whole tools, the most relevant first, shortened before one is dropped.

First as many tools as fit in their shortest form, by relevance; then, again by relevance, each in the fullest form
that the others leave room for. At least one stays while it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ctx_vector.layout import Piece

if TYPE_CHECKING:
    from ctx_vector.ranking import Ranked
    from ctx_vector.select import Filler


def put_tools(filler: Filler, rows: Sequence[Ranked], cap: int) -> None:
    """Put the tools among `rows`, best first, in within `cap` tokens, title included; those in before are put anew."""
    for row in rows:
        if row.piece is not None:
            filler.take(row)
    forms: dict[int, list[tuple[Piece, Any]]] = {}
    kept: list[Ranked] = []
    with filler.within(lambda: cap - filler.held("tools")):
        for row in rows:
            forms[id(row)] = _forms(filler, row)
            if _put(filler, row, forms[id(row)][-1]):
                kept.append(row)
            else:
                row.drop("quota", f"over the {cap} tokens of tools")
        for row in kept:
            for form in forms[id(row)][:-1]:
                shortest = row.piece
                assert shortest is not None
                filler.take(row)
                if _put(filler, row, form):
                    break
                _put(filler, row, forms[id(row)][-1])


def _forms(filler: Filler, row: Ranked) -> list[tuple[Piece, Any]]:
    """Return the pieces a tool can stand as, the fullest first, each with its definition."""
    tool, config = row.candidate.tool, filler.config
    versions = list(tool.levels()) if config.enable_compression else [tool]
    return [(filler.template.tool(version, row.place), version) for version in versions]


def _put(filler: Filler, row: Ranked, form: tuple[Piece, Any]) -> bool:
    piece, definition = form
    full = definition is row.candidate.tool or definition == row.candidate.tool
    if not filler.put(row, piece, "full" if full else "truncated"):
        return False
    row.definition = definition
    return True
