"""The fixed template: which section a packet goes to, how it looks there; parsing.py reads a context back.

Sections come in this order, empty ones are left out except Task and Output::

    [Role & Policies]   system instructions, then tool definitions, a line each, under "[Tools]"
    [Task]              the query
    [State]             task state
    [<extra>]           sections that the caller named
    [Evidence]          knowledge, then other agents' outputs; with layers static, dynamic and tool results in this
                        order, each under its title
    [Context]           history as "role: content", memories as "Memory: content", then general packets; before the
                        history a summary of what is older, and a line for turns that are left out between others
    [Output]            what to do, and a reminder

Messages: one system message with everything but Task and history ("single"), or one a section ("split"), then the
history under its own roles, then the query. History and query are the caller's text as it is.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ctx_vector.config import ContextConfig
from ctx_vector.errors import InputError
from ctx_vector.escaping import escape, normalise, role_label, single_line
from ctx_vector.layout import CONTEXT, EVIDENCE, FIXED_SECTIONS, OUTPUT, ROLE, STATE, TASK, Layout, Piece
from ctx_vector.packets import (
    EVIDENCE_TYPES,
    TYPE_AGENT,
    TYPE_HISTORY,
    TYPE_MEMORY,
    TYPE_RESULT,
    TYPE_STATE,
    TYPE_SYSTEM,
    Candidate,
    ContextPacket,
    Message,
)
from ctx_vector.stages import TokenCounter

TEXTS: Final[Mapping[str, Mapping[str, str]]] = {
    "en": {
        "output": "Please provide accurate, evidence-based answers based on the above information.",
        "memory": "Memory",
        "compressed": "[... Content compressed ...]",
        "left_out": "[... {n} turns left out ...]",
        "left_out_one": "[... 1 turn left out ...]",
        "summary": "[Summary of the earlier conversation]",
        "source": "[Source {n}{cite}]",
        "cite": "[Source: {cite}]",
        "intro": "The following reference material relates to the current question:",
        "closing": "If these sources do not answer the question, say so.",
        "tools": "[Tools]",
        "agent": "[Agent: {name}]",
        "version": "(version: {version})",
        "system": "[System rules - highest priority]",
        "static": "[Project policy]",
        "dynamic": "[Knowledge results - for reference]",
        "tool": "[Live tool results - for reference only]",
    },
    "zh": {
        "output": "请基于以上信息,提供准确、有据的回答。",
        "memory": "记忆",
        "compressed": "[... 内容已压缩 ...]",
        "left_out": "[... 省略 {n} 轮对话 ...]",
        "left_out_one": "[... 省略 1 轮对话 ...]",
        "summary": "[此前对话摘要]",
        "source": "[资料{n}{cite}]",
        "cite": "[资料: {cite}]",
        "intro": "以下是与当前问题相关的参考资料：",
        "closing": "如果以上资料不能回答问题，请明确说明。",
        "tools": "[可用工具]",
        "agent": "[智能体: {name}]",
        "version": "(version: {version})",
        "system": "[系统规则 - 最高优先级]",
        "static": "[项目政策]",
        "dynamic": "[知识库检索结果 - 供参考]",
        "tool": "[实时工具返回 - 仅供参考]",
    },
}
#: Where the layers with a title of their own stand.
LAYER_SLOTS: Final[Mapping[str, tuple[str, str]]] = {
    "system": (ROLE, "items"),
    "static": (EVIDENCE, "static"),
    "dynamic": (EVIDENCE, "items"),
    "tool": (EVIDENCE, "tool"),
}
#: What an empty answer to a tool call shows, for a call must not stay without its answer.
NO_OUTPUT: Final = "(no output)"
#: The label of a numbered item of evidence.
NUMBERED_LABEL: Final = re.compile(r"\[(?:Source |资料)\d+(?:: .*)?\]")
#: A last line that says of which version an item is, escaped or not.
VERSION_LINE: Final = re.compile(r"\\*\(version: .*\)")


def locale_of(query: str) -> str:
    """Return `zh` when the query holds a Han character and no kana, else `en`."""
    han = any("\u4e00" <= char <= "\u9fff" or "\u3400" <= char <= "\u4dbf" for char in query)
    return "zh" if han and not any("\u3040" <= char <= "\u30ff" for char in query) else "en"


def check_section_name(name: Any) -> str:
    """Return an extra section's name on one line; InputError when it is blank or equals a fixed name."""
    shown = single_line(name)[:120] if isinstance(name, str) else ""
    folded = unicodedata.normalize("NFKC", shown).casefold()
    if not folded.strip():
        raise InputError(f'metadata["section"]: expected a name, got {name!r}')
    if folded in {fixed.casefold() for fixed in FIXED_SECTIONS}:
        raise InputError(
            f'metadata["section"]: {name!r} is a fixed section; use metadata["type"] to put a packet there'
        )
    return shown


