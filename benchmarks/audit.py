"""What auditing adds to a warm build, and how lists and statistics grow with the number of builds.

    python benchmarks/audit.py [--rows 10000] [--blocks 12] [--builds 10000]

The build is the one of build.py: a knowledge base of 10,000 passages, 20 history messages, a new query each time.
Blocks of 100 builds with and without audit take turns in one run; before each block everything recorded is on disk, so
that the thread that writes cannot slow what is compared with. `median` is of single builds. `with_writing` compares
the mean time of whole blocks, that of the audited ones up to the end of the flush: what a program pays that builds
without a pause and waits for the disk. Then --builds builds are recorded, spread over a week, and `list` and `stats`
timed after 100 and after all.

Writes benchmarks/results/audit.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from build import history
from common import hardware, write_result
from search import WORDS_EN, fill

from ctx_vector import ContextBuilder, ContextConfig, RAGTool
from ctx_vector.audit import AuditLog
from ctx_vector.encoders import load_encoder

BLOCK = 100


def overhead(tool, encoder, log, blocks):
    config = ContextConfig(max_tokens=8000, history_limit=20, knowledge_min_score=0.0, min_relevance=0.0)
    plain = ContextBuilder(rag_tool=tool, encoder=encoder, config=config)
    audited = ContextBuilder(rag_tool=tool, encoder=encoder, config=config, audit=log)
    single = {False: [], True: []}
    whole = {False: [], True: []}
    number = 0
    for block in range(blocks + 4):
        with_audit = block % 2 == (block // 2) % 2  # without, with, with, without: drifts cancel
        builder = audited if with_audit else plain
        log.flush()
        began = time.perf_counter()
        times = []
        for _ in range(BLOCK):
            number += 1
            query = f"How do I declare the {WORDS_EN[number % len(WORDS_EN)]} of order number {number}?"
            start = time.perf_counter()
            builder.assemble(query, conversation_history=history(), system_instructions="You are a guide to the API.")
            times.append((time.perf_counter() - start) * 1000)
        log.flush()
        if block >= 4:
            single[with_audit] += times
            whole[with_audit].append((time.perf_counter() - began) * 1000 / BLOCK)
    medians = {name: statistics.median(values) for name, values in single.items()}
    means = {name: statistics.mean(values) for name, values in whole.items()}
    return {
        "without_ms": round(medians[False], 3),
        "with_ms": round(medians[True], 3),
        "median_ratio": round(medians[True] / medians[False], 3),
        "p95_ratio": round(
            statistics.quantiles(single[True], n=20)[-1] / statistics.quantiles(single[False], n=20)[-1], 3
        ),
        "with_writing_ratio": round(means[True] / means[False], 3),
        "builds_each": blocks * BLOCK // 2,
    }


def growth(folder, builds):
    path = Path(folder) / "growth.sqlite3"
    builder = ContextBuilder(config=ContextConfig(strategy="jaccard", min_relevance=0.0))
    made, sizes = {}, {}
    with AuditLog(path) as log:
        for number in range(builds):
            built = builder.assemble(
                f"question {number}",
                documents=[f"passage {number % 500} of some words about {WORDS_EN[number % len(WORDS_EN)]}", "in all"],
                conversation_history=history()[: 2 * (number % 6)],
                session_id=f"session {number % 10}",
            )
            built.trace.started -= number * 7919 % 10_000 / 10_000 * 6.9 * 86_400  # over the days before
            log.record(built)
            if number % 500 == 99:
                log.flush()
            if number + 1 in (100, builds):
                log.flush()
                made[number + 1] = {
                    "list_ms": _median(lambda: log.list(limit=5)),
                    "list_session_ms": _median(lambda: log.list("session 7", limit=5)),
                    "stats_ms": _median(lambda: log.stats("7d")),
                }
                sizes[number + 1] = log.stats()["bytes"]
    first, last = made[100], made[builds]
    return {
        "builds": builds,
        "after_100": first,
        f"after_{builds}": last,
        "ratios": {name: round(last[name] / first[name], 2) for name in first},
        "bytes_a_build": round((sizes[builds] - sizes[100]) / (builds - 100)),
    }


def _median(work):
    times = []
    for _ in range(30):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1000)
    return round(statistics.median(times), 3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--builds", type=int, default=10_000)
    given = parser.parse_args()
    encoder = load_encoder()
    with tempfile.TemporaryDirectory() as folder:
        tool = RAGTool(Path(folder) / "kb", encoder)
        fill(tool.knowledge, given.rows)
        with AuditLog(Path(folder) / "audit.sqlite3") as log:
            warm = overhead(tool, encoder, log, given.blocks)
        tool.knowledge.close()
        result = {
            "what": "a warm build with audit against the same without, and lists after many builds",
            "hardware": hardware(),
            "rows": given.rows,
            "warm_build": warm,
            "growth": growth(folder, given.builds),
        }
    write_result("audit", result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
