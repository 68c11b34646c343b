"""The program between the supervisor and a confined command. Standard library only.

It is started as a script, alone and isolated, because a user namespace cannot be entered by a
process with threads and because nothing of the supervisor may leak into the command. It decides
nothing: what to enter, install and try comes as one message on a socket pair, what happened goes
back as lines. In order, for a namespace: enter, bring loopback up, open the inside listener and
hand it out; then, for every boundary, in the command's own process: drop every privilege, close
every descriptor, install the filter, try the probes, wait for the word, execute.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import re
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

__all__ = ("CARRIERS",)

Plan = Mapping[str, Any]

# Source: linux/sched.h.
_CLONE_NEWNS: Final = 0x0002_0000
_CLONE_NEWIPC: Final = 0x0800_0000
_CLONE_NEWUSER: Final = 0x1000_0000
_CLONE_NEWPID: Final = 0x2000_0000
_CLONE_NEWNET: Final = 0x4000_0000
# Source: linux/mount.h, linux/fcntl.h.
_MOUNT_ATTR_SAFE_READ_ONLY: Final = 0b1111  # read-only, no set-id, no devices, no execution
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_MS_RDONLY: Final = 1
_MS_NOSUID: Final = 2
_MS_NODEV: Final = 4
_MS_NOEXEC: Final = 8
_MS_REMOUNT: Final = 32
_MS_BIND: Final = 4096
_MS_REC: Final = 16384
_MS_SLAVE: Final = 1 << 19
# Source: linux/prctl.h, linux/securebits.h.
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_SECCOMP: Final = 22
_PR_CAPBSET_DROP: Final = 24
_PR_SET_SECUREBITS: Final = 28
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
# Source: linux/seccomp.h.
_SECCOMP_MODE_FILTER: Final = 2
_SECCOMP_SET_MODE_FILTER: Final = 1
_FILTER_NEW_LISTENER: Final = 1 << 3
_FILTER_WAIT_KILLABLE: Final = 1 << 5
_SECURE_NOROOT_LOCKED: Final = 0b11
# Source: linux/capability.h.
_CAPABILITY_VERSION_3: Final = 0x2008_0522
_CAPABILITIES_AT_MOST: Final = 64
# Source: syscall_64.tbl of x86, asm-generic/unistd.h.
_SYS_CAPSET: Final[Mapping[str, int]] = {"x86_64": 126, "aarch64": 91}
_SYS_SECCOMP: Final[Mapping[str, int]] = {"x86_64": 317, "aarch64": 277}
# The same on every machine. Source: asm-generic/unistd.h and syscall_64.tbl.
_SYS_MOUNT_SETATTR: Final = 442
_SYS_LANDLOCK_CREATE_RULESET: Final = 444
_SYS_LANDLOCK_ADD_RULE: Final = 445
_SYS_LANDLOCK_RESTRICT_SELF: Final = 446
# Source: linux/landlock.h.
_LANDLOCK_RULE_PATH_BENEATH: Final = 1
_LANDLOCK_CREATE_RULESET_VERSION: Final = 1
# Source: linux/sockios.h, linux/if.h.
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1

_FIRST_PRIVATE: Final = 3
_NOT_EXECUTABLE: Final = 126
_NOT_FOUND: Final = 127
_DIED_OF: Final = 128

# A terminal sends its signals to every process of the group, this one too, and the command has got
# them then. What the supervisor forwards therefore comes under other numbers, which nobody sends.
CARRIERS: Final = {
    carried: signal.SIGRTMIN + offset
    for offset, carried in enumerate(
        (
            signal.SIGINT,
            signal.SIGQUIT,
            signal.SIGTERM,
            signal.SIGHUP,
            signal.SIGUSR1,
            signal.SIGUSR2,
            signal.SIGWINCH,
            signal.SIGCONT,
        ),
        start=3,
    )
}

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _prctl(option: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> int:
    given = [
        ctypes.c_ulong(each) if isinstance(each, int) else ctypes.byref(each) for each in arguments
    ]
    zeros = [ctypes.c_ulong(0)] * (4 - len(given))
    return _checked(_libc.prctl(ctypes.c_int(option), *given, *zeros))


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *given))


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    texts = [None if each is None else each.encode() for each in (source, target, kind)]
    _checked(_libc.mount(*texts, ctypes.c_ulong(flags), None))


class _Control:
    """Our end of the socket pair: one message in, lines out."""

    def __init__(self, number: int) -> None:
        self.socket = socket.socket(fileno=number)
        self.socket.set_inheritable(False)
        self.stage = "start"

    def plan(self) -> Plan:
        size = struct.unpack("=I", self._exactly(4))[0]
        plan: Plan = json.loads(self._exactly(size))
        return plan

    def _exactly(self, size: int) -> bytes:
        taken = bytearray()
        while len(taken) < size:
            piece = self.socket.recv(size - len(taken))
            if not piece:
                # The supervisor is gone; nobody is left to confine for.
                os._exit(_DIED_OF)
            taken += piece
        return bytes(taken)

    def tell(self, *descriptors: int, **values: object) -> None:
        line = json.dumps(values).encode() + b"\n"
        socket.send_fds(self.socket, [line], descriptors)

    def wait_for_the_word(self) -> None:
        self._exactly(1)

    def close(self) -> None:
        self.socket.close()


def main() -> NoReturn:
    """Carry out one plan; the arguments are the descriptor of the socket pair and the parent."""
    control = _Control(int(sys.argv[1]))
    try:
        code = _carry_out(control, parent=int(sys.argv[2]))
    # The one boundary: whatever failed before the command started is told and ends here.
    except Exception as error:  # noqa: BLE001
        with suppress(OSError):
            control.tell(failed=control.stage, why=_told(error))
        code = _NOT_EXECUTABLE
    os._exit(code)


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, str(error.errno))
    return f"{type(error).__name__}: {error}"


def _carry_out(control: _Control, *, parent: int) -> int:
    control.stage = "parent"
    _ignore_what_the_terminal_sends()
    # Before the plan, which says how to die with it: this is the default, and death is at once.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return _DIED_OF
    plan = control.plan()
    match plan["boundary"]:
        case "facts":
            control.tell(**_facts(control))
            return 0
        case "namespace":
            return _in_namespaces(control, plan)
        case _:
            return _without_namespaces(control, plan)


# --- what the kernel gives ----------------------------------------------------------------------


def _facts(control: _Control) -> dict[str, object]:
    """Tried here and now: this process is thrown away."""
    return {
        "machine": os.uname().machine,
        "landlock_abi": _landlock_abi(),
        "seccomp": _has_seccomp(),
        "user_id": os.getuid(),
        # Last: it changes what this process is.
        "namespaces": _why_no_namespaces(control),
    }


def _landlock_abi() -> int:
    try:
        return _syscall(_SYS_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION)
    except OSError:
        return 0


def _has_seccomp() -> bool:
    # A null program is EFAULT where filters can be installed, EINVAL where they cannot.
    try:
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER)
    except OSError as error:
        return error.errno == errno.EFAULT
    return False


def _why_no_namespaces(control: _Control) -> str | None:
    try:
        _enter_namespaces(control)
        _raise_loopback(control)
        # The process namespace holds for children only, and the first one can be refused.
        first = os.fork()
        if first == 0:
            os._exit(0)
        os.waitpid(first, 0)
    except OSError as error:
        return f"{control.stage} failed with {_told(error)}"
    return None


# --- the namespace boundary ---------------------------------------------------------------------


def _in_namespaces(control: _Control, plan: Plan) -> int:
    _enter_namespaces(control)
    first = os.fork()
    if first == 0:
        _run_as(control, lambda: _first_process(control, plan))
    control.close()
    return _supervise(first)


def _first_process(control: _Control, plan: Plan) -> int:
    """Process 1 of the namespace: when it ends, the kernel kills every other one in it."""
    control.stage = "the tie to the supervisor"
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    notes = _mounts(control, plan)
    _raise_loopback(control)
    control.stage = "the inside listener"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", plan["port"]))
        listener.listen(socket.SOMAXCONN)
        control.tell(listener.fileno(), listener=True, notes=notes)
    return _fork_command(control, plan)


def _enter_namespaces(control: _Control) -> None:
    user, group = os.geteuid(), os.getegid()
    control.stage = "unshare of the user and network namespaces"
    # System V and POSIX queues and shared memory are a way to whoever holds the other end.
    flags = _CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWPID | _CLONE_NEWNS | _CLONE_NEWIPC
    _checked(_libc.unshare(ctypes.c_int(flags)))
    # One id each, mapped to itself: files keep their owner, and there is no other user to become.
    control.stage = "the mapping of the user id"
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    # What is mounted outside later shows inside, and nothing the other way round.
    control.stage = "the mount namespace"
    _mount(None, "/", None, _MS_REC | _MS_SLAVE)


def _mounts(control: _Control, plan: Plan) -> list[str]:
    """A process list of the namespace's own, and kernel settings that root's id cannot write."""
    control.stage = "the mounts"
    safe = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    folder = _leave_folder()
    notes = []
    try:
        _mount("proc", "/proc", "proc", safe)
    except OSError as error:
        notes.append(f"/proc still shows the processes outside ({_told(error)})")
    notes += _limit_namespaces()
    mounted = _mounted()
    for place in (each for each, kind in mounted.items() if kind == "mqueue"):
        # Each mount shows the queues of the namespace that it was made in.
        try:
            _mount("mqueue", place, "mqueue", safe)
        except OSError as error:
            notes.append(f"the message queues outside are at {place} ({_told(error)})")
    # The kernel lets root's id write these without any capability: `core_pattern` alone would be a
    # program that root runs, outside.
    if os.getuid() == 0:
        elsewhere = (each for each, kind in mounted.items() if kind in plan["kernel_mounts"])
        for place in (*_kernel_places(), "/sys", *elsewhere):
            try:
                _make_read_only(Path(place), bind=place.startswith("/proc/"))
            except OSError as error:
                notes.append(f"kernel settings at {place} can be written ({_told(error)})")
    return [*notes, *_come_back(folder)]


def _leave_folder() -> str | None:
    """The name of the working folder, left so that nothing of it is seen but by that name."""
    try:
        folder: str | None = str(Path.cwd())
    except OSError:
        # It is deleted, or no name of this namespace leads to it.
        folder = None
    os.chdir("/")
    return folder


def _come_back(folder: str | None) -> list[str]:
    """By its name, so that it lies in the mounts that are seen now."""
    if folder is not None and folder.startswith("/"):
        with suppress(OSError):
            os.chdir(folder)
            return []
    return ["the command starts in /, for its working folder cannot be entered inside"]


def _limit_namespaces() -> list[str]:
    """Counted for every namespace below this one, and no capability is left to raise it again.

    In a cgroup namespace of its own the command could mount control groups anew, for writing. With
    root's id a user namespace is more than an ordinary user's: the kernel's files are that id's.
    """
    kinds = ("cgroup", "user") if os.getuid() == 0 else ("cgroup",)
    notes = []
    for kind in kinds:
        try:
            Path(f"/proc/sys/user/max_{kind}_namespaces").write_text("0", encoding="ascii")
        except FileNotFoundError:
            # A kernel without them.
            continue
        except OSError as error:
            notes.append(f"new {kind} namespaces can be made ({_told(error)})")
    return notes


def _mounted() -> dict[str, str]:
    """Mount points, and the kind of file system that is seen at each."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        before, _, after = line.partition(b" - ")
        # Source: fs/proc_namespace.c: space, tab, line feed and backslash are octal.
        point = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), before.split()[4])
        found[os.fsdecode(point)] = os.fsdecode(after.split()[0])
    return found


