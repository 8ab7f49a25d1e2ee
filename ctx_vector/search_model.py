"""The model a store is searched with: the encoder, opened at the first use, and what is made for it.

KnowledgeBase, Memory ── SearchModel ─┬─ encoder         the one given, else the default one
                                      ├─ calibration()   from raw cosines to relevance (calibration.py)
                                      └─ second(...)     second passes by name, their scorers kept (rerank.py)
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ctx_vector.errors import ConfigError, StoreError
from ctx_vector.rerank import DEPTH, SecondPass, SecondPasses

if TYPE_CHECKING:
    from ctx_vector.calibration import Calibration
    from ctx_vector.stages import Encoder

T = TypeVar("T")

_PARTS: Final = ("name", "fingerprint", "dim", "max_tokens", "encode_queries", "encode_documents", "count_tokens")


class SearchModel:
    """An encoder and what goes with it. Safe to use from several threads.

    `encoder` is an encoder, a name or path for `load_encoder`, or None for the default one; it is opened at the first
    use. `calibration` stands in for the one of the encoder, until that is replaced. Raises ConfigError for what is no
    encoder.
    """

    def __init__(
        self, encoder: Encoder | str | os.PathLike[str] | None = None, calibration: Calibration | None = None
    ) -> None:
        self._lock = threading.RLock()  # measuring a calibration opens the encoder
        self.replacing = threading.RLock()  # held by whoever converts the store to another encoder
        self._wanted = check_encoder(encoder)
        self._encoder = None if isinstance(encoder, (str, os.PathLike)) else encoder
        self._calibration = calibration
        self._replaced = 0  # how often
        self._passes = SecondPasses(lambda: self.encoder)

    @property
    def encoder(self) -> Encoder:
        """The encoder; the one of a name, or the default one, is opened at the first use."""
        with self._lock:
            if self._encoder is None:
                self._encoder = as_encoder(self._wanted)
            return self._encoder

    def calibration(self) -> Calibration:
        """Return the map from raw cosines to relevance; where none is kept for the encoder, it is measured now."""
        with self._lock:
            if self._calibration is None:
                from ctx_vector.calibration import load_calibration

                self._calibration = load_calibration(self.encoder)
            return self._calibration

    def calibration_at_hand(self) -> Calibration | None:
        """Return the calibration if it takes no encoder to be opened, and nothing to be measured."""
        with self._lock:
            if self._calibration is None and self._encoder is not None:
                from ctx_vector.calibration import known_calibration

                self._calibration = known_calibration(self._encoder)
            return self._calibration

    def second(self, rerank: Any, depth: int = DEPTH) -> SecondPass | None:
        """Return the second pass that a search asks for; see `SecondPasses.of`."""
        return self._passes.of(rerank, depth)

    def steady(self, search: Callable[[], T]) -> T:
        """Return what a search gives; it is done again when the encoder was replaced meanwhile, for the vector of the
        query and those it was compared with were of two models then.
        """
        while True:
            before = self._replaced
            try:
                found = search()
            except StoreError:
                with self.replacing:  # the store has changed hands already, the encoder is about to
                    pass
                if self._replaced == before:
                    raise
            else:
                if self._replaced == before:
                    return found

    def replace(self, encoder: Encoder) -> None:
        """Use another encoder from now on, with the calibration and the second passes of its own."""
        with self._lock:
            if self._encoder is None or self._encoder.fingerprint != encoder.fingerprint:
                self._calibration = None
            self._encoder = encoder
            self._replaced += 1
            self._passes = SecondPasses(lambda: self.encoder)


def check_encoder(given: Any) -> Any:
    """Return what is an encoder, a name or path of one, or None. Raises ConfigError for anything else.

    No property is asked for its value, as a lazy encoder would load its model for it.
    """
    if given is None or isinstance(given, (str, os.PathLike)) or hasattr(type(given), "__getattr__"):
        return given
    absent = object()
    lacks = [name for name in _PARTS if inspect.getattr_static(given, name, absent) is absent]
    if lacks:
        raise ConfigError(
            [
                f"encoder: expected an object with {', '.join(_PARTS)}, or a name for load_encoder, got one without "
                f"{', '.join(lacks)}: {given!r:.80}"
            ]
        )
    return given


def as_encoder(given: Encoder | str | os.PathLike[str] | None) -> Encoder:
    """Return an encoder as it is, or open the one of a name or path; None is the default one (`load_encoder`)."""
    if given is not None and not isinstance(given, (str, os.PathLike)):
        return given
    from ctx_vector.encoders import load_encoder

    if given is None:
        return load_encoder()
    return load_encoder(given if isinstance(given, str) else Path(given))
