"""The audit: every build recorded, to be listed, shown, made again with the same bytes, and compared.

    log = AuditLog("audit.sqlite3", max_age="90d", max_size="1GB")
    builder = ContextBuilder(audit=log)            # or a path
    built = builder.assemble("...")
    log.flush()                                     # now it is on disk
    log.list(limit=5); log.show(id); log.replay(id); log.diff(a, b); log.stats(since="7d")

Recording takes a few microseconds of a build; a thread writes (audit_writer.py). Nothing that goes wrong with the file
fails a build: it is logged, and raised where somebody asks (`flush`, and whatever reads).

A build is named by its id or the first characters of it, at least four, or by ``last``.
"""

from __future__ import annotations

import json
import os
import sqlite3
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from ctx_vector import audit_purge
from ctx_vector import audit_tables as tables
from ctx_vector.audit_bounds import Since, bytes_of, moment_of, span_of
from ctx_vector.audit_compare import BuildDiff, diff
from ctx_vector.audit_decode import LISTED, BuildRecord, decode, gone, listed
from ctx_vector.audit_encode import Entry
from ctx_vector.audit_replay import Replay, regathered, repeated
from ctx_vector.audit_stats import statistics
from ctx_vector.audit_writer import Writer
from ctx_vector.built import BuiltContext
from ctx_vector.errors import InputError, StoreError
from ctx_vector.rules import check_count
from ctx_vector.store import Store

if TYPE_CHECKING:
    from ctx_vector.builder import ContextBuilder
    from ctx_vector.stages import TokenCounter

FILE_NAME: Final = "audit.sqlite3"
LAST: Final = "last"
_LEAST_ID: Final = 4
Rows = list[dict[str, Any]]  # `list` is a method below


