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
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from ctx_vector.built import Decision
from ctx_vector.config import ContextConfig
from ctx_vector.errors import InputError
from ctx_vector.gather import TOOL_ROLES, SourceSpec
from ctx_vector.judging import encoded, relevances
from ctx_vector.layout import CONTEXT, Piece
from ctx_vector.packets import TYPE_HISTORY, Candidate, ContextPacket, Message
from ctx_vector.recency import recency
from ctx_vector.stages import Encoder, Scorer, Summarizer, TokenCounter
from ctx_vector.structure import TEXTS, chat_message, message_body
from ctx_vector.summary import Summaries
from ctx_vector.trim import Turns, choose

#: Messages that a listener remembers.
_MOST_MESSAGES: Final = 10_000
#: A summary may take this part of the history's bound, and is not worth its title below so many tokens.
_SUMMARY_SHARE: Final = 4
_LEAST_SUMMARY: Final = 20


@dataclass(slots=True, eq=False)
class Said:
    """One message of a conversation. `plain` says that it can stand in a context whatever is before it.

    What has been worked out of it stays with it: the tokens of the chat message, the line it becomes in a summary, the
    turn it was last seen to begin, as one text, its piece of a layout for the labels of a build, and its last Decision.
    """

    message: Message
    packet: ContextPacket
    plain: bool
    tokens: int = -1
    line: str = ""
    turn: tuple[list[Said], Candidate] | None = None
    shown: tuple[tuple[str, ...], Piece] | None = None
    dropped: Decision | None = None

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
    """Return what tells a message from others: role, text and time, or itself when it has metadata.

    None for a message with parts or tool calls, or a mapping with more than role and content: these may change.
    """
    role: Any
    content: Any
    if type(item) is Message:
        if item.tool_calls or item.name or item.tool_call_id:
            return None
        if item.metadata:  # what is remembered holds the message, so that no other can get its id
            return id(item) if type(item.content) is str else None
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
    return said_of(message)


def said_of(message: Message, more: Mapping[str, Any] | None = None) -> Said:
    """Return a message of a conversation, read for the first time; `more` is metadata of its packet."""
    metadata = {"type": TYPE_HISTORY, "role": message.role, **(more or {})}
    packet = ContextPacket(message.text, message.timestamp, metadata=metadata)
    blank = not packet.content or packet.content.isspace()
    return Said(message, packet, plain=not (blank or message.tool_calls or message.role in TOOL_ROLES))


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


def read_turns(said: Sequence[Said], query: str, config: ContextConfig) -> tuple[list[list[Said]], list[Fate]]:
    """Return the turns, and apart the messages that must not stand in the context.

    A turn is a user message and everything up to the next user message, so that no answer stays without its question
    and no tool result without its call. Messages before the first user message form a turn of their own.

    Left out are all if `include` says so, and else empty ones, the last one when it only repeats the query, and tool
    results whose call is not there.
    """
    if not config.include.get("history", True):
        return [], [(item, "quota", "include.history is False") for item in said]
    turns: list[list[Said]] = []
    left_out: list[Fate] = []
    if said and query.strip() and said[-1].message.role == "user" and said[-1].packet.content.strip() == query.strip():
        left_out.append((said[-1], "duplicate", "repeats the query"))
        said = said[:-1]
    calls: set[str] = set()
    first = True  # of a turn, counting those that are left out
    for item in said:
        opens = item.message.role == "user"
        if opens:
            first, calls = True, set()
        if not item.plain and (fate := _unfit(item, calls, first)):
            left_out.append((item, *fate))
        elif opens or not turns:
            turns.append([item])
        else:
            turns[-1].append(item)
        first = False
    return turns, left_out


def _unfit(item: Said, calls: set[str], first: bool) -> tuple[str, str] | None:
    """Return why a message must not stand in the context; add its calls to those of the turn so far."""
    message, blank = item.message, not item.packet.content.strip()
    calls |= {str(call.get("id")) for call in message.tool_calls or ()}
    if message.role in TOOL_ROLES and not (message.tool_call_id in calls if message.tool_call_id else not first):
        return "window", "a tool result without its call"
    if blank and not message.tool_calls and not message.tool_call_id:
        return "empty", "nothing to show"
    return None


