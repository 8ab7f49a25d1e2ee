"""The checks of what is on disk: a knowledge base, a memory, an audit. Each returns status, detail and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ctx_vector.cli.common import count, size
from ctx_vector.cli.opening import own_model

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"
_RESTORE: Final = "restore it from a backup, or delete it and start anew"


def knowledge(folder: str) -> tuple[str, str, str]:
    """Check the file, its rows, its vectors and its index files."""
    from ctx_vector.knowledge import KnowledgeBase
    from ctx_vector.model_store import cards

    if (Path(folder).is_dir() and not (Path(folder) / "ctx.sqlite3").exists()) or not Path(folder).exists():
        return FAIL, f"there is no knowledge base in {folder}", f"make one with: ctx-vector index PATH --kb {folder}"
    with KnowledgeBase(folder, create=False) as kb:
        report = kb.verify()
        stats = kb.stats()
        known = own_model(kb)
    if not report.ok:
        return FAIL, "; ".join(report.problems[:3]), "restore it from a backup, or delete it and index again"
    detail = f"version {stats['version']}, {count(report.documents, 'document')}, {count(report.chunks, 'chunk')}"
    if stats["model"] and known is None:
        names = ", ".join(cards())
        return WARN, f"{detail}; made with {stats['model']}", f"name the model with --model; known by name: {names}"
    if report.repaired:
        return WARN, f"{detail}; {'; '.join(report.repaired)}", "nothing more to do; check the disk if it happens again"
    return OK, detail, ""


def memory(folder: Path) -> tuple[str, str, str]:
    """Check the file of all users' memories, and whether its model is the one in use."""
    from ctx_vector.memory import FILE_NAME
    from ctx_vector.memory_rows import MIGRATIONS, totals
    from ctx_vector.model_store import cards
    from ctx_vector.store import Store

    if not (folder / FILE_NAME).exists():
        return FAIL, f"there is no memory in {folder}", f"make one with: ctx-vector memory add TEXT --memory {folder}"
    store = Store(folder / FILE_NAME, MIGRATIONS, kind="memory")
    try:
        problems = store.check()
        with store.read() as conn:
            memories, users, model = totals(conn)
    finally:
        store.close()
    if problems:
        return FAIL, "; ".join(problems[:3]), _RESTORE
    detail = f"{count(memories, 'memory')} of {count(users, 'user')}"
    if model not in (None, next(iter(cards()))):
        return WARN, f"{detail}; made with {model}", "open it with that encoder, or convert it: Memory.reencode()"
    return OK, detail, ""


def audit(path: Path) -> tuple[str, str, str]:
    """Check the file of an audit."""
    from ctx_vector.audit import AuditLog

    log = AuditLog(path)
    try:
        problems = log.verify()
        builds = log.count()
    finally:
        log.close()
    if problems:
        return FAIL, "; ".join(problems[:3]), _RESTORE
    return OK, f"{count(builds, 'build')}, {size(path.stat().st_size)}", ""
