"""Which language a text is in, as far as relevance has to know: Chinese, what is in Latin letters, other scripts.

A word of code, a table of numbers and a smiley are `en`: they are in no language, and that is where they do least harm
(calibration.py).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

LANGUAGES: Final = ("en", "zh")  # those of the background, by which all others are judged

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")
_LATIN_WORDS = re.compile("[A-Za-z\u00c0-\u024f]+")
_OTHER_LETTERS = re.compile("[\u0370-\u1fff\u3040-\u30ff\u3130-\u318f\uac00-\ud7af]")
_SCANNED: Final = 1_000


def language_of(text: str) -> str:
    """Return `zh` for Chinese, `en` for anything in Latin letters, `other` for other scripts; by counting characters.

    One Han character weighs as much as four Latin words, since Chinese texts on technical matters are full of Latin
    names while English ones hardly hold Han characters.

    >>> texts = "如何优化Pandas的内存占用?", "What does 你好 mean, and how do I pronounce it?", "東京タワー"
    >>> [language_of(text) for text in texts]
    ['zh', 'en', 'other']
    """
    return "en" if text.isascii() else _language_of(text[:_SCANNED])


@lru_cache(maxsize=2048)
def _language_of(text: str) -> str:
    han = len(_HAN.findall(text))
    other = len(_OTHER_LETTERS.findall(text))
    words = len(_LATIN_WORDS.findall(text))
    if other > 0.2 * (han + other) and other > words:
        return "other"
    return "zh" if han > 0.2 * (han + words) and han else "en"


def cohort(language: str) -> str:
    """Return the background that stands for a language; for other scripts the Chinese one fits better (measured)."""
    return language if language in LANGUAGES else "zh"
