"""Versions: their order against another library and by hand, and that old ones never stand beside new ones."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from ctx_vector.packets import Candidate, ContextPacket
from ctx_vector.versions import supersede, version_key


@given(st.lists(st.integers(0, 300), min_size=1, max_size=4), st.lists(st.integers(0, 300), min_size=1, max_size=4))
def test_numbers_are_in_the_order_of_packaging(one, other):
    left, right = (".".join(map(str, parts)) for parts in (one, other))
    ours = version_key(left) < version_key(right), version_key(left) == version_key(right)
    assert ours == (Version(left) < Version(right), Version(left) == Version(right))


@pytest.mark.parametrize(
    "order",
    [
        ["1.9", "1.10", "2.0"],
        ["v1", "V2", "v10"],
        ["版本1", "版本2", "版本10"],
        ["第2版", "第10版"],
        ["2.0-alpha", "2.0-beta", "2.0-rc1", "2.0-rc2", "2.0", "2.0.1"],
        ["2.0 草案", "2.0"],
        ["2024-04-30", "2024-05-01", "2024-10-01"],
        ["2024年4月30日", "2024年5月1日", "2024年10月1日"],
        ["20240430", "2024-05-01", "20241001"],
        ["2024-05-01T10:00:00+08:00", "2024-05-01T09:00:00+00:00", "2024-05-01T18:00:00+08:00"],
        [None, "draft", "1"],
        [1, "2", 3.5, 4],
        ["A", "B"],
    ],
)
def test_the_order_is_that_of_people(order):
    for older, newer in itertools.pairwise(order):
        assert version_key(older) < version_key(newer), (older, newer)


def test_packaging_agrees_on_what_comes_before_a_release():
    order = ["2.0a1", "2.0b1", "2.0rc1", "2.0", "2.0.1"]
    assert sorted(order, key=Version) == sorted(order, key=version_key) == order


@given(st.one_of(st.text(max_size=40), st.integers(), st.floats(), st.none(), st.binary(max_size=5)))
def test_every_value_has_a_key_that_compares(value):
    assert isinstance(version_key(value) < version_key("1.0"), bool)


def made(text, source="s", reason="", **meta):
    return Candidate(ContextPacket(text, metadata=meta), source, reason=reason)


def reasons(*candidates):
    return [item.reason for item in supersede(candidates)]


def test_the_newest_version_of_a_document_wins_wherever_it_comes_from():
    found = supersede(
        [
            made("old", "a", document_id="refund", version=1),
            made("new", "b", document_id="refund", version="2"),
            made("new, second part", "b", document_id="refund", version="2.0"),
            made("another", "a", document_id="delivery", version=1),
            made("no version", "c", document_id="refund"),
        ]
    )
    assert [item.reason for item in found] == ["superseded", "", "", "", "superseded"]
    assert found[0].detail == "version 1; version 2 is there"
    assert found[0].packet.content == "old"


def test_without_a_document_id_versions_of_one_source_are_versions_of_one_document():
    assert reasons(made("a", version=1), made("b", version=2), made("c")) == ["superseded", "", ""]
    assert reasons(made("a", "x", version=1), made("b", "y", version=2)) == ["", ""]
    assert reasons(made("a", source="x", version=1), made("b", source="x", version=2)) == ["superseded", ""]
    one = Candidate(ContextPacket("a", metadata={"source": "a.md", "version": 1}), "kb")
    other = Candidate(ContextPacket("b", metadata={"source": "b.md", "version": 2}), "kb")
    assert reasons(one, other) == ["", ""]


def test_what_the_caller_gave_and_what_is_dropped_already_is_left_alone():
    assert reasons(made("a", "custom", document_id="d", version=1), made("b", document_id="d", version=2)) == ["", ""]
    foreign = made("", document_id="d", version=9, reason="scope")
    assert reasons(made("a", document_id="d", version=1), foreign) == ["", "scope"]
    ended = made("", document_id="d", version=2, reason="expired")
    assert reasons(made("a", document_id="d", version=1), ended) == ["superseded", "expired"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([None, 1, "1.0", 2, "10"]), st.sampled_from("xy")),
        max_size=12,
    )
)
def test_versions_that_conflict_never_stay_together(items):
    candidates = [
        made(str(at), source, document_id=document, version=version)
        for at, (document, version, source) in enumerate(items)
    ]
    found = supersede(candidates)
    assert [item.packet for item in found] == [item.packet for item in candidates]
    stay = [item for item in found if not item.reason]
    for one, other in itertools.combinations(stay, 2):
        if one.packet.meta["document_id"] is not None:
            if one.packet.meta["document_id"] == other.packet.meta["document_id"]:
                versions = [item.packet.meta["version"] for item in (one, other)]
                assert version_key(versions[0]) == version_key(versions[1])
    assert len(stay) >= len({item.packet.meta["document_id"] for item in candidates})
