"""What a loader hands to the chunker: a document's text and the blocks it is made of.

Positions are indices into `Document.text` (Unicode code points). Blocks are in order and never overlap; what
no block covers is blank, or front matter (which is metadata, not text to search).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any

TITLE_CHARS = 120  # a heading is shown in citations and repeated before each chunk: a longer one is cut here

# What would break a line or a terminal: replaced in titles and sources, kept in text.
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")

_ANCHOR = re.compile(r"[ \t]*\{[ \t]*[#.:][^{}\n]{0,200}\}[ \t]*$")
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_UNDERSCORED = re.compile(r"(?<!\w)(_{1,2})(?=\S)([^_]+)\1(?!\w)")
_DATE = re.compile(r"(\d{4})\s*[-/.年]\s*(\d{1,2})\s*[-/.月]\s*(\d{1,2})\s*日?")
_STATED = ("updated", "last_modified", "lastmod", "modified", "date_modified", "date", "published", "created")


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of the text that belongs together.

    `kind` is ``heading | prose | list | code | table | record``. A heading has a `level` from 1 to 6 and a
    `title` without markup; it may be empty (`start == end`) where a place has a name that is not in the text,
    such as "page 3". `context` is what a reader of this block alone would miss, such as the names of the columns.
    """

    start: int
    end: int
    kind: str
    level: int = 0
    title: str = ""
    context: str = ""


@dataclass(frozen=True)
class Document:
    r"""One loaded document.

    `source` is its identity, a path with ``/``. `text` has ``\n`` as its only line break, no lone surrogates and
    no NUL. `timestamp` is the date the document states about itself (aware, UTC) or None; never the file's mtime.
    `content_hash` is the SHA-256 of the raw bytes, in hex. `source_lines[i]` is the line of the file (1-based)
    that line i of the text came from; empty where the two are the same.
    """

    source: str
    text: str
    blocks: tuple[Block, ...] = ()
    title: str = ""
    timestamp: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    content_hash: str = ""
    source_lines: tuple[int, ...] = ()

    @cached_property
    def _line_starts(self) -> list[int]:
        return line_starts(self.text)

    def line_at(self, position: int) -> int:
        """Return the line (1-based) of the file that the character at `position` stands on."""
        line = bisect_right(self._line_starts, position)
        return self.source_lines[line - 1] if self.source_lines else line


@dataclass(slots=True)
class Parsed:
    """What one format's parser found; `load_document` makes a Document of it."""

    text: str
    blocks: list[Block]
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    source_lines: tuple[int, ...] = ()


def line_starts(text: str) -> list[int]:
    """Return the position of the first character of every line."""
    starts = [0]
    find = text.find
    at = find("\n")
    while at >= 0:
        starts.append(at + 1)
        at = find("\n", at + 1)
    return starts


def fill_gaps(text: str, blocks: Sequence[Block], start: int = 0) -> list[Block]:
    """Return the blocks in order, with prose blocks for non-blank text from `start` on that none of them covers.

    An overlapping block is cut to what the ones before it left.
    """
    filled: list[Block] = []
    at = start

    def gap(end: int) -> None:
        if text[at:end].strip():
            filled.append(Block(at, end, "prose"))

    for block in blocks:
        if block.start > at:
            gap(block.start)
        first = max(block.start, at)
        if block.end > first or block.kind == "heading":
            end = max(block.end, first)
            filled.append(Block(first, end, block.kind, block.level, block.title, block.context))
            at = end
    gap(len(text))
    return filled


def paragraphs(text: str, start: int = 0, end: int | None = None, kind: str = "prose") -> list[Block]:
    """Return a block for each run of non-blank lines of ``text[start:end]``."""
    blocks: list[Block] = []
    first = -1
    at, stop = start, len(text) if end is None else end
    while at < stop:
        brk = text.find("\n", at, stop)
        after = stop if brk < 0 else brk + 1
        blank = text[at:after].isspace()
        if blank and first >= 0:
            blocks.append(Block(first, at, kind))
            first = -1
        elif not blank and first < 0:
            first = at
        at = after
    if first >= 0:
        blocks.append(Block(first, stop, kind))
    return blocks


def plain_title(raw: str) -> str:
    """Return a heading as people read it: one line, without anchors, links, emphasis and tags.

    >>> plain_title("Add `Query` to **q** { #add-query-to-q }")
    'Add Query to q'
    """
    text = raw[: 4 * TITLE_CHARS].strip()
    text = _ANCHOR.sub("", text)
    text = _TAG.sub("", _LINK.sub(r"\1", text))
    text = _UNDERSCORED.sub(r"\2", text.replace("`", "").replace("**", "").replace("*", ""))
    return one_line(text)


def one_line(text: str, limit: int = TITLE_CHARS) -> str:
    """Return the first `limit` characters of a text, with single spaces and without controls."""
    text = " ".join(text[: 4 * limit].split())
    text = CONTROLS.sub("\ufffd", text)
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def strip_anchor(line: str) -> str:
    """Return a heading line without a MkDocs anchor such as ``{ #first-steps }`` at its end."""
    return _ANCHOR.sub("", line)


def as_utc(value: object) -> datetime | None:
    """Return a stated date as an aware UTC datetime, or None when it is no date.

    A date alone is midnight UTC, and so is a time without a zone read as UTC: the same file has to mean the same
    moment on every machine.

    >>> as_utc("2024年5月1日")
    datetime.datetime(2024, 5, 1, 0, 0, tzinfo=datetime.timezone.utc)
    """
    if isinstance(value, str):
        value = _parse_date(value.strip()[:100])
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        try:
            return aware.astimezone(UTC)
        except (OverflowError, ValueError):  # year 1 or 9999 shifted out of the calendar
            return None
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return None


def _parse_date(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        pass
    if match := _DATE.match(text):
        year, month, day = (int(part) for part in match.groups())
        try:
            return datetime(year, month, day)
        except ValueError:
            return None
    try:
        return parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        pass
    for form in ("%B %d, %Y", "%d %B %Y", "%b %d, %Y", "%d %b %Y"):
        try:
            return datetime.strptime(text, form)
        except ValueError:
            continue
    return None


def stated_date(metadata: Mapping[str, Any]) -> datetime | None:
    """Return the newest kind of date that metadata states: when it was updated before when it was written."""
    known = {str(key).lower().replace("-", "_"): value for key, value in metadata.items()}
    for key in _STATED:
        if (moment := as_utc(known.get(key))) is not None:
            return moment
    return None
