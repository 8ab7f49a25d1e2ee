"""Near duplicates and MMR against brute force, on real texts, and in whole builds."""

import math
import random
import re
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_vector import ContextBuilder, ContextConfig, KnowledgeBase, MemoryTool, RAGTool
from ctx_vector.audit import AuditLog
from ctx_vector.calibration import load_calibration
from ctx_vector.likeness import ALIKE, NearDuplicates, Residuals, Twin, all_apart, fold, mmr_order, near_duplicates
from ctx_vector.memory import Memory
from ctx_vector.replay import rebuild
from tests.cli_fixtures import call, good
from tests.pipeline_help import STEADY, HashEncoder

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OLD_IS_OUT = {"relevance_weight": 0.2, "recency_weight": 0.8}

LOG = [
    "INFO  Accepted connection from 10.0.{a}.{b}:{p}", "WARN  Slow query took {p} ms on table orders",
    "ERROR Timeout connecting to db-{d} after {p} ms", "INFO  GET /api/v1/users/{p} 200 {a}ms",
    "DEBUG cache miss key=session:{p}", "INFO  Worker {d} started job {p}",
]  # fmt: skip
FACTS = [
    "The rollback procedure starts by draining the queue of the payment service.",
    "Backups are taken every night at two and kept for thirty days in another region.",
    "订单服务在每天凌晨两点重启，期间不接受新的请求。",
    "On-call engineers page the database team when replication lags by five minutes.",
]


def log_chunks(count, lines=6, seed=1):
    """Return chunks of a log: lines of a few kinds with other numbers."""
    draw = random.Random(seed)

    def line():
        time = f"2024-03-{draw.randint(1, 28):02} {draw.randint(0, 23):02}:{draw.randint(0, 59):02}"
        numbers = {name: draw.randint(1, most) for name, most in {"a": 255, "b": 255, "p": 99999, "d": 9}.items()}
        return f"{time} {draw.choice(LOG).format(**numbers)}"

    return ["\n".join(line() for _ in range(lines)) for _ in range(count)]


class Plain:
    """A calibration that takes nothing away."""

    dim = 8

    def mean_passage(self, language):
        return np.zeros(self.dim, np.float32)


def residuals(rows, texts=None):
    rows = np.asarray(rows, np.float32)
    return Residuals([row[None, :] for row in rows], texts or ["x"] * len(rows), Plain())


