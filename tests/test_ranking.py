"""Ranking: scores and order by the formulas of design.md 3, computed here once more; windows, floor, duplicates."""

import math
import random
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_help import NOW, STEADY, HashEncoder, build, plain

from ctx_vector import ContextBuilder, ContextPacket
from ctx_vector.errors import InputError
from ctx_vector.judging import MOST_WINDOWS, windows

WORDS = "the a fox Dog runs over lazy数据 memory of pandas PANDAS quick 内存 x y".split()


def jaccard(query, text):
    a, b = set(query.lower().split()), set(text.lower().split())
    return len(a & b) / len(a | b) if a and b else 0.0


def recency(stamp, decay=0.1, floor=0.1):
    if stamp is None or stamp >= NOW:
        return 1.0
    days = (NOW - stamp).total_seconds() / 86_400
    return min(1.0, max(floor, math.exp(-decay * days)))


def newest(stamp):
    return -(stamp.timestamp() if stamp else float("inf"))


def hold_formulas(texts, query, weights, relevance_of, **arguments):
    relevance_weight, recency_weight = weights
    packets = [
        ContextPacket(
            text, stamp, None, None, {"type": "knowledge", "id": f"{n:03}", **({"memory_type": kind} if kind else {})}
        )
        for n, (text, stamp, kind) in enumerate(texts)
    ]
    config = plain(
        fill="stop", max_tokens=1_000_000, min_relevance=0.1,
        relevance_weight=relevance_weight, recency_weight=recency_weight, **arguments.pop("config", {}),
    )  # fmt: skip
    built = ContextBuilder(config=config, **arguments).assemble(query, custom_packets=packets, now=NOW)
    decay, floor = {"episodic": 0.01, "semantic": 0.0}, {"episodic": 0.7}
    want = []
    for packet, (text, stamp, kind) in zip(packets, texts, strict=True):
        relevance = relevance_of(text)
        fresh = recency(stamp, decay.get(kind, 0.1), floor.get(kind, 0.1))
        want.append((relevance_weight * relevance + recency_weight * fresh, newest(stamp), packet.id, relevance, fresh))
    passing = sorted((row for row in want if row[3] >= 0.1), key=lambda row: (-row[0], row[1], row[2]))
    assert [item.packet.id for item in built.kept] == [row[2] for row in passing]
    for item, row in zip(built.kept, passing, strict=True):
        assert (item.score, item.relevance, item.recency) == pytest.approx((row[0], row[3], row[4]), abs=1e-6)
    assert {item.packet.id for item in built.dropped} == {row[2] for row in want if row[3] < 0.1}
    assert all(item.reason == "below_floor" for item in built.dropped)
    rendered = built.sections.get("Evidence", "").rstrip("\n").split("\n---\n") if built.kept else []
    assert rendered == [item.packet.content for item in built.kept]  # best first


moments = st.one_of(st.none(), st.integers(-3, 60).map(lambda days: NOW - timedelta(days=days, hours=days % 5)))
sentences = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)


@settings(STEADY, max_examples=100)
@given(
    st.lists(st.tuples(sentences, moments, st.sampled_from([None, "episodic", "semantic"])), max_size=12),
    sentences,
    st.sampled_from([(0.7, 0.3), (1.0, 0.0), (0.0, 1.0), (0.25, 0.75)]),
)
def test_jaccard_with_stop_equals_the_formulas(texts, query, weights):
    hold_formulas(texts, query, weights, lambda text: jaccard(query, text))


def test_cosine_raw_equals_the_formulas_with_numpy(encoder):
    random.seed(5)
    topics = [
        "Pandas frames use much memory",
        "数据类型可以减少内存占用",
        "The fox runs over a lazy dog",
        "How to bake bread at home",
        "def f(x): return x",
        "Path parameters are declared in the path",
        "如何声明路径参数",
    ]
    texts = [(text, NOW - timedelta(days=random.randint(0, 40)), None) for text in topics] + [
        ("memory of pandas", None, None)
    ]
    query = "How do I reduce the memory of a data frame?"
    row = encoder.encode_queries([query])[0]
    cosine = {text: float(np.clip(encoder.encode_documents([text])[0] @ row, 0, 1)) for text, _, _ in texts}
    hold_formulas(texts, query, (0.7, 0.3), cosine.__getitem__, config={"strategy": "cosine_raw"}, encoder=encoder)


def test_the_same_text_scores_the_same_wherever_it_comes_from(encoder):
    text, query = "Use the category type to save memory in pandas.", "How can pandas use less memory?"

    class Own:
        def candidates(self, query, *, now, encoder, **_):
            from ctx_vector.packets import Candidate

            return [Candidate(ContextPacket(text), "", vectors=encoder.encode_documents([text]))]

    built = ContextBuilder(
        rag_tool=Own(), config=plain(strategy="cosine", history_relevance=None), encoder=encoder
    ).assemble(
        query, custom_packets=[ContextPacket(text), ContextPacket(text, metadata={"type": "memory"})], documents=[text],
        conversation_history=[{"role": "user", "content": text}], now=NOW,
    )  # fmt: skip
    scores = {item.relevance for item in (*built.kept, *built.dropped)}
    assert len(built.kept) + len(built.dropped) == 5 and len(scores) == 1 and scores.pop() > 0.3


