"""What an edit encodes and writes: no more than needed, all or nothing."""

import json
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_help import opened

from ctx_vector import memory_edit
from ctx_vector.dialogue import alone_text, around_text
from ctx_vector.encoding_cache import text_hash
from ctx_vector.errors import InputError, StoreError
from ctx_vector.memory import Memory
from ctx_vector.memory_same import say_the_same
from tests.knowledge_help import CountingEncoder
from tests.test_memory import NOW, FastEncoder


@pytest.fixture
def fast():
    return FastEncoder()


@pytest.fixture
def memory(tmp_path, fast):
    with Memory(tmp_path, "ada", fast) as made:
        yield made


def turn(n, session="s"):
    return {"content": f"turn {n}", "session": session, "timestamp": NOW}


def check(memory):
    """Every memory has the vectors of exactly its two texts, and no other vector is there."""
    rows = memory.all(now=NOW)
    with opened(memory).read() as conn:
        hashes = dict(conn.execute("SELECT id, hash FROM encodings").fetchall())
        wanted = set()
        for row in rows:
            session = [other for other in rows if other.session == row.session] if row.session is not None else [row]
            alone = alone_text(row)
            around = around_text(session, session.index(row)) or alone
            assert hashes[row.alone] == text_hash(alone)
            assert hashes[row.around] == text_hash(around)
            wanted |= {row.alone, row.around}
        assert set(hashes) == wanted
    assert memory.verify() == []


def test_adding_a_turn_encodes_itself_twice_and_at_most_two_before(memory, fast):
    counts = []
    for n in range(6):
        fast.documents.clear()
        memory.add(**turn(n), now=NOW)
        counts.append(len(fast.documents))
        assert all(f"turn {n}" in text for text in fast.documents)
        check(memory)
    assert counts == [1, 2, 2, 3, 4, 4]  # the first ones share the text around them
    fast.documents.clear()
    memory.add("a fact", now=NOW)
    memory.add(**turn(0, "another"), now=NOW)
    assert fast.documents == ["a fact"]  # the turn's text and date are known already, and it is equal to that turn
    fast.documents.clear()
    memory.add_many([turn(n, "new") for n in range(10, 20)], now=NOW)
    assert len(fast.documents) == 20
    check(memory)


def test_removing_a_turn_encodes_its_neighbours_anew(memory, fast):
    ids = memory.add_many([turn(n) for n in range(9)], now=NOW)
    fast.documents.clear()
    memory.remove(ids[4])
    assert len(fast.documents) == 4
    assert not any("turn 4" in text for text in fast.documents)
    check(memory)
    fast.documents.clear()
    memory.update(ids[0], importance=0.9, metadata={"a": 1}, now=NOW)
    assert fast.documents == []
    memory.update(ids[0], content="turn zero", now=NOW)
    assert len(fast.documents) == 4  # alone, around, and the two after it
    check(memory)
    fast.documents.clear()
    memory.update(ids[8], timestamp="2020-01-01", now=NOW)
    assert len(fast.documents) == 1  # neighbours do not say the date
    check(memory)
    memory.forget("capacity_based", 1, now=NOW)
    check(memory)
    fast.documents.clear()
    memory.clear_all()
    assert fast.documents == []
    check(memory)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_vectors_follow_whatever_happens(tmp_path_factory, data):
    with Memory(tmp_path_factory.mktemp("edits"), "ada", FastEncoder()) as memory:
        for _ in range(data.draw(st.integers(1, 8))):
            ids = [row.id for row in memory.all(now=NOW)]
            action = data.draw(st.sampled_from(["add", "add", "remove", "update", "forget", "consolidate", "import"]))
            if action == "add":
                items = data.draw(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["s", "t", None])), max_size=5))
                memory.add_many([turn(*item) for item in items], now=NOW)
            elif action == "remove" and ids:
                memory.remove(data.draw(st.sampled_from(ids)))
            elif action == "update" and ids:
                id_ = data.draw(st.sampled_from(ids))
                memory.update(id_, content=f"turn {data.draw(st.integers(0, 20))}", importance=0.1, now=NOW)
            elif action == "forget":
                memory.forget(threshold=0.2, now=NOW)
            elif action == "consolidate":
                memory.consolidate("episodic", "semantic", 0.5, now=NOW)
            elif action == "import":
                memory.import_lines(list(memory.export(now=NOW)), now=NOW)
            check(memory)


