"""Labels, messages, tools, policies and decisions: values that cannot be made wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_pack import (
    ApprovalClass,
    AssistantMessage,
    ContractError,
    Decision,
    Label,
    SystemMessage,
    TaskContract,
    ToolCall,
    ToolMessage,
    ToolPolicy,
    ToolRule,
    ToolSpec,
    Turn,
    TurnStatus,
    UserMessage,
    Verdict,
    parse_decision,
)
from runtime_pack.approvals import DecisionRefused, digest_arguments
from runtime_pack.catalog import Effects, Executed, ToolOutput, index_catalog
from runtime_pack.errors import CallCode, RuntimePackError
from runtime_pack.events import EVENT_ROWS, EventCode
from runtime_pack.labels import (
    CLEAN,
    UNLABELLED,
    Confidentiality,
    Integrity,
    at_most,
    join,
    parse_label,
)
from runtime_pack.ledger import UNLIMITED
from runtime_pack.machine import refusal
from runtime_pack.messages import (
    Json,
    Message,
    Transcript,
    clean_text,
    message_from_json,
    message_to_json,
    own_copy,
)
from runtime_pack.policy import classify_call
from runtime_pack.records import StepRecord, log_code, log_word, step_finished, step_refused
from web_tools.errors import WebErrorCode

labels = st.builds(
    Label,
    integrity=st.sampled_from(Integrity),
    confidentiality=st.sampled_from(Confidentiality),
    sources=st.frozensets(st.integers(0, 40).map("s{}".format), max_size=70),
)
texts = st.text(max_size=8)
messages = st.one_of(
    st.builds(SystemMessage, text=texts),
    st.builds(UserMessage, text=texts, label=labels),
    st.builds(
        AssistantMessage,
        text=texts,
        calls=st.lists(
            st.builds(ToolCall, id=texts, name=texts, arguments=st.dictionaries(texts, texts)),
            max_size=2,
        ).map(tuple),
    ),
    st.builds(ToolMessage, call_id=texts, name=texts, text=texts, ok=st.booleans(), label=labels),
)


# ── labels ──────────────────────────────────────────────────────────────────────────────────────


@given(labels, labels, labels)
def test_joining_labels_only_raises_and_does_not_depend_on_order(
    a: Label, b: Label, c: Label
) -> None:
    """A semilattice: associative, commutative, idempotent; property 7."""
    pairs = [
        (join(a, b), join(b, a)),
        (join(a, join(b, c)), join(join(a, b), c)),
        (join(a, a), a),
        (join(a, join(a, b)), join(a, b)),
        (join(CLEAN, a), a),
    ]
    for one, other in pairs:
        assert one == other
        assert one.sources == other.sources
    assert at_most(a, join(a, b))


@given(
    st.sets(st.integers(0, 200).map("s{}".format)), st.sets(st.integers(0, 200).map("t{}".format))
)
def test_more_sources_than_can_be_named_are_many(a: set[str], b: set[str]) -> None:
    """64 are named; from then on it is `many`, and stays so."""
    joined = join(Label(sources=a), Label(sources=b))

    assert joined.sources == (a | b if len(a | b) <= 64 else {"many"})
    assert join(joined, Label(sources={"late"})).sources == (
        a | b | {"late"} if len(a | b | {"late"}) <= 64 else {"many"}
    )


@pytest.mark.parametrize("words", ["page", ["two words"], [""], ["x" * 321], ["a\nb"], [1]])
def test_a_source_is_an_id_and_no_text(words: Any) -> None:
    """What stands before a person who approves is not written by a page."""
    with pytest.raises(ValueError):
        Label(sources=words)


@given(labels)
def test_a_label_survives_json(label: Label) -> None:
    """What was written is read."""
    read = parse_label(orjson.loads(orjson.dumps(label.to_json())))

    assert read == label
    assert read.sources == label.sources


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        [],
        "user",
        {"integrity": "user"},
        {"integrity": "trusted", "confidentiality": "public"},
        {**CLEAN.to_json(), "x": "y"},
        {**CLEAN.to_json(), "sources": "page"},
        {**CLEAN.to_json(), "sources": ["two words"]},
    ],
)
def test_what_is_no_label_is_refused(value: object) -> None:
    """Missing, unknown and additional keys; unknown words."""
    with pytest.raises(ValueError):
        parse_label(value)


def test_what_is_not_labelled_is_external() -> None:
    """Missing means untrusted."""
    assert Label().integrity is Integrity.EXTERNAL


# ── messages ────────────────────────────────────────────────────────────────────────────────────


@given(messages)
def test_a_message_survives_json(message: Message) -> None:
    """What was written is read; unknown and missing keys are refused."""
    stored = orjson.loads(orjson.dumps(message_to_json(message)))

    assert message_from_json(stored) == message
    with pytest.raises(ValueError):
        message_from_json({**stored, "more": 1})
    with pytest.raises(ValueError):
        message_from_json({key: stored[key] for key in list(stored)[:-1]})


json_values = st.recursive(
    st.none() | st.booleans() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["role", "text", "calls", "call_id", "name", "ok", "label"]), inner
        )
    ),
    max_leaves=8,
)


@given(json_values, st.sampled_from(["system", "user", "assistant", "tool"]))
def test_reading_a_message_is_total(value: object, role: str) -> None:
    """A message, or ValueError."""
    if isinstance(value, dict):
        value["role"] = role
    try:
        message_from_json(value)
    except ValueError:
        return


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=12))
def test_cleaned_text_can_be_encoded_and_stays_so(text: str) -> None:
    """Text without surrogates is left as it is."""
    clean = clean_text(text)

    assert clean.encode().decode() == clean
    assert clean_text(clean) == clean
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert clean == text


def test_surrogate_pairs_are_joined() -> None:
    """Two halves that belong together are one character."""
    assert clean_text("\ud83d\ude00") == "\U0001f600"


def test_a_turn_says_calls_if_and_only_if_it_has_some() -> None:
    """Words of the enums are taken, others refused."""
    call = ToolCall(id="a", name="t", arguments="{}")

    assert Turn(status="reply").status is TurnStatus.REPLY
    assert Turn(status=TurnStatus.TOOL_REQUEST, calls=[call]).calls == (call,)
    for status, given_calls in (("reply", (call,)), ("tool_request", ()), ("other", ())):
        with pytest.raises(ValueError):
            Turn(status=status, calls=given_calls)


def test_a_transcript_is_a_view_of_what_was_there() -> None:
    """Later messages are not in it; it behaves as a sequence."""
    held: list[Message] = [SystemMessage(text="1"), UserMessage(text="2")]
    view = Transcript(held)
    held.append(UserMessage(text="3"))

    assert len(view) == 2
    assert list(view) == held[:2]
    assert (view[0], view[-1], view[:5]) == (held[0], held[1], tuple(held[:2]))
    for index in (2, -3):
        with pytest.raises(IndexError):
            view[index]


# ── tools ───────────────────────────────────────────────────────────────────────────────────────

OBJECT: Mapping[str, Json] = {"type": "object"}


@pytest.mark.parametrize(
    "name", ["", "a b", "a:", ":a", "a::b", "ä", "x" * 65, "agent:execute-turn", "a\n", "a/b"]
)
def test_a_name_that_no_provider_takes_is_refused(name: str) -> None:
    """And so is the name of the turn."""
    with pytest.raises(ContractError):
        ToolSpec(name=name, description="d", parameters=OBJECT)


@pytest.mark.parametrize("seconds", [0, -1, True, float("inf"), float("nan")])
def test_a_call_has_a_positive_finite_limit_of_time(seconds: float) -> None:
    """Endless calls are not on offer."""
    with pytest.raises(ContractError):
        ToolSpec(name="t", description="d", parameters=OBJECT, timeout_seconds=seconds)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"type": "string"},
        {"type": "object", "$ref": "#"},
        [],
        {"type": "object", "properties": 1},
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused(parameters: Mapping[str, Json]) -> None:
    """With the tool's name in the error."""
    with pytest.raises(ContractError):
        ToolSpec(name="t", description="d", parameters=parameters)


