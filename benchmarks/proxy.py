"""What the egress proxy costs beside no proxy at all and beside a plain relay, in one run.

Usage: python benchmarks/proxy.py [--rounds 7] [--mebibytes 128] [--tunnels 2000] [--json]

Three ways lead to one server on the loopback interface: a direct connection, a minimal relay of
asyncio streams that checks nothing, and our proxy with everything on (token, list, address
policy, caps, one access record a connection). Client, server, relay and proxy are four processes.

- set-up: connection, CONNECT and first byte back, in microseconds; for port 443 with a
  ClientHello that is read, and a name that is looked up, before anything is dialled;
- round trip: 64 bytes there and back through an open tunnel;
- download: mebibytes a second through one tunnel, and the processor time of the middle process
  for each mebibyte;
- idle memory: growth of the middle process with so many open tunnels, for each of them;
- forward: one plain GET, absolute-form, a connection for each.

The ways take turns inside each round; the median of the rounds is shown. Only ratios of one run
mean anything.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import attrs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The path is set above.
from egress import EgressPolicy, parse_allowlist
from egress.address import Address
from egress.proxy import AccessRecord, ProxyDenial, ProxyLimits, ProxyRun, serve_proxy
from egress.testing import client_hello

_TOKEN: Final = "benchmark-token"
_MEBIBYTE: Final = 1024 * 1024
_HELLO: Final = client_hello("a.test")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


# ── the processes ─────────────────────────────────────────────────────────────────────────────


async def _serve_upstream(pipe: Connection) -> None:
    """Echoes; `D` and a number is answered with so many mebibytes, GET with a small page."""
    block = bytes(_MEBIBYTE)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if data[:1] == b"D":
                    for _ in range(int(data[1:])):
                        writer.write(block)
                        await writer.drain()
                elif data[:4] == b"GET ":
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    break
                else:
                    writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    pipe.send(server.sockets[0].getsockname()[1])
    await _until_told(pipe)


async def _serve_relay(pipe: Connection, port: int) -> None:
    """The least relay: CONNECT to anything leads to the server."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        if head.startswith(b"CONNECT "):
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            up_writer.write(head)
        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    pipe.send(server.sockets[0].getsockname()[1])
    await _until_told(pipe)


class _Quiet:
    """Encodes what it is told, as an access log would, and writes it nowhere."""

    async def denied(self, denial: ProxyDenial) -> str:
        raise AssertionError(f"nothing is to be denied here: {denial}")

    def access(self, record: AccessRecord) -> None:
        json.dumps(record.to_json())


class _ToServer:
    """Dials the server in the place of every address; names lead to a public one."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def dial(
        self, address: Address, port: int, protocol: Callable[[], asyncio.Protocol]
    ) -> object:
        del address, port
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(protocol, "127.0.0.1", self._port))[0]

    async def resolve(self, host: str, port: int) -> list[str]:
        del host, port
        return ["93.184.215.14"]


async def _serve_proxy(pipe: Connection, port: int) -> None:
    limits = ProxyLimits(max_connections=20_000, max_bytes=1 << 50, idle_seconds=3600)
    run = ProxyRun(
        run="one",
        token=_TOKEN,
        policy=EgressPolicy(allowlist=parse_allowlist(["a.test:*"])),
        limits=limits,
    )
    way = _ToServer(port)
    proxied = serve_proxy([run], observer=_Quiet(), resolver=way, dialer=way, max_open=20_000)
    async with proxied as proxy:
        pipe.send(proxy.address[1])
        await _until_told(pipe)


async def _until_told(pipe: Connection) -> None:
    await asyncio.to_thread(pipe.recv)


def _enter(serve: Callable[..., Awaitable[None]], pipe: Connection, *more: int) -> None:
    _raise_descriptors()

    async def main() -> None:
        await serve(pipe, *more)

    asyncio.run(main())


def _raise_descriptors() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@attrs.frozen
class Process:
    """One of the processes, listening."""

    pid: int
    port: int

    @property
    def cpu_seconds(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def resident_bytes(self) -> int:
        """Memory now."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE


@contextlib.contextmanager
def _process(serve: Callable[..., Awaitable[None]], *more: int) -> Iterator[Process]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_enter, args=(serve, theirs, *more))
    process.start()
    try:
        yield Process(process.pid or 0, ours.recv())
    finally:
        ours.send(None)
        process.join(10)
        process.kill()


# ── the client ────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Way:
    """How the server is reached."""

    name: str
    middle: Process | None
    port: int

    def open(self, authority: str = "a.test:22", first: bytes = b"") -> socket.socket:
        """An open way to the server; the first bytes are on it."""
        opened = socket.create_connection(("127.0.0.1", self.port))
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.middle is not None:
            head = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n"
            opened.sendall(f"{head}Proxy-Authorization: Bearer {_TOKEN}\r\n\r\n".encode())
            answer = b""
            while not answer.endswith(b"\r\n\r\n"):
                answer += opened.recv(1 if answer else 12)
            if b" 200 " not in answer:
                raise AssertionError(answer)
        if first:
            opened.sendall(first)
            _receive(opened, len(first))
        return opened


