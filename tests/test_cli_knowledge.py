"""`index`, `search` and `kb`: what they print, as text and as JSON, and what they say when something is wrong."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_fixtures import bad, call, good, kb, notes, quiet_logs
from knowledge_help import pdf_bytes

from ctx_vector.cli import knowledge as cli_knowledge
from ctx_vector.cli import search as cli_search
from ctx_vector.cli.common import UsageError
from ctx_vector.errors import InputError

FIXTURES = (kb, notes, quiet_logs)
HIT_KEYS = ["id", "content", "score", "cosine", "source", "start_line", "end_line", "heading", "timestamp"]


# -- index


def test_index_tells_what_it_did_and_the_second_run_encodes_nothing(notes: Path, tmp_path: Path):
    shown = good(call("index", notes, "--kb", tmp_path / "kb"))
    assert shown.splitlines()[:2] == [f"{tmp_path / 'kb'} is at version 1", "  documents  2 added, 0 unchanged"]
    (notes / "bread.md").write_text("# Bread\n\nBake it longer.\n", encoding="utf-8")
    (notes / "退货 政策.md").unlink()
    report = json.loads(good(call("index", notes, "--kb", tmp_path / "kb", "--json")))
    assert list(report) == ["version", "documents", "chunks", "encoded", "seconds"]
    assert report["documents"] == {"added": 0, "updated": 1, "removed": 1, "unchanged": 0, "failed": 0}
    assert (report["version"], report["chunks"], report["encoded"]) == (2, 1, 1)
    report = json.loads(good(call("index", notes, "--kb", tmp_path / "kb", "--json")))
    assert (report["documents"]["unchanged"], report["encoded"], report["version"]) == (1, 0, 2)


def test_index_names_what_failed_and_what_was_skipped(notes: Path, tmp_path: Path):
    (notes / "binary.txt").write_bytes(b"\0\1\2")
    (notes / "broken.pdf").write_bytes(b"no pdf")
    (notes / "empty.md").write_bytes(b"")
    (notes / "big.md").write_text("word " * 1000, encoding="utf-8")
    for number in range(5):
        (notes / f"picture{number}.png").write_bytes(b"x")
    done = call("index", notes, "--kb", tmp_path / "kb", "--max-file-size", "2kB")
    assert done.exit_code == 0
    assert done.stderr == "warning: 2 files failed, the others are in\n"
    lines = done.stdout.splitlines()
    assert "2 failed" in lines[1]
    failed = [line for line in lines if line.startswith("  failed")]
    assert failed[0].startswith("  failed     notes/binary.txt: binary file")
    assert failed[1].startswith("  failed     notes/broken.pdf: the PDF is broken")
    skipped = [line for line in lines if line.startswith("  skipped")]
    assert skipped[0].startswith("  skipped    5 binary format .png: ")
    assert skipped[0].endswith("and 2 more")
    assert any("over the limit of 0.0 MB" in line and "big.md" in line for line in skipped[1:])


def test_what_failed_is_not_said_to_be_in(notes: Path, tmp_path: Path):
    (notes / "broken.pdf").write_bytes(b"no pdf")
    done = call("index", notes, "--kb", tmp_path / "kb", "--dry-run")
    assert (done.exit_code, done.stderr) == (0, "warning: 1 file failed, the others can be read\n")
    bad_only = tmp_path / "bad"
    bad_only.mkdir()
    (bad_only / "broken.pdf").write_bytes(b"no pdf")
    for dry in (True, False):
        done = call("index", bad_only, "--kb", tmp_path / "new", *["--dry-run"] * dry)
        assert done.exit_code == 1 and (tmp_path / "new").exists() is not dry
        said = (
            f"nothing {'would be' if dry else 'was'} indexed from {bad_only}: bad/broken.pdf failed: the PDF is broken"
        )
        assert said in done.stderr and "invalid pdf header" not in done.stderr
        assert done.stderr.endswith(")\n" if dry else f"; {tmp_path / 'new'} is there now, and empty\n")
    assert f"{tmp_path / 'new'} is empty" in done.stdout


def test_a_pdf_is_cited_by_its_page(tmp_path: Path):
    long = "The warranty covers the gearbox for two years. " * 60
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "保修 Warranty.PDF").write_bytes(pdf_bytes("Tiny cover", long, "The gearbox has an oil filter. " * 30))
    good(call("index", folder, "--kb", tmp_path / "kb"))
    shown = good(call("search", "gearbox warranty", "--kb", tmp_path / "kb", "--limit", 20))
    cited = set(re.findall(r"docs/保修 Warranty\.PDF:(\S+)", shown))
    assert cited == {"p1", "p2", "p3"} or cited == {"p2", "p3"}
    built = good(call("build", "oil filter", "--kb", tmp_path / "kb", "--citations"))
    assert "[Source: docs/保修 Warranty.PDF:p3]" in built
    built = good(call("build", "oil filter", "--no-kb", "--document", folder / "保修 Warranty.PDF", "--citations"))
    assert "Warranty.PDF:p3]" in built


def test_index_json_tells_failures_on_stderr(notes: Path, tmp_path: Path):
    (notes / "binary.txt").write_bytes(b"\0\1\2")
    done = call("index", notes, tmp_path / "missing", "--kb", tmp_path / "kb", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["documents"]["failed"] == 2
    assert "warning: notes/binary.txt failed: binary file" in done.stderr
    assert f"warning: {tmp_path / 'missing'} failed: cannot be read" in done.stderr
    assert done.stderr.endswith("warning: 2 files failed, the others are in\n")


def test_a_dry_run_changes_nothing(notes: Path, tmp_path: Path):
    shown = good(call("index", notes, "--kb", tmp_path / "kb", "--dry-run"))
    assert "would get" in shown
    assert "  chunks     2 in all, 2 to encode" in shown
    assert not (tmp_path / "kb").exists()
    report = json.loads(good(call("index", notes, "--kb", tmp_path / "kb", "--dry-run", "--json")))
    assert report["dry_run"] is True
    assert report["documents"]["added"] == 2


def test_nothing_indexed_is_an_error(tmp_path: Path, notes: Path):
    assert "no such file or folder: nowhere" in bad(call("index", "nowhere", "--kb", tmp_path / "kb"))
    assert not (tmp_path / "kb").exists()
    (tmp_path / "empty").mkdir()
    done = call("index", tmp_path / "empty", "--kb", tmp_path / "kb")
    assert done.exit_code == 1
    assert "error: nothing was indexed" in done.stderr
    (tmp_path / "x.txt").write_bytes(b"\0")
    done = call("index", tmp_path / "x.txt", "--kb", tmp_path / "kb")
    assert done.exit_code == 1
    assert "x.txt failed: binary file" in done.stderr
    assert "expected a size" in bad(call("index", notes, "--kb", tmp_path / "kb", "--max-file-size", "huge"))


def test_a_file_where_the_knowledge_base_should_be(notes: Path, tmp_path: Path):
    (tmp_path / "kb").write_text("I am a file", encoding="utf-8")
    assert str(tmp_path / "kb") in bad(call("index", notes, "--kb", tmp_path / "kb"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_must_not_be_written(notes: Path, tmp_path: Path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "ermission" in bad(call("index", notes, "--kb", tmp_path / "locked" / "kb"))


@pytest.mark.parametrize(("text", "expected"), [("7", 7), ("1.5MB", 1_500_000), ("2 kB", 2000), ("1g", 10**9)])
def test_sizes(text: str, expected: int):
    assert cli_knowledge.read_size(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "1.2.3", "MB", "5TB"])
def test_wrong_sizes(text: str):
    with pytest.raises(InputError):
        cli_knowledge.read_size(text)


def test_watch_needs_its_extra(notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    assert "pip install 'ctx_vector[watch]'" in bad(call("index", notes, "--kb", tmp_path / "kb", "--watch"))


def test_watch_indexes_again_on_a_change(notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kb = notes / "kb"  # inside what is watched: its own files must not wake it

    def watch(*paths, watch_filter, raise_interrupt):
        assert paths == (str(notes),)
        assert watch_filter(1, str(notes / "bread.md"))
        assert not watch_filter(1, str(kb / "ctx.sqlite3-wal"))
        (notes / "new.md").write_text("Something new.", encoding="utf-8")
        yield {(1, str(notes / "new.md"))}

    monkeypatch.setitem(sys.modules, "watchfiles", types.SimpleNamespace(watch=watch))
    done = call("index", notes, "--kb", kb, "--watch", "--json")
    assert done.exit_code == 0, done.output
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["documents"]["added"] == 2
    assert second["documents"] == {"added": 1, "updated": 0, "removed": 0, "unchanged": 2, "failed": 0}
    assert done.stderr.splitlines()[-1] == "stopped watching"


# -- search


def test_search_json_has_the_stable_keys(kb: Path):
    hits = json.loads(good(call("search", "如何优化Pandas的内存占用？", "--kb", kb, "--json", "--limit", 3)))
    assert [list(hit) for hit in hits] == [HIT_KEYS] * 3
    assert hits[0]["source"] == "knowledge/zh/pandas-memory.md"
    assert "内存" in "".join(hits[0]["heading"])


def test_search_filters_by_source_and_metadata(kb: Path):
    def sources(*filters: str) -> set[str]:
        options = [word for filter in filters for word in ("--filter", filter)]
        hits = json.loads(good(call("search", "memory", "--kb", kb, "--json", "--limit", 50, *options)))
        return {hit["source"] for hit in hits}

    assert all(source.startswith("knowledge/zh/") for source in sources("source=knowledge/zh/*"))
    assert sources("source=knowledge/en/faq.rst", "source=knowledge/en/local-llm.md") == {
        "knowledge/en/faq.rst",
        "knowledge/en/local-llm.md",
    }
    assert sources("date=2025-05-12") == {"knowledge/en/faq.rst"}
    assert sources("date=nonsense") == set()


def test_filters_stand_for_numbers_too():
    read = cli_search.read_filters(["year=2024", "draft=false", "tag=a=b", "tag=c", "source=7"])
    assert read == {"year": ["2024", 2024], "draft": ["false", False], "tag": ["a=b", "c"], "source": ["7"]}
    with pytest.raises(UsageError, match="key=value"):
        cli_search.read_filters(["nonsense"])


def test_no_hit_says_what_to_do(kb: Path):
    shown = good(call("search", "zebra football", "--kb", kb, "--min-score", 0.9))
    assert shown == "no passage scores 0.9 or more; lower --min-score\n"
    assert good(call("search", "zebra football", "--kb", kb, "--min-score", 0.9, "--json")) == "[]\n"
    shown = good(call("search", "memory", "--kb", kb, "--filter", "date=nonsense"))
    assert shown == "no passage was found; loosen --filter\n"


def test_weak_hits_are_called_so(capsys: pytest.CaptureFixture[str]):
    from ctx_vector.hits import Hit

    hit = Hit(
        1, "# A\x1b[31m\n\ntext", 0.05, 0.7, "a.md", 1, 3, 0, 9, ("A\x1b[31m",), None, {}, np.zeros(2, np.float32)
    )
    cli_search.show([hit], cli_search.Search("q"))
    shown = capsys.readouterr().out
    assert shown.startswith("no close match (all score under 0.1); the nearest passages are:\n\n1. 0.05  a.md:1-3\n")
    assert shown.endswith("   A\ufffd[31m\n   text\n")  # the heading once, and nothing that steers a terminal

    bodies = {
        "售后\n保修两年。": "保修两年。",  # of Word
        "====\n售后\n====\n\n保修两年。": "保修两年。",
        "售后\n----\n保修两年。": "保修两年。",
        "售后服务\n保修两年。": "售后服务\n   保修两年。",
        "售后": "售后",
        "---\n保修两年。": "---\n   保修两年。",
    }
    for content, body in bodies.items():
        cli_search.show([replace(hit, content=content, heading=("手册", "售后"))], cli_search.Search("q"))
        assert capsys.readouterr().out.endswith(f"1. 0.05  a.md:1-3\n   手册 › 售后\n   {body}\n")

    good_one, middling = (replace(hit, score=score) for score in (0.8, 0.1))
    cli_search.show([good_one, middling, hit, hit], cli_search.Search("q"))
    lines = [line for line in capsys.readouterr().out.splitlines() if line[:1].isdigit() or line.startswith("no close")]
    assert lines == [
        "1. 0.80  a.md:1-3", "2. 0.10  a.md:1-3", "no close match from here on (under 0.1):", "3. 0.05  a.md:1-3",
        "4. 0.05  a.md:1-3",
    ]  # fmt: skip


def test_hits_fit_the_terminal(kb: Path, monkeypatch: pytest.MonkeyPatch):
    from ctx_vector.cli.text import width

    monkeypatch.setenv("COLUMNS", "60")
    shown = good(call("search", "如何优化Pandas的内存占用？", "--kb", kb))
    body = [line for line in shown.splitlines() if not line[:1].isdigit()]
    assert max(map(width, body)) in range(50, 61)


def test_wrong_searches(kb: Path, tmp_path: Path):
    missing = bad(call("search", "q", "--kb", tmp_path / "none"))
    assert missing.startswith(f"there is no knowledge base in {tmp_path / 'none'}; make one with: ctx-vector index")
    assert not (tmp_path / "none").exists()
    assert bad(call("search", " ", "--kb", kb), 2).startswith("the query is blank")
    assert bad(call("search", "q", "--kb", kb, "--filter", "x"), 2).startswith("--filter: expected key=value")
    assert "limit" in bad(call("search", "q", "--kb", kb, "--limit", 0))
    assert "min_score" in bad(call("search", "q", "--kb", kb, "--min-score", 2))
    assert "unknown model" in bad(call("search", "q", "--kb", kb, "--model", "nonsense"))
    (tmp_path / "ctx.sqlite3").write_bytes(b"SQLite? no, something else entirely" * 100)
    assert "not a ctx_vector store" in bad(call("search", "q", "--kb", tmp_path))


# -- kb


def test_versions_rollback_remove_and_purge(notes: Path, tmp_path: Path):
    kb = tmp_path / "kb"
    good(call("index", notes, "--kb", kb))
    removed = json.loads(good(call("kb", "remove", "notes/退货 政策.md", "--kb", kb, "--json")))
    assert removed == {"removed": "notes/退货 政策.md", "version": 2}
    rows = json.loads(good(call("kb", "versions", "--kb", kb, "--json")))
    keys = ["number", "action", "active", "added", "updated", "removed", "documents", "chunks", "created"]
    assert [list(row) for row in rows] == [keys] * 2
    assert [(row["number"], row["active"], row["documents"]) for row in rows] == [(1, False, 2), (2, True, 1)]
    table = good(call("kb", "versions", "--kb", kb))
    assert "remove" in table
    assert "*" in table
    assert json.loads(good(call("kb", "rollback", 1, "--kb", kb, "--json"))) == {"version": 1, "before": 2}
    assert good(call("kb", "rollback", 2, "--kb", kb)) == f"{kb} is at version 2 (was 1)\n"
    assert "expected one of those kept (1, 2)" in bad(call("kb", "rollback", 7, "--kb", kb))
    assert "did you mean notes/bread.md" in bad(call("kb", "remove", "notes/bred.md", "--kb", kb))
    assert bad(call("kb", "purge", "notes/bread.md", "--kb", kb), 2).endswith("add --yes")
    purged = json.loads(good(call("kb", "purge", "notes/bread.md", "--kb", kb, "--yes", "--json")))
    assert purged == {"purged": "notes/bread.md", "revisions": 1}
    assert "no version has a document" in bad(call("kb", "purge", "notes/bread.md", "--kb", kb, "-y"))


def test_purge_asks_on_a_terminal(notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from ctx_vector.cli import kb as cli_kb

    good(call("index", notes, "--kb", tmp_path / "kb"))
    asked: list[str] = []
    monkeypatch.setattr(cli_kb, "agreed", lambda rule, question: bool(asked.append(question)))
    done = call("kb", "purge", "notes/bread.md", "--kb", tmp_path / "kb")
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "nothing was deleted\n")
    assert "notes/bread.md" in asked[0]


def test_export_stats_and_verify(kb: Path, tmp_path: Path):
    rows = [json.loads(line) for line in good(call("kb", "export", "--kb", kb)).splitlines()]
    documents = [row for row in rows if row["type"] == "document"]
    assert len(documents) == 12
    counts = json.loads(good(call("kb", "export", "--kb", kb, "--vectors", "-o", tmp_path / "all.jsonl", "--json")))
    assert counts == {"output": str(tmp_path / "all.jsonl"), "documents": 12, "chunks": len(rows) - 12}
    written = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(written[1]["vector"]) == 384
    assert list(tmp_path.iterdir()) == [tmp_path / "all.jsonl"]
    absent = tmp_path / "no" / "all.jsonl"
    told = bad(call("kb", "export", "--kb", kb, "-o", absent))
    assert told == f"{absent}: No such file or directory; check the path"
    for folder in (str(tmp_path), "."):
        told = bad(call("kb", "export", "--kb", kb, "-o", folder))
        assert told == f"{folder}: Is a directory; give a file"
    assert list(tmp_path.iterdir()) == [tmp_path / "all.jsonl"]
    stats = json.loads(good(call("kb", "stats", "--kb", kb, "--json")))
    assert (stats["documents"], stats["model"]) == (12, "multilingual-e5-small")
    assert "documents    12\n" in good(call("kb", "stats", "--kb", kb))
    report = json.loads(good(call("kb", "verify", "--kb", kb, "--json")))
    assert report["ok"] is True
    assert good(call("kb", "verify", "--kb", kb)).startswith(f"{kb} is sound: 12 documents")


def test_every_kb_command_misses_a_knowledge_base_that_is_not_there(tmp_path: Path):
    commands = (["versions"], ["rollback", 1], ["remove", "x"], ["purge", "x", "-y"], ["reencode", "x"], ["export"],
                ["stats"], ["verify"])  # fmt: skip
    for words in commands:
        assert "there is no knowledge base in" in bad(call("kb", *words, "--kb", tmp_path / "none"))
    assert list(tmp_path.iterdir()) == []


def test_another_model_is_used_from_then_on(notes: Path, tmp_path: Path):
    kb = tmp_path / "kb"
    good(call("index", notes, "--kb", kb))
    report = json.loads(call("kb", "reencode", "all-MiniLM-L6-v2", "--kb", kb, "--json").stdout)
    assert report == {"model": "all-MiniLM-L6-v2", "encoded": 2}
    hits = json.loads(good(call("search", "baking bread", "--kb", kb, "--json", "-n", 1)))
    assert hits[0]["source"] == "notes/bread.md"
    assert ", 0 encoded" in good(call("index", notes, "--kb", kb))
    assert "Bake the bread" in good(call("build", "baking bread", "--kb", kb))
    assert "holds vectors of all-MiniLM-L6-v2" in bad(
        call("search", "q", "--kb", kb, "--model", "multilingual-e5-small")
    )
    assert "unknown model" in bad(call("kb", "reencode", "nonsense", "--kb", kb))


def test_warnings_of_the_library_are_one_line(kb: Path, monkeypatch: pytest.MonkeyPatch):
    def search(*arguments: object) -> list[object]:
        logging.getLogger("ctx_vector.knowledge").warning("index file\nnot used: %s", "why")
        return []

    monkeypatch.setattr(cli_search, "found_hits", search)
    done = call("search", "q", "--kb", kb, "--json")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "[]\n", "warning: index file not used: why\n")