def test_a_definition_that_is_no_text_is_refused() -> None:
    """It could neither be digested nor saved."""
    with pytest.raises(ContractError):
        ToolSpec(name="t", description="\ud800", parameters=OBJECT)


def test_two_tools_of_one_name_are_refused() -> None:
    """Which of them is meant cannot be said."""
    spec = ToolSpec(name="t", description="d", parameters=OBJECT)
    with pytest.raises(ContractError):
        index_catalog([spec, spec])

    assert index_catalog([spec]) == {"t": spec}


# ── policy ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pattern", "covered", "not_covered"),
    [
        ("web.*", ["web.search"], ["web:read", "web", "xweb.search"]),
        ("web:*", ["web:read"], ["web.search"]),
        ("t?", ["t1"], ["t", "t12"]),
        ("*", ["a", "a:b", "a.b"], []),
        ("t:x", ["t:x"], ["t:xy", "T:x"]),
    ],
)
def test_a_glob_covers_what_it_says(
    pattern: str, covered: list[str], not_covered: list[str]
) -> None:
    """A star is anything, a question mark one character, a dot a dot."""
    rule = ToolRule(tool=pattern, approval_class="deny")

    assert [rule.covers(name) for name in covered] == [True] * len(covered)
    assert [rule.covers(name) for name in not_covered] == [False] * len(not_covered)


