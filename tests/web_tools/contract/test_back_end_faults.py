"""A back end that exits, lies or is no coroutine costs its own call or row, and nothing else."""

import asyncio
import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from web_tools.contract.credentials import CredentialDesk, EnvironmentCredentials
from web_tools.contract.provider import SearchContext, SearchRow, define_search_provider
from web_tools.contract.settings import parse_settings
from web_tools.contract.tool import WebSearchTool, create_web_search_tool
from web_tools.errors import (
    CredentialMissing,
    InvalidSetup,
    ProviderFault,
    SearchRefused,
    WebErrorCode,
    WebToolError,
)
from web_tools.testing_api import ApiAnswer, ScriptedApi

ROOT = Path(__file__).resolve().parents[3]
GOOD = {"title": "T", "url": "https://a.example/", "snippet": "s"}


def tool_of(search: Any, **more: Any) -> WebSearchTool:
    given = {"config": {}, **more}
    return create_web_search_tool(provider=define_search_provider(name="p", search=search), **given)


def run(tool: WebSearchTool, **more: Any) -> Any:
    return asyncio.run(tool.run({"query": "k"}, agent="ava", **more))


# ── what counts ──────────────────────────────────────────────────────────────────────────────


async def _asks_first(query: str, options: Any, context: SearchContext) -> Any:
    from egress.request import request_through_policy

    await request_through_policy("https://api.example/", policy=context.policy, wires=context.wires)
    await context.credentials.get("search.apiKey")
    return []


async def _asks_nothing(query: str, options: Any, context: SearchContext) -> Any:
    await context.credentials.get("search.apiKey")
    return []


def test_a_call_that_asked_the_vendor_counts_though_its_credential_is_missing() -> None:
    """Else a loop of such calls would ask a metered vendor without end."""
    api = ScriptedApi(lambda _: ApiAnswer(body={}))
    told: list[Any] = []
    tool = tool_of(
        _asks_first, config={"maxSearchesPerDay": 2}, wires=api.wires, on_search=told.append
    )
    for expected in (CredentialMissing, CredentialMissing, SearchRefused):
        with pytest.raises(expected):
            run(tool)

    assert (2, 2) == (len(api.sent), tool.engine.used("ava"))
    assert ["credential_missing"] * 2 == [each.failure for each in told]


def test_a_call_that_asked_nothing_does_not_count() -> None:
    """It was refused before anything was spent."""
    tool = tool_of(_asks_nothing, config={"maxSearchesPerDay": 1})
    for _ in range(3):
        with pytest.raises(CredentialMissing):
            run(tool)

    assert 0 == tool.engine.used("ava")


def test_a_denied_request_is_nothing_that_was_asked() -> None:
    """It was stopped here; the credential's refusal is told, and gives the call back."""
    desk = CredentialDesk([EnvironmentCredentials({})])

    async def search(query: str, options: Any, context: SearchContext) -> Any:
        from egress.errors import EgressDenied
        from egress.request import request_through_policy

        with pytest.raises(EgressDenied):
            await request_through_policy("https://10.0.0.5/", policy=context.policy)
        await context.credentials.get("search.apiKey")

    tool = tool_of(search, credentials=desk)
    with pytest.raises(CredentialMissing):
        run(tool)
    assert 0 == tool.engine.used("ava")


# ── what exits ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit()])
@pytest.mark.parametrize("with_signal", [False, True])
def test_a_back_end_that_exits_has_failed(error: BaseException, with_signal: bool) -> None:
    """The host lives on, with a signal as well, where the call is a task of its own."""

    async def search(query: str, options: Any, context: Any) -> Any:
        raise error

    async def main() -> None:
        signal = asyncio.Event() if with_signal else None
        with pytest.raises(WebToolError) as failed:
            await tool_of(search).run({"query": "k"}, signal=signal)
        assert ProviderFault.RAISED == failed.value.detail

    asyncio.run(main())


def test_an_interrupt_is_the_persons() -> None:
    """It is no failure of a back end."""

    async def search(query: str, options: Any, context: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tool_of(search))


def test_a_log_that_exits_loses_nothing() -> None:
    """The answer was paid for."""

    def on_search(_: Any) -> None:
        raise SystemExit

    async def search(query: str, options: Any, context: Any) -> Any:
        return [GOOD]

    assert 1 == len(run(tool_of(search, on_search=on_search)).envelope["results"])


class Exiting(list[Any]):
    def __iter__(self) -> Any:
        raise SystemExit


def test_rows_that_exit_when_they_are_counted_have_failed() -> None:
    """A list of the back end's runs the back end's code."""

    async def search(query: str, options: Any, context: Any) -> Any:
        return Exiting([GOOD])

    with pytest.raises(WebToolError) as failed:
        run(tool_of(search))
    assert WebErrorCode.SEARCH_PROVIDER_ERROR == failed.value.code


# ── rows ─────────────────────────────────────────────────────────────────────────────────────


class Raising(str):
    """A text whose every question raises."""

    __slots__ = ()

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise SystemExit

    __len__ = __str__ = __iter__ = __contains__ = __eq__ = __getitem__ = _raise
    partition = split = encode = casefold = lower = startswith = _raise
    __hash__ = str.__hash__


def _exit(*_: Any) -> Any:
    raise SystemExit


# An object that raises when it is asked what it is.
Lying: Any = type("Lying", (), {"__class__": property(_exit)})


