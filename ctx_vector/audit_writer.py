"""The thread that writes builds into an audit, so that a build never waits for a disk and never fails for one.

    put      never blocks: a build goes into a queue, and the thread is woken
    flush    waits until everything that was put before is on disk; says what went wrong if it is not
    close    flushes, and ends the thread

Builds are written in batches, a transaction each. When writing fails (a full disk, a locked or damaged file), a WARNING
says so once, the builds wait, and it is tried again after a while that doubles up to half a minute. The queue is
bounded in builds and characters: what comes when it is full is not recorded, which a WARNING, the next `flush` and the
table `gaps` say.

After a fork the child begins with an empty queue, a thread and connections of its own: what was waiting is the
parent's to write.
"""

from __future__ import annotations

import itertools
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from ctx_vector import audit_tables as tables
from ctx_vector.audit_encode import Entry, encode
from ctx_vector.audit_keeper import Keeper, Redact
from ctx_vector.audit_stats import MINUTES_KEPT, add_sums, sums_of
from ctx_vector.errors import CtxVectorError, StoreError
from ctx_vector.store import Store

#: How many builds, and how many characters of theirs, wait at most.
MOST_WAITING: Final = 2_000
MOST_CHARS: Final = 64_000_000
_BATCH: Final = 64
# what waits is written when no build came for a moment, at the latest after a second: the thread then seldom takes
# processor time from builds that follow each other
_QUIET_SECONDS: Final = 0.1
_LONGEST_SECONDS: Final = 1.0
_FIRST_RETRY: Final = 0.25
_LAST_RETRY: Final = 30.0
_ROTATE_SECONDS: Final = 60.0
# what a build can raise that is at fault itself: it was recorded before, or somebody put into it what cannot be stored
_ITS_OWN: Final = (
    sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError,
    CtxVectorError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError,
)  # fmt: skip

log = logging.getLogger("ctx_vector.audit")


