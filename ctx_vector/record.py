"""The record of a build: what became of every candidate, the budget, the statistics, the warnings.

Explain, debug, audit, inspector and A/B are views of what is made here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.built import Budget, BuiltContext, Decision, SourceUse
from ctx_vector.filling import Filled, Rendered
from ctx_vector.gather import Gathered
from ctx_vector.layout import CONTEXT, EVIDENCE, ROLE
from ctx_vector.packets import Candidate, ContextPacket
from ctx_vector.prefix import prefix_hash, volatile
from ctx_vector.ranked import Ranked

if TYPE_CHECKING:
    from ctx_vector.allocation import Allocation
    from ctx_vector.trace import Trace

_log = logging.getLogger("ctx_vector.builder")

#: Over this share of the model's window a build warns.
WINDOW_SHARE: Final = 0.7


def make_record(
    trace: Trace,
    ranked: Sequence[Ranked],
    left_out: Sequence[Decision],
    filled: Filled,
    rendered: Rendered,
    meta: Mapping[str, Any],
) -> BuiltContext:
    """Return the BuiltContext of a finished layout, `rendered` and proven to fit; `meta` is its meta but for the hash
    of the prefix. `ranked` are all candidates with their fates, `left_out` the messages of the history that were not
    chosen.
    """
    layout = filled.layout
    shares = layout.shares()
    kept = tuple(row.decision(shares) for row in filled.chosen)
    dropped = tuple(_dropped(ranked, trace.gathered, left_out))
    rows = layout.rows()
    joins = rendered.text_tokens - sum(tokens for _, tokens, _ in rows)
    if joins:  # only with tokenizers whose counts do not add
        rows.append(("", joins, "(joins)"))
    used = rendered.larger + layout.size().apart
    bodies = layout.bodies()
    prefix = bodies.get(ROLE, "")
    return BuiltContext(
        text=rendered.text,
        messages=rendered.messages,
        sections=bodies,
        kept=kept,
        dropped=dropped,
        budget=Budget(
            trace.config.max_tokens,
            used,
            rendered.text_tokens,
            rendered.message_tokens,
            trace.config.shared_limit,
            _uses(trace, kept, dropped, filled.allocation),
        ),
        stats={
            "gathered": len(trace.gathered.candidates) + len(left_out),
            **_stats(trace, kept, dropped, used, filled),
        },
        meta={**meta, "prefix_hash": prefix_hash(prefix)},
        warnings=(*filled.warnings, *_warnings(trace, kept, used, prefix)),
        tools=_tools(filled),
        rows=tuple(rows),
        query=trace.query,
        trace=trace,
    )


def _warnings(trace: Trace, kept: Sequence[Decision], used: int, prefix: str) -> Iterator[str]:
    """Yield what a person should hear of a finished context of `used` tokens that begins with `prefix`."""
    yield from (f"source {fault.source}: {fault.detail}" for fault in trace.gathered.faults)
    if any(item.action != "full" and item.section == EVIDENCE for item in kept):
        yield "evidence was cut to fit the budget"
    window = trace.model_max_tokens
    if window and used > WINDOW_SHARE * window:
        yield f"the context takes {used} of the model's {window} tokens, over 70 %"
    if found := volatile(prefix):
        yield (
            f"Role & Policies hold {found}, which changes from build to build, so that no prompt cache can use them "
            "again; put it into state, or into the query"
        )


def _stats(
    trace: Trace, kept: Sequence[Decision], dropped: Sequence[Decision], used: int, filled: Filled
) -> dict[str, Any]:
    reasons: dict[str, int] = {}
    for item in dropped:
        reasons[item.reason] = reasons.get(item.reason, 0) + 1
    stats: dict[str, Any] = {
        "selected": len(kept),
        "dropped": reasons,
        "usage_rate": round(used / trace.config.max_tokens, 4),
        "compressed": any(item.action != "full" for item in kept),
    }
    if filled.allocation is not None:
        stats["allocation"] = filled.allocation.to_dict()
    return stats


def _tools(filled: Filled) -> list[dict[str, Any]]:
    """Return the schemas of the tools that were kept, as they stand in the context, in the order given."""
    rows = sorted((row for row in filled.chosen if row.definition is not None), key=lambda row: row.candidate.rank)
    return [row.definition.schema for row in rows]


def _dropped(ranked: Sequence[Ranked], gathered: Gathered, left_out: Sequence[Decision]) -> list[Decision]:
    dropped = [row.decision({}) for row in ranked if row.piece is None]
    for fault in gathered.faults:
        nothing = Candidate(ContextPacket(""), fault.source)
        dropped.append(replace(Ranked(nothing, "", "").decision({}), reason=fault.reason, detail=fault.detail))
    return dropped + list(left_out)


def _uses(
    trace: Trace, kept: Sequence[Decision], dropped: Sequence[Decision], allocation: Allocation | None
) -> Mapping[str, SourceUse]:
    """Return what each source got, those left out that had nothing to give and did not fail."""
    gathered = trace.gathered
    uses = {name: SourceUse(milliseconds=gathered.milliseconds.get(name, 0.0)) for name in trace.sources}
    faults = {fault.source: fault.detail for fault in gathered.faults}
    for item in kept:
        use = uses[item.source]
        use.kept += 1
        use.tokens += item.tokens
        use.truncated += item.action != "full"
    for item in dropped:
        uses[item.source].dropped_items += item.reason not in ("fault", "timeout")
    for name, use in uses.items():
        use.gathered = use.kept + use.dropped_items
        use.fault = faults.get(name, "")
    for name, cap in allocation.sources.items() if allocation is not None else ():
        if name in uses:
            uses[name].layer, uses[name].limit = cap.layer, cap.most
    return {name: use for name, use in uses.items() if use.gathered or use.fault}


def report(built: BuiltContext, ranked: Sequence[Ranked]) -> None:
    """Log one INFO line with counts before and after, and each warning; of failed sources gather.py has told."""
    told = tuple(f"source {name}: " for name, use in built.budget.sources.items() if use.fault)
    for warning in built.warnings:
        if not warning.startswith(told):
            _log.warning("%s", warning)
    if not _log.isEnabledFor(logging.INFO):
        return
    found: dict[str, int] = {}
    left: dict[str, int] = {}
    for row in ranked:
        if row.candidate.message is not None:
            continue  # history is told of in turns
        name = row.group if row.section == CONTEXT else row.section.lower()
        found[name] = found.get(name, 0) + 1
        left[name] = left.get(name, 0) + (row.piece is not None)
    counts = ", ".join(f"{name} {count} -> {left[name]}" for name, count in found.items())
    history, budget = built.meta["history"], built.budget
    if history["turns"]:
        counts += f"{', ' if counts else ''}history {history['turns']} -> {history['kept']} turns"
    _log.info("%s; %d of %d tokens", counts or "nothing gathered", budget.total_used, budget.total_limit)
