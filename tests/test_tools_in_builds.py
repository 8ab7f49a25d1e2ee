"""Tools, their results and images through whole builds: exact quotas, valid definitions, results that parse."""

import base64
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from PIL import Image
from pipeline_help import NOW, STEADY, build, chaos, short_chaos, tokens

from ctx_vector import ContextBuilder, ContextConfig, TokenCounter
from ctx_vector.audit import AuditLog
from ctx_vector.errors import BudgetError, InputError
from ctx_vector.images import image_part
from ctx_vector.json_results import json_line
from ctx_vector.parsing import parse_context
from ctx_vector.replay import rebuild
from ctx_vector.tool_reading import read_tools

FORTY = json.loads((Path(__file__).parent / "data" / "tools.json").read_text(encoding="utf-8"))
ESCAPED = (
    "\\x7f",
    "\\x85",
    "\\u2028",
    "\\u2029",
)  # as `repr` shows them; in a definition they take up to 3 tokens more
TITLES = {"[Tools]", "[可用工具]"}


def picture(width, height):
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "png")
    return file.getvalue()


SMALL = image_part(picture(40, 30))  # 85 + 170
WIDE = image_part(picture(2048, 600))  # 85 + 4 * 2 * 170
FAR = image_part("https://example.com/picture.png")  # never fetched: the worst case
FAR_AS_TEXT = {"type": "text", "text": "(image_url)"}  # 255 + 255 + 1445 is over half of 3000
PARTS = [SMALL, WIDE, FAR]
COSTS = {json.dumps(SMALL): 255, json.dumps(WIDE): 85 + 8 * 170, json.dumps(FAR): 1445}


def sent_tokens(messages):
    """The count of messages: 3 and the texts for each, 3 for the reply, and the cost of each image."""
    total = 3
    for message in messages:
        content, total = message["content"], total + 3
        if not isinstance(content, str):
            total += sum(COSTS[json.dumps(part)] for part in content if part["type"] == "image_url")
            content = "\n".join(part["text"] for part in content if part["type"] == "text")
        total += tokens(content) + tokens(message.get("tool_call_id", ""))
        if message.get("tool_calls"):
            total += tokens(json.dumps(message["tool_calls"], ensure_ascii=False, separators=(",", ":")))
    return total


def tool_lines(built):
    """The lines under the title of the tools, title included; none when there are none."""
    lines = built.sections.get("Role & Policies", "").split("\n")
    start = next((place for place, line in enumerate(lines) if line in TITLES), len(lines))
    return [line for line in lines[start:] if line]


def api_tokens(definitions):
    """What definitions cost beside the messages: JSON as chat templates write it, and 16 around them all."""
    wire = [json.dumps(item, ensure_ascii=False) + "\n" for item in definitions]
    return sum(map(tokens, wire)) + (16 if wire else 0)


def hold(built, limit):
    """Hold the budget by counts of its own, and give every candidate one fate."""
    apart = api_tokens(built.tools) if built.trace.config.tools_in == "api" else 0
    assert built.budget.total_used <= limit
    least = apart + max(tokens(built.text), sent_tokens(built.messages))
    assert least <= built.budget.total_used <= least + 3 * sum(map(str(built.tools).count, ESCAPED))
    assert sum(row["tokens"] for row in built.debug()) == tokens(built.text) == built.budget.text_tokens
    assert built.stats["gathered"] == len(built.kept) + len(built.dropped)
    again = rebuild(built.trace)
    assert (again.text, again.messages, again.tools) == (built.text, built.messages, built.tools)


# -- definitions ------------------------------------------------------------------------------------------------------

WORDS = st.one_of(
    chaos, st.sampled_from(["Looks up. And more of it. " * 30, "查询订单。返回状态。" * 20, "", "e.g. x"])
)
SCHEMAS = st.one_of(
    st.builds(lambda words: {"type": "string", "description": words, "examples": ["x"]}, WORDS),
    st.builds(lambda words: {"enum": [words, 1]}, short_chaos),
    st.just({"$ref": "#/$defs/Place"}),
    st.builds(lambda words: {"type": "object", "properties": {"a": {"description": words}}, "required": ["a"]}, WORDS),
)
PLACE = {"type": "object", "properties": {"lat": {"type": "number"}, "note": {"type": "string"}}, "required": ["lat"]}


