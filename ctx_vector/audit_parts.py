"""What a build shows, as refs to texts that the audit keeps once: its rows, sections, fates and messages.

    ref      an id of a kept text, or [id, start, end] for a part of that text
    row      the refs of a piece of the context: the packet's own text, with what stands around it
    fate     a decision as a list, its candidate by place

So a packet takes its room once, however many builds show it, and what was rendered from it is known to be a copy: a
purge finds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Final

from ctx_vector.audit_keeper import BLOCK, Keeper
from ctx_vector.built import Budget, BuiltContext, Decision, SourceUse
from ctx_vector.escaping import single_line
from ctx_vector.trace_dump import plain_part
from ctx_vector.values import json_ready

_GAP: Final = 400  # characters between two pieces: joiners, labels, closing lines
_PLAIN_FATE: Final = 10  # entries of a decision without more
_SURE: Final = 80  # characters that stand between two pieces only when one was not found

# fields that are written by name, here and in audit_encode.py; what is added to these classes later goes along as JSON
_KNOWN: Final[Mapping[type, frozenset[str]]] = {
    Decision: frozenset(
        "packet source section relevance recency score tokens kept action reason detail rendered".split()
    ),
    SourceUse: frozenset("tokens kept dropped_items truncated gathered fault milliseconds".split()),
    Budget: frozenset("total_limit total_used text_tokens message_tokens shared_limit sources".split()),
    BuiltContext: frozenset(
        "text messages sections kept dropped budget stats meta warnings tools rows query trace".split()
    ),
}
_REST: Final[Mapping[type, tuple[tuple[str, Any], ...]]] = {
    kind: tuple(
        (item.name, None if item.default is MISSING else item.default)
        for item in fields(kind)
        if item.name not in known
    )
    for kind, known in _KNOWN.items()
}


def rest_of(value: Any) -> dict[str, Any]:
    """Return the fields of a record's part that are not written by name, where they are not the default."""
    rest = _REST[type(value)]
    if not rest:
        return {}
    return {name: json_ready(kept) for name, default in rest if (kept := getattr(value, name)) != default}


