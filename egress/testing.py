"""Strict fakes of the ports, a runner for case rows, and Hypothesis strategies. Public.

The fakes do only what the script says, complain about everything else with `AssertionError`, and
record what they were asked. No socket is opened, except on the loopback interface by
`ScriptedDialer` and `run_proxy_case`. The strategies load Hypothesis when called.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from egress._proxy_testing import (
    ProxyCaseOutcome,
    RecordingObserver,
    ScriptedDialer,
    client_hello,
    hello_message,
    hello_record,
    run_proxy_case,
)
from egress.address import Address, parse_address
from egress.allowlist import Allowlist, parse_allowlist
from egress.client import Fetched, GuardedClient
from egress.errors import AllowlistError, EgressDenied, FetchError, UrlRejected
from egress.policy import AddressPolicy, EgressPolicy
from egress.ports import Headers, HopRequest, HopResponse
from egress.url import Target, parse_target
from egress.violation import Violation

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = (
    "CaseOutcome",
    "Connect",
    "ProxyCaseOutcome",
    "RecordingFetch",
    "RecordingObserver",
    "RecordingTransport",
    "ScriptedAnswer",
    "ScriptedDialer",
    "ScriptedResolver",
    "address_policies",
    "addresses",
    "allowlist_entries",
    "allowlists",
    "answers",
    "assert_no_unlisted_connect",
    "client_hello",
    "hello_message",
    "hello_record",
    "policies",
    "redirect_graphs",
    "references",
    "run_case",
    "run_proxy_case",
    "targets",
    "urls",
)


class ScriptedResolver:
    """Answers from a table. A name that is not in it must not be looked up.

    Args:
        answers: Canonical host to the answers of its first lookup.
        later: Host to the answers of every lookup after the first (DNS rebinding).
        failures: Host to the error its lookup raises.

    Attributes:
        lookups: The hosts that were looked up, in order.
    """

    def __init__(
        self,
        answers: Mapping[str, Sequence[str]] | None = None,
        *,
        later: Mapping[str, Sequence[str]] | None = None,
        failures: Mapping[str, OSError] | None = None,
    ) -> None:
        self._answers = dict(answers or {})
        self._later = dict(later or {})
        self._failures = dict(failures or {})
        self.lookups: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The scripted answers of *host*."""
        again = host in self.lookups
        self.lookups.append(host)
        if host in self._failures:
            raise self._failures[host]
        if host not in self._answers:
            raise AssertionError(f"lookup of {host} port {port} that is not in the script")
        return self._later[host] if again and host in self._later else self._answers[host]

    def assert_used(self) -> None:
        """Complains about scripted names that were never looked up."""
        unused = sorted((self._answers.keys() | self._failures.keys()) - set(self.lookups))
        if unused:
            raise AssertionError(f"scripted names that were never looked up: {unused}")


@attrs.frozen(kw_only=True)
class ScriptedAnswer:
    """What the transport answers to one request.

    Attributes:
        url: The canonical URL the request must have; None takes any.
        error: Raised instead of an answer.
        body_error: Raised after the chunks, in the place of their end.
    """

    status: int = 200
    headers: Headers = ()
    chunks: tuple[bytes, ...] = ()
    url: str | None = None
    error: BaseException | None = None
    body_error: BaseException | None = None

    @classmethod
    def redirect(
        cls, location: str, *, status: int = 302, url: str | None = None
    ) -> ScriptedAnswer:
        """A redirect to *location*."""
        return cls(status=status, headers=(("location", location),), url=url)


@attrs.frozen(kw_only=True)
class Connect:
    """One connection that a real transport would have opened."""

    host: str
    address: Address
    port: int
    vetted: tuple[Address, ...]


def _first(vetted: tuple[Address, ...]) -> Address:
    return vetted[0]


