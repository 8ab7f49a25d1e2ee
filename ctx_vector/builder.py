"""`ContextBuilder`: gather, select, structure, compress.

    builder = ContextBuilder(rag_tool=RAGTool(knowledge_base_path="./kb"))
    text = builder.build(user_query="...")              # the context as one text
    built = builder.assemble(user_query="...")          # the same, with messages, decisions and the budget

The clock and the build's id are read here and nowhere below: the same inputs with the same `now` give the same bytes.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctx_vector.allocation import Layers
from ctx_vector.built import BuiltContext
from ctx_vector.composing import Means, compose
from ctx_vector.config import ContextConfig
from ctx_vector.conversation import Listener
from ctx_vector.errors import ConfigError, CtxVectorError, InputError
from ctx_vector.gather import SourceSpec, gather, on_loop
from ctx_vector.history import History, plan_history, roll_summary
from ctx_vector.inputs import Given, Inputs, as_tool, make_request, named, read_inputs, retrieval_specs
from ctx_vector.live_sources import LiveSources, check_system
from ctx_vector.pictures import with_images
from ctx_vector.policies import SharePolicy
from ctx_vector.rules import shown
from ctx_vector.scoring import make_scorer
from ctx_vector.shared import Shared
from ctx_vector.sizing import BudgetPolicy, layered, sized
from ctx_vector.sources import LayerShares, SourceConfig
from ctx_vector.stages import Request, Summarizer, TokenCounter
from ctx_vector.structure import Template
from ctx_vector.tokens import as_counter, framing, tokenizer_fingerprint
from ctx_vector.trace import Trace

if TYPE_CHECKING:
    from ctx_vector.audit import AuditLog
    from ctx_vector.settings import Settings
    from ctx_vector.stages import Encoder


class ContextBuilder:
    """Builds contexts. Every argument is optional; a builder may be used from several threads.

    `memory_tool` and `rag_tool` are objects with ``run({"action": "search", ...})``, or a Memory and a KnowledgeBase;
    `sources` are objects with `load(request)`, which may be `async`, or SourceConfigs with layers. `encoder` defaults
    to the bundled multilingual model, loaded when first needed. `summarizer` shortens a text to a number of tokens, and
    sums up the older turns with `history_strategy="summary"`; `budget_policy` gives the size of each build from its
    request, and `share_policy` the weights of its parts or layers (policies.py). `model_max_tokens` is the model's
    window, only used to warn when a context takes over 70 % of it. `counter` replaces the tokenizer: a TokenCounter,
    another object with its methods, or a function that counts. `audit` records every build: an AuditLog, or the path of
    its file (audit.py). `config` may be a mapping of its fields.

    With SourceConfigs or a `budget_ratio` (the shares of the layers) the build has layers: `reserve_ratio` is not used,
    and the limit is the least of ``int(model_max_tokens * (1 - output_reserve_ratio))`` and the config's `max_tokens`
    where that is not the default. `scope` is who builds, `base_dir` roots the paths of loaders, and `allow_python`
    lets them call functions. `user_id` is whose builds the audit says they are, by default those of the user of
    `memory_tool`.

    Raises ConfigError for a config that is wrong.
    """

    def __init__(
        self,
        *,
        memory_tool: Any = None,
        rag_tool: Any = None,
        sources: Sequence[Any] = (),
        config: ContextConfig | Mapping[str, Any] | None = None,
        encoder: Encoder | None = None,
        counter: TokenCounter | Callable[[str], Any] | None = None,
        summarizer: Summarizer | None = None,
        budget_policy: BudgetPolicy | None = None,
        share_policy: SharePolicy | None = None,
        model_max_tokens: int | None = None,
        audit: AuditLog | str | os.PathLike[str] | None = None,
        budget_ratio: Mapping[str, float] | LayerShares | None = None,
        output_reserve_ratio: float = 0.2,
        scope: str | None = None,
        base_dir: str | Path | None = None,
        allow_python: bool = False,
        user_id: str | None = None,
    ) -> None:
        memory_tool, rag_tool = as_tool("memory_tool", memory_tool), as_tool("rag_tool", rag_tool)
        configs = [source for source in sources if isinstance(source, SourceConfig)]
        shares = _shares(budget_ratio, configs)
        self.memory_tool = memory_tool
        self.rag_tool = rag_tool
        self.sources = tuple(sources)
        self.summarizer = summarizer
        self.budget_policy = budget_policy
        self.share_policy = share_policy
        self.model_max_tokens = model_max_tokens
        self.audit = _audit_of(audit, rag_tool, memory_tool)
        self.user_id = user_id or getattr(getattr(memory_tool, "memory", None), "user_id", None)
        self._output_reserve_ratio = output_reserve_ratio
        self._given_counter = None if counter is None else as_counter(counter)
        shared = Shared(encoder, getattr(rag_tool, "knowledge", None))
        if shares is not None:
            shared.layers = Layers.of(shares, configs)
            shared.live = LiveSources(
                configs,
                scope=scope,
                base_dir=base_dir,
                allow_python=allow_python,
                encoder=shared.encoder,
                audit=self.audit,
                user_id=self.user_id,
            )
        self._use(shared, _config_of(config))
        self._check_system()

    @classmethod
    def from_config(
        cls,
        path: str | os.PathLike[str] | Settings,
        *,
        scope: str | None = None,
        allow_python: bool = False,
        **replacements: Any,
    ) -> ContextBuilder:
        """Return a builder as a YAML file says: model, budget, sources, context (see `settings`).

        With `scope` every source has to carry that scope, or `shared`. `allow_python` lets the file name functions to
        call. `replacements` are arguments of the constructor, such as `encoder` or `rag_tool`. Builds are recorded in
        the file of the settings, unless they say otherwise. Two builders share nothing else, also if they come from one
        file.

        Raises ConfigError with every problem of the file, and for rules of the layer system that are over its share.
        """
        from ctx_vector.settings import Settings, load_settings

        if isinstance(path, (str, os.PathLike)):
            settings = load_settings(path, scope=scope, allow_python=allow_python)
        elif isinstance(path, Settings):
            settings = path
        else:
            raise ConfigError([f"from_config: expected the path of a YAML file or Settings, got {shown(path)}"])
        arguments = settings.arguments()
        if settings.audit.enabled and "audit" not in replacements:
            from ctx_vector.audit import AuditLog

            kept = settings.audit
            arguments["audit"] = AuditLog(kept.path, max_age=kept.max_age, max_size=kept.max_size)
        builder = cls(**{**arguments, **replacements, "allow_python": allow_python})
        if "config" not in replacements:
            builder._use(builder._shared, settings.config, limited=True)
            builder._check_system()
        return builder

    def _check_system(self) -> None:
        """Raise ConfigError when the files of the layer system are over its share: the layer is never cut."""
        live, layers = self._shared.live, self._shared.layers
        if live is not None and layers is not None:
            share = int(self.config.max_tokens * layers.shares.system)
            if problems := check_system(live.system_tokens(self.counter.count), share):
                raise ConfigError(problems)

    def _use(self, shared: Shared, config: ContextConfig, *, limited: bool = False) -> None:
        """Take a config; `limited` says that its `max_tokens` is the limit, even if it is the default."""
        if shared.layers is not None:
            window = None if limited else self.model_max_tokens
            config = layered(config, window, self._output_reserve_ratio)
        self.config = config
        self._config_hash = config.hash
        if isinstance(config.strategy, str):
            self._check_strategy()
        self._shared = shared
        self.counter = self._given_counter or shared.counter(self.config.tokenizer)
        self._listener = Listener(self.counter)
        self._tokenizer: tuple[str, list[int]] | None = None
        plain = [source for source in self.sources if not isinstance(source, SourceConfig)]
        self._second = shared.second(config)
        tools = self.rag_tool, self.memory_tool
        self._retrieval = retrieval_specs(self.config, *tools, plain, shared.encoder, shared.requests, self._second)

    def _check_strategy(self) -> None:
        def unused() -> Encoder:
            raise LookupError

        try:
            make_scorer(self.config.strategy, unused)
        except LookupError:
            pass

    def with_config(self, config: ContextConfig | Mapping[str, Any]) -> ContextBuilder:
        """Return a builder with another config that shares sources, caches and the encoder with this one."""
        other = copy.copy(self)
        other._use(self._shared, _config_of(config))
        return other

    # -- the one job -------------------------------------------------------------------------------------------------

    def build(self, user_query: str, **arguments: Any) -> str:
        """Return `assemble(...).text`; takes the same keywords."""
        return self.assemble(user_query, **arguments).text

    async def aassemble(self, user_query: str, **arguments: Any) -> BuiltContext:
        """Return `assemble(...)` from a thread, so that an event loop is not held up; `async` sources run on that loop.

        A build whose task is cancelled goes on to its end in its thread, and is recorded.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        built: BuiltContext = await asyncio.to_thread(on_loop, loop, self.assemble, user_query, **arguments)
        return built

    @named
    def assemble(
        self,
        user_query: str,
        *,
        conversation_history: Sequence[Any] = (),
        system_instructions: str | None = None,
        custom_packets: Sequence[Any] = (),
        documents: Sequence[Any] = (),
        tools: Sequence[Any] = (),
        tool_categories: Sequence[str] | None = None,
        tool_results: Sequence[Any] | Mapping[str, Any] = (),
        agent_outputs: Sequence[Any] | Mapping[str, Any] = (),
        images: Sequence[Any] = (),
        state: str | Mapping[str, Any] | None = None,
        overrides: Mapping[str, Any] | None = None,
        session_id: str | None = None,
        max_tokens: int | None = None,
        now: datetime | str | float | None = None,
    ) -> BuiltContext:
        """Build the context of one request.

        `conversation_history` holds Messages or mappings in order of speaking; `custom_packets` packets, mappings or
        texts; `documents` results retrieved elsewhere (text, mapping or object with content/text and an optional
        score in [0, 1]); `tools` definitions as OpenAI functions or of MCP, of which `tool_categories` keeps some;
        `tool_results` texts or JSON-ready values, `agent_outputs` texts of other agents, both in a list or by name;
        `images` files, bytes, addresses or parts of a message, sent with the query;
        `state` a text or a flat mapping; `overrides` what takes the place of a configured source in this build;
        `max_tokens` overrides the config; `now` defaults to the clock.

        Raises BudgetError when system instructions, Task and Output alone do not fit, InputError for wrong arguments. A
        failing source is no error: it is recorded and left out.
        """
        started, clock = time.perf_counter(), time.time()
        given = Given(
            user_query,
            conversation_history,
            system_instructions,
            custom_packets,
            documents,
            tools,
            tool_categories,
            tool_results,
            agent_outputs,
            images,
            state,
            session_id,
            now,
        )
        asked = self._sources(user_query if isinstance(user_query, str) else "", overrides)
        inputs = read_inputs(self.config, asked, self._listener, given, self._second)
        config, layers = self._sized(inputs.request, max_tokens)
        inputs = with_images(inputs, images, config, self.counter)
        template = Template(config, self.counter, inputs.query, inputs.roles, layers.titles if layers else None)
        history = self._plan(inputs, config, template)
        specs = (*inputs.specs, history.spec())
        gathered = gather(specs, inputs.request)
        trace = Trace.of(inputs, config, history, specs, asked, gathered, self.model_max_tokens, clock)
        if layers is not None:
            trace.given["layers"] = layers.to_dict()
        built = compose(trace, history, template, self._means(config), started)
        if self.audit is not None:
            self.audit.record(built, user_id=self.user_id)
        return built

    def regather(self, trace: Trace) -> BuiltContext:
        """Make a build again with the sources, the scorer and the config that this builder has now.

        What the caller gave and the conversation are those of the trace, and so is `now`. Nothing is recorded.
        """
        started = time.perf_counter()
        request = make_request(self.config, trace.query, trace.now, trace.session_id, self._second)
        config, layers = self._sized(request, trace.config.max_tokens)
        config = config.with_(max_tokens=trace.config.max_tokens)
        asked = self._sources(trace.query)
        given: dict[str, list[Any]] = {name: [] for name in trace.sources if name not in (*trace.asked, "history")}
        for item in trace.gathered.candidates:
            if item.source in given:
                given[item.source].append(item)
        specs = [SourceSpec(name, None, _given(items)) for name, items in given.items()]
        history = trace.history()
        gathered = gather((*specs, *asked, history.spec()), request)
        again = trace.anew(config, (*given, *(spec.name for spec in asked), "history"), gathered, self.model_max_tokens)
        if layers is not None:
            again.given = {**again.given, "layers": layers.to_dict()}
        template = Template(config, self.counter, trace.query, trace.roles, layers.titles if layers else None)
        return compose(again, history, template, self._means(config), started, quiet=True)

    def _sources(self, query: str, overrides: Mapping[str, Any] | None = None) -> Sequence[SourceSpec]:
        """Return the sources to ask: the configured ones, then retrieval, which a blank query does not ask."""
        live = self._shared.live
        if live is None and overrides:
            raise InputError(f"overrides: no source has the name {next(iter(overrides))!r}; there are none")
        configured = live.specs(query, overrides) if live is not None else ()
        return (*configured, *self._retrieval) if query.strip() else configured

    def _sized(self, request: Request, max_tokens: int | None) -> tuple[ContextConfig, Layers | None]:
        layers = self._shared.layers
        return sized(self.config, layers, request, max_tokens, self.budget_policy, self.share_policy)

    def _plan(self, inputs: Inputs, config: ContextConfig, template: Template) -> History:
        def summarise(history: History, turns: int) -> None:
            session, summaries = inputs.request.session_id, self._shared.summaries
            roll_summary(history, turns, template.locale, session, summaries, self.summarizer, self.counter)

        return plan_history(
            inputs.said,
            inputs.query,
            config,
            self.counter,
            lambda: self._shared.scorer(config.strategy),
            self._shared.encoder,
            summarise,
        )

    def _means(self, config: ContextConfig) -> Means:
        shared = self._shared
        return Means(
            self.counter,
            lambda: shared.scorer(config.strategy),
            shared.encoder,
            shared.calibration,
            self._facts,
            self.summarizer,
            self._second,
        )

    def _counts_like(self) -> tuple[str, list[int]]:
        """Return the tokenizer's fingerprint and its framing of messages, found at the first build."""
        if self._tokenizer is None:
            self._tokenizer = tokenizer_fingerprint(self.counter), list(framing(self.counter))
        return self._tokenizer

    def _facts(self, trace: Trace) -> dict[str, Any]:
        """Return what a build was made with: names, fingerprints, versions."""
        config, encoder, live = trace.config, self._shared.loaded(), self._shared.live
        knowledge = getattr(self.rag_tool, "knowledge", None)
        found = "knowledge" in trace.asked and all(fault.source != "knowledge" for fault in trace.gathered.faults)
        try:
            version = getattr(knowledge, "searched", None) if found else None  # saves reading it once more
            if version is None:
                version = getattr(knowledge, "version", None)
            if version is None and live is not None:
                version = live.knowledge_version()
        except CtxVectorError:  # a knowledge base that broke is a fault in the record already
            version = None
        return {
            "strategy": config.strategy if isinstance(config.strategy, str) else config.to_dict()["strategy"],
            "config_hash": self._config_hash if config is self.config else config.hash,
            "tokenizer": self.counter.name,
            "tokenizer_fingerprint": self._counts_like()[0],
            "framing": self._counts_like()[1],
            "model": getattr(encoder, "name", None),
            "model_fingerprint": getattr(encoder, "fingerprint", None),
            "knowledge_version": version,
        }


