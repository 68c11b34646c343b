"""The eight public codes, what each means, and the error that carries one.

::

    WebToolsError
    ├── WebToolError          a call failed; carries a code and a sentence for the model
    ├── SearchProviderError   an adapter says, in words of ours, why it failed
    ├── SearchRefused         a gate or the daily cap says no, before anything is asked
    │   ├── CredentialRefused the agent is not allowed a credential
    │   └── CredentialMissing the agent is, and there is none
    ├── InvalidSetup          a back end, its manifest or its configuration cannot be used
    ├── InvalidCaps           ceilings that the host set wrongly
    ├── CorpusError           a folder that cannot be a corpus
    └── IndexUnusable         a search index that cannot be built or opened

Three texts are kept apart: `WebToolError.message` is for the model and repeats nothing that
a page or a provider wrote; `cause` is for the operator; the event is `violation`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import attrs

from egress import errors as egress_errors
from egress.violation import Violation, facts_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from egress.url import Target

__all__ = (
    "CODES",
    "EGRESS_FAILURES",
    "CodeFacts",
    "CorpusError",
    "CredentialMissing",
    "CredentialRefused",
    "EgressFailure",
    "Fault",
    "IndexUnusable",
    "InvalidCaps",
    "InvalidSetup",
    "ProviderFault",
    "RefusalReason",
    "RetryRule",
    "SearchProviderError",
    "SearchRefused",
    "WebErrorCode",
    "WebToolError",
    "WebToolsError",
    "error_from_egress",
    "is_retryable_status",
)


class WebErrorCode(StrEnum):
    """The public codes. Source: the web tools text, section Errors."""

    INVALID_INPUT = "WEB_INVALID_INPUT"
    URL_NOT_ALLOWED = "WEB_URL_NOT_ALLOWED"
    EGRESS_DENIED = "WEB_EGRESS_DENIED"
    HTTP_ERROR = "WEB_HTTP_ERROR"
    FETCH_FAILED = "WEB_FETCH_FAILED"
    TOO_MANY_REDIRECTS = "WEB_TOO_MANY_REDIRECTS"
    CONTENT_TYPE_UNSUPPORTED = "WEB_CONTENT_TYPE_UNSUPPORTED"
    SEARCH_PROVIDER_ERROR = "WEB_SEARCH_PROVIDER_ERROR"


class RetryRule(StrEnum):
    """When trying the same call again can help; the words of the table."""

    NEVER = "no"
    BY_STATUS = "408, 429, 5xx"
    TRANSPORT = "timeouts and connect"
    BY_CAUSE = "by cause"


@attrs.frozen(kw_only=True)
class CodeFacts:
    """One row of the table of codes.

    Attributes:
        violation: Whether the failure comes with exactly one violation event; otherwise none.
    """

    situation: str
    retry: RetryRule = RetryRule.NEVER
    violation: bool = False


CODES: Final[Mapping[WebErrorCode, CodeFacts]] = MappingProxyType(
    {
        WebErrorCode.INVALID_INPUT: CodeFacts(
            situation="arguments are not of the tool's form (paths named)"
        ),
        WebErrorCode.URL_NOT_ALLOWED: CodeFacts(
            situation="not a URL we accept: scheme, credentials, malformed (R1-R3), at hop 0 or as "
            "a redirect target; or the site's robots.txt disallows it, where that is respected"
        ),
        WebErrorCode.EGRESS_DENIED: CodeFacts(
            situation="allowlist or address policy says no, at any hop (R4-R11)", violation=True
        ),
        WebErrorCode.HTTP_ERROR: CodeFacts(
            situation="final response is not 2xx", retry=RetryRule.BY_STATUS
        ),
        WebErrorCode.FETCH_FAILED: CodeFacts(
            situation="DNS, TCP, TLS, protocol, timeout, bad encoding, unusable redirect",
            retry=RetryRule.TRANSPORT,
        ),
        WebErrorCode.TOO_MANY_REDIRECTS: CodeFacts(situation="R12 cap"),
        WebErrorCode.CONTENT_TYPE_UNSUPPORTED: CodeFacts(situation="not text, JSON or XML"),
        WebErrorCode.SEARCH_PROVIDER_ERROR: CodeFacts(
            situation="the provider failed or answered badly, cause kept", retry=RetryRule.BY_CAUSE
        ),
    }
)
"""Source: the web tools text; docs are generated from it."""


def is_retryable_status(status: int) -> bool:
    """Whether the same request may succeed later: 408, 429 and 5xx."""
    return status in {408, 429} or 500 <= status <= 599


class WebToolsError(Exception):
    """Root of the errors of this package."""


@attrs.frozen(kw_only=True)
class Fault:
    """One thing wrong with the arguments: `path` is a JSON pointer, empty for the whole."""

    path: str
    problem: str


class WebToolError(WebToolsError):
    """A call that failed, in the form that a tool result can carry.

    Attributes:
        code: One of the eight.
        message: One plain sentence for the model, built by us.
        retryable: Whether the same call may succeed later.
        detail: A stored word that refines the code (``http_404``, ``deadline``), or None.
        violation: The event of a denial; only with WEB_EGRESS_DENIED, and None there only
            when a proxy has already reported it.
        faults: For WEB_INVALID_INPUT, what is wrong and where.
        retry_after: The server's Retry-After header as it came, bounded, or None.
        cause: For the operator: type and words of what went wrong. Never query text.

    Raises:
        ValueError: The parts contradict the table of codes.
    """

    def __init__(
        self,
        code: WebErrorCode,
        message: str,
        *,
        retryable: bool = False,
        detail: str | None = None,
        violation: Violation | None = None,
        faults: tuple[Fault, ...] = (),
        retry_after: str | None = None,
        cause: str = "",
    ) -> None:
        self.code = WebErrorCode(code)
        facts = CODES[self.code]
        if retryable and facts.retry is RetryRule.NEVER:
            raise ValueError(f"{self.code} is never retryable")
        if violation is not None and not facts.violation:
            raise ValueError(f"{self.code} has no violation event")
        self.message = message
        self.retryable = retryable
        self.detail = detail
        self.violation = violation
        self.faults = faults
        # What is no number of seconds could be any text of the vendor's.
        seconds = retry_after or ""
        self.retry_after = seconds if _SECONDS.fullmatch(seconds) else None
        self.cause = cause
        super().__init__(f"{self.code}: {message}")


@attrs.frozen(kw_only=True)
class EgressFailure:
    """How one kind of egress error is told: its code, the `detail` word and the sentence."""

    code: WebErrorCode = WebErrorCode.FETCH_FAILED
    detail: str
    message: str


EGRESS_FAILURES: Final[Mapping[type[egress_errors.EgressError], EgressFailure]] = MappingProxyType(
    {
        egress_errors.UrlRejected: EgressFailure(
            code=WebErrorCode.URL_NOT_ALLOWED,
            detail="url",
            message="That is not an http or https URL that can be read.",
        ),
        egress_errors.EgressDenied: EgressFailure(
            code=WebErrorCode.EGRESS_DENIED,
            detail="denied",
            message="This run is not allowed to read that URL.",
        ),
        egress_errors.TooManyRedirects: EgressFailure(
            code=WebErrorCode.TOO_MANY_REDIRECTS,
            detail="redirects",
            message="The page redirects too many times.",
        ),
        egress_errors.BadRedirect: EgressFailure(
            detail="bad_redirect", message="The page redirects in a way that cannot be followed."
        ),
        egress_errors.DnsFailed: EgressFailure(
            detail="dns", message="The host's name could not be resolved."
        ),
        egress_errors.ConnectFailed: EgressFailure(
            detail="connect", message="The host could not be reached."
        ),
        egress_errors.TlsFailed: EgressFailure(
            detail="tls", message="No secure connection to the host could be made."
        ),
        egress_errors.ConnectionLost: EgressFailure(
            detail="connection_lost", message="The host broke the connection."
        ),
        egress_errors.ProtocolFailed: EgressFailure(
            detail="protocol", message="The host's answer is not valid HTTP."
        ),
        egress_errors.HeadTooLarge: EgressFailure(
            detail="head_too_large", message="The headers of the host's answer are too large."
        ),
        egress_errors.DeadlineExceeded: EgressFailure(
            detail="deadline", message="The page did not arrive in time."
        ),
        egress_errors.EncodingRefused: EgressFailure(
            detail="encoding_refused",
            message="The page is compressed in a way that is not accepted.",
        ),
        egress_errors.DecodingFailed: EgressFailure(
            detail="decoding", message="The page could not be decompressed."
        ),
        egress_errors.BodyIncomplete: EgressFailure(
            detail="incomplete", message="The page broke off before its end."
        ),
        egress_errors.RunCapReached: EgressFailure(
            detail="run_cap", message="This run has read as much from the web as it may."
        ),
        egress_errors.TooManyAtOnce: EgressFailure(
            detail="too_many_at_once",
            message="Too many pages are being read at once; read this one after them.",
        ),
        # The next ones are no faults of the page; nothing was sent, or nobody waits any more.
        egress_errors.AllowlistError: EgressFailure(
            detail="allowlist", message="Reading pages is not set up correctly."
        ),
        egress_errors.RequestRefused: EgressFailure(
            detail="request", message="The request cannot be sent as it is."
        ),
        egress_errors.Stopped: EgressFailure(
            detail="stopped", message="The call was stopped before there was an answer."
        ),
        egress_errors.ClientClosed: EgressFailure(
            detail="closed", message="Reading pages is no longer possible in this run."
        ),
    }
)
"""One row for each concrete error of `egress`; a test walks its subclasses."""

_UNKNOWN_FAILURE: Final = EgressFailure(detail="fetch", message="The page could not be fetched.")


def error_from_egress(
    error: egress_errors.EgressError, *, before: tuple[Target, ...] = ()
) -> WebToolError:
    """The tool's error for *error*, which the caller raises ``from`` it.

    Args:
        error: What a fetch raised.
        before: What this read had requested before that fetch began, in order. A denial is
            told with the whole chain of hops.

    Returns:
        The error of the row of its class. A denial keeps its one violation, unless a proxy
        has already made the event.
    """
    failure = _failure_of(type(error))
    redirected = bool(before) or getattr(error, "hop", 0) > 0 or _denied_hop(error) > 0
    return WebToolError(
        failure.code,
        "A redirect of the page failed. " + failure.message if redirected else failure.message,
        retryable=bool(getattr(error, "retryable", False)) and _may_retry(failure.code),
        detail=error.reason if isinstance(error, egress_errors.UrlRejected) else failure.detail,
        violation=_unreported(error, before),
        cause=_cause(error),
    )


def _cause(error: egress_errors.EgressError) -> str:
    reported = getattr(error, "event_id", None)
    return f"{type(error).__name__}: {error}" + (f" (event {reported})" if reported else "")


def _failure_of(kind: type[egress_errors.EgressError]) -> EgressFailure:
    """The row of the nearest known class; an error that nobody listed is a failed fetch."""
    rows = (EGRESS_FAILURES[known] for known in kind.__mro__ if known in EGRESS_FAILURES)
    return next(rows, _UNKNOWN_FAILURE)


def _may_retry(code: WebErrorCode) -> bool:
    return CODES[code].retry is not RetryRule.NEVER


def _denied_hop(error: egress_errors.EgressError) -> int:
    return error.violation.hop if isinstance(error, egress_errors.EgressDenied) else 0


def _unreported(error: egress_errors.EgressError, before: tuple[Target, ...]) -> Violation | None:
    """The violation that still has to be reported, its hops counted from the first request."""
    if not isinstance(error, egress_errors.EgressDenied) or error.event_id is not None:
        return None
    denied = error.violation
    hops = (*(facts_of(target) for target in before), *denied.hops)
    return attrs.evolve(denied, hop=len(hops), hops=hops)


class ProviderFault(StrEnum):
    """Why a search provider failed; also the `detail` of the tool's error."""

    DEADLINE = "deadline"
    RAISED = "raised"
    BAD_ANSWER = "bad_answer"
    QUERY_REFUSED = "query_refused"
    UNAUTHORIZED = "unauthorized"
    RATE_LIMITED = "rate_limited"
    QUOTA = "quota"
    UNAVAILABLE = "unavailable"
    NOT_REACHABLE = "not_reachable"
    STOPPED = "stopped"


