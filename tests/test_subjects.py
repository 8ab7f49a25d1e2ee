"""Two statements in the same words are told apart by whom and what they speak of, as a question sees it."""

from __future__ import annotations

import random
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from audit_help import evidence
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_help import NOW, STEADY

from ctx_vector import ContextBuilder, ContextConfig, ContextPacket
from ctx_vector.encoders import CachedEncoder
from ctx_vector.languages import language_of
from ctx_vector.replay import rebuild
from ctx_vector.subjects import Question, other_subject, unrelated, words

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import other_facts

PORT = "On which port does host alpha listen?"
ALPHA = "Host alpha listens on port 8080."


def other(query, older, newer):
    return other_subject(Question(query), words(older), words(newer))


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("My printer's at 10.0.4.21, on v2.3.", "i printer s at 10.0.4.21 | on v2.3"),
        ("We paid 1,280 at 7:42; OURS is /var/log/front!", "we paid 1,280 at 7:42 | we is var/log/front"),
        ("主机A的端口是 ８０８０。", "主 机 a 的 端 口 是 8080"),
        ("他走了，我在。", "他 走 了 | 我 在"),
        ("…", ""),
        ("", ""),
    ],
)
def test_words_keep_codes_and_times_whole_and_mark_the_ends_of_clauses(text, found):
    assert " ".join(words(text)) == found


# -- the same words but for a few -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "older", "newer", "told"),
    [
        # another word in the place of one of the question
        (PORT, ALPHA, "Host beta listens on port 9443.", True),
        (PORT, ALPHA, "Host alpha listens on port 8181.", False),
        (PORT, ALPHA, "Host alpha now listens on port 8181.", False),
        (PORT, ALPHA, "It listens on port 8181 now.", False),  # what was spoken of before
        ("Which port does host A use?", "Host A uses port 8080.", "Host B uses port 9090.", True),
        ("What is the plumber's phone number?", "The plumber's phone number is 555 0133.",
         "The plumber's e-mail address is help@tapfix.example.", True),
        ("What did we take in March?", "Takings in March were 18,200.", "Takings in April were 21,700.", True),
        ("What did we take in March?", "Takings in March were 18,200.", "Takings in March were 17,950.", False),
        ("主机A的端口是多少？", "主机A的端口是 8080。", "主机B的端口是 9090。", True),
        ("主机A的端口是多少？", "主机A的端口是 8080。", "主机A的端口是 9090。", False),
        ("主机A的端口是多少？", "主机A的端口是 8080。", "主机A改用 8181 端口了。", False),
        ("一楼的密码是什么？", "一楼的密码是红茶。", "三楼的密码是绿茶。", True),
        # a word between two that stand together in the question
        ("When is my birthday?", "My birthday is on 3 May.", "My daughter's birthday is on 9 June.", True),
        ("When is my birthday?", "My birthday is on 3 May.", "My birthday is on 4 May.", False),
        ("What is my address?", "My address is 5 Mill Lane.", "My new address is 8 High Street.", False),
        ("我的生日是哪天？", "我的生日是5月3日。", "我女儿的生日是6月9日。", True),
        ("我的生日是哪天？", "我的生日是5月3日。", "我的生日是5月4日。", False),
        ("我的地址在哪里？", "我的地址在磨坊街5号。", "我现在的地址在高桥路8号。", False),
        # one left out, and who speaks
        ("When is my mother's name day?", "My mother's name day is on 12 May.", "My name day is on 30 June.", True),
        ("What is my shoe size?", "I take shoe size 42.", "Leo takes shoe size 38.", True),
        # a question for yes or no may say what has changed
        ("Is the gamma database on port 5432?", "The gamma database is on port 5432.",
         "The gamma database is on port 6432.", False),
        ("Is the gamma database on port 5432?", "The gamma database is on port 5432.",
         "The delta database is on port 5433.", True),
        ("周五的课在三号楼上吗？", "周五的课在三号楼上。", "周五的课在七号楼上。", False),
        ("周五的课在三号楼上吗？", "周五的课在三号楼上。", "周三的课在七号楼上。", True),
        # a question in another language
        ("主机的端口是多少？", ALPHA, "Host beta listens on port 9443.", True),  # in two places, with words between
        ("主机的端口是多少？", ALPHA, "Host alpha listens on port 8181.", False),
        ("When is the birthday?", "我的生日是5月3日。", "我女儿的生日是6月9日。", True),
        ("When is the birthday?", "我的生日是5月3日。", "我的生日是5月4日。", False),
        # told in other words, nothing is known
        (PORT, ALPHA, "We set up beta yesterday, it answers on 9443.", False),
        (PORT, ALPHA, "", False),
        ("", ALPHA, ALPHA, False),
        ("", "", "", False),
    ],
)  # fmt: skip
def test_who_and_what_is_spoken_of(query, older, newer, told):
    assert other(query, older, newer) is told


