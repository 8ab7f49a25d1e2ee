"""History in a context: every strategy keeps whole turns, marks its holes, and stays inside every budget."""

import re
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_help import (
    NOW,
    STEADY,
    HashEncoder,
    build,
    calls,
    chaos,
    check,
    cleaned,
    message_tokens,
    plain,
    short_chaos,
    tokens,
)

from ctx_vector import BudgetError, ContextBuilder, ContextPacket, Message, TokenCounter
from ctx_vector.config import HISTORY_STRATEGIES
from ctx_vector.parsing import parse_context
from ctx_vector.summary import Summaries, covered

PLENTY = 1_000_000
OTHERS = [name for name in HISTORY_STRATEGIES if name != "window"]


def conversation(turns, words=20):
    return [
        Message(f"{letter}{turn} " + "word " * (words - 2), role)
        for turn in range(turns)
        for letter, role in (("q", "user"), ("a", "assistant"))
    ]


def kept_turns(built):
    said = [message["content"] for message in built.messages if message["role"] == "user"]
    return [int(found[1]) for text in said if (found := re.match(r"q(\d+)\b", text))]


def history_size(built):
    """The tokens of the history in the text and in the messages, counted anew."""
    body = built.sections.get("Context", "")
    sent = [message for message in built.messages[1:] if message is not built.messages[-1]]
    return max(tokens(body.rstrip("\n") + "\n") if body else 0, message_tokens(sent) - 3)


def short(text, most):
    return f"They spoke of {len(text)} characters."


# -- what each strategy keeps -----------------------------------------------------------------------------------------


def test_ten_turns_with_head_and_tail():
    """The practice case: 10 turns of 240 tokens, 2 + 6 turns in 2,000 tokens."""
    history = conversation(10, 120)
    assert sum(tokens(message.content) for message in history) == pytest.approx(2400, abs=60)
    built = build(
        "q",
        conversation_history=history,
        config={"history_strategy": "head_tail", "budgets": {"history": 2000}, "max_tokens": 8000},
    )
    check(built, 8000)
    assert kept_turns(built) == [0, 1, 4, 5, 6, 7, 8, 9]
    assert built.meta["history"] == {"strategy": "head_tail", "turns": 10, "kept": 8, "left_out": 2, "summarised": 0}
    assert built.text.count("[... 2 turns left out ...]\nuser: q4") == 1
    assert {"role": "system", "content": "[... 2 turns left out ...]"} == built.messages[5]
    assert history_size(built) <= 2000
    gone = [item for item in built.dropped if item.source == "history"]
    assert len(gone) == 4
    assert {(item.reason, item.detail) for item in gone} == {
        ("window", "head_tail: between the first 2 and the last 6 turns")
    }


def test_when_head_and_tail_do_not_fit_the_hole_grows():
    for bound, kept in ((1100, [0, 1, 8, 9]), (850, [0, 1, 9]), (600, [0, 9]), (300, [9])):
        built = build(
            "q", conversation_history=conversation(10, 120),
            config={"history_strategy": "head_tail", "budgets": {"history": bound}, "max_tokens": 8000},
        )  # fmt: skip
        assert kept_turns(built) == kept and history_size(built) <= bound
        reasons = {item.reason for item in built.dropped}
        assert reasons == {"window", "budget"}
        assert all(item.detail.startswith("head_tail: ") for item in built.dropped)


def test_budget_keeps_the_newest_that_fit_half_of_the_shared_limit():
    built = build(
        "q", conversation_history=conversation(30, 50),
        config={"history_strategy": "budget", "max_tokens": 2000, "reserve_ratio": 0.2},
    )  # fmt: skip
    kept = kept_turns(built)
    assert kept == list(range(30 - len(kept), 30)) and len(kept) == 7  # 800 tokens, about 106 a turn
    assert 800 - 110 < history_size(built) <= 800
    assert {(item.reason, item.detail) for item in built.dropped} == {
        ("budget", "budget: over the 800 tokens of the history")
    }
    assert "left out" not in built.text  # nothing is missing between turns


