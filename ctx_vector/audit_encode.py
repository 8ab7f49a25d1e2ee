"""A build as a row of an audit: every text once, and ids in its place.

    Entry ── encode ── a row of context_logs        texts and packets go through `Keeper`, which gives ids

What it shows is written by audit_parts.py: refs to texts in place of the texts.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ctx_vector import audit_purge
from ctx_vector import audit_tables as tables
from ctx_vector.audit_keeper import Keeper
from ctx_vector.audit_parts import Parts, rest_of
from ctx_vector.built import BuiltContext, SourceUse
from ctx_vector.trace import Trace
from ctx_vector.trace_dump import dump
from ctx_vector.values import json_ready

#: Of `record`: changes when an older reader could misread it.
FORMAT: Final = 1
_CUT_REASONS: Final = ("budget", "quota", "oversize")


@dataclass(slots=True, eq=False)
class Entry:
    """A finished build on its way into the audit. What its caller may change meanwhile is copied."""

    built: BuiltContext
    messages: list[dict[str, Any]]
    meta: dict[str, Any]
    stats: dict[str, Any]
    variant: str | None
    user_id: str | None
    size: int  # about how many characters it holds

    @classmethod
    def of(cls, built: BuiltContext, variant: str | None, user_id: str | None = None) -> Entry:
        """Return the entry of a build."""
        size = 2 * len(built.text)
        for item in built.trace.gathered.candidates:
            size += len(item.packet.content)
            if item.image is not None:
                size += len(str(item.image))
        messages = [dict(message) for message in built.messages]
        return cls(built, messages, dict(built.meta), dict(built.stats), variant, user_id, size)


# -- a build as a row -------------------------------------------------------------------------------------------------


def encode(entry: Entry, keeper: Keeper, purged: frozenset[bytes] = frozenset()) -> dict[str, Any]:
    """Return the columns of a build, its texts kept.

    `purged` are the keys of what was purged after the build began: when it holds any of it, none of its texts is kept.
    """
    built, trace = entry.built, entry.built.trace
    keeper.begin(blank=bool(purged) and _holds(trace, purged))
    places = {id(item.packet): place for place, item in enumerate(trace.said)}
    dumped = dump(trace, keeper, places)
    parts = Parts(built, keeper, places)
    meta = dict(entry.meta)
    history = dict(meta.get("history") or {})
    if history.get("fallback"):
        history["fallback"] = keeper.text(history["fallback"])
    record = {
        "format": FORMAT,
        "rows": parts.rows(),
        "sections": parts.sections(),
        "decisions": [*map(parts.decision, built.kept), *parts.dropped(built.dropped)],
        "kept": len(built.kept),
        "budget": [
            built.budget.total_limit,
            built.budget.total_used,
            built.budget.text_tokens,
            built.budget.message_tokens,
            built.budget.shared_limit,
            rest_of(built.budget),
        ],
        "source_faults": {name: keeper.text(use.fault) for name, use in built.budget.sources.items() if use.fault},
        "stats": entry.stats,
        "meta": {**meta, "history": history},
        "warnings": [keeper.text(text) for text in built.warnings],
        "tools": keeper.json(json_ready(built.tools)) if built.tools else None,
        "more": keeper.json(rest) if (rest := rest_of(built)) else None,
        "trace": dumped,
    }
    messages = [parts.message(message) for message in entry.messages]
    reasons = entry.stats.get("dropped", {})
    return {
        "id": meta["build_id"],
        "session_id": trace.session_id,
        "variant": entry.variant,
        "user_id": entry.user_id,
        "created_at": datetime.fromtimestamp(trace.started, UTC).isoformat(timespec="microseconds"),
        "total_tokens": built.budget.total_used,
        "budget_limit": built.budget.total_limit,
        "query_id": dumped["query"],
        "gathered": entry.stats.get("gathered", len(built.kept) + len(built.dropped)),
        "kept": len(built.kept),
        "dropped": len(built.dropped),
        "trimmed": int(bool(entry.stats.get("compressed")) or any(reason in reasons for reason in _CUT_REASONS)),
        "warnings": len(built.warnings),
        "faults": len(trace.gathered.faults),
        "build_ms": meta["build_time_ms"],
        "knowledge_version": meta["knowledge_version"],
        "strategy": meta["strategy"],
        "model": meta["model"],
        "model_fingerprint": meta["model_fingerprint"],
        "tokenizer": meta["tokenizer"],
        "tokenizer_fingerprint": meta["tokenizer_fingerprint"],
        "version": meta["version"],
        "config_hash": meta["config_hash"],
        "config_id": keeper.config(trace.config, meta["config_hash"]),
        "redacted": int(keeper.redacts),
        "purged": int(keeper.blank),
        "source_stats": _json({name: use_of(use) for name, use in built.budget.sources.items()}),
        "stages": _json(meta["stages_ms"]),
        "messages": _json(messages),
        "refs": tables.pack_refs(keeper.contents, keeper.packets),
        "record": zlib.compress(_json(record).encode(), 3),
    }


def use_of(use: SourceUse) -> dict[str, Any]:
    """Return what a source got, as JSON-ready values, but for the words of its fault."""
    values = {
        "tokens": use.tokens,
        "kept": use.kept,
        "dropped_items": use.dropped_items,
        "truncated": use.truncated,
        "gathered": use.gathered,
        "milliseconds": round(use.milliseconds, 3),
        "failed": bool(use.fault),
    }
    return {**values, **rest_of(use)}


_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=json_ready)
_json = _COMPACT.encode


def _holds(trace: Trace, purged: frozenset[bytes]) -> bool:
    for item in trace.gathered.candidates:
        if tables.digest(item.packet.content) in purged:
            return True
        if item.origin is not None and not purged.isdisjoint(
            (audit_purge.origin_key(item.origin), audit_purge.owner_key(item.origin))
        ):
            return True
    return False
