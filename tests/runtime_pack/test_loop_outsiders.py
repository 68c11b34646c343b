"""The host's code around the loop: what it hands in, and what it may do to what it is handed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import orjson
import pytest

from runtime_pack import (
    ApprovalRequired,
    Completed,
    ContractError,
    LoopError,
    LoopResult,
    MemoryRunStore,
    TaskContract,
    ToolOutput,
    ToolPolicy,
    ToolRule,
    ToolSpec,
    TurnInput,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    resume_governed_agent_loop,
    run_governed_agent_loop,
)
from runtime_pack.ledger import TURNS
from runtime_pack.messages import Json, ToolMessage
from runtime_pack.testing import Rehearsal, ScriptedModel, ToolShelf, calls, reply

ONE = calls(("a", "t:echo", "{}"))
# What the host hands in against its annotations is the fault at hand.
odd: Any = lambda value: value  # noqa: E731


def told(result: LoopResult) -> list[str | None]:
    return [
        None if message.ok else orjson.loads(message.text)["code"]
        for message in result.messages
        if isinstance(message, ToolMessage)
    ]


# ── what it hands in ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("resumed", [False, True], ids=["start", "resume"])
@pytest.mark.parametrize("create", [lambda: None, lambda: 1 // 0], ids=["none", "raises"])
def test_a_context_that_is_none_starts_nothing(create: Callable[[], Any], resumed: bool) -> None:
    """ContractError, before anything is asked or saved; the run can be driven afterwards."""

    async def scenario() -> None:
        store = MemoryRunStore()
        policy = ToolPolicy([ToolRule(tool="t:echo", approval_class="request_user")])
        stage = Rehearsal(
            shelf=ToolShelf().add("t:echo"),
            contract=TaskContract(tool_policy=policy),
            store=store,
        )
        first = await stage.play(ONE)
        stage.prepare([reply()])
        runtime = stage.run.guard_runtime(
            create_agent_runtime(model=stage.model, tools=stage.shelf.tools)
        )
        given = TurnInput(messages=[UserMessage(text="go")], tool_catalog=stage.shelf.specs)
        drive = (
            resume_governed_agent_loop(
                runtime=runtime, store=store, run_id=first.run_id, create_context=create
            )
            if resumed
            else run_governed_agent_loop(
                runtime=runtime, execute_turn_input=given, create_context=create
            )
        )
        with pytest.raises(ContractError, match="create_context"):
            await drive
        result = await run_governed_agent_loop(runtime=runtime, execute_turn_input=given)

        assert isinstance(result, Completed)

    asyncio.run(scenario())


def test_a_tool_is_offered_as_the_runtime_defines_it() -> None:
    """A milder form, trust or effect in the offer is refused before the model is asked."""
    shelf = ToolShelf().add("t:echo", parameters={"type": "object", "properties": {}})
    milder = ToolSpec(name="t:echo", description="A fake.", parameters={"type": "object"})
    model = ScriptedModel([])
    run = create_agent_task_run(TaskContract())

    with pytest.raises(ContractError, match="t:echo"):
        asyncio.run(
            run_governed_agent_loop(
                runtime=run.guard_runtime(create_agent_runtime(model=model, tools=shelf.tools)),
                execute_turn_input=TurnInput(
                    messages=[UserMessage(text="go")], tool_catalog=[milder]
                ),
            )
        )
    assert run.is_fresh()


def test_a_drive_that_is_refused_lowers_nothing() -> None:
    """A second loop on a busy run leaves the first one's budget as it was."""

    async def scenario() -> None:
        stage = Rehearsal(shelf=ToolShelf().add("t:echo"))
        before = stage.run.ledger.limit(TURNS)
        stage.run.enter()
        with pytest.raises(ContractError, match="driven"):
            await stage.start(max_turns=1)

        assert stage.run.ledger.limit(TURNS) == before

    asyncio.run(scenario())


def test_the_limits_of_refused_calls_hold_over_a_resume() -> None:
    """A later contract with a higher limit does not raise the saved one."""

    async def scenario() -> None:
        policy = ToolPolicy([ToolRule(tool="t:echo", approval_class="request_user")])
        lower = TaskContract(max_refused=1, max_consecutive_refused=2, tool_policy=policy)
        stage = Rehearsal(shelf=ToolShelf().add("t:echo"), contract=lower, store=MemoryRunStore())
        first = await stage.play(calls(("a", "t:echo", "{}"), ("b", "nope", "{}")))
        stage.contract = TaskContract(tool_policy=policy, max_refused=90)
        result = await stage.go_on(first, calls(("c", "nope", "{}")), message="go on", abandon=True)

        assert isinstance(first, ApprovalRequired)
        assert isinstance(result, LoopError)
        assert result.stop is not None
        assert result.stop.code == "MODEL_MISBEHAVING"
        assert stage.run.refused_in_a_row == 2

    asyncio.run(scenario())


