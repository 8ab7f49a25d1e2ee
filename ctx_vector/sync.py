"""Bring a knowledge base up to date with files and texts: encode what is new, then switch versions at once.

1. Walk the paths and compare with the active version: by size and time, then by content hash. Unchanged files are
   not read further.
2. Load and divide the others, encode the passages that no earlier run has encoded, and write them *staged*: no
   search sees them, and a killed run finds them again.
3. In one short transaction make the new version: staged revisions live, replaced and vanished ones retire.

If another process changed the knowledge base meanwhile, step 1 is repeated; what was encoded is kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ctx_vector import catalog
from ctx_vector.calibration import language_of
from ctx_vector.encoding_cache import BATCH, EncodingCache, check_model, text_hash
from ctx_vector.errors import CtxVectorError, InputError
from ctx_vector.packets import as_utc, clean_text
from ctx_vector.store import Store, file_lock, get_meta, set_meta

if TYPE_CHECKING:
    from ctx_vector.documents import Document
    from ctx_vector.file_walk import Found, Walk
    from ctx_vector.stages import Encoder

RECIPE: Final = 1  # raise it when loaders or chunker change what they make of the same file
MAX_BYTES: Final = 20_000_000
_RACY_NS: Final = 2_000_000_000  # a file written this short before it was read may change again within its time stamp
_KEEP_LIVE: Final = ("not readable", "folder not readable")  # reasons that say nothing about a file's content
_SECONDS_PER_CHUNK: Final = 0.04  # until a run has measured it
_MOST_TOKENS: Final = 480
_TARGET_TOKENS: Final = 224

log = logging.getLogger("ctx_vector.knowledge")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `bytes_done` of `bytes_total` of changed files are finished; `encoded` counts passages."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    encoded: int
    source: str


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a run did. Lists hold sources; `failed` and `skipped` map a source or path to the reason.

    `version` is the active version afterwards, `chunks` the number of its chunks, `encoded` the texts that went
    through the encoder, `seconds` the whole time and `encoder_seconds` the encoder's share of it. For a dry run
    `version` is the present one, `chunks` and `encoded` are what the run would give, `seconds` the estimated time.
    """

    version: int
    added: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    chunks: int = 0
    encoded: int = 0
    seconds: float = 0.0
    encoder_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return what `ctx-vector index --json` prints: counts, not lists."""
        names = ("added", "updated", "removed", "unchanged", "failed")
        return {
            "version": self.version,
            "documents": {name: len(getattr(self, name)) for name in names},
            "chunks": self.chunks,
            "encoded": self.encoded,
            "seconds": round(self.seconds, 3),
        }


@dataclass(slots=True)
class _Plan:
    """What has to be done, decided against one generation of the knowledge base."""

    generation: int
    live: dict[str, catalog.Revision]
    fresh: list[tuple[Found, int]] = field(default_factory=list)  # with the time they were read at, in ns
    unchanged: list[str] = field(default_factory=list)
    restat: list[tuple[int, Found, int]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    bytes_total: int = 0


@dataclass(slots=True)
class _Ready:
    """A loaded document, on its way into the store."""

    document: Document
    recipe: str
    path: str | None
    stat: tuple[int | None, int | None, int | None]
    expires_at: Any
    passages: list[tuple[Any, str, bytes]]  # chunk, text to encode, its hash


class Indexer:
    """Writes documents into one store with one encoder; `keep` versions are kept."""

    def __init__(
        self, store: Store, encoder: Encoder, keep: int, progress: Callable[[Progress], None] | None = None
    ) -> None:
        self._store = store
        self._encoder = encoder
        self._keep = keep
        self._tell = progress
        self._cache = EncodingCache(store, encoder)
        self._most = min(_MOST_TOKENS, encoder.max_tokens)
        self._target = min(_TARGET_TOKENS, self._most)
        self._recipe = f"{RECIPE}:{self._most}:{self._target}"
        self._position = Progress(0, 0, 0, 0, 0, "")

    # -- files --------------------------------------------------------------------------------------------------

    def sync(
        self, paths: Iterable[str | os.PathLike[str]], *, dry_run: bool = False, max_bytes: int = MAX_BYTES
    ) -> SyncReport:
        """Make the knowledge base agree with the files under `paths`; see `KnowledgeBase.sync`."""
        began = time.perf_counter()
        given = list(paths)
        if not given:
            raise InputError("sync: expected at least one file or folder")
        if max_bytes < 1:
            raise InputError(f"max_bytes: expected >= 1, got {max_bytes}")
        with sync_lock(self._store):
            with self._store.read() as conn:
                check_model(conn, self._store, self._encoder)
            walked, scope, failed = self._walk(given, max_bytes)
            while True:
                plan = self._plan(walked, scope, failed)
                if dry_run:
                    return self._estimate(plan, walked, max_bytes)
                ready = self._prepare(plan, max_bytes)
                report = self._commit(plan, ready, walked)
                if report is not None:
                    break
                log.info("the knowledge base was changed by another process meanwhile; comparing again")
        return _timed(report, began, self._cache)

    def _walk(self, given: list[str | os.PathLike[str]], max_bytes: int) -> tuple[Walk, list[str], dict[str, str]]:
        """Return the files found, the absolute paths whose vanished files are to go, and what cannot be read."""
        from ctx_vector.file_walk import walk

        failed: dict[str, str] = {}
        there = []
        for path in given:
            try:
                os.stat(path)
                there.append(path)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                failed[os.fspath(path)] = f"cannot be read: {reason}"
        with self._store.read() as conn:
            known = catalog.known_roots(conn)
        # the prefix of a folder that is gone is free again: the folder given now may be the same one, moved
        gone = {path: prefix for path, prefix in known.items() if not os.path.isdir(path)}
        roots = {Path(path): prefix for path, prefix in known.items() if path not in gone}
        walked = walk(there, max_bytes=max_bytes, roots=roots, exclude=[self._store.path.parent])
        scope = [os.path.realpath(path) for path in there]
        taken = set(walked.roots.values())
        scope += [path for path, prefix in gone.items() if prefix in taken]
        return walked, scope, failed

    def _plan(self, walked: Walk, scope: list[str], failed: Mapping[str, str]) -> _Plan:
        with self._store.read() as conn:
            version = catalog.active_version(conn)
            plan = _Plan(int(get_meta(conn, "generation", 0)), catalog.live_revisions(conn, version))
        plan.failed.update(failed)
        kept = [
            os.fspath(skipped.path)
            for skipped in walked.skipped
            if skipped.reason.startswith(_KEEP_LIVE) or "over the limit" in skipped.reason
        ]
        for found in walked.found:
            seen = time.time_ns()
            revision = plan.live.get(found.source)
            try:
                if revision is None or revision.recipe != self._recipe:
                    plan.fresh.append((found, seen))
                elif _same_stat(revision, found):
                    plan.unchanged.append(found.source)
                elif _hash_file(found.path) == revision.hash:
                    plan.unchanged.append(found.source)
                    plan.restat.append((revision.id, found, seen))
                else:
                    plan.fresh.append((found, seen))
            except OSError as error:
                plan.failed[found.source] = f"cannot be read: {error.strerror or error}"
        sources = {found.source for found in walked.found}
        plan.removed = [
            source
            for source, revision in plan.live.items()
            if revision.path is not None
            and source not in sources
            and any(_inside(revision.path, root) for root in scope)
            and not any(_inside(revision.path, path) for path in kept)
        ]
        plan.bytes_total = sum(found.size for found, _ in plan.fresh)
        return plan

    def _prepare(self, plan: _Plan, max_bytes: int) -> dict[str, int]:
        """Write staged revisions of all changed files; return their row ids by source."""
        ready: dict[str, int] = {}
        window: list[_Ready] = []
        waiting: dict[bytes, str] = {}
        self._position = Progress(0, len(plan.fresh), 0, plan.bytes_total, self._cache.encoded, "")
        finished = 0

        def flush() -> None:
            self._encode(waiting)
            ready.update(self._write(window))
            window.clear()
            waiting.clear()

        try:
            for number, (found, seen) in enumerate(plan.fresh, 1):
                staged = self._staged(found)
                if staged is not None:
                    ready[found.source] = staged
                    plan.restat.append((staged, found, seen))
                else:
                    loaded = self._load(found, seen, max_bytes, plan.failed)
                    if loaded is not None:
                        window.append(loaded)
                        texts = {key: text for _, text, key in loaded.passages}
                        waiting.update(self._cache.missing(texts))
                if len(waiting) >= BATCH or len(window) >= 4 * BATCH:
                    flush()
                finished += found.size
                self._advance(files_done=number, bytes_done=finished, source=found.source)
            flush()
        except KeyboardInterrupt:
            log.warning(
                "interrupted: %d passages encoded by this run are kept; run it again to go on", self._cache.encoded
            )
            raise
        return ready

    def _staged(self, found: Found) -> int | None:
        """Return a revision with this file's content that needs nothing more than to go live."""
        with self._store.read() as conn:
            known = conn.execute("SELECT 1 FROM documents WHERE source = ? LIMIT 1", (found.source,)).fetchone()
            if known is None:
                return None
            try:
                return catalog.staged_revision(conn, found.source, _hash_file(found.path), self._recipe)
            except OSError:
                return None  # the loader says it better

    def _load(self, found: Found, seen: int, max_bytes: int, failed: dict[str, str]) -> _Ready | None:
        from ctx_vector.loaders import load_document

        try:
            document = load_document(found.path, source=found.source, max_bytes=max_bytes)
            return self._divided(document, os.fspath(found.path), (found.size, found.mtime_ns, seen))
        except CtxVectorError as error:
            failed[found.source] = str(error).removeprefix(f"{found.source}: ")
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RuntimeError, OSError) as error:
            # a parser met something it was not made for: one file's trouble, not the run's
            log.warning("%s: unexpected error while reading it", found.source, exc_info=True)
            failed[found.source] = f"unexpected {type(error).__name__}: {error}"
        log.warning("%s failed: %s", found.source, failed[found.source])
        return None

    def _divided(self, document: Document, path: str | None, stat: tuple[int | None, int | None, int | None]) -> _Ready:
        from ctx_vector.chunking import chunk_document, embedding_text

        chunks = chunk_document(
            document, self._encoder.count_tokens, max_tokens=self._most, target_tokens=self._target,
            min_tokens=min(48, self._target),
        )  # fmt: skip
        passages = []
        for chunk in chunks:
            text = embedding_text(document, chunk)
            passages.append((chunk, text, text_hash(text)))
        return _Ready(document, self._recipe, path, stat, _expiry(document), passages)

    def _encode(self, texts: dict[bytes, str]) -> None:
        self._cache.ensure(texts, lambda _: self._advance(encoded=self._cache.encoded))

    def _advance(self, **changes: Any) -> None:
        from dataclasses import replace

        self._position = replace(self._position, **changes)
        if self._tell is not None:
            self._tell(self._position)

    def _write(self, window: list[_Ready]) -> dict[str, int]:
        """Write loaded documents, staged, in one transaction; return their row ids by source."""
        while window:
            try:
                with self._store.write() as conn:
                    return {item.document.source: self._insert(conn, item) for item in window}
            except KeyError:  # a purge in another process took an encoding away meanwhile: make it again
                self._encode({key: text for item in window for _, text, key in item.passages})
        return {}

    def _insert(self, conn: sqlite3.Connection, item: _Ready) -> int:
        document = item.document
        ids = self._cache.ids(conn, {key: None for _, _, key in item.passages})
        return catalog.add_document(
            conn,
            source=document.source,
            content_hash=document.content_hash,
            recipe=item.recipe,
            path=item.path,
            stat=item.stat,
            title=document.title,
            timestamp=document.timestamp,
            expires_at=item.expires_at,
            metadata=document.metadata,
            chunks=(
                catalog.NewChunk(
                    chunk.text, catalog.pack_embedded(chunk.text, text), ids[key], language_of(chunk.text), chunk.kind,
                    chunk.heading, (chunk.start_char, chunk.end_char), (chunk.start_line, chunk.end_line),
                )
                for chunk, text, key in item.passages
            ),
        )  # fmt: skip

    def _commit(self, plan: _Plan, ready: dict[str, int], walked: Walk) -> SyncReport | None:
        """Switch to the new version; None when the plan was made for a state that is no more."""
        added = [source for source in ready if source not in plan.live]
        updated = [source for source in ready if source in plan.live]
        with self._store.write() as conn:
            if int(get_meta(conn, "generation", 0)) != plan.generation:
                return None
            wanted = {revision.id for source, revision in plan.live.items() if source not in ready}
            wanted -= {plan.live[source].id for source in plan.removed}
            wanted |= set(ready.values())
            for document, found, seen in plan.restat:
                stat = (found.size, found.mtime_ns, seen)
                catalog.set_stat(conn, document, os.fspath(found.path), stat)
            for path, prefix in walked.roots.items():
                conn.execute("INSERT OR IGNORE INTO roots VALUES (?, ?)", (os.fsencode(path), prefix))
            if wanted != {revision.id for revision in plan.live.values()}:
                catalog.new_version(conn, wanted, "sync", len(added), len(updated), len(plan.removed))
                catalog.prune(conn, self._keep, staged=True)
            if self._cache.encoded >= 32:
                set_meta(conn, "seconds_per_chunk", self._cache.seconds / self._cache.encoded)
            version = catalog.active_version(conn)
            chunks = catalog.counts(conn, version)[1]
        return SyncReport(
            version=version,
            added=tuple(sorted(added)),
            updated=tuple(sorted(updated)),
            removed=tuple(sorted(plan.removed)),
            unchanged=tuple(sorted(plan.unchanged)),
            failed=dict(plan.failed),
            skipped={os.fspath(skipped.path): skipped.reason for skipped in walked.skipped},
            chunks=chunks,
        )

    def _estimate(self, plan: _Plan, walked: Walk, max_bytes: int) -> SyncReport:
        """Load and divide what changed, but encode and write nothing."""
        waiting: dict[bytes, str] = {}
        done: list[str] = []
        chunks = 0
        for found, seen in plan.fresh:
            loaded = self._load(found, seen, max_bytes, plan.failed)
            if loaded is not None:
                done.append(found.source)
                chunks += len(loaded.passages)
                waiting.update(self._cache.missing({key: text for _, text, key in loaded.passages}))
        with self._store.read() as conn:
            version = catalog.active_version(conn)
            rate = float(get_meta(conn, "seconds_per_chunk", _SECONDS_PER_CHUNK))
            for source in {*done, *plan.removed} & plan.live.keys():
                document = plan.live[source].id
                chunks -= conn.execute("SELECT count(*) FROM chunks WHERE document_id = ?", (document,)).fetchone()[0]
            chunks += catalog.counts(conn, version)[1]
        return SyncReport(
            version=version,
            added=tuple(source for source in done if source not in plan.live),
            updated=tuple(source for source in done if source in plan.live),
            removed=tuple(plan.removed),
            unchanged=tuple(plan.unchanged),
            failed=dict(plan.failed),
            skipped={os.fspath(skipped.path): skipped.reason for skipped in walked.skipped},
            chunks=chunks,
            encoded=len(waiting),
            seconds=len(waiting) * rate,
        )

    # -- texts --------------------------------------------------------------------------------------------------

    def add(self, items: Iterable[Mapping[str, Any]]) -> SyncReport:
        """Add or replace texts, all in one version; see `KnowledgeBase.add_texts`."""
        began = time.perf_counter()
        with self._store.read() as conn:
            check_model(conn, self._store, self._encoder)
        window: dict[str, _Ready] = {}
        for item in items:
            loaded = self._from_text(**item)
            window[loaded.document.source] = loaded
        self._encode({key: text for item in window.values() for _, text, key in item.passages})
        while True:
            try:
                report = self._commit_texts(window)
                break
            except KeyError:
                self._encode({key: text for item in window.values() for _, text, key in item.passages})
        return _timed(report, began, self._cache)

    def _from_text(
        self, text: str, source: str, timestamp: Any = None, metadata: Mapping[str, Any] | None = None
    ) -> _Ready:
        from dataclasses import replace

        from ctx_vector.loaders import load_text

        if not isinstance(text, str) or not text.strip():
            raise InputError(f"text: expected a str that is not blank, got {text!r}")
        if not isinstance(source, str) or not source.strip() or not source.isprintable():
            raise InputError(f"source: expected a name on one line, got {source!r}")
        document = load_text(clean_text(text), source=source)
        stated = as_utc(timestamp) or document.timestamp
        own = {str(key): value for key, value in (metadata or {}).items()}
        if own.get("expires_at") is not None:
            as_utc(own["expires_at"], "metadata['expires_at']")
        # dates and metadata given by the caller are part of the content: changing them makes a new revision
        digest = hashlib.sha256(f"{document.content_hash}\0{stated}\0{sorted(own.items())!r}".encode()).hexdigest()
        document = replace(document, timestamp=stated, metadata={**document.metadata, **own}, content_hash=digest)
        return self._divided(document, None, (None, None, None))

    def _commit_texts(self, window: Mapping[str, _Ready]) -> SyncReport:
        added: list[str] = []
        updated: list[str] = []
        unchanged: list[str] = []
        with self._store.write() as conn:
            live = catalog.live_revisions(conn, catalog.active_version(conn))
            wanted = {revision.id for revision in live.values()}
            for source, item in window.items():
                old = live.get(source)
                if old is not None and (old.hash, old.recipe) == (item.document.content_hash, item.recipe):
                    unchanged.append(source)
                    continue
                (updated if old else added).append(source)
                if old is not None:
                    wanted.discard(old.id)
                kept = catalog.staged_revision(conn, source, item.document.content_hash, item.recipe)
                wanted.add(self._insert(conn, item) if kept is None else kept)
            if added or updated:
                catalog.new_version(conn, wanted, "add", len(added), len(updated), 0)
                catalog.prune(conn, self._keep)
            version = catalog.active_version(conn)
            chunks = catalog.counts(conn, version)[1]
        return SyncReport(version, tuple(added), tuple(updated), (), tuple(unchanged), chunks=chunks)


