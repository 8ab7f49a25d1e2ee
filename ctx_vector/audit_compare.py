"""How two builds differ: for a replay, in which bytes; for people, what came, went and moved.

Works on any two BuiltContexts, recorded or not.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ctx_vector.built import BuiltContext, Decision
from ctx_vector.values import json_ready

_META: Final = ("now", "session_id", "locale", "strategy", "history", "prefix_hash")
_FACTS: Final = (
    ("knowledge_version", "knowledge version"),
    ("model", "model"),
    ("model_fingerprint", "model fingerprint"),
    ("tokenizer", "tokenizer"),
    ("tokenizer_fingerprint", "tokenizer fingerprint"),
    ("strategy", "strategy"),
    ("version", "version of ctx_vector"),
    ("locale", "locale"),
)
_SAME_SCORE: Final = 1e-6
_MOST_SHOWN: Final = 60


# -- equal or not -----------------------------------------------------------------------------------------------------


def differences(recorded: BuiltContext, again: BuiltContext, *, redacted: bool = False) -> list[str]:
    """Return in which places two contexts differ, the text first; empty when every byte and number is the same.

    With `redacted`, what depends on the length of texts (tokens, sizes) is left out.
    """
    if redacted:
        one, two = _redacted_view(recorded), _redacted_view(again)
    else:
        one, two = _view(recorded), _view(again)
    return list(_walk(one, two, ""))


def _view(built: BuiltContext) -> dict[str, Any]:
    shown = built.to_dict()
    meta = shown.pop("meta")
    # to_dict rounds; a repeat has to have the very bits
    exact = [[item.relevance, item.recency, item.score] for item in (*built.kept, *built.dropped)]
    known = {name: meta.get(name) for name in _META}
    # as JSON would have it: tuples are lists
    view: dict[str, Any] = json.loads(
        json.dumps(json_ready({**shown, "scores": exact, "meta": known, "debug": built.debug()}))
    )
    return view


def _redacted_view(built: BuiltContext) -> dict[str, Any]:
    view = _view(built)
    fates = [
        {name: item[name] for name in ("packet", "source", "section", "action", "reason")}
        for item in (*view["kept"], *view["dropped"])
    ]
    return {"text": view["text"], "messages": view["messages"], "decisions": fates}


def _walk(one: Any, two: Any, path: str) -> Iterator[str]:
    if one == two and type(one) is type(two):
        return
    if isinstance(one, dict) and isinstance(two, dict):
        for key in (*one, *(key for key in two if key not in one)):
            name = f"{path}.{key}" if path else str(key)
            if key in one and key in two:
                yield from _walk(one[key], two[key], name)
            else:
                yield f"{name}: only in the {'record' if key in one else 'repeat'}"
    elif isinstance(one, list) and isinstance(two, list):
        for place, (left, right) in enumerate(zip(one, two, strict=False)):
            yield from _walk(left, right, f"{path}[{place}]")
        if len(one) != len(two):
            yield f"{path}: {len(one)} recorded, {len(two)} repeated"
    elif isinstance(one, str) and isinstance(two, str) and "\n" in one + two:
        lines = zip(one.split("\n"), two.split("\n"), strict=False)
        number, left, right = next(
            ((number, left, right) for number, (left, right) in enumerate(lines, 1) if left != right),
            (min(one.count("\n"), two.count("\n")) + 2, "", ""),
        )
        yield f"{path}, line {number}: {_short(left)} recorded, {_short(right)} repeated"
    else:
        yield f"{path}: {_short(one)} recorded, {_short(two)} repeated"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


# -- what came and what went ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """What is different about one candidate: `what` is came, went, moved, shortened, changed, rescored, new or gone.

    `new` and `gone` are candidates of one build only that were not kept; `before` and `after` say what they were.
    """

    what: str
    source: str
    name: str
    preview: str
    before: str
    after: str

    def to_dict(self) -> dict[str, str]:
        """Return JSON-ready values."""
        names = ("what", "source", "name", "preview", "before", "after")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        arrow = f"{self.before} → {self.after}" if self.before and self.after else self.before or self.after
        return f"{self.what}: {self.source} {self.name}: {arrow}" + (f" | {self.preview}" if self.preview else "")


@dataclass(frozen=True, slots=True)
class BuildDiff:
    """What is different between two builds: `facts` as (name, before, after), and `changes` of candidates."""

    facts: tuple[tuple[str, Any, Any], ...] = ()
    changes: tuple[Change, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.facts or self.changes)

    def lines(self) -> list[str]:
        """Return a line for each difference, facts first."""
        return [
            *(f"{name}: {_plain(one)} → {_plain(two)}" for name, one, two in self.facts),
            *(str(change) for change in self.changes),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values with stable keys."""
        return {
            "equal": not self,
            "facts": [{"name": name, "before": one, "after": two} for name, one, two in self.facts],
            "changes": [change.to_dict() for change in self.changes],
            "counts": dict(self.counts),
        }


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 2 * _MOST_SHOWN else f"{text[: 2 * _MOST_SHOWN - 3]}..."


