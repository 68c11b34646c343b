"""What the host's own code raises can be found by its developer, and by nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import pytest

from runtime_pack import (
    ApprovalRequest,
    Decision,
    Event,
    ExecutionContext,
    LoopError,
    LoopResult,
    MemoryRunStore,
    ModelRequestError,
    SavedRun,
    StopCode,
    TaskContract,
    ToolPolicy,
    ToolRule,
    TurnInput,
    UserMessage,
    catalog_tool,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
)
from runtime_pack.messages import Json, Message
from runtime_pack.testing import Rehearsal, ScriptedModel, ToolShelf, calls, reply

SECRET: Final = "sk-this-is-a-key"
ONE: Final = calls(("a", "t:echo", '{"x":"1"}'))


class Fault(RuntimeError):
    """What the host's code raises."""


def fail(*_: object) -> NoReturn:
    raise Fault(SECRET)


class Failing:
    """Every port of the host, and none of them works."""

    async def decide(self, request: ApprovalRequest) -> Decision | None:
        fail(request)

    async def emit(self, event: Event) -> None:
        fail(event)

    async def summarise(self, messages: Sequence[Message]) -> str:
        fail(messages)

    async def guard(self, messages: Sequence[Message]) -> str | None:
        fail(messages)


async def when(arguments: Mapping[str, Json]) -> bool:
    fail(arguments)


async def tool(context: ExecutionContext) -> Json:
    fail(context)


class FailingStore(MemoryRunStore):
    """A store that cannot write."""

    async def commit(
        self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
    ) -> int:
        fail(run_id, expected, head, rows)


BROKEN: Final = Failing()


def gated(rule: ToolRule, **more: Any) -> TaskContract:
    return TaskContract(tool_policy=ToolPolicy([rule]), **more)


ASK: Final = ToolRule(tool="t:echo", approval_class="request_user")
TOLD: Final = ToolRule(tool="t:echo", approval_class="deny")
WHEN: Final = ToolRule(tool="t:echo", approval_class="deny", when=when)
SYNC: Final = ToolRule(tool="t:echo", approval_class="deny", when=fail)
LONG: Final = TaskContract(max_context_bytes=200)


@pytest.mark.parametrize(
    ("what", "options", "script", "code"),
    [
        ("the model's adapter", {}, [Fault(SECRET)], StopCode.MODEL_ERROR),
        ("the approver", {"approver": BROKEN, "contract": gated(ASK)}, [ONE], None),
        ("the emitter", {"emitter": BROKEN, "contract": gated(TOLD)}, [ONE], "EMITTER_FAILED"),
        ("an input guard", {"input_guards": [BROKEN.guard]}, [], StopCode.INPUT_REFUSED),
        ("a predicate", {"contract": gated(WHEN)}, [ONE, reply()], None),
        ("the predicate of", {"contract": gated(SYNC)}, [ONE, reply()], None),
        ("the tool t:echo", {}, [ONE, reply()], None),
        ("the store", {"store": FailingStore()}, [], StopCode.STORE_FAILED),
        (
            "the summariser",
            {"summariser": BROKEN, "contract": LONG},
            [ONE],
            StopCode.CONTEXT_OVERFLOW,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_host_raises_is_logged_and_in_the_result(
    what: str,
    options: dict[str, Any],
    script: list[Any],
    code: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With its traceback, at DEBUG; the result has it where it ends the run, and no text has it."""
    caplog.set_level(logging.DEBUG, "runtime_pack")
    does = tool if what.startswith("the tool") else None
    shelf = ToolShelf().add("t:echo", "r" * 300, does=does)
    stage = Rehearsal(shelf=shelf, **({"store": MemoryRunStore()} | options))

    result = asyncio.run(stage.play(*script))

    (record,) = [r for r in caplog.records if r.getMessage().startswith(what)]
    assert record.levelno == logging.DEBUG
    assert record.name == "runtime_pack"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], Fault)
    assert record.exc_info[1].__traceback__ is not None
    assert SECRET not in said(result)
    if code is not None:
        assert isinstance(result, LoopError)
        assert result.stop is not None
        assert result.stop.code == code
        assert isinstance(result.cause, Fault)


def said(result: LoopResult) -> str:
    """Everything that is told, kept or saved, and the result's own representation."""
    saved = result.state
    rows = "" if not isinstance(saved, SavedRun) else f"{saved.head!r}{saved.rows!r}"
    return f"{result!r}{result.messages!r}{rows}"


def test_a_request_that_failed_for_good_is_the_cause() -> None:
    """The provider's failure with all its fields, not its sentence alone."""
    error = ModelRequestError(fault="auth", message="no such key", status=401)
    stage = Rehearsal(shelf=ToolShelf())

    result = asyncio.run(stage.play(error))

    assert isinstance(result, LoopError)
    assert result.cause is error


def test_what_a_function_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A tool made of a function turns it into an answer itself."""
    caplog.set_level(logging.DEBUG, "runtime_pack")

    @catalog_tool(name="t:f")
    def function(x: str) -> str:
        """Fail."""
        return fail(x)

    script = [calls(("a", "t:f", '{"x":"1"}')), reply()]
    base = create_agent_runtime(model=ScriptedModel(script), tools=[function])
    given = TurnInput(messages=[UserMessage(text="go")], tool_catalog=[function.spec])
    run = create_agent_task_run(TaskContract())
    asyncio.run(run_governed_agent_loop(runtime=run.guard_runtime(base), execute_turn_input=given))

    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], Fault)


def test_a_tool_that_nobody_is_told_of_is_said_to_be_refused_for_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The model cannot mend it: the host is warned, with what is missing."""
    policy = ToolPolicy([ToolRule(tool="t:*", approval_class="notify")])
    stage = Rehearsal(shelf=ToolShelf().add("t:echo"), contract=TaskContract(tool_policy=policy))

    asyncio.run(stage.play(ONE, reply()))

    (warned,) = [each for each in caplog.records if each.name == "runtime_pack"]
    assert warned.levelno == logging.WARNING
    assert "refuses t:echo" in warned.getMessage()
    assert "give create_agent_task_run an emitter" in warned.getMessage()
