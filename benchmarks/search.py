"""What a search costs besides encoding its query, over 10,000 passages.

    python benchmarks/search.py [--rows 10000] [--queries 200]

Vectors are mixtures of real ones; the queries are encoded for real, each one new.
Writes benchmarks/results/search.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time

import numpy as np
from common import hardware, write_result

from ctx_vector import catalog, lives
from ctx_vector.common_tables import add_encodings, find_encodings
from ctx_vector.encoders import load_encoder
from ctx_vector.encoding_cache import EncodingCache, text_hash
from ctx_vector.knowledge import KnowledgeBase
from ctx_vector.measurements import background
from ctx_vector.model_store import registry_dir

WORDS_EN = "path query body cookie header model field value server client token user order item price date".split()
WORDS_ZH = "路径 查询 请求 参数 模型 字段 服务器 用户 订单 价格 日期 缓存 数据库 索引 文档 声明".split()


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def sentences(rng: np.random.Generator, language: str) -> str:
    """Return prose that says nothing, of about 150 tokens in either language."""
    zh = language == "zh"
    words, joiner, stop = (WORDS_ZH, "", "。") if zh else (WORDS_EN, " ", ". ")
    return stop.join(joiner.join(rng.choice(words, 15 if zh else 14)) for _ in range(7 if zh else 10)) + stop.strip()


def rests(kb: KnowledgeBase, language: str) -> np.ndarray:
    """Return what is left of some real passages' vectors without their mean, (n, dim)."""
    texts = [row[language] for row in background(registry_dir())[::5]]
    return kb.encoder.encode_documents(texts) - kb.calibration.mean_passage(language)


def fill(kb: KnowledgeBase, rows: int, seed: int = 0) -> None:
    """Write `rows` passages, a third of them Chinese, with synthetic vectors.

    Each is the mean passage of its language and a mixture of what is left of three real ones, of which one is the same
    in a document: so they are as near each other, and spread as unevenly, as real ones.
    """
    rng = np.random.default_rng(seed)
    encoder, store = kb.encoder, kb._store
    cache = EncodingCache(store, encoder)
    left = {language: rests(kb, language) for language in ("en", "zh")}
    wanted = set()
    with store.write() as conn:
        model = cache.model(conn)
        for document in range(-(-rows // 20)):
            chunks = []
            language = "zh" if document % 3 == 2 else "en"
            mean = kb.calibration.mean_passage(language)
            own = np.sqrt(1 - mean @ mean)  # the norm of what is left of a passage
            topic = rng.choice(left[language])
            for at in range(min(20, rows - 20 * document)):
                text = f"{document}.{at} " + sentences(rng, language)
                weights = rng.uniform(0.5, 1, 2) * rng.choice((-1, 1), 2)
                vector = unit(mean + own * unit(topic + weights @ rng.choice(left[language], 2)))
                key = text_hash(text)
                add_encodings(conn, model, [(key, vector.astype("<f4").tobytes())])
                encoding = find_encodings(conn, model, [key])[key]
                chunks.append(
                    catalog.NewChunk(text, text, encoding, language, "prose", ("Title", "Section"),
                                     (0, len(text)), (1, 10))
                )  # fmt: skip
            wanted.add(
                catalog.add_document(
                    conn,
                    catalog.NewDocument(
                        f"docs/{document:05}.md", str(document), "1", chunks,
                        metadata={"format": "md", "part": document % 50},
                    ),
                )
            )  # fmt: skip
        lives.new_version(conn, wanted, "sync", added=len(wanted))


def timed(function, repeats: int) -> list[float]:
    """Return milliseconds of each call, of functions of the number of the call."""
    times = []
    for number in range(repeats):
        began = time.perf_counter()
        function(number)
        times.append((time.perf_counter() - began) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=200)
    options = parser.parse_args()
    encoder = load_encoder()
    queries = [f"How do I declare the {i}th path parameter of an order?" for i in range(options.queries // 2)]
    queries += [f"如何声明第{i}个订单的路径参数？" for i in range(options.queries - len(queries))]
    with tempfile.TemporaryDirectory() as folder, KnowledgeBase(folder, encoder) as kb:
        fill(kb, options.rows)
        encoding = timed(lambda i: encoder.encode_queries([queries[i]]), len(queries))
        vectors = encoder.encode_queries(queries)
        opening = timed(lambda i: kb.search_vector(queries[i], vectors[i]), 1)[0]
        besides = timed(lambda i: kb.search_vector(queries[i], vectors[i]), len(queries))
        narrow = timed(lambda i: kb.search_vector(queries[i], vectors[i], filter={"part": i % 50}), len(queries))
        whole = timed(lambda i: kb.search(queries[i]), len(queries))
    result = {
        "what": "a search besides encoding its query",
        "hardware": hardware(),
        "rows": options.rows,
        "first_search_ms": round(opening, 2),
        "encode_query_ms": round(statistics.median(encoding), 3),
        "search_besides_encoding_ms": round(statistics.median(besides), 3),
        "search_besides_encoding_p95_ms": round(float(np.percentile(besides, 95)), 3),
        "search_with_filter_ms": round(statistics.median(narrow), 3),
        "search_whole_ms": round(statistics.median(whole), 3),
    }
    write_result("search", result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
