"""The codes and the error that carries them."""

import inspect
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress import parse_target
from egress.decision import Deny, DenyReason
from egress.errors import (
    AllowlistError,
    ClientClosed,
    DnsFailed,
    EgressDenied,
    EgressError,
    EntryReason,
    FetchError,
    RequestRefused,
    UrlReason,
    UrlRejected,
)
from egress.violation import Violation, facts_of, violation_of
from web_tools.errors import (
    CODES,
    EGRESS_FAILURES,
    ProviderFault,
    RetryRule,
    SearchProviderError,
    WebErrorCode,
    WebToolError,
    WebToolsError,
    error_from_egress,
    is_retryable_status,
)

SEED_CODES = {
    "WEB_INVALID_INPUT",
    "WEB_URL_NOT_ALLOWED",
    "WEB_EGRESS_DENIED",
    "WEB_HTTP_ERROR",
    "WEB_FETCH_FAILED",
    "WEB_TOO_MANY_REDIRECTS",
    "WEB_CONTENT_TYPE_UNSUPPORTED",
    "WEB_SEARCH_PROVIDER_ERROR",
}


def test_the_codes_are_exactly_the_seeds() -> None:
    """Eight codes, spelled as the seed spells them, each with a row of facts."""
    assert {code.value for code in WebErrorCode} == SEED_CODES
    assert set(CODES) == set(WebErrorCode)


def test_only_a_denial_has_a_violation_event() -> None:
    """One situation makes one event; the others make none."""
    assert [code for code, facts in CODES.items() if facts.violation] == [
        WebErrorCode.EGRESS_DENIED
    ]


NEVER_RETRYABLE = [code for code, facts in CODES.items() if facts.retry is RetryRule.NEVER]


def test_which_codes_are_never_retryable() -> None:
    """A call that is wrong or forbidden stays so."""
    assert set(NEVER_RETRYABLE) == {
        WebErrorCode.INVALID_INPUT,
        WebErrorCode.URL_NOT_ALLOWED,
        WebErrorCode.EGRESS_DENIED,
        WebErrorCode.TOO_MANY_REDIRECTS,
        WebErrorCode.CONTENT_TYPE_UNSUPPORTED,
    }


@pytest.mark.parametrize("code", NEVER_RETRYABLE)
def test_a_hopeless_error_cannot_claim_to_be_retryable(code: WebErrorCode) -> None:
    """An error that contradicts the table cannot be built."""
    with pytest.raises(ValueError, match="never retryable"):
        WebToolError(code, "No.", retryable=True)


@given(st.integers(100, 599))
def test_retryable_statuses(status: int) -> None:
    """408, 429 and every 5xx; nothing else."""
    expected = status in {408, 429, *range(500, 600)}

    assert expected == is_retryable_status(status)


def test_the_text_for_the_model_holds_no_cause() -> None:
    """What the operator reads is not part of what the model reads."""
    error = WebToolError(WebErrorCode.FETCH_FAILED, "It failed.", cause="10.0.0.7 refused")

    assert str(error) == "WEB_FETCH_FAILED: It failed."
    assert error.cause == "10.0.0.7 refused"
    assert isinstance(error, WebToolsError)


def test_an_unknown_code_or_fault_is_refused() -> None:
    """Only the stored words are codes."""
    with pytest.raises(ValueError, match="WEB_OTHER"):
        # A caller without types.
        WebToolError("WEB_OTHER", "No.")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tired"):
        # A caller without types.
        SearchProviderError("tired")  # type: ignore[arg-type]


OTHER_MODULES = {"egress.confine"}


def concrete(root: type[EgressError]) -> Iterator[type[EgressError]]:
    """Every class below *root* that a fetch can end with; what only groups others is left out.

    The errors of the confinement of commands are no errors of a fetch.
    """
    for kind in root.__subclasses__():
        module = kind.__module__
        if kind is not FetchError and module.startswith("egress.") and module not in OTHER_MODULES:
            yield kind
        yield from concrete(kind)


def violation(hop: int = 0) -> Violation:
    deny = Deny(rule="R4", reason=DenyReason.HOST_NOT_LISTED)
    before = (parse_target("https://docs.example.org/start"),) * hop
    return violation_of(deny, parse_target("https://evil.example/secret?q=sentinel"), before=before)


def sample(kind: type[EgressError]) -> EgressError:
    """An error of *kind*, as egress raises it."""
    if kind is UrlRejected:
        return UrlRejected(rule="R1", reason=UrlReason.CREDENTIALS, message="credentials")
    if kind is EgressDenied:
        return EgressDenied(violation())
    if kind is AllowlistError:
        return AllowlistError(entry="*", reason=EntryReason.WILDCARD)
    if kind is RequestRefused:
        return RequestRefused("the body", "must be bytes")
    if issubclass(kind, FetchError):
        return kind(host="10.0.0.7", detail="refused")
    return kind("closed")


