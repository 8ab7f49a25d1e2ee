"""What a warm build costs besides encoding its query.

    python benchmarks/build.py [--rows 10000] [--rounds 60]

A knowledge base of 10,000 passages with synthetic vectors, 20 history messages, system instructions; each build has a
query that no cache knows. Once everything fits, once the best passage that does not fit is shortened. Encoding is timed
by a wrapper around the encoder inside the same builds. Writes benchmarks/results/build.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from common import hardware, write_result
from search import WORDS_EN, WORDS_ZH, fill

from ctx_vector import ContextBuilder, ContextConfig, RAGTool
from ctx_vector.encoders import load_encoder


class Timed:
    """An encoder that adds up the seconds spent in it."""

    def __init__(self, encoder):
        self._encoder = encoder
        self.seconds = 0.0

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    def _timed(self, encode, texts):
        start = time.perf_counter()
        try:
            return encode(texts)
        finally:
            self.seconds += time.perf_counter() - start

    def encode_queries(self, texts):
        return self._timed(self._encoder.encode_queries, texts)

    def encode_documents(self, texts):
        return self._timed(self._encoder.encode_documents, texts)


def history():
    messages = []
    for turn in range(10):
        messages.append(
            {"role": "user", "content": f"Question {turn}: how does the {WORDS_EN[turn]} reach the server?"}
        )
        messages.append(
            {"role": "assistant", "content": f"Answer {turn}: " + " ".join(WORDS_EN) + "。" + "".join(WORDS_ZH)}
        )
    return messages


def measure(builder, timed, rounds, label):
    rest, encoding, compressed, kept = [], [], 0, []
    for number in range(rounds + 5):
        query = f"How do I declare the {WORDS_EN[number % len(WORDS_EN)]} of order number {number} in {label}?"
        timed.seconds = 0.0
        start = time.perf_counter()
        built = builder.assemble(
            query, conversation_history=history(), system_instructions="You are a guide to the API."
        )
        total = time.perf_counter() - start
        if number >= 5:  # the first ones fill the caches of what does not change
            encoding.append(timed.seconds * 1000)
            rest.append((total - timed.seconds) * 1000)
            compressed += built.stats["compressed"]
            kept.append(len(built.kept))
    return {
        "encode_ms": round(statistics.median(encoding), 3),
        "besides_ms": round(statistics.median(rest), 3),
        "share": round(statistics.median(rest) / statistics.median(encoding), 3),
        "builds_with_a_shortened_item": compressed,
        "kept_median": statistics.median(kept),
        "rounds": rounds,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    timed = Timed(load_encoder())
    with tempfile.TemporaryDirectory() as folder:
        tool = RAGTool(Path(folder) / "kb", timed)
        fill(tool.knowledge, given.rows)
        base = {"history_limit": 20, "knowledge_min_score": 0.0, "min_relevance": 0.0}
        roomy = ContextBuilder(rag_tool=tool, encoder=timed, config=ContextConfig(max_tokens=8000, **base))
        built = roomy.assemble(
            "warm", conversation_history=history(), system_instructions="You are a guide to the API."
        )
        tight = int(built.budget.total_used - 120)
        small = ContextConfig(max_tokens=tight, reserve_ratio=0.0, **base)
        cramped = ContextBuilder(rag_tool=tool, encoder=timed, config=small)
        result = {
            "what": "a warm build besides encoding its query, against encoding it",
            "hardware": hardware(),
            "rows": given.rows,
            "all_fits": measure(roomy, timed, given.rounds, "full"),
            "one_shortened": measure(cramped, timed, given.rounds, "short"),
        }
        tool.knowledge.close()
    write_result("build", result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
