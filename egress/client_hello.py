"""The first flight of a TLS client, read without answering it (R13). Pure, sans-IO.

The proxy holds back what the client sends until this module has named the server that the client
asks for. What is not a well-formed ClientHello is not TLS here: a lenient reader would see
another name than the server does.

What cannot be seen: the `Host` inside the encrypted stream (domain fronting), and the inner name
of an Encrypted Client Hello. `Hello.has_ech` says that there may be one; browsers send a random
one to every server (GREASE), so that it cannot be refused for being there.

Source: RFC 8446 sections 4.1.2 and 5.1; RFC 6066 section 3; RFC 9849 (ECH).
"""

from __future__ import annotations

from typing import Final, TypeAlias

import attrs

from egress._host import canonical_name
from egress.decision import Deny, DenyReason
from egress.errors import UrlRejected
from egress.url import Target

__all__ = (
    "MAX_HELLO_BYTES",
    "AnswerReader",
    "Hello",
    "HelloReader",
    "NeedMore",
    "NotTls",
    "Reading",
    "TooLarge",
    "check_hello",
    "leading_record",
    "read_hello",
)

MAX_HELLO_BYTES: Final = 16_384  # R13, over all records and with their headers

_RECORD_HEADER_BYTES: Final = 5
_CHANGE_CIPHER_SPEC: Final = 20  # RFC 8446 section 5.1
_ALERT: Final = 21
_HANDSHAKE: Final = 22
_FATAL: Final = b"\x02"  # RFC 8446 section 6
# What a client may send between two ClientHellos: the compatibility record of RFC 8446 section D.4,
# an alert, and early data that it had sent before it was asked again.
_BETWEEN_HELLOS: Final = frozenset({20, 21, 23})
_MAX_CIPHERTEXT_BYTES: Final = 16_384 + 256  # RFC 8446 section 5.2
_SERVER_HELLO: Final = 2
_DRAFT_RETRY_REQUEST: Final = 6  # before draft 22
_RANDOM_END: Final = 38  # of a ServerHello: header, version, random
# RFC 8446 section 4.1.3: SHA-256 of "HelloRetryRequest".
_RETRY_RANDOM: Final = bytes.fromhex(
    "cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c"
)
_MAX_RECORD_BYTES: Final = 16_384  # RFC 8446 section 5.1: 2**14
_MESSAGE_HEADER_BYTES: Final = 4
_CLIENT_HELLO: Final = 1  # RFC 8446 section 4
_TLS_MAJOR: Final = 3  # every version from SSL 3.0 to TLS 1.3 writes it on the wire
_SERVER_NAME: Final = 0  # RFC 6066 section 3
_HOST_NAME: Final = 0  # RFC 6066 section 3
# encrypted_client_hello, and the number of its drafts' predecessor (ESNI).
_ECH: Final = frozenset({0xFE0D, 0xFFCE})


@attrs.frozen(kw_only=True)
class NeedMore:
    """So far it may be a ClientHello.

    Attributes:
        total: How many bytes from the start are needed before another look can say more.
    """

    total: int


@attrs.frozen(kw_only=True)
class Hello:
    """A whole ClientHello.

    Attributes:
        server_name: The one name of the server_name extension as sent, or None without one.
        has_ech: Whether there is an encrypted_client_hello extension, real or random.
    """

    server_name: str | None
    has_ech: bool = False


@attrs.frozen(kw_only=True)
class NotTls:
    """Not the start of TLS, or a ClientHello that breaks its own grammar.

    Attributes:
        detail: What was wrong with it, in words of ours.
    """

    detail: str


@attrs.frozen
class TooLarge:
    """Longer than 16 KiB: more than any client sends before it is answered."""


Reading: TypeAlias = NeedMore | Hello | NotTls | TooLarge
"""What the bytes so far come to."""


def read_hello(data: bytes) -> Reading:
    """What *data*, all that the client has sent so far, comes to. Total."""
    return HelloReader().feed(data)


