"""The server of the review page: aiohttp on loopback, every answer JSON or one of four files."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.resources
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import attrs
import orjson
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from runtime_pack.audit.facts import Wanted
from runtime_pack.audit.index import EventIndex
from runtime_pack.errors import AuditError, ContractError, StoreError
from runtime_pack.kill_switch import KillSwitch
from runtime_pack.messages import Json
from runtime_pack.review.deciding import Inbox, Refused
from runtime_pack.review.door import Door, set_headers
from runtime_pack.review.explaining import event_json, why_json
from runtime_pack.review.reading import Reader, event_row
from runtime_pack.review.source import ReviewSource
from runtime_pack.review.verifying import Verifier

__all__ = ("ReviewServer", "serve_review")

_FILES: Final = {
    "/": ("index.html", "text/html"),
    "/review.js": ("review.js", "text/javascript"),
    "/review.css": ("review.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_MOST_BYTES: Final = 1 << 18
_BODY_SECONDS: Final = 10.0
_FOLLOW_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 1.0
_PAGE: Final = 100
_MOST_ROWS: Final = 500
_MOST_TEXT: Final = 300
_MOST_SKIP: Final = 1_000_000
# Of a browser six or so; beyond this the one that has been open longest is closed.
_MOST_CONNECTIONS: Final = 64
_FILTERS: Final = ("run", "agent", "host", "rule", "code", "tool")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@attrs.frozen(kw_only=True)
class ReviewServer:
    """A page that is being served. The token stands behind the `#`, which no browser sends."""

    port: int
    token: str

    @property
    def url(self) -> str:
        """What to open; whoever has it can decide."""
        return f"http://127.0.0.1:{self.port}/#token={self.token}"


@contextlib.asynccontextmanager
async def serve_review(
    source: ReviewSource, *, port: int = 0, body_seconds: float = _BODY_SECONDS
) -> AsyncIterator[ReviewServer]:
    """Serve the page on loopback while the block runs.

    Args:
        source: what the page looks at.
        port: 0 for one that is free.
        body_seconds: how long the body of a request may take.

    Raises:
        AuditError: a log cannot be read.
        OSError: the port is taken.
    """
    door, reader = Door(), Reader(source.target, source.index)
    verifier, inbox = Verifier(source.target, source.kept), Inbox(source)
    pages = _Pages(source, reader, verifier, inbox, body_seconds)
    app = web.Application(middlewares=[door.middleware(), _told], client_max_size=_MOST_BYTES)
    app.on_response_prepare.append(set_headers)
    pages.add_to(app)
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=30, shutdown_timeout=1.0)
    try:
        await reader.open()
        await runner.setup()
        server = await _listening(runner, port)
        door.port = server.sockets[0].getsockname()[1]
        verifier.start()
        try:
            yield ReviewServer(port=door.port, token=door.token)
        finally:
            server.close()
    finally:
        await verifier.close()
        await inbox.close()
        await runner.cleanup()
        await reader.close()


async def _listening(runner: web.AppRunner, port: int) -> asyncio.Server:
    if runner.server is None:
        raise ContractError("server", "is not set up")
    make = _Bounded(runner.server)
    return await asyncio.get_running_loop().create_server(make, "127.0.0.1", port)


class _Bounded:
    """Makes the connections: too many at once, or one that says nothing, must not close the page."""

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._open: OrderedDict[int, RequestHandler] = OrderedDict()

    def __call__(self) -> asyncio.Protocol:
        alive = set(map(id, self._server.connections))
        for key in [
            key for key, made in self._open.items() if key not in alive and made.transport is None
        ]:
            del self._open[key]
        while len(self._open) >= _MOST_CONNECTIONS:
            _, oldest = self._open.popitem(last=False)
            oldest.force_close()
        made = self._server()
        self._open[id(made)] = made
        return made


@web.middleware
async def _told(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What goes wrong on purpose, as JSON; nothing else is told to a browser."""
    try:
        return await handler(request)
    except Refused as error:
        return web.json_response({"error": str(error)}, status=error.status)
    except (AuditError, StoreError) as error:
        return web.json_response({"error": str(error)}, status=500)
    except web.HTTPException as error:
        return web.json_response({"error": error.reason}, status=error.status)


