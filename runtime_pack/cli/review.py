"""`runtime-pack review`: a local page of what the agents did, what was refused, and what waits."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from runtime_pack.audit.index import check_place, default_index, logs_in
from runtime_pack.cli._given import FILE, LOGS
from runtime_pack.cli._people import who
from runtime_pack.cli._runs_show import without_secrets
from runtime_pack.cli._state import StateFolder, is_new, open_state, state_option
from runtime_pack.cli._text import exit_codes, note, plain, say, say_json
from runtime_pack.cli.events import log_target
from runtime_pack.cli.runs import end_runs
from runtime_pack.review.source import Ended, Kept, ReviewSource
from runtime_pack.runs import CancelReply

__all__ = ("command",)

_EXIT: Final = exit_codes(
    {0: "ended by Ctrl-C", 1: "a log cannot be read, or the port is taken", 2: "wrong usage"}
)
_MOST_OUTPUT: Final = 4000


@click.command("review", short_help="A local page of runs, denials and approvals.", epilog=_EXIT)
@click.option(
    "--log",
    "target",
    type=LOGS,
    help="A log, or a folder of logs; alone, without saved runs, unless --state-dir is given too.  [default: the logs of the state folder]",
)
@click.option("--policy", "policy_path", type=FILE, metavar="FILE", help="What suggestions change.")
@click.option("--kill-file", type=FILE, help="The file that throws a program's kill switch; shown.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="[default: one that is free]"
)
@click.option("--by", help="Who decides, for the record.  [default: the user]")
@click.option("--json", "as_json", is_flag=True, help="The address as one JSON object.")
@state_option
def command(
    target: Path | None,
    policy_path: Path | None,
    kill_file: Path | None,
    port: int,
    by: str | None,
    as_json: bool,
    state_dir: Path | None,
) -> int:
    """Serve a page on this machine: runs, timelines, denials and why, approvals, whether the logs hold.

    Open the address that is printed. Whoever has it can decide what waits, so it is not to be passed
    on; it holds until Ctrl-C. What is decided here is left with the run, as by `runtime-pack runs`.
    """
    logs = log_target(target, state_dir)
    given = click.get_current_context().get_parameter_source("state_dir")
    with_runs = target is None or given is not ParameterSource.DEFAULT
    state = None
    if with_runs and is_new(state_dir) is None:
        state = open_state(state_dir, create=False)
    index = default_index(logs)
    check_place(index, logs_in(logs))
    source = ReviewSource(
        target=logs,
        index=index,
        by=by or who(),
        policy=policy_path,
        kill_file=kill_file,
        redact=without_secrets,
        store=None if state is None else state.store,
        kept=None if state is None else partial(_kept, state),
        can_resume=None if state is None else lambda run_id: state.note_of(run_id).exists(),
        resume=None if state is None else partial(_resume, state.root),
        stop=None if state is None else partial(_stop, state, by or who()),
    )
    return asyncio.run(_serve(source, port, as_json=as_json))


async def _serve(source: ReviewSource, port: int, *, as_json: bool) -> int:
    from runtime_pack.review.server import serve_review

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        async with serve_review(source, port=port) as server:
            # Until here, while the logs are read, Ctrl-C ends it at once.
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, ended.set)
            if as_json:
                say_json({"url": server.url, "port": server.port})
            else:
                say(server.url)
                note("whoever has this address can decide; Ctrl-C ends it")
            await ended.wait()
    except OSError as error:
        raise click.ClickException(f"the page cannot be served ({error.strerror})") from error
    return 0


def _kept(state: StateFolder, log: Path) -> Kept:
    known = state.saved_heads(log)
    return Kept(heads=known.found, keys=known.keys, unreadable=known.unreadable)


def _stop(state: StateFolder, by: str, reason: str) -> Sequence[CancelReply]:
    return end_runs(state, None, by, reason)


async def _resume(root: Path, run_id: str) -> Ended:
    """`runs resume` as a process: it has its own log, its own loop and its own end."""
    words = ("-P", "-m", "runtime_pack.cli", "runs", "resume", "--state-dir", str(root), "--")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        run_id,
        # Ctrl-C is passed on once, by us: a second one would not let the step in hand end.
        start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        told = await _tail(process)
        return Ended(code=await process.wait(), text=plain(told))
    except asyncio.CancelledError:
        # As Ctrl-C does: it is suspended after its step, and can be taken up again.
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        await process.wait()
        raise


async def _tail(process: asyncio.subprocess.Process) -> str:
    """The end of what the process says on standard error, however much that is."""
    kept = b""
    if process.stderr is not None:
        while chunk := await process.stderr.read(1 << 16):
            kept = (kept + chunk)[-_MOST_OUTPUT:]
    return kept.decode("utf-8", "replace")
