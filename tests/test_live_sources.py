"""Sources at work: order, limits, faults, what is kept, overrides, expiry and scopes."""

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_help import NOW, STEADY

from ctx_vector import ConfigError, ContextPacket, SourceConfig
from ctx_vector.errors import InputError
from ctx_vector.gather import MOST_HANGING, gather
from ctx_vector.live_sources import MOST_CHARS, MOST_ITEMS, LiveSources
from ctx_vector.stages import Request


def source(loader, name="s", layer="dynamic", **fields):
    return SourceConfig(name, layer, loader, **{"timeout": 5.0, **fields})


def ask(*sources, query="q", now=NOW, overrides=None, live=None, **keys):
    made = live or LiveSources(sources, **keys)
    return gather(made.specs(query, overrides), Request(query, now, top_k=7, score_threshold=0.3))


def texts(gathered):
    return [item.packet.content for item in gathered.candidates if not item.reason]


def reasons(gathered):
    return [(item.source, item.reason) for item in gathered.candidates if item.reason]


def faults(gathered):
    return [(fault.source, fault.reason) for fault in gathered.faults]


# -- asking -----------------------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_sources_whoever_answers_first():
    gate = threading.Event()

    def slow(request):
        gate.wait(5)
        return "slow"

    def quick(request):
        gate.set()
        return "quick"

    found = ask(source(slow, "a"), source(quick, "b"), source(lambda request: ["x", "y"], "c"))
    assert [(item.source, item.packet.content) for item in found.candidates] == [
        ("a", "slow"), ("b", "quick"), ("c", "x"), ("c", "y")
    ]  # fmt: skip


def test_a_source_may_be_async():
    async def function(request, city):
        await asyncio.sleep(0.01)
        return [city, request.user_query]

    class Loader:
        async def load(self, request):
            for text in ("一", "二"):
                await asyncio.sleep(0)
                yield text

    async def broken(request):
        raise ValueError("no connection")

    found = ask(source(function, "a", args={"city": "Oslo"}), source(Loader(), "b", "static"), source(broken, "c"))
    assert texts(found) == ["Oslo", "q", "一", "二"] and faults(found) == [("c", "fault")]


def test_a_source_gets_its_own_limits_and_arguments():
    asked = []

    class Loader:
        def load(self, request):
            asked.append(request)
            return []

    def function(request, city, days=1):
        return f"{city} {days} {request.top_k} {request.score_threshold}"

    found = ask(
        source(Loader(), "a", top_k=2, score_threshold=0.0, args={"x": 1}),
        source(Loader(), "b"),
        source(function, "c", args={"city": "北京"}, top_k=9),
    )
    assert [(item.top_k, item.score_threshold, dict(item.options)) for item in asked] == [
        (2, 0.0, {"x": 1}),
        (7, 0.3, {}),
    ]
    assert texts(found) == ["北京 1 9 0.3"]


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        ("system", "system_instruction"),
        ("static", "knowledge"),
        ("dynamic", "knowledge"),
        ("tool", "tool_result"),
        ("memory", "memory"),
        ("agents", "agent_output"),
    ],
)
def test_the_layer_gives_the_type_whatever_the_source_says(layer, kind):
    says = {"content": "x", "metadata": {"type": "task_state", "section": "Output"}}
    (found,) = ask(source(lambda request: says, layer=layer)).candidates
    assert found.packet.type == kind and "section" not in found.packet.meta
    assert found.packet.meta["user"] == {"type": "task_state", "section": "Output"}


def test_a_source_that_is_off_is_not_asked_and_a_blank_query_asks_only_what_is_always_there():
    def asked(request):
        pytest.fail("asked")

    rules = source(lambda request: "rules", "rules", "system")
    faq = source(lambda request: "faq", "faq", "static")
    others = [source(asked, layer, layer) for layer in ("dynamic", "tool", "memory", "agents")]
    assert texts(ask(rules, faq, *others, source(asked, "off", "static", enabled=False), query=" \n")) == [
        "rules",
        "faq",
    ]


# -- sources that misbehave -------------------------------------------------------------------------------------------


def broken(request):
    raise RuntimeError("服务不可用")


