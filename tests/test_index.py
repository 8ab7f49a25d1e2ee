import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_vector.errors import StoreError
from ctx_vector.index import FlatIndex, GraphIndex, TailedIndex, file_digest, open_index, save_index
from ctx_vector.stages import VectorIndex

DIM = 16
LABEL = {"language": "en", "version": 3}


def unit(rng, rows, dim=DIM):
    matrix = rng.standard_normal((rows, dim)).astype(np.float32)
    return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


def row_ids(rng, rows):
    return np.sort(rng.choice(10 * rows + 10, rows, replace=False)).astype(np.int64)


def full_label(index):
    return LABEL | {"kind": index.kind, "rows": len(index), "dim": index.dim}


def reopened(index, folder):
    save_index(folder / "i.ctxidx", index, LABEL)
    return open_index(folder / "i.ctxidx", full_label(index))


def flat(ids, vectors, folder):
    return FlatIndex(ids, vectors)


def graph(ids, vectors, folder):
    return GraphIndex(ids, vectors)


def mapped_flat(ids, vectors, folder):
    return reopened(FlatIndex(ids, vectors), folder)


def mapped_graph(ids, vectors, folder):
    return reopened(GraphIndex(ids, vectors), folder)


def tailed(ids, vectors, folder):
    """A file of other rows: some of them gone since, a third of the present ones new."""
    cut = len(ids) - len(ids) // 3
    extra = ids[:cut] + 0
    gone = np.array([ids[-1] + 5, ids[-1] + 9], np.int64)
    base_ids = np.concatenate((extra, gone))
    base = reopened(FlatIndex(base_ids, np.concatenate((vectors[:cut], unit(np.random.default_rng(9), 2)))), folder)
    tail = FlatIndex(ids[cut:], vectors[cut:]) if cut < len(ids) else None
    return TailedIndex(base, gone, tail)


KINDS = [flat, graph, mapped_flat, mapped_graph, tailed]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def oracle(ids, vectors, query, k, allowed=None):
    """Ids and scores by float64 brute force."""
    scores = vectors.astype(np.float64) @ query.astype(np.float64)
    keep = np.ones(len(ids), bool) if allowed is None else np.isin(ids, allowed)
    order = np.lexsort((ids[keep], -scores[keep]))[:k]
    return ids[keep][order], scores[keep][order]


def same(found, expected):
    ids, scores = found
    assert ids.dtype == np.int64
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(ids, expected[0])
    np.testing.assert_allclose(scores, expected[1], atol=2e-6)


# -- against brute force ------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 60), st.integers(1, 80), st.sampled_from([None, 0.0, 0.05, 0.3, 0.9]))
def test_every_index_agrees_with_brute_force(tmp_path_factory, seed, rows, k, share):
    rng = np.random.default_rng(seed)
    ids, vectors, query = row_ids(rng, rows), unit(rng, rows), unit(rng, 1)[0]
    # ids of a filter may be unknown to the index
    allowed = None if share is None else np.sort(np.append(ids[rng.random(rows) < share], 10**6)).astype(np.int64)
    folder = tmp_path_factory.mktemp("index")
    for kind in KINDS:
        same(kind(ids, vectors, folder).search(query, k, allowed), oracle(ids, vectors, query, k, allowed))


def test_it_is_a_vector_index(kind, tmp_path):
    rng = np.random.default_rng(1)
    assert isinstance(kind(row_ids(rng, 9), unit(rng, 9), tmp_path), VectorIndex)


@pytest.fixture(scope="module")
def large_graph(tmp_path_factory):
    rng = np.random.default_rng(2)
    centres = unit(rng, 60, 48)
    vectors = centres[rng.integers(0, 60, 6000)] + 0.6 * unit(rng, 6000, 48)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = row_ids(rng, 6000)
    return mapped_graph(ids, vectors, tmp_path_factory.mktemp("graph")), ids, vectors


@pytest.mark.parametrize("share", [0.01, 0.1, 0.19, 0.25, 0.5, 1.0])
def test_a_graph_finds_nearly_all_behind_any_filter(share, large_graph):
    index, ids, vectors = large_graph
    rng = np.random.default_rng(7)
    allowed = None if share == 1.0 else ids[rng.random(6000) < share]
    recalls = []
    for query in unit(rng, 30, 48):
        found, _ = index.search(query, 10, allowed)
        recalls.append(len(set(found) & set(oracle(ids, vectors, query, 10, allowed)[0])) / 10)
        assert allowed is None or np.isin(found, allowed).all()
        assert len(found) == 10
    assert np.mean(recalls) >= (1.0 if share < 0.2 else 0.97)


def test_equal_rows_are_ordered_by_id_and_the_order_never_changes(kind, tmp_path):
    rng = np.random.default_rng(3)
    vectors = np.repeat(unit(rng, 5), 4, axis=0)
    ids = row_ids(rng, 20)
    index = kind(ids, vectors, tmp_path)
    first = index.search(vectors[8], 20)
    assert list(first[0][:4]) == sorted(ids[8:12])
    for _ in range(3):
        again = index.search(vectors[8], 20)
        assert first[0].tobytes() == again[0].tobytes()
        assert first[1].tobytes() == again[1].tobytes()


