"""A web service that runs agents and lets people approve what they want to do.

    POST /runs                  {"task": "..."}           starts a run
    GET  /runs/{id}                                       where it stands, and what waits for a person
    POST /runs/{id}/decisions   {"request_id": "...", "verdict": "approve"}

Runs are saved at every step in SQLite: after a restart of the service the same requests are there, and
a decision continues the run where it stopped. Started as a program, it serves on a loopback port, plays
a client that starts a run and a person who approves, and ends.
"""

import asyncio
import hmac
import json
import secrets
import tempfile
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, web
from aiohttp.typedefs import Handler

from runtime_pack import (
    AuditLog,
    Decision,
    ExecutionContext,
    GuardedRuntime,
    LoopResult,
    Model,
    Seal,
    SQLiteRunStore,
    TaskContract,
    ToolMessage,
    Turn,
    TurnInput,
    TurnRequest,
    UserMessage,
    catalog_tool,
    create_agent_runtime,
    create_agent_task_run,
    resume_governed_agent_loop,
    run_governed_agent_loop,
)
from runtime_pack.approvals import DecisionRefused
from runtime_pack.errors import RunNotFound
from runtime_pack.messages import ToolCall


@catalog_tool(name="mail:send", approval_class="request_user", output_trust="internal")
async def send_mail(to: str, text: str) -> str:
    """Send a mail.

    Args:
        to: The address.
        text: The words.
    """
    return f"sent {len(text)} characters to {to}"


class Clerk:
    """Stands for your model adapter: it sends one mail and says that it did."""

    async def execute_turn(self, request: TurnRequest, context: ExecutionContext) -> Turn:
        del context
        last = request.messages[-1]
        if isinstance(last, ToolMessage):
            return Turn(status="complete", text=f"The mail tool says: {last.text}")
        arguments = json.dumps({"to": "ann@example.org", "text": last.text})
        call = ToolCall(id="1", name="mail:send", arguments=arguments)
        return Turn(status="tool_request", calls=[call])


class Runs:
    """The runs of the service. Each drive gets a new guarded runtime; the store carries the rest."""

    def __init__(self, model: Model, store: SQLiteRunStore, log: AuditLog, seal: Seal) -> None:
        self._model, self._store, self._log, self._seal = model, store, log, seal
        self._ended: dict[str, LoopResult] = {}
        self._driving: dict[str, asyncio.Task[None]] = {}

    def _runtime(self, run_id: str) -> GuardedRuntime:
        run = create_agent_task_run(
            TaskContract(max_steps=5, max_turns=5), run_id=run_id, audit=self._log, seal=self._seal
        )
        return run.guard_runtime(create_agent_runtime(model=self._model, tools=[send_mail]))

    def start(self, task: str) -> str:
        """Starts a run; who asked does not wait for it."""
        run_id = f"run-{secrets.token_hex(8)}"
        turn_input = TurnInput(messages=[UserMessage(text=task)], tool_catalog=[send_mail.spec])

        async def drive() -> None:
            self._ended[run_id] = await run_governed_agent_loop(
                runtime=self._runtime(run_id), execute_turn_input=turn_input, store=self._store
            )

        self._driving[run_id] = asyncio.create_task(drive())
        return run_id

    async def decide(self, run_id: str, decision: Decision) -> LoopResult:
        """Goes on with a run. A request is decided once: the store sees to it."""
        result = await resume_governed_agent_loop(
            runtime=self._runtime(run_id),
            store=self._store,
            run_id=run_id,
            decisions=[decision],
        )
        self._ended[run_id] = result
        return result

    async def result(self, run_id: str) -> LoopResult | None:
        """Where a run stands; None while it is driven or when there is none of this id."""
        driving = self._driving.get(run_id)
        if driving is not None:
            await asyncio.wait([driving], timeout=10)
        return self._ended.get(run_id)

    async def aclose(self) -> None:
        """Ends what is driven; it stays in the store, and can be taken up."""
        for task in self._driving.values():
            task.cancel()
        await asyncio.gather(*self._driving.values(), return_exceptions=True)


def told(result: LoopResult) -> dict[str, object]:
    """What the service says of a run. A person sees exactly the arguments that would be used."""
    waiting = [
        {"request_id": asked.request_id, "tool": asked.tool, "arguments": asked.arguments}
        for asked in result.requests
    ]
    return {"kind": result.kind, "text": result.text, "requests": waiting}


async def read(request: web.Request, *names: str) -> dict[str, Any]:
    """The object of a request: exactly these names, each with a text."""
    try:
        body = await request.json()
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"not JSON: {error}") from error
    if not isinstance(body, dict) or set(body) != set(names):
        raise web.HTTPBadRequest(text=f"an object with exactly {', '.join(names)} is needed")
    if not all(isinstance(text, str) for text in body.values()):
        raise web.HTTPBadRequest(text="every value is a text")
    return body


def service(runs: Runs, token: str) -> web.Application:
    """The application: everything needs the token."""

    @web.middleware
    async def only_with_token(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise web.HTTPUnauthorized(text="a token is needed")
        return await handler(request)

    async def start(request: web.Request) -> web.Response:
        task = (await read(request, "task"))["task"]
        return web.json_response({"id": runs.start(task)}, status=202)

    async def show(request: web.Request) -> web.Response:
        result = await runs.result(request.match_info["id"])
        if result is None:
            raise web.HTTPNotFound(text="no run of this id has come to a halt")
        return web.json_response(told(result))

    async def decide(request: web.Request) -> web.Response:
        body = await read(request, "request_id", "verdict")
        try:
            # Who decides is what the service knows of its caller, never what the caller says.
            decision = Decision(**body, decided_by="ann")
            result = await runs.decide(request.match_info["id"], decision)
        except DecisionRefused as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        except RunNotFound as error:
            raise web.HTTPNotFound(text=str(error)) from error
        return web.json_response(told(result), status=409 if result.kind == "error" else 200)

    application = web.Application(middlewares=[only_with_token])
    application.router.add_post("/runs", start)
    application.router.add_get("/runs/{id}", show)
    application.router.add_post("/runs/{id}/decisions", decide)
    return application


async def played(url: str, token: str) -> None:
    """A client that starts a run, a person who approves, and one who comes too late."""
    headers = {"Authorization": f"Bearer {token}"}
    async with ClientSession(url, headers=headers) as client:
        started = await (await client.post("/runs", json={"task": "Tell Ann: tea at 4."})).json()
        shown = await (await client.get(f"/runs/{started['id']}")).json()
        asked = shown["requests"][0]
        print(shown["kind"], asked["tool"], asked["arguments"])
        decision = {"request_id": asked["request_id"], "verdict": "approve"}
        path = f"/runs/{started['id']}/decisions"
        print(await (await client.post(path, json=decision)).json())
        print("twice:", (await client.post(path, json=decision)).status)


async def main() -> None:
    token = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory() as folder:
        seal = Seal(secrets.token_bytes(32))
        log_path, store_path = Path(folder) / "events.jsonl", Path(folder) / "runs.sqlite"
        with AuditLog(log_path) as log, SQLiteRunStore(store_path, seal=seal) as store:
            runs = Runs(Clerk(), store, log, seal)
            runner = web.AppRunner(service(runs, token))
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            try:
                await played(f"http://{host}:{port}", token)
            finally:
                await runs.aclose()
                await runner.cleanup()


asyncio.run(main())
