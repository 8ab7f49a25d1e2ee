"""When two memories are one: an equal text, or a near-equal vector and no fact that differs.

A vector hardly sees what a fact hangs on. Cosines of multilingual-e5-small: "Bob owes Carol 50 euros" and "Carol owes
Bob 50 euros" 0.996, 用户的生日是5月3日 and 5月4日 0.991, "since 2015" and "since 2018" in a long sentence
0.988. So above the threshold, numbers, names and the order of words still have to agree: a second copy costs a few
tokens, a fact merged away is lost.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Final

from ctx_vector.dialogue import Turn, spoken

#: Two memories of one type may be the same from this raw cosine on.
SAME_COSINE: Final = 0.985

_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*|[零〇一二三四五六七八九十百千万亿两]")
_WORD = re.compile(r"[^\W\d_]+|\d+")
_HAN = re.compile("([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])")
_NEGATION = re.compile(r"\b(?:no|not|never|none|cannot|without|neither|nor|off)\b|n['’]t\b|[不没无非未别勿]", re.I)
_SENTENCE_START = re.compile(r"(?:^|[.!?:;\n。！？：；]\s*)[\W_]*[^\W\d_]+")


def fold_turn(turn: Turn) -> bytes:
    """Return a 16-byte digest of speaker and text in NFKC form, white space collapsed: equal for equal memories."""
    folded = " ".join(unicodedata.normalize("NFKC", spoken(turn)).split())
    return hashlib.blake2b(folded.encode(), digest_size=16).digest()


def say_the_same(one: str, two: str) -> bool:
    """Say whether two texts with near-equal vectors agree in numbers, negations, names and the order of their words.

    Names are capitalised words inside a sentence.

    >>> say_the_same("The user prefers dark mode.", "the user prefers  dark mode")
    True
    >>> say_the_same("Bob owes Carol 50 euros", "Carol owes Bob 50 euros")
    False
    """
    one, two = (unicodedata.normalize("NFKC", text) for text in (one, two))
    if _NUMBER.findall(one) != _NUMBER.findall(two) or len(_NEGATION.findall(one)) != len(_NEGATION.findall(two)):
        return False
    words, others = _words(one), _words(two)
    if words == others:
        return True
    if sorted(words) == sorted(others):  # who does it to whom
        return False
    return _names(one) <= set(others) and _names(two) <= set(words)


def _words(text: str) -> list[str]:
    return _WORD.findall(_HAN.sub(r" \1 ", text.casefold()))


def _names(text: str) -> set[str]:
    inside = _SENTENCE_START.sub(" ", text)
    return {word.casefold() for word in _WORD.findall(_HAN.sub(" ", inside)) if word[0].isupper()}
