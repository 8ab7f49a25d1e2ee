"""Measuring a calibration: the means and the points of the map, on the background (calibration.py has the formula)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ctx_vector import measurements
from ctx_vector.calibration import KEYWORD_WEIGHT, QUERY_SHARE, Calibration, beyond, calibration_path, lost
from ctx_vector.keywords import Keywords, Terms
from ctx_vector.languages import LANGUAGES
from ctx_vector.relevance_map import HybridMap, PairMap
from ctx_vector.terms import stem_key, terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ctx_vector.stages import Encoder

LEAST_COMMON: Final = 0.02  # of ordinary texts have a term for it to be kept


def measure(
    encoder: Encoder,
    rows: Sequence[dict[str, str]],
    keyword_weight: float = KEYWORD_WEIGHT,
    *,
    about: Sequence[dict[str, str]] | None = None,
) -> Calibration:
    """Measure the map of an encoder on background rows with the keys en, zh, q_en, q_zh (models/background), and the
    means of statements `about` oneself, rows with the same keys; the shipped ones unless told.

    A row's own passage and question are left out of the means it is judged by. Encodes 4 texts a row. `keyword_weight`
    is the number chosen for the hybrid (calibration.py).
    """
    import numpy as np

    about = measurements.statements() if about is None else about
    documents = {name: encoder.encode_documents([row[name] for row in rows]) for name in LANGUAGES}
    asked = {name: encoder.encode_queries([row[f"q_{name}"] for row in rows]) for name in LANGUAGES}
    statements = {name: encoder.encode_documents([row[name] for row in about]).mean(0) for name in LANGUAGES}
    inquiries = {name: encoder.encode_queries([row[f"q_{name}"] for row in about]).mean(0) for name in LANGUAGES}
    count = len(rows)
    apart = ~np.eye(count, dtype=bool)
    pairs: dict[tuple[str, str], PairMap] = {}
    centred: dict[tuple[str, str], PairMap] = {}
    hybrid: dict[tuple[str, str], HybridMap] = {}
    hybrid_centred: dict[tuple[str, str], HybridMap] = {}
    report: dict[str, float] = {"rows": float(count)}

    def with_keywords(
        pair: PairMap, excess: NDArray[np.float64], shares: NDArray[np.float64]
    ) -> tuple[HybridMap, dict[str, float]]:
        unit = pair.match - pair.line
        dense = excess / unit
        weight = keyword_weight * float(dense[apart].var()) / max(1.0, float(np.median(np.diag(dense))))
        fused = dense + weight * shares
        mean = float(fused[apart].mean())
        points, seen = points_of(mean, fused[apart] - mean, np.diag(fused) - mean)
        return HybridMap(unit, weight, points), seen

    for q in LANGUAGES:
        for d in LANGUAGES:
            cosines = (asked[q] @ documents[d].T).astype(np.float64)
            own = np.diag(cosines)
            mean = float(cosines[apart].mean())
            by_query = np.maximum((cosines.sum(1) - own) / (count - 1), asked[q] @ statements[d]) - mean
            inquired = documents[d] @ inquiries[q]
            usual = beyond(float(inquired.mean()), mean)
            by_text = np.maximum((cosines.sum(0) - own) / (count - 1) - mean, inquired - usual)
            excess = cosines - mean - QUERY_SHARE * by_query[:, None] - lost(by_text, q == d)[None, :]
            pairs[q, d], seen = points_of(mean, excess[apart], np.diag(excess))
            report |= {f"{name}_{q}_{d}": share for name, share in seen.items()}
            words = keyword_shares(rows, q, d)
            hybrid[q, d], seen = with_keywords(pairs[q, d], excess, words)
            report |= {f"hybrid_{name}_{q}_{d}": share for name, share in seen.items()}
            questions, passages = asked[q] - asked[q].mean(0), documents[d] - documents[d].mean(0)
            cosines = (_unit(questions) @ _unit(passages).T).astype(np.float64)
            mean = float(cosines[apart].mean())
            centred[q, d], seen = points_of(mean, cosines[apart] - mean, np.diag(cosines) - mean)
            report |= {f"centred_{name}_{q}_{d}": share for name, share in seen.items()}
            hybrid_centred[q, d], seen = with_keywords(centred[q, d], cosines - mean, words)
            report |= {f"hybrid_centred_{name}_{q}_{d}": share for name, share in seen.items()}
    return Calibration(
        model=encoder.name,
        passages={name: vectors.mean(0) for name, vectors in documents.items()},
        questions={name: vectors.mean(0) for name, vectors in asked.items()},
        statements=statements,
        statement_questions=inquiries,
        pairs=pairs,
        centred=centred,
        hybrid=hybrid,
        hybrid_centred=hybrid_centred,
        report=report,
    )


def keyword_shares(
    rows: Sequence[dict[str, str]], asked: str, said: str, common: Mapping[int, float] | None = None
) -> NDArray[np.float64]:
    """Return the keyword share (questions, passages) of the background's questions and passages in two languages."""
    import numpy as np

    collection = Keywords(Terms.of([row[said] for row in rows]))
    return np.stack([collection.shares(row[f"q_{asked}"], common) for row in rows])


