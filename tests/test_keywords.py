"""Keyword shares against a count by hand, and what indexes of them have to keep."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_vector import model_store
from ctx_vector.calibration_measure import measure_keywords
from ctx_vector.errors import ModelError
from ctx_vector.keywords import Keywords, Terms, idf, keyword_facts
from ctx_vector.measurements import background
from ctx_vector.terms import stem_key, terms

ROOT = Path(__file__).resolve().parent.parent
TEXTS = st.lists(st.lists(st.sampled_from("cat hat mat 内存 内 zoo the".split()), max_size=6).map(" ".join), max_size=6)
QUERY = st.lists(st.sampled_from("cat hat dog 内存 the".split()), max_size=4).map(" ".join)


def by_hand(query: str, texts: list[str], common: dict[str, float], near: list[list[int]] | None = None) -> list[float]:
    """BM25 as a share of the most a text could get, word by word, from the module's docstring."""
    own = [Counter(terms(text)) for text in texts]
    near = near or [[] for _ in texts]
    documents: list[dict[str, float]] = []
    for counts, others in zip(own, near, strict=True):
        words = {*counts, *(word for other in others for word in own[other])}
        documents.append({word: counts[word] + 0.5 * sum(own[other][word] for other in others) for word in words})
    lengths = [sum(document.values()) for document in documents]
    mean = sum(lengths) / len(lengths) if sum(lengths) else 1.0
    most, scores = 0.0, [0.0] * len(texts)
    for word in set(terms(query)):
        df = sum(document.get(word, 0) > 0 for document in documents) + 50 * common.get(word, 0.0)
        rarity = math.log(1 + (len(texts) + 50 - df + 0.5) / (df + 0.5))
        most += rarity
        for row, document in enumerate(documents):
            if tf := document.get(word, 0):
                scores[row] += rarity * tf / (tf + 1.2 * (0.25 + 0.75 * lengths[row] / mean))
    return [score / most if most else 0.0 for score in scores]


@given(QUERY, TEXTS)
def test_shares_are_bm25_over_its_largest_value(query: str, texts: list[str]) -> None:
    common = {"the": 0.9, "cat": 0.1}
    found = Keywords(Terms.of(texts)).shares(query, {stem_key(word): share for word, share in common.items()})
    assert found.tolist() == pytest.approx(by_hand(query, texts, common))
    assert ((found >= 0) & (found < 1)).all() and found.dtype == np.float64


def test_shares_by_hand() -> None:
    """Two texts of 2 and 3 terms, mean 2.5; of the query's terms one is in both, one in the first, one in none."""
    shares = Keywords(Terms.of(["cat hat", "cat cat mat"])).shares("Cats hat dog", {})
    both, one, none = (math.log(1 + (52 - df + 0.5) / (df + 0.5)) for df in (2, 1, 0))
    short, long = 1.2 * (0.25 + 0.75 * 2 / 2.5), 1.2 * (0.25 + 0.75 * 3 / 2.5)
    first = (both + one) / (1 + short)
    second = both * 2 / (2 + long)
    assert shares == pytest.approx([first / (both + one + none), second / (both + one + none)])


@given(QUERY, TEXTS)
def test_neighbours_lend_half_of_their_terms(query: str, texts: list[str]) -> None:
    near = [[other for other in (row - 1, row + 1) if 0 <= other < len(texts)] for row in range(len(texts))]
    table = np.array([[row - 1, row + 1 if row + 1 < len(texts) else -1] for row in range(len(texts))], np.int32)
    found = Keywords(Terms.of(texts), table.reshape(len(texts), 2)).shares(query, {})
    assert found.tolist() == pytest.approx(by_hand(query, texts, {}, near))


@given(QUERY, TEXTS, st.randoms(use_true_random=False))
def test_the_same_bits_in_any_order(query: str, texts: list[str], random) -> None:
    order = list(range(len(texts)))
    random.shuffle(order)
    first = Keywords(Terms.of(texts)).shares(query)
    again = Keywords(Terms.of([texts[place] for place in order])).shares(query)
    assert again.tolist() == first[order].tolist()