class Unreadable(Mapping[str, Json]):
    """An object of arguments that cannot be read."""

    def __getitem__(self, key: str) -> Json:
        raise RuntimeError(key)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no")

    def __len__(self) -> int:
        raise RuntimeError("no")


def test_arguments_that_cannot_be_read_are_invalid() -> None:
    """The call is refused like any other that is not JSON; the run goes on."""
    shelf = ToolShelf().add("t:echo")

    result = asyncio.run(Rehearsal(shelf=shelf).play(calls(("a", "t:echo", Unreadable())), reply()))

    assert isinstance(result, Completed)
    assert told(result) == ["INVALID_JSON"]


class Wire:
    """A citation that gives what it was made with, or raises it."""

    def __init__(self, gives: Any) -> None:
        self._gives = gives

    def to_wire(self) -> dict[str, str]:
        if isinstance(self._gives, Exception):
            raise self._gives
        wire: dict[str, str] = self._gives
        return wire


BAD_OUTPUTS = {
    "ok is a number": ToolOutput(ok=odd(1), text="x"),
    "no citation": ToolOutput(ok=True, text="x", citations=(odd("page"),)),
    "a citation that raises": ToolOutput(ok=True, text="x", citations=(Wire(ValueError()),)),
    "a citation of numbers": ToolOutput(ok=True, text="x", citations=(Wire({"a": 1}),)),
    "no provenance": ToolOutput(ok=True, text="x", provenance=(odd(1),)),
}


@pytest.mark.parametrize("gives", BAD_OUTPUTS.values(), ids=BAD_OUTPUTS.keys())
def test_an_output_of_other_kinds_is_a_tool_error_that_can_be_stored(gives: ToolOutput) -> None:
    """The run ends well, and what was saved can be read again."""

    async def scenario() -> None:
        policy = ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user")])
        stage = Rehearsal(
            shelf=ToolShelf().add("t:echo", gives).add("t:gate"),
            contract=TaskContract(tool_policy=policy),
            store=MemoryRunStore(),
        )
        first = await stage.play(calls(("a", "t:echo", "{}"), ("b", "t:gate", "{}")))
        second = await stage.go_on(first)

        assert isinstance(second, ApprovalRequired)
        assert told(second)[0] == "TOOL_ERROR"

    asyncio.run(scenario())


def test_data_that_is_not_json_is_dropped_and_a_citation_is_cleaned() -> None:
    """Neither keeps the text from the model, nor the run from being saved."""

    async def scenario() -> None:
        shelf = ToolShelf().add(
            "t:echo",
            ToolOutput(ok=True, text="x", data=odd({1, 2}), citations=(Wire({"a": "\ud800"}),)),
        )
        stage = Rehearsal(shelf=shelf, store=MemoryRunStore())
        result = await stage.play(ONE, reply())

        assert isinstance(result, Completed)
        assert told(result) == [None]
        assert [step.citations for step in result.steps][1] == ({"a": "\ufffd"},)

    asyncio.run(scenario())


# ── predicates ──────────────────────────────────────────────────────────────────────────────────


class Unnamed:
    """A predicate without a name."""

    def __call__(self, arguments: Mapping[str, Json]) -> bool:
        return True

    def method(self, arguments: Mapping[str, Json]) -> bool:
        return True


@pytest.mark.parametrize(
    "when", [partial(bool), Unnamed(), Unnamed().method], ids=["partial", "object", "method"]
)
def test_a_predicate_without_a_name_of_its_own_is_refused(when: Callable[[Any], bool]) -> None:
    """The policy's digest could not tell it from another one."""
    with pytest.raises(ContractError, match="function"):
        ToolRule(tool="t", approval_class="deny", when=when)


def above(limit: int) -> Callable[[Mapping[str, Json]], bool]:
    return lambda arguments: len(arguments) > limit


def test_two_predicates_do_not_share_a_digest() -> None:
    """Lambdas of one line, and closures over other values, are other policies."""
    whens: list[Callable[[Any], bool]] = [
        lambda a: "x" in a,
        lambda a: "x" not in a,
        above(1),
        above(2),
    ]

    digests = {
        ToolPolicy([ToolRule(tool="t", approval_class="deny", when=when)]).sha256 for when in whens
    }

    assert len(digests) == len(whens)
    again = ToolPolicy([ToolRule(tool="t", approval_class="deny", when=above(1))]).sha256
    assert again in digests
