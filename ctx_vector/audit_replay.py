"""A recorded build made again: from its own trace, or from what its sources hold now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ctx_vector.audit_compare import BuildDiff, diff, differences
from ctx_vector.audit_decode import BuildRecord, restored_counter
from ctx_vector.built import BuiltContext
from ctx_vector.errors import CtxVectorError
from ctx_vector.tokens import tokenizer_fingerprint

if TYPE_CHECKING:
    from ctx_vector.builder import ContextBuilder
    from ctx_vector.stages import TokenCounter


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """A recorded build made again: `built` is the repeat, `equal` whether every byte and number is the same.

    `differences` name where not, the text first. `missing` names what was purged: then there is no repeat. With
    ``live``, `built` was gathered anew and `change` says what is different since.
    """

    id: str
    equal: bool
    differences: tuple[str, ...]
    redacted: bool
    missing: tuple[str, ...]
    built: BuiltContext | None
    change: BuildDiff | None = None

    def __str__(self) -> str:
        texts = ", of the texts as they were redacted" if self.redacted else ""
        if self.missing:
            return f"cannot be made again: purged since: {'; '.join(self.missing)}"
        if self.equal:
            return f"equal{texts}"
        if self.change is not None:
            return "\n".join(self.change.lines())
        more = len(self.differences) - 1
        return f"differs{texts}: {self.differences[0]}" + (f" (and {more} more)" if more else "")

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values with stable keys."""
        return {
            "id": self.id,
            "equal": self.equal,
            "summary": str(self),
            "differences": list(self.differences),
            "redacted": self.redacted,
            "missing": list(self.missing),
            "text": self.built.text if self.built is not None else None,
            "change": self.change.to_dict() if self.change is not None else None,
        }


def repeated(record: BuildRecord, counter: TokenCounter | None = None) -> Replay:
    """Make a build again from what was recorded, and compare byte by byte; `counter` replaces its tokenizer."""
    from ctx_vector.replay import rebuild

    if record.purged:
        return Replay(record.id, False, (), record.redacted, record.purged, None)
    trace = record.built.trace
    counter = counter or restored_counter(trace.facts)
    try:
        built = rebuild(trace, counter)
    except CtxVectorError as error:  # only of another version, or of redacted texts
        return Replay(record.id, False, (f"it fails now: {error}",), record.redacted, (), None)
    found = differences(record.built, built, redacted=record.redacted)
    if found:
        found += _reasons(record, counter)
    return Replay(record.id, not found, tuple(found), record.redacted, (), built)


def regathered(record: BuildRecord, builder: ContextBuilder) -> Replay:
    """Ask the sources of a builder anew, with its config; the conversation and what the caller gave are as recorded."""
    if record.purged:
        return Replay(record.id, False, (), record.redacted, record.purged, None)
    built = builder.regather(record.built.trace)
    change = diff(record.built, built)
    return Replay(record.id, not change, tuple(change.lines()), record.redacted, (), built, change)


def _reasons(record: BuildRecord, counter: TokenCounter) -> list[str]:
    """Return why a repeat may differ: redacted texts, another version, another tokenizer."""
    from ctx_vector import __version__

    reasons = []
    if record.redacted:
        reasons.append("the texts were redacted before they were stored: their sizes are not those of the originals")
    if record.built.meta["version"] != __version__:
        reasons.append(f"recorded by version {record.built.meta['version']}, repeated by {__version__}")
    if tokenizer_fingerprint(counter) != record.built.meta["tokenizer_fingerprint"]:
        reasons.append(f"the tokenizer {counter.name} counts differently now")
    return reasons
