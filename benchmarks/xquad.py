"""How often the first passage found is the right one: XQuAD, 1,190 questions about 240 paragraphs, in two languages.

    python benchmarks/xquad.py [--folder DIR] [--every N]

Paragraphs are added to a KnowledgeBase as they are; a hit counts when it comes from the question's paragraph. The last
two cases have both languages in one knowledge base, and count the paragraph in either. `+late` is the second pass
(late.py); its times are of texts that it has seen, and of encoding the query for its tokens. `--every` takes every Nth
question only; `--folder` keeps the knowledge bases for the next run. Writes benchmarks/results/xquad.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from common import hardware, write_result

from ctx_vector import KnowledgeBase, load_encoder
from ctx_vector.encoders import CachedEncoder
from ctx_vector.hits import Hit
from ctx_vector.late import LateScorer
from ctx_vector.rerank import SecondPass
from ctx_vector.stages import Candidates, Query

SHARED = Path(__file__).resolve().parents[2] / "shared" / "datasets"
# case: the data set of the questions, the data sets of the paragraphs
CASES = {
    "en": ("xquad-en", ("xquad-en",)),
    "zh": ("xquad-zh", ("xquad-zh",)),
    "zh-en": ("xquad-zh", ("xquad-en",)),
    "en in both": ("xquad-en", ("xquad-en", "xquad-zh")),
    "zh in both": ("xquad-zh", ("xquad-en", "xquad-zh")),
}
ARMS = {name: {"strategy": name} for name in ("cosine", "hybrid", "hybrid_rrf", "bm25")} | {
    f"{name}+late": {"strategy": name, "rerank": "late"} for name in ("cosine", "hybrid", "bm25")
}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def filled(folder: Path, names: tuple[str, ...], encoder: CachedEncoder) -> KnowledgeBase:
    kb = KnowledgeBase(folder / "+".join(names), encoder)
    if not kb.version:
        kb.add_texts(
            {"text": row["text"], "source": f"{name}/{row['_id']}"}
            for name in names
            for row in lines(SHARED / name / "corpus.jsonl")
        )
    return kb


def everything(kb: KnowledgeBase) -> list[Hit]:
    return kb.search("everything", 10_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    encoder = CachedEncoder(load_encoder())
    first: dict[str, dict[str, float]] = {arm: {} for arm in ARMS}
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    count = 0
    late = LateScorer(encoder)
    with tempfile.TemporaryDirectory() as temporary:
        for case, (asked, said) in CASES.items():
            queries = lines(SHARED / asked / "queries.jsonl")[:: options.every]
            count = len(queries)
            owner = dict(
                line.split("\t")[:2]
                for line in (SHARED / asked / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
            )
            vectors = encoder.encode_queries([query["text"] for query in queries])
            with filled(options.folder or Path(temporary), said, encoder) as kb:
                for arm, how in ARMS.items():
                    right = 0
                    if "rerank" in how:
                        how = {**how, "rerank": SecondPass(lambda: late)}
                        late.score(Query("warm"), Candidates([hit.content for hit in everything(kb)]))
                    for query, vector in zip(queries, vectors, strict=True):
                        began = time.perf_counter()
                        hits = kb.search_vector(query["text"], vector, 1, **how)
                        times[arm].append((time.perf_counter() - began) * 1e3)
                        right += bool(hits) and hits[0].source.split("/")[1] == owner[query["_id"]]
                    first[arm][case] = round(right / count, 4)
            print(f"{case:12}", {arm: found[case] for arm, found in first.items()}, flush=True)
    result = {
        "what": "R@1 on XQuAD through KnowledgeBase.search",
        "hardware": hardware(),
        "questions": count,
        "r@1": first,
        "ms_besides_encoding_the_query": {arm: round(statistics.median(found), 3) for arm, found in times.items()},
    }
    if options.every == 1:
        write_result("xquad", result)
    print(result["ms_besides_encoding_the_query"])


if __name__ == "__main__":
    main()
