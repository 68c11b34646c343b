"""The command at a terminal, with a provider of the host's, and when it is interrupted."""

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import sys
import termios
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

import runtime_pack
from runtime_pack.audit import LogHead, verify_log
from web_tools.testing_site import LoopbackSite, SiteAnswer

ROOT = Path(runtime_pack.__file__).parent.parent
PAGE = SiteAnswer.html("<p>Brown bears sleep in winter, most of them in a den under snow.</p>")
SLOW = attrs.evolve(PAGE, delay_seconds=60)
PROVIDER = """
from runtime_pack import SearchHit, create_fixture_web_search_provider

def make():
    return create_fixture_web_search_provider(
        [SearchHit(title="Bears", url="{url}", snippet="On brown bears.")]
    )
"""
STUBBORN = """
import asyncio

class Stubborn:
    async def search(self, request, *, signal=None):
        while True:
            try:
                print("searching", flush=True)
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

make = Stubborn
"""


def command(*arguments: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-W", "error", "-m", "runtime_pack.cli", *arguments]


def environment(*folders: Path) -> dict[str, str]:
    """A plain terminal of 80 columns, and modules of the test's own."""
    path = os.pathsep.join(map(str, (ROOT, *folders)))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RUNTIME_PACK", "XDG_"))}
    return {**kept, "PYTHONPATH": path, "COLUMNS": "80", "NO_COLOR": "1", "LANG": "C.UTF-8"}


@attrs.frozen
class Done:
    """What a process left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on standard output."""
        (line,) = self.out.splitlines()
        value = json.loads(line)
        assert isinstance(value, dict)
        return value


async def start(
    *arguments: str, state: Path, folders: Sequence[Path] = ()
) -> asyncio.subprocess.Process:
    """The command, without a terminal, under way."""
    return await asyncio.create_subprocess_exec(
        *command(*arguments, "--state-dir", str(state)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(*folders),
    )


async def finish(process: asyncio.subprocess.Process) -> Done:
    """What it left; nothing that looks like a crash may be seen."""
    async with asyncio.timeout(120):
        out, err = await process.communicate()
    done = Done(process.returncode or 0, out.decode(), err.decode())
    for word in ("Traceback", "Warning", "never awaited", "Exception ignored"):
        assert word not in done.out + done.err
    return done


async def run(*arguments: str, state: Path, folders: Sequence[Path] = ()) -> Done:
    """The command from start to end."""
    return await finish(await start(*arguments, state=state, folders=folders))


@asynccontextmanager
async def served(
    folder: Path, answer: SiteAnswer
) -> AsyncIterator[tuple[LoopbackSite, tuple[str, ...]]]:
    """A site with one page, and the options that search for it and allow it."""
    async with LoopbackSite({"/bears": answer}) as site:
        (folder / "own_provider.py").write_text(PROVIDER.format(url=site.url("/bears")))
        yield site, ("--provider", "own_provider:make", "--allow", site.entry)


async def until_asked(site: LoopbackSite) -> None:
    """Wait until a request has reached the site."""
    async with asyncio.timeout(120):
        # The site has no event for it.
        while not site.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def log_of(state: Path) -> list[Path]:
    """The logs of a state folder, oldest first."""
    return sorted(state.glob("logs/*.jsonl"), key=lambda path: path.stat().st_mtime_ns)


# ── a provider of the host's ──────────────────────────────────────────────────────────────────


@pytest.mark.loopback
def test_a_provider_is_named_by_module_and_factory(tmp_path: Path) -> None:
    """The factory's provider is searched, and its page is read when --allow admits it."""

    async def main() -> tuple[Done, list[str], Done]:
        async with served(tmp_path, PAGE) as (site, options):
            state = tmp_path / "state"
            done = await run(
                "ask", "brown bears", *options, "--json", state=state, folders=[tmp_path]
            )
            denied = await run(
                "ask", "brown bears", *options[:2], "--json", state=state, folders=[tmp_path]
            )
            return done, site.requests, denied

    done, requests, denied = asyncio.run(main())

    assert (0, ["/bears"]) == (done.code, requests)
    assert "den under snow" in done.json["text"]
    assert denied.code == 0
    assert "without --allow every page read is denied" in denied.err
    assert "WEB_EGRESS_DENIED" in denied.json["text"]
    assert denied.json["ledger"]["violations"] == 1


# ── interruption ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.loopback
def test_an_interrupted_run_is_taken_up_and_completed(tmp_path: Path) -> None:
    """In the middle of a slow read Ctrl-C suspends the run: exit 130, log verified, resumable."""
    state = tmp_path / "state"

    async def main() -> tuple[Done, Done]:
        async with served(tmp_path, SLOW) as (site, options):
            process = await start(
                "ask", "brown bears", *options, "--json", state=state, folders=[tmp_path]
            )
            await until_asked(site)
            process.send_signal(signal.SIGINT)
            stopped = await finish(process)
            site.pages["/bears"] = PAGE
            again = ("ask", "--resume", stopped.json["run"], "--json")
            return stopped, await run(*again, state=state, folders=[tmp_path])

    stopped, done = asyncio.run(main())
    told, head = stopped.json, LogHead.parse(stopped.json["audit"]["head"])

    assert (130, "suspended", "paused") == (stopped.code, told["kind"], told["stop"]["code"])
    assert "verified" == verify_log(Path(told["audit"]["path"]), [head]).status
    assert (0, "completed") == (done.code, done.json["kind"])
    assert "den under snow" in done.json["text"]
    reads = [step for step in done.json["steps"] if step["tool"] == "web:read"]
    assert [None] == [step["code"] for step in reads if step["ok"]]
    assert done.json["ledger"]["used"]["steps"] == 2
    assert ["chained", "chained"] == [verify_log(path).status for path in log_of(state)]


@pytest.mark.loopback
def test_a_terminated_run_says_how_to_take_it_up(tmp_path: Path) -> None:
    """SIGTERM does the same; a person is told what happened and the command to go on with."""
    state = tmp_path / "state"

    async def main() -> Done:
        async with served(tmp_path, SLOW) as (site, options):
            process = await start("ask", "brown bears", *options, state=state, folders=[tmp_path])
            await until_asked(site)
            process.send_signal(signal.SIGTERM)
            return await finish(process)

    done = asyncio.run(main())
    (log,) = log_of(state)
    head = re.search(r"^head (\d+:[0-9a-f]{64})$", done.out, re.MULTILINE)

    assert done.code == 130
    assert "suspended paused: interrupted by SIGTERM" in done.out
    assert re.search(r"take it up with: runtime-pack ask --resume run-\w+ --state-dir ", done.out)
    assert head is not None
    assert "verified" == verify_log(log, [LogHead.parse(head[1])]).status


@pytest.mark.loopback
def test_two_signals_at_once_are_an_interruption(tmp_path: Path) -> None:
    """A person who presses Ctrl-C twice gets no traceback, and the run can still be taken up."""
    state = tmp_path / "state"

    async def main() -> tuple[Done, Done]:
        async with served(tmp_path, SLOW) as (site, options):
            process = await start(
                "ask", "brown bears", *options, "--json", state=state, folders=[tmp_path]
            )
            await until_asked(site)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.01)
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            stopped = await finish(process)
            site.pages["/bears"] = PAGE
            (folder,) = (state / "runs").glob("run-*")
            again = ("ask", "--resume", folder.name, "--json")
            return stopped, await run(*again, state=state, folders=[tmp_path])

    stopped, done = asyncio.run(main())

    # A signal that meets the interpreter's very end is the same to a shell.
    assert stopped.code in {130, -signal.SIGINT}
    assert (0, "completed") == (done.code, done.json["kind"])
    assert {"chained"} == {verify_log(path).status for path in log_of(state)}


def test_a_provider_that_cannot_be_stopped_gives_way_to_further_signals(tmp_path: Path) -> None:
    """The first signal asks politely; later ones end the process, whatever the host's code does."""
    (tmp_path / "stubborn_provider.py").write_text(STUBBORN)

    async def main() -> Done:
        process = await start(
            "ask",
            "x",
            "--provider",
            "stubborn_provider:make",
            "--allow",
            "a.example",
            state=tmp_path / "state",
            folders=[tmp_path],
        )
        assert process.stdout is not None
        await process.stdout.readline()
        for _ in range(40):
            if process.returncode is not None:
                break
            process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.25)
        return await finish(process)

    done = asyncio.run(main())

    # A signal that meets the interpreter's very end is the same to a shell.
    assert done.code in {130, -signal.SIGINT}


