"""A small unigram tokenizer for queries: opens in a millisecond where tokenizer.json takes a second.

Its ids equal those of the `tokenizers` library for every text (tests compare them). It is written for short texts;
for many or long ones the library is faster, once it is loaded.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path

import numpy as np

from ctx_vector.errors import ModelError

_SPACES = re.compile(" {2,}")
_MARK = "\u2581"


class UnigramTokenizer:
    """Cuts a text into the pieces whose log probabilities add up best (Viterbi)."""

    def __init__(self, folder: Path) -> None:
        try:
            head = json.loads((folder / "unigram.json").read_text(encoding="utf-8"))
            # Memoryviews give plain ints and floats, several times faster than numpy scalars.
            self._blob, self._starts, self._scores, self._slots = (
                memoryview(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))
                for name in ("pieces", "piece_starts", "piece_scores", "piece_slots")
            )
            self._charmap = {int(code): mapped for code, mapped in head["charmap"].items()}
            self._special: dict[str, int] = head["special"]
            self.bos, self.eos, self._unk = int(head["bos"]), int(head["eos"]), int(head["unk"])
            self._longest, self._unk_score = int(head["longest"]), float(head["unk_score"])
        except (OSError, ValueError, LookupError, AttributeError) as error:
            raise ModelError(
                f"the piece list in {folder} is missing or damaged; delete the folder and prepare the model again"
            ) from error
        # Longest first, as the library matches them.
        alternatives = sorted(self._special, key=lambda token: (-len(token), token))
        self._split = re.compile("(" + "|".join(map(re.escape, alternatives)) + ")").split

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with the special ids around it and without truncation."""
        ids = [self.bos]
        for part in self._split(text):
            if part in self._special:
                ids.append(self._special[part])
            elif part:
                self._encode_part(part, ids)
        ids.append(self.eos)
        return ids

    def _encode_part(self, text: str, ids: list[int]) -> None:
        text = _SPACES.sub(" ", text.translate(self._charmap))
        if not text:
            return
        text = text.replace(" ", _MARK)
        if text[0] != _MARK:
            text = _MARK + text
        # No piece has the mark inside, so every word can be cut by itself; a trailing mark is a word of its own.
        for word in text.split(_MARK)[1:]:
            self._encode_word(_MARK + word, ids)

    def _encode_word(self, word: str, ids: list[int]) -> None:
        """Add the ids of one word; unknown characters side by side are one unknown token, as in the library."""
        whole = self._find(word.encode())
        chars = [char.encode() for char in word]
        count = len(chars)
        if whole >= 0 and count == 1:
            ids.append(whole)
            return
        best = [0.0] + [-1e300] * count
        back = [(0, 0)] * (count + 1)  # (start, id) of the last piece of the best path to here
        for start in range(count):
            here = best[start]
            piece = b""
            known = False
            for end in range(start + 1, min(start + self._longest, count) + 1):
                piece += chars[end - 1]
                index = self._find(piece)
                if index >= 0:
                    known = known or end == start + 1
                    score = here + self._scores[index]
                    if score > best[end]:
                        best[end] = score
                        back[end] = (start, index)
            if not known and here + self._unk_score > best[start + 1]:
                best[start + 1] = here + self._unk_score
                back[start + 1] = (start, self._unk)
        found: list[int] = []
        end = count
        while end:
            end, index = back[end]
            if index != self._unk or not found or found[-1] != self._unk:
                found.append(index)
        ids.extend(reversed(found))

    def _find(self, piece: bytes) -> int:
        """Return the id of a piece, or -1."""
        slots, starts = self._slots, self._starts
        mask = len(slots) - 1
        slot = zlib.crc32(piece) & mask
        while index := slots[slot]:
            if self._blob[starts[index - 1] : starts[index]] == piece:
                return index - 1
            slot = (slot + 1) & mask
        return -1
