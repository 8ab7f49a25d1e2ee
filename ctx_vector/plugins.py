"""What other packages add, by entry points of one group.

    [project.entry-points."ctx_vector"]
    "strategy.exact" = "my_package:exact_scorer"

The name is a kind and a name, with a dot between; the kinds are those of `KINDS`. Installed packages are looked through
only when a name is asked for that ctx_vector itself does not have, and only what is asked for is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ctx_vector.errors import ConfigError

GROUP: Final = "ctx_vector"
KINDS: Final[Mapping[str, str]] = {
    "strategy": "a function of a function that returns the encoder, giving an object with score(query, candidates)",
    "rerank": "the same, for the second pass",
}


def plugin_names(kind: str) -> list[str]:
    """Return the names that installed packages give to plugins of a kind, sorted."""
    return sorted({name for name, _ in _found(kind)})


def plugin(kind: str, name: str) -> Any:
    """Return what an installed package offers under this name, None when none does.

    Raises ConfigError when two packages offer it, or it cannot be imported.
    """
    found = [entry for known, entry in _found(kind) if known == name]
    if not found:
        return None
    values = {entry.value for entry in found}
    if len(values) > 1:
        raise ConfigError([f"{kind}: two packages offer {name!r} ({', '.join(sorted(values))}); uninstall one of them"])
    try:
        made = found[0].load()
    except Exception as error:  # importing a package may raise anything
        raise ConfigError([f"{kind}: the plugin {name!r} ({found[0].value}) cannot be imported: {error!r}"]) from error
    if not callable(made):
        raise ConfigError([f"{kind}: the plugin {name!r} ({found[0].value}) is no function; expected {KINDS[kind]}"])
    return made


def _found(kind: str) -> list[tuple[str, Any]]:
    from importlib.metadata import entry_points

    start = f"{kind}."
    return [
        (entry.name.removeprefix(start), entry) for entry in entry_points(group=GROUP) if entry.name.startswith(start)
    ]
