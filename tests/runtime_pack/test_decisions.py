"""Decisions on requests: sealed requests, edits, new reasons, races and crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import orjson
import pytest

from runtime_pack import (
    ApprovalRequest,
    ApprovalRequired,
    AuditLog,
    Completed,
    Decision,
    ExecutionContext,
    LoopError,
    LoopResult,
    MemoryRunStore,
    SavedRun,
    Seal,
    Suspended,
    TaskContract,
    ToolCall,
    ToolPolicy,
    ToolRule,
    create_agent_runtime,
    create_agent_task_run,
)
from runtime_pack.approvals import DecisionRefused, digest_arguments, parse_decision
from runtime_pack.errors import StateRefused
from runtime_pack.loop import resume_governed_agent_loop
from runtime_pack.machine import Refused, refusal
from runtime_pack.messages import AssistantMessage, Json, ToolMessage
from runtime_pack.seal import check_request
from runtime_pack.state import EMPTY_CHAIN, chain_rows, open_head, seal_head
from runtime_pack.testing import (
    Crash,
    CrashingRunStore,
    MovableClock,
    Rehearsal,
    ScriptedModel,
    ToolShelf,
    calls,
    reply,
)

KEY: Final = b"k" * 32
ASK: Final = ToolRule(tool="t:gate", approval_class="request_user", reason="it writes")
ONE: Final = calls(("a", "t:gate", '{"x":"1"}'))


def rehearsal(*rules: ToolRule, **options: Any) -> Rehearsal:
    options.setdefault("store", MemoryRunStore(Seal(KEY)))
    contract = TaskContract(tool_policy=ToolPolicy([ASK, *rules]))
    shelf = options.pop("shelf", None) or ToolShelf().add("t:gate").add("t:read")
    return Rehearsal(shelf=shelf, contract=contract, **options)


def said(request: ApprovalRequest, verdict: str = "approve", **more: Any) -> Decision:
    return Decision(request_id=request.request_id, verdict=verdict, decided_by="ann", **more)


def told(result: LoopResult) -> list[str | None]:
    return [
        None if message.ok else orjson.loads(message.text)["code"]
        for message in result.messages
        if isinstance(message, ToolMessage)
    ]


def shown(result: LoopResult) -> list[Mapping[str, Json] | str]:
    return [
        call.arguments
        for message in result.messages
        if isinstance(message, AssistantMessage)
        for call in message.calls
    ]


def code(result: LoopResult) -> str:
    assert result.stop is not None
    return str(result.stop.code)


# ── the request and its seal ──────────────────────────────────────────────────────────────────


def asked_of(stage: Rehearsal) -> ApprovalRequest:
    (request,) = asyncio.run(stage.play(ONE)).requests
    return request


def test_a_request_carries_what_it_holds_and_a_seal() -> None:
    """Whoever shows a request that was kept elsewhere can tell whether it is as it was made."""
    request = asked_of(rehearsal())

    assert request.reservation == {"steps": 1, "tool:t:gate": 1}
    check_request(Seal(KEY), request)
    check_request(
        Seal(KEY), ApprovalRequest.from_json(orjson.loads(orjson.dumps(request.to_json())))
    )
    with pytest.raises(StateRefused):
        check_request(Seal(b"o" * 32), request)


@pytest.mark.parametrize("field", [f.name for f in attrs.fields(ApprovalRequest)])
def test_a4_a_request_that_was_changed_outside_the_state_is_known(field: str) -> None:
    """Each field is under the seal, the seal's own text too."""
    request = asked_of(rehearsal())
    values: dict[str, Any] = {
        "label": attrs.evolve(request.label, integrity="external"),
        "arguments": {"x": "2"},
        "reasons": (*request.reasons, "and more"),
        "created_at": request.created_at.replace(year=2020),
        "expires_at": None,
        "destinations": {"to": "eve"},
        "rules": ("message",),
        "reservation": {},
    }
    changed = attrs.evolve(request, **{field: values.get(field, "sha256:0")})

    with pytest.raises(StateRefused):
        check_request(Seal(KEY), changed)


