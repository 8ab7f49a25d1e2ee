"""JSON written within limits: fewer rows, fewer fields, shorter strings, and counts of what is missing.

The forms of the counts are those of json_results.py, which looks for the limits that fit.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ctx_vector.text_cut import whole_characters
from ctx_vector.values import clean_text, keep_on_line

NO_LIMIT: Final = 1_000_000_000
DEEPEST: Final = 100

_encode = json.JSONEncoder(ensure_ascii=False).encode
_NAMELY = re.compile(
    r"(?:^|_)(?:id|uuid|key|code|name|title|status|state|type|kind)$|编号|编码|名称|姓名|标题|状态|类型", re.I
)
_SHORT: Final = 40  # bytes
_LONG: Final = 300


class Number(str):
    """A number as it was written."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a shortened result does not show: rows of arrays, fields of objects, characters of strings.

    These are the sums of the counts that stand in the text; what lies inside of what was left out is not counted.
    """

    rows: int = 0
    fields: int = 0
    characters: int = 0

    def __bool__(self) -> bool:
        return bool(self.rows or self.fields or self.characters)

    def __str__(self) -> str:
        counts = (("row", self.rows), ("field", self.fields), ("character", self.characters))
        parts = [f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts if count]
        return (", ".join(parts) or "nothing") + " left out"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a value is shown: bytes of a string, rows of an array, fields of an object, and nesting.

    `inside` are the levels of objects and arrays within a row of an array, `levels` those of all.
    """

    string: int = NO_LIMIT
    rows: int = NO_LIMIT
    fields: int = NO_LIMIT
    inside: int = NO_LIMIT
    levels: int = DEEPEST


class TooLongError(Exception):
    """What is written is longer than can fit."""


