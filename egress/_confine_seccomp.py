"""The system call filters of a confined child, as tables and as BPF. Pure.

A filter is a table of rules: for one system call, clauses in order, and a verdict when none holds.
What the table does not name is allowed: the network namespace or Landlock is the wall, and the
filter closes the doors that the wall does not have. `assemble` turns a table into the program that
the kernel runs.

Arguments are compared as the kernel reads them: `int` and `unsigned int` are the low word alone. A
filter that compares all 64 bits is passed by setting a high one (CVE-2019-10063).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import attrs

__all__ = (
    "ARCHITECTURES",
    "SYSCALLS",
    "ArgumentTest",
    "Clause",
    "SyscallRule",
    "Verdict",
    "assemble",
    "landlock_rules",
    "namespace_rules",
)


class Verdict(IntEnum):
    """What the kernel does with a call. Source: linux/seccomp.h, asm-generic/errno*.h."""

    ALLOW = 0x7FFF_0000
    ASK = 0x7FC0_0000  # SECCOMP_RET_USER_NOTIF: the parent answers
    KILL = 0x8000_0000
    NOT_PERMITTED = 0x0005_0000 | 1  # EPERM
    DENIED = 0x0005_0000 | 13  # EACCES, what Landlock answers too
    NO_SUCH_CALL = 0x0005_0000 | 38  # ENOSYS: libraries fall back to what came before
    NOT_SUPPORTED = 0x0005_0000 | 95  # EOPNOTSUPP: clients fall back from TCP fast open


ARCHITECTURES: Final[Mapping[str, int]] = {
    "x86_64": 0xC000_003E,  # AUDIT_ARCH_X86_64, linux/audit.h
    "aarch64": 0xC000_00B7,  # AUDIT_ARCH_AARCH64, linux/audit.h
}
"""The word in `seccomp_data.arch` for each machine whose numbers are known here."""

SYSCALLS: Final = {
    # Source: the kernel's table of 64-bit calls, syscall_64.tbl of x86.
    "x86_64": {
        "ioctl": 16,
        "socket": 41,
        "connect": 42,
        "sendto": 44,
        "sendmsg": 46,
        "listen": 50,
        "socketpair": 53,
        "setsockopt": 54,
        "shmget": 29,
        "shmat": 30,
        "shmctl": 31,
        "semget": 64,
        "semop": 65,
        "semctl": 66,
        "msgget": 68,
        "msgsnd": 69,
        "msgrcv": 70,
        "msgctl": 71,
        "setpriority": 141,
        "semtimedop": 220,
        "mq_open": 240,
        "mq_unlink": 241,
        "mq_timedsend": 242,
        "mq_timedreceive": 243,
        "mq_notify": 244,
        "mq_getsetattr": 245,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "ioprio_set": 251,
        "prlimit64": 302,
        "sendmmsg": 307,
        "io_uring_setup": 425,
        "io_uring_enter": 426,
        "io_uring_register": 427,
    },
    # Source: the kernel's generic table, asm-generic/unistd.h.
    "aarch64": {
        "ioctl": 29,
        "socket": 198,
        "socketpair": 199,
        "listen": 201,
        "connect": 203,
        "sendto": 206,
        "setsockopt": 208,
        "sendmsg": 211,
        "ioprio_set": 30,
        "setpriority": 140,
        "mq_open": 180,
        "mq_unlink": 181,
        "mq_timedsend": 182,
        "mq_timedreceive": 183,
        "mq_notify": 184,
        "mq_getsetattr": 185,
        "msgget": 186,
        "msgctl": 187,
        "msgrcv": 188,
        "msgsnd": 189,
        "semget": 190,
        "semctl": 191,
        "semtimedop": 192,
        "semop": 193,
        "shmget": 194,
        "shmctl": 195,
        "shmat": 196,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "prlimit64": 261,
        "sendmmsg": 269,
        "io_uring_setup": 425,
        "io_uring_enter": 426,
        "io_uring_register": 427,
    },
}
"""The numbers of the calls that the tables name."""

# The x32 ABI of x86_64: the same architecture word, other numbers. Source: asm/unistd.h.
_X32_BIT: Final = 0x4000_0000

# Source: linux/socket.h.
_AF_UNIX: Final = 1
_AF_INET: Final = 2
_AF_INET6: Final = 10
_AF_NETLINK: Final = 16
_MSG_FASTOPEN: Final = 0x2000_0000
# Source: linux/net.h; the bits above the mask are SOCK_NONBLOCK and SOCK_CLOEXEC.
_SOCK_TYPE_MASK: Final = 0xF
_SOCK_STREAM: Final = 1
_SOCK_DGRAM: Final = 2
_SOCK_SEQPACKET: Final = 5
# Source: linux/in.h, linux/netlink.h.
_IPPROTO_DEFAULT: Final = 0
_IPPROTO_TCP: Final = 6
_NETLINK_ROUTE: Final = 0
# Source: asm-generic/ioctls.h. Both put text into the terminal as if a person had typed it.
_TIOCSTI: Final = 0x5412
_TIOCLINUX: Final = 0x541C

# Keys belong to the user and not to a namespace: the command could read what the user keeps there.
_KEYS: Final = ("add_key", "request_key", "keyctl")
# A queue, a semaphore or shared memory has its other end in any process of the user.
_SHARED: Final = (
    "shmget",
    "shmat",
    "shmctl",
    "semget",
    "semop",
    "semtimedop",
    "semctl",
    "msgget",
    "msgsnd",
    "msgrcv",
    "msgctl",
    "mq_open",
    "mq_unlink",
    "mq_timedsend",
    "mq_timedreceive",
    "mq_notify",
    "mq_getsetattr",
)
# Source: linux/resource.h, linux/ioprio.h. What is set for a group or a user reaches others.
_PRIO_OTHERS: Final = (1, 2)
_IOPRIO_OTHERS: Final = (2, 3)

# Options that send a packet elsewhere than its address says: source routes, and the choice of an
# interface. Source: asm-generic/socket.h, linux/in.h, linux/in6.h.
_STEERING: Final = (
    (1, 25),  # SOL_SOCKET, SO_BINDTODEVICE
    (1, 36),  # SOL_SOCKET, SO_MARK
    (1, 62),  # SOL_SOCKET, SO_BINDTOIFINDEX
    (0, 4),  # IPPROTO_IP, IP_OPTIONS: loose and strict source routes
    (0, 50),  # IPPROTO_IP, IP_UNICAST_IF
    (41, 2),  # IPPROTO_IPV6, IPV6_2292PKTINFO
    (41, 5),  # IPPROTO_IPV6, IPV6_2292RTHDR
    (41, 6),  # IPPROTO_IPV6, IPV6_2292PKTOPTIONS
    (41, 50),  # IPPROTO_IPV6, IPV6_PKTINFO
    (41, 57),  # IPPROTO_IPV6, IPV6_RTHDR
    (41, 76),  # IPPROTO_IPV6, IPV6_UNICAST_IF
)

_WORD: Final = 0xFFFF_FFFF
# Source: linux/bpf_common.h.
_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
_JUMP_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
# Source: struct seccomp_data in linux/seccomp.h.
_OFFSET_NUMBER: Final = 0
_OFFSET_ARCHITECTURE: Final = 4
_OFFSET_ARGUMENTS: Final = 16


@attrs.frozen
class ArgumentTest:
    """Holds when the low word of one argument, masked, is *value*."""

    index: int
    value: int
    mask: int = attrs.field(default=_WORD, kw_only=True)


@attrs.frozen(kw_only=True)
class Clause:
    """*verdict* when all *tests* hold. A clause without tests always holds."""

    tests: tuple[ArgumentTest, ...]
    verdict: Verdict


@attrs.frozen(kw_only=True)
class SyscallRule:
    """The first clause that holds decides a call of *syscall*; else *otherwise*."""

    syscall: str
    clauses: tuple[Clause, ...] = ()
    otherwise: Verdict


@attrs.frozen
class _Instruction:
    code: int
    operand: int
    if_true: int = 0
    if_false: int = 0


def namespace_rules(*, allow_unix: bool) -> tuple[SyscallRule, ...]:
    """What an empty network namespace does not hold: UNIX paths, vsock, and odd families.

    TCP, UDP and the route part of netlink stay open, because they end inside the namespace. Vsock
    does not: it reaches the hypervisor from any network namespace. UNIX sockets that have a path
    belong to the file system and not to the namespace.
    """
    ends_inside = tuple(
        _socket(family, kind) for family in _INTERNET for kind in (_SOCK_STREAM, _SOCK_DGRAM)
    )
    routes = Clause(
        tests=(ArgumentTest(0, _AF_NETLINK), ArgumentTest(2, _NETLINK_ROUTE)),
        verdict=Verdict.ALLOW,
    )
    sockets = SyscallRule(
        syscall="socket",
        clauses=(*ends_inside, routes, *_unix_clauses(allow_unix=allow_unix)),
        otherwise=Verdict.DENIED,
    )
    return (sockets, *_common_rules(allow_unix=allow_unix))


def landlock_rules(*, allow_unix: bool) -> tuple[SyscallRule, ...]:
    """What Landlock's hold on TCP connects does not cover: everything that is not one.

    A connect is asked of the parent, which makes it; Landlock denies it to the child. Multipath TCP and SCTP are stream sockets too, and no TCP to Landlock. A fast open connects in
    `sendto` and passes no connect rule. `listen` takes a port by itself and passes no bind rule:
    a child that can be called from outside needs no way out. And the socket that the parent connects
    is the child's, with the child's options: none of them may lead its packets elsewhere.
    """
    tcp = tuple(
        _socket(family, _SOCK_STREAM, protocol)
        for family in _INTERNET
        for protocol in (_IPPROTO_DEFAULT, _IPPROTO_TCP)
    )
    sockets = SyscallRule(
        syscall="socket",
        clauses=(*tcp, *_unix_clauses(allow_unix=allow_unix)),
        otherwise=Verdict.DENIED,
    )
    fast_opens = tuple(
        SyscallRule(
            syscall=name,
            clauses=(
                Clause(
                    tests=(ArgumentTest(index, _MSG_FASTOPEN, mask=_MSG_FASTOPEN),),
                    verdict=Verdict.NOT_SUPPORTED,
                ),
            ),
            otherwise=Verdict.ALLOW,
        )
        for name, index in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3))
    )
    connecting = SyscallRule(syscall="connect", otherwise=Verdict.ASK)
    listening = SyscallRule(syscall="listen", otherwise=Verdict.DENIED)
    steering = SyscallRule(
        syscall="setsockopt",
        clauses=tuple(
            Clause(
                tests=(ArgumentTest(1, level), ArgumentTest(2, option)),
                verdict=Verdict.NOT_PERMITTED,
            )
            for level, option in _STEERING
        ),
        otherwise=Verdict.ALLOW,
    )
    return (
        sockets,
        connecting,
        listening,
        steering,
        *fast_opens,
        *_absent(_SHARED),
        *_for_oneself(),
        *_common_rules(allow_unix=allow_unix),
    )


def _absent(names: tuple[str, ...]) -> tuple[SyscallRule, ...]:
    return tuple(SyscallRule(syscall=name, otherwise=Verdict.NO_SUCH_CALL) for name in names)


def _for_oneself() -> tuple[SyscallRule, ...]:
    """Limits and priorities of this process alone: others of the user could be ended by them."""
    own = Clause(tests=(ArgumentTest(0, 0),), verdict=Verdict.ALLOW)
    limits = SyscallRule(syscall="prlimit64", clauses=(own,), otherwise=Verdict.NOT_PERMITTED)
    priorities = tuple(
        SyscallRule(
            syscall=name,
            clauses=tuple(
                Clause(tests=(ArgumentTest(0, which),), verdict=Verdict.NOT_PERMITTED)
                for which in others
            ),
            otherwise=Verdict.ALLOW,
        )
        for name, others in (("setpriority", _PRIO_OTHERS), ("ioprio_set", _IOPRIO_OTHERS))
    )
    return (limits, *priorities)


_INTERNET: Final = (_AF_INET, _AF_INET6)


def _socket(family: int, kind: int, protocol: int | None = None) -> Clause:
    tests = [ArgumentTest(0, family), ArgumentTest(1, kind, mask=_SOCK_TYPE_MASK)]
    if protocol is not None:
        tests.append(ArgumentTest(2, protocol))
    return Clause(tests=tuple(tests), verdict=Verdict.ALLOW)


def _unix_clauses(*, allow_unix: bool) -> tuple[Clause, ...]:
    if not allow_unix:
        return ()
    return (Clause(tests=(ArgumentTest(0, _AF_UNIX),), verdict=Verdict.ALLOW),)


def _common_rules(*, allow_unix: bool) -> tuple[SyscallRule, ...]:
    # A connected pair is a pipe, and event loops need it. A pair of datagram sockets is not: each
    # end may still send to any path. SOCK_RAW is the same thing by another name in this family.
    pairs = tuple(_socket(_AF_UNIX, kind) for kind in (_SOCK_STREAM, _SOCK_SEQPACKET))
    typing = tuple(
        Clause(tests=(ArgumentTest(1, request),), verdict=Verdict.NOT_PERMITTED)
        for request in (_TIOCSTI, _TIOCLINUX)
    )
    # io_uring opens sockets and connects them without any of the calls above.
    rings = _absent(("io_uring_setup", "io_uring_enter", "io_uring_register"))
    return (
        SyscallRule(
            syscall="socketpair",
            clauses=(*pairs, *_unix_clauses(allow_unix=allow_unix)),
            otherwise=Verdict.DENIED,
        ),
        SyscallRule(syscall="ioctl", clauses=typing, otherwise=Verdict.ALLOW),
        *rings,
        *_absent(_KEYS),
    )


def assemble(rules: tuple[SyscallRule, ...], *, machine: str) -> bytes:
    """The filter as an array of `struct sock_filter` for *machine*, a key of `ARCHITECTURES`.

    A call of another architecture, or of x32, kills the process: its numbers mean other calls.

    Raises:
        KeyError: *machine* is not known, or a rule names a call without a number.
    """
    numbers = SYSCALLS[machine]
    program = [
        _Instruction(_LOAD, _OFFSET_ARCHITECTURE),
        _Instruction(_JUMP_EQUAL, ARCHITECTURES[machine], if_true=1),
        _Instruction(_RETURN, Verdict.KILL),
        _Instruction(_LOAD, _OFFSET_NUMBER),
    ]
    if machine == "x86_64":
        program += [
            _Instruction(_JUMP_AT_LEAST, _X32_BIT, if_false=1),
            _Instruction(_RETURN, Verdict.KILL),
        ]
    for rule in rules:
        body = _rule_body(rule)
        program += [_Instruction(_JUMP_EQUAL, numbers[rule.syscall], if_false=len(body)), *body]
    program.append(_Instruction(_RETURN, Verdict.ALLOW))
    return b"".join(
        struct.pack("=HBBI", each.code, each.if_true, each.if_false, each.operand)
        for each in program
    )


def _rule_body(rule: SyscallRule) -> list[_Instruction]:
    """Runs once the number matched, and returns on every path."""
    body = [each for clause in rule.clauses for each in _clause_body(clause)]
    return [*body, _Instruction(_RETURN, rule.otherwise)]


def _clause_body(clause: Clause) -> list[_Instruction]:
    body = [_Instruction(_RETURN, clause.verdict)]
    # From the last test to the first: what follows a test is how far it jumps when it fails.
    for test in reversed(clause.tests):
        masked = [_Instruction(_AND, test.mask)] if test.mask != _WORD else []
        body = [
            _Instruction(_LOAD, _OFFSET_ARGUMENTS + 8 * test.index),
            *masked,
            _Instruction(_JUMP_EQUAL, test.value, if_false=len(body)),
            *body,
        ]
    return body
