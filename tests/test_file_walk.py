"""The file walk: what is found under which name, and why the rest is skipped."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from ctx_vector.errors import InputError
from ctx_vector.file_walk import Walk, walk


def tree(root: Path, *names: str, text: str = "x\n") -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def sources(result: Walk) -> list[str]:
    return [found.source for found in result.found]


def reasons(result: Walk, root: Path) -> dict[str, str]:
    return {skipped.path.relative_to(root).as_posix(): skipped.reason for skipped in result.skipped}


def test_a_folder_gives_its_name_and_the_path_below(tmp_path):
    root = tree(tmp_path / "docs", "b.md", "a.md", "tutorial/path-params.md", "中文/说明 一.md")
    result = walk(root)
    assert sources(result) == ["docs/a.md", "docs/b.md", "docs/tutorial/path-params.md", "docs/中文/说明 一.md"]
    assert result.skipped == []
    assert result.roots == {root: "docs"}
    first = result.found[0]
    assert first.path == root / "a.md" and first.size == 2 and first.mtime_ns == (root / "a.md").stat().st_mtime_ns
    assert walk(root) == result


def test_the_working_directory_does_not_matter(tmp_path, monkeypatch):
    root = tree(tmp_path / "docs", "a.md", "sub/b.md")
    expected = walk(root)
    for cwd, given in ((tmp_path, "docs"), (root, "."), (root / "sub", ".."), (root / "sub", "../../docs/")):
        monkeypatch.chdir(cwd)
        assert walk(given) == expected
    single = sources(walk(root / "sub" / "b.md"))
    monkeypatch.chdir(root / "sub")
    assert sources(walk("b.md")) == single == ["sub/b.md"]


def test_a_file_is_named_as_if_its_folder_had_been_given(tmp_path):
    root = tree(tmp_path / "docs", "a.md", "sub/b.md")
    assert sources(walk(root / "a.md")) == ["docs/a.md"]
    assert walk(root / "a.md").roots == {}
    assert sources(walk([root / "sub" / "b.md", root])) == ["docs/a.md", "docs/sub/b.md"], "one file, one name"


def test_known_roots_decide(tmp_path):
    root = tree(tmp_path / "docs", "a.md", "sub/b.md")
    known = walk(root).roots
    assert sources(walk(root / "sub" / "b.md", roots=known)) == ["docs/sub/b.md"]
    assert sources(walk(root / "sub", roots=known)) == ["docs/sub/b.md"]
    above = walk(tmp_path, roots=known)
    assert sources(above) == ["docs/a.md", "docs/sub/b.md"]
    assert above.roots == {root: "docs", tmp_path: tmp_path.name}


def test_folders_of_the_same_name_are_told_apart(tmp_path):
    one, two = tree(tmp_path / "p" / "docs", "a.md"), tree(tmp_path / "q" / "docs", "a.md")
    both = walk([one, two])
    assert sources(both) == ["p/docs/a.md", "q/docs/a.md"]
    assert walk([two, one]) == both, "the order of the arguments does not matter"
    later = walk([two, one], roots=walk(one).roots)
    assert sources(later) == ["docs/a.md", "q/docs/a.md"], "a name once given stays"
    assert sources(walk([one / "a.md", two / "a.md"])) == ["p/docs/a.md", "q/docs/a.md"]


def test_the_files_of_a_store_are_left_out_and_what_lies_beside_them_is_not(tmp_path):
    stores = ["ctx.sqlite3", "audit.sqlite3", "memory.sqlite3"]
    parts = [store + end for store in stores for end in ("-shm", "-wal", "-journal", ".lock")]
    parts += ["sync.lock", "index.lock"]
    root = tree(tmp_path / "库", *stores, *parts, "说明.md")
    tree(root, "other/sync.lock", "other/notes.sqlite3.md")
    for given in (root, tmp_path):
        result = walk(given, roots={root: "库"})
        assert sources(result) == ["库/other/notes.sqlite3.md", "库/other/sync.lock", "库/说明.md"]
        assert reasons(result, root) == {
            **dict.fromkeys(stores, "binary format .sqlite3"),
            **dict.fromkeys(parts, "part of a store"),
        }


def test_gitignore_nested_negated_and_above_the_folder(tmp_path):
    tree(
        tmp_path, ".git/config", "docs/keep.md", "docs/drop.tmp", "docs/build/x.md", "docs/sub/a.log", "docs/sub/b.log"
    )
    tree(tmp_path, "docs/sub/deep/c.md", "docs/only.md", "docs/other/only.md", "docs/ripgrep.md")
    (tmp_path / ".gitignore").write_text("*.tmp\nbuild/\n\x00\n[\n")
    (tmp_path / "docs" / ".gitignore").write_text("*.log\n/only.md\n")
    (tmp_path / "docs" / ".ignore").write_text("ripgrep.md\n")
    (tmp_path / "docs" / "sub" / ".gitignore").write_text("!a.log\ndeep/*\n")
    result = walk(tmp_path / "docs")
    assert sources(result) == ["docs/keep.md", "docs/other/only.md", "docs/sub/a.log"]
    skipped = reasons(result, tmp_path / "docs")
    for name in ("drop.tmp", "build", "sub/b.log", "sub/deep/c.md", "only.md", "ripgrep.md"):
        assert skipped[name] == "excluded by .gitignore or .ignore"
    assert sources(walk(tmp_path / "docs" / "build")) == ["build/x.md"], "given by name"
    assert sources(walk(tmp_path / "docs" / "drop.tmp")) == ["docs/drop.tmp"]


def test_gitignore_outside_a_repository_is_not_looked_for(tmp_path):
    tree(tmp_path, "docs/a.md")
    (tmp_path / ".gitignore").write_text("*.md\n")
    assert sources(walk(tmp_path / "docs")) == ["docs/a.md"]


def test_skipped_with_a_reason(tmp_path):
    root = tree(
        tmp_path / "p", "a.md", ".hidden", ".dir/x.md", ".git/HEAD", "node_modules/m/i.js", "pkg/__pycache__/a.pyc",
        "env/pyvenv.cfg", "env/lib/a.py", "logo.PNG", "m.min.js", "package-lock.json", "CVS/x",
    )  # fmt: skip
    (root / "big.txt").write_bytes(b"x" * 3_000_000)
    result = walk(root, max_bytes=2_000_000)
    assert sources(result) == ["p/a.md"]
    assert reasons(result, root) == {
        ".hidden": "hidden",
        ".dir": "hidden",
        ".git": "version control",
        "CVS": "version control",
        "node_modules": "installed or generated files",
        "pkg/__pycache__": "installed or generated files",
        "env": "virtual environment",
        "logo.PNG": "binary format .png",
        "m.min.js": "generated file",
        "package-lock.json": "generated file",
        "big.txt": "3.0 MB, over the limit of 2.0 MB",
    }
    given = walk([root / ".hidden", root / "logo.PNG", root / "big.txt", root / ".dir"], max_bytes=2_000_000)
    assert sources(given) == [".dir/x.md", "p/.hidden", "p/logo.PNG"], "given by name"
    assert [skipped.path.name for skipped in given.skipped] == ["big.txt"]


def test_exclude(tmp_path):
    root = tree(tmp_path / "p", "a.md", "kb/b.md", "c.md")
    result = walk(root, exclude=[root / "kb", root / "c.md"])
    assert sources(result) == ["p/a.md"]
    assert set(reasons(result, root).values()) == {"left out by the caller"}


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need rights there")
def test_symbolic_links(tmp_path):
    root = tree(tmp_path / "p", "a.md", "sub/b.md", ".hidden.md")
    tree(tmp_path, "outside.md")
    (root / "loop").symlink_to(root)
    (root / "sub" / "up").symlink_to("..")
    (root / "self").symlink_to("self")
    (root / "gone.md").symlink_to("missing.md")
    (root / "out.md").symlink_to(tmp_path / "outside.md")
    (root / "again.md").symlink_to("a.md")
    (root / "shown.md").symlink_to(".hidden.md")
    result = walk(root)
    assert sources(result) == ["p/a.md", "p/shown.md", "p/sub/b.md"]
    assert reasons(result, root) == {
        ".hidden.md": "hidden",
        "loop": "symbolic link to a folder",
        "sub/up": "symbolic link to a folder",
        "self": "not readable: Too many levels of symbolic links",
        "gone.md": "broken symbolic link",
        "out.md": "symbolic link to a file outside the folder",
        "again.md": "symbolic link to p/a.md, which is read itself",
    }
    (tmp_path / "link").symlink_to(root)
    assert sources(walk(tmp_path / "link")) == sources(result), "the folder behind a link has one name"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_what_is_no_regular_file(tmp_path, monkeypatch):
    root = tree(tmp_path / "p", "a.md")
    os.mkfifo(root / "pipe")
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        result = walk([root, root / "pipe"])
    assert sources(result) == ["p/a.md"]
    assert {skipped.path.name: skipped.reason for skipped in result.skipped} == {
        "pipe": "not a regular file",
        "socket": "not a regular file",
    }


def test_unreadable_folder_and_file(tmp_path, monkeypatch):
    root = tree(tmp_path / "p", "a.md", "closed/b.md", "secret.md")
    scandir, access = os.scandir, os.access

    def closed(path):
        if os.path.basename(path) == "closed":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)  # a test run as root may read everything
    monkeypatch.setattr(os, "access", lambda path, mode: os.path.basename(path) != "secret.md" and access(path, mode))
    result = walk(root)
    assert sources(result) == ["p/a.md"]
    assert reasons(result, root) == {
        "closed": "folder not readable: Permission denied",
        "secret.md": "not readable: permission denied",
    }


def test_missing_paths_are_all_named(tmp_path):
    with pytest.raises(InputError, match=r"no such file or folder: .*nope, .*nor-this"):
        walk([tmp_path, tmp_path / "nope", tmp_path / "nor-this"])
    with pytest.raises(InputError, match="no such file"):
        walk("a\0b")


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="these file systems refuse such names")
def test_odd_names_are_one_printable_line_and_stay_apart(tmp_path):
    root = tree(tmp_path / "p", "a\nb.md", "a\rb.md", "c d.md", "e\\f.md", "g\u202eh.md")
    with open(os.fsencode(root) + b"/\xff.md", "wb") as file:
        file.write(b"x")
    result = walk(root)
    names = sources(result)
    assert len(set(names)) == len(result.found) == 6
    for name in names:
        assert len(name.splitlines()) == 1 and name.encode()
    assert "p/c d.md" in names


def test_a_deep_tree_and_an_empty_one(tmp_path):
    deep = tmp_path / "p"
    (deep / "empty").mkdir(parents=True)
    path = deep
    for _ in range(200):
        path = path / "d"
    path.mkdir(parents=True)
    (path / "a.md").write_text("x")
    assert len(walk(deep).found) == 1
    assert walk(deep / "empty").found == []
    assert walk([]).found == []
