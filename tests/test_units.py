"""What stays whole when a text is shortened, what is chosen, and how much of the room that uses."""

import re
import statistics
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_help import STEADY, chaos, tokens

from ctx_vector import TokenCounter
from ctx_vector.compress import Shortener
from ctx_vector.escaping import normalise
from ctx_vector.scoring import bm25
from ctx_vector.text_cut import whole_words
from ctx_vector.units import Unit, joined, units

KNOWLEDGE = Path(__file__).parent.parent / "data" / "knowledge"
COUNTER = TokenCounter()
MARKER = "[... Content compressed ...]"
QUERIES = {
    "en": ("How do I reduce the memory usage of Pandas?", "Which chunk size is best?", "What does a left join keep?"),
    "zh": ("怎样减少 Pandas 的内存占用？", "分块应该多大？", "墨水可以退货吗？"),
}


def marked(text):
    return tokens(f"{text}\n{MARKER}\n")


def shorten(body, query, room):
    return Shortener(COUNTER, query).shorten(body, room, marked)


def texts(body, room=10_000):
    return [unit.text for unit in units(body, room, tokens)]


def documents(language):
    return [normalise(path.read_text(encoding="utf-8")) for path in sorted((KNOWLEDGE / language).iterdir())]


# -- units ------------------------------------------------------------------------------------------------------------


@settings(STEADY, max_examples=200)
@given(
    st.lists(
        st.one_of(chaos, st.sampled_from(["```\n", "| a | b |\n", "|---|:-:|\n", "- x\n", "# h\n", "  1. y; z\n"]))
    ),
    st.integers(1, 60),
    st.booleans(),
)
def test_units_join_to_the_text_and_their_needs_are_there(parts, room, blocks):
    text = "".join(parts)
    found = units(text, room, tokens, blocks=blocks)
    assert "".join(unit.text for unit in found) == text and all(unit.text for unit in found)
    assert all(not found[one].free for unit in found for one in unit.needs)
    assert joined(found, range(len(found))) == normalise(text).rstrip()


def test_units_of_each_kind():
    head, *rows = "| Type | Bytes |\n|------|------:|\n", "| `int8` | 1 |\n", "| a. b | 2 |\n\n"
    code = '```python\nx = 1. \n\nprint("a. b")\n```\n\n'
    items = ["- one. two\n  more; still\n", "- three\n", "1. four. five\n\n"]
    parts = ["# Sizes\n\n", head, *rows, *items, "一、甲；乙。丙\n\n", "Title\n=====\n", code, "Last."]
    found = units("".join(parts), 100, tokens)
    assert [unit.text for unit in found] == parts
    assert [unit.needs for unit in found[1:4]] == [(), (1,), (1,)]
    assert [unit.text for unit in found if not unit.free] == [parts[0], head, "Title\n=====\n"]
    lines = units(code, 100, tokens, blocks=False)
    assert lines == units(code, 12, tokens)  # as a block it takes more
    assert lines == [
        Unit("```python\n", free=False), Unit("x = 1. \n\n", (0, 3)), Unit('print("a. b")\n', (0, 3)),
        Unit("```\n\n", free=False),
    ]  # fmt: skip


def test_only_what_does_not_fit_is_divided_and_first_at_semicolons():
    clauses = ["先量内存，再改类型；", "按块读取，每块求和；", "最后存成 Parquet。"]
    sentence = "".join(clauses)
    assert texts(sentence, tokens(sentence)) == [sentence]
    assert texts(sentence, max(map(tokens, clauses))) == clauses
    assert texts(sentence, tokens(clauses[0]) - 1)[:2] == ["先量内存，", "再改类型；"]
    english = "Measure it first, then change; read it in parts, a:b;c stays, and sum up; save it."
    assert texts(english, tokens(english) - 1) == [
        "Measure it first, then change; ", "read it in parts, a:b;c stays, and sum up; ", "save it."
    ]  # fmt: skip
    item = "- Short here. Long there, but whole.\n"
    assert texts(item) == [item] and texts(item, tokens(item) - 2) == ["- Short here. ", "Long there, but whole.\n"]
    row = "| " + "very long " * 40 + "|\n"
    assert texts(f"| a |\n|---|\n{row}", 20)[1:] == [row]


