"""`runtime-pack explain-url URL`: what each egress rule says of an address, offline."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import click

from egress import AddressPolicy, AllowlistError, DenyReason, explain
from egress.errors import UrlReason
from egress.explain import Explanation, LayerVerdict, Outcome, Step, Verdict, explain_connect
from egress.reasons import DENY_ROWS, URL_ROWS
from runtime_pack.cli._text import exit_codes, say, say_json
from runtime_pack.cli.policy import egress_policy, policy_option

__all__ = ("command",)

_CODES: Final[Mapping[Verdict, int]] = {
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
@click.argument("url", required=False)
@click.option(
    "--connect", metavar="HOST:PORT", help="Explain a tunnel through the egress proxy instead."
)
@click.option(
    "--allow", "run", multiple=True, metavar="ENTRY", help="An entry of the run's list; repeat it."
)
@click.option(
    "--allow-task",
    "task",
    multiple=True,
    metavar="ENTRY",
    help="An entry of the task's list. A URL needs one in each list that is given.",
)
@click.option(
    "--allow-workspace",
    "workspace",
    multiple=True,
    metavar="ENTRY",
    help="An entry of the workspace's list.",
)
@click.option(
    "--answer",
    "answers",
    multiple=True,
    metavar="ADDRESS",
    help="What the name would resolve to; repeat it. Nothing is looked up.",
)
@click.option(
    "--sni",
    metavar="NAME",
    help="With --connect: the name the TLS client asks for, '' for none; else the host's.",
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
@policy_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object for machines.")
def command(
    *,
    url: str | None,
    connect: str | None,
    run: tuple[str, ...],
    task: tuple[str, ...],
    workspace: tuple[str, ...],
    answers: tuple[str, ...],
    sni: str | None,
    hosts: tuple[str, ...],
    allow_private_addresses: bool,
    https_only: bool,
    policy_path: Path | None,
    as_json: bool,
) -> int:
    """Say rule by rule whether a run with this allowlist may read URL, and which entry to add.

    Nothing is looked up and nothing is requested. Without --answer the address rules of a name are
    told as needing one.
    """
    if (url is None) == (connect is None):
        raise click.UsageError("give a URL, or --connect HOST:PORT")
    if sni is not None and connect is None:
        raise click.UsageError("--sni belongs to --connect")
    switches = {"allow_private_addresses": allow_private_addresses, "https_only": https_only}
    given = {"policy_path": policy_path, "entries": (*run, *task, *workspace), "hosts": hosts}
    file = egress_policy(given | switches)
    if file is None:
        lists = _lists(workspace=workspace, task=task, run=run)
        policy = _address_policy(hosts, switches)
    else:
        lists, policy = file.lists if len(file.lists) > 1 else file.allow, file.address
    if connect is not None:
        told = explain_connect(
            connect, lists, answers or None, address_policy=policy, server_name=sni
        )
    else:
        told = explain(url or "", lists, answers or None, address_policy=policy)
    if as_json:
        # Plain JSON values; egress does not know the alias for them.
        say_json(told.to_json())  # type: ignore[arg-type]
    else:
        say(_told(told, is_tunnel=connect is not None))
    return _CODES[told.verdict]


def _address_policy(hosts: Iterable[str], switches: Mapping[str, bool]) -> AddressPolicy:
    """The address rules that the options say.

    Raises:
        click.UsageError: a host is none.
    """
    try:
        return AddressPolicy(allowed_hosts=frozenset(hosts), **switches)
    except AllowlistError as error:
        raise click.UsageError(str(error)) from error


def _lists(**named: tuple[str, ...]) -> tuple[str, ...] | Mapping[str, Iterable[str] | None]:
    """One list when only the run's is given; else all of them, those without entries silent."""
    if not named["workspace"] and not named["task"]:
        return named["run"]
    # The run's own list always has a say: an empty one allows nothing.
    return {name: entries or (None if name != "run" else ()) for name, entries in named.items()}


_WIDTH: Final = 80
_WORDS: Final[Mapping[Outcome, str]] = {
    Outcome.PASSED: "yes",
    Outcome.REFUSED: "NO",
    Outcome.NOT_APPLICABLE: "unused",
    Outcome.NOT_REACHED: "unasked",
    Outcome.NEEDS_ANSWERS: "open",
}


def _told(told: Explanation, *, is_tunnel: bool) -> str:
    lines = [f"{told.verdict.upper()}  {_what(told, is_tunnel=is_tunnel)}"]
    for step in told.steps:
        lines += _rule(step)
    lines += [_layer(each) for each in told.layers]
    if told.entry is not None:
        verb = "listed" if told.verdict is Verdict.DENY else "admitted"
        lines.append(f"{verb} by the entry {told.entry}")
    if told.verdict is Verdict.NEEDS_ANSWERS:
        lines += _wrapped("give what the name resolves to with --answer to hear the rest")
    if told.reason is not None:
        lines += _wrapped(_advice(told, told.reason))
    if told.entry_to_add is not None:
        lines.append(f"to allow it, add the entry {told.entry_to_add}{_to(told.layers)}")
    return "\n".join(lines)


def _what(told: Explanation, *, is_tunnel: bool) -> str:
    if told.rule == "R15":
        return "the list is refused as a whole"
    if told.origin is None:
        return f"not a {'tunnel' if is_tunnel else 'URL'} that can be read"
    if not is_tunnel:
        return told.origin
    authority = told.origin.removeprefix("https://")
    has_port = ":" in authority.rpartition("]")[2]
    return f"CONNECT {authority}" if has_port else f"CONNECT {authority}:443"


def _rule(step: Step) -> list[str]:
    lines = [f"  {step.rule:<4} {_WORDS[step.outcome]:<8} {step.title}"]
    if step.detail:
        lines += textwrap.wrap(
            step.detail,
            _WIDTH,
            initial_indent=" " * 16 + "= ",
            subsequent_indent=" " * 18,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def _layer(layer: LayerVerdict) -> str:
    why = f", {layer.rule} {layer.reason}" if layer.rule else ""
    by = f" by {layer.entry}" if layer.entry and not layer.rule else ""
    return f"  {layer.name}: {layer.verdict}{by}{why}"


def _to(layers: tuple[LayerVerdict, ...]) -> str:
    lacking = [layer.name for layer in layers if layer.entry_to_add is not None]
    return f" to: {', '.join(lacking)}" if lacking else ""


def _advice(told: Explanation, reason: str) -> str:
    """What the tables of docs/egress.md say of it; the proxy's own words stand for themselves.

    What is wrong with an entry stands at its rule, with what to change.
    """
    row = None
    if told.verdict is Verdict.DENY:
        row = DENY_ROWS[DenyReason(reason)]
    elif (word := reason.rpartition(" ")[2]) in set(UrlReason):
        row = URL_ROWS[UrlReason(word)]
    return "" if row is None else f"{row.meaning} {row.advice}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
