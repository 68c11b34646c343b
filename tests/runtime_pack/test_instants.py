"""Moments are written in one form, and what an earlier version sealed is still known."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_pack.approvals import ApprovalRequest, digest_arguments
from runtime_pack.instants import instant_text
from runtime_pack.labels import CLEAN
from runtime_pack.seal import Seal, check_request, seal_request

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-9))])))
def test_a_moment_is_read_back_from_what_was_written(moment: datetime) -> None:
    """It ends in Z, wherever the moment was."""
    try:
        text = instant_text(moment)
    except OverflowError:
        # At either end of the calendar there is no such moment in UTC.
        return

    assert text.endswith("Z")
    assert datetime.fromisoformat(text) == moment


@pytest.mark.parametrize("written", ["2026-01-02T03:04:05+00:00", "2026-01-02T03:04:05Z"])
def test_a_request_keeps_its_seal_in_either_form(written: str) -> None:
    """One that an earlier version wrote is the same request."""
    seal = Seal(b"k" * 32)
    request = seal_request(
        seal,
        ApprovalRequest(
            request_id="apr-1", run="r", task="", step="t1c1", tool="t", tool_sha256="sha256:0",
            arguments={}, arguments_sha256=digest_arguments({}), policy_sha256="sha256:0",
            label=CLEAN, reasons=("why",), created_at=AT, expires_at=AT,
        ),
    )  # fmt: skip
    stored = request.to_json()
    assert (stored["created_at"], stored["expires_at"]) == ("2026-01-02T03:04:05Z",) * 2

    again = ApprovalRequest.from_json({**stored, "created_at": written, "expires_at": written})

    check_request(seal, again)
    assert b"2026-01-02T03:04:05+00:00" in again.body()
