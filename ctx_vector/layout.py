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
from typing import Any, Final, NamedTuple

from ctx_vector.stages import TokenCounter
from ctx_vector.tokens import ending

ROLE, TASK, STATE, EVIDENCE, CONTEXT, OUTPUT = (
    "Role & Policies", "Task", "State", "Evidence", "Context", "Output",
)  # fmt: skip
FIXED_SECTIONS: Final = (ROLE, TASK, STATE, EVIDENCE, CONTEXT, OUTPUT)
RULE: Final = "---\n"

#: The parts a budget can be given to, by (section, group); any other section is part `extra`.
_PARTS: Final[Mapping[tuple[str, str], str]] = {
    (ROLE, "items"): "system",
    (ROLE, "tools"): "tools",
    (TASK, "images"): "images",
    (STATE, "items"): "state",
    (EVIDENCE, "static"): "evidence",
    (EVIDENCE, "items"): "evidence",
    (EVIDENCE, "tool"): "evidence",
    (EVIDENCE, "agents"): "agents",
    (CONTEXT, "history"): "history",
    (CONTEXT, "memory"): "memory",
    (CONTEXT, "general"): "general",
}


def part_of(section: str, group: str) -> str:
    """Return the part of the budget that a slot belongs to."""
    return _PARTS.get((section, group), "extra")


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

    def at(self, order: tuple[Any, ...]) -> Piece:
        """Return the same piece at another place."""
        return Piece(self.text, self.tokens, order, self.message, self.message_tokens, self.cite)


@dataclass(slots=True, eq=False)
class _Group:
    rule: bool = True  # joined by a rule line, and set off by one from what is before it
    chat: bool = False  # becomes messages of their own
    numbered: bool = False
    apart: bool = False  # sent beside the messages: stands in no text, and is charged to both sums
    joined: bool = False  # parts of the message before it: stands in no text
    title: str = ""  # a line above the pieces
    title_tokens: int = 0
    pieces: list[Piece] = field(default_factory=list)
    keys: list[tuple[Any, ...]] = field(default_factory=list)
    label_tokens: list[int] = field(default_factory=list)  # of numbered groups
    tokens: int = 0  # of the pieces and labels
    message_tokens: int = 0


@dataclass(slots=True, eq=False)
class _Section:
    name: str
    header: str
    header_tokens: int
    always: bool = False
    groups: dict[str, _Group] = field(default_factory=dict)


class Size(NamedTuple):
    """Tokens of the text and of the messages; `shared_*` are what counts against the shared limit.

    `apart` is what is sent beside either: tool definitions that go through the API.
    """

    text: int
    messages: int
    shared_text: int
    shared_messages: int
    apart: int = 0

    @property
    def total(self) -> int:
        """The larger of text and messages, and what is sent beside them."""
        return max(self.text, self.messages) + self.apart

    @property
    def shared(self) -> int:
        """The same of the two shared sizes."""
        return max(self.shared_text, self.shared_messages) + self.apart


