"""YAML front matter: the `---` block at the head of a Markdown file, read without trusting it."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Any

from ctx_vector.documents import as_utc

MAX_CHARS = 65_536  # front matter is a few lines; more is somebody's data, or an attack
_OPEN = re.compile(r"---[ \t]*\n")
_CLOSE = re.compile(r"^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.MULTILINE)


def read_front_matter(text: str) -> tuple[dict[str, Any], int]:
    """Return (metadata, where the body starts); ({}, 0) when there is none or it is no valid mapping.

    Values are plain JSON types: dates become ISO 8601 texts. Aliases are refused, since nine lines of them can
    stand for a billion items. `version`, `document_id` and `title` keep the text they were written as, so that
    version 1.10 does not become 1.1.
    """
    opening = _OPEN.match(text)
    closing = _CLOSE.search(text, opening.end(), opening.end() + MAX_CHARS) if opening else None
    if not opening or not closing:
        return {}, 0
    if closing.end() == opening.end() + MAX_CHARS and not closing.group().endswith("\n"):
        return {}, 0  # cut off by the limit, not closed
    mapping = _load_mapping(text[opening.end() : closing.start()])
    return ({}, 0) if mapping is None else (mapping, closing.end())


def _load_mapping(source: str) -> dict[str, Any] | None:
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("aliases are not allowed in front matter")
            return super().compose_node(parent, index)

    try:
        loader = Loader(source)
        try:
            node = loader.get_single_node()
            if node is None or not isinstance(node, yaml.MappingNode):
                return {} if node is None else None
            data = loader.construct_document(node)
        finally:
            loader.dispose()
        for key, value in node.value:
            if isinstance(value, yaml.ScalarNode) and key.value in ("version", "document_id", "title"):
                data[key.value] = value.value
        plain = {str(key): _plain(value) for key, value in data.items()}
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError, AttributeError):
        return None  # ValueError: a date such as 2024-13-45, or an integer of 5,000 digits
    if (expires := as_utc(data.get("expires_at"))) is not None:
        plain["expires_at"] = expires.isoformat()
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, set):
        return sorted((_plain(item) for item in value), key=str)
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not (-1e308 < value < 1e308):
        return str(value)
    return value
