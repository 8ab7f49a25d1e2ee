"""What the pages show of a build, as plain data. Knows no HTTP; of HTML, only how to escape.

sections_of     the text of a context, whole: what stands between pieces, and the pieces with their candidates
bars            where its tokens went
candidates_of   a row for every candidate, or for the first of them
changes_of      a BuildDiff in groups
Sliders         what a reader may change of a build
visible         a text as safe HTML in which nothing hides
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from ctx_vector.built import BuiltContext, Decision
from ctx_vector.naming import details

if TYPE_CHECKING:
    from ctx_vector.audit_compare import BuildDiff
    from ctx_vector.audit_decode import BuildRecord

Size = Callable[[Decision], int | None]

#: Characters of a candidate in a table, and of a piece of a context before it is folded.
PREVIEW: Final = 160
FOLDED: Final = 20_000
#: Pieces of a section, rows of kept and of dropped candidates, and changes of a kind, before the rest is folded.
PIECES: Final = 150
ROWS: Final = 150
CHANGES: Final = 100
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
    """Return a bar of (label, tokens, kind) parts over `limit` tokens, with what is free at its end.

    The tokens of all add up to the limit, or to what is used if that is more. A part may be negative, where a count of
    the whole is less than those of its parts: then it has no width.
    """
    used = sum(tokens for _, tokens, _ in parts)
    whole = max(limit, used, 1)
    slices, start = [], 0.0
    for label, tokens, kind in [*parts, (free, max(0, limit - used), "free")]:
        width = max(0, tokens) * WIDTH / whole
        if tokens:
            slices.append(Slice(label, tokens, round(start, 2), round(width, 2), kind))
        start += width
    return slices


def sections_of(built: BuiltContext) -> list[dict[str, Any]]:
    """Return each section with its pieces: name, kind, tokens, pieces, and `rest`, the text of further ones.

    A piece has `gap` (what stands before it), `text` and `rest` (what is folded of it), tokens, and the `item` it was
    made of as (number, score) or None. All gaps, texts and rests one after another are the text of the context.
    """
    numbers = {item.rendered.strip(): (number, item.score) for number, item in enumerate(built.kept) if item.rendered}
    found: list[dict[str, Any]] = []
    rests: list[list[str]] = []
    at = 0
    for section, tokens, text in built.rows:
        if not section:  # what joins cost with a tokenizer whose counts do not add; it is no text
            continue
        place = built.text.find(text, at)
        gap, at = (built.text[at:place], place + len(text)) if place >= 0 else ("", at)
        if not found or found[-1]["name"] != section:
            kind = section_class(section)
            found.append({"name": section, "kind": kind, "tokens": 0, "pieces": [], "rest": "", "more": 0})
            rests.append([])
        group = found[-1]
        group["tokens"] += tokens
        if len(group["pieces"]) >= PIECES:
            rests[-1] += (gap, text)
            group["more"] += 1
            continue
        shown = text if len(text) <= FOLDED + 2_000 else text[:FOLDED]
        group["pieces"].append({
            "gap": gap, "text": shown, "rest": text[len(shown) :], "tokens": tokens, "item": numbers.get(text.strip()),
        })  # fmt: skip
    for group, texts in zip(found, rests, strict=True):
        group["rest"] = "".join(texts)
    return found


def bars(
    built: BuiltContext, sections: Sequence[Mapping[str, Any]], words: Mapping[str, str]
) -> dict[str, list[Slice]]:
    """Return the bars of tokens by section and by source; a source has the colour of the section it is mostly in.

    Both add up to what is used, which is the larger of text and messages: what messages take beyond the text is a part
    of its own, and so are tool definitions sent beside both, and what belongs to no source.
    """
    budget = built.budget
    beside = budget.total_used - max(budget.text_tokens, budget.message_tokens)
    by_section = [(section_name(item["name"], words), item["tokens"], item["kind"]) for item in sections]
    in_text = sum(tokens for _, tokens, _ in by_section)
    by_section += [
        (words["beside"], beside, "extra"),
        (words["framing"], budget.total_used - beside - in_text, "framing"),
    ]
    within: dict[str, Counter[str]] = {}
    for item in built.kept:
        within.setdefault(item.source, Counter())[section_class(item.section)] += item.tokens
    sources, seen = [], Counter[str]()
    for name, use in sorted(built.sources.items(), key=lambda item: -item[1].tokens):
        kind = within[name].most_common(1)[0][0] if name in within else "extra"
        sources.append((source_name(name, words), use.tokens, f"{kind} shade-{min(seen[kind], 3)}"))
        seen[kind] += use.tokens > 0
    apart = sum(item.tokens for item in built.kept if not item.rendered)  # images, and tools that go through the API
    fixed = in_text + apart - sum(tokens for _, tokens, _ in sources)
    framing = budget.total_used - in_text - apart
    sources += [(words["fixed"], fixed, "output"), (words["framing"], framing, "framing")]
    limit, free = budget.total_limit, words["free"]
    return {"sections": bar(by_section, limit, free), "sources": bar(sources, limit, free)}


def section_name(section: str, words: Mapping[str, str]) -> str:
    """Return a section in the language of the page; what callers have named keeps its name."""
    return words.get(f"part_{_CLASSES[section]}", section) if section in _CLASSES else section


def source_name(source: str, words: Mapping[str, str]) -> str:
    """Return a source in the language of the page; those that callers have named keep their names."""
    return words.get(f"source_{source}", source)


def candidates_of(built: BuiltContext, size_of: Size, *, whole: bool) -> list[dict[str, Any]]:
    """Return a row for each candidate, the kept ones first in order of choice; `number` finds it again.

    Unless `whole`, the first ROWS of the kept and of the dropped ones. `size_of` tells the tokens that an item has
    taken, or would have taken (sizes.py).
    """
    most = None if whole else ROWS
    tell = details(built)
    kept = [_row(number, item, size_of, tell) for number, item in enumerate(built.kept[:most])]
    dropped = enumerate(built.dropped[:most], len(built.kept))
    return kept + [_row(number, item, size_of, tell) for number, item in dropped]


def _row(number: int, item: Decision, size_of: Size, tell: Callable[[Decision], str]) -> dict[str, Any]:
    text = item.packet.content or item.rendered or item.detail
    return {
        "number": number,
        "kept": item.kept,
        "section": item.section,
        "kind": section_class(item.section),
        "source": item.source,
        "relevance": item.relevance,
        "recency": item.recency,
        "score": item.score,
        "tokens": size_of(item),
        "fate": item.action if item.kept else item.reason,
        "why": tell(item),
        "cite": str(item.packet.meta.get("cite", "")),
        "text": preview(text),
    }


def candidate_of(built: BuiltContext, number: int, size_of: Size) -> tuple[dict[str, Any], Decision] | None:
    """Return one candidate whole, None when there is no such number."""
    items = (*built.kept, *built.dropped)
    if not 0 <= number < len(items):
        return None
    return _row(number, items[number], size_of, details(built)), items[number]


def preview(text: str) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(text[: PREVIEW * 2].split())
    return line if len(line) <= PREVIEW and len(text) <= PREVIEW * 2 else line[:PREVIEW].rstrip() + "…"


def changes_of(change: BuildDiff) -> dict[str, Any]:
    """Return what is different: `facts`, and `groups` of (what, count, the first changes, how many more)."""
    groups = []
    for what, count in change.counts.items():
        same = [item for item in change.changes if item.what == what]
        groups.append((what, count, same[:CHANGES], max(0, count - CHANGES)))
    return {"facts": [(name, preview(_plain(a)), preview(_plain(b))) for name, a, b in change.facts], "groups": groups}


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


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
        "config": [(name, _plain(value)) for name, value in record.config.items()],
        "tools": built.tools,
    }


def messages_of(built: BuiltContext) -> list[dict[str, Any]]:
    """Return role, text and `rest` (what is folded) of each message."""
    found = []
    for message in built.messages:
        content = message.get("content")
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=1)
        found.append({"role": message["role"], "text": text[:FOLDED], "rest": text[FOLDED:]})
    return found


#: What the sliders are called in a request.
SLIDERS: Final = ("max_tokens", "relevance_weight", "min_relevance", "fill")


@dataclass(frozen=True, slots=True)
class Sliders:
    """What a reader may change of a build, as they were or as they are set."""

    max_tokens: int
    relevance_weight: float
    min_relevance: float
    fill: str
    most: int
    was: int

    @property
    def least(self) -> int:
        """The lowest budget of the slider, from which steps of 10 meet the budget as it was."""
        return min(self.was, 50 + (self.was - 50) % 10)

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
            config.max_tokens,
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


# -- what hides in a text ---------------------------------------------------------------------------------------------

_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def plain(text: object) -> str:
    """Return a text for a title or a label, where there is no markup, with hidden characters by their number."""
    return _HIDDEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", str(text))


def visible(text: object) -> Markup:
    """Return a text as HTML that shows it and nothing else: markup is escaped, and characters that cannot be seen, or
    that turn around what is, stand there by their number. Joiners of emoji and of scripts that need them stay.

    >>> str(visible("a<b\u202e"))
    'a&lt;b<span class="hidden-char">U+202E</span>'
    """
    safe = escape(text)
    if _HIDDEN.search(safe) is None:
        return safe
    return Markup(_HIDDEN.sub(lambda found: f'<span class="hidden-char">U+{ord(found[0]):04X}</span>', safe))