@pytest.mark.parametrize(
    ("key", "value"),
    [("tool", "t:other"), ("reasons", []), ("seal", ""), ("seal", "0" * 64), ("new", 1)],
)
def test_a4_a_state_with_a_request_of_another_hand_is_refused(key: str, value: Json) -> None:
    """Even where the head itself is sealed with the right key."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(ONE)
        assert first.state is not None
        head: dict[str, Any] = open_head(first.state, Seal(KEY))
        head["state"]["slots"][0]["request"][key] = value
        forged = MemoryRunStore(Seal(KEY))
        forged.put(attrs.evolve(first.state, head=seal_head(head, Seal(KEY))))
        stage.store = forged
        result = await stage.go_on(first, decisions=[said(first.requests[0])])

        assert code(result) == "STATE_INTEGRITY"
        assert stage.shelf.ran == {}

    asyncio.run(scenario())


@pytest.mark.parametrize("field", ["arguments", "tool_sha256", "reasons", "seal"])
def test_a4_the_guard_itself_refuses_a_request_of_another_hand(field: str) -> None:
    """A caller of the guard that brings a request with it is held to the seal as well."""

    async def scenario() -> None:
        stage = rehearsal()
        (request,) = (await stage.play(ONE)).requests
        changed: dict[str, Any] = {"arguments": {"x": "2"}, "reasons": ()}
        forged = attrs.evolve(request, **{field: changed.get(field, "sha256:0")})
        inner = create_agent_runtime(model=stage.model, tools=stage.shelf.tools)
        guarded = stage.run.guard_runtime(inner)
        call = ToolCall(id="a", name="t:gate", arguments={"x": "1"})
        offered = {spec.name: spec for spec in stage.shelf.specs}
        admission = await guarded.judge.rule(
            request.step, call, forged, said(request), offered, ExecutionContext()
        )

        assert isinstance(admission, Refused)
        assert admission.output.code == "POLICY_ERROR"
        assert stage.run.held == {}

    asyncio.run(scenario())


def test_an_approval_is_for_the_tool_as_it_was_defined() -> None:
    """Offered anew under its name, another definition does not run on the old approval."""

    async def scenario() -> None:
        stage = rehearsal()
        (request,) = (await stage.play(ONE)).requests
        other = ToolShelf().add("t:gate", timeout_seconds=1.0)
        inner = create_agent_runtime(model=stage.model, tools=other.tools)
        offered = {spec.name: spec for spec in other.specs}
        call = ToolCall(id="a", name="t:gate", arguments={"x": "1"})
        admission = await stage.run.guard_runtime(inner).judge.rule(
            request.step, call, request, said(request), offered, ExecutionContext()
        )

        assert isinstance(admission, Refused)
        assert admission.output.code == "UNKNOWN_TOOL"

    asyncio.run(scenario())


def test_a_run_saved_before_requests_were_sealed_is_taken_up() -> None:
    """Schema 1: its requests get their seal now, its words on earlier requests hold."""

    async def scenario() -> None:
        stage = rehearsal()
        two = calls(("a", "t:gate", '{"x":"1"}'), ("b", "t:gate", '{"x":"2"}'))
        first = await stage.play(two)
        assert first.state is not None
        head: dict[str, Any] = open_head(first.state, Seal(KEY))
        for slot in head["state"]["slots"]:
            del slot["request"]["seal"], slot["request"]["reservation"]
        head["schema"] = 1
        old = MemoryRunStore(Seal(KEY))
        old.put(attrs.evolve(first.state, head=seal_head(head, Seal(KEY))))
        stage.store = old
        second = await stage.go_on(first, decisions=[said(first.requests[0])])
        result = await stage.go_on(second, reply(), decisions=[said(second.requests[0])])

        assert isinstance(result, Completed)
        assert stage.shelf.ran == {"t:gate": 2}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("word", "verdict", "answer"),
    [
        ("approve", "approve", "ALREADY_RESOLVED"),
        ("deny", "deny", "ALREADY_RESOLVED"),
        ("deny", "approve", "APPROVAL_CONFLICT"),
        ("expired", "approve", "APPROVAL_EXPIRED"),
        ("withdrawn", "deny", "APPROVAL_CONFLICT"),
    ],
)
def test_the_bare_words_of_an_earlier_version_still_answer(
    word: str, verdict: str, answer: str
) -> None:
    """A decision about what was resolved before has no effect."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(ONE)
        assert first.state is not None
        head: dict[str, Any] = open_head(first.state, Seal(KEY))
        row = orjson.dumps({"resolved": {"apr-old": word}})
        rows = (*first.state.rows, row)
        head |= {"rows": len(rows), "rows_sha256": chain_rows(EMPTY_CHAIN, rows)}
        old = MemoryRunStore(Seal(KEY))
        old.put(attrs.evolve(first.state, rows=rows, head=seal_head(head, Seal(KEY))))
        stage.store = old
        decision = Decision(request_id="apr-old", verdict=verdict, decided_by="ann")

        assert code(await stage.go_on(first, decisions=[decision])) == answer

    asyncio.run(scenario())


