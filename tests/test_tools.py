"""The contract of the two tools, what a builder makes of their answers, and the worked example."""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ctx_vector.builder import ContextBuilder
from ctx_vector.config import ContextConfig
from ctx_vector.errors import InputError, LoaderError
from ctx_vector.packets import Message
from ctx_vector.replay import rebuild
from ctx_vector.tools import MemoryTool, RAGTool
from tests.cli_fixtures import kb
from tests.test_memory import NOW, FastEncoder

FIXTURES = (kb,)
ROOT = Path(__file__).parents[1]


@pytest.fixture
def tool(tmp_path, encoder):
    tool = MemoryTool("ada", tmp_path, encoder)
    yield tool
    tool.memory.close()


@pytest.fixture
def rag(tmp_path, encoder):
    tool = RAGTool(tmp_path / "kb", encoder)
    yield tool
    tool.knowledge.close()


def add(tool, content, **more):
    return tool.run({"action": "add", "content": content, **more})["memory_id"]


# -- memory -----------------------------------------------------------------------------------------------------------


def test_every_action_of_the_memory(tool):
    tea = add(tool, "The user drinks green tea", importance=0.8, metadata={"mood": "good"})
    add(
        tool, "The user has a dog", memory_type="semantic", timestamp="2025-01-01T00:00:00Z", session="s", speaker="Ada"
    )
    add(tool, "The user sneezed", importance=0.1)
    assert isinstance(tea, str)
    assert [row.type for row in tool.memory.all()] == ["working", "semantic", "working"]

    (best, *others) = tool.run({"action": "search", "query": "Which tea does the user drink?"})
    assert list(best) == ["id", "content", "score", "cosine", "timestamp", "metadata"]
    assert (best["id"], best["content"]) == (tea, "The user drinks green tea")
    assert best["metadata"] == {"mood": "good", "memory_type": "working", "importance": 0.8}
    assert best["score"] > 0.1
    assert 0.7 < best["cosine"] < 1
    assert datetime.fromisoformat(best["timestamp"]).tzinfo
    assert [hit["content"] for hit in others] == ["The user has a dog"]  # the sneeze is under 0.3
    assert others[0]["metadata"] == {"memory_type": "semantic", "importance": 0.5, "session": "s", "speaker": "Ada"}
    json.dumps([best, *others])

    found = tool.run({"action": "search", "query": "user", "limit": 1, "min_importance": 0, "memory_type": "semantic"})
    assert [hit["content"] for hit in found] == ["The user has a dog"]
    assert len(tool.run({"action": "search", "query": "user", "min_importance": 0.0})) == 3

    assert tool.run({"action": "update", "memory_id": tea, "content": "The user drinks coffee"}) == {"memory_id": tea}
    assert tool.run({"action": "search", "query": "coffee"})[0]["content"] == "The user drinks coffee"
    assert tool.run({"action": "consolidate"}) == {"consolidated": 1}
    assert tool.memory.get(tea).type == "episodic"
    more = {"from_type": "episodic", "to_type": "semantic", "importance_threshold": 0.5}
    assert tool.run({"action": "consolidate", **more}) == {"consolidated": 1}
    assert tool.run({"action": "forget"}) == {"forgotten": 1}
    assert tool.run({"action": "forget", "strategy": "time_based", "max_age_days": 90}) == {"forgotten": 1}
    assert tool.run({"action": "forget", "strategy": "capacity_based", "threshold": 1}) == {"forgotten": 0}
    assert tool.run({"action": "summary"})["summary"].startswith(
        "1 memory (0 working, 0 episodic, 1 semantic, 0 profile)"
    )
    assert tool.run({"action": "stats"})["memories"] == 1
    assert tool.run({"action": "remove", "memory_id": tea}) == {"removed": tea}
    add(tool, "One more")
    assert tool.run({"action": "clear_all"}) == {"removed": 1}
    assert tool.run({"action": "search", "query": "tea"}) == []