def unit(rows):
    rows = np.asarray(rows, np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


# -- vectors ----------------------------------------------------------------------------------------------------------


def test_residuals_are_unit_rows_less_the_mean_of_their_language(encoder):
    calibration = load_calibration(encoder)
    texts = ["The museum opens at nine.", "博物馆九点开门。", "Cats sleep.", "三个窗口"] * 60
    rows = encoder.encode_documents(texts[:4])
    blocks = [rows[n % 4][None, :] if n % 4 < 3 else rows[:3] for n in range(240)]
    made = Residuals(blocks, texts, calibration)
    late = made.row(239).copy()
    assert made.window(0).shape == (64, 384) and made.window(3).shape == (48, 384)
    for place, language in enumerate(["en", "zh", "en"]):
        left = rows[place] - calibration.mean_passage(language)
        assert made.row(place) == pytest.approx(left / np.linalg.norm(left), abs=1e-6)
    mean = rows[:3].mean(0)
    left = mean / np.linalg.norm(mean) - calibration.mean_passage("zh")
    assert made.row(3) == pytest.approx(left / np.linalg.norm(left), abs=1e-6)
    assert late == pytest.approx(made.row(3), abs=1e-6)
    assert np.allclose(np.linalg.norm(made.window(1), axis=1), 1, atol=1e-6)
    some = Residuals([None, rows[:1], np.ones((1, 8), np.float32)], texts, calibration).window(0)
    assert not some[0].any() and some[1].any() and not some[2].any()


def kinds(text):
    lines = [" ".join("#" if re.search(r"\d", word) else word for word in line.split()) for line in text.split("\n")]
    return {line for line in lines if line}


def brute_force(rows, texts, limit, fits):
    """Near duplicates from the module's docstring, all with all; what does not fit is not kept."""
    found, kept, others = {}, [], []
    for place in range(len(rows)):
        cosine = {one: float(value) for one, value in zip(kept, rows[kept] @ rows[place], strict=True)}
        near = sorted((one for one in kept if cosine[one] >= 0.5), key=lambda one: -cosine[one])
        holder = next((one for one in near[:4] if fold(texts[place]) in fold(texts[one])), None)
        known = {line for one in kept for line in kinds(texts[one])}
        if sum(rows[place] @ rows[one] >= ALIKE for one in kept + others) >= limit:
            found[place] = Twin(max(kept, key=cosine.__getitem__), "alike")
            others += [place] if len(others) < 32 else []
        elif holder is not None:
            found[place] = Twin(holder, "same" if fold(texts[place]) == fold(texts[holder]) else "contained")
        elif len(near) >= limit and kinds(texts[place]) <= known:
            found[place] = Twin(near[0], "alike")
        elif fits[place]:
            kept.append(place)
    return found


@STEADY
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 400))
def test_near_duplicates_against_brute_force(seed, limit, count):
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(5, 8))
    rows = unit(centres[draw.integers(0, 5, count)] + 0.35 * draw.normal(size=(count, 8)))
    texts = [f"text {draw.integers(0, 30)}" + " 更多" * int(draw.integers(0, 9)) for _ in range(count)]
    everything = [True] * count
    assert near_duplicates(residuals(rows, texts), limit) == brute_force(rows, texts, limit, everything)
    fits, found = draw.random(count) < 0.6, {}
    near = NearDuplicates(residuals(rows, texts), limit)
    for place in range(count):
        if (twin := near.twin(place)) is not None:
            found[place] = twin
        elif fits[place]:
            near.keep(place)
    assert found == brute_force(rows, texts, limit, fits)


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(2, 6))
def test_of_those_apart_none_is_left_out_in_any_order_and_of_others_some_may_be(seed, limit, count):
    """Apart is what all orders say, and for two it is nothing more."""
    draw = random.Random(seed)
    spread = draw.choice((0.1, 0.6, 1.2))
    rng = np.random.default_rng(seed)
    rows = unit(np.eye(8)[0] + spread * rng.standard_normal((count, 8)))
    pieces = ["a 1", "a 2", "b", "c d", "e 7 f", "g"]
    texts = ["\n".join(draw.sample(pieces, draw.randint(1, 2))) for _ in range(count)]
    orders = [draw.sample(range(count), count) for _ in range(12)] + [list(range(count)), list(range(count))[::-1]]
    found = [near_duplicates(residuals(rows[order], [texts[at] for at in order]), limit) for order in orders]
    apart = all_apart(residuals(rows, texts), limit)
    assert not (apart and any(found))
    if count == 2:
        assert apart == (not any(found))


def test_what_is_said_twice_says_so(encoder):
    calibration = load_calibration(encoder)
    texts = [
        "Feed the starter with flour and water twice a day until it doubles in size within six hours.",
        "FEED the starter with flour and water twice a day, until it doubles in size within six hours!",  # the same
        "Feed the starter with flour and water twice a day until it doubles in size within nine hours.",  # another fact
        "twice a day until it doubles in size",  # a part
        "用面粉和水每天喂两次酵头，直到六小时内体积翻倍。",  # a translation
        "Bake the loaf in a covered iron pot at 240 degrees for twenty minutes.",
        "铁锅预热后盖上盖子烤二十分钟。",
    ]
    rows = encoder.encode_documents(texts)
    found = near_duplicates(Residuals([row[None] for row in rows], texts, calibration), 3)
    assert found == {1: Twin(0, "same"), 3: Twin(2, "contained")}
    assert found[1].said("a:1") == "says the same as a:1" and found[3].said("a:1") == "stands in a:1"


