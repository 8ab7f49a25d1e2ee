"""Sorting many rows best first: by a number, and by the rest of a key only where the numbers are equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")


def best_first(rows: list[R], value: Callable[[R], float], rest: Callable[[R], Any]) -> None:
    """Sort rows in place by ``(-value, rest)``; `rest` is worked out only for rows of equal value.

    >>> rows = [(0.5, "b"), (0.9, "c"), (0.5, "a")]
    >>> best_first(rows, lambda row: row[0], lambda row: row[1])
    >>> rows
    [(0.9, 'c'), (0.5, 'a'), (0.5, 'b')]
    """
    rows.sort(key=value, reverse=True)
    values = list(map(value, rows))
    if len(set(values)) == len(values):
        return
    start = 0
    for stop in range(1, len(rows) + 1):
        if stop == len(rows) or values[stop] != values[start]:
            if stop - start > 1:
                rows[start:stop] = sorted(rows[start:stop], key=rest)
            start = stop
