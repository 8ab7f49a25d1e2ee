"""Which way of scoring finds the documents of your own folder? Needs the extra `lab`.

    python examples/ab_folder.py [FOLDER [QUESTIONS]] [--budgets 150,300] [--strategies cosine,bm25,hybrid]

QUESTIONS is a JSONL file with a line for each question and the file that answers it, as in data/questions.jsonl:
{"query": "Is it safe to open a pickle somebody sent me?", "positive": "en/pandas-io.md"}. Real questions are worth more
than made-up ones, and thirty are a beginning. With a knowledge base that is there already,
`ctx-vector ab QUESTIONS --kb DIR` does the same.
"""

import argparse
import tempfile
from pathlib import Path

from ctx_vector import KnowledgeBase
from ctx_vector.experiments import read_dataset, run_experiment, strategies

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("folder", nargs="?", default="data/knowledge")
options.add_argument("questions", nargs="?", default="data/questions.jsonl")
options.add_argument("--budgets", default="150,300")
options.add_argument("--strategies", default="cosine,bm25,hybrid")
given = options.parse_args()

with tempfile.TemporaryDirectory() as place:
    with KnowledgeBase(Path(place) / "kb") as kb:
        kb.sync(given.folder)
    data = read_dataset(given.questions, kb=Path(place) / "kb")
    budgets = [int(size) for size in given.budgets.split(",")]
    report = run_experiment(data, strategies(given.strategies.split(",")), budgets)
for arm, means in report.means.items():
    print(f"{arm:10}", "  ".join(f"{name} {value:.3f}" for name, value in means.items()))
for comparison in report.comparisons:
    print(comparison.words)
