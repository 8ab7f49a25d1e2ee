"""Statistics equal SciPy's and hand-worked cases, are silent about chance, and find what is there."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ctx_vector.errors import InputError, OptionalDependencyError
from ctx_vector.experiments.comparison import compare_all, holm, resamples_for
from ctx_vector.experiments.power import needed, power, smallest_effect
from ctx_vector.experiments.significance import mean_interval, paired

RECALLS = np.array([0, 0.25, 1 / 3, 0.5, 2 / 3, 1])


def all_flips(differences) -> float:
    """The two-sided p by trying all flips of signs, one by one."""
    given = np.asarray(differences, float)
    sums = [abs(float(np.dot(signs, given))) for signs in itertools.product((1, -1), repeat=len(given))]
    return float(np.mean([value >= abs(given.sum()) - 1e-9 for value in sums]))


# -- the test --------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=9))
@settings(max_examples=40, deadline=None)
def test_p_is_that_of_all_flips(differences):
    found = paired(differences, [0.0] * len(differences))
    assert found.p == pytest.approx(all_flips(differences), abs=1e-12)
    assert found.exact
    assert found.p >= found.least_p - 1e-12
    swapped = paired([0.0] * len(differences), differences)
    assert (swapped.p, swapped.difference) == pytest.approx((found.p, -found.difference))


def test_p_is_scipys_own():
    rng = np.random.default_rng(3)
    a, b = rng.normal(0.3, 1, 12), rng.normal(0, 1, 12)
    mine = paired(a, b)
    theirs = stats.permutation_test(
        (a, b), lambda x, y: np.mean(x - y), permutation_type="samples", vectorized=False, n_resamples=np.inf
    )
    assert mine.p == pytest.approx(theirs.pvalue, abs=1e-12)


def test_random_flips_come_near_students_test_where_that_is_right():
    rng = np.random.default_rng(5)
    a = rng.normal(0.2, 1, 200)
    found = paired(a, np.zeros(200), seed=1)
    assert not found.exact
    assert found.p == pytest.approx(stats.ttest_1samp(a, 0).pvalue, abs=0.01)
    assert paired(a, np.zeros(200), seed=1) == found  # the seed decides
    assert paired(a, np.zeros(200), seed=2).p != found.p


def test_thousands_of_queries_may_all_differ():
    a, b = np.random.default_rng(3).standard_normal((2, 3000))
    found = paired(a, b + 0.5)
    assert not found.exact and found.p < 0.001 and found.least_p == 0


def test_units_without_a_difference_change_nothing():
    moved = [0.5, 0.5, -0.25, 1.0]
    assert paired(moved + [0.0] * 50, [0.0] * 54).p == paired(moved, [0.0] * 4).p
    assert paired(moved + [0.0] * 50, [0.0] * 54).exact


def test_five_queries_get_an_honest_answer():
    """Five differences with t = 2.2: the normal distribution says p = 0.028, Student's t 0.093."""
    shape = np.array([-1.2, -0.6, 0.0, 0.6, 1.2])
    differences = shape / shape.std(ddof=1) + 2.2 / np.sqrt(5)
    t = differences.mean() / (differences.std(ddof=1) / np.sqrt(5))
    assert t == pytest.approx(2.2)
    assert 2 * stats.norm.sf(t) == pytest.approx(0.028, abs=5e-4)
    assert stats.ttest_1samp(differences, 0).pvalue == pytest.approx(0.093, abs=5e-4)
    (found,) = compare_all({("new", "old", "m"): (differences, np.zeros(5), None)})
    assert found.found.p == all_flips(differences)
    assert found.found.p >= 0.0625 == found.found.least_p
    assert found.found.low < 0 < found.found.high
    assert found.verdict == "no difference shown"
    assert "no result could have shown one" in found.words


def test_even_five_wins_of_five_show_nothing_and_six_do():
    five, six = (compare_all({("a", "b", "m"): ([1.0] * n, [0.0] * n, None)})[0] for n in (5, 6))
    assert (five.verdict, six.verdict) == ("no difference shown", "better")
    assert six.found.p == 2 / 64


