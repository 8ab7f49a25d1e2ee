"""What goes into a build, and nothing else; what comes out is in built.py.

    caller, sources ── ContextPacket, Message
    gather          ── Candidate       a packet, where it came from, and a ready vector if there is one
    rank, fill      ── Ranked          the same with its scores (ranked.py)
    record          ── Decision        one fate for every candidate: kept, or dropped with a reason
                       BuiltContext

Times are aware UTC `datetime`s or None; a naive time is local time and is resolved once, when the packet is
made. Scores lie in [0, 1]. Nothing here reads a clock.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ctx_vector.errors import InputError
from ctx_vector.values import as_utc, clean_text, json_ready, message_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TYPE_SYSTEM: Final = "system_instruction"
TYPE_STATE: Final = "task_state"
TYPE_HISTORY: Final = "conversation_history"
TYPE_KNOWLEDGE: Final = "knowledge"
TYPE_MEMORY: Final = "memory"
TYPE_AGENT: Final = "agent_output"
TYPE_TOOL: Final = "tool_definition"
TYPE_IMAGE: Final = "image"
TYPE_RESULT: Final = "tool_result"
EVIDENCE_TYPES: Final = frozenset({TYPE_KNOWLEDGE, "rag_result", TYPE_RESULT, TYPE_AGENT})

#: The roles of the chat APIs.
ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", "function"})

#: Reasons a candidate can be dropped for. The set is open: a policy or a layer may add its own.
DROP_REASONS: Final = (
    "below_floor", "budget", "quota", "duplicate", "superseded", "oversize", "window", "scope", "expired", "empty",
    "fault", "timeout",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ContextPacket:
    """One candidate for the context.

    `timestamp` None stays unset and counts as the build's `now`. `token_count` is informative only: the budget uses
    its own count. `relevance_score` is clamped to [0, 1]; left out (or NaN) it reads 0.5 and `scored` is False, so
    that the build scores it; a given score is kept as it is. `metadata["type"]` decides the section.

    Raises InputError when a field has the wrong type.
    """

    content: str
    timestamp: datetime | None = None
    token_count: int | None = None
    relevance_score: float | None = None
    metadata: dict[str, Any] | None = None
    scored: bool = field(default=False, init=False)
    _digest: tuple[str, str] = field(default=("", ""), init=False, repr=False, compare=False)  # of a type

    def __post_init__(self) -> None:
        if not isinstance(self.content, str):
            raise InputError(f"packet content: expected a str, got {type(self.content).__name__}")
        put = object.__setattr__
        put(self, "content", clean_text(self.content))
        put(self, "timestamp", as_utc(self.timestamp))
        score = self.relevance_score
        if score is not None:
            try:
                score = float(score)
            except (TypeError, ValueError, OverflowError):
                raise InputError(
                    f"relevance_score: expected a number in [0, 1], got {self.relevance_score!r}"
                ) from None
        given = score is not None and not math.isnan(score)
        put(self, "scored", given)
        put(self, "relevance_score", min(1.0, max(0.0, score)) if score is not None and given else 0.5)
        if self.metadata is not None and not isinstance(self.metadata, Mapping):
            raise InputError(f"packet metadata: expected a mapping, got {type(self.metadata).__name__}")
        put(self, "metadata", dict(self.metadata) if self.metadata else {})

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata; never None."""
        return self.metadata or {}

    @property
    def relevance(self) -> float:
        """The relevance score; 0.5 while unscored."""
        return 0.5 if self.relevance_score is None else self.relevance_score

    @property
    def type(self) -> str:
        """`metadata["type"]`, else `general`."""
        kind = (self.metadata or {}).get("type")
        if type(kind) is str and kind.isascii() and kind:  # asked for many times in a build
            return kind
        return clean_text(str(kind or "general"))

    @property
    def id(self) -> str:
        """`metadata["id"]`, else a digest of type, time and content; the last resort of every tie."""
        given = self.meta.get("id")
        if given is not None:
            return clean_text(str(given))
        kind = self.type
        if self._digest[0] != kind:  # the metadata may be changed; the rest may not
            stamp = self.timestamp.isoformat() if self.timestamp else ""
            digest = hashlib.blake2b(f"{kind}\0{stamp}\0{self.content}".encode(), digest_size=8).hexdigest()
            object.__setattr__(self, "_digest", (kind, digest))
        return self._digest[1]

    def to_dict(self) -> dict[str, Any]:
        """Return the packet as JSON-ready values; metadata that is not JSON becomes its `str`."""
        return {
            "id": self.id,
            "content": self.content,
            "timestamp": self.timestamp.isoformat() if self.timestamp else None,
            "relevance_score": self.relevance if self.scored else None,
            "metadata": json_ready(self.meta),
        }


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, in the form of the OpenAI chat API.

    `content` is a str or a list of parts. Raises InputError for a blank role, and where the two are swapped; a role of
    many lines is rendered on one.
    """

    content: str | Sequence[Any] | None
    role: str
    timestamp: datetime | None = None
    name: str | None = None
    tool_calls: Sequence[Mapping[str, Any]] | None = None
    tool_call_id: str | None = None
    metadata: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.role, str) or not self.role.strip():
            raise InputError(f"message role: expected a name such as 'user' or 'assistant', got {self.role!r}")
        if isinstance(self.content, str) and self.content in ROLES and self.role not in ROLES:
            raise InputError(
                f"message: the content is {self.content!r} and the role {self.role!r:.40}; the content comes first: "
                f"Message({self.role!r:.40}, {self.content!r})"
            )
        object.__setattr__(self, "role", clean_text(self.role))
        if isinstance(self.content, str):
            object.__setattr__(self, "content", clean_text(self.content))
        else:
            message_text(self.content)  # refuses what is neither text nor parts
        object.__setattr__(self, "timestamp", as_utc(self.timestamp))

    @classmethod
    def of(cls, value: Any) -> Message:
        """Return a Message from a Message, a mapping with these keys, or an object with `role` and `content`."""
        if isinstance(value, cls):
            return value
        names = ("content", "role", "timestamp", "name", "tool_calls", "tool_call_id", "metadata")
        if isinstance(value, Mapping):
            given = {name: value[name] for name in names if value.get(name) is not None}
        else:
            given = {name: getattr(value, name) for name in names if getattr(value, name, None) is not None}
        if "role" not in given:
            raise InputError(f"message: expected a Message or a mapping with 'role' and 'content', got {value!r:.80}")
        given.setdefault("content", "")
        return cls(**given)

    @property
    def text(self) -> str:
        """The text of the content; parts that are not text are named in parentheses."""
        return clean_text(message_text(self.content))


class Origin(NamedTuple):
    """Where a text is kept for good: the file of its store and that store's identity, whose it is, and its name there.

    What is purged there is purged in every audit that has recorded it.
    """

    file: str
    store: str
    owner: str
    key: str


@dataclass(slots=True, eq=False)  # not frozen: that makes making one, of hundreds in a build, take five times as long
class Candidate:
    """A packet on its way through a build: its source, its place in the order of gathering, a ready vector.

    `vectors` is (windows, dim) float32 with unit rows when the source already has them (a knowledge chunk), else None.
    `rank` is the order of gathering and the very last tie-break. `message` is set for history only. `known` holds the
    relevance by strategies that the source computes itself (a memory's cosine among its neighbours). A candidate with a
    `reason` (one of DROP_REASONS) is dropped for it before it is scored; `detail` says why in words. `tool` is a tool
    definition (tool_schemas.py), of which the packet holds what it is searched by; `image` an image as a part of a
    message. `passes` are the relevances by the first and the second pass of a search, when `known` was made of both.
    `apart` says that none of its source adds nothing to the others, whichever of them are kept (likeness.py). `layer`
    is the layer of the source, "" without layers; `standing` sorts within it: (1 for an authoritative source, its
    priority). `origin` is where it is kept, if it comes out of a knowledge base or a memory.
    """

    packet: ContextPacket
    source: str
    rank: int = 0
    vectors: NDArray[np.float32] | None = None
    message: Message | None = None
    known: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    detail: str = ""
    tool: Any = None
    layer: str = ""
    standing: tuple[float, float] = (0, 0)
    origin: Origin | None = None
    image: Any = None
    passes: tuple[float, float] | None = None
    apart: bool = False
