"""What a run has read and what it answers: kept texts, the output check, and saved runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from citations import (
    KnowledgeCitation,
    MemoryRevisionStore,
    QuoteReason,
    Verdict,
    document_id,
    revision_id,
    verify,
)
from runtime_pack import (
    AgentTaskRun,
    CatalogTool,
    Completed,
    ExecutionContext,
    LoopError,
    LoopResult,
    SearchHit,
    StopCode,
    SubAgent,
    Suspended,
    TaskContract,
    ToolOutput,
    ToolSpec,
    TurnInput,
    UserMessage,
    build_web_tool_catalog,
    create_agent_runtime,
    create_agent_task_run,
    create_fixture_web_search_provider,
    create_web_tool_runtime,
    run_governed_agent_loop,
    sub_agent_tool,
)
from runtime_pack.cited import CitationCheck, canonical_address, cite_saved_run, collect_evidence
from runtime_pack.cli.cite import command
from runtime_pack.errors import ContractError, StateRefused
from runtime_pack.messages import Json, Turn
from runtime_pack.revisions import DirectoryRevisionStore
from runtime_pack.state_folder import open_store
from runtime_pack.stores import RunStore
from runtime_pack.testing import ListEmitter, ScriptedModel, calls, reply
from web_tools.testing_site import LoopbackSite, SiteAnswer

TEXT = "Bears sleep in winter, and nobody has ever woken one with a spoon."
HITS = (
    SearchHit(title="Bears", url="https://bears.example/", snippet="They sleep for months on end."),
)
pytestmark = pytest.mark.loopback

Texts = MemoryRevisionStore | DirectoryRevisionStore


async def _run(
    texts: Texts,
    answers: tuple[str, ...],
    *,
    check: str = "none",
    store: RunStore | None = None,
    path: str = "/page",
    max_turns: int = 20,
) -> tuple[LoopResult, str]:
    """One run that searches, reads a page of a loopback site, and answers; and the page's address."""
    pages = {"/page": SiteAnswer.html(f"<p>{TEXT}</p>"), "/moved": SiteAnswer.redirect("/page")}
    async with LoopbackSite(pages) as site:
        url = site.url(path)
        wanted = tuple(answer.replace("PAGE", url) for answer in answers)
        model = ScriptedModel(
            [
                calls(
                    ("s", "web:search", json.dumps({"query": "bears"})),
                    ("r", "web:read", json.dumps({"url": url})),
                ),
                *map(reply, wanted),
            ]
        )
        run = create_agent_task_run(
            TaskContract(output_check=check, max_turns=max_turns),
            output_check=None if check == "none" else CitationCheck(texts),
            seal=None if store is None else store.seal,
        )
        runtime = create_web_tool_runtime(
            run.guard_runtime(create_agent_runtime(model=model)),
            provider=create_fixture_web_search_provider(HITS),
            allowlist=[site.entry],
            emitter=ListEmitter(),
            revisions=texts,
        )
        start = TurnInput(
            messages=[UserMessage(text="bears?")], tool_catalog=build_web_tool_catalog()
        )
        result = await run_governed_agent_loop(
            runtime=runtime, execute_turn_input=start, store=store
        )
        return result, site.url("/page")


TRUE = f"They say “{TEXT[:-1]}” (PAGE)."
FALSE = f"They say “{TEXT[:-1].replace('nobody', 'somebody')}” (PAGE)."


def test_every_text_that_is_cited_is_kept_whole() -> None:
    """Pages and search results, under the digest in their citation."""
    texts = MemoryRevisionStore()

    result, url = asyncio.run(_run(texts, (TRUE,)))

    evidence = collect_evidence(result.steps, result.messages, texts)
    page, snippet = sorted(evidence.seen, key=lambda seen: seen.kind)
    assert evidence.text_of(page) == TEXT
    assert evidence.text_of(snippet) == "Bears\nThey sleep for months on end."
    assert page.citation.path == url
    assert page.citation.revision_id == revision_id(TEXT)


def test_an_address_that_was_asked_for_names_what_it_led_to() -> None:
    """The run asked for one address and read another one."""
    texts = MemoryRevisionStore()

    result, _ = asyncio.run(_run(texts, (TRUE,), path="/moved"))

    evidence = collect_evidence(result.steps, result.messages, texts)
    checked = verify(result.text, evidence, canonical=canonical_address)
    assert [quote.verdict for quote in checked.quotes] == [Verdict.VERIFIED]


