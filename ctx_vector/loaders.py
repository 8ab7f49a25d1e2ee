"""Files into documents: which loader reads what, and how bytes become text.

A file that cannot be read raises LoaderError with the reason, whatever is wrong with it, so that a caller can
report it and go on with the others.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import stat
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from ctx_vector.documents import Block, Document, Parsed, paragraphs, stated_date
from ctx_vector.errors import CtxVectorError, InputError, LoaderError
from ctx_vector.formats.code import LANGUAGES, parse_code
from ctx_vector.formats.html import parse_html
from ctx_vector.formats.markup import parse_markdown, parse_rst
from ctx_vector.formats.notebook import parse_notebook
from ctx_vector.formats.office import clean, parse_docx, parse_pdf, parse_pptx, parse_xlsx
from ctx_vector.formats.records import parse_csv, parse_json, parse_jsonl

__all__ = ["BINARY_LOADERS", "MAX_BYTES", "TEXT_LOADERS", "Block", "Document", "load_document", "load_text"]

MAX_BYTES = 20_000_000
_SNIFFED = 8192  # bytes in which a NUL means that a file is no text


def parse_plain(text: str) -> Parsed:
    """Return the paragraphs of a text."""
    return Parsed(text, paragraphs(text))


def _code_parser(language: str) -> Callable[[str], Parsed]:
    return lambda text: parse_code(text, language)


TEXT_LOADERS: dict[str, Callable[[str], Parsed]] = {
    **{extension: _code_parser(language) for extension, language in LANGUAGES.items()},
    **dict.fromkeys((".md", ".markdown", ".mdown", ".mkd", ".mdx", ".qmd", ".rmd"), parse_markdown),
    **dict.fromkeys((".txt", ".text", ".log"), parse_plain),
    **dict.fromkeys((".rst", ".rest"), parse_rst),
    **dict.fromkeys((".html", ".htm", ".xhtml"), parse_html),
    **dict.fromkeys((".json", ".geojson", ".webmanifest"), parse_json),
    **dict.fromkeys((".jsonl", ".ndjson"), parse_jsonl),
    ".ipynb": parse_notebook,
    ".csv": parse_csv,
    ".tsv": lambda text: parse_csv(text, "\t"),
}
BINARY_LOADERS: dict[str, Callable[[bytes], Parsed]] = {
    ".pdf": parse_pdf,
    ".docx": parse_docx,
    ".xlsx": parse_xlsx,
    ".xlsm": parse_xlsx,
    ".pptx": parse_pptx,
}


def load_document(path: str | os.PathLike[str], *, source: str | None = None, max_bytes: int = MAX_BYTES) -> Document:
    """Read one file.

    `source` is the identity to give it (default: the path as it is, with ``/``). The extension picks the loader; a
    file with an unknown one is plain text if it is text at all. An empty file gives a document without blocks.

    Raises LoaderError when the file is over `max_bytes`, binary, encrypted, broken or not readable, and
    OptionalDependencyError when its format needs an extra.
    """
    file = Path(path)
    name = file.as_posix() if source is None else source
    data = _read(file, max_bytes)
    extension = file.suffix.lower()
    try:
        if not data or extension not in BINARY_LOADERS:
            text, note = decode(data)
            return _document(name, text, extension, hashlib.sha256(data).hexdigest(), note)
        parsed = BINARY_LOADERS[extension](data)
    except LoaderError as error:
        raise LoaderError(f"{name}: {error}") from error
    return _finish(name, parsed, hashlib.sha256(data).hexdigest(), {"format": extension[1:]})


def load_text(text: str, *, source: str, extension: str = ".md") -> Document:
    """Return the document that a text would be, had it stood in a file with this extension.

    Raises InputError for an extension whose loader needs bytes.
    """
    if extension in BINARY_LOADERS:
        raise InputError(f"extension {extension!r} is a binary format; give one of {', '.join(sorted(TEXT_LOADERS))}")
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    try:
        return _document(source, text, extension, digest, {})
    except LoaderError as error:
        raise LoaderError(f"{source}: {error}") from error


def _document(name: str, text: str, extension: str, digest: str, note: dict[str, Any]) -> Document:
    text = clean(text)
    parse = TEXT_LOADERS.get(extension, parse_plain)
    if not text.strip():
        return Document(name, text, content_hash=digest, metadata=note)
    try:
        if extension in LANGUAGES:
            parsed = parse_code(text, LANGUAGES[extension], name.rsplit("/", 1)[-1])
        else:
            parsed = parse(text)
    except CtxVectorError:
        raise
    except (RecursionError, MemoryError) as error:
        raise LoaderError(f"nested too deeply to be read ({type(error).__name__})") from error
    return _finish(name, parsed, digest, note)


def _finish(name: str, parsed: Parsed, digest: str, note: dict[str, Any]) -> Document:
    metadata = {**parsed.metadata, **note}
    return Document(
        source=name,
        text=parsed.text,
        blocks=tuple(parsed.blocks),
        title=parsed.title,
        timestamp=stated_date(metadata),
        metadata=metadata,
        content_hash=digest,
        source_lines=parsed.source_lines,
    )


def _read(file: Path, max_bytes: int) -> bytes:
    try:
        # Opened without blocking: a named pipe without a writer would wait for ever.
        handle = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb") as stream:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise LoaderError(f"{file.as_posix()}: not a regular file")
            data = stream.read(max_bytes + 1)
            size = max(os.fstat(handle).st_size, len(data))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise LoaderError(f"{file.as_posix()}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if len(data) > max_bytes:
        raise LoaderError(f"{file.as_posix()}: {size:,} bytes, over the limit of {max_bytes:,}; raise max_bytes")
    return data


# --- Decoding ----------------------------------------------------------------------------------------------

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# What HTML, XML and source files say about themselves; only encodings of plain text are believed.
_DECLARED = re.compile(
    rb"(?:charset|coding)[ \t]{0,3}[=:][ \t]{0,3}[\"']?"
    rb"((?:iso-?8859|latin|windows|cp125|koi8|big5|shift|sjis|euc|gb)[\w-]{0,12})",
    re.IGNORECASE,
)
# The hundred or so most frequent characters are over a third of any Chinese text.
_FREQUENT = frozenset(
    "的一是不了在人有我他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可里后小么心多天而能好都然没日于起还发"
    "成事只作当想看文无开手十用主行方又如前所本见经头面公同三已老从动两长知民样现分将外但身些与高意进把法此实回二理美点月明其种声全工己话"
    "儿者向情部正名定女问力机给等几很业最间新什打便位因重被走电四第门相次东政海口使教西再平真听世气信北少关并内加化由却代军产入先山五太"
)
_PUNCTUATION = frozenset("，。、；：？！“”‘’（）《》【】—…·￥")


def decode(data: bytes) -> tuple[str, dict[str, Any]]:
    """Return a file's text and a note: ``{}``, ``{"decoding": "gb18030"}`` or ``{"decoding": "replaced"}``.

    UTF-8 and, with a byte order mark, UTF-16 and UTF-32; else the encoding that the file declares, if it is an
    8-bit or East Asian one; else GB18030 where that gives likely Chinese; else UTF-8 with U+FFFD for what is not.
    Raises LoaderError for binary data.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            text = data.decode(encoding, "replace").removeprefix("\ufeff")
            return text, {"decoding": "replaced"} if "\ufffd" in text and encoding != "utf-8" else {}
    if b"\0" in data[:_SNIFFED]:
        raise LoaderError("binary file (it has NUL bytes); if it is UTF-16, save it as UTF-8")
    try:
        return data.decode("utf-8"), {}
    except UnicodeDecodeError:
        pass
    if declared := _DECLARED.search(data[:1024]):
        try:
            name = codecs.lookup(declared.group(1).decode("ascii")).name
            return data.decode(name), {"decoding": name}
        except (LookupError, UnicodeDecodeError):
            pass
    try:
        text = data.decode("gb18030")
        if _likely_chinese(text):
            return text, {"decoding": "gb18030"}
    except UnicodeDecodeError:
        pass
    text = data.decode("utf-8", "replace")
    if text.count("\ufffd") > len(text) // 3:
        raise LoaderError("binary file, or text in an unknown encoding; save it as UTF-8")
    return text, {"decoding": "replaced"}


