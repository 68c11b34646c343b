"""A strict subset of JSON Schema for tool arguments, compiled once to closures.

Supported: `type` (one name or a list), `properties`, `required`, `additionalProperties`
(false, or the schema of every other member; absent means false), `items`, `prefixItems`,
`uniqueItems`, `anyOf`, `enum`, `const`, `minimum`, `maximum`, `minLength`, `maxLength`,
`minItems`, `maxItems`, and the annotations `title`, `description`, `default`, `examples`. Any other keyword is refused when the schema is compiled: a rule that nobody
checks would be a rule that looks enforced.

Source: JSON Schema 2020-12, validation vocabulary. A boolean is never a number here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from runtime_pack.inner import frozen

__all__ = ("ArgumentFault", "Check", "SchemaError", "compile_schema")


@frozen(kw_only=True)
class ArgumentFault:
    """One thing wrong with the arguments: `path` is a JSON pointer, empty for the whole."""

    path: str
    problem: str


class SchemaError(ValueError):
    """The schema itself cannot be enforced: `path` is where, `problem` is why."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"schema at {path or '/'}: {problem}")
        self.path = path
        self.problem = problem


Check: TypeAlias = Callable[[object], tuple[ArgumentFault, ...]]
"""From arguments to what is wrong with them; empty when nothing is."""
_At: TypeAlias = "tuple[_At, object] | None"
"""Where a value stands: the place that holds it and its name there. Written out only for a fault."""
_Rule: TypeAlias = Callable[[object, _At, list[ArgumentFault]], None]
"""Adds what is wrong with a value at a place to the list."""

# Annotations say nothing to check; the others are read together with the object they describe.
_ANNOTATIONS: Final = frozenset({"title", "description", "default", "examples"})
_READ_ELSEWHERE: Final = _ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}


# Made once: a union that is written out is made anew for every check.
_OBJECTS: Final = (dict, Mapping)
_ARRAYS: Final = (list, tuple)
_NUMBERS: Final = (int, float)


def _is_integer(value: object) -> bool:
    """5 and 5.0, as JSON Schema counts; not True."""
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


_TYPES: Final[Mapping[str, Callable[[object], bool]]] = {
    "object": lambda v: isinstance(v, _OBJECTS),
    "array": lambda v: isinstance(v, _ARRAYS),
    "string": lambda v: isinstance(v, str),
    "integer": _is_integer,
    "number": lambda v: isinstance(v, _NUMBERS) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
}