class RecordingTransport:
    """Answers requests from a script, in order, and opens nothing.

    Args:
        script: One answer per request; running out of it is an error.
        choose: Which of the vetted addresses is dialled.
        keep_alive: Whether connections are re-used, as the real transport does.

    Attributes:
        requests: The targets that were requested, in order.
        connects: The connections that were opened, in order.
        closed: How often `aclose` was called.
        open_responses: Answers whose `close` was not called yet.
    """

    def __init__(
        self,
        script: Iterable[ScriptedAnswer],
        *,
        choose: Callable[[tuple[Address, ...]], Address] = _first,
        keep_alive: bool = False,
    ) -> None:
        self._script = list(script)
        self._choose = choose
        self._keep_alive = keep_alive
        self._live: set[str] = set()
        self.requests: list[Target] = []
        self.connects: list[Connect] = []
        self.closed = 0
        self.open_responses = 0

    async def send(self, request: HopRequest) -> HopResponse:
        """The next scripted answer."""
        await self._connect(request)
        self.requests.append(request.target)
        if not self._script:
            raise AssertionError(f"a request to {request.target.origin} that is not in the script")
        answer = self._script.pop(0)
        if answer.url is not None and answer.url != request.target.url:
            raise AssertionError(f"expected {answer.url}, requested {request.target.url}")
        if answer.error is not None:
            raise answer.error
        self.open_responses += 1
        return self._response(answer)

    async def aclose(self) -> None:
        """Counts."""
        self.closed += 1

    def assert_finished(self) -> None:
        """Complains about answers that were never asked for and responses left open."""
        if self._script or self.open_responses:
            raise AssertionError(
                f"{len(self._script)} unused answers, {self.open_responses} responses left open"
            )

    async def _connect(self, request: HopRequest) -> None:
        target = request.target
        if self._keep_alive and target.origin in self._live:
            return
        vetted = await request.addresses()
        address = self._choose(vetted)
        if address not in vetted:
            raise AssertionError(f"{address} is not among the vetted addresses")
        self.connects.append(
            Connect(host=target.host, address=address, port=target.port, vetted=vetted)
        )
        self._live.add(target.origin)

    def _response(self, answer: ScriptedAnswer) -> HopResponse:
        closed = False

        async def close() -> None:
            nonlocal closed
            self.open_responses -= not closed
            closed = True

        return HopResponse(
            status=answer.status,
            headers=answer.headers,
            body=_Chunks(answer.chunks, answer.body_error),
            close=close,
        )


class RecordingFetch:
    """A `Fetch` over a script, for a host that has its own way out.

    Attributes:
        requests: The targets that were requested, in order.
    """

    def __init__(self, script: Iterable[ScriptedAnswer]) -> None:
        self._script = list(script)
        self.requests: list[Target] = []

    async def __call__(self, target: Target, /) -> HopResponse:
        """The next scripted answer."""
        self.requests.append(target)
        if not self._script:
            raise AssertionError(f"a request to {target.origin} that is not in the script")
        answer = self._script.pop(0)
        if answer.error is not None:
            raise answer.error
        return HopResponse(
            status=answer.status,
            headers=answer.headers,
            body=_Chunks(answer.chunks, answer.body_error),
        )


class _Chunks:
    def __init__(self, chunks: Sequence[bytes], error: BaseException | None) -> None:
        self._chunks = list(chunks)
        self._error = error

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._chunks:
            return self._chunks.pop(0)
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration


def assert_no_unlisted_connect(
    transport: RecordingTransport, allowed: Collection[str] | None = None
) -> None:
    """Complains about a connection outside the vetted set, or outside *allowed* when given."""
    for connect in transport.connects:
        if connect.address not in connect.vetted:
            raise AssertionError(f"connected to {connect.address}, which was not vetted")
        if allowed is not None and str(connect.address) not in allowed:
            raise AssertionError(f"connected to {connect.address}, which the case does not allow")


@attrs.frozen(kw_only=True)
class CaseOutcome:
    """What running one row of a case table came to.

    Attributes:
        verdict: "allow", "deny" or "invalid"; "failed" when it was allowed and broke.
        violations: One per denied read.
        lookups: Hosts that were looked up.
        requests: Targets that were requested.
        connects: Connections that were opened.
        fetched: The final answer when allowed.
        error: What it ended with otherwise.
    """

    verdict: str
    violations: tuple[Violation, ...] = ()
    lookups: tuple[str, ...] = ()
    requests: tuple[Target, ...] = ()
    connects: tuple[Connect, ...] = ()
    fetched: Fetched | None = None
    error: Exception | None = None


