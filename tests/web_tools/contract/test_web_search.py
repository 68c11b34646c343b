"""The tool `web.search` over back ends that behave and back ends that do not."""

import asyncio
import contextlib
import json
import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from citations import document_id
from egress.request import ApiPolicy
from web_tools._fields import Refused
from web_tools._provider_failure import holds_any
from web_tools.arguments import Recency, SearchRequest, WebToolCaps
from web_tools.contract.agents import AgentProfile, AgentProfiles, parse_agent_profile
from web_tools.contract.credentials import (
    CredentialDesk,
    EnvironmentCredentials,
    KeyringCredentials,
    check_credential,
    check_name,
)
from web_tools.contract.daily_cap import DailyCap
from web_tools.contract.engine import SearchRecord
from web_tools.contract.freshness import freshness_of
from web_tools.contract.instants import instant_text, published_at
from web_tools.contract.options import OPTIONS, SearchOptions
from web_tools.contract.pack_port import as_search_provider, as_web_search_provider
from web_tools.contract.provider import (
    SearchContext,
    SearchFunction,
    SearchProvider,
    SearchRow,
    define_search_provider,
)
from web_tools.contract.recent import RecentAnswers
from web_tools.contract.results import MAX_SNIPPET_CHARS, UNTRUSTED_NOTE, DropReason
from web_tools.contract.settings import parse_settings
from web_tools.contract.sites import site_of
from web_tools.contract.snippets import escape_text, plain_text
from web_tools.contract.tool import WebSearchTool, create_web_search_tool
from web_tools.errors import (
    CredentialMissing,
    CredentialRefused,
    InvalidSetup,
    ProviderFault,
    RefusalReason,
    SearchProviderError,
    SearchRefused,
    WebErrorCode,
    WebToolError,
)
from web_tools.search import SearchHit, create_fixture_web_search_provider, run_search

CASES = Path(__file__).resolve().parents[2] / "cases" / "search.jsonl"
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
KEY = "k3y-SENTINEL"


def of_kind(kind: str) -> pytest.MarkDecorator:
    rows = [json.loads(line) for line in CASES.read_text().splitlines()]
    cases = [case for case in rows if case["kind"] == kind]
    return pytest.mark.parametrize("case", cases, ids=[case["id"] for case in cases])


def at(text: str) -> datetime:
    instant = published_at(text)
    assert instant is not None
    return instant


class Backend:
    """Answers with one thing, or raises it, and keeps what it was asked."""

    def __init__(self, answer: Any = (), *, keyed: bool = False) -> None:
        self.answer = answer
        self.keyed = keyed
        self.asked: list[tuple[str, SearchOptions, SearchContext]] = []
        self.key = ""

    async def search(self, query: str, options: SearchOptions, context: SearchContext) -> Any:
        if self.keyed:
            self.key = await context.credentials.get("search.apiKey")
        self.asked.append((query, options, context))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def tool_over(
    backend: Backend,
    *,
    config: dict[str, Any] | None = None,
    unsupported: Iterable[str] = (),
    clock: Callable[[], datetime] = lambda: NOW,
    **more: Any,
) -> WebSearchTool:
    provider = define_search_provider(
        name="somesearch", search=backend.search, unsupported=unsupported
    )
    return create_web_search_tool(provider=provider, config=config or {}, clock=clock, **more)


def ask(tool: WebSearchTool, *, agent: str = "ava", **arguments: Any) -> dict[str, Any]:
    answer = asyncio.run(tool.run({"query": "k", **arguments}, agent=agent))
    return answer.envelope


def row(url: str, **parts: Any) -> dict[str, Any]:
    return {"title": "T", "url": url, "snippet": "s", **parts}


def refusal(tool: WebSearchTool, **arguments: Any) -> Any:
    with pytest.raises((WebToolError, SearchRefused)) as caught:
        ask(tool, **arguments)
    return caught.value


# ── rows of the cases ─────────────────────────────────────────────────────────────────────────


@of_kind("pipeline")
def test_rows_become_results(case: dict[str, Any]) -> None:
    """Filtered, in order, cut to count after the filters."""
    given_ = case["input"]
    tool = tool_over(Backend(given_["provider_rows"]), clock=lambda: at(given_["now"]))
    found = ask(tool, **given_["args"])["results"]

    assert case["expect"]["urls"] == [each["url"] for each in found]


@of_kind("envelope")
def test_the_envelope_has_the_keys_of_the_contract(case: dict[str, Any]) -> None:
    """And no other; an empty result is marked as well."""
    envelope = ask(tool_over(Backend(case["input"]["provider_rows"])), **case["input"]["args"])

    assert {**case["expect"], "untrustedNote": UNTRUSTED_NOTE} == envelope


