"""The review page at its server: who is let in, what is answered, and what is really done (issue of evidence, point 5)."""

from __future__ import annotations

import asyncio
import importlib.resources
import json
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import attrs
import pytest

from runtime_pack import runs
from runtime_pack.audit import AuditLog
from runtime_pack.events import Event, EventCode
from runtime_pack.review.deciding import Refused, _arguments
from runtime_pack.review.server import _Bounded

pytestmark = pytest.mark.loopback
READS = ("overview", "changes", "runs", "run?id=x", "events", "event?id=x", "denials", "why?id=x", "approvals", "verify")  # fmt: skip
WRITES = ("decide", "resume", "stop")
Visit = Callable[..., None]


async def raw(port: int, text: str) -> tuple[int, str]:
    """What a server answers to exactly these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text.encode("latin-1"))
    answer = (await reader.read(1 << 16)).decode("latin-1")
    writer.close()
    return int(answer.split(" ", 2)[1]), answer


# ── the door ──────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_told_without_the_token(world: Any, visit: Visit) -> None:
    """Not of any route, not by a token in the address, and not by half of one or two."""

    async def what(page: Any) -> None:
        token = page.server.token
        for wrong in (
            "",
            "Bearer ",
            f"Bearer {token[:-1]}",
            f"Bearer {token}x",
            f"Basic {token}",
            "Bearer é",
        ):
            assert 401 == (await page.get("/api/overview", Authorization=wrong))[0]
        for name in (*READS, "nothing"):
            path = f"/api/{name}{'&' if '?' in name else '?'}token={token}"
            assert 401 == (await page.get(path, Authorization="Bearer x"))[0]
        for name in WRITES:
            assert 401 == (await page.post(f"/api/{name}", {}, Authorization="Bearer x"))[0]
        line = f"Authorization: Bearer {token}\r\n"
        head = f"GET /api/overview HTTP/1.1\r\nHost: 127.0.0.1:{page.server.port}\r\nConnection: close\r\n"
        assert [200, 401] == [
            (await raw(page.server.port, head + line * n + "\r\n"))[0] for n in (1, 2)
        ]

    visit(world.source(), what)


def test_a_name_that_was_pointed_here_is_refused(world: Any, visit: Visit) -> None:
    """DNS rebinding: another name, another port, no name or two of them, for files and answers."""

    async def what(page: Any) -> None:
        port = page.server.port
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}",
                     f"127.0.0.1:{port}.evil.example", f"LOCALHOST.evil.example:{port}", f"[::1]:{port}", f"0.0.0.0:{port}"):  # fmt: skip
            for path in ("/", "/review.js", "/api/overview"):
                async with page.session.get(
                    f"{page.origin}{path}", headers={"Host": host}
                ) as answer:
                    assert 421 == answer.status
        line = f"Host: 127.0.0.1:{port}\r\n"
        for lines in ("", line * 2, f"{line}Host: evil.example\r\n"):
            status, _ = await raw(port, f"GET / HTTP/1.1\r\n{lines}Connection: close\r\n\r\n")
            assert status in {400, 421}
        assert 421 == (await raw(port, "GET / HTTP/1.0\r\n\r\n"))[0]
        assert 200 == (await page.get("/api/overview", Host=f"localhost:{port}"))[0]

    visit(world.source(), what)


def test_a_page_of_another_origin_is_refused(world: Any, visit: Visit) -> None:
    """Forged origins, other sites, forms, and what does not say where it comes from."""

    async def what(page: Any) -> None:
        port = page.server.port
        for origin in ("http://evil.example", "null", f"https://127.0.0.1:{port}", "http://127.0.0.1", f"http://localhost:{port}"):  # fmt: skip
            assert 403 == (await page.get("/api/overview", Origin=origin))[0]
            assert 403 == (await page.post("/api/stop", {"confirm": "stop"}, Origin=origin))[0]
        for site in ("cross-site", "same-site"):
            assert 403 == (await page.get("/api/overview", **{"Sec-Fetch-Site": site}))[0]
        url = f"{page.origin}/api/decide"
        async with page.session.post(url, json={}) as answer:
            assert 403 == answer.status
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            headers = {"Origin": page.origin, "Content-Type": kind}
            async with page.session.post(url, data=b"{}", headers=headers) as answer:
                assert 415 == answer.status
        assert 405 == (await page.get("/api/decide"))[0]
        async with page.session.options(url, headers={"Origin": page.origin}) as answer:
            assert "Access-Control-Allow-Origin" not in answer.headers

    visit(world.source(), what)


def test_every_answer_carries_the_headers_and_no_cookie(world: Any, visit: Visit) -> None:
    """Also refusals and what is not found."""

    async def what(page: Any) -> None:
        for path in (
            "/",
            "/review.js",
            "/api/overview",
            "/api/nothing",
            "/../../etc/passwd",
            "/nothing",
        ):
            async with page.session.get(f"{page.origin}{path}") as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "require-trusted-types-for 'script'" in policy
                assert "unsafe" not in policy
                assert "no-store" == answer.headers["Cache-Control"]
                assert "nosniff" == answer.headers["X-Content-Type-Options"]
                assert "no-referrer" == answer.headers["Referrer-Policy"]
                assert "Set-Cookie" not in answer.headers
                assert page.server.token not in str(answer.headers) + await answer.text()

    visit(world.source(), what)


def test_only_this_machine_is_listened_to(world: Any, visit: Visit) -> None:
    """The address that is printed is loopback's, and the token stands behind the #."""

    async def what(page: Any) -> None:
        host, _, fragment = page.server.url.partition("/#token=")
        assert (page.origin, page.server.token) == (host, fragment)
        assert len(page.server.token) >= 43
        own = {
            each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        }
        for address in {*map(str, own), "127.0.0.2"} - {"127.0.0.1"}:
            with pytest.raises(OSError):
                await asyncio.open_connection(address, page.server.port)

    visit(world.source(), what)


