"""The redirect machine of one fetch (R12), without I/O. Pure.

It says what follows from a response; the caller checks the target it names against the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from egress.errors import BadRedirect, TooManyRedirects, UrlRejected
from egress.url import Target, resolve_location

__all__ = ("REDIRECT_STATUSES", "Chain", "Hop", "next_hop")

# R12. 300 offers a choice, 304 answers a condition nobody set, 305 and 306 name proxies.
REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})


@attrs.frozen(kw_only=True)
class Hop:
    """One request that was answered.

    Attributes:
        target: What was requested.
        status: What it answered.
    """

    target: Target
    status: int


@attrs.frozen(kw_only=True)
class Chain:
    """Where a fetch stands.

    Attributes:
        target: What is to be requested, or was requested last.
        hops: The answered requests before it.
        downgraded: Whether some redirect went from https to http.
    """

    target: Target
    hops: tuple[Hop, ...] = ()
    downgraded: bool = False

    @property
    def before(self) -> tuple[Target, ...]:
        """The targets that were requested before this one."""
        return tuple(hop.target for hop in self.hops)


def next_hop(
    chain: Chain, *, status: int, locations: Sequence[str], max_redirects: int
) -> Chain | None:
    """What to request after this answer to `chain.target`; None when the answer is final.

    Args:
        chain: Where the fetch stands.
        status: Status of the answer.
        locations: The values of all its `Location` fields.
        max_redirects: How many redirects one fetch follows.

    Raises:
        TooManyRedirects: The answer would be one redirect more.
        BadRedirect: Several `Location` fields differ: each reader would go elsewhere.
        UrlRejected: The reference is not one we accept; `hop` tells which.
    """
    if status not in REDIRECT_STATUSES or not locations:
        return None
    host, hop = chain.target.host, len(chain.hops)
    if len(set(locations)) > 1:
        raise BadRedirect(host=host, hop=hop, detail="several different Location fields")
    if hop >= max_redirects:
        raise TooManyRedirects(host=host, hop=hop, detail=f"more than {max_redirects}")
    try:
        target = resolve_location(chain.target, locations[0])
    except UrlRejected as error:
        raise error.at_hop(hop + 1) from error
    return Chain(
        target=target,
        hops=(*chain.hops, Hop(target=chain.target, status=status)),
        downgraded=chain.downgraded or _is_downgrade(chain.target, target),
    )


def _is_downgrade(before: Target, after: Target) -> bool:
    return before.scheme == "https" and after.scheme == "http"
