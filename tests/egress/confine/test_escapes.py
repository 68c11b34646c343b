"""A confined command tries every way out that we know of, for real, and finds none."""

from __future__ import annotations

import errno
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from egress.confine import Boundary, Probe

pytestmark = pytest.mark.loopback

HERE = Path(__file__).parent


def _names() -> list[str]:
    spec = importlib.util.spec_from_file_location("escapes", HERE / "escapes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names: list[str] = sorted(module.ways())
    return names


@attrs.frozen(kw_only=True)
class Tried:
    """What one command found, and what its supervisor saw."""

    boundary: Boundary
    user_id: int
    ways: Mapping[str, Mapping[str, Any]]
    supervisor: Mapping[str, Any]


def _try(person: Any, boundary: Boundary, *names: str, allow_unix: bool = False) -> Tried:
    """One command that tries every way in turn, or those that are named."""
    folder = person.new_folder()
    files = [str(folder / name) for name in ("ends.json", "tried.json")]
    command = [person.python, str(person.folder / "escapes.py"), *files, *names]
    process = person.start(command, boundary=boundary, folder=folder, allow_unix=allow_unix)
    try:
        assert process.wait(timeout=90) == 0
    finally:
        process.kill()
        process.wait()
    return Tried(
        boundary=boundary,
        user_id=person.user_id,
        ways=json.loads((folder / "tried.json").read_text()),
        supervisor=json.loads((folder / "found.json").read_text()),
    )


@pytest.fixture(scope="module")
def tried(person: Any, boundary: Boundary) -> Tried:
    """Everything."""
    return _try(person, boundary)


# What a way may find without being out. `None` is for any boundary.
_HARMLESS: Mapping[tuple[str, Boundary | None], str] = {
    # The supervisor's ends decide, below.
    ("tcp_changed_address", None): "see the ends",
    ("unix_sequenced_pair", None): "see the ends",
    ("udp", Boundary.NAMESPACE): "see the ends",
    # SIGSYS.
    ("x32_numbers", None): "killed 31",
    # Inside the namespace one may do as one likes.
    ("listening", Boundary.NAMESPACE): "listens",
    ("binding", Boundary.NAMESPACE): "bound",
    ("interfaces", Boundary.NAMESPACE): "lo",
    ("message_queue", Boundary.NAMESPACE): "made",
    # What has to work.
    ("proxy", None): "proxy: 1000006",
    ("proxy_mapped", None): "proxy: 1000006",
    ("proxy_blocking", None): "proxy:hello",
    ("proxy_threads", None): "{'proxy:hello'} 40",
    ("event_loop", None): "proxy:loop",
}


@pytest.mark.parametrize("name", _names())
def test_a_way_out_is_refused(tried: Tried, name: str) -> None:
    """Every way raises an error, but for what is listed as harmless."""
    if name not in tried.ways:
        pytest.skip("this machine has no IPv6")
    way = tried.ways[name]
    harmless = _HARMLESS.get((name, None), _HARMLESS.get((name, tried.boundary)))
    if name == "user":
        harmless = f"{tried.user_id} {tried.user_id}"
    if name == "kernel_modes" and (tried.user_id, tried.boundary) == (0, Boundary.LANDLOCK):
        # Landlock has no right for it, and docs/egress.md says so.
        harmless = "changed"

    assert way["seconds"] < 10
    if harmless is None or (name == "x32_numbers" and "refused" in way):
        assert "refused" in way, way
    else:
        assert harmless == way.get("found"), way


def test_nothing_arrived_outside(tried: Tried) -> None:
    """Whatever the command was told, the ends outside have seen nothing."""
    assert tried.supervisor["arrived"] == []
    assert tried.supervisor["error"] is None


def test_the_start_has_proven_it(tried: Tried) -> None:
    """Before the command ran, a process inside had tried the plain ways."""
    told = tried.supervisor["confined"]

    assert tried.boundary == told["boundary"]
    assert {*Probe} - {Probe.TCP6} <= set(told["proven"])
    assert (Probe.TCP6 in told["proven"]) == ("tcp_ipv6" in tried.ways)
    assert ("root" in " ".join(told["limits"])) == (tried.user_id == 0)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("io_uring", errno.ENOSYS),
        ("typing", errno.EPERM),
        ("keyring", errno.ENOSYS),
        ("unix_path", errno.EACCES),
        ("vsock", errno.EACCES),
        ("packet", errno.EACCES),
        ("raw", errno.EACCES),
        ("high_word", errno.EACCES),
    ],
)
def test_our_filter_is_what_refuses(tried: Tried, name: str, number: int) -> None:
    """Not a kernel that happens to lack the thing."""
    assert number == tried.ways[name]["refused"]


def test_the_ends_would_see_an_escape(person: Any) -> None:
    """Without a boundary the same ways are open: the ends work, and the tries are good ones."""
    names = {
        "tcp_other_port",
        "tcp_own_address",
        "tcp_mapped",
        "tcp_fast_open",
        "tcp_fast_open_message",
        "tcp_fast_open_option",
        "tcp_double_forked",
        "tcp_without_environment",
        "tcp_after_disconnect",
        "udp",
        "unix_path",
        "unix_abstract",
        "unix_datagram_pair",
        "keyring",
        "limits_of_supervisor",
        "listening",
        "message_queue",
        "binding",
        "signal_supervisor",
        "environment_of_supervisor",
        "new_privileges",
        "score_of_supervisor",
        "high_word",
    }
    without = _try(person, Boundary.NONE, *sorted(names))
    arrived = set(without.supervisor["arrived"])

    assert {"abstract", "datagrams", "everywhere", "path", "tcp", "udp"} == arrived - {"tcp6"}
    assert names == {name for name, way in without.ways.items() if "found" in way}


def test_an_inherited_descriptor_is_closed_without_a_boundary_too(person: Any) -> None:
    """The driver leaves a listener open and inheritable."""
    without = _try(person, Boundary.NONE, "inherited")

    assert "refused" in without.ways["inherited"]


def test_unix_paths_open_on_request_and_nothing_else(person: Any, boundary: Boundary) -> None:
    """`allow_unix` opens paths, says so, and opens no abstract name and no other family."""
    names = (
        "unix_path",
        "unix_abstract",
        "unix_datagram_pair",
        "tcp_other_port",
        "vsock",
        "packet",
    )
    opened = _try(person, boundary, *names, allow_unix=True)
    confined = opened.supervisor["confined"]

    assert {"unix_path", "unix_datagram_pair"} == {
        n for n, w in opened.ways.items() if "found" in w
    }
    assert opened.supervisor["arrived"] == ["datagrams", "path"]
    assert Probe.UNIX not in confined["proven"]
    assert "--allow-unix" in " ".join(confined["limits"])
