"""Which documents are live in which version of a knowledge base, and which version is active.

    lives         a revision is live for the versions [from_version, to_version), `to_version` NULL being "still"
    versions      what the knowledge base was, by number; numbers are never reused
    switches      every change of the active version, rollbacks included

A switch to a new version only writes `lives`, so it is short whatever the size of the change. Every function works
inside a caller's transaction. The tables, and what a revision is: catalog.py.
"""

from __future__ import annotations

import os
import sqlite3
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from ctx_vector import catalog
from ctx_vector.common_tables import get_meta, set_meta

PENDING_SECONDS: Final = 7 * 86400.0  # how long encodings of an interrupted run wait for the next one

#: What makes a row of `lives l` live in a :version.
LIVE: Final = "l.from_version <= :version AND (l.to_version IS NULL OR l.to_version > :version)"


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


def active_version(conn: sqlite3.Connection) -> int:
    """Return the active version, 0 when nothing was ever indexed."""
    return int(get_meta(conn, "active", 0))


def live_revisions(conn: sqlite3.Connection, version: int) -> dict[str, catalog.Revision]:
    """Return the documents that are live in a version, by source."""
    rows = conn.execute(
        "SELECT d.id, source, path, hash, size, mtime_ns, seen_ns, recipe FROM lives l "
        f"JOIN documents d ON d.id = l.document_id WHERE {LIVE} ORDER BY source",
        {"version": version},
    )
    return {row[1]: catalog.revision_of(row) for row in rows}


def places(conn: sqlite3.Connection, name: str) -> list[str]:
    """Return the paths that a source, or the beginning of sources up to a ``/``, may mean, the surest first."""
    rows = conn.execute(
        f"SELECT path FROM lives l JOIN documents d ON d.id = l.document_id WHERE {LIVE} AND source = :source "
        "AND path IS NOT NULL",
        {"version": active_version(conn), "source": name},
    )
    found = [os.fsdecode(row[0]) for row in rows]
    for folder, prefix in sorted(catalog.known_roots(conn).items(), key=lambda item: -len(item[1])):
        if name == prefix or name.startswith(f"{prefix}/"):
            found.append(os.path.join(folder, name[len(prefix) :].lstrip("/")))
    return found


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
    catalog.touch(conn)


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
    catalog.delete_documents(conn, [int(row[0]) for row in dead])
    catalog.drop_encodings(conn, before=time.time() - PENDING_SECONDS)


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
