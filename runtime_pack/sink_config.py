"""Where events are forwarded to, as a policy file says it: `[sinks.NAME]`. Pure, strict.

A sink is one receiver. Nothing here sends: `runtime_pack.sinks` does, beside the log and never on
the way of a run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from egress import AddressPolicy, Target, UrlRejected, parse_target
from egress.address import is_never_opened
from runtime_pack.audit.facts import Wanted
from runtime_pack.inner import frozen

if TYPE_CHECKING:
    from egress.request import ApiPolicy

__all__ = ("SINK_FORMATS", "SinkConfig", "SinkKind", "SinkRefused", "parse_sink")

SINK_FORMATS: Final = ("jsonl", "cef", "ecs", "ocsf", "otlp", "rfc5424")
"""The forms an event is written in; the first is the line of the log, as data."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_TO: Final = re.compile(r"(udp|tcp|tls|http|https)://([^/?#@]+)([^?#]*)\Z", re.IGNORECASE)
_MAX_SECONDS: Final = 3600
_MAX_BATCH: Final = 10_000
# Without a size of their own: RFC 5426 asks receivers to take 2,048 bytes, rsyslog takes 8 KiB.
_SYSLOG_BYTES: Final = 8192
_UDP_BYTES: Final = 2048
_MAX_DATAGRAM: Final = 65_000
_MAX_MESSAGE: Final = 1 << 19


class SinkKind(StrEnum):
    """What kind of receiver it is."""

    FILE = "file"
    STDOUT = "stdout"
    SYSLOG = "syslog"
    OTLP = "otlp"
    WEBHOOK = "webhook"


