"""A workflow of runs as values: branches, what they depend on, and the transitions they make.

Each branch is one run. `Workflow` is the plan, `Progress` where it stands, `Continuation` the
numbered record of one transition: progress is nothing but the records so far, taken one after the
other by `Progress.after`. `next_transition` says what is due; somebody else does it. Pure: time
comes in, and nothing here awaits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import attrs
import orjson

from runtime_pack.errors import ContractError
from runtime_pack.inner import frozen
from runtime_pack.instants import instant_text
from runtime_pack.labels import CLEAN, Label, join, parse_label
from runtime_pack.messages import Json, clean_text

__all__ = (
    "Branch",
    "BranchState",
    "BranchStatus",
    "Continuation",
    "Progress",
    "Transition",
    "Workflow",
    "next_transition",
)

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}\Z")


class BranchStatus(StrEnum):
    """Where a branch stands. The last four are final."""

    PENDING = "pending"
    SLEEPING = "sleeping"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


_S = BranchStatus
# From where to where; whatever is not in this table cannot happen.
_TRANSITIONS: Final[Mapping[BranchStatus, frozenset[BranchStatus]]] = {
    _S.PENDING: frozenset({_S.SLEEPING, _S.RUNNING, _S.SKIPPED}),
    _S.SLEEPING: frozenset({_S.RUNNING}),
    _S.RUNNING: frozenset({_S.WAITING, _S.COMPLETED, _S.FAILED, _S.CANCELLED}),
    _S.WAITING: frozenset({_S.RUNNING}),
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
    _S.SKIPPED: frozenset(),
}


def _aware(moment: datetime | None) -> datetime | None:
    if moment is not None and (not isinstance(moment, datetime) or moment.utcoffset() is None):
        raise ContractError("wake_at", "is a time with a zone: without one it is two instants")
    return moment


def _name_tuple(names: Iterable[str]) -> tuple[str, ...]:
    given: object = names
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ContractError("depends_on", "is a list of names")
    listed = tuple(names)
    if not all(isinstance(name, str) for name in listed):
        raise ContractError("depends_on", "is a list of names")
    return listed


@frozen(kw_only=True)
class Branch:
    """One run of a workflow.

    Attributes:
        name: letters, digits, `-` and `_`, at most 32.
        prompt: what the run is asked; the results of *depends_on* are given beside it.
        depends_on: branches that have to be completed before this one starts.
        wake_at: the earliest time at which it starts.

    Raises:
        ContractError: the name is not one, the prompt is no text, it depends on itself or on one
            branch twice, or the time has no zone.
    """

    name: str
    prompt: str
    depends_on: tuple[str, ...] = attrs.field(default=(), converter=_name_tuple)
    wake_at: datetime | None = attrs.field(default=None, converter=_aware)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.match(self.name):
            raise ContractError("name", f"{self.name!r:.80} cannot name a branch")
        if not isinstance(self.prompt, str):
            raise ContractError(f"{self.name}.prompt", "is a text")
        if len(set(self.depends_on)) < len(self.depends_on):
            raise ContractError(f"{self.name}.depends_on", "names a branch twice")

    def to_json(self) -> dict[str, Json]:
        """The branch as it stands in the plan's digest and in saved workflows."""
        return {
            "name": self.name,
            "prompt": clean_text(self.prompt),
            "depends_on": list(self.depends_on),
            "wake_at": None if self.wake_at is None else self.wake_at.isoformat(),
        }


def _branches(branches: Iterable[Branch]) -> tuple[Branch, ...]:
    given: object = branches
    return tuple(branches) if isinstance(given, Iterable) else ()


