"""The arguments of one build, checked, and the sources it asks: the caller's own and the builder's retrieval."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from ctx_vector.config import ContextConfig
from ctx_vector.conversation import Listener, Said
from ctx_vector.errors import ConfigError, InputError
from ctx_vector.gather import Requests, SourceSpec, packet_of
from ctx_vector.packets import (
    TYPE_AGENT,
    TYPE_HISTORY,
    TYPE_KNOWLEDGE,
    TYPE_RESULT,
    TYPE_STATE,
    TYPE_SYSTEM,
    TYPE_TOOL,
    Candidate,
    ContextPacket,
)
from ctx_vector.rules import nearest
from ctx_vector.stages import Request, Retrieval
from ctx_vector.structure import check_section_name, state_text
from ctx_vector.values import as_utc, clean_text

if TYPE_CHECKING:
    from ctx_vector.rerank import SecondPass
    from ctx_vector.stages import Encoder

P = ParamSpec("P")
R = TypeVar("R")

#: What other libraries call the arguments of a build.
_OTHER_NAMES: Final = {
    "system_prompt": "system_instructions",
    "system": "system_instructions",
    "user_input": "user_query",
    "query": "user_query",
    "retrieval_docs": "documents",
    "docs": "documents",
    "history": "conversation_history",
    "messages": "conversation_history",
    "packets": "custom_packets",
}
_OWN_KINDS: Final = (TYPE_SYSTEM, TYPE_STATE, TYPE_HISTORY)
_RESULT_KEYS: Final = {"content", "name", "id", "timestamp", "score", "metadata", "version", "tool_call_id"}
_ADAPTERS: Final = {"langchain_core": "langchain", "langchain": "langchain", "llama_index": "llama_index"}
_PLACES: Final = ("source", "file_path", "file_name", "url")
_PAGES: Final = ("page_label", "page_number")  # as people count; `page` begins at 0 in one loader and at 1 in another
_NO_LIMIT: Final = 1_000_000


def named(method: Callable[P, R]) -> Callable[P, R]:
    """Make a method answer an unknown keyword with the one that was meant: InputError instead of TypeError."""
    known = tuple(name for name in inspect.signature(method).parameters if name != "self")

    @functools.wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                meant = _OTHER_NAMES.get(name)
                hint = f"; here it is called {meant!r}" if meant else nearest(name, known)
                raise InputError(
                    f"{method.__name__}: unknown argument {name!r}{hint or '; it takes ' + ', '.join(known)}"
                )
        return method(*args, **kwargs)

    return checked


@dataclass(frozen=True, slots=True)
class Given:
    """The arguments of `ContextBuilder.assemble` as the caller gave them."""

    user_query: str
    conversation_history: Sequence[Any] | None = ()
    system_instructions: str | None = None
    custom_packets: Sequence[Any] | None = ()
    documents: Sequence[Any] | None = ()
    tools: Sequence[Any] | None = ()
    tool_categories: Sequence[str] | None = None
    tool_results: Sequence[Any] | Mapping[str, Any] | None = ()
    agent_outputs: Sequence[Any] | Mapping[str, Any] | None = ()
    images: Sequence[Any] | None = ()
    state: str | Mapping[str, Any] | None = None
    session_id: str | None = None
    now: datetime | str | float | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one build works on: the sources to ask, but for the history, and the messages of the history as `said`.
    `roles` are all roles that can stand in the Context section.
    """

    query: str
    now: datetime
    specs: tuple[SourceSpec, ...]
    request: Request
    roles: frozenset[str]
    said: list[Said]


def read_inputs(
    config: ContextConfig,
    retrieval: Sequence[SourceSpec],
    listener: Listener,
    given: Given,
    second: SecondPass | None = None,
) -> Inputs:
    """Check the arguments of `ContextBuilder.assemble`; `retrieval` is asked after the caller's own.

    Reads the clock when `now` is None. Raises InputError naming the argument that is wrong.
    """
    _check(given)
    query = clean_text(given.user_query)
    moment = as_utc(given.now, "now") or datetime.now(UTC)
    said = listener.read(_messages(given.conversation_history or ()))
    own = [_custom(item, number) for number, item in enumerate(given.custom_packets or ())]
    if given.system_instructions:
        own.insert(0, ContextPacket(given.system_instructions, metadata={"type": TYPE_SYSTEM, "priority": "high"}))
    if given.state:
        own.append(ContextPacket(state_text(given.state), metadata={"type": TYPE_STATE}))
    specs = [
        SourceSpec("custom", None, lambda _: own),
        SourceSpec("documents", TYPE_KNOWLEDGE, lambda _: [_cited(item) for item in given.documents or ()]),
    ]
    if given.tools:
        tools = _tools(given)
        specs.append(SourceSpec("tools", TYPE_TOOL, lambda _: tools))
    if given.tool_results:
        results = _named("tool_results", given.tool_results, "name", _result)
        specs.append(SourceSpec("tool_results", TYPE_RESULT, lambda _: results, layer="tool"))
    if given.agent_outputs:
        outputs = _named("agent_outputs", given.agent_outputs, "agent", lambda value: value)
        specs.append(SourceSpec("agent_outputs", TYPE_AGENT, lambda _: outputs, layer="agents"))
    specs += retrieval
    roles = {item.message.role for item in said}
    roles |= {str(packet.meta["role"]) for packet in own if packet.meta.get("role")}
    request = make_request(config, query, moment, given.session_id, second)
    return Inputs(query, moment, tuple(specs), request, frozenset(roles), said)