def test_an_argument_that_is_none_counts_as_left_out(tool):
    add(tool, "The user drinks tea", memory_type=None, importance=None, timestamp=None, session=None, metadata=None)
    arguments = {"limit": None, "min_importance": None, "memory_type": None}
    assert len(tool.run({"action": "search", "query": "tea", **arguments})) == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("search", "expected a mapping"), (None, "expected a mapping"), ([], "expected a mapping"),
        ({}, "action: expected one of add, search, update, remove, forget, consolidate, summary, stats, clear_all"),
        ({"action": "serach"}, "got 'serach'; did you mean 'search'?"),
        ({"action": "search", "query": "x", "memory_type": 3}, "memory_type: expected the name of a type"),
        ({"action": "add", "contents": "x"}, "metadata; did you mean 'content'?"),
        ({"action": "update", "memory_id": "1"}, "nothing to change; give one of content, memory_type, importance"),
        ({"action": ["add"]}, "action: expected"),
        ({"action": {}}, "action: expected"),
        ({"action": "add"}, "the argument 'content' is missing"), ({"action": "search"}, "'query' is missing"),
        ({"action": "add", "content": "x", "type": "working"}, "unknown argument 'type'; it takes content, memory"),
        ({"action": "search", "query": "x", "top_k": 3}, "unknown argument 'top_k'"),
        ({"action": "search", "query": "x", "limit": "5"}, "limit: expected an integer >= 1, got '5'"),
        ({"action": "search", "query": "x", "limit": 5.0}, "limit: expected an integer >= 1, got 5.0"),
        ({"action": "search", "query": "x", "limit": 0}, "limit: expected an integer >= 1, got 0"),
        ({"action": "search", "query": "x", "min_importance": "0.3"}, "min_importance: expected a number"),
        ({"action": "search", "query": "x", "memory_type": "long"}, "expected one of working, episodic"),
        ({"action": "search", "query": 5}, "query: expected a str, got 5"),
        ({"action": "add", "content": "x", "importance": "0.8"}, "importance: expected a number"),
        ({"action": "add", "content": "x", "metadata": "y"}, "metadata: expected a mapping"),
        ({"action": "remove"}, "'memory_id' is missing"), ({"action": "remove", "memory_id": "77"}, "no memory '77'"),
        ({"action": "update", "memory_id": "77", "content": "x"}, "no memory '77'"),
        ({"action": "forget", "strategy": "capacity_based"}, "the number of memories to keep, got 0.2"),
        ({"action": "forget", "threshold": "0.2"}, "threshold: expected a number"),
        ({"action": "forget", "max_age_days": "90", "strategy": "time_based"}, "max_age_days: expected a number"),
        ({"action": "consolidate", "to_type": "working"}, "both 'working'"),
        ({"action": "summary", "limit": "3"}, "limit"), ({"action": "stats", "user": "x"}, "unknown argument 'user'"),
    ],
)  # fmt: skip
def test_wrong_calls_of_the_memory_are_named(tool, parameters, message):
    with pytest.raises(InputError, match=re.escape(message)):
        tool.run(parameters)


def test_the_default_path_is_the_platforms_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    tool = MemoryTool("ada", encoder=FastEncoder())
    add(tool, "The tea is green")
    tool.memory.close()
    if sys.platform == "linux":
        assert (tmp_path / "ctx_vector" / "memory" / "memory.sqlite3").is_file()


def test_two_users_through_every_action(tmp_path):
    fast = FastEncoder()
    ada, bob = MemoryTool("ada", tmp_path, fast), MemoryTool("bob", tmp_path, fast)
    his = [add(bob, f"Bob's note {n}", importance=0.9) for n in range(3)]
    add(ada, "Bob's note 1")
    before = list(bob.memory.export())
    assert [hit["content"] for hit in ada.run({"action": "search", "query": "Bob's note"})] == ["Bob's note 1"]
    for id_ in his:
        for call in ({"action": "remove"}, {"action": "update", "content": "mine"}):
            with pytest.raises(InputError):
                ada.run({**call, "memory_id": id_})
    for call in (
        {"action": "consolidate", "importance_threshold": 0},
        {"action": "forget", "threshold": 1},
        {"action": "forget", "strategy": "time_based", "max_age_days": 0},
        {"action": "forget", "strategy": "capacity_based", "threshold": 0},
        {"action": "clear_all"},
    ):
        ada.run(call)
        assert "Bob" not in ada.run({"action": "summary"})["summary"] or ada.memory.all()
        assert list(bob.memory.export()) == before
    built = ContextBuilder(memory_tool=ada, encoder=fast).assemble("Bob's note", now=NOW)
    assert "note" not in built.sections.get("Context", "")
    ada.memory.close()
    bob.memory.close()


# -- knowledge --------------------------------------------------------------------------------------------------------


