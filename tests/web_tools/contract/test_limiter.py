"""When a back end may be asked again."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from web_tools.contract.tool import create_web_search_tool
from web_tools.errors import ProviderFault, WebToolError
from web_tools.providers import _dates
from web_tools.providers._limiter import Limiter, pause_of
from web_tools.providers._literal import sql_tokens
from web_tools.providers.brave import create_brave_provider
from web_tools.testing import ApiAnswer, ScriptedApi

CASES = Path(__file__).resolve().parents[2] / "cases" / "search.jsonl"
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
EPOCH = int(NOW.timestamp())


@pytest.mark.parametrize(
    ("status", "headers", "pause"),
    [
        (200, {}, 0), (429, {}, 1), (503, {}, 0), (429, {"retry-after": "5"}, 5),
        (200, {"retry-after": "5"}, 5), (429, {"retry-after": "Mon, 30 Nov 2026 12:01:00 GMT"}, 60),
        (429, {"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT"}, 1), (429, {"retry-after": "soon"}, 1),
        (429, {"x-ratelimit-remaining": "0, 1985", "x-ratelimit-reset": "1, 1419704"}, 1),
        (200, {"x-ratelimit-remaining": "1, 0", "x-ratelimit-reset": "1, 1419704"}, 1419704),
        (200, {"x-ratelimit-remaining": "1, 5", "x-ratelimit-reset": "1, 1419704"}, 0),
        (200, {"x-ratelimit-remaining": "0, 5", "x-ratelimit-reset": "1"}, 0),
        (200, {"ratelimit-remaining": "0", "ratelimit-reset": "30"}, 30),
        (200, {"x-rate-limit-remaining": "0", "x-rate-limit-reset": str(EPOCH + 90)}, 90),
        (429, {"retry-after": "9" * 12}, 31 * 86400), (429, {"retry-after": "-5"}, 1),
    ],
)  # fmt: skip
def test_an_answer_says_how_long_to_wait(
    status: int, headers: Mapping[str, str], pause: float
) -> None:
    """The longest of what it says, within a bound; a bare 429 means a second."""
    assert pause == pause_of(status, tuple(headers.items()), now=NOW)


def test_a_pause_is_of_one_key() -> None:
    """And a shorter one does not end a longer one."""
    limiter = Limiter()
    limiter.learn("a", 10, now=0)
    limiter.learn("a", 1, now=0)

    assert (10, 4, 0, 0) == (
        limiter.wait("a", now=0),
        limiter.wait("a", now=6),
        limiter.wait("a", now=11),
        limiter.wait("b", now=0),
    )


def test_no_more_keys_are_kept_than_a_bound() -> None:
    """Keys that come and go do not fill the memory."""
    limiter = Limiter()
    for number in range(2000):
        limiter.learn(str(number), 10, now=0)

    assert 1024 == len(limiter._until)
    assert 10 == limiter.wait("1999", now=0)


class Waits:
    """A clock that moves only when somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waited: list[float] = []

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds


class Desk:
    def __init__(self) -> None:
        self.key = "k1"

    async def get(self, name: str, *, agent: str) -> str:
        del name, agent
        return self.key


@pytest.mark.parametrize(("pause", "waits"), [("2", True), ("60", False)])
def test_a_back_end_is_not_asked_before_its_time(pause: str, waits: bool) -> None:
    """A short pause is waited out, a long one is a failure with its time; no request is sent."""
    clock, desk = Waits(), Desk()
    limited = ApiAnswer(status=429, headers=(("retry-after", pause),))
    fine = ApiAnswer(body={"type": "search"})
    api = ScriptedApi([limited, fine, fine])
    tool = create_web_search_tool(
        provider=create_brave_provider(monotonic=clock.monotonic, sleep=clock.sleep),
        config={},
        credentials=desk,
        clock=lambda: NOW,
        wires=api.wires,
    )
    query = {"query": "k"}
    with pytest.raises(WebToolError) as caught:
        asyncio.run(tool.run(query))
    assert ProviderFault.RATE_LIMITED == caught.value.detail
    assert str(int(pause) + 1) == caught.value.retry_after
    if waits:
        asyncio.run(tool.run(query))

        assert ([2.0], 2) == (clock.waited, len(api.sent))
        return
    with pytest.raises(WebToolError) as again:
        asyncio.run(tool.run(query))

    assert ([], 1, True) == (clock.waited, len(api.sent), again.value.retryable)
    desk.key = "k2"
    asyncio.run(tool.run(query))
    assert 2 == len(api.sent)


