"""An A/B test in use: each session gets one arm for good, feedback goes to the audit, and the end is fixed before.

    test = OnlineTest("scoring", builder, strategies(["cosine", "hybrid"]), audit, sessions=sessions_needed(0.3))
    built = test.assemble(user_query, session_id=session, ...)      # the session's arm, recorded
    test.feedback(built, 1)                                         # 1 good, 0 bad, or any number
    print(test.result().words)

What decides is a session, not a build: its outcome is the mean of its feedback. The test ends at the moment when each
arm has the planned number of sessions with feedback: those that were heard of first are compared, by what was said of
them until then, once and for all. Later sessions change nothing, and neither does what is said later of earlier ones.
Asked before the end, the result shows how far it is and gives no verdict, for whoever looks again and again until a
difference shows will see one: of tests without any difference, looked at ten times, one in five "finds" one.

The plan (name, arms, sessions, weights) has a digest, which is in every recorded build. Another size or another arm is
another test, and finds nothing recorded for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ctx_vector.errors import InputError
from ctx_vector.experiments.comparison import BETTER, UNSHOWN, WORSE, holm, seed_of
from ctx_vector.experiments.power import smallest_effect
from ctx_vector.experiments.resampling import ALPHA, RESAMPLES, load_scipy
from ctx_vector.experiments.runner import Arm
from ctx_vector.experiments.unpaired import Unpaired, sessions_needed, unpaired

if TYPE_CHECKING:
    from ctx_vector.audit import AuditLog
    from ctx_vector.builder import ContextBuilder
    from ctx_vector.built import BuiltContext

__all__ = ["ArmState", "OnlineComparison", "OnlineResult", "OnlineTest", "sessions_needed"]

_MOST_ROWS: Final = 10_000_000
_UNLIKELY: Final = 0.001  # of shares of sessions as far from the plan as these, by chance

Said = Mapping[str, Any]
"""What was said of a build: build, session, at, value, note."""


@dataclass(frozen=True, slots=True)
class ArmState:
    """How far an arm is: sessions it was given to, those with feedback, builds, and the mean outcome so far."""

    arm: str
    sessions: int
    with_feedback: int
    builds: int
    mean: float | None


@dataclass(frozen=True, slots=True)
class OnlineComparison:
    """One arm against the first, at the planned size, corrected for a `family` of them.

    `smallest` is the smallest difference that so many sessions show with 80 % power, None when no size would.
    """

    arm: str
    against: str
    found: Unpaired
    p_holm: float
    family: int
    smallest: float | None
    verdict: str
    alpha: float

    @property
    def words(self) -> str:
        """The verdict in a sentence, with its figures."""
        found = self.found
        corrected = f" after correction for {self.family} comparisons" if self.family > 1 else ""
        interval = f"{100 * (1 - self.alpha):g} % interval {found.low:+.3f} to {found.high:+.3f}"
        if not found.bounded:
            interval = "no interval, as neither arm varies"
        figures = (
            f"{found.mean:.3f} against {found.baseline:.3f}, {found.difference:+.3f} ({interval}, "
            f"p = {self.p_holm:.2g}{corrected}), {found.count} sessions each"
        )
        if self.verdict != UNSHOWN:
            return f"{self.arm} is {self.verdict} than {self.against}: {figures}."
        text = f"No difference between {self.arm} and {self.against} is shown: {figures}."
        return (
            text if self.smallest is None else f"{text} One of {self.smallest:.3f} or more would be found 4 times in 5."
        )


@dataclass(frozen=True, slots=True)
class OnlineResult:
    """The state of a test. `finished` says whether the planned size is reached: only then there are comparisons.

    `words` says it in sentences; `warnings` what makes the numbers doubtful.
    """

    name: str
    finished: bool
    planned: int
    arms: tuple[ArmState, ...]
    comparisons: tuple[OnlineComparison, ...]
    warnings: tuple[str, ...]
    words: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values with stable keys."""
        return {
            "test": self.name,
            "finished": self.finished,
            "planned_sessions": self.planned,
            "arms": [
                {
                    "arm": arm.arm,
                    "sessions": arm.sessions,
                    "with_feedback": arm.with_feedback,
                    "builds": arm.builds,
                    "mean": None if arm.mean is None else round(arm.mean, 6),
                }
                for arm in self.arms
            ],
            "comparisons": [
                {
                    "arm": one.arm,
                    "against": one.against,
                    "value": round(one.found.mean, 6),
                    "baseline": round(one.found.baseline, 6),
                    "difference": round(one.found.difference, 6),
                    "low": round(one.found.low, 6),
                    "high": round(one.found.high, 6),
                    "interval": one.found.interval,
                    "p": round(one.found.p, 6),
                    "p_holm": round(one.p_holm, 6),
                    "effect_d": None if one.found.effect is None else round(one.found.effect, 6),
                    "smallest_detectable": None if one.smallest is None else round(one.smallest, 6),
                    "verdict": one.verdict,
                    "words": one.words,
                }
                for one in self.comparisons
            ],
            "warnings": list(self.warnings),
            "words": self.words,
        }


