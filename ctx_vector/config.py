"""`ContextConfig`: every choice of a build, immutable and validated at once.

A field is checked by one rule in `_RULES`; `ContextConfig(...)` collects every violated rule and raises one ConfigError
that names each dotted field, the value and the bound.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.errors import ConfigError, InputError
from ctx_vector.rules import MOST_TOKENS as _MAX_TOKENS
from ctx_vector.rules import Rule, nearest, shown
from ctx_vector.rules import number as _number
from ctx_vector.rules import one_of as _one_of
from ctx_vector.rules import typed as _typed
from ctx_vector.tokenizer_kinds import DEFAULT_TOKENIZER, TOKENIZER_CHOICES
from ctx_vector.tokens import TokenCounter

PARTS: Final = ("system", "tools", "state", "extra", "evidence", "agents", "history", "memory", "general", "images")
FILLS: Final = ("skip", "stop")
LOCALES: Final = ("auto", "en", "zh")
HISTORY_STRATEGIES: Final = ("window", "head_tail", "importance", "summary", "budget")
EVIDENCE_STYLES: Final = ("plain", "numbered")
MESSAGES_STYLES: Final = ("single", "split")
TOOLS_IN: Final = ("text", "api")


def _strategy(value: Any) -> str | None:
    if callable(getattr(value, "score", None)):
        return None
    if isinstance(value, str) and value.strip():
        return None  # which names exist is known to scoring.py, which this module must not import
    return f"expected the name of a strategy or an object with score(query, candidates), got {shown(value)}"


def _tokenizer(value: Any) -> str | None:
    if hasattr(value, "count_messages"):
        return None
    try:
        TokenCounter(value)  # loads nothing
    except InputError:
        return f"expected one of {TOKENIZER_CHOICES}, got {shown(value)}"
    return None


def _rerank(value: Any) -> str | None:
    if value is None or isinstance(value, PurePath) or callable(getattr(value, "score", None)):
        return None
    if isinstance(value, str) and value.strip():
        return None  # as with strategies, rerank.py knows the names
    return (
        "expected late, the folder of a cross-encoder, the name of a plugin, an object with score(query, candidates), "
        f"or None, got {shown(value)}"
    )


_UNIT = _number(0, 1)
_COUNT = _number(0, _MAX_TOKENS, whole=True)
_RULES: Final[Mapping[str, Rule]] = {
    "max_tokens": _number(1, _MAX_TOKENS, whole=True),
    "reserve_ratio": _UNIT,
    "min_relevance": _UNIT,
    "enable_compression": _typed(bool, "True or False"),
    "recency_weight": _UNIT,
    "relevance_weight": _UNIT,
    "strategy": Rule(_strategy, {"type": "string"}),
    "rerank": Rule(_rerank, {"type": ["string", "null"]}),
    "rerank_depth": _number(1, 10_000, whole=True),
    "rerank_weight": _UNIT,
    "fill": _one_of(FILLS),
    "mmr_lambda": _number(0, 1, optional=True),
    "alike_limit": _number(1, _MAX_TOKENS, whole=True, optional=True),
    "history_limit": _COUNT,
    "history_relevance": _number(0, 1, optional=True),
    "history_strategy": _one_of(HISTORY_STRATEGIES),
    "history_head_keep": _COUNT,
    "history_tail_keep": _COUNT,
    "summary_keep_turns": _COUNT,
    "recency_decay": _number(0, 1e9),
    "recency_floor": _UNIT,
    "supersede_line": _number(0, 2, optional=True),
    "memory_limit": _number(0, _MAX_TOKENS, whole=True, optional=True),
    "memory_min_importance": _UNIT,
    "knowledge_limit": _COUNT,
    "knowledge_min_score": _UNIT,
    "evidence_style": _one_of(EVIDENCE_STYLES),
    "messages_style": _one_of(MESSAGES_STYLES),
    "locale": _one_of(LOCALES),
    "citations": _typed(bool, "True or False"),
    "versions": _typed(bool, "True or False"),
    "tools_in": _one_of(TOOLS_IN),
    "compress_encode": _typed(bool, "True or False"),
    "output_instructions": _typed((str, type(None)), "a str or None"),
    "reminder": _typed((str, type(None)), "a str or None"),
    "tokenizer": Rule(_tokenizer, {"type": "string"}),
    "source_timeout": _number(0.001, 1e6, optional=True),
}
_PART: Final = _one_of(PARTS)
_KIND: Final = _typed(str, "the name of a type")
#: Fields that are mappings: the rule for their keys, and for their values.
_MAPPING_RULES: Final[Mapping[str, tuple[Rule, Rule]]] = {
    "recency_decay_by_type": (_KIND, _number(0, 1e9)),
    "recency_floor_by_type": (_KIND, _UNIT),
    "budgets": (_PART, _number(0, _MAX_TOKENS, whole=True, optional=True)),
    "include": (_PART, _typed(bool, "True or False")),
}


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """Every choice of a build. Immutable; `config.with_(max_tokens=...)` makes another.

    Ratios, weights, floors and scores are in [0, 1], bounds included; the two weights sum to 1 within 1e-6; decay is
    per day; `supersede_line` is a likeness of two statements (newer.py); limits of tokens and items are integers.
    Raises ConfigError listing every wrong field.
    """

    max_tokens: int = 3000
    reserve_ratio: float = 0.2
    min_relevance: float = 0.1
    enable_compression: bool = True
    recency_weight: float = 0.3
    relevance_weight: float = 0.7
    strategy: Any = "cosine"
    rerank: Any = None
    rerank_depth: int = 30
    rerank_weight: float = 0.6
    fill: str = "skip"
    mmr_lambda: float | None = None
    alike_limit: int | None = 3
    history_limit: int = 5
    history_relevance: float | None = 0.6
    history_strategy: str = "window"
    history_head_keep: int = 2
    history_tail_keep: int = 6
    summary_keep_turns: int = 3
    recency_decay: float = 0.1
    recency_floor: float = 0.1
    recency_decay_by_type: Mapping[str, float] = field(
        default_factory=lambda: {"episodic": 0.01, "semantic": 0.0, "profile": 0.0}
    )
    recency_floor_by_type: Mapping[str, float] = field(default_factory=lambda: {"episodic": 0.7})
    supersede_line: float | None = 0.5
    memory_limit: int | None = 60
    memory_min_importance: float = 0.3
    knowledge_limit: int = 5
    knowledge_min_score: float = 0.3
    budgets: Mapping[str, int | None] = field(default_factory=dict)
    include: Mapping[str, bool] = field(default_factory=dict)
    shrink_order: tuple[str, ...] = ("evidence", "agents", "memory", "history", "tools", "state")
    evidence_style: str = "plain"
    messages_style: str = "single"
    citations: bool = False
    versions: bool = False
    tools_in: str = "text"
    compress_encode: bool = False
    reminder: str | None = None
    locale: str = "auto"
    output_instructions: str | None = None
    tokenizer: Any = DEFAULT_TOKENIZER
    source_timeout: float | None = 10.0

    if not TYPE_CHECKING:  # a type checker sees the fields

        def __new__(cls, *args: Any, **values: Any) -> ContextConfig:
            """Refuse names that are no fields with a ConfigError; Python's own TypeError suggests nothing."""
            if problems := _unknown_names(cls, values):
                raise ConfigError(problems)
            return object.__new__(cls)

    def __post_init__(self) -> None:
        problems = [f"{name}: {text}" for name, rule in _RULES.items() if (text := rule(getattr(self, name)))]
        weights = (self.recency_weight, self.relevance_weight)
        if not any(line.startswith(("recency_weight", "relevance_weight")) for line in problems):
            if abs(sum(weights) - 1) > 1e-6:
                problems.append(
                    f"recency_weight + relevance_weight: expected a sum of 1, got {weights[0]!r} + {weights[1]!r}"
                )
        problems += self._mapping_problems()
        if problems:
            raise ConfigError(problems)
        for name in ("recency_decay_by_type", "recency_floor_by_type", "budgets", "include"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        object.__setattr__(self, "shrink_order", tuple(self.shrink_order))
        if isinstance(self.rerank, PurePath):
            text = str(self.rerank)
            object.__setattr__(self, "rerank", text if "/" in text or "\\" in text else f"./{text}")

    def __reduce__(self) -> tuple[Any, ...]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        plain = {name: dict(value) if isinstance(value, MappingProxyType) else value for name, value in values.items()}
        return type(self).from_dict, (plain,)

    def _mapping_problems(self) -> list[str]:
        problems: list[str] = []
        for name, (key_rule, value_rule) in _MAPPING_RULES.items():
            given = getattr(self, name)
            if not isinstance(given, Mapping):
                problems.append(f"{name}: expected a mapping, got {shown(given)}")
                continue
            for key, value in given.items():
                if text := key_rule(key) or value_rule(value):
                    problems.append(f"{name}.{key}: {text}")
        if isinstance(self.include, Mapping) and self.include.get("system") is False:
            problems.append("include.system: expected True, got False; system instructions are always included")
        order: Any = self.shrink_order
        if not isinstance(order, (tuple, list)):
            problems.append(f"shrink_order: expected a sequence of parts, got {shown(order)}")
        else:
            problems += [f"shrink_order: {text}" for name in order if (text := _PART(name))]
            if "system" in order:
                problems.append("shrink_order: expected parts that may shrink, got 'system', which is never cut")
        return problems

    @classmethod
    def parts_8k(cls, **changes: Any) -> ContextConfig:
        """Return the preset for 8,000 tokens: system 1200, tools 1600, evidence 2400, history 2000."""
        budgets = {"system": 1200, "tools": 1600, "evidence": 2400, "history": 2000}
        return cls.from_dict({"max_tokens": 8000, "budgets": budgets, **changes})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ContextConfig:
        """Return a config from a mapping; unknown keys are errors that suggest the nearest name."""
        if not isinstance(values, Mapping):
            raise ConfigError([f"config: expected a mapping of fields, got {shown(values)}"])
        problems = _unknown_names(cls, values)
        names = {item.name for item in fields(cls)}
        known = {key: value for key, value in values.items() if key in names}
        try:
            config = cls(**known)
        except ConfigError as error:
            raise ConfigError([*problems, *error.problems]) from None
        if problems:
            raise ConfigError(problems)
        return config

    def with_(self, **changes: Any) -> ContextConfig:
        """Return a copy with these fields changed; unknown names are errors that suggest the nearest one."""
        return type(self).from_dict({**{item.name: getattr(self, item.name) for item in fields(self)}, **changes})

    @property
    def shared_limit(self) -> int:
        """Tokens that everything but the fixed parts and system instructions may use together."""
        return int(self.max_tokens * (1 - self.reserve_ratio))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; a strategy or tokenizer object is named by its type."""
        shown = {item.name: getattr(self, item.name) for item in fields(self)}
        for name, value in shown.items():
            if isinstance(value, Mapping):
                shown[name] = dict(value)
            elif isinstance(value, tuple):
                shown[name] = list(value)
            elif not isinstance(value, (str, int, float, bool, type(None))):
                known = getattr(value, "name", None) or getattr(value, "__qualname__", None)
                shown[name] = str(known or type(value).__qualname__)
        return shown

    def changes(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, with their values in `to_dict`."""
        default, own = type(self)().to_dict(), self.to_dict()
        return {name: value for name, value in own.items() if value != default[name]}

    @property
    def hash(self) -> str:
        """A digest of all fields (16 hex digits), the same in every process; equal configs have equal digests."""
        canonical = json.dumps(_as_floats(self.to_dict()), sort_keys=True)
        return hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest()

    def __hash__(self) -> int:  # the mappings among the fields have none
        return hash(self.hash)


def _unknown_names(config: type[ContextConfig], values: Mapping[str, Any]) -> list[str]:
    """Return a problem for each key that is no field, with the nearest name."""
    names = [item.name for item in fields(config)]
    return [f"{key}: unknown field{nearest(key, names)}" for key in values if key not in names]


def _as_floats(value: Any) -> Any:
    """Return `value` with its numbers as floats, so that 1 and 1.0, which are equal, are written alike."""
    if isinstance(value, dict):
        return {key: _as_floats(item) for key, item in value.items()}
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def field_schemas() -> dict[str, Mapping[str, Any]]:
    """Return the JSON Schema of every field, made from the rules that check it."""
    part = dict(_PART.schema)
    schemas: dict[str, Mapping[str, Any]] = {name: rule.schema for name, rule in _RULES.items()}
    for name, (keys, values) in _MAPPING_RULES.items():
        schemas[name] = {"type": "object", "propertyNames": dict(keys.schema), "additionalProperties": values.schema}
    schemas["shrink_order"] = {"type": "array", "items": part}
    return schemas
