"""The MCP server over HTTP (the protocol's streamable HTTP), for several clients at once.

    serve_http(server, port=8765, ready=print)      # http://127.0.0.1:8765/mcp, until it is interrupted

Only this machine is listened to unless another host is named, and then a token is asked for. A web page in a browser on
this machine can send requests here too: those that name another host than ours, or come from another site, are refused.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import os
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from ctx_vector.errors import InputError
from ctx_vector.mcp_server import ContextServer  # tells of the extra when it is missing

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PATH: Final = "/mcp"
_SECONDS_TO_END: Final = 3


def is_loopback(host: str) -> bool:
    """Tell whether an address is of this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def http_app(
    server: ContextServer, host: str, port: int, *, token: str | None = None, allowed_hosts: Iterable[str] = ()
) -> ASGIApp:
    """Return the ASGI application; its only path is ``/mcp``.

    `allowed_hosts` are further names by which it is reached, as in the address, with or without a port. With a `token`,
    requests have to carry ``Authorization: Bearer TOKEN``. Raises InputError when `host` is reached from other machines
    and there is no token, or no name.
    """
    from mcp.server.transport_security import TransportSecuritySettings

    names = [name.strip() for name in allowed_hosts]
    if is_loopback(host):
        names += ["127.0.0.1", "localhost", "[::1]"]
    elif not token or not names:
        raise InputError(
            f"host: {host} can be reached from other machines, and what this server knows could be read there; give a "
            "token, and the names it may be reached by (--token, --allow-host)"
        )
    if token is not None and (not token.isascii() or not token.isprintable() or len(token) < 16 or " " in token):
        raise InputError("token: expected at least 16 printable ASCII characters without a space")
    hosts = [_with_port(name, port) for name in names] + (names if port == 80 else [])
    app: ASGIApp = server.streamable_http_app(
        streamable_http_path=PATH,
        host=host,
        transport_security=TransportSecuritySettings(
            enable_dns_rebinding_protection=True,
            allowed_hosts=hosts,
            allowed_origins=[f"http://{name}" for name in hosts],
        ),
    )
    return app if token is None else _Locked(app, token)


def serve_http(
    server: ContextServer,
    host: str = "127.0.0.1",
    port: int = 8765,
    *,
    token: str | None = None,
    allowed_hosts: Iterable[str] = (),
    ready: Callable[[str], Any] | None = None,
) -> None:
    """Serve until interrupted; port 0 takes a free one. `ready` is called with the address.

    Raises what `http_app` raises, InputError when the port is taken, OSError when the address cannot be listened to.
    """
    import uvicorn

    with _listening(host, port) as listening:
        port = listening.getsockname()[1]
        app = http_app(server, host, port, token=token, allowed_hosts=allowed_hosts)
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=_SECONDS_TO_END,
        )
        if ready is not None:
            ready(f"http://{_with_port(host, port)}{PATH}")
        uvicorn.Server(config).run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named: without it, each answer waits 40 ms
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # elsewhere it would let two programs share a port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
        listening.listen()
    except OSError as error:
        listening.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise InputError(f"port: {port} is taken by another program; choose another, or 0 for a free one") from None
    return listening


def _with_port(name: str, port: int) -> str:
    name = f"[{name}]" if name.count(":") > 1 and not name.startswith("[") else name
    return name if name.rpartition(":")[2].isdigit() and not name.endswith("]") else f"{name}:{port}"


class _Locked:
    """An application that answers only requests with the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                from starlette.responses import PlainTextResponse

                refusal = PlainTextResponse("a token is needed", 401, {"WWW-Authenticate": "Bearer"})
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)
