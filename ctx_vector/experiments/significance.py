"""Is one arm better than another, or is it chance? Paired by query, and honest when the data cannot tell.

    paired(a, b)  one pair of value series -> Paired: difference, interval, p, effect size

Families of them, with a verdict each: comparison.py. What n pairs can find at all: power.py.

Values are paired: `a[i]` and `b[i]` are of the same query. The unit of chance is the query, or, with `groups`, all the
queries of a group together (questions about one conversation are alike, so they are no independent witnesses).

The test flips the signs of the units' differences (SciPy's `permutation_test`): exact, by all flips, up to 13 units
that differ, else by 9,999 random ones. It assumes no distribution. The interval is SciPy's BCa bootstrap where 30 units
or more differ. Under that a bootstrap is too narrow (of 8 recalls nominal 95 % covered 83 %; with 5 wins among 100 ties
it excludes 0, where p is 0.06), and the interval is made of the test itself: all differences that it would not refuse
(`_unrefused`); under 6 units it would have no bounds, and is Student's t. The effect size is Cohen's d_z, the mean
difference over the standard deviation of the differences.

Units are resampled in the order of their differences, from one seed: the same differences have the same interval and
the same p, whatever the arms and the metric are called. Intervals and `p` are of one comparison by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ctx_vector.errors import InputError
from ctx_vector.experiments.resampling import ALPHA, RESAMPLES, SMALL, Floats, Resampling, load_scipy

_ALL_FLIPS: Final = 13  # units; up to so many all flips are tried for an interval
_LEAST_FLIPS: Final = 999
_LEAST_UNITS: Final = 6  # under it no interval of the test is bounded


@dataclass(frozen=True, slots=True)
class Paired:
    """What one pair of series shows, before any correction.

    `units` is the number of independent units (queries or groups), `differing` how many of them have a difference.
    `low` and `high` bound the mean difference with 95 % (or 1 - `alpha`) confidence by the `interval` named. `p` is
    two-sided; `least_p` is the smallest one that so few differing units could give. `deviation` is the standard
    deviation of the units' differences, `effect` Cohen's d_z, None when they do not vary.
    """

    queries: int
    units: int
    differing: int
    mean: float
    baseline: float
    difference: float
    low: float
    high: float
    interval: str
    p: float
    least_p: float
    exact: bool
    deviation: float
    effect: float | None
    wins: int
    losses: int

    @property
    def bounded(self) -> bool:
        """Whether there is an interval: equal differences do not tell how much they vary."""
        return not self.interval.startswith("none")


def paired(
    values: Sequence[float] | Floats,
    baseline: Sequence[float] | Floats,
    *,
    groups: Sequence[str] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    alpha: float = ALPHA,
) -> Paired:
    """Compare two series of the same queries, (n,) each; `groups` (n,) makes the group the unit.

    The means are over queries in either case. Raises InputError for series of different lengths, fewer than 2 values,
    or values that are not finite.
    """
    a, b = np.asarray(values, np.float64), np.asarray(baseline, np.float64)
    if a.ndim != 1 or a.shape != b.shape or len(a) < 2:
        raise InputError(f"expected two series of the same 2 or more queries, got shapes {a.shape} and {b.shape}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InputError("expected finite values: leave out queries for which a metric is not defined, in both series")
    load_scipy()
    how = Resampling(seed, resamples, alpha)
    differences = a - b
    sums, counts = _units(differences, groups)
    order = np.lexsort((counts, sums))
    sums, counts = sums[order], counts[order]
    units = sums * len(sums) / counts.sum()  # so that their mean is the mean over queries
    if len(units) < 2:
        raise InputError("groups: expected 2 or more of them, got 1; compare by query instead")
    moved = units[units != 0]
    p, exact = _sign_flips(moved, how)
    if len(moved) < SMALL and np.ptp(units) > 0 and len(units) >= _LEAST_UNITS:
        low, high, interval = *_unrefused(sums, counts, how), "inverted test"
    else:
        low, high, interval = _interval(sums, counts, units, how)
    if p > alpha:  # they agree but for chance in the flips, and Student's t for fewer units may not
        low, high = min(low, 0.0), max(high, 0.0)
    deviation = float(np.std(units, ddof=1))
    flat = deviation <= 1e-12 * max(1.0, float(np.abs(units).max()))
    return Paired(
        queries=len(a),
        units=len(units),
        differing=len(moved),
        mean=float(a.mean()),
        baseline=float(b.mean()),
        difference=float(differences.mean()),
        low=low,
        high=high,
        interval=interval,
        p=p,
        least_p=min(1.0, 2.0 ** (1 - len(moved))),
        exact=exact,
        deviation=0.0 if flat else deviation,
        effect=None if flat else float(units.mean()) / deviation,
        wins=int((differences > 0).sum()),
        losses=int((differences < 0).sum()),
    )


def _units(differences: Floats, groups: Sequence[str] | None) -> tuple[Floats, Floats]:
    """Return the sum of differences and the number of queries of each unit."""
    if groups is None:
        return differences, np.ones(len(differences))
    if len(groups) != len(differences):
        raise InputError(f"groups: expected one for each of {len(differences)} queries, got {len(groups)}")
    _, at = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    return np.bincount(at, weights=differences).astype(np.float64), np.bincount(at).astype(np.float64)


def _sign_flips(moved: Floats, how: Resampling) -> tuple[float, bool]:
    """Return (two-sided p, whether all flips were tried). Units without a difference change nothing and are left out.

    Differences 1, 2, 3: two of the eight flips are as far from 0 as 6, so p = 0.25.
    """
    if len(moved) < 2:
        return 1.0, True
    return how.p((moved,), _mean, "samples"), 2 ** len(moved) <= how.resamples


def _unrefused(sums: Floats, counts: Floats, how: Resampling) -> tuple[float, float]:
    """Return the least and the largest difference that the flips of signs do not refuse at the level alpha.

    Flipping some units divides them into two parts; a difference is less extreme than that flip just when it lies
    between the means of the two parts (Hartigan 1969). So the bounds are order statistics of the smaller and of the
    larger of the two means, over all flips.

    Differences 1, 2, ..., 6: under 1 only two of the 64 flips are as extreme, p = 0.031; at 1 it is four, so 1 to 6.
    """
    units = len(sums)
    if units <= _ALL_FLIPS:
        batches = [(np.arange(2**units)[:, None] >> np.arange(units)) & 1]
    else:
        rng, flips = how.rng(), max(how.resamples, _LEAST_FLIPS)
        sizes = [min(how.batch, flips - start) for start in range(0, flips, how.batch)]
        batches = [np.zeros((1, units), np.int64), *(rng.integers(0, 2, (size, units)) for size in sizes)]
    lows, highs = [], []
    for batch in batches:
        flipped, weight = batch @ sums, batch @ counts
        with np.errstate(invalid="ignore", divide="ignore"):
            parts = np.stack([flipped / weight, (sums.sum() - flipped) / (counts.sum() - weight)])
        whole = (weight == 0) | (weight == counts.sum())
        lows.append(np.where(whole, -np.inf, parts.min(axis=0)))
        highs.append(np.where(whole, np.inf, parts.max(axis=0)))
    least, most = np.sort(np.concatenate(lows)), np.sort(np.concatenate(highs))
    at = math.floor(how.alpha * len(least) + 1e-9)
    return float(least[at]), float(most[-1 - at])


def _mean(values: Floats, axis: int = -1) -> Floats:
    return np.asarray(np.mean(values, axis=axis))


def _interval(sums: Floats, counts: Floats, units: Floats, how: Resampling) -> tuple[float, float, str]:
    mean = float(units.mean())
    rest = (
        (sums - mean * counts) * len(sums) / counts.sum()
    )  # of a ratio (Cochran 1977, ch. 6): large groups are no noise
    if np.abs(rest).max() <= 1e-12 * max(1.0, float(np.abs(units).max())):
        return mean, mean, "none: all differences are equal"
    if len(units) < SMALL:
        line = load_scipy().stats.t.ppf(1 - how.alpha / 2, len(units) - 1)
        half = float(line * np.std(rest, ddof=1) / math.sqrt(len(units)))
        return mean - half, mean + half, "Student's t"
    for method in ("BCa", "percentile"):  # where the first is not defined, the second is
        if (counts != 1).any():
            low, high = how.bounds((sums, counts), _ratio, method, paired=True)
        else:
            low, high = how.bounds((units,), _mean, method)
        if math.isfinite(low) and math.isfinite(high):
            return low, high, f"{method} bootstrap"
    return -math.inf, math.inf, "none"


def _ratio(sums: Floats, counts: Floats, axis: int = -1) -> Floats:
    return np.asarray(np.sum(sums, axis=axis) / np.sum(counts, axis=axis))


def mean_interval(
    values: Floats,
    *,
    groups: Sequence[str] | None = None,
    seed: int = 0,
    resamples: int = 999,
    alpha: float = ALPHA,
) -> tuple[float, float]:
    """Return the interval of one arm's mean (n,), for drawing: two arms are compared by `paired`, not by these."""
    sums, counts = _units(values, groups)
    if len(sums) < 2:
        return -math.inf, math.inf
    order = np.lexsort((counts, sums))
    sums, counts = sums[order], counts[order]
    return _interval(sums, counts, sums * len(sums) / counts.sum(), Resampling(seed, resamples, alpha))[:2]
