"""Saved runs: sealed, refused when touched, and whole after a death at any write."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack import (
    ApprovalRequest,
    ApprovalRequired,
    Completed,
    Decision,
    DirectoryRunStore,
    LoopError,
    LoopResult,
    MemoryRunStore,
    SavedRun,
    Seal,
    StopCode,
    TaskContract,
    ToolPolicy,
    ToolRule,
    Verdict,
)
from runtime_pack.catalog import Effects
from runtime_pack.errors import ContractError, RunConflict, RunNotFound, StateRefused, StoreError
from runtime_pack.messages import message_to_json
from runtime_pack.state import (
    SCHEMA,
    chain_rows,
    open_head,
    seal_head,
    spec_from_json,
    spec_to_json,
    state_from_json,
)
from runtime_pack.testing import Rehearsal, ToolShelf, calls, reply

KEY = b"k" * 32
GATE = ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user")])
BATCH = calls(("a", "t:echo", "{}"), ("b", "t:gate", '{"x":"1"}'))


def stage(store: MemoryRunStore | DirectoryRunStore) -> Rehearsal:
    shelf = ToolShelf().add("t:echo", "a result").add("t:gate")
    return Rehearsal(shelf=shelf, contract=TaskContract(tool_policy=GATE), store=store)


def saved_run() -> SavedRun:
    """A run that waits for a person."""

    async def scenario() -> SavedRun:
        store = MemoryRunStore(Seal(KEY))
        result = await stage(store).play(BATCH)
        return await store.load(result.run_id)

    return asyncio.run(scenario())


SAVED = saved_run()


# ── the seal ────────────────────────────────────────────────────────────────────────────────────


def test_a_seal_needs_a_long_key_and_shows_nothing_of_it() -> None:
    """Thirty-two bytes at least; the repr holds no key."""
    for key in (b"", b"k" * 31, "k" * 32):
        with pytest.raises(ContractError):
            # One of the keys is text, which is the fault at hand.
            Seal(key)  # type: ignore[arg-type]

    assert "kkkk" not in repr(Seal(KEY))
    assert Seal(KEY).tag(b"x") == Seal(KEY).tag(b"x") != Seal(b"l" * 32).tag(b"x")


@pytest.mark.parametrize("tag", ["", "0" * 64, "ä", "\ud800"])
def test_a_wrong_tag_is_refused_whatever_it_is(tag: str) -> None:
    """Even a text that cannot be encoded."""
    with pytest.raises(StateRefused):
        Seal(KEY).check(b"body", tag)


def test_an_untouched_run_opens() -> None:
    """The body says which run and revision it is."""
    body = open_head(SAVED, Seal(KEY))

    assert (body["run"], body["revision"]) == (SAVED.run_id, SAVED.revision)


@settings(deadline=None)
@given(st.data())
def test_any_changed_byte_is_refused(data: st.DataObject) -> None:
    """Of the head or of any row."""
    parts = [SAVED.head, *SAVED.rows]
    which = data.draw(st.integers(0, len(parts) - 1))
    at = data.draw(st.integers(0, len(parts[which]) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != parts[which][at]))
    parts[which] = parts[which][:at] + bytes([byte]) + parts[which][at + 1 :]
    forged = attrs.evolve(SAVED, head=parts[0], rows=tuple(parts[1:]))

    with pytest.raises(StateRefused):
        open_head(forged, Seal(KEY))


def _older() -> SavedRun:
    return attrs.evolve(SAVED, rows=SAVED.rows[:-1])


FORGED = {
    "a row lost": _older(),
    "a row added": attrs.evolve(SAVED, rows=(*SAVED.rows, SAVED.rows[0])),
    "rows swapped": attrs.evolve(SAVED, rows=(SAVED.rows[1], SAVED.rows[0], *SAVED.rows[2:])),
    "another run": attrs.evolve(SAVED, run_id="other"),
    "another revision": attrs.evolve(SAVED, revision=SAVED.revision + 1),
    "no head": attrs.evolve(SAVED, head=b""),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
def test_a_run_put_together_from_parts_is_refused(forged: SavedRun) -> None:
    """Rows and head belong together, to one run at one revision."""
    with pytest.raises(StateRefused):
        open_head(forged, Seal(KEY))


def test_another_key_is_refused() -> None:
    """By the seal, and as a result by the loop; nothing runs."""

    async def scenario() -> None:
        store = MemoryRunStore(Seal(b"l" * 32))
        store.put(SAVED)
        there = stage(store)
        there.prepare([])
        result = await there.resume(SAVED.run_id)

        assert isinstance(result, LoopError)
        assert result.stop is not None
        assert result.stop.code == StopCode.STATE_INTEGRITY
        assert there.shelf.ran == {}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "changed",
    [
        {"schema": SCHEMA + 1},
        {"schema": 0},
        {"schema": True},
        {"schema": "1"},
        {"schema": None},
        {"format": "other"},
        {"state": {"at": "x"}},
        {"ledger": []},
        {"turn": "x"},
    ],
    ids=str,
)
def test_a_sealed_head_of_another_form_is_refused(changed: dict[str, Any]) -> None:
    """A newer schema, or anything that this version does not write, even with the right key."""

    async def scenario() -> None:
        body = open_head(SAVED, Seal(KEY)) | changed
        store = MemoryRunStore(Seal(KEY))
        store.put(attrs.evolve(SAVED, head=seal_head(body, Seal(KEY))))
        there = stage(store)
        there.prepare([])
        result = await there.resume(SAVED.run_id)

        assert isinstance(result, LoopError)
        assert result.stop is not None
        assert result.stop.code == StopCode.STATE_INTEGRITY

    asyncio.run(scenario())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["at", "barren", "slots", "text", "closing", "outcome", "step", "call", "calls"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(
    json_values,
    st.sampled_from(["thinking", "judging", "checking", "executing", "waiting", "ended", "x"]),
)
def test_reading_a_state_is_total(value: object, at: str) -> None:
    """A state, or StateRefused."""
    if isinstance(value, dict):
        value["at"] = at
    try:
        state_from_json(value, {})
    except StateRefused:
        return


def test_the_chain_depends_on_every_row_and_its_place() -> None:
    """In one go or row by row gives the same."""
    rows = [b"a", b"b"]
    whole = chain_rows("0" * 64, rows)

    assert whole == chain_rows(chain_rows("0" * 64, rows[:1]), rows[1:])
    assert len({whole, chain_rows("0" * 64, rows[::-1]), chain_rows("0" * 64, [b"ab"])}) == 3


def test_a_tools_definition_survives_and_has_one_digest() -> None:
    """Reading what was written gives the same tool; any change gives another digest."""
    spec = ToolShelf().add("t:x", effects=Effects.IDEMPOTENT, timeout_seconds=3).specs[0]
    again = spec_from_json(orjson.loads(orjson.dumps(spec_to_json(spec))))

    assert (again, again.sha256) == (spec, spec.sha256)
    changes: list[dict[str, Any]] = [
        {"description": "y"},
        {"timeout_seconds": 4},
        {"name": "t:y"},
        {"parameters": {"type": "object"}},
        {"effects": Effects.ONCE},
    ]
    assert len({spec.sha256, *(attrs.evolve(spec, **change).sha256 for change in changes)}) == 6
    bad: object
    for bad in (
        {},
        [],
        None,
        spec_to_json(spec) | {"effects": "x"},
        spec_to_json(spec) | {"parameters": {"type": "x"}},
    ):
        with pytest.raises(StateRefused):
            spec_from_json(bad)


# ── stores ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryRunStore | DirectoryRunStore:
    if request.param == "memory":
        return MemoryRunStore(Seal(KEY))
    return DirectoryRunStore(tmp_path / "runs", seal=Seal(KEY))


def test_a_store_keeps_what_was_committed(store: MemoryRunStore | DirectoryRunStore) -> None:
    """Rows are appended, the head replaced, revisions counted from 1."""

    async def scenario() -> None:
        assert await store.commit("r", expected=0, head=b'"1"', rows=[b"a"]) == 1
        assert await store.commit("r", expected=1, head=b'"2"', rows=[b"b", b"c"]) == 2
        assert await store.commit("r", expected=2, head=b'"3"', rows=[]) == 3

        assert await store.load("r") == SavedRun(
            run_id="r", revision=3, head=b'"3"', rows=(b"a", b"b", b"c")
        )

    asyncio.run(scenario())


@pytest.mark.parametrize("expected", [0, 2])
def test_a_commit_on_another_revision_writes_nothing(
    store: MemoryRunStore | DirectoryRunStore, expected: int
) -> None:
    """The conflict names what was expected and what is there."""

    async def scenario() -> None:
        await store.commit("r", expected=0, head=b'"1"', rows=[b"a"])
        with pytest.raises(RunConflict) as conflict:
            await store.commit("r", expected=expected, head=b'"x"', rows=[b"x"])

        assert (conflict.value.expected, conflict.value.found) == (expected, 1)
        assert (await store.load("r")).rows == (b"a",)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "run_id", ["", "..", "../x", "a/b", "/etc", "a\0b", "ä", ".", "a b", "x" * 300]
)
def test_an_id_cannot_leave_the_folder(tmp_path: Path, run_id: str) -> None:
    """Neither for reading nor for writing; nothing is made outside."""
    store = DirectoryRunStore(tmp_path / "runs", seal=Seal(KEY))
    for action in (
        store.load(run_id),
        store.commit(run_id, expected=0, head=b'"1"', rows=[]),
    ):
        with pytest.raises(StoreError):
            asyncio.run(action)

    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert list((tmp_path / "runs").iterdir()) == []


def test_an_unknown_run_is_not_found(store: MemoryRunStore | DirectoryRunStore) -> None:
    """Asking makes nothing."""
    with pytest.raises(RunNotFound):
        asyncio.run(store.load("r"))
    if isinstance(store, DirectoryRunStore):
        assert store.run_ids() == ()


def test_any_changed_byte_of_the_files_is_refused(tmp_path: Path) -> None:
    """Bytes all over both files up to the last commit: every 7th of the head, every 5th of the rows."""
    store = DirectoryRunStore(tmp_path / "runs", seal=Seal(KEY))
    result = asyncio.run(stage(store).play(BATCH))
    folder = store.path / result.run_id
    for name in ("head.json", "rows.jsonl"):
        content = (folder / name).read_bytes()
        for at in range(0, len(content), 7 if name == "head.json" else 5):
            forged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
            (folder / name).write_bytes(forged)
            with pytest.raises(StateRefused):
                open_head(store.read(result.run_id), Seal(KEY))
        (folder / name).write_bytes(content)

    assert open_head(store.read(result.run_id), Seal(KEY))


def test_rows_beyond_the_last_commit_do_not_count(tmp_path: Path) -> None:
    """A death between rows and head leaves bytes that the next commit drops."""

    async def scenario() -> None:
        store = DirectoryRunStore(tmp_path / "runs", seal=Seal(KEY))
        await store.commit("r", expected=0, head=b'"1"', rows=[b"a"])
        with (store.path / "r" / "rows.jsonl").open("ab") as file:
            file.write(b"half a ro")

        assert (await store.load("r")).rows == (b"a",)

        await store.commit("r", expected=1, head=b'"2"', rows=[b"b"])

        assert (await store.load("r")).rows == (b"a", b"b")

    asyncio.run(scenario())


def test_a_cancelled_commit_is_finished_before_anyone_goes_on(tmp_path: Path) -> None:
    """The thread that writes cannot be stopped, so its end is awaited; it is whole."""

    async def scenario() -> None:
        store = DirectoryRunStore(tmp_path / "runs", seal=Seal(KEY))
        commit = asyncio.ensure_future(store.commit("r", expected=0, head=b'"1"', rows=[b"a"]))
        await asyncio.sleep(0)
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit

        assert (await store.load("r")).revision == 1

    asyncio.run(scenario())


def test_many_writers_of_one_run_do_not_mix(tmp_path: Path) -> None:
    """Of ten commits on one revision one is written."""

    async def scenario() -> None:
        store = DirectoryRunStore(tmp_path / "runs", seal=Seal(KEY))
        commits = (
            store.commit("r", expected=0, head=f'"{n}"'.encode(), rows=[b"%d" % n])
            for n in range(10)
        )
        done = await asyncio.gather(*commits, return_exceptions=True)

        assert done.count(1) == 1
        assert sum(isinstance(one, RunConflict) for one in done) == 9
        saved = await store.load("r")
        assert saved.head == b'"' + saved.rows[0] + b'"'

    asyncio.run(scenario())


def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    """A file is in the way."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError):
        DirectoryRunStore(tmp_path / "file" / "runs", seal=Seal(KEY))


