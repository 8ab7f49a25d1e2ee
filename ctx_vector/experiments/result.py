"""The result of an experiment: one frozen object; tables, JSON and HTML are views of it.

`values[arm][metric]` is (queries,) float64, nan where a metric is not defined, with metrics of the context named like
``evidence_recall@500`` and metrics of the ranking like ``ndcg@10``. Times are kept apart: all else is the same in every
run with the same data, arms, model and seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ctx_vector.errors import InputError
from ctx_vector.experiments.comparison import Comparison
from ctx_vector.experiments.dataset import Query
from ctx_vector.experiments.headlines import Headline, headlines
from ctx_vector.experiments.metrics import mean, percentiles

BINS: Final = 100
READ: Final = 10  # winners and losers of each arm in the JSON
_SHOWN_TEXT: Final = 300
_INSTEAD: Final = 3

Series = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class ArmNote:
    """An arm as it ran: every field of its config that differs from the default, and the config's hash."""

    name: str
    config_hash: str
    changes: Mapping[str, Any]
    chunk_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class DataNote:
    """The data set: how much of it there was, and its digest."""

    name: str
    digest: str
    documents: int
    queries: int
    groups: int
    skipped: int
    kind: str


@dataclass(frozen=True, slots=True)
class Scores:
    """How often each relevance was given: two counts (BINS,) over [0, 1], for evidence and for all else."""

    relevant: tuple[int, ...]
    irrelevant: tuple[int, ...]


