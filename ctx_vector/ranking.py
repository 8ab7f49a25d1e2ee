"""Ranking, the first half of selecting: score every candidate, drop what no budget could save, sort the rest.

score = relevance_weight * relevance + recency_weight * recency; a newer statement takes both over from an older one
that says the same (newer.py). Order: score descending, newer first, id, order of gathering. Dropped here: what came
with a reason, `empty`, `expired`, `below_floor`, and `duplicate` for the same text twice in a section (but never what
the caller gave as custom packets). System instructions, state, history, tool definitions and the layers that are there
whatever is asked (system, static, tool) are not subject to the floor.
"""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.config import ContextConfig
from ctx_vector.errors import InputError
from ctx_vector.gather import TOOL_ROLES
from ctx_vector.layout import ROLE, Piece, part_of
from ctx_vector.newer import replacements
from ctx_vector.packets import (
    TYPE_HISTORY,
    TYPE_IMAGE,
    TYPE_RESULT,
    TYPE_STATE,
    TYPE_SYSTEM,
    TYPE_TOOL,
    Candidate,
    Decision,
    as_utc,
)
from ctx_vector.recency import recency
from ctx_vector.stages import Candidates, Query, Scorer
from ctx_vector.structure import Template, slot_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ctx_vector.stages import Encoder

MOST_WINDOWS: Final = 8
_SAMPLES: Final = 16
_SAMPLE_CHARS: Final = 250
_AS_GIVEN: Final = ("system", "static", "tool", "agents")  # layers that keep the order of their sources
_NO_FLOOR: Final = ("system", "static", "tool")
_DISTANT_PAST: Final = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(slots=True, eq=False)
class Ranked:
    """A candidate with its scores and, in the end, its fate. `body` is what it says, normalised and not escaped."""

    candidate: Candidate
    section: str
    group: str
    body: str = ""
    relevance: float = 0.0
    recency: float = 0.0
    score: float = 0.0
    windows: int = 0  # that its text was scored by, 0 when its relevance was known
    known: tuple[Any, ...] = (0.0, 0)  # what a repeat has to be told: relevance, windows; then what was taken over
    detail: str = ""
    piece: Piece | None = None
    action: str = "dropped"
    reason: str = ""
    turn: int = -1
    definition: Any = None  # of a tool, as it stands in the context
    order: tuple[float, float, str, int] = (0.0, 0.0, "", 0)

    def set_relevance(self, relevance: float, windows: int) -> None:
        """Set the relevance, and by how many windows of the text it was found."""
        self.relevance, self.windows = relevance, windows
        if windows > 1:
            self.detail = f"scored by the best of {windows} windows"

    def take_over(self, older: Ranked, relevance: float, recency: float) -> None:
        """Take over from an older one that says the same."""
        name = f"{older.candidate.source}:{older.candidate.packet.id}"
        note = f"newer than {name}, which is like it; by itself its relevance is {self.relevance:.3f}"
        self.detail = "; ".join(part for part in (self.detail, note) if part)
        self.known = (self.relevance, self.windows, older.candidate.rank, relevance, recency)
        self.relevance, self.recency = relevance, recency

    def set_order(self) -> None:
        """Set the key that sorts best first: score, newer, id, order of gathering."""
        stamp = self.candidate.packet.timestamp
        age = -(stamp - _DISTANT_PAST).total_seconds() if stamp else float("-inf")
        self.order = (-self.score, age, self.candidate.packet.id, self.candidate.rank)

    @property
    def place(self) -> tuple[Any, ...]:
        """Sorts within the group as rendered: history as spoken, system instructions, tools and layers that are not
        searched as given, the rest best first; authoritative sources last.
        """
        if self.group == "history":
            stamp = self.candidate.packet.timestamp
            if self.candidate.message is None:  # a custom packet, before the conversation
                return (0, (stamp - _DISTANT_PAST).total_seconds() if stamp else 0.0, self.candidate.rank)
            return (1, 0.0, self.candidate.rank)
        authoritative, priority = self.candidate.standing
        if self.section == ROLE or self.candidate.layer in _AS_GIVEN:
            return (authoritative, priority, self.candidate.rank)
        return (authoritative, *self.order)

    @property
    def part(self) -> str:
        """The part of the budget it belongs to."""
        return part_of(self.section, self.group)

    @property
    def is_result(self) -> bool:
        """Whether it is what a tool gave."""
        message = self.candidate.message
        return message.role in TOOL_ROLES if message is not None else self.candidate.packet.type == TYPE_RESULT

    def reopen(self) -> None:
        """Take back that it was dropped, with what was said of it."""
        self.reason, self.detail = "", ""
        self.set_relevance(self.relevance, self.windows)

    def drop(self, reason: str, detail: str = "") -> None:
        """Set the fate: dropped."""
        self.action, self.reason = "dropped", reason
        self.detail = "; ".join(part for part in (self.detail, detail) if part)

    def keep(self, piece: Piece, action: str = "full", reason: str = "") -> None:
        """Set the fate: kept."""
        self.piece, self.action, self.reason = piece, action, reason

    def decision(self, shares: dict[int, int]) -> Decision:
        """Return the record of this fate; `shares` are the tokens of each kept piece."""
        kept = self.piece is not None
        return Decision(
            packet=self.candidate.packet,
            source=self.candidate.source,
            section=self.section,
            relevance=self.relevance,
            recency=self.recency,
            score=self.score,
            tokens=shares.get(id(self.piece), 0) if kept else 0,
            kept=kept,
            action=self.action,
            reason=self.reason,
            detail=self.detail,
            rendered=self.piece.text[:-1] if self.piece is not None else "",
        )