def test_the_same_values_are_no_difference():
    (found,) = compare_all({("a", "b", "m"): ([0.5, 1, 0], [0.5, 1, 0], None)})
    assert (found.found.p, found.found.low, found.found.high, found.smallest) == (1.0, 0.0, 0.0, None)
    assert found.words == "a and b have the same m for all of 3 queries: no difference shown."


# -- groups ----------------------------------------------------------------------------------------------------------


def test_groups_are_flipped_as_a_whole():
    """Four conversations whose questions agree among themselves: not forty witnesses, but four."""
    groups = [f"c{n // 10}" for n in range(40)]
    values = np.repeat([0.3, 0.2, 0.4, 0.1], 10)
    by_query, by_group = paired(values, np.zeros(40)), paired(values, np.zeros(40), groups=groups)
    assert by_query.p < 0.001
    assert by_group.p == 2 / 16
    assert (by_group.units, by_group.queries) == (4, 40)
    assert by_group.difference == pytest.approx(by_query.difference)


def test_groups_of_unequal_size_weigh_by_their_queries():
    groups = ["a", "b", "b", "b"]
    found = paired([1.0, 0.0, 0.5, 0.25], [0.0] * 4, groups=groups)
    assert found.p == all_flips([1.0, 0.75])
    assert found.difference == pytest.approx(1.75 / 4)


def test_the_interval_by_groups_is_the_ratio_bootstrap():
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 9, 40)
    groups = np.repeat([f"g{n}" for n in range(40)], sizes)
    shift = np.repeat(rng.normal(0.1, 0.3, 40), sizes)
    values = shift + rng.normal(0, 0.1, len(shift))
    found = paired(values, np.zeros(len(values)), groups=list(groups), seed=4)
    plain = paired(values, np.zeros(len(values)), seed=4)
    assert found.high - found.low > 1.5 * (plain.high - plain.low)
    names = sorted(set(groups))
    sums = np.array([values[groups == name].sum() for name in names])
    counts = np.array([(groups == name).sum() for name in names], float)
    order = np.lexsort((counts, sums))
    theirs = stats.bootstrap(
        (sums[order], counts[order]), lambda s, c, axis=-1: s.sum(axis) / c.sum(axis), paired=True, n_resamples=9999,
        batch=500, rng=np.random.default_rng(4),
    ).confidence_interval  # fmt: skip
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))


# -- intervals, effect, correction -----------------------------------------------------------------------------------


def test_the_interval_is_scipys_bootstrap_or_students():
    rng = np.random.default_rng(1)
    many, few = rng.choice(RECALLS, 80) - 0.4, rng.choice(RECALLS, 12) - 0.4
    theirs = stats.bootstrap(
        (np.sort(many),), np.mean, n_resamples=9999, batch=500, rng=np.random.default_rng(7)
    ).confidence_interval
    found = paired(many, np.zeros(80), seed=7)
    assert (found.low, found.high, found.interval) == pytest.approx((theirs.low, theirs.high, "BCa bootstrap"))
    t = stats.ttest_1samp(few[:5], 0).confidence_interval()
    found = paired(few[:5], np.zeros(5))
    assert (found.low, found.high) == pytest.approx((min(t.low, 0), max(t.high, 0)))
    found = paired(few, np.zeros(12))
    assert found.interval == "inverted test"
    for bound, outwards in ((found.low, -1), (found.high, 1)):  # SciPy's test refuses what lies beyond, and no more
        at = [
            stats.permutation_test(
                (few - bound - outwards * step,), np.mean, permutation_type="samples", n_resamples=np.inf
            ).pvalue
            for step in (1e-7, -1e-7)
        ]
        assert at[0] <= 0.05 < at[1]


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.0, 0.0, 0.5, 1.0]), min_size=2, max_size=40), st.booleans())
@settings(max_examples=60, deadline=None)
def test_an_interval_beyond_0_never_stands_beside_a_p_that_shows_nothing(differences, grouped):
    groups = [f"g{n // 3}" for n in range(len(differences))] if grouped and len(differences) > 3 else None
    found = paired(differences, np.zeros(len(differences)), groups=groups, resamples=999)
    assert found.low <= found.difference + 1e-12 and found.difference <= found.high + 1e-12
    if found.p > 0.05:
        assert found.low <= 0 <= found.high


