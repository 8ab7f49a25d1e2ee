"""Which turns of a conversation stay: whole turns only, never a hole.

A turn is a user message and everything up to the next user message, so that no answer stays without its question and no
tool result without its call. Messages before the first user message form a turn of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctx_vector.packets import Message


def turns_of(messages: Sequence[Message]) -> list[list[int]]:
    """Return the indices of the messages of each turn, oldest turn first.

    >>> turns_of([Message("a", "user"), Message("b", "assistant"), Message("c", "user")])
    [[0, 1], [2]]
    """
    turns: list[list[int]] = []
    for index, message in enumerate(messages):
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(index)
    return turns


def window(turns: Sequence[Sequence[int]], limit: int) -> int:
    """Return the first turn that stays: the newest turns of at most `limit` messages together, the newest one always.

    >>> window([[0, 1], [2, 3], [4, 5, 6]], 5)
    1
    """
    first, held = len(turns), 0
    while first > 0:
        held += len(turns[first - 1])
        if held > limit and first < len(turns):
            break
        first -= 1
    return first
