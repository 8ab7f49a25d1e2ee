"""JSON, JSON Lines, CSV and TSV: text as it stands in the file, cut between records."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from ctx_vector.documents import Block, Parsed, line_starts, one_line, paragraphs
from ctx_vector.errors import LoaderError

RECORD_CHARS = 1500  # a JSON value longer than this is divided into its members
_MAX_DEPTH = 4  # how deep members are looked into: their names are headings of level 3 to 6
_NAMED_IN_NOTE = 5  # a note about bad lines names this many

_SPACE = re.compile(r"[ \t\n\r]*")
_ESCAPES = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[^u]")


def readable_escapes(text: str) -> str:
    r"""Return JSON with its printable ``\uXXXX`` escapes as the characters they stand for; it stays the same value.

    `json.dumps` escapes all Chinese by default, and neither a model nor a reader can read that.
    """
    if "\\u" not in text:
        return text

    def plain(match: re.Match[str]) -> str:
        escape = match.group()
        if escape[1] != "u":
            return escape
        units = [int(part, 16) for part in escape.split("\\u")[1:]]
        if len(units) == 2:
            code = 0x10000 + (units[0] - 0xD800) * 0x400 + units[1] - 0xDC00
        else:
            code = units[0]
        char = chr(code)
        return char if code > 0x7F and char.isprintable() and not 0xD800 <= code < 0xE000 else escape

    return _ESCAPES.sub(plain, text)


def parse_json(text: str) -> Parsed:
    """Return one block a record, under the keys that lead to it; text that is no JSON stays text, with a note."""
    text = readable_escapes(text)
    metadata: dict[str, Any] = {"language": "json"}
    try:
        json.loads(text)
    except RecursionError as error:
        raise LoaderError("JSON is nested too deeply to be read") from error
    except ValueError as error:  # comments and trailing commas are common in configuration
        metadata["note"] = f"not valid JSON, indexed as text: {one_line(str(error))}"
        return Parsed(text, paragraphs(text, kind="code"), "", metadata)
    return Parsed(text, _json_blocks(text), "", metadata)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _json_blocks(text: str) -> list[Block]:
    blocks: list[Block] = []
    start = _skip(text, 0)
    for at, level, name in [*_members(text, start, len(text), start, 1), (len(text), 0, None)]:
        if at > start:
            blocks.append(Block(start, at, "record"))
            start = at
        if name is not None:
            blocks.append(Block(at, at, "heading", level, name))
    return blocks


def _members(text: str, start: int, end: int, begin: int, depth: int) -> Iterator[tuple[int, int, str | None]]:
    """Yield (where a record starts, level, name of the place it opens or None) for a long JSON value.

    The value is valid and ``text[start:end]``; its first record starts at `begin`, so that a key or a bracket goes
    with the member it introduces. Commas and closing brackets go with the member before.
    """
    opening = text[start]
    if end - start <= RECORD_CHARS or opening not in "{[" or depth > _MAX_DEPTH:
        return
    decoder = json.JSONDecoder()
    level = depth + 2
    at = _skip(text, start + 1)
    named = False
    while text[at] not in "]}":
        name = ""
        if opening == "{":
            name, at = decoder.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        value = at
        _, at = decoder.raw_decode(text, at)
        long = at - value > RECORD_CHARS
        if name and long:
            yield begin, level, one_line(name)
        else:
            yield begin, level, "" if named else None
        named = bool(name and long)
        yield from _members(text, value, at, begin, depth + 1)
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
        begin = at


def parse_jsonl(text: str) -> Parsed:
    """Return one block a line. Lines that are no JSON stay in as text, and a note names them.

    Raises LoaderError naming the first bad line when no line is JSON.
    """
    text = readable_escapes(text)
    starts = [*line_starts(text), len(text)]
    blocks: list[Block] = []
    bad: list[int] = []
    reason = ""
    for number, (start, end) in enumerate(pairwise(starts), 1):
        line = text[start:end]
        if not line.strip():
            continue
        blocks.append(Block(start, end, "record"))
        try:
            json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = reason or one_line(str(error))
            bad.append(number)
    if bad and len(bad) == len(blocks):
        raise LoaderError(f"line {bad[0]} is not JSON, nor is any other line: {reason}")
    metadata: dict[str, Any] = {"language": "json"}
    if bad:
        named = ", ".join(map(str, bad[:_NAMED_IN_NOTE])) + (", ..." if len(bad) > _NAMED_IN_NOTE else "")
        metadata["note"] = f"{len(bad)} of {len(blocks)} lines are not JSON (line {named}), indexed as text"
    return Parsed(text, blocks, "", metadata)


def parse_csv(text: str, delimiter: str = "") -> Parsed:
    """Return one block a row that has any text, each with the header row as its context.

    Without a `delimiter`, the most frequent of comma, semicolon, tab and bar in the header is taken.
    """
    metadata: dict[str, Any] = {"language": "csv"}
    header_end = text.find("\n") if "\n" in text else len(text)
    header = text[:header_end]
    delimiter = delimiter or max(",;\t|", key=header[:10_000].count)
    starts = line_starts(text)
    starts += [len(text)] if starts[-1] < len(text) else []
    blocks: list[Block] = []
    lines = (text[start:end] for start, end in pairwise(starts))
    reader = csv.reader(lines, delimiter=delimiter)
    row = 0
    names = ""
    try:
        for cells in reader:
            start, end = starts[row], starts[min(reader.line_num, len(starts) - 1)]
            row = reader.line_num
            if any(cell.strip() for cell in cells):
                blocks.append(Block(start, end, "table", context=names))
                names = names or one_line(text[start:end], 300)
    except csv.Error as error:  # a field over the limit of 131,072 characters, most often from a lone quote
        metadata["note"] = f"row at line {row + 1} is not valid CSV, the rest is indexed by lines: {error}"
        blocks += [
            Block(start, end, "table", context=names)
            for start, end in zip(starts[row:], starts[row + 1 :], strict=False)
            if text[start:end].strip()
        ]
    return Parsed(text, blocks, "", metadata)
