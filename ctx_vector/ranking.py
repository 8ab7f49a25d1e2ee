"""Ranking, the first half of selecting: score every candidate, drop what no budget could save, sort the rest.

score = relevance_weight * relevance + recency_weight * recency; a newer statement takes both over from an older one
that says the same (newer.py). Order: score descending, newer first, id, order of gathering; or another one, for
variety (diversity.py). Dropped here: what came with a reason, `empty`, `expired`, `below_floor`. System instructions,
state, history, tool definitions and the layers that are there whatever is asked (system, static, tool) are not subject
to the floor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.config import ContextConfig
from ctx_vector.diversity import NOT_RANKED, Variety
from ctx_vector.errors import InputError
from ctx_vector.gather import TOOL_ROLES
from ctx_vector.layout import ROLE, Piece, part_of
from ctx_vector.newer import replacements
from ctx_vector.ordering import best_first
from ctx_vector.packets import TYPE_HISTORY, TYPE_RESULT, TYPE_STATE, TYPE_SYSTEM, Candidate, Decision
from ctx_vector.recency import recency
from ctx_vector.rerank import SECOND_PASS
from ctx_vector.stages import Candidates, Query, Scorer
from ctx_vector.structure import Template, slot_of
from ctx_vector.values import as_utc

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ctx_vector.rerank import SecondPass
    from ctx_vector.stages import Encoder

MOST_WINDOWS: Final = 8
_SAMPLES: Final = 16
_SAMPLE_CHARS: Final = 250
_AS_GIVEN: Final = ("system", "static", "tool", "agents")  # layers that keep the order of their sources
_NO_FLOOR: Final = ("system", "static", "tool")
_DISTANT_PAST: Final = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(slots=True, eq=False)
class Ranked:
    """A candidate with its scores and, in the end, its fate."""

    candidate: Candidate
    section: str
    group: str
    part: str = ""  # of the budget, that it belongs to
    kind: str = ""  # the packet's type
    say: Callable[[Candidate], str] | None = None  # gives the body when it is first asked for
    vectors: NDArray[np.float32] | None = None  # (windows, dim), where they are at hand
    plain: bool = False  # whether it says what its packet says
    said: str | None = None
    relevance: float = 0.0
    recency: float = 0.0
    score: float = 0.0
    windows: int = 0  # that its text was scored by, 0 when its relevance was known
    passes: tuple[float, float] | None = None  # relevances by the first and the second pass
    taken: tuple[Any, ...] = ()  # relevance and windows of its own, and what it took over
    detail: str = ""
    piece: Piece | None = None
    action: str = "dropped"
    reason: str = ""
    turn: int = -1
    spot: int = -1  # in the order of scores (diversity.py)
    definition: Any = None  # of a tool, as it stands in the context

    @property
    def known(self) -> tuple[Any, ...]:
        """What a repeat has to be told: relevance, windows; then the rank of the one taken over from, and what."""
        return self.taken or (self.relevance, self.windows)

    @property
    def body(self) -> str:
        """What it says, normalised and not escaped."""
        if self.said is None:
            self.said = self.say(self.candidate) if self.say is not None else ""
        return self.said

    def set_relevance(self, relevance: float, windows: int, passes: tuple[float, float] | None = None) -> None:
        """Set the relevance, by how many windows of the text it was found, and by which two passes."""
        self.relevance, self.windows, self.passes = relevance, windows, passes
        if windows > 1:
            self.detail = f"scored by the best of {windows} windows"
        if passes is not None:
            note = f"relevance {passes[0]:.3f} by the first pass, {passes[1]:.3f} by the second"
            self.detail = f"{self.detail}; {note}" if windows > 1 else note

    def take_over(self, older: Ranked, relevance: float, recency: float) -> None:
        """Take over from an older one that says the same."""
        name = f"{older.candidate.source}:{older.candidate.packet.id}"
        note = f"newer than {name}, which is like it; by itself its relevance is {self.relevance:.3f}"
        self.detail = "; ".join(part for part in (self.detail, note) if part)
        self.taken = (self.relevance, self.windows, older.candidate.rank, relevance, recency)
        self.relevance, self.recency = relevance, recency

    @property
    def order(self) -> tuple[float, float, str, int]:
        """The key that sorts best first: score, newer, id, order of gathering."""
        stamp = self.candidate.packet.timestamp
        age = -(stamp - _DISTANT_PAST).total_seconds() if stamp else float("-inf")
        return (-self.score, age, self.candidate.packet.id, self.candidate.rank)

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
    def is_result(self) -> bool:
        """Whether it is what a tool gave."""
        message = self.candidate.message
        return message.role in TOOL_ROLES if message is not None else self.candidate.packet.type == TYPE_RESULT

    def reopen(self) -> None:
        """Take back that it was dropped, with what was said of it."""
        self.reason, self.detail = "", ""
        self.set_relevance(self.relevance, self.windows, self.passes)

    def drop(self, reason: str, detail: str = "") -> None:
        """Set the fate: dropped."""
        self.action, self.reason = "dropped", reason
        self.detail = f"{self.detail}; {detail}" if self.detail and detail else self.detail or detail

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
    note: MutableMapping[str, Any] | None = None,
    second: SecondPass | None = None,
    variety: Variety | None = None,
) -> list[Ranked]:
    """Return a row for every candidate; the ones with a reason are dropped already, the rest is in order of choice.

    Scorer and encoder are asked for only when a candidate needs them. `known` is `Ranked.known` of each candidate
    when all have been scored before, and `note` has what the second pass found. `second` looks again at the best of
    what no source has ranked by two passes already. `variety` may put the rows in another order than that of scores.
    """
    rows = _opened(candidates, template, now)
    _score(rows, template.query, config, now, scorer, encoder, known, {} if note is None else note, second)
    if known is None:
        for new, old in replacements(rows, config, now, scorer, encoder, template.query):
            new.take_over(old, max(new.relevance, old.relevance), max(new.recency, old.recency))
    for_relevance, for_recency, floor = config.relevance_weight, config.recency_weight, config.min_relevance
    for row in rows:
        row.score = for_relevance * row.relevance + for_recency * row.recency
        if row.relevance < floor:
            _drop_below(row, floor)
    best_first(rows, attrgetter("score"), attrgetter("order"))
    return rows if variety is None else variety.ordered(rows)


def _opened(candidates: Sequence[Candidate], template: Template, now: datetime) -> list[Ranked]:
    """Return a row for each candidate; one that has a reason, nothing to show, or is out of date, is dropped."""
    rows = []
    slots: dict[tuple[str, str], tuple[str, str, str]] = {}  # by type and layer, but for those below
    body = template.body
    for candidate in candidates:
        packet = candidate.packet
        kind, meta = packet.type, packet.metadata or {}
        tool = candidate.tool
        usual = tool is None and candidate.image is None and "section" not in meta
        slot = slots.get((kind, candidate.layer)) if usual else None
        if slot is None:
            section, group = slot_of(candidate)
            slot = section, group, part_of(section, group)
            if usual:
                slots[kind, candidate.layer] = slot
        section, group, part = slot
        plain, text = candidate.message is None and tool is None and kind != TYPE_RESULT, packet.content
        row = Ranked(candidate, section, group, part, kind, body, candidate.vectors, plain)
        if candidate.reason:
            row.drop(candidate.reason, candidate.detail)
        elif (not text or text.isspace()) if plain else not row.body:
            row.drop("empty", "nothing to show")
        elif (expires := meta.get("expires_at")) is not None and _expired(expires, now):
            row.drop("expired", f"expired at {expires}")
        rows.append(row)
    return rows


def _drop_below(row: Ranked, floor: float) -> None:
    """Drop a row that is under the floor, if it is subject to it."""
    if not row.reason and row.kind not in NOT_RANKED and row.candidate.layer not in _NO_FLOOR:
        row.drop("below_floor", f"relevance {row.relevance:.3f} < min_relevance {floor:g}")


def _expired(value: object, now: datetime) -> bool:
    try:
        stamp = as_utc(value)  # type: ignore[arg-type]
    except InputError:
        return False
    return stamp is not None and stamp <= now


def _score(
    rows: Sequence[Ranked],
    query: str,
    config: ContextConfig,
    now: datetime,
    scorer: Callable[[], Scorer],
    encoder: Callable[[], Encoder],
    known: Sequence[tuple[Any, ...]] | None,
    note: MutableMapping[str, Any],
    second: SecondPass | None,
) -> None:
    unscored = []
    looked_at = note.get(SECOND_PASS, {}) if known is not None else {}
    asked = bool(query.strip())
    strategy = config.strategy if isinstance(config.strategy, str) else ""
    decays, floors = config.recency_decay_by_type, config.recency_floor_by_type
    for place, row in enumerate(rows):
        candidate, kind = row.candidate, row.kind
        packet = candidate.packet
        if known is not None:
            passes = looked_at.get(str(row.candidate.rank), row.candidate.passes)
            relevance, parts, *_ = known[place]
            row.set_relevance(relevance, parts, passes and (passes[0], passes[1]))
        elif kind == TYPE_SYSTEM or (kind == TYPE_STATE and not packet.scored):
            row.relevance = 1.0
        elif packet.scored:
            row.relevance = packet.relevance
        elif kind == TYPE_HISTORY and config.history_relevance is not None:
            row.relevance = config.history_relevance
        elif strategy in candidate.known:
            row.relevance = candidate.known[strategy]
            if candidate.passes is not None:
                row.set_relevance(row.relevance, 0, candidate.passes)
        elif asked and not row.reason:  # what is dropped already is not worth an encoding
            unscored.append(row)
        if packet.timestamp is not None:
            kind = str(packet.meta.get("memory_type") or kind)
            decay = decays.get(kind, config.recency_decay)
            row.recency = recency(packet.timestamp, now, decay, floors.get(kind, config.recency_floor))
        else:
            row.recency = 1.0
    if unscored:
        _score_texts(unscored, query, scorer(), encoder)
        if second is not None:
            _look_again(unscored, query, second, encoder, note)
    for row, (_, _, *taken) in zip(rows, known or (), strict=bool(known)):
        if taken:
            row.take_over(rows[taken[0]], taken[1], taken[2])


def _score_texts(rows: Sequence[Ranked], query: str, scorer: Scorer, encoder: Callable[[], Encoder]) -> None:
    found = _scored([row.candidate for row in rows], query, scorer, encoder)
    for row, (relevance, parts, vectors) in zip(rows, found, strict=True):
        row.set_relevance(relevance, parts if row.candidate.vectors is None else 0)
        row.vectors = row.vectors if vectors is None else vectors


def _look_again(
    rows: Sequence[Ranked],
    query: str,
    second: SecondPass,
    encoder: Callable[[], Encoder],
    note: MutableMapping[str, Any],
) -> None:
    """Let the second pass judge the best of these rows, and note what both passes said."""
    import numpy as np

    ranked = [row for row in rows if row.kind not in NOT_RANKED]
    ranked.sort(key=lambda row: (-row.relevance, row.candidate.rank))
    best = ranked[: second.depth]
    if not best:
        return
    parts = [windows(row.candidate.packet.content, encoder()) for row in best]
    scores = second.look(query, list(itertools.chain.from_iterable(parts)))
    starts = np.cumsum([0, *map(len, parts)])[:-1]
    first, again = np.array([row.relevance for row in ranked]), np.maximum.reduceat(scores, starts)
    for row, both, before, after in zip(best, second.fused(first, again), first, again, strict=False):
        row.set_relevance(float(both), row.windows, (float(before), float(after)))
        note.setdefault(SECOND_PASS, {})[str(row.candidate.rank)] = list(row.passes or ())


def relevances(
    candidates: Sequence[Candidate], query: str, scorer: Scorer, encoder: Callable[[], Encoder]
) -> list[tuple[float, int]]:
    """Return (relevance in [0, 1], number of windows) of each candidate: that of its best window."""
    return [(relevance, count) for relevance, count, _ in _scored(candidates, query, scorer, encoder)]


def _scored(
    candidates: Sequence[Candidate], query: str, scorer: Scorer, encoder: Callable[[], Encoder]
) -> list[tuple[float, int, NDArray[np.float32] | None]]:
    """Return the same, with the vectors (windows, dim) of each when the scorer uses them."""
    import numpy as np

    asked, vectors = Query(query), None
    blocks: Sequence[NDArray[np.float32] | None] = [None] * len(candidates)
    parts = [[item.packet.content] for item in candidates]
    if getattr(scorer, "uses_vectors", False):
        model = encoder()
        asked = Query(query, model.encode_queries([query])[0])
        parts, found = encoded(candidates, model)
        vectors, blocks = np.concatenate(found, dtype=np.float32), found
    counts = [len(texts) for texts in parts]
    texts = list(itertools.chain.from_iterable(parts))
    packets = [item.packet for item, count in zip(candidates, counts, strict=True) for _ in range(count)]
    scores = np.asarray(scorer.score(asked, Candidates(texts, packets, vectors)), np.float64)
    if scores.shape != (len(texts),):
        raise InputError(f"{type(scorer).__name__}.score: expected shape ({len(texts)},), got {scores.shape}")
    best = np.zeros(len(candidates))
    owners = np.repeat(np.arange(len(candidates)), counts)
    np.maximum.at(best, owners, np.nan_to_num(np.clip(scores, 0.0, 1.0)))
    return list(zip(best.tolist(), counts, blocks, strict=True))


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
