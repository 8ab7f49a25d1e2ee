"""The fixed template: which section a packet goes to, how it looks there, and how to read a context back.

Sections come in this order, empty ones are left out except Task and Output::

    [Role & Policies]   system instructions
    [Task]              the query
    [State]             task state
    [<extra>]           sections that the caller named
    [Evidence]          knowledge, then other agents' outputs
    [Context]           history as "role: content", memories as "Memory: content", then general packets
    [Output]            what to do, and a reminder

Messages: one system message with everything but Task and history ("single"), or one a section ("split"), then the
history under its own roles, then the query. History and query are the caller's text as it is.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ctx_vector.config import ContextConfig
from ctx_vector.errors import InputError
from ctx_vector.escaping import FIXED_LABELS, escape, normalise, role_label, single_line, unescape
from ctx_vector.layout import CONTEXT, EVIDENCE, FIXED_SECTIONS, OUTPUT, ROLE, STATE, TASK, Layout, Piece
from ctx_vector.packets import (
    EVIDENCE_TYPES,
    TYPE_AGENT,
    TYPE_HISTORY,
    TYPE_MEMORY,
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
        "source": "[Source {n}{cite}]",
        "cite": "[Source: {cite}]",
        "intro": "The following reference material relates to the current question:",
        "closing": "If these sources do not answer the question, say so.",
    },
    "zh": {
        "output": "请基于以上信息,提供准确、有据的回答。",
        "memory": "记忆",
        "compressed": "[... 内容已压缩 ...]",
        "source": "[资料{n}{cite}]",
        "cite": "[资料: {cite}]",
        "intro": "以下是与当前问题相关的参考资料：",
        "closing": "如果以上资料不能回答问题，请明确说明。",
    },
}
_NUMBERED_LABEL = re.compile(r"\[(?:Source |资料)\d+(?:: .*)?\]")


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


def slot_of(packet: ContextPacket) -> tuple[str, str]:
    """Return (section, group) of a packet by its metadata."""
    if packet.meta.get("section") is not None:
        return check_section_name(packet.meta["section"]), "items"
    kind = packet.type
    if kind == TYPE_SYSTEM:
        return ROLE, "items"
    if kind == TYPE_STATE:
        return STATE, "items"
    if kind in EVIDENCE_TYPES:
        return EVIDENCE, "agents" if kind == TYPE_AGENT else "items"
    if kind == TYPE_HISTORY:
        return CONTEXT, "history"
    return CONTEXT, "memory" if kind == TYPE_MEMORY else "general"


def state_text(state: str | Mapping[str, Any]) -> str:
    """Return task state as text: a str as it is, a flat mapping as `key: value` lines."""
    if isinstance(state, Mapping):
        return "\n".join(f"{single_line(str(key))}: {single_line(str(value))}" for key, value in state.items())
    return state


def message_body(message: Message) -> str:
    """Return a message's text for the Context section; tool calls show as `name(arguments)` lines."""
    lines = [text] if (text := normalise(message.text)) else []
    for call in message.tool_calls or ():
        function = call.get("function", call)
        arguments = function.get("arguments", "")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        lines.append(f"{single_line(str(function.get('name', 'tool')))}({single_line(arguments)})")
    return "\n".join(lines)


