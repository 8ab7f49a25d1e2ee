"""Files as sources: paths that stay inside a folder, texts and YAML items, read again when their content changes."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.errors import InputError, LoaderError
from ctx_vector.plain_yaml import plain, read_yaml
from ctx_vector.rules import shown

if TYPE_CHECKING:
    from ctx_vector.stages import Request

#: Bytes of a file that a source reads.
MOST_BYTES: Final = 4_000_000
#: What an item of a YAML file may say of itself; anything else is metadata.
CONTENT_KEYS: Final = ("content", "text")
_FIELDS: Final = (*CONTENT_KEYS, "question", "answer", "timestamp", "score", "importance", "metadata")


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


def text_items(data: bytes, name: str) -> list[dict[str, Any]]:
    """Return a file as one item, with what its front matter says. Raises LoaderError for what is no text."""
    from ctx_vector.formats.front_matter import read_front_matter
    from ctx_vector.loaders import decode

    if b"\0" in data[:8192] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise LoaderError(f"{name}: is no text; index it: ctx-vector index, and use kb:")
    text, _ = decode(data)
    metadata, start = read_front_matter(text) if text.startswith("---") else ({}, 0)
    body = text[start:]
    return [{"content": body, "metadata": {"source": name, **metadata}}] if body.strip() else []


def yaml_items(data: bytes, name: str) -> list[dict[str, Any]]:
    """Return the items of a YAML file; see `items_of`. Raises LoaderError for what is no plain YAML."""
    from ctx_vector.loaders import decode

    try:
        found = read_yaml(decode(data)[0])
    except InputError as error:
        raise LoaderError(f"{name}: {error}") from None
    if found.problems:
        raise LoaderError(f"{name}: {'; '.join(map(str, found.problems[:5]))}")
    return items_of(found.value, name)


def items_of(value: Any, name: str) -> list[dict[str, Any]]:
    """Return the items in the value of a YAML file.

    A list has an item in each place; a mapping with ``items`` gives all of them its other keys; a mapping with
    ``content`` or ``text``, or with ``question`` and ``answer``, is one item; any other mapping is one item of lines
    ``key: value``. Raises LoaderError for what is none of these.

    Items with a smaller ``priority`` come first. Items with the same ``id`` are versions of one document, and so are
    items without an id that have a version of their own; other items are a document each.
    """
    if value is None:
        return []
    extra: dict[str, Any] = {}
    if isinstance(value, Mapping) and isinstance(value.get("items"), list):
        extra = {key: item for key, item in value.items() if key != "items"}
        value = value["items"]
    if not isinstance(value, list):
        return [_item(_mapping(value, name), name)]
    found = []
    for at, item in enumerate(value, 1):
        own = _mapping(item, f"{name}, item {at}")
        made = _item({**extra, **own}, name)
        if not ("version" in own and _has_content(item)):
            made["metadata"].setdefault("document_id", f"{name}#{at}")
        found.append(made)
    return sorted(found, key=_priority)


def _priority(item: Mapping[str, Any]) -> float:
    value = item["metadata"].get("priority", 0)
    return value if isinstance(value, (int, float)) and value == value else 0


def _has_content(value: Any) -> bool:
    return isinstance(value, Mapping) and any(value.get(key) is not None for key in (*CONTENT_KEYS, "question"))


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"content": value}
    if not isinstance(value, Mapping):
        raise LoaderError(f"{where}: expected a text or a mapping with 'content', got {shown(value)}")
    if not any(isinstance(value.get(key), str) for key in CONTENT_KEYS):  # an answer to a question, or a row of fields
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
        metadata["document_id"] = f"{name}#id={metadata['id']}"
    content = next(value[key] for key in CONTENT_KEYS if isinstance(value.get(key), str))
    found = {"content": content, "metadata": metadata}
    return found | {key: value[key] for key in ("timestamp", "score", "importance") if value.get(key) is not None}
