"""The client over fakes: order of the checks, one violation, vetted connects, limits, errors."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egress import (
    AddressPolicy,
    EgressDenied,
    EgressError,
    EgressPolicy,
    FetchError,
    FetchLimits,
    GuardedClient,
    Target,
    UrlRejected,
    check_listed,
    parse_allowlist,
    parse_target,
)
from egress.client import Fetched
from egress.decision import Deny
from egress.errors import (
    BodyIncomplete,
    ClientClosed,
    ConnectFailed,
    DeadlineExceeded,
    DnsFailed,
    EncodingRefused,
    TooManyRedirects,
)
from egress.ports import HopRequest, HopResponse
from egress.testing import (
    RecordingFetch,
    RecordingTransport,
    ScriptedAnswer,
    ScriptedResolver,
    answers,
    assert_no_unlisted_connect,
    policies,
    redirect_graphs,
    targets,
)

_T = TypeVar("_T")
_GOOD = "93.184.215.14"


def _run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    return asyncio.run(coroutine)


def _policy(*entries: str, address: AddressPolicy | None = None) -> EgressPolicy:
    return EgressPolicy(allowlist=parse_allowlist(entries), address=address or AddressPolicy())


async def _fetch(
    policy: EgressPolicy,
    url: str,
    resolver: ScriptedResolver,
    transport: RecordingTransport,
    limits: FetchLimits | None = None,
) -> Fetched:
    async with GuardedClient(policy, resolver=resolver, transport=transport) as client:
        return await client.fetch(url, limits=limits)


async def _fetch_listed(transport: RecordingTransport) -> Fetched:
    resolver = ScriptedResolver({"a.test": [_GOOD]})
    return await _fetch(_policy("a.test"), "http://a.test/", resolver, transport)


def test_a_listed_page_is_fetched() -> None:
    """Status, lower-case headers, body and where it came from."""
    resolver = ScriptedResolver({"example.org": [_GOOD]})
    answer = ScriptedAnswer(
        status=404, headers=(("x-a", "1"), ("x-a", "2")), chunks=(b"not ", b"here")
    )
    transport = RecordingTransport([answer])

    fetched = _run(_fetch(_policy("example.org"), "https://example.org/x#y", resolver, transport))

    assert (
        fetched.status,
        fetched.body,
        fetched.truncated,
        fetched.raw_bytes,
    ) == (404, b"not here", False, 8)
    assert fetched.header("x-a") == "1"
    assert fetched.header("x-b") is None
    assert fetched.final.url == "https://example.org/x"
    assert fetched.hops == ()
    resolver.assert_used()
    transport.assert_finished()
    assert transport.closed == 1


def test_a_denied_name_is_not_looked_up() -> None:
    """A lookup is a request: it comes after the list, never before."""
    resolver, transport = ScriptedResolver(), RecordingTransport([])

    with pytest.raises(EgressDenied) as caught:
        _run(_fetch(_policy("example.org"), "https://secret.evil.test/", resolver, transport))

    assert resolver.lookups == []
    assert transport.requests == []
    assert caught.value.violation.rule == "R4"
    assert caught.value.violation.to_json()["kind"] == "network_egress_blocked"


def test_the_violation_keeps_the_chain_and_no_path() -> None:
    """Hop index, the hops before it, and digests in the place of paths and queries."""
    resolver = ScriptedResolver({"example.org": [_GOOD]})
    transport = RecordingTransport(
        [
            ScriptedAnswer.redirect("/b?token=hunter2"),
            ScriptedAnswer.redirect("https://evil.test/c"),
        ]
    )

    with pytest.raises(EgressDenied) as caught:
        _run(_fetch(_policy("example.org"), "https://example.org/a", resolver, transport))

    violation = caught.value.violation
    told = str(violation.to_json())
    assert (violation.hop, len(violation.hops), violation.target.host) == (2, 2, "evil.test")
    assert violation.nearest_entry == "evil.test"
    assert violation.target.path_sha256.startswith("sha256:")
    assert "hunter2" not in told + str(caught.value) + repr(caught.value)
    transport.assert_finished()


def test_an_address_denial_reports_the_addresses() -> None:
    """The event knows what the name resolved to; nothing was requested."""
    resolver = ScriptedResolver({"example.org": [_GOOD, "10.0.0.5"]})
    transport = RecordingTransport([])

    with pytest.raises(EgressDenied) as caught:
        _run(_fetch(_policy("example.org"), "http://example.org/", resolver, transport))

    violation = caught.value.violation
    assert (
        violation.rule,
        violation.addresses,
        violation.block,
    ) == ("R8", ("10.0.0.5",), "private use")
    assert violation.nearest_entry == "10.0.0.5"
    assert transport.connects == []


def test_every_hop_that_connects_looks_up_once() -> None:
    """R11 without keep-alive: three hops, three lookups, and the last one is vetted anew."""
    resolver = ScriptedResolver({"a.test": [_GOOD]}, later={"a.test": ["10.0.0.5"]})
    transport = RecordingTransport([ScriptedAnswer.redirect("/b"), ScriptedAnswer()])

    with pytest.raises(EgressDenied) as caught:
        _run(_fetch(_policy("a.test"), "http://a.test/", resolver, transport))

    assert resolver.lookups == ["a.test", "a.test"]
    assert caught.value.violation.hop == 1
    assert len(transport.requests) == 1
    assert_no_unlisted_connect(transport, {_GOOD})


def test_a_live_connection_ignores_a_changed_answer() -> None:
    """With keep-alive the vetted peer serves the second hop, whatever the name says now."""
    resolver = ScriptedResolver({"a.test": [_GOOD]}, later={"a.test": ["10.0.0.5"]})
    transport = RecordingTransport(
        [ScriptedAnswer.redirect("/b"), ScriptedAnswer()], keep_alive=True
    )

    fetched = _run(_fetch(_policy("a.test"), "http://a.test/", resolver, transport))

    assert fetched.status == 200
    assert resolver.lookups == ["a.test"]
    assert_no_unlisted_connect(transport, {_GOOD})


def test_redirects_are_capped_and_recorded() -> None:
    """`hops` are the answered redirects; one more than allowed is an error."""
    script = [ScriptedAnswer.redirect(f"/{number}") for number in range(3)]
    policy, dns = _policy("a.test"), {"a.test": [_GOOD]}
    limits = FetchLimits(max_redirects=3)

    fetched = _run(
        _fetch(
            policy,
            "http://a.test/",
            ScriptedResolver(dns),
            RecordingTransport([*script, ScriptedAnswer()]),
            limits,
        )
    )
    assert [hop.status for hop in fetched.hops] == [302, 302, 302]
    assert fetched.final.path_query == "/2"
    with pytest.raises(TooManyRedirects):
        _run(
            _fetch(
                policy,
                "http://a.test/",
                ScriptedResolver(dns),
                RecordingTransport([*script, ScriptedAnswer.redirect("/x")]),
                limits,
            )
        )


def test_a_downgrade_is_recorded_and_https_only_refuses_it() -> None:
    """R12: https to http needs the target listed, and is told."""
    script = [ScriptedAnswer.redirect("http://a.test/"), ScriptedAnswer()]
    dns = {"a.test": [_GOOD]}

    fetched = _run(
        _fetch(
            _policy("a.test"), "https://a.test/", ScriptedResolver(dns), RecordingTransport(script)
        )
    )
    assert fetched.downgraded
    strict = _policy("a.test", address=AddressPolicy(https_only=True))
    with pytest.raises(EgressDenied) as caught:
        _run(_fetch(strict, "https://a.test/", ScriptedResolver(dns), RecordingTransport(script)))
    assert (caught.value.violation.rule, caught.value.violation.hop) == ("R12", 1)


def test_a_redirect_to_no_url_is_a_rejection_without_violation() -> None:
    """R1 at a hop: invalid, not denied; the response is given back."""
    transport = RecordingTransport([ScriptedAnswer.redirect("file:///etc/passwd")])

    with pytest.raises(UrlRejected) as caught:
        _run(_fetch_listed(transport))

    assert caught.value.hop == 1
    transport.assert_finished()


@pytest.mark.parametrize(
    ("failure", "temporary"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), False),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
        (TimeoutError(), True),
        (OSError("resolver down"), False),
    ],
)
def test_a_failed_lookup_is_told_apart(failure: OSError, *, temporary: bool) -> None:
    """DNS errors are `DnsFailed`; only passing ones are worth another try."""
    resolver = ScriptedResolver(failures={"a.test": failure})

    with pytest.raises(DnsFailed) as caught:
        _run(_fetch(_policy("a.test"), "http://a.test/", resolver, RecordingTransport([])))

    assert temporary is caught.value.retryable
    assert failure is caught.value.__cause__


def test_no_answer_is_an_error_and_no_violation() -> None:
    """R11: an empty answer is not a denial, and never a connect."""
    transport = RecordingTransport([])

    with pytest.raises(DnsFailed):
        _run(
            _fetch(_policy("a.test"), "http://a.test/", ScriptedResolver({"a.test": []}), transport)
        )
    assert transport.connects == []


class _Slow:
    """A resolver that takes its time."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        await asyncio.sleep(60)
        return [_GOOD]


