"""Parts of a body of JSON that anybody could have written, read so that nothing raises. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from egress.policy import AddressPolicy
from web_tools._cut import cut_characters
from web_tools.contract.result_urls import is_admitted, result_url
from web_tools.native.values import (
    MAX_ANSWER_CHARS,
    MAX_CITATIONS,
    Covers,
    NativeCitation,
    NativeFailed,
    NativeFault,
    NativeSource,
    NativeUsage,
    UrlKind,
)
from web_tools.visible import replace_surrogates

__all__ = (
    "Answer",
    "array",
    "code_points",
    "error_fault",
    "objects",
    "status_fault",
    "table",
    "text",
    "usage_of",
    "whole",
)

_MAX_TITLE_CHARS: Final = 300
_MAX_EXCERPT_CHARS: Final = 1000
_MOST: Final = 2**31


def table(value: object, *path: str) -> Mapping[str, Any]:
    """The object at *path* below *value*; an empty one when there is none."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def array(value: object) -> list[Any]:
    """*value*, when it is a list; an empty one when it is none."""
    return value if isinstance(value, list) else []


def objects(value: object) -> Iterator[Mapping[str, Any]]:
    """The objects of a list."""
    return (each for each in array(value) if isinstance(each, Mapping))


def text(value: object) -> str:
    """*value*, when it is text, without halves of pairs; else an empty one."""
    return replace_surrogates(value) if isinstance(value, str) else ""


def whole(value: object) -> int | None:
    """*value*, when it is a count."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        return None
    return value


def usage_of(usage: object, input_key: str, output_key: str) -> NativeUsage | None:
    """The tokens of a table of usage; None when it has not both."""
    body = table(usage)
    given, made = whole(body.get(input_key)), whole(body.get(output_key))
    if given is None or made is None:
        return None
    return NativeUsage(input_tokens=given, output_tokens=made)


def status_fault(status: int) -> NativeFault:
    """What an answer without success is told as."""
    if status in {401, 403}:
        return NativeFault.UNAUTHORIZED
    if status == 429:
        return NativeFault.RATE_LIMITED
    if status in {400, 404, 405, 409, 413, 415, 422}:
        return NativeFault.NOT_SUPPORTED
    return NativeFault.UNAVAILABLE


def error_fault(error: object) -> NativeFault:
    """What an error inside of a body with a status of success is told as."""
    code = table(error).get("code")
    known = whole(code)
    if known is not None and 400 <= known <= 599:
        return status_fault(known)
    return NativeFault.RATE_LIMITED if code == "rate_limit_exceeded" else NativeFault.UNAVAILABLE


class Answer:
    """Collects the text of an answer and its citations, in code points of the whole text."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0
        self.citations: list[NativeCitation] = []
        self._sources: dict[str, NativeSource] = {}
        self.dropped = 0

    @property
    def text(self) -> str:
        """The whole text.

        Raises:
            NativeFailed: It is longer than any answer.
        """
        if self._length > MAX_ANSWER_CHARS:
            raise NativeFailed(NativeFault.BAD_ANSWER)
        return "".join(self._pieces)

    @property
    def sources(self) -> tuple[NativeSource, ...]:
        """Every source that was named, once, in order."""
        return tuple(self._sources.values())

    def add(self, piece: str) -> int:
        """Add a piece; where it begins."""
        start = self._length
        self._pieces.append(piece)
        self._length += len(piece)
        return start

    def source(
        self, url: object, title: object = "", kind: UrlKind = UrlKind.DIRECT
    ) -> NativeSource | None:
        """The source of this address; None, and counted, when it is none that may be shown."""
        found = result_url(url)
        if found is None or not is_admitted(found.target, AddressPolicy()):
            self.dropped += 1
            return None
        known = self._sources.get(found.url)
        if known is not None:
            return known
        if len(self._sources) >= MAX_CITATIONS:
            self.dropped += 1
            return None
        source = NativeSource(
            url=found.url,
            host=found.target.host,
            title=cut_characters(text(title), _MAX_TITLE_CHARS),
            kind=kind,
        )
        self._sources[found.url] = source
        return source

    def cite(
        self,
        source: NativeSource | None,
        span: tuple[int, int] | None,
        *,
        excerpt: object = "",
        covers: Covers = Covers.CLAIM,
    ) -> None:
        """Note a citation; *span* counts in the whole text, and is left out when it does not fit."""
        if source is None or len(self.citations) >= MAX_CITATIONS:
            return
        whole_text = self.text
        fits = span is not None and 0 <= span[0] < span[1] <= len(whole_text)
        kept = span if fits else None
        citation = NativeCitation(
            source=source,
            span=kept,
            quote="" if kept is None else whole_text[kept[0] : kept[1]],
            excerpt=cut_characters(text(excerpt), _MAX_EXCERPT_CHARS),
            covers=covers,
        )
        if citation not in self.citations:
            self.citations.append(citation)


def code_points(part: str, start: object, end: object) -> tuple[int, int] | None:
    """The span that these offsets in bytes of UTF-8 mean; None when they cut a character."""
    first, last = whole(0 if start is None else start), whole(end)
    if first is None or last is None or not first < last:
        return None
    data = part.encode("utf-8", "surrogatepass")
    if last > len(data):
        return None
    try:
        begin = len(data[:first].decode())
        return begin, begin + len(data[first:last].decode())
    except UnicodeDecodeError:
        return None
