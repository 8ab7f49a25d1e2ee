"""A build read back from an audit: the BuiltContext it was, and the trace to make it again."""

from __future__ import annotations

import json
import re
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NoReturn

from ctx_vector import audit_tables as tables
from ctx_vector.audit_encode import FORMAT
from ctx_vector.built import Budget, BuiltContext, Decision, SourceUse
from ctx_vector.config import ContextConfig
from ctx_vector.errors import ConfigError, InputError, SchemaError
from ctx_vector.packets import ContextPacket
from ctx_vector.stages import TokenCounter
from ctx_vector.tokens import TokenCounter as ExactCounter
from ctx_vector.trace import Trace
from ctx_vector.trace_dump import known_fields, load, parsed, value_of

#: What `list` shows of a build.
LISTED = (
    "number", "id", "session_id", "variant", "created_at", "total_tokens", "budget_limit", "gathered", "kept",
    "dropped", "trimmed", "warnings", "faults", "build_ms", "knowledge_version", "strategy", "model", "tokenizer",
    "version", "config_hash", "redacted", "purged", "user_id",
)  # fmt: skip
_A_RUN: Final = 3  # entries of what names several messages in a row
FLAGS = ("trimmed", "redacted", "purged")


class Shelf:
    """The texts and packets of one build. What was purged reads "(purged)", and its ids are in `gone`."""

    def __init__(self, conn: sqlite3.Connection, refs: bytes) -> None:
        contents, packets = tables.unpack_refs(refs)
        self._texts: dict[int, str] = {}
        self.gone: set[int] = set()
        for id_, state, text in _by_id(conn, "SELECT id, state, text FROM contents", contents):
            self._texts[id_] = tables.PURGED if state == tables.GONE else text
            if state != tables.WHOLE:
                self.gone.add(id_)
        self._packets: dict[int, ContextPacket] = {}
        for id_, content, stamp, count, score, metadata in _by_id(
            conn, "SELECT id, content_id, timestamp, token_count, score, metadata FROM packets", packets
        ):
            time = datetime.fromisoformat(stamp) if stamp else None
            self._packets[id_] = ContextPacket(self._texts[content], time, count, score, parsed(metadata, {}))

    def text(self, ref: Any) -> str:
        """Return a text, or the part of it that ``[id, start, end]`` names."""
        if isinstance(ref, list):
            id_, start, end = ref
            return self._texts[id_] if id_ in self.gone else self._texts[id_][start:end]
        return self._texts[ref]

    def packet(self, ref: Any) -> ContextPacket:
        """Return a packet; the same object for the same id."""
        return self._packets[ref]

    def joined(self, refs: Sequence[Any]) -> str:
        """Return a text made of several."""
        return "".join([self.text(ref) for ref in refs])


