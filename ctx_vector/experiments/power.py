"""What so many pairs, or two arms of so many each, can find at all: power by the noncentral t distribution.

`samples` 1 is one sample of differences (n pairs; the effect is Cohen's d_z), 2 is two arms of n each (Cohen's d with
the pooled deviation).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np

from ctx_vector.errors import InputError
from ctx_vector.experiments.resampling import ALPHA, load_scipy

POWER: Final = 0.8
_BEYOND_DOUBT: Final = 37  # a noncentrality over it: the distribution has no digits left
_MOST: Final = 10_000_000


def power(n: int, effect: float, alpha: float = ALPHA, *, samples: int = 1) -> float:
    """Return the chance that n pairs, or two arms of n, show a difference of this effect, two-sided.

    64 pairs and d_z 0.355: 0.8. 64 an arm and d 0.5: 0.80.
    """
    stats = load_scipy().stats
    if n < 2:
        return 0.0
    free, shift = samples * (n - 1), abs(effect) * math.sqrt(n / samples)
    line = stats.t.ppf(1 - alpha / 2, free)
    if not math.isfinite(line) or shift > _BEYOND_DOUBT:
        return float(shift > line)
    # far from the line SciPy has no number for what is nothing
    wrong_side = np.nan_to_num(stats.nct.cdf(-line, free, shift)) if shift < 5 else 0.0
    return float(stats.nct.sf(line, free, shift) + wrong_side)


@lru_cache(maxsize=512)
def smallest_effect(n: int, alpha: float = ALPHA, wanted: float = POWER, *, samples: int = 1) -> float | None:
    """Return the smallest effect that n pairs, or two arms of n, show with this power; None when n < 2."""
    if n < 2:
        return None
    high = 1.0
    while power(n, high, alpha, samples=samples) < wanted:
        high *= 2
        if high > 1e6:
            return None

    def lacking(effect: float) -> float:
        return power(n, effect, alpha, samples=samples) - wanted

    return float(load_scipy().optimize.brentq(lacking, 0.0, high, xtol=1e-9))


def needed(effect: float, alpha: float = ALPHA, wanted: float = POWER, *, samples: int = 1) -> int:
    """Return the least number of pairs, or of sessions an arm, that shows this effect with this power.

    >>> needed(0.5), needed(0.2), needed(0.5, samples=2)
    (34, 199, 64)
    """
    if effect == 0:
        raise InputError("effect: expected a number other than 0; no number of queries shows no difference")
    low, high = 1, 2
    while power(high, effect, alpha, samples=samples) < wanted:
        low, high = high, high * 2
        if high > _MOST:
            return high
    while high - low > 1:
        middle = (low + high) // 2
        enough = power(middle, effect, alpha, samples=samples) >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return high
