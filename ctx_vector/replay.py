"""A build again, from its trace alone.

    Trace, as noted ── compose ── BuiltContext      the same bytes of text, messages and decisions
    with another config ── compose ── BuiltContext  the same candidates and relevances, selected and rendered anew

With the sources as they are now: `ContextBuilder.regather`.
"""

from __future__ import annotations

import time

from ctx_vector.built import BuiltContext
from ctx_vector.composing import Means, compose
from ctx_vector.config import ContextConfig
from ctx_vector.shared import Shared
from ctx_vector.stages import TokenCounter
from ctx_vector.structure import Template
from ctx_vector.trace import Trace


def rebuild(trace: Trace, counter: TokenCounter | None = None, *, config: ContextConfig | None = None) -> BuiltContext:
    """Make a build again from its trace: the same bytes of text, messages and decisions, whatever the sources are now.

    No source, encoder, scorer or summarizer is asked. `counter` is needed when the tokenizer was a callable. With
    another `config` the same candidates with the same relevances are selected and rendered anew by it.
    """
    started, again, shared = time.perf_counter(), trace.again(), Shared(None)
    again.config = config = config or trace.config
    counter = counter or shared.counter(config.tokenizer)
    means = Means(
        counter, lambda: shared.scorer(config.strategy), shared.encoder, shared.calibration, lambda _: trace.facts
    )
    layers = again.given.get("layers")
    template = Template(config, counter, again.query, again.roles, layers and layers["titles"])
    return compose(again, again.history(), template, means, started, quiet=True)
