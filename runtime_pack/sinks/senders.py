"""What sends a batch to each kind of receiver, over the network through the egress policy only.

A sender returns when the receiver has the whole batch. It raises `NotDelivered` when the batch is to
be sent again later, and `Refused` when the receiver will not have it as it is. It keeps nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import hashlib
import hmac
import os
import ssl
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from egress.errors import EgressDenied, EgressError
from runtime_pack.errors import ContractError, RuntimePackError
from runtime_pack.exports.otel import log_record, logs_envelope
from runtime_pack.exports.rfc5424 import syslog_line
from runtime_pack.sink_config import SinkConfig, SinkKind
from runtime_pack.sinks.items import Item, as_bytes, packed

if TYPE_CHECKING:
    from egress.ports import Resolver, Transport
    from egress.request import Response

__all__ = ("NotDelivered", "Refused", "Sender", "sender_for")

_MAX_BODY_BYTES: Final = 900_000
_MAX_ANSWER_BYTES: Final = 1 << 16
_MAX_WAIT_SECONDS: Final = 3600
_SECRET_BYTES: Final = range(24, 65)
# That the batch is wrong, not the moment: what else is told may pass.
_NOT_AS_IT_IS: Final = frozenset({400, 413, 422})


class NotDelivered(RuntimePackError):
    """The batch is to be sent again; *retry_after* is what the receiver asks for, in seconds."""

    def __init__(self, why: str, *, retry_after: int = 0) -> None:
        super().__init__(why)
        self.retry_after = retry_after


class Refused(RuntimePackError):
    """The receiver will not have the batch as it is."""


class Sender(Protocol):
    """A way to one receiver."""

    async def send(self, batch: Sequence[Item]) -> int:
        """Deliver the batch, whole; the number of events that the receiver says it threw away.

        Raises:
            NotDelivered: it does not have it, or not all of it, or that is not known.
            Refused: it will not have it.
        """
        ...


def sender_for(
    config: SinkConfig,
    *,
    secret: str | None = None,
    now: Callable[[], float] = time.time,
    resolver: Resolver | None = None,
) -> Sender:
    """The sender of a sink.

    Args:
        config: the sink.
        secret: its credential.
        now: seconds since 1970, which a signature holds.
        resolver: answers names in place of the system.

    Raises:
        ContractError: its secret or a certificate cannot be used.
    """
    match config.kind:
        case SinkKind.FILE:
            return _File(config)
        case SinkKind.STDOUT:
            return _Stdout(config)
        case SinkKind.SYSLOG if config.transport == "udp":
            return _Udp(config, resolver)
        case SinkKind.SYSLOG:
            return _Syslog(config, resolver)
        case SinkKind.OTLP:
            return _Otlp(_Http(config, resolver), secret)
        case SinkKind.WEBHOOK:
            return _Webhook(_Http(config, resolver), secret or "", now)


# ── here ──────────────────────────────────────────────────────────────────────────────────────


class _File:
    """Lines in a file: all of a batch or nothing of it."""

    def __init__(self, config: SinkConfig) -> None:
        self._config = config

    async def send(self, batch: Sequence[Item]) -> int:
        block = b"".join(_line(item, self._config) for item in batch)
        try:
            await asyncio.to_thread(self._append, block)
        except OSError as error:
            raise NotDelivered(f"the file cannot be written: {error.strerror or error}") from error
        return 0

    def _append(self, block: bytes) -> None:
        """Write and sync the block, or leave the file as it was.

        Raises:
            OSError: it was not written.
        """
        flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        handle = os.open(str(self._config.path), flags, 0o600)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            if found.st_size and os.pread(handle, 1, found.st_size - 1) != b"\n":
                # A crash left a part of a line: it stays one, and the next begins behind it.
                block = b"\n" + block
            try:
                _write_synced(handle, block)
            except OSError:
                os.ftruncate(handle, found.st_size)
                raise
        finally:
            os.close(handle)


def _write_synced(handle: int, block: bytes) -> None:
    if os.write(handle, block) != len(block):
        raise OSError(errno.ENOSPC, "written only in part (is the disk full?)")
    os.fsync(handle)


class _Stdout:
    """Lines on standard output."""

    def __init__(self, config: SinkConfig) -> None:
        self._config = config

    async def send(self, batch: Sequence[Item]) -> int:
        block = b"".join(_line(item, self._config) for item in batch)
        try:
            await asyncio.to_thread(_write_all, block)
        except OSError as error:
            raise NotDelivered(f"standard output takes no more: {error.strerror}") from error
        return 0


def _write_all(block: bytes) -> None:
    left = memoryview(block)
    while left:
        left = left[os.write(1, left) :]


def _line(item: Item, config: SinkConfig) -> bytes:
    return as_bytes(item, config.form, config.max_message_bytes) + b"\n"


# ── syslog ────────────────────────────────────────────────────────────────────────────────────


def _message(item: Item, config: SinkConfig, host: str) -> bytes:
    def written(given: Item) -> bytes:
        return syslog_line(given.record, host=host, form=config.form).encode("ascii", "replace")

    return as_bytes(item, config.form, config.max_message_bytes, written)


class _Udp:
    """RFC 5426: one message a datagram. Nobody says whether it arrives."""

    def __init__(self, config: SinkConfig, resolver: Resolver | None) -> None:
        self._config, self._resolver = config, resolver
        self._host = os.uname().nodename

    async def send(self, batch: Sequence[Item]) -> int:
        from egress.channel import open_datagrams

        target, seconds = _target(self._config), self._config.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                wire = await open_datagrams(
                    target,
                    policy=self._config.policy(),
                    timeout_seconds=seconds,
                    resolver=self._resolver,
                )
                try:
                    for item in batch:
                        wire.send(_message(item, self._config, self._host))
                        await wire.settle()
                finally:
                    wire.close()
        except (EgressError, TimeoutError) as error:
            raise _failed(error) from error
        return 0


class _Syslog:
    """RFC 6587 octet counting over TCP, and the same through TLS (RFC 5425).

    A connection for a batch: that the receiver has read to its end and closed is the only thing in
    these protocols that says it has the batch.
    """

    def __init__(self, config: SinkConfig, resolver: Resolver | None) -> None:
        self._config, self._resolver = config, resolver
        self._host = os.uname().nodename
        self._context = _context(config)

    async def send(self, batch: Sequence[Item]) -> int:
        from egress.channel import open_stream

        seconds = self._config.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                stream = await open_stream(
                    _target(self._config),
                    policy=self._config.policy(),
                    timeout_seconds=seconds,
                    context=self._context,
                    resolver=self._resolver,
                )
                try:
                    for item in batch:
                        message = _message(item, self._config, self._host)
                        await stream.write(b"%d %s" % (len(message), message))
                    await stream.finish(confirm=self._config.confirm)
                finally:
                    stream.abort()
        except TimeoutError as error:
            raise NotDelivered("the receiver did not read to the end and close in time") from error
        except EgressError as error:
            raise _failed(error) from error
        return 0


# ── HTTP ──────────────────────────────────────────────────────────────────────────────────────


class _Http:
    """POST of a body, and what the answer says."""

    def __init__(self, config: SinkConfig, resolver: Resolver | None) -> None:
        self.config, self._resolver = config, resolver
        self._context = _context(config)

    async def post(self, body: bytes, headers: Mapping[str, str]) -> Response:
        """The answer, a good one.

        Raises:
            NotDelivered, Refused: as the status says, or there was none.
        """
        from egress.ports import FetchLimits
        from egress.request import Wires, request_through_policy

        seconds = self.config.timeout_seconds
        limits = FetchLimits(
            max_redirects=0,
            timeout_seconds=seconds,
            max_raw_bytes=_MAX_ANSWER_BYTES,
            max_decoded_bytes=_MAX_ANSWER_BYTES,
        )
        try:
            answer = await request_through_policy(
                _target(self.config).url,
                policy=self.config.policy(),
                method="POST",
                headers={"Content-Type": "application/json", **headers},
                body=body,
                limits=limits,
                wires=Wires(transport=self._transport, resolver=self._resolver),
            )
        except EgressError as error:
            raise _failed(error) from error
        return _checked(answer)

    def _transport(self) -> Transport:
        from egress.transport import AiohttpTransport

        return AiohttpTransport(ssl_context=self._context)


def _checked(answer: Response) -> Response:
    if 200 <= answer.status < 300:
        return answer
    if answer.status in _NOT_AS_IT_IS:
        raise Refused(f"the receiver answered {answer.status}")
    wait = _seconds(answer.header("retry-after") or "")
    raise NotDelivered(f"the receiver answered {answer.status}", retry_after=wait)


def _seconds(text: str) -> int:
    """A Retry-After in seconds; 0 where it says nothing that can be read. Source: RFC 9110, 10.2.3."""
    if text.isascii() and text.isdigit():
        return min(int(text[:9]), _MAX_WAIT_SECONDS)
    try:
        at = parsedate_to_datetime(text)
        left = (at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.now(UTC)
    except (ValueError, OverflowError):
        return 0
    return max(0, min(int(left.total_seconds()), _MAX_WAIT_SECONDS))


class _Otlp:
    """OTLP over HTTP with the JSON encoding."""

    def __init__(self, http: _Http, token: str | None) -> None:
        self._http = http
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def send(self, batch: Sequence[Item]) -> int:
        most = self._http.config.max_message_bytes
        rejected = 0
        records = [as_bytes(item, "otlp", most, _log_record) for item in batch]
        for group in packed(records, _MAX_BODY_BYTES):
            answer = await self._http.post(logs_envelope(group), self._headers)
            rejected += _rejected(answer)
        return rejected


def _log_record(item: Item) -> bytes:
    return orjson.dumps(log_record(item.record))


def _rejected(answer: Response) -> int:
    """How many the receiver threw away: OTLP forbids to send those again."""
    try:
        partial = answer.json().get("partialSuccess") or {}
        return max(0, int(partial.get("rejectedLogRecords") or 0))
    except (ValueError, AttributeError, TypeError):
        return 0


class _Webhook:
    """A signed POST, as Standard Webhooks has it: id, time and body under HMAC-SHA256."""

    def __init__(self, http: _Http, secret: str, now: Callable[[], float]) -> None:
        self._http, self._now = http, now
        self._key = _webhook_key(secret)

    async def send(self, batch: Sequence[Item]) -> int:
        config = self._http.config
        texts = [as_bytes(item, config.form, config.max_message_bytes) for item in batch]
        for group in packed(texts, _MAX_BODY_BYTES):
            await self._post(b'{"events":[' + b",".join(group) + b"]}")
        return 0

    async def _post(self, body: bytes) -> None:
        # The same batch has the same id, however often it is sent.
        name = f"evt_{hashlib.sha256(body).hexdigest()[:32]}"
        at = str(int(self._now()))
        signed = b".".join((name.encode(), at.encode(), body))
        mac = base64.b64encode(hmac.digest(self._key, signed, "sha256")).decode()
        await self._http.post(
            body,
            {"webhook-id": name, "webhook-timestamp": at, "webhook-signature": f"v1,{mac}"},
        )


def _webhook_key(secret: str) -> bytes:
    """The bytes of a secret.

    Raises:
        ContractError: it is none; nothing of it is said.
    """
    coded = secret.removeprefix("whsec_")
    try:
        key = base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if coded == secret or len(key) not in _SECRET_BYTES:
        raise ContractError("credential", "must be whsec_ and 24 to 64 bytes in base64")
    return key


# ── what they share ───────────────────────────────────────────────────────────────────────────


def _target(config: SinkConfig) -> Any:
    return config.target


def _failed(error: BaseException) -> NotDelivered:
    """What went wrong in words without addresses, paths or tokens."""
    if isinstance(error, EgressDenied):
        violation = error.violation
        return NotDelivered(
            f"the policy refuses {violation.target.host} ({violation.reason}): a receiver with an"
            " address of its own network needs private_address = true"
        )
    return NotDelivered(str(error) or type(error).__name__)


def _context(config: SinkConfig) -> ssl.SSLContext | None:
    """What certificates are verified with, and ours.

    Raises:
        ContractError: a file cannot be used.
    """
    if config.transport not in {"tls", "https"}:
        return None
    try:
        context = ssl.create_default_context(
            cafile=None if config.ca_file is None else str(config.ca_file)
        )
        if config.client_cert is not None:
            context.load_cert_chain(str(config.client_cert), str(config.client_key))
    except (OSError, ValueError) as error:
        raise ContractError(f"sinks.{config.name}", f"certificates: {error}") from error
    if config.transport == "https":
        context.set_alpn_protocols(["http/1.1"])
    return context