KINDS = sorted(set(concrete(EgressError)), key=lambda kind: kind.__name__)


def test_there_are_errors_to_map() -> None:
    """The walk below finds the tree that egress documents."""
    assert {UrlRejected, EgressDenied, DnsFailed, ClientClosed} <= set(KINDS)


def test_every_egress_error_has_a_row_of_its_own() -> None:
    """A new error of egress cannot be forgotten, and no row outlives its error."""
    assert set(KINDS) == set(EGRESS_FAILURES)


@pytest.mark.parametrize("kind", KINDS)
def test_every_egress_error_becomes_a_tool_error(kind: type[EgressError]) -> None:
    """Code and word come from the row; the model reads no host, address, rule or path."""
    error = error_from_egress(sample(kind))

    assert EGRESS_FAILURES[kind].code is error.code
    assert error.detail
    assert not any(w in error.message for w in ("10.0.0.7", "evil", "secret", "R1", "R4", "*"))
    assert (kind is EgressDenied) == (error.violation is not None)
    assert kind.__name__ in error.cause


@pytest.mark.parametrize("kind", [kind for kind in KINDS if issubclass(kind, FetchError)])
def test_a_fetch_error_is_retryable_when_egress_says_so(kind: type[FetchError]) -> None:
    """The judgement of egress is kept, where the table of codes leaves room for it."""
    original = sample(kind)
    assert isinstance(original, FetchError)

    error = error_from_egress(original)
    may_retry = CODES[error.code].retry is not RetryRule.NEVER
    assert (original.retryable and may_retry) == error.retryable


def test_a_temporary_lookup_failure_is_retryable() -> None:
    """Whether a lookup may be tried again is in the error itself, not in its class."""
    assert error_from_egress(DnsFailed(host="a.example", temporary=True)).retryable
    assert not error_from_egress(DnsFailed(host="a.example")).retryable


def test_details_are_distinct() -> None:
    """The word tells one egress failure from every other."""
    words = [failure.detail for failure in EGRESS_FAILURES.values()]
    assert len(set(words)) == len(words)


def test_a_denial_keeps_its_one_violation() -> None:
    """The event of the denial is the one that egress made, with its hops."""
    denied = violation(hop=2)
    error = error_from_egress(EgressDenied(denied))

    assert denied == error.violation
    assert error.message == (
        "A redirect of the page failed. This run is not allowed to read that URL."
    )


def test_a_denial_after_other_requests_keeps_the_whole_chain() -> None:
    """Hops of an earlier fetch of the same read come first, and the count goes on from them."""
    first = parse_target("https://docs.example.org/stub")
    told = error_from_egress(EgressDenied(violation(hop=1)), before=(first,)).violation

    assert told is not None
    assert (2, facts_of(first), "docs.example.org") == (told.hop, told.hops[0], told.hops[1].host)
    assert told.target == violation().target


def test_a_denial_that_a_proxy_reported_makes_no_second_event() -> None:
    """The proxy's event is named to the operator; there is no violation to report."""
    error = error_from_egress(EgressDenied(violation(), event_id="evt-7"))

    assert error.code is WebErrorCode.EGRESS_DENIED
    assert error.violation is None
    assert "evt-7" in error.cause


def test_a_refused_url_tells_the_reason_word() -> None:
    """The word of egress refines the code."""
    assert error_from_egress(sample(UrlRejected)).detail == "credentials"


def test_an_unlisted_error_is_a_failed_fetch() -> None:
    """An error that egress grows later fails closed: no retry, no event."""

    class NovelError(EgressError):
        pass

    error = error_from_egress(NovelError("x"))
    assert (error.code, error.retryable) == (WebErrorCode.FETCH_FAILED, False)


def test_only_a_denial_carries_a_violation() -> None:
    """An event without a denial cannot be built."""
    with pytest.raises(ValueError, match="no violation event"):
        WebToolError(WebErrorCode.FETCH_FAILED, "No.", violation=violation())


@pytest.mark.parametrize("fault", list(ProviderFault))
def test_which_provider_faults_pass(fault: ProviderFault) -> None:
    """Deadlines, rate limits and outages pass by themselves; the adapter can say otherwise."""
    passing = {ProviderFault.DEADLINE, ProviderFault.RATE_LIMITED, ProviderFault.UNAVAILABLE}

    assert (fault in passing) == SearchProviderError(fault).retryable
    assert SearchProviderError(fault, retryable=True).retryable
    assert not SearchProviderError(fault, retryable=False).retryable


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """Every error class of the module stands in its docstring."""
    from web_tools import errors

    names = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value)
        and issubclass(value, Exception)
        and value.__module__ == errors.__name__
    ]
    assert all(name in (errors.__doc__ or "") for name in names)
