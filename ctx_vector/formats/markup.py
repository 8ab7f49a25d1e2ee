"""Markdown and reStructuredText: their headings, code, tables and lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ctx_vector.documents import TITLE_CHARS, Block, Parsed, fill_gaps, line_starts, one_line, paragraphs, plain_title
from ctx_vector.formats.front_matter import read_front_matter

if TYPE_CHECKING:
    from markdown_it.token import Token

_ADMONITION = re.compile(r"(/{3,}|:{3,})[ \t]*[^\s/:]")  # `/// tip`, `:::note`: closed by the same marks alone
_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1*[ \t]*$")

_ROLE = re.compile(r"(?::[\w-]{1,40}:)?`{1,2}([^`<]*[^`<\s])[^`]*`{1,2}_?")  # :role:`text <target>`


def parse_markdown(text: str) -> Parsed:
    """Return headings, fences, tables, list items and paragraphs; front matter becomes metadata."""
    from markdown_it import MarkdownIt

    metadata, body = read_front_matter(text)
    markdown = MarkdownIt("commonmark").enable("table")
    # Only block structure is needed; without the inline rules hostile emphasis or links cost nothing.
    markdown.core.ruler.enableOnly(["block"])
    tokens = markdown.parse(text[body:] if body else text)
    starts = [body + start for start in line_starts(text[body:] if body else text)] + [len(text)]
    blocks = _join_admonitions(text, list(_markdown_blocks(tokens, starts)))
    title = str(metadata.get("title") or "")
    if title and not any(block.kind == "heading" and block.level == 1 for block in blocks):
        blocks.insert(0, Block(body, body, "heading", 1, one_line(title)))
    blocks = fill_gaps(text, blocks, body)
    first = next((block.title for block in blocks if block.kind == "heading" and block.title), "")
    return Parsed(text, blocks, title or first, metadata)


def _markdown_blocks(tokens: list[Token], starts: list[int]) -> Iterator[Block]:
    last = len(starts) - 1
    for at, token in enumerate(tokens):
        if token.map is None:
            continue
        start, end = starts[token.map[0]], starts[min(token.map[1], last)]
        if token.level == 1 and token.type == "list_item_open":
            yield Block(start, end, "list")
        elif token.level > 0 or token.type.endswith("list_open"):
            continue
        elif token.type == "heading_open":
            yield Block(start, end, "heading", int(token.tag[1]), plain_title(tokens[at + 1].content))
        elif token.type in ("fence", "code_block"):
            yield Block(start, end, "code")
        elif token.type == "table_open":
            yield Block(start, end, "table")
        else:
            yield Block(start, end, "prose")


def _join_admonitions(text: str, blocks: list[Block]) -> list[Block]:
    """Join the blocks from `/// tip` to its `///`, so that a note is not parted from its mark."""
    joined: list[Block] = []
    opened: list[tuple[int, str]] = []  # (index in joined, marks)
    for block in blocks:
        lines = text[block.start : block.end].rstrip()
        joined.append(block)
        if block.kind == "heading":
            opened.clear()  # never closed before the next heading: leave the blocks as they are
            continue
        match = _ADMONITION.match(lines) if block.kind == "prose" else None
        if match:
            opened.append((len(joined) - 1, match.group(1)))
        closing = lines[lines.rfind("\n") + 1 :].strip()
        if closing and opened and closing == opened[-1][1]:
            index, _ = opened.pop()
            joined[index:] = [Block(joined[index].start, block.end, "prose")]
    return joined


# --- reStructuredText --------------------------------------------------------------------------------------


def parse_rst(text: str) -> Parsed:
    """Return sections by their underlines, and paragraphs, literal blocks and tables between them.

    Found here rather than by docutils, which does not say where things stand and takes minutes for hostile text; a
    test holds the sections to what docutils sees.
    """
    lines = text.split("\n")
    starts = [*line_starts(text), len(text)]
    styles: list[tuple[str, bool]] = []
    blocks: list[Block] = []
    row = done = 0
    while row < len(lines) - 1:
        style = _rst_title(lines, row)
        if style is None:
            row += 1
            continue
        if style not in styles:
            styles.append(style)
        over = style[1]
        title = _ROLE.sub(r"\1", lines[row + over][: 4 * TITLE_CHARS])
        blocks += _rst_body(text, done, starts[row])
        done = starts[row + 2 + over]
        level = min(styles.index(style) + 1, 6)
        blocks.append(Block(starts[row], done, "heading", level, plain_title(title)))
        row += 2 + over
    blocks += _rst_body(text, done, len(text))
    title = next((block.title for block in blocks if block.kind == "heading"), "")
    return Parsed(text, fill_gaps(text, blocks), title, _rst_fields(text))


def _rst_title(lines: list[str], row: int) -> tuple[str, bool] | None:
    """Return the style (mark, has an overline) of the title that starts at a line, or None."""
    line, under = lines[row], lines[row + 1]
    if row and not lines[row - 1].isspace() and lines[row - 1] and not _ADORNMENT.match(lines[row - 1]):
        return None  # in the middle of a paragraph
    if _ADORNMENT.match(line):
        below = lines[row + 2] if row + 2 < len(lines) else ""
        if under.strip() and below.rstrip() == line.rstrip() and not _ADORNMENT.match(under):
            return line[0], True
        return None
    if line[:1].isspace() or not line or not _ADORNMENT.match(under):
        return None
    width = len(under.rstrip())
    return (under[0], False) if width >= 4 or width >= len(line.rstrip()) else None


def _rst_body(text: str, start: int, end: int) -> list[Block]:
    """Return paragraphs, where an indented one belongs to the directive or literal mark before it."""
    blocks: list[Block] = []
    for block in paragraphs(text, start, end):
        opening = text[block.start : block.start + 20]
        kind = "prose"
        if opening.startswith((".. code", ".. sourcecode")):
            kind = "code"
        elif opening.startswith(("+-", "+=", "===")):
            kind = "table"
        if blocks and opening[0] in " \t":
            before = blocks[-1]
            literal = text[max(before.start, before.end - 8) : before.end].rstrip().endswith("::")
            directive = text.startswith("..", before.start)
            if literal or directive or before.kind == "code":
                kind = "code" if before.kind == "code" or (literal and not directive) else "prose"
                blocks[-1] = Block(before.start, block.end, kind)
                continue
        blocks.append(Block(block.start, block.end, kind))
    return blocks


def _rst_fields(text: str) -> dict[str, Any]:
    """Return the fields such as `:date: 2024-05-01` of the first lines."""
    fields: dict[str, Any] = {}
    for line in text[:4000].split("\n")[:40]:
        if match := re.match(r":([A-Za-z][\w -]{0,40}):[ \t]+(\S.*)$", line):
            fields.setdefault(match.group(1).lower().replace(" ", "_"), match.group(2).strip())
    return fields
