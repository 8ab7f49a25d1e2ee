"""A family of comparisons, corrected together, each with a verdict and a sentence that says it.

compare_all(named) -> a Comparison each: Holm's correction, smallest effect, a verdict in words
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ctx_vector.experiments.power import smallest_effect
from ctx_vector.experiments.resampling import ALPHA, RESAMPLES, Floats
from ctx_vector.experiments.significance import Paired, paired

BETTER: Final = "better"
WORSE: Final = "worse"
UNSHOWN: Final = "no difference shown"


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
    alpha: float = ALPHA

    @property
    def bounds(self) -> str:
        """The interval in figures; a dash where all differences are equal, which does not tell how much they vary."""
        found = self.found
        return f"{found.low:+.3f} to {found.high:+.3f}" if found.bounded else "–"

    @property
    def words(self) -> str:
        """The verdict in a sentence, with its figures."""
        found, metric = self.found, self.metric
        units = f"{found.units} {'groups' if self.unit == 'group' else 'queries'}"
        if not found.differing:
            return f"{self.arm} and {self.against} have the same {metric} for all of {units}: no difference shown."
        interval, comma = f"{100 * (1 - self.alpha):g} % interval {self.bounds}", ""
        if not found.bounded:
            interval, comma = "no interval, as all differences are equal", ","
        figures = f"{found.difference:+.3f} ({interval}, p = {self.p_holm:.2g})"
        if self.family > 1:
            figures = (
                f"{found.difference:+.3f} (by itself {interval}{comma} and p = {found.p:.2g}; corrected for "
                f"{self.family} comparisons p = {self.p_holm:.2g})"
            )
        if self.verdict != UNSHOWN:
            return f"{self.arm} is {self.verdict} than {self.against} in {metric}: {figures}, {units}."
        text = f"No difference between {self.arm} and {self.against} in {metric} is shown: {figures}."
        if found.least_p * self.family > self.alpha:
            could = "no result" if found.least_p > self.alpha else "hardly any result"
            return f"{text} As only {found.differing} of {units} differ, {could} could have shown one; more are needed."
        if self.smallest is not None:
            text += f" With {units}, one of {self.smallest:.3f} or more would be found 4 times in 5."
        return text

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
        p = corrected[arm, against, metric]
        effect = smallest_effect(one.units, alpha / len(found))
        verdict = UNSHOWN
        if p <= alpha:
            verdict = BETTER if (one.difference > 0) != (metric.split("@")[0] in small_is_better) else WORSE
        made.append(
            Comparison(
                arm=arm,
                against=against,
                metric=metric,
                unit="query" if named[arm, against, metric][2] is None else "group",
                found=one,
                p_holm=p,
                family=len(found),
                smallest=None if effect is None or not one.deviation else effect * one.deviation,
                verdict=verdict,
                alpha=alpha,
            )
        )
    return made