@of_kind("gate")
def test_a_gate_says_no(case: dict[str, Any]) -> None:
    """A refusal costs no request and does not count; a provider's failure is no empty list.

    What a vendor answers over HTTP is run with the adapters; here it is what a back end raises.
    """
    given_ = case["input"]
    if "provider" in given_:
        broken = SearchProviderError(ProviderFault.BAD_ANSWER, given_["provider"][:8])
        error = refusal(tool_over(Backend(broken)))

        assert "provider" == case["expect"]["error"]
        assert error.code is WebErrorCode.SEARCH_PROVIDER_ERROR
        return
    backend = Backend()
    tool = tool_over(backend, unsupported=given_["unsupported"])
    error = refusal(tool, **given_["args"])

    assert [f"/{case['expect']['refuse']}"] == [fault.path for fault in error.faults]
    assert (case["expect"]["requests"], case["expect"]["counted"]) == (
        len(backend.asked),
        tool.engine.used("ava"),
    )


@of_kind("config")
def test_a_configuration_is_read_strictly(case: dict[str, Any]) -> None:
    """Faults are found when it is loaded, and name the field."""
    given_ = dict(case["input"])
    if "effective" in case["expect"]:
        by_agent = parse_settings(given_)
        for agent, cap in case["expect"]["effective"].items():
            assert cap == by_agent.of(agent).max_per_day
        return
    with pytest.raises(InvalidSetup) as caught:
        tool_over(Backend(), config=given_, unsupported=given_.pop("unsupported", ()))

    assert case["expect"]["error"] in str(caught.value)


@of_kind("cap")
def test_the_cap_is_by_agent_and_utc_day(case: dict[str, Any]) -> None:
    """Reserved before the call; a failed call counts, tomorrow is another day."""
    times: list[datetime] = []
    backend = Backend()
    tool = tool_over(backend, config=case["input"]["config"], clock=lambda: times[-1])
    allowed = []
    for call in case["input"]["calls"]:
        times.append(at(call["at"]))
        backend.answer = OSError("http 500") if "provider" in call else ()
        try:
            ask(tool, agent=call["agent"])
        except SearchRefused as refused:
            allowed.append(refused.reason is not RefusalReason.DAILY_CAP)
        except WebToolError:
            allowed.append(True)
        else:
            allowed.append(True)

    assert case["expect"]["allowed"] == allowed


@of_kind("credential")
def test_a_key_is_in_no_text(case: dict[str, Any]) -> None:
    """Not in the error, its traceback, the log, or a result that repeats it."""
    key = case["input"]["key"]
    told: list[SearchRecord] = []
    desk = CredentialDesk([EnvironmentCredentials({"RUNTIME_PACK_CREDENTIAL_SEARCH_APIKEY": key})])
    backend = Backend(OSError(f"cannot connect to https://x/?api_key={key}"), keyed=True)
    tool = tool_over(backend, credentials=desk, on_search=told.append)
    error = refusal(tool)
    backend.answer = [
        row("https://a.example/", snippet=f"your key is {key}"),
        row("https://b.example/"),
    ]
    envelope = ask(tool, count=1)

    shown = "".join(traceback.format_exception(error)) + error.cause + repr((told, envelope, desk))
    assert case["expect"]["absent_everywhere"] not in shown
    assert key == backend.key
    assert ["https://b.example/"] == [each["url"] for each in envelope["results"]]


@of_kind("log")
def test_a_log_hears_of_a_search_and_not_what_for(case: dict[str, Any]) -> None:
    """Provider and number of results; the query is user content."""
    told: list[SearchRecord] = []
    tool = tool_over(Backend(), on_search=told.append)
    ask(tool, **case["input"]["args"])
    (record,) = told

    assert case["expect"]["record"] == {"provider": record.provider, "results": record.results}
    assert case["expect"]["absent_everywhere"] not in repr(told)


@of_kind("register")
def test_a_tool_is_gated(case: dict[str, Any]) -> None:
    """Whatever its back end claims, and from outside."""
    tool = tool_over(Backend())

    assert case["expect"]["registered_risk"] == tool.risk
    assert ("web.search", "external") == (tool.name, tool.output_trust)


# ── results ───────────────────────────────────────────────────────────────────────────────────


