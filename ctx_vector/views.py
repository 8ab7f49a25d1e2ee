"""What a search looks at: the live rows of the active version, as one index a language.

Raw cosines of different languages do not compare (unrelated Chinese passages lie above matched English ones), so each
language is searched for its own best candidates. A row has two more numbers than its vector, by which it ranks exactly
(`Calibration.ranked`), unless the view is only looked up in. A view is loaded from SQLite, immutable, and replaced when
the knowledge base's generation changes; then only vectors that were not loaded before are read.

A language with many rows has its index in a file (index_files.py), and what changed since is an exact tail in memory.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ctx_vector import catalog, lives
from ctx_vector.common_tables import get_meta
from ctx_vector.errors import StoreError
from ctx_vector.index import FlatIndex, GraphIndex, TailedIndex
from ctx_vector.index_files import IndexFile, known_files, open_file, ranking_of
from ctx_vector.sieve import Sieve
from ctx_vector.versions import document_of, newer, version_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.calibration import Calibration
    from ctx_vector.hits import HitRow
    from ctx_vector.index import Ids, Vectors

    Ranked = Callable[[Vectors], Vectors]
    Read = Callable[[Ids], Vectors]

_NEVER: Final = datetime.max.replace(tzinfo=UTC)
SIEVE_ROWS: Final = 1_000  # with fewer, exact search is as quick


@dataclass(slots=True)
class _Made:
    """What a view makes when it is first asked for."""

    searched: bool = False
    sieved: bool = False
    sieve: Sieve | None = None
    facts: dict[int, DocumentFacts] | None = None
    first_expiry: datetime | None = None
    superseded: dict[str, str] | None = None


@dataclass(frozen=True)
class View:
    """The live rows at one generation. `ids` (n,) ascending; `documents` (n,) is the document of each row."""

    generation: int
    version: int
    fingerprint: str
    dim: int
    ids: Ids
    documents: Ids
    indexes: Mapping[str, FlatIndex | TailedIndex]
    files: Mapping[str, IndexFile]
    has_expiring: bool
    calibration: Calibration | None  # by which the rows are ranked; None: they are plain vectors
    known: dict[int, HitRow] = field(default_factory=dict)  # rows of chunks found so far: hits.py
    _made: _Made = field(default_factory=_Made)

    def sieve(self) -> Sieve | None:
        """Return the bytes of all rows, in the order of `indexes`, by which a search is quick.

        They are made at the second call, for a process that asks once should not wait for them. None at the first, for
        few rows, and where a language has its index in a file.
        """
        made = self._made
        if not made.searched:
            made.searched = True
            return None
        if not made.sieved:
            rows = [(index.ids, index.vectors) for index in self.indexes.values() if isinstance(index, FlatIndex)]
            usable = len(rows) == len(self.indexes) and len(self.ids) >= SIEVE_ROWS
            # a number that is not finite comes from damage, which `verify` finds; exact search steps over it
            usable = usable and all(np.isfinite(part.sum(dtype=np.float64)) for _, part in rows)
            made.sieve = Sieve(rows) if usable else None
            made.sieved = True
        return made.sieve

    def vectors(self, conn: sqlite3.Connection, ids: Ids) -> Vectors:
        """Return the rows' vectors (n, dim) float32 as SQLite has them: from memory where they came from there."""
        out = np.empty((len(ids), self.dim), np.float32)
        missing = np.ones(len(ids), bool)
        for index in self.indexes.values():
            for part in (index,) if isinstance(index, FlatIndex) else (index.base, index.tail):
                if part is None or part.mapped or not len(part):
                    continue
                at = np.searchsorted(part.ids, ids)
                at[at == len(part)] = 0
                hit = part.ids[at] == ids
                out[hit] = part.vectors[:, : self.dim][at[hit]]
                missing &= ~hit
        if missing.any():
            wanted = ids[missing]
            found = dict(_vectors_of(conn, wanted))
            out[missing] = np.frombuffer(b"".join(found[int(id_)] for id_ in wanted), "<f4").reshape(-1, self.dim)
        return out

    def ranked_rows(self, conn: sqlite3.Connection, language: str) -> tuple[Ids, Vectors]:
        """Return the ids (n,) int64 of a language's rows, ascending, and the rows (n, dim) float32 by which they are
        ranked, from SQLite.
        """
        assert self.calibration is not None  # whoever writes index files has seen to it
        live = _live_rows(conn, self.version).get(language)
        ids = live[0] if live else np.empty(0, np.int64)
        return ids, self.calibration.ranked(language, _read_vectors(conn, ids, self.dim))

    def facts(self, conn: sqlite3.Connection) -> dict[int, DocumentFacts]:
        """Return what filters ask about the live documents, by row id; read once a view."""
        if self._made.facts is None:
            rows = conn.execute(
                "SELECT d.id, d.source, d.expires_at, d.metadata FROM lives l JOIN documents d ON d.id = l.document_id "
                f"WHERE {lives.LIVE}",
                {"version": self.version},
            )
            self._made.facts = {
                id_: DocumentFacts(source, catalog.moment(expires), json.loads(metadata))
                for id_, source, expires, metadata in rows
            }
        return self._made.facts

    def expired(self, conn: sqlite3.Connection, now: datetime) -> bool:
        """Tell whether the time of any live document has come."""
        if not self.has_expiring:
            return False
        if self._made.first_expiry is None:
            times = [facts.expires_at for facts in self.facts(conn).values() if facts.expires_at is not None]
            self._made.first_expiry = min(times, default=_NEVER)
        return self._made.first_expiry <= now

    def superseded(self, conn: sqlite3.Connection) -> dict[str, str]:
        """Return the sources of documents of which a newer version is live, and which; worked out once a view."""
        known = self._made.superseded
        if known is None:
            groups: dict[str, list[tuple[str, dict[str, Any]]]] = {}
            rows = conn.execute(  # few documents say which they are a version of, and only theirs is read
                "SELECT d.source, d.metadata FROM lives l JOIN documents d ON d.id = l.document_id "
                f"WHERE {lives.LIVE} "
                "AND d.metadata LIKE '%document%' ORDER BY d.id",
                {"version": self.version},
            )
            for source, text in rows:
                metadata = json.loads(text)
                if (document := document_of(metadata)) is not None:
                    groups.setdefault(document, []).append((source, metadata))
            known = {}
            for group in groups.values():
                newest = max((metadata for _, metadata in group), key=_version_key)
                for source, metadata in group:
                    if _version_key(metadata) < _version_key(newest):
                        known[source] = newer(metadata, newest)
            self._made.superseded = known
        return known


