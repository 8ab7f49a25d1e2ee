"""A candidate in the ranking: its place in the context, its scores and, in the end, its fate.

One row for each candidate of a build. ranking.py makes it and scores it, filling.py and what it calls decide its fate,
record.py turns it into a Decision. `Ranked.order` and `Ranked.place` are the two orders: that of choice, and that in
which the chosen ones are rendered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.built import Decision
from ctx_vector.gather import TOOL_ROLES
from ctx_vector.layout import ROLE, Piece
from ctx_vector.packets import (
    TYPE_HISTORY,
    TYPE_IMAGE,
    TYPE_RESULT,
    TYPE_STATE,
    TYPE_SYSTEM,
    TYPE_TOOL,
    Candidate,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Types of packets that are in a context whatever is asked: relevance neither drops them nor chooses among them.
NOT_RANKED: Final = frozenset({TYPE_SYSTEM, TYPE_STATE, TYPE_HISTORY, TYPE_TOOL, TYPE_IMAGE})
#: Layers that keep the order of their sources.
AS_GIVEN: Final = frozenset({"system", "static", "tool", "agents"})
_DISTANT_PAST: Final = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(slots=True, eq=False)
class Ranked:
    """A candidate with its scores and, in the end, its fate."""

    candidate: Candidate
    section: str
    group: str
    part: str = ""  # of the budget, that it belongs to
    kind: str = ""  # the packet's type
    say: Callable[[Candidate], str] | None = None  # gives the body when it is first asked for
    vectors: NDArray[np.float32] | None = None  # (windows, dim), where they are at hand
    plain: bool = False  # whether it says what its packet says
    said: str | None = None
    relevance: float = 0.0
    recency: float = 0.0
    score: float = 0.0
    windows: int = 0  # that its text was scored by, 0 when its relevance was known
    passes: tuple[float, float] | None = None  # relevances by the first and the second pass
    taken: tuple[Any, ...] = ()  # relevance and windows of its own, and what it took over
    detail: str = ""
    piece: Piece | None = None
    action: str = "dropped"
    reason: str = ""
    turn: int = -1
    spot: int = -1  # in the order of scores (diversity.py)
    definition: Any = None  # of a tool, as it stands in the context

    @property
    def known(self) -> tuple[Any, ...]:
        """What a repeat has to be told: relevance, windows; then the rank of the one taken over from, and what."""
        return self.taken or (self.relevance, self.windows)

    @property
    def body(self) -> str:
        """What it says, normalised and not escaped."""
        if self.said is None:
            self.said = self.say(self.candidate) if self.say is not None else ""
        return self.said

    def set_relevance(self, relevance: float, windows: int, passes: tuple[float, float] | None = None) -> None:
        """Set the relevance, by how many windows of the text it was found, and by which two passes."""
        self.relevance, self.windows, self.passes = relevance, windows, passes
        if windows > 1:
            self.detail = f"scored by the best of {windows} windows"
        if passes is not None:
            note = f"relevance {passes[0]:.3f} by the first pass, {passes[1]:.3f} by the second"
            self.detail = f"{self.detail}; {note}" if windows > 1 else note

    def take_over(self, older: Ranked, relevance: float, recency: float) -> None:
        """Take over from an older one that says the same."""
        name = f"{older.candidate.source}:{older.candidate.packet.id}"
        note = f"newer than {name}, which is like it; by itself its relevance is {self.relevance:.3f}"
        self.detail = "; ".join(part for part in (self.detail, note) if part)
        self.taken = (self.relevance, self.windows, older.candidate.rank, relevance, recency)
        self.relevance, self.recency = relevance, recency

    @property
    def order(self) -> tuple[float, float, str, int]:
        """The key that sorts best first: score, newer, id, order of gathering."""
        stamp = self.candidate.packet.timestamp
        age = -(stamp - _DISTANT_PAST).total_seconds() if stamp else float("-inf")
        return (-self.score, age, self.candidate.packet.id, self.candidate.rank)

    @property
    def place(self) -> tuple[Any, ...]:
        """Sorts within the group as rendered: history as spoken, system instructions, tools and layers that are not
        searched as given, the rest best first; authoritative sources last.
        """
        if self.group == "history":
            stamp = self.candidate.packet.timestamp
            if self.candidate.message is None:  # a custom packet, before the conversation
                return (0, (stamp - _DISTANT_PAST).total_seconds() if stamp else 0.0, self.candidate.rank)
            return (1, 0.0, self.candidate.rank)
        authoritative, priority = self.candidate.standing
        if self.section == ROLE or self.candidate.layer in AS_GIVEN:
            return (authoritative, priority, self.candidate.rank)
        return (authoritative, *self.order)

    @property
    def is_result(self) -> bool:
        """Whether it is what a tool gave."""
        message = self.candidate.message
        return message.role in TOOL_ROLES if message is not None else self.candidate.packet.type == TYPE_RESULT

    def reopen(self) -> None:
        """Take back that it was dropped, with what was said of it."""
        self.reason, self.detail = "", ""
        self.set_relevance(self.relevance, self.windows, self.passes)

    def drop(self, reason: str, detail: str = "") -> None:
        """Set the fate: dropped."""
        self.action, self.reason = "dropped", reason
        self.detail = f"{self.detail}; {detail}" if self.detail and detail else self.detail or detail

    def keep(self, piece: Piece, action: str = "full", reason: str = "") -> None:
        """Set the fate: kept."""
        self.piece, self.action, self.reason = piece, action, reason

    def decision(self, shares: dict[int, int]) -> Decision:
        """Return the record of this fate; `shares` are the tokens of each kept piece."""
        kept = self.piece is not None
        return Decision(
            packet=self.candidate.packet,
            source=self.candidate.source,
            section=self.section,
            relevance=self.relevance,
            recency=self.recency,
            score=self.score,
            tokens=shares.get(id(self.piece), 0) if kept else 0,
            kept=kept,
            action=self.action,
            reason=self.reason,
            detail=self.detail,
            rendered=self.piece.text[:-1] if self.piece is not None else "",
        )
