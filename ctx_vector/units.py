"""What of a text stays whole when it is shortened: a sentence, a list's item, a table's row, a line or block of code.

    units(text, room, count) -> [Unit, ...]    they join to the text again
    joined(units, places)    -> text           with "…" where something before or between is left out
    Excerpt                                    which are chosen, one by one, while the text they make fits

A unit may need others beside it: a row its table's header, a line of code the fences around it. What takes over `room`
tokens by itself is divided: a block of code into lines, an item into sentences, a sentence at its semicolons, and if
that is not enough at its commas and colons. Rows of tables and lines of code never are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from ctx_vector.escaping import normalise
from ctx_vector.sentences import fenced, prose

GAP: Final = "…"

_LINE = re.compile(r"[^\n]*\n(?:[^\S\n]*+\n)*+|[^\n]+\Z")  # with the blank ones after it
_HEADING = re.compile(r"#{1,6}[ \t]")
_UNDERLINE = re.compile(r"(?:={3,}|-{3,}|~{3,})[ \t]*(?:\n|\Z)")
_ITEM = re.compile(r"[ \t]*(?:[-*+•][ \t]|\d{1,9}(?:[.)][ \t]|、)|[一二三四五六七八九十]{1,3}、)")
_DELIMITERS = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*\|[ \t|:-]*(?:\n|\Z)")
_CLAUSES: Final = {
    marks: re.compile(rf"[^{marks}]*(?:[{half}](?!\s)[^{marks}]*)*(?:[{wide}]\s*|[{half}]\s+|\Z)")
    for marks, wide, half in (("；;", "；", ";"), ("，、：,:", "，、：", ",:"))
}
_WORD = re.compile(r"\w")
_MOST_UNITS: Final = 5_000
_WIDEST: Final = 16  # characters of a token: what is longer is not counted


class Unit(NamedTuple):
    """A part of a text, with the white space after it.

    `needs` are the places of units that have to stand with it. What is not `free` says nothing by itself: a heading,
    and what others need.
    """

    text: str
    needs: tuple[int, ...] = ()
    free: bool = True


def units(text: str, room: int, count: Callable[[str], int], *, blocks: bool = True) -> list[Unit]:
    """Return the units of a text, of at most `room` tokens each where they can be divided.

    `blocks` False: of code only lines, no whole blocks.
    """
    found: list[Unit] = []
    reader, start = _Reader(found, room, count), 0
    for first, end in fenced(text):
        reader.read(text[start:first])
        if blocks and reader.fits(text[first:end]):
            found.append(Unit(text[first:end]))
        else:
            reader.code(_LINE.findall(text[first:end]))
        start = end
    reader.read(text[start:])
    return found


def joined(found: Sequence[Unit], places: Iterable[int]) -> str:
    """Return the text of the units at these places, in their order, with a mark for each gap but one at the end."""
    text, after = "", 0
    for place in sorted(places):
        if place > after:
            bare, gone = text.rstrip(), "".join(unit.text for unit in found[after:place])
            text = bare + _one_break(text[len(bare) :]) + GAP + _one_break(gone[len(gone.rstrip()) :])
        text += found[place].text
        after = place + 1
    return normalise(text).rstrip()


def _one_break(blank: str) -> str:
    return "\n" if "\n" in blank else blank[:1]


class _Reader:
    """Adds the units of one text after the other to `found`."""

    def __init__(self, found: list[Unit], room: int, count: Callable[[str], int]) -> None:
        self.found = found
        self.room = room
        self.count = count

    def fits(self, part: str) -> bool:
        return len(part.encode(errors="replace")) <= self.room or self.count(part.rstrip()) <= self.room

    def code(self, lines: Sequence[str]) -> None:
        first, last = len(self.found), len(self.found) + len(lines) - 1
        inside = [Unit(line, (first, last)) for line in lines[1:-1]]
        self.found += [Unit(lines[0], free=False), *inside, Unit(lines[-1], free=False)]

    def read(self, text: str) -> None:
        """Add the units of a text without fenced blocks: a table, a heading, an item or a paragraph at a time."""
        lines, at = _LINE.findall(text), 0
        while at < len(lines):
            end = at + 1
            if _table(lines, at):
                end = _end(lines, at + 1, lambda place: "|" not in lines[place])
                self.found.append(Unit(lines[at] + lines[at + 1], free=False))
                head = len(self.found) - 1
                self.found += [Unit(line, (head,)) for line in lines[at + 2 : end]]
            elif _HEADING.match(lines[at]):
                self.found.append(Unit(lines[at], free=False))
            elif _open(lines, at) and _UNDERLINE.match(lines[end]):
                end += 1
                self.found.append(Unit(lines[at] + lines[at + 1], free=False))
            else:
                end = _end(lines, at, lambda place: bool(_starts(lines, place)))
                part = "".join(lines[at:end])
                for whole in [part] if _ITEM.match(part) and self.fits(part) else prose(part):
                    self.found += map(Unit, self._fitting(whole))
            at = end

    def _fitting(self, part: str) -> Iterator[str]:
        """Yield a part, or its clauses if it does not fit."""
        if not self.fits(part):
            for marks, clause_ends in _CLAUSES.items():
                if (
                    any(mark in part for mark in marks) and len(clauses := clause_ends.findall(part)) > 2
                ):  # one is empty
                    for clause in clauses[:-1]:
                        yield from self._fitting(clause)
                    return
        yield part


def _open(lines: Sequence[str], at: int) -> bool:
    """Tell whether a line follows at once, with no blank one between."""
    return at + 1 < len(lines) and lines[at].count("\n") == 1


def _end(lines: Sequence[str], at: int, stops: Callable[[int], bool]) -> int:
    while _open(lines, at) and not stops(at + 1):
        at += 1
    return at + 1


def _table(lines: Sequence[str], at: int) -> bool:
    return "|" in lines[at] and _open(lines, at) and bool(_DELIMITERS.match(lines[at + 1]))


def _starts(lines: Sequence[str], at: int) -> bool:
    return bool(_ITEM.match(lines[at]) or _HEADING.match(lines[at])) or _table(lines, at)


class Excerpt:
    """Units of a text, chosen one by one while the text they make measures at most `room` tokens.

    `measure` gives the tokens of a text as it will stand, `used` are those of what stands there anyway. Sums of counts
    are right to a token or so: `add` measures only where that decides, and `closed` once more. With `exact`, `add`
    always does.
    """

    def __init__(
        self,
        found: Sequence[Unit],
        room: int,
        used: int,
        measure: Callable[[str], int],
        count: Callable[[str], int],
        *,
        exact: bool = False,
    ) -> None:
        self.found = list(found[:_MOST_UNITS])
        self.room = room
        self.measure = measure
        self.count = count
        self.exact = exact
        self.chosen: set[int] = set()
        self._used, self._unsure = used, 0
        needed = {one for unit in self.found for one in unit.needs}
        starts = [at for at, unit in enumerate(self.found) if not unit.free and at not in needed]
        #: The places of headings, with those of what stands below each.
        self.headings = {at: range(at + 1, end) for at, end in pairwise([*starts, len(self.found)])}

    def left(self) -> int:
        """Return the tokens that are left, more or less."""
        return self.room - self._used

    def full(self) -> bool:
        """Tell whether so little is left that looking for what fits is not worth it."""
        return self.left() * 20 < self.room

    def alone(self, place: int) -> bool:
        """Tell whether a unit needs no other, and no other needs it."""
        unit = self.found[place]
        return (unit.free and not unit.needs) or place in self.headings

    def stands(self, place: int) -> bool:
        """Tell whether a unit says something: a heading above what is chosen, and what has no word beside it."""
        unit = self.found[place]
        if unit.free and _WORD.search(unit.text):
            return True
        beside = (place - 1, place + 1) if unit.free else self.headings.get(place, ())
        return any(one in self.chosen for one in beside)

    def put(self, count: int, tokens: int) -> None:
        """Choose the first units, which are of so many tokens together."""
        self.chosen |= set(range(count))
        self._used += tokens
        self._unsure += 1

    def add(self, place: int) -> bool:
        """Choose a unit with what it needs; False when it does not fit."""
        new = {place, *self.found[place].needs} - self.chosen
        if sum(len(self.found[one].text) for one in new) > _WIDEST * max(1, self.left()):
            return False
        cost = sum(map(self._cost, new))
        over = cost - self.left()
        if over > self._unsure + len(new) + 1:
            return False
        if over > 0 or self.exact:
            tokens = self.measure(joined(self.found, self.chosen | new))
            if tokens > self.room:
                return False
            self._used, self._unsure = tokens, 0
        else:
            self._used += cost
            self._unsure += len(new)
        self.chosen |= new
        return True

    def _cost(self, place: int) -> int:
        text = self.found[place].text
        bare = text.rstrip()
        gaps = (place - 1 not in self.chosen) - (place + 1 in self.chosen)
        line = "\n" in text[len(bare) :] and bare[-1:].isalnum()  # a line break after a mark mostly costs nothing
        return self.count(bare) + line + gaps

    def closed(self) -> str | None:
        """Return the text of what is chosen, without a heading at its end; None when it does not fit after all."""
        while len(self.chosen) > 1 and (last := max(self.chosen)) in self.headings:
            self.chosen.remove(last)
        text = joined(self.found, self.chosen)
        return text if (self.measure(text) if self._unsure else self._used) <= self.room else None
