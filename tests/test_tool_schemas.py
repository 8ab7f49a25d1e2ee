"""Tool definitions: reading, the line in a prompt, ever shorter levels, counting, choosing."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ctx_vector import CtxVectorError, TokenCounter
from ctx_vector.errors import InputError
from ctx_vector.escaping import normalise
from ctx_vector.schema_levels import LEVELS, first_sentence, without_examples
from ctx_vector.schema_walk import pointer, subschemas
from ctx_vector.tool_reading import read_tools
from ctx_vector.tool_schemas import (
    API_OVERHEAD,
    LARGE_TOOL,
    ToolDefinition,
    api_tokens,
    choose,
    in_categories,
    text_tokens,
    tool_warnings,
)

COUNT = TokenCounter().count
WEATHER = {
    "name": "get_weather",
    "description": 'Tells the weather of a city. Temperatures are in Celsius. For example: get_weather("Oslo").',
    "parameters": {
        "type": "object",
        "title": "Arguments",
        "properties": {
            "city": {
                "type": "string",
                "description": "The city, e.g. Oslo. In English letters. 例如北京。",
                "examples": ["Oslo"],
            },
            "unit": {"type": "string", "enum": ["c", "f"], "description": "Unit（例如 c）", "default": "c"},
            "when": {
                "type": "object",
                "properties": {
                    "day": {"type": "string", "format": "date", "description": "The day"},
                    "hour": {"type": "integer", "minimum": 0, "maximum": 23},
                },
                "required": ["day"],
                "additionalProperties": False,
            },
            "place": {"$ref": "#/$defs/Place"},
        },
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {
            "Place": {
                "type": "object",
                "properties": {"lat": {"type": "number", "minimum": -90}},
                "required": ["lat"],
            },
            "Unused": {"type": "null"},
        },
    },
}


def tool(**changes):
    (read,) = read_tools([{**WEATHER, **changes}])
    return read


def parsed(definition):
    return json.loads(definition.text())


# -- reading ----------------------------------------------------------------------------------------------------------


def test_every_form_is_the_same_tool():
    parameters, rest = WEATHER["parameters"], {key: WEATHER[key] for key in ("name", "description")}
    mcp = {**rest, "inputSchema": parameters, "annotations": {"readOnlyHint": True}, "outputSchema": {"type": "object"}}
    forms = [
        {"type": "function", "function": WEATHER},
        {"type": "function", **WEATHER},
        WEATHER,
        mcp,
        {**rest, "input_schema": parameters},
        SimpleNamespace(**mcp),
        SimpleNamespace(**rest, input_schema=parameters, annotations=None, meta=None),
        SimpleNamespace(type="function", function=SimpleNamespace(**WEATHER)),
        tool(),
    ]
    assert {read_tools([form])[0] for form in forms} == {tool()}
    assert tool().schema == {"type": "function", "function": WEATHER}


def test_the_tools_of_the_mcp_sdk():
    from mcp.types import Tool, ToolAnnotations

    hints = ToolAnnotations(title="Weather", read_only_hint=True)
    given = Tool.model_validate({**WEATHER, "inputSchema": WEATHER["parameters"], "_meta": {"category": "life"}})
    (read,) = read_tools([given.model_copy(update={"annotations": hints})])
    assert read.schema == tool().schema and (read.category, read.title) == ("life", "Weather")


@pytest.mark.parametrize(
    "changes",
    [
        {"category": "weather"},
        {"metadata": {"category": "weather"}},
        {"_meta": {"category": "weather"}},
    ],
    ids=str,
)
def test_a_category_is_read_and_not_sent(changes):
    for form in ({**WEATHER, **changes}, {"type": "function", "function": WEATHER, **changes}):
        (read,) = read_tools([form])
        assert read.category == "weather"
        assert "category" not in read.text() and "category" not in json.dumps(read.schema)
        assert in_categories([read, tool(name="other")], ["weather"]) == (read,)
        assert in_categories([read], None) == (read,) and in_categories([read], []) == ()
    with pytest.raises(InputError, match="put it in a list"):
        in_categories([tool()], "weather")


def test_a_tool_without_parameters_takes_none():
    empty = {"type": "object", "properties": {}}
    assert [read_tools([{"name": "ping", **more}])[0].schema["function"]["parameters"] for more in (
        {}, {"parameters": None}, {"inputSchema": {}}, {"parameters": {"properties": {}}}, {"parameters": empty},
    )] == [empty, empty, {"type": "object"}, empty, empty]  # fmt: skip


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"name": "two words"}, r"tools\[1\]\.name: expected 1 to 128 letters, digits, _ \. / or -, got 'two words'"),
        ({"name": "line\nbreak"}, r"\.name: expected"),
        ({"name": ""}, r"\.name: expected"),
        ({"name": "n" * 129}, r"\.name: expected"),
        ({}, r"\.name: expected.* got None"),
        (5, r"\.name: expected"),
        ({"name": "get_weather"}, r"'get_weather' is the name of tools\[0\] too"),
        ({"name": "x", "description": 5}, r"\.description: expected a str, got int"),
        ({"name": "x", "category": 5}, r"\.category: expected a str"),
        ({"name": "x", "parameters": []}, r"\.parameters: expected a JSON Schema object, got list"),
        ({"name": "x", "inputSchema": {"type": "array"}}, r"\.inputSchema: expected .* got type 'array'"),
        ({"name": "x", "parameters": {"anyOf": []}}, "got type None"),
        ({"name": "x", "parameters": {"properties": {"a": {"default": math.nan}}}}, r"a\.default: .*, got nan"),
        ({"name": "x", "parameters": {"properties": {"a": {"enum": [b"x"]}}}}, r"a\.enum\[0\]: expected what JSON has"),
        ({"name": "x", "parameters": {"properties": {5: {}}}}, r"properties: expected str keys, got 5"),
        ({"name": "x", "parameters": {"properties": {"a": {"$ref": "#/$defs/A"}}}}, r"'#/\$defs/A' leads nowhere"),
        ({"type": "web_search"}, r'tools\[1\]\.type: expected "function", got \'web_search\''),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_is_named(item, words):
    with pytest.raises(CtxVectorError, match=words):
        read_tools([WEATHER, item])


def test_all_problems_come_at_once_and_hostile_depth_is_one_of_them():
    deep = {"type": "object"}
    for _ in range(5000):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(InputError) as caught:
        read_tools([{"name": "a b"}, {"name": "deep", "parameters": deep}, {"name": "x", "parameters": 1}])
    for words in ("3 problems", "tools[0].name", "nested more than 64 deep", "tools[2].parameters"):
        assert words in str(caught.value)
    for wrong in ("text", WEATHER, 5):
        with pytest.raises(InputError, match="expected a list of definitions"):
            read_tools(wrong)


def test_what_is_read_is_a_copy_and_what_is_sent_too():
    given = json.loads(json.dumps(WEATHER))
    (read,) = read_tools([given])
    given["parameters"]["properties"].clear()
    read.schema["function"]["parameters"].clear()
    assert read == tool()


# -- the line in a prompt ---------------------------------------------------------------------------------------------


def test_the_line_is_the_function_as_compact_json():
    assert tool(
        description="天气", parameters={"properties": {"城市": {"description": "d", "type": "string"}}}
    ).text() == (
        '{"name":"get_weather","description":"天气","parameters":'
        '{"type":"object","properties":{"城市":{"type":"string","description":"d"}}}}'
    )
    assert parsed(tool()) == WEATHER


def test_the_order_of_keys_does_not_matter_but_that_of_properties_stays():
    def turned(value):
        if isinstance(value, dict):
            return {key: turned(item) for key, item in reversed(value.items())}
        return value

    mixed = turned(WEATHER)
    mixed["parameters"]["properties"] = dict(reversed(mixed["parameters"]["properties"].items()))
    mixed["parameters"]["properties"]["when"]["properties"] = dict(
        reversed(mixed["parameters"]["properties"]["when"]["properties"].items())
    )
    mixed["parameters"]["$defs"] = dict(reversed(mixed["parameters"]["$defs"].items()))
    assert read_tools([mixed])[0].text() == tool().text()
    assert list(parsed(tool())["parameters"]["properties"]) == ["city", "unit", "when", "place"]


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_description_stays_on_its_line(description, default):
    made = tool(description=description, parameters={"properties": {"a": {"default": default}}})
    assert normalise(made.text()) == made.text() and "\n" not in made.text()
    sent = parsed(made)
    clean = description.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert sent.get("description", "") == clean


def test_what_relevance_is_measured_on():
    made = tool(name="orders.getHTTPStatus_v2", title="Bestellungen", category="shop")
    assert made.search_text.split("\n") == [
        WEATHER["description"],
        "The city, e.g. Oslo. In English letters. 例如北京。",
        "Unit（例如 c）",
        "The day",
        "Bestellungen, orders get HTTP Status v 2: when, place, hour, lat",
    ]
    assert tool(name="查询_订单", description="", parameters={}).search_text == "查询 订单"
    assert ToolDefinition("...").search_text == "..."


# -- levels -----------------------------------------------------------------------------------------------------------


def test_the_levels_of_a_tool_by_hand():
    steps = {step.level: step for step in tool().levels()}  # the last of each level
    assert list(steps) == list(LEVELS)
    properties = {name: parsed(step)["parameters"]["properties"] for name, step in steps.items()}
    assert steps["full"] == tool()
    assert steps["examples"].description == "Tells the weather of a city. Temperatures are in Celsius."
    assert properties["examples"]["city"] == {"type": "string", "description": "The city. In English letters."}
    assert properties["examples"]["unit"]["description"] == "Unit"
    assert steps["description"].description == "Tells the weather of a city."
    assert properties["parameter descriptions"]["city"]["description"] == "The city."
    assert properties["optional descriptions"]["unit"] == {"type": "string", "enum": ["c", "f"], "default": "c"}
    assert properties["optional descriptions"]["when"]["properties"]["day"] == {"type": "string", "format": "date"}
    assert properties["annotations"]["unit"] == {"type": "string", "enum": ["c", "f"]}
    assert "title" not in steps["annotations"].parameters and list(steps["annotations"].parameters["$defs"]) == [
        "Place"
    ]
    assert properties["optional details"]["when"] == {
        "type": "object",
        "properties": {"day": {"type": "string"}, "hour": {"type": "integer"}},
        "required": ["day"],
        "additionalProperties": False,
    }
    assert parsed(steps["optional parameters"])["parameters"] == {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city."}},
        "required": ["city"],
        "additionalProperties": False,
    }
    assert properties["names and types"] == {"city": {"type": "string"}}
    assert steps["names and types"].description == "Tells the weather of a city."


def test_a_level_goes_on_where_it_stopped():
    steps = list(tool().levels())
    for number, step in enumerate(steps):
        assert [later.text() for later in step.levels()] == [later.text() for later in steps[number:]]


def test_what_stands_together_is_not_taken_apart():
    """Optional parameters stay where other keywords speak of them, bounds stay where less of them means more."""
    one_of = {
        "type": "object",
        "properties": {"mail": {"type": "string"}, "phone": {"type": "string"}, "note": {"type": "string"}},
        "oneOf": [{"required": ["mail"]}, {"required": ["phone"]}],
    }
    either = {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]}
    by_path = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}},
        "required": ["b"],
    }
    *_, last = tool(parameters=one_of).levels()
    assert list(last.parameters["properties"]) == ["mail", "phone", "note"]
    steps = {
        step.level: step for step in tool(parameters={"properties": {"a": either, "b": {"pattern": "x"}}}).levels()
    }
    assert steps["optional details"].parameters["properties"] == {"a": either, "b": {}}
    *_, last = tool(parameters=by_path).levels()
    assert last.parameters["properties"] == by_path["properties"]


def test_a_recursive_tool_keeps_its_definitions():
    node = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "inside": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "maxItems": 9},
        },
        "required": ["name", "inside"],
    }
    parameters = {"type": "object", "properties": {"root": {"$ref": "#/$defs/Node"}}, "required": ["root"]}
    for step in tool(parameters={**parameters, "$defs": {"Node": node}}).levels():
        assert step.parameters["$defs"] == {"Node": node}


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("The city, e.g. San Francisco, CA", "The city"),
        ("The city and state, e.g. San Francisco, CA. Required.", "The city and state. Required."),
        ("A date (e.g. 2024-01-31) in UTC.", "A date in UTC."),
        ("A date (for example: today).", "A date."),
        ("城市名，例如：北京、上海。必填。", "城市名。必填。"),
        ("城市（例如 北京）的名称。比如上海。", "城市的名称。"),
        ("查询订单。\n示例：\n- 查 1001\n- 查 1002\n\n只读。", "查询订单。\n只读。"),
        ("Runs SQL.\n\nExamples:\n  run('a')\n  run('b')\nReturns rows.", "Runs SQL.\n\nReturns rows."),
        ("Runs SQL. <example>run it</example> Read only.", "Runs SQL. Read only."),
        ("Finds files, i.e. paths. Fast.", "Finds files, i.e. paths. Fast."),
        ("Adds an example to the set. Counts examples.", "Adds an example to the set. Counts examples."),
        ("Example: all of it is one.", "Example: all of it is one."),
        ("  Indented\n      by a docstring.  ", "Indented\nby a docstring."),
        ("", ""),
    ],
    ids=str,
)
def test_examples_go_and_the_rest_stays(text, rest):
    assert without_examples(text) == rest
    assert without_examples(rest) == rest


def test_the_first_sentence():
    assert first_sentence("Reads v1.2 files, e.g. logs. More.") == "Reads v1.2 files, e.g. logs."
    assert first_sentence("\n\n查询天气。返回温度。") == "查询天气。"
    assert first_sentence("") == ""


def test_a_pile_of_text_is_shortened_in_good_time():
    started = time.perf_counter()
    for unit in ("(e.g. ", "a, e.g. b ", "例如", "x. ", "Example:\n- a\n", "<example>", "\n\n \n", " \t"):
        text = unit * (200_000 // len(unit))
        steps = list(tool(description=text).levels())
        assert len(steps) < 20 and len(steps[-1].description) <= 200
    assert time.perf_counter() - started < 20  # ten quadratic ones take minutes


NAMES = st.sampled_from(["id", "type", "properties", "required", "description", "城市", "a/b~c", "limit"])
WORDS = st.sampled_from(
    ["One. Two. Three.", "例如北京。城市。", "The city, e.g. Oslo.", "", "x" * 300, "长" * 300, "a\u2028b"]
)


@st.composite
def schemas(draw, depth=2):
    """(a JSON Schema, a value of it that has the required parameters only)."""
    kinds = ["string", "integer", "enum", "const", "ref", "any"] + (
        ["object", "array", "anyOf", "oneOf"] if depth else []
    )
    kind = draw(st.sampled_from(kinds))
    node, value = {}, None
    if kind == "string":
        node, value = {"type": "string", "minLength": 2, "pattern": "^o"}, "ok"
    elif kind == "integer":
        node, value = {"type": ["integer", "null"], "minimum": 3, "multipleOf": 2}, 4
    elif kind == "enum":
        value = draw(st.sampled_from(["a", 1, None, {"title": "data", "description": "d"}]))
        node = {"enum": [value, "b"]}
    elif kind == "const":
        value = draw(st.sampled_from([0, "中"]))
        node = {"const": value}
    elif kind == "ref":
        node, value = {"$ref": "#/$defs/Node"}, {"id": 1}
    elif kind == "array":
        items, one = draw(schemas(depth - 1))
        node, value = {"type": "array", "items": items, "minItems": 1, "maxItems": 2}, [one]
    elif kind in ("anyOf", "oneOf"):
        one, value = draw(schemas(depth - 1))
        node = {kind: [{"allOf": [one]}, {"type": "boolean", "title": "Flag"}]}
        if value is True or value is False:
            value = None
    elif kind == "object":
        node, value = draw(objects(depth - 1))
    for key, words in (("description", WORDS), ("title", st.just("T")), ("default", st.just({"title": 1})),
                       ("examples", st.just([1])), ("x-order", st.just(3))):  # fmt: skip
        if draw(st.booleans()):
            node[key] = draw(words)
    return node, value


@st.composite
def objects(draw, depth=2):
    inside = draw(st.dictionaries(NAMES, schemas(depth), max_size=4))
    required = [name for name in inside if draw(st.booleans())]
    node = {"type": "object", "properties": {name: schema for name, (schema, _) in inside.items()}}
    if required or draw(st.booleans()):
        node["required"] = required
    if draw(st.booleans()):
        node["additionalProperties"] = draw(st.sampled_from([True, False, {"type": "string", "description": "D."}]))
    if required and draw(st.booleans()):
        node["minProperties"] = 1
    return node, {name: inside[name][1] for name in required}


def parameter_types(schema: Mapping, path=()):
    """Yield (path, type, enum, const, ref, additionalProperties) of the required parameters, from the outside in."""
    if not isinstance(schema, Mapping):
        return
    yield path, *(json.dumps(schema.get(key)) for key in ("type", "enum", "const", "$ref", "required"))
    yield path, isinstance(schema.get("additionalProperties"), Mapping) or schema.get("additionalProperties")
    for name in schema.get("required", ()):
        yield from parameter_types(schema["properties"].get(name, "lost"), (*path, name))
    yield from parameter_types(schema.get("items"), (*path, "[]"))


@settings(max_examples=60, deadline=None)
@given(objects(), WORDS)
def test_every_level_is_valid_shorter_and_keeps_what_is_required(made, description):
    parameters, call = made
    node = {"type": "object", "properties": {"id": {"type": "integer", "title": "N"}, "next": {"$ref": "#/$defs/Node"}}}
    parameters["$defs"] = {"Node": {**node, "required": ["id"]}, "Spare": {"description": "Nothing. More."}}
    before = tool(description=description, parameters=parameters)
    Draft202012Validator.check_schema(parameters)
    Draft202012Validator(parameters).validate(call)
    wanted = list(parameter_types(parameters))
    shortest, place = 10**9, -1
    for step in before.levels():
        Draft202012Validator.check_schema(step.parameters)
        Draft202012Validator(step.parameters).validate(call)
        assert list(parameter_types(step.parameters)) == wanted
        for schema in subschemas(dict(step.parameters)):
            if "$ref" in schema:
                assert pointer(schema["$ref"])[1] in step.parameters["$defs"]
        assert parsed(step)["parameters"] == step.parameters == step.schema["function"]["parameters"]
        assert len(step.text()) < shortest and LEVELS.index(step.level) >= place
        shortest, place = len(step.text()), LEVELS.index(step.level)
        assert step.name == before.name and step.category == before.category
    assert step.level == "full" or len(step.description) <= 200
    assert all("description" not in schema for schema in subschemas(dict(step.parameters)) if step.level == LEVELS[-1])


@settings(max_examples=50, deadline=None)
@given(objects())
def test_reading_again_changes_nothing(made):
    parameters, _ = made
    parameters["$defs"] = {"Node": {"type": "object"}}
    for step in tool(parameters=parameters).levels():
        (again,) = read_tools([step.schema])
        assert again.text() == step.text()


# -- counting ---------------------------------------------------------------------------------------------------------


def cookbook_tokens(tools, messages):
    """OpenAI's published formula for gpt-4 (cl100k): ../examples/how_to_count_tokens_with_tiktoken in its cookbook."""
    total = 3 + sum(3 + sum(map(COUNT, message.values())) for message in messages)
    if not tools:
        return total
    for wrapped in tools:
        function = wrapped["function"]
        total += 10 + COUNT(f"{function['name']}:{function['description'].removesuffix('.')}")
        properties = function["parameters"]["properties"]
        total += 3 if properties else 0
        for name, value in properties.items():
            total += 3
            for choice in value.get("enum", ()):
                total += 3 + COUNT(choice)
            total -= 3 if "enum" in value else 0
            total += COUNT(f"{name}:{value['type']}:{value['description'].removesuffix('.')}")
    return total + 12


