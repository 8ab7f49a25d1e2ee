"""For LangChain: a retriever, a chat message history, a document compressor. Extra: `langchain`.

    retriever = CtxVectorRetriever.from_folder("kb", k=5)
    chain = {"context": retriever, "question": RunnablePassthrough()} | prompt | llm

    history = CtxVectorChatMessageHistory("session-1", "chats")
    chain.invoke({"history": history.messages, "question": question})

    ContextualCompressionRetriever(base_retriever=any_retriever, base_compressor=CtxVectorCompressor(max_tokens=1500))

All of them work with `invoke` and `ainvoke`; the asynchronous calls run in threads.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from ctx_vector.adapters.shared import hit_metadata, known_score, missing

try:
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.messages import BaseMessage, convert_to_openai_messages, message_to_dict, messages_from_dict
    from langchain_core.retrievers import BaseRetriever
    from pydantic import ConfigDict, Field
except ModuleNotFoundError as error:
    raise missing(error, "langchain_core", "langchain") from None

from ctx_vector.adapters.chooser_fields import ChooserFields
from ctx_vector.errors import CtxVectorError
from ctx_vector.knowledge import KnowledgeBase
from ctx_vector.memory import Memory
from ctx_vector.packets import Message
from ctx_vector.transcripts import Transcripts

if TYPE_CHECKING:
    from ctx_vector.stages import Encoder

_log = logging.getLogger("ctx_vector.adapters")


class CtxVectorRetriever(BaseRetriever):
    """Passages of a knowledge base as Documents, best first.

    `k` and `min_score` can be given with a call too: ``retriever.invoke(question, k=3)``. Metadata has `source`,
    `cite`, the lines, the heading and the `score`, a calibrated relevance in [0, 1].
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    knowledge: KnowledgeBase
    k: int = Field(5, ge=1)
    min_score: float = Field(0.0, ge=0, le=1)
    filter: dict[str, Any] | None = None

    @classmethod
    def from_folder(cls, path: str | os.PathLike[str], encoder: Encoder | None = None, **fields: Any) -> Self:
        """Open the knowledge base in a folder, which is made when absent."""
        return cls(knowledge=KnowledgeBase(path, encoder), **fields)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: Any,
        k: int | None = None,
        min_score: float | None = None,
        filter: dict[str, Any] | None = None,
    ) -> list[Document]:
        hits = self.knowledge.search(
            query,
            self.k if k is None else k,
            self.min_score if min_score is None else min_score,
            self.filter if filter is None else filter,
            now=datetime.now(UTC),
        )
        return [Document(id=str(hit.id), page_content=hit.content, metadata=hit_metadata(hit, query)) for hit in hits]


class CtxVectorChatMessageHistory(BaseChatMessageHistory):
    """The messages of one session on disk, word for word and in order; also remembered, if a `memory` is given.

    `path` is a folder, which is made when absent. With a `memory`, what users and models say becomes turns in it, so
    that later conversations can recall it; `clear` forgets both. Memories of equal wording are one memory, messages are
    not merged.
    """

    def __init__(
        self,
        session_id: str,
        path: str | os.PathLike[str],
        *,
        memory: Memory | None = None,
        importance: float = 0.5,
    ) -> None:
        self.session_id = session_id
        self.memory = memory
        self.importance = importance
        self._kept = Transcripts(path)

    @property
    def messages(self) -> list[BaseMessage]:
        """The messages, oldest first."""
        return list(messages_from_dict(self._kept.read(self.session_id)))

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add messages to the end, all or none."""
        self._kept.append(self.session_id, [message_to_dict(message) for message in messages])
        if self.memory is None:
            return
        said = [(message.type, message.text.strip()) for message in messages if message.type in ("human", "ai")]
        try:
            self.memory.add_many(
                {
                    "content": text,
                    "session": self.session_id,
                    "speaker": "user" if kind == "human" else "assistant",
                    "importance": self.importance,
                }
                for kind, text in said
                if text
            )
        except CtxVectorError as error:  # the messages are kept; an error would have them added twice
            _log.warning("these messages are not remembered: %s", error)

    def clear(self) -> None:
        """Delete the messages, and what the memory has of this session."""
        self._kept.delete(self.session_id)
        if self.memory is not None:
            for row in self.memory.all():
                if row.session == self.session_id:
                    self.memory.remove(row.id)


class CtxVectorCompressor(ChooserFields, BaseDocumentCompressor):
    """Keeps, of documents from any retriever, the most relevant that fit `max_tokens` together.

    Documents under `min_relevance` are left out; at most one is shortened, by whole sentences where possible
    (`shorten=False`: none). Metadata gets `relevance_score`. At most `top_n` are kept.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> list[Document]:
        """Return what is kept, best first; the documents given are not changed."""
        found = []
        given = [(document.page_content, known_score(document.metadata, query)) for document in documents]
        for choice in self._chooser.choose(query, given):
            old = documents[choice.index]
            metadata = {**old.metadata, "relevance_score": round(choice.relevance, 6)}
            found.append(Document(id=old.id, page_content=choice.content, metadata=metadata))
        return found


def to_messages(messages: Sequence[BaseMessage]) -> list[Message]:
    """Return LangChain messages as Messages, for the `conversation_history` of a build."""
    return [Message.of(item) for item in convert_to_openai_messages(list(messages))]
