"""Runs arms over a data set through the real ContextBuilder, at several budgets, and compares them.

    report = run_experiment(read_dataset("data/x"), strategies(["jaccard", "cosine"]), budgets=(500, 1000, 2000))

An arm is a named set of changes to the config. The first arm is the baseline. For each query an arm builds once with
ample room, which gives its ranking, and once for each budget.

**Budgets count the rendered candidates**, joiners included, and nothing else: headers, Task and Output come on top, so
that arms are compared on what they choose. So `reserve_ratio` is 0, and what would filter before the budget does is
lifted (`LIFTED`): floors of relevance, for they mean another thing for each scorer, and limits of hits. Whoever wants
them in the comparison puts them into an arm or into `base`.

Arms take turns on each query, so that a loaded machine slows all of them alike. Vectors are shared by all arms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ctx_vector.builder import ContextBuilder
from ctx_vector.config import ContextConfig
from ctx_vector.errors import ConfigError, InputError
from ctx_vector.experiments.bench import Bench, Recorder, Setup
from ctx_vector.experiments.comparison import compare_all, resamples_for
from ctx_vector.experiments.corpus import KINDS
from ctx_vector.experiments.dataset import Dataset
from ctx_vector.experiments.metrics import SMALL_IS_BETTER
from ctx_vector.experiments.notes import data_notes, run_notes
from ctx_vector.experiments.resampling import ALPHA, RESAMPLES, load_scipy
from ctx_vector.experiments.result import ArmNote, DataNote, Report, repeats, shown

if TYPE_CHECKING:
    from ctx_vector.stages import Encoder

BUDGETS: Final = (500, 1000, 2000)
DEPTH: Final = 1_000
TESTED: Final = ("evidence_recall", "all_evidence", "freshness", "answer_recall", "ndcg@10")
LIFTED: Final[Mapping[str, Any]] = {
    "reserve_ratio": 0.0,
    "min_relevance": 0.0,
    "memory_limit": None,
    "memory_min_importance": 0.0,
    "knowledge_limit": DEPTH,
    "knowledge_min_score": 0.0,
}
RESAMPLE: Final = ("queries", "groups")
_WEIGHTS: Final = {"recency_weight": "relevance_weight", "relevance_weight": "recency_weight"}

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Arm:
    """A named set of changes to the config; one weight alone sets the other, for they sum to 1.

    `chunk_tokens` is the size of passages that documents are divided into, instead of the default.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    chunk_tokens: int | None = None

    def config(self, base: ContextConfig) -> ContextConfig:
        """Return the arm's config. Raises ConfigError naming the arm."""
        changes = dict(self.changes)
        for name, other in _WEIGHTS.items():
            weight = changes.get(name)
            if isinstance(weight, (int, float)) and other not in changes:
                changes[other] = round(1 - weight, 12)
        try:
            return base.with_(**changes)
        except ConfigError as error:
            raise ConfigError([f"arm {self.name}: {problem}" for problem in error.problems]) from None


def strategies(names: Sequence[str]) -> list[Arm]:
    """Return an arm for each strategy, by its name; ``hybrid+late`` is one with the second pass `late`."""
    arms = []
    for name in names:
        strategy, plus, rerank = name.partition("+")
        arms.append(Arm(name, {"strategy": strategy, **({"rerank": rerank} if plus else {})}))
    return arms


def base_config(changes: Mapping[str, Any] | None = None) -> ContextConfig:
    """Return the config that arms start from: the defaults with `LIFTED`, and these changes on top."""
    return Arm("base", {**LIFTED, **(changes or {})}).config(ContextConfig())


def run_experiment(
    dataset: Dataset,
    arms: Sequence[Arm],
    budgets: Sequence[int] = BUDGETS,
    *,
    base: ContextConfig | None = None,
    encoder: Encoder | None = None,
    cache: str | Path | None = None,
    kind: str = "auto",
    resample: str = "queries",
    seed: int = 0,
    resamples: int = RESAMPLES,
    alpha: float = ALPHA,
    tested: Sequence[str] = TESTED,
    progress: Progress | None = None,
) -> Report:
    """Run every arm on every query at every budget, and compare the arms with the first one.

    `cache` is a folder that keeps vectors for the next run. `kind` says what the documents become: `knowledge`,
    `memories`, or `auto`: memories where they are turns of a conversation or have a `memory_type`.
    `resample="groups"` makes groups the unit of chance.
    `tested` are the metrics that are compared; by the first of them, at the middle budget, verdicts are told.
    `progress(what, done, total)` is told how far it is.

    Raises InputError for wrong arguments, ConfigError for an arm that cannot be, and whatever a strategy raises.
    """
    sizes = _check(arms, budgets, kind, resample, dataset)
    check_chance(seed, resamples, alpha)
    base = base_config() if base is None else base
    configs = [arm.config(base) for arm in arms]
    for config in configs:
        ContextBuilder(config=config)  # refuses what is unknown or not built, before anything is encoded
    if len(arms) > 1:
        load_scipy()  # better missed now than after all the builds
    recorder = Recorder(dataset, [arm.name for arm in arms], sizes)
    tell = progress or (lambda what, done, total: None)
    began = time.perf_counter()
    with Bench(dataset, base, encoder=encoder, cache=cache, kind=kind, tell=tell) as bench:
        for collection in dataset.collections:
            corpora = {arm.chunk_tokens: bench.corpus(collection, arm.chunk_tokens) for arm in arms}
            setups = [
                Setup(arm.name, corpora[arm.chunk_tokens], config) for arm, config in zip(arms, configs, strict=True)
            ]
            recorder.run(bench.queries_of(collection), setups, tell)
        made = _made(bench, base, seed=seed, resamples=resamples, alpha=alpha, resample=resample)
    comparing = time.perf_counter()
    family = _family(dataset, sizes, recorder.values, tested, by_group=resample == "groups")
    tell("comparing", 0, len(family))
    comparisons = compare_all(family, seed=seed, resamples=resamples, alpha=alpha, small_is_better=SMALL_IS_BETTER)
    made["resamples"] = resamples_for(len(comparisons), resamples, alpha)
    ended = time.perf_counter()
    return Report(
        data=DataNote(
            dataset.name, dataset.digest, len(dataset.documents), len(dataset.queries), len(dataset.groups),
            dataset.skipped, bench.kind,
        ),
        arms=tuple(
            ArmNote(arm.name, config.hash, config.changes(), arm.chunk_tokens)
            for arm, config in zip(arms, configs, strict=True)
        ),
        budgets=sizes,
        queries=dataset.queries,
        grades=tuple(dataset.grades(query) for query in dataset.queries),
        values=recorder.values,
        found=recorder.kept(),
        contexts=recorder.contexts(),
        primary=next(iter(tested), TESTED[0]),
        answers=dataset.answers,
        scores=recorder.scores(),
        comparisons=tuple(comparisons),
        evidence=_evidence(dataset),
        made=made,
        notes=(*data_notes(dataset, resample, compared=len(arms) > 1), *run_notes(dataset, configs, arms, bench)),
        milliseconds=recorder.milliseconds,
        seconds={"building": round(comparing - began, 1), "comparing": round(ended - comparing, 1)},
    )  # fmt: skip


