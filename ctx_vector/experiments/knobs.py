"""Settings that can be tuned, and the space that they span: a place for every setting, a setting for every place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ctx_vector.errors import InputError
from ctx_vector.experiments.dataset import Dataset


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting that can be tuned: a range of numbers, or choices.

    `log` searches the range by factors. `whole` numbers are integers. Values are rounded to two significant digits, so
    that a settings file can be read.
    """

    low: float = 0.0
    high: float = 1.0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def bounds(self) -> tuple[float, float]:
        """The range in which the optimiser moves."""
        if self.choices:
            return 0.0, float(len(self.choices) - 1)
        return (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)

    @property
    def integral(self) -> bool:
        """Whether the optimiser moves in whole steps."""
        return bool(self.choices) or (self.whole and not self.log)

    def value(self, place: float) -> Any:
        """Return the setting at a place of the range."""
        if self.choices:
            return self.choices[round(place)]
        number = min(self.high, max(self.low, 10**place if self.log else place))
        if self.whole:
            return round(number)
        return float(f"{number:.2g}")

    def place(self, value: Any) -> float:
        """Return where a setting is in the range; the nearest place when it is outside."""
        if self.choices:
            return float(self.choices.index(value)) if value in self.choices else 0.0
        number = min(self.high, max(self.low, self.high if value is None else float(value)))
        return math.log10(number) if self.log else number


KNOBS: Final[Mapping[str, Knob]] = {
    "recency_weight": Knob(0.0, 0.6),
    "recency_decay": Knob(0.001, 1.0, log=True),
    "recency_floor": Knob(0.0, 1.0),
    "min_relevance": Knob(0.0, 0.6),
    "knowledge_min_score": Knob(0.0, 0.6),
    "knowledge_limit": Knob(2, 100, log=True, whole=True),
    "memory_limit": Knob(5, 500, log=True, whole=True),
    "mmr_lambda": Knob(0.3, 1.0),
    "fill": Knob(choices=("skip", "stop")),
    "strategy": Knob(choices=("cosine", "hybrid", "hybrid_rrf", "bm25", "cosine_raw")),
    "rerank": Knob(choices=(None, "late")),
    "rerank_depth": Knob(10, 100, log=True, whole=True),
    "rerank_weight": Knob(0.0, 1.0),
    "chunk_tokens": Knob(choices=(64, 96, 128, 160, 224, 320)),
}


def default_knobs(dataset: Dataset) -> list[str]:
    """Return what is worth tuning on a data set: recency where documents have times, floors and limits."""
    dated = len({document.timestamp for document in dataset.documents}) > 1
    memories = dataset.is_conversation or any(d.metadata.get("memory_type") for d in dataset.documents)
    found = ["recency_weight", "recency_decay", "recency_floor"] if dated else []
    return [*found, "min_relevance", *(["memory_limit"] if memories else ["knowledge_limit", "knowledge_min_score"])]


def space(names: Sequence[str], dataset: Dataset) -> dict[str, Knob]:
    """Return the knobs of these names. Raises InputError for none, unknown ones, and those the data set has not."""
    if not names or len(set(names)) < len(names):
        raise InputError(f"knobs: expected one or more different names, got {', '.join(names) or 'none'}")
    for name in names:
        if name not in KNOBS:
            raise InputError(f"knobs: expected some of {', '.join(KNOBS)}, got {name!r}")
    if "chunk_tokens" in names and dataset.knowledge is not None:
        raise InputError(
            f"knobs: chunk_tokens cannot be tuned on the knowledge base {dataset.knowledge}, whose passages are made; "
            "index the documents into several folders with --chunk-tokens, and compare those"
        )
    return {name: KNOBS[name] for name in names}


def even_points(knobs: Sequence[Knob], count: int, seed: int) -> Any:
    """Return (count, knobs) points that fill the space evenly."""
    from scipy.stats import qmc

    points = qmc.Sobol(len(knobs), rng=np.random.default_rng(seed)).random(count)
    lows, highs = zip(*(knob.bounds for knob in knobs), strict=True)
    spread = np.asarray(lows) + points * (np.asarray(highs) - np.asarray(lows))
    whole = [knob.integral for knob in knobs]
    spread[:, whole] = np.rint(spread[:, whole])
    return spread
