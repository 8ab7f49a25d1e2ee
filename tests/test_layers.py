"""Imports point down only.

Rows from top to bottom, as in the design: a module may import from rows below its own and from its own row, and no two
modules of a row need each other to be imported. Imports inside functions count, and so do those under TYPE_CHECKING: a
type from above is knowledge of what is above.

One thing is let through, in functions: `from ctx_vector import __version__`. It is a constant of the package, which is
always imported before any of its modules.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

LAYERS = {
    "faces": """
        __main__ cli
        mcp_server mcp_http mcp_tools mcp_replies mcp_builds inspector adapters agent""",
    "measuring": "experiments",
    "the package": "__init__",
    "assembly": """
        builder replay composing shared settings settings_schema sizes naming
        audit audit_writer audit_keeper audit_encode audit_parts audit_decode audit_compare audit_replay audit_stats
        audit_bounds""",
    "pipeline": """
        trace trace_dump
        live_sources
        inputs record gather conversation history ranking judging ranked diversity newer pictures sizing policies prefix
        filling parts layers allocation tool_rows placing select compress parsing structure layout""",
    "what the stages stand on": """
        audit_tables audit_purge
        tools retrieval trim summary source_loaders source_files
        knowledge passages sync sync_plan sync_report staging upkeep views index_files dense hybrid keyword_rows hits
        filters catalog lives transcripts likeness
        memory memory_words memory_edit memory_hits memory_search memory_rows memory_same memory_upkeep memory_view
        dialogue""",
    "leaves": """
        scoring recency ordering languages relevance_map calibration calibration_measure keywords subjects terms plugins
        rerank late late_map cross_encoder search_model
        chunking packing units text_cut sentences
        tool_schemas tool_reading schema_levels schema_walk json_results json_writer
        versions plain_yaml
        loaders formats documents file_walk ignore_rules
        encoders onnx_encoder hub unigram encoding_cache
        model_store model_files model_sources e5_format onnx_export tokenizer_files
        index sieve store common_tables forks measurements whole_files""",
    "vocabulary": """
        config sources rules tokens tokenizer_kinds images image_headers escaping stages packets built lru values
        errors""",
}
PACKAGE = Path(__file__).resolve().parent.parent / "ctx_vector"
ROW = {module: row for row, modules in enumerate(LAYERS.values()) for module in modules.split()}
NAMES = list(LAYERS)


@functools.cache
def modules() -> dict[str, list[Path]]:
    """Return the files of every module; a sub-package is one module."""
    found = {path.stem: [path] for path in PACKAGE.glob("*.py")}
    found |= {
        path.parent.name: sorted(path.parent.rglob("*.py"))
        for path in PACKAGE.glob("*/__init__.py")
    }  # fmt: skip
    return found


@functools.cache
def imports(path: Path) -> list[tuple[str, int, bool]]:
    """Return (module of the package, line, needed at import time) for every import of a file, wherever it stands."""
    depth = len(path.relative_to(PACKAGE).parts) - 1
    known = modules()

    def walk(node: ast.AST, top: bool) -> Iterator[tuple[str, int, bool]]:
        for child in ast.iter_child_nodes(node):
            lazy = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            )
            if isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                if child.level > 1:
                    base = ["ctx_vector"] if child.level == depth + 1 else ["ctx_vector", path.parent.name]
                elif child.level:
                    base = ["ctx_vector", *path.relative_to(PACKAGE).parts[:-1]]
                else:
                    base = []
                whole = ".".join([*base, *([child.module] if child.module else [])])
                names = [f"{whole}.{alias.name}" for alias in child.names]
            else:
                names = []
            for name in names:
                parts = name.split(".")
                if parts[0] == "ctx_vector" and parts[1:] != ["__version__"]:
                    yield (parts[1] if parts[1:] and parts[1] in known else "__init__"), child.lineno, top
            yield from walk(child, top and not lazy)

    return list(walk(ast.parse(path.read_text(encoding="utf-8")), True))


def arrows(module: str) -> Iterator[tuple[str, str, bool]]:
    for path in modules()[module]:
        for target, line, top in imports(path):
            if target != module:
                yield target, f"{path.relative_to(PACKAGE.parent)}:{line}", top


def test_every_module_has_its_place() -> None:
    missing = sorted(set(modules()) - set(ROW))
    assert not missing, f"add to a row of LAYERS: {', '.join(missing)}"
    assert sum(len(row.split()) for row in LAYERS.values()) == len(ROW), "a module stands in two rows"


def test_every_module_is_on_the_map() -> None:
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- `(\w+)/?`: \S", text, re.MULTILINE)
    assert sorted(listed) == sorted(modules()), "CONTRIBUTING.md lists every module once: - `name`: what it does"
    named = set(re.findall(r"`(?:\w+/)*(\w+\.py)`", text))
    assert named <= {path.name for path in PACKAGE.parent.rglob("*.py")}, (
        "CONTRIBUTING.md names a file that is not there"
    )


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_point_down(module: str) -> None:
    upward = [
        f"{place}: {module} ({NAMES[ROW[module]]}) imports {target} ({NAMES[ROW[target]]})"
        for target, place, _ in arrows(module)
        if ROW.get(target, -1) < ROW.get(module, -1)
    ]
    assert not upward, "\n".join(upward)


def test_no_two_modules_need_each_other() -> None:
    graph = {module: {target for target, _, top in arrows(module) if top} for module in modules()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"a cycle of imports: {' -> '.join(error.args[1])}") from None


def test_only_the_package_and_builder_read_the_version() -> None:
    """The exception above is not a door: nothing but the version comes from the package itself."""
    for module in set(modules()) - {"__init__"}:
        assert "__init__" not in {target for target, _, _ in arrows(module)} or NAMES[ROW[module]] == "faces"


def test_this_test_sees_all_kinds_of_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "from ctx_vector import builder\nimport ctx_vector.config\nfrom ctx_vector.tokens import TokenCounter\n"
        "if TYPE_CHECKING:\n    from ctx_vector.tools import RAGTool\n"
        "def f():\n    from . import errors\n    from ctx_vector import __version__\n    import ctx_vector\n"
    )
    path = PACKAGE / "made_up.py"
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: source)
    assert [(target, top) for target, _, top in imports.__wrapped__(path)] == [
        ("builder", True), ("config", True), ("tokens", True), ("tools", False), ("errors", False), ("__init__", False),
    ]  # fmt: skip
