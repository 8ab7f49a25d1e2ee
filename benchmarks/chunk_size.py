"""How large passages should be: what of the answer is in the context, by the size that passages are filled up to.

    python benchmarks/chunk_size.py [--every N] [--folder DIR] [--pieces N]

Two collections, each through a real KnowledgeBase and ContextBuilder, with passages of 64 to 320 of the model's tokens:

- data/datasets/bilingual_knowledge: 232 questions with the words that answer them. `answer_recall` is the share of
  questions whose answer stands in the context; `evidence_recall` counts documents of which any passage is in, and so
  favours small passages. With as many candidates as fit the budget, within the default limits (5 hits), and with five
  documents in a row as one long one, without its headings.
- XQuAD, with five paragraphs in a row as one document: whether the first passage found is of the question's paragraph,
  and how much of that paragraph's sentences stands in the context. Every Nth question (`--every`). It is read from
  ../shared/datasets and left out where that is absent.

Each size is compared with the one of BEFORE, paired by question: a permutation test, Holm's correction over all
comparisons of a table. `--folder` keeps vectors and every question's values by size and strategy, and what is there is
not measured again; `--pieces` stops after so many. Writes benchmarks/results/chunk_size.json when all is there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from common import hardware, write_result

from ctx_vector import ContextBuilder, KnowledgeBase, RAGTool, load_encoder
from ctx_vector.encoders import CachedEncoder
from ctx_vector.escaping import unescape
from ctx_vector.experiments import Arm, base_config, read_dataset, run_experiment
from ctx_vector.experiments.bench import build_within, fixed_tokens
from ctx_vector.experiments.comparison import compare_all
from ctx_vector.experiments.dataset import NO_TIME, Dataset, Document
from ctx_vector.experiments.metrics import one_spaced
from ctx_vector.experiments.vector_file import VectorFile
from ctx_vector.sentences import sentences

ROOT = Path(__file__).resolve().parent.parent
OWN = ROOT / "data" / "datasets" / "bilingual_knowledge"
SHARED = ROOT.parent / "shared" / "datasets"
SIZES = (64, 96, 128, 160, 224, 320)
BEFORE = 224
BUDGETS = (500, 1000, 2000)
PLAIN = [
    f"{name}@{size}" for name in ("answer_recall", "evidence_recall", "all_evidence", "tokens") for size in BUDGETS
]
STRATEGIES = ("cosine", "hybrid")
UNTESTED = ("tokens", "all_evidence")
LIMITS: dict[str, Any] = {"knowledge_limit": 5, "knowledge_min_score": 0.3, "min_relevance": 0.1}  # as the defaults are
CASES = {"en": ("xquad-en", "xquad-en"), "zh": ("xquad-zh", "xquad-zh"), "zh-en": ("xquad-zh", "xquad-en")}
JOINED = 5
SETS = (  # title, name of its files, limits, whether documents are joined
    ("bilingual_knowledge", "own 0", {}, False),
    ("bilingual_knowledge, default limits", "own 1", LIMITS, False),
    ("bilingual_knowledge, long documents", "long", {}, True),
)


Series = dict[str, list[float]]


# -- the set with answers ---------------------------------------------------------------------------------------------


def long_documents(data: Dataset) -> Dataset:
    """Return the data set with five documents of a language joined to one, and no titles."""
    owner, parts = {}, {}
    for language in ("en", "zh"):
        same = [document for document in data.documents if document.metadata["lang"] == language]
        for number, document in enumerate(same):
            owner[document.id] = f"{language}-{number // JOINED}"
            parts.setdefault(owner[document.id], []).append(document.text)
    qrels: dict[str, dict[str, int]] = {}
    for query, grades in data.qrels.items():
        for id_, grade in grades.items():
            known = qrels.setdefault(query, {})
            known[owner[id_]] = max(grade, known.get(owner[id_], 0))
    documents = tuple(Document(id_, "\n\n".join(texts)) for id_, texts in parts.items())
    return replace(data, documents=documents, qrels=qrels)


def own(encoder: Any, strategy: str, size: int, limits: dict[str, Any], long: bool) -> Series:
    """Return {metric: a value for each question}."""
    data = long_documents(read_dataset(OWN)) if long else read_dataset(OWN)
    report = run_experiment(
        data, [Arm("a", {"strategy": strategy}, size)], BUDGETS, base=base_config(limits), encoder=encoder
    )
    return {name: report.values["a"][name].tolist() for name in (*PLAIN, "mrr@10", "r@1")}


# -- XQuAD ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Paragraph:
    document: str
    start: int
    end: int
    sentences: tuple[str, ...]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def joined(name: str) -> tuple[dict[str, str], dict[str, Paragraph]]:
    """Return documents of five paragraphs each, and where each paragraph stands."""
    rows = lines(SHARED / name / "corpus.jsonl")
    documents, places = {}, {}
    for first in range(0, len(rows), JOINED):
        id_, text = f"d{first // JOINED}", ""
        for row in rows[first : first + JOINED]:
            own_text = row["text"].strip()
            parts = tuple(map(one_spaced, sentences(own_text)))
            places[row["_id"]] = Paragraph(id_, len(text), len(text) + len(own_text), parts)
            text += own_text + "\n\n"
        documents[id_] = text
    return documents, places


def share_in(paragraph: Paragraph, texts: list[str]) -> float:
    """Return the share of a paragraph, by characters, whose sentences stand whole in the texts."""
    total = sum(map(len, paragraph.sentences))
    return sum(len(one) for one in paragraph.sentences if any(one in text for text in texts)) / total


def xquad(encoder: Any, strategy: str, size: int, case: str, every: int) -> Series:
    """Return {metric: a value for each question}."""
    asked, said = CASES[case]
    documents, places = joined(said)
    queries = lines(SHARED / asked / "queries.jsonl")[::every]
    rows = (SHARED / asked / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
    owner = dict(row.split("\t")[:2] for row in rows)
    encoder.encode_queries([query["text"] for query in queries])
    series: Series = {}
    with tempfile.TemporaryDirectory() as folder, KnowledgeBase(folder, encoder, chunk_tokens=size) as kb:
        kb.add_texts({"text": text, "source": id_} for id_, text in documents.items())
        config = base_config({"strategy": strategy, "knowledge_limit": 60})
        builder = ContextBuilder(rag_tool=RAGTool(knowledge=kb), config=config, encoder=encoder)
        for query in queries:
            found = measured(kb, builder, query["text"], places[owner[query["_id"]]], strategy)
            for name, value in found.items():
                series.setdefault(f"{name}, {case}", []).append(value)
        series["passages"] = [float(kb.stats()["chunks"])]
    return series


def measured(kb: KnowledgeBase, builder: ContextBuilder, text: str, paragraph: Paragraph, strategy: str) -> dict:
    first = kb.search(text, 1, strategy=strategy)[0]
    overlap = min(first.end_char, paragraph.end) - max(first.start_char, paragraph.start)
    right = first.source == paragraph.document and overlap > 0
    found = {"first passage": float(right)}
    ample = builder.with_config(builder.config.with_(enable_compression=False))
    fixed = fixed_tokens(ample.assemble(text, max_tokens=3000, now=NO_TIME))
    for size in BUDGETS:
        built = build_within(builder, _Query(text), _Present(), size, fixed)
        found[f"share of the paragraph@{size}"] = share_in(
            paragraph, [one_spaced(unescape(item.rendered)) for item in built.kept]
        )
    return found


@dataclass(frozen=True)
class _Query:
    text: str


class _Present:
    @staticmethod
    def present(_: Any) -> Any:
        return NO_TIME


# -- tables -----------------------------------------------------------------------------------------------------------


def table(by_size: dict[int, Series]) -> dict[str, Any]:
    """Return means by size, and each size against BEFORE; recall also as each question's mean over the budgets."""
    by_size = {size: {**series, **_over_budgets(series)} for size, series in by_size.items()}
    names = [name for name in by_size[BEFORE] if name != "passages"]
    family = {
        (f"{size}", f"{BEFORE}", name): (series[name], by_size[BEFORE][name], None)
        for size, series in by_size.items()
        for name in names
        if size != BEFORE and name.split("@")[0] not in UNTESTED
    }
    keys = (
        "arm",
        "metric",
        "value",
        "baseline",
        "difference",
        "low",
        "high",
        "p",
        "p_holm",
        "wins",
        "losses",
        "verdict",
    )
    compared = [one.to_dict() for one in compare_all(family)]
    return {
        "means": {f"{size}": {name: round(statistics.mean(series[name]), 4) for name in names}
                  for size, series in by_size.items()},
        "against": [{key: one[key] for key in keys} for one in compared],
    }  # fmt: skip


