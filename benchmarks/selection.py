"""What selecting costs: 1,000 and 10,000 candidates with ready vectors, near duplicates and MMR on.

    python benchmarks/selection.py [--sizes 1000 10000] [--rounds 60]

Selecting is what a build does from the candidates to the list of what stands in the context: ranking (a row for each
candidate, recency, score, floor, newer statements, order, MMR) and filling (near duplicates, token counts of what is
put in, a fate for each). Not in it: the search that finds the candidates and hands their relevance over with them, as
that of a knowledge base does; encoding; rendering; the record of the build.

Candidates are passages of 60-100 words with vectors like those of real passages, half of them with a date: all
different, or like a log, 88 % of ten kinds that are much alike. The limits are 2,800 to 3,200 tokens in turn, as it
takes longer when a little room is left to look for something that fits it. The queries are those of
data/datasets/bilingual_knowledge. Times are processor time of this thread, which runs all of it, and medians of rounds
in which each job has its turn, as the machine is not equally fast all the time.

Writes benchmarks/results/selection.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from common import hardware, write_result

from ctx_vector import ContextConfig, ContextPacket, TokenCounter, load_encoder
from ctx_vector.calibration import Calibration, load_calibration
from ctx_vector.compress import Shortener
from ctx_vector.diversity import Variety
from ctx_vector.filling import Filled, fill
from ctx_vector.history import History
from ctx_vector.judging import Judge
from ctx_vector.packets import Candidate
from ctx_vector.ranking import rank
from ctx_vector.structure import Template

WORDS = (
    "path query body cookie header model field value server client token user order item price date the a to of in for "
    "and with when is are returns declares parameters validation response request function file number list settings"
)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUERY = "How do I declare a path parameter?"
QUERIES = Path(__file__).resolve().parents[1] / "data" / "datasets" / "bilingual_knowledge" / "queries.jsonl"
LIMITS = (2_800, 2_900, 3_000, 3_100, 3_200)


def candidates(count: int, mean: np.ndarray, alike: float, seed: int = 1) -> list[Candidate]:
    """Return candidates around the mean passage, with shared directions as topics."""
    rng = np.random.default_rng(seed)
    topics = rng.standard_normal((24, len(mean))).astype(np.float32)
    spread = 0.36 * topics[rng.integers(0, 24, count)] + 0.6 * rng.standard_normal((count, len(mean))).astype(
        np.float32
    )
    rows = mean + 0.55 * spread / np.sqrt(len(mean))
    twins = rng.choice(count, int(alike * count), replace=False)
    if len(twins):
        noise = 0.2 * rng.standard_normal((len(twins), len(mean))) / np.sqrt(len(mean))
        rows[twins] = rows[twins[rng.integers(0, 10, len(twins))]] + noise
    rows = np.ascontiguousarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)
    words = WORDS.split()
    texts = [" ".join(rng.choice(words, rng.integers(60, 100))) for _ in range(count)]
    dates = [NOW - timedelta(days=int(days)) if days % 2 else None for days in rng.integers(0, 800, count)]
    return [
        Candidate(
            ContextPacket(text, date, metadata={"id": str(n), "type": "knowledge"}), "knowledge", n, rows[n : n + 1],
            known={"cosine": float(score)},
        )
        for n, (text, date, score) in enumerate(zip(texts, dates, rng.beta(2, 4, count), strict=True))
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--rounds", type=int, default=60, help="for 1,000 candidates; fewer for more")
    options = parser.parse_args()
    encoder = load_encoder()
    calibration = load_calibration(encoder)
    counter = TokenCounter()
    queries = itertools.cycle(
        json.loads(line)["text"] for line in QUERIES.read_text(encoding="utf-8").splitlines()
    )  # each is encoded anew

    configs = [ContextConfig(max_tokens=limit, mmr_lambda=0.7) for limit in LIMITS]  # and near duplicates, by default
    varied = [Template(config, counter, QUERY, frozenset()) for config in configs]
    configs = [config.with_(mmr_lambda=None, alike_limit=None) for config in configs]
    plain = [Template(config, counter, QUERY, frozenset()) for config in configs]

    def select(items: list[Candidate], template: Template) -> Filled:
        config = template.config
        variety = Variety(config, lambda _: calibration, lambda _: [], {})
        rows = variety.ordered(rank(items, template, NOW, Judge(QUERY, _not_needed, lambda: encoder)))
        shortener = Shortener(counter, QUERY)
        return fill(rows, History("window", None, [], []), template, shortener, variety=variety)

    result: dict[str, object] = {"what": "selecting candidates with ready vectors, MMR on", "hardware": hardware()}
    for size, alike in itertools.product(options.sizes, (0.0, 0.88)):
        items = candidates(size, calibration.mean_passage("en"), alike)
        jobs: dict[str, Callable[[int], object]] = {
            "select_ms": lambda turn, items=items: select(items, varied[turn % len(LIMITS)]),  # type: ignore[misc]
            "without_variety_ms": lambda turn, items=items: select(items, plain[turn % len(LIMITS)]),  # type: ignore[misc]
            "encode_query_ms": lambda _: encoder.encode_queries([next(queries)]),
        }
        times: dict[str, list[float]] = {name: [] for name in jobs}
        rounds = max(10, options.rounds * 1000 // size)
        for turn in range(-len(LIMITS), rounds):  # those under 0 warm
            for name, job in jobs.items():
                began = time.thread_time()
                job(turn)
                if turn >= 0:
                    times[name].append((time.thread_time() - began) * 1e3)
        filled = select(items, varied[-1])
        result[f"{size}{' like a log' if alike else ''}"] = found = {
            **{job: round(statistics.median(took), 3) for job, took in times.items()},
            "kept": len(filled.chosen),
            "kept_alike": _alike(filled, calibration),
        }
        print(size, alike, json.dumps(found), flush=True)
    small, large = result[str(options.sizes[0])], result[str(options.sizes[-1])]
    result["of_encoding"] = round(small["select_ms"] / small["encode_query_ms"], 3)  # type: ignore[index]
    result["largest_to_smallest"] = round(large["select_ms"] / small["select_ms"], 2)  # type: ignore[index]
    print(result["of_encoding"], "of encoding;", result["largest_to_smallest"], "times")
    write_result("selection", result)


def _not_needed() -> Any:
    raise AssertionError("every relevance is known")


def _alike(filled: Filled, calibration: Calibration) -> int:
    """Return how many of those kept have a cosine of 0.8 to another one, the mean passage removed."""
    rows = np.concatenate([row.vectors for row in filled.chosen]) - calibration.mean_passage("en")
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return int(((rows @ rows.T >= 0.8).sum(1) > 1).sum())


if __name__ == "__main__":
    main()