def test_the_files_hold_no_markup_that_runs() -> None:
    """No inline script or style, nothing from elsewhere, and no way from text to markup."""
    page = importlib.resources.files("runtime_pack.review") / "page"
    html, script = ((page / name).read_text() for name in ("index.html", "review.js"))

    assert [] == re.findall(r"<script(?![^>]* src=)|<style|\son[a-z]+=|style=", html)
    assert [] == re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|srcdoc|DOMParser|createContextualFragment", script)  # fmt: skip
    for text in (html, script, (page / "review.css").read_text()):
        assert [] == re.findall(r"https?://|//[a-z]+\.|@import|url\(", text)


def test_a_client_that_is_slow_or_many_closes_the_page_to_nobody(world: Any, visit: Visit) -> None:
    """A body that does not end is let go; connections that say nothing give way to those that come."""

    async def what(page: Any) -> None:
        port = page.server.port
        head = (
            f"POST /api/decide HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: {page.origin}\r\n"
            f"Authorization: Bearer {page.server.token}\r\nContent-Type: application/json\r\n"
        )
        assert 408 == (await raw(port, f"{head}Content-Length: 10\r\n\r\n{{"))[0]
        assert (
            413
            == (
                await raw(
                    port, f"{head}Connection: close\r\nContent-Length: 300000\r\n\r\n{' ' * 300000}"
                )
            )[0]
        )
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(150)]
        assert 200 == (await page.get("/api/overview"))[0]
        ends = [asyncio.create_task(reader.read()) for reader, _ in silent[:40]]
        assert [b""] * 40 == await asyncio.gather(*ends)
        for _, writer in silent:
            writer.close()

    visit(world.source(), what, body_seconds=0.05)


def test_of_too_many_connections_the_oldest_is_closed() -> None:
    """Each new one takes the place of the one that has been open longest; one that ended has none."""
    closed: list[int] = []

    class Connection:
        transport = object()

        def __init__(self, number: int) -> None:
            self.number = number

        def force_close(self) -> None:
            closed.append(self.number)

    class Server:
        def __init__(self) -> None:
            self.connections: list[Connection] = []

        def __call__(self) -> Connection:
            made = Connection(len(self.connections))
            self.connections.append(made)
            return made

    # A server of which these two members are asked.
    make: Any = _Bounded(Server())  # type: ignore[arg-type]
    for _ in range(67):
        make()

    assert [0, 1, 2] == closed


# ── reading ───────────────────────────────────────────────────────────────────────────────────


def test_hostile_words_are_data_in_every_answer(world: Any, visit: Visit, words: str) -> None:
    """They come back letter for letter, as JSON in ASCII and under no other type."""

    async def what(page: Any) -> None:
        _, events = await page.get("/api/events")
        (row,) = [row for row in events["rows"] if row["run"] == words]
        assert [words] * 5 == [row[name] for name in ("host", "tool", "rule", "reason", "agent")]
        for path in (
            f"run?{urlencode({'id': words})}",
            "runs",
            "denials",
            "approvals",
            "events",
            f"event?id={row['id']}",
            f"why?id={row['id']}",
        ):
            async with page.session.get(f"{page.origin}/api/{path}") as answer:
                body = await answer.read()
                assert "application/json" == answer.content_type
                assert body.isascii()
                assert b"\x1b" not in body

    visit(world.source(), what)


