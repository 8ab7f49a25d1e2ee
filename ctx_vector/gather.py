"""Gather: ask every source, turn what it gives into candidates, and record what went wrong.

A source is a name, a kind (the `type` its packets get) and a function of the request, which may be `async`. Those with
a time limit are asked in threads side by side; the order of results is the order of the sources, whoever answers first.
What is `async` runs on the event loop that awaits the build (`on_loop`), where its connections and locks are at home,
or else on one of its own. A source that raises, answers with an error text or does not answer in time becomes a fault
in the record; the build goes on.

Only the caller's own packets may choose the sections Role & Policies and State or name a section; for every other
source its kind wins, and a stored `type` or `section` stays as data under `metadata["user"]`.
"""

from __future__ import annotations

import contextvars
import logging
import re
import threading
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.errors import CtxVectorError, InputError
from ctx_vector.packets import TYPE_HISTORY, Candidate, ContextPacket
from ctx_vector.stages import Request
from ctx_vector.values import as_utc
from ctx_vector.versions import supersede

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_log = logging.getLogger("ctx_vector.gather")
_LOOP: Final[contextvars.ContextVar[AbstractEventLoop | None]] = contextvars.ContextVar("ctx_vector_loop", default=None)
_GRACE_SECONDS: Final = 1.0  # after its time limit, an `async` source is cancelled; by then it is recorded

# "Error: no index", "ValueError: x", "❌ 搜索记忆失败: ...", but not "Error handling in FastAPI ..."
_ERROR_TEXT: Final = re.compile(
    r"\W*(?:\w*(?:error|exception|failure|failed)\s*(?:[:：]|\Z)|(?:\w+ ){1,3}failed\s*[:：]"
    r"|error\s+(?:executing|calling|running|while|during|occurred)\b|failed\s+to\b|traceback \(most recent"
    r"|\w{0,8}(?:错误|出错|异常|失败)\s*(?:[:：，,。!！]|\Z))",
    re.I,
)
#: Roles whose messages answer a tool call.
TOOL_ROLES: Final = ("tool", "function")
#: Requests of one source that may hang at the same time; further ones fail at once.
MOST_HANGING: Final = 4
_RESERVED: Final = ("type", "section")
_CONTENT_KEYS: Final = ("content", "text", "page_content")
_SCORE_KEYS: Final = ("relevance_score", "score", "relevance")


class SourceFault(CtxVectorError, RuntimeError):
    """A source answered with an error instead of a content, or still hangs in earlier requests."""


