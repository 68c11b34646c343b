"""What `ask` says of a denial while the run goes on: who refused, and where the entry is lacking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from runtime_pack.cli._text import note
from runtime_pack.events import Event, EventType

__all__ = ("Told",)

# The name of a list in a denial, and its key in a policy file.
_KEYS: Final[Mapping[str, str]] = {
    "workspace": "workspace_allow",
    "task": "task_allow",
    "run": "allow",
}


@attrs.frozen(kw_only=True)
class Told:
    """The host's end for security events: each denial is told to the person, with what to add.

    Attributes:
        policy: the name of the policy file that the run is under; None where options decide.
        own: the entry of the corpus server, whose port is another one in each run.
    """

    policy: str | None
    own: str | None

    async def emit(self, event: Event) -> None:
        """Say what was refused, by which rule, and the entry that would admit it."""
        if event.type is not EventType.SANDBOX_VIOLATION or event.decision is None:
            return
        host, rule = event.object["host"], event.decision["rule"]
        entry, layers = event.object["nearest_entry"], event.object["layers"]
        named = [str(layer) for layer in layers] if isinstance(layers, list) else []
        advice = f"; to allow it: {self._advice(str(entry), named)}" if entry else ""
        note(f"{event.type}: {host} refused by {rule} ({event.decision['reason_code']}){advice}")

    def _advice(self, entry: str, layers: Iterable[str]) -> str:
        if self.policy is None:
            return f"--allow {entry}"
        if entry == self.own:
            entry = f"{entry.rpartition(':')[0]}:*"
        keys = " and ".join(_KEYS.get(layer, layer) for layer in layers) or "allow"
        return f'add "{entry}" to {keys} in {self.policy}'
