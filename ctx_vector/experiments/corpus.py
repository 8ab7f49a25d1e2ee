"""The documents of one collection, held the way the product would hold them, behind a builder.

Turns of a conversation become a user's memories, embedded with their neighbours; so does what has a `memory_type`.
Everything else becomes a knowledge base. Both lie in a folder of their own for the time of an experiment; vectors come
from the experiment's encoder, which remembers them. Questions to a knowledge base that is there already are asked to it
as it is (`IndexedCorpus`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.builder import ContextBuilder
from ctx_vector.errors import InputError
from ctx_vector.experiments.dataset import NO_TIME, Document, Query
from ctx_vector.knowledge import KnowledgeBase
from ctx_vector.tools import MemoryTool, RAGTool

if TYPE_CHECKING:
    from ctx_vector.built import Decision
    from ctx_vector.config import ContextConfig
    from ctx_vector.stages import Encoder

KINDS: Final = ("auto", "knowledge", "memories")
_KEPT_METADATA: Final = ("expires_at", "document_id", "version")  # what the product reads
_NAME: Final = "experiment_document"


class Corpus:
    """The documents of one collection; `builder` builds contexts from them and from nothing else.

    `kind` is `auto`, or what all documents become. `passages` is how many passages the knowledge base has, `memories`
    how many memories there are, `lost` how many documents were merged with one that says the same.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        folder: Path,
        encoder: Encoder,
        config: ContextConfig,
        *,
        kind: str,
        chunk_tokens: int | None = None,
    ) -> None:
        self._ids = {f"d{number}": document.id for number, document in enumerate(documents)}
        self.newest: datetime | None = max((d.timestamp for d in documents if d.timestamp), default=None)
        self.passages = self.memories = self.lost = 0
        self._stack = ExitStack()
        named = list(zip(self._ids, documents, strict=True))
        remembered = [(name, item) for name, item in named if _is_memory(item, kind)]
        known = [(name, item) for name, item in named if not _is_memory(item, kind)]
        tools: dict[str, Any] = {}
        if remembered:
            tool = MemoryTool("experiment", folder / "memory", encoder)
            self._stack.callback(tool.memory.close)
            tool.memory.add_many([_memory(name, item) for name, item in remembered], now=self.newest)
            self.memories = len(tool.memory.all(now=self.newest))
            self.lost = len(remembered) - self.memories
            tools["memory_tool"] = tool
        if known:
            base = KnowledgeBase(folder / "kb", encoder, chunk_tokens=chunk_tokens)
            self._stack.callback(base.close)
            base.add_texts(_text(name, item) for name, item in known)
            self.passages = int(base.stats()["chunks"])
            tools["rag_tool"] = RAGTool(knowledge=base)
        self.builder = ContextBuilder(config=config, encoder=encoder, **tools)

    def document_of(self, decision: Decision) -> str:
        """Return the id of the document that a candidate is of."""
        try:
            return self._ids[str(decision.packet.meta.get(_NAME))]
        except KeyError:
            raise InputError(f"the context holds a candidate that is of no document: {decision.packet.id!r}") from None

    def present(self, query: Query) -> datetime:
        """Return when a query is asked: its `now`, else the time of the newest document."""
        return query.now or self.newest or NO_TIME

    def close(self) -> None:
        """Close the files."""
        self._stack.close()


class IndexedCorpus(Corpus):
    """The passages of a knowledge base that is there already, found by its own search; documents are its sources."""

    def __init__(self, documents: Sequence[Document], folder: Path, encoder: Encoder, config: ContextConfig) -> None:
        super().__init__((), folder, encoder, config, kind="knowledge")
        self._sources = {document.id for document in documents}
        self.newest = max((d.timestamp for d in documents if d.timestamp), default=None)
        base = KnowledgeBase(folder, encoder, create=False)
        self._stack.callback(base.close)
        self.passages = int(base.stats()["chunks"])
        self.builder = ContextBuilder(config=config, encoder=encoder, rag_tool=RAGTool(knowledge=base))

    def document_of(self, decision: Decision) -> str:
        """Return the source of the document that a candidate is of."""
        source = str(decision.packet.meta.get("source"))
        if source not in self._sources:
            raise InputError(f"{source!r} came into the knowledge base meanwhile; run it again")
        return source


def _is_memory(document: Document, kind: str) -> bool:
    if kind != "auto":
        return kind == "memories"
    return document.session is not None or bool(document.metadata.get("memory_type"))


def _memory(name: str, document: Document) -> dict[str, Any]:
    return {
        "content": document.text if not document.title.strip() else f"{document.title}: {document.text}",
        "type": document.metadata.get("memory_type") or "episodic",
        "importance": document.metadata.get("importance", 0.5),
        "timestamp": document.timestamp,
        "session": document.session,
        "speaker": document.role,
        "metadata": {_NAME: name},
    }


def _text(name: str, document: Document) -> dict[str, Any]:
    text = f"# {document.title}\n\n{document.text}" if document.title.strip() else document.text
    metadata = {key: document.metadata[key] for key in _KEPT_METADATA if key in document.metadata}
    return {"text": text, "source": name, "timestamp": document.timestamp, "metadata": {**metadata, _NAME: name}}
