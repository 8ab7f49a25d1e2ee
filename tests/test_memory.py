"""A memory as a person uses it: add, find, change, forget; for one user among others, over days and processes."""

import json
import subprocess
import sys
import textwrap
import threading
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_help import opened

from ctx_vector.errors import InputError, ModelMismatchError, StoreError
from ctx_vector.memory import Memory
from ctx_vector.memory_rows import TYPES
from tests.knowledge_help import CountingEncoder, OtherEncoder, keep_some_map, traces

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


class FastEncoder:
    """Says it is the default model, so that its calibration serves; equal vectors for equal words, random otherwise."""

    name, fingerprint, dim, max_tokens = "multilingual-e5-small", "fast:1", 384, 512

    def __init__(self):
        self.documents = []

    def encode_documents(self, texts):
        self.documents += texts
        return self.encode_queries(texts)

    def encode_queries(self, texts):
        rows = [np.random.default_rng(list(text.encode())).standard_normal(self.dim) for text in texts]
        rows = np.array(rows, np.float32).reshape(-1, self.dim)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def count_tokens(self, texts):
        return [len(text.split()) + 2 for text in texts]


@pytest.fixture
def memory(tmp_path, encoder):
    with Memory(tmp_path, "ada", encoder) as made:
        yield made


def contents(memory, **options):
    return [row.content for row in memory.all(**options)]


# -- adding and finding -----------------------------------------------------------------------------------------------


def test_what_was_added_is_found_best_first(memory):
    memory.add("The user is allergic to peanuts", type="profile", importance=0.9)
    memory.add("The flight to Lisbon leaves on Friday at seven", type="episodic", importance=0.5)
    memory.add("用户喜欢在早上喝绿茶", type="semantic", importance=0.4)
    hits = memory.search("Which nuts can make me ill?")
    assert hits[0].content == "The user is allergic to peanuts"
    assert hits[0].score >= 0.1 > hits[1].score
    assert memory.search("When does the plane to Portugal depart?")[0].content.startswith("The flight")
    assert memory.search("我早上喝什么?")[0].content == "用户喜欢在早上喝绿茶"
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


def test_filters_keep_what_they_say(memory):
    memory.add("The tea is green", type="semantic", importance=0.2, timestamp="2026-01-01")
    memory.add("The tea is black", type="episodic", importance=0.5, timestamp="2026-02-01T00:00:00+00:00")
    memory.add("The tea is white", type="profile", importance=0.9, timestamp="2026-03-01T00:00:00+00:00")

    def found(**filters):
        return {hit.content.split()[-1] for hit in memory.search("Which tea?", now=NOW, **filters)}

    assert found() == {"green", "black", "white"}
    assert found(min_importance=0.5) == {"black", "white"}
    assert found(type="semantic") == {"green"}
    assert found(type=["semantic", "profile"]) == {"green", "white"}
    assert found(type=[]) == set()
    assert found(since="2026-02-01T00:00:00+00:00") == {"black", "white"}
    assert found(until="2026-02-01T00:00:00+00:00") == {"green", "black"}
    assert found(min_score=1.0) == set()
    assert len(memory.search("Which tea?", 1)) == 1


def test_a_blank_query_finds_nothing_and_still_has_its_arguments_checked(memory):
    memory.add("The tea is green")
    assert memory.search(" \n") == []
    with pytest.raises(InputError, match="limit: expected an integer >= 1, got 0"):
        memory.search("", 0)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"content": " "}, "content: expected a text"),
        ({"content": 5}, "content: expected a text"),
        ({}, "content: expected a text"),
        ({"content": "x", "type": "eternal"}, "expected one of working, episodic, semantic, profile, got 'eternal'"),
        ({"content": "x", "importance": 1.5}, r"importance: expected a number in \[0, 1\], got 1.5"),
        ({"content": "x", "importance": "0.5"}, "got '0.5'"),
        ({"content": "x", "importance": float("nan")}, "got nan"),
        ({"content": "x", "importance": True}, "got True"),
        ({"content": "x", "timestamp": "yesterday"}, "timestamp: expected"),
        ({"content": "x", "timestamp": float("nan")}, "timestamp: expected"),
        ({"content": "x", "metadata": [1]}, "metadata: expected a mapping"),
        ({"content": "x", "metadata": {"a": NOW}}, "JSON"),
        ({"content": "x", "metadata": {"a": float("nan")}}, "JSON"),
        ({"content": "x", "metadata": {(1, 2): 3}}, "JSON"),
        ({"content": "x", "memory_type": "working"}, "unknown key 'memory_type'"),
        ("x", "expected a mapping"),
    ],
)
def test_wrong_items_are_named_and_nothing_is_added(memory, item, message):
    with pytest.raises(InputError, match=f"item 1: .*{message}"):
        memory.add_many([{"content": "fine"}, item, {"content": "fine too"}])
    assert memory.all() == []


