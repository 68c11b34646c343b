"""A request to a person as it is stored: read strictly, whole, and remembered only as it can be."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from runtime_pack.approvals import (
    ApprovalRequest,
    Decision,
    DecisionRefused,
    Remember,
    digest_arguments,
    remember_fault,
)
from runtime_pack.labels import CLEAN
from runtime_pack.messages import Json
from runtime_pack.seal import Seal, seal_request

AT = datetime(2026, 1, 2, tzinfo=UTC)
PARAMETERS: dict[str, Json] = {"type": "object", "properties": {"to": {"type": "string"}}}


def asked(**more: Any) -> ApprovalRequest:
    request = ApprovalRequest(
        request_id="apr-1", run="r", task="", step="t1c1", tool="t", tool_sha256="sha256:0",
        arguments={"to": "ann"}, arguments_sha256=digest_arguments({"to": "ann"}),
        policy_sha256="sha256:0", label=CLEAN, reasons=("why",), created_at=AT, expires_at=None,
        **more,
    )  # fmt: skip
    return seal_request(Seal(b"k" * 32), request)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"session": "s"},
        {"destinations": {"to": "ann"}},
        {"rules": ("LBL001A",)},
        {"reservation": {"steps": 1}},
    ],
    ids=lambda more: "".join(more) or "no more",
)
def test_a_request_is_read_back_as_it_was(more: dict[str, Any]) -> None:
    """Where it goes, which rules it breaks and whose it is are a part of what was sealed."""
    request = asked(**more)

    again = ApprovalRequest.from_json(request.to_json())

    assert again == request
    assert again.body() == request.body()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arguments", []),
        ("arguments", "x"),
        ("arguments", {"to": "bob"}),
        ("reasons", "why"),
        ("reservation", [["steps", 1]]),
        ("destinations", [["to", "ann"]]),
        ("rules", "LBL001A"),
        ("arguments_sha256", "sha256:0"),
        ("tool_too", "t"),
        ("tool", None),
    ],
)
def test_a_request_of_another_form_is_refused(field: str, value: Any) -> None:
    """A field of another kind, one too many, one too few, and arguments that are not the digest's."""
    stored = {**asked().to_json(), field: value}
    if value is None:
        del stored[field]

    with pytest.raises(ValueError, match=r"\w"):
        ApprovalRequest.from_json(stored)


def test_an_answer_to_a_label_rule_is_not_remembered() -> None:
    """What the context holds is another thing each time."""
    remember = Remember(fields=("to",))

    assert remember_fault(remember, "t", PARAMETERS, {"to": "ann"}) is None
    fault = remember_fault(remember, "t", PARAMETERS, {"to": "ann"}, ("LBL001A",))
    assert fault is not None
    assert "LBL001A" in fault
    assert remember_fault(None, "t", PARAMETERS, {"to": "ann"}, ("LBL001A",)) is None


def test_edited_arguments_are_no_deeper_than_a_saved_run_can_hold() -> None:
    """A decision that could be made and not be saved would be lost with its run."""
    deep: Any = "x"
    for _ in range(250):
        deep = [deep]

    with pytest.raises(DecisionRefused, match="edited_args is not a JSON object"):
        Decision(request_id="a", verdict="approve", decided_by="ann", edited_args={"to": deep})
