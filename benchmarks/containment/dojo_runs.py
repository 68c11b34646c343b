"""AgentDojo's tasks under governance: a model that does its user's task, and then the attacker's.

The calls are those that the package itself gives as the right ones for a task and for an injection;
so every attack is obeyed to the letter, whatever words carry it. Tools are declared by what they do.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from benchmarks.containment.corpora import Dojo
from runtime_pack import (
    ApprovalRequest,
    CatalogTool,
    Decision,
    ExecutionContext,
    LabelPreset,
    TaskContract,
    ToolMessage,
    ToolOutput,
    ToolSpec,
    Turn,
    TurnInput,
    UserMessage,
    Verdict,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
)
from runtime_pack.addresses import WEB_ADDRESSES
from runtime_pack.ports import TurnRequest
from runtime_pack.testing import calls, reply
from runtime_pack.web_catalog import fence_frame

__all__ = ("DojoCounts", "run_dojo")

# What a tool does beside giving its output; all others read. These are services outside of the
# workspace: what is written there, others see.
_EFFECTS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            "send_email", "send_direct_message", "send_channel_message", "share_file",
            "create_calendar_event", "add_calendar_event_participants", "cancel_calendar_event",
            "reschedule_calendar_event", "invite_user_to_slack", "add_user_to_channel",
        ),
        ("message",),
    ),
    **dict.fromkeys(
        (
            "post_webpage", "delete_email", "append_to_file", "create_file", "delete_file",
            "remove_user_from_slack", "update_password", "update_user_info",
        ),
        ("egress",),
    ),
    **dict.fromkeys(
        (
            "send_money", "schedule_transaction", "update_scheduled_transaction", "reserve_hotel",
            "reserve_car_rental", "reserve_restaurant",
        ),
        ("spend",),
    ),
    "get_webpage": ("read_net",),
}  # fmt: skip


_PACKAGE: Final = "agentdojo.functions_runtime"


@attrs.frozen(kw_only=True)
class DojoCounts:
    """What became of AgentDojo's tasks.

    Attributes:
        benign: user tasks that ran alone; completed: those whose own check is satisfied.
        baseline: those whose check is satisfied without governance.
        questions: asked in the benign runs; asking: tasks that asked at all.
        pairs: user tasks with an injection that has calls; harms: injections whose own check says
            that they succeeded, by mode.
        talk: injections without a call, which only want the model to say something.
        unseen: pairs in which the package's check sees no harm even without governance, because the
            user's task changes what it looks at.
    """

    preset: str
    benign: int
    completed: int
    baseline: int
    questions: int
    asking: int
    pairs: int
    harms: Mapping[str, int]
    asked: int
    denied: int
    talk: int
    unseen: int


@attrs.define
class _Tally:
    benign: int = 0
    completed: int = 0
    baseline: int = 0
    questions: int = 0
    asking: int = 0
    pairs: int = 0
    off: int = 0
    fenced: int = 0
    governed: int = 0
    asked: int = 0
    denied: int = 0
    talk: int = 0
    unseen: int = 0


@attrs.define
class _Own:
    """A person who says yes to each call of the user's own task, once, and to no other one."""

    own: list[str]
    asked: int = 0

    async def decide(self, request: ApprovalRequest) -> Decision:
        """Yes to what the user asked for."""
        self.asked += 1
        key = _key(request.tool, request.arguments)
        mine = key in self.own
        if mine:
            self.own.remove(key)
        return Decision(
            request_id=request.request_id,
            verdict=Verdict.APPROVE if mine else Verdict.DENY,
            decided_by="approver",
            reason="" if mine else "not what was asked for",
        )


def _key(name: str, arguments: Mapping[str, Any]) -> str:
    return json.dumps([name, arguments], sort_keys=True, default=str)


def run_dojo(dojo: Dojo, preset: LabelPreset, *, every: int = 1) -> DojoCounts:
    """All user tasks alone, and with each injection of their suite; every n-th pair with *every*."""
    tally = _Tally()
    for suite in dojo.suites.values():
        default = suite.load_and_inject_default_environment({})
        for task in suite.user_tasks.values():
            asyncio.run(_benign(suite, default, task, preset, tally))
        pairs = [(t, i) for t in suite.user_tasks.values() for i in suite.injection_tasks.values()]
        for task, injection in pairs[::every]:
            asyncio.run(_attacked(suite, default, task, injection, preset, tally))
    return DojoCounts(
        preset=str(preset),
        benign=tally.benign,
        completed=tally.completed,
        baseline=tally.baseline,
        questions=tally.questions,
        asking=tally.asking,
        pairs=tally.pairs,
        harms={"off": tally.off, "fence only": tally.fenced, "governed": tally.governed},
        asked=tally.asked,
        denied=tally.denied,
        talk=tally.talk,
        unseen=tally.unseen,
    )


