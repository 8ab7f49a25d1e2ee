"""From a file or a text to rows in the store that no search sees yet: load, divide, encode, write.

A staged revision goes live with the next version; a run that is killed finds those it has written again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ctx_vector import catalog
from ctx_vector.common_tables import get_meta, set_meta
from ctx_vector.encoding_cache import EncodingCache, text_hash
from ctx_vector.errors import CtxVectorError, InputError, LoaderError
from ctx_vector.keywords import Terms
from ctx_vector.languages import language_of
from ctx_vector.store import Store
from ctx_vector.values import as_utc, clean_text

if TYPE_CHECKING:
    from ctx_vector.chunking import Chunk
    from ctx_vector.documents import Document
    from ctx_vector.file_walk import Found
    from ctx_vector.stages import Encoder

RECIPE: Final = 2  # raise it when loaders or chunker change what they make of the same file
_TEXT_KEYS: Final = frozenset({"text", "source", "timestamp", "metadata"})

log = logging.getLogger("ctx_vector.knowledge")

Stat = tuple[int | None, int | None, int | None]  # size, mtime_ns, when it was read in ns


@dataclass(frozen=True, slots=True)
class Passage:
    """A chunk, the text to encode for it, that text's hash and its terms."""

    chunk: Chunk
    text: str
    key: bytes
    terms: Terms


@dataclass(frozen=True, slots=True)
class Loaded:
    """A document that is ready to be encoded and written. `path` is None for a text that was never a file."""

    document: Document
    path: str | None
    stat: Stat
    expires_at: datetime | None
    passages: tuple[Passage, ...]

    @property
    def texts(self) -> dict[bytes, str]:
        """What has to be encoded, by hash."""
        return {passage.key: passage.text for passage in self.passages}


