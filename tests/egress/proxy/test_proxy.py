"""The listening proxy: tunnels, tokens, caps, faults and its end, over loopback sockets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import resource
import socket
import struct
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egress import DenyReason, EgressPolicy, EgressProxy, check_answers, check_listed
from egress.decision import Deny
from egress.proxy import Outcome, ProxyLimits, ProxyRun, serve_proxy
from egress.testing import (
    RecordingObserver,
    ScriptedDialer,
    ScriptedResolver,
    answers,
    client_hello,
    policies,
    targets,
)
from egress.url import Target

pytestmark = pytest.mark.loopback

_HELLO = client_hello("a.test")
_ACCESS_DENIED = bytes.fromhex("15030100020231")
_INTERNAL_ERROR = bytes.fromhex("15030100020250")


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes with RST instead of FIN."""
    found = writer.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _told(raw: bytes) -> dict[str, Any]:
    """The object in the body of an answer of the proxy's own."""
    found = json.loads(raw.partition(b"\r\n\r\n")[2])
    assert isinstance(found, dict)
    return found


# ── tunnels ───────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_dialled_before_the_hello_is_read(kit: Any) -> None:
    """On 443 the 200 comes first; the upstream gets the hello's bytes, unchanged, once it is whole."""

    async def main() -> None:
        async with kit.serve(_echo) as place, kit.world("a.test", port=place.port) as world:
            reader, writer, status = await world.tunnel("a.test:443", first=_HELLO[:20])
            await asyncio.sleep(0.05)
            assert (200, [], ["a.test"]) == (status, world.dialer.dials, world.resolver.lookups)
            writer.write(_HELLO[20:] + b"early")
            assert _HELLO + b"early" == await reader.readexactly(len(_HELLO) + 5)
            assert [(kit.public, 443)] == world.dialer.dials
            await kit.shut(writer)
            await world.settled()
            [record] = world.observer.records
            assert (Outcome.TUNNELLED, 200, "one") == (record.outcome, record.status, record.run)
            assert (kit.public, "a.test", 443) == (record.address, record.host, record.port)
            assert len(_HELLO) + 5 == record.bytes_down < record.bytes_up
            assert not world.observer.denials

    kit.run(main())


@pytest.mark.parametrize("end", [1, 4, 5, 9, 60, len(_HELLO) - 1])
def test_a_hello_in_pieces_is_the_same(kit: Any, end: int) -> None:
    """Cut anywhere, and sent before the 200 was read, it opens the tunnel."""

    async def main() -> None:
        async with kit.serve(_echo) as place, kit.world("a.test", port=place.port) as world:
            reader, writer, _ = await world.tunnel("a.test:443", first=_HELLO[:end])
            await asyncio.sleep(0.01)
            writer.write(_HELLO[end:])
            assert _HELLO == await reader.readexactly(len(_HELLO))
            await kit.shut(writer)

    kit.run(main())


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", DenyReason.NOT_TLS),
        (b"S", DenyReason.NOT_TLS),
        (client_hello(), DenyReason.SNI_MISSING),
        (client_hello("b.test"), DenyReason.SNI_MISMATCH),
        (b"\x16\x03\x01\x40\x00", DenyReason.HELLO_TOO_LARGE),
    ],
)
def test_a_refused_hello_is_one_denial_and_no_dial(
    kit: Any, first: bytes, reason: DenyReason
) -> None:
    """The client gets an alert and the end; nothing of its bytes leaves."""

    async def main() -> None:
        async with kit.world("a.test") as world:
            reader, writer, status = await world.tunnel("a.test:443", first=first)
            assert (200, _ACCESS_DENIED) == (status, await kit.read_all(reader))
            await kit.shut(writer)
            await world.settled()
            [denial] = world.observer.denials
            assert ("R13", reason) == (denial.violation.rule, denial.violation.reason)
            assert ("one", "task", "session") == (denial.run, denial.task, denial.session)
            assert ("CONNECT", 1) == (denial.method, denial.connection)
            [record] = world.observer.records
            assert (Outcome.DENIED, "event-1") == (record.outcome, record.event_id)
            assert 200 == record.status
            assert not world.dialer.dials

    kit.run(main())


def test_other_ports_are_opaque(kit: Any) -> None:
    """A server may speak first there, and what the client sends is not looked at."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        await _echo(reader, writer)

    async def main() -> None:
        async with kit.serve(greet) as place, kit.world("a.test:25", port=place.port) as world:
            reader, writer, _ = await world.tunnel("a.test:25")
            assert b"220 hello\r\n" == await reader.readline()
            writer.write(b"EHLO\r\n")
            assert b"EHLO\r\n" == await reader.readline()
            await kit.shut(writer)

    kit.run(main())


def test_each_direction_ends_by_itself(kit: Any) -> None:
    """After the client's end the rest of the answer still comes through."""

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read(-1)
        writer.write(asked.upper() * 50_000)
        await writer.drain()

    async def main() -> None:
        async with kit.serve(late) as place, kit.world(port=place.port) as world:
            reader, writer, _ = await world.tunnel("a.test:22", first=b"abc")
            writer.write_eof()
            assert b"ABC" * 50_000 == await kit.read_all(reader)
            await kit.shut(writer)
            await world.settled()
            assert "" == world.observer.records[0].reason

    kit.run(main())


