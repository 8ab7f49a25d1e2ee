"""The READMEs say what is true: their code prints what they show, figures come from results, and names exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cli_fixtures import kb

import ctx_vector

FIXTURES = (kb,)
ROOT = Path(__file__).resolve().parent.parent


def load_tables():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        spec = importlib.util.spec_from_file_location("readme_tables", ROOT / "benchmarks" / "readme_tables.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.benchmark_table(False)
        return module
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


tables = load_tables()


@pytest.mark.parametrize("name", tables.READMES)
def test_the_quick_start_prints_what_is_shown(name, kb):
    readme = (ROOT / name).read_text(encoding="utf-8")
    shown = re.search(r"<!-- output:\w+ -->\n````text\n(.*?)````\n<!-- /output -->", readme, re.S)
    assert shown, "no output block"
    # one of them with the same pages already indexed, which is quicker and changes nothing
    indexed = kb if name.endswith("zh.md") else None
    assert tables.run_quick_start(tables.quick_start(readme), indexed) == shown[1]


@pytest.mark.parametrize("name", tables.READMES)
def test_the_figures_are_those_of_the_results(name):
    readme = (ROOT / name).read_text(encoding="utf-8")
    table = tables.benchmark_table(name.endswith("zh.md"))
    assert table.count("\n") > 5
    assert table in readme
    assert tables.lab_table(name.endswith("zh.md")) in readme


def test_the_example_is_the_quick_start():
    example = (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")
    assert example.endswith(tables.quick_start((ROOT / "README.md").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", tables.READMES)
def test_files_named_in_the_readme_exist(name):
    readme = (ROOT / name).read_text(encoding="utf-8")
    for path in re.findall(r"`((?:ctx_vector|models|benchmarks|data|examples)/[\w./-]*)`", readme):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"\]\((?!http|#)([^)#]+)\)", readme):
        assert (ROOT / path).exists(), path


def test_every_public_name_is_documented():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ctx_vector.__all__:
        assert name == "__version__" or name in readme, f"{name} is not in the README"


def test_every_config_field_is_in_the_docstring_or_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ctx_vector.ContextConfig().to_dict():
        assert f"`{name}" in readme, f"{name} is not in the README's table of settings"


@pytest.mark.parametrize("name", tables.READMES)
def test_every_extra_is_documented(name):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    readme = (ROOT / name).read_text(encoding="utf-8")
    section = re.search(r"^### (?:Extras|可选组件)\n(.*?)^##", readme, re.M | re.S)
    assert section, "no section of extras"
    cells = re.findall(r"^\| (`[^|]*`) \|", section[1], re.M)
    assert {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)} == set(extras)


def test_the_wheel_carries_the_cards_and_runs_outside_of_the_checkout(tmp_path):
    """Build the wheel as pip would, and read the cards, the background and the calibration from it alone."""
    pytest.importorskip("hatchling")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    code = (
        f"import sys; sys.path.insert(0, {str(wheel.with_suffix(''))!r})\n"
        "import ctx_vector, ctx_vector.model_store as s\n"
        "import ctx_vector.measurements as m\n"
        "assert 'site' in ctx_vector.__file__ or 'ctx_vector-' in ctx_vector.__file__, ctx_vector.__file__\n"
        "assert len(s.cards()) >= 2\n"
        "assert m.shipped_path('multilingual-e5-small.json').is_file()\n"
        "assert len(m.background()) >= 300\n"
        "from ctx_vector.inspector import Stores, make_app\n"
        "from starlette.testclient import TestClient\n"
        "page = TestClient(make_app(Stores(), 't' * 16, ['h']), base_url='http://h')\n"
        "assert page.get('/?token=' + 't' * 16).status_code == 200\n"
        "assert all(page.get('/static/inspector' + end).status_code == 200 for end in ('.css', '.js'))\n"
    )
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(wheel.with_suffix(""))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
