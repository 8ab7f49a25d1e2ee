"""The trace of a build: everything it read, enough to make it again with the same bytes.

    gather ── Trace ── compose ── BuiltContext        a build: `ContextBuilder.assemble`
              Trace ── compose ── BuiltContext        the same again: `replay.rebuild(trace)`

The builder first puts what it has read into a Trace, and makes the context from the Trace alone: a build and its repeat
are one function of the same object. What comes from outside while composing (relevances, what the shortener made) is
noted in the Trace when it comes and taken from there the next time, so that a repeat needs no source, no encoder, no
scorer and no summarizer. Only the tokenizer has to be there.

**A new input of the builder** needs nothing here when it ends as candidates with packets, or as a field of Candidate
that is JSON-ready. If it shapes the context in another way (tools, images, layers), put it into `given` under its name
before `compose`, as JSON-ready values, and have `compose` read it from there. If it is worked out while composing by
something that will not be there later (a callable, a model), do as with the relevances: take it from
``trace.given.get(name)``, and only when that is None work it out and note it there.

trace_dump.py writes a trace as JSON-ready values, and reads it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.compress import Journal
from ctx_vector.config import ContextConfig
from ctx_vector.conversation import Said, read_turns
from ctx_vector.diversity import DUPLICATES, MMR
from ctx_vector.gather import Gathered, SourceSpec
from ctx_vector.history import History, Plan, history_bound
from ctx_vector.inputs import Inputs
from ctx_vector.rerank import SECOND_PASS

if TYPE_CHECKING:
    from ctx_vector.ranked import Ranked


_NOTES: Final = (DUPLICATES, MMR, SECOND_PASS)  # what composing found, of these candidates only


@dataclass(slots=True, eq=False)
class Trace:
    """What one build read; nothing in it is copied.

    `sources` are the names of the sources in the order they were asked, the history last; `asked` those of them that
    are the builder's and not the caller's. `said` is the conversation, `plan` what the history's strategy made of it.
    `scores` are `Ranked.known` of each candidate in order of gathering, None until they are known. `facts` are
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
    scores: list[tuple[Any, ...]] | None = None
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
            scores: list[tuple[Any, ...]] = [()] * len(ranked)
            for row in ranked:
                scores[row.candidate.rank] = row.known
            self.scores = scores

    def again(self) -> Trace:
        """Return a trace that gives what this one has noted, for a repeat; this one stays as it is."""
        return replace(self, shortened=self.shortened.again())

    def anew(
        self, config: ContextConfig, sources: tuple[str, ...], gathered: Gathered, model_max_tokens: int | None
    ) -> Trace:
        """Return a trace of the same request and conversation with other candidates, nothing of them known."""
        return replace(
            self,
            config=config,
            model_max_tokens=model_max_tokens,
            sources=sources,
            gathered=gathered,
            scores=None,
            shortened=Journal(),
            given={name: value for name, value in self.given.items() if name not in _NOTES},
            facts={},
        )
