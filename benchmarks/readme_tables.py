"""Fill the READMEs' tables from benchmarks/results, and their printed outputs by running their own code.

    python benchmarks/readme_tables.py [--check]

With --check nothing is written; exit 1 when a README is not up to date. What a block holds stands between the comments
``<!-- table:NAME -->`` or ``<!-- output:NAME -->`` and ``<!-- /table -->`` or ``<!-- /output -->``.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
READMES = ("README.md", "README.zh.md")


def quick_start(readme: str) -> str:
    """Return the code of the quick start: the first Python block."""
    found = re.search(r"```python\n(.*?)```", readme, re.S)
    assert found, "no Python block"
    return found[1]


def run_quick_start(code: str, kb: Path | None = None) -> str:
    """Return what the quick start prints in a fresh folder that holds `data`, and a copy of `kb` if one is given."""
    with tempfile.TemporaryDirectory() as folder:
        if kb:
            shutil.copytree(kb, Path(folder) / ".demo" / "kb")
        (Path(folder) / "data").symlink_to(ROOT / "data", target_is_directory=True)
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode("utf-8")


def filled(readme: str, kind: str, name: str, content: str) -> str:
    """Return the README with the block's content replaced."""
    pattern = rf"(<!-- {kind}:{name} -->\n).*?(<!-- /{kind} -->)"
    return re.sub(pattern, lambda match: match[1] + content + match[2], readme, flags=re.S)


def results() -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")}


def benchmark_table(zh: bool) -> str:
    """Return the table of figures; rows whose result is missing are left out."""
    from table_rows import rows

    head = "| 测量 | 结果 |\n|---|---|\n" if zh else "| what | figure |\n|---|---|\n"
    return head + "".join(f"| {row[1] if zh else row[0]} | {row[2]} |\n" for row in rows(results()))


def lab_table(zh: bool) -> str:
    """Return the table of ways of scoring on this project's own data sets."""
    from table_rows import lab_rows, measured

    names = (
        ("", "双语知识：证据 500 / 1,000 / 2,000", "对比首行（1,000）", "变化的事实：证据", "最新版本在前（1,000）")
        if zh
        else ("", "bilingual knowledge: evidence at 500 / 1,000 / 2,000", "against the first (1,000)",
              "changing facts: evidence", "newest first (1,000)")
    )  # fmt: skip
    found = results()
    names = names if measured(found) else names[:3]
    head = f"| {' | '.join(names)} |\n{'|---' * len(names)}|\n"
    return head + "".join(f"{row}\n" for row in lab_rows(found, zh))


def main() -> int:
    check = "--check" in sys.argv
    stale = []
    for name in READMES:
        path = ROOT / name
        old = path.read_text(encoding="utf-8")
        new = filled(old, "table", "benchmarks", benchmark_table(name.endswith("zh.md")))
        new = filled(new, "table", "lab", lab_table(name.endswith("zh.md")))
        block = "quickstart_zh" if name.endswith("zh.md") else "quickstart"
        new = filled(new, "output", block, "````text\n" + run_quick_start(quick_start(old)) + "````\n")
        if new != old:
            stale.append(name)
            if not check:
                path.write_text(new, encoding="utf-8")
    if stale:
        sys.stderr.write(f"{'out of date' if check else 'updated'}: {', '.join(stale)}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
