"""What all runtimes of one run share: ledger, records, label, log, and the way to stop it.

A step is *held* from its admission until it has run or is dropped: a call that is not held and
ready cannot run, and what runs are the arguments that were held.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
from collections.abc import Awaitable, Coroutine, Generator, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, Self, TypeVar

import attrs

from runtime_pack.approvals import Decision
from runtime_pack.audit.log import AuditLog
from runtime_pack.audit.verify import LogHead
from runtime_pack.catalog import ToolSpec
from runtime_pack.errors import ContractError, StopCode
from runtime_pack.events import Entry, Event, EventType
from runtime_pack.fault_log import log_fault
from runtime_pack.flow import BrokenRule
from runtime_pack.guard.clock import ClockFault, WatchedClock
from runtime_pack.guard.leftovers import Leftovers
from runtime_pack.guard.meter import Meter
from runtime_pack.guard.observer import Observer
from runtime_pack.guard.outflow import Outflow
from runtime_pack.guard.sub_runs import SubRun
from runtime_pack.identity import RunIdentity
from runtime_pack.inner import NOTHING, frozen, inner, without
from runtime_pack.kill_switch import KillSwitch
from runtime_pack.labels import CLEAN, Confidentiality, Integrity, Label, join
from runtime_pack.ledger import (
    COST,
    STEPS,
    TOKENS,
    UNLIMITED,
    Ledger,
    LedgerView,
    Shortfall,
    parse_count,
    step_buckets,
)
from runtime_pack.ledger_limits import moment_of
from runtime_pack.machine import Outcome, OutcomeKind, failure
from runtime_pack.messages import Json, clean_text
from runtime_pack.policy import TaskContract
from runtime_pack.ports import (
    Approver,
    Aside,
    Chance,
    Clock,
    Emitter,
    ExecutionContext,
    Frame,
    InputGuard,
    OutputCheck,
    Scanner,
    Summariser,
    fence_by_default,
)
from runtime_pack.prices import PriceTable
from runtime_pack.records import StepRecord, label_raised, log_word, signals_seen
from runtime_pack.remembered import Memory, RememberedRule
from runtime_pack.repeats import Repeats, Seen
from runtime_pack.seal import Seal
from runtime_pack.signals import RunSignal

__all__ = (
    "GRACE_SECONDS",
    "Held",
    "HostExit",
    "Mark",
    "Scope",
    "TaskRun",
    "Told",
    "awaited",
    "checked_id",
)

_HELD: Final = Label(integrity=Integrity.USER, confidentiality=Confidentiality.SECRET)
"""What a text adds to a run that holds some of what was declared private, whoever wrote it."""
_MODES: Final = ("now", "after_step")
_SHORTEST_ALARM_SECONDS: Final = 0.01
_LOGGER: Final = logging.getLogger(__name__)

_T = TypeVar("_T")
_E = TypeVar("_E", Event, Entry, Event | Entry)

GRACE_SECONDS: Final = 1.0
"""How long code that was told to stop may take before the run goes on without it."""


@inner(kw_only=True)
class Held:
    """A reserved step: the tool and the arguments, as JSON text, that it was reserved for.

    `ready` is False while a person is asked. `context` is what the call was judged with, and `given`
    the arguments that were judged. `begun` is how often an earlier drive had started it: then it is
    never given back.
    """

    tool: str
    arguments: bytes
    args_sha256: str
    ready: bool
    context: ExecutionContext | None = None
    begun: int = 0
    given: Mapping[str, Json] | None = None


@frozen(kw_only=True)
class Told:
    """How often the host was told of a held call, and a digest of what it was told last."""

    times: int
    said: str

    def to_json(self) -> dict[str, Json]:
        """For saved runs: a call that waits in a queue may be taken up by another drive."""
        return {"times": self.times, "said": self.said}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Self:
        """Read the stored form.

        Raises:
            KeyError, ValueError: not of that form.
        """
        times = value["times"]
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise ValueError("times is a count")
        return cls(times=times, said=str(value["said"]))


@inner(kw_only=True)
class Mark:
    """What a run knew before a response was judged: to go back to, when that was stopped."""

    steps: int
    seen: tuple[Seen, ...]
    rules: tuple[RememberedRule, ...]


class HostExit(Exception):
    """The host's code raised `SystemExit`: a failure of that code, and not the end of the process."""


