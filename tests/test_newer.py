"""Newer statements take over from older ones that say the same, and nothing else does."""

from __future__ import annotations

import math
import random
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from audit_help import evidence
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_help import NOW, STEADY

from ctx_vector import ContextBuilder, ContextConfig, ContextPacket, MemoryTool, RAGTool
from ctx_vector.audit import AuditLog
from ctx_vector.calibration import load_calibration
from ctx_vector.encoders import CachedEncoder
from ctx_vector.newer import WIDEST, NewerRule, Statement, take_over, width
from ctx_vector.replay import rebuild
from ctx_vector.scoring import CosineScorer, HybridScorer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import freshness

WEIGHTS = (0.7, 0.3)
RULE = NewerRule(*WEIGHTS, floor=0.1, line=0.5)
QUESTION = "Where do the nightly backups end up?"
DISK = "Our nightly backup goes to the USB disk in my desk drawer."
MAYA = "The disk in the drawer started clicking, so backups are sent to Maya's NAS over SFTP for now."
OSLO = "Maya needs her space back. The nightly copy is written to a bucket in Oslo."
OTHER = "The choir sings on Thursdays."


# -- the rule ---------------------------------------------------------------------------------------------------------


def likeness(cosine, new, old):
    """The formula, written out."""
    return cosine + min(1.0, new / old) / 2


def statements(relevance, recency, times):
    """Columns as rows."""
    return [Statement(*row) for row in zip(relevance, recency, times, strict=True)]


@pytest.mark.parametrize(
    ("cosine", "new", "old", "takes"),
    [
        (0.01, 0.79, 0.8, True),  # 0.01 + nearly 1/2
        (-0.01, 0.79, 0.8, False),
        (0.25, 0.4, 0.8, True),  # 0.25 + 1/4
        (0.24, 0.4, 0.8, False),
        (0.45, 0.08, 0.8, True),  # 0.45 + 0.05, and under the floor by itself
        (0.44, 0.08, 0.8, False),
        (0.9, 0.5, 0.09, False),  # what is under the floor hands nothing on
    ],
)
def test_two_statements_are_one_by_cosine_and_how_well_either_matches(cosine, new, old, takes):
    assert (likeness(cosine, new, old) >= 0.5 - 1e-12 and old >= 0.1) == takes
    pairs = take_over(np.array([[1, cosine], [cosine, 1]]), statements([old, new], [1.0, 1.0], [0.0, 1.0]), RULE)
    assert pairs == ([(1, 0)] if takes else [])


def test_the_newest_gets_what_the_oldest_had_by_way_of_those_between():
    cosines = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.5], [0.0, 0.5, 1.0]])  # the first and the last are not alike
    pairs = take_over(cosines, statements([0.9, 0.5, 0.3], [1.0, 1.0, 1.0], [0.0, 1.0, 2.0]), RULE)
    assert pairs == [(1, 0), (2, 1)]


def test_of_several_the_best_is_taken_over_from_and_equal_times_replace_nothing():
    cosines = np.ones((4, 4))
    relevance, times = [0.5, 0.7, 0.6, 0.2], [0.0, 0.0, 1.0, 2.0]
    assert take_over(cosines, statements(relevance, [1.0] * 4, times), RULE) == [(2, 1), (3, 2)]
    assert take_over(cosines, statements(relevance, [1.0] * 4, [5.0] * 4), RULE) == []


def test_what_is_about_something_else_takes_nothing_over_nor_from_what_took_over():
    """The first is replaced by the second; the third is about something else than the first, and so than the second."""
    relevance, times = [0.9, 0.5, 0.6], [0.0, 1.0, 2.0]
    asked = []

    def apart(new, old):
        asked.append((new, old))
        return (new, old) == (2, 0)

    assert take_over(np.ones((3, 3)), statements(relevance, [1.0] * 3, times), RULE, apart) == [(1, 0)]
    assert asked == [(1, 0), (2, 1), (2, 0)]
    assert take_over(np.ones((3, 3)), statements(relevance, [1.0] * 3, times), RULE) == [(1, 0), (2, 1)]


def test_who_stands_above_already_takes_nothing():
    assert take_over(np.ones((2, 2)), statements([0.5, 0.8], [1.0, 1.0], [0.0, 1.0]), RULE) == []


