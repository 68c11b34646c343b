"""Policy files: strict, all faults at once, and in force where they say so."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_pack import (
    AuditLog,
    ContractError,
    CredentialSource,
    LoopResult,
    MemoryRunStore,
    PolicyFile,
    PolicyFileRefused,
    TaskContract,
    TurnInput,
    UserMessage,
    create_agent_runtime,
    create_agent_task_run,
    parse_policy,
    read_policy,
    run_governed_agent_loop,
)
from runtime_pack.cli import _group
from runtime_pack.errors import CallCode
from runtime_pack.framing import FenceMode
from runtime_pack.patterns import PatternRefused, safe_pattern
from runtime_pack.policy import classify_call
from runtime_pack.testing import ScriptedModel, ToolShelf, calls, reply

HEAD = 'id = "web"\nversion = 3\n'
WHOLE = (
    HEAD
    + """
allow = ["docs.example.org", "*.example.net:8443"]
workspace_allow = ["docs.example.org"]

[address]
allowed_hosts = ["wiki.corp"]
https_only = true

[[tools]]
tool = "web:read"
class = "request_user"
reason = "pages of the corporation"
when = { argument = "/url", matches = "^https://[^/]*[.]corp/" }

[[tools]]
tool = "pay:*"
class = "deny"
label = "external"

[[tools]]
tool = "x"
class = "notify"
when = [{ argument = "/n", equals = 1 }, { argument = "/to/0", one_of = ["ann", true] }]

[budgets]
max_steps = 5
max_turns = "unlimited"
max_duration_seconds = 2.5
per_tool = { "web:read" = 2 }

[prices]
currency = "EUR"
models."gpt-x" = { input = "1.25", output = 10, cached_input = 0.125 }
tools."room:book" = "0.02"

