"""One request to a configured API: what is refused before it, what is sent, what comes back."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from egress import AddressPolicy, EgressDenied, EgressPolicy, UrlRejected, parse_allowlist
from egress.decision import DenyReason
from egress.errors import ConnectFailed, DeadlineExceeded, RequestRefused, Stopped
from egress.ports import FetchLimits, HopRequest, HopResponse
from egress.request import ApiPolicy, Response, Wires, request_through_policy

LOOPBACK = ApiPolicy(address=AddressPolicy(allowed_hosts=["127.0.0.1"]))


class Wire:
    """A transport that answers with one thing and keeps what it was asked for."""

    def __init__(self, addresses: Sequence[str] = ("93.184.216.34",), status: int = 200) -> None:
        self._addresses = addresses
        self._status = status
        self.sent: list[HopRequest] = []
        self.closed = 0

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        del host, port
        return self._addresses

    async def send(self, request: HopRequest) -> HopResponse:
        await request.addresses()
        self.sent.append(request)
        headers = (("location", "https://other.example/"),)
        return HopResponse(status=self._status, headers=headers, body=_chunks(b'{"a": 1}'))

    async def aclose(self) -> None:
        self.closed += 1

    @property
    def wires(self) -> Wires:
        return Wires(transport=lambda: self, resolver=self)


async def _chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def ask(url: str, wire: Wire, policy: Any = None, **parts: Any) -> Response:
    return asyncio.run(
        request_through_policy(url, policy=policy or ApiPolicy(), wires=wire.wires, **parts)
    )


def test_method_headers_and_body_are_sent_once() -> None:
    """And nothing is shown of them in the repr of a request."""
    wire = Wire()
    response = ask(
        "https://api.example/search?q=x",
        wire,
        method="POST",
        headers={"X-Key": "s3cret"},
        body=b"{}",
    )
    (sent,) = wire.sent

    assert ("POST", (("X-Key", "s3cret"),), b"{}") == (sent.method, sent.headers, sent.body)
    assert "s3cret" not in repr(sent) + repr(response)
    assert {"a": 1} == response.json()
    assert 1 == wire.closed


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_answer(status: int) -> None:
    """Nothing is followed, so no key goes elsewhere."""
    wire = Wire(status=status)

    assert status == ask("https://api.example/", wire).status
    assert 1 == len(wire.sent)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "a"}, {"host": "a"}, {"Content-Length": "1"}, {"Transfer-Encoding": "chunked"}, {"Cookie": "a"},
        {"Accept-Encoding": "br"}, {"Connection": "close"}, {"Proxy-Authorization": "x"}, {"Range": "bytes=0-"},
        {"X": "a\r\nY: b"}, {"X": "a\nb"}, {"X": "ü"}, {"X": ""}, {"X": " a"}, {"X": "a\0"}, {"X Y": "a"}, {"": "a"},
        {"X": "a", "x": "b"}, {"X": 7}, {"X": "a" * 8193},
    ],
)  # fmt: skip
def test_headers_that_could_change_the_request_are_refused(headers: Any) -> None:
    """Before anything is looked up; the value is not in the message."""
    wire = Wire()
    with pytest.raises(RequestRefused) as caught:
        ask("https://api.example/", wire, headers=headers)

    assert [] == wire.sent
    assert "Y: b" not in str(caught.value)


@pytest.mark.parametrize("parts", [{"method": "get"}, {"method": "CONNECT"}, {"method": "A B"}, {"body": "text"}, {"body": b"a" * 1048577}])  # fmt: skip
def test_a_method_or_body_that_cannot_be_sent_is_refused(parts: Any) -> None:
    """A token in capitals; bytes within a bound."""
    with pytest.raises(RequestRefused):
        ask("https://api.example/", Wire(), **parts)


@pytest.mark.parametrize(
    ("url", "policy", "reason"),
    [
        ("https://b.example/", ApiPolicy(origins=frozenset({"https://a.example"})), DenyReason.HOST_NOT_LISTED),
        ("http://a.example/", ApiPolicy(origins=frozenset({"https://a.example"})), DenyReason.HOST_NOT_LISTED),
        ("https://a.example:8443/", ApiPolicy(origins=frozenset({"https://a.example"})), DenyReason.HOST_NOT_LISTED),
        ("https://a.example/", ApiPolicy(origins=frozenset()), DenyReason.HOST_NOT_LISTED),
        ("http://127.0.0.1:8888/", ApiPolicy(), DenyReason.ADDRESS_NOT_GLOBAL),
        ("http://127.0.0.1:8888/", ApiPolicy(origins=frozenset({"http://127.0.0.1:8888"})), DenyReason.ADDRESS_NOT_GLOBAL),
        ("http://169.254.169.254/", ApiPolicy(address=AddressPolicy(allow_private_addresses=True)), DenyReason.METADATA_ADDRESS),
        ("https://a.example/", EgressPolicy(allowlist=parse_allowlist(["b.example"])), DenyReason.HOST_NOT_LISTED),
    ],
)  # fmt: skip
def test_what_the_policy_denies_is_not_sent(url: str, policy: Any, reason: DenyReason) -> None:
    """An origin is scheme, host and port; a literal address does not exempt itself."""
    wire = Wire()
    with pytest.raises(EgressDenied) as caught:
        ask(url, wire, policy)

    assert (reason, []) == (caught.value.violation.reason, wire.sent)


def test_a_name_with_a_private_address_needs_its_host_named() -> None:
    """The exemption is the operator's, by host."""
    private = Wire(addresses=("10.1.2.3",))
    with pytest.raises(EgressDenied):
        ask("http://search.corp/", private)
    assert [] == private.sent

    named = ApiPolicy(address=AddressPolicy(allowed_hosts=["search.corp"]))
    assert 200 == ask("http://search.corp/", private, named).status
    assert 200 == ask("http://127.0.0.1:8888/", Wire(), LOOPBACK).status