@frozen
class Workflow:
    """The plan. The order of the branches decides between those that are due at the same time.

    Raises:
        ContractError: no branch, two of one name, a dependency that is no branch, or a cycle; the
            cycle is named, from a branch back to itself.
    """

    branches: tuple[Branch, ...] = attrs.field(converter=_branches)
    by_name: Mapping[str, Branch] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if not self.branches or not all(isinstance(b, Branch) for b in self.branches):
            raise ContractError("branches", "a workflow has at least one branch, and nothing else")
        by_name: dict[str, Branch] = {}
        for branch in self.branches:
            if branch.name in by_name:
                raise ContractError(branch.name, "two branches have this name")
            by_name[branch.name] = branch
        for branch in self.branches:
            for name in branch.depends_on:
                if name not in by_name:
                    problem = f"depends on {name!r:.80}, which is no branch"
                    raise ContractError(branch.name, problem)
        _refuse_cycles(by_name)
        object.__setattr__(self, "by_name", MappingProxyType(by_name))

    @property
    def sha256(self) -> str:
        """Digest of the plan: a saved workflow goes on under the plan that it began with."""
        body = orjson.dumps([branch.to_json() for branch in self.branches])
        return f"sha256:{hashlib.sha256(body).hexdigest()}"


def _refuse_cycles(by_name: Mapping[str, Branch]) -> None:
    """Walk down from each branch without recursion: a plan may be a long chain."""
    done: set[str] = set()
    for first in by_name:
        path: list[str] = []
        above: set[str] = set()
        below: list[list[str]] = [[first]]
        while below:
            if not below[-1]:
                below.pop()
                if path:
                    name = path.pop()
                    above.remove(name)
                    done.add(name)
                continue
            name = below[-1].pop()
            if name in above:
                cycle = " -> ".join([*path[path.index(name) :], name])
                raise ContractError("branches", f"a cycle: {cycle}")
            if name not in done:
                path.append(name)
                above.add(name)
                below.append(list(by_name[name].depends_on))


@frozen(kw_only=True)
class BranchState:
    """Where one branch stands.

    Attributes:
        run_id: its run, from the moment that it started.
        text: the answer of a completed branch.
        label: the label of its run when it was last seen.
        reason: why it waits, failed or was skipped.
        requests: ids of the requests that wait for a person.
        wake_at: when it may start or go on.
    """

    status: BranchStatus = BranchStatus.PENDING
    run_id: str | None = None
    text: str = ""
    label: Label = CLEAN
    reason: str = ""
    requests: tuple[str, ...] = ()
    wake_at: datetime | None = None


_PENDING: Final = BranchState()


@frozen(kw_only=True)
class Transition:
    """A branch comes to stand somewhere else."""

    branch: str
    state: BranchState


@frozen(kw_only=True)
class Continuation:
    """The record of one transition: `number` counts from 1 over the whole workflow."""

    number: int
    at: datetime
    branch: str
    state: BranchState

    def to_json(self) -> dict[str, Json]:
        """The stored form."""
        state = self.state
        return {
            "number": self.number,
            "at": instant_text(self.at),
            "branch": self.branch,
            "status": str(state.status),
            "run": state.run_id,
            "text": clean_text(state.text),
            "label": state.label.to_json(),
            "reason": clean_text(state.reason),
            "requests": list(state.requests),
            "wake_at": None if state.wake_at is None else instant_text(state.wake_at),
        }

    @classmethod
    def from_json(cls, value: Any) -> Continuation:
        """Read the stored form.

        Raises:
            KeyError, TypeError, ValueError: not of that form.
        """
        wake_at, run_id = value["wake_at"], value["run"]
        state = BranchState(
            status=BranchStatus(value["status"]),
            run_id=None if run_id is None else str(run_id),
            text=str(value["text"]),
            label=parse_label(value["label"]),
            reason=str(value["reason"]),
            requests=tuple(str(request) for request in value["requests"]),
            wake_at=None if wake_at is None else datetime.fromisoformat(wake_at),
        )
        return cls(
            number=int(value["number"]),
            at=datetime.fromisoformat(value["at"]),
            branch=str(value["branch"]),
            state=state,
        )