def title_line(title: str) -> str:
    """Return the title of a layer as its line: in square brackets, whatever was given.

    Raises InputError for one that equals the header of a fixed section, or would be read as a label.
    """
    shown = single_line(title)
    shown = shown[1:-1].strip() if shown.startswith("[") and shown.endswith("]") else shown
    taken = {*FIXED_SECTIONS, *(texts["tools"][1:-1] for texts in TEXTS.values())}
    if unicodedata.normalize("NFKC", shown).casefold() in {name.casefold() for name in taken}:
        raise InputError(f"title: {title!r} is the name of a fixed section; choose another")
    if NUMBERED_LABEL.fullmatch(f"[{shown}]"):
        raise InputError(f"title: {title!r} is how numbered evidence is labelled; choose another")
    return f"[{shown}]"


def slot_of(candidate: Candidate) -> tuple[str, str]:
    """Return (section, group) of a candidate by its metadata and its layer."""
    packet = candidate.packet
    if candidate.tool is not None:
        return ROLE, "tools"
    if candidate.image is not None:
        return TASK, "images"
    if packet.meta.get("section") is not None:
        return check_section_name(packet.meta["section"]), "items"
    kind = packet.type
    if kind == TYPE_SYSTEM:
        return ROLE, "items"
    if kind == TYPE_STATE:
        return STATE, "items"
    if kind == TYPE_AGENT:
        return EVIDENCE, "agents"
    if kind in EVIDENCE_TYPES:
        return EVIDENCE, candidate.layer if candidate.layer in ("static", "tool") else "items"
    if kind == TYPE_HISTORY:
        return CONTEXT, "history"
    return CONTEXT, "memory" if kind == TYPE_MEMORY else "general"


def state_text(state: str | Mapping[str, Any]) -> str:
    """Return task state as text: a str as it is, a flat mapping as `key: value` lines."""
    if isinstance(state, Mapping):
        return "\n".join(f"{single_line(str(key))}: {single_line(str(value))}" for key, value in state.items())
    return state


def shown_text(text: str) -> str:
    """Return a text as it is shown, not yet escaped; "" when there is nothing in it to see."""
    return normalise(text) if text.strip() else ""


def message_body(message: Message) -> str:
    """Return a message's text for the Context section; tool calls show as `name(arguments)` lines."""
    lines = [text] if (text := shown_text(message.text)) else []
    for call in message.tool_calls or ():
        function = call.get("function")
        if not isinstance(function, Mapping):
            function = call
        arguments = function.get("arguments", "")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        lines.append(f"{single_line(str(function.get('name') or 'tool'))}({single_line(arguments)})")
    return "\n".join(lines) or (NO_OUTPUT if message.tool_call_id else "")


def chat_message(message: Message, content: str) -> dict[str, Any]:
    """Return a message of the history as it is sent, saying `content`, with its images."""
    sent: dict[str, Any] = {"role": message.role, "content": content}
    if not isinstance(message.content, str) and message.content:
        from ctx_vector.images import image_parts  # only messages with parts pay for it

        if images := image_parts(message.content):
            whole = content == message.text
            sent["content"] = list(message.content) if whole else [{"type": "text", "text": content}, *images]
    for name in ("name", "tool_calls", "tool_call_id"):
        if value := getattr(message, name):
            sent[name] = value
    return sent