def test_a_text_that_is_no_url_is_refused() -> None:
    """By the one parser of this package."""
    with pytest.raises(UrlRejected):
        ask("https://user:pw@api.example/", Wire())


def test_a_signal_ends_a_request() -> None:
    """Set before, nothing is sent; set later, the connection is dropped."""

    async def main() -> None:
        wire, signal = Wire(), asyncio.Event()

        class Slow(Wire):
            async def send(self, request: HopRequest) -> HopResponse:
                signal.set()
                await asyncio.Event().wait()
                raise AssertionError(request)

        slow = Slow()
        with pytest.raises(Stopped):
            await request_through_policy(
                "https://a.example/", policy=ApiPolicy(), wires=slow.wires, signal=signal
            )
        with pytest.raises(Stopped):
            await request_through_policy(
                "https://a.example/", policy=ApiPolicy(), wires=wire.wires, signal=signal
            )
        assert ([], 1) == (wire.sent, slow.closed)

    asyncio.run(main())


@pytest.mark.parametrize("body", [b"", b"{", b"[NaN]", b"\xff", b"[" * 100_000, b"1" * 5000])
def test_a_body_that_is_no_json_says_nothing_of_itself(body: bytes) -> None:
    """One error, whatever it was."""
    with pytest.raises(ValueError, match="the body is not JSON"):
        Response(status=200, headers=(), body=body).json()


def test_a_cut_body_is_no_json() -> None:
    """Also when what is left of it would be."""
    with pytest.raises(ValueError, match="larger"):
        Response(status=200, headers=(), body=b"{}", truncated=True).json()


@asynccontextmanager
async def _server(seen: list[dict[str, Any]]) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen.append(
            {
                "method": request.method,
                "body": await request.read(),
                "path": request.raw_path,
                **headers,
            }
        )
        if request.path == "/moved":
            raise web.HTTPFound("http://127.0.0.1:1/")
        if request.path == "/slow":
            await asyncio.Event().wait()
        return web.json_response({"ok": True})

    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@pytest.mark.loopback
def test_over_a_real_connection() -> None:
    """The whole way: headers win over the transport's own, the body arrives, 302 is not followed."""

    async def main() -> None:
        seen: list[dict[str, Any]] = []
        async with _server(seen) as base:
            headers = {"Accept": "application/json", "Content-Type": "application/json"}
            done = await request_through_policy(
                f"{base}/x?q=a%20b",
                policy=LOOPBACK,
                method="POST",
                headers=headers,
                body=b'{"q":1}',
            )
            moved = await request_through_policy(f"{base}/moved", policy=LOOPBACK)
            with pytest.raises(DeadlineExceeded):
                await request_through_policy(
                    f"{base}/slow", policy=LOOPBACK, limits=FetchLimits(timeout_seconds=0.05)
                )
        posted = seen[0]
        assert ("POST", b'{"q":1}', "/x?q=a%20b") == (
            posted["method"],
            posted["body"],
            posted["path"],
        )
        assert ("application/json", "agent-runtime-pack") == (
            posted["accept"],
            posted["user-agent"],
        )
        assert "cookie" not in posted
        assert ({"ok": True}, 302) == (done.json(), moved.status)
        assert 3 == len(seen)
        with pytest.raises(ConnectFailed):
            await request_through_policy(base, policy=LOOPBACK)

    asyncio.run(main())
