"""What comes out of a build: the context, and the record of how it came about.

    Decision       one fate for every candidate: kept, or dropped with a reason
    SourceUse      what one source got of the budget
    Budget         tokens allowed and used, in all and by source
    BuiltContext   text and messages with all of that; explain, debug and JSON are views of it

Tokens are counts of the build's tokenizer; relevance, recency and score lie in [0, 1]. record.py makes it of a finished
build, audit_decode.py of a recorded one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctx_vector.packets import ContextPacket


@dataclass(slots=True, eq=False)  # not frozen: hundreds are made in a build, and frozen ones take five times as long
class Decision:
    """The fate of one candidate.

    `action` is `full`, `extracted`, `summarised`, `truncated` or `dropped`; `reason` is empty for what is kept in full.
    `tokens` counts what the item adds to the rendered text (its joiner included), 0 when dropped; for a dropped item
    `reason` is one of DROP_REASONS, `detail` a sentence for people. `rendered` is the text in the context.
    """

    packet: ContextPacket
    source: str
    section: str
    relevance: float
    recency: float
    score: float
    tokens: int
    kept: bool
    action: str
    reason: str = ""
    detail: str = ""
    rendered: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values with stable keys."""
        return {
            "packet": self.packet.to_dict(),
            "source": self.source,
            "section": self.section,
            "relevance": round(self.relevance, 6),
            "recency": round(self.recency, 6),
            "score": round(self.score, 6),
            "tokens": self.tokens,
            "kept": self.kept,
            "action": self.action,
            "reason": self.reason,
            "detail": self.detail,
            "rendered": self.rendered,
        }


@dataclass(slots=True)
class SourceUse:
    """What one source got: tokens in the text, items kept and dropped, items shortened; its fault, if any.

    With layers also its layer, and the most tokens it could take.
    """

    tokens: int = 0
    kept: int = 0
    dropped_items: int = 0
    truncated: int = 0
    gathered: int = 0
    fault: str = ""
    milliseconds: float = 0.0
    layer: str = ""
    limit: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; the time is left out, for it is not deterministic."""
        layered = {"layer": self.layer, "limit": self.limit} if self.layer else {}
        return {
            **layered,
            "tokens": self.tokens,
            "kept": self.kept,
            "dropped_items": self.dropped_items,
            "truncated": self.truncated,
            "gathered": self.gathered,
            "fault": self.fault,
        }


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens allowed and used. `total_used` is the larger of `text_tokens` and `message_tokens` (with framing)."""

    total_limit: int
    total_used: int
    text_tokens: int
    message_tokens: int
    shared_limit: int
    sources: Mapping[str, SourceUse]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values with stable keys."""
        return {
            "total_limit": self.total_limit,
            "total_used": self.total_used,
            "text_tokens": self.text_tokens,
            "message_tokens": self.message_tokens,
            "shared_limit": self.shared_limit,
            "sources": {name: use.to_dict() for name, use in self.sources.items()},
        }


@dataclass(frozen=True, slots=True, eq=False)
class BuiltContext:
    """What a build returns: the context as text and as messages, and the record of how it came about.

    `messages` are those of a chat API, the query last; `tools` the schemas that go beside them. `sections` maps a
    section's name to its body; `kept` is in order of choice, `dropped` holds everything else, so that the two together
    are every candidate. `stats` has counts and the usage rate, `meta` the build id, timings (milliseconds),
    fingerprints and hashes, `warnings` what a person should hear. `rows` are the pieces of the text, as (section,
    tokens, text). `trace` is what `replay.rebuild` makes the same context from (trace.py).
    """

    text: str
    messages: list[dict[str, Any]]
    sections: dict[str, str]
    kept: tuple[Decision, ...]
    dropped: tuple[Decision, ...]
    budget: Budget
    stats: dict[str, Any]
    meta: dict[str, Any]
    warnings: tuple[str, ...] = ()
    tools: list[dict[str, Any]] = field(default_factory=list)
    rows: tuple[tuple[str, int, str], ...] = ()
    query: str = ""
    trace: Any = field(default=None, repr=False)

    @property
    def sources(self) -> Mapping[str, SourceUse]:
        """What each source gathered and got; the same as `budget.sources`."""
        return self.budget.sources

    def __str__(self) -> str:
        return self.text

    def as_chat(self) -> list[dict[str, Any]]:
        """Return ``[system: text, user: query]``; no blank message."""
        chat = [{"role": "system", "content": self.text}]
        if self.query.strip():
            chat.append({"role": "user", "content": self.query})
        return chat

    def explain(self) -> list[dict[str, Any]]:
        """Return a row for every candidate, the kept ones first in order of choice."""
        return [
            {
                "kept": item.kept,
                "section": item.section,
                "source": item.source,
                "relevance": round(item.relevance, 4),
                "recency": round(item.recency, 4),
                "score": round(item.score, 4),
                "tokens": item.tokens,
                "action": item.action,
                "reason": item.reason,
                "detail": item.detail,
                "cites": item.packet.meta.get("cite", ""),
                "preview": " ".join(item.packet.content[:160].split())[:80],
            }
            for item in (*self.kept, *self.dropped)
        ]

    def debug(self) -> list[dict[str, Any]]:
        """Return a row a piece of the text: index, section, tokens, first 50 characters on one line.

        The tokens of all rows (headers and joiners are rows or belong to their item) add up to the exact total.
        """
        return [
            {"index": index, "section": section, "tokens": tokens, "preview": " ".join(text[:200].split())[:50]}
            for index, (section, tokens, text) in enumerate(self.rows)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values with stable keys."""
        return {
            "text": self.text,
            "messages": self.messages,
            "sections": self.sections,
            "kept": [item.to_dict() for item in self.kept],
            "dropped": [item.to_dict() for item in self.dropped],
            "budget": self.budget.to_dict(),
            "stats": self.stats,
            "meta": self.meta,
            "warnings": list(self.warnings),
            "tools": self.tools,
        }