@st.composite
def definitions(draw):
    made = []
    for number in range(draw(st.integers(0, 5))):
        properties = draw(st.dictionaries(short_chaos, SCHEMAS, max_size=4))
        required = [name for name in properties if draw(st.booleans())]
        parameters = {"type": "object", "properties": properties, "required": required, "$defs": {"Place": PLACE}}
        name = draw(st.sampled_from(["get_order", "查询", "a.b/c", "run-sql"])) + str(number)
        made.append({"name": name, "description": draw(WORDS), "parameters": parameters})
    return made


@STEADY
@given(
    tools=definitions(), query=short_chaos, results=st.lists(chaos, max_size=2), cap=st.none() | st.integers(0, 400),
    limit=st.integers(60, 1500), where=st.sampled_from(["text", "api"]), style=st.sampled_from(["single", "split"]),
    system=short_chaos, parts=st.booleans(),
)  # fmt: skip
def test_any_tools_in_any_budget(tools, query, results, cap, limit, where, style, system, parts):
    budgets = {"tools": cap, **({"evidence": 200, "general": 100} if parts else {})}
    config = {"tools_in": where, "messages_style": style, "budgets": budgets, "max_tokens": limit}
    try:
        built = build(query, config=config, tools=tools, documents=results, system_instructions=system)
    except BudgetError:
        return
    hold(built, limit)
    names = [shown["function"]["name"] for shown in built.tools]
    assert names == [tool["name"] for tool in tools if tool["name"] in names]  # in the order they were given
    for shown in built.tools:
        parameters, before = shown["function"]["parameters"], next(
            tool for tool in read_tools(tools) if tool.name == shown["function"]["name"]
        ).parameters  # fmt: skip
        Draft202012Validator.check_schema(parameters)
        assert parameters["required"] == before["required"]
        assert set(parameters["required"]) <= parameters["properties"].keys()
    most = min(cap if cap is not None else int(limit * 0.2) if not parts else limit, limit)
    lines = tool_lines(built)
    if where == "api":
        assert lines == [] and api_tokens(built.tools) <= max(most, 0)
        return
    assert [json.loads(line) for line in lines[1:]] == [shown["function"] for shown in built.tools]
    assert tokens("".join(line + "\n" for line in lines)) <= most
    items = [item for item in dict(parse_context(built.text)).get("Role & Policies", []) if f"[{item.block}]" in TITLES]
    assert len(items) == len(built.tools)


def test_the_words_of_tools_follow_the_language():
    for query, title in (("what now", "[Tools]"), ("现在怎么办", "[可用工具]")):
        built = build(query, tools=FORTY[:2])
        assert tool_lines(built)[0] == title and len(built.tools) == 2


def test_a_definition_stands_in_the_text_as_it_is_sent():
    given = {"name": "查询", "description": "one  two\u3000\u3000three\n\n  four", "parameters": {
        "type": "object", "properties": {"a": {"enum": ["x  y", " ", "\u2028", "[Task]", "---"]}}}}  # fmt: skip
    built = build("q", tools=[given])
    (line,) = tool_lines(built)[1:]
    assert json.loads(line) == given == built.tools[0]["function"]
    assert not built.warnings and "查询" in build("q", tools=[given], config={"tools_in": "api"}).warnings[0]


