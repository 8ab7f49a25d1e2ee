"""Reading a rendered context back: the contract that text cannot forge structure, and the inverse of structure.py."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ctx_vector.escaping import FIXED_LABELS, role_label, unescape
from ctx_vector.layout import CONTEXT, EVIDENCE, OUTPUT, ROLE, TASK
from ctx_vector.structure import LAYER_SLOTS, NUMBERED_LABEL, TEXTS, VERSION_LINE

_LEFT_OUT = re.compile(r"\[\.\.\. (?:\d+ turns? left out|省略 \d+ 轮对话) \.\.\.\]")


@dataclass(frozen=True, slots=True)
class ParsedItem:
    """One item read back from a context; `label` is its role, `Memory`, its citation or its agent, else "".

    The summary of the earlier conversation has the label `summary`, a line for turns left out the label `left_out`.
    `block` is the title of the layer it stands under, or of the tools; `version` what its last line says of it.
    """

    label: str
    content: str
    block: str = ""
    version: str = ""


def parse_context(
    text: str, roles: Iterable[str] = (), titles: Iterable[str] = (), *, versions: bool = False
) -> list[tuple[str, list[ParsedItem]]]:
    """Read a rendered context back into its sections and items, escapes undone.

    `roles` are the roles of the history and `titles` those of the layers when there are others than the usual ones;
    `versions` as in the config. This is the contract that text cannot forge structure: what comes back is what went
    in, up to line breaks and outer blank lines.
    """
    labels = tuple(sorted({role_label(role) for role in roles}))
    known = {texts[name] for texts in TEXTS.values() for name in ("tools", *LAYER_SLOTS)} | set(titles)
    sections: list[tuple[str, list[str]]] = []
    before = ""
    for line in text.split("\n")[:-1]:
        # only a section's header stands after a blank line: labels and markers follow a rule, a header or text
        if not before and line.startswith("[") and line.endswith("]"):
            if sections:
                sections[-1][1].pop()  # the blank line that joins sections
            sections.append((line[1:-1], []))
        elif sections:
            sections[-1][1].append(line)
        before = line
    parsed = []
    for name, lines in sections:
        items = []
        for block, part in _blocks(lines, known) if name in (ROLE, EVIDENCE) else [("", lines)]:
            for item in _parse_items(name, block, part, labels):
                items.append(_read_version(item) if versions and name == EVIDENCE else item)
        parsed.append((name, items))
    return parsed


def _blocks(lines: list[str], titles: set[str]) -> list[tuple[str, list[str]]]:
    """Return (title, lines) of the blocks of a section; "" for what stands above the first title."""
    blocks: list[tuple[str, list[str]]] = [("", [])]
    for line in lines:
        if line in titles:
            if blocks[-1][1][-1:] == ["---"]:
                blocks[-1][1].pop()
            blocks.append((line[1:-1], []))
        else:
            blocks[-1][1].append(line)
    return blocks


def _read_version(item: ParsedItem) -> ParsedItem:
    content, version = item.content, ""
    before, line_break, last = content.rpartition("\n")
    if line_break and VERSION_LINE.fullmatch(last) and not last.startswith("\\"):
        content, version = before, last.removeprefix("(version: ").removesuffix(")")
        before, line_break, last = content.rpartition("\n")
    if VERSION_LINE.fullmatch(last) and last.startswith("\\"):
        content = f"{before}{line_break}{last[1:]}"
    return ParsedItem(item.label, content, item.block, version)


def _parse_items(section: str, block: str, lines: list[str], labels: tuple[str, ...]) -> list[ParsedItem]:
    if section in (TASK, OUTPUT):
        body = "\n".join(lines)
        return [ParsedItem("", unescape(body))] if body else []
    if block in {texts["tools"][1:-1] for texts in TEXTS.values()}:
        return [ParsedItem("", unescape(line), block) for line in lines]
    context = section == CONTEXT
    intros, summaries = ({texts[name] for texts in TEXTS.values()} for name in ("intro", "summary"))
    if section == EVIDENCE and lines[:1] and lines[0] in intros and NUMBERED_LABEL.fullmatch("".join(lines[1:2])):
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
        elif context and line in summaries:
            items.append(("summary", []))
        elif context and _LEFT_OUT.fullmatch(line):
            items.append(("left_out", [line]))
        elif fresh and section == EVIDENCE and line.startswith("["):
            items.append((line[1:-1].partition(": ")[2], []))
        elif fresh and not (items and not items[-1][1] and section == EVIDENCE):
            items.append(("", [line]))
        else:
            items[-1][1].append(line)
        fresh = False
    undo = labels if context else None
    return [ParsedItem(label, unescape("\n".join(part), undo), block) for label, part in items]


def _open_numbered(lines: list[str]) -> list[str]:
    """Return the lines of numbered evidence as plain evidence: rules between items, no intro and closing line."""
    closings = {texts["closing"] for texts in TEXTS.values()}
    last = min(
        index for index, line in enumerate(lines) if line in closings and lines[index + 1 : index + 2] in ([], ["---"])
    )
    opened: list[str] = []
    for line in lines[1:last]:
        if NUMBERED_LABEL.fullmatch(line) and opened:
            opened.append("---")
        opened.append(line)
    return opened + lines[last + 1 :]
