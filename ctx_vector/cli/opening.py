"""What commands open: the encoder, the knowledge base and the audit that are meant, named or not.

Nothing here needs Typer or Rich: a plain search runs without them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ctx_vector.cli.common import UsageError, note

if TYPE_CHECKING:
    from ctx_vector.audit import AuditLog
    from ctx_vector.knowledge import KnowledgeBase
    from ctx_vector.stages import Encoder

DEFAULT_KB: Final = "kb"
KB_FILE: Final = "ctx.sqlite3"
AUDIT_FILE: Final = "audit.sqlite3"
AUDIT_SIZE: Final = "1GB"  # what commands keep of their builds


def open_encoder(name: str | None = None) -> Encoder:
    """Open an encoder; a known model that is used for the first time is prepared, with its steps on stderr."""
    from ctx_vector.encoders import load_encoder
    from ctx_vector.model_store import cards

    known = {card.lower(): card for card in cards()}
    card = next(iter(known.values())) if name is None else known.get(name.lower())
    if card is not None:
        prepare_model(card)
    return load_encoder(name)


def prepare_model(name: str, source: Path | None = None) -> Path:
    """Prepare a model that is not ready, with one line on stderr that says how far it is."""
    from ctx_vector.model_store import model_dir, prepare, read_manifest

    if source is None and read_manifest(folder := model_dir(name)):
        return folder
    from ctx_vector.cli.progress import step_line

    with step_line(f"preparing the model {name}") as tell:
        return prepare(name, source=source, progress=tell)


def open_kb(
    folder: str | Path, model: str | None = None, *, create: bool = False, chunk_tokens: int | None = None
) -> KnowledgeBase:
    """Open a knowledge base with the encoder it was made with, or the one named."""
    from ctx_vector.knowledge import KnowledgeBase

    kb = KnowledgeBase(folder, create=create)
    wanted = model or own_model(kb)
    kb.close()
    return KnowledgeBase(folder, open_encoder(wanted), create=create, chunk_tokens=chunk_tokens)


def default_kb() -> str | None:
    """Return the folder of the knowledge base that is used when none is named, if it is there."""
    return DEFAULT_KB if os.path.exists(os.path.join(DEFAULT_KB, KB_FILE)) else None


def used_kb(kb: str | None, no_kb: bool) -> str | None:
    """Return the folder of the knowledge base to use: the one named, else the default one if it is there.

    That there is none is said on stderr, unless `no_kb` asks for it. Raises UsageError when both are given.
    """
    if kb is not None and no_kb:
        raise UsageError("--kb and --no-kb: choose one")
    if kb is not None or no_kb or (kb := default_kb()) is not None:
        return kb
    note(f"note: there is no knowledge base in ./{DEFAULT_KB}, so none is used; name one with --kb, or say --no-kb")
    return None


def own_model(kb: KnowledgeBase) -> str | None:
    """Return the name of the model behind a knowledge base if it is one of the known ones."""
    from ctx_vector.model_store import cards

    name = kb.stats()["model"]
    return name if name in cards() else None


def audit_file(given: str | None, kb: str | None) -> Path:
    """Return the file of the audit: the one given, else that of the knowledge base, else in the platform's data folder.

    Without a folder the default one is meant, if it is there. A knowledge base that cannot be written has none.
    """
    if given is not None:
        return Path(given)
    return _own_audit(kb if kb is not None else default_kb())


def _own_audit(kb: str | None) -> Path:
    if kb is not None and os.access(kb, os.W_OK):
        return Path(kb) / AUDIT_FILE
    from platformdirs import user_data_path

    return Path(user_data_path("ctx_vector")) / AUDIT_FILE


def open_audit(given: str | None, no_audit: bool, kb: str | None) -> AuditLog | None:
    """Return the audit of what a command builds, from the knowledge base it uses; None with `no_audit`."""
    if no_audit:
        if given is not None:
            raise UsageError("--audit and --no-audit: choose one")
        return None
    from ctx_vector.audit import AuditLog

    return AuditLog(_own_audit(kb) if given is None else Path(given), max_size=AUDIT_SIZE)
