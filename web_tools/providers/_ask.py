"""What the adapters of the vendors share: one request per call, and what becomes of its answer.

An adapter is a table: how a call becomes a request, how a document becomes rows. It opens nothing
itself. No redirect is followed, no page is turned, a body has at most 2 MiB, nothing is sent before
the back end may be asked again, and no error holds the query, the key or a word of the vendor's.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlencode

import attrs

from egress.errors import UrlRejected
from egress.policy import AddressPolicy
from egress.ports import FetchLimits
from egress.request import Response, request_through_policy
from egress.url import Target, parse_target
from web_tools.contract.options import SearchOptions
from web_tools.contract.provider import (
    SEARCH_CREDENTIAL_NAME,
    SearchContext,
    SearchProvider,
    SearchRow,
    define_search_provider,
)
from web_tools.errors import InvalidSetup, ProviderFault, SearchProviderError
from web_tools.providers._limiter import Limiter, pause_of

__all__ = (
    "MAX_BODY_BYTES",
    "Adapter",
    "Outgoing",
    "Question",
    "Rows",
    "bad_shape",
    "base_url_of",
    "items",
    "make_provider",
    "member",
    "refused_query",
)

MAX_BODY_BYTES: Final = 2 * 1024 * 1024
_LONGEST_WAIT_SECONDS: Final = 5.0
_SECONDS: Final = 30.0
_LIMITS: Final = FetchLimits(
    max_redirects=0,
    timeout_seconds=_SECONDS,
    max_raw_bytes=MAX_BODY_BYTES,
    max_decoded_bytes=MAX_BODY_BYTES,
)

Rows: TypeAlias = Sequence[SearchRow]


@attrs.frozen(kw_only=True)
class Question:
    """What an adapter makes a request of."""

    query: str
    options: SearchOptions
    context: SearchContext


@attrs.frozen(kw_only=True)
class Outgoing:
    """One request: a path below the base URL, fields of the query, a header, a JSON body.

    Attributes:
        fields: Fields of the URL's query, in order.
        sent: The query as it was sent, for adapters that compare the echo.
    """

    path: str
    fields: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = attrs.field(factory=dict)
    json: Mapping[str, Any] | None = None
    sent: str = ""


# What a status means unless the vendor says otherwise.
_STATUSES: Final[Mapping[int, ProviderFault]] = MappingProxyType(
    {
        400: ProviderFault.QUERY_REFUSED,
        401: ProviderFault.UNAUTHORIZED,
        402: ProviderFault.QUOTA,
        403: ProviderFault.UNAUTHORIZED,
        408: ProviderFault.UNAVAILABLE,
        422: ProviderFault.QUERY_REFUSED,
        429: ProviderFault.RATE_LIMITED,
    }
)


@attrs.frozen(kw_only=True)
class Adapter:
    """One vendor's search API as a table.

    Attributes:
        name: In envelopes and logs.
        base_url: Where it is; only this origin is reached.
        ask: The request for a question, or None when the answer is known to be empty.
        read: The rows of a document.
        key_header: The header that holds the key, and how; the key stands for ``{}``. None for a
            back end that needs none: its credential is never asked for.
        key_field: The field of the URL's query that holds the key instead.
        unsupported: Options that it cannot honour.
        statuses: What a status means here, where it differs.
        judge: Looks at the document of a failed request: a fault, or None for what the status says,
            or rows when the vendor says "nothing found" with an error.
        parse: Bytes to a document; JSON unless it says otherwise.
    """

    name: str
    base_url: str
    ask: Callable[[Question], Outgoing | None]
    read: Callable[[Any, Outgoing], Rows]
    key_header: tuple[str, str] | None = None
    key_field: str | None = None
    unsupported: tuple[str, ...] = ()
    statuses: Mapping[int, ProviderFault] = attrs.field(factory=dict)
    judge: Callable[[int, Any], ProviderFault | Rows | None] | None = None
    parse: Callable[[Response], Any] = Response.json

    @property
    def is_keyed(self) -> bool:
        """Whether it needs the credential."""
        return self.key_header is not None or self.key_field is not None


def base_url_of(url: str) -> Target:
    """The target of a configured URL.

    Raises:
        InvalidSetup: It is no URL that we accept, or holds a query.
    """
    try:
        target = parse_target(url)
    except UrlRejected as error:
        raise InvalidSetup(
            "base_url", f"is not a URL that can be reached: {error.message}"
        ) from error
    if "?" in target.path_query or "#" in url:
        raise InvalidSetup("base_url", "holds a query or a fragment")
    return target


def make_provider(
    adapter: Adapter,
    *,
    limiter: Limiter | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> SearchProvider:
    """The back end of *adapter*.

    Args:
        adapter: The table.
        limiter: Shared by providers that use one key; each has its own by default.
        monotonic: Seconds that never go back.
        sleep: Waits; only for pauses of a few seconds that a back end has asked for.

    Raises:
        InvalidSetup: The base URL is not usable.
    """
    base = base_url_of(adapter.base_url)
    asker = _Asker(adapter, base, limiter or Limiter(), monotonic, sleep)
    return define_search_provider(
        name=adapter.name,
        search=asker.search,
        unsupported=adapter.unsupported,
        origins=(base.origin,),
    )


class _Asker:
    def __init__(
        self,
        adapter: Adapter,
        base: Target,
        limiter: Limiter,
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._adapter = adapter
        self._base = base
        self._limiter = limiter
        self._monotonic = monotonic
        self._sleep = sleep

    async def search(self, query: str, options: SearchOptions, context: SearchContext) -> Rows:
        adapter = self._adapter
        outgoing = adapter.ask(Question(query=query, options=options, context=context))
        if outgoing is None:
            return ()
        key = await self._key(context)
        await self._wait(key)
        response = await request_through_policy(
            self._url(outgoing, key),
            policy=context.policy,
            method="GET" if outgoing.json is None else "POST",
            headers=self._headers(outgoing, key),
            body=None if outgoing.json is None else _encoded(outgoing.json),
            signal=context.signal,
            limits=_LIMITS,
            wires=context.wires,
        )
        pause = pause_of(response.status, response.headers, now=context.now)
        self._limiter.learn(self._slot(key), pause, now=self._monotonic())
        return self._rows(response, outgoing, pause)

    async def _key(self, context: SearchContext) -> str:
        if not self._adapter.is_keyed:
            return ""
        key = await context.credentials.get(SEARCH_CREDENTIAL_NAME)
        if self._base.scheme != "https" and not self._is_own(context):
            raise SearchProviderError(
                ProviderFault.NOT_REACHABLE, "a key is not sent without TLS", retryable=False
            )
        return key

    def _is_own(self, context: SearchContext) -> bool:
        """Whether the operator has named the host, so that it is in the operator's own network."""
        address: AddressPolicy = context.policy.address
        return address.allow_private_addresses or self._base.host in address.allowed_hosts

    async def _wait(self, key: str) -> None:
        pause = self._limiter.wait(self._slot(key), now=self._monotonic())
        if pause > _LONGEST_WAIT_SECONDS:
            raise SearchProviderError(
                ProviderFault.RATE_LIMITED,
                "it has asked not to be asked yet",
                retry_after=str(int(pause) + 1),
            )
        if pause:
            await self._sleep(pause)

    def _slot(self, key: str) -> str:
        return f"{self._adapter.name} {self._base.origin} {key}"

    def _url(self, outgoing: Outgoing, key: str) -> str:
        fields = list(outgoing.fields)
        if self._adapter.key_field is not None:
            fields.insert(0, (self._adapter.key_field, key))
        path = self._base.path_query.rstrip("/") + outgoing.path
        # Spaces as %20: `+` is one in forms only.
        query = urlencode(fields, quote_via=quote, safe="")
        return f"{self._base.origin}{path}" + (f"?{query}" if query else "")

    def _headers(self, outgoing: Outgoing, key: str) -> dict[str, str]:
        headers = {"Accept": "application/json", **outgoing.headers}
        if outgoing.json is not None:
            headers["Content-Type"] = "application/json"
        if self._adapter.key_header is not None:
            name, form = self._adapter.key_header
            headers[name] = form.replace("{}", key)
        return headers

    def _rows(self, response: Response, outgoing: Outgoing, pause: float) -> Rows:
        if response.truncated:
            raise SearchProviderError(ProviderFault.BAD_ANSWER, "an answer of more than 2 MiB")
        if response.status == 200:
            return self._adapter.read(self._document(response), outgoing)
        verdict = self._verdict(response)
        if not isinstance(verdict, ProviderFault):
            return verdict
        limited = verdict is ProviderFault.RATE_LIMITED
        raise SearchProviderError(
            verdict,
            f"it answered {response.status}",
            retryable=_may_pass(verdict, response.status),
            retry_after=str(int(pause) + 1) if limited and pause else None,
        )

    def _document(self, response: Response) -> Any:
        try:
            return self._adapter.parse(response)
        except ValueError as error:
            raise bad_shape(str(error)) from None

    def _verdict(self, response: Response) -> ProviderFault | Rows:
        adapter, status = self._adapter, response.status
        told = None if adapter.judge is None else adapter.judge(status, _lenient(response))
        if told is not None:
            return told
        known = {**_STATUSES, **adapter.statuses}.get(status)
        return ProviderFault.UNAVAILABLE if known is None else known