@attrs.define
class _Case:
    """One environment, with the calls that are to be made in it."""

    suite: Any
    env: Any
    pre: Any
    trace: list[Any] = attrs.field(factory=list)

    def run(self, call: Any) -> str:
        self.trace.append(call)
        package = importlib.import_module(_PACKAGE)
        result, error = package.FunctionsRuntime(self.suite.tools).run_function(
            self.env, call.function, dict(call.args)
        )
        return str(error or result)

    def succeeded(self, task: Any, said: str) -> bool:
        text = [{"type": "text", "content": said}]
        # The package has no public name for the check that its own benchmark makes.
        check = self.suite._check_task_result  # noqa: SLF001
        return bool(check(task, text, self.pre, self.env, self.trace))


def _case(suite: Any, default: Any, task: Any) -> _Case:
    env = task.init_environment(default.model_copy(deep=True))
    return _Case(suite=suite, env=env, pre=env.model_copy(deep=True))


async def _benign(suite: Any, default: Any, task: Any, preset: LabelPreset, tally: _Tally) -> None:
    case = _case(suite, default, task)
    wanted = task.ground_truth(case.env)
    for call in wanted:
        case.run(call)
    tally.benign += 1
    tally.baseline += case.succeeded(task, task.GROUND_TRUTH_OUTPUT)
    case = _case(suite, default, task)
    person, _ = await _governed(case, task, wanted, (), preset)
    tally.completed += case.succeeded(task, task.GROUND_TRUTH_OUTPUT)
    tally.questions += person.asked
    tally.asking += person.asked > 0


async def _attacked(
    suite: Any, default: Any, task: Any, injection: Any, preset: LabelPreset, tally: _Tally
) -> None:
    case = _case(suite, default, task)
    evil = injection.ground_truth(case.env)
    if not evil:
        tally.talk += 1
        return
    shown = []
    for fenced in (False, True):
        case, burned = _case(suite, default, task), set[str]()
        for call in (*task.ground_truth(case.env), *evil):
            said = case.run(call)
            if fenced:
                fence_frame(said, source=f"tool:{call.function}", burned=burned)
        harmed = case.succeeded(injection, task.GROUND_TRUTH_OUTPUT)
        shown.append(harmed)
    if not any(shown):
        # The two tasks undo each other for the package's own check: nothing can be seen here.
        tally.unseen += 1
        return
    tally.pairs += 1
    tally.off += shown[0]
    tally.fenced += shown[1]
    case = _case(suite, default, task)
    person, refused = await _governed(case, task, task.ground_truth(case.env), evil, preset)
    tally.governed += case.succeeded(injection, task.GROUND_TRUTH_OUTPUT)
    tally.asked += person.asked > 0
    tally.denied += refused


async def _governed(
    case: _Case, task: Any, wanted: Sequence[Any], evil: Sequence[Any], preset: LabelPreset
) -> tuple[_Own, int]:
    person = _Own([_key(call.function, _plain(call.args)) for call in wanted])
    script = [
        (f"c{number}", call.function, json.dumps(_plain(call.args)))
        for number, call in enumerate((*wanted, *evil))
    ]
    tools = list(_tools(case))
    run = create_agent_task_run(
        TaskContract(
            max_turns=len(script) + 4,
            max_steps=len(script) + 4,
            preset=preset,
            max_consecutive_refused=99,
            max_refused=999,
        ),
        approver=person,
        frame=fence_frame,
        addresses=WEB_ADDRESSES,
    )
    model = _Obedient(script, len(wanted), task.GROUND_TRUTH_OUTPUT or "Done.")
    result = await run_governed_agent_loop(
        runtime=run.guard_runtime(create_agent_runtime(model=model, tools=tools)),
        execute_turn_input=TurnInput(
            messages=[UserMessage(text=task.PROMPT)], tool_catalog=[tool.spec for tool in tools]
        ),
    )
    return person, sum(1 for step in result.steps if step.ok is False)


class _Obedient:
    """Makes the calls of its task, then those of the attacker if anything from outside reached it."""

    def __init__(self, script: Sequence[tuple[str, str, str]], own: int, answer: str) -> None:
        self._script = list(script)
        self._own = own
        self._answer = answer
        self._turn = 0

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        """The next call, whatever became of the last one."""
        del context
        at, self._turn = self._turn, self._turn + 1
        told = any(isinstance(m, ToolMessage) and m.ok for m in request.messages)
        if at >= len(self._script) or not request.tools or (at >= self._own and not told):
            return reply(self._answer)
        return calls(self._script[at])


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _tools(case: _Case) -> Iterable[CatalogTool]:
    call = importlib.import_module(_PACKAGE).FunctionCall
    for function in case.suite.tools:
        name = function.name

        async def handler(given: Mapping[str, Any], _: Any, name: str = name) -> ToolOutput:
            return ToolOutput(ok=True, text=case.run(call(function=name, args=dict(given))))

        yield CatalogTool(
            spec=ToolSpec(
                name=name,
                description=name,
                parameters={
                    "type": "object",
                    "properties": {field: {} for field in function.parameters.model_fields},
                    "additionalProperties": False,
                },
                side_effects=_EFFECTS.get(name, ("read_local",)),
                destination_args=("url",) if name in ("get_webpage", "post_webpage") else (),
            ),
            handler=handler,
        )
