"""kiwix-serve: one offline book. It answers in XML, without dates, with links below its own address.

`AND`, `NOT`, quotes and a trailing `*` are read as operators, so such tokens go out as phrases.
"""

import re
from typing import Any, Final
from urllib.parse import urljoin

# A document type, where entities are declared, is refused before the parser sees the text.
from xml.etree import ElementTree as ET

from egress.request import Response
from egress.url import Target
from web_tools.contract.provider import SearchProvider, SearchRow
from web_tools.contract.sites import is_under
from web_tools.contract.snippets import INLINE_TAGS
from web_tools.errors import InvalidSetup
from web_tools.providers._ask import (
    Adapter,
    Outgoing,
    Question,
    Rows,
    bad_shape,
    base_url_of,
    make_provider,
    refused_query,
)
from web_tools.providers._literal import quote_where
from web_tools.providers._text import text

__all__ = ("create_kiwix_provider",)

_BOOK: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_OPERATOR: Final = re.compile(r"[\"*()]|\A[-+~]|\A\w+:|\A(?:AND|OR|NOT|XOR|NEAR|ADJ)(?:/[0-9]+)?\Z")
_DECLARES: Final = re.compile(rb"<!(?:DOCTYPE|ENTITY)", re.IGNORECASE)


def create_kiwix_provider(*, base_url: str, book: str, **wiring: Any) -> SearchProvider:
    """The book *book* of a kiwix-serve as a back end. It needs no credential.

    Raises:
        InvalidSetup: A part is not of its form.
    """
    if _BOOK.fullmatch(book) is None:
        raise InvalidSetup("book", "is no name of a book")
    base = base_url_of(base_url)
    return make_provider(
        Adapter(
            name="kiwix",
            base_url=base_url,
            ask=lambda question: _ask(question, base, book),
            read=lambda document, _: _read(document, base),
            unsupported=("freshness",),
            parse=_parse,
        ),
        **wiring,
    )


def _ask(question: Question, base: Target, book: str) -> Outgoing | None:
    options = question.options
    if options.site is not None and not is_under(options.site, base):
        return None
    pattern = quote_where(question.query, _OPERATOR)
    if not pattern:
        raise refused_query("nothing but quotes")
    fields = [
        ("books.name", book),
        ("pattern", pattern),
        ("format", "xml"),
        ("start", "1"),
        ("pageLength", str(options.count)),
    ]
    return Outgoing(path="/search", fields=fields, headers={"Accept": "application/xml"})


def _parse(response: Response) -> ET.Element:
    if _DECLARES.search(response.body) or b"\0" in response.body:
        raise ValueError("the answer declares a document type")
    try:
        # The text has at most 2 MiB and no entities of its own.
        return ET.fromstring(response.body)  # noqa: S314
    except (ET.ParseError, ValueError, LookupError):
        raise ValueError("the answer is not XML") from None


def _read(document: ET.Element, base: Target) -> Rows:
    channel = document.find("channel") if document.tag == "rss" else None
    if channel is None:
        raise bad_shape("the answer is no feed")
    return [
        SearchRow(
            title=text(item.findtext("title")),
            url=urljoin(f"{base.origin}/", item.findtext("link") or ""),
            snippet=_inner(item.find("description")),
        )
        for item in channel.findall("item")
    ]


def _inner(element: ET.Element | None) -> str:
    """The content of an element, which has markup either as elements or as escaped text."""
    if element is None:
        return ""
    if not len(element):
        return element.text or ""
    parts = [text(element.text) or ""]
    for child in element:
        gap = "" if child.tag in INLINE_TAGS else " "
        parts += [gap, text("".join(child.itertext())) or "", gap, text(child.tail) or ""]
    return "".join(parts)
