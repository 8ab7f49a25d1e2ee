"""Versions of one document: which is the newest, and that no older one stands beside it.

A version is compared part by part: numbers as numbers (1.10 is newer than 1.9), dates as dates, a full time as that
time, and words by the alphabet; `alpha`, `beta`, `rc` and the like come before the version they lead to. What stands
before the first digit (`v2`, `版本2`) does not count. Without a version is older than with any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
            _without_zeros(found).append((-1, 0, part))
        elif part not in _SEPARATORS and (found or not any(char.isdigit() for char in text)):
            _without_zeros(found).append((1, 0, part))
    return (*_without_zeros(found), *_END)


def _without_zeros(parts: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Take zeros off the end: 2.0 is 2, and 2.0-rc1 comes before both."""
    while parts and parts[-1] == (2, 0, ""):
        parts.pop()
    return parts


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
    than one with, if they share a document_id. What has expired still takes the place of what is older; what is dropped
    for another reason, and what the caller gave as custom packets, is left alone.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for at, candidate in enumerate(candidates):
        meta = candidate.packet.meta
        document = document_of(meta)
        if (
            candidate.source == "custom"
            or candidate.message is not None
            or candidate.reason not in ("", "expired", "superseded")
        ):
            continue
        if document is not None:
            groups.setdefault((document,), []).append(at)
        elif meta.get("version") is not None:
            groups.setdefault((candidate.source, str(meta.get("source", ""))), []).append(at)
    found = list(candidates)
    for group in groups.values():
        keys = {at: version_key(candidates[at].packet.meta.get("version")) for at in group}
        newest = max(group, key=lambda at: keys[at])
        for at in group:
            if keys[at] < keys[newest] and not found[at].reason:
                why = newer(found[at].packet.meta, found[newest].packet.meta)
                found[at] = replace(found[at], reason="superseded", detail=why)
    return found


def document_of(metadata: Mapping[str, Any]) -> str | None:
    """Return which document this is, whatever its version: ``document_id`` or ``document``, as text."""
    given = next((metadata[name] for name in ("document_id", "document") if metadata.get(name) is not None), None)
    return None if given is None else str(given)


def newer(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the line that says why the old version is left out."""
    versions = [" ".join(str(meta.get("version", "none")).split())[:60] for meta in (old, new)]
    return f"version {versions[0]}; version {versions[1]} is there"