class Template:
    """Turns packets into pieces of a layout, in one language and with the roles of one build.

    `titles` are lines above the layers, given (if only as an empty mapping) when the build has layers.
    """

    def __init__(
        self,
        config: ContextConfig,
        counter: TokenCounter,
        query: str,
        roles: Iterable[str] = (),
        titles: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self.counter = counter
        self.query = query
        self.locale = locale_of(query) if config.locale == "auto" else config.locale
        self.texts = TEXTS[self.locale]
        self._role_labels = {role: role_label(role) for role in roles}
        self.labels = tuple(sorted(set(self._role_labels.values())))
        self._titles = {(ROLE, "tools"): self.texts["tools"]}
        if titles is not None:
            self._titles |= {
                slot: title_line(titles.get(layer) or self.texts[layer]) for layer, slot in LAYER_SLOTS.items()
            }

    def layout(self, extras: Sequence[str]) -> Layout:
        """Return an empty layout with Task and Output in it."""
        layout = Layout(
            self.counter,
            self.texts,
            style=self.config.messages_style,
            numbered=self.config.evidence_style == "numbered",
            extras=extras,
            titles=self._titles,
            tools_apart=self._tools_apart(),
        )
        if body := shown_text(self.query):
            message = {"role": "user", "content": self.query}
            layout.add(TASK, "items", self._piece(escape(body), message=message))
        first = self.texts["output"] if self.config.output_instructions is None else None
        lines = [first or escape(normalise(self.config.output_instructions or ""))]
        lines.append(escape(normalise(self.config.reminder or "")))
        if body := "\n".join(line for line in lines if line):
            layout.add(OUTPUT, "items", self._piece(body))
        return layout

    def _piece(self, body: str, *, message: Mapping[str, Any] | None = None, **fields: Any) -> Piece:
        text = body + "\n"
        cost = 0
        if message is not None:
            cost = self.counter.count_messages([message]) - self.counter.count_messages([])
        return Piece(text, self.counter.count(text), message=message, message_tokens=cost, **fields)

    @staticmethod
    def body(candidate: Candidate) -> str:
        """Return what a candidate says, normalised and not yet escaped; "" when it says nothing."""
        message = candidate.message
        if message is not None and (message.tool_calls or message.tool_call_id):
            return message_body(message)
        if candidate.tool is not None:
            return str(candidate.tool.text())
        if candidate.packet.type == TYPE_RESULT:
            from ctx_vector.json_results import json_line  # only builds with such results pay for it

            return shown_text(json_line(candidate.packet.content) or candidate.packet.content)
        return shown_text(candidate.packet.content)

    def piece(
        self,
        candidate: Candidate,
        slot: tuple[str, str],
        order: tuple[Any, ...],
        body: str,
        *,
        shortened: bool = False,
        marked: bool = True,
    ) -> Piece:
        """Return the piece of a candidate that says `body`, in its slot (section, group).

        A shortened body gets the marker of compression; not when it says itself what is left out (`marked` False).
        """
        section, group = slot
        if group == "tools":
            return self.tool(candidate.tool, order)
        if group == "images":
            return Piece("", 0, order, message=candidate.image, message_tokens=int(candidate.packet.meta["tokens"]))
        marker = self.texts["compressed"] if shortened and marked else ""
        text = escape(body, self.labels if section == CONTEXT else None)
        if marker:
            text = f"{text}\n{marker}" if text else marker
        if section == EVIDENCE:
            return self._evidence(candidate.packet, group, text, order)
        if group == "memory":
            text = f"{self.texts['memory']}: {text}"
        if group != "history":
            return self._piece(text, order=order)
        content = candidate.packet.content
        message = candidate.message or Message(content, str(candidate.packet.meta.get("role") or "user"))
        if shortened:
            content = "\n".join(line for line in (body, marker) if line)
        elif body == NO_OUTPUT:
            content = body
        sent = chat_message(message, content)
        return self._piece(f"{self._label(message.role)}: {text}", message=sent, order=order)

    def _evidence(self, packet: ContextPacket, group: str, text: str, order: tuple[Any, ...]) -> Piece:
        if self.config.versions:
            text = self._with_version(packet, text)
        cite = single_line(str(packet.meta.get("cite", ""))) if self.config.citations else ""
        agent = single_line(str(packet.meta.get("agent", ""))) if group == "agents" else ""
        if agent:
            text = self.texts["agent"].format(name=agent) + "\n" + text
        elif cite and not (group == "items" and self.config.evidence_style == "numbered"):
            text = self.texts["cite"].format(cite=cite) + "\n" + text
        return self._piece(text, order=order, cite=cite)

    def _with_version(self, packet: ContextPacket, text: str) -> str:
        """Return an item with the version of what it says as its last line; a last line that looks so is escaped."""
        before, line_break, last = text.rpartition("\n")
        if VERSION_LINE.fullmatch(last):
            text = f"{before}{line_break}\\{last}"
        version = single_line(str(packet.meta.get("version") or ""))
        return f"{text}\n{self.texts['version'].format(version=version)}" if version else text

    def tool(self, tool: Any, order: tuple[Any, ...]) -> Piece:
        """Return the piece of a tool definition: a line of the text, or what it costs when it is sent beside it."""
        if self.config.tools_in == "api":
            from ctx_vector.tool_schemas import api_tokens

            return Piece("", 0, order, message_tokens=api_tokens(tool, self.counter.count))
        return self._piece(escape(tool.text()), order=order)  # a line already, its strings as they are

    def _tools_apart(self) -> int | None:
        if self.config.tools_in == "text":
            return None
        from ctx_vector.tool_schemas import API_OVERHEAD  # only builds with tools pay for it

        return API_OVERHEAD

    def left_out(self, turns: int) -> Piece:
        """Return the line that stands for turns that are left out of the history."""
        text = self.texts["left_out" if turns > 1 else "left_out_one"].format(n=turns)
        return self._piece(text, message={"role": "system", "content": text})

    def summary(self, body: str, order: tuple[Any, ...], *, shortened: bool = False) -> Piece:
        """Return the summary of the earlier conversation, under its title; a shortened one gets the marker."""
        lines = [self.texts["summary"], escape(body, self.labels), self.texts["compressed"] if shortened else ""]
        text = "\n".join(line for line in lines if line)
        return self._piece(text, message={"role": "system", "content": text}, order=order)

    def _label(self, role: str) -> str:
        if role not in self._role_labels:
            self._role_labels[role] = role_label(role)
        return self._role_labels[role]
