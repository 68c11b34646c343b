"""What is known of a log, behind an address and in a repository: it goes on from it, or is told of."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from runtime_pack.audit import AuditLog, LogSigner
from runtime_pack.audit.files import read_checkpoints
from runtime_pack.cli import main
from runtime_pack.errors import AuditError
from runtime_pack.events import Event, EventCode
from runtime_pack.sinks.witness import HttpStore, watch_over_http

SIGNER = LogSigner("example.org/log", bytes(range(32)))
THIEF = LogSigner("example.org/log", bytes(range(1, 33)))


def write(path: Path, count: int, signer: LogSigner = SIGNER) -> None:
    with AuditLog(path, signer=signer) as log:
        for number in range(count):
            log.append(Event(code=EventCode.STP001A, subject={}, object={"n": number}))


class Store:
    """One file with an entity tag; strict about conditions."""

    def __init__(self) -> None:
        self.body: bytes | None = None
        self.status = 0
        self.asked: list[str] = []
        self.between: Callable[[], None] = lambda: None

    @property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.body or b"").hexdigest()[:16]}"'

    async def get(self, request: web.Request) -> web.Response:
        self.asked.append("GET")
        if self.status:
            return web.Response(status=self.status)
        if self.body is None:
            return web.Response(status=404)
        answer = web.Response(body=self.body, headers={"ETag": self.tag})
        self.between()
        return answer

    async def put(self, request: web.Request) -> web.Response:
        self.asked.append("PUT")
        wanted = request.headers.get("If-Match", "")
        none = request.headers.get("If-None-Match")
        if (self.body is None) is not (none == "*") or (
            self.body is not None and wanted != self.tag
        ):
            return web.Response(status=412)
        self.body = await request.read()
        return web.Response(status=204)


@contextlib.asynccontextmanager
async def served(store: Store) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/known", store.get)
    app.router.add_put("/known", store.put)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/known"
    finally:
        await runner.cleanup()


async def watched(log: Path, store: Store, **more: Any) -> int:
    async with served(store) as url:
        place = HttpStore(url=url, private_address=True, **more)
        note = await watch_over_http(log, place, [SIGNER.key])
        return note.checkpoint.size


@pytest.mark.loopback
def test_a_log_that_goes_on_is_stored_and_no_other(tmp_path: Path) -> None:
    """First nothing is known, then more and more; a log that was cut or written anew is told."""
    log, store = tmp_path / "log", Store()
    write(log, 2)
    assert 4 == asyncio.run(watched(log, store))
    assert str(read_checkpoints(log).notes[-1]) == (store.body or b"").decode()[:-1]
    write(log, 2)
    assert 8 == asyncio.run(watched(log, store))
    assert 8 == asyncio.run(watched(log, store))
    assert ["GET", "PUT", "GET", "PUT", "GET"] == store.asked
    other = tmp_path / "other"
    write(other, 9)
    for wrong in (other, tmp_path / "none"):
        with pytest.raises(AuditError):
            asyncio.run(watched(wrong, store))
    assert "PUT" != store.asked[-1]


@pytest.mark.loopback
def test_what_a_store_says_is_not_believed_as_it_is(tmp_path: Path) -> None:
    """A checkpoint of no trusted key, no checkpoint, an error: nothing is stored."""
    log, store = tmp_path / "log", Store()
    write(log, 2)
    stolen = tmp_path / "stolen"
    write(stolen, 2, THIEF)
    true_but_unsigned = THIEF.note(read_checkpoints(log).notes[0].text)
    bodies = [
        f"{note}\n".encode() for note in (read_checkpoints(stolen).notes[-1], true_but_unsigned)
    ]
    for body in (*bodies, b"hello", b"\xff", b""):
        store.body = body
        with pytest.raises(AuditError):
            asyncio.run(watched(log, store))
        assert body == store.body
    for status in (401, 403, 500, 302):
        store.status = status
        with pytest.raises(AuditError, match=str(status)):
            asyncio.run(watched(log, store))


@pytest.mark.loopback
def test_two_witnesses_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """What was stored meanwhile stands; the second is told to ask again."""
    log, store = tmp_path / "log", Store()
    write(log, 2)
    asyncio.run(watched(log, store))
    write(log, 2)
    theirs = b"theirs"

    def exchange() -> None:
        store.body = theirs

    store.between = exchange
    with pytest.raises(AuditError, match="meanwhile"):
        asyncio.run(watched(log, store))
    assert theirs == store.body


@pytest.mark.loopback
def test_a_witness_is_reached_by_its_word_only(tmp_path: Path) -> None:
    """Not at an address of the own network unless that is said, and without TLS never with a token."""
    log, store = tmp_path / "log", Store()
    write(log, 2)

    async def asked(**given: Any) -> None:
        async with served(store) as url:
            await watch_over_http(log, HttpStore(url=url, **given), [SIGNER.key])

    for given in ({}, {"private_address": True, "token": "tok"}):
        with pytest.raises(AuditError, match="https"):
            asyncio.run(asked(**given))
    with pytest.raises(AuditError, match="denied"):
        asyncio.run(watch_over_http(log, HttpStore(url="https://127.0.0.1:9/known"), [SIGNER.key]))
    assert [] == store.asked


def test_a_witness_commits_what_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each checkpoint is a commit of the file and of nothing else; the same one is none."""
    repository, log = tmp_path / "repository", tmp_path / "log"
    write(log, 2)
    environment = {
        f"GIT_{who}_{what}": "w@example.org"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    for name, value in {**environment, "GIT_CONFIG_GLOBAL": "/dev/null"}.items():
        monkeypatch.setenv(name, value)

    def git(*words: str) -> str:
        command = ["git", "-C", str(repository), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def witness() -> int:
        words = ["audit", "witness", str(log), "--to", str(repository / "known"), "--git"]
        monkeypatch.setattr(sys, "argv", ["runtime-pack", *words, "--key", str(SIGNER.key)])
        with pytest.raises(SystemExit) as left:
            main()
        return int(str(left.value.code))

    repository.mkdir()
    assert 1 == witness()
    assert "git did not" in capsys.readouterr().err
    git("init", "-q")
    (repository / "other").write_text("not of the witness")
    git("add", "other")
    assert [0, 0] == [witness(), witness()]
    write(log, 1)
    assert 0 == witness()

    assert ["7 lines of example.org/log", "4 lines of example.org/log"] == git(
        "log", "--format=%s"
    ).splitlines()
    assert ["known"] == git("ls-tree", "--name-only", "HEAD").splitlines()
