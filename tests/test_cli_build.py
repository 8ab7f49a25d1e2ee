"""`build`: what goes in from files, what comes out in three formats, and what is said about wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_fixtures import DATA, bad, call, good, kb, quiet_logs, run

from ctx_vector import TokenCounter

FIXTURES = (kb, quiet_logs)
QUERY = "如何优化Pandas的内存占用？"
PLAIN = ["--no-kb", "--strategy", "jaccard"]


def text_file(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_the_context_alone_is_on_stdout(kb: Path):
    done = run("build", QUERY, "--kb", kb, "--system", "你是数据分析顾问。", "--max-tokens", "800",
               "--history", DATA / "history" / "pandas_zh.jsonl")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    headers = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert headers == ["[Role & Policies]", "[Task]", "[Evidence]", "[Context]", "[Output]"]
    assert "\nuser: 我有一个很大的CSV文件" in done.stdout
    assert TokenCounter().count(done.stdout) <= 800


def test_messages_and_json(kb: Path):
    options = ["--kb", kb, "--system", "Be brief.", "--now", "2025-06-01T00:00:00Z"]
    messages = json.loads(good(call("build", QUERY, *options, "--format", "messages")))
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[-1]["content"] == QUERY
    built = json.loads(good(call("build", QUERY, *options, "--json")))
    assert built == json.loads(good(call("build", QUERY, *options, "--format", "json"))) | {"meta": built["meta"]}
    keys = ["text", "messages", "sections", "kept", "dropped", "budget", "stats", "meta", "warnings", "tools"]
    assert list(built) == keys
    assert built["messages"] == messages
    assert built["meta"]["now"] == "2025-06-01T00:00:00+00:00"
    assert built["text"] == good(call("build", QUERY, *options))


def test_explain_shows_every_candidate_and_the_budget(kb: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "120")
    options = ["--kb", kb, "--max-tokens", "500", "--history", DATA / "history" / "pandas_zh.jsonl"]
    built = json.loads(call("build", QUERY, *options, "--json").stdout)
    shown = good(call("build", QUERY, *options, "--explain"))
    assert shown.startswith(built["text"])
    table = shown[len(built["text"]) :]
    assert f"Kept: {len(built['kept'])} items" in table
    assert f"Dropped: {len(built['dropped'])} item" in table
    for item in (*built["kept"], *built["dropped"]):
        if item["packet"]["metadata"].get("cite"):
            assert item["packet"]["metadata"]["cite"] in table
    budget = built["budget"]
    assert f"Budget: {budget['total_used']:,} of 500 tokens" in table
    for warning in built["warnings"]:
        assert f"Warning: {warning}" in table
    monkeypatch.setenv("COLUMNS", "80")
    narrow = good(call("build", QUERY, *options, "--explain"))[len(built["text"]) :]
    assert "rel." in narrow
    assert max(len(line) for line in narrow.splitlines() if not line.startswith(("Budget", "Warning"))) <= 80


def test_a_kb_of_the_working_directory_is_used_unless_told_not_to(
    kb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kb").symlink_to(kb)
    assert "[Evidence]" in good(call("build", QUERY))
    assert "[Evidence]" not in good(call("build", QUERY, *PLAIN))
    assert "choose one" in bad(call("build", QUERY, "--kb", "kb", "--no-kb"), 2)
    (tmp_path / "kb").unlink()
    done = call("build", QUERY, "--strategy", "jaccard")
    assert done.exit_code == 0 and "[Evidence]" not in done.stdout
    assert done.stderr == (
        "note: there is no knowledge base in ./kb, so none is used; name one with --kb, or say --no-kb\n"
    )


def test_history_in_every_form(tmp_path: Path):
    rows = [{"role": "user", "content": "你好"}, {"role": "assistant", "content": "Hello"}]
    lines = "\n".join(json.dumps(row) for row in rows)
    for name, text in (
        ("a.jsonl", lines + "\n\n"),
        ("b.jsonl", "\ufeff" + lines),
        ("c.json", json.dumps(rows, indent=1)),
        ("d.json", json.dumps({"messages": rows}, indent=1)),
    ):
        shown = good(call("build", "q", *PLAIN, "--history", text_file(tmp_path, name, text)))
        assert "[Context]\nuser: 你好\nassistant: Hello\n" in shown, name
    shown = good(call("build", "q", *PLAIN, "--history", "-", input=lines))
    assert "user: 你好" in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"role":"user","content":"a"}\n\n{"role":}\n', "line 3: no valid JSON"),
        ('{"role":"user","content":"a"}\n{"content":"b"}\n', "line 2: message: expected"),
        ('{"role":"user","content":"a"}\n["x"]\n', "line 2: expected an object with 'role' and 'content'"),
        ('[{"role":"user","content":"a"}, {"role": ""}]', "item 2: message role: expected a name"),
        ('[{"role":"user"', "is no valid JSON"),
        ('{"role":"user","content":"a","timestamp":"soon"}', "item 1: timestamp"),
    ],
)
def test_a_broken_history_names_the_place(text: str, expected: str, tmp_path: Path):
    message = bad(call("build", "q", *PLAIN, "--history", text_file(tmp_path, "h.jsonl", text)))
    assert message.startswith("--history: ")
    assert "h.jsonl" in message
    assert expected in message


def test_state_and_system_from_text_and_file(tmp_path: Path):
    shown = good(call("build", "q", *PLAIN, "--state", '{"步骤": 2, "done": "no"}', "--system", "@" + str(
        text_file(tmp_path, "system.txt", "Answer in Chinese.\n"))))  # fmt: skip
    assert "[Role & Policies]\nAnswer in Chinese.\n" in shown
    assert "[State]\n步骤: 2\ndone: no\n" in shown
    path = text_file(tmp_path, "state.json", '{"a": 1}')
    assert "[State]\na: 1\n" in good(call("build", "q", *PLAIN, "--state", f"@{path}"))
    assert "[State]\njust words\n" in good(call("build", "q", *PLAIN, "--state", "just words"))
    assert "--state" in bad(call("build", "q", *PLAIN, "--state", "{broken"))
    assert "No such file" in bad(call("build", "q", *PLAIN, "--system", "@nowhere.txt"))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    assert "is not UTF-8 text (byte 3)" in bad(call("build", "q", *PLAIN, "--system", f"@{tmp_path / 'latin.txt'}"))


def test_documents_are_evidence_with_their_lines(tmp_path: Path):
    path = text_file(tmp_path, "退货.md", "# 退货\n\n七天内可以 退货 。\n")
    shown = good(call("build", "退货 怎么办", *PLAIN, "--document", path, "--citations"))
    assert f"[资料: {path}:1-3]" in shown
    (tmp_path / "binary.md").write_bytes(b"\0\0")
    assert "binary file" in bad(call("build", "q", *PLAIN, "--document", tmp_path / "binary.md"))
    assert "nowhere.md" in bad(call("build", "q", *PLAIN, "--document", "nowhere.md"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "max_tokens: 500\nlocale: zh\noutput_instructions: 只说要点。\n"),
        ("c.yml", "context:\n  max_tokens: 500\n  locale: zh\n  output_instructions: 只说要点。\n"),
        ("c.toml", '[context]\nmax_tokens = 500\nlocale = "zh"\noutput_instructions = "只说要点。"\n'),
        ("c.json", '{"max_tokens": 500, "locale": "zh", "output_instructions": "只说要点。"}'),
    ],
)
def test_a_config_in_every_format(name: str, text: str, tmp_path: Path):
    path = text_file(tmp_path, name, text)
    built = json.loads(good(call("build", "q", *PLAIN, "--config", path, "--json")))
    assert built["budget"]["total_limit"] == 500
    assert built["text"].endswith("[Output]\n只说要点。\n")
    built = json.loads(good(call("build", "q", *PLAIN, "--config", path, "--max-tokens", "90", "--json")))
    assert built["budget"]["total_limit"] == 90


def test_a_wrong_config_tells_all_its_faults(tmp_path: Path):
    text = "context:\n  max_tokens: -1\n  stratgy: cosine\n  min_relevance: 2\nsourcs: {}\nmodel: 3\n"
    message = bad(call("build", "q", "--no-kb", "--config", text_file(tmp_path, "c.yaml", text), "--fill", "sometimes"))
    assert message.startswith("6 configuration problems: ")
    for part in (
        "sourcs (line 5): unknown section",
        "model (line 6): ",
        "max_tokens (line 2): expected",
        "did you mean 'strategy'",
        "min_relevance (line 4): ",
        "fill: expected",
    ):
        assert part in message
    for name, text, part in (
        ("c.yaml", "a: [1", "is no valid YAML"),
        ("c.toml", "a = ", "is no valid TOML"),
        ("c.json", "{", "is no valid JSON"),
        ("c.ini", "a", "expected a .yaml, .toml or .json file"),
        ("c.yaml", "- 1\n", "expected fields with values, got list"),
        ("c.yaml", "context: 3\n", "context: expected a mapping"),
    ):
        assert part in bad(call("build", "q", "--no-kb", "--config", text_file(tmp_path, name, text))), name
    assert good(call("build", "q", *PLAIN, "--config", text_file(tmp_path, "c.yaml", ""))).startswith("[Task]")


def test_an_unknown_strategy_names_the_nearest():
    assert "did you mean 'cosine'" in bad(call("build", "q", "--no-kb", "--strategy", "cosin"))


def test_a_budget_that_is_too_small_names_the_smallest_one():
    message = bad(call("build", "q", *PLAIN, "--max-tokens", 10, "--system", "Be brief and kind."))
    smallest = message.split()[-1]
    assert message.endswith(f"set max_tokens to at least {smallest}")
    done = call("build", "q", *PLAIN, "--max-tokens", smallest, "--system", "Be brief and kind.")
    assert done.exit_code == 0
    assert done.stderr.startswith("warning: system instructions, Task and Output take")
    bad(call("build", "q", *PLAIN, "--max-tokens", int(smallest) - 1, "--system", "Be brief and kind."))


def test_other_wrong_input(tmp_path: Path):
    assert "--format: expected one of text, messages, json" in bad(call("build", "q", "--no-kb", "--format", "xml"), 2)
    assert "there is no knowledge base in" in bad(call("build", "q", "--kb", tmp_path / "none"))
    assert "now" in bad(call("build", "q", *PLAIN, "--now", "tomorrow"))
    assert "No such file" in bad(call("build", "q", *PLAIN, "--history", tmp_path / "none.jsonl"))


def test_explain_names_the_twin_by_its_file_and_shows_what_a_call_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    for name in ("退货.md", "copy.md"):
        (tmp_path / name).write_text("returns within thirty days\n", encoding="utf-8")
    call_ = {"id": "c1", "type": "function", "function": {"name": "find_order", "arguments": '{"id": "A1"}'}}
    said = [
        {"role": "user", "content": "我的订单呢？"},
        {"role": "assistant", "content": None, "tool_calls": [call_]},
        {"role": "tool", "tool_call_id": "c1", "content": "已发货"},
    ]
    (tmp_path / "said.json").write_text(json.dumps(said), encoding="utf-8")
    shown = good(
        call("build", "returns within how many days", *PLAIN, "--document", "退货.md", "--document", "copy.md",
             "--history", "said.json", "--explain")
    )  # fmt: skip
    kept, dropped = shown.split("Kept: ")[1].split("Dropped: ")
    names = {"退货.md:1-1", "copy.md:1-1"}
    (kept_name,) = [name for name in names if name in kept]
    assert f"→ same text as {kept_name}" in dropped
    assert 'find_order({"id": "A1"})' in kept


def test_what_the_table_says_of_a_failed_source_is_not_said_twice(tmp_path: Path):
    (tmp_path / "broken.py").write_text("def order(request):\n    raise ValueError('数据库连不上')\n", encoding="utf-8")
    settings = text_file(tmp_path, "c.yaml", "sources: {order: {layer: tool, loader: 'python:broken.order'}}\n")
    given = ["build", "q", *PLAIN, "--config", settings, "--allow-python"]
    told = call(*given)
    assert (told.exit_code, told.stderr) == (0, "warning: source order: fault: ValueError: 数据库连不上\n")
    explained = call(*given, "--explain")
    assert (explained.exit_code, explained.stderr) == (0, "")
    assert explained.stdout.count("Warning: source order: ValueError: 数据库连不上") == 1
