"""Which rows of a knowledge base a search may return: by source, by metadata, by expiry."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from datetime import datetime
from fnmatch import translate
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from ctx_vector.errors import InputError

if TYPE_CHECKING:
    from ctx_vector.index import Ids
    from ctx_vector.views import DocumentFacts, View


def allowed_rows(
    conn: sqlite3.Connection, view: View, wanted: Mapping[str, Any] | None, now: datetime | None
) -> Ids | None:
    """Return the ids (ascending) of the rows that pass, or None when all do.

    `wanted` maps metadata keys to a value, or to a list, tuple or set of which one has to be there; a document's own
    list passes when it shares a value. The key ``source`` is a name, or a pattern where ``*`` stands for anything,
    ``?`` for one character and ``[ab]`` for one of these. ``format`` is the extension of the source, in small letters,
    for a document whose metadata says no other. With `now`, expired documents do not pass.

    Raises InputError when `wanted` is no mapping with names as keys.
    """
    if wanted is not None and (not isinstance(wanted, Mapping) or not all(isinstance(key, str) for key in wanted)):
        raise InputError(f"filter: expected a mapping of metadata keys to values, got {wanted!r}")
    expiring = now is not None and view.expired(conn, now)
    if not wanted and not expiring:
        return None
    tests = [
        _source_test(value) if key == "source" else _value_test(key, value) for key, value in (wanted or {}).items()
    ]
    passed = [
        id_
        for id_, facts in view.facts(conn).items()
        if all(test(facts) for test in tests)
        and not (expiring and now is not None and facts.expires_at is not None and facts.expires_at <= now)
    ]
    allowed: Ids = view.ids[np.isin(view.documents, np.array(passed, np.int64))]
    return allowed


def _options(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]


def _source_test(value: Any) -> Any:
    options = _options(value)
    if not all(isinstance(option, str) for option in options):
        raise InputError(f"filter: source: expected a name or a pattern, got {value!r}")
    exact = set(options)
    patterns = [re.compile(translate(option)) for option in options if any(char in option for char in "*?[")]
    return lambda facts: facts.source in exact or any(pattern.match(facts.source) for pattern in patterns)


def _value_test(key: str, value: Any) -> Any:
    options = _options(value)

    def test(facts: DocumentFacts) -> bool:
        if key in facts.metadata:
            own = facts.metadata[key]
        else:
            own = PurePosixPath(facts.source).suffix[1:].lower() or None if key == "format" else None
        return any(item in options for item in (own if isinstance(own, list) else [own]))

    return test
