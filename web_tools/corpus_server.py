"""The pages of a corpus on a loopback port, so that what is found is read over real HTTP.

Serves GET and HEAD only, on an address of this machine only, from memory only: no request
can name a file. Requests under another host name are refused, so a web page that points its
own name at this port (DNS rebinding) cannot read the corpus.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from html import escape
from ipaddress import ip_address
from typing import Final
from urllib.parse import unquote

from aiohttp import web

from web_tools.corpus import Document, render_page, unique_paths
from web_tools.errors import CorpusError

__all__ = ("serve_corpus",)

_HEADERS: Final = {
    # An author's page may hold scripts; a person who opens it here runs none of them.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_SHUTDOWN_SECONDS: Final = 2.0
_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve_corpus(
    documents: Iterable[Document], *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[str]:
    """Serve *documents* while the context is open; gives the base URL without final slash.

    A document is at the base URL followed by its path. ``/`` lists the titles unless a
    document is there. Port 0 takes a free port.

    Raises:
        CorpusError: *host* is not a loopback address, or two documents have one path.
        OSError: The port cannot be opened.
    """
    shown = _loopback(host)
    pages = _pages(documents)
    server = web.Server(_handler(pages, shown), access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield f"http://{shown}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _loopback(host: str) -> str:
    """The address as it stands in a URL; names are refused because they can mean anything."""
    try:
        address = ip_address(host)
    except ValueError as error:
        raise CorpusError(f"not an address: {host!r}") from error
    if not address.is_loopback:
        raise CorpusError(f"not a loopback address: {host}")
    return f"[{address}]" if address.version == 6 else str(address)


def _pages(documents: Iterable[Document]) -> Mapping[str, str]:
    """Rendered pages by decoded path."""
    by_path = unique_paths(documents)
    pages = {_decoded(path): render_page(document) for path, document in by_path.items()}
    return {"/": _listing(by_path.values()), **pages}


def _decoded(path: str) -> str:
    return unquote(path, errors="surrogateescape")


def _listing(documents: Iterable[Document]) -> str:
    items = "".join(
        f'<li><a href="{escape(document.path)}">{escape(document.title)}</a></li>\n'
        for document in documents
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>Corpus</title></head>\n'
        f"<body>\n<h1>Corpus</h1>\n<ul>\n{items}</ul>\n</body>\n</html>\n"
    )


def _handler(pages: Mapping[str, str], shown: str) -> _Handler:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in {"GET", "HEAD"}:
            return _refusal(405, "Only GET and HEAD.", Allow="GET, HEAD")
        if request.host != f"{shown}:{_port(request)}":
            return _refusal(421, "This server answers under its own address only.")
        page = pages.get(_decoded(request.rel_url.raw_path))
        if page is None:
            return _refusal(404, "No such page.")
        body = page.encode("utf-8", "replace")
        return web.Response(body=body, content_type="text/html", charset="utf-8", headers=_HEADERS)

    return answer


def _port(request: web.BaseRequest) -> int | None:
    """The port that the request came in on; None when the connection is gone."""
    name = request.get_extra_info("sockname")
    return name[1] if isinstance(name, tuple) else None


def _refusal(status: int, text: str, **headers: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers={**_HEADERS, **headers})
