"""What to keep in mind of an experiment's figures, in sentences for its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ctx_vector.experiments.dataset import Dataset
from ctx_vector.experiments.result import repeats

if TYPE_CHECKING:
    from ctx_vector.config import ContextConfig
    from ctx_vector.experiments.bench import Bench
    from ctx_vector.experiments.runner import Arm


def data_notes(dataset: Dataset, resample: str, *, compared: bool) -> Iterator[str]:
    """Yield what is to be known of the data; `compared` says whether there are several arms."""
    if dataset.skipped:
        yield f"{dataset.skipped} queries have no evidence in this split and were left out."
    if dataset.merged:
        yield (
            f"Lines that ask what an earlier one asks: {dataset.merged}. They were put together with it, as one "
            "question: its evidence is what any of them names."
        )
    again = len(dataset.queries) - len({(query.collection, query.text) for query in dataset.queries})
    if again:
        yield (
            f"Queries that ask, under an id of their own, what another one asks: {again}. They are no "
            "independent witnesses, so p is smaller and intervals are narrower than they should be."
        )
    if len(dataset.queries) == 1 and compared:
        yield "One query alone shows no difference between arms: nothing was compared."
    if len(dataset.groups) > 1 and resample == "queries":
        yield (
            f"Queries come in {len(dataset.groups)} groups, and those of one group are alike. By query, the verdicts "
            "speak of further queries to these groups; for other groups compare by group."
        )
    if repeats([dataset.grades(query) for query in dataset.queries], (1,)):
        yield (
            "Every query has one right document, so all_evidence is evidence_recall, and is neither compared nor shown "
            "a second time."
        )


def run_notes(dataset: Dataset, configs: Sequence[ContextConfig], arms: Sequence[Arm], bench: Bench) -> Iterator[str]:
    """Yield what is to be known of the candidates and of the arms."""
    if bench.lost:
        yield f"{bench.lost} documents say the same as another one and were merged with it; they count as not found."
    limit = min(config.knowledge_limit for config in configs)
    if bench.passages > limit:
        yield f"Candidates are the {limit:,} passages that the search finds, of {bench.passages:,}."
    if dataset.knowledge is not None and not dataset.answers and bench.passages > 2 * len(dataset.documents):
        yield (
            "A document counts as found when any passage of it is in the context, whatever it says. With an `answer`, "
            "words that stand in the document, a question judges the passage too."
        )
    if len({arm.chunk_tokens for arm in arms}) > 1:
        yield (
            "Arms differ in the size of passages. A document counts as found when any passage of it is in the context, "
            "which favours small passages: of more documents there is a piece, though perhaps not the one that answers."
            + (" answer_recall does not: it wants the words that answer." if dataset.answers else "")
        )
    seen: dict[tuple[str, int | None], str] = {}
    for arm, config in zip(arms, configs, strict=True):
        key = config.hash, arm.chunk_tokens
        if key in seen:
            yield f"{arm.name} and {seen[key]} have the same configuration."
        seen.setdefault(key, arm.name)