def test_every_check_that_drops_a_row_is_in_the_record() -> None:
    """The record names which of them did; the filter comes before the cut."""
    told: list[SearchRecord] = []
    rows = [
        None,
        row("ftp://a.example/"),
        row("http://10.0.0.1/"),
        row("https://b.example/", publishedAt="2026-11-30"),
        row("https://a.example/old", publishedAt="2020-01-01"),
        row("https://a.example/undated"),
        row("https://a.example/1", publishedAt="2026-11-30"),
        row("HTTPS://A.example:443/1", publishedAt="2026-11-30"),
        row("https://a.example/2", publishedAt="2026-11-30"),
    ]
    tool = tool_over(Backend(rows), on_search=told.append)
    found = ask(tool, count=1, site="a.example", freshness="P7D")["results"]

    assert ["https://a.example/1"] == [each["url"] for each in found]
    assert {
        DropReason.MALFORMED: 1, DropReason.URL: 1, DropReason.ADDRESS: 1, DropReason.SITE: 1,
        DropReason.FRESHNESS: 2, DropReason.DUPLICATE: 1, DropReason.COUNT: 1,
    } == told[0].dropped  # fmt: skip


def test_an_undated_twin_does_not_hide_the_dated_one() -> None:
    """Duplicates collapse after the filters, on everything in a URL, the fragment included."""
    dated = row("https://a.example/", publishedAt="2026-11-30")
    rows = [row("https://a.example/"), dated, row("https://a.example/#x", publishedAt="2026-11-30")]

    assert ["https://a.example/", "https://a.example/#x"] == [
        each["url"] for each in ask(tool_over(Backend(rows)), freshness="P1D")["results"]
    ]
    assert 2 == len(ask(tool_over(Backend(rows)))["results"])


def test_a_result_is_plain_canonical_and_cited() -> None:
    """No markup, one form of URL, an instant in UTC, a citation of the page without fragment."""
    raw = row(
        "https://Bücher.example/a#ü",
        title="<b>Ket</b>tle &amp; co",
        snippet="x" * 5000,
        publishedAt="2026-09-01T11:00:00+02:00",
    )
    answer = asyncio.run(tool_over(Backend([raw])).run({"query": "k"}))
    (result,), (citation,) = answer.envelope["results"], answer.citations

    assert {
        "title": "Kettle & co",
        "url": "https://xn--bcher-kva.example/a#%C3%BC",
        "snippet": "x" * MAX_SNIPPET_CHARS,
        "publishedAt": "2026-09-01T09:00:00.000Z",
    } == result
    assert document_id("https://xn--bcher-kva.example/a") == citation.document_id


def test_rows_may_be_records_or_mappings() -> None:
    """A missing title is an empty one; without a URL it is no row."""
    rows = [SearchRow(title=None, url="https://a.example/"), {"title": "t", "url": None}]

    assert [""] == [each["title"] for each in ask(tool_over(Backend(rows)))["results"]]


@pytest.mark.parametrize("answer", [[7], [None, {}], "rows", None, {"url": "https://a.example/"}])
def test_nothing_understood_is_no_empty_list(answer: Any) -> None:
    """An answer without a single row of the contract is a failure."""
    assert ProviderFault.BAD_ANSWER == refusal(tool_over(Backend(answer))).detail


def test_an_answer_is_looked_at_within_bounds() -> None:
    """A thousand rows, and no part of a row beyond 65,536 characters."""
    many = [row(f"https://a.example/{n}") for n in range(1001)]
    many[1000] = row("https://b.example/")
    long = [row("https://a.example/", snippet="x" * 65_537), row("https://b.example/")]

    assert [] == ask(tool_over(Backend(many)), site="b.example")["results"]
    assert ["https://b.example/"] == [r["url"] for r in ask(tool_over(Backend(long)))["results"]]


class Broken(Sequence[Any]):
    """A list of a back end's own that breaks while it is read."""

    def __len__(self) -> int:
        raise RuntimeError("very private words")

    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError("very private words")


class Odd(dict[str, Any]):
    """A row that breaks when it is looked at."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError(key)


def test_an_answer_that_breaks_while_it_is_read_is_a_failure() -> None:
    """Its code runs inside of the boundary; a row that breaks is left out."""
    query = "very private words"
    error = refusal(tool_over(Backend(Broken())), query=query)
    rows = [Odd(url="https://a.example/"), row("https://b.example/")]

    assert ProviderFault.RAISED == error.detail
    assert "private words" not in "".join(traceback.format_exception(error)) + error.cause
    assert ["https://b.example/"] == [r["url"] for r in ask(tool_over(Backend(rows)))["results"]]


def test_unsupported_options_are_refused_before_anything_is_spent() -> None:
    """By name; what is not asked for does not matter."""
    backend = Backend()
    tool = tool_over(backend, unsupported=["freshness", "site"])
    error = refusal(tool, freshness="P7D", site="a.example")

    assert "somesearch does not support: site, freshness" in error.message
    assert ([], 0) == (backend.asked, tool.engine.used("ava"))
    assert [] == ask(tool, count=3)["results"]


def test_a_back_end_is_given_what_it_may_reach_and_no_more() -> None:
    """Its own origins under the operator's address policy, by agent; the clock and the options."""
    backend = Backend()
    provider = define_search_provider(
        name="p", search=backend.search, origins=["http://localhost:8888/x"]
    )
    config = {"allowedHosts": ["localhost"], "agents": {"b": {"allowedHosts": []}}}
    tool = create_web_search_tool(provider=provider, config=config, clock=lambda: NOW)
    for agent in ("a", "b"):
        ask(tool, agent=agent, site="Docs.Example.com.", freshness="PT30M")
    (_, options, first), (_, _, second) = backend.asked

    assert isinstance(first.policy, ApiPolicy)
    assert frozenset({"http://localhost:8888"}) == first.policy.origins
    assert (frozenset({"localhost"}), frozenset()) == (
        first.policy.address.allowed_hosts,
        second.policy.address.allowed_hosts,
    )
    assert options.freshness is not None
    assert ("docs.example.com", "2026-11-30T11:30:00.000Z") == (
        options.site,
        options.freshness.since,
    )


