"""Text on a terminal: how wide it is (Chinese takes two columns a character), wrapping, cutting, colours."""

from __future__ import annotations

import codecs
import os
import re
import sys
import unicodedata
from typing import Final

from ctx_vector.errors import InputError

_WIDE: Final = ("W", "F")
_NO_WIDTH: Final = ("Mn", "Me", "Cf")
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_TOKENS: Final = re.compile(
    r"\s+|[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]|[^\s\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]+"
)
# marks that must not begin a line: 避头
_CLOSING: Final = "，。、；：？！）》」』】〕…—”’％,.;:?!)]}%"
BOLD: Final = "1"
DIM: Final = "2"
GREEN: Final = "32"
YELLOW: Final = "33"


def plain(text: str) -> str:
    """Return the text without what could steer a terminal; tabs become spaces."""
    return _CONTROLS.sub("\ufffd", text.replace("\r\n", "\n").expandtabs(4))


def width(text: str) -> int:
    """Return how many columns a line takes.

    >>> width("path 路径")
    9
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(char) in _NO_WIDTH else 2 if unicodedata.east_asian_width(char) in _WIDE else 1
        for char in text
    )


def cut(text: str, columns: int) -> str:
    """Return the line, ending in ``…`` where it is longer than `columns`."""
    if width(text) <= columns:
        return text
    used, end = 0, 0
    for char in text:
        used += width(char)
        if used > columns - 1:
            break
        end += 1
    return text[:end].rstrip() + "…"


def cut_start(text: str, columns: int) -> str:
    """Return the line, beginning with ``…`` where it is longer than `columns`: the end of a path says more."""
    if width(text) <= columns:
        return text
    used, start = 0, len(text)
    for char in reversed(text):
        used += width(char)
        if used > columns - 1:
            break
        start -= 1
    return "…" + text[start:]


def wrap(text: str, columns: int, most: int) -> list[str]:
    """Return at most `most` lines of at most `columns`; the last ends in ``…`` if there is more."""
    lines: list[str] = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        lines += _wrapped(line.rstrip(), columns)
        if len(lines) > most:
            last = lines[most - 1]
            return [*lines[: most - 1], cut(last, columns - 1).removesuffix("…") + "…"]
    return lines


def _wrapped(line: str, columns: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())][: columns // 2]
    lines, current, used = [], indent, width(indent)
    room = columns if line.isascii() else columns - 2  # where a mark that must not begin a line may stand
    for token in _TOKENS.findall(line.lstrip()):
        wide = width(token)
        if used + wide > (columns if token in _CLOSING else room) and current.strip():
            lines.append(current.rstrip())
            current, used = indent, width(indent)
            if token.isspace():
                continue
        while used + wide > room and len(token) > 1:  # a word longer than the line
            piece = cut(token, room - used + 1).removesuffix("…")
            if not piece:
                break
            lines.append(current + piece)
            token = token[len(piece) :]
            current, used, wide = indent, width(indent), width(token)
        current += token
        used += wide
    return [*lines, current.rstrip()] if current.strip() else lines


def columns(default: int = 100) -> int:
    """Return the width of the terminal, or of `COLUMNS`; `default` when stdout is no terminal."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) >= 20:
        return int(given)
    try:
        return max(40, os.get_terminal_size(sys.stdout.fileno()).columns)
    except (OSError, ValueError):
        return default


def coloured() -> bool:
    """Whether stdout shows colours: a terminal, and nobody said no (NO_COLOR)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def style(text: str, *codes: str) -> str:
    """Return the text in these ANSI styles, where stdout shows them."""
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if text and coloured() else text


def read_text(path: str, what: str) -> str:
    """Return the text of a file (``-``: stdin) in UTF-8, or in UTF-16 with its mark, as Windows PowerShell writes.

    Raises InputError when it is neither, OSError when not readable.
    """
    if path == "-":
        data = sys.stdin.buffer.read()
    else:
        with open(path, "rb") as file:
            data = file.read()
    marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{what}: {path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    return text if path == "-" else text.replace("\r\n", "\n").replace("\r", "\n")