def test_nothing_allowed_and_nothing_asked_give_nothing(kind, tmp_path):
    rng = np.random.default_rng(4)
    ids, vectors = row_ids(rng, 12), unit(rng, 12)
    index = kind(ids, vectors, tmp_path)
    for found in (index.search(vectors[0], 5, np.empty(0, np.int64)), index.search(vectors[0], 0)):
        assert [part.shape for part in found] == [(0,), (0,)]
        assert [part.dtype for part in found] == [np.int64, np.float32]


def test_a_vector_of_another_length_is_an_error_not_an_assertion(kind, tmp_path):
    rng = np.random.default_rng(5)
    index = kind(row_ids(rng, 12), unit(rng, 12), tmp_path)
    with pytest.raises(StoreError, match="16 numbers, got one of 7"):
        index.search(np.ones(7, np.float32), 3)


# -- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [FlatIndex, GraphIndex])
def test_a_file_gives_back_the_same_rows_also_from_a_chinese_folder(make, tmp_path):
    rng = np.random.default_rng(6)
    ids, vectors = row_ids(rng, 50), unit(rng, 50)
    path = tmp_path / "索引 é" / "i.ctxidx"
    path.parent.mkdir()
    size, digest = save_index(path, make(ids, vectors), LABEL)
    assert (path.stat().st_size, file_digest(path)) == (size, digest)
    assert [file.name for file in path.parent.iterdir()] == ["i.ctxidx"]
    index = open_index(path, full_label(make(ids, vectors)))
    assert index.mapped
    np.testing.assert_array_equal(index.ids, ids)
    np.testing.assert_array_equal(index.vectors, vectors)


@pytest.mark.parametrize("make", [FlatIndex, GraphIndex])
def test_a_truncated_file_is_refused_wherever_it_ends(make, tmp_path):
    rng = np.random.default_rng(7)
    index = make(row_ids(rng, 40), unit(rng, 40))
    path = tmp_path / "i.ctxidx"
    size, _ = save_index(path, index, LABEL)
    whole = path.read_bytes()
    for length in [*range(0, 700, 7), *range(700, size, 97), size - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(StoreError, match=r"i\.ctxidx"):
            open_index(path, full_label(index))


def test_foreign_files_are_refused(tmp_path):
    import faiss

    rng = np.random.default_rng(8)
    index = FlatIndex(row_ids(rng, 40), unit(rng, 40))
    path = tmp_path / "i.ctxidx"
    plain = faiss.IndexFlatIP(DIM)
    plain.add(unit(rng, 40))
    faiss.write_index(plain, str(path))
    with pytest.raises(StoreError, match="no index file of ctx_vector"):
        open_index(path, full_label(index))
    with pytest.raises(StoreError, match="cannot be read"):
        open_index(tmp_path / "missing", full_label(index))
    save_index(path, index, LABEL | {"version": 4})
    with pytest.raises(StoreError, match="belongs to another index"):
        open_index(path, full_label(index))


def test_a_full_disk_leaves_no_half_file(tmp_path):
    rng = np.random.default_rng(8)
    with pytest.raises(StoreError, match="cannot be written"):
        save_index(tmp_path / "missing" / "i.ctxidx", FlatIndex(row_ids(rng, 4), unit(rng, 4)), LABEL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["FlatIndex", "GraphIndex"])
def test_flipped_bytes_never_crash_the_process(name, tmp_path):
    """In a process of its own, since that is what would end."""
    program = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from tests.test_index import *
        rng = np.random.default_rng(11)
        index = {name}(row_ids(rng, 60), unit(rng, 60))
        path = Path(sys.argv[1])
        save_index(path, index, LABEL)
        whole = path.read_bytes()
        opened = refused = 0
        for _ in range(400):
            content = bytearray(whole)
            for at in rng.integers(0, len(content), rng.integers(1, 4)):
                content[at] ^= int(rng.integers(1, 256))
            path.write_bytes(content)
            try:
                found, _ = open_index(path, full_label(index)).search(unit(rng, 1)[0], 10)
                assert np.isin(found, index.ids).all() or len(found) <= 10
                opened += 1
            except StoreError:
                refused += 1
            finally:
                path.unlink()
        print(opened, refused)
    """)
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "i")], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, (run.returncode, run.stderr)
    assert min(map(int, run.stdout.split())) > 5


# -- what a file and its changes give together --------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(0, 39), st.integers(0, 30), st.integers(1, 50))
def test_base_less_gone_plus_tail_equals_the_live_rows(seed, rows, lost, more, k):
    rng = np.random.default_rng(seed)
    all_ids, all_vectors = row_ids(rng, rows + more), unit(rng, rows + more)
    base = FlatIndex(all_ids[:rows], all_vectors[:rows])
    gone = np.sort(rng.choice(all_ids[:rows], min(lost, rows), replace=False))
    tail = FlatIndex(all_ids[rows:], all_vectors[rows:]) if more else None
    index = TailedIndex(base, gone, tail)
    live = ~np.isin(all_ids, gone)
    query = unit(rng, 1)[0]
    assert len(index) == live.sum()
    assert index.changes == len(gone) + more
    same(index.search(query, k), oracle(all_ids[live], all_vectors[live], query, k))
    allowed = np.sort(rng.choice(all_ids, (rows + more) // 2, replace=False))
    same(index.search(query, k, allowed), oracle(all_ids[live], all_vectors[live], query, k, allowed))
