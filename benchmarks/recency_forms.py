"""Which form should recency have? Several, on the same candidates with the same relevances.

    python benchmarks/recency_forms.py [--folder DIR]

The candidates of every question are gathered once, as a build with all defaults gathers them; then each form orders
them, and a greedy fill takes what fits. Four things are asked of a form:

    fresh         of facts that changed, the newest version is in the context and above the older ones (freshness.py)
    old           the only answer, which is old, is in a context of 300 / 500 tokens
    LoCoMo        evidence in a context of 500 / 1,000 / 2,000 tokens (locomo.py), when it is beside the checkout
    not versions  100 memories that have nothing to do with each other get random dates (the mean of five draws): how
                  often the right one is still the first

Writes benchmarks/results/recency_forms.json. `--folder` keeps the memories of LoCoMo for the next run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import locomo
import numpy as np
from common import hardware, write_result
from freshness import DATA, FLOOR, builder_of, fresh, last_steps, read

from ctx_vector import ContextConfig, MemoryTool, TokenCounter, load_encoder
from ctx_vector.calibration import load_calibration
from ctx_vector.encoders import CachedEncoder
from ctx_vector.judging import relevances
from ctx_vector.newer import MOST, WIDEST, NewerRule, Statement, apart, take_over, width
from ctx_vector.packets import Candidate
from ctx_vector.scoring import make_scorer
from ctx_vector.values import as_utc

MEMORIES = Path(__file__).resolve().parents[1] / "tests" / "data" / "memories.jsonl"
CONFIG = ContextConfig()
WEIGHTS = (CONFIG.relevance_weight, CONFIG.recency_weight)
DRAWS = 5


@dataclass(frozen=True)
class Case:
    """The candidates of one question; arrays of (n,), `cosines` (n, n) as newer.py takes them."""

    names: list[str]
    relevance: Any
    days: Any
    kinds: list[str]
    tokens: list[int]
    widths: list[int]
    sessions: list[Any]
    texts: list[str]
    cosines: Any
    wanted: dict[str, int]
    query: dict

    @cached_property
    def newer(self) -> Any:
        """[new, old]: one is newer than the other, and not of the same conversation."""
        other = np.array([[a is None or a != b for b in self.sessions] for a in self.sessions], bool)
        other = other.reshape(len(self.names), len(self.names))
        return (self.days[:, None] < self.days[None, :]) & other

    def by_age(self, decay: float, floor: float, by_type: bool = True, episodic: float = 0.1) -> Any:
        """max(floor, exp(-decay * days)), with the default decays of memory types and a floor of episodic ones."""
        decays = CONFIG.recency_decay_by_type if by_type else {}
        floors = {"episodic": episodic} if by_type else {}
        rates = np.array([decays.get(kind, decay) for kind in self.kinds])
        return np.maximum(np.exp(-rates * self.days), [floors.get(kind, floor) for kind in self.kinds])


Form = Callable[[Case, int], tuple[Any, Any]]  # (scores, which are kept by the floor), both (n,)


def added(recency: Callable[[Case], Any]) -> Form:
    """0.7 relevance + 0.3 recency."""
    return lambda case, tokens: (
        WEIGHTS[0] * case.relevance + WEIGHTS[1] * recency(case),
        case.relevance >= CONFIG.min_relevance,
    )


def weighted_rank(case: Case) -> Any:
    """The share of the relevance (squared) that is not newer."""
    weight = case.relevance**2
    return 1 - (case.newer.T * weight[None, :]).sum(1) / weight.sum()


def penalty(case: Case) -> Any:
    """1, times 1 - w for each newer one that is alike (w from 0 at a cosine of 0.25 to 1 at 0.45) and as relevant."""
    alike = np.clip((case.cosines - 0.25) / 0.2, 0, 1)
    share = np.minimum(1, case.relevance[:, None] / np.maximum(case.relevance[None, :], 1e-9))
    return np.prod(1 - case.newer * alike * share, axis=0)


def newest_of_ten(case: Case, tokens: int) -> tuple[Any, Any]:
    """The ten most relevant, newest first; then the others by relevance."""
    scores = case.relevance.copy()
    top = np.argsort(-scores, kind="stable")[:10]
    scores[top] = 2 + 1 / (1 + case.days[top])
    return scores, case.relevance >= CONFIG.min_relevance


def takes_over(line: float, floor: float, head: float | None, subjects: bool = False) -> Form:
    """As newer.py does; `head` is the share of the budget's width that takes part, None: everything does; `subjects`
    says whether their words may tell that two statements are about different things.
    """

    def form(case: Case, tokens: int) -> tuple[Any, Any]:
        recency = case.by_age(0.1, 0.1, episodic=floor)
        order = np.argsort(-case.relevance, kind="stable")
        used = np.cumsum(np.array(case.widths)[order])
        places = [
            place
            for place, wide in zip(order.tolist(), used.tolist(), strict=True)
            if (head is None or wide <= head * tokens) and case.widths[place] <= WIDEST
        ][:MOST]
        relevance = case.relevance.copy()
        if places:
            grid = np.ix_(places, places)
            cosines = np.where(case.newer[grid] | case.newer[grid].T, case.cosines[grid], -np.inf)
            values = [case.relevance[places].tolist(), recency[places].tolist(), (-case.days[places]).tolist()]
            statements = list(map(Statement, *values))
            said = [case.texts[place] for place in places]
            told = [apart(case.query["text"], said, values[0])] if subjects else []
            for new, old in take_over(cosines, statements, NewerRule(*WEIGHTS, CONFIG.min_relevance, line), *told):
                for scores in (relevance, recency):
                    scores[places[new]] = max(scores[places[new]], scores[places[old]])
        return WEIGHTS[0] * relevance + WEIGHTS[1] * recency, relevance >= CONFIG.min_relevance

    return form


def age_rank(case: Case) -> Any:
    """1 for the newest candidate to 0 for the oldest."""
    return 1 - np.argsort(np.argsort(case.days)) / max(1, len(case.days) - 1)


FORMS: dict[str, Form] = {
    "relevance alone": added(lambda case: np.zeros(len(case.names))),
    "exp by type, episodic floor 0.5": added(lambda case: case.by_age(0.1, 0.1, episodic=0.5)),
    "exp by type, episodic floor 0.7": added(lambda case: case.by_age(0.1, 0.1, episodic=0.7)),
    "exp 0.1 a day, floor 0.1": added(lambda case: case.by_age(0.1, 0.1, by_type=False)),
    "exp 0.01 a day, floor 0.1": added(lambda case: case.by_age(0.01, 0.1, by_type=False)),
    "power law 1 / (1 + days / 30)": added(lambda case: 1 / (1 + case.days / 30)),
    "power law 1 / sqrt(1 + days / 7)": added(lambda case: (1 + case.days / 7) ** -0.5),
    "logarithm, 0 at 1,000 days": added(lambda case: np.maximum(0, 1 - np.log1p(case.days) / np.log(1001))),
    "rank of age among the candidates": added(age_rank),
    "rank of age, weighted by relevance": added(weighted_rank),
    "older ones lose recency by newer like ones": added(penalty),
    "ten most relevant, newest first": newest_of_ten,
    "newer takes over, line 0.5, of all candidates": takes_over(0.5, 0.7, None),
    "newer takes over, line 0.4, half of the budget": takes_over(0.4, 0.7, 2),
    "newer takes over, line 0.6, half of the budget": takes_over(0.6, 0.7, 2),
    "newer takes over, line 0.5, half of the budget, episodic floor 0.5": takes_over(0.5, 0.5, 2),
    "newer takes over, line 0.5, half of the budget, whatever their words": takes_over(0.5, 0.7, 2),
    "newer takes over, line 0.5, half of the budget (default)": takes_over(0.5, 0.7, 2, True),
}


class Gatherer:
    """Turns candidates into cases."""

    def __init__(self) -> None:
        self.encoder = CachedEncoder(load_encoder())
        self.scorer = make_scorer("cosine", lambda: self.encoder)
        self.counter = TokenCounter()
        self.calibration = load_calibration(self.encoder)

    def case(self, found: list[Candidate], query: dict, wanted: dict[str, int], key: str = "name") -> Case:
        texts = [item.packet.content for item in found]
        known = [item.known.get("cosine") for item in found]
        missing = [item for item, value in zip(found, known, strict=True) if value is None]
        fresh_ones = iter(relevances(missing, query["text"], self.scorer, lambda: self.encoder) if missing else ())
        now, times = as_utc(query["now"]), [item.packet.timestamp for item in found]
        assert now is not None
        days = [max(0.0, (now - time).total_seconds() / 86_400) if time else 0.0 for time in times]
        vectors = np.stack([item.vectors[0] for item in found]) if found else np.zeros((0, self.encoder.dim))
        return Case(
            [str(item.packet.meta.get(key) or item.packet.meta["source"]) for item in found],
            np.array([next(fresh_ones)[0] if value is None else value for value in known]),
            np.array(days),
            [str(item.packet.meta.get("memory_type") or "knowledge") for item in found],
            self.counter.count_batch([f"Memory: {text}\n" for text in texts]),
            [width(text) for text in texts],
            [item.packet.meta.get("session") for item in found],
            texts,
            self.scorer.alike(texts, vectors) if found else np.zeros((0, 0)),
            wanted,
            query,
        )

    def facts(self, folder: str) -> Iterator[Case]:
        corpus, queries, grades = read(DATA)
        builder = builder_of(corpus, folder, self.encoder)
        for query in queries:
            asked = {"now": as_utc(query["now"]), "encoder": self.encoder}
            memories = builder.memory_tool.candidates(
                query["text"], limit=CONFIG.memory_limit, min_importance=CONFIG.memory_min_importance, **asked
            )
            notices = builder.rag_tool.candidates(
                query["text"], limit=CONFIG.knowledge_limit, min_score=CONFIG.knowledge_min_score, **asked
            )
            yield self.case([*memories, *notices], query, grades[query["_id"]])

    def conversations(self, folder: str) -> Iterator[Case]:
        for data in [locomo.SHARED / f"locomo-{number}" for number in (26, 30, 41, 42, 43)]:
            corpus, queries, evidence = locomo.read(data)
            tool = MemoryTool(data.name, folder, self.encoder)
            locomo.remember(tool, corpus)
            for query in queries:
                found = tool.candidates(
                    query["text"], now=as_utc(query["now"]), encoder=self.encoder,
                    limit=CONFIG.memory_limit, min_importance=CONFIG.memory_min_importance,
                )  # fmt: skip
                yield self.case(list(found), query, dict.fromkeys(evidence[query["_id"]], 1), "turn")
            tool.memory.close()

    def memories(self, folder: str) -> Iterator[Case]:
        rows = [json.loads(line) for line in MEMORIES.read_text(encoding="utf-8").splitlines()]
        for language in ("en", "zh"):
            tool = MemoryTool(language, folder, self.encoder)
            tool.memory.add_many(
                {"content": row[language], "type": "semantic", "metadata": {"name": row["id"]}} for row in rows
            )
            for row in rows:
                asked = {"text": row[f"q_{language}"], "now": "2026-01-01T00:00:00+00:00"}
                found = tool.candidates(
                    asked["text"], now=as_utc(asked["now"]), encoder=self.encoder, limit=60, min_importance=0.0
                )
                yield self.case(list(found), asked, {row["id"]: 1})
            tool.memory.close()


def filled(case: Case, form: Form, tokens: int) -> list[str]:
    """Return what a greedy fill takes, in order."""
    if not case.names:
        return []
    scores, kept = form(case, tokens)
    taken, left = [], tokens
    for place in sorted(range(len(scores)), key=lambda at: (-scores[at], case.days[at], case.names[at])):
        if kept[place] and case.tokens[place] <= left:
            taken.append(case.names[place])
            left -= case.tokens[place]
    return taken


def mean(values: list[float]) -> float:
    return round(float(np.mean(values)), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder")
    options = parser.parse_args()
    gatherer = Gatherer()
    with tempfile.TemporaryDirectory() as folder:
        facts = list(gatherer.facts(f"{folder}/facts"))
        single = list(gatherer.memories(f"{folder}/memories"))
        talks = list(gatherer.conversations(options.folder or f"{folder}/locomo")) if locomo.SHARED.is_dir() else []
    steps = last_steps(read(DATA)[0])
    changed = [case for case in facts if case.query["kind"] == "changed"]
    old = [case for case in facts if case.query["kind"] == "old"]
    draw = np.random.default_rng(1)
    dated = [replace(case, days=draw.uniform(1, 365, len(case.names))) for case in single for _ in range(DRAWS)]
    rows: dict[str, dict[str, float]] = {}
    for name, form in FORMS.items():
        hits = {id(case): fresh(filled(case, form, CONFIG.shared_limit), case.wanted) for case in changed}
        groups = {
            "fresh": changed,
            f"fresh, under {FLOOR} days": [case for case in changed if steps[case.query["group"]] < FLOOR],
            f"fresh, over {FLOOR} days": [case for case in changed if steps[case.query["group"]] >= FLOOR],
            "fresh, held out": [case for case in changed if case.query["held_out"]],
        }
        row = {label: mean([hits[id(case)] for case in cases]) for label, cases in groups.items()}
        for tokens in (300, 500):
            row[f"old@{tokens}"] = mean([next(iter(case.wanted)) in filled(case, form, tokens) for case in old])
        for tokens in locomo.BUDGETS if talks else ():
            shares = []
            for case in talks:
                taken = filled(case, form, tokens)
                shares.append(sum(turn in taken for turn in case.wanted) / len(case.wanted))
            row[f"LoCoMo@{tokens}"] = mean(shares)
        row["not versions, first"] = mean([
            filled(case, form, CONFIG.shared_limit)[:1] == [next(iter(case.wanted))] for case in dated
        ])  # fmt: skip
        rows[name] = row
        print(f"{name:76}", *(f"{value:.3f}" for value in row.values()), flush=True)
    write_result(
        "recency_forms",
        {
            "what": "forms of recency on the same candidates",
            "hardware": hardware(),
            "questions": {"changed": len(changed), "old": len(old), "LoCoMo": len(talks), "not versions": len(single)},
            "forms": rows,
        },
    )


if __name__ == "__main__":
    main()
