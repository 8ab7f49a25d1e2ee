"""A small copy of many vectors that names the nearest ones, and knows how far it can be wrong.

Rows stand in groups, one a language. Each number of a row, less the mean of its group, is kept as one byte: a search
reads a quarter of what float32 takes, which is most of what it spends its time on. What the rounding to bytes does to
an inner product is bounded by Cauchy-Schwarz::

    error = |residual of the row| |query|, with the longest residual of all rows

and a little for how float32 adds up. So `nearest` returns rows, best first, and no row that is not named can be nearer
than the last one and the error: who scores the rows exactly knows whether the best are surely among them (dense.py).
What counts for a language's rows besides their inner product with the query is an offset of their group.

With multilingual-e5-small the error is 0.005-0.007: of 10,000 rows, 10-40 are scored exactly to be sure of the best 5.
The bytes take 4 MB (float32: 15), a search 0.2-0.3 ms (float32: 0.4-0.6, more when memory is busy).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ctx_vector.index import load_faiss, one_thread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.index import Ids, Vectors

_LARGEST: Final = 127
_SHIFT: Final = 128  # of a signed byte that is kept as an unsigned one
_BLOCK: Final = 256  # rows at a time, so that what is worked on stays in the cache
_REGISTER: Final = 32
_LEAST_STEP: Final = 1e-9  # of a column whose numbers are all the same


class Sieve:
    """The bytes of `groups` of rows: (ids, vectors (n, dim) float32) each, finite and none empty.

    10,000 rows take 10 ms to make. A row's place is counted through all groups.
    """

    def __init__(self, groups: Sequence[tuple[Ids, Vectors]]) -> None:
        self._ids = np.concatenate([ids for ids, _ in groups])
        self._vectors = [vectors for _, vectors in groups]
        self._starts = np.cumsum([0, *map(len, self._vectors)])
        means = np.array([rows.mean(0, dtype=np.float64) for rows in self._vectors], np.float32)
        self._means = means.astype(np.float64)
        pairs = list(zip(self._vectors, means, strict=True))
        reach = [np.maximum(rows.max(0) - mean, mean - rows.min(0)) for rows, mean in pairs]
        self._step = np.maximum(np.max(reach, 0) / _LARGEST, np.float32(_LEAST_STEP))  # of a byte in each column
        dim = self._means.shape[1]
        # after the numbers of a row a column for each group, full in its rows; FAISS is quick with whole registers only
        columns = dim + len(pairs)
        codes = np.full((len(self), columns + -columns % _REGISTER), _SHIFT, np.uint8)
        self._error = longest = norm = 0.0
        at = 0
        for group, (rows, mean) in enumerate(pairs):
            codes[at : at + len(rows), dim + group] = _SHIFT + _LARGEST
            for start in range(0, len(rows), _BLOCK):
                block = rows[start : start + _BLOCK]
                residual = block - mean
                code = np.rint(residual / self._step)
                residual -= code * self._step
                codes[at : at + len(block), :dim] = code + _SHIFT
                at += len(block)
                self._error = max(self._error, _longest(residual))
                longest = max(longest, _longest(code))
                norm = max(norm, _longest(block))
        # float32 rounds products, sums, bytes, the mean and the row: 2**-24 of the norms each, at the worst all one way
        self._error += norm * dim * 2.0**-22
        self._rounding = (longest + _LARGEST + _SHIFT) * codes.shape[1] * 2.0**-22
        faiss = load_faiss()
        # a kind that is asked with numbers, not with bytes: a query has some that are much larger than the others
        kind, metric = faiss.ScalarQuantizer.QT_8bit_uniform, faiss.METRIC_INNER_PRODUCT
        self._index: Any = faiss.IndexScalarQuantizer(codes.shape[1], kind, metric)
        faiss.copy_array_to_vector(np.array([-_SHIFT - 0.5, 255], np.float32), self._index.sq.trained)
        self._index.is_trained = True  # byte c stands for -128.5 + 255 (c + 0.5) / 255
        self._index.add_sa_codes(codes)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def means(self, vector: Vectors) -> NDArray[np.float64]:
        """Return the inner product (groups,) of the mean of each group with a vector (dim,)."""
        found: NDArray[np.float64] = self._means @ vector
        return found

    def nearest(self, vector: Vectors, k: int, offsets: NDArray[np.float64]) -> tuple[Ids, NDArray[np.float32], float]:
        """Return the places of the nearest k rows, k <= n, best first, their nearness (k,), and the error.

        A row is as near as its inner product with `vector`, less that of the mean of its group, and the offset of its
        group (groups,); it is so within the error.
        """
        query = np.zeros((1, self._index.d), np.float32)
        dim = len(vector)
        np.multiply(vector, self._step, out=query[0, :dim])
        query[0, dim : dim + len(offsets)] = offsets / _LARGEST
        with one_thread(load_faiss()):
            near, places = self._index.search(query, k)
        error = self._error * math.sqrt(vector @ vector) + self._rounding * math.sqrt(query[0] @ query[0])
        return places[0], near[0], error

    def groups(self, places: Ids) -> Ids:
        """Return the group (n,) of each of these rows."""
        groups: Ids = self._starts.searchsorted(places, "right") - 1
        return groups

    def rows(self, places: Ids) -> tuple[Ids, Vectors, Ids]:
        """Return ids, vectors (n, dim) and groups of rows, in the order of their places."""
        places = np.sort(places)
        groups = self.groups(places)
        found = np.empty((len(places), len(self._means[0])), np.float32)
        cuts = groups.searchsorted(range(len(self._vectors) + 1)).tolist()
        for vectors, start, first, last in zip(self._vectors, self._starts.tolist(), cuts, cuts[1:], strict=False):
            if first < last:
                vectors.take(places[first:last] - start, 0, found[first:last], "clip")
        return self._ids[places], found, groups


def _longest(rows: NDArray[np.float32]) -> float:
    """Return the norm of the longest row."""
    return float(np.sqrt(np.einsum("ij,ij->i", rows, rows).max()))
