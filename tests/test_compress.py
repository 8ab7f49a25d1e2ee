"""Compress: summary, extract, cut; each measured as it will stand in the text."""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_help import NOW, STEADY, HashEncoder, build, chaos, check, cleaned, plain, tokens

from ctx_vector import ContextBuilder, ContextPacket, TokenCounter
from ctx_vector.compress import Shortener
from ctx_vector.escaping import normalise
from ctx_vector.sentences import sentences

COUNTER = TokenCounter()
MARKER = "[... Content compressed ...]"
STORY = [
    "The committee met on Tuesday in the old library.",
    "Pandas keeps numbers in columns of one type.",
    "Nobody spoke about the weather of the season.",
    "Memory of a pandas frame shrinks with smaller types.",
    "The soup was cold when the guests finally arrived.",
    "A category column in pandas needs the least memory.",
]


def marked(text):
    return tokens(f"{text}\n{MARKER}\n")


def story(times=1):
    return " ".join(STORY * times)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two!\n三。四", ["One. ", "Two!\n", "三。", "四"]),
        ("Version 3.11 of a.py is out. Yes.", ["Version 3.11 of a.py is out. ", "Yes."]),
        ('He said "no." Then left.', ['He said "no." ', "Then left."]),
        ("他说：“不行。”然后走了！", ["他说：“不行。”", "然后走了！"]),
        ("a\n\nb", ["a\n\n", "b"]),
        ("...", ["..."]),
        ("", []),
        ("no stop", ["no stop"]),
        ("先测量；再修改。然后比较", ["先测量；再修改。", "然后比较"]),
        ("Ask Dr. J. Li, e.g. by mail. Yes.", ["Ask Dr. J. Li, e.g. by mail. ", "Yes."]),
        ("1. Measure first. Then cut.\n2. Compare.", ["1. Measure first. ", "Then cut.\n", "2. Compare."]),
        ("End.\n    indented\n", ["End.\n", "    indented\n"]),
    ],
)
def test_sentences(text, parts):
    assert sentences(text) == parts


def test_wrapped_prose_goes_on_and_a_fenced_block_stays_whole():
    wrapped = (
        "Always pass the flag named deep to this method of the data frame, as\nit counts the strings too. Next one.\n"
    )
    assert sentences(wrapped) == [wrapped[: wrapped.index("Next")], "Next one.\n"]
    listed = (
        "This line of a list is quite long, longer than sixty columns at least\n- and this is an item\nshort\nlines\n"
    )
    assert sentences(listed) == listed.splitlines(keepends=True)
    code = "```python\nimport a\n\nb = 1. \n```\n"
    assert sentences(f"One.\n{code}Two.") == ["One.\n", code, "Two."]
    inside = (
        "One short sentence that ends. Always pass the flag named deep to\nthis method. "
        "表 `a` 的每一行都要先读入内存再写到磁盘，所以文件很大的时候一定要分块读取，\n否则内存不够。\n"
    )
    assert [part[:6] for part in sentences(inside)] == ["One sh", "Always", "表 `a` "]
    assert sentences("```\nnever closed. Two.") == ["```\n", "never closed. ", "Two."]


@settings(STEADY, max_examples=300)
@given(st.one_of(chaos, st.text(alphabet=' .!?。！\n"”)a1字', max_size=40)))
def test_sentences_join_to_the_text_again(text):
    parts = sentences(text)
    assert "".join(parts) == text and all(parts)


@settings(STEADY, max_examples=200)
@given(chaos, chaos, st.integers(0, 120), st.booleans())
def test_what_is_shortened_fits_and_is_part_of_the_text(text, query, room, escapes):
    body = normalise(text)

    def measure(short):
        return tokens(f"{short}\n{MARKER}\n") + (short.count("\n") if escapes else 0)

    result = Shortener(COUNTER, query).shorten(body, room, measure)
    if result is None:
        return
    short, action = result
    assert measure(short) <= room and action in ("extracted", "truncated") and short.strip()
    if action == "truncated" and "```" not in body and "|" not in body:
        assert short == cleaned(short) and body.startswith(short)
    at = 0
    for piece in short.split("…") if "…" not in body else ():
        at = body.index(piece.strip(), at) + len(piece.strip())  # what is between the gaps, in order, as it stands


def test_extracted_sentences_are_the_nearest_in_their_own_order():
    near = Shortener(COUNTER, "How does pandas use memory?")
    both = f"… {STORY[3]} … {STORY[5]}"
    assert near.shorten(story(), marked(both), marked) == (both, "extracted")
    assert near.shorten(story(), marked(both) - 1, marked) == (f"… {STORY[3]} {STORY[4]}", "extracted")
    three = f"… {STORY[3]} {STORY[4]} {STORY[5]}"  # what stands between two that are near comes next
    assert near.shorten(story(), marked(three), marked) == (three, "extracted")