def test_the_deadline_covers_the_lookup() -> None:
    """A slow resolver ends the fetch, retryable, and closes nothing it does not own."""

    async def main() -> None:
        transport = RecordingTransport([])
        limits = FetchLimits(timeout_seconds=0.05)
        async with GuardedClient(
            _policy("a.test"), resolver=_Slow(), transport=transport, limits=limits
        ) as client:
            with pytest.raises(DeadlineExceeded) as caught:
                await client.fetch("http://a.test/")
            assert caught.value.retryable
        assert transport.connects == []

    _run(main())


def test_cancelling_passes_through_and_gives_the_response_back() -> None:
    """A cancelled read is a `CancelledError`, not a fetch error."""

    class Endless:
        def __aiter__(self) -> Endless:
            return self

        async def __anext__(self) -> bytes:
            await asyncio.sleep(0)
            return b""

    closed: list[bool] = []

    class Transport:
        async def send(self, request: HopRequest) -> HopResponse:
            async def close() -> None:
                closed.append(True)

            return HopResponse(status=200, headers=(), body=Endless(), close=close)

        async def aclose(self) -> None: ...

    async def main() -> None:
        async with GuardedClient(_policy("8.8.8.8"), transport=Transport()) as client:
            task = asyncio.create_task(client.fetch("http://8.8.8.8/"))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    _run(main())
    assert closed == [True]


