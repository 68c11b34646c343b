"""The answers that the proxy itself gives, as bytes. Pure.

A denial names rule, reason, the entry to add and the event; it is read by the confined program,
so it holds no resolved address and nothing else of the list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import orjson

from egress.decision import Deny
from egress.url import Target

SERVER_NAME: Final = "agent-runtime-pack"
EVENT_HEADER: Final = "Egress-Event"
EVENT_ID: Final = re.compile(r"[!-~]{1,200}")
"""What the id of an event is, on both sides of `EVENT_HEADER`."""
VIA: Final = f"1.1 {SERVER_NAME}"

ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"

# RFC 8446 section 6: an alert record, level fatal. A client that has begun TLS is told in TLS.
ALERT_ACCESS_DENIED: Final = bytes.fromhex("15 0301 0002 02 31")
ALERT_INTERNAL_ERROR: Final = bytes.fromhex("15 0301 0002 02 50")

_REASONS: Final[Mapping[int, str]] = {
    400: "Bad Request",
    403: "Forbidden",
    407: "Proxy Authentication Required",
    408: "Request Timeout",
    413: "Content Too Large",
    429: "Too Many Requests",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
# The codes of the body, and the error types of RFC 9209 section 2.3.
_CODES: Final = {
    400: ("PROXY_REQUEST_INVALID", "http_request_error"),
    403: ("WEB_EGRESS_DENIED", "http_request_denied"),
    407: ("PROXY_CREDENTIALS_REQUIRED", "http_request_denied"),
    408: ("PROXY_REQUEST_INVALID", "http_request_error"),
    413: ("PROXY_LIMIT", "http_request_denied"),
    429: ("PROXY_LIMIT", "http_request_denied"),
    502: ("PROXY_UPSTREAM_FAILED", "destination_unavailable"),
    503: ("PROXY_STOPPING", "proxy_internal_error"),
    504: ("PROXY_UPSTREAM_FAILED", "connection_timeout"),
}


def reply(
    status: int,
    reason: str,
    *,
    facts: Mapping[str, str | None] | None = None,
    event_id: str | None = None,
    rule: str = "",
    is_head: bool = False,
) -> bytes:
    """An answer of the proxy's own, which ends the connection.

    Args:
        status: One of those above.
        reason: The word for it.
        facts: More for the body.
        event_id: Of the denial's event; it marks the answer as the proxy's.
        rule: The rule that refused, for `Proxy-Status`.
        is_head: Whether it answers HEAD, and so has no body.
    """
    code, error = _CODES[status]
    body = orjson.dumps({"code": code, "reason": reason, **(facts or {}), "event": event_id})
    told = f"{rule} {reason}".strip()
    lines = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        f'Proxy-Status: {SERVER_NAME}; error={error}; details="{told}"',
        "Connection: close",
    ]
    if event_id is not None:
        lines.append(f"{EVENT_HEADER}: {event_id}")
    if status == 407:
        lines.append('Proxy-Authenticate: Basic realm="run"')
        lines.append('Proxy-Authenticate: Bearer realm="run"')
    head = "\r\n".join((*lines, "", "")).encode("ascii")
    return head if is_head else head + body


def denial_reply(deny: Deny, target: Target, *, event_id: str, is_head: bool) -> bytes:
    """The 403 of a denial.

    The nearest entry is told where it says no more than what the client has asked for: the entry
    that would admit the answer of a lookup holds that answer.
    """
    by_answer = bool(deny.addresses) and not target.is_literal
    nearest = None if by_answer else deny.nearest_entry
    return reply(
        403,
        deny.reason.value,
        facts={"rule": deny.rule, "host": target.host, "nearest_entry": nearest},
        event_id=event_id,
        rule=deny.rule,
        is_head=is_head,
    )