def test_a_slow_reader_holds_the_sender(kit: Any) -> None:
    """64 MB wait at their source while the client reads nothing, and all arrive when it does."""
    size = 64 * 1024 * 1024

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        block = bytes(256 * 1024)
        for _ in range(size // len(block)):
            writer.write(block)
            await writer.drain()

    async def main() -> None:
        async with kit.serve(flood) as place, kit.world(port=place.port) as world:
            reader, writer, _ = await world.tunnel("a.test:22")
            [connection] = world.proxy._open
            held = await kit.stalled(lambda: connection.bytes_down)
            buffered = connection.client.transport.get_write_buffer_size()
            assert held < size // 2
            assert buffered < 1024 * 1024
            total = 0
            while part := await reader.read(1024 * 1024):
                total += len(part)
            assert size == total
            await kit.shut(writer)

    kit.run(main())


class _Late:
    """Dials when it is told to, with a small buffer in the kernel."""

    def __init__(self, dialer: ScriptedDialer) -> None:
        self._dialer = dialer
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def dial(self, address: Any, port: int, protocol: Any) -> object:
        self.asked.set()
        await self.may.wait()
        transport: Any = await self._dialer.dial(address, port, protocol)
        found = transport.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return transport


def test_what_comes_before_the_tunnel_is_bounded(kit: Any) -> None:
    """A client that floods is held while its upstream is dialled, and when that does not read."""

    async def main() -> None:
        done = asyncio.Event()

        async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await done.wait()

        async with kit.serve(deaf) as place, kit.world(port=place.port) as world:
            late = world.proxy.dialer = _Late(world.dialer)
            reader, writer = await world.open()
            writer.write(
                b"CONNECT a.test:22 HTTP/1.1\r\nHost: a.test:22\r\nProxy-Authorization: Bearer "
                + kit.token.encode()
                + b"\r\n\r\n"
                + bytes(64 * 1024 * 1024)
            )
            await late.asked.wait()
            [connection] = world.proxy._open
            await kit.stalled(lambda: connection.bytes_up)
            assert len(connection.client.buffer) < 1024 * 1024
            late.may.set()
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            assert await kit.stalled(lambda: connection.bytes_up) < 32 * 1024 * 1024
            assert connection.upstream.transport.get_write_buffer_size() < 1024 * 1024
            done.set()
            writer.transport.abort()
            await kit.shut(writer)

    kit.run(main())


def test_an_end_before_the_tunnel_is_passed_on(kit: Any) -> None:
    """A client that has said everything before its upstream is there is answered."""

    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(-1)).upper())

    async def main() -> None:
        async with kit.serve(shout) as place, kit.world(port=place.port) as world:
            late = world.proxy.dialer = _Late(world.dialer)
            reader, writer = await world.open()
            writer.write(
                b"CONNECT a.test:22 HTTP/1.1\r\nHost: a.test:22\r\nProxy-Authorization: Bearer "
                + kit.token.encode()
                + b"\r\n\r\nabc"
            )
            writer.write_eof()
            await late.asked.wait()
            [connection] = world.proxy._open
            async with asyncio.timeout(30):
                # The proxy has no event for it.
                while not connection.client.ended:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            late.may.set()
            assert (await kit.read_all(reader)).endswith(b"\r\n\r\nABC")
            await kit.shut(writer)

    kit.run(main())


