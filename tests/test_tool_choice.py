"""Forty tools into 1,500 tokens, by the real encoder: valid definitions only, and the ones a question needs."""

import functools
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ctx_vector import ContextPacket, TokenCounter
from ctx_vector.encoders import CachedEncoder
from ctx_vector.judging import relevances
from ctx_vector.packets import Candidate
from ctx_vector.schema_levels import LEVELS
from ctx_vector.scoring import make_scorer
from ctx_vector.tool_reading import read_tools
from ctx_vector.tool_schemas import choose, in_categories, text_tokens, tool_warnings

COUNT = TokenCounter().count
TOOLS = read_tools(json.loads((Path(__file__).parent / "data" / "tools.json").read_text(encoding="utf-8")))
CAP = 1_500
#: question -> the tools an answer needs
NEEDED = {
    "Where is my parcel? Order A-10023 has not arrived.": ("get_order", "track_shipment"),
    "Move tomorrow's meeting with the design team to a free slot in the afternoon": ("find_free_time", "create_event"),
    "Why is this SQL query so slow?": ("explain_query", "run_sql"),
    "Open an issue about the failing login test": ("create_issue", "run_tests"),
    "How do I get from the station to the museum by bicycle?": ("plan_route", "geocode"),
    "What is the weather in Chengdu tomorrow?": ("get_weather",),
    "Rename the file notes.txt": ("move_file",),
    "Please give the customer her money back, the lamp was broken": ("refund_order",),
    "I need two days off next week": ("apply_leave",),
    "明天上海会下雨吗？": ("get_weather",),
    "帮我订一间周五下午的会议室": ("book_meeting_room",),
    "把这段合同翻译成英文": ("translate_text",),
    "我想请三天年假": ("apply_leave",),
    "查一下顺丰快递到哪了": ("track_express", "track_shipment"),
    "这个订单能退款吗": ("get_order", "refund_order"),
    "数据库里订单表有哪些列？": ("describe_table", "run_sql"),
    "查找代码里调用登录函数的地方": ("search_code", "search_files"),
    "打车费怎么报销": ("submit_expense",),
}


@pytest.fixture(scope="module")
def relevance_of(encoder):
    encoder = CachedEncoder(encoder)  # forty tools, encoded once for all questions
    scorer = make_scorer("cosine", lambda: encoder)
    candidates = [Candidate(ContextPacket(tool.search_text), "tools") for tool in TOOLS]
    return lambda query: [relevance for relevance, _ in relevances(candidates, query, scorer, lambda: encoder)]


def test_the_tools_are_forty_and_far_too_many():
    assert len(TOOLS) == 40 and sum(text_tokens(tool, COUNT) for tool in TOOLS) > 3 * CAP
    assert tool_warnings(TOOLS, COUNT) == []
    assert {tool.category for tool in TOOLS} >= {"files", "web", "calendar", "orders", "database", "code", "maps"}
    assert [tool.name for tool in in_categories(TOOLS, ["maps"])] == ["geocode", "plan_route", "nearby_places"]


@functools.cache
def is_schema(parameters: str) -> bool:
    """The same definition is chosen for many questions, and checking it takes long."""
    Draft202012Validator.check_schema(json.loads(parameters))
    return True


@pytest.mark.parametrize("query", NEEDED)
def test_what_a_question_needs_is_kept_and_all_is_valid(query, relevance_of):
    kept = [tool for tool in choose(TOOLS, relevance_of(query), CAP, lambda tool: text_tokens(tool, COUNT)) if tool]
    text = "".join(tool.text() + "\n" for tool in kept)
    assert CAP * 0.95 < COUNT(text) <= CAP
    originals = {tool.name: tool.parameters for tool in TOOLS}
    for line in text.splitlines():
        definition = json.loads(line)
        assert is_schema(json.dumps(definition["parameters"]))
        before = originals[definition["name"]]
        assert set(before.get("required", ())) <= definition["parameters"]["properties"].keys()
        assert definition["parameters"].get("required") == before.get("required") and definition["description"]
    assert set(NEEDED[query]) <= {tool.name for tool in kept}
    best = next(tool for tool in kept if tool.name == NEEDED[query][0])
    assert LEVELS.index(best.level) <= LEVELS.index("annotations")  # it still has all of its parameters


def test_the_right_tool_is_near_the_top(relevance_of):
    ranks = []
    for query, needed in NEEDED.items():
        found = relevance_of(query)
        order = sorted(range(len(TOOLS)), key=lambda index: -found[index])
        ranks.append(1 + [TOOLS[index].name for index in order].index(needed[0]))
    assert sum(1 / rank for rank in ranks) / len(ranks) >= 0.75, ranks