class Writer:
    """Writes the builds of one AuditLog. `max_age` and `max_size` (bytes) bound what the file keeps."""

    def __init__(self, path: Path, *, max_age: timedelta | None, max_size: int | None, redact: Redact | None) -> None:
        self.path = path
        self._max_age = max_age
        self._max_size = max_size
        self._redact = redact
        self._inherited: list[object] = []  # of the parent process: never to be closed here
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._wake = threading.Condition()
        self._writing = threading.Lock()
        self._waiting: deque[Entry] = deque()
        self._chars = 0
        self._accepted = self._settled = 0  # how many were put, and how many of these are dealt with
        self._attempts = self._failed = 0  # the number of the last attempt, and of the last one that failed
        self._hurry = False
        self._closing = False
        self._refused = 0  # since the last time it was told
        self._unrecorded = 0  # since the table `gaps` was written
        self._error = ""
        self._thread: threading.Thread | None = None
        self._store: Store | None = None
        self._keeper = Keeper(self.path, self._redact)
        self._rotated = float("-inf")

    def _own(self) -> None:
        """Begin anew in a child process."""
        if self._pid != os.getpid():
            self._inherited += [self._wake, self._writing, self._thread, self._store]
            self._begin()

    # -- for the threads that build ------------------------------------------------------------------------------------

    def put(self, entry: Entry) -> None:
        """Have a build written. Never blocks, never raises."""
        self._own()
        with self._wake:
            if self._closing:
                log.warning("the audit %s is closed; a build is not recorded", self.path)
                return
            full = len(self._waiting) >= MOST_WAITING or self._chars + entry.size > MOST_CHARS
            if full and self._waiting:
                self._refuse(1, self._error or "builds come faster than they can be written")
                return
            self._waiting.append(entry)
            self._chars += entry.size
            self._accepted += 1
            if self._thread is None or not self._thread.is_alive():
                self._start()
            elif len(self._waiting) == 1:
                self._wake.notify_all()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"audit {self.path.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending: `close` writes what waits
            log.warning("the audit %s cannot start its thread yet (%s)", self.path, error)
        else:
            self._thread = thread

    def _refuse(self, count: int, reason: str) -> None:
        if not self._unrecorded:
            log.warning("the audit %s is not recording: %s", self.path, reason)
        self._refused += count
        self._unrecorded += count

    def settle(self, timeout: float = 10.0) -> None:
        """Wait as `flush` does, but leave what goes wrong to the log: what is on disk can be read all the same."""
        self._own()
        with self._wake:
            goal, attempts = self._accepted, self._attempts
        try:
            while not self._wait_for(goal, attempts, time.monotonic() + timeout):
                self._step()
        except StoreError as error:
            log.warning("the audit %s is read without the newest builds: %s", self.path, error)

    def clean(self, text: str) -> str:
        """Return a text as it may be stored."""
        return self._keeper.clean(text)

    def flush(self, timeout: float | None = 60.0) -> None:
        """Wait until every build put before is on disk; tried at once, also while retries wait.

        Raises StoreError when it cannot be written now, or when builds were refused since the last flush.
        """
        self._own()
        end = None if timeout is None else time.monotonic() + timeout
        with self._wake:
            goal, attempts = self._accepted, self._attempts
        while not self._wait_for(goal, attempts, end):
            self._step()  # there is no thread to do it
        with self._wake:
            count, self._refused = self._refused, 0
        if count:
            raise StoreError(f"{count} builds were not recorded; the log says why")

    def _wait_for(self, goal: int, attempts: int, end: float | None) -> bool:
        """Wait for the thread; False when there is none."""
        with self._wake:
            while self._settled < goal:
                waiting = f"{goal - self._settled} builds are not recorded yet"
                if self._failed > attempts:  # an attempt that began after the call
                    raise StoreError(f"{waiting}: {self._error}")
                if self._thread is None or not self._thread.is_alive():
                    return False
                self._hurry = True
                self._wake.notify_all()
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise StoreError(f"{waiting}: {self._error or f'{self.path} is busy'}")
                self._wake.wait(left)
            return True

    def close(self, timeout: float | None = 10.0) -> None:
        """Write what waits, and end the thread. What cannot be written in `timeout` seconds is lost, with a WARNING."""
        if self._pid != os.getpid():  # a child that never recorded has nothing to close
            return
        if self._thread is threading.current_thread():  # the log was garbage: the thread ends by itself
            self._closing = True
            return
        try:
            self.flush(timeout)
        except StoreError as error:
            log.warning("the audit %s is closed, but %s", self.path, error)
        with self._wake:
            self._closing = True
            self._waiting.clear()
            self._wake.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout)
        if self._store is not None:
            self._store.close()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        delay = _FIRST_RETRY
        while True:
            with self._wake:
                while not self._waiting and not self._closing:
                    self._hurry = False
                    self._wake.wait()
                if not self._waiting:
                    return
                self._gather()
            if self._step():
                delay = _FIRST_RETRY
                continue
            with self._wake:
                if self._closing:
                    return
                self._hurry = False
                self._wake.wait(delay)
            delay = min(_LAST_RETRY, 2 * delay)

    def _gather(self) -> None:
        """Wait for more builds, as long as they keep coming; the lock is held."""
        end = time.monotonic() + _LONGEST_SECONDS
        count = 0
        while count != len(self._waiting) < _BATCH and not self._hurry and not self._closing:
            count = len(self._waiting)
            self._wake.wait(_QUIET_SECONDS)
            if time.monotonic() > end:
                break

    def _step(self) -> bool:
        """Write a batch of what waits; return whether that went well."""
        with self._writing:
            with self._wake:
                batch, lost = list(itertools.islice(self._waiting, _BATCH)), self._unrecorded
                self._attempts += 1
                attempt = self._attempts
            problem = ""
            try:
                if batch:
                    self._write(batch, lost)
            except StoreError as error:
                self._keeper.forget()
                problem = str(error)
            except Exception as error:  # a fault of ours must not end the thread, or nothing would be recorded any more
                self._keeper.forget()
                problem = f"unexpected {type(error).__name__}: {error}"
                log.debug("the audit failed", exc_info=True)
            with self._wake:
                if problem:
                    self._failed = attempt
                    if problem != self._error:
                        log.warning("the audit cannot be written, %d builds wait: %s", len(self._waiting), problem)
                else:
                    if self._error:
                        log.warning("the audit %s is written again", self.path)
                    for entry in batch[: len(self._waiting)]:  # `close` may have given them up meanwhile
                        self._waiting.popleft()
                        self._chars -= entry.size
                    self._settled += len(batch)
                    self._unrecorded -= lost
                self._error = problem
                self._wake.notify_all()
        return not problem

    # -- writing -------------------------------------------------------------------------------------------------------

    def _open(self) -> Store:
        if self._store is None:
            self._store = tables.open_audit(self.path)
        return self._store

    def _write(self, batch: Sequence[Entry], lost: int) -> None:
        store = self._open()
        self._keeper.tell_stores(item.origin for entry in batch for item in entry.built.trace.gathered.candidates)
        began = min(entry.built.trace.started for entry in batch)
        failed = 0
        with store.write() as conn:
            self._keeper.open(conn)
            purges = conn.execute("SELECT at, key FROM purges WHERE at >= ?", (began,)).fetchall()
            written = []
            for entry in batch:
                purged = frozenset(key for at, key in purges if at >= entry.built.trace.started)
                try:
                    columns = encode(entry, self._keeper, purged)
                    known = ", ".join(columns)
                    marks = ", ".join("?" * len(columns))
                    conn.execute(f"INSERT INTO context_logs ({known}) VALUES ({marks})", tuple(columns.values()))
                except _ITS_OWN as error:  # a build that cannot be written must not keep the others from being written
                    log.warning("a build is not recorded: %s: %s", type(error).__name__, error)
                    failed += 1
                else:
                    written.append((entry, columns))
            add_sums(conn, sums_of(written))
            if lost + failed:
                now = datetime.now(UTC).isoformat(timespec="microseconds")
                conn.execute("INSERT INTO gaps VALUES (?, ?, ?)", (now, lost + failed, self._error or "see the log"))
        self._rotate(store)

    def _rotate(self, store: Store) -> None:
        """Keep the file within its bounds, now and then, or when it has come near."""
        if self._max_age is None and self._max_size is None:
            return
        due = time.monotonic() - self._rotated > _ROTATE_SECONDS
        if not due and (self._max_size is None or tables.size_of(store) < 0.9 * self._max_size):
            return
        self._rotated = time.monotonic()
        now = datetime.now(UTC)
        before = (now - self._max_age).isoformat(timespec="microseconds") if self._max_age is not None else None
        minutes = int((now - MINUTES_KEPT).timestamp())
        tables.rotate(store, before, self._max_size, minutes)