class SinkRefused(ValueError):
    """A table is no sink; `key` is the part of it that is wrong, empty for all of it."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


@frozen(kw_only=True)
class SinkConfig:
    """One sink.

    Attributes:
        form: one of `SINK_FORMATS`, that the kind takes.
        transport: of the network: udp, tcp, tls, http or https; empty for file and stdout.
        target: the receiver; scheme https stands for TLS, also of syslog.
        path: the file that is written.
        wanted: which events it gets; all of them by default.
        credential: name of the credential in the same file: a bearer token for otlp, the secret of
            the signature for a webhook.
        private_address: whether the receiver may have an address that is not public. It opens no
            other host.
        ca_file: whose certificates are believed in place of the system's.
        client_cert, client_key: what we show to a receiver that asks who we are.
        confirm: whether a batch over tcp or tls counts as delivered only when the receiver has read
            it and closed.
        max_batch: most events that are sent at once.
        max_message_bytes: a longer one is replaced by a note of it.
        timeout_seconds: for one batch.
    """

    name: str
    kind: SinkKind
    form: str
    transport: str = ""
    target: Target | None = None
    path: Path | None = None
    wanted: Wanted = Wanted()
    credential: str | None = None
    private_address: bool = False
    ca_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    confirm: bool = True
    max_batch: int = 500
    max_message_bytes: int = _MAX_MESSAGE
    timeout_seconds: int = 30

    def policy(self) -> ApiPolicy:
        """What its sender may reach: this receiver and nothing else.

        Raises:
            ValueError: it has no receiver on the network.
        """
        from egress.request import ApiPolicy

        if self.target is None:
            raise ValueError(f"the sink {self.name} is not on the network")
        opened = [self.target.host] if self.private_address else []
        address = AddressPolicy(allowed_hosts=frozenset(opened))
        return ApiPolicy(address=address, origins=frozenset({self.target.origin}))


_COMMON: Final = frozenset({"kind", "format", "wanted", "max_batch"})
_NETWORK: Final = _COMMON | {"to", "private_address", "timeout_seconds", "max_message_bytes"}
_TLS: Final = frozenset({"ca_file", "client_cert", "client_key"})
_KEYS: Final[Mapping[SinkKind, frozenset[str]]] = {
    SinkKind.FILE: _COMMON | {"path"},
    SinkKind.STDOUT: _COMMON,
    SinkKind.SYSLOG: _NETWORK | _TLS | {"confirm"},
    SinkKind.OTLP: (_NETWORK | _TLS | {"credential"}) - {"format"},
    SinkKind.WEBHOOK: _NETWORK | _TLS | {"credential"},
}
_FORMS: Final[Mapping[SinkKind, tuple[str, ...]]] = {
    SinkKind.FILE: SINK_FORMATS,
    SinkKind.STDOUT: SINK_FORMATS,
    SinkKind.SYSLOG: ("rfc5424", "cef"),
    SinkKind.OTLP: ("otlp",),
    SinkKind.WEBHOOK: ("jsonl", "ecs", "ocsf"),
}
_TRANSPORTS: Final[Mapping[SinkKind, tuple[str, ...]]] = {
    SinkKind.SYSLOG: ("udp", "tcp", "tls"),
    SinkKind.OTLP: ("https", "http"),
    SinkKind.WEBHOOK: ("https",),
}
_WANTED: Final = ("run", "agent", "host", "rule", "code", "tool", "denied")


def parse_sink(name: str, body: Any, credentials: Collection[str]) -> SinkConfig:
    """The sink that a table says.

    Args:
        name: its name in the file, and of the file that keeps how far it has got.
        body: the table.
        credentials: names that the file has.

    Raises:
        SinkRefused: it is none that could be sent to.
    """
    if not _NAME.match(name):
        raise SinkRefused("", "is not the name of a sink: letters, digits, _ and -")
    if not isinstance(body, Mapping):
        raise SinkRefused("", "must be a table")
    kind = SinkKind(_word(body, "kind", tuple(SinkKind)))
    for key in sorted(set(body) - _KEYS[kind]):
        there = ", ".join(sorted(_KEYS[kind]))
        raise SinkRefused(key, f"is no key of a sink of kind {kind}; there are: {there}")
    forms = _FORMS[kind]
    transport, target = _receiver(body, kind) if "to" in _KEYS[kind] else ("", None)
    given: dict[str, Any] = {key: _switch(body, key) for key in ("private_address", "confirm")}
    given |= {key: _path(body, key) for key in ("path", "ca_file", "client_cert", "client_key")}
    given |= {"credential": _credential(body, credentials), "wanted": _wanted(body)}
    given |= _sizes(body, transport, kind)
    config = SinkConfig(
        name=name,
        kind=kind,
        form=_word(body, "format", forms) if "format" in body else forms[0],
        transport=transport,
        target=target,
        **{key: value for key, value in given.items() if value is not None},
    )
    _check_together(config)
    return config


def _check_together(config: SinkConfig) -> None:
    """What no single key shows."""
    secure = config.transport in {"tls", "https"}
    if config.kind is SinkKind.FILE and config.path is None:
        raise SinkRefused("path", "is missing")
    if config.kind is SinkKind.WEBHOOK and config.credential is None:
        raise SinkRefused("credential", "is missing: a webhook is signed")
    if not secure and (config.ca_file or config.client_cert or config.client_key):
        raise SinkRefused("to", f"{config.transport}:// has no certificates")
    if (config.client_cert is None) != (config.client_key is None):
        raise SinkRefused("client_cert", "goes with client_key")
    if config.kind is SinkKind.OTLP and config.credential is not None and not secure:
        raise SinkRefused("credential", "would be sent unencrypted: use https")
    if not config.confirm and config.transport == "udp":
        raise SinkRefused("confirm", "udp confirms nothing")


def _word(body: Mapping[str, Any], key: str, words: tuple[str, ...]) -> str:
    value = body.get(key)
    if isinstance(value, str) and value in words:
        return value
    raise SinkRefused(key, f"must be one of {', '.join(words)}")


def _switch(body: Mapping[str, Any], key: str) -> bool | None:
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise SinkRefused(key, "must be true or false")
    return value


def _path(body: Mapping[str, Any], key: str) -> Path | None:
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not Path(value).is_absolute() or "\0" in value:
        raise SinkRefused(key, "must be an absolute path")
    return Path(value)


def _credential(body: Mapping[str, Any], known: Collection[str]) -> str | None:
    value = body.get("credential")
    if value is None:
        return None
    if not isinstance(value, str) or value not in known:
        raise SinkRefused("credential", "is no name under [credentials] of this file")
    return value


def _wanted(body: Mapping[str, Any]) -> Wanted:
    value = body.get("wanted", {})
    if not isinstance(value, Mapping):
        raise SinkRefused("wanted", "must be a table")
    for key, item in value.items():
        if key not in _WANTED:
            raise SinkRefused(f"wanted.{key}", f"is no key here; there are: {', '.join(_WANTED)}")
        if type(item) is not (bool if key == "denied" else str) or item == "":
            raise SinkRefused(f"wanted.{key}", "is not of its kind")
    return Wanted(**value)


def _sizes(body: Mapping[str, Any], transport: str, kind: SinkKind) -> dict[str, int]:
    """The bounds, with what the transport can carry where nothing is said."""
    most = _MAX_DATAGRAM if transport == "udp" else _MAX_MESSAGE
    sizes = {"max_batch": (1, _MAX_BATCH), "timeout_seconds": (1, _MAX_SECONDS)}
    sizes["max_message_bytes"] = (480, most)
    given = {}
    for key, (low, high) in sizes.items():
        value = body.get(key)
        if value is None:
            continue
        if type(value) is not int or not low <= value <= high:
            raise SinkRefused(key, f"must be a whole number from {low} to {high}")
        given[key] = value
    if kind is SinkKind.SYSLOG:
        given.setdefault("max_message_bytes", _UDP_BYTES if transport == "udp" else _SYSLOG_BYTES)
    return given


def _receiver(body: Mapping[str, Any], kind: SinkKind) -> tuple[str, Target]:
    """How and to whom: `tls://siem.example.org:6514`, `https://collector.example.org/v1/logs`."""
    value, ways = body.get("to"), _TRANSPORTS[kind]
    match = _TO.match(value) if isinstance(value, str) and value.isascii() else None
    if match is None or match[1].lower() not in ways:
        told = ", ".join(f"{way}://" for way in ways)
        raise SinkRefused("to", f"must be an address with {told} and no name, query or password")
    way, authority, rest = match[1].lower(), match[2], match[3]
    if kind is SinkKind.SYSLOG and (rest or not re.search(r":[0-9]+\Z", authority)):
        raise SinkRefused("to", "must end with a port")
    scheme = "https" if way in {"tls", "https"} else "http"
    try:
        target = parse_target(f"{scheme}://{authority}{rest}")
    except UrlRejected as error:
        raise SinkRefused("to", f"is no address: {error}") from error
    if target.address is not None and is_never_opened(target.address) is not None:
        raise SinkRefused("to", "is an address that is never opened")
    return way, target
