"""The rarer operations on a knowledge base: purge, re-encode, export, count, verify."""

from __future__ import annotations

import json
import logging
import math
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ctx_vector import catalog, keyword_rows, lives
from ctx_vector.common_tables import checksum, get_meta, set_meta
from ctx_vector.encoding_cache import EncodingCache, move_to_encoder, text_hash, unpack_vector
from ctx_vector.errors import InputError
from ctx_vector.index_files import check_files, delete_files
from ctx_vector.store import Store
from ctx_vector.sync import sync_lock

if TYPE_CHECKING:
    from ctx_vector.stages import Encoder

_PAGE: Final = 1000
_UNIT_TOLERANCE: Final = 1e-3  # how far a stored vector's length may be from 1

log = logging.getLogger("ctx_vector.knowledge")


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found. `problems` need a person; what is in `repaired` was wrong and is right again."""

    problems: tuple[str, ...]
    repaired: tuple[str, ...]
    documents: int
    chunks: int

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong (any more)."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {
            "ok": self.ok,
            "problems": list(self.problems),
            "repaired": list(self.repaired),
            "documents": self.documents,
            "chunks": self.chunks,
        }


def purge(store: Store, source: str, note: Callable[[sqlite3.Connection, list[str]], None]) -> int:
    """Delete all revisions of a document, their encodings and every index file; return how many revisions.

    `note` is told, in the transaction, the texts of their passages: to do what is left to do (`Audits.finish`).
    """
    with sync_lock(store):
        with store.write() as conn:
            rows = conn.execute("SELECT id FROM documents WHERE source = ?", (source,)).fetchall()
            if not rows:
                raise InputError(f"source: no version has a document named {source!r}")
            texts = [
                str(text)
                for (id_,) in rows
                for (text,) in conn.execute("SELECT text FROM chunks WHERE document_id = ?", (id_,))
            ]
            catalog.delete_documents(conn, [int(row[0]) for row in rows])
            # an interrupted run may have left encodings of this document that nothing points to
            catalog.drop_encodings(conn, before=math.inf)
            conn.execute("DELETE FROM index_files")
            catalog.touch(conn)
            note(conn, texts)
        delete_files(store.path.parent, set())
    log.info("purged %s: %d revisions", source, len(rows))
    return len(rows)


def reencode(store: Store, encoder: Encoder) -> int:
    """Encode the passages of all versions with another encoder, then switch to its vectors in one transaction."""
    with sync_lock(store):
        return move_to_encoder(store, encoder, _encode_all, _switch_model)


def _encode_all(store: Store, cache: EncodingCache) -> None:
    last = 0
    while True:
        with store.read() as conn:
            rows = conn.execute(
                "SELECT id, text, embedded FROM chunks WHERE id > ? ORDER BY id LIMIT ?", (last, _PAGE)
            ).fetchall()
        if not rows:
            return
        last = rows[-1][0]
        texts = (catalog.unpack_embedded(text, embedded) for _, text, embedded in rows)
        cache.ensure({text_hash(text): text for text in texts})


def _switch_model(conn: sqlite3.Connection, model: int) -> bool:
    twin = (
        "SELECT new.id FROM encodings old JOIN encodings new ON new.hash = old.hash AND new.model_id = :model "
        "WHERE old.id = chunks.encoding_id"
    )
    if conn.execute(f"SELECT 1 FROM chunks WHERE NOT EXISTS ({twin}) LIMIT 1", {"model": model}).fetchone():
        return False
    conn.execute(f"UPDATE chunks SET encoding_id = ({twin})", {"model": model})
    conn.execute("DELETE FROM encodings WHERE model_id != ?", (model,))
    set_meta(conn, "model", model)
    conn.execute("DELETE FROM models WHERE id != ?", (model,))
    conn.execute("DELETE FROM meta WHERE key = 'seconds_per_text'")
    conn.execute("DELETE FROM index_files")
    catalog.touch(conn)
    return True


def export(store: Store, *, vectors: bool) -> Iterator[dict[str, Any]]:
    """Yield the documents of the active version, each followed by its chunks, from one snapshot."""
    with store.decoding(), store.read() as conn:
        live = lives.live_revisions(conn, lives.active_version(conn))
        for source, revision in live.items():
            title, timestamp, expires_at, metadata = conn.execute(
                "SELECT title, timestamp, expires_at, metadata FROM documents WHERE id = ?", (revision.id,)
            ).fetchone()
            yield {
                "type": "document",
                "id": revision.id,
                "source": source,
                "title": title,
                "hash": revision.hash,
                "timestamp": timestamp,
                "expires_at": expires_at,
                "metadata": json.loads(metadata),
            }
            rows = conn.execute(
                "SELECT c.id, c.text, c.kind, c.language, c.heading, start_line, end_line, start_char, end_char, "
                "e.vector FROM chunks c JOIN encodings e ON e.id = c.encoding_id WHERE document_id = ? ORDER BY c.id",
                (revision.id,),
            ).fetchall()
            names = ("id", "content", "kind", "language", "heading", "start_line", "end_line", "start_char", "end_char")
            for row in rows:
                chunk = {"type": "chunk", "source": source} | dict(zip(names, row[:-1], strict=True))
                chunk["heading"] = json.loads(row[4])
                if vectors:
                    chunk["vector"] = unpack_vector(row[-1]).tolist()
                yield chunk


def documents(store: Store) -> list[dict[str, Any]]:
    """Return source, title, timestamp and number of chunks of each document of the active version, by source."""
    with store.read() as conn:
        rows = conn.execute(
            "SELECT d.source, d.title, d.timestamp, count(c.id) FROM lives l JOIN documents d ON d.id = l.document_id "
            "LEFT JOIN chunks c ON c.document_id = d.id "
            f"WHERE {lives.LIVE} "
            "GROUP BY d.id ORDER BY d.source",
            {"version": lives.active_version(conn)},
        ).fetchall()
    return [dict(zip(("source", "title", "timestamp", "chunks"), row, strict=True)) for row in rows]


def chunks(store: Store, source: str) -> list[dict[str, Any]]:
    """Return the chunks of one document of the active version, in its order; none when there is no such document."""
    with store.read() as conn:
        live = lives.live_revisions(conn, lives.active_version(conn)).get(source)
        rows = conn.execute(
            "SELECT id, text, heading, start_line, end_line FROM chunks WHERE document_id = ? ORDER BY id",
            (live.id if live is not None else -1,),
        ).fetchall()
    names = ("id", "content", "heading", "start_line", "end_line")
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return [{**chunk, "heading": json.loads(chunk["heading"])} for chunk in found]


def stats(store: Store) -> dict[str, Any]:
    """Return counts and sizes of the active version and of the folder."""
    with store.read() as conn:
        version = lives.active_version(conn)
        documents, chunks = lives.counts(conn, version)
        model = conn.execute(
            "SELECT name, fingerprint, dim FROM models WHERE id = (SELECT value FROM meta WHERE key = 'model')"
        ).fetchone()
        languages = conn.execute(
            "SELECT c.language, count(*) FROM lives l JOIN chunks c ON c.document_id = l.document_id "
            f"WHERE {lives.LIVE} "
            "GROUP BY 1 ORDER BY 1",
            {"version": version},
        ).fetchall()
        versions = conn.execute("SELECT count(*) FROM versions").fetchone()[0]
        encodings = conn.execute("SELECT count(*) FROM encodings").fetchone()[0]
        files = conn.execute("SELECT language, kind, rows FROM index_files ORDER BY language").fetchall()
    own = [file for file in store.path.parent.iterdir() if not file.name.startswith("audit.")]  # that is no knowledge
    size = sum(file.stat().st_size for file in own if file.is_file())
    name, fingerprint, dim = model or (None, None, None)
    return {
        "version": version,
        "versions": versions,
        "documents": documents,
        "chunks": chunks,
        "languages": dict(languages),
        "model": name,
        "fingerprint": fingerprint,
        "dim": dim,
        "encodings": encodings,
        "index_files": [{"language": row[0], "kind": row[1], "rows": row[2]} for row in files],
        "bytes": size,
    }


def verify(store: Store, write_files: Callable[[], object]) -> VerifyReport:
    """Check everything that can be checked without an encoder; damaged keywords and index files are written anew."""
    problems = store.check()
    repaired: tuple[str, ...] = ()
    documents = chunks = 0
    if not problems:
        with store.read() as conn:
            version = lives.active_version(conn)
            documents, chunks = lives.counts(conn, version)
            if version and conn.execute("SELECT 1 FROM versions WHERE number = ?", (version,)).fetchone() is None:
                problems.append(f"version {version} is active, but unknown")
            problems += _wrong_vectors(conn) + _wrong_chunks(conn)
        repaired = () if problems else _mend_keywords(store)
        bad = check_files(store)
        if bad:
            with store.write() as conn:
                conn.executemany("DELETE FROM index_files WHERE name = ?", ((name,) for name, _ in bad))
                catalog.touch(conn)
            write_files()
            repaired += tuple(f"{reason}; written anew" for _, reason in bad)
        for line in repaired:
            log.warning("%s", line)
    return VerifyReport(tuple(problems), repaired, documents, chunks)


def _mend_keywords(store: Store) -> tuple[str, ...]:
    """Write the keyword rows anew that are missing or not what their texts give; return what was done."""
    unpack = catalog.unpack_embedded
    with store.read() as conn:
        wrong = list(keyword_rows.wrong(conn, unpack))
    if not wrong:
        return ()
    with store.write() as conn:
        there = {int(row[0]) for row in conn.execute("SELECT id FROM documents")}
        keyword_rows.put(conn, [(id_, keyword_rows.terms_of(conn, id_, unpack)) for id_ in wrong if id_ in there])
        catalog.touch(conn)
    return (f"the keywords of {len(wrong)} document{'s' * (len(wrong) > 1)} were damaged; written anew",)


def _wrong_vectors(conn: sqlite3.Connection) -> list[str]:
    """Return which stored vectors have changed on disk, have another length than their model's, or are no unit."""
    problems = []
    for model, name, dim in conn.execute("SELECT id, name, dim FROM models").fetchall():
        cursor = conn.execute("SELECT id, vector, checksum FROM encodings WHERE model_id = ?", (model,))
        while rows := cursor.fetchmany(_PAGE):
            whole = [row for row in rows if len(row[1]) == 4 * dim and checksum(row[1]) == row[2]]
            matrix = np.frombuffer(b"".join([row[1] for row in whole]), "<f4").reshape(len(whole), dim)
            with np.errstate(all="ignore"):
                lengths = np.linalg.norm(matrix.astype(np.float64), axis=1)
            right = {row[0] for row, length in zip(whole, lengths, strict=True) if abs(length - 1) < _UNIT_TOLERANCE}
            wrong = [row[0] for row in rows if row[0] not in right]
            problems += [f"encoding {id_} is not the unit vector of {name} that was written" for id_ in wrong]
    return problems[:20]


def _wrong_chunks(conn: sqlite3.Connection) -> list[str]:
    """Return which chunks have changed on disk, or have a vector of another text or another model."""
    problems = []
    model = get_meta(conn, "model")
    cursor = conn.execute(
        "SELECT c.id, c.text, c.checksum, c.embedded, e.hash, e.model_id "
        "FROM chunks c JOIN encodings e ON e.id = c.encoding_id"
    )
    for id_, text, written, embedded, stored, chunk_model in cursor:
        if checksum(text) != written:
            problems.append(f"chunk {id_} does not have the text that was written")
        elif chunk_model != model:
            problems.append(f"chunk {id_} has a vector of another model")
        elif text_hash(catalog.unpack_embedded(text, embedded)) != stored:
            problems.append(f"chunk {id_} has the vector of another text")
    return problems[:20]
