"""Statistics of an audit from sums that are kept by day, hour and minute, so that they never read the builds.

A row of `rollups` holds the sums of one source in one span of time; the source "" stands for whole builds. A period
begins with single minutes up to the first full hour, goes on in hours up to the first full day, and then in days: what
it costs to read depends on its length and not on the number of builds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.audit_bounds import Since, moment_of

if TYPE_CHECKING:
    from ctx_vector.audit_encode import Entry
    from ctx_vector.built import SourceUse
    from ctx_vector.config import ContextConfig

DAY: Final = 86_400
HOUR: Final = 3_600
MINUTE: Final = 60
#: A source over this share of its quota in most builds, or cut in this share of them, is warned of.
NEAR_QUOTA: Final = 0.8
OFTEN_CUT: Final = 0.25
_LEAST_BUILDS: Final = 3
MINUTES_KEPT: Final = timedelta(days=32)
_SUMS: Final = (
    "builds", "tokens", "kept", "dropped", "cut", "quota", "of_quota", "near", "faults", "milliseconds"
)  # fmt: skip
_PART: Final = {"knowledge": "evidence", "documents": "evidence", "memory": "memory", "history": "history"}
_CUT_REASONS: Final = ("budget", "quota", "oversize")


def quota_of(name: str, use: SourceUse, config: ContextConfig) -> int:
    """Return the most tokens a source may have, 0 for no bound of its own."""
    return use.limit or config.budgets.get(_PART.get(name, "")) or 0


def sums_of(entries: Iterable[tuple[Entry, Mapping[str, Any]]]) -> dict[tuple[int, int, str], list[float]]:
    """Return what builds add to the rollups, by (span, start, source); each comes with its columns."""
    sums: dict[tuple[int, int, str], list[float]] = {}

    def add(at: int, source: str, *values: float) -> None:
        for span in (DAY, HOUR, MINUTE):
            row = sums.setdefault((span, at - at % span, source), [0.0] * len(_SUMS))
            for place, value in enumerate(values):
                row[place] += value

    for entry, columns in entries:
        built = entry.built
        at, config = int(built.trace.started), built.trace.config
        total, limit = columns["total_tokens"], columns["budget_limit"]
        near = total > NEAR_QUOTA * limit
        add(
            at, "", 1, total, columns["kept"], columns["dropped"], columns["trimmed"], limit, total, near,
            columns["faults"] > 0, columns["build_ms"],
        )  # fmt: skip
        cut = {item.source for item in built.kept if item.action != "full"}
        cut |= {item.source for item in built.dropped if item.reason in _CUT_REASONS}
        for name, use in built.budget.sources.items():
            quota = quota_of(name, use, config)
            add(
                at, name, 1, use.tokens, use.kept, use.dropped_items, name in cut, quota, use.tokens if quota else 0,
                bool(quota) and use.tokens > NEAR_QUOTA * quota, bool(use.fault), use.milliseconds,
            )  # fmt: skip
    return sums


def add_sums(conn: sqlite3.Connection, sums: Mapping[tuple[int, int, str], Iterable[float]]) -> None:
    """Add sums to the rollups."""
    names = ", ".join(_SUMS)
    more = ", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)
    conn.executemany(
        f"INSERT INTO rollups (span, start, source, {names}) VALUES (?, ?, ?, {', '.join('?' * len(_SUMS))}) "
        f"ON CONFLICT (span, start, source) DO UPDATE SET {more}",
        [(*key, *row) for key, row in sums.items()],
    )


def statistics(conn: sqlite3.Connection, since: Since, now: datetime) -> dict[str, Any]:
    """Return the statistics of all builds since a time, which is rounded down to its minute."""
    first = moment_of(since, now)
    rows = _rows(conn, first, now)
    totals = dict(zip(_SUMS, rows.pop("", [0] * len(_SUMS)), strict=True))
    builds = int(totals["builds"])
    sources = {name: _source(dict(zip(_SUMS, row, strict=True)), totals) for name, row in sorted(rows.items())}
    lost = conn.execute(
        "SELECT coalesce(sum(builds), 0) FROM gaps WHERE at >= ?", (first.isoformat() if first else "",)
    ).fetchone()[0]
    return {
        "since": _rounded(first, now).isoformat() if first else None,
        "builds": builds,
        "mean_tokens": _per(totals["tokens"], builds, 1),
        "usage_rate": _per(totals["of_quota"], totals["quota"]),
        "trim_rate": _per(totals["cut"], builds),
        "fault_rate": _per(totals["faults"], builds),
        "mean_ms": _per(totals["milliseconds"], builds, 2),
        "not_recorded": lost,
        "sources": sources,
        "warnings": [line for name, row in sources.items() for line in _warnings(name, row)],
    }


def _rounded(first: datetime, now: datetime) -> datetime:
    step = MINUTE if first >= now - MINUTES_KEPT else HOUR
    seconds = int(first.timestamp())
    return datetime.fromtimestamp(seconds - seconds % step, UTC)


def _rows(conn: sqlite3.Connection, first: datetime | None, now: datetime) -> dict[str, list[float]]:
    sums = ", ".join(f"sum({name})" for name in _SUMS)
    if first is None:
        where, bounds = f"span = {DAY}", []
    else:
        start = int(_rounded(first, now).timestamp())
        hour, day = (-(-start // span) * span for span in (HOUR, DAY))
        where = (
            f"(span = {MINUTE} AND start >= ? AND start < ?) OR (span = {HOUR} AND start >= ? AND start < ?) "
            f"OR (span = {DAY} AND start >= ?)"
        )
        bounds = [start, hour, hour, day, day]
    found = conn.execute(f"SELECT source, {sums} FROM rollups WHERE {where} GROUP BY source", bounds)
    return {row[0]: list(row[1:]) for row in found}


def _source(row: Mapping[str, float], totals: Mapping[str, float]) -> dict[str, Any]:
    builds = int(row["builds"])
    return {
        "builds": builds,
        "tokens": int(row["tokens"]),
        "share": _per(row["tokens"], totals["tokens"]),
        "mean_tokens": _per(row["tokens"], builds, 1),
        "kept": int(row["kept"]),
        "dropped": int(row["dropped"]),
        "cut_rate": _per(row["cut"], builds),
        "quota_use": _per(row["of_quota"], row["quota"]) if row["quota"] else None,
        "near_quota": int(row["near"]),
        "faults": int(row["faults"]),
        "mean_ms": _per(row["milliseconds"], builds, 2),
    }


def _per(value: float, of: float, digits: int = 4) -> float:
    return round(value / of, digits) if of else 0.0


def _warnings(name: str, row: Mapping[str, Any]) -> list[str]:
    if row["builds"] < _LEAST_BUILDS:
        return []
    lines = []
    if row["quota_use"] is not None and row["quota_use"] > NEAR_QUOTA:
        lines.append(
            f"{name} takes {row['quota_use']:.0%} of its quota, over {NEAR_QUOTA:.0%}: give it more, or less to say"
        )
    if row["cut_rate"] > OFTEN_CUT:
        lines.append(f"{name} was cut in {row['cut_rate']:.0%} of its builds: raise the budget, or gather less of it")
    if row["faults"] > OFTEN_CUT * row["builds"]:
        lines.append(f"{name} failed in {row['faults']} of {row['builds']} builds")
    return lines
