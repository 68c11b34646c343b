"""A stream or datagrams to one configured endpoint, for protocols that are no HTTP.

For what an operator has configured, as `egress.request` is for APIs: the endpoint is the only one
that its `ApiPolicy` admits, its name is looked up once for a connection, every answer is vetted, and
only those addresses are dialled. A target with the scheme https is spoken to through TLS.

A stream tells at its end whether the other side has read all of it: that the system has taken bytes
says nothing of whether anybody has got them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import socket
import ssl
import struct
import termios
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, cast

from egress.address import Address
from egress.decision import Deny, check_answers, check_listed
from egress.errors import (
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    DnsFailed,
    EgressDenied,
    FetchError,
    TlsFailed,
)
from egress.ports import Resolver
from egress.request import ApiPolicy
from egress.resolver import SystemResolver
from egress.url import Target
from egress.violation import violation_of

__all__ = ("Datagrams", "Stream", "open_datagrams", "open_stream")

# What a receiver that only listens may say before it is dropped: TLS sends tickets.
_MAX_RECEIVED_BYTES: Final = 1 << 18
_INT: Final = struct.Struct("i")


async def open_stream(
    target: Target,
    *,
    policy: ApiPolicy,
    timeout_seconds: float,
    context: ssl.SSLContext | None = None,
    resolver: Resolver | None = None,
) -> Stream:
    """A connection to *target*, through TLS where its scheme is https.

    Raises:
        EgressDenied: The policy refuses it.
        FetchError: It was allowed and failed.
        ValueError: *context* does not verify.
    """
    if context is not None and not (
        context.check_hostname and context.verify_mode is ssl.CERT_REQUIRED
    ):
        raise ValueError("a context that verifies neither chain nor name is no TLS")
    with _as_failures(target):
        async with asyncio.timeout(timeout_seconds):
            wire = await _dialled(target, await _vetted(target, policy, resolver))
            if target.scheme != "https":
                return Stream(target, wire)
            tls = _Tls(wire, context or ssl.create_default_context(), target.host)
            try:
                await tls.carry_out(tls.object.do_handshake)
            except BaseException:
                wire.abort()
                raise
            return Stream(target, wire, tls)


async def open_datagrams(
    target: Target, *, policy: ApiPolicy, timeout_seconds: float, resolver: Resolver | None = None
) -> Datagrams:
    """A socket that sends datagrams to *target* and to nobody else.

    Raises:
        EgressDenied: The policy refuses it.
        FetchError: It was allowed and failed.
    """
    with _as_failures(target):
        async with asyncio.timeout(timeout_seconds):
            addresses = await _vetted(target, policy, resolver)
            _, made = await asyncio.get_running_loop().create_datagram_endpoint(
                _Packets, remote_addr=(str(addresses[0]), target.port)
            )
    return Datagrams(target, made)


async def _vetted(
    target: Target, policy: ApiPolicy, resolver: Resolver | None
) -> tuple[Address, ...]:
    allowed = policy.for_target(target)
    verdict = check_listed(allowed, target)
    if not isinstance(verdict, Deny) and target.address is None:
        verdict = check_answers(allowed, target, await _answers(target, resolver))
    if isinstance(verdict, Deny):
        raise EgressDenied(violation_of(verdict, target))
    return verdict.addresses


async def _answers(target: Target, resolver: Resolver | None) -> Sequence[str]:
    try:
        return await (resolver or SystemResolver()).resolve(target.host, target.port)
    except OSError as error:
        raise DnsFailed(
            host=target.host, hop=0, detail=error.strerror or "", temporary=True
        ) from error


async def _dialled(target: Target, addresses: tuple[Address, ...]) -> _Wire:
    """A connection to the first of the addresses that takes one.

    Raises:
        OSError: None of them does.
    """
    failed: OSError | None = None
    for address in addresses:
        try:
            _, wire = await asyncio.get_running_loop().create_connection(
                _Wire, str(address), target.port
            )
        except OSError as error:
            failed = error
        else:
            return wire
    raise failed or OSError(errno.EADDRNOTAVAIL, "no address")


@contextlib.contextmanager
def _as_failures(target: Target) -> Iterator[None]:
    try:
        yield
    except FetchError:
        raise
    except TimeoutError as error:
        raise DeadlineExceeded(host=target.host, hop=0) from error
    except ssl.SSLError as error:
        verify = getattr(error, "verify_message", None)
        detail = str(verify or error.reason or type(error).__name__)
        raise TlsFailed(host=target.host, hop=0, detail=detail) from error
    except OSError as error:
        raise ConnectFailed(
            host=target.host, hop=0, detail=errno.errorcode.get(error.errno or 0, "")
        ) from error


class _Wire(asyncio.Protocol):
    """The socket of a stream, and what is known of its other end."""

    def __init__(self) -> None:
        self.transport = cast("asyncio.Transport", None)
        self.ended = self.lost = False
        self.received: Callable[[bytes], object] | None = None
        self._left = _MAX_RECEIVED_BYTES
        self._room, self._news, self._gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self.transport.abort()
        elif self.received is not None:
            self.received(data)
        self._news.set()

    def eof_received(self) -> bool:
        self.ended = True
        self._news.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.ended = self.lost = True
        self._gone.set()
        self._news.set()
        self._room.set()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def write(self, data: bytes) -> None:
        """Hand bytes to the system, waiting while it takes no more."""
        if data and not self.lost:
            self.transport.write(data)
        await self._room.wait()

    def forget_news(self) -> None:
        """From here on `news` waits for something that is new."""
        self._news.clear()

    async def news(self) -> None:
        """Return when something was received, or nothing will be."""
        if not self.ended:
            await self._news.wait()

    def unread(self) -> int:
        """How many bytes the other end's system has not acknowledged."""
        if self.lost:
            return 1
        handle = self.transport.get_extra_info("socket")
        raw = fcntl.ioctl(handle.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
        return int(_INT.unpack(raw)[0])

    async def end(self) -> None:
        """Return when nothing more will be received."""
        while not self.ended:
            self._news.clear()
            await self._news.wait()

    async def flushed(self) -> None:
        """Return when the system has taken everything, and the connection is closed.

        Raises:
            OSError: It was lost before.
        """
        if self.lost:
            raise OSError(errno.ECONNRESET, "the connection is gone")
        self.transport.close()
        await self._gone.wait()

    def abort(self) -> None:
        """Drop the connection."""
        self.transport.abort()


class _Tls:
    """TLS over a wire. It only writes: what the other end says beside TLS itself stays unread."""

    def __init__(self, wire: _Wire, context: ssl.SSLContext, host: str) -> None:
        self._wire = wire
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        wire.received = self._in.write
        self.object = context.wrap_bio(self._in, self._out, server_hostname=host)

    async def carry_out(self, step: Callable[[], object]) -> None:
        """A step of TLS, with as many messages back and forth as it takes.

        Raises:
            ssl.SSLError: It failed, or the connection ended before it was done.
        """
        while True:
            self._wire.forget_news()
            if self._wire.ended:
                self._in.write_eof()
            try:
                step()
            except ssl.SSLWantReadError:
                await self._wire.write(self._out.read())
                await self._wire.news()
            else:
                await self._wire.write(self._out.read())
                return

    def was_closed(self) -> bool:
        """Whether the other end has said that it sends, and so reads, no more."""
        try:
            self.object.read(1)
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError:
            return True
        return True


class Stream:
    """Bytes on their way to a receiver. Not shared between tasks."""

    def __init__(self, target: Target, wire: _Wire, tls: _Tls | None = None) -> None:
        self._target, self._wire, self._tls = target, wire, tls

    async def write(self, data: bytes) -> None:
        """Send bytes, waiting while the receiver takes no more.

        Raises:
            ConnectionLost: It is gone, or has closed its side.
        """
        if self._wire.ended:
            raise self._lost("closed by the receiver")
        if self._tls is None:
            await self._wire.write(data)
            return
        try:
            view = memoryview(data)
            # A record of TLS holds 16 KiB: what is encrypted and unsent stays small.
            for start in range(0, len(view), 1 << 14):
                step = partial(self._object().write, view[start : start + (1 << 14)])
                await self._tls.carry_out(step)
        except ssl.SSLError as error:
            raise self._lost("TLS was ended by the receiver") from error

    def _object(self) -> ssl.SSLObject:
        return cast("_Tls", self._tls).object

    async def finish(self, *, confirm: bool = True) -> None:
        """Say that this is all, and return when the receiver has read it and closed as well.

        Without *confirm* it returns when the system has sent it: that nobody has read it is not seen.

        Raises:
            ConnectionLost: It has closed before, or without reading to the end.
        """
        try:
            if not confirm:
                await self._wire.flushed()
                return
            if self._wire.ended or (self._tls is not None and self._tls.was_closed()):
                raise self._lost("closed by the receiver before it had everything")
            if self._tls is not None:
                await self._close_tls()
            if not self._wire.lost:
                self._wire.transport.write_eof()
            await self._wire.end()
            # Its end may have crossed with bytes of ours that nobody will read.
            if self._wire.unread():
                raise self._lost("closed by the receiver without reading to the end")
        except OSError as error:
            raise self._lost("reset by the receiver") from error
        finally:
            self.abort()

    async def _close_tls(self) -> None:
        """Each side says that it is done; one that only closes its connection has read all the same."""
        with contextlib.suppress(ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError):
            await cast("_Tls", self._tls).carry_out(self._object().unwrap)

    def abort(self) -> None:
        """Drop the connection. May be called twice."""
        self._wire.abort()

    def _lost(self, detail: str) -> ConnectionLost:
        return ConnectionLost(host=self._target.host, hop=0, detail=detail)


class _Packets(asyncio.DatagramProtocol):
    """The socket of datagrams, and what the system says of those that were sent."""

    def __init__(self) -> None:
        self.transport = cast("asyncio.DatagramTransport", None)
        self.error: Exception | None = None
        self.room = asyncio.Event()
        self.room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def error_received(self, exc: Exception) -> None:
        self.error = exc

    def pause_writing(self) -> None:
        self.room.clear()

    def resume_writing(self) -> None:
        self.room.set()


class Datagrams:
    """Datagrams to one receiver. Nobody tells whether they arrive."""

    def __init__(self, target: Target, packets: _Packets) -> None:
        self._target, self._packets = target, packets

    def send(self, data: bytes) -> None:
        """Send one."""
        self._packets.transport.sendto(data)

    async def settle(self) -> None:
        """Return when the system has taken what was sent.

        Raises:
            ConnectionLost: It said that one was not delivered; most that are lost nobody tells of.
        """
        await self._packets.room.wait()
        sock: socket.socket = self._packets.transport.get_extra_info("socket")
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        error = self._packets.error
        self._packets.error = None
        if number or error is not None:
            number = number or getattr(error, "errno", 0) or 0
            detail = errno.errorcode.get(number, "")
            raise ConnectionLost(host=self._target.host, hop=0, detail=detail)

    def close(self) -> None:
        """Let go of the socket. May be called twice."""
        self._packets.transport.close()
