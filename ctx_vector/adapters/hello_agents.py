"""For HelloAgents: our tools in its registry, its tools as sources, messages both ways. Extra: `hello-agents`.

    registry = ToolRegistry()
    registry.register_tool(CtxMemoryTool(user_id="ada"))
    registry.register_tool(CtxRAGTool(knowledge_base_path="kb"))
    registry.register_tool(CtxContextTool(ContextBuilder(...)))

    ContextBuilder(memory_tool=CtxMemoryTool("ada"), sources=[ToolSource(any_tool_of_hello_agents)])

Its Message works in `conversation_history` as it is. HelloAgents 1.0 needs openai 1, which other packages may not like.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.adapters.shared import missing

try:
    from hello_agents.core.message import Message as HelloMessage
    from hello_agents.tools.base import Tool, ToolParameter
    from hello_agents.tools.errors import ToolErrorCode
    from hello_agents.tools.response import ToolResponse, ToolStatus
except ModuleNotFoundError as error:
    raise missing(error, "hello_agents", "hello-agents") from None

from ctx_vector.errors import CtxVectorError, InputError
from ctx_vector.packets import Message
from ctx_vector.tools import MemoryTool, RAGTool

if TYPE_CHECKING:
    from ctx_vector.builder import ContextBuilder
    from ctx_vector.stages import Request

_MEMORY: Final = (
    ("action", "string", "add, search, update, remove, forget, consolidate, summary, stats, clear_all. 操作", True),
    ("content", "string", "What to remember, for add and update. 内容", False),
    ("query", "string", "What to look for, for search. 查询", False),
    ("memory_type", "string", "working, episodic, semantic or profile. 类型", False),
    ("importance", "number", "From 0 to 1, for add and update. 重要度", False),
    ("memory_id", "string", "For update and remove. 记忆编号", False),
    ("limit", "integer", "At most this many, for search. 条数", False),
    ("min_importance", "number", "From 0 to 1, for search. 最低重要度", False),
    ("session", "string", "The conversation it belongs to, for add. 会话", False),
    ("speaker", "string", "Who said it, for add. 说话人", False),
    ("strategy", "string", "importance_based, time_based or capacity_based, for forget. 遗忘策略", False),
    ("threshold", "number", "For forget. 阈值", False),
    ("max_age_days", "number", "For forget. 最大天数", False),
    ("from_type", "string", "For consolidate. 原类型", False),
    ("to_type", "string", "For consolidate. 目标类型", False),
    ("importance_threshold", "number", "For consolidate. 重要度阈值", False),
)
_RAG: Final = (
    ("action", "string", "search, add_text, add_document, sync, remove, stats. 操作", True),
    ("query", "string", "What to look for, for search. 查询", False),
    ("limit", "integer", "At most this many, for search. 条数", False),
    ("min_score", "number", "Least relevance from 0 to 1, for search. 最低相关度", False),
    ("text", "string", "For add_text. 文本", False),
    ("source", "string", "Name of the document, for add_text and remove. 文档名", False),
    ("file_path", "string", "For add_document. 文件路径", False),
    ("paths", "array", "Files and folders, for sync. 路径", False),
)
_CONTEXT: Final = (
    ("query", "string", "The question. 问题", True),
    ("max_tokens", "integer", "Size of the whole context. 预算", False),
)


class _Wrapped(Tool):  # type: ignore[misc, unused-ignore]
    """One of our tools as theirs: `run` answers with a ToolResponse, its `data` holding what our tool gave."""

    _parameters: Sequence[tuple[str, str, str, bool]] = ()

    def __init__(self, name: str, description: str, call: Callable[[Mapping[str, Any]], Any]) -> None:
        super().__init__(name, description)
        self._call = call

    def get_parameters(self) -> list[ToolParameter]:
        """Return what a language model may fill in."""
        return [
            ToolParameter(name=name, type=kind, description=description, required=required)
            for name, kind, description, required in self._parameters
        ]

    def run(self, parameters: dict[str, Any]) -> ToolResponse:
        """Do one action; what is wrong comes back as a response with status error."""
        try:
            return _response(self._call(parameters))
        except InputError as error:
            return ToolResponse.error(code=ToolErrorCode.INVALID_PARAM, message=str(error))
        except CtxVectorError as error:
            return ToolResponse.error(code=ToolErrorCode.EXECUTION_ERROR, message=str(error))


class CtxMemoryTool(_Wrapped):
    """`ctx_vector.MemoryTool` for a ToolRegistry; takes the same arguments. `memory` is the Memory behind."""

    _parameters = _MEMORY

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.tool = MemoryTool(*arguments, **named)
        super().__init__("memory", MemoryTool.description, self.tool.run)
        self.memory = self.tool.memory
        self.candidates = self.tool.candidates  # so that a ContextBuilder takes this one too


class CtxRAGTool(_Wrapped):
    """`ctx_vector.RAGTool` for a ToolRegistry; takes the same arguments. `knowledge` is the KnowledgeBase behind."""

    _parameters = _RAG

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.tool = RAGTool(*arguments, **named)
        super().__init__("rag", RAGTool.description, self.tool.run)
        self.knowledge = self.tool.knowledge
        self.candidates = self.tool.candidates


class CtxContextTool(_Wrapped):
    """A ContextBuilder for a ToolRegistry: the context for a question, as text."""

    _parameters = _CONTEXT

    def __init__(self, builder: ContextBuilder) -> None:
        what = "Builds the context for a question from knowledge and memory, within a budget."
        super().__init__("context", what, self._build)
        self.builder = builder

    def _build(self, parameters: Mapping[str, Any]) -> Any:
        unknown = [name for name in parameters if name not in ("query", "max_tokens")]
        if unknown or "query" not in parameters:
            raise InputError(f"context: expected query and maybe max_tokens, got {', '.join(map(str, parameters))}")
        return self.builder.assemble(parameters["query"], max_tokens=parameters.get("max_tokens"))


def _response(found: Any) -> ToolResponse:
    if hasattr(found, "to_dict"):
        return ToolResponse.success(text=found.text, data=found.to_dict())
    data = {"results": found} if isinstance(found, list) else found
    return ToolResponse.success(text=json.dumps(found, ensure_ascii=False, default=str), data=data)


class ToolSource:
    """A tool of HelloAgents as a source of a build: its answer is evidence.

    `parameters` makes the tool's parameters of a Request, by default ``{"input": the question}``. A response with
    status error is a fault of the source, which costs a warning and not the build.
    """

    kind = "tool_result"

    def __init__(self, tool: Any, parameters: Callable[[Request], dict[str, Any]] | None = None) -> None:
        self.tool = tool
        self.name = str(tool.name)
        self._parameters = parameters or (lambda request: {"input": request.user_query})

    def load(self, request: Request) -> list[dict[str, Any]]:
        """Return the tool's answer; see `stages.Source`."""
        response = self.tool.run(self._parameters(request))
        if not isinstance(response, ToolResponse):  # a tool written for an older version
            return [{"content": str(response), "metadata": {"tool": self.name}}]
        if response.status is ToolStatus.ERROR:
            raise InputError(str((response.error_info or {}).get("message") or response.text))
        return [{"content": response.text, "metadata": {"tool": self.name, "status": response.status.value}}]


def to_hello(message: Message) -> HelloMessage:
    """Return one of our Messages as theirs; tool calls stay in the metadata."""
    more = {name: value for name in ("name", "tool_calls", "tool_call_id") if (value := getattr(message, name))}
    role = message.role if message.role in ("user", "assistant", "system", "tool", "summary") else "user"
    given: dict[str, Any] = {"metadata": {**(message.metadata or {}), **more}}
    if message.timestamp is not None:
        given["timestamp"] = message.timestamp
    return HelloMessage(message.text, role, **given)