UNIT = st.floats(0, 1)


@settings(STEADY, max_examples=200)
@given(st.lists(st.tuples(UNIT, UNIT, st.integers(0, 5)), min_size=1, max_size=7), st.randoms(use_true_random=False))
def test_no_replaced_statement_stands_above_the_newer_one_whatever_their_order(rows, draw):
    count = len(rows)
    cosines = np.array([[draw.uniform(-0.3, 1) for _ in range(count)] for _ in range(count)])
    cosines = (cosines + cosines.T) / 2

    def outcome(order):
        relevance, recency, times = (list(column) for column in zip(*(rows[at] for at in order), strict=True))
        pairs = take_over(cosines[np.ix_(order, order)], statements(relevance, recency, times), RULE)
        values = {at: (rows[at][0], rows[at][1]) for at in order}
        for new, old in pairs:
            one, other = order[new], order[old]
            assert rows[one][2] > rows[other][2] and rows[other][0] >= 0.1
            assert likeness(cosines[one, other], rows[one][0], max(rows[other][0], 1e-9)) >= 0.5
            values[one] = tuple(map(max, values[one], values[other]))
        return values

    values = outcome(list(range(count)))
    score = {at: WEIGHTS[0] * one + WEIGHTS[1] * other for at, (one, other) in values.items()}
    for new in range(count):
        assert values[new][0] >= rows[new][0] and values[new][1] >= rows[new][1]
        for old in range(count):
            alike = likeness(cosines[new, old], rows[new][0], max(rows[old][0], 1e-9)) >= 0.5
            if rows[new][2] > rows[old][2] and rows[old][0] >= 0.1 and alike:
                assert score[new] >= score[old] - 1e-12 and values[new][0] >= 0.1
    if len({time for *_, time in rows}) == count:  # nothing is left to the order then
        shuffled = draw.sample(range(count), count)
        assert outcome(shuffled) == values


def test_width_counts_chinese_characters_three_times():
    assert [width(text) for text in ("", "York", "搬到 York", "ミナト", "é")] == [0, 4, 11, 9, 1]


# -- how alike --------------------------------------------------------------------------------------------------------


def test_alike_is_the_cosine_without_the_mean_of_each_language(encoder):
    calibration = load_calibration(encoder)
    texts = [DISK, MAYA, "我住在绍兴。", OTHER]
    vectors = encoder.encode_documents(texts)
    rows = []
    for text, vector in zip(texts, vectors, strict=True):
        language = "zh" if "我" in text else "en"
        rest = [float(a) - float(b) for a, b in zip(vector, calibration.passages[language], strict=True)]
        rows.append([value / math.sqrt(sum(v * v for v in rest)) for value in rest])
    want = [[sum(a * b for a, b in zip(one, other, strict=True)) for other in rows] for one in rows]
    for scorer in (CosineScorer(calibration), HybridScorer(calibration)):
        found = scorer.alike(texts, vectors)
        assert found == pytest.approx(np.array(want), abs=1e-6)
    assert found[0, 1] > 0.4 > 0.2 > found[0, 3]
    assert CosineScorer(None).alike(texts, vectors) is None


# -- in a build -------------------------------------------------------------------------------------------------------


def ago(days, content, **metadata):
    return ContextPacket(content, NOW - timedelta(days=days), metadata={"id": content, **metadata})


def order(packets, encoder, query=QUESTION, **config):
    """The contents of a build from top to bottom."""
    builder = ContextBuilder(encoder=encoder, config=ContextConfig(**config))
    return [item.packet.content for item in builder.assemble(query, custom_packets=packets, now=NOW).kept]


@pytest.fixture(scope="module")
def quick(encoder):
    """The encoder with what it has encoded remembered."""
    return CachedEncoder(encoder)


