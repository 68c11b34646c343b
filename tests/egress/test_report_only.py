"""A client that only reports: verdicts and events as always, nothing blocked but R9."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import pytest
from hypothesis import given, settings

from egress import (
    PUBLIC_HOSTS,
    AddressPolicy,
    Deny,
    DenyReason,
    EgressDenied,
    EgressPolicy,
    FetchError,
    GuardedClient,
    UrlRejected,
    Violation,
    check_answers,
    check_listed,
    parse_allowlist,
    parse_target,
)
from egress.address import is_never_opened
from egress.client import Fetched
from egress.testing import (
    RecordingFetch,
    RecordingTransport,
    ScriptedAnswer,
    ScriptedResolver,
    answers,
    policies,
    targets,
)
from egress.url import Target

_T = TypeVar("_T")
_GOOD = "93.184.215.14"


def _run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    return asyncio.run(coroutine)


@attrs.define
class _Told:
    """An observer that writes down what it was told."""

    violations: list[Violation] = attrs.field(factory=list)
    error: Exception | None = None

    async def __call__(self, violation: Violation, /) -> None:
        self.violations.append(violation)
        if self.error is not None:
            raise self.error


def _reporting(*entries: str, address: AddressPolicy | None = None) -> EgressPolicy:
    return EgressPolicy(
        allowlist=parse_allowlist(entries),
        address=address or AddressPolicy(),
        unsafe_report_only=True,
    )


async def _fetch(
    policy: EgressPolicy,
    url: str,
    told: _Told,
    *,
    dns: Mapping[str, Sequence[str]] | None = None,
    script: Sequence[ScriptedAnswer] = (ScriptedAnswer(chunks=(b"ok",)),),
) -> tuple[Fetched, RecordingTransport]:
    transport = RecordingTransport(script)
    async with GuardedClient(
        policy, resolver=ScriptedResolver(dns), transport=transport, observer=told
    ) as client:
        return await client.fetch(url), transport


def test_what_would_be_refused_is_told_and_fetched() -> None:
    """The list's no and the address policy's no of one hop are two reports; each names its entry."""
    told = _Told()

    fetched, transport = _run(
        _fetch(_reporting(), "http://a.test/x", told, dns={"a.test": ["10.0.0.1", _GOOD]})
    )

    assert b"ok" == fetched.body
    assert ["10.0.0.1"] == [str(connect.address) for connect in transport.connects]
    assert [
        ("R4", DenyReason.HOST_NOT_LISTED, "a.test", False),
        ("R8", DenyReason.ADDRESS_NOT_GLOBAL, "10.0.0.1", False),
    ] == [(each.rule, each.reason, each.nearest_entry, each.enforced) for each in told.violations]


@pytest.mark.parametrize(
    ("entries", "url", "expected"),
    [
        ((), "http://a.test/", [("R12", None), ("R4", "a.test"), ("R8", "10.0.0.1")]),
        (("a.test",), "http://a.test/", [("R12", None), ("R8", "10.0.0.1")]),
        (("a.test",), "http://a.test:81/", [("R12", None), ("R6", "a.test:81"), ("R8", "10.0.0.1:81")]),
        ((), "http://10.0.0.1/", [("R12", None), ("R7", "10.0.0.1")]),
        (("8.8.8.8",), "http://8.8.8.8/", [("R12", None)]),
    ],
)  # fmt: skip
def test_a_scheme_that_would_be_refused_hides_nothing_of_the_list(
    entries: tuple[str, ...], url: str, expected: list[tuple[str, str | None]]
) -> None:
    """Who collects a list from reports needs the entry, whatever `https_only` says besides."""
    told = _Told()
    policy = _reporting(*entries, address=AddressPolicy(https_only=True))

    _run(_fetch(policy, url, told, dns={"a.test": ["10.0.0.1"]}))

    assert expected == [(each.rule, each.nearest_entry) for each in told.violations]
    assert not any(each.enforced for each in told.violations)


def test_every_hop_is_judged_and_told() -> None:
    """A redirect out of the list is followed, and the report keeps the chain."""
    told = _Told()
    script = [ScriptedAnswer.redirect("http://b.test/"), ScriptedAnswer()]

    fetched, _ = _run(
        _fetch(
            _reporting("a.test"),
            "http://a.test/",
            told,
            dns={"a.test": [_GOOD], "b.test": [_GOOD]},
            script=script,
        )
    )

    assert "b.test" == fetched.final.host
    (violation,) = told.violations
    assert (1, "b.test", "a.test") == (
        violation.hop,
        violation.target.host,
        violation.hops[0].host,
    )


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://169.254.169.254/latest/", None),
        ("http://a.test/", ["169.254.169.254"]),
        ("http://a.test/", [_GOOD, "fd00:ec2::254"]),
        ("http://b.test/", ["10.0.0.1", "0.0.0.0"]),
        ("http://a.test/", ["fe80::1%2"]),
    ],
)
def test_what_nothing_opens_is_refused_all_the_same(url: str, found: list[str] | None) -> None:
    """Nothing is connected; the violation says that it was enforced."""
    told = _Told()
    dns = {} if found is None else {parse_target(url).host: found}

    with pytest.raises(EgressDenied) as caught:
        _run(_fetch(_reporting("a.test"), url, told, dns=dns))

    assert caught.value.violation.enforced
    assert caught.value.violation.rule in {"R9", "R10"}


def test_an_observer_that_raises_stops_the_fetch() -> None:
    """What could not be told is not fetched."""
    told = _Told(error=RuntimeError("the log is full"))
    transport = RecordingTransport([])

    async def main() -> None:
        async with GuardedClient(
            _reporting(), resolver=ScriptedResolver(), transport=transport, observer=told
        ) as client:
            await client.fetch("http://a.test/")

    with pytest.raises(RuntimeError, match="the log is full"):
        _run(main())
    assert [] == transport.requests


def test_reporting_needs_someone_to_report_to() -> None:
    """Refused when the client is made, not at the first denial."""
    with pytest.raises(ValueError, match="observer"):
        GuardedClient(_reporting(), transport=RecordingTransport([]))


def test_an_enforcing_policy_never_asks_the_observer() -> None:
    """Whoever forgets to take an observer away has lost nothing."""
    told = _Told()

    with pytest.raises(EgressDenied):
        _run(_fetch(attrs.evolve(_reporting(), unsafe_report_only=False), "http://a.test/", told))

    assert [] == told.violations


def test_a_text_that_is_no_url_stays_refused() -> None:
    """Reporting is about the policy, not about what a URL is."""
    with pytest.raises(UrlRejected):
        _run(_fetch(_reporting(), "http://a.test\\@b.test/", _Told()))


def test_it_works_over_a_fetch_of_the_host() -> None:
    """The list is judged and told; names are looked up elsewhere."""
    told, fetch = _Told(), RecordingFetch([ScriptedAnswer(chunks=(b"ok",))])

    async def main() -> Fetched:
        async with GuardedClient(_reporting(), fetch=fetch, observer=told) as client:
            return await client.fetch("http://a.test/")

    assert b"ok" == _run(main()).body
    assert 1 == len(told.violations)


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        (_reporting("a.test"), "unsafe_report_only"),
        (EgressPolicy(allowlist=PUBLIC_HOSTS), "PUBLIC_HOSTS"),
        (EgressPolicy(allowlist=parse_allowlist(["a.test"])), None),
    ],
)
def test_dangerous_policies_are_logged(
    policy: EgressPolicy, word: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Loudly and by name, when the client is made; an ordinary policy says nothing."""
    with caplog.at_level(logging.WARNING, logger="egress"):
        GuardedClient(policy, transport=RecordingTransport([]), observer=_Told())

    assert ([] if word is None else [word]) == [
        record.getMessage().split(":")[0] for record in caplog.records
    ]


@settings(max_examples=60)
@given(policies(), targets(), answers())
def test_it_reports_what_enforcing_refuses_and_never_dials_r9(
    policy: EgressPolicy, target: Target, found: list[str]
) -> None:
    """Reported or refused exactly when the same policy would deny; R9 is never connected."""
    told = _Told()
    transport = RecordingTransport([ScriptedAnswer()])
    resolver = ScriptedResolver({target.host: found})
    denied = isinstance(check_listed(policy, target), Deny) or (
        not target.is_literal and isinstance(check_answers(policy, target, found), Deny)
    )

    async def main() -> Exception | None:
        reporting = attrs.evolve(policy, unsafe_report_only=True)
        async with GuardedClient(
            reporting, resolver=resolver, transport=transport, observer=told
        ) as client:
            try:
                await client.fetch(target)
            except (EgressDenied, FetchError) as error:
                return error
        return None

    error = _run(main())

    refused = bool(told.violations) or error is not None
    assert denied == refused
    assert all(is_never_opened(connect.address) is None for connect in transport.connects)
    assert not any(each.enforced for each in told.violations)
