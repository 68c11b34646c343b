"""Reading one page: over real loopback sockets, and with strict fakes where time matters."""

import asyncio
import gzip
import selectors
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from citations import document_id, revision_id
from egress.allowlist import parse_allowlist
from egress.client import Fetched, GuardedClient
from egress.errors import BodyIncomplete, UrlRejected
from egress.policy import EgressPolicy
from egress.ports import FetchLimits
from egress.url import Target, parse_target, resolve_location
from egress.violation import facts_of
from web_tools.arguments import ReadRequest, SearchRequest, WebToolCaps, parse_read_arguments
from web_tools.charset import CharsetSource
from web_tools.corpus import Document
from web_tools.corpus_server import serve_corpus
from web_tools.errors import WebErrorCode, WebToolError
from web_tools.extract import Detail, Extracted, ExtractLimits, Extractor
from web_tools.providers.local import LocalSearchProvider
from web_tools.read import Page, PageReader
from web_tools.search import run_search

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
CAPS = WebToolCaps()
SENTENCE = "A sentence of the page that a person would read. "
Serve = Callable[[asyncio.StreamWriter], Awaitable[None]]
Site = Mapping[str, bytes | Serve]


def answer(
    body: bytes | str = b"",
    *headers: str,
    status: str = "200 OK",
    content_type: str | None = "text/html; charset=utf-8",
) -> bytes:
    """A whole response that ends the connection."""
    data = body.encode() if isinstance(body, str) else body
    typed = [f"Content-Type: {content_type}"] if content_type else []
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Length: {len(data)}",
        "Connection: close",
        *typed,
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + data


def redirect(location: str, status: int = 302) -> bytes:
    return answer("", f"Location: {location}", status=f"{status} Moved")


def html(text: str, head: str = "") -> str:
    return (
        f"<html><head><title>T</title>{head}</head><body><main><p>{text}</p></main></body></html>"
    )