@given(TEXTS)
def test_terms_come_back_from_their_bytes(texts: list[str]) -> None:
    found = Terms.of(texts)
    back = Terms.from_bytes(found.to_bytes())
    for name in ("sizes", "keys", "counts"):
        assert getattr(back, name).tolist() == getattr(found, name).tolist()
        assert getattr(back, name).dtype == getattr(found, name).dtype
    with pytest.raises(ValueError, match="bytes of terms"):
        Terms.from_bytes(found.to_bytes() + b"x")


def test_terms_of_a_text_are_counted() -> None:
    found = Terms.of(["hat cat cat", "", "内存 " * 300])
    assert found.sizes.tolist() == [2, 0, 3]
    counts = dict(zip(found.keys.tolist(), found.counts.tolist(), strict=True))
    assert counts == {stem_key("hat"): 1, stem_key("cat"): 2, **{stem_key(t): 255 for t in ("内", "存", "内存")}}
    assert found.keys.tolist()[:2] == sorted(found.keys.tolist()[:2])


def test_a_query_without_terms_and_a_collection_without_texts() -> None:
    assert Keywords(Terms.of(["cat", ""])).shares("?!").tolist() == [0.0, 0.0]
    assert Keywords(Terms.of([])).shares("cat").shape == (0,)
    assert Keywords(Terms.of(["", ""])).shares("cat").tolist() == [0.0, 0.0]


def test_a_common_word_is_no_keyword_among_three_candidates() -> None:
    texts = ["The weather is good.", "Buy the ticket.", "Museum tickets at nine."]
    shares = Keywords(Terms.of(texts)).shares("What is the price of museum tickets?")
    assert shares.argmax() == 2 and shares[2] > 3 * shares[0]
    assert idf(2, 3, 1.0) == pytest.approx(math.log(1 + 1.5 / 52.5))


@pytest.mark.parametrize(
    ("query", "texts"),
    [
        ("如何减少内存", ["减少内存占用的办法", "今天天气很好", "优化查询"]),
        ("東京タワーの高さ", ["東京タワーは高い", "富士山は高い山です。そうです", "大阪"]),
    ],
)
def test_texts_without_spaces_are_found(query: str, texts: list[str]) -> None:
    shares = Keywords(Terms.of(texts)).shares(query)
    assert shares[0] == shares.max() > 0.15 and shares[0] > 2 * shares[1]


# --- relevance -----------------------------------------------------------------------------------------------------


def test_the_shipped_facts_are_what_measuring_gives() -> None:
    shipped = json.loads((ROOT / "models/background/keywords.json").read_text(encoding="utf-8"))
    assert measure_keywords(background(ROOT / "models")) == shipped


def test_common_words_are_known_in_both_languages() -> None:
    common = keyword_facts().common
    assert common[stem_key("the")] > 0.8 and common[stem_key("的")] > 0.8
    assert common[stem_key("what")] > 0.2 and common[stem_key("什么")] > 0.1  # from the questions
    assert stem_key("volcano") not in common


def test_relevance_of_shares() -> None:
    facts = keyword_facts()
    for query, language in (("a question", "en"), ("一个问题", "zh"), ("質問です", "zh")):
        found = facts.maps[language]
        shares = np.array([0.0, found.unrelated + found.line, found.unrelated + found.match, 0.9])
        values = facts.relevance(query, shares)
        assert values[:3] == pytest.approx([0.0, 0.1, 0.7]) and 0.9 < values[3] <= 1
    ascending = facts.relevance("a", np.linspace(1e-6, 0.99, 500))
    assert (np.diff(ascending) > 0).all()


@pytest.mark.parametrize("text", [None, "{", "[]", '{"common": {}}', '{"common": {"a": "x"}, "maps": {}}'])
def test_broken_facts_are_a_model_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    (tmp_path / "background").mkdir()
    if text is not None:
        (tmp_path / "background" / "keywords.json").write_text(text)
    monkeypatch.setattr(model_store, "registry_dir", lambda: tmp_path)
    keyword_facts.cache_clear()
    try:
        with pytest.raises(ModelError, match=r"keywords\.json cannot be read"):
            keyword_facts()
    finally:
        keyword_facts.cache_clear()
