"""Turns of a conversation stay whole, and strategies choose among them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_vector.config import HISTORY_STRATEGIES, ContextConfig
from ctx_vector.conversation import read_turns, said_of
from ctx_vector.packets import Message
from ctx_vector.trim import SCATTERED, STRATEGIES, Turns, choose

ROLES = st.lists(st.sampled_from(["user", "assistant", "tool", "system"]), max_size=30)


def turns_of(given_messages: list[Message]) -> tuple[list[list[int]], list[int]]:
    """The indices of the messages of each turn, and of those that are left out: tool results without a call."""
    said = [said_of(message) for message in given_messages]
    found, left_out = read_turns(said, "", ContextConfig())
    at = {id(item): index for index, item in enumerate(said)}
    return [[at[id(item)] for item in turn] for turn in found], [at[id(item)] for item, _, _ in left_out]


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
    assert turns_of(messages(letters))[0] == turns


@given(ROLES)
def test_turns_hold_every_message_once_in_order(roles: list[str]) -> None:
    given_messages = [Message("x", role) for role in roles]
    found, left_out = turns_of(given_messages)
    assert sorted([index for turn in found for index in turn] + left_out) == list(range(len(roles)))
    assert all(roles[index] == "tool" for index in left_out)
    for number, turn in enumerate(found):
        assert number == 0 or roles[turn[0]] == "user"
        assert turn == sorted(turn)
        assert all(roles[index] != "user" for index in turn[1:])


def turns(lengths: list[int], sizes: list[int] | None = None, values: list[float] | None = None) -> Turns:
    def size(number: int) -> int:
        assert sizes is not None, "nothing is counted that no bound asks for"
        return sizes[number]

    def importance() -> list[float]:
        assert values is not None, "only one strategy asks for importances"
        return values

    return Turns(lengths, size, importance)


def test_the_names_are_those_of_the_config() -> None:
    assert tuple(STRATEGIES) == HISTORY_STRATEGIES and set(STRATEGIES) >= SCATTERED


@pytest.mark.parametrize(
    ("strategy", "count", "changes", "order"),
    [
        ("head_tail", 10, {}, [9, 0, 1, 8, 7, 6, 5, 4]),
        ("head_tail", 7, {}, [6, 0, 5, 4, 3, 2, 1]),
        ("head_tail", 3, {}, [2, 1, 0]),
        ("head_tail", 1, {}, [0]),
        ("head_tail", 0, {}, []),
        ("head_tail", 9, {"history_head_keep": 0, "history_tail_keep": 0}, [8]),
        ("head_tail", 9, {"history_head_keep": 1, "history_tail_keep": 0}, [8, 0]),
        ("head_tail", 4, {"history_head_keep": 9, "history_tail_keep": 1}, [3, 0, 1, 2]),
        ("summary", 10, {}, [9, 8, 7]),
        ("summary", 2, {}, [1, 0]),
        ("summary", 5, {"summary_keep_turns": 0}, [4]),
        ("summary", 0, {}, []),
        ("budget", 4, {}, [3, 2, 1, 0]),
        ("budget", 0, {}, []),
    ],
)
def test_order_of_choice(strategy: str, count: int, changes: dict[str, int], order: list[int]) -> None:
    assert choose(strategy, turns([2] * count), ContextConfig(**changes), None) == (order, [])


def test_importance_takes_the_newest_first_then_the_most_important_and_of_equals_the_newer() -> None:
    values = [0.9, 0.1, 0.9, 0.5, 0.0]
    assert STRATEGIES["importance"](turns([2] * 5, values=values), ContextConfig()) == [4, 2, 0, 3, 1]
    assert STRATEGIES["importance"](turns([], values=[]), ContextConfig()) == []


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
    config = ContextConfig(history_limit=limit)
    assert choose("window", turns(sizes), config, None)[0] == list(range(first, len(sizes)))[::-1]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(0, 30))
def test_the_window_is_the_longest_tail_within_the_limit(sizes: list[int], limit: int) -> None:
    order, _ = choose("window", turns(sizes), ContextConfig(history_limit=limit), None)
    tails = [start for start in range(len(sizes)) if sum(sizes[start:]) <= limit]
    assert min(order) == min([*tails, len(sizes) - 1])  # the newest turn stays always


CASES = st.lists(st.tuples(st.integers(1, 50), st.sampled_from([0.0, 0.3, 1.0])), min_size=1, max_size=20)


@pytest.mark.parametrize("strategy", HISTORY_STRATEGIES)
@given(CASES, st.integers(0, 400))
def test_what_stays_fits_and_the_newest_always_stays(strategy: str, cases: list[tuple[int, float]], bound: int) -> None:
    sizes, values = [size for size, _ in cases], [value for _, value in cases]
    config = ContextConfig(history_limit=12)
    everything = turns([2] * len(sizes), sizes, values)
    stay, over = choose(strategy, everything, config, bound)
    assert stay[0] == len(sizes) - 1
    assert len(stay) == 1 or sum(sizes[number] for number in stay) <= bound
    assert sorted(stay + over) == sorted(STRATEGIES[strategy](everything, config))
    if strategy in SCATTERED:  # none is left out that would fit beside all that stay
        assert all(sum(sizes[number] for number in stay) + sizes[number] > bound for number in over)
    else:
        assert sorted(stay) == list(range(len(sizes) - len(stay), len(sizes)))
    if strategy == "importance":
        assert all(
            values[number] >= values[other] for number in stay[1:] for other in over if sizes[number] >= sizes[other]
        )


def test_nothing_is_counted_beyond_the_bound() -> None:
    counted = []

    def size(number: int) -> int:
        counted.append(number)
        return 100

    everything = Turns([2] * 500, size, list)
    assert choose("budget", everything, ContextConfig(), 1000)[0] == list(range(499, 489, -1))
    assert counted == list(range(499, 488, -1))
