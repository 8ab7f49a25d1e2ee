"""Opens encoders by name, path or hub name, and the encoders that wrap others."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from ctx_vector import hub
from ctx_vector.errors import InputError, ModelError
from ctx_vector.lru import LRU
from ctx_vector.model_store import MANIFEST, cards, find_card, prepare
from ctx_vector.onnx_encoder import OnnxEncoder, Progress
from ctx_vector.values import clean_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ctx_vector.stages import Encoder, Vectors

__all__ = ["CachedEncoder", "OnnxEncoder", "Progress", "SentenceTransformerEncoder", "VectorStore", "load_encoder"]


def load_encoder(
    name: str | Path | None = None, *, models_dir: str | Path | None = None, threads: int | None = None
) -> Encoder:
    """Open an encoder.

    `name` is a card's (the default one: multilingual-e5-small), the path of a folder, or a hub name with a slash in it
    (``owner/model``). A card's model is prepared first if need be, from what is installed, without a network. A folder
    is opened by sentence-transformers unless `prepare` made it; only a hub name may reach for a network, and only for
    what is not in its cache. `models_dir` is where prepared models are kept, instead of the default place; `threads`
    (>= 1) is how many texts the fast encoder works on at once, by default one for each core.

    Raises ModelError for an unknown name, listing those there are, and for a model that cannot be prepared or opened.
    """
    known = cards()
    text = next(iter(known)) if name is None else str(name)
    if not isinstance(name, Path) and text.lower() in {card.lower() for card in known}:
        return OnnxEncoder(prepare(find_card(text).name, models_dir=models_dir), threads=threads)
    path = Path(text).expanduser()
    if path.is_dir():
        return OnnxEncoder(path, threads=threads) if (path / MANIFEST).is_file() else SentenceTransformerEncoder(path)
    if isinstance(name, str) and text.count("/") == 1 and not text.startswith((".", "/", "~")):
        return SentenceTransformerEncoder(text)
    raise ModelError(
        f"unknown model {text!r}; choose from: {', '.join(known)}, or give the path of a folder or a hub name like "
        "owner/model"
    )


class SentenceTransformerEncoder:
    """Any model that `SentenceTransformer` loads, on the CPU, under torch; slower than `OnnxEncoder`.

    Texts are run one at a time, so that a vector does not depend on what it shares a batch with.
    """

    def __init__(self, name: str | Path) -> None:
        path = Path(name).expanduser()
        local = path.is_dir()
        hub.quiet()
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ModelError(
                f"cannot import sentence-transformers ({error}); install it with: pip install sentence-transformers"
            ) from error
        try:
            source = str(path) if local else str(name)
            self._model = hub.opened(partial(SentenceTransformer, device="cpu"), source, local=local)
        except Exception as error:  # the libraries below raise whatever their parts raise
            raise ModelError(f"sentence-transformers cannot load {name}: {error}") from error
        self._model.eval()
        self._name = path.resolve().name if local else str(name)
        self._lock = threading.Lock()  # the fast tokenizers keep their padding and truncation as state
        prompts = {key: value for key, value in self._model.prompts.items() if value}
        self._prompts = {
            "query": prompts.get("query", ""),
            "passage": next((prompts[key] for key in ("passage", "document", "corpus") if key in prompts), ""),
        }
        self._dim = int(_dimension(self._model))
        self._max_tokens = int(self._model.max_seq_length or 512)
        self._fingerprint = f"{self._name}:torch:{_model_digest(self._model, self._prompts)}"

    @property
    def name(self) -> str:
        """The name of the folder, or the hub name."""
        return self._name

    @property
    def fingerprint(self) -> str:
        """Changes with the weights, the modules, the tokenizer and the prompts."""
        return self._fingerprint

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return self._dim

    @property
    def max_tokens(self) -> int:
        """The most tokens of a text that are looked at."""
        return self._max_tokens

    def encode_queries(self, texts: Sequence[str], *, progress: Progress | None = None) -> Vectors:
        """Return (n, dim) float32, unit rows, for texts that ask."""
        return self._encode(texts, "query", progress)

    def encode_documents(self, texts: Sequence[str], *, progress: Progress | None = None) -> Vectors:
        """Return (n, dim) float32, unit rows, for texts that answer."""
        return self._encode(texts, "passage", progress)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text with its document prompt and the special tokens, without truncation."""
        prompted = [self._prompts["passage"] + clean_text(text) for text in _listed(texts)]
        counts: list[int] = []
        with self._lock:
            for start in range(0, len(prompted), 1024):
                batch = prompted[start : start + 1024]
                encoded = self._model.tokenizer(batch, truncation=False, padding=False, verbose=False)
                counts.extend(map(len, encoded["input_ids"]))
        return counts

    def encode_tokens(self, texts: Sequence[str], kind: Literal["query", "passage"] = "passage") -> list[Vectors]:
        """Return the vectors (tokens, dim) float32, unit rows, of the tokens of each text, without those of the prompt
        and the special tokens.
        """
        prompt, special = self._prompts[kind], set(self._model.tokenizer.all_special_ids)
        found: dict[str, Vectors] = {}
        for text in dict.fromkeys(_listed(texts)):
            whole = prompt + clean_text(text).strip()  # see OnnxEncoder
            with self._lock:
                (rows,) = self._model.encode(
                    [whole], output_value="token_embeddings", batch_size=1, show_progress_bar=False, prompt=""
                )
                head = self._model.tokenizer(prompt.rstrip())["input_ids"]
                ids = self._model.tokenizer(whole, truncation=True, max_length=self._max_tokens)["input_ids"]
            before = len(head) - (bool(head) and head[-1] in special)
            last = min(len(ids), len(rows)) if text.strip() else 0  # a token of white space is no word
            own = [at for at in range(before, last) if ids[at] not in special]
            kept = np.asarray(rows, np.float32)[own]
            found[text] = kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), 1e-12).astype(np.float32)
        return [found[text] for text in texts]

    def _encode(self, texts: Sequence[str], kind: Literal["query", "passage"], progress: Progress | None) -> Vectors:
        unique = list(dict.fromkeys(_listed(texts)))
        rows: dict[str, NDArray[np.float32]] = {}
        for text in unique:
            with self._lock:
                (vector,) = self._model.encode(
                    [clean_text(text).strip()],
                    prompt=self._prompts[kind],
                    batch_size=1,
                    normalize_embeddings=True,
                    show_progress_bar=False,
                )
            rows[text] = np.asarray(vector, np.float32)
            if progress:
                progress(len(rows), len(unique))
        out = np.empty((len(texts), self._dim), np.float32)
        for i, text in enumerate(texts):
            out[i] = rows[text]
        return out