def test_what_only_a_search_said_is_told_apart() -> None:
    """It was found, and not read."""
    texts = MemoryRevisionStore()
    answer = "“They sleep for months on end” (https://bears.example/)"

    result, _ = asyncio.run(_run(texts, (answer,)))

    evidence = collect_evidence(result.steps, result.messages, texts)
    (quote,) = verify(result.text, evidence, canonical=canonical_address).quotes
    assert quote.verdict is Verdict.SNIPPET_ONLY


def test_a_store_that_fails_leaves_the_read_as_it_is() -> None:
    """The page was read; its quotations cannot be verified later."""

    class _Full(MemoryRevisionStore):
        def put(self, text: str, /) -> str | None:
            raise OSError(28, f"no space for {text[:0]}")

    texts = _Full()
    result, _ = asyncio.run(_run(texts, (TRUE,)))

    assert isinstance(result, Completed)
    evidence = collect_evidence(result.steps, result.messages, texts)
    (quote,) = verify(result.text, evidence, canonical=canonical_address).quotes
    assert (quote.verdict, quote.reason) == (Verdict.UNREAD_SOURCE, QuoteReason.TEXT_NOT_KEPT)


# ── the check before a run counts as completed ────────────────────────────────────────────────


def test_a_verified_answer_completes_the_run() -> None:
    """Nobody is asked again."""
    result, _ = asyncio.run(_run(MemoryRevisionStore(), (TRUE,), check="end"))

    assert isinstance(result, Completed)
    assert result.stop is None


def test_an_answer_that_is_not_verified_is_asked_for_again() -> None:
    """The model is told which quotation failed, and nothing of what it says."""
    result, url = asyncio.run(
        _run(MemoryRevisionStore(), (FALSE, "No quotes.", TRUE), check="again")
    )

    assert isinstance(result, Completed)
    assert result.text == TRUE.replace("PAGE", url)
    told = [m.text for m in result.messages[1:] if isinstance(m, UserMessage)]
    assert "quotation 1: not-found" in told[0]
    assert "somebody" not in told[0]
    assert "0 verified quotations of 1" in told[1]


@pytest.mark.parametrize(("check", "answers"), [("end", (FALSE,)), ("again", (FALSE,) * 3)])
def test_an_answer_that_stays_unverified_is_none(check: str, answers: tuple[str, ...]) -> None:
    """At once, or as often in a row as responses may be barren."""
    result, _ = asyncio.run(_run(MemoryRevisionStore(), answers, check=check))

    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert (result.stop.code, result.stop.stage) == (StopCode.OUTPUT_UNVERIFIED, "output")
    assert result.text == ""


def test_a_wrap_up_that_is_not_verified_is_no_answer() -> None:
    """The budget stays the reason, and the fault is reported with it."""
    result, _ = asyncio.run(_run(MemoryRevisionStore(), (FALSE, FALSE), check="again", max_turns=2))

    assert isinstance(result, Suspended)
    assert result.text == ""
    assert result.stop is not None
    assert "quotation 1: not-found" in str(result.stop.output_fault)


def test_the_contract_and_the_check_need_each_other() -> None:
    """A check that nothing follows from, and a demand that nothing checks, are refused."""
    check = CitationCheck(MemoryRevisionStore())

    with pytest.raises(ContractError, match="output_check"):
        create_agent_task_run(TaskContract(output_check="end"))
    with pytest.raises(ContractError, match="output_check"):
        create_agent_task_run(TaskContract(), output_check=check)
    with pytest.raises(ContractError, match="output_check"):
        TaskContract(output_check="maybe")
    with pytest.raises(ContractError, match="at_least"):
        CitationCheck(MemoryRevisionStore(), at_least=-1)


@pytest.mark.parametrize("said", [ValueError("x"), 7, "is bad \ud800"])
def test_a_check_that_fails_has_passed_nothing(said: object) -> None:
    """Raising, and an answer that is no reason, refuse as well."""

    async def check(_answer: object) -> str | None:
        if isinstance(said, Exception):
            raise said
        # A host's check that does not keep to its type.
        return said  # type: ignore[return-value]

    async def main() -> LoopResult:
        run = create_agent_task_run(TaskContract(output_check="end"), output_check=check)
        model = ScriptedModel([Turn(status=reply("x").status, text="x")])
        return await run_governed_agent_loop(
            runtime=run.guard_runtime(create_agent_runtime(model=model)),
            execute_turn_input=TurnInput(messages=[UserMessage(text="go")]),
        )

    result = asyncio.run(main())
    assert isinstance(result, LoopError)
    assert result.stop is not None
    assert result.stop.code == StopCode.OUTPUT_UNVERIFIED


# ── saved runs, and the command ───────────────────────────────────────────────────────────────


def _saved(folder: Path, *answers: str) -> str:
    texts = DirectoryRevisionStore(folder / "revisions")
    result, _ = asyncio.run(_run(texts, answers, store=open_store(folder)))
    return result.run_id