def test_tunnels_have_neither_task_nor_thread(kit: Any) -> None:
    """A hundred idle ones leave as many tasks and threads as there were."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def main() -> None:
        async with kit.serve(hold) as place, kit.world(port=place.port) as world:
            opened = [await world.tunnel("a.test:22") for _ in range(100)]
            assert {200} == {status for _, _, status in opened}
            await asyncio.sleep(0.05)
            ours = [task for task in asyncio.all_tasks() if "_serve" in repr(task.get_coro())]
            assert ([], 100) == (ours, world.proxy.open_connections)
            assert threading.active_count() <= 2
            for _, writer, _ in opened:
                await kit.shut(writer)
            await world.settled(100)

    kit.run(main())


# ── the verdict ───────────────────────────────────────────────────────────────────────────────


def test_an_unlisted_name_is_denied_without_a_lookup(kit: Any) -> None:
    """403, one event with its id in the answer, the entry to add, and no socket."""

    async def main() -> None:
        async with kit.world("a.test") as world:
            raw = await world.get("http://evil.test:8080/secret?q=1")
            assert raw.startswith(b"HTTP/1.1 403 ")
            assert b"\r\nEgress-Event: event-1\r\n" in raw
            assert b'error=http_request_denied; details="R4 host_not_listed"' in raw
            assert {
                "code": "WEB_EGRESS_DENIED",
                "reason": "host_not_listed",
                "rule": "R4",
                "host": "evil.test",
                "nearest_entry": "evil.test:8080",
                "event": "event-1",
            } == _told(raw)
            await world.settled()
            assert ([], []) == (world.resolver.lookups, world.dialer.dials)
            [denial] = world.observer.denials
            assert "GET" == denial.method
            stored = json.dumps([denial.violation.to_json(), world.observer.records[0].to_json()])
            assert "secret" not in stored

    kit.run(main())


def test_an_answer_that_is_refused_stays_with_the_operator(kit: Any) -> None:
    """The confined program is told neither the address nor the entry that would hold it."""

    async def main() -> None:
        async with kit.world("a.test", names={"a.test": [kit.public, "10.0.0.5"]}) as world:
            _, writer, status = await world.tunnel("a.test:443")
            await kit.shut(writer)
            raw = await world.get("http://a.test/")
            assert (403, None) == (status, _told(raw)["nearest_entry"])
            assert b"10.0.0.5" not in raw
            await world.settled(2)
            assert [("10.0.0.5",)] * 2 == [d.violation.addresses for d in world.observer.denials]
            assert [403, 403] == [each.status for each in world.observer.records]
            assert not world.dialer.dials

    kit.run(main())


def test_a_head_request_gets_no_body(kit: Any) -> None:
    """The answer to HEAD ends with its head, a denial too."""

    async def main() -> None:
        async with kit.world("a.test") as world:
            raw = await world.get("http://evil.test/", method="HEAD")
            assert raw.endswith(b"\r\n\r\n")
            assert b"Egress-Event: event-1" in raw

    kit.run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "a.test"])
def test_its_own_listener_is_refused(kit: Any, host: str) -> None:
    """Whatever leads there, by number or by name; another port of that address is not its own."""

    async def main() -> None:
        async with kit.serve(_echo) as place:
            listed = ("127.0.0.0/8", "a.test:*")
            names = {"a.test": ["127.0.0.1"]}
            async with kit.world(*listed, port=place.port, names=names) as world:
                port = world.proxy.address[1]
                raw = await world.get(f"http://{host}:{port}/")
                _, writer, status = await world.tunnel(f"{host}:{port}")
                await kit.shut(writer)
                assert ("own_listener", "R13") == (_told(raw)["reason"], _told(raw)["rule"])
                assert 403 == status
                await world.settled(2)
                assert not world.dialer.dials
                assert 2 == len(world.observer.denials)
                _, writer, status = await world.tunnel(f"{host}:{place.port}")
                await kit.shut(writer)
                assert 200 == status

    kit.run(main())


def test_https_only_refuses_plain_http(kit: Any) -> None:
    """And says so as the client would (R12)."""

    async def main() -> None:
        from egress import AddressPolicy, parse_allowlist

        observer = RecordingObserver()
        policy = EgressPolicy(
            allowlist=parse_allowlist(["a.test"]), address=AddressPolicy(https_only=True)
        )
        run = ProxyRun(run="one", token=kit.token, policy=policy)
        proxied = serve_proxy([run], observer=observer, resolver=ScriptedResolver())
        async with proxied as proxy:
            reader, writer = await asyncio.open_connection(*proxy.address)
            writer.write(
                b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n"
                b"Proxy-Authorization: Bearer " + kit.token.encode() + b"\r\n\r\n"
            )
            assert "https_only" == _told(await kit.read_all(reader))["reason"]
            await kit.shut(writer)

    kit.run(main())


def _expected(policy: EgressPolicy, target: Target, found: list[str]) -> tuple[str, bool]:
    """What the pure functions say, and whether they need a lookup."""
    listed = check_listed(policy, target)
    if isinstance(listed, Deny):
        return "deny", False
    if target.is_literal:
        return "allow", False
    if not found:
        return "failed", True
    return ("deny" if isinstance(check_answers(policy, target, found), Deny) else "allow"), True


@settings(max_examples=60)
@given(policies(), targets(), answers(), st.booleans())
def test_its_verdict_is_that_of_the_decisions(
    policy: EgressPolicy, target: Target, found: list[str], tunnelled: bool
) -> None:
    """For every policy, target and answer: the same verdict, one event per denial, vetted dials."""
    observer = RecordingObserver()
    resolver = ScriptedResolver({target.host: found})

    async def main() -> tuple[int, list[tuple[str, int]]]:
        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        server = await asyncio.start_server(hold, "127.0.0.1", 0)
        async with server:
            dialer = ScriptedDialer(any_place=server.sockets[0].getsockname())
            run = ProxyRun(run="one", token="t", policy=policy)
            proxied = serve_proxy([run], observer=observer, resolver=resolver, dialer=dialer)
            async with proxied as proxy:
                reader, writer = await asyncio.open_connection(*proxy.address)
                asked = f"{target.host if ':' not in target.host else f'[{target.host}]'}"
                line = f"CONNECT {asked}:{target.port}" if tunnelled else f"GET {target.url}"
                host = f"{asked}:{target.port}"
                writer.write(
                    f"{line} HTTP/1.1\r\nHost: {host}\r\n"
                    "Proxy-Authorization: Bearer t\r\n\r\n".encode()
                    + (
                        client_hello(None if target.is_literal else target.host)
                        if tunnelled
                        else b""
                    )
                )
                status = int((await reader.readline()).split()[1])
                with contextlib.suppress(OSError):
                    await reader.read(-1)
                    writer.close()
                    await writer.wait_closed()
            return status, dialer.dials

    judged = Target(
        scheme="https" if tunnelled else target.scheme,
        host=target.host,
        port=target.port,
        path_query="/" if tunnelled else target.path_query,
        address=target.address,
    )
    status, dials = asyncio.run(main())

    if judged.scheme == "https" and not tunnelled:
        assert (400, [], [], []) == (status, observer.denials, resolver.lookups, dials)
        return
    verdict, looked_up = _expected(policy, judged, found)
    assert int(verdict == "deny") == len(observer.denials)
    assert (verdict == "allow") == bool(dials)
    assert ([target.host] if looked_up else []) == resolver.lookups
    if verdict == "deny":
        assert 403 == status
    vetted = check_answers(policy, judged, [target.host] if target.is_literal else found)
    for address, port in dials:
        assert not isinstance(vetted, Deny)
        assert address in {str(each) for each in vetted.addresses}
        assert target.port == port


# ── tokens and runs ───────────────────────────────────────────────────────────────────────────


def _basic(user: str, token: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{token}".encode()).decode()


def test_only_the_token_of_the_run_lets_in(kit: Any) -> None:
    """407 without event or lookup for everything else; both schemes are asked for."""
    refused = [
        None,
        "Bearer wrong",
        f"Bearer {kit.token}x",
        f"Bearer {kit.token[:-1]}",
        f"Digest {kit.token}",
        _basic("two", kit.token),
        _basic("", kit.token),
        _basic("one", ""),
        _basic("one", "token-of-run-two"),
        _basic("ONE", kit.token),
    ]
    passed = [f"Bearer {kit.token}", f"bearer {kit.token}", _basic("one", kit.token)]

    async def main() -> None:
        async with kit.world("nothing.test") as world:
            world.proxy.add_run(kit.run_of(run="two", token="token-of-run-two"))
            for value in (*refused, *passed):
                field = f"Proxy-Authorization: {value}\r\n" if value is not None else ""
                raw = await world.ask(
                    f"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n{field}\r\n".encode()
                )
                assert (b"403" if value in passed else b"407") == raw.split()[1], value
                if value in refused:
                    assert b'\r\nProxy-Authenticate: Basic realm="run"\r\n' in raw
                    assert b"Egress-Event" not in raw
            await world.settled(len(refused) + len(passed))
            assert len(passed) == len(world.observer.denials)
            assert not world.resolver.lookups
            strangers = [r for r in world.observer.records if r.outcome is Outcome.UNAUTHENTICATED]
            assert [(None, 407)] * len(refused) == [(r.run, r.status) for r in strangers]

    kit.run(main())


def test_each_run_has_its_own_list(kit: Any) -> None:
    """The token decides whose list is asked, and whose id the event bears."""

    async def main() -> None:
        async with kit.serve(_echo) as place, kit.world("a.test:22", port=place.port) as world:
            world.proxy.add_run(kit.run_of("b.test:22", run="two", token="token-of-run-two"))
            _, writer, status = await world.tunnel("a.test:22", token="token-of-run-two")
            await kit.shut(writer)
            assert (403, "two") == (status, world.observer.denials[0].run)
            _, writer, status = await world.tunnel("a.test:22")
            await kit.shut(writer)
            assert 200 == status

    kit.run(main())


def test_one_token_names_one_run(kit: Any) -> None:
    """A second run with its id or its token is refused, and so is one that cannot be spelt."""

    async def main() -> None:
        async with kit.world("a.test") as world:
            for other in ({"run": "one", "token": "other"}, {"run": "two", "token": kit.token}):
                with pytest.raises(ValueError):
                    world.proxy.add_run(kit.run_of(**other))
            world.proxy.end_run("unknown")

    kit.run(main())
    for run, token in (
        ("", "t"),
        ("a:b", "t"),
        ("a b", "t"),
        ("a", ""),
        ("a", "t\n"),
        ("a", "\xfc"),
    ):
        with pytest.raises(ValueError, match="characters") as caught:
            kit.run_of(run=run, token=token)
        assert not token.strip() or token not in str(caught.value).split()
    assert kit.token not in repr(kit.run_of())


def test_the_end_of_a_run_ends_its_tunnels(kit: Any) -> None:
    """And its token is void at once."""

    async def main() -> None:
        async with kit.serve(_echo) as place, kit.world(port=place.port) as world:
            reader, writer, _ = await world.tunnel("a.test:22")
            world.proxy.end_run("one")
            assert b"" == await kit.read_all(reader)
            await kit.shut(writer)
            _, writer, status = await world.tunnel("a.test:22")
            await kit.shut(writer)
            assert 407 == status
            await world.settled(2)
            assert "run_ended" == world.observer.records[0].reason

    kit.run(main())


def test_what_we_cut_is_cut_at_both_ends(kit: Any) -> None:
    """A tunnel that ends with its run is reset: half an answer must not look whole to anybody."""
    seen: list[type[Exception] | bytes] = []

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(4))
        try:
            seen.append(await reader.read())
        except ConnectionResetError as error:
            seen.append(type(error))

    async def main() -> None:
        async with kit.serve(served) as place, kit.world(port=place.port) as world:
            reader, writer, _ = await world.tunnel("a.test:22", first=b"half")
            assert b"half" == await reader.readexactly(4)
            world.proxy.end_run("one")
            with pytest.raises(ConnectionResetError):
                await reader.read()
            await kit.shut(writer)
            await world.settled()

    kit.run(main())
    assert [ConnectionResetError] == seen


# ── caps ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (ProxyLimits(idle_seconds=100), "idle_seconds"),
        (ProxyLimits(tunnel_seconds=100), "tunnel_seconds"),
        (ProxyLimits(lifetime_seconds=100), "run_expired"),
    ],
)
def test_a_tunnel_ends_at_its_time(kit: Any, limits: ProxyLimits, reason: str) -> None:
    """Idle, in total, or with its run; both of its sockets are closed."""

    async def main() -> None:
        async with kit.serve() as place, kit.world(port=place.port, limits=limits) as world:
            reader, writer, status = await world.tunnel("a.test:22")
            kit.pass_time(101)
            assert (200, b"") == (status, await kit.read_all(reader))
            await kit.shut(writer)
            await world.settled()
            [record] = world.observer.records
            assert (Outcome.TUNNELLED, reason) == (record.outcome, record.reason)

    kit.run(main())


def test_traffic_is_not_idle(kit: Any) -> None:
    """The idle time starts again with every byte."""

    async def main() -> None:
        limits = ProxyLimits(idle_seconds=100)
        async with kit.serve(_echo) as place, kit.world(port=place.port, limits=limits) as world:
            reader, writer, _ = await world.tunnel("a.test:22")
            for _ in range(8):
                kit.pass_time(40)
                writer.write(b"x")
                assert b"x" == await reader.read(1)
            await kit.shut(writer)

    kit.run(main())


def test_the_token_of_a_run_is_void_after_its_life(kit: Any) -> None:
    """407, as for a token that never was."""

    async def main() -> None:
        async with kit.world("a.test", limits=ProxyLimits(lifetime_seconds=100)) as world:
            kit.pass_time(101)
            await asyncio.sleep(0)
            assert (await world.get("http://a.test/")).startswith(b"HTTP/1.1 407 ")

    kit.run(main())


def test_connections_of_a_run_are_counted(kit: Any) -> None:
    """The one above the cap gets 429; when one has ended, there is room again."""

    async def main() -> None:
        limits = ProxyLimits(max_connections=2)
        async with kit.serve(_echo) as place, kit.world(port=place.port, limits=limits) as world:
            opened = [await world.tunnel("a.test:22") for _ in range(3)]
            assert [200, 200, 429] == [status for _, _, status in opened]
            await kit.shut(opened[0][1])
            await kit.shut(opened[2][1])
            await world.settled_to(1)
            _, writer, status = await world.tunnel("a.test:22")
            assert 200 == status
            await kit.shut(writer)
            await kit.shut(opened[1][1])
            await world.settled(4)
            assert 1 == sum(r.outcome is Outcome.LIMITED for r in world.observer.records)
            assert not world.observer.denials

    kit.run(main())


def test_bytes_of_a_run_are_counted(kit: Any) -> None:
    """Both directions of all its connections; at the cap they end, and no new one begins."""

    async def main() -> None:
        limits = ProxyLimits(max_bytes=100_000)
        async with kit.serve(_echo) as place, kit.world(port=place.port, limits=limits) as world:
            other, other_writer, _ = await world.tunnel("a.test:22")
            reader, writer, _ = await world.tunnel("a.test:22")
            writer.write(bytes(90_000))
            got = len(await kit.read_all(reader))
            assert got < 20_000
            assert b"" == await kit.read_all(other)
            for each in (writer, other_writer):
                await kit.shut(each)
            raw = await world.get("http://a.test/")
            assert ("PROXY_LIMIT", "max_bytes") == (_told(raw)["code"], _told(raw)["reason"])
            await world.settled(3)
            ends = [r.reason for r in world.observer.records if r.outcome is Outcome.TUNNELLED]
            assert ["max_bytes", "max_bytes"] == ends

    kit.run(main())


def test_strangers_make_room(kit: Any) -> None:
    """They cannot take every socket: who has waited longest without a token is closed."""

    async def main() -> None:
        async with kit.world("a.test", max_open=4) as world:
            first = [await world.open() for _ in range(4)]
            await world.settled_to(4)
            raw = await world.get("http://evil.test/")
            assert raw.startswith(b"HTTP/1.1 403 ")
            assert b"" == await kit.read_all(first[0][0])
            assert ["crowded_out"] == [
                each.reason for each in world.observer.records if each.run is None
            ]
            for _, each in first:
                await kit.shut(each)

    kit.run(main())


def test_each_newcomer_makes_its_own_room(kit: Any) -> None:
    """Who has left is nobody's room, and of two that come at once each takes the place of another."""

    async def main() -> None:
        async with kit.world("a.test", max_open=4) as world:
            _, gone = await world.open()
            await world.settled_to(1)
            await kit.shut(gone)
            await world.settled()
            first = [await world.open() for _ in range(4)]
            await world.settled_to(4)
            # Both are in the kernel before the proxy has its turn.
            late = [socket.create_connection(world.proxy.address) for _ in range(2)]
            for reader, _ in first[:2]:
                assert b"" == await kit.read_all(reader)
            await world.settled_to(4)
            reasons = [each.reason for each in world.observer.records]
            assert ["", "crowded_out", "crowded_out"] == reasons
            for each in late:
                each.close()
            for _, writer in first:
                await kit.shut(writer)

    kit.run(main())


