"""Shapes: the schema of a type and the reading of its values say the same, for any type."""

from __future__ import annotations

import dataclasses
import enum
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict

import attrs
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from runtime_pack.errors import ContractError
from runtime_pack.host_tools import _as_json
from runtime_pack.shapes import Between, Misfit, Shape, Sized, shape_of, strict_check

Typed = tuple[Any, st.SearchStrategy[Any]]


class Colour(enum.Enum):
    RED = "red"
    TWO = 2
    YES = True
    NONE = None


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


WORDS = [None, True, False, 0, 1, 2.5, "a", "1", ""]
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS: list[Typed] = [
    (str, st.text(max_size=3)),
    (int, st.integers(-(2**63), 2**63) | st.integers(-9, 9).map(float)),
    (float, NUMBERS),
    (bool, st.booleans()),
    (None, st.none()),
    (Colour, st.sampled_from(["red", 2, 2.0, True, None])),
    (Level, st.sampled_from([1, 3.0])),
    (Annotated[int, Between(least=0, most=3)], st.integers(0, 3)),
    (Annotated[str, Sized(most=2), "told"], st.text(max_size=2)),
]
JSON = st.recursive(
    st.sampled_from([*WORDS, math.nan, math.inf, 10**400, 3.9, 3.0, "red", 2, 3])
    | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abx"), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def literals(draw: st.DrawFn) -> Typed:
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3, unique_by=repr))
    assume(len({(isinstance(w, bool), w) for w in words}) == len(words))
    assume(not any(isinstance(word, float) for word in words))
    return Literal[tuple(words)], st.sampled_from(words)