def test_the_interval_of_one_arm_is_by_group_where_groups_are_the_unit():
    values = np.array([[0.1, 0.2, 0.3], [0.8, 0.9, 1.0], [0.4, 0.5, 0.6], [0.0, 0.1, 0.2]])
    theirs = stats.ttest_1samp(values.mean(axis=1), 0).confidence_interval(0.9)
    found = mean_interval(values.ravel(), groups=[name for name in "甲乙丙丁" for _ in range(3)], alpha=0.1)
    assert found == pytest.approx((theirs.low, theirs.high))
    alone = mean_interval(values.ravel(), alpha=0.1)
    assert alone[1] - alone[0] < 0.6 * (found[1] - found[0])


def test_the_interval_of_groups_of_unequal_size_is_that_of_a_ratio():
    """Two groups that agree but for their size: 0.8 of 1 and of 9 queries, and of 5 with 0.6."""
    values, groups = np.array([0.8] * 10 + [0.6] * 5), ["a"] + ["b"] * 9 + ["丙"] * 5
    ratio, sizes, sums = 11 / 15, np.array([1, 9, 5]), np.array([0.8, 7.2, 3.0])
    error = np.sqrt(((sums - ratio * sizes) ** 2).sum() / 2 / 3) / 5  # Cochran 1977, chapter 6
    half = stats.t.ppf(0.975, 2) * error
    assert mean_interval(values, groups=groups) == pytest.approx((ratio - half, ratio + half))
    assert half < 0.4  # by the sums alone it would be 1.6
    found = paired(values, np.zeros(15), groups=groups)
    assert (found.low, found.high, found.interval) == pytest.approx((0, ratio + half, "Student's t"))


def test_differences_that_are_all_equal_have_no_interval():
    (one,) = compare_all({("a", "b", "r@1"): (np.ones(6), np.zeros(6), None)})
    assert one.bounds == "–"
    assert one.words == (
        "a is better than b in r@1: +1.000 (no interval, as all differences are equal, p = 0.031), 6 queries."
    )


def test_the_interval_of_six_by_hand():
    """Under 1 only all six flipped, or none, are as extreme: 2 of 64. At 1 flipping the 1 alone is, too: 4 of 64."""
    found = paired(np.arange(1.0, 7.0), np.zeros(6))
    assert (found.low, found.high, found.p) == (1.0, 6.0, 2 / 64)


@pytest.mark.parametrize("groups", [False, True])
def test_the_same_differences_have_the_same_interval_and_p(groups):
    """Whatever arms and metrics are called, in whatever order queries come, and from which values they come."""
    rng = np.random.default_rng(6)
    a, b = rng.choice([0.0, 0.25, 0.5, 1.0], (2, 60))
    order = rng.permutation(60)
    of = [f"群{n // 2}" for n in range(60)] if groups else None
    mixed = None if of is None else [of[place] for place in order]
    found = compare_all(
        {
            ("x", "y", "m@1"): (a, b, of),
            ("jaccard", "余弦", "召回@2"): (a[order], b[order], mixed),
            ("z", "y", "m@1"): (a - b, np.zeros(60), of),
        }
    )
    assert len({(one.found.low, one.found.high, one.found.p) for one in found}) == 1
    assert found[0].found.interval == ("inverted test" if groups else "BCa bootstrap") and not found[0].found.exact


def test_few_values_are_covered_as_promised():
    rng = np.random.default_rng(2)
    steps, chances = [-1, -0.5, 0, 0.5, 1], [0.1, 0.1, 0.5, 0.1, 0.2]
    true = float(np.dot(steps, chances))
    covered = 0
    for _ in range(300):
        found = paired(rng.choice(steps, 10, p=chances), np.zeros(10), resamples=9)
        covered += found.low <= true <= found.high
    assert covered / 300 >= 0.91


