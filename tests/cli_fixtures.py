"""What the tests of the command line share: ways to run it, and one indexed knowledge base."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from typer.testing import CliRunner, Result

from ctx_vector.cli.app import app
from ctx_vector.cli.common import set_up_logging

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ctx_vector", *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    return own | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "PYTHONWARNINGS": "error"} | changes


def run(*arguments: object, cwd: Path | None = None, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a real process."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        encoding="utf-8",
        cwd=cwd or ROOT,
        env=environment(**changes),
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )


def call(*arguments: object, input: str | None = None) -> Result:
    """Run a command line inside this process, which is quicker."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=input)


def good(result: Result) -> str:
    """Return the output of a command that worked and had nothing to say besides."""
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert "\x1b" not in result.stdout
    return result.stdout


def bad(result: Result | subprocess.CompletedProcess[str], code: int = 1) -> str:
    """Return the error line of a command that failed: one line, no traceback, nothing on stdout."""
    got = result.exit_code if isinstance(result, Result) else result.returncode
    assert got == code, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("error: ").rstrip("\n")


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    """Leave the loggers as other tests expect them."""
    log = logging.getLogger("ctx_vector")
    before = log.level, list(log.handlers)
    set_up_logging(verbose=False)
    yield
    log.setLevel(before[0])
    log.handlers[:] = before[1]


@pytest.fixture(scope="session")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample knowledge, indexed once by a real process; each worker has a copy, which is not to be changed."""
    own = tmp_path_factory.getbasetemp()
    root = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with FileLock(root / "sample-kb.lock"):
        if not (root / "sample-kb").exists():
            done = run("index", DATA / "knowledge", "--kb", root / "sample-kb")
            assert done.returncode == 0, done.stderr
            assert done.stderr == "" or "preparing the model" in done.stderr
    if not (own / "cli-kb").exists():  # each test module has this fixture as its own
        shutil.copytree(root / "sample-kb", own / "cli-kb")
    return own / "cli-kb"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder with two small documents, one of them with a Chinese name."""
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "bread.md").write_text("# Bread\n\nBake the bread for forty minutes.\n", encoding="utf-8")
    (folder / "退货 政策.md").write_text("# 退货政策\n\n七天内可以无理由退货，运费由卖家承担。\n", encoding="utf-8")
    return folder


__all__ = ["DATA", "ROOT", "bad", "call", "command", "environment", "good", "kb", "notes", "quiet_logs", "run"]
