"""Short statements about oneself in two languages: the one that answers is first, in whichever language it is.

tests/data/personal_facts.jsonl has 48 facts, each as a statement and as a question to it in English and in Chinese;
none is in the background (test_calibration.py). A question is asked where one statement answers it, and 47 others stand
beside it: in the other language, or each in one of the two by turns.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from ctx_vector import ContextBuilder, ContextConfig
from ctx_vector.calibration import load_calibration
from ctx_vector.encoders import CachedEncoder
from ctx_vector.scoring import CosineScorer, HybridScorer
from ctx_vector.stages import Candidates, Query

FACTS = Path(__file__).parent / "data" / "personal_facts.jsonl"
#: Least share of questions whose answer is the first, by (question, answer, others), for cosine and hybrid. Before
#: statements about oneself were in the background it was, in this order: 0.19 / 0.19, 0.77 / 0.63, 1.00 / 0.98,
#: 0.90 / 0.88, 0.57 / 0.54, 0.83 / 0.75; with them it is 0.60 / 0.56, 0.92 / 0.90, 0.98 / 0.90, 0.88 / 0.83,
#: 0.79 / 0.73, 0.91 / 0.88.
LEAST = {
    ("en", "en", "zh"): (0.55, 0.5),
    ("zh", "zh", "en"): (0.87, 0.85),
    ("en", "zh", "en"): (0.93, 0.85),
    ("zh", "en", "zh"): (0.83, 0.79),
    ("en", "either", "either"): (0.74, 0.68),
    ("zh", "either", "either"): (0.86, 0.83),
}


@pytest.fixture(scope="module")
def facts() -> list[dict[str, str]]:
    rows = [json.loads(line) for line in FACTS.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 48
    return rows


@pytest.fixture(scope="module")
def cached(encoder) -> CachedEncoder:
    return CachedEncoder(encoder)


def first(facts: list[dict[str, str]], scorer, encoder: CachedEncoder, case: tuple[str, str, str]) -> float:
    """Return the share of questions whose answer has the highest relevance; `either` counts both ways to take turns."""
    asked, answer, others = case
    right = []
    for turn in range(2 if answer == "either" else 1):
        for place, fact in enumerate(facts):
            languages = [
                ("en", "zh")[(number + turn) % 2] if answer == "either" else answer if number == place else others
                for number in range(len(facts))
            ]
            texts = [other[language] for other, language in zip(facts, languages, strict=True)]
            question = fact[f"q_{asked}"]
            query = Query(question, vector=encoder.encode_queries([question])[0])
            scores = scorer.score(query, Candidates(texts, vectors=encoder.encode_documents(texts)))
            right.append(int(scores.argmax()) == place)
    return float(np.mean(right))


@pytest.mark.parametrize("case", LEAST, ids="-".join)
def test_the_answer_is_the_first(facts, cached: CachedEncoder, case: tuple[str, str, str]) -> None:
    calibration = load_calibration(cached)
    found = tuple(first(facts, kind(calibration), cached, case) for kind in (CosineScorer, HybridScorer))
    logging.getLogger(__name__).info("%s: %s", case, found)
    assert found[0] >= LEAST[case][0] and found[1] >= LEAST[case][1], found


PAIRS = {
    "address": ("Where do I live?", "My address is 7 Harbour Road", "我的手机号是13800138000"),
    "phone": ("What is my phone number?", "My mobile number is 13800138000", "我的地址是港湾路7号"),
    "地址": ("我住在哪里？", "我的地址是港湾路7号", "My mobile number is 13800138000"),
    "电话": ("我的电话号码是多少？", "我的手机号是13800138000", "My address is 7 Harbour Road"),
}


@pytest.mark.parametrize("strategy", ["cosine", "hybrid"])
@pytest.mark.parametrize("name", PAIRS)
def test_an_address_is_told_from_a_phone_number_in_the_other_language(
    cached: CachedEncoder, strategy: str, name: str
) -> None:
    """The other one had up to 0.62, and the English address 0.11 (cosine) or 0.05."""
    question, right, wrong = PAIRS[name]
    builder = ContextBuilder(encoder=cached, config=ContextConfig(strategy=strategy))
    built = builder.assemble(user_query=question, documents=[wrong, right])
    found = {item.packet.content: item.relevance for item in (*built.kept, *built.dropped)}
    assert found[wrong] < 0.4
    kept = [item.packet.content for item in built.kept]
    # with no word in common, the hybrid finds nothing rather than the wrong one
    assert kept[:1] == [right] or (strategy, name, kept) == ("hybrid", "address", []), found