def test_saving_costs_what_is_new(tmp_path: Path) -> None:
    """The head stays small and rows are written once, however long the run is."""

    class Measured(MemoryRunStore):
        heads: ClassVar[list[int]] = []
        written = 0

        async def commit(
            self, run_id: str, *, expected: int, head: bytes, rows: Sequence[bytes]
        ) -> int:
            self.heads.append(len(head))
            Measured.written += sum(map(len, rows))
            return await super().commit(run_id, expected=expected, head=head, rows=rows)

    async def scenario() -> None:
        where = Measured(Seal(KEY))
        there = Rehearsal(
            shelf=ToolShelf().add("t:echo", "x" * 1000),
            contract=TaskContract(max_turns=60, max_steps=60),
            store=where,
        )
        script = [calls(("a", "t:echo", {"x": str(number)})) for number in range(50)]
        result = await there.play(*script, reply())
        saved = await where.load(result.run_id)

        assert max(where.heads[-20:]) < max(where.heads[:20]) + 60
        assert Measured.written == sum(map(len, saved.rows))

    asyncio.run(scenario())


# ── death and new processes ─────────────────────────────────────────────────────────────────────

PRELUDE = """
    import asyncio, os, signal, sys
    from pathlib import Path
    from runtime_pack import *
    from runtime_pack.testing import Rehearsal, ToolShelf, calls, reply
    GATE = ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user")])
    BATCH = calls(("a", "t:echo", "{}"), ("b", "t:gate", '{"x":"1"}'))
    def stage(store):
        shelf = ToolShelf().add("t:echo", "a result").add("t:gate")
        return Rehearsal(shelf=shelf, contract=TaskContract(tool_policy=GATE), store=store)
"""

