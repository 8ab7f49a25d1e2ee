"""Builds the context an LLM sees: offline, on a CPU, inside an exact token budget, in English and Chinese.

    from ctx_vector import ContextBuilder, ContextConfig, ContextPacket, Message

Gather → Select → Structure → Compress: candidates from system instructions, knowledge, memories, history and the caller
are scored by calibrated embedding cosine and recency, picked greedily, rendered into fixed sections, and shortened
where that helps. See README.md.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctx_vector.builder import ContextBuilder
    from ctx_vector.built import BuiltContext
    from ctx_vector.config import ContextConfig
    from ctx_vector.encoders import load_encoder
    from ctx_vector.errors import BudgetError, ConfigError, CtxVectorError
    from ctx_vector.knowledge import KnowledgeBase
    from ctx_vector.memory import Memory
    from ctx_vector.packets import ContextPacket, Message
    from ctx_vector.sources import LayerShares, SourceConfig
    from ctx_vector.tokens import TokenCounter
    from ctx_vector.tools import MemoryTool, RAGTool

__version__ = "0.1.0"

__all__ = [
    "BudgetError",
    "BuiltContext",
    "ConfigError",
    "ContextBuilder",
    "ContextConfig",
    "ContextPacket",
    "CtxVectorError",
    "KnowledgeBase",
    "LayerShares",
    "Memory",
    "MemoryTool",
    "Message",
    "RAGTool",
    "SourceConfig",
    "TokenCounter",
    "__version__",
    "load_encoder",
]

# every name is imported when it is asked for, so that a command or a program loads only what it uses
_LAZY = {
    "BudgetError": "errors",
    "BuiltContext": "built",
    "ConfigError": "errors",
    "ContextBuilder": "builder",
    "ContextConfig": "config",
    "ContextPacket": "packets",
    "CtxVectorError": "errors",
    "KnowledgeBase": "knowledge",
    "LayerShares": "sources",
    "Memory": "memory",
    "MemoryTool": "tools",
    "Message": "packets",
    "RAGTool": "tools",
    "SourceConfig": "sources",
    "TokenCounter": "tokens",
    "load_encoder": "encoders",
}

logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