def test_who_comes_in_while_it_stops_is_turned_away(kit: Any) -> None:
    """A connection that was taken before, and has no protocol yet, does not keep it from ending."""

    async def main() -> None:
        async with kit.world("a.test") as world:
            with socket.create_connection(world.proxy.address):
                # The acceptor tells nobody.
                while not world.proxy._acceptor._adopting:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                assert await world.proxy.drain(30)
                await asyncio.sleep(0.05)
                assert 0 == world.proxy.open_connections
            assert [] == world.observer.records

    kit.run(main())


def test_connections_of_all_are_counted(kit: Any) -> None:
    """Where every place is a run's, the one too many is closed at the door."""

    async def main() -> None:
        async with kit.serve(_echo) as place, kit.world(port=place.port, max_open=4) as world:
            opened = [await world.tunnel("a.test:22") for _ in range(4)]
            assert [200] * 4 == [status for _, _, status in opened]
            reader, writer = await world.open()
            assert b"" == await kit.read_all(reader)
            for each in (writer, *(writer for _, writer, _ in opened)):
                await kit.shut(each)

    kit.run(main())


def test_refused_connections_make_room_for_other_runs(kit: Any) -> None:
    """What got 429 and stays open holds no place: it is closed as a stranger is."""

    async def main() -> None:
        limits = ProxyLimits(max_connections=1)
        async with (
            kit.serve(_echo) as place,
            kit.world(port=place.port, limits=limits, max_open=8) as world,
        ):
            world.proxy.add_run(kit.run_of("a.test:*", run="two", token="token-of-run-two"))
            opened = [await world.tunnel("a.test:22") for _ in range(8)]
            assert [200, *[429] * 7] == [status for _, _, status in opened]
            others = [await world.tunnel("a.test:22", token="token-of-run-two") for _ in range(3)]
            assert [200] * 3 == [status for _, _, status in others]
            for _, writer, _ in (*opened, *others):
                await kit.shut(writer)

    kit.run(main())


