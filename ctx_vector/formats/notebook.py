"""Jupyter notebooks: their Markdown cells as they are and their code cells as fenced code, without the outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ctx_vector.documents import Parsed
from ctx_vector.errors import LoaderError
from ctx_vector.formats.markup import parse_markdown
from ctx_vector.formats.office import clean
from ctx_vector.formats.records import parse_json

_SOURCE: Final = re.compile(r'"(?:source|input)"[ \t]*:')
_FAR: Final = 1_000  # characters between two strings of a source: blanks


def parse_notebook(text: str) -> Parsed:
    """Return the cells as one Markdown document, each line with its line in the file.

    Outputs are left out: pictures in base64 and tables in HTML would be most of the text. What is no notebook is read
    as JSON.
    """
    try:
        book = json.loads(text)
    except ValueError:
        return parse_json(text)
    except RecursionError as error:
        raise LoaderError("JSON is nested too deeply to be read") from error
    cells = list(_cells(book))
    if not cells and not (isinstance(book, Mapping) and isinstance(book.get("cells"), list)):
        return parse_json(text)  # no notebook
    language = _language(book)
    finder = _Finder(text)
    lines: list[str] = []
    numbers: list[int] = []
    for kind, source in cells:
        finder.next_cell()
        found = _numbered(source, finder) if kind else []
        while found and not found[-1][0].strip():
            found.pop()
        if not found:
            continue
        if kind == "code":
            longest = max((len(run) for line, _ in found for run in re.findall("`{3,}", line)), default=2)
            fence = "`" * (longest + 1)
            found = [(fence + language, found[0][1]), *found, (fence, found[-1][1])]
        if lines:
            found.insert(0, ("", numbers[-1]))
        lines += [line for line, _ in found]
        numbers += [number for _, number in found]
    parsed = parse_markdown("\n".join(lines) + "\n" if lines else "")
    metadata = {**parsed.metadata, "language": language} if language else parsed.metadata
    return replace(parsed, metadata=metadata, source_lines=(*numbers, numbers[-1]) if numbers else ())


def _cells(book: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield the kind of each cell (`code`, `text`, "" for what is not read) and the pieces of its source.

    Notebooks before 2014 have `worksheets`, and call the source of code `input`.
    """
    if not isinstance(book, Mapping):
        return
    sheets = book.get("worksheets")
    for sheet in [book, *(sheets if isinstance(sheets, list) else [])]:
        cells = sheet.get("cells") if isinstance(sheet, Mapping) else None
        for cell in cells if isinstance(cells, list) else []:
            source = cell.get("source", cell.get("input")) if isinstance(cell, Mapping) else None
            pieces = [source] if isinstance(source, str) else source if isinstance(source, list) else []
            kind = (
                {"code": "code", "markdown": "text", "heading": "text"}.get(str(cell.get("cell_type")), "")
                if pieces
                else ""
            )
            yield kind, [piece for piece in pieces if isinstance(piece, str)]


def _language(book: Mapping[str, Any]) -> str:
    metadata = book.get("metadata")
    for place, name in (("language_info", "name"), ("kernelspec", "language")):
        found = metadata.get(place) if isinstance(metadata, Mapping) else None
        said = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(said, str) and re.fullmatch(r"[\w+#.-]{1,30}", said):
            return said
    return ""


def _numbered(source: Sequence[str], finder: _Finder) -> list[tuple[str, int]]:
    """Return the lines of a source with their lines in the file; its pieces are lines as a rule, but need not be."""
    found: list[tuple[str, int]] = []
    going_on = False
    for piece in source:
        number = finder.line_of(piece)
        first, *rest = clean(piece).split("\n")
        if going_on:
            found[-1] = (found[-1][0] + first, found[-1][1])
        elif first or rest:
            found.append((first, number))
        found += [(line, number) for line in rest]
        if rest and not rest[-1]:
            found.pop()  # the line feed ends a line, and begins none
        going_on = bool(rest[-1] if rest else first or going_on)
    return found


class _Finder:
    """Finds the lines of a file on which strings stand, in their order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1

    def next_cell(self) -> None:
        """Go on to the next source: what a cell has put out stands before it in the file, and may say the same."""
        if found := _SOURCE.search(self._text, self._at):
            self._go(found.end())

    def line_of(self, piece: str) -> int:
        """Return the line (1-based) of the next place of this JSON string; without one, the last."""
        for ascii_only in (False, True):
            said = json.dumps(piece, ensure_ascii=ascii_only)
            at = self._text.find(said, self._at, self._at + len(said) + _FAR)
            if at >= 0:
                self._go(at)
                self._at += len(said)
                break
        return self._line

    def _go(self, at: int) -> None:
        self._line += self._text.count("\n", self._at, at)
        self._at = at
