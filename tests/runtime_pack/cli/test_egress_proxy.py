"""`runtime-pack egress-proxy` as a process: what it prints, logs and refuses, and how it stops."""

import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import click
import pytest

import runtime_pack
from egress import AddressPolicy
from runtime_pack.audit import LogStatus, verify_log
from runtime_pack.cli import egress_proxy
from runtime_pack.cli._proxy_config import read_config

pytestmark = pytest.mark.loopback

ROOT = Path(runtime_pack.__file__).parent.parent
SECRET = "a-token-of-some-length"


def command(*arguments: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-W", "error", "-m", "runtime_pack.cli", "egress-proxy", *arguments]


def environment(**more: str) -> dict[str, str]:
    """No settings of the user's own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RUNTIME_PACK", "XDG_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **more}


@attrs.define
class Serving:
    """A proxy that runs as a process of its own."""

    process: "subprocess.Popen[str]"
    ready: dict[str, Any]
    state: Path

    def ask(self, url: str, *, token: str | None = None) -> http.client.HTTPResponse:
        """The answer to one request in absolute-form; it is read."""
        found = urlsplit(self.ready["listening"])
        connection = http.client.HTTPConnection(found.hostname or "", found.port, timeout=120)
        headers = {} if token is None else {"Proxy-Authorization": f"Bearer {token}"}
        connection.request("GET", url, headers=headers)
        response = connection.getresponse()
        response.read()
        connection.close()
        return response

    def tunnel(self, port: int, *, token: str) -> socket.socket:
        """An open tunnel to the loopback address."""
        found = urlsplit(self.ready["listening"])
        opened = socket.create_connection((found.hostname or "", found.port or 0), timeout=120)
        head = f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        opened.sendall(f"{head}Proxy-Authorization: Bearer {token}\r\n\r\n".encode())
        assert b"200" in opened.recv(4096)
        return opened

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Exit code and what was printed."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> tuple[int, str, str]:
        """Exit code and what was printed, once it has ended."""
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of its log."""
        lines = Path(self.ready["log"]).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @property
    def denials(self) -> list[dict[str, Any]]:
        """The events of its log that tell of a denial."""
        return [each for each in self.events if each["type"] == "sandbox:violation"]


@contextlib.contextmanager
def serving(state: Path, *arguments: str, **more: str) -> Iterator[Serving]:
    """The process, ready; killed when the block is left."""
    process = subprocess.Popen(
        command("--state-dir", str(state), *arguments),
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield Serving(process, json.loads(line), state)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def upstream() -> Iterator[socket.socket]:
    """A listening socket; nobody has to accept."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def access_lines(err: str) -> list[dict[str, Any]]:
    """The access log on standard error."""
    return [json.loads(line) for line in err.splitlines()]


def test_a_denial_is_in_the_log_under_the_id_that_was_answered(tmp_path: Path) -> None:
    """Run, task and session, rule and reason; the log verifies after the stop."""
    options = ("--allow", "a.test", "--run", "r1", "--task", "t1", "--session", "s1")
    with serving(tmp_path, *options) as proxy:
        [run] = proxy.ready["runs"]
        token = urlsplit(run["proxy_url"]).password
        assert ("r1", ["a.test"], proxy.process.pid) == (
            run["run"],
            run["allow"],
            proxy.ready["pid"],
        )
        denied = proxy.ask("http://evil.test/secret", token=token)
        assert (403, 407) == (denied.status, proxy.ask("http://a.test/").status)
        code, _, err = proxy.stop()
        assert code == 0
        [event] = proxy.denials
        assert denied.headers["Egress-Event"] == event["key"]
        assert ("EGR001D", "medium") == (event["code"], event["severity"])
        assert {"run": "r1", "task": "t1", "session": "s1", "executor": "egress-proxy"} == event[
            "subject"
        ]
        assert ("evil.test", "R4") == (event["object"]["host"], event["decision"]["rule"])
        assert event["decision"]["policy_sha256"].startswith("sha256:")
        assert LogStatus.CHAINED is verify_log(Path(proxy.ready["log"])).status
        assert ["denied", "unauthenticated"] == [line["outcome"] for line in access_lines(err)]
        everything = err + Path(proxy.ready["log"]).read_text(encoding="utf-8")
        assert "secret" not in everything
        assert str(token) not in everything


@pytest.mark.parametrize(
    ("entries", "url", "code"),
    [
        (["a.test"], "http://b.test/", "EGR001D"),
        (["169.254.169.254"], "http://169.254.169.254/", "EGR002D"),
    ],
)
def test_codes_tell_the_list_from_the_address(
    tmp_path: Path, entries: list[str], url: str, code: str
) -> None:
    """The same codes as a run's own denials have."""
    with serving(tmp_path, *(f"--allow={entry}" for entry in entries)) as proxy:
        token = urlsplit(proxy.ready["runs"][0]["proxy_url"]).password
        assert 403 == proxy.ask(url, token=token).status
        proxy.stop()
        assert code == proxy.denials[0]["code"]


def test_a_refused_hello_has_its_own_code(tmp_path: Path) -> None:
    """What only the proxy can see is EGR003D."""
    with serving(tmp_path, "--allow", "127.0.0.1") as proxy:
        token = urlsplit(proxy.ready["runs"][0]["proxy_url"]).password
        with proxy.tunnel(443, token=str(token)) as opened:
            opened.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert opened.recv(64).startswith(b"\x15\x03")
        proxy.stop()
        [event] = proxy.denials
        assert ("EGR003D", "not_tls", "CONNECT") == (
            event["code"],
            event["decision"]["reason_code"],
            event["object"]["method"],
        )


def test_a_ready_file_keeps_the_token(tmp_path: Path) -> None:
    """It appears whole, for its owner only; standard output has no token then."""
    ready = tmp_path / "ready.json"
    with serving(tmp_path / "s", "--allow", "a.test", "--ready-file", str(ready)) as proxy:
        told = json.loads(ready.read_text(encoding="utf-8"))
        assert 0o600 == ready.stat().st_mode & 0o777
        assert "proxy_url" not in proxy.ready["runs"][0]
        assert proxy.ready["listening"] == told["listening"]
        token = urlsplit(told["runs"][0]["proxy_url"]).password
        assert 403 == proxy.ask("http://b.test/", token=token).status
        assert not list(tmp_path.glob("*.new"))


def test_a_given_token_is_not_told(tmp_path: Path) -> None:
    """From a file or a variable: whoever set it knows it."""
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\nsecond line\n", encoding="ascii")
    for options, more in (
        (("--token-file", str(file)), {}),
        (("--token-env", "PROXY_TOKEN"), {"PROXY_TOKEN": SECRET}),
    ):
        with serving(tmp_path / "s", "--allow", "a.test", *options, **more) as proxy:
            assert SECRET not in json.dumps(proxy.ready)
            assert 403 == proxy.ask("http://b.test/", token=SECRET).status
            _, out, err = proxy.stop()
            assert SECRET not in out + err


def test_the_first_signal_drains_and_the_second_ends(
    tmp_path: Path, upstream: socket.socket
) -> None:
    """A tunnel works on after SIGTERM, nobody new is let in, and a second one ends it at once."""
    port = upstream.getsockname()[1]
    with serving(tmp_path, "--allow", f"127.0.0.1:{port}", "--grace", "600") as proxy:
        token = urlsplit(proxy.ready["runs"][0]["proxy_url"]).password
        with proxy.tunnel(port, token=str(token)) as opened:
            there, _ = upstream.accept()
            with there:
                proxy.process.send_signal(signal.SIGTERM)
                _until_refused(proxy)
                opened.sendall(b"still here")
                assert b"still here" == there.recv(64)
                began = time.monotonic()
                code, _, err = proxy.stop(signal.SIGINT)
                assert (0, True) == (code, time.monotonic() - began < 110)
                [line] = [each for each in access_lines(err) if each["outcome"] == "tunnelled"]
                assert "stopped" == line["reason"]
        assert LogStatus.CHAINED is verify_log(Path(proxy.ready["log"])).status


def _until_refused(proxy: Serving) -> None:
    found = urlsplit(proxy.ready["listening"])
    for _ in range(200):
        try:
            socket.create_connection((found.hostname or "", found.port or 0), timeout=120).close()
        except OSError:
            return
        time.sleep(0.02)
    raise AssertionError("it still listens")


def test_the_grace_period_ends(tmp_path: Path, upstream: socket.socket) -> None:
    """A tunnel that does not end by itself is ended."""
    port = upstream.getsockname()[1]
    with serving(tmp_path, "--allow", f"127.0.0.1:{port}", "--grace", "0.1") as proxy:
        token = urlsplit(proxy.ready["runs"][0]["proxy_url"]).password
        with proxy.tunnel(port, token=str(token)) as opened:
            code, _, _ = proxy.stop()
            with pytest.raises(ConnectionResetError):
                opened.recv(64)
            assert code == 0


def test_it_stops_when_it_cannot_record(tmp_path: Path) -> None:
    """A full disk: no denial is answered that is not in the log, and the process ends with 1."""
    with serving(tmp_path, "--allow", "a.test", "--access-log", "/dev/full") as proxy:
        token = urlsplit(proxy.ready["runs"][0]["proxy_url"]).password
        proxy.ask("http://b.test/", token=token)
        code, _, err = proxy.ended()
        assert code == 1
        assert "could not be recorded" in err
        assert "Traceback" not in err


def test_it_says_that_its_output_cannot_be_written(tmp_path: Path) -> None:
    """It listens, and nobody would know where: that is no fault of the address."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command("--allow", "a.test", "--state-dir", str(tmp_path)),
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    assert "cannot be written to standard output" in done.stderr
    assert "cannot listen" not in done.stderr
    assert "Traceback" not in done.stderr


def test_an_access_log_that_nobody_reads_stops_it(tmp_path: Path) -> None:
    """The proxy goes on serving meanwhile, and ends with 1 once the lines do not get out."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    filler = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(filler, bytes(4096))
    with serving(tmp_path, "--allow", "a.test", "--access-log", str(pipe)) as proxy:
        token = urlsplit(proxy.ready["runs"][0]["proxy_url"]).password
        for _ in range(3):
            assert 403 == proxy.ask("http://b.test/", token=token).status
        code, _, err = proxy.ended()
    os.close(reader)
    os.close(filler)
    assert code == 1
    assert "nobody reads them" in err
    assert "Traceback" not in err


def test_an_empty_list_is_told(tmp_path: Path) -> None:
    """It is a list, and most who start with one have forgotten it."""
    with serving(tmp_path) as proxy:
        _, _, err = proxy.stop()

    assert "the list of run proxy is empty: it allows NOTHING" in err


def test_the_descriptor_limit_is_raised(tmp_path: Path) -> None:
    """To what this user may have, for each tunnel has two sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with serving(tmp_path, "--allow", "a.test") as proxy:
            limits = Path(f"/proc/{proxy.process.pid}/limits").read_text(encoding="ascii")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    [line] = [each for each in limits.splitlines() if each.startswith("Max open files")]
    assert min(hard, 20_000) == int(line.split()[3])


CONFIG = """
listen = "127.0.0.1:0"
grace_seconds = 0.5

[[runs]]
run = "one"
task = "t"
token_file = "{file}"
allow = ["a.test"]

[[runs]]
run = "two"
token_env = "TOKEN_TWO"
allow = ["b.test", "10.0.0.0/8"]
[runs.address]
allowed_hosts = ["b.test"]
https_only = true
[runs.limits]
max_connections = 3
idle_seconds = 2.5
"""


def test_a_file_names_several_runs(tmp_path: Path) -> None:
    """Each with its token, list, address policy and limits."""
    file = tmp_path / "token"
    file.write_text(SECRET, encoding="ascii")
    config = tmp_path / "proxy.toml"
    config.write_text(CONFIG.format(file=file), encoding="utf-8")
    other = SECRET[::-1]
    with serving(tmp_path / "s", "--config", str(config), TOKEN_TWO=other) as proxy:
        assert ["one", "two"] == [run["run"] for run in proxy.ready["runs"]]
        one = proxy.ask("http://b.test/", token=SECRET)
        two = proxy.ask("http://b.test/", token=other)
        assert (403, 403) == (one.status, two.status)
        proxy.stop()
        found = [
            (each["subject"]["run"], each["decision"]["reason_code"]) for each in proxy.denials
        ]
        assert [("one", "host_not_listed"), ("two", "https_only")] == found


def test_what_a_file_says_is_what_a_run_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every setting arrives; what is not said is the default."""
    monkeypatch.setenv("TOKEN_TWO", SECRET[::-1])
    file = tmp_path / "token"
    file.write_text(SECRET, encoding="ascii")
    config = tmp_path / "proxy.toml"
    config.write_text(CONFIG.format(file=file), encoding="utf-8")

    settings = read_config(config)

    assert (0.5, "127.0.0.1", 0) == (
        settings.grace_seconds,
        settings.listen.host if settings.listen else "",
        settings.listen.port if settings.listen else -1,
    )
    one, two = settings.runs
    assert (SECRET, "t", "", 512) == (one.token, one.task, one.session, one.limits.max_connections)
    assert ("10.0.0.0/8", "b.test") == two.policy.allowlist.entries
    assert AddressPolicy(allowed_hosts=["b.test"], https_only=True) == two.policy.address
    assert (3, 2.5) == (two.limits.max_connections, two.limits.idle_seconds)


RUN = 'run = "one"\ntoken_file = "{file}"\nallow = ["a.test"]\n'

BAD_FILES = {
    "not TOML": ("[[runs", "cannot be read"),
    "no run": ("listen = '127.0.0.1:0'", "'runs' is missing"),
    "empty": ("runs = []", "names no run"),
    "unknown key": (f"allow = []\n[[runs]]\n{RUN}", "'allow' is no key here"),
    "unknown key of a run": (f"[[runs]]\n{RUN}alow = []", "run 1: 'alow' is no key here"),
    "unknown switch": (
        f"[[runs]]\n{RUN}[runs.address]\nallow_private = true",
        "'allow_private' is no key here",
    ),
    "switch that is text": (
        f'[[runs]]\n{RUN}[runs.address]\nhttps_only = "true"',
        "'https_only' is not of the kind bool",
    ),
    "unknown limit": (f"[[runs]]\n{RUN}[runs.limits]\nmax = 1", "'max' is no key here"),
    "limit of zero": (f"[[runs]]\n{RUN}[runs.limits]\nmax_bytes = 0", "not a positive"),
    "limit without end": (f"[[runs]]\n{RUN}[runs.limits]\nidle_seconds = inf", "finite"),
    "limit that is text": (f'[[runs]]\n{RUN}[runs.limits]\nmax_bytes = "5"', "not a number"),
    "no list": ('[[runs]]\nrun = "a"\ntoken_file = "{file}"', "'allow' is missing"),
    "list that is text": (
        '[[runs]]\nrun = "a"\ntoken_file = "{file}"\nallow = "a.test"',
        "'allow' is not of the kind list",
    ),
    "bad entry": ('[[runs]]\nrun = "a"\ntoken_file = "{file}"\nallow = ["*"]', "wildcard"),
    "entry that is no text": (
        '[[runs]]\nrun = "a"\ntoken_file = "{file}"\nallow = [1]',
        "not_text",
    ),
    "no token": ('[[runs]]\nrun = "a"\nallow = []', "name one of them"),
    "two tokens": (f'[[runs]]\n{RUN}token_env = "X"', "name one of them"),
    "token not set": ('[[runs]]\nrun = "a"\ntoken_env = "NO_SUCH_VAR"\nallow = []', "missing"),
    "token file not there": (
        '[[runs]]\nrun = "a"\ntoken_file = "/no/such"\nallow = []',
        "cannot be read",
    ),
    "run id": ('[[runs]]\nrun = "a:b"\ntoken_file = "{file}"\nallow = []', "no colon"),
    "two runs of one id": (f"[[runs]]\n{RUN}[[runs]]\n{RUN}", "one id twice"),
    "two runs of one token": (
        f'[[runs]]\n{RUN}[[runs]]\nrun = "b"\ntoken_file = "{{file}}"\nallow = []',
        "one token twice",
    ),
    "listen beyond": (f"listen = '0.0.0.0:1'\n[[runs]]\n{RUN}", "not a loopback"),
    "grace": (f"grace_seconds = -1\n[[runs]]\n{RUN}", "finite number from 0"),
    "a table in place of a run": ("runs = [1]", "is not a table"),
}


@pytest.mark.parametrize(("text", "told"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_opens_nothing(tmp_path: Path, text: str, told: str) -> None:
    """One thing wrong refuses the whole file, and the message names it."""
    file = tmp_path / "token"
    file.write_text(SECRET, encoding="ascii")
    config = tmp_path / "proxy.toml"
    config.write_text(text.replace("{file}", str(file)), encoding="utf-8")

    _refused(tmp_path, "--config", str(config), told=told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--allow", "*"], "wildcard"),
        (["--allow", "a.test", "--run", "a:b"], "no colon"),
        (["--allow", "a.test", "--run", ""], "no colon"),
        (["--listen", "0.0.0.0:0"], "not a loopback"),
        (["--listen", "localhost:0"], "ADDRESS:PORT"),
        (["--listen", "127.0.0.1"], "ADDRESS:PORT"),
        (["--listen", "127.0.0.1:99999"], "ADDRESS:PORT"),
        (["--listen", "::1:0"], "ADDRESS:PORT"),
        (["--allowed-host", "a b"], "host"),
        (["--token-env", "NO_SUCH_VAR"], "missing"),
        (["--token-file", "/no/such"], "cannot be read"),
        (["--config", "/no/such"], "cannot be read"),
        (["--config", "/no/such", "--allow", "a.test"], "cannot be read"),
        (["--grace", "-1"], "grace"),
        (["--access-log", "/no/such/file", "--allow", "a.test"], "access log"),
        (["--ready-file", "/no/such/file", "--allow", "a.test"], "ready file"),
    ],
)
def test_bad_options_open_nothing(tmp_path: Path, arguments: list[str], told: str) -> None:
    """Wrong usage is told in a line, without a traceback."""
    _refused(tmp_path, *arguments, told=told)


def test_options_of_a_run_do_not_go_with_a_file(tmp_path: Path) -> None:
    """An option that would be for none of its runs is not ignored."""
    file = tmp_path / "token"
    file.write_text(SECRET, encoding="ascii")
    config = tmp_path / "proxy.toml"
    config.write_text(f"[[runs]]\n{RUN}".replace("{file}", str(file)), encoding="utf-8")
    for option in (
        ["--allow", "b.test"],
        ["--allow-private-addresses"],
        ["--https-only"],
        ["--run", "x"],
        ["--task", "x"],
        ["--token-env", "X"],
    ):
        _refused(tmp_path, "--config", str(config), *option, told="do not go with it")


def test_a_port_that_is_taken_is_told(tmp_path: Path, upstream: socket.socket) -> None:
    """Exit code 1."""
    listen = f"127.0.0.1:{upstream.getsockname()[1]}"

    error = _refused(tmp_path, "--allow", "a.test", "--listen", listen, told="cannot listen")
    assert error.exit_code == 1


def _refused(state: Path, *arguments: str, told: str) -> click.ClickException:
    """What the command says in place of listening; the token is not in it."""
    with pytest.raises(click.ClickException) as caught:
        egress_proxy.command.main(
            ["--state-dir", str(state / "state"), *arguments],
            prog_name="egress-proxy",
            standalone_mode=False,
        )

    message = caught.value.format_message()
    assert told in message
    assert SECRET not in message
    return caught.value


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xff", "utf-8"),
        (b"a = ", "Invalid value"),
        (b"a = " + b"[" * 100_000, "recursion"),
        (b"a = " + b"{b = " * 20_000, "recursion"),
        (b"grace_seconds = " + b"9" * 5_000, "4300 digits"),
        (b"# " + b"x" * 1024 * 1024, "larger than 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_configuration_is_wrong_usage(
    tmp_path: Path, content: bytes, told: str
) -> None:
    """However it is broken, and without reading what has no end."""
    config = tmp_path / "proxy.toml"
    config.write_bytes(content)

    with pytest.raises(click.UsageError, match=told):
        read_config(config)


def test_wrong_usage_is_one_line_and_code_2(tmp_path: Path) -> None:
    """As a process: no traceback, nothing on standard output."""
    done = subprocess.run(
        command("--state-dir", str(tmp_path), "--allow", "*"),
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (2, "") == (done.returncode, done.stdout)
    assert "wildcard" in done.stderr
    assert "Traceback" not in done.stderr
