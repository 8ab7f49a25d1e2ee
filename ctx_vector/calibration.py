"""From a raw cosine to a relevance in [0, 1]: 0.1 separates unrelated from matched, 0.7 is the median matched pair.

A raw cosine of multilingual-e5-small says little by itself: unrelated Chinese pairs have a median of 0.82, matched
pairs of a Chinese query and an English text 0.80. What a cosine means depends on the two languages, and on how
similar the query and the text are to everything. Both are measured on a background of texts on many subjects and in
both languages (models/background). For a query q and a text d, the excess is::

    e = q·d - g - A (max(q·D, q·S) - g) - B max(0, d·Q - g, d·R - r)

D is the mean vector of the background passages in the text's language, Q that of the background questions in the
query's language (the mean of dot products is the dot product with the mean), g the mean cosine of unrelated
background pairs of the two languages. This is score normalisation as speaker recognition does it (S-norm; Kenny
2010), without the division by a spread. A = 0.7 does not touch the ranking within one query and one language.

S and R are the same means of short statements that people make about themselves and of questions to them ("We have
three hens in the yard.", "Which animals do we keep?"). Whatever they are about, these have more in common than passages
and their questions, and most across languages: unrelated ones have a cosine of 0.77 before English questions and
Chinese statements, where g is 0.72; within English 0.77, where g is 0.76. By the passages alone any Chinese statement
about oneself fitted any English question about oneself: the right English one among 47 Chinese ones was the first 19
times in 100, now 60 (tests/test_personal.py). Of the two kinds the one that a query, or a text, resembles more counts.
Passages resemble R more than Q, so r = g + 1.2 (D·R - g): only what a text has beyond that tells a statement. The
points below are measured on passages alone: with the statements among them the line would be lower for all.

A text that resembles all questions more than texts of its language do, loses that: all of it across languages (B = 1),
half of it before questions of its own (B = 0.5). Rows of numbers, JSON, logs and hashes resemble them: in no language,
they count as English here, and have a cosine of 0.79-0.84 with any Chinese question, where English prose has 0.74; so
have Chinese texts full of English words with English questions. They would be found for every question. Before English
questions they have hardly more than English prose. Notices and rules have as much, 0.02, and with B = 1 there they fell
behind older ones that were told in other words (benchmarks/freshness.py: from 0.6 on). A text that resembles questions
less than usual gains nothing by it: on both sides of the usual, recall on XQuAD would fall (English 0.931 to 0.923,
Chinese 0.895 to 0.886 at 0.7).

Three points of each language pair's background turn the excess into a relevance: `line`, right for the largest share of
both unrelated and matched pairs, becomes 0.1; `match`, the median matched pair, 0.7; `high`, the 95th percentile of
matched pairs, 0.9. Below the line it falls exponentially, above the median it nears 1 the same way, so that it is
strictly increasing.

Of a text in another language than the query's, what lies over the line counts 0.78. Line and median are nearer to each
other across languages than within one, so that what all texts of a collection on one subject have in common with its
questions lifts the wrong ones more across languages: without the factor they push out the right ones of the question's
language. The number was chosen on the bilingual set of this project and on XQuAD with each paragraph in one of two
languages (benchmarks/bilingual.py): from 0.8 to 0.7 the mean over both is flat, more favours answers in the other
language, less those in the question's own.

The hybrid adds what keywords say (keywords.py): the share of the query's terms that a text has, rare terms counting
more. On the scale of u = e / (match - line) it is ``h = u + weight * share``, and h has a map of its own, measured in
the same way. The weight is 60 times the variance of unrelated u over the median matched u, the ratio by which a linear
discriminant weighs two kinds of evidence: 5 and 4 for this model in English and Chinese, 3 and over 60 for
all-MiniLM-L6-v2, which cannot read Chinese. The 60 is the one number chosen: recall on LoCoMo and XQuAD, which were
looked at while choosing it, is flat around the weights it gives. A text in another language has hardly any of the
query's terms, and keeps its place.

The map is fixed for a model, stored as models/calibration/NAME.json, and has a hash of its own: measuring it anew never
encodes a document again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ctx_vector.errors import ModelError
from ctx_vector.languages import LANGUAGES, cohort, language_of
from ctx_vector.measurements import measured_path, readable, shipped_path
from ctx_vector.relevance_map import (
    HybridMap,
    PairMap,
    least_excess,
    pair_key,
    pairs_from_dict,
    pairs_to_dict,
    relevance_at,
    seen_from,
    share_of,
    slopes,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ctx_vector.stages import Encoder

F = TypeVar("F", bound="np.floating[Any]")

QUERY_SHARE: Final = 0.7
TEXT_SHARE: Final = 0.5
STATEMENT_SHARE: Final = 1.2
KEYWORD_WEIGHT: Final = 60.0
FORMULA: Final = 4  # of the excess; a map measured for another one does not fit
_ROUNDING: Final = 1e-6  # of an excess, far more than float64 loses on the way to a relevance and back


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """The map of one encoder.

    `passages[l]` and `questions[l]` are mean vectors (dim,) float32, and so are `statements[l]` and
    `statement_questions[l]`, of statements about oneself; `pairs[(query language, text language)]` is a PairMap.
    `report` holds the shares of background pairs that are on the right side.
    """

    model: str
    passages: dict[str, NDArray[np.float32]]
    questions: dict[str, NDArray[np.float32]]
    statements: dict[str, NDArray[np.float32]]
    statement_questions: dict[str, NDArray[np.float32]]
    pairs: dict[tuple[str, str], PairMap]
    centred: dict[tuple[str, str], PairMap]
    hybrid: dict[tuple[str, str], HybridMap]
    hybrid_centred: dict[tuple[str, str], HybridMap]
    report: dict[str, float]

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return int(self.passages[LANGUAGES[0]].size)

    def mean_passage(self, language: str) -> NDArray[np.float32]:
        """Return the mean vector (dim,) float32 of the background's passages in the language that stands for this."""
        return self.passages[cohort(language)]

    def usual_inquiry(self, asked: str, said: str) -> float:
        """Return r of the formula above: a cosine that passages hardly have with the mean question to statements."""
        import numpy as np

        asked, said = cohort(asked), cohort(said)
        common = float(self.passages[said].astype(np.float64) @ self.statement_questions[asked].astype(np.float64))
        return beyond(common, self.pairs[asked, said].unrelated)

    def ranked(self, language: str, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the rows (n, dim + 2) by which texts of a language are ranked: their vectors (n, dim), and what they
        lose before a question of each of LANGUAGES (`lost`).
        """
        import numpy as np

        ranked = np.empty((len(vectors), self.dim + len(LANGUAGES)), np.float32)
        ranked[:, : self.dim] = vectors
        for column, asked in enumerate(LANGUAGES, self.dim):
            usual = np.float32(self.pairs[asked, cohort(language)].unrelated)
            # einsum adds up each row by itself: the same bits whatever else is there
            common = np.maximum(
                np.einsum("ij,j->i", vectors, self.questions[asked]) - usual,
                np.einsum("ij,j->i", vectors, self.statement_questions[asked]) - self.usual_inquiry(asked, language),
            )
            ranked[:, column] = lost(common, asked == cohort(language))
        return ranked

    @property
    def hash(self) -> str:
        """A digest of the whole map (16 hex digits)."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def asked(self, query_text: str, query: NDArray[np.float32]) -> Asked:
        """Return what the excess and the map need of a query, for a text that is not blank."""
        return Asked(self, language_of(query_text), query)

    def relevance(
        self, query_text: str, query: NDArray[np.float32], texts: Sequence[str], vectors: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Return the relevance (n,) float64 in [0, 1] of texts with vectors (n, dim); zeros for a blank query."""
        return self.relevance_by_language(query_text, query, [language_of(text) for text in texts], vectors)

    def relevance_by_language(
        self,
        query_text: str,
        query: NDArray[np.float32],
        languages: Sequence[str],
        vectors: NDArray[np.float32],
        shares: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Return the same for texts whose languages are known already; with keyword shares (n,), the hybrid's."""
        import numpy as np

        if not query_text.strip() or not languages:
            return np.zeros(len(languages))
        asked = self.asked(query_text, query)
        known = list(dict.fromkeys(languages))
        places = [known.index(language) for language in languages]
        points = asked.points(known)[:, places]
        excess = asked.excess(vectors, points)[0]
        if shares is None:
            return asked.relevance(excess, points)
        return asked.hybrid(excess, shares, points, asked.hybrid_points(known)[:, places])

    def alike(self, languages: Sequence[str], vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return how alike texts (n, dim) of these languages are, (n, n) float64: their cosines, from each vector the
        mean of the passages in its language removed. Texts that have nothing in common are near 0.
        """
        import numpy as np

        means = np.stack([self.mean_passage(language) for language in languages]).astype(np.float64)
        rest = vectors.astype(np.float64) - means
        rest /= np.maximum(np.linalg.norm(rest, axis=1, keepdims=True), 1e-12)
        return np.asarray(rest @ rest.T)

    def centred_relevance(
        self, asked: str, said: str, cosines: NDArray[np.float64], shares: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Return the relevance (n,) of cosines (n,) taken after the mean of questions and that of passages were
        removed; with keyword shares (n,), the hybrid's.

        This is the map of memories (memory_view.py), which rank better that way; `asked` and `said` are languages.
        """
        key = cohort(asked), cohort(said)
        excess = cosines - self.centred[key].unrelated
        if shares is None:
            return seen_from(self.centred[key].relevance(excess), share_of(asked, said))
        return seen_from(self.hybrid_centred[key].relevance(excess, shares), share_of(asked, said))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; `from_dict` takes them back."""
        return {
            "model": self.model,
            "formula": FORMULA,
            "pairs": pairs_to_dict(self.pairs),
            "centred": pairs_to_dict(self.centred),
            "hybrid": _hybrid_to_dict(self.hybrid),
            "hybrid_centred": _hybrid_to_dict(self.hybrid_centred),
            "report": self.report,
            "passages": _rounded(self.passages),
            "questions": _rounded(self.questions),
            "statements": _rounded(self.statements),
            "statement_questions": _rounded(self.statement_questions),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Calibration:
        """Return the map stored as `to_dict` gives it. Raises ModelError when something is missing, or an earlier
        version measured it for another formula.
        """
        try:
            if values.get("formula") != FORMULA:
                raise ValueError(f"measured for formula {values.get('formula', 1)}, needed is {FORMULA}")
            found = cls(
                model=values["model"],
                pairs=pairs_from_dict(values["pairs"]),
                centred=pairs_from_dict(values["centred"]),
                hybrid=_hybrid_from_dict(values["hybrid"]),
                hybrid_centred=_hybrid_from_dict(values["hybrid_centred"]),
                report=values["report"],
                passages=_vectors(values["passages"]),
                questions=_vectors(values["questions"]),
                statements=_vectors(values["statements"]),
                statement_questions=_vectors(values["statement_questions"]),
            )
            found._check()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"the stored calibration is not usable ({error!r}); run: ctx-vector models calibrate"
            ) from None
        return found

    def _check(self) -> None:
        """Raise KeyError or ValueError when a language, a number or a vector is missing or makes no sense."""
        import numpy as np

        means = (self.passages, self.questions, self.statements, self.statement_questions)
        rows = [vectors[name] for vectors in means for name in LANGUAGES]
        if len({row.shape for row in rows}) != 1 or rows[0].ndim != 1 or not np.isfinite(rows).all():
            raise ValueError("the mean vectors differ in length or are not finite")
        keys = [(asked, said) for asked in LANGUAGES for said in LANGUAGES]
        named = [(key, pairs[key]) for pairs in (self.pairs, self.centred) for key in keys]
        for key, both in [(key, maps[key]) for maps in (self.hybrid, self.hybrid_centred) for key in keys]:
            if not (0 < both.unit < math.inf and 0 <= both.weight < math.inf):
                raise ValueError(f"the hybrid of {'-'.join(key)} has no usable unit and weight: {both}")
            named.append((key, both.points))
        for key, pair in named:
            if not (-math.inf < pair.unrelated < math.inf and 0 < pair.line < pair.match < pair.high < math.inf):
                raise ValueError(f"the points of {'-'.join(key)} do not ascend from 0: {pair}")


class Asked:
    """One query before a calibration. `language` is the query's."""

    def __init__(self, calibration: Calibration, language: str, query: NDArray[np.float32]) -> None:
        import numpy as np

        self.language = language
        self._calibration = calibration
        self._query = query.astype(np.float64)
        questions = calibration.questions, calibration.statement_questions
        means = [kind[cohort(language)].astype(np.float64) for kind in questions]
        self._compared = np.stack([self._query, *means])  # with every text
        taken = [-1 if name == cohort(language) else 0 for name in LANGUAGES]
        self.direction: NDArray[np.float32] = np.concatenate((query, np.array(taken, np.float32)))
        """The vector (dim + 2,) by whose inner product with their ranked rows (`Calibration.ranked`) texts of one
        language rank just as by their relevance.
        """

    def points(self, languages: Sequence[str]) -> NDArray[np.float64]:
        """Return what there is to know of texts in each language, (10, languages).

        That is g, A (max(q·D, q·S) - g), line and match, the three slopes of the map, how much counts of what lies over
        the line, 1 for the query's own language, 0 for others, and r.
        """
        import numpy as np

        columns = []
        for said in languages:
            means, unrelated, fixed = _fixed_points(self._calibration, self.language, said)
            usual = max(float(self._query @ mean) for mean in means)
            columns.append((unrelated, QUERY_SHARE * (usual - unrelated), *fixed))
        return np.array(columns).T

    def excess(
        self, vectors: NDArray[np.float32], points: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return e of the formula above and the cosines, both (n,) float64, of texts (n, dim) with `points` (10, n)."""
        import numpy as np

        rows, (unrelated, shift) = vectors.astype(np.float64), points[:2]
        # einsum adds up each row by itself: the same bits whatever else is scored
        cosines, by_questions, by_inquiries = np.einsum("ij,kj->ki", rows, self._compared)
        common = np.maximum(by_questions - unrelated, by_inquiries - points[9])
        excess = cosines - unrelated - shift - lost(common, points[8] == 1)
        return np.asarray(excess, np.float64), cosines

    @staticmethod
    def excess_of(products: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return e (n,) for inner products with the direction (n,), but for rounding."""
        import numpy as np

        unrelated, shift = points[:2]
        return np.asarray(products - shift - unrelated)

    @staticmethod
    def relevance(excess: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the relevance (n,) float64 in [0, 1] of texts with these excesses (n,) and `points` (10, n)."""
        return seen_from(relevance_at(excess, *points[2:7]), points[7])

    @staticmethod
    def least_products(relevance: float, points: NDArray[np.float64]) -> list[float]:
        """Return the inner product with the direction that gives this relevance, for each column of `points`; a little
        less, for rounding.
        """
        return [
            least_excess(relevance, *columns) + shift + unrelated - _ROUNDING
            for unrelated, shift, *columns in points[:8].T.tolist()
        ]

    def hybrid_points(self, languages: Sequence[str]) -> NDArray[np.float64]:
        """Return what the hybrid has to know besides `points`, (6, languages): unit, weight, and its map."""
        import numpy as np

        columns = []
        for said in languages:
            found = self._calibration.hybrid[cohort(self.language), cohort(said)]
            points = found.points
            columns.append((found.unit, found.weight, points.unrelated, points.line, points.match, points.high))
        return np.array(columns).T

    @staticmethod
    def hybrid(
        excess: NDArray[np.float64], shares: NDArray[np.float64], points: NDArray[np.float64], more: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the hybrid relevance (n,) of excesses and keyword shares (n,); `more` are `hybrid_points` (6, n)."""
        unit, weight, unrelated, line, match, high = more
        value = excess / unit + weight * shares - unrelated
        return seen_from(relevance_at(value, line, match, *slopes(line, match, high)), points[7])


@lru_cache(maxsize=64)
def _fixed_points(
    calibration: Calibration, asked: str, said: str
) -> tuple[tuple[NDArray[np.float64], NDArray[np.float64]], float, tuple[float, ...]]:
    """Return what is the same for all queries in a language: mean passage and statement (dim,), g, and `Asked.points`
    from the line on.
    """
    import numpy as np

    pair = calibration.pairs[cohort(asked), cohort(said)]
    bends = slopes(pair.line, pair.match, pair.high)
    own, usual = float(cohort(asked) == cohort(said)), calibration.usual_inquiry(asked, said)
    fixed = (pair.line, pair.match, *bends, share_of(asked, said), own, usual)
    means = (
        calibration.passages[cohort(said)].astype(np.float64),
        calibration.statements[cohort(said)].astype(np.float64),
    )
    return means, pair.unrelated, fixed


def beyond(common: float, unrelated: float) -> float:
    """Return r of the formula above for passages that have `common`, D·R, with questions to statements."""
    return unrelated + STATEMENT_SHARE * (common - unrelated)


def lost(common: NDArray[F], own: bool | NDArray[np.bool_]) -> NDArray[F]:
    """Return what texts lose that have `common` (n,), max(d·Q - g, d·R - r), with all questions; `own`: those in their
    language.
    """
    import numpy as np

    share: NDArray[F] = np.where(own, common.dtype.type(TEXT_SHARE), common.dtype.type(1))
    found: NDArray[F] = share * np.maximum(common, 0)
    return found


def _hybrid_to_dict(maps: dict[tuple[str, str], HybridMap]) -> dict[str, list[float]]:
    points = pairs_to_dict({pair: both.points for pair, both in maps.items()})
    return {
        f"{asked}-{said}": [round(both.unit, 7), round(both.weight, 7), *points[f"{asked}-{said}"]]
        for (asked, said), both in maps.items()
    }


def _hybrid_from_dict(values: dict[str, list[float]]) -> dict[tuple[str, str], HybridMap]:
    return {
        pair_key(key): HybridMap(float(unit), float(weight), PairMap(*map(float, points)))
        for key, (unit, weight, *points) in values.items()
    }


def _rounded(vectors: dict[str, NDArray[np.float32]]) -> dict[str, list[float]]:
    return {name: [round(float(v), 7) for v in row] for name, row in vectors.items()}


def _vectors(values: dict[str, list[float]]) -> dict[str, NDArray[np.float32]]:
    import numpy as np

    return {name: np.asarray(row, np.float32) for name, row in values.items()}


def calibration_path(encoder: Encoder) -> Path:
    """Return where a calibration measured on this machine is kept: by fingerprint, in the user's cache folder."""
    digest = hashlib.blake2b(encoder.fingerprint.encode(), digest_size=8).hexdigest()
    return measured_path(f"{digest}.json")


def load_calibration(encoder: Encoder) -> Calibration:
    """Return the calibration of an encoder: the shipped one of its card, else one measured before, else measure now.

    Measuring encodes the whole background once (about half a minute with the default model's size) and keeps the
    result.
    """
    found = known_calibration(encoder)
    if found is None:
        from ctx_vector.calibration_measure import measure_and_keep

        found = measure_and_keep(encoder)
    return found


def known_calibration(encoder: Encoder) -> Calibration | None:
    """Return the calibration of an encoder that is shipped, or was measured before; None when there is none."""
    paths = calibration_path(encoder), shipped_path(f"{Path(encoder.name).name}.json")
    fitting = (found for found in readable(paths, Calibration.from_dict) if found.dim == encoder.dim)
    return next(fitting, None)
