"""Which boundary a confined child gets, and what proves it. Pure: facts come in, plans go out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Final
from urllib.parse import quote

import attrs

from egress._confine_landlock import NETWORK_ABI, SCOPE_ABI
from egress._confine_seccomp import ARCHITECTURES

__all__ = (
    "Boundary",
    "KernelFacts",
    "Probe",
    "StandardStream",
    "StreamKind",
    "boundary_limits",
    "choose_boundary",
    "failed_probes",
    "missing_for",
    "proxy_environment",
    "unsafe_streams",
)


class Boundary(StrEnum):
    """What keeps the child in. The words are what the command takes and tells."""

    NAMESPACE = "namespace"
    LANDLOCK = "landlock"
    NONE = "unconfined"


@attrs.frozen(kw_only=True)
class KernelFacts:
    """What this kernel gives to this user; each was tried, not guessed from a version.

    Attributes:
        machine: As `uname -m` says it.
        namespaces: None when user, network, process and mount namespaces were entered and the
            loopback interface came up; else what failed.
        landlock_abi: 0 without Landlock.
        seccomp: Whether system call filters can be installed.
        user_id: Who asks. Root's files stay root's in every boundary.
    """

    machine: str
    namespaces: str | None
    landlock_abi: int
    seccomp: bool
    user_id: int


class StreamKind(StrEnum):
    """What an inherited descriptor is."""

    CLOSED = "closed"
    FILE = "a file"
    PIPE = "a pipe"
    TERMINAL = "a terminal"
    MEMORY = "a memory device"
    SOCKET = "a socket"
    FOLDER = "a folder"
    KERNEL = "a file of the kernel's"
    MASTER = "the typing end of a terminal"
    OTHER = "neither file, pipe nor terminal"


@attrs.frozen(kw_only=True)
class StandardStream:
    """One of the three inherited descriptors.

    Attributes:
        number: 0, 1 or 2.
        kind: What it is.
    """

    number: int
    kind: StreamKind


class Probe(StrEnum):
    """What the child tries from inside before its command starts; each must come to nothing."""

    TCP = "tcp"
    TCP6 = "tcp6"
    UDP = "udp"
    UNIX = "unix"
    VSOCK = "vsock"
    RAW = "raw"
    PACKET = "packet"


_ORDER: Final = (Boundary.NAMESPACE, Boundary.LANDLOCK)


def missing_for(boundary: Boundary, facts: KernelFacts) -> str | None:
    """What *boundary* needs and *facts* do not have, as a clause; None when nothing is missing."""
    if boundary is Boundary.NONE:
        return None
    # Both need the filter: a network namespace alone leaves vsock and UNIX paths open.
    if facts.machine not in ARCHITECTURES:
        return f"no system call numbers are known for {facts.machine}"
    if not facts.seccomp:
        return "the kernel installs no system call filter"
    if boundary is Boundary.NAMESPACE:
        return facts.namespaces
    if facts.landlock_abi < NETWORK_ABI:
        return f"Landlock ABI {facts.landlock_abi} has no network rules (ABI {NETWORK_ABI} has)"
    return None


def choose_boundary(facts: KernelFacts, *, wanted: Boundary | None = None) -> Boundary | None:
    """The strongest boundary that *facts* allow, or *wanted*; None when it cannot be had.

    `Boundary.NONE` is never chosen here: who runs a command without a boundary writes that.
    """
    candidates = _ORDER if wanted is None else (wanted,)
    possible = (each for each in candidates if missing_for(each, facts) is None)
    return next(possible, None)


def boundary_limits(boundary: Boundary, facts: KernelFacts, *, allow_unix: bool) -> tuple[str, ...]:
    """What *boundary* does not hold, one sentence each. Whoever names a boundary says these."""
    limits = list[str]()
    if boundary is Boundary.NONE:
        return ("nothing is held: the proxy variables are a convenience and no boundary",)
    if boundary is Boundary.LANDLOCK:
        limits.append("the command cannot listen, not even on loopback")
        if facts.landlock_abi < SCOPE_ABI:
            limits.append(f"Landlock ABI {facts.landlock_abi} lets signals out")
    if allow_unix:
        limits.append(_unix_limit(boundary, facts))
    if facts.user_id == 0:
        limits.append(
            "the command keeps root's user id and can write what root owns, and what it plants "
            "there others may run: start it as an ordinary user"
        )
    return tuple(limits)


def _unix_limit(boundary: Boundary, facts: KernelFacts) -> str:
    abstract_open = boundary is Boundary.LANDLOCK and facts.landlock_abi < SCOPE_ABI
    which = "every UNIX socket" if abstract_open else "every UNIX socket that has a path"
    return f"{which} can be reached, and with it whatever its server does (--allow-unix)"


_UNSAFE_STREAMS: Final = frozenset(
    {
        StreamKind.SOCKET,
        StreamKind.FOLDER,
        StreamKind.KERNEL,
        StreamKind.MASTER,
        StreamKind.OTHER,
    }
)


def unsafe_streams(streams: Iterable[StandardStream]) -> tuple[int, ...]:
    """The standard streams that would carry the child out of its boundary.

    A socket belongs to the namespace that made it. One of the internet can be disconnected and
    connected again elsewhere, a UNIX one may have a server at its other end that does more than to
    read, and descriptors can be sent over it. What the kernel gives no name to (rings, pollers,
    processes) and devices that are no terminal can hold sockets, or be network interfaces. A folder
    leads to what its mounts outside show, and so does a file of the kernel's, which can be opened
    anew for writing. What is written to the master of a terminal is typed into its shell.
    """
    return tuple(each.number for each in streams if each.kind in _UNSAFE_STREAMS)


def failed_probes(
    expected: Collection[Probe], results: Mapping[str, int], arrived: Collection[Probe]
) -> tuple[Probe, ...]:
    """The probes that do not prove the boundary, in the order of their names.

    Args:
        expected: What had to be tried.
        results: For each the error number that it ended with, 0 when it went through.
        arrived: What the parent saw come in.

    A probe that was not tried proves nothing. A datagram may leave without an error and end inside
    the namespace, so there the parent's eyes decide; everything else has to fail as well.
    """
    return tuple(
        sorted(
            probe
            for probe in expected
            if probe in arrived
            or probe not in results
            or (results[probe] == 0 and probe is not Probe.UDP)
        )
    )


_SET: Final = ("http_proxy", "https_proxy", "all_proxy")
_REMOVED: Final = ("no_proxy", "ftp_proxy", "socks_proxy", "rsync_proxy")


def proxy_environment(
    environment: Mapping[str, str], *, port: int, run: str, token: str
) -> dict[str, str]:
    """*environment* with the proxy's variables, both cases, and without exceptions from them.

    `HTTP_PROXY` is set too: a command that takes it for a request's header (CGI) has no way out
    but the proxy anyway.
    """
    url = f"http://{quote(run, safe='')}:{quote(token, safe='')}@127.0.0.1:{port}"
    ours = {*_SET, *_REMOVED}
    kept = {name: value for name, value in environment.items() if name.lower() not in ours}
    return {**kept, **dict.fromkeys((*_SET, *(name.upper() for name in _SET)), url)}