def _kernel_places() -> list[str]:
    """The entries of /proc that belong to no process."""
    # `self`, `net` and `mounts` lead into the folder of a process.
    return sorted(
        entry.path
        for entry in os.scandir("/proc")
        if not entry.name.isdigit() and not entry.is_symlink()
    )


def _make_read_only(place: Path, *, bind: bool) -> None:
    """With everything that is mounted below it."""
    if bind:
        _mount(str(place), str(place), None, _MS_BIND | _MS_REC)
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_SAFE_READ_ONLY, 0, 0, 0)
    try:
        _syscall(
            _SYS_MOUNT_SETATTR,
            _AT_FDCWD,
            os.fsencode(place),
            _AT_RECURSIVE,
            attributes,
            len(attributes),
        )
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        # Before Linux 5.12: this one mount alone.
        flags = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
        _mount(None, str(place), None, flags)


def _raise_loopback(control: _Control) -> None:
    control.stage = "the loopback interface"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack("16sh22x", fcntl.ioctl(asked, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(asked, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


# --- the other boundaries -----------------------------------------------------------------------


def _without_namespaces(control: _Control, plan: Plan) -> int:
    """We adopt what the command leaves behind, and end it with the command or the supervisor."""
    control.stage = "the tie to the supervisor"
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def supervisor_died(number: int, frame: object) -> NoReturn:
        del number, frame
        _end_descendants()
        os._exit(_DIED_OF)

    signal.signal(signal.SIGRTMAX, supervisor_died)
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGRTMAX)
    if os.getppid() != parent:
        return _DIED_OF
    try:
        return _fork_command(control, plan)
    finally:
        _end_descendants()


def _end_descendants() -> None:
    """Kill until nobody is left; children of the killed become ours."""
    for _ in range(1000):
        children = _children()
        if not children:
            return
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.wait()


def _children() -> list[int]:
    me = os.getpid()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, ValueError):
            # The name in parentheses may hold anything; what follows it may not.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == me:
                found.append(int(entry.name))
    return found


# --- waiting ------------------------------------------------------------------------------------


def _ignore_what_the_terminal_sends() -> None:
    for carried in CARRIERS:
        signal.signal(carried, signal.SIG_IGN)


def _fork_command(control: _Control, plan: Plan) -> int:
    child = os.fork()
    if child == 0:
        _run_as(control, lambda: _become_command(control, plan))
    control.close()
    return _supervise(child, translate=True)


def _run_as(control: _Control, job: Callable[[], int]) -> NoReturn:
    """What a forked process does; it never returns into its parent's code."""
    try:
        code = job()
    # Told and ended, as in `main`.
    except Exception as error:  # noqa: BLE001
        with suppress(OSError):
            control.tell(failed=control.stage, why=_told(error))
        code = _NOT_EXECUTABLE
    os._exit(code)


def _supervise(child: int, *, translate: bool = False) -> int:
    """The exit code of *child*; forwards what the supervisor sends, and reaps all others."""
    for plain, carrier in CARRIERS.items():
        sent = plain if translate else carrier

        def forward(number: int, frame: object, sent: int = sent) -> None:
            del number, frame
            with suppress(ProcessLookupError):
                os.kill(child, sent)

        signal.signal(carrier, forward)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _DIED_OF - code


# --- the command's own process ------------------------------------------------------------------


def _become_command(control: _Control, plan: Plan) -> int:
    control.stage = "the tie to the launcher"
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    confined = plan["boundary"] != "unconfined"
    _close_all_but(control.socket.fileno())
    if confined:
        _drop_privileges(control, plan)
        control.stage = "no new privileges"
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _enter_landlock(control, plan)
        _install_filter(control, plan)
    control.stage = "the probes"
    control.tell(results={probe["name"]: _try(probe) for probe in plan["probes"]})
    control.wait_for_the_word()
    _restore_signals(plan["ignored"])
    return _execute(control, plan)


def _close_all_but(kept: int) -> None:
    for number in sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir()):
        if number >= _FIRST_PRIVATE and number != kept:
            # The descriptor of the listing itself is closed already.
            with suppress(OSError):
                os.close(number)


