"""Pages for one call: fetched under the egress policy, or taken from the cache and judged anew.

A client is made for each call and closed with it, so that no connection, cookie or count of one call is
another's. Nothing is sent but the request of the transport: no credential, no cookie, no profile.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import attrs

from citations.citation import KnowledgeCitation
from citations.digests import document_id, revision_id
from egress.allowlist import Allowlist, parse_allowlist
from egress.client import Fetched, GuardedClient, RunMeter
from egress.decision import Deny, check_listed
from egress.errors import EgressDenied, EgressError
from egress.policy import PUBLIC_HOSTS, AddressPolicy, EgressPolicy, PublicHosts, layered_policy
from egress.ports import Fetch, FetchLimits, Resolver, RunLimits, Transport
from egress.url import Target, parse_target
from egress.violation import violation_of
from web_tools.arguments import ReadRequest
from web_tools.errors import InvalidSetup, WebToolError, error_from_egress
from web_tools.extract import Detail, Extractor
from web_tools.plugin.bounds import PluginBounds
from web_tools.plugin.outcomes import PluginCode, UrlFailed
from web_tools.read import Page, PageReader

if TYPE_CHECKING:
    from web_tools.page_cache import CachedContent, PageCache

__all__ = ("CallPages", "GuardedReader", "PageSource", "ReadPage", "failed_read")

_MAX_REDIRECTS: Final = 5
_REQUESTS: Final = 32 * (_MAX_REDIRECTS + 1)
# RFC 9111 section 5.2.2: what a server does not want kept.
_NOT_KEPT: Final = frozenset({"no-store", "private"})
_FORM: Final = 1

Lists: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
Follow: TypeAlias = Callable[[Target, Target], None]


@attrs.frozen(kw_only=True)
class ReadPage:
    """One page with readable text.

    Attributes:
        cached: Whether it was taken from the cache; `fetched_at` says how old it is.
    """

    url: str
    final_url: str
    title: str
    content_type: str
    text: str = attrs.field(repr=False)
    fetched_at: datetime
    cached: bool = False

    @property
    def citation(self) -> KnowledgeCitation:
        """Of the whole text."""
        return KnowledgeCitation(
            source_id=parse_target(self.final_url).host,
            document_id=document_id(self.final_url),
            path=self.final_url,
            revision_id=revision_id(self.text),
            retrieved_at=self.fetched_at,
        )


class CallPages(Protocol):
    """The pages of one call."""

    async def read(self, url: str) -> ReadPage:
        """One page.

        Raises:
            WebToolError: It could not be had, by the codes of every door.
            UrlFailed: It could, and cannot be used.
        """
        ...


class PageSource(Protocol):
    """Where a call gets its pages; `GuardedReader` is one."""

    def open(self, bounds: PluginBounds) -> AbstractAsyncContextManager[CallPages]:
        """The pages of one call."""
        ...


def _now() -> datetime:
    return datetime.now(UTC)


@attrs.frozen(kw_only=True)
class GuardedReader:
    """Reads pages under a policy.

    Attributes:
        hosts: What may be read: `PUBLIC_HOSTS`, every host with a public address, or entries of a
            list. Source: the search plugin text has no host rule; the address policy holds.
        lists: Lists of a contract that an address has to be in as well.
        address: The operator's exemptions from the address check.
        fetch: Performs one hop in the place of our own transport.
        resolver: Answers names, in tests.
        transport: Makes what performs the hops of one call, in tests.
        cache: Keeps pages; None keeps none.
        follow: Is asked before a redirect is followed; what it raises ends the read of that page.
        clock: The time of day, aware.
    """

    hosts: PublicHosts | Allowlist | Sequence[str] = PUBLIC_HOSTS
    lists: Lists = ()
    address: AddressPolicy = attrs.field(factory=AddressPolicy)
    fetch: Fetch | None = None
    resolver: Resolver | None = None
    transport: Callable[[], Transport] | None = None
    cache: PageCache | None = None
    follow: Follow | None = None
    clock: Callable[[], datetime] = _now

    def __attrs_post_init__(self) -> None:
        """Refuse at once what no page could be read under.

        Raises:
            AllowlistError: An entry is malformed.
            InvalidSetup: Every host and every private address together would leave no rule.
        """
        if isinstance(self.hosts, PublicHosts) and self.address.allow_private_addresses:
            raise InvalidSetup("hosts", "name hosts where allow_private_addresses is set")
        # It is made again for each call, which costs little beside a page.
        _ = self.policy

    @property
    def policy(self) -> EgressPolicy:
        """What may be read."""
        if not self.lists:
            listed = self.hosts
            if not isinstance(listed, PublicHosts | Allowlist):
                listed = parse_allowlist(listed)
            return EgressPolicy(allowlist=listed, address=self.address)
        layers: dict[str, Allowlist | Sequence[str]] = {}
        if not isinstance(self.hosts, PublicHosts):
            layers["plugin"] = self.hosts
        for name, entries in self.lists:
            # Two lists of one name hold both.
            layers[f"{name} {len(layers)}" if name in layers else name] = entries
        return layered_policy(layers, address=self.address)

    @asynccontextmanager
    async def open(self, bounds: PluginBounds) -> AsyncIterator[CallPages]:
        """The pages of one call; its connections and workers are gone afterwards."""
        policy = self.policy
        meter = RunMeter(
            RunLimits(
                max_requests=_REQUESTS, max_bytes=bounds.call_bytes, max_concurrent=bounds.fetches
            )
        )
        client = GuardedClient(
            policy,
            limits=FetchLimits(max_raw_bytes=bounds.page_bytes),
            fetch=self.fetch,
            resolver=self.resolver,
            transport=None if self.transport is None else self.transport(),
            meter=meter,
            follow=self.follow,
        )
        async with client, Extractor() as extractor:
            yield _OpenPages(self, policy, bounds, meter, client, extractor)


class _Client:
    """The client of one page: bounds each of its fetches, and knows whether the answers may be kept."""

    def __init__(self, client: GuardedClient, page_bytes: int) -> None:
        self._client = client
        self._page_bytes = page_bytes
        self.may_keep = True

    async def fetch(self, url: str | Target, *, limits: FetchLimits | None = None) -> Fetched:
        held = attrs.evolve(limits or FetchLimits(), max_raw_bytes=self._page_bytes)
        fetched = await self._client.fetch(url, limits=held)
        said = ",".join(value for name, value in fetched.headers if name == "cache-control")
        words = {word.partition("=")[0].strip().lower() for word in said.split(",")}
        self.may_keep = self.may_keep and _NOT_KEPT.isdisjoint(words)
        return fetched


@attrs.frozen
class _OpenPages:
    """See `GuardedReader.open`."""

    reader: GuardedReader
    policy: EgressPolicy
    bounds: PluginBounds
    meter: RunMeter
    client: GuardedClient
    extractor: Extractor

    async def read(self, url: str) -> ReadPage:
        """One page, of the cache or of the web."""
        asked = self._listed(url)
        known = await self._cached(asked)
        if known is not None:
            return known
        client = _Client(self.client, self.bounds.page_bytes)
        reader = PageReader(
            client, self.extractor, clock=self.reader.clock, follow=self.reader.follow
        )
        page = await reader.read(
            ReadRequest(
                url=asked.url,
                max_bytes=self.bounds.text_bytes,
                max_redirects=_MAX_REDIRECTS,
                timeout_seconds=self.bounds.url_seconds,
            )
        )
        self._require_usable(page)
        if client.may_keep:
            await self._keep(asked, page)
        return ReadPage(
            url=page.url,
            final_url=page.final_url,
            title=page.title or "",
            content_type=page.content_type,
            text=page.text,
            fetched_at=page.fetched_at,
        )

    def _listed(self, url: str) -> Target:
        """The target of *url*, which the list is asked about before anything else."""
        try:
            target = parse_target(url)
            verdict = check_listed(self.policy, target)
            if isinstance(verdict, Deny):
                raise EgressDenied(violation_of(verdict, target))
        except EgressError as error:
            raise error_from_egress(error) from error
        return target

    def _require_usable(self, page: Page) -> None:
        if page.truncated:
            spent = self.meter.raw_bytes >= self.bounds.call_bytes
            raise UrlFailed(PluginCode.CALL_LIMIT if spent else PluginCode.TOO_LARGE)
        if page.detail is Detail.INTERSTITIAL:
            raise UrlFailed(PluginCode.INTERSTITIAL)
        if page.detail is not None or not page.text.strip():
            raise UrlFailed(PluginCode.EMPTY_CONTENT)

    # ── the cache ─────────────────────────────────────────────────────────────────────────────

    def _name(self, target: Target) -> str:
        """Under what a page is kept."""
        scope = _scope(self.policy, proxied=self.reader.fetch is not None)
        return f"plugin {_FORM} {scope} {target.url}"

    async def _cached(self, asked: Target) -> ReadPage | None:
        cache = self.reader.cache
        if cache is None:
            return None
        found = await asyncio.to_thread(cache.find, self._name(asked))
        return None if found is None else self._admitted(asked, found)

    def _admitted(self, asked: Target, found: CachedContent) -> ReadPage | None:
        """The page that was kept, when its way is open now as well; None to fetch it anew.

        Raises:
            Whatever `follow` raises: the label rules hold of a page that was kept, too.
        """
        note = _note_of(found.note)
        if note is None:
            return None
        way: list[Target] = []
        try:
            way = [parse_target(url) for url in note["way"]]
        except EgressError:
            return None
        if any(isinstance(check_listed(self.policy, each), Deny) for each in way):
            return None
        if self.reader.follow is not None:
            for before, target in pairwise(way):
                self.reader.follow(before, target)
        try:
            text = found.content.decode()
        except UnicodeDecodeError:
            return None
        return ReadPage(
            url=asked.document_url,
            final_url=note["final_url"],
            title=note["title"],
            content_type=note["content_type"],
            text=text,
            fetched_at=found.stored_at,
            cached=True,
        )

    async def _keep(self, asked: Target, page: Page) -> None:
        cache = self.reader.cache
        if cache is None:
            return
        way = [*(hop.target.url for hop in page.hops), page.final_url]
        note = {
            "way": way,
            "final_url": page.final_url,
            "title": page.title or "",
            "content_type": page.content_type,
        }
        data = json.dumps(note).encode()
        try:
            await asyncio.to_thread(cache.keep, self._name(asked), page.text.encode(), note=data)
        except ValueError:
            # A note that is too long: a way of very long addresses is not kept.
            return


def _scope(policy: EgressPolicy, *, proxied: bool) -> str:
    """A digest of the rules: another policy, or another way out, has pages of its own.

    What the exemption of one operator opened is not to be read under a policy without it.
    """
    own = policy.address
    rules: list[object] = [
        sorted(map(str, policy.allowlist.entries)),
        [[layer.name, sorted(map(str, layer.allowlist.entries))] for layer in policy.layers],
        [sorted(own.allowed_hosts), own.allow_private_addresses, own.https_only],
        proxied,
    ]
    return hashlib.sha256(json.dumps(rules).encode()).hexdigest()


def _note_of(note: bytes) -> Mapping[str, Any] | None:
    """The note, when it is one of ours."""
    try:
        body = json.loads(note)
    except ValueError:
        return None
    if not isinstance(body, dict) or body.keys() != {"way", "final_url", "title", "content_type"}:
        return None
    way = body.pop("way")
    texts = [*body.values(), *(way if isinstance(way, list) else [None])]
    if not all(isinstance(each, str) for each in texts):
        return None
    return {**body, "way": way}


def failed_read(error: WebToolError) -> UrlFailed:
    """What a page that could not be had is told as."""
    if error.detail == "run_cap":
        return UrlFailed(PluginCode.CALL_LIMIT)
    return UrlFailed(str(error.code), error.message, retryable=error.retryable, detail=error.detail)
