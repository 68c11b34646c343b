"""From a Python type to a JSON Schema and to the strict reading of values of that schema.

One walk over the type makes both, so that they cannot disagree: what the schema admits is
structured, and everything else is refused. Nothing is coerced: a text is no number, 3.9 is no
integer, an object with one key too many is no object of the class. A type that a schema cannot
hold (`Any`, a bare `list`, a union whose members look alike, a recursive class) is a
`ContractError` that names the parameter. Nothing here does I/O.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs

from runtime_pack.errors import ContractError
from runtime_pack.inner import frozen
from runtime_pack.messages import Json
from runtime_pack.schema import Check, SchemaError, compile_schema

__all__ = ("Between", "Misfit", "Shape", "Sized", "shape_of", "strict_check")


class Misfit(ValueError):
    """A value is not of its shape: `path` is a JSON pointer, `problem` says why."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path or '/'} {problem}")
        self.path = path
        self.problem = problem


@frozen(kw_only=True)
class Between:
    """In `Annotated`: the bounds of a number, both included.

    Raises:
        ContractError: a bound is no finite number, or no number lies between them.
    """

    least: float | None = None
    most: float | None = None

    def __attrs_post_init__(self) -> None:
        for bound in (self.least, self.most):
            given: object = bound
            is_number = isinstance(given, int | float) and not isinstance(given, bool)
            if bound is not None and not (is_number and math.isfinite(bound)):
                raise ContractError("Between", f"{bound!r:.40} is not a bound")
        _refuse_crossed(self)


@frozen(kw_only=True)
class Sized:
    """In `Annotated`: the bounds of a text's length in characters, or of a list's elements.

    Raises:
        ContractError: a bound is no whole number from 0, or no length lies between them.
    """

    least: int | None = None
    most: int | None = None

    def __attrs_post_init__(self) -> None:
        for bound in (self.least, self.most):
            if bound is not None and (type(bound) is not int or bound < 0):
                raise ContractError("Sized", f"{bound!r:.40} is not a length")
        _refuse_crossed(self)


def _refuse_crossed(bounds: Between | Sized) -> None:
    if bounds.least is not None and bounds.most is not None and bounds.least > bounds.most:
        raise ContractError(type(bounds).__name__, f"{bounds.least} is above {bounds.most}")


Structure: TypeAlias = Callable[[object, str], Any]
"""From a JSON value and its place to the Python value; raises `Misfit`."""


@frozen(kw_only=True)
class Shape:
    """One type: its schema, the kinds of JSON value that it takes, and how they are read."""

    schema: Mapping[str, Json]
    kinds: frozenset[str]
    structure: Structure


_QUALIFIERS: Final = (typing.Required, typing.NotRequired, typing.Final)
_SEQUENCES: Final[Mapping[object, Callable[[list[Any]], object]]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: tuple,
    collections.abc.Collection: tuple,
    collections.abc.Iterable: tuple,
    collections.abc.Set: frozenset,
}
_MAPPINGS: Final = (dict, collections.abc.Mapping)
_SETS: Final = (set, frozenset, collections.abc.Set)
_SIZES: Final[Mapping[str, tuple[str, str]]] = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
}


def strict_check(shape: Shape) -> Check:
    """The check of one value of the shape, wrapped as the only member `value` of an object."""
    return compile_schema(
        {"type": "object", "properties": {"value": shape.schema}, "required": ["value"]}
    )


def shape_of(annotation: object, path: str) -> Shape:
    """The shape of a type; *path* is the parameter, for errors.

    Raises:
        ContractError: a schema cannot hold the type.
    """
    return _shape(annotation, path, ())


def _shape(annotation: Any, path: str, above: tuple[type, ...]) -> Shape:
    annotation = _bare(annotation)
    scalar = _SCALARS.get(annotation) if _is_hashable(annotation) else None
    if scalar is not None:
        return scalar
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _annotated(annotation, path, above)
    if origin is typing.Literal:
        return _words(arguments, path)
    if origin in {typing.Union, types.UnionType}:
        return _union(arguments, path, above)
    if origin is tuple:
        return _tuple(arguments, path, above)
    if origin in _SEQUENCES:
        return _sequence(origin, arguments, path, above)
    if origin in _MAPPINGS:
        return _mapping(arguments, path, above)
    if origin is None and isinstance(annotation, type):
        return _class(annotation, path, above)
    raise ContractError(path, f"a schema cannot hold {_named(annotation)}")


def _bare(annotation: Any) -> Any:
    """The type without what only names or qualifies it."""
    while True:
        if isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        # `type X = …` of Python 3.12.
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        elif typing.get_origin(annotation) in _QUALIFIERS:
            (annotation,) = typing.get_args(annotation)
        else:
            return annotation


