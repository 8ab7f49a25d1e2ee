"""The stable prefix of a context: what a prompt cache can use again.

The text starts with Role & Policies: system instructions first, then tool definitions. As long as these bytes are the
same from build to build, a server that caches prompts computes them once. Nothing of ours in them changes; what the
caller puts there can, and `volatile` finds the usual ones: times, ids of sessions and requests, random ids.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

_MONTH: Final = (
    r"\b(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?)(?![a-z])\.?"
)
_DAY_OF_MONTH: Final = rf"(?:{_MONTH} \d{{1,2}}(?!\d)|(?<!\d)\d{{1,2}} {_MONTH}(?![a-z])|(?<!\d)\d{{1,2}}月\d{{1,2}}日)"
_IN_NUMBERS: Final = r"(?<![\d./])\d{1,2}([./])\d{1,2}\1\d{4}(?!\d)"
_DAY: Final = (
    rf"(?:\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{4}}年\d{{1,2}}月\d{{1,2}}日"
    rf"|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}|(?<!\d)\d{{1,2}} {_MONTH} \d{{4}})"
)
_CLOCK: Final = r"(?<!\d)\d{1,2}[:：]\d\d(?!\d)"
_NOW: Final = r"(?:\b(?:today|now|current (?:date|time))\b|今天|今日|现在|当前(?:日期|时间))"
_PATTERNS: Final = (
    ("a time", re.compile(rf"{_DAY}[T ,]{{0,3}}\d{{1,2}}(?::\d\d|[时点])", re.I)),
    (
        "today's date",
        re.compile(
            # a clock only right after it: "now open until 18:00" stays what it is
            rf"{_NOW}(?:[^\n]{{0,20}}?(?:{_DAY}|{_DAY_OF_MONTH}|{_IN_NUMBERS})|(?:\s|[:：=,，(（]|\bis\b|的?时间|是|为){{0,5}}{_CLOCK})",
            re.I,
        ),
    ),
    ("a random id", re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.I)),
    ("a random id", re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{24,}\b", re.I)),
    ("seconds since 1970", re.compile(r"(?<![\d.])1[5-9]\d{8}(?:\d{3})?(?![\d.])")),
    (
        "an id of a session or request",
        re.compile(
            r"(?:\b(?:session|request|trace|conversation)[ _-]?id\b|(?:会话|请求|追踪)\s?(?:id|编号|标识))"
            r"\s*[:：=]\s*(?!(?:str|string|int|integer|uuid|none|null|optional)\b|[%{<])\S",  # not what kind it is
            re.I,
        ),
    ),
)


@lru_cache(maxsize=64)
def volatile(text: str) -> str:
    """Return what changes from build to build in a text, with where it is, in words; "" for nothing.

    >>> volatile("You are a clerk. Today is 2025-01-08.")
    "today's date ('Today is 2025-01-08')"
    """
    for name, pattern in _PATTERNS:
        if found := pattern.search(text):
            return f"{name} ({found.group()[:60]!r})"
    return ""


@lru_cache(maxsize=64)
def prefix_hash(text: str) -> str:
    """Return a digest of a prefix, 16 hex digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
