"""Who may ask the inspector: whoever has its token, from a page of its own, at an address of its own.

A program in the same browser can send requests to a loopback address too. So every request needs the token (once in the
address, then in a cookie that no other site's page can send), a Host that is ours (against DNS rebinding), no foreign
Origin, and a method that the page is made for. What a page may load is only what is ours.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS: Final = ("GET", "HEAD", "POST")
_POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-src 'self'; base-uri 'none'; frame-ancestors 'self'"
)
_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer a form of ours would be sent with the Origin null
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """ASGI middleware. `hosts` are the values of the Host header that are ours, ports included."""

    def __init__(self, app: ASGIApp, token: str, hosts: Collection[str]) -> None:
        self.app = app
        self.token = token
        self.hosts = {host.casefold() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        answer = self.refusal(request)
        await (answer or self.app)(scope, receive, _with_headers(send))

    def refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that may not pass, None for one that may."""
        if request.headers.get("host", "").casefold() not in self.hosts:
            return PlainTextResponse("this host is not served here\n", 421)
        if request.method not in METHODS:
            return PlainTextResponse("method not allowed\n", 405, {"allow": ", ".join(METHODS)})
        origin = request.headers.get("origin")
        ours = {f"http://{host}" for host in self.hosts}
        if (origin is not None and origin.casefold() not in ours) or (request.method == "POST" and origin is None):
            return PlainTextResponse("a request from another origin\n", 403)
        if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return PlainTextResponse("a request from another site\n", 403)
        given = request.query_params.get("token")
        if given is not None and self._right(given):
            rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
            path = request.url.path + ("?" + urlencode(rest) if rest else "")
            answer = RedirectResponse("/" + path.lstrip("/"), 303)  # so that the token stays in no history
            answer.set_cookie(_cookie(request), self.token, httponly=True, samesite="strict")
            return answer
        if not self._right(request.cookies.get(_cookie(request), "")):
            return PlainTextResponse("open the address that `ctx-vector inspect` printed, with its token\n", 401)
        return None

    def _right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())


def _cookie(request: Request) -> str:
    """Return the name of our cookie: cookies know no ports, and two inspectors should not put each other out."""
    return f"ctx_vector_inspector_{request.url.port or 80}"


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            if not any(name.lower() == b"content-security-policy" for name, _ in message.get("headers", [])):
                headers.append((b"content-security-policy", _POLICY.encode()))
            message = {**message, "headers": [*message.get("headers", []), *headers]}
        await send(message)

    return sending