def _version_key(metadata: Mapping[str, Any]) -> Any:
    return version_key(metadata.get("version"))


@dataclass(frozen=True, slots=True)
class DocumentFacts:
    """What a filter can ask about a document."""

    source: str
    expires_at: datetime | None
    metadata: Mapping[str, Any]


def load_view(conn: sqlite3.Connection, folder: Path, old: View | None, calibration: Calibration | None) -> View:
    """Return the view of the snapshot that `conn` is in; `old` itself when nothing has changed.

    Without a calibration it is for looking up documents, not for searching, and any old one will do.
    """
    if calibration is None and old is not None:
        calibration = old.calibration
    generation = int(get_meta(conn, "generation", 0))
    if old is not None and old.calibration is not calibration:
        old = None
    if old is not None and old.generation == generation:
        return old
    version = lives.active_version(conn)
    model = conn.execute(
        "SELECT fingerprint, dim FROM models WHERE id = (SELECT value FROM meta WHERE key = 'model')"
    ).fetchone()
    fingerprint, dim = model or ("", 0)
    if old is not None and old.fingerprint != fingerprint:
        old = None
    if calibration is not None and calibration.dim != dim:
        calibration = None  # of another model: there will be no search
    live = _live_rows(conn, version)
    ranking = ranking_of(fingerprint, calibration)
    files = {file.language: file for file in known_files(conn) if file.fingerprint == ranking}
    indexes: dict[str, FlatIndex | TailedIndex] = {}
    for language, (ids, _) in live.items():
        before = old.indexes.get(language) if old else None
        ranked = _identity if calibration is None else partial(calibration.ranked, language)
        read = partial(_read_ranked, conn, dim, ranked)
        if language in files:
            same = old is not None and old.files.get(language) == files[language]
            base = before.base if same and isinstance(before, TailedIndex) else open_file(folder, files[language])
            if base is not None:
                indexes[language] = _tailed(base, ids, before, read)
                continue
        indexes[language] = _flat(ids, before, read)
    all_ids = np.concatenate([ids for ids, _ in live.values()]) if live else np.empty(0, np.int64)
    documents = np.concatenate([found for _, found in live.values()]) if live else np.empty(0, np.int64)
    order = np.argsort(all_ids)
    expiring = conn.execute("SELECT 1 FROM documents WHERE expires_at IS NOT NULL LIMIT 1").fetchone() is not None
    all_ids, documents = all_ids[order], documents[order]
    return View(generation, version, fingerprint, dim, all_ids, documents, indexes, files, expiring, calibration)