class Parts:
    """Writes the parts of one build. `places` are those of the messages said, by the identity of their packets."""

    def __init__(self, built: BuiltContext, keeper: Keeper, places: Mapping[int, int]) -> None:
        self._built = built
        self._keeper = keeper
        trace = built.trace
        self._candidates = {id(item.packet): place for place, item in enumerate(trace.gathered.candidates)}
        self._said = places
        self._refs: dict[int, list[Any]] = {}  # of what kept decisions show, by id(decision)
        self._shown: dict[str, tuple[list[Any], Decision, int]] = {}
        self._bases: list[int] = []
        self._texts: list[tuple[str, list[Any]]] = []
        for item in built.kept:
            base = keeper.text(item.packet.content)
            self._bases.append(base)
            refs = self._refs[id(item)] = self._split(item.rendered, item, base)
            self._shown[item.rendered + "\n"] = [*refs, keeper.text("\n")], item, base
        for body, _, result in trace.shortened.entries:
            if result:
                keeper.copy(keeper.text(body), keeper.text(result[0]))
        for packet in [item.packet for item in built.kept if item.action != "full"]:
            for body, _, result in trace.shortened.entries:
                if result and body in packet.content:
                    keeper.copy(keeper.text(packet.content), keeper.text(result[0]))

    def _split(self, shown: str, item: Decision, base: int) -> list[Any]:
        """Return what a packet shows as its own text, or a part of it, with what stands around."""
        content = item.packet.content
        if shown == content:
            return [base]
        if content and not (self._keeper.redacts or self._keeper.blank):
            at = shown.find(content)
            if at >= 0:
                return [
                    *self._around(shown[:at], item, base),
                    base,
                    *self._around(shown[at + len(content) :], item, base),
                ]
            for start in (0, shown.find(": ") + 2, shown.find("\n") + 1):
                for end in (len(shown), shown.rfind("\n")):
                    part = shown[start:end]
                    at = content.find(part) if len(part) > len(shown) // 2 else -1
                    if at >= 0:
                        before = self._around(shown[:start], item, base)
                        return [*before, [base, at, at + len(part)], *self._around(shown[end:], item, base)]
        copy = self._keeper.text(shown)
        self._keeper.copy(base, copy)
        return [copy]

    def _around(self, text: str, item: Decision, base: int) -> list[int]:
        """Return the ref of a label or marker; a citation says something of its packet, and goes with it."""
        if not text:
            return []
        found = self._keeper.text(text)
        cite = item.packet.meta.get("cite")
        if cite and single_line(str(cite)) in text:
            self._keeper.copy(base, found)
        return [found]

    def rows(self) -> list[Any]:
        """Return [section, tokens, text before, refs] of each row of the text, and the refs of the whole at the end."""
        made: list[Any] = []
        for section, tokens, text in self._built.rows:
            refs = self._row(text)
            if section:
                self._texts.append((text, refs))
            made.append([section, tokens, refs])
        return [made, self._pieces(self._built.text)]

    def _row(self, text: str) -> list[Any]:
        """Return the refs of a row: a kept item, below its labels if it is numbered, or one of our own lines."""
        rest, label = text, ""
        for _ in range(3):
            if rest in self._shown:
                refs, item, base = self._shown[rest]
                return [*self._around(label, item, base), *refs]
            line, _, rest = rest.partition("\n")
            label += line + "\n"
        if text[:-1] == self._built.query:
            return [self._keeper.text(text[:-1]), self._keeper.text("\n")]
        return [self._keeper.text(text)]

    def _pieces(self, text: str) -> list[Any]:
        """Return the refs that a text of rows is made of, what stands between them included."""
        refs: list[Any] = []
        done = 0
        for piece, own in self._texts:
            at = text.find(piece, done, done + len(piece) + _GAP)
            if at < 0:
                continue
            if at > done:
                refs.append(self._keeper.text(text[done:at]))
                if at > done + _SURE:
                    self._copy_of_all(refs[-1])
            refs += own
            done = at + len(piece)
        rest = text[done:]
        if len(rest) > _GAP:  # not made of rows: kept whole, and gone with any packet that may be in it
            return [self._copy_of_all(self._keeper.text(text))]
        return [*refs, self._keeper.text(rest)] if rest else refs

    def _copy_of_all(self, ref: int) -> int:
        """Return a ref, noted as a copy of everything that was kept."""
        for base in self._bases:
            self._keeper.copy(base, ref)
        return ref

    def sections(self) -> list[Any]:
        """Return [name, start, end] of each section's body within the text."""
        made, done, text = [], 0, self._built.text
        for name, body in self._built.sections.items():
            start = text.find(f"[{name}]\n{body}", done)
            if start < 0:
                made.append([name, self._copy_of_all(self._keeper.text(body)), None])
                continue
            start += len(name) + 3
            done = start + len(body)
            made.append([name, start, done])
        return made

    def decision(self, item: Decision) -> list[Any]:
        """Return the fate of a candidate: which one it is first, as [candidate], [None, message] or [source]."""
        place, key = self._candidates.get(id(item.packet)), id(item.packet)
        which: list[Any] = [place] if place is not None else [None, self._said[key]] if key in self._said else []
        detail: Any = item.detail
        if not which:
            which, detail = [item.source], self._keeper.text(item.detail)
        elif self._keeper.redacts:
            detail = self._keeper.clean(detail)
        made = [
            which,
            item.section,
            item.relevance,
            item.recency,
            item.score,
            item.tokens,
            item.action,
            item.reason,
            detail,
            self._refs.get(id(item), 0),
        ]
        return [*made, rest] if (rest := rest_of(item)) else made

    def dropped(self, items: Sequence[Decision]) -> list[Any]:
        """Return the fates of what was dropped; messages in a row with one fate as [None, first message, how many].

        What the history left out comes last, and is mostly the same as in the build before: it is written in blocks.
        """
        said = self._built.trace.said
        start = 0
        while start < len(items) and not self._left_out(items[start], said):
            start += 1
        made = [self.decision(item) for item in items[:start]]
        for at in range(start, len(items), BLOCK):
            block = items[at : at + BLOCK]
            first = self._said.get(id(block[0].packet), -1)
            made += self._keeper.fates(block, first, lambda block=block: self._runs(block))  # type: ignore[misc]
        return made

    def _left_out(self, item: Decision, said: Sequence[Any]) -> bool:
        place = self._said.get(id(item.packet))
        return place is not None and said[place].dropped is item

    def _runs(self, items: Sequence[Decision]) -> list[Any]:
        made: list[Any] = []
        last: Decision | None = None
        next_place = -1
        for item in items:
            place = self._said.get(id(item.packet), -1)
            if last is not None and place == next_place and _same_fate(item, last):
                which = made[-1][0]
                which[2:] = [next_place + 1 - which[1]]
                next_place += 1
                continue
            made.append(self.decision(item))
            plain = place >= 0 and made[-1][0][0] is None and len(made[-1]) == _PLAIN_FATE
            last, next_place = (item, place + 1) if plain else (None, -1)
        return made

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a chat message with refs for its content; what else it has is one more text."""
        content = message.get("content")
        made: dict[str, Any] = {"role": message.get("role")}
        more = {key: value for key, value in message.items() if key not in ("role", "content")}
        if isinstance(content, str):
            made["content"] = self._message_refs(content, system=message.get("role") == "system")
        elif content is not None:
            made["parts"] = [self._keeper.json(plain_part(part)) for part in content]
        else:
            more["content"] = None
        if more:
            made["more"] = self._keeper.json(json_ready(more))
        return made

    def _message_refs(self, content: str, *, system: bool) -> Sequence[Any]:
        keeper = self._keeper
        if system and content.startswith("["):
            return self._pieces(content)
        if keeper.knows(content):
            return [keeper.text(content)]
        found = keeper.text(content)
        for item in self._built.kept:
            if item.action != "full":
                keeper.copy(keeper.text(item.packet.content), found)
        return [found]


def _same_fate(one: Decision, two: Decision) -> bool:
    return (
        one.reason == two.reason
        and one.detail == two.detail
        and one.score == two.score
        and one.recency == two.recency
        and one.relevance == two.relevance
        and not rest_of(one)
    )