# -- floor, duplicates, expiry, ties ----------------------------------------------------------------------------------


def test_a_packet_exactly_at_the_floor_stays():
    packets = [ContextPacket(f"x{score}", None, None, score) for score in (0.1, 0.0999, 0.5)]
    built = build("q", custom_packets=packets, config={"min_relevance": 0.1})
    assert [item.packet.content for item in built.kept] == ["x0.5", "x0.1"]
    assert built.dropped[0].reason == "below_floor" and "min_relevance 0.1" in built.dropped[0].detail


def test_instructions_state_and_history_are_not_subject_to_the_floor():
    history = [{"role": "user", "content": "unrelated"}, {"role": "assistant", "content": "quite"}]
    custom = [
        ContextPacket("earlier", None, None, 0.0, {"type": "conversation_history"}),
        ContextPacket("gone", None, None, 0.0),
    ]
    for relevance in (0.6, None):
        built = build(
            "zebra", conversation_history=history, system_instructions="s", state="t", custom_packets=custom,
            config={"min_relevance": 1.0, "history_relevance": relevance},
        )  # fmt: skip
        kept = {item.packet.content: item.relevance for item in built.kept}
        assert kept == {"s": 1.0, "t": 1.0, "earlier": 0.0, "unrelated": relevance or 0.0, "quite": relevance or 0.0}
        assert [(item.packet.content, item.reason) for item in built.dropped] == [("gone", "below_floor")]


def test_the_same_text_twice_is_kept_once_unless_the_caller_gave_it():
    built = build(
        "q", documents=["Same text", "same  TEXT", {"content": "Same text", "score": 0.9}], custom_packets=["c", "c"]
    )
    assert sorted(item.packet.content for item in built.kept) == ["Same text", "c", "c"]
    assert [item.relevance for item in built.kept if item.source == "documents"] == [0.9]  # the best of them
    assert [item.reason for item in built.dropped] == ["duplicate", "duplicate"]
    assert "same text as documents:" in built.dropped[0].detail


def test_what_has_expired_is_dropped():
    times = ((NOW - timedelta(seconds=1)).isoformat(), NOW, (NOW + timedelta(days=1)).isoformat(), "never", 1e40, None)
    items = [{"content": str(when), "metadata": {"expires_at": when}} for when in times]
    built = build("q", documents=items)
    assert sorted(item.reason for item in built.dropped) == ["expired", "expired"]
    assert len(built.kept) == 4


def test_ties_are_settled_by_score_then_newer_then_id():
    def packet(name, days):
        return ContextPacket(name, NOW - timedelta(days=days) if days is not None else None, None, 0.5, {"id": name})

    packets = [packet("d", 3), packet("c", 3), packet("b", -1), packet("a", None), packet("e", -2)]
    orders = set()
    for seed in range(6):
        shuffled = random.Random(seed).sample(packets, len(packets))
        built = build("q", custom_packets=shuffled, config={"recency_weight": 0.0, "relevance_weight": 1.0})
        orders.add("".join(item.packet.id for item in built.kept))
    assert orders == {"aebcd"}  # no time counts as now; a future time is as good, and then the newer comes first


def test_recency_has_a_floor_and_a_decay_for_each_type():
    packets = [
        ContextPacket("old", NOW - timedelta(days=900), None, 0.5, {"memory_type": kind} if kind else None)
        for kind in (None, "episodic", "semantic", "profile")
    ]
    built = build("q", custom_packets=packets, config={"recency_floor_by_type": {"episodic": 0.4}})
    got = {item.packet.meta.get("memory_type"): item.recency for item in built.kept}
    assert got == {None: 0.1, "episodic": 0.4, "semantic": 1.0, "profile": 1.0}


@pytest.mark.parametrize("answer", [np.zeros(3), np.zeros((1, 1)), 0.5])
def test_a_scorer_of_ones_own_must_give_one_number_a_text(answer):
    class Wrong:
        def score(self, query, candidates):
            return answer

    with pytest.raises(InputError, match=r"Wrong.score: expected shape \(1,\)"):
        build("q", documents=["x"], config={"strategy": Wrong()})


def test_numbers_of_a_scorer_of_ones_own_are_clamped():
    class Wild:
        def score(self, query, candidates):
            assert [packet.content for packet in candidates.packets] == list(candidates.texts)
            return [float("nan"), float("inf"), -4, 0.25]

    built = build("q", documents=["a", "b", "c", "d"], config={"strategy": Wild()})
    assert {item.packet.content: item.relevance for item in built.kept} == {"a": 0, "b": 1, "c": 0, "d": 0.25}


def test_a_blank_query_scores_nothing():
    built = build("", documents=["x", {"content": "y", "score": 0.7}])
    assert {item.packet.content: item.relevance for item in built.kept} == {"x": 0.0, "y": 0.7}


