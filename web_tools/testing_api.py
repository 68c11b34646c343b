"""A vendor's search API in memory: answers from a script, and keeps what it was sent. Public.

It stands where the network does, below the egress policy, so an adapter is tested with the policy
that it will meet. No socket is opened; an answer that is not in the script is an `AssertionError`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import attrs

from egress.ports import Headers, HopRequest, HopResponse
from egress.request import Wires

__all__ = ("ApiAnswer", "ScriptedApi", "Sent")

_PUBLIC: Final = "93.184.216.34"


@attrs.frozen(kw_only=True)
class Sent:
    """One request as it left.

    Attributes:
        headers: Names lower-case.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None

    @property
    def path(self) -> str:
        """The path of the URL."""
        return urlsplit(self.url).path

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the URL's query, decoded."""
        return dict(
            parse_qsl(urlsplit(self.url).query, keep_blank_values=True, strict_parsing=True)
        )

    @property
    def json(self) -> Any:
        """The body as JSON; None without one."""
        return None if self.body is None else json.loads(self.body)


@attrs.frozen(kw_only=True)
class ApiAnswer:
    """What the vendor answers.

    Attributes:
        body: Bytes and text go out as they are, anything else as JSON.
        error: Raised in the place of an answer.
    """

    status: int = 200
    body: Any = b""
    headers: Headers = ()
    error: BaseException | None = None

    def encoded(self) -> bytes:
        """The body as bytes."""
        if isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


Script: TypeAlias = Iterable[ApiAnswer] | Callable[[Sent], ApiAnswer]


class ScriptedApi:
    """Answers requests, in order or by a function, and opens nothing.

    Args:
        script: The answers, or what makes one for a request.
        addresses: What every name resolves to; a public address by default.

    Attributes:
        sent: The requests, in order.
    """

    def __init__(self, script: Script, *, addresses: Sequence[str] = (_PUBLIC,)) -> None:
        self._answer = script if callable(script) else _in_order(script)
        self._addresses = tuple(addresses)
        self.sent: list[Sent] = []

    @property
    def wires(self) -> Wires:
        """For `create_web_search_tool(wires=…)`."""
        return Wires(transport=lambda: _Transport(self), resolver=_Resolver(self._addresses))

    def answer(self, sent: Sent) -> ApiAnswer:
        """The answer to one request, which is kept."""
        self.sent.append(sent)
        return self._answer(sent)


def _in_order(script: Iterable[ApiAnswer]) -> Callable[[Sent], ApiAnswer]:
    left = list(script)

    def answer(sent: Sent) -> ApiAnswer:
        if not left:
            raise AssertionError(
                f"a request to {urlsplit(sent.url).netloc} that is not in the script"
            )
        return left.pop(0)

    return answer


@attrs.frozen
class _Resolver:
    addresses: tuple[str, ...]

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The one answer."""
        del host, port
        return self.addresses


@attrs.frozen
class _Transport:
    api: ScriptedApi

    async def send(self, request: HopRequest) -> HopResponse:
        """The scripted answer, after the addresses were vetted as a real transport has them."""
        await request.addresses()
        headers = {name.lower(): value for name, value in request.headers}
        answer = self.api.answer(
            Sent(method=request.method, url=request.target.url, headers=headers, body=request.body)
        )
        if answer.error is not None:
            raise answer.error
        return HopResponse(
            status=answer.status, headers=answer.headers, body=_body(answer.encoded())
        )

    async def aclose(self) -> None:
        """Holds nothing."""


async def _body(content: bytes) -> AsyncIterator[bytes]:
    if content:
        yield content