class HelloReader:
    """Reads a ClientHello from pieces; each byte is looked at once.

    The answer does not depend on how the bytes were cut on their way here, and bytes after the
    record that ends the ClientHello (early data) do not change it.
    """

    __slots__ = ("_data", "_message", "_place")

    def __init__(self) -> None:
        self._data = bytearray()
        self._place = 0
        self._message = bytearray()

    @property
    def end(self) -> int:
        """Where the last record that was taken ends."""
        return self._place

    def feed(self, data: bytes) -> Reading:
        """What all the bytes so far come to. Total; to be asked again only after `NeedMore`."""
        self._data += data
        reading = self._read_record()
        while reading is None:
            reading = self._read_record()
        return reading

    def _read_record(self) -> Reading | None:
        """The answer, or None when one more record was taken and there is a next one to read."""
        content = self._place + _RECORD_HEADER_BYTES
        if content > MAX_HELLO_BYTES:
            return TooLarge()
        header = self._data[self._place : content]
        refused = _check_record_start(header)
        if refused is not None:
            return refused
        if len(header) < _RECORD_HEADER_BYTES:
            return NeedMore(total=content)
        end = content + int.from_bytes(header[3:], "big")
        if not content < end <= content + _MAX_RECORD_BYTES:
            return NotTls(detail="a record of no bytes, or of more than a record may have")
        if end > MAX_HELLO_BYTES:
            return TooLarge()
        return self._take_content(content, end)

    def _take_content(self, content: int, end: int) -> Reading | None:
        start = self._message[:_MESSAGE_HEADER_BYTES]
        start += self._data[content : min(end, content + _MESSAGE_HEADER_BYTES)]
        refused = _check_message_start(start)
        if refused is not None:
            return refused
        if len(self._data) < end:
            return NeedMore(total=end)
        self._message += self._data[content:end]
        self._place = end
        if len(self._message) < _MESSAGE_HEADER_BYTES:
            return None
        whole = len(self._message) >= _message_bytes(self._message)
        return _read_message(bytes(self._message)) if whole else None


class AnswerReader:
    """Reads from a server's first bytes whether it asks for a second ClientHello.

    A warning and a change of the cipher may come before the message that tells, or between its
    records: clients take no notice of them.
    """

    __slots__ = ("_data", "_kind", "_left", "_message")

    def __init__(self) -> None:
        self._data = bytearray()
        self._kind = 0
        self._left = 0
        self._message = bytearray()

    def feed(self, data: bytes) -> bool | None:
        """Whether it does; None as long as the bytes so far do not tell. Total."""
        self._data += data
        while self._data:
            if self._left == 0:
                if self._goes_on():
                    return False
                if not self._take_start():
                    return None
                continue
            taken = self._data[: self._left]
            del self._data[: len(taken)]
            self._left -= len(taken)
            if self._kind == _HANDSHAKE:
                self._message += taken
                told = _asks_again(self._message)
                if told is not None:
                    return told
        return None

    def _goes_on(self) -> bool:
        """Whether a record begins here after which no client sends a second hello."""
        kind, head = self._data[0], self._data[: _RECORD_HEADER_BYTES + 1]
        if kind not in {_CHANGE_CIPHER_SPEC, _ALERT, _HANDSHAKE}:
            return True
        # An empty one of these is an error to every client.
        empty = len(head) >= _RECORD_HEADER_BYTES and head[3:5] == b"\0\0"
        return empty or (kind == _ALERT and head[_RECORD_HEADER_BYTES:] == _FATAL)

    def _take_start(self) -> bool:
        """Takes the header of a record; False when there are too few bytes."""
        self._kind = self._data[0]
        # The first byte of an alert is its level.
        if len(self._data) < _RECORD_HEADER_BYTES + (self._kind == _ALERT):
            return False
        self._left = int.from_bytes(self._data[3:5], "big")
        del self._data[:_RECORD_HEADER_BYTES]
        return True


def _asks_again(message: bytearray) -> bool | None:
    if message[:1] and message[0] == _DRAFT_RETRY_REQUEST:
        return True
    if message[:1] and message[0] != _SERVER_HELLO:
        return False
    if len(message) < _RANDOM_END:
        return None
    return message[6:_RANDOM_END] == _RETRY_RANDOM


def leading_record(data: bytes | bytearray) -> int | None:
    """The size of the record that *data* begins with, when it may come before a second ClientHello.

    0 when something else begins there, which is to be read as that hello; None when there are too
    few bytes to tell. Total.
    """
    if data[:1] and data[0] not in _BETWEEN_HELLOS:
        return 0
    if len(data) < _RECORD_HEADER_BYTES:
        return None
    size = int.from_bytes(data[3:5], "big")
    if data[1] != _TLS_MAJOR or not 0 < size <= _MAX_CIPHERTEXT_BYTES:
        return 0
    return _RECORD_HEADER_BYTES + size if len(data) >= _RECORD_HEADER_BYTES + size else None


def _check_record_start(header: bytearray) -> NotTls | None:
    """Refuses as early as a byte shows it: SSH and HTTP are told at their first one."""
    if header[:1] and header[0] != _HANDSHAKE:
        return NotTls(detail="not a handshake record")
    if len(header) > 1 and header[1] != _TLS_MAJOR:
        return NotTls(detail="not a version of TLS")
    return None


