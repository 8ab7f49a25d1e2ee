"""Relevance of candidates to a query: one small class a strategy, found by name.

    cosine       calibrated cosine of unit vectors: 0.1 separates unrelated from matched (calibration.py)
    hybrid       cosine and keywords together, by a calibrated weighted sum (calibration.py)
    hybrid_rrf   the same two by reciprocal rank fusion, as an arm of an A/B
    bm25         keywords alone (keywords.py), with a calibrated map of their own
    cosine_raw   clamp(cosine, 0, 1), the plain formula, as one arm of an A/B
    jaccard      |A ∩ B| / |A ∪ B| of lower-cased whitespace words: the original builder's, useless without spaces

Every scorer returns (n,) float64 in [0, 1], and zeros for a blank query. How rare a word is, keywords take from the
candidates, of each language for itself; a knowledge base and a memory bring their own relevance, of all their texts
(`Candidate.known`). The function `bm25` ranks the sentences of one text, for compress.py; it is unbounded.

A package adds a strategy by an entry point: group ``ctx_vector``, name ``strategy.NAME``, a function of a function that
returns the encoder (plugins.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.errors import ConfigError, InputError
from ctx_vector.languages import language_of
from ctx_vector.lru import LRU
from ctx_vector.rules import nearest
from ctx_vector.terms import terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ctx_vector.calibration import Calibration
    from ctx_vector.keywords import Terms
    from ctx_vector.stages import Candidates, Encoder, Query, Scorer

_RRF: Final = 60
_MOST_CHARS: Final = 16_000_000  # of texts whose terms are remembered
_LEAST_CHARS: Final = 400  # that each text counts besides its own: so much its terms take at least
_KNOWN_CHARS: Final = 400  # of a sentence whose terms are remembered, for passages are shortened again and again


@lru_cache(2048)
def _known_terms(text: str) -> tuple[str, ...]:
    return tuple(terms(text))


def _terms_of(text: str) -> Sequence[str]:
    return _known_terms(text) if len(text) <= _KNOWN_CHARS else terms(text)


def bm25(query: str, texts: Sequence[str], k1: float = 1.2, b: float = 0.75) -> list[float]:
    """Return the BM25 score of each text, with the texts themselves as the collection (Robertson et al. 1994).

    idf = ln(1 + (n - df + 0.5) / (df + 0.5)), as Lucene has it, so that no score is negative.
    """
    wanted = dict.fromkeys(_terms_of(query))  # in their order, on which sums depend
    found = [_terms_of(text) for text in texts]
    holders: dict[str, list[tuple[int, int]]] = {term: [] for term in wanted}  # texts, with how often it is in each
    for index, document in enumerate(found):
        if not wanted.keys().isdisjoint(document):
            for term, count in Counter([term for term in document if term in wanted]).items():
                holders[term].append((index, count))
    lengths = [len(document) for document in found]
    mean = sum(lengths) / max(1, len(lengths)) or 1.0
    scores = [0.0] * len(texts)
    for held in filter(None, holders.values()):
        idf = math.log(1 + (len(texts) - len(held) + 0.5) / (len(held) + 0.5))
        for index, count in held:
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

        found = _checked(self.name, query, candidates)
        if found is None:
            return _zeros(candidates)
        asked, vectors = found
        if self.calibration is not None:
            return self.calibration.relevance(query.text, asked, candidates.texts, vectors)
        return np.clip((vectors @ asked).astype(np.float64), 0.0, 1.0)

    def alike(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> NDArray[np.float64] | None:
        """Return how alike texts with vectors (n, dim) are, (n, n) float64; None without a calibration."""
        return None if self.calibration is None else _alike(self.calibration, texts, vectors)


class KeywordScorer:
    """BM25 as a share of the most a text could get, calibrated; the candidates are the collection (keywords.py)."""

    name = "bm25"
    uses_vectors = False

    def __init__(self) -> None:
        self._words = _Words()

    def score(self, query: Query, candidates: Candidates) -> NDArray[np.float64]:
        """Return (n,) float64 in [0, 1]; 0 for a text with none of the query's terms."""
        from ctx_vector.keywords import keyword_facts

        return keyword_facts().relevance(query.text, self._words.shares(query.text, candidates.texts))


