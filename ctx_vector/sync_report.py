"""What a run of `KnowledgeBase.sync` tells: how far it is, and what it did."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctx_vector.encoding_cache import EncodingCache

log = logging.getLogger("ctx_vector.knowledge")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `bytes_done` of `bytes_total` of changed files are read; `encoded` counts passages. `stopping`:
    the run was interrupted, and ends with the passages at hand.
    """

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    encoded: int
    source: str
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What a run did. Lists hold sources; `failed` and `skipped` map a source or path to the reason.
    `garbled` are those added or updated whose bytes are in no encoding that can be told: U+FFFD stands in their text.

    `version` is the active version afterwards, `chunks` the number of its chunks, `encoded` the texts that went
    through the encoder, `seconds` the whole time and `encoder_seconds` the encoder's share of it. For a dry run
    `version` is the present one, `chunks` and `encoded` are what the run would give, `seconds` the estimated time.
    """

    version: int
    added: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    garbled: tuple[str, ...] = ()
    chunks: int = 0
    encoded: int = 0
    seconds: float = 0.0
    encoder_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return what `ctx-vector index --json` prints: counts, not lists."""
        names = ("added", "updated", "removed", "unchanged", "failed")
        return {
            "version": self.version,
            "documents": {name: len(getattr(self, name)) for name in names},
            "chunks": self.chunks,
            "encoded": self.encoded,
            "seconds": round(self.seconds, 3),
        }


def skip_kind(reason: str) -> str:
    """Return a reason for which a file was skipped without what is different for each file.

    >>> skip_kind("25.1 MB, over the limit of 20.0 MB"), skip_kind("symbolic link to a.md, which is read itself")
    ('over the limit of 20.0 MB', 'symbolic link')
    """
    if reason.startswith("symbolic link"):
        return reason.split(" to ")[0]
    return re.sub(r"^[\d.]+ MB, over", "over", reason)


def finished(report: SyncReport, began: float, cache: EncodingCache) -> SyncReport:
    """Return the report with what the run cost, and log it."""
    report = replace(report, encoded=cache.encoded, encoder_seconds=cache.seconds, seconds=time.perf_counter() - began)
    log.info(
        "version %d: documents +%d ~%d -%d =%d, %d failed; %d chunks, %d encoded in %.1f s",
        report.version, len(report.added), len(report.updated), len(report.removed), len(report.unchanged),
        len(report.failed), report.chunks, report.encoded, report.seconds,
    )  # fmt: skip
    return report
