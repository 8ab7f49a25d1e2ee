"""The JSON Schema of a settings file, for editors: made from the rules that check the file, never kept by hand.

An editor sees names, types, bounds and defaults. What a schema cannot say (shares that sum to 1, files that have to be
there) only `load_settings` and `ctx-vector config check` find.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from ctx_vector.config import ContextConfig, field_schemas
from ctx_vector.rules import Rule
from ctx_vector.settings import AUDIT_RULES, MODEL_RULES, TOTAL_RULE
from ctx_vector.sources import SHARE_RULES, SOURCE_RULES, LayerShares, SourceConfig

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_ABOUT: Final = {
    "model": "The language model that reads the context.",
    "budget": "Tokens of a context, and the share of each layer; the shares and the buffer sum to at most 1.",
    "sources": "Where context comes from, by name.",
    "context": "How a context is built: the fields of ContextConfig.",
    "audit": "Where builds are recorded.",
    "base_dir": "The folder that paths begin in, relative to this file.",
}


def settings_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a settings file."""
    source = _closed(_schemas(SOURCE_RULES), SourceConfig)
    source["required"] = ["layer", "loader"]
    budget = _closed({"total": dict(TOTAL_RULE.schema), **_schemas(SHARE_RULES)}, LayerShares)
    sections = {
        "model": _closed(_schemas(MODEL_RULES)),
        "budget": budget,
        "sources": {"type": "object", "additionalProperties": source},
        "context": _closed({name: dict(schema) for name, schema in field_schemas().items()}, ContextConfig),
        "audit": _closed(_schemas(AUDIT_RULES)),
        "base_dir": {"type": "string"},
    }
    for name, about in _ABOUT.items():
        sections[name]["description"] = about
    return {"$schema": DIALECT, "title": "Settings of ctx_vector", **_closed(sections)}


def _schemas(rules: Mapping[str, Rule]) -> dict[str, dict[str, Any]]:
    return {name: dict(rule.schema) for name, rule in rules.items()}


def _closed(properties: dict[str, dict[str, Any]], of: type | None = None) -> dict[str, Any]:
    """Return the schema of a mapping with these keys and no others; `of` is a dataclass that has the defaults."""
    for item in fields(of) if of is not None else ():
        if item.name in properties and isinstance(item.default, (str, int, float, bool)):
            properties[item.name]["default"] = item.default
    return {"type": "object", "properties": properties, "additionalProperties": False}
