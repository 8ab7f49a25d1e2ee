"""Is a newer statement about something else than an older one, as a question sees the two? By their words.

"My daughter's birthday is on 9 June" does not replace "My birthday is on 3 May", though it is newer, much like it, and
nearly as good a match for "When is my birthday?". Two things tell such a pair from two versions of one fact.

**The same words but for a few** (`other_subject`). Where a third of the words of both or more are the same, in the same
order, what differs tells what each is about. They are about different things when the older one has a word of the
question in whose place the newer one has another (host alpha, host beta; phone number, e-mail address); when the newer
one puts a word between two that stand together in the question (my daughter's birthday); or when it leaves one out.
What the question does not say (8080, 9443) may differ: that is what changes. A question for yes or no ("Is it still on
port 8080?") may say what has changed, so that one place where they differ is not enough there. Where the question has
no word of the older one, being in another language, they must differ twice, with words in between that are the same.

**No word in common** (`unrelated`). Where the older one fits the question far better, and the two share no word but
common ones, nothing says that the newer one speaks of the same.

Data flow: text -> `words` -> `Question`, the two functions. Words are stemmed, characters of scripts without spaces are
single, codes and times are in one piece, "my" is "i", and `|` is the end of a clause.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from ctx_vector.terms import UNSPACED, stem, stem_key

#: The share of the words of two statements that must be the same, in the same order, to compare what differs.
SAME: Final = 0.35
#: The ratio of the odds of two relevances from which on one fits far better: 0.9 and 0.52, 0.7 and 0.22.
ODDS: Final = 8.0

Words = tuple[str, ...]
Pairs = frozenset[Words]

_BREAK: Final = "|"
_COMMON: Final = 0.2  # of ordinary texts have a word that tells nothing apart
_FREQUENT: Final = 0.1  # of ordinary texts have a word that links nothing
_LONGER: Final = 2  # words at most, is what stands in the place of others
_LEAST: Final = 1e-3  # of a relevance, for its odds
_LONGEST: Final = 2_000  # characters of a question are looked at, half of them at its end

_WORDS = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}_]+(?:[.,:/_-][^\W{UNSPACED}_]+)*|[,;:!?，。；：！？、]|\.(?!\w)")
_UNSPACED = re.compile(rf"[{UNSPACED}]")
_SPEAKERS: Final = dict.fromkeys("i my me mine".split(), "i") | dict.fromkeys("we our us ours".split(), "we")
_SPEAKING: Final = frozenset(_SPEAKERS.values())
# that say how things are put together, and name none
_GRAMMAR: Final = frozenset("is are was were be been has have had do does did".split()) | frozenset(
    "的是在有了着过得地和与由被把给到从对为要用"
)
# that stand for what was spoken of before, or say that something is new
_NEUTRAL: Final = frozenset(
    "he she it they him her them his hers its their this that these those a an the new now current currently today"
    " latest still just old own actual really".split()
) | frozenset("他她它这那该其们新现在目前已经最改了今的老旧实")
_ASKING = re.compile(
    r"\b(?:what|which|who|whom|whose|where|when|why|how)\b|什么|哪|谁|几|多|怎|何|啥",
)
_YES_OR_NO = re.compile(
    r"(?:^|[.?!,;] *)(?:is|are|am|was|were|do|does|did|has|have|had|can|could|may|should|shall|will|would|must|isn't"
    r"|aren't|don't|doesn't)\b|[吗吧]|(.)不\1|有没有"
)


@lru_cache(maxsize=2048)
def words(text: str) -> Words:
    """Return the words of a statement or a question.

    >>> " ".join(words("My port is 8080, I think.")), " ".join(words("主机A的端口"))
    ('i port is 8080 | i think', '主 机 a 的 端 口')
    """
    text = text.casefold() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    found = [_SPEAKERS.get(word) or stem(word) if word[0].isalnum() else _BREAK for word in _WORDS.findall(text)]
    while found and found[-1] == _BREAK:
        found.pop()
    return tuple(found)


class Question:
    """A question as statements are held against it: its words, which stand together, and whether it wants yes or no."""

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]}\n{text[-_LONGEST // 2 :]}"
        found = words(text)
        self.words = frozenset(found)
        self.pairs: Pairs = frozenset(pairwise(found))
        folded = text.casefold()
        self.yes_or_no = not _ASKING.search(folded) and _YES_OR_NO.search(folded) is not None


def other_subject(question: Question, older: Words, newer: Words) -> bool:
    """Say whether the newer of two statements in much the same words is about something else.

    >>> asked = Question("When is my birthday?")
    >>> mine, yours = words("My birthday is on 3 May."), words("My daughter's birthday is on 9 June.")
    >>> other_subject(asked, mine, yours), other_subject(asked, mine, words("My birthday is on 4 May."))
    (True, False)
    """
    least = SAME * (len(older) + len(newer)) / 2
    if not least or (Counter(older) & Counter(newer)).total() < least:  # sooner told than their order
        return False
    from difflib import SequenceMatcher

    blocks = SequenceMatcher(None, older, newer, autojunk=False).get_opcodes()
    if sum(stop - start for tag, start, stop, _, _ in blocks if tag == "equal") < least:
        return False
    if any(tag != "equal" and _BREAK in newer[at:end] for tag, _, _, at, end in blocks):
        return False
    if not any(_asked(question, older, place) for place in range(len(older))):
        return _two_places(older, newer, blocks)
    pairs: Pairs = frozenset(pairwise(newer))
    differ = 0
    for tag, start, stop, at, end in blocks:
        if tag == "equal":
            continue
        lost = any(_asked(question, older, place, newer, pairs) for place in range(start, stop))
        if lost and at < end <= at + (stop - start) + _LONGER:
            differ += any(_other(question, newer, place) for place in range(at, end))
        elif lost and at == end:
            differ += _within(question, older, start, stop)
        elif start == stop:
            differ += _qualifies(question, older, start, newer[at:end])
    return differ > question.yes_or_no


def _asked(question: Question, older: Words, place: int, newer: Words = (), pairs: Pairs = frozenset()) -> bool:
    """Say whether a word of the older statement is one of the question that the newer one lacks; of scripts without
    spaces, and of a letter by itself (host A), a pair of words. `pairs` are those of the newer one.
    """
    word = older[place]
    if word in _GRAMMAR:
        return False
    if _UNSPACED.match(word):
        return any(pair in question.pairs and pair not in pairs for pair in _beside(older, place))
    if word in _SPEAKING or _share(word) < _COMMON:
        return word in question.words and word not in newer
    pair = older[max(0, place - 1) : place + 1]
    return len(word) == 1 and pair in question.pairs and pair not in pairs


def _other(question: Question, newer: Words, place: int) -> bool:
    """Say whether a word of the newer statement names something that the question does not."""
    word = newer[place]
    if word in _NEUTRAL or word in _GRAMMAR:
        return False
    if _UNSPACED.match(word):
        return not question.pairs.issuperset(_beside(newer, place))
    return word not in question.words and _share(word) < _COMMON


def _beside(said: Words, place: int) -> list[Words]:
    """Return a word with the one before it, and with the one after it."""
    return [said[n : n + 2] for n in (place - 1, place) if n >= 0 and n + 2 <= len(said)]


def _two_places(older: Words, newer: Words, blocks: Sequence[tuple[str, int, int, int, int]]) -> bool:
    """Say whether two statements differ, with two same words or more in between, in what they speak of and in what they
    say of it: all there is to go by before a question in another language.
    """
    differ = [block for block in blocks if block[0] != "equal"]
    if len(differ) < 2:
        return False
    _, start, stop, at, end = differ[0]
    what = older[start:stop] + newer[at:end]
    if not stop or all(word.isdecimal() for word in what):
        return False
    after = range(blocks.index(differ[0]) + 1, blocks.index(differ[-1]))
    return any(blocks[n][0] == "equal" and blocks[n][2] - blocks[n][1] >= 2 for n in after)


def _within(question: Question, older: Words, start: int, stop: int) -> bool:
    """Say whether what stands beside words that are left out is of the question."""
    return 0 < start and stop < len(older) and {older[start - 1], older[stop]} <= question.words


def _qualifies(question: Question, older: Words, place: int, said: Words) -> bool:
    """Say whether words put in before a place make something else of what the question names."""
    if not 0 < place < len(older) or not question.words.isdisjoint(said) or _NEUTRAL.issuperset(said):
        return False
    beside = older[place - 1], older[place]
    whose = said[0] in ("s", "的") or said[-1] == "s" or beside[1] == "的"
    return beside in question.pairs or (whose and question.words.issuperset(beside))


def unrelated(older: Words, newer: Words, fits: float, fits_newer: float) -> bool:
    """Say whether the older statement, of relevance `fits`, fits far better and has no word in common with the newer.

    >>> unrelated(words("I weigh 71 kilos."), words("The vet put Bruno on the scales: 34 kg."), 0.9, 0.4)
    True
    >>> unrelated(words("I weigh 71 kilos."), words("Thanks to the diet I have lost 3 kilos."), 0.9, 0.4)
    False
    """
    if _odds(fits) < ODDS * _odds(fits_newer):
        return False
    return not any(word != _BREAK and _share(word) < _FREQUENT for word in set(older) & set(newer))


def _odds(relevance: float) -> float:
    return max(relevance, _LEAST) / max(_LEAST, 1 - relevance)


@lru_cache(maxsize=1 << 14)
def _share(word: str) -> float:
    """Return the share of ordinary texts that have a word, as far as it is known."""
    from ctx_vector.keywords import keyword_facts

    return keyword_facts().common.get(stem_key(word), 0.0)
