"""Bring a knowledge base up to date with files and texts: encode what is new, then switch versions at once.

1. Walk the paths and compare with the active version: by size and time, then by content hash. Unchanged files are
   not read further.
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ctx_vector import catalog, lives
from ctx_vector.encoding_cache import BATCH, EncodingCache, check_model
from ctx_vector.errors import CtxVectorError, InputError
from ctx_vector.rules import check_path
from ctx_vector.staging import Loaded, Stager, hash_file
from ctx_vector.store import Store, file_lock, get_meta, set_meta
from ctx_vector.sync_report import Progress, SyncReport, finished

if TYPE_CHECKING:
    from ctx_vector.file_walk import Found, Walk
    from ctx_vector.stages import Encoder

MAX_BYTES: Final = 20_000_000
_RACY_NS: Final = 2_000_000_000  # a file written this short before it was read may change again within its time stamp
_SECONDS_PER_TEXT: Final = 0.04  # until a run has measured it
_WINDOW_DOCUMENTS: Final = 500

log = logging.getLogger("ctx_vector.knowledge")


@dataclass(slots=True)
class _Plan:
    """What has to be done, decided against one generation of the knowledge base."""

    generation: int
    live: dict[str, catalog.Revision]
    fresh: list[tuple[Found, int]] = field(default_factory=list)  # with the time of reading, in ns
    unchanged: list[str] = field(default_factory=list)
    restat: list[tuple[int, Found, int]] = field(default_factory=list)  # revision, file, time of reading
    removed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    garbled: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Scope:
    """The files of a run, the absolute paths whose vanished files are to go, and what could not be looked at."""

    walk: Walk
    paths: list[str]
    failed: dict[str, str]

    def lost(self, revision: catalog.Revision, kept: list[str]) -> bool:
        """Return whether a document that the walk did not find is known to be gone."""
        path = revision.path
        return (
            path is not None and any(_inside(path, p) for p in self.paths) and not any(_inside(path, p) for p in kept)
        )


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
            scope = self._walk(given, max_bytes)
            while True:
                plan = self._plan(scope)
                if dry_run:
                    return self._estimate(plan, scope, max_bytes)
                ready = self._prepare(plan, max_bytes)
                report = self._commit(plan, ready, scope)
                if report is not None:
                    return finished(report, began, self._cache)
                log.info("the knowledge base was changed by another process meanwhile; comparing again")

    # -- comparing ----------------------------------------------------------------------------------------------

    def _walk(self, given: list[str | os.PathLike[str]], max_bytes: int) -> _Scope:
        from ctx_vector.file_walk import walk

        failed: dict[str, str] = {}
        there = []
        for path in given:
            try:
                os.stat(path)
                there.append(path)
            except (OSError, ValueError) as error:
                failed[os.fspath(path)] = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        with self._store.read() as conn:
            known = catalog.known_roots(conn)
        # the prefix of a folder that is gone is free again: the folder given now may be the same one, moved
        gone = {path: prefix for path, prefix in known.items() if not os.path.isdir(path)}
        roots = {Path(path): prefix for path, prefix in known.items() if path not in gone}
        walked = walk(there, max_bytes=max_bytes, roots=roots, exclude=[self._store.path.parent])
        taken = set(walked.roots.values())
        paths = [os.path.realpath(path) for path in there]
        paths += [path for path, prefix in gone.items() if prefix in taken]
        return _Scope(walked, paths, failed)

    def _plan(self, scope: _Scope) -> _Plan:
        with self._store.read() as conn:
            version = lives.active_version(conn)
            plan = _Plan(int(get_meta(conn, "generation", 0)), lives.live_revisions(conn, version))
        plan.failed.update(scope.failed)
        for found in scope.walk.found:
            seen = time.time_ns()
            revision = plan.live.get(found.source)
            try:
                if revision is None or revision.recipe != self._stager.recipe:
                    plan.fresh.append((found, seen))
                elif _same_stat(revision, found):
                    plan.unchanged.append(found.source)
                elif hash_file(found.path) == revision.hash:
                    plan.unchanged.append(found.source)
                    plan.restat.append((revision.id, found, seen))
                else:
                    plan.fresh.append((found, seen))
            except OSError as error:
                plan.failed[found.source] = f"cannot be read: {error.strerror or error}"
        sources = {found.source for found in scope.walk.found}
        # a folder or file that cannot be looked into is not gone, and what was known of it stays
        kept = [os.fspath(skipped.path) for skipped in scope.walk.skipped if skipped.wanted]
        plan.removed = [
            source for source, revision in plan.live.items() if source not in sources and scope.lost(revision, kept)
        ]
        return plan

    # -- preparing ----------------------------------------------------------------------------------------------

    def _prepare(self, plan: _Plan, max_bytes: int) -> dict[str, int]:
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

    def _load(self, found: Found, seen: int, max_bytes: int, plan: _Plan) -> Loaded | None:
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

    def _commit(self, plan: _Plan, ready: dict[str, int], scope: _Scope) -> SyncReport | None:
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

    def _estimate(self, plan: _Plan, scope: _Scope, max_bytes: int) -> SyncReport:
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


def _report(plan: _Plan, done: Iterable[str], scope: _Scope) -> SyncReport:
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


def _same_stat(revision: catalog.Revision, found: Found) -> bool:
    """Return whether size and time prove that a file is as it was read."""
    return (
        revision.size == found.size
        and revision.mtime_ns == found.mtime_ns
        and revision.seen_ns is not None
        and found.mtime_ns < revision.seen_ns - _RACY_NS
        and revision.path == os.fspath(found.path)
    )


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)
