"""Search terms: words and their stems, scripts without spaces, keys."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_vector.terms import stem, stem_key, term_keys, terms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  ... !!", []),
        ("The Cat's 2 hats", ["the", "cat", "s", "2", "hat"]),
        ("snake_case STRASSE straße", ["snake_case", "snak", "cas", "strass", "strass"]),
        ("__init__ _x", ["__init__", "init", "_x", "x"]),
        ("内存表", ["内", "存", "表", "内存", "存表"]),
        ("人々", ["人", "々", "人々"]),
        ("用Pandas读CSV", ["用", "panda", "读", "csv"]),
        ("ＡＰＩ １２３", ["api", "123"]),
        ("ﾀﾜｰ", ["タ", "ワ", "ー", "タワ", "ワー"]),
        ("東京タワー", [*"東京タワー", "東京", "京タ", "タワ", "ワー"]),
        ("도서관에서 책", [*"도서관에서", "도서", "서관", "관에", "에서", "책"]),
        ("กขค", ["ก", "ข", "ค", "กข", "ขค"]),
        ("你,好", ["你", "好"]),
        ("привет Мир", ["привет", "мир"]),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


@pytest.mark.parametrize(
    "family",
    [
        "paint paints painted painting", "run runs running", "story stories", "box boxes", "class classes",
        "plan planned planning plans", "make makes making", "happy happi", "watch watches watched",
        "pass passed passing",
        "study studies studied studying", "declare declared declares declaring",
    ],
)  # fmt: skip
def test_the_forms_of_a_word_share_their_stem(family: str) -> None:
    assert len({stem(word) for word in family.split()}) == 1


@pytest.mark.parametrize(
    "pair", ["bus bush", "red reed", "sing s", "this the", "king kin", "need nee", "gas gassy", "ring r"]
)
def test_different_words_stay_apart(pair: str) -> None:
    one, other = pair.split()
    assert stem(one) != stem(other)


@pytest.mark.parametrize("word", ["ing", "bed", "naïve", "straße", "привет", "a1s", "", "x_s", "sss"])
def test_what_is_no_long_english_word_stays_as_it_is(word: str) -> None:
    assert stem(word) == word


@given(st.text())
def test_keys_are_those_of_the_terms(text: str) -> None:
    assert term_keys(text) == [stem_key(term) for term in terms(text)]
    assert all(0 <= key < 2**32 for key in term_keys(text))


def test_the_recipe_of_stored_keys_has_not_changed() -> None:
    """A change of what the terms of a text are needs a migration that makes stored keyword rows anew (catalog.py)."""
    text = "The Cat's painted stories, snake_case & ＡＰＩ: 内存表 東京タワー 도서관 привет naïve classes 3.11 planned"
    digest = zlib.crc32(" ".join(map(str, term_keys(text))).encode())
    assert digest == 3821477570
