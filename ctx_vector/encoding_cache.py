"""Vectors of texts, kept in a store by the hash of the text: what was encoded once is never encoded again.

Texts are encoded in batches that are committed one by one, so that a process killed at any moment loses one batch.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from ctx_vector.common_tables import add_encodings, find_encodings, get_meta, model_id
from ctx_vector.errors import ModelError, ModelMismatchError
from ctx_vector.store import Store

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.stages import Encoder

#: Texts in one call of the encoder, two or three seconds' worth: enough to keep all cores busy, little to lose.
BATCH: Final = 64


def text_hash(text: str) -> bytes:
    """Return the key of an encoded text: its SHA-256, 32 bytes."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def unpack_vector(blob: bytes) -> NDArray[np.float32]:
    """Return a stored vector, (dim,) float32."""
    return np.frombuffer(blob, "<f4").astype(np.float32, copy=False)


def check_model(conn: sqlite3.Connection, store: Store, encoder: Encoder) -> int:
    """Return the row id of the model in use, 0 when nothing is encoded yet.

    Raises ModelMismatchError when it is not the encoder's.
    """
    row = conn.execute(
        "SELECT id, fingerprint, name, dim FROM models WHERE id = (SELECT value FROM meta WHERE key = 'model')"
    ).fetchone()
    if row is None:
        return 0
    id_, fingerprint, name, dim = row
    if fingerprint != encoder.fingerprint:
        if store.kind == "memory":
            way_out = f"open it with encoder=load_encoder({name!r}), or convert it with Memory.reencode(encoder)"
        else:
            command = f"ctx-vector kb reencode {encoder.name} --kb {store.path.parent}"
            way_out = f"open it with the encoder it was made with, or convert it with: {command}"
        raise ModelMismatchError(
            f"{store.path} holds vectors of {name} ({dim} numbers, {fingerprint[:12]}), the encoder is {encoder.name} "
            f"({encoder.dim} numbers, {encoder.fingerprint[:12]}); {way_out}"
        )
    return int(id_)


def move_to_encoder(
    store: Store,
    encoder: Encoder,
    encode_all: Callable[[Store, EncodingCache], None],
    switch: Callable[[sqlite3.Connection, int], bool],
) -> int:
    """Encode everything in a store with another encoder, then switch to its vectors in one transaction.

    `encode_all` encodes what there is, `switch` returns False when something was added meanwhile. What an interrupted
    run has encoded is not encoded again. Returns how many texts were encoded.
    """
    cache = EncodingCache(store, encoder)
    cache.convert()
    with store.write() as conn:
        model = cache.model(conn)
        if get_meta(conn, "model") == model:
            return 0
    while True:
        encode_all(store, cache)
        with store.write() as conn:
            if switch(conn, model):
                break
    kind = logging.getLogger(f"ctx_vector.{store.kind.split()[0]}")
    kind.info("re-encoded with %s: %d texts in %.1f s", encoder.name, cache.encoded, cache.seconds)
    return cache.encoded


class EncodingCache:
    """Encodes documents' texts for one store and one encoder, and counts what it did.

    `encoded` is the number of texts that were really encoded, `seconds` the time the encoder took for them.
    """

    def __init__(self, store: Store, encoder: Encoder) -> None:
        self.encoder = encoder
        self.encoded = 0
        self.seconds = 0.0
        self._store = store
        self._known: dict[bytes, int] = {}
        self._converting = False
        self.stopped = False

    def stop(self) -> None:
        """Make a running `ensure`, in another thread, return after the batch at hand."""
        self.stopped = True

    def convert(self) -> None:
        """Accept that the store's present vectors are another model's: this run is there to replace them."""
        self._converting = True

    def model(self, conn: sqlite3.Connection) -> int:
        """Return the row id of the encoder's model, in a write; the first encoder of a store becomes the store's.

        Raises ModelMismatchError when the store's is another one.
        """
        if not self._converting:
            check_model(conn, self._store, self.encoder)
        model = model_id(conn, self.encoder.fingerprint, self.encoder.name, self.encoder.dim)
        conn.execute("INSERT OR IGNORE INTO meta VALUES ('model', ?)", (model,))
        return model

    def missing(self, texts: Mapping[bytes, str]) -> dict[bytes, str]:
        """Return those of the texts, given by their hash, that are not encoded yet."""
        unknown = [key for key in texts if key not in self._known]
        if unknown:
            with self._store.read() as conn:
                row = conn.execute(
                    "SELECT id FROM models WHERE fingerprint = ?", (self.encoder.fingerprint,)
                ).fetchone()
                if row is not None:
                    self._known.update(find_encodings(conn, int(row[0]), unknown))
        return {key: text for key, text in texts.items() if key not in self._known}

    def forget(self, keys: Iterable[bytes]) -> None:
        """Look these texts up again next time: their vectors may have been deleted meanwhile."""
        for key in keys:
            self._known.pop(key, None)

    def ensure(self, texts: Mapping[bytes, str], done: Callable[[int], None] | None = None) -> None:
        """Encode what is missing, in committed batches; `done` is told how many texts each batch had.

        An interruption (Ctrl-C) between or inside batches keeps all finished ones.
        """
        wanted = list(self.missing(texts).items())
        for start in range(0, len(wanted), BATCH):
            if self.stopped:
                return
            batch = wanted[start : start + BATCH]
            began = time.perf_counter()
            vectors = self.encoder.encode_documents([text for _, text in batch])
            self.seconds += time.perf_counter() - began
            self._keep([key for key, _ in batch], vectors)
            self.encoded += len(batch)
            if done is not None:
                done(len(batch))

    def _keep(self, keys: list[bytes], vectors: NDArray[np.float32]) -> None:
        vectors = np.ascontiguousarray(vectors, "<f4")
        if vectors.shape != (len(keys), self.encoder.dim) or not np.isfinite(vectors).all():
            raise ModelError(
                f"{self.encoder.name} returned an array of shape {vectors.shape} for {len(keys)} texts; "
                f"expected finite numbers of shape ({len(keys)}, {self.encoder.dim})"
            )
        with self._store.write() as conn:
            model = self.model(conn)
            add_encodings(conn, model, ((key, row.tobytes()) for key, row in zip(keys, vectors, strict=True)))
            self._known.update(find_encodings(conn, model, keys))

    def ids(self, conn: sqlite3.Connection, keys: Mapping[bytes, object]) -> dict[bytes, int]:
        """Return the encodings' row ids, in a write, looked up anew: until its end nobody can delete them.

        Raises KeyError for a text that is not encoded (any more).
        """
        found = find_encodings(conn, self.model(conn), keys)
        for key in keys:
            if key not in found:
                self._known.pop(key, None)
                raise KeyError(key)
        return found