class Template:
    """Turns packets into pieces of a layout, in one language and with the roles of one build."""

    def __init__(self, config: ContextConfig, counter: TokenCounter, query: str, roles: Iterable[str] = ()) -> None:
        self.config = config
        self.counter = counter
        self.query = query
        self.locale = locale_of(query) if config.locale == "auto" else config.locale
        self.texts = TEXTS[self.locale]
        self.labels = tuple(sorted({role_label(role) for role in roles}))

    def layout(self, extras: Sequence[str]) -> Layout:
        """Return an empty layout with Task and Output in it."""
        layout = Layout(
            self.counter,
            self.texts,
            style=self.config.messages_style,
            numbered=self.config.evidence_style == "numbered",
            extras=extras,
        )
        if body := normalise(self.query):
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

    def body(self, candidate: Candidate) -> str:
        """Return what a candidate says, normalised and not yet escaped; "" when it says nothing."""
        if candidate.message is not None:
            return message_body(candidate.message)
        return normalise(candidate.packet.content)

    def piece(self, candidate: Candidate, order: tuple[Any, ...], *, short: str | None = None) -> Piece:
        """Return the piece of a candidate; `short` is a shortened body, which gets the marker of compression."""
        section, group = slot_of(candidate.packet)
        body = self.body(candidate) if short is None else short
        marker = "" if short is None else self.texts["compressed"]
        cite = single_line(str(candidate.packet.meta.get("cite", ""))) if self.config.citations else ""
        if section != CONTEXT:
            text = "\n".join(line for line in (escape(body), marker) if line)
            if cite and section == EVIDENCE and not (group == "items" and self.config.evidence_style == "numbered"):
                text = self.texts["cite"].format(cite=cite) + "\n" + text
            return self._piece(text, order=order, cite=cite)
        text = "\n".join(line for line in (escape(body, self.labels), marker) if line)
        if group == "memory":
            return self._piece(f"{self.texts['memory']}: {text}", order=order)
        if group == "general":
            return self._piece(text, order=order)
        message = candidate.message or Message(candidate.packet.content, str(candidate.packet.meta.get("role", "user")))
        sent: dict[str, Any] = {"role": message.role, "content": message.text}
        if short is not None:
            sent["content"] = "\n".join(line for line in (short, marker) if line)
        for name in ("name", "tool_calls", "tool_call_id"):
            if value := getattr(message, name):
                sent[name] = value
        return self._piece(f"{role_label(message.role)}: {text}", message=sent, order=order)


@dataclass(frozen=True, slots=True)
class ParsedItem:
    """One item read back from a context; `label` is its role, `Memory`, or its citation, else ""."""

    label: str
    content: str


def parse_context(text: str, roles: Iterable[str] = ()) -> list[tuple[str, list[ParsedItem]]]:
    """Read a rendered context back into its sections and items, escapes undone.

    `roles` are the roles of the history when there are others than the usual ones. This is the contract that text
    cannot forge structure: what comes back is what went in, up to line breaks and outer blank lines.
    """
    labels = tuple(sorted({role_label(role) for role in roles}))
    sections: list[tuple[str, list[str]]] = []
    for line in text.split("\n")[:-1]:
        inner = bool(sections) and sections[-1][0] == EVIDENCE and not _is_section_header(line)
        if line.startswith("[") and line.endswith("]") and not inner and line not in _MARKERS:
            if sections and sections[-1][1] and sections[-1][1][-1] == "":
                sections[-1][1].pop()  # the blank line that joins sections
            sections.append((line[1:-1], []))
        elif sections:
            sections[-1][1].append(line)
    return [(name, _parse_items(name, lines, labels)) for name, lines in sections]


_MARKERS: Final = frozenset(texts["compressed"] for texts in TEXTS.values())


def _is_section_header(line: str) -> bool:
    return line in (f"[{CONTEXT}]", f"[{OUTPUT}]")


def _parse_items(section: str, lines: list[str], labels: tuple[str, ...]) -> list[ParsedItem]:
    if section in (TASK, STATE, OUTPUT):
        body = "\n".join(lines)
        return [ParsedItem("", unescape(body))] if body else []
    context = section == CONTEXT
    if section == EVIDENCE and lines and lines[0] in {texts["intro"] for texts in TEXTS.values()}:
        lines = _open_numbered(lines)
    starts = {f"{label}: " for label in (*FIXED_LABELS, *labels)} if context else set()
    items: list[tuple[str, list[str]]] = []
    fresh = True
    for line in lines:
        label = next((start for start in starts if line.startswith(start)), "")
        if line == "---":
            fresh = True
            continue
        if label:
            items.append((label[:-2], [line[len(label) :]]))
        elif fresh and section == EVIDENCE and line.startswith("["):
            items.append((line[1:-1].partition(": ")[2], []))
        elif fresh and not (items and not items[-1][1] and section == EVIDENCE):
            items.append(("", [line]))
        else:
            items[-1][1].append(line)
        fresh = False
    undo = labels if context else None
    return [ParsedItem(label, unescape("\n".join(part), undo)) for label, part in items]


def _open_numbered(lines: list[str]) -> list[str]:
    """Return the lines of numbered evidence as plain evidence: rules between items, no intro and closing line."""
    closings = {texts["closing"] for texts in TEXTS.values()}
    last = max(
        index for index, line in enumerate(lines) if line in closings and lines[index + 1 : index + 2] in ([], ["---"])
    )
    opened: list[str] = []
    for line in lines[1:last]:
        if _NUMBERED_LABEL.fullmatch(line) and opened:
            opened.append("---")
        opened.append(line)
    return opened + lines[last + 1 :]