class Server:
    """A raw HTTP server: path to response; keeps the paths that were requested."""

    def __init__(self, site: Site) -> None:
        self.site = dict(site)
        self.requested: list[str] = []
        self.base = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ")[1].decode()
            self.requested.append(path)
            found = self.site.get(path, answer("gone", status="404 Not Found"))
            if isinstance(found, bytes):
                writer.write(found.replace(b"{base}", self.base.encode()))
            else:
                await found(writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def running(site: Site) -> Any:
    server = Server(site)
    listener = await asyncio.start_server(server._serve, "127.0.0.1", 0)
    server.base = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        await listener.wait_closed()


def policy(*entries: str) -> EgressPolicy:
    return EgressPolicy(allowlist=parse_allowlist(entries))


@attrs.frozen(kw_only=True)
class Outcome:
    page: Page | None
    error: WebToolError | None
    server: Server
    seconds: float

    @property
    def read(self) -> Page:
        assert self.page is not None, self.error
        return self.page

    @property
    def failed(self) -> WebToolError:
        assert self.error is not None, self.page
        return self.error


def asking(url: str, max_bytes: int, caps: WebToolCaps) -> ReadRequest:
    """What the parser of arguments makes of a call under *caps*."""
    return attrs.evolve(parse_read_arguments({"url": "u"}, caps), url=url, max_bytes=max_bytes)


def read(
    site: Site,
    path: str = "/",
    *,
    max_bytes: int = 65_536,
    caps: WebToolCaps = CAPS,
    allow: str = "{base}",
) -> Outcome:
    """Read *path* of a server of *site* through the real client and the real extractor."""

    async def main() -> Outcome:
        async with (
            running(site) as server,
            GuardedClient(policy(allow.replace("{base}", server.base[7:]))) as client,
            Extractor(ExtractLimits(workers=1)) as extractor,
        ):
            reader = PageReader(client, extractor, clock=lambda: NOW)
            started = time.monotonic()
            page = error = None
            try:
                page = await reader.read(asking(server.base + path, max_bytes, caps))
            except WebToolError as raised:
                error = raised
            seconds = time.monotonic() - started
            return Outcome(page=page, error=error, server=server, seconds=seconds)

    return asyncio.run(main())


@pytest.mark.loopback
def test_a_page_is_read() -> None:
    """Text, type, time and a citation of the final URL and the whole text."""
    outcome = read({"/a": answer(html(SENTENCE * 8))}, "/a")

    page = outcome.read
    url = f"{outcome.server.base}/a"
    assert SENTENCE.strip() in page.text
    assert (url, url, "text/html", 200) == (
        page.url,
        page.final_url,
        page.content_type,
        page.status,
    )
    assert (page.truncated, page.detail, page.hops, page.downgraded) == (False, None, (), False)
    assert len(page.text.encode()) == page.bytes == page.total_bytes
    assert page.title == "T"
    assert page.fetched_at == page.citation.retrieved_at == NOW
    assert page.citation.source_id == "127.0.0.1"
    assert (url, document_id(url)) == (page.citation.path, page.citation.document_id)
    assert revision_id(page.text) == page.citation.revision_id


@pytest.mark.loopback
def test_a_chain_of_redirects_is_followed() -> None:
    """Every kind of redirect, relative and absolute; the final URL is cited."""
    site = {
        "/1": redirect("/2", 301),
        "/2": redirect("3?x=1", 302),
        "/3?x=1": redirect("{base}/4", 303),
        "/4": redirect("/5", 307),
        "/5": redirect("/end#part", 308),
        "/end": answer(html(SENTENCE)),
    }
    outcome = read(site, "/1")

    page = outcome.read
    assert outcome.server.requested == ["/1", "/2", "/3?x=1", "/4", "/5", "/end"]
    assert [hop.status for hop in page.hops] == [301, 302, 303, 307, 308]
    assert f"{outcome.server.base}/1" == page.url
    assert f"{outcome.server.base}/end" == page.final_url == page.citation.path


@pytest.mark.loopback
def test_one_redirect_too_many() -> None:
    """The cap of the host counts; what lies behind it is not requested."""
    site: Site = {f"/{n}": redirect(f"/{n + 1}") for n in range(9)}
    outcome = read(site, "/0", caps=WebToolCaps(max_redirects=2))

    assert outcome.failed.code is WebErrorCode.TOO_MANY_REDIRECTS
    assert outcome.server.requested == ["/0", "/1", "/2"]
    assert read(site, "/0", caps=WebToolCaps(max_redirects=0)).server.requested == ["/0"]


@pytest.mark.loopback
@pytest.mark.parametrize(
    "location", ["http://127.0.0.1:1/", "http://evil.example/?q=data", "http://169.254.169.254/"]
)
@pytest.mark.parametrize("kind", ["redirect", "refresh"])
def test_a_hop_to_a_place_that_is_not_listed_is_denied(kind: str, location: str) -> None:
    """One violation, with the chain of hops, whether a header or the page sends its reader there."""
    last = (
        redirect(location)
        if kind == "redirect"
        else answer(html("x", f'<meta http-equiv="refresh" content="0; url={location}">'))
    )
    outcome = read({"/1": redirect("/2"), "/2": last}, "/1")

    error = outcome.failed
    assert error.code is WebErrorCode.EGRESS_DENIED
    assert error.violation is not None
    base = outcome.server.base
    assert (facts_of(parse_target(f"{base}/1")), facts_of(parse_target(f"{base}/2"))) == (
        error.violation.hops
    )
    assert error.violation.hop == 2
    assert facts_of(parse_target(location)) == error.violation.target
    assert location not in error.message
    assert not error.retryable


@pytest.mark.loopback
def test_an_empty_list_denies_every_read() -> None:
    """Nothing is requested."""

    async def main() -> None:
        async with (
            running({"/": answer(html("x"))}) as server,
            GuardedClient(policy()) as client,
            Extractor() as extractor,
        ):
            reader = PageReader(client, extractor, clock=lambda: NOW)
            with pytest.raises(WebToolError) as caught:
                await reader.read(ReadRequest(url=f"{server.base}/", max_bytes=100))
            assert caught.value.code is WebErrorCode.EGRESS_DENIED
            assert server.requested == []

    asyncio.run(main())


@pytest.mark.loopback
@pytest.mark.parametrize(
    "location", ["ftp://127.0.0.1/", "http://u:p@127.0.0.1/", "http:///x", "javascript:x"]
)
def test_a_redirect_to_what_is_no_url_of_ours(location: str) -> None:
    """The code is the one of a bad URL, told for the redirect, without an event."""
    error = read({"/": redirect(location)}).failed

    assert error.code is WebErrorCode.URL_NOT_ALLOWED
    assert error.violation is None
    assert error.message.startswith("A redirect of the page failed.")


@pytest.mark.parametrize(
    "url", ["", "x", "ftp://a/", "http://u@a/", "http://0x7f.1/", "http://a/\0", "http://\ud800/"]
)
def test_what_is_no_url_of_ours_is_refused_before_anything(url: str) -> None:
    """No fetch is made."""
    error = fake_read([], url=url)

    assert isinstance(error, WebToolError)
    assert (error.code, error.violation) == (WebErrorCode.URL_NOT_ALLOWED, None)


@pytest.mark.loopback
@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        ("404 Not Found", False),
        ("403 No", False),
        ("410 Gone", False),
        ("302 No Location", False),
        ("500 Oops", True),
        ("503 Busy", True),
        ("408 Slow", True),
        ("429 Many", True),
    ],
)
def test_a_status_that_is_not_2xx(status: str, retryable: bool) -> None:
    """The status is told; the body, whatever it says, is not."""
    error = read({"/": answer(html("sentinel"), "Retry-After: 120", status=status)}).failed

    assert (WebErrorCode.HTTP_ERROR, retryable) == (error.code, error.retryable)
    assert error.detail == f"http_{status[:3]}"
    assert error.retry_after == "120"
    assert error.message == f"The server answered with status {status[:3]}."