def _likely_chinese(text: str) -> bool:
    """Tell GB18030 from other 8-bit encodings, nearly all of which decode as some characters.

    Korean and Cyrillic bytes give ideographs too, but seldom the frequent ones; accented Latin gives rare ones. Tables
    of names or goods may hold no frequent one either, so the other sign is how the characters spread over GB 2312.
    """
    foreign = [char for char in text[:200_000] if char > "\x7f"]
    hanzi = [char for char in foreign if "\u4e00" <= char <= "\u9fff"]
    marks = sum(char in _PUNCTUATION for char in foreign)
    if not hanzi or len(hanzi) + marks < 0.85 * len(foreign):
        return False
    return sum(char in _FREQUENT for char in hanzi) >= 0.15 * len(hanzi) or _spread_like_chinese(set(hanzi))


def _spread_like_chinese(hanzi: AbstractSet[str]) -> bool:
    """Whether characters lie where those of Chinese words lie in GB 2312.

    Its rows 0xB0-0xD7 hold the usual ones by their sound, 0xD8-0xF7 the rare ones, so words from A to Z fill the former
    evenly. Hangul ends at row 0xC8; letters of KOI8-R and ISO 8859 are neighbours, so their second bytes are all high.
    """
    pairs = [code for char in hanzi if len(code := char.encode("gb2312", "ignore")) == 2]
    if len(pairs) < max(5, 0.9 * len(hanzi)):
        return False
    usual = sum(first < 0xD8 for first, _ in pairs)
    late = sum(0xC9 <= first < 0xD8 for first, _ in pairs)
    low = sum(second < 0xC0 for _, second in pairs)
    return usual >= 0.75 * len(hanzi) and late >= 0.12 * len(hanzi) and low >= 0.08 * len(hanzi)
