"""Loaders given as text: `yaml:path`, `text:path`, `kb:dir`, `memory:dir`, `session:`, `python:module.function`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctx_vector.errors import ConfigError
from ctx_vector.sources import SourceConfig

if TYPE_CHECKING:
    from ctx_vector.stages import Encoder


def open_loader(
    config: SourceConfig,
    *,
    base_dir: str | Path | None,
    allow_python: bool,
    encoder: Callable[[], Encoder] | None,
) -> Any:
    """Return the loader of a source whose `loader` is a text. Raises ConfigError naming what is wrong with it."""
    raise ConfigError([f"sources.{config.name}.loader: {config.loader.partition(':')[0]}: is not built yet"])