def _cite(folder: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(
        command, [*arguments, "--state-dir", str(folder)], standalone_mode=False
    )
    return int(done.return_value if done.exception is None else 2), done.output


def test_cite_prints_the_answer_with_checked_references(tmp_path: Path) -> None:
    """In four forms; exit code 0 says that all is verified."""
    run = _saved(tmp_path, TRUE)

    code, text = _cite(tmp_path, run)
    assert code == 0
    assert "1 of 1 quotations verified" in text
    assert "#:~:text=Bears%20sleep" in text
    code, markdown = _cite(tmp_path, run, "--format", "markdown")
    assert (code, "1. [" in markdown) == (0, True)
    code, body = _cite(tmp_path, run[:8], "--format", "json")
    assert (code, json.loads(body)["ok"]) == (0, True)
    code, body = _cite(tmp_path, run, "--format", "csl-json")
    assert (code, json.loads(body)[0]["type"]) == (0, "webpage")


def test_cite_says_what_is_not_verified(tmp_path: Path) -> None:
    """With exit code 1; and 2 where there is no such run."""
    run = _saved(tmp_path, FALSE + " \x1b[31m\u202e")

    code, text = _cite(tmp_path, run)

    assert code == 1
    assert "[NOT FOUND]" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert _cite(tmp_path, "no-such-run")[0] == 2
    assert _cite(tmp_path, run, "--format", "xml")[0] == 2


def test_a_run_whose_texts_are_gone_verifies_nothing(tmp_path: Path) -> None:
    """The store is bounded: what it dropped cannot be checked any more."""
    run = _saved(tmp_path, TRUE)
    for path in (tmp_path / "revisions").iterdir():
        path.unlink()

    code, text = _cite(tmp_path, run)

    assert code == 1
    assert "[SOURCE NOT READ]" in text


def test_a_run_without_an_answer_has_nothing_to_cite(tmp_path: Path) -> None:
    """It is said, and no empty answer passes for a verified one."""
    run = _saved(tmp_path, "")
    texts = DirectoryRevisionStore(tmp_path / "revisions")

    with pytest.raises(StateRefused, match="no answer"):
        asyncio.run(cite_saved_run(open_store(tmp_path), run, texts))


# ── sub-agents ────────────────────────────────────────────────────────────────────────────────


def _citing(name: str, url: str) -> CatalogTool:
    citation = KnowledgeCitation(
        source_id="docs.example",
        document_id=document_id(url),
        path=url,
        revision_id=revision_id(TEXT),
        retrieved_at=datetime(2026, 1, 1, tzinfo=UTC),
    )

    async def handler(given: Mapping[str, Json], context: ExecutionContext) -> ToolOutput:
        return ToolOutput(ok=True, text=TEXT, citations=(citation,))

    spec = ToolSpec(name=name, description=name, parameters={"type": "object"})
    return CatalogTool(spec=spec, handler=handler)


def test_what_a_sub_agent_read_is_evidence_of_its_parent() -> None:
    """What it only found is not: its parent would take it for a page."""

    async def main() -> LoopResult:
        run = create_agent_task_run(TaskContract())
        tools = [
            _citing("docs:read", "https://docs.example/read"),
            _citing("search", "https://docs.example/found"),
        ]

        def make(child: AgentTaskRun) -> SubAgent:
            model = ScriptedModel(
                [calls(("a", "docs:read", "{}"), ("b", "search", "{}")), reply("read")]
            )
            runtime = child.guard_runtime(create_agent_runtime(model=model, tools=tools))
            return SubAgent(runtime=runtime, tool_catalog=[tool.spec for tool in tools])

        contract = TaskContract(max_steps=5, max_turns=5, max_duration_seconds=60)
        helper = sub_agent_tool(
            run, name="agent:help", description="Helps.", make=make, contract=contract, allowlist=[]
        )
        model = ScriptedModel([calls(("h", "agent:help", '{"task": "x"}')), reply("done")])
        return await run_governed_agent_loop(
            runtime=run.guard_runtime(create_agent_runtime(model=model, tools=[helper])),
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go")], tool_catalog=[helper.spec]
            ),
        )

    result = asyncio.run(main())

    (record,) = [step for step in result.steps if step.tool == "agent:help"]
    assert [wire["path"] for wire in record.citations] == ["https://docs.example/read"]
    failed = attrs.evolve(record, ok=False)
    assert collect_evidence([failed], result.messages, {}).seen == ()
    evidence = collect_evidence(result.steps, result.messages, {})
    assert [seen.kind for seen in evidence.seen] == ["page"]
