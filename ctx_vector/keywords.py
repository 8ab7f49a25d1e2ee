"""Keyword search: how much of what a query asks for, word by word, is in each text of a collection.

Each text is a row of term keys (terms.py) and counts. The rows of one collection are postings, sorted as 64-bit numbers
``key << 32 | row << 8 | count``: a term's postings are a slice, every statistic is of the rows that are there, and the
scores do not depend on the order they came in.

`Keywords.shares` is BM25 (Robertson et al. 1994) as a share of the most a text could get::

    share = sum of idf * tf / (tf + k1 * (1 - b + b * length / mean length))  /  sum of idf        in [0, 1)

over the terms of the query, those that no text has included. So shares of different queries compare, and a Chinese
question finds no more than a name or two in an English text. The rarity of a term is its share of the rows, drawn
towards its share of ordinary texts and questions (models/background/keywords.json) by 50 rows: with three candidates
"the" is still no keyword.

Turns of a conversation lend their terms to their neighbours: `near` names them, and a neighbour's term counts a part.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ctx_vector.errors import InputError, ModelError
from ctx_vector.languages import LANGUAGES, language_of
from ctx_vector.relevance_map import PairMap
from ctx_vector.terms import stem_key, term_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Keys = NDArray[np.uint32]
    Counts = NDArray[np.uint8]
    KeysOf = Callable[[str], Sequence[int]]

K1: Final = 1.2
B: Final = 0.75
PRIOR_ROWS: Final = 50
NEAR_SHARE: Final = 0.5
FILE_NAME: Final = "keywords.json"

_MOST_ROWS: Final = 1 << 24
_MOST_COUNT: Final = 255


# -- the terms of texts -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The terms of many texts: `sizes` (n,) is how many different ones each has; their `keys` and `counts` (at most
    255) follow each other, keys ascending within a text.
    """

    sizes: NDArray[np.int32]
    keys: Keys
    counts: Counts

    @classmethod
    def of(cls, texts: Sequence[str], keys_of: KeysOf = term_keys) -> Terms:
        """Return the terms of texts."""
        return cls.joined([cls.of_one(text, keys_of) for text in texts])

    @classmethod
    def of_one(cls, text: str, keys_of: KeysOf = term_keys) -> Terms:
        """Return the terms of one text."""
        found = Counter(keys_of(text))
        keys = np.fromiter(found, np.uint32, len(found))
        counts = np.minimum(np.fromiter(found.values(), np.int64, len(found)), _MOST_COUNT).astype(np.uint8)
        order = np.argsort(keys)
        return cls(np.array([len(keys)], np.int32), keys[order], counts[order])

    @classmethod
    def joined(cls, parts: Sequence[Terms]) -> Terms:
        """Return the terms of many texts one after the other."""
        empty = cls(np.empty(0, np.int32), np.empty(0, np.uint32), np.empty(0, np.uint8))
        parts = parts or [empty]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))

    def taken(self, rows: NDArray[np.int64]) -> Terms:
        """Return the terms of the texts at these places (m,), in their order."""
        sizes = self.sizes[rows]
        before = np.cumsum(self.sizes) - self.sizes
        each = np.repeat(before[rows] - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
        return Terms(sizes, self.keys[each], self.counts[each])

    def __len__(self) -> int:
        return len(self.sizes)

    def to_bytes(self) -> bytes:
        """Return what `from_bytes` takes back: 4 bytes a text, 5 a term, little endian."""
        head = np.array([len(self.sizes)], "<i4").tobytes()
        return head + self.sizes.astype("<i4").tobytes() + self.keys.astype("<u4").tobytes() + self.counts.tobytes()

    @classmethod
    def from_bytes(cls, blob: bytes) -> Terms:
        """Return terms as `to_bytes` wrote them. Raises ValueError when the lengths do not fit."""
        (count,) = np.frombuffer(blob, "<i4", 1)
        sizes = np.frombuffer(blob, "<i4", int(count), 4).astype(np.int32, copy=False)
        start, total = 4 + 4 * int(count), int(sizes.sum())
        if len(blob) != start + 5 * total or (sizes < 0).any():
            raise ValueError(f"{len(blob)} bytes of terms, {start + 5 * total} expected")
        keys = np.frombuffer(blob, "<u4", total, start).astype(np.uint32, copy=False)
        return cls(sizes, keys, np.frombuffer(blob, np.uint8, total, start + 4 * total))


# -- the collection -----------------------------------------------------------------------------------------------


class Keywords:
    """The postings of one collection.

    `near` (n, k) int32 names the neighbours of each row, -1 for none; a term of theirs counts what `near_shares` (k)
    say of their column, half by default.
    """

    def __init__(
        self, rows: Terms, near: NDArray[np.int32] | None = None, near_shares: Sequence[float] | None = None
    ) -> None:
        count = len(rows)
        if count >= _MOST_ROWS:
            raise InputError(f"keywords: expected fewer than {_MOST_ROWS} texts in one language, got {count}")
        owners = np.repeat(np.arange(count, dtype=np.uint64), rows.sizes)
        postings = (rows.keys.astype(np.uint64) << np.uint64(32)) | (owners << np.uint64(8)) | rows.counts
        postings.sort()
        self._keys = (postings >> np.uint64(32)).astype(np.uint32)
        self._rows = ((postings >> np.uint64(8)) & np.uint64(_MOST_ROWS - 1)).astype(np.int32)
        self._counts = (postings & np.uint64(_MOST_COUNT)).astype(np.uint8)
        self._near = near
        columns = 0 if near is None else near.shape[1]
        self._near_shares = np.array([NEAR_SHARE] * columns if near_shares is None else near_shares, np.float64)
        lengths = np.bincount(owners.astype(np.int64), weights=rows.counts, minlength=count)
        if near is not None:
            lengths = lengths + (self._near_shares * np.append(lengths, 0.0)[near]).sum(1)
        mean = float(lengths.mean()) if count else 0.0
        self._norms = K1 * (1 - B + B * lengths / (mean or 1.0))

    def __len__(self) -> int:
        return len(self._norms)

    def _with_neighbours(
        self, rows: NDArray[np.int32], own: Counts, near: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the rows that have a term, or are lent it, and how often."""
        lent = np.zeros(len(self) + 1)
        lent[rows] = own
        for column, share in zip(near[rows].T, self._near_shares, strict=True):
            lent[column] += share * own  # the neighbours in one direction are different rows
        lent[-1] = 0.0  # where -1 points
        held = np.flatnonzero(lent)
        return held, lent[held]

    def shares(
        self, query: str, common: Mapping[int, float] | None = None, keys_of: KeysOf = term_keys
    ) -> NDArray[np.float64]:
        """Return the share (n,) float64 in [0, 1) of each text; zeros when the query has no terms.

        `common` replaces the shipped shares of ordinary texts that have a term; `keys_of` is what made the rows.
        """
        if common is None:
            common = keyword_facts().common
        shares = np.zeros(len(self))
        most = 0.0
        wanted = sorted(set(keys_of(query)))
        places = np.array(wanted, np.uint32)
        bounds = zip(np.searchsorted(self._keys, places), np.searchsorted(self._keys, places, "right"), strict=True)
        for key, (first, last) in zip(wanted, bounds, strict=True):
            rows: NDArray[Any] = self._rows[first:last]
            counts: NDArray[Any] = self._counts[first:last]
            if self._near is not None and last > first:
                rows, counts = self._with_neighbours(rows, counts, self._near)
            rarity = idf(len(rows), len(self), common.get(key, 0.0))
            most += rarity
            shares[rows] += rarity * counts / (counts + self._norms[rows])
        return shares / most if most else shares


def best_shares(
    shares: NDArray[np.float64], k: int, wanted: NDArray[np.bool_] | None = None, most: int | None = None
) -> NDArray[np.int64]:
    """Return the places (m,) of the `k` largest shares (n,) above 0, of those wanted (n,), with all that equal the
    last; ascending.

    With `most`, no more than that many: of those that equal the last, the first.
    """
    held = shares > 0
    places = np.flatnonzero(held if wanted is None else held & wanted)
    if len(places) <= k:
        return places
    own = shares[places]
    least = np.partition(own, -k)[-k]
    if most is None or np.count_nonzero(own >= least) <= most:
        return np.asarray(places[own >= least])
    over = places[own > least]
    return np.sort(np.concatenate((over, places[own == least][: most - len(over)])))


def idf(holders: int, rows: int, common: float) -> float:
    """Return ln(1 + (N - df + 0.5) / (df + 0.5)), as Lucene has it, over the rows and 50 ordinary texts.

    Of a term that 2 of 3 rows and every ordinary text have, ln(1 + 1.5 / 52.5) = 0.028.
    """
    rows += PRIOR_ROWS
    df = holders + PRIOR_ROWS * common
    return math.log(1 + (rows - df + 0.5) / (df + 0.5))


# -- what is known of ordinary texts -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeywordFacts:
    """`common` is the share of ordinary texts, or of questions if larger, that have a term, by key, for the terms that
    at least 2 % have. `maps` turns shares into relevance, by the language of the query.
    """

    common: dict[int, float]
    maps: dict[str, PairMap]

    def relevance(self, query: str, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the relevance (n,) float64 in [0, 1] of shares (n,): 0.1 separates unrelated from matching, 0.7 is
        the median match of the background; a text with none of the terms has 0.
        """
        asked = language_of(query)
        found = self.maps[asked if asked in LANGUAGES else LANGUAGES[-1]]
        return np.where(shares > 0, found.relevance(shares - found.unrelated), 0.0)


@lru_cache(maxsize=1)
def keyword_facts() -> KeywordFacts:
    """Return the shipped facts. Raises ModelError when the file is missing or broken."""
    from ctx_vector.model_store import registry_dir

    path = registry_dir() / "background" / FILE_NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        common = {stem_key(word): float(share) for word, share in values["common"].items()}
        return KeywordFacts(common, {name: PairMap(*map(float, values["maps"][name])) for name in LANGUAGES})
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read ({error!r}); reinstall ctx_vector") from None
