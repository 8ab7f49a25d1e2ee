"""Two arms with different sessions each: the comparison of an online experiment, where nothing is paired.

The same kind of answer as significance.py gives for pairs: SciPy's permutation test (sessions are dealt anew to the two
arms), SciPy's bootstrap interval of the difference of means (Welch's t under 30 sessions an arm), Cohen's d with the
pooled deviation, and the smallest difference that so many sessions would show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ctx_vector.errors import InputError
from ctx_vector.experiments.significance import ALPHA, POWER, RESAMPLES, SMALL, load_scipy

Floats = NDArray[np.float64]
_BATCH: Final = 200


@dataclass(frozen=True, slots=True)
class Unpaired:
    """What two independent samples show, before any correction; see `significance.Paired` for the names."""

    count: int
    baseline_count: int
    mean: float
    baseline: float
    difference: float
    low: float
    high: float
    interval: str
    p: float
    deviation: float
    effect: float | None


def unpaired(
    values: Floats, baseline: Floats, *, seed: int = 0, resamples: int = RESAMPLES, alpha: float = ALPHA
) -> Unpaired:
    """Compare two samples, (n,) and (m,). Raises InputError for fewer than 2 values in either."""
    a, b = np.asarray(values, np.float64), np.asarray(baseline, np.float64)
    if min(len(a), len(b)) < 2 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InputError(f"expected 2 or more finite values an arm, got {len(a)} and {len(b)}")
    stats = load_scipy().stats
    deviation = math.sqrt(((len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)) / (len(a) + len(b) - 2))
    difference = float(a.mean() - b.mean())
    if np.ptp(np.concatenate([a, b])) == 0:
        return Unpaired(len(a), len(b), float(a.mean()), float(b.mean()), 0.0, 0.0, 0.0, "none", 1.0, 0.0, None)
    done = stats.permutation_test(
        (a, b), _difference, vectorized=True, n_resamples=resamples, batch=_BATCH, rng=np.random.default_rng(seed)
    )
    low, high, interval = _interval(stats, a, b, seed, resamples, alpha)
    return Unpaired(
        count=len(a),
        baseline_count=len(b),
        mean=float(a.mean()),
        baseline=float(b.mean()),
        difference=difference,
        low=low,
        high=high,
        interval=interval,
        p=float(min(1.0, done.pvalue)),
        deviation=deviation,
        effect=difference / deviation if deviation else None,
    )


def _difference(a: Floats, b: Floats, axis: int = -1) -> Floats:
    return np.asarray(np.mean(a, axis=axis) - np.mean(b, axis=axis))


def _interval(stats: Any, a: Floats, b: Floats, seed: int, resamples: int, alpha: float) -> tuple[float, float, str]:
    shares = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    if not any(shares):
        return float(a.mean() - b.mean()), float(a.mean() - b.mean()), "none: neither arm varies"
    if min(len(a), len(b)) < SMALL or not all(shares):
        free = sum(shares) ** 2 / (shares[0] ** 2 / (len(a) - 1) + shares[1] ** 2 / (len(b) - 1))
        half = float(stats.t.ppf(1 - alpha / 2, free)) * math.sqrt(sum(shares))
        return float(a.mean() - b.mean()) - half, float(a.mean() - b.mean()) + half, "Welch's t"
    bounds = stats.bootstrap(
        (a, b),
        _difference,
        confidence_level=1 - alpha,
        n_resamples=resamples,
        method="percentile",
        vectorized=True,
        batch=_BATCH,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(bounds.low), float(bounds.high), "percentile bootstrap"


def power(each: int, effect: float, alpha: float = ALPHA) -> float:
    """Return the chance that two arms of `each` sessions show a difference of Cohen's d `effect`, by the noncentral t.

    64 an arm and d 0.5: 0.80.
    """
    stats = load_scipy().stats
    if each < 2:
        return 0.0
    free, shift = 2 * each - 2, abs(effect) * math.sqrt(each / 2)
    line = stats.t.ppf(1 - alpha / 2, free)
    if shift > 37:
        return 1.0
    # far from the line SciPy has no number for what is nothing
    wrong_side = np.nan_to_num(stats.nct.cdf(-line, free, shift)) if shift < 5 else 0.0
    return float(stats.nct.sf(line, free, shift) + wrong_side)


@lru_cache(maxsize=256)
def smallest_effect(each: int, alpha: float = ALPHA, wanted: float = POWER) -> float:
    """Return the smallest Cohen's d that two arms of `each` sessions (2 or more) show with this power."""
    high = 1.0
    while power(each, high, alpha) < wanted and high < 1e6:
        high *= 2
    found = load_scipy().optimize.brentq(lambda effect: power(each, effect, alpha) - wanted, 0.0, high, xtol=1e-9)
    return float(found)


def sessions_needed(effect: float, alpha: float = ALPHA, wanted: float = POWER) -> int:
    """Return how many sessions an arm needs to show a difference of Cohen's d `effect`.

    >>> sessions_needed(0.5), sessions_needed(0.2)
    (64, 394)
    """
    if not 0.01 <= abs(effect) <= 100:
        raise InputError(f"effect: expected a Cohen's d of at least 0.01, got {effect!r}")
    low, high = 1, 2
    while power(high, effect, alpha) < wanted:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle, effect, alpha) >= wanted else (middle, high)
    return high
