"""Lengths of time, times and sizes as people write them: ``7d``, ``2026-01-31``, ``500MB``."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ctx_vector.errors import InputError
from ctx_vector.values import as_utc

_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_UNITS: Final = {"kb": 10**3, "mb": 10**6, "gb": 10**9}
_LEAST_SIZE: Final = 1_000_000

Since = str | float | datetime | timedelta | None


def span_of(value: Any, name: str) -> timedelta | None:
    """Return a length of time: a timedelta, seconds, or a text such as ``7d``, ``12h``, ``30m``.

    >>> span_of("1.5h", "since")
    datetime.timedelta(seconds=5400)
    """
    if value is None or isinstance(value, timedelta):
        return value
    if isinstance(value, str) and (match := _SPAN.fullmatch(value)):
        value = float(match[1]) * _SECONDS[match[2]]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e11:
        raise InputError(f"{name}: expected a length of time such as 7d, 12h or 30m, got {value!r:.40}")
    return timedelta(seconds=value)


def moment_of(value: Since, now: datetime, name: str = "since") -> datetime | None:
    """Return the time that an argument names: a length of time before now, or a time itself. None is the beginning."""
    if value is None:
        return None
    if isinstance(value, timedelta) or (isinstance(value, str) and _SPAN.fullmatch(value)):
        span = span_of(value, name) or timedelta()
        return now - min(span, now - datetime(1970, 1, 2, tzinfo=UTC))
    try:
        return as_utc(value, name)
    except InputError:
        raise InputError(
            f"{name}: expected a length of time such as 7d, 12h or 30m, or a time such as 2026-01-31, got {value!r:.40}"
        ) from None


def bytes_of(value: Any) -> int | None:
    """Return a size in bytes from a number or a text such as ``500MB``.

    >>> bytes_of("1.5 GB")
    1500000000
    """
    if value is None:
        return None
    number: Any = value
    if isinstance(value, str):
        text = value.strip().lower().replace(" ", "")
        unit = text[-2:]
        try:
            number = float(text[:-2]) * _UNITS[unit] if unit in _UNITS else float(text.removesuffix("b"))
        except ValueError:
            number = None
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not _LEAST_SIZE <= number <= 1e15:
        raise InputError(f"max_size: expected a size of at least 1MB, such as 500MB or bytes, got {value!r:.40}")
    return int(number)
