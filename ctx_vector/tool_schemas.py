"""Tool definitions as a language model sees them.

    tool_reading.read_tools                       from OpenAI's functions, MCP's tools
    ToolDefinition                                checked, copied, its keys in one order
    ToolDefinition.levels()                       ever shorter valid definitions (schema_levels.py)
    choose                                        which of them stand in the context, and how short

A definition is seen in one of two ways, and both are counted:

- as text, one line of the section of tools: `text()` is the function itself as compact JSON, ``{"name": ...,
  "description": ..., "parameters": {...}}``. JSON, because models are trained on it and the line parses back to what
  was given; without the wrapper ``{"type": "function", ...}``, which says nothing and costs 6 or 7 tokens; keys in
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
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ctx_vector.errors import InputError
from ctx_vector.schema_levels import LAST_OF_WORDS, LEVELS, shorter
from ctx_vector.schema_walk import subschemas
from ctx_vector.values import compact_json

#: A definition of more tokens than this gets a warning: it costs as much as a page of evidence in every call.
LARGE_TOOL: Final = 500
#: Tokens around all tools of a request, once; 12 by OpenAI's formula, 4 more for the line breaks of its namespace.
API_OVERHEAD: Final = 16

_OPENAI_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")


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
