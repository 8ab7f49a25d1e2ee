"""What is embedded of a turn of a conversation: the turn with its date, and the turn among its neighbours.

A short turn says little by itself ("Sure, next Friday!"). Two texts are encoded for it::

    alone    8 May 2023. Melanie: Sure, next Friday!
    around   the two turns before, the turn, the two turns after, each with its speaker

and both vectors together are one row of the index. On five LoCoMo conversations evidence recall at 500 / 1,000 / 2,000
tokens was 0.59 / 0.68 / 0.78 with the turn alone, 0.69 / 0.77 / 0.84 with one neighbour on each side, and 0.75 / 0.82
/ 0.89 with two, the date, and the means removed (memory_view.py). A third text, with one neighbour on each side, would
give 0.01 more at 1,000 and 2,000 tokens for half as much encoding again, and was left out. A memory without a session
has no neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final, Protocol

from ctx_vector.languages import language_of

NEIGHBOURS: Final = 2
_LONG: Final = 1_000  # a text wider than this stands for itself
_NEIGHBOUR_WIDTH: Final = 300

_HAN = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff]")
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


class Turn(Protocol):
    """What these functions read of a memory, new or stored."""

    @property
    def content(self) -> str:
        """The text."""
        ...

    @property
    def speaker(self) -> str | None:
        """Who said it."""
        ...

    @property
    def session(self) -> str | None:
        """The conversation it belongs to."""
        ...

    @property
    def timestamp(self) -> datetime | None:
        """When it was said."""
        ...


def spoken(turn: Turn) -> str:
    """Return `Speaker: content`, the speaker not twice."""
    if not turn.speaker or turn.content.startswith((f"{turn.speaker}:", f"{turn.speaker}：")):
        return turn.content
    return f"{turn.speaker}: {turn.content}"


def alone_text(turn: Turn) -> str:
    """Return what is encoded for the turn itself; the date only within a session."""
    if turn.session is None or turn.timestamp is None:
        return spoken(turn)
    day = turn.timestamp
    if language_of(turn.content) == "zh":
        return f"{day.year}年{day.month}月{day.day}日。{spoken(turn)}"
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}. {spoken(turn)}"


def stands_alone(turn: Turn) -> bool:
    """Say whether a text is so long that it needs no neighbours."""
    return _cut(turn.content, _LONG) != turn.content


def around_text(session: Sequence[Turn], place: int) -> str | None:
    """Return what is encoded for a turn among its neighbours in the session; None when it has none, or is long."""
    turn = session[place]
    if turn.session is None or len(session) == 1 or stands_alone(turn):
        return None
    first = max(0, place - NEIGHBOURS)
    near = session[first : place + NEIGHBOURS + 1]
    lines = [spoken(t) if t is turn else _cut(spoken(t), _NEIGHBOUR_WIDTH) for t in near]
    return "\n".join(lines)


def _cut(text: str, width: int) -> str:
    """Return the beginning of a text; a character of a script in which one is a word, or most of one, counts three.

    >>> _cut("Sure, next Friday!", 10), _cut("好的，下周五！", 10)
    ('Sure, next', '好的，下')
    """
    if text.isascii() or 3 * len(text) <= width:
        return text[:width]
    used = 0
    for place, char in enumerate(text[:width]):
        used += 3 if _HAN.match(char) else 1
        if used > width:
            return text[:place]
    return text[:width]
