"""A final answer as it can be shown: nothing in it is fetched, or tells anything, by being shown. Pure.

Where text from outside was read, an image is kept only when the user or the operator named its address,
a reference link when its address is known;
any other one becomes text: the sign that makes it one is escaped, and the words stay. Of HTML, tags in which
nothing has a value stay, and anchors with nothing but an address; any other element becomes text. Code is
no markup and stays as it is. A link of any
kind that carries something private becomes the name of the site that it leads to.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final

from runtime_pack.address_book import Address, AddressBook, AddressReader
from runtime_pack.answer_code import code_places
from runtime_pack.inner import frozen
from runtime_pack.label_table import AddressOrigin
from runtime_pack.messages import Json
from runtime_pack.private_text import PrivateText

__all__ = ("DefusedAnswer", "defused_answer")


@frozen(kw_only=True)
class DefusedAnswer:
    """The answer, and how many images, reference links and links of it are text by now."""

    text: str
    images: int = 0
    references: int = 0
    links: int = 0
    hosts: tuple[str, ...] = ()

    def counts(self) -> dict[str, Json]:
        """What became text, for events: numbers, and the hosts that were named."""
        return {
            "images": self.images,
            "references": self.references,
            "links": self.links,
            "hosts": list(self.hosts[:16]),
        }


_KNOWN: Final = frozenset(AddressOrigin) - {AddressOrigin.COMPOSED}
# An image is fetched without being asked for: which of a page's links are shown as images could spell
# what must not leave, one letter an image. What the user or the operator named spells nothing.
_UNCHOSEN: Final = frozenset({AddressOrigin.USER, AddressOrigin.OPERATOR})
# The whole form of an image whose address can be read without a doubt; any other one is escaped.
_IMAGE: Final = re.compile(r"!\[(?P<alt>[^\[\]\\\n]{0,500})\]\((?P<url>[^\s()<>\\\"'&]{1,2000})\)")
_IMAGE_START: Final = re.compile(r"!(?=\[)")
# Where a line may define a reference: after marks of quotes and lists, with or without spaces. Nothing is
# bounded: a label ends at the next bracket, everything else on its line, so no place is looked at twice.
_DEFINITION: Final = re.compile(
    r"(?:^|(?<=\r))(?P<lead>[ \t\f\v\ufeff>*+\-.():#0-9]*)\[(?P<label>(?:[^\[\]\\]|\\.)+)\]:"
    r"[ \t]*(?:\r\n?|\n)?[ \t>]*(?P<url><[^<>\r\n]*>|\S*)",
    re.MULTILINE | re.DOTALL,
)
# What a reader of HTML may take for the beginning of an element, an instruction or a declaration.
_ELEMENT: Final = re.compile(
    r"<(?=[a-zA-Z]|\?(?!php\s|xml\s|=)|!(?!--|doctype\s+html\s*>)[a-zA-Z\[])", re.IGNORECASE
)
# The whole forms that stay: a tag in which nothing has a value, a link, an anchor that only leads somewhere.
# In a link that is taken for a tag each slash begins an attribute.
_STAYS: Final = re.compile(
    r"<(?:(?P<name>[a-z][^\s/<>=]{0,80})(?:[\s/][^<>=]{0,400})?"
    r"|(?:https?:(?=//)|mailto:)(?![^<>]*/[\w:-]*=)[^\s<>\"'`]{1,2000}"
    r"|a\s+href\s*=\s*(?:\"(?:https?:|mailto:|[/#])[^\"<>]{0,2000}\"|'(?:https?:|mailto:|[/#])[^'<>]{0,2000}'"
    r"|(?:https?:|mailto:|[/#])[^\s\"'`<>]{0,2000})\s{0,9})>",
    re.IGNORECASE,
)
# Elements that fetch something by being shown, or whose content does, even without a value.
_FETCHING: Final = frozenset(
    [
        "applet",
        "audio",
        "base",
        "bgsound",
        "body",
        "button",
        "command",
        "embed",
        "form",
        "frame",
        "frameset",
        "html",
        "iframe",
        "image",
        "img",
        "input",
        "isindex",
        "keygen",
        "layer",
        "link",
        "marquee",
        "math",
        "meta",
        "menuitem",
        "noembed",
        "noframes",
        "noscript",
        "object",
        "picture",
        "plaintext",
        "portal",
        "script",
        "source",
        "style",
        "svg",
        "template",
        "textarea",
        "title",
        "track",
        "use",
        "video",
        "xml",
        "xmp",
    ]
)
# Anything that a reader may turn into a link.
_LINK: Final = re.compile(
    r"<[a-zA-Z][a-zA-Z0-9+.-]{1,31}:[^<>\n]*>|\]\(\s*<[^<>\n]*>"
    r"|(?:[a-zA-Z][a-zA-Z0-9+.-]{1,31}:|//|\bwww\.)[^\s<>]+"
)


class _Defuser:
    """One answer on its way."""

    def __init__(
        self,
        reader: AddressReader | None,
        book: AddressBook,
        private: PrivateText,
        nonces: AbstractSet[str],
    ) -> None:
        self._reader = reader
        self._book = book
        self._private = private
        self._nonces = nonces
        self.images = 0
        self.references = 0
        self.links = 0
        self.hosts: dict[str, None] = {}

    def link(self, match: re.Match[str]) -> str:
        """A link, or the site of one that carries something private."""
        found = match[0]
        # Of an address that somebody named, words say what its page is about.
        if self._private.find(found, self._nonces, runs=not self._leads_home(found)) is None:
            return found
        self.links += 1
        start = "](" if found.startswith("](") else ""
        site = self._site(found)
        told = f"(link removed: {site})" if site else "(link removed)"
        # The brackets of Markdown that ran into the match stay balanced enough to be text.
        return f"{start and '] '}{told}"

    def _leads_home(self, text: str) -> bool:
        """Whether each address of a link is known."""
        reader = self._reader
        found = () if reader is None else reader.find(text)
        return bool(found) and all(self._book.origin(each.url) in _KNOWN for each in found)

    def _site(self, text: str) -> str:
        """Of the first address of a text, the registered name, if that is not the payload."""
        reader = self._reader
        for address in () if reader is None else reader.find(text):
            site = reader.site(address.host) if reader is not None else ""
            if self._private.find(site, self._nonces) is None:
                self.hosts[site] = None
                return site
            break
        return ""

    def image(self, match: re.Match[str]) -> str:
        """The sign of an image, or the same escaped."""
        whole = _IMAGE.match(match.string, match.start())
        if whole is not None and self._is_known(whole["url"], _UNCHOSEN):
            return "!"
        self.images += 1
        return "!\\"

    def definition(self, match: re.Match[str]) -> str:
        """A definition of a reference, or the same as a paragraph."""
        if self._is_known(match["url"].strip("<>"), _KNOWN):
            return match[0]
        self.references += 1
        start = len(match["lead"])
        return f"{match[0][:start]}\\{match[0][start:]}"

    def element(self, match: re.Match[str]) -> str:
        """The beginning of an element, or of what reads like one."""
        whole = _STAYS.match(match.string, match.start())
        if whole is not None and (whole["name"] or "").lower() not in _FETCHING:
            return "<"
        self.images += 1
        return "&lt;"

    def _is_known(self, text: str, origins: AbstractSet[AddressOrigin]) -> bool:
        if self._reader is None:
            return False
        address = self._reader.read(text)
        if not isinstance(address, Address):
            return False
        if self._book.origin(address.url) not in origins:
            self.hosts[address.host] = None
            return False
        return True


def _outside_of_code(
    pattern: re.Pattern[str], written: Callable[[re.Match[str]], str], text: str
) -> str:
    """The text with what the pattern finds written anew, but for what stands in code as a whole."""
    places = code_places(text)
    if not places:
        return pattern.sub(written, text)
    starts = [start for start, _ in places]

    def kept(match: re.Match[str]) -> str:
        place = bisect_right(starts, match.start()) - 1
        return match[0] if place >= 0 and match.end() <= places[place][1] else written(match)

    return pattern.sub(kept, text)


def defused_answer(
    text: str,
    *,
    reader: AddressReader | None,
    book: AddressBook,
    private: PrivateText,
    nonces: AbstractSet[str] = frozenset(),
    outside: bool = True,
) -> DefusedAnswer | None:
    """The answer as it can be shown; None when it is as it was.

    Args:
        text: in Markdown or not.
        reader: reads addresses; without one none is known.
        book: the addresses that the run knows.
        private: what must not leave.
        nonces: those that the run's fences have used.
        outside: whether text from outside was read: only then images and references are judged.
    """
    defuser = _Defuser(reader, book, private, nonces)
    shown = text
    if private or nonces:
        shown = _LINK.sub(defuser.link, shown)
    if outside:
        shown = _outside_of_code(_DEFINITION, defuser.definition, shown)
        shown = _outside_of_code(_IMAGE_START, defuser.image, shown)
        shown = _outside_of_code(_ELEMENT, defuser.element, shown)
    if shown == text:
        return None
    return DefusedAnswer(
        text=shown,
        images=defuser.images,
        references=defuser.references,
        links=defuser.links,
        hosts=tuple(defuser.hosts),
    )