# ── failure ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "raised",
    [
        ValueError("very private words"),
        SearchProviderError(ProviderFault.UNAVAILABLE, "very%20private%20words"),
        WebToolError(WebErrorCode.INVALID_INPUT, "very private words"),
        SearchRefused(RefusalReason.DAILY_CAP, "very private words"),
        ExceptionGroup("g", [KeyError("very+private+words")]),
    ],
)
def test_what_a_back_end_raises_is_one_error_without_the_query(raised: Exception) -> None:
    """Also a refusal that it makes up: its call counts, so it cannot be asked without end (12)."""
    told: list[SearchRecord] = []
    tool = tool_over(Backend(raised), on_search=told.append)
    query = "very private words"
    error = refusal(tool, query=query)

    shown = "".join(traceback.format_exception(error)) + error.cause
    assert WebErrorCode.SEARCH_PROVIDER_ERROR is error.code
    assert "private words" not in shown.replace("%20", " ").replace("+", " ")
    assert 1 == tool.engine.used("ava")
    assert [(0, str(error.detail))] == [(each.results, each.failure) for each in told]


@pytest.mark.parametrize(
    ("given_", "told"), [("5", "5"), ("very private words", None), ("5 words", None), (None, None)]
)
def test_only_seconds_are_handed_on_as_a_time_to_wait(given_: str | None, told: str | None) -> None:
    """A vendor's text in its place goes nowhere, and neither does a number that is a secret."""
    limited = SearchProviderError(ProviderFault.RATE_LIMITED, "x", retry_after=given_)

    assert told == refusal(tool_over(Backend(limited))).retry_after
    assert refusal(tool_over(Backend(limited)), query="RATE_LIMITED 5 x").retry_after is None


@pytest.mark.parametrize(
    "text",
    [
        "key=a/b+c", "key=a%2Fb%2Bc", "key=a%2fb%2bc", "key=%61%2f%62%2b%63", "key=a%252Fb%252Bc",
        "A%2FB%2BC", "Basic YS9iK2M=", r'{"key": "a/b+c"}',
    ],
)  # fmt: skip
def test_a_secret_is_found_in_every_spelling_of_a_url(text: str) -> None:
    """Encoded once and twice, in any case, in base64; another text is another."""
    assert holds_any(text, {"a/b+c"})
    assert not holds_any(text, {"a/b+d"})
    assert holds_any("q=very+private%20words", {"very private words"})


def test_a_deadline_and_a_signal_end_a_call() -> None:
    """A back end that hangs is cancelled, and awaited."""
    ended = []

    async def hang(query: str, options: SearchOptions, context: SearchContext) -> list[SearchRow]:
        del query, options, context
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        return []

    provider = define_search_provider(name="p", search=hang)
    tool = create_web_search_tool(provider=provider, config={}, timeout_seconds=0.01)

    async def stopped() -> None:
        signal = asyncio.Event()
        slow = create_web_search_tool(provider=provider, config={})
        call = asyncio.create_task(slow.run({"query": "k"}, signal=signal))
        await asyncio.sleep(0)
        signal.set()
        with pytest.raises(WebToolError) as caught:
            await call
        assert ProviderFault.STOPPED == caught.value.detail

    assert ProviderFault.DEADLINE == refusal(tool).detail
    asyncio.run(stopped())
    assert [True, True] == ended


def test_a_cancellation_of_the_call_passes_through() -> None:
    """And one that a back end invents does not: nobody has cancelled anything."""

    async def main() -> None:
        started = asyncio.Event()

        async def hang(_q: str, _o: SearchOptions, _c: SearchContext) -> list[SearchRow]:
            started.set()
            await asyncio.Event().wait()
            return []

        tool = create_web_search_tool(
            provider=define_search_provider(name="p", search=hang), config={}
        )
        call = asyncio.create_task(tool.run({"query": "k"}))
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())
    assert ProviderFault.RAISED == refusal(tool_over(Backend(asyncio.CancelledError()))).detail