# ── at a terminal ─────────────────────────────────────────────────────────────────────────────


def _take_terminal() -> None:
    """In the new process: its standard input becomes its terminal, so that Ctrl-C is a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


async def at_terminal(*arguments: str, keys: Sequence[str], folders: Sequence[Path] = ()) -> Done:
    """The command at a pseudo-terminal; each of *keys* answers one prompt."""
    ours, theirs = pty.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            *command(*arguments),
            stdin=theirs,
            stdout=asyncio.subprocess.PIPE,
            stderr=theirs,
            env={**environment(*folders), "TERM": "xterm"},
            start_new_session=True,
            # Nothing else runs in the child before the command does.
            preexec_fn=_take_terminal,
        )
    finally:
        os.close(theirs)
    shown = asyncio.create_task(_answered(ours, list(keys)))
    try:
        async with asyncio.timeout(120):
            # The process was started with a pipe.
            out = await process.stdout.read()  # type: ignore[union-attr]
            return Done(await process.wait(), out.decode(), await shown)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await shown
        os.close(ours)


async def _answered(terminal: int, keys: list[str]) -> str:
    """What the terminal shows, while prompts are answered."""
    shown, seen = "", 0
    while True:
        try:
            shown += (await asyncio.to_thread(os.read, terminal, 4096)).decode(errors="replace")
        except OSError:
            # The other end is closed: the process has ended.
            return shown
        if keys and shown.count("[y/N]") > seen:
            seen += 1
            os.write(terminal, keys.pop(0).encode())


@pytest.mark.loopback
@pytest.mark.parametrize(("key", "code"), [("y\n", 0), ("n\n", 1)])
def test_the_demo_asks_the_person_at_the_terminal(key: str, code: int, tmp_path: Path) -> None:
    """Yes completes it; no fails that claim and no other."""
    state = ("--state-dir", str(tmp_path))
    done = asyncio.run(at_terminal("demo", "--json", *state, keys=[key]))
    told = done.json
    failed = [
        check["claim"]
        for part in ("answer", "attack", "approval", "audit")
        for check in told[part]["checks"]
        if not check["held"]
    ]

    assert (code, code == 0) == (done.code, told["ok"])
    assert ([] if code == 0 else ["the approved call ran once"]) == failed
    assert "approve this call?" in done.err
    assert "web:read asks to run with" in done.err


async def asked_at_terminal(folder: Path, *keys: str) -> tuple[Done, list[str]]:
    """A run whose reads need a person, with the site's requests."""
    async with served(folder, PAGE) as (site, options):
        state = ("--state-dir", str(folder / "state"))
        asked = ("ask", "brown bears", "--approve", "ask", "--json", *options, *state)
        return await at_terminal(*asked, keys=keys, folders=[folder]), site.requests


