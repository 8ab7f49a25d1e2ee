"""The map from an excess to a relevance in [0, 1]: through 0.1 at the line, 0.7 at the median match, 0.9 at its 95th
percentile; exponential below the line and above the median, so strictly increasing.

An excess says how much more a text and a query have in common than is usual for them: of cosines (calibration.py), of
cosines and keywords, of tokens (late_map.py), of what a cross-encoder says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

AT_LINE: Final = 0.1
AT_MATCH: Final = 0.7
AT_HIGH: Final = 0.9
OTHER_LANGUAGE: Final = 0.78  # of what lies over the line, in another language than the query's; see calibration.py


@dataclass(frozen=True, slots=True)
class PairMap:
    """The map of one (query language, text language): the mean unrelated cosine, and three excesses that ascend."""

    unrelated: float
    line: float
    match: float
    high: float

    def relevance(self, excess: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (n,) float64 in [0, 1], strictly increasing in the excess (n,)."""
        return relevance_at(excess, self.line, self.match, *slopes(self.line, self.match, self.high))


def slopes(line: Any, match: Any, high: Any) -> tuple[Any, Any, Any]:
    """Return how a map falls below its line, how far line and median are apart, and how it nears 1 above (negative)."""
    import numpy as np

    return 3.0 / line, match - line, -(np.log((1 - AT_MATCH) / (1 - AT_HIGH)) / (high - match))


def relevance_at(
    excess: NDArray[np.float64], line: Any, match: Any, fall: Any, span: Any, decay: Any
) -> NDArray[np.float64]:
    """Return what `PairMap.relevance` does; points and slopes are numbers, or (n,) with those of each excess."""
    import numpy as np

    over = excess - line
    below = AT_LINE * np.exp(fall * np.minimum(over, 0.0))
    between = AT_LINE + (AT_MATCH - AT_LINE) * over / span
    above = 1.0 - (1.0 - AT_MATCH) * np.exp(decay * np.maximum(excess - match, 0.0))
    return np.asarray(np.where(excess < line, below, np.where(excess < match, between, above)))


@dataclass(frozen=True, slots=True)
class HybridMap:
    """The map of one pair of languages for cosines and keywords together; `unit` is the excess that counts 1."""

    unit: float
    weight: float
    points: PairMap

    def relevance(self, excess: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (n,) float64 in [0, 1], strictly increasing in excess (n,) and keyword share (n,)."""
        return self.points.relevance(excess / self.unit + self.weight * shares - self.points.unrelated)


def least_excess(
    relevance: float, line: float, match: float, fall: float, span: float, decay: float, share: float
) -> float:
    """Return the excess from which on the relevance is at least this, but for rounding."""
    seen = relevance if relevance <= AT_LINE else AT_LINE + (relevance - AT_LINE) / share
    if seen <= 0:
        return -math.inf
    if seen < AT_LINE:
        return line + math.log(seen / AT_LINE) / fall
    if seen < AT_MATCH:
        return line + (seen - AT_LINE) / (AT_MATCH - AT_LINE) * span
    return match + math.log(max(1 - seen, 1e-9) / (1 - AT_MATCH)) / decay


def share_of(asked: str, said: str) -> float:
    """Return what counts, for a query in the language `asked`, of the relevance over the line."""
    return 1.0 if asked == said else OTHER_LANGUAGE


def seen_from(relevance: NDArray[np.float64], share: Any) -> NDArray[np.float64]:
    """Return the relevance of which only `share` (a number, or (n,)) counts of what lies over the line."""
    import numpy as np

    as_it_is = (relevance <= AT_LINE) | (share == 1.0)  # not times one, which would round
    return np.asarray(np.where(as_it_is, relevance, AT_LINE + (relevance - AT_LINE) * share))


def pairs_to_dict(pairs: Mapping[tuple[str, str], PairMap]) -> dict[str, list[float]]:
    """Return maps as JSON-ready values: the four numbers of each by ``query language-text language``."""
    return {
        f"{asked}-{said}": [round(value, 7) for value in (pair.unrelated, pair.line, pair.match, pair.high)]
        for (asked, said), pair in pairs.items()
    }


def pairs_from_dict(values: Mapping[str, Sequence[float]]) -> dict[tuple[str, str], PairMap]:
    """Return the maps again. Raises TypeError or ValueError for what is none."""
    return {pair_key(key): PairMap(*map(float, points)) for key, points in values.items()}


def pair_key(name: str) -> tuple[str, str]:
    """Return the two languages of ``query language-text language``."""
    asked, said = name.split("-")
    return asked, said