def _drop_privileges(control: _Control, plan: Plan) -> None:
    """No capability, none to be had by executing, not even for root's id."""
    control.stage = "the capabilities"
    # Without the right to drop from the bounding set there is little to drop, and no_new_privs
    # keeps the rest from ever being raised; the check below is what counts.
    with suppress(OSError):
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
        _prctl(_PR_SET_SECUREBITS, _SECURE_NOROOT_LOCKED)
        for capability in range(_CAPABILITIES_AT_MOST):
            _prctl(_PR_CAPBSET_DROP, capability)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _syscall(_SYS_CAPSET[plan["machine"]], header, bytes(24))
    for line in Path("/proc/thread-self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name in {"CapInh", "CapPrm", "CapEff", "CapAmb"} and int(value, 16) != 0:
            raise PermissionError(errno.EPERM, name)


def _enter_landlock(control: _Control, plan: Plan) -> None:
    values = plan["landlock"]
    if values is None:
        return
    control.stage = "the Landlock domain"
    attributes = bytes.fromhex(values["ruleset"])
    ruleset = _syscall(_SYS_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        _grant_writing(ruleset, values)
        _syscall(_SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _grant_writing(ruleset: int, values: Mapping[str, Any]) -> None:
    """To everything below `/` but what is the kernel's."""
    kernel = {f"/{name}" for name in values["without"]}
    kernel |= {each for each, kind in _mounted().items() if kind in values["kernel_mounts"]}
    if os.getuid() != 0:
        # To other users the kernel gives little in what is mounted elsewhere, and it does not pay
        # for folders in which nothing new could be written.
        kernel = {each for each in kernel if each.count("/") == 1}
    _grant_below("/", ruleset, values, kernel)


def _grant_below(folder: str, ruleset: int, values: Mapping[str, Any], kernel: set[str]) -> None:
    for entry in os.scandir(folder):
        # Where a link leads is granted by its own name, or is the kernel's.
        if entry.path in kernel or entry.is_symlink():
            continue
        if any(each.startswith(f"{entry.path}/") for each in kernel):
            _grant_below(entry.path, ruleset, values, kernel)
            continue
        with suppress(FileNotFoundError):
            _grant_entry(entry.path, ruleset, values)


def _grant_entry(path: str, ruleset: int, values: Mapping[str, Any]) -> None:
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        mode = os.fstat(beneath).st_mode
        if stat.S_ISLNK(mode):
            return
        rights = values["folder_rights" if stat.S_ISDIR(mode) else "file_rights"]
        # struct landlock_path_beneath_attr is packed.
        rule = struct.pack("=Qi", rights, beneath)
        _syscall(_SYS_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(beneath)


def _install_filter(control: _Control, plan: Plan) -> None:
    control.stage = "the system call filter"
    program = bytes.fromhex(plan["filter"])
    instructions = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the count, padding, the address.
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    flags = _FILTER_NEW_LISTENER | _FILTER_WAIT_KILLABLE if plan["asks"] else 0
    listener = _syscall(_SYS_SECCOMP[plan["machine"]], _SECCOMP_SET_MODE_FILTER, flags, header)
    if plan["asks"]:
        control.tell(listener, asks=True)
        os.close(listener)


def _try(probe: Mapping[str, Any]) -> int:
    """The error number that this way out ends with, 0 when it is open."""
    try:
        with socket.socket(probe["family"], probe["type"], probe["protocol"]) as tried:
            tried.settimeout(2)
            address = probe["address"]
            if address is None:
                return 0
            tried.connect(bytes.fromhex(address) if isinstance(address, str) else tuple(address))
            if probe["type"] == socket.SOCK_DGRAM:
                tried.send(b"probe")
    except OSError as error:
        return error.errno or errno.ETIMEDOUT
    return 0


def _restore_signals(ignored: Sequence[int]) -> None:
    """As the supervisor was started: what it ignored, as under nohup, stays ignored."""
    for plain in (*CARRIERS, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(plain, signal.SIG_IGN if plain in ignored else signal.SIG_DFL)
    for carrier in (*CARRIERS.values(), signal.SIGRTMAX):
        signal.signal(carrier, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _execute(control: _Control, plan: Plan) -> int:
    """Never comes back, unless the command cannot be executed."""
    command = [bytes.fromhex(word) for word in plan["command"]]
    environment = {bytes.fromhex(name): bytes.fromhex(value) for name, value in plan["environment"]}
    try:
        # Executing what the person wrote is the job, and no shell reads it.
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        control.tell(not_executed=_told(error))
        return _NOT_FOUND if error.errno == errno.ENOENT else _NOT_EXECUTABLE


if __name__ == "__main__":
    main()
