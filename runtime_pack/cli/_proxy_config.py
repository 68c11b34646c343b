"""The settings of `runtime-pack egress-proxy`: options or a TOML file become runs. Strict.

An unknown key, a value of another kind and an unreadable token refuse the whole file: a misspelt
`allow_private_adresses` must not be taken for its default.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import attrs
import click

from egress import (
    AddressPolicy,
    AllowlistError,
    EgressPolicy,
    ProxyLimits,
    ProxyRun,
    parse_allowlist,
)
from runtime_pack.given_files import opened, read_bounded

__all__ = ("Listen", "ProxySettings", "parse_listen", "read_config", "read_token", "single_run")

_MIN_TOKEN_CHARACTERS: Final = 16
_MAX_TOKEN_BYTES: Final = 4096
# As a policy file: what is larger is something else.
_MAX_FILE_BYTES: Final = 1024 * 1024
_TOP_KEYS: Final = frozenset({"runs", "listen", "grace_seconds"})
_RUN_KEYS: Final = frozenset(
    {"run", "task", "session", "token_file", "token_env", "allow", "address", "limits"}
)
_ADDRESS_KEYS: Final = frozenset({"allowed_hosts", "allow_private_addresses", "https_only"})
_LIMIT_KEYS: Final = frozenset(field.name for field in attrs.fields(ProxyLimits))
_Kind = TypeVar("_Kind")


@attrs.frozen
class Listen:
    """A loopback address and a port; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 0


@attrs.frozen(kw_only=True)
class ProxySettings:
    """What a file says. None stands for what it does not say."""

    runs: tuple[ProxyRun, ...]
    listen: Listen | None = None
    grace_seconds: float | None = None


def parse_listen(text: str) -> Listen:
    """`ADDRESS:PORT`, an IPv6 address in brackets.

    Raises:
        click.UsageError: it is not one, or the address is not on this machine's loopback.
    """
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        address = None
    good_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    bracketed = host.startswith("[") == (":" in bare)
    if not colon or address is None or not good_port or not bracketed:
        raise click.UsageError(f"{text!r} is not ADDRESS:PORT, for example 127.0.0.1:3128")
    if not address.is_loopback:
        raise click.UsageError(
            f"{text!r} is not a loopback address: others could use this machine's network"
        )
    return Listen(str(address), int(port))


def single_run(
    *, run: str, task: str, session: str, token: str, allow: Sequence[str], address: AddressPolicy
) -> ProxyRun:
    """The one run of the options.

    Raises:
        click.UsageError: a value is not of its form.
    """
    try:
        return ProxyRun(
            run=run,
            task=task,
            session=session,
            token=token,
            policy=EgressPolicy(allowlist=parse_allowlist(allow), address=address),
        )
    except (AllowlistError, ValueError) as error:
        raise click.UsageError(str(error)) from error


def read_token(*, file: Path | None, variable: str | None) -> str:
    """The token in a file (its first line) or in a variable of the environment.

    Raises:
        click.UsageError: there is none, or it is shorter than 16 characters.
    """
    if (file is None) == (variable is None):
        raise click.UsageError("a token comes from a file or from a variable: name one of them")
    where = f"file {file}" if file is not None else f"variable {variable}"
    token = _file_token(file) if file is not None else os.environ.get(variable or "", "")
    if len(token) < _MIN_TOKEN_CHARACTERS:
        raise click.UsageError(
            f"the token in {where} is missing or has fewer than {_MIN_TOKEN_CHARACTERS} characters"
        )
    return token


def _file_token(path: Path) -> str:
    try:
        with opened(path) as handle:
            content = os.pread(handle, _MAX_TOKEN_BYTES, 0).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"the token in {path} cannot be read: {error}") from error
    return content.partition("\n")[0].rstrip("\r")


def read_config(path: Path) -> ProxySettings:
    """The runs of a TOML file.

    Raises:
        click.UsageError: it cannot be read, or something in it is not of its form.
    """
    try:
        body = tomllib.loads(read_bounded(path, _MAX_FILE_BYTES).decode("utf-8"))
    # Its own errors are of ValueError; numbers of thousands of digits and deep nesting are not its own.
    except (OSError, ValueError, RecursionError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from error
    table = _Table(body, str(path), _TOP_KEYS)
    runs = table.get("runs", list, required=True)
    if not runs:
        table.refuse("runs", "names no run")
    listen = table.get("listen", str)
    parsed = tuple(_run(each, f"{path}: run {number}") for number, each in enumerate(runs, 1))
    for told, values in (("id", [run.run for run in parsed]), ("token", [r.token for r in parsed])):
        if len(set(values)) < len(values):
            table.refuse("runs", f"has one {told} twice: one id and one token for each run")
    return ProxySettings(
        runs=parsed,
        listen=None if listen is None else parse_listen(listen),
        grace_seconds=table.seconds("grace_seconds"),
    )


def _run(body: object, where: str) -> ProxyRun:
    table = _Table(body, where, _RUN_KEYS)
    file = table.get("token_file", str)
    try:
        return ProxyRun(
            run=table.get("run", str, required=True),
            task=table.get("task", str) or "",
            session=table.get("session", str) or "",
            token=read_token(
                file=None if file is None else Path(file), variable=table.get("token_env", str)
            ),
            policy=EgressPolicy(
                allowlist=parse_allowlist(table.get("allow", list, required=True)),
                address=_address(table.get("address", dict) or {}, f"{where}, address"),
            ),
            limits=_limits(table.get("limits", dict) or {}, f"{where}, limits"),
        )
    except click.UsageError as error:
        if error.message.startswith(where):
            raise
        raise click.UsageError(f"{where}: {error.message}") from error
    except (AllowlistError, ValueError) as error:
        raise click.UsageError(f"{where}: {error}") from error


def _address(body: Mapping[str, object], where: str) -> AddressPolicy:
    table = _Table(body, where, _ADDRESS_KEYS)
    return AddressPolicy(
        allowed_hosts=table.get("allowed_hosts", list) or [],
        allow_private_addresses=table.get("allow_private_addresses", bool) or False,
        https_only=table.get("https_only", bool) or False,
    )


def _limits(body: Mapping[str, Any], where: str) -> ProxyLimits:
    _Table(body, where, _LIMIT_KEYS)
    return ProxyLimits(**body)


class _Table:
    """A table of the file with the keys that it may have."""

    def __init__(self, body: object, where: str, keys: frozenset[str]) -> None:
        self._where = where
        if not isinstance(body, dict):
            raise click.UsageError(f"{where}: is not a table")
        self._body: Mapping[str, object] = body
        unknown = sorted(set(body) - keys)
        if unknown:
            self.refuse(unknown[0], f"is no key here; there are {', '.join(sorted(keys))}")

    def get(self, key: str, kind: type[_Kind], *, required: bool = False) -> Any:
        """The value of *key*, of *kind*; None when it is not there and not required."""
        value = self._body.get(key)
        if value is None and required:
            self.refuse(key, "is missing")
        # A bool is an int in Python and not in TOML.
        if value is not None and type(value) is not kind:
            self.refuse(key, f"is not of the kind {kind.__name__}")
        return value

    def seconds(self, key: str) -> float | None:
        """A number of seconds from 0."""
        value = self._body.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(key, "is not a number of seconds")
        if not 0 <= value < float("inf"):
            self.refuse(key, "is not a finite number from 0")
        return float(value)

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Says what is wrong with *key*."""
        raise click.UsageError(f"{self._where}: {key!r} {problem}")
