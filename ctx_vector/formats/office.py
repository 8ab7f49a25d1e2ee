"""PDF, Word, Excel and PowerPoint: their text, with pages, sheets and slides as places."""

from __future__ import annotations

import io
import logging
import re
import unicodedata
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

from ctx_vector.documents import Block, Parsed, fill_gaps, one_line, paragraphs
from ctx_vector.errors import LoaderError, OptionalDependencyError
from ctx_vector.values import clean_text

MAX_TEXT = 20_000_000  # characters of extracted text; a small file can unfold into far more
MAX_UNZIPPED = 500_000_000  # bytes of all parts of an office file, which is a zip archive

# pypdf reports every oddity of a file; with a handler of its own, logging never falls back to stderr.
logging.getLogger("pypdf").addHandler(logging.NullHandler())


class _Text:
    """Text and blocks, appended part by part."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.blocks: list[Block] = []
        self.size = 0

    def add(self, text: str, kind: str = "prose", *, level: int = 0, title: str = "", context: str = "") -> None:
        text = clean(text).strip("\n") + "\n"
        if text.isspace():
            return
        if kind == "prose":
            self.blocks += [Block(self.size + part.start, self.size + part.end, kind) for part in paragraphs(text)]
        else:
            self.blocks.append(Block(self.size, self.size + len(text), kind, level, title, context))
        self.parts.append(text)
        self.size += len(text)
        if self.size > MAX_TEXT:
            raise LoaderError(f"holds over {MAX_TEXT:,} characters of text; split it")

    def place(self, title: str, level: int) -> None:
        """Open a place whose name is not in the text."""
        self.blocks.append(Block(self.size, self.size, "heading", level, one_line(title)))

    def blank(self) -> None:
        if self.parts:
            self.parts.append("\n")
            self.size += 1

    def parsed(self, title: str, metadata: dict[str, Any]) -> Parsed:
        text = "".join(self.parts)
        return Parsed(text, fill_gaps(text, self.blocks), title, metadata)


def clean(text: str) -> str:
    r"""Return a text with ``\n`` as its only line break and no lone surrogates or NUL."""
    return clean_text(text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd"))


# --- PDF ---------------------------------------------------------------------------------------------------

# What a PDF that a browser printed says instead of characters: a font has one glyph for 人 and for the radical ⼈, and
# the file remembers the radical. In Unicode Kangxi radicals and Latin ligatures have compatibility mappings, most other
# radicals have none.
_RADICALS = dict(
    zip(
        "⺅⺉⺎⺐⺒⺓⺖⺘⺙⺠⺡⺣⺦⺨⺭⺰⺺⺾⻁⻂⻄⻅⻆⻈⻉⻋⻍⻐⻑⻓⻔⻖⻘⻙⻚⻛⻜⻝⻠⻢⻣⻤⻥⻦⻧⻨⻩⻪⻬⻮⻰",
        "亻刂兀尢巳幺忄扌攵民氵灬丬犭礻纟肀艹虎衤西见角讠贝车辶钅長长门阝青韦页风飞食饣马骨鬼鱼鸟卤麦黄黾齐齿龙",
        strict=True,
    )
)
_SAID = str.maketrans(
    {chr(code): unicodedata.normalize("NFKC", chr(code)) for code in (*range(0x2E80, 0x2FD6), *range(0xFB00, 0xFB07))}
    | _RADICALS
)


def parse_pdf(data: bytes) -> Parsed:
    """Return the text of every page; lines are lines of that text, and "page 3" heads the path.

    Radicals and ligatures become the characters that they are drawn like.
    """
    import pypdf

    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise LoaderError("the PDF is encrypted; save a copy without a password")
        pages = len(reader.pages)
        metadata, title = _pdf_metadata(reader)
        text = _Text()
        for number, page in enumerate(reader.pages, 1):
            content = (page.extract_text() or "").translate(_SAID)
            if content.strip():
                text.place(f"page {number}", 2)
                text.add(content)
                text.blank()
    except LoaderError:
        raise
    except Exception as error:  # a broken file makes pypdf raise almost any type
        reason = one_line(f"{type(error).__name__}: {error}")
        if type(error).__name__ == "DependencyError":
            raise LoaderError(f"the PDF is encrypted; save a copy without a password ({reason})") from error
        raise LoaderError(f"the PDF is broken ({reason})") from error
    if not text.size:
        raise LoaderError(f"the PDF has no text on its {pages} pages; if they are scans, run OCR on it first")
    metadata["pages"] = pages
    return text.parsed(title, metadata)


def _pdf_metadata(reader: Any) -> tuple[dict[str, Any], str]:
    metadata: dict[str, Any] = {}
    try:
        info = reader.metadata
        if info is None:
            return {}, ""
        for key, moment in (("updated", info.modification_date), ("created", info.creation_date)):
            if moment is not None:
                metadata[key] = moment.isoformat()
        if info.author:
            metadata["author"] = one_line(clean(str(info.author)))
        return metadata, one_line(clean(str(info.title or "").translate(_SAID)))
    except Exception:  # a bad date or string in the information dictionary does not spoil the text
        return metadata, ""


# --- Office ------------------------------------------------------------------------------------------------


def _open(data: bytes, what: str, load: Callable[[io.BytesIO], Any]) -> Any:
    """Open an office file with the library of the extra, turning all its errors into LoaderError."""
    if data[:8] == b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1":
        raise LoaderError(f"the {what} file is encrypted or in the old binary format; save it in the current format")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unzipped = sum(part.file_size for part in archive.infolist())
        if unzipped > MAX_UNZIPPED:
            raise LoaderError(f"the {what} file unfolds to {unzipped:,} bytes, over the limit of {MAX_UNZIPPED:,}")
        return load(io.BytesIO(data))
    except LoaderError:
        raise
    except Exception as error:  # zip, XML and schema errors of three libraries
        raise LoaderError(f"the {what} file is broken ({one_line(f'{type(error).__name__}: {error}')})") from error


def _core_metadata(properties: Any) -> tuple[dict[str, Any], str]:
    metadata: dict[str, Any] = {}
    for key, name in (("updated", "modified"), ("created", "created")):
        if (moment := getattr(properties, name, None)) is not None:
            metadata[key] = moment.isoformat()
    author = getattr(properties, "author", None) or getattr(properties, "creator", None)
    if author:
        metadata["author"] = one_line(clean(str(author)))
    return metadata, one_line(clean(str(properties.title or "")))


def parse_docx(data: bytes) -> Parsed:
    """Return paragraphs, headings by their style, and tables."""
    try:
        import docx
    except ImportError as error:
        raise OptionalDependencyError("reading Word files", "office") from error

    document = _open(data, "Word", docx.Document)
    text = _Text()

    def read() -> None:
        for item in document.iter_inner_content():
            if hasattr(item, "rows"):
                rows = (_cells(cell.text for cell in row.cells) for row in item.rows)
                text.add("\n".join(row for row in rows if row), "table")
                text.blank()
                continue
            level = re.fullmatch(r"(?:Heading|heading) (\d)", (item.style.name if item.style else "") or "")
            if level and item.text.strip():
                size = min(int(level.group(1)), 6)
                text.add(" ".join(item.text.split()), "heading", level=size, title=one_line(clean(item.text)))
            else:
                text.add(item.text)
            text.blank()

    _guarded("Word", read)
    return text.parsed(*reversed(_core_metadata(document.core_properties)))


def parse_xlsx(data: bytes) -> Parsed:
    """Return one line a row, cells as values; the first row of a sheet is the context of the others."""
    try:
        import openpyxl
    except ImportError as error:
        raise OptionalDependencyError("reading Excel files", "office") from error

    text = _Text()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # openpyxl warns of features it drops, none of which is text
        book = _open(data, "Excel", lambda file: openpyxl.load_workbook(file, read_only=True, data_only=True))

        def read() -> None:
            for sheet in book.worksheets:
                text.place(sheet.title, 2)
                names = ""
                for row in sheet.iter_rows(values_only=True):
                    line = _cells("" if value is None else str(value) for value in row)
                    if line:
                        text.add(line, "table", context=names)
                        names = names or one_line(line, 300)
                text.blank()

        try:
            _guarded("Excel", read)
            metadata, title = _core_metadata(book.properties)
        finally:
            book.close()
    return text.parsed(title, metadata)


def parse_pptx(data: bytes) -> Parsed:
    """Return the text of every slide and its notes, under "slide 3: title"."""
    try:
        import pptx
    except ImportError as error:
        raise OptionalDependencyError("reading PowerPoint files", "office") from error

    deck = _open(data, "PowerPoint", pptx.Presentation)
    text = _Text()

    def read() -> None:
        for number, slide in enumerate(deck.slides, 1):
            title = slide.shapes.title
            name = " ".join(title.text_frame.text.split()) if title is not None else ""
            text.place(f"slide {number}: {name}" if name else f"slide {number}", 2)
            for shape in _shapes(slide.shapes):
                if getattr(shape, "has_table", False):
                    rows = (_cells(cell.text for cell in row.cells) for row in shape.table.rows)
                    text.add("\n".join(row for row in rows if row), "table")
                elif shape.has_text_frame:
                    text.add(shape.text_frame.text.replace("\v", "\n"))
            if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
                text.add(slide.notes_slide.notes_text_frame.text)
            text.blank()

    _guarded("PowerPoint", read)
    return text.parsed(*reversed(_core_metadata(deck.core_properties)))


def _shapes(shapes: Any) -> Iterator[Any]:
    stack = list(reversed(list(shapes)))
    while stack:
        shape = stack.pop()
        if hasattr(shape, "shapes"):  # a group
            stack.extend(reversed(list(shape.shapes)))
        else:
            yield shape


def _cells(values: Any) -> str:
    cells = [" ".join(str(value).split()) for value in values]
    while cells and not cells[-1]:
        cells.pop()
    return " | ".join(cells)


def _guarded(what: str, read: Callable[[], None]) -> None:
    try:
        read()
    except LoaderError:
        raise
    except Exception as error:  # a damaged part shows only when it is read
        raise LoaderError(f"the {what} file is broken ({one_line(f'{type(error).__name__}: {error}')})") from error
