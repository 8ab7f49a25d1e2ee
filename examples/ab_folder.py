"""Which way of scoring suits your own documents? A rough first look without any judgements. Needs the extra `lab`.

    python examples/ab_folder.py [FOLDER] [--budget 300] [--strategies jaccard,bm25,cosine,hybrid]

Every heading stands for a question, and the text under it for the answer. Headings are shorter and more literal than
what people ask, which favours keywords: for a decision, write down real questions, one line each, as
{"query": ..., "positive": ...}, and run `ctx-vector ab pairs.jsonl --strategies jaccard,bm25,cosine,hybrid`.
"""

import argparse
import json
import tempfile
from pathlib import Path

from ctx_vector import KnowledgeBase
from ctx_vector.experiments import read_dataset, run_experiment, strategies

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("folder", nargs="?", default="data/knowledge")
options.add_argument("--budget", type=int, default=300)
options.add_argument("--strategies", default="jaccard,bm25,cosine,hybrid")
given = options.parse_args()


def pairs(folder: str) -> list[dict[str, str]]:
    """Return a pair for each passage that stands under a heading and says more than it."""
    found = {}
    with tempfile.TemporaryDirectory() as place, KnowledgeBase(Path(place) / "kb") as kb:
        kb.sync(folder)
        for row in kb.export():
            if row["type"] == "chunk" and row["heading"]:
                body = "\n".join(line for line in row["content"].split("\n") if not line.startswith("#")).strip()
                if len(body) > 40:
                    found.setdefault(" ".join(row["heading"]), body)
    return [{"query": query, "positive": body} for query, body in found.items()]


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "headings.jsonl"
    lines = [json.dumps(pair, ensure_ascii=False) for pair in pairs(given.folder)]
    path.write_text("\n".join(lines), encoding="utf-8")
    report = run_experiment(read_dataset(path), strategies(given.strategies.split(",")), budgets=(given.budget,))
for arm, means in report.means.items():
    print(f"{arm:10}", "  ".join(f"{name} {value:.3f}" for name, value in means.items()))
for comparison in report.comparisons:
    print(comparison.words)