def test_pages_of_events_do_not_move(world: Any, visit: Visit, more_events: Any) -> None:
    """Each event once, whatever is written between two pages; a filter holds on every page."""

    async def what(page: Any) -> None:
        seen: list[str] = []
        after, number = "", 0
        while True:
            _, body = await page.get(f"/api/events?run=many&limit=7&after={after}")
            seen += [row["id"] for row in body["rows"]]
            with AuditLog(world.folder / "logs" / f"later-{number}.jsonl") as log:
                log.append(more_events("late.example", "many"))
            number += 1
            if body["after"] is None:
                break
            after = body["after"]
        assert 30 == len(seen) == len(set(seen))

    with AuditLog(world.folder / "logs" / "many.jsonl") as log:
        for number in range(30):
            log.append(more_events(f"h{number}.example", "many"))
    visit(world.source(), what)


@pytest.mark.parametrize(
    "query", ["after=x", "after=x~y", "limit=-1", "limit=1e9", "run=" + "x" * 301]
)
def test_what_is_no_query_is_refused(world: Any, visit: Visit, query: str) -> None:
    """And not guessed at."""

    async def what(page: Any) -> None:
        assert 400 == (await page.get(f"/api/events?{query}"))[0]

    visit(world.source(), what)


def test_runs_denials_and_the_timeline_are_told(world: Any, visit: Visit) -> None:
    """Runs of the log with their saved state, denials folded with a count, one run in order."""

    async def what(page: Any) -> None:
        _, listed = await page.get("/api/runs")
        saved = {row["run"]: row["saved"] for row in listed["rows"]}
        assert "waiting" == saved["run-waits"]["status"]
        assert saved["run-a"] is None
        _, folded = await page.get("/api/denials?host=new.example")
        assert [(2, 2)] == [(row["times"], row["runs"]) for row in folded["rows"]]
        _, run = await page.get("/api/run?id=run-waits")
        codes = [row["code"] for row in run["rows"]]
        assert [] == (await page.get("/api/run?id=run-"))[1]["rows"]
        assert ("RUN001O", True) == (codes[0], "APR001O" in codes)
        _, overview = await page.get("/api/overview")
        assert (1, True, None) == (overview["waiting"], overview["can_decide"], overview["policy"])

    visit(world.source(), what)


def test_one_denial_counts_once(world: Any, visit: Visit, more_events: Any) -> None:
    """A call whose target was denied is refused too: that is the same denial. What reported counts."""
    reported = attrs.evolve(more_events("seen.example"), code=EventCode.EGR004O)
    refused = Event(
        code=EventCode.STP004D,
        subject={"run": "r"},
        object={"tool": "web:read", "code": "WEB_EGRESS_DENIED"},
    )
    by_policy = attrs.evolve(refused, object={"tool": "disk:erase", "code": "POLICY_DENIED"})
    with AuditLog(world.folder / "logs" / "more.jsonl") as log:
        for each in (more_events("once.example"), refused, by_policy, reported):
            log.append(each)

    async def what(page: Any) -> None:
        _, body = await page.get("/api/denials")
        found = {row["host"] or row["tool"]: row["times"] for row in body["rows"]}
        assert {"once.example": 1, "seen.example": 1, "disk:erase": 1}.items() <= found.items()
        assert "web:read" not in found

    visit(world.source(), what)


def test_a_denial_is_explained_with_the_change_that_admits_it(world: Any, visit: Visit) -> None:
    """The diff of the policy file that was named; one that is refused is told as such."""
    policy = world.folder / "web.toml"
    policy.write_text('id = "web"\nversion = 1\nallow = ["a.example"]\n')

    async def what(page: Any) -> None:
        _, events = await page.get("/api/events?host=new.example")
        name = events["rows"][0]["id"]
        _, told = await page.get(f"/api/why?id={name}")
        assert '+allow = ["a.example", "new.example"]' in told["suggestion"]["diff"]
        _, event = await page.get(f"/api/event?id={name}")
        assert "No entry covers the host." == event["events"][0]["reason_meaning"]
        policy.write_text("id = 5\n")
        _, told = await page.get(f"/api/why?id={name}")
        assert "version" in told["suggestion"]["fault"]
        _, opening = await page.get("/api/events?code=LOG001O")
        _, none = await page.get(f"/api/why?id={opening['rows'][0]['id']}")
        assert none["suggestion"] is None

    visit(world.source(policy=policy), what)


