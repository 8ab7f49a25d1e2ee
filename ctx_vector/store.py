"""One SQLite file that several threads and processes share: the truth behind a knowledge base and a memory.

    Store.read()    a snapshot: everything read inside one `with` belongs together
    Store.write()   a transaction: all of it is there afterwards, or nothing
    Store.scrub()   after a purge: rewrite the file, so that deleted text is in no free page and in no log

The file is in WAL mode, so readers never wait for a writer. Writers take turns by a lock file beside it (and a lock
inside the process), so that SQLite itself never answers "database is locked". `synchronous=FULL`: killing the process
would already be harmless with NORMAL, but a commit here follows an encoder run of tens of milliseconds, so one fsync
more is not felt, and an acknowledged write then survives a power cut too.

Where nothing can be written (an image, a mount for reading) a store can be read: SQLite is told that the file does not
change, and makes no files beside it. When it is replaced all the same, the next `read` opens it anew.

The schema is a list of functions; `PRAGMA user_version` says how many of them a file has seen. They are never edited,
only added to. Every store has the tables of common_tables.py.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import weakref
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ctx_vector import forks
from ctx_vector.errors import CtxVectorError, SchemaError, StoreError

Migration = Callable[[sqlite3.Connection], None]

APPLICATION_ID: Final = 0x43545856  # "CTXV", in the header of every file of ours
IDENTITY: Final = "identity"  # in the table `meta`: a name that the file keeps wherever it is moved
LOCK_SECONDS: Final = 60.0  # how long a writer waits for its turn; a write lasts well under a second
_MAX_IDLE = 8
_LOG_BYTES: Final = 16_000_000  # that the log keeps on disk after a large write, or a long read during many
_NOT_OURS = frozenset({"SQLITE_NOTADB"})
_DAMAGED = frozenset({"SQLITE_CORRUPT", "SQLITE_FORMAT"})
_NO_ROOM = frozenset({"SQLITE_FULL"})
_NO_WRITE = frozenset({"SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH"})

log = logging.getLogger("ctx_vector.store")


class Store:
    """A SQLite file of one `kind`, opened and brought up to date at once; usable from any thread.

    Raises StoreError when the file is not ours, damaged, of another kind, or cannot be made; SchemaError when a newer
    version of this package wrote it. With ``create=False`` a missing file is a StoreError too. `remedy` says what
    comes after deleting a damaged file.
    """

    def __init__(
        self,
        path: Path,
        migrations: Sequence[Migration],
        *,
        kind: str,
        create: bool = True,
        remedy: str = "index again",
    ) -> None:
        self.path = path
        self.kind = kind
        self._remedy = remedy
        self._idle: list[sqlite3.Connection] = []
        self._closed = False
        self.begin_anew()
        weakref.finalize(self, _close_all, self._idle)
        if not create and not path.exists():
            raise StoreError(f"{path} does not exist")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{path.parent} cannot be made: {error.strerror or error}") from None
        self._fixed = cannot_change(path)
        self._stamp = self._stamped()
        forks.register(self)
        try:
            if self._fixed:
                self._check_log()
            self._migrate(migrations)
        except BaseException:
            self.close()
            raise

    def close_idle(self) -> None:
        """Close the connections that nobody uses; others are opened when they are needed."""
        with self._pool_lock:
            _close_all(self._idle)

    def begin_anew(self) -> None:
        """Begin with the locks of this process, and without a connection."""
        self._process = os.getpid()
        self._pool_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._writer = 0  # the thread whose turn it is

    # -- opening ------------------------------------------------------------------------------------------------

    def _stamped(self) -> tuple[int, int] | None:
        """Return by what one sees that a file that does not change was replaced; None for any other."""
        if not self._fixed:
            return None
        try:
            found = self.path.stat()
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error.strerror or error}") from None
        return found.st_mtime_ns, found.st_size

    def _check_log(self) -> None:
        wal = self.path.with_name(self.path.name + "-wal")
        if wal.exists() and wal.stat().st_size:
            raise StoreError(
                f"{self.path} is or was in use: what stands in {wal.name} cannot be taken in where nothing can be "
                "written; close it there, or open it once where it can be written, and copy it again"
            )

    def _migrate(self, migrations: Sequence[Migration]) -> None:
        with self._connection() as conn:
            if self._schema(conn, len(migrations)) == len(migrations):
                return
            with self._turn():
                # another process may have done it while this one waited
                done = self._schema(conn, len(migrations))
                if done == 0:
                    conn.execute("PRAGMA journal_mode=WAL")
                conn.execute("BEGIN IMMEDIATE")
                try:
                    for number, migration in enumerate(migrations[done:], done + 1):
                        migration(conn)
                        conn.execute(f"PRAGMA user_version={number}")
                    conn.execute(f"PRAGMA application_id={APPLICATION_ID}")
                    conn.execute("INSERT OR IGNORE INTO meta VALUES ('kind', ?)", (self.kind,))
                    conn.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (IDENTITY, os.urandom(16).hex()))
                    conn.execute("COMMIT")
                except BaseException:
                    if conn.in_transaction:
                        conn.execute("ROLLBACK")
                    raise

    def _schema(self, conn: sqlite3.Connection, known: int) -> int:
        """Return how many migrations the file has seen, after checking that it is ours."""
        conn.execute("BEGIN")  # one snapshot: another process may be making the file at this moment
        try:
            version = int(conn.execute("PRAGMA user_version").fetchone()[0])
            application = int(conn.execute("PRAGMA application_id").fetchone()[0])
            tables = int(conn.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
            if application == APPLICATION_ID and version <= known:
                row = conn.execute("SELECT value FROM meta WHERE key = 'kind'").fetchone()
                if row is not None and row[0] != self.kind:
                    raise StoreError(f"{self.path} holds a {row[0]}, not a {self.kind}; choose another folder")
        finally:
            conn.execute("COMMIT")
        if application != APPLICATION_ID and (tables or version or application):
            raise StoreError(f"{self.path} is a database of another program; choose another folder")
        if version > known:
            raise SchemaError(
                f"{self.path} has schema {version}, this version of ctx_vector knows schemas up to {known}; "
                "upgrade with: pip install -U ctx_vector"
            )
        return version

    def _connect(self) -> sqlite3.Connection:
        # the pool hands a connection to one thread at a time, which is all that SQLite asks for
        conn = sqlite3.connect(
            f"{self.path.resolve().as_uri()}?immutable=1" if self._fixed else self.path,
            uri=self._fixed,
            timeout=LOCK_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
        )
        try:
            conn.execute("PRAGMA foreign_keys=ON")
            conn.execute("PRAGMA secure_delete=ON")
            conn.execute("PRAGMA synchronous=FULL")
            conn.execute("PRAGMA cache_size=-16384")
            conn.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
        except UnicodeDecodeError as error:  # what SQLite says of a damaged schema quotes it
            conn.close()
            raise self._damaged(str(error)) from error
        except BaseException:
            conn.close()
            raise
        return conn

    @contextmanager
    def _connection(self) -> Generator[sqlite3.Connection]:
        """Lend a connection, and say in our words what SQLite complains about."""
        with forks.in_use():
            process = self._process
            with self._pool_lock:
                if self._closed:
                    raise StoreError(f"{self.path} was closed")
                if self._fixed and (stamp := self._stamped()) != self._stamp:
                    self._stamp = stamp
                    _close_all(self._idle)
                conn = self._idle.pop() if self._idle else None
            try:
                conn = conn or self._connect()
                yield conn
            except sqlite3.Error as error:
                raise self._explained(error) from error
            finally:
                if conn is not None:
                    with self._pool_lock:
                        usable = not self._closed and process == self._process and not conn.in_transaction
                        keep = usable and len(self._idle) < _MAX_IDLE
                        if keep:
                            self._idle.append(conn)
                    if not keep:
                        conn.close()

    def _explained(self, error: sqlite3.Error) -> StoreError:
        name = getattr(error, "sqlite_errorname", "") or ""
        base = "_".join(name.split("_")[:2])
        if base in _NO_ROOM:
            return StoreError(
                f"{self.path} cannot grow: {error}. Nothing that was acknowledged is lost; make room and run it again"
            )
        if base in _NOT_OURS:
            return StoreError(f"{self.path} is not a ctx_vector store ({error}); choose another folder, or delete it")
        if base in _DAMAGED:
            return self._damaged(str(error))
        if base in _NO_WRITE:
            return StoreError(f"{self.path} cannot be opened or written: {error}; check the permissions of its folder")
        if base == "SQLITE_IOERR":
            return StoreError(
                f"{self.path} cannot be read or written: {error} ({name}); is the disk full, or a size limit reached? "
                "Nothing that was acknowledged is lost"
            )
        if base in ("SQLITE_BUSY", "SQLITE_LOCKED"):
            return StoreError(f"{self.path}: {error}; another program keeps it locked: close that, and try again")
        return StoreError(f"{self.path}: {error} ({name or type(error).__name__})")

    def _damaged(self, how: str) -> StoreError:
        return StoreError(f"{self.path} is damaged ({how}); restore it from a backup, or delete it and {self._remedy}")

    # -- taking turns -------------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self) -> Generator[None]:
        if self._writer == threading.get_ident():
            raise RuntimeError("a write inside a write of the same store would wait for itself")
        if self._fixed:
            raise StoreError(f"{self.path} can only be read: nothing can be written to its folder")
        with self._write_lock, file_lock(self, self.path.with_name(self.path.name + ".lock"), LOCK_SECONDS):
            self._writer = threading.get_ident()
            try:
                yield
            finally:
                self._writer = 0

    @contextmanager
    def read(self) -> Generator[sqlite3.Connection]:
        """Lend a connection inside one snapshot; other writers are not seen until the next `read`."""
        with self._connection() as conn:
            conn.execute("BEGIN")
            try:
                yield conn
            finally:
                if conn.in_transaction:
                    conn.execute("COMMIT")

    @contextmanager
    def write(self) -> Generator[sqlite3.Connection]:
        """Lend a connection inside one transaction, committed at the end, rolled back by any exception.

        Not to be nested. Raises StoreError when the disk is full or another process keeps the file for a minute.
        """
        with self._turn(), self._connection() as conn:
            conn.execute("BEGIN IMMEDIATE")
            try:
                yield conn
                conn.execute("COMMIT")
            except BaseException:
                if conn.in_transaction:
                    conn.execute("ROLLBACK")
                raise

    @contextmanager
    def decoding(self) -> Generator[None]:
        """Say that the file is damaged when what was read from it makes no sense: SQLite keeps no checksums.

        For code of this package alone: in a caller's function the same errors mean something else.
        """
        try:
            yield
        except CtxVectorError:
            raise
        except (ValueError, LookupError, TypeError, ArithmeticError, zlib.error) as error:
            raise self._damaged(f"{type(error).__name__}: {error}") from error

    # -- upkeep -------------------------------------------------------------------------------------------------

    def scrub(self) -> bool:
        """Rewrite the file so that nothing deleted is left in it or in its log; return whether the log is empty.

        `secure_delete` alone is not enough: when SQLite moves rows between pages, the gaps keep old bytes. The log
        cannot be emptied while a reader holds an older snapshot; it then is by the next call, or the last close.
        """
        with self._turn(), self._connection() as conn:
            conn.execute("VACUUM")
            busy = conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:
            log.warning("%s: another process is reading; its log is emptied when that ends", self.path)
        return not busy

    def check(self) -> list[str]:
        """Return what SQLite finds wrong with the file: damaged pages, rows that point nowhere. Empty is good."""
        try:
            with self._connection() as conn:
                found = [str(row[0]) for row in conn.execute("PRAGMA integrity_check(20)")]
                problems = [] if found == ["ok"] else found
                for table, rowid, parent, _ in conn.execute("PRAGMA foreign_key_check").fetchmany(20):
                    problems.append(f"row {rowid} of {table} points to a missing row of {parent}")
                return problems
        except StoreError as error:
            return [str(error)]

    def close(self) -> None:
        """Close every connection; those lent at this moment close when they come back."""
        with self._pool_lock:
            self._closed = True
            _close_all(self._idle)  # the finalizer may have had its turn: at the end of a process, while a thread wrote


def cannot_change(path: Path) -> bool:
    """Tell whether a file of SQLite is where nothing can be written, so that it can only be read."""
    return path.is_file() and not os.access(path.parent, os.W_OK)


def _close_all(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()


@contextmanager
def file_lock(owner: Store, path: Path, seconds: float, what: str = "writing to") -> Generator[None]:
    """Hold the lock file `path`, waiting at most `seconds` (negative: for ever); the system frees it after a kill.

    Raises StoreError naming `owner`'s file when the time is over or the lock file cannot be made.
    """
    from filelock import FileLock, Timeout

    held = FileLock(path, timeout=seconds, thread_local=False)
    try:
        try:
            held.acquire(timeout=0)
        except Timeout:
            log.log(
                logging.INFO if seconds < 0 else logging.DEBUG, "waiting: another process is %s %s", what, owner.path
            )
            held.acquire()
    except Timeout:
        raise StoreError(
            f"another process has been {what} {owner.path} for {seconds:g} seconds; try again when it has finished"
        ) from None
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None
    try:
        yield
    finally:
        held.release()
