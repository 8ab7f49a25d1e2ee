"""For LlamaIndex: a retriever, a node postprocessor, a memory block. Extra: `llama-index`.

    engine = RetrieverQueryEngine.from_args(
        CtxVectorRetriever("kb"), node_postprocessors=[CtxVectorPostprocessor(max_tokens=1500)])

    memory = Memory.from_defaults(memory_blocks=[CtxVectorMemoryBlock(memory=ctx_vector.Memory("memory", "ada"))])

Asynchronous calls run in threads, so that an event loop is not held up.
"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ctx_vector.adapters.shared import hit_metadata, known_score, missing

try:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.memory import BaseMemoryBlock
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
    from pydantic import Field
except ModuleNotFoundError as error:
    raise missing(error, "llama_index", "llama-index") from None

from ctx_vector.adapters.chooser_fields import ChooserFields
from ctx_vector.escaping import FIXED_LABELS, escape, normalise
from ctx_vector.knowledge import KnowledgeBase
from ctx_vector.memory import Memory
from ctx_vector.packets import Message
from ctx_vector.tokens import TokenCounter

if TYPE_CHECKING:
    from ctx_vector.memory_hits import MemoryHit

#: What a language model need not read: it is in the citation.
_NOT_FOR_MODELS = ["source", "start_line", "end_line", "score", "scored_for", "heading", "timestamp"]


class CtxVectorRetriever(BaseRetriever):
    """Passages of a knowledge base as nodes with scores, best first.

    `knowledge` is a KnowledgeBase, or its folder. Scores are calibrated relevance in [0, 1]; metadata has `source`,
    `cite`, the lines and the heading.
    """

    def __init__(
        self,
        knowledge: KnowledgeBase | str | os.PathLike[str],
        similarity_top_k: int = 5,
        min_score: float = 0.0,
        filter: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.knowledge = knowledge if isinstance(knowledge, KnowledgeBase) else KnowledgeBase(knowledge)
        self.similarity_top_k = similarity_top_k
        self.min_score = min_score
        self.filter = filter
        super().__init__(**options)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        now = datetime.now(UTC)
        hits = self.knowledge.search(
            query_bundle.query_str, self.similarity_top_k, self.min_score, self.filter, now=now
        )
        return [
            NodeWithScore(
                node=TextNode(
                    id_=f"{hit.cite}#{hit.id}",
                    text=hit.content,
                    metadata=hit_metadata(hit, query_bundle.query_str),
                    excluded_llm_metadata_keys=_NOT_FOR_MODELS,
                    excluded_embed_metadata_keys=_NOT_FOR_MODELS,
                ),
                score=hit.score,
            )
            for hit in hits
        ]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


class CtxVectorPostprocessor(ChooserFields, BaseNodePostprocessor):
    """Keeps, of nodes from any retriever, the most relevant that fit `max_tokens` together; sets their scores.

    Nodes under `min_relevance` are left out; at most one is shortened, into a copy (`shorten=False`: none). At most
    `top_n` are kept.
    """

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class."""
        return "CtxVectorPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None or not nodes:
            return nodes
        query = query_bundle.query_str
        given = [
            (item.node.get_content(metadata_mode=MetadataMode.NONE), known_score(item.node.metadata, query))
            for item in nodes
        ]
        found = []
        for choice in self._chooser.choose(query, given):
            node = nodes[choice.index].node
            if choice.shortened:
                node = node.model_copy(deep=True)
                node.set_content(choice.content)
            found.append(NodeWithScore(node=node, score=choice.relevance))
        return found


class CtxVectorMemoryBlock(BaseMemoryBlock[str]):
    """What is remembered of a user, recalled by meaning for each question; what leaves the short memory is added.

    `memory` is a ctx_vector Memory. A block says at most `max_tokens`; memories under `min_score` are left out. Each
    memory is a line of its own that begins with ``- ``.
    """

    name: str = "ctx_vector"
    description: str | None = "What is remembered of the user."
    priority: int = 1
    memory: Any
    limit: int = Field(10, ge=1)
    min_score: float = Field(0.1, ge=0, le=1)
    max_tokens: int = Field(800, ge=1)
    importance: float = Field(0.5, ge=0, le=1)
    tokenizer: Any = "cl100k_base"

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        asked = next(
            (message for message in reversed(messages or []) if message.role == "user" and message.content), None
        )
        if asked is None:
            return ""
        hits = await asyncio.to_thread(self._memory.search, str(asked.content), self.limit, min_score=self.min_score)
        return self._fitting(hits)

    async def _aput(self, messages: list[ChatMessage]) -> None:
        said = [
            {
                "content": message.content.strip(),
                "session": message.additional_kwargs.get("session_id"),
                "speaker": str(message.role.value),
                "importance": self.importance,
            }
            for message in messages
            if message.role in ("user", "assistant") and message.content and message.content.strip()
        ]
        await asyncio.to_thread(self._memory.add_many, said)

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Return the content without its last lines, `tokens_to_truncate` shorter, or None if nothing is left."""
        counter = TokenCounter(self.tokenizer)
        limit = counter.count(content) - tokens_to_truncate
        lines = content.split("\n- ")
        while lines and counter.count("\n- ".join(lines)) > limit:
            lines.pop()
        return "\n- ".join(lines) or None

    @property
    def _memory(self) -> Memory:
        memory: Memory = self.memory
        return memory

    def _fitting(self, hits: list[MemoryHit]) -> str:
        counter = TokenCounter(self.tokenizer)
        text = ""
        for hit in hits:
            longer = text + ("\n" if text else "") + "- " + _one_item(hit.content)
            if counter.count(longer) <= self.max_tokens:
                text = longer
        return text


def _one_item(content: str) -> str:
    """Return a memory with its further lines set in, so that none of them looks like another memory or a role."""
    return escape(normalise(content), FIXED_LABELS).replace("\n", "\n  ")


def to_messages(messages: list[ChatMessage]) -> list[Message]:
    """Return LlamaIndex messages as Messages, for the `conversation_history` of a build."""
    found = []
    for message in messages:
        more = {
            name: message.additional_kwargs[name]
            for name in ("name", "tool_call_id")
            if message.additional_kwargs.get(name)
        }
        found.append(Message(message.content or "", str(message.role.value), **more))
    return found
