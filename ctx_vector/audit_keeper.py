"""The texts and packets of an audit: each kept once, and known by an id."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ctx_vector import audit_purge
from ctx_vector import audit_tables as tables
from ctx_vector.built import Decision
from ctx_vector.errors import StoreError
from ctx_vector.packets import Candidate, ContextPacket, Origin
from ctx_vector.trace_dump import dump_said
from ctx_vector.values import clean_text, json_ready

if TYPE_CHECKING:
    from ctx_vector.config import ContextConfig
    from ctx_vector.conversation import Said

Redact = Callable[[str], str]

#: What a text says that could not be redacted.
NOT_REDACTED: Final = "(not stored: the redaction failed)"
_MOST_CACHED: Final = 32_000_000  # characters
_MOST_BLOCKS: Final = 500
#: Messages of a conversation that are remembered together.
BLOCK: Final = 128
# made once: `json.dumps` makes one for each call that is not plain
_PLAIN: Final = json.JSONEncoder(ensure_ascii=False)
_STRICT: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False)

log = logging.getLogger("ctx_vector.audit")


class Keeper:
    """Keeps texts and packets of one audit, and knows which of them the build at hand refers to.

    Remembers ids from one transaction to the next as long as nothing was deleted meanwhile.
    """

    def __init__(self, path: Path, redact: Redact | None) -> None:
        self._path = path
        self._redact = redact
        self._ids: dict[str, int] = {}
        self._cached = 0
        self._packets: dict[tuple[Any, ...], int] = {}
        self._configs: dict[str, int] = {}
        # blocks of conversations by the ids of their objects, which are kept so that no other gets such an id
        self._said: dict[tuple[int, ...], tuple[Sequence[Said], list[Any], set[int]]] = {}
        self._fates: dict[tuple[int, ...], tuple[Sequence[Decision], list[Any]]] = {}
        self._links: set[tuple[int, int]] = set()
        self._linked: set[str] = set()
        self._generation = -1
        self._conn: sqlite3.Connection
        self.blank = False
        self.failed = False
        self.contents: set[int] = set()
        self.packets: set[int] = set()

    @property
    def redacts(self) -> bool:
        """Whether texts are changed on their way in."""
        return self._redact is not None

    def open(self, conn: sqlite3.Connection) -> None:
        """Begin a transaction."""
        generation = tables.generation(conn)
        if generation != self._generation or self._cached > _MOST_CACHED or len(self._said) > _MOST_BLOCKS:
            self.forget()
        self._generation, self._conn = generation, conn

    def forget(self) -> None:
        """Remember nothing: something was deleted, or a transaction was rolled back."""
        self._ids, self._packets, self._configs, self._links, self._cached = {}, {}, {}, set(), 0
        self._said, self._fates = {}, {}

    def begin(self, *, blank: bool = False) -> None:
        """Begin a build; `blank` keeps none of its texts."""
        self.contents, self.packets, self.blank, self.failed = set(), set(), blank, False

    def clean(self, text: str) -> str:
        """Return a text as it may be stored."""
        if self._redact is None:
            return text
        try:
            return clean_text(self._redact(text))
        except Exception as error:  # a caller's function may raise anything, and then the text must not be stored
            if not self.failed:
                log.warning("the redaction failed (%s: %s); the text is not stored", type(error).__name__, error)
            self.failed = True
            return NOT_REDACTED

    def text(self, text: str) -> int:
        """Return the id of a text."""
        if self.blank:
            return self._nothing()
        return self._known(text if self._redact is None else self.clean(text))

    def json(self, value: Any) -> int:
        """Return the id of JSON-ready values as one text; what is redacted are the texts in them."""
        if self.blank:
            return self._nothing()
        return self._known(_PLAIN.encode(self.redacted(value)))

    def _known(self, text: str) -> int:
        found = self._ids.get(text)
        if found is None:
            found = self._ids[text] = self._keep(text)
            self._cached += len(text)
        self.contents.add(found)
        return found

    def _keep(self, text: str) -> int:
        text = clean_text(text)
        key = tables.digest(text)
        row = self._conn.execute("SELECT id FROM contents WHERE hash = ?", (key,)).fetchone()
        if row is None:
            row = (self._conn.execute("INSERT INTO contents (hash, text) VALUES (?, ?)", (key, text)).lastrowid,)
        return int(row[0])

    def _nothing(self) -> int:
        if not self.contents:
            gone = "INSERT INTO contents (hash, state, text) VALUES (randomblob(16), ?, '')"
            self.contents.add(int(self._conn.execute(gone, (tables.GONE,)).lastrowid or 0))
        return next(iter(self.contents))

    def copy(self, of: int, copy: int) -> None:
        """Note that one content was made from another."""
        if of != copy and not self.blank and (of, copy) not in self._links:
            self._links.add((of, copy))
            self._conn.execute("INSERT OR IGNORE INTO copies VALUES (?, ?)", (of, copy))

    def packet(self, candidate: Candidate) -> int:
        """Return the id of a candidate's packet."""
        packet, origin = candidate.packet, candidate.origin
        content = self.text(packet.content)
        metadata = self._metadata(packet)
        stamp = packet.timestamp.isoformat() if packet.timestamp else None
        score = packet.relevance if packet.scored else None
        key = (content, origin, stamp, packet.token_count, score, metadata)
        found = self._packets.get(key)
        if found is None or self.blank:
            found = self._packets[key] = self._keep_packet(*key)
        self.packets.add(found)
        return found

    def _metadata(self, packet: ContextPacket) -> str:
        if self.blank:
            return "{}"
        if self._redact is None:
            try:
                text = _STRICT.encode(packet.meta)
                text.encode()
                return text
            except (TypeError, ValueError):  # what JSON does not have, or lone surrogates
                pass
        return json.dumps(self.redacted(json_ready(packet.meta)), ensure_ascii=False)

    def redacted(self, value: Any) -> Any:
        """Return JSON-ready values with all their texts redacted."""
        if self._redact is None:
            return value
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, dict):
            return {key: self.redacted(item) for key, item in value.items()}
        return [self.redacted(item) for item in value] if isinstance(value, list) else value

    def _keep_packet(self, content: int, origin: Any, *fields: Any) -> int:
        owner = audit_purge.owner_key(origin) if origin else None
        name = audit_purge.origin_key(origin) if origin else None
        key = tables.digest(content, owner, name, *fields)
        row = None
        if not self.blank:
            row = self._conn.execute("SELECT id FROM packets WHERE hash = ?", (key,)).fetchone()
        if row is None:
            values = (key, content, owner, name, *fields)
            made = "INSERT INTO packets (hash, content_id, owner, origin, timestamp, token_count, score, metadata) "
            hash_ = "randomblob(16)" if self.blank else "?1"
            row = (self._conn.execute(f"{made} VALUES ({hash_}, ?2, ?3, ?4, ?5, ?6, ?7, ?8)", values).lastrowid or 0,)
        return int(row[0])

    def said(self, items: Sequence[Said]) -> list[Any]:
        """Return messages of a conversation as `dump_said` writes them."""
        rows: list[Any] = []
        for start in range(0, len(items), BLOCK):
            block = items[start : start + BLOCK]
            key = tuple(map(id, block))
            known = self._said.get(key)
            if known is None or self.blank:
                before, self.contents = self.contents, set()
                known = (block, [dump_said(item, self) for item in block], self.contents)
                self.contents = before
                if not self.blank and len(block) == BLOCK:
                    self._said[key] = known
            rows += known[1]
            self.contents |= known[2]
        return rows

    def fates(self, items: Sequence[Decision], first: int, write: Callable[[], list[Any]]) -> list[Any]:
        """Return what `write` makes of fates that stay the same from build to build; `first` is the first's place."""
        key = (first, *map(id, items))
        known = self._fates.get(key)
        if known is None or self.blank:
            known = (items, write())
            if not self.blank and len(items) == BLOCK:
                self._fates[key] = known
        return known[1]

    def knows(self, text: str) -> bool:
        """Return whether a text was kept already."""
        return text in self._ids

    def config(self, config: ContextConfig, name: str) -> int:
        """Return the id of a config; equal ones have the same name."""
        found = self._configs.get(name)
        if found is None:
            found = self._configs[name] = self._keep_config(config.to_dict())
        return found

    def _keep_config(self, values: Mapping[str, Any]) -> int:
        plain = {name: self.redacted(value) if name in tables.FREE_TEXT else value for name, value in values.items()}
        text = json.dumps(json_ready(plain), ensure_ascii=False)
        key = tables.digest("config", text)
        row = self._conn.execute("SELECT id FROM configs WHERE hash = ?", (key,)).fetchone()
        if row is None:
            row = (self._conn.execute("INSERT INTO configs (hash, config) VALUES (?, ?)", (key, text)).lastrowid,)
        return int(row[0])

    def tell_stores(self, origins: Iterable[Origin | None]) -> None:
        """Tell the stores that texts come from that this audit has them, before it does."""
        for file in {origin.file for origin in origins if origin is not None} - self._linked:
            self._linked.add(file)
            try:
                audit_purge.link(file, self._path)
            except StoreError as error:
                log.warning("%s; what is purged there stays in the audit", error)
