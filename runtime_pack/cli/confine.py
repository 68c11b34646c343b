"""`runtime-pack confine -- COMMAND`: a command that can reach nothing but its proxy."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
import click

from egress import EgressProxy, ProxyRun, serve_proxy
from egress.confine import (
    Boundary,
    BoundaryNotProven,
    CommandNotExecuted,
    Confined,
    ConfinementFailed,
    KernelFacts,
    choose_boundary,
    kernel_facts,
    missing_for,
    run_confined,
)
from egress.proxy import AccessRecord, ProxyDenial
from runtime_pack.audit import AuditLog
from runtime_pack.cli._proxy_records import LineWriter, Recorder, access_log
from runtime_pack.cli._proxy_run import run_of, run_options
from runtime_pack.cli._state import open_state, state_option
from runtime_pack.cli._text import exit_codes, note, plain
from runtime_pack.cli.policy import egress_policy
from runtime_pack.policy_file import PolicyFile

__all__ = ("command",)

_REFUSED: Final = 2
_TOKEN_BYTES: Final = 32
_STDERR_DESCRIPTOR: Final = 2

_HELD_BY: Final[Mapping[Boundary, str]] = {
    Boundary.NAMESPACE: "an empty network namespace, with the proxy as its one way out",
    Boundary.LANDLOCK: "a Landlock domain without TCP, in which we make the connects to the proxy",
    Boundary.NONE: "NOTHING: the command can reach whatever this user can reach",
}

_EXIT: Final = exit_codes(
    {
        0: "as of every other code, the command's; 128 and a signal's number when one ended it",
        1: "the command's, or what its proxy does could not be recorded and it was ended",
        2: "the command's, or wrong usage, or no boundary could be had: nothing was started",
        126: "the command's, or it cannot be executed",
        127: "the command's, or it was not found",
    }
)


@click.command(
    "confine",
    short_help="Run a command that can reach only what its list names.",
    epilog=_EXIT,
    context_settings={"allow_interspersed_args": False},
)
@run_options
@click.option(
    "--boundary",
    type=click.Choice([Boundary.NAMESPACE.value, Boundary.LANDLOCK.value]),
    help="This one or none.  [default: the strongest that the kernel gives]",
)
@click.option(
    "--unconfined",
    is_flag=True,
    help="Run it all the same where the kernel gives no boundary. Then nothing holds it.",
)
@click.option("--allow-unix", is_flag=True, help="Let it reach UNIX sockets that have a path.")
@click.option("--run", "run_id", help="Id of the run, for events.  [default: a new one]")
@click.option(
    "--access-log",
    metavar="FILE",
    help="One JSON line for each connection; - is standard error.  [default: none is kept]",
)
@state_option
@click.argument("words", metavar="COMMAND [ARGUMENT]...", nargs=-1, required=True)
def command(words: tuple[str, ...], state_dir: Any, **options: Any) -> int:
    """Run COMMAND behind a proxy of its own that opens only what --allow names.

    Write -- before COMMAND. It and everything that it starts can open no other way out; variables
    tell its programs of the proxy, and one that does not use it reaches nothing. Before the start
    the boundary is named on standard error, after a process inside it has tried the ways out.
    Denials are told there too, and go to a hash-chained log in the state folder.

    The boundary is of the network: the command has its user's files.
    """
    plan = _plan(words, options)
    try:
        facts = asyncio.run(kernel_facts())
    except ConfinementFailed as error:
        note(f"confine: {error}; nothing was started")
        return _REFUSED
    boundary = _boundary(facts, wanted=plan.wanted, unconfined=plan.unconfined)
    with (
        open_state(state_dir).logging(plan.policy) as log,
        access_log(options["access_log"]) as access,
        _notes() as notes,
    ):
        recorder = _Told(Recorder(log, access, [plan.run], policy=plan.policy), notes)
        return asyncio.run(_run(plan, facts, boundary, recorder, log))


@attrs.frozen(kw_only=True)
class _Plan:
    """What is to be run."""

    words: tuple[str, ...]
    run: ProxyRun
    policy: PolicyFile | None
    wanted: Boundary | None
    unconfined: bool
    allow_unix: bool


def _plan(words: tuple[str, ...], options: dict[str, Any]) -> _Plan:
    wanted = options["boundary"]
    if wanted is not None and options["unconfined"]:
        raise click.UsageError("--boundary and --unconfined exclude each other")
    policy = egress_policy(options)
    run = run_of(
        options,
        policy,
        run=options["run_id"] or f"confine-{secrets.token_hex(8)}",
        token=secrets.token_urlsafe(_TOKEN_BYTES),
    )
    return _Plan(
        words=words,
        run=run,
        policy=policy,
        wanted=None if wanted is None else Boundary(wanted),
        unconfined=options["unconfined"],
        allow_unix=options["allow_unix"],
    )


def _boundary(facts: KernelFacts, *, wanted: Boundary | None, unconfined: bool) -> Boundary:
    chosen = choose_boundary(facts, wanted=wanted)
    if chosen is not None:
        return chosen
    for each in (Boundary.NAMESPACE, Boundary.LANDLOCK):
        if wanted in {None, each}:
            note(f"confine: no {each} boundary: {missing_for(each, facts)}")
    if unconfined:
        return Boundary.NONE
    message = "this kernel gives no such boundary, and nothing was started"
    advice = "" if wanted else "; --unconfined runs the command without one"
    raise click.UsageError(message + advice)


async def _run(
    plan: _Plan, facts: KernelFacts, boundary: Boundary, observer: _Told, log: AuditLog
) -> int:
    def tell(confined: Confined) -> None:
        note(f"confine: boundary {confined.boundary}: {_HELD_BY[confined.boundary]}")
        if confined.proven:
            note(f"confine: tried from inside and closed: {', '.join(confined.proven)}")
        for limit in confined.limits:
            note(f"confine: not held: {limit}")
        if not plan.run.policy.allowlist.entries:
            note("confine: no --allow: its proxy opens nothing")
        note(f"confine: run {plan.run.run}, log {log.path}")

    async with contextlib.AsyncExitStack() as stack:
        try:
            proxy = await stack.enter_async_context(serve_proxy((plan.run,), observer=observer))
        except OSError as error:
            raise click.ClickException(f"the proxy cannot listen: {error}") from error
        observer.watch(proxy.fail)
        running = run_confined(
            plan.words,
            facts=facts,
            boundary=boundary,
            port=proxy.address[1],
            run=plan.run.run,
            token=plan.run.token,
            allow_unix=plan.allow_unix,
            on_start=tell,
        )
        try:
            return await _while_recorded(proxy, asyncio.ensure_future(running))
        except CommandNotExecuted as error:
            note(f"confine: {error}")
            return error.exit_code
        except (BoundaryNotProven, ConfinementFailed) as error:
            note(f"confine: {error}; nothing was started")
            return _REFUSED


async def _while_recorded(proxy: EgressProxy, running: asyncio.Task[int]) -> int:
    """The command's exit code. What cannot be recorded must not go on."""
    failed = asyncio.ensure_future(proxy.failed.wait())
    try:
        await asyncio.wait((running, failed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        failed.cancel()
        if not running.done():
            running.cancel()
        await asyncio.wait((running, failed))
    if proxy.failure is not None:
        raise click.ClickException(
            f"the command was ended, for what its proxy does could not be recorded: {proxy.failure}"
        )
    return running.result()


@contextlib.contextmanager
def _notes() -> Iterator[LineWriter]:
    """Standard error, for what is told while the command runs."""
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    notes = LineWriter(_STDERR_DESCRIPTOR)
    try:
        yield notes
    finally:
        with contextlib.suppress(OSError):
            notes.close()


class _Told:
    """Records as the proxy's command does, and tells the person of each denial."""

    def __init__(self, recorder: Recorder, notes: LineWriter) -> None:
        self._recorder = recorder
        self._notes = notes
        self.watch = recorder.watch

    async def denied(self, denial: ProxyDenial) -> str:
        """The id of the event."""
        event_id = await self._recorder.denied(denial)
        told = denial.violation
        target = f"{told.target.host} port {told.target.port}"
        advice = f"; --allow {told.nearest_entry} would admit it" if told.nearest_entry else ""
        line = plain(f"confine: denied {target} [{told.rule} {told.reason}]{advice}")
        # A terminal that is gone or stuck is no reason to end the command: the log has the event.
        with contextlib.suppress(OSError):
            self._notes.write(line.encode("utf-8", "replace") + b"\n")
        return event_id

    def access(self, record: AccessRecord) -> None:
        """One line, when they are kept."""
        self._recorder.access(record)