def test_deep_metadata_is_refused_in_our_words(memory):
    deep = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(InputError, match="metadata"):
        memory.add("x", metadata=deep)
    while deep:  # or its destructor recurses
        deep = deep["a"]


def test_any_text_comes_back(memory):
    for text in ("a\x00b", "\ud800 alone", "line\r\nbreak", "<|endoftext|>", "[Evidence]", "x" * 50_000, "🙂" * 300):
        row = memory.get(memory.add(text, metadata={"text": text, "名": [1, None, {"a": True}]}))
        assert row.content == text.replace("\ud800", "\ufffd")
        assert row.metadata == {"text": text.replace("\ud800", "\ufffd"), "名": [1, None, {"a": True}]}
    assert len(memory.search("break")) == 7


@pytest.mark.parametrize("wrong", ["", " ", None, 5, "\ud800"])
def test_a_user_has_a_name(tmp_path, wrong):
    with pytest.raises(InputError, match="user_id: expected a name"):
        Memory(tmp_path, wrong)


def test_bounds_of_the_constructor(tmp_path):
    for name, wrong in (
        ("working_capacity", 0),
        ("working_capacity", "9"),
        ("working_days", 0),
        ("working_days", float("nan")),
    ):
        with pytest.raises(InputError, match=f"{name}: expected .* got"):
            Memory(tmp_path, "ada", **{name: wrong})


@pytest.mark.parametrize(
    "wrong", ["x", "1.5", "-1", "", "9" * 30, None, True, 1.0, 10**30, "١", "1 ", ["1"], "1; DROP TABLE memories"]
)
def test_unknown_ids_are_refused(memory, wrong):
    memory.add("The tea is green")
    for action in (memory.get, memory.remove, lambda id_: memory.update(id_, content="x")):
        with pytest.raises(InputError, match="memory_id: 'ada' has no memory"):
            action(wrong)
    assert contents(memory) == ["The tea is green"]


# -- one copy ---------------------------------------------------------------------------------------------------------


def test_the_same_fact_three_times_is_one_memory_of_the_highest_importance(memory):
    ids = [
        memory.add("Ada prefers answers in Chinese.", "semantic", 0.4, "2026-01-01", metadata={"a": 1}),
        memory.add("Ada  prefers answers in\nChinese.", "semantic", 0.9, "2026-02-01", metadata={"b": 2}),
        memory.add("Ada prefers answers in Chinese", "semantic", 0.1, "2026-01-05"),
    ]
    ids += memory.add_many([{"content": "Ada prefers answers in Chinese.", "type": "semantic"}] * 3)
    assert set(ids) == {ids[0]}
    (row,) = memory.all()
    assert (row.content, row.importance, row.metadata) == ("Ada prefers answers in Chinese.", 0.9, {"a": 1, "b": 2})
    assert row.timestamp.year == datetime.now(UTC).year


def test_equal_after_nfkc(memory):
    assert memory.add("Ｐａｎｄａｓ ２") == memory.add("Pandas 2")


def test_within_one_call_too(memory):
    ids = memory.add_many(
        [
            {"content": "The user prefers dark mode."},
            {"content": "The user is left-handed"},
            {"content": "The user prefers dark mode", "importance": 0.8},
        ]
    )
    assert ids[0] == ids[2] != ids[1]
    assert [row.importance for row in memory.all()] == [0.8, 0.5]


def test_other_types_and_other_users_keep_their_own_copies(tmp_path, encoder):
    for user in ("ada", "bob"):
        with Memory(tmp_path, user, encoder) as memory:
            for kind in TYPES:
                memory.add("The tea is green", type=kind)
            assert len(memory.all()) == 4


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("Bob owes Carol 50 euros", "Carol owes Bob 50 euros"),
        ("用户的生日是5月3日", "用户的生日是5月4日"),
        ("小明欠小红五十元", "小红欠小明五十元"),
        ("The server's address is 10.0.0.1", "The server's address is 10.0.0.2"),
        (
            "On Monday the user has a dentist appointment at the clinic in Main Street and must bring the card along",
            "On Tuesday the user has a dentist appointment at the clinic in Main Street and must bring the card along",
        ),
    ],
)
def test_near_equal_vectors_do_not_make_one_fact_of_two(memory, encoder, one, two):
    vectors = encoder.encode_documents([one, two])
    assert vectors[0] @ vectors[1] > 0.98
    assert len(set(memory.add_many([{"content": one}, {"content": two}, {"content": two}]))) == 2
    assert contents(memory) == [one, two]