# ── edits ─────────────────────────────────────────────────────────────────────────────────────


def test_edited_arguments_run_and_are_shown_as_they_ran(tmp_path: Path) -> None:
    """The model reads what ran; log and record hold the digest of both."""

    async def scenario() -> None:
        with AuditLog(tmp_path / "log.jsonl") as audit:
            stage = rehearsal(audit=audit)
            first = await stage.play(ONE)
            edit = said(first.requests[0], edited_args={"x": "edited"})
            result = await stage.go_on(first, reply(), decisions=[edit])

        assert isinstance(result, Completed)
        assert stage.shelf.calls == [("t:gate", {"x": "edited"})]
        assert shown(result) == [{"x": "edited"}]
        (messages, _) = stage.model.requests[0]
        assert '"1"' not in str(messages)
        record = next(step for step in result.steps if step.call_id)
        assert record.args_sha256 == digest_arguments({"x": "edited"})
        lines = [orjson.loads(line) for line in (tmp_path / "log.jsonl").read_bytes().splitlines()]
        (decided,) = [line for line in lines if line["type"] == "approval:decided"]
        assert decided["object"]["args_sha256"] == digest_arguments({"x": "1"})
        assert decided["object"]["edited_sha256"] == digest_arguments({"x": "edited"})

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("edited", "rules", "refused"),
    [
        ({"x": 1}, (), "INVALID_ARGUMENTS"),
        (
            {"x": "no"},
            (ToolRule(tool="t:*", approval_class="deny", when=lambda a: a["x"] == "no"),),
            "POLICY_DENIED",
        ),
        (
            {"x": "no"},
            (
                ToolRule(
                    tool="t:*",
                    approval_class="deny",
                    when=lambda a: a["x"] == "no" and bool(a["y"]),
                ),
            ),
            "POLICY_ERROR",
        ),
    ],
)
def test_edited_arguments_are_judged_again(
    edited: dict[str, Json], rules: Sequence[ToolRule], refused: str
) -> None:
    """Schema and policy refuse what a person made of a call, and the model learns whose it was."""

    async def scenario() -> None:
        stage = rehearsal(*rules)
        first = await stage.play(ONE)
        edit = said(first.requests[0], edited_args=edited)
        result = await stage.go_on(first, reply(), decisions=[edit])

        assert told(result) == [refused]
        assert stage.shelf.ran == {}
        assert result.ledger.reserved == {}
        (message,) = [m for m in result.messages if isinstance(m, ToolMessage)]
        assert orjson.loads(message.text)["edited"] is True
        again = await stage.go_on(result, decisions=[edit])
        assert code(again) == "ALREADY_RESOLVED"
        assert again.stop is not None
        assert again.stop.details["settled"] == "refused"
        assert again.stop.details["detail"] == refused

    asyncio.run(scenario())


class Listed:
    """A runtime that refuses `x: bad` before it costs anything, as a list of addresses does."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.tool_spec = inner.tool_spec
        self.execute_tool = inner.execute_tool

    async def preflight(
        self, name: str, arguments: Mapping[str, Json], context: ExecutionContext
    ) -> Any:
        return refusal("NOT_LISTED", "no") if arguments.get("x") == "bad" else None


def test_edited_arguments_are_held_to_the_list() -> None:
    """A person cannot send a read where the list does not allow it."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(ONE)
        stage.prepare([reply()])
        inner = create_agent_runtime(model=stage.model, tools=stage.shelf.tools)
        store = stage.store
        assert store is not None
        result = await resume_governed_agent_loop(
            runtime=stage.run.guard_runtime(Listed(inner)),
            store=store,
            run_id=first.run_id,
            decisions=[said(first.requests[0], edited_args={"x": "bad"})],
        )

        assert told(result) == ["NOT_LISTED"]
        assert stage.shelf.ran == {}

    asyncio.run(scenario())


