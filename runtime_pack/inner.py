"""How the values of this package are made: as attrs makes them, when the first of a class is made.

What attrs writes for a class is source that is compiled, and there are a hundred classes of which a run
uses half. So a class has its slots at once, and the rest with its first value, or when somebody asks
for its fields. `__eq__`, `__hash__` and `__repr__` are written once, over the fields of any class.

`frozen` is for what hosts, tools and models are given. `inner` is for values that no code but ours ever
holds: frozen to the type checker, plain at run time. A frozen class sets each field through
`object.__setattr__`, and is three times as dear to make as one that is not. `changing` is for values
whose fields are set again; it has no hash, as a list has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from reprlib import recursive_repr
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

__all__ = ("NOTHING", "changing", "frozen", "inner", "without")

_V = TypeVar("_V")

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
"""What a run has of things that most runs never have: one for all of them, where they wait by the thousand.

Whoever adds to it puts a mapping of its own in its place.
"""


def without(mapping: Mapping[str, _V], key: str) -> Mapping[str, _V]:
    """The mapping without that key, which need not be in it; `NOTHING` when nothing is left."""
    if key not in mapping:
        return mapping
    return {name: mapping[name] for name in mapping if name != key} or NOTHING


def _compared(value: Any) -> tuple[object, ...]:
    return tuple([getattr(value, name) for name in value.__compared__])


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _compared(self) == _compared(other)


def _hash(self: Any) -> int:
    return hash((self.__class__, _compared(self)))


@recursive_repr()
def _shown(self: Any) -> str:
    parts = [f"{name}={getattr(self, name)!r}" for name in self.__shown__]
    return f"{self.__class__.__qualname__.rpartition('>.')[2]}({', '.join(parts)})"


_METHODS: Final = {"__eq__": _equal, "__hash__": _hash, "__repr__": _shown}
_UNHASHED: Final = {**_METHODS, "__hash__": None}
# These belong to the one class that Python made them for.
_BOUND: Final = frozenset({"__dict__", "__slots__", "__weakref__"})
# What an object begins with, by whichever of the two it is made.
_BEGINNINGS: Final = ("__init__", "__setstate__")


class _Seat:
    """The base of long frozen values: with its own place, weak references do not part their slots."""

    __slots__ = ("__weakref__",)


# From so many fields on, `__setattr__` takes longer than two changes of the class.
_MANY_FIELDS: Final = 4
# So many values are made before the source of a quicker beginning is compiled: a start makes fewer.
_FEW: Final = 24
# The class of what `attrs.Factory` gives, which is a function to the type checker.
_FACTORY: Final[Any] = type(attrs.Factory(list))


class _Fields:
    """The fields of a class that is not complete yet; to ask for them completes it."""

    def __init__(self, complete: Callable[[], Any]) -> None:
        self._complete = complete

    def __get__(self, value: object, owner: type) -> object:
        return attrs.fields(self._complete())


def _value(
    maker: Callable[..., Any],
    methods: Mapping[str, Any],
    given: Any = None,
    /,
    *,
    kw_only: bool = False,
) -> Any:
    """The class with its slots; without one, what makes it."""
    if given is None:
        return partial(_value, maker, methods, kw_only=kw_only)
    own = given.__dict__
    names = own.get("__annotations__", {})
    made: Any = None

    def complete() -> Any:
        """Give the class what attrs writes for it, and return that. Twice is as good as once."""
        twin = maker(given, kw_only=kw_only, eq=False, repr=False)
        fields = attrs.fields(twin)
        made.__compared__ = tuple([field.name for field in fields if field.eq])
        made.__shown__ = tuple([field.name for field in fields if field.repr])
        for name, thing in twin.__dict__.items():
            if name not in own and name not in names and name not in _BOUND:
                setattr(made, name, thing)
        if bases == (_Seat,):
            made.__init__ = _until_many(made, fields, kw_only=kw_only)
        return twin

    body = {name: own[name] for name in own if name not in names and name not in _BOUND}
    for name, method in methods.items():
        body.setdefault(name, method)
    body |= {name: _begins(complete, name) for name in _BEGINNINGS}
    body["__attrs_attrs__"] = _Fields(complete)
    bases = given.__bases__
    if maker is attrs.frozen and bases == (object,) and len(names) >= _MANY_FIELDS:
        bases = (_Seat,)
    known = any(hasattr(base, "__weakref__") for base in bases)
    body["__slots__"] = (*names, *(() if known else ("__weakref__",)))
    made = type(given)(given.__name__, bases, body)
    return made


def _until_many(made: Any, fields: tuple[Any, ...], *, kw_only: bool) -> Any:
    """Attrs' `__init__` for the first values of a class; of most there are no more."""
    slow, left = made.__init__, count(_FEW, -1)

    def begin(self: Any, *positional: Any, **named: Any) -> None:
        if next(left) == 0:
            made.__init__ = _quick(made, slow, fields, kw_only=kw_only)
        slow(self, *positional, **named)

    return begin


def _quick(made: Any, slow: Any, fields: tuple[Any, ...], *, kw_only: bool) -> Any:
    """An `__init__` that does what attrs' does; a value is of an open class until it has its fields.

    Attrs' own stays where a field is more than a name, a default and a function that converts it.
    """
    plain = all(each.init and each.alias == each.name and not each.validator for each in fields)
    if not plain or not kw_only or hasattr(made, "__attrs_post_init__"):
        return slow
    opened = type(made.__name__, made.__bases__, {"__slots__": made.__slots__})
    scope: dict[str, Any] = {
        "_made": made,
        "_opened": opened,
        "_slow": slow,
        "_none": attrs.NOTHING,
    }
    scope["_become"] = object.__dict__["__class__"].__set__
    given, steps = ["self", "*"], []
    each: Any
    for each in fields:
        name, value = each.name, each.name
        if each.default is attrs.NOTHING:
            given.append(name)
        elif isinstance(each.default, _FACTORY):
            given.append(f"{name}=_none")
            scope[f"_f_{name}"] = each.default.factory
            value = f"_f_{name}() if {name} is _none else {name}"
        else:
            scope[f"_d_{name}"] = each.default
            given.append(f"{name}=_d_{name}")
        if each.converter is not None:
            scope[f"_c_{name}"] = each.converter
            value = f"_c_{name}({value})"
        steps.append(f"    self.{name} = {value}")
    passed = ", ".join(f"{each.name}={each.name}" for each in fields)
    lines = (
        f"def __init__({', '.join(given)}):",
        f"    if self.__class__ is not _made: return _slow(self, {passed})",
        "    _become(self, _opened)",
        *steps,
        "    self.__class__ = _made",
    )
    # As attrs does: source of nothing but the names of our own fields.
    exec("\n".join(lines), scope)  # noqa: S102
    return scope["__init__"]


def _begins(complete: Callable[[], Any], name: str) -> Callable[..., None]:
    """The method for the first value of a class: it puts the one in its place that is for all others."""

    def begin(self: Any, *positional: Any, **named: Any) -> None:
        getattr(complete(), name)(self, *positional, **named)

    return begin


if TYPE_CHECKING:
    from attrs import define as changing
    from attrs import frozen
    from attrs import frozen as inner
else:
    frozen = partial(_value, attrs.frozen, _METHODS)
    inner = partial(_value, attrs.define, _METHODS)
    changing = partial(_value, attrs.define, _UNHASHED)
