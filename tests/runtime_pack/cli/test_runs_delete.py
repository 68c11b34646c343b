"""`runs delete`: what is forgotten, what stays, and what is said (retention of personal data)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from egress.testing import RecordingFetch, ScriptedAnswer
from runtime_pack import (
    TaskContract,
    ToolPolicy,
    ToolRule,
    TurnInput,
    UserMessage,
    build_web_tool_catalog,
    create_agent_runtime,
    create_agent_task_run,
    create_fixture_web_search_provider,
    create_web_tool_runtime,
    run_governed_agent_loop,
    runs,
)
from runtime_pack.cli import main
from runtime_pack.errors import RunBusy, RunNotFound
from runtime_pack.revisions import DirectoryRevisionStore
from runtime_pack.testing import ListEmitter, ScriptedModel, calls, reply

Told = tuple[int, str, str]
Run = Callable[..., Told]


def page(text: str) -> ScriptedAnswer:
    return ScriptedAnswer(headers=(("content-type", "text/plain"),), chunks=(text.encode(),))


def read(folder: Path, run_id: str, *texts: str, waits: bool = False) -> None:
    """A saved run that has read pages of these texts; one that waits asks about its last call."""
    wanted = [("web:read", f'{{"url": "https://a.example/{n}"}}') for n in range(len(texts))]
    turns = [calls((str(n), *each)) for n, each in enumerate(wanted)]
    contract = TaskContract(
        tool_policy=ToolPolicy([ToolRule(tool="web:search", approval_class="request_user")])
    )
    turns += [calls(("q", "web:search", '{"query": "x"}'))] if waits else [reply("done")]
    run = create_agent_task_run(contract, run_id=run_id)
    runtime = create_web_tool_runtime(
        run.guard_runtime(create_agent_runtime(model=ScriptedModel(turns))),
        provider=create_fixture_web_search_provider([]),
        allowlist=["a.example"],
        emitter=ListEmitter(),
        fetch=RecordingFetch(list(map(page, texts))),
        revisions=DirectoryRevisionStore(folder / "revisions"),
    )
    given = TurnInput(
        messages=[UserMessage(text="https://a.example/0")], tool_catalog=build_web_tool_catalog()
    )
    asyncio.run(
        run_governed_agent_loop(
            runtime=runtime, execute_turn_input=given, store=runs.open_store(folder)
        )
    )


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Two runs that are over and share a text, and one that waits."""
    read(tmp_path, "run-a", "Only a has read this.", "Both have read this.")
    read(tmp_path, "run-b", "Both have read this.")
    read(tmp_path, "run-w", "The one that waits.", waits=True)
    (tmp_path / "asked").mkdir()
    (tmp_path / "asked" / "run-a.json").write_text("{}")
    return tmp_path


@pytest.fixture
def run(state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`runs delete …` in this process."""

    def called(*arguments: str) -> Told:
        words = ["runtime-pack", "runs", "delete", "--state-dir", str(state), *arguments]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(str(left.value.code)), out, err

    return called


def texts(state: Path) -> set[str]:
    return {path.read_text() for path in (state / "revisions").glob("[0-9a-f]*")}


def test_a_run_goes_with_what_only_it_had_read(run: Run, state: Path) -> None:
    """State, note and texts; a text that another run has read stays (point 7)."""
    code, out, _ = run("run-a", "--json")

    assert (0, {"deleted": ["run-a"], "kept": {}, "texts": 1}) == (code, json.loads(out))
    assert ["run-b", "run-w"] == asyncio.run(_ids(state))
    assert {"Both have read this.", "The one that waits."} == texts(state)
    assert not (state / "asked" / "run-a.json").exists()
    for path in state.rglob("*"):
        assert not path.is_file() or b"Only a has read" not in path.read_bytes()


async def _ids(state: Path) -> list[str]:
    return list(await runs.open_store(state).list_ids())


def test_what_is_not_over_stays_unless_it_is_asked_for(run: Run, state: Path) -> None:
    """A run that waits is cancelled first, or deleted knowingly."""
    code, _, err = run("run-w", "run-b")
    assert (1, True) == (code, "run run-w is waiting: cancel it first" in err)
    assert ["run-a", "run-w"] == asyncio.run(_ids(state))

    assert 0 == run("run-w", "--unfinished")[0]
    assert ["run-a"] == asyncio.run(_ids(state))


def test_old_runs_are_deleted_by_their_age(run: Run, state: Path) -> None:
    """By when they were saved last; what waits is passed over, and a young run too."""
    assert (0, "0 runs and 0 texts deleted\n") == run("--older-than", "1")[:2]
    assert 3 == len(asyncio.run(_ids(state)))

    assert 0 == run("--older-than", "0")[0]
    assert ["run-w"] == asyncio.run(_ids(state))
    assert {"The one that waits."} == texts(state)


def test_a_damaged_run_can_be_deleted(run: Run, state: Path) -> None:
    """Nothing else can be done with it."""
    head = state / "runs" / "run-a" / "head.json"
    head.write_bytes(head.read_bytes().replace(b"run-a", b"run-x"))

    assert 0 == run("run-a")[0]
    assert ["run-b", "run-w"] == asyncio.run(_ids(state))


def test_a_run_that_is_driven_is_not_deleted(run: Run, state: Path) -> None:
    """Nor what is below it, nor one that there is not."""
    read(state, "run-a-sub-1", "Read below.")

    async def busy() -> Any:
        store = runs.open_store(state)
        claim = await store.claim("run-a")
        try:
            with pytest.raises(RunBusy):
                await runs.delete(runs.open_store(state), "run-a", unfinished=True)
        finally:
            if claim is not None:
                claim.release()
        assert ["run-a", "run-a-sub-1", "run-b", "run-w"] == await _ids(state)
        with pytest.raises(RunNotFound):
            await runs.delete(store, "none")
        assert ("run-a", "run-a-sub-1") == await runs.delete(store, "run-a")

    asyncio.run(busy())
    assert 2 == run("none")[0]
    assert 2 == run()[0]
    assert 2 == run("run-b", "--older-than", "1")[0]


def test_texts_are_forgotten_by_their_digest(tmp_path: Path) -> None:
    """And nothing but texts: a word that is no digest names no file."""
    store = DirectoryRevisionStore(tmp_path / "revisions")
    assert 0 == store.forget(["sha256:" + "0" * 64])
    kept = str(store.put("kept"))
    gone = str(store.put("gone"))
    (tmp_path / "revisions" / "other").write_text("x")

    assert 1 == store.forget([gone, gone, "../revisions/other", "other", "sha256:x"])
    assert ("kept", None) == (store.get(kept), store.get(gone))
    assert (tmp_path / "revisions" / "other").exists()
