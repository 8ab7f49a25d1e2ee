"""Ever shorter forms of one tool: its description, and the JSON Schema of its parameters.

`shorter(description, parameters)` goes through LEVELS in their order; each starts from what the one before left:

    examples                `example`, `examples`; in descriptions, what an "e.g." or 例如 begins; white space
    description             the tool's own description, from its end, down to its first sentence
    parameter descriptions  those of parameters, to their first sentence
    optional descriptions   those of optional parameters go
    annotations             title, default, deprecated, $comment, $schema, x-...; definitions nothing refers to
    optional details        what bounds the value of an optional parameter: format, pattern, minimum, ...
    optional parameters     the optional parameters
    names and types         all descriptions of parameters; a tool's description of over 200 characters is cut

Never lost: required parameters at any depth with their types, enums and constants, `additionalProperties`, the
definitions that are referred to. A schema that was valid stays valid, and a call with required parameters only that
satisfied it satisfies what is left: inside `oneOf`, `not` and `if`, where less can mean more, no bound is taken away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from ctx_vector.schema_walk import (
    CHOICES,
    LISTS,
    MAPS,
    SAME_PLACE,
    SINGLE,
    Edit,
    Place,
    Schema,
    is_simple,
    mapped,
    refs_of,
    used_definitions,
    uses,
)
from ctx_vector.sentences import sentences
from ctx_vector.text_cut import whole_characters

LEVELS: Final = (
    "full", "examples", "description", "parameter descriptions", "optional descriptions", "annotations",
    "optional details", "optional parameters", "names and types",
)  # fmt: skip
#: Levels up to here take away words only; the ones after it also what a call may contain.
LAST_OF_WORDS: Final = "annotations"

_LONGEST_SENTENCE: Final = 200
_MOST_STEPS: Final = 8
_EXAMPLES: Final = ("example", "examples")
_ANNOTATIONS: Final = ("title", "default", "deprecated", "readOnly", "writeOnly", "$comment", "$schema")
_KEPT_DETAILS: Final = frozenset(
    {*MAPS, *LISTS, *SINGLE, "type", "enum", "const", "required", "dependentRequired", "nullable", "$ref", "$id",
     "$anchor", "$dynamicRef", "$dynamicAnchor", "minContains", "maxContains"}
)  # fmt: skip
#: Beside these keywords, what a property is for cannot be seen from `required` alone: no property goes.
_ENTANGLED: Final = frozenset(
    {*SAME_PLACE, "patternProperties", "propertyNames", "minProperties", "dependentRequired", "unevaluatedProperties"}
)


def shorter(description: str, parameters: Schema) -> Iterator[tuple[str, str, Schema]]:
    """Yield (level, description, parameters), each derived from the one before; some change nothing."""
    frozen = uses(parameters, CHOICES)
    refs = refs_of(parameters)
    simple = all(is_simple(ref) for ref in refs)

    def edited(edit: Edit) -> Schema:
        result: Schema = mapped(parameters, edit, frozen=frozen)
        return result

    description = without_examples(description)
    parameters = edited(_no_examples)
    yield "examples", description, parameters
    for fewer in list(_fewer_sentences(description)):
        description = fewer
        yield "description", description, parameters
    parameters = edited(_short_descriptions)
    yield "parameter descriptions", description, parameters
    parameters = edited(_no_optional_descriptions)
    yield "optional descriptions", description, parameters
    parameters = edited(_no_annotations)
    if simple:
        parameters = used_definitions(parameters)
    yield "annotations", description, parameters
    parameters = edited(_no_optional_details)
    yield "optional details", description, parameters
    if simple:
        parameters = used_definitions(edited(_no_optional_parameters))
        yield "optional parameters", description, parameters
    parameters = edited(_no_descriptions)
    yield "names and types", _clipped(description), parameters


# -- the edits --------------------------------------------------------------------------------------------------------


def _described(node: Schema, change: Callable[[str], str]) -> Schema:
    if isinstance(node.get("description"), str):
        node["description"] = change(node["description"])
        if not node["description"].strip():
            del node["description"]
    return node


def _without(node: Schema, keys: tuple[str, ...]) -> Schema:
    return {key: value for key, value in node.items() if key not in keys}


def _no_examples(node: Schema, place: Place) -> Schema:
    return _described(_without(node, _EXAMPLES), without_examples)


def _short_descriptions(node: Schema, place: Place) -> Schema:
    return _described(node, lambda text: _clipped(first_sentence(text)))


def _no_optional_descriptions(node: Schema, place: Place) -> Schema:
    return _without(node, ("description",)) if place.optional else node


def _no_annotations(node: Schema, place: Place) -> Schema:
    gone: tuple[str, ...] = _ANNOTATIONS
    if isinstance(node.get("items"), list):  # an older dialect, which has to be named
        gone = tuple(key for key in gone if key != "$schema")
    return {key: value for key, value in node.items() if key not in gone and not key.startswith("x-")}


def _no_optional_details(node: Schema, place: Place) -> Schema:
    if not (place.optional and place.bounds):
        return node
    return {key: value for key, value in node.items() if key in _KEPT_DETAILS}


def _no_optional_parameters(node: Schema, place: Place) -> Schema:
    properties = node.get("properties")
    entangled = not _ENTANGLED.isdisjoint(node) or isinstance(node.get("additionalProperties"), dict)
    if place.bounds and isinstance(properties, dict) and not entangled:
        node["properties"] = {name: value for name, value in properties.items() if name in place.needed}
    return node


def _no_descriptions(node: Schema, place: Place) -> Schema:
    return _without(node, ("description",))


# -- texts ------------------------------------------------------------------------------------------------------------

_MARK: Final = r"(?:e\.\s?g\.|for example\b|for instance\b|examples?\s*[:：]|例如|比如|譬如|示例|举例|例[:：])"
_EXAMPLE_START = re.compile(rf"[\W_]*(?:{_MARK}|(?:usage )?examples?\s*(?:\([^()\n]*\))?\s*(?:[:：]|$))", re.I)
# the look-behinds keep a search linear where blanks pile up
_IN_PARENTHESES = re.compile(rf"(?<![ \t])[ \t]*+[(（]\s*+{_MARK}[^()（）]*+[)）]", re.I)
_TAG = re.compile(r"<(/?)examples?>\s*+", re.I)
_IN_CLAUSE = re.compile(rf"(?<![ \t])[ \t]*+[,;，；、:：—–-]\s*+{_MARK}", re.I)
_STOP_AT_END = re.compile(r"[.。!！?？]*\s*\Z")
_LISTED = re.compile(r"[ \t]*(?:[-*+>•|]|\d+[.)、]|```|~~~)")
_BLANKS = re.compile(r"[ \t\u3000]+")
_BLANK_LINES = re.compile(r"\n\s*\n\s*")


def first_sentence(text: str) -> str:
    """Return the first sentence that says something.

    >>> first_sentence("Reads a file, e.g. a log. Fails for folders.")
    'Reads a file, e.g. a log.'
    """
    return next((part.strip() for part in sentences(text) if part.strip()), "")


def without_examples(text: str) -> str:
    """Return a description without its examples and with single blanks; the text itself when nothing else is in it.

    >>> without_examples("The city, e.g. Berlin. Required. For example: Rome.")
    'The city. Required.'
    """
    kept: list[str] = []
    skipping = False  # the lines of a list that an example heading opened
    for part in sentences(_outside_tags(text)):
        if _EXAMPLE_START.match(part):
            skipping = part.rstrip().endswith((":", "："))
            continue
        if skipping and (part.startswith("  ") or _LISTED.match(part) or not part.strip()):
            continue
        skipping = False
        kept.append(_without_clause(_IN_PARENTHESES.sub("", part)))
    rest = _tidy("".join(kept))
    return rest or _tidy(text)


def _outside_tags(text: str) -> str:
    """Return a text without what stands between <example> and </example>."""
    kept: list[str] = []
    done, opened = 0, -1
    for tag in _TAG.finditer(text):
        if not tag.group(1):
            opened = tag.start() if opened < 0 else opened
        elif opened >= 0:
            kept.append(text[done:opened])
            done, opened = tag.end(), -1
    return "".join(kept) + text[done:]


def _without_clause(sentence: str) -> str:
    found = _IN_CLAUSE.search(sentence)
    if not found or not sentence[: found.start()].strip():
        return sentence
    end = _STOP_AT_END.search(sentence, found.end())
    return sentence[: found.start()] + (end.group() if end else "")


def _tidy(text: str) -> str:
    lines = (_BLANKS.sub(" ", line).strip() for line in text.strip().split("\n"))
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()


def _fewer_sentences(text: str) -> Iterator[str]:
    """Yield the text with ever fewer sentences, in at most 8 steps, down to the first."""
    parts = sentences(text)
    counts = {round(len(parts) * step / _MOST_STEPS) for step in range(_MOST_STEPS)} | {1}
    for count in sorted(counts, reverse=True):
        if 0 < count < len(parts):
            yield "".join(parts[:count]).strip()
    if (first := first_sentence(text)) != text:
        yield first


def _clipped(text: str) -> str:
    """Return at most 200 characters of a text, cut at a blank where there is one near, and marked."""
    if len(text) <= _LONGEST_SENTENCE:
        return text
    at = whole_characters(text, 0, _LONGEST_SENTENCE - 1)
    blank = text.rfind(" ", at * 2 // 3, at)
    return text[: blank if blank > 0 else at].rstrip() + "…"
