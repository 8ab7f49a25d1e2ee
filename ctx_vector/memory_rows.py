"""How memories lie in SQLite: one table for all users, and what a reader has to hear of changes.

A memory has two encodings: its text alone, and its text with its neighbours in the session (dialogue.py). `generation`
counts changes; `changed` of a row and the table `gone` say what happened after which generation, so that a view in
memory reads only that. Everything is asked for by user: no statement here finds a row of another one. Vectors are found
by the hash of their text, and are shared by users who have the same text.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from ctx_vector.common_tables import common_tables, get_meta, set_meta
from ctx_vector.dialogue import NEIGHBOURS, alone_text, around_text
from ctx_vector.errors import InputError
from ctx_vector.memory_same import fold_turn
from ctx_vector.rules import check_share
from ctx_vector.store import Migration
from ctx_vector.values import as_utc, clean_text

TYPES: Final = ("working", "episodic", "semantic", "profile")
_GONE_KEPT: Final = 10_000  # removals a view can catch up with; one that missed more is read anew


def _m001(conn: sqlite3.Connection) -> None:
    common_tables(conn)
    conn.execute(
        "CREATE TABLE memories (id INTEGER PRIMARY KEY AUTOINCREMENT, user_id TEXT NOT NULL, content TEXT NOT NULL, "
        "folded BLOB NOT NULL, type TEXT NOT NULL, importance REAL NOT NULL, timestamp TEXT, created TEXT NOT NULL, "
        "session TEXT, speaker TEXT, metadata TEXT NOT NULL, language TEXT NOT NULL, "
        "alone INTEGER NOT NULL REFERENCES encodings, around INTEGER NOT NULL REFERENCES encodings, "
        "changed INTEGER NOT NULL)"
    )
    conn.execute("CREATE INDEX memories_session ON memories (user_id, session, id)")
    conn.execute("CREATE INDEX memories_folded ON memories (user_id, type, folded)")
    conn.execute("CREATE INDEX memories_changed ON memories (user_id, changed)")
    conn.execute("CREATE INDEX memories_alone ON memories (alone)")
    conn.execute("CREATE INDEX memories_around ON memories (around)")
    # ids are never used twice, so nothing has to say whose they were: of a user who cleared all, no name is left
    conn.execute("CREATE TABLE gone (generation INTEGER NOT NULL, id INTEGER NOT NULL)")
    conn.execute("CREATE INDEX gone_generation ON gone (generation)")


MIGRATIONS: Final[tuple[Migration, ...]] = (_m001,)


@dataclass(frozen=True, slots=True)
class NewMemory:
    """A memory as it was asked for, checked. `importance` in [0, 1], times aware UTC."""

    content: str
    type: str = "episodic"
    importance: float = 0.5
    timestamp: datetime | None = None
    session: str | None = None
    speaker: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def checked(cls, values: Mapping[str, Any], now: datetime) -> NewMemory:
        """Return it from a mapping; without a timestamp it is said now. Raises InputError naming key, value, bound."""
        names = ("content", "type", "importance", "timestamp", "session", "speaker", "metadata")
        if not isinstance(values, Mapping):
            raise InputError(f"memory: expected a mapping with {', '.join(names)}, got {values!r:.80}")
        unknown = [key for key in values if key not in names]
        if unknown:
            raise InputError(f"memory: unknown key {unknown[0]!r}; it has {', '.join(names)}")
        given = {key: value for key, value in values.items() if value is not None}
        content = given.get("content")
        if not isinstance(content, str) or not content.strip():
            raise InputError(f"memory content: expected a text that is not blank, got {content!r}")
        return cls(
            content=clean_text(content),
            type=check_type(given.get("type", "episodic")),
            importance=check_share(given.get("importance", 0.5), "importance"),
            timestamp=as_utc(given.get("timestamp", now)),
            session=_name(given.get("session")),
            speaker=_name(given.get("speaker")),
            metadata=_as_json(given.get("metadata", {})),
        )

    @property
    def folded(self) -> bytes:
        """The key by which equal texts are found: a digest of speaker and text, NFKC, with single blanks."""
        return fold_turn(self)


def _name(value: Any) -> str | None:
    return None if value is None or not str(value).strip() else clean_text(str(value))


def _as_json(metadata: Any) -> dict[str, Any]:
    """Return metadata as it will be read back: tuples become lists, keys text."""
    if not isinstance(metadata, Mapping):
        raise InputError(f"memory metadata: expected a mapping, got {type(metadata).__name__}")
    try:
        text = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False)
        found: dict[str, Any] = json.loads(clean_text(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"memory metadata: expected values that JSON can hold: {error}") from None
    return found


def check_type(value: Any, name: str = "memory type") -> str:
    """Return a memory type. Raises InputError with the choices."""
    if value not in TYPES:
        raise InputError(f"{name}: expected one of {', '.join(TYPES)}, got {value!r}")
    return str(value)


@dataclass(frozen=True, slots=True)
class Row:
    """A stored memory, without its vectors."""

    id: int
    content: str
    type: str
    importance: float
    timestamp: datetime | None
    created: datetime  # when it was added, or added again
    session: str | None
    speaker: str | None
    metadata: dict[str, Any]
    language: str
    alone: int
    around: int

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; `Memory.add_many` takes the ones of `NewMemory` back."""
        return {
            "id": str(self.id),
            "content": self.content,
            "type": self.type,
            "importance": self.importance,
            "timestamp": self.timestamp.isoformat() if self.timestamp else None,
            "session": self.session,
            "speaker": self.speaker,
            "metadata": self.metadata,
        }


