"""What the proxy is told and what it tells: runs, limits, denials, access records. No I/O."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Callable
from enum import StrEnum
from hashlib import sha256
from typing import Final, Protocol

import attrs

from egress.address import Address
from egress.policy import EgressPolicy
from egress.proxy_head import Basic, Bearer, Credentials
from egress.violation import Violation

_RUN_ID: Final = re.compile(r"[!-9;-~]{1,200}")  # visible ASCII without the colon of Basic
_TOKEN: Final = re.compile(r"[!-~]{1,512}")


@attrs.frozen(kw_only=True)
class ProxyLimits:
    """The bounds of one run at the proxy. All are finite; none can be switched off.

    Attributes:
        max_connections: Open at one time.
        max_bytes: Received from clients and upstreams together, over the life of the run.
        max_request_body_bytes: Body of one forwarded request.
        lifetime_seconds: Of the run, from when the proxy learns of it; then its token is void.
        hello_seconds: For a client to send its ClientHello.
        connect_seconds: For the lookup, and again for the connection, over all its addresses.
        idle_seconds: Without a byte in either direction.
        tunnel_seconds: Of one connection.

    Raises:
        ValueError: A limit is not a positive, finite number.
    """

    max_connections: int = 512
    max_bytes: int = 1024 * 1024 * 1024
    max_request_body_bytes: int = 64 * 1024 * 1024
    lifetime_seconds: float = 24 * 3600.0
    hello_seconds: float = 10.0
    connect_seconds: float = 10.0
    idle_seconds: float = 300.0
    tunnel_seconds: float = 3600.0

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(type(self)):
            value = getattr(self, field.name)
            kinds = int if field.type == "int" else int | float
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise ValueError(f"{field.name} is not a number of its kind")
            if not 0 < value < float("inf"):
                raise ValueError(f"{field.name} is not a positive, finite number")


@attrs.frozen(kw_only=True)
class ProxyRun:
    """One run that may use the proxy.

    Attributes:
        run: Its id: visible ASCII without a colon.
        token: What its clients show; visible ASCII. One token names one run.
        policy: What it may reach.
        limits: How much of it.
        task: Id of its task, for events; "" when there is none.
        session: Id of its session, for events; "" when there is none.

    Raises:
        ValueError: The id or the token is empty, too long or has another character.
    """

    run: str
    token: str = attrs.field(repr=False)
    policy: EgressPolicy
    limits: ProxyLimits = attrs.field(factory=ProxyLimits)
    task: str = ""
    session: str = ""

    def __attrs_post_init__(self) -> None:
        if not _RUN_ID.fullmatch(self.run):
            raise ValueError("the id of a run is 1 to 200 visible ASCII characters, no colon")
        if not _TOKEN.fullmatch(self.token):
            # The token itself is not quoted: messages end up in logs.
            raise ValueError("a token is 1 to 512 visible ASCII characters")

    def admits(self, credentials: Credentials) -> bool:
        """Whether *credentials* are those of this run; takes as long for a near miss."""
        match credentials:
            case Basic(run=run, token=token):
                return _same(token, self.token) & _same(run, self.run)
            case Bearer(token=token):
                return _same(token, self.token)


def _same(given: str, ours: str) -> bool:
    """Constant in time, and by digest, so that not even the length shows."""
    digests = [sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (given, ours)]
    return hmac.compare_digest(*digests)


@attrs.frozen(kw_only=True)
class ProxyDenial:
    """One denial, for the one event that is made of it.

    Attributes:
        violation: What was refused, and why.
        run: Id of the run.
        task: Of the run; "" when there is none.
        session: Of the run; "" when there is none.
        method: "CONNECT", or the method of a forwarded request.
        connection: Number of the client's connection at this proxy, from 1.
    """

    violation: Violation
    run: str
    task: str
    session: str
    method: str
    connection: int


class Outcome(StrEnum):
    """What became of a connection. The stored words are public."""

    TUNNELLED = "tunnelled"
    FORWARDED = "forwarded"
    DENIED = "denied"
    INVALID = "invalid"
    UNAUTHENTICATED = "unauthenticated"
    LIMITED = "limited"
    FAILED = "failed"
    LEFT = "left"


@attrs.frozen(kw_only=True)
class AccessRecord:
    """One connection of a client, told when it has ended.

    No path, no query, no header: they can carry what a page or a person wrote.

    Attributes:
        connection: Its number at this proxy, from 1.
        run: Whose token it showed; None when it showed none.
        outcome: What became of it.
        status: The last status the proxy sent or passed on; 0 when there was none.
        reason: A word for why it was refused, failed, or ended before its time; "" otherwise.
        method: As sent; "" when no head could be read.
        host: Canonical host of the target; "" when there is none.
        port: Of the target; 0 when there is none.
        address: What was dialled; "" when nothing was.
        event_id: Of the denial's event, or None.
        bytes_up: Received from the client, head included.
        bytes_down: Received from upstream.
        elapsed_us: From its start to its end, in microseconds.
    """

    connection: int
    run: str | None
    outcome: Outcome
    status: int
    reason: str
    method: str
    host: str
    port: int
    address: str
    event_id: str | None
    bytes_up: int
    bytes_down: int
    elapsed_us: int

    def to_json(self) -> dict[str, str | int | None]:
        """Plain values, keys as stored."""
        return {**attrs.asdict(self), "outcome": self.outcome.value}


class ProxyObserver(Protocol):
    """Is told what the proxy does. An error of it closes the connection that it was told of."""

    async def denied(self, denial: ProxyDenial) -> str:
        """Records one denial before its answer is sent.

        Returns:
            The id of the event: visible ASCII, at most 200 characters.
        """
        ...

    def access(self, record: AccessRecord) -> None:
        """Records one connection that has ended. Called in the event loop: must not block."""
        ...


class Dialer(Protocol):
    """Opens connections to addresses."""

    async def dial(
        self, address: Address, port: int, protocol: Callable[[], asyncio.Protocol]
    ) -> object:
        """Connects, and hands the transport to what *protocol* makes.

        Raises:
            OSError: It could not be opened.
        """
        ...
