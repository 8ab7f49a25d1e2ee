"""Nearest rows by inner product over unit vectors, which is their cosine: exact or by a graph, in memory or mapped.

    FlatIndex     exact; 0.2 ms for 10,000 rows of 384, 9 ms for 100,000
    GraphIndex    HNSW, for more rows than that; never asked through a narrow filter, where it finds next to nothing
    TailedIndex   one of them as it was written to a file, less the rows that went, plus the rows that came

A file is written once and never changed: a header, the row ids, then what FAISS writes. It is opened as a memory map
through FAISS's `ZeroCopyIOReader`, which takes no time and no memory, works for any path, and runs no code from the
file. FAISS aborts the process when something is added to such an index, so nothing ever is.

Only what could crash the process is checked on opening; a flipped byte in a vector costs recall until `verify` compares
the digest, never a wrong score, because callers score the rows found with the vectors from SQLite.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from ctx_vector.errors import StoreError
from ctx_vector.whole_files import whole_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Vectors = NDArray[np.float32]

EXACT_SHARE: Final = 0.2  # a filter that keeps less of the rows than this is answered exactly
_MAGIC: Final = b"CTXVIDX1"
_ALIGN: Final = 64
_NEIGHBOURS: Final = 32
_BUILD_WIDTH: Final = 80
_SEARCH_WIDTH: Final = 256
_PROCESS: Final = os.getpid()
_NO_IDS: Ids = np.empty(0, np.int64)
_NO_SCORES: Vectors = np.empty(0, np.float32)


def load_faiss() -> Any:
    """Import FAISS, which takes 150 ms; its bundled types are incomplete, hence Any."""
    import faiss

    return faiss


@contextmanager
def one_thread(faiss: Any) -> Generator[None]:
    """Search on this thread alone: for one query, waking OpenMP's threads takes up to 80 times the search itself."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _positions(ids: Ids, wanted: Ids) -> Ids:
    """Return where those of `wanted` that occur in the ascending `ids` stand."""
    at: Ids = np.searchsorted(ids, wanted)
    inside = at < len(ids)
    at, wanted = at[inside], wanted[inside]
    found: Ids = at[ids[at] == wanted]
    return found


def best_first(ids: Ids, scores: Vectors, k: int) -> tuple[Ids, Vectors]:
    """Return the k best of rows with ids (n,) int64 and scores (n,) float32, highest score first, then by id."""
    order = np.lexsort((ids, -scores))[:k]
    return ids[order], scores[order]


class _FaissRows:
    """Rows held by one FAISS index; row ids are kept beside it, in ascending order."""

    kind = ""

    def __init__(self, ids: Ids, index: Any, storage: Any, keep: object = None) -> None:
        self.ids = ids
        self._index = index
        self._storage = storage
        self._keep = keep  # the memory map under a mapped index
        self.mapped = keep is not None
        self._matrix: Vectors | None = None

    @classmethod
    def _opened(cls, ids: Ids, index: Any, storage: Any, keep: object) -> Self:
        rows = cls.__new__(cls)
        _FaissRows.__init__(rows, ids, index, storage, keep)
        return rows

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return int(self._index.d)

    @property
    def vectors(self) -> Vectors:
        """The rows' vectors, (n, dim) float32, as a view on FAISS's own memory."""
        if self._matrix is None:
            flat: Vectors = load_faiss().rev_swig_ptr(self._storage.get_xb(), len(self.ids) * self.dim)
            self._matrix = flat.reshape(len(self.ids), self.dim)
        return self._matrix

    def _exact(self, vector: Vectors, k: int, positions: Ids | None) -> tuple[Ids, Vectors]:
        faiss = load_faiss()
        params = None
        if positions is not None:
            positions = np.ascontiguousarray(positions, np.int64)
            selector = faiss.IDSelectorArray(len(positions), faiss.swig_ptr(positions))
            params = faiss.SearchParameters(sel=selector)
        with one_thread(faiss):
            scores, found = self._storage.search(vector, k, params=params)
        return self._named(found[0], scores[0])

    def _named(self, found: Ids, scores: Vectors) -> tuple[Ids, Vectors]:
        filled = found >= 0
        return best_first(self.ids[found[filled]], scores[filled], len(found))

    def _prepared(self, vector: Vectors, k: int, allowed: Ids | None) -> tuple[Vectors, int, Ids | None]:
        vector = np.ascontiguousarray(vector, np.float32).reshape(1, -1)
        if vector.shape[1] != self.dim:
            raise StoreError(f"the index holds vectors of {self.dim} numbers, got one of {vector.shape[1]}")
        positions = None if allowed is None else _positions(self.ids, allowed)
        rows = len(self.ids) if positions is None else len(positions)
        return vector, min(k, rows), positions