def test_a_field_of_a_megabyte_is_cut(world: Any, visit: Visit, more_events: Any) -> None:
    """A list stays short, and one event is shown to a bound."""
    with AuditLog(world.folder / "logs" / "big.jsonl") as log:
        log.append(more_events("big.example", "run-big", block="x" * 1_000_000))

    async def what(page: Any) -> None:
        _, run = await page.get("/api/run?id=run-big")
        assert len(json.dumps(run)) < 3000
        _, event = await page.get(f"/api/event?id={run['rows'][0]['id']}")
        assert event["events"][0]["cut"]
        assert len(event["events"][0]["text"]) < 300_000

    visit(world.source(), what)


def test_a_log_that_is_rewritten_under_the_page_is_told(world: Any, visit: Visit) -> None:
    """The line is another one than was indexed, and verification says what does not hold."""

    async def verified(page: Any, wanted: str) -> Any:
        while True:
            _, told = await page.get("/api/verify")
            if told["worst"] == wanted:
                return told
            await asyncio.sleep(0.05)

    async def what(page: Any) -> None:
        await verified(page, "signed")
        _, before = await page.get("/api/events?host=new.example")
        body = world.log.read_bytes()
        was = world.log.stat()
        world.log.write_bytes(body.replace(b"new.example", b"old.example"))
        os.utime(world.log, ns=(was.st_atime_ns, was.st_mtime_ns))
        _, event = await page.get(f"/api/event?id={before['rows'][0]['id']}")
        assert event["events"][0]["stale"]
        _, run = await page.get("/api/run?id=run-a")
        assert ["the line is another one than was indexed"] == [r["stale"] for r in run["rows"]]
        world.log.write_bytes(body[:400])
        status, event = await page.get(f"/api/event?id={before['rows'][0]['id']}")
        assert status in {404, 500} or event["events"][0]["stale"]

    visit(world.source(), what)
    world.log.write_bytes(world.log.read_bytes().replace(b"run-a", b"run-z"))

    async def again(page: Any) -> None:
        told = await verified(page, "tampered")
        assert told["logs"][0]["faults"]

    visit(world.source(), again)


# ── deciding ──────────────────────────────────────────────────────────────────────────────────


async def waiting(page: Any) -> dict[str, Any]:
    _, body = await page.get("/api/approvals")
    (row,) = body["rows"]
    return dict(row)


def said(row: dict[str, Any], verdict: str = "approve", **more: Any) -> dict[str, Any]:
    names = ("run", "request", "arguments_sha256")
    return {**{name: row[name] for name in names}, "verdict": verdict, "reason": "", **more}


async def ended(page: Any, run: str) -> dict[str, Any]:
    """The run when it is taken up no more; `changes` answers when that is so."""
    version = ""
    while True:
        _, body = await page.get(f"/api/run?id={run}")
        if body["job"] is not None and body["job"]["state"] == "ended":
            return dict(body)
        _, told = await page.get(f"/api/changes?since={version}")
        version = told["version"]


def test_an_approval_is_recorded_and_the_run_goes_on(world: Any, visit: Visit, words: str) -> None:
    """The call runs once, with exactly the arguments that were shown."""

    async def what(page: Any) -> None:
        row = await waiting(page)
        assert words == json.loads(row["arguments"])["to"]
        assert [] == world.sent
        status, reply = await page.post("/api/decide", said(row))
        assert (200, "ann") == (status, reply["decision"]["decided_by"])
        assert [] == world.sent
        assert 200 == (await page.post("/api/resume", {"run": row["run"]}))[0]
        body = await ended(page, row["run"])
        assert ("completed", 0) == (body["saved"]["status"], body["job"]["code"])

    visit(world.source(), what)
    assert [{"to": words}] == world.sent


def test_a_denial_runs_nothing(world: Any, visit: Visit) -> None:
    """The model reads the reason, and the run goes on."""

    async def what(page: Any) -> None:
        row = await waiting(page)
        assert 200 == (await page.post("/api/decide", said(row, "deny", reason="not her")))[0]
        await page.post("/api/resume", {"run": row["run"]})
        assert "completed" == (await ended(page, row["run"]))["saved"]["status"]

    visit(world.source(), what)
    assert [] == world.sent


