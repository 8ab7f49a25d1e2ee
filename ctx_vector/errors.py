"""Every error this package raises on purpose.

    CtxVectorError
    ├── InputError            (ValueError)     an argument is not usable
    ├── ConfigError           (ValueError)     one or more configuration fields are wrong
    ├── BudgetError           (RuntimeError)   what must not be cut does not fit the budget
    ├── ModelError            (RuntimeError)   an encoder or tokenizer cannot be made ready
    ├── LoaderError           (RuntimeError)   one document cannot be read; the others still are
    ├── StoreError            (RuntimeError)   a store on disk cannot be used as it is
    │   ├── SchemaError                        written by a newer version of this package
    │   └── ModelMismatchError                 holds vectors of another encoder
    ├── AgentError            (RuntimeError)   the language model behind an agent gave no answer
    └── OptionalDependencyError (ImportError)  an extra is needed

Messages name the bad value, the bound or the choices, and the next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class CtxVectorError(Exception):
    """Base of all errors of this package; catching it catches them all."""


class InputError(CtxVectorError, ValueError):
    """An argument has the wrong type or lies outside its bounds."""


class ConfigError(CtxVectorError, ValueError):
    """A configuration has one or more wrong fields.

    `problems` holds every one of them, as ``"dotted.path: expected ..., got ..."`` lines.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        head = "invalid configuration" if len(self.problems) == 1 else f"{len(self.problems)} configuration problems"
        super().__init__(f"{head}: " + "; ".join(self.problems))


class BudgetError(CtxVectorError, RuntimeError):
    """System instructions, Task and Output alone exceed the budget.

    `used` and `limit` are tokens, `parts` the tokens of each uncuttable part, and `needed` the
    smallest `max_tokens` that works for these parts.
    """

    def __init__(self, used: int, limit: int, parts: Mapping[str, int], needed: int) -> None:
        self.used = used
        self.limit = limit
        self.parts = dict(parts)
        self.needed = needed
        sizes = ", ".join(f"{name} {tokens}" for name, tokens in self.parts.items())
        super().__init__(
            f"the parts that are never cut need {used} tokens, over the limit of {limit} ({sizes}); "
            f"shorten them or set max_tokens to at least {needed}"
        )


class ModelError(CtxVectorError, RuntimeError):
    """An encoder or tokenizer is unknown, incomplete, or its file fails its checksum."""


class LoaderError(CtxVectorError, RuntimeError):
    """A document cannot be read: it is binary, too large, encrypted or broken."""


class StoreError(CtxVectorError, RuntimeError):
    """A knowledge base or another file of this package cannot be opened or written."""


class SchemaError(StoreError):
    """The file was written by a newer version of this package."""


class ModelMismatchError(StoreError):
    """The stored vectors come from another encoder than the one in use."""


class AgentError(CtxVectorError, RuntimeError):
    """The language model behind an agent gave no answer: its server is away, slow or refuses, or it said nothing."""


class OptionalDependencyError(CtxVectorError, ImportError):
    """A feature needs packages of an extra that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{feature} needs the extra '{extra}'; install it with: pip install 'ctx_vector[{extra}]'")
