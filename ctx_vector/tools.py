"""The tools an agent calls: one `run({"action": ...})` over the objects behind.

    tool = MemoryTool(user_id="ada")
    tool.run({"action": "add", "content": "Ada prefers Chinese", "memory_type": "semantic", "importance": 0.8})
    tool = RAGTool(knowledge_base_path="./kb")
    tool.run({"action": "sync", "paths": ["docs"]})
    tool.run({"action": "search", "query": "How do I declare a path parameter?", "limit": 3})

`search` returns a list of dicts, every other action a dict. An argument that is None counts as left out; one that does
not exist is an error, and so is a number in quotes: a caller hears what was wrong instead of getting a guess. Errors
are raised as CtxVectorError, never given as text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ctx_vector import retrieval
from ctx_vector.errors import InputError, LoaderError
from ctx_vector.knowledge import KnowledgeBase
from ctx_vector.memory import Memory, default_folder
from ctx_vector.packets import Candidate
from ctx_vector.rules import nearest
from ctx_vector.stages import Retrieval

if TYPE_CHECKING:
    from ctx_vector.stages import Encoder

_MISSING: Final = object()
_ASKED: Final = Retrieval()


def _take(arguments: Mapping[str, Any], action: str, **defaults: Any) -> dict[str, Any]:
    """Return the arguments of an action with their defaults; InputError for unknown and missing ones."""
    unknown = [key for key in arguments if key not in defaults and key != "action"]
    if unknown:
        raise InputError(
            f"{action}: unknown argument {unknown[0]!r}; it takes {', '.join(defaults) or 'none'}"
            f"{nearest(unknown[0], defaults)}"
        )
    missing = [key for key, value in defaults.items() if value is _MISSING and arguments.get(key) is None]
    if missing:
        raise InputError(f"{action}: the argument {missing[0]!r} is missing")
    return {key: arguments[key] if arguments.get(key) is not None else value for key, value in defaults.items()}


def _paths(value: Any, name: str, *, one: bool = False) -> list[str | os.PathLike[str]]:
    """Return the paths in an argument: one of them, or a list of at least one."""
    if isinstance(value, (str, os.PathLike)) and str(value).strip():
        return [value]
    if isinstance(value, (list, tuple)) and value and not one:
        return [path for item in value for path in _paths(item, name, one=True)]
    raise InputError(f"{name}: expected {'a path' if one else 'a path or a list of paths'}, got {value!r:.80}")


class _Tool:
    """What both tools share: finding the method of an action."""

    def _actions(self) -> Mapping[str, Callable[[Mapping[str, Any]], Any]]:
        raise NotImplementedError

    def run(self, parameters: Mapping[str, Any]) -> Any:
        """Do one action. Raises InputError naming the actions or arguments there are."""
        actions = self._actions()
        if not isinstance(parameters, Mapping):
            raise InputError(f'expected a mapping such as {{"action": "search", "query": ...}}, got {parameters!r:.80}')
        action = parameters.get("action")
        if not isinstance(action, str) or action not in actions:
            raise InputError(
                f"action: expected one of {', '.join(actions)}, got {action!r:.80}{nearest(action, actions)}"
            )
        return actions[action](parameters)


class MemoryTool(_Tool):
    """One user's memory as a tool; `tool.memory` is the Memory behind. `path` defaults to the platform's data folder.

    Actions: `add` (content, memory_type="working", importance=0.5, timestamp, session, speaker, metadata),
    `search` (query, limit=10, min_importance=0.3, memory_type, strategy="cosine", rerank),
    `update` (memory_id and what changes),
    `remove` (memory_id), `forget` (strategy, threshold=0.2 or the number to keep, max_age_days=90),
    `consolidate` (from_type, to_type, importance_threshold=0.7), `summary`, `stats`, `clear_all`.
    Scores are calibrated relevance in [0, 1].
    """

    name = "memory"
    description = "Remembers, recalls and forgets things about a user."

    def __init__(
        self,
        user_id: str = "default",
        path: str | os.PathLike[str] | None = None,
        encoder: Encoder | str | os.PathLike[str] | None = None,
        *,
        memory: Memory | None = None,
    ) -> None:
        self.memory = memory or Memory(default_folder() if path is None else path, user_id, encoder)

    def _actions(self) -> Mapping[str, Callable[[Mapping[str, Any]], Any]]:
        return {
            "add": self._add,
            "search": self._search,
            "update": self._update,
            "remove": self._remove,
            "forget": self._forget,
            "consolidate": self._consolidate,
            "summary": self._summary,
            "stats": self._stats,
            "clear_all": self._clear_all,
        }

    def _add(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = _take(
            arguments,
            "add",
            content=_MISSING,
            memory_type="working",
            importance=0.5,
            timestamp=None,
            session=None,
            speaker=None,
            metadata=None,
        )
        given["type"] = given.pop("memory_type")
        return {"memory_id": self.memory.add(**given)}

    def _search(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        given = _take(
            arguments,
            "search",
            query=_MISSING,
            limit=10,
            min_importance=0.3,
            memory_type=None,
            strategy="cosine",
            rerank=None,
        )
        kind = given["memory_type"]
        if kind is not None and not isinstance(kind, (str, list, tuple)):
            raise InputError(f"memory_type: expected the name of a type or a list of names, got {kind!r:.80}")
        hits = self.memory.search(
            given["query"],
            given["limit"],
            min_importance=given["min_importance"],
            type=kind,
            strategy=given["strategy"],
            rerank=given["rerank"],
        )
        return [hit.to_dict() for hit in hits]

    def _update(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = _take(
            arguments,
            "update",
            memory_id=_MISSING,
            content=None,
            memory_type=None,
            importance=None,
            timestamp=None,
            metadata=None,
        )
        memory_id = given.pop("memory_id")
        if all(value is None for value in given.values()):
            raise InputError(f"update: nothing to change; give one of {', '.join(given)}")
        given["type"] = given.pop("memory_type")
        return {"memory_id": str(self.memory.update(memory_id, **given).id)}

    def _remove(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        memory_id = _take(arguments, "remove", memory_id=_MISSING)["memory_id"]
        self.memory.remove(memory_id)
        return {"removed": str(memory_id)}

    def _forget(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = _take(arguments, "forget", strategy="importance_based", threshold=0.2, max_age_days=90.0)
        return {"forgotten": self.memory.forget(**given)}

    def _consolidate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = _take(arguments, "consolidate", from_type="working", to_type="episodic", importance_threshold=0.7)
        return {"consolidated": self.memory.consolidate(**given)}

    def _summary(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"summary": self.memory.summary(_take(arguments, "summary", limit=10)["limit"])}

    def _stats(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        _take(arguments, "stats")
        return self.memory.stats()

    def _clear_all(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        _take(arguments, "clear_all")
        return {"removed": self.memory.clear_all()}

    def candidates(
        self,
        query: str,
        *,
        now: datetime,
        encoder: Encoder,
        limit: int,
        min_importance: float,
        how: Retrieval = _ASKED,
    ) -> Sequence[Candidate]:
        """Return search results as candidates for the builder, with their vectors and their own relevance.

        `encoder` is the builder's; when it is the memory's, its cached query vector serves (retrieval.py).
        """
        memory = self.memory
        return memory.steady(
            lambda: retrieval.memories(
                memory, query, now=now, encoder=encoder, limit=limit, min_importance=min_importance, how=how
            )
        )


class RAGTool(_Tool):
    """Local knowledge as a tool. The index folder is made when absent; `tool.knowledge` is the KnowledgeBase behind.

    Actions: `add_document` (file_path; LoaderError when it cannot be read), `add_text` (text, source, timestamp,
    metadata), `sync` (paths; `failures` in the answer says which files could not be read, and why; InputError when none
    of the paths is there), `search` (query, limit=5, min_score=0.3, strategy="cosine", rerank),
    `remove` (source), `stats`. Scores are calibrated relevance in [0, 1].
    """

    name = "rag"
    description = "Searches and keeps a local knowledge base."

    def __init__(
        self,
        knowledge_base_path: str | os.PathLike[str] = "./kb",
        encoder: Encoder | str | os.PathLike[str] | None = None,
        *,
        knowledge: KnowledgeBase | None = None,
    ) -> None:
        self.knowledge = knowledge or KnowledgeBase(knowledge_base_path, encoder)

    def _actions(self) -> Mapping[str, Callable[[Mapping[str, Any]], Any]]:
        return {
            "add_document": self._add_document,
            "add_text": self._add_text,
            "sync": self._sync,
            "search": self._search,
            "remove": self._remove,
            "stats": self._stats,
        }

    def _stats(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        _take(arguments, "stats")
        return self.knowledge.stats()

    def _add_document(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        path = _take(arguments, "add_document", file_path=_MISSING)["file_path"]
        report = self.knowledge.sync(*_paths(path, "file_path", one=True))
        if not (report.added or report.updated or report.unchanged):
            reasons = {**report.skipped, **report.failed} or {str(path): "there is no document in it"}
            raise LoaderError("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
        return report.to_dict()

    def _add_text(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = _take(arguments, "add_text", text=_MISSING, source=_MISSING, timestamp=None, metadata=None)
        return self.knowledge.add_text(**given).to_dict()

    def _sync(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        paths = _paths(_take(arguments, "sync", paths=_MISSING)["paths"], "paths")
        if not any(os.path.lexists(path) for path in paths):
            raise InputError(f"paths: no such file or folder: {', '.join(map(str, paths))}")
        report = self.knowledge.sync(*paths)
        return {**report.to_dict(), "failures": dict(report.failed)}

    def _search(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        given = _take(arguments, "search", query=_MISSING, limit=5, min_score=0.3, strategy="cosine", rerank=None)
        hits = self.knowledge.search(
            given["query"], given["limit"], given["min_score"], strategy=given["strategy"], rerank=given["rerank"]
        )
        return [{**hit.to_dict(), "metadata": dict(hit.metadata)} for hit in hits]

    def _remove(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        source = _take(arguments, "remove", source=_MISSING)["source"]
        if not isinstance(source, str):
            raise InputError(f"source: expected the name of a document, got {source!r:.80}")
        return {"removed": source, "version": self.knowledge.remove(source)}

    def candidates(
        self,
        query: str,
        *,
        now: datetime,
        encoder: Encoder,
        limit: int,
        min_score: float,
        filter: Mapping[str, Any] | None = None,
        how: Retrieval = _ASKED,
    ) -> Sequence[Candidate]:
        """Return search results as candidates for the builder, with their vectors and their own relevance.

        `encoder` is the builder's; when it is the one of the index, nothing is encoded twice. Which passages count to
        `limit`, and which come along with a reason, says `retrieval.passages`.
        """
        knowledge = self.knowledge
        return knowledge.steady(
            lambda: retrieval.passages(
                knowledge,
                query,
                now=now,
                encoder=encoder,
                limit=limit,
                min_score=min_score,
                filter=filter,
                how=how,
            )
        )