def _is_hashable(value: object) -> bool:
    return isinstance(value, collections.abc.Hashable)


def _named(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


# ── scalars ───────────────────────────────────────────────────────────────────────────────────


def _text(value: object, path: str) -> str:
    if type(value) is str:
        return value
    raise Misfit(path, "must be string")


def _boolean(value: object, path: str) -> bool:
    if type(value) is bool:
        return value
    raise Misfit(path, "must be boolean")


def _integer(value: object, path: str) -> int:
    if type(value) is int:
        return value
    # JSON has one kind of number: 5.0 is an integer to every schema.
    if type(value) is float and value.is_integer():
        return int(value)
    raise Misfit(path, "must be integer")


def _number(value: object, path: str) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise Misfit(path, "is too large a number") from None
    raise Misfit(path, "must be number")


def _either_number(value: object, path: str) -> float:
    return value if type(value) is int else _number(value, path)


def _nothing(value: object, path: str) -> None:
    if value is not None:
        raise Misfit(path, "must be null")


def _scalar(word: str, kind: str, structure: Structure) -> Shape:
    return Shape(schema={"type": word}, kinds=frozenset({kind}), structure=structure)


_EITHER_NUMBER: Final = _scalar("number", "number", _either_number)
_SCALARS: Final[Mapping[object, Shape]] = {
    str: _scalar("string", "string", _text),
    bool: _scalar("boolean", "boolean", _boolean),
    int: _scalar("integer", "number", _integer),
    float: _scalar("number", "number", _number),
    None: _scalar("null", "null", _nothing),
    type(None): _scalar("null", "null", _nothing),
}


# ── words ─────────────────────────────────────────────────────────────────────────────────────


def _kind(value: object, path: str) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise ContractError(path, f"{value!r} is not JSON")
    for kind, held in _KINDS.items():
        if type(value) in held:
            return kind
    raise ContractError(path, f"a schema cannot hold the value {value!r:.60}")


_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
    "null": (type(None),),
}


def _plain(member: object) -> object:
    """The stored word of an enum's member; `IntEnum` and `StrEnum` members are plain values too."""
    return member.value if isinstance(member, enum.Enum) else member


def _words(members: tuple[object, ...], path: str) -> Shape:
    """`Literal` and enums: these values and no other."""
    table: dict[tuple[str, object], object] = {}
    for member in members:
        word = _plain(member)
        key = _kind(word, path), word
        if key in table:
            raise ContractError(path, f"{word!r:.60} stands for two values")
        table[key] = member
    if not table:
        raise ContractError(path, "has no values")
    words: list[Any] = [word for _, word in table]

    def structure(value: object, place: str) -> object:
        for kind, held in _KINDS.items():
            if type(value) in held and (kind, value) in table:
                return table[kind, value]
        raise Misfit(place, f"must be one of: {', '.join(map(str, words))}")

    kinds = frozenset(kind for kind, _ in table)
    return Shape(schema={"enum": words}, kinds=kinds, structure=structure)


# ── what holds other types ────────────────────────────────────────────────────────────────────


def _annotated(annotation: Any, path: str, above: tuple[type, ...]) -> Shape:
    shape = _shape(annotation.__origin__, path, above)
    for note in annotation.__metadata__:
        added = _note(note, shape, path)
        try:
            check = strict_check(attrs.evolve(shape, schema={**shape.schema, **added}))
        except SchemaError as error:
            raise ContractError(path, str(error)) from error
        shape = _narrowed(shape, added, check)
    return shape


def _narrowed(shape: Shape, added: Mapping[str, Json], check: Check) -> Shape:
    inner = shape.structure

    def structure(value: object, path: str) -> Any:
        for fault in check({"value": value}):
            raise Misfit(path + fault.path.removeprefix("/value"), fault.problem)
        return inner(value, path)

    return attrs.evolve(shape, schema={**shape.schema, **added}, structure=structure)


def _note(note: object, shape: Shape, path: str) -> dict[str, Json]:
    """What an annotation adds to the schema. A note that nobody would enforce is refused."""
    if isinstance(note, str):
        return {"description": note}
    bounds: dict[str, Json]
    if isinstance(note, Between) and "number" in shape.kinds:
        bounds = {"minimum": note.least, "maximum": note.most}
    elif isinstance(note, Sized) and len(shape.kinds & _SIZES.keys()) == 1:
        (kind,) = shape.kinds & _SIZES.keys()
        bounds = dict(zip(_SIZES[kind], (note.least, note.most), strict=True))
    else:
        raise ContractError(path, f"the note {type(note).__name__} cannot be enforced here")
    return {key: bound for key, bound in bounds.items() if bound is not None}