@pytest.mark.parametrize(
    "error",
    [BodyIncomplete(host="a.test"), OSError("boom"), TimeoutError(), ConnectionResetError()],
    ids=lambda error: type(error).__name__,
)
def test_a_broken_body_is_an_error_and_is_given_back(error: Exception) -> None:
    """A body cut by its connection never passes for a page, and its `TimeoutError` for the deadline."""
    transport = RecordingTransport([ScriptedAnswer(chunks=(b"half",), body_error=error)])

    with pytest.raises(BodyIncomplete):
        _run(_fetch_listed(transport))
    transport.assert_finished()


@pytest.mark.parametrize("error", [OSError("boom"), TimeoutError(), ConnectionResetError()])
def test_an_os_error_of_a_port_is_a_fetch_error(error: OSError) -> None:
    """Nothing from below leaves `fetch` untranslated, not even `TimeoutError`."""
    transport = RecordingTransport([ScriptedAnswer(error=error)])

    with pytest.raises(ConnectFailed):
        _run(_fetch_listed(transport))


def test_bodies_are_decoded_and_capped() -> None:
    """Gzip by our own counted decoding; a cap cuts and says so; other codings are refused."""
    policy, dns = _policy("a.test"), {"a.test": [_GOOD]}
    encoded = gzip.compress(b"x" * 5_000_000)
    answer = ScriptedAnswer(headers=(("content-encoding", "gzip"),), chunks=(encoded,))

    def run(script: ScriptedAnswer, limits: FetchLimits | None = None) -> Fetched:
        transport = RecordingTransport([script])
        return _run(_fetch(policy, "http://a.test/", ScriptedResolver(dns), transport, limits))

    whole = run(answer)
    assert (5_000_000, len(encoded), False) == (len(whole.body), whole.raw_bytes, whole.truncated)
    cut = run(answer, FetchLimits(max_decoded_bytes=1_000))
    assert (cut.body, cut.truncated) == (b"x" * 1_000, True)
    with pytest.raises(EncodingRefused):
        run(ScriptedAnswer(headers=(("content-encoding", "br"),), chunks=(b"x",)))


def test_headers_are_always_encodable() -> None:
    """Bytes that are no UTF-8 do not become lone surrogates in a result."""
    transport = RecordingTransport([ScriptedAnswer(headers=(("x-a", "caf\udce9 \u00fc"),))])

    fetched = _run(_fetch_listed(transport))

    assert fetched.header("x-a") == "caf\ufffd \u00fc"


def test_a_closed_client_fetches_nothing() -> None:
    """And closing twice is closing once."""

    async def main() -> None:
        transport = RecordingTransport([])
        client = GuardedClient(_policy("a.test"), resolver=ScriptedResolver(), transport=transport)
        await client.aclose()
        await client.aclose()
        with pytest.raises(ClientClosed):
            await client.fetch("http://a.test/")

    _run(main())