def test_a_value_may_change():
    """Whatever value is put in the place of another, the subject stays the same."""
    values = ["8080", "heron-77", "10.0.4.21", "two", "Oslo", "/srv/log", "３"]
    for one in values:
        for two in values:
            assert not other(PORT, f"Host alpha listens on port {one}.", f"Host alpha listens on port {two}.")
            assert not other("主机甲的端口是多少？", f"主机甲的端口是 {one}。", f"主机甲的端口是 {two}。")


TEXT = st.lists(
    st.sampled_from([*"我的生日是主机一三A", "host", "my", "s", ",", "，", "is", "port", "8080", " "]), max_size=9
)


@settings(STEADY, max_examples=300)
@given(TEXT, TEXT, TEXT)
def test_no_text_is_about_something_else_than_itself_and_none_fails(asked, older, newer):
    query, one, two = ("".join(f"{part} " for part in parts) for parts in (asked, older, newer))
    assert not other(query, one, one)
    assert other(query, one, two) in (True, False)
    assert other(query, one, two) == other(query, one.upper(), two.upper())


def test_of_a_long_question_both_ends_are_looked_at():
    paste = "line of a log, 12:03:44, all is well\n" * 20_000
    for query in (PORT + paste, paste + PORT):
        assert other(query, ALPHA, "Host beta listens on port 9443.")
        assert len(Question(query).words) < 30


# -- no word in common ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("newer", "fits", "told"),
    [
        ("The vet put Bruno on the scales: 34 kg.", 0.5, True),  # odds of 9 and of 1
        ("The vet put Bruno on the scales: 34 kg.", 0.52, True),
        ("The vet put Bruno on the scales: 34 kg.", 0.54, False),
        ("The diet works, 3 kilos are gone.", 0.1, False),  # kilos
        ("", 0.0, True),
    ],
)
def test_unrelated_is_what_fits_far_worse_and_shares_no_word(newer, fits, told):
    assert unrelated(words("I weigh 71 kilos."), words(newer), 0.9, fits) is told
    assert not unrelated(words(newer), words("I weigh 71 kilos."), fits, 0.9)


# -- in a build -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick(encoder):
    """The encoder with what it has encoded remembered."""
    return CachedEncoder(encoder)


def ago(days, content):
    return ContextPacket(content, NOW - timedelta(days=days), metadata={"id": content, "memory_type": "semantic"})


def order(packets, encoder, query, **config):
    builder = ContextBuilder(encoder=encoder, config=ContextConfig(**config))
    return builder.assemble(query, custom_packets=packets, now=NOW)