def test_turns_of_a_conversation_merge_only_when_equal(memory):
    turns = [{"content": f"Yes, that is right{end}", "session": "s"} for end in ("", ".", "!", "")]
    ids = memory.add_many(turns)
    assert len(set(ids)) == 3
    assert ids[0] == ids[3]
    assert len(set(memory.add_many([{"content": "Yes, that is right.."}]))) == 1
    assert len(memory.all()) == 4  # what stands outside does not vanish into a conversation


# -- users ------------------------------------------------------------------------------------------------------------


def snapshot(memory):
    return list(memory.export(now=NOW)), [(hit.id, hit.score) for hit in memory.search("tea", 50, now=NOW)]


def test_no_action_of_one_user_reaches_another(tmp_path, encoder):
    items = [
        {"content": f"The tea number {n} is {colour}", "type": kind, "session": session, "importance": 0.9}
        for n, (colour, kind, session) in enumerate(
            [
                ("green", "working", None),
                ("black", "episodic", "s"),
                ("white", "episodic", "s"),
                ("red", "profile", None),
            ]
        )
    ]
    with Memory(tmp_path, "ada", encoder) as ada, Memory(tmp_path, "Ada", encoder) as bob:
        theirs = bob.add_many(items, now=NOW)
        before = snapshot(bob)
        mine = ada.add_many(items, now=NOW)
        assert not set(mine) & set(theirs)
        assert snapshot(bob) == before
        assert {hit.id for hit in ada.search("tea", 50, now=NOW)} == set(mine)
        for id_ in theirs:
            for action in (ada.get, ada.remove, lambda i: ada.update(i, content="mine", importance=0.0)):
                with pytest.raises(InputError, match="has no memory"):
                    action(id_)
        ada.update(mine[1], content="The tea is cold", now=NOW)
        ada.remove(mine[2])
        ada.consolidate("working", "episodic", 0.0, now=NOW)
        ada.forget("importance_based", 1.0, now=NOW)
        ada.import_lines(before[0], now=NOW)
        ada.forget("capacity_based", 1, now=NOW)
        ada.forget("time_based", max_age_days=0, now=NOW + DAY)
        assert ada.clear_all() == 0
        assert ada.all() == []
        assert ada.stats()["memories"] == 0
        assert ada.search("tea") == []
        assert snapshot(bob) == before
        # his vectors, which she had shared, are still his
        assert bob.search("tea", now=NOW)[0].score > 0


text = st.sampled_from(["tea", "tea.", "Tea", "milk", "茶", "two teas", "good morning"])
step = st.tuples(
    st.sampled_from(["add", "turn", "remove", "update", "forget", "consolidate", "clear"]),
    st.sampled_from(["ada", "bob"]),
    text,
    st.sampled_from([0.1, 0.5, 0.9]),
    st.integers(0, 30),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(step, max_size=25))
def test_two_users_and_a_model_of_each(tmp_path_factory, steps):
    """Whatever is done in whatever order: each user has what a dict says, and no vector stays without a memory."""
    folder = tmp_path_factory.mktemp("users")
    fast = FastEncoder()
    users = {name: Memory(folder, name, fast) for name in ("ada", "bob")}
    models = {name: {} for name in users}
    for action, name, said, importance, number in steps:
        memory, model = users[name], models[name]
        ids = sorted(model)
        some = ids[number % len(ids)] if ids else None
        if action in ("add", "turn"):
            session = "s" if action == "turn" else None
            id_ = memory.add(said, "episodic", importance, session=session, now=NOW)
            same = [key for key, value in model.items() if value[:2] == (said, "episodic")]
            if same:
                assert id_ == str(min(same))
                old = model[int(id_)]
                model[int(id_)] = (*old[:2], max(old[2], importance))
            else:
                assert int(id_) not in model
                assert int(id_) not in models["bob" if name == "ada" else "ada"]
                model[int(id_)] = (said, "episodic", importance)
        elif action == "remove" and some:
            memory.remove(some)
            del model[some]
        elif action == "update" and some:
            memory.update(some, importance=importance, now=NOW)
            model[some] = (*model[some][:2], importance)
        elif action == "forget":
            count = memory.forget(threshold=importance, now=NOW)
            gone = [key for key, value in model.items() if value[2] < importance]
            assert count == len(gone)
            for key in gone:
                del model[key]
        elif action == "consolidate":
            count = memory.consolidate("episodic", "semantic", importance, now=NOW)
            moving = [key for key in ids if model[key][1] == "episodic" and model[key][2] >= importance]
            assert count == len(moving)
            for key in moving:
                same = [k for k, v in model.items() if v[:2] == (model[key][0], "semantic")]
                if same:
                    kept = min(same)
                    model[kept] = (*model[kept][:2], max(model[kept][2], model[key][2]))
                    del model[key]
                else:
                    model[key] = (model[key][0], "semantic", model[key][2])
        elif action == "clear":
            assert memory.clear_all() == len(model)
            model.clear()
    for name, memory in users.items():
        assert {row.id: (row.content, row.type, row.importance) for row in memory.all(now=NOW)} == models[name]
        assert {int(hit.id) for hit in memory.search("tea", 100, now=NOW)} == set(models[name])
    with opened(users["ada"]).read() as conn:
        unused = (
            "SELECT count(*) FROM encodings e WHERE NOT EXISTS (SELECT 1 FROM memories WHERE e.id IN (alone, around))"
        )
        assert conn.execute(unused).fetchone()[0] == 0
    assert users["ada"].verify() == []
    for memory in users.values():
        memory.close()


