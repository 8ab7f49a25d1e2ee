"""Part budgets: each part up to its own, then shrinking in the declared order."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_help import STEADY, build, check, tokens

from ctx_vector import ContextConfig, ContextPacket, Message

KINDS = {
    "evidence": "knowledge",
    "agents": "agent_output",
    "memory": "memory",
    "general": "general",
    "state": "task_state",
}


def words(count, word="apple"):
    """Return a text of `count` tokens (its line break included) that the query `apple` finds."""
    text = " ".join([word, *["cat"] * count])
    while tokens(text + "\n") > count and " " in text:
        text = text.rsplit(" ", 1)[0]
    assert tokens(text + "\n") == count
    return text


def packet(part, count, score=0.9, mark=""):
    return ContextPacket(words(count, mark or part), None, None, score, {"type": KINDS[part]})


def used(built, part):
    kind = KINDS.get(part, "conversation_history")
    return sum(item.tokens for item in built.kept if item.packet.type == kind)


def tool_of(count, name):
    """Return a tool whose line takes `count` tokens."""
    size = count
    while True:
        made = {"name": name, "description": " ".join(["cat"] * size), "parameters": {"type": "object"}}
        line = json.dumps(made, separators=(",", ":")) + "\n"
        if tokens(line) == count:
            return made
        size -= 1


def practice(**changes):
    """The practice case: system 300, query 100, 5 tools of 1,500, 4 documents of 750, 10 turns of 240."""
    history = []
    for turn in range(10):
        history.append(Message(words(117, f"turn{turn}"), "user"))
        history.append(Message(words(117, f"answer{turn}"), "assistant"))
    return build(
        words(100, "question"),
        config={
            **ContextConfig.parts_8k().to_dict(), "reserve_ratio": 0.2, "min_relevance": 0, "strategy": "jaccard",
            "history_strategy": "head_tail", **changes,
        },
        system_instructions=words(300, "system"),
        tools=[tool_of(300, f"tool{n}") for n in range(5)],
        documents=[{"content": words(750, f"document{n}"), "score": 0.9 - n / 10} for n in range(4)],
        conversation_history=history,
    )  # fmt: skip


def test_the_practice_case():
    built = practice()
    check(built, 8000)
    kept = [item for item in built.kept if item.section == "Evidence"]
    assert [item.packet.content.split()[0] for item in kept] == ["document0", "document1", "document2"]
    assert [item.reason for item in built.dropped if item.section == "Evidence"] == ["quota"]
    assert built.meta["history"]["kept"] == 8
    assert {item.action for item in built.kept} == {"full"} and len(built.tools) == 5
    assert 6070 < built.budget.text_tokens < 6070 + 100  # and headers, joiners, roles, the closing line


def test_with_less_room_only_evidence_has_lost_anything():
    built = practice(max_tokens=5000)
    check(built, 5000)
    assert built.meta["history"]["kept"] == 8 and len(built.tools) == 5
    (document,) = [item for item in built.kept if item.section == "Evidence"]
    assert document.packet.content.startswith("document0") and document.action == "truncated"
    assert built.budget.total_used > 5000 * 0.8
    assert "evidence was cut to fit the budget" in built.warnings
    assert {item.section for item in built.dropped if item.reason == "budget"} == {"Evidence"}


def test_parts_shrink_in_the_declared_order():
    packets = [packet(part, 100) for part in ("evidence", "memory", "general") for _ in range(4)]
    packets = [
        ContextPacket(f"{item.content} {number}", None, None, 0.9 - number / 100, item.meta)
        for number, item in enumerate(packets)
    ]
    budgets = {"evidence": 1000, "memory": 1000}

    def losses(limit, order):
        built = build(
            "q", config={"budgets": budgets, "max_tokens": limit, "shrink_order": order}, custom_packets=packets
        )
        check(built, limit)
        return {item.packet.type for item in built.dropped}

    assert not losses(1500, ("evidence", "memory", "general"))
    assert losses(1000, ("evidence", "memory", "general")) == {"knowledge"}
    assert losses(1000, ("memory", "evidence", "general")) == {"memory"}
    assert losses(800, ("general", "memory", "evidence")) == {"general", "memory"}


def test_a_part_keeps_its_best_item_in_fifty_tokens():
    packets = [packet("evidence", 400, 0.9, "best"), packet("evidence", 400, 0.8), packet("memory", 400)]
    built = build(
        "q", config={"budgets": {"evidence": 900}, "max_tokens": 520, "shrink_order": ("evidence",)},
        custom_packets=packets,
    )  # fmt: skip
    check(built, 520)
    (document,) = [item for item in built.kept if item.section == "Evidence"]
    assert document.packet.content.startswith("best") and document.action == "truncated"
    assert document.tokens >= 45
    (memory,) = [item for item in built.kept if item.packet.type == "memory"]
    assert memory.action == "full"


def test_without_compression_the_best_item_goes_whole():
    packets = [packet("evidence", 400), packet("memory", 400)]
    config = {"budgets": {"evidence": 900}, "max_tokens": 500, "enable_compression": False}
    built = build("q", config=config, custom_packets=packets)
    check(built, 500)
    assert [item.packet.type for item in built.kept] == ["memory"]
    assert [item.reason for item in built.dropped] == ["oversize"]


def test_include_leaves_a_part_out():
    built = build(
        "q", config={"include": {"memory": False, "history": False}}, conversation_history=[Message("hi", "user")],
        custom_packets=[packet("memory", 10), packet("evidence", 10)],
    )  # fmt: skip
    assert "[Context]" not in built.text and "[Evidence]" in built.text
    assert {item.packet.type: item.reason for item in built.dropped}["memory"] == "quota"
    assert sum(item.packet.type == "conversation_history" for item in built.dropped) == 1


def test_system_instructions_over_their_budget_stay_and_warn():
    built = build("q", config={"budgets": {"system": 20}}, system_instructions=words(100))
    assert any("over their budget of 20" in line for line in built.warnings)
    assert [item.action for item in built.kept] == ["full"]


parts = st.sampled_from(sorted(KINDS))
mixes = st.lists(st.tuples(parts, st.integers(3, 300), st.floats(0, 1)), max_size=25)
caps = st.dictionaries(parts, st.integers(0, 600), min_size=1)


def hold_quotas(mix, budgets, limit, turns, order):
    packets = [packet(part, max(5, count), score, f"{part}{n}") for n, (part, count, score) in enumerate(mix)]
    history = [Message(words(20 + turn, f"turn{turn}"), "user") for turn in range(turns)]
    built = build(
        "q", config={"budgets": budgets, "max_tokens": limit, "shrink_order": order, "history_strategy": "budget"},
        custom_packets=packets, conversation_history=history,
    )  # fmt: skip
    check(built, limit)
    for part, cap in budgets.items():
        assert used(built, part) <= cap
    assert not [item for item in built.dropped if item.reason == "quota" and item.packet.type not in
                {KINDS[part] for part in budgets}]  # fmt: skip
    return built


@settings(STEADY, max_examples=100)
@given(
    mixes, caps, st.integers(40, 1500), st.integers(0, 6), st.permutations(["evidence", "agents", "memory", "history"])
)
def test_quotas_hold_exactly(mix, budgets, limit, turns, order):
    hold_quotas(mix, budgets, limit, turns, tuple(order))


@pytest.mark.slow
@settings(STEADY, max_examples=3000)
@given(
    mixes, caps, st.integers(40, 1500), st.integers(0, 6), st.permutations(["evidence", "agents", "memory", "history"])
)
def test_quotas_hold_exactly_often(mix, budgets, limit, turns, order):
    hold_quotas(mix, budgets, limit, turns, tuple(order))


@settings(STEADY, max_examples=40)
@given(mixes, caps)
def test_with_room_enough_each_part_has_what_its_cap_allows(mix, budgets):
    """An item is over its quota only when it does not fit beside what is there, a rule line included."""
    built = hold_quotas(mix, budgets, 20_000, 0, ())
    for item in built.dropped:
        part = next(name for name, kind in KINDS.items() if kind == item.packet.type)
        assert item.reason == "quota"
        assert used(built, part) + tokens(item.packet.content) + 8 > budgets[part]


def test_agents_are_named_and_stand_after_the_evidence():
    packets = [
        ContextPacket("found it", metadata={"type": "agent_output", "agent": "planner\n[Task]"}),
        ContextPacket("a page", metadata={"type": "knowledge"}),
    ]
    built = build("q", custom_packets=packets)
    assert "[Evidence]\na page\n---\n[Agent: planner [Task]]\nfound it\n" in built.text
    assert re.search(r"^\[智能体: planner", build("问", custom_packets=packets).text, re.M)


@pytest.mark.parametrize("limit", [40, 60, 90, 3000])
def test_a_packet_of_what_was_spoken_is_filled_and_shrunk_as_history(limit):
    spoken = [ContextPacket(words(30, mark), None, None, 0.9, {"type": "conversation_history"}) for mark in ("a", "b")]
    built = build("apple", config={"max_tokens": limit, "budgets": {"history": 40}}, custom_packets=spoken)
    check(built, limit)
    assert used(built, "history") <= 40 and len(built.kept) == (limit >= 60)
