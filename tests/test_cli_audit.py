"""`audit`: what build and chat recorded, listed, shown, replayed, compared and purged."""

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from cli_fixtures import bad, call, good, kb, quiet_logs
from pipeline_help import HashEncoder

from ctx_vector import ContextBuilder, Memory, MemoryTool
from ctx_vector.audit import AuditLog

FIXTURES = (kb, quiet_logs)
PLAIN = ["--no-kb", "--strategy", "jaccard"]
QUERY = "如何优化Pandas的内存占用？"


@pytest.fixture
def own(kb: Path, tmp_path: Path) -> Path:
    """A copy of the sample knowledge that a test may change."""
    folder = tmp_path / "kb"
    shutil.copytree(kb, folder, ignore=shutil.ignore_patterns("audit.*"))
    return folder


def read(*arguments: object):
    return json.loads(good(call("audit", *arguments, "--json")))


def test_builds_are_recorded_beside_the_knowledge_base(own: Path):
    first = json.loads(good(call("build", QUERY, "--kb", own, "--json")))
    good(call("build", "How do I declare a path parameter?", "--kb", own, "--max-tokens", 2000))
    rows = read("list", "--kb", own)
    assert [row["query"] for row in rows] == ["How do I declare a path parameter?", QUERY]
    assert rows[1]["id"] == first["meta"]["build_id"] and rows[1]["total_tokens"] == first["budget"]["total_used"]
    shown = read("show", rows[1]["id"][:8], "--kb", own)
    assert {name: shown[name] for name in first if name != "meta"} == {n: v for n, v in first.items() if n != "meta"}
    assert good(call("audit", "show", rows[1]["id"], "--text", "--kb", own)) == first["text"]
    assert good(call("audit", "replay", "--kb", own)) == "equal\n"
    assert read("replay", rows[1]["id"], "--audit", own / "audit.sqlite3")["text"] == first["text"]


def test_without_a_knowledge_base_they_are_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    good(call("build", "question 问题", *PLAIN))
    assert (tmp_path / "ctx_vector" / "audit.sqlite3").exists()
    good(call("build", "not this one", *PLAIN, "--no-audit"))
    good(call("build", "elsewhere", *PLAIN, "--audit", tmp_path / "own.sqlite3"))
    assert [row["query"] for row in read("list")] == ["question 问题"]
    assert [row["query"] for row in read("list", "--audit", tmp_path / "own.sqlite3")] == ["elsewhere"]
    assert "--audit and --no-audit: choose one" in bad(call("build", "q", *PLAIN, "--audit", "x", "--no-audit"), 2)


def test_an_audit_that_cannot_be_written_fails_no_build(tmp_path: Path):
    (tmp_path / "dir").mkdir()
    done = call("build", "question", *PLAIN, "--audit", tmp_path / "dir")
    assert done.exit_code == 0 and "[Task]\nquestion" in done.stdout
    assert done.stderr.startswith("warning: the audit cannot be written") and "closed, but" in done.stderr


def test_a_list_can_be_searched_and_paged(tmp_path: Path):
    path = tmp_path / "audit.sqlite3"
    for number in range(4):
        good(call("build", f"question {number} 退货", *PLAIN, "--audit", path))
    ids = [row["id"] for row in read("list", "--audit", path)]
    assert [row["id"] for row in read("list", "--audit", path, "--limit", 2, "--before", ids[1])] == ids[2:]
    assert [row["query"] for row in read("list", "--audit", path, "--search", "2 退")] == ["question 2 退货"]
    table = good(call("audit", "list", "--audit", path))
    assert "question 3 退货" in table and ids[0][:10] in table and len(table.splitlines()) == 6
    assert good(call("audit", "list", "--audit", path, "--session", "none")) == "no build fits\n"
    done = call("audit", "list", "--audit", path, "--limit", 3)
    assert f"3 of 4 builds; more with --limit N, or go on with --before {ids[2][:10]}\n" == done.stderr
    assert call("audit", "list", "--audit", path, "--limit", 4).stderr == ""
    assert "there are older ones" in call("audit", "list", "--audit", path, "--limit", 1, "--before", ids[0]).stderr
    assert call("audit", "list", "--audit", path, "--limit", 3, "--before", ids[0]).stderr == ""


def test_a_build_is_recorded_with_its_user(tmp_path: Path):
    path = tmp_path / "audit.sqlite3"
    good(call("build", "nobody's", *PLAIN, "--audit", path))
    with ExitStack() as stack:
        memory = stack.enter_context(Memory(tmp_path / "memory", "ada", HashEncoder()))
        log = stack.enter_context(AuditLog(path))
        ContextBuilder(memory_tool=MemoryTool(memory=memory), audit=log, encoder=memory.encoder).assemble("Ada's")
    assert {row["query"]: row["user_id"] for row in read("list", "--audit", path)} == {
        "nobody's": "default", "Ada's": "ada",
    }  # fmt: skip
    assert "user       ada\n" in good(call("audit", "show", "--audit", path))


def test_a_build_is_shown_with_its_reasons(own: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "120")
    explained = good(call("build", QUERY, "--kb", own, "--max-tokens", 500, "--explain"))
    good(call("audit", "feedback", "last", 1, "--note", "complete 完整", "--kb", own))
    shown = good(call("audit", "show", "--kb", own))
    assert shown[shown.index("─") :] == explained[explained.index("─") :]
    for text in (f"query      {QUERY}", "knowledge  version 1", "feedback   1 complete 完整", "tokenizer cl100k_base"):
        assert text in shown, text
    assert "rated 1" in good(call("audit", "list", "--kb", own))


