"""Scorers against independent computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_vector.calibration import load_calibration
from ctx_vector.errors import ConfigError, InputError
from ctx_vector.keywords import Keywords, Terms, keyword_facts
from ctx_vector.languages import language_of
from ctx_vector.relevance_map import OTHER_LANGUAGE
from ctx_vector.scoring import (
    SCORERS,
    CosineScorer,
    HybridScorer,
    JaccardScorer,
    KeywordScorer,
    bm25,
    fuse_ranks,
    make_scorer,
)
from ctx_vector.stages import Candidates, Query, Scorer

WORDS = st.lists(st.sampled_from("a b c d A B 你好 x1 ß".split()), max_size=8).map(" ".join)


def no_encoder() -> None:
    raise AssertionError("this scorer needs no encoder")


# --- jaccard ----------------------------------------------------------------------------------------------------------


@given(WORDS, st.lists(WORDS, max_size=5))
def test_jaccard_is_shared_words_over_all_words(query: str, texts: list[str]) -> None:
    found = JaccardScorer().score(Query(query), Candidates(texts))
    assert found.shape == (len(texts),) and found.dtype == np.float64
    for score, text in zip(found, texts, strict=True):
        union = {word.lower() for word in f"{query} {text}".split()}
        both = [word for word in union if word in query.lower().split() and word in text.lower().split()]
        assert score == (len(both) / len(union) if query.split() else 0.0)


def test_jaccard_by_hand() -> None:
    texts = ["b c", "A b", "a", "", "c d", "如何优化"]
    assert JaccardScorer().score(Query("a B"), Candidates(texts)).tolist() == [1 / 3, 1.0, 0.5, 0.0, 0.0, 0.0]


# --- bm25 of sentences -----------------------------------------------------------------------------------------------


def test_bm25_by_hand() -> None:
    """Three texts of 2, 3 and 1 terms, mean 2; query terms: cat (in two texts), hat (in one), dog (in none)."""
    texts = ["cat hat", "cat cat mat", "rat"]
    idf_cat = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))  # ln 1.6
    idf_hat = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))  # ln 2.6667
    first = (idf_cat + idf_hat) * 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / 2))
    second = idf_cat * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 2))
    assert bm25("Cat hat dog", texts) == pytest.approx([first, second, 0.0])
    assert [round(score, 4) for score in bm25("Cat hat dog", texts)] == [1.4508, 0.5666, 0.0]


def test_bm25_of_nothing() -> None:
    assert bm25("cat", []) == []
    assert bm25("", ["cat"]) == [0.0]
    assert bm25("cat", ["", ""]) == [0.0, 0.0]


def test_bm25_finds_chinese_without_spaces() -> None:
    scores = bm25("如何优化内存", ["减少内存占用的办法", "今天天气很好", "优化查询"])
    assert scores[0] > 0 and scores[1] == 0 and scores[2] > 0


@given(WORDS, st.lists(WORDS, max_size=6))
def test_bm25_is_never_negative(query: str, texts: list[str]) -> None:
    assert all(score >= 0 and math.isfinite(score) for score in bm25(query, texts))


def test_what_is_remembered_of_texts_is_bounded_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctx_vector.scoring._MOST_CHARS", 20_000)
    scorer = KeywordScorer()
    first = scorer.score(Query("cat"), Candidates(["the cat sat", "the dog"]))
    for number in range(40):
        scorer.score(Query("cat"), Candidates([f"cat {number} " * 500]))
    assert 0 < scorer._words._known.size <= 20_000
    again = scorer.score(Query("cat"), Candidates(["the cat sat", "the dog"]))
    assert again.tolist() == first.tolist()


# --- cosine -----------------------------------------------------------------------------------------------------------


def unit_rows(count: int, dim: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_the_raw_cosine_is_clamped() -> None:
    rows = unit_rows(50, 16, 1)
    found = CosineScorer(None).score(Query("q", rows[0]), Candidates(["t"] * 50, vectors=rows))
    expected = [max(0.0, min(1.0, sum(float(a) * float(b) for a, b in zip(row, rows[0], strict=True)))) for row in rows]
    assert found == pytest.approx(expected, abs=1e-6)
    assert found.dtype == np.float64 and found.min() == 0.0 and found.max() <= 1.0


def test_the_calibrated_cosine_asks_the_calibration() -> None:
    class Map:
        def relevance(self, query_text, query, texts, vectors):
            assert query_text == "q" and texts == ["s", "t"] and vectors.shape == (2, 4)
            return np.array([0.1, 0.9])

    scorer = CosineScorer(Map())
    rows = unit_rows(2, 4, 2)
    assert scorer.score(Query("q", rows[0]), Candidates(["s", "t"], vectors=rows)).tolist() == [0.1, 0.9]
    assert (scorer.name, CosineScorer(None).name) == ("cosine", "cosine_raw")


def test_missing_or_foreign_vectors_are_an_input_error() -> None:
    rows = unit_rows(2, 4, 3)
    for query, vectors in [(None, rows), (rows[0], None), (rows[0], rows[:1]), (rows[0][:2], rows)]:
        with pytest.raises(InputError, match=r"cosine_raw: expected .* \(2, dim\)"):
            CosineScorer(None).score(Query("q", query), Candidates(["s", "t"], vectors=vectors))


@pytest.mark.parametrize("blank", ["", "  ", "\n\u3000"])
@pytest.mark.parametrize("name", SCORERS)
def test_a_blank_query_gives_zeros(name: str, blank: str, encoder) -> None:
    scorer = make_scorer(name, lambda: encoder)
    rows = unit_rows(2, 4, 4)
    assert scorer.score(Query(blank, rows[0]), Candidates(["", "t"], vectors=rows)).tolist() == [0.0, 0.0]
    assert scorer.score(Query("q", rows[0]), Candidates([], vectors=rows[:0])).shape == (0,)
    assert isinstance(scorer, Scorer) and scorer.name == name


# --- bm25 and hybrid -------------------------------------------------------------------------------------------------


def test_bm25_is_the_relevance_of_the_shares_of_each_language() -> None:
    texts = ["Museum tickets at nine.", "博物馆的门票", "The weather.", "天气很好", ""]
    found = KeywordScorer().score(Query("Where do I get museum tickets?"), Candidates(texts))
    english = Keywords(Terms.of([texts[0], texts[2], texts[4]])).shares("Where do I get museum tickets?")
    expected = keyword_facts().relevance("museum", english)
    assert found.tolist() == [expected[0], 0.0, expected[1], 0.0, 0.0]
    assert found[0] > 0.7 and found.dtype == np.float64


@pytest.fixture(scope="module")
def judged(encoder):
    """A query, texts in both languages, vectors, calibration, and the keyword shares of each language."""
    query = "How do I read CSV files with Pandas?"
    texts = [
        "Pandas reads a CSV file with read_csv.", "Cats like to sleep in the sun.", "用 Pandas 读取 CSV 文件",
        "A file on the train timetable.", "猫喜欢睡觉。",
    ]  # fmt: skip
    asked, vectors = encoder.encode_queries([query])[0], encoder.encode_documents(texts)
    english, chinese = (Keywords(Terms.of([texts[at] for at in rows])).shares(query) for rows in ((0, 1, 3), (2, 4)))
    shares = np.array([english[0], english[1], chinese[0], english[2], chinese[1]])
    return Query(query, asked), Candidates(texts, vectors=vectors), load_calibration(encoder), shares


def test_hybrid_adds_weighted_shares_to_the_excess(judged) -> None:
    query, candidates, calibration, shares = judged
    found = HybridScorer(calibration).score(query, candidates)
    asked = calibration.asked(query.text, query.vector)
    for row, text in enumerate(candidates.texts):
        said = language_of(text)
        excess = asked.excess(candidates.vectors[row : row + 1], asked.points([said]))[0][0]
        dense, both = calibration.pairs["en", said], calibration.hybrid["en", said]
        h = excess / (dense.match - dense.line) + both.weight * shares[row]
        expected = both.points.relevance(np.array([h - both.points.unrelated]))[0]
        if said == "zh" and expected > 0.1:
            expected = 0.1 + OTHER_LANGUAGE * (expected - 0.1)
        assert found[row] == pytest.approx(expected, abs=1e-5), text
    assert found.argmax() == 0


def test_without_shared_words_hybrid_keeps_the_order_of_cosine(encoder) -> None:
    texts = ["The museum opens at nine.", "Cats like to sleep.", "A train to Berlin.", "Tickets are sold out."]
    query = "博物馆几点开门？"
    asked, vectors = encoder.encode_queries([query])[0], encoder.encode_documents(texts)
    calibration = load_calibration(encoder)
    found = HybridScorer(calibration).score(Query(query, asked), Candidates(texts, vectors=vectors))
    dense = calibration.relevance(query, asked, texts, vectors)
    assert np.argsort(found).tolist() == np.argsort(dense).tolist()
    assert found == pytest.approx(dense, abs=0.05)


def test_reciprocal_rank_fusion_by_hand() -> None:
    """Ranks by cosine 0 1 2 3; by keywords, which the first does not have: - 0 1 0."""
    cosine, words = np.array([0.9, 0.8, 0.7, 0.6]), np.array([0.0, 0.5, 0.1, 0.5])
    fused = [1 / 60, 1 / 61 + 1 / 60, 1 / 62 + 1 / 62, 1 / 63 + 1 / 60]
    assert sorted(range(4), key=lambda row: -fused[row]) == [1, 3, 2, 0]
    assert fuse_ranks(cosine, words, np.array([0.4, 0.3, 0.2, 0.1])).tolist() == [0.1, 0.4, 0.2, 0.3]


@given(st.lists(st.tuples(*[st.sampled_from([0.0, 0.2, 0.5, 0.9])] * 3), max_size=8), st.randoms(use_true_random=False))
def test_fused_ranks_deal_out_the_relevances_whatever_the_order(rows, random) -> None:
    columns = np.array(rows, float).reshape(len(rows), 3)
    found = fuse_ranks(*columns.T)
    order = list(range(len(rows)))
    random.shuffle(order)
    assert fuse_ranks(*columns[order].T).tolist() == found[order].tolist()
    assert set(found.tolist()) <= set(columns[:, 2].tolist())
    for one in range(len(rows)):
        for other in range(len(rows)):
            if rows[one] == rows[other]:
                assert found[one] == found[other]


def test_hybrid_rrf_has_the_values_of_hybrid_in_another_order(judged) -> None:
    query, candidates, calibration, shares = judged
    both, ranks = (HybridScorer(calibration, rrf=rrf).score(query, candidates) for rrf in (False, True))
    assert sorted(both) == sorted(ranks)
    dense = calibration.relevance(query.text, query.vector, candidates.texts, candidates.vectors)
    assert ranks.tolist() == fuse_ranks(dense, shares, both).tolist()


def test_scores_are_the_same_with_known_terms(judged) -> None:
    query, candidates, calibration, _ = judged
    for scorer in (KeywordScorer(), HybridScorer(calibration), HybridScorer(calibration, rrf=True)):
        assert scorer.score(query, candidates).tolist() == scorer.score(query, candidates).tolist()


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_give_scorers_and_only_those_by_cosine_ask_for_the_encoder() -> None:
    assert make_scorer("jaccard", no_encoder).name == "jaccard"
    assert make_scorer("cosine_raw", no_encoder).name == "cosine_raw"
    assert make_scorer("bm25", no_encoder).name == "bm25"
    for name in ("cosine", "hybrid", "hybrid_rrf"):
        with pytest.raises(AssertionError):
            make_scorer(name, no_encoder)
    mine = JaccardScorer()
    assert make_scorer(mine, no_encoder) is mine
    assert isinstance(mine, Scorer)


def test_an_unknown_strategy_lists_the_choices_and_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'cosin'.*did you mean 'cosine'") as caught:
        make_scorer("cosin", no_encoder)
    assert all(name in str(caught.value) for name in SCORERS)
