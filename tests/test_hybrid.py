"""Knowledge by keywords: against scoring every passage, through versions and purges, and in a build."""

import logging
import random
import sqlite3
from datetime import UTC, datetime

import numpy as np
import pytest
from store_help import opened

from ctx_vector import ContextBuilder, ContextConfig, RAGTool
from ctx_vector.calibration import load_calibration
from ctx_vector.errors import InputError
from ctx_vector.keywords import Keywords, Terms, keyword_facts
from ctx_vector.knowledge import KnowledgeBase
from ctx_vector.scoring import RETRIEVAL, fuse_ranks
from ctx_vector.terms import stem_key, terms
from tests.knowledge_help import OtherEncoder, keep_some_map, traces, write_pages
from tests.test_keywords import by_hand
from tests.test_memory import FastEncoder

KEYWORD_STRATEGIES = [name for name in RETRIEVAL if name != "cosine"]
QUERIES = ["What do cinder cones look like?", "火山碎屑流有多快？", "Tea at 80 degrees", "バスはどこですか", "?!"]


def chunks(kb):
    """Return (id, language, encoded text, vector) of every live chunk, straight from the tables."""
    from ctx_vector import catalog
    from ctx_vector.encoding_cache import unpack_vector

    with opened(kb).read() as conn:
        rows = conn.execute(
            "SELECT c.id, c.language, c.text, c.embedded, e.vector FROM chunks c "
            "JOIN encodings e ON e.id = c.encoding_id JOIN lives l ON l.document_id = c.document_id "
            "WHERE l.from_version <= :v AND (l.to_version IS NULL OR l.to_version > :v) ORDER BY c.id",
            {"v": kb.version},
        ).fetchall()
    return [(id_, said, catalog.unpack_embedded(text, packed), unpack_vector(v)) for id_, said, text, packed, v in rows]


def score_all(kb, query, strategy):
    """Return the relevance of every live chunk by id, each language a collection."""
    rows = chunks(kb)
    vector = kb.encoder.encode_queries([query])[0]
    shares = {}
    for language in {row[1] for row in rows}:
        own = [row for row in rows if row[1] == language]
        found = Keywords(Terms.of([row[2] for row in own])).shares(query)
        shares |= {row[0]: share for row, share in zip(own, found, strict=True)}
    own, vectors = np.array([shares[row[0]] for row in rows]), np.array([row[3] for row in rows])
    if strategy == "bm25":
        scores = keyword_facts().relevance(query, own)
    else:
        relevance = load_calibration(kb.encoder).relevance_by_language
        languages = [row[1] for row in rows]
        scores = relevance(query, vector, languages, vectors, own)
        if strategy == "hybrid_rrf":
            scores = fuse_ranks(relevance(query, vector, languages, vectors), own, scores)
    return {row[0]: float(score) for row, score in zip(rows, scores, strict=True) if score > 0}


@pytest.fixture(scope="module")
def pages(tmp_path_factory, encoder):
    with KnowledgeBase(tmp_path_factory.mktemp("kb"), encoder) as kb:
        kb.sync(write_pages(tmp_path_factory.mktemp("pages")))
        yield kb


def many(kb, count=1500, seed=1):
    """Add texts of words from a small stock, a third of them Chinese."""
    draw = random.Random(seed)
    words = [f"word{n}" for n in range(60)]
    english, chinese = ([draw.choices(stock, k=8) for _ in range(count)] for stock in (words, "茶水山火石木"))
    texts = [
        f"{' '.join(some)} {n}" if n % 3 else f"第{n}条笔记：{''.join(others)}"
        for n, (some, others) in enumerate(zip(english, chinese, strict=True))
    ]
    kb.add_texts({"text": text, "source": f"{n}.txt", "metadata": {"part": n % 10}} for n, text in enumerate(texts))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    with KnowledgeBase(tmp_path_factory.mktemp("large"), FastEncoder()) as kb:
        many(kb)
        yield kb


