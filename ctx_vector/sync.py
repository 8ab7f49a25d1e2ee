"""Bring a knowledge base up to date with files and texts: encode what is new, then switch versions at once.

1. Walk the paths and compare with the active version (sync_plan.py).
2. Load and divide the others, encode the passages that no earlier run has encoded, and write them *staged*.
3. In one short transaction make the new version: staged revisions live, replaced and vanished ones retire.

If another process changed the knowledge base meanwhile, step 1 is repeated; what was encoded is kept.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ctx_vector import catalog, lives
from ctx_vector.common_tables import get_meta, set_meta
from ctx_vector.encoding_cache import BATCH, EncodingCache, check_model
from ctx_vector.errors import CtxVectorError, InputError
from ctx_vector.rules import check_path
from ctx_vector.staging import Loaded, Stager, hash_file
from ctx_vector.store import Store, file_lock
from ctx_vector.sync_plan import Plan, Scope, compare, look
from ctx_vector.sync_report import Progress, SyncReport, finished

if TYPE_CHECKING:
    from ctx_vector.file_walk import Found
    from ctx_vector.stages import Encoder

MAX_BYTES: Final = 20_000_000
_SECONDS_PER_TEXT: Final = 0.04  # until a run has measured it
_WINDOW_DOCUMENTS: Final = 500

log = logging.getLogger("ctx_vector.knowledge")


class Indexer:
    """Synchronises one store with files, using one encoder; `keep` versions are kept."""

    def __init__(
        self,
        store: Store,
        encoder: Encoder,
        keep: int,
        progress: Callable[[Progress], None] | None = None,
        chunk_tokens: int | None = None,
    ) -> None:
        self._store = store
        self._encoder = encoder
        self._keep = keep
        self._tell = progress
        self._stager = Stager(store, encoder, chunk_tokens)
        self._cache: EncodingCache = self._stager.cache
        self._position = Progress(0, 0, 0, 0, 0, "")
        self._position_lock = threading.Lock()

    def sync(
        self, paths: Iterable[str | os.PathLike[str]], *, dry_run: bool = False, max_bytes: int = MAX_BYTES
    ) -> SyncReport:
        """Make the knowledge base agree with the files under `paths`; see `KnowledgeBase.sync`."""
        began = time.perf_counter()
        given = list(paths)
        if not given:
            raise InputError("sync: expected at least one file or folder")
        for path in given:
            check_path(path, "sync")
        if max_bytes < 1:
            raise InputError(f"max_bytes: expected >= 1, got {max_bytes}")
        with sync_lock(self._store):
            with self._store.read() as conn:
                check_model(conn, self._store, self._encoder)
            scope = look(self._store, given, max_bytes)
            while True:
                plan = compare(self._store, scope, self._stager.recipe)
                if dry_run:
                    return self._estimate(plan, scope, max_bytes)
                ready = self._prepare(plan, max_bytes)
                report = self._commit(plan, ready, scope)
                if report is not None:
                    return finished(report, began, self._cache)
                log.info("the knowledge base was changed by another process meanwhile; comparing again")

    # -- preparing ----------------------------------------------------------------------------------------------

    def _prepare(self, plan: Plan, max_bytes: int) -> dict[str, int]:
        """Write staged revisions of all changed files; return their row ids by source.

        While one window of documents is being encoded, the next one is loaded.
        """
        total = sum(found.size for found, _ in plan.fresh)
        self._position = Progress(0, len(plan.fresh), 0, total, self._cache.encoded, "")
        ready: dict[str, int] = {}
        window: list[Loaded] = []
        texts = 0
        done = 0
        with ThreadPoolExecutor(1, thread_name_prefix="ctx_vector-index") as worker:
            running: Future[dict[str, int]] | None = None

            def flush() -> None:
                nonlocal running, window, texts
                if running is not None:
                    ready.update(running.result())
                running = worker.submit(self._encode_and_write, window)
                window, texts = [], 0

            try:
                for number, (found, seen) in enumerate(plan.fresh, 1):
                    staged = self._staged(found)
                    if staged is not None:
                        ready[found.source] = staged
                        plan.restat.append((staged, found, seen))
                    elif (loaded := self._load(found, seen, max_bytes, plan)) is not None:
                        window.append(loaded)
                        texts += len(self._cache.missing(loaded.texts))
                        if texts >= BATCH or len(window) >= _WINDOW_DOCUMENTS:
                            flush()
                    done += found.size
                    self._advance(files_done=number, bytes_done=done, source=found.source)
                flush()
                if running is not None:
                    ready.update(running.result())
            except BaseException as error:
                self._cache.stop()  # the batch at hand is finished and kept
                with suppress(BaseException):  # whoever ends the run by raising may do it again
                    self._advance(stopping=True)
                _finish(running)
                if isinstance(error, KeyboardInterrupt):
                    log.warning("interrupted: what is encoded is kept; run it again to go on")
                raise
        return ready

    def _encode_and_write(self, window: list[Loaded]) -> dict[str, int]:
        self._stager.encode(window, lambda _: self._advance(encoded=self._cache.encoded))
        return self._stager.write(window)

    def _staged(self, found: Found) -> int | None:
        """Return a revision with this file's content that needs nothing more than to go live."""
        with self._store.read() as conn:
            if conn.execute("SELECT 1 FROM documents WHERE source = ? LIMIT 1", (found.source,)).fetchone() is None:
                return None
            try:
                return catalog.staged_revision(conn, found.source, hash_file(found.path), self._stager.recipe)
            except OSError:
                return None  # the loader will say it better

    def _load(self, found: Found, seen: int, max_bytes: int, plan: Plan) -> Loaded | None:
        try:
            loaded = self._stager.load_file(found, seen, max_bytes)
        except CtxVectorError as error:
            plan.failed[found.source] = str(error).removeprefix(f"{found.source}: ")
            log.warning("%s failed: %s", found.source, plan.failed[found.source])
            return None
        if loaded.document.metadata.get("decoding") == "replaced":
            plan.garbled.append(found.source)
            log.warning("%s is garbled: in an unknown encoding, or damaged; save it as UTF-8", found.source)
        return loaded

    def _advance(self, **changes: Any) -> None:
        with self._position_lock:  # loading and encoding go on side by side
            self._position = replace(self._position, **changes)
            if self._tell is not None:
                self._tell(self._position)

    # -- switching ----------------------------------------------------------------------------------------------

    def _commit(self, plan: Plan, ready: dict[str, int], scope: Scope) -> SyncReport | None:
        """Switch to the new version; None when the plan was made for a state that is no more."""
        report = _report(plan, ready, scope)
        with self._store.write() as conn:
            if int(get_meta(conn, "generation", 0)) != plan.generation:
                return None
            now = {revision.id for revision in plan.live.values()}
            gone = {plan.live[source].id for source in {*plan.removed, *ready} & plan.live.keys()}
            wanted = now - gone | set(ready.values())
            for document, found, seen in plan.restat:
                catalog.set_stat(conn, document, os.fspath(found.path), (found.size, found.mtime_ns, seen))
            for path, prefix in scope.walk.roots.items():
                conn.execute("INSERT OR IGNORE INTO roots VALUES (?, ?)", (os.fsencode(path), prefix))
            if wanted != now:
                added, updated, removed = map(len, (report.added, report.updated, report.removed))
                lives.new_version(conn, wanted, "sync", added=added, updated=updated, removed=removed)
                lives.prune(conn, self._keep, staged=True)
            if self._cache.encoded >= 32:
                set_meta(conn, "seconds_per_text", self._cache.seconds / self._cache.encoded)
            version = lives.active_version(conn)
            return replace(report, version=version, chunks=lives.counts(conn, version)[1])

    def _estimate(self, plan: Plan, scope: Scope, max_bytes: int) -> SyncReport:
        """Load and divide what changed, but encode and write nothing."""
        waiting: set[bytes] = set()
        passages: dict[str, int] = {}
        for found, seen in plan.fresh:
            loaded = self._load(found, seen, max_bytes, plan)
            if loaded is not None:
                passages[found.source] = len(loaded.passages)
                waiting.update(self._cache.missing(loaded.texts))
        with self._store.read() as conn:
            version = lives.active_version(conn)
            rate = float(get_meta(conn, "seconds_per_text", _SECONDS_PER_TEXT))
            chunks = lives.counts(conn, version)[1] + sum(passages.values())
            for source in {*passages, *plan.removed} & plan.live.keys():
                document = plan.live[source].id
                chunks -= conn.execute("SELECT count(*) FROM chunks WHERE document_id = ?", (document,)).fetchone()[0]
        return replace(
            _report(plan, passages, scope),
            version=version,
            chunks=chunks,
            encoded=len(waiting),
            seconds=len(waiting) * rate,
        )


