"""The confining egress proxy (R13): a loopback listener that opens only what a run may reach.

Per connection, in this order: head (400), token (407), caps of the run (429), list (403, no
lookup), lookup, address policy (403), for port 443 the ClientHello, and only then a socket to a
vetted address. A denial is told to the observer before it is answered; when the observer fails,
the connection is closed without an answer and without a byte upstream.

One task sets a connection up and is gone when its tunnel stands; from then on two sockets write
to each other inside the event loop. What comes after is timers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from egress._accept import Acceptor, capacity
from egress._proxy_connection import Connection, Runner
from egress._proxy_side import Side
from egress._proxy_values import (
    AccessRecord,
    Dialer,
    Outcome,
    ProxyDenial,
    ProxyLimits,
    ProxyObserver,
    ProxyRun,
)
from egress.address import Address
from egress.ports import Resolver
from egress.proxy_head import Credentials
from egress.resolver import SystemResolver

__all__ = (
    "AccessRecord",
    "Dialer",
    "EgressProxy",
    "Outcome",
    "ProxyDenial",
    "ProxyLimits",
    "ProxyObserver",
    "ProxyRun",
    "SystemDialer",
    "serve_proxy",
)

_SOCKETS_EACH: Final = 2


class SystemDialer:
    """Opens TCP connections; the address is a number, and nothing is looked up."""

    async def dial(
        self, address: Address, port: int, protocol: Callable[[], asyncio.Protocol]
    ) -> object:
        """The connection to *address*."""
        transport, _ = await asyncio.get_running_loop().create_connection(
            protocol, str(address), port, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        )
        return transport


class EgressProxy:
    """The proxy of one or more runs. `serve_proxy` starts and stops one.

    Args:
        runs: Who may use it; more can be added later.
        observer: Is told of every denial and every connection.
        resolver: Answers names; by default the operating system's, with a share for each run.
        dialer: Opens connections.
        max_open: Client connections at one time, of all runs and of strangers, and fewer where
            the descriptor limit has no room for two sockets each. At the limit whoever has been there
            longest and works for no run makes room, and else the new one is closed at once; no run
            takes the last places that others have not used.
        head_seconds: For a client to send its request head, once it is connected.
        observer_seconds: For the observer to record one denial; then it has failed.

    Attributes:
        failure: The first error of the observer, or None. Whoever must not go on without a
            record watches `failed`.
        failed: Set with `failure`.
    """

    def __init__(
        self,
        runs: Iterable[ProxyRun] = (),
        *,
        observer: ProxyObserver,
        resolver: Resolver | None = None,
        dialer: Dialer | None = None,
        max_open: int = 8192,
        head_seconds: float = 10.0,
        observer_seconds: float = 10.0,
    ) -> None:
        self.observer = observer
        self._resolver = resolver
        self.dialer = dialer or SystemDialer()
        self.failure: Exception | None = None
        self.failed = asyncio.Event()
        self.head_seconds = head_seconds
        self.observer_seconds = observer_seconds
        self._runs: dict[str, Runner] = {}
        self._open: set[Connection] = set()
        self._max_open = max_open
        self._empty = asyncio.Event()
        self._strangers: dict[Connection, None] = {}
        self._acceptor: Acceptor | None = None
        self._listeners: frozenset[tuple[str, int]] = frozenset()
        self._address = ("", 0)
        self._count = 0
        self._stopping = False
        self._first = tuple(runs)

    # ── life ──────────────────────────────────────────────────────────────────────────────────

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, *, sock: socket.socket | None = None
    ) -> None:
        """Listens.

        Args:
            host: A loopback address.
            port: 0 takes a free one.
            sock: A listening socket instead: a Unix one, or one on a loopback address.

        Raises:
            ValueError: It would listen beyond this machine, or two runs have one id or token.
            OSError: The address is taken.
        """
        own = sock or _bound(host, port)
        try:
            _check_loopback(own)
            for run in self._first:
                self.add_run(run)
            self._max_open = capacity(self._max_open, sockets_each=_SOCKETS_EACH)
            self._acceptor = Acceptor(own, self._accept)
        except BaseException:
            own.close()
            raise
        if own.family != socket.AF_UNIX:
            self._address = own.getsockname()[:2]
            self._listeners = frozenset({self._address})

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; ("", 0) on a Unix socket."""
        return self._address

    @property
    def url(self) -> str:
        """What a client is given as its proxy, without credentials."""
        host, port = self._address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def open_connections(self) -> int:
        """Client connections that are open now."""
        return len(self._open)

    async def drain(self, grace_seconds: float) -> bool:
        """Takes no more connections, and gives those that stand some time to end.

        Returns:
            Whether all have ended. `aclose` ends the others.
        """
        self._stop_listening()
        for connection in tuple(self._open):
            connection.stop_gently()
        try:
            async with asyncio.timeout(grace_seconds):
                await self._all_gone()
        except TimeoutError:
            return False
        return True

    async def aclose(self) -> None:
        """Ends everything now. May be called twice, and while `drain` waits."""
        self._stop_listening()
        for connection in tuple(self._open):
            connection.abort("stopped")
        if self._acceptor is not None:
            await self._acceptor.aclose()
        await self._all_gone()
        for runner in self._runs.values():
            runner.forget()
        # A client that was turned away at the door is closed in the next round of the loop.
        await asyncio.sleep(0)

    def _stop_listening(self) -> None:
        self._stopping = True
        if self._acceptor is not None:
            self._acceptor.close()

    async def _all_gone(self) -> None:
        while self._open:
            self._empty.clear()
            await self._empty.wait()

    # ── runs ──────────────────────────────────────────────────────────────────────────────────

    def add_run(self, run: ProxyRun) -> None:
        """Lets *run* in from now on.

        Raises:
            ValueError: A run of this id, or with this token, is there already.
        """
        if run.run in self._runs:
            raise ValueError(f"two runs have the id {run.run}")
        if any(runner.run.token == run.token for runner in self._runs.values()):
            raise ValueError(f"the token of {run.run} is another run's too: one token, one run")
        self._runs[run.run] = Runner(run, self._resolver or SystemResolver())

    def end_run(self, run_id: str) -> None:
        """Makes the token of a run void and ends its connections. Unknown ids are ignored."""
        runner = self._runs.pop(run_id, None)
        if runner is not None:
            runner.end("run_ended")

    def runner_of(self, credentials: Credentials | None) -> Runner | None:
        """Whose *credentials* these are; every run is compared, whichever is the one."""
        if credentials is None:
            return None
        found = None
        for runner in self._runs.values():
            if runner.run.admits(credentials):
                found = runner
        return found if found is not None and not found.is_over else None

    # ── connections ───────────────────────────────────────────────────────────────────────────

    def _accept(self) -> Side:
        self._count += 1
        connection = Connection(self, self._count)
        return connection.client

    def opened(self, connection: Connection) -> bool:
        """Whether a new connection may stay."""
        if self._stopping or (len(self._open) >= self._max_open and not self._make_room()):
            return False
        self._open.add(connection)
        self._strangers[connection] = None
        return True

    def _make_room(self) -> bool:
        """Ends whoever has been here longest and works for no run."""
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return False
        del self._strangers[oldest]
        oldest.abort("crowded_out")
        return True

    def is_crowded(self, runner: Runner) -> bool:
        """Whether *runner* would take a place that is kept for the other runs.

        Half of all places is shared out evenly; what a run has not used of its part is kept.
        """
        part = self._max_open // (2 * max(1, len(self._runs)))
        if len(runner.open) < part:
            return False
        others = [len(each.open) for each in self._runs.values() if each is not runner]
        kept = sum(max(0, part - used) for used in others)
        return len(runner.open) + sum(others) + kept >= self._max_open

    def known(self, connection: Connection) -> None:
        """It works for a run from now on, and is counted there."""
        self._strangers.pop(connection, None)

    def gone(self, connection: Connection, record: AccessRecord) -> None:
        """A connection has ended."""
        self._open.discard(connection)
        self._strangers.pop(connection, None)
        try:
            self.observer.access(record)
        # The host's code, at the boundary that the port names: whoever watches `failed` stops.
        except Exception as error:  # noqa: BLE001
            self.fail(error)
        if not self._open:
            self._empty.set()

    def fail(self, error: Exception) -> None:
        """The observer has failed."""
        if self.failure is None:
            self.failure = error
        self.failed.set()

    def is_own(self, address: Address, port: int) -> bool:
        """Whether this proxy listens there."""
        return (str(address), port) in self._listeners