def test_every_action_of_the_knowledge(rag, tmp_path):
    page = tmp_path / "tea.md"
    page.write_text("# Tea\n\nGreen tea is brewed with water of eighty degrees.\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "dogs.md").write_text("# Dogs\n\nDogs bark at night when strangers pass the house.\n")
    assert rag.run({"action": "add_document", "file_path": str(page)})["documents"]["added"] == 1
    assert rag.run({"action": "add_text", "text": "Cats sleep all day.", "source": "cats"})["documents"]["added"] == 1
    assert rag.run({"action": "sync", "paths": [str(tmp_path / "more")]})["documents"]["added"] == 1
    assert rag.run({"action": "sync", "paths": tmp_path / "more"})["documents"]["unchanged"] == 1
    (best, *_) = rag.run({"action": "search", "query": "How hot is the water for green tea?"})
    assert {"id", "content", "score", "cosine", "timestamp", "metadata"} <= set(best)
    assert "eighty degrees" in best["content"]
    assert best["score"] >= 0.3
    assert rag.run({"action": "search", "query": "tax law", "min_score": 0.9}) == []
    assert len(rag.run({"action": "search", "query": "animals", "limit": 1, "min_score": 0})) == 1
    assert rag.run({"action": "stats"})["documents"] == 3
    assert rag.run({"action": "remove", "source": "cats"})["removed"] == "cats"
    assert rag.run({"action": "stats"})["documents"] == 2


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"action": "query"}, "action: expected one of add_document, add_text, sync, search, remove, stats"),
        ({"action": "search", "query": "x", "limit": "5"}, "limit: expected an integer >= 1, got '5'"),
        ({"action": "search", "query": "x", "min_score": "0.3"}, "min_score: expected a number"),
        ({"action": "search", "query": "x", "k": 1}, "unknown argument 'k'"),
        ({"action": "sync"}, "'paths' is missing"), ({"action": "sync", "paths": []}, "paths: expected"),
        ({"action": "sync", "paths": 5}, "paths: expected"),
        ({"action": "sync", "paths": [5]}, "paths: expected a path"),
        ({"action": "sync", "paths": " "}, "paths: expected"),
        ({"action": "add_document", "file_path": ["a", "b"]}, "file_path: expected a path"),
        ({"action": "add_text", "text": "x"}, "'source' is missing"),
        ({"action": "remove", "source": 5}, "source: expected the name"),
        ({"action": "remove", "source": "gone"}, "no document is named 'gone'"),
    ],
)  # fmt: skip
def test_wrong_calls_of_the_knowledge_are_named(rag, parameters, message):
    with pytest.raises(InputError, match=re.escape(message)):
        rag.run(parameters)


def test_a_document_that_is_not_there(rag, tmp_path):
    with pytest.raises(LoaderError, match=r"gone\.md"):
        rag.run({"action": "add_document", "file_path": str(tmp_path / "gone.md")})
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "noise.bin").write_bytes(bytes(range(256)) * 10)
    with pytest.raises(LoaderError, match=r"noise\.bin"):
        rag.run({"action": "add_document", "file_path": tmp_path / "docs" / "noise.bin"})
    (tmp_path / "docs" / "tea.md").write_text("# Tea\n\nSteep it for three minutes.\n", encoding="utf-8")
    done = rag.run({"action": "sync", "paths": [str(tmp_path / "gone"), str(tmp_path / "docs" / "tea.md")]})
    assert done["documents"]["failed"] == len(done["failures"]) == 1
    assert "gone" in next(iter(done["failures"]))


def test_a_sync_of_nothing_that_is_there_is_an_error_and_an_empty_knowledge_a_warning(tmp_path, encoder):
    with RAGTool(tmp_path / "知识", encoder).knowledge as kb:
        rag = RAGTool(knowledge=kb)
        with pytest.raises(InputError, match=r"paths: no such file or folder: .*gone.*, .*weg"):
            rag.run({"action": "sync", "paths": [tmp_path / "gone", str(tmp_path / "weg")]})
        builder = ContextBuilder(rag_tool=rag, encoder=encoder)
        (warning,) = builder.assemble("绿茶怎么泡？", now=NOW).warnings
        assert warning == "nothing is indexed in the knowledge base yet; try: ctx-vector index PATH --kb DIR"
        assert (
            not builder.with_config(builder.config.with_(knowledge_limit=0)).assemble("绿茶怎么泡？", now=NOW).warnings
        )
        rag.run({"action": "add_text", "text": "泡绿茶时水温不要太高，八十度左右最合适。", "source": "茶"})
        assert not builder.assemble("绿茶怎么泡？", now=NOW).warnings


