"""What `ctx-vector build` reads from files: configuration, history, state, documents. Errors name file and line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.cli.text import read_text
from ctx_vector.errors import ConfigError, InputError

if TYPE_CHECKING:
    from ctx_vector.config import ContextConfig
    from ctx_vector.settings import Settings
    from ctx_vector.tokens import TokenCounter

_PASSAGE_TOKENS: Final = 360  # of a --document; well inside the encoder's window in any language


def text_argument(value: str | None, what: str) -> str | None:
    """Return the text itself, or what stands in the file after ``@``."""
    return read_text(value[1:], what) if value is not None and value.startswith("@") else value


def read_state(value: str | None) -> str | Mapping[str, Any] | None:
    """Return the task state: a JSON object as a mapping, anything else as the text it is; ``@FILE`` reads it."""
    text = text_argument(value, "--state")
    if text is None or not text.lstrip().startswith("{"):
        return text
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"--state: begins like a JSON object, but is none: {error}") from None
    return found if isinstance(found, dict) else text


def read_history(path: str | None) -> list[Any]:
    """Return the messages of a JSON list, of an object with ``messages``, or of JSON lines."""
    from ctx_vector.packets import Message

    if path is None:
        return []
    text = read_text(path, "--history")
    if text.lstrip().startswith("["):
        items = [(f"item {number}", item) for number, item in enumerate(_json(text, path), 1)]
    else:
        items = _lines(text, path)
        if len(items) == 1 and isinstance(items[0][1], dict) and isinstance(items[0][1].get("messages"), list):
            items = [(f"item {number}", item) for number, item in enumerate(items[0][1]["messages"], 1)]
    messages = []
    for place, item in items:
        try:
            if not isinstance(item, dict):
                raise InputError(f"expected an object with 'role' and 'content', got {item!r:.60}")
            messages.append(Message.of(item))
        except InputError as error:
            raise InputError(f"--history: {path}, {place}: {error}") from None
    return messages


def _json(text: str, path: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"--history: {path} is no valid JSON: {error}") from None


def _lines(text: str, path: str) -> list[tuple[str, Any]]:
    try:
        whole = json.loads(text)  # one object over several lines
        return [("item 1", whole)]
    except ValueError:
        pass
    found = []
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: JSON may hold U+2028 as it is
        if line.strip():
            try:
                found.append((f"line {number}", json.loads(line)))
            except ValueError as error:
                raise InputError(
                    f"--history: {path}, line {number}: no valid JSON ({error}); expected one message a line, like "
                    '{"role": "user", "content": "..."}'
                ) from None
    return found


def read_config(path: str | None, changes: Mapping[str, Any]) -> ContextConfig:
    """Return the configuration of a YAML, TOML or JSON file with `changes` on top. Raises ConfigError with all faults.

    The fields stand at the top, or under ``context``.
    """
    from ctx_vector.config import ContextConfig

    values: Mapping[str, Any] = {}
    if path is not None:
        values = _parsed(path)
        if "context" in values:
            others = [key for key in values if key != "context"]
            if others:
                raise InputError(f"--config: {path}: {', '.join(others)}: expected under 'context', as the others are")
            values = values["context"] or {}
            if not isinstance(values, Mapping):
                raise InputError(f"--config: {path}: context: expected a mapping, got {values!r:.60}")
    return ContextConfig.from_dict({**values, **{key: value for key, value in changes.items() if value is not None}})


def is_settings(path: str | None) -> bool:
    """Return whether a file says more than a configuration: sources, a budget, a model, an audit or a base folder."""
    from ctx_vector.plain_yaml import read_yaml
    from ctx_vector.settings import SECTIONS

    if path is None or Path(path).suffix.lower() not in (".yaml", ".yml"):
        return False
    try:
        value = read_yaml(read_text(path, "--config")).value
    except InputError:
        return False  # told when it is read
    return isinstance(value, Mapping) and bool(set(value) & (set(SECTIONS) - {"context"}))


def read_settings(path: str, changes: Mapping[str, Any], scope: str | None, allow_python: bool) -> Settings:
    """Return the settings of a YAML file, with `changes` of its context on top. Raises ConfigError with all faults."""
    from dataclasses import replace

    from ctx_vector.config import ContextConfig
    from ctx_vector.settings import load_settings

    given = {key: value for key, value in changes.items() if value is not None}
    problems: list[str] = []
    settings = None
    try:
        settings = load_settings(path, scope=scope, allow_python=allow_python)
    except ConfigError as error:
        problems += error.problems
    try:
        ContextConfig.from_dict(given)
    except ConfigError as error:
        problems += error.problems
    if settings is None or problems:
        raise ConfigError(problems)
    return replace(settings, config=settings.config.with_(**given))


def _parsed(path: str) -> Mapping[str, Any]:
    text = read_text(path, "--config")
    suffix = Path(path).suffix.lower()
    try:
        if suffix == ".toml":
            import tomllib

            found: Any = tomllib.loads(text)
        elif suffix == ".json":
            found = json.loads(text)
        elif suffix in (".yaml", ".yml", ""):
            found = _yaml(text)
        else:
            raise InputError(f"--config: expected a .yaml, .toml or .json file, got {path}")
    except (InputError, ConfigError):
        raise
    except ValueError as error:
        raise InputError(f"--config: {path} is no valid {suffix[1:].upper() or 'YAML'}: {error}") from None
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise InputError(f"--config: {path}: expected fields with values, got {type(found).__name__}")
    return {str(key): value for key, value in found.items()}


def _yaml(text: str) -> Any:
    from ctx_vector.plain_yaml import read_yaml

    try:
        found = read_yaml(text)
    except InputError as error:
        raise ValueError(str(error)) from None
    if found.problems:
        raise ConfigError([str(problem) for problem in found.problems])
    return found.value


def read_documents(paths: Sequence[str], counter: TokenCounter) -> list[dict[str, Any]]:
    """Return the passages of files as `documents` of a build, with where they stand."""
    if not paths:
        return []
    from ctx_vector.chunking import chunk_document
    from ctx_vector.hits import citation
    from ctx_vector.loaders import load_document

    found = []
    for path in paths:
        document = load_document(path)
        for chunk in chunk_document(document, counter.count_batch, max_tokens=_PASSAGE_TOKENS):
            cite = citation(document.source, chunk.start_line, chunk.end_line, chunk.heading)
            found.append(
                {
                    "content": chunk.text,
                    "timestamp": document.timestamp,
                    "metadata": {"source": document.source, "cite": cite, "heading": list(chunk.heading)},
                }
            )
    return found
