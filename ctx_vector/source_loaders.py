"""Loaders that a source names by a text.

    yaml:faq.yaml              items with content, version, expires_at ...; or one flat mapping, such as a profile
    text:rules.md              a file as one item; YAML front matter may give version, document_id, expires_at
    kb:kb                      a search in a knowledge base, with `top_k` and `score_threshold`
    memory:memory              a search in a user's memories; the user from `args: {user: ada}`
    session:                   what was said in the session before
    python:module.function     called with the request and `args`; refused unless `allow_python=True`

Paths are relative to a base folder, and nothing outside of it is opened, whatever the text or a link in it says.
Files are read again when they change: size and times are looked at first, then the content's hash.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.errors import ConfigError, InputError, LoaderError
from ctx_vector.plain_yaml import plain, read_yaml
from ctx_vector.rules import nearest, number, shown
from ctx_vector.sources import SourceConfig

if TYPE_CHECKING:
    from ctx_vector.packets import Candidate
    from ctx_vector.stages import Encoder, Request

#: Bytes of a file that a source reads.
MOST_BYTES: Final = 4_000_000
#: Memories asked for without `top_k`; ContextConfig has the same default.
MEMORY_LIMIT: Final = 60
#: What an item of a YAML file may say of itself; anything else is metadata.
CONTENT_KEYS: Final = ("content", "text")
_IMPORTANCE: Final = number(0, 1)
_FIELDS: Final = (*CONTENT_KEYS, "question", "answer", "timestamp", "score", "importance", "metadata")


def check_loader(config: SourceConfig, base_dir: str | Path | None = None, allow_python: bool = False) -> list[str]:
    """Return what is wrong with a loader given as text, as problems for a ConfigError; opens and runs nothing."""
    if not isinstance(config.loader, str):
        return []
    kind, _, rest = config.loader.partition(":")
    field = f"sources.{config.name}.loader"
    base = Path(base_dir if base_dir is not None else ".")
    if kind == "python":
        refusal = "python: runs code, which was not allowed; pass allow_python=True if you trust it"
        return [] if allow_python else [f"{field}: {refusal}"]
    if kind == "session":
        return [f"{field}: session: needs the audit log, which is not built yet; leave the source out"]
    try:
        path = rooted(base, rest.strip())
    except InputError as error:
        return [f"{field}: {error}"]
    if kind in ("yaml", "text"):
        return [] if path.is_file() else [f"{field}: there is no file {rest.strip()} in {base}"]
    if kind == "kb":
        problems = _unknown_args(config, ("filter",))
        if not (path / "ctx.sqlite3").is_file():
            problems.append(f"{field}: there is no knowledge base in {rest.strip()}; make one: ctx-vector index")
        return problems
    problems = _unknown_args(config, ("user", "min_importance"))
    user = config.args.get("user")
    if not isinstance(user, str) or not user.strip():
        problems.append(f"sources.{config.name}.args.user: expected a name, got {shown(user)}")
    if text := _IMPORTANCE(config.args.get("min_importance", 0.3)):
        problems.append(f"sources.{config.name}.args.min_importance: {text}")
    return problems


def _unknown_args(config: SourceConfig, known: tuple[str, ...]) -> list[str]:
    return [
        f"sources.{config.name}.args.{key}: unknown argument{nearest(key, known)}; it takes {', '.join(known)}"
        for key in config.args
        if key not in known
    ]


def open_loader(
    config: SourceConfig,
    *,
    base_dir: str | Path | None = None,
    allow_python: bool = False,
    encoder: Callable[[], Encoder] | None = None,
) -> Any:
    """Return the loader of a source whose `loader` is a text. `base_dir` defaults to the working folder.

    Raises ConfigError naming what is wrong.
    """
    if problems := check_loader(config, base_dir, allow_python):
        raise ConfigError(problems)
    kind, _, rest = config.loader.partition(":")
    base = Path(base_dir if base_dir is not None else ".")
    if kind == "python":
        return _function(f"sources.{config.name}.loader", rest, base)
    if kind in ("yaml", "text"):
        return FileLoader(base, rest.strip(), _yaml_items if kind == "yaml" else _text_items)
    if kind == "kb":
        return KnowledgeLoader(rooted(base, rest.strip()), config, encoder)
    return MemoryLoader(rooted(base, rest.strip()), config, encoder)


def rooted(base: Path, text: str) -> Path:
    r"""Return the file or folder that a path means inside a base folder, with all links followed.

    Raises InputError for what lies outside, and for ``\`` and drives, which mean something else on another system.
    """
    if not text or "\0" in text:
        raise InputError(f"expected a path, got {shown(text)}")
    if "\\" in text or PureWindowsPath(text).drive:
        raise InputError(f"expected a path with / and without a drive, got {shown(text)}")
    try:
        root = base.resolve()
        path = (root / text).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"expected a path, got {shown(text)} ({error})") from None
    if not path.is_relative_to(root):
        raise InputError(f"{shown(text)} lies outside of {base}; put it inside, or set base_dir")
    return path


# -- files ------------------------------------------------------------------------------------------------------------


class FileLoader:
    """The items of one file, read again when its content changes."""

    plain = True

    def __init__(self, base: Path, text: str, read: Callable[[bytes, str], list[dict[str, Any]]]) -> None:
        self._base = base
        self._text = text
        self._read = read
        self._lock = threading.Lock()
        self._look: tuple[int, ...] = ()
        self._digest = ""
        self._items: tuple[str, list[dict[str, Any]]] = ("", [])

    def _path(self) -> Path:
        return rooted(self._base, self._text)  # each time: a link may have come to point elsewhere

    def stamp(self) -> str:
        """Return the hash of the content; read only if the file looks changed. Raises OSError."""
        with self._lock:
            return self._stamped(self._path())

    def _stamped(self, path: Path) -> str:
        state = path.stat()
        look = (state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino)
        if look != self._look:
            self._digest = _digest(_content(path, self._text))
            self._look = look
        return self._digest

    def modified(self) -> datetime | None:
        """Return when the file was changed."""
        return datetime.fromtimestamp(self._path().stat().st_mtime, UTC)

    def texts(self) -> list[str]:
        """Return the texts of the items. Raises LoaderError, InputError or OSError."""
        return [str(item["content"]) for item in self._current()]

    def load(self, request: Request) -> list[dict[str, Any]]:
        """Return the items of the file. Raises LoaderError, InputError or OSError."""
        return self._current()

    def _current(self) -> list[dict[str, Any]]:
        with self._lock:
            path = self._path()
            if self._stamped(path) != self._items[0]:
                data = _content(path, self._text)
                self._items = (_digest(data), self._read(data, self._text))
            return self._items[1]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _content(path: Path, name: str) -> bytes:
    if not path.is_file():
        raise LoaderError(f"{name}: there is no such file (any more)")
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise LoaderError(f"{name}: over {MOST_BYTES:,} bytes; index it: ctx-vector index, and use kb:")
    return data


def _text_items(data: bytes, name: str) -> list[dict[str, Any]]:
    from ctx_vector.formats.front_matter import read_front_matter
    from ctx_vector.loaders import decode

    if b"\0" in data[:8192] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise LoaderError(f"{name}: is no text; index it: ctx-vector index, and use kb:")
    text, _ = decode(data)
    metadata, start = read_front_matter(text) if text.startswith("---") else ({}, 0)
    body = text[start:]
    return [{"content": body, "metadata": {"source": name, **metadata}}] if body.strip() else []


def _yaml_items(data: bytes, name: str) -> list[dict[str, Any]]:
    from ctx_vector.loaders import decode

    try:
        found = read_yaml(decode(data)[0])
    except InputError as error:
        raise LoaderError(f"{name}: {error}") from None
    if found.problems:
        raise LoaderError(f"{name}: {'; '.join(found.problems[:5])}")
    return items_of(found.value, name)


def items_of(value: Any, name: str) -> list[dict[str, Any]]:
    """Return the items in the value of a YAML file.

    A list has an item in each place; a mapping with ``items`` gives all of them its other keys; a mapping with
    ``content`` or ``text``, or with ``question`` and ``answer``, is one item; any other mapping is one item of lines
    ``key: value``. Raises LoaderError for what is none of these.
    """
    if value is None:
        return []
    extra: dict[str, Any] = {}
    if isinstance(value, Mapping) and isinstance(value.get("items"), list):
        extra = {key: item for key, item in value.items() if key != "items"}
        value = value["items"]
    if isinstance(value, list):
        return [_item({**extra, **_mapping(item, f"{name}, item {at}")}, name) for at, item in enumerate(value, 1)]
    return [_item(_mapping(value, name), name)]


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"content": value}
    if not isinstance(value, Mapping):
        raise LoaderError(f"{where}: expected a text or a mapping with 'content', got {shown(value)}")
    if not any(isinstance(value.get(key), str) for key in CONTENT_KEYS):
        if value.get("question") is not None and value.get("answer") is not None:
            return {**value, "content": f"{value['question']}\n{value['answer']}"}
        known = ("version", "expires_at", "document_id", "scope", "timestamp")
        lines = [f"{key}: {_flat(item)}" for key, item in value.items() if key not in known and item is not None]
        return {**{key: value[key] for key in known if key in value}, "content": "\n".join(lines)}
    return dict(value)


def _flat(value: Any) -> str:
    value = plain(value)
    if isinstance(value, list) and all(isinstance(item, (str, int, float)) for item in value):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _item(value: dict[str, Any], name: str) -> dict[str, Any]:
    metadata = {key: plain(item) for key, item in value.items() if key not in _FIELDS and item is not None}
    own = value.get("metadata")
    if isinstance(own, Mapping):
        metadata = {**plain(own), **metadata}
    metadata.setdefault("source", name)
    if "id" in metadata and not {"document_id", "document"} & set(metadata):  # two items of one id are its versions
        metadata["document_id"] = f"{name}#{metadata['id']}"
    content = next(value[key] for key in CONTENT_KEYS if isinstance(value.get(key), str))
    found = {"content": content, "metadata": metadata}
    return found | {key: value[key] for key in ("timestamp", "score", "importance") if value.get(key) is not None}


# -- what is searched -------------------------------------------------------------------------------------------------


class KnowledgeLoader:
    """A search in a knowledge base, with the vectors that are stored there."""

    asks = True

    def __init__(self, path: Path, config: SourceConfig, encoder: Callable[[], Encoder] | None) -> None:
        from ctx_vector.errors import StoreError
        from ctx_vector.knowledge import KnowledgeBase

        self._config = config
        self._encoder = encoder
        self._lock = threading.Lock()
        self._tool: Any = None
        try:
            self._knowledge = KnowledgeBase(path, create=False)
        except StoreError as error:
            raise ConfigError([f"sources.{config.name}.loader: {error}"]) from None

    def ready(self) -> None:
        """Open the encoder, which may take longer than a search."""
        self._opened()

    def _opened(self) -> tuple[Any, Encoder]:
        from ctx_vector.encoders import load_encoder
        from ctx_vector.knowledge import KnowledgeBase
        from ctx_vector.model_store import cards
        from ctx_vector.tools import RAGTool

        with self._lock:
            if self._tool is None:
                encoder = self._encoder() if self._encoder is not None else load_encoder()
                own = self._knowledge.stats()["model"]
                if own is not None and own != encoder.name and own in cards():
                    encoder = load_encoder(own)
                path = self._knowledge.path
                self._knowledge.close()
                self._knowledge = KnowledgeBase(path, encoder, create=False)
                self._tool = RAGTool(knowledge=self._knowledge)
            return self._tool, self._encoder() if self._encoder is not None else self._knowledge.encoder

    @property
    def knowledge(self) -> Any:
        """The KnowledgeBase behind."""
        return self._knowledge

    def load(self, request: Request) -> list[Candidate]:
        """Return the passages found, best first."""
        tool, encoder = self._opened()
        found = tool.candidates(
            request.user_query,
            now=request.now,
            encoder=encoder,
            limit=request.top_k,
            min_score=request.score_threshold,
            filter=self._config.args.get("filter"),
        )
        return list(found)


class MemoryLoader:
    """A search in the memories of one user."""

    asks = True

    def __init__(self, path: Path, config: SourceConfig, encoder: Callable[[], Encoder] | None) -> None:
        self._path = path
        self._config = config
        self._encoder = encoder
        self._lock = threading.Lock()
        self._tool: Any = None

    def ready(self) -> None:
        """Open the encoder, which may take longer than a search."""
        self._opened()

    def _opened(self) -> tuple[Any, Encoder]:
        from ctx_vector.tools import MemoryTool

        with self._lock:
            if self._tool is None:
                encoder = self._encoder() if self._encoder is not None else None
                self._tool = MemoryTool(self._config.args["user"], self._path, encoder)
            return self._tool, self._encoder() if self._encoder is not None else self._tool.memory.encoder

    def load(self, request: Request) -> list[Candidate]:
        """Return the memories found, best first."""
        tool, encoder = self._opened()
        found = tool.candidates(
            request.user_query,
            now=request.now,
            encoder=encoder,
            limit=self._config.top_k or MEMORY_LIMIT,
            min_importance=self._config.args.get("min_importance", 0.3),
        )
        least = self._config.score_threshold or 0.0
        return [item for item in found if item.known.get("cosine", 1.0) >= least]


# -- code -------------------------------------------------------------------------------------------------------------


def _function(field: str, name: str, base: Path) -> Any:
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(_module(base, module), attribute, None)
    except Exception as error:  # importing runs somebody's code, which may raise anything
        raise ConfigError([f"{field}: cannot import {module}: {type(error).__name__}: {error}"]) from None
    if callable(getattr(found, "load", None)) and not isinstance(found, type):
        return found
    if not callable(found) or isinstance(found, type):
        raise ConfigError([f"{field}: expected a function {attribute} in {module}, got {shown(found)}"])
    return found


def _module(base: Path, name: str) -> Any:
    """Return a module: a file of the base folder, under a name of its own so that no two agents share it, or an
    installed one.
    """
    try:
        path = rooted(base, f"{name.replace('.', '/')}.py")
    except InputError:
        path = base  # a link to elsewhere: not the base folder's own
    if not path.is_file():
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(f"ctx_vector_source_{os.urandom(8).hex()}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
