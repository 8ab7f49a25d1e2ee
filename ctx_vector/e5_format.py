"""Reads the E5S1 file: weights in 4-bit blocks and a unigram tokenizer, little endian.

The file is data from outside, so nothing in it is trusted: every count and every offset is checked against the
bounds of the file before it is used, and whatever does not fit is a `ModelError`, never a crash.

A 4-bit block holds 32 weights in 18 bytes: a float16 scale, then 16 bytes of which byte j holds weight j in its low
and weight j + 16 in its high nibble; ``weight = (nibble - 8) * scale``.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_vector.errors import ModelError

MAGIC = b"E5S1"
BLOCK_WEIGHTS = 32
BLOCK_BYTES = 18  # float16 scale + 16 bytes of nibbles

_LIMIT = 1 << 24  # no dimension or count of a model of this kind comes near it


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where one tensor lies: `offset` and `nbytes` in bytes from the start of the file, `count` in weights."""

    four_bit: bool
    count: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class E5File:
    """A parsed E5S1 file; weights stay in the mapped file until they are asked for."""

    hidden: int
    layers: int
    heads: int
    ffn: int
    vocab: int  # rows of the word table; may exceed len(pieces)
    positions: int
    token_types: int
    eps: float
    pieces: list[str]
    scores: NDArray[np.float32]  # (len(pieces),) log probabilities
    bos: int
    eos: int
    pad: int
    unk: int
    charmap: dict[int, str]  # code point -> what it is replaced by
    tensors: dict[str, Tensor]
    data: NDArray[np.uint8]

    def blocks(self, name: str, rows: int) -> NDArray[np.uint8]:
        """Return a 4-bit tensor as it is stored: (rows, bytes of a row) uint8, a view of the file."""
        tensor = self.tensors[name]
        return self.data[tensor.offset : tensor.offset + tensor.nbytes].reshape(rows, -1)

    def floats(self, name: str, *shape: int) -> NDArray[np.float32]:
        """Return a tensor as float32 in the given shape, dequantised if needed."""
        tensor = self.tensors[name]
        if tensor.four_bit:
            return dequantise(self.blocks(name, shape[0])).reshape(shape)
        raw = self.data[tensor.offset : tensor.offset + tensor.nbytes]
        return np.frombuffer(raw.tobytes(), "<f4").reshape(shape).astype(np.float32, copy=False)