@pytest.mark.parametrize("pattern", ["", "[ab]", "a b", "a\n", "(", 3])
def test_a_pattern_of_anything_else_is_refused(pattern: str) -> None:
    """It would look like a rule and cover nothing."""
    with pytest.raises(ContractError):
        ToolRule(tool=pattern, approval_class="deny")


@pytest.mark.parametrize("word", ["", "allow", "AUTO", None, True])
def test_an_unknown_class_is_refused(word: str) -> None:
    """Refused when the rule is made, not when a call comes."""
    with pytest.raises(ContractError):
        ToolRule(tool="t", approval_class=word)


classes = st.sampled_from(ApprovalClass)
rules = st.builds(
    ToolRule,
    tool=st.sampled_from(["*", "t:*", "t:a", "u"]),
    approval_class=classes,
    when=st.sampled_from([None, lambda a: "x" in a, lambda a: "x" not in a, lambda a: a["y"] == 1]),
)
STRICT = list(ApprovalClass)


@given(st.lists(rules, max_size=4), rules, st.sampled_from([{}, {"x": 1}, {"y": 1}]))
def test_a_further_rule_never_allows_more_and_order_does_not_matter(
    held: list[ToolRule], more: ToolRule, arguments: dict[str, Json]
) -> None:
    """Deny beats approval beats allow."""

    def strictness(given_rules: list[ToolRule]) -> int:
        covering = [rule for rule in given_rules if rule.covers("t:a")]
        return STRICT.index(classify_call(covering, "t:a", arguments).approval_class)

    assert strictness([*held, more]) >= strictness(held)
    assert strictness(held) == strictness(held[::-1])