def harmony(tools):
    """OpenAI's rendering of functions as a TypeScript-like namespace, by its guide to the format."""

    def kind(schema, tab):
        if "enum" in schema:
            return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return " | ".join(kind(item, tab) for item in schema[key])
        named = schema.get("type", "any")
        if isinstance(named, list):
            return " | ".join(named)
        if named == "array":
            return kind(schema.get("items", {}), tab) + "[]"
        if named == "object" and "properties" in schema:
            return "{\n" + fields(schema, tab + "    ") + tab + "}"
        return {"integer": "number"}.get(named, named)

    def fields(schema, tab=""):
        lines = []
        for name, value in schema["properties"].items():
            for line in value.get("description", "").splitlines():
                lines.append(f"{tab}// {line}\n")
            mark = "" if name in schema.get("required", ()) else "?"
            default = f" // default: {json.dumps(value['default'])}" if "default" in value else ""
            lines.append(f"{tab}{name}{mark}: {kind(value, tab)},{default}\n")
        return "".join(lines)

    parts = ["# Tools\n\n## functions\n\nnamespace functions {\n\n"]
    for wrapped in tools:
        function = wrapped["function"]
        parts += [f"// {line}\n" for line in function.get("description", "").splitlines()]
        inner = fields(function["parameters"])
        parts.append(f"type {function['name']} = ({f'_: {{{chr(10)}{inner}}}' if inner else ''}) => any;\n\n")
    return "".join(parts) + "} // namespace functions"


