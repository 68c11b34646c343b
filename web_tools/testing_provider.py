"""`check_search_provider`: is this back end one of the contract? Public.

Every rule has a name and is checked over a scripted API, in the same engine that will run the back
end. A rule that needs an answer in the vendor's own shape is skipped unless the author says how
such an answer looks.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias

import attrs

from egress.errors import ConnectFailed
from egress.url import parse_target
from web_tools._provider_failure import holds_any
from web_tools.contract.engine import SearchRecord
from web_tools.contract.instants import instant_text
from web_tools.contract.options import OPTIONS
from web_tools.contract.provider import SEARCH_CREDENTIAL_NAME, SearchProvider
from web_tools.contract.tool import WebSearchAnswer, create_web_search_tool
from web_tools.errors import CredentialRefused, SearchRefused, WebErrorCode, WebToolError
from web_tools.testing_api import ApiAnswer, ScriptedApi, Sent

__all__ = (
    "Conformance",
    "RuleResult",
    "RuleVerdict",
    "Vendor",
    "VendorRow",
    "check_search_provider",
)

_NOW: Final = datetime(2026, 11, 30, 12, tzinfo=UTC)
# A key with what a URL has to escape.
_KEY: Final = "k3y-SENTINEL/+=xyzzy"
_QUERY: Final = "plugh-SENTINEL kettle"
_SITE: Final = "docs.example.com"
_LITERAL: Final = (
    '"un', "site:example.com kettle", "cats OR dogs", "-kettle", "NEAR( AND * {a} ^b ~c \\d +e !f :g <3",
    "!!g kettle", ":de kettle", "<3 kettle", "кettle 电热水壶 قهوة", "100% of 'that' & more #1 ?",
)  # fmt: skip
_SOME_STATUSES: Final = (201, 302, 400, 401, 429, 500)
_STATUSES: Final = (201, 204, 301, 302, 307, 400, 401, 402, 403, 404, 409, 422, 429, 500, 502, 503)
_NOT_ANSWERS: Final = (
    b"", b"<html>busy</html>", b"{", b"null", b"[]", b"7", b'"x"', b"{}", b'{"results": null}',
    b'{"results": "none"}', b"\xff\xfe\x00", b"[" * 100_000,
)  # fmt: skip
_TOO_LONG: Final = b'{"results": [' + b" " * (9 * 1024 * 1024)


class RuleVerdict(StrEnum):
    """What came of one rule."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@attrs.frozen(kw_only=True)
class RuleResult:
    """One rule by its name; `detail` says what was seen when it failed, or why it was skipped."""

    rule: str
    verdict: RuleVerdict
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.verdict:8}{self.rule}" + (f": {self.detail}" if self.detail else "")


@attrs.frozen(kw_only=True)
class Conformance:
    """The whole table."""

    provider: str
    rules: tuple[RuleResult, ...]

    @property
    def failed(self) -> tuple[RuleResult, ...]:
        """The rules that are not kept."""
        return tuple(each for each in self.rules if each.verdict is RuleVerdict.FAILED)

    def assert_conforms(self) -> None:
        """Pass when every rule that was checked is kept.

        Raises:
            AssertionError: One is not; all of them are named.
        """
        if self.failed:
            told = "\n".join(map(str, self.failed))
            raise AssertionError(f"{self.provider} is not of the contract:\n{told}")

    def __str__(self) -> str:
        return "\n".join((self.provider, *(f"  {each}" for each in self.rules)))


@attrs.frozen(kw_only=True)
class VendorRow:
    """A result as the kit would like the vendor to give it."""

    title: str
    url: str
    snippet: str
    published: datetime | None


Vendor: TypeAlias = Callable[[Sent, Sequence[VendorRow]], ApiAnswer]
"""How the vendor answers a request with these rows; what it cannot say of a row is left out."""


class _Skipped(Exception):
    """Raised by a rule that does not apply; the text says why."""


class _Broken(Exception):
    """Raised by a rule that is not kept."""


async def check_search_provider(
    make_provider: Callable[[], SearchProvider], *, vendor: Vendor | None = None
) -> Conformance:
    """Run the contract's table against a back end.

    Args:
        make_provider: Makes it anew for each rule, so that limiters and counters start afresh.
        vendor: Makes an answer in the vendor's shape. Without it the rules about answers are
            skipped, and said to be.
    """
    bench = _Bench(make_provider, vendor)
    results = [await _checked(name, rule, bench) for name, rule in _RULES.items()]
    return Conformance(provider=make_provider().name, rules=tuple(results))