_ORDER: Final = ("came", "went", "changed", "shortened", "moved", "rescored", "new", "gone")


def diff(before: BuiltContext, after: BuiltContext) -> BuildDiff:
    """Return what came, went, moved and changed from one build to another."""
    facts = list(_facts(before, after))
    pairs = _pairs((*before.kept, *before.dropped), (*after.kept, *after.dropped))
    places = _places(before, after, pairs)
    changes = [change for one, two in pairs for change in _changes(one, two, places)]
    changes.sort(key=lambda change: _ORDER.index(change.what))
    counts = {what: count for what in _ORDER if (count := sum(change.what == what for change in changes))}
    return BuildDiff(tuple(facts), tuple(changes), counts)


def _facts(before: BuiltContext, after: BuiltContext) -> Iterator[tuple[str, Any, Any]]:
    if before.query != after.query:
        yield "query", before.query, after.query
    for name, words in _FACTS:
        one, two = before.meta.get(name), after.meta.get(name)
        if one != two:
            yield words, one, two
    if before.trace is not None and after.trace is not None:
        one, two = json_ready(before.trace.config.to_dict()), json_ready(after.trace.config.to_dict())
        for name in (*one, *(name for name in two if name not in one)):
            if one.get(name) != two.get(name) and name not in ("strategy", "tokenizer"):
                yield f"config.{name}", one.get(name), two.get(name)
    if before.budget.total_used != after.budget.total_used:
        yield "tokens", before.budget.total_used, after.budget.total_used
    for name in sorted({*before.sources, *after.sources}):
        faults = [built.sources[name].fault if name in built.sources else "" for built in (before, after)]
        if faults[0] != faults[1]:
            yield f"fault of {name}", faults[0] or "none", faults[1] or "none"
    gone, new = ([w for w in a.warnings if w not in b.warnings] for a, b in ((before, after), (after, before)))
    if gone or new:
        yield "warnings", "; ".join(gone) or "none", "; ".join(new) or "none"


Pair = tuple[Decision | None, Decision | None]


def _pairs(before: Sequence[Decision], after: Sequence[Decision]) -> list[Pair]:
    """Return the candidates of two builds, those that are the same together.

    The same are those of one source with the same id; else with the same text; else from the same place of the same
    document, whose text has changed.
    """
    left = [item for item in before if item.reason not in ("fault", "timeout")]
    right = [item for item in after if item.reason not in ("fault", "timeout")]
    pairs: list[Pair] = []
    for key in (_by_id, _by_text, _by_place):
        waiting: dict[Any, list[Decision]] = {}
        for item in left:
            if (name := key(item)) is not None:
                waiting.setdefault(name, []).append(item)
        found: dict[int, Decision] = {}
        for item in right:
            if same := waiting.get(key(item)):
                found[id(item)] = same.pop(0)
        pairs += [(found[id(item)], item) for item in right if id(item) in found]
        taken = {id(item) for item in found.values()}
        left = [item for item in left if id(item) not in taken]
        right = [item for item in right if id(item) not in found]
    return [*pairs, *((item, None) for item in left), *((None, item) for item in right)]