[credentials]
"search.apiKey" = { env = "SEARCH_KEY" }
mail = { file = "/run/secrets/mail" }
"""
)


def faults(text: str) -> dict[str, str]:
    with pytest.raises(PolicyFileRefused) as caught:
        parse_policy(text)
    return {fault.path: fault.problem for fault in caught.value.faults}


def test_a_file_says_everything_of_a_task() -> None:
    """Lists, addresses, rules, budgets, prices, where credentials are."""
    policy = parse_policy(WHOLE)

    contract = policy.contract()
    assert (contract.max_steps, contract.max_turns, contract.per_tool) == (
        5, "unlimited", {"web:read": 2},
    )  # fmt: skip
    assert contract.workspace_allowlist == ("docs.example.org",)
    assert contract.policy is not None
    assert contract.policy.to_json() == {"id": "web", "version": 3, "sha256": policy.sha256}
    assert policy.address.allowed_hosts == {"wiki.corp"}
    assert policy.prices is not None
    assert policy.prices.models["gpt-x"].cached_input == Decimal("0.125")
    assert policy.credentials["search.apiKey"] == CredentialSource(env="SEARCH_KEY")
    assert [layer.name for layer in policy.egress().layers] == ["workspace", "run"]


def test_what_is_not_said_allows_nothing() -> None:
    """An absent list is an empty one for the run, and no opinion for the others."""
    policy = parse_policy(HEAD)

    assert policy.allow == ()
    assert policy.contract().workspace_allowlist is None
    assert dict(policy.lists) == {"run": ()}


FAULTS: dict[str, tuple[str, str]] = {
    "no TOML": ("id = ", "/"),
    "no id": ("version = 1", "id"),
    "an id with a space": ('id = "a b"\nversion = 1', "id"),
    "no version": ('id = "a"', "version"),
    "version true": ('id = "a"\nversion = true', "version"),
    "version 0": ('id = "a"\nversion = 0', "version"),
    "an unknown key": (HEAD + "allw = []", "allw"),
    "a list that is a text": (HEAD + 'allow = "a.b"', "allow"),
    "a bad entry": (HEAD + 'allow = ["a.b", "https://x"]', "allow[1]"),
    "an entry that is a number": (HEAD + "task_allow = [5]", "task_allow[0]"),
    "an unknown key of address": (HEAD + "[address]\nhttps = true", "address.https"),
    "a switch that is a text": (HEAD + '[address]\nhttps_only = "false"', "address.https_only"),
    "hosts that are a text": (HEAD + '[address]\nallowed_hosts = "ab"', "address.allowed_hosts"),
    "address is no table": (HEAD + "address = true", "address"),
    "tools is a table": (HEAD + "[tools]\ntool = 'x'", "tools"),
    "a tool is a text": (HEAD + "tools = ['x']", "tools[0]"),
    "a rule without a tool": (HEAD + "tools = [{ class = 'deny' }]", "tools[0].tool"),
    "a rule without a class": (HEAD + "tools = [{ tool = 'x' }]", "tools[0].class"),
    "an unknown class": (HEAD + "tools = [{ tool = 'x', class = 'ask' }]", "tools[0].class"),
    "a class that is a number": (HEAD + "tools = [{ tool = 'x', class = 1 }]", "tools[0].class"),
    "an unknown label": (HEAD + "tools = [{ tool = 'x', class = 'deny', label = 'bad' }]", "tools[0].label"),
    "a label that is a list": (HEAD + "tools = [{ tool = 'x', class = 'deny', label = [] }]", "tools[0].label"),
    "an unknown key of a rule": (HEAD + "tools = [{ tool = 'x', class = 'deny', whem = 1 }]", "tools[0].whem"),
    "a glob with a bracket": (HEAD + "tools = [{ tool = 'x[ab]', class = 'deny' }]", "tools[0].tool"),
    "no condition": (HEAD + "tools = [{ tool = 'x', class = 'deny', when = [] }]", "tools[0].when"),
    "a condition of nothing": (HEAD + "tools = [{ tool = 'x', class = 'deny', when = { argument = '/a' } }]", "tools[0].when"),
    "a condition of two": (
        HEAD + "tools = [{ tool = 'x', class = 'deny', when = [{ argument = '/a', equals = 1, matches = 'a' }] }]",
        "tools[0].when[0]",
    ),
    "a condition of no argument": (
        HEAD + "tools = [{ tool = 'x', class = 'deny', when = { argument = 'a', equals = 1 } }]",
        "tools[0].when.argument",
    ),
    "a pattern that runs for ever": (
        HEAD + "tools = [{ tool = 'x', class = 'deny', when = { argument = '/a', matches = '(a+)+b' } }]",
        "tools[0].when.matches",
    ),
    "a condition on a table": (
        HEAD + "tools = [{ tool = 'x', class = 'deny', when = { argument = '/a', equals = {} } }]",
        "tools[0].when.equals",
    ),
    "one of nothing": (
        HEAD + "tools = [{ tool = 'x', class = 'deny', when = { argument = '/a', one_of = [] } }]",
        "tools[0].when.one_of",
    ),
    "an unknown budget": (HEAD + "[budgets]\nmax_stps = 1", "budgets.max_stps"),
    "a budget below 0": (HEAD + "[budgets]\nmax_steps = -1", "budgets.max_steps"),
    "a budget that is true": (HEAD + "[budgets]\nmax_steps = true", "budgets.max_steps"),
    "a budget that is not a number": (HEAD + "[budgets]\nmax_duration_seconds = nan", "budgets.max_duration_seconds"),
    "rules among the budgets": (HEAD + "[budgets]\ntool_policy = 1", "budgets.tool_policy"),
    "an unknown key of prices": (HEAD + "[prices]\nmodel = 1", "prices.model"),
    "a price without output": (HEAD + "[prices.models.m]\ninput = 1", "prices.models.m"),
    "a price that is none": (HEAD + "[prices.models.m]\ninput = 'x'\noutput = 1", "prices.models.m.input"),
    "a price below 0": (HEAD + "[prices.models.m]\ninput = -1\noutput = 1", "prices.models.m.input"),
    "a price of a tool that is true": (HEAD + "[prices.tools]\nx = true", "prices.tools.x"),
    "an unknown currency": (HEAD + "[prices]\ncurrency = 'euro'", "prices.currency"),
    "a tool without a name": (HEAD + "[[tools]]\ntool = ''\nclass = 'deny'", "tools[0].tool"),
    "a class that is empty": (HEAD + "[[tools]]\ntool = 'a'\nclass = ''", "tools[0].class"),
    "a tool with a price below 0": (
        HEAD + "[prices.tools]\n'web:read' = -1", 'prices.tools."web:read"',
    ),
    "a tool with a limit below 0": (
        HEAD + "[budgets.per_tool]\n'web:read' = -1", 'budgets.per_tool."web:read"',
    ),
    "a credential's value": (HEAD + "[credentials]\nkey = 'sk-123'", "credentials.key"),
    "a credential in a value key": (HEAD + "[credentials]\nkey = { value = 'sk-123' }", "credentials.key.value"),
    "a credential in two places": (HEAD + "[credentials]\nkey = { env = 'A', file = '/b' }", "credentials.key"),
    "a credential in a file nearby": (HEAD + "[credentials]\nkey = { file = 'b' }", "credentials.key"),
    "money without prices": (HEAD + "[budgets]\nmax_cost = '0.5'", "budgets.max_cost"),
    "a preset that there is not": (HEAD + "presets = ['lax']", "presets[0]"),
    "a preset that is no text": (HEAD + "presets = [['strict']]", "presets[0]"),
    "a preset that is no list": (HEAD + "presets = 'strict'", "presets"),
    "two presets": (HEAD + "presets = ['standard', 'strict']", "presets"),
    "an output check that there is not": (HEAD + "output_check = 'maybe'", "output_check"),
    "an output check that is a switch": (HEAD + "output_check = true", "output_check"),
    "an output check as a budget": (HEAD + "[budgets]\noutput_check = 'end'", "budgets.output_check"),
    "a fence that there is not": (HEAD + "fence = 'none'", "fence"),
    "a fence that is a list": (HEAD + "fence = ['fence']", "fence"),
    "sinks that are no table": (HEAD + "sinks = ['syslog']", "sinks"),
    "a sink that is no table": (HEAD + "sinks.siem = 'syslog'", "sinks.siem"),
    "a sink with a key too many": (HEAD + "[sinks.siem]\nkind = 'stdout'\nto = 'x'", "sinks.siem.to"),
    "a sink that filters by what is none": (HEAD + "[sinks.siem]\nkind = 'stdout'\nwanted = { x = 1 }", "sinks.siem.wanted.x"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["standard", "strict"])
def test_a_preset_that_is_named_is_that_of_the_contract(name: str) -> None:
    """And `standard` where none is named."""
    named, unnamed = parse_policy(HEAD + f"presets = ['{name}']"), parse_policy(HEAD)

    assert named.contract().preset == name
    assert unnamed.contract().preset == "standard"


def test_the_check_of_answers_and_the_mode_of_fences_are_what_the_file_says() -> None:
    """Each word that there is; without one no answer is checked, and fences are plain."""
    for word in ("none", "again", "end"):
        assert parse_policy(HEAD + f"output_check = '{word}'").contract().output_check == word
    for mode in FenceMode:
        assert parse_policy(HEAD + f"fence = '{mode}'").fence == mode
    unnamed = parse_policy(HEAD)
    assert (unnamed.contract().output_check, unnamed.fence) == ("none", "fence")


@pytest.mark.parametrize(("text", "path"), FAULTS.values(), ids=FAULTS.keys())
def test_what_cannot_be_enforced_refuses_the_file(text: str, path: str) -> None:
    """With the place; what looks like a rule and is none would be worse than no file."""
    told = faults(text)

    assert path in told
    assert "sk-123" not in str(told)


def test_all_faults_are_told_at_once() -> None:
    """Nobody mends a file fault by fault."""
    text = "x = 1\nallow = ['https://a', '*']\n[budgets]\nmax_steps = -1\nmax_turns = 0.5\n"

    assert set(faults(text)) == {
        "x", "id", "version", "allow[0]", "allow[1]", "budgets.max_steps", "budgets.max_turns",
    }  # fmt: skip


def test_one_fault_hides_no_other_of_its_table() -> None:
    """Each stands at its own key, in the order of the file, and in the spelling of TOML."""
    text = (
        HEAD
        + """
