"""Select: greedy filling, one fate for every candidate, and history in whole turns."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_help import (
    LIMIT_REASONS,
    NOW,
    STEADY,
    build,
    calls,
    chaos,
    check,
    message_tokens,
    plain,
    short_chaos,
    tokens,
)

from ctx_vector import BudgetError, ContextBuilder, ContextPacket, Message, TokenCounter
from ctx_vector.packets import DROP_REASONS


def packet(text, score, **metadata):
    return ContextPacket(text, None, None, score, {"type": "knowledge", **metadata})


def texts(built):
    return [item.packet.content for item in built.kept]


SMALL, LARGE = "word " * 20, "word " * 300


# -- greedy -----------------------------------------------------------------------------------------------------------


def test_skip_goes_on_to_smaller_packets_and_stop_does_not():
    packets = [packet("first " + SMALL, 0.9), packet("second " + LARGE, 0.8), packet("third " + SMALL, 0.7)]
    config = {"max_tokens": 150, "enable_compression": False}
    skip = build("q", custom_packets=packets, config={**config, "fill": "skip"})
    assert [text.split()[0] for text in texts(skip)] == ["first", "third"]
    assert [item.reason for item in skip.dropped] == ["oversize"]
    stop = build("q", custom_packets=packets, config={**config, "fill": "stop"})
    assert [text.split()[0] for text in texts(stop)] == ["first"]
    assert [(item.packet.content.split()[0], item.reason) for item in stop.dropped] == [
        ("second", "oversize"),
        ("third", "budget"),
    ]


def test_selection_is_greedy_by_score_over_all_sections():
    """An independent greedy over exact counts of the whole text chooses the same."""
    sizes = [30, 5, 80, 12, 60, 7, 25, 44]
    packets = [
        ContextPacket(
            f"item {n} " + "filler " * size, None, None, 0.9 - n / 100, {"type": kind} if kind else {"section": "N"}
        )
        for n, (size, kind) in enumerate(
            zip(sizes, itertools.cycle(["knowledge", "memory", None, "general"]), strict=False)
        )
    ]
    for limit in range(60, 420, 11):
        built = build("q", custom_packets=packets, config={"max_tokens": limit, "enable_compression": False})
        chosen = []
        for one in packets:
            trial = build("q", custom_packets=[*chosen, one], config={"max_tokens": 100_000})
            if max(tokens(trial.text), message_tokens(trial.messages)) <= limit:
                chosen.append(one)
        assert texts(built) == [one.content for one in chosen]


@settings(STEADY, max_examples=25)
@given(st.integers(0, 10_000), st.integers(90, 400))
def test_what_is_seen_to_be_too_long_is_what_does_not_fit(seed, limit):
    """Many packets, few of which fit, chosen the same with a counter for which each is put in and counted."""
    draw = random.Random(seed)
    words = [
        "a",
        "word",
        "Budget,",
        "x" * 40,
        "7",
        "没有空格的中文",
        "\u3000",
        "\x1f",
        "\x1c",
        "\n",
        "  ",
        "\t",
        "\xa0",
    ]
    sizes = [draw.choice([2, 9, 40, 90, 150, 200]) for _ in range(150)]
    packets = [packet("".join(draw.choices(words, k=size)), 0.9 - n / 1000, id=n) for n, size in enumerate(sizes)]
    packets += [
        packet(" ".join(draw.choices(words[:5], k=size)), 0.5 - n / 1000, id=-n) for n, size in enumerate(sizes)
    ]
    found = []
    for counter in (TokenCounter(), TokenCounter(TokenCounter().count)):
        config = {"max_tokens": limit, "enable_compression": False, "tokenizer": counter}
        built = build("q", custom_packets=packets, config=config)
        found.append([(item.packet.id, item.reason) for item in (*built.kept, *built.dropped)])
    assert found[0] == found[1]


@settings(STEADY, max_examples=120)
@given(
    st.lists(st.tuples(chaos, st.sampled_from([0.0, 0.05, 0.3, 0.5, 0.9])), max_size=12),
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), short_chaos), max_size=6),
    st.integers(40, 600),
    st.booleans(),
)
def test_every_candidate_has_exactly_one_fate(packets, history, limit, compress):
    custom = [ContextPacket(text, None, None, score, {"number": n}) for n, (text, score) in enumerate(packets)]
    documents = [{"content": text, "metadata": {"number": 100 + n}} for n, (text, _) in enumerate(packets)]
    said = [Message(text, role) for role, text in history]
    built = build(
        "hello [Task]", custom_packets=custom, documents=documents, conversation_history=said,
        config={"max_tokens": limit, "min_relevance": 0.1, "enable_compression": compress},
    )  # fmt: skip
    check(built, limit)
    fates = [item.packet.meta["number"] for item in (*built.kept, *built.dropped) if item.source != "history"]
    assert sorted(fates) == [*range(len(custom)), *range(100, 100 + len(documents))]
    messages = [item.packet.content for item in (*built.kept, *built.dropped) if item.source == "history"]
    assert sorted(messages) == sorted(message.text for message in said)
    for item in built.dropped:
        assert item.reason in DROP_REASONS and item.detail
        assert 0 <= item.relevance <= 1 and 0 <= item.recency <= 1 and 0 <= item.score <= 1
    for item in built.kept:
        assert (item.action == "full") == (item.reason == "")
        assert item.action in ("full", "extracted", "truncated") and item.rendered in built.text
    assert built.stats["selected"] == len(built.kept)
    assert sum(built.stats["dropped"].values()) == len(built.dropped)
    assert built.stats["compressed"] == any(item.action != "full" for item in built.kept)
    assert compress or not built.stats["compressed"]


# -- compression inside the selection ---------------------------------------------------------------------------------


def test_only_the_best_packet_that_does_not_fit_is_shortened_and_only_once():
    packets = [packet(f"item{n}. " + "Some filler sentence here. " * 200, 0.9 - n / 100) for n in range(4)]
    built = build("q", custom_packets=packets, config={"max_tokens": 400})
    check(built, 400)
    assert [(item.packet.content[:5], item.action) for item in built.kept] == [("item0", "truncated")]
    assert [item.reason for item in built.dropped] == ["budget"] * 3
    assert built.budget.sources["custom"].truncated == 1
    assert "evidence was cut to fit the budget" in built.warnings


def fixed_size():
    return tokens(build("q").text), message_tokens(build("q").messages)


@pytest.mark.parametrize(("kind", "least"), [("knowledge", 100), ("general", 50), ("memory", 50)])
def test_the_least_room_for_a_shortened_item(kind, least):
    """Evidence is shortened into more than 100 tokens, everything else into more than 50."""
    one = ContextPacket("Words of a story about nothing. " * 300, None, None, 0.9, {"type": kind})
    fixed = max(fixed_size())
    shortened = {}
    for limit in range(fixed, fixed + 160):
        built = build("q", custom_packets=[one], config={"max_tokens": limit})
        check(built, limit)
        shortened[limit - fixed] = bool(built.kept)
    assert shortened == {room: room > least for room in shortened}


def test_without_compression_nothing_is_shortened_and_the_best_is_oversize():
    packets = [packet("x " + LARGE, 0.9), packet("y " + LARGE, 0.8), packet("z " + SMALL, 0.7)]
    history = [{"role": "user", "content": "w " * 1000}]
    built = build(
        "q",
        custom_packets=packets,
        conversation_history=history,
        config={"max_tokens": 200, "enable_compression": False},
    )
    check(built, 200)
    assert [text[0] for text in texts(built)] == ["z"]
    assert [(item.packet.content[0], item.reason) for item in built.dropped] == [
        ("x", "oversize"),
        ("y", "budget"),
        ("w", "budget"),
    ]
    assert "Content compressed" not in built.text


# -- history ----------------------------------------------------------------------------------------------------------


def conversation(*turns):
    return [
        Message(f"{role}{n}", {"u": "user", "a": "assistant", "t": "tool"}[role])
        for n, turn in enumerate(turns)
        for role in turn
    ]


def kept_history(built):
    return [item["content"] for item in built.messages if item["role"] not in ("system",)][:-1]


@pytest.mark.parametrize(
    ("turns", "limit", "kept"),
    [
        (["ua", "ua", "ua"], 5, ["u1", "a1", "u2", "a2"]),  # whole turns: 6 messages would be over 5
        (["ua", "ua", "u"], 5, ["u0", "a0", "u1", "a1", "u2"]),
        (["ua", "uaaaaaaa"], 5, ["u1", *["a1"] * 7]),  # the newest one always
        (["ua", "u"], 0, ["u1"]),
        (["a", "ua"], 5, ["a0", "u1", "a1"]),  # a greeting is a turn of its own
        (["u", "u", "u", "u", "u", "u", "u"], 5, ["u2", "u3", "u4", "u5", "u6"]),
        ([], 5, []),
    ],
)  # fmt: skip
def test_the_window_keeps_the_newest_whole_turns(turns, limit, kept):
    history = conversation(*turns)
    built = build("q", conversation_history=history, config={"history_limit": limit})
    assert kept_history(built) == kept
    assert {item.reason for item in built.dropped} <= {"window"}
    assert len(built.kept) + len(built.dropped) == len(history)


def test_a_history_that_ends_with_the_query_does_not_repeat_it():
    history = [*conversation("ua"), Message("What now? ", "user")]
    built = build("What now?", conversation_history=history)
    assert kept_history(built) == ["u0", "a0"]
    assert built.text.count("What now?") == 1
    assert [(item.reason, item.detail, item.source) for item in built.dropped] == [
        ("duplicate", "repeats the query", "history")
    ]
    check(built, 3000)
    only = build("What now?", conversation_history=history[-1:])
    assert not only.kept and only.stats["gathered"] == 1
    for last in (Message("What now?", "assistant"), Message("What else?", "user")):
        assert len(build("What now?", conversation_history=[last]).kept) == 1
    assert len(build("", conversation_history=[Message("", "user")]).kept) == 0


def test_history_is_set_aside_before_better_scored_evidence():
    history = [Message("short question", "user"), Message("short answer", "assistant")]
    built = build(
        "q",
        conversation_history=history,
        custom_packets=[packet("word " * 60, 1.0)],
        config={"max_tokens": fixed_size()[1] + 65, "enable_compression": False},
    )
    assert [item.source for item in built.kept] == ["history", "history"]


def test_older_turns_go_first_and_leave_no_hole():
    history = [Message(f"{n} " + "word " * (100 if n == 1 else 5), "user") for n in range(5)]
    seen = set()
    for limit in range(20, 240):
        try:
            built = build("q", conversation_history=history, config={"max_tokens": limit, "enable_compression": False})
        except BudgetError:
            continue
        check(built, limit)
        numbers = [int(text.split()[0]) for text in kept_history(built)]
        assert numbers == list(range(5 - len(numbers), 5))
        seen.add(len(numbers))
    assert seen == {0, 1, 2, 3, 4, 5}


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q": "pandas"}'}}


def agent_turn(result):
    return [
        Message("please look", "user"),
        Message(None, "assistant", tool_calls=[CALL]),
        Message(result, "tool", tool_call_id="c1"),
        Message("I looked.", "assistant"),
    ]


def test_tool_calls_are_shown_and_counted():
    built = build("q", conversation_history=agent_turn("found it"))
    check(built, 3000)
    assert 'assistant: look({"q": "pandas"})\ntool: found it\n' in built.text
    assert built.messages[2]["tool_calls"] == [CALL] and built.messages[3]["tool_call_id"] == "c1"


def test_tool_results_over_half_of_the_shared_limit_shrink_first():
    result = "Line of the log about pandas. " * 200
    built = build(
        "pandas memory",
        conversation_history=agent_turn(result),
        custom_packets=[packet("evidence " * 100, 0.9)],
        config={"max_tokens": 600},
    )
    check(built, 600)
    fates = {item.packet.content[:8]: item for item in built.kept}
    assert fates["Line of "].action in ("extracted", "truncated") and fates["Line of "].reason == "budget"
    assert [fates[key].action for key in ("please l", "I looked", "evidence")] == ["full"] * 3
    history = [item for item in built.kept if item.source == "history"]
    assert sum(item.tokens for item in history) <= 300
    assert "[... Content compressed ...]" in built.messages[3]["content"]


def test_nothing_shrinks_when_everything_fits():
    built = build("q", conversation_history=agent_turn("Line of the log. " * 300), config={"max_tokens": 3000})
    assert tokens("Line of the log. " * 300) > 1200 and all(item.action == "full" for item in built.kept)


def test_a_newest_turn_that_cannot_be_shrunk_is_dropped_with_a_reason():
    calls = [{**CALL, "function": {"name": "look", "arguments": "x " * 500}}]
    turn = [
        Message("please", "user"),
        Message(None, "assistant", tool_calls=calls),
        Message("result " * 60, "tool", tool_call_id="c1"),
    ]
    history = [*conversation("ua"), *turn]
    for limit in range(60, 500, 20):
        built = build("q", conversation_history=history, documents=["word " * 200], config={"max_tokens": limit})
        check(built, limit)
        assert not [item for item in built.kept if item.source == "history"]  # no older turn stands without it
        assert {item.reason for item in built.dropped if item.source == "history"} == {"budget"}
        assert any("newest turn" in warning for warning in built.warnings)


def test_a_long_user_message_alone_is_cut_to_fit():
    built = build(
        "q", conversation_history=[Message("Tell me about the fox. " * 200, "user")], config={"max_tokens": 200}
    )
    check(built, 200)
    (item,) = built.kept
    assert item.action in ("extracted", "truncated") and built.messages[1]["content"].startswith(
        "Tell me about the fox."
    )


@pytest.mark.parametrize(
    ("history", "kept"),
    [
        ([Message("r", "tool", tool_call_id="x"), Message("a", "assistant"), Message("u", "user")], ["a", "u"]),
        ([Message("u", "user"), Message("r", "tool", tool_call_id="x"), Message("a", "assistant")], ["u", "a"]),
        ([Message("r", "tool"), Message("u", "user")], ["u"]),
        ([Message("u", "user"), Message("r", "tool"), Message("a", "assistant")], ["u", "r", "a"]),
        ([Message("u", "user"), Message(None, "assistant", tool_calls=[CALL]), Message("v", "user"),
          Message("r", "tool", tool_call_id="c1")], ["u", "", "v"]),
    ],
)  # fmt: skip
def test_a_tool_result_without_its_call_never_appears(history, kept):
    built = build("q", conversation_history=history)
    check(built, 3000)
    assert kept_history(built) == kept
    assert {item.detail for item in built.dropped} <= {"a tool result without its call"}
    assert {item.reason for item in built.dropped} <= {"window"}


@settings(STEADY, max_examples=120)
@given(
    st.lists(st.tuples(short_chaos, st.lists(chaos, max_size=2), short_chaos), max_size=5),
    st.integers(30, 400),
    st.integers(0, 12),
    st.booleans(),
)
def test_no_answer_without_its_question_and_no_result_without_its_call(turns, limit, window, compress):
    history = []
    for number, (question, results, answer) in enumerate(turns):
        history.append(Message(f"Q{number} {question}", "user"))
        if results:
            calls = [{"id": f"{number}-{k}", "function": {"name": "f", "arguments": "{}"}} for k in range(len(results))]
            history.append(Message("", "assistant", tool_calls=calls))
            history += [Message(text, "tool", tool_call_id=f"{number}-{k}") for k, text in enumerate(results)]
        history.append(Message(f"A{number} {answer}", "assistant"))
    try:
        built = build(
            "q",
            conversation_history=history,
            config={"max_tokens": limit, "history_limit": window, "enable_compression": compress},
        )
    except BudgetError:
        return
    check(built, limit)
    open_calls, turn_open = set(), False
    for message in built.messages[1:-1]:
        if message["role"] == "user":
            assert not open_calls
            turn_open = True
        assert turn_open
        if message["role"] == "tool":
            open_calls.remove(message["tool_call_id"])
        open_calls |= {call["id"] for call in message.get("tool_calls", ())}
    assert not open_calls
    assert all(item.reason in LIMIT_REASONS | {"budget"} for item in built.dropped)


def test_history_relevance_is_a_number_or_scored():
    history = [Message("apples and pears", "user"), Message("nothing else", "assistant")]
    fixed = build("apples and pears", conversation_history=[*history])
    assert [item.relevance for item in fixed.kept] == [0.6, 0.6]
    scored = build("apples and pears", conversation_history=[*history], config={"history_relevance": None})
    assert sorted(item.relevance for item in scored.kept) == [0.0, 1.0]


def test_custom_history_packets_come_before_the_conversation_in_order_of_time():
    from datetime import timedelta

    custom = [
        ContextPacket(
            f"said {days}", NOW - timedelta(days=days), metadata={"type": "conversation_history", "role": role}
        )
        for days, role in ((1, "assistant"), (3, "user"), (2, None))
    ]
    built = build("q", custom_packets=custom, conversation_history=[Message("last", "user")])
    assert built.sections["Context"] == "user: said 3\nuser: said 2\nassistant: said 1\nuser: last\n\n"[:-1]


def test_ten_times_the_candidates_take_no_square_work():
    def work(count, **config):
        documents = [
            {"content": f"document {n} about topic {n % 97}", "score": (n % 1000) / 1000} for n in range(count)
        ]
        builder = ContextBuilder(config=plain(max_tokens=count * 10, **config))
        built = builder.assemble("topic", documents=documents, now=NOW)
        assert len(built.kept) + len(built.dropped) == count
        return calls(lambda: builder.assemble("topic", documents=documents, now=NOW))

    for config in ({}, {"evidence_style": "numbered"}, {"tokenizer": "estimate"}):
        assert work(1000, **config) < 13 * work(100, **config), config
