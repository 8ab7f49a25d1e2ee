"""The command line as a whole: exit codes, streams, terminals, interruption, and the two readers of `search`."""

from __future__ import annotations

import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from cli_fixtures import bad, call, command, environment, good, kb, notes, quiet_logs, run
from typer.main import get_command

import ctx_vector
from ctx_vector.cli import opening as cli_opening
from ctx_vector.cli import search as cli_search
from ctx_vector.cli.app import app

FIXTURES = (kb, notes, quiet_logs)


def test_version_and_the_two_ways_to_start():
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"ctx-vector {ctx_vector.__version__}\n", "")
    code = "from ctx_vector.cli import main; main(['--version'])"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert other.stdout == done.stdout


def test_usage_errors_exit_with_2():
    for arguments in (["nonsense"], ["search"], ["search", "a", "b"], ["index"], ["search", "q", "--limit", "many"]):
        done = call(*arguments)
        assert done.exit_code == 2, arguments
        assert done.stdout == ""
        assert "Usage:" in done.stderr


def test_search_answers_in_chinese_with_only_the_result_on_stdout(kb: Path):
    done = run("search", "如何优化Pandas的内存占用？", "--kb", kb, "--limit", "2")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("1. 0.9")
    assert "knowledge/zh/pandas-memory.md:" in lines[0]
    assert lines[1].startswith("   优化 Pandas 的内存占用")
    assert any(line.startswith("2. ") for line in lines)
    assert not any(line.startswith("3. ") for line in lines)
    assert "\x1b" not in done.stdout