def test_of_two_who_decide_at_once_one_is_told(world: Any, visit: Visit) -> None:
    """The first word stands; the same word again is no fault."""

    async def what(page: Any) -> None:
        row = await waiting(page)
        asked = [page.post("/api/decide", said(row, word)) for word in ("approve", "deny") * 3]
        answers = await asyncio.gather(*asked)
        assert [200] * 3 + [409] * 3 == sorted(status for status, _ in answers)
        (stands,) = {body["decision"]["verdict"] for status, body in answers if status == 200}
        assert stands == (await waiting(page))["decision"]["verdict"]
        assert any("that stands" in body.get("error", "") for _, body in answers)

    visit(world.source(), what)


def test_edited_arguments_run_in_their_place(world: Any, visit: Visit) -> None:
    """They come as text, so that no number is changed on its way; what does not fit is refused."""

    async def what(page: Any) -> None:
        row = await waiting(page)
        for wrong in ("[]", "{", '{"to": 5}', '{"to": "a", "size": 18446744073709551616}', '{"to": NaN}'):  # fmt: skip
            status, _ = await page.post("/api/decide", said(row, edited=wrong))
            assert status in {400, 409}
        edited = '{"to": "bob", "size": 9007199254740993}'
        assert 200 == (await page.post("/api/decide", said(row, edited=edited)))[0]
        await page.post("/api/resume", {"run": row["run"]})
        await ended(page, row["run"])

    visit(world.source(), what)
    assert [{"to": "bob", "size": 9007199254740993}] == world.sent


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"arguments_sha256": "sha256:other"}, 409),
        ({"decided_by": "eve"}, 400),
        ({"verdict": "maybe"}, 400),
        ({"request": "apr-none", "arguments_sha256": ""}, 409),
        ({"run": "none"}, 404),
        ({"run": ["run-waits"]}, 400),
        ({"reason": 5}, 400),
    ],
)  # fmt: skip
def test_what_is_no_decision_about_what_was_shown_is_refused(
    world: Any, visit: Visit, change: dict[str, Any], status: int
) -> None:
    """Nothing is recorded."""

    async def what(page: Any) -> None:
        row = await waiting(page)
        assert status == (await page.post("/api/decide", {**said(row), **change}))[0]
        assert (await waiting(page))["decision"] is None

    visit(world.source(), what)


@pytest.mark.parametrize("body", ["null", "[]", "5", '"x"', "{", ""])
def test_a_body_that_is_no_object_is_refused(world: Any, visit: Visit, body: str) -> None:
    """By every route that does something."""

    async def what(page: Any) -> None:
        headers = {"Origin": page.origin, "Content-Type": "application/json"}
        for name in WRITES:
            async with page.session.post(
                f"{page.origin}/api/{name}", data=body, headers=headers
            ) as a:
                assert 400 == a.status

    visit(world.source(), what)


def test_a_run_is_taken_up_once(world: Any, visit: Visit) -> None:
    """While it goes on it is not taken up again, nor one that cannot be."""
    held, entered = asyncio.Event(), []

    async def resume(run_id: str) -> Any:
        entered.append(run_id)
        await held.wait()
        raise OSError("no process")

    async def what(page: Any) -> None:
        asked = [page.post("/api/resume", {"run": "run-waits"}) for _ in range(4)]
        assert [200, 409, 409, 409] == sorted(status for status, _ in await asyncio.gather(*asked))
        held.set()
        body = await ended(page, "run-waits")
        assert "no process" in body["job"]["text"]
        assert 404 == (await page.post("/api/resume", {"run": "none"}))[0]

    visit(world.source(resume=resume), what)
    assert ["run-waits"] == entered

    async def never(page: Any) -> None:
        assert 409 == (await page.post("/api/resume", {"run": "run-waits"}))[0]

    visit(world.source(can_resume=lambda _run: False), never)


def test_a_log_alone_is_looked_at_and_decided_by_nobody(world: Any, visit: Visit) -> None:
    """Without saved runs nothing can be done."""

    async def what(page: Any) -> None:
        assert [] == (await page.get("/api/approvals"))[1]["rows"]
        for name in WRITES:
            body = {
                "decide": {"run": "r", "request": "x", "verdict": "deny", "arguments_sha256": ""},
                "resume": {"run": "run-waits"},
                "stop": {"confirm": "stop"},
            }[name]
            assert (await page.post(f"/api/{name}", body))[0] in {404, 409}

    visit(world.source(store=None, resume=None, can_resume=None), what)