class Layout:
    """The sections with what has been put into them, and their exact size at any moment.

    `texts` are the words of one locale (structure.py), `style` is the messages style, `numbered` the evidence style,
    `titles` are lines above groups. `tools_apart` are the tokens that frame tool definitions when they are sent
    beside the messages, None when they stand in the text.
    Groups are named by (section, group): (Role & Policies, items | tools), (Context, history | memory | general),
    (Evidence, static | items | tool | agents), and (any other, items).
    """

    def __init__(
        self,
        counter: TokenCounter,
        texts: Mapping[str, str],
        *,
        style: str = "single",
        numbered: bool = False,
        extras: Sequence[str] = (),
        titles: Mapping[tuple[str, str], str] | None = None,
        tools_apart: int | None = None,
    ) -> None:
        self.counter = counter
        self.texts = texts
        self.split = style == "split"
        self._base = counter.count_messages([])
        self._overhead = counter.count_messages([{"role": "system", "content": ""}]) - self._base
        self._rule = counter.count(RULE)
        self._frame = sum(counter.count(texts[name] + "\n") for name in ("intro", "closing")) if numbered else 0
        self._sections: dict[str, _Section] = {}
        self._extras: dict[str, int] = {}  # what a blank line adds after a text
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
                section.groups = {
                    "static": _Group(),
                    "items": _Group(numbered=numbered),
                    "tool": _Group(),
                    "agents": _Group(),
                }
            elif name == TASK:
                section.groups = {"items": _Group(chat=True), "images": _Group(chat=True, joined=True)}
            elif name == ROLE:
                section.groups = {"items": _Group(), "tools": _Group(rule=False, apart=tools_apart is not None)}
            else:
                section.groups = {"items": _Group()}
            self._sections[name] = section
        for (name, group), title in (titles or {}).items():
            target = self._sections[name].groups[group]
            target.title, target.title_tokens = title + "\n", counter.count(title + "\n")
        if tools_apart is not None:
            self._sections[ROLE].groups["tools"].title_tokens = tools_apart
        self._apart = 0
        self._listed: dict[tuple[str, bool], list[tuple[str, int, Piece | None]]] = {}
        self._joined: dict[tuple[str, bool], str] = {}
        self._costs = {name: (0, 0, 0, 0) for name in self._sections}
        self._sums = (0, 0, 0, 0)
        self._fixed = (0, 0)
        for name in (TASK, OUTPUT):  # the others cost nothing while they are empty
            self._recount(name)

    # -- sizes ---------------------------------------------------------------------------------------------------

    def _end_extra(self, text: str) -> int:
        """Return what a blank line after `text` adds: 0 or 1 with cl100k."""
        extra = self._extras.get(text)
        if extra is None:
            end = ending(text)
            extra = self._extras.get(end)  # few ends are all that most texts have
            if extra is None:
                extra = self._extras[end] = self.counter.count(end + "\n") - self.counter.count(end)
            self._extras[text] = extra
        return extra

    def _label(self, number: int, piece: Piece) -> str:
        return self.texts["source"].format(n=number, cite=f": {piece.cite}" if piece.cite else "") + "\n"

    def _lines(self, section: _Section, *, chat: bool) -> list[tuple[str, int, Piece | None]]:
        """Return (text, tokens, piece) for every line group of a section's body; `chat` includes chat groups.

        The list is kept until something is put into the section or taken out.
        """
        key = self._key(section, chat)
        lines = self._listed.get(key)
        if lines is None:
            lines = self._listed[key] = list(self._walk(section, chat=key[1]))
        return lines

    @staticmethod
    def _key(section: _Section, chat: bool) -> tuple[str, bool]:
        """Return what the body of a section goes by: its name, and whether it is all of it."""
        return section.name, chat or not any(group.chat and group.pieces for group in section.groups.values())

    def _walk(self, section: _Section, *, chat: bool) -> Iterator[tuple[str, int, Piece | None]]:
        started = False
        for group in section.groups.values():
            if not group.pieces or group.apart or group.joined or (group.chat and not chat):
                continue
            if group.title:
                if group.rule and started:
                    yield RULE, self._rule, None
                yield group.title, group.title_tokens, None
                started = False
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
            if not count or group.apart or group.joined or (group.chat and not chat):
                continue
            if group.numbered:
                tokens += self._frame
                if group.title and last:
                    tokens += self._rule
            elif group.rule:
                tokens += self._rule * (count if last else count - 1)
            tokens += group.tokens + group.title_tokens
            last = self.texts["closing"] + "\n" if group.numbered else group.pieces[-1].text
        return tokens, last

    def _cost(self, section: _Section) -> tuple[int, int, int, int]:
        """Return (text, messages, text headers, message headers) tokens of one section."""
        final = section.name == OUTPUT
        said = [group for group in section.groups.values() if group.chat and group.pieces]
        body, last = self._body(section, chat=True)
        text = headers = 0
        if last or section.always:
            headers = section.header_tokens
            text = headers + body + (0 if final else self._end_extra(last or section.header))
        messages = message_headers = 0
        if section.name != TASK:
            if said:
                body, last = self._body(section, chat=False)
            if last or section.always:
                message_headers = section.header_tokens + (self._overhead if self.split else 0)
                messages = message_headers + body
                messages += 0 if final or self.split else self._end_extra(last or section.header)
        messages += sum([group.message_tokens for group in said])
        optional = 0 if section.always else 1
        return text, messages, headers * optional, message_headers * optional

    def size(self) -> Size:
        """Return the exact size of what has been put in so far."""
        text, messages, headers, message_headers = self._sums
        messages += self._base + (0 if self.split else self._overhead)
        shared = text - headers - self._fixed[0], messages - message_headers - self._fixed[1]
        return Size(text, messages, *shared, self._apart)

    def fix(self) -> None:
        """Declare everything put in so far fixed: it does not count against the shared limit."""
        self._fixed = (0, 0)
        size = self.size()
        self._fixed = (size.shared_text, size.shared_messages)

    def parts(self) -> dict[str, int]:
        """Return the text tokens of each non-empty section, the closing blank line included."""
        return {name: cost[0] for name, cost in self._costs.items() if cost[0]}

    def held(self, section: str, group: str) -> int:
        """Return the tokens of a group's pieces and labels, the larger of text and messages."""
        target = self._sections[section].groups[group]
        return max(target.tokens, target.message_tokens)

    def block(self, section: str, group: str) -> int:
        """Return the tokens that a group takes with its title, labels and joiners; 0 for an empty one."""
        target = self._sections[section].groups[group]
        if not target.pieces:
            return 0
        frame = self._frame if target.numbered else 0
        rules = self._rule * len(target.pieces) if target.rule else 0
        apart = target.title_tokens if target.apart else 0
        return max(target.tokens + target.title_tokens + frame + rules, target.message_tokens + apart)

    def title_of(self, section: str, group: str) -> int:
        """Return the tokens of a group's title, or of what frames it when it is sent apart."""
        return self._sections[section].groups[group].title_tokens

    def header(self, section: str) -> int:
        """Return the most that a section costs beside its groups: header, closing line, and framing of its own."""
        return self._sections[section].header_tokens + 1 + (self._overhead if self.split else 0)

    def joiner(self, section: str, group: str, piece: Piece) -> int:
        """Return the most that joins a piece to the others of its group: a rule line, or its label."""
        target = self._sections[section].groups[group]
        if target.numbered:
            return self.counter.count(self._label(1000, piece))
        return self._rule if target.rule else 0

    def groups(self) -> Iterator[tuple[str, str]]:
        """Yield every (section, group) in the order of the text."""
        for name, section in self._sections.items():
            for group in section.groups:
                yield name, group

    # -- putting in and taking out -------------------------------------------------------------------------------

    def add(self, section: str, group: str, *pieces: Piece) -> None:
        """Put pieces in at their places by `order`."""
        target = self._sections[section].groups[group]
        for piece in pieces:
            at = bisect.bisect_right(target.keys, piece.order)
            target.pieces.insert(at, piece)
            target.keys.insert(at, piece.order)
            target.tokens += piece.tokens
            target.message_tokens += piece.message_tokens
            if target.numbered:
                self._relabel(target, at)
        self._recount(section)

    def remove(self, section: str, group: str, *pieces: Piece) -> None:
        """Take pieces out again."""
        target = self._sections[section].groups[group]
        for piece in pieces:
            at = bisect.bisect_left(target.keys, piece.order)
            while target.pieces[at] is not piece:
                at += 1
            del target.pieces[at], target.keys[at]
            target.tokens -= piece.tokens
            target.message_tokens -= piece.message_tokens
            if target.numbered:
                self._relabel(target, at)
        self._recount(section)

    def _relabel(self, group: _Group, start: int) -> None:
        """Count the labels anew from the piece at `start` on; those before keep their numbers."""
        group.tokens -= sum(group.label_tokens[start:])
        del group.label_tokens[start:]
        for number, piece in enumerate(group.pieces[start:], start + 1):
            group.label_tokens.append(self.counter.count(self._label(number, piece)))
        group.tokens += sum(group.label_tokens[start:])

    def _recount(self, name: str) -> None:
        for key in ((name, True), (name, False)):
            self._listed.pop(key, None)
            self._joined.pop(key, None)
        if name == ROLE and (tools := self._sections[ROLE].groups["tools"]).apart:
            self._apart = tools.message_tokens + tools.title_tokens if tools.pieces else 0
        before, after = self._costs[name], self._cost(self._sections[name])
        self._costs[name] = after
        text, messages, headers, message_headers = self._sums
        self._sums = (
            text + after[0] - before[0],
            messages + after[1] - before[1],
            headers + after[2] - before[2],
            message_headers + after[3] - before[3],
        )

    # -- rendering -----------------------------------------------------------------------------------------------

    def _section_text(self, section: _Section, *, chat: bool) -> str:
        key = self._key(section, chat)
        joined = self._joined.get(key)
        if joined is None:
            body = "".join([text for text, _, _ in self._lines(section, chat=chat)])
            joined = self._joined[key] = section.header + body if body or section.always else ""
        return joined

    def _segments(self, *, chat: bool) -> list[str]:
        """Return the sections, all but the last with the blank line that closes it; `chat` as in `_lines`."""
        texts = [
            self._section_text(section, chat=chat)
            for section in self._sections.values()
            if chat or section.name != TASK
        ]
        *before, last = filter(None, texts)
        return [*(text + "\n" for text in before), last]

    def text(self) -> str:
        """Return the whole context."""
        return "".join(self._segments(chat=True))

    def messages(self) -> list[dict[str, Any]]:
        """Return the chat messages."""
        return self._messages(self._segments(chat=False))

    def render(self) -> tuple[str, list[dict[str, Any]], int, int]:
        """Return text and messages, and their tokens counted anew, without the sums kept so far.

        Where counts add, it is the count of every line group as it stands there, which the counter may remember.
        """
        count, count_messages = self.counter.count, self.counter.count_messages
        segments, system = self._segments(chat=True), self._segments(chat=False)
        text, messages = "".join(segments), self._messages(system)
        if not self.counter.additive or self.split:
            return text, messages, count(text), count_messages(messages)
        rest = count_messages([{"role": "system", "content": ""}, *messages[1:]])
        return text, messages, self._counted(chat=True), rest + self._counted(chat=False)

    def _counted(self, *, chat: bool) -> int:
        """Return the tokens of all segments together, for a counter whose counts add."""
        texts: list[str] = []
        extra = 0
        for section in self._sections.values():
            lines = self._lines(section, chat=chat) if chat or section.name != TASK else []
            if lines or (section.always and (chat or section.name != TASK)):
                texts += [section.header, *(text for text, _, _ in lines)]
                extra += 0 if section.name == OUTPUT else self._end_extra(texts[-1])
        return sum(self.counter.count_batch(texts)) + extra

    def _messages(self, segments: Sequence[str]) -> list[dict[str, Any]]:
        system = [text[:-1] for text in segments[:-1]] + [segments[-1]] if self.split else ["".join(segments)]
        messages: list[dict[str, Any]] = [{"role": "system", "content": text} for text in system]
        for name in (CONTEXT, TASK):
            for group in self._sections[name].groups.values():
                if group.joined and group.pieces:
                    parts = [
                        {"type": "text", "text": messages[-1]["content"]},
                        *(piece.message for piece in group.pieces),
                    ]
                    messages[-1] = {**messages[-1], "content": parts}
                elif group.chat:
                    messages += [dict(piece.message) for piece in group.pieces if piece.message is not None]
        return messages

    def bodies(self) -> dict[str, str]:
        """Return the body of each section in the text, without its header."""
        bodies = {}
        for name, section in self._sections.items():
            if text := self._section_text(section, chat=True):
                bodies[name] = text[len(section.header) :]
        return bodies

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
        """Return the tokens of each piece, its joiner or label included, by `id(piece)`.

        Titles and the lines around numbered evidence belong to no piece.
        """
        shares: dict[int, int] = {}
        for section in self._sections.values():
            titles = {group.title for group in section.groups.values()}
            titles |= {self.texts[name] + "\n" for name in ("intro", "closing")}
            pending = 0
            for text, tokens, piece in self._lines(section, chat=True):
                if piece is None:
                    pending = 0 if text in titles else pending + tokens
                else:
                    shares[id(piece)] = pending + tokens
                    pending = 0
            for group in section.groups.values():
                if group.apart or group.joined:
                    shares |= {id(piece): piece.message_tokens for piece in group.pieces}
        return shares
