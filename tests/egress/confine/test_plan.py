"""Which boundary is chosen from which facts, what proves it, and what the child is told."""

from __future__ import annotations

import struct

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from egress._confine_landlock import (
    KERNEL_FILE_SYSTEMS,
    KERNEL_FOLDERS,
    landlock_ruleset,
    write_rights,
)
from egress._confine_notify import Answer, Notification, answer_to
from egress._confine_plan import (
    Boundary,
    KernelFacts,
    Probe,
    StandardStream,
    StreamKind,
    boundary_limits,
    choose_boundary,
    failed_probes,
    missing_for,
    proxy_environment,
    unsafe_streams,
)

FULL = KernelFacts(machine="x86_64", namespaces=None, landlock_abi=7, seccomp=True, user_id=1000)
NO_NAMESPACES = "unshare failed with EPERM"

facts_of_kernels = st.builds(
    KernelFacts,
    machine=st.sampled_from(["x86_64", "aarch64", "riscv64", "i686", ""]),
    namespaces=st.sampled_from([None, NO_NAMESPACES]),
    landlock_abi=st.integers(0, 9),
    seccomp=st.booleans(),
    user_id=st.sampled_from([0, 1000]),
)


@pytest.mark.parametrize(
    ("changes", "boundary"),
    [
        pytest.param({}, Boundary.NAMESPACE, id="everything"),
        pytest.param({"machine": "aarch64"}, Boundary.NAMESPACE, id="another machine"),
        pytest.param({"landlock_abi": 0}, Boundary.NAMESPACE, id="no Landlock"),
        pytest.param({"namespaces": NO_NAMESPACES}, Boundary.LANDLOCK, id="no namespaces"),
        pytest.param(
            {"namespaces": NO_NAMESPACES, "landlock_abi": 4}, Boundary.LANDLOCK, id="first ABI"
        ),
        pytest.param({"namespaces": NO_NAMESPACES, "landlock_abi": 3}, None, id="too old an ABI"),
        pytest.param({"seccomp": False}, None, id="no filters"),
        pytest.param({"machine": "riscv64"}, None, id="unknown numbers"),
        pytest.param({"machine": "i686"}, None, id="32 bit"),
    ],
)
def test_the_strongest_boundary_that_the_kernel_gives(
    changes: dict[str, object], boundary: Boundary | None
) -> None:
    """Namespaces, else Landlock with its filter, else nothing."""
    # A table of fields, each of its own type.
    facts = attrs.evolve(FULL, **changes)  # type: ignore[arg-type]

    assert boundary is choose_boundary(facts)


@given(facts_of_kernels, st.sampled_from([None, Boundary.NAMESPACE, Boundary.LANDLOCK]))
def test_a_choice_lacks_nothing_and_is_never_none(
    facts: KernelFacts, wanted: Boundary | None
) -> None:
    """What is chosen is what was asked for, can be had, and is a boundary."""
    chosen = choose_boundary(facts, wanted=wanted)

    assert chosen is not Boundary.NONE
    if chosen is None:
        asked = [wanted] if wanted else [Boundary.NAMESPACE, Boundary.LANDLOCK]
        assert all(missing_for(each, facts) for each in asked)
    else:
        assert missing_for(chosen, facts) is None
        assert wanted in {None, chosen}


@given(facts_of_kernels, st.booleans())
def test_root_and_open_doors_are_always_told(facts: KernelFacts, allow_unix: bool) -> None:
    """A limit that applies is never left out."""
    for boundary in (Boundary.NAMESPACE, Boundary.LANDLOCK):
        told = " ".join(boundary_limits(boundary, facts, allow_unix=allow_unix))

        assert ("root" in told) == (facts.user_id == 0)
        assert ("--allow-unix" in told) == allow_unix
        assert ("listen" in told) == (boundary is Boundary.LANDLOCK)
        assert ("signals" in told) == (boundary is Boundary.LANDLOCK and facts.landlock_abi < 6)


def test_no_boundary_says_so() -> None:
    """The word for none is told with what it means."""
    assert "no boundary" in boundary_limits(Boundary.NONE, FULL, allow_unix=False)[0]
    assert missing_for(Boundary.NONE, FULL) is None


PROBES = sorted(Probe)