# ── rows of the cases ─────────────────────────────────────────────────────────────────────────

_READ = {
    "exa": _dates.as_is, "mojeek": _dates.epoch_instant, "mediawiki": _dates.as_is,
    "perplexity": _dates.as_is, "kagi": _dates.as_is,
}  # fmt: skip


def of_kind(kind: str) -> pytest.MarkDecorator:
    rows = [json.loads(line) for line in CASES.read_text().splitlines()]
    cases = [row for row in rows if row["kind"] == kind]
    return pytest.mark.parametrize("case", cases, ids=[case["id"] for case in cases])


@of_kind("adapter_date")
def test_a_vendors_date_is_of_the_table(case: dict[str, Any]) -> None:
    """As the adapter of that vendor hands it over."""
    assert case["expect"] == _READ[case["input"]["provider"]](case["input"]["value"])


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (_dates.day_of, "2026-11-28T07:15:00", "2026-11-28"), (_dates.day_of, "2026-11-28 07:15", "2026-11-28"),
        (_dates.day_of, "2026-02-30T00:00:00", None), (_dates.day_of, "2026-11-281", None),
        (_dates.day_of, "2 days ago", None), (_dates.day_of, None, None), (_dates.day_of, 20261128, None),
        (_dates.http_instant, "Sat, 28 Nov 2026 07:15:00 GMT", "2026-11-28T07:15:00Z"),
        (_dates.http_instant, "Sat, 28 Nov 2026 07:15:00", None), (_dates.http_instant, "Sat, 31 Feb 2026 07:15:00 GMT", None),
        (_dates.http_instant, "Sat, 28 Nov 2026 07:15:00 EST", None), (_dates.http_instant, None, None),
        (_dates.epoch_instant, 0, None), (_dates.epoch_instant, -5, None), (_dates.epoch_instant, True, None),
        (_dates.epoch_instant, 1e30, None), (_dates.epoch_instant, float("nan"), None), (_dates.epoch_instant, "7", None),
        (_dates.instant_or_day, "2026-11-28T07:15:00Z", "2026-11-28T07:15:00Z"),
        (_dates.instant_or_day, "2026-11-28T07:15:00", "2026-11-28"), (_dates.as_is, "Nov 28, 2026", None),
    ],
)  # fmt: skip
def test_dates_that_are_none_are_none(read: Any, value: Any, expected: str | None) -> None:
    """Never a guess."""
    assert expected == read(value)


def test_every_vendor_with_dates_in_the_cases_is_run() -> None:
    """A new row of another vendor fails above; a query row is run below or with the adapters."""
    rows = [json.loads(line) for line in CASES.read_text().splitlines()]
    asked = {row["input"]["provider"] for row in rows if row["kind"] == "adapter_query"}

    assert {"sqlite", "searxng"} == asked


@of_kind("adapter_query")
def test_a_query_goes_out_as_literal_text(case: dict[str, Any]) -> None:
    """FTS5 gets strings only; what SearXNG gets is run with its adapter."""
    given, expected = case["input"], case["expect"]
    if given["provider"] == "searxng":
        assert expected["value"] == given["query"]
        return
    if "value" in expected:
        assert expected["value"] == " ".join(sql_tokens(given["query"]))
    else:
        assert 0 == expected["rows"]