def test_what_cannot_be_encoded_is_not_there_at_all(memory, fast):
    memory.add_many([turn(0), turn(1)], now=NOW)
    before = list(memory.export(now=NOW))

    def broken(texts):
        raise RuntimeError("out of order")

    fast.encode_documents, works = broken, fast.encode_documents
    for action in (
        lambda: memory.add_many([turn(2), turn(3)]),
        lambda: memory.update(1, content="new"),
        lambda: memory.add("fact"),
    ):
        with pytest.raises(RuntimeError, match="out of order"):
            action()
    fast.encode_documents = works
    assert list(memory.export(now=NOW)) == before
    check(memory)
    with pytest.raises(InputError):
        memory.add_many([turn(2), {"content": ""}])
    assert list(memory.export(now=NOW)) == before


def test_another_process_may_change_things_while_this_one_encodes(tmp_path, fast):
    """Between the encoding and the writing of a turn another one is added, and one is removed: vectors still follow."""
    other = Memory(tmp_path, "ada", FastEncoder())
    ids = other.add_many([turn(n) for n in range(3)], now=NOW)
    moves = [
        lambda: other.add("between", session="s", timestamp=NOW, now=NOW),
        lambda: other.remove(ids[1]),
        lambda: other.add("turn 9", session="s", timestamp=NOW, now=NOW),
    ]
    slow = CountingEncoder(fast, before=lambda texts: moves and moves.pop(0)())
    with Memory(tmp_path, "ada", slow) as memory:
        assert memory.search("turn") is not None
        id_ = memory.add("turn 9", session="s", timestamp=NOW, now=NOW)
        assert moves == []
        assert [row.content for row in memory.all(now=NOW)] == ["turn 0", "turn 2", "between", "turn 9"]
        assert memory.all(now=NOW)[-1].id == int(id_)  # added by the other one first
        check(memory)
    other.close()


def test_who_never_gets_a_turn_says_so(tmp_path, fast, monkeypatch):
    monkeypatch.setattr(memory_edit, "_TRIES", 2)
    other = Memory(tmp_path, "ada", FastEncoder())
    numbers = iter(range(100))
    slow = CountingEncoder(fast, before=lambda texts: other.add(f"n {next(numbers)}", session="s", now=NOW))
    with Memory(tmp_path, "ada", slow) as memory, pytest.raises(StoreError, match="try again"):
        memory.add("mine", session="s", now=NOW)
    other.close()


def test_a_search_does_not_wait_for_an_encoding_add(tmp_path, fast):
    started, go_on = threading.Event(), threading.Event()

    def before(texts):
        started.set()
        assert go_on.wait(20)

    Memory(tmp_path, "ada", fast).add("The tea is green", now=NOW)
    memory = Memory(tmp_path, "ada", CountingEncoder(fast, before=before))
    adding = threading.Thread(target=memory.add, args=("slow",))
    adding.start()
    assert started.wait(20)
    assert len(memory.search("tea")) == 1
    go_on.set()
    adding.join(20)
    assert len(memory.search("tea")) == 2
    memory.close()


# -- what is the same -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ("The user prefers dark mode.", "the  user prefers “dark mode”", True),
        ("The user prefers dark mode in every application", "User prefers dark mode in all applications", True),
        ("用户住在北京市朝阳区", "用户住在北京朝阳区", True),
        ("Ada lives in Paris", "ada lives in paris!", True),
        ("I have 2 cats", "I have 3 cats", False),
        ("It costs 1.5 euros", "It costs 15 euros", False),
        ("She is married", "She is not married", False),
        ("She can come", "She can't come", False),
        ("用户喜欢咖啡", "用户不喜欢咖啡", False),
        ("生日是五月三日", "生日是五月四日", False),
        ("My sister Anna came", "My sister Hanna came", False),
        ("The train leaves on Monday", "The train leaves on Tuesday", False),
        ("Bob owes Carol money", "Carol owes Bob money", False),
        ("小明打了小红", "小红打了小明", False),
        ("turn the light on", "turn the light off", False),
    ],
)
def test_say_the_same(one, two, same):
    assert say_the_same(one, two) is same
    assert say_the_same(two, one) is same
    assert say_the_same(one, one)


@given(st.text(max_size=60), st.text(max_size=60))
def test_say_the_same_is_symmetric_and_never_fails(one, two):
    assert say_the_same(one, two) == say_the_same(two, one)
    assert say_the_same(one, one)


def test_merging_keeps_one_and_the_best_of_all(memory):
    """Whatever equal items come in whatever order: one is left, with the highest importance and all metadata."""
    rng = np.random.default_rng(1)
    for number in range(20):
        importances = rng.random(4).round(3).tolist()
        for place, importance in enumerate(importances):
            memory.add(f"fact {number}", "semantic", importance, metadata={f"k{place}": place}, now=NOW)
        row = memory.all(now=NOW)[-1]
        assert len(memory.all(now=NOW)) == number + 1
        assert row.importance == max(importances)
        assert row.metadata == {f"k{place}": place for place in range(4)}
    assert len(json.dumps([row.to_dict() for row in memory.all(now=NOW)])) > 0
    check(memory)