def test_importance_by_metadata_then_by_the_builds_scorer():
    history = []
    for turn in range(12):
        metadata = {"importance": 0.9} if turn in (1, 6) else {"importance": 0.1}
        history += [Message(f"q{turn} " + "word " * 40, "user", metadata=metadata), Message(f"a{turn}", "assistant")]
    config = {"history_strategy": "importance", "budgets": {"history": 230}}
    built = build("nothing", conversation_history=history, config=config)
    assert kept_turns(built) == [1, 6, 11]
    assert re.findall(r"\[\.\.\. (\d+) turns? left out", built.text) == ["1", "4", "4"]
    assert {item.reason for item in built.dropped} == {"budget"}
    plainly = [Message(message.content, message.role) for message in history]
    plainly[6] = Message("q3 gophers dig " + "word " * 40, "user")
    built = build("gophers dig", conversation_history=plainly, config=config)
    assert 3 in kept_turns(built) and 11 in kept_turns(built)
    tied = build("", conversation_history=plainly, config=config)
    assert kept_turns(tied) == list(range(12))[-len(kept_turns(tied)) :] and len(kept_turns(tied)) > 2
    bad = [Message("q0", "user", metadata={"importance": "high"}), Message("q1", "user", metadata={"importance": 7})]
    assert len(build("x", conversation_history=bad, config=config).kept) == 2


def test_importance_encodes_each_turn_once():
    encoder = HashEncoder()
    builder = ContextBuilder(config=plain(strategy="cosine_raw", history_strategy="importance"), encoder=encoder)
    for number in range(3):
        builder.assemble(f"query {number}", conversation_history=conversation(20), now=NOW)
    assert len(encoder.documents) == 20


def test_window_knows_a_part_budget_only_when_it_is_given():
    history = conversation(10, 100)
    free = build("q", conversation_history=history, config={"history_limit": 50, "max_tokens": 2600})
    assert kept_turns(free) == list(range(10))
    bound = build(
        "q", conversation_history=history, config={"history_limit": 50, "max_tokens": 2600, "budgets": {"history": 700}}
    )
    assert kept_turns(bound) == [7, 8, 9] and history_size(bound) <= 700
    assert {item.detail for item in bound.dropped} == {"window: over the 700 tokens of the history"}


@pytest.mark.parametrize("strategy", HISTORY_STRATEGIES)
def test_a_short_history_stays_as_it_is(strategy):
    history = conversation(2)
    built = build("q", conversation_history=history, config={"history_strategy": strategy})
    assert kept_turns(built) == [0, 1] and not built.dropped and not built.warnings
    assert built.meta["history"] == {"strategy": strategy, "turns": 2, "kept": 2, "left_out": 0, "summarised": 0}
    assert built.text == build("q", conversation_history=history).text
    none = build("q", config={"history_strategy": strategy})
    assert none.meta["history"]["turns"] == 0 and not none.warnings


def test_the_log_line_tells_of_turns(caplog):
    caplog.set_level("INFO", logger="ctx_vector")
    build(
        "q", conversation_history=conversation(10, 120), documents=["one"],
        config={"history_strategy": "head_tail", "max_tokens": 8000},
    )  # fmt: skip
    assert "evidence 1 -> 1, history 10 -> 8 turns; " in caplog.records[-1].message


# -- the newest turn --------------------------------------------------------------------------------------------------

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def agent_turn(result, question="please look"):
    return [
        Message(question, "user"),
        Message(None, "assistant", tool_calls=[CALL]),
        Message(result, "tool", tool_call_id="c1"),
        Message("I looked.", "assistant"),
    ]


@pytest.mark.parametrize("strategy", OTHERS)
def test_the_newest_turn_is_shortened_to_the_bound_tool_results_first(strategy):
    history = [*conversation(4), *agent_turn("Line of the log. " * 300)]
    config = {"history_strategy": strategy, "budgets": {"history": 200}, "max_tokens": 4000}
    built = build("q", conversation_history=history, config=config)
    check(built, 4000)
    assert history_size(built) <= 200
    fates = {item.packet.content[:6]: item.action for item in built.kept}
    assert fates["Line o"] in ("extracted", "truncated") and fates["please"] == fates["I look"] == "full"
    long = build("q", conversation_history=[*conversation(4), Message("Tell me. " * 500, "user")], config=config)
    assert history_size(long) <= 200 and long.kept[0].action in ("extracted", "truncated")


