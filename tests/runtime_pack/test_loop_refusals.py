"""A provider that declines, and what else it may answer in place of a turn."""

from __future__ import annotations

import asyncio

import pytest

from runtime_pack import (
    AssistantMessage,
    FinishReason,
    LoopError,
    ModelFault,
    ModelRequestError,
    StopCode,
    Suspended,
    TaskContract,
    ToolMessage,
    Usage,
)
from runtime_pack.errors import ModelError
from runtime_pack.testing import Rehearsal, ToolShelf, calls, reply

DECLINED = (FinishReason.REFUSAL, FinishReason.CONTENT_FILTER)
PASSING = {"transport", "timeout", "rate_limited", "overloaded", "server", "conflict"}


@pytest.mark.parametrize("finish", DECLINED)
def test_a_refusal_is_an_error_and_is_not_asked_again(finish: FinishReason) -> None:
    """The text of a refusal stands in the history and is not the answer of the run."""
    result = asyncio.run(Rehearsal().play(reply("I cannot help.", finish=finish)))

    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert (StopCode.MODEL_REFUSED, "model") == (result.stop.code, result.stop.stage)
    assert result.text == ""
    assert result.messages[-1] == AssistantMessage(text="I cannot help.")


@pytest.mark.parametrize("finish", DECLINED)
def test_no_call_of_a_refused_response_runs(finish: FinishReason) -> None:
    """A filter that stops a response stops its calls; each has its result."""
    shelf = ToolShelf().add("t:echo")
    asked = calls(("a", "t:echo", "{}"), ("b", "t:echo", "{"), finish=finish)

    result = asyncio.run(Rehearsal(shelf=shelf).play(asked))

    assert shelf.ran["t:echo"] == 0
    assert ["a", "b"] == [m.call_id for m in result.messages if isinstance(m, ToolMessage)]
    assert result.stop is not None
    assert result.stop.code == StopCode.MODEL_REFUSED
    assert result.ledger.reserved == {}


def test_a_refused_wrap_up_leaves_the_stop_of_the_budget() -> None:
    """The run is suspended for its budget; the refusal is not given as its final text."""
    shelf = ToolShelf().add("t:echo")
    setup = Rehearsal(shelf=shelf, contract=TaskContract(max_turns=2))
    asked = calls(("a", "t:echo", "{}")), calls(("b", "t:echo", "{}"))

    result = asyncio.run(setup.play(*asked, reply("no", finish=FinishReason.REFUSAL)))

    assert isinstance(result, Suspended)
    assert result.stop is not None
    assert result.stop.code == StopCode.BUDGET_EXHAUSTED
    assert result.text == ""


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (ModelFault.REFUSED, StopCode.MODEL_REFUSED),
        (ModelFault.CONTEXT_OVERFLOW, StopCode.CONTEXT_OVERFLOW),
        (ModelFault.INVALID_REQUEST, StopCode.MODEL_ERROR),
        (ModelFault.AUTH, StopCode.MODEL_ERROR),
        (ModelFault.MALFORMED, StopCode.MODEL_ERROR),
    ],
)
def test_a_fault_that_will_not_pass_ends_the_run(fault: ModelFault, code: StopCode) -> None:
    """The model is asked once; the stop names the fault, and its tokens are charged."""
    usage = Usage(input_tokens=7, output_tokens=0)
    error = ModelRequestError(fault=fault, message="the server said no", usage=usage)

    result = asyncio.run(Rehearsal().play(error))

    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert result.stop.code == code
    assert result.stop.message == f"{fault}: the server said no"
    assert result.ledger.input_tokens == 7


def test_a_broken_usage_of_a_failure_is_not_charged() -> None:
    """An adapter is the host's code: what it reports is checked here too."""
    broken = Usage(input_tokens=-5, output_tokens=0)
    error = ModelRequestError(fault="refused", message="no", usage=broken)

    result = asyncio.run(Rehearsal().play(error))

    assert result.ledger.input_tokens == 0


@pytest.mark.parametrize("fault", ModelFault)
def test_only_what_may_pass_and_was_not_shown_is_retryable(fault: ModelFault) -> None:
    """Six faults are; none of them once a part of the response was shown."""
    fresh = ModelRequestError(fault=fault, message="")
    shown = ModelRequestError(fault=fault, message="", surfaced=True)

    assert isinstance(fresh, ModelError)
    assert (fault in PASSING) == fresh.retryable
    assert not shown.retryable


def test_an_unknown_fault_is_refused() -> None:
    """A misspelt word does not become a fault that nobody knows."""
    with pytest.raises(ValueError, match="rate-limited"):
        ModelRequestError(fault="rate-limited", message="")
