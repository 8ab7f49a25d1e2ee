"""Tool definitions as a language model sees them.

    OpenAI functions, MCP tools ── read_tools ──> ToolDefinition   checked, copied, its keys in one order
    ToolDefinition.levels()                       ever shorter valid definitions (schema_levels.py)
    choose                                        which of them stand in the context, and how short

A definition is seen in one of two ways, and both are counted:

- as text, one line of the section of tools: `text()` is the function itself as compact JSON, ``{"name": ...,
  "description": ..., "parameters": {...}}``. JSON, because models are trained on it and the line parses back to what
  was given; without the wrapper ``{"type": "function", ...}``, which says nothing and costs 7 tokens a tool; keys in
  one order, so that the same tool is the same text (and the same cached prefix) wherever it comes from.
- through an API, which renders the schemas itself. `api_tokens` is an upper bound: the wire form as JSON with blanks
  after , and :, which is what the chat templates of local models put into the prompt (Jinja's `tojson`). It is more
  than OpenAI's own rendering as a TypeScript-like namespace takes (the format "harmony",
  https://cookbook.openai.com/articles/openai-harmony), and than the formula of
  https://cookbook.openai.com/examples/how_to_count_tokens_with_tiktoken; the tests hold it to both. API_OVERHEAD comes
  once on top, for the frame around all tools. Templates of local models add instructions of their own, some 100 tokens
  that nobody can know from here: take them off `max_tokens`, or hand the tools over as text.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ctx_vector.errors import InputError
from ctx_vector.json_text import compact_json
from ctx_vector.packets import clean_text
from ctx_vector.schema_levels import LAST_OF_WORDS, LEVELS, arranged, problems_of, shorter, subschemas

#: A definition of more tokens than this gets a warning: it costs as much as a page of evidence in every call.
LARGE_TOOL: Final = 500
#: Tokens around all tools of a request, once; 12 by OpenAI's formula, 4 more for the line breaks of its namespace.
API_OVERHEAD: Final = 16

_NAME = re.compile(r"[\w./-]{1,128}")
_OPENAI_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
_DEEPEST: Final = 64
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


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """One tool: what the model is told of it. Made by `read_tools`; `parameters` is not to be changed.

    `category` and `title` are for choosing and not sent. `strict` is OpenAI's, sent when given. `level` tells how far
    it is shortened (one of LEVELS).
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}}, hash=False)
    category: str | None = None
    title: str = ""
    strict: bool | None = None
    level: str = "full"

    @property
    def schema(self) -> dict[str, Any]:
        """A copy of the definition as it is sent: ``{"type": "function", "function": {...}}``."""
        return {"type": "function", "function": copy.deepcopy(self._function(strict=True))}

    def _function(self, *, strict: bool = False) -> dict[str, Any]:
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        function["parameters"] = self.parameters
        if strict and self.strict is not None:
            function["strict"] = self.strict
        return function

    def text(self) -> str:
        """Return the definition as it stands in a prompt: one line, without the line feed."""
        return compact_json(self._function())

    @property
    def search_text(self) -> str:
        r"""What relevance is measured on: the descriptions of the tool and of its parameters, then names as words.

        Names come last, and those of parameters only where nothing describes them: in front of a description in
        Chinese, English names make a text of two languages, which ranks lower.

        >>> ToolDefinition("getWeather_v2", "Tells the weather.").search_text
        'Tells the weather.\nget Weather v 2'
        """
        name = " ".join(_WORDS.findall(self.name)) or self.name
        if self.title and self.title.casefold() not in (name.casefold(), self.name.casefold()):
            name = f"{self.title}, {name}"
        lines, bare = [self.description] if self.description else [], []
        for schema in subschemas(dict(self.parameters)):
            properties = schema.get("properties")
            for key, inner in properties.items() if isinstance(properties, dict) else ():
                said = inner.get("description") if isinstance(inner, dict) else None
                if isinstance(said, str) and said:
                    lines.append(said)
                else:
                    bare.append(" ".join(_WORDS.findall(key)) or key)
        last = f"{name}: {', '.join(dict.fromkeys(bare))}" if bare else name
        return "\n".join([*dict.fromkeys(lines), last])

    def levels(self) -> Iterator[ToolDefinition]:
        """Yield this definition and then ever shorter ones (by characters), in the order of LEVELS.

        Each is a valid definition of the same tool. Required parameters stay with their types and enums.
        """
        yield self
        shortest = len(self.text())
        done = LEVELS.index(self.level)
        for level, description, parameters in shorter(self.description, dict(self.parameters)):
            if LEVELS.index(level) < done:
                continue
            tool = replace(self, description=description, parameters=parameters, level=level)
            if (length := len(tool.text())) < shortest:
                shortest = length
                yield tool