COOKBOOK_TOOL = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "description": "Get the current weather in a given location",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
                "unit": {
                    "type": "string",
                    "description": "The unit of temperature to return",
                    "enum": ["celsius", "fahrenheit"],
                },
            },
            "required": ["location"],
        },
    },
}
COOKBOOK_MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant that can answer to questions about the weather."},
    {"role": "user", "content": "What's the weather like in San Francisco?"},
]


def test_the_bound_of_an_api_is_over_what_openai_counts():
    assert cookbook_tokens([COOKBOOK_TOOL], COOKBOOK_MESSAGES) == 105  # as published, and as the API answered
    used = 105 - cookbook_tokens([], COOKBOOK_MESSAGES)
    (read,) = read_tools([COOKBOOK_TOOL])
    assert used <= COUNT(harmony([COOKBOOK_TOOL])) <= api_tokens(read, COUNT) + API_OVERHEAD
    assert text_tokens(read, COUNT) < api_tokens(read, COUNT)
    flat = [tool(parameters={"properties": {}}).schema, COOKBOOK_TOOL]
    both = sum(api_tokens(item, COUNT) for item in read_tools(flat)) + API_OVERHEAD
    assert cookbook_tokens(flat, []) - 3 <= both and COUNT(harmony(flat)) <= both


