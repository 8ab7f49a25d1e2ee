"""A test in use deals sessions fairly and for good, ends where it was planned to, and says so when asked before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ctx_vector import ContextBuilder, ContextConfig
from ctx_vector.audit import AuditLog
from ctx_vector.errors import ConfigError, InputError
from ctx_vector.experiments import Arm
from ctx_vector.experiments.online import OnlineTest, sessions_needed
from ctx_vector.experiments.power import power, smallest_effect
from ctx_vector.experiments.unpaired import unpaired

ARMS = [Arm("skip"), Arm("停", {"fill": "stop"})]
PLAIN = ContextConfig(strategy="jaccard")


@pytest.fixture
def audit(tmp_path):
    with AuditLog(tmp_path / "audit.sqlite3") as log:
        yield log


def online(audit, sessions=4, name="fill", arms=ARMS, **options):
    return OnlineTest(name, ContextBuilder(config=PLAIN), arms, audit, sessions=sessions, resamples=199, **options)


def ask(test, session, value=None):
    built = test.assemble("图书馆几点开门？", session_id=session, documents=["图书馆九点开门。"])
    if value is not None:
        test.feedback(built, value)
    return built


def of_arm(test, arm, count, start=0):
    """Session ids that the test deals to an arm."""
    found, n = [], start
    while len(found) < count:
        found += [f"s{n}"] if test.arm(f"s{n}") == arm else []
        n += 1
    return found


# -- dealing ---------------------------------------------------------------------------------------------------------


def test_a_session_keeps_its_arm_in_every_process(audit):
    test = online(audit)
    given = [test.arm(f"会话 {n}") for n in range(50)]
    assert given == [online(audit).arm(f"会话 {n}") for n in range(50)]
    code = (
        "import sys\nfrom ctx_vector import ContextBuilder, ContextConfig\nfrom ctx_vector.audit import AuditLog\n"
        "from ctx_vector.experiments import Arm\nfrom ctx_vector.experiments.online import OnlineTest\n"
        "arms = [Arm('skip'), Arm('停', {'fill': 'stop'})]\n"
        "b = ContextBuilder(config=ContextConfig(strategy='jaccard'))\n"
        f"t = OnlineTest('fill', b, arms, AuditLog({str(audit.path)!r}), sessions=4)\n"
        "sys.stdout.buffer.write(','.join(t.arm(f'会话 {n}') for n in range(50)).encode())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=Path(__file__).parents[1])
    assert done.stdout.decode("utf-8").split(",") == given


def test_arms_are_dealt_evenly_and_tests_apart_from_each_other(audit):
    arms = [Arm(name, {"history_limit": n}) for n, name in enumerate("abc")]
    one, two = online(audit, name="one", arms=arms), online(audit, name="two", arms=arms)
    dealt = [(one.arm(f"s{n}"), two.arm(f"s{n}")) for n in range(6000)]
    for place in (0, 1):
        counts = [sum(pair[place] == name for pair in dealt) for name in "abc"]
        assert stats.chisquare(counts).pvalue > 0.001
    table = [[sum(pair == (a, b) for pair in dealt) for b in "abc"] for a in "abc"]
    assert stats.chi2_contingency(table).pvalue > 0.001


def test_the_plan_is_in_what_is_recorded(audit):
    assert online(audit, 4).digest == online(audit, 4).digest
    others = [online(audit, 5), online(audit, name="x"), online(audit, arms=[Arm("skip"), Arm("停", {"fill": "skip"})])]
    assert len({test.digest for test in [online(audit), *others]}) == 4
    ask(online(audit, 4), "s", 1)
    assert online(audit, 4).result().arms != online(audit, 5).result().arms  # another size finds nothing


def test_builds_are_made_with_the_arm_and_recorded_under_it(audit):
    test = online(audit)
    for arm in ("skip", "停"):
        (session,) = of_arm(test, arm, 1)
        built = ask(test, session)
        audit.flush()
        record = audit.show(built.meta["build_id"])
        assert record.variant == test.variant(arm)
        assert record.config["fill"] == ("skip" if arm == "skip" else "stop")
        assert record.session_id == session


# -- the end ---------------------------------------------------------------------------------------------------------


def test_asked_early_it_gives_no_verdict(audit):
    test = online(audit, sessions=4)
    for arm, value in (("skip", 0), ("停", 1)):
        for session in of_arm(test, arm, 3):
            ask(test, session, value)
        ask(test, of_arm(test, arm, 1, 500)[0])  # a session without feedback does not count
    found = test.result()
    assert not found.finished
    assert found.comparisons == ()
    assert "is not finished: sessions with feedback skip 3 of 4, 停 3 of 4. No verdict before that" in found.words
    assert [(arm.sessions, arm.with_feedback, arm.mean) for arm in found.arms] == [(4, 3, 0.0), (4, 3, 1.0)]


def test_at_the_planned_size_it_is_decided_and_later_sessions_change_nothing(audit):
    test = online(audit, sessions=6)
    for arm, value in (("skip", 0), ("停", 1)):
        for n, session in enumerate(of_arm(test, arm, 6)):
            ask(test, session, value if n else 1 - value)
    found = test.result()
    assert found.finished
    (one,) = found.comparisons
    assert (one.found.mean, one.found.baseline) == pytest.approx((5 / 6, 1 / 6))
    theirs = stats.permutation_test(([1.0] * 5 + [0], [0.0] * 5 + [1]), lambda a, b: np.mean(a) - np.mean(b),
                                    n_resamples=np.inf, vectorized=False)  # fmt: skip
    assert one.found.p == pytest.approx(theirs.pvalue, abs=0.06)  # 199 of 924 ways
    assert one.verdict == "no difference shown"
    assert one.words.startswith("No difference between 停 and skip is shown: 0.833 against 0.167, +0.667")
    for session in of_arm(test, "停", 10, 1000):
        ask(test, session, 0)
    later = test.result()
    assert later.comparisons == found.comparisons
    assert later.arms != found.arms
    json.dumps(later.to_dict(), allow_nan=False)


def test_what_is_said_after_the_end_changes_nothing(audit):
    test = online(audit, sessions=6)
    silent, talked = {}, {}
    for arm, value in (("skip", 0), ("停", 1)):
        early, *others = of_arm(test, arm, 8)
        silent[arm] = ask(test, early)  # the first session of all, of which nothing is heard until the end
        talked[arm] = [ask(test, session, value) for session in others]  # one more than planned
    found = test.result()
    (one,) = found.comparisons
    assert (one.found.count, one.found.mean, one.found.baseline) == (6, 1.0, 0.0)
    assert "+1.000 (no interval, as neither arm varies, p = " in one.words
    for arm, value in (("skip", 0), ("停", 1)):
        test.feedback(silent[arm], 5 - 9 * value)
        for built in talked[arm]:
            test.feedback(built, 5 - 9 * value)
    later = test.result()
    assert later.comparisons == found.comparisons
    assert [state.mean for state in later.arms] != [state.mean for state in found.arms]


def test_a_clear_difference_is_a_verdict(audit):
    test = online(audit, sessions=8)
    for arm, value in (("skip", 1), ("停", 0)):
        for session in of_arm(test, arm, 8):
            ask(test, session, value)
            ask(test, session, value)  # two builds of a session are one witness
    (one,) = test.result().comparisons
    assert (one.verdict, one.found.count, one.found.difference) == ("worse", 8, -1.0)


def test_uneven_recording_is_told(audit):
    test = online(audit, sessions=100)
    for session in of_arm(test, "skip", 40):
        ask(test, session)
    for session in of_arm(test, "停", 8):
        ask(test, session)
    (warning,) = test.result().warnings
    assert "not dealt evenly (skip 40, 停 8" in warning


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"arms": [Arm("a")]}, "arms: expected two or more with different names, got a"),
        ({"name": "a/b"}, "name: expected a name without '/'"),
        ({"sessions": 1}, "sessions: expected a whole number >= 2, got 1; see sessions_needed"),
    ],
)
def test_wrong_arguments_are_named(audit, options, words):
    with pytest.raises(InputError) as error:
        online(audit, **options)
    assert words in str(error.value)


def test_other_wrong_uses(audit, tmp_path):
    with pytest.raises(ConfigError, match="arm b: fill: expected one of"):
        online(audit, arms=[Arm("a"), Arm("b", {"fill": "x"})])
    with pytest.raises(InputError, match="has an audit of its own"):
        OnlineTest("x", ContextBuilder(config=PLAIN, audit=audit), ARMS, audit, sessions=4)
    with pytest.raises(InputError, match="arms go by session"):
        online(audit).arm(" ")


# -- the statistics --------------------------------------------------------------------------------------------------


def test_unpaired_equals_scipy():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0.4, 1, 9), rng.normal(0, 1, 8)
    theirs = stats.permutation_test((a, b), lambda x, y: np.mean(x) - np.mean(y), n_resamples=np.inf, vectorized=False)
    mine = unpaired(a, b, resamples=30_000)
    assert mine.p == pytest.approx(theirs.pvalue, abs=1e-12)  # 24,310 ways: all of them
    bounds = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert (mine.low, mine.high) == pytest.approx((bounds.low, bounds.high))
    pooled = np.sqrt((8 * a.var(ddof=1) + 7 * b.var(ddof=1)) / 15)
    assert mine.effect == pytest.approx((a.mean() - b.mean()) / pooled)
    a, b = rng.normal(0, 1, 60), rng.normal(0, 1, 70)
    bounds = stats.bootstrap((a, b), lambda x, y, axis=-1: x.mean(axis) - y.mean(axis), method="percentile", batch=200,
                             rng=np.random.default_rng(3)).confidence_interval  # fmt: skip
    mine = unpaired(a, b, seed=3)
    assert (mine.low, mine.high) == pytest.approx((bounds.low, bounds.high))


def test_power_is_that_of_the_tables():
    assert sessions_needed(0.5) == 64
    assert sessions_needed(0.2) == 394
    assert power(64, 0.5, samples=2) == pytest.approx(0.80, abs=5e-3)
    assert smallest_effect(64, samples=2) == pytest.approx(0.5, abs=5e-3)
    with pytest.raises(InputError, match=r"at least 0\.01"):
        sessions_needed(0.0)


def test_an_a_a_test_finds_a_difference_in_one_of_twenty_and_looking_ten_times_in_far_more():
    """Why an early look gives no verdict: the same data, looked at as they come in, and once at the planned end."""
    rng = np.random.default_rng(31)
    at_the_end = peeked = 0
    runs = 200
    for n in range(runs):
        a, b = rng.binomial(1, 0.6, (2, 200)).astype(float)
        looks = [stats.ttest_ind(a[:k], b[:k]).pvalue <= 0.05 for k in range(20, 201, 20)]
        peeked += any(looks)
        at_the_end += unpaired(a, b, seed=n, resamples=199).p <= 0.05
    assert at_the_end / runs <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / runs)
    assert peeked / runs > 0.13


def test_arms_that_are_all_the_same_show_nothing():
    found = unpaired(np.ones(5), np.ones(4))
    assert (found.p, found.difference, found.effect) == (1.0, 0.0, None)
    with pytest.raises(InputError, match="2 or more finite values an arm, got 1 and 4"):
        unpaired(np.ones(1), np.ones(4))