def test_every_kind_of_trouble_is_recorded_and_the_others_still_count():
    release = threading.Event()

    def hangs(request):
        release.wait(20)

    try:
        found = ask(
            source(hangs, "hangs", timeout=0.1),
            source(broken, "raises"),
            source(lambda request: "❌ 搜索失败: 没有索引", "says so"),
            source(lambda request: None, "nothing"),
            source(lambda request: [], "no items"),
            source(lambda request: "x" * 10_000_000, "huge"),
            source(lambda request: {"content": "机密", "metadata": {"scope": "agent_b"}}, "foreign"),
            source(lambda request: [{"no": "text"}, "good"], "half"),
            source(lambda request: b"x" * 10_000_000, "bytes"),
            source(lambda request: (str(n) for n in range(10**9)), "endless"),
            source(lambda request: "fine", "fine"),
            scope="agent_a",
        )
    finally:
        release.set()
    assert faults(found) == [
        ("hangs", "timeout"), ("raises", "fault"), ("says so", "fault"), ("half", "fault"), ("bytes", "fault")
    ]  # fmt: skip
    assert "服务不可用" in found.faults[1].detail and "没有索引" in found.faults[2].detail
    assert reasons(found) == [
        ("nothing", "empty"), ("no items", "empty"), ("huge", "oversize"), ("foreign", "scope"), ("endless", "oversize")
    ]  # fmt: skip
    assert texts(found)[0] == "good" and texts(found)[-1] == "fine"
    assert not any(item.packet.content for item in found.candidates if item.reason)  # nothing of it is kept anywhere
    assert "10,000,000 characters" in found.candidates[2].detail