def test_forty_tools_by_the_real_encoder(encoder):
    builder = ContextBuilder(encoder=encoder, config=ContextConfig(max_tokens=8000, budgets={"tools": 1500}))
    for query, needed in (
        ("Where is my parcel? Order A-10023 has not arrived.", {"get_order", "track_shipment"}),
        ("Why is this SQL query so slow?", {"explain_query", "run_sql"}),
        ("帮我订一间周五下午的会议室", {"book_meeting_room"}),
        ("这个订单能退款吗", {"refund_order", "get_order"}),
    ):
        built = builder.assemble(query, tools=FORTY, now=NOW)
        hold(built, 8000)
        lines = tool_lines(built)
        assert 1300 < tokens("\n".join(lines) + "\n") <= 1500
        assert needed <= {json.loads(line)["name"] for line in lines[1:]}
        gone = [item for item in built.dropped if item.source == "tools"]
        assert len(gone) + len(built.tools) == 40 and {item.reason for item in gone} == {"quota"}


def test_all_tools_stay_where_there_is_room_however_far_from_the_question(encoder):
    builder = ContextBuilder(encoder=encoder, config=ContextConfig(max_tokens=40_000))
    built = builder.assemble("嗯", tools=FORTY, now=NOW)
    assert [shown for shown in built.tools] == [tool.schema for tool in read_tools(FORTY)]
    other = builder.assemble("Why is this query slow?", tools=FORTY, now=NOW)
    assert other.meta["prefix_hash"] == builder.assemble("Rename it", tools=FORTY, now=NOW).meta["prefix_hash"]


def test_definitions_that_are_wrong_are_named():
    with pytest.raises(InputError, match=r"tools\[1\]\.name.*tools\[2\]\.parameters"):
        build("q", tools=[{"name": "ok"}, {"name": "a b"}, {"name": "x", "parameters": {"type": "string"}}])


# -- results ----------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | chaos,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(short_chaos, inner, max_size=6),
    max_leaves=12,
)
ROWS = st.integers(0, 60).map(
    lambda count: [{"id": n, "note": "The parcel was late. 包裹迟到了。" * 3} for n in range(count)]
)


@STEADY
@given(
    results=st.lists(st.one_of(JSON, ROWS), max_size=3), limit=st.integers(60, 900), query=short_chaos,
    cap=st.none() | st.integers(50, 400), compress=st.booleans(),
)  # fmt: skip
def test_any_results_in_any_budget(results, limit, query, cap, compress):
    config = {"max_tokens": limit, "enable_compression": compress, "budgets": {"evidence": cap}}
    try:
        built = build(query, config=config, tool_results=results)
    except BudgetError:
        return
    hold(built, limit)
    if cap is not None:
        assert tokens(built.sections.get("Evidence", "")) <= cap
    items = [item.content for item in dict(parse_context(built.text)).get("Evidence", [])]
    kept = [item for item in built.kept if item.source == "tool_results"]
    assert len(items) == len(kept)
    lines = {json_line(result) for result in results if not isinstance(result, str)}
    for decision in kept:
        if decision.packet.content not in lines:  # a text, which may be no JSON
            continue
        assert decision.rendered in items
        shown = json.loads(decision.rendered)
        if decision.action == "full":
            assert decision.rendered == decision.packet.content
        else:
            assert compress and "left out" in decision.detail and decision.action == "truncated"
            assert shown != json.loads(decision.packet.content)


def test_a_huge_result_is_cut_without_being_counted_whole():
    rows = [{"id": n, "name": f"n{n}", "text": "lorem ipsum " * 8} for n in range(20_000)]
    built = build("n13337", tool_results={"search": {"rows": rows}}, config={"max_tokens": 700})
    (item,) = built.kept
    shown = json.loads(item.rendered)
    assert 13_337 in [row["id"] for row in shown["rows"]]
    assert shown["rows_omitted"] == 20_000 - len(shown["rows"])
    hold(built, 700)


# -- images -----------------------------------------------------------------------------------------------------------