_SECONDS: Final = re.compile("[0-9]{1,10}")
_PASSING_FAULTS: Final = frozenset(
    {
        ProviderFault.DEADLINE,
        ProviderFault.RATE_LIMITED,
        ProviderFault.UNAVAILABLE,
    }
)


class SearchProviderError(WebToolsError):
    """What an adapter raises when it knows why it failed.

    The fault decides what the model is told; *operator_text* is for logs and must not hold
    the query, a key, or text of the answer. Unless said otherwise a deadline, a rate limit
    and an outage are retryable. *retry_after* is the time that the back end asks for, in
    seconds as text.
    """

    def __init__(
        self,
        fault: ProviderFault,
        operator_text: str = "",
        *,
        retryable: bool | None = None,
        retry_after: str | None = None,
    ) -> None:
        self.fault = ProviderFault(fault)
        # What is no number of seconds could be any text of the vendor's.
        seconds = retry_after or ""
        self.retry_after = seconds if _SECONDS.fullmatch(seconds) else None
        self.operator_text = operator_text
        self.retryable = self.fault in _PASSING_FAULTS if retryable is None else retryable
        super().__init__(f"{self.fault}: {operator_text}" if operator_text else str(self.fault))


class RefusalReason(StrEnum):
    """Why `web.search` was refused before a back end was asked. The stored words are public."""

    TOOL_NOT_ALLOWED = "tool_not_allowed"
    CREDENTIAL_NOT_ALLOWED = "credential_not_allowed"
    CREDENTIAL_MISSING = "credential_missing"
    DAILY_CAP = "daily_cap"