def _messages(history: Sequence[Any]) -> Sequence[Any]:
    """Return the messages; raise InputError for one of another framework, which our adapter for it makes ours."""
    for number, item in enumerate(history):
        adapter = _ADAPTERS.get(type(item).__module__.partition(".")[0])
        if adapter is not None:
            raise InputError(
                f"conversation_history[{number}]: a {type(item).__name__} is no message of ours; give "
                f"ctx_vector.adapters.{adapter}.to_messages(...) of them"
            )
    return history


def _check(given: Given) -> None:
    """Raise InputError for an argument of the wrong kind."""
    if not isinstance(given.user_query, str):
        raise InputError(f"user_query: expected a str, got {type(given.user_query).__name__}")
    for name in ("system_instructions", "session_id"):
        text = getattr(given, name)
        if text is not None and not isinstance(text, str):
            raise InputError(f"{name}: expected a str or None, got {type(text).__name__}")
    state = given.state
    if state is not None and not isinstance(state, (str, Mapping)):
        raise InputError(f"state: expected a str or a flat mapping, got {type(state).__name__}")
    if isinstance(state, Mapping):
        deep = [key for key, value in state.items() if isinstance(value, (Mapping, list, tuple, set, frozenset))]
        if deep:
            raise InputError(
                f"state: {deep[0]!r} holds a {type(state[deep[0]]).__name__}, but state is flat; give one line of text "
                "for each key, or the whole state as a text"
            )
    for name in ("conversation_history", "custom_packets", "documents", "tools", "tool_results", "agent_outputs"):
        value = getattr(given, name)
        if value is None or (isinstance(value, Mapping) and name in ("tool_results", "agent_outputs")):
            continue
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
            single = isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable)
            todo = "put a single item in a list" if single else "make a list of it"
            raise InputError(f"{name}: expected a sequence, got {type(value).__name__}; {todo}")


def _tools(given: Given) -> list[Candidate]:
    """Return the tools of the categories asked for, with what each is searched by."""
    from ctx_vector.tool_reading import read_tools
    from ctx_vector.tool_schemas import in_categories

    tools = in_categories(read_tools(given.tools or ()), given.tool_categories)
    return [
        Candidate(ContextPacket(tool.search_text, metadata={"type": TYPE_TOOL, "id": tool.name}), "tools", tool=tool)
        for tool in tools
    ]


def _named(argument: str, value: Sequence[Any] | Mapping[str, Any], key: str, text: Callable[[Any], Any]) -> list[Any]:
    """Return what tools or agents gave, as items; the keys of a mapping are their names."""
    if not isinstance(value, Mapping):
        return [text(item) for item in value]
    items: list[Any] = []
    for name, given in value.items():
        try:
            packet = packet_of(text(given))
        except InputError as error:
            raise InputError(f"{argument}[{name!r:.60}]: {error}") from error
        score = packet.relevance if packet.scored else None
        items.append(ContextPacket(packet.content, packet.timestamp, None, score, {key: str(name), **packet.meta}))
    return items


def _result(value: Any) -> Any:
    """Return what a tool gave as a packet or a text; what is neither, nor a mapping that says `content`, is JSON."""
    if isinstance(value, (str, ContextPacket)):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("content"), str) and set(value) <= _RESULT_KEYS:
        return value
    from ctx_vector.json_results import json_line

    return json_line(value)


def make_request(
    config: ContextConfig, query: str, now: datetime, session_id: str | None, second: SecondPass | None = None
) -> Request:
    """Return what sources are asked for in a build."""
    limit, least = config.knowledge_limit, config.knowledge_min_score
    return Request(query, now, session_id, limit, least, how=_how(config, second))


def _how(config: ContextConfig, second: SecondPass | None) -> Retrieval:
    return Retrieval(config.strategy, config.alike_limit, config.mmr_lambda, second)


