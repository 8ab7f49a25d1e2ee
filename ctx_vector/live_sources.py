"""Configured sources at work: asked with a request, loaded once if static, overridden by name, expired, kept in scope.

    live = LiveSources(configs, scope="agent_a", base_dir=folder, encoder=encoder)
    specs = live.specs(request.user_query, overrides={"profile": "..."})     # for `gather`, in the order of the configs

An object here holds all state there is: what static sources gave, and the loaders that are open. Two builders have one
each and share nothing. What a source gives becomes candidates with its version and maybe a reason to drop them:

    `expired`    the source, or a duration since the time of its content, has run out: one candidate without a text
    `scope`      the packet's metadata names another scope; its text is not even kept in the record
    `oversize`   the text is over what a source may give at once
    `empty`      the source gave nothing
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.errors import ConfigError, CtxVectorError, InputError
from ctx_vector.gather import Requests, SourceFault, SourceSpec, awaited, is_error_text, packet_of
from ctx_vector.packets import Candidate, ContextPacket
from ctx_vector.rules import nearest, shown
from ctx_vector.source_loaders import open_loader
from ctx_vector.sources import SHARED, SourceConfig, check_sources, read_expiry, scopes_of
from ctx_vector.stages import Request
from ctx_vector.versions import document_of

if TYPE_CHECKING:
    from ctx_vector.stages import Encoder

#: Characters that one source may give in one build.
MOST_CHARS: Final = 1_000_000
#: Items that one source may give in one build.
MOST_ITEMS: Final = 10_000
_ITEM_KEYS: Final = ("version", "document_id", "document", "expires_at", "scope", "priority", "title")
_ALWAYS: Final = ("system", "static")


class LiveSources:
    """The sources of one builder. `scope` is the builder's own; `base_dir` roots the paths of loaders given as text;
    `audit` is the AuditLog that sessions are read from, those of `user_id` if it is given.

    A loader object may have `stamp()` (a static source is loaded again when it changes; None: never), `modified()`
    (when its content was changed), `asks` (True: its answer depends on the request, so that it is never kept), `plain`
    (True: its text is never an error message) and `ready()`, called before the time limit runs.

    Raises ConfigError for what is wrong with the sources together, or with a loader.
    """

    def __init__(
        self,
        configs: Sequence[SourceConfig],
        *,
        scope: str | None = None,
        base_dir: str | Path | None = None,
        allow_python: bool = False,
        encoder: Callable[[], Encoder] | None = None,
        audit: Any = None,
        user_id: str | None = None,
    ) -> None:
        problems = check_sources(configs, scope)
        self.configs = tuple(configs)
        self.scope = scope
        self._sources: dict[str, _Live] = {}
        for config in configs:
            try:
                loader = config.loader
                if isinstance(loader, str) and config.enabled:
                    loader = open_loader(
                        config,
                        base_dir=base_dir,
                        allow_python=allow_python,
                        encoder=encoder,
                        audit=audit,
                        user_id=user_id,
                    )
                self._sources[config.name] = _Live(config, loader, scope)
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)

    def specs(self, query: str, overrides: Mapping[str, Any] | None = None) -> tuple[SourceSpec, ...]:
        """Return what to gather from, in the order of the configs; disabled sources are left out.

        `overrides` maps names to what takes the place of a source in this build: whatever a source may give, or None
        for nothing. A blank query asks only the layers system and static. Raises InputError for an unknown name.
        """
        given = overrides or {}
        if not isinstance(given, Mapping):
            raise InputError(f"overrides: expected a mapping of sources to contents, got {shown(given)}")
        for name in given:
            if name not in self._sources:
                known = ", ".join(self._sources) or "none"
                raise InputError(f"overrides.{name}: no source has this name{nearest(name, self._sources)} ({known})")
        return tuple(
            live.spec(given[name]) if name in given else live.spec()
            for name, live in self._sources.items()
            if live.config.enabled and (name in given or query.strip() or live.config.layer in _ALWAYS)
        )

    def system_tokens(self, tokens: Callable[[str], int]) -> dict[str, int]:
        """Return the size of every source of the layer system that is a file, counted by `tokens`.

        Raises ConfigError for a file that cannot be read: the rules have to be there from the start.
        """
        found: dict[str, int] = {}
        problems = []
        for name, live in self._sources.items():
            if live.config.layer == "system" and live.config.enabled and hasattr(live.loader, "texts"):
                try:
                    found[name] = sum(tokens(text) for text in live.loader.texts())
                except (CtxVectorError, OSError) as error:
                    problems.append(f"sources.{name}.loader: {error}")
        if problems:
            raise ConfigError(problems)
        return found

    def knowledge_version(self) -> int | None:
        """Return the version of the first knowledge base that is searched, None without one."""
        for live in self._sources.values():
            if live.config.enabled and (knowledge := getattr(live.loader, "knowledge", None)) is not None:
                return int(knowledge.version)
        return None


def check_system(tokens: Mapping[str, int], share: int) -> list[str]:
    """Return what is wrong with the size of the layer system, which is never cut: a problem when it is over its share.

    `tokens` are those of its sources, `share` is in tokens.

    >>> check_system({"rules": 900, "tone": 200}, 1100)
    []
    """
    total = sum(tokens.values())
    if total <= share:
        return []
    parts = ", ".join(f"{name} {size:,}" for name, size in tokens.items())
    return [
        f"budget.system: the layer system takes {total:,} tokens ({parts}), over its share of {share:,}; "
        "it is never cut, so shorten a source or raise the share"
    ]


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a static source gave: when it was loaded, the loader's stamp at that time, and the candidates."""

    stamp: Any
    loaded: datetime
    items: list[Any]


