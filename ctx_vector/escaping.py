r"""Keeping text from forging structure.

The structure of a context is made of lines that start with an opening bracket (section headers, labels, markers),
lines of dashes (joiners), and, in the Context section, lines that start with a role or memory label. Every line of
caller's text that could be read as one of these gets one backslash, and `unescape` takes exactly that one away again.

The rule needs no list of names that could be bypassed. In each line, skip leading characters nobody sees (spaces,
format characters, marks, controls, invisible letters), then any backslashes; if what follows

- is an opening bracket other than ``(`` and ``{`` (Unicode Ps or Pi, or NFKC to ``[``),
- or is two or more dashes and nothing else,
- or, where labels are given, is a label with ``:`` or ``：``,

one backslash goes in before it. The lines the rule speaks of are the same before and after, but for the number of
backslashes, so the map is one-to-one and its inverse removes one.

>>> escape("[Task]\n---\n\\[x] (fine)")
'\\[Task]\n\\---\n\\\\[x] (fine)'
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from ctx_vector.values import clean_text

_LINE_BREAKS = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f]")

_INVISIBLE_LETTERS: Final = "\u115f\u1160\u3164\uffa0\u2800"
_INVISIBLE_CATEGORIES: Final = frozenset({"Zs", "Cf", "Mn", "Me", "Cc"})
# A line can only be suspect when its first character is no word character (or an invisible letter), or, where labels
# matter, when it holds a colon: so most lines are never looked at one by one.
_SUSPECT_START = re.compile(rf"^(?:[^\w\n]|[_{_INVISIBLE_LETTERS}])", re.M)
_COLON = re.compile("[:：]")
_LABEL_LINE = re.compile(r"^(?=[^:：\n]++[:：])", re.M)
_LONGEST_LABEL: Final = 80  # visible characters; `role_label` makes none over 60

#: Labels that are always escaped in the Context section, besides the roles of the build.
FIXED_LABELS: Final = ("system", "user", "assistant", "tool", "developer", "function", "Memory", "记忆")


# Passages are shown again and again: of texts up to so many characters, the last ones are remembered.
_KNOWN_CHARS: Final = 4000
_KNOWN: Final = 1024


def normalise(text: str) -> str:
    """Return `text` as it enters a context: line breaks as LF, controls as U+FFFD, no blank lines around it.

    CRLF, CR, VT, FF, U+001C-1E, U+0085, U+2028 and U+2029 become LF; other C0 controls (but TAB), DEL and lone
    surrogates become U+FFFD. A text of white space only becomes "".
    """
    return _normalised(text) if len(text) <= _KNOWN_CHARS else _normalised.__wrapped__(text)


@lru_cache(_KNOWN)
def _normalised(text: str) -> str:
    text = clean_text(text)
    if not text.isprintable():
        text = _LINE_BREAKS.sub("\n", text)
        text = _CONTROLS.sub("\ufffd", text)
        text = text[text.rfind("\n", 0, len(text) - len(text.lstrip())) + 1 :]
        tail = text.find("\n", len(text.rstrip()))
        text = text if tail < 0 else text[:tail]
    return "" if text.isspace() else text


def single_line(text: str) -> str:
    """Return a name or path on one line, with single blanks."""
    return " ".join(normalise(text).split())


def role_label(role: str) -> str:
    """Return a role as the label it gets in the Context section: one line, no colon, at most 60 characters, escaped."""
    return escape(single_line(re.sub("[:：]", " ", role))[:60].strip() or "user")


@lru_cache(maxsize=4096)
def _invisible(char: str) -> bool:
    return char in _INVISIBLE_LETTERS or unicodedata.category(char) in _INVISIBLE_CATEGORIES


@lru_cache(maxsize=4096)
def _opens(char: str) -> bool:
    if char in "({":
        return False
    return unicodedata.category(char) in ("Ps", "Pi") or unicodedata.normalize("NFKC", char).startswith("[")


@lru_cache(maxsize=4096)
def _dash(char: str) -> bool:
    return char == "\u2212" or unicodedata.category(char) == "Pd"  # the minus sign looks like one


@lru_cache(maxsize=256)
def _label_keys(labels: tuple[str, ...]) -> frozenset[str]:
    return frozenset(_label_key(label) for label in (*FIXED_LABELS, *labels))


def _label_key(label: str) -> str:
    folded = unicodedata.normalize("NFKC", label).casefold()
    return "".join(char for char in folded if not _invisible(char))


def _split_line(line: str) -> tuple[int, int]:
    """Return where the backslashes of a line start and end, after the characters nobody sees."""
    start = 0
    while start < len(line) and _invisible(line[start]):
        start += 1
    end = start
    while end < len(line) and line[end] == "\\":
        end += 1
    return start, end


def _is_structure(rest: str, labels: frozenset[str]) -> bool:
    """Tell whether a line's visible part, without its backslashes, could be read as structure."""
    if not rest:
        return False
    if _opens(rest[0]):
        return True
    if _dash(rest[0]) and len(rest) > 1:
        visible = _visible(rest)
        if len(visible) > 1 and all(map(_dash, visible)):
            return True
    if labels and (colon := _COLON.search(rest)):
        label = rest[: colon.start()]
        if len(label) > _LONGEST_LABEL:  # padded with what nobody sees, or no label
            label = _visible(label)
        return len(label) <= _LONGEST_LABEL and _label_key(label) in labels
    return False


def _visible(text: str) -> str:
    return "".join(char for char in text if not _invisible(char))


def _rewrite(text: str, labels: tuple[str, ...] | None, *, add: bool) -> str:
    keys = _label_keys(labels) if labels is not None else frozenset()
    starts = {match.start() for match in _SUSPECT_START.finditer(text)}
    if keys and (":" in text or "：" in text):
        starts.update(match.start() for match in _LABEL_LINE.finditer(text))
    pieces, done = [], 0
    for start in sorted(starts):
        stop = text.find("\n", start)
        line = text[start : stop if stop >= 0 else len(text)]
        slashes, end = _split_line(line)
        if not _is_structure(line[end:], keys):
            continue
        if add:
            pieces += [text[done : start + end], "\\"]
            done = start + end
        elif end > slashes:
            pieces.append(text[done : start + end - 1])
            done = start + end
    if not pieces:
        return text
    return "".join(pieces) + text[done:]


def escape(text: str, labels: Iterable[str] | None = None) -> str:
    """Return `text` with one backslash in each line that could be read as structure.

    `labels` (given for items of the Context section, also when empty) adds the roles of the build to FIXED_LABELS.
    """
    roles = tuple(labels) if labels is not None else None
    return _escaped(text, roles) if len(text) <= _KNOWN_CHARS else _rewrite(text, roles, add=True)


@lru_cache(_KNOWN)
def _escaped(text: str, labels: tuple[str, ...] | None) -> str:
    return _rewrite(text, labels, add=True)


def unescape(text: str, labels: Iterable[str] | None = None) -> str:
    """Undo `escape` with the same labels."""
    return _rewrite(text, tuple(labels) if labels is not None else None, add=False)