class Stager:
    """Makes staged revisions in one store with one encoder. `recipe` says how, so that a change is noticed.

    `chunk_tokens` is the size passages are filled up to, in the encoder's tokens; what was given last holds for the
    store from then on. Without any, a store keeps the size that its documents have: what is usual may change.
    """

    def __init__(self, store: Store, encoder: Encoder, chunk_tokens: int | None = None) -> None:
        from ctx_vector.chunking import MAX_TOKENS  # here: whoever only searches does without

        self._store = store
        self._encoder = encoder
        self.cache = EncodingCache(store, encoder)
        self._most = min(MAX_TOKENS, encoder.max_tokens)
        with store.read() as conn:
            known = _size_of(conn)
        self._chosen = chunk_tokens if chunk_tokens not in (None, known) else None
        self._target = min(self._chosen or known, self._most)
        self.recipe = f"{RECIPE}:{self._most}:{self._target}"

    def load_file(self, found: Found, seen_ns: int, max_bytes: int) -> Loaded:
        """Load and divide a file; raises LoaderError, or another of our errors, whatever is wrong with it."""
        from ctx_vector.loaders import load_document

        try:
            document = load_document(found.path, source=found.source, max_bytes=max_bytes)
            return self._divided(document, os.fspath(found.path), (found.size, found.mtime_ns, seen_ns))
        except CtxVectorError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RuntimeError, OSError) as error:
            # a parser met something it was not made for: one file's trouble, not the run's
            log.warning("%s: unexpected error while reading it", found.source, exc_info=True)
            raise LoaderError(f"unexpected {type(error).__name__}: {error}") from error

    def load_text(self, item: Mapping[str, Any]) -> Loaded:
        """Check and divide a text; `item` is as in `KnowledgeBase.add_texts`. Raises InputError."""
        from ctx_vector.loaders import load_text

        if not isinstance(item, Mapping) or set(item) - _TEXT_KEYS or not {"text", "source"} <= set(item):
            given = sorted(map(str, item)) if isinstance(item, Mapping) else type(item).__name__
            raise InputError(f"text to add: expected text, source and maybe timestamp, metadata, got {given}")
        text, source, metadata = item["text"], item["source"], item.get("metadata")
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"text: expected a str that is not blank, got {text!r}")
        if not isinstance(source, str) or not source.strip() or not source.isprintable():
            raise InputError(f"source: expected a name on one line, got {source!r}")
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InputError(f"metadata: expected a mapping, got {type(metadata).__name__}")
        own = {str(key): value for key, value in (metadata or {}).items()}
        as_utc(own.get("expires_at"), "metadata['expires_at']")
        document = load_text(clean_text(text), source=source)
        stated = as_utc(item.get("timestamp")) or document.timestamp
        # what the caller says of the text is part of the content: changing it makes a new revision
        content = f"{document.content_hash}\0{stated}\0{sorted(own.items())!r}"
        document = replace(
            document,
            timestamp=stated,
            metadata={**document.metadata, **own},
            content_hash=hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest(),
        )
        return self._divided(document, None, (None, None, None))

    def _divided(self, document: Document, path: str | None, stat: Stat) -> Loaded:
        from ctx_vector.chunking import MIN_TOKENS, chunk_document, embedding_text

        chunks = chunk_document(
            document,
            self._encoder.count_tokens,
            max_tokens=self._most,
            target_tokens=self._target,
            min_tokens=min(MIN_TOKENS, self._target),
        )
        passages = []
        for chunk in chunks:
            text = embedding_text(chunk)
            passages.append(Passage(chunk, text, text_hash(text), Terms.of_one(text)))
        return Loaded(document, path, stat, _expiry(document), tuple(passages))

    def encode(self, items: Iterable[Loaded], done: Callable[[int], None] | None = None) -> None:
        """Encode what no earlier run has encoded; `done` is told of every finished batch."""
        if self._chosen is not None:
            with self._store.write() as conn:
                set_meta(conn, "chunk_tokens", self._chosen)
            self._chosen = None
        texts: dict[bytes, str] = {}
        for item in items:
            texts.update(item.texts)
        self.cache.ensure(texts, done)

    def write(self, items: list[Loaded]) -> dict[str, int]:
        """Write encoded documents, staged, in one transaction; return their row ids by source.

        Writes nothing after `cache.stop()`.
        """
        while items and not self.cache.stopped:
            try:
                with self._store.write() as conn:
                    return {item.document.source: self.insert(conn, item) for item in items}
            except KeyError:  # a purge in another process took an encoding away meanwhile: make it again
                self.encode(items)
        return {}

    def insert(self, conn: sqlite3.Connection, item: Loaded) -> int:
        """Write one encoded document; return its row id. Raises KeyError when an encoding is gone again."""
        ids = self.cache.ids(conn, item.texts)
        document = item.document
        new = catalog.NewDocument(
            source=document.source,
            content_hash=document.content_hash,
            recipe=self.recipe,
            path=item.path,
            stat=item.stat,
            title=document.title,
            timestamp=document.timestamp,
            expires_at=item.expires_at,
            metadata=document.metadata,
            chunks=[_row(passage, ids[passage.key]) for passage in item.passages],
        )
        return catalog.add_document(conn, new)


def check_chunk_tokens(value: int | None) -> None:
    """Raise InputError for a size of passages that is none."""
    if value is None:
        return
    from ctx_vector.chunking import MAX_TOKENS

    if isinstance(value, bool) or not isinstance(value, int) or not 32 <= value <= MAX_TOKENS:
        raise InputError(f"chunk_tokens: expected a whole number from 32 to {MAX_TOKENS}, got {value!r}")


def _size_of(conn: sqlite3.Connection) -> int:
    """Return the size of a store's passages: the one it was given, that of its newest document, else the usual one."""
    from ctx_vector.chunking import TARGET_TOKENS

    given = int(get_meta(conn, "chunk_tokens", 0))
    recipe = None if given else catalog.newest_recipe(conn)
    return given or (int(recipe.rpartition(":")[2]) if recipe else TARGET_TOKENS)


def _row(passage: Passage, encoding: int) -> catalog.NewChunk:
    chunk = passage.chunk
    return catalog.NewChunk(
        text=chunk.text,
        embedded=passage.text,
        encoding_id=encoding,
        language=language_of(chunk.text),
        kind=chunk.kind,
        heading=chunk.heading,
        span=(chunk.start_char, chunk.end_char),
        lines=(chunk.start_line, chunk.end_line),
        terms=passage.terms,
    )


def _expiry(document: Document) -> datetime | None:
    try:
        return as_utc(document.metadata.get("expires_at"), "expires_at")
    except InputError as error:
        log.warning("%s: %s; it is taken not to expire", document.source, error)
        return None


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hex, as `Document.content_hash` has it; raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
