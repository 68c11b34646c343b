"""Recorded calls decided anew, and the change of a policy that chosen denials suggest."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from egress import Deny, check_address, check_listed, parse_target
from runtime_pack.approvals import digest_arguments
from runtime_pack.labels import Confidentiality, Integrity, Label
from runtime_pack.policy import classify_call
from runtime_pack.policy_file import PolicyFile, parse_policy
from runtime_pack.policy_replay import Now, decider, replay
from runtime_pack.policy_suggest import EMPTY_POLICY, is_denial, suggest
from runtime_pack.policy_text import EditRefused, Edits, RuleEdit, edited
from runtime_pack.recorded_calls import RecordedCall, Recording, Was, with_arguments

Record = dict[str, Any]
ADMITTED = {Now.ALLOWED, Now.ASKED}


def record(code: str, step: str, *, run: str = "r", name: str = "", **more: Any) -> Record:
    """One line's object; its id names the step unless another one is given."""
    subject = {"run": run, **({"step": step} if step else {})}
    return {
        "code": code,
        "type": more.pop("type", "step:started"),
        "id": name or f"{run}:{step}:{code}",
        "seq": 1,
        "ts": "2026-03-01T00:00:00.000000Z",
        "subject": subject,
        "object": more.pop("object", {}),
        "decision": more.pop("decision", {}),
    }


def denied_read(url: str, step: str = "t1c1", **more: Any) -> list[Record]:
    """What a log has of a read that the list of nobody admitted."""
    target = parse_target(url)
    body = {"host": target.host, "port": target.port, "proto": target.scheme, "tool": "web:read"}
    body["ip"] = more.pop("ip", [])
    rule, reason = more.pop("why", ("R4", "host_not_listed"))
    enforced = more.pop("enforced", True)
    decision = {"rule": rule, "reason_code": reason, "enforced": enforced, "action": "deny"}
    return [
        record("EGR001D", step, object=body, decision=decision, **more),
        record("STP004D", step, object={"tool": "web:read", "code": "WEB_EGRESS_DENIED"}, **more)
        if enforced
        else record("STP001A", step, object={"tool": "web:read"}, **more),
    ]


def denied_call(
    tool: str, step: str = "t1c1", *, reasons: Sequence[str] = (), **more: Any
) -> Record:
    body = {"tool": tool, "code": more.pop("refusal", "POLICY_DENIED")}
    return record("STP004D", step, object=body, decision={"reasons": list(reasons)}, **more)


def call_of(*records: Record) -> RecordedCall:
    (call,) = Recording.of(records).calls
    return call


def policy_of(text: str) -> PolicyFile:
    return parse_policy(EMPTY_POLICY + text)


DENIES_ERASE = '[[tools]]\ntool = "disk:erase"\nclass = "deny"\nreason = "never"\n'


# ── what the log holds ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("records", "was"),
    [
        ([record("STP001A", "t1c1", object={"tool": "x:y"})], Was.ALLOWED),
        ([record("APR001O", "t1c1"), record("STP001A", "t1c1")], Was.ASKED),
        ([record("APR001O", "t1c1"), denied_call("x:y", refusal="DENIED_BY_PERSON")], Was.ASKED),
        ([denied_call("x:y")], Was.DENIED),
        ([denied_call("x:y", refusal="INVALID_ARGUMENTS")], Was.OTHER),
        (denied_read("https://a.example/"), Was.DENIED),
        (denied_read("https://a.example/", enforced=False), Was.REPORTED),
    ],
)
def test_the_events_of_a_step_are_one_call(records: list[Record], was: Was) -> None:
    """What a person said is no policy's denial, and a form fault is none either."""
    assert was is call_of(*records).was


def test_a_tunnel_is_a_call_of_its_own() -> None:
    """The egress proxy writes denials without a step."""
    first, second = (denied_read("https://a.example/", "", name=name)[0] for name in "ab")

    assert ["a", "b"] == [call.event for call in Recording.of([first, second]).calls]


