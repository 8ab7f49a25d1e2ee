"""A builder's settings from a YAML file: model, budget, sources, context, audit; checked in one pass.

    model:   {name: local, max_tokens: 128000, output_reserve_ratio: 0.2}
    budget:  {total: 60000, system: 0.1, static: 0.2, dynamic: 0.5, tool: 0.15, buffer: 0.05}
    sources:
      faq: {layer: static, loader: "yaml:faq.yaml", max_share: 0.5}
    context: {min_relevance: 0.2}
    audit:   {path: audit.sqlite3, max_age: 90d, max_size: 500MB}
    base_dir: .

A file without sections, whose keys are fields of ContextConfig, is taken for a ``context`` alone.

Every problem is listed with its dotted path and its line, and the nearest name for one that does not exist. What is
allowed in a section is said where it is used: `SourceConfig`, `LayerShares`, `ContextConfig`; the rest is here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from ctx_vector.audit_bounds import bytes_of, span_of
from ctx_vector.config import ContextConfig
from ctx_vector.errors import ConfigError, InputError
from ctx_vector.plain_yaml import MOST_CHARS, REFUSED, PlainYaml, read_yaml
from ctx_vector.rerank import check_reranker
from ctx_vector.rules import MOST_TOKENS, Rule, nearest, number, shown, typed
from ctx_vector.scoring import SCORERS, make_scorer
from ctx_vector.source_files import rooted
from ctx_vector.source_loaders import check_loader
from ctx_vector.sources import SHARED, LayerShares, SourceConfig, check_sources

T = TypeVar("T")
Where = tuple[str | int, ...]

AUDIT_PATH: Final = ".ctx_vector/audit.sqlite3"


def _read_by(read: Callable[[Any], object], kind: list[str]) -> Rule:
    def check(value: Any) -> str | None:
        try:
            read(value)
        except (InputError, OverflowError) as error:
            return str(error).partition(": ")[2] or str(error)
        return None

    return Rule(check, {"type": kind})


def _age(value: Any) -> timedelta | None:
    return span_of(value, "max_age")


_TEXT: Final = typed((str, type(None)), "a text")
#: The rules of the sections that are no class of their own; the JSON Schema is made from them.
MODEL_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "name": _TEXT,
        "max_tokens": number(1, MOST_TOKENS, whole=True, optional=True),
        "output_reserve_ratio": number(0, 0.99),
    }
)
TOTAL_RULE: Final = number(1, MOST_TOKENS, whole=True, optional=True)
AUDIT_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "path": _TEXT,
        "enabled": typed(bool, "True or False"),
        "max_age": _read_by(_age, ["string", "number", "null"]),
        "max_size": _read_by(bytes_of, ["string", "number", "null"]),
    }
)
#: Part budgets that mean something beside layers.
_KEPT_BUDGETS: Final = ("history", "images")
SECTIONS: Final = ("model", "budget", "sources", "context", "audit", "base_dir")
_FIELDS: Final = tuple(ContextConfig.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Where builds are recorded, and for how long and how many bytes; None for no bound."""

    path: Path
    enabled: bool = True
    max_age: timedelta | None = None
    max_size: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a YAML file says. `total` is the size of a context: the least of what the model leaves after its output,
    `budget.total`, and `context.max_tokens`; `config.max_tokens` is the same. `layered` says that the file has a
    model, a budget or sources, so that builds have layers.
    """

    config: ContextConfig
    sources: tuple[SourceConfig, ...]
    shares: LayerShares
    total: int
    model_name: str | None
    model_max_tokens: int | None
    output_reserve_ratio: float
    audit: AuditSettings
    base_dir: Path
    layered: bool = True
    scope: str | None = None
    path: Path | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that make a ContextBuilder of these settings, but for its audit."""
        return {
            "sources": self.sources,
            "config": self.config,
            "budget_ratio": self.shares if self.layered else None,
            "model_max_tokens": self.model_max_tokens,
            "output_reserve_ratio": self.output_reserve_ratio,
            "scope": self.scope,
            "base_dir": self.base_dir,
        }


