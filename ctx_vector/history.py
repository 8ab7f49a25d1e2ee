"""The conversation of one build: which of its turns stay, and what became of the others.

    read      messages become turns; what must not stand in a context is left out (conversation.py)
    choose    a strategy of trim.py says which turns may stay, in order of choice; with `summary` the older ones go into
              a rolling summary first, and when that fails the strategy is `budget`
    place     the turns chosen go through the pipeline like every candidate; placing.py puts them into the layout
    record    whatever does not stand in the context has a Decision

Only the turns chosen are rendered, and turns are counted newest first until the bound is reached, so that a long
conversation costs little more than its recent end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from ctx_vector.built import Decision
from ctx_vector.config import ContextConfig
from ctx_vector.conversation import Fate, Said, read_turns
from ctx_vector.gather import SourceSpec
from ctx_vector.judging import encoded, relevances
from ctx_vector.layout import CONTEXT
from ctx_vector.packets import TYPE_HISTORY, Candidate, ContextPacket
from ctx_vector.recency import recency
from ctx_vector.stages import Encoder, Scorer, Summarizer, TokenCounter
from ctx_vector.structure import TEXTS
from ctx_vector.summary import Summaries
from ctx_vector.trim import Turns, choose

#: A summary may take this part of the history's bound, and is not worth its title below so many tokens.
_SUMMARY_SHARE: Final = 4
_LEAST_SUMMARY: Final = 20


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