def test_units_of_a_long_text_take_linear_time():
    for unit in (
        "a; ",
        "a，",
        "|\n|-|\n",
        "```\n",
        "~~~a\n",
        "- \n",
        "# \n",
        "\n \n",
        " ",
        "    x\n",
        "a\n===\n",
        "1. ",
    ):
        started = time.process_time()
        units(unit * (200_000 // len(unit)), 50, len)
        assert time.process_time() - started < 5, unit


@pytest.mark.parametrize(
    ("text", "at", "end"),
    [
        ("see https://example.org/a?b=1,2 now", 25, 4),
        ("costs 1,234.56 euro", 10, 6),
        ("共有12345678行数据", 5, 2),
        ("共有12345678行数据", 11, 11),
        ("一行数据", 2, 2),
        ("word", 2, 0),
        ("two words", 3, 3),
        ("字e\u0301a\u0301b", 4, 1),
        ("字\u0301ab", 3, 0),
    ],
)
def test_no_word_number_or_address_is_cut(text, at, end):
    assert whole_words(text, 0, at) == end


@pytest.mark.parametrize(
    "body",
    [
        "地址是 https://例子.example.org/a/b?c=1 共有1234567行，占用89.5GB内存" * 9,
        "Pay 1,234.56 by https://a.io/x-y. " * 30,
    ],
)
def test_a_cut_ends_between_words(body):
    for room in range(20, 90):
        short, action = shorten(body, "zebra", room)
        rest = body[len(short) :]
        assert action == "truncated" and body.startswith(short)
        assert not (re.match(r"[!-~]", rest) and re.search(r"[!-~]\Z", short))


PARTS = st.sampled_from(
    [
        "内存。",
        "两个 index，",
        "Soup is 1,234.5 hot; ",
        "**bold** text. ",
        "\n\n",
        "- item\n",
        "\n# Head\n",
        "b\n===\n",
        "x" * 60,
    ]
)


@settings(STEADY, max_examples=300)
@given(st.lists(PARTS, min_size=3, max_size=60), st.integers(12, 120))
def test_without_a_word_of_the_query_the_longest_beginning_in_whole_words_is_taken(parts, room):
    body = normalise("".join(parts)).strip()
    if not body or marked(body) <= room:
        return
    short, action = shorten(body, "zebra", room) or ("", "truncated")
    assert action == "truncated" and body.startswith(short) and marked(short) <= room
    ends = {whole_words(body, 0, end) for end in range(len(body))}
    best = max(marked(body[:end].rstrip()) for end in ends if marked(body[:end].rstrip()) <= room)
    found = units(body, room - marked("a") + 1, tokens)
    heading = max((len(unit.text) for unit in found if not unit.free), default=0)  # which is not left at the end
    assert marked(short) >= best - 3 - heading


# -- what is chosen ---------------------------------------------------------------------------------------------------


def rendered(atoms, chosen):
    """Return the text of the chosen atoms: "…" for what is left out, in the line or on one of its own."""
    text, after = "", 0
    for place in sorted(chosen):
        if place > after:
            left, gone = text[len(text.rstrip()) :], "".join(atoms[after:place])
            right = gone[len(gone.rstrip()) :]
            text = text.rstrip() + ("\n" if "\n" in left else left[:1]) + "…" + ("\n" if "\n" in right else right[:1])
        text, after = text + atoms[place], place + 1
    return text.rstrip()


block = st.sampled_from(["en", "zh", "items", "table", "code", "heading"])


@settings(STEADY, max_examples=250)
@given(st.lists(st.tuples(block, st.integers(1, 5)), min_size=1, max_size=8), st.integers(60, 300), st.data())
def test_atoms_stay_whole_with_what_they_need(blocks, room, data):
    word = st.sampled_from("memory table 内存 类型 index chunk soup".split())
    atoms, needs = [], {}

    def add(form, *needed):
        filler = " ".join(data.draw(st.lists(word, min_size=1, max_size=12)))
        atoms.append(form.format(1000 + len(atoms), filler))
        needs[len(atoms) - 1] = needed

    for kind, size in blocks:
        first = len(atoms)
        if kind == "heading":
            add("## Part {} {}\n\n")
        elif kind == "code":
            add("```lang{} {}\n")
            for _ in range(size):
                add("    x = {}; y. z  # {}\n", first, first + size + 1)
            add("```\n\n")
            atoms[-1] = "```\n\n"
        elif kind == "table":
            add("| Head {} | {} |\n|---|---|\n")
            for _ in range(size):
                add("| Row. {} | {}; more |\n", first)
            atoms[-1] += "\n"
        else:
            form = {"en": "Some {} of {}; and so on. ", "zh": "第{}句说{}；还有别的。", "items": "- Item {}. And {}\n"}[
                kind
            ]
            for _ in range(size):
                add(form)
            atoms[-1] = atoms[-1].rstrip() + "\n\n"
    body = normalise("".join(atoms)).rstrip()
    atoms[-1] = atoms[-1].rstrip()
    result = shorten(body, "memory 内存 chunk", room)
    if result is None:
        return
    short, action = result
    assert marked(short) <= room
    if action == "truncated":
        assert short.count("```") % 2 == 0
        return
    numbers = [re.search(r"\d{4}", atom) for atom in atoms]  # a closing fence has none
    chosen = {place for place, number in enumerate(numbers) if number and number[0] in short}
    chosen |= {one for place in chosen for one in needs[place]}
    assert short == rendered(atoms, chosen)


def greedy(body, query, room):
    """Return the texts that it may stop at, full or at the end, and whether each rank is chosen; each step measured."""
    found = units(body, room - marked("a") + 1, tokens)
    scores = [
        score if unit.free else 0 for unit, score in zip(found, bm25(query, [u.text for u in found]), strict=True)
    ]
    near = [sum(other * 0.25 ** abs(at - place) for place, other in enumerate(scores)) for at in range(len(found))]
    best, chosen, full = max(near), set(), marked("a") - 1
    needed = {one for unit in found for one in unit.needs}
    section, heading = {}, None
    for place, unit in enumerate(found):
        if not unit.free and place not in needed:
            heading, near[place] = place, best * 0.15
        section[place] = heading
    ranks, ends = [], []
    for place in sorted(range(len(found)), key=lambda place: (-near[place], place)):
        says = found[place].free or (place in section.values() and any(section[one] == place for one in chosen))
        if not re.search(r"\w", found[place].text):
            says = says and not chosen.isdisjoint({place - 1, place + 1})
        wider = chosen | {place, *found[place].needs}
        ranks.append(says and marked(joined(found, wider)) <= room)
        if ranks[-1]:
            chosen, full = wider, marked(joined(found, wider))
        bare = set(chosen)
        while max(bare, default=-1) in section.values():
            bare.remove(max(bare))
        ends += [joined(found, bare)] if full > room * 0.93 or len(ranks) == len(found) else []
    return ends, ranks


@pytest.mark.parametrize("language", ["en", "zh"])
def test_sums_choose_what_measuring_each_step_chooses_and_more_room_loses_nothing_nearer(language):
    for number, body in enumerate(documents(language)):
        for query in QUERIES[language]:
            before, divided = [], []
            for room in range(60 + number, 400, 37):
                short, action = shorten(body, query, room)
                if action == "extracted":
                    ends, ranks = greedy(body, query, room)
                    assert short in ends
                    same = divided == (divided := texts(body, room - marked("a") + 1))
                    assert not same or ranks >= before
                    before = ranks


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_room_is_used(language):
    shares = []
    for body in documents(language):
        for query in QUERIES[language]:
            for room in range(40, 401, 8):
                short, _ = shorten(body, query, room)
                shares.append(marked(short) / room)
                assert shares[-1] <= 1 and short.count("```") % 2 == 0
    assert statistics.median(shares) > 0.95 and statistics.quantiles(shares, n=10)[0] > 0.85
