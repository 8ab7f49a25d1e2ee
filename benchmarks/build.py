"""What a warm build costs besides encoding its query.

    python benchmarks/build.py [--rows 10000] [--rounds 200]

A knowledge base of 10,000 passages with synthetic vectors, 20 history messages, system instructions; each build has a
query that no cache knows. Once everything fits, once the best passage that does not fit is shortened, in turns.

Encoding is timed by a wrapper around the encoder inside the same builds. The stages are those of `meta["stages_ms"]`.
The processor time of the building thread is a second measure, which other programs disturb less. Most passages found
were found by an earlier query too, as in a conversation: how many were not is in the result. Writes
benchmarks/results/build.json.
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

WARM = 60  # builds that are not measured, until the process is as quick as it gets


class Timed:
    """An encoder that adds up the seconds spent in it: of the clock, and of the processor."""

    def __init__(self, encoder):
        self._encoder = encoder
        self.seconds = self.cpu = 0.0

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    def _timed(self, encode, texts):
        start, cpu = time.perf_counter(), time.thread_time()
        try:
            return encode(texts)
        finally:
            self.seconds += time.perf_counter() - start
            self.cpu += time.thread_time() - cpu

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


class Case:
    """Builds of one builder, each with a query that is new, and what they took in milliseconds."""

    def __init__(self, builder, timed, label):
        self.builder, self.timed, self.label = builder, timed, label
        self.rows, self.seen, self.kept, self.compressed, self.number = [], set(), [], 0, 0

    @staticmethod
    def question(word, number, label):
        return f"How do I declare the {word} of order number {number} in {label}?"

    def run(self, keep=True):
        word = WORDS_EN[self.number % len(WORDS_EN)]
        query = self.question(word, self.number, self.label)
        self.number += 1
        said, timed = history(), self.timed
        timed.seconds = timed.cpu = 0.0
        start, cpu = time.perf_counter(), time.thread_time()
        built = self.builder.assemble(
            query, conversation_history=said, system_instructions="You are a guide to the API."
        )
        seconds, cpu = time.perf_counter() - start, time.thread_time() - cpu
        found = {item.packet.id for item in (*built.kept, *built.dropped) if item.source == "knowledge"}
        if keep:  # the first ones fill the caches of what does not change
            row = {"encode": timed.seconds, "besides": seconds - timed.seconds}
            row |= {"encode_cpu": timed.cpu, "besides_cpu": cpu - timed.cpu}
            row = {name: value * 1000 for name, value in row.items()}
            stages = dict(built.meta["stages_ms"])
            stages["gather"] -= row["encode"]
            self.rows.append((row, stages, len(found - self.seen)))
            self.compressed += built.stats["compressed"]
            self.kept.append(len(built.kept))
        self.seen |= found

    def result(self):
        def median(values):
            return round(statistics.median(values), 3)

        times = {name: median(row[name] for row, _, _ in self.rows) for name in self.rows[0][0]}
        return {
            "encode_ms": times["encode"],
            "besides_ms": times["besides"],
            "share": round(times["besides"] / times["encode"], 3),
            "share_of_processor_time": round(times["besides_cpu"] / times["encode_cpu"], 3),
            "stages_besides_encoding_ms": {
                name: median(stages[name] for _, stages, _ in self.rows) for name in self.rows[0][1]
            },
            "passages_not_found_before_mean": round(statistics.mean(new for _, _, new in self.rows), 2),
            "builds_with_a_shortened_item": self.compressed,
            "kept_median": statistics.median(self.kept),
            "rounds": len(self.rows),
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    timed = Timed(load_encoder())
    with tempfile.TemporaryDirectory() as folder:
        tool = RAGTool(Path(folder) / "kb", timed)
        fill(tool.knowledge, given.rows)
        base = {"history_limit": 20, "knowledge_min_score": 0.0, "min_relevance": 0.0}
        roomy = ContextBuilder(rag_tool=tool, encoder=timed, config=ContextConfig(max_tokens=8000, **base))
        built = roomy.assemble(
            Case.question("header", 10, "short"),
            conversation_history=history(),
            system_instructions="You are a guide to the API.",
        )
        tight = int(built.budget.total_used - 30)  # of the 150 tokens of a passage over 100 are left
        small = ContextConfig(max_tokens=tight, reserve_ratio=0.0, **base)
        cramped = ContextBuilder(rag_tool=tool, encoder=timed, config=small)
        cases = {"all_fits": Case(roomy, timed, "full"), "one_shortened": Case(cramped, timed, "short")}
        for number in range(given.rounds + WARM):  # in turns: what else the machine does hits both alike
            for case in cases.values():
                case.run(keep=number >= WARM)
        result = {
            "what": "a warm build besides encoding its query, against encoding it",
            "hardware": hardware(),
            "rows": given.rows,
            **{name: case.result() for name, case in cases.items()},
        }
        tool.knowledge.close()
    write_result("build", result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
