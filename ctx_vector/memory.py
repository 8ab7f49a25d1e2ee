"""A memory that lasts: what an agent keeps of one user, on disk, searchable by meaning.

    memory = Memory("memory", user_id="ada")
    memory.add("Ada prefers answers in Chinese", type="semantic", importance=0.8)
    memory.add_many([{"content": "Shall we meet on Friday?", "session": "s1", "speaker": "Ada"}, ...])
    for hit in memory.search("Which language does she want?"):
        print(hit.score, hit.content)

Types: `working` (at most 200, for 7 days from when they were added), `episodic`, `semantic`, `profile`. Users share a
file and nothing else. Adding what is there already leaves one copy, with the higher importance. What is removed is gone
from text, vectors and file at once. Of a memory of over 500 tokens only the beginning is searched.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from ctx_vector import memory_rows as rows
from ctx_vector import memory_upkeep as upkeep
from ctx_vector.audit_purge import Audits
from ctx_vector.encoding_cache import EncodingCache, check_model
from ctx_vector.errors import InputError
from ctx_vector.memory_edit import Edit, T, run_edit
from ctx_vector.memory_hits import MemoryHit
from ctx_vector.memory_rows import NewMemory, Row, check_type
from ctx_vector.memory_search import Ask, first_pass
from ctx_vector.memory_view import MemoryView, load_view
from ctx_vector.memory_words import DEFAULT_RULES, MemoryWords, WordRules, load_words
from ctx_vector.rerank import DEPTH
from ctx_vector.rules import check_count, check_path, check_share
from ctx_vector.scoring import check_retrieval
from ctx_vector.search_model import SearchModel, as_encoder
from ctx_vector.store import Store
from ctx_vector.values import as_utc, clean_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.calibration import Calibration
    from ctx_vector.stages import Encoder

FILE_NAME: Final = "memory.sqlite3"

Time = datetime | str | float | None


class Memory:
    """The memories of one user in the folder `path`, which is made when absent.

    `working_capacity` and `working_days` bound memories of the type `working`. One object can be shared by threads, one
    folder by processes and users. `encoder` has to be the one the vectors were made with; `reencode` changes it.
    `words` and `calibration` are there to measure others than the defaults.

    Wherever a method takes `now`, it is the clock unless given.

    Raises StoreError when the folder holds something else, SchemaError when a newer version of this package wrote it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        user_id: str = "default",
        encoder: Encoder | str | os.PathLike[str] | None = None,
        *,
        working_capacity: int = 200,
        working_days: float = 7.0,
        words: WordRules = DEFAULT_RULES,
        calibration: Calibration | None = None,
    ) -> None:
        if not isinstance(user_id, str) or not user_id.strip() or clean_text(user_id) != user_id:
            raise InputError(f"user_id: expected a name, got {user_id!r}")
        check_count(working_capacity, "working_capacity")
        if isinstance(working_days, bool) or not isinstance(working_days, (int, float)) or not working_days > 0:
            raise InputError(f"working_days: expected a number > 0, got {working_days!r}")
        self.path = Path(check_path(path, "path"))
        self.user_id = user_id
        self.working_capacity = working_capacity
        self.working_days = working_days
        self._store = Store(self.path / FILE_NAME, rows.MIGRATIONS, kind="memory", remedy="begin with an empty memory")
        #: The audits that have recorded memories of it; what is removed here is purged there.
        self.audits = Audits(self._store)
        self.audits.finish_stale()
        self._model = SearchModel(encoder, calibration)
        self._rules = words
        self._view: MemoryView | None = None
        self._words: MemoryWords | None = None
        self._lock = threading.RLock()

    @property
    def encoder(self) -> Encoder:
        """The encoder; the default one is opened at the first use."""
        return self._model.encoder

    def _current(self, conn: sqlite3.Connection) -> MemoryView:
        """Return the view of a snapshot whose first statement is made here, so that it is no older than `_view`."""
        calibration = self._model.calibration()
        with self._lock, self._store.decoding():
            model = check_model(conn, self._store, self.encoder)
            self._view = load_view(conn, self.user_id, calibration, self._view, model)
            return self._view

    def _words_of(self, conn: sqlite3.Connection, view: MemoryView) -> MemoryWords:
        """Return the words of the memories in a view of the snapshot that `conn` is in."""
        with self._lock, self._store.decoding():
            self._words = load_words(conn, self.user_id, view.generation, view.facts.ids, self._words, self._rules)
            return self._words

    def _edit(self, work: Callable[[Edit], T], now: datetime | None = None, *, compares: bool = False) -> T:
        """Run an edit, after removing what has outlived its time; `compares` says that it looks at vectors."""
        moment = _moment(now)

        def attempt(edit: Edit) -> T:
            with self._store.decoding():
                if outlived := rows.outlived(edit.conn, self.user_id, self._born_after(moment)):
                    edit.remove(outlived)
                return work(edit)

        if compares:
            self._model.calibration()  # outside of the transaction, for it may have to be measured
        cache = EncodingCache(self._store, self.encoder)
        return run_edit(self._store, cache, self.user_id, moment, attempt, self._current if compares else None)

    def _born_after(self, now: datetime) -> datetime:
        return upkeep.days_before(now, self.working_days)

    # -- adding -----------------------------------------------------------------------------------------------------

    def add(
        self,
        content: str,
        type: str = "episodic",
        importance: float = 0.5,
        timestamp: Time = None,
        session: str | None = None,
        speaker: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        now: datetime | None = None,
    ) -> str:
        """Remember one thing, and return its id: that of the copy already there, if there is one.

        `type` is `working`, `episodic`, `semantic` or `profile`, `importance` lies in [0, 1]. `timestamp` is when it
        was said, by default now: a datetime, an ISO 8601 text, or seconds since 1970. Turns of one `session` are added
        in order of speaking. Raises InputError naming the argument that is wrong, and ModelMismatchError when the
        vectors there come from another encoder.
        """
        item = {
            "content": content,
            "type": type,
            "importance": importance,
            "timestamp": timestamp,
            "session": session,
            "speaker": speaker,
            "metadata": metadata,
        }
        moment = _moment(now)
        return self._add([NewMemory.checked(item, moment)], moment)[0]

    def add_many(self, items: Iterable[Mapping[str, Any]], *, now: datetime | None = None) -> list[str]:
        """Remember many things at once, in order of speaking; all of them are there afterwards, or none.

        An item has the keys of `add`. Raises InputError naming the first wrong item.
        """
        moment = _moment(now)
        new: list[NewMemory] = []
        for number, item in enumerate(items):
            try:
                new.append(NewMemory.checked(item, moment))
            except InputError as error:
                raise InputError(f"item {number}: {error}") from None
        return self._add(new, moment)

    def _add(self, new: Sequence[NewMemory], now: datetime) -> list[str]:
        if not new:
            return []

        def work(edit: Edit) -> list[int]:
            ids = edit.add(new)
            if any(item.type == "working" for item in new):
                upkeep.trim_working(edit, self.working_capacity, ids)
            return ids

        compares = any(item.session is None for item in new)
        return [str(id_) for id_ in self._edit(work, now, compares=compares)]

    # -- asking -----------------------------------------------------------------------------------------------------

    def search(
        self,
        query: str,
        limit: int = 10,
        *,
        min_importance: float = 0.0,
        type: str | Sequence[str] | None = None,
        min_score: float = 0.0,
        since: Time = None,
        until: Time = None,
        strategy: str = "cosine",
        rerank: Any = None,
        rerank_depth: int = DEPTH,
        now: datetime | None = None,
    ) -> list[MemoryHit]:
        """Return at most `limit` memories with a relevance of at least `min_score`, best first; none for a blank query.

        Scores and importances lie in [0, 1]. `type` is one type or several; `since` and `until`, both included, bound
        when it was said, and leave out what has no time. `strategy` is `cosine`, `hybrid`, `bm25` or `hybrid_rrf`
        (scoring.py). Equal scores: newer first, then by id. `rerank` lets a second pass (rerank.py) judge the best
        `rerank_depth` memories, turns of a conversation among their neighbours. Raises InputError for arguments out of
        their bounds, and ModelMismatchError when the vectors come from another encoder.
        """
        if not isinstance(query, str):
            raise InputError(f"query: expected a str, got {query!r}")

        def found() -> list[MemoryHit]:
            dim = self.encoder.dim
            vector = self.encoder.encode_queries([query])[0] if query.strip() else np.zeros(dim, np.float32)
            return self.search_vector(
                query,
                vector,
                limit,
                min_importance=min_importance,
                type=type,
                min_score=min_score,
                since=since,
                until=until,
                strategy=strategy,
                rerank=self._model.second(rerank, rerank_depth),
                now=now,
            )

        return self.steady(found)

    def search_vector(
        self,
        query: str,
        vector: NDArray[np.float32],
        limit: int = 10,
        *,
        min_importance: float = 0.0,
        type: str | Sequence[str] | None = None,
        min_score: float = 0.0,
        since: Time = None,
        until: Time = None,
        strategy: str = "cosine",
        rerank: Any = None,
        now: datetime | None = None,
    ) -> list[MemoryHit]:
        """Do what `search` does for a query whose unit vector (dim,) the caller has already."""
        check_count(limit, "limit")
        check_share(min_importance, "min_importance")
        check_share(min_score, "min_score")
        check_retrieval(strategy)
        types = [type] if isinstance(type, str) else type
        for name in types or ():
            check_type(name)
        earliest, latest, born_after = as_utc(since, "since"), as_utc(until, "until"), self._born_after(_moment(now))
        if not query.strip():
            return []
        self._model.calibration()  # outside of the snapshot, for it may have to be measured
        ask = Ask(query, vector, limit, min_score, strategy, self._model.second(rerank))
        with self._store.decoding(), self._store.read() as conn:
            view = self._current(conn)
            allowed = view.allowed(
                types=types, min_importance=min_importance, since=earliest, until=latest, born_after=born_after
            )
            found = first_pass(conn, self.user_id, view, lambda: self._words_of(conn, view), ask, allowed)
        return found.hits(ask)

    def steady(self, search: Callable[[], T]) -> T:
        """Return what a search gives that encodes its query itself; done again when `reencode` took place meanwhile."""
        return self._model.steady(search)

    def get(self, memory_id: str | int, *, now: datetime | None = None) -> Row:
        """Return one memory. Raises InputError when this user has none with that id."""
        with self._store.decoding(), self._store.read() as conn:
            return self._known(conn, memory_id, self._born_after(_moment(now)))

    def all(self, type: str | None = None, *, now: datetime | None = None) -> list[Row]:
        """Return all of the user's memories, or those of one type, in the order they were added."""
        kind = None if type is None else check_type(type)
        born_after = self._born_after(_moment(now))
        with self._store.decoding(), self._store.read() as conn:
            known = rows.all_rows(conn, self.user_id, kind)
        return [row for row in known if row.type != "working" or row.created >= born_after]

    def _known(self, conn: sqlite3.Connection, memory_id: str | int, born_after: datetime | None = None) -> Row:
        number = -1
        if isinstance(memory_id, int) and not isinstance(memory_id, bool):
            number = memory_id
        elif isinstance(memory_id, str) and memory_id.isascii() and memory_id.isdigit():
            number = int(memory_id[:20])
        row = rows.rows_by_id(conn, self.user_id, [number]).get(number)
        if row is None or (born_after and row.type == "working" and row.created < born_after):
            raise InputError(f"memory_id: {self.user_id!r} has no memory {memory_id!r:.40}")
        return row

    # -- changing ---------------------------------------------------------------------------------------------------

    def update(
        self,
        memory_id: str | int,
        *,
        content: str | None = None,
        type: str | None = None,
        importance: float | None = None,
        timestamp: Time = None,
        metadata: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> Row:
        """Change a memory and return it; what is not given stays. A new text is encoded, and its neighbours anew.

        Nothing of a former text or of former metadata is left. An update is of one memory: it never merges two.
        """
        given: dict[str, Any] = {"content": content, "type": type, "importance": importance}
        given |= {"timestamp": timestamp, "metadata": metadata}
        changed = {key: value for key, value in given.items() if value is not None}
        if not changed:
            raise InputError(f"update: nothing to change; give one of {', '.join(given)}")

        def work(edit: Edit) -> Row:
            row = self._known(edit.conn, memory_id)
            old = {key: getattr(row, key) for key in (*given, "session", "speaker")}
            new = NewMemory.checked({**old, **changed}, edit.now)
            edit.change(row, **{key: getattr(new, key) for key in changed})
            result = self._known(edit.conn, memory_id)
            if result.content != row.content:
                self.audits.note(edit.conn, self.user_id, [str(row.id)], [row.content])
            return result

        row = self._edit(work, now)
        if (content is not None or metadata is not None) and self.audits.finish() is None:
            self._store.scrub()
        return row

    def remove(self, memory_id: str | int) -> None:
        """Forget one memory, every trace of it. Raises InputError when this user has none with that id."""

        def work(edit: Edit) -> list[Row]:
            gone = [self._known(edit.conn, memory_id)]
            edit.remove(gone)
            return gone

        self._purge(work)

    def forget(
        self,
        strategy: str = "importance_based",
        threshold: float = 0.2,
        max_age_days: float = 90.0,
        *,
        now: datetime | None = None,
    ) -> int:
        """Forget many memories and return how many.

        `importance_based`: those under `threshold`; `time_based`: those older than `max_age_days`; `capacity_based`:
        all but the `threshold` most important ones (of equal importance the newest stay).
        """

        def work(edit: Edit) -> list[Row]:
            gone = self._forgettable(edit.conn, strategy, threshold, max_age_days, now)
            edit.remove(gone)
            return gone

        return self._purge(work, now)

    def forgettable(
        self,
        strategy: str = "importance_based",
        threshold: float = 0.2,
        max_age_days: float = 90.0,
        *,
        now: datetime | None = None,
    ) -> list[Row]:
        """Return the memories that `forget` with the same arguments would forget, and forget none."""
        with self._store.decoding(), self._store.read() as conn:
            return self._forgettable(conn, strategy, threshold, max_age_days, now)

    def _forgettable(
        self, conn: sqlite3.Connection, strategy: str, threshold: float, max_age_days: float, now: datetime | None
    ) -> list[Row]:
        upkeep.check_forget(strategy, threshold, max_age_days)
        oldest = upkeep.days_before(_moment(now), max_age_days) if strategy == "time_based" else _moment(now)
        return upkeep.forgettable(rows.all_rows(conn, self.user_id), strategy, threshold, oldest)

    def clear_all(self) -> int:
        """Forget everything of this user, and return how many memories that were."""

        def work(edit: Edit) -> list[Row]:
            known = rows.all_rows(edit.conn, self.user_id)
            edit.remove(known)
            return known

        return self._purge(work, everything=True)

    def _purge(
        self, work: Callable[[Edit], list[Row]], now: datetime | None = None, *, everything: bool = False
    ) -> int:
        """Remove what `work` removes without leaving a byte, here and in the audits; return how many memories."""

        def noted(edit: Edit) -> list[Row]:
            gone = work(edit)
            if gone or everything:  # what ran out earlier may still stand in an audit
                keys = None if everything else [str(row.id) for row in gone]
                self.audits.note(edit.conn, self.user_id, keys, [row.content for row in gone])
            return gone

        try:
            gone = self._edit(noted, now)
        except InputError:  # it may have been removed by a call that could not finish
            self.audits.finish()
            raise
        if self.audits.finish() is None:
            self._store.scrub()
        return len(gone)

    def consolidate(
        self,
        from_type: str = "working",
        to_type: str = "episodic",
        importance_threshold: float = 0.7,
        *,
        now: datetime | None = None,
    ) -> int:
        """Turn memories of one type and at least this importance into another type; return how many.

        One that is there already in the other type is merged into that copy.
        """
        check_type(from_type, "from_type")
        check_type(to_type, "to_type")
        check_share(importance_threshold, "importance_threshold")
        if from_type == to_type:
            raise InputError(f"consolidate: from_type and to_type are both {to_type!r}")

        def work(edit: Edit) -> int:
            known = rows.all_rows(edit.conn, self.user_id, from_type)
            moving = [row for row in known if row.importance >= importance_threshold]
            for row in moving:
                edit.retype(row, to_type)
            return len(moving)

        return self._edit(work, now, compares=True)

    # -- looking ----------------------------------------------------------------------------------------------------

    def users(self) -> list[str]:
        """Return the names of all users who have memories in this folder."""
        with self._store.read() as conn:
            return rows.all_users(conn)

    def stats(self, *, now: datetime | None = None) -> dict[str, Any]:
        """Return counts by type, sessions, mean importance, first and last time."""
        return upkeep.stats(self.user_id, self.all(now=now))

    def summary(self, limit: int = 10, *, now: datetime | None = None) -> str:
        """Return a short text: how many memories of which type, and the most important ones."""
        check_count(limit, "limit")
        return upkeep.summary(self.all(now=now), limit)

    def export(self, *, now: datetime | None = None) -> Iterator[str]:
        """Yield the user's memories as JSON lines, in order; `import_lines` takes them back."""
        for row in self.all(now=now):
            yield json.dumps(row.to_dict(), ensure_ascii=False)

    def import_lines(self, lines: Iterable[str], *, now: datetime | None = None) -> int:
        """Add memories from JSON lines as `export` gives them, all or none, and return how many lines that were.

        They get new ids. Raises InputError naming the line or the item.
        """
        return len(self.add_many(upkeep.read_lines(lines), now=now))

    def reencode(self, encoder: Encoder | str | os.PathLike[str] | None = None) -> int:
        """Convert the memories of all users to another encoder, by default this object's; return how many texts.

        An interrupted run goes on where it was; until it is through, the former vectors stay in use.
        """
        encoder = self.encoder if encoder is None else as_encoder(encoder)
        with self._model.replacing:
            count = upkeep.reencode(self._store, encoder)
            self._model.replace(encoder)
        self._store.scrub()  # not before: it may take seconds, in which others search
        return count

    def verify(self) -> list[str]:
        """Return what is wrong with the file; empty is good."""
        return self._store.check()

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def default_folder() -> Path:
    """Return where memories are kept unless told: in the platform's data folder."""
    from platformdirs import user_data_path

    return Path(user_data_path("ctx_vector")) / "memory"


def _moment(now: datetime | None) -> datetime:
    return as_utc(now, "now") or datetime.now(UTC)