[[tools]]
tool = 'a'
class = 'maybe'
label = 'odd'
when = [{ argument = 'url', equals = 1 }]
[budgets]
max_turns = true
max_steps = -1
[prices]
currency = 5
[prices.models.'gpt-4.1']
input = -1
output = 'x'
"""
    )

    with pytest.raises(PolicyFileRefused) as refused:
        parse_policy(text)

    assert [fault.path for fault in refused.value.faults] == [
        "tools[0].when[0].argument", "tools[0].class", "tools[0].label",
        "budgets.max_turns", "budgets.max_steps",
        'prices.models."gpt-4.1".input', 'prices.models."gpt-4.1".output', "prices.currency",
    ]  # fmt: skip
    assert 'such as "/url"' in refused.value.faults[0].problem


def test_the_digest_is_of_what_the_file_says() -> None:
    """Comments and order do not change it; a number, a list's order and a type do."""
    one = parse_policy(HEAD + "allow = ['a.b', 'c.d']\n[budgets]\nmax_steps = 1\nmax_turns = 2")
    same = parse_policy(
        "# why\nversion = 3\nid = 'web'\nallow = [\n 'a.b',\n 'c.d']\n[budgets]\nmax_turns=2\nmax_steps=1"
    )
    others = [
        parse_policy(HEAD + "allow = ['c.d', 'a.b']\n[budgets]\nmax_steps = 1\nmax_turns = 2"),
        parse_policy(HEAD + "allow = ['a.b', 'c.d']\n[budgets]\nmax_steps = 1\nmax_turns = 3"),
        parse_policy(HEAD + "[budgets]\nmax_duration_seconds = 1"),
        parse_policy(HEAD + "[budgets]\nmax_duration_seconds = 1.5"),
    ]

    assert one.sha256 == same.sha256
    assert len({policy.sha256 for policy in (one, *others)}) == 5


