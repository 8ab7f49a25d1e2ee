"""Versions of one document: which is the newest, and that no older one stands beside it.

A version is compared part by part: numbers as numbers (1.10 is newer than 1.9), dates as dates, a full time as that
time, and words by the alphabet; `alpha`, `beta`, `rc` and the like come before the version they lead to. What stands
before the first digit (`v2`, `版本2`) does not count. Without a version is older than with any.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from ctx_vector.packets import Candidate

_PART: Final = re.compile(r"\d+|[^\W\d_]+")
_EARLIER: Final = frozenset("a alpha b beta c rc pre preview dev draft snapshot 草案 草稿 预览".split())
_SEPARATORS: Final = frozenset("年 月 日 号 版 第".split())
_END: Final = ((0, 0, ""),)
_MOST_DIGITS: Final = 60  # an integer of thousands of digits takes its time


def version_key(value: Any) -> tuple[tuple[int, int, str], ...]:
    """Return what sorts versions oldest first; equal versions, such as 2 and 2.0, have equal keys.

    >>> sorted(["1.10", "v1.9", "2.0", "2.0-rc1", "2024-05-01", "2024年4月30日"], key=version_key)
    ['v1.9', '1.10', '2.0-rc1', '2.0', '2024年4月30日', '2024-05-01']
    """
    if value is None:
        return ()
    text = value.isoformat() if hasattr(value, "isoformat") else str(value).strip()[:200]
    text = _date_parts(text)
    found: list[tuple[int, int, str]] = []
    for part in _PART.findall(text.casefold()):
        if part.isdigit() and part.isascii():
            found.append((2, int(part[:_MOST_DIGITS]), ""))
        elif part in _EARLIER:
            found.append((-1, 0, part))
        elif part not in _SEPARATORS and (found or not any(char.isdigit() for char in text)):
            found.append((1, 0, part))
    while found and found[-1] == (2, 0, ""):
        found.pop()
    return (*found, *_END)


def _date_parts(text: str) -> str:
    """Return a date without separators, or a time with a zone, as numbers that compare with those of other dates."""
    if re.fullmatch(r"(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[01])", text, re.ASCII):
        return f"{text[:4]} {text[4:6]} {text[6:]}"
    if re.match(r"\d{4}-\d\d-\d\d[T ]\d\d:?\d\d", text, re.ASCII):
        try:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is not None:
                moment = moment.astimezone(UTC)
            return moment.strftime("%Y %m %d %H %M %S %f")
        except (ValueError, OverflowError):
            pass
    return text


def supersede(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates, in their order, with the reason `superseded` for all but the newest version of a document.

    Two candidates are of one document when they have the same ``metadata["document_id"]`` (or ``document``); without
    one, when they have a version, the same source and the same ``metadata["source"]``. One without a version is older
    than one with, if they share a document_id. What is dropped for another reason than `expired`, and what the caller
    gave as custom packets, is left alone.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for at, candidate in enumerate(candidates):
        meta = candidate.packet.meta
        document = next((meta[name] for name in ("document_id", "document") if meta.get(name) is not None), None)
        if candidate.source == "custom" or candidate.reason not in ("", "expired"):
            continue
        if document is not None:
            groups.setdefault((str(document),), []).append(at)
        elif meta.get("version") is not None:
            groups.setdefault((candidate.source, str(meta.get("source", ""))), []).append(at)
    found = list(candidates)
    for group in groups.values():
        keys = {at: version_key(candidates[at].packet.meta.get("version")) for at in group}
        newest = max(group, key=lambda at: keys[at])
        for at in group:
            if keys[at] < keys[newest] and not found[at].reason:
                found[at] = replace(found[at], reason="superseded", detail=_why(found[at], found[newest]))
    return found


def _why(old: Candidate, new: Candidate) -> str:
    versions = [" ".join(str(item.packet.meta.get("version", "none")).split())[:60] for item in (old, new)]
    return f"version {versions[0]}; version {versions[1]} is there"
