"""The filters: what the table says is what the program does, on every call."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from egress._confine_seccomp import (
    ARCHITECTURES,
    SYSCALLS,
    SyscallRule,
    Verdict,
    assemble,
    landlock_rules,
    namespace_rules,
)

MACHINES = sorted(ARCHITECTURES)
X32 = 0x4000_0000
CLOSE_ON_EXEC = 0o2000000
NON_BLOCKING = 0o4000
FAST_OPEN = 0x2000_0000


@attrs.frozen
class Call:
    """`struct seccomp_data`."""

    number: int
    architecture: int
    arguments: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)

    def to_bytes(self) -> bytes:
        return struct.pack("=IIQ6Q", self.number, self.architecture, 0, *self.arguments)


def run(program: bytes, call: Call) -> int:
    """The kernel's interpreter, as much of it as may occur; anything else is an error.

    Source: Documentation/networking/filter.rst and kernel/seccomp.c.
    """
    instructions = list(struct.iter_unpack("=HBBI", program))
    data = call.to_bytes()
    accumulator, at = 0, 0
    for _ in range(len(instructions)):
        code, if_true, if_false, operand = instructions[at]
        at += 1
        match code:
            case 0x20:
                assert operand % 4 == 0
                accumulator = int.from_bytes(data[operand : operand + 4], "little")
            case 0x54:
                accumulator &= operand
            case 0x15:
                at += if_true if accumulator == operand else if_false
            case 0x35:
                at += if_true if accumulator >= operand else if_false
            case 0x06:
                return int(operand)
            case _:
                pytest.fail(f"the kernel refuses instruction {code:#x}")
    pytest.fail("the program does not end")


def expected(rules: tuple[SyscallRule, ...], machine: str, call: Call) -> Verdict:
    """What the table says, read without any program."""
    if call.architecture != ARCHITECTURES[machine]:
        return Verdict.KILL
    if machine == "x86_64" and call.number >= X32:
        return Verdict.KILL
    for rule in rules:
        if SYSCALLS[machine][rule.syscall] != call.number:
            continue
        for clause in rule.clauses:
            words = [(call.arguments[t.index] & 0xFFFF_FFFF) & t.mask for t in clause.tests]
            if words == [test.value for test in clause.tests]:
                return clause.verdict
        return rule.otherwise
    return Verdict.ALLOW


def tables() -> list[tuple[str, tuple[SyscallRule, ...]]]:
    """Every table there is."""
    return [
        (f"{name}-{'unix' if allow_unix else 'strict'}", make(allow_unix=allow_unix))
        for name, make in (("namespace", namespace_rules), ("landlock", landlock_rules))
        for allow_unix in (False, True)
    ]


TABLES = dict(tables())
_INTERESTING = [0, 1, 2, 3, 5, 6, 10, 16, 17, 40, 132, 262, 0x5412, 0x541C, FAST_OPEN, 0x4000]
words = st.one_of(
    st.sampled_from(_INTERESTING),
    st.builds(
        lambda kind, flags: kind | flags,
        st.integers(0, 15),
        st.sampled_from([0, CLOSE_ON_EXEC, NON_BLOCKING, CLOSE_ON_EXEC | NON_BLOCKING]),
    ),
    st.integers(0, 2**32 - 1),
)
# A high word that the kernel does not read.
arguments = st.builds(lambda low, high: low | high << 32, words, st.sampled_from([0, 1, 2**31]))


@given(data=st.data(), machine=st.sampled_from(MACHINES), table=st.sampled_from(sorted(TABLES)))
def test_the_program_does_what_the_table_says(
    data: st.DataObject, machine: str, table: str
) -> None:
    """For every call, every architecture word, and arguments with bits that the kernel ignores."""
    rules = TABLES[table]
    numbers = sorted(SYSCALLS[machine].values())
    number = st.one_of(
        st.sampled_from(numbers),
        st.integers(0, 600),
        st.sampled_from(numbers).map(lambda known: known | X32),
        st.integers(0, 2**32 - 1),
    )
    architecture = st.one_of(
        st.just(ARCHITECTURES[machine]),
        st.sampled_from([*ARCHITECTURES.values(), 0x4000_0003, 0]),
    )
    call = Call(
        data.draw(number),
        data.draw(architecture),
        data.draw(st.tuples(*[arguments] * 6)),
    )

    assert expected(rules, machine, call) == run(assemble(rules, machine=machine), call)


def verdict(table: str, name: str, *given: int, machine: str = "x86_64") -> Verdict:
    """What the program says of one call."""
    six = (*given, 0, 0, 0, 0, 0, 0)[:6]
    # Six, whatever was given.
    call = Call(SYSCALLS[machine][name], ARCHITECTURES[machine], six)  # type: ignore[arg-type]
    return Verdict(run(assemble(TABLES[table], machine=machine), call))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("table", sorted(TABLES))
@given(family=st.integers(0, 2**64 - 1), kind=st.integers(0, 2**64 - 1), protocol=words)
@example(family=1 | 1 << 32, kind=1, protocol=0)
@example(family=2, kind=3, protocol=1)
@example(family=2, kind=1, protocol=262)
@example(family=2, kind=1 | 1 << 32, protocol=132)
def test_only_listed_sockets_open(
    table: str, machine: str, family: int, kind: int, protocol: int
) -> None:
    """Written out once more, by hand: what opens is TCP, and what ends inside a namespace."""
    answer = verdict(table, "socket", family, kind, protocol, machine=machine)
    low, form = family & 0xFFFF_FFFF, kind & 0xF
    internet = low in {2, 10}
    if table.startswith("namespace"):
        opens = (internet and form in {1, 2}) or (low == 16 and protocol == 0)
    else:
        opens = internet and form == 1 and protocol in {0, 6}
    opens |= table.endswith("unix") and low == 1

    assert (Verdict.ALLOW if opens else Verdict.DENIED) == answer


@pytest.mark.parametrize("table", sorted(TABLES))
@pytest.mark.parametrize("family", [3, 4, 15, 17, 21, 29, 30, 31, 38, 40, 42, 43, 44, 45])
def test_no_other_family_opens(table: str, family: int) -> None:
    """Packet, vsock, RDS, CAN, TIPC, Bluetooth, ALG, qrtr, SMC, XDP, MCTP and their like."""
    assert {Verdict.DENIED} == {verdict(table, "socket", family, kind) for kind in range(16)}


@pytest.mark.parametrize("table", ["namespace-strict", "landlock-strict"])
def test_a_pair_is_a_pipe_and_never_sends_to_a_path(table: str) -> None:
    """A datagram socket of a pair may send anywhere; a stream of a pair stays connected."""
    flags = CLOSE_ON_EXEC | NON_BLOCKING

    assert verdict(table, "socketpair", 1, 1 | flags) is Verdict.ALLOW
    assert verdict(table, "socketpair", 1, 5 | flags) is Verdict.ALLOW
    assert verdict(table, "socketpair", 1, 2 | flags) is Verdict.DENIED
    assert verdict(table, "socketpair", 1, 3 | flags) is Verdict.DENIED
    assert verdict(table, "socketpair", 30, 1) is Verdict.DENIED


@pytest.mark.parametrize("table", sorted(TABLES))
def test_no_ring_and_no_typing_for_the_person(table: str) -> None:
    """io_uring looks absent; text cannot be put into the terminal, other requests pass."""
    for name in ("io_uring_setup", "io_uring_enter", "io_uring_register"):
        assert verdict(table, name) is Verdict.NO_SUCH_CALL
    assert verdict(table, "ioctl", 0, 0x5412) is Verdict.NOT_PERMITTED
    assert verdict(table, "ioctl", 0, 0x5412 | 1 << 32) is Verdict.NOT_PERMITTED
    assert verdict(table, "ioctl", 0, 0x541C) is Verdict.NOT_PERMITTED
    assert verdict(table, "ioctl", 0, 0x5413) is Verdict.ALLOW


@pytest.mark.parametrize("table", sorted(TABLES))
def test_the_keys_of_the_user_are_out_of_reach(table: str) -> None:
    """Keyrings are no part of any namespace."""
    for name in ("add_key", "request_key", "keyctl"):
        assert verdict(table, name) is Verdict.NO_SUCH_CALL


def test_in_a_landlock_domain_nothing_is_shared_with_other_processes() -> None:
    """Queues, semaphores and shared memory are absent; limits and priorities are one's own."""
    table = "landlock-strict"

    for name in ("shmget", "shmat", "semop", "msgsnd", "msgrcv", "mq_open", "mq_timedsend"):
        assert verdict(table, name) is Verdict.NO_SUCH_CALL
        assert verdict("namespace-strict", name) is Verdict.ALLOW
    assert verdict(table, "prlimit64", 0, 7) is Verdict.ALLOW
    assert verdict(table, "prlimit64", 4711, 7) is Verdict.NOT_PERMITTED
    assert verdict(table, "setpriority", 0, 4711) is Verdict.ALLOW
    for which in (1, 2):
        assert verdict(table, "setpriority", which) is Verdict.NOT_PERMITTED
    for which in (2, 3):
        assert verdict(table, "ioprio_set", which) is Verdict.NOT_PERMITTED


