"""Reading the lines of data files: texts, JSON objects, their fields. Errors name file and line."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ctx_vector.errors import InputError
from ctx_vector.values import clean_text

_FORM: Final = "every line is one JSON object {...}: no table (CSV), no list around the lines, no comma between them"


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number, line) of a text file in UTF-8, or in UTF-16 with its mark, as Windows PowerShell writes; only a
    line feed ends a line, for JSON may hold U+2028 as it is.
    """
    try:
        data = path.read_bytes()
        marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = data.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist; a BEIR folder has corpus.jsonl, queries.jsonl, qrels/test.tsv"
        ) from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.rstrip("\r")


def objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, object) for every line of a JSONL file."""
    for number, line in lines(path):
        place = f"{path}, line {number}"
        try:
            found = json.loads(line)
        except ValueError as error:
            raise InputError(f"{place}: no valid JSON: {error}; {_FORM}") from None
        if not isinstance(found, dict):
            raise InputError(f"{place}: expected an object, got {line:.60}; {_FORM}")
        yield place, found


def text_of(place: str, item: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """Return a field as a text; without a `default` it has to be there, and not blank."""
    value = item.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or (default is None and not value.strip()):
        raise InputError(f"{place}: {key}: expected a text that is not blank, got {value!r:.60}")
    return clean_text(value)


def time_of(place: str, item: Mapping[str, Any], key: str) -> datetime | None:
    """Return a field as a time, UTC if it has no zone; None when it is not there."""
    value = item.get(key)
    if value is None or value == "":
        return None
    try:
        if isinstance(value, str):
            found = datetime.fromisoformat(value.strip())
            return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise InputError(f"{place}: {key}: expected a time like 2024-05-31T08:00:00, got {value!r:.60}")