# -- time -------------------------------------------------------------------------------------------------------------

TIMES = {
    "naive": datetime(2025, 6, 1, 8, 30),
    "aware": datetime(2025, 6, 1, 8, 30, tzinfo=timezone(timedelta(hours=8))),
    "text": "2025-06-01T08:30:00Z",
    "date": "2025-06-01",
    "seconds": 1_750_000_000,
    "future": NOW + 5_000 * DAY,
    "missing": None,
    "1970": datetime(1970, 1, 1, tzinfo=UTC),
    "before 1970": datetime(1905, 1, 1, tzinfo=UTC),
    "zero": 0,
    "first year": datetime(1, 1, 1),
    "last year": datetime(9999, 12, 31, 23, 59, 59, 999999),
    "last year, aware": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12))),
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("session", [None, "s"])
def test_any_time_works_everywhere(tmp_path, kind, session):
    with Memory(tmp_path, "ada", FastEncoder()) as memory:
        ids = [
            memory.add(f"Said at a time that is {name}", kind, timestamp=stamp, session=session, now=NOW)
            for name, stamp in TIMES.items()
        ]
        assert len(set(ids)) == len(TIMES)
        assert {hit.id for hit in memory.search("time", 50, now=NOW)} == set(ids)
        assert memory.get(ids[6], now=NOW).timestamp == NOW
        assert all(row.timestamp.utcoffset() == timedelta() for row in memory.all(now=NOW))
        lines = list(memory.export(now=NOW))
        memory.stats()
        memory.summary()
        memory.update(ids[0], timestamp=TIMES["last year"], now=NOW)
        memory.search("time", since=TIMES["first year"], until=TIMES["last year"], now=TIMES["last year"])
        memory.search("time", since="0001-01-01", now=TIMES["first year"])
        assert memory.forget("time_based", max_age_days=1e308, now=NOW) == 0
        memory.forget("time_based", max_age_days=0, now=TIMES["first year"])
        memory.clear_all()
        assert memory.import_lines(lines, now=NOW) == len(ids)
        assert list(memory.export(now=NOW))[6] == lines[6].replace(f'"id": "{ids[6]}"', f'"id": "{int(ids[6]) + 13}"')


def test_working_memories_live_seven_days_from_when_they_were_added(memory):
    id_ = memory.add("Buy milk", "working", timestamp="1970-01-01", now=NOW)
    memory.add("Buy bread", "episodic", timestamp="1970-01-01", now=NOW)
    assert len(memory.search("shopping", now=NOW + 6.9 * DAY)) == 2
    assert len(memory.search("shopping", now=NOW + 7.1 * DAY)) == 1
    assert contents(memory, now=NOW + 7.1 * DAY) == ["Buy bread"]
    assert memory.stats(now=NOW + 7.1 * DAY)["memories"] == 1
    with pytest.raises(InputError, match="no memory"):
        memory.get(id_, now=NOW + 7.1 * DAY)
    assert memory.get(id_, now=NOW + 6 * DAY).content == "Buy milk"
    # said again, it begins again
    assert memory.add("Buy milk", "working", now=NOW + 6 * DAY) == id_
    assert len(memory.search("shopping", now=NOW + 12 * DAY)) == 2
    # any change after its time takes it away for good
    assert memory.add("Buy milk", "working", now=NOW + 14 * DAY) != id_
    assert len(memory.search("shopping", now=NOW)) == 2


def test_what_becomes_working_lives_from_then(memory):
    id_ = memory.add("Buy milk", "episodic", now=NOW)
    memory.update(id_, type="working", now=NOW + 100 * DAY)
    assert memory.get(id_, now=NOW + 106 * DAY).type == "working"
    memory.consolidate(importance_threshold=0.5, now=NOW + 106 * DAY)
    assert memory.get(id_, now=NOW + 1000 * DAY).type == "episodic"
    memory.consolidate("episodic", "working", 0.5, now=NOW + 200 * DAY)
    assert memory.get(id_, now=NOW + 206 * DAY).type == "working"