def test_a_run_leaves_places_for_the_others(kit: Any) -> None:
    """Half of all places is shared out evenly, and what a run has not used of it is kept."""

    async def main() -> None:
        async with kit.serve(_echo) as place, kit.world(port=place.port, max_open=8) as world:
            world.proxy.add_run(kit.run_of("a.test:22", run="two", token="token-two"))
            greedy = [await world.tunnel("a.test:22") for _ in range(7)]
            assert [200] * 6 + [429] == [status for _, _, status in greedy]
            await kit.shut(greedy.pop()[1])
            await world.settled_to(6)
            others = [await world.tunnel("a.test:22", token="token-two") for _ in range(2)]
            assert [200] * 2 == [status for _, _, status in others]
            assert ["max_open"] == [each.reason for each in world.observer.records]
            for _, each, _ in (*greedy, *others):
                await kit.shut(each)

    kit.run(main())


def test_the_descriptor_limit_bounds_the_connections(kit: Any) -> None:
    """Two sockets for each have to fit, beside what the process needs for itself."""

    async def main() -> None:
        async with kit.world(max_open=8192) as world:
            assert (200 - 128) // 2 == world.proxy._max_open

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        kit.run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_each_run_looks_names_up_in_its_own_share(kit: Any) -> None:
    """A run whose look-ups hang does not keep another's waiting: the resolver is the run's."""

    async def main() -> None:
        runs = [kit.run_of("a.test", run=name, token=f"token-{name}") for name in ("one", "two")]
        async with serve_proxy(runs, observer=RecordingObserver()) as proxy:
            one, two = [runner.resolver for runner in proxy._runs.values()]
            assert one is not two

    kit.run(main())


