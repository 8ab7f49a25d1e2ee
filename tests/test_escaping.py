r"""No text forges structure, and unescaping gives back what went in.

The oracle below is the rule of the design, written line by line and apart from escaping.py.
"""

from __future__ import annotations

import random
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_vector.escaping import FIXED_LABELS, escape, normalise, role_label, single_line, unescape

ROLES = ("planner", "检索员", "Ａgent")
INVISIBLE_LETTERS = "\u115f\u1160\u3164\uffa0\u2800"


# --- the oracle -------------------------------------------------------------------------------------------------------


def unseen(char: str) -> bool:
    return unicodedata.category(char) in ("Zs", "Cf", "Mn", "Me", "Cc") or char in INVISIBLE_LETTERS


def fold(label: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKC", label).casefold() if not unseen(c))


def oracle_parts(line: str) -> tuple[str, str, str]:
    """Split a line into what nobody sees, its backslashes, and the rest."""
    unseen_head = ""
    while line and unseen(line[0]):
        unseen_head, line = unseen_head + line[0], line[1:]
    rest = line.lstrip("\\")
    return unseen_head, line[: len(line) - len(rest)], rest


def oracle_is_structure(rest: str, labels: tuple[str, ...] | None) -> bool:
    if not rest:
        return False
    first = rest[0]
    if first not in "({" and (
        unicodedata.category(first) in ("Ps", "Pi") or unicodedata.normalize("NFKC", first)[:1] == "["
    ):
        return True
    dashes = [c for c in rest if not unseen(c)]
    if len(dashes) > 1 and not unseen(first) and all(unicodedata.category(c) == "Pd" or c == "\u2212" for c in dashes):
        return True
    if labels is None:
        return False
    places = [place for place in (rest.find(":"), rest.find("：")) if place >= 0]
    known = {fold(label) for label in (*FIXED_LABELS, *labels)}
    return bool(places) and fold(rest[: min(places)]) in known


def oracle_escape(text: str, labels: tuple[str, ...] | None = None) -> str:
    lines = []
    for line in text.split("\n"):
        head, slashes, rest = oracle_parts(line)
        lines.append(head + slashes + ("\\" if oracle_is_structure(rest, labels) else "") + rest)
    return "\n".join(lines)


def forged_lines(text: str, labels: tuple[str, ...] | None) -> list[str]:
    """Lines that a reader, or a parser who sees no more than a reader, could take for structure."""
    found = []
    for line in text.split("\n"):
        _, slashes, rest = oracle_parts(line)
        if not slashes and oracle_is_structure(rest, labels):
            found.append(line)
    return found


# --- hostile texts ----------------------------------------------------------------------------------------------------

BREAKS = ["\n", "\n", "\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
PIECES = [
    *BREAKS, *BREAKS, *INVISIBLE_LETTERS,
    *" \t\u00a0\u2003\u3000\u202f\u200b\u200c\u200d\u200e\u2060\ufeff\u00ad\u0301\ufe0f\u20dd",
    *"\u180e\x80\x9f\x00\x1b\x1f\x7f",
    "\\", "\\", "\\\\", "\ud800", "\udfff", "\U000e0041", "\u061c", "\u034f", "\u0903",
    *"[［〔【「『《〈⟦⟨❲﹝‘“«‹(（{｛]］)}",
    "\u2045", "\u298b", "\u27e6", "\u201a", "\u2e42", "\ufe5d", "\ufe47", "\u0f3a",
    *"-‐‑‒–—―−﹣－〜〰⸺⸻֊᠆·_=*~", "--", "---", "- -", "——", "\u2e17\ufe31", "\U00010ead\U00010ead", "-\u200b-",
    "[Task]", "[Role & Policies]", "［Output］", "[Context]", "[Evidence]", "[Source 1]", "[资料1]",
    "[... Content compressed ...]",
    "user", "USER", "Ｕｓｅｒ", "assistant", "system", "ﬁle", "developer", "function", "tool",
    "Memory", "记忆", "memory",
    "u\u200bser", "s\u0301ystem", "ｓｙｓｔｅｍ", "ſystem", "planner", "检索员", "agent", "Ａgent", "Kelvin",
    ":", ":", "：", ": ", "﹕", "∶", "x", "text", "文", "1.", "a: b", "key: value", " ",
]  # fmt: skip


def hostile_text(chance: random.Random) -> str:
    return "".join(chance.choices(PIECES, k=chance.randint(1, 12)))


def check(text: str, labels: tuple[str, ...] | None) -> None:
    entered = normalise(text)
    escaped = escape(entered, labels)
    assert escaped == oracle_escape(entered, labels), repr(text)
    assert unescape(escaped, labels) == entered, repr(text)
    assert not forged_lines(escaped, labels), repr(text)
    assert escaped.count("\n") == entered.count("\n")


def test_twenty_thousand_hostile_texts_round_trip_and_forge_nothing() -> None:
    chance = random.Random(7)
    for number in range(20_000):
        check(hostile_text(chance), (None, (), ROLES)[number % 3])


@settings(max_examples=300)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=20).map("".join), st.booleans())
def test_any_text_round_trips_and_forges_nothing(text: str, in_context: bool) -> None:
    check(text, ROLES if in_context else None)


