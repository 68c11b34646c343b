"""What can go wrong on the way out, as one tree.

    EgressError
    ├── UrlRejected          the text is not a URL we accept (R1-R3, R12); no lookup, no event
    ├── AllowlistError       one entry refuses the whole list (R15)
    ├── EgressDenied         list or address policy said no (R4-R12); carries the one violation
    ├── ClientClosed         the client or its transport was used outside its life
    ├── RequestRefused       method, headers or body of a request to an API cannot be sent
    ├── Stopped              the caller's signal came before the answer
    └── FetchError           allowed, and it failed all the same
        ├── DnsFailed
        ├── ConnectFailed
        ├── TlsFailed
        ├── ConnectionLost
        ├── ProtocolFailed
        │   └── HeadTooLarge
        ├── DeadlineExceeded
        ├── TooManyRedirects
        ├── BadRedirect
        ├── EncodingRefused
        ├── DecodingFailed
        ├── BodyIncomplete
        └── RunCapReached
            └── TooManyAtOnce

Messages name hosts, rules and reason words. They never hold a path or a query: those can carry
what a page or a person wrote, and messages end up in logs.
"""

# The names are the contract's: they say what happened, and the root says that it is an error.

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from egress.violation import Violation

__all__ = (
    "AllowlistError",
    "BadRedirect",
    "BodyIncomplete",
    "ClientClosed",
    "ConnectFailed",
    "ConnectionLost",
    "DeadlineExceeded",
    "DecodingFailed",
    "DnsFailed",
    "EgressDenied",
    "EgressError",
    "EncodingRefused",
    "EntryReason",
    "FetchError",
    "HeadTooLarge",
    "ProtocolFailed",
    "RequestRefused",
    "RunCapReached",
    "Stopped",
    "TlsFailed",
    "TooManyAtOnce",
    "TooManyRedirects",
    "UrlReason",
    "UrlRejected",
)

# An entry is quoted back to the person who wrote it, but never without end.
_QUOTED_CHARACTERS = 200


class UrlReason(StrEnum):
    """Why a text is not a URL we accept. The stored words are public."""

    NOT_TEXT = "not_text"
    TOO_LONG = "too_long"
    NOT_UNICODE = "not_unicode"
    CONTROL_CHARACTER = "control_character"
    BACKSLASH = "backslash"
    NO_SCHEME = "no_scheme"
    SCHEME_NOT_ALLOWED = "scheme_not_allowed"
    SLASHES = "slashes"
    NO_HOST = "no_host"
    CREDENTIALS = "credentials"
    PERCENT_IN_HOST = "percent_in_host"
    WHITESPACE_IN_HOST = "whitespace_in_host"
    PORT = "port"
    HOST_CHARACTER = "host_character"
    LABEL_EMPTY = "label_empty"
    LABEL_TOO_LONG = "label_too_long"
    HOST_TOO_LONG = "host_too_long"
    IDNA = "idna"
    NUMERIC_HOST = "numeric_host"
    IPV6_LITERAL = "ipv6_literal"
    REFERENCE = "reference"


class EntryReason(StrEnum):
    """Why an allowlist entry is refused. The stored words are public."""

    NOT_A_LIST = "not_a_list"
    TOO_MANY = "too_many"
    NOT_TEXT = "not_text"
    TOO_LONG = "too_long"
    EMPTY = "empty"
    WHITESPACE = "whitespace"
    CONTROL_CHARACTER = "control_character"
    SCHEME = "scheme"
    CREDENTIALS = "credentials"
    PERCENT = "percent"
    PATH = "path"
    WILDCARD = "wildcard"
    PORT = "port"
    HOST = "host"
    CIDR_ADDRESS = "cidr_address"
    CIDR_PREFIX = "cidr_prefix"
    CIDR_HOST_BITS = "cidr_host_bits"
    CIDR_MAPPED = "cidr_mapped"


class EgressError(Exception):
    """Root of everything this package raises on purpose."""


class UrlRejected(EgressError):
    """The text is not a URL we accept: refused without lookup, request or event.

    Attributes:
        rule: "R1", "R2", "R3" or, for a redirect reference, "R12".
        reason: The word for it.
        hop: 0 for the text the caller gave, n for the target of the n-th redirect.
    """

    def __init__(self, *, rule: str, reason: UrlReason, message: str, hop: int = 0) -> None:
        where = f" (redirect {hop})" if hop else ""
        super().__init__(f"{message} [{rule} {reason}]{where}")
        self.rule = rule
        self.reason = reason
        self.message = message
        self.hop = hop

    def at_hop(self, hop: int) -> UrlRejected:
        """The same refusal, told for the target of redirect *hop*."""
        return UrlRejected(rule=self.rule, reason=self.reason, message=self.message, hop=hop)


