"""The view in memory: compared with brute force in numpy, and with itself built another way."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from store_help import opened

from ctx_vector.calibration import load_calibration
from ctx_vector.memory import Memory
from ctx_vector.memory_view import SHRINK, load_view
from tests.test_memory import NOW, FastEncoder

ENGLISH = [
    "Shall we have tea?",
    "Yes, green tea please",
    "The kettle is broken",
    "Then we buy a new one on Monday",
    "Fine",
]
CHINESE = ["我们喝茶吧", "好的，绿茶", "水壶坏了", "那星期一买一个新的"]


def filled(memory):
    for name, texts in (("e", ENGLISH), ("z", CHINESE)):
        memory.add_many([{"content": text, "session": name, "timestamp": NOW} for text in texts], now=NOW)
    memory.add_many(
        [
            {"content": "The user likes tea", "type": "semantic", "importance": 0.9},
            {"content": "東京タワーで会いましょう", "type": "profile", "importance": 0.2},
        ],
        now=NOW,
    )


def brute_force(memory, query):
    """The formula of memory_view.py, written down again in float64: ids and relevance by id."""
    from ctx_vector.languages import language_of

    calibration, asked = load_calibration(memory.encoder), language_of(query)
    vector = memory.encoder.encode_queries([query])[0].astype(np.float64)
    with opened(memory).read() as conn:
        vectors = {
            id_: np.frombuffer(blob, "<f4").astype(np.float64)
            for id_, blob in conn.execute("SELECT id, vector FROM encodings")
        }
    scores = {}
    rows = memory.all(now=NOW)
    for language in {row.language for row in rows}:
        own = [row for row in rows if row.language == language]
        usual = calibration.mean_passage(language).astype(np.float64)
        alone = np.array([vectors[row.alone] for row in own])
        around = np.array([vectors[row.around] for row in own])
        pairs = (alone + around) / 2
        mean = (pairs.sum(0) + SHRINK * usual) / (len(own) + SHRINK)
        key = asked if asked in calibration.questions else "zh"
        moved = calibration.questions[key].astype(np.float64) - usual
        expected = (alone.sum(0) + SHRINK * usual) / (len(own) + SHRINK) + moved
        centred, shifted = pairs - mean, vector - expected
        cosines = centred @ shifted / np.linalg.norm(centred, axis=1) / np.linalg.norm(shifted)
        for row, score in zip(own, calibration.centred_relevance(asked, language, cosines), strict=True):
            scores[str(row.id)] = float(score)
    return scores


@pytest.mark.parametrize("query", ["Which tea do we drink?", "喝什么茶?", "お茶はどこですか"])
def test_against_brute_force(tmp_path, encoder, query):
    with Memory(tmp_path, "ada", encoder) as memory:
        filled(memory)
        expected = brute_force(memory, query)
        hits = memory.search(query, 50, now=NOW)
        assert len(hits) == len(expected) == 11
        for hit in hits:
            assert hit.score == pytest.approx(expected[hit.id], abs=2e-5)
            assert abs(np.linalg.norm(hit.vector) - 1) < 1e-6
        assert [hit.id for hit in hits[:3]] == sorted(expected, key=expected.__getitem__, reverse=True)[:3]
        vector = encoder.encode_queries([query])[0]
        assert all(hit.cosine == pytest.approx(float(hit.vector @ vector), abs=1e-6) for hit in hits)


def test_a_few_of_many_are_the_best_of_all(tmp_path):
    """However few are asked for, they are the first of the whole ranking, filters or not."""
    with Memory(tmp_path, "ada", FastEncoder()) as memory:
        memory.add_many(
            [{"content": f"note {n}" if n % 3 else f"笔记{n}", "importance": n % 10 / 10} for n in range(600)], now=NOW
        )
        for query in ("note", "笔记"):
            for least in (0.0, 0.5, 0.9):
                whole = [(hit.id, hit.score) for hit in memory.search(query, 1000, min_importance=least, now=NOW)]
                assert len(whole) == 600 - int(least * 10) * 60
                for limit in (1, 7, 60):
                    few = memory.search(query, limit, min_importance=least, now=NOW)
                    assert [(hit.id, hit.score) for hit in few] == whole[:limit]


def same_bits(one, two, vector):
    for name in one.facts.__slots__:
        assert np.array_equal(getattr(one.facts, name), getattr(two.facts, name), equal_nan=name == "times"), name
    for query in ("tea", "茶"):
        for left, right in zip(
            *(view.search(query, vector, 9, np.ones(len(view), bool)) for view in (one, two)), strict=True
        ):
            assert left.tobytes() == right.tobytes()
    assert one._indexes.keys() == two._indexes.keys()
    for code in one._indexes:
        assert one._index(code).mean.tobytes() == two._index(code).mean.tobytes()
        assert one._index(code).faiss.ntotal == two._index(code).faiss.ntotal


def test_a_view_depends_on_the_rows_and_not_on_the_way_they_came(tmp_path):
    fast = FastEncoder()
    calibration = load_calibration(fast)
    rng = np.random.default_rng(3)
    vector = fast.encode_queries(["tea"])[0]
    memory, other = Memory(tmp_path, "ada", fast), Memory(tmp_path, "bob", fast)
    other.add_many([{"content": f"bob {n}"} for n in range(5)], now=NOW)
    for step in range(60):
        ids = [row.id for row in memory.all(now=NOW)]
        choice = rng.integers(6)
        if choice <= 2 or len(ids) < 4:
            text = f"note {step}" if rng.random() < 0.5 else f"笔记{step}"
            memory.add(text, session="s" if rng.random() < 0.7 else None, now=NOW)
        elif choice == 3:
            memory.remove(int(rng.choice(ids)))
        elif choice == 4:
            memory.update(int(rng.choice(ids)), content=f"changed {step} 改", importance=0.1, now=NOW)
        else:
            other.add(f"bob again {step}", now=NOW)
            if step % 2:
                memory.forget("capacity_based", len(ids) - 1, now=NOW)
        if rng.random() < 0.6:  # sometimes several changes lie between two views
            memory.search("tea", now=NOW)
            with opened(memory).read() as conn:
                fresh = load_view(conn, "ada", calibration, None, memory._view.model)
            assert fresh.generation == memory._view.generation
            same_bits(memory._view, fresh, vector)
    with Memory(tmp_path, "ada", fast) as again:
        assert [(hit.id, hit.score) for hit in again.search("tea", 100, now=NOW)] == [
            (hit.id, hit.score) for hit in memory.search("tea", 100, now=NOW)
        ]
    memory.close()
    other.close()


def test_changes_of_others_cost_no_new_view(tmp_path):
    fast = FastEncoder()
    with Memory(tmp_path, "ada", fast) as memory, Memory(tmp_path, "bob", fast) as other:
        memory.add("The tea is green", now=NOW)
        memory.search("tea")
        view = memory._view
        other.add("The milk is white", now=NOW)
        other.remove(other.add("The milk is sour", now=NOW))
        memory.search("tea")
        assert memory._view is view
        memory.add("The tea is cold", now=NOW)
        assert len(memory.search("tea")) == 2
        assert memory._view is not view


def test_who_missed_more_removals_than_are_kept_reads_all_anew(tmp_path, monkeypatch):
    from ctx_vector import memory_rows

    monkeypatch.setattr(memory_rows, "_GONE_KEPT", 3)
    fast = FastEncoder()
    with Memory(tmp_path, "ada", fast) as memory, Memory(tmp_path, "ada", fast) as other:
        ids = memory.add_many([{"content": f"note {n}"} for n in range(10)], now=NOW)
        for number, id_ in enumerate(ids[:8], 1):
            other.remove(id_)
            if number in (1, 4, 8):
                assert {hit.id for hit in memory.search("note", 50)} == set(ids[number:])
        with opened(memory).read() as conn:
            assert conn.execute("SELECT count(*) FROM gone").fetchone()[0] <= 3


def test_the_newer_of_equals_comes_first(tmp_path):
    with Memory(tmp_path, "ada", FastEncoder()) as memory:
        stamps = [NOW - timedelta(days=days) for days in (5, 1, 9, 1)]
        kinds = ["episodic", "semantic", "profile", "working"]
        for stamp, kind in zip(stamps, kinds, strict=True):
            memory.add("The tea is green", kind, timestamp=stamp, now=NOW)
        assert [hit.id for hit in memory.search("tea", now=NOW)] == ["2", "4", "1", "3"]
        for limit in (1, 2, 3):
            assert [hit.id for hit in memory.search("tea", limit, now=NOW)] == ["2", "4", "1", "3"][:limit]


def test_times_at_the_edges_are_numbers(tmp_path):
    with Memory(tmp_path, "ada", FastEncoder()) as memory:
        memory.add("first", timestamp=datetime(1, 1, 1, tzinfo=UTC), now=NOW)
        memory.add("last", timestamp=datetime(9999, 12, 31, 23, 59, tzinfo=UTC), now=NOW)
        found = memory.search("x", since=datetime(2000, 1, 1, tzinfo=UTC), now=NOW)
        assert [hit.content for hit in found] == ["last"]


@pytest.mark.parametrize("share", [1.0, 0.7, 0.3, 0.02])
@pytest.mark.parametrize("k", [1, 50, 400])
def test_the_nearest_rows_through_any_filter(share, k):
    """Compared with numpy; among rows so near each other that half precision may swap the last ones."""
    from ctx_vector.memory_view import Facts, LanguageIndex

    rng = np.random.default_rng(7)
    rows = 5_000
    vectors = rng.standard_normal((rows, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    nothing = np.zeros(rows)
    facts = Facts(np.arange(rows), *[nothing] * 6, alone=vectors, both=2 * vectors)
    mask = rng.random(rows) < 0.6  # the rows of one language
    index = LanguageIndex.made(facts, mask, np.zeros(384, np.float32))
    wanted = rng.random(int(mask.sum())) < share
    query = vectors[3] + 0.05 * rng.standard_normal(384).astype(np.float32)
    query /= np.linalg.norm(query)
    found = index.nearest(query, k, wanted)
    assert len(set(found.tolist())) == len(found) == min(k, wanted.sum())
    assert wanted[found].all()
    centred = vectors[mask] - index.mean / 2
    cosines = np.where(wanted, centred @ query / np.linalg.norm(centred, axis=1), -9)
    best = np.sort(cosines)[::-1][: len(found)]
    assert np.sort(cosines[found])[::-1] == pytest.approx(best, abs=1e-4)
    assert (index.rows == np.flatnonzero(mask)).all()