def test_facts_that_differ_in_one_word_all_stay(encoder):
    calibration = load_calibration(encoder)
    for texts in (
        ["The user's birthday is on 3 May", "The user's birthday is on 4 May", "The user's birthday is on 5 May"],
        ["Bob owes Carol 50 euros", "Carol owes Bob 50 euros"],
        ["用户的生日是5月3日", "用户的生日是5月4日"],
        ["Ada has been living in Berlin since 2015", "Ada has been living in Berlin since 2018"],
    ):
        rows = encoder.encode_documents(texts)
        assert near_duplicates(Residuals([row[None] for row in rows], texts, calibration), 3) == {}


def test_of_a_log_a_few_chunks_are_kept(encoder):
    texts = log_chunks(80) + FACTS
    rows = encoder.encode_documents(texts)
    found = near_duplicates(Residuals([row[None] for row in rows], texts, load_calibration(encoder)), 3)
    kept = [place for place in range(len(texts)) if place not in found]
    assert set(range(80, 84)) <= set(kept)
    assert len(kept) < 12, f"{len(kept)} of 84"


# -- MMR --------------------------------------------------------------------------------------------------------------


def mmr_by_hand(scores, rows, weight, count):
    left, chosen = list(range(len(scores))), []
    cosines = rows.astype(np.float64) @ rows.astype(np.float64).T
    while left and len(chosen) < count:
        value = {n: weight * scores[n] - (1 - weight) * max([0.0, *(cosines[n, m] for m in chosen)]) for n in left}
        best = max(left, key=lambda n: (round(value[n], 6), -n))
        chosen.append(best)
        left.remove(best)
    return chosen


@STEADY
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.3, 0.7, 1.0]), st.integers(1, 300), st.integers(1, 20))
def test_mmr_against_the_definition(seed, weight, count, few):
    draw = np.random.default_rng(seed)
    rows = unit(draw.normal(size=(count, 8)))
    scores = sorted(draw.random(count).round(2).tolist(), reverse=True)
    taken = [place for place in range(count) if draw.random() < 0.7]
    found = mmr_order([scores[n] if n in taken else -math.inf for n in range(count)], residuals(rows), weight, few)
    assert found == [taken[n] for n in mmr_by_hand([scores[n] for n in taken], rows[taken], weight, few)]


def test_mmr_with_weight_one_is_the_order_of_scores():
    rows = unit(np.random.default_rng(1).normal(size=(500, 8)))
    scores = np.linspace(1, 0, 500).tolist()
    assert mmr_order(scores, residuals(rows), 1.0, 90) == list(range(90))


def test_mmr_takes_what_is_new_before_what_is_alike():
    rows = [[1, 0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0]]
    assert mmr_order([0.9, 0.8, 0.7], residuals(rows), 0.5) == [0, 2, 1]


# -- in a build -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def logs(tmp_path_factory, encoder):
    """A knowledge base that is nearly all log, with a few documents about the same things."""
    with KnowledgeBase(tmp_path_factory.mktemp("logs"), encoder) as kb:
        kb.add_texts({"text": text, "source": f"log{n}.txt"} for n, text in enumerate(log_chunks(90)))
        kb.add_texts({"text": text, "source": f"doc{n}.txt"} for n, text in enumerate(FACTS))
        yield kb


QUERY = "Why do connections to the database time out?"


def test_a_log_does_not_fill_the_context(logs):
    def build(**changes):
        config = ContextConfig(knowledge_min_score=0, min_relevance=0, knowledge_limit=8, **changes)
        return ContextBuilder(rag_tool=RAGTool(knowledge=logs), config=config).assemble(QUERY, now=NOW)

    kept = [item.packet.meta["source"] for item in build(alike_limit=None).kept]
    assert len(kept) == 8 and sum(name.startswith("log") for name in kept) >= 7
    built = build()
    kept = [item.packet.meta["source"] for item in built.kept]
    assert len(kept) == 8 and sum(name.startswith("doc") for name in kept) >= 3
    twins = [item for item in built.dropped if item.reason == "duplicate"]
    ids = {item.packet.id for item in built.kept}
    assert twins and all(item.detail.startswith("much like knowledge:") for item in twins)
    assert all(item.detail.split(":")[1].split()[0] in ids for item in twins)


