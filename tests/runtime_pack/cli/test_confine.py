"""`runtime-pack confine` as a person and a script meet it: real processes behind the real proxy."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

import runtime_pack
from egress.confine import Boundary, KernelFacts, choose_boundary, kernel_facts, missing_for
from runtime_pack.cli.confine import command

pytestmark = pytest.mark.loopback

ROOT = Path(runtime_pack.__file__).parent.parent
# Refuses what is named with EPERM and becomes the command: a kernel that gives no boundary.
POORER = """
import ctypes, os, struct, sys
x86 = os.uname().machine == "x86_64"
numbers = {"unshare": 272 if x86 else 97, "landlock_create_ruleset": 444}
libc = ctypes.CDLL(None)
program = struct.pack("=HBBI", 0x20, 0, 0, 0)
for name in sys.argv[1].split(","):
    program += struct.pack("=HBBI", 0x15, 0, 1, numbers[name])
    program += struct.pack("=HBBI", 0x06, 0, 0, 0x50001)
program += struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
held = ctypes.create_string_buffer(program, len(program))
header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(held)))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, header, 0, 0):
    sys.exit("no filter here")
os.execv(sys.argv[2], sys.argv[2:])
"""
READ = (
    "import sys, urllib.request, urllib.error\n"
    "try: print(urllib.request.urlopen(sys.argv[1], timeout=120).read().decode())\n"
    "except urllib.error.HTTPError as error: print(error.code)\n"
)


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """One page."""
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"page")

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    """Host and port of a page on loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def facts() -> KernelFacts:
    """What this kernel gives."""
    return asyncio.run(kernel_facts())


@pytest.fixture(params=["namespace", "landlock"])
def boundary(request: pytest.FixtureRequest, facts: KernelFacts) -> str:
    """Each boundary that this kernel gives."""
    missing = missing_for(Boundary(request.param), facts)
    if missing is not None:
        pytest.skip(f"no {request.param} boundary here: {missing}")
    return str(request.param)


@attrs.frozen
class Done:
    """What a process left."""

    code: int
    out: str
    err: str


def environment() -> dict[str, str]:
    """A plain terminal; our packages; no proxy of the machine's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RUNTIME_PACK", "XDG_")) and not name.lower().endswith("_proxy")
    }
    return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": "1"}


def words(state: Path, *arguments: str, without: str = "") -> list[str]:
    """The command line; *without* names system calls that the kernel shall refuse."""
    poorer = [sys.executable, "-c", POORER, without] if without else []
    ours = [sys.executable, "-W", "error", "-m", "runtime_pack.cli", "confine"]
    return [*poorer, *ours, "--state-dir", str(state), *arguments]


def confine(state: Path, *arguments: str, without: str = "", stdin: str = "") -> Done:
    """Run the command; nothing that looks like a crash may be seen."""
    done = subprocess.run(
        words(state, *arguments, without=without),
        input=stdin,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def events(state: Path) -> list[dict[str, object]]:
    """The denials in the logs."""
    lines = [
        json.loads(line)
        for log in (state / "logs").glob("*.jsonl")
        for line in log.read_text().splitlines()
    ]
    return [line for line in lines if "EGR" in json.dumps(line)]


def test_a_listed_page_is_read_through_the_proxy(tmp_path: Path, boundary: str, page: str) -> None:
    """Programs find the proxy in their variables; the boundary is named first."""
    log = tmp_path / "access"
    url = f"http://{page}/"
    script = f'if command -v curl > /dev/null; then curl -s {url}; echo; fi; exec "$@"'
    done = confine(
        tmp_path,
        *("--boundary", boundary, "--allow", page, "--run", "r2", "--access-log", str(log)),
        *("--", "sh", "-c", script, "sh", sys.executable, "-c", READ, url),
    )
    records = [json.loads(line) for line in log.read_text().splitlines()]

    assert (0, {"page"}) == (done.code, set(done.out.split()))
    assert f"boundary {boundary}:" in done.err
    assert re.search(r"closed: tcp, udp, raw, packet, vsock, unix", done.err)
    assert events(tmp_path) == []
    assert len(done.out.split()) == len(records)
    assert {("r2", "forwarded", 200)} == {(r["run"], r["outcome"], r["status"]) for r in records}


def test_a_page_that_is_not_listed_is_denied_and_recorded(
    tmp_path: Path, boundary: str, page: str
) -> None:
    """403, one event with the run's identity, and the entry that would admit it."""
    done = confine(
        tmp_path,
        *("--boundary", boundary, "--allow", "example.org", "--run", "r1", "--task", "t1"),
        *("--", sys.executable, "-c", READ, f"http://{page}/"),
    )
    (event,) = events(tmp_path)
    told = json.dumps(event)

    assert (0, "403") == (done.code, done.out.strip())
    assert f"--allow {page} would admit it" in done.err
    assert '"r1"' in told
    assert '"t1"' in told
    assert "EGR001D" in told
    assert '"policy_sha256": "sha256:' in told


def test_a_program_that_drops_the_variables_reaches_nothing(
    tmp_path: Path, boundary: str, page: str
) -> None:
    """The variables are a convenience and no boundary."""
    done = confine(
        tmp_path,
        *("--boundary", boundary, "--allow", page, "--", "env", "-u", "http_proxy"),
        *("-u", "HTTP_PROXY", "-u", "all_proxy", "-u", "ALL_PROXY", sys.executable, "-c"),
        "import sys, urllib.request, urllib.error\n"
        "try: urllib.request.urlopen(sys.argv[1], timeout=120)\n"
        "except urllib.error.URLError as error: sys.exit(f'no: {error.reason}')\n",
        f"http://{page}/",
    )

    assert done.code == 1
    assert "no: " in done.err


