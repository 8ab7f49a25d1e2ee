"""Where sentences end, in English and Chinese prose, lists and code."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

# a sentence ends at a line break, after a full stop of an unspaced script, or after . ! ? before white space
_SENTENCE = re.compile(
    r"[^\n。！？.!?]*(?:[。！？]+[」』”’）)]*|[.!?]+[\"'”’)\]]*(?=\s|\Z)|[.!?]|(?=\n)|\Z)[^\S\n]*+(?:\n(?:[^\S\n]*+\n)*+)?"
)
_FENCED = re.compile(r"^[ \t]*(```|~~~)[^\n]*\n(?:[^\n]*\n)*?[ \t]*\1[^\n]*(?:\n(?:[^\S\n]*+\n)*+|\Z)", re.M)
_NO_END = re.compile(r"(?:\b(?:(?i:e\.\s?g|i\.\s?e|vs|cf|[a-z])|Dr|Mrs?|Ms|Prof|St|Fig)|^[ \t]*\d{1,9})\.\Z", re.M)
_MARKER = re.compile(r"[ \t]*(?:[-*+>|#•]|\d+[.)、]|```|~~~)")
_STOPS: Final = frozenset(".!?。！？；:：")
_WRAPPED_FROM: Final = 60  # columns


def sentences(text: str) -> list[str]:
    r"""Split a text into sentences that join to the text again.

    Lines end a sentence, but not where prose was wrapped at 60 columns or more. A fenced block is one sentence.

    >>> sentences("One. Two!\n三。四")
    ['One. ', 'Two!\n', '三。', '四']
    """
    parts: list[str] = []
    start = 0
    for first, end in fenced(text):
        parts += [*prose(text[start:first]), text[first:end]]
        start = end
    return parts + prose(text[start:])


def fenced(text: str) -> list[tuple[int, int]]:
    """Return where fenced blocks start and end, with the blank lines after them."""
    if "```" not in text and "~~~" not in text:
        return []
    return [match.span() for match in _FENCED.finditer(text)]


def prose(text: str) -> list[str]:
    """Split a text without fenced blocks, as `sentences` does."""
    parts: list[str] = []
    start = 0
    for match in _SENTENCE.finditer(text):
        end = match.end()
        # a stop with no white space after it was none: a number, a file name
        if end > start and (end == len(text) or text[end - 1] not in ".!?") and not _goes_on(text, start, end):
            parts.append(text[start:end])
            start = end
    return parts


def _goes_on(text: str, start: int, end: int) -> bool:
    """Tell whether what stops before `end` is an abbreviation, the number of an item, or a line that was wrapped."""
    stop = end
    while stop > start and text[stop - 1].isspace():
        stop -= 1
    if stop > start and text[stop - 1] == "." and "\n" not in text[stop:end] and end < len(text):
        return bool(_NO_END.search(text, max(start, stop - 12), stop))
    return _wrapped(text, start, end)


def _wrapped(text: str, start: int, end: int) -> bool:
    """Tell whether the line that ends before `end` goes on in the next one."""
    at = text.rfind("\n", start, end)
    if at < 0 or text[at + 1 : end].strip(" \t") or end == len(text) or text[max(start, at - 1)] == "\n":
        return False
    line = text[text.rfind("\n", 0, at) + 1 : at].rstrip()
    return bool(line) and line[-1] not in _STOPS and columns(line) >= _WRAPPED_FROM and not _MARKER.match(text, at + 1)


def columns(line: str) -> int:
    """Return how wide a line is shown: ideographs and kana take two columns."""
    return len(line) + (0 if line.isascii() else sum(unicodedata.east_asian_width(char) in "WF" for char in line))
