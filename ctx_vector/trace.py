"""The trace of a build: everything it read, enough to make it again with the same bytes.

    gather ── Trace ── compose ── BuiltContext        a build: `ContextBuilder.assemble`
              Trace ── compose ── BuiltContext        the same again: `builder.rebuild(trace)`

The builder first puts what it has read into a Trace, and makes the context from the Trace alone: a build and its repeat
are one function of the same object. What comes from outside while composing (relevances, what the shortener made) is
noted in the Trace when it comes and taken from there the next time, so that a repeat needs no source, no encoder, no
scorer and no summarizer. Only the tokenizer has to be there.

**A new input of the builder** needs nothing here when it ends as candidates with packets, or as a field of Candidate
that is JSON-ready. If it shapes the context in another way (tools, images, layers), put it into `given` under its name
before `compose`, as JSON-ready values, and have `compose` read it from there. If it is worked out while composing by
something that will not be there later (a callable, a model), do as with the relevances: take it from
``trace.given.get(name)``, and only when that is None work it out and note it there.

`dump` gives a trace as JSON-ready values, `load` takes them back. Texts and packets are handed to a Pool, which returns
what stands for them: an audit keeps each text once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from ctx_vector.compress import Journal
from ctx_vector.config import ContextConfig
from ctx_vector.gather import Fault, Gathered, SourceSpec
from ctx_vector.history import History, Plan, Said, history_bound, read_turns, said_of
from ctx_vector.inputs import Inputs
from ctx_vector.packets import Candidate, ContextPacket, Message, json_ready
from ctx_vector.tool_schemas import ToolDefinition

if TYPE_CHECKING:
    from ctx_vector.ranking import Ranked

# fields of a candidate that are written in a way of their own, or not at all, for a repeat does not ask for them
_OWN_WAY: Final = ("packet", "source", "rank", "vectors", "message", "known", "tool", "origin")
_REST: Final = tuple(
    (item.name, None if item.default is MISSING else item.default)
    for item in fields(Candidate)
    if item.name not in _OWN_WAY
)


@dataclass(slots=True, eq=False)
class Trace:
    """What one build read; nothing in it is copied.

    `sources` are the names of the sources in the order they were asked, the history last; `asked` those of them that
    are the builder's and not the caller's. `said` is the conversation, `plan` what the history's strategy made of it.
    `scores` are (relevance, windows) of each candidate in order of gathering, None until they are known. `facts` are
    the fingerprints and versions that stand in the meta of the build.
    """

    query: str
    now: datetime
    session_id: str | None
    roles: frozenset[str]
    config: ContextConfig
    model_max_tokens: int | None
    sources: tuple[str, ...]
    asked: tuple[str, ...]
    said: Sequence[Said]
    plan: Plan
    gathered: Gathered
    scores: list[tuple[float, int]] | None = None
    shortened: Journal = field(default_factory=Journal)
    given: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    started: float = 0.0  # of the clock, in seconds since 1970; not what `now` was given as

    @classmethod
    def of(
        cls,
        inputs: Inputs,
        config: ContextConfig,
        history: History,
        specs: Sequence[SourceSpec],
        asked: Sequence[SourceSpec],
        gathered: Gathered,
        model_max_tokens: int | None,
        started: float,
    ) -> Trace:
        """Return the trace of a build that has just gathered."""
        return cls(
            inputs.query,
            inputs.now,
            inputs.request.session_id,
            inputs.roles,
            config,
            model_max_tokens,
            tuple([spec.name for spec in specs]),
            tuple([spec.name for spec in asked]),
            inputs.said,
            history.plan(),
            gathered,
            started=started,
        )

    def history(self) -> History:
        """Return the history as it was planned, nothing placed yet."""
        turns, left_out = read_turns(self.said, self.query, self.config)
        plan = self.plan
        return History(
            plan.strategy,
            history_bound(self.config),
            turns,
            left_out,
            list(plan.order),
            list(plan.wanted),
            summary=plan.summary,
            summarised=plan.summarised,
            fallback=plan.fallback,
        )

    def note_scores(self, ranked: Sequence[Ranked]) -> None:
        """Keep the relevances of a build, in order of gathering."""
        if self.scores is None:
            scores = [(0.0, 0)] * len(ranked)
            for row in ranked:
                scores[row.candidate.rank] = (row.relevance, row.windows)
            self.scores = scores

    def again(self) -> Trace:
        """Return a trace that gives what this one has noted, for a repeat; this one stays as it is."""
        return Trace(
            self.query,
            self.now,
            self.session_id,
            self.roles,
            self.config,
            self.model_max_tokens,
            self.sources,
            self.asked,
            self.said,
            self.plan,
            self.gathered,
            self.scores,
            self.shortened.again(),
            self.given,
            self.facts,
            self.started,
        )

    def anew(
        self, config: ContextConfig, sources: tuple[str, ...], gathered: Gathered, model_max_tokens: int | None
    ) -> Trace:
        """Return a trace of the same request and conversation with other candidates, nothing of them known."""
        return Trace(
            self.query,
            self.now,
            self.session_id,
            self.roles,
            config,
            model_max_tokens,
            sources,
            self.asked,
            self.said,
            self.plan,
            gathered,
            given=self.given,
            started=self.started,
        )


# -- on disk ----------------------------------------------------------------------------------------------------------


class Pool(Protocol):
    """Keeps texts and packets, and returns JSON-ready values that stand for them."""

    def text(self, text: str) -> Any:
        """Keep a text."""
        ...

    def packet(self, candidate: Candidate) -> Any:
        """Keep the packet of a candidate."""
        ...


class Shelf(Protocol):
    """Gives back what a Pool has kept."""

    def text(self, ref: Any) -> str:
        """Return a text."""
        ...

    def packet(self, ref: Any) -> ContextPacket:
        """Return a packet."""
        ...


def dump(trace: Trace, pool: Pool) -> dict[str, Any]:
    """Return a trace as JSON-ready values, but for its config, with texts and packets in `pool`."""
    text = pool.text
    places = {id(item.packet): place for place, item in enumerate(trace.said)}
    candidates = []
    for item in trace.gathered.candidates:
        place = places.get(id(item.packet)) if item.message is not None else None
        rest = {name: value for name, default in _REST if (value := getattr(item, name)) != default}
        if item.tool is not None:
            rest["tool"] = text(json.dumps(asdict(item.tool), ensure_ascii=False))
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
        "said": [_dump_said(item, pool) for item in trace.said],
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
        "given": {name: text(json.dumps(value, ensure_ascii=False)) for name, value in trace.given.items()},
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
        candidates.append(Candidate(own, source, rank, message=message, **more))
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
        [(relevance, windows) for relevance, windows in values["scores"]],
        Journal(
            (text(body), room, (text(result[0]), result[1]) if result else None)
            for body, room, result in values["shortened"]
        ),
        {name: _value(text(value)) for name, value in values["given"].items()},
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


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def known_fields(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values that are fields of a dataclass: a purge may have hit a name."""
    names = {item.name for item in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def _dump_said(item: Said, pool: Pool) -> list[Any]:
    message = item.message
    stamp = message.timestamp.isoformat() if message.timestamp else None
    more = {name: value for name in ("name", "tool_calls", "tool_call_id") if (value := getattr(message, name))}
    if isinstance(message.content, str):
        content = pool.text(message.content)
        if not more:
            return [message.role, content, stamp] if stamp else [message.role, content]
    else:
        content = None
        more["content"] = None if message.content is None else [_part(part) for part in message.content]
    return [message.role, content, stamp, pool.text(json.dumps(json_ready(more), ensure_ascii=False))]


def _part(part: Any) -> Any:
    """Return a part of a message so that it has the same text when it is JSON."""
    if isinstance(part, (str, Mapping)):
        return part
    return {name: value for name in ("type", "text") if (value := getattr(part, name, None)) is not None}


def _load_said(values: Sequence[Any], shelf: Shelf) -> Said:
    role, content, stamp, more = (*values, None, None)[:4]
    given = known_fields(Message, parsed(shelf.text(more), {})) if more is not None else {}
    if content is not None:
        given["content"] = shelf.text(content)
    return said_of(Message(given.pop("content", None), role, stamp, **given))
