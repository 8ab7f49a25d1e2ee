"""HTML: the readable text of a page, with its headings, code, tables and lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ctx_vector.documents import Block, Parsed, fill_gaps, one_line
from ctx_vector.errors import LoaderError

_DROPPED = frozenset("script style template noscript svg nav head iframe object canvas".split())
_BLOCKS = frozenset(
    "address article aside blockquote body br caption center dd details dialog div dl dt fieldset figcaption figure "
    "footer form h1 h2 h3 h4 h5 h6 header hr html li main ol p pre section summary table tbody td tfoot th thead tr "
    "ul".split()
)
_DATES = frozenset(
    "article:modified_time og:updated_time last-modified dcterms.modified date dcterms.date "
    "article:published_time".split()
)


def parse_html(text: str) -> Parsed:
    """Return the readable text of a page, Markdown-like, with the line of the file each line came from."""
    from bs4 import BeautifulSoup

    try:
        soup = BeautifulSoup(text, "html.parser")
    except (RecursionError, AssertionError, ValueError) as error:
        raise LoaderError(f"HTML cannot be parsed: {type(error).__name__}; is it nested too deeply?") from error
    metadata, title = _html_head(soup)
    page = _Page()
    page.read(soup)
    if title and not any(block.kind == "heading" and block.level == 1 for block in page.blocks):
        page.blocks.insert(0, Block(0, 0, "heading", 1, one_line(title)))
    body = "".join(page.parts)
    first = next((block.title for block in page.blocks if block.kind == "heading"), "")
    return Parsed(body, fill_gaps(body, page.blocks), title or first, metadata, tuple(page.lines))


def _html_head(soup: Any) -> tuple[dict[str, Any], str]:
    metadata: dict[str, Any] = {}
    for tag in soup.find_all("meta", limit=200):
        name = str(tag.get("property") or tag.get("name") or "").lower()
        content = str(tag.get("content") or "").strip()[:1000]
        if not content:
            continue
        if name in _DATES:
            modified = "modif" in name or "updated" in name
            metadata.setdefault("updated" if modified else "date", content)
        elif name in ("author", "description", "keywords", "version", "document_id", "expires_at"):
            metadata.setdefault(name, content)
    title = soup.title.get_text() if soup.title else ""
    return metadata, " ".join(title.split())


class _Page:
    """Text built line by line from a tree of tags, without recursion: depth is the author's choice."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.lines: list[int] = []
        self.blocks: list[Block] = []
        self.size = 0
        self.buffer: list[str] = []
        self.buffer_line = 0
        self.items: list[str] = []  # open lists: "ul" or "ol"
        self.table = -1  # where the open table starts, or -1
        self.row: list[str] | None = None
        self.mark = ""

    def read(self, soup: Any) -> None:
        stack: list[tuple[Any, Iterator[Any]]] = [(soup, iter(soup.contents))]
        line = 1
        while stack:
            node, children = stack[-1]
            child = next(children, None)
            if child is None:
                stack.pop()
                if stack:
                    self.close(node.name, line)
                continue
            name = getattr(child, "name", None)
            if name is None:
                if type(child).__name__ in ("NavigableString", "CData"):
                    self.text(str(child), line)
                    line += str(child).count("\n")
                continue
            line = child.sourceline or line
            if name in _DROPPED or child.has_attr("hidden"):
                continue
            if name == "pre" and self.row is None:
                self.flush("prose")
                self.pre(child.get_text(), line)
            else:
                self.open(name, line)
                stack.append((child, iter(child.contents)))
        self.flush("prose")

    def text(self, text: str, line: int) -> None:
        if not text.isspace():
            if not self.buffer:
                self.buffer_line = line + text[: len(text) - len(text.lstrip())].count("\n")
            self.buffer.append(text)
        elif self.buffer:
            self.buffer.append(" ")

    def open(self, name: str, line: int) -> None:
        if self.row is not None and name in ("tr", "table"):
            self.end_row(line)  # a row that was not closed, or a table inside a cell
        if name not in _BLOCKS or self.row is not None:
            if name in _BLOCKS and self.buffer:
                self.buffer.append(" ")
            return
        self.flush("prose")
        if name in ("ul", "ol"):
            self.items.append(name)
        elif name == "li":
            self.mark = "  " * (len(self.items) - 1) + "- "
        elif name == "table":
            self.table = self.size
        elif name == "tr":
            self.row = []
        elif name[0] == "h" and name[1:].isdigit():
            self.mark = "#" * int(name[1]) + " "

    def close(self, name: str, line: int) -> None:
        if self.row is not None:
            if name in ("td", "th"):
                self.row.append(self.taken())
            elif name in ("tr", "table"):
                self.end_row(line)
            if name != "table":
                return
        if name not in _BLOCKS:
            return
        if name[0] == "h" and name[1:].isdigit():
            self.heading(int(name[1]))
        else:
            self.flush("list" if name == "li" else "prose")
        if name in ("ul", "ol") and self.items:
            self.items.pop()
            if not self.items:
                self.blank()
        elif name == "table" and self.table >= 0:
            rows = [block for block in self.blocks if block.start >= self.table]
            if rows:
                self.blocks[-len(rows) :] = [Block(self.table, self.size, "table")]
            self.table = -1
            self.blank()

    def end_row(self, line: int) -> None:
        cells, self.row = [*(self.row or []), self.taken()], None
        if any(cells):
            self.emit(" | ".join(cells if cells[-1] else cells[:-1]), "table", self.buffer_line or line)

    def taken(self) -> str:
        text = " ".join("".join(self.buffer).split())
        self.buffer = []
        return text

    def flush(self, kind: str) -> None:
        if self.buffer and (text := self.taken()):
            kind = "list" if self.mark.endswith("- ") else kind
            self.emit(self.mark + text, kind, self.buffer_line)
            self.mark = ""
            if kind == "prose" and self.table < 0:
                self.blank()

    def heading(self, level: int) -> None:
        if text := self.taken():
            start = self.size
            self.emit("#" * level + " " + text, "", self.buffer_line)
            self.blocks.append(Block(start, self.size, "heading", level, one_line(text)))
            self.blank()
        self.mark = ""

    def pre(self, text: str, line: int) -> None:
        text = text.strip("\n").rstrip()
        if text:
            start = self.size
            for offset, row in enumerate(text.split("\n")):
                self.emit(row, "", line + offset)
            self.blocks.append(Block(start, self.size, "code"))
            self.blank()

    def emit(self, row: str, kind: str, line: int) -> None:
        if kind:
            self.blocks.append(Block(self.size, self.size + len(row) + 1, kind))
        self.parts.append(row + "\n")
        self.lines.append(max(line, 1))
        self.size += len(row) + 1

    def blank(self) -> None:
        if self.parts and self.parts[-1] != "\n":
            self.parts.append("\n")
            self.lines.append(self.lines[-1])
            self.size += 1