class Requests:
    """The requests of one source, in all builds, that have no answer yet.

    One that hangs keeps its thread, so that only a few may.
    """

    def __init__(self) -> None:
        self._ends: dict[object, float] = {}  # when each is late
        self._lock = threading.Lock()

    def begin(self, timeout: float) -> object:
        """Count a request, until `end` is called with what this returns. Raises SourceFault when too many hang."""
        now = time.perf_counter()
        with self._lock:
            late = sum(end < now for end in self._ends.values())
            if late >= MOST_HANGING:
                raise SourceFault(f"{late} earlier requests still hang")
            ticket = object()
            self._ends[ticket] = now + timeout
            return ticket

    def end(self, ticket: object) -> None:
        """Count a request no more."""
        with self._lock:
            self._ends.pop(ticket, None)


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """One source of a build. `kind` is None for the caller's own packets, whose types are kept. `timeout` in
    seconds; then `requests` bounds those that hang. `layer` and `standing` go to its candidates.
    """

    name: str
    kind: str | None
    load: Callable[[Request], Any]
    timeout: float | None = None
    layer: str = ""
    standing: tuple[float, float] = (0, 0)
    requests: Requests = field(default_factory=Requests)


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong with a source; `reason` is `fault` or `timeout`."""

    source: str
    reason: str
    detail: str


@dataclass(slots=True)
class Gathered:
    """All candidates in a fixed order, the faults, and the time each source took in milliseconds."""

    candidates: list[Candidate] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    milliseconds: dict[str, float] = field(default_factory=dict)


class _Answer:
    """The answer of one source, loaded in place or in a thread of its own."""

    def __init__(self, spec: SourceSpec, request: Request) -> None:
        self.spec = spec
        self.value: Any = None
        self.error: BaseException | None = None
        self.started = time.perf_counter()
        self.milliseconds = 0.0
        self._thread: threading.Thread | None = None
        if spec.timeout is None:
            self._run(request)
        else:
            self._start(request, spec.timeout)

    def _start(self, request: Request, timeout: float) -> None:
        try:
            ticket = self.spec.requests.begin(timeout)
        except SourceFault as error:
            self.error = error
            return
        # a daemon, so that a source that hangs for ever does not keep the process alive
        within, name = contextvars.copy_context().run, f"load {self.spec.name}"
        thread = threading.Thread(target=within, args=(self._run, request, ticket), daemon=True, name=name)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError as error:  # there are no more threads
            self._thread, self.error = None, error
            self.spec.requests.end(ticket)

    def _run(self, request: Request, ticket: object = None) -> None:
        try:
            value = awaited(self.spec.load(request), self.spec.timeout)
            if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping, Sequence)):
                value = [value] if _get(value, _CONTENT_KEYS) is not None else list(value)
            self.value = value
        except BaseException as error:  # whatever a source raises is its fault, not the build's
            if self._thread is None and not isinstance(error, Exception):
                raise  # an interrupt in the caller's own thread is no source's fault
            self.error = error
        finally:
            self.spec.requests.end(ticket)
        self.milliseconds = (time.perf_counter() - self.started) * 1000

    def fault(self) -> Fault | None:
        """Wait for the answer; return what went wrong, or None."""
        name = self.spec.name
        if self._thread is not None and self.spec.timeout is not None:
            self._thread.join(max(0.0, self.started + self.spec.timeout - time.perf_counter()))
            if self._thread.is_alive():
                self.milliseconds = self.spec.timeout * 1000
                return Fault(name, "timeout", f"no answer within {self.spec.timeout:g} s")
        if self.error is not None:
            return Fault(name, "fault", f"{type(self.error).__name__}: {self.error}")
        if isinstance(self.value, str) and self.spec.kind is not None and is_error_text(self.value):
            return Fault(name, "fault", " ".join(self.value[:300].split()))
        return None


def on_loop(loop: AbstractEventLoop, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function that gathers, in a thread, while `loop` awaits it and runs what sources have that is `async`."""
    _LOOP.set(loop)
    return function(*arguments, **named)


def awaited(value: Any, timeout: float | None = None) -> Any:
    """Return what an awaitable or an asynchronous iterator gives; all else as it is. It is cancelled some time after
    `timeout` seconds.
    """
    if not isinstance(value, (Awaitable, AsyncIterable)):
        return value
    import asyncio  # only sources that are `async` pay for it
    from concurrent.futures import ThreadPoolExecutor

    async def get() -> Any:
        return [item async for item in value] if isinstance(value, AsyncIterable) else await value

    async def wait() -> Any:
        return await asyncio.wait_for(get(), limit)

    limit = None if timeout is None else timeout + _GRACE_SECONDS
    loop = _LOOP.get()
    before = _LOOP.set(None)  # a build inside of the source has to do without a loop that waits for it
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if loop is None or not loop.is_running():
            return asyncio.run(wait())
        # in time, as the loop may end before the source does
        return asyncio.run_coroutine_threadsafe(wait(), loop).result(limit and limit + _GRACE_SECONDS)
    else:
        with ThreadPoolExecutor(1) as aside:  # the caller's loop, which waits for this build, cannot run it
            return aside.submit(asyncio.run, wait()).result()
    finally:
        _LOOP.reset(before)


def is_error_text(text: str) -> bool:
    """Return whether a tool's answer says that it failed, such as ``ValueError: no index`` or ``❌ 搜索失败: ...``."""
    return _ERROR_TEXT.match(text[:80]) is not None


