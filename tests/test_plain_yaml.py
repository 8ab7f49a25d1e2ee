"""Plain YAML: what it reads as PyYAML does, what it refuses, and that nothing makes it fail in another way."""

from datetime import UTC, date, datetime

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ctx_vector.errors import InputError
from ctx_vector.plain_yaml import MOST_CHARS, REFUSED, plain, read_yaml

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=20),
    st.dates(),
)
KEYS = st.text("abcdefgh政策 -_.:#'\"", min_size=1, max_size=8).filter(lambda key: key != "id")
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)


@given(VALUES, st.booleans())
def test_it_reads_what_pyyaml_wrote(value, flow):
    found = read_yaml(yaml.safe_dump(value, allow_unicode=True, default_flow_style=flow))
    assert found.value == value and not found.problems


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: [1, 2.5, true, no, ~, 'x', \"\\u4e2d\"]",
        "- 0x1F\n- 010\n- 1:30\n- 1_000",
        "a: |\n  一\n  二\n",
        "2024-05-01",
        "{a: {b: c}}",
    ],
)
def test_plain_values_are_those_of_pyyaml(text):
    assert read_yaml(text).value == yaml.safe_load(text)


def test_lines_and_paths_are_known():
    found = read_yaml("sources:\n  faq:\n    layer: static\n  问答:\n    args:\n      - a\n      - {b: 1}\n")
    assert found.lines[("sources", "faq", "layer")] == 3
    assert str(found.problem(("sources", "问答", "args", 1, "b"), "no")) == "sources.问答.args.1.b (line 7): no"
    assert str(found.problem(("sources", "faq", "loader"), "no")) == "sources.faq.loader (line 2): no"
    assert str(found.problem(("budget",), "no")) == "budget: no"


def test_versions_and_ids_keep_their_writing():
    found = read_yaml("version: 1.10\nid: 007\nother: 1.10\nitems: [{version: 2, document_id: 1e3}, {version: ~}]")
    assert found.value == {
        "version": "1.10",
        "id": "007",
        "other": 1.1,
        "items": [{"version": "2", "document_id": "1e3"}, {"version": None}],
    }


def test_every_refusal_is_told_with_its_line():
    found = read_yaml(
        "a: 1\na: 2\nb: !!python/object/apply:os.system [ls]\n"
        "c: &x [1]\nd: *x\ne: !mine {f: g}\n? [h]\n: i\nj: !!binary aGk=\n"
        f"k: {'9' * 5000}\nl: 0x{'f' * 5000}\nm: good\n"
    )
    assert [line.partition(":")[0] for line in map(str, found.problems)] == [
        "a (line 2)", "b (line 3)", "d (line 5)", "e (line 6)", "the file (line 7)", "j (line 9)", "k (line 10)",
        "l (line 11)",
    ]  # fmt: skip
    assert {key for key, value in found.value.items() if value is REFUSED} == {"b", "d", "e", "j", "k", "l"}
    assert (found.value["a"], found.value["m"]) == (1, "good")


def test_a_bomb_of_aliases_is_refused_at_once():
    lines = ["a0: &a0 [lol, lol]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    found = read_yaml("\n".join(lines))
    assert len(found.problems) == 99 and all("aliases are not allowed" in str(line) for line in found.problems)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", "line 2: no valid YAML"),
        ("a: b: c", "line 1: no valid YAML"),
        ("a: 1\n---\nb: 2\n", "line 2: expected one document"),
        ("[" * 5000, "nest"),
        ("[" * 40 + "]" * 40, "nested more than 30 deep"),
        ("{a: " * 40 + "}" * 40, "nested more than 30 deep"),
        ("- " * 3000 + "a", "nested more than 30 deep"),
        ("? " * 3000 + "a", "nested more than 30 deep"),
        ("[" + "1," * 300_000 + "]", "at most 200,000 values"),
        ("a" * (MOST_CHARS + 1), "at most 4,000,000 characters"),
        ("a: \x00", "no valid YAML"),
        ("%YAML 9.0\n--- a", "no valid YAML"),
    ],
)
def test_what_is_no_plain_yaml_is_an_input_error(text, words):
    with pytest.raises(InputError, match=words):
        read_yaml(text)


PIECES = st.sampled_from([
    "a", "b: ", "- ", "\n", "  ", "[", "]", "{", "}", ",", "&x ", "*x", "!t ", "!!int ", "!!python/name:os ", "? ",
    ": ", "|", ">", "'", '"', "#", "---", "...", "%", "@", "`", "\t", "~", "<<: ", "0x", "9" * 60, "2024-13-45",
    "1e999", ".nan", "中", "\ud800", "\x00", "\ufeff", "\u2028",
])  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=4), max_size=30).map("".join))
def test_no_text_makes_it_fail_otherwise(text):
    try:
        found = read_yaml(text)
    except InputError:
        return
    assert all(" (line " in str(line) for line in found.problems)


def test_plain_gives_what_json_has():
    value = {"a": date(2024, 5, 1), "b": [datetime(2024, 5, 1, tzinfo=UTC), float("inf")], "c": "x"}
    assert plain(value) == {"a": "2024-05-01", "b": ["2024-05-01T00:00:00+00:00", "inf"], "c": "x"}
