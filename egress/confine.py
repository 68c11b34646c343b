"""Runs a command that can open no socket but to the proxy (R14). Linux only.

Proxy variables are a convenience. The boundary is the kernel's: an empty network namespace whose
one listener is handed to the proxy, or a Landlock domain and a system call filter. Which one is in
force is in what `run_confined` tells before the command starts, together with what it does not
hold; and before the command starts, a process inside the boundary has tried the ways out and the
parent has seen nothing come.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import secrets
import signal
import socket
import stat
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import attrs

from egress._confine_bridge import bridged
from egress._confine_landlock import (
    KERNEL_FILE_SYSTEMS,
    KERNEL_FOLDERS,
    landlock_ruleset,
    write_rights,
)
from egress._confine_notify import connects_made
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
from egress._confine_seccomp import assemble, landlock_rules, namespace_rules
from egress.errors import EgressError

__all__ = (
    "Boundary",
    "BoundaryNotProven",
    "CommandNotExecuted",
    "Confined",
    "ConfinementFailed",
    "KernelFacts",
    "Probe",
    "boundary_limits",
    "choose_boundary",
    "kernel_facts",
    "missing_for",
    "run_confined",
)

_LAUNCHER: Final = Path(__file__).with_name("_confine_launch.py")
_START_SECONDS: Final = 20.0
_END_SECONDS: Final = 2.0
_AF_VSOCK: Final = 40
_AF_PACKET: Final = 17
_STREAMS: Final = (0, 1, 2)
# Source: Documentation/admin-guide/devices.txt: null, zero, full, random; BSD pseudo-terminals.
_MEMORY_DEVICES: Final = 1
_OLD_MASTERS: Final = 2
# Source: asm-generic/ioctls.h.
_TIOCGPTN: Final = 0x8004_5430
# More than `struct statfs` has on any machine.
_STATFS_BYTES: Final = 256
# In the order of `CARRIERS` of the launcher, which cannot be imported where these are unknown.
_FIRST_CARRIER: Final = 3
_FORWARDED: Final = ("INT", "QUIT", "TERM", "HUP", "USR1", "USR2", "WINCH", "CONT")
# A terminal sends these to the command itself.
_FROM_TERMINAL: Final = ("INT", "QUIT")


class ConfinementFailed(EgressError):
    """The boundary could not be set up, so the command was not started.

    Attributes:
        stage: What was being done.
        why: The word of the error.
    """

    def __init__(self, *, stage: str, why: str) -> None:
        super().__init__(f"confinement failed at {stage}: {why}")
        self.stage = stage
        self.why = why


class BoundaryNotProven(EgressError):
    """A way out that must be closed was open, so the command was not started.

    Attributes:
        probes: The ways that were open, or were not tried.
    """

    def __init__(self, probes: Sequence[Probe]) -> None:
        super().__init__(f"the boundary does not hold: {', '.join(probes)}")
        self.probes = tuple(probes)


class CommandNotExecuted(EgressError):
    """The boundary stood and the command could not be executed.

    Attributes:
        command: Its first word.
        why: The word of the error.
        exit_code: 127 when it was not found, else 126, as shells have it.
    """

    def __init__(self, *, command: str, why: str, exit_code: int) -> None:
        super().__init__(f"{command} cannot be executed: {why}")
        self.command = command
        self.why = why
        self.exit_code = exit_code


@attrs.frozen(kw_only=True)
class Confined:
    """What holds a command that is about to start.

    Attributes:
        boundary: What is in force.
        proven: The ways out that were tried from inside and came to nothing.
        limits: What the boundary does not hold, one sentence each.
        process: Id of the launcher.
    """

    boundary: Boundary
    proven: tuple[Probe, ...]
    limits: tuple[str, ...]
    process: int


def _nobody(confined: Confined) -> None:
    """For callers that need not be told."""
    del confined


async def kernel_facts() -> KernelFacts:
    """What this kernel gives to this user. A process is started to try it and is thrown away.

    Raises:
        ConfinementFailed: That process could not be run.
    """
    if sys.platform != "linux":
        return KernelFacts(
            machine=sys.platform,
            namespaces="this is not Linux",
            landlock_abi=0,
            seccomp=False,
            user_id=os.getuid(),
        )
    async with _launched({"boundary": "facts"}) as launched:
        told = await launched.line()
    return KernelFacts(
        machine=told["machine"],
        namespaces=told["namespaces"],
        landlock_abi=told["landlock_abi"],
        seccomp=told["seccomp"],
        user_id=told["user_id"],
    )


async def run_confined(
    command: Sequence[str],
    *,
    facts: KernelFacts,
    boundary: Boundary,
    port: int,
    run: str,
    token: str,
    environment: Mapping[str, str] | None = None,
    allow_unix: bool = False,
    on_start: Callable[[Confined], None] = _nobody,
) -> int:
    """The exit code of *command*, which could reach nothing but 127.0.0.1:*port*.

    It gets our standard streams and no other descriptor. Signals that end or tell a process are
    forwarded while it runs. When we end, by whatever cause, it ends; so does what it left running
    when it ends itself. To be called in the main thread: the kernel ties the child to the thread.

    Args:
        command: Program and arguments; looked up in the `PATH` of *environment*.
        facts: From `kernel_facts`.
        boundary: From `choose_boundary`. `Boundary.NONE` is no boundary and proves nothing.
        port: Where the proxy listens on 127.0.0.1. Inside a namespace it has the same number.
        run: Id of the run at the proxy.
        token: Token of the run at the proxy.
        environment: Ours by default; proxy variables are replaced in any case.
        allow_unix: Let the command reach UNIX sockets that have a path.
        on_start: Called when the boundary is proven and before the command starts. If it raises,
            the command is not started.

    Returns:
        The exit code; 128 and the number of the signal for a command that a signal ended.

    Raises:
        ConfinementFailed: The boundary could not be set up.
        BoundaryNotProven: A way out was open.
        CommandNotExecuted: There is no such program.
        ValueError: No command, or this kernel does not have *boundary*.
    """
    if not command:
        raise ValueError("there is no command")
    missing = missing_for(boundary, facts)
    if missing is not None:
        raise ValueError(f"no {boundary} boundary: {missing}")
    inside = proxy_environment(
        os.environ if environment is None else environment, port=port, run=run, token=token
    )
    _refuse_unsafe_streams(boundary)
    async with AsyncExitStack() as stack:
        ways = stack.enter_context(_ways_out(boundary, allow_unix=allow_unix))
        plan = {
            **_plan(boundary, facts, port=port, allow_unix=allow_unix),
            "probes": [way.to_wire() for way in ways],
            "command": [os.fsencode(word).hex() for word in command],
            "environment": [
                (os.fsencode(name).hex(), os.fsencode(value).hex())
                for name, value in inside.items()
            ],
        }
        launched = await stack.enter_async_context(_launched(plan))
        notes = await _take_over(
            launched, stack, boundary=boundary, port=port, allow_unix=allow_unix
        )
        confined = Confined(
            boundary=boundary,
            proven=await _proven(launched, ways),
            limits=(*boundary_limits(boundary, facts, allow_unix=allow_unix), *notes),
            process=launched.process.pid,
        )
        on_start(confined)
        with _forwarding(launched.process.pid) as forwarding:
            await launched.let_start(command[0])
            forwarding.begin()
            return await launched.process.wait()


async def _take_over(
    launched: _Launched, stack: AsyncExitStack, *, boundary: Boundary, port: int, allow_unix: bool
) -> tuple[str, ...]:
    """Serves what the boundary hands out, and gives the notes that come with it."""
    if boundary is Boundary.NONE:
        return ()
    told = await launched.line()
    descriptor = launched.descriptor()
    if boundary is Boundary.LANDLOCK:
        made = connects_made(descriptor, port=port, allow_unix=allow_unix)
        await stack.enter_async_context(made)
        return ()
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    await stack.enter_async_context(bridged(listener, port=port))
    return tuple(told["notes"])


async def _proven(launched: _Launched, ways: Sequence[_Way]) -> tuple[Probe, ...]:
    results = (await launched.line())["results"]
    # What was sent over loopback has arrived by the time that the sender's call came back.
    arrived = {way.probe for way in ways if way.has_arrived()}
    open_ways = failed_probes([way.probe for way in ways], results, arrived)
    if open_ways:
        raise BoundaryNotProven(open_ways)
    return tuple(way.probe for way in ways)


def _plan(
    boundary: Boundary, facts: KernelFacts, *, port: int, allow_unix: bool
) -> dict[str, object]:
    rules = {
        Boundary.NAMESPACE: namespace_rules,
        Boundary.LANDLOCK: landlock_rules,
    }
    is_landlock = boundary is Boundary.LANDLOCK
    program = b""
    if boundary in rules:
        program = assemble(rules[boundary](allow_unix=allow_unix), machine=facts.machine)
    return {
        "boundary": boundary.value,
        "machine": facts.machine,
        "port": port,
        "filter": program.hex(),
        "asks": is_landlock,
        "landlock": _landlock(facts) if is_landlock else None,
        "kernel_mounts": tuple(KERNEL_FILE_SYSTEMS),
        "ignored": [
            number
            for number in signal.valid_signals()
            if signal.getsignal(number) is signal.SIG_IGN
            # Python itself ignores these two; a command expects them as they were.
            and number not in {signal.SIGPIPE, signal.SIGXFSZ}
        ],
    }


def _landlock(facts: KernelFacts) -> dict[str, object]:
    return {
        "ruleset": landlock_ruleset(facts.landlock_abi).hex(),
        "folder_rights": write_rights(is_folder=True),
        "file_rights": write_rights(is_folder=False),
        "without": KERNEL_FOLDERS,
        "kernel_mounts": tuple(KERNEL_FILE_SYSTEMS),
    }


# --- standard streams ---------------------------------------------------------------------------


def _refuse_unsafe_streams(boundary: Boundary) -> None:
    if boundary is Boundary.NONE:
        return
    unsafe = unsafe_streams(_standard_stream(number) for number in _STREAMS)
    if unsafe:
        names = " and ".join(("stdin", "stdout", "stderr")[number] for number in unsafe)
        raise ConfinementFailed(
            stage="the standard streams",
            why=f"{names}: a socket that leads outside, a folder, a device, the end of a terminal "
            "that types into it, or a file of the kernel's; give a pipe, file or terminal",
        )


def _standard_stream(number: int) -> StandardStream:
    return StandardStream(number=number, kind=_stream_kind(number))


def _stream_kind(number: int) -> StreamKind:
    try:
        found = os.fstat(number)
    except OSError:
        return StreamKind.CLOSED
    mode = found.st_mode
    if stat.S_ISSOCK(mode):
        return StreamKind.SOCKET
    if stat.S_ISDIR(mode):
        return StreamKind.FOLDER
    if _is_the_kernels(number):
        return StreamKind.KERNEL
    if stat.S_ISFIFO(mode):
        return StreamKind.PIPE
    if stat.S_ISREG(mode):
        return StreamKind.FILE
    if stat.S_ISCHR(mode) and os.major(found.st_rdev) == _MEMORY_DEVICES:
        return StreamKind.MEMORY
    if not os.isatty(number):
        return StreamKind.OTHER
    return StreamKind.MASTER if _types_into_terminal(number, found) else StreamKind.TERMINAL


def _is_the_kernels(number: int) -> bool:
    """What is open from a mount of outside is not held by what the mounts inside are."""
    told = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None, use_errno=True).fstatfs(number, told) != 0:
        # Not to be told from one of the kernel's.
        return True
    # Its first field, the kind, is a word of the machine.
    return struct.unpack_from("=I", told.raw)[0] in KERNEL_FILE_SYSTEMS.values()


def _types_into_terminal(number: int, found: os.stat_result) -> bool:
    """Whether it is the end that a terminal emulator holds: what is written there is typed."""
    if os.major(found.st_rdev) == _OLD_MASTERS:
        return True
    # Not on every system that this module is loaded on.
    import fcntl

    try:
        # The number of the other end; only a master has one.
        fcntl.ioctl(number, _TIOCGPTN, bytes(4))
    except OSError:
        return False
    return True


# --- the ways out that are tried ----------------------------------------------------------------


@attrs.frozen(kw_only=True)
class _Way:
    """One way out: what to try inside, and where it would arrive outside."""

    probe: Probe
    family: int
    kind: int
    protocol: int = 0
    address: tuple[str, int] | str | None = None
    end: socket.socket | None = None

    def to_wire(self) -> dict[str, object]:
        return {
            "name": self.probe.value,
            "family": self.family,
            "type": self.kind,
            "protocol": self.protocol,
            "address": self.address,
        }

    def has_arrived(self) -> bool:
        """Whether anything came to our end of it."""
        if self.end is None:
            return False
        try:
            if self.kind == socket.SOCK_DGRAM:
                self.end.recv(64)
            else:
                self.end.accept()[0].close()
        except BlockingIOError:
            return False
        return True


@contextmanager
def _ways_out(boundary: Boundary, *, allow_unix: bool) -> Iterator[tuple[_Way, ...]]:
    """Real ends on this side, and what to try for each. No way is tried without a boundary."""
    if boundary is Boundary.NONE:
        yield ()
        return
    with ExitStack() as stack:
        ways = [
            _internet_way(stack, Probe.TCP, socket.AF_INET, socket.SOCK_STREAM),
            _internet_way(stack, Probe.UDP, socket.AF_INET, socket.SOCK_DGRAM),
            _Way(probe=Probe.RAW, family=socket.AF_INET, kind=socket.SOCK_RAW, protocol=1),
            _Way(probe=Probe.PACKET, family=_AF_PACKET, kind=socket.SOCK_RAW),
            _Way(probe=Probe.VSOCK, family=_AF_VSOCK, kind=socket.SOCK_STREAM),
            _unix_way(stack),
        ]
        # A machine without IPv6 has no such way out, and none to prove closed.
        with suppress(OSError):
            ways.append(_internet_way(stack, Probe.TCP6, socket.AF_INET6, socket.SOCK_STREAM))
        if allow_unix:
            # What is opened on request is not proven closed; the limits say so.
            ways = [way for way in ways if way.probe is not Probe.UNIX]
        yield tuple(ways)


def _internet_way(
    stack: ExitStack, probe: Probe, family: socket.AddressFamily, kind: socket.SocketKind
) -> _Way:
    """A socket of this process that an open way would reach.

    Raises:
        OSError: There is no such family here, or no socket to be had.
    """
    host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    end = stack.enter_context(socket.socket(family, kind))
    end.setblocking(False)
    end.bind((host, 0))
    if kind == socket.SOCK_STREAM:
        end.listen(1)
    return _Way(
        probe=probe, family=family, kind=kind, address=(host, end.getsockname()[1]), end=end
    )


def _unix_way(stack: ExitStack) -> _Way:
    """The same among the abstract names.

    Raises:
        OSError: No socket is to be had.
    """
    # An abstract name: it needs no path here, and the refusal of the family covers paths as well.
    name = b"\0runtime-pack-probe-" + secrets.token_hex(16).encode()
    end = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    end.setblocking(False)
    end.bind(name)
    end.listen(1)
    return _Way(
        probe=Probe.UNIX,
        family=socket.AF_UNIX,
        kind=socket.SOCK_STREAM,
        address=name.hex(),
        end=end,
    )


# --- the launcher -------------------------------------------------------------------------------


class _Launched:
    """The launcher, and our end of the socket pair to it."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self.process = process
        self._control = control
        self._taken = bytearray()
        self._descriptors = list[int]()

    async def line(self) -> dict[str, Any]:
        """What it tells next."""
        async with self._in_time():
            told = await self._next()
        if told is None:
            raise ConfinementFailed(stage="the launcher", why="it ended without a word")
        if "failed" in told:
            raise ConfinementFailed(stage=told["failed"], why=told["why"])
        return told

    async def let_start(self, command: str) -> None:
        """Gives the word, and comes back when the command runs."""
        async with self._in_time():
            await asyncio.get_running_loop().sock_sendall(self._control, b"\n")
            told = await self._next()
        # An executed command has closed the launcher's end.
        if told is None:
            return
        if "not_executed" in told:
            why = told["not_executed"]
            code = await self.process.wait()
            raise CommandNotExecuted(command=command, why=why, exit_code=code)
        raise ConfinementFailed(stage=str(told.get("failed")), why=str(told.get("why")))

    def descriptor(self) -> int:
        """What came with the last line."""
        if not self._descriptors:
            raise ConfinementFailed(stage="the launcher", why="no descriptor came out")
        return self._descriptors.pop()

    async def give(self, plan: Mapping[str, object]) -> None:
        """Sends the plan."""
        message = json.dumps(plan).encode()
        async with self._in_time():
            await asyncio.get_running_loop().sock_sendall(
                self._control, struct.pack("=I", len(message)) + message
            )

    async def end(self) -> None:
        """Ends it if it still runs; what it started ends with it."""
        self._control.close()
        for number in self._descriptors:
            os.close(number)
        # Where no namespace ends them, it ends what the command has left running.
        self._send(signal.SIGRTMAX)
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self.process.wait()
        except TimeoutError:
            self._send(signal.SIGKILL)
            await self.process.wait()

    def _send(self, number: int) -> None:
        """Sends a signal, if the process still runs as far as anybody knows."""
        # Not by `process.send_signal`: that collects a process which has just ended, and the event
        # loop, which finds no exit code any more, warns and makes one up.
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    async def _next(self) -> dict[str, Any] | None:
        while b"\n" not in self._taken:
            await _readable(self._control)
            try:
                data, descriptors, _, _ = socket.recv_fds(self._control, 65536, 4)
            except ConnectionResetError:
                data, descriptors = b"", []
            self._descriptors += descriptors
            if not data:
                return None
            self._taken += data
        line, _, rest = bytes(self._taken).partition(b"\n")
        self._taken = bytearray(rest)
        told: dict[str, Any] = json.loads(line)
        return told

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_START_SECONDS):
                yield
        except TimeoutError as error:
            raise ConfinementFailed(stage="the launcher", why="it took too long") from error
        except ConnectionError as error:
            raise ConfinementFailed(stage="the launcher", why="it ended too early") from error