def test_a_log_that_raises_loses_no_answer() -> None:
    """It is told by its type."""

    def broken(_: SearchRecord) -> None:
        raise RuntimeError("full")

    assert [] == ask(tool_over(Backend(), on_search=broken))["results"]


# ── gates ─────────────────────────────────────────────────────────────────────────────────────

PROFILES = AgentProfiles(
    [
        AgentProfile(id="ava", tools=("web.*",), credentials=("search.apiKey",)),
        AgentProfile(id="bob", tools=("web.search",)),
        AgentProfile(id="eve", tools=("web:read", "web"), credentials=("search.*",)),
    ]
)


def desk(agents: AgentProfiles | None = PROFILES, key: str = KEY) -> CredentialDesk:
    source = EnvironmentCredentials({"RUNTIME_PACK_CREDENTIAL_SEARCH_APIKEY": key})
    return CredentialDesk([source], agents=agents)


def test_both_gates_are_checked_and_refuse_word_for_word() -> None:
    """`web.*` covers the tool and no credential; a refused call does not count."""
    backend = Backend(keyed=True)
    tool = tool_over(backend, credentials=desk(), agents=PROFILES, config={"maxSearchesPerDay": 1})

    refused = refusal(tool, agent="bob")
    assert "Agent bob is not allowed to access credential: search.apiKey" == str(refused)
    assert "Agent eve is not allowed to use tool: web.search" == str(refusal(tool, agent="eve"))
    assert "Agent zoe is not allowed to use tool: web.search" == str(refusal(tool, agent="zoe"))
    assert (0, []) == (tool.engine.used("bob"), backend.asked)
    assert [] == ask(tool)["results"]
    assert KEY == backend.key


def test_a_missing_credential_names_itself_and_the_command() -> None:
    """And nothing else; without a desk there are none."""
    tool = tool_over(Backend(keyed=True), credentials=desk(key=""))

    assert "runtime-pack credential set search.apiKey" in str(refusal(tool))
    assert isinstance(refusal(tool_over(Backend(keyed=True))), CredentialMissing)


@pytest.mark.parametrize(
    ("globs", "name", "covered"),
    [
        (["web.*"], "web.search", True), (["web.*"], "web.fetch", True), (["web.*"], "web:read", False),
        (["web.*"], "webXsearch", False), (["web"], "web.search", False), (["*"], "web:read", True),
        (["web.search"], "web.search.more", False), ([], "web.search", False),
    ],
)  # fmt: skip
def test_a_glob_covers_what_it_says(globs: list[str], name: str, covered: bool) -> None:
    """Only the star is a wildcard."""
    assert covered == AgentProfile(id="a", tools=tuple(globs)).may_use(name)


@pytest.mark.parametrize(
    "text",
    ["", "id = 7", 'id = "a"\ntool = ["web.*"]', 'id = "a"\ntools = "web.*"', 'id = "a b"', "id = ",
     'id = "a"\ntools = ["web search"]', 'id = "a"\ncredentials = [7]'],
)  # fmt: skip
def test_a_profile_is_read_strictly(text: str) -> None:
    """A misspelt key gives no agent anything by accident, and none nothing silently."""
    with pytest.raises(InvalidSetup):
        parse_agent_profile(text)


def test_a_profile_is_a_toml_file() -> None:
    """Id, tools, credentials; two of one id are refused."""
    profile = parse_agent_profile('id = "ava"\ntools = ["web.*"]\ncredentials = ["search.apiKey"]')

    assert AgentProfile(id="ava", tools=("web.*",), credentials=("search.apiKey",)) == profile
    with pytest.raises(InvalidSetup):
        AgentProfiles([profile, profile])


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"maxSearchesPerDay": -1}, "maxSearchesPerDay"), ({"maxSearchesPerDay": "5"}, "maxSearchesPerDay"),
        ({"maxSearchesPerDay": None}, "maxSearchesPerDay"), ({"allowedHosts": "localhost"}, "allowedHosts"),
        ({"allowedHosts": ["a/b"]}, "allowedHosts"), ({"allowedHosts": 7}, "allowedHosts"),
        ({"allowedHosts": {"localhost": True}}, "allowedHosts"), ({"maxSearchesPerDay": 1.5}, "maxSearchesPerDay"), ({"allowPrivateAddresses": "false"}, "allowPrivateAddresses"),
        ({"agents": []}, "agents"), ({"agents": {"b": 7}}, "agents.b"),
        ({"agents": {"b": {"allowPrivateAddresses": 1}}}, "agents.b.allowPrivateAddresses"), ([], "config"),
    ],
)  # fmt: skip
def test_a_setting_of_another_type_is_refused_with_its_place(config: Any, field: str) -> None:
    """A text that looks like a switch never switches anything."""
    with pytest.raises(InvalidSetup) as caught:
        parse_settings(config)

    assert field == caught.value.field


