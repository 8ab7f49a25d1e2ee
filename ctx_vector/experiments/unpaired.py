"""Two arms with different sessions each: the comparison of an online experiment, where nothing is paired.

The same kind of answer as significance.py gives for pairs: SciPy's permutation test (sessions are dealt anew to the two
arms), SciPy's bootstrap interval of the difference of means (Welch's t under 30 sessions an arm), Cohen's d with the
pooled deviation. What so many sessions would show: power.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from ctx_vector.errors import InputError
from ctx_vector.experiments.power import POWER, needed
from ctx_vector.experiments.resampling import ALPHA, RESAMPLES, SMALL, Floats, Resampling, load_scipy

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

    @property
    def bounded(self) -> bool:
        """Whether there is an interval: arms that do not vary give none."""
        return not self.interval.startswith("none")


def unpaired(
    values: Floats, baseline: Floats, *, seed: int = 0, resamples: int = RESAMPLES, alpha: float = ALPHA
) -> Unpaired:
    """Compare two samples, (n,) and (m,). Raises InputError for fewer than 2 values in either."""
    a, b = np.asarray(values, np.float64), np.asarray(baseline, np.float64)
    if min(len(a), len(b)) < 2 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InputError(f"expected 2 or more finite values an arm, got {len(a)} and {len(b)}")
    how = Resampling(seed, resamples, alpha, _BATCH)
    deviation = math.sqrt(((len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)) / (len(a) + len(b) - 2))
    difference = float(a.mean() - b.mean())
    if np.ptp(np.concatenate([a, b])) == 0:
        return Unpaired(len(a), len(b), float(a.mean()), float(b.mean()), 0.0, 0.0, 0.0, "none", 1.0, 0.0, None)
    low, high, interval = _interval(a, b, how)
    return Unpaired(
        count=len(a),
        baseline_count=len(b),
        mean=float(a.mean()),
        baseline=float(b.mean()),
        difference=difference,
        low=low,
        high=high,
        interval=interval,
        p=how.p((a, b), _difference, "independent"),
        deviation=deviation,
        effect=difference / deviation if deviation else None,
    )


def _difference(a: Floats, b: Floats, axis: int = -1) -> Floats:
    return np.asarray(np.mean(a, axis=axis) - np.mean(b, axis=axis))


def _interval(a: Floats, b: Floats, how: Resampling) -> tuple[float, float, str]:
    difference = float(a.mean() - b.mean())
    shares = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    if not any(shares):
        return difference, difference, "none: neither arm varies"
    if min(len(a), len(b)) < SMALL or not all(shares):
        free = sum(shares) ** 2 / (shares[0] ** 2 / (len(a) - 1) + shares[1] ** 2 / (len(b) - 1))
        half = float(load_scipy().stats.t.ppf(1 - how.alpha / 2, free)) * math.sqrt(sum(shares))
        return difference - half, difference + half, "Welch's t"
    return *how.bounds((a, b), _difference, "percentile"), "percentile bootstrap"


def sessions_needed(effect: float, alpha: float = ALPHA, wanted: float = POWER) -> int:
    """Return how many sessions an arm needs to show a difference of Cohen's d `effect`.

    >>> sessions_needed(0.5), sessions_needed(0.2)
    (64, 394)
    """
    if not 0.01 <= abs(effect) <= 100:
        raise InputError(f"effect: expected a Cohen's d of at least 0.01, got {effect!r}")
    return needed(effect, alpha, wanted, samples=2)
