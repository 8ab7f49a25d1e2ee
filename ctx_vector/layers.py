"""Filling by layers: each layer up to its share and what flowed to it from layers that used less.

    what remains    `max_tokens` less Task, Output and headers; a share of it (the buffer) is never filled
    allocate        what each layer and source wants -> what it may take
    fill            system, static, tool, memory and agents in the order of their sources, dynamic by relevance

What each may take is worked out before (allocation.py). What a source gives beyond that degrades: the best item that
does not fit is shortened (`extract`, `summarise`), and the others are dropped whole. What the system layer takes over
its share is a warning.

Quotas bound what the items take, with their labels and joiners; the title of a layer counts for its layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ctx_vector.allocation import Allocation, Layers, Limits, allocate
from ctx_vector.layout import CONTEXT, EVIDENCE, OUTPUT, ROLE, TASK, Piece
from ctx_vector.tool_rows import put_tools

if TYPE_CHECKING:
    from ctx_vector.placing import Placer
    from ctx_vector.ranked import Ranked
    from ctx_vector.select import Filler

_SLOTS: Final[Mapping[tuple[str, str], str]] = {
    (ROLE, "items"): "system",
    (ROLE, "tools"): "tool",
    (EVIDENCE, "static"): "static",
    (EVIDENCE, "tool"): "tool",
    (EVIDENCE, "agents"): "agents",
    (CONTEXT, "memory"): "memory",
}
#: The order in which layers are filled, and in which what is left over in the end is offered again.
_ORDER: Final = ("static", "tool", "agents", "memory", "dynamic")


def layer_of(section: str, group: str) -> str:
    """Return the layer that a slot belongs to: dynamic, unless it has one of its own."""
    return _SLOTS.get((section, group), "dynamic")


class LayerFiller:
    """Fills one layout by layers. `rows` are all that is open but system instructions and history, best first."""

    def __init__(self, filler: Filler, placer: Placer, rows: Sequence[Ranked], layers: Layers) -> None:
        self.filler = filler
        self.placer = placer
        self.layers = layers
        self.rows: dict[str, list[Ranked]] = {}
        for row in rows:
            self.rows.setdefault(self._owner(row), []).append(row)
        self._costs: dict[int, int] = {}  # by row
        self._taken: dict[str, int] = {}  # tokens by source, with what joins its rows
        self._kept_back: set[str] = set()  # sources whose minimum nobody else may take
        self.allocation = allocate(self._wanted(rows), layers, self._total())

    def fill(self) -> list[str]:
        """Fill all layers; return warnings."""
        warnings = self._check_system()
        dynamic = self.allocation.layers["dynamic"].cap
        self.placer.limit(dynamic)
        with self.filler.within(lambda: dynamic - self._used("dynamic")):
            warnings += self.placer.fill(())
        for layer in _ORDER:
            self._fill_layer(layer, self.allocation.layers[layer].cap if layer in self.allocation.layers else 0)
        for layer in reversed(_ORDER):  # dynamic first: what whole items left over
            tools = [row for row in self.rows.get(layer, ()) if row.candidate.tool is not None]
            if any(row.piece is None for row in tools) and (left := self._left()) > 0:
                put_tools(self.filler, tools, left + self.filler.layout.block(ROLE, "tools"))
            again = [row for row in self.rows.get(layer, ()) if row.reason == "quota" and row.candidate.tool is None]
            if again and (left := self._left()) > 0:
                self._again(layer, again, left)
        self._settle()
        return warnings

    # -- what there is ------------------------------------------------------------------------------------------------

    def _owner(self, row: Ranked) -> str:
        return self.layers.shares.owner(layer_of(row.section, row.group))

    def _total(self) -> int:
        """Return what the layers share: the limit less Task, Output and the headers of the sections in use."""
        layout = self.filler.layout
        used = {row.section for rows in self.rows.values() for row in rows}
        if self.placer.history.order:
            used.add(CONTEXT)
        system = layout.block(ROLE, "items")
        headers = sum(layout.header(name) for name in used | ({ROLE} if system else set()))
        bare = layout.size().total - system - (layout.header(ROLE) if system else 0)
        return max(0, self.filler.config.max_tokens - bare - headers)

    def _pool(self) -> int:
        return int(self.allocation.total * (1 - self.layers.shares.buffer))

    def _left(self) -> int:
        """Return what no layer has taken of the pool."""
        return self._pool() - sum(self._used(name) for name in self.allocation.layers)

    def _wanted(self, rows: Sequence[Ranked]) -> dict[str, dict[str, int]]:
        """Return what each source wants, by layer; the system layer is in already."""
        wanted: dict[str, dict[str, int]] = {"system": {"system": self.filler.layout.block(ROLE, "items")}}
        for row in rows:
            layer = wanted.setdefault(layer_of(row.section, row.group), {})
            layer[row.candidate.source] = layer.get(row.candidate.source, self._title(row)) + self._cost(row)
        if self.placer.history.order:
            wanted.setdefault("dynamic", {})["history"] = self.placer.wanted()
        return wanted

    def _cost(self, row: Ranked) -> int:
        """Return the tokens of a whole row, with what joins it; of one that is far too long no more than the limit."""
        cost = self._costs.get(id(row))
        if cost is None:
            most = self.filler.config.max_tokens
            cost = most if len(row.body) > most * 128 else self._size(row, self.filler.piece(row))
            self._costs[id(row)] = cost
        return cost

    def _size(self, row: Ranked, piece: Piece) -> int:
        joiner = self.filler.layout.joiner(row.section, row.group, piece)
        return max(piece.tokens, piece.message_tokens) + joiner

    def _title(self, row: Ranked) -> int:
        return self.filler.layout.title_of(row.section, row.group)

    def _used(self, layer: str) -> int:
        layout, owner = self.filler.layout, self.layers.shares.owner
        slots = [slot for slot in layout.groups() if slot[0] not in (TASK, OUTPUT)]  # charged before the layers
        return sum(layout.block(*slot) for slot in slots if owner(layer_of(*slot)) == layer)

    def _held(self, row: Ranked) -> int:
        """Return the tokens that the rows of a row's source take already."""
        return self._taken.get(row.candidate.source, 0)

    def _hold(self, row: Ranked, piece: Piece) -> None:
        self._taken[row.candidate.source] = self._held(row) + self._size(row, piece)

    def _settle(self) -> None:
        """Raise the most of a source without limits of its own by what it got of what whole items left over."""
        given, taken = self.allocation, dict.fromkeys(self.allocation.sources, 0)
        for row in itertools.chain.from_iterable(self.rows.values()):
            if row.piece is not None:
                taken[row.candidate.source] += self._size(row, row.piece)
        sources = {name: replace(cap, most=max(cap.most, taken[name])) for name, cap in given.sources.items()}
        self.allocation = Allocation(given.total, given.layers, sources)

    def _check_system(self) -> list[str]:
        system = self.allocation.layers["system"]
        if system.wanted <= system.share:
            return []
        return [f"the system layer takes {system.wanted} tokens, over its share of {system.share}; it is never cut"]

    # -- filling ------------------------------------------------------------------------------------------------------

    def _fill_layer(self, layer: str, cap: int) -> None:
        rows = self.rows.get(layer, [])
        tools = [row for row in rows if row.candidate.tool is not None]
        if tools:
            put_tools(self.filler, tools, cap - self._used(layer))
        rest = [row for row in rows if row.candidate.tool is None]
        if layer != "dynamic":
            rest.sort(key=lambda row: (row.candidate.standing[1], row.candidate.rank))
        with self.filler.within(lambda: cap - self._used(layer)):
            for row in rest:  # what is set aside for each source comes first
                if self._least(row) > self._held(row):
                    self._put(row, self._least(row))
            open_ = [row for row in rest if row.piece is None and row.reason != "duplicate"]
            self._kept_back = {row.candidate.source for row in open_ if self._least(row) > self._held(row)}
            for source in dict.fromkeys(row.candidate.source for row in open_) if layer != "dynamic" else (None,):
                self._fill_rows([row for row in open_ if source is None or row.candidate.source == source], layer)
            self._kept_back = set()

    def _fill_rows(self, rows: Sequence[Ranked], layer: str) -> None:
        """Take rows in order while their source and layer have room; then shorten the first of each source that had
        none, once, as the source says.
        """
        left: list[Ranked] = []
        for row in rows:
            stopped = left and self.filler.config.fill == "stop"
            if (stopped or not self._put(row, self._most(row))) and row.reason != "duplicate":
                if not row.reason:
                    row.drop("quota", f"over what {row.candidate.source} may take of layer {layer}")
                left.append(row)
        seen: set[str] = set()
        for row in left:
            if row.candidate.source not in seen and not self.filler.drop_twin(row):
                seen.add(row.candidate.source)
                self._shorten(row)

    def _shorten(self, row: Ranked) -> None:
        degrade = self.layers.sources.get(row.candidate.source, Limits()).degrade
        if degrade == "drop":
            return
        row.reason, detail = "", row.detail
        with self.filler.within(self._own_room(row), *self._others(row)):
            self.filler.shorten(row, summarise=degrade == "summarise")
        if row.piece is None and row.reason != "oversize":
            row.reason, row.detail = "quota", detail
        elif row.piece is not None:
            row.detail = ""
            self._hold(row, row.piece)

    def _put(self, row: Ranked, most: int) -> bool:
        if self._held(row) + self._cost(row) > most:
            return False
        with self.filler.within(*self._others(row)):
            if not self.filler.keep_if_it_fits(row):
                return False
        self._taken[row.candidate.source] = self._held(row) + self._cost(row)
        return True

    def _others(self, row: Ranked) -> list[Callable[[], int]]:
        """Return a bound that keeps back what is set aside for other sources and not theirs yet; none if nothing is."""
        limits, own, owner = self.allocation.sources, row.candidate.source, self._owner(row)
        aside = sum(max(0, limits[name].least - self._taken.get(name, 0)) for name in self._kept_back - {own})
        if not aside:
            return []
        cap = self.allocation.layers[owner].cap
        return [lambda: cap - self._used(owner) - aside]

    def _own_room(self, row: Ranked) -> Callable[[], int]:
        """Return what is left for a row of its own source, once it is in."""
        owner, left = self._owner(row), self._most(row) - self._held(row)
        before = self._used(owner)
        return lambda: left - (self._used(owner) - before)

    def _least(self, row: Ranked) -> int:
        cap = self.allocation.sources.get(row.candidate.source)
        return cap.least if cap is not None else 0

    def _most(self, row: Ranked) -> int:
        limits = self.layers.sources.get(row.candidate.source, Limits())
        if limits.max_share < 1:
            return self.allocation.sources[row.candidate.source].most
        return self.allocation.total if limits.max_tokens is None else limits.max_tokens

    def _again(self, layer: str, rows: Sequence[Ranked], left: int) -> None:
        before = self._used(layer)
        for row in rows:
            row.reopen()
        with self.filler.within(lambda: left - (self._used(layer) - before)):
            self._fill_rows(rows, layer)
