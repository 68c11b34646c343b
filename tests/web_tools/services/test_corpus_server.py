"""The loopback server of a corpus."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from web_tools.corpus import Document
from web_tools.corpus_server import serve_corpus
from web_tools.errors import CorpusError

PAGES = (
    Document(path="/a%20b/x", title="One <b>", text="Text & more"),
    Document(path="/%FF", title="Odd", text="bytes"),
    Document(path="/raw", title="Raw", text="t", html="<script>x()</script>\ud800"),
)
Use = Callable[[aiohttp.ClientSession, str], Awaitable[None]]


def served(use: Use, *pages: Document, host: str = "127.0.0.1") -> None:
    """Run *use* against a server of *pages*."""

    async def main() -> None:
        async with (
            serve_corpus(pages or PAGES, host=host) as base,
            aiohttp.ClientSession() as session,
        ):
            await use(session, base)

    asyncio.run(main())


@pytest.mark.loopback
def test_pages_are_served_escaped() -> None:
    """A page is UTF-8 HTML with the document's text escaped."""

    async def use(session: aiohttp.ClientSession, base: str) -> None:
        async with session.get(f"{base}/a%20b/x") as response:
            body = await response.text()
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "<title>One &lt;b&gt;</title>" in body
        assert "<p>Text &amp; more</p>" in body

    served(use)


@pytest.mark.loopback
def test_an_authors_page_cannot_run_anything() -> None:
    """Scripts of a page are forbidden to a browser that opens it; bad text is still served."""

    async def use(session: aiohttp.ClientSession, base: str) -> None:
        async with session.get(f"{base}/raw") as response:
            assert await response.text() == "<script>x()</script>?"
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert "sandbox" in response.headers["Content-Security-Policy"]
        assert response.headers["X-Content-Type-Options"] == "nosniff"

    served(use)


@pytest.mark.loopback
def test_names_that_are_no_text_are_served() -> None:
    """A path of raw bytes leads to its page."""

    async def use(session: aiohttp.ClientSession, base: str) -> None:
        # The client would read the bytes as text; the URL is sent as it is written.
        from yarl import URL

        async with session.get(URL(f"{base}/%FF", encoded=True)) as response:
            assert response.status == 200

    served(use)


@pytest.mark.loopback
def test_head_has_the_headers_of_get() -> None:
    """HEAD tells the length and sends nothing."""

    async def use(session: aiohttp.ClientSession, base: str) -> None:
        async with session.get(f"{base}/raw") as got, session.head(f"{base}/raw") as head:
            assert head.status == 200
            assert got.headers["Content-Length"] == head.headers["Content-Length"]
            assert await head.read() == b""

    served(use)


@pytest.mark.loopback
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_refused(method: str) -> None:
    """Only reading is possible."""

    async def use(session: aiohttp.ClientSession, base: str) -> None:
        async with session.request(method, f"{base}/raw") as response:
            assert response.status == 405
            assert response.headers["Allow"] == "GET, HEAD"

    served(use)


@pytest.mark.loopback
@pytest.mark.parametrize(
    "path", ["/missing", "/etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/a b/X", "/raw/"]
)
def test_only_pages_of_the_corpus_exist(path: str) -> None:
    """No request can name a file; the refusal repeats nothing of it."""

    async def use(session: aiohttp.ClientSession, base: str) -> None:
        async with session.get(f"{base}{path}") as response:
            assert response.status == 404
            assert await response.text() == "No such page.\n"

    served(use)


@pytest.mark.loopback
@pytest.mark.parametrize("host", ["evil.example", "localhost", "127.0.0.1", "127.0.0.1:1"])
def test_another_host_name_is_refused(host: str) -> None:
    """A name that was rebound to this address cannot read the corpus."""

    async def use(session: aiohttp.ClientSession, base: str) -> None:
        async with session.get(f"{base}/raw", headers={"Host": host}) as response:
            assert response.status == 421

    served(use)


@pytest.mark.loopback
def test_the_root_lists_the_pages() -> None:
    """Titles and links, escaped; a document at the root takes its place."""

    async def listing(session: aiohttp.ClientSession, base: str) -> None:
        async with session.get(f"{base}/") as response:
            assert '<a href="/a%20b/x">One &lt;b&gt;</a>' in await response.text()

    async def own(session: aiohttp.ClientSession, base: str) -> None:
        async with session.get(f"{base}/") as response:
            assert "<p>mine</p>" in await response.text()

    served(listing)
    served(own, Document(path="/", title="Root", text="mine"))


@pytest.mark.loopback
def test_the_port_is_closed_afterwards() -> None:
    """Leaving the context stops the server, also while a client keeps its connection."""

    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            async with serve_corpus(PAGES) as base, session.get(f"{base}/raw") as response:
                await response.read()
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.get(f"{base}/raw")

    asyncio.run(main())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "localhost", "", "127.0.0.1 "])
def test_only_loopback_addresses_are_served_on(host: str) -> None:
    """Names are refused as well: they can mean anything."""

    async def main() -> None:
        with pytest.raises(CorpusError):
            async with serve_corpus(PAGES, host=host):
                pass

    asyncio.run(main())


@pytest.mark.loopback
def test_ipv6_loopback() -> None:
    """The base URL has the address in brackets."""

    async def main() -> None:
        try:
            async with serve_corpus(PAGES, host="::1") as base, aiohttp.ClientSession() as session:
                assert base.startswith("http://[::1]:")
                async with session.get(f"{base}/raw") as response:
                    assert response.status == 200
        except OSError:
            pytest.skip("no IPv6 on this machine")

    asyncio.run(main())
