"""The rarer operations on a memory: what is to be forgotten, counting, JSON lines, another encoder."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ctx_vector import memory_rows as rows
from ctx_vector.common_tables import find_encodings, set_meta
from ctx_vector.dialogue import alone_text, around_text
from ctx_vector.encoding_cache import EncodingCache, move_to_encoder, text_hash
from ctx_vector.errors import InputError
from ctx_vector.memory_rows import TYPES, Row
from ctx_vector.rules import check_share
from ctx_vector.store import Store

if TYPE_CHECKING:
    from ctx_vector.memory_edit import Edit
    from ctx_vector.stages import Encoder

FORGET: Final = ("importance_based", "time_based", "capacity_based")
_EARLIEST: Final = datetime(1, 1, 1, tzinfo=UTC)
PAGE: Final = 2_000  # texts noted before they are encoded


def seconds(row: Row) -> float:
    """Return when a memory was said, or else added, in seconds since 1970."""
    return (row.timestamp or row.created).timestamp()


def days_before(now: datetime, days: float) -> datetime:
    """Return the time so many days ago, the earliest there is when that is out of reach."""
    try:
        return max(_EARLIEST, now - timedelta(days=days))
    except OverflowError:
        return _EARLIEST


# -- forgetting -----------------------------------------------------------------------------------------------------


def check_forget(strategy: Any, threshold: Any, max_age_days: Any) -> None:
    """Raise InputError when these do not say what to forget."""
    if strategy not in FORGET:
        raise InputError(f"forget strategy: expected one of {', '.join(FORGET)}, got {strategy!r}")
    if strategy == "importance_based":
        check_share(threshold, "threshold")
    elif strategy == "capacity_based":
        if (
            isinstance(threshold, bool)
            or not isinstance(threshold, (int, float))
            or not threshold % 1 == 0 <= threshold
        ):
            raise InputError(f"threshold: expected the number of memories to keep, got {threshold!r}")
    elif isinstance(max_age_days, bool) or not isinstance(max_age_days, (int, float)) or not max_age_days >= 0:
        raise InputError(f"max_age_days: expected a number >= 0, got {max_age_days!r}")


def forgettable(known: Sequence[Row], strategy: str, threshold: float, oldest: datetime) -> list[Row]:
    """Return the rows that a strategy forgets; `oldest` bounds the age of those that stay under `time_based`."""
    if strategy == "importance_based":
        return [row for row in known if row.importance < threshold]
    if strategy == "time_based":
        return [row for row in known if (row.timestamp or row.created) < oldest]
    best = sorted(known, key=lambda row: (-row.importance, -seconds(row), -row.id))
    return best[int(threshold) :]


def trim_working(edit: Edit, capacity: int, new: Iterable[int]) -> None:
    """Remove working memories over capacity: those of least importance, of these the oldest; the `new` ones last."""
    working = rows.all_rows(edit.conn, edit.user, "working")
    over = len(working) - capacity
    if over > 0:
        kept = set(new)
        working.sort(key=lambda row: (row.id in kept, row.importance, row.created, row.id))
        edit.remove(working[:over])


# -- looking --------------------------------------------------------------------------------------------------------


def stats(user_id: str, known: Sequence[Row]) -> dict[str, Any]:
    """Return counts by type, sessions, mean importance, first and last time."""
    times = sorted(row.timestamp for row in known if row.timestamp)
    return {
        "user_id": user_id,
        "memories": len(known),
        "by_type": {name: sum(row.type == name for row in known) for name in TYPES},
        "sessions": len({row.session for row in known if row.session is not None}),
        "mean_importance": round(sum(row.importance for row in known) / len(known), 4) if known else 0.0,
        "first": times[0].isoformat() if times else None,
        "last": times[-1].isoformat() if times else None,
    }


def summary(known: Sequence[Row], limit: int) -> str:
    """Return a short text: how many memories of which type, and the most important ones, one a line."""
    counts = ", ".join(f"{sum(row.type == name for row in known)} {name}" for name in TYPES)
    top = sorted(known, key=lambda row: (-row.importance, -seconds(row), row.id))[:limit]
    lines = [f"{len(known)} {'memory' if len(known) == 1 else 'memories'} ({counts})"]
    lines += [f"- [{row.type}, {row.importance:.2f}] {' '.join(row.content.split())[:120]}" for row in top]
    return "\n".join(lines)


def read_lines(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the items of JSON lines as `Memory.export` gives them. Raises InputError naming the line."""
    items = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"line {number}: not JSON ({error})") from None
        if not isinstance(values, dict):
            raise InputError(f"line {number}: expected a JSON object, got {line[:60]!r}")
        values.pop("id", None)
        if "memory_type" in values:
            values["type"] = values.pop("memory_type")
        items.append(values)
    return items


# -- another encoder ------------------------------------------------------------------------------------------------


def reencode(store: Store, encoder: Encoder) -> int:
    """Encode all users' memories with another encoder, then switch to its vectors in one transaction.

    Returns how many texts were encoded. What an interrupted run has encoded is not encoded again.
    """
    return move_to_encoder(store, encoder, _encode_all, _switch)


def _groups(conn: sqlite3.Connection) -> list[tuple[str, str | None]]:
    return conn.execute("SELECT DISTINCT user_id, session FROM memories ORDER BY user_id, session").fetchall()


def _texts(conn: sqlite3.Connection, user: str, session: str | None) -> Iterator[tuple[Row, str, str]]:
    """Yield the rows of a session, or those outside any, with the two texts that are encoded for them."""
    known = rows.session_rows(conn, user, session)
    for place, row in enumerate(known):
        alone = alone_text(row)
        yield row, alone, around_text(known, place) or alone


def _encode_all(store: Store, cache: EncodingCache) -> None:
    with store.read() as conn:
        groups = _groups(conn)
    waiting: dict[bytes, str] = {}
    for user, session in groups:
        with store.read() as conn:
            for _, *texts in _texts(conn, user, session):
                waiting |= {text_hash(text): text for text in texts}
        if len(waiting) >= PAGE:
            cache.ensure(waiting)
            waiting = {}
    cache.ensure(waiting)


def _switch(conn: sqlite3.Connection, model: int) -> bool:
    """Point all memories to their vectors of a model, and delete all others; False when one has none yet."""
    new: list[tuple[str, int, int, int]] = []
    for user, session in _groups(conn):
        for row, *texts in _texts(conn, user, session):
            alone, around = (text_hash(text) for text in texts)
            found = find_encodings(conn, model, (alone, around))
            if len(found) < len({alone, around}):
                return False
            new.append((user, row.id, found[alone], found[around]))
    generation = rows.next_generation(conn)
    for user, id_, own, among in new:
        rows.change(conn, user, id_, generation, alone=own, around=among)
    conn.execute("DELETE FROM encodings WHERE model_id != ?", (model,))
    set_meta(conn, "model", model)
    conn.execute("DELETE FROM models WHERE id != ?", (model,))
    return True
