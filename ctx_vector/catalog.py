"""The tables of a knowledge base, and the SQL on its documents; every function works inside a caller's transaction.
What is live in which version is written and read by lives.py.

    documents     a revision of a document: one source, one content
    chunks        its passages, with where they stand; ids are never reused
    keywords      its words, a row a revision (keyword_rows.py)
    lives         a revision is live for the versions [from_version, to_version), `to_version` NULL being "still"
    versions      what the knowledge base was, by number; numbers are never reused
    switches      every change of the active version, rollbacks included
    roots         folders that were indexed, and the prefix of their files' sources
    index_files   the index files that belong to this state

A revision without lives is staged: written by a run that has not finished, and taken over by the next one. The switch
to a new version only writes `lives`, so it is short whatever the size of the change.

`meta.active` is the active version (0: none yet); `meta.generation` changes with everything a search could notice.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from ctx_vector import keyword_rows
from ctx_vector.common_tables import checksum, common_tables, set_meta
from ctx_vector.keywords import Terms


def _create(conn: sqlite3.Connection) -> None:
    common_tables(conn)
    for statement in (
        """CREATE TABLE documents (
            id INTEGER PRIMARY KEY AUTOINCREMENT, source TEXT NOT NULL, path BLOB, hash TEXT NOT NULL,
            size INTEGER, mtime_ns INTEGER, seen_ns INTEGER, recipe TEXT NOT NULL, title TEXT NOT NULL,
            timestamp TEXT, expires_at TEXT, metadata TEXT NOT NULL)""",
        "CREATE INDEX documents_source ON documents (source, hash)",
        """CREATE TABLE chunks (
            id INTEGER PRIMARY KEY AUTOINCREMENT, document_id INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
            language TEXT NOT NULL, encoding_id INTEGER NOT NULL REFERENCES encodings, kind TEXT NOT NULL,
            start_char INTEGER NOT NULL, end_char INTEGER NOT NULL, start_line INTEGER NOT NULL,
            end_line INTEGER NOT NULL, heading TEXT NOT NULL, text TEXT NOT NULL, checksum INTEGER NOT NULL,
            embedded TEXT NOT NULL)""",
        # covers what an index needs to know of each row, so that loading one never reads the texts
        "CREATE INDEX chunks_document ON chunks (document_id, language, encoding_id)",
        "CREATE INDEX chunks_encoding ON chunks (encoding_id)",
        """CREATE TABLE lives (
            document_id INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE, from_version INTEGER NOT NULL,
            to_version INTEGER, PRIMARY KEY (document_id, from_version)) WITHOUT ROWID""",
        """CREATE TABLE versions (
            number INTEGER PRIMARY KEY AUTOINCREMENT, created REAL NOT NULL, action TEXT NOT NULL,
            added INTEGER NOT NULL, updated INTEGER NOT NULL, removed INTEGER NOT NULL)""",
        """CREATE TABLE switches (
            id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, action TEXT NOT NULL,
            from_version INTEGER NOT NULL, to_version INTEGER NOT NULL)""",
        "CREATE TABLE roots (path BLOB PRIMARY KEY, prefix TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE index_files (
            name TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, version INTEGER NOT NULL, language TEXT NOT NULL,
            kind TEXT NOT NULL, rows INTEGER NOT NULL, dim INTEGER NOT NULL, size INTEGER NOT NULL,
            digest TEXT NOT NULL) WITHOUT ROWID""",
    ):
        conn.execute(statement)
    set_meta(conn, "active", 0)
    set_meta(conn, "generation", 0)


def _keywords(conn: sqlite3.Connection) -> None:
    keyword_rows.create(conn, unpack_embedded)


MIGRATIONS: Final = (_create, _keywords)


@dataclass(frozen=True, slots=True)
class Revision:
    """A document as it is known: enough to tell whether its file has changed. `path` None: it was never a file."""

    id: int
    source: str
    path: str | None
    hash: str
    size: int | None
    mtime_ns: int | None
    seen_ns: int | None
    recipe: str


@dataclass(frozen=True, slots=True)
class NewChunk:
    """A passage to write; `embedded` is the text that was encoded for it, `terms` are its terms, if known already."""

    text: str
    embedded: str
    encoding_id: int
    language: str
    kind: str
    heading: tuple[str, ...]
    span: tuple[int, int]
    lines: tuple[int, int]
    terms: Terms | None = None


@dataclass(frozen=True, slots=True)
class NewDocument:
    """A revision to write, with its passages. `stat` is (size in bytes, mtime_ns, when it was read in ns) of its file;
    times are aware UTC.
    """

    source: str
    content_hash: str
    recipe: str
    chunks: Sequence[NewChunk]
    path: str | None = None
    stat: tuple[int | None, int | None, int | None] = (None, None, None)
    title: str = ""
    timestamp: datetime | None = None
    expires_at: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


# -- reading ------------------------------------------------------------------------------------------------------


def touch(conn: sqlite3.Connection) -> None:
    """Tell every searcher, in this process and others, that what it has loaded may be out of date."""
    conn.execute("UPDATE meta SET value = value + 1 WHERE key = 'generation'")