def test_a_plain_search_loads_little(kb: Path):
    code = (
        "import sys; from ctx_vector.cli import main\n"
        f"try: main(['search', 'memory', '--kb', {str(kb)!r}, '--json'])\n"
        "except SystemExit: pass\n"
        "heavy = {'typer', 'rich', 'pydantic', 'click', 'yaml', 'torch', 'tokenizers', 'tiktoken', 'onnx', 'bs4', "
        "'docutils', 'sentence_transformers', 'asyncio', 'multiprocessing', 'filelock'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert json.loads(done.stdout)[0]["source"].endswith(".md")


@pytest.mark.parametrize(
    "arguments",
    [
        ["a question"],
        ["q", "--kb", "x", "--limit", "3", "--min-score", "0.5", "--json"],
        ["--kb=x", "-n", "2", "q", "--filter", "source=a*", "--filter=tag=b=c", "--model", "m"],
        ["--limit", "1", "--", "--kb"],
        ["q", "--limit", "-1", "--min-score", "1e-3"],
        ["", "--filter", ""],
        ["--kb", "a", "q", "--kb", "b"],
    ],
)
def test_a_plain_search_is_read_as_typer_reads_it(arguments: list[str], monkeypatch: pytest.MonkeyPatch):
    seen: list[cli_search.Search] = []
    monkeypatch.setattr(cli_search, "search", lambda asked: seen.append(asked) or 0)
    assert call("search", *arguments).exit_code == 0
    plain = cli_search.read_plain(arguments)
    assert plain is not None
    assert [*map(repr, seen)] == [repr(plain)]


@pytest.mark.parametrize(
    "arguments",
    [[], ["a", "b"], ["q", "--help"], ["q", "-h"], ["q", "--limit"], ["q", "--limit", "x"], ["q", "--nonsense"],
     ["q", "-n3"], ["q", "--json=1"], ["q", "--min-score", "low"], ["q", "-x", "1"]],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_typer(arguments: list[str]):
    assert cli_search.read_plain(arguments) is None


def test_the_plain_reader_knows_every_option_of_search():
    options = {name for param in get_command(app).commands["search"].params for name in getattr(param, "opts", ())}
    named = {name for name in options if name.startswith("-")}
    assert named - {"-h", "--help", "--json"} == set(cli_search.VALUES)


def test_a_verbose_run_logs_to_stderr_only(kb: Path):
    done = run("-v", "build", "内存", "--kb", kb)
    assert done.returncode == 0
    assert done.stdout.startswith("[Task]\n内存\n")
    assert "info: " in done.stderr


@pytest.mark.parametrize("lines", [0, 1])
def test_a_reader_that_goes_away_is_no_error(lines: int, kb: Path):
    for arguments in (["kb", "export", "--kb", kb, "--vectors"], ["search", "memory", "--kb", kb, "--json"])[
        : 2 - lines
    ]:
        with subprocess.Popen(
            command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for _ in range(lines):
                assert process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(timeout=60) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals of this kind")
def test_a_terminal_gets_colours_and_a_progress_bar(kb: Path, notes: Path, tmp_path: Path):
    shown = on_terminal("search", "memory", "--kb", kb, "-n", "1")
    assert "\x1b[1;32m" in shown
    assert "\x1b[" not in on_terminal("search", "memory", "--kb", kb, "-n", "1", NO_COLOR="1")
    assert "\x1b[" not in on_terminal("search", "memory", "--kb", kb, "-n", "1", "--json")
    shown = on_terminal("index", notes, "--kb", tmp_path / "kb")
    assert "indexing" in shown
    assert "2 added" in shown


def on_terminal(*arguments: object, **changes: str) -> str:
    ours, theirs = os.openpty()
    env = environment(TERM="xterm-256color", COLUMNS="80", **changes)
    process = subprocess.Popen(command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError as error:
            assert error.errno == errno.EIO  # Linux: the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait(timeout=60) == 0, shown.decode()
    return shown.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_ctrl_c_keeps_what_was_encoded(tmp_path: Path):
    docs, kb = tmp_path / "docs", tmp_path / "kb"
    docs.mkdir()
    for number in range(160):
        text = " ".join(f"Sentence {number}.{line} tells what happened on day {number * line}." for line in range(5))
        (docs / f"{number}.md").write_text(text, encoding="utf-8")
    quiet = environment(PYTHONWARNINGS="ignore")  # a signal inside os.fdopen may leave a file for the collector
    process = subprocess.Popen(
        command("index", docs, "--kb", kb), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quiet
    )
    deadline = time.monotonic() + 60
    while encodings(kb) == 0 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)  # an impatient user
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stdout == ""
    # Python itself may tell of an interrupt in a callback of its own, which does no harm
    assert "interrupted; what was encoded is kept, run the same command again to go on\n" in stderr
    assert "Traceback (most recent call last):\n  File" not in stderr.split("Exception ignored", 1)[0]
    kept = encodings(kb)
    assert 0 < kept < 160
    report = json.loads(run("index", docs, "--kb", kb, "--json").stdout)
    assert report["documents"]["added"] == 160
    assert report["encoded"] == report["chunks"] - kept


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
@pytest.mark.parametrize(("given", "code"), [(["--version"], 0), (["search", " ", "--kb", "none"], 2)])
def test_ctrl_c_while_a_command_ends_changes_nothing(given: list[str], code: int):
    script = """
        import atexit, os, signal, sys
        from ctx_vector.cli import main

        atexit.register(os.kill, os.getpid(), signal.SIGINT)
        sys.argv = ["ctx-vector", *sys.argv[1:]]
        main()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *given], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == code and "Exception" not in done.stderr and "Interrupt" not in done.stderr


def encodings(kb: Path) -> int:
    try:
        connection = sqlite3.connect(f"file:{kb / 'ctx.sqlite3'}?mode=ro", uri=True)
    except sqlite3.Error:
        return 0
    try:
        return int(connection.execute("SELECT count(*) FROM encodings").fetchone()[0])
    except sqlite3.Error:
        return 0
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "kb"), "kb: No space left on device; make room on the disk"),
        (PermissionError(errno.EACCES, "Permission denied", "kb"), "kb: Permission denied; check the permissions"),
        (MemoryError(), "not enough memory"),
        (ZeroDivisionError("division by zero"), "unexpected ZeroDivisionError: division by zero"),
    ],
)
def test_every_failure_is_one_line(error: Exception, expected: str, monkeypatch: pytest.MonkeyPatch):
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(cli_search, "found_hits", fail)
    assert bad(call("search", "q")).startswith(expected)


def test_interruption_before_any_work(monkeypatch: pytest.MonkeyPatch):
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_search, "found_hits", interrupt)
    done = call("search", "q")
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_output_that_the_terminal_cannot_show_is_escaped(kb: Path):
    done = run("search", "如何优化Pandas的内存占用？", "--kb", kb, "-n", "1", "--json", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0
    assert json.loads(done.stdout)[0]["content"].startswith("## 先测量") or "\\u" in done.stdout


def test_first_use_tells_that_the_model_is_prepared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from ctx_vector import model_store

    steps = []

    def prepare(name, *, source=None, progress=None):
        progress("reading the weights", 0.0)
        steps.append(name)
        return Path("there")

    monkeypatch.setattr(model_store, "prepare", prepare)
    monkeypatch.setattr(model_store, "read_manifest", lambda folder: None)
    assert cli_opening.prepare_model("multilingual-e5-small") == Path("there")
    assert steps == ["multilingual-e5-small"]
    assert capsys.readouterr().err == "preparing the model multilingual-e5-small; this happens once\n"


def test_help_is_no_error():
    assert good(call("--help")).startswith("Usage: ")
    assert good(call("kb", "export", "-h")).startswith("Usage: ")