def _may_pass(fault: ProviderFault, status: int) -> bool | None:
    """Whether the same call may succeed later; a redirect or a 404 is answered again."""
    if fault is ProviderFault.UNAVAILABLE:
        return status == 408 or 500 <= status <= 599
    return None


def _lenient(response: Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def bad_shape(what: str) -> SearchProviderError:
    """The failure for an answer that is not of the vendor's shape; *what* is ours."""
    return SearchProviderError(ProviderFault.BAD_ANSWER, what)


def refused_query(why: str) -> SearchProviderError:
    """The failure for a query that the vendor would refuse; nothing is sent."""
    return SearchProviderError(ProviderFault.QUERY_REFUSED, why)


def member(document: Any, *path: str) -> Any:
    """The value at *path*.

    Raises:
        SearchProviderError: BAD_ANSWER; there is none.
    """
    here = document
    for name in path:
        if not isinstance(here, dict) or name not in here:
            raise bad_shape(f"the answer has no {'.'.join(path)}")
        here = here[name]
    return here


def items(document: Any, *path: str) -> list[dict[str, Any]]:
    """The objects of the list at *path*; what is no object in it is left out.

    Raises:
        SearchProviderError: BAD_ANSWER; there is no list, or a list without any object.
    """
    found = member(document, *path)
    if not isinstance(found, list):
        raise bad_shape(f"{'.'.join(path)} is no list")
    objects = [each for each in found if isinstance(each, dict)]
    if found and not objects:
        raise bad_shape(f"{'.'.join(path)} holds no object")
    return objects
