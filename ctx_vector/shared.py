"""What the builders made from one by `with_config` share, so that another config costs nothing to try.

ContextBuilder ─┬─ Shared: the encoder, loaded when first needed and cached; scorers by name; counters by name;
with_config ────┘          summaries of conversations by session; the configured sources and their layers; the
                           requests that sources have not answered yet
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ctx_vector.allocation import Layers
from ctx_vector.gather import Requests
from ctx_vector.live_sources import LiveSources
from ctx_vector.rerank import SecondPass, SecondPasses
from ctx_vector.scoring import make_scorer
from ctx_vector.search_model import as_encoder, check_encoder
from ctx_vector.stages import TokenCounter
from ctx_vector.summary import Summaries
from ctx_vector.tokens import TokenCounter as ExactCounter
from ctx_vector.tokens import as_counter

if TYPE_CHECKING:
    from ctx_vector.calibration import Calibration
    from ctx_vector.config import ContextConfig
    from ctx_vector.stages import Encoder, Scorer


class Shared:
    """What several builders use in common. Safe to use from several threads."""

    def __init__(self, encoder: Encoder | str | os.PathLike[str] | None, knowledge: Any = None) -> None:
        self._wanted = check_encoder(encoder)
        self._encoder = None if isinstance(encoder, (str, os.PathLike)) else encoder
        self._knowledge = knowledge
        self._lock = threading.RLock()  # a scorer is made with the encoder
        self._scorers: dict[str, Scorer] = {}
        self._passes = SecondPasses(self.encoder)
        self._calibration: tuple[Calibration | None] | None = None
        self._counters: dict[str, TokenCounter] = {}
        self.summaries = Summaries()
        self.requests: defaultdict[str, Requests] = defaultdict(Requests)
        self.live: LiveSources | None = None
        self.layers: Layers | None = None

    def encoder(self) -> Encoder:
        """Return the encoder with its cache; loads it at the first call."""
        from ctx_vector.encoders import CachedEncoder

        with self._lock:
            if not isinstance(self._encoder, CachedEncoder):
                # the index's own encoder, when there is one: the model is loaded once, a query encoded once
                own = self._encoder or self._wanted or getattr(self._knowledge, "encoder", None)
                self._encoder = CachedEncoder(as_encoder(own))
            return self._encoder

    def calibration(self, measure: bool) -> Calibration | None:
        """Return the encoder's calibration; unless it may be measured for it, None when there is none yet."""
        from ctx_vector.calibration import known_calibration, load_calibration

        with self._lock:
            if self._calibration is None or (self._calibration[0] is None and measure):
                find = load_calibration if measure else known_calibration
                self._calibration = (find(self.encoder()),)
            return self._calibration[0]

    def loaded(self) -> Encoder | None:
        """Return the encoder if one was given or loaded, and load none."""
        return self._encoder

    def scorer(self, strategy: Any) -> Scorer:
        """Return the scorer of a strategy: one for each name."""
        if not isinstance(strategy, str):
            return make_scorer(strategy, self.encoder)
        with self._lock:
            if strategy not in self._scorers:
                self._scorers[strategy] = make_scorer(strategy, self.encoder)
            return self._scorers[strategy]

    def second(self, config: ContextConfig) -> SecondPass | None:
        """Return the second pass of a config, None without one; its scorer is made when it is first used."""
        return self._passes.of(config.rerank, config.rerank_depth, config.rerank_weight)

    def counter(self, tokenizer: Any) -> TokenCounter:
        """Return the counter of a tokenizer: one for each name."""
        if not isinstance(tokenizer, str):
            counter: TokenCounter = as_counter(tokenizer)
            return counter
        if tokenizer not in self._counters:
            self._counters[tokenizer] = ExactCounter(tokenizer)
        return self._counters[tokenizer]