class Writer:
    """Writes one value within limits, and counts what it leaves out."""

    def __init__(self, limits: Limits, most_bytes: int, choose: Callable[[list[Any], int], Sequence[int]]) -> None:
        self.limits = limits
        self.left = most_bytes
        self.choose = choose
        self.parts: list[str] = []
        self.rows = self.fields = self.characters = 0

    @property
    def left_out(self) -> LeftOut:
        """What was left out so far."""
        return LeftOut(self.rows, self.fields, self.characters)

    def text(self, value: Any) -> str:
        """Return a value as text on one line. Raises TooLongError over `most_bytes`."""
        if isinstance(value, list):
            self._closed_array(value, 1, 0)
        else:
            self._value(value, 1, 0)
        return keep_on_line(clean_text("".join(self.parts)))

    def _put(self, text: str) -> None:
        self.left -= len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if self.left < 0:
            raise TooLongError
        self.parts.append(text)

    def _value(self, value: Any, level: int, inside: int) -> None:
        """Write a value that stands by itself or in an array.

        `level` counts the objects and arrays around it, itself included, `inside` those within a row. The rows of an
        array are at its own level.
        """
        if isinstance(value, Number):
            self._put(value)
        elif isinstance(value, str):
            self._string(value)
        elif isinstance(value, (dict, list)):
            if self._hidden(value, level, inside):
                self._put(f'{{"{"omitted" if isinstance(value, list) else "omitted_fields"}":{self._missed(value)}}}')
            elif isinstance(value, dict):
                self._object(value, level, inside, None, frozenset(value))
            else:
                self._array_in_array(value, level, inside)
        else:
            self._put("null" if value is None else "true" if value else "false")

    def _hidden(self, value: dict[str, Any] | list[Any], level: int, inside: int) -> bool:
        return bool(value) and (level > self.limits.levels or inside > self.limits.inside)

    def _missed(self, value: dict[str, Any] | list[Any]) -> int:
        if isinstance(value, dict):
            self.fields += len(value)
        else:
            self.rows += len(value)
        return len(value)

    def _string(self, text: str) -> None:
        limit = self.limits.string
        if len(text) > limit or (not text.isascii() and len(text.encode("utf-8", "replace")) > limit):
            kept = text[:limit].encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")
            end = whole_characters(text, 0, len(kept)) if kept else 0
            mark = f"…(+{len(text) - end})"
            if end + len(mark) < len(text):
                self.characters += len(text) - end
                text = text[:end] + mark
        self._put(_encode(text))

    def _array_in_array(self, rows: list[Any], level: int, inside: int) -> None:
        kept = self.choose(rows, self.limits.rows)
        if len(kept) < len(rows) or self._columns([rows[place] for place in kept], level, max(1, inside))[1]:
            self._closed_array(rows, level, inside)
        else:
            self._array(rows, kept, None, level, inside)

    def _closed_array(self, rows: list[Any], level: int, inside: int) -> None:
        """Write an array as an object of its own, with its counts."""
        kept = self.choose(rows, self.limits.rows)
        columns, gone = self._columns([rows[place] for place in kept], level, max(1, inside))
        self._put('{"items":')
        self._array(rows, kept, columns, level, inside)
        self._put(f',"omitted":{len(rows) - len(kept)}')
        self._put(f',"omitted_fields":{gone}}}' if gone else "}")
        self.rows += len(rows) - len(kept)
        self.fields += gone

    def _array(
        self, rows: list[Any], kept: Sequence[int], columns: frozenset[str] | None, level: int, inside: int
    ) -> None:
        """Write the kept rows; of those that are objects only the fields in `columns`, when it is given."""
        shown = [rows[place] for place in kept]
        names = frozenset[str]().union(*(row for row in shown if isinstance(row, dict)))
        inside = max(1, inside)
        self._put("[")
        for number, row in enumerate(shown):
            if number:
                self._put(",")
            if isinstance(row, dict):
                self._object(row, level, inside, names if columns is None else columns, names)
            else:
                self._value(row, level + isinstance(row, list), inside)
        self._put("]")

    def _object(
        self, value: dict[str, Any], level: int, inside: int, columns: frozenset[str] | None, taken: frozenset[str]
    ) -> None:
        """Write the fields in `columns`, by default those that are worth most; names of counts keep off `taken`."""
        gone = 0
        if columns is None:
            columns, gone = self._columns([value], level, inside)
        used = set(taken)
        before = "{"

        def name(wanted: str) -> str:
            while wanted in used:
                wanted += "_"
            used.add(wanted)
            return _encode(wanted)

        for key, item in value.items():
            if columns is not None and key not in columns:
                continue
            if not isinstance(item, (dict, list)):
                self._put(f"{before}{_encode(key)}:")
                self._value(item, level, inside)
            elif self._hidden(item, level + 1, inside + (inside > 0)):
                self._put(f"{before}{name(key + '_omitted')}:{self._missed(item)}")
            elif isinstance(item, dict):
                self._put(f"{before}{_encode(key)}:")
                self._value(item, level + 1, inside + (inside > 0))
            else:
                self._array_field(before, key, item, name, level + 1, inside + (inside > 0))
            before = ","
        if gone:
            self._put(f"{before}{name('omitted_fields')}:{gone}")
            self.fields += gone
            before = ","
        self._put("{}" if before == "{" else "}")

    def _array_field(
        self, before: str, key: str, rows: list[Any], name: Callable[[str], str], level: int, inside: int
    ) -> None:
        """Write an array in an object, its counts beside it; only the count when no row stays."""
        kept = self.choose(rows, self.limits.rows)
        columns, gone = self._columns([rows[place] for place in kept], level, max(1, inside))
        missed = len(rows) - len(kept)
        if kept or not rows:
            self._put(f"{before}{_encode(key)}:")
            self._array(rows, kept, columns, level, inside)
            before = ","
        if missed:
            self._put(f"{before}{name(key + '_omitted')}:{missed}")
            self.rows += missed
        if gone:
            self._put(f",{name(key + '_omitted_fields')}:{gone}")
            self.fields += gone

    def _columns(self, rows: list[Any], level: int, inside: int) -> tuple[frozenset[str] | None, int]:
        """Return (the fields that stay in all the rows that are objects, how many go); None when all stay."""
        objects = [row for row in rows if isinstance(row, dict)]
        names = dict.fromkeys(itertools.chain.from_iterable(objects))
        if len(names) <= self.limits.fields:
            return None, 0
        within = level < self.limits.levels and inside + (inside > 0) <= self.limits.inside
        nested = 3 if within else 5
        ranks = {
            key: (_rank(key, [row[key] for row in objects if key in row], nested), n) for n, key in enumerate(names)
        }
        best = sorted(names, key=ranks.__getitem__)[: self.limits.fields]
        return frozenset(best), len(names) - self.limits.fields


def _rank(key: str, values: list[Any], nested: int) -> int:
    """Return what a field is worth, 0 the most: ids, names, states; other short values; texts; nested; long texts.

    Last come nested parts of which only a count would be seen.
    """
    if any(isinstance(value, (dict, list)) and value for value in values):
        return nested
    longest = max((len(value.encode("utf-8", "replace")) for value in values if isinstance(value, str)), default=0)
    if longest <= _SHORT:
        return 0 if _NAMELY.search(key) else 1
    return 2 if longest <= _LONG else 4