@pytest.mark.parametrize(
    "answer", [None, 5, True, "93.184.215.14", b"93.184.215.14", {"93.184.215.14"}, iter(())]
)
def test_an_answer_that_is_no_sequence_is_a_failed_lookup(answer: Any) -> None:
    """A host's resolver that answers something else ends the fetch, and nothing is dialled."""

    class Odd:
        async def resolve(self, host: str, port: int) -> Sequence[str]:
            del host, port
            value: Sequence[str] = answer
            return value

    transport = RecordingTransport([ScriptedAnswer()])

    async def main() -> None:
        async with GuardedClient(_policy("a.test"), resolver=Odd(), transport=transport) as client:
            with pytest.raises(DnsFailed):
                await client.fetch("http://a.test/")

    _run(main())
    assert transport.connects == []


def test_a_host_fetch_replaces_lookup_and_transport() -> None:
    """`fetch=`: list and literals are checked here at every hop, names are not looked up."""
    ours = RecordingFetch([ScriptedAnswer.redirect("http://evil.test/"), ScriptedAnswer()])

    async def main() -> None:
        async with GuardedClient(_policy("a.test", "0.0.0.0/0"), fetch=ours) as client:
            with pytest.raises(EgressDenied) as caught:
                await client.fetch("http://a.test/")
            assert caught.value.violation.hop == 1
            with pytest.raises(EgressDenied):
                await client.fetch("http://10.0.0.1/")
            fetched = await client.fetch("http://a.test/x")
            assert fetched.status == 200

    _run(main())
    assert [target.url for target in ours.requests] == ["http://a.test/", "http://a.test/x"]
    with pytest.raises(ValueError, match="fetch"):
        GuardedClient(_policy("a.test"), fetch=ours, resolver=ScriptedResolver())


async def _one(chunk: Any) -> AsyncIterator[Any]:
    yield chunk


async def _broken_body() -> AsyncIterator[bytes]:
    yield b"x"
    raise KeyError("x")


def _answered(*, status: Any = 200, headers: Any = (), body: Any) -> HopResponse:
    return HopResponse(status=status, headers=headers, body=body)


_ODD_ANSWERS: list[tuple[Any, str]] = [
    (KeyError("secret"), "KeyError"),
    (asyncio.CancelledError(), "CancelledError"),
    ("nope", "str"),
    (None, "NoneType"),
    (_answered(status=True, body=_one(b"")), "HopResponse"),
    (_answered(headers=(("a", 1),), body=_one(b"")), "HopResponse"),
    (_answered(headers=[], body=_one(b"")), "HopResponse"),
    (_answered(body=b"x"), "HopResponse"),
    (_answered(body=_one("text")), "str"),
    (_answered(body=_broken_body()), "KeyError"),
]


@pytest.mark.parametrize(("step", "told"), _ODD_ANSWERS)
def test_what_a_host_fetch_breaks_is_a_failed_fetch(step: Any, told: str) -> None:
    """The type is kept for the operator, the words of the error are not."""

    async def ours(target: Target, /) -> HopResponse:
        del target
        if isinstance(step, BaseException):
            raise step
        answer: HopResponse = step
        return answer

    async def main() -> None:
        async with GuardedClient(_policy("a.test"), fetch=ours) as client:
            with pytest.raises(FetchError) as caught:
                await client.fetch("http://a.test/")
        assert told in caught.value.detail
        assert "secret" not in str(caught.value)
        assert not caught.value.retryable

    _run(main())


@pytest.mark.parametrize("where", ["head", "body"])
def test_a_failure_of_a_host_fetch_is_told_with_its_hop(where: str) -> None:
    """A fetch knows one target, and not which hop of which read that is."""
    failed = FetchError(host="a.test", hop=0, detail="its own")

    async def broken() -> AsyncIterator[bytes]:
        yield b""
        raise failed

    async def ours(target: Target, /) -> HopResponse:
        if target.path_query == "/":
            return _answered(status=302, headers=(("location", "/next"),), body=_one(b""))
        if where == "head":
            raise failed
        return _answered(body=broken())

    async def main() -> None:
        async with GuardedClient(_policy("a.test"), fetch=ours) as client:
            with pytest.raises(FetchError) as caught:
                await client.fetch("http://a.test/")
        assert (1, "its own") == (caught.value.hop, caught.value.detail)

    _run(main())


def test_a_cancelled_fetch_of_the_host_stays_cancelled() -> None:
    """Only a cancellation that nobody asked for is a failure."""

    async def hang(target: Target, /) -> HopResponse:
        del target
        await asyncio.sleep(60)
        raise AssertionError

    async def main() -> None:
        async with GuardedClient(_policy("a.test"), fetch=hang) as client:
            task = asyncio.ensure_future(client.fetch("http://a.test/"))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    _run(main())