def _config_of(given: ContextConfig | Mapping[str, Any] | None) -> ContextConfig:
    """Return the config given, also as a mapping of its fields, or the default one."""
    if given is None or isinstance(given, ContextConfig):
        return given or ContextConfig()
    if isinstance(given, Mapping):
        return ContextConfig.from_dict(given)
    raise ConfigError([f"config: expected a ContextConfig or a mapping of its fields, got {shown(given)}"])


def _audit_of(audit: AuditLog | str | os.PathLike[str] | None, *tools: Any) -> AuditLog | None:
    """Return the audit, known to the stores whose purges it must hear of at once."""
    if isinstance(audit, (str, os.PathLike)):
        from ctx_vector.audit import AuditLog

        audit = AuditLog(audit)
    if audit is not None:
        if not callable(getattr(audit, "record", None)):
            raise ConfigError([f"audit: expected an AuditLog or the path of its file, got {shown(audit)}"])
        from ctx_vector.audit_purge import Audits

        for tool in tools:
            store = getattr(tool, "knowledge", None) or getattr(tool, "memory", None)
            if isinstance(known := getattr(store, "audits", None), Audits):
                known.add(audit)
    return audit


def _shares(given: Mapping[str, float] | LayerShares | None, configs: Sequence[SourceConfig]) -> LayerShares | None:
    """Return the shares of the layers, None for a builder without layers."""
    if given is None:
        return LayerShares() if configs else None
    return given if isinstance(given, LayerShares) else LayerShares.from_mapping(given)


def _given(candidates: list[Any]) -> Callable[[Request], Any]:
    return lambda _: candidates