@pytest.mark.loopback
@pytest.mark.parametrize(
    ("keys", "word", "requests"),
    [(["maybe\n", "YES\n"], "den under snow", ["/bears"]), (["\n"], "DENIED_BY_PERSON", [])],
)
def test_ask_asks_the_person_at_the_terminal(
    keys: list[str], word: str, requests: list[str], tmp_path: Path
) -> None:
    """A read waits for y or n, on standard error; Enter is a no; the output stays clean."""
    done, seen = asyncio.run(asked_at_terminal(tmp_path, *keys))

    assert (0, "completed", requests) == (done.code, done.json["kind"], seen)
    assert done.out.startswith("{")
    assert word in done.json["text"]
    assert "started with --approve ask" in done.err
    assert len(keys) - 1 == done.err.count("please answer y or n")


@pytest.mark.loopback
@pytest.mark.parametrize("key", ["\x03", "\x04"])
def test_an_interrupted_question_decides_nothing(key: str, tmp_path: Path) -> None:
    """Ctrl-C or the end of input at the question leaves the run waiting: exit 130, nothing read."""
    done, seen = asyncio.run(asked_at_terminal(tmp_path, key))

    assert (130, "approval_required", []) == (done.code, done.json["kind"], seen)
    assert ["chained"] == [verify_log(path).status for path in log_of(tmp_path / "state")]


@pytest.mark.loopback
def test_an_interrupted_demo_is_exit_code_130(tmp_path: Path) -> None:
    """Ctrl-C at the demonstration's question ends it as interrupted, with a verified log."""
    done = asyncio.run(at_terminal("demo", "--state-dir", str(tmp_path), keys=["\x03"]))

    assert done.code == 130
    assert "interrupted" in done.err
    assert "Traceback" not in done.err
    assert ["chained"] == [verify_log(path).status for path in log_of(tmp_path)]
