"""Turns of a conversation stay whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_vector.packets import Message
from ctx_vector.trim import turns_of, window

ROLES = st.lists(st.sampled_from(["user", "assistant", "tool", "system"]), max_size=30)


def messages(letters: str) -> list[Message]:
    roles = {"u": "user", "a": "assistant", "t": "tool", "s": "system"}
    return [Message("x", roles[letter]) for letter in letters]


@pytest.mark.parametrize(
    ("letters", "turns"),
    [
        ("", []),
        ("u", [[0]]),
        ("uaua", [[0, 1], [2, 3]]),
        ("uattaua", [[0, 1, 2, 3, 4], [5, 6]]),
        ("saua", [[0, 1], [2, 3]]),
        ("aa", [[0, 1]]),
        ("uu", [[0], [1]]),
    ],
)
def test_a_turn_is_a_user_message_and_all_up_to_the_next(letters: str, turns: list[list[int]]) -> None:
    assert turns_of(messages(letters)) == turns


@given(ROLES)
def test_turns_hold_every_message_once_in_order(roles: list[str]) -> None:
    given_messages = [Message("x", role) for role in roles]
    turns = turns_of(given_messages)
    assert [index for turn in turns for index in turn] == list(range(len(roles)))
    for number, turn in enumerate(turns):
        assert number == 0 or roles[turn[0]] == "user"
        assert all(roles[index] != "user" for index in turn[1:])


@pytest.mark.parametrize(
    ("sizes", "limit", "first"),
    [
        ([2, 2, 3], 5, 1),
        ([2, 2, 3], 7, 0),
        ([2, 2, 3], 4, 2),
        ([1, 9], 5, 1),
        ([1, 1], 0, 1),
        ([], 5, 0),
        ([9, 1], 5, 1),
    ],
)
def test_window_examples(sizes: list[int], limit: int, first: int) -> None:
    assert window([range(size) for size in sizes], limit) == first


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(0, 30))
def test_the_window_is_the_longest_tail_within_the_limit(sizes: list[int], limit: int) -> None:
    first = window([range(size) for size in sizes], limit)
    tails = [start for start in range(len(sizes)) if sum(sizes[start:]) <= limit]
    assert first == min([*tails, len(sizes) - 1])  # the newest turn stays always
