"""A confined command runs as it would without: streams, codes, signals. And it ends with us."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import pty
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from egress._confine_plan import StreamKind
from egress.confine import (
    Boundary,
    BoundaryNotProven,
    CommandNotExecuted,
    ConfinementFailed,
    KernelFacts,
    Probe,
    _Launched,
    _launched,
    _proven,
    _stream_kind,
    _ways_out,
    kernel_facts,
    run_confined,
)

pytestmark = pytest.mark.loopback

ANY = (Boundary.NAMESPACE, Boundary.LANDLOCK, Boundary.NONE)


def until(met: Any, *, seconds: float = 60.0) -> bool:
    """Whether it comes true in time."""
    end = time.monotonic() + seconds
    while not met():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def is_alive(process: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def marked(mark: str) -> list[int]:
    """Processes whose command line holds *mark*."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if mark.encode() in words and is_alive(int(entry.name)):
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)],
)
def test_the_exit_code_is_passed_on(
    person: Any, boundary: Boundary, script: str, code: int
) -> None:
    """A signal is told as shells tell it."""
    exit_code, found = person.run(["sh", "-c", script], boundary=boundary)

    assert (code, code) == (exit_code, found["code"])


def test_streams_pass_through(ourselves: Any, boundary: Boundary) -> None:
    """A pipeline reads our stdin and writes our stdout and stderr, byte for byte."""
    folder = ourselves.new_folder()
    process = ourselves.start(
        ["sh", "-c", "tr a-z A-Z | rev; echo told >&2"],
        boundary=boundary,
        folder=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = process.communicate(b"abc\n" * 20_000, timeout=60)

    assert b"CBA\n" * 20_000 == out
    assert err == b"told\n"
    assert process.returncode == 0


def test_files_keep_their_owner_and_the_folder_stays(person: Any, boundary: Boundary) -> None:
    """The user's id is mapped to itself; the working folder and the umask are ours."""
    folder = person.new_folder()
    command = ["sh", "-c", f"umask 027; id -u > {folder}/made; pwd >> {folder}/made"]
    process = person.start(command, boundary=boundary, folder=folder)
    assert process.wait(timeout=60) == 0
    made = folder / "made"

    assert f"{person.user_id}\n/\n" == made.read_text()
    assert person.user_id == made.stat().st_uid
    assert stat.S_IMODE(made.stat().st_mode) == 0o640


def test_files_work_as_before(person: Any, boundary: Boundary) -> None:
    """Moving between folders, linking, devices and our own streams: the boundary is of the network."""
    folder = person.new_folder()
    # A pipe can be opened again by the user who made it.
    own_stream = "" if person.identity() else " > /dev/stdout"
    script = (
        "set -e; mkdir a b; echo x > a/f; mv a/f b/f; ln b/f a/l; ln -s f b/s; cat b/s > /dev/null; "
        "echo y >> a/l; rm a/l; test $(wc -l < b/f) = 2; echo z" + own_stream
    )
    process = person.start(
        ["sh", "-c", f"cd {folder}; {script}"],
        boundary=boundary,
        folder=folder,
        stdout=subprocess.PIPE,
    )
    out, _ = process.communicate(timeout=60)

    assert (0, b"z\n") == (process.returncode, out)


def test_the_process_list_is_the_namespaces_own(person: Any, facts: KernelFacts) -> None:
    """The command sees itself, process 1, and what it starts."""
    _skip_without(Boundary.NAMESPACE, facts)
    folder = person.new_folder()
    code, found = person.run(
        ["sh", "-c", f"ls /proc | grep '^[0-9]' > {folder}/seen"], boundary=Boundary.NAMESPACE
    )
    if any("/proc still shows" in limit for limit in found["confined"]["limits"]):
        pytest.skip("this /proc cannot be mounted anew, and the limits say so")
    seen = {int(line) for line in (folder / "seen").read_text().split()}

    assert code == 0
    assert {1, 2} <= seen
    assert max(seen) < 10


_GRANTED = """
import ctypes, os, sys
from egress import _confine_launch as launch
from egress._confine_landlock import landlock_ruleset, write_rights

root = sys.argv[1]
attributes = landlock_ruleset(4)
values = {
    "folder_rights": write_rights(is_folder=True), "file_rights": write_rights(is_folder=False)
}
ruleset = launch._syscall(launch._SYS_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
launch._grant_below(root, ruleset, values, {root + "/kernel", root + "/deep/er/kernel"})
launch._prctl(launch._PR_SET_NO_NEW_PRIVS, 1)
launch._syscall(launch._SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0)
for name in sys.argv[2:]:
    try:
        os.close(os.open(name, os.O_WRONLY))
        print("opened")
    except PermissionError:
        print("refused")
"""


def test_what_is_granted_leads_to_nothing_of_the_kernels(
    ourselves: Any, facts: KernelFacts
) -> None:
    """Neither by a link, nor by a folder above it; what lies beside it is granted."""
    _skip_without(Boundary.LANDLOCK, facts)
    root = ourselves.new_folder()
    granted = [root / "file", root / "folder" / "file", root / "deep" / "er" / "file"]
    refused = [root / "kernel" / "file", root / "deep" / "er" / "kernel" / "file"]
    for each in (*granted, *refused):
        each.parent.mkdir(parents=True, exist_ok=True)
        each.touch()
    (root / "link").symlink_to("/proc")
    (root / "file link").symlink_to("/proc/self/oom_score_adj")
    (root / "dangling").symlink_to("/nowhere")
    names = [*map(str, granted), *map(str, refused), "/proc/self/oom_score_adj"]
    done = subprocess.run(
        [ourselves.python, "-c", _GRANTED, str(root), *names],
        env=ourselves.environment(),
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )

    assert done.stdout.split() == [b"opened"] * 3 + [b"refused"] * 3


_RELATIVE = """
import json, os, sys
opened = []
for name in ("core_pattern", "kernel/core_pattern", "sys/kernel/core_pattern"):
    try:
        os.close(os.open(name, os.O_WRONLY))
        opened.append(name)
    except OSError:
        pass
inside = {name for name in os.listdir("/proc") if name.isdigit()}
outside = sorted({name for name in os.listdir(".") if name.isdigit()} - inside)
print(json.dumps([os.getcwd(), opened, outside]))
"""


@pytest.mark.parametrize("at", ["/proc", "/proc/sys/kernel", "/proc/1", "/sys", "/usr"])
def test_the_working_folder_is_entered_anew(person: Any, facts: KernelFacts, at: str) -> None:
    """As a descriptor it would lie in the mounts outside: writable settings, other processes."""
    _skip_without(Boundary.NAMESPACE, facts)
    process = person.start(
        [person.python, "-c", _RELATIVE],
        boundary=Boundary.NAMESPACE,
        folder=person.new_folder(),
        cwd=at,
        stdout=subprocess.PIPE,
    )
    out, _ = process.communicate(timeout=60)

    assert process.returncode == 0
    assert [at, [], []] == json.loads(out)


@pytest.mark.parametrize("gone", ["deleted", "another process"])
def test_a_working_folder_without_a_name_is_not_kept(
    ourselves: Any, facts: KernelFacts, gone: str
) -> None:
    """The command starts in `/` and is told so; what has no name inside leads nowhere there."""
    _skip_without(Boundary.NAMESPACE, facts)
    folder, at = ourselves.new_folder(), ourselves.new_folder()
    entered = str(at) if gone == "deleted" else "/proc/self"
    removed = f"rmdir {at};" if gone == "deleted" else ""
    driver = [ourselves.python, str(ourselves.folder / "driver.py")]
    given = {
        "command": ["sh", "-c", f"pwd > {folder}/where"],
        "boundary": "namespace",
        "folder": str(folder),
    }
    done = subprocess.run(
        ["sh", "-c", f'cd -P {entered}; {removed} exec "$@"', "sh", *driver, json.dumps(given)],
        env=ourselves.environment(),
        timeout=60,
        check=False,
    )
    found = json.loads((folder / "found.json").read_text())

    assert done.returncode == 0
    assert (folder / "where").read_text() == "/\n"
    assert "starts in /" in " ".join(found["confined"]["limits"])


def test_mounts_elsewhere_are_held_too(ourselves: Any, facts: KernelFacts) -> None:
    """Queues of outside are not seen, and the kernel's files are read-only wherever they are."""
    _skip_without(Boundary.NAMESPACE, facts)
    folder = ourselves.new_folder()
    queues, settings = folder / "a queue", folder / "settings"
    queues.mkdir()
    settings.mkdir()
    mounting = (
        f"mount -t mqueue none '{queues}' && mount --bind /proc/sys '{settings}' "
        f"&& touch '{queues}/outside'"
    )
    opens = "import os, sys; os.close(os.open(sys.argv[1], os.O_WRONLY)); print('opened')"
    inside = (
        f"ls '{queues}' > {folder}/seen; "
        f'{ourselves.python} -c "{opens}" {settings}/kernel/core_pattern >> {folder}/seen '
        "2> /dev/null || true"
    )
    given = {"command": ["sh", "-c", inside], "boundary": "namespace", "folder": str(folder)}
    driver = [ourselves.python, str(ourselves.folder / "driver.py"), json.dumps(given)]
    try:
        done = subprocess.run(
            ["unshare", "-Urmi", "sh", "-c", f'{mounting} || exit 77; exec "$@"', "sh", *driver],
            env=ourselves.environment(),
            timeout=60,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.returncode in {1, 77}:
        pytest.skip("nothing can be mounted here")

    assert done.returncode == 0
    assert (folder / "seen").read_text() == ""


def test_with_roots_id_nothing_in_proc_is_written(ourselves: Any, facts: KernelFacts) -> None:
    """Not even what is the command's own: the whole mount is read-only. Others keep their own files."""
    _skip_without(Boundary.NAMESPACE, facts)
    script = "echo name > /proc/self/comm"
    code, _ = ourselves.run(["sh", "-c", script], boundary=Boundary.NAMESPACE)

    assert (code == 0) == (os.getuid() != 0)


def test_the_environment_is_ours_but_for_the_proxy(person: Any, boundary: Boundary) -> None:
    """Variables of a proxy are replaced; exceptions from it are gone."""
    folder = person.new_folder()
    env = {
        **person.environment(),
        "NO_PROXY": "*",
        "http_proxy": "http://else/",
        "KEPT": "a b\n\xff",
    }
    process = person.start(
        ["sh", "-c", f"env -0 > {folder}/env"], boundary=boundary, folder=folder, env=env
    )
    assert process.wait(timeout=60) == 0
    told = dict(
        entry.partition("=")[::2]
        for entry in (folder / "env").read_bytes().decode().split("\0")
        if entry
    )

    assert told["KEPT"] == "a b\n\xff"
    assert told["http_proxy"].startswith("http://run:token@127.0.0.1:")
    assert "NO_PROXY" not in told
    assert "no_proxy" not in told


@pytest.mark.parametrize(
    ("command", "code"), [("no-such-program-anywhere", 127), ("/etc/passwd", 126), ("/", 126)]
)
def test_a_command_that_cannot_be_executed_is_told(
    facts: KernelFacts, boundary: Boundary, command: str, code: int
) -> None:
    """127 when it is not there, 126 when it cannot be executed."""
    with pytest.raises(CommandNotExecuted) as told:
        asyncio.run(confined(facts, boundary, command))

    assert code == told.value.exit_code
    assert command == told.value.command


async def confined(facts: KernelFacts, boundary: Boundary, *command: str, **more: Any) -> int:
    """Run in this process, with nothing that listens where the proxy should be."""
    return await run_confined(
        command, facts=facts, boundary=boundary, port=9, run="r", token="t", **more
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_us_reaches_the_command(
    person: Any, boundary: Boundary, number: signal.Signals
) -> None:
    """It is the command that decides what to do about it, and we end with its code."""
    folder = person.new_folder()
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got > {folder}/got; exit 5' {name}; echo > {folder}/set; "
    process = person.start(
        ["sh", "-c", script + "while :; do sleep 0.05; done"],
        boundary=boundary,
        folder=folder,
        start_new_session=True,
    )
    assert until((folder / "set").exists)
    process.send_signal(number)

    assert process.wait(timeout=20) == 5
    assert (folder / "got").exists()


def test_an_ignored_signal_stays_ignored(ourselves: Any, boundary: Boundary) -> None:
    """As under nohup, and what Python ignores for itself is not passed on."""
    folder = ourselves.new_folder()
    process = ourselves.start(
        ["sh", "-c", f"grep SigIgn /proc/self/status > {folder}/ignored"],
        boundary=boundary,
        folder=folder,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert process.wait(timeout=60) == 0
    ignored = int((folder / "ignored").read_text().split()[1], 16)

    # What the tests themselves were started with is inherited as well.
    python_ignores = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    inherited = _ignored_here() & ~python_ignores
    assert ignored == 1 << (signal.SIGHUP - 1) | inherited


def _ignored_here() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))


def test_ctrl_c_reaches_the_command_once(ourselves: Any, boundary: Boundary) -> None:
    """A terminal sends to the whole group: the launcher lives on, and nothing is sent twice."""
    folder = ourselves.new_folder()
    script = (
        f"trap 'echo got >> {folder}/got' INT; echo > {folder}/set; "
        f"while ! test -e {folder}/end; do sleep 0.05; done; exit 6"
    )
    ours, theirs = os.openpty()

    def own_terminal() -> None:
        import fcntl
        import termios

        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = ourselves.start(
        ["sh", "-c", script],
        boundary=boundary,
        folder=folder,
        stdin=theirs,
        preexec_fn=own_terminal,
    )
    os.close(theirs)
    try:
        assert until((folder / "set").exists)
        os.write(ours, b"\x03")
        assert until((folder / "got").exists)
        (folder / "end").touch()
        assert process.wait(timeout=20) == 6
    finally:
        os.close(ours)

    assert (folder / "got").read_text() == "got\n"


def test_nothing_is_typed_into_the_persons_terminal(ourselves: Any, boundary: Boundary) -> None:
    """Not even into the one that controls the command: a shell would run it afterwards, outside."""
    folder = ourselves.new_folder()
    # TIOCSTI, and the selection of a console (TIOCLINUX), with high bits that the kernel drops too.
    code = (
        "import ctypes, sys\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "told = []\n"
        "for request in (0x5412, 0x541c, 0x5412 | 1 << 32):\n"
        "    done = libc.ioctl(0, ctypes.c_ulong(request), b'x')\n"
        "    told.append(ctypes.get_errno() if done else 0)\n"
        "open(sys.argv[1], 'w').write(repr(told))\n"
    )
    ours, theirs = os.openpty()

    def own_terminal() -> None:
        import fcntl
        import termios

        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = ourselves.start(
        [ourselves.python, "-c", code, str(folder / "told")],
        boundary=boundary,
        folder=folder,
        stdin=theirs,
        preexec_fn=own_terminal,
    )
    try:
        assert process.wait(timeout=20) == 0
        os.set_blocking(theirs, False)
        with pytest.raises(BlockingIOError):
            os.read(theirs, 1)
    finally:
        os.close(ours)
        os.close(theirs)

    assert [errno.EPERM] * 3 == json.loads((folder / "told").read_text())


def _leaves_others(person: Any, mark: str) -> list[str]:
    """A command with a child, and a grandchild that has left the session."""
    code = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "open(sys.argv[2] + '/up' + str(os.fork() > 0), 'w').close()\n"
        "time.sleep(float(sys.argv[3]))\n"
    )
    return [person.python, "-c", code, mark]


@pytest.mark.parametrize("boundary", ANY, ids=str)
def test_nobody_outlives_a_killed_supervisor(
    ourselves: Any, facts: KernelFacts, boundary: Boundary
) -> None:
    """SIGKILL gives us no time to do anything about it."""
    _skip_without(boundary, facts)
    folder, mark = ourselves.new_folder(), f"mark-{os.getpid()}-{time.monotonic_ns()}"
    process = ourselves.start(
        [*_leaves_others(ourselves, mark), str(folder), "60"], boundary=boundary, folder=folder
    )
    assert until(lambda: len(marked(mark)) >= 4)
    process.kill()
    process.wait()

    assert until(lambda: not marked(mark)), marked(mark)


@pytest.mark.parametrize("boundary", ANY, ids=str)
def test_nobody_outlives_the_command(
    ourselves: Any, facts: KernelFacts, boundary: Boundary
) -> None:
    """What it left running has no proxy any more."""
    _skip_without(boundary, facts)
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    script = f"{ourselves.python} -c 'import time; time.sleep(60)' {mark} & sleep 0.3; exit 4"
    code, _ = ourselves.run(["sh", "-c", script], boundary=boundary)

    assert code == 4
    assert until(lambda: not marked(mark))


def _skip_without(boundary: Boundary, facts: KernelFacts) -> None:
    from egress.confine import missing_for

    missing = missing_for(boundary, facts)
    if missing is not None:
        pytest.skip(f"no {boundary} boundary here: {missing}")


# --- fail closed --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tcp", "unix datagram", "unix stream"])
def test_a_stream_that_is_a_way_out_is_refused(
    ourselves: Any, boundary: Boundary, kind: str
) -> None:
    """A TCP socket as stdin could be disconnected, and connected elsewhere; a server may listen."""
    with ExitStack() as stack:
        if kind == "tcp":
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            given = stack.enter_context(socket.create_connection(server.getsockname()))
        else:
            of = socket.SOCK_DGRAM if kind == "unix datagram" else socket.SOCK_STREAM
            given, other = socket.socketpair(socket.AF_UNIX, of)
            stack.enter_context(given)
            stack.enter_context(other)
        code, found = ourselves.run(["true"], boundary=boundary, stdin=given)

    assert code == 99
    assert "stdin: a socket that leads outside" in found["error"]


def test_a_stream_without_a_kind_is_refused(ourselves: Any, boundary: Boundary) -> None:
    """A poller holds whatever it watches."""
    with select.epoll() as given:
        code, found = ourselves.run(["true"], boundary=boundary, stdin=given.fileno())

    assert code == 99
    assert "stdin: a socket that leads outside" in found["error"]


@pytest.mark.parametrize("kind", ["kernel", "master"])
def test_a_stream_that_leads_past_the_mounts_is_refused(
    ourselves: Any, boundary: Boundary, kind: str
) -> None:
    """A kernel's file lies in a mount of outside; a master types for others."""
    with ExitStack() as stack:
        if kind == "master":
            given, other = pty.openpty()
            stack.callback(os.close, given)
            stack.callback(os.close, other)
        else:
            given = os.open("/proc/version", os.O_RDONLY)
            stack.callback(os.close, given)
        code, found = ourselves.run(["true"], boundary=boundary, stdout=given)

    assert code == 99
    assert "stdout: a socket that leads outside, a folder" in found["error"]


@pytest.mark.parametrize(
    ("path", "flags", "kind"),
    [
        ("/", os.O_RDONLY, StreamKind.FOLDER),
        ("/usr", os.O_PATH, StreamKind.FOLDER),
        ("/proc", os.O_RDONLY, StreamKind.FOLDER),
        ("/proc/version", os.O_PATH, StreamKind.KERNEL),
        ("/sys/kernel/profiling", os.O_PATH, StreamKind.KERNEL),
        ("/proc/self/exe", os.O_PATH | os.O_NOFOLLOW, StreamKind.KERNEL),
        ("/dev/null", os.O_RDONLY, StreamKind.MEMORY),
        ("/dev/ptmx", os.O_RDWR | os.O_NOCTTY, StreamKind.MASTER),
        (__file__, os.O_RDONLY, StreamKind.FILE),
    ],
)
def test_a_stream_has_the_kind_of_what_it_leads_to(path: str, flags: int, kind: StreamKind) -> None:
    """Python starts with no folder as a stream; a host may have put one there later."""
    try:
        given = os.open(path, flags)
    except FileNotFoundError:
        pytest.skip(f"no {path} here")
    try:
        assert kind is _stream_kind(given)
    finally:
        os.close(given)


def _block_device(folder: Path) -> int:
    """A descriptor of one; it is not opened for reading, so its driver is not asked."""
    found = next((each for each in Path("/dev").iterdir() if each.is_block_device()), None)
    if found is None:
        # Ram disks have the number that memory devices have among the character devices.
        found = folder / "ram"
        try:
            os.mknod(found, stat.S_IFBLK | 0o600, os.makedev(1, 0))
        except OSError:
            pytest.skip("no block device here")
    return os.open(found, os.O_PATH)


def test_a_block_device_as_a_stream_is_refused(ourselves: Any, boundary: Boundary) -> None:
    """It is a disk, or a network of its own: neither file, pipe nor terminal."""
    given = _block_device(ourselves.new_folder())
    try:
        code, found = ourselves.run(["true"], boundary=boundary, stdin=given)
    finally:
        os.close(given)

    assert code == 99
    assert "stdin: a socket that leads outside, a folder, a device" in found["error"]


def test_a_ram_disk_is_no_memory_device(tmp_path: Path) -> None:
    """Both have the major number 1, one among block devices and one among character devices."""
    try:
        os.mknod(tmp_path / "ram", stat.S_IFBLK | 0o600, os.makedev(1, 0))
    except OSError:
        pytest.skip("no device can be made here")
    given = os.open(tmp_path / "ram", os.O_PATH)
    try:
        assert _stream_kind(given) is StreamKind.OTHER
    finally:
        os.close(given)


def test_a_device_that_is_no_memory_is_no_memory_device(tmp_path: Path) -> None:
    """A tunnel device (10:200) is a network interface for whoever holds it."""
    try:
        os.mknod(tmp_path / "tun", stat.S_IFCHR | 0o600, os.makedev(10, 200))
    except OSError:
        pytest.skip("no device can be made here")
    given = os.open(tmp_path / "tun", os.O_PATH)
    try:
        assert _stream_kind(given) is StreamKind.OTHER
    finally:
        os.close(given)


def test_a_closed_stream_is_safe() -> None:
    """There is nothing in it that leads anywhere."""
    given = os.open(os.devnull, os.O_RDONLY)
    os.close(given)

    assert _stream_kind(given) is StreamKind.CLOSED


@pytest.mark.parametrize("kind", ["pipe", "terminal", "file", "null"])
def test_pipes_terminals_and_files_are_streams(
    ourselves: Any, boundary: Boundary, kind: str, tmp_path: Path
) -> None:
    """They lead where they were opened, and nowhere else."""
    with ExitStack() as stack:
        if kind in {"pipe", "terminal"}:
            ends = os.pipe() if kind == "pipe" else pty.openpty()
            given = ends[0] if kind == "pipe" else ends[1]
            for end in ends:
                stack.callback(os.close, end)
        else:
            (tmp_path / "file").touch()
            path = os.devnull if kind == "null" else tmp_path / "file"
            given = stack.enter_context(Path(path).open("rb")).fileno()
        code, _ = ourselves.run(["true"], boundary=boundary, stdin=given)

    assert code == 0


def test_the_command_does_not_start_when_a_probe_goes_through(tmp_path: Path) -> None:
    """The launcher is told to set up nothing: every probe that can go through is found."""

    async def main() -> None:
        facts = await kernel_facts()
        with _ways_out(Boundary.NAMESPACE, allow_unix=False) as ways:
            plan = {
                "boundary": "unconfined",
                "machine": facts.machine,
                "port": 9,
                "filter": "",
                "asks": False,
                "landlock": None,
                "ignored": [],
                "probes": [way.to_wire() for way in ways],
                "command": [os.fsencode(word).hex() for word in ("touch", str(tmp_path / "ran"))],
                "environment": [],
            }
            async with _launched(plan) as launched:
                await _proven(launched, ways)

    with pytest.raises(BoundaryNotProven) as told:
        asyncio.run(main())

    assert {Probe.TCP, Probe.UDP, Probe.UNIX} <= set(told.value.probes)
    assert not (tmp_path / "ran").exists()


def test_who_is_told_can_still_say_no(
    facts: KernelFacts, boundary: Boundary, tmp_path: Path
) -> None:
    """An error in `on_start` ends everything before the command."""

    def refuse(confined: object) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        asyncio.run(confined(facts, boundary, "touch", str(tmp_path / "ran"), on_start=refuse))

    assert not (tmp_path / "ran").exists()


def test_a_boundary_that_cannot_be_set_up_starts_nothing(
    facts: KernelFacts, tmp_path: Path
) -> None:
    """Facts that lie: the kernel refuses a domain of an ABI it does not know."""
    import attrs

    if facts.landlock_abi == 0 or facts.landlock_abi >= 6:
        lying = attrs.evolve(facts, landlock_abi=6, machine=_other_machine(facts), seccomp=True)
    else:
        lying = attrs.evolve(facts, landlock_abi=6)

    with pytest.raises(ConfinementFailed):
        asyncio.run(confined(lying, Boundary.LANDLOCK, "touch", str(tmp_path / "ran")))

    assert not (tmp_path / "ran").exists()


def _other_machine(facts: KernelFacts) -> str:
    return "aarch64" if facts.machine == "x86_64" else "x86_64"


def test_a_boundary_that_the_kernel_lacks_is_a_value_error(facts: KernelFacts) -> None:
    """It is asked for by mistake: `choose_boundary` gives none that is missing."""
    import attrs

    lacking = attrs.evolve(facts, seccomp=False)

    for boundary in (Boundary.NAMESPACE, Boundary.LANDLOCK):
        with pytest.raises(ValueError, match="filter"):
            asyncio.run(confined(lacking, boundary, "true"))
    with pytest.raises(ValueError, match="no command"):
        asyncio.run(confined(facts, Boundary.NONE))


async def _cancelled(running: Coroutine[Any, Any, object], mark: str) -> None:
    """Cancels it as soon as what it started runs."""
    task = asyncio.create_task(running)
    async with asyncio.timeout(60):
        # The process list has no event.
        while not await asyncio.to_thread(marked, mark):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("wait", ["wait", "exit 0"])
def test_cancelling_ends_what_the_command_has_started(
    facts: KernelFacts, boundary: Boundary, wait: str
) -> None:
    """No process of its tree goes on, whether the one that started it still runs or not."""
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    sleeping = f"{sys.executable} -c 'import time; time.sleep(60)' {mark} &"

    async def main() -> None:
        command = ("sh", "-c", f'sh -c "{sleeping} {wait}"; sleep 60')
        await _cancelled(confined(facts, boundary, *command), mark)

    asyncio.run(main())

    assert until(lambda: not marked(mark))


def test_ending_the_launcher_leaves_its_exit_code_to_the_event_loop() -> None:
    """Python's way to send a signal collects who has just ended: the loop warns, and makes a code up."""

    class Watched:
        def __init__(self, process: asyncio.subprocess.Process) -> None:
            self.wait, self.pid = process.wait, process.pid
            self.returncode = None

        def send_signal(self, number: int) -> None:
            raise AssertionError(number)

        def kill(self) -> None:
            raise AssertionError

    async def main() -> int | None:
        process = await asyncio.create_subprocess_exec("sleep", "60")
        ours, theirs = socket.socketpair()
        watched: Any = Watched(process)
        with theirs:
            await _Launched(watched, ours).end()
        await _Launched(watched, socket.socket()).end()
        return process.returncode

    assert -signal.SIGRTMAX == asyncio.run(main())


def test_cancelling_ends_the_command(facts: KernelFacts, boundary: Boundary) -> None:
    """And leaves neither a process nor a descriptor."""
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    before = len(list(Path("/proc/self/fd").iterdir()))

    async def main() -> None:
        command = (sys.executable, "-c", "import time; time.sleep(60)", mark)
        await _cancelled(confined(facts, boundary, *command), mark)

    asyncio.run(main())

    assert until(lambda: not marked(mark))
    assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_the_facts_are_plain(facts: KernelFacts) -> None:
    """What the kernel of these tests gives, so that a skipped boundary shows here."""
    assert facts.user_id == os.getuid()
    assert facts.machine == os.uname().machine
    assert facts.landlock_abi >= 0


def test_a_kernel_with_namespaces_gives_that_boundary(facts: KernelFacts) -> None:
    """Else every test of it would be skipped for a fault of ours."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    # What `_enter_namespaces` asks for, by another program.
    done = subprocess.run(["unshare", "-Urnmipf", "true"], timeout=120, check=False)
    if done.returncode != 0:
        pytest.skip("this kernel gives no namespaces")

    assert facts.namespaces is None
