"""What a process runs under, as events at the beginning of its log: program, policy, who. Pure.

A host appends them to its log when it starts: `log.append(policy_loaded(policy.ref, by="ann"))`.
"""

from __future__ import annotations

from collections.abc import Mapping

from runtime_pack.events import Event, EventCode
from runtime_pack.messages import Json
from runtime_pack.policy import PolicyRef

__all__ = ("config_loaded", "policy_loaded")


def config_loaded(program: str, settings: Mapping[str, Json], *, by: str) -> Event:
    """A program began to write this log, started by somebody, with settings that hold no secret."""
    body: dict[str, Json] = {"program": program, "by": by, "settings": dict(settings)}
    return Event(code=EventCode.CFG001O, subject={}, object=body, key="config")


def policy_loaded(now: PolicyRef, before: PolicyRef | None = None, *, by: str) -> Event:
    """A policy holds from here on; *before* is the one of its id that held the last time.

    It was changed where their digests differ: `version` is what its author says, the digest what it is.
    """
    body: dict[str, Json] = {"policy": now.to_json(), "by": by}
    if before is None or before.sha256 == now.sha256:
        return Event(code=EventCode.CFG002O, subject={}, object=body, key=f"policy:{now.id}")
    body["before"] = before.to_json()
    body["version_raised"] = now.version > before.version
    return Event(code=EventCode.CFG003O, subject={}, object=body, key=f"policy:{now.id}")
