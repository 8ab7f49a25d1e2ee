"""The small tokenizer gives the ids of the `tokenizers` library, which maps characters one by one as the file says."""

from __future__ import annotations

import json
import random
import shutil

import pytest
from tokenizers import Tokenizer

from ctx_vector.errors import ModelError
from ctx_vector.model_store import LIGHT, model_dir
from ctx_vector.unigram import UnigramTokenizer

HOSTILE = [
    "",
    " ",
    "\n\n",
    "\t",
    "\0",
    "a\0b",
    "\x01\x02\x7f",
    "<s>",
    "</s></s>x",
    "a<mask> b",
    "a <mask>",
    "<unk>",
    "<<s>",
    "<s<s>",
    "<pad",
    "＜s＞ ＜unk＞x",
    "▁",
    "▁▁a ▁",
    "\r\n\r\n",
    " lead",
    "trail ",
    "two  spaces   three",
    "ﷺ" * 40,  # one character that becomes eighteen
    "ª\u0301 ﬁ\u0301 ²\u200d3",  # a mapped character inside a grapheme
    "①ำ",
    "ｶﾞｷﾞ",
    "a\u200b\u200bb",
    "e\u0301 é",
    "👨‍👩‍👧‍👦🏽 🇨🇳",
    "𠮷野家",
    "x" * 5000,
    "字" * 3000,
    "word " * 3000,
    "".join(map(chr, range(1, 0x600))),
]


@pytest.fixture(scope="module")
def folder(encoder):
    return model_dir(encoder.name)


@pytest.fixture(scope="module")
def small(folder):
    return UnigramTokenizer(folder / LIGHT)


@pytest.fixture(scope="module")
def library(folder):
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def assert_equal_ids(small, library, texts):
    encodings = library.encode_batch(texts)
    for text, encoding in zip(texts, encodings, strict=True):
        assert small.encode(text) == encoding.ids, repr(text[:80])


def test_hostile_texts(small, library):
    assert_equal_ids(small, library, HOSTILE)
    assert_equal_ids(small, library, ["query: " + text for text in HOSTILE])


def test_random_unicode(small, library):
    rng = random.Random(5)
    texts = []
    for _ in range(3000):
        codes = (rng.randrange(1, 0x110000) for _ in range(rng.randint(1, 40)))
        texts.append("".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000))
    parts = ["a", "b", " ", "\n", "<s>", "</s>", "<unk>", "字", "é", "\u0301", "ﬁ", "▁", "<mask>", "the", "你好", "\0"]
    texts += ["".join(rng.choices(parts, k=rng.randint(1, 12))) for _ in range(2000)]
    assert_equal_ids(small, library, texts)


def test_mapped_characters_and_marks_that_join_them(small, library):
    charmap = small._charmap
    marks = [0x301, 0x302, 0x200D, 0x200C, 0xE33, 0xFF9E, 0x3099, 0x5B0, 0x64B, 0x1F3FB, 0x20E3, 0xFE0F, 0x93E, 0x903]
    pool = [*charmap, *marks * 300]
    rng = random.Random(6)
    for _ in range(5000):
        text = "".join(map(chr, rng.choices(pool, k=rng.randint(1, 4))))
        mapped = text.translate(charmap)
        while "  " in mapped:
            mapped = mapped.replace("  ", " ")
        assert library.normalizer.normalize_str(text) == mapped, text.encode("unicode_escape")


def test_every_character_alone(small, library):
    normalise = library.normalizer.normalize_str
    for code in range(1, 0x30000):
        if not 0xD800 <= code < 0xE000:
            assert normalise(chr(code)) == small._charmap.get(code, chr(code)), hex(code)


def test_data_sets(small, library, shared):
    texts = []
    for path in sorted(shared.glob("datasets/*/*.jsonl")):
        lines = path.read_text(encoding="utf-8").splitlines()
        texts += [json.loads(line)["text"] for line in lines[::20]]
    for path in sorted(shared.glob("corpora/fastapi-docs/*/*.md"))[::4]:
        texts.append(path.read_text(encoding="utf-8"))
    assert_equal_ids(small, library, texts)


@pytest.mark.slow
def test_whole_data_sets(small, library, shared):
    texts = []
    for path in sorted(shared.glob("datasets/*/*.jsonl")):
        texts += [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]
    for path in sorted(shared.glob("corpora/**/*.md")):
        texts.append(path.read_text(encoding="utf-8"))
    assert_equal_ids(small, library, texts)


def test_damaged_piece_list(folder, tmp_path):
    light = shutil.copytree(folder / LIGHT, tmp_path / "light", ignore=shutil.ignore_patterns("*.onnx", "words.npy"))
    (light / "pieces.npy").unlink()
    with pytest.raises(ModelError, match="missing or damaged"):
        UnigramTokenizer(light)
