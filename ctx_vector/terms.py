"""The search terms of a text: stems of its words; of scripts without spaces, single characters and bigrams.

    terms("How do I read CSV files?")   ['how', 'do', 'i', 'read', 'csv', 'fil']
    terms("内存表")                      ['内', '存', '表', '内存', '存表']

An index keeps a term as its CRC-32: short, and nothing of a deleted text can be read in it. What a text's terms are is
part of stored indexes: a change here needs a migration that makes them anew (catalog.py).
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from functools import lru_cache
from typing import Final

# Han, kana and the scripts of South-East Asia write words without spaces between them; Hangul glues particles to words
UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\U00020000-\U000323af"
)
_FIRST_UNSPACED: Final = UNSPACED[0]
_TERMS = re.compile(rf"[{UNSPACED}]+|[^\W{UNSPACED}]+")
_UNSPACED_RUN = re.compile(rf"[{UNSPACED}]")
_HISSED = re.compile(r"(?:s|x|z|ch|sh)es$")
_VOWEL = re.compile("[aeiouy]")


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Return an English word without its commonest endings, so that "painted" finds "paint"; others as they are.

    >>> [stem(word) for word in "stories boxes cats class running painted make happy use_case naïve".split()]
    ['stori', 'box', 'cat', 'class', 'run', 'paint', 'mak', 'happi', 'use_case', 'naïve']
    """
    if len(word) < 4 or not (word.isascii() and word.isalpha()):
        return word
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif _HISSED.search(word):
        word = word[:-2]
    elif word.endswith("s") and word[-2] not in "us":
        word = word[:-1]
    for ending in ("ing", "ed"):
        left = word[: -len(ending)]
        if word.endswith(ending) and len(left) >= 3 and _VOWEL.search(left):
            word = left[:-1] if left[-1] == left[-2] and left[-1] not in "lsz" else left
            break
    if len(word) > 3 and word.endswith("e"):
        word = word[:-1]
    return word[:-1] + "i" if len(word) > 3 and word.endswith("y") else word


def words(text: str) -> list[str]:
    """Return the words of a text before they are stemmed, and the characters and bigrams of unspaced scripts."""
    plain = text.isascii()
    text = text.casefold() if plain else unicodedata.normalize("NFKC", text).casefold()
    runs: list[str] = _TERMS.findall(text)
    if plain and "_" not in text:
        return runs
    found: list[str] = []
    for run in runs:
        if run >= _FIRST_UNSPACED and _UNSPACED_RUN.match(run):
            found += run
            found += [run[i : i + 2] for i in range(len(run) - 1)]
        else:
            found.append(run)
            if "_" in run:  # a name in code is also asked for by its parts
                found += [part for part in run.split("_") if part and part != run]
    return found


def terms(text: str) -> list[str]:
    """Return the search terms of a text; the parts of a name in code are terms too.

    >>> terms("Pandas 内存表 memory_usage")
    ['panda', '内', '存', '表', '内存', '存表', 'memory_usage', 'memori', 'usag']
    """
    return [word if word > "\x7f" else stem(word) for word in words(text)]


def stem_key(term: str) -> int:
    """Return the key of one of the terms that `terms` returns."""
    return zlib.crc32(term.encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=1 << 16)
def _key(word: str) -> int:
    return stem_key(stem(word))


def term_keys(text: str) -> list[int]:
    """Return the key of every term of `terms`."""
    return [_key(word) for word in words(text)]