def newest_recipe(conn: sqlite3.Connection) -> str | None:
    """Return how the document written last was made, None when there is none."""
    row = conn.execute("SELECT recipe FROM documents ORDER BY id DESC LIMIT 1").fetchone()
    return None if row is None else str(row[0])


def staged_revision(conn: sqlite3.Connection, source: str, content_hash: str, recipe: str) -> int | None:
    """Return the id of a kept revision with this very content: staged by an interrupted run, or of an older version."""
    row = conn.execute(
        "SELECT id FROM documents WHERE source = ? AND hash = ? AND recipe = ? ORDER BY id DESC LIMIT 1",
        (source, content_hash, recipe),
    ).fetchone()
    return None if row is None else int(row[0])


def revision_of(row: Sequence[Any]) -> Revision:
    """Return the revision of a row (id, source, path, hash, size, mtime_ns, seen_ns, recipe)."""
    path = None if row[2] is None else os.fsdecode(row[2])
    return Revision(row[0], row[1], path, *row[3:])


def known_roots(conn: sqlite3.Connection) -> dict[str, str]:
    """Return the folders indexed so far and the prefixes of their files' sources."""
    return {os.fsdecode(path): prefix for path, prefix in conn.execute("SELECT path, prefix FROM roots")}


def pack_embedded(text: str, embedded: str) -> str:
    r"""Return what to store of an encoded text: what comes before the lines of the chunk's text that it ends in.

    >>> pack_embedded("# Tea\nHot water.", "Drinks > Tea\nHot water.")
    'Drinks > Tea\n\x006:16'
    """
    end = len(text.rstrip("\n"))
    start = 0
    while start < end:
        if embedded.endswith(text[start:end]):
            return f"{embedded[: len(embedded) - (end - start)]}\0{start}:{end}"
        start = text.find("\n", start, end) + 1 or end
        if start > end // 2:
            break
    return f"{embedded}\0"


def unpack_embedded(text: str, packed: str) -> str:
    """Return the encoded text that `pack_embedded` made `packed` of."""
    before, _, span = packed.rpartition("\0")
    start, _, end = span.partition(":")
    return before + text[int(start) : int(end)] if span else before


# -- writing ------------------------------------------------------------------------------------------------------


def add_document(conn: sqlite3.Connection, new: NewDocument) -> int:
    """Write a revision and its chunks, staged; return its id."""
    cursor = conn.execute(
        "INSERT INTO documents (source, path, hash, size, mtime_ns, seen_ns, recipe, title, timestamp, expires_at, "
        "metadata) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            new.source,
            None if new.path is None else os.fsencode(new.path),
            new.content_hash,
            *new.stat,
            new.recipe,
            new.title,
            _iso(new.timestamp),
            _iso(new.expires_at),
            json.dumps(new.metadata, ensure_ascii=False, default=str, sort_keys=True),
        ),
    )
    document = int(cursor.lastrowid or 0)
    conn.executemany(
        "INSERT INTO chunks (document_id, language, encoding_id, kind, start_char, end_char, start_line, end_line, "
        "heading, text, checksum, embedded) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (document, chunk.language, chunk.encoding_id, chunk.kind, *chunk.span, *chunk.lines,
             json.dumps(chunk.heading, ensure_ascii=False), chunk.text, checksum(chunk.text),
             pack_embedded(chunk.text, chunk.embedded))
            for chunk in new.chunks
        ),
    )  # fmt: skip
    terms = Terms.joined([Terms.of_one(chunk.embedded) if chunk.terms is None else chunk.terms for chunk in new.chunks])
    keyword_rows.put(conn, [(document, terms)])
    return document


def set_stat(conn: sqlite3.Connection, document: int, path: str, stat: tuple[int, int, int]) -> None:
    """Note that a file with other times, or in another place, still has the content of this revision."""
    conn.execute(
        "UPDATE documents SET path = ?, size = ?, mtime_ns = ?, seen_ns = ? WHERE id = ?",
        (os.fsencode(path), *stat, document),
    )


def delete_documents(conn: sqlite3.Connection, documents: Iterable[int]) -> None:
    """Delete revisions with their chunks, and the encodings that nothing uses any more because of that."""
    conn.execute("CREATE TEMP TABLE IF NOT EXISTS loose (id INTEGER PRIMARY KEY)")
    for document in documents:
        conn.execute(
            "INSERT OR IGNORE INTO temp.loose SELECT encoding_id FROM chunks WHERE document_id = ?", (document,)
        )
        conn.execute("DELETE FROM documents WHERE id = ?", (document,))
    conn.execute(
        "DELETE FROM encodings WHERE id IN (SELECT id FROM temp.loose) "
        "AND NOT EXISTS (SELECT 1 FROM chunks WHERE encoding_id = encodings.id)"
    )
    conn.execute("DELETE FROM temp.loose")


def drop_encodings(conn: sqlite3.Connection, before: float) -> None:
    """Delete encodings made before a time (seconds since 1970) that no chunk uses."""
    conn.execute(
        "DELETE FROM encodings WHERE created < ? "
        "AND NOT EXISTS (SELECT 1 FROM chunks WHERE encoding_id = encodings.id)",
        (before,),
    )


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def moment(text: str | None) -> datetime | None:
    """Return a stored time as aware UTC."""
    return None if text is None else datetime.fromisoformat(text)
