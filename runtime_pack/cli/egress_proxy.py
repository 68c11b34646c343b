"""`runtime-pack egress-proxy`: a loopback proxy that opens only what its runs may reach."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import secrets
import signal
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import click
import orjson

from egress import EgressProxy, ProxyRun, serve_proxy
from runtime_pack.audit import AuditLog
from runtime_pack.cli._given import FILE
from runtime_pack.cli._proxy_config import (
    Listen,
    ProxySettings,
    parse_listen,
    read_config,
    read_token,
)
from runtime_pack.cli._proxy_records import STDERR, LineWriter, Recorder, access_log
from runtime_pack.cli._proxy_run import run_of, run_options
from runtime_pack.cli._state import open_state, state_option
from runtime_pack.cli._text import exit_codes, note, plain
from runtime_pack.cli.policy import egress_policy
from runtime_pack.messages import Json
from runtime_pack.policy_file import PolicyFile

__all__ = ("command",)

_DEFAULT_RUN: Final = "proxy"
_DEFAULT_GRACE_SECONDS: Final = 10.0
# Two for each of the 8,192 connections of a proxy, and some beside them.
_DESCRIPTORS: Final = 20_000

_EXIT: Final = exit_codes(
    {
        0: "stopped by a signal",
        1: "could not listen, or could not record what it did and stopped",
        2: "wrong usage: nothing was opened",
    }
)


@click.command(
    "egress-proxy", short_help="Run the proxy that confines where runs may connect.", epilog=_EXIT
)
@run_options
@click.option(
    "--config",
    type=FILE,
    help="TOML file with several runs, instead of the options of one run.",
)
@click.option("--listen", metavar="ADDRESS:PORT", help="Loopback only.  [default: 127.0.0.1:0]")
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to write what is printed once it listens.",
)
@click.option("--run", "run_id", default=_DEFAULT_RUN, show_default=True, help="Id of the run.")
@click.option(
    "--token-file",
    type=FILE,
    help="File whose first line is the run's token, 16 to 512 visible ASCII characters.  [default: a"
    " new token is made and told]",
)
@click.option("--token-env", metavar="NAME", help="Variable that holds it.")
@click.option(
    "--access-log",
    default=STDERR,
    metavar="FILE",
    help="One JSON line for each connection.  [default: standard error]",
)
@click.option("--grace", type=click.FloatRange(min=0, max=3600), help="Seconds for open tunnels.")
@state_option
def command(config: Path | None, state_dir: Path | None, **options: Any) -> int:
    """Listen on a loopback address and let each run reach only what its list names.

    Once it listens it prints one JSON line with its address. SIGTERM and Ctrl-C stop it: no new
    connections, and open tunnels have the grace period; a second one ends them at once. Denials
    go to a hash-chained log in the state folder, one for this process.
    """
    plan = _plan(config, options)
    _raise_descriptor_limit()
    _tell_empty(plan)
    state = open_state(state_dir)
    with access_log(options["access_log"]) as access, state.logging(plan.policy) as log:
        asyncio.run(_serve(plan, log, access))
    return 0


@attrs.frozen(kw_only=True)
class _Plan:
    """What is to be run. `made` holds the tokens that this process has made, by run."""

    runs: tuple[ProxyRun, ...]
    listen: Listen
    grace_seconds: float
    ready_file: Path | None
    made: Mapping[str, str]
    policy: PolicyFile | None


# ── options ───────────────────────────────────────────────────────────────────────────────────


def _plan(config: Path | None, options: Mapping[str, Any]) -> _Plan:
    made: dict[str, str] = {}
    policy = egress_policy(options) if config is None else None
    settings = _configured(config) if config is not None else _single(options, policy, made)
    if config is not None:
        _refuse_mixed(options)
    listen = options["listen"]
    grace = options["grace"] if options["grace"] is not None else settings.grace_seconds
    return _Plan(
        runs=settings.runs,
        listen=parse_listen(listen) if listen else settings.listen or Listen(),
        grace_seconds=_DEFAULT_GRACE_SECONDS if grace is None else grace,
        ready_file=options["ready_file"],
        made=made,
        policy=policy,
    )


def _configured(config: Path) -> ProxySettings:
    return read_config(config)


def _refuse_mixed(options: Mapping[str, Any]) -> None:
    """The file says everything of its runs: an option beside it would be for none of them."""
    given = [
        name
        for name in (
            "policy_path",
            "entries",
            "task",
            "session",
            "token_file",
            "token_env",
            "hosts",
        )
        if options[name]
    ]
    given += [name for name in ("allow_private_addresses", "https_only") if options[name]]
    if given or options["run_id"] != _DEFAULT_RUN:
        raise click.UsageError("--config names the runs: the options of one run do not go with it")


def _single(
    options: Mapping[str, Any], policy: PolicyFile | None, made: dict[str, str]
) -> ProxySettings:
    run_id = options["run_id"]
    if options["token_file"] is None and options["token_env"] is None:
        token = made[run_id] = secrets.token_urlsafe(32)
    else:
        token = read_token(file=options["token_file"], variable=options["token_env"])
    return ProxySettings(runs=(run_of(options, policy, run=run_id, token=token),))


def _tell_empty(plan: _Plan) -> None:
    """An empty list is a list: it allows nothing, and most who start with one have forgotten it."""
    for run in plan.runs:
        if not run.policy.allowlist.entries:
            note(f"egress-proxy: the list of run {run.run} is empty: it allows NOTHING")


def _raise_descriptor_limit() -> None:
    """To what this user may have at most: each tunnel has two sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Where it cannot be raised, fewer connections are taken.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# ── serving ───────────────────────────────────────────────────────────────────────────────────