@pytest.mark.parametrize("sent", [b"", b"GET http://a.test/ HTTP/1.1\r\nHost:", b"G"])
def test_a_slow_head_is_cut_off(kit: Any, sent: bytes) -> None:
    """One time for the whole head, however it drips."""

    async def main() -> None:
        async with kit.world("a.test", head_seconds=0.1) as world:
            raw = await world.ask(sent)
            assert raw.startswith(b"HTTP/1.1 408 ")
            await world.settled()

    kit.run(main())


def test_a_hello_that_does_not_come_is_not_waited_for(kit: Any) -> None:
    """No event: nothing was refused."""

    async def main() -> None:
        limits = ProxyLimits(hello_seconds=0.1)
        async with kit.world("a.test", limits=limits) as world:
            reader, writer, _ = await world.tunnel("a.test:443", first=_HELLO[:30])
            assert b"" == await kit.read_all(reader)
            await kit.shut(writer)
            await world.settled()
            [record] = world.observer.records
            assert (Outcome.FAILED, "hello_seconds") == (record.outcome, record.reason)
            assert not world.observer.denials
            assert not world.dialer.dials

    kit.run(main())


@pytest.mark.parametrize("size", [40_000, 400_000])
def test_a_huge_head_is_refused(kit: Any, size: int) -> None:
    """At its cap, whether it would have ended or not."""

    async def main() -> None:
        async with kit.world("a.test") as world:
            raw = await world.ask(b"GET http://a.test/ HTTP/1.1\r\nX: " + b"x" * size)
            assert b"" == raw or raw.startswith(b"HTTP/1.1 400 ")
            await world.settled()
            assert "too_large" == world.observer.records[0].reason

    kit.run(main())


def test_limits_are_finite_and_positive() -> None:
    """No bound can be switched off, and text is no number."""
    bad: tuple[Any, ...] = (0, -1, float("inf"), float("nan"), "5", None, True)
    for value in bad:
        with pytest.raises(ValueError):
            ProxyLimits(idle_seconds=value)
        with pytest.raises(ValueError):
            ProxyLimits(max_bytes=value)
    with pytest.raises(ValueError):
        # The mistake is the point.
        ProxyLimits(max_connections=1.5)  # type: ignore[arg-type]


# ── what goes wrong outside ───────────────────────────────────────────────────────────────────


def test_the_next_vetted_address_is_tried(kit: Any) -> None:
    """In the order of the answers, each once."""

    async def main() -> None:
        first, second = "93.184.215.14", "93.184.215.15"
        async with kit.serve(_echo) as place:
            places = {
                (first, 22): ConnectionRefusedError(111, "refused"),
                (second, 22): ("127.0.0.1", place.port),
            }
            names = {"a.test": [first, second, first]}
            async with kit.world(names=names, places=places) as world:
                _, writer, status = await world.tunnel("a.test:22")
                await kit.shut(writer)
                assert (200, [(first, 22), (second, 22)]) == (status, world.dialer.dials)
                await world.settled()
                assert second == world.observer.records[0].address

    kit.run(main())


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ConnectionRefusedError(111, "refused"), 502, "connect_failed"),
        (TimeoutError(), 504, "connect_timeout"),
    ],
)
def test_an_upstream_that_cannot_be_reached(
    kit: Any, error: OSError, status: int, reason: str
) -> None:
    """502 or 504 before the tunnel, an alert inside it; no event, for nothing was denied."""

    async def main() -> None:
        places = {(kit.public, port): error for port in (22, 80, 443)}
        async with kit.world(places=places) as world:
            _, writer, found = await world.tunnel("a.test:22")
            await kit.shut(writer)
            raw = await world.get("http://a.test/")
            assert (status, reason) == (found, _told(raw)["reason"])
            reader, writer, found = await world.tunnel("a.test:443", first=_HELLO)
            assert (200, _INTERNAL_ERROR) == (found, await kit.read_all(reader))
            await kit.shut(writer)
            await world.settled(3)
            assert {Outcome.FAILED} == {r.outcome for r in world.observer.records}
            assert not world.observer.denials

    kit.run(main())


def test_a_name_that_cannot_be_resolved(kit: Any) -> None:
    """Failing, empty and late lookups are told apart from a denial."""

    class Slow:
        async def resolve(self, host: str, port: int) -> list[str]:
            await asyncio.sleep(60)
            return []

    async def main() -> None:
        observer = RecordingObserver()
        run = kit.run_of("a.test", limits=ProxyLimits(connect_seconds=0.05))
        for resolver, status in (
            (ScriptedResolver({}, failures={"a.test": OSError("no")}), 502),
            (ScriptedResolver({"a.test": []}), 502),
            (Slow(), 504),
        ):
            async with serve_proxy([run], observer=observer, resolver=resolver) as proxy:
                reader, writer = await asyncio.open_connection(*proxy.address)
                writer.write(
                    b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n"
                    b"Proxy-Authorization: Bearer " + kit.token.encode() + b"\r\n\r\n"
                )
                assert status == int((await reader.readline()).split()[1])
                await kit.shut(writer)
        assert not observer.denials

    kit.run(main())