KILLED = (
    PRELUDE
    + """
    # Dies by its own hand at the n-th call of the system that can change the folder.
    left = int(sys.argv[2])
    def watch(event, args):
        global left
        watched = {"open", "os.rename", "os.mkdir", "os.truncate"}
        if event in watched and str(sys.argv[1]) in str(args[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    store = DirectoryRunStore(sys.argv[1], seal=Seal(b"k" * 32))
    sys.addaudithook(watch)
    there = stage(store)
    there.prepare([BATCH, reply()])
    asyncio.run(there.start())
    print("done")
"""
)


def child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_kill_at_any_write_leaves_the_last_commit(tmp_path: Path) -> None:
    """After each death what is there opens, and the run can be taken up and ends."""
    revisions = set()
    for at in range(1, 60, 5):
        folder = tmp_path / f"runs-{at}"
        died = child(KILLED, str(folder), str(at))
        if died.stdout.strip() == "done":
            break
        assert died.returncode == -signal.SIGKILL, died.stderr
        store = DirectoryRunStore(folder, seal=Seal(KEY))
        for run_id in store.run_ids():
            saved = store.read(run_id)
            open_head(saved, Seal(KEY))
            revisions.add(saved.revision)
            there = stage(store)
            there.prepare([BATCH, reply()])
            result = asyncio.run(there.resume(run_id))

            assert isinstance(result, Completed | ApprovalRequired)
    else:
        pytest.fail("the run never ended")
    assert len(revisions) >= 3