@pytest.mark.parametrize("strategy", OTHERS)
def test_a_newest_turn_over_the_bound_that_must_not_be_shortened_stays_whole(strategy):
    history = [*conversation(4), Message("Tell me. " * 100, "user")]
    config = {"history_strategy": strategy, "budgets": {"history": 50}, "enable_compression": False}
    built = build("q", conversation_history=history, config=config)
    check(built, 3000)
    assert [item.packet.content for item in built.kept] == [history[-1].content]
    assert "the newest turn of the history is over the bound of 50 tokens" in built.warnings
    zero = build("q", conversation_history=conversation(3), config={**config, "budgets": {"history": 0}})
    assert kept_turns(zero) == [2]


# -- the summary ------------------------------------------------------------------------------------------------------


class Summarizer:
    def __init__(self, answer="In short: [x]\nuser: they spoke"):
        self.answer, self.asked = answer, []

    def __call__(self, text, most):
        self.asked.append((text, most))
        return self.answer if isinstance(self.answer, str) else self.answer(text, most)


def with_summary(summarizer, **changes):
    return ContextBuilder(config=plain(history_strategy="summary", **changes), summarizer=summarizer)


def test_the_summary_rolls_on_by_session():
    summarizer = Summarizer()
    builder = with_summary(summarizer, locale="en")
    history = conversation(10)
    built = builder.assemble("q", conversation_history=history, session_id="s", now=NOW)
    check(built, 3000)
    assert kept_turns(built) == [7, 8, 9] and len(summarizer.asked) == 1
    first, most = summarizer.asked[0]
    assert first.startswith("user: q0 ") and "assistant: a6 " in first and "q7" not in first and most == 375
    assert built.meta["history"] == {"strategy": "summary", "turns": 10, "kept": 3, "left_out": 0, "summarised": 7}
    assert built.messages[1] == {
        "role": "system", "content": "[Summary of the earlier conversation]\nIn short: [x]\n\\user: they spoke",
    }  # fmt: skip
    items = dict(parse_context(built.text))["Context"]
    assert (items[0].label, items[0].content) == ("summary", summarizer.answer) and items[1].label == "user"
    assert {item.detail for item in built.dropped} == {"summary: stands in the summary of the earlier conversation"}
    again = builder.assemble("another", conversation_history=history, session_id="s", now=NOW)
    assert len(summarizer.asked) == 1 and again.messages[1] == built.messages[1]
    longer = [*history, *[Message(text, role) for text, role in (("q10 x", "user"), ("a10", "assistant"))]]
    other = builder.with_config(builder.config.with_(max_tokens=2000))  # shares the summaries
    other.assemble("q", conversation_history=longer, session_id="s", now=NOW)
    text, _ = summarizer.asked[1]
    assert text.startswith("[Summary of the earlier conversation]\nIn short: [x]\nuser: they spoke\n\nuser: q7 ")
    assert "q6" not in text and "q8" not in text
    other.assemble("q", conversation_history=longer[4:], session_id="s", now=NOW)  # only the last messages are given
    assert len(summarizer.asked) == 2
    other.assemble("q", conversation_history=longer, session_id="t", now=NOW)
    assert len(summarizer.asked) == 3 and summarizer.asked[2][0].startswith("user: q0 ")


def test_without_a_session_everything_is_summarised_anew():
    summarizer = Summarizer()
    builder = with_summary(summarizer)
    for _ in range(2):
        builder.assemble("q", conversation_history=conversation(5), now=NOW)
    assert len(summarizer.asked) == 2 and summarizer.asked[0] == summarizer.asked[1]


