"""Settings found by search on one part of the queries, and judged on the other part.

    tuned = tune(read_dataset("data/x"), ["recency_weight", "recency_decay", "min_relevance"])
    print(tuned.report.comparisons[0].words)        # against the default, on queries the search never saw
    Path("tuned.yaml").write_text(tuned.yaml())

The queries are divided so that those that share evidence or a group stay together. SciPy's differential evolution looks
for the settings with the highest mean of a metric (evidence recall over the budgets) on the first part; the default is
one of its first candidates, and wins when nothing is better. What was found is then compared with the default on the
held-out part, with the statistics of every other comparison: a gain on the first part alone is worth nothing.

Unlike in `run_experiment`, nothing is lifted: the default is the config as it is (but for `reserve_ratio`, since
budgets count candidates only), so floors and limits can be tuned too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.config import ContextConfig
from ctx_vector.errors import InputError
from ctx_vector.experiments.bench import Bench
from ctx_vector.experiments.comparison import BETTER, UNSHOWN, WORSE
from ctx_vector.experiments.dataset import Dataset
from ctx_vector.experiments.goal import Goal
from ctx_vector.experiments.knobs import default_knobs, space
from ctx_vector.experiments.power import needed, smallest_effect
from ctx_vector.experiments.resampling import ALPHA, RESAMPLES
from ctx_vector.experiments.result import Report
from ctx_vector.experiments.runner import Arm, check_chance, run_experiment

if TYPE_CHECKING:
    from ctx_vector.stages import Encoder

#: A difference of this size (Cohen's d_z) has to be detectable on the held-out queries, or tuning is refused.
EFFECT: Final = 0.3
LEAST_TRAIN: Final = 40  # queries to search with
SHARE: Final = 0.4  # of the queries, to search with
TRIALS: Final = 60
DEFAULT, TUNED = "default", "tuned"


@dataclass(frozen=True)
class Tuned:
    """What tuning found: `changes` to the config, and the `report` that compares them with the default, held out.

    `name` is the data set's. `train` are the means of the metric on the first part, of the default and of what was
    found; `trials` all settings that were tried, with their means, in order.
    """

    name: str
    knobs: tuple[str, ...]
    changes: Mapping[str, Any]
    chunk_tokens: int | None
    train: tuple[float, float]
    train_queries: int
    trials: tuple[tuple[Mapping[str, Any], float], ...]
    metric: str
    budgets: tuple[int, ...]
    report: Report
    kept: Mapping[str, Any]

    @property
    def is_default(self) -> bool:
        """Whether nothing better than the default was found."""
        return not self.changes and self.chunk_tokens is None

    @property
    def verdict(self) -> str:
        """What the held-out queries say: better or worse where any comparison shows it, else no difference shown."""
        verdicts = [one.verdict for one in self.report.comparisons]
        if WORSE in verdicts:
            return WORSE
        return BETTER if BETTER in verdicts else UNSHOWN

    def words(self) -> list[str]:
        """Return what was found, in sentences."""
        if self.is_default:
            return [f"Nothing tried was better than the default on {self.train_queries} queries: keep it."]
        told = [one.words for one in self.report.comparisons]
        if self.verdict != BETTER:
            told.append("On queries that the search did not see the gain is not shown: keep the default, or ask more.")
        return told

    def yaml(self) -> str:
        """Return the settings as YAML that `--config` reads, with what is known of them as comments."""
        import yaml

        report = self.report
        lines = [
            f"Tuned for {self.metric} at {', '.join(map(str, self.budgets))} tokens on {self.train_queries} queries of "
            f"{self.name},",
            f"compared with the default on {report.data.queries} others: {self.verdict}.",
            *self.words(),
            f"model {report.made['model']}, tokenizer {report.made['tokenizer']}, seed {report.made['seed']}, "
            f"ctx_vector {report.made['version']}",
        ]
        if self.chunk_tokens is not None:
            lines.append(f"Index documents with: ctx-vector index ... --chunk-tokens {self.chunk_tokens}")
        head = "".join(f"# {line}\n" for line in lines)
        settings = {**self.kept, **self.changes}
        return head + yaml.safe_dump({"context": settings}, allow_unicode=True, sort_keys=True)

    def to_dict(self, *, rows: bool = False) -> dict[str, Any]:
        """Return JSON-ready values with stable keys."""
        return {
            "dataset": self.name,
            "knobs": list(self.knobs),
            "changes": dict(self.changes),
            "chunk_tokens": self.chunk_tokens,
            "metric": self.metric,
            "budgets": list(self.budgets),
            "train": {
                "queries": self.train_queries,
                DEFAULT: round(self.train[0], 6),
                TUNED: round(self.train[1], 6),
            },
            "verdict": self.verdict,
            "words": self.words(),
            "trials": [{"changes": dict(changes), "value": round(value, 6)} for changes, value in self.trials],
            "held_out": self.report.to_dict(rows=rows),
        }


def needed_queries(share: float = SHARE, effect: float = EFFECT, alpha: float = ALPHA) -> int:
    """Return how many queries tuning takes: enough to search with, and enough held out to show such an effect."""
    held_out = needed(effect, alpha)
    return max(math.ceil(held_out / (1 - share)), math.ceil(LEAST_TRAIN / share))


def tune(
    dataset: Dataset,
    knobs: Sequence[str] | None = None,
    budgets: Sequence[int] = (1000,),
    *,
    metric: str = "evidence_recall",
    trials: int = TRIALS,
    share: float = SHARE,
    effect: float = EFFECT,
    base: ContextConfig | None = None,
    encoder: Encoder | None = None,
    cache: str | Path | None = None,
    kind: str = "auto",
    seed: int = 0,
    resamples: int = RESAMPLES,
    alpha: float = ALPHA,
    progress: Callable[[str, int, int], None] | None = None,
) -> Tuned:
    """Tune settings on a share of the queries, and compare what was found with the default on the others.

    `knobs` are names in KNOBS (default: `default_knobs`), `trials` about how many settings are tried. `base` is the
    default to start from and to beat. Raises InputError when there are too few queries to show an effect of d_z
    `effect`, saying how many it takes; for wrong arguments too.
    """
    names = list(knobs) if knobs is not None else default_knobs(dataset)
    knobs_by_name = space(names, dataset)
    check_chance(seed, resamples, alpha)
    sizes = tuple(sorted(set(budgets)))
    level = alpha / max(1, len(sizes))  # each budget is a comparison, and they are corrected together
    _check_amount(dataset, share, effect, level)
    if trials < 8:
        raise InputError(f"trials: expected >= 8, got {trials}")
    first, held_out = dataset.split(share, seed)
    least = needed(effect, level)
    if len(first.queries) < LEAST_TRAIN or len(held_out.queries) < least:
        raise InputError(
            f"{dataset.name}: divided so that what shares evidence or a group stays together, {len(first.queries)} "
            f"queries are left to search with and {len(held_out.queries)} to judge by; it takes {LEAST_TRAIN} and "
            f"{least}: add queries on other subjects"
        )
    start = (base or ContextConfig()).with_(reserve_ratio=0.0)
    tell = progress or (lambda what, done, total: None)
    with Bench(first, start, encoder=encoder, cache=cache, kind=kind, tell=tell) as bench:
        goal = Goal(bench, start, knobs_by_name, metric, sizes, trials, tell)
        goal.search(seed)
    changes, value = goal.best
    chunk_tokens = changes.get("chunk_tokens")
    settings = {name: setting for name, setting in changes.items() if name != "chunk_tokens"}
    tuned = Arm(TUNED, settings, chunk_tokens)
    if "recency_weight" in settings:
        settings["relevance_weight"] = tuned.config(start).relevance_weight
    report = run_experiment(
        held_out,
        [Arm(DEFAULT), tuned] if changes else [Arm(DEFAULT)],
        budgets,
        base=start,
        encoder=encoder,
        cache=cache,
        kind=kind,
        seed=seed,
        resamples=resamples,
        alpha=alpha,
        tested=[metric],
        progress=progress,
    )
    return Tuned(
        name=dataset.name,
        knobs=tuple(names),
        changes=settings,
        chunk_tokens=chunk_tokens,
        train=(goal.default_value, value),
        train_queries=len(first.queries),
        trials=tuple(goal.tried),
        metric=metric,
        budgets=sizes,
        report=report,
        kept=base.changes() if base is not None else {},
    )


def _check_amount(dataset: Dataset, share: float, effect: float, alpha: float) -> None:
    if not 0 < share < 1:
        raise InputError(f"share: expected a number between 0 and 1, got {share!r}")
    if not 0.05 <= effect <= 2:
        raise InputError(f"effect: expected a number from 0.05 to 2, got {effect!r}")
    least, held, count = needed_queries(share, effect, alpha), needed(effect, alpha), len(dataset.queries)
    if count < least:
        held_out = max(2, round(count * (1 - share)))
        could = smallest_effect(held_out, alpha)
        raise InputError(
            f"{dataset.name} has {count} queries, too few to tune on: it takes {least}: {LEAST_TRAIN} or more to "
            f"search with and {held} or more held out to show a difference of d_z {effect:g}; {held_out} "
            f"held out show one of {could or math.inf:.2f} at best. Add queries, or compare a few settings by "
            "ctx-vector ab"
        )