class SearchRefused(WebToolsError):
    """A gate or the cap says no; the text is shown to the model as it is, and nothing counts."""

    def __init__(self, reason: RefusalReason, text: str) -> None:
        self.reason = RefusalReason(reason)
        super().__init__(text)


class CredentialRefused(SearchRefused):
    """The profile of *agent* does not name the credential. Source: the search contract, verbatim."""

    def __init__(self, agent: str, name: str) -> None:
        text = f"Agent {agent} is not allowed to access credential: {name}"
        super().__init__(RefusalReason.CREDENTIAL_NOT_ALLOWED, text)


class CredentialMissing(SearchRefused):
    """No place that the operator has set up holds the credential."""

    def __init__(self, name: str) -> None:
        text = f"There is no credential {name}; the operator stores it with: runtime-pack credential set {name}"
        super().__init__(RefusalReason.CREDENTIAL_MISSING, text)


class InvalidSetup(WebToolsError, ValueError):
    """What a back end declares, or an operator writes, cannot be used: `field` is where."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}")


class InvalidCaps(WebToolsError, ValueError):
    """A ceiling of the host is not a usable number: `field` is which, `problem` says why."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}")


class CorpusError(WebToolsError):
    """A folder that cannot be a corpus: missing, not a folder, or over a limit of its own."""


class IndexUnusable(WebToolsError):
    """A search index that cannot be built or opened; the message says which file and why."""