def _union(members: tuple[object, ...], path: str, above: tuple[type, ...]) -> Shape:
    if set(members) >= {int, float}:
        members = (*(m for m in members if m not in {int, float}), _EITHER_NUMBER)
    shapes = [m if isinstance(m, Shape) else _shape(m, path, above) for m in members]
    if len(shapes) == 1:
        return shapes[0]
    kinds = [kind for shape in shapes for kind in shape.kinds]
    if len(set(kinds)) < len(kinds):
        problem = "members of a union look alike in JSON: nothing says which is meant"
        raise ContractError(path, problem)

    def structure(value: object, place: str) -> object:
        kind = _json_kind(value)
        for shape in shapes:
            if kind in shape.kinds:
                return shape.structure(value, place)
        raise Misfit(place, "fits none of the alternatives")

    schema = _nullable(shapes) or {"anyOf": [shape.schema for shape in shapes]}
    return Shape(schema=schema, kinds=frozenset(kinds), structure=structure)


def _nullable(shapes: list[Shape]) -> dict[str, Json] | None:
    """`X | None` without `anyOf`, which fewer providers take; None when that is not the case."""
    others = [shape for shape in shapes if shape.kinds != {"null"}]
    if len(others) != 1 or len(shapes) != 2:
        return None
    schema = dict(others[0].schema)
    if "enum" in schema:
        return {**schema, "enum": [*typing.cast("list[Json]", schema["enum"]), None]}
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    return None


def _json_kind(value: object) -> str:
    if isinstance(value, Mapping):
        return "object"
    if isinstance(value, list | tuple):
        return "array"
    return next((kind for kind, held in _KINDS.items() if type(value) in held), "")


def _tuple(arguments: tuple[Any, ...], path: str, above: tuple[type, ...]) -> Shape:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return _array(_shape(arguments[0], path, above), tuple)
    if not arguments or arguments == ((),):
        raise ContractError(path, "a tuple needs the types of its elements")
    shapes = [_shape(argument, path, above) for argument in arguments]
    size = len(shapes)

    def structure(value: object, place: str) -> tuple[Any, ...]:
        items = _elements(value, place)
        if len(items) != size:
            raise Misfit(place, f"must have {size} elements")
        pairs = zip(shapes, items, strict=True)
        return tuple(shape.structure(item, f"{place}/{i}") for i, (shape, item) in enumerate(pairs))

    schema: dict[str, Json] = {
        "type": "array",
        "prefixItems": [shape.schema for shape in shapes],
        "minItems": size,
        "maxItems": size,
    }
    return Shape(schema=schema, kinds=frozenset({"array"}), structure=structure)


def _elements(value: object, place: str) -> list[object] | tuple[object, ...]:
    if isinstance(value, list | tuple):
        return value
    raise Misfit(place, "must be array")


def _array(inner: Shape, make: Callable[[list[Any]], object], *, unique: bool = False) -> Shape:
    def structure(value: object, place: str) -> object:
        items = _elements(value, place)
        return make([inner.structure(item, f"{place}/{i}") for i, item in enumerate(items)])

    schema: dict[str, Json] = {"type": "array", "items": inner.schema}
    if unique:
        schema["uniqueItems"] = True
    shape = Shape(schema=schema, kinds=frozenset({"array"}), structure=structure)
    return _narrowed(shape, {}, strict_check(shape)) if unique else shape


def _sequence(origin: Any, arguments: tuple[Any, ...], path: str, above: tuple[type, ...]) -> Shape:
    inner = _shape(arguments[0], path, above)
    if origin not in _SETS:
        return _array(inner, _SEQUENCES[origin])
    # Python holds True and 1 for one element of a set, JSON for two; others cannot be hashed.
    if inner.kinds & {"object", "array"} or inner.kinds >= {"boolean", "number"}:
        raise ContractError(path, "the elements of a set are texts, numbers or words of one kind")
    return _array(inner, _SEQUENCES[origin], unique=True)


def _mapping(arguments: tuple[Any, ...], path: str, above: tuple[type, ...]) -> Shape:
    if arguments[0] is not str:
        raise ContractError(path, "the keys of a mapping are str")
    inner = _shape(arguments[1], path, above)

    def structure(value: object, place: str) -> dict[str, Any]:
        read = {}
        for key, item in _members(value, place).items():
            read[_text(key, place)] = inner.structure(item, f"{place}/{_step(key)}")
        return read

    schema: dict[str, Json] = {"type": "object", "additionalProperties": inner.schema}
    return Shape(schema=schema, kinds=frozenset({"object"}), structure=structure)


def _members(value: object, place: str) -> Mapping[Any, object]:
    if isinstance(value, Mapping):
        return value
    raise Misfit(place, "must be object")


def _step(name: object) -> str:
    return str(name)[:80].replace("~", "~0").replace("/", "~1")


