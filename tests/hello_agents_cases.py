"""The HelloAgents adapters with the real package; run by test_adapters_hello_agents.py in a process of its own."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from adapter_help import QUESTION, kb
from hello_agents import Message as HelloMessage
from hello_agents import ToolRegistry
from hello_agents.tools.builtin.calculator import CalculatorTool
from hello_agents.tools.response import ToolStatus

from ctx_vector import ContextBuilder, KnowledgeBase, Message
from ctx_vector.adapters.hello_agents import CtxContextTool, CtxMemoryTool, CtxRAGTool, ToolSource, to_hello

FIXTURES = (kb,)


@pytest.fixture
def tools(tmp_path: Path, kb: KnowledgeBase, encoder) -> Any:
    memory = CtxMemoryTool("ada", tmp_path / "memory", encoder)
    yield memory, CtxRAGTool(knowledge=kb)
    memory.memory.close()


def test_our_tools_in_a_registry(tools: Any):
    memory, rag = tools
    registry = ToolRegistry()
    registry.register_tool(memory)
    registry.register_tool(rag)
    registry.register_tool(CtxContextTool(ContextBuilder(memory_tool=memory, rag_tool=rag)))
    assert registry.list_tools() == ["memory", "rag", "context"]
    added = registry.execute_tool(
        "memory", json.dumps({"action": "add", "content": "Ada 喜欢喝绿茶", "memory_type": "profile"})
    )
    assert added.status is ToolStatus.SUCCESS and added.data == {"memory_id": "1"}
    found = registry.execute_tool("memory", '{"action": "search", "query": "What does Ada drink?"}')
    assert [item["content"] for item in found.data["results"]] == ["Ada 喜欢喝绿茶"] and "绿茶" in found.text
    found = asyncio.run(rag.arun({"action": "search", "query": QUESTION, "limit": 1}))
    assert found.data["results"][0]["source"] == "docs/en/volcano.md"
    built = registry.execute_tool("context", json.dumps({"query": QUESTION, "max_tokens": 400}))
    assert built.text.startswith(f"[Task]\n{QUESTION}\n") and built.data["budget"]["total_used"] <= 400
    assert "time_ms" in built.stats

    for name, wrong, message in (
        ("memory", {"action": "serach"}, "did you mean 'search'?"),
        ("memory", {"action": "remove", "memory_id": "9"}, "no memory '9'"),
        ("rag", {"input": "x"}, "action: expected one of"),
        ("context", {"input": "x"}, "context: expected query"),
        ("context", {"query": "x", "max_tokens": 2}, "set max_tokens to at least"),
    ):
        refused = registry.execute_tool(name, json.dumps(wrong))
        assert refused.status is ToolStatus.ERROR and message in refused.error_info["message"], refused


def test_schemas_name_every_argument(tools: Any):
    for tool in tools:
        schema = tool.to_openai_schema()["function"]
        assert schema["parameters"]["required"] == ["action"]
        assert all(len(item["description"]) > 10 for item in schema["parameters"]["properties"].values())
        for action in schema["parameters"]["properties"]["action"]["description"].split(". ")[0].split(", "):
            answer = tool.run({"action": action})  # every action named is one; what is missing is said
            assert answer.status is ToolStatus.SUCCESS or "is missing" in answer.error_info["message"], action


def test_our_wrapped_tools_and_theirs_in_a_build(tools: Any, encoder):
    memory, rag = tools
    memory.run({"action": "add", "content": "Ada 喜欢喝绿茶", "importance": 0.9})
    sum_of = ToolSource(CalculatorTool(), lambda request: {"input": "2 + 3"})
    broken = ToolSource(CalculatorTool(), lambda request: {"input": "2 +"})
    broken.name = "broken"
    builder = ContextBuilder(memory_tool=memory, rag_tool=rag, sources=[sum_of, broken], encoder=encoder)
    config = builder.config.with_(min_relevance=0.0, memory_min_importance=0.0)
    history = [
        HelloMessage("Hello!", "user"),
        HelloMessage("你好，Ada。", "assistant"),
        HelloMessage("earlier", "summary"),
    ]
    built = builder.with_config(config).assemble(QUESTION, conversation_history=history, now=datetime.now(UTC))
    kinds = {(row["source"], row["section"]) for row in built.explain() if row["kept"]}
    assert {("knowledge", "Evidence"), ("memory", "Context"), ("history", "Context")} <= kinds
    assert (sum_of.name, "Evidence") in kinds and "5" in built.sections["Evidence"]
    assert any(warning.startswith("source broken: ") for warning in built.warnings)
    assert "assistant: 你好，Ada。" in built.text


def test_messages_both_ways():
    then = datetime(2025, 5, 1, 12, tzinfo=UTC)
    ours = Message("好", "tool", then, tool_call_id="c1", metadata={"a": 1})
    theirs = to_hello(ours)
    assert (theirs.content, theirs.role, theirs.timestamp) == ("好", "tool", then)
    assert theirs.metadata == {"a": 1, "tool_call_id": "c1"}
    assert to_hello(Message("x", "developer")).role == "user"
    back = Message.of(theirs)
    assert (back.text, back.role, back.timestamp) == ("好", "tool", then)
    assert Message.of(HelloMessage("现在", "user")).timestamp is not None