# -- searching --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", KEYWORD_STRATEGIES)
@pytest.mark.parametrize("query", QUERIES)
def test_against_scoring_every_passage(pages, query, strategy):
    hits = pages.search(query, 50, strategy=strategy)
    assert {hit.id: hit.score for hit in hits} == pytest.approx(score_all(pages, query, strategy), abs=2e-6)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    vector = pages.encoder.encode_queries([query])[0]
    assert all(hit.cosine == pytest.approx(float(hit.vector @ vector), abs=1e-6) for hit in hits)


def test_shares_against_a_count_by_hand(pages):
    query = "Baking bread and the degrees of a pot"
    with opened(pages).read() as conn:
        view = pages._current(conn)
        words = pages._words_of(conn, view)
    common = {term: keyword_facts().common.get(stem_key(term), 0.0) for term in terms(query)}
    for language in ("en", "zh"):
        texts = [row[2] for row in chunks(pages) if row[1] == language]
        ids, shares = words.shares(query, language, view)
        assert ids.tolist() == [row[0] for row in chunks(pages) if row[1] == language]
        assert shares.tolist() == pytest.approx(by_hand(query, texts, common))


@pytest.mark.parametrize("strategy", ["bm25", "hybrid"])
@pytest.mark.parametrize("query", ["word1 word2 word3 word4", "哪一条笔记说茶和火山石？", "word7 的茶"])
def test_a_few_are_the_best_of_all(large, query, strategy):
    expected = sorted(score_all(large, query, strategy).items(), key=lambda item: (-round(item[1], 9), item[0]))
    for limit in (1, 5, 60, 400):
        for least in (0.0, 0.2):
            hits = large.search(query, limit, least, strategy=strategy)
            best = [score for _, score in expected[:limit] if score >= least]
            assert [hit.score for hit in hits] == pytest.approx(best, abs=2e-6)
    for part in (3, 7):
        names = {hit.source for hit in large.search(query, 2000, strategy=strategy) if hit.metadata["part"] == part}
        hits = large.search(query, 1500, filter={"part": part}, strategy=strategy)
        assert {hit.source for hit in hits} == names and len(hits) > 20
        assert hits[0] == large.search(query, 1, filter={"part": part}, strategy=strategy)[0]


def test_what_ties_is_newer_first(tmp_path):
    with KnowledgeBase(tmp_path, FastEncoder()) as kb:
        times = {f"{year}.txt": datetime(year, 1, 1, tzinfo=UTC) for year in (2019, 2024, 2021)}
        kb.add_texts({"text": "ERROR zebra timeout", "source": name, "timestamp": when} for name, when in times.items())
        hits = kb.search("zebra", 2, strategy="bm25")
        assert [hit.source for hit in hits] == ["2024.txt", "2021.txt"] and hits[0].score == hits[1].score


def test_names_and_numbers_are_found(tmp_path, encoder):
    with KnowledgeBase(tmp_path, encoder) as kb:
        english = [f"The invoice number is {number}." for number in ("40817-B", "40871-C")]
        chinese = [f"发票号是 {number}。" for number in ("55012-X", "55021-Y")]
        kb.add_texts({"text": text, "source": text} for text in (*english, *chinese))
        for strategy in KEYWORD_STRATEGIES:
            assert kb.search("Which invoice is 40871-C?", strategy=strategy)[0].content.endswith("40871-C.")
            assert kb.search("55021-Y 是哪张发票？", strategy=strategy)[0].content.endswith("55021-Y。")


@pytest.mark.parametrize(("query", "said"), [("火山有多危险？", "en"), ("How hot should the water be?", "zh")])
def test_passages_in_the_other_language_keep_the_order_of_cosine(pages, query, said):
    orders = []
    for strategy in ("cosine", "hybrid"):
        hits = pages.search(query, 50, strategy=strategy)
        orders.append([hit.id for hit in hits if f"/{said}/" in hit.source])
    assert orders[0] == orders[1] and len(orders[0]) > 2


