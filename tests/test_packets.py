"""Packets and messages: times, scores, copies, and what becomes JSON."""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
from datetime import UTC, date, datetime, timedelta, timezone
from types import MappingProxyType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_vector.errors import InputError
from ctx_vector.packets import ContextPacket, Message
from ctx_vector.values import as_utc, clean_text, json_ready, message_text

CST = timezone(timedelta(hours=8))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)


# --- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (datetime(2025, 1, 2, 3, tzinfo=UTC), datetime(2025, 1, 2, 3, tzinfo=UTC)),
        (datetime(2025, 1, 2, 3, tzinfo=CST), datetime(2025, 1, 1, 19, tzinfo=UTC)),
        ("2025-01-02T03:00:00Z", datetime(2025, 1, 2, 3, tzinfo=UTC)),
        (" 2025-01-02T03:00:00+08:00 ", datetime(2025, 1, 1, 19, tzinfo=UTC)),
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (-1.5, datetime(1969, 12, 31, 23, 59, 58, 500000, tzinfo=UTC)),
        (4_102_444_800, datetime(2100, 1, 1, tzinfo=UTC)),
        (datetime(1, 1, 1, tzinfo=CST), datetime(1, 1, 1, tzinfo=UTC)),
        (datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-8))),
         datetime(9999, 12, 31, 23, 59, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_times_become_aware_utc(value: object, expected: datetime | None) -> None:
    found = as_utc(value)
    assert found == expected
    assert found is None or found.tzinfo is UTC
    assert ContextPacket("x", timestamp=value).timestamp == expected
    assert Message("x", "user", timestamp=value).timestamp == expected


def test_naive_times_dates_and_bare_strings_are_local() -> None:
    naive = datetime(2025, 7, 2, 3, 4)
    assert as_utc(naive) == naive.astimezone(UTC) == as_utc("2025-07-02T03:04")
    assert as_utc(date(2025, 7, 2)) == datetime(2025, 7, 2).astimezone(UTC) == as_utc("2025-07-02")


@pytest.mark.parametrize("year", [1, 9999])
def test_naive_times_at_the_edge_are_taken(year: int) -> None:
    assert as_utc(datetime(year, 1, 1)).year in (year, year - 1)


@pytest.mark.parametrize(
    "value", ["", "yesterday", "2025-13-01", True, [], b"2025-01-01", math.nan, math.inf, 1e20, -1e20, 10**400]
)  # fmt: skip
def test_garbage_times_are_refused_by_name_and_value(value: object) -> None:
    with pytest.raises(InputError, match=r"timestamp: expected .* got"):
        ContextPacket("x", timestamp=value)


@given(st.datetimes(timezones=st.none() | st.just(UTC) | st.just(CST)))
def test_every_datetime_is_taken(value: datetime) -> None:
    assert as_utc(value).tzinfo is UTC


# --- scores -----------------------------------------------------------------------------------------------------------


def test_an_unset_score_reads_one_half_and_is_marked() -> None:
    unset, given_half = ContextPacket("x"), ContextPacket("x", relevance_score=0.5)
    assert (unset.relevance_score, unset.relevance, unset.scored) == (0.5, 0.5, False)
    assert (given_half.relevance_score, given_half.relevance, given_half.scored) == (0.5, 0.5, True)
    assert not ContextPacket("x", relevance_score=math.nan).scored
    assert unset.to_dict()["relevance_score"] is None
    assert given_half.to_dict()["relevance_score"] == 0.5


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0.0), (1, 1.0), (-0.1, 0.0), (1.1, 1.0), (math.inf, 1.0), (-math.inf, 0.0), ("0.7", 0.7), (True, 1.0)],
)
def test_scores_are_clamped(value: object, expected: float) -> None:
    packet = ContextPacket("x", relevance_score=value)
    assert packet.relevance_score == expected and packet.scored
    assert type(packet.relevance_score) is float


def test_numpy_scores_are_taken() -> None:
    import numpy as np

    assert ContextPacket("x", relevance_score=np.float32(0.25)).relevance_score == 0.25


@pytest.mark.parametrize("value", ["high", [], object(), 1j, 10**400])
def test_scores_that_are_no_numbers_are_refused(value: object) -> None:
    with pytest.raises(InputError, match="relevance_score"):
        ContextPacket("x", relevance_score=value)


# --- packets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, 5, b"x", ["x"]])
def test_content_is_a_str(content: object) -> None:
    with pytest.raises(InputError, match="packet content: expected a str"):
        ContextPacket(content)


def test_metadata_is_a_copied_mapping() -> None:
    mine = {"type": "memory"}
    packet = ContextPacket("x", metadata=mine)
    mine["type"] = "knowledge"
    assert packet.type == "memory"
    assert ContextPacket("x").metadata == {} == ContextPacket("x", metadata=MappingProxyType({})).meta
    assert ContextPacket("x").type == "general"
    with pytest.raises(InputError, match="metadata"):
        ContextPacket("x", metadata=[("a", 1)])


