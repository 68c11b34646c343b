"""Servers that speak the providers' wire forms, each a real process of its own on loopback."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import attrs
import pytest


@attrs.frozen
class Server:
    """A process that listens, and its control API."""

    url: str

    def call(self, path: str, payload: object = None) -> Any:
        data = None if payload is None else json.dumps(payload).encode()
        with urlopen(Request(self.url + path, data=data), timeout=120) as response:
            return json.loads(response.read())


class Mock(Server):
    """llmock: behaviours are queued, and each request takes the next that fits."""

    def script(self, *behaviors: dict[str, Any]) -> None:
        self.call("/_llmock/scenario", {"behaviors": list(behaviors)})

    def requests(self) -> int:
        return int(self.call("/_llmock/requests")["count"])

    def reset(self) -> None:
        self.call("/_llmock/reset", {})


class Wire(Server):
    """Our own server: every byte of an answer is told."""

    def script(self, *answers: dict[str, Any]) -> None:
        self.call("/_script", list(answers))

    def seen(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("/_seen")
        return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stop(process: subprocess.Popen[str]) -> None:
    # It holds nothing, and asked politely it would first wait for the requests that it delays.
    process.kill()
    process.wait(timeout=120)
    if process.stdout is not None:
        process.stdout.close()


@pytest.fixture(scope="session")
def _llmock() -> Iterator[Mock]:
    port = _free_port()
    command = [sys.executable, "-m", "llmock.cli", "serve", "--host", "127.0.0.1"]
    process = subprocess.Popen(
        [*command, "--port", str(port)], stderr=subprocess.DEVNULL, text=True
    )
    mock = Mock(f"http://127.0.0.1:{port}")
    try:
        for _ in range(300):
            try:
                mock.call("/health")
                break
            except URLError:
                time.sleep(0.1)
        yield mock
    finally:
        _stop(process)


@pytest.fixture(scope="session")
def _wire() -> Iterator[Wire]:
    script = Path(__file__).with_name("wire_server.py")
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise RuntimeError("the server has no output")
        yield Wire(f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        _stop(process)


@pytest.fixture
def mock(_llmock: Mock) -> Mock:
    """The llmock process with an empty queue."""
    _llmock.reset()
    return _llmock


@pytest.fixture
def wire(_wire: Wire) -> Wire:
    """The wire-level server with an empty script."""
    _wire.script()
    return _wire