def test_cohens_d_z_by_hand():
    found = paired([1.0, 2.0, 3.0, 6.0], [0.0, 1.0, 1.0, 2.0])  # differences 1 1 2 4: mean 2, deviation sqrt(2)
    assert found.effect == pytest.approx(2 / np.sqrt(2))
    assert (found.wins, found.losses) == (4, 0)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_is_step_down_by_definition(values):
    """p_(i) corrected is the largest of min(1, (m - j + 1) p_(j)) for j <= i; between the raw p and Bonferroni's."""
    got, order = holm(values), np.argsort(values, kind="stable")
    for place, at in enumerate(order):
        wanted = max(min(1.0, (len(values) - j) * values[order[j]]) for j in range(place + 1))
        assert got[at] == pytest.approx(wanted)
        assert values[at] <= got[at] + 1e-12 <= min(1.0, values[at] * len(values)) + 1e-9


def test_power_is_that_of_the_tables():
    """Cohen's table and G*Power: paired t test, two-sided, alpha 0.05."""
    assert needed(0.5) == 34
    assert needed(0.2) == 199
    assert power(34, 0.5) == pytest.approx(0.808, abs=2e-3)
    assert smallest_effect(64) == pytest.approx(0.3557, abs=1e-3)
    assert power(20, 0.0) == pytest.approx(0.05)
    assert power(100_000, 1.0) == 1.0
    assert smallest_effect(1) is None


def test_power_is_a_number_whatever_is_asked_and_grows_with_the_effect():
    for n in (2, 5, 30, 57, 98, 168, 400, 5000):
        for family in (1, 92, 1000):
            found = [power(n, effect, 0.05 / family) for effect in np.linspace(0, 2, 40)]
            assert np.isfinite(found).all()
            assert (np.diff(found) >= -1e-9).all()
            assert found[0] == pytest.approx(0.05 / family, rel=1e-3)


def test_power_is_what_simulation_finds():
    rng = np.random.default_rng(11)
    found = np.mean([stats.ttest_1samp(rng.normal(0.4, 1, 30), 0).pvalue <= 0.05 for _ in range(1500)])
    assert power(30, 0.4) == pytest.approx(found, abs=0.035)


# -- what the whole must show ----------------------------------------------------------------------------------------


def recalls(rng, n, shift=0.0):
    """Recalls of two arms for the same queries: some queries are hard for both, and each arm has luck of its own."""
    hard = rng.beta(1.2, 0.8, n)
    return (
        rng.binomial(4, np.clip(hard + shift, 0, 1)) / 4,
        rng.binomial(4, hard) / 4,
    )


def test_an_a_a_test_finds_a_difference_in_one_of_twenty():
    rng = np.random.default_rng(21)
    found = [paired(*recalls(rng, 60), resamples=499, seed=n).p <= 0.05 for n in range(500)]
    assert np.mean(found) <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / 500)
    assert np.mean(found) >= 0.02  # and it is no test that finds nothing


def test_an_a_a_test_of_a_whole_family_finds_one_in_one_of_twenty():
    """Four correlated metrics and budgets, corrected together: any verdict at all is a false one."""
    rng = np.random.default_rng(22)
    false = 0
    for n in range(500):
        a, b = recalls(rng, 40)
        family = {}
        for place in range(4):
            noise = rng.binomial(1, 0.8, 40)
            family["a", "b", f"m@{place}"] = (a * noise, b * noise, None)
        false += any(one.verdict != "no difference shown" for one in compare_all(family, resamples=249, seed=n))
    assert false / 500 <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / 500)


def test_a_planted_difference_is_found_with_the_power_the_tool_predicts():
    rng = np.random.default_rng(23)
    n, deviation = 80, 0.0
    differences = [np.subtract(*recalls(rng, n)) for _ in range(200)]
    deviation = float(np.mean([d.std(ddof=1) for d in differences]))
    for wanted in (0.5, 0.8, 0.95):
        planted = smallest_effect(n, 0.05, wanted) * deviation
        found = [paired(d + planted, np.zeros(n), resamples=499, seed=k).p <= 0.05 for k, d in enumerate(differences)]
        assert np.mean(found) == pytest.approx(wanted, abs=3 * np.sqrt(wanted * (1 - wanted) / 200) + 0.01)