def test_an_override_stands_for_the_whole_value() -> None:
    """What an agent does not override it inherits; keys of the back end's own are left alone."""
    by_agent = parse_settings(
        {"baseUrl": "x", "maxSearchesPerDay": 5, "allowPrivateAddresses": True,
         "allowedHosts": ["localhost"], "agents": {"b": {"allowedHosts": ["search.corp"]}}}
    )  # fmt: skip
    settings_ = by_agent.of("b")

    assert (5, True) == (settings_.max_per_day, settings_.address.allow_private_addresses)
    assert frozenset({"search.corp"}) == settings_.address.allowed_hosts
    assert 200 == parse_settings({}).of("x").max_per_day
    # An integral float is an integer, as everywhere.
    assert 7 == parse_settings({"maxSearchesPerDay": 7.0}).of("x").max_per_day


def test_zero_refuses_every_call() -> None:
    """Before the back end hears of it."""
    backend = Backend()
    refused = refusal(tool_over(backend, config={"maxSearchesPerDay": 0}))

    assert (RefusalReason.DAILY_CAP, []) == (refused.reason, backend.asked)


def test_calls_at_one_time_cannot_pass_the_cap_together() -> None:
    """The place is taken before the call is awaited."""
    gate = asyncio.Event

    async def main() -> list[object]:
        opened = gate()

        async def wait(_q: str, _o: SearchOptions, _c: SearchContext) -> list[SearchRow]:
            await opened.wait()
            return []

        provider = define_search_provider(name="p", search=wait)
        tool = create_web_search_tool(provider=provider, config={"maxSearchesPerDay": 2})
        calls = [asyncio.create_task(tool.run({"query": "k"})) for _ in range(5)]
        await asyncio.sleep(0)
        opened.set()
        return list(await asyncio.gather(*calls, return_exceptions=True))

    done = asyncio.run(main())
    assert 3 == sum(isinstance(each, SearchRefused) for each in done)


class CapMachine(RuleBasedStateMachine):
    """The cap against a list of calls: no agent passes its limit, on a clock that also goes back."""

    def __init__(self) -> None:
        super().__init__()
        self.cap = DailyCap()
        self.day = 1
        self.held: list[Any] = []

    @rule(agent=st.sampled_from("ab"))
    def reserve(self, agent: str) -> None:
        now = datetime(2026, 1, self.day, 23, tzinfo=UTC)
        place = self.cap.reserve(agent, limit=2, now=now)
        if place is not None:
            self.held.append(place)

    @rule()
    def give_back(self) -> None:
        if self.held:
            self.cap.give_back(self.held.pop())

    @rule(step=st.sampled_from([-1, 1]))
    def move(self, step: int) -> None:
        if step > 0:
            self.held.clear()
        self.day = min(28, max(1, self.day + step))

    @invariant()
    def none_is_beyond_the_limit(self) -> None:
        assert all(0 <= self.cap.used(agent) <= 2 for agent in "ab")


TestCap = CapMachine.TestCase
TestCap.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


def test_a_clock_that_goes_back_gives_no_day_again() -> None:
    """Yesterday's calls are not to be had anew."""
    cap = DailyCap()
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (2, 1, 2)]

    assert [True, False, False] == [cap.reserve("a", limit=1, now=now) is not None for now in times]


def test_a_place_of_yesterday_gives_nothing_back_today() -> None:
    """A call that was refused after midnight does not add one to the new day."""
    cap = DailyCap()
    place = cap.reserve("a", limit=5, now=NOW)
    cap.reserve("a", limit=5, now=NOW.replace(month=12, day=1))
    assert place is not None
    cap.give_back(place)

    assert 1 == cap.used("a")


# ── credentials ───────────────────────────────────────────────────────────────────────────────


class Vault:
    """A keyring with one password; another service or user is not asked for."""

    def get_password(self, service: str, user: str) -> str | None:
        assert "agent-runtime-pack" == service
        return KEY if user == "search.apiKey" else None


def test_sources_are_asked_in_order() -> None:
    """The first that has the credential gives it; an empty variable has none."""
    empty = EnvironmentCredentials({"RUNTIME_PACK_CREDENTIAL_SEARCH_APIKEY": ""})
    both = CredentialDesk([empty, KeyringCredentials(Vault())])

    assert KEY == asyncio.run(both.get("search.apiKey", agent="ava"))
    with pytest.raises(CredentialMissing):
        asyncio.run(both.get("other", agent="ava"))