# ── classes ───────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class _Member:
    """A field: its name in JSON, its name in the constructor, and whether it must be given."""

    key: str
    argument: str
    annotation: Any
    required: bool


def _class(kind: type, path: str, above: tuple[type, ...]) -> Shape:
    if kind in above:
        raise ContractError(path, f"{kind.__name__} holds itself, and a schema here has an end")
    if issubclass(kind, enum.Enum) and not issubclass(kind, enum.Flag):
        return _words(tuple(kind), path)
    if getattr(kind, "__parameters__", ()):
        raise ContractError(path, f"{kind.__name__} is generic")
    if typing.is_typeddict(kind):
        return _object(kind, _typed_dict(kind, path), path, above)
    if attrs.has(kind):
        return _object(kind, _attrs_members(kind, path), path, above)
    if dataclasses.is_dataclass(kind):
        return _object(kind, _dataclass_members(kind, path), path, above)
    raise ContractError(path, f"a schema cannot hold {kind.__name__} without knowing its parts")


def _hints(kind: type, path: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    # Evaluating annotations runs the host's code: whatever it raises, they cannot be read.
    except Exception as error:
        problem = f"the annotations of {kind.__name__} cannot be read ({error})"
        raise ContractError(path, problem) from error


def _typed_dict(kind: Any, path: str) -> list[_Member]:
    return [
        _Member(key=name, argument=name, annotation=hint, required=_is_required(kind, name, hint))
        for name, hint in _hints(kind, path).items()
    ]


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    """By the hint itself: `__required_keys__` is wrong where annotations are texts."""
    inner = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    qualifiers = {typing.get_origin(hint), typing.get_origin(inner)}
    if typing.Required in qualifiers:
        return True
    return typing.NotRequired not in qualifiers and name in kind.__required_keys__


def _attrs_members(kind: type, path: str) -> list[_Member]:
    hints = _hints(kind, path)
    return [
        _Member(
            key=field.alias or field.name,
            argument=field.alias or field.name,
            annotation=_typed(hints, field.name, kind, path),
            required=field.default is attrs.NOTHING,
        )
        for field in attrs.fields(kind)
        if field.init
    ]


def _dataclass_members(kind: Any, path: str) -> list[_Member]:
    hints = _hints(kind, path)
    if any(isinstance(hint, dataclasses.InitVar) for hint in hints.values()):
        raise ContractError(path, f"{kind.__name__} has an InitVar")
    missing = dataclasses.MISSING
    return [
        _Member(
            key=field.name,
            argument=field.name,
            annotation=_typed(hints, field.name, kind, path),
            required=field.default is missing and field.default_factory is missing,
        )
        for field in dataclasses.fields(kind)
        if field.init
    ]


def _typed(hints: Mapping[str, Any], name: str, kind: type, path: str) -> Any:
    if name not in hints:
        raise ContractError(f"{path}.{name}", f"the field of {kind.__name__} has no annotation")
    return hints[name]


def _object(kind: Any, members: list[_Member], path: str, above: tuple[type, ...]) -> Shape:
    inner = (*above, kind)
    shapes = {m.key: _shape(m.annotation, f"{path}.{m.key}", inner) for m in members}
    arguments = {member.key: member.argument for member in members}
    needed = [member.key for member in members if member.required]

    def structure(value: object, place: str) -> object:
        given = _members(value, place)
        for key in needed:
            if key not in given:
                raise Misfit(f"{place}/{_step(key)}", "is required")
        read: dict[str, Any] = {}
        for key, item in given.items():
            if key not in shapes:
                raise Misfit(f"{place}/{_step(key)}", "is not a parameter")
            read[arguments[key]] = shapes[key].structure(item, f"{place}/{_step(key)}")
        return _made(kind, read, place)

    schema: dict[str, Json] = {
        "type": "object",
        "properties": {key: shape.schema for key, shape in shapes.items()},
        "required": list(needed),
        "additionalProperties": False,
    }
    if (kind.__doc__ or "").strip() and not _is_generated(kind):
        schema["description"] = inspect.cleandoc(kind.__doc__).partition("\n\n")[0]
    return Shape(schema=schema, kinds=frozenset({"object"}), structure=structure)


def _is_generated(kind: type) -> bool:
    """Whether the docstring is the signature that `dataclass` writes."""
    return dataclasses.is_dataclass(kind) and str(kind.__doc__).startswith(f"{kind.__name__}(")


def _made(kind: Any, read: dict[str, Any], place: str) -> object:
    try:
        return kind(**read)
    # The host's class: what its validators refuse does not fit. Their text stays theirs.
    except Exception as error:
        raise Misfit(place, f"was refused by {kind.__name__} ({type(error).__name__})") from error
