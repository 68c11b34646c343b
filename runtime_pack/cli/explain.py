"""`runtime-pack explain-url URL`: what each egress rule says of an address, offline."""

from __future__ import annotations

from typing import Final

import click

from egress import AddressPolicy, AllowlistError, explain
from egress.explain import Explanation, Verdict
from runtime_pack.cli._text import exit_codes, say, say_json

__all__ = ("command",)

_CODES: Final = {
    Verdict.ALLOW: 0,
    Verdict.DENY: 1,
    Verdict.INVALID: 1,
    Verdict.NEEDS_ANSWERS: 0,
}


_EXIT: Final = exit_codes(
    {
        0: "no rule refuses it",
        1: "a rule refuses it, or it is no URL that can be read",
        2: "wrong usage",
    }
)


@click.command("explain-url", short_help="Say which rule admits or refuses a URL.", epilog=_EXIT)
@click.argument("url")
@click.option(
    "--allow", "entries", multiple=True, metavar="ENTRY", help="An allowlist entry; repeat it."
)
@click.option(
    "--answer",
    "answers",
    multiple=True,
    metavar="ADDRESS",
    help="What the name would resolve to; repeat it. Nothing is looked up.",
)
@click.option(
    "--allowed-host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="A host exempt from the address check.",
)
@click.option("--allow-private-addresses", is_flag=True, help="Exempt every private address.")
@click.option("--https-only", is_flag=True, help="Refuse http.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for machines.")
def command(
    url: str,
    entries: tuple[str, ...],
    answers: tuple[str, ...],
    hosts: tuple[str, ...],
    allow_private_addresses: bool,
    https_only: bool,
    as_json: bool,
) -> int:
    """Say rule by rule whether a run with this allowlist may read URL, and which entry to add.

    Nothing is looked up and nothing is requested. Without --answer the address rules of a name are
    told as needing one.
    """
    try:
        policy = AddressPolicy(
            allowed_hosts=frozenset(hosts),
            allow_private_addresses=allow_private_addresses,
            https_only=https_only,
        )
        told = explain(url, entries, answers or None, address_policy=policy)
    except AllowlistError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        say_json(told.to_json())  # type: ignore[arg-type]  # plain JSON values
    else:
        say(_told(told))
    return _CODES[told.verdict]


def _told(told: Explanation) -> str:
    width = max(len(str(step.outcome)) for step in told.steps)
    lines = [f"{told.verdict.upper()}  {told.origin or 'not a URL that can be read'}"]
    lines += [
        f"  {step.rule:<4} {step.outcome:<{width}}  {step.title}"
        + (f": {step.detail}" if step.detail else "")
        for step in told.steps
    ]
    if told.entry is not None:
        lines.append(f"admitted by the entry {told.entry}")
    if told.entry_to_add is not None:
        lines.append(f"to allow it, add the entry {told.entry_to_add}")
    return "\n".join(lines)
