"""Ways of scoring compared by the laboratory: the two data sets of this project, LoCoMo and XQuAD.

    python benchmarks/ab.py [--limit N] [--whole] [--cache DIR] [--pages DIR] [SET ...]

SETS below says which arms run on which data, and with which settings. The first arm is what the others are compared
with. `--limit` asks at most N queries of each set. `--pages` writes each report as HTML too. XQuAD and LoCoMo are read
from ../shared/datasets and left out where that is absent; of both a sample of the queries is asked, unless `--whole`.
Writes benchmarks/results/ab.json, into which sets that were not run are taken over.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import RESULTS, hardware, write_result

from ctx_vector import load_encoder
from ctx_vector.experiments import Arm, base_config, read_dataset, run_experiment
from ctx_vector.experiments.report import write_report

ROOT = Path(__file__).resolve().parent.parent
OWN = ROOT / "data" / "datasets"
SHARED = ROOT.parent / "shared" / "datasets"
NAMES = ("cosine", "jaccard", "bm25", "cosine_raw", "hybrid")
ARMS = [*(Arm(name, {"strategy": name}) for name in NAMES), Arm("cosine, stop", {"fill": "stop"})]
RRF = Arm("hybrid_rrf", {"strategy": "hybrid_rrf"})
LATE = Arm("hybrid+late", {"strategy": "hybrid", "rerank": "late"})


@dataclass(frozen=True)
class Set:
    folders: tuple[Path, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    more: tuple[Arm, ...] = ()
    limit: int | None = None


SETS = {
    "bilingual_knowledge": Set((OWN / "bilingual_knowledge",), more=(RRF,)),
    "changing_facts": Set((OWN / "changing_facts",), more=(RRF, Arm("cosine, no recency", {"recency_weight": 0}))),
    "locomo": Set(tuple(SHARED / f"locomo-{n}" for n in (26, 30, 41, 42, 43)), {"recency_weight": 0}, limit=300),
    "xquad-en": Set((SHARED / "xquad-en",), limit=150),
    "xquad-zh": Set((SHARED / "xquad-zh",), limit=150),
    "xquad-zh-en": Set((SHARED / "xquad-zh-en",), limit=150),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="SET", help=", ".join(SETS))
    parser.add_argument("--limit", type=int)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--pages", type=Path)
    options = parser.parse_args()
    encoder = load_encoder()
    path = RESULTS / "ab.json"
    results = json.loads(path.read_text(encoding="utf-8"))["sets"] if path.exists() else {}
    for name in options.sets or SETS:
        chosen = SETS[name]
        if not all(folder.is_dir() for folder in chosen.folders):
            print(f"{name}: not there")
            continue
        data = read_dataset(*chosen.folders, name=name)
        limit = min(filter(None, (options.limit, None if options.whole else chosen.limit)), default=None)
        if limit is not None:
            data = data.sample(limit)
        report = run_experiment(
            data, [*ARMS, LATE, *chosen.more], base=base_config(chosen.settings), encoder=encoder, cache=options.cache
        )
        if options.pages:
            write_report(report, options.pages / f"{name}.html", command=f"python benchmarks/ab.py {name}")
        print(f"{name}: {len(data.queries)} queries, {report.seconds['building']:.0f} s")
        for arm, means in report.means.items():
            figures = " / ".join(f"{means[f'evidence_recall@{size}']:.3f}" for size in report.budgets)
            print(f"  {arm:20} {figures}  ndcg@10 {means['ndcg@10']:.3f}  r@1 {means['r@1']:.3f}", flush=True)
        found = report.to_dict()
        for key in ("changed", "latency_ms"):  # texts of others, and times of this machine
            del found[key]
        metric = report.main_metric
        results[name] = {**found, "by_category": report.by_category(metric), "main_metric": metric}
        if options.limit is None:
            write_result("ab", {"hardware": hardware(), "sets": {key: results[key] for key in SETS if key in results}})


if __name__ == "__main__":
    main()
