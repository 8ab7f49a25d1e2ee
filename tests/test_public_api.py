"""What the package exports, what importing it costs, and that all of it is documented."""

from __future__ import annotations

import ast
import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ctx_vector

PACKAGE = Path(ctx_vector.__file__).resolve().parent
FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
HEAVY = (
    "numpy",
    "faiss",
    "tiktoken",
    "sqlite3",
    "torch",
    "yaml",
    "onnxruntime",
    "tokenizers",
    "typer",
    "rich",
    "asyncio",
)


def ids(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


# --- names ------------------------------------------------------------------------------------------------------------


def exported() -> set[str]:
    """Names that `__init__.py` takes from modules of the package, eagerly or for type checkers."""
    nodes = [node for node in ast.walk(TREES[PACKAGE / "__init__.py"]) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in nodes if (node.module or "").startswith("ctx_vector") for alias in node.names}


def test_all_is_sorted_and_is_what_is_exported() -> None:
    assert ctx_vector.__all__ == sorted(ctx_vector.__all__)
    assert set(ctx_vector.__all__) == exported() | {"__version__"}


@pytest.mark.parametrize("name", ctx_vector.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(ctx_vector, name) is not None
    assert name in dir(ctx_vector)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'ContextBuidler'"):
        ctx_vector.ContextBuidler  # noqa: B018
    with pytest.raises(ImportError):
        exec("from ctx_vector import nothing")


def test_the_version_is_a_version() -> None:
    assert all(part.isdigit() for part in ctx_vector.__version__.split(".")[:2])


def test_star_import_gives_all() -> None:
    names: dict[str, object] = {}
    exec("from ctx_vector import *", names)
    assert set(ctx_vector.__all__) <= set(names)


def test_errors_of_the_package_share_one_base() -> None:
    assert issubclass(ctx_vector.BudgetError, ctx_vector.CtxVectorError)
    assert issubclass(ctx_vector.ConfigError, ctx_vector.CtxVectorError)


# --- weight -----------------------------------------------------------------------------------------------------------


def loaded_after(code: str) -> set[str]:
    """Return which heavy modules a fresh interpreter has after running `code`."""
    script = f"import sys\n{code}\nprint(' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_the_main_names_loads_nothing_heavy() -> None:
    assert loaded_after("from ctx_vector import ContextBuilder, ContextConfig, ContextPacket, Message") == set()


def test_a_first_build_of_given_packets_loads_only_the_tokenizer() -> None:
    code = (
        "from ctx_vector import ContextBuilder, ContextPacket\n"
        "text = ContextBuilder().build(user_query='hi', custom_packets=[ContextPacket('a', relevance_score=1)])\n"
        "assert '[Task]' in text"
    )
    assert not loaded_after(code) & {"faiss", "sqlite3", "torch", "onnxruntime", "yaml"}


# --- documentation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_every_public_thing_has_a_docstring(path: Path) -> None:
    tree = TREES[path]
    missing = [] if ast.get_docstring(tree) else ["the module"]
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in tree.body:
        if isinstance(node, kinds) and not node.name.startswith("_") and not ast.get_docstring(node):
            missing.append(node.name)
    assert not missing, f"without a docstring: {', '.join(missing)}"


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_the_library_never_prints(path: Path) -> None:
    calls = [
        node.lineno
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not calls, f"print() in lines {calls}"


EXAMPLES = [path for path in FILES if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", EXAMPLES, ids=ids)
def test_docstring_examples_are_true(path: Path) -> None:
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted and not result.failed