def test_words_tell_what_is_of_one_comparison_and_what_of_all():
    """Six wins in 32: an interval beyond 0 and p = 0.031, and among five comparisons no verdict."""
    a = np.repeat([1.0, 0.0], [6, 26])
    family = {("a", "b", f"m{n}"): (a, np.zeros(32), None) for n in range(5)}
    one = compare_all(family)[0]
    assert one.found.low > 0 and one.found.p == 2 / 64 and one.p_holm == 10 / 64
    assert one.words.startswith("No difference between a and b in m0 is shown: +0.188 (by itself 95 % interval +0.0")
    assert "and p = 0.031; corrected for 5 comparisons p = 0.16)" in one.words
    (alone,) = compare_all({("a", "b", "m"): (a, np.zeros(32), None)})
    assert "p = 0.031)" in alone.words and "by itself" not in alone.words


def test_the_smallest_detectable_difference_counts_the_correction():
    rng = np.random.default_rng(24)
    a, b = recalls(rng, 100)
    (alone,) = compare_all({("a", "b", "m"): (a, b, None)})
    among = compare_all({("a", "b", f"m{n}"): (a, b, None) for n in range(10)})[0]
    assert alone.smallest == pytest.approx(smallest_effect(100) * np.std(a - b, ddof=1))
    assert among.smallest == pytest.approx(smallest_effect(100, 0.005) * np.std(a - b, ddof=1))
    assert f"{among.smallest:.3f} or more would be found 4 times in 5" in among.words


def test_a_clear_difference_stands_among_many_comparisons():
    """With 9,999 flips the smallest p is 0.0002, which times 400 is 0.08: more flips are made."""
    rng = np.random.default_rng(26)
    same = rng.choice(RECALLS, 40)
    family = {("a", "b", f"m{n}"): (same, same, None) for n in range(399)}
    family["a", "b", "clear"] = (np.linspace(0.5, 1, 40), np.zeros(40), None)
    found = {one.metric: one for one in compare_all(family)}
    assert found["clear"].verdict == "better"
    assert resamples_for(400) == 32_000
    assert resamples_for(10) == 9_999


def test_less_is_better_where_it_is():
    fast, slow = np.linspace(1, 2, 20), np.linspace(3, 4, 20)
    (found,) = compare_all({("fast", "slow", "tokens@500"): (fast, slow, None)}, small_is_better=["tokens"])
    assert found.verdict == "better"
    assert found.words.startswith("fast is better than slow in tokens@500: -2.000")
    assert found.to_dict()["wins"] == 0  # of the value as it is


def test_the_result_does_not_depend_on_the_company_but_for_the_correction():
    rng = np.random.default_rng(25)
    series = {("甲", "乙", f"召回@{n}"): (*recalls(rng, 50), None) for n in range(3)}
    forward, backward = compare_all(series), compare_all(dict(reversed(series.items())))
    assert {one.metric: one.to_dict() for one in forward} == {one.metric: one.to_dict() for one in backward}


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1.0], [2.0]), "2 or more queries"),
        (([1.0, 2.0], [2.0]), "shapes (2,) and (1,)"),
        (([1.0, float("nan")], [2.0, 1.0]), "finite"),
    ],
)
def test_wrong_series_are_named(arguments, words):
    with pytest.raises(InputError) as error:
        paired(*arguments)
    assert words in str(error.value)


def test_wrong_groups_are_named():
    with pytest.raises(InputError, match="one for each of 2 queries, got 1"):
        paired([1.0, 2.0], [0.0, 1.0], groups=["a"])
    with pytest.raises(InputError, match="2 or more of them, got 1"):
        paired([1.0, 2.0], [0.0, 1.0], groups=["a", "a"])
    with pytest.raises(InputError, match="other than 0"):
        needed(0.0)


def test_without_scipy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(OptionalDependencyError, match=r"pip install 'ctx_vector\[lab\]'"):
        paired([1.0, 2.0], [0.0, 1.0])