def compile_schema(schema: Mapping[str, object]) -> Check:
    """Turn an object schema into a check.

    Raises:
        SchemaError: the schema is not of `type: object`, uses a keyword that is not
            supported, or a keyword's value is of the wrong kind.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise SchemaError("", "the arguments of a tool are of type object")
    rule = _compile(schema, "")
    # With any other keyword at the top, the members do not say all.
    rows = _rows(schema) if schema.keys() <= _READ_ELSEWHERE else None
    needed = frozenset(_members(schema, "")[1])

    def check(arguments: object) -> tuple[ArgumentFault, ...]:
        if rows is not None and isinstance(arguments, dict) and needed <= arguments.keys():
            size: Any
            for name, value in arguments.items():
                row, size = rows.get(name), value
                if row is None or type(value) is not row[0]:
                    break
                if not row[1] <= (len(size) if row[0] is str else size) <= row[2]:
                    break
            else:
                return ()
        faults: list[ArgumentFault] = []
        rule(arguments, None, faults)
        return tuple(faults)

    return check


_Row: TypeAlias = tuple[type, float, float]
_ROW_KINDS: Final[Mapping[object, tuple[type, str, str]]] = {
    "string": (str, "minLength", "maxLength"),
    "integer": (int, "minimum", "maximum"),
    "boolean": (bool, "", ""),
}


def _rows(schema: Mapping[str, object]) -> dict[object, _Row]:
    """The properties of which a type and two bounds say all; any other is left to the rules.

    What fits its row fits its rule: an argument is looked at by the rules unless all of them do.
    """
    rows: dict[object, _Row] = {}
    for name, sub in _members(schema, "")[0].items():
        if not isinstance(sub, Mapping) or not isinstance(sub.get("type"), str):
            continue
        kind = _ROW_KINDS.get(sub["type"])
        if kind is None or not sub.keys() <= {"type", *_ANNOTATIONS, *kind[1:]}:
            continue
        least, most = sub.get(kind[1], -math.inf), sub.get(kind[2], math.inf)
        if isinstance(least, int | float) and isinstance(most, int | float):
            rows[name] = (kind[0], least, most)
    return rows


def _fault(at: _At, problem: str) -> ArgumentFault:
    path = ""
    while at is not None:
        at, name = at
        path = f"/{_escaped(name)}{path}"
    return ArgumentFault(path=path, problem=problem)


def _compile(schema: object, path: str) -> _Rule:
    if not isinstance(schema, Mapping):
        raise SchemaError(path, "a schema is an object")
    is_of_type, wrong = _type(schema["type"], f"{path}/type") if "type" in schema else (None, "")
    rules = [
        _maker(keyword, path)(value, f"{path}/{keyword}")
        for keyword, value in schema.items()
        if keyword not in _READ_ELSEWHERE
    ]
    if {"items", "prefixItems"} <= schema.keys():
        raise SchemaError(path, "items and prefixItems together are not supported")
    if _speaks_of_objects(schema):
        rules.append(_object_rule(schema, path))
    elif "required" in schema or "additionalProperties" in schema:
        raise SchemaError(path, "required and additionalProperties belong to type object")

    def run(value: object, at: _At, faults: list[ArgumentFault]) -> None:
        if is_of_type is not None and not is_of_type(value):
            faults.append(_fault(at, wrong))
            return
        for rule in rules:
            rule(value, at, faults)

    return run


def _speaks_of_objects(schema: Mapping[str, object]) -> bool:
    named = schema.get("type")
    return (
        "properties" in schema
        or named == "object"
        or (isinstance(named, list) and "object" in named)
    )


def _maker(keyword: str, path: str) -> Callable[[object, str], _Rule]:
    maker = _MAKERS.get(keyword)
    if maker is None:
        there = ", ".join(sorted(_MAKERS.keys() | _READ_ELSEWHERE))
        problem = f"this keyword is not supported; there are: {there}"
        raise SchemaError(f"{path}/{keyword}", problem)
    return maker


def _type(value: object, path: str) -> tuple[Callable[[object], bool], str]:
    """The test of a `type`, and what to say when it fails."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names:
        raise SchemaError(path, "type is a name or a list of names")
    for name in names:
        if not isinstance(name, str) or name not in _TYPES:
            raise SchemaError(path, f"{name!r} is not a type")
    tests = [_TYPES[name] for name in names]
    problem = f"must be {' or '.join(names)}"
    if len(tests) == 1:
        return tests[0], problem
    return lambda item: any(test(item) for test in tests), problem


def _object_rule(schema: Mapping[str, object], path: str) -> _Rule:
    properties, required = _members(schema, path)
    needed = frozenset(required)
    rules = {name: _compile(sub, f"{path}/properties/{name}") for name, sub in properties.items()}
    rest = _rest(schema, path)

    def run(item: object, at: _At, faults: list[ArgumentFault]) -> None:
        if not isinstance(item, _OBJECTS):
            return
        if not needed <= item.keys():
            faults.extend(
                _fault((at, name), "is required") for name in required if name not in item
            )
        for name, value in item.items():
            rule = rules.get(name, rest)
            if rule is None:
                faults.append(_fault((at, name), "is not a parameter"))
            else:
                rule(value, (at, name), faults)

    return run


def _members(schema: Mapping[str, object], path: str) -> tuple[Mapping[str, object], Sequence[str]]:
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, Mapping):
        raise SchemaError(f"{path}/properties", "properties is an object")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise SchemaError(f"{path}/required", "required is a list of names")
    unknown = sorted(set(required) - set(properties))
    if unknown:
        raise SchemaError(f"{path}/required", f"{unknown} are not properties")
    return properties, required


def _rest(schema: Mapping[str, object], path: str) -> _Rule | None:
    """The rule of members that are not among the properties; None when there may be none."""
    rest = schema.get("additionalProperties", False)
    if rest is False:
        return None
    place = f"{path}/additionalProperties"
    if not isinstance(rest, Mapping):
        raise SchemaError(place, "is false, or the schema of every other member")
    rule = _compile(rest, place)

    def run(value: object, at: _At, faults: list[ArgumentFault]) -> None:
        if at is not None and not isinstance(at[1], str):
            faults.append(_fault(at, "is not a member name"))
        rule(value, at, faults)

    return run


