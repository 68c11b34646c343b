"""Who is let in: this machine's browser, on our own address, with the token. Everyone else is refused.

A page of another site can send requests here and point a name of its own at 127.0.0.1. It has neither
the token, which stands in no URL that is sent and in no cookie, nor our address as host and origin.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

__all__ = ("Door", "set_headers")

_TOKEN_BYTES: Final = 32
_API: Final = "/api/"
_SITE: Final = "Sec-Fetch-Site"
# What a browser sends for a page that was typed or opened from a terminal, and for our own.
_OURS: Final = frozenset({"same-origin", "none"})

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
    "Server": "runtime-pack",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Door:
    """The checks on every request; `port` is known once the socket is open."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self.port = 0

    @property
    def hosts(self) -> frozenset[str]:
        """What the one Host header may say."""
        return frozenset({f"127.0.0.1:{self.port}", f"localhost:{self.port}"})

    def middleware(self) -> Middleware:
        """The checks, for an application."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            refused = self._refused(request)
            if refused is not None:
                return web.json_response({"error": refused[1]}, status=refused[0])
            return await handler(request)

        return guarded

    def _refused(self, request: web.Request) -> tuple[int, str] | None:
        """Status and words for whoever is not let in."""
        named = request.headers.getall(hdrs.HOST, [])
        if len(named) != 1 or named[0] not in self.hosts:
            return 421, "this is not the host that was asked for"
        origins = request.headers.getall(hdrs.ORIGIN, [])
        if any(origin != f"http://{named[0]}" for origin in origins):
            return 403, "a page of another origin may not ask"
        if request.headers.get(_SITE, "none") not in _OURS:
            return 403, "another site may not ask"
        writes = request.method not in {"GET", "HEAD"}
        if writes and not origins:
            return 403, "what changes something has to say where it comes from"
        if writes and request.content_type != "application/json":
            return 415, "what changes something is JSON"
        if request.path.startswith(_API) and not self._has_token(request):
            return 401, "the token is missing or wrong"
        return None

    def _has_token(self, request: web.Request) -> bool:
        given = request.headers.getall(hdrs.AUTHORIZATION, [])
        wanted = f"Bearer {self.token}".encode()
        return len(given) == 1 and hmac.compare_digest(given[0].encode("utf-8", "replace"), wanted)


async def set_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """The headers of every answer, refusals included."""
    response.headers.update(_HEADERS)