@pytest.mark.parametrize("stage", ["empty", "head", "hello", "tunnel"])
@pytest.mark.parametrize("reset", [True, False])
def test_a_client_may_leave_at_any_time(kit: Any, stage: str, reset: bool) -> None:
    """Reset or closed: one record, no socket, and the upstream is let go."""

    async def main() -> None:
        async with kit.serve(_echo) as place, kit.world(port=place.port) as world:
            if stage in {"empty", "head"}:
                _, writer = await world.open()
                writer.write(b"CONNECT a.test" if stage == "head" else b"")
            elif stage == "hello":
                _, writer, _ = await world.tunnel("a.test:443", first=_HELLO[:50])
            else:
                reader, writer, _ = await world.tunnel("a.test:22", first=b"x")
                await reader.readexactly(1)
            await asyncio.sleep(0.02)
            if reset:
                _reset(writer)
            await kit.shut(writer)
            await world.settled()
            assert (stage == "tunnel") == bool(world.dialer.dials)
            assert not world.observer.denials

    kit.run(main())


@pytest.mark.parametrize("reset", [True, False])
def test_an_upstream_may_leave_at_any_time(kit: Any, reset: bool) -> None:
    """What it has sent arrives; then the client's connection ends in the same way."""

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        await reader.readexactly(1)
        if reset:
            _reset(writer)

    async def main() -> None:
        async with kit.serve(leave) as place, kit.world(port=place.port) as world:
            reader, writer, _ = await world.tunnel("a.test:22")
            assert b"bye" == await reader.readexactly(3)
            writer.write(b"x")
            if reset:
                with pytest.raises(ConnectionResetError):
                    await reader.read(1)
            else:
                assert b"" == await reader.read(1)
            await kit.shut(writer)
            await world.settled()
            assert ("reset" if reset else "") == world.observer.records[0].reason

    kit.run(main())


# ── an observer that fails ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error", [RuntimeError("disk full"), None])
def test_a_denial_that_cannot_be_recorded_is_not_answered(
    kit: Any, error: Exception | None
) -> None:
    """The connection is closed without a byte, nothing is opened, and whoever watches is told."""

    class Forging(RecordingObserver):
        async def denied(self, denial: Any) -> str:
            await super().denied(denial)
            return "x\r\nSet-Cookie: y"

    async def main() -> None:
        observer = RecordingObserver(error=error) if error else Forging()
        async with kit.world("a.test", observer=observer) as world:
            async with asyncio.timeout(30):
                assert b"" == await world.get("http://evil.test/")
            async with asyncio.timeout(30):
                await world.proxy.failed.wait()
            assert isinstance(world.proxy.failure, RuntimeError if error else ValueError)
            reader, writer, _ = await world.tunnel("a.test:443", first=client_hello("b.test"))
            assert b"" == await kit.read_all(reader)
            await kit.shut(writer)
            await world.settled(2)
            assert (2, []) == (len(observer.denials), world.dialer.dials)
            assert [None, None] == [r.event_id for r in observer.records]

    kit.run(main())


@pytest.mark.parametrize("end", ["client", "proxy"])
def test_a_denial_that_is_being_recorded_keeps_its_id(kit: Any, end: str) -> None:
    """Whoever ends the connection meanwhile: the event is under its id in the access record."""
    asked, answers = asyncio.Event(), asyncio.Event()

    class Slow(RecordingObserver):
        async def denied(self, denial: Any) -> str:
            asked.set()
            await answers.wait()
            return await super().denied(denial)

    async def main() -> None:
        observer = Slow()
        async with kit.world("a.test", observer=observer) as world:
            _, writer = await world.open()
            writer.write(
                b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n"
                b"Proxy-Authorization: Bearer " + kit.token.encode() + b"\r\n\r\n"
            )
            await asked.wait()
            if end == "client":
                _reset(writer)
            else:
                world.proxy.end_run("one")
            await asyncio.sleep(0.05)
            assert [] == observer.records
            answers.set()
            await world.settled()
            [record] = observer.records
            assert (Outcome.DENIED, "event-1") == (record.outcome, record.event_id)
            await kit.shut(writer)
        assert world.proxy.failure is None

    kit.run(main())


def test_an_observer_that_hangs_has_failed(kit: Any) -> None:
    """In its time; nothing was answered, and the proxy can end."""

    class Stuck(RecordingObserver):
        async def denied(self, denial: Any) -> str:
            await asyncio.Event().wait()
            raise AssertionError

    async def main() -> None:
        async with kit.world("a.test", observer=Stuck(), observer_seconds=0.1) as world:
            async with asyncio.timeout(30):
                assert b"" == await world.get("http://evil.test/")
                await world.proxy.failed.wait()
            assert isinstance(world.proxy.failure, TimeoutError)

    kit.run(main())


def test_an_observer_that_is_cancelled_has_failed(kit: Any) -> None:
    """A cancellation of its own making is no event."""

    class Cancelled(RecordingObserver):
        async def denied(self, denial: Any) -> str:
            raise asyncio.CancelledError

    async def main() -> None:
        async with kit.world("a.test", observer=Cancelled()) as world:
            assert b"" == await world.get("http://evil.test/")
            async with asyncio.timeout(30):
                await world.proxy.failed.wait()
            await world.settled()
            assert world.observer.records[0].event_id is None

    kit.run(main())


