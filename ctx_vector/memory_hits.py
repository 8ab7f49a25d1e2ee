"""What a search in memory returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ctx_vector.memory_rows import Row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class MemoryHit:
    """A memory found: `score` is the relevance in [0, 1], `cosine` the raw cosine, `vector` (dim,) float32, unit;
    `passes` the relevances by the first and the second pass, of which the score was made, where there was a second one.
    """

    memory: Row
    score: float
    cosine: float
    vector: NDArray[np.float32]
    passes: tuple[float, float] | None = None

    @property
    def id(self) -> str:
        """The memory's id."""
        return str(self.memory.id)

    @property
    def content(self) -> str:
        """The memory's text, as it was added."""
        return self.memory.content

    @property
    def timestamp(self) -> datetime | None:
        """When it was said; aware UTC."""
        return self.memory.timestamp

    @property
    def metadata(self) -> dict[str, Any]:
        """The caller's metadata, with memory_type, importance, session and speaker."""
        memory = self.memory
        ours = {
            "memory_type": memory.type,
            "importance": memory.importance,
            "session": memory.session,
            "speaker": memory.speaker,
        }
        return with_ours(memory.metadata, {key: value for key, value in ours.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values: id, content, score, cosine, timestamp, metadata, and passes after a second one."""
        again = {} if self.passes is None else {"passes": [round(value, 6) for value in self.passes]}
        return {
            "id": self.id,
            "content": self.memory.content,
            "score": round(self.score, 6),
            "cosine": round(self.cosine, 6),
            "timestamp": self.memory.timestamp.isoformat() if self.memory.timestamp else None,
            "metadata": self.metadata,
            **again,
        }


def with_ours(metadata: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return the caller's metadata with ours; what the caller has under a name of ours is kept under ``user``.

    >>> with_ours({"mood": "good", "id": 7}, {"id": "3"})
    {'mood': 'good', 'id': '3', 'user': {'id': 7}}
    """
    hidden = {key: value for key, value in metadata.items() if key in ours and value != ours[key]}
    found = {**metadata, **ours}
    if hidden:
        user = found.get("user")
        found["user"] = {**(user if isinstance(user, Mapping) else {} if user is None else {"user": user}), **hidden}
    return found