def _by_id(conn: sqlite3.Connection, select: str, ids: Sequence[int]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for start in range(0, len(ids), 500):
        block = ids[start : start + 500]
        rows += conn.execute(f"{select} WHERE id IN ({','.join('?' * len(block))})", list(block)).fetchall()
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class BuildRecord:
    """One build as it was recorded.

    `built` is what `assemble` returned, with the trace to make it again. `listed` are the values of the list, `config`
    the fields of the config. `purged` names what was purged since: texts of it read "(purged)".
    """

    id: str
    created_at: datetime
    session_id: str | None
    variant: str | None
    built: BuiltContext
    listed: Mapping[str, Any]
    config: Mapping[str, Any]
    redacted: bool
    purged: tuple[str, ...]
    feedback: tuple[Mapping[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values with stable keys."""
        return {
            **self.listed,
            "query": self.built.query,
            **self.built.to_dict(),
            "debug": self.built.debug(),
            "config": dict(self.config),
            "source_stats": {
                name: {**use.to_dict(), "milliseconds": use.milliseconds} for name, use in self.built.sources.items()
            },
            "feedback": [dict(item) for item in self.feedback],
            "missing": list(self.purged),
        }


def gone(id_: str) -> InputError:
    """Return what is said of a build that was rotated out or purged after it was looked up."""
    return InputError(f"id: there is no build {id_} any more; ctx-vector audit list shows those there are")


def decode(conn: sqlite3.Connection, id_: str) -> BuildRecord:
    """Return a build by its whole id. Raises InputError when it has gone meanwhile, SchemaError when a newer version of
    this package has recorded it.
    """
    names = (*LISTED, "source_stats", "messages", "refs", "record", "config_id")
    row = conn.execute(f"SELECT {', '.join(names)} FROM context_logs WHERE id = ?", (id_,)).fetchone()
    if row is None:
        raise gone(id_)
    values = dict(zip(names, row, strict=True))
    config = json.loads(conn.execute("SELECT config FROM configs WHERE id = ?", (values["config_id"],)).fetchone()[0])
    feedback = conn.execute("SELECT at, value, note, variant FROM feedback WHERE build = ? ORDER BY id", (id_,))
    shelf = Shelf(conn, values["refs"])
    record = json.loads(zlib.decompress(values["record"]))
    if record["format"] > FORMAT:
        raise SchemaError(
            f"the build {id_} was recorded by ctx_vector {values['version']}, which this version cannot read; "
            "upgrade with: pip install -U ctx_vector"
        )
    trace = load(record["trace"], restored(config), shelf)
    built = _built(record, trace, shelf, json.loads(values["source_stats"]), json.loads(values["messages"]))
    return BuildRecord(
        id=id_,
        created_at=datetime.fromisoformat(values["created_at"]),
        session_id=values["session_id"],
        variant=values["variant"],
        built=built,
        listed=listed(values),
        config=config,
        redacted=bool(values["redacted"]),
        purged=_missing(built, shelf),
        feedback=tuple(dict(zip(("at", "value", "note", "variant"), item, strict=True)) for item in feedback),
    )


def listed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a list shows of a row of context_logs."""
    return {name: bool(values[name]) if name in FLAGS else values[name] for name in LISTED}


def _built(
    record: Mapping[str, Any],
    trace: Trace,
    shelf: Shelf,
    uses: Mapping[str, Mapping[str, Any]],
    messages: Sequence[Mapping[str, Any]],
) -> BuiltContext:
    rows, pieces = record["rows"]
    text = shelf.joined(pieces)
    fates = [fate for item in record["decisions"] for fate in _decisions(item, trace, shelf)]
    total, used, text_tokens, message_tokens, shared, more = record["budget"]
    sources = {}
    for name, use in uses.items():
        known = known_fields(SourceUse, use)
        fault = record["source_faults"].get(name)
        sources[name] = SourceUse(**known, fault=shelf.text(fault) if fault is not None else "")
    meta = dict(record["meta"])
    if isinstance(fallback := meta["history"].get("fallback"), int):
        meta["history"]["fallback"] = shelf.text(fallback)
    return BuiltContext(
        text=text,
        messages=[_message(item, shelf) for item in messages],
        sections=_sections(record["sections"], text, shelf),
        kept=tuple(fates[: record["kept"]]),
        dropped=tuple(fates[record["kept"] :]),
        budget=Budget(total, used, text_tokens, message_tokens, shared, sources, **known_fields(Budget, more)),
        stats=record["stats"],
        meta=meta,
        warnings=tuple(shelf.text(ref) for ref in record["warnings"]),
        tools=parsed(shelf.text(record["tools"]), []) if record["tools"] is not None else [],
        rows=tuple((section, tokens, shelf.joined(refs)) for section, tokens, refs in rows),
        query=trace.query,
        trace=trace,
        **(known_fields(BuiltContext, parsed(shelf.text(record["more"]), {})) if record["more"] is not None else {}),
    )


def _sections(written: Sequence[Sequence[Any]], text: str, shelf: Shelf) -> dict[str, str]:
    """Return the body of each section; where a purge has moved them, they begin at their headers."""
    if not shelf.gone:
        return {name: shelf.text(start) if end is None else text[start:end] for name, start, end in written}
    headers = [f"[{name}]\n" for name, *_ in written]
    starts, at = [], 0
    for header in headers:
        at = max(at, text.find(header, at))
        starts.append(at)
    ends = [*(start - 1 for start in starts[1:]), len(text)]
    return {
        name: text[start + len(header) : end]
        for (name, *_), header, start, end in zip(written, headers, starts, ends, strict=True)
    }


def _decisions(values: Sequence[Any], trace: Trace, shelf: Shelf) -> Iterator[Decision]:
    which, *rest = values
    if len(which) == _A_RUN:
        for place in range(which[1], which[1] + which[2]):
            yield _decision([[None, place], *rest], trace, shelf)
    else:
        yield _decision(values, trace, shelf)


def _decision(values: Sequence[Any], trace: Trace, shelf: Shelf) -> Decision:
    (which, section, relevance, recency, score, tokens, action, reason, detail, rendered, *more) = values
    if isinstance(which[0], int):
        candidate = trace.gathered.candidates[which[0]]
        packet, source = candidate.packet, candidate.source
    elif which[0] is None:
        packet, source = trace.said[which[1]].packet, "history"
    else:
        packet, source, detail = ContextPacket(""), which[0], shelf.text(detail)
    return Decision(
        packet,
        source,
        section,
        relevance,
        recency,
        score,
        tokens,
        action != "dropped",
        action,
        reason,
        detail,
        shelf.joined(rendered) if rendered else "",
        **known_fields(Decision, more[0] if more else {}),
    )


def _message(values: Mapping[str, Any], shelf: Shelf) -> dict[str, Any]:
    made: dict[str, Any] = {"role": values["role"]}
    if "content" in values:
        made["content"] = shelf.joined(values["content"])
    if "parts" in values:
        made["content"] = [value_of(shelf.text(ref)) for ref in values["parts"]]
    if "more" in values:
        made |= parsed(shelf.text(values["more"]), {})
    return made


def _missing(built: BuiltContext, shelf: Shelf) -> tuple[str, ...]:
    """Return what was purged from a build, in words: ``knowledge: 2 items``."""
    if not shelf.gone:
        return ()
    counts: dict[str, int] = {}
    for item in (*built.kept, *built.dropped):
        if tables.PURGED in item.packet.content:
            counts[item.source] = counts.get(item.source, 0) + 1
    if tables.PURGED in built.query:
        counts["the query"] = 1
    names = tuple(f"{name}: {count} item{'s' if count > 1 else ''}" for name, count in counts.items())
    return names or ("a part of its texts",)


# -- what a repeat needs ----------------------------------------------------------------------------------------------


class _Recorded:
    """Stands for a strategy of a recorded build; its relevances are recorded too."""

    def __init__(self, name: str) -> None:
        self.name = name

    def score(self, query: Any, candidates: Any) -> NoReturn:
        """Raise: a repeat scores nothing."""
        raise InputError(f"the strategy {self.name!r} of a recorded build scores nothing")


def restored(values: Mapping[str, Any]) -> ContextConfig:
    """Return the config of a recorded build; its strategy is a name, its tokenizer the default if it was an object.

    Fields that another version of this package knew, or wants otherwise, are left at their defaults.
    """
    given = {**values, "strategy": _Recorded(str(values.get("strategy")))}
    while True:
        try:
            return ContextConfig.from_dict(given)
        except ConfigError as error:
            wrong = {re.split(r"[.: ]", problem, maxsplit=1)[0] for problem in error.problems}
            if not wrong & given.keys():
                raise
            given = {name: value for name, value in given.items() if name not in wrong}


def restored_counter(facts: Mapping[str, Any]) -> TokenCounter:
    """Return the tokenizer of a recorded build. Raises InputError when it was an object of the caller's."""
    name = str(facts["tokenizer"])
    message, reply = facts["framing"]
    try:
        return ExactCounter(name, message_overhead=message, reply_overhead=reply)
    except InputError:
        raise InputError(
            f"the build was made with the tokenizer {name!r}, which has no name to find it by; give it: "
            "replay(id, counter=...)"
        ) from None