def _custom(item: Any, number: int) -> ContextPacket:
    try:
        packet = packet_of(item)
        if packet.meta.get("section") is not None:
            check_section_name(packet.meta["section"])
    except InputError as error:
        raise InputError(f"custom_packets[{number}]: {error}") from error
    return packet


def _cited(item: Any) -> Any:
    """Return a document of the caller's with what it is cited by: its own `cite`, else where its metadata says it is
    from, as LangChain (`source`), LlamaIndex and Haystack (`file_path`, `file_name`) name that, and the page.
    """
    try:
        packet = packet_of(item)
        said = packet.meta if not isinstance(meta := getattr(item, "meta", None), Mapping) else {**meta, **packet.meta}
        place = next((said[name] for name in _PLACES if isinstance(said.get(name), str) and said[name].strip()), None)
        page = next(
            (said[name] for name in _PAGES if isinstance(said.get(name), (str, int)) and said[name] != ""), None
        )
    except Exception:  # an item may be any object; whatever is wrong with it is told when it is gathered
        return item
    if place is None or packet.meta.get("cite"):
        return packet
    cite = place if page is None else f"{place}:p{page}"
    score = packet.relevance if packet.scored else None
    return ContextPacket(packet.content, packet.timestamp, packet.token_count, score, {**packet.meta, "cite": cite})


def as_tool(name: str, given: Any) -> Any:
    """Return what the builder asks: the object given, or a tool made of a KnowledgeBase or a Memory.

    Raises ConfigError for what cannot be asked.
    """
    if given is None or callable(getattr(given, "run", None)) or callable(getattr(given, "candidates", None)):
        return given
    from ctx_vector.knowledge import KnowledgeBase
    from ctx_vector.memory import Memory
    from ctx_vector.tools import MemoryTool, RAGTool

    if name == "rag_tool" and isinstance(given, KnowledgeBase):
        return RAGTool(knowledge=given)
    if name == "memory_tool" and isinstance(given, Memory):
        return MemoryTool(memory=given)
    make = "RAGTool(knowledge_base_path=...)" if name == "rag_tool" else "MemoryTool(user_id=...)"
    raise ConfigError([f"{name}: expected an object with run({{...}}), such as {make}, got {given!r:.60}"])


def retrieval_specs(
    config: ContextConfig,
    rag_tool: Any,
    memory_tool: Any,
    sources: Sequence[Any],
    encoder: Callable[[], Encoder],
    requests: Mapping[str, Requests],
    second: SecondPass | None = None,
) -> tuple[SourceSpec, ...]:
    """Return the sources that are asked with the query; `requests` gives those of a source, by a name of it.

    Raises ConfigError for a source that cannot be one.
    """
    specs = []
    if rag_tool is not None and config.knowledge_limit:
        keys = {"limit": config.knowledge_limit, "min_score": config.knowledge_min_score}
        specs.append(_tool_spec("knowledge", rag_tool, config, encoder, requests["knowledge"], second, keys))
    if memory_tool is not None and config.memory_limit != 0:
        limit = _NO_LIMIT if config.memory_limit is None else config.memory_limit
        keys = {"limit": limit, "min_importance": config.memory_min_importance}
        specs.append(_tool_spec("memory", memory_tool, config, encoder, requests["memory"], second, keys))
    for number, source in enumerate(sources):
        kind = str(getattr(source, "kind", None) or TYPE_KNOWLEDGE)
        problem = f"its kind {kind!r} is for the caller's own arguments" if kind in _OWN_KINDS else ""
        if not callable(getattr(source, "load", None)):
            problem = f"expected an object with load(request), got {type(source).__name__}"
        if problem:
            raise ConfigError([f"sources[{number}]: {problem}"])
        name = str(getattr(source, "name", None) or f"source{number + 1}")
        running = requests[f"sources[{number}]"]
        specs.append(SourceSpec(name, kind, source.load, config.source_timeout, requests=running))
    return tuple(specs)


def _tool_spec(
    name: str,
    tool: Any,
    config: ContextConfig,
    encoder: Callable[[], Encoder],
    requests: Requests,
    second: SecondPass | None,
    keys: Mapping[str, Any],
) -> SourceSpec:
    own = getattr(tool, "candidates", None)  # this package's tools hand over vectors and need no time limit
    if callable(own):
        keys = {**keys, "how": _how(config, second)}
        return SourceSpec(
            name, name, lambda request: own(request.user_query, now=request.now, encoder=encoder(), **keys)
        )
    return SourceSpec(
        name,
        name,
        lambda request: tool.run({"action": "search", "query": request.user_query, **keys}),
        config.source_timeout,
        requests=requests,
    )