def raised(step: str, before: str, after: str) -> Record:
    words = [{"integrity": w, "confidentiality": "public"} for w in (before, after)]
    body = {"from": words[0], "to": words[1]}
    return record("LBL001O", step, type="label:raised", object=body)


def test_the_context_is_known_from_what_raised_it() -> None:
    """The first rise tells what held before it; without one nothing is known."""
    recording = Recording.of(
        [
            record("STP001A", "t1c1", object={"tool": "a:b"}),
            raised("t1c1", "user", "external"),
            record("STP001A", "t2c1", object={"tool": "a:b"}),
            record("STP001A", "t1c1", run="other", object={"tool": "a:b"}),
        ]
    )

    before, after, other = (call.label for call in recording.calls)
    assert before is not None
    assert after is not None
    assert (Integrity.USER, Integrity.EXTERNAL) == (before.integrity, after.integrity)
    assert other is None


@given(
    st.lists(
        st.recursive(
            st.none() | st.text() | st.integers() | st.booleans(),
            lambda v: (
                st.lists(v)
                | st.dictionaries(
                    st.sampled_from(
                        (
                            "code",
                            "subject",
                            "object",
                            "decision",
                            "run",
                            "step",
                            "ip",
                            "host",
                            "port",
                            "reasons",
                            "id",
                            "to",
                            "type",
                        )
                    ),
                    v,
                )
            ),
            max_leaves=12,
        ).filter(lambda v: isinstance(v, dict))
    )
)
@settings(max_examples=60)
def test_any_objects_are_a_recording(records: list[Record]) -> None:
    """A log that was tampered with can still be read."""
    codes = ("EGR001D", "STP004D", "LBL003D", "STP001A")
    every = [{**each, "code": codes[n % 4]} for n, each in enumerate(records)]

    calls = Recording.of([*records, *every]).calls

    policy = policy_of('allow = ["a.example"]\n' + DENIES_ERASE)
    assert len(calls) >= len(replay(calls, policy).calls)


# ── replay ────────────────────────────────────────────────────────────────────────────────────


def now(call: RecordedCall, text: str) -> tuple[Now, tuple[str, ...]]:
    told = decider(policy_of(text))(call)
    return told.now, told.open


def test_a_listed_host_is_admitted_and_its_addresses_are_not_guessed() -> None:
    """The lookup was never made, and it is said so."""
    verdict, open_ = now(call_of(*denied_read("https://a.example/")), 'allow = ["a.example"]\n')

    assert Now.ALLOWED is verdict
    assert "where a.example leads was not looked up" in open_


@pytest.mark.parametrize(
    "reason", ["metadata_address", "never_opened", "no_answer", "sni_mismatch", "scoped_address"]
)
def test_what_no_list_opens_stays_denied(reason: str) -> None:
    """Whatever the file lists."""
    call = call_of(*denied_read("https://a.example/", why=("R9", reason)))

    assert Now.DENIED is now(call, 'allow = ["a.example"]\n')[0]


def test_the_other_answers_of_a_lookup_are_not_guessed() -> None:
    """Only the refused address is recorded."""
    call = call_of(
        *denied_read("https://a.example/", ip=["10.0.0.5"], why=("R8", "address_not_global"))
    )

    assert Now.DENIED is now(call, 'allow = ["a.example"]\n')[0]
    verdict, open_ = now(call, 'allow = ["a.example", "10.0.0.5"]\n')
    assert (Now.ALLOWED, True) == (verdict, "other answers for a.example are not recorded" in open_)


def test_an_admitted_read_needs_its_url_to_be_decided() -> None:
    """The log has a digest; a saved run has the arguments."""
    arguments = {"url": "https://b.example/x"}
    body = {"tool": "web:read", "args_sha256": digest_arguments(arguments)}
    call = call_of(record("STP001A", "t1c1", object=body))
    (known,) = with_arguments([call], {digest_arguments(arguments): arguments})

    assert Now.UNKNOWN is now(call, 'allow = ["b.example"]\n')[0]
    assert Now.ALLOWED is now(known, 'allow = ["b.example"]\n')[0]
    assert Now.DENIED is now(known, 'allow = ["a.example"]\n')[0]


