"""`ctx-vector inspect` as a process: it says where it listens, answers, and ends when told to."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from cli_fixtures import bad, call, command, environment, kb, quiet_logs

from ctx_vector.cli.common import INTERRUPTED

__all__ = ["kb", "quiet_logs"]


@pytest.fixture
def started(kb: Path):
    processes = []

    def start(*arguments: object) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            command("inspect", "--kb", kb, "--port", 0, *arguments),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip
        processes.append(process)
        shown = process.stdout.readline()
        if "--json" in arguments:
            while not shown.rstrip().endswith("}"):
                shown += process.stdout.readline()
            shown = json.loads(shown)["url"]
        return process, shown.strip()

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_it_says_where_it_listens_answers_and_stops(started, kb: Path):
    made = (kb / "audit.sqlite3").exists()  # by another test
    process, url = started("--json")
    assert url.startswith("http://127.0.0.1:") and len(url.split("token=")[1]) >= 32
    with httpx.Client(follow_redirects=True) as client:
        assert client.get(url.split("?")[0]).status_code == 401
        assert client.get(url).status_code == 200
        assert "pandas-memory.md" in client.get(url.split("?")[0] + "knowledge").text
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout, stderr) == (INTERRUPTED, "", "interrupted\n")
    assert (kb / "audit.sqlite3").exists() == made  # looking makes nothing


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM handler")
def test_the_token_may_come_from_a_file_and_sigterm_ends_it(started, tmp_path: Path):
    secret = tmp_path / "token"
    secret.write_text("0123456789abcdef0123\n", encoding="utf-8")
    process, url = started("--token", f"@{secret}")
    assert url.endswith("/?token=0123456789abcdef0123")
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM) and "Traceback" not in stderr


def test_a_port_in_use_is_told(kb: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = bad(call("inspect", "--kb", kb, "--port", port))
    assert told.startswith(f"127.0.0.1:{port} cannot be used: ") and told.endswith(
        "give another --port, or 0 for a free one"
    )


def test_what_is_not_there_is_told(kb: Path, tmp_path: Path):
    assert "no such file" in bad(call("inspect", "--kb", kb, "--audit", tmp_path / "none"), 2)
    assert "name the address" in bad(call("inspect", "--kb", kb, "--host", "0.0.0.0"), 2)
    assert "no such folder" in bad(call("inspect", "--kb", kb, "--reports", tmp_path / "none"), 2)
    for more in ([], ["--reports", tmp_path]):
        told = bad(call("inspect", "--kb", tmp_path / "missing", "--port", 0, *more), 1)
        assert told.startswith(f"there is no knowledge base in {tmp_path / 'missing'}; make one with: ctx-vector index")
    assert "at least 16 characters, got 3" in bad(call("inspect", "--kb", kb, "--port", 0, "--token", "abc"))


def test_without_the_extra_the_error_names_it(kb: Path, monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("ctx_vector.inspector")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert bad(call("inspect", "--kb", kb)).endswith("pip install 'ctx_vector[web]'")
