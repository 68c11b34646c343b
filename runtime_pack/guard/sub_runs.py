"""What a run knows of its sub-runs that are open, and how a call says that it waits for one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from runtime_pack.approvals import ApprovalRequest
from runtime_pack.inner import frozen
from runtime_pack.ledger import read_counts
from runtime_pack.messages import Json

__all__ = ("CallWaits", "SubRun", "is_sub_run_id", "sub_run_id")

# An id has at most 64 characters.
_KEPT: Final = 40


def sub_run_id(parent_id: str, step: str) -> str:
    """The id of the sub-run of a step: the same for the same step, so that it is found again."""
    digest = hashlib.sha256(f"{parent_id}\n{step}".encode()).hexdigest()[:16]
    return f"{_prefix(parent_id)}{digest}"


def is_sub_run_id(run_id: str, parent_id: str) -> bool:
    """Whether *run_id* reads as a sub-run's of that run, or of one below it."""
    return run_id != parent_id and run_id.startswith(_prefix(parent_id))


def _prefix(parent_id: str) -> str:
    return f"{parent_id[:_KEPT]}-sub-"


class CallWaits(Exception):
    """A call cannot end before people have decided about the requests of a sub-run.

    The guard suspends the run when the step in hand is over; the call is made again, under its own
    step, when the run is taken up.
    """


@frozen(kw_only=True)
class SubRun:
    """A sub-run that has not ended: its id, what it holds of the parent's budgets, and what it asks."""

    run_id: str
    granted: Mapping[str, int]
    requests: tuple[ApprovalRequest, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """The stored form."""
        return {
            "run": self.run_id,
            "granted": dict(self.granted),
            "requests": [request.to_json() for request in self.requests],
        }

    @classmethod
    def from_json(cls, value: Any) -> SubRun:
        """Read the stored form.

        Raises:
            KeyError, TypeError, ValueError: not of that form.
        """
        return cls(
            run_id=str(value["run"]),
            granted=read_counts(value["granted"]),
            requests=tuple(ApprovalRequest.from_json(each) for each in value["requests"]),
        )
