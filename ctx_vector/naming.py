"""Sentences of a record with names that people know.

A record names a packet by its source and id, as what a document is called may be purged. Who shows it says
``much like docs/a.md:1-3`` instead of ``much like knowledge:2338``, as long as the packet says what it is cited by:

    tell = details(built)
    tell(built.dropped[0])
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from ctx_vector.built import BuiltContext, Decision

_NAME: Final = re.compile(r"[^\s:]+:\S+")


def details(built: BuiltContext) -> Callable[[Decision], str]:
    """Return what tells the `detail` of a decision of this build, on one line."""
    cites: dict[str, str] = {}
    for item in (*built.kept, *built.dropped):  # equal texts have one id: the one that is kept names it
        if cite := " ".join(str(item.packet.meta.get("cite") or "").split()):
            cites.setdefault(f"{item.source}:{item.packet.id}", cite)
    if not cites:
        return lambda item: " ".join(item.detail.split())
    return lambda item: " ".join(_NAME.sub(lambda found: cites.get(found[0], found[0]), item.detail).split())