@pytest.mark.parametrize(
    ("query", "fact", "update", "others"),
    [
        (PORT, ALPHA, "The service on alpha was moved to port 8181.",
         ["Host beta listens on port 9443.", "Host gamma listens on port 7070."]),
        ("主机甲的端口是多少？", "主机甲的端口是 8080。", "主机甲改用 8181 端口了。",
         ["主机乙的端口是 9443。", "主机丙的端口是 7070。"]),
    ],
)  # fmt: skip
def test_of_newer_ones_only_the_update_goes_first(query, fact, update, others, quick):
    told = [ago(90, fact), ago(40, others[0]), ago(30, update), ago(2, others[1])]
    by_words = [item.packet.content for item in order(told[:2], quick, query).kept]
    assert by_words == [fact, others[0]]
    built = order(told, quick, query)
    found = [item.packet.content for item in built.kept]
    assert found[:2] == [update, fact] and set(found) == {fact, update, *others}  # none is pushed out
    assert {tuple(i.packet.content for i in order(random.Random(n).sample(told, 4), quick, query).kept)
            for n in range(4)} == {tuple(found)}  # fmt: skip
    assert evidence(rebuild(built.trace)) == evidence(built)


def test_what_is_about_something_else_keeps_its_own_relevance(quick):
    built = order([ago(90, ALPHA), ago(3, "Host beta listens on port 9443.")], quick, PORT)
    alone = order([ago(3, "Host beta listens on port 9443.")], quick, PORT)
    (row,) = (item for item in built.kept if "beta" in item.packet.content)
    assert row.relevance == alone.kept[0].relevance and row.detail == ""


# -- on the set of other facts ----------------------------------------------------------------------------------------


def test_the_set_is_what_it_says():
    rows = other_facts.read()
    assert len(rows) == 178 and len({row["id"] for row in rows}) == 178
    assert Counter(row["held_out"] for row in rows) == {False: 136, True: 42}
    for lang in ("en", "zh"):
        assert sum(row["lang"] == lang for row in rows) >= 80
    for row in rows:
        said = [row[part] for part in ("fact", "again", "update", "other", "apart")]
        assert len(set(said)) == 5 and {language_of(text) for text in said} <= {row["lang"]}, row
        assert "query" in row or "query_other" in row
        assert all(language_of(row[name]) == row["lang"] for name in ("query",) if name in row), row
        assert all(language_of(row[name]) != row["lang"] for name in ("query_other",) if name in row), row
        assert 3 <= row["days"] <= 400 and 1 <= row["age"] <= 365
    for part in ("query", "fact", "again", "update", "other", "apart"):
        texts = [row[part] for row in rows if part in row]
        assert len(set(texts)) == len(texts)


def shares(rows, encoder, folder):
    found = other_facts.measure(rows, encoder, str(folder))
    return {
        mode: {name: sum(hits) / len(hits) for name, hits in groups.items()}
        for mode, groups in found.items()
    }  # fmt: skip


def test_a_sample_of_other_facts(quick, tmp_path):
    """Every sixteenth row: someone else's newer statement stays below, an update goes first; either alone is easy."""
    found = shares(other_facts.read()[::16], quick, tmp_path)
    new, likeness, age = found["all defaults"], found[other_facts.LIKENESS_ALONE], found["recency by age alone"]
    assert new["other, same words"] >= 0.7 > 0.2 > likeness["other, same words"]
    assert new["update, same words"] >= 0.9
    assert new["update, other words"] >= 0.75 > 0.3 > age["update, other words"]
    for name in ("the right one in the context", "the right one in a context of 300 tokens"):
        assert new[name] >= likeness[name] > 0.95  # the words push nothing out


@pytest.mark.slow
@pytest.mark.parametrize("held_out", [False, True])
def test_all_other_facts(held_out, quick, tmp_path):
    rows = [row for row in other_facts.read() if row["held_out"] == held_out]
    found = shares(rows, quick, tmp_path)
    new, likeness = found["all defaults"], found[other_facts.LIKENESS_ALONE]
    assert new["other, same words"] >= 0.8 and new["update, other words"] >= 0.85 and new["update, same words"] >= 0.95
    for name in ("the right one in the context", "the right one in a context of 300 tokens"):
        assert new[name] >= likeness[name] > 0.95