@pytest.mark.parametrize("strategy", RETRIEVAL)
def test_nothing_to_find(tmp_path, encoder, strategy):
    with KnowledgeBase(tmp_path, encoder) as kb:
        assert kb.search("tea", strategy=strategy) == []
        kb.add_text("tea", "tea.txt")
        assert kb.search(" \n", strategy=strategy) == []
        assert len(kb.search("tea", strategy=strategy)) == 1
        assert kb.search("tea", filter={"no": "such"}, strategy=strategy) == []


@pytest.mark.parametrize("strategy", ["jaccard", "dense", None, 3])
def test_an_unknown_strategy_is_an_input_error(pages, strategy):
    with pytest.raises(InputError, match="strategy: expected one of cosine, hybrid, hybrid_rrf, bm25 for a search"):
        pages.search("q", strategy=strategy)


# -- changes ----------------------------------------------------------------------------------------------------------


def results(kb):
    return [
        [(hit.source, hit.start_line, hit.score) for hit in kb.search(query, 50, strategy=strategy)]
        for strategy in KEYWORD_STRATEGIES
        for query in QUERIES
    ]


def test_statistics_are_of_the_active_version_alone(tmp_path, encoder):
    """Whatever was there before, scores are those of a knowledge base that never held anything else."""
    texts = {"a.txt": "The red volcano is asleep.", "b.txt": "A red kettle for tea.", "c.txt": "红茶和绿茶都很好喝。"}
    more = {"d.txt": "Red red red, and a volcano.", "e.txt": "Another red volcano.", "f.txt": "茶茶茶"}

    def add(kb, some):
        kb.add_texts({"text": text, "source": name} for name, text in some.items())

    with KnowledgeBase(tmp_path / "one", encoder) as kb, KnowledgeBase(tmp_path / "two", encoder) as fresh:
        add(fresh, texts)
        add(kb, texts)
        first = results(kb)
        assert first == results(fresh)
        add(kb, more)
        assert results(kb) != first
        for name in more:
            kb.remove(name)
        assert results(kb) == first
        kb.rollback(2)
        assert results(kb) != first
        kb.rollback(1)
        assert results(kb) == first
        kb.purge("d.txt")
        add(kb, {"a.txt": "Something else."})
        add(kb, {"a.txt": texts["a.txt"]})
        assert results(kb) == first
        with KnowledgeBase(tmp_path / "one", encoder) as again:
            assert results(again) == first


def test_a_purge_leaves_no_terms(tmp_path, encoder):
    secret = "Zanzibarquux"
    with KnowledgeBase(tmp_path, encoder) as kb:
        kb.add_text(f"The code word is {secret}.", "secret.txt")
        kb.add_text("Nothing to see here.", "plain.txt")
        assert kb.search(secret, strategy="bm25")[0].source == "secret.txt"
        key = stem_key(terms(secret)[0]).to_bytes(4, "little")
        assert traces(tmp_path, key)
        kb.purge("secret.txt")
        assert kb.search(secret, strategy="bm25") == []
        assert traces(tmp_path, key) == [] and traces(tmp_path, secret) == []
        with opened(kb).read() as conn:
            assert conn.execute("SELECT count(*) FROM keywords").fetchone()[0] == 1


def test_another_encoder_keeps_the_words(tmp_path, encoder):
    with KnowledgeBase(tmp_path, encoder) as kb:
        kb.add_text("The red volcano is asleep.", "a.txt")
        before = kb.search("volcano", strategy="bm25")[0].score
        other = OtherEncoder(encoder)
        keep_some_map(other)
        kb.reencode(other)
        assert kb.search("volcano", strategy="bm25")[0].score == before


def older(folder, kb):
    """Bring a store back to the first schema, as an older version of this package would have left it."""
    kb.close()
    with sqlite3.connect(folder / "ctx.sqlite3") as conn:
        conn.execute("DROP TABLE keywords")
        conn.execute("PRAGMA user_version=1")
    conn.close()


