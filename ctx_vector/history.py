"""The conversation of one build: its turns, which of them stay, and what became of the others.

    read      messages become turns; what must not stand in a context is left out (`Listener`)
    choose    a strategy of trim.py says which turns may stay, in order of choice; with `summary` the older ones go into
              a rolling summary first, and when that fails the strategy is `budget`
    place     the turns chosen go through the pipeline like every candidate; placing.py puts them into the layout
    record    whatever does not stand in the context has a Decision

Only the turns chosen are rendered, and turns are counted newest first until the bound is reached, so that a long
conversation costs little more than its recent end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from ctx_vector.config import ContextConfig
from ctx_vector.errors import InputError
from ctx_vector.gather import TOOL_ROLES, SourceSpec
from ctx_vector.layout import CONTEXT
from ctx_vector.packets import TYPE_HISTORY, Candidate, ContextPacket, Decision, Message
from ctx_vector.ranking import Ranked, score_texts
from ctx_vector.recency import recency
from ctx_vector.stages import Encoder, Scorer, Summarizer, TokenCounter
from ctx_vector.structure import TEXTS, chat_message, message_body
from ctx_vector.summary import Summaries
from ctx_vector.trim import Turns, choose, turns_of

#: Messages that a listener remembers.
_MOST_MESSAGES: Final = 10_000
#: A summary may take this part of the history's bound, and is not worth its title below so many tokens.
_SUMMARY_SHARE: Final = 4
_LEAST_SUMMARY: Final = 20


@dataclass(slots=True, eq=False)
class Said:
    """One message of a conversation, with what has been worked out of it. `tokens` are those of the chat message."""

    message: Message
    packet: ContextPacket
    tokens: int = -1
    line: str = ""

    def size(self, counter: TokenCounter) -> int:
        """Return the tokens of the chat message with framing, counted once."""
        if self.tokens < 0:
            sent = chat_message(self.message, self.packet.content)
            self.tokens = counter.count_messages([sent]) - counter.count_messages([])
        return self.tokens

    def spoken(self) -> str:
        """Return the message as ``role: content``."""
        if not self.line:
            self.line = f"{self.message.role}: {message_body(self.message)}"
        return self.line


class Listener:
    """Reads conversations, and remembers plain messages: most of a conversation was there at the last build.

    Safe to share between threads; for one counter.
    """

    def __init__(self, counter: TokenCounter) -> None:
        self.counter = counter
        self._known: dict[Hashable, Said] = {}

    def read(self, items: Sequence[Any]) -> list[Said]:
        """Return the messages of a conversation. Raises InputError for one that is none."""
        known = self._known
        if len(known) > _MOST_MESSAGES:
            self._known = known = {}
        said = []
        for index, item in enumerate(items):
            key = _key(item)
            found = known.get(key) if key is not None else None
            if found is None:
                found = _said(item, index)
                if key is not None:
                    known[key] = found
            said.append(found)
        return said


def _key(item: Any) -> Hashable | None:
    """Return what tells a message of role and text from others; None when there is more to it, which may change."""
    role: Any
    content: Any
    if type(item) is Message:
        if item.tool_calls or item.metadata or item.name or item.tool_call_id:
            return None
        role, content, stamp = item.role, item.content, item.timestamp
    elif type(item) is dict and len(item) == 2:
        role, content, stamp = item.get("role"), item.get("content"), None
    else:
        return None
    return (role, content, stamp) if type(content) is str and type(role) is str else None


def _said(item: Any, index: int) -> Said:
    message = Message.of(item)
    if message.tool_calls:
        _check_calls(message, index)
    packet = ContextPacket(message.text, message.timestamp, metadata={"type": TYPE_HISTORY, "role": message.role})
    return Said(message, packet)


def _check_calls(message: Message, index: int) -> None:
    calls = list(message.tool_calls or ())
    try:
        json.dumps(calls)
        for call in calls:
            call.get("id")
    except (TypeError, ValueError, AttributeError):
        raise InputError(
            f"conversation_history[{index}].tool_calls: expected JSON-ready mappings such as "
            f'{{"id": ..., "function": {{"name": ..., "arguments": ...}}}}, got {calls!r:.80}'
        ) from None


Fate = tuple[Said, str, str]  # a message that does not stand in the context, with reason and detail


def _turns(said: Sequence[Said], query: str) -> tuple[list[list[Said]], list[Fate]]:
    """Return the turns, and apart the messages that must not stand in the context.

    These are empty ones, the last one when it only repeats the query, and tool results whose call is not there.
    """
    asked = query.strip()
    kept: list[Said] = []
    left_out: list[Fate] = []
    for turn in turns_of([item.message for item in said]):
        calls: set[str] = set()
        for index in turn:
            item, message = said[index], said[index].message
            if message.tool_calls:
                calls |= {str(call.get("id")) for call in message.tool_calls}
            if message.role in TOOL_ROLES:
                known = message.tool_call_id in calls if message.tool_call_id else index > turn[0]
                if not known:
                    left_out.append((item, "window", "a tool result without its call"))
                    continue
            text = item.packet.content
            if not text or text.isspace():
                if not message.tool_calls and not message.tool_call_id:
                    left_out.append((item, "empty", "nothing to show"))
                    continue
            elif index == len(said) - 1 and message.role == "user" and asked and text.strip() == asked:
                left_out.append((item, "duplicate", "repeats the query"))
                continue
            kept.append(item)
    return [[kept[index] for index in turn] for turn in turns_of([item.message for item in kept])], left_out


@dataclass(slots=True, eq=False)
class History:
    """What a build does with its conversation.

    `order` are the turns chosen, in order of choice, `wanted` those the strategy would have taken too, `kept` those
    that stand in the context, in order of speaking (set by placing.py). `summary` stands for the first `summarised`
    turns. `bound` are the most tokens of the whole history, None for no bound of its own.
    """

    strategy: str
    bound: int | None
    turns: list[list[Said]] = field(default_factory=list)
    left_out: list[Fate] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    values: Sequence[float] = ()
    summary: str = ""
    summarised: int = 0
    fallback: str = ""

    @property
    def numbers(self) -> list[int]:
        """The turn of each message chosen, in order of speaking."""
        return [number for number in sorted(self.order) for _ in self.turns[number]]

    def spec(self) -> SourceSpec:
        """Return the source of the messages chosen, in order of speaking."""
        chosen = [item for number in sorted(self.order) for item in self.turns[number]]
        candidates = [Candidate(item.packet, "history", message=item.message) for item in chosen]
        return SourceSpec("history", TYPE_HISTORY, lambda _: candidates)

    def meta(self, config: ContextConfig) -> dict[str, Any]:
        """Return what the strategy did, in turns: kept + left_out + summarised = turns."""
        kept, total = len(self.kept), len(self.turns)
        shown = {
            "strategy": config.history_strategy,
            "turns": total,
            "kept": kept,
            "left_out": total - kept - self.summarised,
            "summarised": self.summarised,
        }
        return {**shown, "fallback": self.fallback} if self.fallback else shown

    def decisions(self, config: ContextConfig, now: datetime) -> list[Decision]:
        """Return the fate of every message that was not chosen, in order of speaking, turns after what is no turn."""
        fates = list(self.left_out)
        chosen, wanted = set(self.order), set(self.wanted)
        outside = _outside(self.strategy, config)
        for number, turn in enumerate(self.turns):
            if number in chosen:
                continue
            if number < self.summarised:
                reason, detail = "window", "summary: stands in the summary of the earlier conversation"
            elif number in wanted:
                reason, detail = "budget", f"{self.strategy}: over the {self.bound} tokens of the history"
                if self.values:
                    detail += f", importance {self.values[number]:.3f}"
            else:
                reason, detail = "window", outside
            fates += [(item, reason, detail) for item in turn]
        relevance = config.history_relevance or 0.0
        made = []
        for item, reason, detail in fates:
            stamp = item.packet.timestamp
            age = 1.0 if stamp is None else _recency(stamp, now, config)
            score = config.relevance_weight * relevance + config.recency_weight * age
            made.append(
                Decision(
                    item.packet, "history", CONTEXT, relevance, age, score, 0, False, "dropped", reason, detail
                )
            )  # fmt: skip
        return made


def _recency(stamp: datetime, now: datetime, config: ContextConfig) -> float:
    decay = config.recency_decay_by_type.get(TYPE_HISTORY, config.recency_decay)
    return recency(stamp, now, decay, config.recency_floor_by_type.get(TYPE_HISTORY, config.recency_floor))


def _outside(strategy: str, config: ContextConfig) -> str:
    """Return why a turn is not among those that a strategy wants."""
    return {
        "window": f"window: older than the newest {config.history_limit} messages in whole turns",
        "head_tail": f"head_tail: between the first {config.history_head_keep} and the last "
        f"{config.history_tail_keep} turns",
        "summary": f"summary: older than the newest {config.summary_keep_turns} turns, and no summary fits",
    }.get(strategy, strategy)


def history_bound(config: ContextConfig) -> int | None:
    """Return the most tokens of the history: its part budget, else half of the shared limit, for a window none."""
    limit = config.budgets.get("history")
    if limit is None and config.history_strategy != "window":
        return config.shared_limit // 2
    return limit


def plan_history(
    said: Sequence[Said],
    query: str,
    config: ContextConfig,
    counter: TokenCounter,
    scorer: Callable[[], Scorer],
    encoder: Callable[[], Encoder],
    summarise: Callable[[History, int], None] | None = None,
) -> History:
    """Return which turns of a conversation may stay; `summarise` fills in the summary of the first n turns."""
    history = History(config.history_strategy, history_bound(config))
    history.turns, history.left_out = _turns(said, query)
    aged = len(history.turns) - max(1, config.summary_keep_turns)
    if history.strategy == "summary" and aged > 0 and summarise is not None:
        summarise(history, aged)
        if history.fallback:
            history.strategy = "budget"

    def importances() -> Sequence[float]:
        history.values = _importances(history.turns, query, scorer, encoder)
        return history.values

    turns = Turns(
        [len(turn) for turn in history.turns],
        lambda number: sum([item.size(counter) for item in history.turns[number]]),
        importances,
    )
    history.order, history.wanted = choose(history.strategy, turns, config, history.bound)
    return history


def roll_summary(
    history: History,
    turns: int,
    locale: str,
    session: str | None,
    summaries: Summaries,
    summarizer: Summarizer | None,
    counter: TokenCounter,
) -> None:
    """Put the summary of the first turns into `history`, or the reason why there is none into `fallback`."""
    room = (history.bound or 0) // _SUMMARY_SHARE
    if summarizer is None:
        history.fallback = "no summarizer was given"
    elif room < _LEAST_SUMMARY:
        history.fallback = f"{room} tokens are too few for a summary"
    else:
        texts = ["\n".join([item.spoken() for item in turn]) for turn in history.turns[:turns]]
        title = TEXTS[locale]["summary"]
        history.summary, history.fallback = summaries.roll(session, texts, title, summarizer, room, counter)
        history.summarised = turns if history.summary else 0


def _importances(
    turns: Sequence[Sequence[Said]], query: str, scorer: Callable[[], Scorer], encoder: Callable[[], Encoder]
) -> list[float]:
    """Return the importance of each turn: the highest in the metadata of its messages, else the highest relevance."""
    values = [max((_importance(item.message.metadata) for item in turn), default=-1.0) for turn in turns]
    unknown = [number for number, value in enumerate(values) if value < 0]
    if unknown and query.strip():
        rows = [
            (number, Ranked(Candidate(item.packet, "history"), CONTEXT, "history"))
            for number in unknown
            for item in turns[number]
        ]
        score_texts([row for _, row in rows], query, scorer(), encoder)
        for number, row in rows:
            values[number] = max(values[number], row.relevance)
    return [max(0.0, value) for value in values]


def _importance(metadata: Mapping[str, Any] | None) -> float:
    """Return `metadata["importance"]` clamped to [0, 1]; -1 when there is no number."""
    try:
        value = float((metadata or {})["importance"])
    except (KeyError, TypeError, ValueError):
        return -1.0
    return -1.0 if math.isnan(value) else min(1.0, max(0.0, value))
