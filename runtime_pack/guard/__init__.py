"""The task guard: every turn and every call of a task is judged, reserved, recorded and settled.

The guard is in the runtime, never only in the loop: a direct caller of the guarded runtime is bound
by the same rules. `task_run` holds what a run shares, `judge` says what may run, `execution` runs
it, `turns` asks the model, `bounded` is how the host's code is awaited.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from runtime_pack.address_book import AddressReader
from runtime_pack.approvals import ApprovalRequest, Decision
from runtime_pack.audit.log import AuditLog
from runtime_pack.catalog import TURN_TOOL, Executed, ToolOutput, ToolSpec
from runtime_pack.errors import CallCode, ContractError
from runtime_pack.guard.bounded import Stopped
from runtime_pack.guard.clock import watched
from runtime_pack.guard.execution import NOT_BEGUN, Execution, exhausted
from runtime_pack.guard.judge import Judge
from runtime_pack.guard.outflow import Outflow
from runtime_pack.guard.task_run import TaskRun
from runtime_pack.guard.turns import Reserved, TurnResult, Turns
from runtime_pack.identity import RunIdentity
from runtime_pack.kill_switch import KillSwitch
from runtime_pack.ledger import TURNS, UNLIMITED, Ledger
from runtime_pack.machine import Admission, IngestedCall, Pending, Refused, ingest_call, refusal
from runtime_pack.messages import Json, ToolCall
from runtime_pack.policy import NO_CHECK, TaskContract
from runtime_pack.ports import (
    Approver,
    Chance,
    Clock,
    Emitter,
    ExecutionContext,
    Frame,
    InputGuard,
    OutputCheck,
    Scanner,
    Summariser,
    ToolRuntime,
    TurnRequest,
    is_addressing,
    is_listed,
    is_naming,
    is_own_list,
    is_preflight,
    is_releasable,
    is_result_limited,
    knows_every_tool,
    require_method,
)
from runtime_pack.prices import PriceTable
from runtime_pack.remembered import RememberedRule
from runtime_pack.seal import Seal

__all__ = ("AgentTaskRun", "GuardedRuntime", "TurnResult", "create_agent_task_run")


# It keeps nothing between two numbers, but it is large: one is enough.
_CHANCE: Final = secrets.SystemRandom().random


def create_agent_task_run(
    contract: TaskContract,
    *,
    task: str = "",
    run_id: str | None = None,
    approver: Approver | None = None,
    emitter: Emitter | None = None,
    audit: AuditLog | None = None,
    clock: Clock | None = None,
    frame: Frame | None = None,
    seal: Seal | None = None,
    chance: Chance | None = None,
    summariser: Summariser | None = None,
    input_guards: Iterable[InputGuard] = (),
    output_check: OutputCheck | None = None,
    kill_switch: KillSwitch | None = None,
    prices: PriceTable | None = None,
    ledger: Ledger | None = None,
    remembered: Iterable[RememberedRule] = (),
    addresses: AddressReader | None = None,
    private_strings: Iterable[str] = (),
    canaries: Iterable[str] = (),
    identity: RunIdentity | None = None,
    scanner: Scanner | None = None,
) -> AgentTaskRun:
    """A run of one task under *contract*; wrap the tools with its `guard_runtime`.

    Args:
        contract: what the task may spend and what needs a person.
        task: the task's name in events.
        clock: the machine's clocks when absent.
        run_id: letters, digits, `-` and `_`, at most 64; random when absent.
        approver: decides pending requests while the run is alive; without one the run suspends.
        emitter: receives denials of policy; raising stops the action.
        audit: the log that every decision goes to before it takes effect.
        frame: fences texts from outside that are not fenced yet; `runtime_pack.framing.fence_frame`
            when absent.
        seal: authenticates saved states; a random one seals for this process only.
        input_guards: see what users said before the model does, one after the other.
        output_check: judges an answer before the run counts as completed; the contract says what an
            answer that fails leads to, and the two need each other.
        summariser: sums up what is too long for the model; without one the run stops there.
        chance: spreads the waits before a model is asked again; random when absent.
        kill_switch: stops this run, and every other that it was given to, once it is thrown.
        prices: what turns and calls cost. With it money is counted, limited or not, and a model that
            it lacks stops the run.
        ledger: that of a sub-run, made by `carve`; its limits hold and those of the contract do not.
        remembered: approvals of earlier runs of the task, as their `remembered` had them at the end;
            one that the key of this run's store did not seal is worth nothing.
        addresses: reads the addresses that tools are given; a web runtime brings its own. Without
            one no address is known, so each is one that the model composed.
        private_strings: texts of at least 8 letters and digits that must not leave, in no writing.
            They are not in saved runs: give them again when the run is taken up.
        canaries: the same for texts that nobody has a reason to send. One in a text from outside is
            a signal.
        identity: whose run it is, for its events; a run that is taken up keeps its own without one.
        scanner: looks through outputs from outside; what it finds is a signal, and never a gate.

    Raises:
        ContractError: the contract or the id is not valid, something remembered is no rule, the
            clock cannot be used, there is a budget of money without a table, a private string is too
            short to be looked for, or an output check without a word of the contract on it, or the
            other way round.
    """
    _check_contract(contract, prices)
    _check_output_check(contract, output_check)
    _check_ports(approver, emitter, summariser)
    if scanner is not None:
        require_method("scanner", scanner, "scan")
    if seal is not None and not isinstance(seal, Seal):
        raise ContractError("seal", "must be a Seal: give Seal(key)")
    run = AgentTaskRun(
        contract=contract,
        task=task,
        run_id=run_id,
        approver=approver,
        emitter=emitter,
        audit=audit,
        clock=watched(clock),
        frame=frame,
        seal=seal or Seal.random(),
        summariser=summariser,
        input_guards=tuple(input_guards),
        output_check=output_check,
        chance=chance or _CHANCE,
        kill_switch=kill_switch,
        prices=prices,
        ledger=ledger,
        flow=Outflow(
            contract.preset, addresses, private_strings=private_strings, canaries=canaries
        ),
        scanner=scanner,
    )
    for rule in remembered:
        if not isinstance(rule, RememberedRule):
            raise ContractError("remembered", "holds something that is not a RememberedRule")
        run.memory.keep(rule)
    if kill_switch is not None:
        kill_switch.register(run)
    run.identify(identity)
    return run


def _check_ports(
    approver: Approver | None, emitter: Emitter | None, summariser: Summariser | None
) -> None:
    ports = (
        ("approver", approver, "decide"),
        ("emitter", emitter, "emit"),
        ("summariser", summariser, "summarise"),
    )
    for path, port, method in ports:
        if port is not None:
            require_method(path, port, method)


def _check_contract(contract: object, prices: object) -> None:
    if not isinstance(contract, TaskContract):
        raise ContractError("contract", "must be a TaskContract")
    if prices is not None and not isinstance(prices, PriceTable):
        raise ContractError("prices", "must be a PriceTable")
    if prices is None and contract.max_cost is not None:
        raise ContractError("prices", "a budget of money needs a price table")


def _check_output_check(contract: TaskContract, check: OutputCheck | None) -> None:
    """A contract that wants answers checked is not run without a check, nor a check for nothing."""
    wanted = contract.output_check != NO_CHECK
    if wanted and not callable(check):
        raise ContractError("output_check", "the contract wants answers checked: give the check")
    if check is not None and not wanted:
        text = "the contract says nothing of it: TaskContract(output_check='again' or 'end')"
        raise ContractError("output_check", text)


class AgentTaskRun(TaskRun):
    """One run of one task: its ledger, records, label and log; made by `create_agent_task_run`."""

    __slots__ = ()

    @property
    def remembered(self) -> tuple[RememberedRule, ...]:
        """The approvals that hold for later calls, as often as they were used so far."""
        return self.memory.rules

    def guard_runtime(self, runtime: ToolRuntime) -> GuardedRuntime:
        """The runtime under this run's guard. Guarding it twice is refused.

        Raises:
            ContractError: the runtime is guarded already, so every step would count twice.
            PriceUnknown: money is counted, and the runtime's model has no price.
            AllowlistError: an entry of the contract's lists is malformed; the runtime that reads
                them says so.
        """
        if isinstance(runtime, GuardedRuntime):
            raise ContractError("runtime", "is guarded already")
        if isinstance(runtime, TaskRun):
            raise ContractError("runtime", "is the task run: give the runtime that it is to guard")
        require_method("runtime", runtime, "execute_tool")
        return GuardedRuntime(self, runtime)


def _max_batch(contract: TaskContract, inner: ToolRuntime) -> float:
    """How many calls of one response are judged: of the contract's number and the port's, the lower.

    Raises:
        ContractError: the port's number is not one.
    """
    most = math.inf if contract.max_batch == UNLIMITED else contract.max_batch
    declared = inner.max_results if is_result_limited(inner) else None
    if declared is None:
        return most
    if type(declared) is not int or declared < 1:
        raise ContractError("max_results", f"{declared!r} is not a number of results from 1")
    return min(most, declared)


class GuardedRuntime:
    """A runtime under a task guard. Made by `AgentTaskRun.guard_runtime`."""

    __slots__ = ("_model_name", "execution", "inner", "judge", "max_batch", "task_run", "turns")

    def __init__(self, task_run: AgentTaskRun, inner: ToolRuntime) -> None:
        self.task_run = task_run
        self.inner = inner
        if is_listed(inner):
            inner.check_allowlists(task_run.allowlists)
            for listed in task_run.sub_lists:
                inner.check_allowlists((listed,))
        if is_own_list(inner) and inner.run_list not in task_run.run_lists:
            task_run.run_lists = (*task_run.run_lists, inner.run_list)
        if is_addressing(inner):
            task_run.flow.reader = inner.address_reader
        self.max_batch = _max_batch(task_run.contract, inner)
        self._model_name = inner.model_name if is_naming(inner) else None
        self.check_price(self._model_name)
        # The loop's doors; see the classes for what they do and raise.
        self.judge = Judge(task_run, inner)
        self.execution = Execution(task_run, inner)
        self.turns = Turns(task_run, inner, self._model_name)
        task_run.aside = self.turns.aside

    def check_price(self, model: str | None) -> None:
        """Say before a run starts that its model has no price. None: the name is not known yet.

        Raises:
            PriceUnknown: money is counted, and the model is not in the table.
        """
        meter = self.task_run.meter
        if meter is not None and model is not None:
            meter.price(model)

    def rewrap(self, wrap: Callable[[ToolRuntime], ToolRuntime]) -> GuardedRuntime:
        """The same guard around `wrap(inner)`: what is added later is still inside the guard."""
        return GuardedRuntime(self.task_run, wrap(self.inner))

    async def release(self) -> None:
        """Let go of connections and processes that the inner runtime holds between drives."""
        if is_releasable(self.inner):
            await self.inner.release()

    def tool_spec(self, name: str) -> ToolSpec | None:
        """The spec of a tool of the inner runtime, if it knows its tools."""
        inner = self.inner
        return inner.tool_spec(name) if is_preflight(inner) else None

    def has_tool(self, name: str) -> bool:
        """Whether the inner runtime has a tool: no only when it is sure; see `knows_every_tool`."""
        inner = self.inner
        if not is_preflight(inner) or inner.tool_spec(name) is not None:
            return True
        return not knows_every_tool(self.inner)

    @property
    def may_wrap_up(self) -> bool:
        """Whether the run has a wrap-up turn: with a single turn there is none."""
        limit = self.task_run.ledger.limit(TURNS)
        return self.task_run.contract.wrap_up and (limit == UNLIMITED or limit > 1)

    # ── callers that are not the loop ─────────────────────────────────────────────────────────

    async def execute_tool(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput:
        """Judge, run and record one call, for a caller that is not the loop.

        The same rules hold: time, budgets, policy and approval. A call that needs a person gets
        its decision from the approver here, or is refused: a direct call cannot be suspended.

        Raises:
            AuditError: the log could not take a record; nothing ran that it would have covered.
            EmitterError: the host's emitter raised.
        """
        run = self.task_run
        if run.is_interrupted():
            return NOT_BEGUN
        with run.direct():
            if name == TURN_TOOL:
                return await self._turn_as_tool(context)
            return await self._call_as_tool(name, arguments, context)

    async def _call_as_tool(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> ToolOutput:
        run = self.task_run
        if run.over_refused():
            text = "More calls were refused than this task allows."
            return refusal(CallCode.BUDGET_EXHAUSTED, text, details={"budget": "refused"})
        asked = ToolCall(id=context.call_id or "direct", name=name, arguments=arguments)
        call = ingest_call(asked, step=run.next_direct_step(), taken={})
        spec = self.tool_spec(call.call.name)
        offered = {} if spec is None else {spec.name: spec}
        try:
            admission = await self.judge.admit(call, offered, context)
            while isinstance(admission, Pending):
                admission = await self._ask_now(call, admission.request, offered, context)
            if isinstance(admission, Refused):
                return admission.output
            admitted = admission.call or call.call
            return await self.execution.run(call.step, admitted, offered[admitted.name], context)
        except Stopped as stop:
            return _stopped_output(stop)
        finally:
            run.drop(call.step)

    async def _ask_now(
        self,
        call: IngestedCall,
        request: ApprovalRequest,
        offered: Mapping[str, ToolSpec],
        context: ExecutionContext,
    ) -> Admission:
        decision: Decision | None = await self.judge.decide(request)
        if decision is not None:
            return await self.judge.rule(call.step, call.call, request, decision, offered, context)
        text = "This call needs a person, and none is here."
        return await self.judge.refuse(call, refusal(CallCode.APPROVAL_REQUIRED, text))

    async def take_turn(
        self, request: TurnRequest, context: ExecutionContext, *, closing: bool = False
    ) -> TurnResult:
        """Reserve, take, settle and record one model turn. `closing` is the wrap-up.

        Raises:
            AuditError: the log could not take a record; the model was not asked.
            EmitterError: the host's emitter raised.
        """
        with self.task_run.direct():
            reserved = self.turns.reserve(request, closing=closing)
            if not isinstance(reserved, Reserved):
                return reserved
            return await self.turns.ask(reserved, request, context)

    async def _turn_as_tool(self, context: ExecutionContext) -> ToolOutput:
        if context.request is None:
            return refusal(CallCode.INVALID_ARGUMENTS, "A model turn needs context.request.")
        result = await self.take_turn(context.request, context)
        if result.turn is not None:
            return ToolOutput(ok=True, text=result.turn.text, turn=result.turn, framed=True)
        stop = None if result.lost is None else result.lost.stop
        if stop is None:
            return refusal(CallCode.TOOL_ERROR, "The turn failed.", executed=Executed.UNKNOWN)
        if stop.shortfall is not None:
            return exhausted(stop.shortfall)
        return refusal(str(stop.code), stop.message, executed=Executed.UNKNOWN)


def _stopped_output(stopped: Stopped) -> ToolOutput:
    """What a direct caller is told of a call that was being judged when the run stopped."""
    if stopped.refused is not None:
        return stopped.refused.output
    stop = stopped.outcome.stop
    short = None if stop is None else stop.shortfall
    return NOT_BEGUN if short is None else exhausted(short)