def test_packets_are_immutable_and_leave_the_token_count_alone() -> None:
    packet = ContextPacket("x", token_count=999)
    assert packet.token_count == 999
    with pytest.raises(AttributeError):
        packet.content = "y"


def test_lone_surrogates_are_replaced_on_entry() -> None:
    assert ContextPacket("a\ud800").content == "a\ufffd"
    assert Message("a\ud800", "us\udfffer").text == "a\ufffd"
    assert Message("a", "us\udfffer").role == "us\ufffder"
    assert clean_text("\ud83d\ude00") == "😀"
    packet = ContextPacket("x", metadata={"type": "\ud800", "id": "\udfff"})
    json.dumps(packet.to_dict(), ensure_ascii=False).encode()
    assert ContextPacket("x", metadata={"type": "\ud800"}).id


def test_ids_are_given_or_stable_digests() -> None:
    assert ContextPacket("x", metadata={"id": 7}).id == "7"
    assert ContextPacket("x").id == ContextPacket("x").id
    differing = [
        ContextPacket("x"),
        ContextPacket("y"),
        ContextPacket("x", 5),
        ContextPacket("x", metadata={"type": "a"}),
    ]
    assert len({packet.id for packet in differing}) == 4


@pytest.mark.parametrize("packet", [ContextPacket("x"), ContextPacket("x", 5, 3, 0.5, {"a": [1]})])
def test_packets_survive_pickling_and_copying(packet: ContextPacket) -> None:
    for again in (pickle.loads(pickle.dumps(packet)), copy.deepcopy(packet), copy.copy(packet)):
        assert again == packet
        assert again.scored == packet.scored
    assert copy.deepcopy(packet).metadata is not packet.metadata


@given(st.dictionaries(st.text() | st.integers(), ANYTHING, max_size=4))
def test_to_dict_is_strict_json(metadata: dict) -> None:
    text = json.dumps(ContextPacket("x", 5, None, 0.3, metadata).to_dict(), allow_nan=False)
    assert json.loads(text)["content"] == "x"


def test_json_ready_keeps_json_and_names_the_rest() -> None:
    loop: list = []
    loop.append(loop)
    assert json_ready({"a": [1, 2.5, None, True, "x"]}) == {"a": [1, 2.5, None, True, "x"]}
    assert json_ready({1: (math.nan, date(2025, 1, 2)), (2, 3): {4}}) == {
        "1": ["nan", "2025-01-02"], "(2, 3)": "{4}"
    }  # fmt: skip
    json.dumps(json_ready(loop))


# --- messages ---------------------------------------------------------------------------------------------------------


def test_message_of_takes_mappings_objects_and_messages() -> None:
    call = [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]
    assert Message.of({"role": "user", "content": "hi", "unknown": 1}) == Message("hi", "user")
    assert Message.of({"role": "assistant", "content": None, "tool_calls": call}).tool_calls == call
    assert Message.of({"role": "tool", "content": "4", "tool_call_id": "c1"}).tool_call_id == "c1"
    assert Message.of(SimpleNamespace(role="user", content="hi", timestamp=0)).timestamp == as_utc(0)
    ready = Message("hi", "user")
    assert Message.of(ready) is ready


@pytest.mark.parametrize("value", ["hi", {"content": "hi"}, None, 5, {"role": None, "content": "x"}, object()])
def test_what_is_no_message_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="message"):
        Message.of(value)


@pytest.mark.parametrize("role", ["", "  ", "\n", None, 5])
def test_a_blank_role_is_refused(role: object) -> None:
    with pytest.raises(InputError, match="role"):
        Message("x", role)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("plain", "plain"),
        ([], ""),
        (["a", "b"], "a\nb"),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"x": 1}], "a\n(image_url)\n(part)"),
        ((SimpleNamespace(type="text", text="a"), SimpleNamespace(type="audio")), "a\n(audio)"),
        ([{"type": "text", "text": "\ud800"}], "\ufffd"),
    ],
)
def test_the_text_of_parts(content: object, text: str) -> None:
    assert Message(content, "user").text == text


@pytest.mark.parametrize("content", [5, b"bytes", {"type": "text"}, object()])
def test_content_that_is_neither_text_nor_parts_is_refused(content: object) -> None:
    with pytest.raises(InputError, match="message content"):
        message_text(content)
    with pytest.raises(InputError, match="message content"):
        Message(content, "user")


@pytest.mark.parametrize("text", ["hi", "你好", "User"])
@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_swapped_arguments_of_a_message_are_noticed(role: str, text: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"the content comes first: Message({text!r}, {role!r})")):
        Message(role, text)
    assert Message(text, role).role == role
    assert Message(role, "user").text == role  # a message may say the name of a role
    assert Message(role + ".", text).role == text  # and a role may have any name


def test_messages_survive_pickling() -> None:
    message = Message([{"type": "text", "text": "a"}], "user", 5, name="ann", metadata={"a": 1})
    assert pickle.loads(pickle.dumps(message)) == message == copy.deepcopy(message)
