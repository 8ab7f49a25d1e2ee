"""`memory` and `build --memory`: what they print, as text and as JSON, and what they say when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_fixtures import bad, call, good, kb, quiet_logs, run

from ctx_vector import Memory, MemoryTool
from ctx_vector.cli.memory import memory_folder

FIXTURES = (kb, quiet_logs)
ROW_KEYS = ["id", "content", "type", "importance", "timestamp", "session", "speaker", "metadata"]
HIT_KEYS = ["id", "content", "score", "cosine", "timestamp", "metadata"]


@pytest.fixture
def ada(tmp_path: Path, encoder) -> list[str]:
    """Options for a memory of Ada with three things in it."""
    with Memory(tmp_path / "memory", "ada", encoder) as memory:
        memory.add_many([
            {"content": "Ada prefers answers in Chinese", "type": "semantic", "importance": 0.8},
            {"content": "The sales file has five million rows", "importance": 0.6, "timestamp": "2025-05-20T09:00:00Z"},
            {"content": "她今天在等报表", "type": "working", "importance": 0.1},
        ])  # fmt: skip
    return ["--memory", str(tmp_path / "memory"), "--user", "ada"]


def listed(options: list[str]) -> list[dict]:
    return json.loads(good(call("memory", "list", *options, "--json")))


def test_add_and_list(tmp_path: Path):
    where = ["--memory", tmp_path / "new" / "memory"]
    assert good(call("memory", "add", "Tea is at four", *where)) == "memory 1 added\n"
    more = json.loads(good(call("memory", "add", "-", *where, "--type", "profile", "--importance", "0.9", "--speaker",
        "Ada", "--timestamp", "2025-06-01T10:00:00+02:00", "--metadata", '{"topic": "茶"}', "--json",
        input="我只喝绿茶")))  # fmt: skip
    assert more == {"memory_id": "2", "new": True}
    assert good(call("memory", "add", "Tea is  at four", *where)) == "memory 1 says that already\n"
    rows = listed(where)
    assert [list(row) for row in rows] == [ROW_KEYS] * 2
    assert (rows[0]["content"], rows[0]["type"], rows[0]["importance"]) == ("Tea is at four", "episodic", 0.5)
    assert rows[1]["timestamp"] == "2025-06-01T08:00:00+00:00"
    assert (rows[1]["type"], rows[1]["metadata"], rows[1]["speaker"]) == ("profile", {"topic": "茶"}, "Ada")
    shown = good(call("memory", "list", *where))
    assert "Ada: 我只喝绿茶" in shown
    assert "profile" in shown
    assert [row["id"] for row in listed([*where, "--limit", "1"])] == ["2"]
    assert [row["id"] for row in listed([*where, "--type", "episodic"])] == ["1"]


def test_search(ada: list[str]):
    hits = json.loads(
        good(call("memory", "search", "In which language does Ada like her answers?", *ada, "--limit", "1", "--json"))
    )
    assert [list(hit) for hit in hits] == [HIT_KEYS]
    assert hits[0]["content"] == "Ada prefers answers in Chinese"
    assert hits[0]["metadata"]["importance"] == 0.8
    shown = good(call("memory", "search", "In which language does Ada like her answers?", *ada))
    assert shown.splitlines()[0].split() == ["id", "score", "type", "importance", "said", "memory"]
    assert "Ada prefers answers in Chinese" in shown.splitlines()[2]
    only = call("memory", "search", "file", *ada, "--type", "episodic", "--min-importance", "0.5", "--since",
                "2025-05-20", "--until", "2025-05-21", "--json")  # fmt: skip
    assert [hit["content"] for hit in json.loads(good(only))] == ["The sales file has five million rows"]
    nothing = call("memory", "search", "file", *ada, "--until", "1999-01-01")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert nothing.stderr == "nothing found in the memory of ada\n"


def test_update_and_remove(ada: list[str]):
    row = json.loads(good(call("memory", "update", "1", *ada, "--text", "Ada prefers English", "--importance", "0.9",
                               "--type", "profile", "--json")))  # fmt: skip
    assert list(row) == ROW_KEYS
    assert (row["id"], row["content"], row["type"], row["importance"]) == ("1", "Ada prefers English", "profile", 0.9)
    assert "Ada prefers English" in good(call("memory", "update", "1", *ada, "--metadata", '{"a": 1}'))
    assert good(call("memory", "remove", "1", *ada)) == "memory 1 is gone\n"
    assert json.loads(good(call("memory", "remove", "2", *ada, "--json"))) == {"removed": "2"}
    assert [row["id"] for row in listed(ada)] == ["3"]


def test_forget_consolidate_stats_and_clear(ada: list[str]):
    stats = json.loads(good(call("memory", "stats", *ada, "--json")))
    assert stats["by_type"] == {"working": 1, "episodic": 1, "semantic": 1, "profile": 0}
    assert "by type          working 1, episodic 1, semantic 1, profile 0" in good(call("memory", "stats", *ada))
    assert "add --yes" in bad(call("memory", "forget", *ada), 2)
    shown = call("memory", "forget", *ada, "--dry-run")
    assert shown.stdout.count("working") == 1 and shown.stderr == "1 memory would be forgotten\n"
    assert len(json.loads(good(call("memory", "forget", *ada, "--dry-run", "--json")))) == 1
    assert json.loads(good(call("memory", "forget", *ada, "--yes", "--json"))) == {"forgotten": 1}
    done = call("memory", "consolidate", *ada, "--from", "episodic", "--to", "semantic", "--threshold", "0.5", "--json")
    assert json.loads(good(done)) == {"consolidated": 1}
    assert {row["type"] for row in listed(ada)} == {"semantic"}
    done = call("memory", "forget", *ada, "--strategy", "time_based", "--max-age-days", "30", "--yes")
    assert good(done) == "1 memory forgotten\n"
    assert good(call("memory", "forget", *ada, "--strategy", "capacity_based", "--threshold", "5")).startswith("0 mem")
    assert "add --yes" in bad(call("memory", "clear", *ada), 2)
    assert json.loads(good(call("memory", "clear", *ada, "--yes", "--json"))) == {"removed": 1}
    assert good(call("memory", "clear", *ada, "--yes")) == "0 memories forgotten\n"
    nothing = call("memory", "list", *ada)
    assert nothing.exit_code == 0
    assert nothing.stderr.startswith("nothing is remembered of ada in ")


def test_export_and_import_give_the_same_memories(ada: list[str], tmp_path: Path):
    with Memory(tmp_path / "memory", "ada") as memory:
        memory.add("a line\u2028and another\nand a third")
    file = tmp_path / "ada.jsonl"
    done = json.loads(good(call("memory", "export", *ada, "--output", file, "--json")))
    assert done == {"output": str(file), "memories": 4}
    assert file.read_text(encoding="utf-8") == good(call("memory", "export", *ada))
    other = ["--memory", tmp_path / "other", "--user", "bob"]
    assert json.loads(good(call("memory", "import", file, *other, "--json"))) == {"imported": 4, "memories": 4}
    assert [{**row, "id": ""} for row in listed(other)] == [{**row, "id": ""} for row in listed(ada)]
    assert good(call("memory", "import", "-", *other, input=file.read_text("utf-8"))) == (
        "4 memories read; bob has 4 now\n"
    )
    assert not list(tmp_path.glob("*.part"))
    file.write_text('{"content": "good"}\n{"content": 5}\n', encoding="utf-8")
    assert str(file) in bad(call("memory", "import", file, *other))
    assert len(listed(other)) == 4  # all or nothing


def test_users_are_kept_apart(ada: list[str]):
    bob = [*ada[:2], "--user", "bob"]
    assert listed(bob) == []
    assert json.loads(good(call("memory", "search", "Chinese", *bob, "--json"))) == []
    for command in (["remove", "1"], ["update", "1", "--importance", "0"]):
        assert "'bob' has no memory '1'" in bad(call("memory", *command, *bob))
    assert json.loads(good(call("memory", "clear", *bob, "--yes", "--json"))) == {"removed": 0}
    assert len(listed(ada)) == 3


def test_the_default_folder_is_that_of_the_tool(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    tool = MemoryTool()
    assert tool.memory.path == memory_folder(None)
    tool.memory.close()
    assert memory_folder("here") == Path("here")


def test_wrong_input_is_one_line(ada: list[str], tmp_path: Path):
    for name in (["list"], ["search", "x"], ["stats"], ["export"], ["remove", "1"], ["clear", "--yes"], ["forget"]):
        line = bad(call("memory", *name, "--memory", tmp_path / "nowhere"))
        assert line == (
            f"there is no memory in {tmp_path / 'nowhere'}; make one with: ctx-vector memory add TEXT --memory "
            f"{tmp_path / 'nowhere'}"
        )
    assert not (tmp_path / "nowhere").exists()
    assert "expected one of working, episodic" in bad(call("memory", "add", "x", *ada, "--type", "vague"))
    assert "importance: expected a number in [0, 1], got 2.0" in bad(
        call("memory", "add", "x", *ada, "--importance", 2)
    )
    assert "not blank" in bad(call("memory", "add", " ", *ada))
    assert "--metadata: no valid JSON" in bad(call("memory", "add", "x", *ada, "--metadata", "{"))
    assert "expected a JSON object" in bad(call("memory", "add", "x", *ada, "--metadata", "[1]"))
    assert "nothing to change" in bad(call("memory", "update", "1", *ada), 2)
    assert "how many to keep" in bad(call("memory", "forget", *ada, "--strategy", "capacity_based"), 2)
    assert "expected one of importance_based" in bad(call("memory", "forget", *ada, "--strategy", "moody"))
    assert "user_id" in bad(call("memory", "list", *ada[:2], "--user", " "))
    assert len(listed(ada)) == 3


# -- build with a memory


def test_build_recalls(ada: list[str], kb: Path):
    question = "Which language does she want?"
    text = good(call("build", question, "--no-kb", *ada))
    assert "\n[Context]\nMemory: Ada prefers answers in Chinese\n" in text
    built = json.loads(good(call("build", "她想用哪种语言？", "--kb", kb, *ada, "--json")))
    assert "记忆: Ada prefers answers in Chinese" in built["text"]
    assert set(built["budget"]["sources"]) >= {"memory", "knowledge"}
    assert "Memory" not in good(call("build", question, "--no-kb"))
    assert "Memory" not in good(call("build", question, "--no-kb", *ada[:2], "--user", "bob"))
    assert "there is no memory in" in bad(call("build", question, "--no-kb", "--memory", kb / "nowhere"))


def test_a_user_alone_means_the_default_folder(tmp_path: Path):
    environment = {"XDG_DATA_HOME": str(tmp_path)}
    done = run("memory", "add", "Ada prefers answers in Chinese", "--user", "ada", cwd=tmp_path, **environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "memory 1 added\n", "")
    done = run("build", "Which language does she want?", "--user", "ada", "--no-kb", cwd=tmp_path, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Memory: Ada prefers answers in Chinese" in done.stdout


def test_a_history_may_hold_any_line_break(tmp_path: Path):
    file = tmp_path / "chat.jsonl"
    file.write_text('{"role": "user", "content": "one\u2028two\x85three"}\n', encoding="utf-8")
    text = good(call("build", "three?", "--no-kb", "--strategy", "jaccard", "--history", file))
    assert "user: one\ntwo\nthree\n" in text
