"""Two short rules for a budget that follows the request. Both are optional, and any function in their place works.

    ContextBuilder(budget_policy=by_complexity)     how large a context is: a function of the request -> tokens
    ContextBuilder(share_policy=by_request)         how it is divided: (request, weights) -> weights

Weights are the shares of the layers, or the part budgets as fractions of their sum. What a policy gives is scaled so
that it sums to no more than it did before.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from ctx_vector.errors import InputError
from ctx_vector.stages import Request

SharePolicy = Callable[[Request, Mapping[str, float]], Mapping[str, float]]

_QUESTION: Final = re.compile(r"[?？]")
_MANY: Final = re.compile(
    r"\b(?:compare|comparison|versus|vs|difference|trade-?offs?|step by step|overview|summari[sz]e|each|every|plan)\b"
    r"|比较|对比|区别|分别|各自|逐步|步骤|总结|概述|方案|哪些",
    re.I,
)
_LOOKUP: Final = re.compile(
    r"\b(?:look(?:ing)? up|source|sources|cite|citation|according to|documents?|docs|manual|policy|reference)\b"
    r"|查一下|查询|资料|来源|出处|依据|文档|手册|政策|规定",
    re.I,
)
_RECALL: Final = re.compile(
    r"\b(?:remember|remind|earlier|before|last time|previous(?:ly)?|we (?:said|discussed|agreed)|i (?:said|told))\b"
    r"|记得|还记得|之前|上次|刚才|以前|我说过|我们说过|提到过",
    re.I,
)
#: Tokens of a simple, an ordinary and a complex task.
SIZES: Final = (2_000, 4_000, 8_000)
#: How much more of the context the part that a request asks for gets.
EMPHASIS: Final = 1.5
_ABOUT: Final[Mapping[str, re.Pattern[str]]] = {
    "evidence": _LOOKUP,
    "dynamic": _LOOKUP,
    "static": _LOOKUP,
    "memory": _RECALL,
    "history": _RECALL,
}


def by_complexity(request: Request) -> int:
    """Return the tokens of a context by how much is asked: 2,000, 4,000 or 8,000.

    A point each for: a second question, a word that asks for several things (compare, step by step, 比较, 步骤), and
    more than 200 characters (Chinese: 80). None is simple, two or more are complex.

    >>> from datetime import UTC, datetime
    >>> by_complexity(Request("How do I reset it?", datetime.now(UTC)))
    2000
    """
    query = request.user_query
    han = sum("\u4e00" <= char <= "\u9fff" for char in query)
    points = (len(_QUESTION.findall(query)) > 1) + bool(_MANY.search(query)) + (len(query) > 200 or han > 80)
    return SIZES[min(points, 2)]


def by_request(request: Request, weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weights with half as much again for evidence when the request asks to look something up (source,
    look up, 查一下, 资料), and for memory and history when it asks for what was said before (remember, 上次).
    """
    asked = {part for part, words in _ABOUT.items() if words.search(request.user_query)}
    return {part: weight * (EMPHASIS if part in asked else 1.0) for part, weight in weights.items()}


def follow(policy: SharePolicy, request: Request, weights: Mapping[str, float]) -> dict[str, float]:
    """Return what a policy makes of the weights, none below 0, scaled to sum to what they did.

    What a policy leaves out keeps its weight. Raises InputError for what is no mapping of finite numbers.
    """
    made = policy(request, dict(weights))
    if not isinstance(made, Mapping):
        raise InputError(f"share_policy: expected a mapping of parts to weights, got {made!r:.60}")
    found = {name: _weight(name, made.get(name, weight)) for name, weight in weights.items()}
    largest = max(found.values(), default=0.0)
    found = {name: weight / largest for name, weight in found.items()} if largest > 0 else found
    total, now = sum(weights.values()), sum(found.values())
    return {name: weight * total / now for name, weight in found.items()} if now > 0 else dict(weights)


def _weight(name: str, value: object) -> float:
    try:
        weight = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        weight = math.nan
    if not math.isfinite(weight):
        raise InputError(f"share_policy: expected a number as the weight of {name}, got {value!r:.60}")
    return max(0.0, weight)