VERSIONS = {
    "en": (QUESTION, [ago(400, DISK), ago(300, MAYA), ago(297, OSLO), ago(1, OTHER)]),
    "zh": (
        "爸妈现在住在哪里？",
        [
            ago(700, "爸妈住在绍兴老城仓桥直街的老房子里。"),
            ago(310, "老房子漏得厉害，爸妈搬到柯桥和姑姑做邻居去了。"),
            ago(306, "爬不动六楼，爸妈换到了镜湖那边带电梯的小区。"),
            ago(1, "合唱团每周四排练。"),
        ],
    ),
}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_newest_version_stands_above_the_older_ones_whatever_their_order(language, quick):
    query, packets = VERSIONS[language]
    newest, oldest = packets[2].content, packets[0].content
    before = order(packets, quick, query, supersede_line=None)
    assert before.index(oldest) < before.index(newest)  # by age alone the oldest is on top, for it matches best
    found = {
        tuple(order(random.Random(seed).sample(packets, 4), quick, query)) for seed in range(5)
    }  # fmt: skip
    assert len(found) == 1
    (kept,) = found
    assert [text for text in kept if text != packets[3].content] == [packet.content for packet in reversed(packets[:3])]


def test_the_record_says_what_was_taken_over_and_a_repeat_gives_the_same(quick):
    query, packets = VERSIONS["en"]
    builder = ContextBuilder(encoder=quick)
    built = builder.assemble(query, custom_packets=packets, now=NOW)
    by_age = ContextBuilder(encoder=quick, config=ContextConfig(supersede_line=None)).assemble(
        query, custom_packets=packets, now=NOW
    )
    own = {item.packet.id: item.relevance for item in (*by_age.kept, *by_age.dropped)}
    rows = {item.packet.id: item for item in built.kept}
    taken = rows[OSLO]
    assert taken.relevance == max(own[DISK], own[MAYA], own[OSLO]) > own[OSLO]
    assert f"by itself its relevance is {own[OSLO]:.3f}" in taken.detail and "which is like it" in taken.detail
    assert all(item.score == pytest.approx(0.7 * item.relevance + 0.3 * item.recency) for item in built.kept)
    assert rows[DISK].detail == "" and rows[DISK].relevance == own[DISK]
    assert evidence(rebuild(built.trace)) == evidence(built)


def test_an_audit_makes_it_again_from_the_disk(quick, tmp_path):
    query, packets = VERSIONS["zh"]
    log = AuditLog(tmp_path / "audit.sqlite3")
    built = ContextBuilder(encoder=quick, audit=log).assemble(query, custom_packets=packets, now=NOW)
    assert any("which is like it" in item.detail for item in built.kept)
    log.flush()
    replay = log.replay(built.meta["build_id"])
    assert replay.equal and evidence(replay.built) == evidence(built)
    log.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"supersede_line": None},
        {"supersede_line": 2},
        {"recency_weight": 0, "relevance_weight": 1},
        {"strategy": "cosine_raw"},
        {"strategy": "jaccard", "min_relevance": 0},
    ],
    ids=str,
)
def test_it_can_be_turned_off_and_plain_strategies_stay_plain(changes, quick):
    packets = VERSIONS["en"][1]
    builder = ContextBuilder(encoder=quick, config=ContextConfig(**changes))
    built = builder.assemble(QUESTION, custom_packets=packets, now=NOW)
    assert not any("which is like it" in item.detail for item in (*built.kept, *built.dropped))


@pytest.mark.parametrize(
    ("query", "right", "others"),
    [
        (
            "What is my address?",
            "My address is 7 Harbour Road, Bristol.",
            ["我女儿的手机号是13700000003。", "主机B的IP地址是10.0.0.77。"],
        ),
        (
            "我的地址是什么？",
            "我的地址是上海市浦东新区港口路7号。",
            ["Host B has the IP address 10.0.0.77.", "My son was born on 9 June."],
        ),
    ],
)
def test_what_is_said_later_in_another_language_about_something_else_replaces_nothing(query, right, others, quick):
    packets = [ago(60, right), *(ago(30 - place, text) for place, text in enumerate(others))]
    kept = order(packets, quick, query)
    assert kept[0] == right, kept


def test_a_translation_still_replaces_what_it_repeats(quick):
    old, new = "My address is 7 Harbour Road, Bristol.", "我的地址是布里斯托尔港口路8号。"
    assert order([ago(60, old), ago(30, new)], quick, "What is my address?")[0] == new