def test_replay_is_equal_after_a_change_and_live_names_it(own: Path):
    good(call("build", QUERY, "--kb", own))
    source = read("show", "--kb", own)["kept"][0]["packet"]["metadata"]["source"]
    assert good(call("audit", "replay", "--live", "--kb", own)) == "equal: the sources give the same now\n"
    good(call("kb", "remove", source, "--kb", own))
    assert good(call("audit", "replay", "--kb", own)) == "equal\n"
    lines = good(call("audit", "replay", "--live", "--kb", own))
    assert "knowledge version: 1 → 2" in lines and "went: knowledge" in lines and source in lines
    change = read("replay", "--live", "--kb", own)["change"]
    assert change["equal"] is False and change["counts"]["went"] >= 1
    assert "only with --live" in bad(call("audit", "replay", "--user", "ada", "--kb", own), 2)


def test_what_is_purged_from_the_knowledge_base_is_purged_from_the_audit(own: Path):
    good(call("build", QUERY, "--kb", own))
    kept = read("show", "--kb", own)["kept"][0]["packet"]
    line = max(kept["content"].splitlines(), key=len)
    assert line.encode() in (own / "audit.sqlite3").read_bytes()
    good(call("kb", "purge", kept["metadata"]["source"], "--kb", own, "--yes"))
    assert not any(line.encode() in file.read_bytes() for file in own.iterdir())
    assert "(purged)" in good(call("audit", "list", "--kb", own))
    assert "(purged)   knowledge:" in good(call("audit", "show", "--kb", own))
    done = call("audit", "replay", "--kb", own)
    assert done.exit_code == 1 and done.stdout.startswith("cannot be made again: purged since: knowledge:")


def test_what_a_memory_forgets_is_forgotten_in_the_audit(tmp_path: Path):
    folder, path = tmp_path / "memory", tmp_path / "audit.sqlite3"
    options = ["--memory", folder, "--user", "ada"]
    good(call("memory", "add", "Ada's code is 47-11-23 密码", "--importance", 0.9, *options))
    assert "47-11-23" in good(call("build", "Which code has Ada?", "--no-kb", *options, "--audit", path))
    good(call("audit", "replay", "--live", *options, "--audit", path))
    good(call("memory", "remove", 1, *options))
    assert not any(b"47-11-23" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def test_two_builds_are_compared(own: Path):
    for size in (500, 900):
        good(call("build", QUERY, "--kb", own, "--max-tokens", size))
    first = read("list", "--kb", own)[1]["id"]
    lines = good(call("audit", "diff", first[:8], "--kb", own))
    assert "config.max_tokens: 500 → 900" in lines and "came: knowledge" in lines
    assert read("diff", first, "last", "--kb", own)["counts"]["came"] >= 1
    assert good(call("audit", "diff", first, first, "--kb", own)) == "no difference\n"
    assert good(call("audit", "diff", "last", "last", "--kb", own)) == "no difference\n"
    for last in ("last", read("list", "--kb", own)[0]["id"][:8]):
        assert "give the id of a second one" in bad(call("audit", "diff", last, "--kb", own), 2)


def test_statistics(own: Path):
    for _ in range(3):
        good(call("build", QUERY, "--kb", own, "--max-tokens", 400))
    found = read("stats", "--since", "1h", "--kb", own)
    assert found["builds"] == 3 and found["sources"]["knowledge"]["builds"] == 3
    shown = good(call("audit", "stats", "--kb", own))
    assert shown.startswith("3 builds since ") and "knowledge" in shown
    assert "Warning: knowledge was cut in 100% of its builds" in shown
    assert good(call("audit", "stats", "--since", "all", "--kb", own)).startswith("3 builds in all")
    assert "since: expected a length of time" in bad(call("audit", "stats", "--since", "soon", "--kb", own))


def test_purging_by_hand(tmp_path: Path):
    path = tmp_path / "audit.sqlite3"
    for number in range(3):
        good(call("build", f"secret question {number} 秘密", *PLAIN, "--audit", path))
    assert "add --yes" in bad(call("audit", "purge", "last", "--audit", path), 2)
    assert "nothing to purge" in bad(call("audit", "purge", "--yes", "--audit", path), 2)
    assert bad(call("audit", "purge", "--before", "soon", "--yes", "--audit", path)).startswith(
        "before: expected a length"
    )
    assert good(call("audit", "purge", "last", "--yes", "--audit", path)) == "purged: 1 build\n"
    assert (
        good(call("audit", "purge", "--text", "secret question 1 秘密", "--yes", "--audit", path))
        == "purged: 1 build\n"
    )
    assert [row["query"] for row in read("list", "--audit", path)] == ["(purged)", "secret question 0 秘密"]
    done = json.loads(good(call("audit", "purge", "--before", "0s", "--yes", "--audit", path, "--json")))
    assert done == {"builds": 2} and b"secret" not in path.read_bytes()


def test_what_is_not_there_is_said(tmp_path: Path):
    path = tmp_path / "none.sqlite3"
    for arguments in (["list"], ["show"], ["replay"], ["diff", "abcd"], ["stats"]):
        told = bad(call("audit", *arguments, "--audit", path))
        assert told == f"there is no audit at {path}; make one with: ctx-vector build QUERY --audit {path}"
        told = bad(call("audit", *arguments, "--kb", tmp_path / "none"))
        assert told.startswith(f"there is no knowledge base in {tmp_path / 'none'}; make one with: ")
    with AuditLog(path) as log:
        from ctx_vector import ContextBuilder, ContextConfig

        ContextBuilder(config=ContextConfig(strategy="jaccard"), audit=log).assemble("q")
    assert "has no build 'ffffffff'" in bad(call("audit", "show", "ffffffff", "--audit", path))
