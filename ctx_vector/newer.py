"""Newer statements stand above older ones that say the same.

Age alone cannot tell which of two statements holds: "I live in Leeds" and "we moved to York" may be told three days or
a year apart, and both long ago. So besides recency.py, which takes from a score by age, a newer statement takes over
from older ones that it seems to replace: it gets at least their relevance and their recency, and being newer it stands
above them. Two statements are taken for one by how alike they are and how well either matches the query::

    likeness = cosine + min(1, relevance of the newer / relevance of the older) / 2        >= supersede_line, 0.5

The cosine is that of their vectors after the mean of all passages in their language was removed: near 0 for texts that
have nothing in common, whatever the encoder. So of two that match the query equally well the newer one goes first, one
that matches half as well needs a cosine of 0.25, one that hardly matches 0.5; and ACROSS more where the two are in
different languages.

A newer statement about somebody or something else, often in the same words, replaces nothing (subjects.py): not the
older one, nor what has taken over from that.

Only the most relevant candidates take part, as many as would fill half of the budget at most. They are in the context
whatever their order, so that an old answer does not lose its place. And only statements do, texts of a line or three:
a passage says many things, and a newer one on the same matter does not replace it (versions of one document are known
by their metadata, versions.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from ctx_vector.config import ContextConfig
from ctx_vector.languages import cohort, language_of
from ctx_vector.ordering import best_first
from ctx_vector.packets import TYPE_HISTORY, TYPE_STATE, TYPE_SYSTEM, TYPE_TOOL, Candidate
from ctx_vector.ranked import AS_GIVEN, Ranked
from ctx_vector.subjects import Question, other_subject, unrelated, words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ctx_vector.judging import Judge

#: A statement is at most this wide: a character of Chinese or Japanese counts 3, others 1.
WIDEST: Final = 400
#: At most so many statements are compared with each other.
MOST: Final = 64
#: How much more alike two statements in different languages have to be: whether they are about one thing is not told by
#: their words, and short ones match a question in the other language more or less alike, whatever they say.
ACROSS: Final = 0.3
_WIDTH_PER_TOKEN: Final = 2  # about half of what a token of English or Chinese is wide
_FIXED: Final = (TYPE_SYSTEM, TYPE_STATE, TYPE_HISTORY, TYPE_TOOL)

_HAN = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff]")


class Statement(NamedTuple):
    """What is known of a statement: relevance and recency, in [0, 1], and its time in seconds, larger is newer."""

    relevance: float
    recency: float
    time: float


class NewerRule(NamedTuple):
    """When one takes over: the weights of relevance and recency in a score, each in [0, 1], the relevance under which
    nothing is handed on, and the likeness from which two statements are one (`supersede_line`).
    """

    for_relevance: float
    for_recency: float
    floor: float
    line: float

    def score(self, relevance: float, recency: float) -> float:
        """Return the score of a statement, in [0, 1]."""
        return self.for_relevance * relevance + self.for_recency * recency


def width(text: str) -> int:
    """Return how wide a text is.

    >>> width("York"), width("绍兴"), width("搬到 York")
    (4, 6, 11)
    """
    return len(text) if text.isascii() else len(text) + 2 * len(_HAN.findall(text))


def replacements(
    rows: Sequence[Ranked], judge: Judge, config: ContextConfig, now: datetime
) -> list[tuple[Ranked, Ranked]]:
    """Return (newer, older) pairs of rows of one section: the newer takes over from the older, in this order.

    There are none without `recency_weight`, without `supersede_line`, or by a strategy that cannot tell how alike texts
    are (`alike`, stages.py).

    A packet without a time takes no part, nor one that its caller scored: it has no vector, and keeps its score. A
    time in the future counts as `now`.
    """
    if config.supersede_line is None or config.recency_weight == 0:
        return []
    found = _statements(rows, config)
    if len({row.candidate.packet.timestamp for row in found}) < 2:
        return []
    measure = getattr(judge.scorer(), "alike", None)
    if measure is None:
        return []
    import numpy as np

    missing = [row.candidate.packet.content for row in found if row.candidate.vectors is None]
    fresh = iter(judge.encoder().encode_documents(missing)) if missing else iter(())  # remembered from scoring
    vectors = np.stack([next(fresh) if (own := row.candidate.vectors) is None else own[0] for row in found])
    texts = [row.candidate.packet.content for row in found]
    cosines = measure(texts, vectors)
    if cosines is None:
        return []
    languages = np.array([cohort(language_of(text)) for text in texts])
    across = ACROSS * (languages[:, None] != languages[None, :])
    pairs = take_over(
        np.where(_comparable(found), cosines - across, -np.inf),
        [Statement(row.relevance, row.recency, _seconds(row, now)) for row in found],
        NewerRule(config.relevance_weight, config.recency_weight, config.min_relevance, config.supersede_line),
        apart(judge.query, texts, [row.relevance for row in found]),
    )
    return [(found[new], found[old]) for new, old in pairs]


def _statements(rows: Sequence[Ranked], config: ContextConfig) -> list[Ranked]:
    """Return the rows that take part, the most relevant ones first; none where no two have different times."""
    short = [packet for row in rows if len((packet := row.candidate.packet).content) <= WIDEST]
    if len({packet.timestamp for packet in short} - {None}) < 2:
        return []  # none is newer than another: of many passages it is soon told
    ranked = [row for row in rows if not row.reason and row.kind not in _FIXED and row.candidate.layer not in AS_GIVEN]
    best_first(ranked, attrgetter("relevance"), lambda row: (row.candidate.packet.id, row.candidate.rank))
    found: list[Ranked] = []
    used = 0
    for row in ranked:
        wide = width(row.candidate.packet.content)
        used += wide
        if used > _WIDTH_PER_TOKEN * config.shared_limit or len(found) == MOST:
            break
        if wide <= WIDEST and row.candidate.packet.timestamp is not None and _has_vector(row.candidate, config):
            found.append(row)
    return found


def apart(query: str, texts: Sequence[str], relevance: Sequence[float]) -> Callable[[int, int], bool]:
    """Return what says whether texts at two places, a newer and an older one, are about different things."""
    asked = Question(query)

    def told(new: int, old: int) -> bool:
        said, before = words(texts[new]), words(texts[old])
        return unrelated(before, said, relevance[old], relevance[new]) or other_subject(asked, before, said)

    return told


def _comparable(rows: Sequence[Ranked]) -> NDArray[np.bool_]:
    """Return for each pair (n, n) whether one could replace the other: in one section, but not in one conversation,
    whose turns are alike because each was encoded with its neighbours.
    """
    import numpy as np

    sections = np.array([row.section for row in rows])
    own = [row.candidate.packet.meta.get("session") for row in rows]
    sessions = np.array([f"-{place}" if session is None else f"+{session}" for place, session in enumerate(own)])
    return np.asarray((sections[:, None] == sections[None, :]) & (sessions[:, None] != sessions[None, :]))


def _has_vector(candidate: Candidate, config: ContextConfig) -> bool:
    """Say whether a candidate has one vector, or had one made when it was scored."""
    if candidate.vectors is not None:
        return len(candidate.vectors) == 1
    own = isinstance(config.strategy, str) and config.strategy in candidate.known
    return not (own or candidate.packet.scored)


def _seconds(row: Ranked, now: datetime) -> float:
    stamp = row.candidate.packet.timestamp
    return min(stamp or now, now).astimezone(UTC).timestamp()


def take_over(
    cosines: NDArray[np.float64],
    statements: Sequence[Statement],
    rule: NewerRule,
    apart: Callable[[int, int], bool] = lambda new, old: False,
) -> list[tuple[int, int]]:
    """Return (newer, older) pairs of statements: each newer one takes over from that older one, in this order.

    `cosines` is (n, n) float64, -inf for a pair of which neither can replace the other. Each takes over from the best
    of those it replaces, the older ones first, so that the newest gets what the first one had. It takes nothing over
    where `apart(new, old)` says that it is about something else than that one, or than the one which that has taken
    over from.

    "I live in Leeds" matches "Where do I live?" better than the newer "We moved to York" does, and hands its place on:

    >>> import numpy as np
    >>> alike = np.array([[1.0, 0.4], [0.4, 1.0]])
    >>> told = [Statement(0.8, 1.0, time=0.0), Statement(0.5, 1.0, time=86_400.0)]
    >>> take_over(alike, told, NewerRule(0.7, 0.3, floor=0.1, line=0.5))
    [(1, 0)]
    """
    import numpy as np

    of = np.array([one.relevance for one in statements], np.float64)
    at = np.array([one.time for one in statements], np.float64)
    share = np.minimum(1.0, of[:, None] / np.maximum(of[None, :], 1e-9))  # of the older one's relevance
    replaces = (at[:, None] > at[None, :]) & (of[None, :] >= rule.floor) & (cosines + share / 2 >= rule.line)
    values = [(one.relevance, one.recency) for one in statements]
    scores = [rule.score(*own) for own in values]
    taken: dict[int, int] = {}  # newer -> older, in the order of time
    for new in np.argsort(at, kind="stable").tolist():
        old = np.flatnonzero(replaces[new]).tolist()
        if not old:
            continue
        best = max(old, key=lambda place: (scores[place], statements[place].time))
        below = scores[best] > scores[new] or values[new][0] < rule.floor
        if below and not any(apart(new, place) for place in _line_of(best, taken)):
            values[new] = (max(values[new][0], values[best][0]), max(values[new][1], values[best][1]))
            scores[new] = rule.score(*values[new])
            taken[new] = best
    return list(taken.items())


def _line_of(place: int | None, taken: Mapping[int, int]) -> Iterator[int]:
    """Yield a place, the one it took over from, and so on."""
    while place is not None:
        yield place
        place = taken.get(place)
