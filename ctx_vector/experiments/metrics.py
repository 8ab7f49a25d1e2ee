"""What is measured: of the context that was built, and of the ranking behind it.

Of the context, within a budget of tokens (`context_metrics`):

    evidence_recall   share of the query's evidence that is in the context, whole
    all_evidence      1 when all of it is
    precision         share of the context's tokens that are of evidence
    freshness         1 when the newest version is in, above all former ones; not defined without former versions
    answer_recall     1 when one of the query's answers stands whole in it; not defined without answers
    tokens            tokens used

Of the ranking (`ranking_metrics`), as trec_eval has them: `ndcg@10` with the grades as gains, `mrr@10`, `r@1`, `r@5`,
`r@10`. A document counts once, at its best passage. A shortened item is no evidence, for what answers may be cut off.

A passage of a document is taken for evidence whatever it says, which favours small passages: a context holds more of
them. `answer_recall` looks for the words that answer, white space apart, and so compares passages of any size fairly.
Words and numbers have to be whole: "30" does not stand in "300 days", nor "cat" in "category".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from ctx_vector.escaping import unescape
from ctx_vector.terms import UNSPACED

CONTEXT: Final = ("evidence_recall", "all_evidence", "precision", "freshness", "answer_recall", "tokens")
RANKING: Final = ("ndcg@10", "mrr@10", "r@1", "r@5", "r@10")
_LETTER: Final = rf"[^\W\d_{UNSPACED}]"  # of a script with blanks between words
_SPACED: Final = re.compile(_LETTER)
_DIGIT: Final = re.compile(r"\d")
_UNSPACED: Final = rf"[{UNSPACED}\u3001-\u303f\uff00-\uffef]"  # with their punctuation
_BESIDE_CHINESE: Final = re.compile(rf" (?={_UNSPACED})|(?<={_UNSPACED}) ")
SMALL_IS_BETTER: Final = ("tokens", "ms")
TITLES: Final[Mapping[str, str]] = {
    "evidence_recall": "share of the evidence that is in the context",
    "all_evidence": "queries with all their evidence in the context",
    "precision": "share of the context's tokens that are evidence",
    "freshness": "queries with the newest version in, above the former ones",
    "answer_recall": "queries with the words that answer in the context",
    "tokens": "tokens used",
    "ms": "milliseconds to build, encoding the query apart",
    "ndcg": "quality of the ranking, by grades",
    "mrr": "one over the place of the first evidence",
    "r": "share of the evidence among the first",
}


@dataclass(frozen=True, slots=True)
class Item:
    """What a kept candidate is to a metric: its document, its tokens with the joiner, whether it is whole, its text as
    it stands in the context.
    """

    document: str
    tokens: int
    whole: bool = True
    text: str = ""


def context_metrics(
    items: Sequence[Item],
    grades: Mapping[str, int],
    versions: tuple[str, frozenset[str]] | None = None,
    answers: Sequence[str] = (),
) -> dict[str, float]:
    """Return the metrics of one context; `items` from top to bottom, `versions` as `Dataset.versions` gives them,
    `answers` the texts of which one is enough.

    Two of three evidence documents in, 30 of 120 tokens: recall 0.667, precision 0.25. A metric that is not defined is
    nan.
    """
    wanted = {document for document, grade in grades.items() if grade > 0}
    whole = [item.document for item in items if item.whole]
    found = wanted.intersection(whole)
    used = sum(item.tokens for item in items)
    of_evidence = sum(item.tokens for item in items if item.document in wanted)
    return {
        "evidence_recall": len(found) / len(wanted),
        "all_evidence": float(len(found) == len(wanted)),
        "precision": of_evidence / used if used else 0.0,
        "freshness": _fresh(items, versions),
        "answer_recall": _answered(items, answers),
        "tokens": float(used),
    }


def _fresh(items: Sequence[Item], versions: tuple[str, frozenset[str]] | None) -> float:
    if versions is None:
        return math.nan
    newest, former = versions
    for item in items:
        if item.document in former:
            return 0.0
        if item.document == newest and item.whole:
            return 1.0
    return 0.0


def _answered(items: Sequence[Item], answers: Sequence[str]) -> float:
    if not answers:
        return math.nan
    texts = [comparable(unescape(item.text)) for item in items]
    return float(any(stands_in(comparable(answer), text) for answer in answers for text in texts))


def stands_in(answer: str, text: str) -> bool:
    """Say whether an answer stands in a text, not as a part of a longer word or number; both are `comparable`.

    >>> [stands_in("30", text) for text in ("30 days", "30GB", "保留30天", "300 days", "1.30")]
    [True, True, True, False, False]
    """
    return answer in text and (not answer or _whole(answer).search(text) is not None)


@lru_cache(maxsize=2048)
def _whole(answer: str) -> re.Pattern[str]:
    before = (
        r"(?<!\d)(?<!\d[.,])" if _DIGIT.match(answer[0]) else rf"(?<!{_LETTER})" if _SPACED.match(answer[0]) else ""
    )
    after = r"(?!\d)(?![.,]\d)" if _DIGIT.match(answer[-1]) else rf"(?!{_LETTER})" if _SPACED.match(answer[-1]) else ""
    return re.compile(before + re.escape(answer) + after)


def one_spaced(text: str) -> str:
    """Return a text with every run of white space as one space.

    >>> one_spaced("kept  for 48 hours ")
    'kept for 48 hours'
    """
    return " ".join(text.split())


def comparable(text: str) -> str:
    r"""Return a text as answers are looked for: `one_spaced`, and without blanks beside Chinese, where blanks part no
    words and a line may end anywhere.

    >>> comparable("请在 30 天内\n交发票 by mail")
    '请在30天内交发票by mail'
    """
    text = one_spaced(text)
    return text if text.isascii() else _BESIDE_CHINESE.sub("", text)


def ranked_documents(passages: Iterable[str]) -> list[str]:
    """Return documents in the order of their best passages.

    >>> ranked_documents(["b", "a", "b"])
    ['b', 'a']
    """
    return list(dict.fromkeys(passages))


def ranking_metrics(ranking: Sequence[str], grades: Mapping[str, int]) -> dict[str, float]:
    """Return the metrics of a ranking of documents, best first.

    Evidence of grade 1 at place 2, and nothing else: ndcg 1 / log2(3) = 0.631, mrr 0.5, r@1 0, r@5 1.
    """
    wanted = {document: grade for document, grade in grades.items() if grade > 0}
    places = [place for place, document in enumerate(ranking[:10], 1) if document in wanted]
    gain = sum(wanted[ranking[place - 1]] / math.log2(place + 1) for place in places)
    best = sum(
        grade / math.log2(place + 1) for place, grade in enumerate(sorted(wanted.values(), reverse=True)[:10], 1)
    )
    return {
        "ndcg@10": gain / best,
        "mrr@10": 1 / places[0] if places else 0.0,
        **{f"r@{k}": sum(place <= k for place in places) / len(wanted) for k in (1, 5, 10)},
    }


def mean(values: Sequence[float]) -> float | None:
    """Return the mean of the values that are defined, None when none is."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else None


def percentiles(values: Sequence[float], of: Sequence[int] = (50, 95, 99)) -> dict[str, float]:
    """Return percentiles by name: ``{"p50": ..., "p95": ..., "p99": ...}``, interpolated as NumPy does."""
    found = np.percentile(np.asarray(values, np.float64), of)
    return {f"p{place}": round(float(value), 3) for place, value in zip(of, found, strict=True)}
