"""How much of the evidence for a question is in the built context: LoCoMo, long conversations remembered turn by turn.

    python benchmarks/locomo.py [--folder DIR] [--sweep] [--modes 'NAME;NAME'] [DATA ...]

Every turn of a conversation is added to a MemoryTool's memory with its text, date and session; every question is built
by ContextBuilder with nothing but that memory. `max_tokens` is chosen for each question so that the rendered memories
(`Memory: ` and the text) take at most 500 / 1,000 / 2,000 tokens: what the build needs besides, and that. Recall is the
mean share of a question's evidence turns that are in the context. With all defaults, `max_tokens` is such that memories
may take as much after the reserve.

DATA are folders in BEIR layout, by default the five conversations in ../shared/datasets. `--sweep` tries defaults one
by one. `--folder` keeps the memories for the next run. `--modes` runs some of MODES, and takes the others over from the
last result. Writes benchmarks/results/locomo.json, and leaves in it what locomo_settings.py has put there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, hardware, write_result

from ctx_vector import ContextBuilder, ContextConfig, MemoryTool, load_encoder
from ctx_vector.encoders import CachedEncoder

SHARED = Path(__file__).resolve().parents[2] / "shared" / "datasets"
SETS = [SHARED / f"locomo-{number}" for number in (26, 30, 41, 42, 43)]
BUDGETS = (500, 1000, 2000)
PLAIN = {
    "recency_weight": 0, "relevance_weight": 1, "min_relevance": 0, "reserve_ratio": 0, "memory_min_importance": 0,
    "memory_limit": None,
}  # fmt: skip
MODES = {
    "cosine only": PLAIN,
    "hybrid only": PLAIN | {"strategy": "hybrid"},
    "hybrid only, second pass": PLAIN | {"strategy": "hybrid", "rerank": "late"},
    "hybrid only, second pass of 100": PLAIN | {"strategy": "hybrid", "rerank": "late", "rerank_depth": 100},
    "all defaults": {},
    "all defaults, hybrid": {"strategy": "hybrid"},
}
SWEEP = {
    **{f"defaults, memory_limit={n}": {"memory_limit": n} for n in (10, 20, 40, 60, 100, None)},
    "defaults, memory_limit=60, recency_weight=0": {"memory_limit": 60, "recency_weight": 0, "relevance_weight": 1},
    "defaults, memory_limit=60, recency_weight=0.1": {
        "memory_limit": 60, "recency_weight": 0.1, "relevance_weight": 0.9,
    },
    **{
        f"defaults, memory_limit=60, episodic floor {floor}": {
            "memory_limit": 60, "recency_floor_by_type": {"episodic": floor},
        }
        for floor in (0.3, 0.5, 0.7)
    },
    "defaults, memory_limit=60, min_relevance=0": {"memory_limit": 60, "min_relevance": 0},
    "cosine only, memory_limit=60": {**PLAIN, "memory_limit": 60},
    "cosine only, min_relevance=0.1": {**PLAIN, "min_relevance": 0.1},
}  # fmt: skip


def read(folder: Path) -> tuple[list[dict], list[dict], dict[str, list[str]]]:
    corpus, queries = (
        [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        for name in ("corpus.jsonl", "queries.jsonl")
    )
    evidence: dict[str, list[str]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        query, document, _ = line.split("\t")
        evidence.setdefault(query, []).append(document)
    return corpus, queries, evidence


def remember(tool: MemoryTool, corpus: list[dict]) -> float:
    """Add every turn, and return the seconds that took."""
    began = time.perf_counter()
    if not tool.memory.all():
        tool.memory.add_many(
            {
                "content": turn["text"],
                "timestamp": turn["timestamp"],
                "session": turn["session"],
                "metadata": {"turn": turn["_id"]},
            }
            for turn in corpus
        )
    return time.perf_counter() - began


def recall(builder: ContextBuilder, queries: list[dict], evidence: dict[str, list[str]]) -> list[list[float]]:
    """Return evidence recall at each budget, for each question."""
    return [
        [_recall(builder, query, evidence[query["_id"]], *sized) for sized in _sized(builder, query)]
        for query in queries
    ]


def _sized(builder: ContextBuilder, query: dict) -> list[tuple[int, int]]:
    """Return each budget, and the `max_tokens` that leaves so much for memories or a little more."""
    ratio = builder.config.reserve_ratio
    if ratio:
        return [(budget, -int(-budget // (1 - ratio))) for budget in BUDGETS]
    # what a build with hardly any memory needs besides
    small = builder.assemble(query["text"], max_tokens=300, now=query["now"])
    besides = small.budget.total_used - sum(item.tokens for item in small.kept)
    return [(budget, budget + besides) for budget in BUDGETS]


def _recall(builder: ContextBuilder, query: dict, wanted: list[str], budget: int, most: int) -> float:
    over = 1
    while over > 0:
        built = builder.assemble(query["text"], max_tokens=most, now=query["now"])
        over = builder.counter.count("".join(f"{item.rendered}\n" for item in built.kept)) - budget
        most -= max(0, over)
    turns = {item.packet.metadata["turn"] for item in built.kept if item.action == "full"}
    return sum(turn in turns for turn in wanted) / len(wanted)


def named(recalls: Any) -> dict[str, float]:
    """Return the means of recalls (questions, budgets) by name."""
    means = np.mean(recalls, 0)
    return {f"evidence_recall@{budget}": round(float(mean), 4) for budget, mean in zip(BUDGETS, means, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--modes", default=";".join(MODES), help="; between them")
    options = parser.parse_args()
    data = options.data or SETS
    chosen = {name: MODES[name] for name in options.modes.split(";")}
    modes = chosen | SWEEP if options.sweep else chosen
    encoder = CachedEncoder(load_encoder())
    values: dict[str, list[list[float]]] = {name: [] for name in modes}  # a row a question, a column a budget
    by_set: dict[str, dict[str, dict[str, float]]] = {}
    turns = 0
    with tempfile.TemporaryDirectory() as temporary:
        for folder in data:
            corpus, queries, evidence = read(folder)
            turns += len(corpus)
            tool = MemoryTool(folder.name, options.folder or temporary, encoder)
            seconds = remember(tool, corpus)
            builder = ContextBuilder(memory_tool=tool, encoder=encoder)
            for name, changes in modes.items():
                values[name] += recall(builder.with_config(ContextConfig(**changes)), queries, evidence)
            by_set[folder.name] = {name: named(values[name][-len(queries) :]) for name in chosen}
            print(folder.name, len(corpus), "turns", f"{seconds:.1f} s", by_set[folder.name], flush=True)
            tool.memory.close()
    means = {name: named(found) for name, found in values.items()}
    if not options.data:
        path = RESULTS / "locomo.json"
        old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        before = {name: row for name, row in old.get("strategies", {}).items() if name in MODES}
        result = {
            "what": "mean share of a question's evidence turns in the built context (LoCoMo)",
            "hardware": hardware(),
            "conversations": [folder.name for folder in data],
            "turns": turns,
            "questions": len(next(iter(values.values()))),
            "strategies": before | means,
            "by_conversation": {name: old.get("by_conversation", {}).get(name, {}) | by_set[name] for name in by_set},
            **{key: old[key] for key in ("held_out", "flatness") if key in old},  # locomo_settings.py
        }
        write_result("locomo", result)
    for name, row in means.items():
        print(f"{name:42}", *(f"{value:.4f}" for value in row.values()))


if __name__ == "__main__":
    main()