def common_terms(rows: Sequence[dict[str, str]], terms_of: Callable[[str], list[str]] = terms) -> dict[str, float]:
    """Return the share of background texts, or of questions if larger, that have a term, for the common ones."""
    common: dict[str, float] = {}
    for key in (*LANGUAGES, *(f"q_{name}" for name in LANGUAGES)):
        holders = Counter(term for row in rows for term in set(terms_of(row[key])))
        for term, count in holders.items():
            if count >= LEAST_COMMON * len(rows):
                common[term] = max(common.get(term, 0.0), round(count / len(rows), 3))
    return common


def measure_keywords(rows: Sequence[dict[str, str]]) -> dict[str, Any]:
    """Return what models/background/keywords.json holds (keywords.py), measured on background rows."""
    import numpy as np

    common = common_terms(rows)
    by_key = {stem_key(term): share for term, share in common.items()}
    apart = ~np.eye(len(rows), dtype=bool)
    maps: dict[str, list[float]] = {}
    report: dict[str, float] = {}
    for name in LANGUAGES:
        shares = keyword_shares(rows, name, name, by_key)
        mean = float(shares[apart].mean())
        pair, seen = points_of(mean, shares[apart] - mean, np.diag(shares) - mean)
        maps[name] = [round(value, 5) for value in (pair.unrelated, pair.line, pair.match, pair.high)]
        report |= {f"{key}_{name}": share for key, share in seen.items()}
    return {"common": dict(sorted(common.items())), "maps": maps, "report": report}


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    import numpy as np

    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), np.float32)


def points_of(
    mean: float, unrelated: NDArray[np.float64], matched: NDArray[np.float64]
) -> tuple[PairMap, dict[str, float]]:
    """Return the map of one pair of languages, and the shares of background pairs that it puts right."""
    import numpy as np

    # an encoder that cannot tell the two apart in these languages still gets points that ascend
    line, right = _best_line(unrelated, matched)
    least = max(1e-6, 0.1 * float(unrelated.std()))
    line = max(line, least)
    match = max(float(np.median(matched)), line + least)
    pair = PairMap(mean, line, match, max(float(np.quantile(matched, 0.95)), match + least))
    return pair, {
        "right": round(right, 4),
        "matched_over_0.3": round(float((pair.relevance(matched) > 0.3).mean()), 4),
        "unrelated_over_0.3": round(float((pair.relevance(unrelated) > 0.3).mean()), 4),
    }


def _best_line(unrelated: NDArray[np.float64], matched: NDArray[np.float64]) -> tuple[float, float]:
    """Return the excess with the largest share of pairs on their right side, the worse side counting; and the share."""
    import numpy as np

    under, over = np.sort(unrelated), np.sort(matched)
    places = np.linspace(float(np.median(unrelated)), float(np.median(matched)), 512)
    shares = np.minimum(np.searchsorted(under, places) / len(under), 1.0 - np.searchsorted(over, places) / len(over))
    best = int(np.argmax(shares))
    return float(places[best]), float(shares[best])


def measure_and_keep(encoder: Encoder) -> Calibration:
    """Measure the calibration of an encoder on the shipped background, and keep it in the user's cache folder."""
    return measurements.measured(
        calibration_path(encoder),
        f"the calibration of {encoder.name}",
        lambda: measure(encoder, measurements.background()).to_dict(),
        Calibration.from_dict,
    )