def _by_id(item: Decision) -> Any:
    given = item.packet.meta.get("id")
    return (item.source, str(given), item.packet.content) if given is not None else None


def _by_text(item: Decision) -> Any:
    return item.source, item.packet.type, item.packet.content


def _by_place(item: Decision) -> Any:
    meta = item.packet.meta
    if meta.get("source"):
        return item.source, str(meta["source"]), str(meta.get("heading"))
    return (item.source, str(meta["id"])) if meta.get("id") is not None else None


def _places(before: BuiltContext, after: BuiltContext, pairs: Sequence[Pair]) -> dict[int, tuple[int, int]]:
    """Return (place before, place after) of each item that has moved among those that both kept, by `id` of the latter.

    As few as possible have moved: all but those of a longest sequence that is in order in both.
    """
    both = [(one, two) for one, two in pairs if one is not None and two is not None and one.kept and two.kept]
    both.sort(key=lambda pair: _position(before, pair[0]))
    order = sorted(range(len(both)), key=lambda at: _position(after, both[at][1]))
    place_after = {at: place for place, at in enumerate(order)}
    ends: list[int] = []  # of the sequences in order so far, by length: the least last place
    last: list[int] = []  # and which item that is
    former: dict[int, int] = {}
    for at in range(len(both)):
        length = bisect.bisect_left(ends, place_after[at])
        ends[length : length + 1], last[length : length + 1] = [place_after[at]], [at]
        former[at] = last[length - 1] if length else -1
    still = set()
    at = last[-1] if last else -1
    while at >= 0:
        still.add(at)
        at = former[at]
    return {id(both[at][1]): (at, place_after[at]) for at in range(len(both)) if at not in still}


def _position(built: BuiltContext, item: Decision) -> int:
    names = list(built.sections)
    section = names.index(item.section) if item.section in names else len(names)
    body = built.sections.get(item.section, "")
    return section * 1_000_000_000 + max(0, body.find(item.rendered))


def _changes(one: Decision | None, two: Decision | None, places: Mapping[int, tuple[int, int]]) -> Iterator[Change]:
    item = two or one
    assert item is not None
    meta = item.packet.meta
    name = str(meta.get("cite") or meta.get("id") or meta.get("role") or item.section)
    preview = " ".join(item.packet.content[:160].split())[:_MOST_SHOWN]

    def change(what: str, before: str, after: str) -> Change:
        return Change(what, item.source, name, preview, before, after)

    if one is None or two is None:
        there = one or two
        assert there is not None
        if there.kept:
            yield change("came", "", _fate(there)) if two else change("went", _fate(there), "no candidate any more")
        else:
            yield change("new", "", _fate(there)) if two else change("gone", _fate(there), "no candidate any more")
        return
    if one.packet.content != two.packet.content:
        yield change("changed", f"{len(one.packet.content)} characters", f"{len(two.packet.content)} characters")
    if one.kept != two.kept:
        yield change("came" if two.kept else "went", _fate(one), _fate(two))
    elif one.kept and (one.action != two.action or one.rendered != two.rendered):
        if one.action != "full" or two.action != "full":
            yield change("shortened", _fate(one), _fate(two))
    if one.kept and two.kept:
        if one.section != two.section:
            yield change("moved", one.section, two.section)
        elif id(two) in places:
            first, second = places[id(two)]
            yield change("moved", f"place {first + 1}", f"place {second + 1}")
    if abs(one.score - two.score) > _SAME_SCORE or abs(one.relevance - two.relevance) > _SAME_SCORE:
        yield change("rescored", _score(one), _score(two))


def _fate(item: Decision) -> str:
    if item.kept:
        how = "kept" if item.action == "full" else item.action
        return f"{how} with {item.tokens} tokens (score {item.score:.3f})"
    return f"dropped: {item.reason}" + (f" ({item.detail})" if item.detail else "")


def _score(item: Decision) -> str:
    return f"score {item.score:.4f} (relevance {item.relevance:.4f})"
