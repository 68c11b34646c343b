"""The Landlock domain of a confined child. Pure. Source: linux/landlock.h.

The domain handles TCP bind and connect and holds no rule: it denies both. A rule would be by port:
the kernel looks at the port of a connect and not at its address, so any host elsewhere that answers
on the proxy's very port would be reached. The one connect that is wanted is made by the parent.

It also handles writing to files, with a rule for everything but the kernel's: whoever has root's id
may write `core_pattern` without any capability, and the kernel would run what it names, as root and
outside; and every user may write into the folders that `/proc` has of that user's other processes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

__all__ = (
    "KERNEL_FILE_SYSTEMS",
    "KERNEL_FOLDERS",
    "NETWORK_ABI",
    "SCOPE_ABI",
    "landlock_ruleset",
    "write_rights",
)

NETWORK_ABI: Final = 4
"""The first version with network rules (Linux 6.7)."""

SCOPE_ABI: Final = 6
"""The first version that keeps a domain from signals and abstract UNIX sockets (Linux 6.12)."""

KERNEL_FOLDERS: Final = ("proc", "sys")
"""The entries of `/` whose files are the kernel's settings."""

KERNEL_FILE_SYSTEMS: Final[Mapping[str, int]] = {
    "binfmt_misc": 0x4249_4E4D,
    "bpf": 0xCAFE_4A11,
    "cgroup": 0x0027_E0EB,
    "cgroup2": 0x6367_7270,
    "configfs": 0x6265_6570,
    "debugfs": 0x6462_6720,
    "efivarfs": 0xDE5E_81E4,
    "proc": 0x0000_9FA0,
    "pstore": 0x6165_676C,
    "resctrl": 0x0765_5821,
    "securityfs": 0x7363_6673,
    "selinuxfs": 0xF97C_FF8C,
    "smackfs": 0x4341_5D53,
    "sysfs": 0x6265_6572,
    "tracefs": 0x7472_6163,
}
"""The same wherever they are mounted, with the word of `statfs`. Source: linux/magic.h."""

ACCESS_FS_WRITE_FILE: Final = 1 << 1
# Moving between folders is denied in every domain that handles a file right and does not grant it.
ACCESS_FS_REFER: Final = 1 << 13
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
    network = ACCESS_NET_BIND_TCP | ACCESS_NET_CONNECT_TCP
    ruleset = struct.pack("=QQ", write_rights(is_folder=True), network)
    if abi >= SCOPE_ABI:
        ruleset += struct.pack("=Q", SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL)
    return ruleset


def write_rights(*, is_folder: bool) -> int:
    """What is handled, and granted to what is not the kernel's."""
    return ACCESS_FS_WRITE_FILE | (ACCESS_FS_REFER if is_folder else 0)
