"""Loaders that a source names by a text.

    yaml:faq.yaml              items with content, version, expires_at ...; or one flat mapping, such as a profile
    text:rules.md              a file as one item; YAML front matter may give version, document_id, expires_at
    kb:kb                      a search in a knowledge base, with `top_k` and `score_threshold`
    memory:memory              a search in a user's memories; the user from `args: {user: ada}`
    session:                   what was said in the session before
    python:module.function     called with the request and `args`; refused unless `allow_python=True`

Paths are relative to a base folder, and nothing outside of it is opened, whatever the text or a link in it says.
Files are read again when they change: size and times are looked at first, then the content's hash.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.errors import ConfigError, InputError
from ctx_vector.rules import nearest, number, shown
from ctx_vector.source_files import FileLoader, rooted, text_items, yaml_items
from ctx_vector.sources import SourceConfig

if TYPE_CHECKING:
    from ctx_vector.knowledge import KnowledgeBase
    from ctx_vector.memory import Memory
    from ctx_vector.packets import Candidate
    from ctx_vector.stages import Encoder, Request

#: Memories asked for without `top_k`; ContextConfig has the same default.
MEMORY_LIMIT: Final = 60
#: Turns of a session without `top_k`.
SESSION_TURNS: Final = 5
_IMPORTANCE: Final = number(0, 1)
_PURGED: Final = "(purged)"


def check_loader(config: SourceConfig, base_dir: str | Path | None = None, *, allow_python: bool = False) -> list[str]:
    """Return what is wrong with a loader given as text, as problems for a ConfigError; opens and runs nothing."""
    if not isinstance(config.loader, str):
        return []
    kind, _, rest = config.loader.partition(":")
    field = f"sources.{config.name}.loader"
    base = Path(base_dir if base_dir is not None else ".")
    if kind == "python":
        refusal = "python: runs code, which was not allowed; pass allow_python=True if you trust it"
        return [] if allow_python else [f"{field}: {refusal}"]
    if kind == "session":
        return _unknown_args(config, ())
    try:
        path = rooted(base, rest.strip())
    except InputError as error:
        return [f"{field}: {error}"]
    if kind in ("yaml", "text"):
        return [] if path.is_file() else [f"{field}: there is no file {rest.strip()} in {base}"]
    if kind == "kb":
        problems = _unknown_args(config, ("filter",))
        if not (path / "ctx.sqlite3").is_file():
            problems.append(f"{field}: there is no knowledge base in {rest.strip()}; make one: ctx-vector index")
        return problems
    problems = _unknown_args(config, ("user", "min_importance"))
    user = config.args.get("user")
    if not isinstance(user, str) or not user.strip():
        problems.append(f"sources.{config.name}.args.user: expected a name, got {shown(user)}")
    if text := _IMPORTANCE(config.args.get("min_importance", 0.3)):
        problems.append(f"sources.{config.name}.args.min_importance: {text}")
    return problems


def _unknown_args(config: SourceConfig, known: tuple[str, ...]) -> list[str]:
    there = ", ".join(known) or "it takes none"
    return [
        f"sources.{config.name}.args.{key}: unknown argument{nearest(key, known)} ({there})"
        for key in config.args
        if key not in known
    ]


def open_loader(
    config: SourceConfig,
    *,
    base_dir: str | Path | None = None,
    allow_python: bool = False,
    encoder: Callable[[], Encoder] | None = None,
    audit: Any = None,
    user_id: str | None = None,
) -> Any:
    """Return the loader of a source whose `loader` is a text. `base_dir` defaults to the working folder; `audit` is the
    AuditLog that sessions are read from, those of `user_id` if it is given.

    Raises ConfigError naming what is wrong.
    """
    if problems := check_loader(config, base_dir, allow_python=allow_python):
        raise ConfigError(problems)
    kind, _, rest = config.loader.partition(":")
    base = Path(base_dir if base_dir is not None else ".")
    if kind == "python":
        return _function(f"sources.{config.name}.loader", rest, base)
    if kind == "session":
        if audit is None:
            raise ConfigError(
                [f"sources.{config.name}.loader: session: reads the audit, and there is none; give the builder audit="]
            )
        return SessionLoader(config, audit, user_id)
    if kind in ("yaml", "text"):
        return FileLoader(base, rest.strip(), yaml_items if kind == "yaml" else text_items)
    if kind == "kb":
        return KnowledgeLoader(rooted(base, rest.strip()), config, encoder)
    return MemoryLoader(rooted(base, rest.strip()), config, encoder)


# -- what is searched -------------------------------------------------------------------------------------------------


class KnowledgeLoader:
    """A search in a knowledge base, with the vectors that are stored there."""

    asks = True

    def __init__(self, path: Path, config: SourceConfig, encoder: Callable[[], Encoder] | None) -> None:
        from ctx_vector.errors import StoreError
        from ctx_vector.knowledge import KnowledgeBase

        self._config = config
        self._encoder = encoder
        self._lock = threading.Lock()
        self._is_ready = False
        try:
            self._knowledge = KnowledgeBase(path, create=False)
        except StoreError as error:
            raise ConfigError([f"sources.{config.name}.loader: {error}"]) from None

    def ready(self) -> None:
        """Open the encoder, which may take longer than a search."""
        self._opened()

    def _opened(self) -> tuple[KnowledgeBase, Encoder]:
        from ctx_vector.encoders import load_encoder
        from ctx_vector.knowledge import KnowledgeBase
        from ctx_vector.model_store import cards

        with self._lock:
            if not self._is_ready:
                encoder = self._encoder() if self._encoder is not None else load_encoder()
                own = self._knowledge.stats()["model"]
                if own is not None and own != encoder.name and own in cards():
                    encoder = load_encoder(own)
                path = self._knowledge.path
                self._knowledge.close()
                self._knowledge = KnowledgeBase(path, encoder, create=False)
                self._is_ready = True
            return self._knowledge, self._encoder() if self._encoder is not None else self._knowledge.encoder

    @property
    def knowledge(self) -> KnowledgeBase:
        """The KnowledgeBase behind."""
        return self._knowledge

    def load(self, request: Request) -> list[Candidate]:
        """Return the passages found, best first."""
        from ctx_vector.retrieval import passages

        knowledge, encoder = self._opened()
        return passages(
            knowledge,
            request.user_query,
            now=request.now,
            encoder=encoder,
            limit=request.top_k,
            min_score=request.score_threshold,
            filter=self._config.args.get("filter"),
            how=request.how,
        )


class MemoryLoader:
    """A search in the memories of one user."""

    asks = True

    def __init__(self, path: Path, config: SourceConfig, encoder: Callable[[], Encoder] | None) -> None:
        self._path = path
        self._config = config
        self._encoder = encoder
        self._lock = threading.Lock()
        self._memory: Memory | None = None

    def ready(self) -> None:
        """Open the encoder, which may take longer than a search."""
        self._opened()

    def _opened(self) -> tuple[Memory, Encoder]:
        from ctx_vector.memory import Memory

        with self._lock:
            if self._memory is None:
                encoder = self._encoder() if self._encoder is not None else None
                self._memory = Memory(self._path, self._config.args["user"], encoder)
            return self._memory, self._encoder() if self._encoder is not None else self._memory.encoder

    def load(self, request: Request) -> list[Candidate]:
        """Return the memories found, best first."""
        from ctx_vector.retrieval import memories

        memory, encoder = self._opened()
        found = memories(
            memory,
            request.user_query,
            now=request.now,
            encoder=encoder,
            limit=self._config.top_k or MEMORY_LIMIT,
            min_importance=self._config.args.get("min_importance", 0.3),
            how=request.how,
        )
        least = self._config.score_threshold or 0.0
        return [item for item in found if max(item.known.values(), default=1.0) >= least]


class SessionLoader:
    """What was said in the request's session before, as the audit has it: a turn an item, oldest first.

    A build records its question and the messages it was given, so that an answer is known once a later build was given
    it. For callers that do not hand over the conversation themselves.
    """

    asks = True

    def __init__(self, config: SourceConfig, audit: Any, user_id: str | None = None) -> None:
        self._turns = config.top_k or SESSION_TURNS
        self._audit = audit
        self._user_id = user_id  # two users may name their sessions alike

    def load(self, request: Request) -> list[dict[str, Any]]:
        """Return the newest turns of the session; none without a session."""
        if request.session_id is None:
            return []
        self._audit.flush(1.0)  # what this process has recorded so far
        rows = self._audit.list(session=request.session_id, limit=self._turns, user_id=self._user_id)
        said: dict[tuple[str, str], datetime | None] = {}
        for row in reversed(rows):
            built = self._audit.show(row["id"]).built
            for message in (item.message for item in built.trace.said):
                if message.role in ("user", "assistant"):
                    said.setdefault((message.role, message.text.strip()), message.timestamp)
            said.setdefault(("user", built.query.strip()), built.trace.now)
        turns: list[dict[str, Any]] = []
        for (role, text), stamp in said.items():
            if not text or _PURGED in text:
                continue
            if role == "user" or not turns:
                turns.append(
                    {"content": f"{role}: {text}", "timestamp": stamp, "metadata": {"memory_type": "episodic"}}
                )
            else:
                turns[-1]["content"] += f"\n{role}: {text}"
        return turns[-self._turns :]


# -- code -------------------------------------------------------------------------------------------------------------


def _function(field: str, name: str, base: Path) -> Any:
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(_module(base, module), attribute, None)
    except Exception as error:  # importing runs somebody's code, which may raise anything
        raise ConfigError([f"{field}: cannot import {module}: {type(error).__name__}: {error}"]) from None
    if callable(getattr(found, "load", None)) and not isinstance(found, type):
        return found
    if not callable(found) or isinstance(found, type):
        raise ConfigError([f"{field}: expected a function {attribute} in {module}, got {shown(found)}"])
    return found


def _module(base: Path, name: str) -> Any:
    """Return a module: a file of the base folder, under a name of its own so that no two agents share it, or an
    installed one.
    """
    try:
        path = rooted(base, f"{name.replace('.', '/')}.py")
    except InputError:
        path = base  # a link to elsewhere: not the base folder's own
    if not path.is_file():
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(f"ctx_vector_source_{os.urandom(8).hex()}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