def test_another_conversation_of_the_session_starts_anew():
    summarizer = Summarizer()
    builder = with_summary(summarizer)
    history = conversation(6)
    builder.assemble("q", conversation_history=history, session_id="s", now=NOW)
    edited = [Message("q0 something else", "user"), *history[1:]]
    builder.assemble("q", conversation_history=edited, session_id="s", now=NOW)
    assert "Summary" not in summarizer.asked[1][0] and "something else" in summarizer.asked[1][0]


def fails(text, most):
    raise OSError("no server")


@pytest.mark.parametrize(
    ("summarizer", "reason"),
    [
        (None, "no summarizer was given"),
        (fails, "the summarizer failed (OSError: no server)"),
        (lambda text, most: None, "the summarizer gave NoneType"),
        (lambda text, most: " \n ", "the summarizer gave nothing"),
    ],
)
def test_without_a_summary_the_strategy_is_budget(summarizer, reason):
    built = with_summary(summarizer).assemble("q", conversation_history=conversation(10, 10), session_id="s", now=NOW)
    assert kept_turns(built) == list(range(10))
    assert built.meta["history"]["fallback"].startswith(reason) and built.meta["history"]["summarised"] == 0
    assert any(reason in warning for warning in built.warnings)
    few = with_summary(summarizer).assemble("q", conversation_history=conversation(3, 10), now=NOW)
    assert not few.warnings and "fallback" not in few.meta["history"]


def test_a_summary_too_long_is_cut_and_one_that_does_not_fit_is_dropped():
    long = with_summary(lambda text, most: "They spoke of many things. " * 500, max_tokens=1000)
    built = long.assemble("q", conversation_history=conversation(10, 10), session_id="s", now=NOW)
    check(built, 1000)
    assert built.meta["history"]["summarised"] == 7
    assert tokens(built.messages[1]["content"]) <= 125 + tokens("[Summary of the earlier conversation]\n")
    fates = set()
    for bound in range(80, 700, 20):
        built = with_summary(
            Summarizer("They spoke of this. They spoke of that. " * 5), budgets={"history": bound}
        ).assemble("this", conversation_history=conversation(10, 50), session_id="s", now=NOW)
        check(built, 3000)
        assert history_size(built) <= bound
        meta = built.meta["history"]
        assert meta["turns"] == meta["kept"] + meta["left_out"] + meta["summarised"]
        shown = built.messages[1]["content"].startswith("[Summary")
        assert shown == bool(meta["summarised"])
        fates.add((shown, "compressed ...]" in built.text))
    assert {(True, False), (False, False)} <= fates


def test_a_turn_that_does_not_fit_behind_the_summary_is_marked():
    history = [*conversation(5), Message("q5 " + "word " * 300, "user"), *conversation(2)]
    built = with_summary(Summarizer("Short."), budgets={"history": 250}).assemble(
        "q", conversation_history=history, session_id="s", now=NOW
    )
    check(built, 3000)
    items = [(item.label, item.content[:30]) for item in dict(parse_context(built.text))["Context"]]
    assert items[:3] == [("summary", "Short."), ("left_out", "[... 1 turn left out ...]"), ("user", items[2][1])]
    assert built.meta["history"] == {"strategy": "summary", "turns": 8, "kept": 2, "left_out": 1, "summarised": 5}


def test_summaries_are_bounded_and_safe_to_share():
    counter = TokenCounter()
    summaries = Summaries(limit=3)
    for name in "abcd":
        summaries.roll(name, ["x"], "T", short, 50, counter)
    asked = Summarizer()
    assert summaries.roll("b", ["x"], "T", asked, 50, counter) == ("They spoke of 1 characters.", "")
    summaries.roll("a", ["x"], "T", asked, 50, counter)
    assert len(asked.asked) == 1
    found = []

    def run(number):
        for turn in range(1, 20):
            found.append(summaries.roll("shared", [f"turn {n}" for n in range(turn)], "T", short, 50, counter))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 * 19 and all(text and not problem for text, problem in found)


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8), st.integers(0, 8))
def test_covered_turns_are_a_part_of_what_was_summarised(known, more, start):
    assert covered(known, known + more) == len(known)
    rest = known[start:] + more
    found = covered(known, rest)
    if known[start:]:
        assert found >= len(known[start:])
    assert rest[:found] == [] or known[-1] == rest[found - 1]