_OWN: Final = object()


class _Live:
    """One source: its config, its open loader, and what is kept of it."""

    def __init__(self, config: SourceConfig, loader: Any, scope: str | None) -> None:
        self.config = config
        self.loader = loader
        self._call = loader.load if callable(getattr(loader, "load", None)) else None
        self._expires = read_expiry(config.expires)
        self._scopes = {SHARED, config.scope, *([scope] if scope is not None else [])}
        self._static = config.layer == "static" and not getattr(loader, "asks", False)
        self._kept: _Kept | None = None
        self._loading = threading.Lock()
        self._requests = Requests()

    def spec(self, override: Any = _OWN) -> SourceSpec:
        """Return the spec for one build; an override is given as if the source had given it."""
        config = self.config
        if override is not _OWN:
            return self._spec(lambda request: self._items(override), None)
        ready = getattr(self.loader, "ready", None)
        if callable(ready):
            try:
                ready()
            except CtxVectorError:  # loading meets it again, and then it is recorded
                pass
        return self._spec(self._load, config.timeout)

    def _spec(self, load: Callable[[Request], Any], timeout: float | None) -> SourceSpec:
        config = self.config
        standing = (int(config.authoritative), config.priority)
        return SourceSpec(config.name, config.kind, load, timeout, config.layer, standing, self._requests)

    def _load(self, request: Request) -> list[Any]:
        expires = self._expires
        if isinstance(expires, datetime) and expires <= request.now:
            return [self._left_out("expired", f"expired at {expires.isoformat()}")]
        asked = replace(
            request,
            top_k=self.config.top_k or request.top_k,
            score_threshold=request.score_threshold
            if self.config.score_threshold is None
            else self.config.score_threshold,
            options=dict(self.config.args),
        )
        return self._aged(self._static_items(asked) if self._static else self._asked(asked), asked)

    def _static_items(self, request: Request) -> list[Any]:
        limit = self.config.timeout
        if not self._loading.acquire(timeout=-1 if limit is None else limit):
            raise SourceFault("an earlier request still loads it")
        try:
            stamp = self.loader.stamp() if callable(getattr(self.loader, "stamp", None)) else None
            kept = self._kept
            old = kept is None or kept.stamp != stamp
            if kept is not None and stamp is None and isinstance(self._expires, timedelta):
                old = kept.loaded + self._expires <= request.now  # without a file, what is loaded again is fresh
            if old or kept is None:
                kept = _Kept(stamp, request.now, self._asked(request))
                if stamp is not None or any(not getattr(item, "reason", "") for item in kept.items):
                    self._kept = kept  # a source that had nothing to give is asked again
            return kept.items
        finally:
            self._loading.release()

    def _asked(self, request: Request) -> list[Any]:
        given = self._call(request) if self._call is not None else self.loader(request, **self.config.args)
        value = awaited(given, self.config.timeout)
        if isinstance(value, str) and not getattr(self.loader, "plain", False) and is_error_text(value):
            raise SourceFault(" ".join(value[:300].split()))
        return self._items(value)

    def _items(self, value: Any) -> list[Any]:
        """Return what a source gave, an item each, as candidates."""
        given: list[Any] = []
        if _is_stream(value):
            given = list(itertools.islice(value, MOST_ITEMS + 1))
        elif value is not None:
            given = [value]
        items: list[Any] = []
        room = MOST_CHARS
        for item in given[:MOST_ITEMS]:
            made = self._candidate(item)
            if isinstance(made, Candidate) and not made.reason:
                size = len(made.packet.content)
                if size > room:
                    made = self._left_out("oversize", f"{size:,} characters, over the {MOST_CHARS:,} of a source", made)
                else:
                    room -= size
            items.append(made)
        if len(given) > MOST_ITEMS:
            items.append(self._left_out("oversize", f"more than {MOST_ITEMS:,} items"))
        return items or [self._left_out("empty", "the source gave nothing")]

    def _candidate(self, item: Any) -> Any:
        """Return an item as a candidate with the source's version; one without a text stays as it is."""
        try:
            found = item if isinstance(item, Candidate) else Candidate(packet_of(item), self.config.name)
        except Exception:  # an item may be any object, and its attributes may raise anything; gather says what is wrong
            return item
        meta = dict(found.packet.meta)
        if isinstance(item, Mapping):
            meta |= {key: item[key] for key in _ITEM_KEYS if item.get(key) is not None and key not in meta}
        scopes = scopes_of(meta.get("scope"))
        if scopes and not self._scopes.intersection(scopes):
            return self._left_out("scope", f"of the scope {', '.join(scopes)[:80]}", found)
        if self.config.version is not None and meta.get("version") is None:
            meta["version"] = self.config.version
            if document_of(meta) is None:  # what has the version of its source is no older than what has another one
                meta["document_id"] = f"{self.config.name}#{found.packet.id}"
        stamp, life = found.packet.timestamp, self._expires
        if isinstance(life, timedelta) and stamp is not None and "expires_at" not in meta:
            if (expiry := _after(stamp, life)) is not None:
                meta["expires_at"] = expiry.isoformat()
        return found if meta == found.packet.meta else replace(found, packet=_with_meta(found.packet, meta))

    def _aged(self, items: list[Any], request: Request) -> list[Any]:
        """Return the items, or that they have expired, when the file they come from is older than `expires` allows."""
        modified = getattr(self.loader, "modified", None)
        if not isinstance(self._expires, timedelta) or not callable(modified):
            return items
        changed = modified()
        expiry = _after(changed, self._expires) if changed is not None else None
        if expiry is None or expiry > request.now:
            return items
        return [self._left_out("expired", f"expired at {expiry.isoformat()}")]

    def _left_out(self, reason: str, detail: str, found: Candidate | None = None) -> Candidate:
        """Return a candidate without a text that is dropped for this reason."""
        packet = found.packet if found is not None else None
        meta = {"id": packet.id} if packet is not None else {}
        return Candidate(
            ContextPacket("", packet.timestamp if packet else None, metadata=meta),
            self.config.name,
            reason=reason,
            detail=detail,
        )


def _with_meta(packet: ContextPacket, meta: Mapping[str, Any]) -> ContextPacket:
    score = packet.relevance if packet.scored else None
    return ContextPacket(packet.content, packet.timestamp, packet.token_count, score, dict(meta))


def _after(moment: datetime, life: timedelta) -> datetime | None:
    try:
        return moment + life
    except OverflowError:
        return None


def _is_stream(value: Any) -> bool:
    """Return whether a value holds items, rather than being one."""
    if isinstance(value, (list, tuple)):
        return True
    named = any(isinstance(getattr(value, name, None), str) for name in ("content", "text", "page_content"))
    return hasattr(value, "__iter__") and not named and not isinstance(value, (str, bytes, bytearray, Mapping))
