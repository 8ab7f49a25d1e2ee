"""Reading tool definitions: any of the usual forms into ToolDefinition, checked, copied, keys in one order."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ctx_vector.errors import InputError
from ctx_vector.schema_walk import arranged, problems_of
from ctx_vector.tool_schemas import ToolDefinition
from ctx_vector.values import clean_text

_NAME = re.compile(r"[\w./-]{1,128}")
_DEEPEST: Final = 64
# where a tool keeps the JSON Schema of its parameters, the first that is there; LangChain has three, of which
# `tool_call_schema` leaves out what the model is not to fill in
_SCHEMAS: Final = ("parameters", "inputSchema", "tool_call_schema", "input_schema", "args_schema", "params_json_schema")
# how the keys of a schema follow each other; what is not named comes after, by the alphabet
_ORDER: Final = {
    key: place
    for place, key in enumerate(
        "$schema $id $anchor $dynamicAnchor $ref $dynamicRef type title description enum const format pattern "
        "minLength maxLength minimum exclusiveMinimum maximum exclusiveMaximum multipleOf default example examples "
        "items prefixItems contains minItems maxItems uniqueItems properties patternProperties propertyNames required "
        "minProperties maxProperties additionalProperties unevaluatedProperties anyOf oneOf allOf not if then else "
        "$defs definitions".split()
    )
}
_WITH_OWN_WORDS: Final = ("tool_call_schema", "args_schema")  # the description of the tool once more


def read_tools(items: Iterable[Any]) -> tuple[ToolDefinition, ...]:
    """Return the definitions of tools in their order.

    They may be given in any of these forms:

    - ``{"type": "function", "function": {"name", "description", "parameters", "strict"}}``, and the bare function;
    - ``{"name", "description", "inputSchema", "annotations"}`` of MCP (`input_schema` is read too), as a mapping or an
      object with these attributes, such as the SDK's Tool;
    - tools of LangChain, LlamaIndex and Haystack;
    - ToolDefinition.

    `category` is read from the top level, the function, or `metadata`, `_meta` or `meta`. A name is 1 to 128 letters
    of any script, digits, and ``_ . / -``. Raises InputError that lists every problem of every tool.
    """
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise InputError(f"tools: expected a list of definitions, got {type(items).__name__}")
    tools: list[ToolDefinition] = []
    problems: list[str] = []
    places: dict[str, int] = {}
    for number, item in enumerate(items):
        tool, wrong = _read(item)
        problems += [f"tools[{number}]{text}" for text in wrong]
        first = places.setdefault(tool.name, number)
        if first != number and tool.name:
            problems.append(f"tools[{number}].name: {tool.name!r} is the name of tools[{first}] too; names are unique")
        tools.append(tool)
    if problems:
        head = "a tool definition is wrong" if len(problems) == 1 else f"{len(problems)} problems in tool definitions"
        raise InputError(f"{head}: " + "; ".join(problems))
    return tuple(tools)


def _read(item: Any) -> tuple[ToolDefinition, list[str]]:
    """Return a definition and what is wrong with it, each as ".path: sentence"."""
    if isinstance(item, ToolDefinition):
        return item, []
    if isinstance(item, (str, bytes, type)) or inspect.isroutine(item):
        what = "a class" if isinstance(item, type) else "a function" if inspect.isroutine(item) else repr(item)[:80]
        return ToolDefinition(""), [f": expected a definition, with name, description and parameters, got {what}"]
    if callable(convert := getattr(_get(item, "metadata"), "to_openai_tool", None)):  # LlamaIndex
        try:
            item = convert()
        except Exception as error:  # it checks its own rules, in its own errors
            return ToolDefinition(""), [f": {error}"]
    inner = _get(item, "function")
    source = inner if inner is not None and not callable(inner) else item  # Haystack: what runs the tool
    kind = _get(item, "type")
    if isinstance(kind, str) and kind not in ("function", "custom") and inner is None:
        return ToolDefinition(""), [f'.type: expected "function", got {kind!r:.80}']
    problems: list[str] = []
    name = _get(source, "name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problems.append(f".name: expected 1 to 128 letters, digits, _ . / or -, got {name!r:.80}")
        name = ""
    texts = {}
    for key in ("description", "title"):
        value = _get(source, key)
        if value is not None and not isinstance(value, str):
            problems.append(f".{key}: expected a str, got {type(value).__name__}")
            value = None
        texts[key] = clean_text(value or "")
    strict = _get(source, "strict")
    parameters = _parameters(source, problems)
    return ToolDefinition(
        name,
        texts["description"],
        parameters,
        _category(item, source, problems),
        texts["title"] or _title(source),
        strict if isinstance(strict, bool) else None,
    ), problems


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _title(source: Any) -> str:
    title = _get(_get(source, "annotations"), "title")
    return clean_text(title) if isinstance(title, str) else ""


def _category(item: Any, source: Any, problems: list[str]) -> str | None:
    places = [item, source, *(_get(item, name) for name in ("metadata", "_meta", "meta"))]
    found = next((value for place in places if (value := _get(place, "category")) is not None), None)
    if found is not None and not isinstance(found, str):
        problems.append(f".category: expected a str, got {type(found).__name__}")
        return None
    return found


def _parameters(source: Any, problems: list[str]) -> dict[str, Any]:
    key, given = next(((name, value) for name in _SCHEMAS if (value := _get(source, name)) is not None), ("", None))
    if callable(as_schema := getattr(given, "model_json_schema", None)):  # a pydantic model, which titles everything
        given = arranged(as_schema(), lambda node: {k: v for k, v in node.items() if k != "title"})
    if isinstance(given, Mapping) and key in _WITH_OWN_WORDS:
        given = {name: value for name, value in given.items() if name != "description"}
    empty: dict[str, Any] = {"type": "object", "properties": {}}
    if not key:
        return empty
    wrong: list[str] = []
    if not isinstance(given, Mapping):
        wrong.append(f"expected a JSON Schema object, got {type(given).__name__}")
    else:
        plain = _plain(given, "", wrong)
        if isinstance(plain, dict) and not wrong:
            if "type" not in plain and (not plain or "properties" in plain):
                plain = {"type": "object", **plain}
            wrong += problems_of(plain)
            if not wrong:
                return _ordered(plain)
    problems += [f".{key}: {text}" if not text.startswith(".") else f".{key}{text}" for text in wrong]
    return empty


def _plain(value: Any, path: str, wrong: list[str], depth: int = 0) -> Any:
    """Return a copy made of what JSON has, and note what is not of that kind, as ".path: sentence"."""
    if depth > _DEEPEST:
        if not any("nested" in text for text in wrong):
            wrong.append(f"{path[:80]}: nested more than {_DEEPEST} deep")
    elif isinstance(value, Mapping):
        bad = [key for key in value if not isinstance(key, str)]
        wrong += [f"{path}: expected str keys, got {key!r:.80}" for key in bad]
        return {
            clean_text(key): _plain(item, f"{path}.{key}", wrong, depth + 1)
            for key, item in value.items()
            if isinstance(key, str)
        }
    elif isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{number}]", wrong, depth + 1) for number, item in enumerate(value)]
    elif isinstance(value, str):
        return clean_text(value)
    elif isinstance(value, (bool, int)) or value is None or (isinstance(value, float) and math.isfinite(value)):
        return value
    else:
        wrong.append(f"{path}: expected what JSON has, got {value!r:.80}")
    return None


def _ordered(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the keys of every schema object in the order of _ORDER."""
    return arranged(schema, lambda node: dict(sorted(node.items(), key=_place)))


def _place(entry: tuple[str, Any]) -> tuple[int, str]:
    return _ORDER.get(entry[0], len(_ORDER)), entry[0]
