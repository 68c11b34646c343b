"""The model of a run of `ask`: its key, its price, and whether it can be reached at all.

All of it is told before the run starts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

import attrs
import click

from egress import AllowlistError, EgressError, parse_allowlist
from egress.allowlist import entry_for
from egress.decision import Deny, check_answers
from egress.policy import EgressPolicy
from egress.url import Target, parse_target
from runtime_pack.errors import ContractError
from runtime_pack.models.select import ModelChoice, Provider, key_variable, open_model, parse_model
from runtime_pack.policy_file import PolicyFile
from runtime_pack.ports import Model
from runtime_pack.prices import ModelPrice, PriceTable

__all__ = ("model_of", "prices_of")

_HINT: Final = "--model"
_FREE: Final = ModelPrice(input=Decimal(0), output=Decimal(0))


def prices_of(policy: PolicyFile | None) -> PriceTable | None:
    """The price table of a policy; the built-in model, which nobody is paid for, costs nothing."""
    if policy is None or policy.prices is None:
        return None
    models = {str(Provider.EXTRACTIVE): _FREE, **policy.prices.models}
    return attrs.evolve(policy.prices, models=models)


def model_of(word: str, reachable: Sequence[str], policy: PolicyFile | None) -> Model:
    """The model that *word* names, ready to take turns.

    Raises:
        click.BadParameter: it is none, lacks its key, package or price, or cannot be reached.
    """
    try:
        choice = parse_model(word)
        _check_price(choice, prices_of(policy))
        _check_entries(choice, reachable)
        model = open_model(choice, environment=_keys(choice, policy), reachable=reachable)
    except ContractError as error:
        raise click.BadParameter(error.problem, param_hint=_HINT) from error
    if choice.url is not None:
        _check_endpoint(choice.url, reachable)
    return model


def _check_price(choice: ModelChoice, prices: PriceTable | None) -> None:
    name = choice.name or str(choice.provider)
    if prices is None:
        return
    try:
        prices.model(name)
    except ContractError as error:
        known = ", ".join(sorted(prices.models))
        text = f"{name!a} has no row in [prices.models] of the policy file; there are: {known}"
        raise ContractError("model", text) from error


def _keys(choice: ModelChoice, policy: PolicyFile | None) -> Mapping[str, str]:
    """The environment, with the key that the policy file names in the place of the variable."""
    variable, credential = key_variable(choice.provider)
    source = None if policy is None else policy.credentials.get(credential)
    if variable is None or source is None:
        return os.environ
    return {**os.environ, variable: source.read()}


def _check_entries(choice: ModelChoice, reachable: Sequence[str]) -> None:
    for entry in reachable:
        try:
            parse_allowlist([entry])
        except AllowlistError as error:
            raise click.BadParameter(str(error), param_hint="--model-allow") from error
    if reachable and choice.provider is Provider.EXTRACTIVE:
        text = "the built-in model is not reached over a network: leave it out, or give --model"
        raise click.BadParameter(text, param_hint="--model-allow")


def _check_endpoint(url: str, reachable: Sequence[str]) -> None:
    """Refuse a name that leads inside where nobody has said that it may."""
    target = parse_target(url)
    if target.is_literal:
        return
    answers = _answers(target)
    refused = [answer for answer in answers if _is_refused(target, answer, reachable)]
    if refused:
        raise click.BadParameter(_inside(target, url, refused, reachable), param_hint=_HINT)


def _answers(target: Target) -> list[str]:
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        text = f"the name {target.host} of the model's server was not found ({error.strerror})"
        raise click.BadParameter(text, param_hint=_HINT) from error
    return list(dict.fromkeys(str(row[4][0]) for row in found))


def _is_refused(target: Target, answer: str, reachable: Sequence[str]) -> bool:
    try:
        policy = EgressPolicy(allowlist=parse_allowlist([entry_for(target), *reachable]))
        return isinstance(check_answers(policy, target, (answer,)), Deny)
    except EgressError:
        return True


def _inside(target: Target, url: str, refused: Sequence[str], reachable: Sequence[str]) -> str:
    """What to write, in both ways; an entry that only lacks the port is named."""
    hosts = [f"[{answer}]" if ":" in answer else answer for answer in refused]
    first = next((host for host in hosts if not host.startswith("[")), hosts[0])
    written = url.replace(target.host, first, 1)
    options = " ".join(f"--model-allow {host}:{target.port}" for host in hosts)
    lacking = [entry for entry in reachable if entry in {*refused, *hosts}]
    text = (
        f"{target.host} leads to {', '.join(refused)}, a private address: write {written}, "
        f"or add {options} (with the port)"
    )
    return text + "".join(
        f"; --model-allow {entry} lacks the port: write it as {_bracketed(entry)}:{target.port}"
        for entry in lacking
    )


def _bracketed(entry: str) -> str:
    return f"[{entry}]" if ":" in entry and not entry.startswith("[") else entry
