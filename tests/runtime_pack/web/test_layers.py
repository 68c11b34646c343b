"""Lists in layers, caps of a run and report-only, as a governed run sees them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from egress import AllowlistError, RunLimits, RunUsage
from egress.testing import RecordingFetch, ScriptedAnswer
from runtime_pack import (
    AgentTaskRun,
    AuditLog,
    ContractError,
    Event,
    EventType,
    ExecutionContext,
    LoopResult,
    SearchHit,
    TaskContract,
    ToolMessage,
    ToolRuntime,
    Turn,
    TurnInput,
    UserMessage,
    build_web_tool_catalog,
    create_agent_runtime,
    create_agent_task_run,
    create_fixture_web_search_provider,
    create_web_tool_runtime,
    run_governed_agent_loop,
    web_usage,
)
from runtime_pack.testing import ListEmitter, ScriptedModel, calls, reply

ORDERS = ("guard inside", "guard outside")
PAGE = ScriptedAnswer(
    headers=(("content-type", "text/plain"),), chunks=(b"Bears sleep in winter.",)
)


@attrs.define(kw_only=True)
class Bench:
    """A run over a scripted way out: nothing is looked up and nothing is connected."""

    allow: Sequence[str] = ()
    contract: TaskContract = attrs.field(factory=TaskContract)
    order: str = ORDERS[0]
    answers: Sequence[ScriptedAnswer] = ()
    options: dict[str, Any] = attrs.field(factory=dict)
    audit: AuditLog | None = None
    emitter: ListEmitter = attrs.field(factory=ListEmitter)
    fetch: RecordingFetch = attrs.field(init=False)

    def web(self, base: ToolRuntime) -> ToolRuntime:
        self.fetch = RecordingFetch(self.answers)
        return create_web_tool_runtime(
            base,
            provider=create_fixture_web_search_provider([SearchHit(title="t", url="https://a.test/", snippet="")]),
            allowlist=self.allow,
            emitter=self.emitter,
            fetch=self.fetch,
            **self.options,
        )  # fmt: skip

    def runtime(self, script: Sequence[Turn] = ()) -> ToolRuntime:
        base = create_agent_runtime(model=ScriptedModel(script))
        run = self.task_run()
        if self.order == "guard inside":
            return self.web(run.guard_runtime(base))
        return run.guard_runtime(self.web(base))

    def task_run(self) -> AgentTaskRun:
        return create_agent_task_run(self.contract, audit=self.audit)

    def read(self, *urls: str) -> LoopResult:
        wanted = [(f"c{n}", "web:read", {"url": url}) for n, url in enumerate(urls, start=1)]
        turns = [*(calls(each) for each in wanted), reply()]
        return asyncio.run(
            run_governed_agent_loop(
                runtime=self.runtime(turns),
                execute_turn_input=TurnInput(
                    messages=[UserMessage(text="task")], tool_catalog=build_web_tool_catalog()
                ),
            )
        )

    @property
    def violations(self) -> list[Event]:
        return [e for e in self.emitter.events if e.type is EventType.SANDBOX_VIOLATION]


def codes(result: LoopResult) -> list[str | None]:
    """The codes of the reads, in order."""
    asked = [record for record in result.steps if record.tool != "agent:execute-turn"]
    return [record.code for record in sorted(asked, key=lambda record: record.step)]


# ── layers ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", ORDERS)
def test_a_read_needs_an_entry_in_every_list(order: str) -> None:
    """Workspace, task and run each have to say yes; the event names the lists that did not."""
    bench = Bench(
        order=order,
        allow=["a.test", "b.test", "c.test"],
        contract=TaskContract(
            workspace_allowlist=["*.test.example", "a.test", "b.test"], task_allowlist=("a.test",)
        ),
        answers=[PAGE],
    )

    result = bench.read("https://a.test/", "https://b.test/", "https://c.test/")

    assert [None, "WEB_EGRESS_DENIED", "WEB_EGRESS_DENIED"] == codes(result)
    assert ["a.test"] == [target.host for target in bench.fetch.requests]
    # Refused before a step is taken, as by the run's own list.
    assert 1 == result.ledger.used["steps"]
    assert [["task"], ["workspace", "task"]] == [
        event.object["layers"] for event in bench.violations
    ]
    assert ["b.test", "c.test"] == [event.object["nearest_entry"] for event in bench.violations]


@pytest.mark.parametrize("order", ORDERS)
def test_a_redirect_is_held_to_the_same_lists(order: str) -> None:
    """The layers hold at every hop, inside the client and not only before the step."""
    bench = Bench(
        order=order,
        allow=["a.test", "b.test"],
        contract=TaskContract(task_allowlist=["a.test"]),
        answers=[ScriptedAnswer.redirect("https://b.test/")],
    )

    result = bench.read("https://a.test/")

    assert ["WEB_EGRESS_DENIED"] == codes(result)
    assert [(1, ["task"])] == [(e.object["hop"], e.object["layers"]) for e in bench.violations]


@pytest.mark.parametrize("order", ORDERS)
def test_an_empty_list_of_the_contract_allows_nothing(order: str) -> None:
    """And None has no opinion."""
    closed = Bench(order=order, allow=["a.test"], contract=TaskContract(workspace_allowlist=[]))
    silent = Bench(order=order, allow=["a.test"], answers=[PAGE])

    assert ["WEB_EGRESS_DENIED"] == codes(closed.read("https://a.test/"))
    assert [None] == codes(silent.read("https://a.test/"))
    assert [["workspace"]] == [event.object["layers"] for event in closed.violations]


@pytest.mark.parametrize("order", ORDERS)
def test_a_bad_entry_of_the_contract_is_refused_before_the_run(order: str) -> None:
    """As one of the run's own list is; the error names whose list it is."""
    bench = Bench(order=order, contract=TaskContract(task_allowlist=["*.com"]))

    with pytest.raises(AllowlistError) as caught:
        bench.runtime()

    assert ("task", "*.com") == (caught.value.layer, caught.value.entry)


