"""The two texts that are encoded for a turn of a conversation."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from ctx_vector.dialogue import alone_text, around_text, spoken


@dataclass
class Turn:
    content: str
    speaker: str | None = None
    session: str | None = "s"
    timestamp: datetime | None = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)


def test_the_speaker_stands_before_the_text_once():
    assert spoken(Turn("Sure!", "Melanie")) == "Melanie: Sure!"
    assert spoken(Turn("Melanie: Sure!", "Melanie")) == "Melanie: Sure!"
    assert spoken(Turn("小红：好的", "小红")) == "小红：好的"
    assert spoken(Turn("Melanie left", "Melanie")) == "Melanie: Melanie left"
    assert spoken(Turn("Sure!")) == "Sure!"


def test_the_date_is_said_within_a_session_in_the_language_of_the_turn():
    assert alone_text(Turn("Sure, next Friday!", "Melanie")) == "8 May 2023. Melanie: Sure, next Friday!"
    assert alone_text(Turn("好的，下周五！", "小红")) == "2023年5月8日。小红: 好的，下周五！"
    assert alone_text(Turn("Sure!", timestamp=None)) == "Sure!"
    assert alone_text(Turn("A fact", session=None)) == "A fact"


def test_two_neighbours_on_each_side():
    session = [Turn(f"t{n}", "A" if n % 2 else "B") for n in range(7)]
    assert around_text(session, 3) == "A: t1\nB: t2\nA: t3\nB: t4\nA: t5"
    assert around_text(session, 0) == "B: t0\nA: t1\nB: t2"
    assert around_text(session, 6) == "B: t4\nA: t5\nB: t6"
    assert around_text(session[:2], 1) == "B: t0\nA: t1"


def test_who_has_no_neighbours_or_is_long_stands_for_itself():
    assert around_text([Turn("alone")], 0) is None
    assert around_text([Turn("a", session=None), Turn("b", session=None)], 0) is None
    assert around_text([Turn("x" * 1001), Turn("b")], 0) is None
    assert around_text([Turn("x" * 1000), Turn("b")], 0) is not None
    assert around_text([Turn("好" * 334), Turn("b")], 0) is None


@pytest.mark.parametrize(
    ("text", "length"), [("x" * 5_000, 300), ("好" * 5_000, 100), ("好x" * 5_000, 150), ("é" * 400, 300)]
)
def test_neighbours_are_cut_so_that_the_turn_itself_is_seen(text, length):
    assert around_text([Turn(text), Turn("b")], 1) == f"{text[:length]}\nb"
    assert around_text([Turn(text[:length]), Turn("b")], 1) == f"{text[:length]}\nb"


def test_the_longest_texts_fit_the_model(encoder):
    """Whatever the neighbours are, the turn itself lies within what the model looks at."""
    for letter in ("word ", "好", "天気"):
        long = letter * 1_000
        most = letter * (330 // len(letter) if letter != "word " else 200)
        session = [Turn(long), Turn(long), Turn(most), Turn(long), Turn(long)]
        text = around_text(session, 2)
        before = text[: text.index(most) + len(most)]
        assert encoder.count_tokens([before])[0] <= encoder.max_tokens