@given(
    st.sets(st.sampled_from(PROBES)),
    st.dictionaries(st.sampled_from(PROBES), st.integers(0, 130)),
    st.sets(st.sampled_from(PROBES)),
)
@example({Probe.TCP}, {}, set())
@example({Probe.UDP}, {Probe.UDP: 0}, set())
@example({Probe.UDP}, {Probe.UDP: 0}, {Probe.UDP})
@example({Probe.TCP}, {Probe.TCP: 111}, {Probe.TCP})
def test_a_probe_proves_only_when_tried_failed_and_unseen(
    expected: set[Probe], results: dict[Probe, int], arrived: set[Probe]
) -> None:
    """Untried, gone through or seen outside: the boundary is not proven."""
    told = {probe.value: code for probe, code in results.items()}
    failed = failed_probes(expected, told, arrived)

    for probe in expected:
        went_through = results.get(probe) == 0 and probe is not Probe.UDP
        holds = probe in results and probe not in arrived and not went_through
        assert holds == (probe not in failed)
    assert set(failed) <= expected


@pytest.mark.parametrize(
    ("kind", "is_safe"),
    [
        (StreamKind.CLOSED, True),
        (StreamKind.FILE, True),
        (StreamKind.PIPE, True),
        (StreamKind.TERMINAL, True),
        (StreamKind.MEMORY, True),
        (StreamKind.SOCKET, False),
        (StreamKind.FOLDER, False),
        (StreamKind.KERNEL, False),
        (StreamKind.MASTER, False),
        (StreamKind.OTHER, False),
    ],
)
def test_a_standard_stream_that_leads_outside_is_unsafe(kind: StreamKind, is_safe: bool) -> None:
    """A socket keeps the namespace that made it, and what has no kind may hold one."""
    streams = [
        StandardStream(number=0, kind=StreamKind.PIPE),
        StandardStream(number=1, kind=kind),
    ]

    assert (() if is_safe else (1,)) == unsafe_streams(streams)


_names = st.sampled_from(
    ["http_proxy", "HTTP_PROXY", "No_Proxy", "no_proxy", "NO_PROXY", "ftp_proxy", "PATH", "HOME"]
)


@given(st.dictionaries(_names, st.text(max_size=5)), st.integers(1, 65535))
def test_the_child_is_told_of_one_proxy_and_of_no_exception(
    environment: dict[str, str], port: int
) -> None:
    """Everything about proxies is ours, everything else is kept, and what was given is not touched."""
    before = dict(environment)
    told = proxy_environment(environment, port=port, run="r:1", token="t/@")

    assert before == environment
    assert {told[name] for name in ("http_proxy", "https_proxy", "all_proxy")} == {
        f"http://r%3A1:t%2F%40@127.0.0.1:{port}"
    }
    assert {told[name] for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")} == {
        told["http_proxy"]
    }
    others = {n: v for n, v in environment.items() if not n.lower().endswith("_proxy")}
    assert others == {n: v for n, v in told.items() if not n.lower().endswith("_proxy")}
    assert len(told) == len(others) + 6


@pytest.mark.parametrize(("abi", "size"), [(4, 16), (5, 16), (6, 24), (7, 24), (12, 24)])
def test_a_domain_denies_every_bind_and_connect(abi: int, size: int) -> None:
    """Both network rights are handled, writing to files, and from ABI 6 on both scopes."""
    ruleset = landlock_ruleset(abi)

    assert size == len(ruleset)
    assert struct.unpack_from("=QQ", ruleset) == (1 << 1 | 1 << 13, 0b11)
    assert ruleset[16:] in {b"", struct.pack("=Q", 0b11)}


def test_nobody_may_write_what_is_the_kernels() -> None:
    """What is granted elsewhere is all that is handled."""
    handled = struct.unpack_from("=Q", landlock_ruleset(7))[0]

    assert handled == write_rights(is_folder=True) == 1 << 1 | 1 << 13
    # A file has no moving in or out.
    assert write_rights(is_folder=False) == 1 << 1
    assert KERNEL_FOLDERS == ("proc", "sys")
    assert {"proc", "sysfs", "cgroup", "cgroup2", "debugfs"} <= set(KERNEL_FILE_SYSTEMS)


# Copied once more from linux/magic.h, by the names that it has there.
_MAGIC = {
    "binfmt_misc": 0x42494E4D,  # BINFMTFS_MAGIC
    "bpf": 0xCAFE4A11,  # BPF_FS_MAGIC
    "cgroup": 0x27E0EB,  # CGROUP_SUPER_MAGIC
    "cgroup2": 0x63677270,  # CGROUP2_SUPER_MAGIC
    "configfs": 0x62656570,  # CONFIGFS_MAGIC of fs/configfs/mount.c
    "debugfs": 0x64626720,  # DEBUGFS_MAGIC
    "efivarfs": 0xDE5E81E4,  # EFIVARFS_MAGIC
    "proc": 0x9FA0,  # PROC_SUPER_MAGIC
    "pstore": 0x6165676C,  # PSTOREFS_MAGIC
    "resctrl": 0x7655821,  # RDTGROUP_SUPER_MAGIC
    "securityfs": 0x73636673,  # SECURITYFS_MAGIC
    "selinuxfs": 0xF97CFF8C,  # SELINUX_MAGIC
    "smackfs": 0x43415D53,  # SMACK_MAGIC
    "sysfs": 0x62656572,  # SYSFS_MAGIC
    "tracefs": 0x74726163,  # TRACEFS_MAGIC
}


