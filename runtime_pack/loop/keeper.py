"""The history of a run and what of it is saved: rows that are only appended, and a sealed head."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import attrs
import orjson

from runtime_pack.approvals import Resolution, parse_resolution
from runtime_pack.compaction import Compaction, shown
from runtime_pack.errors import ContractError, StateRefused, StoreError
from runtime_pack.fault_log import log_fault
from runtime_pack.flow import texts_of
from runtime_pack.grants import Grant, parse_grant, totals, without_grants
from runtime_pack.guard import AgentTaskRun
from runtime_pack.guard.bounded import TimeUp, bounded
from runtime_pack.guard.inputs import judge_input
from runtime_pack.guard.sub_runs import SubRun
from runtime_pack.guard.task_run import Told
from runtime_pack.identity import RunIdentity
from runtime_pack.inner import NOTHING, changing
from runtime_pack.instants import instant_text
from runtime_pack.labels import CLEAN, join, parse_label
from runtime_pack.ledger import read_counts
from runtime_pack.machine import Outcome, State
from runtime_pack.messages import (
    AssistantMessage,
    Json,
    Message,
    ToolMessage,
    UserMessage,
    message_from_json,
    message_to_json,
    own_copy,
)
from runtime_pack.records import StepRecord
from runtime_pack.seal import Seal
from runtime_pack.state import (
    EMPTY_CHAIN,
    FORMAT,
    SCHEMA,
    RunStore,
    SavedRun,
    chain_rows,
    outcome_from_json,
    outcome_to_json,
    seal_head,
    state_from_json,
    state_to_json,
)

__all__ = ("Keeper", "SaveStopped", "Taken", "read_rows", "restored_state")


class SaveStopped(StoreError):
    """The run was interrupted, and the store did not end within the grace that it then has."""


_NOTHING: Final[Mapping[str, Json]] = MappingProxyType({})
_LAST_SAVE_SECONDS: Final = 5.0
_LABELLED: Final = (UserMessage, ToolMessage, AssistantMessage)


@changing(kw_only=True)
class Taken:
    """What the rows of a saved run hold."""

    turn_input: dict[str, Json] = attrs.field(factory=dict)
    messages: list[Message] = attrs.field(factory=list)
    results: dict[str, ToolMessage] = attrs.field(factory=dict)
    resolved: dict[str, Resolution] = attrs.field(factory=dict)
    steps: list[StepRecord] = attrs.field(factory=list)
    burned: set[str] = attrs.field(factory=set)
    grants: list[Grant] = attrs.field(factory=list)
    compaction: Compaction | None = None
    addresses: list[Any] = attrs.field(factory=list)


def read_rows(rows: Sequence[bytes]) -> Taken:
    """What is in the rows of a saved run.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: a row is not of a known form.
    """
    taken = Taken()
    for row in rows:
        ((kind, value),) = orjson.loads(row).items()
        take = _ROWS.get(kind)
        if take is None:
            raise StateRefused(f"unknown row {kind!r}")
        take(taken, value)
    return taken


def _take_input(taken: Taken, value: Any) -> None:
    taken.turn_input = value


def _take_message(taken: Taken, value: Any) -> None:
    taken.messages.append(message_from_json(value))


def _take_result(taken: Taken, value: Any) -> None:
    result = message_from_json(value)
    if isinstance(result, ToolMessage):
        taken.results[result.call_id] = result


def _take_ref(taken: Taken, value: Any) -> None:
    taken.messages.append(taken.results.pop(value))


def _take_resolved(taken: Taken, value: Any) -> None:
    for request_id, word in value.items():
        taken.resolved[request_id] = parse_resolution(request_id, word)


def _take_step(taken: Taken, value: Any) -> None:
    taken.steps.append(StepRecord.from_json(value))


def _take_burned(taken: Taken, value: Any) -> None:
    taken.burned.update(value)


def _take_addresses(taken: Taken, value: Any) -> None:
    taken.addresses += value


def _take_grant(taken: Taken, value: Any) -> None:
    taken.grants.append(parse_grant(value))


def _take_compaction(taken: Taken, value: Any) -> None:
    taken.compaction = Compaction.from_json(value)


# One line a kind of row.
_ROWS: Final[Mapping[str, Callable[[Taken, Any], None]]] = {
    "input": _take_input,
    "message": _take_message,
    "result": _take_result,
    "ref": _take_ref,
    "resolved": _take_resolved,
    "step": _take_step,
    "burned": _take_burned,
    "addresses": _take_addresses,
    "grant": _take_grant,
    "compaction": _take_compaction,
}


def _said(message: Message) -> Iterator[str]:
    """Every text of a message that a model is shown."""
    yield message.text
    if isinstance(message, AssistantMessage):
        for call in message.calls:
            yield from texts_of(call.arguments)


def _encoded(body: Mapping[str, Json]) -> bytes:
    """A row; a store in memory keeps it for as long as the run is parked."""
    return own_copy(orjson.dumps(body))


def _checked_revision(revision: object) -> int:
    if type(revision) is not int:
        raise StoreError(f"the store answered with a {type(revision).__name__} for a revision")
    return revision


class Keeper:
    """The history, the batch in hand, and the saves of one drive.

    Attributes:
        results: what calls of the batch in hand gave, by call id.
        begun: how often each step of the batch in hand was started.
        resolved: what was decided about each request, and what came of it.
        grants: what people gave the run beyond its limits.
    """

    def __init__(
        self,
        run: AgentTaskRun,
        store: RunStore | None,
        given: Mapping[str, Json] | Callable[[], Mapping[str, Json]],
    ) -> None:
        self.run = run
        self.store = store
        # What the run was started with; written out when it is saved, which most runs are not.
        self._given = given
        self.messages: list[Message] = []
        # What the model is shown: the history, until a part of it is summed up.
        self.shown = self.messages
        self.compaction: Compaction | None = None
        # So many messages have passed the input guards.
        self.checked = 0
        self.taken: dict[str, int] = {}
        self.results: dict[str, ToolMessage] = {}
        self.begun: dict[str, int] = {}
        self.resolved: Mapping[str, Resolution] = NOTHING
        self.grants: list[Grant] = []
        # Of a sub-run: whose it is, and what stands reserved for it there.
        self.parent = run.parent
        # What its money is counted in, once that is known.
        self.currency = None if run.prices is None else run.prices.currency
        self._granted: Mapping[str, Json] = _NOTHING
        self.revision = 0
        self._rows: list[bytes] = []
        self._row_count = 0
        self._chain = EMPTY_CHAIN
        self._steps_saved = 0
        self._burned_saved: set[str] | None = None
        self._addresses_saved = 0
        self._saving = None if store is None else asyncio.Lock()
        self._torn = False

    @property
    def given(self) -> Mapping[str, Json]:
        """What the run was started with, as it is saved."""
        if callable(self._given):
            self._given = self._given()
        return self._given

    def open(self, messages: Sequence[Message]) -> None:
        """Begin with the messages of a new run."""
        if self.store is not None:
            self._row({"input": self.given})
        for message in messages:
            self.append(message)

    def adopt(self, saved: SavedRun, head: Mapping[str, Any], held: Taken) -> None:
        """Stand where the saved run stood.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: a part of the head is not of its form.
            ContractError: answers of the saved run are checked, and here is no check.
        """
        _hold_to_check(self.run.output_check, head)
        self._be(saved, head)
        self._take_account(head, held)
        self._take_records(head, held)
        self._take_history(held)
        self._take_knowledge(head, held)
        self._take_place(saved, head)

    def _be(self, saved: SavedRun, head: Mapping[str, Any]) -> None:
        """Whose run it is, and what its context holds."""
        run = self.run
        run.id = saved.run_id
        run.task, run.turn = str(head["task"]), max(run.turn, int(head["turn"]))
        run.label = join(run.label, parse_label(head["label"]))
        if run.identity is None and head.get("identity"):
            run.identify(RunIdentity.from_json(head["identity"]))
        self.parent = head.get("parent", self.parent)

    def _take_account(self, head: Mapping[str, Any], held: Taken) -> None:
        """What was used and reserved, and every limit as it was granted or lowered."""
        run = self.run
        self.currency = head.get("currency") or self.currency
        self._granted = head["ledger"].get("granted", self._granted)
        run.ledger.restore(without_grants(head["ledger"], held.grants))
        run.granted_steps = 0
        for budget, units in totals(held.grants).items():
            run.grant(budget, units)
        self.grants = held.grants
        run.measure()
        # A run that an earlier version saved does not name them.
        run.lower_refusals(head.get("refusals") or {})

    def _take_records(self, head: Mapping[str, Any], held: Taken) -> None:
        """What has happened, and what is open."""
        run = self.run
        run.held.clear()
        open_ones = head.get("sub_runs") or {}
        run.sub_runs = {str(step): SubRun.from_json(sub) for step, sub in open_ones.items()}
        run.told = {str(s): Told.from_json(told) for s, told in (head.get("told") or {}).items()}
        run.steps[:], self._steps_saved = held.steps, len(held.steps)
        run.burned.update(held.burned)
        self._burned_saved = set(held.burned)
        self.begun = {str(step): int(n) for step, n in head["begun"].items()}
        # What was started was paid for, and stays so; the others are given back what they reserved.
        costs, again = read_counts(head.get("step_costs", {})), set(head.get("to_rerun") or ())
        run.step_costs = {
            step: cost for step, cost in costs.items() if step not in self.begun or step in again
        }

    def _take_history(self, held: Taken) -> None:
        """What was said, and what of it a model is shown."""
        run = self.run
        self.messages, self.results, self.resolved = held.messages, held.results, held.resolved
        self.shown, self.compaction = self.messages, held.compaction
        if held.compaction is not None:
            self.shown = shown(self.messages, held.compaction)
        for message in held.messages:
            self._take(message)
            run.flow.note(message, own=not run.depth)
            run.heed(_said(message))

    def _take_knowledge(self, head: Mapping[str, Any], held: Taken) -> None:
        """What the history does not say of itself: checks passed, circles, addresses, memory."""
        run = self.run
        self.checked = int(head.get("input_checked", 0))
        told = (message for message in held.messages if isinstance(message, ToolMessage))
        results = held.results | {message.call_id: message for message in told}
        run.repeats.restore(head.get("repeats") or (), results)
        if "flow" in head:
            run.flow.restore(head["flow"])
        run.flow.book.restore_known(held.addresses)
        self._addresses_saved = len(run.flow.book.kept)
        if "asked_under" in head:
            run.asked_under = parse_label(head["asked_under"])
        if "memory" in head:
            run.memory.restore(head["memory"])

    def _take_place(self, saved: SavedRun, head: Mapping[str, Any]) -> None:
        """Where the next rows go."""
        self.revision, self._row_count = saved.revision, len(saved.rows)
        self._chain = str(head["rows_sha256"])

    # ── keeping ───────────────────────────────────────────────────────────────────────────────

    def append(self, message: Message) -> None:
        """Add a message to the history; the run's label takes in the message's.

        What the model says has the label of what it had read when it was asked.
        """
        run, under = self.run, self.run.asked_under
        if isinstance(message, AssistantMessage):
            if under is not CLEAN and message.label is CLEAN:
                message = AssistantMessage(
                    text=message.text, calls=message.calls, label=under, kept=message.kept
                )
            self._take(message)
        self.messages.append(message)
        if self.shown is not self.messages:
            self.shown.append(message)
        if isinstance(message, _LABELLED) and message.label is not run.label:
            run.take_label(message.label)
        run.flow.note(message, own=not run.depth)
        if run.flow.strings is not None:
            run.heed(_said(message))
        if self.store is None:
            return
        if isinstance(message, ToolMessage) and message.call_id in self.results:
            self._row({"ref": message.call_id})
        else:
            self._row({"message": message_to_json(message)})

    async def check_input(self) -> Outcome | None:
        """Why the run must not go on with what users said since the last check; None when it may.

        A guard that an interruption stops has not passed anything: the next drive asks it again.
        """
        fresh = self.messages[self.checked :]
        if not any(isinstance(message, UserMessage) for message in fresh):
            return None
        for guard in self.run.input_guards:
            refused = await judge_input(self.run, guard, tuple(self.messages))
            if refused is not None:
                return refused
        run = self.run
        spent = run.ledger.time_shortfall(run.clock.monotonic()) is not None
        if not (spent or run.is_interrupted()):
            self.checked = len(self.messages)
        return None

    def compact(self, compaction: Compaction) -> None:
        """Show a summary in place of the first part of the history."""
        self.compaction = compaction
        self.shown = shown(self.messages, compaction)
        self._row({"compaction": compaction.to_json()})

    def _take(self, message: Message) -> None:
        if isinstance(message, AssistantMessage):
            for call in message.calls:
                self.taken.setdefault(call.id, 1)

    def commit(self, messages: Sequence[Message]) -> None:
        """Add a whole batch to the history; no call is in hand any more."""
        for message in messages:
            self.append(message)
        self.results.clear()
        self.begun.clear()

    def keep_result(self, result: ToolMessage) -> None:
        """Keep what a call of the batch in hand gave."""
        self.results[result.call_id] = result
        if self.store is not None:
            self._row({"result": message_to_json(result)})

    def is_started(self, step: str) -> bool:
        """Whether a held step was started in this drive: what stands reserved for it is spent."""
        held = self.run.held.get(step)
        return held is not None and self.begun.get(step, 0) > held.begun

    def resolve(self, resolution: Resolution) -> None:
        """Keep what was decided about a request, so that no second word can undo it."""
        request_id = resolution.decision.request_id
        self.resolved = {**self.resolved, request_id: resolution}
        self._row({"resolved": {request_id: resolution.to_json()}})

    def keep_grant(self, grant: Grant) -> None:
        """Keep what was granted, so that no later contract takes it back."""
        self.grants.append(grant)
        self._row({"grant": grant.to_json()})

    def _row(self, body: Mapping[str, Json]) -> None:
        if self.store is not None:
            self._rows.append(_encoded(body))

    # ── saving ────────────────────────────────────────────────────────────────────────────────

    async def save(self, state: State, outcome: Outcome | None) -> None:
        """Commit what is new, if there is a store.

        Raises:
            RunConflict: another process took the run up.
            StoreError: the store could not be written; `SaveStopped` if an interruption is why.
        """
        store, saving = self.store, self._saving
        if store is None or saving is None:
            return
        async with saving:
            if self._torn:
                raise StoreError("an earlier save of this run failed")
            # Until it is known that these rows are stored, no head may count them.
            self._torn = True
            head, rows = self._snapshot(state, outcome, store.seal)
            try:
                # First: a clock that fails leaves no commit behind that nobody awaits.
                seconds = self._patience()
                work = store.commit(self.run.id, expected=self.revision, head=head, rows=rows)
                revision: object = await bounded(self.run, seconds, work, patient=True)
                self.revision = _checked_revision(revision)
                self._torn = False
            except StoreError:
                raise
            except TimeUp as error:
                kind = SaveStopped if self.run.interrupt_now else StoreError
                raise kind("the store did not end in time") from error
            # The host's store: whatever it raises, the run was not saved.
            except Exception as error:
                log_fault("the store", error, run=self.run.id)
                raise StoreError(f"the store failed ({type(error).__name__})") from error

    def _patience(self) -> float:
        """Seconds that a save may take: the run's time, and a little where that is over."""
        run = self.run
        if run.interrupt_now:
            return _LAST_SAVE_SECONDS
        left = run.ledger.remaining_seconds(run.clock.monotonic())
        return max(left, _LAST_SAVE_SECONDS)

    def unstored(self, state: State, outcome: Outcome | None) -> SavedRun:
        """A saved run made at the end, for a host that gave no store."""
        bodies: list[Mapping[str, Json]] = [
            {"input": self.given},
            *({"message": message_to_json(message)} for message in self.messages),
            *({"result": message_to_json(result)} for result in self.results.values()),
            {"resolved": {name: word.to_json() for name, word in self.resolved.items()}},
            *({"grant": grant.to_json()} for grant in self.grants),
        ]
        if self.compaction is not None:
            bodies.append({"compaction": self.compaction.to_json()})
        self._rows = [_encoded(body) for body in bodies]
        self.revision, self._steps_saved, self._row_count = 0, 0, 0
        self._chain, self._burned_saved = EMPTY_CHAIN, None
        self._addresses_saved = 0
        head, rows = self._snapshot(state, outcome, self.run.seal)
        return SavedRun(run_id=self.run.id, revision=1, head=head, rows=rows)

    def _snapshot(
        self, state: State, outcome: Outcome | None, seal: Seal
    ) -> tuple[bytes, tuple[bytes, ...]]:
        """The sealed head and the rows since the last snapshot."""
        run = self.run
        # Records of calls in flight still change; they are saved when they have ended.
        while self._steps_saved < len(run.steps) and run.steps[self._steps_saved].ok is not None:
            self._rows.append(_encoded({"step": run.steps[self._steps_saved].to_json()}))
            self._steps_saved += 1
        if self._burned_saved is None:
            self._burned_saved = set()
        if len(run.burned) != len(self._burned_saved):
            fresh = sorted(run.burned - self._burned_saved)
            self._rows.append(_encoded({"burned": fresh}))
            self._burned_saved.update(fresh)
        known = run.flow.book.kept
        if len(known) != self._addresses_saved:
            fresh_ones: list[Json] = [list(row) for row in known[self._addresses_saved :]]
            self._rows.append(_encoded({"addresses": fresh_ones}))
            self._addresses_saved = len(known)
        rows = tuple(self._rows)
        self._rows.clear()
        self._chain = chain_rows(self._chain, rows)
        self._row_count += len(rows)
        return seal_head(self._head(state, outcome), seal), rows

    def _head(self, state: State, outcome: Outcome | None) -> dict[str, Json]:
        run = self.run
        more: dict[str, Json] = {"memory": run.memory.to_json()} if run.memory else {}
        ledger = run.view().to_json()
        # Admitted to run once more, and not started yet: that is paid for when it is.
        again: list[Json] = [
            step for step in run.step_costs if step in self.begun and not self.is_started(step)
        ]
        if again:
            more["to_rerun"] = again
        if run.told:
            more["told"] = {step: told.to_json() for step, told in run.told.items()}
        if run.asked_under is not CLEAN:
            more["asked_under"] = run.asked_under.to_json()
        if run.flow:
            more["flow"] = run.flow.to_json()
        if run.output_check is not None:
            more["output_check"] = run.contract.output_check
        if self.parent is not None:
            more["parent"] = self.parent
        if self._granted:
            # Whoever ends a sub-run alone has an account that does not know of the parent's.
            ledger.setdefault("granted", dict(self._granted))
        return more | {
            "format": FORMAT,
            "schema": SCHEMA,
            "run": run.id,
            "revision": self.revision + 1,
            "saved_at": instant_text(run.clock.now()),
            "task": run.task,
            "turn": run.turn,
            "state": state_to_json(state),
            "outcome": None if outcome is None else outcome_to_json(outcome),
            "ledger": ledger,
            "refusals": run.refusals_json(),
            "label": run.label.to_json(),
            "policy_sha256": run.policy_sha256,
            "input_checked": self.checked,
            "policy": run.policy,
            "repeats": run.repeats.to_json(),
            "begun": dict(self.begun),
            "sub_runs": {step: sub.to_json() for step, sub in run.sub_runs.items()},
            "step_costs": dict(run.step_costs),
            "prices_sha256": run.prices_sha256,
            "currency": self.currency,
            "identity": None if run.identity is None else run.identity.to_json(),
            "audit_head": None if run.head is None else str(run.head),
            "audit_log": None if run.audit is None else str(run.audit.path.resolve()),
            "rows": self._row_count,
            "rows_sha256": self._chain,
        }


def _hold_to_check(check: object, head: Mapping[str, Any]) -> None:
    """Refuse to go on with a run whose answers are checked, where nobody checks them."""
    if head.get("output_check") and check is None:
        text = "answers of the saved run are checked: give the contract's word and the check"
        raise ContractError("output_check", text)


def restored_state(
    head: Mapping[str, Json], results: Mapping[str, ToolMessage]
) -> tuple[State, Outcome | None]:
    """Where the machine stood, and how the last drive ended if it did.

    Raises:
        KeyError, TypeError, ValueError: not of the form that `Keeper` writes.
    """
    outcome = head["outcome"]
    state = state_from_json(head["state"], results)
    return state, None if outcome is None else outcome_from_json(outcome)