class VectorStore(Protocol):
    """Where `CachedEncoder` may keep vectors beyond its own memory. Keys are opaque digests, vectors (dim,) float32."""

    def get_many(self, keys: Sequence[bytes]) -> Mapping[bytes, Vectors]:
        """Return the vectors of those keys that are known."""
        ...

    def put_many(self, vectors: Mapping[bytes, Vectors]) -> None:
        """Keep these vectors."""
        ...


class CachedEncoder:
    """Remembers the last `capacity` vectors of another encoder, and asks `store` before it encodes.

    What is not known is encoded in one call. Safe to use from several threads.
    """

    def __init__(self, encoder: Encoder, capacity: int = 10_000, store: VectorStore | None = None) -> None:
        if capacity < 0:
            raise InputError(f"capacity: expected an integer >= 0, got {capacity}")
        self.encoder = encoder
        self.store = store
        self._known: LRU[bytes, NDArray[np.float32]] = LRU(capacity)

    @property
    def name(self) -> str:
        """The wrapped encoder's name."""
        return self.encoder.name

    @property
    def fingerprint(self) -> str:
        """The wrapped encoder's fingerprint."""
        return self.encoder.fingerprint

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return self.encoder.dim

    @property
    def max_tokens(self) -> int:
        """The most tokens of a text that are looked at."""
        return self.encoder.max_tokens

    def encode_queries(self, texts: Sequence[str], **options: Any) -> Vectors:
        """Return (n, dim) float32, unit rows, for texts that ask; `options` go to the wrapped encoder."""
        return self._encode(texts, "query", options)

    def encode_documents(self, texts: Sequence[str], **options: Any) -> Vectors:
        """Return (n, dim) float32, unit rows, for texts that answer; `options` go to the wrapped encoder."""
        return self._encode(texts, "passage", options)

    def encode_tokens(self, texts: Sequence[str], kind: Literal["query", "passage"] = "passage") -> list[Vectors]:
        """Return the wrapped encoder's vectors of tokens, (tokens, dim) float32 for each text; none is remembered.

        Raises ModelError when it gives none.
        """
        return tokens_of(self.encoder, texts, kind)

    def count_tokens(self, texts: Sequence[str]) -> Sequence[int]:
        """Return what the wrapped encoder counts."""
        return self.encoder.count_tokens(texts)

    def key(self, text: str, kind: Literal["query", "passage"] = "passage") -> bytes:
        """Return the 16-byte key of a text: a digest of the encoder's fingerprint, the kind and the text."""
        head = f"{self.encoder.fingerprint}\0{kind}\0"
        return hashlib.blake2b((head + text).encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def forget(self, texts: Sequence[str]) -> None:
        """Drop the vectors of these texts from memory (a store is its owner's to clean)."""
        self._known.drop([key for text in texts for key in (self.key(text, "query"), self.key(text, "passage"))])

    def _encode(self, texts: Sequence[str], kind: Literal["query", "passage"], options: dict[str, Any]) -> Vectors:
        keys = [self.key(text, kind) for text in _listed(texts)]
        found = self._known.get_many(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        if missing and self.store is not None:
            stored = self.store.get_many(list(missing))
            found.update(stored)
            self._remember(stored)
            missing = {key: text for key, text in missing.items() if key not in stored}
        if missing:
            encode = self.encoder.encode_queries if kind == "query" else self.encoder.encode_documents
            vectors = _checked(encode(list(missing.values()), **options), len(missing), self.encoder)
            fresh = dict(zip(missing, vectors, strict=True))
            found.update(fresh)
            self._remember(fresh)
            if self.store is not None:
                self.store.put_many(fresh)
        return np.array([found[key] for key in keys], np.float32).reshape(len(keys), self.dim)

    def _remember(self, vectors: Mapping[bytes, NDArray[np.float32]]) -> None:
        # not views, which would keep the whole batch
        self._known.put({key: vector.copy() for key, vector in vectors.items()})


def _checked(vectors: Any, count: int, encoder: Encoder) -> Vectors:
    """Return what an encoder gave, (count, dim) float32. Raises ModelError when these are no unit rows (or zeros).

    Relevance is made of cosines, and a row that is seven times as long would be relevant to everything.
    """
    rows = np.asarray(vectors, np.float32)
    if rows.shape != (count, encoder.dim):
        raise ModelError(f"{encoder.name}: expected vectors of shape {(count, encoder.dim)}, got {rows.shape}")
    for square in np.einsum("ij,ij->i", rows, rows).tolist():  # mostly one: each build comes by here
        if not (0.99**2 < square < 1.01**2 or square == 0):
            raise ModelError(
                f"{encoder.name}: expected unit rows, got one of length {math.sqrt(square):.4g}; "
                "divide each vector by its length"
            )
    return rows


def tokens_of(encoder: Encoder, texts: Sequence[str], kind: Literal["query", "passage"]) -> list[Vectors]:
    """Return the vectors (tokens, dim) of the tokens of each text. Raises ModelError for an encoder without them."""
    encode = getattr(encoder, "encode_tokens", None)
    if encode is None:
        raise ModelError(
            f"{encoder.name} gives no vectors of tokens (it has no encode_tokens), which late interaction needs; "
            "use the default model, or a cross-encoder: rerank='path/to/folder'"
        )
    return list(encode(texts, kind))


def _listed(texts: Sequence[str]) -> Sequence[str]:
    if isinstance(texts, str):
        raise InputError("expected a sequence of texts, got one str; put it in a list")
    return texts


def _dimension(model: Any) -> int:
    """Return the length of a vector under the name this version of sentence-transformers has for it."""
    get = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
    return int(get())


def _model_digest(model: Any, prompts: Mapping[str, str]) -> str:
    """Return 16 hex digits over all that decides a vector; takes about half a second for 500 MB of weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if "pooler." in name:  # unused here, and random in a model that comes without one
            continue
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(_byte_type()).numpy().data)
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    vocabulary = backend.to_str() if backend is not None else json.dumps(model.tokenizer.get_vocab(), sort_keys=True)
    modules = [f"{type(module).__name__} {getattr(module, 'get_config_dict', dict)()}" for module in model]
    digest.update(json.dumps([vocabulary, modules, dict(prompts), model.max_seq_length], default=str).encode())
    return digest.hexdigest()[:16]


def _byte_type() -> Any:
    import torch

    return torch.uint8