async def _readable(control: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(control, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(control)


def _named(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error))


@asynccontextmanager
async def _launched(plan: Mapping[str, object]) -> AsyncIterator[_Launched]:
    if not sys.executable:
        raise ConfinementFailed(stage="the launcher", why="the interpreter has no path")
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfinementFailed(stage="the launcher", why=_named(error)) from error
    ours.setblocking(False)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(_LAUNCHER),
            str(theirs.fileno()),
            str(os.getpid()),
            pass_fds=(theirs.fileno(),),
        )
    except OSError as error:
        ours.close()
        raise ConfinementFailed(
            stage="the launcher", why=f"{sys.executable} cannot be started: {_named(error)}"
        ) from error
    finally:
        theirs.close()
    launched = _Launched(process, ours)
    try:
        await launched.give(plan)
        yield launched
    finally:
        await launched.end()


# --- signals ------------------------------------------------------------------------------------


class _Forwarding:
    """Keeps what comes while the command is being executed, and sends it on afterwards."""

    def __init__(self, launcher: int) -> None:
        self._launcher = launcher
        self._kept: list[int] | None = []

    def begin(self) -> None:
        """The command runs and can be told."""
        kept, self._kept = self._kept or [], None
        for carrier in kept:
            self._send(carrier)

    def take(self, carrier: int, from_terminal: bool) -> None:
        """One signal has come to us."""
        if self._kept is not None:
            self._kept.append(carrier)
        elif not (from_terminal and _in_foreground()):
            self._send(carrier)

    def _send(self, carrier: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._launcher, carrier)


@contextmanager
def _forwarding(launcher: int) -> Iterator[_Forwarding]:
    """What tells or ends a process reaches the command, and not us."""
    loop = asyncio.get_running_loop()
    forwarding = _Forwarding(launcher)
    handled = list[signal.Signals]()
    try:
        for offset, name in enumerate(_FORWARDED):
            number = signal.Signals[f"SIG{name}"]
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            carrier = signal.SIGRTMIN + _FIRST_CARRIER + offset
            loop.add_signal_handler(number, forwarding.take, carrier, name in _FROM_TERMINAL)
            handled.append(number)
        yield forwarding
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def _in_foreground() -> bool:
    """Whether a key of our terminal has reached the command itself, which is of our group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
