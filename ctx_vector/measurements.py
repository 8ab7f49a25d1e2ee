"""What is measured of a model once, on the shipped background of texts, and kept.

Of such are the calibration of an encoder (calibration.py), the map of its late interaction (late_map.py) and that of a
cross-encoder (cross_encoder.py). Each is JSON-ready values, which are

    shipped    models/calibration/ in the package or a checkout, for models with a card
    measured   calibration/ in the user's cache folder, at the first use of any other model

and a function that makes an object of the values, or refuses them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ctx_vector.errors import ModelError
from ctx_vector.whole_files import whole_file

T = TypeVar("T")

_log = logging.getLogger("ctx_vector.measurements")


def background(folder: Path | None = None) -> list[dict[str, str]]:
    """Return the rows of the background, keys en, zh, q_en, q_zh; `folder` is another one than the shipped models'.

    Raises ModelError when there are none.
    """
    return _rows(folder, "part*.jsonl")


def statements(folder: Path | None = None) -> list[dict[str, str]]:
    """Return the rows of short statements about oneself, with the same keys. Raises ModelError when there are none."""
    return _rows(folder, "statements.jsonl")


def _rows(folder: Path | None, names: str) -> list[dict[str, str]]:
    if folder is None:
        from ctx_vector.model_store import registry_dir

        folder = registry_dir()
    rows = [
        json.loads(line)
        for path in sorted((folder / "background").glob(names))
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    if not rows:
        raise ModelError(f"no calibration background in {folder / 'background'}; reinstall ctx_vector")
    return rows


def shipped_path(name: str) -> Path:
    """Return where a shipped measurement lies, if there is one of this name."""
    from ctx_vector.model_store import registry_dir

    return registry_dir() / "calibration" / name


def measured_path(name: str) -> Path:
    """Return where a measurement made on this machine is kept."""
    from platformdirs import user_cache_path

    return Path(user_cache_path("ctx_vector")) / "calibration" / name


def readable(paths: Iterable[Path], of: Callable[[Any], T]) -> Iterator[T]:
    """Yield what `of` makes of the values in each file that is there; one that cannot be read is warned of."""
    for path in paths:
        try:
            found = of(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError, AttributeError, LookupError, ModelError) as error:
            _log.warning("the calibration %s cannot be read (%s); leaving it out", path.name, error)
            continue
        yield found


def keep(path: Path, values: Any) -> None:
    """Write a measurement, at once and whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        json.dump(values, file)


def measured(path: Path, what: str, measure: Callable[[], Any], of: Callable[[Any], T]) -> T:
    """Measure, keep the values, and return what `of` makes of them, so that the first use is like all later ones."""
    _log.info("measuring %s on the background; this happens once", what)
    values = measure()
    try:
        keep(path, values)
    except OSError as error:  # a read-only home costs the time again, and nothing else
        _log.warning("the calibration cannot be kept (%s)", error)
    return of(values)
