"""The audit as a data set: builds that somebody gave feedback on, with the candidates they had.

    data = read_audit(".ctx_vector/audit.sqlite3")      # or read_dataset with the same path

A build that was called good says that what its context held was evidence for its query. One that was called bad does
not say what would have been, so its query is left out. The documents are all candidates of both, equal texts once; the
conversation, system instructions and state are left out. What a build did not choose it cannot be praised for: such
data favour the way of scoring that made them, so that a tie with it is worth more than it seems. A data set with
judgements is better evidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ctx_vector.errors import InputError
from ctx_vector.experiments.dataset import Dataset, Document, Query
from ctx_vector.packets import TYPE_HISTORY, TYPE_MEMORY, TYPE_STATE, TYPE_SYSTEM
from ctx_vector.values import as_utc

if TYPE_CHECKING:
    from ctx_vector.audit import AuditLog
    from ctx_vector.built import BuiltContext, Decision

GOOD: Final = 0.5
_MOST: Final = 10_000_000
_LEFT_OUT: Final = (TYPE_SYSTEM, TYPE_STATE, TYPE_HISTORY)


def read_audit(audit: AuditLog | str | Path, *, good: float = GOOD, name: str | None = None) -> Dataset:
    """Return the builds with feedback as a data set. A mean feedback of `good` or more makes a build a good one.

    Builds with purged texts are left out. Raises InputError when there is no good build that kept anything, StoreError
    when the file is no audit.
    """
    from ctx_vector.audit import AuditLog

    if isinstance(audit, AuditLog):
        return _read(audit, good, name)
    if not Path(audit).is_file():
        raise InputError(f"{audit}: there is no such file")
    log = AuditLog(audit)
    try:
        return _read(log, good, name)
    finally:
        log.close()


def _read(log: AuditLog, good: float, name: str | None) -> Dataset:
    documents: dict[str, Document] = {}
    queries: list[Query] = []
    qrels: dict[str, dict[str, int]] = {}
    skipped = 0
    for row in reversed(log.list(limit=_MOST)):
        if not row["feedback"]["count"]:
            continue
        record = log.show(row["id"])
        well = row["feedback"]["mean"] >= good
        grades: dict[str, int] = {}
        for decision, kept in _candidates(record.built):
            text = decision.packet.content
            found = documents.setdefault(text, _document(f"d{len(documents) + 1}", decision))
            if kept:
                grades[found.id] = int(well)
        if record.purged or not well or not grades:
            skipped += 1
            continue
        id_ = str(row["id"])
        qrels[id_] = grades
        now = as_utc(record.built.meta.get("now"))
        queries.append(Query(id_, record.built.query, now, group=row["session_id"] or ""))
    if not queries:
        raise InputError(
            f"{log.path}: no build has feedback of {good:g} or more and kept anything; give some with "
            "AuditLog.feedback(build id, 1)"
        )
    return Dataset(name or log.path.stem, tuple(documents.values()), tuple(queries), qrels, skipped)


def _candidates(built: BuiltContext) -> Iterator[tuple[Decision, bool]]:
    for decisions, kept in ((built.kept, True), (built.dropped, False)):
        for decision in decisions:
            if decision.packet.type not in _LEFT_OUT and decision.packet.content.strip():
                yield decision, kept and decision.action == "full"


def _document(id_: str, decision: Decision) -> Document:
    packet = decision.packet
    memory = {"memory_type": packet.meta.get("memory_type") or "episodic"} if packet.type == TYPE_MEMORY else {}
    return Document(id_, packet.content, timestamp=packet.timestamp, metadata=memory)
