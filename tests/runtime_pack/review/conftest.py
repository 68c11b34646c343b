"""A state folder with a run that waits and a log of hostile words, and the page over it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest

from runtime_pack import (
    CatalogTool,
    TaskContract,
    ToolPolicy,
    ToolRule,
    ToolSpec,
    TurnInput,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    run_governed_agent_loop,
    runs,
)
from runtime_pack.audit import AuditLog, LogSigner
from runtime_pack.events import Event, EventCode
from runtime_pack.review import Ended, ReviewServer, ReviewSource, serve_review
from runtime_pack.review.source import Kept
from runtime_pack.testing import ScriptedModel, calls, reply

SIGNER = LogSigner("example.org/log", bytes(range(32)))
# Markup, script, an address that runs, turned text, controls, a separator, what a template would read.
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    "'\"`;javascript:alert(1)//&lt;b&gt;{{7*7}}${7*7}\u202egnp.exe\u200b\x1b[2J\x00\x07\x85\u2028end"
)
SPEC = ToolSpec(
    name="mail:send",
    description="Send a mail.",
    parameters={
        "type": "object",
        "properties": {"to": {"type": "string"}, "size": {"type": "integer"}},
        "required": ["to"],
    },
)


@attrs.define
class World:
    """What is looked at: a state folder, its log, and what the tool was called with."""

    folder: Path
    sent: list[Any] = attrs.field(factory=list)
    script: list[Any] = attrs.field(factory=list)

    @property
    def log(self) -> Path:
        return self.folder / "logs" / "a.jsonl"

    @property
    def store(self) -> Any:
        return runs.open_store(self.folder)

    def runtime(self, run_id: str, audit: AuditLog | None = None) -> Any:
        async def send(arguments: Any, _context: Any) -> str:
            self.sent.append(arguments)
            return "sent"

        rule = ToolRule(tool="mail:*", approval_class="request_user", reason=HOSTILE)
        contract = TaskContract(tool_policy=ToolPolicy([rule]))
        base = create_agent_runtime(
            model=ScriptedModel(self.script), tools=[CatalogTool(spec=SPEC, handler=send)]
        )
        run = create_agent_task_run(contract, audit=audit, run_id=run_id)
        return run.guard_runtime(base)

    def wait_for_a_person(self, run_id: str, to: str, audit: AuditLog | None = None) -> None:
        """A run that asks for one mail, and is suspended."""
        self.script = [calls(("1", "mail:send", f'{{"to": {_quoted(to)}}}'))]
        given = TurnInput(messages=[UserMessage(text="go")], tool_catalog=[SPEC])
        runtime = self.runtime(run_id, audit)
        asyncio.run(
            run_governed_agent_loop(runtime=runtime, execute_turn_input=given, store=self.store)
        )
        self.script = [reply("done")]

    def source(self, **changes: Any) -> ReviewSource:
        """The page over the folder; a run is taken up in this process."""

        async def resume(run_id: str) -> Ended:
            done = await runs.resume(self.store, run_id, make_runtime=self.runtime)
            return Ended(code=0, text=str(done.kind))

        given: dict[str, Any] = {
            "target": self.folder / "logs",
            "by": "ann",
            "store": self.store,
            "kept": lambda _log: Kept(keys=(SIGNER.key,)),
            "can_resume": lambda _run: True,
            "resume": resume,
        }
        return ReviewSource(**{**given, **changes})


def _quoted(text: str) -> str:
    return json.dumps(text)


def denial(host: str, run: str = "run-a", **more: Any) -> Event:
    """A read that the list refused; further words go everywhere that an event has a place."""
    body = {"host": host, "port": 443, "proto": "https", "tool": "web:read", "ip": [], **more}
    return Event(
        code=EventCode.EGR001D,
        subject={"run": run, "step": "t1c1", "agent": "ava"},
        object=body,
        decision={
            "action": "deny",
            "enforced": True,
            "rule": "R4",
            "reason_code": "host_not_listed",
        },
    )


def hostile_event() -> Event:
    """An event of which every field is hostile."""
    word = HOSTILE
    names = ("run", "task", "step", "agent", "call", "session")
    fields = ("host", "tool", "code", "nearest_entry", "block", "kind", "finish", "request")
    return Event(
        code=EventCode.EGR001D,
        subject=dict.fromkeys(names, word),
        object={**dict.fromkeys(fields, word), "ip": [word], "layers": [word], "sources": [word]},
        decision={
            "action": word,
            "rule": word,
            "reason_code": word,
            "reasons": [word],
            "decided_by": word,
            "policy": {"id": word, "sha256": word, "version": word},
        },
    )


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder, made once: a signed log takes its time."""
    made = World(tmp_path_factory.mktemp("review"))
    made.log.parent.mkdir()
    runs.open_store(made.folder)
    with AuditLog(made.log, signer=SIGNER) as log:
        log.append(denial("new.example"))
        log.append(denial("new.example", "run-b"))
        log.append(hostile_event())
        made.wait_for_a_person("run-waits", HOSTILE, log)
    return made.folder


@pytest.fixture
def world(template: Path, tmp_path: Path) -> World:
    """A signed log with denials and hostile words, and a run that waits with hostile arguments."""
    folder = tmp_path / "state"
    shutil.copytree(template, folder)
    return World(folder, script=[reply("done")])


@attrs.frozen
class Page:
    """A page that is served, and a browser's requests to it."""

    server: ReviewServer
    session: aiohttp.ClientSession

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.session.get(f"{self.origin}{path}", headers=headers) as answer:
            return answer.status, await answer.json()

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        given = {"Origin": self.origin, **headers}
        async with self.session.post(f"{self.origin}{path}", json=body, headers=given) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def opened(source: ReviewSource, **options: Any) -> AsyncIterator[Page]:
    """The page, served to whoever has its token."""
    async with serve_review(source, **options) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            yield Page(server, session)


Visit = Callable[[Page], Awaitable[None]]


@pytest.fixture
def visit() -> Callable[..., None]:
    """Serve a source while a coroutine function visits it."""

    def visited(source: ReviewSource, what: Visit, **options: Any) -> None:
        async def main() -> None:
            async with opened(source, **options) as page:
                await what(page)

        asyncio.run(main())

    return visited


@pytest.fixture(scope="session")
def hostile() -> Event:
    """An event of hostile words."""
    return hostile_event()


@pytest.fixture
def words() -> str:
    """The hostile words."""
    return HOSTILE


@pytest.fixture
def more_events() -> Callable[..., Event]:
    """Makes denials."""
    return denial