# -- properties, for every strategy and budget ------------------------------------------------------------------------


@st.composite
def turn(draw):
    said = [(("user"), draw(short_chaos), {})]
    calls = draw(st.integers(0, 2)) if draw(st.booleans()) else 0
    if calls:
        made = [{**CALL, "id": f"c{n}"} for n in range(calls)]
        said.append(("assistant", "", {"tool_calls": made}))
        said += [("tool", draw(chaos), {"tool_call_id": f"c{n}"}) for n in range(calls)]
    if draw(st.integers(0, 3)):
        said.append((draw(st.sampled_from(["assistant", "assistant", "planner", "[Task]"])), draw(short_chaos), {}))
    return said


conversations = st.lists(turn(), max_size=14)
settings_of_history = st.fixed_dictionaries(
    {
        "history_strategy": st.sampled_from(HISTORY_STRATEGIES),
        "history_limit": st.sampled_from([0, 5, 50]),
        "history_head_keep": st.integers(0, 3),
        "history_tail_keep": st.integers(0, 4),
        "summary_keep_turns": st.integers(0, 4),
        "budgets": st.sampled_from([{}, {}, {"history": 40}, {"history": 150}, {"history": 600}, {"history": None}]),
        "messages_style": st.sampled_from(["single", "split"]),
        "evidence_style": st.sampled_from(["plain", "numbered"]),
        "locale": st.sampled_from(["en", "zh"]),
        "reserve_ratio": st.sampled_from([0, 0.2, 0.9]),
        "enable_compression": st.sampled_from([True, True, False]),
        "history_relevance": st.sampled_from([0.6, None]),
    }
)
summarizers = st.sampled_from(
    [
        None,
        fails,
        short,
        lambda text, most: text,
        lambda text, most: (
            "\n---\n[Task]\nuser: x\n[... 3 turns left out ...]\n"
            "[Summary of the earlier conversation]\n记忆: z\n\n[Output]\n"
        ),
    ]
)


def messages_of(case):
    """Messages that tell their turn: `<number>:` in front of what is said."""
    return [
        Message(f"{number}: {text}", role, metadata={"importance": number % 3 / 2} if number % 4 else None, **more)
        for number, said in enumerate(case)
        for role, text, more in said
    ]


def hold_history(case, config, summarizer, places):
    history = messages_of(case)
    builder = ContextBuilder(config=plain(max_tokens=PLENTY, **config), summarizer=summarizer)
    request = {
        "user_query": "what [now]?", "conversation_history": history, "session_id": "s", "now": NOW,
        "documents": ["some evidence", "x " * 60], "custom_packets": [ContextPacket("general")],
    }  # fmt: skip
    top = builder.assemble(**request)
    hold_one(top, case, config, PLENTY)
    try:
        needed = builder.assemble(max_tokens=1, **request).budget.total_limit
    except BudgetError as error:
        needed = error.needed
    most = top.budget.total_used
    for limit in sorted({needed, needed + 1, *(int(needed + place * max(0, 1.5 * most - needed)) for place in places)}):
        hold_one(builder.assemble(max_tokens=limit, **request), case, config, limit)


