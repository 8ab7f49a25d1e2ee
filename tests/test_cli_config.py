"""`config check` and `config schema`: what is said about a settings file, right or wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_fixtures import call, good, quiet_logs

from ctx_vector.cli.inputs import read_config
from ctx_vector.settings_schema import settings_schema

FIXTURES = (quiet_logs,)

RIGHT = """
model: {name: local, max_tokens: 10000}
budget: {memory: 0.05, dynamic: 0.45}
sources:
  rules: {layer: system, loader: "text:rules.md", version: 2.10}
  问答: {layer: static, loader: "yaml:faq.yaml", min_share: 0.25, max_share: 0.5, authoritative: true}
  small: {layer: dynamic, loader: "yaml:faq.yaml", max_tokens: 300, expires: 30d}
  off: {layer: agents, loader: "python:nothing.here", enabled: false}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rules.md").write_text("先核实身份，再回答问题。", encoding="utf-8")
    (tmp_path / "faq.yaml").write_text("- 七天\n", encoding="utf-8")
    (tmp_path / "right.yaml").write_text(RIGHT, encoding="utf-8")
    return tmp_path


def test_a_right_file_is_shown_with_its_budget(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "120")
    shown = good(call("config", "check", folder / "right.yaml"))
    lines = [line.split() for line in shown.splitlines()]
    assert shown.startswith("right.yaml is right: 4 sources, 8,000 tokens in all\n")
    for layer in (
        ["system", "10%", "800"],
        ["dynamic", "45%", "3,600"],
        ["memory", "5%", "400"],
        ["buffer", "5%", "400"],
    ):
        assert layer in lines
    assert ["问答", "static", "0", "400", "800", "shared", "yaml:faq.yaml", "authoritative"] in lines
    assert ["small", "dynamic", "0", "0", "300", "shared", "yaml:faq.yaml", "expires", "30d"] in lines
    assert ["off", "agents", "0", "0", "3,600", "shared", "python:nothing.here", "off"] in lines
    assert "version 2.10" in shown


def test_json_has_the_same_numbers(folder: Path):
    found = json.loads(good(call("config", "check", folder / "right.yaml", "--json")))
    assert list(found) == ["ok", "problems", "total", "model", "base_dir", "scope", "layers", "sources", "audit"]
    assert (found["ok"], found["problems"], found["total"]) == (True, [], 8000)
    assert found["layers"]["static"] == {"share": 0.2, "tokens": 1600}
    rules, faq, small, off = found["sources"]
    assert (rules["name"], rules["most_tokens"], rules["version"]) == ("rules", 800, "2.10") and rules["tokens"] > 5
    assert (faq["least_tokens"], faq["most_tokens"], faq["share_of"]) == (400, 800, "static")
    assert (small["most_tokens"], off["share_of"], off["enabled"]) == (300, "dynamic", False)
    assert found["audit"]["path"].endswith("audit.sqlite3")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("flat.yaml", "max_tokens: 500\ncitations: true\nstrategy: hybrid\n"),
        ("平.yml", "max_tokens: 500\nlocale: zh\n"),
        ("under.yaml", "context: {max_tokens: 500}\n"),
        ("flat.toml", 'max_tokens = 500\nstrategy = "bm25"\n'),
        ("under.json", '{"context": {"max_tokens": 500}}'),
        ("empty.yaml", ""),
    ],
)
def test_what_build_reads_is_right(name: str, text: str, folder: Path):
    (folder / name).write_text(text, encoding="utf-8")
    total = read_config(str(folder / name), {}).max_tokens
    assert good(call("config", "check", folder / name)) == f"{name} is right: 0 sources, {total:,} tokens in all\n"
    shown = json.loads(good(call("config", "check", folder / name, "--json")))
    assert (shown["ok"], shown["total"]) == (True, total)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", "max_tokens: 500\nmin_relevence: 0.2", "min_relevence (line 2): unknown field; did you mean"),
        ("a.toml", "max_tokens = 0", "max_tokens: expected an integer >= 1"),
        ("a.json", '{"max_tokens": 5, "fil": 1}', "fil: unknown field; did you mean 'fill'?"),
        ("b.json", "{", "b.json is no valid JSON"),
        ("nowhere.toml", None, "nowhere.toml"),
    ],
)
def test_what_build_refuses_is_wrong(name: str, text: str | None, words: str, folder: Path):
    if text is not None:
        (folder / name).write_text(text, encoding="utf-8")
    done = call("config", "check", folder / name)
    assert done.exit_code == 1 and words in done.stderr and (text is None or "error: 1 problem in " in done.stderr)


