"""`runtime-pack events forward`: deliver events to the sinks of a policy file, beside the log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from runtime_pack.cli._given import FILE, LOGS
from runtime_pack.cli._state import is_new, open_state, state_option
from runtime_pack.cli._text import exit_codes, note
from runtime_pack.errors import AuditError, ContractError
from runtime_pack.sink_config import SinkConfig, SinkKind

if TYPE_CHECKING:
    from runtime_pack.policy_file import CredentialSource, PolicyFile
    from runtime_pack.sinks import Forwarder, Told

__all__ = ("forward_command",)

_CODES: Final = exit_codes(
    {
        0: "delivered, with --once; interrupted",
        1: "with --once: not everything was delivered; a log or state cannot be used",
        2: "wrong usage",
    }
)


@click.command("forward", short_help="Deliver events to the sinks of a policy file.", epilog=_CODES)
@click.option("--policy", "policy_path", type=FILE, required=True, help="A file with [sinks.NAME].")
@click.option("--sink", "names", multiple=True, help="One of its sinks.  [default: all]")
@click.option(
    "--log",
    "target",
    type=LOGS,
    help="A log, or a folder of logs.  [default: the logs of the state folder]",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for how far each sink has got.  [default: forward in the state folder]",
)
@click.option("--once", is_flag=True, help="Deliver what is there, and end.")
@click.option(
    "--attempts",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="With --once: how often a batch is tried.",
)
@state_option
def forward_command(
    *,
    policy_path: Path,
    names: tuple[str, ...],
    target: Path | None,
    keep: Path | None,
    once: bool,
    attempts: int,
    state_dir: Path | None,
) -> int:
    """Follow logs and deliver each event to the sinks of a policy file; Ctrl-C ends it.

    Nothing of a run waits for a sink: what a receiver does not take yet stays in the log, and how far
    each sink has got is kept on the disk. An event may come twice, with the same id, and none is left
    out.
    """
    from runtime_pack.policy_file import read_policy

    policy = read_policy(policy_path)
    sinks = _chosen(policy, names)
    root = None if is_new(state_dir) is not None else open_state(state_dir, create=False).root
    logs = target or (None if root is None else root / "logs")
    if logs is None or not logs.exists():
        raise click.UsageError("there are no logs in the state folder; name one with --log")
    where = keep or (None if root is None else root / "forward")
    if where is None:
        raise click.UsageError("there is no state folder; say with --keep where to note the places")
    with contextlib.ExitStack() as stack:
        forwarders = [_forwarder(sink, policy.credentials, logs, where, stack) for sink in sinks]
        with contextlib.suppress(KeyboardInterrupt):
            return asyncio.run(_forwarded(forwarders, attempts if once else None))
    return 0


def _chosen(policy: PolicyFile, names: tuple[str, ...]) -> list[SinkConfig]:
    """The sinks that are asked for.

    Raises:
        click.UsageError: the file has none, or none of that name.
    """
    for name in names:
        if name not in policy.sinks:
            there = ", ".join(sorted(policy.sinks)) or "none"
            raise click.UsageError(f"the policy file has no sink {name}; there are: {there}")
    if not policy.sinks:
        raise click.UsageError("the policy file has no [sinks.NAME]")
    return [policy.sinks[name] for name in dict.fromkeys(names or sorted(policy.sinks))]


def _forwarder(
    config: SinkConfig,
    credentials: Mapping[str, CredentialSource],
    logs: Path,
    where: Path,
    stack: contextlib.ExitStack,
) -> Forwarder:
    from runtime_pack.sinks import Forwarder, Keeper, sender_for, writes_among

    # The standard output may lead to a file as well.
    written = Path("/dev/stdout") if config.kind is SinkKind.STDOUT else config.path
    for place in (logs, *((where,) if where.is_dir() else ())):
        if written is not None and writes_among(place, written):
            raise click.UsageError(
                f"sinks.{config.name}.path: stands in {place}, whose files are read; write elsewhere"
            )
    try:
        secret = None if config.credential is None else credentials[config.credential].read()
        sender = sender_for(config, secret=secret)
    except ContractError as error:
        raise click.ClickException(f"the sink {config.name}: {error}") from error
    keeper = stack.enter_context(Keeper(where, config.name, logs))
    return Forwarder(
        logs,
        sender,
        keeper,
        name=config.name,
        wanted=config.wanted,
        max_batch=config.max_batch,
        tell=_told,
    )


def _told(told: Told) -> None:
    again = f" (attempt {told.attempts}, tried again)" if told.attempts else ""
    note(f"{told.sink}: {told.problem}{again}")


async def _forwarded(forwarders: list[Forwarder], attempts: int | None) -> int:
    """All sinks at once: one that is down holds up no other."""
    if attempts is not None:
        done = await asyncio.gather(*(each.catch_up(attempts=attempts) for each in forwarders))
        for each in forwarders:
            note(f"{each.name}: {each.progress.delivered} event(s) delivered in all")
        return 0 if all(done) else 1
    try:
        async with asyncio.TaskGroup() as group:
            for each in forwarders:
                group.create_task(each.run())
    except* AuditError as errors:
        raise errors.exceptions[0] from None
    return 0