def _finish(running: Future[Any] | None) -> None:
    """Wait for the batch at hand, a few seconds, however often Ctrl-C is pressed meanwhile: else it would be lost."""
    while running is not None and not running.done():
        with suppress(KeyboardInterrupt):
            wait([running])


def add_texts(
    store: Store, encoder: Encoder, keep: int, items: Iterable[Mapping[str, Any]], chunk_tokens: int | None = None
) -> SyncReport:
    """Add or replace texts, all in one version; see `KnowledgeBase.add_texts`."""
    began = time.perf_counter()
    with store.read() as conn:
        check_model(conn, store, encoder)
    stager = Stager(store, encoder, chunk_tokens)
    loaded = {item.document.source: item for item in map(stager.load_text, items)}
    while True:
        stager.encode(loaded.values())
        try:
            return finished(_commit_texts(store, stager, keep, loaded), began, stager.cache)
        except KeyError:  # a purge in another process took an encoding away meanwhile: make it again
            continue


def _commit_texts(store: Store, stager: Stager, keep: int, loaded: Mapping[str, Loaded]) -> SyncReport:
    added: list[str] = []
    updated: list[str] = []
    unchanged: list[str] = []
    with store.write() as conn:
        live = lives.live_revisions(conn, lives.active_version(conn))
        wanted = {revision.id for revision in live.values()}
        for source, item in loaded.items():
            old = live.get(source)
            content = item.document.content_hash
            if old is not None and (old.hash, old.recipe) == (content, stager.recipe):
                unchanged.append(source)
                continue
            (added if old is None else updated).append(source)
            if old is not None:
                wanted.discard(old.id)
            kept = catalog.staged_revision(conn, source, content, stager.recipe)
            wanted.add(stager.insert(conn, item) if kept is None else kept)
        if added or updated:
            lives.new_version(conn, wanted, "add", added=len(added), updated=len(updated))
            lives.prune(conn, keep)
        version = lives.active_version(conn)
        chunks = lives.counts(conn, version)[1]
    return SyncReport(version, tuple(added), tuple(updated), (), tuple(unchanged), chunks=chunks)


def sync_lock(store: Store) -> AbstractContextManager[None]:
    """Hold the right to prepare revisions: one run at a time, for as long as it takes."""
    return file_lock(store, store.path.with_name("sync.lock"), -1, "indexing into")


def _report(plan: Plan, done: Iterable[str], scope: Scope) -> SyncReport:
    return SyncReport(
        version=0,
        added=tuple(sorted(source for source in done if source not in plan.live)),
        updated=tuple(sorted(source for source in done if source in plan.live)),
        removed=tuple(sorted(plan.removed)),
        unchanged=tuple(sorted(plan.unchanged)),
        failed=dict(plan.failed),
        garbled=tuple(sorted(plan.garbled)),
        skipped={os.fspath(skipped.path): skipped.reason for skipped in scope.walk.skipped},
    )
