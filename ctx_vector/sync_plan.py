"""What has to be done to bring a knowledge base up to date with files: they are compared with the active version.

    look       paths -> Scope     the files there are, and what cannot be looked at
    compare    Scope -> Plan      by size and time, then by content hash; what is unchanged is not read further

A plan is made against one generation of the knowledge base, and holds as long as that is the current one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ctx_vector import catalog, lives
from ctx_vector.common_tables import get_meta
from ctx_vector.staging import hash_file
from ctx_vector.store import Store

if TYPE_CHECKING:
    from ctx_vector.file_walk import Found, Walk

_RACY_NS: Final = 2_000_000_000  # a file written this short before it was read may change again within its time stamp


@dataclass(slots=True)
class Plan:
    """What has to be done, decided against one generation of the knowledge base: sources of documents, and the live
    revisions by source. What fails or is garbled when it is done is added to it.
    """

    generation: int
    live: dict[str, catalog.Revision]
    fresh: list[tuple[Found, int]] = field(default_factory=list)  # with the time of reading, in ns
    unchanged: list[str] = field(default_factory=list)
    restat: list[tuple[int, Found, int]] = field(default_factory=list)  # revision, file, time of reading
    removed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    garbled: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Scope:
    """The files of a run, the absolute paths whose vanished files are to go, and what could not be looked at."""

    walk: Walk
    paths: list[str]
    failed: dict[str, str]

    def lost(self, revision: catalog.Revision, kept: list[str]) -> bool:
        """Return whether a document that the walk did not find is known to be gone."""
        path = revision.path
        return (
            path is not None and any(_inside(path, p) for p in self.paths) and not any(_inside(path, p) for p in kept)
        )


def look(store: Store, given: Sequence[str | os.PathLike[str]], max_bytes: int) -> Scope:
    """Return the files under the paths given, those over `max_bytes` left out."""
    from ctx_vector.file_walk import walk

    failed: dict[str, str] = {}
    there = []
    for path in given:
        try:
            os.stat(path)
            there.append(path)
        except (OSError, ValueError) as error:
            failed[os.fspath(path)] = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    with store.read() as conn:
        known = catalog.known_roots(conn)
    # the prefix of a folder that is gone is free again: the folder given now may be the same one, moved
    gone = {path: prefix for path, prefix in known.items() if not os.path.isdir(path)}
    roots = {Path(path): prefix for path, prefix in known.items() if path not in gone}
    walked = walk(there, max_bytes=max_bytes, roots=roots, exclude=[store.path.parent])
    taken = set(walked.roots.values())
    paths = [os.path.realpath(path) for path in there]
    paths += [path for path, prefix in gone.items() if prefix in taken]
    return Scope(walked, paths, failed)


def compare(store: Store, scope: Scope, recipe: str) -> Plan:
    """Return what has to be done for the files in `scope`; `recipe` says how a document is made now."""
    with store.read() as conn:
        version = lives.active_version(conn)
        plan = Plan(int(get_meta(conn, "generation", 0)), lives.live_revisions(conn, version))
    plan.failed.update(scope.failed)
    for found in scope.walk.found:
        seen = time.time_ns()
        revision = plan.live.get(found.source)
        try:
            if revision is None or revision.recipe != recipe:
                plan.fresh.append((found, seen))
            elif _same_stat(revision, found):
                plan.unchanged.append(found.source)
            elif hash_file(found.path) == revision.hash:
                plan.unchanged.append(found.source)
                plan.restat.append((revision.id, found, seen))
            else:
                plan.fresh.append((found, seen))
        except OSError as error:
            plan.failed[found.source] = f"cannot be read: {error.strerror or error}"
    sources = {found.source for found in scope.walk.found}
    # a folder or file that cannot be looked into is not gone, and what was known of it stays
    kept = [os.fspath(skipped.path) for skipped in scope.walk.skipped if skipped.wanted]
    plan.removed = [
        source for source, revision in plan.live.items() if source not in sources and scope.lost(revision, kept)
    ]
    return plan


def _same_stat(revision: catalog.Revision, found: Found) -> bool:
    """Return whether size and time prove that a file is as it was read."""
    return (
        revision.size == found.size
        and revision.mtime_ns == found.mtime_ns
        and revision.seen_ns is not None
        and found.mtime_ns < revision.seen_ns - _RACY_NS
        and revision.path == os.fspath(found.path)
    )


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)