@settings(max_examples=60)
@given(st.text(max_size=80) | st.text("[]{}=\"'.,\n abtolsci1", max_size=80))
def test_reading_is_total(text: str) -> None:
    """A policy or a refusal with at least one fault, whatever the text."""
    try:
        told: object = parse_policy(HEAD + text)
    except PolicyFileRefused as refused:
        told = refused.faults

    assert isinstance(told, PolicyFile) or (isinstance(told, tuple) and told)


def test_a_deep_text_is_refused() -> None:
    """Not a crash of the reader."""
    assert faults(HEAD + "x = " + "[" * 5000 + "]" * 5000)


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_bytes(b"\xff"), lambda p: p.write_bytes(b"#" * (1 << 21))])  # fmt: skip
def test_a_file_that_cannot_be_read_is_refused(make: Any, tmp_path: Path) -> None:
    """Absent, a folder, no UTF-8, or too large."""
    path = tmp_path / "policy.toml"
    make(path)

    with pytest.raises(PolicyFileRefused):
        read_policy(path)


# ── conditions ────────────────────────────────────────────────────────────────────────────────


def verdict(condition: str, arguments: Any) -> str:
    policy = parse_policy(
        HEAD + f"tools = [{{ tool = 'x', class = 'request_user', when = {condition} }}]"
    )
    told = classify_call(policy.tool_policy.rules, "x", arguments)
    return "error" if told.failed else str(told.approval_class)


@pytest.mark.parametrize(
    ("condition", "arguments", "told"),
    [
        ("{ argument = '/a', equals = 1 }", {"a": 1}, "request_user"),
        ("{ argument = '/a', equals = 1 }", {"a": 1.0}, "request_user"),
        ("{ argument = '/a', equals = 1 }", {"a": True}, "auto"),
        ("{ argument = '/a', equals = true }", {"a": 1}, "auto"),
        ("{ argument = '/a', equals = 1 }", {}, "auto"),
        ("{ argument = '/a/b/1', equals = 'x' }", {"a": {"b": [0, "x"]}}, "request_user"),
        ("{ argument = '/a/5', equals = 'x' }", {"a": ["x"]}, "auto"),
        ("{ argument = '/a~1b', one_of = [1.5, 'x'] }", {"a/b": 1.5}, "request_user"),
        ("[{ argument = '/a', equals = 1 }, { argument = '/b', equals = 1 }]", {"a": 1}, "auto"),
        ("{ argument = '/a', matches = '^x' }", {"a": "xy"}, "request_user"),
        ("{ argument = '/a', matches = '^x' }", {"a": "yx"}, "auto"),
        ("{ argument = '/a', matches = '^x' }", {"a": ["xy"]}, "error"),
        ("{ argument = '/a', matches = '^x' }", {"a": "y" * 3000}, "error"),
    ],
)
def test_conditions_are_named_data(condition: str, arguments: Any, told: str) -> None:
    """Equality without coercion, patterns on texts; what cannot be said denies."""
    assert told == verdict(condition, arguments)