def test_working_memories_over_capacity_go_the_least_important_first_never_the_newest(tmp_path):
    with Memory(tmp_path, "ada", FastEncoder(), working_capacity=3) as memory:
        memory.add("episodic ones do not count", "episodic", 0.0, now=NOW)
        for n, importance in enumerate([0.5, 0.9, 0.5]):
            memory.add(f"note {n}", "working", importance, now=NOW + n * timedelta(hours=1))
        memory.add("note 3", "working", 0.1, now=NOW + DAY)
        assert contents(memory, type="working", now=NOW + DAY) == ["note 1", "note 2", "note 3"]
        memory.add("note 4", "working", 0.2, now=NOW + DAY)
        assert contents(memory, type="working", now=NOW + DAY) == ["note 1", "note 2", "note 4"]
        memory.add_many(
            [{"content": f"many {n}", "type": "working", "importance": n / 10} for n in range(6)], now=NOW + DAY
        )
        assert contents(memory, type="working", now=NOW + DAY) == ["many 3", "many 4", "many 5"]
        assert len(memory.all(now=NOW + DAY)) == 4


# -- changing and forgetting ------------------------------------------------------------------------------------------


def test_update_changes_what_is_given_and_nothing_else(memory):
    id_ = memory.add("The tea is green", "semantic", 0.5, "2026-01-01T00:00:00Z", metadata={"a": 1})
    other = memory.add("The sky is blue")
    before = memory.get(id_)
    row = memory.update(id_, importance=0.0)
    assert (row.importance, row.content, row.timestamp, row.metadata) == (
        0.0,
        before.content,
        before.timestamp,
        {"a": 1},
    )
    row = memory.update(
        id_, content="The coffee is black", metadata={}, timestamp="2026-02-01T00:00:00Z", type="profile"
    )
    assert (row.content, row.metadata, row.type, row.timestamp.month) == ("The coffee is black", {}, "profile", 2)
    assert memory.search("Which drink is black?")[0].id == id_
    with pytest.raises(InputError, match="nothing to change"):
        memory.update(id_)
    with pytest.raises(InputError, match="importance"):
        memory.update(id_, importance=7)
    with pytest.raises(InputError, match="content"):
        memory.update(id_, content=" ")
    assert memory.get(id_) == row
    # an update is of one memory
    memory.update(other, content="The coffee is black")
    assert len(memory.all()) == 2


def test_forget_by_importance_age_and_number(tmp_path):
    def filled(path):
        memory = Memory(path, "ada", FastEncoder())
        for n in range(10):
            memory.add(f"note {n}", importance=n / 10, timestamp=NOW - n * 20 * DAY, now=NOW)
        return memory

    with filled(tmp_path / "a") as memory:
        assert memory.forget(now=NOW) == 2
        assert memory.forget(now=NOW) == 0
        assert memory.forget("importance_based", 0.5, now=NOW) == 3
        assert contents(memory, now=NOW)[0] == "note 5"
    with filled(tmp_path / "b") as memory:
        assert memory.forget("time_based", now=NOW) == 5
        assert memory.forget("time_based", max_age_days=20, now=NOW) == 3
        assert contents(memory, now=NOW) == ["note 0", "note 1"]
    with filled(tmp_path / "c") as memory:
        memory.add("as important, and newer", importance=0.8, timestamp=NOW, now=NOW)
        assert memory.forget("capacity_based", 2, now=NOW) == 9
        assert contents(memory, now=NOW) == ["note 9", "as important, and newer"]
        assert memory.forget("capacity_based", 0.0, now=NOW) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"strategy": "random"}, {"strategy": None}, {"threshold": 2}, {"threshold": "0.2"}, {"threshold": float("nan")},
        {"strategy": "capacity_based"}, {"strategy": "capacity_based", "threshold": -1},
        {"strategy": "capacity_based", "threshold": float("inf")}, {"strategy": "capacity_based", "threshold": "5"},
        {"strategy": "capacity_based", "threshold": float("nan")}, {"strategy": "capacity_based", "threshold": True},
        {"strategy": "time_based", "max_age_days": -1}, {"strategy": "time_based", "max_age_days": "90"},
        {"strategy": "time_based", "max_age_days": float("nan")},
    ],
)  # fmt: skip
def test_forget_checks_what_it_is_told(memory, wrong):
    with pytest.raises(InputError, match=r"expected"):
        memory.forget(**wrong)


def test_consolidate_moves_what_is_important_and_merges_what_is_there(memory):
    memory.add("The user prefers dark mode", "working", 0.9, metadata={"a": 1})
    memory.add("The user had soup for lunch", "working", 0.3)
    memory.add("The user prefers dark mode.", "episodic", 0.5, metadata={"b": 2})
    assert memory.consolidate() == 1
    assert [(row.content, row.type, row.importance, row.metadata) for row in memory.all()] == [
        ("The user had soup for lunch", "working", 0.3, {}),
        ("The user prefers dark mode.", "episodic", 0.9, {"b": 2, "a": 1}),
    ]
    assert memory.consolidate("episodic", "semantic") == 1
    assert memory.consolidate("episodic", "semantic") == 0
    for wrong in (("working", "working"), ("working", "eternal"), ("x", "semantic")):
        with pytest.raises(InputError):
            memory.consolidate(*wrong)


