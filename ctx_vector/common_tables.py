"""The tables that every kind of store has: facts of the file, models, and encodings.

    meta        what there is one of, by name
    models      encoders by fingerprint
    encodings   the hash of a text, for one model, to its raw unit vector: dim float32, little endian

`encodings` is the cache that makes an interrupted run resume, and the only place where vectors are kept.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Iterable
from typing import Any


def common_tables(conn: sqlite3.Connection) -> None:
    """Make the tables; the first migration of every store."""
    conn.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
    conn.execute(
        "CREATE TABLE models (id INTEGER PRIMARY KEY AUTOINCREMENT, fingerprint TEXT NOT NULL UNIQUE, "
        "name TEXT NOT NULL, dim INTEGER NOT NULL)"
    )
    conn.execute(
        "CREATE TABLE encodings (id INTEGER PRIMARY KEY AUTOINCREMENT, model_id INTEGER NOT NULL REFERENCES models, "
        "hash BLOB NOT NULL, vector BLOB NOT NULL, checksum INTEGER NOT NULL, created REAL NOT NULL, "
        "UNIQUE (model_id, hash))"
    )


def get_meta(conn: sqlite3.Connection, key: str, default: Any = None) -> Any:
    """Return one value of the table `meta`."""
    row = conn.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return default if row is None else row[0]


def set_meta(conn: sqlite3.Connection, key: str, value: str | int | float | None) -> None:
    """Set one value of the table `meta`."""
    conn.execute("INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2", (key, value))


def model_id(conn: sqlite3.Connection, fingerprint: str, name: str, dim: int) -> int:
    """Return the row id of a model, adding it when it is new."""
    conn.execute("INSERT OR IGNORE INTO models (fingerprint, name, dim) VALUES (?, ?, ?)", (fingerprint, name, dim))
    row = conn.execute("SELECT id FROM models WHERE fingerprint = ?", (fingerprint,)).fetchone()
    return int(row[0])


def checksum(content: str | bytes) -> int:
    """Return the CRC-32 of a stored text or vector, by which `verify` notices that the disk changed it."""
    return zlib.crc32(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))


def add_encodings(conn: sqlite3.Connection, model: int, vectors: Iterable[tuple[bytes, bytes]]) -> None:
    """Keep vectors (raw float32, little endian) under the hashes of their texts; known hashes stay as they are."""
    now = time.time()
    conn.executemany(
        "INSERT OR IGNORE INTO encodings (model_id, hash, vector, checksum, created) VALUES (?, ?, ?, ?, ?)",
        ((model, text_hash, vector, checksum(vector), now) for text_hash, vector in vectors),
    )


def find_encodings(conn: sqlite3.Connection, model: int, hashes: Iterable[bytes]) -> dict[bytes, int]:
    """Return the row ids of those texts that are encoded already, by hash."""
    found: dict[bytes, int] = {}
    for text_hash in hashes:
        row = conn.execute("SELECT id FROM encodings WHERE model_id = ? AND hash = ?", (model, text_hash)).fetchone()
        if row is not None:
            found[text_hash] = int(row[0])
    return found