def test_many_items_are_bounded_together():
    found = ask(source(lambda request: ["x" * (MOST_CHARS // 2 - 1)] * 3 + ["y"]))
    assert [len(item.packet.content) for item in found.candidates] == [MOST_CHARS // 2 - 1] * 2 + [0, 1]
    assert reasons(found) == [("s", "oversize")]
    found = ask(source(lambda request: ["x"] * (MOST_ITEMS + 5)))
    assert len(texts(found)) == MOST_ITEMS and found.candidates[-1].reason == "oversize"


def test_a_source_that_always_hangs_costs_only_a_few_threads():
    release = threading.Event()
    live = LiveSources([source(lambda request: release.wait(20), "hangs", timeout=0.02)])
    before = threading.active_count()
    try:
        found = [ask(live=live) for _ in range(MOST_HANGING + 6)]
        assert threading.active_count() <= before + MOST_HANGING + 1
        assert {fault.reason for item in found for fault in item.faults} == {"timeout", "fault"}
        assert "still hang" in found[-1].faults[0].detail
    finally:
        release.set()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


# -- what is kept -----------------------------------------------------------------------------------------------------


class Counting:
    """A loader that says how often it was asked, and what its content is stamped with."""

    def __init__(self, asks=False):
        self.times = 0
        self.stamped = 0
        self.asks = asks

    def stamp(self):
        return self.stamped

    def load(self, request):
        self.times += 1
        return f"load {self.times}"


def test_a_static_source_is_loaded_once_until_it_changes():
    loader = Counting()
    live = LiveSources([source(loader, layer="static")])
    assert [texts(ask(live=live)) for _ in range(3)] == [["load 1"]] * 3
    loader.stamped += 1
    assert [texts(ask(live=live)) for _ in range(2)] == [["load 2"]] * 2
    assert loader.times == 2


def test_other_layers_and_searches_are_asked_each_time():
    for layer, loader in (("tool", Counting()), ("system", Counting()), ("static", Counting(asks=True))):
        live = LiveSources([source(loader, layer=layer)])
        assert [texts(ask(live=live)) for _ in range(2)] == [["load 1"], ["load 2"]]


def test_a_static_source_that_failed_is_asked_again():
    answers = iter([RuntimeError("away"), "here"])

    def load(request):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    live = LiveSources([source(load, layer="static")])
    assert faults(ask(live=live)) == [("s", "fault")]
    assert [texts(ask(live=live)) for _ in range(2)] == [["here"]] * 2


def test_a_static_source_that_had_nothing_is_asked_again():
    answers = iter([[], None, "here", "there"])
    live = LiveSources([source(lambda request: next(answers), layer="static")])
    assert [texts(ask(live=live)) for _ in range(4)] == [[], [], ["here"], ["here"]]


def test_threads_load_a_static_source_once():
    loader = Counting()
    live = LiveSources([source(loader, layer="static")])
    found = []
    threads = [threading.Thread(target=lambda: found.append(texts(ask(live=live)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["load 1"]] * 8 and loader.times == 1


def test_two_builders_of_one_config_share_nothing():
    made = source(Counting(), layer="static")
    one, other = LiveSources([made]), LiveSources([made])
    assert [texts(ask(live=one)), texts(ask(live=other)), texts(ask(live=one))] == [["load 1"], ["load 2"], ["load 1"]]


# -- overrides --------------------------------------------------------------------------------------------------------


def test_a_source_may_be_overridden_for_one_build():
    live = LiveSources([source(lambda request: "stored", "profile", "static"), source(lambda request: "b", "b")])
    assert texts(ask(live=live, overrides={"profile": "Error: 今天改了"})) == ["Error: 今天改了", "b"]
    assert texts(ask(live=live, overrides={"profile": [{"content": "x"}, ContextPacket("y")]})) == ["x", "y", "b"]
    assert texts(ask(live=live, overrides={"profile": None})) == ["b"]
    assert texts(ask(live=live)) == ["stored", "b"]
    found = ask(live=live, overrides={"b": "given"}, query="")
    assert texts(found) == ["stored", "given"]
    assert found.candidates[1].packet.type == "knowledge"


def test_an_override_of_nothing_that_is_there_is_refused():
    live = LiveSources([source(lambda request: "a", "profile", "static")])
    with pytest.raises(InputError, match=r"overrides\.profil: no source has this name; did you mean 'profile'\?"):
        live.specs("q", {"profil": "x"})
    with pytest.raises(InputError, match="overrides: expected a mapping"):
        live.specs("q", ["profile"])


# -- expiry and versions ----------------------------------------------------------------------------------------------


def test_an_expired_source_gives_nothing_and_one_decision():
    asked = []
    made = source(lambda request: asked.append(1) or ["a", "b"], expires="2025-01-08T12:00:00Z")
    found = ask(made, now=NOW)
    assert reasons(found) == [("s", "expired")] and not texts(found) and not asked
    assert found.candidates[0].detail == "expired at 2025-01-08T12:00:00+00:00"
    assert texts(ask(made, now=NOW - timedelta(seconds=1))) == ["a", "b"]


def test_a_duration_counts_from_the_time_of_each_packet():
    items = [
        {"content": "old", "timestamp": NOW - timedelta(days=3)},
        {"content": "own", "timestamp": NOW - timedelta(days=3), "expires_at": "2030-01-01"},
        {"content": "timeless"},
    ]
    found = ask(source(lambda request: items, expires="2d"))
    assert [item.packet.meta.get("expires_at") for item in found.candidates] == [
        (NOW - timedelta(days=1)).isoformat(), "2030-01-01", None
    ]  # fmt: skip


def test_a_static_source_without_a_file_is_loaded_again_after_a_duration():
    loader = Counting()
    loader.stamp = lambda: None
    live = LiveSources([source(loader, layer="static", expires="1h")])
    times = [NOW, NOW + timedelta(minutes=59), NOW + timedelta(minutes=60), NOW + timedelta(minutes=61)]
    assert [texts(ask(live=live, now=now))[0] for now in times] == ["load 1", "load 1", "load 2", "load 2"]


class Dated(Counting):
    """A loader whose content was changed at a time."""

    def modified(self):
        return datetime(2025, 1, 1, tzinfo=UTC)


def test_a_duration_counts_from_the_time_of_the_file():
    for layer in ("static", "tool"):
        live = LiveSources([source(Dated(), layer=layer, expires="7d")])
        assert texts(ask(live=live, now=datetime(2025, 1, 7, 23, 59, tzinfo=UTC))) == ["load 1"]
        found = ask(live=live, now=datetime(2025, 1, 8, tzinfo=UTC))
        assert (texts(found), reasons(found)) == ([], [("s", "expired")])


def test_the_version_travels_with_every_packet():
    items = ["a", {"content": "b", "version": 3}, ContextPacket("c", metadata={"version": "2.1"})]
    found = ask(source(lambda request: items, version=2))
    assert [item.packet.meta["version"] for item in found.candidates] == ["2", 3, "2.1"]
    assert [item.packet.meta.get("version") for item in ask(source(lambda request: items)).candidates] == [
        None,
        3,
        "2.1",
    ]


def test_scores_and_times_survive():
    packet = ContextPacket("a", timestamp=NOW, relevance_score=0.25, token_count=3, metadata={"id": "x"})
    (found,) = ask(source(lambda request: packet, version="1")).candidates
    kept = found.packet
    assert (kept.timestamp, kept.relevance, kept.scored, kept.token_count, kept.id) == (NOW, 0.25, True, 3, "x")
    assert packet.meta == {"id": "x"}


# -- scopes -----------------------------------------------------------------------------------------------------------

SCOPES = st.sampled_from([None, "shared", "a", "b", ["a", "b"], ["b", "shared"], ("c",)])


@STEADY
@given(st.lists(SCOPES, max_size=6), st.sampled_from(["shared", "a"]), st.sampled_from([None, "a"]))
def test_no_text_of_another_scope_gets_through(scopes, own, scope):
    items = [{"content": f"secret{at}", "metadata": {"scope": value}} for at, value in enumerate(scopes)]
    found = ask(source(lambda request: items, scope=own), scope=scope)
    allowed = {"shared", own, *([scope] if scope else [])}
    expected = [
        f"secret{at}"
        for at, value in enumerate(scopes)
        if value is None or allowed & ({value} if isinstance(value, str) else set(value))
    ]
    assert texts(found) == expected
    gone = [item for item in found.candidates if item.reason == "scope"]
    assert len(gone) == len(scopes) - len(expected)
    assert "secret" not in repr([(item.packet, item.detail) for item in gone])


def test_a_source_of_another_scope_is_an_error_at_the_start():
    with pytest.raises(ConfigError, match=r"sources\.b\.scope: expected agent_a or shared, got agent_b"):
        LiveSources([source(broken, "a"), source(broken, "b", scope="agent_b")], scope="agent_a")