SECRET = "xylophonist-77"


def test_what_is_removed_leaves_no_trace(tmp_path, encoder):
    """Not in the text, not in the file or its log, not in a vector of its own, and not in its neighbours' vectors."""
    counting = CountingEncoder(encoder)
    folder, clean = tmp_path / "a", tmp_path / "b"
    turns = [{"content": f"Turn {n} of a talk about gardens", "session": "s", "timestamp": NOW} for n in range(9)]
    secret = {"content": f"The neighbour is the {SECRET}", "session": "s", "timestamp": NOW, "metadata": {"k": SECRET}}
    with Memory(clean, "ada", encoder) as memory:
        memory.add_many(turns, now=NOW)
        expected = [(hit.content, hit.score, hit.cosine) for hit in memory.search("gardens", now=NOW)]
    ways = {
        "remove": lambda memory, ids: [memory.remove(id_) for id_ in ids],
        "update": lambda memory, ids: [memory.update(i, content="x", metadata={"k": 1}) for i in ids] and
                                      [memory.remove(i) for i in ids],
        "forget": lambda memory, ids: [memory.update(i, importance=0.0) for i in ids] and memory.forget(threshold=0.1),
    }  # fmt: skip
    for name, way in ways.items():
        with Memory(folder / name, "ada", counting) as memory:
            ids = memory.add_many([*turns[:4], secret, *turns[4:]], now=NOW)
            alone = [memory.add(f"He, the {SECRET}, plays well", "profile", now=NOW)]
            vector = memory.search(SECRET, now=NOW)[0].vector.tobytes()
            assert traces(folder / name, SECRET)
            counting.encoded.clear()
            way(memory, [ids[4], *alone])
            assert traces(folder / name, SECRET) == []
            assert traces(folder / name, vector) == []
            assert not any(SECRET in text for text in counting.encoded)
            assert [(hit.content, hit.score, hit.cosine) for hit in memory.search("gardens", now=NOW)] == expected
            with opened(memory).read() as conn:
                assert conn.execute("SELECT count(*) FROM encodings").fetchone()[0] == 18
            assert memory.verify() == []
    with Memory(folder / "clear", SECRET, encoder) as memory, Memory(folder / "clear", "bob", encoder) as bob:
        memory.add_many([secret, *turns], now=NOW)
        bob.add("Bob likes gardens")
        memory.clear_all()
        assert traces(folder / "clear", SECRET) == []
        assert contents(bob) == ["Bob likes gardens"]
        with opened(bob).read() as conn:
            assert conn.execute("SELECT count(*) FROM encodings").fetchone()[0] == 1


def test_vectors_that_a_killed_process_left_go_with_the_next_removal(tmp_path):
    fast = FastEncoder()
    with Memory(tmp_path, "ada", fast) as memory:
        id_ = memory.add("The tea is green")
        with opened(memory).write() as conn:
            conn.execute(
                "INSERT INTO encodings (model_id, hash, vector, checksum, created) "
                "SELECT model_id, x'00', vector, checksum, 0 FROM encodings"
            )
            conn.execute(
                "INSERT INTO encodings (model_id, hash, vector, checksum, created) "
                "SELECT model_id, x'01', vector, checksum, created FROM encodings WHERE created > 0"
            )
        memory.remove(id_)
        with opened(memory).read() as conn:  # the one of this hour may be another process's next memory
            assert [row[0] for row in conn.execute("SELECT hash FROM encodings")] == [b"\x01"]


# -- files ------------------------------------------------------------------------------------------------------------


def test_export_and_import(tmp_path):
    with Memory(tmp_path / "a", "ada", FastEncoder()) as memory:
        memory.add_many(
            [
                {"content": "x\ny", "type": "profile", "importance": 0.3, "metadata": {"type": "t", "id": 5}},
                {"content": "你好", "session": "s", "speaker": "Ada", "timestamp": "2020-01-01"},
                {"content": "w", "type": "working"},
            ]
        )
        lines = list(memory.export())
    with Memory(tmp_path / "b", "bob", FastEncoder()) as other:
        assert other.import_lines([*lines, "", "\n"]) == 3
        assert [json.loads(line) | {"id": 0} for line in other.export()] == [
            json.loads(line) | {"id": 0} for line in lines
        ]
        for bad, message in (
            ("{", "line 2: not JSON"),
            ("[1]", "line 2: expected a JSON object"),
            ('{"text": "x"}', "item 1: memory: unknown key 'text'"),
            ("[" * 100_000, "line 2: not JSON"),
        ):
            with pytest.raises(InputError, match=message):
                other.import_lines([lines[0], bad])
        assert len(other.all()) == 3