@pytest.mark.parametrize(
    ("host", "text", "verdict"),
    [
        ("b.example", 'allow = ["a.example"]', Now.DENIED),
        ("b.example", "", Now.DENIED),
        ("b.example", 'allow = ["b.example:8443"]', Now.UNKNOWN),
        ("b.example", 'allow = ["b.example"]\ntask_allow = ["a.example"]', Now.DENIED),
        ("2001:db8::7", 'allow = ["2001:db8::/32"]', Now.UNKNOWN),
        ("sha256:00112233", 'allow = ["a.example"]', Now.UNKNOWN),
    ],
)
def test_the_host_of_a_page_is_enough_to_deny_a_read(host: str, text: str, verdict: Now) -> None:
    """The log has the host where a read ended, and no port: a list that lacks the host denies it."""
    body = {"tool": "web:read"}
    call = call_of(
        record("STP001A", "t1c1", object=body),
        record("WEB001O", "t1c1", name="page", object={**body, "host": host}),
    )

    assert (Was.ALLOWED, verdict) == (call.was, now(call, f"{text}\n")[0])


def test_a_condition_needs_the_arguments() -> None:
    """Known arguments decide it as a run does; one that cannot be decided denies."""
    rule = (
        '[[tools]]\ntool = "m:s"\nclass = "request_user"\n'
        'when = { argument = "/to", matches = "x$" }\n'
    )
    body = {"tool": "m:s", "args_sha256": "d"}
    call = call_of(record("STP001A", "t1c1", object=body))

    assert Now.UNKNOWN is now(call, rule)[0]
    for to, verdict in (("ax", Now.ASKED), ("ay", Now.ALLOWED), (5, Now.DENIED)):
        (known,) = with_arguments([call], {"d": {"to": to}})
        assert verdict is now(known, rule)[0]


def test_a_rule_for_a_context_needs_the_context() -> None:
    """What ran beside a call may have made the context worse than the log says."""
    rule = '[[tools]]\ntool = "m:s"\nclass = "deny"\nlabel = "external"\n'
    call = call_of(record("STP001A", "t1c1", object={"tool": "m:s"}))
    clean = Label(integrity=Integrity.USER, confidentiality=Confidentiality.PUBLIC)
    worse = attrs.evolve(clean, integrity=Integrity.EXTERNAL)

    told = [
        now(attrs.evolve(call, label=label, beside=beside), rule)[0]
        for label, beside in ((None, False), (clean, False), (clean, True), (worse, True))
    ]

    assert [Now.UNKNOWN, Now.ALLOWED, Now.UNKNOWN, Now.DENIED] == told


def test_the_record_of_a_denial_does_not_tell_the_tool_s_own_class() -> None:
    """The strictest reasons alone are in the log."""
    call = call_of(denied_call("disk:erase", reasons=["task rule disk:erase: never"]))

    assert Now.UNKNOWN is now(call, "")[0]
    assert Now.DENIED is now(call, DENIES_ERASE)[0]
    declared = call_of(denied_call("disk:erase", reasons=["tool disk:erase: is deny"]))
    assert Now.DENIED is now(declared, "")[0]


def test_a_question_that_no_policy_asked_stays() -> None:
    """A call in doubt is asked about under every policy."""
    body = {"tool": "m:s"}
    call = call_of(
        record("APR001O", "t1c1", object=body, decision={"reasons": ["it may have run already"]})
    )
    ruled = call_of(
        record(
            "APR001O", "t1c1", object=body, decision={"reasons": ["task rule m:*: is request_user"]}
        )
    )

    assert [Now.ASKED, Now.ALLOWED] == [now(call, "")[0], now(ruled, "")[0]]