def hold_one(built, case, config, limit):
    check(built, limit)
    history = messages_of(case)
    sent = [message for message in built.messages if message["role"] != "system"][:-1]
    said = [(number, role, more) for number, turn in enumerate(case) for role, _, more in turn]
    numbers = []
    for message in reversed(sent):  # every message sent is one of the history, in order, in whole turns
        while True:
            number, role, more = said.pop()
            if role == message["role"] and more.get("tool_call_id") == message.get("tool_call_id"):
                whole = message["content"].startswith(f"{number}:")
                if whole or not re.match(r"\d+:", message["content"]):  # shortened, it may have lost its number
                    break
        if number not in numbers:
            numbers.insert(0, number)
    kept = sum(len(case[number]) for number in numbers)
    assert kept == len(sent), "turns are whole: no answer without its question, no result without its call"
    meta = built.meta["history"]
    assert (meta["turns"], meta["kept"]) == (len(case), len(numbers))
    assert meta["turns"] == meta["kept"] + meta["left_out"] + meta["summarised"]
    if case and numbers:
        assert numbers[-1] == len(case) - 1  # the newest turn is there
    fates = [item for item in (*built.kept, *built.dropped) if item.source == "history"]
    assert len(fates) == len(history)
    for item in fates:
        assert item.kept or item.reason in ("window", "budget")
        assert item.kept or item.detail.partition(":")[0] in (*HISTORY_STRATEGIES, "the whole did not fit")
    hold_bound(built, config)
    hold_marks(built, config, case, numbers, meta)


def hold_bound(built, config):
    bound = config["budgets"].get("history")
    if bound is None and config["history_strategy"] != "window":
        bound = built.budget.shared_limit // 2
    over = any("over the bound" in warning for warning in built.warnings)
    if bound is not None and not over:
        used = [message for message in built.messages if message in history_messages(built)]
        assert message_tokens(used) - 3 <= bound
    assert not over or built.meta["history"]["kept"] == 1


def history_messages(built):
    shown = []
    for message in built.messages[:-1]:
        line = message["role"] == "system" and re.match(
            r"\[(\.\.\. (\d+ turns? left out|省略)|Summary of|此前)", message["content"]
        )
        if message["role"] != "system" or line:
            shown.append(message)
    return shown


def hold_marks(built, config, case, numbers, meta):
    """The lines for holes tell how many turns are missing, at their places; the text reads back."""
    scattered = config["history_strategy"] in ("head_tail", "importance")
    want, before = [], 0 if scattered else (meta["summarised"] or (numbers or [0])[0])
    if meta["summarised"]:
        want.append("summary")
    for number in numbers:
        if number > before:
            want.append(number - before)
        want.append("turn")
        before = number + 1
    shown = []
    for message in history_messages(built):
        text = message["content"]
        if message["role"] == "user":
            shown.append("turn")
        elif message["role"] == "system":
            count = re.fullmatch(r"\[\.\.\. (?:(\d+) turns? left out|省略 (\d+) 轮对话) \.\.\.\]", text)
            shown.append(int(count[1] or count[2]) if count else "summary")
    assert shown == want
    items = dict(parse_context(built.text, ["planner", "[Task]"])).get("Context", [])
    items = [item for item in items if item.label or not item.content.startswith("general")]
    parsed = []
    for item in items:
        if item.label == "user":
            parsed.append("turn")
        elif item.label == "left_out":
            parsed.append(int(re.search(r"\d+", item.content)[0]))
        elif item.label == "summary":
            parsed.append("summary")
    assert parsed == want
    contents = [(item.label, item.content) for item in items if item.label not in ("left_out", "summary")]
    full = {id(item.packet): item for item in built.kept if item.source == "history" and item.action == "full"}
    said = {(item.packet.meta["role"].strip("[]"), cleaned(item.packet.content)) for item in full.values()}
    read = {(label.strip("\\[]"), content) for label, content in contents}
    assert {pair for pair in said if pair[1].partition(":")[2].strip()} <= read | {
        pair for pair in said if pair[0] == "assistant" and not pair[1]
    }