def test_every_file_system_of_the_kernels_is_known_by_its_word() -> None:
    """What is missing here is written to wherever it is mounted, and passes as a stream."""
    assert dict(KERNEL_FILE_SYSTEMS) == _MAGIC


@pytest.mark.parametrize("abi", [0, 1, 3])
def test_an_abi_without_network_rules_makes_no_domain(abi: int) -> None:
    """Such a ruleset would deny nothing."""
    with pytest.raises(ValueError, match="network rules"):
        landlock_ruleset(abi)


def _ipv4(host: str, port: int) -> bytes:
    octets = bytes(int(part) for part in host.split("."))
    return struct.pack("=H", 2) + port.to_bytes(2, "big") + octets + bytes(8)


def _ipv6(tail: bytes, port: int) -> bytes:
    return struct.pack("=H", 10) + port.to_bytes(2, "big") + bytes(4) + tail + bytes(4)


MAPPED = bytes(10) + b"\xff\xff"


@pytest.mark.parametrize(
    ("address", "answer"),
    [
        pytest.param(_ipv4("127.0.0.1", 8080), Answer.CONNECT, id="the proxy"),
        pytest.param(_ipv4("127.0.0.1", 8080)[:8], Answer.CONNECT, id="without padding"),
        pytest.param(_ipv6(MAPPED + b"\x7f\0\0\1", 8080), Answer.CONNECT, id="mapped"),
        pytest.param(_ipv4("127.0.0.1", 8081), Answer.REFUSE, id="another port"),
        pytest.param(_ipv4("127.0.0.2", 8080), Answer.REFUSE, id="another loopback"),
        pytest.param(_ipv4("8.8.8.8", 8080), Answer.REFUSE, id="elsewhere on that port"),
        pytest.param(_ipv4("0.0.0.0", 8080), Answer.REFUSE, id="any"),
        pytest.param(_ipv6(bytes(15) + b"\1", 8080), Answer.REFUSE, id="ipv6 loopback"),
        pytest.param(_ipv6(MAPPED + b"\x08\x08\x08\x08", 8080), Answer.REFUSE, id="mapped far"),
        pytest.param(_ipv4("127.0.0.1", 8080)[:7], Answer.REFUSE, id="cut"),
        pytest.param(b"\0\0" + bytes(14), Answer.REFUSE, id="unspecified family"),
        pytest.param(b"\1\0/run/docker.sock", Answer.REFUSE, id="unix"),
        pytest.param(b"", Answer.REFUSE, id="nothing"),
    ],
)
def test_only_the_proxy_itself_is_connected(address: bytes, answer: Answer) -> None:
    """Its address and its port, both."""
    assert answer is answer_to(address, port=8080, allow_unix=False)


@example(b"\x01", 1, True)
@given(st.binary(max_size=130), st.integers(1, 65535), st.booleans())
def test_any_bytes_have_an_answer_and_unix_only_on_request(
    address: bytes, port: int, allow_unix: bool
) -> None:
    """Total; the kernel goes on only with UNIX, and only where that was allowed."""
    answer = answer_to(address, port=port, allow_unix=allow_unix)

    unix = address[:2] == b"\1\0"
    assert (answer is Answer.CONTINUE) == (unix and allow_unix)


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 2**31), st.tuples(*[st.integers(0, 2**64 - 1)] * 6)
)
def test_a_notification_is_read_as_the_kernel_writes_it(
    name: int, thread: int, arguments: tuple[int, ...]
) -> None:
    """id, pid, flags, then the number, architecture, instruction pointer and six arguments."""
    raw = struct.pack("=QII", name, thread, 0) + struct.pack("=iIQ6Q", 42, 1, 2, *arguments)
    told = Notification.from_bytes(raw)

    assert len(raw) == 80
    assert (name, thread) == (told.id, told.thread)
    assert (arguments[1], arguments[2] & 0xFFFF_FFFF) == (told.address, told.length)
    assert told.descriptor == arguments[0] & 0x7FFF_FFFF
