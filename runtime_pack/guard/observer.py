"""Who looks on while a run is driven: a port that the guard tells what has just happened.

It is told, never asked: what an observer does changes no decision and no record. Without one,
nothing is made for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from runtime_pack.approvals import ApprovalRequest
from runtime_pack.catalog import ToolOutput
from runtime_pack.events import Event
from runtime_pack.machine import Outcome
from runtime_pack.messages import ToolCall, Turn
from runtime_pack.records import StepRecord

__all__ = ("Observer",)


class Observer(Protocol):
    """Told in the order in which things happen; each method returns at once and raises nothing."""

    def turn_started(self, step: str, attempt: int) -> None:
        """The model is about to be asked; attempts at one turn count from 1."""
        ...

    def hear(self, step: str, host: Callable[[str], None] | None) -> Callable[[str], None]:
        """What the model's adapter is given as `on_delta`; *host* is what the host gave."""
        ...

    def turn_ended(self, step: str, attempt: int, turn: Turn | None, lost: Outcome | None) -> None:
        """The attempt gave a turn, or was lost; said again of an attempt, it is not heard."""
        ...

    def call_admitted(self, step: str, call: ToolCall) -> None:
        """The call may run; its step is held."""
        ...

    def call_refused(self, step: str, call: ToolCall, output: ToolOutput) -> None:
        """The call does not run."""
        ...

    def call_started(self, record: StepRecord) -> None:
        """The tool is about to be called; the record of it is written."""
        ...

    def call_finished(self, record: StepRecord, output: ToolOutput) -> None:
        """The call ended, or was stopped."""
        ...

    def approval_requested(self, request: ApprovalRequest) -> None:
        """The call waits for a person."""
        ...

    def violation(self, event: Event) -> None:
        """The policy stopped something."""
        ...

    def is_full(self) -> bool:
        """Whether whoever reads is so far behind that the run should wait before its next step."""
        ...

    async def room(self) -> None:
        """Return when there is room again; may be cancelled."""
        ...
