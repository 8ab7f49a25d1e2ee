"""The tools an agent calls: one `run({"action": ...})` over the objects behind.

    tool = RAGTool(knowledge_base_path="./kb")
    tool.run({"action": "sync", "paths": ["docs"]})
    tool.run({"action": "search", "query": "How do I declare a path parameter?", "limit": 3})

`search` returns a list of dicts, every other action a dict. Errors are raised as CtxVectorError, never given as text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.errors import InputError
from ctx_vector.knowledge import KnowledgeBase
from ctx_vector.packets import Candidate, ContextPacket

if TYPE_CHECKING:
    from ctx_vector.hits import Hit
    from ctx_vector.stages import Encoder

_MISSING: Final = object()


def _take(arguments: Mapping[str, Any], action: str, **defaults: Any) -> dict[str, Any]:
    """Return the arguments of an action with their defaults; InputError for unknown and missing ones."""
    unknown = [key for key in arguments if key not in defaults and key != "action"]
    if unknown:
        raise InputError(f"{action}: unknown argument {unknown[0]!r}; it takes {', '.join(defaults) or 'none'}")
    missing = [key for key, value in defaults.items() if value is _MISSING and arguments.get(key) is None]
    if missing:
        raise InputError(f"{action}: the argument {missing[0]!r} is missing")
    return {key: arguments[key] if arguments.get(key) is not None else value for key, value in defaults.items()}


class RAGTool:
    """Local knowledge as a tool. The index folder is made when absent; `tool.knowledge` is the KnowledgeBase behind.

    Actions: `add_document` (file_path), `add_text` (text, source, timestamp, metadata), `sync` (paths),
    `search` (query, limit=5, min_score=0.3), `remove` (source), `stats`. Scores are calibrated relevance in [0, 1].
    """

    name = "rag"
    description = "Searches and keeps a local knowledge base."

    def __init__(
        self,
        knowledge_base_path: str | os.PathLike[str] = "./kb",
        encoder: Encoder | None = None,
        *,
        knowledge: KnowledgeBase | None = None,
    ) -> None:
        self.knowledge = knowledge or KnowledgeBase(knowledge_base_path, encoder)

    def run(self, parameters: Mapping[str, Any]) -> Any:
        """Do one action. Raises InputError naming the actions or arguments there are."""
        actions: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "add_document": self._add_document,
            "add_text": self._add_text,
            "sync": self._sync,
            "search": self._search,
            "remove": self._remove,
            "stats": lambda arguments: self.knowledge.stats() if not _take(arguments, "stats") else {},
        }
        action = parameters.get("action") if isinstance(parameters, Mapping) else None
        if action not in actions:
            raise InputError(f"action: expected one of {', '.join(actions)}, got {action!r}")
        return actions[str(action)](parameters)

    def _add_document(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = _take(arguments, "add_document", file_path=_MISSING)
        return self.knowledge.sync(given["file_path"]).to_dict()

    def _add_text(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = _take(arguments, "add_text", text=_MISSING, source=_MISSING, timestamp=None, metadata=None)
        return self.knowledge.add_text(**given).to_dict()

    def _sync(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        paths = _take(arguments, "sync", paths=_MISSING)["paths"]
        return self.knowledge.sync(*([paths] if isinstance(paths, (str, os.PathLike)) else paths)).to_dict()

    def _search(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        given = _take(arguments, "search", query=_MISSING, limit=5, min_score=0.3)
        return [
            {**hit.to_dict(), "metadata": dict(hit.metadata)}
            for hit in self.knowledge.search(given["query"], given["limit"], given["min_score"])
        ]

    def _remove(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        source = _take(arguments, "remove", source=_MISSING)["source"]
        return {"removed": source, "version": self.knowledge.remove(source)}

    def candidates(
        self, query: str, *, now: datetime, encoder: Encoder, limit: int, min_score: float
    ) -> Sequence[Candidate]:
        """Return search results as candidates with their vectors, for the builder (see `ContextBuilder`).

        `encoder` is the builder's: when it is the one of the index, its cached query vector and the stored vectors of
        the passages serve, and nothing is encoded twice.
        """
        own = encoder.fingerprint == self.knowledge.encoder.fingerprint
        if own:
            vector = encoder.encode_queries([query])[0]
            hits = self.knowledge.search_vector(query, vector, limit, min_score, now=now)
        else:
            hits = self.knowledge.search(query, limit, min_score, now=now)
        return [_candidate(hit, with_vector=own) for hit in hits]


def _candidate(hit: Hit, *, with_vector: bool) -> Candidate:
    metadata = {
        **hit.metadata,
        "id": hit.id,
        "source": hit.source,
        "cite": hit.cite,
        "heading": list(hit.heading),
        "cosine": round(hit.cosine, 6),
    }
    packet = ContextPacket(hit.content, hit.timestamp, metadata=metadata)
    return Candidate(packet, "knowledge", vectors=hit.vector[None, :] if with_vector else None)
