"""The caps of one run: requests, bytes, and fetches at one time."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress import (
    EgressDenied,
    EgressPolicy,
    FetchLimits,
    GuardedClient,
    HopRequest,
    HopResponse,
    RunLimits,
    RunMeter,
    RunUsage,
    UrlRejected,
    parse_allowlist,
)
from egress.errors import RunCapReached, TooManyAtOnce
from egress.ports import UNLIMITED, Count
from egress.testing import RecordingTransport, ScriptedAnswer, ScriptedResolver

_T = TypeVar("_T")
_DNS = {"a.test": ["93.184.215.14"]}
_POLICY = EgressPolicy(allowlist=parse_allowlist(["a.test"]))
_URL = "http://a.test/"


def _run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    return asyncio.run(coroutine)


def _client(
    *script: ScriptedAnswer, meter: RunMeter, transport: RecordingTransport | None = None
) -> GuardedClient:
    return GuardedClient(
        _POLICY,
        resolver=ScriptedResolver(_DNS),
        transport=transport or RecordingTransport(script),
        meter=meter,
    )


def test_requests_are_counted_with_every_redirect() -> None:
    """The request after the last one is not sent; the error says which cap it was."""

    async def main() -> None:
        meter = RunMeter(RunLimits(max_requests=3))
        script = [ScriptedAnswer(), ScriptedAnswer.redirect("/b"), ScriptedAnswer.redirect("/c")]
        transport = RecordingTransport(script)
        async with _client(meter=meter, transport=transport) as client:
            await client.fetch(_URL)
            with pytest.raises(RunCapReached) as caught:
                await client.fetch(_URL)
            assert (2, "requests", False) == (
                caught.value.hop,
                caught.value.detail,
                caught.value.retryable,
            )
            with pytest.raises(RunCapReached):
                await client.fetch(_URL)
        assert (3, 3, 0) == (len(transport.requests), meter.requests, meter.running)
        transport.assert_finished()

    _run(main())


def test_a_refusal_of_the_policy_comes_before_the_caps() -> None:
    """A spent run still reports what it must not reach, and a denial costs no request."""

    async def main() -> None:
        meter = RunMeter(RunLimits(max_requests=0))
        async with _client(meter=meter) as client:
            with pytest.raises(EgressDenied):
                await client.fetch("http://b.test/")
            with pytest.raises(UrlRejected):
                await client.fetch("b.test")
            with pytest.raises(RunCapReached):
                await client.fetch(_URL)
        assert 0 == meter.requests

    _run(main())


@pytest.mark.parametrize("encoded", [False, True])
def test_a_body_is_cut_where_the_bytes_of_the_run_end(*, encoded: bool) -> None:
    """What was received is kept and said to be cut; then nothing more is asked for."""

    async def main() -> None:
        text = bytes(range(256)) * 8
        body = gzip.compress(text) if encoded else text
        headers = (("content-encoding", "gzip"),) if encoded else ()
        meter = RunMeter(RunLimits(max_bytes=len(body) + 40))
        answer = ScriptedAnswer(headers=headers, chunks=(body[:30], body[30:]))
        async with _client(answer, answer, meter=meter) as client:
            whole = await client.fetch(_URL)
            cut = await client.fetch(_URL)
            with pytest.raises(RunCapReached) as caught:
                await client.fetch(_URL)
        assert (text, False) == (whole.body, whole.truncated)
        assert (True, 40) == (cut.truncated, cut.raw_bytes)
        assert text.startswith(cut.body)
        assert ("bytes", len(body) + 40) == (caught.value.detail, meter.raw_bytes)

    _run(main())


class _Gate:
    """A transport whose answers wait."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def send(self, request: HopRequest) -> HopResponse:
        del request
        await self.open.wait()
        return HopResponse(status=200, headers=(), body=_empty())

    async def aclose(self) -> None:
        return


async def _empty() -> Any:
    nothing: tuple[bytes, ...] = ()
    for chunk in nothing:
        yield chunk


