"""Going through a JSON Schema: its subschemas, what is required where, and where its references lead.

Keywords are told from data: a property may be called `properties`, and what stands in `enum` is no schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

Schema = dict[str, Any]


class Place(NamedTuple):
    """Where a schema object stands: under an optional parameter or not, the names that are required there of the value,
    and whether bounds on the value may go.
    """

    optional: bool = False
    needed: frozenset[str] = frozenset()
    bounds: bool = True


_WHOLE: Final = Place()
#: From a copy of a schema object, and where it stands, to what takes its place.
Edit = Callable[[Schema, Place], Schema]

SAME_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
SINGLE: Final = (
    "items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "contains",
    "propertyNames", "not", "if", "then", "else", "contentSchema",
)  # fmt: skip
DEFINITIONS: Final = ("$defs", "definitions")
CHOICES: Final = ("oneOf", "not", "if", "contains")


# -- subschemas -------------------------------------------------------------------------------------------------


def mapped(schema: Any, edit: Edit, place: Place = _WHOLE, *, frozen: bool = False) -> Any:
    """Return a copy of a schema with `edit` done to every schema object in it, from the outside to the inside.

    `place` is that of the schema itself; `frozen` says that definitions may be used where bounds must stay.
    """
    if not isinstance(schema, dict):
        return schema
    place = place._replace(needed=place.needed | _required(schema))
    optional, needed, bounds = place
    node = edit(dict(schema), place)

    def inner(key: str, value: Any, optional: bool) -> Any:
        around = needed if key in SAME_PLACE else frozenset[str]()
        may_go = bounds and key not in CHOICES and not (frozen and key in DEFINITIONS)
        return mapped(value, edit, Place(optional, around, may_go), frozen=frozen)

    for key, value in node.items():
        if key in MAPS and isinstance(value, dict):
            node[key] = {
                name: inner(key, item, key not in DEFINITIONS and (optional or _is_optional(key, name, needed)))
                for name, item in value.items()
            }
        elif key in LISTS and isinstance(value, list):
            node[key] = [inner(key, item, optional) for item in value]
        elif key in SINGLE:
            node[key] = inner(key, value, optional)
    return node


def _is_optional(key: str, name: str, needed: frozenset[str]) -> bool:
    return key in ("properties", "patternProperties") and name not in needed


def _required(schema: Any) -> frozenset[str]:
    """Return the names that a schema requires of its value, in any of its branches."""
    if not isinstance(schema, dict):
        return frozenset()
    listed = schema.get("required")
    names = {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else set()
    for value in _values(schema.get("dependentRequired")) + _values(schema.get("dependencies")):
        names.update(value if isinstance(value, list) else ())
    for key in SAME_PLACE:
        value = schema.get(key)
        branches = value if isinstance(value, list) else _values(value) if key in MAPS else [value]
        for branch in branches:
            names |= _required(branch)
    return frozenset(names)


def _values(mapping: Any) -> list[Any]:
    return list(mapping.values()) if isinstance(mapping, dict) else []


def subschemas(schema: Any) -> Iterator[Schema]:
    """Yield every schema object in a schema, itself first."""
    found: list[Schema] = []

    def note(node: Schema, _: Place) -> Schema:
        found.append(node)
        return node

    mapped(schema, note)
    yield from found


def arranged(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """Return a copy of a schema with `change` done to every schema object in it."""
    result: Schema = mapped(schema, lambda node, _: change(node))
    return result


def uses(schema: Schema, keys: tuple[str, ...]) -> bool:
    """Tell whether any schema object in a schema has one of these keywords."""
    return any(key in node for node in subschemas(schema) for key in keys)


# -- references -------------------------------------------------------------------------------------------------------


def refs_of(schema: Schema) -> set[str]:
    """Return all references in a schema."""
    return {
        node[key] for node in subschemas(schema) for key in ("$ref", "$dynamicRef") if isinstance(node.get(key), str)
    }


def is_simple(ref: str) -> bool:
    """Tell whether a reference leads to the whole schema, to one of its definitions, or out of it."""
    return ref == "#" or not ref.startswith("#") or _definition(ref) is not None


def _definition(ref: str) -> tuple[str, str] | None:
    """Return (keyword, name) of the definition that a reference names, and None when it leads elsewhere."""
    parts = pointer(ref)
    if parts is not None and len(parts) == 2 and parts[0] in DEFINITIONS:
        return parts[0], parts[1]
    return None


def pointer(ref: str) -> list[str] | None:
    """Return the steps of a reference within the schema, and None when it is no JSON pointer.

    >>> pointer("#/$defs/a~1b")
    ['$defs', 'a/b']
    """
    if ref != "#" and not ref.startswith("#/"):
        return None
    return [unquote(part).replace("~1", "/").replace("~0", "~") for part in ref.split("/")[1:]]


def used_definitions(schema: Schema) -> Schema:
    """Return the schema without definitions that nothing refers to, directly or by others."""
    if not any(key in schema for key in DEFINITIONS):
        return schema
    if any(key in node for node in subschemas(schema) for key in ("$id", "$anchor", "$dynamicAnchor")):
        return schema
    trunk = {key: value for key, value in schema.items() if key not in DEFINITIONS}
    used: set[tuple[str, str]] = set()
    waiting = [trunk]
    while waiting:
        for ref in refs_of(waiting.pop()):
            found = _definition(ref)
            if found is not None and found not in used:
                used.add(found)
                target = schema.get(found[0], {}).get(found[1])
                waiting += [target] if isinstance(target, dict) else []
    result = {}
    for key, value in schema.items():
        if key in DEFINITIONS and isinstance(value, dict):
            value = {name: item for name, item in value.items() if (key, name) in used}
            if not value:
                continue
        result[key] = value
    return result


def problems_of(parameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the schema of parameters: its type, and references that lead nowhere."""
    kind = parameters.get("type")
    if kind != "object":
        yield f'expected a JSON Schema with "type": "object", got type {kind!r}'
    for ref in sorted(refs_of(dict(parameters))):
        steps = pointer(ref)
        if steps is not None and not _leads(parameters, steps):
            yield f"$ref {ref!r:.80} leads nowhere; put what it names under $defs"


def _leads(value: Any, steps: list[str]) -> bool:
    for step in steps:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return False
    return isinstance(value, (Mapping, bool))
