"""The file of a knowledge base or a memory, opened beside it: what is on disk, whatever the object remembers."""

from __future__ import annotations

from ctx_vector import KnowledgeBase, Memory, catalog, knowledge, memory, memory_rows
from ctx_vector.store import Store


def opened(owner: KnowledgeBase | Memory) -> Store:
    """Return the store of a knowledge base or a memory."""
    if isinstance(owner, Memory):
        return Store(owner.path / memory.FILE_NAME, memory_rows.MIGRATIONS, kind="memory")
    return Store(owner.path / knowledge.FILE_NAME, catalog.MIGRATIONS, kind="knowledge base")
