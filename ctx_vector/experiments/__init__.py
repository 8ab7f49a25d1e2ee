"""The laboratory: which way of scoring works on your data, and whether to believe the answer.

    from ctx_vector.experiments import read_dataset, run_experiment, strategies

    data = read_dataset("questions.jsonl", kb="kb")      # or a BEIR folder, pairs of texts, an audit
    report = run_experiment(data, strategies(["jaccard", "cosine"]), budgets=(500, 1000, 2000))
    for comparison in report.comparisons:
        print(comparison.words)

    dataset       documents, queries and judgements; reading: BEIR folders and files of pairs
    questions     questions to a knowledge base, with the names of the documents that answer
    corpus        the documents as the product holds them, behind a builder
    metrics       of a built context, and of the ranking behind it
    bench         the builds that are measured
    runner        arms x queries x budgets -> Report (result), with notes on what to keep in mind (notes)
    report        a page with plots (plots)
    tuning        settings found on a part of the queries; knobs: which there are; goal: how good a point of them is
    online        a test in use, with feedback from the audit
    comparison    arms against the first, corrected together, verdicts in words; headlines: what is said first
    significance  one pair of series: test, interval, effect size (resampling); unpaired: of two arms; power

Nothing of the package imports this. It needs the extra `lab`: pip install 'ctx_vector[lab]'
"""

from ctx_vector.experiments.dataset import Dataset, Document, Query
from ctx_vector.experiments.reading import read_dataset
from ctx_vector.experiments.result import Report
from ctx_vector.experiments.runner import Arm, base_config, run_experiment, strategies

__all__ = [
    "Arm",
    "Dataset",
    "Document",
    "Query",
    "Report",
    "base_config",
    "read_dataset",
    "run_experiment",
    "strategies",
]
