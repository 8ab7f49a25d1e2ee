"""A knowledge base: documents on disk as searchable passages, with versions, citations, and nothing lost.

    kb = KnowledgeBase("kb")
    kb.sync("docs")                         # only what changed is encoded
    for hit in kb.search("How do I declare a path parameter?", limit=5):
        print(hit.cite, hit.score)          # docs/tutorial/path-params.md:1-14 0.81

One object can be shared by threads, and one folder by processes: a search sees a new version as soon as it is active.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from ctx_vector import catalog, lives
from ctx_vector.audit_purge import Audits
from ctx_vector.encoding_cache import check_model
from ctx_vector.errors import InputError, ModelError, StoreError
from ctx_vector.hits import Hit
from ctx_vector.index_files import FILE_ROWS, GRAPH_ROWS, refresh_files
from ctx_vector.keyword_rows import KnowledgeWords, load_words
from ctx_vector.lives import Switch, Version
from ctx_vector.passages import Ask, Snapshot, search
from ctx_vector.rerank import DEPTH
from ctx_vector.rules import check_count, check_path, check_share
from ctx_vector.search_model import SearchModel, T, as_encoder
from ctx_vector.staging import check_chunk_tokens
from ctx_vector.store import Store
from ctx_vector.views import View, load_view

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.calibration import Calibration
    from ctx_vector.stages import Encoder
    from ctx_vector.sync_report import Progress, SyncReport
    from ctx_vector.upkeep import VerifyReport

__all__ = ["Hit", "KnowledgeBase", "Switch", "Version"]

FILE_NAME: Final = "ctx.sqlite3"
MAX_BYTES: Final = 20_000_000

log = logging.getLogger("ctx_vector.knowledge")


class KnowledgeBase:
    """The documents in the folder `path`, which is made when absent (unless ``create=False``).

    `encoder` (or a name for `load_encoder`; opened when first needed) has to be the one the vectors were made with; see
    `reencode`. `keep_versions` versions, and the active one, can be rolled back to. `chunk_tokens` is the size passages
    are filled up to (model tokens, 32 to 480; 224 at first); the folder remembers it, and a change shows at the next
    sync. A language with `file_rows` passages or more has its index in a file, from `graph_rows` on as an HNSW graph.

    Raises StoreError when the folder holds something else, or is damaged; SchemaError when a newer version of this
    package wrote it; InputError for a `keep_versions` under 1.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        encoder: Encoder | str | os.PathLike[str] | None = None,
        *,
        keep_versions: int = 10,
        create: bool = True,
        chunk_tokens: int | None = None,
        file_rows: int = FILE_ROWS,
        graph_rows: int = GRAPH_ROWS,
    ) -> None:
        check_count(keep_versions, "keep_versions")
        check_chunk_tokens(chunk_tokens)
        self.path = Path(check_path(path, "path"))
        self.keep_versions = keep_versions
        self._chunk_tokens = chunk_tokens
        file = self.path / FILE_NAME
        if not create and not file.exists():
            raise StoreError(
                f"there is no knowledge base in {self.path}; make one with: ctx-vector index PATH --kb {self.path}"
            )
        self._store = Store(file, catalog.MIGRATIONS, kind="knowledge base")
        #: The audits that have recorded passages of it; `purge` reaches them.
        self.audits = Audits(self._store)
        self.audits.finish_stale()
        self._model = SearchModel(encoder)
        self._view: View | None = None
        self._view_lock = threading.Lock()
        self._seen = threading.local()
        self._words: KnowledgeWords | None = None
        self._words_lock = threading.Lock()
        self._file_rows = file_rows
        self._graph_rows = graph_rows

    # -- what it works with -------------------------------------------------------------------------------------

    @property
    def encoder(self) -> Encoder:
        """The encoder; the default one is opened at the first use."""
        return self._model.encoder

    @property
    def calibration(self) -> Calibration:
        """The map from raw cosines to relevance, of the encoder's card."""
        return self._model.calibration()

    @property
    def version(self) -> int:
        """The active version; 0 when nothing was ever indexed."""
        with self._store.read() as conn:
            return lives.active_version(conn)

    @property
    def searched(self) -> int:
        """The version that the last search of this thread looked at; before the first one, the active version."""
        version: int | None = getattr(self._seen, "version", None)
        return self.version if version is None else version

    # -- changing what is in it ---------------------------------------------------------------------------------

    def sync(
        self,
        *paths: str | os.PathLike[str],
        progress: Callable[[Progress], None] | None = None,
        dry_run: bool = False,
        max_bytes: int = MAX_BYTES,
    ) -> SyncReport:
        """Index files and folders: encode what is new or changed, forget what is gone under the paths given.

        Documents of other folders stay. A file that cannot be read is reported as failed, and what was known of it
        stays. The new version becomes active at once, at the end; it takes a number only if something changed. An
        interrupted or killed run loses a few seconds' work: run it again.

        `progress` is called after every file and every batch of passages. With `dry_run` nothing is encoded or
        written, and the report says what would be. Files over `max_bytes` are skipped.
        """
        from ctx_vector.sync import Indexer

        indexer = Indexer(self._store, self.encoder, self.keep_versions, progress, self._chunk_tokens)
        report = indexer.sync(paths, dry_run=dry_run, max_bytes=max_bytes)
        if not dry_run:
            self._refresh_files()
        return report

    def add_text(
        self,
        text: str,
        source: str,
        timestamp: datetime | str | float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SyncReport:
        """Add a text (read as Markdown) under a name, in place of what had this name; see `add_texts`."""
        return self.add_texts([{"text": text, "source": source, "timestamp": timestamp, "metadata": metadata}])

    def add_texts(self, items: Iterable[Mapping[str, Any]]) -> SyncReport:
        """Add texts, all in one version. An item has the keys text, source and maybe timestamp and metadata.

        Raises InputError for a blank text, a bad source or time, or an unknown key; then nothing is added.
        """
        from ctx_vector.sync import add_texts

        report = add_texts(self._store, self.encoder, self.keep_versions, items, self._chunk_tokens)
        self._refresh_files()
        return report

    def remove(self, source: str) -> int:
        """Take a document out of the next version, and return its number; earlier versions keep it (see `purge`).

        Raises InputError when the active version has no such document.
        """
        with self._store.write() as conn:
            live = lives.live_revisions(conn, lives.active_version(conn))
            if source not in live:
                raise InputError(_unknown_source(source, live))
            wanted = {revision.id for name, revision in live.items() if name != source}
            version = lives.new_version(conn, wanted, "remove", removed=1)
            lives.prune(conn, self.keep_versions)
        log.info("version %d: removed %s", version, source)
        return version

    def rollback(self, version: int) -> None:
        """Make an earlier version active, at once and without encoding; the next change builds on it.

        Raises InputError when there is no such version (any more), naming those there are.
        """
        with self._store.write() as conn:
            numbers = [row[0] for row in conn.execute("SELECT number FROM versions ORDER BY number")]
            if isinstance(version, bool) or version not in numbers:
                known = ", ".join(map(str, numbers)) or "none"
                raise InputError(f"version: expected one of those kept ({known}), got {version!r}")
            lives.switch(conn, version, "rollback")
        log.info("rolled back to version %d", version)

    def purge(self, source: str) -> int:
        """Delete every trace of a document, in all versions; return the number of revisions deleted.

        Text, vectors, cached encodings and index files go, and the file is rewritten so that no page of it keeps a
        byte. So do its passages and copies of them in every audit that has recorded them. A file that still lies in an
        indexed folder comes back with the next `sync`.

        Raises InputError when neither a version nor an audit has such a document, StoreError when an audit could not be
        reached.
        """
        from ctx_vector.upkeep import purge

        try:
            deleted = purge(self._store, source, lambda conn, texts: self.audits.note(conn, "", [source], texts))
        except InputError:  # forgotten here long ago, but an audit may remember; or a purge that was not finished
            if self.audits.finish() is None:
                if not self.audits.purge("", [source], ()):
                    raise
                self._store.scrub()
            return 0
        with self._view_lock:
            self._view = self._words = None
        self._refresh_files()
        self.audits.finish()
        return deleted

    def reencode(self, encoder: Encoder | str | os.PathLike[str]) -> int:
        """Encode every passage of every kept version with another encoder, and use it from then on.

        `encoder` may be a name or path for `load_encoder`. Searches go on with the old vectors until the switch. An
        interrupted run goes on where it was. Returns how many texts were encoded.
        """
        from ctx_vector.upkeep import reencode

        encoder = as_encoder(encoder)
        with self._model.replacing:
            encoded = reencode(self._store, encoder)
            self._model.replace(encoder)
        self._refresh_files()
        return encoded

    # -- asking -------------------------------------------------------------------------------------------------

    def search(
        self,
        query: str,
        limit: int = 5,
        min_score: float = 0.0,
        filter: Mapping[str, Any] | None = None,
        *,
        strategy: str = "cosine",
        rerank: Any = None,
        rerank_depth: int = DEPTH,
        now: datetime | None = None,
    ) -> list[Hit]:
        """Return at most `limit` passages with a score of at least `min_score`, best first; none for a blank query.

        `filter` keeps documents whose metadata has these values (a list: one of them). Its key ``source`` is matched
        against the source, where ``*`` stands for anything: ``{"source": "docs/en/*", "format": "md"}``; ``format`` is
        the extension unless the metadata says another. Documents whose ``expires_at`` has come by `now`, which defaults
        to the clock, are left out. `strategy` is `cosine`, `hybrid`, `bm25` or `hybrid_rrf` (scoring.py).

        `rerank` lets a second pass judge the best `rerank_depth` passages: `late`, the folder of a cross-encoder, or
        what else rerank.py takes. Then `min_score` is compared with the score by both passes.

        Equal scores are ordered newer first, then by id. Raises InputError for arguments out of their bounds, and
        ModelMismatchError when the vectors come from another encoder.
        """
        if not isinstance(query, str):
            raise InputError(f"query: expected a str, got {type(query).__name__}")
        check_count(limit, "limit")
        check_share(min_score, "min_score")
        if not query.strip():
            return []
        now = now or datetime.now(UTC)

        def found() -> list[Hit]:
            vector, second = self.encoder.encode_queries([query])[0], self._model.second(rerank, rerank_depth)
            return self.search_vector(
                query, vector, limit, min_score, filter, strategy=strategy, rerank=second, now=now
            )

        return self.steady(found)

    def search_vector(
        self,
        query: str,
        vector: NDArray[np.float32],
        limit: int = 5,
        min_score: float = 0.0,
        filter: Mapping[str, Any] | None = None,
        *,
        strategy: str = "cosine",
        rerank: Any = None,
        now: datetime | None = None,
    ) -> list[Hit]:
        """Do what `search` does for a query whose unit vector (dim,) the caller has already; without `now` nothing has
        expired.
        """
        with self.snapshot() as snapshot:
            second = self._model.second(rerank)
            return search(snapshot, Ask(query, vector, limit, min_score, filter, strategy, second, now))

    def steady(self, search: Callable[[], T]) -> T:
        """Return what a search gives that encodes its query itself; done again when `reencode` took place meanwhile."""
        return self._model.steady(search)

    @contextmanager
    def snapshot(self) -> Generator[Snapshot]:
        """Lend what the functions of passages.py search in: the state of now, whatever changes meanwhile."""
        with self._store.read() as conn:
            check = self._view is None
            view = self._current(conn)
            if check or view.fingerprint != self.encoder.fingerprint:
                check_model(conn, self._store, self.encoder)
            if view.calibration is None and len(view.ids):
                view = self._current(conn, self.calibration)
            self._seen.version = view.version
            yield Snapshot(conn, view, lambda: self._words_of(conn, view), self._store.decoding)

    def superseded(self) -> dict[str, str]:
        """Return the sources of documents of which a newer version is there, each with a line that says which.

        Versions of one document have the same ``metadata["document_id"]`` (or ``document``), and are compared as
        `versions.version_key` does.
        """
        with self._store.decoding(), self._store.read() as conn:
            return self._current(conn).superseded(conn)

    def versions(self) -> list[Version]:
        """Return the versions that are kept, oldest first."""
        with self._store.read() as conn:
            return lives.all_versions(conn)

    def history(self) -> list[Switch]:
        """Return every change of the active version, rollbacks included, oldest first."""
        with self._store.read() as conn:
            return lives.all_switches(conn)

    def export(self, *, vectors: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the active version as JSON-ready dicts: each document, followed by its chunks.

        Their key ``type`` is ``document`` or ``chunk``. With `vectors`, a chunk has its raw unit vector as a list.
        """
        from ctx_vector.upkeep import export

        return export(self._store, vectors=vectors)

    def documents(self) -> list[dict[str, Any]]:
        """Return source, title, timestamp and number of chunks of each document of the active version, by source."""
        from ctx_vector.upkeep import documents

        return documents(self._store)

    def places(self, name: str) -> list[str]:
        """Return the paths of the file or folder that a source, or the beginning of sources, may mean; surest first."""
        with self._store.read() as conn:
            return lives.places(conn, name.rstrip("/"))

    def chunks(self, source: str) -> list[dict[str, Any]]:
        """Return id, content, heading and lines of the chunks of one document; none when there is no such document."""
        from ctx_vector.upkeep import chunks

        return chunks(self._store, source)

    def stats(self) -> dict[str, Any]:
        """Return counts and sizes: documents, chunks, languages, versions, model, bytes on disk."""
        from ctx_vector.upkeep import stats

        return stats(self._store)

    def verify(self) -> VerifyReport:
        """Check the file, its rows, its vectors and its index files; write damaged index files anew from SQLite."""
        from ctx_vector.upkeep import verify

        def write_files() -> None:
            with self._view_lock:
                self._view = None  # it may map a damaged file
            self._refresh_files()

        return verify(self._store, write_files)

    # -- upkeep -------------------------------------------------------------------------------------------------

    def _current(self, conn: sqlite3.Connection, calibration: Calibration | None = None) -> View:
        calibration = calibration or self._model.calibration_at_hand()
        with self._view_lock, self._store.decoding():
            view = load_view(conn, self.path, self._view, calibration)
            # a thread that took its snapshot earlier must not put an older view back
            if self._view is None or view.generation >= self._view.generation:
                self._view = view
            return view

    def _words_of(self, conn: sqlite3.Connection, view: View) -> KnowledgeWords:
        """Return the words of a view of the snapshot that `conn` is in; loaded when first asked for."""
        with self._words_lock, self._store.decoding():
            self._words = load_words(conn, view, catalog.unpack_embedded, self._words)
            return self._words

    def _refresh_files(self) -> None:
        try:
            with self._store.read() as conn:
                view = self._current(conn)
                if view.calibration is None and any(len(rows) >= self._file_rows for rows in view.indexes.values()):
                    view = self._current(conn, self.calibration)
            refresh_files(self._store, view, file_rows=self._file_rows, graph_rows=self._graph_rows)
        except (StoreError, ModelError) as error:  # what was asked for is done; without the file, SQLite is read
            log.warning("no index file written: %s", error)

    def close(self) -> None:
        """Close the files. Other objects on the same folder are not affected."""
        self._view = None
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _unknown_source(source: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(source, list(known), 3, 0.6)
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    return f"source: no document is named {source!r}{hint}"
