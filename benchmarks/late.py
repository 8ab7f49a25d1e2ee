"""What the second pass costs: late interaction on 20, 30 and 50 passages of about 160 tokens.

    python benchmarks/late.py

For each depth: passages that were never seen, which have to be encoded; and passages that are remembered, besides the
query, whose tokens are encoded too. Beside them encoding one query for the first pass, what a remembered passage takes
in memory, and a search among 60 remembered passages by one pass and by two, with questions never asked before.
Milliseconds are medians; `cpu` is processor time, which a busy machine disturbs less. A passage is two of the
calibration's background.

And what it gains: how often the first hit answers, and the mean reciprocal rank, on data/datasets/bilingual_knowledge,
after a first pass by cosine and by hybrid, with several weights and depths. Writes benchmarks/results/late.json.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from bilingual import own, table
from common import hardware, write_result

from ctx_vector import KnowledgeBase, load_encoder
from ctx_vector.hits import embedded_texts
from ctx_vector.late import LateScorer
from ctx_vector.late_map import load_late_map
from ctx_vector.measurements import background
from ctx_vector.rerank import DEPTH, WEIGHT, fuse
from ctx_vector.stages import Candidates, Encoder, Query

DEPTHS = (20, 30, 50)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return how long something took, in ms: by the clock, of the processor."""
    began, busy = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - began) * 1e3, (time.process_time() - busy) * 1e3


def medians(times: list[tuple[float, float]]) -> dict[str, float]:
    return {
        "ms": round(statistics.median(t[0] for t in times), 2),
        "cpu": round(statistics.median(t[1] for t in times), 2),
    }


def gains(encoder: Encoder, scorer: LateScorer) -> dict[str, object]:
    """Return, for each first pass, weight and depth, how often the first hit answers, on the bilingual set."""
    task = own()
    passes: dict[str, list[tuple[list[str], np.ndarray, np.ndarray]]] = {"cosine": [], "hybrid": []}
    with tempfile.TemporaryDirectory() as folder, KnowledgeBase(Path(folder), encoder) as kb:
        kb.add_texts({"text": text, "source": id_} for id_, text in task.texts.items())
        for strategy, found in passes.items():
            for question, _ in task.asked:
                hits = kb.search(question, max(DEPTHS), strategy=strategy)
                with kb._store.read() as conn:
                    texts = embedded_texts(conn, [hit.id for hit in hits])
                again = scorer.score(Query(question), Candidates(texts))
                found.append(([hit.source for hit in hits], np.array([hit.score for hit in hits]), again))

    def ranked(strategy: str, weight: float, depth: int) -> dict[str, dict[str, float]]:
        orders = []
        for sources, first, again in passes[strategy]:
            fused = fuse(first, again[:depth], weight)
            orders.append([sources[at] for at in np.argsort(-fused, kind="stable")])
        return table(task, orders)

    result: dict[str, object] = {}
    for strategy in passes:
        result[strategy] = ranked(strategy, 0.0, 1)
        for weight in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0):
            result[f"{strategy}+late, weight {weight}, depth {DEPTH}"] = ranked(strategy, weight, DEPTH)
        for depth in (10, 20, 50):
            result[f"{strategy}+late, weight {WEIGHT}, depth {depth}"] = ranked(strategy, WEIGHT, depth)
    return result


def main() -> None:
    encoder = load_encoder()
    late_map = load_late_map(encoder)
    rows = background()
    texts = [f"{one[language]}\n{other[language]}" for language in ("en", "zh") for one, other in pairwise(rows)]
    counts = dict(zip(texts, encoder.count_tokens(texts), strict=True))
    texts = [text for text in texts if 130 <= counts[text] <= 190]
    queries = [row[f"q_{language}"] for row in rows[::20] for language in ("en", "zh")]
    encoder.encode_documents(texts[-1:])
    result: dict[str, object] = {
        "what": "the second pass by late interaction",
        "hardware": hardware(),
        "tokens of a passage": round(statistics.mean(counts[text] for text in texts)),
        "encode_query": medians([timed(partial(encoder.encode_queries, [query])) for query in queries[:20]]),
    }
    for depth in DEPTHS:
        unseen, seen = [], []
        for turn in range(2):
            scorer = LateScorer(encoder, late_map)
            some = Candidates(texts[turn * depth : (turn + 1) * depth])
            unseen.append(timed(partial(scorer.score, Query(queries[0]), some)))
            for query in queries:
                scorer.score(Query(query), Candidates(some.texts[:1]))  # now its tokens are known
                seen.append(timed(partial(scorer.score, Query(query), some)))
            size = statistics.mean(packed.nbytes for packed in scorer._packed(some.texts, "passage"))
        result[f"depth {depth}"] = {"unseen": medians(unseen), "remembered": medians(seen), "bytes": round(size)}
        print(depth, result[f"depth {depth}"], flush=True)
    with tempfile.TemporaryDirectory() as folder, KnowledgeBase(Path(folder), encoder) as kb:
        kb.add_texts({"text": text, "source": str(number)} for number, text in enumerate(texts[:60]))
        for name in (None, "late"):
            for query in queries[::2]:
                kb.search(query, strategy="hybrid", rerank=name, rerank_depth=60)
            found = [timed(partial(kb.search, query, strategy="hybrid", rerank=name)) for query in queries[1::2]]
            result["search, two passes" if name else "search, one pass"] = medians(found)
    result["bilingual_knowledge"] = gains(encoder, LateScorer(encoder, late_map))
    for name, found in result["bilingual_knowledge"].items():
        print(f"{name:40}", {case: (row["r@1"], row["mrr"]) for case, row in found.items()}, flush=True)
    print({name: result[name] for name in ("encode_query", "search, one pass", "search, two passes")})
    write_result("late", result)


if __name__ == "__main__":
    main()
