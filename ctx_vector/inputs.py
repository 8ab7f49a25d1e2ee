"""The arguments of one build, checked, and the sources it asks: the caller's own and the builder's retrieval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.config import ContextConfig
from ctx_vector.errors import ConfigError, InputError
from ctx_vector.gather import SourceSpec, packet_of
from ctx_vector.history import Listener, Said
from ctx_vector.packets import TYPE_HISTORY, TYPE_STATE, TYPE_SYSTEM, ContextPacket, as_utc, clean_text
from ctx_vector.stages import Request
from ctx_vector.structure import check_section_name, state_text

if TYPE_CHECKING:
    from ctx_vector.stages import Encoder

_OWN_KINDS: Final = (TYPE_SYSTEM, TYPE_STATE, TYPE_HISTORY)
_NO_LIMIT: Final = 1_000_000


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
    user_query: str,
    history: Sequence[Any] | None,
    system: str | None,
    custom: Sequence[Any] | None,
    documents: Sequence[Any] | None,
    state: str | Mapping[str, Any] | None,
    session_id: str | None,
    now: datetime | str | float | None,
) -> Inputs:
    """Check the arguments of `ContextBuilder.assemble`; a blank query asks none of `retrieval`.

    Reads the clock when `now` is None. Raises InputError naming the argument that is wrong.
    """
    if not isinstance(user_query, str):
        raise InputError(f"user_query: expected a str, got {type(user_query).__name__}")
    for name, text in (("system_instructions", system), ("session_id", session_id)):
        if text is not None and not isinstance(text, str):
            raise InputError(f"{name}: expected a str or None, got {type(text).__name__}")
    if state is not None and not isinstance(state, (str, Mapping)):
        raise InputError(f"state: expected a str or a flat mapping, got {type(state).__name__}")
    if isinstance(state, Mapping):
        deep = [key for key, value in state.items() if isinstance(value, (Mapping, list, tuple, set, frozenset))]
        if deep:
            raise InputError(
                f"state: {deep[0]!r} holds a {type(state[deep[0]]).__name__}, but state is flat; give one line of text "
                "for each key, or the whole state as a text"
            )
    for name, value in (("conversation_history", history), ("custom_packets", custom), ("documents", documents)):
        if value is not None and (isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence)):
            raise InputError(f"{name}: expected a sequence, got {type(value).__name__}; put a single item in a list")
    query = clean_text(user_query)
    moment = as_utc(now, "now") or datetime.now(UTC)
    said = listener.read(history or ())
    own = [_custom(item) for item in custom or ()]
    if system:
        own.insert(0, ContextPacket(system, metadata={"type": TYPE_SYSTEM, "priority": "high"}))
    if state:
        own.append(ContextPacket(state_text(state), metadata={"type": TYPE_STATE}))
    specs = (
        SourceSpec("custom", None, lambda _: own),
        SourceSpec("documents", "knowledge", lambda _: list(documents or ())),
        *(retrieval if query.strip() else ()),
    )
    roles = {item.message.role for item in said}
    roles |= {str(packet.meta["role"]) for packet in own if packet.meta.get("role")}
    request = Request(query, moment, session_id, config.knowledge_limit, config.knowledge_min_score)
    return Inputs(query, moment, specs, request, frozenset(roles), said)


def _custom(item: Any) -> ContextPacket:
    packet = packet_of(item)
    if packet.meta.get("section") is not None:
        check_section_name(packet.meta["section"])
    return packet


def retrieval_specs(
    config: ContextConfig, rag_tool: Any, memory_tool: Any, sources: Sequence[Any], encoder: Callable[[], Encoder]
) -> tuple[SourceSpec, ...]:
    """Return the sources that are asked with the query. Raises ConfigError for a source that cannot be one."""
    specs = []
    if rag_tool is not None and config.knowledge_limit:
        keys = {"limit": config.knowledge_limit, "min_score": config.knowledge_min_score}
        specs.append(_tool_spec("knowledge", rag_tool, config, encoder, keys))
    if memory_tool is not None and config.memory_limit != 0:
        limit = _NO_LIMIT if config.memory_limit is None else config.memory_limit
        keys = {"limit": limit, "min_importance": config.memory_min_importance}
        specs.append(_tool_spec("memory", memory_tool, config, encoder, keys))
    for number, source in enumerate(sources):
        kind = str(getattr(source, "kind", None) or "knowledge")
        problem = f"its kind {kind!r} is for the caller's own arguments" if kind in _OWN_KINDS else ""
        if not callable(getattr(source, "load", None)):
            problem = f"expected an object with load(request), got {type(source).__name__}"
        if problem:
            raise ConfigError([f"sources[{number}]: {problem}"])
        name = str(getattr(source, "name", None) or f"source{number + 1}")
        specs.append(SourceSpec(name, kind, source.load, config.source_timeout))
    return tuple(specs)


def _tool_spec(
    name: str, tool: Any, config: ContextConfig, encoder: Callable[[], Encoder], keys: Mapping[str, Any]
) -> SourceSpec:
    own = getattr(tool, "candidates", None)  # this package's tools hand over vectors and need no time limit
    if callable(own):
        return SourceSpec(
            name, name, lambda request: own(request.user_query, now=request.now, encoder=encoder(), **keys)
        )
    return SourceSpec(
        name,
        name,
        lambda request: tool.run({"action": "search", "query": request.user_query, **keys}),
        config.source_timeout,
    )