@frozen(kw_only=True)
class Progress:
    """Where a workflow stands: the fold of its records."""

    number: int = 0
    states: Mapping[str, BranchState] = attrs.field(factory=dict)

    def of(self, name: str) -> BranchState:
        """Where the branch stands."""
        return self.states.get(name, _PENDING)

    def after(self, record: Continuation, workflow: Workflow) -> Progress:
        """Where it stands after one more transition.

        Raises:
            ValueError: the record is out of order, of no branch of the plan, or of a transition that cannot
                happen: a branch that is over, a start before its dependencies, another run.
        """
        branch = workflow.by_name.get(record.branch)
        if branch is None or record.number != self.number + 1:
            raise ValueError(f"record {record.number} of {record.branch!r} is out of place")
        before, state = self.of(branch.name), record.state
        if state.status not in _TRANSITIONS[before.status]:
            raise ValueError(f"{branch.name} cannot go from {before.status} to {state.status}")
        if state.status is BranchStatus.RUNNING and not self._may_run(branch, state):
            raise ValueError(f"{branch.name} cannot run yet, or not as {state.run_id!r}")
        if before.run_id is not None and before.run_id != state.run_id:
            raise ValueError(f"{branch.name} is the run {before.run_id!r}, not {state.run_id!r}")
        return Progress(number=record.number, states={**self.states, branch.name: state})

    def _may_run(self, branch: Branch, state: BranchState) -> bool:
        done = all(self.of(n).status is BranchStatus.COMPLETED for n in branch.depends_on)
        return done and bool(state.run_id)

    def is_over(self, workflow: Workflow) -> bool:
        """Whether no branch can make another transition."""
        return all(not _TRANSITIONS[self.of(b.name).status] for b in workflow.branches)

    def next_wake(self) -> datetime | None:
        """The earliest time at which a branch may start or go on by itself."""
        asleep = {BranchStatus.SLEEPING, BranchStatus.WAITING}
        times = [s.wake_at for s in self.states.values() if s.status in asleep and s.wake_at]
        return min(times, default=None)

    def label_for(self, branch: Branch) -> Label:
        """The join of the labels of what the branch is given."""
        label = CLEAN
        for name in branch.depends_on:
            label = join(label, self.of(name).label)
        return label


def next_transition(
    workflow: Workflow, progress: Progress, now: datetime, *, room: bool, run_ids: Mapping[str, str]
) -> Transition | None:
    """The first transition that is due, in the order of the plan; None when nothing is.

    A branch is skipped as soon as one that it depends on ended otherwise than completed. It starts,
    when there is *room*, once all are completed and its time has come; until then it sleeps. A branch
    that waits for a time goes on then; one that waits for a person does not go on by itself.
    """
    for branch in workflow.branches:
        state = progress.of(branch.name)
        due = _due(branch, state, progress, now)
        if due is None or (due is BranchStatus.RUNNING and not room):
            continue
        return _transition(branch, state, due, progress, run_ids[branch.name])
    return None


def _due(
    branch: Branch, state: BranchState, progress: Progress, now: datetime
) -> BranchStatus | None:
    if state.status is BranchStatus.PENDING:
        return _due_of_pending(branch, progress, now)
    waits_for_time = state.status in {BranchStatus.SLEEPING, BranchStatus.WAITING}
    if waits_for_time and state.wake_at is not None and now >= state.wake_at:
        return BranchStatus.RUNNING
    return None


def _due_of_pending(branch: Branch, progress: Progress, now: datetime) -> BranchStatus | None:
    if _lost(branch, progress) is not None:
        return BranchStatus.SKIPPED
    needed = [progress.of(name).status for name in branch.depends_on]
    if any(status is not BranchStatus.COMPLETED for status in needed):
        return None
    asleep = branch.wake_at is not None and now < branch.wake_at
    return BranchStatus.SLEEPING if asleep else BranchStatus.RUNNING


def _lost(branch: Branch, progress: Progress) -> str | None:
    """Why the branch can never start; None when it still can."""
    lost = {BranchStatus.FAILED, BranchStatus.CANCELLED, BranchStatus.SKIPPED}
    for name in branch.depends_on:
        state = progress.of(name)
        if state.status in lost:
            because = f": {state.reason}" if state.reason else ""
            return f"{name} {state.status}{because}"[:300]
    return None


def _transition(
    branch: Branch, state: BranchState, due: BranchStatus, progress: Progress, run_id: str
) -> Transition:
    match due:
        case BranchStatus.SKIPPED:
            after = BranchState(status=due, reason=_lost(branch, progress) or "")
        case BranchStatus.SLEEPING:
            after = BranchState(status=due, wake_at=branch.wake_at)
        case _:
            label = join(state.label, progress.label_for(branch))
            after = BranchState(status=due, run_id=state.run_id or run_id, label=label)
    return Transition(branch=branch.name, state=after)