def test_a_refused_credential_is_not_even_looked_for() -> None:
    """The gate comes before the sources."""

    class Untouched:
        def find(self, name: str) -> str | None:
            raise AssertionError(name)

    with pytest.raises(CredentialRefused):
        asyncio.run(
            CredentialDesk([Untouched()], agents=PROFILES).get("search.apiKey", agent="bob")
        )


@pytest.mark.parametrize("value", ["", "a\nb", " a", "a ", "ключ", "a" * 8193, None, "a\0"])
def test_what_no_header_can_hold_is_no_credential(value: Any) -> None:
    """A line break would be another header; the value is not in the message."""
    with pytest.raises(InvalidSetup) as caught:
        check_credential(value)

    assert not value or repr(value)[:4] not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "../x", "a" * 65, None, "a\n"])
def test_a_name_of_a_credential_is_a_word(name: Any) -> None:
    """Nothing that could be a path or an option."""
    with pytest.raises(InvalidSetup):
        check_name(name)


# ── the pack's door ───────────────────────────────────────────────────────────────────────────


def pack_search(tool: WebSearchTool, **parts: Any) -> Any:
    request = SearchRequest(query="kettle", limit=10, **parts)
    port = as_web_search_provider(tool, agent="ava")
    return asyncio.run(run_search(port, request, WebToolCaps(), clock=lambda: NOW))


def test_a_contract_back_end_serves_the_packs_door() -> None:
    """Plain hits, `recency` as a window and no filter, private addresses left to the read."""
    backend = Backend(
        [
            row("http://10.0.0.1/", title="<b>T</b>"),
            row("https://a.example/", publishedAt="2001-01-01"),
        ]
    )
    told: list[SearchRecord] = []
    found = pack_search(tool_over(backend, on_search=told.append), recency=Recency.WEEK)
    (_, options, _) = backend.asked[0]

    assert ["http://10.0.0.1/", "https://a.example/"] == [each.url for each in found.results]
    assert "T" == found.results[0].title
    assert options.freshness is not None
    assert ("P7D", "2026-11-23T12:00:00.000Z") == (
        options.freshness.duration,
        options.freshness.since,
    )
    assert [2] == [each.results for each in told]


def test_recency_is_left_out_where_freshness_is_not_supported() -> None:
    """It is a hint there, not an option."""
    backend = Backend()
    pack_search(tool_over(backend, unsupported=["freshness"]), recency=Recency.DAY)

    assert backend.asked[0][1].freshness is None


@pytest.mark.parametrize(
    ("backend", "config", "detail"),
    [
        (
            Backend(SearchProviderError(ProviderFault.RATE_LIMITED, "x")),
            {},
            ProviderFault.RATE_LIMITED,
        ),
        (Backend(OSError(KEY), keyed=True), {}, ProviderFault.RAISED),
        (Backend([7]), {}, ProviderFault.BAD_ANSWER),
        (Backend(), {"maxSearchesPerDay": 0}, ProviderFault.UNAUTHORIZED),
    ],
)
def test_the_packs_door_fails_as_the_contract_does(
    backend: Backend, config: dict[str, Any], detail: ProviderFault
) -> None:
    """One code, the same word, no key; the cap holds here as well."""
    with pytest.raises(WebToolError) as caught:
        pack_search(tool_over(backend, config=config, credentials=desk(agents=None)))

    shown = "".join(traceback.format_exception(caught.value)) + caught.value.cause
    assert (WebErrorCode.SEARCH_PROVIDER_ERROR, detail) == (caught.value.code, caught.value.detail)
    assert f"OSError('{KEY}" not in shown.replace("Backend", "")
    assert f": {KEY}" not in shown


def test_the_packs_door_holds_the_agent_to_its_profile() -> None:
    """It is the same gate."""
    backend = Backend()
    nobody = AgentProfiles([AgentProfile(id="ava")])
    with pytest.raises(WebToolError) as caught:
        pack_search(tool_over(backend, agents=nobody))

    assert (ProviderFault.UNAUTHORIZED, []) == (caught.value.detail, backend.asked)
    assert "not allowed to use tool" in caught.value.cause


def test_a_pack_provider_serves_the_contract_without_freshness() -> None:
    """Its text is plain, so nothing in it is markup."""
    hits = [SearchHit(title="R&D &amp; <b>", url="https://a.example/", snippet="a < b")]
    provider = as_search_provider(create_fixture_web_search_provider(hits), name="fixture")
    tool = create_web_search_tool(provider=provider, config={}, clock=lambda: NOW)

    assert "R&D &amp; <b>" == ask(tool)["results"][0]["title"]
    assert "freshness" in refusal(tool, freshness="P1D").message


# ── properties ────────────────────────────────────────────────────────────────────────────────

