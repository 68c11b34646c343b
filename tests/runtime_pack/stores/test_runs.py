"""Saved runs from outside: decisions and cancellation through the store, and who drives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from runtime_pack import (
    ApprovalRequest,
    ApprovalRequired,
    AuditLog,
    Cancelled,
    Completed,
    ContractError,
    Decision,
    DirectoryRunStore,
    ExecutionContext,
    LoopError,
    LoopResult,
    MemoryRunStore,
    Remember,
    Seal,
    SharedRunStore,
    SQLiteRunStore,
    StopCode,
    Suspended,
    TaskContract,
    ToolPolicy,
    ToolRule,
    Verdict,
    runs,
    verify_log,
)
from runtime_pack.errors import CallCode, RunAmbiguous, RunNotFound, StateRefused
from runtime_pack.letters import CANCEL_KEY, decision_key, open_letters, seal_letter
from runtime_pack.messages import Json
from runtime_pack.state import chain_rows, open_head, seal_head
from runtime_pack.testing import (
    MovableClock,
    Rehearsal,
    ToolShelf,
    assert_one_result_per_call,
    calls,
    reply,
)

SEAL = Seal(b"k" * 32)
GATE = ToolPolicy([ToolRule(tool="t:gate", approval_class="request_user", reason="it is gated")])
BATCH = calls(("a", "t:echo", "{}"), ("b", "t:gate", '{"x":"1"}'))
BOTH = calls(("a", "t:gate", '{"x":"1"}'), ("b", "t:gate", '{"x":"2"}'))


def in_memory(folder: Path) -> SharedRunStore:
    del folder
    return MemoryRunStore(SEAL)


def in_files(folder: Path) -> SharedRunStore:
    return DirectoryRunStore(folder / "runs", seal=SEAL)


def in_sqlite(folder: Path) -> SharedRunStore:
    return SQLiteRunStore(folder / "runs.sqlite3", seal=SEAL)


@pytest.fixture(params=[in_memory, in_files, in_sqlite])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SharedRunStore]:
    made: SharedRunStore = request.param(tmp_path)
    yield made
    if isinstance(made, SQLiteRunStore):
        made.close()


def stage(store: SharedRunStore, shelf: ToolShelf | None = None, **more: object) -> Rehearsal:
    tools = shelf or ToolShelf().add("t:echo", "a result").add("t:gate")
    contract = TaskContract(tool_policy=GATE)
    # Fields of the rehearsal by name.
    return Rehearsal(shelf=tools, contract=contract, store=store, **more)  # type: ignore[arg-type]


def word(request_id: str, verdict: Verdict = Verdict.APPROVE, by: str = "ann") -> Decision:
    return Decision(request_id=request_id, verdict=verdict, decided_by=by, reason="because")


def code(result: LoopResult) -> str | None:
    return None if result.stop is None else str(result.stop.code)


# ── decisions ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("verdict", "ran"), [(Verdict.APPROVE, 1), (Verdict.DENY, 0)])
def test_a_decision_left_in_the_store_is_carried_out_by_the_resume(
    store: SharedRunStore, verdict: Verdict, ran: int, tmp_path: Path
) -> None:
    """Nothing runs when it is left; the driver logs who decided, and asks nobody again."""

    async def scenario() -> None:
        with AuditLog(tmp_path / "log.jsonl") as log:
            there = stage(store, audit=log)
            waiting = await there.play(BATCH)
            (request,) = waiting.requests
            told = await runs.decide(store, waiting.run_id, word(request.request_id, verdict))
            assert (told.code, there.shelf.ran["t:gate"]) == (None, 0)

            result = await there.go_on(waiting, reply("done"))

        assert isinstance(result, Completed)
        assert there.shelf.ran["t:gate"] == ran
        assert there.shelf.ran["t:echo"] == 1
        lines = [orjson.loads(line) for line in log.path.read_bytes().splitlines()]
        (decided,) = [x for x in lines if x["code"] in {"APR002A", "APR003D"}]
        assert decided["decision"]["decided_by"] == "ann"
        assert verify_log(log.path, [log.head]).status == "verified"

    asyncio.run(scenario())


def test_the_first_decision_stands_however_the_second_one_comes(store: SharedRunStore) -> None:
    """Through the store: ALREADY_RESOLVED or APPROVAL_CONFLICT. With the resume: the same codes."""

    async def scenario() -> None:
        there = stage(store)
        waiting = await there.play(BATCH)
        run_id, (request,) = waiting.run_id, waiting.requests
        name = request.request_id
        assert (await runs.deny(store, run_id, name, decided_by="ann")).code is None
        same = await runs.deny(store, run_id, name, decided_by="bob", reason="me too")
        other = await runs.approve(store, run_id, name, decided_by="bob")
        assert (StopCode.ALREADY_RESOLVED, "ann") == (
            same.code,
            same.decision and same.decision.decided_by,
        )
        assert other.code is StopCode.APPROVAL_CONFLICT

        conflict = await there.go_on(waiting, decisions=[word(name, Verdict.APPROVE, "bob")])
        assert (isinstance(conflict, LoopError), code(conflict)) == (True, "APPROVAL_CONFLICT")
        agreed = await there.go_on(
            waiting, reply("done"), decisions=[word(name, Verdict.DENY, "bob")]
        )

        assert isinstance(agreed, Completed)
        assert there.shelf.ran["t:gate"] == 0
        late = await runs.approve(store, run_id, name, decided_by="bob")
        again = await runs.deny(store, run_id, name, decided_by="bob")
        assert (late.code, again.code) == (StopCode.APPROVAL_CONFLICT, StopCode.ALREADY_RESOLVED)

    asyncio.run(scenario())


def test_a_decision_about_nothing_is_refused(store: SharedRunStore) -> None:
    """Unknown requests and unknown runs; nothing is kept."""

    async def scenario() -> None:
        there = stage(store)
        waiting = await there.play(BATCH)
        unknown = await runs.approve(store, waiting.run_id, "apr-0", decided_by="ann")
        assert unknown.code is StopCode.APPROVAL_NOT_FOUND
        assert {} == dict(await store.letters(waiting.run_id))
        for run_id in ("run-0", "../x"):
            with pytest.raises(RunNotFound):
                await runs.approve(store, run_id, "apr-0", decided_by="ann")

    asyncio.run(scenario())


def test_a_grant_that_was_left_takes_a_run_on_that_asked_for_too_much(
    store: SharedRunStore,
) -> None:
    """What the budget refused stopped the run; with more of it, it is not held against the run."""

    async def scenario() -> None:
        there = stage(store)
        there.contract = TaskContract(max_steps=3)
        wanted = [(f"c{i}", "t:echo", f'{{"x":"{i}"}}') for i in range(12)]
        first = await there.play(calls(*wanted), reply("so far"))
        assert code(first) == "budget_exhausted"
        await runs.grant(store, first.run_id, "steps", 10, granted_by="ann", reason="go on")
        result = await there.go_on(first, calls(("d", "t:echo", '{"x":"d"}')), reply("done"))

        assert isinstance(result, Completed)
        assert there.shelf.ran["t:echo"] == 4

    asyncio.run(scenario())


def test_a_decision_that_cannot_be_followed_is_not_left(store: SharedRunStore) -> None:
    """It is said at once, by the tools that the run was started with, and the next one counts."""

    async def scenario() -> None:
        there = stage(store)
        waiting = await there.play(BATCH)
        right = word(waiting.requests[0].request_id)
        wrong = attrs.evolve(right, remember=Remember(fields=["t0"]))
        refused = await runs.decide(store, waiting.run_id, wrong)

        assert refused.code is StopCode.DECISION_REFUSED
        assert refused.message.startswith("remember.fields: 't0' is no argument of t:gate; ")
        assert {} == dict(await store.letters(waiting.run_id))
        assert (await runs.decide(store, waiting.run_id, right)).code is None

    asyncio.run(scenario())


def test_too_late_is_said_as_such(store: SharedRunStore) -> None:
    """Before it is left, and when it was left in time and the run is taken up too late."""

    async def scenario() -> None:
        clock = MovableClock()
        there = stage(store, clock=clock)
        waiting = await there.play(BATCH)
        (request,) = waiting.requests
        run_id, name = waiting.run_id, request.request_id
        expires = request.expires_at
        assert expires is not None

        late_clock = MovableClock(expires + timedelta(seconds=1))
        late = await runs.decide(store, run_id, word(name), clock=late_clock)
        assert late.code is CallCode.APPROVAL_EXPIRED
        assert {} == dict(await store.letters(run_id))

        assert (await runs.decide(store, run_id, word(name), clock=clock)).code is None
        clock.move(80 * 3600)
        result = await there.go_on(waiting, reply("done"))

        assert isinstance(result, Completed)
        assert there.shelf.ran["t:gate"] == 0
        assert '"APPROVAL_EXPIRED"' in result.messages[-2].text
        again = await runs.decide(store, run_id, word(name), clock=clock)
        assert again.code is CallCode.APPROVAL_EXPIRED

    asyncio.run(scenario())


def test_of_several_requests_each_has_its_own_decision(store: SharedRunStore) -> None:
    """What is not decided goes on waiting, and no model is asked meanwhile."""

    async def scenario() -> None:
        there = stage(store)
        waiting = await there.play(BOTH)
        first, second = waiting.requests
        await runs.approve(store, waiting.run_id, second.request_id, decided_by="ann")
        half = await there.go_on(waiting)
        assert isinstance(half, ApprovalRequired)
        assert [first.request_id] == [request.request_id for request in half.requests]
        await runs.deny(store, waiting.run_id, first.request_id, decided_by="ann")
        done = await there.go_on(waiting, reply("done"))

        assert isinstance(done, Completed)
        assert [("t:gate", {"x": "2"})] == [(n, dict(a)) for n, a in there.shelf.calls]

    asyncio.run(scenario())


def test_a_decision_that_comes_while_the_run_is_driven_is_heeded(store: SharedRunStore) -> None:
    """Somebody decides in another process while a sibling runs: nobody is asked any more."""

    class Nobody:
        """Would deny what it is asked about."""

        def __init__(self) -> None:
            self.asked: list[str] = []

        async def decide(self, request: ApprovalRequest) -> Decision:
            self.asked.append(request.request_id)
            return word(request.request_id, Verdict.DENY)

    async def elsewhere(context: ExecutionContext) -> str:
        (found,) = (await runs.show_run(store, context.run)).requests
        told = await runs.approve(store, context.run, found.request.request_id, decided_by="bob")
        assert told.code is None
        return "ok"

    async def scenario() -> None:
        nobody = Nobody()
        shelf = ToolShelf().add("t:echo", does=elsewhere).add("t:gate")
        there = stage(store, shelf, approver=nobody)

        done = await there.play(BATCH, reply("done"))

        assert isinstance(done, Completed)
        assert (nobody.asked, shelf.ran["t:gate"]) == ([], 1)

    asyncio.run(scenario())


def test_a_decision_that_comes_after_the_question_is_heeded_by_the_next_drive(
    store: SharedRunStore,
) -> None:
    """The approver has no answer; meanwhile somebody else decides both requests."""

    class Slow:
        """Whoever it asks has answered in another process before."""

        def __init__(self) -> None:
            self.asked: list[str] = []

        async def decide(self, request: ApprovalRequest) -> Decision | None:
            self.asked.append(request.request_id)
            pending = (await runs.show_run(store, request.run)).requests
            for found in pending:
                name = found.request.request_id
                await runs.approve(store, request.run, name, decided_by="bob")
            return None

    async def scenario() -> None:
        slow = Slow()
        there = stage(store, approver=slow)
        result = await there.play(BOTH)
        assert isinstance(result, ApprovalRequired)
        names = [request.request_id for request in result.requests]
        assert (slow.asked, there.shelf.ran["t:gate"]) == (names, 0)
        done = await there.go_on(result, reply("done"))

        assert isinstance(done, Completed)
        assert (slow.asked, there.shelf.ran["t:gate"]) == (names, 2)

    asyncio.run(scenario())


# ── letters that nobody with the key wrote ──────────────────────────────────────────────────────


async def forged(store: SharedRunStore, run_id: str, name: str) -> list[tuple[str, bytes]]:
    """Letters that must not count, each under a key where it would."""
    other = Seal(b"l" * 32)
    body: dict[str, Json] = {
        "request_id": name,
        "verdict": "approve",
        "decided_by": "eve",
        "reason": "",
    }
    key = decision_key(name)
    good = seal_letter(run_id, key, body, SEAL)
    head = (await store.load(run_id)).head
    return [
        (key, b"{}"),
        (key, b"not json"),
        (key, orjson.dumps(body)),
        (key, seal_letter(run_id, key, body, other)),
        (key, seal_letter("run-other", key, body, SEAL)),
        (key, seal_letter(run_id, decision_key("apr-other"), body, SEAL)),
        (key, seal_letter(run_id, key, {**body, "request_id": "apr-other"}, SEAL)),
        (key, seal_letter(run_id, key, {**body, "tool": "t:other"}, SEAL)),
        (key, good.replace(b"eve", b"ann")),
        (key, head),
        (CANCEL_KEY, b"{}"),
        (CANCEL_KEY, good),
        ("another", good),
        ("another", seal_letter(run_id, "another", body, SEAL)),
    ]


@pytest.mark.parametrize("number", range(14))
def test_a_letter_without_the_hosts_seal_stops_the_run(store: SharedRunStore, number: int) -> None:
    """STATE_INTEGRITY, and nothing runs: who can write the store cannot approve."""

    async def scenario() -> None:
        there = stage(store)
        waiting = await there.play(BATCH)
        (request,) = waiting.requests
        key, letter = (await forged(store, waiting.run_id, request.request_id))[number]
        await store.post(waiting.run_id, key, letter)
        result = await there.go_on(waiting)

        assert (isinstance(result, LoopError), code(result)) == (True, "STATE_INTEGRITY")
        assert there.shelf.ran["t:gate"] == 0
        with pytest.raises(StateRefused):
            await runs.show_run(store, waiting.run_id)
        with pytest.raises(StateRefused):
            await runs.approve(store, waiting.run_id, request.request_id, decided_by="ann")
        (listed,) = await runs.list_runs(store)
        assert listed.status is runs.RunStatus.DAMAGED

    asyncio.run(scenario())


def test_any_changed_byte_of_a_letter_is_refused() -> None:
    """Of the body or of the seal."""
    key = decision_key("apr-1")
    body: dict[str, Json] = {
        "request_id": "apr-1",
        "verdict": "deny",
        "decided_by": "ann",
        "reason": "",
    }
    letter = seal_letter("run-1", key, body, SEAL)
    assert open_letters("run-1", {key: letter}, SEAL).decisions["apr-1"].verdict is Verdict.DENY

    for at in range(len(letter)):
        changed = letter[:at] + bytes([letter[at] ^ 1]) + letter[at + 1 :]
        with pytest.raises(StateRefused):
            open_letters("run-1", {key: changed}, SEAL)


# ── cancelling ──────────────────────────────────────────────────────────────────────────────────


def test_a_parked_run_is_cancelled_on_the_spot(store: SharedRunStore, tmp_path: Path) -> None:
    """Its requests are withdrawn and logged, every call has its result, and it stays over."""

    async def scenario() -> None:
        with AuditLog(tmp_path / "log.jsonl") as log:
            there = stage(store)
            waiting = await there.play(BATCH)
            before = open_head(await store.load(waiting.run_id), SEAL)["ledger"]
            told = await runs.cancel(store, waiting.run_id, by="ann", reason="enough", audit=log)
            assert (told.status, told.message) == ("cancelled", "cancelled by ann: enough")
            assert (await runs.cancel(store, waiting.run_id, by="ann")).status == "over"
        codes = [orjson.loads(line)["code"] for line in log.path.read_bytes().splitlines()]
        assert "APR004D" in codes
        after = await runs.show_run(store, waiting.run_id)
        assert (after.summary.status, after.requests) == (runs.RunStatus.CANCELLED, ())
        # Budgets are as they were: whoever cancels has no contract of the run.
        assert isinstance(before, dict)
        assert before["limits"] == after.ledger["limits"]
        assert before["used"] == after.ledger["used"]

        (request,) = waiting.requests
        late = await there.go_on(waiting, decisions=[word(request.request_id)])
        plain = await there.go_on(waiting)
        spoken = await there.go_on(waiting, message="and now?")

        assert "APPROVAL_CONFLICT" == code(late)
        assert isinstance(plain, Cancelled)
        assert isinstance(spoken, Cancelled)
        assert there.shelf.ran["t:gate"] == 0
        assert_one_result_per_call(plain.messages)

    asyncio.run(scenario())


def test_a_suspended_run_and_one_out_of_budget_are_cancelled(store: SharedRunStore) -> None:
    """Also where a resume would only be told again why the run stopped; a completed one is over."""

    async def scenario() -> None:
        there = stage(store)
        completed = await there.play(reply("done"))
        assert (await runs.cancel(store, completed.run_id, by="ann")).status == "over"

        for contract in (TaskContract(max_steps=0, max_turns=1), TaskContract(max_turns=1)):
            spent = Rehearsal(shelf=there.shelf, contract=contract, store=store)
            suspended = await spent.play(calls(("a", "t:echo", "{}")))
            assert isinstance(suspended, Suspended)
            assert (await runs.cancel(store, suspended.run_id, by="ann")).status == "cancelled"
            assert isinstance(await spent.go_on(suspended), Cancelled)

    asyncio.run(scenario())


def test_a_decision_that_a_drive_was_faster_than_is_told_what_stands() -> None:
    """The letter was left, and nobody will read it: whoever left it is told so."""

    class Overtaken(MemoryRunStore):
        async def post(self, run_id: str, key: str, body: bytes) -> bytes:
            await there.go_on(waiting, reply(), decisions=[denied])
            return await super().post(run_id, key, body)

    store = Overtaken(SEAL)
    there = stage(store)
    waiting = asyncio.run(there.play(BATCH))
    (request,) = waiting.requests
    denied = word(request.request_id, Verdict.DENY, "bob")

    told = asyncio.run(runs.decide(store, waiting.run_id, word(request.request_id)))

    assert (told.code, there.shelf.ran["t:gate"]) == (StopCode.APPROVAL_CONFLICT, 0)
    assert told.decision is not None
    assert told.decision.decided_by == "bob"


def test_a_run_that_is_sealed_and_of_no_form_is_damaged() -> None:
    """As one of another version would be: it is listed as such, and nothing is made of it."""
    store = MemoryRunStore(SEAL)
    waiting = asyncio.run(stage(store).play(BATCH))

    async def scenario() -> None:
        saved = await store.load(waiting.run_id)
        head: dict[str, Any] = dict(open_head(saved, SEAL))
        row = b'{"message":{"role":"nobody"}}'
        head["rows"], head["revision"] = head["rows"] + 1, saved.revision + 1
        head["rows_sha256"] = chain_rows(head["rows_sha256"], (row,))
        await store.commit(
            waiting.run_id, expected=saved.revision, head=seal_head(head, SEAL), rows=(row,)
        )
        with pytest.raises(StateRefused, match="cannot be read"):
            await runs.show_run(store, waiting.run_id)
        (listed,) = await runs.list_runs(store)
        assert listed.status is runs.RunStatus.DAMAGED

    asyncio.run(scenario())


def test_nothing_is_left_for_a_run_that_is_over(store: SharedRunStore) -> None:
    """A grant would wait for a drive that never comes."""

    async def scenario() -> None:
        over = await stage(store).play(reply("done"))
        with pytest.raises(ContractError, match="is over"):
            await runs.grant(store, over.run_id, "steps", 5, granted_by="ann", reason="more")
        assert (await runs.show_run(store, over.run_id)).grants == ()

    asyncio.run(scenario())


@pytest.mark.parametrize("first", ["t:echo", "t:gate"])
def test_a_driven_run_ends_after_its_step_in_hand(store: SharedRunStore, first: str) -> None:
    """The call that runs ends well and is kept; no further call and no further turn is begun."""

    async def scenario() -> None:
        told: list[runs.CancelReply] = []

        async def working(context: ExecutionContext) -> Json:
            told.append(await runs.cancel(store, context.run, by="ann"))
            return "worked"

        shelf = ToolShelf().add("t:echo", does=working).add("t:gate", does=working)
        there = Rehearsal(shelf=shelf, store=store)
        there.prepare([calls(("a", first, "{}")), calls(("b", "t:echo", "{}")), reply("no")])
        result = await there.start()

        assert isinstance(result, Cancelled)
        assert ["requested"] == [reply.status for reply in told]
        assert 1 == len(there.model.requests)
        assert "worked" in result.messages[-1].text
        assert result.stop is not None
        assert "cancelled by ann" == result.stop.message
        assert_one_result_per_call(result.messages)

    asyncio.run(scenario())


def test_a_cancelled_run_asks_no_model_again(store: SharedRunStore) -> None:
    """A wish that was left while nobody drove the run is heeded by the next resume."""

    async def scenario() -> None:
        there = stage(store)
        waiting = await there.play(BATCH)
        (request,) = waiting.requests
        wish = seal_letter(waiting.run_id, CANCEL_KEY, {"words": "enough"}, SEAL)
        await store.post(waiting.run_id, CANCEL_KEY, wish)
        result = await there.go_on(waiting, decisions=[word(request.request_id)])

        assert isinstance(result, Cancelled)
        assert there.shelf.ran["t:gate"] == 0
        assert_one_result_per_call(result.messages)

    asyncio.run(scenario())


def test_all_runs_are_cancelled_whatever_is_wrong_with_one(store: SharedRunStore) -> None:
    """The kill switch: waiting, suspended, damaged and completed ones, each with its own answer."""

    async def scenario() -> None:
        there = stage(store)
        waiting = [await there.play(BATCH) for _ in range(3)]
        done = await there.play(reply("done"))
        damaged = await there.play(BATCH)
        await store.post(damaged.run_id, "x", b"{}")
        told = await runs.cancel_all(store, by="ann")
        found = {reply.run_id: str(reply.status) for reply in told}

        expected = {result.run_id: "cancelled" for result in waiting}
        assert {**expected, done.run_id: "over", damaged.run_id: "failed"} == found

    asyncio.run(scenario())


# ── who drives ──────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_is_driven_is_not_taken_up(store: SharedRunStore) -> None:
    """STATE_CONFLICT at once and without any effect, also in the middle of a call."""

    async def scenario() -> None:
        others: list[LoopResult] = []
        shown: list[runs.RunStatus] = []

        async def working(context: ExecutionContext) -> Json:
            before = await store.load(context.run)
            second = stage(store, shelf=shelf)
            second.prepare([])
            others.append(await second.resume(context.run))
            assert before == await store.load(context.run)
            shown.append((await runs.show_run(store, context.run)).summary.status)
            return "worked"

        shelf = ToolShelf().add("t:echo", does=working)
        there = stage(store, shelf=shelf)
        result = await there.play(calls(("a", "t:echo", "{}")), reply("done"))

        assert isinstance(result, Completed)
        assert ["STATE_CONFLICT"] == [code(other) for other in others]
        assert [runs.RunStatus.RUNNING] == shown
        assert not await store.is_claimed(result.run_id)

    asyncio.run(scenario())


def test_of_resumes_in_threads_one_runs_the_call(store: SharedRunStore) -> None:
    """Each with an event loop of its own: the call runs once, the others have no effect."""
    waiting = asyncio.run(stage(store).play(BATCH))
    (request,) = waiting.requests
    ran: list[str] = []
    results: list[LoopResult] = []
    together = threading.Barrier(5)

    async def gated(context: ExecutionContext) -> Json:
        ran.append(context.step)
        await asyncio.sleep(0.01)
        return "ok"

    def taking_up() -> None:
        shelf = ToolShelf().add("t:echo").add("t:gate", does=gated)
        there = stage(store, shelf=shelf)
        there.prepare([reply("done")])
        together.wait()
        results.append(asyncio.run(there.resume(waiting.run_id, word(request.request_id))))

    threads = [threading.Thread(target=taking_up) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 1 == len(ran)
    assert 1 == sum(isinstance(result, Completed) for result in results)
    others = {code(result) for result in results if not isinstance(result, Completed)}
    assert others <= {"STATE_CONFLICT", "ALREADY_RESOLVED"}


def test_a_store_that_knows_no_claims_is_driven_as_before() -> None:
    """The two methods of `RunStore` are enough."""

    class Plain:
        def __init__(self) -> None:
            self._store = MemoryRunStore(SEAL)
            self.commit, self.load, self.seal = self._store.commit, self._store.load, SEAL

    async def scenario() -> None:
        there = Rehearsal(
            shelf=ToolShelf().add("t:gate"), contract=TaskContract(tool_policy=GATE), store=Plain()
        )
        waiting = await there.play(calls(("a", "t:gate", "{}")))
        (request,) = waiting.requests
        done = await there.go_on(waiting, reply("done"), decisions=[word(request.request_id)])

        assert isinstance(done, Completed)

    asyncio.run(scenario())


# ── listing and showing ─────────────────────────────────────────────────────────────────────────


def test_runs_are_listed_with_where_they_stand(store: SharedRunStore) -> None:
    """Newest first; what waits and what is decided is counted."""

    async def scenario() -> None:
        clock = MovableClock()
        there = stage(store, clock=clock)
        waiting = await there.play(BOTH)
        clock.move(1)
        done = await there.play(reply("done"))
        clock.move(1)
        spent = Rehearsal(contract=TaskContract(max_turns=0), store=store, clock=clock)
        suspended = await spent.play()
        first, _ = waiting.requests
        await runs.decide(store, waiting.run_id, word(first.request_id), clock=clock)
        listed = await runs.list_runs(store)

        assert [suspended.run_id, done.run_id, waiting.run_id] == [run.run_id for run in listed]
        assert ["suspended", "completed", "waiting"] == [str(run.status) for run in listed]
        assert [(0, 0), (0, 0), (1, 1)] == [(run.pending, run.decided) for run in listed]
        assert [0, 1, 1] == [run.turns for run in listed]
        assert listed[0].stop is not None
        orjson.dumps([run.to_json() for run in listed])

    asyncio.run(scenario())


def test_a_run_is_shown_with_the_whole_request(store: SharedRunStore) -> None:
    """Arguments, reasons, label, expiry, and what was decided since."""

    async def scenario() -> None:
        waiting = await stage(store).play(BATCH)
        (request,) = waiting.requests
        await runs.deny(store, waiting.run_id, request.request_id, decided_by="ann", reason="no")
        shown = await runs.show_run(store, waiting.run_id)

        (found,) = shown.requests
        assert request == found.request
        assert (found.expired, found.decision and found.decision.reason) == (False, "no")
        assert ["agent:execute-turn", "t:echo"] == [record.tool for record in shown.steps]
        orjson.dumps(shown.to_json())

    asyncio.run(scenario())


def test_a_run_is_found_by_the_beginning_of_its_id(store: SharedRunStore) -> None:
    """If it is the only one that begins so, or has exactly this id."""

    async def scenario() -> None:
        for run_id in ("run-a", "run-ab", "run-b"):
            await store.commit(run_id, expected=0, head=b"{}", rows=[])

        assert ("run-b", "run-a", "run-ab") == (
            await runs.find_run(store, "run-b"),
            await runs.find_run(store, "run-a"),
            await runs.find_run(store, "run-ab"),
        )
        with pytest.raises(RunAmbiguous, match="run-a, run-ab, run-b"):
            await runs.find_run(store, "run-")
        for unknown in ("", "x", "../run-a", "run-abc"):
            with pytest.raises(RunNotFound):
                await runs.find_run(store, unknown)

    asyncio.run(scenario())


def test_a_run_that_a_crash_left_is_told_from_one_that_is_driven(store: SharedRunStore) -> None:
    """Nobody has the claim, and it was saved in the middle."""

    async def scenario() -> None:
        begun = asyncio.Event()

        async def working(context: ExecutionContext) -> Json:
            begun.set()
            await asyncio.sleep(3600)
            return context.run

        there = stage(store, shelf=ToolShelf().add("t:echo", does=working))
        there.prepare([calls(("a", "t:echo", "{}"))])
        drive = asyncio.ensure_future(there.start())
        await begun.wait()
        (driven,) = await runs.list_runs(store)
        drive.cancel()
        await asyncio.wait([drive])
        (left,) = await runs.list_runs(store)

        assert driven.status is runs.RunStatus.RUNNING
        assert left.status is runs.RunStatus.INTERRUPTED

    asyncio.run(scenario())