def _over_budgets(series: Series) -> Series:
    found = {}
    for name in ("answer_recall", "evidence_recall"):
        if f"{name}@{BUDGETS[0]}" in series:
            parts = [series[f"{name}@{size}"] for size in BUDGETS]
            found[f"{name}, mean of budgets"] = [statistics.mean(values) for values in zip(*parts, strict=True)]
    return found


def show(name: str, found: dict[str, Any]) -> None:
    print(name)
    for size, means in found["means"].items():
        print(f"{size:>6} ", "  ".join(f"{key} {value:.3f}" for key, value in means.items()))
    for one in found["against"]:
        if one["verdict"] != "no difference shown":
            print("      ", one["arm"], one["metric"], one["verdict"], f"{one['difference']:+.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--pieces", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        encoder = CachedEncoder(load_encoder(), capacity=100_000, store=VectorFile(folder / "vectors.sqlite3"))
        left = options.pieces

        def kept(name: str, measure: Callable[[], Series]) -> Series:
            nonlocal left
            path = folder / f"{name}.json"
            if not path.exists():
                if left is not None and left <= 0:
                    sys.exit(3)
                path.write_text(json.dumps(measure()), encoding="utf-8")
                left = None if left is None else left - 1
                print(name, flush=True)
            found: Series = json.loads(path.read_text(encoding="utf-8"))
            return found

        result: dict[str, Any] = {"what": "answers and evidence in the context, by the size of passages"}
        result |= {"hardware": hardware(), "sizes": list(SIZES), "compared_with": BEFORE}
        for title, key, limits, long in SETS:
            result[title] = {"limits": limits}
            for strategy in STRATEGIES:
                by_size = {
                    size: kept(f"{key} {strategy} {size}", partial(own, encoder, strategy, size, limits, long))
                    for size in SIZES
                }
                result[title][strategy] = table(by_size)
                show(f"{title}, {strategy}", result[title][strategy])
        for case in CASES if SHARED.is_dir() else ():
            part = result.setdefault("xquad", {"paragraphs to a document": JOINED}).setdefault(case, {})
            for strategy in STRATEGIES:
                by_size = {
                    size: kept(
                        f"xquad {case} {strategy} {size} {options.every}",
                        partial(xquad, encoder, strategy, size, case, options.every),
                    )
                    for size in SIZES
                }
                part[strategy] = table(by_size)
                part["passages"] = {f"{size}": int(series["passages"][0]) for size, series in by_size.items()}
                show(f"XQuAD {case}, {strategy}", part[strategy])
    write_result("chunk_size", result)


if __name__ == "__main__":
    main()