def test_an_edit_that_gives_a_new_reason_is_asked_about_again() -> None:
    """The new request shows the edited arguments and all reasons; approved, they run."""
    finance = ToolRule(
        tool="t:gate",
        approval_class="request_user",
        when=lambda a: a["x"] == "5000",
        reason="it is much money",
    )

    async def scenario() -> None:
        stage = rehearsal(finance)
        first = await stage.play(ONE)
        edit = said(first.requests[0], edited_args={"x": "5000"})
        second = await stage.go_on(first, decisions=[edit])

        assert isinstance(second, ApprovalRequired)
        (request,) = second.requests
        assert request.arguments == {"x": "5000"}
        assert request.reasons == (
            "task rule t:gate: it writes",
            "task rule t:gate: it is much money",
        )
        assert stage.shelf.ran == {}
        again = await stage.go_on(second, decisions=[edit])
        assert again.stop is not None
        assert again.stop.details["settled"] == "asked_again"
        assert again.stop.details["detail"] == request.request_id

        result = await stage.go_on(second, reply(), decisions=[said(request)])

        assert stage.shelf.calls == [("t:gate", {"x": "5000"})]
        assert shown(result) == [{"x": "5000"}]

    asyncio.run(scenario())


def test_an_edit_outlives_a_pause_between_approval_and_start() -> None:
    """What is taken up is what the person made of it."""

    async def scenario() -> None:
        stage = rehearsal()

        class Editing:
            async def decide(self, request: ApprovalRequest) -> Decision | None:
                stage.run.pause("hold on")
                return said(request, edited_args={"x": "edited"})

        stage.approver = Editing()
        first = await stage.play(ONE)
        assert isinstance(first, Suspended)
        stage.approver = None
        result = await stage.go_on(first, reply())

        assert isinstance(result, Completed)
        assert stage.shelf.calls == [("t:gate", {"x": "edited"})]
        assert shown(result) == [{"x": "edited"}]

    asyncio.run(scenario())


def test_an_approver_may_edit_a_direct_call() -> None:
    """The rules are the guard's: what runs is what the person wrote."""

    class Editing:
        async def decide(self, request: ApprovalRequest) -> Decision | None:
            return said(request, edited_args={"x": "edited"})

    async def scenario() -> None:
        shelf = ToolShelf().add("t:gate")
        run = create_agent_task_run(TaskContract(tool_policy=ToolPolicy([ASK])), approver=Editing())
        inner = create_agent_runtime(model=ScriptedModel(()), tools=shelf.tools)
        output = await run.guard_runtime(inner).execute_tool(
            "t:gate", {"x": "1"}, ExecutionContext()
        )

        assert output.ok
        assert shelf.calls == [("t:gate", {"x": "edited"})]

    asyncio.run(scenario())


DECISION: Final[dict[str, Any]] = {
    "request_id": "apr-1",
    "verdict": "approve",
    "decided_by": "ann",
}


@pytest.mark.parametrize(
    "more",
    [
        {"verdict": "deny", "edited_args": {}},
        {"verdict": "deny", "remember": {}},
        {"edited_args": []},
        {"edited_args": "{}"},
        {"edited_args": {"x": {1, 2}}},
        {"edited_args": {"x": 2**70}},
        {"remember": True},
        {"remember": {"forever": True}},
        {"remember": {"scope": "world"}},
        {"remember": {"fields": []}},
        {"remember": {"fields": "x"}},
        {"remember": {"fields": [1]}},
        {"remember": {"max_uses": 0}},
        {"remember": {"max_uses": True}},
        {"remember": {"max_uses": None}},
        {"remember": {"lasts_seconds": 0}},
        {"remember": {"lasts_seconds": float("nan")}},
        {"remember": {"lasts_seconds": 1e300}},
        {"remember": {"max_label": "external"}},
        {"decided_by": ""},
        {"decided_by": "  "},
    ],
    ids=str,
)
def test_a5_a_decision_that_says_too_much_or_nothing_is_refused(more: dict[str, Any]) -> None:
    """It is refused when it is read, and no part of it is used."""
    with pytest.raises(DecisionRefused):
        parse_decision(DECISION | more)


def test_a_decision_survives_json() -> None:
    """With everything that it may hold."""
    decision = parse_decision(
        DECISION
        | {
            "reason": "r",
            "edited_args": {"x": [1, {"y": None}]},
            "remember": {
                "scope": "task",
                "fields": ["y", "x", "x"],
                "max_label": {"integrity": "external", "confidentiality": "public"},
                "lasts_seconds": 5,
                "max_uses": "unlimited",
            },
        }
    )

    assert parse_decision(orjson.loads(orjson.dumps(decision.to_json()))) == decision
    assert decision.remember is not None
    assert decision.remember.fields == ("x", "y")


# ── reasons that came later ───────────────────────────────────────────────────────────────────

BOTH: Final = calls(("a", "t:gate", '{"x":"1"}'), ("r", "t:read", "{}"))