def _check_message_start(message: bytearray) -> NotTls | TooLarge | None:
    if message[:1] and message[0] != _CLIENT_HELLO:
        return NotTls(detail="not a ClientHello")
    if len(message) >= _MESSAGE_HEADER_BYTES and _message_bytes(message) > MAX_HELLO_BYTES:
        return TooLarge()
    return None


def _message_bytes(message: bytes | bytearray) -> int:
    return _MESSAGE_HEADER_BYTES + int.from_bytes(message[1:4], "big")


class _Malformed(Exception):
    """The ClientHello breaks its grammar."""


def _read_message(message: bytes) -> Hello | NotTls:
    if len(message) > _message_bytes(message):
        # A client waits for its answer before it sends another handshake message.
        return NotTls(detail="more than a ClientHello in its record")
    try:
        return _read_body(_Cursor(message[_MESSAGE_HEADER_BYTES:]))
    except _Malformed as error:
        return NotTls(detail=f"a malformed ClientHello: {error}")


class _Cursor:
    """Reads the vectors of RFC 8446 section 3.4."""

    __slots__ = ("_data", "_place")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def __bool__(self) -> bool:
        return self._place < len(self._data)

    def take(self, count: int, what: str) -> bytes:
        end = self._place + count
        if end > len(self._data):
            raise _Malformed(f"{what} is cut")
        taken = self._data[self._place : end]
        self._place = end
        return taken

    def number(self, size: int, what: str) -> int:
        return int.from_bytes(self.take(size, what), "big")

    def vector(self, size: int, what: str, *, at_least: int = 0, at_most: int = 0xFFFF) -> bytes:
        length = self.number(size, what)
        if not at_least <= length <= at_most:
            raise _Malformed(f"{what} has a length it may not have")
        return self.take(length, what)


def _read_body(body: _Cursor) -> Hello:
    if body.number(2, "the version") >> 8 != _TLS_MAJOR:
        raise _Malformed("the version is none of TLS")
    body.take(32, "the random")
    body.vector(1, "the session id", at_most=32)
    if len(body.vector(2, "the list of ciphers", at_least=2)) % 2:
        raise _Malformed("the list of ciphers has half a cipher")
    body.vector(1, "the list of compressions", at_least=1)
    if not body:
        # TLS 1.2 and before may have none, and then no name either.
        return Hello(server_name=None)
    extensions = _Cursor(body.vector(2, "the extensions"))
    if body:
        raise _Malformed("bytes after the extensions")
    return _read_extensions(extensions)


def _read_extensions(extensions: _Cursor) -> Hello:
    seen: dict[int, bytes] = {}
    while extensions:
        kind = extensions.number(2, "an extension")
        content = extensions.vector(2, "an extension")
        if kind in seen:
            # RFC 8446 section 4.2. Two readers could take different ones.
            raise _Malformed("an extension comes twice")
        seen[kind] = content
    name = _read_server_name(seen[_SERVER_NAME]) if _SERVER_NAME in seen else None
    return Hello(server_name=name, has_ech=not _ECH.isdisjoint(seen))


def _read_server_name(content: bytes) -> str:
    """The one host name of the extension.

    RFC 6066 section 3: not more than one of a type, and no type but host_name was ever defined.
    """
    outer = _Cursor(content)
    names = _Cursor(outer.vector(2, "the list of names", at_least=1))
    if outer:
        raise _Malformed("bytes after the list of names")
    if names.number(1, "a name") != _HOST_NAME:
        raise _Malformed("a name that is no host name")
    name = names.vector(2, "a name", at_least=1)
    if names:
        raise _Malformed("more than one name")
    try:
        return name.decode("ascii")
    except UnicodeDecodeError:
        raise _Malformed("a name that is not ASCII") from None


def check_hello(target: Target, reading: Hello | NotTls | TooLarge) -> Deny | None:
    """Why a tunnel to port 443 of *target* is refused after its first flight, or None (R13).

    A name target needs its own name; case and one final dot do not count, as everywhere (R2). A
    literal target may come without a name, as RFC 6066 has it, and with no other one: an address
    in the list never admits a name (R7).
    """
    match reading:
        case TooLarge():
            return _refusal(DenyReason.HELLO_TOO_LARGE)
        case NotTls():
            return _refusal(DenyReason.NOT_TLS)
        case Hello(server_name=None):
            return None if target.is_literal else _refusal(DenyReason.SNI_MISSING)
        case Hello(server_name=name):
            return None if _same_host(name or "", target) else _refusal(DenyReason.SNI_MISMATCH)


def _refusal(reason: DenyReason) -> Deny:
    # No entry would admit it: what is wrong is what the client says, not the list.
    return Deny(rule="R13", reason=reason)


def _same_host(name: str, target: Target) -> bool:
    if name == target.host:
        return True
    try:
        return canonical_name(name) == target.host
    except UrlRejected:
        return False
