"""A memory that lasts: what an agent keeps of one user, on disk, searchable by meaning.

    memory = Memory("memory", user_id="ada")
    memory.add("Ada prefers answers in Chinese", type="semantic", importance=0.8)
    memory.add_many([{"content": "Shall we meet on Friday?", "session": "s1", "speaker": "Ada"}, ...])
    for hit in memory.search("Which language does she want?"):
        print(hit.score, hit.content)

Types: `working` (at most 200, 7 days), `episodic`, `semantic`, `profile`. Users share a file and nothing else. Adding
what is there already leaves one copy, with the higher importance. What is removed is gone from text, vectors and file
at once.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from ctx_vector import memory_rows as rows
from ctx_vector.encoding_cache import EncodingCache, check_model
from ctx_vector.errors import InputError
from ctx_vector.memory_edit import Edit, T, run_edit
from ctx_vector.memory_rows import TYPES, NewMemory, Row, check_importance, check_type
from ctx_vector.memory_view import MemoryView, load_view
from ctx_vector.packets import as_utc
from ctx_vector.store import Store

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.calibration import Calibration
    from ctx_vector.stages import Encoder

FILE_NAME: Final = "memory.sqlite3"
FORGET: Final = ("importance_based", "time_based", "capacity_based")
_LEAST_CANDIDATES: Final = 50


@dataclass(frozen=True, slots=True, eq=False)
class MemoryHit:
    """A memory found: `score` is the relevance in [0, 1], `cosine` the raw cosine, `vector` (dim,) float32."""

    memory: Row
    score: float
    cosine: float
    vector: NDArray[np.float32]

    @property
    def id(self) -> str:
        """The memory's id."""
        return str(self.memory.id)

    @property
    def content(self) -> str:
        """The memory's text, as it was added."""
        return self.memory.content

    @property
    def timestamp(self) -> datetime | None:
        """When it was said; aware UTC."""
        return self.memory.timestamp

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values: id, content, score, cosine, timestamp, metadata (the caller's, and ours)."""
        memory = self.memory
        ours = {
            "memory_type": memory.type,
            "importance": memory.importance,
            "session": memory.session,
            "speaker": memory.speaker,
        }
        return {
            "id": self.id,
            "content": memory.content,
            "score": round(self.score, 6),
            "cosine": round(self.cosine, 6),
            "timestamp": memory.timestamp.isoformat() if memory.timestamp else None,
            "metadata": {**memory.metadata, **{key: value for key, value in ours.items() if value is not None}},
        }


class Memory:
    """The memories of one user in the folder `path`, which is made when absent.

    `working_capacity` and `working_days` bound memories of the type `working`. One object can be shared by threads, one
    folder by processes and users. `encoder` has to be the one the vectors were made with.

    Raises StoreError when the folder holds something else, SchemaError when a newer version of this package wrote it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        user_id: str = "default",
        encoder: Encoder | None = None,
        *,
        working_capacity: int = 200,
        working_days: float = 7.0,
    ) -> None:
        if not isinstance(user_id, str) or not user_id.strip():
            raise InputError(f"user_id: expected a name, got {user_id!r}")
        if working_capacity < 1 or not working_days > 0:
            raise InputError(
                f"working_capacity and working_days: expected >= 1 and > 0, got {working_capacity} and {working_days}"
            )
        self.path = Path(path)
        self.user_id = user_id
        self.working_capacity = working_capacity
        self.working_days = working_days
        self._store = Store(self.path / FILE_NAME, rows.MIGRATIONS, kind="memory")
        self._encoder = encoder
        self._cache: EncodingCache | None = None
        self._calibration: Calibration | None = None
        self._view: MemoryView | None = None
        self._lock = threading.RLock()

    @property
    def encoder(self) -> Encoder:
        """The encoder; the default one is opened at the first use."""
        with self._lock:
            if self._encoder is None:
                from ctx_vector.encoders import load_encoder

                self._encoder = load_encoder()
            return self._encoder

    def _edit(self, work: Callable[[Edit], T]) -> T:
        with self._lock:
            if self._cache is None:
                self._cache = EncodingCache(self._store, self.encoder)
            return run_edit(self._store, self._cache, self.user_id, self._current, work)

    def _current(self, conn: sqlite3.Connection) -> MemoryView:
        with self._lock:
            if self._calibration is None:
                from ctx_vector.calibration import load_calibration

                self._calibration = load_calibration(self.encoder)
            if self._view is None:
                check_model(conn, self._store, self.encoder)
            self._view = load_view(conn, self.user_id, self._calibration, self._view)
            return self._view

    # -- adding -----------------------------------------------------------------------------------------------------

    def add(
        self,
        content: str,
        type: str = "episodic",
        importance: float = 0.5,
        timestamp: datetime | str | float | None = None,
        session: str | None = None,
        speaker: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        now: datetime | None = None,
    ) -> str:
        """Remember one thing, and return its id: that of the copy already there, if there is one.

        `timestamp` is when it was said, by default now. Turns of one `session` are added in order of speaking.
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
        return self.add_many([item], now=now)[0]

    def add_many(self, items: Iterable[Mapping[str, Any]], *, now: datetime | None = None) -> list[str]:
        """Remember many things at once, in order of speaking; all of them are there afterwards, or none.

        An item has the keys of `add`. Raises InputError naming the first wrong item.
        """
        moment = _moment(now)
        new: list[NewMemory] = []
        for number, item in enumerate(items):
            try:
                new.append(NewMemory.checked({"timestamp": moment, **{k: v for k, v in item.items() if v is not None}}))
            except InputError as error:
                raise InputError(f"item {number}: {error}") from None
        if not new:
            return []

        def work(edit: Edit) -> list[int]:
            ids = edit.add(new, moment)
            if any(item.type == "working" for item in new):
                self._evict(edit, moment)
            return ids

        return [str(id_) for id_ in self._edit(work)]

    def _evict(self, edit: Edit, now: datetime) -> None:
        """Remove working memories that are too old, then those of least importance, the oldest first, over capacity."""
        working = rows.all_rows(edit.conn, self.user_id, "working")
        oldest = now - timedelta(days=self.working_days)
        gone = [row for row in working if (row.timestamp or row.created) < oldest]
        left = [row for row in working if row not in gone]
        left.sort(key=lambda row: (row.importance, row.timestamp or row.created, row.id))
        gone += left[: max(0, len(left) - self.working_capacity)]
        if gone:
            edit.remove(gone)

    # -- asking -----------------------------------------------------------------------------------------------------

    def search(
        self,
        query: str,
        limit: int = 10,
        *,
        min_importance: float = 0.0,
        type: str | Sequence[str] | None = None,
        min_score: float = 0.0,
        since: datetime | str | float | None = None,
        until: datetime | str | float | None = None,
        now: datetime | None = None,
    ) -> list[MemoryHit]:
        """Return at most `limit` memories with a relevance of at least `min_score`, best first; none for a blank query.

        Equal scores: newer first, then by id. Raises InputError for arguments out of their bounds.
        """
        if not isinstance(query, str):
            raise InputError(f"query: expected a str, got {query!r}")
        if not query.strip():
            return []
        vector = self.encoder.encode_queries([query])[0]
        return self.search_vector(
            query,
            vector,
            limit,
            min_importance=min_importance,
            type=type,
            min_score=min_score,
            since=since,
            until=until,
            now=now,
        )

    def search_vector(
        self,
        query: str,
        vector: NDArray[np.float32],
        limit: int = 10,
        *,
        min_importance: float = 0.0,
        type: str | Sequence[str] | None = None,
        min_score: float = 0.0,
        since: datetime | str | float | None = None,
        until: datetime | str | float | None = None,
        now: datetime | None = None,
    ) -> list[MemoryHit]:
        """Do what `search` does for a query whose unit vector (dim,) the caller has already."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InputError(f"limit: expected an integer >= 1, got {limit!r}")
        check_importance(min_importance, "min_importance")
        check_importance(min_score, "min_score")
        types = [type] if isinstance(type, str) else type
        for name in types or ():
            check_type(name)
        with self._store.read() as conn:
            view = self._current(conn)
            alive = view.alive(_moment(now), self.working_days)
            allowed = view.allowed(
                types=types,
                min_importance=min_importance,
                since=as_utc(since, "since"),
                until=as_utc(until, "until"),
                alive=alive,
            )
            ids, scores = view.search(query, vector, max(_LEAST_CANDIDATES, 4 * limit), allowed)
            passed = np.flatnonzero(scores >= min_score)
            if len(passed) > limit:  # with all that tie with the last one: time decides between them
                last = np.partition(scores[passed], -limit)[-limit]
                passed = passed[scores[passed] >= last]
            found = rows.rows_by_id(conn, self.user_id, ids[passed].tolist())
        vectors = view.rows_of(ids[passed])
        cosines = vectors.astype(np.float64) @ vector.astype(np.float64)
        hits = [
            MemoryHit(found[int(ids[at])], float(scores[at]), float(cosine), row)
            for at, cosine, row in zip(passed, cosines, vectors, strict=True)
        ]
        hits.sort(key=lambda hit: (-hit.score, -_seconds(hit.memory), hit.memory.id))
        return hits[:limit]

    def get(self, memory_id: str | int) -> Row:
        """Return one memory. Raises InputError when this user has none with that id."""
        with self._store.read() as conn:
            return self._known(conn, memory_id)

    def all(self, type: str | None = None) -> list[Row]:
        """Return all of the user's memories, or those of one type, in the order they were added."""
        with self._store.read() as conn:
            return rows.all_rows(conn, self.user_id, check_type(type) if type is not None else None)

    def _known(self, conn: sqlite3.Connection, memory_id: str | int) -> Row:
        try:
            number = int(memory_id)
        except (TypeError, ValueError):
            number = -1
        found = rows.rows_by_id(conn, self.user_id, [number])
        if number not in found:
            raise InputError(f"memory_id: {self.user_id!r} has no memory {memory_id!r}; list them with: memory list")
        return found[number]

    # -- changing ---------------------------------------------------------------------------------------------------

    def update(
        self,
        memory_id: str | int,
        *,
        content: str | None = None,
        type: str | None = None,
        importance: float | None = None,
        timestamp: datetime | str | float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Row:
        """Change a memory and return it; what is not given stays. A new text is encoded, and its neighbours anew."""

        def work(edit: Edit) -> Row:
            row = self._known(edit.conn, memory_id)
            given = {
                "content": content,
                "type": type,
                "importance": importance,
                "timestamp": timestamp,
                "metadata": metadata,
            }
            changed = {key for key, value in given.items() if value is not None}
            old = {key: getattr(row, key) for key in (*given, "session", "speaker")}
            new = NewMemory.checked({**old, **{key: given[key] for key in changed}})
            if changed:
                edit.change(row, **{key: getattr(new, key) for key in changed})
            return self._known(edit.conn, memory_id)

        row = self._edit(work)
        if content is not None:
            self._store.scrub()
        return row

    def remove(self, memory_id: str | int) -> None:
        """Forget one memory, every trace of it. Raises InputError when this user has none with that id."""
        self._edit(lambda edit: edit.remove([self._known(edit.conn, memory_id)]))
        self._store.scrub()

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
        if strategy not in FORGET:
            raise InputError(f"forget strategy: expected one of {', '.join(FORGET)}, got {strategy!r}")
        if strategy == "importance_based":
            check_importance(threshold, "threshold")
        elif strategy == "capacity_based" and (threshold != int(threshold) or threshold < 0):
            raise InputError(f"threshold: expected the number of memories to keep, got {threshold!r}")
        elif not max_age_days >= 0:
            raise InputError(f"max_age_days: expected >= 0, got {max_age_days!r}")
        oldest = _moment(now) - timedelta(days=min(max_age_days, 700_000))

        def work(edit: Edit) -> int:
            known = rows.all_rows(edit.conn, self.user_id)
            if strategy == "importance_based":
                gone = [row for row in known if row.importance < threshold]
            elif strategy == "time_based":
                gone = [row for row in known if (row.timestamp or row.created) < oldest]
            else:
                known.sort(key=lambda row: (-row.importance, -_seconds(row), -row.id))
                gone = known[int(threshold) :]
            if gone:
                edit.remove(gone)
            return len(gone)

        count = self._edit(work)
        if count:
            self._store.scrub()
        return count

    def clear_all(self) -> int:
        """Forget everything of this user, and return how many memories that were."""

        def work(edit: Edit) -> int:
            known = rows.all_rows(edit.conn, self.user_id)
            edit.remove(known)
            return len(known)

        count = self._edit(work)
        self._store.scrub()
        return count

    def consolidate(
        self, from_type: str = "working", to_type: str = "episodic", importance_threshold: float = 0.7
    ) -> int:
        """Turn memories of one type and at least this importance into another type; return how many.

        One that is there already in the other type is merged into that copy.
        """
        check_type(from_type, "from_type")
        check_type(to_type, "to_type")
        check_importance(importance_threshold, "importance_threshold")
        if from_type == to_type:
            raise InputError(f"consolidate: from_type and to_type are both {to_type!r}")

        def work(edit: Edit) -> int:
            known = rows.all_rows(edit.conn, self.user_id, from_type)
            moving = [row for row in known if row.importance >= importance_threshold]
            for row in moving:
                edit.retype(row, to_type)
            return len(moving)

        return self._edit(work)

    # -- looking ----------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return counts by type, sessions, mean importance, first and last time."""
        known = self.all()
        times = sorted(row.timestamp for row in known if row.timestamp)
        return {
            "user_id": self.user_id,
            "memories": len(known),
            "by_type": {name: sum(row.type == name for row in known) for name in TYPES},
            "sessions": len({row.session for row in known if row.session is not None}),
            "mean_importance": round(sum(row.importance for row in known) / len(known), 4) if known else 0.0,
            "first": times[0].isoformat() if times else None,
            "last": times[-1].isoformat() if times else None,
        }

    def summary(self, limit: int = 10) -> str:
        """Return a short text: how many memories of which type, and the most important ones."""
        known = self.all()
        counts = ", ".join(f"{sum(row.type == name for row in known)} {name}" for name in TYPES)
        top = sorted(known, key=lambda row: (-row.importance, -_seconds(row), row.id))[:limit]
        lines = [f"{len(known)} memories ({counts})"]
        lines += [f"- [{row.type}, {row.importance:.2f}] {' '.join(row.content.split())[:120]}" for row in top]
        return "\n".join(lines)

    def export(self) -> Iterator[str]:
        """Yield the user's memories as JSON lines, in order; `import_lines` takes them back."""
        for row in self.all():
            yield json.dumps(row.to_dict(), ensure_ascii=False)

    def import_lines(self, lines: Iterable[str]) -> int:
        """Add memories from JSON lines as `export` gives them; return how many. Raises InputError naming the line."""
        items = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except ValueError as error:
                raise InputError(f"line {number}: not JSON ({error})") from None
            if not isinstance(values, dict):
                raise InputError(f"line {number}: expected a JSON object, got {line[:60]!r}")
            values.pop("id", None)
            if "memory_type" in values:
                values["type"] = values.pop("memory_type")
            items.append(values)
        self.add_many(items)
        return len(items)

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


def _moment(now: datetime | None) -> datetime:
    return as_utc(now, "now") or datetime.now(UTC)


def _seconds(row: Row) -> float:
    return (row.timestamp or row.created).timestamp()