@st.composite
def unions(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    members = draw(st.lists(inner, min_size=1, max_size=3))
    generic: Any = typing.Union
    return generic[tuple(t for t, _ in members)], st.one_of([v for _, v in members])


@st.composite
def classes(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    fields = draw(
        st.dictionaries(st.sampled_from("abc"), st.tuples(inner, st.booleans()), max_size=3)
    )
    make = draw(st.sampled_from([attrs_class, data_class, typed_dict]))
    needed = {name: values for name, ((_, values), required) in fields.items() if required}
    others = {name: values for name, ((_, values), required) in fields.items() if not required}
    values = st.fixed_dictionaries(needed, optional=others)
    return make({name: (t, required) for name, ((t, _), required) in fields.items()}), values


def attrs_class(fields: Mapping[str, tuple[Any, bool]]) -> type:
    made = {
        name: attrs.field(type=t) if required else attrs.field(type=t, default=None)
        for name, (t, required) in fields.items()
    }
    return attrs.make_class("Thing", made, kw_only=True, frozen=True)


def data_class(fields: Mapping[str, tuple[Any, bool]]) -> type:
    made = [
        (name, t) if required else (name, t, dataclasses.field(default=None))
        for name, (t, required) in fields.items()
    ]
    return dataclasses.make_dataclass("Data", made, kw_only=True, frozen=True)


def typed_dict(fields: Mapping[str, tuple[Any, bool]]) -> type:
    made = {name: t if required else NotRequired[t] for name, (t, required) in fields.items()}
    # A functional form with a computed body is what the test is about.
    return TypedDict("Keys", made)  # type: ignore[operator, no-any-return]


def many(generic: Any, *rest: Any) -> Callable[[Typed], Typed]:
    return lambda one: (generic[(one[0], *rest)], st.lists(one[1], max_size=3))


def mapped(one: Typed) -> Typed:
    generic: Any = dict
    return generic[str, one[0]], st.dictionaries(st.text(max_size=2), one[1], max_size=3)


def fixed(parts: list[Typed]) -> Typed:
    generic: Any = tuple
    return generic[tuple(t for t, _ in parts)], st.tuples(*(v for _, v in parts)).map(list)


def holders(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.one_of(
        inner.map(many(list)),
        inner.map(many(Sequence)),
        inner.map(many(tuple, ...)),
        inner.map(many(frozenset)),
        inner.map(mapped),
        st.lists(inner, min_size=1, max_size=3).map(fixed),
        unions(inner),
        classes(inner),
    )


TYPES = st.recursive(st.sampled_from(SCALARS) | literals(), holders, max_leaves=5)


def shaped(annotation: object) -> Shape:
    try:
        return shape_of(annotation, "x")
    except ContractError:
        assume(False)
        raise


def admitted(shape: Shape, value: object) -> bool:
    return strict_check(shape)({"value": value}) == ()


def structured(shape: Shape, value: object) -> tuple[bool, Any]:
    try:
        return True, shape.structure(value, "")
    except Misfit:
        return False, None


@settings(max_examples=100, deadline=None)
@given(TYPES, st.data())
def test_what_the_schema_admits_is_structured_and_nothing_else(
    typed: Typed, data: st.DataObject
) -> None:
    """One walk makes both; a value that only one of them took would be a hole or a lie."""
    annotation, values = typed
    shape = shaped(annotation)
    value = data.draw(values | JSON)
    assume(not _is_beyond_json(value))

    assert admitted(shape, value) == structured(shape, value)[0]


def _is_beyond_json(value: object) -> bool:
    """Numbers that no JSON text carries here: the loop's parser has 64 bits and no NaN."""
    if isinstance(value, list):
        return any(map(_is_beyond_json, value))
    if isinstance(value, dict):
        return any(map(_is_beyond_json, value.values()))
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, int) and abs(value) > 2**64


@settings(max_examples=100, deadline=None)
@given(TYPES, st.data())
def test_a_value_survives_the_round_trip(typed: Typed, data: st.DataObject) -> None:
    """Structured, written out and structured again, it is written as the same value."""
    annotation, values = typed
    shape, value = shaped(annotation), data.draw(values)
    taken, first = structured(shape, value)
    assume(taken)

    written = _as_json(first)
    # What was left out comes back as the default, which a class may hold against its annotation:
    # refused then, or read as what the annotation makes of it.
    assume(admitted(shape, written))

    taken, second = structured(shape, written)
    assert (True, written) == (taken, _as_json(second))
    # A default of None is read as the one word of the enum whose value is None.
    assert first == second or "Colour.NONE" in repr(second)


COERCIONS: dict[str, tuple[Any, Any]] = {
    "None is no text": (str, None),
    "a number is no text": (str, 3),
    "3.9 is no integer": (int, 3.9),
    "a digit is no integer": (int, "3"),
    "true is no integer": (int, True),
    "true is no number": (float, True),
    "NaN is no number": (float, math.nan),
    "infinity is no number": (float, math.inf),
    "a number beyond doubles": (float, 10**400),
    "1 is not true": (bool, 1),
    "a text is no list": (list[str], "abc"),
    "an object is no list": (list[str], {"a": 1}),
    "two equal elements are no set": (set[int], [1, 1.0]),
    "a pair of three": (tuple[int, int], [1, 2, 3]),
    "true is not the word 1": (Literal[1], True),
    "1 is not the word true": (Literal[True], 1),
    "the name of a member is not its value": (Colour, "RED"),
    "a key that is no text": (dict[str, int], {1: 1}),
    "an integer for text or null": (str | None, 0),
}


@pytest.mark.parametrize(("annotation", "value"), COERCIONS.values(), ids=COERCIONS.keys())
def test_nothing_is_coerced(annotation: Any, value: Any) -> None:
    """What converters usually bend into the type is refused."""
    assert structured(shape_of(annotation, "x"), value) == (False, None)


@attrs.frozen
class Point:
    _x: int
    y: int = 0


class Pair(TypedDict):
    a: int
    b: NotRequired[str]


@dataclasses.dataclass
class Line:
    """A line.

    Not told.
    """

    ends: tuple[Point, Point]
    pairs: list[Pair] = dataclasses.field(default_factory=list)
    length: float = dataclasses.field(init=False, default=1.0)


def test_classes_nest() -> None:
    """Private fields go by their alias, what is not an argument of the constructor is no key."""
    shape = shape_of(Line, "line")

    line = shape.structure({"ends": [{"x": 1}, {"x": 2, "y": 3}], "pairs": [{"a": 1}]}, "")

    assert line == Line(ends=(Point(1), Point(2, 3)), pairs=[{"a": 1}])
    assert shape.schema["description"] == "A line."
    assert set(typing.cast("Mapping[str, Any]", shape.schema["properties"])) == {"ends", "pairs"}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"ends": [{"x": 1}, {"x": "2"}]}, "/ends/1/x"),
        ({"ends": [{"x": 1}, {"x": 2, "_x": 2}]}, "/ends/1/_x"),
        ({"ends": [{"x": 1}, {}]}, "/ends/1/x"),
        ({"ends": [{"x": 1}, {"x": 1}], "length": 2.0}, "/length"),
        ({"ends": [{"x": 1}, {"x": 1}], "pairs": [{"a": 1, "c/~": 1}]}, "/pairs/0/c~1~0"),
    ],
)
def test_a_misfit_says_where(value: Any, path: str) -> None:
    """As a JSON pointer, as the schema's faults do."""
    shape = shape_of(Line, "line")

    with pytest.raises(Misfit) as caught:
        shape.structure(value, "")

    assert path == caught.value.path
    assert [f.path for f in strict_check(shape)({"value": value})] == [f"/value{path}"]


