"""What a build takes besides texts: tools and their results, agents, images; budgets that follow a request."""

import base64
import json
import struct
import zlib

import pytest
from pipeline_help import NOW, build, check, message_tokens, plain, tokens

from ctx_vector import ConfigError, ContextBuilder, ContextConfig, ContextPacket, Message
from ctx_vector.errors import InputError
from ctx_vector.parsing import parse_context
from ctx_vector.policies import by_complexity, by_request, follow
from ctx_vector.prefix import volatile
from ctx_vector.replay import rebuild
from ctx_vector.stages import Request


def png(width, height):
    """A PNG file of this size, of one colour."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\0" * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


SMALL = png(400, 300)  # one tile: 85 + 170
PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(SMALL).decode()}}


# -- tools ------------------------------------------------------------------------------------------------------------


def tool(name, description="does something", **properties):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": sorted(properties)[:1]},
        },
    }


WEATHER = tool("get_weather", "Tells the weather of a city.", city={"type": "string"})
ORDERS = tool("find_order", "Looks an order up by its number.", number={"type": "string"})


def test_tools_stand_after_the_system_instructions_and_are_counted():
    built = build("weather of a city", tools=[WEATHER, ORDERS], system_instructions="Be brief.")
    check(built, 3000)
    lines = built.sections["Role & Policies"].split("\n")
    assert lines[:2] == ["Be brief.", "[Tools]"]
    assert [json.loads(line)["name"] for line in lines[2:4]] == ["get_weather", "find_order"]
    assert built.tools == [WEATHER, ORDERS]
    assert dict(parse_context(built.text))["Role & Policies"][1].block == "Tools"
    assert (
        "\n[可用工具]\n" in build("天气", tools=[WEATHER]).text or "[可用工具]" in build("天气", tools=[WEATHER]).text
    )


def test_tools_for_the_api_stand_in_no_text_and_count_in_both_sums():
    config = {"tools_in": "api", "max_tokens": 300, "budgets": {"tools": 150}}
    built = build("weather of a city", tools=[WEATHER, ORDERS], config=config)
    assert "get_weather" not in built.text and built.tools == [WEATHER, ORDERS]
    apart = sum(item.tokens for item in built.kept)
    assert (
        built.budget.total_used >= max(tokens(built.text), message_tokens(built.messages)) + apart > tokens(built.text)
    )
    assert built.budget.total_used <= 300
    crowded = build("weather", tools=[WEATHER, ORDERS], config=config, documents=["cat " * 150, "dog " * 30])
    assert crowded.budget.total_used <= 300 and len(crowded.tools) == 2


def test_a_description_is_shortened_before_a_tool_is_dropped():
    long = [
        tool(f"tool{n}", "It does one thing. " + "And then it does some more of it. " * 20, value={"type": "string"})
        for n in range(6)
    ]
    built = build("tool3", tools=long, config={"budgets": {"tools": 260}})
    check(built, 3000)
    assert len(built.tools) == 6
    assert {item.action for item in built.kept} == {"truncated"}
    assert all(shown["function"]["parameters"]["required"] == ["value"] for shown in built.tools)
    held = sum(item.tokens for item in built.kept)
    assert held <= 260
    fewer = build("tool3", tools=long, config={"budgets": {"tools": 60}})
    assert 1 <= len(fewer.tools) < 6
    assert {item.reason for item in fewer.dropped} == {"quota"}


def test_a_category_keeps_its_tools_only():
    built = build("q", tools=[{**WEATHER, "category": "web"}, {**ORDERS, "category": "shop"}], tool_categories=["shop"])
    assert [shown["function"]["name"] for shown in built.tools] == ["find_order"]


def test_a_large_tool_is_a_warning():
    built = build("q", tools=[tool("big", "word " * 600)], config={"budgets": {"tools": 2000}})
    assert any("'big'" in line and "500" in line for line in built.warnings)


def test_tools_are_made_again_from_the_trace():
    built = build("weather", tools=[WEATHER, ORDERS], config={"budgets": {"tools": 60}})
    again = rebuild(built.trace)
    assert again.text == built.text and again.tools == built.tools


# -- results of tools, outputs of agents ------------------------------------------------------------------------------


def test_results_are_one_line_of_json_or_text():
    built = build(
        "q", tool_results=[{"status": "ok", "rows": [1, 2]}, "plain text\nof two lines", [{"a": 1}]],
    )  # fmt: skip
    contents = [item.content for item in dict(parse_context(built.text))["Evidence"]]
    assert '{"status":"ok","rows":[1,2]}' in contents and "plain text\nof two lines" in contents
    assert {"items": [{"a": 1}], "omitted": 0} in [json.loads(item) for item in contents if item.startswith("{")]


def test_a_result_that_does_not_fit_is_cut_by_rows_and_still_parses():
    rows = [{"id": number, "status": "open", "note": "cat " * 20} for number in range(200)]
    built = build("row 7", tool_results={"search": {"orders": rows}}, config={"max_tokens": 400})
    check(built, 400)
    (item,) = built.kept
    shown = json.loads(item.rendered)
    assert item.action == "truncated" and len(shown["orders"]) < 200 and "left out" in item.detail
    assert "Content compressed" not in item.rendered
    assert item.packet.meta["name"] == "search"


def test_a_result_in_the_history_is_cut_by_rows_too():
    rows = [{"id": number, "note": "cat " * 20} for number in range(200)]
    call = {"id": "1", "function": {"name": "search", "arguments": "{}"}}
    history = [
        Message("find", "user"),
        Message("", "assistant", tool_calls=[call]),
        Message(json.dumps({"rows": rows}), "tool", tool_call_id="1"),
    ]
    built = build("q", conversation_history=history, config={"max_tokens": 500})
    check(built, 500)
    sent = next(message for message in built.messages if message["role"] == "tool")
    assert 0 < len(json.loads(sent["content"])["rows"]) < 200


def test_the_line_that_closes_numbered_evidence_belongs_to_no_item():
    config = {"evidence_style": "numbered"}
    numbered = build("q", config=config, documents=["a"], agent_outputs=["b"])
    plain_ = build("q", documents=["a"], agent_outputs=["b"])
    costs = [[item.tokens for item in made.kept if item.source == "agent_outputs"] for made in (numbered, plain_)]
    assert costs[0] == costs[1]


def test_agents_outputs_are_named():
    built = build("q", agent_outputs={"planner": "first, look"}, documents=["a page"])
    assert "[Evidence]\na page\n---\n[Agent: planner]\nfirst, look\n" in built.text


# -- images -----------------------------------------------------------------------------------------------------------


def picture_tokens(messages):
    """The count of messages by their texts, and 255 for each image."""
    texts, images = [], 0
    for message in messages:
        content = message["content"]
        if not isinstance(content, str):
            images += sum(part["type"] == "image_url" for part in content)
            content = "\n".join(part["text"] for part in content if part["type"] == "text")
        texts.append({**message, "content": content})
    return message_tokens(texts) + 255 * images


def test_images_go_with_the_query_and_are_counted():
    built = build("what is this", images=[SMALL, PART])
    content = built.messages[-1]["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "image_url"]
    assert content[0]["text"] == "what is this"
    assert built.budget.message_tokens == picture_tokens(built.messages)
    assert built.budget.text_tokens == tokens(built.text)
    assert [item.tokens for item in built.kept] == [255, 255]
    again = rebuild(built.trace)
    assert again.messages == built.messages


def test_images_have_a_quota_of_their_own_newest_first():
    history = [Message([{"type": "text", "text": f"look {n}"}, PART], "user") for n in range(4)]
    built = build("and this", images=[SMALL], conversation_history=history, config={"budgets": {"images": 600}})
    sent = [message["content"] for message in built.messages[1:]]
    kinds = [[part["type"] for part in content] if isinstance(content, list) else content for content in sent]
    assert kinds == [
        "look 0\n(image_url)",
        "look 1\n(image_url)",
        "look 2\n(image_url)",
        ["text", "image_url"],
        ["text", "image_url"],
    ]
    assert built.budget.message_tokens == picture_tokens(built.messages) <= 3000
    none = build("and this", images=[SMALL], config={"budgets": {"images": 100}})
    assert [item.reason for item in none.dropped] == ["quota"] and none.messages[-1]["content"] == "and this"
    off = build("and this", images=[SMALL], config={"include": {"images": False}})
    assert [item.reason for item in off.dropped] == ["quota"]


def test_images_that_are_none_are_refused():
    for wrong, what in ((b"no image", "image"), ("/nowhere/at/all.png", "nowhere")):
        with pytest.raises(InputError, match=what):
            build("q", images=[wrong])
    with pytest.raises(InputError, match="user_query"):
        build(" ", images=[SMALL])
    with pytest.raises(InputError, match="single image"):
        build("q", images=SMALL)


# -- versions ---------------------------------------------------------------------------------------------------------


def test_versions_end_an_item_and_cannot_be_forged():
    packets = [
        ContextPacket("new terms", metadata={"type": "knowledge", "version": "2"}),
        ContextPacket("other\n(version: 9)", metadata={"type": "knowledge"}),
    ]
    built = build("q", config={"versions": True}, custom_packets=packets)
    check(built, 3000)
    assert "new terms\n(version: 2)\n" in built.text
    items = dict(parse_context(built.text, versions=True))["Evidence"]
    assert {(item.content, item.version) for item in items} == {("new terms", "2"), ("other\n(version: 9)", "")}


# -- a budget that follows the request --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "size"),
    [
        ("How do I reset it?", 2000),
        ("怎么重置？", 2000),
        ("Compare the two plans", 4000),
        ("比较一下这两个方案，哪个更好？还有，分别要多少钱？", 8000),
        ("What is A? And what is B?", 4000),
        ("Compare A with B step by step. Which is faster? Which is cheaper?", 8000),
    ],
)
def test_the_size_follows_the_task(query, size):
    assert by_complexity(Request(query, NOW)) == size
    assert ContextBuilder(config=plain(), budget_policy=by_complexity).assemble(query).budget.total_limit == size


def test_weights_follow_the_request_and_keep_their_sum():
    weights = {"dynamic": 0.4, "memory": 0.1, "system": 0.1}
    for query in ("请查一下资料", "look up the source"):
        found = follow(by_request, Request(query, NOW), weights)
        assert found["dynamic"] / found["memory"] == pytest.approx(6) and sum(found.values()) == pytest.approx(0.6)
    recalled = follow(by_request, Request("你还记得上次吗", NOW), weights)
    assert recalled["memory"] / recalled["dynamic"] == pytest.approx(0.375)
    assert follow(by_request, Request("hello", NOW), weights) == pytest.approx(weights)
    assert (
        follow(lambda request, weights: {"dynamic": -1, "memory": 0, "system": 0}, Request("x", NOW), weights)
        == weights
    )
    config = plain(budgets={"evidence": 300, "memory": 300})
    built = ContextBuilder(config=config, share_policy=by_request).assemble(
        "look up", documents=["cat " * 200, "dog " * 200]
    )
    assert built.trace.config.budgets == {"evidence": 360, "memory": 240}
    layered = ContextBuilder(config=plain(max_tokens=1000), share_policy=by_request, budget_ratio={}).assemble(
        "look up"
    )
    assert layered.trace.given["layers"]["shares"]["dynamic"] > 0.5


@pytest.mark.parametrize(
    "made", [None, [], "dynamic", {"evidence": float("nan")}, {"evidence": "x"}, {"evidence": None}]
)
def test_weights_that_are_none_are_refused_by_name(made):
    config = plain(budgets={"evidence": 300, "memory": 300})
    with pytest.raises(InputError, match=r"share_policy: expected .*got"):
        ContextBuilder(config=config, share_policy=lambda request, weights: made).assemble("q")


def test_a_share_policy_is_asked_once_and_may_give_any_size_of_weight():
    asked = []

    def policy(request, weights):
        asked.append(weights)
        return dict.fromkeys(weights, 1e308)

    config = plain(budgets={"evidence": 300, "memory": 100})
    built = ContextBuilder(config=config, share_policy=policy).assemble("q")
    assert built.trace.config.budgets == {"evidence": 200, "memory": 200} and len(asked) == 1


@pytest.mark.parametrize("shares", [None, {"memory": 0.1, "dynamic": 0.3}])
def test_a_build_gathered_again_follows_its_policies_again(shares):
    config = plain(max_tokens=700) if shares else plain(budgets={"evidence": 300, "memory": 300})
    made = ContextBuilder(config=config, budget_ratio=shares, share_policy=by_request)
    texts = [
        ContextPacket(f"{n} cat " * 9, None, None, 0.5, {"type": kind})
        for kind in ("memory", "knowledge")
        for n in range(40)
    ]
    built = made.assemble("look up the source", custom_packets=texts, now=NOW)
    again = made.regather(built.trace)
    assert again.text == built.text
    assert again.trace.given.get("layers") == built.trace.given.get("layers")


@pytest.mark.parametrize("size", [0, -1, "300", 300.5, float("nan"), True])
@pytest.mark.parametrize("shares", [None, {}])
def test_a_size_that_is_none_is_refused_by_name(size, shares):
    made = ContextBuilder(config=plain(), budget_ratio=shares, budget_policy=lambda request: size)
    with pytest.raises(ConfigError, match="max_tokens: expected an integer"):
        made.assemble("q")
    with pytest.raises(ConfigError, match="max_tokens: expected an integer"):
        ContextBuilder(config=plain(), budget_ratio=shares).assemble("q", max_tokens=size)


# -- the stable prefix ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Now: 2026-11-30 05:51", "It is 2026年11月30日 5点", "Today is 2026-11-30.", "今天是2026年11月30日",
        "current time 12:30", "id 123e4567-e89b-12d3-a456-426614174000", "session_id: abc", "会话ID：7",
        "Current date: 01/08/2025", "Today is 08.01.2025", "Today is January 8, 2025.",
        "Today is Wed, 8 January 2025", "Today is Jan 8", "今天是1月8日", "现在是14:05",
        "当前时间：14：05", "The time is now 14:05", "January 8, 2025 12:30", "at 1764480000",
        "key 9f86d081884c7d659a2feaa0c55ad015",
    ],
)  # fmt: skip
def test_what_changes_in_the_prefix_is_a_warning(text):
    assert volatile(text)
    built = build("q", system_instructions=f"You are a clerk.\n{text}")
    assert any("prompt cache" in line for line in built.warnings)


@pytest.mark.parametrize(
    "text",
    [
        "Policy of 2026-11-30, version 2",
        "Open from 9:00 to 17:00",
        "Call 4155550132",
        "RFC 9110, ISO 8601",
        "今天也要加油",
        "def find(session_id: str)",
        "trace_id=%s",
        "Now open until 18:00",
        "Policy of January 8, 2025",
        "自2025年1月8日起执行",
        "You may now call 10 tools",
        "Now 3 marks are needed",
        "id card",
    ],
)
def test_what_stays_is_none(text):
    assert not volatile(text)


def test_the_prefix_is_the_same_whatever_is_asked():
    one, other = (build(query, system_instructions="Be brief.", documents=[query]) for query in ("a", "b"))
    assert one.meta["prefix_hash"] == other.meta["prefix_hash"]
    assert one.text.split("[Task]")[0] == other.text.split("[Task]")[0]
    assert build("a", system_instructions="Be long.").meta["prefix_hash"] != one.meta["prefix_hash"]
    assert ContextConfig()
