"""Which turns of a conversation stay: whole turns only (history.py reads them), and the newest always.

A strategy is a pure function: it returns the turns that may stay, in order of choice. `choose` takes them in this order
while they fit.

    window       the newest turns of `history_limit` messages together
    head_tail    the first `history_head_keep` and the last `history_tail_keep` turns
    importance   all, the most important first; of equal ones the newer
    summary      the newest `summary_keep_turns`; what is older goes into a summary (summary.py)
    budget       all, the newest first
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ctx_vector.config import ContextConfig


@dataclass(frozen=True, slots=True)
class Turns:
    """What a strategy may look at.

    `lengths` are the messages of each turn, oldest turn first. `size(n)` gives the tokens of turn n as chat messages
    with framing, `importance()` a number in [0, 1] for each turn; both are worked out only when asked for.
    """

    lengths: Sequence[int]
    size: Callable[[int], int]
    importance: Callable[[], Sequence[float]]


Strategy = Callable[[Turns, ContextConfig], list[int]]


def window(turns: Turns, config: ContextConfig) -> list[int]:
    """Return the newest turns of at most `history_limit` messages together.

    Turns of 2, 2 and 3 messages with a limit of 5: [2, 1].
    """
    order: list[int] = []
    held = 0
    for number in _newest_first(turns):
        held += turns.lengths[number]
        if held > config.history_limit and order:
            break
        order.append(number)
    return order


def head_tail(turns: Turns, config: ContextConfig) -> list[int]:
    """Return the newest turn, the first turns, then the rest of the last ones: what does not fit makes the hole grow.

    Ten turns with 2 and 6: [9, 0, 1, 8, 7, 6, 5, 4].
    """
    tail = _newest_first(turns)[: max(1, config.history_tail_keep)]
    head = [number for number in range(min(config.history_head_keep, len(turns.lengths))) if number not in tail]
    return tail[:1] + head + tail[1:]


def importance(turns: Turns, config: ContextConfig) -> list[int]:
    """Return the newest turn, then the others by importance, of equal ones the newer first.

    Importances 0.9, 0.1, 0.9, 0: [3, 2, 0, 1].
    """
    values = turns.importance()
    newest = _newest_first(turns)
    return newest[:1] + sorted(newest[1:], key=lambda number: -values[number])


def summary(turns: Turns, config: ContextConfig) -> list[int]:
    """Return the newest `summary_keep_turns` turns, at least one.

    Ten turns with 3: [9, 8, 7].
    """
    return _newest_first(turns)[: max(1, config.summary_keep_turns)]


def budget(turns: Turns, config: ContextConfig) -> list[int]:
    """Return all turns, the newest first."""
    return _newest_first(turns)


def _newest_first(turns: Turns) -> list[int]:
    return list(range(len(turns.lengths)))[::-1]


STRATEGIES: Final[Mapping[str, Strategy]] = {
    "window": window,
    "head_tail": head_tail,
    "importance": importance,
    "summary": summary,
    "budget": budget,
}
#: Strategies that may leave holes, which are marked; they go on to the next turn when one does not fit.
SCATTERED: Final = frozenset({"head_tail", "importance"})


def choose(strategy: str, turns: Turns, config: ContextConfig, bound: int | None) -> tuple[list[int], list[int]]:
    """Return (the turns that stay, those the strategy wanted but that do not fit `bound` tokens), in order of choice.

    The newest turn stays whatever its size. Sizes are those of the chat messages alone, without markers of holes: the
    layout has the last word.
    """
    order = STRATEGIES[strategy](turns, config)
    if bound is None:
        return order, []
    stay: list[int] = []
    over: list[int] = []
    left = bound
    for place, number in enumerate(order):
        size = turns.size(number)
        if size <= left or not stay:
            stay.append(number)
            left -= size
        elif strategy in SCATTERED:
            over.append(number)
        else:
            return stay, order[place:]
    return stay, over
