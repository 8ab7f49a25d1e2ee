"""What each layer and each source of a build may take, in tokens. Pure arithmetic: nothing is filled here.

    Layers          shares of the layers, limits of their sources, titles: the same for all builds of a builder
    allocate        Layers, what each source wants, the total -> Allocation

A layer that wants less than its share leaves the rest to the others, in proportion to their shares. Inside a layer
each source has its minimum set aside, and no source goes over its maximum; both are fractions of what the layer could
take if its sources had no limits of their own. The system layer is never cut: what it takes over its share is missing
from the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ctx_vector.sources import LAYERS, LayerShares, SourceConfig

if TYPE_CHECKING:
    from ctx_vector.ranked import Ranked


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds one source: fractions of its layer's cap, tokens, what becomes of what does not fit, and for what was
    not found by a search already the number of items and the least relevance.
    """

    min_share: float = 0.0
    max_share: float = 1.0
    max_tokens: int | None = None
    degrade: str = "summarise"
    top_k: int | None = None
    score_threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a builder: their shares, the limits of the sources by name, and titles that replace ours."""

    shares: LayerShares
    sources: Mapping[str, Limits] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, shares: LayerShares, configs: Iterable[SourceConfig]) -> Layers:
        """Return the layers of these sources; of several titles in a layer the first counts."""
        limits: dict[str, Limits] = {}
        titles: dict[str, str] = {}
        for config in configs:
            searched = isinstance(config.loader, str) and config.loader.startswith(("kb:", "memory:"))
            limits[config.name] = Limits(
                config.min_share,
                config.max_share,
                config.max_tokens,
                config.degrade,
                None if searched else config.top_k,
                None if searched else config.score_threshold,
            )
            if config.title and config.enabled:
                titles.setdefault(config.layer, config.title)
        return cls(shares, limits, titles)

    def bound(self, rows: Iterable[Ranked]) -> None:
        """Drop what is under its source's `score_threshold` or beyond its `top_k`; rows come best first."""
        counts: dict[str, int] = {}
        for row in rows:
            name = row.candidate.source
            limits = self.sources.get(name)
            if row.reason or limits is None or row.part == "system":
                continue
            least, most = limits.score_threshold, limits.top_k
            if least is not None and row.relevance < least:
                row.drop("below_floor", f"relevance {row.relevance:.3f} < score_threshold {least:g} of {name}")
            elif most is not None and counts.get(name, 0) >= most:
                row.drop("quota", f"over top_k {most} of {name}")
            else:
                counts[name] = counts.get(name, 0) + 1

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values, from which `from_dict` makes the same."""
        return {
            "shares": self.shares.to_dict(),
            "sources": {name: asdict(limits) for name, limits in self.sources.items()},
            "titles": dict(self.titles),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Layers:
        """Return what `to_dict` was made from."""
        limits = {name: Limits(**given) for name, given in values["sources"].items()}
        return cls(LayerShares.from_mapping(values["shares"]), limits, dict(values["titles"]))


@dataclass(frozen=True, slots=True)
class LayerCap:
    """Tokens of one layer: its share, what it wants, and what it may take: its share less or more what flowed."""

    share: int
    wanted: int
    cap: int


@dataclass(frozen=True, slots=True)
class SourceCap:
    """Tokens of one source: what it wants, what is set aside for it, the most it may take, and what becomes of it:
    `keep` when all of it fits, else how it degrades.
    """

    layer: str
    wanted: int
    least: int
    most: int
    action: str


@dataclass(frozen=True, slots=True)
class Allocation:
    """What every layer and source of a build may take, in tokens; `total` is what the layers share, buffer included."""

    total: int
    layers: Mapping[str, LayerCap]
    sources: Mapping[str, SourceCap]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "total": self.total,
            "layers": {name: asdict(cap) for name, cap in self.layers.items()},
            "sources": {name: asdict(cap) for name, cap in self.sources.items()},
        }


def allocate(wanted: Mapping[str, Mapping[str, int]], layers: Layers, total: int) -> Allocation:
    """Return what every layer and source may take of `total` tokens.

    `wanted` maps a layer to what its sources want in tokens; a source that `layers` does not know has no limits of its
    own. Layers without a share are part of dynamic.

    With shares static 0.2 and dynamic 0.5 of 1,000 (buffer 0.05, the rest unused), static wanting 50 and dynamic 2,000:
    static gets 50, and dynamic 900.
    """
    shares = layers.shares
    names: list[str] = [name for name in LAYERS if shares.owner(name) == name]
    share = {name: int(total * float(getattr(shares, name) or 0)) for name in names}
    pool = int(total * (1 - shares.buffer))

    limits = layers.sources
    plain = {
        layer: {name: min(want, limits.get(name, Limits()).max_tokens or want) for name, want in sources.items()}
        for layer, sources in wanted.items()
    }
    caps = _flow(_sums(plain, shares, names), share, pool)
    found: dict[str, SourceCap] = {}
    owners: dict[str, set[str]] = {}
    for layer, sources in wanted.items():
        for name, want in sources.items():
            own, cap = limits.get(name, Limits()), caps[shares.owner(layer)]
            high = min(int(own.max_share * cap), own.max_tokens or cap)
            low = min(int(own.min_share * cap), high, want)
            caught = SourceCap(layer, want, low, high, "keep" if want <= high else own.degrade)
            once = shares.owner(layer) in owners.setdefault(name, set())
            found[name] = _both(found[name], caught, once=once) if name in found else caught
            owners[name].add(shares.owner(layer))
            if own.max_share < 1:
                plain[layer][name] = min(want, high)
    wants = _sums(plain, shares, names)
    caps = _flow(wants, share, pool)  # anew, with what the sources may take of it
    return Allocation(total, {name: LayerCap(share[name], wants[name], caps[name]) for name in names}, found)


def _both(first: SourceCap, other: SourceCap, *, once: bool) -> SourceCap:
    """Return the caps of a source that stands in two layers; `once`: they draw on one share."""
    action = first.action if first.action != "keep" else other.action
    most = first.most + (0 if once else other.most)
    return SourceCap(first.layer, first.wanted + other.wanted, first.least + other.least, most, action)


def _sums(wanted: Mapping[str, Mapping[str, int]], shares: LayerShares, names: Sequence[str]) -> dict[str, int]:
    sums = dict.fromkeys(names, 0)
    for layer, sources in wanted.items():
        sums[shares.owner(layer)] += sum(sources.values())
    return sums


def _flow(wants: Mapping[str, int], share: Mapping[str, int], pool: int) -> dict[str, int]:
    """Return what each layer may take of the pool: water finds its level, system first."""
    caps = {name: min(wants[name], share[name]) for name in wants}
    caps["system"] = min(wants["system"], pool)  # never cut
    while sum(caps.values()) > pool:  # the system layer took what was meant for others
        over = sum(caps.values()) - pool
        largest = max((name for name in caps if name != "system"), key=lambda name: caps[name])
        caps[largest] -= min(over, max(1, caps[largest] // 2))
    while (left := pool - sum(caps.values())) > 0:
        open_ = [name for name in caps if caps[name] < wants[name]]
        if not open_:
            break
        weight = sum(share[name] for name in open_)
        for name in open_:
            part = left * share[name] // weight if weight else left // len(open_)
            caps[name] += min(part, wants[name] - caps[name])
        if pool - sum(caps.values()) == left:  # what no proportion divides any more
            caps[open_[0]] += min(left, wants[open_[0]] - caps[open_[0]])
    spare = pool - sum(caps.values())  # nobody wants it now; an estimate may have been too low
    for name in caps:
        caps[name] = max(caps[name], min(share[name], caps[name] + spare))
        spare = pool - sum(caps.values())
    return caps