@pytest.mark.loopback
@pytest.mark.parametrize("value", ["\u00e9", "x" * 500])
def test_retry_after_is_bounded(value: str) -> None:
    """A header is text of the server: only short printable ASCII is passed on."""
    error = read({"/": answer("", f"Retry-After: {value}", status="429 Many")}).failed

    assert error.retry_after in {None, "x" * 64}


PDF = b"%PDF-1.7\n" + bytes(range(256)) * 20


@pytest.mark.loopback
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (PDF, "application/pdf"),
        (PDF, "text/plain"),
        (PDF, "application/octet-stream"),
        (PDF, None),
        (b"\x89PNG\r\n\x1a\n" + bytes(200), "image/png"),
        (b"\x89PNG\r\n\x1a\n" + bytes(200), "text/html"),
        (b"just text", "application/zip"),
        (b"just text", "video/mp4"),
    ],
)
def test_only_text_json_and_xml_are_returned(body: bytes, content_type: str | None) -> None:
    """Neither a declared binary type nor binary data under a text type gives text."""
    error = read({"/": answer(body, content_type=content_type)}).failed

    assert error.code is WebErrorCode.CONTENT_TYPE_UNSUPPORTED
    assert not error.retryable
    assert "%PDF" not in error.message
    assert ("It is PDF." in error.message) is (body is PDF)


@pytest.mark.loopback
@pytest.mark.parametrize(
    ("body", "content_type", "media_type"),
    [
        ('{"a": [1, 2],  "b": "<p>x</p>"}', "application/json", "application/json"),
        ('{"a": 1}', "application/problem+json; charset=utf-8", "application/problem+json"),
        ("<?xml version='1.0'?><r><a>x</a></r>", "application/xml", "application/xml"),
        ("plain\n  text\n", "text/plain", "text/plain"),
        ("# Title\n\n*x*\n", "text/markdown", "text/markdown"),
    ],
)
def test_other_text_is_returned_unchanged(body: str, content_type: str, media_type: str) -> None:
    """JSON, XML and plain text are never taken for HTML."""
    page = read({"/": answer(body, content_type=content_type)}).read

    assert (body, media_type) == (page.text, page.content_type)


@pytest.mark.loopback
@pytest.mark.parametrize("content_type", [None, "application/octet-stream", "nonsense"])
def test_html_without_a_useful_type_is_sniffed(content_type: str | None) -> None:
    """What is readable is read."""
    page = read({"/": answer(html(SENTENCE * 8), content_type=content_type)}).read

    assert SENTENCE.strip() in page.text
    assert "<p>" not in page.text