def test_what_needs_no_score_loads_no_encoder():
    class Never:
        name = fingerprint = "never"
        dim, max_tokens = 8, 512

        def encode_queries(self, texts):
            raise AssertionError("the encoder was asked")

        encode_documents = count_tokens = encode_queries

    builder = ContextBuilder(config=plain(strategy="cosine"), encoder=Never())
    history = [{"role": "user", "content": "x"}]
    builder.assemble(
        "q", documents=[{"content": "y", "score": 1}], conversation_history=history, system_instructions="s", now=NOW
    )
    builder.assemble("", documents=["unscored"], now=NOW)


def test_messages_outside_the_window_are_not_encoded():
    encoder = HashEncoder()
    history = [{"role": "user", "content": f"message {n}"} for n in range(100)]
    config = plain(strategy="cosine_raw", history_relevance=None)
    built = ContextBuilder(config=config, encoder=encoder).assemble("q", conversation_history=history, now=NOW)
    assert len(built.kept) == 5 and len(encoder.documents) == 5
    assert [item.reason for item in built.dropped] == ["window"] * 95


# -- windows ----------------------------------------------------------------------------------------------------------


ENDS = [" ", "-and-some-more ", "字 ", "\n", " a b c "]


@settings(STEADY, max_examples=200)
@given(st.lists(st.sampled_from(ENDS), min_size=1, max_size=20), st.integers(0, 300), st.integers(64, 512))
def test_windows_cover_the_text_and_respect_the_limit(ends, repeats, limit):
    text = "".join(f"{n}{end}" for n, end in enumerate(ends * repeats))  # no word twice
    encoder = HashEncoder()
    encoder.max_tokens = limit
    made = windows(text, encoder)
    count = encoder.count_tokens([text])[0]
    assert (made == [text]) == (count <= limit or len(text) < limit)
    if made == [text]:
        return
    assert 2 <= len(made) <= MOST_WINDOWS
    assert text.startswith(made[0]) and text.endswith(made[-1])
    if count <= 6 * limit:  # then there are enough windows to leave no hole
        reached = 0
        for part in made:
            start = text.index(part)
            assert start <= reached, "a hole between two windows"
            reached = start + len(part)
        assert reached == len(text)
        assert max(encoder.count_tokens(made)) <= limit


def test_a_match_anywhere_in_a_long_text_is_found(encoder):
    filler = "The committee met on Tuesday and talked about the budget of the town library for the coming year. "
    dense = "市议会在星期二开会讨论了图书馆明年的预算问题，会议一直持续到晚上。"
    needle = (
        "To shrink a pandas data frame, convert text columns to the category type. Numbers can be kept as int8 or "
        "float32 instead of 64 bits. A data frame uses less memory when it is read in chunks. Call "
        "memory_usage(deep=True) to see what each column of the frame takes. Sparse columns save memory when most "
        "values are missing. "
    )
    query = "How can a pandas data frame use less memory?"
    long = filler * 70
    texts = {"none": long}
    for share in (0.0, 0.37, 0.71, 0.99):
        at = int(len(long) * share) // len(filler) * len(filler)
        texts[f"at {share}"] = long[:at] + needle + long[at:]
    mixed = filler * 45 + dense * 40
    texts["none, mixed"] = mixed
    texts["in the dense part"] = filler * 45 + dense * 13 + needle + dense * 27
    documents = [{"content": text, "id": name} for name, text in texts.items()]
    built = ContextBuilder(config=plain(strategy="cosine", max_tokens=100_000), encoder=encoder).assemble(
        query, documents=documents, now=NOW
    )
    got = {item.packet.id: item for item in built.kept}
    base = max(got["none"].relevance, got["none, mixed"].relevance)
    for name, item in got.items():
        assert "windows" in item.detail and "scored by the best of" in item.detail
        assert name.startswith("none") or item.relevance > base + 0.03, (name, item.relevance, base)


def test_a_text_near_the_limit_is_scored_whole_and_over_it_by_windows(encoder):
    sentence = "The committee met and talked about money. "
    for count in range(40, 75):
        text = (sentence * count).strip()
        made = windows(text, encoder)
        assert (len(made) == 1) == (encoder.count_tokens([text])[0] <= encoder.max_tokens)
        if len(made) > 1:
            assert max(encoder.count_tokens(made)) <= encoder.max_tokens


def test_a_relevance_that_the_source_computes_itself_counts_for_its_strategy(encoder):
    """A memory is scored among its neighbours and its own memories: by the memory, not again from its vector."""
    from ctx_vector import ContextBuilder, ContextConfig
    from ctx_vector.packets import Candidate, ContextPacket

    class Own:
        name = "own"

        def load(self, request):
            return [Candidate(ContextPacket("Bread is baked."), "own", known={"cosine": 0.25})]

    for strategy, relevance in (("cosine", 0.25), ("jaccard", 0.0)):
        builder = ContextBuilder(sources=[Own()], encoder=encoder, config=ContextConfig(strategy=strategy))
        built = builder.assemble("quantum physics")
        assert [item.relevance for item in (*built.kept, *built.dropped)] == [relevance]
