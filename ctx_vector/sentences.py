"""Where sentences end, in English and Chinese prose, lists and code."""

from __future__ import annotations

import re
from typing import Final

# a sentence ends at a line break, after a full stop of an unspaced script, or after . ! ? before white space
_SENTENCE = re.compile(r"[^\n。！？；.!?]*(?:[。！？；]+[」』”’）)]*|[.!?]+[\"'”’)\]]*(?=\s|\Z)|[.!?]|\n+|\Z)\s*")

_FENCE = re.compile(r"^(```|~~~)[^\n]*\n(?:[^\n]*\n)*?\1[^\n]*(?:\n\s*|\Z)", re.M)
_MARKER = re.compile(r"[-*+>|#]|\d+[.)]|```|~~~")
_STOPS: Final = frozenset(".!?。！？；:：")
_WRAPPED_FROM: Final = 60


def sentences(text: str) -> list[str]:
    r"""Split a text into sentences that join to the text again.

    Lines end a sentence, but not where prose was wrapped at 60 columns or more. A fenced block is one sentence.

    >>> sentences("One. Two!\n三。四")
    ['One. ', 'Two!\n', '三。', '四']
    """
    parts: list[str] = []
    start = 0
    for fence in _FENCE.finditer(text):
        parts += _prose(text[start : fence.start()])
        parts.append(fence.group())
        start = fence.end()
    return parts + _prose(text[start:])


def _prose(text: str) -> list[str]:
    parts: list[str] = []
    start = 0
    for match in _SENTENCE.finditer(text):
        end = match.end()
        # a stop with no white space after it was none: a number, a file name
        if end > start and (end == len(text) or text[end - 1] not in ".!?") and not _wrapped(text, start, end):
            parts.append(text[start:end])
            start = end
    return parts


def _wrapped(text: str, start: int, end: int) -> bool:
    """Tell whether the line that ends before `end` goes on in the next one."""
    at = text.rfind("\n", start, end)
    if at < 0 or text[at + 1 : end].strip(" \t") or end == len(text) or text[max(start, at - 1)] == "\n":
        return False
    line = text[max(start, text.rfind("\n", start, at) + 1) : at].rstrip()
    return len(line) >= _WRAPPED_FROM and line[-1] not in _STOPS and not _MARKER.match(text, end)