def test_a_label_that_rose_meanwhile_makes_a_new_request() -> None:
    """A sibling read a page, and a rule came later: there is a reason that the person was not shown."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(BOTH)
        rule = ToolRule(tool="t:gate", approval_class="request_user", when_label="external")
        stage.contract = rehearsal(rule).contract
        assert [str(request.label.integrity) for request in first.requests] == ["user"]
        second = await stage.go_on(first, decisions=[said(first.requests[0])])

        assert isinstance(second, ApprovalRequired)
        assert stage.shelf.ran == {"t:read": 1}
        (request,) = second.requests
        assert request.request_id != first.requests[0].request_id
        assert str(request.label.integrity) == "external"
        assert len(request.reasons) == 2
        assert second.ledger.reserved == {"steps": 1, "tool:t:gate": 1}

        result = await stage.go_on(second, reply(), decisions=[said(request)])

        assert isinstance(result, Completed)
        assert stage.shelf.ran["t:gate"] == 1

    asyncio.run(scenario())


def test_a_label_that_rose_meanwhile_may_deny() -> None:
    """The stricter rule beats the approval."""

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(BOTH)
        rule = ToolRule(tool="t:gate", approval_class="deny", when_label="external")
        stage.contract = rehearsal(rule).contract
        result = await stage.go_on(first, reply(), decisions=[said(first.requests[0])])

        assert told(result) == ["POLICY_DENIED", None]
        assert stage.shelf.ran == {"t:read": 1}

    asyncio.run(scenario())


def test_asking_again_comes_to_an_end() -> None:
    """Rules that take turns are all on the request after as many questions as there are rules."""
    turn = [0]

    def even(arguments: Mapping[str, Json]) -> bool:
        turn[0] += 1
        return turn[0] % 2 == 0

    def odd(arguments: Mapping[str, Json]) -> bool:
        return turn[0] % 2 == 1

    class Yes:
        asked = 0

        async def decide(self, request: ApprovalRequest) -> Decision | None:
            self.asked += 1
            return said(request)

    async def scenario() -> None:
        approver = Yes()
        stage = Rehearsal(
            shelf=ToolShelf().add("t:gate"),
            contract=TaskContract(
                tool_policy=ToolPolicy(
                    [
                        ToolRule(tool="*", approval_class="request_user", when=even, reason="even"),
                        ToolRule(tool="*", approval_class="request_user", when=odd, reason="odd"),
                    ]
                )
            ),
            approver=approver,
        )
        result = await stage.play(ONE, reply())

        assert isinstance(result, Completed)
        assert approver.asked == 2
        assert stage.shelf.ran == {"t:gate": 1}

    asyncio.run(scenario())


def test_an_approved_call_that_was_not_started_is_held_to_reasons_that_came_later() -> None:
    """A new rule on resume asks again, even where the old request was approved."""

    async def scenario() -> None:
        stage = rehearsal()

        class Pausing:
            async def decide(self, request: ApprovalRequest) -> Decision | None:
                stage.run.pause("hold on")
                return said(request)

        stage.approver = Pausing()
        first = await stage.play(ONE)
        stage.approver = None
        more = ToolRule(tool="t:*", approval_class="request_user", reason="since today")
        stage.contract = TaskContract(tool_policy=ToolPolicy([ASK, more]))
        second = await stage.go_on(first)

        assert isinstance(second, ApprovalRequired)
        assert stage.shelf.ran == {}

    asyncio.run(scenario())


# ── races and crashes ─────────────────────────────────────────────────────────────────────────


class SlowStore(MemoryRunStore):
    """A store at which two processes meet: loading takes its time."""

    async def load(self, run_id: str) -> Any:
        saved = await super().load(run_id)
        await asyncio.sleep(0.01)
        return saved


@pytest.mark.parametrize(
    ("other", "answer"),
    [
        ({}, "ALREADY_RESOLVED"),
        ({"reason": "another word for the same"}, "ALREADY_RESOLVED"),
        ({"verdict": "deny"}, "APPROVAL_CONFLICT"),
        ({"edited_args": {"x": "2"}}, "APPROVAL_CONFLICT"),
        ({"remember": {"scope": "run"}}, "APPROVAL_CONFLICT"),
    ],
    ids=str,
)
def test_a19_the_loser_of_a_race_has_no_effect_and_learns_what_was_decided(
    other: dict[str, Any], answer: str
) -> None:
    """Two processes resume at once, with one decision or with two: one runs, the other is told."""

    async def scenario() -> None:
        stage = rehearsal(store=SlowStore(Seal(KEY)))
        first = await stage.play(ONE)
        store, request_id = stage.store, first.requests[0].request_id
        assert store is not None
        word = DECISION | {"request_id": request_id}
        models = [ScriptedModel([reply()]), ScriptedModel([reply()])]

        async def attempt(number: int, body: dict[str, Any]) -> LoopResult:
            inner = create_agent_runtime(model=models[number], tools=stage.shelf.tools)
            return await resume_governed_agent_loop(
                runtime=create_agent_task_run(stage.contract).guard_runtime(inner),
                store=store,
                run_id=first.run_id,
                decisions=[parse_decision(body)],
            )

        won, lost = await asyncio.gather(attempt(0, word), attempt(1, word | other))

        assert isinstance(won, Completed)
        assert isinstance(lost, LoopError)
        assert code(lost) == answer
        assert lost.stop is not None
        assert lost.stop.details["verdict"] == "approve"
        assert stage.shelf.calls == [("t:gate", {"x": "1"})]
        assert models[1].requests == []

    asyncio.run(scenario())


class PlainStore:
    """A store of a host that has the port's methods and no more: nobody claims a run in it."""

    def __init__(self) -> None:
        self.inner = MemoryRunStore(Seal(KEY))
        self.seal = self.inner.seal
        self.commit = self.inner.commit

    async def load(self, run_id: str) -> SavedRun:
        saved = await self.inner.load(run_id)
        await asyncio.sleep(0.01)
        return saved


