"""Late interaction: against brute force, the same bits in any company, and on questions in two languages."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ctx_vector.encoders import CachedEncoder, SentenceTransformerEncoder
from ctx_vector.errors import InputError, ModelError
from ctx_vector.late import LateScorer, Packed, max_sim
from ctx_vector.late_map import LateMap, all_scores, load_late_map, measure
from ctx_vector.model_store import prepare
from ctx_vector.relevance_map import OTHER_LANGUAGE
from ctx_vector.stages import Candidates, Query
from tests.knowledge_help import CountingEncoder

TEXTS = [
    "Store the honey in a closed glass jar away from the sun, or it will crystallise.",
    "The nightly copy of the database is written to a bucket in Oslo.",
    "蜂蜜要装在密封的玻璃罐里，避免阳光，否则会结晶。",
    "数据库每晚的备份写入奥斯陆的存储桶。",
]
HONEY = ("How should I keep honey?", "蜂蜜怎么保存？")
ROWS = arrays.arrays(np.float32, st.tuples(st.integers(0, 6), st.just(4)), elements=st.floats(-1, 1, width=32))


@given(ROWS, ROWS)
def test_max_sim_is_the_mean_of_the_best_products(query, text) -> None:
    best = [max(sum(float(a) * float(b) for a, b in zip(q, t, strict=True)) for t in text) for q in query if len(text)]
    expected = sum(best) / len(best) if best else 0.0
    assert all_scores([query, query], [text, query, text])[1, 2] == pytest.approx(expected, abs=1e-5)
    packed = [Packed.of(rows) for rows in (text, query, text)]
    found = max_sim(query, packed)
    assert found[0] == found[2] == max_sim(query, packed[:1])[0]
    assert found[0] == pytest.approx(expected, abs=0.02)  # bytes instead of float32


def test_max_sim_of_many_tokens_is_that_of_one_product() -> None:
    chance = np.random.default_rng(3)
    query = chance.standard_normal((53, 384)).astype(np.float32)
    packed = [Packed.of(chance.standard_normal((n, 384)).astype(np.float32)) for n in (1, 31, 32, 33, 200)]
    expected = [(query @ text.rows().T).max(axis=1).mean() for text in packed]
    assert max_sim(query, packed) == pytest.approx(expected, rel=1e-5)


@given(ROWS)
def test_packing_loses_half_a_step_at_most(rows) -> None:
    packed = Packed.of(rows)
    steps = np.abs(rows).max(axis=1, initial=0) / 127
    assert packed.values.dtype == np.int8 and packed.rows().shape == rows.shape
    assert (np.abs(packed.rows() - rows) <= 0.5001 * steps[:, None] + 1e-7).all()


def test_tokens_are_those_of_the_text_alone(encoder) -> None:
    found = encoder.encode_tokens([*TEXTS, "", " \n"], "passage")
    around = len("<s> passage : </s>".split())
    counts = [count - around for count in encoder.count_tokens(TEXTS)]
    assert [len(rows) for rows in found] == [*counts, 0, 0]
    assert all(rows.dtype == np.float32 and np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5) for rows in found)
    assert not np.array_equal(found[0], encoder.encode_tokens([TEXTS[0]], "query")[0])  # another prompt
    long = "honey " * 2_000
    assert len(encoder.encode_tokens([long])[0]) == encoder.max_tokens - around


def test_tokens_have_the_same_bits_in_any_company(forgetful) -> None:
    encoder = forgetful
    alone = [encoder.encode_tokens([text])[0] for text in TEXTS]
    together = encoder.encode_tokens([*TEXTS[::-1], TEXTS[0]])
    assert all(np.array_equal(a, b) for a, b in zip(alone, together[3::-1], strict=True))
    assert np.array_equal(together[4], alone[0])
    for text in (*TEXTS, HONEY[0]):
        (before,) = encoder.encode_tokens([text], "query")
        vector = encoder.encode_queries([text])
        (after,) = encoder.encode_tokens([text], "query")
        assert np.array_equal(before, after) and np.array_equal(vector, encoder.encode_queries([text, "x"])[:1])


@pytest.mark.slow  # opening the model under torch takes half a minute on a busy machine
def test_tokens_are_near_those_of_sentence_transformers(encoder) -> None:
    theirs = SentenceTransformerEncoder(prepare(encoder.name))
    for kind in ("query", "passage"):
        for ours, other in zip(encoder.encode_tokens(TEXTS, kind), theirs.encode_tokens(TEXTS, kind), strict=True):
            assert ours.shape == other.shape
            assert np.median(np.einsum("ij,ij->i", ours, other)) > 0.99


def test_scores_are_those_of_brute_force(encoder) -> None:
    late_map, query = load_late_map(encoder), HONEY[1]
    found = LateScorer(encoder).score(Query(query), Candidates(TEXTS))
    rows = encoder.encode_tokens([query], "query")[0].astype(np.float64) - late_map.means["query"]["zh"]
    asked = rows / np.linalg.norm(rows, axis=1)[:, None]
    for place, (text, said) in enumerate(zip(TEXTS, ("en", "en", "zh", "zh"), strict=True)):
        own = encoder.encode_tokens([text])[0].astype(np.float64) - late_map.means["passage"][said]
        own /= np.linalg.norm(own, axis=1)[:, None]
        raw = float(np.mean([max(float(a @ b) for b in own) for a in asked]))
        pair = late_map.pairs["zh", said]
        excess = raw - pair.growth * np.log(len(own) / 100) - pair.points.unrelated
        expected = float(pair.points.relevance(np.array([excess]))[0])
        if said == "en" and expected > 0.1:
            expected = 0.1 + OTHER_LANGUAGE * (expected - 0.1)
        assert found[place] == pytest.approx(expected, abs=0.01)  # bytes instead of float32


@pytest.mark.parametrize("query", HONEY)
def test_what_answers_is_over_the_line_in_both_languages(encoder, query) -> None:
    honey, backup, zh_honey, zh_backup = LateScorer(encoder).score(Query(query), Candidates(TEXTS))
    assert min(honey, zh_honey) > 0.3 > 0.1 > max(backup, zh_backup)


def test_scores_do_not_depend_on_company_cache_or_threads(encoder) -> None:
    scorer = LateScorer(encoder)
    scores = scorer.score(Query(HONEY[0]), Candidates(TEXTS))
    assert np.array_equal(scores, scorer.score(Query(HONEY[0]), Candidates(TEXTS)))
    tiny = LateScorer(encoder, most_bytes=0)
    assert [float(tiny.score(Query(HONEY[0]), Candidates([text]))[0]) for text in TEXTS] == scores.tolist()
    results: list[list[float]] = []
    threads = [
        threading.Thread(target=lambda: results.append(scorer.score(Query(HONEY[0]), Candidates(TEXTS)).tolist()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [scores.tolist()] * 4


class Counting(CountingEncoder):
    def __init__(self, encoder) -> None:
        super().__init__(encoder)
        self.asked: list[str] = []

    def encode_tokens(self, texts, kind="passage"):
        self.asked += texts
        return self.encoder.encode_tokens(texts, kind)


def test_texts_seen_last_are_kept_within_bounds(encoder) -> None:
    counting = Counting(encoder)
    size = Packed.of(encoder.encode_tokens([TEXTS[0]])[0]).nbytes
    scorer = LateScorer(CachedEncoder(counting), most_bytes=4 * size)
    for _ in range(2):
        scorer.score(Query(HONEY[0]), Candidates(TEXTS[:2]))
    assert sorted(counting.asked) == sorted([HONEY[0], *TEXTS[:2]])
    scorer.score(Query(HONEY[0]), Candidates([f"{TEXTS[0]} {n}" for n in range(9)]))
    assert scorer._known.size <= 4 * size
    with pytest.raises(InputError, match="most_bytes: expected an integer >= 0, got -1"):
        LateScorer(encoder, most_bytes=-1)


def test_nothing_asked_and_nothing_said_score_nothing(encoder) -> None:
    scorer = LateScorer(encoder)
    assert scorer.score(Query(" \n"), Candidates(TEXTS)).tolist() == [0.0] * 4
    assert scorer.score(Query(HONEY[0]), Candidates([])).shape == (0,)
    assert scorer.score(Query(HONEY[0]), Candidates(["", "\ud800", " \n"]))[[0, 2]].tolist() == [0.0, 0.0]


def test_an_encoder_without_tokens_is_told(encoder) -> None:
    class Plain:
        name, fingerprint, dim, max_tokens = encoder.name, "x", encoder.dim, 512

    with pytest.raises(ModelError, match=r"gives no vectors of tokens .* or a cross-encoder"):
        LateScorer(Plain()).score(Query("a"), Candidates(["b"]))


def test_a_map_is_read_back_and_a_broken_one_refused(encoder) -> None:
    found = load_late_map(encoder)
    values = json.loads(json.dumps(found.to_dict()))
    assert LateMap.from_dict(values).to_dict() == found.to_dict()
    for broken in (
        {**values, "pairs": {}},
        {**values, "pairs": {**values["pairs"], "en-zh": [0, 0.1, 0.3, 0.2, 0.4]}},
        {**values, "means": {"query": values["means"]["query"]}},
        {**values, "means": {**values["means"], "query": {"en": [0.1], "zh": [0.1]}}},
    ):
        with pytest.raises(ModelError, match="models calibrate"):
            LateMap.from_dict(broken)


def test_the_shipped_map_tells_pairs_of_the_background_apart(encoder) -> None:
    report = load_late_map(encoder).report
    assert report["rows"] >= 300
    assert min(value for key, value in report.items() if key.startswith("right_")) >= 0.95


@pytest.mark.slow
def test_measured_anew_the_shipped_map_is_the_same(encoder) -> None:
    from ctx_vector.measurements import background

    again, shipped = measure(encoder, background()), load_late_map(encoder)
    for key, pair in again.pairs.items():
        for name in ("unrelated", "line", "match", "high"):
            assert getattr(pair.points, name) == pytest.approx(getattr(shipped.pairs[key].points, name), abs=0.01)


@pytest.mark.slow
def test_the_line_holds_on_texts_that_it_was_not_measured_on(encoder, shared) -> None:
    """XQuAD: at least 0.9 of questions and paragraphs are on the right side of 0.1, whatever the languages."""
    every = 12

    def rows(name, file):
        path = shared / "datasets" / name / file
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    scorer = LateScorer(encoder)
    for asked, said in (("en", "en"), ("zh", "zh"), ("zh", "en")):
        texts = rows(f"xquad-{said}", "corpus.jsonl")[::3]
        lines = (shared / "datasets" / f"xquad-{asked}" / "qrels" / "test.tsv").read_text().splitlines()[1:]
        owner = dict(line.split("\t")[:2] for line in lines)
        matched, unrelated = [], []
        for query in rows(f"xquad-{asked}", "queries.jsonl")[::every]:
            scores = scorer.score(Query(query["text"]), Candidates([text["text"] for text in texts]))
            for text, score in zip(texts, scores, strict=True):
                (matched if text["_id"] == owner[query["_id"]] else unrelated).append(score)
        assert np.mean(np.array(matched) >= 0.1) >= 0.9 and np.mean(np.array(unrelated) < 0.1) >= 0.9
