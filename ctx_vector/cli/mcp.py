"""`ctx-vector mcp`: knowledge, memory and contexts for agent programs that speak the Model Context Protocol."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ctx_vector.cli.common import INTERRUPTED, UsageError, note, out, print_json, tell_on_stderr
from ctx_vector.cli.mcp_settings import PLACES, settings
from ctx_vector.cli.memory import Folder, User, memory_encoder, memory_folder, open_memory
from ctx_vector.cli.opening import DEFAULT_KB, KB_FILE, open_kb
from ctx_vector.cli.options import Model, guarded, one_of

if TYPE_CHECKING:
    from ctx_vector.mcp_server import ContextServer

_AUDIT_AGE: Final = "90d"
_AUDIT_SIZE: Final = "1GB"


@guarded
def mcp(
    kb: Annotated[
        str,
        typer.Option(
            "--kb", metavar="DIR", help="Folder of the knowledge base; made when absent if there is a --root."
        ),
    ] = DEFAULT_KB,
    root: Annotated[
        list[str] | None,
        typer.Option(
            "--root", metavar="DIR", help="Folder that clients may index; none unless named. May be repeated."
        ),
    ] = None,
    memory: Folder = None,
    user: User = "default",
    no_memory: Annotated[bool, typer.Option("--no-memory", help="Keep no memories and recall none.")] = False,
    no_audit: Annotated[
        bool,
        typer.Option(
            "--no-audit", help="Do not record builds in audit.sqlite3 of --kb; only the last 50 are explained."
        ),
    ] = False,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="FILE", help="YAML, TOML or JSON with fields of ContextConfig."),
    ] = None,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP instead of stdin and stdout.")] = False,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen, with --http.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", help="With --http; 0 takes a free one.")] = 8765,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TEXT|@FILE",
            help="With --http: clients must send it as a bearer token. Needed when others can reach the address.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="NAME", help="With --http: a further name it is reached by. May be repeated."
        ),
    ] = None,
    model: Model = None,
    settings_for: Annotated[
        str | None,
        typer.Option(
            "--settings",
            metavar="PROGRAM",
            help=f"Only print what to paste into {', '.join(PLACES)}.",
            autocompletion=one_of(*PLACES),
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Only print the tools and resources, as JSON.")] = False,
) -> None:
    """Serve knowledge, memory and contexts to agent programs (Model Context Protocol).

    Without --http it talks over stdin and stdout, and is started by the agent program itself: --settings prints what to
    paste there. What is said besides goes to stderr.

    For example:
      ctx-vector mcp --kb kb --root docs --settings claude-desktop
      ctx-vector mcp --kb kb --root docs --user ada
      ctx-vector mcp --kb kb --http --port 8765
    """
    if not http and (token or allow_host):
        raise UsageError("--token and --allow-host: only with --http")
    if no_memory and memory is not None:
        raise UsageError("--memory and --no-memory: choose one")
    if settings_for is not None:
        if settings_for not in PLACES:
            raise UsageError(f"--settings: expected one of {', '.join(PLACES)}, got {settings_for!r}")
        given = _absolute(kb, root or [], memory, user, no_memory, config, model)
        _check_places(kb, root or [], config)
        out(settings(settings_for, given + ["--no-audit"] * no_audit))
        note(f"paste it into {PLACES[settings_for]}, and start the program again")
        if not _is_made(kb):
            then = "the server makes an empty one" if root else f"make one with: ctx-vector index PATH --kb {kb}"
            note(f"note: there is no knowledge base at {kb} yet; {then}")
        return
    _quiet()
    from ctx_vector.audit import FILE_NAME as AUDIT_FILE
    from ctx_vector.audit import AuditLog
    from ctx_vector.cli.inputs import read_config, text_argument
    from ctx_vector.config import ContextConfig
    from ctx_vector.mcp_server import make_server

    if json:
        print_json(_offer())
        return
    chosen = ContextConfig(citations=True) if config is None else read_config(config, {})
    with ExitStack() as stack:
        if root and not _is_made(kb):
            note(f"note: there is no knowledge base in {kb} yet; an empty one is made, for clients to index into")
        knowledge = stack.enter_context(open_kb(kb, model, create=bool(root)))
        kept = None
        if not no_memory:
            encoder = memory_encoder(knowledge.encoder, model)
            kept = stack.enter_context(open_memory(memory, user, create=True, encoder=encoder))
        audit = None
        if not no_audit:
            audit = AuditLog(Path(kb) / AUDIT_FILE, max_age=_AUDIT_AGE, max_size=_AUDIT_SIZE)
            stack.callback(audit.close)
        server = make_server(
            knowledge=knowledge, memory=kept, roots=root or (), config=chosen, audit=audit, user_id=user
        )
        if http:
            from ctx_vector.mcp_http import serve_http

            secret = text_argument(token, "--token")
            serve_http(
                server,
                host,
                port,
                token=secret.strip() if secret is not None else None,
                allowed_hosts=allow_host or (),
                ready=lambda address: note(f"serving MCP at {address}; stop with Ctrl-C"),
            )
        else:
            if sys.stdin.isatty():
                note("serving MCP on stdin and stdout, for a program to talk to; stop with Ctrl-C")
            signal.signal(signal.SIGINT, _leave)
            server.run()


def _leave(*_: object) -> None:
    """End at once: the thread that waits for stdin cannot be stopped, and what was acknowledged is on disk."""
    note("interrupted")
    os._exit(INTERRUPTED)


def _quiet() -> None:
    """Send what libraries log to stderr, each line once; stdout carries the protocol alone."""
    root = logging.getLogger()
    if not root.handlers:  # else the SDK adds one of its own, which tells our lines a second time
        tell_on_stderr(root)
        logging.getLogger("ctx_vector").propagate = False


def _offer() -> dict[str, Any]:
    """Return what the server offers; it is the same for every knowledge base."""
    from ctx_vector.knowledge import KnowledgeBase
    from ctx_vector.mcp_server import make_server

    async def ask(server: ContextServer) -> dict[str, Any]:
        def plain(found: Any) -> dict[str, Any]:
            values: dict[str, Any] = found.model_dump(mode="json", by_alias=True, exclude_none=True)
            return values

        return {
            "tools": [plain(tool) for tool in await server.list_tools()],
            "resources": [plain(item) for item in await server.list_resources()],
            "resource_templates": [plain(item) for item in await server.list_resource_templates()],
        }

    with tempfile.TemporaryDirectory() as folder, KnowledgeBase(folder) as nothing:
        return asyncio.run(ask(make_server(knowledge=nothing)))


def _check_places(kb: str, roots: list[str], config: str | None) -> None:
    """Raise InputError for what would stop the server inside the agent program, where nobody sees why."""
    from ctx_vector.errors import InputError

    if missing := [root for root in roots if not os.path.isdir(root)]:
        raise InputError(f"--root: no such folder: {', '.join(missing)}; make it first, or name another")
    if os.path.exists(kb) and not os.path.isdir(kb):
        raise InputError(f"--kb: {kb} is a file; give the folder of a knowledge base")
    if config is not None:
        from ctx_vector.cli.inputs import read_config

        read_config(config, {})
    if not roots and not _is_made(kb):
        open_kb(kb)  # which says that there is none


def _is_made(kb: str) -> bool:
    return (Path(kb) / KB_FILE).is_file()


def _absolute(
    kb: str, roots: list[str], memory: str | None, user: str, no_memory: bool, config: str | None, model: str | None
) -> list[str]:
    """Return the options with absolute paths, for a program that starts us in a folder of its own."""
    words = ["--kb", os.path.abspath(kb)]
    for root in roots:
        words += ["--root", os.path.abspath(root)]
    if no_memory:
        words.append("--no-memory")
    else:
        words += ["--memory", str(Path(memory_folder(memory)).absolute()), "--user", user]
    if config is not None:
        words += ["--config", os.path.abspath(config)]
    return words + (["--model", model] if model is not None else [])