@pytest.mark.parametrize(
    ("verdict", "answer"), [("approve", "ALREADY_RESOLVED"), ("deny", "APPROVAL_CONFLICT")]
)
def test_a19_holds_in_a_store_without_claims(verdict: str, answer: str) -> None:
    """The revision alone decides: of two first saves one is made, and the other is told."""

    async def scenario() -> None:
        store = PlainStore()
        stage = rehearsal(store=store)
        first = await stage.play(ONE)

        async def attempt(word: str) -> LoopResult:
            inner = create_agent_runtime(model=ScriptedModel([reply()]), tools=stage.shelf.tools)
            return await resume_governed_agent_loop(
                runtime=create_agent_task_run(stage.contract).guard_runtime(inner),
                store=store,
                run_id=first.run_id,
                decisions=[said(first.requests[0], word)],
            )

        won, lost = await asyncio.gather(attempt("approve"), attempt(verdict))

        assert isinstance(won, Completed)
        assert code(lost) == answer
        assert stage.shelf.ran == {"t:gate": 1}

    asyncio.run(scenario())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("commit", range(1, 6))
def test_a_decision_outlives_a_crash(commit: int, after: bool) -> None:
    """Dead at any commit of a resume, a claimed decision is carried out by the next one.

    Brought again it has no effect, and the call runs at most once.
    """

    async def scenario() -> None:
        stage = rehearsal()
        first = await stage.play(ONE)
        assert first.state is not None
        crashing = CrashingRunStore(crash_at={commit}, after=after, seal=Seal(KEY))
        crashing.put(first.state)
        stage.store = crashing
        decision = said(first.requests[0])
        died = False
        try:
            await stage.go_on(first, reply(), decisions=[decision])
        except Crash:
            died = True
        assert died == (commit <= crashing.commits)
        claimed = commit > 1 or after
        again = await stage.go_on(first, *([] if claimed else [reply()]), decisions=[decision])
        if claimed:
            assert code(again) == "ALREADY_RESOLVED"
        stage.prepare([reply()])
        result = await stage.resume(first.run_id)

        assert isinstance(result, Completed)
        assert stage.shelf.ran["t:gate"] <= 1
        assert result.ledger.reserved == {}

    asyncio.run(scenario())


def test_a_claimed_decision_that_came_in_time_may_come_too_late_after_a_crash() -> None:
    """Expiry is checked when the call is about to run, as every other rule is."""

    async def scenario() -> None:
        clock = MovableClock()
        stage = rehearsal(clock=clock)
        first = await stage.play(ONE)
        assert first.state is not None
        crashing = CrashingRunStore(crash_at={1}, after=True, seal=Seal(KEY))
        crashing.put(first.state)
        stage.store = crashing
        with pytest.raises(Crash):
            await stage.go_on(first, decisions=[said(first.requests[0])])
        clock.move(73 * 3600)
        result = await stage.go_on(first, reply())

        assert told(result) == ["APPROVAL_EXPIRED"]
        assert stage.shelf.ran == {}

    asyncio.run(scenario())
