"""One request to a model that searches: exactly that endpoint, no redirect, no key and no query in errors."""

import asyncio
import json
import traceback
from typing import Any

import pytest

from egress.errors import ConnectFailed
from egress.policy import AddressPolicy
from web_tools.errors import InvalidSetup
from web_tools.native.client import NativeEndpoint, ask_natively
from web_tools.native.registry import PROTOCOLS
from web_tools.native.values import NativeAsk, NativeFailed, NativeFault, NativeTurn
from web_tools.testing_api import ApiAnswer, ScriptedApi

KEY = "k3y-SENTINEL/+="
QUERY = "very private words"
ASK = NativeAsk(model="m", query=QUERY, instructions="Search.", max_output_tokens=100)
ANSWER = {"choices": [{"message": {"content": "Hm."}, "finish_reason": "stop"}]}


def asked(
    *answers: ApiAnswer,
    ask: NativeAsk = ASK,
    protocol: str = "perplexity",
    signal: asyncio.Event | None = None,
    **endpoint: Any,
) -> tuple[NativeTurn | NativeFailed, ScriptedApi]:
    api = ScriptedApi(answers)
    given = {"base_url": "https://api.vendor.example", "key": KEY, "wires": api.wires, **endpoint}
    try:
        turn: NativeTurn | NativeFailed = asyncio.run(
            ask_natively(
                PROTOCOLS[protocol], ask, NativeEndpoint(**given), timeout_seconds=30, signal=signal
            )
        )
    except NativeFailed as failed:
        turn = failed
    return turn, api


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_one_request_goes_to_the_endpoint_with_the_key_in_its_header(protocol: str) -> None:
    """Below the base, as JSON, without cookies; the key stands in no address."""
    _, api = asked(ApiAnswer(status=500), protocol=protocol, base_url="https://a.example/base/")

    (sent,) = api.sent
    assert sent.url.startswith("https://a.example/base/v1") or sent.url.startswith(
        ("https://a.example/base/api/v1", "https://a.example/base/chat")
    )
    assert "POST" == sent.method
    assert KEY in "".join(sent.headers.values())
    assert "SENTINEL" not in sent.url
    assert "cookie" not in sent.headers
    assert QUERY in json.dumps(sent.json)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (ApiAnswer(status=401, body={"error": KEY}), NativeFault.UNAUTHORIZED),
        (ApiAnswer(status=429), NativeFault.RATE_LIMITED),
        (ApiAnswer(status=400, body=QUERY), NativeFault.NOT_SUPPORTED),
        (ApiAnswer(status=503), NativeFault.UNAVAILABLE),
        (ApiAnswer(body="<html>busy</html>"), NativeFault.BAD_ANSWER),
        (ApiAnswer(body="null"), NativeFault.BAD_ANSWER),
        (
            ApiAnswer(status=302, headers=(("location", "https://b.example/"),)),
            NativeFault.UNAVAILABLE,
        ),
        (ApiAnswer(body={**ANSWER, "echo": KEY}), NativeFault.BAD_ANSWER),
        (
            ApiAnswer(error=ConnectFailed(host="h", hop=0, detail=f"{KEY} {QUERY}")),
            NativeFault.UNAVAILABLE,
        ),
    ],
)
def test_what_is_no_answer_fails_by_its_word_and_repeats_nothing(
    answer: ApiAnswer, fault: NativeFault
) -> None:
    """One request each: a redirect is not followed, and nothing is asked twice."""
    failed, api = asked(answer)

    assert isinstance(failed, NativeFailed)
    assert fault == failed.fault
    assert 1 == len(api.sent)
    told = "".join(traceback.format_exception(failed))
    assert "SENTINEL" not in told
    assert QUERY not in told


def test_an_answer_is_a_turn() -> None:
    """As the codec reads it."""
    turn, _ = asked(ApiAnswer(body=ANSWER))

    assert isinstance(turn, NativeTurn)
    assert "Hm." == turn.text


def test_what_goes_back_may_hold_halves_of_pairs() -> None:
    """A provider's own words go back unchanged, whatever they are."""
    block = {"type": "text", "text": "\ud83d", "encrypted": "x"}
    ask = NativeAsk(model="m", query="q", instructions="i", max_output_tokens=9, resume=([block],))
    _, api = asked(ApiAnswer(status=500), ask=ask, protocol="anthropic")

    assert block == api.sent[0].json["messages"][-1]["content"][0]


def test_a_private_endpoint_needs_its_host_in_allowed_hosts() -> None:
    """The operator's policy is for this endpoint too."""
    failed, api = asked(base_url="https://10.0.0.5")

    assert isinstance(failed, NativeFailed)
    assert (NativeFault.NOT_REACHABLE, 0) == (failed.fault, len(api.sent))


def test_a_signal_stops_it() -> None:
    """Nothing is sent when nobody waits."""

    async def main() -> None:
        signal = asyncio.Event()
        signal.set()
        api = ScriptedApi(())
        endpoint = NativeEndpoint(base_url="https://a.example", wires=api.wires)
        with pytest.raises(NativeFailed) as failed:
            await ask_natively(
                PROTOCOLS["gemini"], ASK, endpoint, timeout_seconds=30, signal=signal
            )
        assert NativeFault.DEADLINE == failed.value.fault
        assert [] == api.sent

    asyncio.run(main())


@pytest.mark.parametrize(
    "base", ["http://api.vendor.example", "ftp://a.example", "x", "https://a.example/?k=1",
             "https://a.example/#f", "https://u:p@a.example"]
)  # fmt: skip
def test_a_base_that_would_tell_the_key_is_refused(base: str) -> None:
    """Without TLS, or with a query that stands in logs."""
    with pytest.raises(InvalidSetup) as refused:
        NativeEndpoint(base_url=base, key=KEY)

    assert "base_url" == refused.value.field


def test_a_server_of_ones_own_may_go_without_tls() -> None:
    """Where the operator names its host."""
    own = AddressPolicy(allowed_hosts=frozenset({"127.0.0.1"}))

    assert NativeEndpoint(base_url="http://127.0.0.1:9", address=own).policy.address is own


def test_the_key_is_in_no_repr() -> None:
    """Of the endpoint."""
    assert "SENTINEL" not in repr(NativeEndpoint(base_url="https://a.example", key=KEY))
