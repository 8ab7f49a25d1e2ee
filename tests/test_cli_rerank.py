"""`--rerank`: the second pass on the command line."""

from __future__ import annotations

import json

import pytest
from cli_fixtures import bad, call, good, kb, quiet_logs, run

__all__ = ["kb", "quiet_logs"]

QUERIES = ["How do I reduce the memory usage of Pandas?", "如何优化Pandas的内存占用？"]


@pytest.mark.parametrize("query", QUERIES)
def test_search_prints_the_score_of_both_passes(kb, query) -> None:
    plain = json.loads(good(call("search", query, "--kb", kb, "--limit", "3", "--json")))
    found = json.loads(good(call("search", query, "--kb", kb, "--limit", "3", "--rerank", "late", "--json")))
    assert "passes" not in plain[0] and [hit["score"] for hit in found] == sorted(h["score"] for h in found)[::-1]
    assert all(hit["score"] == pytest.approx(0.4 * hit["passes"][0] + 0.6 * hit["passes"][1]) for hit in found)
    assert found[0]["source"].endswith("pandas-memory.md")


def test_the_quick_way_to_search_knows_it_too(kb) -> None:
    done = run("search", QUERIES[1], "--kb", kb, "--rerank=late", "--limit", "1", "--json")
    assert done.returncode == 0 and len(json.loads(done.stdout)[0]["passes"]) == 2


def test_build_explains_and_the_audit_replays_it(kb, tmp_path) -> None:
    log = tmp_path / "audit.sqlite3"
    done = call("build", QUERIES[0], "--kb", kb, "--rerank", "late", "--explain", "--audit", log)
    assert done.exit_code == 0 and "by the first pass" in " ".join(done.stdout.split())
    assert "equal" in good(call("audit", "replay", "last", "--audit", log))


def test_memories_are_looked_at_again(tmp_path) -> None:
    ada = ("--memory", tmp_path, "--user", "ada")
    good(call("memory", "add", "艾达想要中文回答", *ada))
    (hit,) = json.loads(good(call("memory", "search", "用什么语言？", "--rerank", "late", "--json", *ada)))
    assert len(hit["passes"]) == 2


@pytest.mark.parametrize("command", ["build", "search"])
def test_what_is_no_second_pass_is_told(kb, command) -> None:
    assert "did you mean 'late'?" in bad(call(command, "q", "--kb", kb, "--rerank", "lat"))
    assert "there is no folder './gone'" in bad(call(command, "q", "--kb", kb, "--rerank", "./gone"))