def test_the_sample_memories_can_be_imported(tmp_path):
    for path in (Path(__file__).parents[1] / "data" / "memories").iterdir():
        with Memory(tmp_path, path.stem, FastEncoder()) as memory:
            assert memory.import_lines(path.read_text(encoding="utf-8").splitlines()) == 2


def test_stats_and_summary(memory):
    assert memory.stats()["memories"] == 0
    assert memory.stats()["first"] is None
    assert memory.summary() == "0 memories (0 working, 0 episodic, 0 semantic, 0 profile)"
    memory.add("The tea\nis green", "profile", 0.75, "2026-01-01T00:00:00Z")
    memory.add("Hello", session="s", importance=0.25, timestamp="2026-02-01T00:00:00Z")
    assert memory.stats() == {
        "user_id": "ada", "memories": 2, "by_type": {"working": 0, "episodic": 1, "semantic": 0, "profile": 1},
        "sessions": 1, "mean_importance": 0.5,
        "first": "2026-01-01T00:00:00+00:00", "last": "2026-02-01T00:00:00+00:00",
    }  # fmt: skip
    assert memory.summary().splitlines()[1] == "- [profile, 0.75] The tea is green"
    assert len(memory.summary(1).splitlines()) == 2
    with pytest.raises(InputError, match="limit"):
        memory.summary(0)


def test_a_knowledge_base_is_no_memory(tmp_path):
    (tmp_path / "memory.sqlite3").write_text("no database at all, but a text of some length" * 100)
    with pytest.raises(StoreError, match="not a ctx_vector store"):
        Memory(tmp_path, "ada")


# -- another encoder --------------------------------------------------------------------------------------------------


def test_searches_go_on_while_the_file_is_rewritten_after_another_encoder_took_over(tmp_path, encoder, monkeypatch):
    other = OtherEncoder(encoder)
    keep_some_map(other)
    memory = Memory(tmp_path, "ada", encoder)
    memory.add("Ada likes tea")
    scrub, found = memory._store.scrub, []

    def rewrite():  # of a large file, it takes seconds
        found.extend(hit.content for hit in memory.search("tea"))
        return scrub()

    monkeypatch.setattr(memory._store, "scrub", rewrite)
    memory.reencode(other)
    assert found == ["Ada likes tea"]


def test_another_encoder_is_refused_with_a_way_out_and_can_take_over(tmp_path, encoder):
    turns = [{"content": f"Turn {n} about tea", "session": "s", "timestamp": NOW} for n in range(5)]
    other = OtherEncoder(encoder)
    keep_some_map(other)
    other.encoded.clear()
    ada, bob = Memory(tmp_path, "ada", encoder), Memory(tmp_path, "bob", encoder)
    ada.add_many([*turns, {"content": "Ada likes tea"}], now=NOW)
    bob.add("Bob likes coffee", now=NOW)
    ada.search("tea")
    new = Memory(tmp_path, "ada", other)
    way_out = r"load_encoder\('multilingual-e5-small'\), or convert it with Memory.reencode"
    for action in (
        lambda: new.search("tea"),
        lambda: new.add("x"),
        lambda: new.add("x", session="s"),
        lambda: new.remove(1),
        lambda: new.consolidate(),
    ):
        with pytest.raises(ModelMismatchError, match=way_out):
            action()
    assert len(new.all()) == 6
    # interrupted in the middle, the old one still works, and the new one goes on where it was
    texts = []

    def stop(batch):
        texts.extend(batch)
        raise KeyboardInterrupt

    from ctx_vector import memory_upkeep

    page, memory_upkeep.PAGE = memory_upkeep.PAGE, 1
    try:
        other.before = lambda batch: None if not other.encoded else stop(batch)
        with pytest.raises(KeyboardInterrupt):
            new.reencode(other)
    finally:
        memory_upkeep.PAGE = page
    assert ada.search("Who likes tea?", now=NOW)[0].content == "Ada likes tea"
    with pytest.raises(ModelMismatchError):
        new.search("tea")
    ada.add("One more while it is halfway", now=NOW)
    ada.remove(ada.add("Removed while it is halfway", now=NOW))
    other.before = None
    assert new.reencode() == 5 * 2 + 1 + 1 + 1 - 1  # all texts of both users, but the one encoded before
    assert len(set(other.encoded)) == len(other.encoded) == 13
    assert new.reencode() == 0
    assert {hit.content for hit in new.search("Who likes tea?", now=NOW)} >= {"Ada likes tea", "Turn 0 about tea"}
    with pytest.raises(ModelMismatchError, match=r"load_encoder\('other-model'\)"):
        ada.search("tea")  # an object that was open all the time
    with pytest.raises(ModelMismatchError, match="other-model"):
        bob.add("x")
    fresh = Memory(tmp_path / "fresh", "ada", other)
    fresh.add_many([*turns, {"content": "Ada likes tea"}, {"content": "One more while it is halfway"}], now=NOW)
    assert [(hit.content, hit.score) for hit in new.search("tea", now=NOW)] == [
        (hit.content, hit.score) for hit in fresh.search("tea", now=NOW)
    ]
    with opened(new).read() as conn:
        assert conn.execute("SELECT count(*) FROM models").fetchone()[0] == 1
        assert conn.execute("SELECT count(*) FROM encodings").fetchone()[0] == 13
    assert new.verify() == []
    for memory in (ada, bob, new, fresh):
        memory.close()


