"""The head of a request to the proxy: one strict reading, or a refusal (R13). Pure, sans-IO.

h11 reads the syntax. Before it, the lines are held to what h11 forgives (bare line feeds, folded
lines, control characters); after it come the rules of R13. A head that two readers could take for
two requests is refused, never repaired.

Source: RFC 9112 sections 2.2, 3.2 and 6.1; RFC 9110 sections 7.2, 7.6.1 and 9.3.6.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter
from enum import StrEnum
from typing import Final, TypeAlias

import attrs
import h11

from egress.errors import UrlRejected
from egress.url import Target, parse_target

__all__ = (
    "MAX_HEAD_BYTES",
    "Basic",
    "Bearer",
    "ConnectRequest",
    "Credentials",
    "ForwardRequest",
    "Framing",
    "HeadReason",
    "HeadRefused",
    "ProxyRequest",
    "end_of_head",
    "end_to_end",
    "parse_head",
)

MAX_HEAD_BYTES: Final = 32_768
_MAX_FIELDS: Final = 128
# The longest that is registered has 17 characters; records and events repeat what is sent here.
_MAX_METHOD_CHARACTERS: Final = 32


class HeadReason(StrEnum):
    """Why a head is refused with 400. The stored words are public."""

    TOO_LARGE = "too_large"
    LINE_ENDING = "line_ending"
    CONTROL_CHARACTER = "control_character"
    FOLDED_LINE = "folded_line"
    SYNTAX = "syntax"
    VERSION = "version"
    METHOD = "method"
    REQUEST_FORM = "request_form"
    TARGET = "target"
    PORT_MISSING = "port_missing"
    FRAGMENT = "fragment"
    DUPLICATE_FIELD = "duplicate_field"
    HOST_MISSING = "host_missing"
    HOST_DIFFERS = "host_differs"
    FRAMING = "framing"
    CONNECT_WITH_BODY = "connect_with_body"
    EXPECTATION = "expectation"
    MAX_FORWARDS = "max_forwards"


@attrs.frozen(kw_only=True)
class HeadRefused:
    """Not a request that we take: 400, no lookup, no dial, no event.

    Attributes:
        reason: The word for it.
        detail: The reason word of the URL rule, when the target or `Host` broke one; else "".
    """

    reason: HeadReason
    detail: str = ""


@attrs.frozen(kw_only=True)
class Basic:
    """`Proxy-Authorization: Basic`, decoded."""

    run: str
    token: str = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class Bearer:
    """`Proxy-Authorization: Bearer`."""

    token: str = attrs.field(repr=False)


Credentials: TypeAlias = Basic | Bearer
"""What a client says to be let in."""


@attrs.frozen(kw_only=True)
class ConnectRequest:
    """A tunnel is asked for.

    Attributes:
        target: Its scheme is https: the default port of a list entry is 443 here (R6).
        credentials: None when there are none that can be read.
    """

    target: Target
    credentials: Credentials | None


class Framing(StrEnum):
    """How the body of a request ends."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"


@attrs.frozen(kw_only=True)
class ForwardRequest:
    """A plain http request is to be passed on.

    Attributes:
        target: Its scheme is http.
        credentials: None when there are none that can be read.
        method: As sent, at most 32 characters.
        fields: What goes upstream beside `Host` and the framing: (lower-case name, value), in
            order, without every field that belongs to this hop.
        framing: How the body ends.
        length: Bytes of the body when *framing* is by length, else 0.
    """

    target: Target
    credentials: Credentials | None
    method: str
    fields: tuple[tuple[bytes, bytes], ...] = attrs.field(repr=False)
    framing: Framing
    length: int = 0


ProxyRequest: TypeAlias = ConnectRequest | ForwardRequest
"""What the proxy does for a client."""

# RFC 9112 section 2.2 lets a reader take a bare line feed; readers differ there, so we do not.
_LINE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_AUTHORITY: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^:/?#\[\]]+):[0-9]{1,5}")
_ABSOLUTE: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_DIGITS: Final = re.compile(rb"[0-9]{1,19}")
# A second one of these could be the one that the next reader believes.
_SINGLE: Final = (b"host", b"content-length", b"transfer-encoding", b"proxy-authorization")
# TRACE sends back what it was sent; the others are spellings of it and the start of HTTP/2.
_REFUSED_METHODS: Final = frozenset({"TRACE", "TRACK", "PRI"})

# RFC 9110 section 7.6.1, RFC 9112 section 6.1, and what was used before them.
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Ours: `Proxy-*` belongs to this hop, and no upstream may speak for the proxy (`Egress-Event`).
_PREFIXES: Final = (b"proxy-", b"egress-")