def test_documents_of_elsewhere_are_compared_with_knowledge(logs, encoder):
    text = FACTS[0]
    config = ContextConfig(min_relevance=0, knowledge_min_score=0)
    builder = ContextBuilder(rag_tool=RAGTool(knowledge=logs), config=config)
    almost, part = text.replace("starts by", "starts, by"), "draining the queue of the payment service"
    built = builder.assemble("How does the rollback procedure start?", documents=[almost, part], now=NOW)
    shown = [item for item in built.kept if "draining" in item.packet.content]
    assert len(shown) == 1
    details = {item.source: item.detail for item in built.dropped if item.reason == "duplicate"}
    other = "documents" if shown[0].source == "knowledge" else "knowledge"
    assert f"says the same as {shown[0].source}:{shown[0].packet.id}" in details[other] or "stands in" in details[other]


def test_a_part_stays_when_the_whole_finds_no_room(encoder):
    part = "队列清空之后，支付服务才能回滚。"
    whole = part + "".join(f"第{n}步：检查第{n}台机器的日志，并通知值班工程师。" for n in range(4))
    other = "The canteen serves soup at noon."

    def build(tokens):
        config = ContextConfig(
            max_tokens=tokens, min_relevance=0, enable_compression=False, reserve_ratio=0, **OLD_IS_OUT
        )
        builder = ContextBuilder(config=config, encoder=encoder)
        documents = [{"content": part, "timestamp": "2020-01-01"}, whole, other]
        return builder.assemble("支付服务何时才能回滚？", documents=documents, now=NOW)

    roomy, tight = build(1000), build(120)
    assert [item.packet.content for item in roomy.kept] == [whole, other]
    assert [(item.packet.content, item.reason) for item in roomy.dropped] == [(part, "duplicate")]
    assert {item.packet.content for item in tight.kept} == {part, other}
    for built in (roomy, tight):
        assert rebuild(built.trace).text == built.text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("The quarterly report is due on the last Friday", "The quarterly report is due on the last Friday!"),
        ("季度报告在最后一个星期五提交", "季度报告在最后一个星期五提交。"),
        ("The report is due on the last Friday", "Note: the report is due on the last Friday, as ever."),
    ],
)
def test_of_statements_that_say_the_same_the_newest_is_kept(encoder, old, new):
    documents = [{"content": old, "timestamp": "2025-01-01"}, {"content": new, "timestamp": "2025-11-01"}]
    built = ContextBuilder(encoder=encoder).assemble("When is the quarterly report due?", documents=documents, now=NOW)
    assert [item.packet.content for item in built.kept] == [new]
    (gone,) = built.dropped
    assert (gone.packet.content, gone.reason) == (old, "duplicate")
    assert built.kept[0].packet.id in gone.detail


def test_the_callers_own_packets_and_memories_are_never_near_duplicates(tmp_path, encoder):
    said = [
        "Dana rides her bike to the office.",
        "Dana rides her bike to the office!",
        "Dana rides her bike to the office",
    ]
    with Memory(tmp_path, "ada", encoder) as memory:
        memory.add_many([{"content": text, "session": str(n)} for n, text in enumerate(said)], now=NOW)
        builder = ContextBuilder(memory_tool=MemoryTool(memory=memory), encoder=encoder)
        packets = [{"content": f"{text} Often.", "metadata": {"type": "knowledge"}} for text in said]
        built = builder.assemble("How does Dana get to work?", custom_packets=packets, now=NOW)
    assert len(built.kept) == 6 and not built.dropped


def test_mmr_chooses_for_variety_and_renders_best_first(encoder):
    tip = "How a Pandas data frame uses less memory: convert its text columns to the category type"
    alike = [f"{tip}, tip {n}." for n in range(6)]
    others = ["Pandas can read a CSV file in chunks.", "用 usecols 只读取需要的列。"]
    query = "How can a Pandas data frame use less memory?"

    def build(**changes):
        config = ContextConfig(max_tokens=110, alike_limit=None, enable_compression=False, **changes)
        return ContextBuilder(config=config, encoder=encoder).assemble(query, documents=[*alike, *others], now=NOW)

    plain, varied = build(), build(mmr_lambda=0.5)
    assert not {item.packet.content for item in plain.kept} & set(others)
    assert {item.packet.content for item in varied.kept} >= set(others)
    scores = [item.score for item in varied.kept]
    assert scores != sorted(scores, reverse=True), "kept in order of choice"
    shown = sorted(varied.kept, key=lambda item: varied.text.index(item.rendered))
    assert [item.score for item in shown] == sorted(scores, reverse=True)