RESUMED = (
    PRELUDE
    + """
    store = DirectoryRunStore(sys.argv[1], seal=Seal(b"k" * 32))
    there = stage(store)
    there.prepare([reply("the end")])
    decision = Decision(request_id=sys.argv[3], verdict=sys.argv[4], decided_by="a person")
    result = asyncio.run(there.resume(sys.argv[2], decision))
    print(result.kind, "|", there.shelf.ran["t:gate"], "|", len(there.model.requests))
"""
)


def trace(result: LoopResult, *, labels: bool = True) -> list[object]:
    """What happened, without what differs between runs by design: ids and times.

    Without *labels* when decisions come one by one: what ran in between has raised the label.
    """
    steps = [
        (s.step, s.tool, s.call_id, s.admitted, s.executed, s.ok, s.code, labels and s.label)
        for s in result.steps
    ]
    ledger = result.ledger
    return [
        result.kind,
        result.text,
        # A denial that is repeated names its request, and that is random.
        re.sub(r"apr-[0-9a-f]{24}", "apr-", str([message_to_json(m) for m in result.messages])),
        sorted(steps, key=str),
        dict(sorted(ledger.used.items())),
        ledger.refused,
        ledger.reserved,
    ]


class ByArgument:
    """Approves what has an even argument."""

    def word(self, request: ApprovalRequest) -> Decision:
        even = str(request.arguments["x"]) in "02468"
        return Decision(
            request_id=request.request_id,
            verdict="approve" if even else "deny",
            decided_by="a person",
        )

    async def decide(self, request: ApprovalRequest) -> Decision | None:
        return self.word(request)