def _any_of(value: object, path: str) -> _Rule:
    if not isinstance(value, list) or not value:
        raise SchemaError(path, "anyOf is a list with at least one schema")
    rules = [_compile(option, f"{path}/{index}") for index, option in enumerate(value)]

    def run(item: object, at: _At, faults: list[ArgumentFault]) -> None:
        for rule in rules:
            found: list[ArgumentFault] = []
            rule(item, at, found)
            if not found:
                return
        faults.append(_fault(at, "fits none of the alternatives"))

    return run


def _prefix_items(value: object, path: str) -> _Rule:
    if not isinstance(value, list) or not value:
        raise SchemaError(path, "prefixItems is a list with at least one schema")
    rules = [_compile(option, f"{path}/{index}") for index, option in enumerate(value)]

    def run(item: object, at: _At, faults: list[ArgumentFault]) -> None:
        if isinstance(item, _ARRAYS):
            for index, (rule, element) in enumerate(zip(rules, item, strict=False)):
                rule(element, (at, index), faults)

    return run


def _unique_items(value: object, path: str) -> _Rule:
    if value is not True:
        raise SchemaError(path, "only true is supported")

    def run(item: object, at: _At, faults: list[ArgumentFault]) -> None:
        if isinstance(item, _ARRAYS) and len({_identity(element) for element in item}) < len(item):
            faults.append(_fault(at, "must not hold a value twice"))

    return run


def _identity(value: object) -> object:
    """Equal for equal JSON values and hashable; 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, list | tuple):
        return ("array", *map(_identity, value))
    if isinstance(value, Mapping):
        return ("object", frozenset((key, _identity(item)) for key, item in value.items()))
    return (isinstance(value, bool), value)


def _items(value: object, path: str) -> _Rule:
    rule = _compile(value, path)

    def run(item: object, at: _At, faults: list[ArgumentFault]) -> None:
        if isinstance(item, _ARRAYS):
            for index, element in enumerate(item):
                rule(element, (at, index), faults)

    return run


def _enum(value: object, path: str) -> _Rule:
    if not isinstance(value, list) or not value:
        raise SchemaError(path, "enum is a list with at least one value")
    words = ", ".join(str(option) for option in value)

    def run(item: object, at: _At, faults: list[ArgumentFault]) -> None:
        if not any(_same(item, option) for option in value):
            faults.append(_fault(at, f"must be one of: {words}"))

    return run


def _const(value: object, path: str) -> _Rule:
    return _enum([value], path)


def _same(first: object, second: object) -> bool:
    """Whether two JSON values are equal; a boolean is no number at any depth."""
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same(first[k], second[k]) for k in first)
    return isinstance(first, bool) == isinstance(second, bool) and first == second


def _bound(
    measure: Callable[[object], float | None], *, least: bool, words: str
) -> Callable[[object, str], _Rule]:
    def maker(value: object, path: str) -> _Rule:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SchemaError(path, "a bound is a number")
        limit: float = value

        def run(item: object, at: _At, faults: list[ArgumentFault]) -> None:
            size = measure(item)
            if size is not None and not (size >= limit if least else size <= limit):
                faults.append(_fault(at, f"{words} {limit}"))

        return run

    return maker


def _number(item: object) -> float | None:
    return item if isinstance(item, _NUMBERS) and not isinstance(item, bool) else None


def _characters(item: object) -> float | None:
    return len(item) if isinstance(item, str) else None


def _elements(item: object) -> float | None:
    return len(item) if isinstance(item, _ARRAYS) else None


def _escaped(name: object) -> str:
    """A member name as one step of a JSON pointer, cut so that it cannot flood a message."""
    return str(name)[:80].replace("~", "~0").replace("/", "~1")


_MAKERS: Final[Mapping[str, Callable[[object, str], _Rule]]] = {
    "items": _items,
    "prefixItems": _prefix_items,
    "uniqueItems": _unique_items,
    "anyOf": _any_of,
    "enum": _enum,
    "const": _const,
    "minimum": _bound(_number, least=True, words="must be at least"),
    "maximum": _bound(_number, least=False, words="must be at most"),
    "minLength": _bound(_characters, least=True, words="must have a length of at least"),
    "maxLength": _bound(_characters, least=False, words="must have a length of at most"),
    "minItems": _bound(_elements, least=True, words="must have at least this many elements:"),
    "maxItems": _bound(_elements, least=False, words="must have at most this many elements:"),
}