class AllowlistError(EgressError):
    """One entry is malformed, so the whole list is refused before a run starts.

    Attributes:
        entry: The entry as written, cut at 200 characters; "" when the list itself is wrong.
        reason: The word for it.
        hint: What was probably meant, or None.
        layer: Name of the list among several, or "".
        kind: What the entry is one of.
    """

    def __init__(
        self,
        *,
        entry: str,
        reason: EntryReason,
        hint: str | None = None,
        layer: str = "",
        kind: str = "allowlist entry",
    ) -> None:
        # It loads tables, which nobody needs whose lists are good.
        from egress.reasons import ENTRY_ROWS

        row = ENTRY_ROWS[reason]
        quoted = entry[:_QUOTED_CHARACTERS]
        owner = f"{layer} " if layer else ""
        of_list = reason in {EntryReason.NOT_A_LIST, EntryReason.TOO_MANY}
        of_whole = "allowlist" if kind == "allowlist entry" else f"list of {kind}s"
        what = of_whole if of_list else f"{kind} {quoted!a}"
        meant = f" Probably meant: {hint}" if hint else ""
        super().__init__(
            f"{owner}{what} is refused [{row.rule} {reason}]: {row.meaning} {row.advice}{meant}"
        )
        self.entry = quoted
        self.reason = reason
        self.hint = hint
        self.layer = layer
        self.kind = kind

    def in_layer(self, name: str) -> AllowlistError:
        """The same refusal, told for the list called *name*."""
        return AllowlistError(
            entry=self.entry, reason=self.reason, hint=self.hint, layer=name, kind=self.kind
        )


class EgressDenied(EgressError):
    """The list or the address policy said no, at some hop. Report `violation` exactly once.

    Attributes:
        violation: What the one `sandbox:violation` event says.
        event_id: Set when an egress proxy has made that event already: do not make another.
    """

    def __init__(self, violation: Violation, *, event_id: str | None = None) -> None:
        target = violation.target
        super().__init__(
            f"egress to {target.host} port {target.port} denied [{violation.rule} {violation.reason}]"
        )
        self.violation = violation
        self.event_id = event_id


class ClientClosed(EgressError):
    """The client was used after it was closed, or a transport by a second policy."""


class RequestRefused(EgressError):
    """The request cannot be sent as it is: `part` is which part, and no value is said."""

    def __init__(self, part: str, problem: str) -> None:
        super().__init__(f"{part} {problem}")
        self.part = part
        self.problem = problem


class Stopped(EgressError):
    """The caller's signal came before the answer."""


class FetchError(EgressError):
    """The fetch was allowed and failed.

    Attributes:
        host: The canonical host of the hop that failed.
        hop: Index of that hop, 0 for the first request.
        retryable: Whether the same call may well succeed later.
    """

    retryable = False
    situation = "fetch failed"

    def __init__(self, *, host: str, hop: int = 0, detail: str = "") -> None:
        told = f": {detail}" if detail else ""
        super().__init__(f"{self.situation} for {host}{told}")
        self.host = host
        self.hop = hop
        self.detail = detail


class DnsFailed(FetchError):
    """The name could not be resolved; `temporary` when the resolver says to try again."""

    situation = "name lookup failed"

    def __init__(
        self, *, host: str, hop: int = 0, detail: str = "", temporary: bool = False
    ) -> None:
        super().__init__(host=host, hop=hop, detail=detail)
        self.retryable = temporary


class ConnectFailed(FetchError):
    """No vetted address accepted a connection."""

    situation = "connection failed"
    retryable = True


class TlsFailed(FetchError):
    """The TLS handshake failed or the certificate is not valid for the name."""

    situation = "TLS failed"


class ConnectionLost(FetchError):
    """The peer closed or reset the connection before a response was complete enough to use."""

    situation = "connection lost"
    retryable = True


class ProtocolFailed(FetchError):
    """The peer's answer is not HTTP we accept."""

    situation = "protocol error"


class HeadTooLarge(ProtocolFailed):
    """Response headers or informational responses passed their cap."""

    situation = "response head too large"


class DeadlineExceeded(FetchError):
    """The one deadline over lookup, connect, TLS, all hops and the body ran out."""

    situation = "deadline exceeded"
    retryable = True


class TooManyRedirects(FetchError):
    """The chain is longer than `max_redirects`."""

    situation = "too many redirects"


class BadRedirect(FetchError):
    """A redirect answer contradicts itself (several different `Location` fields)."""

    situation = "unusable redirect"


class EncodingRefused(FetchError):
    """The body has a content coding that was not asked for."""

    situation = "content coding refused"


class DecodingFailed(FetchError):
    """The body is not what its content coding says."""

    situation = "content decoding failed"


class BodyIncomplete(FetchError):
    """The body ended before its framing said it would."""

    situation = "body incomplete"


class RunCapReached(FetchError):
    """The run has sent as many requests, or received as many bytes, as it may (`detail`)."""

    situation = "cap of the run reached"


class TooManyAtOnce(RunCapReached):
    """As many fetches of the run are under way as may be; this one was not begun."""

    situation = "too many fetches at once"
    retryable = True
