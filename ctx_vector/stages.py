"""The contracts between the stages: what a replacement for any part has to offer.

All of them are `typing.Protocol`s with as few methods as possible; any object that has the methods
plugs in, without importing or subclassing anything from here.

The data flow of one build::

    Request -> Source.load -> candidates -> Scorer.score -> Policy -> Formatter/Template -> text
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ctx_vector.packets import ContextPacket

    Vectors = NDArray[np.float32]


@runtime_checkable
class Encoder(Protocol):
    """Turns texts into unit vectors.

    `fingerprint` changes whenever the same text could get another vector; `dim` is the length of a
    vector, `max_tokens` the most tokens of one text that the model looks at. `name` is what a person
    calls the model, and picks the calibration. `encode_tokens(texts, kind)` (optional; kind `query` or `passage`)
    returns the vectors (tokens, dim) float32, unit rows, of the tokens of each text, for late interaction (late.py).
    """

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def dim(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Return (n, dim) float32, unit rows, for texts that ask."""
        ...

    def encode_documents(self, texts: Sequence[str]) -> Vectors:
        """Return (n, dim) float32, unit rows, for texts that answer."""
        ...

    def count_tokens(self, texts: Sequence[str]) -> Sequence[int]:
        """Return the number of model tokens of each text with its document prompt, without truncation."""
        ...


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked: the text and, for scorers that use vectors, its unit vector (dim,) float32."""

    text: str
    vector: Vectors | None = None


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a scorer may look at, so that it never looks anything up again.

    `texts[i]` is what row i says; `vectors` is (n, dim) float32 with unit rows, when the scorer asked for
    them by `uses_vectors = True`. `packets` are the packets the rows come from (one packet may have several
    rows when its text is longer than the encoder's limit).
    """

    texts: Sequence[str]
    packets: Sequence[ContextPacket] = ()
    vectors: Vectors | None = None


@runtime_checkable
class Scorer(Protocol):
    """Relevance of candidates to a query.

    `uses_vectors` (optional, default False) asks for vectors in the query and the candidates. `alike(texts, vectors)`
    (optional) returns how alike texts are, (n, n) float64, near 0 for those that have nothing in common, or None; with
    it a newer statement can stand above an older one that says the same (newer.py).
    """

    def score(self, query: Query, candidates: Candidates) -> NDArray[np.float64]:
        """Return (n,) float64 in [0, 1]; all zeros for a blank query."""
        ...


@dataclass(frozen=True, slots=True)
class Retrieval:
    """How a source that searches for itself is to search: what the config of a build says about relevance.

    `strategy` is a name or an object with `score`. Of passages much alike `alike_limit` count to what is asked for
    (None: all); with `mmr_lambda` what is returned is chosen for variety. `second` is a second pass over what is found
    first (rerank.SecondPass), or None.
    """

    strategy: Any = "cosine"
    alike_limit: int | None = None
    mmr_lambda: float | None = None
    second: Any = None


@dataclass(frozen=True, slots=True)
class Request:
    """What a source is asked for. `now` is aware UTC; `score_threshold` is a calibrated relevance; `how` is for sources
    that search an index of their own.
    """

    user_query: str
    now: datetime
    session_id: str | None = None
    top_k: int = 5
    score_threshold: float = 0.0
    user_id: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    how: Retrieval = Retrieval()


@runtime_checkable
class Source(Protocol):
    """Where candidates come from.

    `load` returns packets, dicts (content or text, and optionally score, timestamp, id, metadata), strings, or
    one string. An exception is recorded as a fault of this source and never stops a build.
    """

    def load(self, request: Request) -> Sequence[ContextPacket | Mapping[str, Any] | str] | str: ...


@runtime_checkable
class TokenCounter(Protocol):
    """Exact token counts of one tokenizer.

    `additive` says that ``count(a + b) == count(a) + count(b)`` whenever `a` ends in a line feed and `b` has no
    line break in its leading white space.
    """

    @property
    def name(self) -> str: ...
    @property
    def additive(self) -> bool: ...

    def count(self, text: str) -> int: ...
    def count_batch(self, texts: Sequence[str]) -> list[int]: ...
    def count_messages(self, messages: Sequence[Mapping[str, Any]]) -> int: ...
    def truncate(self, text: str, max_tokens: int) -> str: ...


@runtime_checkable
class VectorIndex(Protocol):
    """Nearest rows by inner product. Ids are int64 row ids that are never reused."""

    def search(
        self, vector: Vectors, k: int, allowed: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], Vectors]:
        """Return the ids (n,) and inner products (n,) float32 of at most k rows, best first, without empty slots.

        `vector` is (dim,) float32; of `allowed` ids, which ascend, only those count.
        """
        ...


Summarizer = Callable[[str, int], str]
