"""Permutations and bootstraps by SciPy, from one seed. SciPy is loaded in here only.

`paired` (significance.py) and `unpaired` (unpaired.py) say what is resampled; how often, from which seed and at which
level is a Resampling.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ctx_vector.errors import OptionalDependencyError

RESAMPLES: Final = 9_999
ALPHA: Final = 0.05
SMALL: Final = 30  # units that differ, or sessions an arm; under it a bootstrap is too narrow

Floats = NDArray[np.float64]
Statistic = Callable[..., Floats]


def load_scipy() -> Any:
    """Return SciPy. Raises OptionalDependencyError with the line that installs it."""
    try:
        import scipy.optimize
        import scipy.stats
    except ImportError:
        raise OptionalDependencyError("comparing arms", "lab") from None
    return scipy


@dataclass(frozen=True, slots=True)
class Resampling:
    """How chance is judged: the `seed`, how many `resamples`, and the level `alpha`; intervals are of 1 - alpha.

    `batch` resamples are made at a time, which bounds the memory.
    """

    seed: int = 0
    resamples: int = RESAMPLES
    alpha: float = ALPHA
    batch: int = 500

    def rng(self) -> np.random.Generator:
        """Return the generator, at its beginning."""
        return np.random.default_rng(self.seed)

    def p(self, samples: Sequence[Floats], statistic: Statistic, kind: str) -> float:
        """Return the two-sided p, in (0, 1], of SciPy's `permutation_test` of this kind (`samples`, `independent`) on
        samples of (n,) values each.
        """
        done = load_scipy().stats.permutation_test(
            samples,
            statistic,
            permutation_type=kind,
            n_resamples=self.resamples,
            vectorized=True,
            batch=self.batch,
            rng=self.rng(),
        )
        return float(min(1.0, done.pvalue))

    def bounds(
        self, samples: Sequence[Floats], statistic: Statistic, method: str, *, paired: bool = False
    ) -> tuple[float, float]:
        """Return the interval of SciPy's `bootstrap`; its bounds are not finite where the method is not defined."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of that; the caller sees it
            done = load_scipy().stats.bootstrap(
                samples,
                statistic,
                paired=paired,
                confidence_level=1 - self.alpha,
                n_resamples=self.resamples,
                method=method,
                vectorized=True,
                batch=self.batch,
                rng=self.rng(),
            )
        return float(done.confidence_interval.low), float(done.confidence_interval.high)