class Picky:
    pass


@attrs.frozen
class Even:
    n: int = attrs.field()

    @n.validator
    def _check(self, _attribute: object, value: int) -> None:
        if value % 2:
            raise ValueError("the password is hunter2")


def test_what_a_class_refuses_is_a_misfit_without_its_words() -> None:
    """The text of a validator is the host's."""
    with pytest.raises(Misfit) as caught:
        shape_of(list[Even], "x").structure([{"n": 2}, {"n": 3}], "/x")

    assert caught.value.path == "/x/1"
    assert caught.value.problem == "was refused by Even (ValueError)"


T = typing.TypeVar("T")


@attrs.frozen
class Box(typing.Generic[T]):
    held: T


@attrs.frozen
class Tree:
    children: list[Tree]


Unwritten = attrs.make_class("Unwritten", ["x"])


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Empty(enum.Enum):
    pass


class Odd(enum.Enum):
    THING = (1, 2)


class Named(NamedTuple):
    x: int


@dataclasses.dataclass
class Initial:
    x: dataclasses.InitVar[int]


@pytest.mark.parametrize(
    "annotation",
    [
        Any, object, list, dict, tuple, set, bytes, complex, Callable[[], int], type, type[int], T, Box, Box[int], Tree,
        Unwritten, Access, Empty, Odd, Named, Initial, Picky, tuple[()], dict[int, int], set[list[int]], set[int | bool],
        set[Point], str | Colour, Point | Pair, list[int] | set[int], Literal[b"x"], Literal["red", Colour.RED],
        Annotated[int, "told", 5], Annotated[int, Sized(most=1)], Annotated[str, Between(most=1)],
        "Undefined", 5, Annotated[str | list[int], Sized(most=1)],
    ],
    ids=str,
)  # fmt: skip
def test_what_no_schema_holds_is_refused(annotation: Any) -> None:
    """With the parameter's name: a type that looks checked and is not would be the worst."""
    with pytest.raises(ContractError) as caught:
        shape_of(annotation, "place")

    assert caught.value.path.startswith("place")


Number = NewType("Number", int)


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (Number, {"type": "integer"}),
        (int | float, {"type": "number"}),
        (int | float | None, {"type": ["number", "null"]}),
        (Literal["a"] | None, {"enum": ["a", None]}),
        (Literal["a"] | int, {"anyOf": [{"enum": ["a"]}, {"type": "integer"}]}),
        (str | int | None, {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}),
        (Annotated[int, Between(least=1)] | None, {"type": ["integer", "null"], "minimum": 1}),
        (list[int] | None, {"type": ["array", "null"], "items": {"type": "integer"}}),
    ],
    ids=str,
)
def test_schemas_are_as_plain_as_they_can_be(annotation: Any, schema: Mapping[str, Any]) -> None:
    """`anyOf` only where nothing plainer says it."""
    assert schema == shape_of(annotation, "x").schema


@given(st.sampled_from([1, 1.5, 2.0]))
@example(2)
def test_either_number_stays_what_it_was(number: float) -> None:
    """`int | float` is JSON's number: nothing is converted."""
    read = shape_of(int | float, "x").structure(number, "")

    assert read == number
    assert type(read) is type(number)


@pytest.mark.parametrize(
    ("kind", "bounds"),
    [
        *((Between, bounds) for bounds in (
            {"least": float("nan")}, {"most": float("inf")}, {"least": 5, "most": 1},
            {"least": True}, {"most": "3"},
        )),
        *((Sized, bounds) for bounds in (
            {"least": -1}, {"most": True}, {"least": 2, "most": 1}, {"most": 1.5},
        )),
    ],
)  # fmt: skip
def test_bounds_that_nothing_lies_between_are_refused(kind: Any, bounds: dict[str, Any]) -> None:
    """Where they are written, not when the model first calls the tool."""
    with pytest.raises(ContractError, match=kind.__name__):
        kind(**bounds)