class Plan(NamedTuple):
    """What a strategy decided before anything was placed: importances and summaries come from outside, so that this is
    what a repeat of the build starts from. The fields are History's.
    """

    strategy: str
    order: tuple[int, ...]
    wanted: tuple[int, ...]
    summary: str
    summarised: int
    fallback: str


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
    summary: str = ""
    summarised: int = 0
    fallback: str = ""

    def plan(self) -> Plan:
        """Return what was decided so far, before placing."""
        return Plan(self.strategy, tuple(self.order), tuple(self.wanted), self.summary, self.summarised, self.fallback)

    def chosen(self) -> list[tuple[int, Said]]:
        """Return (turn, message) of each message chosen, in order of speaking."""
        return [(number, item) for number in sorted(self.order) for item in self.turns[number]]

    def spec(self) -> SourceSpec:
        """Return the source of the messages chosen, in order of speaking."""
        candidates = [Candidate(item.packet, "history", message=item.message) for _, item in self.chosen()]
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
        relevance = config.history_relevance or 0.0
        made: list[Decision] = []

        def drop(items: Sequence[Said], reason: str, detail: str) -> None:
            for item in items:
                stamp, known = item.packet.timestamp, item.dropped
                age = 1.0 if stamp is None else _recency(stamp, now, config)
                score = config.relevance_weight * relevance + config.recency_weight * age
                if known is None or (known.detail, known.relevance, known.recency, known.score) != (
                    detail,
                    relevance,
                    age,
                    score,
                ):
                    fate = (relevance, age, score, 0, False, "dropped", reason, detail)
                    known = item.dropped = Decision(item.packet, "history", CONTEXT, *fate)
                made.append(known)

        for item, reason, detail in self.left_out:
            drop([item], reason, detail)
        chosen, wanted = set(self.order), set(self.wanted)
        outside = _outside(self.strategy, config)
        over = f"{self.strategy}: over the {self.bound} tokens of the history"
        for number, turn in enumerate(self.turns):
            if number in chosen:
                continue
            if number < self.summarised:
                drop(turn, "window", "summary: stands in the summary of the earlier conversation")
            elif number in wanted:
                drop(turn, "budget", over)
            else:
                drop(turn, "window", outside)
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
    history.turns, history.left_out = read_turns(said, query, config)
    aged = len(history.turns) - max(1, config.summary_keep_turns)
    if history.strategy == "summary" and aged > 0 and summarise is not None:
        summarise(history, aged)
        if history.fallback:
            history.strategy = "budget"

    turns = Turns(
        [len(turn) for turn in history.turns],
        lambda number: sum([item.size(counter) if item.tokens < 0 else item.tokens for item in history.turns[number]]),
        lambda: _importances(history.turns, query, scorer, encoder),
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
    """Return the importance of each turn: the highest in its messages' metadata, else its relevance as one text."""
    values = [
        max([_importance(item.message.metadata) if item.message.metadata else -1.0 for item in turn]) for turn in turns
    ]
    unknown = [number for number, value in enumerate(values) if value < 0]
    if unknown and query.strip():
        judge = scorer()
        model = encoder() if getattr(judge, "uses_vectors", False) else None
        candidates = _whole([turns[number] for number in unknown], model)
        for number, (relevance, _) in zip(unknown, relevances(candidates, query, judge, encoder), strict=True):
            values[number] = relevance
    return [max(0.0, value) for value in values]


def _importance(metadata: Mapping[str, Any]) -> float:
    """Return `metadata["importance"]` clamped to [0, 1]; -1 when there is no number."""
    try:
        value = float(metadata["importance"])
    except (KeyError, TypeError, ValueError):
        return -1.0
    return -1.0 if math.isnan(value) else min(1.0, max(0.0, value))


def _whole(turns: Sequence[Sequence[Said]], model: Encoder | None) -> list[Candidate]:
    """Return each turn as one candidate, with its vectors when there is a model; remembered by its first message."""
    found: list[Candidate] = []
    new: list[int] = []
    for turn in turns:
        known = turn[0].turn
        if known is not None and known[0] == turn and (known[1].vectors is not None or model is None):
            found.append(known[1])
        else:
            new.append(len(found))
            found.append(Candidate(ContextPacket("\n".join([item.packet.content for item in turn])), "history"))
    if new and model is not None:
        _, blocks = encoded([found[place] for place in new], model)
        for place, vectors in zip(new, blocks, strict=True):
            found[place] = replace(found[place], vectors=vectors.copy())
    for place in new:
        turns[place][0].turn = (list(turns[place]), found[place])
    return found
