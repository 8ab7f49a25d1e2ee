"""Finding the answer among documents of two languages, by the language of the question and of what answers it.

    python benchmarks/bilingual.py [--every N] [--cache DIR]

Three collections in one knowledge base each, searched by KnowledgeBase.search:

- `own`: data/datasets/bilingual_knowledge; a hit counts when its document has grade 2. Once more by whole documents,
  one vector each.
- `halves`: XQuAD with half of the paragraphs in English and the other half in Chinese, so that a question has its
  answer in one language only.
- `both`: XQuAD with every paragraph in both languages; either counts.

Arms: the calibrated cosine, the raw one, the hybrid, keywords. The calibrated arms are measured once more with other
values of OTHER_LANGUAGE, which says how much counts of a text in another language (calibration.py). XQuAD is read from
../shared/datasets, every Nth question, and left out where that is absent. Writes benchmarks/results/bilingual.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import hardware, write_result

from ctx_vector import KnowledgeBase, calibration, load_encoder, relevance_map
from ctx_vector.calibration import load_calibration
from ctx_vector.encoders import CachedEncoder
from ctx_vector.experiments.reading import read_dataset
from ctx_vector.experiments.vector_file import VectorFile
from ctx_vector.languages import language_of

ROOT = Path(__file__).resolve().parent.parent
OWN = ROOT / "data" / "datasets" / "bilingual_knowledge"
SHARED = ROOT.parent / "shared" / "datasets"
SHARES = (1.0, 0.85, 0.8, 0.78, 0.75, 0.7, 0.6)
DEPTH = 30


@dataclass(frozen=True)
class Task:
    """Texts by id, with the language of each; questions, with the ids of what answers."""

    texts: dict[str, str]
    languages: dict[str, str]
    asked: list[tuple[str, set[str]]]

    def case(self, question: str, good: set[str]) -> str:
        asked, said = language_of(question), {self.languages[id_] for id_ in good}
        where = "both" if len(said) == 2 else "its own" if asked in said else "the other"
        return f"{asked}, answered in {where}"


def own() -> Task:
    data = read_dataset(OWN)
    texts = {document.id: f"# {document.title}\n\n{document.text}" for document in data.documents}
    asked = [(q.text, {id_ for id_, grade in data.grades(q).items() if grade == 2}) for q in data.queries]
    return Task(texts, {document.id: str(document.metadata["lang"]) for document in data.documents}, asked)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def xquad(every: int, kept: Callable[[str, int], bool]) -> Task:
    texts, languages, asked = {}, {}, []
    for language in ("en", "zh"):
        for number, row in enumerate(lines(SHARED / f"xquad-{language}" / "corpus.jsonl")):
            if kept(language, number):
                texts[f"{language}/{row['_id']}"] = row["text"]
                languages[f"{language}/{row['_id']}"] = language
    for language in ("en", "zh"):
        folder = SHARED / f"xquad-{language}"
        rows = (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
        owner = dict(row.split("\t")[:2] for row in rows)
        for row in lines(folder / "queries.jsonl")[::every]:
            asked.append((row["text"], {f"{said}/{owner[row['_id']]}" for said in ("en", "zh")} & set(texts)))
    return Task(texts, languages, asked)


def table(task: Task, rankings: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
    """Return R@1, R@5 and MRR of rankings of ids, for each case and for all questions."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for (question, good), ranking in zip(task.asked, rankings, strict=True):
        place = next((place for place, id_ in enumerate(dict.fromkeys(ranking), 1) if id_ in good), None)
        row = (float(place == 1), float(place is not None and place <= 5), 1 / place if place else 0.0)
        for case in (task.case(question, good), "all"):
            found.setdefault(case, []).append(row)
    means = {case: np.mean(rows, 0).round(4).tolist() for case, rows in sorted(found.items())}
    return {
        case: {"questions": len(found[case]), "r@1": first, "r@5": fifth, "mrr": reciprocal}
        for case, (first, fifth, reciprocal) in means.items()
    }


@contextmanager
def other_language(share: float) -> Iterator[None]:
    before = relevance_map.OTHER_LANGUAGE
    relevance_map.OTHER_LANGUAGE = share  # type: ignore[misc]
    calibration._fixed_points.cache_clear()  # which has it
    try:
        yield
    finally:
        relevance_map.OTHER_LANGUAGE = before  # type: ignore[misc]
        calibration._fixed_points.cache_clear()


def by_passages(task: Task, encoder: CachedEncoder) -> dict[str, Any]:
    vectors = encoder.encode_queries([question for question, _ in task.asked])
    with tempfile.TemporaryDirectory() as folder, KnowledgeBase(folder, encoder) as kb:
        kb.add_texts({"text": text, "source": id_} for id_, text in task.texts.items())

        def searched(arm: str, limit: int = DEPTH) -> list[list[Any]]:
            return [
                kb.search_vector(question, vector, limit, strategy=arm)
                for (question, _), vector in zip(task.asked, vectors, strict=True)
            ]

        def sources(found: list[list[Any]]) -> dict[str, dict[str, float]]:
            return table(task, [[hit.source for hit in hits] for hits in found])

        result: dict[str, Any] = {"passages": int(kb.stats()["chunks"])}
        for arm in ("cosine", "hybrid", "bm25"):
            result[arm] = sources(searched(arm))
        every = searched("cosine", result["passages"])
        result["raw cosine"] = sources([sorted(hits, key=lambda hit: -hit.cosine) for hits in every])
        result["by share"] = {}
        for share in SHARES:
            with other_language(share):
                result["by share"][f"{share}"] = {arm: sources(searched(arm)) for arm in ("cosine", "hybrid")}
    return result


def by_documents(task: Task, encoder: CachedEncoder) -> dict[str, Any]:
    known, ids, texts = load_calibration(encoder), list(task.texts), list(task.texts.values())
    rows, asked = encoder.encode_documents(texts), encoder.encode_queries([question for question, _ in task.asked])

    def ranked(scores: Any) -> list[str]:
        return [ids[at] for at in np.argsort(-scores, kind="stable")]

    calibrated = [ranked(known.relevance(q, v, texts, rows)) for (q, _), v in zip(task.asked, asked, strict=True)]
    return {"cosine": table(task, calibrated), "raw cosine": table(task, [ranked(rows @ vector) for vector in asked])}


def show(name: str, found: dict[str, Any]) -> None:
    for arm in ("cosine", "raw cosine", "hybrid", "bm25"):
        if arm in found:
            figures = {case: (row["r@1"], row["r@5"], row["mrr"]) for case, row in found[arm].items()}
            print(f"{name:16}{arm:12}{figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    store = VectorFile(options.cache / "vectors.sqlite3") if options.cache else None
    encoder = CachedEncoder(load_encoder(), capacity=100_000, store=store)
    result: dict[str, Any] = {"what": "R@1, R@5 and MRR among documents of two languages", "hardware": hardware()}
    result["other_language"] = relevance_map.OTHER_LANGUAGE
    tasks = {"own": own()}
    if SHARED.is_dir():
        tasks["halves"] = xquad(options.every, lambda language, number: (number // 5 % 2 == 0) == (language == "en"))
        tasks["both"] = xquad(options.every, lambda language, number: True)
    for name, task in tasks.items():
        result[name] = by_passages(task, encoder)
        show(name, result[name])
    result["own, whole documents"] = by_documents(tasks["own"], encoder)
    show("whole documents", result["own, whole documents"])
    write_result("bilingual", result)


if __name__ == "__main__":
    main()
