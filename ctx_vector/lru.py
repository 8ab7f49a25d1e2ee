"""A cache of what was used last, bounded by count or by size. Safe to use from several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LRU(Generic[K, V]):
    """At most `most` values, or values whose `size_of` adds up to at most that; the least recently used one goes first.

    >>> cache = LRU(2)
    >>> cache.put({"a": 1, "b": 2})
    >>> cache.get("a"), cache.put({"c": 3}), cache.get("b")
    (1, None, None)
    """

    def __init__(self, most: int, size_of: Callable[[V], int] = lambda _: 1) -> None:
        self._most = most
        self._size_of = size_of
        self.size = 0  # of all that is there
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return the value of a key, None when it is not there (any more)."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the values that are there, by key."""
        found: dict[K, V] = {}
        with self._lock:
            for key in keys:
                if key in self._values:
                    self._values.move_to_end(key)
                    found[key] = self._values[key]
        return found

    def put(self, values: Mapping[K, V]) -> None:
        """Put values in, and what is too much out."""
        with self._lock:
            for key, value in values.items():
                self._pop(key)
                self._values[key] = value
                self.size += self._size_of(value)
            while self.size > self._most:
                self._pop(next(iter(self._values)))

    def drop(self, keys: Iterable[K]) -> None:
        """Take values out, those that are there."""
        with self._lock:
            for key in keys:
                self._pop(key)

    def _pop(self, key: K) -> None:
        if key in self._values:
            self.size -= self._size_of(self._values.pop(key))