async def _checked(name: str, rule: _Rule, bench: _Bench) -> RuleResult:
    try:
        await rule(bench)
    except _Skipped as kept:
        return RuleResult(rule=name, verdict=RuleVerdict.SKIPPED, detail=str(kept))
    except _Broken as broken:
        return RuleResult(rule=name, verdict=RuleVerdict.FAILED, detail=str(broken))
    # The back end is the author's: whatever escapes is a rule that is not kept.
    except Exception as error:  # noqa: BLE001
        return RuleResult(rule=name, verdict=RuleVerdict.FAILED, detail=type(error).__name__)
    return RuleResult(rule=name, verdict=RuleVerdict.PASSED)


class _Desk:
    """Gives the key for the one name, and keeps what it was asked for."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.asked: list[str] = []
        self._refuses = refuses

    async def get(self, name: str, *, agent: str) -> str:
        self.asked.append(name)
        if self._refuses or name != SEARCH_CREDENTIAL_NAME:
            raise CredentialRefused(agent, name)
        return _KEY


@attrs.frozen(kw_only=True)
class _Outcome:
    answer: WebSearchAnswer | None
    error: Exception | None
    told: list[SearchRecord]

    def texts(self) -> str:
        """Everything that a log, a traceback or a model could show of it."""
        error = self.error
        shown = "" if error is None else "".join(traceback.format_exception(error))
        cause = getattr(error, "cause", "")
        envelope = "" if self.answer is None else repr(self.answer.envelope["results"])
        return f"{shown}\n{error!r}\n{cause}\n{envelope}\n{self.told!r}"


class _Bench:
    """Makes back ends and runs calls of them."""

    def __init__(self, make_provider: Callable[[], SearchProvider], vendor: Vendor | None) -> None:
        self.make_provider = make_provider
        self._vendor = vendor

    @property
    def vendor(self) -> Vendor:
        if self._vendor is None:
            raise _Skipped("the author does not say how an answer looks (vendor=…)")
        return self._vendor

    def needs_requests(self) -> None:
        if self.make_provider().origins == frozenset():
            raise _Skipped("it sends no request")

    def answering(self, rows: Sequence[VendorRow]) -> Callable[[Sent], ApiAnswer]:
        vendor = self.vendor
        return lambda sent: vendor(sent, rows)

    async def run(
        self,
        script: Callable[[Sent], ApiAnswer],
        *,
        desk: _Desk | None = None,
        addresses: Sequence[str] = ("93.184.216.34",),
        signal: asyncio.Event | None = None,
        **arguments: Any,
    ) -> tuple[_Outcome, ScriptedApi]:
        api = ScriptedApi(script, addresses=addresses)
        told: list[SearchRecord] = []
        provider = self.make_provider()
        own = [parse_target(each).host for each in provider.origins or ()]
        # Self-hosted back ends are where the operator says; the address rule has a rule of its own.
        hosts = own if addresses == ("93.184.216.34",) else []
        tool = create_web_search_tool(
            provider=provider,
            config={"allowedHosts": hosts},
            credentials=desk or _Desk(),
            on_search=told.append,
            clock=lambda: _NOW,
            wires=api.wires,
        )
        answer, error = None, None
        try:
            answer = await tool.run({"query": _QUERY, **arguments}, agent="ava", signal=signal)
        except (WebToolError, SearchRefused) as raised:
            error = raised
        return _Outcome(answer=answer, error=error, told=told), api

    async def failure(self, answer: ApiAnswer, what: str) -> _Outcome:
        """The outcome of a call that must fail, with what every failure must keep to."""
        outcome, api = await self.run(lambda _: answer)
        if outcome.error is None:
            raise _Broken(f"{what} was taken for an answer")
        if getattr(outcome.error, "code", None) is not WebErrorCode.SEARCH_PROVIDER_ERROR:
            raise _Broken(f"{what} is a {type(outcome.error).__name__}")
        if len(api.sent) != 1:
            raise _Broken(f"{what} took {len(api.sent)} requests")
        return outcome

    async def results(self, rows: Sequence[VendorRow], **arguments: Any) -> list[dict[str, Any]]:
        outcome, _ = await self.run(self.answering(rows), **arguments)
        if outcome.answer is None:
            raise _Broken(f"an answer of {len(rows)} rows failed: {outcome.error!r:.200}")
        found: list[dict[str, Any]] = outcome.answer.envelope["results"]
        return found


_Rule: TypeAlias = Callable[[_Bench], Awaitable[None]]


def _rows(count: int, *, host: str = _SITE, published: datetime | None = None) -> list[VendorRow]:
    return [
        VendorRow(
            title=f"Kettle {number}",
            url=f"https://{host}/kettle/{number}",
            snippet=f"Kettle number {number}",
            published=published,
        )
        for number in range(count)
    ]


def _is_quiet(outcome: _Outcome, what: str) -> None:
    for name, secret in (("the key", _KEY), ("the query", "plugh-SENTINEL")):
        if holds_any(outcome.texts(), {secret}):
            raise _Broken(f"{name} is in what {what} leaves behind")


async def _one_request_through_the_policy(bench: _Bench) -> None:
    bench.needs_requests()
    _, api = await bench.run(lambda _: ApiAnswer(status=500))
    if len(api.sent) != 1:
        raise _Broken(f"{len(api.sent)} requests went through the policy that was handed over")


async def _policy_is_not_derived(bench: _Bench) -> None:
    bench.needs_requests()
    outcome, api = await bench.run(lambda _: ApiAnswer(status=500), addresses=("10.1.2.3",))
    if api.sent:
        raise _Broken("a private address was connected to")
    if outcome.error is None:
        raise _Broken("a denied request was taken for an answer")


async def _one_credential_name(bench: _Bench) -> None:
    desk = _Desk()
    await bench.run(lambda _: ApiAnswer(status=500), desk=desk)
    other = sorted(set(desk.asked) - {SEARCH_CREDENTIAL_NAME})
    if other:
        raise _Broken(f"asked for {other[0]!r:.80}")
    if not desk.asked:
        raise _Skipped("it needs no credential")


async def _refused_credential_ends_the_call(bench: _Bench) -> None:
    desk = _Desk(refuses=True)
    outcome, api = await bench.run(lambda _: ApiAnswer(status=500), desk=desk)
    if not desk.asked:
        raise _Skipped("it needs no credential")
    if api.sent:
        raise _Broken("a request was sent without the credential")
    if not isinstance(outcome.error, SearchRefused):
        raise _Broken("the refusal was swallowed")


async def _statuses_are_failures(bench: _Bench) -> None:
    bench.needs_requests()
    headers = (("location", "https://www.example.org/other"),)
    cases = [(status, f"<html>{_KEY} {_QUERY}</html>") for status in _STATUSES]
    for status, body in (*cases, *((status, '{"results": []}') for status in _SOME_STATUSES)):
        answer = ApiAnswer(status=status, headers=headers, body=body)
        _is_quiet(await bench.failure(answer, f"status {status}"), f"status {status}")


async def _statuses_with_rows_are_failures(bench: _Bench) -> None:
    bench.needs_requests()
    answering = bench.answering(_rows(2))
    for status in _SOME_STATUSES:
        outcome, _ = await bench.run(_with_status(answering, status))
        if outcome.error is None:
            raise _Broken(f"status {status} with rows was taken for an answer")


def _with_status(script: Callable[[Sent], ApiAnswer], status: int) -> Callable[[Sent], ApiAnswer]:
    return lambda sent: attrs.evolve(script(sent), status=status)


async def _other_shapes_are_failures(bench: _Bench) -> None:
    bench.needs_requests()
    for body in _NOT_ANSWERS:
        what = f"the body {body[:24]!r}"
        _is_quiet(await bench.failure(ApiAnswer(body=body), what), what)


async def _long_body_is_a_failure(bench: _Bench) -> None:
    bench.needs_requests()
    await bench.failure(ApiAnswer(body=_TOO_LONG), "a body of 9 MiB")


async def _broken_connection_is_a_failure(bench: _Bench) -> None:
    bench.needs_requests()
    for error in (
        ConnectFailed(host="api.example", detail="refused"),
        OSError(f"cannot connect to https://api.example/?api_key={_KEY}&q={_QUERY}"),
    ):
        what = f"a {type(error).__name__}"
        _is_quiet(await bench.failure(ApiAnswer(error=error), what), what)


async def _echoed_secrets_stay_inside(bench: _Bench) -> None:
    row = VendorRow(
        title="Kettle", url=f"https://{_SITE}/k", snippet=f"the key is {_KEY}", published=None
    )
    desk = _Desk()
    outcome, _ = await bench.run(bench.answering([row, *_rows(1)]), desk=desk)
    if not desk.asked:
        raise _Skipped("it needs no credential")
    if holds_any(outcome.texts(), {_KEY}):
        raise _Broken("a row shows the key")


async def _literal_queries(bench: _Bench) -> None:
    bench.needs_requests()
    for query in _LITERAL:
        outcome, api = await bench.run(lambda _: ApiAnswer(status=500), query=query)
        refused = getattr(outcome.error, "detail", "") == "query_refused"
        if len(api.sent) != 1 and not refused:
            raise _Broken(f"the query {query!r} is neither sent nor refused")


async def _site_is_no_operator(bench: _Bench) -> None:
    _needs(bench, "site")
    _, api = await bench.run(lambda _: ApiAnswer(status=500), site="other.example.net")
    for sent in api.sent:
        texts = [*sent.fields.values()] if sent.body is None else [sent.body.decode()]
        if any("site:" in text for text in texts):
            raise _Broken("site: was written into the query")


def _needs(bench: _Bench, option: str) -> None:
    if option in bench.make_provider().unsupported:
        raise _Skipped(f"{option} is declared to be unsupported")


async def _unsupported_is_refused(bench: _Bench) -> None:
    values: dict[str, Any] = {"count": 3, "site": _SITE, "freshness": "P7D"}
    declared = bench.make_provider().unsupported
    for option in (each for each in OPTIONS if each in declared):
        outcome, api = await bench.run(lambda _: ApiAnswer(status=500), **{option: values[option]})
        if api.sent or getattr(outcome.error, "code", None) is not WebErrorCode.INVALID_INPUT:
            raise _Broken(f"{option} was not refused before a request")
    if not declared:
        raise _Skipped("every option is honoured")


async def _signal_stops(bench: _Bench) -> None:
    bench.needs_requests()
    signal = asyncio.Event()
    signal.set()
    outcome, api = await bench.run(lambda _: ApiAnswer(status=500), signal=signal)
    if api.sent or outcome.error is None:
        raise _Broken("a request was sent although nobody waits for it")


async def _rows_come_through(bench: _Bench) -> None:
    found = await bench.results(_rows(3))
    if [row["title"] for row in found] != ["Kettle 0", "Kettle 1", "Kettle 2"]:
        raise _Broken(f"titles and order are {[row['title'] for row in found]!r:.200}")
    if not all("number" in row["snippet"] for row in found):
        raise _Broken("a snippet is missing")


async def _nothing_found_is_an_answer(bench: _Bench) -> None:
    if await bench.results([]):
        raise _Broken("results were made up")


async def _count_is_a_maximum(bench: _Bench) -> None:
    for count in (1, 7):
        found = await bench.results(_rows(12), count=count)
        if len(found) != count:
            raise _Broken(f"{len(found)} results for a count of {count}")


async def _site_is_kept(bench: _Bench) -> None:
    _needs(bench, "site")
    rows = [*_rows(1, host="notdocs.example.com"), *_rows(1, host="a.docs.example.com")]
    found = await bench.results(rows, site=_SITE)
    if any(_SITE not in row["url"] or "//not" in row["url"] for row in found):
        raise _Broken("a result is of another site")


async def _freshness_is_kept(bench: _Bench) -> None:
    _needs(bench, "freshness")
    old, new = _NOW - timedelta(days=30), _NOW - timedelta(days=2)
    rows = [*_rows(1, published=old), *_rows(1), *_rows(2, published=new)[1:]]
    found = await bench.results(rows, freshness="P7D")
    if [row["title"] for row in found] != ["Kettle 1"]:
        raise _Broken("old or undated results are kept, or fresh ones lost")


async def _dates_are_of_the_table(bench: _Bench) -> None:
    at = _NOW - timedelta(days=2)
    found = await bench.results(_rows(1, published=at))
    for row in found:
        date = row.get("publishedAt")
        early = date is not None and date < instant_text(at - timedelta(days=1))
        if early or (date is not None and date > instant_text(at)):
            raise _Broken(f"{instant_text(at)} is read as {date}")


async def _text_that_looks_like_markup_survives(bench: _Bench) -> None:
    row = VendorRow(
        title="a < b", url=f"https://{_SITE}/k", snippet="I <3 kettles & a < b", published=None
    )
    seen = [each["snippet"] for each in await bench.results([row])]
    if seen != [row.snippet]:
        raise _Broken(f"the snippet is {seen!r:.200}")


_RULES: Final[dict[str, _Rule]] = {
    "one_request_through_the_policy": _one_request_through_the_policy,
    "policy_is_not_derived": _policy_is_not_derived,
    "one_credential_name": _one_credential_name,
    "refused_credential_ends_the_call": _refused_credential_ends_the_call,
    "statuses_are_failures": _statuses_are_failures,
    "statuses_with_rows_are_failures": _statuses_with_rows_are_failures,
    "other_shapes_are_failures": _other_shapes_are_failures,
    "long_body_is_a_failure": _long_body_is_a_failure,
    "broken_connection_is_a_failure": _broken_connection_is_a_failure,
    "literal_queries": _literal_queries,
    "site_is_no_operator": _site_is_no_operator,
    "unsupported_is_refused": _unsupported_is_refused,
    "signal_stops": _signal_stops,
    "rows_come_through": _rows_come_through,
    "nothing_found_is_an_answer": _nothing_found_is_an_answer,
    "count_is_a_maximum": _count_is_a_maximum,
    "site_is_kept": _site_is_kept,
    "freshness_is_kept": _freshness_is_kept,
    "dates_are_of_the_table": _dates_are_of_the_table,
    "text_that_looks_like_markup_survives": _text_that_looks_like_markup_survives,
    "echoed_secrets_stay_inside": _echoed_secrets_stay_inside,
}
