"""The Landlock domain of a confined child. Pure. Source: linux/landlock.h.

The domain handles TCP bind and connect and holds no rule: it denies both. A rule would be by port:
the kernel looks at the port of a connect and not at its address, so any host elsewhere that answers
on the proxy's very port would be reached. The one connect that is wanted is made by the parent.
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = ("NETWORK_ABI", "SCOPE_ABI", "landlock_ruleset")

NETWORK_ABI: Final = 4
"""The first version with network rules (Linux 6.7)."""

SCOPE_ABI: Final = 6
"""The first version that keeps a domain from signals and abstract UNIX sockets (Linux 6.12)."""

ACCESS_NET_BIND_TCP: Final = 1 << 0
ACCESS_NET_CONNECT_TCP: Final = 1 << 1
SCOPE_ABSTRACT_UNIX_SOCKET: Final = 1 << 0
SCOPE_SIGNAL: Final = 1 << 1


def landlock_ruleset(abi: int) -> bytes:
    """`struct landlock_ruleset_attr`, as long as *abi* knows it: no TCP bind, no TCP connect.

    From ABI 6 on no signal and no abstract UNIX socket outside the domain either.

    Raises:
        ValueError: This ABI has no network rules.
    """
    if abi < NETWORK_ABI:
        raise ValueError(f"Landlock ABI {abi} has no network rules")
    # No file right is handled: the child keeps its files.
    ruleset = struct.pack("=QQ", 0, ACCESS_NET_BIND_TCP | ACCESS_NET_CONNECT_TCP)
    if abi >= SCOPE_ABI:
        ruleset += struct.pack("=Q", SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL)
    return ruleset
