"""The sieve against float64 brute force: what it says of its own error, and that what it leaves out cannot matter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_vector.sieve import Sieve

DIMS = (3, 16, 64, 100, 384)  # FAISS has different code for numbers that 16 and 64 divide


def unit(rows):
    rows = rows.astype(np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def groups_of(rng, dim, sizes, shape):
    """Groups of unit rows round a direction of their own; `shape` makes some of them awkward."""
    groups = []
    for size in sizes:
        rows = unit(rng.standard_normal(dim) * 2 + rng.standard_normal((size, dim)) * rng.choice([0.1, 1, 5]))
        if shape == "tied":
            rows = rows[rng.integers(0, min(3, size), size)]
        elif shape == "flat column":
            rows[:, 0] = 0.25
        elif shape == "one large number":
            rows[rng.integers(size), rng.integers(dim)] = 7
        elif shape == "zeros":
            rows[:] = 0
        groups.append(rows)
    return groups


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(DIMS),
    st.lists(st.integers(1, 90), min_size=1, max_size=3),
    st.sampled_from(["random", "tied", "flat column", "one large number", "zeros"]),
    st.sampled_from([1e-3, 1.0, 40.0, 0.0]),
)
def test_no_inner_product_is_further_from_the_named_one_than_the_error(seed, dim, sizes, shape, length):
    rng = np.random.default_rng(seed)
    groups = groups_of(rng, dim, sizes, shape)
    ids = np.sort(rng.choice(10 * sum(sizes), sum(sizes), replace=False))
    sieve = Sieve(list(zip(np.split(ids, np.cumsum(sizes)[:-1]), groups, strict=True)))
    query = (unit(rng.standard_normal((1, dim)))[0] * length).astype(np.float32)
    offsets = rng.standard_normal(len(sizes)) * rng.choice([0.0, 1.0])
    places, near, error = sieve.nearest(query, len(sieve), offsets)
    owners, means = sieve.groups(places), sieve.means(query)
    exact = np.concatenate(groups).astype(np.float64) @ query.astype(np.float64)
    assert sorted(places) == list(range(sum(sizes))) == list(range(len(sieve)))
    assert (np.diff(near) <= 0).all()
    np.testing.assert_array_equal(owners, np.repeat(np.arange(len(sizes)), sizes)[places])
    some = rng.permutation(len(sieve))[: rng.integers(0, len(sieve) + 1)]
    found, vectors, of = sieve.rows(some)
    np.testing.assert_array_equal(found, ids[np.sort(some)])
    np.testing.assert_array_equal(vectors, np.concatenate(groups)[np.sort(some)])
    np.testing.assert_array_equal(of, sieve.groups(np.sort(some)))
    nearness = exact[places] + (offsets - means)[owners]
    assert (np.abs(near.astype(np.float64) - nearness) <= error + 1e-12).all()


@pytest.mark.parametrize("shape", ["random", "tied"])
def test_a_row_that_is_not_named_is_under_the_last_one_and_the_error(shape):
    rng = np.random.default_rng(5)
    groups = groups_of(rng, 384, (700, 300), shape)
    sieve = Sieve([(np.arange(len(rows)), rows) for rows in groups])
    for query in unit(rng.standard_normal((20, 384))):
        offsets = np.array([0.0, 0.02])
        places, near, error = sieve.nearest(query, 40, offsets)
        exact = np.concatenate(groups).astype(np.float64) @ query.astype(np.float64)
        bounds = np.repeat(near[-1] + sieve.means(query) - offsets, (700, 300)) + error
        others = np.setdiff1d(np.arange(1000), places)
        assert len(others) == 960 and (exact[others] <= bounds[others]).all()


def test_the_error_is_small_for_vectors_of_the_model(encoder):
    """Else nothing would be won: of real passages, the error must be well under the spread of their cosines."""
    texts = [f"{text} {n}." for n in range(8) for text in ("Hot lava", "Bread and butter", "A path", "绿茶", "火山")]
    rows, query = encoder.encode_documents(texts), encoder.encode_queries(["How hot is lava?"])[0]
    _, _, error = Sieve([(np.arange(len(rows)), rows)]).nearest(query, 1, np.zeros(1))
    assert error < 0.01 < (rows @ query).std()
