"""JSON on one line, as it stands in a context."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from ctx_vector.packets import clean_text

# what `normalise` would turn into a line break or a replacement character, and JSON does not have to escape
_BREAKERS = re.compile("[\x7f\x85\u2028\u2029]")
_SPACED: Final = (", ", ": ")
_COMPACT: Final = (",", ":")


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
