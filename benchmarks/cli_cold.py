"""Cold start of the command line: `ctx-vector search` in a new process, against a bare script that does the same.

    python benchmarks/cli_cold.py [--runs 7] [--rows 10000] [--out benchmarks/results/cli_cold.json]

The bare script (see cold_start.py) imports numpy, faiss, onnxruntime and tokenizers, loads tokenizer.json, the whole
int8 model and the same vectors as a FAISS index, and asks the same query. Processes alternate; figures are medians of
the wall time from start to exit. `--parts` prints where the time of our process goes instead.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import machine_of, save

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

PARTS = """
import sys, time
began = time.perf_counter()
def part(name):
    global began
    now = time.perf_counter()
    print(f"{(now - began) * 1000:7.1f} ms  {name}")
    began = time.perf_counter()
import ctx_vector; part("import ctx_vector")
import ctx_vector.cli, ctx_vector.cli.search; part("import the command line")
import numpy; part("import numpy")
import ctx_vector.knowledge; part("import ctx_vector.knowledge")
import ctx_vector.encoders; part("import ctx_vector.encoders")
import onnxruntime; part("import onnxruntime")
encoder = ctx_vector.encoders.load_encoder(); part("open the encoder")
import faiss; part("import faiss")
kb = ctx_vector.knowledge.KnowledgeBase(sys.argv[1], encoder, create=False); part("open the knowledge base")
vector = encoder.encode_queries([sys.argv[2]])[0]; part("encode the query")
kb.search_vector(sys.argv[2], vector); part("load the index, search")
"""


class Drawn:
    """Stands in for the encoder while the index is made: random unit vectors under the real one's name."""

    def __init__(self, encoder) -> None:
        self._encoder = encoder
        self._random = np.random.default_rng(0)

    def __getattr__(self, name: str):
        return getattr(self._encoder, name)

    def encode_documents(self, texts, progress=None):
        vectors = self._random.normal(size=(len(texts), self.dim)).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_kb(folder: Path, rows: int) -> np.ndarray:
    """Make a knowledge base of `rows` passages; return their vectors."""
    from ctx_vector import KnowledgeBase, load_encoder

    with KnowledgeBase(folder, Drawn(load_encoder())) as kb:
        kb.add_texts([{"text": f"Passage number {n} of this index.", "source": f"docs/{n}.md"} for n in range(rows)])
        return np.array([row["vector"] for row in kb.export(vectors=True) if row["type"] == "chunk"], np.float32)


def main() -> None:
    import cold_start
    import faiss

    from ctx_vector.model_store import find_card, prepare

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "cli_cold.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        kb, whole, index_path = Path(work) / "kb", Path(work) / "whole.onnx", Path(work) / "index.faiss"
        vectors = make_kb(kb, args.rows)
        if args.parts:
            for _ in range(2):  # the first run fills the page cache
                shown = subprocess.run([sys.executable, "-c", PARTS, str(kb), cold_start.QUERY], cwd=ROOT, text=True,
                                       capture_output=True, check=True).stdout  # fmt: skip
            print(shown)
            return
        folder = prepare(find_card("multilingual-e5-small").name)
        cold_start.write_whole_model(folder, whole)
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        faiss.write_index(index, str(index_path))
        bare = [str(whole), str(folder / "tokenizer.json"), str(index_path), cold_start.QUERY]
        commands = {
            "python alone": [sys.executable, "-c", "pass"],
            "bare script": [sys.executable, "-c", cold_start.BARE, *bare],
            "ctx-vector search": [sys.executable, "-m", "ctx_vector", "search", cold_start.QUERY, "--kb", str(kb)],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for command in commands.values():
            cold_start.run_once(command)
        for _ in range(args.runs):
            for name, command in commands.items():
                times[name].append(cold_start.run_once(command))
    seconds = {name: round(float(np.median(values)), 3) for name, values in times.items()}
    ratio = round(seconds["ctx-vector search"] / seconds["bare script"], 3)
    result = {
        "machine": machine_of(), "runs": args.runs, "index_rows": args.rows, "seconds": seconds, "ratio": ratio,
        "bound": 0.6,
    }  # fmt: skip
    save(args.out, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
