"""Values on their way in and out: text that can be encoded, times in UTC, the text of a message, JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Any, Final

from ctx_vector.errors import InputError

# what `normalise` would turn into a line break or a replacement character, and JSON does not have to escape
_BREAKERS = re.compile("[\x7f\x85\u2028\u2029]")
_SPACED: Final = (", ", ": ")
_COMPACT: Final = (",", ":")


def clean_text(text: str) -> str:
    """Replace lone surrogates by U+FFFD, so that the text can be encoded, stored and counted."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def as_utc(value: date | str | float | None, name: str = "timestamp") -> datetime | None:
    """Return `value` as aware UTC; naive times are local, a date is its midnight, strings are ISO 8601, numbers seconds
    since 1970.

    Raises InputError naming the value when it is none of these or out of range.
    """
    if value is None:
        return None
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value.strip())
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        elif isinstance(value, date) and not isinstance(value, datetime):
            value = datetime.combine(value, time())
        if isinstance(value, datetime):
            return value.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        try:  # years at the edge of what astimezone can reach count as UTC
            if isinstance(value, datetime):
                return value.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            pass
    raise InputError(f"{name}: expected a datetime, an ISO 8601 string or seconds since 1970, got {value!r:.80}")


def message_text(content: Any) -> str:
    """Return the text of a message's content: a str, or a list of parts of which text parts are joined."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and not isinstance(content, (bytes, bytearray)):
        return "\n".join(part if isinstance(part, str) else _part_text(part) for part in content)
    raise InputError(f"message content: expected a str or a list of parts, got {type(content).__name__}")


def _part_text(part: Any) -> str:
    """Return the text of one part, a mapping or an object; what has none is named by its type in parentheses."""
    known = part if isinstance(part, Mapping) else {name: getattr(part, name, None) for name in ("text", "type")}
    text = known.get("text")
    return text if isinstance(text, str) else f"({known.get('type') or 'part'})"


def json_ready(value: Any, depth: int = 20) -> Any:
    """Return `value` with only what JSON has: keys become str, and so does everything JSON does not know (also NaN)."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if depth and isinstance(value, Mapping):
        return {clean_text(str(key)): json_ready(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, (list, tuple)):
        return [json_ready(item, depth - 1) for item in value]
    return clean_text(str(value))


def compact_json(value: Any, *, spaced: bool = False) -> str:
    r"""Return `value` as JSON on one line, without blanks between its parts (`spaced`: with one after , and :).

    Letters of all scripts stand as they are; whatever could break the line is escaped, lone surrogates become U+FFFD.
    Raises ValueError for NaN and infinities, TypeError for what JSON does not have.

    >>> compact_json({"城市": ["北京\n", 1.5, None]})
    '{"城市":["北京\\n",1.5,null]}'
    """
    text = json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=_SPACED if spaced else _COMPACT
    )  # fmt: skip
    return keep_on_line(clean_text(text))


def keep_on_line(text: str) -> str:
    """Escape, in a text that is JSON, what stands in strings and would be read as a line break or a control."""
    return _BREAKERS.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