def check_chance(seed: int, resamples: int, alpha: float) -> None:
    """Raise InputError for a seed, a number of resamples or a level that cannot be, before anything is built for it."""
    for name, value, least in (("seed", seed, 0), ("resamples", resamples, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name}: expected a whole number >= {least}, got {value!r:.40}")
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 < alpha < 1:
        raise InputError(f"alpha: expected a number between 0 and 1, got {alpha!r:.40}")


def _check(arms: Sequence[Arm], budgets: Sequence[int], kind: str, resample: str, dataset: Dataset) -> tuple[int, ...]:
    names = [arm.name for arm in arms]
    if not names or len(set(names)) < len(names):
        raise InputError(f"arms: expected one or more with different names, got {', '.join(names) or 'none'}")
    for size in budgets:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InputError(f"budgets: expected whole numbers of tokens >= 1, got {size!r}")
    if not budgets:
        raise InputError("budgets: expected at least one number of tokens")
    for name, value, choices in (("kind", kind, KINDS), ("resample", resample, RESAMPLE)):
        if value not in choices:
            raise InputError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")
    if resample == "groups" and len(dataset.groups) < 2:
        raise InputError(f"resample: {dataset.name} has only one group; compare by queries")
    return tuple(sorted(set(budgets)))


def _family(
    dataset: Dataset,
    budgets: Sequence[int],
    values: Mapping[str, Mapping[str, Any]],
    tested: Sequence[str],
    *,
    by_group: bool,
) -> dict[tuple[str, str, str], Any]:
    """Return what `compare_all` compares: each arm with the first of `values`, in every metric that is tested."""
    base, *others = values
    unknown = [name for name in tested if not any(key.split("@")[0] == name or key == name for key in values[base])]
    if unknown:
        raise InputError(f"tested: there is no metric {unknown[0]!r}; choose from {', '.join(sorted(values[base]))}")
    groups = [query.unit for query in dataset.queries]
    again = repeats([dataset.grades(query) for query in dataset.queries], budgets)
    family: dict[tuple[str, str, str], Any] = {}
    for arm in others:
        for metric in values[base]:
            if metric not in tested and metric.split("@")[0] not in tested:
                continue
            if again.get(metric, "").split("@")[0] in tested:
                continue  # the same values once more, which would only cost the correction
            ours, theirs = values[arm][metric], values[base][metric]
            known = ~(np.isnan(ours) | np.isnan(theirs))
            if known.sum() < 2:
                continue
            of = [group for group, fine in zip(groups, known, strict=True) if fine] if by_group else None
            if of is None or len(set(of)) > 1:
                family[arm, base, metric] = (ours[known], theirs[known], of)
    return family


def _made(
    bench: Bench, base: ContextConfig, *, seed: int, resamples: int, alpha: float, resample: str
) -> dict[str, Any]:
    from ctx_vector import __version__
    from ctx_vector.calibration import load_calibration

    return {
        "version": __version__,
        "model": bench.encoder.name,
        "model_fingerprint": bench.encoder.fingerprint,
        "calibration": load_calibration(bench.encoder).hash,
        "tokenizer": bench.tokenizer,
        "base_config_hash": base.hash,
        "documents_as": bench.kind,
        "seed": seed,
        "test": "paired permutation of signs, two-sided, Holm's correction over all comparisons",
        "resamples": resamples,
        "alpha": alpha,
        "unit": "query" if resample == "queries" else "group",
    }


def _evidence(dataset: Dataset) -> dict[str, str]:
    wanted = {id_ for query in dataset.queries for id_, grade in dataset.grades(query).items() if grade > 0}
    return {document.id: shown(document.text) for document in dataset.documents if document.id in wanted}