class FlatIndex(_FaissRows):
    """Exact search. `ids` (n,) int64 ascending and unique, `vectors` (n, dim) float32 with unit rows."""

    kind = "flat"

    def __init__(self, ids: Ids, vectors: Vectors) -> None:
        faiss = load_faiss()
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(np.ascontiguousarray(vectors, np.float32))
        super().__init__(ids, index, index)

    def search(self, vector: Vectors, k: int, allowed: Ids | None = None) -> tuple[Ids, Vectors]:
        """Return ids (n,) int64 and inner products (n,) float32 of at most `k` rows, best first; only rows of `allowed`
        (ids, sorted). `vector` is (dim,) float32. Raises StoreError for one of another length.
        """
        vector, k, positions = self._prepared(vector, k, allowed)
        if k <= 0:
            return _NO_IDS, _NO_SCORES
        return self._exact(vector, k, positions)


class GraphIndex(_FaissRows):
    """HNSW: a few tenths of a millisecond for a million rows, after a build of minutes."""

    kind = "graph"

    def __init__(self, ids: Ids, vectors: Vectors) -> None:
        faiss = load_faiss()
        index = faiss.IndexHNSWFlat(vectors.shape[1], _NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = _BUILD_WIDTH
        # OpenMP's threads do not come along when a process forks, and the child would wait for them for ever
        with one_thread(faiss) if os.getpid() != _PROCESS else nullcontext():
            index.add(np.ascontiguousarray(vectors, np.float32))
        super().__init__(ids, index, faiss.downcast_index(index.storage))

    def search(self, vector: Vectors, k: int, allowed: Ids | None = None) -> tuple[Ids, Vectors]:
        """Return ids and inner products, as FlatIndex does, of about the best `k` rows; exact where `allowed` keeps
        under 20 % of them.
        """
        faiss = load_faiss()
        vector, k, positions = self._prepared(vector, k, allowed)
        if k <= 0:
            return _NO_IDS, _NO_SCORES
        if positions is not None and (len(positions) < EXACT_SHARE * len(self.ids) or k > len(positions) // 4):
            return self._exact(vector, k, positions)
        if k > len(self.ids) // 4:
            return self._exact(vector, k, None)
        params = faiss.SearchParametersHNSW(efSearch=max(_SEARCH_WIDTH, 2 * k))
        if positions is not None:
            kept = np.zeros(len(self.ids), bool)
            kept[positions] = True
            bits = np.packbits(kept, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
            params.sel = selector
        with one_thread(faiss):
            scores, found = self._index.search(vector, k, params=params)
        return self._named(found[0], scores[0])


class TailedIndex:
    """A base index with changes on top: `gone` ids (sorted) of the base, and a `tail` of newer rows."""

    def __init__(self, base: FlatIndex | GraphIndex, gone: Ids, tail: FlatIndex | None) -> None:
        self.base = base
        self.tail = tail
        self._live = np.setdiff1d(base.ids, gone, assume_unique=True) if len(gone) else None
        self.changes = len(gone) + (len(tail) if tail else 0)

    @property
    def ids(self) -> Ids:
        """The rows that are there, in no order."""
        kept = self.base.ids if self._live is None else self._live
        return np.concatenate((kept, self.tail.ids)) if self.tail else kept

    def __len__(self) -> int:
        kept = len(self.base) if self._live is None else len(self._live)
        return kept + (len(self.tail) if self.tail else 0)

    def search(self, vector: Vectors, k: int, allowed: Ids | None = None) -> tuple[Ids, Vectors]:
        """Return ids and inner products, as FlatIndex does, of the best `k` rows of base and tail together."""
        live = self._live
        if allowed is not None:
            live = allowed if live is None else np.intersect1d(live, allowed, assume_unique=True)
        ids, scores = self.base.search(vector, k, live)
        if self.tail is None:
            return ids, scores
        more_ids, more_scores = self.tail.search(vector, k, allowed)
        return best_first(np.concatenate((ids, more_ids)), np.concatenate((scores, more_scores)), k)


# -- files --------------------------------------------------------------------------------------------------------


def save_index(path: Path, index: FlatIndex | GraphIndex, label: dict[str, Any]) -> tuple[int, str]:
    """Write an index to a new file, whole or not at all; return its size in bytes and its SHA-256 in hex."""
    faiss = load_faiss()
    header = json.dumps(label | {"kind": index.kind, "rows": len(index), "dim": index.dim}, sort_keys=True).encode()
    start = len(_MAGIC) + 4 + len(header)
    digest = hashlib.sha256()
    try:
        with whole_file(path, "wb") as file:
            size = 0

            def put(data: bytes | memoryview) -> int:
                nonlocal size
                digest.update(data)
                file.write(data)
                size += len(data)
                return len(data)

            put(_MAGIC + struct.pack("<I", len(header)) + header + bytes(-start % _ALIGN))
            put(np.ascontiguousarray(index.ids, "<i8").tobytes())
            put(bytes(-size % _ALIGN))
            faiss.write_index(index._index, faiss.PyCallbackIOWriter(put))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None
    return size, digest.hexdigest()


def open_index(path: Path, label: dict[str, Any]) -> FlatIndex | GraphIndex:
    """Map an index file whose header says exactly `label` (kind, rows and dim included), without reading it.

    Raises StoreError saying what is wrong with the file.
    """
    faiss = load_faiss()
    try:
        data = np.memmap(path, np.uint8, mode="r")
        if data[: len(_MAGIC)].tobytes() != _MAGIC:
            raise StoreError(f"{path} is no index file of ctx_vector")
        length = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 4].tobytes(), "little")
        start = len(_MAGIC) + 4
        header = json.loads(data[start : start + length].tobytes())
        if header != label:
            raise StoreError(f"{path} belongs to another index")
        start += length
        start += -start % _ALIGN
        rows = int(label["rows"])
        ids = data[start : start + 8 * rows].view("<i8")
        start += 8 * rows
        start += -start % _ALIGN
        body = data[start:]
        index = faiss.read_index(faiss.ZeroCopyIOReader(faiss.swig_ptr(body), len(body)))
    except (OSError, ValueError, IndexError, RuntimeError) as error:
        # ValueError: an empty file, or a header that is no JSON; RuntimeError: what FAISS says of a broken file
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    graph = label["kind"] == GraphIndex.kind
    if type(index) is not (faiss.IndexHNSWFlat if graph else faiss.IndexFlatIP):
        raise StoreError(f"{path} holds an index of another kind")
    if index.ntotal != rows or index.d != label["dim"] or len(ids) != rows:
        raise StoreError(f"{path} holds {index.ntotal} rows of {index.d} numbers, {rows} of {label['dim']} expected")
    if rows > 1 and not bool((np.diff(ids) > 0).all()):
        raise StoreError(f"{path} has damaged row ids")
    storage = faiss.downcast_index(index.storage) if graph else index
    if graph and not _graph_is_sound(index, storage):
        raise StoreError(f"{path} has a damaged graph")
    return (GraphIndex if graph else FlatIndex)._opened(ids, index, storage, (data, body))


def _graph_is_sound(index: Any, storage: Any) -> bool:
    """Return whether every edge of the graph leads to a row: FAISS follows them unchecked, into foreign memory."""
    faiss = load_faiss()
    graph, rows = index.hnsw, index.ntotal
    if type(storage) is not faiss.IndexFlatIP or storage.ntotal != rows or storage.d != index.d:
        return False
    edges = faiss.vector_to_array(graph.neighbors)
    offsets = faiss.vector_to_array(graph.offsets).astype(np.int64)
    levels = faiss.vector_to_array(graph.levels)
    widths = faiss.vector_to_array(graph.cum_nneighbor_per_level)
    if len(offsets) != rows + 1 or len(levels) != rows or not 0 <= graph.entry_point < rows:
        return False
    if levels.min() < 1 or levels.max() >= len(widths) or graph.max_level != levels.max() - 1:
        return False
    if levels[graph.entry_point] != levels.max() or offsets[0] != 0 or offsets[-1] != len(edges):
        return False
    sizes = widths[levels]
    return bool((np.diff(offsets) == sizes).all() and edges.min() >= -1 and edges.max() < rows)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hex; raises OSError when it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
