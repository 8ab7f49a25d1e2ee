"""YAML as plain data, from files nobody needs to trust: no aliases, no tags, no key twice, and a line for every key.

PyYAML reads the events; the values are made here, so that nothing in a file can name a class, grow on reading, or nest
without end. Mapping keys are the texts they are written as, and so are values of the keys ``version``, ``id`` and
``document_id`` (version 1.10 does not become 1.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ctx_vector.errors import InputError
from ctx_vector.rules import shown
from ctx_vector.values import clean_text

#: Characters of a file, nodes in it, and how deep they may nest.
MOST_CHARS: Final = 4_000_000
MOST_NODES: Final = 200_000
MOST_DEPTH: Final = 30
_MOST_PROBLEMS: Final = 100
_LONGEST_NUMBER: Final = 100
_AS_WRITTEN: Final = frozenset({"version", "id", "document_id"})
_TAG: Final = "tag:yaml.org,2002:"
_SCALARS: Final = frozenset(_TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp"))

Path = tuple[str | int, ...]


class Refused:
    """Stands for a value that was refused; its problem is told already."""


REFUSED: Final = Refused()


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong at a path, in words, and the line (1-based) if there is one."""

    path: Path
    text: str
    line: int | None

    def __str__(self) -> str:
        """Say it as an error does: ``sources.faq.layer (line 7): expected ...``."""
        return f"{dotted(self.path)}{'' if self.line is None else f' (line {self.line})'}: {self.text}"


@dataclass(slots=True)
class PlainYaml:
    """What a file says: its value, the line (1-based) of every key and item by path, and what was refused."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, path: Path, text: str) -> Problem:
        """Return a problem at a path, with the line of the nearest part of it that the file has."""
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        return Problem(path, text, self.lines[known] if known else None)


def dotted(path: Path) -> str:
    """Return a path as a dotted name."""
    return ".".join(" ".join(str(part).split())[:100] for part in path) or "the file"


def read_yaml(text: str) -> PlainYaml:
    """Return what a YAML text says. Values are None, bool, int, float, str, date, datetime, list and dict.

    What is refused (an alias, a tag, a key that comes twice) is a problem in the result, and `REFUSED` in its place.
    Raises InputError for a text that is no YAML, is too long, or nests too deep.
    """
    import yaml

    if len(text) > MOST_CHARS:
        raise InputError(f"expected at most {MOST_CHARS:,} characters, got {len(text):,}")
    found = PlainYaml()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _Reader(yaml, yaml.parse(clean_text(text), Loader=loader), found).read()
    except yaml.YAMLError as error:
        raise InputError(_told(error)) from None
    return found


def _told(error: Any) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return f"{f'line {mark.line + 1}: ' if mark else ''}no valid YAML: {' '.join(str(what).split())}"


class _Reader:
    def __init__(self, module: Any, events: Iterator[Any], found: PlainYaml) -> None:
        self._yaml = module
        self._events = events
        self._found = found
        self._nodes = 0
        self._resolver = module.SafeLoader("")

    def read(self) -> None:
        """Read the one document there may be."""
        yaml = self._yaml
        for event in self._events:
            if isinstance(event, (yaml.StreamStartEvent, yaml.StreamEndEvent, yaml.DocumentEndEvent)):
                continue
            if isinstance(event, yaml.DocumentStartEvent):
                if self._nodes:
                    raise InputError(f"line {event.start_mark.line + 1}: expected one document, got a second one")
                continue
            self._found.value = self._node(event, (), 0)

    def _refuse(self, path: Path, line: int, text: str) -> Refused:
        if len(self._found.problems) < _MOST_PROBLEMS:
            self._found.problems.append(Problem(path, text, line))
        return REFUSED

    def _node(self, event: Any, path: Path, depth: int) -> Any:
        yaml, line = self._yaml, event.start_mark.line + 1
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise InputError(f"line {line}: expected at most {MOST_NODES:,} values")
        if depth > MOST_DEPTH:
            raise InputError(f"line {line}: nested more than {MOST_DEPTH} deep")
        if isinstance(event, yaml.AliasEvent):
            return self._refuse(path, line, f"aliases are not allowed (*{event.anchor}); write the value out")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, path, line)
        value = self._mapping(path, depth) if isinstance(event, yaml.MappingStartEvent) else self._list(path, depth)
        if event.tag not in (None, "!", f"{_TAG}map", f"{_TAG}seq"):
            return self._refuse(path, line, f"tags are not allowed ({shown(event.tag)}); write a plain value")
        return value

    def _list(self, path: Path, depth: int) -> list[Any]:
        values: list[Any] = []
        for event in self._events:
            if isinstance(event, self._yaml.SequenceEndEvent):
                break
            here = (*path, len(values))
            self._found.lines[here] = event.start_mark.line + 1
            values.append(self._node(event, here, depth + 1))
        return values

    def _mapping(self, path: Path, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for event in self._events:
            if isinstance(event, self._yaml.MappingEndEvent):
                break
            line = event.start_mark.line + 1
            key = self._key(event, path, line, depth)
            here = (*path, key) if key is not None else path
            twice = key in values
            if not twice:
                self._found.lines.setdefault(here, line)
            value = self._node(next(self._events), here, depth + 1)
            if key is None:
                continue
            if twice:
                first = self._found.lines[here]
                self._refuse(here, line, f"the key comes again in line {line}; leave one of lines {first} and {line}")
            else:
                values[key] = value
        return values

    def _key(self, event: Any, path: Path, line: int, depth: int) -> str | None:
        """Return a key as it is written; None for one that is refused."""
        if isinstance(event, self._yaml.ScalarEvent) and event.tag in (None, "!", f"{_TAG}str"):
            self._nodes += 1
            return str(event.value)
        self._refuse(path, line, "expected a plain text as a key")
        self._node(event, path, depth + 1)  # read on behind it
        return None

    def _scalar(self, event: Any, path: Path, line: int) -> Any:
        yaml, value = self._yaml, event.value
        tag = event.tag
        if tag == "!" or (tag is None and not event.implicit[0]):
            return value
        if tag is None:
            tag = self._resolver.resolve(yaml.ScalarNode, value, (True, False))
        if tag == f"{_TAG}merge":
            return value
        if tag not in _SCALARS:
            return self._refuse(path, line, f"tags are not allowed ({shown(event.tag or tag)}); write a plain value")
        if tag != f"{_TAG}null" and path and path[-1] in _AS_WRITTEN:
            return value
        if tag in (f"{_TAG}int", f"{_TAG}float") and len(value) > _LONGEST_NUMBER:
            return self._refuse(path, line, f"expected a number, got one of {len(value):,} characters")
        try:
            make = yaml.constructor.SafeConstructor.yaml_constructors[tag]
            return make(yaml.constructor.SafeConstructor(), yaml.ScalarNode(tag, value))
        except (ValueError, OverflowError, KeyError, AttributeError, IndexError, yaml.YAMLError):
            return value  # no such day as 2024-13-45, or `!!int x`: what it should be is checked by whoever wants it


def plain(value: Any) -> Any:
    """Return a value with dates and times as ISO 8601 texts, for metadata; a float that is no number as its text."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, float) and not -1e308 < value < 1e308:
        return str(value)
    return value
