"""Filling: which candidates stand in the context, and the proof that it fits.

fill     system instructions first, then one of
             whole    without part budgets: the newest turns, tools by their cap, one greedy pass over the rest
             parts    each part up to its budget, then parts shrink until the whole fits (parts.py)
prove    render, count the whole again, and drop the lowest-ranked packets until it really fits
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ctx_vector.allocation import Allocation, Layers
from ctx_vector.config import ContextConfig
from ctx_vector.diversity import Variety
from ctx_vector.errors import BudgetError
from ctx_vector.layers import LayerFiller
from ctx_vector.layout import Layout
from ctx_vector.parts import PartFiller
from ctx_vector.placing import Placer
from ctx_vector.select import Filler
from ctx_vector.structure import Template
from ctx_vector.tool_rows import put_tools

if TYPE_CHECKING:
    from ctx_vector.compress import Shortener
    from ctx_vector.history import History
    from ctx_vector.ranked import Ranked

#: The share of `max_tokens` that tool definitions may take when they have no budget of their own.
TOOLS_SHARE: Final = 0.2
NOTHING_FITS: Final = "nothing besides the fixed parts fits the budget"


class Rendered(NamedTuple):
    """A context as text and as messages, and the tokens of both, counted on what is there."""

    text: str
    messages: list[dict[str, Any]]
    text_tokens: int
    message_tokens: int

    @property
    def larger(self) -> int:
        """The tokens of the larger of the two."""
        return max(self.text_tokens, self.message_tokens)


@dataclass(slots=True, eq=False)
class Filled:
    """A filled layout: the rows chosen, in order of choice, and what a person should know of it."""

    layout: Layout
    filler: Filler
    placer: Placer
    warnings: list[str]
    allocation: Allocation | None = None

    @property
    def chosen(self) -> list[Ranked]:
        """The kept rows in order of choice."""
        return self.filler.chosen

    def prove(self) -> Rendered:
        """Return the context, rendered and within the limit by a count of what was rendered.

        With an additive tokenizer the first count already fits; with others the layout's sums are only near, and the
        lowest-ranked packets go until it does. Raises BudgetError when nothing is left that can go.
        """
        limit = self.filler.config.max_tokens
        while True:
            rendered = Rendered(*self.layout.render())
            over = rendered.larger + self.layout.size().apart - limit
            if over <= 0:
                return rendered
            step = max(1, over // 2)  # in a few steps, and hardly ever more than needed
            if not self.filler.give_back(step) and not self.placer.give_back(step):
                raise BudgetError(rendered.larger, limit, self.layout.parts(), rendered.larger)


def fill(
    ranked: Sequence[Ranked],
    history: History,
    template: Template,
    shortener: Shortener,
    layers: Layers | None = None,
    variety: Variety | None = None,
) -> Filled:
    """Fill a layout from `ranked`, all candidates of a build, best first; each row gets its fate. `variety` tells of
    those that add nothing to what is in.

    Raises BudgetError when what is never cut is over the limit.
    """
    config = template.config
    left_out = {part for part, wanted in config.include.items() if not wanted}
    if left_out:
        for row in ranked:
            if not row.reason and row.part in left_out:
                row.drop("quota", f"include.{row.part} is False")
    if layers is not None:
        layers.bound(ranked)
    kinds = _sorted_out(ranked)
    layout = template.layout(_extras(kinds.rest))
    filler = Filler(layout, template, shortener, variety)
    system = sorted(kinds.system, key=lambda row: row.place)
    for row in system:
        filler.put_fixed(row)
    warnings = _check_fixed(layout, config, system)
    layout.fix()
    said, rest = sorted(kinds.said, key=lambda row: row.candidate.rank), kinds.rest
    for row in sorted(kinds.images, key=lambda row: row.candidate.rank):
        if not row.reason and not filler.put(row, filler.piece(row)):
            row.drop("budget", "did not fit beside what is never cut")
    warnings += [
        f"{row.candidate.packet.id} of the query is left out: {row.detail}; raise max_tokens or budgets['images']"
        for row in kinds.images
        if row.reason and "images" not in left_out
    ]
    placer = Placer(history, said, filler)
    allocation = None
    if layers is not None:
        layered = LayerFiller(filler, placer, rest, layers)
        warnings += layered.fill()
        allocation = layered.allocation
    elif any(
        limit is not None
        for part, limit in config.budgets.items()
        if part not in ("history", "images") or (part == "history" and any(row.part == part for row in rest))
    ):
        warnings += PartFiller(filler, placer, rest).fill()
    else:
        warnings += _fill_whole(filler, placer, rest)
    if tools := [row.candidate.tool for row in rest if row.part == "tools"]:
        from ctx_vector.tool_schemas import tool_warnings  # only builds with tools pay for it

        warnings += tool_warnings(tools, layout.counter.count, api=config.tools_in == "api")
    if rest and not any(row.piece for row in (*rest, *said)):
        warnings.append(NOTHING_FITS)
    return Filled(layout, filler, placer, warnings, allocation)


class _Kinds(NamedTuple):
    """The rows that are open, by how they are filled in; of images also those that are dropped."""

    system: list[Ranked]
    said: list[Ranked]
    images: list[Ranked]
    rest: list[Ranked]


def _sorted_out(ranked: Sequence[Ranked]) -> _Kinds:
    kinds = _Kinds([], [], [], [])
    for row in ranked:  # thousands: one pass
        part = row.part
        if part == "images":
            kinds.images.append(row)
        elif row.reason:
            continue
        elif part == "system":
            kinds.system.append(row)
        elif row.candidate.message is not None:
            kinds.said.append(row)
        else:
            kinds.rest.append(row)
    return kinds


def _fill_whole(filler: Filler, placer: Placer, rows: Sequence[Ranked]) -> list[str]:
    tools = [row for row in rows if row.part == "tools"]
    rest = [row for row in rows if row.part != "tools"] if tools else rows
    warnings = placer.fill(rest)
    if tools:
        put_tools(filler, tools, int(filler.config.max_tokens * TOOLS_SHARE))
    filler.greedy(rest)
    return warnings


def _extras(rows: Sequence[Ranked]) -> list[str]:
    """Return the names of the sections that callers named, in the order of gathering."""
    named = [row for row in rows if row.part == "extra"]
    return list(dict.fromkeys(row.section for row in sorted(named, key=lambda row: row.candidate.rank)))


def _check_fixed(layout: Layout, config: ContextConfig, system: Sequence[Ranked]) -> list[str]:
    # exact with an additive tokenizer; `prove` counts the whole again in any case
    used = layout.size().total if layout.counter.additive else Rendered(*layout.render()).larger
    if used > config.max_tokens:
        raise BudgetError(used, config.max_tokens, layout.parts(), used)
    warnings, reserve = [], config.max_tokens - config.shared_limit
    if system and config.reserve_ratio > 0 and used > reserve:
        warnings.append(f"system instructions, Task and Output take {used} tokens, over the reserve of {reserve}")
    limit = config.budgets.get("system")
    if system and limit is not None and layout.block("Role & Policies", "items") > limit:
        taken = layout.block("Role & Policies", "items")
        warnings.append(f"system instructions take {taken} tokens, over their budget of {limit}; they are never cut")
    return warnings