def test_label_rules_are_not_decided_anew() -> None:
    """Their table is not in the log: strict denies what any denied, and more is not said."""
    records = (record("LBL003D", "t1c1", object={"tool": "m:s"}), denied_call("m:s"))
    call = call_of(*records)

    assert [Now.UNKNOWN, Now.DENIED] == [
        now(call, preset)[0] for preset in ("", 'presets = ["strict"]\n')
    ]
    ran = call_of(record("STP001A", "t1c1", object={"tool": "m:s"}))
    assert Now.UNKNOWN is now(ran, 'presets = ["strict"]\n')[0]


def test_a_call_under_the_same_file_is_decided_as_it_was() -> None:
    """Also where the record lacks what decided it."""
    policy = policy_of('allow = ["a.example"]\n')
    decision = {"policy": {"sha256": policy.sha256}}
    call = call_of(record("STP001A", "t1c1", object={"tool": "web:read"}, decision=decision))

    assert (Now.ALLOWED, False) == (decider(policy)(call).now, decider(policy)(call).changes)


def test_what_only_reported_counts_as_let_through() -> None:
    """Under a policy that enforces, it is a change where the entry is missing."""
    call = call_of(*denied_read("https://a.example/", enforced=False))

    told = [decider(policy_of(t))(call).changes for t in ("", 'allow = ["a.example"]\n')]

    assert [True, False] == told


# ── suggest ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (denied_read("http://169.254.169.254/", why=("R7", "address_not_listed")), "no entry opens"),
        (denied_read("https://a.example/", ip=["10.0.0.5"], why=("R8", "address_not_global")), "a private address"),
        (denied_read("http://10.0.0.5/", why=("R7", "address_not_listed")), "a private address"),
        (denied_read("https://a.example/", ip=["100.100.100.200"], why=("R9", "metadata_address")), "no policy opens it"),
        (denied_read("https://a.example/", why=("R13", "sni_mismatch")), "no policy opens it"),
        (denied_read("https://a.example/", why=("R4", "denied_by_proxy")), "a list of its own"),
        ([record("LBL003D", "t1c1", object={"tool": "m:s"}), denied_call("m:s")], "label rules"),
        ([denied_call("m:s", refusal="POLICY_ERROR")], "mend the rule"),
        ([denied_call("m:s", reasons=["tool m:s: is deny"])], "declared as denied"),
        ([denied_call("m:s", reasons=["workspace rule m:s: no"])], "no rule of the file denies it"),
    ],
)  # fmt: skip
def test_what_no_policy_may_admit_is_left(records: list[Record], why: str) -> None:
    """It is named with the reason, and nothing is changed for it."""
    call = call_of(*records)

    found = suggest([call], call.events, policy_of('allow = ["a.example"]\n'))

    assert (found.before, ()) == (found.text, found.admitted)
    (left,) = found.left
    assert why in left.why


def test_a_private_address_is_proposed_where_it_is_asked_for() -> None:
    """As one address, in every list that lacks it."""
    call = call_of(
        *denied_read("https://a.example/", ip=["10.0.0.5"], why=("R8", "address_not_global"))
    )
    policy = policy_of('allow = ["a.example"]\ntask_allow = ["*.b.example", "a.example"]\n')

    found = suggest([call], call.events, policy, private=True)

    assert [("allow", "10.0.0.5"), ("task_allow", "10.0.0.5")] == [
        (c.key, c.value) for c in found.changes
    ]
    assert "every listed name that leads to this address" in found.changes[0].opens


def test_each_list_that_lacks_the_entry_gets_it() -> None:
    """And no other list is written."""
    call = call_of(*denied_read("https://a.example:8443/"))
    text = 'allow = ["a.example:8443"]\nworkspace_allow = ["b.example"]\n'

    found = suggest([call], call.events, policy_of(text))

    assert [("workspace_allow", "a.example:8443")] == [(c.key, c.value) for c in found.changes]
    assert (call.event,) == found.admitted


