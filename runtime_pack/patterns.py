"""Regular expressions that cannot be made to run for ever by the text they are held against.

The text is written by a model, which may have read a page. Refused are what makes the engine try
over and over: a repeat inside a repeat, alternatives inside a repeat, references back, looks around,
and more than two repeats without an end.
"""

from __future__ import annotations

import re

# The parser of `re` has no stubs; it is what says what a pattern means.
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final

__all__ = ("PatternRefused", "safe_pattern")

_MAX_CHARACTERS: Final = 512
_MAX_OPEN_REPEATS: Final = 2
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
    if _open_repeats(tree, inside=False) > _MAX_OPEN_REPEATS:
        raise PatternRefused(f"has more than {_MAX_OPEN_REPEATS} repeats without an end")
    return pattern


def _open_repeats(tree: Any, *, inside: bool) -> int:
    count = 0
    for operation, argument in tree:
        if operation in _REFUSED:
            raise PatternRefused(_REFUSED[operation])
        if operation is _constants.BRANCH and inside:
            raise PatternRefused("has alternatives inside a repeat")
        if operation in _REPEATS:
            count += _repeat(argument, inside=inside)
        else:
            count += sum(_open_repeats(part, inside=inside) for part in _parts(argument))
    return count


def _repeat(argument: Any, *, inside: bool) -> int:
    _least, most, body = argument
    if inside:
        raise PatternRefused("has a repeat inside a repeat")
    # `x?` chooses once: what it holds may repeat.
    if most != 1:
        _open_repeats(body, inside=True)
    if most == 1:
        return _open_repeats(body, inside=False)
    if most is not _constants.MAXREPEAT and most > _MAX_REPEAT:
        raise PatternRefused(f"has a repeat of more than {_MAX_REPEAT} times that has an end")
    return 1


def _parts(argument: Any) -> list[Any]:
    """The patterns inside an operation's argument."""
    if isinstance(argument, _parser.SubPattern):
        return [argument]
    if isinstance(argument, list | tuple):
        return [part for item in argument for part in _parts(item)]
    return []
