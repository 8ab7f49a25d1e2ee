"""Every example runs, on a small copy of the sample data, and prints what it says it does."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_fixtures import DATA, ROOT, environment

EXAMPLES = ROOT / "examples"
APART = Path(sys.prefix) / "apart" / "hello-agents"
#: Run elsewhere: by test_readme, test_agent, test_tools and test_customer_service.
ELSEWHERE = {"quickstart", "agent", "pandas_consultant", "customer_service"}
HERE = {
    "code_index",
    "mcp_client",
    "langchain_rag",
    "llama_index_rag",
    "haystack_rag",
    "hello_agents_tools",
    "ab_folder",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory with one document in English and one in Chinese."""
    for language in ("en", "zh"):
        (tmp_path / "data" / "knowledge" / language).mkdir(parents=True)
        name = f"{language}/pandas-memory.md"
        shutil.copy(DATA / "knowledge" / name, tmp_path / "data" / "knowledge" / name)
    return tmp_path


def run(place: Path, name: str, *arguments: str, **changes: str) -> str:
    """Run an example as a user does."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments], cwd=place, capture_output=True, encoding="utf-8",
        env=environment(**changes), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run an example in this process, which has loaded most of what it needs."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")

    def run_here(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run_here


def test_no_example_is_left_out():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == ELSEWHERE | HERE
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ELSEWHERE | HERE:
        assert f"`examples/{name}.py`" in readme, name


def test_an_index_of_a_code_repository(place: Path, here: Callable[..., str]):
    repository = place / "项目"
    repository.mkdir()
    (repository / ".gitignore").write_text("build/\n", encoding="utf-8")
    (repository / "build").mkdir()
    (repository / "build" / "made.py").write_text("def close(session):\n    pass\n", encoding="utf-8")
    (repository / "sessions.py").write_text(
        'class Session:\n    def close(self):\n        """Close the connection to the database."""\n'
        "        self.db.close()\n",
        encoding="utf-8",
    )
    (repository / "bread.py").write_text('def bake(minutes):\n    """Bake the bread."""\n', encoding="utf-8")
    shown = here("code_index", "项目", "数据库连接在哪里关闭？")
    assert shown.startswith("2 files added, 0 updated, 0 as before\n")
    assert re.search(r"^0\.\d\d  项目/sessions\.py:1-4 ", shown, re.M)
    assert "made.py" not in shown and "self.db.close()" in shown.split("[Evidence]")[1]
    again = here("code_index", "项目")
    assert again.startswith("0 files added, 0 updated, 2 as before\n")


def test_mcp_from_a_client(place: Path):
    shown = run(place, "mcp_client")
    assert shown.startswith("tools: build_context, search_knowledge, index_path")
    assert "documents: 2 added" in shown
    assert re.search(r"^  0\.\d\d  knowledge/en/pandas-memory\.md:\d+-\d+$", shown, re.M)
    assert re.search(r"^build [0-9a-f]{32}: \d+ of 500 tokens; ", shown, re.M)


def test_langchain(here: Callable[..., str]):
    first = here("langchain_rag")
    assert "(knowledge/en/pandas-memory.md:" in first and "Human: How do I reduce the memory usage of Pandas?" in first
    second = here("langchain_rag", "哪种类型最省内存？")
    assert "AI: Use smaller types." in second and second.rstrip().endswith("Human: 哪种类型最省内存？")


def test_llama_index(here: Callable[..., str]):
    shown = here("llama_index_rag")
    assert "Query: How do I reduce the memory usage of Pandas?" in shown
    assert re.search(r"^0\.\d\d  knowledge/en/pandas-memory\.md:\d+-\d+$", shown, re.M)
    assert shown.rstrip().endswith("- My CSV file has 5 million rows.")


def test_haystack(here: Callable[..., str]):
    shown = here("haystack_rag", "如何优化Pandas的内存占用？")
    assert "(knowledge/zh/pandas-memory.md:" in shown and shown.rstrip().endswith(
        "Question: 如何优化Pandas的内存占用？"
    )


def test_hello_agents(place: Path):
    if not (APART / "hello_agents").is_dir():
        pytest.skip(f"hello-agents is not in {APART}; see the Makefile")
    shown = run(place, "hello_agents_tools", PYTHONPATH=f"{APART}:{ROOT}", PYTHONWARNINGS="")
    assert shown.count("[Task]\n如何优化Pandas的内存占用？\n") == 2
    assert "记忆: Ada 的 CSV 文件有500万行" in shown and "user: 我用的是 Pandas 2" in shown
    assert "error: " not in shown


def test_strategies_on_a_folder(place: Path, here: Callable[..., str]):
    lines = (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    about_memory = [line for line in lines if "pandas-memory.md" in line]
    assert len(about_memory) >= 3
    (place / "data" / "questions.jsonl").write_text("".join(about_memory), encoding="utf-8")
    shown = here("ab_folder", "--strategies", "jaccard,cosine", "--budgets", "200")
    for arm in ("jaccard", "cosine"):
        found = re.search(rf"^{arm} +evidence_recall@200 (\d\.\d+) ", shown, re.M)
        assert found and 0 <= float(found[1]) <= 1
    assert re.search(r"^[^\n]*\bcosine\b[^\n]*\bjaccard\b[^\n]* in evidence_recall@200", shown, re.M), shown
