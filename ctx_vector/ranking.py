"""Ranking, the first half of selecting: score every candidate, drop what no budget could save, sort the rest.

score = relevance_weight * relevance + recency_weight * recency; a newer statement takes both over from an older one
that says the same (newer.py). Order: score descending, newer first, id, order of gathering (ranked.py); for variety
another one may be made of it (diversity.py). Dropped here: what came with a reason, `empty`, `expired`, `below_floor`.
System instructions, state, history, tool definitions and the layers that are there whatever is asked (system, static,
tool) are not subject to the floor.

    candidates ── opened ── scored ── newer over older ── floor, sorted ── rows
                  again, from what was found before: recalled

A relevance is the caller's, the source's, or else what a Judge finds in the text (judging.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, MutableMapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from ctx_vector.config import ContextConfig
from ctx_vector.errors import InputError
from ctx_vector.judging import Judge, scored, windows
from ctx_vector.layout import part_of
from ctx_vector.newer import replacements
from ctx_vector.ordering import best_first
from ctx_vector.packets import TYPE_HISTORY, TYPE_RESULT, TYPE_STATE, TYPE_SYSTEM, Candidate
from ctx_vector.ranked import NOT_RANKED, Ranked
from ctx_vector.recency import recency
from ctx_vector.rerank import SECOND_PASS
from ctx_vector.structure import Template, slot_of
from ctx_vector.values import as_utc

_NO_FLOOR: Final = ("system", "static", "tool")  # layers


def rank(
    candidates: Sequence[Candidate],
    template: Template,
    now: datetime,
    judge: Judge,
    known: Sequence[tuple[Any, ...]] | None = None,
    note: MutableMapping[str, Any] | None = None,
) -> list[Ranked]:
    """Return a row for every candidate; the ones with a reason are dropped already, the rest is in order of choice.

    `known` is `Ranked.known` of each candidate when all have been judged before: then `judge` is not asked. What the
    second pass finds is put into `note`, where it has been before it is taken from there.
    """
    config = template.config
    rows = _opened(candidates, template, now)
    note = {} if note is None else note
    if known is not None:
        _recall(rows, known, note.get(SECOND_PASS, {}))
    else:
        _score(rows, config, judge, note)
        for new, old in replacements(rows, judge, config, now):
            new.take_over(old, max(new.relevance, old.relevance), max(new.recency, old.recency))
    for_relevance, for_recency, floor = config.relevance_weight, config.recency_weight, config.min_relevance
    for row in rows:
        row.score = for_relevance * row.relevance + for_recency * row.recency
        if row.relevance < floor:
            _drop_below(row, floor)
    best_first(rows, attrgetter("score"), attrgetter("order"))
    return rows


def _opened(candidates: Sequence[Candidate], template: Template, now: datetime) -> list[Ranked]:
    """Return a row for each candidate, with its recency. One that has a reason, nothing to show, or is out of date, is
    dropped.
    """
    rows = []
    config = template.config
    decays, floors = config.recency_decay_by_type, config.recency_floor_by_type
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
        if packet.timestamp is None:
            row.recency = 1.0
        else:
            kind = str(meta.get("memory_type") or kind)
            decay = decays.get(kind, config.recency_decay)
            row.recency = recency(packet.timestamp, now, decay, floors.get(kind, config.recency_floor))
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


def _recall(rows: Sequence[Ranked], known: Sequence[tuple[Any, ...]], looked_at: Mapping[str, Sequence[float]]) -> None:
    """Set what an earlier ranking of these candidates found; `looked_at` is its note of the second pass."""
    for row, (relevance, parts, *_) in zip(rows, known, strict=True):
        passes = looked_at.get(str(row.candidate.rank), row.candidate.passes)
        row.set_relevance(relevance, parts, (passes[0], passes[1]) if passes else None)
    for row, (_, _, *taken) in zip(rows, known, strict=True):
        if taken:
            row.take_over(rows[taken[0]], taken[1], taken[2])


def _score(rows: Sequence[Ranked], config: ContextConfig, judge: Judge, note: MutableMapping[str, Any]) -> None:
    """Set each relevance: a fixed one, the caller's, the source's own, or else the judge's."""
    unscored = []
    asked = bool(judge.query.strip())
    strategy = config.strategy if isinstance(config.strategy, str) else ""
    for row in rows:
        candidate, kind = row.candidate, row.kind
        packet = candidate.packet
        if kind == TYPE_SYSTEM or (kind == TYPE_STATE and not packet.scored):
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
    if unscored:
        _score_texts(unscored, judge)
        _look_again(unscored, judge, note)


def _score_texts(rows: Sequence[Ranked], judge: Judge) -> None:
    found = scored([row.candidate for row in rows], judge.query, judge.scorer(), judge.encoder)
    for row, (relevance, parts, vectors) in zip(rows, found, strict=True):
        row.set_relevance(relevance, parts if row.candidate.vectors is None else 0)
        row.vectors = row.vectors if vectors is None else vectors


def _look_again(rows: Sequence[Ranked], judge: Judge, note: MutableMapping[str, Any]) -> None:
    """Let the second pass, if there is one, judge the best of these rows, and note what both passes said."""
    second = judge.second
    if second is None:
        return
    import numpy as np

    ranked = [row for row in rows if row.kind not in NOT_RANKED]
    ranked.sort(key=lambda row: (-row.relevance, row.candidate.rank))
    best = ranked[: second.depth]
    if not best:
        return
    parts = [windows(row.candidate.packet.content, judge.encoder()) for row in best]
    scores = second.look(judge.query, list(itertools.chain.from_iterable(parts)))
    starts = np.cumsum([0, *map(len, parts)])[:-1]
    first, again = np.array([row.relevance for row in ranked]), np.maximum.reduceat(scores, starts)
    for row, both, before, after in zip(best, second.fused(first, again), first, again, strict=False):
        row.set_relevance(float(both), row.windows, (float(before), float(after)))
        note.setdefault(SECOND_PASS, {})[str(row.candidate.rank)] = list(row.passes or ())