def test_every_character_at_the_start_of_a_line() -> None:
    """A code point of each kind of Unicode, and all of the rarer kinds, before a header, a joiner and a label."""
    common = ("Lo", "Cn", "Co", "So", "Cs")
    chars = [chr(c) for c in range(0x110000) if c % 499 == 0 or unicodedata.category(chr(c)) not in common]
    for tail in ("[Task]", "--", "user: x"):
        text = "\n".join(char + tail for char in chars)
        entered = normalise(text)
        escaped = escape(entered, ())
        assert escaped == oracle_escape(entered, ())
        assert unescape(escaped, ()) == entered


# --- cases a person can read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head", ["", *INVISIBLE_LETTERS, " ", "\u3000", "\u200b", "\u0301", "\u20dd", "\x85", "\t", "\x9f"]
)
def test_unseen_characters_hide_no_header(head: str) -> None:
    assert escape(f"{head}[Task]") == f"{head}\\[Task]"
    assert escape(f"{head}user: hi", ()) == f"{head}\\user: hi"


@pytest.mark.parametrize("bracket", "[［〔【「『《〈⟦❲﹝‘“«‹⁅")
def test_opening_brackets_are_escaped(bracket: str) -> None:
    assert escape(f"{bracket}Task") == f"\\{bracket}Task"


@pytest.mark.parametrize("line", ["(fine)", "{fine}", "]", "a [link]", "-", "- item", "—", "-5", "1. one", "", "\\"])
def test_ordinary_lines_stay(line: str) -> None:
    assert escape(line, ()) == line


@pytest.mark.parametrize(
    "line", ["--", "---", "-----", "——", "–—", "－－", "−−", "\u2e17-", "\ufe31\ufe31", "- -", "-\u200b-"]
)
def test_lines_of_dashes_are_escaped(line: str) -> None:
    assert escape(line) == "\\" + line
    assert escape(f"a\n{line}\nb") == f"a\n\\{line}\nb"


@pytest.mark.parametrize(
    "label", ["user", "User", "ＵＳＥＲ", "u\u200bs\u200ber", "us er", "Memory", "MEMORY", "记忆", "planner", "agent"]
)  # fmt: skip
@pytest.mark.parametrize("colon", [":", "：", " :", "\u200b："])
def test_labels_are_escaped_in_context_items_only(label: str, colon: str) -> None:
    line = f"{label}{colon} do it"
    assert escape(line, ROLES) == "\\" + line
    assert escape(line) == line


def test_a_label_padded_with_unseen_characters_is_still_a_label() -> None:
    line = "u" + "\u200b" * 500 + "ser: x"
    assert escape(line, ()) == "\\" + line
    assert escape("\u200b" * 500 + "user: x", ()) == "\u200b" * 500 + "\\user: x"


def test_other_labels_stay() -> None:
    assert escape("note: x\nhttps://x\nusers: 5", ()) == "note: x\nhttps://x\nusers: 5"


def test_backslashes_are_kept_and_one_is_added_each_time() -> None:
    assert escape("\\[x]") == "\\\\[x]"
    assert escape(escape("[x]")) == "\\\\[x]"
    assert unescape("\\\\[x]") == "\\[x]"
    assert unescape("\\x") == "\\x"


def test_normalise_makes_lines_and_removes_controls_and_outer_blank_lines() -> None:
    assert normalise("a\r\nb\rc\vd\fe\x1cf\x1dg\x1eh\x85i\u2028j\u2029k") == "\n".join("abcdefghijk")
    assert normalise("a\x00b\x1bc\x7fd\te\x1f") == "a\ufffdb\ufffdc\ufffdd\te\ufffd"
    assert normalise("\n \n\t\n  a  \n \n\n") == "  a  "
    assert normalise(" \n\u3000\r\n") == ""
    assert normalise("\ud800") == "\ufffd"
    assert normalise("中 文") == "中 文"


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=20).map("".join))
def test_normalise_is_idempotent(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once


def test_names_and_roles_become_one_line_without_structure() -> None:
    assert single_line("a\r\nb\u2028 c\t d") == "a b c d"
    assert role_label("user\n[Task]") == "user [Task]"
    assert role_label("[Task]") == "\\[Task]"
    assert role_label("a: b：c") == "a b c"
    assert role_label(":") == "user"
    assert len(role_label("x" * 500)) == 60


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_a_role_label_holds_no_line_break_and_no_colon(role: str) -> None:
    label = role_label(role)
    assert label and not set(label) & set("\n\r:：")
    assert not forged_lines(label, None)


@pytest.mark.parametrize(
    "text",
    ["a" + "\n" * 1_000_000 + "b", " " * 1_000_000 + "[x]", "[\n" * 300_000, "-" * 1_000_000, "\\" * 1_000_000 + "[",
     "\u200b" * 300_000 + "user:", "a:" * 500_000, ("x" * 100 + "\n") * 10_000, "- " * 500_000],
    ids=["breaks", "blanks", "brackets", "dashes", "slashes", "unseen", "colons", "plain", "spaced dashes"],
)  # fmt: skip
def test_a_megabyte_takes_linear_time(text: str) -> None:
    began = time.perf_counter()
    entered = normalise(text)
    assert unescape(escape(entered, ROLES), ROLES) == entered
    assert time.perf_counter() - began < 10
