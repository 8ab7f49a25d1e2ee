"""Where context comes from, as data: a source with its layer and limits, and how a context is shared among layers.

    SourceConfig("faq", layer="static", loader="yaml:faq.yaml", max_share=0.5)
    LayerShares.from_mapping({"dynamic": 0.45, "memory": 0.05})

Nothing here loads or counts anything: `live_sources.py` asks the sources, and the quotas are worked out elsewhere. Both
classes are frozen and checked at once; a ConfigError lists every problem by its dotted path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from ctx_vector.errors import ConfigError, InputError
from ctx_vector.packets import TYPE_AGENT, TYPE_MEMORY, TYPE_SYSTEM
from ctx_vector.rules import MOST_TOKENS, Rule, nearest, number, one_of, shown, typed
from ctx_vector.values import as_utc

#: Layers, in the order of their authority; memory and agents share that of dynamic unless they are given a share.
LAYERS: Final = ("system", "static", "dynamic", "tool", "memory", "agents")
#: The type that the packets of a layer get.
LAYER_KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "system": TYPE_SYSTEM,
        "static": "knowledge",
        "dynamic": "knowledge",
        "tool": "tool_result",
        "memory": TYPE_MEMORY,
        "agents": TYPE_AGENT,
    }
)
DEGRADES: Final = ("extract", "summarise", "drop")
LOADER_KINDS: Final = ("yaml", "text", "kb", "memory", "session", "python")
SHARED: Final = "shared"
#: Names of what the caller of a build gives; a source cannot have them.
RESERVED_NAMES: Final = ("custom", "documents", "history", "tools", "tool_results", "agent_outputs", "images")

_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(s|min|m|h|d|w)", re.I)
_UNITS: Final = {"s": "seconds", "m": "minutes", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LONGEST: Final = timedelta(days=365_000)


def _one_line(what: str, *, optional: bool = False) -> Rule:
    def check(value: Any) -> str | None:
        if value is None and optional:
            return None
        if isinstance(value, str) and value.strip() and value.isprintable() and len(value) <= 200:
            return None
        return f"expected {what}, on one line{' or None' if optional else ''}, got {shown(value)}"

    return Rule(check, {"type": ["string", "null"] if optional else "string", "maxLength": 200})


def _loader(value: Any) -> str | None:
    if not isinstance(value, str):
        good = callable(value) or callable(getattr(value, "load", None))
        return None if good else f"expected a function, an object with load(request), or a text, got {shown(value)}"
    kind, colon, rest = value.partition(":")
    if kind not in LOADER_KINDS or not colon:
        choices = ", ".join(f"{name}:" for name in LOADER_KINDS)
        return f"expected one of {choices} and what follows it, got {shown(value)}{nearest(kind, LOADER_KINDS)}"
    if kind == "session":
        return f"expected nothing after session:, got {shown(value)}" if rest.strip() else None
    if not rest.strip() or not rest.isprintable():
        what = "module.function" if kind == "python" else "a path"
        return f"expected {kind}: and {what}, got {shown(value)}"
    if kind == "python" and not (re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", rest)):
        return f"expected python:module.function, got {shown(value)}"
    return None


def _args(value: Any) -> str | None:
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return None
    return f"expected a mapping of names to values, got {shown(value)}"


def _version(value: Any) -> str | None:
    if value is None or (isinstance(value, (int, float, date)) and not isinstance(value, bool)):
        return None
    return _one_line("a version")(value)


def _expires(value: Any) -> str | None:
    try:
        read_expiry(value)
    except InputError as error:
        return str(error)
    return None


_SHARE: Final = number(0, 1)
_TOKENS: Final = number(1, MOST_TOKENS, whole=True, optional=True)
#: The rule for every field of a source but its name; `settings` and the JSON Schema are made from it.
SOURCE_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "layer": one_of(LAYERS),
        "loader": Rule(_loader, {"type": "string", "pattern": f"^({'|'.join(LOADER_KINDS)}):"}),
        "args": Rule(_args, {"type": "object"}),
        "priority": number(-1_000_000, 1_000_000),
        "top_k": number(1, 100_000, whole=True, optional=True),
        "score_threshold": number(0, 1, optional=True),
        "max_tokens": _TOKENS,
        "min_share": _SHARE,
        "max_share": _SHARE,
        "enabled": typed(bool, "True or False"),
        "scope": _one_line("the name of a scope"),
        "timeout": number(0.001, 1e6, optional=True),
        "expires": Rule(_expires, {"type": ["string", "number", "null"]}),
        "authoritative": typed(bool, "True or False"),
        "degrade": one_of(DEGRADES),
        "version": Rule(_version, {"type": ["string", "number", "null"]}),
        "title": _one_line("a title", optional=True),
    }
)
_NAME: Final = _one_line("a name")


def read_expiry(value: Any) -> datetime | timedelta | None:
    """Return when something expires, as aware UTC, or after how long, from a date, a timedelta, a number of seconds, or
    a text: an ISO 8601 date, or a duration such as ``90s``, ``15min``, ``12h``, ``30d``, ``2w``.

    Raises InputError naming the value. A date is its midnight, local time: on that day it has expired.
    """
    given = value
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        value = timedelta(**{_UNITS[match[2].lower()]: float(match[1])}) if len(match[1]) <= 9 else None
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        value = timedelta(seconds=value) if 0 < value < _LONGEST.total_seconds() else None
    if isinstance(value, timedelta) and timedelta() < value <= _LONGEST:
        return value
    if given is None:
        return None
    if isinstance(value, (str, date)):
        try:
            return as_utc(value)
        except InputError:
            pass
    raise InputError(f"expected a date, or a duration such as 12h or 30d, got {shown(given)}")


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """One source of context, and how much of it there may be.

    `loader` is a function of the request, an object with `load(request)`, or a text such as ``yaml:faq.yaml``,
    ``kb:kb`` or ``python:module.function``; `args` go to it. `priority`: smaller comes first inside the layer;
    `authoritative` goes to the layer's end. `top_k` and `score_threshold` (a relevance in [0, 1]) are those of the
    search, and for other loaders choose among what they give. `max_tokens` caps what is used of it, `min_share` and
    `max_share` do as fractions of the layer's cap. `degrade` is what happens when it does not fit: `extract`,
    `summarise` or `drop`.

    `timeout` is in seconds, None waits for ever. `expires` is a date, or a duration (`12h`, `30d`) from the time of the
    content. `version` is that of its packets, unless they have one of their own. `scope` names who may see it.

    Raises ConfigError listing every wrong field as ``sources.NAME.field: ...``.
    """

    name: str
    layer: str
    loader: Any
    args: Mapping[str, Any] = field(default_factory=dict)
    priority: float = 0
    top_k: int | None = None
    score_threshold: float | None = None
    max_tokens: int | None = None
    min_share: float = 0.0
    max_share: float = 1.0
    enabled: bool = True
    scope: str = SHARED
    timeout: float | None = 10.0
    expires: Any = None
    authoritative: bool = False
    degrade: str = "extract"
    version: str | None = None
    title: str | None = None

    def __post_init__(self) -> None:
        label = f"sources.{self.name if _NAME(self.name) is None else '?'}"
        problems = [f"{label}.name: {text}"] if (text := _NAME(self.name)) else []
        if self.name in RESERVED_NAMES:
            problems.append(f"{label}.name: expected another name than {', '.join(RESERVED_NAMES)}, got {self.name!r}")
        wrong = {key: text for key, rule in SOURCE_RULES.items() if (text := rule(getattr(self, key)))}
        problems += [f"{label}.{key}: {text}" for key, text in wrong.items()]
        if not {"min_share", "max_share"} & set(wrong) and self.min_share > self.max_share:
            problems.append(f"{label}.min_share: expected <= max_share ({self.max_share:g}), got {self.min_share:g}")
        if problems:
            raise ConfigError(problems)
        object.__setattr__(self, "args", MappingProxyType(dict(self.args)))
        object.__setattr__(self, "version", version_text(self.version))

    def __reduce__(self) -> tuple[Any, ...]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return _made, (type(self), {**values, "args": dict(self.args)})

    @property
    def kind(self) -> str:
        """The type that its packets get."""
        return LAYER_KINDS[self.layer]

    @classmethod
    def from_dict(cls, name: str, values: Mapping[str, Any]) -> SourceConfig:
        """Return a source from a mapping of its fields; unknown keys are errors that suggest the nearest name."""
        path = f"sources.{name}"
        if not isinstance(values, Mapping):
            raise ConfigError([f"{path}: expected a mapping of fields, got {shown(values)}"])
        problems = [
            f"{path}.{key}: unknown field{nearest(key, SOURCE_RULES)}" for key in values if key not in SOURCE_RULES
        ]
        missing = [key for key in ("layer", "loader") if key not in values]
        problems += [f"{path}.{key}: missing; {_needed(key)}" for key in missing]
        known = {key: value for key, value in values.items() if key in SOURCE_RULES}
        try:
            made = cls(name, **{"layer": "static", "loader": "session:", **known})
        except ConfigError as error:
            raise ConfigError([*problems, *error.problems]) from None
        if problems:
            raise ConfigError(problems)
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; a loader that is no text is named."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        found["args"] = dict(self.args)
        if not isinstance(self.loader, str):
            found["loader"] = str(getattr(self.loader, "__qualname__", None) or type(self.loader).__qualname__)
        if self.expires is not None and not isinstance(self.expires, (str, int, float)):
            found["expires"] = str(self.expires)
        return found


def _made(cls: type[SourceConfig], values: Mapping[str, Any]) -> SourceConfig:
    return cls(**values)


def _needed(key: str) -> str:
    return f"one of {', '.join(LAYERS)}" if key == "layer" else "such as yaml:faq.yaml, text:rules.md or kb:kb"


def version_text(value: Any) -> str | None:
    """Return a version as its text: a date in ISO 8601, numbers as they are written; None for none."""
    if value is None:
        return None
    return value.isoformat() if isinstance(value, date) else str(value).strip() or None


def check_sources(sources: Sequence[SourceConfig], scope: str | None = None) -> list[str]:
    """Return what is wrong with sources together: names that come twice, minimal shares over a whole layer, and with
    `scope` every source of another one, as problems for a ConfigError.
    """
    problems: list[str] = []
    seen: set[str] = set()
    least: dict[str, float] = {}
    for source in sources:
        if source.name in seen:
            problems.append(f"sources.{source.name}: there are two sources of this name; rename one")
        seen.add(source.name)
        if source.enabled:
            least[source.layer] = least.get(source.layer, 0.0) + source.min_share
        if scope is not None and source.scope not in (scope, SHARED):
            problems.append(f"sources.{source.name}.scope: expected {scope} or {SHARED}, got {source.scope}")
    for layer, total in least.items():
        if total > 1 + 1e-9:
            problems.append(f"sources: expected min_share to sum to at most 1 in layer {layer}, got {total:g}")
    return problems


@dataclass(frozen=True, slots=True)
class LayerShares:
    """The share of each layer, as fractions of what Task, Output and headers leave; `buffer` is never filled.

    `memory` and `agents` are None unless they are given a share: then they belong to dynamic. The shares and the buffer
    sum to at most 1. Raises ConfigError listing every problem.
    """

    system: float = 0.1
    static: float = 0.2
    dynamic: float = 0.5
    tool: float = 0.15
    memory: float | None = None
    agents: float | None = None
    buffer: float = 0.05

    def __post_init__(self) -> None:
        problems = [f"{name}: {text}" for name, rule in SHARE_RULES.items() if (text := rule(getattr(self, name)))]
        if not problems:
            given = self.to_dict()
            if (total := sum(given.values())) > 1 + 1e-9:
                parts = " + ".join(f"{name} {share:g}" for name, share in given.items())
                problems.append(f"expected shares that sum to at most 1, got {total:g} ({parts})")
        if problems:
            raise ConfigError(problems)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], path: str = "budget_ratio") -> LayerShares:
        """Return the shares of a mapping; what is left out has its default. Problems are named under `path`."""
        if not isinstance(values, Mapping):
            raise ConfigError([f"{path}: expected a mapping of layers to shares, got {shown(values)}"])
        problems = [
            f"{path}.{key}: unknown layer{nearest(key, SHARE_RULES)}" for key in values if key not in SHARE_RULES
        ]
        try:
            made = cls(**{key: value for key, value in values.items() if key in SHARE_RULES})
        except ConfigError as error:
            named = [f"{path}{': ' if line.startswith('expected') else '.'}{line}" for line in error.problems]
            raise ConfigError([*problems, *named]) from None
        if problems:
            raise ConfigError(problems)
        return made

    def to_dict(self) -> dict[str, float]:
        """Return the shares that are given, the buffer included."""
        shares = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: share for name, share in shares.items() if share is not None}

    def owner(self, layer: str) -> str:
        """Return the layer whose share a layer uses: dynamic for memory and agents without one of their own."""
        return layer if getattr(self, layer) is not None else "dynamic"


#: The rule for every share; the JSON Schema is made from it.
SHARE_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **{name: number(0, 1, optional=name in ("memory", "agents")) for name in LAYERS},
        "buffer": _SHARE,
    }
)


def scopes_of(value: Any) -> list[str]:
    """Return the scopes that a packet's metadata names: none, one, or several."""
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, (list, tuple, set, frozenset)) else [str(value)]
