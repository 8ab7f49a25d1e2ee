"""The builds that a server can explain: those of its user in an audit, or the last ones of its own, in memory.

What others have asked, who share the file of the audit, is as if it were not there. With an audit, the audit is the
only record, so that what is purged there is gone here. The record in memory is bounded, and forgets the builds in which
a memory stood that is forgotten.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import Any, Final

from ctx_vector.audit import LAST, AuditLog
from ctx_vector.built import BuiltContext
from ctx_vector.errors import InputError
from ctx_vector.escaping import single_line

LISTED: Final = 50


class Builds:
    """Recent builds of one user by id; may be used from several threads."""

    def __init__(self, audit: AuditLog | None = None, most: int = LISTED, user_id: str = "default") -> None:
        self.audit = audit
        self.user_id = user_id
        self._most = most
        self._kept: OrderedDict[str, BuiltContext] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, built: BuiltContext) -> None:
        """Keep a build; with an audit, the builder has recorded it already."""
        if self.audit is not None:
            return
        with self._lock:
            self._kept[built.meta["build_id"]] = built
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def get(self, build_id: str) -> BuiltContext:
        """Return a build, the last one for a blank id. Raises InputError when there is none."""
        if self.audit is not None:
            self.audit.flush()
            return self.audit.show(build_id or LAST, user_id=self.user_id).built
        with self._lock:
            known = list(reversed(self._kept))
            found = self._kept.get(build_id or (known[0] if known else ""))
        if found is not None:
            return found
        if not known:
            raise InputError("build_id: nothing was built yet; call build_context first")
        raise InputError(
            f"build_id: no build {single_line(build_id)[:80]!r} is kept (any more); the last are {', '.join(known[:5])}"
        )

    def recent(self) -> list[dict[str, Any]]:
        """Return the last builds, newest first: build_id, query, time, tokens, max_tokens, kept, dropped."""
        if self.audit is not None:
            self.audit.flush()
            return [
                {
                    "build_id": row["id"],
                    "query": row["query"],
                    "time": row["created_at"],
                    "tokens": row["total_tokens"],
                    "max_tokens": row["budget_limit"],
                    "kept": row["kept"],
                    "dropped": row["dropped"],
                }
                for row in self.audit.list(limit=LISTED, user_id=self.user_id)
            ]
        with self._lock:
            builds = list(reversed(self._kept.values()))
        return [summary(built) for built in builds]

    def forget(self, memory_ids: Collection[str]) -> None:
        """Forget the builds that say what is forgotten; an audit hears of it from the memory itself."""
        with self._lock:
            for build_id, built in list(self._kept.items()):
                used = {item.packet.id for item in (*built.kept, *built.dropped) if item.source == "memory"}
                if not used.isdisjoint(memory_ids):
                    del self._kept[build_id]


def summary(built: BuiltContext) -> dict[str, Any]:
    """Return what a list says of a build."""
    return {
        "build_id": built.meta["build_id"],
        "query": built.query,
        "time": built.meta["now"],
        "tokens": built.budget.total_used,
        "max_tokens": built.budget.total_limit,
        "kept": len(built.kept),
        "dropped": len(built.dropped),
    }
