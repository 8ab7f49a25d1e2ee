"""Every command explains itself, with an example, and README.md knows them all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from cli_fixtures import ROOT, call, run
from typer.main import get_command
from typer.testing import CliRunner

from ctx_vector.cli.app import app
from ctx_vector.cli.options import keep_lines_of_examples


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


COMMANDS = dict(commands(get_command(app)))
EXPECTED = {
    "index",
    "search",
    "build",
    "chat",
    "ab",
    "tune",
    "mcp",
    "inspect",
    "doctor",
    "config check",
    "config schema",
}
EXPECTED |= {*(f"kb {name}" for name in (
    "versions", "rollback", "remove", "purge", "reencode", "export", "stats", "verify"
)), *(f"memory {name}" for name in (
    "add", "search", "list", "update", "remove", "forget", "consolidate", "stats", "export", "import", "clear"
)), *(f"models {name}" for name in ("list", "prepare", "verify", "calibrate"))}  # fmt: skip
EXPECTED |= {f"audit {name}" for name in ("list", "show", "replay", "diff", "stats", "feedback", "purge")}


def test_all_commands_are_there():
    assert {" ".join(words) for words in COMMANDS} == EXPECTED


@pytest.mark.parametrize("indent", ["    ", ""], ids=["as written", "as Python 3.13 gives it"])
def test_the_lines_of_an_example_are_kept(indent: str):
    def command() -> None: ...

    command.__doc__ = f"Do it.\n\n{indent}For example:\n{indent}  ctx-vector do it\n{indent}"
    keep_lines_of_examples(command)
    assert command.__doc__ == "Do it.\n\n\b\nFor example:\n  ctx-vector do it"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_explains_every_parameter(words: tuple[str, ...]):
    done = call(*words, "--help")
    assert (done.exit_code, done.stderr) == (0, "")
    examples = re.findall(r"^ {4}ctx-vector (.+)$", done.stdout, re.M)
    assert examples, "an example on a line of its own"
    assert all(example.startswith(" ".join(words)) for example in examples)
    for param in COMMANDS[words].params:
        if param.name != "help":
            assert param.help, f"{param.name} is not explained"
            assert param.help.split()[-1].endswith((".", "]", ").")), param.help
    assert any("--json" in param.opts for param in COMMANDS[words].params)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_examples_are_read_without_error(words: tuple[str, ...]):
    import shlex

    for example in re.findall(r"^ {4}ctx-vector (.+)$", call(*words, "--help").stdout, re.M):
        arguments = shlex.split(example)[len(words) :]
        COMMANDS[words].make_context("x", arguments, resilient_parsing=False)


def readme_section() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    match = re.search(r"^## Command line\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert match, "README.md has no section 'Command line'"
    return match[1]


def test_the_readme_names_every_command():
    section = readme_section()
    missing = [
        " ".join(words)
        for words in COMMANDS
        if not all(re.search(rf"\b{re.escape(word)}\b", section) for word in words)
    ]
    assert missing == []


def test_the_readme_names_every_option():
    section = readme_section()
    options = {
        max(param.opts, key=len)
        for command in COMMANDS.values()
        for param in command.params
        if param.opts and param.opts[0].startswith("-") and param.name != "help"
    }
    missing = sorted(option for option in options if not re.search(rf"{re.escape(option)}(?![\w-])", section))
    assert missing == []


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("k", {"kb"}), ("kb r", {"rollback", "remove", "reencode"}), ("mcp --no-", {"--no-memory", "--no-audit"}),
     ("mcp --settings cl", {"claude-desktop", "claude-code", "cline"}),
     ("build q --strategy co", {"cosine", "cosine_raw"}), ("build q --fill s", {"skip", "stop"}),
     ("search q --rerank l", {"late"}),
     ("search q --strategy h", {"hybrid", "hybrid_rrf"}), ("memory search q --strategy b", {"bm25"}),
     ("memory forget --strategy c", {"capacity_based"}), ("build q --format m", {"messages"}),
     ("doctor --", {"--kb", "--memory", "--json", "--help"})],
)  # fmt: skip
def test_the_tab_key_completes(typed: str, offered: set[str]):
    words = f"ctx-vector {typed}"
    asked = {"_CTX_VECTOR_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = CliRunner().invoke(app, prog_name="ctx-vector", env=asked)
    assert (done.exit_code, done.stderr) == (0, "")
    assert set(done.stdout.split()) == offered
    if typed == "kb r":  # and by the command as a shell starts it
        assert run(**asked).stdout == done.stdout


def test_the_version():
    import ctx_vector

    assert run("--version").stdout == f"ctx-vector {ctx_vector.__version__}\n"