PIECES = [*"<>/!-&;\"'= abBi#x1\n\t\ud800é😀", "<b>", "</b>", "<script>", "&amp;", "&#x3C;", "<!--"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@settings(max_examples=100)
@given(TEXTS)
@example("<a title='")
@example("<script")
def test_any_text_becomes_one_line(text: str) -> None:
    """Total; one line, no control character; plain text survives escaping."""
    plain = plain_text(text)

    assert plain == " ".join(plain.split())
    assert plain == plain_text(escape_text(plain))
    assert isinstance(plain.encode(), bytes)


@pytest.mark.parametrize(
    ("markup", "plain"),
    [
        ("a</script>b", "a b"), ("a</style >b", "a b"), ('<a title="x <b>bold</b> more', '<a title="x bold more'),
        ("a<!-->b", "a b"), ("a <!-- b", "a"), ("<a href=x'>b</a>", "b"), ("x\x07y", "x y"), ("\ud800", "\ufffd"),
        ("&#xD800;", "\ufffd"), ("<SCRIPT>x</ScRiPt>y", "y"), ("<scripty>x", "x"), ("a<b", "a<b"), ("a<wbr>b", "ab"),
        ("<p>a</p >b", "a b"), ("&am<b>p;</b>lt;", "&lt;"), ("<![CDATA[x]]>y", "y"), ("<!x", "<!x"),
    ],
)  # fmt: skip
def test_markup_at_its_edges(markup: str, plain: str) -> None:
    """What ends nothing hides nothing; what is no tag is text."""
    assert plain == plain_text(markup)


def test_an_offset_counts_in_its_direction() -> None:
    """West of UTC is later there, and no clock shows 24 hours or 60 minutes."""
    assert at("2026-09-01T07:00:00-02:00") == at("2026-09-01T09:00:00Z")
    assert published_at("2026-09-01T07:00:00-24:00") is None
    assert published_at("2026-09-01T07:00:00+00:60") is None


def test_few_answers_are_kept() -> None:
    """The oldest goes; one that is asked again does not stay for that."""
    recent = RecentAnswers[int](60)
    for number in range(20):
        recent.keep(number, number, now=NOW)

    assert [None, None, 4, 19] == [recent.find(number, now=NOW) for number in (0, 3, 4, 19)]
    assert recent.find(19, now=NOW.replace(hour=11)) is None


@settings(max_examples=100)
@given(st.datetimes(timezones=st.just(UTC)))
def test_an_instant_is_read_back(instant: datetime) -> None:
    """What we write we accept, to the millisecond, and never later."""
    again = published_at(instant_text(instant))

    assert again is not None
    assert 0 <= (instant - again).total_seconds() < 0.001


@settings(max_examples=100)
@given(st.text(max_size=30))
@example("9999-12-31T23:59:59-23:59")
@example("0001-01-01T00:00:00+01:00")
def test_any_text_is_a_date_a_duration_and_a_site_or_none(text: str) -> None:
    """Total: an answer or a refusal, and a site is its own canonical form."""
    published_at(text)
    with contextlib.suppress(Refused):
        assert freshness_of(text, now=NOW).ms > 0
    with contextlib.suppress(Refused):
        assert site_of(text) == site_of(site_of(text))


@pytest.mark.parametrize("site", ["-", "-.example", "a.-", "-a.example", "a-.example", "--"])
def test_a_site_has_labels_of_letters_and_digits(site: str) -> None:
    """A hyphen begins and ends no label; inside of one it may stand, and so may an underscore."""
    with pytest.raises(Refused):
        site_of(site)
    assert "a-b._srv.xn--strae-oqa.example" == site_of("A-b._srv.straße.example")


@pytest.mark.parametrize("unsupported", [["query"], "site", ["Site"], [7]])
def test_only_options_can_be_left_out(unsupported: Any) -> None:
    """And a text is no list of them."""
    with pytest.raises(InvalidSetup):
        define_search_provider(name="p", search=Backend().search, unsupported=unsupported)


@pytest.mark.parametrize(
    "parts", [{"name": ""}, {"name": "a b"}, {"search": 7}, {"origins": ["x"]}, {"plain": 1}]
)
def test_a_provider_is_defined_strictly(parts: dict[str, Any]) -> None:
    """Each part is of its form, or the back end is refused when it is defined."""
    whole: dict[str, Any] = {"name": "p", "search": Backend().search, **parts}
    with pytest.raises(InvalidSetup):
        define_search_provider(**whole)


def test_a_tool_takes_a_defined_provider() -> None:
    """Nothing that only looks like one."""
    search: SearchFunction = Backend().search
    provider: Any = search
    with pytest.raises(InvalidSetup):
        create_web_search_tool(provider=provider, config={})

    assert isinstance(define_search_provider(name="p", search=search), SearchProvider)
    assert ("count", "site", "freshness") == OPTIONS