def _identity(vectors: Vectors) -> Vectors:
    return vectors


def _live_rows(conn: sqlite3.Connection, version: int) -> dict[str, tuple[Ids, Ids]]:
    """Return ids, ascending, and documents of the live rows of each language."""
    rows = conn.execute(
        "SELECT c.language, c.id, c.document_id FROM lives l JOIN chunks c ON c.document_id = l.document_id "
        f"WHERE {lives.LIVE}",
        {"version": version},
    ).fetchall()
    groups: dict[str, list[tuple[int, int]]] = {}
    for language, id_, document in rows:
        groups.setdefault(language, []).append((id_, document))
    found = {}
    for language in sorted(groups):
        pairs = np.array(groups[language], np.int64)
        pairs = pairs[np.argsort(pairs[:, 0])]
        found[language] = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
    return found


def _vectors_of(conn: sqlite3.Connection, ids: Iterable[int] | NDArray[np.int64]) -> list[tuple[int, bytes]]:
    wanted = json.dumps([int(id_) for id_ in ids])
    return conn.execute(
        "SELECT c.id, e.vector FROM json_each(?) j CROSS JOIN chunks c ON c.id = j.value "
        "CROSS JOIN encodings e ON e.id = c.encoding_id",
        (wanted,),
    ).fetchall()


def _read_vectors(conn: sqlite3.Connection, ids: Ids, dim: int) -> Vectors:
    """Return the rows' vectors (n, dim), in the order of `ids`, which ascend."""
    rows = _vectors_of(conn, ids.tolist())
    flat = np.frombuffer(b"".join([row[1] for row in rows]), "<f4")
    if flat.size != len(ids) * dim:
        raise StoreError(f"{len(ids)} vectors of {dim} numbers expected, {flat.size} numbers found; run kb verify")
    return flat.reshape(len(ids), dim)


def _read_ranked(conn: sqlite3.Connection, dim: int, ranked: Ranked, ids: Ids) -> Vectors:
    return ranked(_read_vectors(conn, ids, dim))


def _flat(ids: Ids, before: FlatIndex | TailedIndex | None, read: Read) -> FlatIndex:
    """Return the index of these rows; those that are not in the one before are read."""
    if not isinstance(before, FlatIndex):
        return FlatIndex(ids, read(ids))
    if np.array_equal(before.ids, ids):
        return before
    matrix = np.empty((len(ids), before.dim), np.float32)
    at = np.searchsorted(before.ids, ids)
    at[at == len(before)] = 0
    kept = before.ids[at] == ids
    matrix[kept] = before.vectors[at[kept]]
    if not kept.all():
        matrix[~kept] = read(ids[~kept])
    return FlatIndex(ids, matrix)


def _tailed(base: FlatIndex | GraphIndex, ids: Ids, before: FlatIndex | TailedIndex | None, read: Read) -> TailedIndex:
    """Return the index of a file, with what changed since."""
    gone = np.setdiff1d(base.ids, ids, assume_unique=True)
    fresh = np.setdiff1d(ids, base.ids, assume_unique=True)
    tail = None
    if len(fresh):
        known = before.tail if isinstance(before, TailedIndex) else None
        tail = _flat(fresh, known, read)
    return TailedIndex(base, gone, tail)