async def run_case(
    case: Mapping[str, Any], *, choose: Callable[[tuple[Address, ...]], Address] = _first
) -> CaseOutcome:
    """Runs one row through the public client, over fakes.

    Args:
        case: Keys `allowlist`, `url`, and optionally `dns`, `dns_later`, `redirects`, `policy`
            (`allowedHosts`, `allowPrivateAddresses`). Hop i answers 302 with `redirects[i]`, the
            last one 200.
        choose: Which vetted address is dialled.
    """
    resolver = ScriptedResolver(case.get("dns"), later=case.get("dns_later"))
    redirects = [ScriptedAnswer.redirect(each) for each in case.get("redirects", ())]
    transport = RecordingTransport([*redirects, ScriptedAnswer(chunks=(b"ok",))], choose=choose)
    fetched, error = None, None
    try:
        policy = _policy_of(case)
        async with GuardedClient(policy, resolver=resolver, transport=transport) as client:
            fetched = await client.fetch(case["url"])
    except (AllowlistError, UrlRejected, EgressDenied, FetchError) as raised:
        error = raised
    return CaseOutcome(
        verdict=_verdict_of(error),
        violations=(error.violation,) if isinstance(error, EgressDenied) else (),
        lookups=tuple(resolver.lookups),
        requests=tuple(transport.requests),
        connects=tuple(transport.connects),
        fetched=fetched,
        error=error,
    )


def _policy_of(case: Mapping[str, Any]) -> EgressPolicy:
    switches = case.get("policy", {})
    return EgressPolicy(
        allowlist=parse_allowlist(case["allowlist"]),
        address=AddressPolicy(
            allowed_hosts=switches.get("allowedHosts", ()),
            allow_private_addresses=switches.get("allowPrivateAddresses", False),
        ),
    )


def _verdict_of(error: Exception | None) -> str:
    match error:
        case None:
            return "allow"
        case EgressDenied():
            return "deny"
        case AllowlistError() | UrlRejected():
            return "invalid"
        case _:
            return "failed"


_NAMES = (
    "example.org",
    "www.example.org",
    "a.b.example.org",
    "example.com",
    "evil.test",
    "localhost",
    "xn--bcher-kva.example",
    "360.cn",
    "ex_ample.org",
    "10.0.0.1.nip.io",
)
_LITERALS = (
    "8.8.8.8",
    "10.1.2.3",
    "127.0.0.1",
    "169.254.169.254",
    "192.168.0.1",
    # A target to be refused; nothing binds to it.
    "0.0.0.0",  # noqa: S104
    "255.255.255.255",
    "[::1]",
    "[2606:4700::1]",
    "[fd00:ec2::254]",
    "[fd12::1]",
    "[64:ff9b::a00:1]",
    "[2002:7f00:1::]",
    "[::ffff:10.1.2.3]",
)
_NETWORKS = (
    "0.0.0.0/0",
    "8.8.8.0/24",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "192.168.0.0/16",
    "::/0",
    "2606:4700::/32",
    "fc00::/7",
    "64:ff9b::/96",
)
_PORTS = ("", ":80", ":443", ":8443", ":*")


def _st() -> Any:
    # Hypothesis is a tool of tests; the package itself does not depend on it.
    from hypothesis import strategies

    return strategies


def urls() -> SearchStrategy[str]:
    """URL texts: mostly admitted ones over a small world of hosts, some odd, some arbitrary."""
    st = _st()
    hosts = st.sampled_from([*_NAMES, *_LITERALS])
    paths = st.one_of(st.sampled_from(["", "a/b?c#d"]), st.text(max_size=20))
    built = st.builds(
        lambda scheme, host, port, path: f"{scheme}://{host}{port}/{path}",
        st.sampled_from(["http", "https", "HTTP", "ftp"]),
        hosts,
        st.sampled_from(["", ":", ":80", ":443", ":8443", ":0", ":65536"]),
        paths,
    )
    near = st.builds(
        lambda head, tail: f"http{head}{tail}",
        st.text("s:/\\@[]%.?# \t", max_size=6),
        st.text(max_size=30),
    )
    admitted = targets().map(lambda target: target.url)
    found: SearchStrategy[str] = st.one_of(admitted, built, near, st.text(max_size=60))
    return found