class HybridScorer:
    """Calibrated cosine and keywords together: a weighted sum, or (`rrf`) by reciprocal rank fusion."""

    uses_vectors = True

    def __init__(self, calibration: Calibration, *, rrf: bool = False) -> None:
        self.calibration = calibration
        self.name = "hybrid_rrf" if rrf else "hybrid"
        self._rrf = rrf
        self._words = _Words()

    def score(self, query: Query, candidates: Candidates) -> NDArray[np.float64]:
        """Return (n,) float64 in [0, 1]. Raises InputError when the vectors are missing or do not match."""
        found = _checked(self.name, query, candidates)
        if found is None:
            return _zeros(candidates)
        asked, vectors = found
        texts = candidates.texts
        shares = self._words.shares(query.text, texts)
        languages = [language_of(text) for text in texts]
        relevance = self.calibration.relevance_by_language
        both = relevance(query.text, asked, languages, vectors, shares)
        return fuse_ranks(relevance(query.text, asked, languages, vectors), shares, both) if self._rrf else both

    def alike(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return how alike texts with vectors (n, dim) are, (n, n) float64."""
        return _alike(self.calibration, texts, vectors)


def _alike(calibration: Calibration, texts: Sequence[str], vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    return calibration.alike([language_of(text) for text in texts], vectors)


def fuse_ranks(
    cosine: NDArray[np.float64], keywords: NDArray[np.float64], relevance: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return relevances (n,) in the order of 1 / (60 + rank by cosine) + 1 / (60 + rank by keywords), best rank 0
    (reciprocal rank fusion; Cormack et al. 2009).

    Ranks say nothing of how relevant the best one is, so the values are those of `relevance` (n,), the weighted sum's,
    dealt out anew: the first by rank gets the largest. Equal candidates get equal values.

    >>> import numpy as np
    >>> fuse_ranks(np.array([0.9, 0.5, 0.1]), np.array([0.0, 0.3, 0.2]), np.array([0.6, 0.8, 0.1])).tolist()
    [0.1, 0.8, 0.6]
    """
    import numpy as np

    fused = 1 / (_RRF + _ranks(cosine)) + np.where(keywords > 0, 1 / (_RRF + _ranks(keywords)), 0.0)
    order = np.lexsort((-relevance, -fused))
    values = np.sort(relevance)[::-1]
    place = np.arange(len(order))
    for at in range(1, len(order)):
        one, other = order[at - 1], order[at]
        if fused[one] == fused[other] and relevance[one] == relevance[other]:
            place[at] = place[at - 1]
    dealt = np.empty(len(order))
    dealt[order] = values[place]
    return dealt


def _ranks(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many values are larger than each."""
    import numpy as np

    return np.searchsorted(np.sort(-values), -values)


class _Words:
    """The terms of the texts scored lately, so that a text is taken apart once."""

    def __init__(self) -> None:
        self._known: LRU[str, tuple[int, Terms]] = LRU(_MOST_CHARS, lambda known: known[0])

    def shares(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the keyword share (n,) of each text; the texts of one language are a collection."""
        import numpy as np

        from ctx_vector.keywords import Keywords, Terms

        shares = np.zeros(len(texts))
        if not query.strip():
            return shares
        languages = [language_of(text) for text in texts]
        for language in dict.fromkeys(languages):
            places = [place for place, other in enumerate(languages) if other == language]
            collection = Keywords(Terms.joined([self._terms(texts[place]) for place in places]))
            shares[places] = collection.shares(query)
        return shares

    def _terms(self, text: str) -> Terms:
        from ctx_vector.keywords import Terms

        if (known := self._known.get(text)) is not None:
            return known[1]
        found = Terms.of_one(text)
        self._known.put({text: (len(text) + _LEAST_CHARS, found)})
        return found


def _checked(name: str, query: Query, candidates: Candidates) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Return the vectors of query and candidates, None when there is nothing to score. Raises InputError when they are
    missing or do not fit.
    """
    count = len(candidates.texts)
    if not query.text.strip() or not count:
        return None
    vectors = candidates.vectors
    if query.vector is None or vectors is None or vectors.shape != (count, query.vector.size):
        shape = None if vectors is None else vectors.shape
        raise InputError(f"{name}: expected a query vector and ({count}, dim) candidate vectors, got {shape}")
    return query.vector, vectors


def _zeros(candidates: Candidates) -> NDArray[np.float64]:
    import numpy as np

    return np.zeros(len(candidates.texts))


def _calibrated(encoder: Encoder, make: Callable[[Calibration], Scorer]) -> Scorer:
    from ctx_vector.calibration import load_calibration

    return make(load_calibration(encoder))


SCORERS: Final[dict[str, Callable[[Callable[[], Encoder]], Any]]] = {
    "cosine": lambda encoder: _calibrated(encoder(), CosineScorer),
    "hybrid": lambda encoder: _calibrated(encoder(), HybridScorer),
    "hybrid_rrf": lambda encoder: _calibrated(encoder(), lambda found: HybridScorer(found, rrf=True)),
    "bm25": lambda encoder: KeywordScorer(),
    "cosine_raw": lambda encoder: CosineScorer(None),
    "jaccard": lambda encoder: JaccardScorer(),
}


#: The strategies by which a knowledge base and a memory search themselves.
RETRIEVAL: Final = ("cosine", "hybrid", "hybrid_rrf", "bm25")


def check_retrieval(strategy: Any) -> str:
    """Return the name of a strategy that can search. Raises InputError with the choices."""
    if strategy not in RETRIEVAL:
        raise InputError(f"strategy: expected one of {', '.join(RETRIEVAL)} for a search, got {strategy!r:.80}")
    return str(strategy)


def make_scorer(strategy: Any, encoder: Callable[[], Encoder]) -> Scorer:
    """Return the scorer of a strategy: a name in SCORERS or of a plugin, or an object with `score`. `encoder` is called
    when needed.

    Raises ConfigError with the choices for a name that is not known, or a plugin that does not work.
    """
    if not isinstance(strategy, str):
        return strategy  # type: ignore[no-any-return]
    if strategy in SCORERS:
        return SCORERS[strategy](encoder)  # type: ignore[no-any-return]
    from ctx_vector.plugins import plugin, plugin_names

    made = plugin("strategy", strategy)
    if made is not None:
        scorer = made(encoder)
        if not callable(getattr(scorer, "score", None)):
            raise ConfigError([f"strategy: the plugin {strategy!r} gave {scorer!r:.80}, which has no score()"])
        return scorer  # type: ignore[no-any-return]
    choices = [*SCORERS, *plugin_names("strategy")]
    raise ConfigError(
        [
            f"strategy: expected one of {', '.join(choices)}, or an object with score(), got {strategy!r}"
            f"{nearest(strategy, choices)}"
        ]
    )
