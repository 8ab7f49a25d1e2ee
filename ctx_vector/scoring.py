"""Relevance of candidates to a query: one small function a strategy, found by name.

    jaccard      |A ∩ B| / |A ∪ B| of lower-cased whitespace words: the original builder's, useless without spaces
    cosine       calibrated cosine of unit vectors: 0.1 separates unrelated from matched (calibration.py)
    cosine_raw   clamp(cosine, 0, 1), the plain formula, as one arm of an A/B

Every scorer returns (n,) float64 in [0, 1], and zeros for a blank query. `bm25` below ranks the sentences of one text,
for compress.py; it is unbounded, so it is no strategy by itself.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.errors import ConfigError, InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ctx_vector.calibration import Calibration
    from ctx_vector.stages import Candidates, Encoder, Query, Scorer

# Han, kana and the scripts of South-East Asia write words without spaces between them; Hangul glues particles to words
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\U00020000-\U000323af"
)
_TERMS = re.compile(rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+")
_UNSPACED_RUN = re.compile(rf"[{_UNSPACED}]")


def terms(text: str) -> list[str]:
    """Return the search terms of a text: lower-cased words; runs of unspaced script as characters and bigrams.

    >>> terms("Pandas 内存表")
    ['pandas', '内', '存', '表', '内存', '存表']
    """
    found: list[str] = []
    for run in _TERMS.findall(text.casefold()):
        if _UNSPACED_RUN.match(run):
            found += [*run, *(run[i : i + 2] for i in range(len(run) - 1))]
        else:
            found.append(run)
    return found


def bm25(query: str, texts: Sequence[str], k1: float = 1.2, b: float = 0.75) -> list[float]:
    """Return the BM25 score of each text, with the texts themselves as the collection (Robertson et al. 1994).

    idf = ln(1 + (n - df + 0.5) / (df + 0.5)), as Lucene has it, so that no score is negative.
    """
    documents = [Counter(terms(text)) for text in texts]
    lengths = [sum(document.values()) for document in documents]
    mean = sum(lengths) / max(1, len(lengths)) or 1.0
    scores = [0.0] * len(texts)
    for term in set(terms(query)):
        holders = [(index, count) for index, document in enumerate(documents) if (count := document.get(term, 0))]
        idf = math.log(1 + (len(texts) - len(holders) + 0.5) / (len(holders) + 0.5))
        for index, count in holders:
            norm = k1 * (1 - b + b * lengths[index] / mean)
            scores[index] += idf * count * (k1 + 1) / (count + norm)
    return scores


class JaccardScorer:
    """The original builder's scorer: |A ∩ B| / |A ∪ B| over lower-cased whitespace words; 0 for an empty query."""

    name = "jaccard"
    uses_vectors = False

    def score(self, query: Query, candidates: Candidates) -> NDArray[np.float64]:
        """Return (n,) float64 in [0, 1].

        Query "a b" and text "b c" share one of three words: 1/3.
        """
        import numpy as np

        wanted = set(query.text.lower().split())
        scores = np.zeros(len(candidates.texts))
        if wanted:
            for row, text in enumerate(candidates.texts):
                words = set(text.lower().split())
                scores[row] = len(wanted & words) / len(wanted | words)
        return scores


class CosineScorer:
    """Calibrated cosine (calibration.py). `calibration=None` gives the raw cosine, clamped to [0, 1]."""

    uses_vectors = True

    def __init__(self, calibration: Calibration | None) -> None:
        self.calibration = calibration
        self.name = "cosine" if calibration else "cosine_raw"

    def score(self, query: Query, candidates: Candidates) -> NDArray[np.float64]:
        """Return (n,) float64 in [0, 1]. Raises InputError when the vectors are missing or do not match."""
        import numpy as np

        count = len(candidates.texts)
        if not query.text.strip() or not count:
            return np.zeros(count)
        if query.vector is None or candidates.vectors is None or candidates.vectors.shape != (count, query.vector.size):
            shape = None if candidates.vectors is None else candidates.vectors.shape
            raise InputError(f"{self.name}: expected a query vector and ({count}, dim) candidate vectors, got {shape}")
        if self.calibration is not None:
            return self.calibration.relevance(query.text, query.vector, candidates.texts, candidates.vectors)
        return np.clip((candidates.vectors @ query.vector).astype(np.float64), 0.0, 1.0)


def _cosine(encoder: Encoder) -> Scorer:
    from ctx_vector.calibration import load_calibration

    return CosineScorer(load_calibration(encoder))


SCORERS: Final[dict[str, Callable[[Callable[[], Encoder]], Any]]] = {
    "jaccard": lambda encoder: JaccardScorer(),
    "cosine": lambda encoder: _cosine(encoder()),
    "cosine_raw": lambda encoder: CosineScorer(None),
}
_PLANNED: Final = ("bm25", "hybrid")


def make_scorer(strategy: Any, encoder: Callable[[], Encoder]) -> Scorer:
    """Return the scorer of a strategy: a name in SCORERS, or an object with `score`. `encoder` is called when needed.

    Raises ConfigError with the choices for a name that is not known or not built yet.
    """
    if not isinstance(strategy, str):
        return strategy  # type: ignore[no-any-return]
    if strategy in SCORERS:
        return SCORERS[strategy](encoder)  # type: ignore[no-any-return]
    choices = ", ".join(SCORERS)
    if strategy in _PLANNED:
        raise ConfigError([f"strategy: {strategy!r} is planned and not built yet; choose from {choices}"])
    import difflib

    near = difflib.get_close_matches(strategy, SCORERS, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError([f"strategy: expected one of {choices}, or an object with score(), got {strategy!r}{hint}"])