def windows(text: str, encoder: Encoder) -> list[str]:
    """Return the text itself, or at most 8 windows of an over-long one: first, last, the others evenly spaced.

    Windows are equally long in model tokens, not in characters: how dense each sixteenth of the text is, is estimated
    from its first characters, 4,000 in all.
    """
    limit = encoder.max_tokens
    if len(text) < limit:  # a token is hardly ever shorter than a character
        return [text]
    import numpy as np

    bounds = [len(text) * n // _SAMPLES for n in range(_SAMPLES + 1)]
    spans = list(itertools.pairwise(bounds))
    samples = [text[start : min(stop, start + _SAMPLE_CHARS)] for start, stop in spans]
    empty, *counts = encoder.count_tokens(["", *samples])
    tokens = [
        max(1, count - empty) * (stop - start) / max(1, len(sample))
        for count, (start, stop), sample in zip(counts, spans, samples, strict=True)
    ]
    upto = np.cumsum([0.0, *tokens])
    width = 0.95 * max(1, limit - empty)
    if upto[-1] < 1.25 * limit and encoder.count_tokens([text])[0] <= limit:  # near the limit only a count decides
        return [text]
    count = max(2, min(MOST_WINDOWS, math.ceil(upto[-1] / width)))
    starts = np.linspace(0.0, max(0.0, upto[-1] - width), count)
    cuts = np.rint(np.interp([*starts, *(starts + width)], upto, bounds)).astype(int)
    return [text[start:stop] for start, stop in zip(cuts[:count], cuts[count:], strict=True)]


def rank(
    candidates: Sequence[Candidate],
    template: Template,
    config: ContextConfig,
    now: datetime,
    scorer: Callable[[], Scorer],
    encoder: Callable[[], Encoder],
    known: Sequence[tuple[Any, ...]] | None = None,
) -> list[Ranked]:
    """Return a row for every candidate; the ones with a reason are dropped already, the rest is in order of choice.

    Scorer and encoder are asked for only when a candidate needs them. `known` is `Ranked.known` of each candidate
    when all have been scored before.
    """
    rows = [Ranked(candidate, *slot_of(candidate), template.body(candidate)) for candidate in candidates]
    for row in rows:
        if row.candidate.reason:
            row.drop(row.candidate.reason, row.candidate.detail)
        elif not row.body:
            row.drop("empty", "nothing to show")
        elif (expires := row.candidate.packet.meta.get("expires_at")) is not None and _expired(expires, now):
            row.drop("expired", f"expired at {expires}")
    _score(rows, template.query, config, now, scorer, encoder, known)
    if known is None:
        for new, old in replacements(rows, config, now, scorer, encoder):
            new.take_over(old, max(new.relevance, old.relevance), max(new.recency, old.recency))
    for row in rows:
        row.score = config.relevance_weight * row.relevance + config.recency_weight * row.recency
        row.set_order()
    rows.sort(key=lambda row: row.order)
    seen: dict[tuple[str, str], str] = {}
    for row in rows:
        if row.reason:
            continue
        packet = row.candidate.packet
        if packet.type in (TYPE_SYSTEM, TYPE_STATE, TYPE_HISTORY, TYPE_TOOL, TYPE_IMAGE):
            continue
        if row.relevance < config.min_relevance and row.candidate.layer not in _NO_FLOOR:
            row.drop("below_floor", f"relevance {row.relevance:.3f} < min_relevance {config.min_relevance:g}")
        elif row.candidate.source != "custom":
            key = (row.section, _content_key(packet.content))
            if key in seen:
                row.drop("duplicate", f"same text as {seen[key]}")
            else:
                seen[key] = f"{row.candidate.source}:{packet.id}"
    return rows


def _expired(value: object, now: datetime) -> bool:
    try:
        stamp = as_utc(value)  # type: ignore[arg-type]
    except InputError:
        return False
    return stamp is not None and stamp <= now


def _content_key(text: str) -> str:
    return " ".join((text if text.isascii() else unicodedata.normalize("NFKC", text)).casefold().split())


def _score(
    rows: Sequence[Ranked],
    query: str,
    config: ContextConfig,
    now: datetime,
    scorer: Callable[[], Scorer],
    encoder: Callable[[], Encoder],
    known: Sequence[tuple[Any, ...]] | None,
) -> None:
    unscored = []
    for place, row in enumerate(rows):
        packet, kind = row.candidate.packet, row.candidate.packet.type
        if known is not None:
            row.set_relevance(*known[place][:2])
        elif kind == TYPE_SYSTEM or (kind == TYPE_STATE and not packet.scored):
            row.relevance = 1.0
        elif packet.scored:
            row.relevance = packet.relevance
        elif kind == TYPE_HISTORY and config.history_relevance is not None:
            row.relevance = config.history_relevance
        elif isinstance(config.strategy, str) and config.strategy in row.candidate.known:
            row.relevance = row.candidate.known[config.strategy]
        elif query.strip() and not row.reason:  # what is dropped already is not worth an encoding
            unscored.append(row)
        kind = str(packet.meta.get("memory_type") or kind)
        decay = config.recency_decay_by_type.get(kind, config.recency_decay)
        floor = config.recency_floor_by_type.get(kind, config.recency_floor)
        row.recency = recency(packet.timestamp, now, decay, floor)
    if unscored:
        _score_texts(unscored, query, scorer(), encoder)
    for row in rows:
        row.known = (row.relevance, row.windows)
    for row, (_, _, *taken) in zip(rows, known or (), strict=bool(known)):
        if taken:
            row.take_over(rows[taken[0]], taken[1], taken[2])


def _score_texts(rows: Sequence[Ranked], query: str, scorer: Scorer, encoder: Callable[[], Encoder]) -> None:
    found = relevances([row.candidate for row in rows], query, scorer, encoder)
    for row, (relevance, parts) in zip(rows, found, strict=True):
        row.set_relevance(relevance, parts if row.candidate.vectors is None else 0)


def relevances(
    candidates: Sequence[Candidate], query: str, scorer: Scorer, encoder: Callable[[], Encoder]
) -> list[tuple[float, int]]:
    """Return (relevance in [0, 1], number of windows) of each candidate: that of its best window."""
    import numpy as np

    asked, vectors = Query(query), None
    parts = [[item.packet.content] for item in candidates]
    if getattr(scorer, "uses_vectors", False):
        model = encoder()
        asked = Query(query, model.encode_queries([query])[0])
        parts, blocks = encoded(candidates, model)
        vectors = np.concatenate(blocks, dtype=np.float32)
    counts = [len(texts) for texts in parts]
    texts = list(itertools.chain.from_iterable(parts))
    packets = [item.packet for item, count in zip(candidates, counts, strict=True) for _ in range(count)]
    scores = np.asarray(scorer.score(asked, Candidates(texts, packets, vectors)), np.float64)
    if scores.shape != (len(texts),):
        raise InputError(f"{type(scorer).__name__}.score: expected shape ({len(texts)},), got {scores.shape}")
    best = np.zeros(len(candidates))
    owners = np.repeat(np.arange(len(candidates)), counts)
    np.maximum.at(best, owners, np.nan_to_num(np.clip(scores, 0.0, 1.0)))
    return list(zip(best.tolist(), counts, strict=True))


def encoded(candidates: Sequence[Candidate], model: Encoder) -> tuple[list[list[str]], list[NDArray[np.float32]]]:
    """Return the windows and the vectors (windows, dim) of each candidate; what has none is encoded in one call."""
    parts = [
        windows(item.packet.content, model) if item.vectors is None else [item.packet.content] * len(item.vectors)
        for item in candidates
    ]
    missing = [text for item, texts in zip(candidates, parts, strict=True) if item.vectors is None for text in texts]
    fresh = model.encode_documents(missing) if missing else None
    blocks: list[NDArray[np.float32]] = []
    done = 0
    for candidate, texts in zip(candidates, parts, strict=True):
        if candidate.vectors is not None:
            blocks.append(candidate.vectors)
        elif fresh is not None:
            blocks.append(fresh[done : done + len(texts)])
            done += len(texts)
    return parts, blocks