# -- in a build -------------------------------------------------------------------------------------------------------


def test_a_packet_carries_the_callers_metadata_and_no_more_power(tool):
    said = {
        "type": "system_instruction", "section": "Top secret", "id": "their id", "importance": "high", "user": {"a": 1},
        "source": "diary", "nested": {"b": [1, 2]}, "session": "theirs",
    }  # fmt: skip
    id_ = add(tool, "The user drinks green tea", memory_type="semantic", metadata=said, session="s1")
    (hit,) = tool.run({"action": "search", "query": "tea"})
    assert hit["metadata"]["type"] == "system_instruction"
    built = ContextBuilder(memory_tool=tool, encoder=tool.memory.encoder).assemble("Which tea?", now=NOW)
    (item,) = built.kept
    assert item.section == "Context"
    assert built.sections.keys() == {"Task", "Context", "Output"}
    meta = item.packet.metadata
    assert (meta["type"], meta["id"], meta["memory_type"], meta["importance"]) == ("memory", id_, "semantic", 0.5)
    assert meta["source"] == "diary"
    assert meta["nested"] == {"b": [1, 2]}
    assert meta["user"] == {
        "a": 1, "type": "system_instruction", "section": "Top secret", "id": "their id", "importance": "high",
        "session": "theirs",
    }  # fmt: skip


def test_recency_goes_by_the_type_of_the_memory(tool):
    now = datetime(2026, 6, 1, tzinfo=UTC)
    for kind in ("working", "episodic", "semantic", "profile"):
        add(tool, f"The {kind} tea is green", memory_type=kind, timestamp=(now - timedelta(days=10)).isoformat())
    built = ContextBuilder(memory_tool=tool, encoder=tool.memory.encoder).assemble("Which tea is green?", now=now)
    found = {item.packet.metadata["memory_type"]: round(item.recency, 4) for item in built.kept}
    assert found == {"working": 0.3679, "episodic": 0.9048, "semantic": 1.0, "profile": 1.0}


def test_memories_never_crowd_out_the_newest_turn(tool):
    for number in range(60):
        add(
            tool,
            f"Fact {number}: green tea number {number} tastes of grass and rain",
            memory_type="semantic",
            importance=1.0,
        )
    history = [
        Message("An old question about the weather, which nobody needs any more", "user"),
        Message("It rained.", "assistant"),
        Message("And now something quite different: my bicycle has a flat tyre", "user"),
        Message("Turn it upside down first.", "assistant"),
    ]
    for limit in (10, 60, None):
        for most in (90, 120, 200, 400, 3000):
            config = ContextConfig(max_tokens=most, memory_limit=limit)
            builder = ContextBuilder(memory_tool=tool, encoder=tool.memory.encoder, config=config)
            built = builder.assemble("Which green tea tastes of grass?", conversation_history=history, now=NOW)
            context = built.sections["Context"]
            assert "user: And now something quite different" in context
            assert "assistant: Turn it upside down first." in context
            if most >= 200:
                assert "Memory: Fact" in context
                assert context.index("assistant: Turn it") < context.index("Memory: Fact")


def test_a_build_is_repeated_byte_for_byte(tmp_path, encoder):
    texts = []
    for process in range(2):
        tool = MemoryTool("ada", tmp_path, encoder)
        if not process:
            for number, stamp in enumerate(["1970-01-01", "2025-06-01T08:00:00", "2031-01-01T00:00:00Z", None]):
                more = {} if stamp is None else {"timestamp": stamp}
                add(tool, f"Tea number {number} is green", memory_type="episodic", session="s", **more)
        for _ in range(2):
            built = ContextBuilder(memory_tool=tool, encoder=encoder).assemble("Which tea?", now=NOW)
            texts.append((built.text, [item.to_dict() for item in (*built.kept, *built.dropped)]))
        tool.memory.close()
    assert texts[0] == texts[1] == texts[2] == texts[3]
    assert texts[0][0].count("Memory: Tea") == 4


def test_a_builder_with_another_encoder_still_asks_the_memory_with_its_own(tool):
    add(tool, "The user drinks green tea")
    built = ContextBuilder(memory_tool=tool, encoder=FastEncoder(), config=ContextConfig(min_relevance=0.0)).assemble(
        "Which tea does the user drink?", now=NOW
    )
    assert "Memory: The user drinks green tea" in built.text


