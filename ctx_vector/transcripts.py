"""Conversations word for word, in order, by session: what a chat program shows, where a memory keeps what matters.

with Transcripts("memory") as kept:
    kept.append("s1", [{"role": "user", "content": "Yes."}])
    kept.read("s1")                  # the same dicts; equal messages stay several messages
    kept.delete("s1")                # no trace is left
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from ctx_vector.common_tables import common_tables
from ctx_vector.errors import InputError
from ctx_vector.store import Migration, Store
from ctx_vector.values import clean_text

FILE_NAME: Final = "transcripts.sqlite3"


def _m001(conn: sqlite3.Connection) -> None:
    common_tables(conn)
    conn.execute(
        "CREATE TABLE said (id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, message TEXT NOT NULL)"
    )
    conn.execute("CREATE INDEX said_session ON said (session, id)")


MIGRATIONS: Final[tuple[Migration, ...]] = (_m001,)


class Transcripts:
    """The conversations in the folder `path`, which is made when absent; threads and processes may share it.

    Raises StoreError when the folder holds something else, SchemaError when a newer version of this package wrote it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._store = Store(Path(path) / FILE_NAME, MIGRATIONS, kind="transcripts")

    def append(self, session: str, messages: Iterable[Mapping[str, Any]]) -> None:
        """Add messages to the end of a session, all or none. Raises InputError for what JSON cannot hold."""
        name = _session(session)
        try:
            rows = [
                (name, clean_text(json.dumps(dict(item), ensure_ascii=False, allow_nan=False))) for item in messages
            ]
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"message: expected values that JSON can hold: {error}") from None
        if rows:
            with self._store.write() as conn:
                conn.executemany("INSERT INTO said (session, message) VALUES (?, ?)", rows)

    def read(self, session: str) -> list[dict[str, Any]]:
        """Return the messages of a session, oldest first; none for one that is not known."""
        with self._store.read() as conn:
            rows = conn.execute("SELECT message FROM said WHERE session = ? ORDER BY id", (_session(session),))
            return [json.loads(message) for (message,) in rows]

    def sessions(self) -> list[str]:
        """Return the names of all sessions, the one that was added to last first."""
        with self._store.read() as conn:
            rows = conn.execute("SELECT session FROM said GROUP BY session ORDER BY max(id) DESC")
            return [name for (name,) in rows]

    def delete(self, session: str) -> int:
        """Delete a session, every trace of it, and return how many messages that were."""
        with self._store.write() as conn:
            gone = conn.execute("DELETE FROM said WHERE session = ?", (_session(session),)).rowcount
        if gone:
            self._store.scrub()
        return gone

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _session(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"session: expected a name, got {value!r:.80}")
    return clean_text(value)
