"""The tables of a knowledge base, and the SQL on them; every function works inside a caller's transaction.

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
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ctx_vector import keyword_rows
from ctx_vector.keywords import Terms
from ctx_vector.store import checksum, common_tables, get_meta, set_meta

PENDING_SECONDS: Final = 7 * 86400.0  # how long encodings of an interrupted run wait for the next one

#: What makes a row of `lives l` live in a :version.
LIVE: Final = "l.from_version <= :version AND (l.to_version IS NULL OR l.to_version > :version)"


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
class Version:
    """One version of a knowledge base. `created` is aware UTC; counts are of documents, against the one before."""

    number: int
    created: datetime
    action: str
    active: bool
    added: int
    updated: int
    removed: int
    documents: int
    chunks: int


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of the active version: when (aware UTC), by what (`sync`, `rollback`, ...), from and to which."""

    at: datetime
    action: str
    from_version: int
    to_version: int


# -- state --------------------------------------------------------------------------------------------------------


def active_version(conn: sqlite3.Connection) -> int:
    """Return the active version, 0 when nothing was ever indexed."""
    return int(get_meta(conn, "active", 0))


def touch(conn: sqlite3.Connection) -> None:
    """Tell every searcher, in this process and others, that what it has loaded may be out of date."""
    conn.execute("UPDATE meta SET value = value + 1 WHERE key = 'generation'")


def live_revisions(conn: sqlite3.Connection, version: int) -> dict[str, Revision]:
    """Return the documents that are live in a version, by source."""
    rows = conn.execute(
        "SELECT d.id, source, path, hash, size, mtime_ns, seen_ns, recipe FROM lives l "
        f"JOIN documents d ON d.id = l.document_id WHERE {LIVE} ORDER BY source",
        {"version": version},
    )
    return {row[1]: _revision(row) for row in rows}


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


def _revision(row: Sequence[Any]) -> Revision:
    path = None if row[2] is None else os.fsdecode(row[2])
    return Revision(row[0], row[1], path, *row[3:])


def known_roots(conn: sqlite3.Connection) -> dict[str, str]:
    """Return the folders indexed so far and the prefixes of their files' sources."""
    return {os.fsdecode(path): prefix for path, prefix in conn.execute("SELECT path, prefix FROM roots")}


def places(conn: sqlite3.Connection, name: str) -> list[str]:
    """Return the paths that a source, or the beginning of sources up to a ``/``, may mean, the surest first."""
    rows = conn.execute(
        f"SELECT path FROM lives l JOIN documents d ON d.id = l.document_id WHERE {LIVE} AND source = :source "
        "AND path IS NOT NULL",
        {"version": active_version(conn), "source": name},
    )
    found = [os.fsdecode(row[0]) for row in rows]
    for folder, prefix in sorted(known_roots(conn).items(), key=lambda item: -len(item[1])):
        if name == prefix or name.startswith(f"{prefix}/"):
            found.append(os.path.join(folder, name[len(prefix) :].lstrip("/")))
    return found


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


def add_document(
    conn: sqlite3.Connection,
    *,
    source: str,
    content_hash: str,
    recipe: str,
    path: str | None = None,
    stat: tuple[int | None, int | None, int | None] = (None, None, None),
    title: str = "",
    timestamp: datetime | None = None,
    expires_at: datetime | None = None,
    metadata: Mapping[str, Any] | None = None,
    chunks: Iterable[NewChunk] = (),
) -> int:
    """Write a revision and its chunks, staged; return its id. `stat` is (size, mtime_ns, when it was read in ns)."""
    cursor = conn.execute(
        "INSERT INTO documents (source, path, hash, size, mtime_ns, seen_ns, recipe, title, timestamp, expires_at, "
        "metadata) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            source,
            None if path is None else os.fsencode(path),
            content_hash,
            *stat,
            recipe,
            title,
            _iso(timestamp),
            _iso(expires_at),
            json.dumps(metadata or {}, ensure_ascii=False, default=str, sort_keys=True),
        ),
    )
    document = int(cursor.lastrowid or 0)
    chunks = list(chunks)
    conn.executemany(
        "INSERT INTO chunks (document_id, language, encoding_id, kind, start_char, end_char, start_line, end_line, "
        "heading, text, checksum, embedded) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (document, chunk.language, chunk.encoding_id, chunk.kind, *chunk.span, *chunk.lines,
             json.dumps(chunk.heading, ensure_ascii=False), chunk.text, checksum(chunk.text),
             pack_embedded(chunk.text, chunk.embedded))
            for chunk in chunks
        ),
    )  # fmt: skip
    terms = Terms.joined([Terms.of_one(chunk.embedded) if chunk.terms is None else chunk.terms for chunk in chunks])
    keyword_rows.put(conn, [(document, terms)])
    return document