def test_one_fetch_too_many_is_refused_and_not_queued() -> None:
    """Until another one ends, however it ends: well, cancelled or out of time."""

    async def main() -> None:
        meter, gate = RunMeter(RunLimits(max_concurrent=2)), _Gate()
        client = GuardedClient(
            _POLICY, resolver=ScriptedResolver(_DNS), transport=gate, meter=meter
        )
        held = [asyncio.create_task(client.fetch(_URL)) for _ in range(2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert 2 == meter.running
        with pytest.raises(TooManyAtOnce) as caught:
            await client.fetch(_URL)
        assert caught.value.retryable
        held[0].cancel()
        await asyncio.gather(*held[:1], return_exceptions=True)
        assert 1 == meter.running
        brief = FetchLimits(timeout_seconds=0.01)
        assert isinstance(
            (await asyncio.gather(client.fetch(_URL, limits=brief), return_exceptions=True))[0],
            Exception,
        )
        gate.open.set()
        assert 200 == (await held[1]).status
        assert (0, 3) == (meter.running, meter.requests)

    _run(main())


def test_a_fetch_does_not_stand_in_its_own_way() -> None:
    """Its redirects belong to the one fetch that is under way."""

    async def main() -> None:
        meter = RunMeter(RunLimits(max_concurrent=1))
        script = [ScriptedAnswer.redirect("/b"), ScriptedAnswer()]
        async with _client(*script, meter=meter) as client:
            assert 200 == (await client.fetch(_URL)).status
        assert 0 == meter.running

    _run(main())


def test_a_meter_outlives_its_client() -> None:
    """A run whose connections were closed meanwhile does not start again from nothing."""

    async def main() -> None:
        meter = RunMeter(RunLimits(max_requests=1))
        async with _client(ScriptedAnswer(), meter=meter) as client:
            await client.fetch(_URL)
        async with _client(meter=meter) as client:
            with pytest.raises(RunCapReached):
                await client.fetch(_URL)

    _run(main())


def test_the_default_caps_are_finite_and_unlimited_is_written_out() -> None:
    """Nobody has no cap by saying nothing."""
    usual = RunLimits()
    free = RunMeter(RunLimits(max_requests=UNLIMITED, max_bytes="unlimited", max_concurrent="unlimited"))  # fmt: skip

    assert all(
        isinstance(cap, int) for cap in (usual.max_requests, usual.max_bytes, usual.max_concurrent)
    )
    assert RunMeter().limits == usual
    for number in range(100):
        free.begin(object(), host="a.test", hop=number)
    assert (10**12, 100) == (free.take(10**12), free.running)


@pytest.mark.parametrize("name", ["max_requests", "max_bytes", "max_concurrent"])
@pytest.mark.parametrize("value", [-1, None, True, 1.5, "many", float("inf"), b"unlimited"])
def test_a_cap_is_a_number_or_the_word(name: str, value: Any) -> None:
    """None is not unlimited, and neither is infinity."""
    with pytest.raises(ValueError, match="unlimited"):
        RunLimits(**{name: value})


@given(
    st.one_of(st.integers(0, 50), st.just(UNLIMITED)),
    st.lists(st.integers(0, 20), max_size=20),
)
def test_bytes_never_pass_their_cap(cap: Any, chunks: list[int]) -> None:
    """In whatever pieces they come, what is granted adds up to the cap or to all of them."""
    limit: Count = cap
    meter = RunMeter(RunLimits(max_bytes=limit))

    granted = sum(meter.take(chunk) for chunk in chunks)

    expected = sum(chunks) if isinstance(limit, str) else min(limit, sum(chunks))
    assert expected == granted == meter.raw_bytes


@given(st.integers(0, 5), st.integers(0, 50), st.integers(0, 5), st.integers(0, 50))
def test_a_meter_goes_on_from_what_was_used(
    requests: int, size: int, more: int, further: int
) -> None:
    """Counted in two parts, with the counts stored between them, it is as counted in one."""
    limits = RunLimits(max_requests=6, max_bytes=60)

    def count(meter: RunMeter, times: int, received: int) -> RunMeter:
        for _ in range(times):
            try:
                meter.begin("fetch", host="a.test", hop=0)
            except RunCapReached:
                break
        meter.take(received)
        return meter

    whole = count(count(RunMeter(limits), requests, size), more, further)
    first = count(RunMeter(limits), requests, size)
    stored = RunUsage.from_json(first.used.to_json())
    assert whole.used == count(RunMeter(limits, used=stored), more, further).used


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {},
        {"requests": 1},
        {"requests": 1, "raw_bytes": -1},
        {"requests": True, "raw_bytes": 0},
        {"requests": 1.0, "raw_bytes": 0},
        {"requests": 1, "raw_bytes": 0, "more": 0},
    ],
)
def test_what_was_not_counted_is_not_gone_on_from(stored: object) -> None:
    """A count that is less than nothing would give a run more than its caps."""
    with pytest.raises(ValueError, match="used"):
        RunUsage.from_json(stored)


def test_who_has_used_more_than_the_caps_gets_nothing_back() -> None:
    """Caps that were lowered meanwhile grant no byte, and take none of the counted ones away."""
    meter = RunMeter(RunLimits(max_bytes=5), used=RunUsage(requests=1, raw_bytes=9))

    assert 0 == meter.take(3)
    assert 9 == meter.raw_bytes
    with pytest.raises(RunCapReached):
        meter.begin("fetch", host="a.test", hop=0)
