"""Recency equals the formula, computed apart from the code."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_vector.recency import recency

NOW = datetime(2026, 1, 8, 12, tzinfo=UTC)
DECAY = st.floats(0, 1e9)
FLOOR = st.floats(0, 1)
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))


def independent(seconds: int, decay: float, floor: float) -> float:
    """Decimal arithmetic: e ** (-decay * days), held between floor and 1."""
    if seconds <= 0:
        return 1.0
    with localcontext() as context:
        context.prec = 40
        value = (-Decimal(decay) * Decimal(seconds) / Decimal(86400)).exp()
    return float(min(Decimal(1), max(Decimal(floor), value)))


@given(st.integers(-(10**7), 10**9), DECAY, FLOOR)
def test_recency_is_the_formula(seconds: int, decay: float, floor: float) -> None:
    found = recency(NOW - timedelta(seconds=seconds), NOW, decay, floor)
    assert found == pytest.approx(independent(seconds, decay, floor), rel=1e-6, abs=1e-300)


@given(TIMES, TIMES, DECAY, FLOOR)
def test_recency_lies_between_floor_and_one_and_falls_with_age(
    one: datetime, other: datetime, decay: float, floor: float
) -> None:
    older, newer = sorted((one, other))
    assert floor <= recency(older, NOW, decay, floor) <= recency(newer, NOW, decay, floor) <= 1.0


def test_worked_values() -> None:
    week = NOW - timedelta(days=7)
    assert recency(week, NOW, 0.1, 0.1) == pytest.approx(0.4965853)
    assert recency(week, NOW, 0.01, 0.1) == pytest.approx(0.9323938)
    assert recency(week, NOW, 0.0, 0.1) == 1.0
    assert recency(NOW - timedelta(days=1000), NOW, 0.1, 0.1) == 0.1
    assert recency(NOW - timedelta(days=1000), NOW, 0.1, 0.0) == pytest.approx(0.0, abs=1e-40)
    assert recency(NOW - timedelta(days=1), NOW, 0.1, 1.0) == 1.0


def test_no_time_now_and_the_future_give_one() -> None:
    assert [recency(time, NOW, 0.5, 0.1) for time in (None, NOW, NOW + timedelta(days=9))] == [1.0, 1.0, 1.0]


def test_time_zones_do_not_matter() -> None:
    there = NOW.astimezone(timezone(timedelta(hours=8)))
    assert recency(there - timedelta(days=3), NOW, 0.1, 0.1) == recency(NOW - timedelta(days=3), NOW, 0.1, 0.1)
