"""Rolling summaries of conversations, kept by session.

A summary stands for the oldest turns. When more turns age out, the old summary and only these turns go through the
caller's summarizer, and the result takes its place. Nothing here is written to disk.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from ctx_vector.escaping import normalise
from ctx_vector.stages import Summarizer, TokenCounter

#: Turns of which a session remembers that they are in its summary.
_MOST_TURNS: Final = 2_000


class Summaries:
    """The summaries of the last `limit` sessions. Safe to share between threads and builders.

    Of two builds of one session at the same time, the summary of the one that ends last is kept.
    """

    def __init__(self, limit: int = 256) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[list[int], str]] = OrderedDict()

    def roll(
        self, session: str | None, turns: Sequence[str], title: str, summarizer: Summarizer, max_tokens: int,
        counter: TokenCounter,
    ) -> tuple[str, str]:  # fmt: skip
        """Return (a summary of `turns`, what went wrong); one of the two is "".

        `turns` are the texts of the oldest turns. The summarizer sees those that are not in the session's summary yet,
        after that summary under its `title`; what it gives is cut to `max_tokens`. Without a session, everything is
        summarised anew.
        """
        keys = [hash(turn) for turn in turns]
        old, new = "", 0
        if session is not None:
            with self._lock:
                known, text = self._known.get(session, ([], ""))
            new = covered(known, keys)
            old = text if new else ""
        result, problem = old, ""
        if new < len(turns):
            said = [f"{title}\n{old}", *turns[new:]] if old else turns
            result, problem = _summarise("\n\n".join(said), summarizer, max_tokens, counter)
        if session is not None and result:
            with self._lock:
                self._known[session] = (keys[-_MOST_TURNS:], result)
                self._known.move_to_end(session)
                while len(self._known) > self.limit:
                    self._known.popitem(last=False)
        return result, problem


def covered(known: Sequence[int], turns: Sequence[int]) -> int:
    """Return how many of the first `turns` are in a summary of `known`, oldest first; 0 when it is of something else.

    A caller may give the whole conversation each time, or only its last messages.

    >>> covered([1, 2, 3], [1, 2, 3, 4, 5]), covered([1, 2, 3], [2, 3, 4]), covered([1, 2, 3], [1, 9, 3, 4])
    (3, 2, 0)
    """
    if turns[: len(known)] == known:
        return len(known)
    for stop in range(len(turns), 0, -1):
        common = min(stop, len(known))
        if known[-1] == turns[stop - 1] and known[-common:] == turns[stop - common : stop]:
            return stop
    return 0


def _summarise(text: str, summarizer: Summarizer, max_tokens: int, counter: TokenCounter) -> tuple[str, str]:
    try:
        result: object = summarizer(text, max_tokens)
    except Exception as error:  # a caller's function may raise anything; a build does not fail for it
        return "", f"the summarizer failed ({type(error).__name__}: {error})"
    if not isinstance(result, str):
        return "", f"the summarizer gave {type(result).__name__}, expected a str"
    result = normalise(counter.truncate(normalise(result), max_tokens))
    return result, "" if result else "the summarizer gave nothing"
