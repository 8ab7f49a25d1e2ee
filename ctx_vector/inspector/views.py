"""What the pages show of a build, as plain data. Knows no HTTP and no HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.packets import BuiltContext, Decision

if TYPE_CHECKING:
    from ctx_vector.audit_decode import BuildRecord

#: Characters of a candidate in a table, and of a piece of a context before it is folded.
PREVIEW: Final = 160
FOLDED: Final = 20_000
#: Width of a bar in its own units.
WIDTH: Final = 1000
_CLASSES: Final = {
    "Role & Policies": "role", "Task": "task", "State": "state", "Evidence": "evidence", "Context": "context",
    "Output": "output",
}  # fmt: skip


def section_class(section: str) -> str:
    """Return the name that colours a section; extra sections share one."""
    return _CLASSES.get(section, "extra")


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a bar: `start` and `width` in units of WIDTH, tokens, and what colours it."""

    label: str
    tokens: int
    start: float
    width: float
    kind: str


def bar(parts: Sequence[tuple[str, int, str]], limit: int, free: str) -> list[Slice]:
    """Return a bar of (label, tokens, kind) parts over `limit` tokens, with what is free at its end."""
    used = sum(tokens for _, tokens, _ in parts)
    whole = max(limit, used, 1)
    slices, start = [], 0.0
    for label, tokens, kind in [*parts, (free, max(0, limit - used), "free")]:
        width = tokens * WIDTH / whole
        if tokens:
            slices.append(Slice(label, tokens, round(start, 2), round(width, 2), kind))
        start += width
    return slices


def sections_of(built: BuiltContext) -> list[dict[str, Any]]:
    """Return each section with its pieces: name, kind, tokens, and (text, tokens, folded characters) of each."""
    found: list[dict[str, Any]] = []
    for section, tokens, text in built.rows:
        if not found or found[-1]["name"] != section:
            found.append({"name": section, "kind": section_class(section), "tokens": 0, "pieces": []})
        found[-1]["tokens"] += tokens
        shown = text if len(text) <= FOLDED + 2_000 else text[:FOLDED]
        found[-1]["pieces"].append(
            {"text": shown, "rest": text[len(shown) :], "more": len(text) - len(shown), "tokens": tokens}
        )
    return found


def bars(built: BuiltContext, free: str) -> dict[str, list[Slice]]:
    """Return the bars of tokens by section and by source."""
    sections = [(item["name"], item["tokens"], item["kind"]) for item in sections_of(built)]
    sources = [
        (name, use.tokens, f"n{number % 8}")
        for number, (name, use) in enumerate(sorted(built.sources.items(), key=lambda item: -item[1].tokens))
    ]
    limit = built.budget.total_limit
    return {"sections": bar(sections, limit, free), "sources": bar(sources, limit, free)}


def candidates_of(built: BuiltContext) -> list[dict[str, Any]]:
    """Return a row for every candidate, the kept ones first in order of choice; `number` finds it again."""
    return [_row(number, item) for number, item in enumerate((*built.kept, *built.dropped))]


def _row(number: int, item: Decision) -> dict[str, Any]:
    text = item.packet.content or item.detail
    return {
        "number": number,
        "kept": item.kept,
        "section": item.section,
        "kind": section_class(item.section),
        "source": item.source,
        "relevance": item.relevance,
        "recency": item.recency,
        "score": item.score,
        "tokens": item.tokens,
        "fate": item.action if item.kept else item.reason,
        "why": item.detail,
        "cite": str(item.packet.meta.get("cite", "")),
        "text": " ".join(text[: PREVIEW * 2].split())[:PREVIEW],
    }


def candidate_of(built: BuiltContext, number: int) -> tuple[dict[str, Any], Decision] | None:
    """Return one candidate whole, None when there is no such number."""
    items = (*built.kept, *built.dropped)
    if not 0 <= number < len(items):
        return None
    return _row(number, items[number]), items[number]


def head_of(record: BuildRecord) -> dict[str, Any]:
    """Return what stands above a build: its meta and its budget."""
    built = record.built
    return {
        "id": record.id,
        "created": record.created_at.isoformat(timespec="seconds"),
        "session": record.session_id,
        "query": built.query,
        "used": built.budget.total_used,
        "limit": built.budget.total_limit,
        "warnings": list(built.warnings),
        "purged": list(record.purged),
        "meta": {name: value for name, value in built.meta.items() if name not in ("stages_ms", "history")},
        "stages": built.meta.get("stages_ms") or {},
        "config": _plain(record.config),
        "tools": built.tools,
    }


def _plain(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in config.items()]


@dataclass(frozen=True, slots=True)
class Sliders:
    """What a reader may change of a build, as they were or as they are set."""

    max_tokens: int
    relevance_weight: float
    min_relevance: float
    fill: str
    most: int

    @classmethod
    def of(cls, record: BuildRecord, given: Mapping[str, str]) -> Sliders:
        """Return the sliders of a build as set by a request; what is no number or out of range stays as it was."""
        config = record.built.trace.config
        most = max(4 * config.max_tokens, 2 * record.built.budget.total_used, 1000)
        fill = given.get("fill", config.fill)
        return cls(
            int(_number(given.get("max_tokens"), config.max_tokens, 1, most)),
            round(_number(given.get("relevance_weight"), config.relevance_weight, 0, 1), 4),
            round(_number(given.get("min_relevance"), config.min_relevance, 0, 1), 4),
            fill if fill in ("skip", "stop") else config.fill,
            most,
        )

    def changes(self, record: BuildRecord) -> dict[str, Any]:
        """Return the fields of the config that are not as they were."""
        config = record.built.trace.config
        wanted: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "relevance_weight": self.relevance_weight,
            "min_relevance": self.min_relevance,
            "fill": self.fill,
        }
        found = {name: value for name, value in wanted.items() if value != getattr(config, name)}
        if "relevance_weight" in found:
            found["recency_weight"] = round(1 - self.relevance_weight, 4)
        return found


def _number(text: str | None, default: float, low: float, high: float) -> float:
    try:
        value = float(text) if text is not None else default
    except ValueError:
        return default
    return value if low <= value <= high else default