def test_https_only_is_not_switched_off() -> None:
    """A switch for every host is no small change."""
    call = call_of(*denied_read("http://a.example/", why=("R12", "https_only")))

    found = suggest([call], call.events, policy_of("[address]\nhttps_only = true\n"))

    assert "a switch for every host" in found.left[0].why


def test_an_entry_spares_the_denial_that_was_not_chosen() -> None:
    """With its port, where the name alone would admit the other scheme too."""
    secure = call_of(*denied_read("https://a.example/"))
    plain = call_of(*denied_read("http://a.example/", "t1c2"))

    apart = suggest([secure, plain], secure.events, policy_of(""))
    both = suggest([secure, plain], secure.events | plain.events, policy_of(""))

    assert (["a.example:443"], ()) == ([c.value for c in apart.changes], apart.also)
    assert ["a.example"] == [c.value for c in both.changes]


def test_thousands_of_hosts_are_suggested_at_once() -> None:
    """Each with its entry; what they have in common is looked for by host, and not by each other."""
    records = [
        each for n in range(2000) for each in denied_read(f"https://h{n}.example/", f"t{n}c1")
    ]
    found_calls = Recording.of(records).calls

    found = suggest(found_calls, {c.event for c in found_calls}, policy_of(""))

    assert (2000, 2000, ()) == (len(found.changes), len(found.admitted), found.left)


def test_a_rule_that_denies_asks_a_person_instead() -> None:
    """It never lets the call run unasked."""
    call = call_of(denied_call("disk:erase", reasons=["task rule disk:erase: never"]))

    found = suggest([call], call.events, policy_of(DENIES_ERASE))

    assert Now.ASKED is decider(parse_policy(found.text))(call).now
    assert 'class = "request_user"' in found.text


def test_a_rule_for_many_tools_spares_those_that_were_not_chosen() -> None:
    """They get a rule of their own that denies; what the record does not know is said to be opened."""
    rule = '[[tools]]\ntool = "disk:*"\nclass = "deny"\nreason = "never"\n'
    calls = [
        call_of(denied_call(f"disk:{name}", f"t1c{n}", reasons=["task rule disk:*: never"]))
        for n, name in enumerate(("list", "erase"))
    ]

    found = suggest(calls, calls[0].events, policy_of(rule))

    after = decider(parse_policy(found.text))
    assert [Now.ASKED, Now.DENIED] == [after(call).now for call in calls]
    assert "every other tool that disk:* covers" in found.changes[0].opens
    assert () == found.also


def test_a_call_that_is_denied_twice_needs_both() -> None:
    """A list that lacks it and a rule behind the list; half of it would admit nothing."""
    call = call_of(*denied_read("https://a.example/"))
    rule = '[[tools]]\ntool = "web:*"\nclass = "deny"\n'
    conditional = f'{rule}when = {{ argument = "/url", matches = "x" }}\n'

    both = suggest([call], call.events, policy_of(rule))
    neither = suggest([call], call.events, policy_of(conditional))

    assert ["allow", "tools[0].class"] == [change.key for change in both.changes]
    assert ((), neither.before) == (neither.changes, neither.text)
    assert "the record is not enough" in neither.left[0].why


# Hosts of which some are beside each other, and literals of every standing.
HOSTS = (
    "a.example",
    "b.example",
    "x.a.example",
    "10.0.0.5",
    "93.184.216.34",
    "169.254.169.254",
    "[fd00::5]",
)
TOOLS = ("disk:erase", "disk:list", "mail:send", "web:read")
RULES = st.fixed_dictionaries(
    {
        "tool": st.sampled_from((*TOOLS, "disk:*", "*")),
        "class": st.sampled_from(("deny", "request_user", "notify")),
    },
    optional={"label": st.just("external"), "reason": st.sampled_from(("", 'a "quoted" \\ word\n'))},
)  # fmt: skip


