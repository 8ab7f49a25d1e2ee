"""The application: routes over the pages, behind the guard, and a server for it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ctx_vector.errors import CtxVectorError, InputError
from ctx_vector.inspector.guard import Guard
from ctx_vector.inspector.pages import Pages

if TYPE_CHECKING:
    from ctx_vector.audit import AuditLog
    from ctx_vector.knowledge import KnowledgeBase
    from ctx_vector.memory import Memory

DEFAULT_PORT: Final = 8766
_HERE: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Stores:
    """What there is to look at; each may be left out.

    `memory` opens the memories of a user by name, `users` lists those there are, `user` is the one shown first.
    """

    audit: AuditLog | None = None
    knowledge: KnowledgeBase | None = None
    memory: Callable[[str], Memory] | None = None
    users: Callable[[], Sequence[str]] | None = None
    reports: Path | None = None
    user: str = "default"


def make_app(stores: Stores, token: str, hosts: Sequence[str]) -> Guard:
    """Return the ASGI application. `hosts` are the Host headers it answers to, such as ``127.0.0.1:8766``.

    Raises InputError for a token of fewer than 16 characters.
    """
    if len(token) < 16:
        raise InputError(f"token: expected at least 16 characters, got {len(token)}; leave it out for a random one")
    pages = Pages(stores)
    routes = [
        Route("/", pages.builds, name="builds"),
        Route("/build/{id}", pages.build, name="build"),
        Route("/build/{id}/what-if", pages.what_if, name="what_if"),
        Route("/build/{id}/item/{number:int}", pages.item, name="item"),
        Route("/diff", pages.diff, name="diff"),
        Route("/knowledge", pages.knowledge, name="knowledge"),
        Route("/knowledge/document", pages.document, name="document"),
        Route("/memory", pages.memory, name="memory"),
        Route("/memory/delete", pages.delete_memory, methods=["POST"], name="delete_memory"),
        Route("/reports", pages.reports, name="reports"),
        Route("/reports/{name}", pages.report, name="report"),
        Mount("/static", StaticFiles(directory=_HERE / "static"), name="static"),
    ]
    app = Starlette(routes=routes, exception_handlers={404: pages.not_found, CtxVectorError: pages.wrong})
    return Guard(app, token, hosts)


def serve(
    stores: Stores,
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    token: str | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until interrupted. `ready` is called with the address to open, its token included; port 0 takes a free one.

    Raises InputError when the address cannot be used.
    """
    import socket

    import uvicorn

    token = token or secrets.token_urlsafe(24)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise InputError(f"{host}:{port} cannot be used: {error}; give another --port, or 0 for a free one") from None
    with listening:
        port = listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        hosts = [f"{name}:{port}" for name in (shown, "localhost", "127.0.0.1", "[::1]")]
        app = make_app(stores, token, hosts)
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off")
        if ready is not None:
            listening.listen()  # whoever opens the address at once waits, and is not turned away
            ready(f"http://{shown}:{port}/?token={quote(token, safe='')}")
        uvicorn.Server(config).run([listening])