JAPANESE = "これは日本語の文章です。漢字とかなが混ざっています。" * 8


@pytest.mark.loopback
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (html(JAPANESE, '<meta charset="shift_jis">').encode("cp932"), "text/html"),
        (html(JAPANESE).encode("euc_jp"), "text/html; charset=euc-jp"),
        (html(JAPANESE).encode(), "text/html; charset=iso-8859-1"),
        (html(JAPANESE).encode("utf-16"), "text/html; charset=gbk"),
        (html(JAPANESE).encode(), "text/html; charset=no-such-charset"),
    ],
)
def test_charsets_that_servers_get_wrong(body: bytes, content_type: str) -> None:
    """The text comes out right, and the page says which charset it was in."""
    page = read({"/": answer(body, content_type=content_type)}).read

    assert JAPANESE[:20] in page.text
    assert page.charset


@pytest.mark.loopback
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_decompression_bomb_is_cut(coding: str) -> None:
    """Two hundred megabytes in a small body end at the cap, and the page says so."""
    start = html(SENTENCE * 8).encode()
    pack = zlib.compressobj(9, wbits=31 if coding == "gzip" else 15)
    body = pack.compress(start) + b"".join(pack.compress(b" " * 2**20) for _ in range(200))
    outcome = read({"/": answer(body + pack.flush(), f"Content-Encoding: {coding}")})

    assert SENTENCE.strip() in outcome.read.text
    assert outcome.read.truncated
    assert outcome.seconds < 20


@pytest.mark.loopback
@pytest.mark.parametrize(
    "headers",
    [
        ("Content-Encoding: br",),
        ("Content-Encoding: gzip, gzip",),
        ("Content-Encoding: x-unknown",),
    ],
)
def test_a_coding_that_was_not_asked_for(headers: tuple[str, ...]) -> None:
    """Refused, not passed on as text."""
    error = read({"/": answer(gzip.compress(b"x" * 100), *headers)}).failed

    assert (error.code, error.detail) == (WebErrorCode.FETCH_FAILED, "encoding_refused")


@pytest.mark.loopback
def test_a_body_that_is_not_its_coding() -> None:
    """Broken gzip is a failed fetch."""
    error = read({"/": answer(b"not gzip at all", "Content-Encoding: gzip")}).failed

    assert (error.code, error.detail) == (WebErrorCode.FETCH_FAILED, "decoding")


def refresh(target: str, text: str = "") -> bytes:
    return answer(html(text, f'<meta http-equiv="refresh" content="0; url={target}">'))


@pytest.mark.loopback
def test_a_refresh_stub_leads_to_its_target() -> None:
    """The target is read through the same checks and the stub is a hop."""
    site = {"/": refresh("en/"), "/en/": redirect("/en/start"), "/en/start": answer(html(SENTENCE))}
    outcome = read(site)

    page = outcome.read
    assert outcome.server.requested == ["/", "/en/", "/en/start"]
    assert [hop.target.path_query for hop in page.hops] == ["/", "/en/"]
    assert [hop.status for hop in page.hops] == [200, 302]
    assert (f"{outcome.server.base}/", f"{outcome.server.base}/en/start") == (
        page.url,
        page.final_url,
    )


@pytest.mark.loopback
def test_refreshes_count_as_redirects() -> None:
    """A loop of two pages ends at the cap; redirects and refreshes share it."""
    loop = read({"/a": refresh("/b"), "/b": refresh("/a")}, "/a")
    mixed: Site = {
        "/1": redirect("/2"),
        "/2": refresh("/3"),
        "/3": redirect("/4"),
        "/4": answer("x"),
    }

    assert loop.failed.code is WebErrorCode.TOO_MANY_REDIRECTS
    assert loop.server.requested == ["/a", "/b"] * 3
    assert read(mixed, "/1", caps=WebToolCaps(max_redirects=3)).page is not None
    for most, requested in ((2, 3), (1, 2), (0, 1)):
        outcome = read(mixed, "/1", caps=WebToolCaps(max_redirects=most))
        assert outcome.failed.code is WebErrorCode.TOO_MANY_REDIRECTS
        assert len(outcome.server.requested) == requested


