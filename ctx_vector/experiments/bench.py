"""Where builds are run and measured: a data set's documents indexed once, and a recorder of what builds give.

    with Bench(dataset, base) as bench:
        recorder = Recorder(dataset, ["a"], (500,))
        recorder.run(queries, [Setup("a", bench.corpus(""), config)], tell)

For each query an arm builds once with ample room, which gives its ranking and what a context has besides candidates,
and once for each budget. Arms take turns on each query, so that a loaded machine slows all of them alike.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from ctx_vector.config import ContextConfig
from ctx_vector.errors import InputError
from ctx_vector.experiments.corpus import Corpus, IndexedCorpus
from ctx_vector.experiments.dataset import Dataset, Query
from ctx_vector.experiments.metrics import (
    CONTEXT,
    RANKING,
    Item,
    context_metrics,
    ranked_documents,
    ranking_metrics,
)
from ctx_vector.experiments.result import Scores, histogram, main_budget, shown

if TYPE_CHECKING:
    from ctx_vector.builder import ContextBuilder
    from ctx_vector.built import BuiltContext, Decision
    from ctx_vector.stages import Encoder

RANKING_TOKENS: Final = 16_000  # room for some seventy passages
Tell = Callable[[str, int, int], None]


class Bench:
    """The documents of a data set, indexed when they are first asked for, with one encoder that remembers.

    `passages` is how many passages the largest knowledge base has, `lost` how many documents were merged with one that
    says the same.
    """

    def __init__(
        self,
        dataset: Dataset,
        base: ContextConfig,
        *,
        encoder: Encoder | None = None,
        cache: str | Path | None = None,
        kind: str = "auto",
        tell: Tell,
    ) -> None:
        self.dataset = dataset
        self.passages = self.memories = self.lost = 0
        self._base = base
        self._kind = kind
        self._tell = tell
        self._given = encoder
        self._cache = cache
        self._corpora: dict[tuple[str, int | None], Corpus] = {}
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ctx_vector-lab-")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder of all arms, with what it encoded before."""
        from ctx_vector.encoders import CachedEncoder, load_encoder
        from ctx_vector.experiments.vector_file import VectorFile

        store = None
        if self._cache is not None:
            store = VectorFile(Path(self._cache) / "vectors.sqlite3")
            self._stack.callback(store.close)
        return CachedEncoder(self._given or load_encoder(), capacity=100_000, store=store)

    def corpus(self, collection: str, chunk_tokens: int | None = None) -> Corpus:
        """Return the indexed documents of a collection."""
        key = collection, chunk_tokens
        if key not in self._corpora:
            self._tell("indexing", len(self._corpora), len(self.dataset.collections))
            made = self._made(collection, chunk_tokens)
            self._stack.callback(made.close)
            if not any(known == collection for known, _ in self._corpora):
                self.lost += made.lost
                self.memories += made.memories
            self.passages = max(self.passages, made.passages)
            self._corpora[key] = made
        return self._corpora[key]

    def _made(self, collection: str, chunk_tokens: int | None) -> Corpus:
        documents, there = self.dataset.documents_of(collection), self.dataset.knowledge
        if there is None:
            folder = self._folder / str(len(self._corpora))
            return Corpus(
                documents, folder, self.encoder, self._base, kind=self._kind, chunk_tokens=chunk_tokens
            )  # fmt: skip
        if chunk_tokens is not None:
            raise InputError(
                f"chunk_tokens: the passages are those of {there}; index the documents into another folder with "
                f"--chunk-tokens {chunk_tokens}, and ask the same questions there"
            )
        if self._kind == "memories":
            raise InputError(f"kind: documents of the knowledge base {there} are no memories")
        return IndexedCorpus(documents, there, self.encoder, self._base)

    def queries_of(self, collection: str) -> list[Query]:
        """Return the queries of a collection, with their vectors ready."""
        queries = [query for query in self.dataset.queries if query.collection == collection]
        self.encoder.encode_queries([query.text for query in queries])
        return queries

    @property
    def kind(self) -> str:
        """What the documents became."""
        if self.memories and self.passages:
            return "knowledge and memories"
        return "memories" if self.memories else "knowledge"

    @property
    def tokenizer(self) -> str:
        """The name of the tokenizer that counts."""
        return next(iter(self._corpora.values())).builder.counter.name


@dataclass(frozen=True, slots=True)
class Setup:
    """One arm on one collection."""

    arm: str
    corpus: Corpus
    config: ContextConfig