class _Pages:
    """The answers."""

    def __init__(
        self,
        source: ReviewSource,
        reader: Reader,
        verifier: Verifier,
        inbox: Inbox,
        body_seconds: float,
    ) -> None:
        self._source, self._reader = source, reader
        self._verifier, self._inbox = verifier, inbox
        self._body_seconds = body_seconds

    def add_to(self, app: web.Application) -> None:
        """The routes; what is not here is not found."""
        for path, (name, kind) in _FILES.items():
            app.router.add_get(path, functools.partial(_file, _text_of(name), kind))
        for name in ("overview", "changes", "runs", "run", "events", "event", "denials", "why"):
            app.router.add_get(f"/api/{name}", getattr(self, name))
        app.router.add_get("/api/approvals", self.approvals)
        app.router.add_get("/api/verify", self.verify)
        app.router.add_post("/api/decide", self.decide)
        app.router.add_post("/api/resume", self.resume)
        app.router.add_post("/api/stop", self.stop)

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    async def overview(self, _request: web.Request) -> web.Response:
        """What stands at the top of every view."""

        def counted(index: EventIndex) -> tuple[int, int, int]:
            wishes = (Wanted(), Wanted(denied=True), Wanted(code="UNREADABLE"))
            events, denied, unreadable = map(index.count, wishes)
            return events, denied, unreadable

        events, denied, unreadable = await self._reader.ask(counted)
        summaries = await self._inbox.summaries()
        source = self._source
        return self._json(
            {
                "target": str(source.target),
                "version": self._version(),
                "fault": self._reader.fault,
                "events": events,
                "denials": denied,
                "unreadable": unreadable,
                "waiting": sum(each.pending for each in summaries),
                "saved_runs": len(summaries),
                "by": source.by,
                "policy": None if source.policy is None else str(source.policy),
                "can_decide": source.store is not None,
                "can_stop": source.stop is not None,
                "kill": self._kill([each.cancel for each in summaries]),
                "verify": {k: v for k, v in self._verifier.to_json().items() if k != "logs"},
            }
        )

    def _kill(self, wishes: list[str | None]) -> dict[str, Json]:
        """Whether the kill switch is thrown, and which runs are asked to end."""
        asked = [wish for wish in wishes if wish is not None]
        path = self._source.kill_file
        told: dict[str, Json] = {"asked": len(asked), "words": asked[:3], "file": None}
        if path is not None:
            told |= {"file": str(path), "reason": _thrown(self._source)}
        return told

    async def changes(self, request: web.Request) -> web.Response:
        """Answers when something came since, or after a while."""
        since, loop = request.query.get("since", ""), asyncio.get_running_loop()
        ends = loop.time() + _FOLLOW_SECONDS
        await self._reader.refresh()
        while self._version() == since and loop.time() < ends:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._reader.refresh()
        return self._json({"version": self._version(), "fault": self._reader.fault})

    def _version(self) -> str:
        """Another one whenever there is something new to see: lines, decisions, verifications."""
        return f"{self._reader.version}.{self._inbox.version}.{self._verifier.version}"

    async def runs(self, request: web.Request) -> web.Response:
        """The runs of the logs, with what their saved state says, and saved runs without a log."""
        limit, skip = _number(request, "limit", _PAGE, _MOST_ROWS), _number(request, "skip", 0)
        rows = await self._reader.ask(lambda index: index.runs(limit=limit + 1, skip=skip))
        saved = {each.run_id: each for each in await self._inbox.summaries()}
        shown: list[Json] = [
            {
                **attrs.asdict(row),
                "saved": saved.pop(row.run).to_json() if row.run in saved else None,
            }
            for row in rows[:limit]
        ]
        if not skip:
            logged = {row.run for row in rows}
            unlogged = [each for name, each in saved.items() if name not in logged and each.pending]
            shown += [{"run": each.run_id, "saved": each.to_json()} for each in unlogged]
        return self._json({"rows": shown, "more": len(rows) > limit, "skip": skip})

    async def run(self, request: web.Request) -> web.Response:
        """One run: its saved state, and a page of its timeline."""
        run_id = _asked(request, "id")
        wanted = Wanted(run=run_id)
        limit, at = _number(request, "limit", _PAGE, _MOST_ROWS), _cursor(request)

        def read(index: EventIndex) -> dict[str, Json]:
            page = index.page(wanted, limit=limit + 1, at=at, newest=False)
            # The beginning of an id is a filter; a run is one id.
            rows: list[Json] = [
                event_row(place, whole=True)
                for _, place in page[:limit]
                if place.facts.run == run_id
            ]
            after = _mark(page[limit - 1][0]) if len(page) > limit else None
            return {"rows": rows, "after": after}

        body = await self._reader.ask(read)
        # First what became of taking it up: what is saved is not older than that.
        job = self._inbox.job(run_id)
        saved = await self._inbox.details(run_id)
        return self._json({"id": run_id, "saved": saved, "job": job, **body})

    async def events(self, request: web.Request) -> web.Response:
        """A page of events, the newest first."""
        limit, at = _number(request, "limit", _PAGE, _MOST_ROWS), _cursor(request)
        wanted = _wanted(request)

        def read(index: EventIndex) -> dict[str, Json]:
            if wanted.code == "UNREADABLE":
                # They say no time, by which a page could be found.
                places = list(index.select(wanted, limit=limit))
                return {"rows": [event_row(place, whole=False) for place in places], "after": None}
            page = index.page(wanted, limit=limit + 1, at=at)
            rows: list[Json] = [event_row(place, whole=False) for _, place in page[:limit]]
            return {"rows": rows, "after": _mark(page[limit - 1][0]) if len(page) > limit else None}

        return self._json(await self._reader.ask(read))

    async def event(self, request: web.Request) -> web.Response:
        """One event, whole, from the log itself."""
        name = _asked(request, "id")
        found = await self._reader.ask(lambda index: event_json(index.find(name)))
        if not found:
            raise Refused(404, "there is no event of that id")
        return self._json({"events": found})

    async def denials(self, request: web.Request) -> web.Response:
        """Denials by what they are of."""
        wanted = _wanted(request)
        limit = _number(request, "limit", _PAGE, _MOST_ROWS)
        rows = await self._reader.ask(lambda index: index.denials(wanted, limit=limit + 1))
        shown: list[Json] = [attrs.asdict(row) for row in rows[:limit]]
        return self._json({"rows": shown, "more": len(rows) > limit})

    async def why(self, request: web.Request) -> web.Response:
        """What of the policy would admit a denial."""
        name, private = _asked(request, "id"), request.query.get("private") == "1"
        policy = self._source.policy
        told = await self._reader.ask(lambda i: why_json(i, name, policy, private=private))
        return self._json({"suggestion": told})

    async def approvals(self, _request: web.Request) -> web.Response:
        """What waits for a person."""
        return self._json({"rows": await self._inbox.waiting(), "by": self._source.by})

    async def verify(self, _request: web.Request) -> web.Response:
        """What holds of each log."""
        return self._json(self._verifier.to_json())

    def _json(self, value: dict[str, Any]) -> web.Response:
        # ASCII, as everywhere: lone surrogates have no other form.
        text = json.dumps(self._source.redact(value), separators=(",", ":"))
        return web.Response(text=text, content_type="application/json")

    # ── doing ─────────────────────────────────────────────────────────────────────────────────

    async def decide(self, request: web.Request) -> web.Response:
        """A decision about a request."""
        return self._json(await self._inbox.decide(await self._body(request)))

    async def resume(self, request: web.Request) -> web.Response:
        """Take a run up."""
        run = (await self._body(request)).get("run")
        if not isinstance(run, str):
            raise Refused(400, "run is a text")
        return self._json(await self._inbox.resume(run))

    async def stop(self, request: web.Request) -> web.Response:
        """The kill switch of saved runs."""
        return self._json({"replies": await self._inbox.stop(await self._body(request))})

    async def _body(self, request: web.Request) -> Mapping[str, Json]:
        """The object of a request, read within a time and a size.

        Raises:
            Refused: there is none.
        """
        try:
            async with asyncio.timeout(self._body_seconds):
                value = orjson.loads(await request.read())
        except TimeoutError as error:
            raise Refused(408, "the request did not end in time") from error
        except ValueError as error:
            raise Refused(400, "the request is no JSON") from error
        if not isinstance(value, dict):
            raise Refused(400, "the request is no object")
        return value