def test_mmr_of_a_build_is_that_of_the_definition(encoder):
    texts = [*FACTS, *(text.replace("two", "three").replace("两点", "三点") for text in FACTS), "灯塔在夜里发光。"]
    config = ContextConfig(mmr_lambda=0.6, alike_limit=None, min_relevance=0)
    built = ContextBuilder(config=config, encoder=encoder).assemble("When are backups made?", documents=texts, now=NOW)
    plain = ContextBuilder(config=config.with_(mmr_lambda=None), encoder=encoder)
    ranked = plain.assemble("When are backups made?", documents=texts, now=NOW).kept
    assert len(built.kept) == len(ranked) == 7
    said = [item.packet.content for item in ranked]
    rows = encoder.encode_documents(said)
    rows = Residuals([row[None] for row in rows], said, load_calibration(encoder)).window(0)
    order = mmr_by_hand([item.score for item in ranked], rows, 0.6, len(said))
    assert [item.packet.content for item in built.kept] == [said[place] for place in order]
    assert order != list(range(len(said)))


def test_mmr_chooses_among_more_passages_than_are_asked_for(logs):
    def sources(**changes):
        config = ContextConfig(knowledge_min_score=0, min_relevance=0, knowledge_limit=4, alike_limit=None, **changes)
        built = ContextBuilder(rag_tool=RAGTool(knowledge=logs), config=config).assemble(QUERY, now=NOW)
        return [item.packet.meta["source"] for item in (*built.kept, *built.dropped)]

    plain, varied = sources(), sources(mmr_lambda=0.3)
    assert len(plain) == len(varied) == 4
    assert set(varied) - set(plain), "some are none of the four most relevant"
    documents = [sum(name.startswith("doc") for name in names) for names in (plain, varied)]
    assert documents[0] <= 1 <= documents[1]


def test_nothing_is_encoded_or_measured_to_find_duplicates():
    encoder = HashEncoder()
    builder = ContextBuilder(config=ContextConfig(strategy="jaccard", min_relevance=0), encoder=encoder)
    built = builder.assemble("one", documents=["one two three", "one two, three"], now=NOW)
    assert len(built.kept) == 2 and encoder.documents == encoder.queries == []


@pytest.mark.parametrize("changes", [{}, {"mmr_lambda": 0.4}, {"mmr_lambda": 0.4, "alike_limit": None}])
def test_a_build_is_made_again_without_vectors(logs, encoder, tmp_path, changes):
    config = ContextConfig(knowledge_min_score=0, min_relevance=0, knowledge_limit=6, max_tokens=1500, **changes)
    path = tmp_path / "audit.sqlite3"
    with AuditLog(path) as log:
        builder = ContextBuilder(rag_tool=RAGTool(knowledge=logs), config=config, audit=log)
        documents = [*FACTS, *(text.replace(".", " !") for text in FACTS[:2])]
        built = builder.assemble(QUERY, documents=documents, now=NOW)
        replay = log.replay("last")
        assert replay.equal and replay.built.text == built.text, replay.differences
    details = [item.detail for item in built.dropped if item.reason == "duplicate"]
    assert any(not detail.startswith("same text") for detail in details) == ("alike_limit" not in changes)
    assert good(call("audit", "replay", "--audit", path)) == "equal\n"
    assert good(call("audit", "show", "last", "--text", "--audit", path)) == built.text
    again = rebuild(built.trace)
    assert again.text == built.text and again.messages == built.messages

    def fates(one):
        return [(item.packet.content, item.reason, item.detail, item.score) for item in (*one.kept, *one.dropped)]

    assert fates(again) == fates(built)
    assert builder.assemble(QUERY, documents=documents, now=NOW).text == built.text
