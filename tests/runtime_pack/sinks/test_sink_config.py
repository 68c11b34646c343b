"""What a table of a sink says, and every way in which it says nothing that could be sent to."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack.exports import FORMATS
from runtime_pack.policy_file import parse_policy
from runtime_pack.sink_config import SINK_FORMATS, SinkConfig, SinkKind, SinkRefused, parse_sink

SYSLOG = {"kind": "syslog", "to": "tls://siem.example.org:6514"}
HOOK = {"kind": "webhook", "to": "https://hook.example.org/a", "credential": "key"}
OTLP = {"kind": "otlp", "to": "https://otel.example.org/v1/logs"}


def test_the_forms_are_those_of_the_exporters() -> None:
    """A form that is added is one that a sink can have, or a test says why not."""
    assert {"jsonl", *FORMATS} == set(SINK_FORMATS)


def test_a_policy_file_has_sinks() -> None:
    """By name, with what is wanted and where it goes."""
    policy = parse_policy(
        """
id = "web"
version = 1
[credentials]
key = { env = "KEY" }
[sinks.siem]
kind = "syslog"
to = "tls://siem.example.org:6514"
wanted = { code = "EGR*", denied = true }
[sinks.hook]
kind = "webhook"
to = "https://hook.example.org/a"
credential = "key"
"""
    )
    siem, hook = policy.sinks["siem"], policy.sinks["hook"]
    assert siem.target is not None
    assert hook.target is not None
    assert ("tls", "https://siem.example.org:6514") == (siem.transport, siem.target.origin)
    assert ("EGR*", True) == (siem.wanted.code, siem.wanted.denied)
    assert ("key", "jsonl", "https://hook.example.org/a") == (
        hook.credential,
        hook.form,
        hook.target.url,
    )


@pytest.mark.parametrize(
    ("to", "private"),
    [
        ("tls://siem.example.org:6514", False),
        ("tcp://10.1.2.3:601", True),
        ("udp://[::1]:514", True),
    ],
)
def test_a_sink_reaches_its_receiver_and_nothing_else(to: str, private: bool) -> None:
    """Its policy has one origin; `private_address` opens the addresses of that host alone."""
    config = parse_sink("siem", {"kind": "syslog", "to": to, "private_address": private}, ())
    policy = config.policy()

    assert config.target is not None
    assert frozenset({config.target.origin}) == policy.origins
    assert ({config.target.host} if private else set()) == set(policy.address.allowed_hosts)
    assert not policy.address.allow_private_addresses
    with pytest.raises(ValueError, match="not on the network"):
        parse_sink("out", {"kind": "stdout"}, ()).policy()


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({}, "kind"),
        ({"kind": "kafka"}, "kind"),
        ({"kind": ["syslog"]}, "kind"),
        ({"kind": "file"}, "path"),
        ({"kind": "file", "path": "relative"}, "path"),
        ({"kind": "file", "path": "/a", "format": "xml"}, "format"),
        ({"kind": "stdout", "max_batch": 0}, "max_batch"),
        ({"kind": "stdout", "max_batch": True}, "max_batch"),
        ({"kind": "stdout", "max_batch": 10**9}, "max_batch"),
        ({**SYSLOG, "to": "siem.example.org"}, "to"),
        ({**SYSLOG, "to": "tls://siem.example.org"}, "to"),
        ({**SYSLOG, "to": "tls://siem.example.org:6514/x"}, "to"),
        ({**SYSLOG, "to": "tls://a:b@siem.example.org:6514"}, "to"),
        ({**SYSLOG, "to": "tls://siem.example.org:0"}, "to"),
        ({**SYSLOG, "to": "https://siem.example.org:6514"}, "to"),
        ({**SYSLOG, "to": "tls://169.254.169.254:6514"}, "to"),
        ({**SYSLOG, "to": 5}, "to"),
        ({**SYSLOG, "format": "ocsf"}, "format"),
        ({**SYSLOG, "private_address": "true"}, "private_address"),
        ({**SYSLOG, "credential": "key"}, "credential"),
        ({**SYSLOG, "client_cert": "/c"}, "client_cert"),
        ({**SYSLOG, "client_key": "/c"}, "client_cert"),
        ({**SYSLOG, "to": "tcp://siem.example.org:601", "ca_file": "/c"}, "to"),
        ({**SYSLOG, "to": "udp://siem.example.org:514", "confirm": False}, "confirm"),
        ({**SYSLOG, "to": "udp://siem.example.org:514", "max_message_bytes": 65_508}, "max_message_bytes"),
        ({**SYSLOG, "wanted": []}, "wanted"),
        ({**SYSLOG, "wanted": {"since": "1h"}}, "wanted.since"),
        ({**SYSLOG, "wanted": {"denied": "yes"}}, "wanted.denied"),
        ({**SYSLOG, "wanted": {"host": 5}}, "wanted.host"),
        ({**SYSLOG, "wanted": {"host": ""}}, "wanted.host"),
        ({**HOOK, "to": "http://hook.example.org/"}, "to"),
        ({**HOOK, "to": "https://hook.example.org/?token=1"}, "to"),
        ({**HOOK, "credential": "other"}, "credential"),
        ({"kind": "webhook", "to": "https://hook.example.org/"}, "credential"),
        ({**HOOK, "confirm": True}, "confirm"),
        ({**OTLP, "format": "otlp"}, "format"),
        ({**OTLP, "to": "http://otel.example.org/v1/logs", "credential": "key"}, "credential"),
        ({**OTLP, "timeout_seconds": 4000}, "timeout_seconds"),
    ],
)  # fmt: skip
def test_a_table_that_could_not_be_sent_to_is_refused(table: dict[str, Any], key: str) -> None:
    """The key that is wrong is named."""
    with pytest.raises(SinkRefused) as raised:
        parse_sink("siem", table, {"key"})
    assert key == raised.value.key


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b", "-a", "a" * 65, "a\n"])
def test_a_name_that_could_be_no_file_is_refused(name: str) -> None:
    """It names the state of the sink on the disk."""
    with pytest.raises(SinkRefused):
        parse_sink(name, {"kind": "stdout"}, ())


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(
        ["syslog", "otlp", "webhook", "file", "tls://a.example:1", "https://a.example", "/x", "key"]
    ),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6), inner, max_size=2)
    ),
    max_leaves=4,
)
_TABLES = st.dictionaries(
    st.sampled_from(
        ["kind", "to", "format", "wanted", "path", "credential", "confirm", "ca_file", "client_cert",
         "client_key", "private_address", "max_batch", "max_message_bytes", "timeout_seconds", "x"]
    ),
    _VALUES,
    max_size=6,
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(_TABLES | _VALUES)
def test_every_table_is_a_sink_or_refused(table: Any) -> None:
    """And a sink has what its kind needs."""
    with contextlib.suppress(SinkRefused):
        config = parse_sink("siem", table, {"key"})
        assert isinstance(config, SinkConfig)
        assert (config.target is None) is (config.kind in {SinkKind.FILE, SinkKind.STDOUT})
        assert (config.kind is not SinkKind.FILE) or isinstance(config.path, Path)
