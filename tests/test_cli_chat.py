"""`chat`: one question, a pipe of questions, and a conversation on a real terminal, with a real server on loopback."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_fixtures import ROOT, bad, call, command, environment, good, kb, quiet_logs, run
from stand_in_server import Server, serving

from ctx_vector import Memory

FIXTURES = (kb, quiet_logs)
ENGLISH = "How do I reduce the memory usage of Pandas?"
CHINESE = "如何优化Pandas的内存占用？"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def test_one_question(server: Server, kb: Path):
    told = ["chat", "--base-url", server.url, "--kb", kb, "--system", "Be brief.", "--max-tokens", "900"]
    answer = good(call(*told, "--once", ENGLISH))
    assert answer.startswith("The sources say: ")
    found = json.loads(good(call(*told, "--once", CHINESE, "--json")))
    assert list(found) == ["question", "answer", "sources", "memories", "tokens", "max_tokens", "warnings"]
    assert (found["question"], found["max_tokens"], found["memories"]) == (CHINESE, 900, [])
    assert found["answer"].startswith("资料说：")
    assert all(re.search(r"knowledge/.*:\d+-\d+$", cite) for cite in found["sources"])
    assert found["sources"]
    assert 0 < found["tokens"] <= 900
    streamed, whole = server.requests
    assert (streamed["stream"], whole["stream"], whole["model"]) == (True, False, "local")
    assert whole["messages"][0]["content"].startswith("[Role & Policies]\nBe brief.\n")
    assert "authorization" in server.headers[0]


def test_a_question_from_a_file_and_a_key(server: Server, tmp_path: Path, monkeypatch):
    (tmp_path / "question.txt").write_text("你好吗？", encoding="utf-8")
    monkeypatch.setenv("CTX_VECTOR_API_KEY", "sesame")
    answer = good(call("chat", "--base-url", server.url, "--no-kb", "--model", "tiny", "--once",
                       f"@{tmp_path / 'question.txt'}"))  # fmt: skip
    assert answer == "我不知道。\n"
    assert server.headers[0]["authorization"] == "Bearer sesame"
    assert server.requests[0]["model"] == "tiny"


def test_lines_from_a_pipe_are_one_conversation(server: Server, tmp_path: Path):
    memory = ["--memory", str(tmp_path / "memory"), "--user", "ada"]
    lines = "My dog is called Pluto.\n\nWhat is my dog called?\n/context\n/why\n/quit\nnever asked\n"
    done = subprocess.run(
        command("chat", "--base-url", server.url, "--no-kb", *memory),
        input=lines, capture_output=True, encoding="utf-8", env=environment(), cwd=tmp_path, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert len(server.requests) == 2
    answers, context = done.stdout.split("[Task]\n")
    assert answers.splitlines() == ["I do not know.", "I do not know."]
    assert context.startswith("What is my dog called?\n")
    assert "user: My dog is called Pluto.\nassistant: I do not know.\n" in context
    assert "Kept: " in context
    assert "Budget: " in context
    assert [message["role"] for message in server.requests[1]["messages"]] == ["system", "user", "assistant", "user"]
    # the next process remembers, another user does not
    found = json.loads(good(call("chat", "--base-url", server.url, "--no-kb", *memory, "--once", "My dog's name?",
                                 "--json")))  # fmt: skip
    assert found["memories"][0].startswith("Q: ")
    assert any("Pluto" in text for text in found["memories"])
    assert found["answer"].startswith("I remember: Q: ")
    found = json.loads(good(call("chat", "--base-url", server.url, "--no-kb", *memory[:2], "--user", "bob", "--once",
                                 "My dog's name?", "--json")))  # fmt: skip
    assert found["memories"] == []


def test_without_a_user_nothing_is_remembered(server: Server, tmp_path: Path, monkeypatch):
    done = run("chat", "--base-url", server.url, "--once", "Hello?", cwd=tmp_path, XDG_DATA_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "I do not know.\n")
    assert done.stderr.startswith("note: there is no knowledge base in ./kb") and done.stderr.count("\n") == 1
    kept = [file.name for file in (tmp_path / "ctx_vector").iterdir()]
    assert [name for name in kept if not name.startswith("audit.")] == []
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own"))
    done = call("chat", "--base-url", server.url, "--once", "Hello?", "--no-audit", "--no-kb")
    assert done.exit_code == 0 and not (tmp_path / "own").exists()


def test_what_goes_wrong_is_one_line(server: Server, tmp_path: Path):
    told = ["chat", "--no-kb", "--memory", tmp_path / "memory", "--once", "Hello?"]
    line = bad(call(*told, "--base-url", "http://127.0.0.1:9/v1"))
    assert line.startswith("no server answers at http://127.0.0.1:9/v1 (")
    assert "llama-server -m model.gguf --port 9, or ollama serve" in line
    assert "404 for the model 'huge'" in bad(call(*told, "--base-url", server.url, "--model", "huge"))
    assert "silent for 0.3 s" in bad(call(*told, "--base-url", server.url, "--model", "slow", "--timeout", "0.3"))
    assert "empty answer" in bad(call(*told, "--base-url", server.url, "--model", "empty", "--json"))
    assert "base_url: expected an address" in bad(call(*told, "--base-url", "localhost"))
    assert "max_tokens" in bad(call(*told, "--base-url", server.url, "--max-tokens", "0"))
    assert "not blank" in bad(call("chat", "--no-kb", "--base-url", server.url, "--once", " "))
    assert "only with --once" in bad(call("chat", "--no-kb", "--json"), 2)
    assert "choose one" in bad(call("chat", "--no-kb", "--kb", "x"), 2)
    with Memory(tmp_path / "memory") as memory:
        assert memory.all() == []


def test_a_pipe_ends_at_the_first_error(tmp_path: Path):
    done = call("chat", "--no-kb", "--base-url", "http://127.0.0.1:9/v1", input="one\ntwo\n")
    assert bad(done).startswith("no server answers at")


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    assert "pip install 'ctx_vector[openai]'" in bad(call("chat", "--no-kb", "--once", "Hello?"))


# -- on a terminal


class Terminal:
    """A process on a pseudo-terminal."""

    def __init__(self, *arguments: object) -> None:
        import pty

        self.master, slave = pty.openpty()
        own = environment(TERM="dumb", COLUMNS="100", NO_COLOR="1", INPUTRC="/dev/null")
        self.process = subprocess.Popen(
            command(*arguments), stdin=slave, stdout=slave, stderr=slave, env=own, cwd=ROOT, start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self.text = ""

    def until(self, pattern: str, seconds: float = 30) -> str:
        """Read until the text matches; return what came, and forget it."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text, re.S)):
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.text!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.master, 65536).decode("utf-8", "replace").replace("\r\n", "\n")
                except OSError:  # the process is gone
                    assert re.search(pattern, self.text, re.S), f"ended without {pattern!r}: {self.text!r}"
        came, self.text = self.text[: found.end()], self.text[found.end() :]
        return came

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def interrupt(self, pattern: str) -> None:
        """Press Ctrl-C until it is heard: Python overlooks one that comes just as it begins to wait for a key."""
        for _ in range(10):
            self.type("\x03")
            try:
                self.until(pattern, seconds=2)
                return
            except AssertionError:
                continue
        raise AssertionError(f"no {pattern!r} in {self.text!r}")

    def close(self) -> int:
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            os.close(self.master)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_conversation_on_a_terminal(server: Server, tmp_path: Path):
    terminal = Terminal("chat", "--base-url", server.url, "--model", "long", "--no-kb", "--memory", tmp_path / "memory")
    assert f"Talking to long at {server.url}. /why, /context, /help, /quit" in terminal.until("> ")
    terminal.type("/why\n")
    terminal.until("nothing was asked yet.*> ")
    terminal.interrupt(r"\(stopped; /quit or Ctrl-D ends\).*> ")
    terminal.type("Count to 500.\n")
    terminal.until("word5 ")
    terminal.interrupt(r"\(stopped; .*> ")
    assert server.left_early.wait(5)
    terminal.type("/context\n")
    terminal.until(r"\[Task\]\nCount to 500\.\n.*> ")
    terminal.type("/nonsense\n")
    terminal.until("unknown command /nonsense.*/quit.*> ")
    server.shutdown()
    server.server_close()
    terminal.type("And on?\n")
    terminal.until("error: (no server answers at|the answer of).*> ")  # it goes on
    terminal.type("\x04")
    assert terminal.close() == 0
    with Memory(tmp_path / "memory") as memory:
        (row,) = memory.all()
    assert row.content.startswith("Q: Count to 500.\nA: word0 word1 ")
