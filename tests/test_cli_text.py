"""Width, wrapping and cutting of what a terminal shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_vector.cli.common import count, seconds, size, some
from ctx_vector.cli.tables import show_table
from ctx_vector.cli.text import cut, cut_start, plain, read_text, width, wrap
from ctx_vector.errors import InputError


def test_chinese_takes_two_columns():
    assert [width(text) for text in ("path", "路径", "é", "e\u0301", "，", "")] == [4, 4, 1, 1, 2, 0]


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])), st.integers(2, 40))
def test_cut_lines_fit(text: str, columns: int):
    assert width(cut(text, columns)) <= columns
    assert width(cut_start(text, columns)) <= columns


@given(st.text(st.sampled_from("ab 路径，。\n"), max_size=200), st.integers(12, 40), st.integers(1, 5))
def test_wrapped_lines_fit_and_lose_nothing(text: str, columns: int, most: int):
    lines = wrap(text, columns, most)
    assert len(lines) <= most
    assert all(width(line) <= columns for line in lines)
    whole = wrap(text, columns, 10_000)
    assert "".join("".join(whole).split()) == "".join(text.split())


def test_wrapping_prefers_word_breaks_and_keeps_marks_off_line_starts():
    assert wrap("how to wrap a line", 10, 9) == ["how to", "wrap a", "line"]
    lines = wrap("声明路径参数的类型，使用标准注解。", 12, 9)
    assert all(not line.startswith(("，", "。")) for line in lines)
    assert wrap("one two three four", 9, 1) == ["one two…"]
    assert wrap("    indented code that is long", 16, 9) == ["    indented", "    code that is", "    long"]
    assert wrap("x" * 25, 10, 9) == ["x" * 10, "x" * 10, "x" * 5]


def test_nothing_can_steer_the_terminal():
    assert plain("a\x1b[31mred\x07\x9b1m\u202e") == "a\ufffd[31mred\ufffd\ufffd1m\ufffd"
    assert plain("a\tb\nc") == "a   b\nc"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (count(1, "file"), "1 file"),
        (count(1204, "file"), "1,204 files"),
        (seconds(0.84), "0.8 s"),
        (seconds(200), "3 min 20 s"),
        (seconds(7300), "2 h 1 min"),
        (size(999), "999 B"),
        (size(12_340_000), "12.3 MB"),
        (size(5e9), "5.0 GB"),
        (some("abcde"), "a, b, c and 2 more"),
        (some("ab"), "a, b"),
    ],
)
def test_numbers_are_said_as_people_say_them(made: str, expected: str):
    assert made == expected


_VERSIONS = (
    ["", ">version", "created", "by", ">added", ">updated", ">removed", ">documents", ">chunks"],
    [["*", "2", "2026-11-30 15:12:25", "sync", "12", "1,204", "0", "1,216", "31,260"]],
)
_BUILDS = (
    ["id", "when", "session", "query", ">tokens", ">kept", ">dropped", ""],
    [["0e12d25d01", "2026-11-30 15:13:34", "", "保修多久？" * 9, "12,503/16,000", "8", "105", "cut rated 0.5"]],
)


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 200])
@pytest.mark.parametrize(("names", "rows"), [_VERSIONS, _BUILDS], ids=["versions", "builds"])
def test_a_narrow_table_cuts_no_number(names, rows, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    show_table(names, rows, stretch="query" if "query" in names else "", keep_start=True)
    row = capsys.readouterr().out.splitlines()[-1]
    for name, cell in zip(names, rows[0], strict=True):
        assert cell in row or name == "query", (cell, row)
    at = -1
    for cell in (cell for name, cell in zip(names, rows[0], strict=True) if cell and name != "query"):
        at = row.index(cell, at + 1)  # in their order


def test_the_versions_of_a_knowledge_base_fit_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    show_table(*_VERSIONS)
    head, _, row = capsys.readouterr().out.splitlines()
    assert max(map(len, (head, row))) <= 80
    assert head.split() == [name.removeprefix(">") for name in _VERSIONS[0] if name]


def test_an_empty_column_gives_its_room_to_the_question(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "84")
    show_table(*_BUILDS, stretch="query", keep_start=True)
    head, _, row = capsys.readouterr().out.splitlines()
    assert "session" not in head
    assert width(row) <= 84
    assert "保修多久？…" in row


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_what_powershell_writes_can_be_read(encoding, tmp_path):
    """Its ``>`` writes UTF-16 with a mark, and Windows' line ends."""
    text = "\ufeff" * (encoding == "utf-16-be") + '{"role": "user", "content": "你好"}\r\nsecond\r\n'
    (tmp_path / "said.jsonl").write_bytes(text.encode(encoding))
    assert read_text(str(tmp_path / "said.jsonl"), "--history") == '{"role": "user", "content": "你好"}\nsecond\n'


@pytest.mark.parametrize("data", ["中文".encode("gbk"), b"\xff\xfea"], ids=["gbk", "half"])
def test_what_is_neither_is_told(data, tmp_path):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(InputError, match=r"--history: .* is not UTF-8 text"):
        read_text(str(tmp_path / "x"), "--history")
