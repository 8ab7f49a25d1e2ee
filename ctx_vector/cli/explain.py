"""`build --explain`: what became of every candidate, as tables that a person can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.cli.common import count, out
from ctx_vector.cli.tables import WIDTH, show_table
from ctx_vector.cli.text import BOLD, DIM, YELLOW, columns, plain, style

if TYPE_CHECKING:
    from ctx_vector.built import BuiltContext

_NUMBERS: Final = ("relevance", "recency", "score")
_NARROW: Final = 110
_SHORT: Final = ("rel.", "rec.", "score")  # on a narrow terminal
_STYLES: Final = {"full": "green", "truncated": "yellow", "extracted": "yellow", "summarised": "yellow"}


def show_explanation(built: BuiltContext) -> None:
    """Print the kept candidates, then the dropped ones with what they would have taken and why they went, then the
    budget and the warnings.
    """
    from ctx_vector.naming import details
    from ctx_vector.sizes import sizes

    tell = details(built)
    rows = [
        row | {"detail": tell(item), "preview": row["preview"] or " ".join(item.rendered[:160].split())[:80]}
        for row, item in zip(built.explain(), (*built.kept, *built.dropped), strict=True)
    ]
    kept = [row for row in rows if row["kept"]]
    dropped = [row for row in rows if not row["kept"]]
    numbers = [f">{name}" for name in (_SHORT if columns(WIDTH) < _NARROW else _NUMBERS)]
    out(style("─" * min(columns(WIDTH), WIDTH), DIM))
    out(style(f"Kept: {count(len(kept), 'item')}", BOLD))
    if kept:
        show_table(
            ["section", "what", *numbers, ">tokens", "action"],
            [[row["section"], _what(row), *_numbers(row), f"{row['tokens']:,}", _action(row)] for row in kept],
            styles=_STYLES,
            stretch="what",
        )
    out()
    out(style(f"Dropped: {count(len(dropped), 'item')}", BOLD))
    if dropped:
        size_of = sizes(built)
        taken = ["" if (size := size_of(item)) is None else f"{size:,}" for item in built.dropped]
        show_table(
            ["section", "what", *numbers, ">tokens", "reason"],
            [
                [row["section"], _what(row), *_numbers(row), size, row["reason"]]
                for row, size in zip(dropped, taken, strict=True)
            ],
            stretch="what",
        )
    out()
    _show_budget(built)


def _what(row: Mapping[str, Any]) -> str:
    """Return two lines: where it comes from, and how it begins (or why it failed), and what is to say of it."""
    lines = [plain(str(row["cites"] or row["source"]))]
    if row["preview"]:
        lines.append(plain(row["preview"]))
    if row["detail"]:
        lines.append(f"→ {plain(row['detail'])}")
    return "\n".join(lines)


def _numbers(row: Mapping[str, Any]) -> list[str]:
    if not row["section"]:  # a source that failed
        return ["", "", ""]
    return [f"{row[name]:.2f}" for name in _NUMBERS]


def _action(row: Mapping[str, Any]) -> str:
    return f"{row['action']}\n({row['reason']})" if row["reason"] else str(row["action"])


def _show_budget(built: BuiltContext) -> None:
    budget = built.budget
    share = budget.total_used / budget.total_limit
    out(f"{style('Budget:', BOLD)} {budget.total_used:,} of {budget.total_limit:,} tokens ({share:.0%})")
    out(f"  as text {budget.text_tokens:,}, as messages {budget.message_tokens:,}")
    out(f"  all but system instructions, Task and Output may use {budget.shared_limit:,}")
    for name, use in budget.sources.items():
        parts = [f"{use.tokens:,} tokens", f"{use.kept} kept"]
        if use.truncated:
            parts.append(f"{use.truncated} shortened")
        if use.dropped_items:
            parts.append(f"{use.dropped_items} dropped")
        if use.fault:
            parts.append(f"failed: {' '.join(plain(use.fault).split())}")
        out(f"  {name:<10} {', '.join(parts)}")
    for warning in built.warnings:
        out(f"{style('Warning:', YELLOW)} {' '.join(plain(warning).split())}")
