"""Cold start: a new process that answers one query, ours against a bare script on the same model and index.

    python benchmarks/cold_start.py [--runs 9] [--rows 10000] [--out benchmarks/results/cold_start.json]

The bare script imports numpy, faiss, onnxruntime and tokenizers, loads tokenizer.json, the whole int8 model (its word
table inside) and a FAISS index, encodes the query and searches. Ours does the same through `load_encoder`. Processes
alternate; figures are medians of the wall time from start to exit. A process that only starts is measured too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import machine_of, save

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

QUERY = "how do I keep a large table from using all of the memory?"

BARE = """
import sys
import numpy as np, faiss, onnxruntime
from tokenizers import Tokenizer
model, tokenizer, index, query = sys.argv[1:]
tokenizer = Tokenizer.from_file(tokenizer)
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
index = faiss.read_index(index)
ids = np.array([tokenizer.encode("query: " + query).ids], np.int64)
vector = session.run(["vector"], {"input_ids": ids})[0]
print(index.search(vector, 5)[1].tolist())
"""

OURS = """
import sys
import faiss
from ctx_vector.encoders import load_encoder
index, query = sys.argv[1:]
index = faiss.read_index(index)
print(index.search(load_encoder().encode_queries([query]), 5)[1].tolist())
assert "torch" not in sys.modules and "tokenizers" not in sys.modules
"""


def write_whole_model(folder: Path, path: Path) -> None:
    """Write one int8 graph with the word table inside, as onnxruntime's quantize_dynamic lays it out."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from ctx_vector.model_files import word_rows
    from ctx_vector.onnx_export import INPUT

    model = onnx.load(str(folder / "light" / "graph.onnx"))
    table = np.load(folder / "light" / "words.npy", mmap_mode="r")
    scale = max(float(np.abs(rows).max()) for rows in word_rows(table)) / 127
    values = np.concatenate([np.rint(rows / scale).astype(np.int8) for rows in word_rows(table)])
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(values, "word_table"))
    graph.initializer.append(numpy_helper.from_array(np.float32(scale), "word_scale"))
    nodes = [
        helper.make_node("Gather", ["word_table", "input_ids"], ["word_int8"]),
        helper.make_node("DequantizeLinear", ["word_int8", "word_scale"], [INPUT]),
        *graph.node,
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "tokens"]))
    onnx.save(model, str(path))


def contestants(work: Path, rows: int) -> dict[str, list[str]]:
    """Return the command of each contestant; a command line to compare is added here."""
    import faiss

    from ctx_vector.model_store import find_card, prepare

    card = find_card("multilingual-e5-small")
    folder = prepare(card.name)
    whole, index_path = work / "whole.onnx", work / "index.faiss"
    write_whole_model(folder, whole)
    vectors = np.random.default_rng(0).normal(size=(rows, card.dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = faiss.IndexFlatIP(card.dim)
    index.add(vectors)
    faiss.write_index(index, str(index_path))
    tokenizer = str(folder / "tokenizer.json")
    return {
        "python alone": [sys.executable, "-c", "pass"],
        "bare script": [sys.executable, "-c", BARE, str(whole), tokenizer, str(index_path), QUERY],
        "load_encoder": [sys.executable, "-c", OURS, str(index_path), QUERY],
    }


def run_once(command: list[str]) -> float:
    """Return the seconds that one process takes."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{command[:2]} failed:\n{done.stderr}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "cold_start.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        commands = contestants(Path(work), args.rows)
        times: dict[str, list[float]] = {name: [] for name in commands}
        for command in commands.values():  # the first run fills the page cache
            run_once(command)
        for _ in range(args.runs):
            for name, command in commands.items():
                times[name].append(run_once(command))
    seconds = {name: round(float(np.median(values)), 3) for name, values in times.items()}
    ratios = {name: round(seconds[name] / seconds["bare script"], 3) for name in seconds}
    result = {"machine": machine_of(), "runs": args.runs, "index_rows": args.rows, "seconds": seconds, "ratio": ratios}
    save(args.out, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