async def _serve(plan: _Plan, log: AuditLog, access: LineWriter | None) -> None:
    """Serve until a signal, or until something cannot be recorded."""
    asked, recorder = _Signals(), Recorder(log, access, plan.runs, policy=plan.policy)
    with asked.watched():
        try:
            async with serve_proxy(
                plan.runs,
                observer=recorder,
                host=plan.listen.host,
                port=plan.listen.port,
            ) as proxy:
                recorder.watch(proxy.fail)
                _tell_ready(plan, proxy, log)
                await _first_of(asked.stop.wait(), proxy.failed.wait())
                if proxy.failure is None:
                    draining = proxy.drain(plan.grace_seconds)
                    await _first_of(draining, asked.now.wait(), proxy.failed.wait())
        except (OSError, ValueError) as error:
            raise click.ClickException(f"the proxy cannot listen: {error}") from error
    if proxy.failure is not None:
        # Raised where the log is open: the head of a log that has failed must not be kept.
        raise click.ClickException(
            f"stopped, for what it does could not be recorded: {proxy.failure}"
        )


class _Signals:
    """The first SIGTERM or SIGINT sets `stop`, the second `now`."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.now = asyncio.Event()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        both = (signal.SIGTERM, signal.SIGINT)
        for number in both:
            loop.add_signal_handler(number, self._came)
        try:
            yield
        finally:
            for number in both:
                loop.remove_signal_handler(number)

    def _came(self) -> None:
        (self.now if self.stop.is_set() else self.stop).set()


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tell_ready(plan: _Plan, proxy: EgressProxy, log: AuditLog) -> None:
    """One JSON line. Tokens that were made here are in it: no one else knows them.

    With a ready file they are in the file alone, which only its owner can read.
    """
    line = orjson.dumps(_ready(plan, proxy, log, with_tokens=True)) + b"\n"
    if plan.ready_file is not None:
        _write_private(plan.ready_file, line)
        line = orjson.dumps(_ready(plan, proxy, log, with_tokens=False)) + b"\n"
    try:
        click.echo(plain(line.decode()), nl=False)
    except OSError as error:
        raise click.ClickException(
            f"where it listens cannot be written to standard output: {error}"
        ) from error


def _ready(plan: _Plan, proxy: EgressProxy, log: AuditLog, *, with_tokens: bool) -> dict[str, Json]:
    scheme, _, authority = proxy.url.partition("://")
    runs: list[Json] = []
    for run in plan.runs:
        token = plan.made.get(run.run) if with_tokens else None
        told = {} if token is None else {"proxy_url": f"{scheme}://{run.run}:{token}@{authority}"}
        runs.append({"run": run.run, "allow": list(run.policy.allowlist.entries), **told})
    return {
        "listening": proxy.url,
        "pid": os.getpid(),
        "log": os.fsencode(log.path).decode("utf-8", "replace"),
        "runs": runs,
    }


def _write_private(path: Path, content: bytes) -> None:
    """Appears whole, readable by its owner only."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise click.ClickException(f"the ready file cannot be written: {error}") from error