def test_a_policys_digest_is_that_of_its_rules() -> None:
    """Any change of a rule is another policy."""
    policies = [
        ToolPolicy(),
        ToolPolicy([ToolRule(tool="t", approval_class="deny")]),
        ToolPolicy([ToolRule(tool="t", approval_class="auto")]),
        ToolPolicy([ToolRule(tool="t", approval_class="deny", reason="x")]),
        ToolPolicy([ToolRule(tool="t", approval_class="deny", when=bool)]),
    ]

    assert len({policy.sha256 for policy in policies}) == len(policies)
    with pytest.raises(ContractError):
        # The fault at hand.
        ToolPolicy(["t"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "field",
    [
        {"max_steps": None}, {"max_steps": True}, {"max_steps": -1}, {"max_turns": 1.5}, {"max_turns": "3"},
        {"max_duration_seconds": float("nan")}, {"max_duration_seconds": None}, {"max_parallel": 0},
        {"max_parallel": UNLIMITED}, {"max_refused": -1}, {"max_consecutive_refused": 0}, {"per_tool": {"t": None}},
        {"per_tool": []}, {"tool_policy": None}, {"approval_seconds": -1}, {"wrap_up": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_contract_with_what_is_no_limit_cannot_be_made(field: dict[str, object]) -> None:
    """The error names the field."""
    with pytest.raises(ContractError) as refused:
        # The fault at hand.
        TaskContract(**field)  # type: ignore[arg-type]

    assert next(iter(field)).split(".")[0] in refused.value.path


def test_the_defaults_of_a_contract_are_the_documented_ones() -> None:
    """Fifty steps, twenty turns, ten minutes, four at once, three days for a person."""
    contract = TaskContract()

    assert (contract.max_steps, contract.max_turns, contract.max_duration_seconds) == (50, 20, 600)
    assert (contract.max_parallel, contract.refused_limit, contract.approval_seconds) == (
        4,
        100,
        259_200,
    )
    assert TaskContract(max_steps=UNLIMITED).refused_limit == UNLIMITED


# ── decisions ───────────────────────────────────────────────────────────────────────────────────

DECISION: dict[object, object] = {"request_id": "apr-1", "verdict": "approve", "decided_by": "p"}


def test_a_decision_is_read_from_its_fields() -> None:
    """And from nothing else."""
    assert parse_decision({**DECISION, "reason": "r"}) == Decision(
        request_id="apr-1", verdict=Verdict.APPROVE, decided_by="p", reason="r"
    )


@pytest.mark.parametrize(
    "value",
    [
        None, [], "approve", {}, {**DECISION, "tool": "t:other"}, {**DECISION, "arguments": {}}, {**DECISION, 1: "x"},
        {**DECISION, "verdict": "yes"}, {**DECISION, "verdict": True}, {**DECISION, "request_id": 7},
        {**DECISION, "reason": None}, {k: v for k, v in DECISION.items() if k != "decided_by"},
    ],
    ids=str,
)  # fmt: skip
def test_a5_a_decision_with_anything_else_is_refused(value: object) -> None:
    """Another tool or other arguments are refused, not trimmed."""
    with pytest.raises(DecisionRefused):
        parse_decision(value)


@given(json_values)
def test_reading_a_decision_is_total(value: object) -> None:
    """A decision, or DecisionRefused."""
    try:
        parse_decision(value)
    except DecisionRefused:
        return


@given(st.dictionaries(texts, texts))
def test_the_digest_of_arguments_does_not_depend_on_order(arguments: dict[str, Json]) -> None:
    """It is over sorted keys."""
    assert digest_arguments(arguments) == digest_arguments(dict(reversed(arguments.items())))


# ── tables and errors ───────────────────────────────────────────────────────────────────────────


def test_every_code_of_an_event_has_a_row() -> None:
    """And the last letter says what kind it is."""
    assert set(EVENT_ROWS) == set(EventCode)
    assert {code[-1] for code in EventCode} <= set("ADOE")
    assert all(row.meaning and row.advice for row in EVENT_ROWS.values())


def test_every_rule_of_a_denial_has_one_code() -> None:
    """R4 to R13, each once."""
    rules = [rule for row in EVENT_ROWS.values() for rule in row.rules]

    assert sorted(f"R{number}" for number in range(4, 14)) == sorted(rules)


def test_every_error_has_one_root() -> None:
    """A caller can catch what this package raises by one name."""

    def below(kind: type[BaseException]) -> set[str]:
        return {kind.__name__}.union(*(below(child) for child in kind.__subclasses__()))

    assert {"AuditError", "LogLocked", "StoreError", "StateRefused", "ModelError"} <= below(
        RuntimePackError
    )


@pytest.mark.parametrize("text", ["", "a b", "ä", "x" * 17, "a\n", "\ud800"])
def test_what_is_no_word_enters_the_log_as_a_digest(text: str) -> None:
    """Names that a model made up may be a page's words."""
    assert log_word(text).startswith("sha256:")
    assert log_word("web:search") == "web:search"


@pytest.mark.parametrize("code", ["", "sk-live-1234", "Ab", "A" * 25, "A__B", "A\n", "12"])
def test_a_code_of_a_tool_that_is_no_word_in_capitals_enters_the_log_as_a_digest(code: str) -> None:
    """A tool that puts a key into its code does not put it into the log."""
    output = attrs.evolve(refusal("X", "no"), code=code)
    record = StepRecord(
        step="s", tool="t", call_id="c", admitted=False, executed=Executed.NO, code=code
    )

    assert str(step_finished({}, record, output).object["code"]).startswith("sha256:")
    assert str(step_refused({}, record).object["code"]).startswith("sha256:")
    assert {log_code(word) for word in (*CallCode, *WebErrorCode)} == {*CallCode, *WebErrorCode}


def test_a_tool_that_there_is_not_is_not_named_in_the_log() -> None:
    """The model may have written anything there, a key too."""
    record = StepRecord(
        step="s",
        tool="hunter2",
        call_id="c",
        admitted=False,
        executed=Executed.NO,
        code=CallCode.UNKNOWN_TOOL,
    )

    assert str(step_refused({}, record).object["tool"]).startswith("sha256:")


def test_records_cannot_be_changed() -> None:
    """Values are values."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        # The fault at hand.
        Label().integrity = Integrity.USER  # type: ignore[misc]


def test_a_label_written_in_words_is_the_label_of_the_enum() -> None:
    """What is equal is identical, and a word that is none is refused."""
    word: Any = str
    plain = Label(integrity=word("external"), confidentiality=word("secret"))

    assert plain.integrity is Integrity.EXTERNAL
    assert plain.confidentiality is Confidentiality.SECRET
    with pytest.raises(ValueError, match="trusted"):
        Label(integrity=word("trusted"))


def test_the_words_of_a_tool_are_those_of_their_enums() -> None:
    """A plain word has the same effect as the member; one that is none is named."""
    word: Any = str
    fields: dict[str, Any] = {"name": "t", "description": "", "parameters": {"type": "object"}}

    spec = ToolSpec(output_trust=word("external"), effects=word("once"), **fields)

    assert spec.floor_label == UNLABELLED
    assert spec.effects is Effects.ONCE
    with pytest.raises(ContractError, match="output_trust"):
        ToolSpec(output_trust=word("high"), **fields)
    with pytest.raises(ContractError, match="effects"):
        ToolSpec(effects=word("none"), **fields)


def test_what_is_kept_takes_as_much_memory_as_it_needs() -> None:
    """The bytes are equal and of their own: not the encoder's object with its large buffer."""
    encoded = orjson.dumps({"a": "b"})
    kept = own_copy(encoded)

    assert kept == encoded
    assert kept is not encoded


def test_an_output_that_is_shown_otherwise_keeps_everything_else() -> None:
    """It is copied field by field: one that is added later must not be forgotten."""
    values: dict[str, Any] = {
        "ok": False, "text": "a", "data": {"a": 1}, "code": "CODE", "label": CLEAN,
        "provenance": ("p",), "citations": ("c",), "executed": Executed.NO, "retryable": True,
        "framed": False, "turn": Turn(status=TurnStatus.REPLY), "found": ("f",), "links": ("l",),
        "bits": 1.0, "fences": ({"signals": ()},),
    }  # fmt: skip
    assert set(values) == {field.name for field in attrs.fields(ToolOutput)}
    shown = ToolOutput(**values).shown_as("b", UNLABELLED, framed=True)

    # What was said of a text says nothing of another.
    changed = {"text": "b", "label": UNLABELLED, "framed": True, "fences": ()}
    assert {name: getattr(shown, name) for name in values} == values | changed
    assert ToolOutput(**values).shown_as("a", CLEAN, framed=True).fences == values["fences"]
