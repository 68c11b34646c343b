"""Regular expressions that cannot be made to run for ever by the text they are held against.

The text is written by a model, which may have read a page. Refused are what makes the engine try
over and over: a repeat inside a repeat, alternatives inside a repeat, references back and looks
around; and of the rest, what could take more steps than a bound: two repeats without an end need a
`^` before them, and each `?`, alternative and repeat with an end multiplies what is tried.
"""

from __future__ import annotations

import re

# The parser of `re` has no stubs; it is what says what a pattern means.
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final

__all__ = ("PatternRefused", "safe_pattern")

_MAX_CHARACTERS: Final = 512
# What a pattern is held against, at most.
_LONGEST_TEXT: Final = 2048
# About two seconds of the engine.
_MAX_STEPS: Final = 1 << 27
_TOO_LONG: Final = (
    "could be held against a long text for too long: begin it with ^, "
    "and have fewer repeats, ? and alternatives"
)
# A repeat with an end is written out by the engine; a small one costs nothing to speak of.
_MAX_REPEAT: Final = 64
_REPEATS: Final = frozenset(
    {_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT}
)
_REFUSED: Final = {
    _constants.GROUPREF: "refers back to a group",
    _constants.GROUPREF_EXISTS: "refers back to a group",
    _constants.ASSERT: "looks around",
    _constants.ASSERT_NOT: "looks around",
}


class PatternRefused(ValueError):
    """The pattern cannot be read, or could be made to run for ever."""


def safe_pattern(text: str) -> re.Pattern[str]:
    """The compiled pattern.

    Raises:
        PatternRefused: it is none, is too long, or could take too long.
    """
    if len(text) > _MAX_CHARACTERS:
        raise PatternRefused(f"is longer than {_MAX_CHARACTERS} characters")
    try:
        pattern, tree = re.compile(text), _parser.parse(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternRefused(f"is no regular expression ({error})") from error
    if _search_steps(tree, anchored=_is_anchored(tree, pattern.flags)) > _MAX_STEPS:
        raise PatternRefused(_TOO_LONG)
    return pattern


def _search_steps(tree: Any, *, anchored: bool) -> int:
    """A bound on what the engine tries on the longest text."""
    items = list(tree)
    # What may be empty at the end never sends the engine back.
    while items and items[-1][0] in _REPEATS and items[-1][1][0] == 0:
        operation, argument = items.pop()
        _step(operation, argument, 1, inside=False)
    steps = _steps(items, 1, inside=False)
    return _LONGEST_TEXT + steps if anchored else _LONGEST_TEXT * steps


def _is_anchored(tree: Any, flags: int) -> bool:
    """Whether a match starts where the text does, and nowhere else."""
    items = list(tree)
    if not items or items[0][0] is not _constants.AT:
        return False
    if items[0][1] is _constants.AT_BEGINNING:
        return not flags & re.MULTILINE
    return bool(items[0][1] is _constants.AT_BEGINNING_STRING)


def _steps(items: Any, after: int, *, inside: bool) -> int:
    """What is tried from here on, if *after* is tried behind it, in the worst case."""
    for operation, argument in reversed(list(items)):
        after = _step(operation, argument, after, inside=inside)
    return after


def _step(operation: Any, argument: Any, after: int, *, inside: bool) -> int:
    if operation in _REFUSED:
        raise PatternRefused(_REFUSED[operation])
    if operation is _constants.BRANCH:
        if inside:
            raise PatternRefused("has alternatives inside a repeat")
        return sum(_steps(branch, after, inside=inside) for branch in argument[1])
    if operation in _REPEATS:
        return _repeat(argument, after, inside=inside)
    for part in reversed(_parts(argument)):
        after = _steps(part, after, inside=inside)
    return after + 1


def _repeat(argument: Any, after: int, *, inside: bool) -> int:
    least, most, body = argument
    if inside:
        raise PatternRefused("has a repeat inside a repeat")
    # `x?` chooses once: what it holds may repeat.
    if most == 1:
        return _steps(body, after, inside=False) + (after if least == 0 else 0)
    if most is _constants.MAXREPEAT:
        most = _LONGEST_TEXT
    elif most > _MAX_REPEAT:
        raise PatternRefused(f"has a repeat of more than {_MAX_REPEAT} times that has an end")
    steps: int = most * _steps(body, 1, inside=True) + max(most - least + 1, 1) * after
    return steps


def _parts(argument: Any) -> list[Any]:
    """The patterns inside an operation's argument."""
    if isinstance(argument, _parser.SubPattern):
        return [argument]
    if isinstance(argument, list | tuple):
        return [part for item in argument for part in _parts(item)]
    return []
