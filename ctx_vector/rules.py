"""Rules for one value: what is wrong with it in words, and what is right as JSON Schema.

A rule is called with a value and returns None, or a sentence such as ``expected a number >= 0 and <= 1, got 2``. The
same object says in `schema` what an editor may check, so that there is one list of fields and not two.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ctx_vector.errors import InputError

MOST_TOKENS: Final = 100_000_000
_JSON: Final = {bool: "boolean", str: "string", type(None): "null", int: "integer", float: "number"}


@dataclass(frozen=True, slots=True)
class Rule:
    """A check and its JSON Schema. `check` returns what is wrong, or None."""

    check: Callable[[Any], str | None]
    schema: Mapping[str, Any]

    def __call__(self, value: Any) -> str | None:
        """Return what is wrong with the value, or None."""
        return self.check(value)


def number(low: float, high: float, *, whole: bool = False, optional: bool = False) -> Rule:
    """Return the rule for a number in [low, high]; from `MOST_TOKENS` on `high` is named only to what is over it.

    >>> number(0, 1)(2)
    'expected a number >= 0 and <= 1, got 2'
    """
    kind = "an integer" if whole else "a number"

    def check(value: Any) -> str | None:
        if value is None and optional:
            return None
        fits = isinstance(value, int) if whole else isinstance(value, (int, float))
        if not fits or isinstance(value, bool) or not low <= value <= high:
            over = fits and value > high
            upper = f" and <= {high:g}" if high < MOST_TOKENS else f" and <= {high:.0f}" if over else ""
            return f"expected {kind} >= {low:g}{upper}{' or None' if optional else ''}, got {shown(value)}"
        return None

    name = "integer" if whole else "number"
    return Rule(check, {"type": [name, "null"] if optional else name, "minimum": low, "maximum": high})


def one_of(choices: Iterable[str]) -> Rule:
    """Return the rule for one of some names; a near miss is told the nearest one.

    >>> one_of(("skip", "stop"))("stopp")
    "expected one of skip, stop, got 'stopp'; did you mean 'stop'?"
    """
    names = tuple(choices)

    def check(value: Any) -> str | None:
        if isinstance(value, str) and value in names:
            return None
        return f"expected one of {', '.join(names)}, got {shown(value)}{nearest(value, names)}"

    return Rule(check, {"enum": list(names)})


def check_count(value: Any, name: str) -> int:
    """Return an integer >= 1. Raises InputError naming it otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name}: expected an integer >= 1, got {shown(value)}")
    return value


def check_path(value: Any, name: str) -> str | os.PathLike[str]:
    """Return a path: a str or an os.PathLike. Raises InputError naming it otherwise, also for bytes and descriptors."""
    if not isinstance(value, (str, os.PathLike)):
        raise InputError(f"{name}: expected a path (a str or a Path), got {shown(value)}")
    return value


def check_share(value: Any, name: str) -> float:
    """Return a number in [0, 1]. Raises InputError naming it otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InputError(f"{name}: expected a number in [0, 1], got {shown(value)}")
    return float(value)


def typed(kind: type | tuple[type, ...], words: str) -> Rule:
    """Return the rule for values of a type, which `words` says to people."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    names = [_JSON[item] for item in kinds]
    return Rule(
        lambda value: None if isinstance(value, kind) else f"expected {words}, got {shown(value)}",
        {"type": names[0] if len(names) == 1 else names},
    )


def shown(value: object) -> str:
    """Return a value as an error shows it: its `repr` on one line, of at most 80 characters."""
    try:
        text = repr(value)
    except Exception as error:  # any object can come as a value, and an integer of 5,000 digits has no repr
        text = f"{type(value).__name__} ({type(error).__name__} in repr)"
    return " ".join(text.split()) if len(text) <= 80 else f"{' '.join(text[:77].split())}..."


def nearest(value: object, names: Iterable[str]) -> str:
    """Return ``; did you mean 'name'?`` for the name that is nearest, or nothing.

    >>> nearest("max_shar", ["max_share", "min_share"])
    "; did you mean 'max_share'?"
    """
    import difflib  # only wrong input pays for it

    text = value if isinstance(value, str) else shown(value)
    near = difflib.get_close_matches(text[:200], list(names), 1)
    return f"; did you mean {near[0]!r}?" if near else ""
