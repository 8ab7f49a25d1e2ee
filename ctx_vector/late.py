"""Late interaction: the tokens of a query against the tokens of a text, by the vectors that the encoder has of them.

    s = mean over the query's tokens of the largest cosine to a token of the text

This is MaxSim (ColBERT; Khattab and Zaharia 2020) with a model that was not trained for it. So what all tokens have in
common is removed first: from the query's the mean of questions' tokens, from the text's the mean of passages' tokens,
in their languages; the prompt and the special tokens do not count. A longer text has more tokens to be near to, and its
score is higher by chance; what is usual for its length is subtracted. Then a map for each pair of languages makes the
score a relevance, as calibration.py does for cosines: 0.1 separates unrelated from matching, 0.7 is the median match.
Means, lengths and maps are measured on the same background (`LateMap`).

What was tried (benchmarks/late_forms.py; the first hit answers, bilingual set, 0.660 after hybrid alone): tokens as
they are 0.629, without special tokens and prompt 0.660, the means removed 0.724, length too 0.720, which is no better
at ranking but puts more pairs on the right side of the line; on top of that, and not told apart by 232 questions,
without signs 0.728, rare words counting more 0.724, one or three principal directions removed 0.733 and 0.737. Worse:
whitened 0.707, and only 128 or 64 principal directions 0.711 and 0.690, for a third and a sixth of the memory.

It sees words where a cosine sees the whole, and so is the better judge of a few dozen texts, but too dear for all: each
has to be encoded, some 20 ms for 150 tokens on one core. Vectors of tokens are kept, as bytes with a scale a token, for
the texts seen last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from ctx_vector.encoders import tokens_of
from ctx_vector.errors import InputError
from ctx_vector.languages import language_of
from ctx_vector.late_map import LateMap, load_late_map
from ctx_vector.lru import LRU

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.stages import Candidates, Encoder, Query

    Rows = NDArray[np.float32]

Kind = Literal["query", "passage"]
#: Bytes of token vectors that are kept, some 2,000 passages of 160 tokens.
MOST_BYTES: Final = 128_000_000
_ASKED: Final = 20  # rows of a query at a time
_PRODUCTS: Final = 250_000  # of numbers in one call of BLAS; OpenBLAS takes threads from 262,144 on


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Rows (n, dim) as int8, each with the scale (n,) float32 that gives them back."""

    values: NDArray[np.int8]
    scales: Rows

    @classmethod
    def of(cls, rows: Rows) -> Packed:
        """Pack rows; the largest number of each becomes 127.

        >>> Packed.of(np.array([[0.5, -1.0]], np.float32)).values.tolist()
        [[64, -127]]
        """
        scales = np.maximum(np.abs(rows).max(axis=1, initial=0.0), 1e-12).astype(np.float32) / np.float32(127)
        return cls(np.rint(rows / scales[:, None]).astype(np.int8), scales)

    @property
    def nbytes(self) -> int:
        """The memory it takes."""
        return self.values.nbytes + self.scales.nbytes

    def rows(self) -> Rows:
        """Return the rows (n, dim) float32, unpacked."""
        return self.values.astype(np.float32) * self.scales[:, None]


def max_sim(query: Rows, texts: Sequence[Packed]) -> NDArray[np.float64]:
    """Return (texts,) the mean over the query's rows (m, dim) of the largest inner product with a row of each text; 0
    where there are no rows.

    >>> query, text = np.eye(2, dtype=np.float32), np.array([[1, 0], [0.6, 0.8]], np.float32)
    >>> max_sim(query, [Packed.of(text)]).round(2).tolist()  # (1 + 0.8) / 2
    [0.9]
    """
    found = np.zeros(len(texts))
    places = [place for place, text in enumerate(texts) if len(text.scales)]
    if not len(query) or not places:
        return found
    # Blocks of rows so small that BLAS does them in the thread that asks: waiting for others costs more than it saves,
    # on a busy machine a hundred times as much. And so a text has the same bits in any company.
    block = max(1, _PRODUCTS // (_ASKED * query.shape[1]))
    rows, scales, starts, count = [], [], [], 0
    for place in places:
        text = texts[place]
        size = -(-len(text.scales) // block) * block
        at = np.minimum(np.arange(size), len(text.scales) - 1)  # the last row again: no maximum changes
        rows.append(text.values[at])
        scales.append(text.scales[at])
        starts.append(count)
        count += size // block
    values = np.concatenate(rows).astype(np.float32).reshape(count, block, -1)
    factors = np.concatenate(scales).reshape(count, block, 1)
    best = np.empty((len(places), len(query)), np.float32)
    for first in range(0, len(query), _ASKED):
        asked = np.ascontiguousarray(query[first : first + _ASKED].T)
        products = np.matmul(values, asked)
        products *= factors
        best[:, first : first + _ASKED] = np.maximum.reduceat(products.max(axis=1), starts)
    found[places] = best.mean(axis=1, dtype=np.float64)
    return found


class LateScorer:
    """Relevance by late interaction, calibrated. One object keeps the vectors of the texts it saw last, at most
    `most_bytes` of them; it may be used from several threads.
    """

    name = "late"
    uses_vectors = False

    def __init__(self, encoder: Encoder, late_map: LateMap | None = None, most_bytes: int = MOST_BYTES) -> None:
        if most_bytes < 0:
            raise InputError(f"most_bytes: expected an integer >= 0, got {most_bytes}")
        self._encoder = encoder
        self._map = late_map or load_late_map(encoder)
        self._known: LRU[bytes, Packed] = LRU(most_bytes, lambda packed: packed.nbytes)

    def score(self, query: Query, candidates: Candidates) -> NDArray[np.float64]:
        """Return (n,) float64 in [0, 1]; zeros for a blank query, 0 for a blank text."""
        texts = candidates.texts
        found = np.zeros(len(texts))
        if not query.text.strip() or not texts:
            return found
        asked = language_of(query.text)
        (wanted,) = self._packed([query.text], "query")
        packed = self._packed(texts, "passage")
        for place, raw in enumerate(max_sim(wanted.rows(), packed).tolist()):
            if (count := len(packed[place].scales)) and len(wanted.scales):
                found[place] = self._map.relevance(asked, language_of(texts[place]), raw, count)
        return found

    def _packed(self, texts: Sequence[str], kind: Kind) -> list[Packed]:
        """Return the centred, packed rows of each text; what is not known is encoded in one call."""
        keys = [hashlib.blake2b(f"{kind}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
                for text in texts]  # fmt: skip
        found = self._known.get_many(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        if missing:
            fresh = tokens_of(self._encoder, list(missing.values()), kind)
            for (key, text), rows in zip(missing.items(), fresh, strict=True):
                found[key] = Packed.of(self._map.centred(rows, kind, language_of(text)))
            self._known.put({key: found[key] for key in missing})
        return [found[key] for key in keys]
