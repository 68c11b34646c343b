"""Fields of one object of untrusted arguments, read one by one while the faults are collected. Pure.

No fault says what a value was: only where it stands and what it must be.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from web_tools.errors import Fault, WebErrorCode, WebToolError
from web_tools.visible import make_visible

__all__ = ("MAX_QUERY_CHARS", "Fields", "Refused", "query_of", "text_of", "whole_number")

# Source: the search plugin text, section Bounds.
MAX_QUERY_CHARS: Final = 2000
# Names of unknown fields are shown back to the model, so they are cut.
_MAX_SHOWN_NAME: Final = 64
_MAX_FAULTS: Final = 16

# Categories of what nobody sees by itself: controls, formats, spaces, marks without a letter.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Cs", "Zs", "Zl", "Zp", "Mn", "Me"})

_T = TypeVar("_T")


class Refused(Exception):
    """A value is not of its form; the text says what it must be and never what it was."""


class Fields:
    """The fields of one object, read one by one while the faults are collected."""

    def __init__(self, raw: object, known: Iterable[str]) -> None:
        self._faults: list[Fault] = []
        self._values: Mapping[object, object] = {}
        if isinstance(raw, Mapping):
            self._values = raw
            self._refuse_unknown(frozenset(known))
        else:
            self._faults.append(Fault(path="", problem="must be an object"))

    def required(self, name: str, parse: Callable[[object], _T]) -> _T | None:
        """The parsed value; None after noting a fault."""
        if name not in self._values and not self._faults_at(""):
            self._faults.append(Fault(path=f"/{name}", problem="is missing"))
        return self.optional(name, parse)

    def optional(self, name: str, parse: Callable[[object], _T]) -> _T | None:
        """The parsed value; None when absent or after noting a fault."""
        if name not in self._values:
            return None
        try:
            return parse(self._values[name])
        except Refused as refused:
            self._faults.append(Fault(path=f"/{name}", problem=str(refused)))
            return None

    def refuse(self, name: str, problem: str) -> None:
        """Note a fault of a field whose value has its form."""
        self._faults.append(Fault(path=f"/{name}", problem=problem))

    def refuse_if_faulty(self) -> None:
        """Raise one error for everything that was noted."""
        if self._faults:
            raise _invalid(tuple(self._faults[:_MAX_FAULTS]))

    def _faults_at(self, path: str) -> bool:
        return any(fault.path == path for fault in self._faults)

    def _refuse_unknown(self, known: frozenset[str]) -> None:
        # A misspelt option that is dropped silently runs another call than was asked for.
        for key in self._values:
            if not isinstance(key, str):
                self._faults.append(Fault(path="", problem="has a field whose name is not text"))
            elif key not in known:
                self._faults.append(
                    Fault(path=f"/{_pointer(key)}", problem="is not a field of this tool")
                )


def _pointer(name: str) -> str:
    """The name as a part of a JSON pointer, printable and cut."""
    printable = name[:_MAX_SHOWN_NAME].encode("ascii", "backslashreplace").decode()
    visible = "".join(c if c.isprintable() else "?" for c in printable)
    return visible.replace("~", "~0").replace("/", "~1")


def _invalid(faults: tuple[Fault, ...]) -> WebToolError:
    listed = "; ".join(f"{fault.path or 'arguments'} {fault.problem}" for fault in faults)
    return WebToolError(WebErrorCode.INVALID_INPUT, f"{listed}.", faults=faults)


def text_of(value: object, most: int) -> str:
    """*value*, when it is a text of at most *most* characters.

    Raises:
        Refused: It is not.
    """
    if not isinstance(value, str):
        raise Refused("must be text")
    if len(value) > most:
        raise Refused(f"must have at most {most} characters")
    return value


def query_of(value: object) -> str:
    """Literal text to search for, verbatim.

    Raises:
        Refused: It is blank or of invisible characters only, too long, not valid Unicode, or holds NUL.
    """
    text = text_of(value, MAX_QUERY_CHARS)
    if "\0" in text:
        # NUL ends a C string: the provider would search for something else.
        raise Refused("must not contain NUL")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise Refused("must be valid Unicode")
    if not _is_seen(text):
        raise Refused("must not be blank")
    return text


def _is_seen(text: str) -> bool:
    """Whether there is anything to see: fillers are letters by their category, and are not seen."""
    if text.isascii():
        # The rest of ASCII are spaces and controls.
        return any("!" <= sign <= "~" for sign in text)
    shown = make_visible(text).text
    return any(unicodedata.category(sign) not in _UNSEEN for sign in shown)


def whole_number(value: object) -> int | None:
    """The integer that JSON means: 5 and 5.0, not True, not "5", not NaN."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():  # False for NaN and the infinities
        return int(value)
    return value if isinstance(value, int) else None