class Scope:
    """A task of the host's code that can be stopped: it is cancelled, once, and then left behind.

    `over` is there when the task has to be waited for; it is done when the task has ended or, after
    a grace, would not. One timer serves all scopes of a run. An *idle* one waits for somebody and
    does no work, so that nothing is lost with it.
    """

    __slots__ = (
        "_handle",
        "_loop",
        "_patient",
        "_task",
        "_work",
        "deadline",
        "idle",
        "over",
        "stopped",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, patient: bool = False, idle: bool = False
    ) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._work: Coroutine[Any, Any, Any] | None = None
        self._patient = patient
        self.idle = idle
        self._loop = loop
        self._handle: asyncio.Handle | None = None
        self.over: asyncio.Future[None] | None = None
        self.deadline = math.inf
        self.stopped = False

    def take(self, task: asyncio.Task[Any], work: Coroutine[Any, Any, Any]) -> None:
        """The task of `to_its_end(work)`, after its first step: unless it is done, it is waited for."""
        self._work, self._task = work, task
        if not task.done():
            self.over = self._loop.create_future()
            task.add_done_callback(self._ended)

    async def to_its_end(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wake who waits in the same turn of the event loop in which the work ends."""
        try:
            return await work
        except SystemExit as error:
            # It would end the event loop, and with it runs of others.
            raise HostExit from error
        except KeyboardInterrupt:
            if self._task is None:
                # The first step is taken inside its caller; what ends the process ends the loop.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
            raise
        finally:
            if self.over is not None:
                self._end()

    def _ended(self, _task: object) -> None:
        """The task has ended; one that was cancelled before its first step has not begun the work."""
        if self._work is not None:
            # Else it would be said of it, at some time, that nobody awaited it.
            self._work.close()
        self._end()

    def _end(self) -> None:
        if self.over is not None and not self.over.done():
            self.over.set_result(None)

    def stop(self) -> None:
        """Cancel the task at its present await; called by the event loop."""
        task = self._task
        if self.stopped or task is None or task.done():
            return
        if self._patient:
            self._patient = False
            self._handle = self._loop.call_later(GRACE_SECONDS, self.stop)
            return
        self.stopped = True
        task.cancel()
        self._handle = self._loop.call_later(GRACE_SECONDS, self._end)

    def stop_soon(self) -> None:
        """Stop when the event loop has its turn: code that ends before is not stopped."""
        if self._handle is None:
            self._handle = self._loop.call_soon(self.stop)

    def leave(self) -> None:
        """Nobody waits for the task any more."""
        if self._handle is not None:
            self._handle.cancel()


async def awaited(work: Awaitable[_T]) -> _T:
    """What can be awaited, as a coroutine."""
    return await work


class TaskRun:
    """The state of one run. Use it from the event loop that drives the run.

    `cancel` and `pause` may be called from any thread; nothing else may.
    """

    __slots__ = (
        "__weakref__",
        "_abandoned",
        "_alarm",
        "_alarm_at",
        "_direct",
        "_direct_open",
        "_direct_prefix",
        "_driven",
        "_loop",
        "_refused_follows",
        "_refused_limit",
        "_scopes",
        "allowlists",
        "approver",
        "aside",
        "asked_under",
        "asks_on",
        "audit",
        "brought",
        "chance",
        "clock",
        "contract",
        "depth",
        "emitter",
        "flow",
        "frame",
        "granted_steps",
        "held",
        "id",
        "identity",
        "input_guards",
        "interrupt",
        "interrupt_now",
        "interrupt_resumable",
        "kill_switch",
        "label",
        "ledger",
        "left",
        "memory",
        "meter",
        "observer",
        "output_check",
        "parent",
        "policy",
        "policy_sha256",
        "prices",
        "refused_in_a_row",
        "repeats",
        "run_lists",
        "scanner",
        "seal",
        "step_costs",
        "steps",
        "stops",
        "sub_lists",
        "sub_runs",
        "summariser",
        "task",
        "told",
        "turn",
    )

    def __init__(
        self,
        *,
        contract: TaskContract,
        task: str,
        run_id: str | None,
        approver: Approver | None,
        emitter: Emitter | None,
        audit: AuditLog | None,
        clock: Clock,
        frame: Frame | None,
        seal: Seal,
        kill_switch: KillSwitch | None,
        chance: Chance,
        summariser: Summariser | None = None,
        input_guards: tuple[InputGuard, ...] = (),
        output_check: OutputCheck | None = None,
        prices: PriceTable | None = None,
        ledger: Ledger | None = None,
        flow: Outflow | None = None,
        scanner: Scanner | None = None,
    ) -> None:
        self.contract = contract
        self.task = clean_text(task)
        self.id = f"run-{secrets.token_hex(8)}" if run_id is None else checked_id(run_id)
        self.approver = approver
        self.emitter = emitter
        self.audit = audit
        self.clock = clock
        if isinstance(clock, WatchedClock):
            clock.on_fault = self.clock_failed
        self.frame: Frame = fence_by_default if frame is None else frame
        self.seal = seal
        self.kill_switch = kill_switch
        self.chance = chance
        self.summariser = summariser
        self.input_guards, self.output_check = input_guards, output_check
        self.ledger = Ledger(contract.limits()) if ledger is None else ledger
        self.prices = prices
        self.meter: Meter | None = None
        self.step_costs: Mapping[str, int] = NOTHING
        self.measure()
        self.flow = Outflow(contract.preset) if flow is None else flow
        self.scanner = scanner
        # How a tool asks the model something; set by the runtime that takes the run's turns.
        self.aside: Aside | None = None
        self._begin_records()
        self._hold_to(contract)
        self._stand_alone()
        self._stand_still()

    def _hold_to(self, contract: TaskContract) -> None:
        """What the contract says beside its budgets: refused calls, lists, the policy."""
        self._refused_limit = contract.refused_limit
        # Twice the steps, those that are granted later included, unless a number was named.
        self._refused_follows = contract.max_refused is None
        self.granted_steps = 0
        self.refused_in_a_row = contract.max_consecutive_refused
        self.allowlists = contract.allowlists
        # The lists of the runtimes under this run's guard: sub-runs are held to them.
        self.run_lists: tuple[tuple[str, ...], ...] = ()
        self.sub_lists: tuple[tuple[str, tuple[str, ...]], ...] = ()
        self.policy_sha256 = contract.policy_sha256
        # Those of the runs above count as well.
        self.asks_on = contract.ask_on_signals
        self.policy = None if contract.policy is None else contract.policy.to_json()

    def _begin_records(self) -> None:
        """What a run knows of what has happened in it: nothing yet."""
        self.steps: list[StepRecord] = []
        # What the context holds, and what it held when the model was asked last.
        self.label = self.asked_under = CLEAN
        self.turn = 0
        self.held: dict[str, Held] = {}
        # Of the held steps, those that the host was told of.
        self.told: Mapping[str, Told] = NOTHING
        self.observer: Observer | None = None
        self.identity: RunIdentity | None = None
        self.repeats, self.memory = Repeats(), Memory()

    def _stand_alone(self) -> None:
        """A part of no other run, with no run below it."""
        # How many runs stand above this one and the id of the next, its sub-runs that are open by the step that each is,
        # and what was decided about their requests.
        self.depth = 0
        self.parent: str | None = None
        self.sub_runs: Mapping[str, SubRun] = NOTHING
        self.brought: Mapping[str, Decision] = NOTHING

    def _stand_still(self) -> None:
        """Not driven by anybody, and not stopped."""
        self.interrupt: Outcome | None = None
        self.interrupt_resumable = False
        self.interrupt_now = False
        # How often it was told to stop.
        self.stops = 0
        self.left = Leftovers()
        # Few at a time; a set is larger than most of what a run holds.
        self._scopes: list[Scope] = []
        self._abandoned: set[asyncio.Task[Any]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._driven = False
        # How many direct calls there were, and how many are in flight.
        self._direct = self._direct_open = 0
        self._direct_prefix = ""

    def take_label(self, label: Label, step: str = "") -> None:
        """The context holds something with this label from now on; a rise is on record.

        Raises:
            AuditError: the log could not take it.
        """
        before = self.label
        after = join(before, label)
        if after is before:
            return
        self.label = after
        # Before the first turn it is what the run was started with.
        if after != before and self.turn:
            self.enter_in_log(label_raised(self.subject(step), before, after, self.turn))

    def heed(self, texts: Iterable[str], step: str = "") -> None:
        """Texts are in the context from now on: what was declared private in one makes it secret.

        Raises:
            AuditError: the log could not take the rise.
        """
        secret = self.label.confidentiality is Confidentiality.SECRET
        if not secret and self.flow.holds_declared(texts):
            self.take_label(_HELD, step)

    @property
    def watches(self) -> bool:
        """Whether outputs are looked through for signals, beside what their fences tell."""
        return bool(self.asks_on or self.scanner is not None or self.flow.canaries is not None)

    def notice(self, signals: frozenset[RunSignal], step: str, tool: str) -> None:
        """Something was noticed in the output of a call; what is new in the run is on record.

        Raises:
            AuditError: the log could not take it.
        """
        flow = self.flow
        fresh = signals - flow.signals
        if fresh:
            flow.signals |= fresh
            self.enter_in_log(signals_seen(self.subject(step), tool, fresh, flow.signals))

    @property
    def burned(self) -> set[str]:
        """The nonces that fences of this run have used."""
        return self.flow.burned

    def hop(self, before: str, url: str) -> tuple[BrokenRule, ...]:
        """The label rules against following a redirect; none when it may be followed."""
        return self.flow.hop(before, url, self.label)

    def measure(self) -> None:
        """Count tokens and money if there is a limit on them, or a price table.

        Called again when a saved run has brought its limits: they hold in a run without any.
        """
        money = self.prices is not None or self.ledger.limit(COST) != UNLIMITED
        if money or self.ledger.limit(TOKENS) != UNLIMITED:
            self.meter = Meter(self.ledger, self.prices, counts_money=money)

    @property
    def prices_sha256(self) -> str | None:
        """The digest of the price table, if money is counted by one."""
        return None if self.prices is None else self.prices.sha256

    @property
    def ends_at(self) -> datetime | None:
        """The run's last moment, if it has one."""
        ends = self.ledger.limits.expires_us
        return None if ends == UNLIMITED else moment_of(ends)

    def view(self) -> LedgerView:
        """The ledger at this instant."""
        return self.ledger.view(self.clock.monotonic())

    @property
    def head(self) -> LogHead | None:
        """The log's last line, or None without a log."""
        return None if self.audit is None else self.audit.head

    # ── stopping ──────────────────────────────────────────────────────────────────────────────

    def cancel(self, reason: str, mode: str = "now") -> None:
        """End the run: now (calls in flight are stopped) or after the step in hand.

        Raises:
            ValueError: the mode is not `now` or `after_step`.
        """
        outcome = failure("run", StopCode.CANCELLED, clean_text(reason))
        outcome = attrs.evolve(outcome, kind=OutcomeKind.CANCELLED)
        self._interrupt(outcome, resumable=False, mode=mode)

    def pause(self, reason: str, mode: str = "now") -> None:
        """Suspend the run where it stands; it can be resumed. A cancelled run stays cancelled.

        Raises:
            ValueError: the mode is not `now` or `after_step`.
        """
        outcome = failure("run", StopCode.PAUSED, clean_text(reason))
        outcome = attrs.evolve(outcome, kind=OutcomeKind.SUSPENDED)
        self._interrupt(outcome, resumable=True, mode=mode)

    def wait_for_people(self) -> None:
        """Suspend the run after the step in hand: a sub-run asks. A cancelled run stays cancelled."""
        self.suspend(Outcome(kind=OutcomeKind.APPROVAL_REQUIRED))

    def suspend(self, outcome: Outcome) -> None:
        """Stop after the step in hand, such that the run can be taken up. A cancelled run stays so."""
        self._interrupt(outcome, resumable=True, mode="after_step")

    def clock_failed(self, error: BaseException) -> None:
        """Stop: without time no limit of it holds. The run can be taken up with a clock that works."""
        log_fault("the clock", error, run=self.id)
        why = str(error) if isinstance(error, ClockFault) else f"failed ({type(error).__name__})"
        outcome = failure("clock", StopCode.CLOCK_FAILED, f"the clock: {why}", error)
        self._interrupt(outcome, resumable=True, mode="now")

    def _interrupt(self, outcome: Outcome, *, resumable: bool, mode: str) -> None:
        if mode not in _MODES:
            raise ValueError(f"{mode!r} is not a mode: now or after_step")
        loop = self._loop
        if loop is None or not loop.is_running() or loop is _running_loop():
            self._stop(outcome, resumable=resumable, mode=mode)
            return
        stop = partial(self._stop, outcome, resumable=resumable, mode=mode)
        try:
            # From another thread: the loop that drives the run does it, in its turn.
            loop.call_soon_threadsafe(stop)
        except RuntimeError:
            # It was closed meanwhile: nothing runs that could be disturbed.
            stop()

    def _stop(self, outcome: Outcome, *, resumable: bool, mode: str) -> None:
        if self.interrupt is not None and not self.interrupt_resumable:
            resumable, outcome = False, self.interrupt
        self.interrupt, self.interrupt_resumable = outcome, resumable
        if mode == "now":
            self.interrupt_now = True
        self.stops += 1
        for scope in self._scopes:
            if scope.idle or self.interrupt_now:
                scope.stop_soon()

    def is_interrupted(self) -> bool:
        """Whether `cancel` or `pause` was called, or the kill switch thrown, and the run still goes."""
        switch = self.kill_switch
        if switch is not None and (self.interrupt is None or self.interrupt_resumable):
            switch.heed(self)
        return self.interrupt is not None

    def pause_took_effect(self) -> None:
        """The run was suspended: it may be taken up again, even with this object."""
        if self.interrupt_resumable:
            self.interrupt, self.interrupt_resumable, self.interrupt_now = None, False, False

    def begin_activity(self) -> None:
        """The run's time starts to count; at its end, what is in flight is stopped."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # A timer of another event loop would never ring here, and hides the one that would.
            self._loop, self._alarm, self._alarm_at = loop, None, math.inf
            self._scopes.clear()
        self._see_the_end()
        self.ledger.begin(self.clock.monotonic())
        left = self.ledger.remaining_seconds(self.clock.monotonic())
        self._wake_by(asyncio.get_running_loop().time() + left)

    def _see_the_end(self) -> None:
        """Where the run's last moment lies on the clock that budgets are read from, as of now."""
        ends = self.ends_at
        if ends is not None:
            left = (ends - self.clock.now()).total_seconds()
            self.ledger.expire_at(self.clock.monotonic() + left)

    def end_activity(self) -> None:
        """The run's time stops to count, unless something else is active."""
        self.ledger.end(self.clock.monotonic())
        if self._alarm is not None and not self.ledger.is_active and not self._scopes:
            self._alarm.cancel()
            self._alarm, self._alarm_at = None, math.inf

    def _wake_by(self, when: float) -> None:
        """One timer for the run and all its scopes; it is set anew only for an earlier time."""
        if when >= self._alarm_at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = when
        self._alarm = asyncio.get_running_loop().call_at(when, self._ring)

    def _ring(self) -> None:
        loop_now, now = asyncio.get_running_loop().time(), self.clock.monotonic()
        self._alarm, self._alarm_at = None, math.inf
        spent = self.ledger.is_active and self.ledger.time_shortfall(now) is not None
        for scope in self._scopes:
            if spent or scope.deadline <= loop_now:
                scope.stop()
        later = [scope.deadline for scope in self._scopes if not scope.stopped]
        if self.ledger.is_active and not spent:
            # The run's clock may be slower than the event loop's: never ring without a pause.
            left = max(self.ledger.remaining_seconds(now), _SHORTEST_ALARM_SECONDS)
            later.append(loop_now + left)
        self._wake_by(min(later, default=math.inf))

    def watch(self, scope: Scope, stops: int) -> None:
        """Let `cancel`, `pause` and the run's end stop this scope; then `forget` it.

        *stops* are those that there were before its first step: one in that step stops it as well.
        """
        self._scopes.append(scope)
        if self.stops != stops and (scope.idle or self.interrupt_now):
            scope.stop_soon()

    def stop_at(self, scope: Scope, when: float) -> None:
        """Let the scope's own limit stop it as well, at that time of the event loop."""
        scope.deadline = when
        self._wake_by(when)

    def forget(self, scope: Scope) -> None:
        """The scope was left."""
        if scope in self._scopes:
            self._scopes.remove(scope)
        scope.leave()

    def abandon(self, task: asyncio.Task[Any]) -> None:
        """Nobody waits for the task; what it raises is not news, and one that goes on is."""
        if self._abandoned is None:
            self._abandoned = set()
        self._abandoned.add(task)
        task.add_done_callback(self._forget_task)
        if not task.done():
            _LOGGER.warning("run %s goes on without code that did not stop", self.id)

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        if self._abandoned is not None:
            self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()

    def enter(self) -> None:
        """One drive at a time.

        Raises:
            ContractError: the run is being driven already.
        """
        if self._driven:
            raise ContractError("runtime", "this run is being driven already")
        self._driven = True

    def leave(self) -> None:
        """The drive is over, and with it a pause that came too late to stop anything."""
        self._driven = False
        self.pause_took_effect()

    def is_fresh(self) -> bool:
        """Whether nothing has happened in this run yet."""
        return not (self.steps or self.held or self.turn or self._driven)

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    def hold(self, step: str, held: Held, spec: ToolSpec | None = None) -> Shortfall | None:
        """Reserve a step and what it costs, all or nothing, or say which budget does not allow it."""
        buckets = step_buckets(held.tool)
        if self.meter is None:
            short = self.ledger.reserve(*buckets)
        else:
            cost = 0 if spec is None else self.meter.call_cost(spec)
            amounts = dict.fromkeys(buckets, 1) | ({COST: cost} if cost else {})
            short = self.ledger.over() or self.ledger.reserve_amounts(amounts)
            if short is None and cost:
                self.step_costs = {**self.step_costs, step: cost}
        if short is None:
            self.held[step] = held
        return short

    def hold_cost(self, step: str, spec: ToolSpec) -> Shortfall | None:
        """Reserve what a held step costs, if that is not reserved: it is run once more."""
        if self.meter is None:
            return None
        short = self.ledger.over()
        cost = 0 if step in self.step_costs else self.meter.call_cost(spec)
        if short is None and cost:
            short = self.ledger.reserve_amounts({COST: cost})
            if short is None:
                self.step_costs = {**self.step_costs, step: cost}
        return short

    def reservation(self, step: str, tool: str) -> dict[str, int]:
        """What stands reserved for a held step, by bucket; money in micro-units."""
        amounts = dict.fromkeys(step_buckets(tool), 1)
        return amounts | ({COST: self.step_costs[step]} if step in self.step_costs else {})

    def reopen(self, step: str, tool: str) -> None:
        """A step of a saved run is open again, with what is reserved for it.

        Raises:
            ValueError: the ledger holds nothing of it.
        """
        self.ledger.reopen(*step_buckets(tool))
        if step in self.step_costs:
            self.ledger.reopen_amounts({COST: self.step_costs[step]})

    def settle(self, step: str, *, ran: bool = True) -> int:
        """The held step is over: what it cost, in micro-units. A tool that was not called is free."""
        self.ledger.settle(*step_buckets(self.held.pop(step).tool))
        if self.told:
            self.told = without(self.told, step)
        if step not in self.step_costs:
            return 0
        cost = self.step_costs[step]
        self.step_costs = without(self.step_costs, step)
        spent = cost if ran else 0
        self.ledger.settle_amounts({COST: cost}, {COST: spent})
        return spent

    def drop(self, step: str) -> None:
        """Give a step back that will not run. One that is not held (any more) is left alone.

        A step that was started before stays used; what it would have cost once more is given back.
        """
        held = self.held.get(step)
        if held is not None and held.begun:
            self.settle(step, ran=False)
        elif held is not None:
            del self.held[step]
            self.told = without(self.told, step)
            self.ledger.release(*step_buckets(held.tool))
            if step in self.step_costs:
                self.ledger.release_amounts({COST: self.step_costs[step]})
                self.step_costs = without(self.step_costs, step)

    def mark(self) -> Mark:
        """What the run knows before a response is judged."""
        return Mark(steps=len(self.steps), seen=self.repeats.seen, rules=self.memory.rules)

    def go_back(self, mark: Mark, steps: Iterable[str]) -> None:
        """Know no more than at the mark; *steps* of the response are held no more.

        What the host was told of them, and what the log has, has happened: that is not forgotten.
        """
        told = self.told
        for step in steps:
            self.drop(step)
        self.told = told
        del self.steps[mark.steps :]
        self.repeats.go_back(mark.seen)
        for rule in mark.rules:
            self.memory.keep(rule)

    @contextlib.contextmanager
    def direct(self) -> Generator[None, None, None]:
        """A caller that is not the loop has the run in hand; its time counts."""
        self._direct_open += 1
        try:
            self.begin_activity()
            try:
                yield
            finally:
                self.end_activity()
        finally:
            self._direct_open -= 1

    def refuse_direct(self) -> None:
        """A saved run is not put in the place of one whose calls are still on their way.

        Raises:
            ContractError: a direct caller waits for one: what it holds would be forgotten.
        """
        if self._direct_open:
            raise ContractError("runtime", "a direct call of its run is in flight; await it first")

    def next_direct_step(self) -> str:
        """A step id for a call that no model asked for."""
        if not self._direct_prefix:
            # Another process may take this run up: its direct calls must not have our step names.
            self._direct_prefix = f"d{secrets.token_hex(3)}c"
        self._direct += 1
        return f"{self._direct_prefix}{self._direct}"

    # ── telling ───────────────────────────────────────────────────────────────────────────────

    def subject(self, step: str = "", call_id: str = "") -> dict[str, Json]:
        """Who: for events of this run."""
        body: dict[str, Json] = {"run": self.id}
        if self.identity is not None:
            body.update(self.identity.subject)
        if self.task:
            body["task"] = self.task
        if step:
            body["step"] = step
        if call_id:
            body["call"] = log_word(call_id)
        return body

    def record(self, event: Event) -> None:
        """Write an event to the log; a violation is counted and is in the file at once.

        Raises:
            AuditError: the log could not take it.
        """
        event = self.under_policy(event)
        violation = event.type is EventType.SANDBOX_VIOLATION
        if violation:
            self.ledger.count_violations()
        if self.audit is not None:
            self._append(event)
            if violation:
                self.audit.flush()
        if violation and self.observer is not None:
            self.observer.violation(event)

    def _append(self, event: Event) -> None:
        if self.audit is not None and self.beside is None:
            self.audit.append(event)
        elif self.audit is not None:
            self.audit.append(event, self.beside)

    def identify(self, identity: RunIdentity | None) -> None:
        """Say whose run it is; a saved run's own identity stands unless the host gives one."""
        if identity is not None:
            self.identity = identity

    @property
    def beside(self) -> Mapping[str, Json] | None:
        """What stands beside the subject in each event of the run."""
        return None if self.identity is None else self.identity.beside

    def enter_in_log(self, entry: Event | Entry) -> None:
        """Write an entry of the run's own to the log, which holds no float by its making.

        Raises:
            AuditError: the log could not take it.
        """
        if self.audit is not None:
            self.audit.take(self.under_policy(entry), self.beside)

    def record_late(self, event: Event) -> None:
        """Write a violation of a call that has ended already: the log gets it, the run is as it was.

        Raises:
            AuditError: the log could not take it.
        """
        if self.audit is not None:
            self._append(self.under_policy(event))
            self.audit.flush()

    def under_policy(self, event: _E) -> _E:
        """The event with the policy file that its decision was made under, if there is one."""
        if self.policy is None or event.decision is None:
            return event
        return attrs.evolve(event, decision={**event.decision, "policy": self.policy})

    def flush(self) -> None:
        """Write what was recorded to the file.

        Raises:
            AuditError: the log could not be written.
        """
        if self.audit is not None:
            self.audit.flush()

    def over_refused(self) -> bool:
        """Whether more calls were refused than the contract allows."""
        limit, ledger = self._refused_limit, self.ledger
        if limit == UNLIMITED:
            return False
        if self._refused_follows:
            limit += 2 * self.granted_steps
        return ledger.refused - ledger.unaffordable > limit

    def grant(self, budget: str, units: int) -> Shortfall | None:
        """Raise a limit by a grant; what the run above cannot spare, if it is a part of another one.

        Raises:
            ValueError: the amount is not a whole number above 0.
        """
        short = self.ledger.raise_limit(budget, units)
        if short is None and budget == STEPS:
            self.granted_steps += units
        return short

    def refusals_json(self) -> dict[str, Json]:
        """How many refused calls end the run, in all and in a row, for saved runs."""
        return {
            "total": self._refused_limit,
            "follows_steps": self._refused_follows,
            "in_a_row": self.refused_in_a_row,
        }

    def lower_refusals(self, saved: Mapping[str, Json]) -> None:
        """Of `refusals_json` of the saved run and what holds now, the lower.

        Raises:
            ValueError: a limit is not one.
        """
        total = parse_count("refusals.total", saved.get("total", UNLIMITED))
        in_a_row = parse_count("refusals.in_a_row", saved.get("in_a_row", UNLIMITED))
        if total != UNLIMITED and (self._refused_limit == UNLIMITED or total < self._refused_limit):
            self._refused_limit = total
            self._refused_follows = saved.get("follows_steps") is True
        elif total == self._refused_limit and saved.get("follows_steps") is not True:
            self._refused_follows = False
        if in_a_row != UNLIMITED:
            self.refused_in_a_row = min(self.refused_in_a_row, in_a_row)

    def limits_json(self) -> Mapping[str, Json]:
        """The limits for events: whole numbers only, time in microseconds."""
        limits = self.ledger.limits
        seconds = limits.seconds
        active = seconds if isinstance(seconds, str) else round(seconds * 1_000_000)
        body: dict[str, Json] = {"counts": dict(limits.counts), "active_us": active}
        if limits.expires_us != UNLIMITED:
            body["expires_us"] = limits.expires_us
        return body


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def checked_id(run_id: str) -> str:
    """The id if it may become a file name.

    Raises:
        ContractError: empty, too long, or with a character that is not a letter, digit, - or _.
    """
    allowed = run_id.isascii() and run_id.replace("-", "a").replace("_", "a").isalnum()
    if not allowed or not 1 <= len(run_id) <= 64 or run_id.startswith("-"):
        raise ContractError("run_id", f"{run_id[:80]!r} is not 1 to 64 letters, digits, - or _")
    return run_id
