"""Runs one command confined, with real ends outside that an escape would reach.

A script of its own so that the tests can start it as another user and send signals to it. Reads one
JSON object from its first argument, writes one to the file that this names.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from egress.confine import Boundary, Confined, kernel_facts, run_confined
from egress.errors import EgressError


class Ends:
    """What listens outside the boundary: everything that arrives here has escaped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tcp = self._listening(socket.AF_INET, ("127.0.0.1", 0))
        self.everywhere = self._listening(socket.AF_INET, ("0.0.0.0", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.path = self._listening(socket.AF_UNIX, str(folder / "s"))
        self.abstract = self._listening(socket.AF_UNIX, f"\0arp-test-{os.getpid()}")
        self.datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.datagrams.bind(str(folder / "d"))
        self.all = {
            "tcp": self.tcp,
            "everywhere": self.everywhere,
            "udp": self.udp,
            "path": self.path,
            "abstract": self.abstract,
            "datagrams": self.datagrams,
        }
        if has_ipv6():
            self.all["tcp6"] = self._listening(socket.AF_INET6, ("::1", 0))
        for end in self.all.values():
            end.setblocking(False)
        # Left open and inheritable, as by a careless host.
        os.set_inheritable(self.tcp.fileno(), True)

    @staticmethod
    def _listening(family: socket.AddressFamily, address: tuple[str, int] | str) -> socket.socket:
        end = socket.socket(family, socket.SOCK_STREAM)
        end.bind(address)
        end.listen(64)
        return end

    def describe(self) -> dict[str, Any]:
        """What the command is told about them."""
        ports = {n: e.getsockname()[1] for n, e in self.all.items() if e.family != socket.AF_UNIX}
        return {
            "ports": ports,
            "path": str(self.folder / "s"),
            "datagrams": str(self.folder / "d"),
            "abstract": f"\0arp-test-{os.getpid()}",
            "supervisor": os.getpid(),
            "host": _own_address(),
        }

    def arrived(self) -> list[str]:
        """Names of the ends where something came in."""
        return sorted(name for name, end in self.all.items() if self._has_arrived(end))

    @staticmethod
    def _has_arrived(end: socket.socket) -> bool:
        try:
            if end.type == socket.SOCK_DGRAM:
                end.recv(1)
            else:
                end.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Closes every one."""
        for end in self.all.values():
            end.close()


def has_ipv6() -> bool:
    """Whether ::1 can be listened on."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


def _own_address() -> str:
    """An address of this machine that is not loopback, when there is one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(asked.getsockname()[0])


async def _proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Stands for the proxy: says back what it got, after its end came."""
    try:
        said = await reader.read(-1)
        writer.write(b"proxy:" + said)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    # The client has gone; that is its right.
    except ConnectionError:
        writer.close()


async def main(given: dict[str, Any]) -> dict[str, Any]:
    """What became of the command."""
    folder = Path(given["folder"])
    told: dict[str, Any] = {"code": None, "error": None, "confined": None}
    ends = Ends(folder)
    server = await asyncio.start_server(_proxy, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    ends_told = {**ends.describe(), "proxy": port}
    (folder / "ends.json").write_text(json.dumps(ends_told), encoding="utf-8")

    def note(confined: Confined) -> None:
        told["confined"] = {
            "boundary": confined.boundary,
            "proven": confined.proven,
            "limits": confined.limits,
        }
        (folder / "started").touch()

    try:
        facts = await kernel_facts()
        told["code"] = await run_confined(
            given["command"],
            facts=facts,
            boundary=Boundary(given["boundary"]),
            port=port,
            run="run",
            token="token",
            allow_unix=given.get("allow_unix", False),
            on_start=note,
        )
    except (EgressError, ValueError) as error:
        told["error"] = f"{type(error).__name__}: {error}"
    finally:
        server.close()
        await server.wait_closed()
        told["arrived"] = ends.arrived()
        ends.close()
    return told


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    found = asyncio.run(main(arguments))
    (Path(arguments["folder"]) / "found.json").write_text(json.dumps(found), encoding="utf-8")
    sys.exit(found["code"] if found["code"] is not None else 99)