def test_every_problem_is_a_line_and_the_exit_code_is_1(folder: Path):
    wrong = folder / "wrong.yaml"
    wrong.write_text(RIGHT.replace("layer: static", "layer: statik").replace("model:", "modle:"), encoding="utf-8")
    done = call("config", "check", wrong, "--scope", "agent_a")
    first, *_, last = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (1, "")
    assert first == "modle (line 2): unknown section; did you mean 'model'?"
    assert last == f"error: 6 problems in {wrong}" and len(done.stderr.splitlines()) == 7
    told = json.loads(call("config", "check", wrong, "--scope", "agent_a", "--json").stdout)
    assert told["ok"] is False and told["problems"] == done.stderr.splitlines()[:-1]


def test_python_runs_only_when_allowed(folder: Path):
    (folder / "tools.py").write_text("def order(request):\n    return 'x'\n", encoding="utf-8")
    path = folder / "python.yaml"
    path.write_text("sources: {order: {layer: tool, loader: 'python:tools.order'}}", encoding="utf-8")
    for command in (["config", "check", path], ["build", "q", "--no-kb", "--config", path]):
        told = call(*command).stderr
        assert "python: runs code, which was not allowed; pass --allow-python if you trust it" in told
    assert "1 source" in good(call("config", "check", path, "--allow-python"))
    path.write_text("sources: {order: {layer: tool, loader: 'python:tools.orders'}}", encoding="utf-8")
    assert "expected a function orders in tools" in call("config", "check", path, "--allow-python").stderr


def test_rules_over_their_share_are_an_error_at_the_start(folder: Path):
    path = folder / "big.yaml"
    path.write_text("budget: {total: 500}\nsources: {rules: {layer: system, loader: 'text:big.md'}}", encoding="utf-8")
    (folder / "big.md").write_text("规则。" * 100, encoding="utf-8")
    told = call("config", "check", path).stderr
    assert told.startswith("budget.system: the layer system takes ") and "(rules " in told and "share of 50;" in told
    (folder / "big.md").write_bytes(b"\x00")
    assert "is no text" in call("config", "check", path).stderr


def test_a_missing_file_is_one_line():
    assert call("config", "check", "missing.yaml").stderr.splitlines() == [
        "missing.yaml: cannot be read: No such file or directory", "error: 1 problem in missing.yaml"
    ]  # fmt: skip
    assert "Missing argument" in bad_usage(call("config", "check"))


def bad_usage(done) -> str:
    assert done.exit_code == 2
    return done.stderr


def test_the_schema_is_printed():
    assert json.loads(good(call("config", "schema"))) == settings_schema()
    assert json.loads(good(call("config", "schema", "--json"))) == settings_schema()


def test_checking_makes_no_files(folder: Path):
    path = folder / "session.yaml"
    path.write_text("sources: {before: {layer: memory, loader: 'session:'}}", encoding="utf-8")
    before = sorted(folder.rglob("*"))
    assert "1 source" in good(call("config", "check", path))
    assert sorted(folder.rglob("*")) == before
    path.write_text(path.read_text(encoding="utf-8") + "\naudit: {enabled: false}", encoding="utf-8")
    assert "sources.before.loader (line 1): session: reads the audit" in call("config", "check", path).stderr
