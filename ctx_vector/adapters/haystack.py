"""For Haystack: a retriever and a ranker, as components of a Pipeline. Extra: `haystack`.

    pipeline = Pipeline()
    pipeline.add_component("retriever", CtxVectorRetriever("kb", top_k=20))
    pipeline.add_component("ranker", CtxVectorRanker(max_tokens=1500))
    pipeline.connect("retriever.documents", "ranker.documents")

`run_async` runs in a thread, so that an event loop is not held up.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ctx_vector.adapters.shared import Chooser, hit_metadata, known_score, missing

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ModuleNotFoundError as error:
    raise missing(error, "haystack", "haystack") from None

from ctx_vector.knowledge import KnowledgeBase


@component
class CtxVectorRetriever:
    """Passages of a knowledge base as Documents, best first; scores are calibrated relevance in [0, 1]."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        top_k: int = 5,
        min_score: float = 0.0,
        filters: dict[str, Any] | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.top_k = top_k
        self.min_score = min_score
        self.filters = filters
        self.knowledge = KnowledgeBase(path)

    def to_dict(self) -> dict[str, Any]:
        """Return what a pipeline is saved as."""
        saved: dict[str, Any] = default_to_dict(
            self, path=self.path, top_k=self.top_k, min_score=self.min_score, filters=self.filters
        )
        return saved

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CtxVectorRetriever:
        """Make it of what a pipeline was saved as."""
        made: CtxVectorRetriever = default_from_dict(cls, data)
        return made

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, top_k: int | None = None, filters: dict[str, Any] | None = None
    ) -> dict[str, list[Document]]:
        """Search; `filters` is a filter of `KnowledgeBase.search`, such as ``{"source": "docs/*"}``."""
        hits = self.knowledge.search(
            query,
            self.top_k if top_k is None else top_k,
            self.min_score,
            self.filters if filters is None else filters,
            now=datetime.now(UTC),
        )
        documents = [
            Document(id=f"{hit.cite}#{hit.id}", content=hit.content, meta=hit_metadata(hit, query), score=hit.score)
            for hit in hits
        ]
        return {"documents": documents}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, top_k: int | None = None, filters: dict[str, Any] | None = None
    ) -> dict[str, list[Document]]:
        """Do the same off the event loop."""
        return await asyncio.to_thread(self.run, query, top_k, filters)


@component
class CtxVectorRanker:
    """Keeps the most relevant documents that fit `max_tokens` together, best first; at most one is shortened."""

    def __init__(
        self,
        max_tokens: int = 2000,
        min_relevance: float = 0.1,
        top_k: int | None = None,
        shorten: bool = True,
        encoder: Any = None,
    ) -> None:
        self.max_tokens = max_tokens
        self.min_relevance = min_relevance
        self.top_k = top_k
        self.shorten = shorten
        self._chooser = Chooser(max_tokens, min_relevance, top_k, shorten=shorten, encoder=encoder)

    def to_dict(self) -> dict[str, Any]:
        """Return what a pipeline is saved as; an encoder given in code is not saved."""
        saved: dict[str, Any] = default_to_dict(
            self,
            max_tokens=self.max_tokens,
            min_relevance=self.min_relevance,
            top_k=self.top_k,
            shorten=self.shorten,
        )
        return saved

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document]) -> dict[str, list[Document]]:
        """Choose; documents without text are left out, and none of those given is changed."""
        given = [(document.content or "", known_score(document.meta, query)) for document in documents]
        return {
            "documents": [
                replace(documents[choice.index], content=choice.content, score=choice.relevance)
                for choice in self._chooser.choose(query, given)
            ]
        }

    @component.output_types(documents=list[Document])
    async def run_async(self, query: str, documents: list[Document]) -> dict[str, list[Document]]:
        """Do the same off the event loop."""
        return await asyncio.to_thread(self.run, query, documents)
