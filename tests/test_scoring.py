"""Scorers against independent computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_vector.errors import ConfigError, InputError
from ctx_vector.scoring import SCORERS, CosineScorer, JaccardScorer, bm25, make_scorer, terms
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


# --- terms and bm25 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  ... !!", []),
        ("The Cat's 2 hats", ["the", "cat", "s", "2", "hats"]),
        ("snake_case STRASSE straße", ["snake_case", "strasse", "strasse"]),
        ("内存表", ["内", "存", "表", "内存", "存表"]),
        ("人々", ["人", "々", "人々"]),
        ("用Pandas读CSV", ["用", "pandas", "读", "csv"]),
        ("東京タワー", [*"東京タワー", "東京", "京タ", "タワ", "ワー"]),
        ("도서관에서 책", [*"도서관에서", "도서", "서관", "관에", "에서", "책"]),
        ("กขค", ["ก", "ข", "ค", "กข", "ขค"]),
        ("你,好", ["你", "好"]),
        ("привет Мир", ["привет", "мир"]),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


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
@pytest.mark.parametrize("scorer", [JaccardScorer(), CosineScorer(None)], ids=["jaccard", "cosine_raw"])
def test_a_blank_query_gives_zeros(scorer: Scorer, blank: str) -> None:
    rows = unit_rows(2, 4, 4)
    assert scorer.score(Query(blank, rows[0]), Candidates(["", "t"], vectors=rows)).tolist() == [0.0, 0.0]
    assert scorer.score(Query("q", rows[0]), Candidates([], vectors=rows[:0])).shape == (0,)


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_give_scorers_and_only_cosine_asks_for_the_encoder() -> None:
    assert make_scorer("jaccard", no_encoder).name == "jaccard"
    assert make_scorer("cosine_raw", no_encoder).name == "cosine_raw"
    with pytest.raises(AssertionError):
        make_scorer("cosine", no_encoder)
    mine = JaccardScorer()
    assert make_scorer(mine, no_encoder) is mine
    assert isinstance(mine, Scorer)


def test_an_unknown_strategy_lists_the_choices_and_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'cosin'.*did you mean 'cosine'") as caught:
        make_scorer("cosin", no_encoder)
    assert all(name in str(caught.value) for name in SCORERS)


@pytest.mark.parametrize("name", ["bm25", "hybrid"])
def test_a_planned_strategy_says_so(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is planned and not built yet; choose from jaccard"):
        make_scorer(name, no_encoder)