batches = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["t:echo", "t:gate", "nope"]), st.integers(0, 9)),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None)
@given(batches, st.booleans())
def test_suspending_at_every_request_changes_nothing(
    script: list[list[tuple[str, int]]], one_by_one: bool
) -> None:
    """Property 5: bytes, another store, another task run, at each request: the same trace."""
    turns = [
        calls(*((f"c{n}", name, f'{{"x":"{x}"}}') for n, (name, x) in enumerate(batch)))
        for batch in script
    ]

    async def scenario() -> None:
        contract = TaskContract(tool_policy=GATE, max_steps=6, max_consecutive_refused=9)
        people = ByArgument()
        straight = stage(MemoryRunStore(Seal(KEY)))
        straight.contract, straight.approver = contract, people
        straight.prepare([*turns, reply("the end")])
        expected = await straight.start()
        there = stage(MemoryRunStore(Seal(KEY)))
        there.contract = contract
        there.prepare([*turns, reply("the end")])
        model = there.model
        result = await there.start()
        while isinstance(result, ApprovalRequired):
            assert result.state is not None
            moved = MemoryRunStore(Seal(KEY))
            moved.put(result.state)
            words = [people.word(request) for request in result.requests]
            there.prepare([])
            there.store, there.model = moved, model
            result = await there.resume(result.run_id, *(words[:1] if one_by_one else words))

        together = not one_by_one
        assert trace(result, labels=together) == trace(expected, labels=together)
        assert there.shelf.ran == straight.shelf.ran

    asyncio.run(scenario())


@pytest.mark.parametrize("verdict", ["approve", "deny"])
def test_a31_a_new_process_gives_the_trace_of_not_suspending(tmp_path: Path, verdict: str) -> None:
    """Property 5: suspend, bytes, a new interpreter, resume: the same history, steps and ledger."""

    class Now:
        async def decide(self, request: ApprovalRequest) -> Decision | None:
            return Decision(
                request_id=request.request_id, verdict=Verdict(verdict), decided_by="a person"
            )

    straight = stage(MemoryRunStore(Seal(KEY)))
    straight.approver = Now()
    expected = asyncio.run(straight.play(BATCH, reply("the end")))
    store = DirectoryRunStore(tmp_path / "runs", seal=Seal(KEY))
    there = stage(store)
    waiting = asyncio.run(there.play(BATCH))
    done = child(RESUMED, str(store.path), waiting.run_id, waiting.requests[0].request_id, verdict)

    assert done.stderr == ""
    assert done.stdout.split("|") == ["completed ", f" {int(verdict == 'approve')} ", " 1\n"]
    there.prepare([])
    found = asyncio.run(there.resume(waiting.run_id))

    assert trace(found) == trace(expected)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["revision", "offset", "head", "x"]), inner, max_size=4
            )
        ),
        max_leaves=6,
    )
)
def test_reading_a_stored_head_is_total(value: object) -> None:
    """Whatever JSON stands in a head, it is a run that was never sealed or one that is refused."""
    with tempfile.TemporaryDirectory() as folder:
        store = DirectoryRunStore(folder, seal=Seal(b"k" * 32))
        run = Path(folder) / "run-1"
        run.mkdir()
        (run / "rows.jsonl").write_bytes(b"")
        (run / "head.json").write_bytes(orjson.dumps(value))

        with pytest.raises(StateRefused):
            open_head(store.read("run-1"), store.seal)