@contextlib.asynccontextmanager
async def serve_proxy(
    runs: Iterable[ProxyRun],
    *,
    observer: ProxyObserver,
    host: str = "127.0.0.1",
    port: int = 0,
    sock: socket.socket | None = None,
    resolver: Resolver | None = None,
    dialer: Dialer | None = None,
    max_open: int = 8192,
    head_seconds: float = 10.0,
    observer_seconds: float = 10.0,
    grace_seconds: float = 0.0,
) -> AsyncIterator[EgressProxy]:
    """A proxy that listens, until the block is left; then no socket of it is open.

    Args:
        runs: Who may use it.
        observer: Is told of every denial and every connection.
        host: A loopback address.
        port: 0 takes a free one.
        sock: A listening socket instead of *host* and *port*.
        resolver: Answers names; by default the operating system's, with a share for each run.
        dialer: Opens connections.
        max_open: Client connections at one time; fewer where the descriptor limit has no room.
        head_seconds: For a client to send its request head.
        observer_seconds: For the observer to record one denial.
        grace_seconds: How long tunnels may go on when the block is left without an error.

    Raises:
        ValueError: It would listen beyond this machine, or two runs have one id or token.
        OSError: The address is taken.
    """
    proxy = EgressProxy(
        runs,
        observer=observer,
        resolver=resolver,
        dialer=dialer,
        max_open=max_open,
        head_seconds=head_seconds,
        observer_seconds=observer_seconds,
    )
    await proxy.start(host, port, sock=sock)
    try:
        yield proxy
        if grace_seconds > 0:
            await proxy.drain(grace_seconds)
    finally:
        await proxy.aclose()


def _bound(host: str, port: int) -> socket.socket:
    address = ipaddress.ip_address(host)
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    own = socket.socket(family, socket.SOCK_STREAM)
    try:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind((str(address), port))
    except BaseException:
        own.close()
        raise
    return own


def _check_loopback(own: socket.socket) -> None:
    """A proxy that others can reach would lend them this machine's network."""
    if own.family == socket.AF_UNIX:
        return
    if not ipaddress.ip_address(own.getsockname()[0].partition("%")[0]).is_loopback:
        raise ValueError("the proxy listens on a loopback address or a Unix socket only")
