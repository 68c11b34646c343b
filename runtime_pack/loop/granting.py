"""What grants do to a run that is taken up: checked first, then given, recorded and kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from runtime_pack.errors import ContractError, StopCode
from runtime_pack.events import Event, EventCode
from runtime_pack.grants import Grant
from runtime_pack.guard import AgentTaskRun
from runtime_pack.ledger import DURATION, EXPIRES, UNLIMITED, VIOLATIONS
from runtime_pack.ledger_limits import HIGHEST, LAST_US, LONGEST_SECONDS, MICRO
from runtime_pack.loop.keeper import Keeper
from runtime_pack.machine import Ended, Outcome, State, Stop, Thinking

__all__ = ("fitting", "fresh_grants", "give", "has_room", "is_limited", "reopened")


def fresh_grants(run: AgentTaskRun, held: Sequence[Grant], grants: Sequence[Grant]) -> list[Grant]:
    """The grants that the run does not have yet.

    Raises:
        ContractError: one raises a budget that the run does not limit, or has the id of another one;
            together they come to more than a run can hold.
    """
    known = {grant.grant_id: grant for grant in held if grant.grant_id}
    fresh: list[Grant] = []
    for grant in grants:
        if not is_limited(run, grant.budget):
            raise ContractError("grants", f"{grant.budget} is not limited in this run")
        earlier = known.get(grant.grant_id)
        if earlier is None:
            fresh.append(grant)
        elif earlier != grant:
            raise ContractError("grants", f"the id {grant.grant_id[:80]!r} is of another grant")
        if grant.grant_id:
            known[grant.grant_id] = grant
    if len(fitting(run, fresh)) < len(fresh):
        raise ContractError("grants", "come to more than the limit of a run can be")
    return fresh


def fitting(run: AgentTaskRun, grants: Iterable[Grant]) -> list[Grant]:
    """Those whose sums the limits of this run can hold, in order."""
    sums: dict[str, int] = {}
    fit: list[Grant] = []
    for grant in grants:
        total = sums.get(grant.budget, 0) + grant.units
        if total <= _room(run, grant.budget):
            sums[grant.budget] = total
            fit.append(grant)
    return fit


def _room(run: AgentTaskRun, budget: str) -> float:
    """How far a limit can be raised before a saved run or a date cannot hold it."""
    limits = run.ledger.limits
    if budget == DURATION:
        return math.inf if limits.seconds == UNLIMITED else LONGEST_SECONDS - limits.seconds
    if budget == EXPIRES:
        ends = limits.expires_us
        return math.inf if ends == UNLIMITED else (LAST_US - ends) // MICRO
    limit = run.ledger.limit(budget)
    return math.inf if limit == UNLIMITED else HIGHEST - limit


def is_limited(run: AgentTaskRun, budget: str) -> bool:
    """Whether there is a limit that a grant could raise."""
    limits = run.ledger.limits
    if budget == DURATION:
        return limits.seconds != UNLIMITED
    if budget == EXPIRES:
        return limits.expires_us != UNLIMITED
    return run.ledger.limit(budget) != UNLIMITED


def give(run: AgentTaskRun, keeper: Keeper, grants: Sequence[Grant]) -> list[Event]:
    """Raise the limits; the grants are saved with the run. Returns the events that say so.

    Raises:
        ContractError: the run is a part of another one that cannot spare it.
    """
    events: list[Event] = []
    for grant in grants:
        short = run.grant(grant.budget, grant.units)
        if short is not None:
            raise ContractError("grants", f"the run above has no {grant.budget} to spare")
        keeper.keep_grant(grant)
        events.append(_given(run, grant, len(keeper.grants)))
    return events


def _given(run: AgentTaskRun, grant: Grant, number: int) -> Event:
    return Event(
        code=EventCode.GRT001O,
        subject=run.subject(),
        object={"budget": grant.budget, "units": grant.units, "limits": run.limits_json()},
        decision={
            "action": "grant",
            "granted_by": grant.granted_by[:200],
            "reason": grant.reason[:1000],
        },
        key=f"grant:{number}",
    )


def has_room(run: AgentTaskRun, stop: Stop) -> bool:
    """Whether the budget that stopped the run has something left by now."""
    if run.ledger.hard_shortfall(run.clock.monotonic()) is not None:
        return False
    if run.ledger.over() is not None:
        return False
    short = stop.shortfall
    if short is None or short.budget in {DURATION, EXPIRES, VIOLATIONS}:
        return True
    left = run.ledger.left(short.budget)
    return left == UNLIMITED or left > 0


def reopened(state: State) -> State | None:
    """Where a run goes on that was winding up or had wound up for a budget; None for any other."""
    match state:
        case Thinking(barren=barren, closing=Stop()):
            return Thinking(barren=barren)
        case Ended(outcome=Outcome(stop=Stop(code=StopCode.BUDGET_EXHAUSTED))):
            return Thinking()
        case _:
            return None
