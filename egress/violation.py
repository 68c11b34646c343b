"""What one denial reports: the values of the one `sandbox:violation` event of a read. Pure.

The event is for the operator. It holds no path and no query, only the digest of both.
"""

from __future__ import annotations

from typing import Final

import attrs

from egress.decision import Deny, DenyReason
from egress.url import Target

__all__ = ("VIOLATION_KIND", "TargetFacts", "Violation", "facts_of", "violation_of")

VIOLATION_KIND: Final = "network_egress_blocked"


@attrs.frozen(kw_only=True)
class TargetFacts:
    """A target as events tell it.

    Attributes:
        scheme: "http" or "https".
        host: Canonical host.
        port: Always present.
        path_sha256: "sha256:" and the digest of path and query as they would have been sent.
    """

    scheme: str
    host: str
    port: int
    path_sha256: str

    def to_json(self) -> dict[str, str | int]:
        """Plain values, keys as stored."""
        return {
            "scheme": self.scheme,
            "host": self.host,
            "port": self.port,
            "path_sha256": self.path_sha256,
        }


@attrs.frozen(kw_only=True)
class Violation:
    """One denied read.

    Attributes:
        target: What was refused.
        hop: 0 for the URL the caller gave, n for the target of the n-th redirect.
        hops: The targets that were requested before it, in order; `hop` of them.
        rule: The rule that refused, "R4" to "R12".
        reason: The word for it.
        nearest_entry: The narrowest entry that would have admitted it, or None.
        addresses: The refused addresses, when the address policy refused.
        block: What the refused address is for, or None.
        layers: Names of the layers that lack the entry.
        enforced: False when the policy only reports: it was told, and fetched all the same.
        kind: The stored word of this kind of violation.
    """

    target: TargetFacts
    hop: int
    hops: tuple[TargetFacts, ...]
    rule: str
    reason: DenyReason
    nearest_entry: str | None
    addresses: tuple[str, ...]
    block: str | None = None
    layers: tuple[str, ...] = ()
    enforced: bool = True
    kind: str = VIOLATION_KIND

    def to_json(self) -> dict[str, object]:
        """Plain values, keys as stored."""
        return {
            "kind": self.kind,
            "target": self.target.to_json(),
            "hop": self.hop,
            "hops": [hop.to_json() for hop in self.hops],
            "rule": self.rule,
            "reason": self.reason.value,
            "nearest_entry": self.nearest_entry,
            "addresses": list(self.addresses),
            "block": self.block,
            "layers": list(self.layers),
            "enforced": self.enforced,
        }


def facts_of(target: Target) -> TargetFacts:
    """*target* as events tell it."""
    # It loads OpenSSL, which nobody needs who is never denied.
    from hashlib import sha256

    digest = sha256(target.path_query.encode("ascii")).hexdigest()
    return TargetFacts(
        scheme=target.scheme, host=target.host, port=target.port, path_sha256=f"sha256:{digest}"
    )


def violation_of(deny: Deny, target: Target, *, before: tuple[Target, ...] = ()) -> Violation:
    """The violation of refusing *target* after the hops *before* it were requested."""
    return Violation(
        target=facts_of(target),
        hop=len(before),
        hops=tuple(facts_of(each) for each in before),
        rule=deny.rule,
        reason=deny.reason,
        nearest_entry=deny.nearest_entry,
        addresses=deny.addresses,
        block=deny.block,
        layers=deny.layers,
    )