class Table(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise SystemExit

    def __contains__(self, key: object) -> bool:
        return True


BAD_ROWS: dict[str, Callable[[], Any]] = {
    "object": Lying,
    "table": Table,
    "part": lambda: {**GOOD, "title": Lying()},
    "row": lambda: SearchRow(title=Lying(), url="https://c.example/"),
}


@pytest.mark.parametrize("bad", BAD_ROWS)
def test_one_bad_row_does_not_fail_the_others(bad: str) -> None:
    """It is dropped as malformed."""
    told: list[Any] = []

    async def search(query: str, options: Any, context: Any) -> Any:
        return [BAD_ROWS[bad](), GOOD]

    answer = run(tool_of(search, on_search=told.append))
    assert ["https://a.example/"] == [each["url"] for each in answer.envelope["results"]]
    assert {"malformed": 1} == told[0].dropped


@pytest.mark.parametrize("row", [dict, SearchRow])
def test_a_text_is_its_characters_whatever_its_class_says(row: Any) -> None:
    """Its own methods are not called."""
    date = "publishedAt" if row is dict else "published_at"
    parts = {name: Raising(value) for name, value in GOOD.items()}
    parts[date] = Raising("2026-09-01")

    async def search(query: str, options: Any, context: Any) -> Any:
        return [row(**parts)]

    (result,) = run(tool_of(search)).envelope["results"]
    assert {**GOOD, "publishedAt": "2026-09-01T00:00:00.000Z"} == result
    assert {str} == set(map(type, result.values()))


# ── what is no coroutine ─────────────────────────────────────────────────────────────────────


def _plain(query: str, options: Any, context: Any) -> Any:
    return []


class Plain:
    def __call__(self, query: str, options: Any, context: Any) -> Any:
        return []


class Coroutine:
    async def __call__(self, query: str, options: Any, context: Any) -> Any:
        return [GOOD]


async def _generator(query: str, options: Any, context: Any) -> Any:
    yield GOOD


@pytest.mark.parametrize(
    "search",
    [_plain, Plain(), Coroutine, _generator, lambda *_: [], functools.partial(_plain), None],
)
def test_a_search_that_is_no_coroutine_is_refused_at_its_definition(search: Any) -> None:
    """It would fail at every query."""
    with pytest.raises(InvalidSetup) as refused:
        define_search_provider(name="p", search=search)

    assert "async def" in str(refused.value)


def test_what_gives_a_coroutine_is_taken() -> None:
    """An object with an async call, a method, a partial of either."""
    for search in (Coroutine(), Coroutine().__call__, functools.partial(Coroutine())):
        assert 1 == len(run(tool_of(search)).envelope["results"])


def test_one_that_gives_none_after_all_says_why() -> None:
    """A coroutine function in name only."""

    class Marked:
        async def __call__(self, query: str, options: Any, context: Any) -> Any:
            raise AssertionError

    provider = define_search_provider(name="p", search=Marked())
    object.__setattr__(provider, "search", _plain)
    tool = create_web_search_tool(provider=provider, config={})
    with pytest.raises(WebToolError) as failed:
        run(tool)

    assert "must be async" in failed.value.cause


# ── settings ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"maxSearchPerDay": 5}, "maxSearchPerDay"),
        ({"max_searches_per_day": 5}, "max_searches_per_day"),
        ({"MaxSearchesPerDay": 5}, "MaxSearchesPerDay"),
        ({"allowHosts": []}, "allowHosts"),
        ({"allowed-hosts": []}, "allowed-hosts"),
        ({"allowPrivateAdresses": True}, "allowPrivateAdresses"),
        ({"agent": {}}, "agent"),
        ({"agents": {"b": {"maxSearches_PerDay": 1}}}, "agents.b.maxSearches_PerDay"),
        ({"agents": {"b": {"agents": {}}}}, "agents.b.agents"),
    ],
)
def test_a_misspelt_setting_is_refused_by_its_path(config: Any, path: str) -> None:
    """A cap that nobody reads is no cap; `agents` inside of an agent is none either."""
    with pytest.raises(InvalidSetup) as refused:
        parse_settings(config, own_keys=() if "agents.b.agents" == path else None)

    assert path == refused.value.field


def test_keys_of_the_back_ends_own_are_left_to_it_and_with_their_names_nothing_else_is() -> None:
    """A base URL or an engine's id is no setting."""
    own = {"baseUrl": "https://s.example", "cx": "1", "enabled": True}
    parse_settings({**own, "agents": {"b": {"cx": "2"}}})
    parse_settings(own, own_keys=["baseUrl", "cx"])

    with pytest.raises(InvalidSetup) as refused:
        tool_of(Coroutine(), config=own, own_keys=["baseUrl"])
    assert "cx" == refused.value.field


# ── the kit without Hypothesis ───────────────────────────────────────────────────────────────

_WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hypothesis":
            raise ImportError(name)
sys.meta_path.insert(0, Missing())
import egress.testing, runtime_pack.testing, web_tools.testing
from web_tools.testing import ScriptedApi, assert_fenced, check_search_provider
for strategy in (web_tools.testing.hostile_texts, web_tools.testing.hostile_pages):
    try:
        strategy()
    except ImportError as error:
        print(error)
"""


def test_the_kit_works_without_hypothesis_and_the_strategies_name_their_extra() -> None:
    """A plain installation proves a back end; what needs more says what."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT], capture_output=True, text=True, cwd=ROOT, check=False
    )

    assert (0, 2) == (done.returncode, done.stdout.count("agent-runtime-pack[testing]")), (
        done.stderr
    )
