"""The second pass: the best texts of a search are looked at again, by something that sees more and costs more.

    late                 late interaction with the encoder's own token vectors (late.py)
    path, owner/model    a cross-encoder (cross_encoder.py)
    NAME                 of another package: an entry point `rerank.NAME` (plugins.py)

or any object with `score(query, candidates)`, the Scorer of stages.py. The first pass names the texts, the second one
judges the best `depth` of them, and

    relevance = (1 - weight) * relevance of the first + weight * relevance of the second

both calibrated. What was not looked at again keeps its relevance and its place: a text that the second pass finds
wanting falls down to the best of those, and no further, for nothing is known of them that would put them above it.

The weight 0.6 was chosen on a sample of XQuAD. On the bilingual set of this project (benchmarks/late.py) the first hit
answers 0.69 of the questions instead of 0.61 after a first pass by cosine, 0.71 instead of 0.66 after hybrid; any
weight from 0.4 on is about as good, and a depth of 10 nearly as good as one of 50.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.errors import ConfigError, InputError
from ctx_vector.rules import check_count, check_share, nearest
from ctx_vector.stages import Candidates, Query

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ctx_vector.stages import Encoder, Scorer

DEPTH: Final = 30
SECOND_PASS: Final = "second_pass"  # the note of a build: rank -> [relevance by the first pass, by the second]
WEIGHT: Final = 0.6
_SLOT: Final = 1e-3  # of relevance, in which those stand that fell


def _late(encoder: Callable[[], Encoder]) -> Any:
    from ctx_vector.late import LateScorer

    return LateScorer(encoder())


RERANKERS: Final[dict[str, Callable[[Callable[[], Encoder]], Any]]] = {"late": _late}


def _is_place(name: str) -> bool:
    """Say whether a text names a folder or a hub model, not a plugin."""
    return "/" in name or "\\" in name or name.startswith((".", "~")) or Path(name).is_dir()


def check_reranker(rerank: Any) -> None:
    """Raise ConfigError with the choices for what cannot be a second pass; loads no model."""
    if rerank is None or callable(getattr(rerank, "score", None)):
        return
    if isinstance(rerank, Path) or (isinstance(rerank, str) and _is_place(rerank)):
        path, text = Path(rerank).expanduser(), str(rerank)
        named = text.count("/") == 1 and not text.startswith((".", "/", "~"))
        if not path.is_dir() and (isinstance(rerank, Path) or not named):
            raise ConfigError([f"rerank: there is no folder {text!r} with a cross-encoder"])
        return
    from ctx_vector.plugins import plugin, plugin_names

    if not isinstance(rerank, str) or (rerank not in RERANKERS and plugin("rerank", rerank) is None):
        choices = [*RERANKERS, *plugin_names("rerank")]
        raise ConfigError(
            [
                f"rerank: expected one of {', '.join(choices)}, the folder of a cross-encoder, or an object with "
                f"score(), got {rerank!r:.80}{nearest(rerank, choices)}"
            ]
        )


def make_reranker(rerank: Any, encoder: Callable[[], Encoder]) -> Scorer:
    """Return the scorer of a second pass: a name, the folder of a cross-encoder, a plugin's, or an object with `score`.

    Raises ConfigError with the choices for what is none, ModelError for a model that cannot be loaded.
    """
    check_reranker(rerank)
    if callable(getattr(rerank, "score", None)):
        return rerank  # type: ignore[no-any-return]
    if isinstance(rerank, str) and rerank in RERANKERS:
        return RERANKERS[rerank](encoder)  # type: ignore[no-any-return]
    if isinstance(rerank, Path) or _is_place(rerank):
        from ctx_vector.cross_encoder import CrossEncoderScorer

        return CrossEncoderScorer(rerank)
    from ctx_vector.plugins import plugin

    scorer = plugin("rerank", rerank)(encoder)
    if not callable(getattr(scorer, "score", None)):
        raise ConfigError([f"rerank: the plugin {rerank!r} gave {scorer!r:.80}, which has no score()"])
    return scorer  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class SecondPass:
    """A second pass as it is to be done: what gives its scorer, of how many texts, with which weight in [0, 1].

    `scorer` is called when there is something to look at: a model is loaded no sooner.
    """

    scorer: Callable[[], Scorer]
    depth: int = DEPTH
    weight: float = WEIGHT

    def __post_init__(self) -> None:
        check_count(self.depth, "rerank_depth")
        check_share(self.weight, "rerank_weight")

    def look(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the relevance (n,) float64 in [0, 1] of texts by the second pass alone."""
        import numpy as np

        if not texts:
            return np.empty(0)
        scorer = self.scorer()
        scores = np.asarray(scorer.score(Query(query), Candidates(texts)), np.float64)
        if scores.shape != (len(texts),):
            raise InputError(f"{type(scorer).__name__}.score: expected shape ({len(texts)},), got {scores.shape}")
        return np.nan_to_num(np.clip(scores, 0.0, 1.0))

    def again(
        self, query: str, first: Sequence[float], texts: Sequence[str]
    ) -> Iterator[tuple[float, tuple[float, float] | None]]:
        """Yield, of texts whose first-pass relevances `first` descend, the relevance by both passes, and what each pass
        said: None of those that were not looked at again. `texts` are the first of them, at most `depth`.
        """
        import numpy as np

        before = np.array(first, np.float64)
        after = self.look(query, texts)
        passes = [*zip(before.tolist(), after.tolist(), strict=False), *([None] * (len(before) - len(after)))]
        return zip(self.fused(before, after).tolist(), passes, strict=True)

    def fused(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the relevance (n,) of texts whose first-pass relevance (n,) descends, and of which the second pass has
        looked at the first (k,).
        """
        return fuse(first, second, self.weight)


class SecondPasses:
    """Makes second passes of what a search is asked for, and keeps the scorers by name: they hold models and caches."""

    def __init__(self, encoder: Callable[[], Encoder]) -> None:
        self._encoder = encoder
        self._lock = threading.RLock()  # making a scorer may load the encoder
        self._known: dict[str, Scorer] = {}

    def of(self, rerank: Any, depth: int = DEPTH, weight: float = WEIGHT) -> SecondPass | None:
        """Return a second pass by name, folder or scorer, or as it is; None for None.

        Raises ConfigError with the choices, InputError for a depth or weight out of its bounds.
        """
        if rerank is None or isinstance(rerank, SecondPass):
            return rerank
        check_reranker(rerank)
        return SecondPass(lambda: self._scorer(rerank), depth, weight)

    def _scorer(self, rerank: Any) -> Scorer:
        if not isinstance(rerank, (str, Path)):
            return make_reranker(rerank, self._encoder)
        with self._lock:
            if str(rerank) not in self._known:
                self._known[str(rerank)] = make_reranker(rerank, self._encoder)
            return self._known[str(rerank)]


def fuse(first: NDArray[np.float64], second: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
    """Return (n,) the weighted sum for the first (k,) of texts, the rest as it is. `first` (n,) descends.

    What falls under the best of the rest is put just above it, in a slot of 0.001, in its own order.

    >>> import numpy as np
    >>> fuse(np.array([0.8, 0.7, 0.5]), np.array([0.2, 0.9]), 0.5).round(6).tolist()
    [0.500999, 0.8, 0.5]
    """
    import numpy as np

    count = len(second)
    found = first.astype(np.float64)
    found[:count] = (1.0 - weight) * first[:count] + weight * second
    if count < len(first):
        least = float(first[count])
        under = found[:count] <= least
        over = found[:count][~under]
        slot = min(_SLOT, float(over.min()) - least if len(over) else 1.0, 1.0 - least)
        found[:count][under] = least + slot * found[:count][under] / max(least, 1e-12) / (1.0 + _SLOT)
    return found