def gather(specs: Sequence[SourceSpec], request: Request) -> Gathered:
    """Ask all sources and return their candidates in the order of `specs`; of several versions of a document only the
    newest has no reason to be dropped.
    """
    gathered = Gathered()
    answers = [_Answer(spec, request) for spec in specs]
    for answer in answers:
        spec = answer.spec
        fault = answer.fault()
        gathered.milliseconds[spec.name] = gathered.milliseconds.get(spec.name, 0.0) + answer.milliseconds
        faults = [fault] if fault else _take(answer, gathered.candidates)
        for fault in faults:
            _log.warning("source %s: %s: %s", fault.source, fault.reason, fault.detail)
        gathered.faults += faults
    gathered.candidates = supersede(gathered.candidates)
    return gathered


def _take(answer: _Answer, candidates: list[Candidate]) -> list[Fault]:
    """Add what a source gave to `candidates`: one packet, mapping, object or text, or a sequence of them.

    An item without a text is a fault of its own; the others count.
    """
    value, spec, faults = answer.value, answer.spec, []
    if value is None:
        return []
    if isinstance(value, (str, Mapping, ContextPacket, Candidate)) or not isinstance(value, Sequence):
        value = [value]
    for number, item in enumerate(value):
        try:
            candidates.append(_candidate(item, spec, len(candidates)))
        except Exception as error:  # an item may be any object, and its attributes may raise anything
            faults.append(Fault(spec.name, "fault", f"item {number}: {error}"))
    return faults


def _candidate(item: Any, spec: SourceSpec, rank: int) -> Candidate:
    found = item if isinstance(item, Candidate) else Candidate(packet_of(item), spec.name)
    return Candidate(
        _own(found.packet, spec.kind),
        spec.name,
        rank,
        found.vectors,
        found.message if spec.kind == TYPE_HISTORY else None,
        found.known,
        found.reason,
        found.detail,
        found.tool,
        spec.layer or found.layer,
        spec.standing if spec.layer else found.standing,
        found.origin,
        found.image,
        found.passes,
        found.apart,
    )


def _own(packet: ContextPacket, kind: str | None) -> ContextPacket:
    """Return the packet with the type of its source; what it said about type and section becomes data."""
    if kind is None or (packet.type == kind and "section" not in packet.meta):
        return packet
    said = {name: packet.meta[name] for name in _RESERVED if name in packet.meta}
    metadata = {name: value for name, value in packet.meta.items() if name not in _RESERVED}
    if said:
        user = metadata.get("user")
        metadata["user"] = {**(user if isinstance(user, Mapping) else {}), **said}
    score = packet.relevance if packet.scored else None
    return ContextPacket(packet.content, packet.timestamp, packet.token_count, score, {"type": kind, **metadata})


def _get(item: Any, names: Sequence[str]) -> Any:
    for name in names:
        value = item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)
        if value is not None and not callable(value):
            return value
    return None


def packet_of(item: Any) -> ContextPacket:
    """Return a packet from a packet, a text, or a mapping or object with content/text and optionally score,
    importance, timestamp, id and metadata. Raises InputError when there is no text in it.
    """
    if isinstance(item, ContextPacket):
        return item
    if isinstance(item, str):
        return ContextPacket(item)
    content = _get(item, _CONTENT_KEYS)
    if not isinstance(content, str):
        raise InputError(f"expected a text, or something with 'content' or 'text', got {item!r:.120}")
    metadata = _get(item, ("metadata",))
    metadata = dict(metadata) if isinstance(metadata, Mapping) else {}
    for name in ("id", "importance", "source", "type", "memory_type"):
        value = _get(item, (name,))
        if value is not None:
            metadata.setdefault(name, value)
    try:
        stamp = as_utc(_get(item, ("timestamp", "created_at")))
    except InputError:  # a time nobody can read must not cost the text
        stamp = None
    return ContextPacket(content, stamp, None, _get(item, _SCORE_KEYS), metadata)
