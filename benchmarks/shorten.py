"""What stays of a document that is shortened: does it hold the answer, and how much of the room is used.

    python benchmarks/shorten.py [--encode]

Every document of data/datasets/bilingual_knowledge that answers a question (259 pairs) is shortened for that
question to rooms of 50 to 250 tokens, with its marker: the share that holds the words that answer, by the languages of
question and document. Then whole files of data/knowledge, for questions of their language, to every room from 40 to 400
tokens: the share of the room that is used. With --encode the encoder chooses, as with `compress_encode`. Writes
benchmarks/results/shorten.json or shorten_encode.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import hardware, write_result

from ctx_vector import TokenCounter, load_encoder
from ctx_vector.compress import Shortener
from ctx_vector.encoders import CachedEncoder
from ctx_vector.escaping import normalise
from ctx_vector.experiments.metrics import one_spaced

DATA = Path(__file__).resolve().parent.parent / "data"
OWN = DATA / "datasets" / "bilingual_knowledge"
ROOMS = (50, 75, 100, 125, 150, 200, 250)
QUERIES = {
    "en": ("How do I reduce the memory usage of Pandas?", "Which chunk size is best?", "What does a left join keep?"),
    "zh": ("怎样减少 Pandas 的内存占用？", "分块应该多大？", "墨水可以退货吗？"),
}
MARKER = "[... Content compressed ...]"
COUNTER = TokenCounter()


def measure(text: str) -> int:
    return COUNTER.count(f"{text}\n{MARKER}\n")


def read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (OWN / name).read_text(encoding="utf-8").splitlines()]


def answers(encoder: Any) -> dict[str, dict[str, float]]:
    documents = {row["_id"]: row for row in read("corpus.jsonl")}
    queries = {row["_id"]: row for row in read("queries.jsonl")}
    held: dict[str, dict[int, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for row in read("answers.jsonl"):
        document, query = documents[row["corpus-id"]], queries[row["query-id"]]
        body = normalise(f"# {document['title']}\n\n{document['text']}")
        shortener = Shortener(COUNTER, query["text"], encoder=encoder)
        for room in ROOMS:
            short = body if measure(body) <= room else (shortener.shorten(body, room, measure) or ("",))[0]
            case = f"{query['lang']} question, {document['lang']} document"
            held[case][room].append(one_spaced(row["answer"]) in one_spaced(short))
    return {case: _shares(by_room) for case, by_room in sorted(held.items())}


def _shares(by_room: dict[int, list[bool]]) -> dict[str, float]:
    shares = {f"{room}": round(statistics.mean(values), 3) for room, values in by_room.items()}
    return {"pairs": len(by_room[ROOMS[0]]), **shares, "mean": round(statistics.mean(shares.values()), 3)}


def used(language: str, encoder: Any) -> Iterator[float]:
    for path in sorted((DATA / "knowledge" / language).iterdir()):
        body = normalise(path.read_text(encoding="utf-8"))
        for query in QUERIES[language]:
            shortener = Shortener(COUNTER, query, encoder=encoder)
            for room in range(40, 401):
                found = shortener.shorten(body, room, measure)
                yield measure(found[0]) / room if found else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encode", action="store_true")
    encoder = None
    if parser.parse_args().encode:
        model = CachedEncoder(load_encoder(), capacity=100_000)
        encoder = lambda: model  # noqa: E731
    rooms = {language: statistics.quantiles(used(language, encoder), n=20) for language in QUERIES}
    result = {
        "what": "what stays of a document that is shortened",
        "chosen_by": "encoder" if encoder else "words",
        "hardware": hardware(),
        "holds_the_answer": answers(encoder),
        "share_of_the_room_used": {
            language: {"5th percentile": round(shares[0], 3), "median": round(shares[9], 3)}
            for language, shares in rooms.items()
        },
    }
    write_result("shorten_encode" if encoder else "shorten", result)
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