def test_in_a_landlock_domain_connects_are_asked_and_nothing_else_connects() -> None:
    """`connect` is the parent's to make; a fast open and a listener pass no rule of Landlock."""
    table = "landlock-strict"

    assert verdict(table, "connect", 3) is Verdict.ASK
    assert verdict(table, "listen", 3) is Verdict.DENIED
    for flags in (FAST_OPEN, FAST_OPEN | 0x4000, FAST_OPEN | 1 << 40):
        assert verdict(table, "sendto", 3, 0, 0, flags) is Verdict.NOT_SUPPORTED
        assert verdict(table, "sendmsg", 3, 0, flags) is Verdict.NOT_SUPPORTED
        assert verdict(table, "sendmmsg", 3, 0, 1, flags) is Verdict.NOT_SUPPORTED
    assert verdict(table, "sendto", 3, 0, 0, 0x4000) is Verdict.ALLOW


def test_no_option_steers_a_socket_that_the_parent_connects() -> None:
    """Source routes and the choice of an interface; other options pass. A namespace has one way."""
    for level, option in ((0, 4), (1, 25), (1, 62), (1, 36), (0, 50), (41, 57), (41, 50)):
        assert verdict("landlock-strict", "setsockopt", 3, level, option) is Verdict.NOT_PERMITTED
        assert verdict("namespace-strict", "setsockopt", 3, level, option) is Verdict.ALLOW
    for level, option in ((1, 2), (6, 1), (6, 4), (0, 1), (41, 26)):
        assert verdict("landlock-strict", "setsockopt", 3, level, option) is Verdict.ALLOW