def test_the_bound_holds_for_forty_tools():
    tools = read_tools(json.loads((Path(__file__).parent / "data" / "tools.json").read_text(encoding="utf-8")))
    for item in tools:
        assert COUNT(harmony([item.schema])) - COUNT(harmony([])) <= api_tokens(item, COUNT)
    whole = sum(api_tokens(item, COUNT) for item in tools) + API_OVERHEAD
    assert 0.5 * whole < COUNT(harmony([item.schema for item in tools])) <= whole


def test_the_lines_of_tools_add_up():
    tools = [tool(), tool(name="二", description="查询。"), ToolDefinition("ping")]
    text = "".join(item.text() + "\n" for item in tools)
    assert COUNT(text) == sum(text_tokens(item, COUNT) for item in tools)


def test_large_tools_and_names_openai_refuses_are_warned_of():
    large = tool(name="large", description="word " * LARGE_TOOL)
    tools = [tool(), large, tool(name="查询"), tool(name="a.b")]
    assert [text.split(":")[0] for text in tool_warnings(tools, COUNT)] == ["tool 'large'"]
    warnings = tool_warnings(tools, COUNT, api=True)
    assert [text.split(":")[0] for text in warnings] == ["tool 'large'", "tool '查询'", "tool 'a.b'"]
    assert f"takes {text_tokens(large, COUNT)} tokens, over 500" in warnings[0]
    exact = tool(name="exact", description="")
    fits = next(n for n in range(LARGE_TOOL) if text_tokens(tool(description="a" + " a" * n), COUNT) == LARGE_TOOL)
    assert tool_warnings([exact, tool(description="a" + " a" * fits)], COUNT) == []


