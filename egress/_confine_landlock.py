"""The Landlock domain of a confined child. Pure. Source: linux/landlock.h.

The domain handles TCP bind and connect and holds no rule: it denies both. A rule would be by port:
the kernel looks at the port of a connect and not at its address, so any host elsewhere that answers
on the proxy's very port would be reached. The one connect that is wanted is made by the parent.

For root's user id it also handles writing to files, with a rule for every entry of `/` but those of
the kernel: whoever has that id may write `core_pattern` without any capability, and the kernel
would run what it names, as root and outside.
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = ("KERNEL_FOLDERS", "NETWORK_ABI", "SCOPE_ABI", "landlock_ruleset", "write_rights")

NETWORK_ABI: Final = 4
"""The first version with network rules (Linux 6.7)."""

SCOPE_ABI: Final = 6
"""The first version that keeps a domain from signals and abstract UNIX sockets (Linux 6.12)."""

KERNEL_FOLDERS: Final = ("proc", "sys")
"""The entries of `/` whose files are the kernel's settings."""

ACCESS_FS_WRITE_FILE: Final = 1 << 1
# Moving between folders is denied in every domain that handles a file right and does not grant it.
ACCESS_FS_REFER: Final = 1 << 13
ACCESS_NET_BIND_TCP: Final = 1 << 0
ACCESS_NET_CONNECT_TCP: Final = 1 << 1
SCOPE_ABSTRACT_UNIX_SOCKET: Final = 1 << 0
SCOPE_SIGNAL: Final = 1 << 1


def landlock_ruleset(abi: int, *, user_id: int) -> bytes:
    """`struct landlock_ruleset_attr`, as long as *abi* knows it: no TCP bind, no TCP connect.

    From ABI 6 on no signal and no abstract UNIX socket outside the domain either.

    Raises:
        ValueError: This ABI has no network rules.
    """
    if abi < NETWORK_ABI:
        raise ValueError(f"Landlock ABI {abi} has no network rules")
    network = ACCESS_NET_BIND_TCP | ACCESS_NET_CONNECT_TCP
    ruleset = struct.pack("=QQ", write_rights(user_id=user_id, is_folder=True), network)
    if abi >= SCOPE_ABI:
        ruleset += struct.pack("=Q", SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL)
    return ruleset


def write_rights(*, user_id: int, is_folder: bool) -> int:
    """What is handled, and granted to an entry of `/` that is not the kernel's.

    Nothing for a user who is not root: the kernel's files are not that user's to write, and the
    command keeps every file right it had.
    """
    if user_id != 0:
        return 0
    return ACCESS_FS_WRITE_FILE | (ACCESS_FS_REFER if is_folder else 0)