@st.composite
def policies(draw: st.DrawFn) -> PolicyFile:
    entries = st.lists(
        st.sampled_from(("a.example", "*.a.example", "10.0.0.0/8", "b.example:8443")), max_size=2
    )
    text = EMPTY_POLICY
    for key in ("allow", "task_allow"):
        if draw(st.booleans()):
            text += f"{key} = {draw(entries)!r}\n".replace("'", '"')
    for rule in draw(st.lists(RULES, max_size=3)):
        text += "\n" + edited_rule(rule)
    return parse_policy(text)


def edited_rule(rule: dict[str, str]) -> str:
    import json

    return "[[tools]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in rule.items())


@st.composite
def denials(draw: st.DrawFn, policy: PolicyFile) -> list[RecordedCall]:
    """Calls that the policy denies, as its run would have recorded them."""
    records: list[Record] = []
    for number in range(draw(st.integers(1, 6))):
        step = f"t{number}c1"
        if draw(st.booleans()):
            scheme, port = draw(st.sampled_from((("https", 443), ("http", 80), ("https", 8443))))
            target = parse_target(f"{scheme}://{draw(st.sampled_from(HOSTS))}:{port}/")
            verdict = check_listed(policy.egress(), target)
            ips = [] if target.is_literal else draw(st.sampled_from(([], ["10.0.0.9"])))
            if not isinstance(verdict, Deny) and ips:
                verdict = check_address(policy.egress(), ips[0], host=target.host, target=target)
            if isinstance(verdict, Deny):
                why = (verdict.rule, str(verdict.reason))
                ip = ips if verdict.rule == "R8" else []
                records += denied_read(target.url, step, why=why, ip=ip)
        else:
            tool = draw(st.sampled_from(TOOLS))
            said = classify_call(policy.tool_policy.all_rules, tool, {})
            if said.approval_class == "deny":
                records.append(denied_call(tool, step, reasons=said.reasons))
    return [call for call in Recording.of(records).calls if is_denial(call)]


@given(st.data())
@settings(max_examples=100)
def test_the_suggestion_decided_anew_admits_exactly_what_was_chosen(data: st.DataObject) -> None:
    """Each chosen denial is admitted or left with a reason; what else is admitted is named.

    No change can be taken away, nothing that was admitted is denied, and what stays closed does.
    """
    policy = data.draw(policies())
    calls = data.draw(denials(policy))
    assume(calls)
    picked = data.draw(st.lists(st.sampled_from(calls), min_size=1, unique_by=lambda c: c.event))
    private = data.draw(st.booleans())
    chosen = frozenset(name for call in picked for name in call.events)

    found = suggest(calls, chosen, policy, private=private)

    before, after = decider(policy), decider(parse_policy(found.text))
    newly = {c.event for c in calls if after(c).now in ADMITTED and before(c).now not in ADMITTED}
    names = {call.event for call in picked}
    assert newly == (set(found.admitted) | set(found.also)) - {
        c.event for c in calls if before(c).now in ADMITTED
    }
    assert set(found.admitted) | {left.event for left in found.left} == names
    assert not set(found.admitted) & {left.event for left in found.left}
    assert not set(found.also) & names
    for call in calls:
        if call.event in found.also:
            assert any(_alike(call, other, policy) for other in picked)
    for host in tomllib.loads(found.text).get("allow", []):
        assert "169.254" not in host
    if not private:
        assert all(not c.value.startswith(("10.", "[fd", "fd")) for c in found.changes)
    for change in found.changes:
        assert set(change.admits) <= set(found.admitted)
        if change.key in {"allow", "task_allow"}:
            without = _without(found.text, change.key, change.value)
            still = {c.event for c in picked if decider(without)(c).now in ADMITTED}
            assert not set(found.admitted) <= still


def _alike(one: RecordedCall, other: RecordedCall, policy: PolicyFile) -> bool:
    """Whether no policy tells them apart: one target, one tool, or one private address."""
    ends = [{d.target.authority for d in c.denials if d.target is not None} for c in (one, other)]
    addresses = [
        {ip for d in c.denials for ip in d.addresses} | ends[n] for n, c in enumerate((one, other))
    ]
    covering = [r.tool for r in policy.tool_policy.rules if r.covers(one.tool or "")]
    same_rule = one.tool == other.tool or any(
        r.covers(other.tool or "") for r in policy.tool_policy.rules if r.tool in covering
    )
    return bool(ends[0] & ends[1] or addresses[0] & addresses[1]) or (not one.denials and same_rule)