# -- choosing ---------------------------------------------------------------------------------------------------------


def measure(definition):
    return text_tokens(definition, COUNT)


def floor_of_words(definition):
    steps = [step for step in definition.levels() if LEVELS.index(step.level) <= LEVELS.index("annotations")]
    return min(map(measure, steps))


def test_choosing_by_hand():
    first, second, third = (tool(name=name) for name in ("first", "second", "third"))
    whole, words = measure(first), floor_of_words(first)
    bare = min(map(measure, first.levels()))
    assert bare < words < whole
    relevances = [0.2, 0.9, 0.5]

    def levels(cap):
        return [item and item.level for item in choose([first, second, third], relevances, cap, measure)]

    assert levels(3 * whole) == ["full"] * 3
    # words go before a tool does, and come back to the most relevant first
    assert levels(3 * words) == ["annotations"] * 3
    assert levels(2 * words + whole) == ["annotations", "full", "annotations"]
    # the best two keep their optional parameters; the third is kept by names and types alone, or goes
    assert levels(2 * words + bare) == ["names and types", "annotations", "annotations"]
    assert levels(2 * words + bare - 1) == [None, "examples", "annotations"]
    assert levels(bare) == [None, "names and types", None] and levels(bare - 1) == [None] * 3
    assert levels(0) == [None] * 3 and choose([], [], 100, measure) == []
    with pytest.raises(InputError, match="expected 1 numbers"):
        choose([first], [], 100, measure)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(objects(1), WORDS, st.sampled_from([0.0, 0.3, 0.9])), max_size=5), st.integers(0, 600))