# -- threads and processes --------------------------------------------------------------------------------------------


def test_threads_share_one_object(tmp_path):
    """Adding, searching and removing at once: no error, nothing lost, nothing found that is not there."""
    memory = Memory(tmp_path, "ada", FastEncoder())
    errors, added = [], [[] for _ in range(4)]

    def work(number):
        try:
            for n in range(25):
                session = "s" if n % 2 else None
                added[number].append(memory.add(f"note {n} of {number}", session=session))
                hits = memory.search(f"note {n} of {number}", 200)
                assert added[number][-1] in {hit.id for hit in hits}
                if n % 10 == 9:
                    memory.remove(added[number].pop(0))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors
    assert {str(row.id) for row in memory.all()} == {id_ for ids in added for id_ in ids}
    assert memory.verify() == []
    memory.close()


DAYS = """
    import sys
    from datetime import datetime, UTC
    from ctx_vector import ContextBuilder, MemoryTool, load_encoder
    tool = MemoryTool("ada", sys.argv[1], load_encoder())
    day = int(sys.argv[2])
    for place, text in enumerate(TALKS[day - 1]):
        tool.run({"action": "add", "content": text, "memory_type": "episodic", "session": f"day {day}",
                  "speaker": ("Ada", "Assistant")[place % 2], "timestamp": f"2026-03-0{day}T09:00:00"})
    if day == 3:
        builder = ContextBuilder(memory_tool=tool)
        print(builder.build("When does my sister Ingrid marry, and where?", now="2026-03-03T10:00:00"))
        print("=====")
        print(tool.run({"action": "stats"})["memories"])
"""
TALKS = [
    [
        "Good morning! I have to plan a lot this month.", "Good morning, Ada. What comes first?",
        "My sister Ingrid marries on the 20th of June in Bergen.", "Congratulations! Do you need a flight?",
        "Yes, and a dress. Blue, I think.", "Blue it is. I will remind you in May.",
        "Also my tax return is due.", "When is the deadline?", "At the end of April.", "Noted.",
    ],
    [
        "Can you explain list comprehensions?", "They build a list from a loop in one expression.",
        "And generators?", "They give one item at a time, so nothing is held in memory.",
        "Which is faster?", "For small data it hardly matters.", "My script reads a CSV of two gigabytes.",
        "Then read it in chunks.", "Good idea.", "Shall I show the code?",
    ],
    [
        "What is the weather like?", "I cannot see the weather.", "Right. Tell me a recipe for lentil soup.",
        "Fry onions, add lentils, stock and lemon.", "How long does it cook?", "About twenty-five minutes.",
        "With red lentils?", "With red ones fifteen.", "Thanks.", "Enjoy your meal.",
    ],
]  # fmt: skip


def test_what_was_said_in_the_first_process_is_recalled_in_the_third(tmp_path):
    program = textwrap.dedent(DAYS).replace("TALKS", repr(TALKS), 1)
    for day in (1, 2, 3):
        command = [sys.executable, "-W", "error", "-c", program, str(tmp_path), str(day)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    context, count = done.stdout.split("=====")
    assert "Memory: My sister Ingrid marries on the 20th of June in Bergen." in context
    assert int(count) == 30


# -- relevance --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "said"), [("en", "en"), ("zh", "zh"), ("zh", "en")])
def test_scores_tell_matched_from_unmatched(tmp_path, encoder, asked, said):
    lines = (Path(__file__).parent / "data" / "memories.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line) for line in lines]
    with Memory(tmp_path, "ada", encoder) as memory:
        ids = memory.add_many([{"content": row[said], "type": "semantic"} for row in texts])
        assert len(set(ids)) == 100
        matched, unmatched = [], []
        for row, own in zip(texts, ids, strict=True):
            for hit in memory.search(row[f"q_{asked}"], 100):
                (matched if hit.id == own else unmatched).append(hit.score)
    assert len(matched) == 100
    assert len(unmatched) == 9900
    assert np.mean(np.array(matched) >= 0.1) >= 0.88
    assert np.mean(np.array(unmatched) < 0.1) >= 0.88
