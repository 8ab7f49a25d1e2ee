"""Is one arm better than another, or is it chance? Paired by query, and honest when the data cannot tell.

    paired(a, b)            one pair of value series -> Paired: difference, interval, p, effect size
    compare_all(named)      a family of them -> Comparison each: Holm's correction, smallest effect, a verdict in words
    smallest_effect, power  what n pairs can find at all

Values are paired: `a[i]` and `b[i]` are of the same query. The unit of chance is the query, or, with `groups`, all the
queries of a group together (questions about one conversation are alike, so they are no independent witnesses).

The test flips the signs of the units' differences (SciPy's `permutation_test`): exact, by all flips, up to 13 units
that differ, else by 9,999 random ones. It assumes no distribution. The interval is SciPy's BCa bootstrap where 30 units
or more differ. Under that a bootstrap is too narrow (of 8 recalls nominal 95 % covered 83 %; with 5 wins among 100 ties
it excludes 0, where p is 0.06), and the interval is made of the test itself: all differences that it would not refuse
(`_unrefused`); under 6 units it would have no bounds, and is Student's t. The effect size is Cohen's d_z, the mean
difference over the standard deviation of the differences. SciPy is loaded in here only.

Units are resampled in the order of their differences, from one seed: the same differences have the same interval and
the same p, whatever the arms and the metric are called. Intervals and `p` are of one comparison by itself; `p_holm`,
which the verdict goes by, is corrected for all of them.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ctx_vector.errors import InputError, OptionalDependencyError

RESAMPLES: Final = 9_999
ALPHA: Final = 0.05
POWER: Final = 0.8
SMALL: Final = 30  # units that differ; under it the interval is that of the test
_ALL_FLIPS: Final = 13  # units; up to so many all flips are tried for an interval
_LEAST_FLIPS: Final = 999
_LEAST_UNITS: Final = 6  # under it no interval of the test is bounded
_BATCH: Final = 500  # resamples at a time, which bounds the memory

Floats = NDArray[np.float64]

BETTER: Final = "better"
WORSE: Final = "worse"
UNSHOWN: Final = "no difference shown"


def load_scipy() -> Any:
    """Return SciPy. Raises OptionalDependencyError with the line that installs it."""
    try:
        import scipy.optimize
        import scipy.stats
    except ImportError:
        raise OptionalDependencyError("comparing arms", "lab") from None
    return scipy


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
    stats = load_scipy().stats
    differences = a - b
    sums, counts = _units(differences, groups)
    order = np.lexsort((counts, sums))
    sums, counts = sums[order], counts[order]
    units = sums * len(sums) / counts.sum()  # so that their mean is the mean over queries
    if len(units) < 2:
        raise InputError("groups: expected 2 or more of them, got 1; compare by query instead")
    moved = units[units != 0]
    p, exact = _sign_flips(stats, moved, seed, resamples)
    if len(moved) < SMALL and np.ptp(units) > 0 and len(units) >= _LEAST_UNITS:
        low, high, interval = *_unrefused(sums, counts, seed, resamples, alpha), "inverted test"
    else:
        low, high, interval = _interval(stats, sums, counts, units, seed, resamples, alpha)
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


def _sign_flips(stats: Any, moved: Floats, seed: int, resamples: int) -> tuple[float, bool]:
    """Return (two-sided p, whether all flips were tried). Units without a difference change nothing and are left out.

    Differences 1, 2, 3: two of the eight flips are as far from 0 as 6, so p = 0.25.
    """
    if len(moved) < 2:
        return 1.0, True
    done = stats.permutation_test(
        (moved,),
        _mean,
        permutation_type="samples",
        n_resamples=resamples,
        vectorized=True,
        batch=_BATCH,
        rng=np.random.default_rng(seed),
    )
    return float(min(1.0, done.pvalue)), 2.0 ** len(moved) <= resamples


def _unrefused(sums: Floats, counts: Floats, seed: int, resamples: int, alpha: float) -> tuple[float, float]:
    """Return the least and the largest difference that the flips of signs do not refuse at the level `alpha`.

    Flipping some units divides them into two parts; a difference is less extreme than that flip just when it lies
    between the means of the two parts (Hartigan 1969). So the bounds are order statistics of the smaller and of the
    larger of the two means, over all flips.

    Differences 1, 2, ..., 6: under 1 only two of the 64 flips are as extreme, p = 0.031; at 1 it is four, so 1 to 6.
    """
    units = len(sums)
    if units <= _ALL_FLIPS:
        batches = [(np.arange(2**units)[:, None] >> np.arange(units)) & 1]
    else:
        rng, flips = np.random.default_rng(seed), max(resamples, _LEAST_FLIPS)
        sizes = [min(_BATCH, flips - start) for start in range(0, flips, _BATCH)]
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
    at = math.floor(alpha * len(least) + 1e-9)
    return float(least[at]), float(most[-1 - at])


def _mean(values: Floats, axis: int = -1) -> Floats:
    return np.asarray(np.mean(values, axis=axis))


def _interval(
    stats: Any, sums: Floats, counts: Floats, units: Floats, seed: int, resamples: int, alpha: float
) -> tuple[float, float, str]:
    mean = float(units.mean())
    if np.ptp(units) <= 1e-12 * max(1.0, float(np.abs(units).max())):
        return mean, mean, "none: all differences are equal"
    if len(units) < SMALL:
        half = float(stats.t.ppf(1 - alpha / 2, len(units) - 1) * np.std(units, ddof=1) / math.sqrt(len(units)))
        return mean - half, mean + half, "Student's t"
    clustered = bool((counts != 1).any())
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # BCa says that it is not defined here; the next method then is
            done = stats.bootstrap(
                (sums, counts) if clustered else (units,),
                _ratio if clustered else _mean,
                paired=clustered,
                confidence_level=1 - alpha,
                n_resamples=resamples,
                method=method,
                vectorized=True,
                batch=_BATCH,
                rng=np.random.default_rng(seed),
            )
        low, high = float(done.confidence_interval.low), float(done.confidence_interval.high)
        if math.isfinite(low) and math.isfinite(high):
            return low, high, f"{method} bootstrap"
    return -math.inf, math.inf, "none"


def _ratio(sums: Floats, counts: Floats, axis: int = -1) -> Floats:
    return np.asarray(np.sum(sums, axis=axis) / np.sum(counts, axis=axis))


def mean_interval(values: Floats, *, seed: int = 0, resamples: int = 999, alpha: float = ALPHA) -> tuple[float, float]:
    """Return the interval of one arm's mean (n,), for drawing: two arms are compared by `paired`, not by these."""
    if len(values) < 2:
        return -math.inf, math.inf
    ones, values = np.ones(len(values)), np.sort(values)
    return _interval(load_scipy().stats, values, ones, values, seed, resamples, alpha)[:2]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's step-down corrected p values, in the order given (Holm 1979).

    >>> [round(p, 6) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        least = max(least, min(1.0, p_values[at] * (len(p_values) - rank)))
        corrected[at] = least
    return corrected


def power(n: int, effect: float, alpha: float = ALPHA) -> float:
    """Return the chance that n pairs show a difference of `effect` (Cohen's d_z), two-sided, by the noncentral t.

    64 pairs and d_z 0.355: 0.8.
    """
    stats = load_scipy().stats
    if n < 2:
        return 0.0
    line, shift = stats.t.ppf(1 - alpha / 2, n - 1), abs(effect) * math.sqrt(n)
    if not math.isfinite(line) or shift > 37:  # beyond it nct has no digits left, and there is no doubt left
        return float(shift > line)
    # far from the line SciPy has no number for what is nothing
    wrong_side = np.nan_to_num(stats.nct.cdf(-line, n - 1, shift)) if shift < 5 else 0.0
    return float(stats.nct.sf(line, n - 1, shift) + wrong_side)


@lru_cache(maxsize=512)
def smallest_effect(n: int, alpha: float = ALPHA, wanted: float = POWER) -> float | None:
    """Return the smallest d_z that n pairs show with this power; None when n < 2."""
    if n < 2:
        return None
    high = 1.0
    while power(n, high, alpha) < wanted:
        high *= 2
        if high > 1e6:
            return None
    return float(load_scipy().optimize.brentq(lambda effect: power(n, effect, alpha) - wanted, 0.0, high, xtol=1e-9))


def needed(effect: float, alpha: float = ALPHA, wanted: float = POWER) -> int:
    """Return the least number of pairs that show an effect of this d_z with this power.

    >>> needed(0.5), needed(0.2)
    (34, 199)
    """
    if effect == 0:
        raise InputError("effect: expected a number other than 0; no number of queries shows no difference")
    low, high = 1, 2
    while power(high, effect, alpha) < wanted:
        low, high = high, high * 2
        if high > 10_000_000:
            return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle, effect, alpha) >= wanted else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class Comparison:
    """One arm against the baseline in one metric, corrected for all the comparisons it was made with.

    `metric` is like ``evidence_recall@500``. `smallest` is the smallest difference in the metric's own unit that so
    many units show with 80 % power at the corrected level; None when nothing varies. `verdict` is better, worse or
    no difference shown; `words` says it in a sentence.
    """

    arm: str
    against: str
    metric: str
    unit: str
    found: Paired
    p_holm: float
    family: int
    smallest: float | None
    verdict: str
    words: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values with stable keys."""
        found = self.found
        return {
            "arm": self.arm,
            "against": self.against,
            "metric": self.metric,
            "value": round(found.mean, 6),
            "baseline": round(found.baseline, 6),
            "difference": round(found.difference, 6),
            "low": _finite(found.low),
            "high": _finite(found.high),
            "interval": found.interval,
            "p": round(found.p, 6),
            "p_holm": round(self.p_holm, 6),
            "exact": found.exact,
            "effect_dz": None if found.effect is None else round(found.effect, 6),
            "smallest_detectable": None if self.smallest is None else round(self.smallest, 6),
            "unit": self.unit,
            "units": found.units,
            "wins": found.wins,
            "losses": found.losses,
            "ties": found.queries - found.wins - found.losses,
            "verdict": self.verdict,
            "words": self.words,
        }


def _finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def seed_of(seed: int, *names: str) -> int:
    """Return a seed that depends on what is compared and not on the order of comparing."""
    return zlib.crc32("\0".join([str(seed), *names]).encode())


def resamples_for(family: int, resamples: int = RESAMPLES, alpha: float = ALPHA) -> int:
    """Return how many resamples a family of comparisons takes: the smallest p there can be is 2 / (resamples + 1), and
    that times the family has to stay well under alpha.
    """
    return max(resamples, math.ceil(4 * family / alpha))


def compare_all(
    named: Mapping[
        tuple[str, str, str], tuple[Sequence[float] | Floats, Sequence[float] | Floats, Sequence[str] | None]
    ],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    alpha: float = ALPHA,
    small_is_better: Sequence[str] = (),
) -> list[Comparison]:
    """Compare a family: {(arm, against, metric): (values, baseline values, groups or None)}, corrected together.

    `small_is_better` names metrics of which less is better. There are as many resamples as it takes for a clear
    difference to stand the correction, if `resamples` are too few.
    """
    resamples = resamples_for(len(named), resamples, alpha)
    found = {
        key: paired(a, b, groups=groups, seed=seed, resamples=resamples, alpha=alpha)
        for key, (a, b, groups) in named.items()
    }
    corrected = dict(zip(found, holm([one.p for one in found.values()]), strict=True))
    made = []
    for (arm, against, metric), one in found.items():
        grouped = named[arm, against, metric][2] is not None
        level = alpha / len(found)
        effect = smallest_effect(one.units, level)
        smallest = None if effect is None or not one.deviation else effect * one.deviation
        verdict = UNSHOWN
        if corrected[arm, against, metric] <= alpha:
            verdict = BETTER if (one.difference > 0) != (metric.split("@")[0] in small_is_better) else WORSE
        p = corrected[arm, against, metric]
        words = _words(arm, against, metric, one, p, len(found), smallest, verdict, grouped, alpha)
        made.append(
            Comparison(
                arm,
                against,
                metric,
                "group" if grouped else "query",
                one,
                corrected[arm, against, metric],
                len(found),
                smallest,
                verdict,
                words,
            )
        )
    return made


def _words(
    arm: str,
    against: str,
    metric: str,
    found: Paired,
    p: float,
    family: int,
    smallest: float | None,
    verdict: str,
    grouped: bool,
    alpha: float,
) -> str:
    units = f"{found.units} {'groups' if grouped else 'queries'}"
    if not found.differing:
        return f"{arm} and {against} have the same {metric} for all of {units}: no difference shown."
    level, bounds = f"{100 * (1 - alpha):g} % interval", f"{found.low:+.3f} to {found.high:+.3f}"
    figures = f"{found.difference:+.3f} ({level} {bounds}, p = {p:.2g})"
    if family > 1:
        figures = (
            f"{found.difference:+.3f} (by itself {level} {bounds} and p = {found.p:.2g}; corrected for {family} "
            f"comparisons p = {p:.2g})"
        )
    if verdict != UNSHOWN:
        return f"{arm} is {verdict} than {against} in {metric}: {figures}, {units}."
    text = f"No difference between {arm} and {against} in {metric} is shown: {figures}."
    if found.least_p * family > alpha:
        could = "no result" if found.least_p > alpha else "hardly any result"
        return f"{text} As only {found.differing} of {units} differ, {could} could have shown one; more are needed."
    if smallest is not None:
        text += f" With {units}, one of {smallest:.3f} or more would be found 4 times in 5."
    return text
