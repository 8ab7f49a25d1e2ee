"""A conversation as it is given: messages read, remembered from build to build, and put together to turns.

    messages of any usual form ── Listener ── [Said, ...] ── read_turns ── turns, and what must not stand in a context

What becomes of the turns says history.py.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ctx_vector.built import Decision
from ctx_vector.config import ContextConfig
from ctx_vector.errors import InputError
from ctx_vector.gather import TOOL_ROLES
from ctx_vector.layout import Piece
from ctx_vector.packets import TYPE_HISTORY, Candidate, ContextPacket, Message
from ctx_vector.stages import TokenCounter
from ctx_vector.structure import chat_message, message_body

#: Messages that a listener remembers.
_MOST_MESSAGES: Final = 10_000


@dataclass(slots=True, eq=False)
class Said:
    """One message of a conversation. `plain` says that it can stand in a context whatever is before it.

    What has been worked out of it stays with it: the tokens of the chat message, the line it becomes in a summary, the
    turn it was last seen to begin, as one text, its piece of a layout for the labels of a build, and its last Decision.
    """

    message: Message
    packet: ContextPacket
    plain: bool
    tokens: int = -1
    line: str = ""
    turn: tuple[list[Said], Candidate] | None = None
    shown: tuple[tuple[str, ...], Piece] | None = None
    dropped: Decision | None = None

    def size(self, counter: TokenCounter) -> int:
        """Return the tokens of the chat message with framing, counted once."""
        if self.tokens < 0:
            sent = chat_message(self.message, self.packet.content)
            self.tokens = counter.count_messages([sent]) - counter.count_messages([])
        return self.tokens

    def spoken(self) -> str:
        """Return the message as ``role: content``."""
        if not self.line:
            self.line = f"{self.message.role}: {message_body(self.message)}"
        return self.line


class Listener:
    """Reads conversations, and remembers plain messages: most of a conversation was there at the last build.

    Safe to share between threads; for one counter.
    """

    def __init__(self, counter: TokenCounter) -> None:
        self.counter = counter
        self._known: dict[Hashable, Said] = {}

    def read(self, items: Sequence[Any]) -> list[Said]:
        """Return the messages of a conversation. Raises InputError for one that is none."""
        known = self._known
        if len(known) > _MOST_MESSAGES:
            self._known = known = {}
        said = []
        for index, item in enumerate(items):
            key = _key(item)
            found = known.get(key) if key is not None else None
            if found is None:
                found = _said(item, index)
                if key is not None:
                    known[key] = found
            said.append(found)
        return said


def _key(item: Any) -> Hashable | None:
    """Return what tells a message from others: role, text and time, or itself when it has metadata.

    None for a message with parts or tool calls, or a mapping with more than role and content: these may change.
    """
    role: Any
    content: Any
    if type(item) is Message:
        if item.tool_calls or item.name or item.tool_call_id:
            return None
        if item.metadata:  # what is remembered holds the message, so that no other can get its id
            return id(item) if type(item.content) is str else None
        role, content, stamp = item.role, item.content, item.timestamp
    elif type(item) is dict and len(item) == 2:
        role, content, stamp = item.get("role"), item.get("content"), None
    else:
        return None
    return (role, content, stamp) if type(content) is str and type(role) is str else None


def _said(item: Any, index: int) -> Said:
    message = Message.of(item)
    if message.tool_calls:
        _check_calls(message, index)
    return said_of(message)


def said_of(message: Message, more: Mapping[str, Any] | None = None) -> Said:
    """Return a message of a conversation, read for the first time; `more` is metadata of its packet."""
    metadata = {"type": TYPE_HISTORY, "role": message.role, **(more or {})}
    packet = ContextPacket(message.text, message.timestamp, metadata=metadata)
    blank = not packet.content or packet.content.isspace()
    return Said(message, packet, plain=not (blank or message.tool_calls or message.role in TOOL_ROLES))


def _check_calls(message: Message, index: int) -> None:
    calls = list(message.tool_calls or ())
    try:
        json.dumps(calls)
        for call in calls:
            call.get("id")
    except (TypeError, ValueError, AttributeError):
        raise InputError(
            f"conversation_history[{index}].tool_calls: expected JSON-ready mappings such as "
            f'{{"id": ..., "function": {{"name": ..., "arguments": ...}}}}, got {calls!r:.80}'
        ) from None


Fate = tuple[Said, str, str]  # a message that does not stand in the context, with reason and detail


def read_turns(said: Sequence[Said], query: str, config: ContextConfig) -> tuple[list[list[Said]], list[Fate]]:
    """Return the turns, and apart the messages that must not stand in the context.

    A turn is a user message and everything up to the next user message, so that no answer stays without its question
    and no tool result without its call. Messages before the first user message form a turn of their own.

    Left out are all if `include` says so, and else empty ones, the last one when it only repeats the query, and tool
    results whose call is not there.
    """
    if not config.include.get("history", True):
        return [], [(item, "quota", "include.history is False") for item in said]
    turns: list[list[Said]] = []
    left_out: list[Fate] = []
    if said and query.strip() and said[-1].message.role == "user" and said[-1].packet.content.strip() == query.strip():
        left_out.append((said[-1], "duplicate", "repeats the query"))
        said = said[:-1]
    calls: set[str] = set()
    first = True  # of a turn, counting those that are left out
    for item in said:
        opens = item.message.role == "user"
        if opens:
            first, calls = True, set()
        if not item.plain and (fate := _unfit(item, calls, first)):
            left_out.append((item, *fate))
        elif opens or not turns:
            turns.append([item])
        else:
            turns[-1].append(item)
        first = False
    return turns, left_out


def _unfit(item: Said, calls: set[str], first: bool) -> tuple[str, str] | None:
    """Return why a message must not stand in the context; add its calls to those of the turn so far."""
    message, blank = item.message, not item.packet.content.strip()
    calls |= {str(call.get("id")) for call in message.tool_calls or ()}
    if message.role in TOOL_ROLES and not (message.tool_call_id in calls if message.tool_call_id else not first):
        return "window", "a tool result without its call"
    if blank and not message.tool_calls and not message.tool_call_id:
        return "empty", "nothing to show"
    return None
