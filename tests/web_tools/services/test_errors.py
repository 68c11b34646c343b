"""The codes and the error that carries them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web_tools.errors import (
    CODES,
    RetryRule,
    SearchProviderError,
    WebErrorCode,
    WebToolError,
    WebToolsError,
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
