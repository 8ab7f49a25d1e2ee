"""Results of tools that are JSON: on one line, and cut by rows and fields so that they still parse.

    json_line      a text that is JSON, or a value  ->  one line without blanks; numbers as they were written
    shorten_json   the same, and a room             ->  the most of it that fits, with counts of what was left out

An array at the top is always ``{"items": [...], "omitted": n}``: a line that starts with a bracket would be escaped in
a context, and would no longer parse. Other cuts say what they took beside what they left:

    an array in an object      "orders": [...], "orders_omitted": 7
    an array in an array       {"items": [...], "omitted": 7}
    fields of an object        "omitted_fields": 3, in the object; for the rows of an array once, beside the array
    an object or array, whole  "address_omitted": 5 in its place
    a string                   "The beginning of it…(+120)"

A name that the object has already gets "_" at its end until it is free. Nothing else is added, moved or changed.

What goes first: long strings are cut, then rows go from the end (with a query: those farthest from it), so that at
least ROWS_WANTED stay; then strings shorter still, then what lies deep, then fields: long strings and nested parts
before short ones, ids, names and states last, and in rows of an array the same fields from all of them. What room is
left after that lets the strings grow again. NaN and the infinities, which JSON does not have, become strings.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from ctx_vector.json_writer import DEEPEST, NO_LIMIT, LeftOut, Limits, Number, TooLongError, Writer
from ctx_vector.scoring import bm25
from ctx_vector.terms import words
from ctx_vector.values import clean_text, json_ready, keep_on_line

#: Rows of an array that are worth more than their long strings.
ROWS_WANTED: Final = 10
_BYTES_A_TOKEN: Final = 8  # JSON has 2 to 5; a text of more than this is not worth counting
_MOST_RANKED: Final = 2_000  # rows, by BM25; of more only those with most words of the query
_RANKED_CHARS: Final = 400_000
_MOST_TERMS: Final = 16

_encode = json.JSONEncoder(ensure_ascii=False).encode
_NO_JSON: Final = object()
# a string, blanks between tokens, what JSON does not have
# a text that is as short as it gets: a look at it takes a tenth of rewriting it
_COMPACT = re.compile(r'[^"\s NI]*+(?:"(?:[^"\\]|\\[^u/])*+"[^"\s NI]*+)*+')
_TOKENS = re.compile(r'("(?:[^"\\]|\\.)*+")|[ \t\r\n]++|(NaN|-?Infinity)')


def json_line(result: Any) -> str | None:
    r"""Return a result as JSON on one line, None when it is a text that is no JSON.

    A text keeps its numbers, the order of its keys and even double ones; letters that were escaped stand as they are.

    >>> json_line('[ {"price": 1.50, "\\u57ce": null} ]')
    '{"items":[{"price":1.50,"城":null}],"omitted":0}'
    """
    line = _text(result)
    if isinstance(result, str):
        if _parsed(line, str) is _NO_JSON:
            return None
        if not _COMPACT.fullmatch(line):
            line = _TOKENS.sub(_compact, line)
    line = keep_on_line(clean_text(line))
    return f'{{"items":{line},"omitted":0}}' if line.startswith("[") else line


def shorten_json(
    result: Any, room: int, measure: Callable[[str], int], query: str | None = None
) -> tuple[str, LeftOut] | None:
    """Return (a result on one line that measures at most `room`, what it leaves out).

    `measure` gives the tokens of such a line as it will stand in the context. With a `query` the rows of an array that
    are nearest to it (BM25) stay, in their own order; without, the first. None when the result is a text that is no
    JSON, or when not even its counts fit: then the caller falls back to what it does with any text.
    """
    value = _parsed(_text(result))
    if value is _NO_JSON or room <= 0:
        return None
    return _Fit(value, room, measure, query or "").best()


def _text(result: Any) -> str:
    """Return a result as the text of JSON; one that is a text already stays as it is."""
    if not isinstance(result, str):
        return json.dumps(json_ready(result, DEEPEST), ensure_ascii=False, separators=(",", ":"))
    return result.lstrip("\ufeff").strip()


def _parsed(text: str, number: type[str] = Number) -> Any:
    """Return the value of a JSON text with its numbers as `number`; _NO_JSON when it is none, or is nested too deep."""
    try:
        return json.loads(text, parse_float=number, parse_int=number, parse_constant=str)
    except (ValueError, RecursionError):
        return _NO_JSON


def _compact(token: re.Match[str]) -> str:
    string, constant = token.groups()
    if string is None:
        return f'"{constant}"' if constant else ""
    return _encode(json.loads(string)) if "\\" in string else string


# -- finding what fits -------------------------------------------------------------------------------------------------


#: From mild to strict; `rows` is looked for within each.
_LEVELS: Final = (
    Limits(),
    Limits(string=600),
    Limits(string=200, fields=60, inside=4, levels=8),
    Limits(string=80, fields=24, inside=3, levels=6),
    Limits(string=60, fields=12, inside=2, levels=5),
    Limits(string=40, fields=7, inside=1, levels=4),
    Limits(string=40, fields=4, inside=1, levels=4),
    Limits(string=30, fields=2, inside=1, levels=3),
    Limits(string=20, fields=1, inside=1, levels=3),
    Limits(string=0, fields=0, inside=0, levels=1),
)

#: (rows, levels to try them at), from the best outcome to the least; the last shows counts only.
_WANTED: Final = ((ROWS_WANTED, _LEVELS[:6]), (3, _LEVELS[:7]), (1, _LEVELS[:7]), (0, _LEVELS))

Shown = tuple[str, LeftOut]


class _Fit:
    """The search for the limits that fit. Every try is written and measured; none is trusted to be smaller."""

    def __init__(self, value: Any, room: int, measure: Callable[[str], int], query: str) -> None:
        self.value = value
        self.room = room
        self.measure = measure
        self.bytes = room * _BYTES_A_TOKEN
        self.ranking = _Ranking(query)

    def shown(self, limits: Limits) -> Shown | None:
        """Return the value within these limits, None when it does not fit."""
        writer = Writer(limits, self.bytes, self.ranking)
        try:
            text = writer.text(self.value)
        except TooLongError:
            return None
        return (text, writer.left_out) if self.measure(text) <= self.room else None

    def best(self) -> Shown | None:
        """Return the best that fits: as many rows as are wanted, as mildly as they fit, then more rows or strings."""
        for rows, levels in _WANTED:
            for level in levels:
                limits = replace(level, rows=rows)
                if shown := self.shown(limits):
                    limits = replace(limits, rows=self._most_rows(limits, shown))
                    return self._longer_strings(limits, self.shown(limits) or shown)
        return None

    def _most_rows(self, limits: Limits, shown: Shown) -> int:
        """Return the most rows that fit within limits whose own number of rows fits."""
        low, high = limits.rows, NO_LIMIT
        while shown[1].rows and high - low > 1:
            middle = low * 2 + 1 if high == NO_LIMIT else (low + high) // 2
            if more := self.shown(replace(limits, rows=middle)):
                low, shown = middle, more
            else:
                high = middle
        return low

    def _longer_strings(self, limits: Limits, shown: Shown) -> Shown:
        """Let strings grow into the room that is left."""
        low, high = limits.string, self.bytes
        while shown[1].characters and high - low > max(2, low // 16):
            middle = low * 2 + 8 if low * 4 + 16 < high else (low + high) // 2
            if grown := self.shown(replace(limits, string=middle)):
                low, shown = middle, grown
            else:
                high = middle
        return shown


class _Ranking:
    """Which rows of an array stay: the first, or those nearest to a query. Each array is ranked once."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._terms = sorted(set(words(query)), key=lambda term: (-len(term), term))[:_MOST_TERMS]
        self._orders: dict[int, list[int]] = {}

    def __call__(self, rows: list[Any], count: int) -> Sequence[int]:
        """Return the places of the rows that stay, in their order."""
        if count >= len(rows) or not self._terms or count <= 0:
            return range(min(max(0, count), len(rows)))
        order = self._orders.get(id(rows))
        if order is None:  # the rows live as long as this object, so their id is theirs alone
            order = self._orders[id(rows)] = self._ranked(rows)
        chosen = order[:count]
        if len(chosen) < count:  # those with nothing of the query come last, in their order
            taken = set(chosen)
            rest = (place for place in range(len(rows)) if place not in taken)
            chosen = chosen + list(itertools.islice(rest, count - len(chosen)))
        return sorted(chosen)

    def _ranked(self, rows: list[Any]) -> list[int]:
        """Return the places of the rows that have something of the query, best first."""
        each = max(200, min(2_000, _RANKED_CHARS // len(rows)))
        texts = [_searched(row)[:each] for row in rows]
        places = list(range(len(rows)))
        if len(rows) > _MOST_RANKED:
            places = self._with_most_terms(texts)
        scores = bm25(self._query, [texts[place] for place in places])
        best = sorted((-score, place) for score, place in zip(scores, places, strict=True) if score > 0)
        return [place for _, place in best]

    def _with_most_terms(self, texts: list[str]) -> list[int]:
        folded = [text.casefold() for text in texts]
        points = [0.0] * len(texts)
        for term in self._terms:
            holders = [place for place, text in enumerate(folded) if term in text]
            weight = math.log(1 + len(texts) / (1 + len(holders)))
            for place in holders:
                points[place] += weight
        found = sorted((-value, place) for place, value in enumerate(points) if value)
        return sorted(place for _, place in found[:_MOST_RANKED])


def _searched(row: Any) -> str:
    try:
        return _encode(row)
    except RecursionError:  # nested as deep as could just be read
        return ""
