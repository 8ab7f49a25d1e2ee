"""Writes the two forms of a unigram tokenizer: tokenizer.json, and a piece list that opens in a millisecond.

Both say the same: replace single characters by a map, turn runs of spaces into one, put a word mark before every
word, and cut into the pieces whose scores add up best. `ctx_vector.unigram` reads the piece list.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_vector.errors import ModelError

WORD_MARK = "\u2581"
_GLUE = "\x01"  # the map removes it, and no grapheme reaches across it


@dataclass(frozen=True, slots=True)
class UnigramModel:
    """What defines a unigram tokenizer: `pieces[i]` has id i and the log probability `scores[i]`."""

    pieces: Sequence[str]
    scores: NDArray[np.float32]
    charmap: Mapping[int, str]
    bos: int
    eos: int
    pad: int
    unk: int

    def special(self) -> dict[str, str]:
        """Return the special pieces under the names that tokenizer_config.json uses."""
        named = {"bos_token": self.bos, "eos_token": self.eos, "pad_token": self.pad, "unk_token": self.unk}
        special = {name: self.pieces[index] for name, index in named.items()}
        special |= {"cls_token": special["bos_token"], "sep_token": special["eos_token"]}
        if "<mask>" in self.pieces:
            special["mask_token"] = "<mask>"
        return special


def unigram_from_json(path: Path) -> UnigramModel:
    """Read the pieces of a SentencePiece unigram tokenizer.json, and what it does to every single character."""
    from tokenizers import Tokenizer

    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        model = raw["model"]
        pieces = [piece for piece, _ in model["vocab"]]
        scores = np.array([score for _, score in model["vocab"]], np.float32)
        index = {piece: i for i, piece in enumerate(pieces)}
        bos, eos, pad = index["<s>"], index["</s>"], index["<pad>"]
        normalise = Tokenizer.from_file(str(path)).normalizer.normalize_str
        unk = int(model["unk_id"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is not the tokenizer.json of a unigram model with <s>, </s> and <pad>") from error
    except Exception as error:  # tokenizers raises bare Exceptions
        raise ModelError(f"the tokenizers library cannot read {path}: {error}") from error
    charmap = {}
    for code in range(1, 0x110000):
        if not 0xD800 <= code < 0xE000 and (mapped := normalise(chr(code))) != chr(code):
            charmap[code] = mapped
    return UnigramModel(pieces, scores, charmap, bos, eos, pad, unk)


def write_tokenizer_json(model: UnigramModel, path: Path) -> None:
    """Write the tokenizer for the `tokenizers` library."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    vocab = list(zip(model.pieces, model.scores.astype(float).tolist(), strict=True))
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=model.unk, byte_fallback=False))
    # Precompiled maps graphemes of under six bytes as a whole, by their first character, which would lose an accent
    # after a mapped character. The glue keeps such graphemes apart, so that every character is mapped by itself.
    two = _character_class(code for code in model.charmap if 0x80 <= code < 0x800)
    three = _character_class(code for code in model.charmap if 0x800 <= code < 0x10000)
    glue_at = f"(?<={two})(?=[^\\x{{00}}-\\x{{7F}}])|(?<={three})(?=[\\x{{80}}-\\x{{7FF}}])"
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(glue_at), _GLUE),
            normalizers.Precompiled(precompile_charmap(model.charmap)),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(WORD_MARK, prepend_scheme="always")
    bos, eos = model.pieces[model.bos], model.pieces[model.eos]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}",
        pair=f"{bos} $A {eos} {eos} $B {eos}",
        special_tokens=[(bos, model.bos), (eos, model.eos)],
    )
    special = dict.fromkeys(model.special().values())
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(path), pretty=False)


def _character_class(codes: Iterable[int]) -> str:
    """Return a regular expression for one of these characters, as few ranges as possible."""
    ranges: list[list[int]] = []
    for code in sorted(codes):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(f"\\x{{{start:X}}}-\\x{{{end:X}}}" for start, end in ranges) + "]"


def precompile_charmap(charmap: Mapping[int, str]) -> bytes:
    """Return the map in SentencePiece's binary form: the size of a trie, the trie, the NUL-terminated replacements.

    The trie is a double array of 32-bit units over the UTF-8 bytes of the characters. A unit holds its label in the
    low 8 bits, "has a leaf" in bit 8, and from bit 10 what to xor with its position to get the base of its children;
    a child with label c is at base ^ c, and a leaf at base itself, with bit 31 set and the value below it.
    """
    root: dict[int, Any] = {}  # byte -> node; at -1 where the replacement starts
    strings = bytearray()
    for code, mapped in charmap.items():
        node = root
        for byte in chr(code).encode():
            node = node.setdefault(byte, {})
        node[-1] = len(strings)
        strings += mapped.encode() + b"\0"

    units: dict[int, int] = {0: 0}
    pending = [(0, root)]
    base = 0
    while pending:
        position, node = pending.pop()
        labels = [max(label, 0) for label in node]
        # Bases only grow, so that no two nodes share one; the array is a little larger for it.
        base += 1
        while any(base ^ label in units for label in labels):
            base += 1
        units[position] |= (position ^ base) << 10 | (-1 in node) << 8
        for label, child in node.items():
            if label == -1:
                units[base] = child | 1 << 31
            else:
                units[base ^ label] = label
                pending.append((base ^ label, child))
    # Looking up any byte from any base must stay inside the array.
    array = np.zeros(max(units) // 256 * 256 + 256, "<u4")
    array[list(units)] = list(units.values())
    return len(array.tobytes()).to_bytes(4, "little") + array.tobytes() + bytes(strings)


def write_piece_list(model: UnigramModel, folder: Path) -> None:
    """Write the piece list: arrays that are mapped, not read, and the character map.

    ``pieces.npy`` (bytes,) uint8, all pieces end to end in UTF-8; ``piece_starts.npy`` (n + 1,) uint32 into it;
    ``piece_scores.npy`` (n,) float64; ``piece_slots.npy`` (2^k,) uint32, an open hash table of id + 1 (0 is empty):
    a piece is looked up at the crc32 of its UTF-8 bytes, then at the next slots.
    """
    encoded = [piece.encode() for piece in model.pieces]
    starts = np.zeros(len(encoded) + 1, np.uint32)
    np.cumsum([len(piece) for piece in encoded], out=starts[1:])
    slots = [0] * (1 << (2 * len(encoded) - 1).bit_length())
    mask = len(slots) - 1
    for index, piece in enumerate(encoded):
        slot = zlib.crc32(piece) & mask
        while slots[slot]:
            slot = (slot + 1) & mask
        slots[slot] = index + 1
    folder.mkdir(exist_ok=True)
    np.save(folder / "pieces.npy", np.frombuffer(b"".join(encoded), np.uint8))
    np.save(folder / "piece_starts.npy", starts)
    np.save(folder / "piece_scores.npy", model.scores.astype(np.float64))
    np.save(folder / "piece_slots.npy", np.array(slots, np.uint32))
    special = {model.pieces[i]: i for i in sorted({model.bos, model.eos, model.pad, model.unk})}
    if "<mask>" in model.pieces:
        special["<mask>"] = list(model.pieces).index("<mask>")
    head = {
        "bos": model.bos,
        "eos": model.eos,
        "unk": model.unk,
        "longest": max(len(piece) for piece in model.pieces),
        "unk_score": float(model.scores.min()) - 10.0,  # as the tokenizers library has it
        "special": special,
        "charmap": {str(code): mapped for code, mapped in model.charmap.items()},
    }
    (folder / "unigram.json").write_text(json.dumps(head), encoding="utf-8")
