"""Candidates that say the same: which of many, best first, add nothing, and in which order the rest adds most.

Pure functions of vectors, taken without what all texts of a language share (`Residuals`): then unrelated passages of
multilingual-e5-small have a cosine around 0.3 (99.9 % of pairs under 0.78), a text and its first half 0.6-0.9, chunks
of one log 0.6-0.95.

    the same     cosine >= 0.5, and word for word the other, whatever the case and the stops
    contained    the same, within the other
    much alike   cosine >= 0.8 to `limit` or more of the better ones; or cosine >= 0.5 to as many, and each of its lines
                 stands in one of those kept, but for words with digits

What differs in a number may be another fact, or the next line of a log, and a vector cannot tell. So much alike is only
what a few better ones are like already: of 150 chunks of a log some 5 are kept, of the 20 passages that a question
finds in ordinary documents hardly ever one is dropped.

Rows are compared with those kept, and with a few that were dropped, never all with all, and only those are looked at
that would be kept otherwise. Equal input gives equal output.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from ctx_vector.languages import language_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.calibration import Calibration

    Vectors = NDArray[np.float32]

CONTAINED: Final = 0.5
ALIKE: Final = 0.8
_WINDOW: Final = 64
_SENTENCES: Final = {
    "same": "says the same as {}",
    "contained": "stands in {}",
    "alike": "much like {} and others before it",
}
_NUMBERED: Final = re.compile(r"\b[^\W\d]*+\d\w*")
_KNOWN_CHARS: Final = 4_000  # of the beginning whose lines are told by kind, and of texts that are remembered
_KNOWN: Final = 1_000  # texts that are remembered: most passages that a question finds were found by one before it
_MOST_OTHERS: Final = 32
_FEW: Final = 16
_STOPS: Final = re.compile("[.,;:!?\"'`。、，；：！？·…“”‘’「」『』]+")
_LOOKED_INTO: Final = 4  # texts that a text is looked for in, the nearest first
_BEST: Final = attrgetter("best")


@dataclass(frozen=True, slots=True)
class Twin:
    """Why a candidate adds nothing: the place of the one it is like, and how (`same`, `contained`, `alike`)."""

    place: int
    how: str

    def said(self, name: str) -> str:
        """Return it as a sentence for people; `name` is that of the other."""
        return _SENTENCES[self.how].format(name)


class Residuals:
    """What is left of many vectors without the mean passage of their languages: unit rows, made when asked for.

    `blocks` are (windows, dim) float32 with unit rows, one for each text; a text of many windows counts as their mean.
    One without a block, or with vectors of another model, is a row of zeros.
    """

    def __init__(self, blocks: Sequence[Vectors | None], texts: Sequence[str], calibration: Calibration) -> None:
        self.texts = texts
        self.dim = calibration.dim
        self._blocks = blocks
        self._calibration = calibration
        self._windows: dict[int, Vectors] = {}  # by number
        self._alone: dict[int, Vectors] = {}  # rows that were made without their window, by place

    def __len__(self) -> int:
        return len(self._blocks)

    def window(self, number: int) -> Vectors:
        """Return the rows of the window with this number, (64, dim) or fewer at the end."""
        if number not in self._windows:
            self._windows[number] = self._make(number * _WINDOW, min(len(self), (number + 1) * _WINDOW))
        return self._windows[number]

    def row(self, place: int) -> Vectors:
        """Return one row (dim,), the others of its window not made for it."""
        window = self._windows.get(place // _WINDOW)
        if window is not None:
            row: Vectors = window[place % _WINDOW]
            return row
        if place not in self._alone:
            self._alone[place] = self._one(self._blocks[place], self.texts[place])
        return self._alone[place]

    def _one(self, block: Vectors | None, text: str) -> Vectors:
        if block is None or block.shape[1] != self.dim:
            return np.zeros(self.dim, np.float32)
        row = block[0] if len(block) == 1 else _unit(block.mean(0, keepdims=True))[0]
        rest: Vectors = row - self._calibration.mean_passage(language_of(text))
        rest *= np.float32(1 / max(1e-12, math.sqrt(rest @ rest)))
        return rest

    def _make(self, first: int, stop: int) -> Vectors:
        texts, blocks = self.texts[first:stop], self._blocks[first:stop]
        rows = np.zeros((len(blocks), self.dim), np.float32)
        absent: list[int] = []
        if {None if block is None else block.shape for block in blocks} == {(1, self.dim)}:
            np.concatenate(blocks, out=rows)  # type: ignore[arg-type]  # none of them is None
        else:
            for place, block in enumerate(blocks):
                if block is None or block.shape[1] != self.dim:
                    absent.append(place)
                else:
                    rows[place] = block[0] if len(block) == 1 else _unit(block.mean(0, keepdims=True))[0]
        languages = [language_of(text) for text in texts]
        for language in set(languages):
            mean = self._calibration.mean_passage(language)
            if languages.count(language) == len(languages):
                rows -= mean
            else:
                rows[[place for place, other in enumerate(languages) if other == language]] -= mean
        if absent:
            rows[absent] = 0
        return _unit(rows)


def _unit(rows: Vectors) -> Vectors:
    """Make rows unit rows, in place; what is zero stays so."""
    squares = np.einsum("ij,ij->i", rows, rows)
    rows *= (np.float32(1) / np.sqrt(np.maximum(squares, np.float32(1e-24))))[:, None]
    return rows


class NearDuplicates:
    """Tells of candidates, one after the other, whether they add nothing to those kept so far; best in order of rank.

    `vectors` are those of all candidates. Of those much alike `limit` are kept, or a few more. What one that is looked
    at costs depends on how many are kept, and not on how many there are.
    """

    def __init__(self, vectors: Residuals, limit: int) -> None:
        self._vectors = vectors
        self._limit = limit
        self._kept: list[int] = []
        self._seen = _Stack(vectors.dim)  # those kept, and some others by which more of their kind are told
        self._places: list[int] = []  # of those seen, -1 for one that is not kept
        self._kinds: set[str] = set()  # of the lines in the texts kept
        self._read = 0  # of the texts kept

    def keep(self, place: int) -> None:
        """Note that the candidate at a place is kept."""
        self._kept.append(place)
        self._places.append(place)
        self._seen.put(self._vectors.row(place))

    def twin(self, place: int) -> Twin | None:
        """Return the one kept that the candidate at a place adds nothing to, and how; None when it does add to all."""
        if not self._kept:
            return None
        row = self._vectors.row(place)
        cosines = self._seen.rows @ row
        if cosines[cosines.argmax()] < CONTAINED:  # nearly always
            return None
        at = np.flatnonzero(cosines >= CONTAINED)
        near = list(zip(cosines[at].tolist(), [self._places[one] for one in at.tolist()], strict=True))
        kept = [other for _, other in sorted(near, key=lambda pair: -pair[0]) if other >= 0]
        if sum(cosine >= ALIKE for cosine, _ in near) >= self._limit:
            if self._seen.count < len(self._kept) + _MOST_OTHERS:
                self._places.append(-1)
                self._seen.put(row)
            nearest = int(np.where(np.array(self._places[: len(cosines)]) < 0, -np.inf, cosines).argmax())
            return Twin(self._places[nearest], "alike")
        twin = self._inside(place, kept[:_LOOKED_INTO])
        return Twin(kept[0], "alike") if twin is None and len(kept) >= self._limit and self._known(place) else twin

    def _inside(self, place: int, others: Sequence[int]) -> Twin | None:
        """Return which of others says all that the candidate at a place says, if any."""
        texts, text = self._vectors.texts, fold(self._vectors.texts[place])
        for other in others:
            if text in (whole := fold(texts[other])):
                return Twin(other, "same" if len(text) == len(whole) else "contained")
        return None

    def _known(self, place: int) -> bool:
        """Say whether each line of a text is of a kind that one of the kept has."""
        texts = self._vectors.texts
        for other in self._kept[self._read :]:
            self._kinds |= _kinds(texts[other][:_KNOWN_CHARS])
        self._read = len(self._kept)
        return _kinds(texts[place][:_KNOWN_CHARS]) <= self._kinds


def all_apart(vectors: Residuals, limit: int) -> bool:
    """Say whether none of a few candidates adds nothing to others, whatever their order and whichever are kept.

    Looked at are at most 16; more of them are not said to be apart.
    """
    texts = vectors.texts
    if len(texts) > _FEW:
        return False
    rows = vectors.window(0)
    kinds: list[frozenset[str]] = []
    for place, cosines in enumerate(np.einsum("id,jd->ij", rows, rows).tolist()):
        near = [other for other, cosine in enumerate(cosines) if cosine >= CONTAINED and other != place]
        text = fold(texts[place]) if near else ""
        if any(text in fold(texts[other]) for other in near):
            return False
        if len(near) >= limit:
            kinds = kinds or [_kinds(text[:_KNOWN_CHARS]) for text in texts]
            others = frozenset().union(*kinds[:place], *kinds[place + 1 :])
            if kinds[place] <= others or sum(cosines[other] >= ALIKE for other in near) >= limit:
                return False
    return True


class _Stack:
    """Rows, one put after the other, in one matrix."""

    def __init__(self, dim: int) -> None:
        self._all = np.empty((_WINDOW, dim), np.float32)
        self.count = 0

    @property
    def rows(self) -> Vectors:
        """All rows (count, dim)."""
        return self._all[: self.count]

    def put(self, row: Vectors) -> None:
        """Put a row (dim,) after the others."""
        if self.count == len(self._all):
            self._all = np.concatenate([self._all, np.empty_like(self._all)])
        self._all[self.count] = row
        self.count += 1


def near_duplicates(vectors: Residuals, limit: int) -> dict[int, Twin]:
    """Return, by place, the candidates that add nothing to better ones; `vectors` are theirs, best first, and whatever
    adds something is kept.
    """
    near, found = NearDuplicates(vectors, limit), {}
    for place in range(len(vectors)):
        twin = near.twin(place)
        if twin is None:
            near.keep(place)
        else:
            found[place] = twin
    return found


@lru_cache(_KNOWN)
def _kinds(text: str) -> frozenset[str]:
    """Return the kinds of its lines: a line with a sign in place of each word with a digit."""
    words = [word if word.isalpha() else _NUMBERED.sub("#", word) for word in text.split(" ")]
    return frozenset([line.strip() for line in " ".join(words).splitlines()]) - {""}


def fold(text: str) -> str:
    r"""Return a text without case, stops, quotes and runs of white space; signs that may mean something stay.

    >>> fold('Feed  it,\ntwice: x < 5!'), fold("喂两次，然后等。")
    ('feed it twice x < 5', '喂两次然后等')
    """
    return _folded(text) if len(text) <= _KNOWN_CHARS else _folded.__wrapped__(text)


@lru_cache(_KNOWN)
def _folded(text: str) -> str:
    text = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return " ".join(_STOPS.sub("", text.casefold()).split())


def mmr_order(scores: Sequence[float], vectors: Residuals, weight: float, room: float = math.inf) -> list[int]:
    """Return places in the order of maximal marginal relevance (Carbonell and Goldstein 1998): next is the one with the
    largest ``weight * score - (1 - weight) * (largest cosine to those chosen before)``, no cosine under 0 counting.

    `scores` (n,) descend; of equal ones the first. So many are returned that their texts have `room` characters. A
    score of minus infinity leaves out. Only the first scores and vectors are looked at, as far as it takes.
    """
    windows: list[_Marginal] = []
    chosen: list[int] = []
    rows = _Stack(vectors.dim)
    last = math.inf  # the least value of the windows that are looked at, which no later one is over
    while room > 0:
        window = max(windows, key=_BEST, default=None)  # of equal ones the first
        if (window is None or window.best < last) and len(windows) * _WINDOW < len(scores):
            windows.append(_Marginal(vectors, len(windows), scores, weight))
            last = min(last, windows[-1].least)
        elif window is None or window.best == -math.inf:
            break
        elif window.known < rows.count:
            window.compare(rows.rows)
        else:
            place = window.take()
            chosen.append(place)
            room -= len(vectors.texts[place])
            rows.put(vectors.row(place))
    return chosen


class _Marginal:
    """The marginal relevance of the candidates in a window, as far as it is known: what is chosen lowers it only, so
    that it is brought up to date only where it might be the largest.
    """

    def __init__(self, vectors: Residuals, number: int, scores: Sequence[float], weight: float) -> None:
        self._vectors = vectors
        self._number = number
        self._weight = weight
        self._values = np.array(scores[number * _WINDOW : (number + 1) * _WINDOW], np.float64)
        scored = self._values > -np.inf
        self._values[scored] *= weight
        self.least = float(self._values.min(where=scored, initial=np.inf))
        self._likest = np.zeros(len(self._values), np.float32)
        self._marginal = self._values
        self.known = 0  # so many of those chosen are in it
        self._look()

    def compare(self, chosen: Vectors) -> None:
        """Bring up to date; `chosen` (n, dim) are the vectors of all chosen so far, in their order."""
        rows = self._vectors.window(self._number)
        # one vector at a time: products of whole matrices wait for the threads of BLAS, on a busy machine for long
        for one in chosen[self.known :]:
            np.maximum(self._likest, rows @ one, out=self._likest)
        self.known = len(chosen)
        self._marginal = self._values - (1 - self._weight) * self._likest
        self._look()

    def take(self) -> int:
        """Choose the best one, and return its place."""
        at = self._at
        self._values[at] = -np.inf
        self._marginal[at] = -np.inf
        self._look()
        return self._number * _WINDOW + at

    def _look(self) -> None:
        self._at = int(self._marginal.argmax())
        self.best = float(self._marginal[self._at])