def test_a_choice_keeps_its_promises(made, cap):
    tools = [
        tool(name=f"t{number}", description=words, parameters={**parameters, "$defs": {"Node": {"type": "object"}}})
        for number, ((parameters, _), words, _) in enumerate(made)
    ]
    relevances = [relevance for *_, relevance in made]
    kept = choose(tools, relevances, cap, measure)
    used = sum(measure(item) for item in kept if item)
    assert used <= cap
    assert kept == choose(tools, relevances, cap, measure)
    if any(min(map(measure, item.levels())) <= cap for item in tools):
        assert any(kept)
    order = sorted(range(len(tools)), key=lambda index: (-relevances[index], index))
    for place, index in enumerate(order):
        if kept[index] is None:  # even with the words of all the better ones away it would not fit
            before = sum(min(measure(kept[i]), floor_of_words(tools[i])) for i in order[:place] if kept[i])
            assert before + min(map(measure, tools[index].levels())) > cap
        else:
            assert kept[index] in list(tools[index].levels())
            longer = [measure(step) for step in tools[index].levels() if len(step.text()) > len(kept[index].text())]
            assert all(tokens > measure(kept[index]) + cap - used for tokens in longer)


# -- tools of other frameworks ---------------------------------------------------------------------------------------


def test_langchain_tools_are_what_langchain_sends():
    """The oracle is LangChain's own conversion: no titles, and nothing that the model is not to fill in."""
    tools = pytest.importorskip("langchain_core.tools")
    convert = pytest.importorskip("langchain_core.utils.function_calling").convert_to_openai_tool
    pydantic = pytest.importorskip("pydantic")

    class Find(pydantic.BaseModel):
        """Words of the model, not of the tool."""

        title: str = pydantic.Field(description="标题中的词")
        days: int = pydantic.Field(default=3, ge=1)
        kinds: list[str] | None = None

    def find(title: str, days: int = 3, kinds: list[str] | None = None) -> str:
        return title

    def order(order_id: str, user: Annotated[str, tools.InjectedToolArg]) -> str:
        """查询订单。"""
        return order_id + user

    theirs = [
        tools.StructuredTool.from_function(find, name="find", description="按标题查找", args_schema=Find),
        tools.tool(order),
        tools.StructuredTool.from_function(
            find, name="find2", description="d", args_schema={"type": "object", "properties": {"q": {"type": "string"}}}
        ),
    ]
    for one, tool in zip(read_tools(theirs), theirs, strict=True):
        sent = convert(tool)["function"]
        assert (one.name, one.description) == (sent["name"], sent["description"])
        assert one.parameters == sent["parameters"]


def test_llama_index_and_haystack_tools_are_read():
    llama = pytest.importorskip("llama_index.core.tools")
    haystack = pytest.importorskip("haystack.tools")

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    theirs = llama.FunctionTool.from_defaults(add)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    other = haystack.Tool(name="加", description="把数字相加", parameters=schema, function=add)
    first, second = read_tools([theirs, other])
    sent = theirs.metadata.to_openai_tool()["function"]
    assert (first.name, first.description, first.parameters) == ("add", sent["description"], sent["parameters"])
    assert (second.name, second.description, second.parameters) == ("加", "把数字相加", schema)


@pytest.mark.parametrize(
    ("item", "what"), [(len, "a function"), (lambda q: q, "a function"), ("search", "'search'"), (dict, "a class")]
)
def test_what_is_no_definition_is_told_so(item, what):
    with pytest.raises(InputError, match=rf"tools\[1\]: expected a definition, with name, .*, got {what}$"):
        read_tools([{"name": "ok"}, item])
