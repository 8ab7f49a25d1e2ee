"""Of facts that changed, does the newest version stand above the older ones, and are old answers still there?

    python benchmarks/freshness.py [--redraw N]

data/datasets/changing_facts is put into a MemoryTool's memory (statements) and a RAGTool's index (short notices), and
each of its questions is built by ContextBuilder, with all defaults, with recency by age alone (`supersede_line=None`),
and without recency. A question is fresh when the newest version of its fact is in the context in full, and above every
older one that is. For the questions with one old answer it counts whether that is in the context.

`--redraw` draws the dates anew N times, so that steps are spread evenly over 3 to 400 days, not over their logarithm.
Writes benchmarks/results/freshness.json.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from common import hardware, write_result

from ctx_vector import ContextBuilder, ContextConfig, MemoryTool, RAGTool, load_encoder
from ctx_vector.encoders import CachedEncoder

DATA = Path(__file__).resolve().parents[1] / "data" / "datasets" / "changing_facts"
FLOOR = 23  # days after which exp(-0.1 * days) is under 0.1
NO_RECENCY = {"recency_weight": 0, "relevance_weight": 1}
MODES = {"all defaults": {}, "recency by age alone": {"supersede_line": None}, "no recency": NO_RECENCY}
BUDGETS = (300, 500, 1000, 3000)


def read(folder: Path) -> tuple[list[dict], list[dict], dict[str, dict[str, int]]]:
    corpus, queries = (
        [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        for name in ("corpus.jsonl", "queries.jsonl")
    )
    grades: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        query, document, grade = line.split("\t")
        grades.setdefault(query, {})[document] = int(grade)
    return corpus, queries, grades


def builder_of(corpus: list[dict], folder: str, encoder: Any) -> ContextBuilder:
    """Remember the memories and index the documents."""
    memory = MemoryTool("facts", f"{folder}/memory", encoder)
    memory.memory.add_many(
        {
            "content": row["text"],
            "type": row["memory_type"],
            "timestamp": row["timestamp"],
            "metadata": {"name": row["_id"]},
        }
        for row in corpus
        if row["kind"] == "memory"
    )
    rag = RAGTool(f"{folder}/kb", encoder)
    rag.knowledge.add_texts(
        {"text": row["text"], "source": row["_id"], "timestamp": row["timestamp"]}
        for row in corpus
        if row["kind"] == "document"
    )
    return ContextBuilder(memory_tool=memory, rag_tool=rag, encoder=encoder)


def names(built: Any) -> list[str]:
    """Return which texts are in the context in full, from top to bottom."""
    kept = [item for item in built.kept if item.action == "full"]
    return [item.packet.metadata.get("name") or item.packet.metadata["source"] for item in kept]


def fresh(found: list[str], grades: dict[str, int]) -> bool:
    newest = next(name for name, grade in grades.items() if grade == 2)
    older = [found.index(name) for name, grade in grades.items() if grade == 0 and name in found]
    return newest in found and all(found.index(newest) < place for place in older)


def last_steps(corpus: list[dict]) -> dict[str, float]:
    """Return the days from the version before the newest to the newest one, by fact."""
    times: dict[str, list[datetime]] = {}
    for row in corpus:
        if "group" in row:
            times.setdefault(row["group"], []).append(datetime.fromisoformat(row["timestamp"]))
    return {name: (sorted(found)[-1] - sorted(found)[-2]) / timedelta(days=1) for name, found in times.items()}


def measure(builder: ContextBuilder, corpus: list[dict], queries: list[dict], grades: dict, tokens: int) -> dict:
    steps = last_steps(corpus)
    groups: dict[str, list[bool]] = {}
    for query in queries:
        found = names(builder.assemble(query["text"], now=query["now"], max_tokens=tokens))
        mine = grades[query["_id"]]
        if query["kind"] == "old":
            groups.setdefault("old answers in the context", []).append(next(iter(mine)) in found)
            continue
        good = fresh(found, mine)
        near = "under" if steps[query["group"]] < FLOOR else "over"
        named = [f"fresh, versions {near} {FLOOR} days apart", "fresh"]
        named.append("fresh, held out" if query["held_out"] else "fresh, the 72 facts the form was chosen on")
        for name in named:
            groups.setdefault(name, []).append(good)
        newest = next(name for name, grade in mine.items() if grade == 2)
        groups.setdefault("newest in the context", []).append(newest in found)
    return {name: {"share": round(float(np.mean(hits)), 4), "questions": len(hits)} for name, hits in groups.items()}


def redrawn(corpus: list[dict], now: str, seed: int) -> list[dict]:
    """Return the corpus with other dates, all uniform: the newest version 1 to 365 days old, steps of 3 to 400 days."""
    draw = random.Random(seed)
    age: dict[str, float] = {}
    rows = []
    for row in sorted(corpus, key=lambda row: -row.get("version", 0)):
        if "group" in row:
            known = age.get(row["group"])
            age[row["group"]] = draw.uniform(1, 365) if known is None else known + draw.uniform(3, 400)
            stamp = datetime.fromisoformat(now) - timedelta(days=age[row["group"]])
            row = {**row, "timestamp": stamp.isoformat()}
        rows.append(row)
    return sorted(rows, key=lambda row: row["timestamp"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", type=int, default=3)
    options = parser.parse_args()
    corpus, queries, grades = read(DATA)
    encoder = CachedEncoder(load_encoder())
    result: dict[str, Any] = {
        "what": "changing facts: the newest version is in the context and above the older ones",
        "hardware": hardware(),
        "facts": len({row["group"] for row in corpus if "group" in row}),
        "memories and documents": len(corpus),
        "modes": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        builder = builder_of(corpus, f"{folder}/0", encoder)
        for name, changes in MODES.items():
            changed = builder.with_config(ContextConfig(**changes))
            result["modes"][name] = {
                f"max_tokens={tokens}": measure(changed, corpus, queries, grades, tokens) for tokens in BUDGETS
            }
            shown = result["modes"][name][f"max_tokens={BUDGETS[-1]}"]
            print(name, {key: value["share"] for key, value in shown.items()}, flush=True)
        drawn = []
        for seed in range(1, options.redraw + 1):
            other = redrawn(corpus, queries[0]["now"], seed)
            found = measure(builder_of(other, f"{folder}/{seed}", encoder), other, queries, grades, BUDGETS[-1])
            drawn.append({name: value["share"] for name, value in found.items()})
            print("other dates", seed, drawn[-1], flush=True)
        result["all defaults, other dates"] = drawn
    write_result("freshness", result)


if __name__ == "__main__":
    main()