class AuditLog:
    """The audit in the SQLite file `path`, made when the first build is written.

    `max_age` (``"90d"``, a timedelta, seconds) and `max_size` (``"500MB"``, bytes; at least 1 MB) bound what is kept:
    the oldest builds go. `redact` is applied to every text before it is stored, but not to names (of sessions, sources,
    roles, documents as sources name them). One object may be shared by threads and builders, one file by processes;
    after a fork the child records with a thread of its own.

    Close it, use it in a ``with``, or leave that to the end of the process: nothing is lost at a clean exit.

    Raises InputError for bounds that make no sense. A file that is damaged or of a newer version is told by a WARNING
    when builds are recorded, and raised as StoreError or SchemaError by whatever reads.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_age: str | float | timedelta | None = None,
        max_size: str | int | None = None,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        self.path = Path(path)
        self.max_age = span_of(max_age, "max_age")
        self.max_size = bytes_of(max_size)
        if redact is not None and not callable(redact):
            raise InputError(f"redact: expected a function from text to text, got {redact!r:.80}")
        self._writer = Writer(self.path, max_age=self.max_age, max_size=self.max_size, redact=redact)
        self._finalizer = weakref.finalize(self, self._writer.close)  # also at the end of the process
        self._reader: Store | None = None
        self._inherited: Store | None = None  # of the parent process: never to be closed here
        self._pid = os.getpid()

    # -- recording ----------------------------------------------------------------------------------------------------

    def record(self, built: BuiltContext, *, variant: str | None = None, user_id: str | None = None) -> str:
        """Have a build recorded, and return its id. A builder with `audit=` does this itself.

        `variant` is a name to tell the arms of an experiment apart, `user_id` whose build it is. Never waits for the
        disk.
        """
        if built.trace is None:
            raise InputError("record: expected what ContextBuilder.assemble returned, got a context without its trace")
        self._writer.put(Entry.of(built, variant, user_id))
        return str(built.meta["build_id"])

    def flush(self, timeout: float | None = 60.0) -> None:
        """Wait until every build recorded before is on disk, at most `timeout` seconds.

        Raises StoreError when that is not possible now (it will be tried again), or when a build was lost because the
        queue was full.
        """
        self._writer.flush(timeout)

    def feedback(self, id: str, value: float, note: str = "", *, variant: str | None = None) -> None:
        """Attach what somebody said of a build: a number, such as 1 for good and 0 for bad, and words.

        `variant` defaults to that of the build.
        """
        if isinstance(value, bool):
            value = int(value)
        if not isinstance(value, (int, float)) or not -1e9 <= value <= 1e9:
            raise InputError(f"value: expected a number, got {value!r:.40}")
        if not isinstance(note, str):
            raise InputError(f"note: expected a text, got {note!r:.40}")
        whole = self.resolve(id)
        with self._store().write() as conn:
            known = conn.execute("SELECT variant FROM context_logs WHERE id = ?", (whole,)).fetchone()
            if known is None:
                raise gone(whole)
            at = datetime.now(UTC).isoformat(timespec="microseconds")
            conn.execute(
                "INSERT INTO feedback (build, at, value, note, variant) VALUES (?, ?, ?, ?, ?)",
                (whole, at, value, self._writer.clean(note), variant or known[0]),
            )

    # -- reading ------------------------------------------------------------------------------------------------------

    def said(self, variant: str) -> Rows:
        """Return all feedback on the builds of a variant, as it came in: build, session, at, value, note."""
        with self._read() as conn:
            rows = conn.execute(
                "SELECT f.build, l.session_id, f.at, f.value, f.note FROM feedback f "
                "JOIN context_logs l ON l.id = f.build WHERE l.variant = ? ORDER BY f.at, f.id",
                (variant,),
            ).fetchall()
        return [dict(zip(("build", "session", "at", "value", "note"), row, strict=True)) for row in rows]

    def list(
        self,
        session: str | None = None,
        limit: int = 5,
        *,
        before: str | None = None,
        search: str | None = None,
        variant: str | None = None,
        since: Since = None,
        user_id: str | None = None,
    ) -> Rows:
        """Return the newest builds first, at most `limit`, as JSON-ready rows.

        `before` goes on after the build with this id: the last one of the page before. `search` looks for a text in the
        queries, upper and lower case alike in ASCII. `user_id` lists only what was recorded as that
        user's. Rows have the keys of `audit_decode.LISTED`, and query, sources (what each source got) and feedback
        (count and mean value).
        """
        check_count(limit, "limit")
        older = "(created_at, number) < (SELECT created_at, number FROM context_logs WHERE id = ?)"
        last = None if before is None else self.resolve(before)
        where, values = _where({**_which(session, search, variant, since, user_id), older: last})
        with self._read() as conn:
            names = ", ".join(f"l.{name}" for name in LISTED)
            found = conn.execute(
                f"SELECT {names}, c.text, c.state, l.source_stats FROM context_logs l "
                f"JOIN contents c ON c.id = l.query_id {where} "
                "ORDER BY l.created_at DESC, l.number DESC LIMIT ?",
                (*values, limit),
            ).fetchall()
            rows = []
            for row in found:
                *known, query, state, sources = row
                rows.append(listed(dict(zip(LISTED, known, strict=True))))
                rows[-1]["query"] = tables.PURGED if state == tables.GONE else query
                rows[-1]["sources"] = json.loads(sources)
                count, mean = conn.execute(
                    "SELECT count(*), avg(value) FROM feedback WHERE build = ?", (rows[-1]["id"],)
                ).fetchone()
                rows[-1]["feedback"] = {"count": count, "mean": mean}
        return rows

    def count(
        self,
        session: str | None = None,
        *,
        search: str | None = None,
        variant: str | None = None,
        since: Since = None,
    ) -> int:
        """Return how many builds `list` would find in all."""
        where, values = _where(_which(session, search, variant, since))
        joined = "JOIN contents c ON c.id = l.query_id" if search is not None else ""
        with self._read() as conn:
            row = conn.execute(f"SELECT count(*) FROM context_logs l {joined} {where}", values).fetchone()
        return int(row[0])

    def sessions(self, limit: int = 100) -> Rows:
        """Return the sessions with the newest builds first: session, builds, first and last time."""
        with self._read() as conn:
            rows = conn.execute(
                "SELECT session_id, count(*), min(created_at), max(created_at) FROM context_logs "
                "WHERE session_id IS NOT NULL GROUP BY session_id ORDER BY 4 DESC LIMIT ?",
                (limit,),
            ).fetchall()
        return [dict(zip(("session", "builds", "first", "last"), row, strict=True)) for row in rows]

    def show(self, id: str, *, user_id: str | None = None) -> BuildRecord:
        """Return one build with everything that was recorded; with a `user_id` only one of that user's.

        Raises InputError when there is none with this id.
        """
        whole = self.resolve(id, user_id=user_id)
        with self._read() as conn:
            return decode(conn, whole)

    def replay(self, id: str, *, live: ContextBuilder | None = None, counter: TokenCounter | None = None) -> Replay:
        """Make a build again and compare: by default from what was recorded, whatever the sources are now.

        With ``live=builder``, retrieval asks that builder's sources again, with its config, and everything is scored
        anew; the conversation and what the caller gave are those recorded. `counter` is the tokenizer, when it was an
        object of the caller's. When a text was purged, there is no repeat, and the answer says what is missing.
        """
        record = self.show(id)
        return repeated(record, counter) if live is None else regathered(record, live)

    def diff(self, a: str, b: str) -> BuildDiff:
        """Return what came, went, moved and was shortened from build `a` to build `b`."""
        return diff(self.show(a).built, self.show(b).built)

    def stats(self, since: Since = "7d") -> dict[str, Any]:
        """Return counts, mean size, shares of sources and warnings for the builds since a time.

        `since` is a length of time before now (``7d``, ``12h``), a time, or None for all; it is rounded down to the
        minute. Keys: since, builds, mean_tokens, usage_rate (of the budgets), trim_rate (builds in which anything was
        shortened or left out for lack of room), fault_rate, mean_ms, not_recorded, sources, warnings, bytes.
        """
        with self._read() as conn:
            found = statistics(conn, since, datetime.now(UTC))
        return {**found, "bytes": tables.size_of(self._store())}

    def resolve(self, id: str, *, user_id: str | None = None) -> str:
        """Return the whole id of a build from its beginning, or of the last build, of all or of one user's.

        Raises InputError when there is none, or more than one.
        """
        if not isinstance(id, str) or not id.strip():
            raise InputError(f"id: expected the id of a build, its first characters, or {LAST!r}, got {id!r:.40}")
        whose = {"user_id = ?": user_id}
        with self._read() as conn:
            if id == LAST:
                where, values = _where(whose)
                newest = f"SELECT id FROM context_logs {where} ORDER BY created_at DESC, number DESC LIMIT 1"
                rows = conn.execute(newest, values).fetchall()
            elif len(id) < _LEAST_ID:
                raise InputError(f"id: expected at least {_LEAST_ID} characters, got {id!r}")
            else:
                where, values = _where({"id >= ?": id.lower(), "id < ? || 'z'": id.lower(), **whose})
                rows = conn.execute(f"SELECT id FROM context_logs {where} LIMIT 3", values).fetchall()
        if not rows:
            raise InputError(f"id: {self.path} has no build {id!r:.40}; ctx-vector audit list shows those there are")
        if len(rows) > 1:
            raise InputError(f"id: {id!r} is the beginning of more than one build; give more of it")
        return str(rows[0][0])

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def purge(self, *texts: str, session: str | None = None, builds: Sequence[str] = (), before: Since = None) -> int:
        """Delete for good, from the file and its log, and return how many builds that touched.

        `texts` go wherever they stand, with what was rendered from them; the builds stay, and show "(purged)". Builds
        of a `session`, or with the ids `builds`, or made `before` a time go wholly. What is purged from a KnowledgeBase
        or a Memory goes by itself.
        """
        if not (texts or session is not None or builds or before is not None):
            raise InputError("purge: nothing to purge; give texts, session, builds or before")
        whole = [self.resolve(id) for id in builds]
        moment = moment_of(before, datetime.now(UTC), "before")
        store = self._store()
        touched = tables.delete_builds(
            store, session, whole, moment.isoformat(timespec="microseconds") if moment else ""
        )
        if texts:
            touched += audit_purge.purge(self.path, [], texts)
        return touched

    def verify(self) -> Sequence[str]:
        """Return what is wrong with the file; empty is good."""
        return self._store().check()

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._finalizer()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _store(self) -> Store:
        """Return the file for reading, with everything in it that this object has recorded."""
        self._writer.settle()
        if self._pid != os.getpid():
            self._inherited, self._reader = self._reader, None
        if self._reader is None:
            if not self.path.exists():
                raise StoreError(f"there is no audit at {self.path}; a builder with audit={str(self.path)!r} makes one")
            self._reader, self._pid = tables.open_audit(self.path, create=False), os.getpid()
        return self._reader

    @contextmanager
    def _read(self) -> Generator[sqlite3.Connection]:
        store = self._store()
        with store.decoding(), store.read() as conn:
            yield conn


def _which(
    session: str | None, search: str | None, variant: str | None, since: Since, user_id: str | None = None
) -> dict[str, Any]:
    """Return the conditions on builds as SQL, each with its value; None is no condition."""
    pattern = None
    if search is not None:
        pattern = "%" + search.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
    moment = moment_of(since, datetime.now(UTC))
    return {
        "l.session_id = ?": session,
        "c.text LIKE ? ESCAPE '\\'": pattern,
        "l.variant = ?": variant,
        "l.user_id = ?": user_id,
        "l.created_at >= ?": None if moment is None else moment.isoformat(timespec="microseconds"),
    }


def _where(conditions: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return the WHERE of those conditions that have a value, and the values."""
    kept = {sql: value for sql, value in conditions.items() if value is not None}
    return (f"WHERE {' AND '.join(kept)}" if kept else ""), list(kept.values())