def test_an_older_store_gets_its_words(tmp_path, encoder):
    kb = KnowledgeBase(tmp_path / "kb", encoder)
    kb.sync(write_pages(tmp_path / "pages"))
    kb.add_text("Gone tomorrow.", "gone.txt")
    kb.remove("gone.txt")
    before, (rows,) = results(kb), rows_of(kb)
    older(tmp_path / "kb", kb)
    with KnowledgeBase(tmp_path / "kb", encoder) as again:
        assert results(again) == before and rows_of(again) == [rows]
        assert again.verify().ok and not again.verify().repaired
        again.rollback(2)
        assert again.search("gone tomorrow", strategy="bm25")[0].source == "gone.txt"


def rows_of(kb):
    with opened(kb).read() as conn:
        return [conn.execute("SELECT document_id, terms FROM keywords ORDER BY 1").fetchall()]


@pytest.mark.parametrize("damage", [None, b"", b"\xff\xff\xff\xff", b"\x01\0\0\0\xff\xff\xff\xff", b"\x09\0\0\0" * 12])
def test_damaged_rows_are_read_from_the_texts_and_mended(tmp_path, encoder, caplog, damage):
    with KnowledgeBase(tmp_path, encoder) as kb:
        kb.add_texts({"text": text, "source": text} for text in ("A red volcano.", "Green tea.", "A red kettle."))
        before, rows = results(kb), rows_of(kb)
        with opened(kb).write() as conn:
            if damage is None:
                conn.execute("DELETE FROM keywords WHERE document_id = 2")
            else:
                conn.execute("UPDATE keywords SET terms = ? WHERE document_id = 2", (damage,))
    with KnowledgeBase(tmp_path, encoder) as kb:
        with caplog.at_level(logging.WARNING, "ctx_vector.knowledge"):
            assert results(kb) == before
        assert "the keywords of document 2 are damaged" in caplog.text
        report = kb.verify()
        assert report.ok and report.repaired == ("the keywords of 1 document were damaged; written anew",)
        assert rows_of(kb) == rows and kb.verify().repaired == () and results(kb) == before


# -- in a build -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", RETRIEVAL)
def test_a_passage_in_a_build_has_the_relevance_of_its_search(pages, strategy):
    query = "Are pyroclastic flows faster than a person?"
    expected = {hit.content: hit.score for hit in pages.search(query, 5, 0.05, strategy=strategy)}
    config = ContextConfig(strategy=strategy, knowledge_min_score=0.05, min_relevance=0)
    built = ContextBuilder(rag_tool=RAGTool(knowledge=pages), config=config).assemble(query)
    found = {item.packet.content: item.relevance for item in (*built.kept, *built.dropped)}
    assert found == expected and found


def test_the_tool_searches_by_a_strategy(pages):
    tool = RAGTool(knowledge=pages)
    (first, *_) = tool.run({"action": "search", "query": "cinder cones", "strategy": "bm25"})
    assert "Cinder" in first["content"]
    with pytest.raises(InputError, match="strategy: expected one of"):
        tool.run({"action": "search", "query": "q", "strategy": "jaccard"})


def test_an_index_in_files_is_searched_too(tmp_path):
    with KnowledgeBase(tmp_path, FastEncoder(), file_rows=200) as kb:
        many(kb, 600)
        kb.add_text("word1 word2 word3 extra", "new.txt")
        kb.remove("1.txt")
        assert list(tmp_path.glob("*.ctxidx"))
        with KnowledgeBase(tmp_path, FastEncoder(), file_rows=200) as again:
            for query in ("word1 word2 word3", "茶山"):
                hits = again.search(query, 700, strategy="hybrid")
                assert {hit.id: hit.score for hit in hits} == pytest.approx(score_all(again, query, "hybrid"), abs=2e-6)
                assert again.search(query, 3, strategy="hybrid") == hits[:3]