def _receive(opened: socket.socket, count: int) -> None:
    while count:
        received = len(opened.recv(min(count, 262_144)))
        if not received:
            raise AssertionError("the way was closed")
        count -= received


def _set_up_us(way: Way, authority: str, first: bytes, count: int) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        way.open(authority, first).close()
    return (time.perf_counter() - begun) / count * 1e6


def _round_trip_us(way: Way, count: int) -> float:
    with way.open() as opened:
        begun = time.perf_counter()
        for _ in range(count):
            opened.sendall(b"x" * 64)
            _receive(opened, 64)
        return (time.perf_counter() - begun) / count * 1e6


def _download(way: Way, mebibytes: int) -> tuple[float, float]:
    """Mebibytes a second, and milliseconds of the middle process for each mebibyte."""
    with way.open() as opened:
        before = 0.0 if way.middle is None else way.middle.cpu_seconds
        begun = time.perf_counter()
        opened.sendall(f"D{mebibytes}".encode())
        _receive(opened, mebibytes * _MEBIBYTE)
        spent = time.perf_counter() - begun
        after = 0.0 if way.middle is None else way.middle.cpu_seconds
        return mebibytes / spent, (after - before) * 1000 / mebibytes


def _forward_us(way: Way, count: int) -> float:
    path = "/" if way.name == "direct" else "http://a.test:22/"
    head = f"GET {path} HTTP/1.1\r\nHost: a.test:22\r\nProxy-Authorization: Bearer {_TOKEN}\r\n\r\n"
    begun = time.perf_counter()
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", way.port)) as opened:
            opened.sendall(head.encode())
            while opened.recv(65_536):
                pass
    return (time.perf_counter() - begun) / count * 1e6


def _idle_bytes(way: Way, tunnels: int) -> float:
    """Growth of the middle process for each idle tunnel."""
    if way.middle is None:
        return 0.0
    # What the first tunnels load and allocate once is not theirs.
    warm = [way.open(first=b"x") for _ in range(50)]
    time.sleep(0.2)
    before = way.middle.resident_bytes
    opened = [way.open(first=b"x") for _ in range(tunnels)]
    time.sleep(0.5)
    grown = way.middle.resident_bytes - before
    for each in (*warm, *opened):
        each.close()
    return grown / tunnels


# ── the report ────────────────────────────────────────────────────────────────────────────────


def _measure(ways: list[Way], rounds: int, mebibytes: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {}

    def keep(figure: str, way: Way, value: float) -> None:
        found.setdefault(figure, {}).setdefault(way.name, []).append(value)

    for _ in range(rounds):
        for way in ways:
            keep("set-up, us", way, _set_up_us(way, "a.test:22", b"x", 100))
            keep("set-up on 443, us", way, _set_up_us(way, "a.test:443", _HELLO, 100))
            keep("round trip, us", way, _round_trip_us(way, 1000))
            keep("forwarded GET, us", way, _forward_us(way, 100))
            rate, spent = _download(way, mebibytes)
            keep("download, MiB/s", way, rate)
            keep("CPU of the middle, ms/MiB", way, spent)
    return {
        figure: {name: statistics.median(values) for name, values in by_way.items()}
        for figure, by_way in found.items()
    }


def _print(figures: dict[str, dict[str, float]]) -> None:
    print(f"{'':28}{'direct':>10}{'relay':>10}{'proxy':>10}{'/direct':>9}{'/relay':>8}")
    for figure, by_way in figures.items():
        direct, relay, ours = (by_way[name] for name in ("direct", "relay", "proxy"))
        over = f"{ours / direct:9.2f}" if direct else f"{'-':>9}"
        print(f"{figure:28}{direct:10.1f}{relay:10.1f}{ours:10.1f}{over}{ours / relay:8.2f}")


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mebibytes", type=int, default=128)
    parser.add_argument("--tunnels", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    _raise_descriptors()
    with (
        _process(_serve_upstream) as upstream,
        _process(_serve_relay, upstream.port) as relay,
        _process(_serve_proxy, upstream.port) as proxy,
    ):
        ways = [
            Way("direct", None, upstream.port),
            Way("relay", relay, relay.port),
            Way("proxy", proxy, proxy.port),
        ]
        idle = {way.name: _idle_bytes(way, options.tunnels) / 1024 for way in ways}
        figures = {
            **_measure(ways, options.rounds, options.mebibytes),
            f"KiB per idle tunnel ({options.tunnels})": idle,
        }
    if options.json:
        print(json.dumps(figures))
    else:
        _print(figures)


if __name__ == "__main__":
    main()
