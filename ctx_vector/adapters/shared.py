"""What the adapters share: the error for a missing package, metadata of hits, and choosing among given texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ctx_vector.builder import ContextBuilder
from ctx_vector.config import ContextConfig
from ctx_vector.errors import InputError, OptionalDependencyError
from ctx_vector.escaping import unescape
from ctx_vector.memory_hits import with_ours

if TYPE_CHECKING:
    from ctx_vector.hits import Hit
    from ctx_vector.stages import Encoder


def missing(error: ModuleNotFoundError, package: str, extra: str) -> ImportError:
    """Return the error to raise when `package` is not installed; another package's absence stays what it is."""
    if (error.name or "").partition(".")[0] != package:
        return error
    return OptionalDependencyError(f"ctx_vector.adapters.{extra.replace('-', '_')}", extra)


def hit_metadata(hit: Hit, query: str) -> dict[str, Any]:
    """Return a hit's metadata for a document of another framework: where it is from, its score in [0, 1], and for which
    query.
    """
    ours = {
        "source": hit.source,
        "cite": hit.cite,
        "start_line": hit.start_line,
        "end_line": hit.end_line,
        "heading": list(hit.heading),
        "score": round(hit.score, 6),
        "scored_for": query,
    }
    if hit.timestamp is not None:
        ours["timestamp"] = hit.timestamp.isoformat()
    return with_ours(hit.metadata, ours)


def known_score(metadata: Mapping[str, Any] | None, query: str) -> float | None:
    """Return the score that one of our retrievers gave a document for this query, if one did.

    It is better than a new one: it knew the headings above the text.
    """
    if not metadata or metadata.get("scored_for") != query:
        return None
    score = metadata.get("score")
    return score if isinstance(score, float) and 0 <= score <= 1 else None


@dataclass(frozen=True, slots=True)
class Choice:
    """A text that was chosen: the `index` it was given at, what it says now, its relevance in [0, 1]."""

    index: int
    content: str
    shortened: bool
    relevance: float


class Chooser:
    """Scores texts against a query and keeps the best that fit `max_tokens` together, best first.

    Texts under `min_relevance` are left out. At most one text is shortened, to what fits, if `shorten` is set. The
    tokens of the result, with a line between any two texts, are at most `max_tokens`. At most `top_n` are kept.
    """

    def __init__(
        self,
        max_tokens: int = 2000,
        min_relevance: float = 0.1,
        top_n: int | None = None,
        *,
        shorten: bool = True,
        strategy: Any = "cosine",
        tokenizer: Any = "cl100k_base",
        encoder: Encoder | None = None,
    ) -> None:
        if top_n is not None and (isinstance(top_n, bool) or not isinstance(top_n, int) or top_n < 1):
            raise InputError(f"top_n: expected an integer >= 1 or None, got {top_n!r}")
        config = ContextConfig(
            max_tokens=max_tokens,
            reserve_ratio=0.0,
            min_relevance=min_relevance,
            relevance_weight=1.0,
            recency_weight=0.0,
            enable_compression=shorten,
            strategy=strategy,
            tokenizer=tokenizer,
            locale="en",
        )
        self.max_tokens = max_tokens
        self._top_n = top_n
        self._builder = ContextBuilder(config=config, encoder=encoder)

    def choose(self, query: str, texts: Iterable[tuple[str, float | None]]) -> Sequence[Choice]:
        """Return what is kept of texts with their scores in [0, 1], best first; a text with None is scored here."""
        documents = [
            {"content": text, "score": score, "metadata": {"chosen_index": at}}
            for at, (text, score) in enumerate(texts)
        ]
        if not documents:
            return []
        fixed = self._builder.assemble(query, max_tokens=_NO_LIMIT).budget.total_used  # the query and our own words
        built = self._builder.assemble(query, documents=documents, max_tokens=fixed + self.max_tokens)
        kept = []
        for item in built.kept:
            index = item.packet.meta["chosen_index"]
            content = documents[index]["content"] if item.action == "full" else unescape(item.rendered).strip("\n")
            kept.append(Choice(index, str(content), item.action != "full", item.relevance))
        return kept[: self._top_n]


_NO_LIMIT = 100_000_000
