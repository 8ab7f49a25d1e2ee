"""Conversations word for word: order, equal messages, sessions apart, no trace after deletion."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from knowledge_help import traces

from ctx_vector.errors import InputError, StoreError
from ctx_vector.memory import FILE_NAME as MEMORY_FILE
from ctx_vector.transcripts import FILE_NAME, Transcripts

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.lists(st.dictionaries(st.sampled_from(["role", "content", "内容"]), JSON, max_size=3), max_size=5)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "会话", "a "]), MESSAGES), max_size=6))
def test_what_is_read_is_what_was_added(tmp_path_factory: pytest.TempPathFactory, added):
    expected: dict[str, list] = {}
    with Transcripts(tmp_path_factory.mktemp("t")) as kept:
        for session, messages in added:
            kept.append(session, messages)
            expected.setdefault(session, []).extend(messages)
        for session, messages in expected.items():
            assert kept.read(session) == messages
        assert set(kept.sessions()) == {session for session, messages in expected.items() if messages}


def test_sessions_are_kept_apart_and_deleted_without_a_trace(tmp_path: Path):
    with Transcripts(tmp_path) as kept:
        kept.append("s1", [{"content": "the secret word is xyzzy"}] * 2)
        kept.append("s2", [{"content": "Hello"}])
        assert kept.sessions() == ["s2", "s1"]
        assert kept.delete("s1") == 2 and kept.delete("s1") == 0
        assert kept.read("s1") == [] and kept.read("s2") == [{"content": "Hello"}]
        assert traces(tmp_path, "xyzzy") == []
    with Transcripts(tmp_path) as again:
        assert again.sessions() == ["s2"]


def test_several_threads_lose_nothing(tmp_path: Path):
    with Transcripts(tmp_path) as kept:

        def talk(n: int) -> None:
            for turn in range(10):
                kept.append("s", [{"n": n, "turn": turn, "half": 1}, {"n": n, "turn": turn, "half": 2}])

        threads = [threading.Thread(target=talk, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        said = kept.read("s")
    assert len(said) == 80
    assert all(
        one["n"] == two["n"] and one["turn"] == two["turn"] for one, two in zip(said[::2], said[1::2], strict=True)
    )
    for n in range(4):
        assert [item["turn"] for item in said if item["n"] == n] == [turn for turn in range(10) for _ in range(2)]


def test_wrong_input(tmp_path: Path):
    with Transcripts(tmp_path) as kept:
        for session in ("", "  ", None, 5):
            with pytest.raises(InputError, match="session: expected a name"):
                kept.read(session)
        for message in ({"x": object()}, {"x": float("nan")}):
            with pytest.raises(InputError, match="JSON"):
                kept.append("s", [{"content": "first"}, message])
        assert kept.read("s") == []  # all or none
    (tmp_path / FILE_NAME).rename(tmp_path / MEMORY_FILE)
    from ctx_vector.memory import Memory

    with pytest.raises(StoreError, match="holds a transcripts, not a memory"):
        Memory(tmp_path)