def test_the_policy_digest_tells_conditions_apart() -> None:
    """An approval under one pattern is none under another."""
    digests = {
        parse_policy(
            HEAD
            + f"tools = [{{ tool = 'x', class = 'deny', when = {{ argument = '/a', {test} }} }}]"
        ).tool_policy.sha256
        for test in (
            "equals = 1",
            "equals = true",
            "equals = '1'",
            "matches = '1'",
            "matches = '2'",
        )
    }

    assert len(digests) == 5


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+", "(a*)*b", "(ab|a)*", "(ab|cd)+", "(.*a){11}", "a*b*c*d", r"(a)\1", "(?=a)", "(?<!a)b", "(", "a" * 513, "a{1,9999}", "((a?)+)*",
     "a?" * 24 + "a" * 24, "(?:a|ab)" * 22 + "b", "^" + "(?:[a-z]{2}|a)" * 32 + "@", "(?:a{0,9}){2}",
     "a{0,9}" * 9 + "b", "[a-z.]*[a-z0-9]*@evil", "a*a*b", "(?m)^a*a*b", "(?:^a*|b)a*b", "(?>a*)(?>a*)b"],
)  # fmt: skip
def test_patterns_that_could_run_for_ever_are_refused(pattern: str) -> None:
    """The text is the model's, and a page can write it."""
    with pytest.raises(PatternRefused):
        safe_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["^https://[^/]*[.]corp/", "(ann|bob)@", ".*x.*", "(a+)?b", "[0-9]{1,5}", "a*b", "^.*,.*b$",
     "^[a-z.]*[a-z0-9]*@evil", r"(?i)[a-z0-9.-]+@example\.com", "^(https?|ftp)://[^/]+/", r"\.pdf$"],
)  # fmt: skip
def test_patterns_that_are_kept_are_quick(pattern: str) -> None:
    """On the longest text that they are held against."""
    compiled = safe_pattern(pattern)
    begun = time.process_time()
    for character in "ax/0":
        compiled.search(character * 2048)

    assert time.process_time() - begun < 2


# ── in force ──────────────────────────────────────────────────────────────────────────────────


def test_a_policy_is_in_the_events_and_in_the_state(tmp_path: Path) -> None:
    """Its id, version and digest stand beside every decision, and in the saved head."""
    policy = parse_policy(HEAD + "tools = [{ tool = 'b', class = 'deny' }]")
    store, log = MemoryRunStore(), AuditLog(tmp_path / "log.jsonl")
    shelf = ToolShelf().add("a").add("b")

    async def main() -> LoopResult:
        model = ScriptedModel([calls(("1", "a", "{}"), ("2", "b", "{}")), reply()])
        run = create_agent_task_run(policy.contract(), audit=log)
        return await run_governed_agent_loop(
            runtime=run.guard_runtime(create_agent_runtime(model=model, tools=shelf.tools)),
            execute_turn_input=TurnInput(
                messages=[UserMessage(text="go")], tool_catalog=shelf.specs
            ),
            store=store,
        )

    result = asyncio.run(main())
    log.close()

    told = {"id": "web", "version": 3, "sha256": policy.sha256}
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    decided = [event["decision"]["policy"] for event in events if event.get("decision")]
    assert decided == [told, told]
    assert next(e for e in events if e["type"] == "run:started")["object"]["policy"] == told
    assert policy.sha256.encode() in store._heads[result.run_id][1]
    assert [step.code for step in result.steps if step.tool == "b"] == [CallCode.POLICY_DENIED]


def test_a_credential_is_read_where_it_is(tmp_path: Path, monkeypatch: Any) -> None:
    """The first line of a file, or a variable; what is missing is named without a value."""
    path = tmp_path / "key"
    path.write_text("sesame\nsecond\n")
    monkeypatch.setenv("SEARCH_KEY", "open")

    assert CredentialSource(file=path).read() == "sesame"
    assert CredentialSource(env="SEARCH_KEY").read() == "open"
    for source in (CredentialSource(env="NOT_SET"), CredentialSource(file=tmp_path / "none")):
        with pytest.raises(ContractError, match="there is none"):
            source.read()


# ── the command ───────────────────────────────────────────────────────────────────────────────


def command(*words: str) -> Result:
    return CliRunner().invoke(_group, words, standalone_mode=False)


@pytest.fixture
def whole(tmp_path: Path) -> str:
    path = tmp_path / "policy.toml"
    path.write_text(WHOLE)
    return str(path)


