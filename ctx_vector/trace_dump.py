"""A trace as JSON-ready values, and back.

`dump` hands texts and packets to a Pool, which returns what stands for them (an audit keeps each text once); `load`
asks a Shelf for them. What a purge has taken reads as less, never as an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from datetime import datetime
from typing import Any, Final, Protocol

from ctx_vector.compress import Journal
from ctx_vector.config import ContextConfig
from ctx_vector.conversation import Said, said_of
from ctx_vector.gather import Fault, Gathered
from ctx_vector.history import Plan
from ctx_vector.packets import Candidate, ContextPacket, Message
from ctx_vector.tool_schemas import ToolDefinition
from ctx_vector.trace import Trace
from ctx_vector.values import json_ready

# fields of a candidate that are written in a way of their own, or not at all, for a repeat does not ask for them
_OWN_WAY: Final = ("packet", "source", "rank", "vectors", "message", "known", "tool", "image", "origin", "apart")
_REST: Final = tuple(
    (item.name, None if item.default is MISSING else item.default)
    for item in fields(Candidate)
    if item.name not in _OWN_WAY
)
_SAID_META: Final = ("type", "role")  # of a message's packet: what it has from its message
_PART_NAMES: Final = ("type", "text", "image_url", "detail", "source", "data", "mimeType")


class Pool(Protocol):
    """Keeps texts and packets, and returns JSON-ready values that stand for them."""

    def text(self, text: str) -> Any:
        """Keep a text."""
        ...

    def json(self, value: Any) -> Any:
        """Keep JSON-ready values as one text."""
        ...

    def packet(self, candidate: Candidate) -> Any:
        """Keep the packet of a candidate."""
        ...

    def said(self, items: Sequence[Said]) -> list[Any]:
        """Keep messages, each as `dump_said` gives it; most of a conversation was kept by an earlier build."""
        ...


class Shelf(Protocol):
    """Gives back what a Pool has kept."""

    def text(self, ref: Any) -> str:
        """Return a text."""
        ...

    def packet(self, ref: Any) -> ContextPacket:
        """Return a packet."""
        ...


def dump(trace: Trace, pool: Pool, places: Mapping[int, int]) -> dict[str, Any]:
    """Return a trace as JSON-ready values, but for its config, with texts and packets in `pool`.

    `places` are those of the messages of its conversation, by the id of their packets.
    """
    text = pool.text
    candidates = []
    for item in trace.gathered.candidates:
        place = places.get(id(item.packet)) if item.message is not None else None
        rest = {name: value for name, default in _REST if (value := getattr(item, name)) != default}
        if item.tool is not None:
            rest["tool"] = pool.json(asdict(item.tool))
        if item.image is not None:
            rest["image"] = pool.json(plain_part(item.image))
        kept = pool.packet(item) if place is None else None
        candidates.append([item.source, kept, place, rest] if rest else [item.source, kept, place])
    plan = trace.plan
    return {
        "query": text(trace.query),
        "now": trace.now.isoformat(),
        "session_id": trace.session_id,
        "roles": sorted(trace.roles),
        "model_max_tokens": trace.model_max_tokens,
        "sources": trace.sources,
        "asked": trace.asked,
        "said": pool.said(trace.said),
        "plan": [
            plan.strategy,
            plan.order,
            plan.wanted,
            text(plan.summary) if plan.summary else None,
            plan.summarised,
            text(plan.fallback) if plan.fallback else None,
        ],
        "candidates": candidates,
        "faults": [[fault.source, fault.reason, text(fault.detail)] for fault in trace.gathered.faults],
        "milliseconds": {name: round(value, 3) for name, value in trace.gathered.milliseconds.items()},
        "scores": trace.scores,
        "shortened": [
            [text(body), room, result and [text(result[0]), result[1]]]
            for body, room, result in trace.shortened.entries
        ],
        "given": {name: pool.json(json_ready(value)) for name, value in trace.given.items()},
        "facts": trace.facts,
        "started": trace.started,
    }


def load(values: Mapping[str, Any], config: ContextConfig, shelf: Shelf) -> Trace:
    """Return the trace that `dump` gave these values for."""
    text = shelf.text
    said = [_load_said(item, shelf) for item in values["said"]]
    strategy, order, wanted, summary, summarised, fallback = values["plan"]
    candidates = []
    for rank, (source, packet, place, *rest) in enumerate(values["candidates"]):
        own = said[place].packet if place is not None else shelf.packet(packet)
        message = said[place].message if place is not None else None
        more: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in (rest or [{}])[0].items()
        }
        if "tool" in more:
            more["tool"] = ToolDefinition(
                **{"name": "", **known_fields(ToolDefinition, parsed(text(more["tool"]), {}))}
            )
        if "image" in more:
            more["image"] = parsed(text(more["image"]), {})
        candidates.append(Candidate(own, source, rank, message=message, **known_fields(Candidate, more)))
    return Trace(
        text(values["query"]),
        datetime.fromisoformat(values["now"]),
        values["session_id"],
        frozenset(values["roles"]),
        config,
        values["model_max_tokens"],
        tuple(values["sources"]),
        tuple(values["asked"]),
        said,
        Plan(
            strategy,
            tuple(order),
            tuple(wanted),
            text(summary) if summary is not None else "",
            summarised,
            text(fallback) if fallback is not None else "",
        ),
        Gathered(
            candidates,
            [Fault(source, reason, text(detail)) for source, reason, detail in values["faults"]],
            dict(values["milliseconds"]),
        ),
        [tuple(score) for score in values["scores"]],
        Journal(
            (text(body), room, (text(result[0]), result[1]) if result else None)
            for body, room, result in values["shortened"]
        ),
        {name: value_of(text(value)) for name, value in values["given"].items()},
        dict(values["facts"]),
        values["started"],
    )


def parsed(text: str, nothing: Any) -> Any:
    """Return the value of a JSON text that was kept; `nothing` when a purge has left no JSON of that type."""
    try:
        value = json.loads(text)
    except ValueError:
        return nothing
    return value if isinstance(value, type(nothing)) else nothing


def value_of(text: str) -> Any:
    """Return the value of a JSON text that was kept; the text itself when a purge has left no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def known_fields(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values that are fields of a dataclass: a purge may have hit a name, a version have had others."""
    names = {item.name for item in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def dump_said(item: Said, pool: Pool) -> list[Any]:
    """Return [role, content, time, more, parts], as far as there is any; `more` is one text, a part another."""
    message = item.message
    stamp = message.timestamp.isoformat() if message.timestamp else None
    more = {name: value for name in ("name", "tool_calls", "tool_call_id") if (value := getattr(message, name))}
    if rest := {name: value for name, value in item.packet.meta.items() if name not in _SAID_META}:
        more["packet"] = rest
    if isinstance(message.content, str):
        content = pool.text(message.content)
        if not more:
            return [message.role, content, stamp] if stamp else [message.role, content]
        return [message.role, content, stamp, pool.json(json_ready(more))]
    kept = pool.json(json_ready(more)) if more else None
    parts = [pool.json(plain_part(part)) for part in message.content or ()]
    return [message.role, None, stamp, kept, parts if message.content is not None else None]


def plain_part(part: Any) -> Any:
    """Return a part of a message as JSON-ready values, also when it is an object of some client's."""
    if isinstance(part, (str, int, float, bool, type(None))):
        return part
    if isinstance(part, Mapping):
        return {str(name): plain_part(value) for name, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [plain_part(item) for item in part]
    found = getattr(part, "__dict__", None)
    if not found:
        found = {name: value for name in _PART_NAMES if (value := getattr(part, name, None)) is not None}
    return {str(name): plain_part(value) for name, value in found.items()} if found else str(part)


def _load_said(values: Sequence[Any], shelf: Shelf) -> Said:
    role, content, stamp, more, parts = (*values, None, None, None)[:5]
    given = parsed(shelf.text(more), {}) if more is not None else {}
    rest = given.pop("packet", None)
    if content is not None:
        said: Any = shelf.text(content)
    else:
        said = None if parts is None else [value_of(shelf.text(part)) for part in parts]
    return said_of(Message(said, role, stamp, **known_fields(Message, given)), rest)
