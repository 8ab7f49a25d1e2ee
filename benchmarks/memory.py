"""What a memory costs: adding against the bare encoder, and a search, an add, a removal at 20,000 memories.

    python benchmarks/memory.py [--add 2000] [--rows 20000] [--rounds 5]

Adding: turns of LoCoMo conversations (../shared/datasets), in rounds that alternate between `add_many` and the bare
encoder on the same texts, both views of each turn, so that both see the same machine. Rows: texts of their own, with
synthetic vectors around the direction that real ones share; queries are encoded for real, each one new. Writes
benchmarks/results/memory.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from datetime import UTC, datetime
from itertools import count

import numpy as np
from common import hardware, write_result
from locomo import SHARED, read

from ctx_vector import Memory, load_encoder
from ctx_vector import memory_rows as rows
from ctx_vector.common_tables import add_encodings, find_encodings
from ctx_vector.encoding_cache import EncodingCache, text_hash
from ctx_vector.memory_rows import NewMemory

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Recorder:
    """The encoder, noting the texts it was given and the time it took for them."""

    def __init__(self, encoder) -> None:
        self.encoder, self.texts, self.seconds = encoder, [], 0.0

    def __getattr__(self, name):
        return getattr(self.encoder, name)

    def encode_documents(self, texts):
        self.texts += texts
        began = time.perf_counter()
        vectors = self.encoder.encode_documents(texts)
        self.seconds += time.perf_counter() - began
        return vectors


def turns(number: int) -> list[dict]:
    found = []
    for folder in sorted(SHARED.glob("locomo-*")):
        for turn in read(folder)[0]:
            session = f"{folder.name} {turn['session']}"
            found.append({"content": turn["text"], "timestamp": turn["timestamp"], "session": session})
    return found[:number]


def adding(encoder, number: int, rounds: int) -> dict[str, object]:
    """Add `number` turns in as many calls as there are rounds, and encode the same texts between them."""
    items, ratios, seconds = turns(number), [], [0.0, 0.0]
    encoder.encode_documents([item["content"] for item in items[:400]])
    total = 0
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(encoder)
        with Memory(folder, "whole", recorder) as memory:
            memory.search("warm")
            size = -(-len(items) // rounds)
            for start in range(0, len(items), size):
                recorder.texts = []
                began = time.perf_counter()
                memory.add_many(items[start : start + size])
                middle = time.perf_counter()
                encoder.encode_documents(recorder.texts)
                end = time.perf_counter()
                ratios.append((end - middle) / (middle - began))
                seconds = [seconds[0] + middle - began, seconds[1] + end - middle]
                total += len(recorder.texts)
    return {
        "memories": len(items),
        "texts_encoded": total,
        "texts_per_second": round(total / seconds[0], 2),
        "bare_encoder_texts_per_second": round(total / seconds[1], 2),
        "share_of_bare_rate": round(seconds[1] / seconds[0], 4),
        "share_by_round": [round(ratio, 4) for ratio in ratios],
        "share_of_time_inside_the_encoder": round(recorder.seconds / seconds[0], 4),
    }


def fill(memory: Memory, number: int, seed: int = 0) -> None:
    """Write memories, a third of them Chinese, half of them turns, with synthetic vectors."""
    rng = np.random.default_rng(seed)
    encoder = memory.encoder
    shared = encoder.encode_documents(["This is a passage."])[0]
    cache = EncodingCache(memory._store, encoder)

    def vector(text: str, conn, model: int) -> int:
        row = shared + rng.standard_normal(encoder.dim).astype(np.float32) * 0.5 / np.sqrt(encoder.dim)
        key = text_hash(text)
        add_encodings(conn, model, [(key, (row / np.linalg.norm(row)).astype("<f4").tobytes())])
        return find_encodings(conn, model, [key])[key]

    with memory._store.write() as conn:
        model, generation = cache.model(conn), rows.next_generation(conn)
        for n in range(number):
            text = f"第{n}件事" if n % 3 == 2 else f"thing number {n}"
            session = f"talk {n // 20}" if n % 2 else None
            new = NewMemory.checked({"content": text, "importance": n % 10 / 10, "session": session}, NOW)
            alone = vector(text, conn, model)
            around = vector(f"around {text}", conn, model) if session else alone
            language = "zh" if n % 3 == 2 else "en"
            rows.insert(conn, memory.user_id, new, created=NOW, language=language, alone=alone, around=around,
                        generation=generation)  # fmt: skip


def timed(function, repeats: int) -> float:
    """Return the median milliseconds of calls with the number of the call."""
    times = []
    for number in range(repeats):
        began = time.perf_counter()
        function(number)
        times.append((time.perf_counter() - began) * 1e3)
    return round(statistics.median(times), 3)


def searching(encoder, number: int, repeats: int = 60) -> dict[str, object]:
    queries = [f"What did we say about the {i}th thing last week?" for i in range(repeats // 2)]
    queries += [f"上星期我们说到第{i}件事的时候说了什么？" for i in range(repeats - len(queries))]
    fresh = count()
    with tempfile.TemporaryDirectory() as folder, Memory(folder, "ada", encoder) as memory:
        fill(memory, number)
        vectors = encoder.encode_queries(queries)
        encoder.encode_queries(["warm"])
        first = timed(lambda i: memory.search_vector(queries[i], vectors[i]), 1)
        result: dict[str, object] = {"rows": number, "first_search_ms": first}
        encode, besides, narrow = [], [], []
        for _ in range(5):  # side by side, so that both see the same machine
            encode.append(timed(lambda i: encoder.encode_queries([f"{queries[i]} {next(fresh)}"]), repeats))
            besides.append(timed(lambda i: memory.search_vector(queries[i], vectors[i], min_importance=0.0), repeats))
            narrow.append(timed(lambda i: memory.search_vector(queries[i], vectors[i], min_importance=0.3), repeats))
        result |= {
            "encode_query_ms": statistics.median(encode),
            "search_besides_encoding_ms": statistics.median(besides),
            "search_with_min_importance_ms": statistics.median(narrow),
            "share_of_encoding": round(statistics.median(b / e for b, e in zip(besides, encode, strict=True)), 3),
            "share_with_min_importance": round(
                statistics.median(n / e for n, e in zip(narrow, encode, strict=True)), 3
            ),
        }

        def add(i: int) -> None:
            memory.add(f"A new fact, number {i}", session=None if i % 2 else "new")

        after: list[float] = []
        adds: list[float] = []
        for i in range(10):
            adds.append(timed(lambda _, i=i: add(i), 1))
            after.append(timed(lambda i: memory.search_vector(queries[i], vectors[i]), 1))
        result |= {"add_one_ms": statistics.median(adds), "search_after_one_add_ms": statistics.median(after)}
        ids = [row.id for row in memory.all()][:5]
        result["remove_one_ms"] = timed(lambda i: memory.remove(ids[i]), 5)
        began = time.perf_counter()
        gone = memory.forget("importance_based", 0.5)
        result |= {"forgotten": gone, "forget_ms": round((time.perf_counter() - began) * 1e3, 1)}
        left = {row.id for row in memory.all()}
        found = {hit.memory.id for hit in memory.search_vector(queries[0], vectors[0], number + 100)}
        with memory._store.read() as conn:
            unused = conn.execute(
                "SELECT count(*) FROM encodings e WHERE NOT EXISTS (SELECT 1 FROM memories WHERE alone = e.id) "
                "AND NOT EXISTS (SELECT 1 FROM memories WHERE around = e.id)"
            ).fetchone()[0]
        result |= {"left": len(left), "index_holds_exactly_what_is_left": found == left, "vectors_left_over": unused}
        result["megabytes"] = round(sum(file.stat().st_size for file in memory.path.iterdir()) / 1e6, 1)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    encoder = load_encoder()
    result = {
        "what": "the cost of a memory",
        "hardware": hardware(),
        "at_rows": searching(encoder, options.rows),
        "adding": adding(encoder, options.add, options.rounds) if options.add and SHARED.is_dir() else None,
    }
    if options.add and (options.add, options.rows) == (2_000, 20_000):
        write_result("memory", result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
