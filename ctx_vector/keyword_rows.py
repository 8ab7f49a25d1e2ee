"""The words of a knowledge base: one row a document in SQLite, and the collections in memory that a search asks.

    keywords    document_id -> the terms of its chunks, in the order of their ids (`Terms.to_bytes`)

The terms are those of the text that was encoded for a chunk, its headings included. A row lives and dies with its
revision: rollback needs nothing, `purge` deletes it with the document, and statistics are always of the live rows,
because a collection is made of them. Of 10,000 passages the rows take 4 MB, reading them 0.1 s, a search 0.2 ms; making
them anew takes 1.5 s, once, when an older file is opened.

Measured against two others on 10,000 passages: SQLite's FTS5 (5 MB) takes 8 ms a search, and keeps deleted terms in the
file until all of it is merged; bm25s 0.06 ms, but it has to index everything again for every change (1 s).
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ctx_vector.keywords import Keywords, Terms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.index import Ids
    from ctx_vector.views import View

    Unpack = Callable[[str, str], str]

log = logging.getLogger("ctx_vector.knowledge")


# -- in SQLite ----------------------------------------------------------------------------------------------------


def create(conn: sqlite3.Connection, unpack: Unpack) -> None:
    """Make the table, and the rows of the documents that are there; `unpack` gives the encoded text of a chunk."""
    conn.execute(
        "CREATE TABLE keywords (document_id INTEGER PRIMARY KEY REFERENCES documents ON DELETE CASCADE, "
        "terms BLOB NOT NULL)"
    )
    documents = [int(row[0]) for row in conn.execute("SELECT id FROM documents ORDER BY id")]
    if documents:
        log.info("noting the words of %d documents, once", len(documents))
    put(conn, ((document, terms_of(conn, document, unpack)) for document in documents))


def put(conn: sqlite3.Connection, rows: Iterable[tuple[int, Terms]]) -> None:
    """Write the rows of documents, in place of those they have."""
    conn.executemany(
        "INSERT OR REPLACE INTO keywords VALUES (?, ?)", ((document, terms.to_bytes()) for document, terms in rows)
    )


def terms_of(conn: sqlite3.Connection, document: int, unpack: Unpack) -> Terms:
    """Return the terms of a document's chunks, from their texts."""
    chunks = conn.execute("SELECT text, embedded FROM chunks WHERE document_id = ? ORDER BY id", (document,))
    return Terms.of([unpack(text, embedded) for text, embedded in chunks])


def wrong(conn: sqlite3.Connection, unpack: Unpack) -> Iterator[int]:
    """Yield the documents whose row is missing or not what their texts give."""
    rows = conn.execute("SELECT d.id, k.terms FROM documents d LEFT JOIN keywords k ON k.document_id = d.id")
    for document, blob in rows.fetchall():
        if blob != terms_of(conn, document, unpack).to_bytes():
            yield int(document)


# -- in memory ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class KnowledgeWords:
    """The words of the live chunks of one generation: `ids` (n,) ascending, their documents, their terms in order."""

    generation: int
    ids: Ids
    documents: Ids
    terms: Terms
    _collections: dict[str, tuple[Ids, Keywords]] = field(default_factory=dict)

    def shares(self, query: str, language: str, view: View) -> tuple[Ids, NDArray[np.float64]]:
        """Return the ids (n,) int64 of the chunks of one language of the view, ascending, and their keyword shares (n,)
        float64 in [0, 1].
        """
        if language not in self._collections:
            ids = np.sort(view.indexes[language].ids)
            self._collections[language] = ids, Keywords(self.terms.taken(np.searchsorted(self.ids, ids)))
        ids, collection = self._collections[language]
        return ids, collection.shares(query)


def load_words(conn: sqlite3.Connection, view: View, unpack: Unpack, old: KnowledgeWords | None) -> KnowledgeWords:
    """Return the words of a view of the snapshot that `conn` is in; `old` itself when it is of that generation.

    Only rows of documents that `old` does not have are read. A row that does not fit its chunks is made anew from
    them, in memory, with a warning: `verify` mends the file.
    """
    if old is not None and old.generation == view.generation:
        return old
    documents, sizes = np.unique(view.documents, return_counts=True)
    if old is None:
        old = KnowledgeWords(-1, view.ids[:0], view.documents[:0], Terms.of([]))
    kept = np.flatnonzero(np.isin(old.ids, view.ids))
    fresh = ~np.isin(documents, old.documents[kept])
    parts = [old.terms.taken(kept)]
    for document, size in zip(documents[fresh].tolist(), sizes[fresh].tolist(), strict=True):
        parts.append(_read(conn, document, size, unpack))
    order = np.lexsort((view.ids, view.documents))  # rows as they are stored: by document, in it by chunk
    stored = order[~np.isin(view.documents[order], documents[~fresh])]
    found = np.concatenate((old.ids[kept], view.ids[stored]))
    ascending = np.argsort(found)
    terms = Terms.joined(parts).taken(ascending)
    return KnowledgeWords(view.generation, found[ascending], view.documents, terms)


def _read(conn: sqlite3.Connection, document: int, size: int, unpack: Unpack) -> Terms:
    row = conn.execute("SELECT terms FROM keywords WHERE document_id = ?", (document,)).fetchone()
    if row is not None:
        try:
            terms = Terms.from_bytes(row[0])
            if len(terms) == size:
                return terms
        except (TypeError, ValueError, IndexError):
            pass
    log.warning("the keywords of document %d are damaged, and read from its text; mend them with: kb verify", document)
    return terms_of(conn, document, unpack)