def test_secrets_of_the_machine_are_not_shown(world: Any, visit: Visit) -> None:
    """A value that is one is shown by its name, in requests and events; and it cannot be edited blindly."""

    def redact(value: Any) -> Any:
        return json.loads(json.dumps(value).replace("gnp.exe", "[value of KEY]"))

    async def what(page: Any) -> None:
        row = await waiting(page)
        assert row["redacted"]
        assert "[value of KEY]" in row["arguments"]
        assert 200 == (await page.post("/api/decide", said(row)))[0]

    visit(world.source(redact=redact), what)


# ── the kill switch ───────────────────────────────────────────────────────────────────────────


def test_the_kill_switch_is_shown(world: Any, visit: Visit, tmp_path: Path) -> None:
    """Its file, whether it is thrown, and which runs are asked to end."""
    file = tmp_path / "kill"

    async def what(page: Any) -> None:
        _, before = await page.get("/api/overview")
        assert (None, 0) == (before["kill"]["reason"], before["kill"]["asked"])
        file.write_text("")
        await runs.ask_to_end(world.store, "run-waits", by="bob")
        # The saved runs are read once a second.
        await page.post("/api/decide", {**said(await waiting(page))})
        _, after = await page.get("/api/overview")
        assert "kill switch: its file is there" == after["kill"]["reason"]
        assert ["cancelled by bob"] == after["kill"]["words"]

    visit(world.source(kill_file=file), what)
    gone = tmp_path / "none" / "kill"

    async def without(page: Any) -> None:
        _, told = await page.get("/api/overview")
        assert "its folder is not there" == told["kill"]["reason"]

    visit(world.source(kill_file=gone), without)


def test_every_run_is_ended_when_that_is_confirmed(world: Any, visit: Visit) -> None:
    """With the word, and by whoever may."""
    stopped: list[str] = []

    def stop(reason: str) -> Any:
        stopped.append(reason)
        return asyncio.run(runs.cancel_all(world.store, by="ann", reason=reason))

    async def what(page: Any) -> None:
        for wrong in ({}, {"confirm": "yes"}, {"confirm": "stop", "run": "x"}):
            assert 400 == (await page.post("/api/stop", wrong))[0]
        status, body = await page.post("/api/stop", {"confirm": "stop", "reason": "drill"})
        assert (200, ["cancelled"]) == (status, [each["status"] for each in body["replies"]])

    visit(world.source(stop=stop), what)
    assert ["drill"] == stopped


def test_edited_text_is_read_strictly() -> None:
    """Depth and constants that JSON does not have."""
    for text in ("[" * 5000, '{"a": Infinity}', "\ud800", "5", '{"a": 1e999}'):
        with pytest.raises(Refused):
            _arguments(text)
    assert {"a": 1} == _arguments('{"a": 1}')


def test_no_query_makes_an_answer_that_is_a_fault(world: Any, visit: Visit, words: str) -> None:
    """Whatever stands in it: what is refused is refused in words, and nothing else is told."""
    odd = (
        "%00",
        "%ED%A0%80",
        "%FF",
        "a%0Ab",
        "%2A" * 90,
        "[",
        "9" * 18,
        "9" * 19,
        "~",
        "%F0%9F%98%80",
    )

    async def what(page: Any) -> None:
        from yarl import URL

        for name in (
            "runs?skip",
            "run?id",
            "events?run",
            "events?host",
            "events?code",
            "events?after",
            "denials?rule",
            "event?id",
            "why?id",
            "changes?since",
            "runs?limit",
        ):
            for value in (*odd, "x~9", f"{'z' * 400}"):
                if name.startswith("changes"):
                    continue
                url = URL(f"{page.origin}/api/{name}={value}", encoded=True)
                async with page.session.get(url) as answer:
                    assert answer.status in {200, 400, 404}, (name, value)
                    assert "application/json" == answer.content_type

    visit(world.source(), what)


def test_every_answer_is_without_secrets(world: Any, visit: Visit) -> None:
    """Also lists and events: a value that is one may stand in any field."""

    def redact(value: Any) -> Any:
        return json.loads(json.dumps(value).replace("new.example", "[value of KEY]"))

    async def what(page: Any) -> None:
        _, events = await page.get("/api/events?host=new.example")
        name = events["rows"][0]["id"]
        for path in ("events", "denials", "run?id=run-a", f"event?id={name}", f"why?id={name}"):
            _, body = await page.get(f"/api/{path}")
            assert "new.example" not in json.dumps(body)
            assert "[value of KEY]" in json.dumps(body)

    visit(world.source(redact=redact), what)
