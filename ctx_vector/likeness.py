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
_WINDOW: Final = 128
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
    """

    def __init__(self, blocks: Sequence[Vectors], texts: Sequence[str], calibration: Calibration) -> None:
        self._blocks = blocks
        self._texts = texts
        self._calibration = calibration
        self._rows = np.empty((len(blocks), calibration.dim), np.float32)
        self._made = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def upto(self, stop: int) -> Vectors:
        """Return the first `stop` rows (stop, dim), or as many as there are."""
        stop = min(stop, len(self))
        if stop > self._made:
            first = self._made
            self._made = min(len(self), max(stop, first + _WINDOW))
            self._rows[first : self._made] = self._make(first, self._made)
        return self._rows[:stop]

    def _make(self, first: int, stop: int) -> Vectors:
        blocks = self._blocks[first:stop]
        if all(len(block) == 1 for block in blocks):
            rows = np.concatenate(blocks)
        else:
            rows = _unit(np.array([block.mean(0) for block in blocks], np.float32))
        languages = [language_of(text) for text in self._texts[first:stop]]
        for language in dict.fromkeys(languages):
            mean = self._calibration.mean_passage(language)
            mine = [place for place, other in enumerate(languages) if other == language]
            rows[mine] -= mean
        return _unit(rows)


def _unit(rows: Vectors) -> Vectors:
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    rows /= np.maximum(norms, np.float32(1e-12))[:, None]
    return rows


class NearDuplicates:
    """Tells of candidates, one after the other, whether they add nothing to those kept so far; best in order of rank.

    `vectors` and `texts` are those of all candidates. Of those much alike `limit` are kept, or a few more. What one
    that is looked at costs depends on how many are kept, and not on how many there are.
    """

    def __init__(self, vectors: Residuals, texts: Sequence[str], limit: int) -> None:
        self._vectors = vectors
        self._texts = texts
        self._limit = limit
        self._kept: list[int] = []
        self._seen: list[int] = []  # those kept, and some that were not, by which more of their kind are told
        self._others = self._opened = 0
        self._windows: dict[int, _Window] = {}
        self._folded: dict[int, str] = {}
        self._kinds = _Kinds(texts)

    def keep(self, place: int) -> None:
        """Note that the candidate at a place is kept."""
        self._opened = max(self._opened, place + 1)
        self._kept.append(place)
        self._seen.append(place)

    def twin(self, place: int) -> Twin | None:
        """Return the one kept that the candidate at a place adds nothing to, and how; None when it does add to all."""
        if not self._kept:
            return None
        number, at = divmod(place, _WINDOW)
        self._opened = max(self._opened, (number + 1) * _WINDOW)
        rows = self._vectors.upto(self._opened)
        window = self._windows.get(number)
        if window is None:
            window = self._windows[number] = _Window(rows[number * _WINDOW : (number + 1) * _WINDOW])
        window.compare(rows, self._seen)
        if window.alike[at] >= self._limit:
            if self._others < _MOST_OTHERS:
                self._others += 1
                self._seen.append(place)
            return Twin(self._kept[int((rows[self._kept] @ rows[place]).argmax())], "alike")
        if window.nearest[at] < CONTAINED:
            return None
        cosines = rows[self._kept] @ rows[place]
        twin = _twin(self._texts, self._kept, place, cosines, self._folded)
        if twin is None and (cosines >= CONTAINED).sum() >= self._limit and self._kinds.known(place, self._kept):
            return Twin(self._kept[int(cosines.argmax())], "alike")
        return twin


def near_duplicates(vectors: Residuals, texts: Sequence[str], limit: int) -> dict[int, Twin]:
    """Return, by place, the candidates that add nothing to better ones; `vectors` and `texts` are theirs, best first,
    and whatever adds something is kept.
    """
    near, found = NearDuplicates(vectors, texts, limit), {}
    for place in range(len(vectors)):
        twin = near.twin(place)
        if twin is None:
            near.keep(place)
        else:
            found[place] = twin
    return found


class _Window:
    """Some rows, and what is known of each: to how many of those seen it is alike, and how near the nearest is."""

    def __init__(self, rows: Vectors) -> None:
        self._rows = rows
        self._read = 0  # of those seen
        self.alike = np.zeros(len(rows), np.int64)
        self.nearest = np.full(len(rows), -1.0, np.float32)

    def compare(self, rows: Vectors, seen: Sequence[int]) -> None:
        """Compare the rows with those seen since the last time, by their places among all rows."""
        # one vector at a time: products of whole matrices wait for the threads of BLAS, on a busy machine for long
        for one in seen[self._read :]:
            cosines = self._rows @ rows[one]
            self.alike += cosines >= ALIKE
            np.maximum(self.nearest, cosines, out=self.nearest)
        self._read = len(seen)


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


def mmr_order(
    scores: Sequence[float], vectors: Residuals, weight: float, lengths: Sequence[int], room: int
) -> list[int]:
    """Return places in the order of maximal marginal relevance (Carbonell and Goldstein 1998): next is the one with the
    largest ``weight * score - (1 - weight) * (largest cosine to those chosen before)``, no cosine under 0 counting.

    `scores` (n,) descend; of equal ones the first. So many are returned that their `lengths` (n,) add up to `room`.
    """
    values = weight * np.asarray(scores, np.float64)
    penalty = np.zeros(len(scores))
    chosen: list[int] = []
    opened = 0  # the rows whose cosines are known; one that is not can at best have its own value
    rows = vectors.upto(0)
    while len(chosen) < len(scores) and room > 0:
        marginal = values[:opened] - (1 - weight) * penalty[:opened]
        best = int(marginal.argmax()) if opened else 0
        while opened < len(scores) and (not opened or marginal[best] < values[opened]):
            stop = min(len(scores), opened + _WINDOW)
            rows = vectors.upto(stop)
            for other in chosen:
                np.maximum(penalty[opened:stop], rows[opened:stop] @ rows[other], out=penalty[opened:stop])
            opened = stop
            marginal = values[:opened] - (1 - weight) * penalty[:opened]
            best = int(marginal.argmax())
        chosen.append(best)
        room -= lengths[best]
        np.maximum(penalty[:opened], rows[:opened] @ rows[best], out=penalty[:opened])
        values[best] = -np.inf
    return chosen