def sync_lock(store: Store) -> Any:
    """Hold the right to prepare revisions: one run at a time, for as long as it takes (a `with` block)."""
    return file_lock(store, store.path.with_name("sync.lock"), -1, "indexing into")


def _timed(report: SyncReport, began: float, cache: EncodingCache) -> SyncReport:
    from dataclasses import replace

    report = replace(report, encoded=cache.encoded, encoder_seconds=cache.seconds, seconds=time.perf_counter() - began)
    log.info(
        "version %d: documents +%d ~%d -%d =%d, %d failed; %d chunks, %d encoded in %.1f s",
        report.version, len(report.added), len(report.updated), len(report.removed), len(report.unchanged),
        len(report.failed), report.chunks, report.encoded, report.seconds,
    )  # fmt: skip
    return report


def _same_stat(revision: catalog.Revision, found: Found) -> bool:
    """Return whether size and time prove that a file is as it was read."""
    return (
        revision.size == found.size
        and revision.mtime_ns == found.mtime_ns
        and revision.seen_ns is not None
        and found.mtime_ns < revision.seen_ns - _RACY_NS
        and revision.path == os.fspath(found.path)
    )


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _expiry(document: Document) -> Any:
    value = document.metadata.get("expires_at")
    if value is None:
        return None
    try:
        return as_utc(value, "expires_at")
    except InputError as error:
        log.warning("%s: %s; it is taken not to expire", document.source, error)
        return None


def iterate_items(items: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Check the keys of texts to add, so that a misspelt one is no silent loss."""
    allowed = {"text", "source", "timestamp", "metadata"}
    for item in items:
        unknown = set(item) - allowed
        if unknown or not {"text", "source"} <= set(item):
            raise InputError(f"text to add: expected text, source and maybe timestamp, metadata, got {sorted(item)}")
        yield item