class Recorder:
    """Runs the builds and keeps what they measure."""

    def __init__(self, dataset: Dataset, arms: Sequence[str], budgets: tuple[int, ...]) -> None:
        self.dataset = dataset
        self.budgets = budgets
        count = len(dataset.queries)
        self._at = {query.id: place for place, query in enumerate(dataset.queries)}
        self._done = 0
        names = [*(f"{name}@{size}" for size in budgets for name in CONTEXT), *RANKING]
        self.values = {arm: {name: np.full(count, np.nan) for name in names} for arm in arms}
        self.milliseconds = {arm: {f"{size}": np.full(count, np.nan) for size in budgets} for arm in arms}
        self._kept: dict[str, dict[int, list[frozenset[str]]]] = {
            arm: {size: [frozenset()] * count for size in budgets} for arm in arms
        }
        self._contexts: dict[str, list[tuple[tuple[str, str], ...]]] = {arm: [()] * count for arm in arms}
        self._texts: dict[str, str] = {}  # each once, for contexts hold the same passages again and again
        self._scores: dict[str, tuple[list[float], list[float]]] = {arm: ([], []) for arm in arms}

    def kept(self) -> dict[str, dict[int, tuple[frozenset[str], ...]]]:
        """Return the evidence that was in each context."""
        return {arm: {size: tuple(found) for size, found in sizes.items()} for arm, sizes in self._kept.items()}

    def contexts(self) -> dict[str, tuple[tuple[tuple[str, str], ...], ...]]:
        """Return what was in each context at the main budget: documents, and the beginnings of the texts."""
        return {arm: tuple(found) for arm, found in self._contexts.items()}

    def scores(self) -> dict[str, Scores]:
        """Return how often each relevance was given."""
        return {arm: Scores(histogram(good), histogram(bad)) for arm, (good, bad) in self._scores.items()}

    def run(self, queries: Sequence[Query], setups: Sequence[Setup], tell: Tell) -> None:
        """Run all arms on the queries of one collection."""
        builders = {setup.arm: setup.corpus.builder.with_config(setup.config) for setup in setups}
        ample = {setup.arm: ample_builder(setup) for setup in setups}
        for setup in setups:  # whatever is loaded or made at the first use is no latency of the first query
            builders[setup.arm].assemble(
                queries[0].text, max_tokens=RANKING_TOKENS, now=setup.corpus.present(queries[0])
            )
        for number, query in enumerate(queries):
            tell("building", self._done, len(self.dataset.queries))
            self._done += 1
            turn = number % len(setups)
            for setup in (*setups[turn:], *setups[:turn]):
                fixed = self._rank(setup, query, ample[setup.arm])
                for size in self.budgets:
                    self._build(setup, query, builders[setup.arm], size, fixed)

    def _rank(self, setup: Setup, query: Query, builder: ContextBuilder) -> int:
        """Record the ranking, and return how many tokens a context has besides its candidates."""
        built = builder.assemble(query.text, max_tokens=RANKING_TOKENS, now=setup.corpus.present(query))
        _refuse_faults(setup.arm, built)
        grades = self.dataset.grades(query)
        ranking = ranked_documents(setup.corpus.document_of(item) for item in _in_order(built, setup.config))
        for name, value in ranking_metrics(ranking, grades).items():
            self.values[setup.arm][name][self._at[query.id]] = value
        good, bad = self._scores[setup.arm]
        for item in (*built.kept, *built.dropped):
            (good if grades.get(setup.corpus.document_of(item), 0) > 0 else bad).append(item.relevance)
        return fixed_tokens(built)

    def _build(self, setup: Setup, query: Query, builder: ContextBuilder, size: int, fixed: int) -> None:
        built = build_within(builder, query, setup.corpus, size, fixed)
        items, at, arm = items_of(built, setup.corpus), self._at[query.id], setup.arm
        grades = self.dataset.grades(query)
        for name, value in context_metrics(items, grades, *self.dataset.expected(query)).items():
            self.values[arm][f"{name}@{size}"][at] = value
        found = frozenset(item.document for item in items if item.whole and grades.get(item.document, 0) > 0)
        self._kept[arm][size][at] = found
        if size == main_budget(self.budgets):
            texts = [shown(item.packet.content) for item in built.kept]
            self._contexts[arm][at] = tuple(
                (item.document, self._texts.setdefault(text, text)) for item, text in zip(items, texts, strict=True)
            )
        self.milliseconds[arm][f"{size}"][at] = built.meta["build_time_ms"]


def _in_order(built: BuiltContext, config: ContextConfig) -> list[Decision]:
    """Return what was ranked, best first: what was kept, and where a few long documents took all the room, also what
    found none. By score, as it would have been chosen; with MMR what found no room comes last.
    """
    rest = [item for item in built.dropped if item.reason in ("budget", "oversize")]
    found = [*built.kept, *rest]
    if rest and config.mmr_lambda is None:
        found.sort(key=lambda item: -item.score)
    return found


def ample_builder(setup: Setup) -> ContextBuilder:
    """Return a builder that keeps all it has room for, whole, in the arm's order."""
    return setup.corpus.builder.with_config(setup.config.with_(fill="skip", enable_compression=False))


def fixed_tokens(built: BuiltContext) -> int:
    """Return the tokens of a context besides its candidates: headers, Task, Output."""
    return built.budget.total_used - sum(item.tokens for item in built.kept)


def build_within(builder: ContextBuilder, query: Query, corpus: Corpus, size: int, fixed: int) -> BuiltContext:
    """Return the context whose candidates take at most `size` tokens, their joiners included."""
    most = size + fixed
    while True:
        built = builder.assemble(query.text, max_tokens=most, now=corpus.present(query))
        over = sum(item.tokens for item in built.kept) - size
        if over <= 0:
            return built
        most -= over  # only with labels, or tokenizers whose counts do not add


def items_of(built: BuiltContext, corpus: Corpus) -> list[Item]:
    """Return what was kept, from top to bottom, as the metrics want it: with MMR that is not the order of choice."""
    kept = sorted(built.kept, key=lambda item: built.text.find(item.rendered))
    return [Item(corpus.document_of(item), item.tokens, item.action == "full", item.rendered) for item in kept]


def _refuse_faults(arm: str, built: BuiltContext) -> None:
    """Raise InputError for a source that failed: an empty context is no result of the arm."""
    for name, use in built.sources.items():
        if use.fault:
            raise InputError(f"arm {arm}: the source {name} failed: {use.fault}")
