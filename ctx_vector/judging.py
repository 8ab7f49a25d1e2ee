"""How relevant texts are to the query of a build, by a scorer: a text over the encoder's limit by its best window.

candidates ── windows ── vectors, where the scorer uses them ── scores ── (relevance, windows, vectors) of each
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ctx_vector.errors import InputError
from ctx_vector.packets import Candidate
from ctx_vector.stages import Candidates, Query, Scorer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ctx_vector.ranked import Ranked
    from ctx_vector.rerank import SecondPass
    from ctx_vector.stages import Encoder

MOST_WINDOWS: Final = 8
_SAMPLES: Final = 16
_SAMPLE_CHARS: Final = 250


@dataclass(frozen=True, slots=True)
class Judge:
    """What tells how relevant a text is to the query of a build.

    Scorer and encoder are loaded when they are called: only when a text needs them. `second` looks again at the best
    of what no source has ranked by two passes already.
    """

    query: str
    scorer: Callable[[], Scorer]
    encoder: Callable[[], Encoder]
    second: SecondPass | None = None

    def vectors(self, rows: Sequence[Ranked]) -> list[NDArray[np.float32]]:
        """Return the vectors (windows, dim) of each row, unit rows; what has none is encoded in one call."""
        return encoded([row.candidate for row in rows], self.encoder())[1]


def windows(text: str, encoder: Encoder) -> list[str]:
    """Return the text itself, or at most 8 windows of an over-long one: first, last, the others evenly spaced.

    Windows are equally long in model tokens, not in characters: how dense each sixteenth of the text is, is estimated
    from its first characters, 4,000 in all.
    """
    limit = encoder.max_tokens
    if len(text) < limit:  # a token is hardly ever shorter than a character
        return [text]
    import numpy as np

    bounds = [len(text) * n // _SAMPLES for n in range(_SAMPLES + 1)]
    spans = list(itertools.pairwise(bounds))
    samples = [text[start : min(stop, start + _SAMPLE_CHARS)] for start, stop in spans]
    empty, *counts = encoder.count_tokens(["", *samples])
    tokens = [
        max(1, count - empty) * (stop - start) / max(1, len(sample))
        for count, (start, stop), sample in zip(counts, spans, samples, strict=True)
    ]
    upto = np.cumsum([0.0, *tokens])
    width = 0.95 * max(1, limit - empty)
    if upto[-1] < 1.25 * limit and encoder.count_tokens([text])[0] <= limit:  # near the limit only a count decides
        return [text]
    count = max(2, min(MOST_WINDOWS, math.ceil(upto[-1] / width)))
    starts = np.linspace(0.0, max(0.0, upto[-1] - width), count)
    cuts = np.rint(np.interp([*starts, *(starts + width)], upto, bounds)).astype(int)
    return [text[start:stop] for start, stop in zip(cuts[:count], cuts[count:], strict=True)]


def relevances(
    candidates: Sequence[Candidate], query: str, scorer: Scorer, encoder: Callable[[], Encoder]
) -> list[tuple[float, int]]:
    """Return (relevance in [0, 1], number of windows) of each candidate: that of its best window."""
    return [(relevance, count) for relevance, count, _ in scored(candidates, query, scorer, encoder)]


def scored(
    candidates: Sequence[Candidate], query: str, scorer: Scorer, encoder: Callable[[], Encoder]
) -> list[tuple[float, int, NDArray[np.float32] | None]]:
    """Return (relevance, number of windows, vectors (windows, dim) or None) of each candidate: its vectors when the
    scorer uses them. Raises InputError for scores of another shape than (texts,).
    """
    import numpy as np

    asked, vectors = Query(query), None
    blocks: Sequence[NDArray[np.float32] | None] = [None] * len(candidates)
    parts = [[item.packet.content] for item in candidates]
    if getattr(scorer, "uses_vectors", False):
        model = encoder()
        asked = Query(query, model.encode_queries([query])[0])
        parts, found = encoded(candidates, model)
        vectors, blocks = np.concatenate(found, dtype=np.float32), found
    counts = [len(texts) for texts in parts]
    texts = list(itertools.chain.from_iterable(parts))
    packets = [item.packet for item, count in zip(candidates, counts, strict=True) for _ in range(count)]
    scores = np.asarray(scorer.score(asked, Candidates(texts, packets, vectors)), np.float64)
    if scores.shape != (len(texts),):
        raise InputError(f"{type(scorer).__name__}.score: expected shape ({len(texts)},), got {scores.shape}")
    best = np.zeros(len(candidates))
    owners = np.repeat(np.arange(len(candidates)), counts)
    np.maximum.at(best, owners, np.nan_to_num(np.clip(scores, 0.0, 1.0)))
    return list(zip(best.tolist(), counts, blocks, strict=True))


def encoded(candidates: Sequence[Candidate], model: Encoder) -> tuple[list[list[str]], list[NDArray[np.float32]]]:
    """Return the windows and the vectors (windows, dim) of each candidate; what has none is encoded in one call."""
    parts = [
        windows(item.packet.content, model) if item.vectors is None else [item.packet.content] * len(item.vectors)
        for item in candidates
    ]
    missing = [text for item, texts in zip(candidates, parts, strict=True) if item.vectors is None for text in texts]
    fresh = model.encode_documents(missing) if missing else None
    blocks: list[NDArray[np.float32]] = []
    done = 0
    for candidate, texts in zip(candidates, parts, strict=True):
        if candidate.vectors is not None:
            blocks.append(candidate.vectors)
        elif fresh is not None:
            blocks.append(fresh[done : done + len(texts)])
            done += len(texts)
    return parts, blocks
