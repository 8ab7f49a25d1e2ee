"""From a raw cosine to a relevance in [0, 1]: 0.1 separates unrelated from matched, 0.7 is the median matched pair.

A raw cosine of multilingual-e5-small says little by itself: unrelated Chinese pairs have a median of 0.82, matched
pairs of a Chinese query and an English text 0.80. What a cosine means depends on the two languages, and on how
similar the query (and, less so, the text) is to everything. Both are measured on a background of texts on many
subjects and in both languages (models/background). For a query q and a text d, the excess is::

    e = q·d - g - A (q·D - g) - B (d·Q - g)

D is the mean vector of the background passages in the text's language, Q that of the background questions in the
query's language (the mean of dot products is the dot product with the mean), g the mean cosine of unrelated
background pairs of the two languages. This is score normalisation as speaker recognition does it (S-norm; Kenny
2010), without the division by a spread. A = 0.7 does not touch the ranking within one query and one language. B =
0.15 takes a little from texts that resemble everything: more of it would cost recall on long passages.

Three points of each language pair's background turn the excess into a relevance: `line`, right for the largest share of
both unrelated and matched pairs, becomes 0.1; `match`, the median matched pair, 0.7; `high`, the 95th percentile of
matched pairs, 0.9. Below the line it falls exponentially, above the median it nears 1 the same way, so that it is
strictly increasing. Of a text in another language than the query's, what lies over the line counts 0.85: of two equally
good passages the reader gets the one in the language of the question.

The map is fixed for a model, stored as models/calibration/NAME.json, and has a hash of its own: measuring it anew never
encodes a document again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ctx_vector.stages import Encoder

_log = logging.getLogger("ctx_vector.calibration")

QUERY_SHARE: Final = 0.7
TEXT_SHARE: Final = 0.15
AT_LINE: Final = 0.1
AT_MATCH: Final = 0.7
AT_HIGH: Final = 0.9
OTHER_LANGUAGE: Final = 0.85
LANGUAGES: Final = ("en", "zh")

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")
_LATIN_WORDS = re.compile("[A-Za-z\u00c0-\u024f]+")
_OTHER_LETTERS = re.compile("[\u0370-\u1fff\u3040-\u30ff\u3130-\u318f\uac00-\ud7af]")
_SCANNED: Final = 1_000


def language_of(text: str) -> str:
    """Return `zh` for Chinese, `en` for anything in Latin letters, `other` for other scripts; by counting characters.

    A Han character counts like a fifth of a Latin word at the boundary, since Chinese texts on technical matters are
    full of Latin names while English ones hardly hold Han characters.

    >>> [language_of(text) for text in ("如何优化Pandas的内存占用?", "What does 你好 mean in English?", "東京タワー")]
    ['zh', 'en', 'other']
    """
    if text.isascii():
        return "en"
    text = text[:_SCANNED]
    han = len(_HAN.findall(text))
    other = len(_OTHER_LETTERS.findall(text))
    words = len(_LATIN_WORDS.findall(text))
    if other > 0.2 * (han + other) and other > words:
        return "other"
    return "zh" if han > 0.2 * (han + words) and han else "en"


def _cohort(language: str) -> str:
    """Return the background that stands for a language; for other scripts the Chinese one fits better (measured)."""
    return language if language in LANGUAGES else "zh"


@dataclass(frozen=True, slots=True)
class PairMap:
    """The map of one (query language, text language): the mean unrelated cosine, and three excesses that ascend."""

    unrelated: float
    line: float
    match: float
    high: float

    def relevance(self, excess: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (n,) float64 in [0, 1], strictly increasing in the excess (n,)."""
        import numpy as np

        fall = 3.0 / self.line
        decay = np.log((1 - AT_MATCH) / (1 - AT_HIGH)) / (self.high - self.match)
        below = AT_LINE * np.exp(fall * np.minimum(excess - self.line, 0.0))
        between = AT_LINE + (AT_MATCH - AT_LINE) * (excess - self.line) / (self.match - self.line)
        above = 1.0 - (1.0 - AT_MATCH) * np.exp(-decay * np.maximum(excess - self.match, 0.0))
        return np.asarray(np.where(excess < self.line, below, np.where(excess < self.match, between, above)))


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """The map of one encoder.

    `passages[l]` and `questions[l]` are mean vectors (dim,) float32; `pairs[(query language, text language)]` is a
    PairMap. `report` holds the shares of background pairs that are on the right side.
    """

    model: str
    passages: dict[str, NDArray[np.float32]]
    questions: dict[str, NDArray[np.float32]]
    pairs: dict[tuple[str, str], PairMap]
    report: dict[str, float]

    @property
    def hash(self) -> str:
        """A digest of the whole map (16 hex digits)."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def excess(
        self, asked: str, query: NDArray[np.float32], said: str, vectors: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Return e of the formula above, (n,) float64, for texts (n, dim) of one language of the background."""
        import numpy as np

        unrelated = self.pairs[asked, said].unrelated
        # einsum adds up each row by itself: the same bits whatever else is scored
        cosines = np.einsum("ij,j->i", vectors.astype(np.float64), query.astype(np.float64))
        of_texts = np.einsum("ij,j->i", vectors.astype(np.float64), self.questions[asked].astype(np.float64))
        of_query = float(query.astype(np.float64) @ self.passages[said].astype(np.float64))
        excess = cosines - unrelated - QUERY_SHARE * (of_query - unrelated) - TEXT_SHARE * (of_texts - unrelated)
        return np.asarray(excess, np.float64)

    def relevance(
        self, query_text: str, query: NDArray[np.float32], texts: Sequence[str], vectors: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Return the relevance (n,) float64 in [0, 1] of texts with vectors (n, dim); zeros for a blank query."""
        return self.relevance_by_language(query_text, query, [language_of(text) for text in texts], vectors)

    def relevance_by_language(
        self, query_text: str, query: NDArray[np.float32], languages: Sequence[str], vectors: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Return the same for texts whose languages are known already."""
        import numpy as np

        result = np.zeros(len(languages))
        if not query_text.strip():
            return result
        asked = language_of(query_text)
        for language in dict.fromkeys(languages):
            rows = [row for row, other in enumerate(languages) if other == language]
            pair = _cohort(asked), _cohort(language)
            found = self.pairs[pair].relevance(self.excess(pair[0], query, pair[1], vectors[rows]))
            if language != asked:
                found = np.where(found > AT_LINE, AT_LINE + (found - AT_LINE) * OTHER_LANGUAGE, found)
            result[rows] = found
        return result

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; `from_dict` takes them back."""
        return {
            "model": self.model,
            "pairs": {
                f"{asked}-{said}": [round(value, 7) for value in (pair.unrelated, pair.line, pair.match, pair.high)]
                for (asked, said), pair in self.pairs.items()
            },
            "report": self.report,
            "passages": {name: [round(float(v), 7) for v in row] for name, row in self.passages.items()},
            "questions": {name: [round(float(v), 7) for v in row] for name, row in self.questions.items()},
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Calibration:
        """Return the map stored as `to_dict` gives it. Raises ModelError when something is missing."""
        try:
            return cls(
                model=values["model"],
                pairs={_pair_key(key): PairMap(*map(float, points)) for key, points in values["pairs"].items()},
                report=values["report"],
                passages=_vectors(values["passages"]),
                questions=_vectors(values["questions"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"the stored calibration is not usable ({error!r}); run: ctx-vector models calibrate"
            ) from None


def _vectors(values: dict[str, list[float]]) -> dict[str, NDArray[np.float32]]:
    import numpy as np

    return {name: np.asarray(row, np.float32) for name, row in values.items()}


def _pair_key(key: str) -> tuple[str, str]:
    asked, said = key.split("-")
    return asked, said


def measure(encoder: Encoder, rows: Sequence[dict[str, str]]) -> Calibration:
    """Measure the map of an encoder on background rows with the keys en, zh, q_en, q_zh (models/background).

    A row's own passage and question are left out of the means it is judged by. Encodes 4 texts a row.
    """
    import numpy as np

    documents = {name: encoder.encode_documents([row[name] for row in rows]) for name in LANGUAGES}
    asked = {name: encoder.encode_queries([row[f"q_{name}"] for row in rows]) for name in LANGUAGES}
    count = len(rows)
    apart = ~np.eye(count, dtype=bool)
    pairs: dict[tuple[str, str], PairMap] = {}
    report: dict[str, float] = {"rows": float(count)}
    for q in LANGUAGES:
        for d in LANGUAGES:
            cosines = (asked[q] @ documents[d].T).astype(np.float64)
            own = np.diag(cosines)
            mean = float(cosines[apart].mean())
            by_query = (cosines.sum(1) - own) / (count - 1) - mean
            by_text = (cosines.sum(0) - own) / (count - 1) - mean
            excess = cosines - mean - QUERY_SHARE * by_query[:, None] - TEXT_SHARE * by_text[None, :]
            matched, unrelated = np.diag(excess), excess[apart]
            # an encoder that cannot tell the two apart in these languages still gets points that ascend
            line, right = _best_line(unrelated, matched)
            least = max(1e-6, 0.1 * float(unrelated.std()))
            line = max(line, least)
            match = max(float(np.median(matched)), line + least)
            pair = PairMap(mean, line, match, max(float(np.quantile(matched, 0.95)), match + least))
            pairs[q, d] = pair
            report[f"right_{q}_{d}"] = round(right, 4)
            report[f"matched_over_0.3_{q}_{d}"] = round(float((pair.relevance(matched) > 0.3).mean()), 4)
            report[f"unrelated_over_0.3_{q}_{d}"] = round(float((pair.relevance(unrelated) > 0.3).mean()), 4)
    return Calibration(
        model=encoder.name,
        passages={name: rows_.mean(0) for name, rows_ in documents.items()},
        questions={name: rows_.mean(0) for name, rows_ in asked.items()},
        pairs=pairs,
        report=report,
    )


def _best_line(unrelated: NDArray[np.float64], matched: NDArray[np.float64]) -> tuple[float, float]:
    """Return the excess with the largest share of pairs on their right side, the worse side counting; and the share."""
    import numpy as np

    under, over = np.sort(unrelated), np.sort(matched)
    places = np.linspace(float(np.median(unrelated)), float(np.median(matched)), 512)
    shares = np.minimum(np.searchsorted(under, places) / len(under), 1.0 - np.searchsorted(over, places) / len(over))
    best = int(np.argmax(shares))
    return float(places[best]), float(shares[best])


def background(folder: Path) -> list[dict[str, str]]:
    """Return the background rows of a models folder. Raises ModelError when there are none."""
    rows = [
        json.loads(line)
        for path in sorted((folder / "background").glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    if not rows:
        raise ModelError(f"no calibration background in {folder / 'background'}; reinstall ctx_vector")
    return rows


def _cards_folder() -> Path:
    """Return the folder with cards, background and calibrations: in the package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "_models"
    return installed if installed.is_dir() else package.parent / "models"


def calibration_path(encoder: Encoder) -> Path:
    """Return where a calibration measured on this machine is kept: by fingerprint, in the user's cache folder."""
    from platformdirs import user_cache_path

    digest = hashlib.blake2b(encoder.fingerprint.encode(), digest_size=8).hexdigest()
    return Path(user_cache_path("ctx_vector")) / "calibration" / f"{digest}.json"


def load_calibration(encoder: Encoder) -> Calibration:
    """Return the calibration of an encoder: the shipped one of its card, else one measured before, else measure now.

    Measuring encodes the whole background once (about half a minute with the default model's size) and keeps the
    result.
    """
    return _read(encoder) or _measure_and_keep(encoder)


def _read(encoder: Encoder) -> Calibration | None:
    shipped = _cards_folder() / "calibration" / f"{Path(encoder.name).name}.json"
    for path in (calibration_path(encoder), shipped):
        try:
            found = Calibration.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            _log.warning("the calibration %s cannot be read (%s); leaving it out", path.name, error)
            continue
        if found.passages[LANGUAGES[0]].size == encoder.dim:
            return found
    return None


def _measure_and_keep(encoder: Encoder) -> Calibration:
    _log.info("measuring the calibration of %s on the background; this happens once", encoder.name)
    found = measure(encoder, background(_cards_folder()))
    path = calibration_path(encoder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(found.to_dict()), encoding="utf-8")
        part.replace(path)
    except OSError as error:  # a read-only home costs the time again, and nothing else
        _log.warning("the calibration cannot be kept (%s)", error)
    return found
