"""A passage found, and the rows it is made of."""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ctx_vector import catalog

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ctx_vector.rerank import SecondPass


_PAGE: Final = re.compile(r"page (\d+)")  # the place that the loader of PDFs opens for each page


def citation(source: str, first_line: int, last_line: int, heading: Sequence[str] = ()) -> str:
    """Return where a passage stands, for people to look it up: the lines, or of a PDF the page when it lies within one.

    Lines of a PDF are those of its extracted text, which no reader of the file sees.

    >>> citation("docs/vpn.md", 3, 9, ["VPN"]), citation("docs/warranty.pdf", 3, 9, ["page 2"])
    ('docs/vpn.md:3-9', 'docs/warranty.pdf:p2')
    """
    page = _PAGE.fullmatch(heading[-1]) if heading and source.lower().endswith(".pdf") else None
    return f"{source}:p{page[1]}" if page else f"{source}:{first_line}-{last_line}"


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage found. `score` is calibrated relevance in [0, 1], `cosine` the raw one, in [-1, 1].

    Lines are 1-based and inclusive; characters are offsets into the document's text. `timestamp` is the date that the
    document states about itself (aware UTC), or None. `vector` is (dim,) float32, a unit vector. `passes` are the
    relevances by the first and the second pass, of which the score was made, where there was a second one.
    """

    id: int
    content: str
    score: float
    cosine: float
    source: str
    start_line: int
    end_line: int
    start_char: int
    end_char: int
    heading: tuple[str, ...]
    timestamp: datetime | None
    metadata: Mapping[str, Any]
    vector: NDArray[np.float32] = field(repr=False, compare=False)
    passes: tuple[float, float] | None = None

    @property
    def cite(self) -> str:
        """The citation, ``source:first line-last line``, or ``source:p3`` for what is on one page of a PDF."""
        return citation(self.source, self.start_line, self.end_line, self.heading)

    def to_dict(self) -> dict[str, Any]:
        """Return what `ctx-vector search --json` prints of a hit; `passes` only after a second pass."""
        again = {} if self.passes is None else {"passes": list(self.passes)}
        return {
            "id": self.id,
            "content": self.content,
            "score": self.score,
            "cosine": self.cosine,
            "source": self.source,
            "start_line": self.start_line,
            "end_line": self.end_line,
            "heading": list(self.heading),
            "timestamp": self.timestamp.isoformat() if self.timestamp else None,
            **again,
        }


#: Rows of chunks that are kept in memory, some 2 MB.
MOST_KNOWN: Final = 1_000
_ROWS: Final = (
    "SELECT c.id, c.text, d.source, c.start_line, c.end_line, c.start_char, c.end_char, c.heading, d.timestamp, "
    "d.metadata FROM json_each(?) j CROSS JOIN chunks c ON c.id = j.value "
    "CROSS JOIN documents d ON d.id = c.document_id"
)


@dataclass(frozen=True, slots=True)
class HitRow:
    """What a hit says of a chunk, whoever finds it. `metadata` is JSON: every hit gets a mapping of its own."""

    id: int
    text: str
    source: str
    lines: tuple[int, int]
    span: tuple[int, int]
    heading: tuple[str, ...]
    timestamp: datetime | None
    metadata: str


def hit_rows(conn: sqlite3.Connection, ids: Sequence[int], known: dict[int, HitRow]) -> dict[int, HitRow]:
    """Return the rows of chunks, by id, as `known` has them; what it has not is read, and put there.

    A chunk never changes and its id is never given again, so `known` holds as long as the chunks are there. It is
    emptied when it is full.
    """
    found = {id_: known[id_] for id_ in ids if id_ in known}
    missing = [id_ for id_ in ids if id_ not in found]
    if missing:
        read = {row[0]: _hit_row(row) for row in conn.execute(_ROWS, (json.dumps(missing),))}
        if len(known) + len(read) > MOST_KNOWN:
            known.clear()
        if len(read) <= MOST_KNOWN:
            known.update(read)
        found |= read
    return found


def _hit_row(row: tuple[Any, ...]) -> HitRow:
    id_, text, source, first_line, last_line, start, end, heading, timestamp, metadata = row
    lines, span = (first_line, last_line), (start, end)
    return HitRow(id_, text, source, lines, span, tuple(json.loads(heading)), catalog.moment(timestamp), metadata)


def make_hit(row: HitRow, score: float, cosine: float, vector: NDArray[np.float32]) -> Hit:
    """Make a hit of a row of `hit_rows`: `score` in [0, 1], the raw `cosine`, its unit `vector` (dim,)."""
    return Hit(
        row.id,
        row.text,
        score,
        max(-1.0, min(1.0, cosine)),
        row.source,
        *row.lines,
        *row.span,
        row.heading,
        row.timestamp,
        json.loads(row.metadata),
        vector,
    )


def embedded_texts(conn: sqlite3.Connection, ids: Sequence[int]) -> list[str]:
    """Return what was encoded for each chunk: its text below its headings."""
    rows = conn.execute(
        "SELECT id, text, embedded FROM chunks WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(list(ids)),)
    )
    found = {id_: catalog.unpack_embedded(text, packed) for id_, text, packed in rows}
    return [found[id_] for id_ in ids]


def looked_again(hits: Sequence[Hit], query: str, texts: Sequence[str], second: SecondPass) -> list[Hit]:
    """Return hits, which are ranked, as a second pass ranks them; `texts` are those of the first, which it looks at."""
    first = [hit.score for hit in hits]
    found = [
        replace(hit, score=score, passes=passes)
        for hit, (score, passes) in zip(hits, second.again(query, first, texts), strict=True)
    ]
    return sorted(found, key=rank)


def rank(hit: Hit) -> tuple[float, float, int]:
    """Return the key that sorts hits: best first, then newer first (undated last), then by id."""
    return -hit.score, -hit.timestamp.timestamp() if hit.timestamp else math.inf, hit.id