def test_a_record_that_cannot_be_kept_is_told(kit: Any) -> None:
    """Whoever must not go on without records finds the failure."""

    async def main() -> None:
        observer = RecordingObserver(access_error=OSError("disk full"))
        async with kit.world("a.test", observer=observer) as world:
            await world.get("http://evil.test/")
            async with asyncio.timeout(30):
                await world.proxy.failed.wait()
            assert isinstance(world.proxy.failure, OSError)

    kit.run(main())


def test_a_fault_of_a_port_ends_one_connection(kit: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Something that no port may raise closes its connection; the next one is served."""

    async def main() -> None:
        async with kit.serve(_echo) as place, kit.world(port=place.port) as world:
            world.proxy.add_run(kit.run_of("other.test:22", run="two", token="token-two"))
            with caplog.at_level(logging.CRITICAL, "asyncio"):
                # The script has no answer for this name, and says so with an AssertionError.
                _, writer, status = await world.tunnel("other.test:22", token="token-two")
                await kit.shut(writer)
            assert 0 == status
            _, writer, status = await world.tunnel("a.test:22")
            await kit.shut(writer)
            assert 200 == status
            await world.settled(2)
            assert "internal_error" == world.observer.records[0].reason

    kit.run(main())


# ── its end ───────────────────────────────────────────────────────────────────────────────────


def test_leaving_the_block_closes_everything(kit: Any) -> None:
    """Tunnels, half-read heads and waiting hellos: no descriptor is left."""

    async def main() -> None:
        async with kit.serve(_echo) as place:
            async with kit.world(port=place.port) as world:
                _, tunnel, _ = await world.tunnel("a.test:22")
                _, waiting, _ = await world.tunnel("a.test:443")
                _, idle = await world.open()
                await world.settled_to(3)
            assert ["stopped"] * 3 == [r.reason for r in world.observer.records]
            for writer in (tunnel, waiting, idle):
                await kit.shut(writer)

    kit.run(main())


def test_draining_lets_tunnels_end(kit: Any) -> None:
    """No new connection, those without a target end, and a tunnel works until its own end."""

    async def main() -> None:
        async with kit.serve(_echo) as place, kit.world(port=place.port) as world:
            reader, writer, _ = await world.tunnel("a.test:22")
            idle_reader, idle = await world.open()
            await world.settled_to(2)
            draining = asyncio.create_task(world.proxy.drain(60))
            assert b"" == await kit.read_all(idle_reader)
            with pytest.raises(OSError):
                await world.open()
            writer.write(b"still here")
            assert b"still here" == await reader.readexactly(10)
            assert not draining.done()
            await kit.shut(writer)
            assert await draining
            await kit.shut(idle)

    kit.run(main())


def test_draining_has_an_end(kit: Any) -> None:
    """What does not end in time is left to `aclose`, which may come meanwhile."""

    async def main() -> None:
        async with kit.serve(_echo) as place, kit.world(port=place.port) as world:
            reader, writer, _ = await world.tunnel("a.test:22")
            assert not await world.proxy.drain(0.05)
            draining = asyncio.create_task(world.proxy.drain(60))
            await asyncio.sleep(0)
            await world.proxy.aclose()
            assert await draining
            assert b"" == await kit.read_all(reader)
            await kit.shut(writer)

    kit.run(main())


# ── where it listens ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "localhost"])
def test_it_listens_on_loopback_only(kit: Any, host: str) -> None:
    """An address that others could reach is refused, and a name is none."""

    async def main() -> None:
        proxy = EgressProxy(observer=RecordingObserver())
        with pytest.raises((ValueError, OSError)):
            await proxy.start(host)
        await proxy.aclose()

    kit.run(main())


def test_a_socket_beyond_loopback_is_refused(kit: Any) -> None:
    """Also one that was bound by somebody else; it is closed."""

    async def main() -> None:
        own = socket.socket()
        own.bind(("0.0.0.0", 0))
        proxy = EgressProxy(observer=RecordingObserver())
        with pytest.raises(ValueError):
            await proxy.start(sock=own)
        assert -1 == own.fileno()
        await proxy.aclose()

    kit.run(main())


def test_it_listens_on_ipv6_and_on_a_unix_socket(kit: Any) -> None:
    """The other loopback address, and a path that a confined child can be given."""

    async def main() -> None:
        observer = RecordingObserver()
        run = kit.run_of("a.test")
        head = b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"
        async with serve_proxy([run], observer=observer, host="::1") as proxy:
            assert f"http://[::1]:{proxy.address[1]}" == proxy.url
            reader, writer = await asyncio.open_connection(*proxy.address)
            writer.write(head)
            assert (await kit.read_all(reader)).startswith(b"HTTP/1.1 407 ")
            await kit.shut(writer)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "proxy")
            own = socket.socket(socket.AF_UNIX)
            own.bind(path)
            async with serve_proxy([run], observer=observer, sock=own) as proxy:
                assert ("", 0) == proxy.address
                reader, writer = await asyncio.open_unix_connection(path)
                writer.write(head)
                assert (await kit.read_all(reader)).startswith(b"HTTP/1.1 407 ")
                await kit.shut(writer)

    kit.run(main())


def test_the_proxy_ends_while_a_connection_is_not_yet_served(kit: Any) -> None:
    """A client that was let in a moment before the end does not keep the proxy from ending."""

    async def main() -> None:
        observer = RecordingObserver()
        async with serve_proxy([kit.run_of("one", "a.test")], observer=observer) as proxy:
            with socket.create_connection(proxy.address):
                for _ in range(10_000):
                    if proxy.open_connections:
                        break
                    await asyncio.sleep(0)
                async with asyncio.timeout(30):
                    await proxy.aclose()
        assert ["stopped"] == [record.reason for record in observer.records]

    asyncio.run(main())