@dataclass(frozen=True)
class Report:
    """What an experiment found; see the module.

    `found[arm][budget][i]` are the evidence documents that were in the context of query i. `evidence` holds the
    beginnings of all evidence documents' texts. `contexts[arm][i]` is what the context of query i held at the main
    budget, in order of choice: the document of each candidate, and the beginning of its text. `primary` is the metric
    that is told first, with its budget if it is a ranking's. `answers` are those of the data set. `made` says how it
    was made, `notes` what to keep in mind.
    """

    data: DataNote
    arms: tuple[ArmNote, ...]
    budgets: tuple[int, ...]
    queries: tuple[Query, ...]
    grades: tuple[Mapping[str, int], ...]
    values: Mapping[str, Series]
    found: Mapping[str, Mapping[int, tuple[frozenset[str], ...]]]
    scores: Mapping[str, Scores]
    comparisons: tuple[Comparison, ...]
    evidence: Mapping[str, str]
    made: Mapping[str, Any]
    notes: tuple[str, ...]
    milliseconds: Mapping[str, Series]
    seconds: Mapping[str, float]
    contexts: Mapping[str, tuple[tuple[tuple[str, str], ...], ...]] = field(default_factory=dict)
    primary: str = "evidence_recall"
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def baseline(self) -> str:
        """The arm that the others are compared with: the first."""
        return self.arms[0].name

    @property
    def metrics(self) -> list[str]:
        """All metrics there are values of, in a fixed order."""
        return [name for name, series in self.values[self.baseline].items() if not bool(np.isnan(series).all())]

    @cached_property
    def means(self) -> dict[str, dict[str, float]]:
        """{arm: {metric: mean over the queries for which it is defined}}."""
        return {
            arm: {name: round(found, 6) for name in self.metrics if (found := mean(list(series[name]))) is not None}
            for arm, series in self.values.items()
        }

    def of_part(self, metric: str) -> int | None:
        """Return of how many queries a mean is, when it is not of all: of those for which the metric is defined."""
        known = int((~np.isnan(self.values[self.baseline][metric])).sum())
        return known if known < len(self.queries) else None

    def latency(self) -> dict[str, dict[str, dict[str, float]]]:
        """{arm: {budget: percentiles of the milliseconds of a build}}, encoding the query apart."""
        return {
            arm: {budget: percentiles(list(found)) for budget, found in series.items()}
            for arm, series in self.milliseconds.items()
        }

    def by_category(self, metric: str) -> dict[str, dict[str, tuple[float, int]]]:
        """{category: {arm: (mean, queries)}}; empty when the queries have none."""
        categories = sorted({query.category for query in self.queries} - {""})
        found: dict[str, dict[str, tuple[float, int]]] = {}
        for category in categories:
            at = [place for place, query in enumerate(self.queries) if query.category == category]
            for arm, series in self.values.items():
                known = series[metric][at]
                known = known[~np.isnan(known)]
                if len(known):
                    found.setdefault(category, {})[arm] = (float(known.mean()), len(known))
        return found

    @property
    def main_metric(self) -> str:
        """What verdicts, winners and losers are told by: evidence recall at the main budget, unless said otherwise."""
        return self.primary if "@" in self.primary else f"{self.primary}@{main_budget(self.budgets)}"

    @cached_property
    def repeats(self) -> dict[str, str]:
        """{metric: the one it is the same as, whatever an arm does}: these are neither compared nor shown."""
        return repeats(self.grades, self.budgets)

    @property
    def told(self) -> list[str]:
        """The metrics that are shown: those there are values of, without those that repeat another."""
        return [name for name in self.metrics if name not in self.repeats]

    def headlines(self) -> list[Headline]:
        """What is said first of each arm."""
        return headlines(self.comparisons, self.main_metric)

    def changed(self, arm: str, most: int = READ) -> dict[str, list[dict[str, Any]]]:
        """Return the queries that an arm gained and lost most against the baseline, to be read.

        {"gained": [...], "lost": [...]}: each with id, query, value, baseline, and the evidence with whether either arm
        had it in its context, and `instead`: what the context without it held that the other one did not. Among equals
        those whose ndcg changed most come first.
        """
        if arm not in self.values:
            raise InputError(f"arm: expected one of {', '.join(self.values)}, got {arm!r}")
        metric = self.main_metric
        ours, theirs = self.values[arm], self.values[self.baseline]
        delta, fine = np.nan_to_num(ours[metric] - theirs[metric]), ours["ndcg@10"] - theirs["ndcg@10"]
        order = sorted(range(len(delta)), key=lambda at: (-abs(delta[at]), -abs(fine[at]), self.queries[at].id))
        moved = [at for at in order if delta[at] != 0]
        return {
            "gained": [self._told(arm, at) for at in moved if delta[at] > 0][:most],
            "lost": [self._told(arm, at) for at in moved if delta[at] < 0][:most],
        }

    def _told(self, arm: str, at: int) -> dict[str, Any]:
        query, budget = self.queries[at], main_budget(self.budgets)
        ours, theirs = self.found[arm][budget][at], self.found[self.baseline][budget][at]
        wanted = [document for document, grade in self.grades[at].items() if grade > 0]
        lost = self.values[arm][self.main_metric][at] < self.values[self.baseline][self.main_metric][at]
        return {
            "id": query.id,
            "query": query.text,
            **({"answers": list(self.answers[query.id])} if query.id in self.answers else {}),
            "value": round(float(self.values[arm][self.main_metric][at]), 4),
            "baseline": round(float(self.values[self.baseline][self.main_metric][at]), 4),
            "evidence": [
                {"id": id_, "text": self.evidence[id_], "kept": id_ in ours, "kept_by_baseline": id_ in theirs}
                for id_ in wanted
            ],
            "instead": self._instead(*((arm, self.baseline) if lost else (self.baseline, arm)), at, wanted),
        }

    def _instead(self, without: str, other: str, at: int, wanted: Sequence[str]) -> list[dict[str, str]]:
        """Return the first of what is in the context of one arm, and neither evidence nor in that of the other."""
        if without not in self.contexts:
            return []
        both = set(self.contexts[other][at])
        own = [(id_, text) for id_, text in self.contexts[without][at] if id_ not in wanted and (id_, text) not in both]
        return [{"id": id_, "text": text} for id_, text in own[:_INSTEAD]]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each query, with every value of every arm."""
        return [
            {
                "id": query.id,
                "group": query.group,
                "category": query.category,
                **{
                    arm: {name: None if np.isnan(series[name][at]) else round(float(series[name][at]), 6)
                          for name in self.metrics}
                    for arm, series in self.values.items()
                },
            }
            for at, query in enumerate(self.queries)
        ]  # fmt: skip

    def to_dict(self, *, rows: bool = False) -> dict[str, Any]:
        """Return JSON-ready values with stable keys; with `rows` every query's values too."""
        arms = {
            arm.name: {
                "config_hash": arm.config_hash,
                "changes": dict(arm.changes),
                **({} if arm.chunk_tokens is None else {"chunk_tokens": arm.chunk_tokens}),
            }
            for arm in self.arms
        }
        found: dict[str, Any] = {
            "dataset": self.data.name,
            "queries": self.data.queries,
            "documents": self.data.documents,
            "groups": self.data.groups,
            "skipped": self.data.skipped,
            "kind": self.data.kind,
            "digest": self.data.digest,
            "budgets": list(self.budgets),
            "baseline": self.baseline,
            "main_metric": self.main_metric,
            "arms": arms,
            "strategies": self.means,
            "comparisons": [one.to_dict() for one in self.comparisons],
            "changed": {arm.name: self.changed(arm.name) for arm in self.arms[1:]},
            "notes": list(self.notes),
            "made": dict(self.made),
            "latency_ms": self.latency(),
            "seconds": dict(self.seconds),
        }
        if rows:
            found["rows"] = self.rows()
        return found


def main_budget(budgets: Sequence[int]) -> int:
    """Return the budget that is told by first: the middle one, of two in the middle the smaller.

    >>> main_budget((500, 1000, 2000)), main_budget((150, 400))
    (1000, 150)
    """
    return sorted(budgets)[(len(budgets) - 1) // 2]


def repeats(grades: Sequence[Mapping[str, int]], budgets: Sequence[int]) -> dict[str, str]:
    """Return {metric: the one it is the same as}: with one right document a query, all of it is a share of 0 or 1.

    >>> repeats([{"a": 1, "b": 0}, {"c": 2}], (500,))
    {'all_evidence@500': 'evidence_recall@500'}
    """
    single = all(sum(grade > 0 for grade in each.values()) == 1 for each in grades)
    return {f"all_evidence@{size}": f"evidence_recall@{size}" for size in budgets} if single else {}


def shown(text: str) -> str:
    """Return the beginning of a text on one line, for people to recognise it by."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_TEXT else line[: _SHOWN_TEXT - 1] + "…"


def histogram(values: Sequence[float]) -> tuple[int, ...]:
    """Return counts (BINS,) of values in [0, 1]."""
    counts, _ = np.histogram(np.clip(values, 0.0, 1.0), bins=BINS, range=(0.0, 1.0))
    return tuple(int(count) for count in counts)