def set_stat(conn: sqlite3.Connection, document: int, path: str, stat: tuple[int, int, int]) -> None:
    """Note that a file with other times, or in another place, still has the content of this revision."""
    conn.execute(
        "UPDATE documents SET path = ?, size = ?, mtime_ns = ?, seen_ns = ? WHERE id = ?",
        (os.fsencode(path), *stat, document),
    )


def new_version(
    conn: sqlite3.Connection, wanted: set[int], action: str, *, added: int = 0, updated: int = 0, removed: int = 0
) -> int:
    """Make the revisions `wanted`, and no others, live from the next version on, and that version active.

    It does not matter which version was active: after a rollback, what came later is retired here, and what was
    retired later lives again. The counts are of documents, for those who look at the versions.
    """
    cursor = conn.execute(
        "INSERT INTO versions (created, action, added, updated, removed) VALUES (?, ?, ?, ?, ?)",
        (time.time(), action, added, updated, removed),
    )
    version = int(cursor.lastrowid or 0)
    open_now = {int(row[0]) for row in conn.execute("SELECT document_id FROM lives WHERE to_version IS NULL")}
    conn.executemany("INSERT INTO lives VALUES (?, ?, NULL)", ((id_, version) for id_ in sorted(wanted - open_now)))
    conn.executemany(
        "UPDATE lives SET to_version = ? WHERE document_id = ? AND to_version IS NULL",
        ((version, id_) for id_ in sorted(open_now - wanted)),
    )
    switch(conn, version, action)
    return version


def switch(conn: sqlite3.Connection, version: int, action: str) -> None:
    """Make a version active, and note that it was."""
    conn.execute(
        "INSERT INTO switches (at, action, from_version, to_version) VALUES (?, ?, ?, ?)",
        (time.time(), action, active_version(conn), version),
    )
    set_meta(conn, "active", version)
    touch(conn)


def prune(conn: sqlite3.Connection, keep: int, *, staged: bool = False) -> None:
    """Forget all but the newest `keep` versions and the active one, and what only the forgotten ones used.

    With `staged`, revisions that no version uses go too; only for a caller that knows no run is preparing some.
    """
    active = active_version(conn)
    newest = [int(row[0]) for row in conn.execute("SELECT number FROM versions ORDER BY number DESC LIMIT ?", (keep,))]
    kept = sorted({*newest, active})
    marks = ", ".join("?" * len(kept))
    conn.execute(f"DELETE FROM versions WHERE number NOT IN ({marks})", kept)
    dead = conn.execute(
        "SELECT id FROM documents WHERE NOT EXISTS (SELECT 1 FROM lives l JOIN versions v ON l.from_version <= v.number"
        " AND (l.to_version IS NULL OR l.to_version > v.number) WHERE l.document_id = documents.id)"
        + ("" if staged else " AND EXISTS (SELECT 1 FROM lives l WHERE l.document_id = documents.id)")
    ).fetchall()
    delete_documents(conn, [int(row[0]) for row in dead])
    drop_encodings(conn, before=time.time() - PENDING_SECONDS)


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


# -- reading ------------------------------------------------------------------------------------------------------


def all_versions(conn: sqlite3.Connection) -> list[Version]:
    """Return the versions that can be rolled back to, oldest first."""
    active = active_version(conn)
    found = []
    for number, created, action, added, updated, removed in conn.execute(
        "SELECT number, created, action, added, updated, removed FROM versions ORDER BY number"
    ).fetchall():
        documents, chunks = counts(conn, number)
        made = datetime.fromtimestamp(created, UTC)
        found.append(Version(number, made, action, number == active, added, updated, removed, documents, chunks))
    return found


def all_switches(conn: sqlite3.Connection) -> list[Switch]:
    """Return every change of the active version, oldest first."""
    rows = conn.execute("SELECT at, action, from_version, to_version FROM switches ORDER BY id")
    return [Switch(datetime.fromtimestamp(row[0], UTC), *row[1:]) for row in rows]


def counts(conn: sqlite3.Connection, version: int) -> tuple[int, int]:
    """Return how many documents and chunks are live in a version."""
    row = conn.execute(
        "SELECT count(*), coalesce(sum((SELECT count(*) FROM chunks c WHERE c.document_id = l.document_id)), 0) "
        f"FROM lives l WHERE {LIVE}",
        {"version": version},
    ).fetchone()
    return int(row[0]), int(row[1])


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def moment(text: str | None) -> datetime | None:
    """Return a stored time as aware UTC."""
    return None if text is None else datetime.fromisoformat(text)