_COLUMNS: Final = (
    "id, content, type, importance, timestamp, created, session, speaker, metadata, language, alone, around"
)


def _row(values: Sequence[Any]) -> Row:
    (id_, content, kind, importance, stamp, created, session, speaker, metadata, language, alone, around) = values
    return Row(
        id_,
        content,
        kind,
        importance,
        datetime.fromisoformat(stamp) if stamp else None,
        datetime.fromisoformat(created),
        session,
        speaker,
        json.loads(metadata),
        language,
        alone,
        around,
    )


def rows_by_id(conn: sqlite3.Connection, user: str, ids: Iterable[int]) -> dict[int, Row]:
    """Return the user's rows among these ids."""
    wanted = json.dumps([int(id_) for id_ in ids])
    # the + keeps SQLite from going through all of the user's rows by an index that begins with user_id
    found = conn.execute(
        f"SELECT {_COLUMNS} FROM memories WHERE id IN (SELECT value FROM json_each(?)) AND +user_id = ?", (wanted, user)
    )
    return {values[0]: _row(values) for values in found}


def all_rows(conn: sqlite3.Connection, user: str, kind: str | None = None) -> list[Row]:
    """Return all of the user's rows, or those of one type, in the order they were added."""
    found = conn.execute(
        f"SELECT {_COLUMNS} FROM memories WHERE user_id = ?1 AND (?2 IS NULL OR type = ?2) ORDER BY id", (user, kind)
    )
    return [_row(values) for values in found]


def changed_rows(conn: sqlite3.Connection, user: str, after: int) -> list[Row]:
    """Return the user's rows that changed after a generation, in the order they were added."""
    found = conn.execute(
        f"SELECT {_COLUMNS} FROM memories WHERE user_id = ? AND changed > ? ORDER BY id", (user, after)
    )
    return [_row(values) for values in found]


def session_rows(conn: sqlite3.Connection, user: str, session: str | None) -> list[Row]:
    """Return the user's rows of one session, or those outside any, in order of speaking."""
    found = conn.execute(
        f"SELECT {_COLUMNS} FROM memories WHERE user_id = ? AND session IS ? ORDER BY id", (user, session)
    )
    return [_row(values) for values in found]


def last_of_session(conn: sqlite3.Connection, user: str, session: str, count: int) -> list[Row]:
    """Return the newest `count` rows of a session, in order of speaking."""
    found = conn.execute(
        f"SELECT {_COLUMNS} FROM memories WHERE user_id = ? AND session = ? ORDER BY id DESC LIMIT ?",
        (user, session, count),
    )
    return [_row(values) for values in found][::-1]


def neighbourhood(
    conn: sqlite3.Connection, user: str, session: str, id_: int, reach: int
) -> tuple[list[Row], list[Row]]:
    """Return at most `reach` rows of a session before an id, and the row of that id, if there is one, with as many
    after it; both in order of speaking.
    """
    before = conn.execute(
        f"SELECT {_COLUMNS} FROM memories WHERE user_id = ? AND session = ? AND id < ? ORDER BY id DESC LIMIT ?",
        (user, session, id_, reach),
    ).fetchall()
    found = conn.execute(
        f"SELECT {_COLUMNS} FROM memories WHERE user_id = ? AND session = ? AND id >= ? ORDER BY id LIMIT ?",
        (user, session, id_, reach + 1),
    ).fetchall()
    return [_row(values) for values in before[::-1]], [_row(values) for values in found]


def texts_around(conn: sqlite3.Connection, user: str, found: Sequence[Row]) -> list[str]:
    """Return, of each row, what is encoded for it among its neighbours; of one that has none, for itself."""
    texts = []
    for row in found:
        text = None
        if row.session is not None:
            before, after = neighbourhood(conn, user, row.session, row.id, NEIGHBOURS)
            text = around_text([*before, *after], len(before))
        texts.append(text or alone_text(row))
    return texts


def outlived(conn: sqlite3.Connection, user: str, oldest: datetime) -> list[Row]:
    """Return the user's working rows that were added before `oldest`."""
    found = conn.execute(
        f"SELECT {_COLUMNS} FROM memories WHERE user_id = ? AND type = 'working' AND created < ? ORDER BY id",
        (user, stored_time(oldest)),
    )
    return [_row(values) for values in found]