def _without(text: str, key: str, entry: str) -> PolicyFile:
    document = tomllib.loads(text)
    kept = [each for each in document[key] if each != entry]
    line = next(line for line in text.splitlines() if line.startswith(f"{key} = "))
    return parse_policy(text.replace(line, f"{key} = {kept!r}".replace("'", '"')))


# ── the text ──────────────────────────────────────────────────────────────────────────────────

ONE_LINE = 'id = "a"\nversion = 1 # one\nallow = ["x.example", ] # list ]\n'
MANY_LINES = 'id = "a"\nversion = 1\nallow = [\n  "x.example",  # ]\n  "y.example" # last\n]\n'
INSIDE = 'id = "a"\nversion = 1\n[[tools]]\ntool = "allow"\nclass = "deny"\nreason = """\nallow = [\n[[tools]]\nclass = "auto"\n"""\n'


@pytest.mark.parametrize("text", [ONE_LINE, MANY_LINES, INSIDE, 'version = 1\nid = "a"'])
def test_an_entry_is_added_and_all_else_stays(text: str) -> None:
    """Comments, layout and what only looks like a list; the version is the next one."""
    after = edited(text, Edits(entries={"allow": ("new.example",)}))

    before = tomllib.loads(text)
    assert tomllib.loads(after) == {
        **before,
        "version": 2,
        "allow": [*before.get("allow", []), "new.example"],
    }
    assert {
        line
        for line in text.split("\n")
        if "#" in line and "version" not in line and "allow" not in line and "last" not in line
    } <= set(after.split("\n"))


@pytest.mark.parametrize(
    "text",
    [
        'id = "a"\nversion = 1\ntools = [{ tool = "x", class = "deny" }]\n',
        'id = "a"\nversion = 1\n[[tools]]\ntool = "x"\n"class" = "deny"\n',
        'id = "a"\n"version" = 1\n[[tools]]\ntool = "x"\nclass = "deny"\n',
        "id = [",
    ],
)
def test_a_form_that_is_not_edited_is_refused(text: str) -> None:
    """Nothing is changed half."""
    with pytest.raises(EditRefused):
        edited(text, Edits(entries={}, rules=(RuleEdit(place=0, approval_class="request_user"),)))


def test_a_file_that_is_not_edited_is_told_by_hand() -> None:
    """What would have to be changed is named, and the text stays."""
    call = call_of(denied_call("x:y", reasons=["task rule x:y: is deny"]))
    policy = policy_of('tools = [{ tool = "x:y", class = "deny" }]\n')

    found = suggest([call], call.events, policy)

    assert (policy.text, ["tools[0].class"]) == (found.text, [c.key for c in found.changes])
    assert "by hand" in found.left[0].why


@given(st.text(max_size=30), st.sampled_from(("reason", "tool")))
@settings(max_examples=60)
@example("\x7f\x85\u2028\"\\'''\t\n]#[[tools]]", "reason")
def test_text_in_a_file_is_no_structure(words: str, key: str) -> None:
    """A reason may hold brackets, quotes and headers: the right rule is changed, or none."""
    import json

    assume(words.isprintable() or key == "reason")
    value = json.dumps(words, ensure_ascii=False).replace("\x7f", "\\u007f")
    text = f'id = "a"\nversion = 1\n[[tools]]\n{key} = {value}\nclass = "deny"\n[[tools]]\nclass = "deny"\n'
    try:
        meant = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assume(False)

    after = tomllib.loads(
        edited(text, Edits(entries={}, rules=(RuleEdit(place=1, approval_class="auto"),)))
    )

    meant["tools"][1]["class"] = "auto"
    assert {**meant, "version": 2} == after