def _thrown(source: ReviewSource) -> str | None:
    """Why the kill switch of a program is thrown; what cannot be looked for is taken as thrown."""
    try:
        switch = KillSwitch(source.kill_file)
    except ContractError as error:
        return error.problem
    switch.check()
    return switch.reason


def _text_of(name: str) -> bytes:
    return importlib.resources.files("runtime_pack.review").joinpath("page", name).read_bytes()


async def _file(body: bytes, kind: str, _request: web.Request) -> web.Response:
    return web.Response(body=body, content_type=kind, charset="utf-8")


def _asked(request: web.Request, name: str) -> str:
    value = request.query.get(name, "")
    if not value or len(value) > _MOST_TEXT:
        raise Refused(400, f"{name} is missing or too long")
    return value


def _number(request: web.Request, name: str, absent: int, most: int = _MOST_SKIP) -> int:
    text = request.query.get(name, str(absent))
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise Refused(400, f"{name} is no number")
    return min(int(text), most) if most != _MOST_SKIP or name == "skip" else int(text)


def _cursor(request: web.Request) -> tuple[str, int] | None:
    given = request.query.get("after", "")
    if not given:
        return None
    at, _, row = given.rpartition("~")
    if not at or len(at) > _MOST_TEXT or not (row.isascii() and row.isdigit() and len(row) < 19):
        raise Refused(400, "after is not what was given for the next page")
    return at, int(row)


def _mark(at: tuple[str, int]) -> str:
    return f"{at[0]}~{at[1]}"


def _wanted(request: web.Request) -> Wanted:
    given: dict[str, Any] = {
        name: request.query[name] for name in _FILTERS if request.query.get(name)
    }
    if any(len(value) > _MOST_TEXT for value in given.values()):
        raise Refused(400, "a filter is too long")
    return Wanted(**given, denied=request.query.get("denied") == "1")
