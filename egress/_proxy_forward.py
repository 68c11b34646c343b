"""One plain http request through the proxy, rebuilt from checked parts both ways (R13).

One request, one upstream connection, then both ends are closed: nothing that follows a message
can be taken for another. h11 reads and writes the framing on both sides, so that chunk
extensions, trailers and ambiguous lengths end here.
"""

from __future__ import annotations

import asyncio
from typing import Final

import h11

from egress._proxy_replies import VIA
from egress._proxy_side import Side
from egress.proxy_head import ForwardRequest, Framing, end_to_end

_MAX_RESPONSE_HEAD_BYTES: Final = 65_536
_MAX_INFORMATIONAL: Final = 16
_SWITCHING_PROTOCOLS: Final = 101
_HEAD_TOO_LARGE_HINT: Final = 431


class ForwardFailed(Exception):
    """The exchange broke.

    Attributes:
        status: What the client is to be answered, when nothing was answered yet.
        reason: The word for it.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def upstream_request(request: ForwardRequest) -> h11.Request:
    """The request as it goes upstream."""
    headers = [
        (b"Host", request.target.authority.encode("ascii")),
        *request.fields,
        (b"Via", VIA.encode("ascii")),
        (b"Connection", b"close"),
    ]
    match request.framing:
        case Framing.LENGTH:
            headers.append((b"Content-Length", str(request.length).encode("ascii")))
        case Framing.CHUNKED:
            headers.append((b"Transfer-Encoding", b"chunked"))
        case Framing.NONE:
            pass
    return h11.Request(
        method=request.method, target=request.target.path_query, headers=headers, http_version="1.1"
    )


def downstream_headers(response: h11.Response) -> list[tuple[bytes, bytes]]:
    """The fields of *response* for the client.

    `Content-Length` stays, unless a transfer coding made it void (RFC 9112 section 6.3).
    """
    fields = [(name, value) for name, value in response.headers]
    coded = any(name == b"transfer-encoding" for name, _ in fields)
    kept = [
        (name, value)
        for name, value in end_to_end(fields)
        if not (coded and name == b"content-length")
    ]
    return [*kept, (b"Via", VIA.encode("ascii")), (b"Connection", b"close")]


class Forwarding:
    """The exchange of one request.

    Attributes:
        status: The status that was passed on; 0 before there is one.
    """

    def __init__(
        self,
        request: ForwardRequest,
        head: bytes,
        *,
        client: Side,
        upstream: Side,
        max_body_bytes: int,
    ) -> None:
        self.status = 0
        self._request = request
        self._client = client
        self._upstream = upstream
        self._body_left = max_body_bytes
        self._head_left = _MAX_RESPONSE_HEAD_BYTES
        self._fault: ForwardFailed | None = None
        self._down = h11.Connection(h11.SERVER)
        self._up = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_RESPONSE_HEAD_BYTES)
        self._down.receive_data(head)
        self._down.next_event()

    async def run(self) -> None:
        """Passes the request and its answer on, to the answer's end.

        Raises:
            ForwardFailed: It broke; `status` tells whether the client has an answer's head.
        """
        self._upstream.write(self._up.send(upstream_request(self._request)) or b"")
        body = asyncio.create_task(self._pass_body())
        try:
            await self._pass_answer()
        finally:
            # An answer may come before the body is sent; the rest of the body is of no use then.
            body.cancel()
            await asyncio.gather(body, return_exceptions=True)

    async def _pass_body(self) -> None:
        try:
            while (event := await self._body_event()) is not None:
                self._upstream.write(self._up.send(event) or b"")
                await self._upstream.drained()
            self._upstream.write(self._up.send(h11.EndOfMessage()) or b"")
        except ForwardFailed as fault:
            self._fault = fault
            self._upstream.abort()
        except h11.LocalProtocolError:
            # The upstream has broken the protocol meanwhile: the other direction tells.
            self._upstream.abort()

    async def _body_event(self) -> h11.Data | None:
        """The next piece of the body, or None at its end; trailers are not passed on."""
        while True:
            try:
                event = self._down.next_event()
                if event is h11.NEED_DATA:
                    self._down.receive_data(await self._client.read())
                    continue
            except h11.RemoteProtocolError as error:
                raise ForwardFailed(400, "body") from error
            if not isinstance(event, h11.Data):
                return None
            self._body_left -= len(event.data)
            if self._body_left < 0:
                raise ForwardFailed(413, "body_too_large")
            return event

    async def _pass_answer(self) -> None:
        informational = 0
        while True:
            event = await self._answer_event()
            match event:
                case h11.InformationalResponse():
                    informational += 1
                    if informational > _MAX_INFORMATIONAL:
                        raise ForwardFailed(502, "too_many_informational")
                    self._pass_informational(event)
                case h11.Response():
                    self._pass_head(event)
                case h11.Data():
                    self._send(event)
                    await self._client.drained()
                case h11.EndOfMessage():
                    # A trailer could be taken for a header by whoever merges them.
                    self._send(h11.EndOfMessage())
                    return
                case _:
                    raise ForwardFailed(502, "upstream_closed")

    async def _answer_event(self) -> object:
        closed = False
        try:
            while (event := self._up.next_event()) is h11.NEED_DATA:
                data = await self._upstream.read()
                closed = not data
                if closed and self._upstream.cut:
                    # A body that ends with its connection has no other end than a clean one.
                    raise self._fault or ForwardFailed(502, "upstream_closed")
                self._up.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise self._fault or ForwardFailed(502, _reason(error, closed=closed)) from error
        if isinstance(event, h11.ConnectionClosed):
            raise self._fault or ForwardFailed(502, "upstream_closed")
        if isinstance(event, h11.InformationalResponse | h11.Response):
            # h11 bounds only what is incomplete.
            self._head_left -= sum(len(name) + len(value) + 4 for name, value in event.headers)
            if self._head_left < 0:
                raise ForwardFailed(502, "upstream_head_too_large")
        return event

    def _pass_informational(self, event: h11.InformationalResponse) -> None:
        if event.status_code == _SWITCHING_PROTOCOLS:
            # Nobody asked for it: `Upgrade` is not passed on.
            raise ForwardFailed(502, "upstream_protocol")
        if self._down.their_http_version == b"1.1":
            fields = end_to_end([(name, value) for name, value in event.headers])
            self._send(
                h11.InformationalResponse(status_code=event.status_code, headers=list(fields))
            )

    def _pass_head(self, event: h11.Response) -> None:
        self._send(
            h11.Response(
                status_code=event.status_code,
                headers=downstream_headers(event),
                reason=event.reason,
            )
        )
        self.status = event.status_code

    def _send(self, event: h11.Event) -> None:
        try:
            self._client.write(self._down.send(event) or b"")
        except h11.LocalProtocolError as error:
            raise ForwardFailed(502, "upstream_protocol") from error


def _reason(error: h11.RemoteProtocolError, *, closed: bool) -> str:
    if closed:
        return "upstream_closed"
    too_large = error.error_status_hint == _HEAD_TOO_LARGE_HINT
    return "upstream_head_too_large" if too_large else "upstream_protocol"