def test_streams_and_the_exit_code_are_the_commands(tmp_path: Path, facts: KernelFacts) -> None:
    """A pipeline, with options of its own, in the strongest boundary that there is."""
    chosen = choose_boundary(facts)
    if chosen is None:
        pytest.skip("this kernel gives no boundary")
    script = 'tr a-z A-Z | rev; exit "$1"'
    done = confine(tmp_path, "--", "sh", "-c", script, "sh", "33", stdin="abc\n")

    assert (33, "CBA\n") == (done.code, done.out)
    assert f"boundary {chosen}:" in done.err


def test_without_namespaces_landlock_holds(tmp_path: Path, facts: KernelFacts, page: str) -> None:
    """The next best, and it works."""
    missing = missing_for(Boundary.LANDLOCK, facts)
    if missing is not None:
        pytest.skip(f"no Landlock boundary here: {missing}")
    command = (sys.executable, "-c", READ, f"http://{page}/")
    done = confine(tmp_path, "--allow", page, "--", *command, without="unshare")

    assert (0, "page") == (done.code, done.out.strip())
    assert "boundary landlock:" in done.err


NEITHER = "unshare,landlock_create_ruleset"


@pytest.mark.parametrize("asked", [(), ("--boundary", "landlock")])
def test_without_a_boundary_nothing_is_started(tmp_path: Path, asked: tuple[str, ...]) -> None:
    """Exit code 2, what is missing, and no trace of the command."""
    done = confine(tmp_path, *asked, "--", "touch", str(tmp_path / "ran"), without=NEITHER)

    assert (2, "") == (done.code, done.out)
    assert "nothing was started" in done.err
    assert ("EPERM" in done.err) == ("landlock" not in asked)
    assert ("Landlock ABI 0" in done.err) == ("namespace" not in asked)
    assert ("--unconfined" in done.err) == (asked == ())
    assert not (tmp_path / "ran").exists()


def test_unconfined_has_to_be_written_and_is_told(tmp_path: Path, page: str) -> None:
    """It runs, behind its proxy if it likes, and standard error says that nothing holds it."""
    command = (sys.executable, "-c", READ, f"http://{page}/")
    done = confine(tmp_path, "--unconfined", "--allow", page, "--", *command, without=NEITHER)

    assert (0, "page") == (done.code, done.out.strip())
    assert "boundary unconfined: NOTHING" in done.err
    assert "closed:" not in done.err


def test_unconfined_does_not_take_a_boundary_away(tmp_path: Path, facts: KernelFacts) -> None:
    """It is for kernels that give none."""
    if missing_for(Boundary.NAMESPACE, facts) and missing_for(Boundary.LANDLOCK, facts):
        pytest.skip("this kernel gives no boundary")
    done = confine(tmp_path, "--unconfined", "--", "true")

    assert "closed: tcp" in done.err
    assert "NOTHING" not in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((), id="no command"),
        pytest.param(("--",), id="no command after the dashes"),
        pytest.param(("--allow", "*", "--", "true"), id="bad entry"),
        pytest.param(("--boundary", "none", "--", "true"), id="no such boundary"),
        pytest.param(("--boundary", "landlock", "--unconfined", "--", "true"), id="both"),
        pytest.param(("--run", "a:b", "--", "true"), id="bad run"),
        pytest.param(("--alow", "x.org", "--", "true"), id="misspelt option"),
    ],
)
def test_wrong_usage_starts_nothing(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """And leaves no log."""
    given = ["--state-dir", str(tmp_path / "state"), *arguments]
    done = CliRunner().invoke(command, given, standalone_mode=True)

    assert done.exit_code == 2
    assert "Error" in done.output
    assert not (tmp_path / "state").exists()


def test_a_command_that_is_not_there(tmp_path: Path, facts: KernelFacts) -> None:
    """As shells have it."""
    if choose_boundary(facts) is None:
        pytest.skip("this kernel gives no boundary")
    done = confine(tmp_path, "--", "no-such-program-anywhere")

    assert done.code == 127
    assert "no-such-program-anywhere cannot be executed: ENOENT" in done.err


def test_what_cannot_be_recorded_does_not_go_on(tmp_path: Path, boundary: str, page: str) -> None:
    """The access log is on a full disk: the command is ended after its first connection."""
    script = '"$@"; sleep 60'
    began = time.monotonic()
    done = confine(
        tmp_path,
        *("--boundary", boundary, "--allow", page, "--access-log", "/dev/full"),
        *("--", "sh", "-c", script, "sh", sys.executable, "-c", READ, f"http://{page}/"),
    )

    assert done.code == 1
    assert "could not be recorded" in done.err
    assert time.monotonic() - began < 30


def test_a_signal_reaches_the_command(tmp_path: Path, boundary: str) -> None:
    """And its exit code is ours."""
    script = f"trap 'exit 5' TERM; echo > {tmp_path}/set; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        words(tmp_path, "--boundary", boundary, "--", "sh", "-c", script),
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 120
    while not (tmp_path / "set").exists() and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)

    assert process.wait(timeout=120) == 5


@pytest.mark.parametrize("interpreter", ["/nonexistent/python", "/dev/null", ""])
def test_a_launcher_that_cannot_start_is_told_in_one_line(tmp_path: Path, interpreter: str) -> None:
    """An embedded or a moved interpreter: nothing is started, and no traceback is shown."""
    program = (
        "import sys\n"
        f"sys.executable = {interpreter!r}\n"
        "from runtime_pack.cli import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "confine", "--state-dir", str(tmp_path), "--", "true"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert 2 == done.returncode
    assert "confine: confinement failed at the launcher" in done.stderr
    assert "nothing was started" in done.stderr
    assert "Traceback" not in done.stderr