def dequantise(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Turn (n, blocks * 18) uint8 into (n, blocks * 32) float32.

    A scale of 0.5 with first byte 0x9A: weight 0 is (10 - 8) * 0.5 = 1.0, weight 16 is (9 - 8) * 0.5 = 0.5.
    The products are exact in float32 (4 bits by 11 bits), so the result is the same on every machine.
    """
    n = rows.shape[0]
    blocks = rows.reshape(n, -1, BLOCK_BYTES)
    scales = np.ascontiguousarray(blocks[:, :, :2]).view("<f2").astype(np.float32)  # (n, blocks, 1)
    nibbles = blocks[:, :, 2:]
    out = np.empty((n, blocks.shape[1], BLOCK_WEIGHTS), np.float32)
    half = BLOCK_WEIGHTS // 2
    np.subtract(nibbles & 15, 8, out=out[:, :, :half], dtype=np.float32)
    np.subtract(nibbles >> 4, 8, out=out[:, :, half:], dtype=np.float32)
    out *= scales
    return out.reshape(n, -1)


class _Reader:
    """A cursor over the file that refuses to leave it."""

    def __init__(self, data: NDArray[np.uint8], fail: Callable[[str], ModelError]) -> None:
        self.data = data
        self.at = 0
        self.fail = fail

    def take(self, size: int, what: str) -> NDArray[np.uint8]:
        if size < 0 or size > len(self.data) - self.at:
            raise self.fail(f"it ends inside {what} (byte {self.at} of {len(self.data)})")
        self.at += size
        return self.data[self.at - size : self.at]

    def unpack(self, layout: str, what: str) -> tuple[Any, ...]:
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout), what).tobytes())


def read(path: Path) -> E5File:
    """Map and parse the file at `path`."""

    def fail(why: str) -> ModelError:
        return ModelError(f"{path.name} is not a usable E5S1 model file: {why}")

    try:
        data = np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    reader = _Reader(data, fail)
    if reader.take(4, "the magic").tobytes() != MAGIC:
        raise fail(f"it does not start with {MAGIC.decode()}")
    (version,) = reader.unpack("I", "the version")
    if version != 1:
        raise fail(f"its version is {version}, expected 1")
    sizes = reader.unpack("7i", "the dimensions")
    eps, block = reader.unpack("fi", "the dimensions")
    hidden, layers, heads, ffn, vocab, positions, types = sizes
    if not all(0 < size < _LIMIT for size in sizes) or layers > 1000 or block != BLOCK_WEIGHTS:
        raise fail(f"its dimensions {sizes} or its block size {block} are out of bounds")
    if hidden % heads or hidden % block or ffn % block or not 0 < eps < 1:
        raise fail(f"its dimensions {sizes} or its epsilon {eps} do not belong together")
    pieces, scores, (bos, eos, pad, unk) = _read_pieces(reader)
    if len(pieces) > vocab:
        raise fail(f"it has {len(pieces)} pieces for {vocab} rows of the word table")
    charmap = _read_charmap(reader)
    tensors = _read_directory(reader)
    for name, count in expected_weights(sizes).items():
        if name not in tensors or tensors[name].count != count:
            raise fail(f"tensor {name} with {count} weights is missing or has another size")
    return E5File(
        hidden,
        layers,
        heads,
        ffn,
        vocab,
        positions,
        types,
        eps,
        pieces,
        scores,
        bos,
        eos,
        pad,
        unk,
        charmap,
        tensors,
        data,
    )


def _read_pieces(reader: _Reader) -> tuple[list[str], NDArray[np.float32], tuple[int, int, int, int]]:
    count, *special = reader.unpack("5i", "the tokenizer")
    (blob_size,) = reader.unpack("Q", "the tokenizer")
    if not 0 < count < _LIMIT or not all(0 <= index < count for index in special):
        raise reader.fail(f"its tokenizer has {count} pieces and the special ids {special}")
    offsets = np.frombuffer(reader.take(4 * (count + 1), "the piece offsets").tobytes(), "<u4").astype(np.int64)
    scores = np.frombuffer(reader.take(4 * count, "the piece scores").tobytes(), "<f4").astype(np.float32, copy=False)
    blob = reader.take(blob_size, "the pieces").tobytes()
    if offsets[0] != 0 or offsets[-1] != blob_size or (np.diff(offsets) <= 0).any() or not np.isfinite(scores).all():
        raise reader.fail("the offsets or scores of its pieces are damaged")
    bounds = offsets.tolist()
    try:
        pieces = [blob[start:end].decode() for start, end in itertools.pairwise(bounds)]
    except UnicodeDecodeError as error:
        raise reader.fail("its pieces are not UTF-8") from error
    if len(set(pieces)) != count:
        raise reader.fail("it has the same piece twice")
    return pieces, scores, (special[0], special[1], special[2], special[3])


def _read_charmap(reader: _Reader) -> dict[int, str]:
    count, size = reader.unpack("iI", "the character map")
    part = _Reader(reader.take(size, "the character map"), reader.fail)
    charmap: dict[int, str] = {}
    for _ in range(count):
        code, length = part.unpack("IB", "the character map")
        try:
            charmap[code] = "".join(map(chr, part.unpack(f"{length}I", "the character map")))
            (chr(code) + charmap[code]).encode()
        except (ValueError, OverflowError) as error:  # UnicodeEncodeError is a ValueError: surrogates
            raise reader.fail("its character map holds code points that do not exist") from error
    return charmap


def _read_directory(reader: _Reader) -> dict[str, Tensor]:
    (count,) = reader.unpack("i", "the tensor directory")
    tensors: dict[str, Tensor] = {}
    for _ in range(count):
        (length,) = reader.unpack("H", "the tensor directory")
        name = reader.take(length, "the tensor directory").tobytes().decode("ascii", "replace")
        kind, weights, offset, nbytes = reader.unpack("BIQQ", "the tensor directory")
        expected = 4 * weights if kind == 0 else weights // BLOCK_WEIGHTS * BLOCK_BYTES
        if kind > 1 or (kind == 1 and weights % BLOCK_WEIGHTS) or nbytes != expected:
            raise reader.fail(f"tensor {name} has the kind {kind}, {weights} weights and {nbytes} bytes")
        if offset > len(reader.data) or nbytes > len(reader.data) - offset:
            raise reader.fail(f"tensor {name} lies outside of the file ({len(reader.data)} bytes)")
        tensors[name] = Tensor(kind == 1, weights, offset, nbytes)
    return tensors


def expected_weights(sizes: tuple[Any, ...]) -> dict[str, int]:
    """Return how many weights each tensor has, by name; `sizes` are the seven of the header (hidden, layers, ...)."""
    hidden, layers, _, ffn, vocab, positions, types = sizes
    counts = {"emb.word": vocab * hidden, "emb.pos": positions * hidden, "emb.type": types * hidden}
    counts |= {"emb.ln.w": hidden, "emb.ln.b": hidden}
    for i in range(layers):
        for part, rows, columns in (
            ("q", hidden, hidden),
            ("k", hidden, hidden),
            ("v", hidden, hidden),
            ("ao", hidden, hidden),
            ("fi", ffn, hidden),
            ("fo", hidden, ffn),
        ):
            counts |= {f"l{i}.{part}.w": rows * columns, f"l{i}.{part}.b": rows}
        for part in ("aln", "oln"):
            counts |= {f"l{i}.{part}.w": hidden, f"l{i}.{part}.b": hidden}
    return counts