@STEADY
@given(
    images=st.lists(st.sampled_from(PARTS), max_size=3), quota=st.none() | st.integers(0, 4000),
    limit=st.integers(60, 6000), texts=st.lists(st.tuples(chaos, st.sampled_from([None, *PARTS])), max_size=4),
    strategy=st.sampled_from(["window", "budget", "head_tail"]), style=st.sampled_from(["single", "split"]),
)  # fmt: skip
def test_any_images_in_any_budget(images, quota, limit, texts, strategy, style):
    history = []
    for text, image in texts:
        content = text if image is None else [{"type": "text", "text": text}, image]
        history += [{"role": "user", "content": content}, {"role": "assistant", "content": "I see."}]
    config = {"max_tokens": limit, "budgets": {"images": quota}, "history_strategy": strategy, "messages_style": style}
    try:
        built = build("what is this 这是什么", config=config, images=images, conversation_history=history)
    except BudgetError:
        return
    hold(built, limit)
    shown = [
        part for message in built.messages if not isinstance(message["content"], str)
        for part in message["content"] if part["type"] == "image_url"
    ]  # fmt: skip
    cost = sum(COSTS[json.dumps(part)] for part in shown)
    assert cost <= (limit // 2 if quota is None else quota)
    assert cost == sent_tokens(built.messages) - sent_tokens([without_images(message) for message in built.messages])
    mine = [item for item in (*built.kept, *built.dropped) if item.source == "images"]
    assert len(mine) == len(images) and all(item.reason in ("quota", "budget") for item in mine if not item.kept)
    if quota is None and limit == 6000 and not texts and images == [SMALL]:
        assert shown == [SMALL]


def without_images(message):
    if isinstance(message["content"], str):
        return message
    return {**message, "content": [part for part in message["content"] if part["type"] == "text"]}


def test_images_of_every_kind_with_a_question(tmp_path):
    path = tmp_path / "图.png"
    path.write_bytes(picture(40, 30))
    data = base64.b64encode(picture(40, 30)).decode()
    foreign = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    built = build("这是什么", images=[path, picture(40, 30), FAR, foreign])
    assert built.messages[-1]["content"] == [{"type": "text", "text": "这是什么"}, SMALL, SMALL, foreign]
    assert [item.tokens for item in built.kept] == [255] * 3
    assert [(item.packet.id, item.reason) for item in built.dropped] == [("image3", "quota")]  # 1445 of 1500 - 510


def test_images_that_are_objects_are_sent_as_mappings():
    given = SimpleNamespace(type="image_url", image_url=SimpleNamespace(**SMALL["image_url"]))
    history = [{"role": "user", "content": [{"type": "text", "text": "look"}, given, FAR]}]
    built = build("and this", images=[given], conversation_history=history)
    assert built.messages[1]["content"] == [{"type": "text", "text": "look"}, SMALL, FAR_AS_TEXT]
    assert built.messages[2]["content"] == [{"type": "text", "text": "and this"}, SMALL]
    json.dumps(built.to_dict())
    hold(built, 3000)


def test_an_image_of_the_query_that_is_left_out_is_a_warning():
    built = build("what is this", images=[FAR])  # of unknown size: 1445 tokens, under the half of 3000
    assert [item.reason for item in built.dropped] == [] and built.warnings == ()
    built = build("what is this", images=[SMALL, FAR], config={"max_tokens": 2000})
    (warning,) = built.warnings
    assert "image2 of the query is left out: over the 1000 tokens of images" in warning and "max_tokens" in warning
    off = build("what is this", images=[FAR], config={"include": {"images": False}})
    assert not any("left out" in line for line in off.warnings)


def test_a_replay_asks_for_a_counter_with_another_formula(tmp_path):
    counter = TokenCounter(images="anthropic")
    with AuditLog(tmp_path / "audit.sqlite3") as audit:
        config = ContextConfig(strategy="jaccard", tokenizer=counter, budgets={"images": 2000})
        built = ContextBuilder(config=config, audit=audit).assemble("what is this", images=[FAR])
        assert 1640 < built.budget.total_used < 1700
        audit.flush()
        with pytest.raises(InputError, match=r"images by anthropic.*counter="):
            audit.replay(built.meta["build_id"])
        assert audit.replay(built.meta["build_id"], counter=counter).equal
