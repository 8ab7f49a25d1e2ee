"""What late interaction has to know of an encoder, measured on the background (models/background).

    means      of the unit vectors of all tokens, of questions and of passages, in each language
    LatePair   for each (query language, text language): how much a score grows with the length of the text, and the map
               from what is left to a relevance (relevance_map.PairMap)

The shipped ones are models/calibration/NAME.late.json. For another encoder it is measured when first needed, in a
minute or so, and kept in the user's cache folder like its calibration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ctx_vector import measurements
from ctx_vector.calibration import calibration_path
from ctx_vector.encoders import tokens_of
from ctx_vector.errors import ModelError
from ctx_vector.languages import LANGUAGES, cohort
from ctx_vector.relevance_map import OTHER_LANGUAGE, PairMap, seen_from

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.stages import Encoder

    Rows = NDArray[np.float32]

USUAL_TOKENS: Final = 100
SUFFIX: Final = ".late.json"


@dataclass(frozen=True, slots=True)
class LatePair:
    """The map of one (query language, text language). `growth` is what a score gains by e times as many tokens."""

    growth: float
    points: PairMap

    def excess(self, raw: float, tokens: int) -> float:
        """Return the score less what is usual of unrelated texts of this length."""
        return raw - self.growth * math.log(max(1, tokens) / USUAL_TOKENS) - self.points.unrelated


@dataclass(frozen=True, slots=True, eq=False)
class LateMap:
    """What late interaction knows of one encoder; `means[kind][language]` are (dim,) float32."""

    model: str
    means: Mapping[str, Mapping[str, Rows]]
    pairs: Mapping[tuple[str, str], LatePair]
    report: Mapping[str, float]

    def centred(self, rows: Rows, kind: str, language: str) -> Rows:
        """Return unit rows (n, dim) without the mean of their kind in their language, again of unit length."""
        return centred(rows, self.means[kind][cohort(language)])

    def relevance(self, asked: str, said: str, raw: float, tokens: int) -> float:
        """Return the relevance in [0, 1] of a score `raw` for a text of so many tokens; `asked` and `said` are the
        languages of query and text.
        """
        pair = self.pairs[cohort(asked), cohort(said)]
        found = pair.points.relevance(np.array([pair.excess(raw, tokens)]))
        return float(seen_from(found, 1.0 if asked == said else OTHER_LANGUAGE)[0])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; `from_dict` takes them back."""
        return {
            "model": self.model,
            "pairs": {
                f"{asked}-{said}": [round(v, 7) for v in (pair.growth, *_numbers(pair.points))]
                for (asked, said), pair in self.pairs.items()
            },
            "report": dict(self.report),
            "means": {
                kind: {name: [round(float(v), 7) for v in row] for name, row in rows.items()}
                for kind, rows in self.means.items()
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LateMap:
        """Return the map stored as `to_dict` gives it. Raises ModelError when something is missing."""
        try:
            pairs = {
                (asked, said): _pair(values["pairs"][f"{asked}-{said}"]) for asked in LANGUAGES for said in LANGUAGES
            }
            means = {
                kind: {name: np.asarray(values["means"][kind][name], np.float32) for name in LANGUAGES}
                for kind in ("query", "passage")
            }
            shapes = {row.shape for rows in means.values() for row in rows.values()}
            if len(shapes) != 1 or not all(np.isfinite(row).all() for rows in means.values() for row in rows.values()):
                raise ValueError("the means differ in length or are not finite")
            return cls(values["model"], means, pairs, values["report"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"the stored map of late interaction is not usable ({error!r}); run: ctx-vector models calibrate"
            ) from None

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return int(self.means["query"][LANGUAGES[0]].size)


def _numbers(points: PairMap) -> tuple[float, float, float, float]:
    return points.unrelated, points.line, points.match, points.high


def _pair(values: Sequence[float]) -> LatePair:
    growth, *points = map(float, values)
    pair = LatePair(growth, PairMap(*points))
    if not (math.isfinite(growth) and 0 < pair.points.line < pair.points.match < pair.points.high < math.inf):
        raise ValueError(f"the points do not ascend from 0: {pair}")
    return pair


def centred(rows: Rows, mean: Rows) -> Rows:
    """Return rows (n, dim) without a mean (dim,), of unit length."""
    rest = rows - mean
    norms = np.sqrt(np.einsum("ij,ij->i", rest, rest))
    return np.asarray(rest / np.maximum(norms, np.float32(1e-12))[:, None], np.float32)


def measure(encoder: Encoder, rows: Sequence[Mapping[str, str]]) -> LateMap:
    """Measure the map of an encoder on background rows with the keys en, zh, q_en, q_zh. Encodes 4 texts a row."""
    from ctx_vector.calibration_measure import points_of

    means: dict[str, dict[str, Rows]] = {"query": {}, "passage": {}}
    tokens: dict[tuple[str, str], list[Rows]] = {}
    for kind, prefix in (("query", "q_"), ("passage", "")):
        for name in LANGUAGES:
            found = tokens_of(encoder, [row[f"{prefix}{name}"] for row in rows], "query" if prefix else "passage")
            means[kind][name] = np.concatenate(found).mean(0, dtype=np.float64).astype(np.float32)
            tokens[kind, name] = [centred(item, means[kind][name]) for item in found]
    apart = ~np.eye(len(rows), dtype=bool)
    pairs: dict[tuple[str, str], LatePair] = {}
    report: dict[str, float] = {"rows": float(len(rows))}
    for asked in LANGUAGES:
        for said in LANGUAGES:
            raw = all_scores(tokens["query", asked], tokens["passage", said])
            lengths = np.log(np.array([max(1, len(item)) for item in tokens["passage", said]]) / USUAL_TOKENS)
            growth = _slope(np.broadcast_to(lengths, raw.shape)[apart], raw[apart])
            rest = raw - growth * lengths
            mean = float(rest[apart].mean())
            points, seen = points_of(mean, rest[apart] - mean, np.diag(rest) - mean)
            pairs[asked, said] = LatePair(growth, points)
            report |= {f"{key}_{asked}_{said}": share for key, share in seen.items()}
    return LateMap(encoder.name, means, pairs, report)


def all_scores(queries: Sequence[Rows], texts: Sequence[Rows]) -> NDArray[np.float64]:
    """Return the scores (queries, texts) of token vectors; texts with no token get 0."""
    lengths = np.array([len(item) for item in texts])
    starts = np.cumsum(lengths) - lengths
    spoken = np.flatnonzero(lengths)
    together = np.concatenate(texts)
    found = np.zeros((len(queries), len(texts)))
    for row, query in enumerate(queries):
        if len(query) and len(spoken):
            best = np.maximum.reduceat(query @ together.T, starts[spoken], axis=1)
            found[row, spoken] = best.mean(0, dtype=np.float64)
    return found


def _slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Return the slope of the line that fits best, 0 where x does not vary."""
    spread = float(np.var(x))
    return float(np.mean((x - x.mean()) * (y - y.mean()))) / spread if spread > 1e-9 else 0.0


def late_map_path(encoder: Encoder) -> Path:
    """Return where a map measured on this machine is kept: beside the calibration, in the user's cache folder."""
    return calibration_path(encoder).with_suffix(SUFFIX)


def load_late_map(encoder: Encoder) -> LateMap:
    """Return the map of an encoder: the one measured before, the shipped one of its card, else measure it now."""
    paths = late_map_path(encoder), measurements.shipped_path(f"{Path(encoder.name).name}{SUFFIX}")
    fitting = (found for found in measurements.readable(paths, LateMap.from_dict) if found.dim == encoder.dim)
    return next(fitting, None) or measure_and_keep(encoder)


def measure_and_keep(encoder: Encoder) -> LateMap:
    """Measure the map of an encoder on the shipped background, and keep it in the user's cache folder."""
    return measurements.measured(
        late_map_path(encoder),
        f"late interaction with {encoder.name}",
        lambda: measure(encoder, measurements.background()).to_dict(),
        LateMap.from_dict,
    )
