"""`ctx-vector inspect`: recorded builds, knowledge and memories in a browser."""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctx_vector.cli.common import UsageError, note, out, print_json
from ctx_vector.cli.memory import Folder, User, memory_folder
from ctx_vector.cli.opening import AUDIT_FILE, DEFAULT_KB, KB_FILE, open_kb
from ctx_vector.cli.options import Model, guarded

if TYPE_CHECKING:
    from ctx_vector.memory import Memory

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ALL = ("", "0.0.0.0", "::")


@guarded
def inspect(
    kb: Annotated[str, typer.Option("--kb", metavar="DIR", help="Folder of the knowledge base.")] = DEFAULT_KB,
    audit: Annotated[
        str | None,
        typer.Option("--audit", metavar="FILE", help="The audit log; by default audit.sqlite3 of --kb."),
    ] = None,
    memory: Folder = None,
    user: User = "default",
    reports: Annotated[
        str | None, typer.Option("--reports", metavar="DIR", help="Folder of HTML reports of `ctx-vector ab`.")
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="0 takes a free one.")] = 8766,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="TEXT|@FILE", help="At least 16 characters; a random one by default."),
    ] = None,
    model: Model = None,
    json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> None:
    """Show builds, knowledge and memories in a browser: what the model saw, why, and what if.

    For example:
      ctx-vector inspect --kb kb
      ctx-vector inspect --kb kb --memory memory --reports reports

    It listens on this machine only, and answers to nobody without the random token in the address that it prints.
    Ctrl-C stops it.
    """
    from ctx_vector.audit import AuditLog
    from ctx_vector.cli.inputs import text_argument
    from ctx_vector.inspector import Stores, serve
    from ctx_vector.memory import Memory as UserMemory

    if host in _ALL:
        raise UsageError(f"--host {host}: name the address that it is to be reached by; requests to others are refused")
    if host not in _LOOPBACK:
        note(f"note: {host} can be reached by others; whoever has the token can read everything")
    if reports is not None and not Path(reports).is_dir():
        raise UsageError(f"--reports {reports}: there is no such folder")
    if audit is not None and not Path(audit).is_file():
        raise UsageError(f"--audit {audit}: there is no such file; builds with --audit or --kb make it")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    with ExitStack() as stack:
        folder = Path(kb)
        place = memory_folder(memory)
        there = (Path(place) / "memory.sqlite3").is_file()
        # the default folder need not be there for who looks at something else, nor a knowledge base beside its audit
        elsewhere = kb == DEFAULT_KB and (audit is not None or reports is not None or there)
        needed = not elsewhere and not (folder / AUDIT_FILE).is_file()
        knowledge = stack.enter_context(open_kb(kb, model)) if needed or (folder / KB_FILE).is_file() else None
        log = stack.enter_context(AuditLog(audit if audit is not None else folder / AUDIT_FILE))
        memories: dict[str, Memory] = {}
        lock = threading.Lock()
        encoder: Any = knowledge.encoder if knowledge is not None else model

        def opened(name: str) -> Memory:
            with lock:  # pages run in threads
                if name not in memories:
                    memories[name] = stack.enter_context(UserMemory(place, name, _encoder(encoder)))
                return memories[name]

        stores = Stores(
            audit=log,
            knowledge=knowledge,
            memory=opened if there else None,
            users=(lambda: opened(user).users()) if there else None,
            reports=Path(reports) if reports is not None else None,
            user=user,
        )
        secret = text_argument(token, "--token")

        def ready(url: str) -> None:
            print_json({"url": url}) if json else out(url)
            sys.stdout.flush()  # whoever waits for the address may read from a pipe

        serve(stores, host=host, port=port, token=secret.strip() if secret is not None else None, ready=ready)


def _encoder(given: Any) -> Any:
    if isinstance(given, str):
        from ctx_vector.encoders import load_encoder

        return load_encoder(given)
    return given
