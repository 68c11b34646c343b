"""The one run that the options of a command with a proxy make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import attrs
import click

from egress import AddressPolicy, AllowlistError, ProxyRun
from runtime_pack.cli._proxy_config import single_run
from runtime_pack.cli.policy import policy_option
from runtime_pack.policy_file import PolicyFile

__all__ = ("run_of", "run_options")

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])

_OPTIONS: Final = (
    click.option(
        "--allow", "entries", multiple=True, metavar="ENTRY", help="An allowlist entry; repeat it."
    ),
    click.option("--task", default="", help="Id of its task, for events."),
    click.option("--session", default="", help="Id of its session, for events."),
    click.option(
        "--allowed-host",
        "hosts",
        multiple=True,
        metavar="HOST",
        help="A host exempt from the address check.",
    ),
    click.option("--allow-private-addresses", is_flag=True, help="Exempt every private address."),
    click.option("--https-only", is_flag=True, help="Refuse http."),
    policy_option,
)


def run_options(command: _Decorated) -> _Decorated:
    """What the run may reach, and what it is called in events."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def run_of(
    options: Mapping[str, Any], policy: PolicyFile | None, *, run: str, token: str
) -> ProxyRun:
    """The run of *options*, under the policy file that they name.

    Raises:
        click.UsageError: A value is not of its form.
    """
    try:
        address = AddressPolicy(
            allowed_hosts=options["hosts"],
            allow_private_addresses=options["allow_private_addresses"],
            https_only=options["https_only"],
        )
    except AllowlistError as error:
        raise click.UsageError(str(error)) from error
    made = single_run(
        run=run,
        task=options["task"],
        session=options["session"],
        token=token,
        allow=options["entries"],
        address=address,
    )
    return made if policy is None else attrs.evolve(made, policy=policy.egress())
