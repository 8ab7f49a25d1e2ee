"""From what a build has read to its context: rank, fill, prove, record. A build and its repeat are this one function.

    Trace, History, Template ── rank ── fill ── prove ── record ── BuiltContext

Nothing here reads a source or the clock of the build: what comes from outside (relevances, shortened texts, facts) is
taken from the trace when it is known there, and noted there when it is not. So a repeat needs no `Means` but a counter.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ctx_vector.allocation import Layers
from ctx_vector.built import BuiltContext
from ctx_vector.compress import Shortener
from ctx_vector.diversity import Variety
from ctx_vector.filling import fill
from ctx_vector.history import History
from ctx_vector.judging import Judge
from ctx_vector.ranking import rank
from ctx_vector.record import make_record, report
from ctx_vector.stages import Summarizer, TokenCounter
from ctx_vector.structure import Template
from ctx_vector.trace import Trace

if TYPE_CHECKING:
    from ctx_vector.calibration import Calibration
    from ctx_vector.rerank import SecondPass
    from ctx_vector.stages import Encoder, Scorer


@dataclass(frozen=True, slots=True)
class Means:
    """What a context is made with beside its trace. Scorer and encoder are loaded when they are called, and so is
    the encoder's calibration, which is told whether it may be measured.
    """

    counter: TokenCounter
    scorer: Callable[[], Scorer]
    encoder: Callable[[], Encoder]
    calibration: Callable[[bool], Calibration | None]
    facts: Callable[[Trace], dict[str, Any]]
    summarizer: Summarizer | None = None
    second: SecondPass | None = None


def compose(
    trace: Trace, history: History, template: Template, means: Means, started: float, *, quiet: bool = False
) -> BuiltContext:
    """Make the context from what was read: the trace, and the history as it was planned, nothing placed yet.

    `started` is when the build began, of `time.perf_counter`. `quiet` logs nothing.
    """
    config = trace.config
    stages: dict[str, float] = {}

    def timed(name: str, since: float) -> float:
        now_ = time.perf_counter()
        stages[name] = round((now_ - since) * 1000, 3)
        return now_

    mark = timed("gather", started)

    judge = Judge(trace.query, means.scorer, means.encoder, means.second)
    variety = Variety(config, means.calibration, judge.vectors, trace.given, again=trace.scores is not None)
    ranked = rank(trace.gathered.candidates, template, trace.now, judge, trace.scores, trace.given)
    ranked = variety.ordered(ranked)
    trace.note_scores(ranked)
    mark = timed("rank", mark)
    layers = Layers.from_dict(trace.given["layers"]) if "layers" in trace.given else None
    filled = fill(ranked, history, template, _shortener(trace, means), layers, variety)
    rendered = filled.prove()
    mark = timed("select", mark)
    meta = _meta(trace, history, template, means)
    if meta["knowledge_version"] == 0 and config.knowledge_limit:
        filled.warnings.append("nothing is indexed in the knowledge base yet; try: ctx-vector index PATH --kb DIR")
    built = make_record(trace, ranked, history.decisions(config, trace.now), filled, rendered, meta)
    timed("record", mark)
    built.meta["stages_ms"] = stages
    built.meta["build_time_ms"] = round((time.perf_counter() - started) * 1000, 3)
    if not quiet:
        report(built, ranked)
    return built


def _shortener(trace: Trace, means: Means) -> Shortener:
    # a source that degrades is extracted by the encoder, whose vectors of its sentences are remembered
    encodes = trace.config.compress_encode or "layers" in trace.given
    encoder = means.encoder if encodes and not trace.shortened.repeats else None
    return Shortener(means.counter, trace.query, means.summarizer, encoder, trace.shortened)


def _meta(trace: Trace, history: History, template: Template, means: Means) -> dict[str, Any]:
    from ctx_vector import __version__

    trace.facts = trace.facts or means.facts(trace)
    return {
        "build_id": os.urandom(16).hex(),
        "version": __version__,
        "now": trace.now.isoformat(),
        "session_id": trace.session_id,
        "locale": template.locale,
        "history": history.meta(trace.config),
        **trace.facts,
    }