# -- counting ---------------------------------------------------------------------------------------------------------


def text_tokens(tool: ToolDefinition, count: Callable[[str], int]) -> int:
    """Return the tokens of a tool as a line of text, its line feed included; lines add up with cl100k."""
    return count(tool.text() + "\n")


def api_tokens(tool: ToolDefinition, count: Callable[[str], int]) -> int:
    """Return an upper bound of the tokens of a tool sent through an API; add API_OVERHEAD once for all tools."""
    return count(compact_json(tool.schema, spaced=True) + "\n")


def tool_warnings(tools: Iterable[ToolDefinition], count: Callable[[str], int], *, api: bool = False) -> list[str]:
    """Return a sentence for each tool of more than LARGE_TOOL tokens; for an API also for names that OpenAI refuses."""
    found = []
    for tool in tools:
        if (tokens := text_tokens(tool, count)) > LARGE_TOOL:
            found.append(
                f"tool {tool.name!r}: its definition takes {tokens} tokens, over {LARGE_TOOL}; shorten its "
                "descriptions or make two tools of it"
            )
        if api and not _OPENAI_NAME.fullmatch(tool.name):
            found.append(
                f"tool {tool.name!r}: OpenAI's API takes only names of up to 64 letters a-z, A-Z, digits, _ and -; "
                "as text any name works"
            )
    return found


# -- choosing ---------------------------------------------------------------------------------------------------------


def in_categories(tools: Iterable[ToolDefinition], categories: Iterable[str] | None) -> tuple[ToolDefinition, ...]:
    """Return the tools of these categories, in their order; all of them for None. A tool without one is in none."""
    if categories is None:
        return tuple(tools)
    if isinstance(categories, str):
        raise InputError(f"categories: expected a list of names, got the str {categories!r}; put it in a list")
    wanted = frozenset(categories)
    return tuple(tool for tool in tools if tool.category in wanted)


def choose(
    tools: Sequence[ToolDefinition],
    relevances: Sequence[float],
    cap: int,
    measure: Callable[[ToolDefinition], int],
) -> list[ToolDefinition | None]:
    """Return for each tool what stands of it, or None: whole tools, of at most `cap` tokens together by `measure`.

    In order of relevance (of equal ones the first): every tool is kept while the tools so far fit with their words
    shortened (LEVELS up to "annotations"); one that does not fit so, but does with its names and types alone, is kept
    in that form; the next are tried after one that does not fit at all. What is left of the cap then gives words back,
    to the most relevant first. So no tool goes while a longer description stands, and no kept tool loses optional
    parameters for the sake of a less relevant one.
    """
    if len(tools) != len(relevances):
        raise InputError(f"relevances: expected {len(tools)} numbers, one for each tool, got {len(relevances)}")
    order = sorted(range(len(tools)), key=lambda index: (-relevances[index], index))
    forms = {index: _forms(tools[index], measure) for index in order}
    kept: dict[int, tuple[int, ToolDefinition]] = {}
    left = cap
    for index in order:
        words = [form for form in forms[index] if LEVELS.index(form[1].level) <= LEVELS.index(LAST_OF_WORDS)]
        for form in (min(words, key=_size), *forms[index][len(words) :]):
            if form[0] <= left:
                kept[index] = form
                left -= form[0]
                break
    for index in order:
        if index in kept:
            better = next(form for form in forms[index] if form[0] <= kept[index][0] + left)
            left += kept[index][0] - better[0]
            kept[index] = better
    return [kept[index][1] if index in kept else None for index in range(len(tools))]


def _forms(tool: ToolDefinition, measure: Callable[[ToolDefinition], int]) -> list[tuple[int, ToolDefinition]]:
    """Return (tokens, definition) of each level, longest first."""
    return [(measure(form), form) for form in tool.levels()]


def _size(form: tuple[int, ToolDefinition]) -> int:
    return form[0]


# -- reading ----------------------------------------------------------------------------------------------------------


def read_tools(items: Iterable[Any]) -> tuple[ToolDefinition, ...]:
    """Return the definitions of tools in their order.

    They may be given in any of these forms:

    - ``{"type": "function", "function": {"name", "description", "parameters", "strict"}}``, and the bare function;
    - ``{"name", "description", "inputSchema", "annotations"}`` of MCP (`input_schema` is read too), as a mapping or an
      object with these attributes, such as the SDK's Tool;
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
    inner = _get(item, "function")
    source = inner if inner is not None else item
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
    names = ("parameters", "inputSchema", "input_schema")
    key, given = next(((name, value) for name in names if (value := _get(source, name)) is not None), ("", None))
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
