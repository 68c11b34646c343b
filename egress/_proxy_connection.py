"""One client connection of the proxy, from its first byte to its access record, and its run.

The order of the checks is the order of the methods: head, token, caps, list, lookup, address
policy, ClientHello, dial. Each that refuses answers and ends the set-up by raising.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NoReturn, Protocol

from egress._proxy_forward import ForwardFailed, Forwarding
from egress._proxy_replies import (
    ALERT_ACCESS_DENIED,
    ALERT_INTERNAL_ERROR,
    ESTABLISHED,
    EVENT_ID,
    denial_reply,
    reply,
)
from egress._proxy_side import Side
from egress._proxy_values import (
    AccessRecord,
    Dialer,
    Outcome,
    ProxyDenial,
    ProxyLimits,
    ProxyObserver,
    ProxyRun,
)
from egress.address import Address
from egress.client_hello import (
    AnswerReader,
    HelloReader,
    NeedMore,
    check_hello,
    leading_record,
)
from egress.decision import Deny, DenyReason, check_answers, check_listed
from egress.policy import EgressPolicy
from egress.ports import Resolver
from egress.proxy_head import (
    MAX_HEAD_BYTES,
    ConnectRequest,
    Credentials,
    ForwardRequest,
    HeadReason,
    HeadRefused,
    ProxyRequest,
    end_of_head,
    parse_head,
)
from egress.url import Target
from egress.violation import violation_of

_TLS_PORT: Final = 443
# How long a client may take to read an answer that ends its connection.
_LINGER_SECONDS: Final = 2.0
# One dead address must not use up the time of the ones after it.
_ATTEMPT_SECONDS: Final = 4.0


class Proxy(Protocol):
    """What a connection asks of the proxy that it belongs to."""

    @property
    def observer(self) -> ProxyObserver:
        """Is told of denials."""
        ...

    @property
    def dialer(self) -> Dialer:
        """Opens connections."""
        ...

    @property
    def head_seconds(self) -> float:
        """For a client to send its request head."""
        ...

    @property
    def observer_seconds(self) -> float:
        """For the observer to record one denial."""
        ...

    def runner_of(self, credentials: Credentials | None) -> Runner | None:
        """Whose credentials these are."""
        ...

    def opened(self, connection: Connection) -> bool:
        """Whether a new connection may stay."""
        ...

    def known(self, connection: Connection) -> None:
        """It works for a run from now on, and is counted there."""

    def is_crowded(self, runner: Runner) -> bool:
        """Whether it would take a place that is kept for other runs."""
        ...

    def gone(self, connection: Connection, record: AccessRecord) -> None:
        """A connection has ended."""

    def fail(self, error: Exception) -> None:
        """The observer has failed."""

    def is_own(self, address: Address, port: int) -> bool:
        """Whether the proxy listens there."""
        ...


class Runner:
    """One run at work: what it has used, and what of it is open."""

    def __init__(self, run: ProxyRun, resolver: Resolver) -> None:
        self.run = run
        self.resolver = resolver
        self.open: set[Connection] = set()
        self.is_over = False
        self.bytes_left = run.limits.max_bytes
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(run.limits.lifetime_seconds, self.end, "run_expired")

    def end(self, reason: str) -> None:
        self.is_over = True
        self.forget()
        for connection in tuple(self.open):
            connection.abort(reason)

    def forget(self) -> None:
        self._expiry.cancel()

    def refusal(self) -> str | None:
        """Why no connection more is taken, or None."""
        if self.bytes_left <= 0:
            return "max_bytes"
        if len(self.open) >= self.run.limits.max_connections:
            return "max_connections"
        return None

    def spend(self, count: int) -> bool:
        """Counts bytes; at the cap every connection of the run ends."""
        self.bytes_left -= count
        if self.bytes_left >= 0:
            return True
        for connection in tuple(self.open):
            connection.abort("max_bytes")
        return False


class _Answered(Exception):
    """The client got its last answer: nothing more is to be done for it."""


class Connection:
    """One client connection, from its first byte to its access record."""

    __slots__ = (
        "_asked_again",
        "_dialled",
        "_event_id",
        "_loop",
        "_outcome",
        "_proxy",
        "_reason",
        "_recorded",
        "_request",
        "_runner",
        "_spliced",
        "_started",
        "_status",
        "_task",
        "_telling",
        "_timer",
        "_touched",
        "bytes_down",
        "bytes_up",
        "client",
        "number",
        "upstream",
    )

    def __init__(self, proxy: Proxy, number: int) -> None:
        self.number = number
        self.client = Side(self)
        self.upstream: Side | None = None
        self.bytes_up = self.bytes_down = 0
        self._proxy = proxy
        self._loop = asyncio.get_running_loop()
        self._runner: Runner | None = None
        self._request: ProxyRequest | None = None
        self._task: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[str] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._started = self._touched = self._loop.time()
        self._outcome = Outcome.LEFT
        self._status = 0
        self._reason = ""
        self._event_id: str | None = None
        self._dialled = ""
        self._spliced = False
        self._asked_again = False
        self._recorded = False

    # ── what its two sides say ────────────────────────────────────────────────────────────────

    def side_opened(self, side: Side) -> None:
        if side is not self.client:
            return
        if not self._proxy.opened(self):
            self._recorded = True
            side.abort()
            return
        self._task = self._loop.create_task(self._serve())
        # Not a `finally` inside: a task that is cancelled before its first step runs nothing.
        self._task.add_done_callback(self._served)

    def side_received(self, side: Side, count: int) -> bool:
        self._touched = self._loop.time()
        if side is self.client:
            self.bytes_up += count
        else:
            self.bytes_down += count
        return self._runner is None or self._runner.spend(count)

    def side_ended(self, side: Side) -> None:
        upstream = self.upstream
        if self._spliced and upstream is not None and self.client.ended and upstream.ended:
            self.client.close()
            upstream.close()
        elif side is upstream and self._asked_again:
            self._give_up_hello()
        elif side is self.client and self._is_answered:
            side.close()
        elif side is self.client and self._outcome is Outcome.FORWARDED and upstream is not None:
            # A client of HTTP that sends no more has gone; nobody half-closes there.
            upstream.abort()

    def side_lost(self, side: Side, error: Exception | None) -> None:
        other = self.upstream if side is self.client else self.client
        if side is self.upstream and self._asked_again and not self.client.lost:
            self._give_up_hello(cut=side.cut)
        if error is not None and not self._reason and self._spliced:
            self._reason = "reset"
        if other is not None and (side is self.client or self._spliced):
            # What was received before a clean end is still delivered. A reset stays a reset:
            # what it has cut must not look whole.
            if error is None and self._spliced:
                other.close()
            else:
                other.reset()
        self._finish()

    def _give_up_hello(self, *, cut: bool = False) -> None:
        """The server has gone that a second ClientHello was to be checked for."""
        self._asked_again = False
        if cut:
            self._reason = self._reason or "reset"
            self.client.reset()
        if self._task is not None:
            self._task.cancel()

    @property
    def _is_answered(self) -> bool:
        return self._task is None and not self._spliced

    # ── its end ───────────────────────────────────────────────────────────────────────────────

    def stop_gently(self) -> None:
        """The proxy stops: who has no target yet gets none."""
        if self._request is None:
            self.abort("stopped")

    def abort(self, reason: str) -> None:
        """Ends it now."""
        self._reason = self._reason or reason
        if self._task is not None:
            self._task.cancel()
        self.client.reset()
        if self.upstream is not None:
            self.upstream.reset()

    def _finish(self) -> None:
        upstream = self.upstream
        working = self._task is not None or self._telling is not None
        busy = working or not self.client.lost
        if busy or self._recorded or (upstream is not None and not upstream.lost):
            return
        self._recorded = True
        if self._timer is not None:
            self._timer.cancel()
        if self._runner is not None:
            self._runner.open.discard(self)
        self._proxy.gone(self, self._record())

    def _record(self) -> AccessRecord:
        request = self._request
        method = ""
        if request is not None:
            method = "CONNECT" if isinstance(request, ConnectRequest) else request.method
        return AccessRecord(
            connection=self.number,
            run=None if self._runner is None else self._runner.run.run,
            outcome=self._outcome,
            status=self._status,
            reason=self._reason,
            method=method,
            host="" if request is None else request.target.host,
            port=0 if request is None else request.target.port,
            address=self._dialled,
            event_id=self._event_id,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            elapsed_us=int((self._loop.time() - self._started) * 1_000_000),
        )

    def _watch(self) -> None:
        """One timer for idle and total time: it looks again when there was traffic meanwhile."""
        if self._runner is None:
            return
        limits = self._runner.run.limits
        idle_end = self._touched + limits.idle_seconds
        life_end = self._started + limits.tunnel_seconds
        now = self._loop.time()
        if now >= life_end:
            self.abort("tunnel_seconds")
        elif now >= idle_end:
            self.abort("idle_seconds")
        else:
            self._timer = self._loop.call_at(min(idle_end, life_end), self._watch)

    # ── setting it up ─────────────────────────────────────────────────────────────────────────

    async def _serve(self) -> None:
        try:
            await self._admit()
        except (_Answered, asyncio.CancelledError):
            # Cancelled by `abort`, which has closed both sides, and when the server has left before
            # a second hello.
            pass
        # The boundary of one connection: a fault of ours ends it, and is told as one.
        except Exception as error:  # noqa: BLE001
            self.abort("internal_error")
            self._loop.call_exception_handler(
                {"message": "a proxied connection failed", "exception": error}
            )

    def _served(self, _: asyncio.Task[None]) -> None:
        """The set-up is over, whether it ran or not."""
        self._task = None
        if not self._spliced:
            self._let_go()
        self._finish()

    def _let_go(self) -> None:
        """Leaves the client to read its answer, for a while."""
        if self.upstream is not None:
            self.upstream.abort()
        if self.client.ended:
            self.client.close()
        self.client.discard()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_LINGER_SECONDS, self.client.abort)

    async def _admit(self) -> None:
        head = await self._head()
        request = parse_head(head)
        if isinstance(request, HeadRefused):
            self._refuse(400, request.reason.value, Outcome.INVALID)
        runner = self._proxy.runner_of(request.credentials)
        if runner is None:
            self._refuse(407, "credentials", Outcome.UNAUTHENTICATED, request)
        refusal = runner.refusal() or ("max_open" if self._proxy.is_crowded(runner) else None)
        self._runner, self._request = runner, request
        if refusal is not None:
            self._refuse(429, refusal, Outcome.LIMITED, request)
        self._proxy.known(self)
        runner.open.add(self)
        self._watch()
        if not runner.spend(self.bytes_up):
            raise _Answered
        vetted = await self._vetted(request.target)
        if isinstance(request, ConnectRequest):
            await self._tunnel(request.target, vetted)
        else:
            await self._forward(request, head, vetted)

    async def _head(self) -> bytes:
        searched = 0
        try:
            async with asyncio.timeout(self._proxy.head_seconds):
                while True:
                    buffer = self.client.buffer
                    end = end_of_head(buffer, searched)
                    if end is None and len(buffer) > MAX_HEAD_BYTES:
                        self._refuse(400, HeadReason.TOO_LARGE.value, Outcome.INVALID)
                    if end is not None:
                        head = bytes(buffer[:end])
                        del buffer[:end]
                        return head
                    searched = len(buffer)
                    if not await self.client.more():
                        raise _Answered
        except TimeoutError:
            self._refuse(408, "head_seconds", Outcome.INVALID)

    async def _vetted(self, target: Target) -> tuple[Address, ...]:
        """The addresses that may be dialled (R4-R11)."""
        policy = self._policy
        listed = check_listed(policy, target)
        if isinstance(listed, Deny):
            await self._deny(listed)
        addresses = listed.addresses or await self._look_up(target)
        for address in addresses:
            if self._proxy.is_own(address, target.port):
                told = Deny(rule="R13", reason=DenyReason.OWN_LISTENER, addresses=(str(address),))
                await self._deny(told)
        return addresses

    async def _look_up(self, target: Target) -> tuple[Address, ...]:
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                answers = await self._known.resolver.resolve(target.host, target.port)
        except TimeoutError:
            self._fail(504, "dns_timeout")
        except OSError:
            self._fail(502, "dns_error")
        if not answers:
            self._fail(502, "dns_error")
        verdict = check_answers(self._policy, target, answers)
        if isinstance(verdict, Deny):
            await self._deny(verdict)
        return verdict.addresses

    async def _tunnel(self, target: Target, vetted: Sequence[Address]) -> None:
        if target.port == _TLS_PORT:
            # The client speaks TLS only after the 200, so that a refusal from here on cannot be
            # a 403: it is an alert, a closed connection and the one event.
            self._establish()
            end = await self._check_hello(target)
            upstream = await self._dial(vetted, target.port)
            self._outcome = Outcome.TUNNELLED
            await self._pass_first_flights(target, upstream, end)
        else:
            upstream = await self._dial(vetted, target.port)
            self._establish()
        if self.client.lost:
            raise _Answered
        self._outcome = Outcome.TUNNELLED
        self._spliced = True
        self.client.splice(upstream)
        upstream.splice(self.client)
        if upstream.lost:
            # It went before there was a tunnel to tell of it.
            if upstream.cut:
                self._reason = self._reason or "reset"
                self.client.reset()
            else:
                self.client.close()
        self.side_ended(self.client)

    def _establish(self) -> None:
        self._status = 200
        self.client.write(ESTABLISHED)

    async def _pass_first_flights(self, target: Target, upstream: Side, end: int) -> None:
        """Passes one ClientHello on, and holds the rest until the server has said what it reads next.

        A HelloRetryRequest has it read a second ClientHello, plain like the first, and some servers
        take the name from that: it is checked as the first was. Whatever else the server answers,
        the next plain hello would be an error to it.
        """
        self._pass_on(upstream, end)
        answer, asks_again = AnswerReader(), None
        while asks_again is None:
            data = upstream.take()
            if data:
                asks_again = answer.feed(data)
                self.client.write(data)
                await self.client.drained()
            elif not await upstream.more():
                return
        if asks_again:
            await self._pass_second_hello(target, upstream)

    async def _pass_second_hello(self, target: Target, upstream: Side) -> None:
        """What the server says meanwhile reaches the client, and so does its end."""
        upstream.splice(self.client)
        self._asked_again = True
        try:
            if upstream.ended:
                self._give_up_hello(cut=upstream.cut)
            if await self._pass_to_second_hello(upstream):
                self._pass_on(upstream, await self._check_hello(target))
        finally:
            self._asked_again = False

    async def _pass_to_second_hello(self, upstream: Side) -> bool:
        """Passes on what may come before it; False when the client ends instead."""
        try:
            async with asyncio.timeout(self._limits.hello_seconds):
                while (size := leading_record(self.client.buffer)) != 0:
                    if size is not None:
                        self._pass_on(upstream, size)
                        await upstream.drained()
                    elif not await self.client.more():
                        self.client.take()
                        return False
        except TimeoutError:
            self._outcome, self._reason = Outcome.FAILED, "hello_seconds"
            self._answer(b"")
        return True

    def _pass_on(self, upstream: Side, size: int) -> None:
        buffer = self.client.buffer
        upstream.write(bytes(buffer[:size]))
        del buffer[:size]

    async def _check_hello(self, target: Target) -> int:
        """Where the hello ends in what the client has sent, if it may pass."""
        reader, fed = HelloReader(), 0
        try:
            async with asyncio.timeout(self._limits.hello_seconds):
                while True:
                    piece = bytes(self.client.buffer[fed:])
                    fed += len(piece)
                    reading = reader.feed(piece)
                    if not isinstance(reading, NeedMore):
                        break
                    if not await self.client.more():
                        self._reason = "client_left"
                        raise _Answered
        except TimeoutError:
            self._outcome, self._reason = Outcome.FAILED, "hello_seconds"
            self._answer(b"")
        refusal = check_hello(target, reading)
        if refusal is not None:
            await self._deny(refusal, reply_with=ALERT_ACCESS_DENIED)
        return reader.end

    async def _dial(self, vetted: Sequence[Address], port: int) -> Side:
        """A connection to the first of the vetted addresses that takes one."""
        if self.client.lost:
            raise _Answered
        refused: OSError = OSError()
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                for address in vetted:
                    side = Side(self)
                    try:
                        await self._dial_one(side, address, port)
                    except OSError as error:
                        refused = error
                        continue
                    self.upstream = side
                    return side
        except TimeoutError as error:
            refused = error
        if isinstance(refused, TimeoutError):
            self._fail(504, "connect_timeout")
        return self._fail(502, "connect_failed")

    async def _dial_one(self, side: Side, address: Address, port: int) -> None:
        self._dialled = str(address)
        async with asyncio.timeout(_ATTEMPT_SECONDS):
            await self._proxy.dialer.dial(address, port, lambda: side)

    async def _forward(
        self, request: ForwardRequest, head: bytes, vetted: Sequence[Address]
    ) -> None:
        if request.length > self._limits.max_request_body_bytes:
            self._refuse(413, "body_too_large", Outcome.LIMITED, request)
        upstream = await self._dial(vetted, request.target.port)
        exchange = Forwarding(
            request,
            head,
            client=self.client,
            upstream=upstream,
            max_body_bytes=self._limits.max_request_body_bytes,
        )
        self._outcome = Outcome.FORWARDED
        try:
            await exchange.run()
        except ForwardFailed as failure:
            self._break_off(exchange, failure, request)
        self._status = exchange.status
        # A slow reader has the idle time of its run, not the short one of a refused client.
        await self.client.flushed()
        self.client.write_eof()

    def _break_off(
        self, exchange: Forwarding, failure: ForwardFailed, request: ForwardRequest
    ) -> None:
        if self.client.ended:
            self._outcome, self._status = Outcome.LEFT, exchange.status
            if exchange.status:
                # It may still read: what we have cut must not look whole.
                self.client.reset()
            raise _Answered
        self._outcome = Outcome.FAILED
        if not exchange.status:
            self._refuse(failure.status, failure.reason, Outcome.FAILED, request)
        # Half an answer must not look like a whole one.
        self._status, self._reason = exchange.status, self._reason or failure.reason
        self.client.reset()
        raise _Answered

    # ── answers ───────────────────────────────────────────────────────────────────────────────

    @property
    def _policy(self) -> EgressPolicy:
        return self._known.run.policy

    @property
    def _limits(self) -> ProxyLimits:
        return self._known.run.limits

    @property
    def _known(self) -> Runner:
        if self._runner is None:
            raise RuntimeError("no run is known yet")
        return self._runner

    async def _deny(self, deny: Deny, *, reply_with: bytes | None = None) -> NoReturn:
        """Makes the one event, and only then answers."""
        request, run = self._request, self._known.run
        if request is None:
            raise RuntimeError("nothing was asked for yet")
        method = "CONNECT" if isinstance(request, ConnectRequest) else request.method
        self._outcome, self._reason = Outcome.DENIED, deny.reason.value
        denial = ProxyDenial(
            violation=violation_of(deny, request.target),
            run=run.run,
            task=run.task,
            session=run.session,
            method=method,
            connection=self.number,
        )
        event_id = await self._told(denial)
        if reply_with is not None:
            self._answer(reply_with)
        self._status = 403
        told = denial_reply(deny, request.target, event_id=event_id, is_head=method == "HEAD")
        self._answer(told)

    async def _told(self, denial: ProxyDenial) -> str:
        """Waits until the observer has the event; it goes on when the connection is ended meanwhile.

        What has been written must be found under its id in the access record, too.
        """
        telling = self._telling = self._loop.create_task(self._tell(denial))
        telling.add_done_callback(self._has_told)
        await asyncio.wait([telling])
        if self._event_id is None:
            # What could not be recorded is not answered, and nothing was opened.
            self.client.abort()
            raise _Answered
        return self._event_id

    async def _tell(self, denial: ProxyDenial) -> str:
        async with asyncio.timeout(self._proxy.observer_seconds):
            return _checked_id(await self._proxy.observer.denied(denial))

    def _has_told(self, telling: asyncio.Task[str]) -> None:
        self._telling = None
        if telling.cancelled():
            self._proxy.fail(RuntimeError("the observer was cancelled"))
        elif (error := telling.exception()) is None:
            self._event_id = telling.result()
        else:
            # The host's code; whoever watches `failed` stops.
            self._proxy.fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        self._finish()

    def _refuse(
        self,
        status: int,
        reason: str,
        outcome: Outcome,
        request: ProxyRequest | None = None,
    ) -> NoReturn:
        self._request = self._request or request
        self._outcome, self._status, self._reason = outcome, status, reason
        is_head = isinstance(request, ForwardRequest) and request.method == "HEAD"
        self._answer(reply(status, reason, is_head=is_head))

    def _fail(self, status: int, reason: str) -> NoReturn:
        if self._status == 200:
            self._outcome, self._reason = Outcome.FAILED, reason
            self._answer(ALERT_INTERNAL_ERROR)
        self._refuse(status, reason, Outcome.FAILED, self._request)

    def _answer(self, data: bytes) -> NoReturn:
        self.client.write(data)
        self.client.write_eof()
        raise _Answered


def _checked_id(event_id: object) -> str:
    if not isinstance(event_id, str) or not EVENT_ID.fullmatch(event_id):
        raise ValueError("the id of an event is 1 to 200 visible ASCII characters")
    return event_id
