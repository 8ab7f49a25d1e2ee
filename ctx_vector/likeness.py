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
from typing import TYPE_CHECKING, Final

import numpy as np

from ctx_vector.calibration import language_of

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
_KIND_CHARS: Final = 4_000
_MOST_OTHERS: Final = 32
_STOPS: Final = re.compile("[.,;:!?\"'`。、，；：！？·…“”‘’「」『』]+")
_LOOKED_INTO: Final = 4  # texts that a text is looked for in, the nearest first


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
        self._rows = np.empty((len(blocks), calibration.dim), np.float32)
        self._made: set[int] = set()  # numbers of windows

    def __len__(self) -> int:
        return len(self._blocks)

    def window(self, number: int) -> Vectors:
        """Return the rows of the window with this number, (64, dim) or fewer at the end."""
        first, stop = number * _WINDOW, min(len(self), (number + 1) * _WINDOW)
        if number not in self._made:
            self._made.add(number)
            self._make(first, stop)
        return self._rows[first:stop]

    def row(self, place: int) -> Vectors:
        """Return one row (dim,)."""
        if place // _WINDOW not in self._made:
            self.window(place // _WINDOW)
        row: Vectors = self._rows[place]
        return row

    def _make(self, first: int, stop: int) -> None:
        rows, texts, blocks = self._rows[first:stop], self.texts[first:stop], self._blocks[first:stop]
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
        _unit(rows)


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
        self._which: list[int] = []  # of those seen are kept
        self._folded: dict[int, str] = {}
        self._kinds = _Kinds(vectors.texts)

    def keep(self, place: int) -> None:
        """Note that the candidate at a place is kept."""
        self._kept.append(place)
        self._which.append(self._seen.count)
        self._seen.put(self._vectors.row(place))

    def twin(self, place: int) -> Twin | None:
        """Return the one kept that the candidate at a place adds nothing to, and how; None when it does add to all."""
        if not self._kept:
            return None
        row = self._vectors.row(place)
        seen = self._seen.rows @ row
        if seen.max() < CONTAINED:
            return None
        cosines = seen[self._which]
        nearest = self._kept[int(cosines.argmax())]
        if (seen >= ALIKE).sum() >= self._limit:
            if self._seen.count < len(self._kept) + _MOST_OTHERS:
                self._seen.put(row)
            return Twin(nearest, "alike")
        twin = _twin(self._vectors.texts, self._kept, place, cosines, self._folded)
        if twin is None and (cosines >= CONTAINED).sum() >= self._limit and self._kinds.known(place, self._kept):
            return Twin(nearest, "alike")
        return twin


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


def _twin(
    texts: Sequence[str], kept: Sequence[int], place: int, cosines: NDArray[np.float32], folded: dict[int, str]
) -> Twin | None:
    """Return the kept candidate that says all that the one at `place` says, if any; `cosines` are to those kept."""
    near = np.flatnonzero(cosines >= CONTAINED)
    for at in near[np.argsort(-cosines[near], kind="stable")][:_LOOKED_INTO]:
        other = kept[at]
        for one in (place, other):
            if one not in folded:
                folded[one] = fold(texts[one])
        if folded[place] in folded[other]:
            return Twin(other, "same" if len(folded[place]) == len(folded[other]) else "contained")
    return None


class _Kinds:
    """The kinds of lines in the texts kept: a line with a sign in place of each word with a digit."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._known: set[str] = set()
        self._read = 0  # of the texts kept

    def known(self, place: int, kept: Sequence[int]) -> bool:
        """Say whether each line of a text is of a kind that one of the kept has."""
        for other in kept[self._read :]:
            self._known |= self._of(other)
        self._read = len(kept)
        return self._of(place) <= self._known

    def _of(self, place: int) -> set[str]:
        words = self._texts[place][:_KIND_CHARS].split(" ")
        shown = " ".join([word if word.isalpha() else _NUMBERED.sub("#", word) for word in words])
        return {line.strip() for line in shown.splitlines()} - {""}


def fold(text: str) -> str:
    r"""Return a text without case, stops, quotes and runs of white space; signs that may mean something stay.

    >>> fold('Feed  it,\ntwice: x < 5!'), fold("喂两次，然后等。")
    ('feed it twice x < 5', '喂两次然后等')
    """
    text = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return " ".join(_STOPS.sub("", text.casefold()).split())


def mmr_order(scores: Sequence[float], vectors: Residuals, weight: float, room: float = math.inf) -> list[int]:
    """Return places in the order of maximal marginal relevance (Carbonell and Goldstein 1998): next is the one with the
    largest ``weight * score - (1 - weight) * (largest cosine to those chosen before)``, no cosine under 0 counting.

    `scores` (n,) descend; of equal ones the first. So many are returned that their texts have `room` characters. A
    score of minus infinity leaves out.
    """
    windows = [_Marginal(vectors, number, scores, weight) for number in range(-(-len(scores) // _WINDOW))]
    best = np.array([window.best for window in windows])  # of those never looked at: they have at best their own value
    chosen: list[int] = []
    rows = _Stack(vectors.dim)
    while room > 0:
        number = int(best.argmax()) if windows else 0
        if not windows or best[number] == -np.inf:
            break
        window = windows[number]
        if window.known < rows.count:
            window.compare(rows.rows)
        else:
            place = window.take()
            chosen.append(place)
            room -= len(vectors.texts[place])
            rows.put(vectors.row(place))
        best[number] = window.best
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
        self._values[self._values > -np.inf] *= weight
        self._likest = np.zeros(len(self._values), np.float32)
        self._marginal = self._values
        self.known = 0  # so many of those chosen are in it
        self.best = float(self._values.max())

    def compare(self, chosen: Vectors) -> None:
        """Bring up to date; `chosen` (n, dim) are the vectors of all chosen so far, in their order."""
        rows = self._vectors.window(self._number)
        # one vector at a time: products of whole matrices wait for the threads of BLAS, on a busy machine for long
        for one in chosen[self.known :]:
            np.maximum(self._likest, rows @ one, out=self._likest)
        self.known = len(chosen)
        self._marginal = self._values - (1 - self._weight) * self._likest
        self.best = float(self._marginal.max())

    def take(self) -> int:
        """Choose the best one, and return its place."""
        at = int(self._marginal.argmax())
        self._values[at] = -np.inf
        self._marginal[at] = -np.inf
        self.best = float(self._marginal.max())
        return self._number * _WINDOW + at