def load_settings(path: str | os.PathLike[str], *, scope: str | None = None, allow_python: bool = False) -> Settings:
    """Return the settings in a YAML file. With `scope` every source has to carry that scope, or `shared`.

    Files and folders that sources name have to be there; nothing is opened or run. Raises ConfigError with every
    problem, also when the file cannot be read.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            data = stream.read(4 * MOST_CHARS + 1)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError([f"{file}: is not UTF-8 text (byte {error.start}); save it as UTF-8"]) from None
    except (OSError, ValueError) as error:
        raise ConfigError([f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}"]) from None
    return parse_settings(text, file.parent, scope=scope, allow_python=allow_python, path=file)


def parse_settings(
    text: str,
    folder: str | os.PathLike[str] = ".",
    *,
    scope: str | None = None,
    allow_python: bool = False,
    path: Path | None = None,
) -> Settings:
    """Return the settings in a YAML text; `folder` is where paths begin unless `base_dir` says otherwise."""
    if scope is not None and (not isinstance(scope, str) or not scope.strip()):
        raise ConfigError([f"scope: expected the name of a scope or None, got {shown(scope)}"])
    try:
        found = read_yaml(text)
    except InputError as error:
        raise ConfigError([f"{path or 'settings'}: {error}"]) from None
    return _Check(found, Path(folder), scope, allow_python=allow_python).settings(path)


class _Check:
    """One pass over a file: sections become objects, and problems are collected with path and line."""

    def __init__(self, found: PlainYaml, folder: Path, scope: str | None, *, allow_python: bool) -> None:
        self._found = found
        self._folder = folder
        self._scope = scope
        self._allow_python = allow_python
        self._problems = list(found.problems)
        self._context_at: Where = ("context",)

    def settings(self, path: Path | None) -> Settings:
        value = self._found.value
        if value is REFUSED or not isinstance(value, (Mapping, type(None))):
            if value is not REFUSED:
                self._add((), f"expected a mapping with {', '.join(SECTIONS)}, got {shown(value)}")
            raise ConfigError(self._in_order())
        top = dict(value or {})
        if not any(key in SECTIONS for key in top) and any(key in _FIELDS for key in top):
            top, self._context_at = {"context": top}, ()
        self._unknown((), top, SECTIONS)
        base = self._base_dir(top.get("base_dir"))
        model = self._section("model", top, MODEL_RULES)
        budget = dict(self._mapping("budget", top))
        total = budget.pop("total", None)
        if text := TOTAL_RULE(total):
            self._add(("budget", "total"), text)
            total = None
        context = self._mapping("context", top)
        reserve = model.get("output_reserve_ratio", 0.2)
        limits = [total, context.get("max_tokens")]
        if model.get("max_tokens") is not None:
            limits.append(self._left(model["max_tokens"], reserve))
        size = min((limit for limit in limits if _is_size(limit)), default=ContextConfig().max_tokens)
        shares = self._made(("budget",), "budget", lambda: LayerShares.from_mapping(budget, "budget"))
        layered = any(top.get(name) for name in ("model", "budget", "sources"))
        config = self._context(context, size, base)
        if layered and config is not None:
            for part in config.budgets:
                if part not in _KEPT_BUDGETS:
                    self._add(("context", "budgets", part), "not used with layers; give a layer a share under budget")
        sources = self._sources(self._mapping("sources", top), base)
        audit = self._audit(self._section("audit", top, AUDIT_RULES), base)
        for source in sources:
            if source.loader == "session:" and source.enabled and audit is not None and not audit.enabled:
                self._add(("sources", source.name, "loader"), "session: reads the audit, which is not enabled")
        if self._problems or shares is None or config is None or base is None or audit is None:
            raise ConfigError(self._in_order())
        return Settings(
            config=config,
            sources=tuple(sources),
            shares=shares,
            total=size,
            model_name=model.get("name"),
            model_max_tokens=model.get("max_tokens"),
            output_reserve_ratio=float(reserve),
            audit=audit,
            base_dir=base,
            layered=layered,
            scope=self._scope,
            path=path,
        )

    # -- problems -----------------------------------------------------------------------------------------------------

    def _add(self, path: Where, text: str) -> None:
        self._problems.append(self._found.problem(path, text))

    def _in_order(self) -> list[str]:
        """Return the problems by line; those without one come last."""
        return [str(one) for one in sorted(self._problems, key=lambda one: (one.line is None, one.line))]

    def _made(self, path: Where, label: str, make: Callable[[], T]) -> T | None:
        """Return what `make` makes; the problems it raises get their lines. `label` is what they begin with."""
        try:
            return make()
        except ConfigError as error:
            for problem in error.problems:
                where, _, text = problem.partition(": ")
                rest = where.removeprefix(label).removeprefix(".")
                self._place(path, rest, text)
            return None

    def _place(self, path: Where, rest: str, text: str) -> None:
        """Add a problem of ``rest``, a dotted name under `path`, unless its value was refused already."""
        here = path
        for part in rest.split(".") if rest else ():
            here = (*here, part)
        if text.startswith("missing") and here in self._found.lines:
            return  # it is there, but its value was refused
        self._add(here, text)

    def _unknown(self, path: Where, given: Mapping[str, Any], known: Sequence[str]) -> None:
        for key in given:
            if key not in known:
                hint = nearest(key, known)
                if not path and not hint:
                    hint = "; put it under context" if key in _FIELDS else nearest(key, _FIELDS)
                what = "section" if not path else "field"
                self._add((*path, key), f"unknown {what}{hint or f'; there are {_list(known)}'}")

    # -- sections -----------------------------------------------------------------------------------------------------

    def _mapping(self, name: str, top: Mapping[str, Any]) -> Mapping[str, Any]:
        value = top.get(name)
        if value is None or value is REFUSED:
            return {}
        if not isinstance(value, Mapping):
            self._add((name,), f"expected a mapping, got {shown(value)}")
            return {}
        return {key: _cleaned(item) for key, item in value.items() if item is not REFUSED}

    def _section(self, name: str, top: Mapping[str, Any], rules: Mapping[str, Rule]) -> dict[str, Any]:
        given = self._mapping(name, top)
        self._unknown((name,), given, tuple(rules))
        good: dict[str, Any] = {}
        for key, rule in rules.items():
            if key in given:
                if text := rule(given[key]):
                    self._add((name, key), text)
                else:
                    good[key] = given[key]
        return good

    def _base_dir(self, value: Any) -> Path | None:
        if value is REFUSED:
            return None
        if value is not None and (not isinstance(value, str) or not value.strip() or "\0" in value):
            self._add(("base_dir",), f"expected a folder, got {shown(value)}")
            return None
        try:
            base = (self._folder / (value or ".")).resolve()
            there = base.is_dir()
        except (OSError, ValueError, RuntimeError):
            there = False
        if not there:
            self._add(("base_dir",), f"there is no folder {shown(value or str(self._folder))}")
            return None
        return base

    def _left(self, tokens: int, reserve: float) -> int:
        size = int(tokens * (1 - reserve))
        if size < 1:
            self._add(("model", "max_tokens"), f"expected more than the reserve for the output, got {tokens}")
        return max(1, size)

    def _context(self, values: Mapping[str, Any], size: int, base: Path | None) -> ContextConfig | None:
        given = dict(values)
        tokenizer = given.get("tokenizer")
        if isinstance(tokenizer, str) and tokenizer.startswith("hf:") and base is not None:
            try:
                given["tokenizer"] = f"hf:{rooted(base, tokenizer.removeprefix('hf:'))}"
            except InputError as error:
                self._add((*self._context_at, "tokenizer"), str(error))
        strategy = given.get("strategy")
        if isinstance(strategy, str) and strategy.strip() and strategy not in SCORERS:  # a plugin, or nothing known
            self._made(self._context_at, "", lambda: make_scorer(strategy, _no_encoder))
        rerank = given.get("rerank")
        if isinstance(rerank, str) and rerank.strip():
            if base is not None and (base / rerank).is_dir():  # the folder of a cross-encoder
                given["rerank"] = rerank = str(base / rerank)
            self._made(self._context_at, "", lambda: check_reranker(rerank))
        config = self._made(self._context_at, "", lambda: ContextConfig.from_dict(given))
        return None if config is None else config.with_(max_tokens=size)

    def _sources(self, values: Mapping[str, Any], base: Path | None) -> list[SourceConfig]:
        made = []
        for name, given in values.items():
            label, path = f"sources.{name}", ("sources", name)
            source = self._made(path, label, partial(SourceConfig.from_dict, name, given))
            if source is not None:
                made.append(source)
            if isinstance(given, Mapping):
                self._check_scope(path, given)
                if base is not None and given.get("enabled") is not False:  # also if another field is wrong
                    self._made(path, label, partial(_check_paths, name, given, base, allow_python=self._allow_python))
        for problem in check_sources(made):
            self._place(("sources",), "", problem.partition(": ")[2])
        return made

    def _check_scope(self, path: Where, given: Mapping[str, Any]) -> None:
        scope, here = given.get("scope"), (*path, "scope")
        if self._scope is None or (scope is None and here in self._found.lines):
            return
        if scope is None:
            self._add(here, f"missing; give {self._scope} or {SHARED}")
        elif isinstance(scope, str) and scope not in (self._scope, SHARED):
            self._add(here, f"expected {self._scope} or {SHARED}, got {shown(scope)}")

    def _audit(self, values: Mapping[str, Any], base: Path | None) -> AuditSettings | None:
        if base is None:
            return None
        try:
            path = rooted(base, values.get("path") or AUDIT_PATH)
        except InputError as error:
            self._add(("audit", "path"), str(error))
            return None
        return AuditSettings(
            path, values.get("enabled", True), _age(values.get("max_age")), bytes_of(values.get("max_size"))
        )


def _no_encoder() -> Any:
    """Stand in for the encoder of a scorer that is only made to see whether its name exists."""
    return None


def _check_paths(name: str, given: Mapping[str, Any], base: Path, *, allow_python: bool) -> None:
    loader, args = given.get("loader"), given.get("args", {})
    try:
        probe = SourceConfig("source", "static", loader, args if isinstance(args, Mapping) else {})
    except ConfigError:
        return  # told already
    if problems := check_loader(probe, base, allow_python=allow_python):
        raise ConfigError([problem.replace("sources.source", f"sources.{name}", 1) for problem in problems])


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_TOKENS


def _cleaned(value: Any) -> Any:
    """Return a value without what was refused in it."""
    if isinstance(value, dict):
        return {key: _cleaned(item) for key, item in value.items() if item is not REFUSED}
    if isinstance(value, list):
        return [_cleaned(item) for item in value if item is not REFUSED]
    return value


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)
