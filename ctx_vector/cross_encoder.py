"""A cross-encoder: query and text are read together by one model, which gives one number for the pair.

Any folder (or hub name, ``owner/model``) that `sentence_transformers.CrossEncoder` loads, with one output. What the
number means depends on the model, so that a map makes it a relevance, as calibration.py does for cosines: 0.1 separates
unrelated from matching pairs of the background, 0.7 is the median match, for each pair of languages. The map is
measured at the first use, on every third row of the background, in a minute or so with a small model, and kept in the
user's cache folder by a digest of the model.

Nothing better judges a few dozen texts, and nothing is dearer: each pair is a run of a model under torch.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ctx_vector import hub, measurements
from ctx_vector.errors import ConfigError, ModelError
from ctx_vector.languages import LANGUAGES, cohort, language_of
from ctx_vector.relevance_map import OTHER_LANGUAGE, PairMap, pairs_from_dict, pairs_to_dict, seen_from

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ctx_vector.stages import Candidates, Query

_STEP: Final = 3  # every so many rows of the background
_UNRELATED: Final = 3  # texts that a question does not ask for, of each language


class CrossEncoderScorer:
    """Relevance by a cross-encoder, calibrated. Pairs are run one at a time, so that a score does not depend on what
    shares its batch. Safe to use from several threads, which take turns.
    """

    uses_vectors = False

    def __init__(self, name: str | Path) -> None:
        path = Path(name).expanduser()
        local = path.is_dir()
        if not local and (isinstance(name, Path) or str(name).count("/") != 1 or str(name).startswith((".", "/", "~"))):
            raise ConfigError([f"rerank: there is no folder {str(name)!r} with a cross-encoder"])
        hub.quiet()
        try:
            from sentence_transformers import CrossEncoder
        except ImportError as error:
            raise ModelError(
                f"rerank: cannot import sentence-transformers ({error}); install it with: "
                "pip install sentence-transformers"
            ) from error
        try:
            source = str(path) if local else str(name)
            self._model: Any = hub.opened(partial(CrossEncoder, device="cpu"), source, local=local)
        except Exception as error:  # the libraries below raise whatever their parts raise
            raise ModelError(f"rerank: sentence-transformers cannot load the cross-encoder {name}: {error}") from error
        outputs = int(self._model.config.num_labels)
        if outputs != 1:
            raise ModelError(f"rerank: expected a cross-encoder with one output for a pair, {name} has {outputs}")
        self._model.eval()
        self.name = path.resolve().name if local else str(name)
        self._lock = threading.RLock()
        self._maps: Mapping[tuple[str, str], PairMap] | None = None

    def raw(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return what the model puts out for the query with each text, (n,) float64, before any activation."""
        import torch

        found = np.zeros(len(texts))
        with self._lock:
            for place, text in enumerate(texts):
                pair = (query.encode("utf-8", "replace").decode(), text.encode("utf-8", "replace").decode())
                (value,) = self._model.predict(
                    [pair], batch_size=1, activation_fn=torch.nn.Identity(), show_progress_bar=False
                )
                found[place] = float(value)
        return found

    def score(self, query: Query, candidates: Candidates) -> NDArray[np.float64]:
        """Return (n,) float64 in [0, 1]; zeros for a blank query."""
        texts = candidates.texts
        if not query.text.strip() or not texts:
            return np.zeros(len(texts))
        with self._lock:
            maps = self._maps = self._maps or load_maps(self)
        asked = language_of(query.text)
        found = np.empty(len(texts))
        for place, (text, value) in enumerate(zip(texts, self.raw(query.text, texts), strict=True)):
            said = language_of(text)
            points = maps[cohort(asked), cohort(said)]
            relevance = points.relevance(np.array([value - points.unrelated]))
            found[place] = seen_from(relevance, 1.0 if asked == said else OTHER_LANGUAGE)[0]
        return found

    def digest(self) -> str:
        """Return 16 hex digits over the weights and the name of the tokenizer's class."""
        found = hashlib.sha256(type(self._model.tokenizer).__name__.encode())
        for name, tensor in sorted(self._model.state_dict().items()):
            found.update(f"{name} {tuple(tensor.shape)}".encode())
            found.update(np.ascontiguousarray(tensor.detach().cpu().float().numpy()).tobytes())
        return found.hexdigest()[:16]


def measure(scorer: CrossEncoderScorer, rows: Sequence[Mapping[str, str]]) -> dict[tuple[str, str], PairMap]:
    """Return the map of each (query language, text language), measured on background rows with the keys en, zh, q_en,
    q_zh.
    """
    from ctx_vector.calibration_measure import points_of

    maps: dict[tuple[str, str], PairMap] = {}
    for asked in LANGUAGES:
        for said in LANGUAGES:
            matched, unrelated = [], []
            for place, row in enumerate(rows):
                others = [rows[(place + step * 7 + 1) % len(rows)][said] for step in range(_UNRELATED)]
                own, *rest = scorer.raw(row[f"q_{asked}"], [row[said], *others])
                matched.append(own)
                unrelated += rest
            mean = float(np.mean(unrelated))
            maps[asked, said] = points_of(mean, np.array(unrelated) - mean, np.array(matched) - mean)[0]
    return maps


def load_maps(scorer: CrossEncoderScorer) -> dict[tuple[str, str], PairMap]:
    """Return the maps of a cross-encoder, measured before or now."""

    def of(values: dict[str, list[float]]) -> dict[tuple[str, str], PairMap]:
        maps = pairs_from_dict(values)
        return {(asked, said): maps[asked, said] for asked in LANGUAGES for said in LANGUAGES}

    def measure_anew() -> dict[str, list[float]]:
        return pairs_to_dict(measure(scorer, measurements.background()[::_STEP]))

    path = measurements.measured_path(f"cross-{scorer.digest()}.json")
    known = next(measurements.readable([path], of), None)
    return known or measurements.measured(path, f"the calibration of {scorer.name}", measure_anew, of)