def test_a_body_that_never_waits_ends_at_the_deadline() -> None:
    """Empty chunks for ever neither hold the loop nor escape the deadline."""

    async def empty() -> AsyncIterator[bytes]:
        while True:
            yield b""

    async def ours(target: Target, /) -> HopResponse:
        del target
        return HopResponse(status=200, headers=(), body=empty())

    async def main() -> None:
        limits = FetchLimits(timeout_seconds=0.05)
        async with GuardedClient(_policy("a.test"), limits=limits, fetch=ours) as client:
            with pytest.raises(DeadlineExceeded):
                await client.fetch("http://a.test/")

    _run(main())


def test_a_proxy_denial_keeps_its_event_id() -> None:
    """The event exists already: the id says so, and no second one is to be made."""
    target = parse_target("http://a.test/")
    deny = check_listed(_policy(), target)
    assert isinstance(deny, Deny)
    from egress.violation import violation_of

    error = EgressDenied(violation_of(deny, target), event_id="evt-1")
    ours = RecordingFetch([ScriptedAnswer(error=error)])

    async def main() -> None:
        async with GuardedClient(_policy("a.test"), fetch=ours) as client:
            with pytest.raises(EgressDenied) as caught:
                await client.fetch(target)
            assert caught.value.event_id == "evt-1"

    _run(main())


@pytest.mark.parametrize(
    "changes",
    [
        {"timeout_seconds": 0},
        {"timeout_seconds": True},
        {"timeout_seconds": "5"},
        {"timeout_seconds": None},
        {"max_redirects": True},
        {"max_redirects": 2.5},
        {"max_redirects": "5"},
        {"max_informational": False},
        {"max_informational": 1.0},
        {"max_raw_bytes": True},
        {"max_raw_bytes": 2.5},
        {"max_decoded_bytes": 1e6},
        {"max_header_bytes": None},
        {"timeout_seconds": float("inf")},
        {"timeout_seconds": float("nan")},
        {"max_raw_bytes": 0},
        {"max_decoded_bytes": -1},
        {"max_header_bytes": 0},
        {"max_redirects": -1},
        {"max_informational": -1},
    ],
)
def test_no_limit_can_be_switched_off(changes: dict[str, Any]) -> None:
    """Unlimited does not exist for a fetch."""
    with pytest.raises(ValueError, match="fetch"):
        FetchLimits(**changes)


class _Changing:
    """A resolver whose answers change with every lookup."""

    def __init__(self, rounds: list[list[str]]) -> None:
        self._rounds = rounds
        self.lookups: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.lookups.append(host)
        return self._rounds[(len(self.lookups) - 1) % len(self._rounds)]


@settings(max_examples=150)
@given(
    policy=policies(),
    url=targets().map(lambda target: target.url),
    graph=redirect_graphs(),
    rounds=st.lists(answers(), min_size=1, max_size=4),
    keep_alive=st.booleans(),
    place=st.integers(0, 3),
)
def test_whatever_the_world_answers(
    policy: EgressPolicy,
    url: str,
    graph: list[str],
    rounds: list[list[str]],
    *,
    keep_alive: bool,
    place: int,
) -> None:
    """Vetted connects, no lookup and no request of what the list refuses, one event, one policy."""
    resolver = _Changing(rounds)
    transport = RecordingTransport(
        [*map(ScriptedAnswer.redirect, graph), ScriptedAnswer()],
        choose=lambda vetted: vetted[place % len(vetted)],
        keep_alive=keep_alive,
    )

    async def main() -> EgressError | None:
        try:
            async with GuardedClient(policy, resolver=resolver, transport=transport) as client:
                await client.fetch(url)
        except (UrlRejected, EgressDenied, FetchError) as error:
            return error
        return None

    error = _run(main())

    assert_no_unlisted_connect(transport)
    assert transport.open_responses == 0
    for target in transport.requests:
        assert not isinstance(check_listed(policy, target), Deny)
    listed = {target.host for target in transport.requests}
    if isinstance(error, EgressDenied):
        assert error.violation.hop == len(transport.requests)
        if error.violation.rule in {"R4", "R5", "R6", "R7", "R12"}:
            assert set(resolver.lookups) <= listed
    named = [connect for connect in transport.connects if str(connect.address) != connect.host]
    if not keep_alive:
        assert len(named) <= len(resolver.lookups) <= len(named) + 1