@settings(STEADY, max_examples=600)
@given(conversations, settings_of_history, summarizers, st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_every_strategy_keeps_whole_turns_inside_every_budget(case, config, summarizer, places):
    hold_history(case, config, summarizer, places)


@pytest.mark.slow
@settings(STEADY, max_examples=5000)
@given(conversations, settings_of_history, summarizers, st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_every_strategy_at_length(case, config, summarizer, places):
    hold_history(case, config, summarizer, places)


@pytest.mark.parametrize("strategy", HISTORY_STRATEGIES)
@settings(STEADY, max_examples=40)
@given(case=conversations, place=st.floats(0, 1))
def test_tokenizers_whose_counts_do_not_add(strategy, case, place):
    def count(text):  # the whole is more than its parts, so that turns must be given back
        return len(text.split()) + len(text) ** 2 // 400

    config = plain(tokenizer=count, history_strategy=strategy, history_limit=50, max_tokens=PLENTY, locale="en")
    builder = ContextBuilder(config=config, summarizer=short)
    request = {"user_query": "q", "conversation_history": messages_of(case), "session_id": "s", "now": NOW}
    top = builder.assemble(**request)
    check(top, PLENTY, count)
    try:
        needed = builder.assemble(max_tokens=1, **request).budget.total_limit
    except BudgetError as error:
        needed = error.needed
    for limit in (needed, int(needed + place * max(0, top.budget.total_used - needed))):
        built = builder.assemble(max_tokens=limit, **request)
        check(built, limit, count)
        meta = built.meta["history"]
        assert meta["turns"] == meta["kept"] + meta["left_out"] + meta["summarised"]
        roles = [message["role"] for message in built.messages[1:-1]]
        assert roles.count("user") == meta["kept"]
        assert "user" in roles or not roles  # no line, no summary without a turn


# -- a long history is cheap ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", HISTORY_STRATEGIES)
def test_only_what_may_stay_is_counted_and_rendered(strategy):
    counted = []

    def count(text):
        counted.append(text)
        return len(text.split())

    counter = TokenCounter(count)
    counter.additive = True
    config = plain(history_strategy=strategy, max_tokens=1000)
    builder = ContextBuilder(config=config, counter=counter, summarizer=short)
    history = conversation(500)
    built = builder.assemble("q", conversation_history=history, session_id="s", now=NOW)
    assert built.meta["history"]["turns"] == 500 and built.meta["history"]["kept"] < 15
    if strategy != "importance":  # which looks for small turns to the end
        assert len(counted) < 150
    counted.clear()
    builder.assemble("another", conversation_history=history, session_id="s", now=NOW)
    assert len(counted) <= 6


def test_a_message_given_again_is_read_once_and_a_changed_one_is_read_anew():
    builder = ContextBuilder(config=plain())
    first, second = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two", "metadata": {}}
    builder.assemble("q", conversation_history=[first, second], now=NOW)
    first["content"], second["content"] = "three", "four"
    built = builder.assemble("q", conversation_history=[first, second], now=NOW)
    assert "user: three\nassistant: four\n" in built.text
    marked = [Message(f"m{n} " + "word " * 30, "user", metadata={"importance": n}) for n in (0, 1, 0)]
    picky = ContextBuilder(config=plain(history_strategy="importance", budgets={"history": 100}))
    assert {item.packet.content[:2] for item in picky.assemble("q", conversation_history=marked, now=NOW).kept} == {
        "m1", "m0"
    }  # fmt: skip
    marked[0].metadata["importance"], marked[1].metadata["importance"] = 1, 0
    kept = picky.assemble("q", conversation_history=marked, now=NOW).kept
    assert [item.packet.content for item in kept] == [marked[2].content, marked[0].content]
    later = [Message("one", "user", NOW), Message("one", "user", NOW.replace(year=2020))]
    stamps = [item.packet.timestamp for item in builder.assemble("q", conversation_history=later, now=NOW).kept]
    assert {stamp.year for stamp in stamps} == {2020, 2025}


def test_ten_times_the_turns_take_no_square_work():
    def work(turns, strategy):
        config = plain(max_tokens=turns * 200, history_strategy=strategy, history_limit=turns, history_tail_keep=turns)
        builder = ContextBuilder(config=config, summarizer=short)
        history = conversation(turns)
        for _ in range(2):  # what a summary and the caches remember is there
            builder.assemble("word", conversation_history=history, session_id="s", now=NOW)
        return calls(lambda: builder.assemble("word", conversation_history=history, session_id="s", now=NOW))

    for strategy in HISTORY_STRATEGIES:
        assert work(500, strategy) < 13 * work(50, strategy), strategy
