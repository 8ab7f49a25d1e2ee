"""What the optimiser of tuning.py asks: how good settings are, each point of the space tried once.

    Goal(bench, ...).search(seed)       then .best (changes, mean), .default_value, and .tried in order

The mean is over queries and budgets of one metric; a query's context besides its candidates is measured once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ctx_vector.config import ContextConfig
from ctx_vector.errors import InputError, OptionalDependencyError
from ctx_vector.experiments.bench import (
    RANKING_TOKENS,
    Bench,
    Setup,
    ample_builder,
    build_within,
    fixed_tokens,
    items_of,
)
from ctx_vector.experiments.dataset import Query
from ctx_vector.experiments.knobs import Knob, even_points
from ctx_vector.experiments.metrics import SMALL_IS_BETTER, context_metrics
from ctx_vector.experiments.runner import LIFTED, Arm


class Goal:
    """The mean of a metric over queries and `budgets` (tokens), for points in a space of knobs by name.

    `trials` is about how many points are tried; `tell(what, done, total)` is told how far it is. Raises InputError for
    a metric that there is not, or that no query has.
    """

    def __init__(
        self,
        bench: Bench,
        base: ContextConfig,
        space: Mapping[str, Knob],
        metric: str,
        budgets: tuple[int, ...],
        trials: int,
        tell: Callable[[str, int, int], None],
    ) -> None:
        self._bench = bench
        self._base = base
        self._space = space
        self._metric = metric
        self._budgets = budgets
        self._most = trials
        self._tell = tell
        self._known: dict[tuple[Any, ...], float] = {}
        self._fixed: dict[str, int] = {}
        self._queries = {name: bench.queries_of(name) for name in bench.dataset.collections}
        self.tried: list[tuple[Mapping[str, Any], float]] = []
        self.default_value = self._measure({})
        self.best: tuple[dict[str, Any], float] = ({}, self.default_value)

    def search(self, seed: int) -> None:
        """Look for the best point with about the number of trials there are."""
        try:
            from scipy.optimize import differential_evolution
        except ImportError:
            raise OptionalDependencyError("tuning", "lab") from None
        knobs = list(self._space.values())
        people = 2 ** max(3, math.ceil(math.log2(3 * len(knobs))))  # a Sobol sequence wants a power of two
        people = min(people, 2 ** int(math.log2(self._most)))
        shown = self._base.to_dict()
        differential_evolution(
            lambda point: -self._ask(point),
            [knob.bounds for knob in knobs],
            integrality=[knob.integral for knob in knobs],
            x0=[knob.place(shown.get(name)) for name, knob in self._space.items()],
            init=even_points(knobs, people, seed),
            maxiter=max(0, self._most // people - 1),
            popsize=people,
            polish=False,
            tol=0,
            rng=np.random.default_rng(seed),
        )

    def _ask(self, point: Sequence[float]) -> float:
        changes = {name: knob.value(place) for (name, knob), place in zip(self._space.items(), point, strict=True)}
        key = tuple(changes.values())
        if key not in self._known:
            self._tell("trying settings", len(self.tried), self._most)
            self._known[key] = value = self._measure(changes)
            self.tried.append((changes, value))
            if value > self.best[1]:
                self.best = (changes, value)
        return self._known[key]

    def _measure(self, changes: Mapping[str, Any]) -> float:
        chunk_tokens = changes.get("chunk_tokens")
        config = Arm("trial", {k: v for k, v in changes.items() if k != "chunk_tokens"}).config(self._base)
        values = []
        for collection, queries in self._queries.items():
            corpus = self._bench.corpus(collection, chunk_tokens)
            setup = Setup("trial", corpus, config)
            builder = corpus.builder.with_config(config)
            for query in queries:
                fixed = self._besides(setup, query)
                expected = self._bench.dataset.expected(query)
                for size in self._budgets:
                    items = items_of(build_within(builder, query, corpus, size, fixed), corpus)
                    found = context_metrics(items, self._bench.dataset.grades(query), *expected)
                    choices = [name for name in found if name not in SMALL_IS_BETTER]
                    if self._metric not in choices:
                        raise InputError(f"metric: expected one of {', '.join(choices)}, got {self._metric!r}")
                    values.append(found[self._metric])
        known = [value for value in values if not math.isnan(value)]
        if not known:
            raise InputError(f"metric: {self._metric} is not defined for any query of {self._bench.dataset.name}")
        return float(np.mean(known))

    def _besides(self, setup: Setup, query: Query) -> int:
        """Return the tokens of a query's context besides its candidates, measured once."""
        if query.id not in self._fixed:
            ample = ample_builder(Setup(setup.arm, setup.corpus, self._base.with_(**LIFTED)))
            built = ample.assemble(query.text, max_tokens=RANKING_TOKENS, now=setup.corpus.present(query))
            self._fixed[query.id] = fixed_tokens(built)
        return self._fixed[query.id]
