"""A real syslog daemon takes what is sent over UDP, TCP and TLS, where one is installed."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from runtime_pack.audit import AuditLog
from runtime_pack.events import Event, EventCode
from runtime_pack.messages import Json
from runtime_pack.sink_config import parse_sink
from runtime_pack.sinks import Forwarder, Keeper, sender_for

DAEMON = shutil.which("rsyslogd") or "/usr/sbin/rsyslogd"
TLS_DRIVER = next(Path("/usr/lib").glob("**/rsyslog/lmnsd_ossl.so"), None)

pytestmark = [
    pytest.mark.loopback,
    pytest.mark.skipif(
        not Path(DAEMON).exists(), reason="rsyslog is not installed (Debian: rsyslog)"
    ),
]

_CONFIG = """
global(workDirectory="{folder}" maxMessageSize="64k" defaultNetstreamDriverCAFile="{ca}"
  defaultNetstreamDriverCertFile="{cert}" defaultNetstreamDriverKeyFile="{key}"
  net.enableDNS="off")
module(load="imudp")
module(load="imptcp")
{tls}
template(name="row" type="list") {{
  property(name="pri") constant(value=" ") property(name="app-name") constant(value=" ")
  property(name="msgid") constant(value=" ") property(name="structured-data")
  constant(value="\\t") property(name="msg") constant(value="\\n") }}
ruleset(name="udp") {{ action(type="omfile" file="{folder}/udp" template="row") }}
ruleset(name="tcp") {{ action(type="omfile" file="{folder}/tcp" template="row") }}
ruleset(name="tls") {{ action(type="omfile" file="{folder}/tls" template="row") }}
input(type="imudp" address="127.0.0.1" port="{udp}" ruleset="udp")
input(type="imptcp" address="127.0.0.1" port="{tcp}" ruleset="tcp")
{tls_input}
"""


@attrs.frozen
class Daemon:
    folder: Path
    ports: dict[str, int]

    def got(self, way: str, wanted: int) -> list[tuple[str, dict[str, Any]]]:
        """Head and event of each message; the daemon writes them down when it gets to it."""
        path = self.folder / way
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            rows = path.read_text("utf-8").splitlines() if path.exists() else []
            if len(rows) >= wanted:
                parts = [row.partition("\t") for row in rows]
                return [(head, json.loads(body)) for head, _, body in parts]
            time.sleep(0.05)
        pytest.fail(f"{way}: not {wanted} messages")


def _free(kind: socket.SocketKind) -> int:
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, authority: Any) -> Iterator[Daemon]:
    """The daemon in the foreground, with a configuration of its own."""
    folder = tmp_path_factory.mktemp("rsyslog")
    ports = {
        "udp": _free(socket.SOCK_DGRAM),
        "tcp": _free(socket.SOCK_STREAM),
        "tls": _free(socket.SOCK_STREAM),
    }
    tls = tls_input = ""
    if TLS_DRIVER is not None:
        tls = (
            'module(load="imtcp" streamDriver.name="ossl" streamDriver.mode="1"'
            ' streamDriver.authMode="anon")'
        )
        tls_input = f'input(type="imtcp" address="127.0.0.1" port="{ports["tls"]}" ruleset="tls")'
    config = folder / "rsyslog.conf"
    config.write_text(
        _CONFIG.format(
            folder=folder,
            ca=authority.ca_file,
            cert=authority.cert_file,
            key=authority.key_file,
            tls=tls,
            tls_input=tls_input,
            udp=ports["udp"],
            tcp=ports["tcp"],
        )
    )
    words = [DAEMON, "-n", "-f", str(config), "-i", str(folder / "pid")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        _wait(process, [ports["tcp"], *([ports["tls"]] if TLS_DRIVER else [])])
        yield Daemon(folder, ports)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _wait(process: subprocess.Popen[bytes], ports: list[int]) -> None:
    ends = time.monotonic() + 60
    for port in ports:
        while time.monotonic() < ends:
            if process.poll() is not None:
                told, _ = process.communicate()
                pytest.fail(f"rsyslogd ended: {told.decode('utf-8', 'replace')[-400:]}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                time.sleep(0.05)


@pytest.mark.parametrize("way", ["udp", "tcp", "tls"])
def test_rsyslog_reads_every_event_of_a_log(
    daemon: Daemon, authority: Any, way: str, tmp_path: Path
) -> None:
    """Priority, code, structured data and the event itself arrive as they are, hostile text included."""
    if way == "tls" and TLS_DRIVER is None:
        pytest.skip("rsyslog has no TLS driver (Debian: rsyslog-openssl)")
    hostile = 'x"]\\ \n<13>1 forged - - - %00 \u202e\u2028'
    logs = tmp_path / "logs"
    logs.mkdir()
    with AuditLog(logs / "run.jsonl") as log:
        for number in range(40):
            body: dict[str, Json] = {"host": hostile, "n": number}
            log.append(Event(code=EventCode.EGR001D, subject={"run": hostile}, object=body))
    table: dict[str, Any] = {"kind": "syslog", "to": f"{way}://127.0.0.1:{daemon.ports[way]}"}
    table |= {"private_address": True} | (
        {"ca_file": str(authority.ca_file)} if way == "tls" else {}
    )
    config = parse_sink("siem", table, ())
    with Keeper(tmp_path / "state", "siem", logs) as keeper:
        ours = Forwarder(logs, sender_for(config), keeper, name="siem", max_batch=17)
        assert asyncio.run(ours.catch_up(attempts=1))
    rows = daemon.got(way, 42)

    assert 42 == len(rows)
    assert list(range(1, 43)) == [event["seq"] for _, event in rows]
    head, event = rows[5]
    assert head.startswith('108 agent-runtime-pack EGR001D [event@32473 id="')
    assert hostile == event["object"]["host"]
