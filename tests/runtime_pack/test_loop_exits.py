"""`SystemExit` and Ctrl-C out of the host's own runtime, model, checks and ports: one outcome each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from runtime_pack import (
    AuditLog,
    Completed,
    ExecutionContext,
    MemoryRunStore,
    Seal,
    TaskContract,
    ToolOutput,
    ToolPolicy,
    ToolRule,
    TurnInput,
    UserMessage,
    create_agent_runtime,
    run_governed_agent_loop,
    verify_log,
)
from runtime_pack.catalog import TURN_TOOL, ToolSpec
from runtime_pack.loop import LoopResult
from runtime_pack.messages import Json, ToolMessage
from runtime_pack.testing import (
    ListEmitter,
    Rehearsal,
    ToolShelf,
    assert_one_result_per_call,
    calls,
    reply,
)

SEAL = Seal(b"the key of runs that exit in test")
TWO = calls(("1", "t:a", "{}"), ("2", "t:b", "{}"))


class Leaving:
    """A runtime of the host's that raises at one place, at once or after a wait."""

    def __init__(self, inner: Any, where: str, error: BaseException, *, waits: bool) -> None:
        self.inner, self.where, self.error, self.waits = inner, where, error, waits

    async def _pass(self, where: str) -> None:
        if where == self.where:
            self.where = ""
            if self.waits:
                await asyncio.sleep(0)
            raise self.error

    def tool_spec(self, name: str) -> ToolSpec | None:
        spec: ToolSpec | None = self.inner.tool_spec(name)
        return spec

    async def preflight(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput | None:
        await self._pass("preflight")
        return None

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput:
        await self._pass("model" if name == TURN_TOOL else name)
        output: ToolOutput = await self.inner.execute_tool(name, arguments, context)
        return output


async def driven(stage: Rehearsal, where: str, error: BaseException, *, waits: bool) -> LoopResult:
    stage.prepare([TWO, reply()])
    inner = create_agent_runtime(model=stage.model, tools=stage.shelf.tools)
    return await run_governed_agent_loop(
        runtime=stage.run.guard_runtime(Leaving(inner, where, error, waits=waits)),
        execute_turn_input=TurnInput(
            messages=[UserMessage(text="go")], tool_catalog=stage.shelf.specs
        ),
        store=stage.store,
    )


def told(result: LoopResult) -> list[str | None]:
    return [
        None if m.ok else orjson.loads(m.text)["code"]
        for m in result.messages
        if isinstance(m, ToolMessage)
    ]


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize(
    ("where", "kind", "codes"),
    [
        ("t:a", "completed", ["TOOL_ERROR", None]),
        ("preflight", "completed", ["POLICY_ERROR", None]),
        ("model", "error", []),
    ],
)
def test_an_exit_is_a_failure_of_who_raised_it(
    where: str, kind: str, codes: list[str | None], waits: bool
) -> None:
    """The process and its event loop go on, as after any other error there."""
    stage = Rehearsal(shelf=ToolShelf().add("t:a").add("t:b"), store=MemoryRunStore(SEAL))

    result = asyncio.run(driven(stage, where, SystemExit(3), waits=waits))

    assert (str(result.kind), told(result)) == (kind, codes)
    assert result.ledger.reserved == {}
    if kind == "error":
        assert result.stop is not None
        assert result.stop.to_json()["code"] == "MODEL_ERROR"


async def exits(arguments: Mapping[str, Json]) -> bool:
    raise SystemExit(3)


def exits_at_once(arguments: Mapping[str, Json]) -> bool:
    raise SystemExit(3)


@pytest.mark.parametrize("when", [exits, exits_at_once])
def test_an_exit_in_a_predicate_denies_the_call(when: Any) -> None:
    """It has not answered."""
    policy = ToolPolicy([ToolRule(tool="t:a", approval_class="request_user", when=when)])
    stage = Rehearsal(
        shelf=ToolShelf().add("t:a").add("t:b"), contract=TaskContract(tool_policy=policy)
    )

    assert told(asyncio.run(stage.play(TWO, reply()))) == ["POLICY_ERROR", None]


def test_an_exit_in_the_emitter_stops_the_run() -> None:
    """As whatever else it raises."""

    class Exiting(ListEmitter):
        async def emit(self, event: Any) -> None:
            raise SystemExit(3)

    policy = ToolPolicy([ToolRule(tool="t:a", approval_class="notify")])
    stage = Rehearsal(
        shelf=ToolShelf().add("t:a").add("t:b"),
        contract=TaskContract(tool_policy=policy),
        emitter=Exiting(),
    )

    result = asyncio.run(stage.play(TWO))

    assert result.stop is not None
    assert result.stop.code == "EMITTER_FAILED"


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("where", ["t:a", "preflight", "model"])
def test_ctrl_c_goes_through_and_leaves_a_run_that_can_be_taken_up(
    where: str, waits: bool, tmp_path: Any
) -> None:
    """The log has the end of the drive and verifies; every call has one result in the end."""
    store = MemoryRunStore(SEAL)
    with AuditLog(tmp_path / "log") as log:
        stage = Rehearsal(shelf=ToolShelf().add("t:a").add("t:b"), store=store, audit=log)
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(driven(stage, where, KeyboardInterrupt(), waits=waits))
        run_id = stage.run.id
        assert stage.run.held == {}

        # Of a response that was being judged, or carried out, none is asked for again.
        stage.prepare([TWO, reply()] if where == "model" else [reply()])
        last = asyncio.run(stage.resume(run_id))

    assert isinstance(last, Completed)
    assert_one_result_per_call(last.messages)
    assert last.ledger.reserved == {}
    assert all(times == 1 for times in stage.shelf.ran.values())
    assert verify_log(log.path).status == "chained"