class OnlineTest:
    """One test: arms that sessions are dealt to, and the audit that remembers what came of it.

    `builder` has the sources and the default config that arms change; it must have no audit of its own, or every build
    would be recorded twice. `sessions` is the number of sessions with feedback that each arm takes, fixed now.

    Raises InputError for wrong arguments, ConfigError for an arm that cannot be.
    """

    def __init__(
        self,
        name: str,
        builder: ContextBuilder,
        arms: Sequence[Arm],
        audit: AuditLog,
        *,
        sessions: int,
        seed: int = 0,
        resamples: int = RESAMPLES,
        alpha: float = ALPHA,
    ) -> None:
        names = [arm.name for arm in arms]
        if len(set(names)) < 2 or len(set(names)) < len(names):
            raise InputError(f"arms: expected two or more with different names, got {', '.join(names) or 'none'}")
        if not isinstance(name, str) or not name.strip() or "/" in name:
            raise InputError(f"name: expected a name without '/', got {name!r}")
        if isinstance(sessions, bool) or not isinstance(sessions, int) or sessions < 2:
            raise InputError(f"sessions: expected a whole number >= 2, got {sessions!r}; see sessions_needed")
        if builder.audit is not None:
            raise InputError("builder: it has an audit of its own; give one without, for the test records its builds")
        self.name = name
        self.planned = sessions
        self._audit = audit
        self._names = names
        self._seed = seed
        self._resamples = resamples
        self._alpha = alpha
        self._builders = {arm.name: builder.with_config(arm.config(builder.config)) for arm in arms}
        plan = [name, sessions, [[arm, made.config.hash] for arm, made in self._builders.items()]]
        self.digest = hashlib.blake2b(json.dumps(plan).encode(), digest_size=6).hexdigest()

    # -- in use ------------------------------------------------------------------------------------------------------

    def arm(self, session_id: str) -> str:
        """Return the arm of a session: always the same, in every process, and even over all sessions."""
        if not isinstance(session_id, str) or not session_id.strip():
            raise InputError(f"session_id: expected the id of a session, got {session_id!r}; arms go by session")
        digest = hashlib.blake2b(f"{self.name}\0{self.digest}\0{session_id}".encode("utf-8", "surrogatepass")).digest()
        return self._names[int.from_bytes(digest[:8]) % len(self._names)]

    def variant(self, arm: str) -> str:
        """Return the name under which an arm's builds are recorded."""
        return f"{self.name}/{self.digest}/{arm}"

    def assemble(self, user_query: str, *, session_id: str, **arguments: Any) -> BuiltContext:
        """Build with the session's arm and record it; takes what `ContextBuilder.assemble` takes."""
        arm = self.arm(session_id)
        built = self._builders[arm].assemble(user_query, session_id=session_id, **arguments)
        self._audit.record(built, variant=self.variant(arm))
        return built

    def feedback(self, built: BuiltContext | str, value: float, note: str = "") -> None:
        """Attach what was said of a build, given by itself or by its id."""
        id_ = built if isinstance(built, str) else str(built.meta["build_id"])
        self._audit.flush()
        self._audit.feedback(id_, value, note)

    # -- the end -----------------------------------------------------------------------------------------------------

    def result(self) -> OnlineResult:
        """Return how far the test is and, once the planned size is reached, what it found."""
        self._audit.flush()
        said: dict[str, Sequence[Said]] = {}
        states = []
        for arm in self._names:
            rows = self._audit.list(limit=_MOST_ROWS, variant=self.variant(arm))
            said[arm] = self._audit.said(self.variant(arm))
            found = _outcomes(said[arm])
            sessions = {row["session_id"] for row in rows}
            mean = float(np.mean(found)) if found else None
            states.append(ArmState(arm, len(sessions), len(found), len(rows), mean))
        warnings = self._warnings(states)
        missing = [state for state in states if state.with_feedback < self.planned]
        if missing:
            far = ", ".join(f"{state.arm} {state.with_feedback} of {self.planned}" for state in states)
            words = (
                f"{self.name} is not finished: sessions with feedback {far}. No verdict before that: a difference seen "
                "now may be chance, and looking often makes it likely."
            )
            return OnlineResult(self.name, False, self.planned, tuple(states), (), warnings, words)
        end = max(_heard(rows)[self.planned - 1] for rows in said.values())
        comparisons = self._compare(
            {arm: _outcomes([row for row in rows if row["at"] <= end]) for arm, rows in said.items()}
        )
        words = " ".join(one.words for one in comparisons)
        return OnlineResult(self.name, True, self.planned, tuple(states), comparisons, warnings, words)

    def _compare(self, outcomes: dict[str, list[float]]) -> tuple[OnlineComparison, ...]:
        base = self._names[0]
        first = {arm: np.asarray(values[: self.planned]) for arm, values in outcomes.items()}
        found = {
            arm: unpaired(
                first[arm],
                first[base],
                seed=seed_of(self._seed, arm, base),
                resamples=self._resamples,
                alpha=self._alpha,
            )
            for arm in self._names[1:]
        }
        corrected = dict(zip(found, holm([one.p for one in found.values()]), strict=True))
        effect = smallest_effect(self.planned, self._alpha / len(found))
        made = []
        for arm, one in found.items():
            verdict = UNSHOWN
            if corrected[arm] <= self._alpha:
                verdict = BETTER if one.difference > 0 else WORSE
            smallest = None if effect is None else effect * one.deviation
            made.append(OnlineComparison(arm, base, one, corrected[arm], len(found), smallest, verdict, self._alpha))
        return tuple(made)

    def _warnings(self, states: Sequence[ArmState]) -> tuple[str, ...]:
        """Return doubts: arms that got another share of sessions than they should, or hear back at different rates."""
        warnings = []
        counts = [state.sessions for state in states]
        if sum(counts) >= 20 * len(counts):
            stats = load_scipy().stats
            p = float(stats.chisquare(counts).pvalue)
            if p < _UNLIKELY:
                shown = ", ".join(f"{state.arm} {state.sessions}" for state in states)
                warnings.append(f"sessions are not dealt evenly ({shown}; p = {p:.1g}): some builds are not recorded")
            heard = [[state.with_feedback, state.sessions - state.with_feedback] for state in states]
            if min(map(sum, zip(*heard, strict=True))) > 0:
                p = float(stats.chi2_contingency(heard).pvalue)
                if p < _UNLIKELY:
                    shown = ", ".join(f"{s.arm} {s.with_feedback / max(1, s.sessions):.0%}" for s in states)
                    warnings.append(
                        f"arms hear back at different rates ({shown}; p = {p:.1g}): those who answer may not be alike"
                    )
        return tuple(warnings)


def _heard(rows: Sequence[Said]) -> list[str]:
    """Return when each session was heard of first, in that order; `rows` are in the order in which they were said."""
    first: dict[str, str] = {}
    for row in rows:
        first.setdefault(row["session"], row["at"])
    return list(first.values())


def _outcomes(rows: Sequence[Said]) -> list[float]:
    """Return the outcome of each session, the mean of what was said of it, in the order of `_heard`."""
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(row["session"], []).append(row["value"])
    return [float(np.mean(each)) for each in values.values()]