def test_who_takes_no_part(quick):
    """Undated ones, those scored by the caller, passages, other sections, turns of one conversation, the future."""
    wide = MAYA + " " + "It has two disks and a fan. " * 20
    assert width(wide) > WIDEST

    def takes(older, newer, **config):
        builder = ContextBuilder(encoder=quick, config=ContextConfig(min_relevance=0, supersede_line=0, **config))
        built = builder.assemble(QUESTION, custom_packets=[older, newer], now=NOW)
        return any("which is like it" in item.detail for item in built.kept)

    old = ago(50, DISK)
    assert takes(old, ago(40, MAYA))
    assert not takes(old, ContextPacket(MAYA))
    assert not takes(ContextPacket(DISK), ago(40, MAYA))
    assert not takes(ContextPacket(DISK, NOW - timedelta(days=50), None, 0.9), ago(40, MAYA))
    assert not takes(old, ContextPacket(MAYA, NOW - timedelta(days=40), None, 0.1))
    assert not takes(old, ago(40, wide))
    assert not takes(old, ago(40, MAYA, type="knowledge"))
    assert not takes(ago(50, DISK, session="s"), ago(40, MAYA, session="s"))
    assert takes(ago(50, DISK, session="s"), ago(40, MAYA, session="t"))
    kept = {"memory_type": "semantic"}  # no recency by age
    assert takes(ago(1, DISK, **kept), ago(-3, MAYA, **kept))
    assert not takes(ago(-2, DISK, **kept), ago(-3, MAYA, **kept))  # the future counts as now


def test_only_what_half_of_the_budget_holds_takes_part_so_that_nothing_loses_its_place(quick):
    """With little room the best match stays in; with enough, the newer ones go above it."""
    old = ago(500, DISK)
    newer = [ago(10 + day, f"The disk number {day} of the nightly backup is full of dust.") for day in range(6)]
    room = {"reserve_ratio": 0, "enable_compression": False, "supersede_line": 0.2, "min_relevance": 0}
    small = order([old, *newer], quick, max_tokens=80, **room)
    large = order([old, *newer], quick, max_tokens=3000, **room)
    assert DISK in small and len(small) < 7
    assert len(large) == 7 and large.index(DISK) > 0


# -- on the set of changing facts -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample():
    """Every fourth fact, old answer and note, both languages."""
    corpus, queries, grades = freshness.read(freshness.DATA)
    groups = sorted({row["group"] for row in corpus if "group" in row})[::4]
    olds = sorted(query["_id"].removesuffix("-q1") for query in queries if query["kind"] == "old")[::4]
    names = {f"{name}{end}" for name in olds for end in ("", "-near", "-q1")} | {
        f"note-{n:02}" for n in range(1, 81, 4)
    }
    kept = [row for row in corpus if row.get("group") in groups or row["_id"] in names]
    asked = [query for query in queries if query.get("group") in groups or query["_id"] in names]
    return kept, asked, grades


def test_the_newest_of_changing_facts_is_above_the_older_ones(sample, quick, tmp_path):
    corpus, queries, grades = sample
    builder = freshness.builder_of(corpus, str(tmp_path), quick)
    found = freshness.measure(builder, corpus, queries, grades, 3000)
    age = builder.with_config(ContextConfig(supersede_line=None))
    before = freshness.measure(age, corpus, queries, grades, 3000)
    assert found["fresh"]["questions"] >= 35 and found["old answers in the context"]["questions"] >= 8
    assert found["fresh"]["share"] >= 0.9
    assert before["fresh"]["share"] < 0.5
    assert found["old answers in the context"]["share"] == before["old answers in the context"]["share"] == 1.0
    close(builder)


@pytest.mark.slow
def test_all_changing_facts(quick, tmp_path):
    corpus, queries, grades = freshness.read(freshness.DATA)
    builder = freshness.builder_of(corpus, str(tmp_path), quick)
    plain = builder.with_config(ContextConfig(**freshness.NO_RECENCY))
    for tokens in (500, 3000):
        found, without = (
            freshness.measure(one, corpus, queries, grades, tokens) for one in (builder, plain)
        )  # fmt: skip
        old = "old answers in the context"
        assert found[old]["share"] >= without[old]["share"] - 0.01
    for part in ("fresh", "fresh, versions under 23 days apart", "fresh, versions over 23 days apart"):
        assert found[part]["share"] >= 0.95
    close(builder)


def close(builder):
    memory, rag = builder.memory_tool, builder.rag_tool
    assert isinstance(memory, MemoryTool) and isinstance(rag, RAGTool)
    memory.memory.close()
    rag.knowledge.close()
