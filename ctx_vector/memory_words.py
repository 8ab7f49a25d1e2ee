"""The words of one user's memories, in memory, for searches by keywords.

A memory's words are those of its text with its date and speaker (`dialogue.alone_text`). A turn of a conversation lends
them to the two turns before it and the two after it, at half their count: it is found by what was asked before. A text
so long that it stands for itself (`dialogue.stands_alone`) neither lends nor borrows. Each language is a collection.

Evidence recall on five LoCoMo conversations at 500 / 1,000 / 2,000 tokens, for the hybrid: the text alone 0.78 / 0.84 /
0.90, with neighbours 0.81 / 0.88 / 0.92, their dates and stems too 0.83 / 0.88 / 0.93. Tried besides, for
at most 0.006: more for turns of a speaker whom the query names, for those whose session or neighbours are relevant, for
short ones, and a second query made of the three best.

Words are read from SQLite at the first search by keywords (some 20,000 memories a second), and from then on only those
of memories that changed. Nothing of them is written anywhere.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from ctx_vector import memory_rows as rows
from ctx_vector.dialogue import NEIGHBOURS, alone_text, spoken, stands_alone
from ctx_vector.keywords import NEAR_SHARE, Keywords, Terms
from ctx_vector.terms import term_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WordRules:
    """What counts as a memory's words; chosen as benchmarks/locomo_settings.py says.

    `near` is what a word of the next turn counts, of the one after it, and so on, in both directions; none: a text by
    itself. `dated`: the date is among the words. `keys_of` makes a text's terms, `common` is what share of ordinary
    texts has them (None: as shipped).
    """

    near: tuple[float, ...] = (NEAR_SHARE,) * NEIGHBOURS
    dated: bool = True
    keys_of: Callable[[str], Sequence[int]] = term_keys
    common: Mapping[int, float] | None = None


DEFAULT_RULES: Final = WordRules()


@dataclass(frozen=True, slots=True, eq=False)
class MemoryWords:
    """The words of a user's memories at one generation, in the order of their ids, which ascend.

    `sessions` (n,) holds a number for each session, -1 for a memory that has no neighbours.
    """

    generation: int
    ids: Ids
    terms: Terms
    sessions: NDArray[np.int64]
    names: dict[str, int]
    rules: WordRules = DEFAULT_RULES
    _collections: dict[int, Keywords] = field(default_factory=dict)

    def shares(self, query: str, code: int, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the keyword shares of the memories of one language, those where `mask` (n,) is true; `code` names the
        language.
        """
        if code not in self._collections:
            places = np.flatnonzero(mask)
            each = [share for share in self.rules.near for _ in range(2)]
            self._collections[code] = Keywords(self.terms.taken(places), self._near(places), each)
        return self._collections[code].shares(query, self.rules.common, self.rules.keys_of)

    def _near(self, places: Ids) -> NDArray[np.int32]:
        """Return the neighbours of the memories at some places, by their row among these, -1 for none: (rows, columns),
        of each step the one before and the one after.
        """
        order = np.lexsort((self.ids, self.sessions))  # sessions one after the other, each in order of speaking
        sessions = self.sessions[order]
        row_of = np.full(len(self.ids), -1, np.int32)
        row_of[places] = np.arange(len(places), dtype=np.int32)
        reach = len(self.rules.near)
        near = np.full((len(self.ids), 2 * reach), -1, np.int32)
        for step in range(1, reach + 1):
            same = np.flatnonzero((sessions[step:] == sessions[:-step]) & (sessions[step:] >= 0))
            earlier, later = order[same], order[same + step]
            near[earlier, 2 * step - 2] = row_of[later]
            near[later, 2 * step - 1] = row_of[earlier]
        return near[places]


def load_words(
    conn: sqlite3.Connection,
    user: str,
    generation: int,
    ids: Ids,
    old: MemoryWords | None,
    rules: WordRules = DEFAULT_RULES,
) -> MemoryWords:
    """Return the words of the memories `ids` of a generation; `old`, of the same rules, when it is of that generation.

    Only what changed since `old` is read.
    """
    if old is not None and old.generation == generation:
        return old
    if old is None or old.generation > generation:
        old = MemoryWords(-1, np.empty(0, np.int64), Terms.of([]), np.empty(0, np.int64), {}, rules)
    fresh = rows.changed_rows(conn, user, old.generation)
    if not fresh and np.array_equal(old.ids, ids):
        return replace(old, generation=generation, ids=ids)  # with the collections it has made
    names = dict(old.names)
    sessions = [
        -1 if row.session is None or stands_alone(row) else names.setdefault(row.session, len(names)) for row in fresh
    ]
    read = np.array([row.id for row in fresh], np.int64)
    kept = np.flatnonzero(np.isin(old.ids, ids) & ~np.isin(old.ids, read))
    found = np.concatenate((old.ids[kept], read))
    order = np.argsort(found)
    texts = [alone_text(row) if rules.dated else spoken(row) for row in fresh]
    terms = Terms.joined([old.terms.taken(kept), Terms.of(texts, rules.keys_of)])
    both = np.concatenate((old.sessions[kept], np.array(sessions, np.int64)))
    return MemoryWords(generation, found[order], terms.taken(order), both[order], names, rules)