def test_the_numbers_are_those_of_this_machine() -> None:
    """A wrong number in the table is seen on the machine that it is of: the calls are made."""
    numbers = SYSCALLS.get(os.uname().machine)
    if numbers is None:
        pytest.skip(f"no numbers for {os.uname().machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    told = {}
    # Descriptor -1: each call names itself by the error that it alone gives for these arguments.
    for name in (
        "socket",
        "connect",
        "sendto",
        "sendmsg",
        "listen",
        "socketpair",
        "sendmmsg",
        "setsockopt",
        "ioctl",
    ):
        code = libc.syscall(numbers[name], -1, 0, 0, 0, 0, 0)
        told[name] = errno.errorcode[ctypes.get_errno()] if code == -1 else code

    assert told.pop("socket") == "EAFNOSUPPORT"
    assert told.pop("socketpair") == "EFAULT"
    assert set(told.values()) == {"EBADF"}


def test_names_agree_with_the_standard_library() -> None:
    """The constants are the kernel's, and Python knows some of them."""
    rule = namespace_rules(allow_unix=True)[0]
    families = {clause.tests[0].value for clause in rule.clauses}

    assert families == {socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_UNIX}
    assert socket.MSG_FASTOPEN == FAST_OPEN


def test_every_program_is_one_that_the_kernel_takes() -> None:
    """Whole instructions, fewer than the limit, every jump inside, and a return at the end."""
    for rules in TABLES.values():
        for machine in MACHINES:
            program = list(struct.iter_unpack("=HBBI", assemble(rules, machine=machine)))

            assert len(program) < 4096
            assert program[-1] == (0x06, 0, 0, Verdict.ALLOW)
            for at, (code, if_true, if_false, _) in enumerate(program):
                if code in {0x15, 0x35}:
                    assert at + 1 + max(if_true, if_false) < len(program)


def test_an_unknown_machine_has_no_program() -> None:
    """Numbers are never guessed."""
    with pytest.raises(KeyError):
        assemble(namespace_rules(allow_unix=False), machine="riscv64")
