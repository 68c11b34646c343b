"""The kit finds what a back end does wrong: one back end a rule that breaks just that rule."""

import asyncio
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import attrs
import pytest

from egress import EgressPolicy, parse_allowlist
from egress.policy import AddressPolicy
from web_tools import (
    SearchContext,
    SearchOptions,
    SearchProvider,
    SearchRow,
    define_search_provider,
    request_through_policy,
)
from web_tools.corpus import Document
from web_tools.errors import CredentialRefused
from web_tools.providers.local import LocalSearchProvider
from web_tools.testing import (
    ApiAnswer,
    RuleVerdict,
    Sent,
    VendorRow,
    check_search_provider,
)

URL = "https://api.acme.example/search"


@attrs.frozen(kw_only=True)
class Habits:
    """What a back end of this file does; the defaults are right."""

    requests: int = 1
    own_policy: bool = False
    credential: str = "search.apiKey"
    swallows: bool = False
    checks_status: bool = True
    default: Any = None
    repeats_key: bool = False
    site_in_query: bool = False
    ignores_signal: bool = False
    escapes: bool = True
    guesses_dates: bool = False
    keeps_rows: bool = True
    refuses_quotes: bool = False


def backend(habits: Habits) -> SearchProvider:
    async def search(
        query: str, options: SearchOptions, context: SearchContext
    ) -> Sequence[SearchRow]:
        key = await _key(habits, context)
        if habits.refuses_quotes and '"' in query:
            raise ValueError("syntax error")
        sought = f"{query} site:{options.site}" if habits.site_in_query else query
        policy = EgressPolicy(
            allowlist=parse_allowlist(["api.acme.example"]),
            address=AddressPolicy(allow_private_addresses=True),
        )
        answers = [
            await request_through_policy(
                f"{URL}?q={quote(sought)}",
                policy=policy if habits.own_policy else context.policy,
                headers={"X-Key": key},
                signal=None if habits.ignores_signal else context.signal,
                wires=context.wires,
            )
            for _ in range(habits.requests)
        ]
        response = answers[-1]
        if habits.repeats_key:
            raise RuntimeError(f"{key} is not a valid key") if response.status != 200 else OSError
        if habits.checks_status and response.status != 200:
            raise RuntimeError("not 200")
        try:
            rows = response.json()["results"]
            return [_row(habits, row) for row in rows]
        except (ValueError, KeyError, TypeError):
            if habits.default is None:
                raise
            given: Sequence[SearchRow] = habits.default
            return given

    return define_search_provider(name="acme", search=search, origins=[URL])


async def _key(habits: Habits, context: SearchContext) -> str:
    try:
        return await context.credentials.get(habits.credential)
    except CredentialRefused:
        if not habits.swallows:
            raise
        return "none"


def _row(habits: Habits, row: Mapping[str, Any]) -> SearchRow:
    published = row["published"]
    return SearchRow(
        title=row["title"] if habits.keeps_rows else "",
        url=row["url"],
        snippet=row["snippet"].replace("<", "&lt;") if habits.escapes else f"<p {row['snippet']}>",
        published_at="2026-01-01" if habits.guesses_dates and published else published,
    )


def vendor(_: Sent, rows: Sequence[VendorRow]) -> ApiAnswer:
    body = [
        {
            "title": row.title,
            "url": row.url,
            "snippet": row.snippet,
            "published": row.published and row.published.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        for row in rows
    ]
    return ApiAnswer(body=json.dumps({"results": body}))


@functools.cache
def failed(habits: Habits) -> set[str]:
    report = asyncio.run(check_search_provider(lambda: backend(habits), vendor=vendor))
    return {each.rule for each in report.failed}


def test_a_right_back_end_conforms() -> None:
    """No rule is broken, and those that do not apply say why."""
    report = asyncio.run(check_search_provider(lambda: backend(Habits()), vendor=vendor))

    report.assert_conforms()
    assert ["unsupported_is_refused"] == [
        each.rule for each in report.rules if each.verdict is RuleVerdict.SKIPPED
    ]


@pytest.mark.parametrize(
    ("habits", "rule"),
    [
        (Habits(requests=2), "one_request_through_the_policy"),
        (Habits(requests=2), "other_shapes_are_failures"),
        (Habits(own_policy=True), "policy_is_not_derived"),
        (Habits(credential="ACME_API_KEY"), "one_credential_name"),
        (Habits(swallows=True), "refused_credential_ends_the_call"),
        (Habits(checks_status=False), "statuses_are_failures"),
        (Habits(checks_status=False), "statuses_with_rows_are_failures"),
        (Habits(default=()), "other_shapes_are_failures"),
        (Habits(default=()), "long_body_is_a_failure"),
        (Habits(site_in_query=True), "site_is_no_operator"),
        (Habits(refuses_quotes=True), "literal_queries"),
        (Habits(keeps_rows=False), "rows_come_through"),
        (Habits(guesses_dates=True), "dates_are_of_the_table"),
        (Habits(guesses_dates=True), "freshness_is_kept"),
        (Habits(escapes=False), "text_that_looks_like_markup_survives"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_rule_that_is_broken_is_named(habits: Habits, rule: str) -> None:
    """By the name of the rule, with what was seen."""
    assert rule in failed(habits)


def test_a_back_end_that_has_its_own_client_is_found() -> None:
    """No request comes through the policy, so nothing that it claims is believed."""

    async def search(_q: str, _o: SearchOptions, _c: SearchContext) -> Sequence[SearchRow]:
        return [SearchRow(title="t", url="https://a.example/")]

    report = asyncio.run(
        check_search_provider(lambda: define_search_provider(name="own", search=search))
    )
    broken = {each.rule for each in report.failed}

    assert {"one_request_through_the_policy", "broken_connection_is_a_failure", "signal_stops"} > (
        broken & {"signal_stops"}
    )
    assert {"one_request_through_the_policy", "statuses_are_failures"} <= broken
    with pytest.raises(AssertionError, match="one_request_through_the_policy"):
        report.assert_conforms()


def test_the_key_in_an_error_stays_inside() -> None:
    """The engine keeps it in, so the rule holds even for a back end that repeats it."""
    assert "statuses_are_failures" not in failed(Habits(repeats_key=True))


def test_a_back_end_without_requests_is_told_so() -> None:
    """The local index is of the contract as far as it can be asked."""
    pages = [Document(path="/kettle", title="Kettle", text="A kettle is a pot.")]
    with LocalSearchProvider.from_documents(pages, base_url="https://docs.example.com") as local:
        report = asyncio.run(check_search_provider(local.as_search_provider))

    report.assert_conforms()
    skipped = {each.detail for each in report.rules if each.verdict is RuleVerdict.SKIPPED}
    assert "it sends no request" in skipped