@pytest.mark.loopback
def test_a_page_that_reloads_itself_is_the_page() -> None:
    """A refresh without another target sends nobody on."""
    outcome = read({"/": refresh("/#top", SENTENCE * 8)})

    assert SENTENCE.strip() in outcome.read.text
    assert outcome.server.requested == ["/"]


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def silent(writer: asyncio.StreamWriter) -> None:
    del writer
    await asyncio.sleep(30)


@pytest.mark.loopback
@pytest.mark.parametrize("serve", [drip, silent])
def test_a_slow_server_meets_the_deadline(serve: Serve) -> None:
    """One deadline over everything: a drip of bytes does not extend it."""
    outcome = read({"/": serve}, caps=WebToolCaps(timeout_ms=300))

    assert (outcome.failed.code, outcome.failed.detail) == (WebErrorCode.FETCH_FAILED, "deadline")
    assert outcome.failed.retryable
    assert outcome.seconds < 25


async def breaks(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\nhalf")


async def resets(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\nhalf")
    await writer.drain()
    writer.transport.abort()


async def nonsense(writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")


@pytest.mark.loopback
@pytest.mark.parametrize("serve", [breaks, resets, nonsense])
def test_a_body_that_breaks_off_is_a_failed_fetch(serve: Serve) -> None:
    """Half a page is never returned as a page."""
    assert read({"/": serve}).failed.code is WebErrorCode.FETCH_FAILED


@pytest.mark.loopback
def test_nobody_listens() -> None:
    """A refused connection may be tried again."""

    async def main() -> None:
        async with running({}) as server:
            base = server.base
        async with GuardedClient(policy(base[7:])) as client, Extractor() as extractor:
            reader = PageReader(client, extractor, clock=lambda: NOW)
            with pytest.raises(WebToolError) as caught:
                await reader.read(ReadRequest(url=f"{base}/", max_bytes=10))
            assert (caught.value.detail, caught.value.retryable) == ("connect", True)

    asyncio.run(main())


@pytest.mark.loopback
def test_a_page_without_text_succeeds_and_says_so() -> None:
    """Empty text with the detail, not an error."""
    page = read({"/": answer("<html><body><script>app()</script></body></html>")}).read

    assert (page.text, page.detail) == ("", Detail.EMPTY_CONTENT)
    assert not page.truncated


@pytest.mark.loopback
def test_an_interstitial_succeeds_and_says_so() -> None:
    """A challenge page is not taken for the page."""
    body = "<html><head><title>Just a moment...</title></head><body><p>Checking your browser</p></body></html>"

    assert read({"/": answer(body)}).read.detail == Detail.INTERSTITIAL


@pytest.mark.loopback
def test_a_large_page_is_cut_honestly() -> None:
    """Six megabytes with little text give that text; what was left out is said."""
    body = html(SENTENCE * 40, f"<style>{'a{}' * 2_000_000}</style>")
    page = read({"/": answer(body)}, max_bytes=200).read

    assert page.truncated
    assert page.bytes <= 200 < page.total_bytes
    assert page.text in SENTENCE * 40


@pytest.mark.loopback
def test_what_a_search_finds_is_read() -> None:
    """From the index to the served page and back to its text, with matching citations."""
    pages = (
        Document(path="/tea%20pot", title="Tea", text="Boil water. " * 30),
        Document(path="/cat", title="Cat", text="A cat sleeps. " * 30),
    )

    async def main() -> None:
        async with (
            serve_corpus(pages) as base,
            GuardedClient(policy(base[7:])) as client,
            Extractor() as extractor,
        ):
            with LocalSearchProvider.from_documents(pages, base_url=base) as provider:
                request = SearchRequest(query="boil tea", limit=1)
                outcome = await run_search(provider, request, CAPS, clock=lambda: NOW)
            (result,) = outcome.results
            reader = PageReader(client, extractor, clock=lambda: NOW)
            page = await reader.read(ReadRequest(url=result.url, max_bytes=1000))
            assert "Boil water." in page.text
            assert result.citation.document_id == page.citation.document_id
            assert result.source_id == page.citation.source_id

    asyncio.run(main())


# Strict fakes: scripted answers, in order, and nothing else.


def fetched(url: str, body: bytes = b"", *, status: int = 200, truncated: bool = False) -> Fetched:
    return Fetched(
        status=status,
        headers=(("content-type", "text/plain"),),
        body=body,
        truncated=truncated,
        raw_bytes=len(body),
        final=parse_target(url),
        hops=(),
        downgraded=False,
    )


@attrs.define
class ScriptedClient:
    script: list[Fetched | BaseException]
    seconds: float = 0.0
    asked: list[tuple[str, FetchLimits]] = attrs.Factory(list)

    async def fetch(self, url: str | Target, *, limits: FetchLimits | None = None) -> Fetched:
        assert isinstance(url, Target)
        assert limits is not None
        self.asked.append((url.url, limits))
        await asyncio.sleep(self.seconds)
        assert self.script, f"an unexpected fetch of {url.url}"
        step = self.script.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step


@attrs.define
class ScriptedExtractor:
    refreshes: list[str] = attrs.Factory(list)
    base: str | None = None
    seconds: float = 0.0
    truncated: bool = False

    async def extract(self, body: bytes, *, content_type: str | None, url: str) -> Extracted:
        assert content_type == "text/plain"
        await asyncio.sleep(self.seconds)
        return Extracted(
            text=body.decode("utf-8"),
            media_type="text/plain",
            charset="utf-8",
            charset_source=CharsetSource.VALID_UTF8,
            refresh=self.refreshes.pop(0) if self.refreshes else None,
            refresh_base=self.base,
            truncated=self.truncated,
        )


class _Jumping(selectors.DefaultSelector):
    """Waits for no time: it passes as soon as nothing else is to be done."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout is not None:
            self.now += timeout
        return found


class _JumpingLoop(asyncio.SelectorEventLoop):
    """A loop in which a second takes no time, and nothing else takes any."""

    def __init__(self) -> None:
        self._times = _Jumping()
        super().__init__(self._times)

    def time(self) -> float:
        return self._times.now


def fake_read(
    script: list[Fetched | BaseException],
    *,
    url: str = "http://a.example/",
    max_bytes: int = 1000,
    extractor: ScriptedExtractor | None = None,
    client: ScriptedClient | None = None,
    caps: WebToolCaps = CAPS,
) -> Page | WebToolError:
    async def main() -> Page | WebToolError:
        scripted = client or ScriptedClient(script)
        reader = PageReader(scripted, extractor or ScriptedExtractor(), clock=lambda: NOW)
        try:
            return await reader.read(asking(url, max_bytes, caps))
        except WebToolError as error:
            return error
        finally:
            assert not scripted.script, "answers that were never asked for"

    with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
        return runner.run(main())


def page_of(outcome: Page | WebToolError) -> Page:
    assert isinstance(outcome, Page), outcome
    return outcome


@example("é" * 10, 3, 1)
@example("a" * 70 + "\n" + "b" * 20, 75, 5)
@given(
    st.text(st.characters(codec="utf-8") | st.sampled_from("\n é😀")),
    st.integers(1, 80),
    st.integers(0, 80),
)
def test_the_cut_is_honest(text: str, most: int, more: int) -> None:
    """Never over the limit, always a beginning; truncated means dropped; the revision is the whole's."""
    body = text.encode()
    small = page_of(fake_read([fetched("http://a.example/", body)], max_bytes=most))
    large = page_of(fake_read([fetched("http://a.example/", body)], max_bytes=most + more))

    # A larger limit may give less by moving back to the end of a line, never by half.
    assert large.bytes >= small.bytes - (most + more) // 2
    assert len(small.text.encode()) == small.bytes <= most
    assert text.startswith(small.text)
    assert text.startswith(large.text)
    assert (small.text != text) == small.truncated
    assert revision_id(text) == small.citation.revision_id == large.citation.revision_id
    assert (len(text), len(body)) == (small.total_chars, small.total_bytes)


@pytest.mark.parametrize(("body_cut", "text_cut"), [(True, False), (False, True)])
def test_every_cut_before_ours_is_told(body_cut: bool, text_cut: bool) -> None:
    """A capped body or a capped extraction makes a short page truncated as well."""
    extractor = ScriptedExtractor(truncated=text_cut)
    page = page_of(
        fake_read([fetched("http://a.example/", b"x", truncated=body_cut)], extractor=extractor)
    )

    assert page.truncated
    assert page.text == "x"


def test_the_caps_bound_each_fetch() -> None:
    """Redirects and seconds come from the host's caps."""
    client = ScriptedClient([fetched("http://a.example/")])
    fake_read([], client=client, caps=WebToolCaps(max_redirects=3, timeout_ms=1500))

    ((url, limits),) = client.asked
    assert (url, limits.max_redirects) == ("http://a.example/", 3)
    assert limits.timeout_seconds == 1.5


def test_a_refresh_gets_what_is_left() -> None:
    """The second fetch has one redirect less and only the seconds that the first left."""
    client = ScriptedClient(
        [fetched("http://a.example/"), fetched("http://a.example/b")], seconds=0.05
    )
    extractor = ScriptedExtractor(refreshes=["http://a.example/b"])
    page_of(fake_read([], client=client, extractor=extractor, caps=WebToolCaps(timeout_ms=5000)))

    first, second = (limits for _, limits in client.asked)
    assert (first.max_redirects, second.max_redirects) == (5, 4)
    assert second.timeout_seconds == pytest.approx(first.timeout_seconds - 0.05)


def test_a_refresh_after_the_deadline_is_not_fetched() -> None:
    """Time that is used up is used up."""
    client = ScriptedClient([fetched("http://a.example/")], seconds=0.05)
    extractor = ScriptedExtractor(refreshes=["http://a.example/b"])
    error = fake_read([], client=client, extractor=extractor, caps=WebToolCaps(timeout_ms=10))

    assert isinstance(error, WebToolError)
    assert (error.detail, error.retryable) == ("deadline", True)
    assert len(client.asked) == 1


def test_extraction_counts_against_the_deadline_of_the_read() -> None:
    """It is cut to what is left, and the read ends like one whose fetch was too slow."""
    extractor = ScriptedExtractor(seconds=3600)
    error = fake_read(
        [fetched("http://a.example/")], extractor=extractor, caps=WebToolCaps(timeout_ms=50)
    )

    assert isinstance(error, WebToolError)
    assert (error.code, error.detail) == (WebErrorCode.FETCH_FAILED, "deadline")
    assert error.retryable


def test_a_chain_of_slow_pages_has_one_deadline() -> None:
    """What one page's extraction took is missing for the next page's fetch and extraction."""
    client = ScriptedClient([fetched("http://a.example/"), fetched("http://a.example/b")])
    extractor = ScriptedExtractor(refreshes=["/b"], seconds=0.06)
    error = fake_read([], client=client, extractor=extractor, caps=WebToolCaps(timeout_ms=100))

    assert isinstance(error, WebToolError)
    assert error.detail == "deadline"
    assert client.asked[1][1].timeout_seconds == pytest.approx(0.04)


def test_a_timeout_of_the_extractor_itself_is_no_deadline() -> None:
    """Only the read's own clock says that the read's time is up."""

    class Failing(ScriptedExtractor):
        async def extract(self, body: bytes, *, content_type: str | None, url: str) -> Extracted:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        fake_read([fetched("http://a.example/")], extractor=Failing())


def test_a_refresh_from_https_to_http_is_told() -> None:
    """The downgrade is recorded like one of a redirect."""
    extractor = ScriptedExtractor(refreshes=["http://a.example/b"])
    script: list[Fetched | BaseException] = [
        fetched("https://a.example/"),
        fetched("http://a.example/b"),
    ]
    assert page_of(fake_read(script, url="https://a.example/", extractor=extractor)).downgraded


def test_a_refresh_to_what_is_no_url_of_ours() -> None:
    """Refused as a redirect would be; nothing more is fetched."""
    extractor = ScriptedExtractor(refreshes=["http://u:p@a.example/"])
    error = fake_read([fetched("http://a.example/")], extractor=extractor)

    assert isinstance(error, WebToolError)
    assert error.code is WebErrorCode.URL_NOT_ALLOWED


REFUSED_REFERENCES = [
    "http://0177.0.0.1/",
    "http://0x7f.1/",
    "http://2852039166/",
    "http://127.1/",
    "http://127.0.0.1./",
    "http://\uff11\uff12\uff17.0.0.1/",
    "http://%31%32%37.0.0.1/",
    "http:\\\\127.0.0.1",
    "http:///a.example/",
    "http:/a.example/",
    "///a.example/",
    "/\\a.example/",
    "http:ok",
    "ht\ttp://a.example/",
    "http://a.example:035195/",
    "http://@a.example/",
    "http://a.example /",
    "http://a.example\\@evil.example/",
    "javascript:alert(1)",
    "file:///etc/passwd",
    "data:text/html,x",
]


@pytest.mark.parametrize("reference", REFUSED_REFERENCES)
def test_a_refresh_is_read_like_a_location(reference: str) -> None:
    """What R1-R3 and R12 refuse in a header they refuse in a page: no event, no further fetch."""
    with pytest.raises(UrlRejected):
        resolve_location(parse_target("http://a.example/"), reference)
    error = fake_read(
        [fetched("http://a.example/")], extractor=ScriptedExtractor(refreshes=[reference])
    )

    assert isinstance(error, WebToolError)
    assert (error.code, error.violation) == (WebErrorCode.URL_NOT_ALLOWED, None)


@pytest.mark.loopback
@pytest.mark.parametrize("reference", REFUSED_REFERENCES)
def test_a_refresh_reaches_the_rules_untouched(reference: str) -> None:
    """Nothing between the page and the rules tidies the text into something acceptable."""
    outcome = read({"/": refresh(reference)})

    assert outcome.failed.code is WebErrorCode.URL_NOT_ALLOWED
    assert outcome.server.requested == ["/"]


@pytest.mark.parametrize("base", ["http://0177.0.0.1/", "http:\\\\b.example", "javascript:x"])
def test_the_base_of_a_refresh_is_read_like_a_location_too(base: str) -> None:
    """A base that the rules refuse does not get past them by way of a relative reference."""
    extractor = ScriptedExtractor(refreshes=["x"], base=base)
    error = fake_read([fetched("http://a.example/")], extractor=extractor)

    assert isinstance(error, WebToolError)
    assert (error.code, error.violation) == (WebErrorCode.URL_NOT_ALLOWED, None)


def test_a_refresh_is_relative_to_the_base() -> None:
    """The base counts from the page, the reference from the base."""
    client = ScriptedClient([fetched("http://a.example/d/"), fetched("http://b.example/c/x")])
    extractor = ScriptedExtractor(refreshes=["x"], base="//b.example/c/")
    page_of(fake_read([], client=client, extractor=extractor))

    assert [url for url, _ in client.asked] == ["http://a.example/", "http://b.example/c/x"]


@pytest.mark.parametrize("status", [199, 300, 304, 400, 599, 999])
def test_only_2xx_is_success(status: int) -> None:
    """Any other final status is an error, also one that no standard knows."""
    error = fake_read([fetched("http://a.example/", status=status)])

    assert isinstance(error, WebToolError)
    assert error.detail == f"http_{status}"


def test_an_error_keeps_its_cause() -> None:
    """The chain leads back to the error of egress."""
    error = fake_read([BodyIncomplete(host="a.example")])

    assert isinstance(error, WebToolError)
    assert isinstance(error.__cause__, BodyIncomplete)
    assert (error.code, error.detail) == (WebErrorCode.FETCH_FAILED, "incomplete")


def test_cancellation_passes_through() -> None:
    """A cancelled run is not told that a page failed."""
    with pytest.raises(asyncio.CancelledError):
        fake_read([asyncio.CancelledError()])


def test_a_closed_extractor_is_extraction_failed() -> None:
    """The word says which half failed; other pages are not blamed."""

    async def main() -> None:
        extractor = Extractor()
        await extractor.aclose()
        client = ScriptedClient([fetched("http://a.example/", b"x")])
        reader = PageReader(client, extractor, clock=lambda: NOW)
        with pytest.raises(WebToolError) as caught:
            await reader.read(ReadRequest(url="http://a.example/", max_bytes=10))
        assert (caught.value.code, caught.value.detail) == (
            WebErrorCode.FETCH_FAILED,
            "extraction_failed",
        )

    asyncio.run(main())
