"""Source code: cut where definitions begin, each named after what it defines."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ctx_vector.documents import Block, Parsed, fill_gaps, line_starts, one_line

AST_CHARS = 1_000_000  # a syntax tree takes about a hundred times the memory of its source
_LONG = 2500  # a class longer than this, in characters, is divided into its methods

LANGUAGES = {
    ".py": "python", ".pyi": "python", ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript",
    ".jsx": "javascript", ".ts": "typescript", ".tsx": "typescript", ".vue": "vue", ".svelte": "svelte",
    ".java": "java", ".kt": "kotlin", ".kts": "kotlin", ".scala": "scala", ".groovy": "groovy", ".go": "go",
    ".rs": "rust", ".c": "c", ".h": "c", ".cc": "cpp", ".cpp": "cpp", ".cxx": "cpp", ".hpp": "cpp", ".hh": "cpp",
    ".cs": "csharp", ".fs": "fsharp", ".swift": "swift", ".m": "objective-c", ".mm": "objective-c", ".rb": "ruby",
    ".php": "php", ".pl": "perl", ".pm": "perl", ".lua": "lua", ".r": "r", ".jl": "julia", ".dart": "dart",
    ".ex": "elixir", ".exs": "elixir", ".erl": "erlang", ".hs": "haskell", ".ml": "ocaml", ".clj": "clojure",
    ".sh": "shell", ".bash": "shell", ".zsh": "shell", ".fish": "shell", ".ps1": "powershell", ".bat": "batch",
    ".sql": "sql", ".proto": "protobuf", ".graphql": "graphql", ".css": "css", ".scss": "scss", ".less": "less",
    ".zig": "zig", ".nim": "nim", ".v": "verilog", ".sol": "solidity", ".tf": "terraform", ".cmake": "cmake",
    ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".ini": "ini", ".cfg": "ini", ".conf": "ini",
    ".properties": "ini", ".xml": "xml", ".gradle": "groovy",
}  # fmt: skip

_NAME = re.compile(
    r"^(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|pub(?:\([a-z]+\))?|unsafe|"
    r"virtual|override|inline|extern|const|sealed|data|open|suspend|partial|declare)[ \t]+){0,6}"
    r"(class|def|func|function\*?|fn|interface|struct|enum|impl|trait|type|module|namespace|object|record|protocol|"
    r"extension|message|service|package|macro|defmodule|defp?)[ \t]+"
    r"(?:\([^()\n]{0,80}\)[ \t]*)?([\w$.:<>]+)"
)
_CONTINUES = re.compile(r"[\])}]|end\b|else\b|elif\b|catch\b|except\b|finally\b|rescue\b|then\b|esac\b|fi\b|done\b")


def parse_code(text: str, language: str, name: str = "") -> Parsed:
    """Return the definitions at the top of a file, and the methods of long classes.

    `name` (the file's own name) heads the path of every block, as a chunk of code rarely says where it is from.
    """
    found = _python(text) if language == "python" else None
    blocks = _by_indentation(text) if found is None else found
    if name:
        blocks.insert(0, Block(0, 0, "heading", 1, one_line(name)))
    blocks = [Block(b.start, b.end, "code") if b.kind == "prose" else b for b in fill_gaps(text, blocks)]
    return Parsed(text, blocks, "", {"language": language})


def _python(text: str) -> list[Block] | None:
    if len(text) > AST_CHARS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in somebody's file is not our warning
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    lines = text.split("\n")
    starts = [*line_starts(text), len(text)]
    return list(_definitions(tree.body, lines, starts, 0, len(lines), 3))


def _definitions(
    body: Sequence[ast.stmt], lines: list[str], starts: list[int], row: int, stop: int, level: int
) -> Iterator[Block]:
    """Yield blocks for lines [row, stop), opening a named place at each function or class."""
    for node in body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        first = min([node.lineno, *(item.lineno for item in node.decorator_list)]) - 1
        while first > row and lines[first - 1].lstrip().startswith("#"):
            first -= 1  # the comment above says what it is for
        last = min(node.end_lineno or stop, stop)
        if first < row:
            continue  # a second definition on the same line
        if first > row:
            yield Block(starts[row], starts[row], "heading", level, "")
            yield Block(starts[row], starts[first], "code")
        word = "class" if isinstance(node, ast.ClassDef) else "def"
        yield Block(starts[first], starts[first], "heading", level, f"{word} {node.name}")
        if word == "class" and starts[last] - starts[first] > _LONG and level < 6:
            yield from _definitions(node.body, lines, starts, first, last, level + 1)
        else:
            yield Block(starts[first], starts[last], "code")
        row = last
    if row < stop:
        yield Block(starts[row], starts[row], "heading", level, "")
        yield Block(starts[row], starts[stop], "code")


def _by_indentation(text: str) -> list[Block]:
    """Return blocks that begin after a blank line at a line without indentation, whatever the language."""
    blocks: list[Block] = []
    first, blank = 0, True
    starts = [*line_starts(text), len(text)]
    for start, end in pairwise(starts):
        line = text[start : min(end, start + 400)]
        if line.isspace() or not line:
            blank = True
            continue
        if blank and line[0] not in " \t" and not _CONTINUES.match(line) and start > first:
            blocks += _named(text, first, start)
            first = start
        blank = False
    return [*blocks, *_named(text, first, len(text))]


def _named(text: str, start: int, end: int) -> list[Block]:
    if not text[start:end].strip():
        return []
    title = ""
    for line in text[start : min(end, start + 2000)].split("\n")[:25]:
        if match := _NAME.match(line):
            title = f"{match.group(1)} {match.group(2)}".rstrip(":")
            break
    return [Block(start, start, "heading", 3, one_line(title)), Block(start, end, "code")]