class _Refusal(Exception):
    """Why a head is not read on; never leaves this module."""

    def __init__(self, reason: HeadReason, detail: str = "") -> None:
        super().__init__(reason)
        self.refused = HeadRefused(reason=reason, detail=detail)


def end_of_head(data: bytes | bytearray, searched: int = 0) -> int | None:
    """Where the head in *data* ends (the index behind it), or None when it is not complete.

    A head ends at its first empty line, whatever ends that line: what is wrong with it is
    `parse_head`'s to say.

    Args:
        data: All bytes so far.
        searched: How many bytes were there at the last call, to look at each only once.
    """
    found = data.find(b"\n\r\n", max(0, searched - 2))
    bare = data.find(b"\n\n", max(0, searched - 1), found + 1 if found >= 0 else len(data))
    if bare >= 0:
        return bare + 2
    return found + 3 if found >= 0 else None


def parse_head(head: bytes) -> ProxyRequest | HeadRefused:
    """The request that *head*, up to and with its empty line, makes. Total."""
    try:
        _check_bytes(head)
        return _request(_syntax(head), head)
    except _Refusal as refusal:
        return refusal.refused


def end_to_end(fields: list[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """*fields* (names lower-case) without those that belong to one hop.

    Those are the known ones, `Proxy-*`, our own `Egress-*`, and every one that a `Connection`
    field names (RFC 9110 section 7.6.1).
    """
    named = {
        token.strip(b" \t").lower()
        for name, value in fields
        if name == b"connection"
        for token in value.split(b",")
    }
    return tuple(
        (name, value)
        for name, value in fields
        if name not in _HOP_BY_HOP and name not in named and not name.startswith(_PREFIXES)
    )


def _check_bytes(head: bytes) -> None:
    if len(head) > MAX_HEAD_BYTES:
        raise _Refusal(HeadReason.TOO_LARGE)
    if not head.endswith(b"\r\n\r\n"):
        raise _Refusal(HeadReason.LINE_ENDING)
    lines = head[:-4].split(b"\r\n")
    if len(lines) > _MAX_FIELDS + 1:
        raise _Refusal(HeadReason.TOO_LARGE)
    for line in lines:
        _check_line(line)
    names = Counter(line.partition(b":")[0].lower() for line in lines[1:])
    if any(names[name] > 1 for name in _SINGLE):
        raise _Refusal(HeadReason.DUPLICATE_FIELD)


def _check_line(line: bytes) -> None:
    if not line:
        raise _Refusal(HeadReason.SYNTAX)
    if line[:1] in {b" ", b"\t"}:
        raise _Refusal(HeadReason.FOLDED_LINE)
    if not _LINE.fullmatch(line):
        ending = b"\n" in line or b"\r" in line
        raise _Refusal(HeadReason.LINE_ENDING if ending else HeadReason.CONTROL_CHARACTER)


def _syntax(head: bytes) -> h11.Request:
    reader = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    try:
        reader.receive_data(head)
        event = reader.next_event()
    except h11.RemoteProtocolError as error:
        raise _Refusal(HeadReason.SYNTAX) from error
    if not isinstance(event, h11.Request):
        raise _Refusal(HeadReason.SYNTAX)
    return event


def _request(request: h11.Request, head: bytes) -> ProxyRequest:
    # h11 takes any digits; what comes after 1.1 is no version that says how this head is read.
    if request.http_version not in {b"1.0", b"1.1"}:
        raise _Refusal(HeadReason.VERSION)
    fields = [(name, value) for name, value in request.headers]
    method = request.method.decode("ascii")
    asked = request.target.decode("ascii")
    credentials = _credentials(_value(fields, b"proxy-authorization"))
    if method == "CONNECT":
        target = _authority_target(asked)
        _check_host(_value(fields, b"host"), target)
        _check_no_body(fields)
        return ConnectRequest(target=target, credentials=credentials)
    if method in _REFUSED_METHODS or len(method) > _MAX_METHOD_CHARACTERS:
        raise _Refusal(HeadReason.METHOD)
    target = _absolute_target(asked)
    _check_host(_value(fields, b"host"), target)
    framing, length = _framing(request, fields, head)
    _check_expectations(method, fields)
    return ForwardRequest(
        target=target,
        credentials=credentials,
        method=method,
        fields=_forwarded(fields),
        framing=framing,
        length=length,
    )


def _value(fields: list[tuple[bytes, bytes]], wanted: bytes) -> bytes | None:
    return next((value for name, value in fields if name == wanted), None)


def _forwarded(fields: list[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """What goes upstream; `Host` and `Content-Length` are written anew from what was checked."""
    rebuilt = {b"host", b"content-length"}
    return tuple((name, value) for name, value in end_to_end(fields) if name not in rebuilt)


def _authority_target(text: str) -> Target:
    """RFC 9112 section 3.2.3: host and port, nothing else, and the port must be written."""
    if any(each in text for each in "/?#@"):
        raise _Refusal(HeadReason.REQUEST_FORM)
    if not _AUTHORITY.fullmatch(text):
        # Told apart from bad text, for it is what people forget.
        has_port = re.search(r":[0-9]+\Z", text)
        raise _Refusal(HeadReason.TARGET if has_port else HeadReason.PORT_MISSING)
    return _parsed(f"https://{text}/", HeadReason.TARGET)


def _absolute_target(text: str) -> Target:
    scheme = _ABSOLUTE.match(text)
    # https would have us speak TLS for the client; origin-form is for a server, not for a proxy.
    if scheme is None or scheme.group(1).lower() != "http":
        raise _Refusal(HeadReason.REQUEST_FORM)
    if "#" in text:
        raise _Refusal(HeadReason.FRAGMENT)
    return _parsed(text, HeadReason.TARGET)


def _parsed(text: str, reason: HeadReason) -> Target:
    try:
        return parse_target(text)
    except UrlRejected as error:
        raise _Refusal(reason, error.reason) from error


def _check_host(value: bytes | None, target: Target) -> None:
    """`Host` names the target, in any spelling of it (R2).

    HTTP/1.0 clients may leave it out; h11 has refused its absence in HTTP/1.1 already.
    """
    if value is None:
        return
    if any(each in value for each in b"/?#@, \t"):
        raise _Refusal(HeadReason.HOST_DIFFERS)
    try:
        host = parse_target(f"{target.scheme}://{value.decode('ascii')}/")
    except (UrlRejected, UnicodeDecodeError) as error:
        raise _Refusal(HeadReason.HOST_DIFFERS) from error
    if (host.host, host.port) != (target.host, target.port):
        raise _Refusal(HeadReason.HOST_DIFFERS)


def _check_no_body(fields: list[tuple[bytes, bytes]]) -> None:
    """RFC 9110 section 9.3.6: what follows a CONNECT is the tunnel."""
    length = _value(fields, b"content-length")
    if _value(fields, b"transfer-encoding") is not None or length not in {None, b"0"}:
        raise _Refusal(HeadReason.CONNECT_WITH_BODY)


def _framing(
    request: h11.Request, fields: list[tuple[bytes, bytes]], head: bytes
) -> tuple[Framing, int]:
    length = _value(fields, b"content-length")
    coding = _value(fields, b"transfer-encoding")
    if coding is not None and (length is not None or request.http_version == b"1.0"):
        # RFC 9112 section 6.1: both together, or a coding in HTTP/1.0, is how smuggling starts.
        raise _Refusal(HeadReason.FRAMING)
    if coding is not None:
        return Framing.CHUNKED, 0
    if length is None:
        return Framing.NONE, 0
    # h11 has folded "3, 3" into "3": the bytes that were sent tell.
    sent = re.search(rb"\r\ncontent-length:[ \t]*([^\r]*?)[ \t]*\r\n", head, re.IGNORECASE)
    if sent is None or not _DIGITS.fullmatch(sent.group(1)):
        raise _Refusal(HeadReason.FRAMING)
    return Framing.LENGTH, int(length)


def _check_expectations(method: str, fields: list[tuple[bytes, bytes]]) -> None:
    expected = [value.lower() for name, value in fields if name == b"expect"]
    if expected and expected != [b"100-continue"]:
        raise _Refusal(HeadReason.EXPECTATION)
    if method == "OPTIONS" and _value(fields, b"max-forwards") is not None:
        # RFC 9110 section 7.6.2 would have us count it down and answer at zero.
        raise _Refusal(HeadReason.MAX_FORWARDS)


def _credentials(value: bytes | None) -> Credentials | None:
    """What can be read of `Proxy-Authorization`; everything else is as if it were absent."""
    if value is None:
        return None
    scheme, _, rest = value.partition(b" ")
    given = rest.strip(b" ")
    match scheme.lower():
        case b"bearer" if given.isascii() and given:
            return Bearer(token=given.decode("ascii"))
        case b"basic":
            return _basic(given)
        case _:
            return None


def _basic(given: bytes) -> Basic | None:
    try:
        run, colon, token = base64.b64decode(given, validate=True).decode("utf-8").partition(":")
    except (binascii.Error, ValueError):
        return None
    return Basic(run=run, token=token) if colon else None