def test_a_bad_list_that_only_a_call_brings_denies_that_call() -> None:
    """Without a guard nothing can be refused beforehand; the call is, and nothing is fetched."""
    bench = Bench(allow=["a.test"])
    runtime = bench.web(create_agent_runtime(model=ScriptedModel([])))
    context = ExecutionContext(allowlists=(("task", ("*.com",)),))

    output = asyncio.run(runtime.execute_tool("web:read", {"url": "https://a.test/"}, context))

    assert (False, "WEB_FETCH_FAILED") == (output.ok, output.code)
    assert [] == bench.fetch.requests


def test_other_lists_never_meet_an_open_client() -> None:
    """A run that is taken up under narrower lists is held to those, at every hop."""
    away = ScriptedAnswer.redirect("https://b.test/")
    bench = Bench(allow=["a.test", "b.test"], answers=[away, PAGE, away])
    runtime = bench.web(create_agent_runtime(model=ScriptedModel([])))

    async def main() -> list[str | None]:
        told = []
        for lists in ((), (("task", ("a.test",)),)):
            context = ExecutionContext(run="r1", step="s1", allowlists=lists)
            output = await runtime.execute_tool("web:read", {"url": "https://a.test/"}, context)
            told.append(output.code)
        return told

    assert [None, "WEB_EGRESS_DENIED"] == asyncio.run(main())


@pytest.mark.parametrize("name", ["workspace_allowlist", "task_allowlist"])
@pytest.mark.parametrize("value", ["a.test", b"a.test", 5, [5], [None], True])
def test_a_list_of_the_contract_is_a_list_of_texts(name: str, value: Any) -> None:
    """One text is not a list of letters."""
    with pytest.raises(ContractError, match=name):
        TaskContract(**{name: value})


def test_the_model_is_not_told_of_layers() -> None:
    """Neither the names of the lists nor the entry to add reach the model."""
    bench = Bench(allow=["a.test"], contract=TaskContract(workspace_allowlist=["secret.test"]))

    result = bench.read("https://a.test/")

    (told,) = [message for message in result.messages if isinstance(message, ToolMessage)]
    for word in ("workspace", "secret", "entry", "a.test", "R4"):
        assert word not in told.text


# ── caps of a run ─────────────────────────────────────────────────────────────────────────────


def test_a_run_has_its_caps() -> None:
    """The read after the last one fails as such, is no denial, and asks for nothing."""
    bench = Bench(
        allow=["a.test"], answers=[PAGE], options={"run_limits": RunLimits(max_requests=1)}
    )

    result = bench.read("https://a.test/1", "https://a.test/2")

    assert [None, "WEB_FETCH_FAILED"] == codes(result)
    assert [] == bench.violations
    assert 1 == len(bench.fetch.requests)


