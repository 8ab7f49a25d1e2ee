"""What a context costs at every moment: pieces in groups in sections.

Pieces end in a line feed and start with a visible line, so their cl100k counts add exactly (tokens.py). The one join
that does not add is the blank line that closes a section; its cost belongs to the section's last line and is counted
there. `Layout` therefore knows the exact size of the text and of the chat messages after every addition, without
rendering, in time that does not grow with what is already in it.

    section   header line, then groups           joined by one blank line
    group     pieces, in their own order         joined by rule lines, labels, or nothing
    piece     one item, escaped, ending in LF
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ctx_vector.stages import TokenCounter

ROLE, TASK, STATE, EVIDENCE, CONTEXT, OUTPUT = (
    "Role & Policies", "Task", "State", "Evidence", "Context", "Output",
)  # fmt: skip
FIXED_SECTIONS: Final = (ROLE, TASK, STATE, EVIDENCE, CONTEXT, OUTPUT)
RULE: Final = "---\n"


@dataclass(slots=True, eq=False)
class Piece:
    """One item as it stands in the text.

    `text` is escaped and ends in a line feed. `order` sorts within the group. `message` is the chat message the item
    becomes when it does not go into the system message, `message_tokens` its cost with framing. `cite` is shown in the
    label of a numbered item.
    """

    text: str
    tokens: int
    order: tuple[Any, ...] = ()
    message: Mapping[str, Any] | None = None
    message_tokens: int = 0
    cite: str = ""
    owner: Any = None


@dataclass(slots=True, eq=False)
class _Group:
    rule: bool = True  # joined by a rule line, and set off by one from what is before it
    chat: bool = False  # becomes messages of their own
    numbered: bool = False
    pieces: list[Piece] = field(default_factory=list)
    message_tokens: int = 0
    keys: list[tuple[Any, ...]] = field(default_factory=list)
    tokens: int = 0


@dataclass(slots=True, eq=False)
class _Section:
    name: str
    header: str
    header_tokens: int
    always: bool = False
    groups: dict[str, _Group] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Size:
    """Tokens of the text and of the messages; `shared_*` are what counts against the shared limit."""

    text: int
    messages: int
    shared_text: int
    shared_messages: int

    @property
    def total(self) -> int:
        """The larger of text and messages."""
        return max(self.text, self.messages)

    @property
    def shared(self) -> int:
        """The larger of the two shared sizes."""
        return max(self.shared_text, self.shared_messages)


class Layout:
    """The sections with what has been put into them, and their exact size at any moment.

    `texts` are the words of one locale (structure.py), `style` is the messages style, `numbered` the evidence style.
    Groups are named by (section, group): (Context, history | memory | general), (Evidence, items | agents), and (any
    other, items).
    """

    def __init__(
        self,
        counter: TokenCounter,
        texts: Mapping[str, str],
        *,
        style: str = "single",
        numbered: bool = False,
        extras: Sequence[str] = (),
    ) -> None:
        self.counter = counter
        self.texts = texts
        self.split = style == "split"
        self._overhead = counter.count_messages([{"role": "system", "content": ""}]) - counter.count_messages([])
        self._base = counter.count_messages([])
        self._rule = counter.count(RULE)
        self._sections: dict[str, _Section] = {}
        for name in (ROLE, TASK, STATE, *extras, EVIDENCE, CONTEXT, OUTPUT):
            header = f"[{name}]\n"
            section = _Section(name, header, counter.count(header), always=name in (TASK, OUTPUT))
            if name == CONTEXT:
                section.groups = {
                    "history": _Group(rule=False, chat=True),
                    "memory": _Group(rule=False),
                    "general": _Group(),
                }
            elif name == EVIDENCE:
                section.groups = {"items": _Group(numbered=numbered), "agents": _Group()}
            else:
                section.groups = {"items": _Group(chat=name == TASK)}
            self._sections[name] = section
        self._costs = {name: self._cost(section) for name, section in self._sections.items()}
        self._fixed = (0, 0)

    # -- sizes ---------------------------------------------------------------------------------------------------

    def _end_extra(self, text: str) -> int:
        """Return what a blank line after `text` adds: 0 or 1 with cl100k. Only its last line matters."""
        tail = text[text.rfind("\n", 0, -1) + 1 :]
        return self.counter.count(tail + "\n") - self.counter.count(tail)

    def _label(self, number: int, piece: Piece) -> str:
        return self.texts["source"].format(n=number, cite=f": {piece.cite}" if piece.cite else "") + "\n"

    def _lines(self, section: _Section, *, chat: bool) -> Iterator[tuple[str, int, Piece | None]]:
        """Yield (text, tokens, piece) for every line group of a section's body; `chat` includes chat groups."""
        started = False
        for group in section.groups.values():
            if not group.pieces or (group.chat and not chat):
                continue
            if group.numbered:
                yield self.texts["intro"] + "\n", self.counter.count(self.texts["intro"] + "\n"), None
            for number, piece in enumerate(group.pieces, 1):
                if group.numbered:
                    label = self._label(number, piece)
                    yield label, self.counter.count(label), None
                elif group.rule and started:
                    yield RULE, self._rule, None
                yield piece.text, piece.tokens, piece
                started = True
            if group.numbered:
                yield self.texts["closing"] + "\n", self.counter.count(self.texts["closing"] + "\n"), None

    def _body(self, section: _Section, *, chat: bool) -> tuple[int, str]:
        """Return the tokens of a section's body and its last text ("" when it is empty), in O(groups)."""
        tokens, last = 0, ""
        for group in section.groups.values():
            count = len(group.pieces)
            if not count or (group.chat and not chat):
                continue
            if group.numbered:
                tokens += sum(self.counter.count(self._label(n, piece)) for n, piece in enumerate(group.pieces, 1))
                tokens += sum(self.counter.count(self.texts[name] + "\n") for name in ("intro", "closing"))
            elif group.rule:
                tokens += self._rule * (count if last else count - 1)
            tokens += group.tokens
            last = self.texts["closing"] + "\n" if group.numbered else group.pieces[-1].text
        return tokens, last

    def _cost(self, section: _Section) -> tuple[int, int, int, int]:
        """Return (text, messages, text headers, message headers) tokens of one section."""
        final = section.name == OUTPUT
        body, last = self._body(section, chat=True)
        text = headers = 0
        if last or section.always:
            headers = section.header_tokens
            text = headers + body + (0 if final else self._end_extra(last or section.header))
        messages = message_headers = 0
        if section.name != TASK:
            body, last = self._body(section, chat=False)
            if last or section.always:
                message_headers = section.header_tokens + (self._overhead if self.split else 0)
                messages = message_headers + body
                messages += 0 if final or self.split else self._end_extra(last or section.header)
        for group in section.groups.values():
            if group.chat:
                messages += group.message_tokens
        optional = 0 if section.always else 1
        return text, messages, headers * optional, message_headers * optional

    def size(self) -> Size:
        """Return the exact size of what has been put in so far."""
        text = messages = headers = message_headers = 0
        for cost in self._costs.values():
            text += cost[0]
            messages += cost[1]
            headers += cost[2]
            message_headers += cost[3]
        messages += self._base + (0 if self.split else self._overhead)
        return Size(text, messages, text - headers - self._fixed[0], messages - message_headers - self._fixed[1])

    def fix(self) -> None:
        """Declare everything put in so far fixed: it does not count against the shared limit."""
        self._fixed = (0, 0)
        size = self.size()
        self._fixed = (size.shared_text, size.shared_messages)

    def parts(self) -> dict[str, int]:
        """Return the text tokens of each non-empty section, the closing blank line included."""
        return {name: cost[0] for name, cost in self._costs.items() if cost[0]}

    # -- putting in and taking out -------------------------------------------------------------------------------

    def add(self, section: str, group: str, piece: Piece) -> None:
        """Put a piece in at its place by `order`."""
        target = self._sections[section].groups[group]
        at = bisect.bisect_right(target.keys, piece.order)
        target.pieces.insert(at, piece)
        target.keys.insert(at, piece.order)
        target.tokens += piece.tokens
        target.message_tokens += piece.message_tokens
        self._costs[section] = self._cost(self._sections[section])

    def remove(self, section: str, group: str, piece: Piece) -> None:
        """Take a piece out again."""
        target = self._sections[section].groups[group]
        at = target.pieces.index(piece)
        del target.pieces[at], target.keys[at]
        target.tokens -= piece.tokens
        target.message_tokens -= piece.message_tokens
        self._costs[section] = self._cost(self._sections[section])

    # -- rendering -----------------------------------------------------------------------------------------------

    def _section_text(self, section: _Section, *, chat: bool) -> str:
        body = "".join(text for text, _, _ in self._lines(section, chat=chat))
        return section.header + body if body or section.always else ""

    def text(self) -> str:
        """Return the whole context."""
        texts = (self._section_text(section, chat=True) for section in self._sections.values())
        return "\n".join(text for text in texts if text)

    def bodies(self) -> dict[str, str]:
        """Return the body of each section in the text, without its header."""
        bodies = {}
        for name, section in self._sections.items():
            if text := self._section_text(section, chat=True):
                bodies[name] = text[len(section.header) :]
        return bodies

    def messages(self) -> list[dict[str, Any]]:
        """Return the chat messages."""
        system = [
            text
            for name, section in self._sections.items()
            if name != TASK and (text := self._section_text(section, chat=False))
        ]
        if not self.split:
            system = ["\n".join(system)]
        messages: list[dict[str, Any]] = [{"role": "system", "content": text} for text in system]
        for name in (CONTEXT, TASK):
            for group in self._sections[name].groups.values():
                if group.chat:
                    messages += [dict(piece.message) for piece in group.pieces if piece.message is not None]
        return messages

    def rows(self) -> list[tuple[str, int, str]]:
        """Return (section, tokens, text) rows whose tokens add up to the size of the text."""
        rows: list[tuple[str, int, str]] = []
        for name, section in self._sections.items():
            if not self._costs[name][0]:
                continue
            start = len(rows)
            rows.append((name, section.header_tokens, section.header))
            pending, joined = 0, ""
            for text, tokens, piece in self._lines(section, chat=True):
                if piece is None:
                    pending, joined = pending + tokens, joined + text
                    continue
                rows.append((name, pending + tokens, joined + text if joined != RULE else text))
                pending, joined = 0, ""
            rest = self._costs[name][0] - sum(row[1] for row in rows[start:])
            section_name, tokens, text = rows[-1]
            rows[-1] = (section_name, tokens + rest, text)
        return rows

    def shares(self) -> dict[int, int]:
        """Return the tokens of each piece, its joiner or label included, by `id(piece)`."""
        shares: dict[int, int] = {}
        for section in self._sections.values():
            pending = 0
            for _, tokens, piece in self._lines(section, chat=True):
                if piece is None:
                    pending += tokens
                else:
                    shares[id(piece)] = pending + tokens
                    pending = 0
        return shares