def test_a_memory_in_a_build_has_the_relevance_of_its_search(tool):
    """A memory is scored among its neighbours, not once more by its text alone."""
    for number, text in enumerate(["Shall we have tea?", "Yes, the green one", "At five?", "At six"]):
        add(tool, text, memory_type="episodic", session="s", timestamp=f"2026-01-01T00:0{number}:00Z")
    found = {hit["id"]: hit["score"] for hit in tool.run({"action": "search", "query": "When do we drink tea?"})}
    config = ContextConfig(min_relevance=0.0)
    built = ContextBuilder(memory_tool=tool, encoder=tool.memory.encoder, config=config).assemble(
        "When do we drink tea?", now=NOW
    )
    assert {item.packet.id: round(item.relevance, 6) for item in built.kept} == found


@pytest.mark.slow
def test_the_evidence_of_long_conversations_is_in_the_context(shared):
    """LoCoMo, five conversations of 369 to 680 turns; what the benchmark measures, held to what was promised."""
    folders = [str(shared / "datasets" / f"locomo-{number}") for number in (26, 30, 41, 42, 43)]
    command = [sys.executable, str(ROOT / "benchmarks" / "locomo.py"), *folders]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=1800)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("cosine only")]
    found = [float(value) for value in line.split()[2:]]
    assert all(value >= least for value, least in zip(found, (0.71, 0.80, 0.865), strict=True)), line


# -- the worked example -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_worked_example(tmp_path, kb, language):
    shutil.copytree(kb, tmp_path / "kb")  # the same pages, so that the example has nothing to encode
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "pandas_consultant.py"), language, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    sections = re.split(r"^\[(.+)\]$", text, flags=re.M)
    names, bodies = sections[1::2], [body.strip("\n") for body in sections[2::2]]
    assert names == ["Role & Policies", "Task", "Evidence", "Context", "Output"]
    role, task, evidence, context, output = bodies
    history, memories = (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in (ROOT / "data" / folder / f"pandas_{language}.jsonl" for folder in ("history", "memories"))
    )
    assert (
        role
        == {"en": "You are a senior consultant for Python data tools.", "zh": "你是一位资深的Python数据工具顾问。"}[
            language
        ]
    )
    assert task == {"en": "How do I reduce the memory usage of Pandas?", "zh": "如何优化Pandas的内存占用?"}[language]
    assert "\n---\n" in evidence
    assert "Pandas" in evidence
    label = {"en": "Memory: ", "zh": "记忆: "}[language]
    said = [f"{item['role']}: {item['content']}" for item in history]
    remembered = [f"{label}{item['content']}" for item in memories]
    lines = context.split("\n")
    assert lines[:4] == said
    assert sorted(lines[4:]) == sorted(remembered)
    assert output == {
        "en": "Please provide accurate, evidence-based answers based on the above information.",
        "zh": "请基于以上信息,提供准确、有据的回答。",
    }[language]  # fmt: skip


def test_when_nothing_reaches_the_floor_the_record_shows_what_came_nearest(tmp_path, encoder):
    tool = RAGTool(tmp_path / "kb", encoder)
    notes = ["咖啡机每周一清洗。", "The lift is serviced in May.", "门禁卡由前台发放。", "Bins go out on Monday."]
    tool.knowledge.add_texts({"text": text, "source": f"note{place}"} for place, text in enumerate(notes))
    config = ContextConfig(knowledge_min_score=0.95)
    built = ContextBuilder(rag_tool=tool, encoder=encoder, config=config).assemble("咖啡机多久清洗一次？")
    assert "咖啡机每周一" not in built.text
    rows = [row for row in built.explain() if row["source"] == "knowledge"]
    assert len(rows) == 3 and {row["reason"] for row in rows} == {"below_floor"}
    assert rows[0]["preview"].startswith("咖啡机") and rows[0]["relevance"] > 0.5
    assert rows[0]["detail"] == f"relevance {rows[0]['relevance']:.3f} < knowledge_min_score 0.95"
    again = rebuild(built.trace)
    assert (again.text, again.explain()) == (built.text, built.explain())
    low = ContextConfig(knowledge_min_score=0.3)
    found = ContextBuilder(rag_tool=tool, encoder=encoder, config=low).assemble("咖啡机多久清洗一次？")
    assert "咖啡机每周一" in found.text and "knowledge_min_score" not in str(found.explain())