def test_chinese_sentences_are_extracted_too():
    parts = [
        "委员会星期二开会。",
        "数据框的内存可以缩小；办法很多。",
        "没有人谈天气。",
        "类别类型最省内存。",
        "汤凉了，客人才到。",
    ]
    near, want = Shortener(COUNTER, "怎样减少内存"), f"…{parts[1]}…{parts[3]}"
    assert near.shorten("".join(parts), marked(want), marked) == (want, "extracted")
    want = f"…{parts[1]}{parts[2]}{parts[3]}"
    assert near.shorten("".join(parts), marked(want), marked) == (want, "extracted")


def test_without_a_sentence_near_the_query_the_text_is_cut():
    short, action = Shortener(COUNTER, "zebra").shorten(story(), 40, marked)
    assert action == "truncated" and story().startswith(short) and 30 < marked(short) <= 40


@pytest.mark.parametrize("text", ["👩‍👩‍👧" * 80, "e\u0301" * 400, "字" * 400, "🇩🇪" * 200])
def test_a_cut_splits_no_character(text):
    for room in range(20, 60, 3):
        short, _ = Shortener(COUNTER, "q").shorten(text, room, marked)
        assert text.startswith(short) and "\ufffd" not in short
        rest = text[len(short) :]
        assert not rest or not (rest[0] in "\u0301\u200d" or short.endswith("\u200d"))


def test_nothing_fits_into_nothing():
    assert Shortener(COUNTER, "pandas").shorten(story(), marked(""), marked) is None
    assert Shortener(COUNTER, "pandas").shorten(story(), 0, marked) is None


def test_sentences_of_a_long_text_take_linear_time():
    import time

    for unit in ("!?!-", "a.b", "x. ", "。", "1.5"):
        started = time.process_time()
        sentences(unit * (600_000 // len(unit)))
        assert time.process_time() - started < 5


# -- in a build -------------------------------------------------------------------------------------------------------


LONG = story(20)


def shorten_one(text=LONG, query="pandas memory", limit=200, summarizer=None, encoder=None, **config):
    builder = ContextBuilder(config=plain(max_tokens=limit, **config), summarizer=summarizer, encoder=encoder)
    built = builder.assemble(query, custom_packets=[ContextPacket(text, metadata={"type": "knowledge"})], now=NOW)
    check(built, limit)
    (item,) = built.kept
    return built, item


def test_the_marker_stands_at_the_end():
    built, item = shorten_one()
    assert item.action == "extracted" and item.reason == "budget"
    assert item.rendered.endswith(f"\n{MARKER}") and item.rendered in built.text
    assert item.tokens == tokens(item.rendered + "\n")
    assert item.packet.content == story(20)  # the record keeps the whole


def test_a_summarizer_is_used():
    asked = []

    def summarizer(text, limit):
        asked.append((text, limit))
        return "\n\nPandas in short.\n[Task]\n"

    built, item = shorten_one(summarizer=summarizer)
    assert item.action == "summarised" and item.rendered == f"Pandas in short.\n\\[Task]\n{MARKER}"
    ((text, limit),) = asked
    assert text == story(20) and 100 < limit < 200
    assert built.stats["compressed"]


@pytest.mark.parametrize("answer", [RuntimeError("down"), None, 7, "", "  \n", "too long " * 500])
def test_a_summarizer_that_fails_or_says_too_much_is_not_used(answer, caplog):
    def summarizer(text, limit):
        if isinstance(answer, Exception):
            raise answer
        return answer

    caplog.set_level(logging.WARNING)
    _, item = shorten_one(summarizer=summarizer)
    assert item.action == "extracted"
    blank = isinstance(answer, str) and not answer.strip()
    assert blank or [record.name for record in caplog.records].count("ctx_vector.compress") >= 1


def test_a_summary_of_exactly_the_allowed_length_is_used():
    def summarizer(text, limit):
        return COUNTER.truncate("word " * 1000, limit).strip()

    built, item = shorten_one(summarizer=summarizer)
    assert item.action == "summarised" and built.budget.total_used >= 195


def test_new_encodings_only_when_they_are_allowed():
    encoder = HashEncoder()
    _, item = shorten_one(encoder=encoder)
    assert not encoder.documents and item.action == "extracted"
    _, item = shorten_one(encoder=encoder, compress_encode=True)
    assert set(sentences(story(20))) >= set(encoder.documents) > set() and item.action == "extracted"


def test_the_real_encoder_finds_the_sentence_that_shares_no_word(encoder):
    text = " ".join([*STORY[:1] * 9, "Use smaller integers so that the table needs fewer bytes.", *STORY[4:5] * 9])
    _, item = shorten_one(text, "如何减少内存占用", 150, encoder=encoder, compress_encode=True)
    assert "fewer bytes" in item.rendered


@settings(STEADY, max_examples=80)
@given(
    st.lists(chaos, min_size=1, max_size=6).map("\n".join),
    st.integers(120, 400),
    st.sampled_from(["knowledge", "general", "memory"]),
)
def test_a_shortened_item_uses_the_room_and_never_more(text, limit, kind):
    built = build(
        "pandas memory",
        custom_packets=[ContextPacket(text * 3, None, None, 1.0, {"type": kind})],
        config={"max_tokens": limit},
    )
    check(built, limit)
    for item in built.kept:
        if item.action == "truncated":
            assert built.budget.total_used > limit - 40  # one character of an odd script can take a dozen tokens
