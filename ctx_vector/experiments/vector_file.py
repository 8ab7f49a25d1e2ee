"""Vectors on disk for repeated runs, in one SQLite file: `CachedEncoder(encoder, store=VectorFile(path))`.

Keys are digests of the encoder's fingerprint and the text, so that no text is in the file and another model's vectors
are never mistaken for this one's. Deleting the file costs time and nothing else.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ctx_vector.common_tables import common_tables
from ctx_vector.store import Store

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST = 500  # keys in one question to SQLite


def _vectors(conn: sqlite3.Connection) -> None:
    conn.execute("CREATE TABLE vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID")


class VectorFile:
    """Keeps vectors (dim,) float32 by key, for `CachedEncoder`.

    Raises StoreError when the file is not one of these.
    """

    def __init__(self, path: Path) -> None:
        self._store = Store(path, (common_tables, _vectors), kind="vector file")

    def get_many(self, keys: Sequence[bytes]) -> Mapping[bytes, NDArray[np.float32]]:
        """Return the vectors (dim,) float32 of those keys that are known."""
        found: dict[bytes, NDArray[np.float32]] = {}
        with self._store.read() as conn:
            for start in range(0, len(keys), _MOST):
                some = list(keys[start : start + _MOST])
                marks = ", ".join("?" * len(some))
                for key, blob in conn.execute(f"SELECT key, vector FROM vectors WHERE key IN ({marks})", some):
                    found[bytes(key)] = np.frombuffer(blob, "<f4").astype(np.float32)
        return found

    def put_many(self, vectors: Mapping[bytes, NDArray[np.float32]]) -> None:
        """Keep these vectors, (dim,) float32 each."""
        with self._store.write() as conn:
            rows = ((key, np.asarray(vector, "<f4").tobytes()) for key, vector in vectors.items())
            conn.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)

    def close(self) -> None:
        """Close the file."""
        self._store.close()
