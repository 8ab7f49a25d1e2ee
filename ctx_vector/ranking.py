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
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.config import ContextConfig
from ctx_vector.diversity import NOT_RANKED, varied
from ctx_vector.errors import InputError
from ctx_vector.gather import TOOL_ROLES
from ctx_vector.layout import ROLE, Piece, part_of
from ctx_vector.newer import replacements
from ctx_vector.packets import (
    TYPE_HISTORY,
    TYPE_RESULT,
    TYPE_STATE,
    TYPE_SYSTEM,
    Candidate,
    Decision,
    as_utc,
)
from ctx_vector.recency import recency
from ctx_vector.rerank import SECOND_PASS
from ctx_vector.stages import Candidates, Query, Scorer
from ctx_vector.structure import Template, slot_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ctx_vector.calibration import Calibration
    from ctx_vector.rerank import SecondPass
    from ctx_vector.stages import Encoder

MOST_WINDOWS: Final = 8
_SAMPLES: Final = 16
_SAMPLE_CHARS: Final = 250
_AS_GIVEN: Final = ("system", "static", "tool", "agents")  # layers that keep the order of their sources
_NO_FLOOR: Final = ("system", "static", "tool")
_BEGINNING: Final = 4  # words
_DISTANT_PAST: Final = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(slots=True, eq=False)
class Ranked:
    """A candidate with its scores and, in the end, its fate."""

    candidate: Candidate
    section: str
    group: str
    say: Callable[[Candidate], str] | None = None  # gives the body when it is first asked for
    said: str | None = None
    vectors: NDArray[np.float32] | None = None  # (windows, dim), where they are at hand
    kind: str = ""  # the packet's type
    part: str = ""  # of the budget, that it belongs to
    relevance: float = 0.0
    recency: float = 0.0
    score: float = 0.0
    windows: int = 0  # that its text was scored by, 0 when its relevance was known
    passes: tuple[float, float] | None = None  # relevances by the first and the second pass
    known: tuple[Any, ...] = (0.0, 0)  # what a repeat has to be told: relevance, windows; then what was taken over
    detail: str = ""
    piece: Piece | None = None
    action: str = "dropped"
    reason: str = ""
    turn: int = -1
    spot: int = -1  # among those it is compared with (diversity.py)
    definition: Any = None  # of a tool, as it stands in the context
    order: tuple[float, float, str, int] = (0.0, 0.0, "", 0)

    @property
    def body(self) -> str:
        """What it says, normalised and not escaped."""
        if self.said is None:
            self.said = self.say(self.candidate) if self.say is not None else ""
        return self.said

    @property
    def plain(self) -> str:
        """A text with no more words than the body: the packet's own, where that saves making the body."""
        item = self.candidate
        if self.said is None and item.message is None and item.tool is None and self.kind != TYPE_RESULT:
            text = item.packet.content.strip()
            if "\x1f" not in text:  # which parts words, and becomes a character of a word
                return text
        return self.body

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show of it."""
        item = self.candidate
        if item.message is None and item.tool is None and self.kind != TYPE_RESULT:
            return not item.packet.content.strip()
        return not self.body

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
    calibration: Callable[[bool], Calibration | None] = lambda measure: None,
    second: SecondPass | None = None,
) -> list[Ranked]:
    """Return a row for every candidate; the ones with a reason are dropped already, the rest is in order of choice.

    Scorer and encoder are asked for only when a candidate needs them. `known` is `Ranked.known` of each candidate
    when all have been scored before; then the order that `note` says is taken (diversity.py), else it is put there.
    `second` looks again at the best of what no source has ranked by two passes already.
    """
    rows = [_opened(candidate, template) for candidate in candidates]
    for row in rows:
        if row.candidate.reason:
            row.drop(row.candidate.reason, row.candidate.detail)
        elif row.is_empty:
            row.drop("empty", "nothing to show")
        elif (expires := row.candidate.packet.meta.get("expires_at")) is not None and _expired(expires, now):
            row.drop("expired", f"expired at {expires}")
    _score(rows, template.query, config, now, scorer, encoder, known, {} if note is None else note, second)
    if known is None:
        for new, old in replacements(rows, config, now, scorer, encoder):
            new.take_over(old, max(new.relevance, old.relevance), max(new.recency, old.recency))
    for row in rows:
        row.score = config.relevance_weight * row.relevance + config.recency_weight * row.recency
        row.set_order()
    rows.sort(key=lambda row: row.order)
    _sift(rows, config)
    if note is None:
        return rows

    def vectors_of(some: Sequence[Ranked]) -> list[NDArray[np.float32]]:
        return encoded([row.candidate for row in some], encoder())[1]

    return varied(rows, config, calibration, vectors_of, note, again=known is not None)


def _opened(candidate: Candidate, template: Template) -> Ranked:
    section, group = slot_of(candidate)
    kind, part = candidate.packet.type, part_of(section, group)
    return Ranked(candidate, section, group, template.body, None, candidate.vectors, kind, part)


def _sift(rows: Sequence[Ranked], config: ContextConfig) -> None:
    """Drop what is under the floor, and the same text twice in a section."""
    seen = _Seen()
    for row in rows:
        if row.reason:
            continue
        if row.kind in NOT_RANKED:
            continue
        if row.relevance < config.min_relevance and row.candidate.layer not in _NO_FLOOR:
            row.drop("below_floor", f"relevance {row.relevance:.3f} < min_relevance {config.min_relevance:g}")
        elif row.candidate.source != "custom":
            same = seen.same(row)
            if same is not None:
                row.drop("duplicate", f"same text as {same.candidate.source}:{same.candidate.packet.id}")


class _Seen:
    """The texts that stand already, by section. Texts are folded only once two of a section begin alike."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], Ranked] = {}
        self._folded: dict[tuple[str, str], dict[str, Ranked]] = {}

    def same(self, row: Ranked) -> Ranked | None:
        """Return the row that stands already with the text of this one; else this one stands from now on."""
        text = row.candidate.packet.content
        start = (text if text.isascii() else _content_key(text)).split(None, _BEGINNING)[:_BEGINNING]
        key = row.section, " ".join(start).casefold()
        first = self._first.setdefault(key, row)
        if first is row:
            return None
        if key not in self._folded:
            self._folded[key] = {_content_key(first.candidate.packet.content): first}
        found = self._folded[key].setdefault(_content_key(text), row)
        return None if found is row else found


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
    note: MutableMapping[str, Any],
    second: SecondPass | None,
) -> None:
    unscored = []
    looked_at = note.get(SECOND_PASS, {}) if known is not None else {}
    for place, row in enumerate(rows):
        packet, kind = row.candidate.packet, row.kind
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
        elif isinstance(config.strategy, str) and config.strategy in row.candidate.known:
            row.set_relevance(row.candidate.known[config.strategy], 0, row.candidate.passes)
        elif query.strip() and not row.reason:  # what is dropped already is not worth an encoding
            unscored.append(row)
        kind = str(packet.meta.get("memory_type") or kind)
        decay = config.recency_decay_by_type.get(kind, config.recency_decay)
        floor = config.recency_floor_by_type.get(kind, config.recency_floor)
        row.recency = recency(packet.timestamp, now, decay, floor)
    if unscored:
        _score_texts(unscored, query, scorer(), encoder)
        if second is not None:
            _look_again(unscored, query, second, encoder, note)
    for row in rows:
        row.known = (row.relevance, row.windows)
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
