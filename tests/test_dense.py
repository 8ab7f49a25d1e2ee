"""Dense retrieval against brute force: as if every row had been scored, by whatever way it goes."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_help import opened

from ctx_vector import catalog, lives
from ctx_vector.calibration import Calibration, load_calibration
from ctx_vector.common_tables import add_encodings, find_encodings
from ctx_vector.dense import best_rows
from ctx_vector.encoding_cache import EncodingCache, text_hash
from ctx_vector.filters import allowed_rows
from ctx_vector.index import FlatIndex, GraphIndex, TailedIndex
from ctx_vector.knowledge import KnowledgeBase
from ctx_vector.views import SIEVE_ROWS, View

DIM = 384
QUERIES = {"en": "How do I declare a path parameter?", "zh": "如何声明路径参数？", "other": "パスパラメータの宣言"}


@pytest.fixture(scope="module")
def calibration(encoder):
    return load_calibration(encoder)


def near_background(rng, calibration, language, size):
    """Unit rows as the model makes them: close to what its passages have in common."""
    rows = calibration.mean_passage(language) + rng.standard_normal((size, DIM)) * 0.5 / np.sqrt(DIM)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def tied(rng, rows):
    """The same few rows again and again."""
    return rows[rng.integers(0, max(1, len(rows) // 40), len(rows))]


def make_view(calibration, groups, kind=FlatIndex):
    """A view of {language: (ids, vectors)}."""
    indexes = {name: kind(ids, calibration.ranked(name, vectors)) for name, (ids, vectors) in groups.items()}
    ids = np.sort(np.concatenate([ids for ids, _ in groups.values()]))
    return View(1, 1, "f", DIM, ids, ids // 7, indexes, {}, False, calibration)


def brute_force(groups, asked_text, query, calibration, limit, min_score, allowed=None):
    """{id: relevance} of the best `limit`, and of all that tie with the last one."""
    scores = {}
    for language, (ids, vectors) in groups.items():
        found = calibration.relevance_by_language(asked_text, query, [language] * len(ids), vectors)
        scores |= {int(id_): score for id_, score in zip(ids, found, strict=True)}
    if allowed is not None:
        scores = {id_: scores[id_] for id_ in scores if id_ in set(allowed.tolist())}
    passed = sorted((score for score in scores.values() if score >= min_score), reverse=True)
    least = passed[min(limit, len(passed)) - 1] if passed else 2.0
    return {id_: score for id_, score in scores.items() if score >= max(least, min_score)}


def as_dict(found):
    return dict(zip(found.ids.tolist(), found.scores.tolist(), strict=True))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["random", "tied", "two clusters", "like everything"]),
    st.sampled_from([1, 5, 17, 60, 5000]),
    st.sampled_from([0.0, 0.1, 0.3, 0.9]),
    st.sampled_from(list(QUERIES)),
)
def test_the_best_rows_are_those_of_brute_force(calibration, seed, shape, limit, min_score, language):
    rng = np.random.default_rng(seed)
    sizes = {"en": int(rng.integers(400, 900)), "zh": int(rng.integers(400, 700)), "other": int(rng.integers(0, 30))}
    groups, first = {}, 0
    for name, size in sizes.items():
        if size:
            rows = near_background(rng, calibration, name, size)
            if shape == "two clusters":
                rows[: size // 2] = near_background(rng, calibration, name, 1) + rows[: size // 2] * 0.01
                rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            if shape == "like everything":  # numbers and logs are, and lose what they have in common with all questions
                rows[size // 3 :] += rng.uniform(0, 0.6) * calibration.questions["zh" if seed % 3 else "en"]
                rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            ids = np.sort(rng.choice(np.arange(first, first + 3 * size), size, replace=False)).astype(np.int64)
            groups[name] = ids, tied(rng, rows) if shape == "tied" else rows
            first += 3 * size
    # a question near one of the rows, as they are
    some = groups["zh" if seed % 2 else "en"][1][0]
    query = some + 0.3 * calibration.questions["en"] + rng.standard_normal(DIM).astype(np.float32) * 0.01
    query /= np.linalg.norm(query)
    view, asked = make_view(calibration, groups), calibration.asked(QUERIES[language], query)
    expected = brute_force(groups, QUERIES[language], query, calibration, limit, min_score)
    ways = [best_rows(None, view, asked, limit, min_score, None) for _ in range(2)]
    assert (view.sieve() is not None) == (len(view.ids) >= SIEVE_ROWS)
    for found in ways:  # by the indexes, then by the sieve
        assert as_dict(found) == expected
        order = np.argsort(found.ids)
        places = np.searchsorted(found.ids[order], found.ids)
        assert (found.ids[order][places] == found.ids).all()
        rows = {int(id_): row for ids, vectors in groups.values() for id_, row in zip(ids, vectors, strict=True)}
        assert all((rows[int(id_)] == row).all() for id_, row in zip(found.ids, found.vectors, strict=True))
        np.testing.assert_allclose(found.cosines, found.vectors.astype(np.float64) @ query.astype(np.float64))
    share = rng.choice([0.0, 0.01, 0.3, 0.9])
    allowed = view.ids[rng.random(len(view.ids)) < share]
    expected = brute_force(groups, QUERIES[language], query, calibration, limit, min_score, allowed)
    assert as_dict(best_rows(None, view, asked, limit, min_score, allowed)) == expected


def test_the_sieve_comes_with_the_second_search_and_is_made_once(calibration):
    rng = np.random.default_rng(0)
    groups = {"en": (np.arange(SIEVE_ROWS), near_background(rng, calibration, "en", SIEVE_ROWS))}
    view = make_view(calibration, groups)
    assert view.sieve() is None
    sieve = view.sieve()
    assert sieve is not None and view.sieve() is sieve
    few = make_view(calibration, {"en": (np.arange(SIEVE_ROWS - 1), groups["en"][1][1:])})
    assert few.sieve() is None and few.sieve() is None


def test_no_sieve_where_a_language_has_a_graph_or_a_number_is_not_finite(calibration):
    rng = np.random.default_rng(1)
    rows = near_background(rng, calibration, "en", 2 * SIEVE_ROWS)
    ids = np.arange(len(rows))
    ranked = calibration.ranked("en", rows)
    tail = FlatIndex(ids[1500:], ranked[1500:])
    base = FlatIndex(ids[:1500], ranked[:1500])
    tailed = View(1, 1, "f", DIM, ids, ids, {"en": TailedIndex(base, ids[:0], tail)}, {}, False, calibration)
    broken = rows.copy()
    broken[7, 7] = np.nan
    for view in (
        make_view(calibration, {"en": (ids, rows)}, GraphIndex),
        tailed,
        make_view(calibration, {"en": (ids, broken)}),
    ):
        assert [view.sieve() for _ in range(3)] == [None] * 3
    asked = calibration.asked(QUERIES["en"], rows[5])
    assert 5 in best_rows(None, make_view(calibration, {"en": (ids, broken)}), asked, 3, 0.0, None).ids


# -- a whole knowledge base ----------------------------------------------------------------------------------------


def fill(kb, calibration, rng, documents, *, copies=False, first=0):
    """Write documents of 10 passages with vectors that nobody encoded; with `copies`, many are equal."""
    cache = EncodingCache(opened(kb), kb.encoder)
    made = []
    with opened(kb).write() as conn:
        model = cache.model(conn)
        for number in range(first, first + documents):
            language = ("en", "zh", "en", "other")[number % 4]
            rows = near_background(rng, calibration, language, 10)
            if copies:
                rows = near_background(np.random.default_rng(number % 3), calibration, language, 10)
            chunks = []
            for at, row in enumerate(rows):
                text = f"{number}.{at} {language} {'copy' if copies else 'passage'}"
                key = text_hash(text)
                add_encodings(conn, model, [(key, row.tobytes())])
                encoding = find_encodings(conn, model, [key])[key]
                chunks.append(catalog.NewChunk(text, text, encoding, language, "prose", ("T",), (0, 9), (1, 2)))
            stamp = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=number % 5) if number % 3 else None
            made.append(
                catalog.add_document(
                    conn,
                    catalog.NewDocument(
                        f"{language}/{number}.md", str(number), "1", chunks, timestamp=stamp,
                        expires_at=datetime(2030, 1, 1, tzinfo=UTC) if number % 9 == 0 else None,
                        metadata={"part": number % 4},
                    ),
                )
            )  # fmt: skip
        live = {revision.id for revision in lives.live_revisions(conn, lives.active_version(conn)).values()}
        lives.new_version(conn, live | set(made), "sync", added=documents)
    kb._refresh_files()


def passages(kb):
    """Everything that is live, from the export: (id, source, time, language) of each passage, and the vectors."""
    with opened(kb).read() as conn:
        languages = dict(conn.execute("SELECT id, language FROM chunks"))
    rows, vectors, document = [], [], {}
    for item in kb.export(vectors=True):
        if item["type"] == "document":
            document = item
        else:
            stamp = document["timestamp"]
            seconds = datetime.fromisoformat(stamp).timestamp() if stamp else -np.inf
            rows.append((item["id"], document["source"], seconds, languages[item["id"]]))
            vectors.append(item["vector"])
    return rows, np.array(vectors, np.float32)


def oracle(kb, live, query, vector, limit, min_score, filter=None, now=None):
    """What `search` promises: every passage scored, equal scores newer first, then by id."""
    rows, vectors = live
    with opened(kb).read() as conn:
        allowed = allowed_rows(conn, kb._current(conn), filter, now)
    passed = None if allowed is None else set(allowed.tolist())
    scores = kb.calibration.relevance_by_language(query, vector, [row[3] for row in rows], vectors)
    found = [
        (-score, -seconds, id_, source)
        for (id_, source, seconds, _), score in zip(rows, scores.tolist(), strict=True)
        if score >= min_score and (passed is None or id_ in passed)
    ]
    return [(id_, -score, source) for score, _, id_, source in sorted(found)[:limit]]


def check(kb, calibration, rng, times=3):
    live, late = passages(kb), datetime(2031, 1, 1, tzinfo=UTC)
    for number in range(times):
        for text in QUERIES.values():
            query = near_background(rng, calibration, "en", 1)[0]
            for limit, least in ((5, 0.0), (5, 0.3), (40, 0.1), (3000, 0.0)):
                for filter, now in ((None, None), ({"part": 2}, None), ({"source": ["zh/*"]}, None), (None, late)):
                    if number and (filter or limit == 3000):
                        continue
                    hits = kb.search_vector(text, query, limit, least, filter, now=now)
                    found = [(hit.id, hit.score, hit.source) for hit in hits]
                    assert found == oracle(kb, live, text, query, limit, least, filter, now)


@pytest.mark.parametrize("kind", ["memory", "files", "copies"])
def test_search_equals_brute_force_through_changes_rollback_and_purge(kind, tmp_path, encoder, calibration):
    rng = np.random.default_rng(3)
    with KnowledgeBase(tmp_path, encoder, file_rows=300 if kind == "files" else 50_000) as kb:
        fill(kb, calibration, rng, 130, copies=kind == "copies")
        check(kb, calibration, rng)
        fill(kb, calibration, rng, 3, first=130)  # with files, these are a tail
        assert kb.version == 2
        check(kb, calibration, rng, 2)
        kb.remove("zh/1.md")
        kb.purge("en/2.md")
        check(kb, calibration, rng, 2)
        kb.rollback(1)
        check(kb, calibration, rng, 2)


def test_a_file_made_for_another_calibration_is_not_used(tmp_path, encoder, calibration):
    rng = np.random.default_rng(4)
    # as after measuring anew: texts lose more before a question, so that they rank otherwise
    values = calibration.to_dict()
    moved = {key: [points[0] - 0.05, *points[1:]] for key, points in values["pairs"].items()}
    other = Calibration.from_dict({**values, "pairs": moved})
    with KnowledgeBase(tmp_path, encoder, file_rows=300) as kb:
        fill(kb, calibration, rng, 130)
        made = {file.name for file in tmp_path.glob("*.ctxidx")}
        check(kb, calibration, rng, 1)
        assert made and set(kb._view.files) == {"en", "zh", "other"}
        kb._model._calibration = other
        check(kb, other, rng, 1)
        assert not kb._view.files, "rows are read from SQLite until the next run"
        kb._refresh_files()
        check(kb, other, rng, 1)
        assert set(kb._view.files) == {"en", "zh", "other"}
        assert not made & {file.name for file in tmp_path.glob("*.ctxidx")}
