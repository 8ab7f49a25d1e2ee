"""Where a long text may be cut: at the strongest boundary near a wished length, never inside a character.

The place is chosen by what stands there, not by how far it is from the start of the text, so that an edit moves
only the cuts around it.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Callable, Iterator

WINDOW = 0.6  # a cut is looked for between this share of the wished length and the whole of it
_HASHED = 48  # characters after a boundary that decide between equal ones
_LONGEST_WORD = 100
_LONGEST_CLUSTER = 64  # code points; a longer pile of marks is no character but an attack

# Cuts at lines come right after the line break: the next line keeps its indentation.
_BLANK_LINE = re.compile(r"\n(?:[ \t]*+\n)++")
_LINE = re.compile(r"\n++")
_SENTENCE = re.compile(
    r"[。！？；…｡．।۔؟]++[”’」』）】》\"']{0,3}+\s*+"
    r"|(?<=[.!?;])[\"'”’)\]]{0,3}+\s++"
    r"|\n++"
)
_CLAUSE = re.compile(r"[，、：、،]\s*+|(?<=[,:])\s++")
_SPACE = re.compile(r"\s++")
_CELL = re.compile(r"[|\t,;]")
_TOP_LINE = re.compile(r"\n++(?=[^\s)\]}])")  # the next line is not indented: a statement, not its inside

_LADDERS: dict[str, tuple[re.Pattern[str], ...]] = {
    "prose": (_BLANK_LINE, _SENTENCE, _CLAUSE, _SPACE),
    "list": (_BLANK_LINE, _LINE, _SENTENCE, _CLAUSE, _SPACE),
    "code": (_BLANK_LINE, _TOP_LINE, _LINE, _SENTENCE, _SPACE),
    "table": (_LINE, _CELL, _SPACE),
    "record": (_LINE, _SENTENCE, _CELL, _SPACE),
}


def cut(text: str, start: int, end: int, kind: str, length_at: Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """Yield spans that cover ``text[start:end]`` in order, each at most ``length_at(its start)`` characters long.

    `kind` is a block's kind: code is cut at blank lines and top-level lines first, tables at rows, prose at blank
    lines, sentences, clauses, spaces, and only then between characters.
    """
    ladder = _LADDERS.get(kind, _LADDERS["prose"])
    while start < end:
        longest = max(1, length_at(start))
        if end - start <= longest:
            yield start, end
            return
        at = _boundary(text, start, start + longest, ladder)
        yield start, at
        start = at


def _boundary(text: str, start: int, stop: int, ladder: tuple[re.Pattern[str], ...]) -> int:
    """Return a position in (start, stop] to cut at."""
    low = start + max(1, int((stop - start) * WINDOW))
    for pattern in ladder:
        # White space that reaches the end of the window may go on after it; a cut inside it does no harm.
        places = [at for match in pattern.finditer(text, low - 1, stop) if low <= (at := match.end())]
        if places:
            return min(places, key=lambda at: (content_hash(text, at), at))
    return whole_characters(text, start, stop)


def content_hash(text: str, at: int) -> int:
    """Return a number that depends only on what follows a position."""
    return zlib.crc32(text[at : at + _HASHED].encode("utf-8", "replace"))


def whole_characters(text: str, start: int, at: int) -> int:
    """Return the last position in (start, at] that is not inside what people see as one character.

    Falls back to `at` itself when all of the last 64 code points hang together.
    """
    place = at
    while place > start and at - place < _LONGEST_CLUSTER and _joined(text, start, place):
        place -= 1
    return place if start < place and at - place < _LONGEST_CLUSTER else at


def whole_words(text: str, start: int, at: int) -> int:
    """Return the last position in [start, at] that is inside no word, number or address; `start` if there is none.

    What goes on for over a hundred characters is cut anywhere.
    """
    place = at
    while start < place < len(text) and (_written_together(text, place) or _joined(text, start, place)):
        if at - place == _LONGEST_WORD:
            return at
        place -= 1
    return place


def _written_together(text: str, at: int) -> bool:
    pair = text[at - 1 : at + 1]
    return max(pair) < "\u2e80" and not (pair[0].isspace() or pair[1].isspace())


def _joined(text: str, start: int, at: int) -> bool:
    """Tell whether the characters before and after a position belong together."""
    if at >= len(text):
        return False
    before, after = text[at - 1], text[at]
    if after < "\u0300":
        return before == "\r" and after == "\n"
    if "\uac00" <= after <= "\ud7a3" or "\u4e00" <= after <= "\u9fff":
        return before == "\u200d"
    if before == "\u200d" or after == "\u200d" or unicodedata.category(after)[0] == "M":
        return True
    if after in "\u0e33\u0eb3":
        return True  # Thai and Lao "am", half of which is a mark
    if "\u1160" <= after <= "\u11ff" or "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f":
        return True  # the rest of a Korean syllable, a skin tone, a flag's tag
    if _regional(after) and _regional(before):
        first = at - 1
        while first > start and _regional(text[first - 1]):
            first -= 1
        return (at - first) % 2 == 1  # flags are pairs
    return False


def _regional(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"