def test_the_command_says_what_a_file_says(whole: str) -> None:
    """For people and for machines."""
    told = json.loads(command("policy", "check", whole, "--json").output)

    assert told["ok"] is True
    assert told["sha256"] == parse_policy(WHOLE).sha256
    assert command("policy", "check", whole).return_value == 0
    assert {"budget": "max_steps", "limit": 5, "default": False} in told["budgets"]
    assert {"budget": "max_duration_seconds", "limit": 2.5, "default": False} in told["budgets"]
    assert told["workspace_allow"] == ["docs.example.org"]
    assert told["task_allow"] is None


def test_the_command_says_lists_rules_limits_and_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the file in words, and what a run needs beside it; a credential's value is not read out."""
    path = tmp_path / "policy.toml"
    path.write_text(
        HEAD
        + """allow = ["a.example", "b.example"]
workspace_allow = []
address = { https_only = true }
[[tools]]
tool = "mail:*"
class = "deny"
reason = "no mail"
label = "external"
when = { argument = "/to", one_of = ["ann", 1.5, true] }
[budgets]
max_cost = "0.25"
per_tool = { "mail:send" = 2 }
[prices]
models.small = { input = "1.25", output = 2 }
tools.call = "0.02"
[credentials]
one = { env = "ONE_KEY" }
two = { env = "TWO_KEY" }
"""
    )
    monkeypatch.setenv("ONE_KEY", "sk-secret")
    monkeypatch.delenv("TWO_KEY", raising=False)

    told = command("policy", "check", str(path))

    assert told.return_value == 0
    assert "sk-secret" not in told.output
    lines = [" ".join(line.split()) for line in told.output.splitlines()]
    for line in (
        "allow a.example, b.example",
        "workspace_allow nothing",
        "task_allow no opinion",
        "address https_only = true",
        "rule mail:*: deny, when /to one_of ann, 1.5, true, once the context is external (no mail)",
        "limit max_steps = 50 (the default)",
        "limit max_cost = 0.25",
        "limit per_tool = mail:send 2",
        "price model small: input 1.25, output 2, cached_input 1.25 USD a million tokens",
        "price tool call: 0.02 USD a call",
        "credential one from the variable ONE_KEY (found)",
        "credential two from the variable TWO_KEY (not found now)",
        "needs the credential two in the variable TWO_KEY: there is none now",
        "needs a model with a price; there are: small (ask's built-in model is free)",
    ):
        assert line in lines


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """What is wrong with the whole of it is told with its name."""
    (tmp_path / "bad.toml").write_text("id = ")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for name, problem in (
        ("none.toml", "does not exist"),
        ("", "is a folder, not a file"),
        ("bad.toml", "is not TOML"),
        ("bytes.toml", "is not a text in UTF-8"),
    ):
        path = tmp_path / name
        with pytest.raises(PolicyFileRefused) as refused:
            read_policy(path)
        (fault,) = refused.value.faults
        assert fault.path == str(path)
        assert problem in fault.problem


def test_the_command_says_all_that_is_wrong(tmp_path: Path) -> None:
    """One line a fault, and exit code 1."""
    path = tmp_path / "policy.toml"
    path.write_text("allow = ['https://a']")

    people = command("policy", "check", str(path))
    machines = json.loads(command("policy", "check", str(path), "--json").output)

    assert people.return_value == 1
    assert [line.partition(":")[0] for line in people.output.splitlines()] == [
        "id", "version", "allow[0]",
    ]  # fmt: skip
    assert [fault["path"] for fault in machines["faults"]] == ["id", "version", "allow[0]"]


def test_explain_url_reads_the_lists_of_a_file(whole: str) -> None:
    """Every list has a say, and the address policy too."""
    told = json.loads(
        command("explain-url", "https://docs.example.org/", "--policy", whole, "--json").output
    )
    other = command("explain-url", "https://a.example.net:8443/", "--policy", whole)
    plain = command("explain-url", "http://docs.example.org/", "--policy", whole)

    assert told["verdict"] == "needs_answers"
    assert other.return_value == 1
    assert "workspace" in other.output
    assert plain.return_value == 1
    assert "https" in plain.output


@pytest.mark.parametrize(
    "words",
    [
        ("explain-url", "https://a.b/", "--allow", "a.b"),
        ("explain-url", "https://a.b/", "--https-only"),
        ("ask", "x", "--allow", "a.b"),
        ("ask", "x", "--max-steps", "3"),
        ("ask", "x", "--approve", "auto"),
        ("egress-proxy", "--allow", "a.b"),
        ("confine", "--allow", "a.b"),
    ],
)
def test_an_option_that_the_file_decides_is_refused(words: tuple[str, ...], whole: str) -> None:
    """One of the two would be ignored."""
    rest = ("--", "true") if words[0] == "confine" else ()
    result = command(*words, "--policy", whole, *rest)

    assert "decided by the policy file" in str(result.exception)


