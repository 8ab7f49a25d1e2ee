"""The cache equals a list of what was used, cut at its end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_vector.lru import LRU

STEPS = st.lists(st.tuples(st.sampled_from(["get", "put", "drop"]), st.integers(0, 6), st.integers(0, 4)), max_size=60)


@settings(deadline=None)
@given(STEPS, st.integers(0, 9), st.booleans())
def test_it_keeps_what_was_used_last_within_its_bound(steps, most, by_size):
    def size(value: int) -> int:
        return value if by_size else 1

    cache: LRU[int, int] = LRU(most, size)
    used: list[tuple[int, int]] = []  # the last one used comes last
    for step, key, value in steps:
        known = dict(used).get(key)
        if step == "get":
            assert cache.get(key) == known
        elif step == "put":
            cache.put({key: value})
        else:
            cache.drop([key])
        used = [item for item in used if item[0] != key]
        kept = {"get": known, "put": value, "drop": None}[step]
        if kept is not None:
            used.append((key, kept))
        while sum(size(kept) for _, kept in used) > most:
            used.pop(0)
    assert cache.get_many(range(7)) == dict(used)