def all_users(conn: sqlite3.Connection) -> list[str]:
    """Return the users that have memories, by name."""
    return [str(row[0]) for row in conn.execute("SELECT DISTINCT user_id FROM memories ORDER BY user_id")]


def totals(conn: sqlite3.Connection) -> tuple[int, int, str | None]:
    """Return how many memories of how many users there are, and the name of their model."""
    memories, users = conn.execute("SELECT count(*), count(DISTINCT user_id) FROM memories").fetchone()
    model = conn.execute("SELECT name FROM models WHERE id = (SELECT value FROM meta WHERE key = 'model')").fetchone()
    return memories, users, model[0] if model is not None else None


def equal_text(conn: sqlite3.Connection, user: str, kind: str, folded: bytes) -> Row | None:
    """Return the user's memory of this type with an equal text."""
    found = conn.execute(
        f"SELECT {_COLUMNS} FROM memories WHERE user_id = ? AND type = ? AND folded = ? ORDER BY id LIMIT 1",
        (user, kind, folded),
    ).fetchone()
    return None if found is None else _row(found)


def next_generation(conn: sqlite3.Connection) -> int:
    """Count a change, and return its number."""
    number = int(get_meta(conn, "generation", 0)) + 1
    set_meta(conn, "generation", number)
    return number


def insert(
    conn: sqlite3.Connection,
    user: str,
    new: NewMemory,
    *,
    created: datetime,
    language: str,
    alone: int,
    around: int,
    generation: int,
) -> int:
    """Write a memory and return its id."""
    stamp = stored_time(new.timestamp) if new.timestamp else None
    done = conn.execute(
        "INSERT INTO memories (user_id, content, folded, type, importance, timestamp, created, session, speaker, "
        "metadata, language, alone, around, changed) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            user, new.content, new.folded, new.type, new.importance, stamp, stored_time(created), new.session,
            new.speaker, json.dumps(new.metadata, ensure_ascii=False), language, alone, around, generation,
        ),
    )  # fmt: skip
    return int(done.lastrowid or 0)


def change(conn: sqlite3.Connection, user: str, id_: int, generation: int, **columns: Any) -> None:
    """Set columns of one memory."""
    if "metadata" in columns:
        columns["metadata"] = json.dumps(columns["metadata"], ensure_ascii=False)
    for name in ("timestamp", "created"):
        if columns.get(name) is not None:
            columns[name] = stored_time(columns[name])
    columns["changed"] = generation
    setting = ", ".join(f"{name} = ?" for name in columns)
    conn.execute(f"UPDATE memories SET {setting} WHERE user_id = ? AND id = ?", (*columns.values(), user, id_))


def delete(conn: sqlite3.Connection, user: str, ids: Iterable[int], generation: int) -> None:
    """Delete memories; their encodings are the caller's to `sweep`."""
    ids = list(ids)
    conn.executemany("DELETE FROM memories WHERE user_id = ? AND id = ?", ((user, id_) for id_ in ids))
    conn.executemany("INSERT INTO gone VALUES (?, ?)", ((generation, id_) for id_ in ids))
    conn.execute("DELETE FROM gone WHERE rowid <= (SELECT max(rowid) FROM gone) - ?", (_GONE_KEPT,))


def sweep(conn: sqlite3.Connection, hashes: Iterable[bytes]) -> None:
    """Delete the vectors, of every model, of those texts that belong to no memory any more."""
    conn.executemany(
        "DELETE FROM encodings WHERE hash = ?1 AND model_id IN (SELECT id FROM models) "
        "AND NOT EXISTS (SELECT 1 FROM encodings e JOIN memories ON alone = e.id OR around = e.id "
        "WHERE e.hash = ?1 AND e.model_id IN (SELECT id FROM models))",
        ((hash_,) for hash_ in hashes),
    )


def hash_of(conn: sqlite3.Connection, encoding: int) -> bytes | None:
    """Return the hash of the text whose vector has this id."""
    row = conn.execute("SELECT hash FROM encodings WHERE id = ?", (encoding,)).fetchone()
    return None if row is None else bytes(row[0])


def unused(conn: sqlite3.Connection, model: int, before: float) -> list[bytes]:
    """Return the hashes of texts encoded before a time (seconds since 1970) that belong to no memory."""
    found = conn.execute(
        "SELECT hash FROM encodings e WHERE created < ? AND model_id = ? "
        "AND NOT EXISTS (SELECT 1 FROM memories WHERE alone = e.id) "
        "AND NOT EXISTS (SELECT 1 FROM memories WHERE around = e.id)",
        (before, model),
    )
    return [bytes(row[0]) for row in found]


def stored_time(moment: datetime) -> str:
    """Return an aware UTC time so that times sort as texts: always with six digits of a second."""
    return moment.isoformat(timespec="microseconds")


def oldest_gone(conn: sqlite3.Connection) -> int:
    """Return the oldest generation whose removals are all still known; 0 when none was forgotten."""
    count, oldest = conn.execute("SELECT count(*), min(generation) FROM gone").fetchone()
    return int(oldest) if count >= _GONE_KEPT else 0