def test_a_question_is_asked_under_the_policy(tmp_path: Path, monkeypatch: Any) -> None:
    """Its budgets hold the run, and its digest is in the log of the run."""
    path = tmp_path / "policy.toml"
    path.write_text(HEAD + "[budgets]\nmax_steps = 1\n")
    monkeypatch.setenv("RUNTIME_PACK_STATE", str(tmp_path / "state"))

    result = command("ask", "What does the with statement do?", "--policy", str(path), "--json")

    told = json.loads(result.output)
    assert told["kind"] == "suspended"
    assert parse_policy(path.read_text()).sha256 in Path(told["audit"]["path"]).read_text()


# ── totality ──────────────────────────────────────────────────────────────────────────────────

PIECES = (
    "a",
    "b",
    ".",
    "[ab]",
    "a?",
    "(?:ab)?",
    "a*",
    "[ab]+",
    ".*?",
    "(?:a|ab)",
    "[ab]{0,9}",
    "$",
)


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=12),
    start=st.sampled_from(["", "^", "(?i)"]),
    text=st.sampled_from(["a", "ab", "aab", "b"]),
)
def test_no_pattern_that_is_kept_takes_long(pieces: list[str], start: str, text: str) -> None:
    """On texts that send the engine back as often as can be; the time is that of the processor."""
    try:
        pattern = safe_pattern(start + "".join(pieces) + "c")
    except PatternRefused:
        return
    begun = time.process_time()
    pattern.search((text * 2048)[:2048])

    assert time.process_time() - begun < 5


NUMBERS = (
    *("0", "1", "-1", "true", "nan", "-inf", "1.5", "1e300", "1e308", "1e400", "1e99999999"),
    *("-1e-99999999", "9" * 30, "9" * 5000, "0x" + "f" * 5000, "9223372036854775808"),
)
SCALARS = st.sampled_from(
    (*NUMBERS, "'x'", "'a*a*b'", "''", "'/a'", "'deny'", "9999-12-31T23:59:59-12:00",
     "0001-01-01T00:00:00+12:00", "1979-05-27", "07:32:00")
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(st.sampled_from(["a", "tool", "class", "when", "argument", "equals", "one_of", "matches", "env", "file", "input", "output", "label"]), inner, max_size=4)
        .map(lambda table: "{ " + ", ".join(f"{k} = {v}" for k, v in table.items()) + " }"),
    ),
    max_leaves=6,
)  # fmt: skip
KEYS = st.sampled_from(
    ["id", "version", "allow", "task_allow", "address", "tools", "budgets", "prices",
     "credentials", "presets", "sinks", "x", "address.https_only", "prices.models.m",
     *(f"budgets.{f.name}" for f in attrs.fields(TaskContract))]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(lines=st.dictionaries(KEYS, VALUES, max_size=4), text=st.text(max_size=40))
def test_every_text_is_a_policy_or_refused(lines: dict[str, str], text: str) -> None:
    """Whatever stands in a file, nothing but a refusal with its places is raised."""
    body = "".join(f"{key} = {value}\n" for key, value in lines.items())
    for whole in (HEAD + body, body, text):
        with contextlib.suppress(PolicyFileRefused):
            parse_policy(whole).contract()


@pytest.mark.parametrize(
    "line",
    [
        "presets = [[1]]", "sinks = [{ a = 1 }]", "x = 1e99999999", f"x = {'9' * 5000}", f"x = 0x{'f' * 5000}",
        "budgets.max_duration_seconds = inf",
        "tools = [{ tool = 'x', class = 'deny', when = { argument = '/a', equals = nan } }]",
        "tools = [{ tool = 'x', class = 'deny', when = { argument = '/a', one_of = [1, 1e400] } }]",
    ],
)  # fmt: skip
def test_what_cannot_be_reckoned_with_is_refused(line: str) -> None:
    """Numbers that are none or too large, moments that are none, names that are no texts."""
    with pytest.raises(PolicyFileRefused):
        parse_policy(HEAD + line + "\n")