def test_closing_the_connections_does_not_reset_the_caps() -> None:
    """A run that is suspended and taken up again goes on counting."""
    bench = Bench(
        allow=["a.test"], answers=[PAGE], options={"run_limits": RunLimits(max_requests=1)}
    )
    runtime = bench.web(create_agent_runtime(model=ScriptedModel([])))

    async def main() -> list[str | None]:
        told = []
        for _ in range(2):
            output = await runtime.execute_tool(
                "web:read", {"url": "https://a.test/"}, ExecutionContext(run="r1")
            )
            told.append(output.code)
            # A web runtime has it.
            await runtime.release()  # type: ignore[attr-defined]
        return told

    assert [None, "WEB_FETCH_FAILED"] == asyncio.run(main())


def test_a_new_runtime_goes_on_from_what_was_used() -> None:
    """What a suspended run has used is read from one runtime and given to the next."""
    limits = RunLimits(max_requests=2)

    async def read(bench: Bench) -> tuple[str | None, RunUsage]:
        runtime = bench.web(create_agent_runtime(model=ScriptedModel([])))
        context = ExecutionContext(run="r1")
        output = await runtime.execute_tool("web:read", {"url": "https://a.test/"}, context)
        # A web runtime has it.
        await runtime.release()  # type: ignore[attr-defined]
        return output.code, web_usage(runtime, "r1")

    used, told = RunUsage(), []
    for _ in range(3):
        options = {"run_limits": limits, "run_used": used}
        code, used = asyncio.run(read(Bench(allow=["a.test"], answers=[PAGE], options=options)))
        told.append(code)

    assert [None, None, "WEB_FETCH_FAILED"] == told
    assert (2, 2 * len(PAGE.chunks[0])) == (used.requests, used.raw_bytes)


def test_what_was_used_is_of_one_run_and_of_this_kind_of_runtime() -> None:
    """Another run under the same runtime begins at nothing; another runtime is refused."""
    base = create_agent_runtime(model=ScriptedModel([]))
    options = {"run_used": RunUsage(requests=3, raw_bytes=9)}
    runtime = Bench(allow=["a.test"], options=options).web(base)

    assert RunUsage(requests=3, raw_bytes=9) == web_usage(runtime, "r1")
    with pytest.raises(ContractError, match="create_web_tool_runtime"):
        web_usage(base, "r1")


# ── report-only ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", ORDERS)
def test_report_only_reads_and_tells(order: str, tmp_path: Path) -> None:
    """Each refusal has an event of its own code that says it was not enforced; the page is read."""
    path = tmp_path / "log.jsonl"
    with AuditLog(path) as audit:
        bench = Bench(
            order=order,
            audit=audit,
            contract=TaskContract(workspace_allowlist=["a.test"]),
            allow=["a.test"],
            answers=[ScriptedAnswer.redirect("https://c.test/"), PAGE],
            options={"unsafe_report_only": True},
        )
        result = bench.read("https://b.test/")

    assert [None] == codes(result)
    assert 2 == len(bench.violations) == result.ledger.violations
    assert {"EGR004O"} == {str(event.code) for event in bench.violations}
    assert ["b.test", "c.test"] == [event.object["nearest_entry"] for event in bench.violations]
    for event in bench.violations:
        assert event.decision is not None
        assert ("observe", False) == (event.decision["action"], event.decision["enforced"])
    assert 2 == len({event.key for event in bench.violations})
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert 2 == sum(line["code"] == "EGR004O" for line in lines)


def test_report_only_keeps_metadata_closed() -> None:
    """R9 is denied before a step is taken, with the ordinary code, and by its own rule."""
    bench = Bench(options={"unsafe_report_only": True})

    result = bench.read("http://169.254.169.254/latest/meta-data/")

    assert ["WEB_EGRESS_DENIED"] == codes(result)
    assert [("EGR002D", "R9", True)] == [
        (str(e.code), (e.decision or {})["rule"], (e.decision or {})["enforced"])
        for e in bench.violations
    ]
    assert [] == bench.fetch.requests


def test_report_only_reads_nothing_that_could_not_be_told() -> None:
    """An emitter that raises stops the run before the request."""
    bench = Bench(emitter=ListEmitter(fail_at=1), options={"unsafe_report_only": True})

    result = bench.read("https://b.test/")

    assert result.stop is not None
    assert "EMITTER_FAILED" == result.stop.code
    assert [] == bench.fetch.requests