def targets() -> SearchStrategy[Target]:
    """Admitted targets over the small world of hosts."""
    st = _st()
    found: SearchStrategy[Target] = st.builds(
        lambda scheme, host, port, path: parse_target(f"{scheme}://{host}{port}/{path}"),
        st.sampled_from(["http", "https"]),
        st.sampled_from([*_NAMES, *_LITERALS]),
        st.sampled_from(["", ":80", ":443", ":8443"]),
        st.sampled_from(["", "a", "a/b?c=d"]),
    )
    return found


def allowlist_entries() -> SearchStrategy[str]:
    """Well-formed entries over the small world of hosts."""
    st = _st()
    wild = [f"*.{name}" for name in _NAMES if "." in name]
    with_port = st.builds(
        lambda host, port: host + port,
        st.sampled_from([*_NAMES, *wild, *_LITERALS]),
        st.sampled_from(_PORTS),
    )
    found: SearchStrategy[str] = st.one_of(with_port, st.sampled_from(_NETWORKS))
    return found


def allowlists(*, max_size: int = 6) -> SearchStrategy[Allowlist]:
    """Parsed lists, the empty one among them."""
    st = _st()
    found: SearchStrategy[Allowlist] = st.builds(
        parse_allowlist, st.lists(allowlist_entries(), max_size=max_size)
    )
    return found


def address_policies() -> SearchStrategy[AddressPolicy]:
    """Every combination of the operator's switches."""
    st = _st()
    found: SearchStrategy[AddressPolicy] = st.builds(
        AddressPolicy,
        allowed_hosts=st.frozensets(st.sampled_from(_NAMES), max_size=2),
        allow_private_addresses=st.booleans(),
        https_only=st.sampled_from([False, False, False, True]),
    )
    return found


def policies() -> SearchStrategy[EgressPolicy]:
    """Whole policies: some over a few entries, some that list most of the small world."""
    st = _st()
    wide = parse_allowlist([*(f"{name}:*" for name in _NAMES), *_NETWORKS])
    found: SearchStrategy[EgressPolicy] = st.builds(
        EgressPolicy,
        allowlist=st.one_of(allowlists(), st.just(wide)),
        address=address_policies(),
    )
    return found


def addresses() -> SearchStrategy[Address]:
    """Addresses of both families, special-purpose ones and their edges over-represented."""
    st = _st()
    special = [text.strip("[]") for text in _LITERALS]
    found: SearchStrategy[Address] = st.one_of(
        st.sampled_from([address for text in special if (address := parse_address(text))]),
        st.ip_addresses(v=4),
        st.ip_addresses(v=6),
    )
    return found


def answers() -> SearchStrategy[list[str]]:
    """What a resolver may answer: nothing, good, bad, mixed, scoped and malformed answers."""
    st = _st()
    odd = st.sampled_from(["", "fe80::1%eth0", "not-an-address", "1.2.3", "::ffff:127.0.0.1"])
    good = st.sampled_from(["93.184.215.14", "151.101.1.69", "2606:4700::1"])
    mixed = st.lists(st.one_of(addresses().map(str), good, odd), max_size=4)
    found: SearchStrategy[list[str]] = st.one_of(st.lists(good, min_size=1, max_size=3), mixed)
    return found


def references() -> SearchStrategy[str]:
    """`Location` values of every form, good and bad."""
    st = _st()
    fixed = [
        *("", "?q", "#frag", "/b", "c", "./c", "../c", "//example.org/x", "///evil.test/"),
        *("http:path", "http:/x", "https:///x", "/\\evil.test", "javascript:alert(1)", "a:b"),
        *("//user@example.org/", "https://example.org@evil.test/", "@evil.test", "/%2f%2fx"),
        *("\r\n/x", " /x ", "/\x00", "/caf\udce9", "/\u00fc", "http://127.0.0.1/", "?", "/.//x"),
    ]
    relative = st.sampled_from(["", "?q", "/b", "c", "../c", "/a:b?c", "@evil.test"])
    absolute = targets().map(lambda target: target.url)
    found: SearchStrategy[str] = st.one_of(
        relative, absolute, st.sampled_from(fixed), urls(), st.text(max_size=30)
    )
    return found


def redirect_graphs() -> SearchStrategy[list[str]]:
    """`Location` values of the hops of one fetch, in order."""
    found: SearchStrategy[list[str]] = _st().lists(references(), max_size=8)
    return found
