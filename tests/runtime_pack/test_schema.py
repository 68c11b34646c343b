"""The schema subset: what it checks, what it refuses to compile, and where a fault is."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_pack.schema import SchemaError, compile_schema


def faults(properties: Mapping[str, object], value: object, *required: str) -> list[str]:
    check = compile_schema({"type": "object", "properties": properties, "required": [*required]})
    return [f"{fault.path} {fault.problem}" for fault in check(value)]


CASES = {
    "a string": ({"type": "string"}, "x", 1),
    "an integer": ({"type": "integer"}, 1, 1.5),
    "an integer written with a point": ({"type": "integer"}, 1.0, float("nan")),
    "an integer is no boolean": ({"type": "integer"}, 0, False),
    "a number": ({"type": "number"}, 1.5, "1"),
    "a number is no boolean": ({"type": "number"}, 1, True),
    "a boolean": ({"type": "boolean"}, True, 1),
    "null": ({"type": "null"}, None, 0),
    "one of two": ({"type": ["string", "null"]}, None, 1),
    "an array": ({"type": "array"}, [1], "x"),
    "items": ({"type": "array", "items": {"type": "string"}}, ["x"], ["x", 1]),
    "an object": ({"type": "object"}, {}, []),
    "enum": ({"enum": ["day", "week"]}, "day", "month"),
    "enum without booleans": ({"enum": [1, 0]}, 1, True),
    "enum of lists without booleans": ({"enum": [[1]]}, [1], [True]),
    "enum of objects without booleans": ({"enum": [{"a": 1}]}, {"a": 1}, {"a": True}),
    "const": ({"const": "x"}, "x", "y"),
    "minimum": ({"type": "integer", "minimum": 1}, 1, 0),
    "maximum": ({"type": "integer", "maximum": 20}, 20, 21),
    "minLength": ({"type": "string", "minLength": 1}, "x", ""),
    "maxLength": ({"type": "string", "maxLength": 2}, "xx", "xxx"),
    "minItems": ({"type": "array", "minItems": 1}, [1], []),
    "maxItems": ({"type": "array", "maxItems": 1}, [1], [1, 2]),
    "nested": ({"type": "object", "properties": {"b": {"type": "string"}}}, {"b": "x"}, {"b": 1}),
    "other members": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"b": 1},
        {"b": "x"},
    ),
    "a name that is no text": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"1": 1},
        {1: 1},
    ),
    "an object or null with other members": (
        {"type": ["object", "null"], "additionalProperties": {"type": "integer"}},
        None,
        {"b": "x"},
    ),
    "a tuple": (
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        [1, "x"],
        [1, 1],
    ),
    "unique": ({"type": "array", "uniqueItems": True}, [1, True, "1"], [1, 1.0]),
    "unique objects": (
        {"type": "array", "uniqueItems": True},
        [{"a": 1}, {"a": True}],
        [{"a": [1]}] * 2,
    ),
    "one of the alternatives": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, 1),
    "nested unknown": ({"type": "object", "properties": {}}, {}, {"b": 1}),
}


@pytest.mark.parametrize(("schema", "good", "bad"), CASES.values(), ids=CASES.keys())
def test_each_keyword_passes_the_good_and_faults_the_bad(
    schema: Mapping[str, object], good: object, bad: object
) -> None:
    """One fault, at the property."""
    assert faults({"a": schema}, {"a": good}) == []
    assert len(faults({"a": schema}, {"a": bad})) == 1
    assert faults({"a": schema}, {"a": bad})[0].startswith("/a")


def test_a_fault_says_where_it_is() -> None:
    """JSON pointers, escaped; every fault is listed."""
    schema = {"list/~": {"type": "array", "items": {"type": "string"}}, "b": {"type": "string"}}

    assert faults(schema, {"list/~": ["x", 1], "c": 1}, "b") == [
        "/b is required",
        "/list~1~0/1 must be string",
        "/c is not a parameter",
    ]


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_arguments_are_an_object(value: object) -> None:
    """Whatever else comes is one fault at the root."""
    assert faults({}, value) == [" must be object"]


@pytest.mark.parametrize(
    "schema",
    [
        {}, [], None, {"type": "array"}, {"type": ["object", "null"]}, {"type": "object", "pattern": "x"},
        {"type": "object", "additionalProperties": True}, {"type": "object", "required": ["x"]},
        {"type": "object", "required": "x"}, {"type": "object", "properties": {"a": {"type": "text"}}},
        {"type": "object", "properties": {"a": {"type": []}}}, {"type": "object", "properties": {"a": {"enum": []}}},
        {"type": "object", "properties": {"a": {"minimum": True}}}, {"type": "object", "properties": {"a": {"type": [["string"]]}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}}, {"type": "object", "properties": {"a": 1}},
        {"type": "object", "properties": {"a": {"type": "string", "required": ["b"]}}},
        {"type": "object", "additionalProperties": {"type": "text"}}, {"type": "object", "additionalProperties": None},
        {"type": "object", "properties": {"a": {"anyOf": []}}}, {"type": "object", "properties": {"a": {"anyOf": [1]}}},
        {"type": "object", "properties": {"a": {"prefixItems": []}}}, {"type": "object", "properties": {"a": {"uniqueItems": False}}},
        {"type": "object", "properties": {"a": {"prefixItems": [{}], "items": {}}}},
    ],
    ids=str,
)  # fmt: skip
def test_a_schema_that_nobody_would_enforce_does_not_compile(schema: Mapping[str, object]) -> None:
    """An unknown keyword would look like a rule."""
    with pytest.raises(SchemaError):
        compile_schema(schema)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
RICH = compile_schema(
    {
        "type": "object",
        "properties": {
            "": {
                "type": ["array", "string"],
                "items": {"type": "object", "properties": {"a": {"enum": [1, None, [0]]}}},
                "maxLength": 1,
            },
            "a": {"type": "number", "maximum": 3},
        },
        "required": ["a"],
    }
)


@given(values)
def test_checking_is_total(value: object) -> None:
    """Any value has a finite list of faults, and the same one twice."""
    assert RICH(value) == RICH(value)
    assert all(isinstance(fault.path, str) for fault in RICH(value))


@given(st.dictionaries(st.text(max_size=3), values, max_size=3))
def test_what_passes_has_only_known_members(value: dict[str, object]) -> None:
    """Unknown members never slip through."""
    if not RICH(value):
        assert set(value) <= {"", "a"}
        assert "a" in value


bounds = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("integer")},
        optional={"minimum": st.integers(-3, 3), "maximum": st.integers(-3, 3)},
    ),
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={"minLength": st.integers(0, 2), "maxLength": st.integers(0, 3)},
    ),
    st.just({"type": "boolean", "description": "a flag"}),
    st.sampled_from([{"type": "number"}, {"type": "integer", "enum": [1]}, {"type": "array"}, {}]),
)
values = st.one_of(
    st.integers(-4, 4), st.booleans(), st.text("ab", max_size=4), st.none(), st.just(1.0)
)


@given(st.dictionaries(st.sampled_from("abc"), bounds), st.data())
def test_what_is_looked_up_is_what_the_rules_say(
    properties: dict[str, dict[str, object]], data: st.DataObject
) -> None:
    """A schema whose members say all is checked by a table first; the rules alone say the same."""
    required = (
        data.draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    )
    schema = {"type": "object", "properties": properties, "required": required}
    arguments = data.draw(st.dictionaries(st.sampled_from("abcd"), values))
    # A further keyword at the top keeps the table out.
    by_rules = compile_schema({**schema, "anyOf": [{}]})

    assert by_rules(arguments) == compile_schema(schema)(arguments)


def test_a_keyword_beside_the_members_is_checked_too() -> None:
    """Also where every member fits, and where there is none."""
    wanted = {"type": "object", "properties": {"n": {"type": "integer"}}, "const": {"n": 1}}
    check = compile_schema(wanted)

    assert check({"n": 1}) == ()
    assert check({"n": 2}) != ()
    assert check({}) != ()
