"""Texts in no language, and texts in two: a question must not find them because they resemble every question."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from ctx_vector import ContextBuilder, ContextConfig, KnowledgeBase
from ctx_vector.calibration import load_calibration

QUESTIONS = {
    "zh": [
        "保修期是多久？", "年假有几天？", "运输时的倾斜角度", "谁来浇花？", "附近有什么好吃的餐馆？",
        "他为什么辞职了？", "上周的会议决定了什么？", "如何清洗咖啡机", "冰川是怎样形成的？", "图书馆在哪里",
        "孩子发烧怎么办？", "合同由谁签字？",
    ],
    "en": [
        "How many days of leave do I get?", "Who waters the plants?", "Why did he resign?", "How do glaciers form?",
        "What did we decide last week?", "Where is the library?", "What helps against fever?",
        "Who signs the contract?", "At what angle may it be tilted?", "How do I clean the coffee machine?",
    ],
}  # fmt: skip


def rows_of(rng: random.Random, count: int, kind: str) -> str:
    """Some rows of a kind of text that has no words to speak of (a table of dates is about days, for this model)."""
    number = rng.randint

    def hexes(count: int) -> str:
        return f"{rng.getrandbits(4 * count):0{count}x}"

    def time() -> str:
        return f"2024-05-0{number(1, 9)} 1{number(0, 9)}:{number(10, 59)}:{number(10, 59)}"

    row = {
        "csv": lambda: f"{rng.choice('ABCKR')}-{number(1, 99)},{number(1, 400)},{number(100, 99999) / 100:.2f}",
        "prices": lambda: f"{number(1, 60)}\t{number(10, 99)}.{number(10, 99)}\t{number(1000, 99999)}",
        "log": lambda: f"{time()} INFO job={hexes(8)} ms={number(1, 999)}",
        "requests": lambda: f'10.0.0.{number(1, 254)} - - "GET /v1/{hexes(4)}" {number(200, 504)} {number(100, 9999)}',
        "json": lambda: f'{{"id": {number(1, 999)}, "x": {number(0, 99) / 10}, "ok": null}}',
        "hashes": lambda: hexes(40),
        "versions": lambda: f"v{number(0, 9)}.{number(0, 20)}.{number(0, 9)}",
        "signs": lambda: "".join(rng.choice("=-*#|<>/_+~") for _ in range(number(3, 30))),
    }[kind]
    return "\n".join(row() for _ in range(count))


KINDS = ("csv", "prices", "log", "requests", "json", "hashes", "versions", "signs")


@pytest.mark.parametrize("language", QUESTIONS)
def test_numbers_and_signs_are_relevant_to_no_question(encoder, language: str) -> None:
    rng = random.Random(1)
    texts = [rows_of(rng, count, kind) for kind in KINDS for count in (1, 3, 10)]
    found = load_calibration(encoder)
    vectors = encoder.encode_documents(texts)
    asked = encoder.encode_queries(QUESTIONS[language])
    scores = np.array([found.relevance(q, v, texts, vectors) for q, v in zip(QUESTIONS[language], asked, strict=True)])
    most = (
        0.3 if language == "zh" else 0.35
    )  # texts of numbers count as English, and lose half of what they have in common
    assert scores.max() <= most, [(QUESTIONS[language][q], texts[t]) for q, t in np.argwhere(scores > most)]
    assert (scores < 0.1).mean() > 0.9


# what a folder holds besides prose; those in the first half are not about any of the questions below
OTHERS = {
    "bad.json": '{"a": ',
    "start.log": "2024-05-01 12:00:01 INFO start",
    "empty.ipynb": '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
    "stock.csv": "id,qty,price\nA-1,4,2.50\nB-2,12,0.75\nC-3,7,19.90",
    "settings.json": '{"pool": {"size": 8, "idle_s": 1.5, "hosts": ["a1"]}, "log": {"level": "INFO", "days": 14}}',
    "sums.txt": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "area.py": "def area(r):\n    return 3.14159 * r * r\n",
    "pins.txt": "numpy==1.26.4\nrequests>=2.31\n",
    "faces.txt": "😀😀",
    "links.txt": "https://example.com/a/b?id=12&x=9",
}
PROSE = {
    "咖啡机.txt": "咖啡机的清洗周期是每周一次，用白醋除垢。",
    "售后.md": "净水器自购买之日起保修两年，人为损坏不在保修范围内。凭发票联系门店。",
    "搬运.md": "搬运时柜体倾斜不得超过三十度，否则压缩机要静置六小时才能通电。",
    "bicycles.txt": "Company bicycles are in the shed behind the canteen; the key is at the reception until six.",
    "leave.md": "Everybody has twenty-six days of paid leave a year; up to five may be taken over into the next one.",
    "部署.md": "部署 gateway 时先运行 docker compose pull，再 docker compose up；回滚用 git revert 和上一个 tag。",
}
ANSWERS = {
    "咖啡机多久清洗一次？": "咖啡机.txt",
    "咖啡机": "咖啡机.txt",
    "净水器的保修期是多久？": "售后.md",
    "搬运时最多能倾斜多少度？": "搬运.md",
    "公司自行车停在哪里？": "bicycles.txt",
    "一年有多少天带薪休假？": "leave.md",
    "Where is the key of the bicycle shed?": "bicycles.txt",
    "How many days of leave are there?": "leave.md",
    "How long is the water filter under warranty?": "售后.md",
    "怎么回滚 gateway 的部署？": "部署.md",
    "How do I roll back the gateway?": "部署.md",
}  # fmt: skip


@pytest.fixture(scope="module")
def mixed(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    for name, text in (OTHERS | PROSE).items():
        (folder / "docs" / name).parent.mkdir(exist_ok=True)
        (folder / "docs" / name).write_text(text, encoding="utf-8")
    with KnowledgeBase(folder / "kb", encoder) as kb:
        kb.sync(folder / "docs")
        yield kb


@pytest.mark.parametrize("strategy", ["cosine", "hybrid"])
@pytest.mark.parametrize("question", ANSWERS)
def test_a_question_finds_its_answer_among_files_without_words(mixed, question: str, strategy: str) -> None:
    hits = mixed.search(question, limit=20, strategy=strategy)
    names = [Path(hit.source).name for hit in hits]
    assert names[0] == ANSWERS[question], [(name, hit.score) for name, hit in zip(names, hits, strict=True)][:4]
    noise = [hit.score for name, hit in zip(names, hits, strict=True) if name in OTHERS]
    assert noise and max(noise) < 0.3
    assert hits[0].score > 0.3


@pytest.mark.parametrize("question", ["保修期是多久？", "How many days of leave are there?"])
def test_a_build_leaves_files_without_words_out(encoder, question: str) -> None:
    builder = ContextBuilder(encoder=encoder, config=ContextConfig(min_relevance=0.1))
    built = builder.assemble(user_query=question, documents=[*OTHERS.values(), *PROSE.values()])
    kept = [item.packet.content for item in built.kept if item.source == "documents"]
    assert kept and kept[0] == PROSE["leave.md" if question.isascii() else "售后.md"]
    low = {item.packet.content for item in built.dropped if item.reason == "below_floor"}
    assert len(low & set(OTHERS.values())) >= (0.6 if question.isascii() else 0.8) * len(OTHERS)


def test_a_code_is_still_found_where_it_stands(mixed) -> None:
    """What has no words is not thrown out: a question that is about it finds it."""
    for question in ("area(r)", "3.14159 * r", "圆面积的函数 area"):
        assert Path(mixed.search(question, limit=1)[0].source).name == "area.py"
    assert Path(mixed.search("requests>=2.31 version", limit=1)[0].source).name == "pins.txt"
