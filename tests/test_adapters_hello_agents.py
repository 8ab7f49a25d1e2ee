"""HelloAgents asks for openai 1, other packages here for openai 2 or newer: its tests run in a process of their own,
with a folder of their own (`make test` fills it).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from adapter_help import missing_message
from cli_fixtures import ROOT, environment

APART = Path(sys.prefix) / "apart" / "hello-agents"


def test_the_adapters_with_the_real_package():
    if not (APART / "hello_agents").is_dir():
        pytest.skip(f"hello-agents is not in {APART}; see the Makefile")
    paths = [str(APART), str(ROOT), str(ROOT / "tests")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "hello_agents_cases.py")],
        capture_output=True, text=True, cwd=ROOT, check=False,
        env=environment(PYTHONPATH=":".join(paths), PYTHONWARNINGS=""),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert re.search(r"\b4 passed", done.stdout), done.stdout


def test_without_hello_agents_the_error_names_the_extra():
    assert missing_message("hello_agents", "hello_agents") == (
        "OptionalDependencyError ctx_vector.adapters.hello_agents needs the extra 'hello-agents'; install it with: "
        "pip install 'ctx_vector[hello-agents]'"
    )


def test_the_core_loads_no_framework():
    code = (
        "import sys, ctx_vector.builder, ctx_vector.agent, ctx_vector.tools, ctx_vector.adapters, ctx_vector.cli.app\n"
        "names = 'langchain_core llama_index haystack hello_agents mcp pydantic openai'.split()\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout == "[]\n"
