"""Rules of .gitignore and .ignore files, nested as git nests them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".ignore")  # a later one wins
Rules = tuple[tuple[Path, "GitIgnoreSpec"], ...]  # from the outermost folder to the innermost


def own_rules(folder: Path, names: set[str]) -> Iterator[tuple[Path, GitIgnoreSpec]]:
    """Yield the rules that stand in a folder; `names` are the entries it is known, or thought, to have."""
    for name in IGNORE_FILES:
        if name in names and (spec := _read(folder / name)) is not None:
            yield folder, spec


def outer_rules(root: Path) -> Rules:
    """Return the rules of the repository that the folder lies in, unless they exclude the folder itself."""
    outer: list[tuple[Path, GitIgnoreSpec]] = []
    for folder in root.parents if not (root / ".git").exists() else ():
        outer[:0] = own_rules(folder, set(IGNORE_FILES))
        if (folder / ".git").exists():
            specs = tuple(outer)
            above = [root, *root.parents]
            below = above[: above.index(folder)]
            return () if any(ignored(path, True, specs) for path in below) else specs
    return ()


def _read(path: Path) -> GitIgnoreSpec | None:
    from pathspec import GitIgnoreSpec

    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(1_000_000).splitlines()
    except OSError:
        return None
    rules = []
    for line in lines:
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError:  # git ignores a pattern it cannot read
            continue
        rules.append(line)
    return GitIgnoreSpec.from_lines(rules)


def ignored(path: Path, is_dir: bool, specs: Rules) -> bool:
    """Tell whether the innermost rule about a path excludes it."""
    for folder, spec in reversed(specs):
        if folder not in path.parents:
            continue
        relative = path.relative_to(folder).as_posix() + ("/" if is_dir else "")
        include = spec.check_file(relative).include
        if include is not None:
            return bool(include)
    return False
