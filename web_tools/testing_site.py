"""A small web site on a loopback port for tests: strict, and it counts what reaches it. Public.

It answers the paths of its table only; a request for any other path fails the test when the site
closes. Answers can be slow or cut short, as real servers do.
"""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

import attrs

__all__ = ("LoopbackSite", "SiteAnswer")

_MAX_HEAD_BYTES: Final = 65_536
_TICK_SECONDS: Final = 0.02


@attrs.frozen(kw_only=True)
class SiteAnswer:
    """What the site answers to a GET of one path.

    Attributes:
        content_type: None sends none.
        headers: Further fields.
        delay_seconds: Silence before the head.
        drip_seconds: Silence before each byte of the body; 0 sends it at once.
        missing_bytes: How much longer than the body the answer claims to be; then it breaks off.
    """

    body: bytes = b""
    status: int = 200
    content_type: str | None = "text/html; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    delay_seconds: float = 0.0
    drip_seconds: float = 0.0
    missing_bytes: int = 0

    @classmethod
    def html(cls, inside: str, *, title: str = "A page") -> Self:
        """A whole page with *inside* as its main part."""
        page = (
            f'<!DOCTYPE html><html lang="en"><head><title>{title}</title></head>'
            f"<body><main>{inside}</main></body></html>"
        )
        return cls(body=page.encode())

    @classmethod
    def text(cls, text: str, *, content_type: str = "text/plain; charset=utf-8") -> Self:
        """*text* as it is."""
        return cls(body=text.encode(), content_type=content_type)

    @classmethod
    def redirect(cls, location: str, *, status: int = 302) -> Self:
        """A redirect to *location*."""
        return cls(status=status, headers=(("Location", location),), content_type=None)

    def head(self) -> bytes:
        """Status line and fields, up to the body."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        if self.content_type is not None:
            lines.append(f"Content-Type: {self.content_type}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines.append(f"Content-Length: {len(self.body) + self.missing_bytes}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class LoopbackSite:
    """Serves *pages* (answers by path and query) while the context is open.

    Attributes:
        pages: The table; it may be changed while the site is open.
        requests: Path and query of every request, in order.
        heads: The head of every request as it came.
        connections: How many connections were accepted.
    """

    def __init__(
        self, pages: Mapping[str, SiteAnswer] | None = None, *, host: str = "127.0.0.1"
    ) -> None:
        self.pages = dict(pages or {})
        self.requests: list[str] = []
        self.heads: list[str] = []
        self.connections = 0
        self._host = host
        self._server: asyncio.Server | None = None
        self._talking: set[asyncio.Task[None]] = set()
        self._unexpected: list[str] = []

    @property
    def port(self) -> int:
        """The port it listens on.

        Raises:
            RuntimeError: The site is not open.
        """
        if self._server is None:
            raise RuntimeError("the site is not open")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def entry(self) -> str:
        """The allowlist entry that opens this site and nothing else."""
        return f"{self._host}:{self.port}"

    @property
    def open_connections(self) -> int:
        """How many connections are open at this moment."""
        return len(self._talking)

    def url(self, path: str = "/", *, host: str | None = None) -> str:
        """The address of *path*; under another name for this machine if *host* is given."""
        return f"http://{host or self._host}:{self.port}{path}"

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, self._host, 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection.

        Raises:
            AssertionError: A path was asked for that is not in the table.
        """
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in self._talking:
            task.cancel()
        await asyncio.gather(*self._talking, return_exceptions=True)
        if server is not None:
            await server.wait_closed()
        if self._unexpected and error is None:
            raise AssertionError(f"requests that are not in the table: {self._unexpected}")

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._talk(reader, writer))
        self._talking.add(task)
        task.add_done_callback(self._talking.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (head := await _read_head(reader)) is not None:
                answer = self._answer(head)
                if not await _send(reader, writer, answer) or answer.missing_bytes:
                    return
        except OSError:
            # The client went away, which is its right.
            return
        finally:
            writer.close()
            await _closed(writer)

    def _answer(self, head: str) -> SiteAnswer:
        path = head.split(" ", 2)[1]
        self.requests.append(path)
        self.heads.append(head)
        answer = self.pages.get(path)
        if answer is None:
            self._unexpected.append(path)
            return SiteAnswer(status=404)
        return answer


async def _read_head(reader: asyncio.StreamReader) -> str | None:
    """One request without body; None when the client has closed."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    return head[:_MAX_HEAD_BYTES].decode("latin-1")


async def _send(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: SiteAnswer
) -> bool:
    """Whether the client stayed until the end."""
    if not await _stays(reader, answer.delay_seconds):
        return False
    writer.write(answer.head())
    if not answer.drip_seconds:
        writer.write(answer.body)
        await writer.drain()
        return True
    for byte in answer.body:
        if not await _stays(reader, answer.drip_seconds):
            return False
        writer.write(bytes([byte]))
        await writer.drain()
    return True


async def _stays(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Wait, and notice when the client goes away meanwhile."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    # A stream has no event for its end.
    while (left := end - loop.time()) > 0 and not reader.at_eof():  # noqa: ASYNC110
        await asyncio.sleep(min(left, _TICK_SECONDS))
    return not reader.at_eof()


async def _closed(writer: asyncio.StreamWriter) -> None:
    try:
        await writer.wait_closed()
    except OSError:
        return
