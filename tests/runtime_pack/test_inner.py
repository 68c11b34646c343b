"""Values whose class is completed with the first of them are what attrs would have made at once."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import weakref
from typing import Any

import attrs
import pytest

from runtime_pack.inner import changing, frozen, inner
from runtime_pack.messages import ToolCall


def _doubled(number: int) -> int:
    return 2 * number


@frozen(kw_only=True)
class Shape:
    """A value with all that a value can have."""

    name: str
    size: int = attrs.field(default=1, converter=_doubled)
    marks: list[str] = attrs.field(factory=list)
    hidden: object = attrs.field(default=None, eq=False, repr=False)
    seen: bool = attrs.field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "seen", True)

    @property
    def area(self) -> int:
        """Something that is asked of it."""
        return self.size**2


@frozen(kw_only=True)
class Named(Shape):
    """One that stands on another."""

    title: str = "none"


@inner
class Pair:
    """One of ours."""

    first: int
    second: int = 0


@changing(kw_only=True)
class Tally:
    """One whose fields are set again."""

    name: str
    count: int = 0
    seen: list[str] = attrs.field(factory=list)


@frozen
class Told:
    """One that says itself what it looks like."""

    word: str

    def __repr__(self) -> str:
        return "told"


@frozen(kw_only=True)
class Long:
    """One of which there are many, with fields of each kind."""

    name: str
    size: int = attrs.field(default=1, converter=_doubled)
    marks: list[str] = attrs.field(factory=list)
    hidden: object = attrs.field(default=None, eq=False, repr=False)


class Longer(Long):
    """A host's own kind of it, which has no slots."""


def _many(kind: type[Long]) -> Long:
    return [kind(name="a", size=3) for _ in range(40)][-1]


@pytest.mark.parametrize("kind", [Long, Longer])
def test_the_hundredth_value_of_a_class_is_like_the_first(kind: type[Long]) -> None:
    """Once many were made they are begun in another way, and nothing else of them is another."""
    first = kind(name="a", size=3)
    made = _many(kind)

    assert type(made) is kind
    assert (made.name, made.size, made.marks, made.hidden) == ("a", 6, [], None)
    assert (made, repr(made), hash(made.name)) == (first, repr(first), hash(first.name))
    assert made.marks is not kind(name="a").marks
    assert kind(name="b", marks=["x"]).marks == ["x"]
    assert attrs.evolve(made, size=5).size == 10
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
    assert weakref.ref(made)() is made
    make: Any = kind
    changed: Any = made
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        changed.size = 4
    with pytest.raises(TypeError, match="missing"):
        make()
    with pytest.raises(TypeError, match="unexpected"):
        make(name="a", other=1)


def test_a_value_whose_field_cannot_be_converted_is_not_made() -> None:
    """Nothing that can be changed is left of it, in either way of beginning."""
    _many(Long)
    make: Any = Long
    for _ in range(2):
        with pytest.raises(TypeError):
            make(name="a", size=None)


def test_a_value_has_defaults_converters_and_what_comes_after() -> None:
    """The first of a class as every later one."""
    for _ in range(2):
        made = Shape(name="a", size=3)

        assert (6, 36, [], True) == (made.size, made.area, made.marks, made.seen)
        assert not hasattr(made, "__dict__")


def test_a_value_is_equal_to_its_like_alone() -> None:
    """Same class, same compared fields; what is not compared makes no difference."""
    assert Shape(name="a", hidden=1) == Shape(name="a", hidden=2)
    assert Shape(name="a") != Shape(name="b")
    assert Named(name="a") != Shape(name="a")
    assert hash(Pair(1)) == hash(Pair(1, 0))
    other: object = (1, 0)
    assert other != Pair(1)


def test_a_value_is_shown_by_its_fields() -> None:
    """A hidden field is not shown, and a class that shows itself is let be."""
    assert repr(Pair(1)) == "Pair(first=1, second=0)"
    assert repr(Shape(name="a", hidden="key")) == "Shape(name='a', size=2, marks=[], seen=True)"
    assert repr(Told("x")) == "told"


def test_a_changing_value_is_set_again_and_has_no_hash() -> None:
    """Its likeness is that of its fields as they are now; so it cannot be a key."""
    one, other = Tally(name="a"), Tally(name="a")
    assert one == other

    one.count += 1
    one.seen.append("x")

    assert one != other
    assert repr(one) == "Tally(name='a', count=1, seen=['x'])"
    assert other.seen == []
    assert attrs.evolve(one, count=0, seen=[]) == other
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_a_frozen_value_stays_as_it_is() -> None:
    """Neither a field nor anything else is set or deleted."""
    made: Any = Shape(name="a")

    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.name = "b"
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        del made.name
    assert weakref.ref(made)() is made


def test_the_fields_are_known_before_the_first_value() -> None:
    """To whoever asks attrs for them, as for any other class."""

    @frozen(kw_only=True)
    class Fresh:
        word: str
        number: int = 3

    assert [field.name for field in attrs.fields(Fresh)] == ["word", "number"]
    assert attrs.asdict(attrs.evolve(Fresh(word="a"), word="b")) == {"word": "b", "number": 3}
    assert [field.name for field in attrs.fields(Named)][-1] == "title"


def test_a_missing_or_unknown_argument_is_named() -> None:
    """The first of a class is refused as any other."""

    @frozen(kw_only=True)
    class Fresh:
        word: str

    make: Any = Fresh
    with pytest.raises(TypeError, match="word"):
        make()
    with pytest.raises(TypeError, match="other"):
        make(word="a", other=1)


def test_a_value_is_copied_and_stored() -> None:
    """Also where nobody has made one of its class before."""
    call = ToolCall(id="c1", name="look", arguments={"a": 1})
    made = Named(name="a", marks=["x"], title="t")
    stored = pickle.dumps(call)
    script = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()))"

    read = subprocess.run(
        [sys.executable, "-c", script], input=stored, capture_output=True, check=True
    )

    assert copy.deepcopy(made) == made
    assert copy.copy(made).marks is made.marks
    assert read.stdout.decode().strip() == repr(call)


def test_a_value_is_matched_by_place_and_name() -> None:
    """As the class lists its fields."""
    match Pair(1, 2):
        case Pair(first, second=second):
            assert (first, second) == (1, 2)
