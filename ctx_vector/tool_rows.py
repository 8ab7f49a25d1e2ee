"""Putting tool definitions into a layout: whole tools, the most relevant first, words shortened before one is dropped.

Which of them stay, and in which form, is `tool_schemas.choose`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctx_vector.ranked import Ranked
    from ctx_vector.select import Filler


def put_tools(filler: Filler, rows: Sequence[Ranked], cap: int) -> None:
    """Put the tools among `rows`, best first, in within `cap` tokens, title included; those in before are put anew."""
    from ctx_vector.tool_schemas import choose  # only builds with tools pay for it

    for row in rows:
        if row.piece is not None:
            filler.take(row)
        row.reopen()
        row.definition = None

    def measure(tool: Any) -> int:
        piece = filler.template.tool(tool, ())
        return max(piece.tokens, piece.message_tokens)

    room = min(cap, filler.room()) - filler.layout.title_of("Role & Policies", "tools")
    tools = [row.candidate.tool for row in rows]
    kept = choose(tools, [-place for place in range(len(rows))], max(0, room), measure)
    for row, tool in zip(rows, kept, strict=True):
        if tool is None:
            row.drop("quota", f"over the {cap} tokens of tools")
            continue
        action = "full" if tool == row.candidate.tool else "truncated"
        if filler.put(row, filler.template.tool(tool, row.place), action):
            row.definition = tool
            row.detail = "" if action == "full" else f"shortened: {tool.level}"
        else:
            row.drop("budget", "did not fit in what was left")
