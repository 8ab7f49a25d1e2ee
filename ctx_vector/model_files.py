"""Writes the files of a prepared model: the light start, the tokenizer, and the sentence-transformers folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctx_vector import e5_format
from ctx_vector.model_sources import SourceModel, tensor_shapes
from ctx_vector.onnx_export import int8_graph
from ctx_vector.tokenizer_files import UnigramModel, write_piece_list, write_tokenizer_json

if TYPE_CHECKING:
    from ctx_vector.model_store import ModelCard

_ROWS = 8192  # rows of the word table held as float32 at a time, 12 MB


def write_light(model: SourceModel, folder: Path) -> None:
    """Write the int8 graph, the word table and, for a unigram model, the piece list.

    The table keeps the exact values of the source, as 4-bit blocks or as float32, so the vectors are the same, to the
    bit, as those of one graph with the whole table inside.
    """
    (folder / "graph.onnx").write_bytes(int8_graph(model.shape, model.tensor))
    np.save(folder / "words.npy", model.word_rows, allow_pickle=False)
    if isinstance(model.tokenizer, UnigramModel):
        write_piece_list(model.tokenizer, folder)


def write_tokenizer(card: ModelCard, model: SourceModel, folder: Path) -> None:
    """Write tokenizer.json and what transformers needs beside it."""
    config: dict[str, Any] = {"model_max_length": card.max_tokens, "clean_up_tokenization_spaces": False}
    if isinstance(model.tokenizer, UnigramModel):
        write_tokenizer_json(model.tokenizer, folder / "tokenizer.json")
        config |= {"tokenizer_class": "PreTrainedTokenizerFast"} | model.tokenizer.special()
    else:
        shutil.copyfile(model.tokenizer, folder / "tokenizer.json")
        config |= {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "sep_token": "[SEP]"}
        config |= {"pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
    _write_json(folder / "tokenizer_config.json", config)


def write_sentence_transformers(card: ModelCard, model: SourceModel, folder: Path) -> None:
    """Write the weights in float32 and the files by which `SentenceTransformer` loads the folder."""
    shape = model.shape
    pad = model.tokenizer.pad if isinstance(model.tokenizer, UnigramModel) else 0
    config = {
        "architectures": ["BertModel"],
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.ffn,
        "layer_norm_eps": shape.eps,
        "max_position_embeddings": shape.positions,
        "model_type": "bert",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "pad_token_id": pad,
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
        "type_vocab_size": shape.token_types,
        "vocab_size": shape.vocab,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": card.max_tokens, "do_lower_case": False})
    module = "sentence_transformers.models"
    parts = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{module}.{kind}"} for i, (path, kind) in enumerate(parts)
    ]
    _write_json(folder / "modules.json", modules)
    for path, _ in parts[1:]:
        (folder / path).mkdir()
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    pooling: dict[str, Any] = {f"pooling_mode_{mode}": mode == f"{card.pooling}_tokens" for mode in modes}
    _write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": shape.hidden} | pooling)
    sentence_transformers = {
        "__version__": {"sentence_transformers": "4.0.0"},
        "prompts": {"query": card.prompts["query"], "passage": card.prompts["passage"]},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    _write_json(folder / "config_sentence_transformers.json", sentence_transformers)
    write_safetensors(model, folder / "model.safetensors")


def write_safetensors(model: SourceModel, path: Path) -> None:
    """Write all weights in float32, the word table a few rows at a time (as a whole it takes 384 MB)."""
    table = "embeddings.word_embeddings.weight"
    hidden = model.shape.hidden
    sizes: dict[str, tuple[int, ...]] = {table: (model.shape.vocab, hidden)} | tensor_shapes(model.shape)
    # Nothing uses BERT's pooler here; without one, transformers reports it missing and makes up a random one.
    pooler = {"pooler.dense.weight": (hidden, hidden), "pooler.dense.bias": (hidden,)}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, size in (sizes | pooler).items():
        nbytes = 4 * int(np.prod(size))
        header[name] = {"dtype": "F32", "shape": list(size), "data_offsets": [at, at + nbytes]}
        at += nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for rows in word_rows(model.word_rows):
            file.write(rows.astype("<f4", copy=False).tobytes())
        for name in list(sizes)[1:]:
            file.write(model.tensor(name).astype("<f4", copy=False).tobytes())
        for size in pooler.values():
            file.write(np.zeros(size, "<f4").tobytes())


def word_rows(table: NDArray[Any]) -> Iterator[NDArray[np.float32]]:
    """Give the rows of a word table as float32, (at most 8192, dim) at a time."""
    for start in range(0, len(table), _ROWS):
        part = table[start : start + _ROWS]
        yield e5_format.dequantise(part) if part.dtype == np.uint8 else part


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
