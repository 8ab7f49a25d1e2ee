"""Encoding speed: the int8 encoder against `SentenceTransformer.encode` on the same weights, in the same run.

    python benchmarks/encode.py [--rounds 7] [--model multilingual-e5-small] [--out benchmarks/results/encode.json]

Passages are of about 150 tokens. Rounds alternate between the two, so that a busy machine slows both; figures are
medians over rounds. On a machine that others use as well torch's threads wait for one another, which flatters us; so
the CPU time of one thread is given too, which others hardly change. Quality is compared on the same texts: the cosine
of the int8 with the float32 vector.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from common import machine_of, save

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ctx_vector.model_store import find_card, prepare  # noqa: E402
from ctx_vector.onnx_encoder import OnnxEncoder  # noqa: E402

SHARED = ROOT.parent / "shared" / "datasets"


def read_texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def texts() -> tuple[str, list[str], list[str]]:
    """Return the name of the source, passages and questions."""
    if (SHARED / "xquad-en").is_dir():
        passages = [text for name in ("xquad-en", "xquad-zh") for text in read_texts(SHARED / name / "corpus.jsonl")]
        questions = [text for name in ("xquad-en", "xquad-zh") for text in read_texts(SHARED / name / "queries.jsonl")]
        return "XQuAD, English and Chinese", passages, questions
    rows = [
        json.loads(line)
        for path in sorted((ROOT / "models" / "background").glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    found = [str(row.get("text") or row.get("passage") or row.get("content") or "") for row in rows]
    found = [text for text in found if text]
    if not found:
        sys.exit("no passages found: neither the shared data sets nor models/background are here")
    joined = ["\n".join(found[i : i + 3]) for i in range(0, len(found), 3)]
    return "models/background", joined, [text for text in found if len(text) < 120] or found


def per_second(run, count: int) -> float:
    start = time.perf_counter()
    run()
    return count / (time.perf_counter() - start)


def cpu_ms(run, count: int) -> float:
    """Milliseconds of CPU time for each of `count` texts."""
    start = time.process_time()
    run()
    return 1e3 * (time.process_time() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="multilingual-e5-small")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--passages", type=int, default=64)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "encode.json")
    args = parser.parse_args()

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    machine = machine_of()
    from sentence_transformers import SentenceTransformer

    folder = prepare(args.model)
    prompts = find_card(args.model).prompts
    ours = OnnxEncoder(folder)
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)

    source, passages, questions = texts()
    counts = ours.count_tokens(passages)
    near = sorted(range(len(passages)), key=lambda i: abs(counts[i] - 150))[: args.passages]
    docs = [passages[i] for i in near]
    queries = questions[:: max(1, len(questions) // args.queries)][: args.queries]

    def encode_theirs(batch: list[str], kind: str):
        return theirs.encode(batch, prompt=prompts[kind], normalize_embeddings=True, show_progress_bar=False)

    ours.encode_documents(docs[:4])
    encode_theirs(docs[:4], "passage")
    speed: dict[str, list[float]] = {"ours": [], "sentence_transformers": []}
    latency: dict[str, list[float]] = {"ours": [], "sentence_transformers": []}
    for _ in range(args.rounds):
        speed["ours"].append(per_second(lambda: ours.encode_documents(docs), len(docs)))
        speed["sentence_transformers"].append(per_second(lambda: encode_theirs(docs, "passage"), len(docs)))
        for query in queries:
            latency["ours"].append(1e3 / per_second(lambda: ours.encode_queries([query]), 1))  # noqa: B023
            latency["sentence_transformers"].append(1e3 / per_second(lambda: encode_theirs([query], "query"), 1))  # noqa: B023
    import torch

    torch.set_num_threads(1)
    alone = OnnxEncoder(folder, threads=1)
    cpu: dict[str, list[float]] = {"document, ours": [], "document, theirs": [], "query, ours": [], "query, theirs": []}
    few = docs[:24]
    for _ in range(3):
        cpu["document, ours"].append(cpu_ms(lambda: alone.encode_documents(few), len(few)))
        cpu["document, theirs"].append(cpu_ms(lambda: encode_theirs(few, "passage"), len(few)))
        for query in queries:
            cpu["query, ours"].append(cpu_ms(lambda: alone.encode_queries([query]), 1))  # noqa: B023
            cpu["query, theirs"].append(cpu_ms(lambda: encode_theirs([query], "query"), 1))  # noqa: B023
    cosines = (ours.encode_documents(docs) * encode_theirs(docs, "passage")).sum(1)

    def median(values: list[float]) -> float:
        return round(float(np.median(values)), 3)

    result = {
        "model": args.model,
        "machine": machine,
        "passages": {
            "source": source,
            "count": len(docs),
            "mean_tokens": round(float(np.mean([counts[i] for i in near])), 1),
        },
        "queries": {"count": len(queries), "mean_tokens": round(float(np.mean(ours.count_tokens(queries))), 1)},
        "rounds": args.rounds,
        "documents_per_second": {name: median(values) for name, values in speed.items()},
        "query_ms": {name: median(values) for name, values in latency.items()},
        "ratios": {
            "documents_per_second": median(
                [a / b for a, b in zip(speed["ours"], speed["sentence_transformers"], strict=True)]
            ),
            "query_latency": round(median(latency["sentence_transformers"]) / median(latency["ours"]), 3),
        },
        "one_thread_cpu_ms": {name: median(values) for name, values in cpu.items()},
        "one_thread_cpu_ratios": {
            kind: round(median(cpu[f"{kind}, theirs"]) / median(cpu[f"{kind}, ours"]), 3)
            for kind in ("document", "query")
        },
        "cosine_int8_float32": {
            "median": round(float(np.median(cosines)), 5),
            "least": round(float(cosines.min()), 5),
        },
    }
    save(args.out, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
