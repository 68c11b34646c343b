"""Addresses in a page: its base, its canonical and refresh targets, and every link made absolute."""

import re
from urllib.parse import urljoin, urlsplit

import attrs

from web_tools._extract_dom import Document, Element, Text

_WEB = ("http://", "https://")
_KEPT_SCHEMES = (*_WEB, "mailto:", "tel:")
_URL_CHARS = 2048
_MAX_REFRESH_SECONDS = 10.0
"""A later refresh shows the page again or leaves it after it was read."""
REFERENCE_CHARS = 8193
"""One more than a URL may have: a reference that is cut here is refused, never followed cut."""
_MAX_REFRESHES = 8
"""So many are looked at: each costs a walk up the tree."""
_SPACE = " \t\n\f\r"
# Source: HTML, "shared declarative refresh steps" 2 to 11.
_REFRESH = re.compile(
    r"(?P<seconds>[0-9]{1,9}|(?=\.))[0-9.]*(?:[;, \t\n\f\r][ \t\n\f\r]*[;,]?[ \t\n\f\r]*(?P<rest>.*))?",
    re.ASCII | re.DOTALL,
)
_REFRESH_URL = re.compile(r"url[ \t\n\f\r]*=[ \t\n\f\r]*", re.ASCII | re.IGNORECASE)

_ESCAPES = str.maketrans(
    {
        " ": "%20",
        '"': "%22",
        "(": "%28",
        ")": "%29",
        "<": "%3C",
        ">": "%3E",
        "\\": "%5C",
        "`": "%60",
        "|": "%7C",
        **dict.fromkeys(map(chr, (*range(0x20), 0x7F)), None),
    }
)
_UNSAFE = re.compile('[\x00-\x20\x7f"()<>\\\\`|]')
"""What would end a Markdown link target, or need `<...>` around it."""
_NEEDS_A_LOOK = bytes((*range(0x21), 0x7F)) + b'"()<>\\`|['


def base_of(document: Document, url: str) -> str:
    """The address relative links are resolved against; a base that is no web address is ignored."""
    try:
        base = document.base_url(url)
    except ValueError:
        return url
    return base if base.lower().startswith(_WEB) else url


@attrs.frozen(kw_only=True)
class Refresh:
    """A meta refresh as the page wrote it: its reference and the `href` of the page's base.

    Nothing is resolved or tidied here: what these texts mean is for the guard of addresses to say.
    """

    reference: str
    base: str | None


def refresh_of(document: Document) -> Refresh | None:
    """The prompt meta refresh of a page that names a reference, else None.

    The first that has the form of one counts. One in `noscript` sends away visitors without
    scripts and does not count.
    """
    metas = document.select("meta[http-equiv=refresh i][content]")
    for meta in metas[:_MAX_REFRESHES]:
        stated = _REFRESH.fullmatch((meta.attr("content") or "").strip(_SPACE))
        if stated is None or _is_for_others(meta):
            continue
        reference = _reference_in(stated["rest"] or "")
        if not reference or float(stated["seconds"] or 0) > _MAX_REFRESH_SECONDS:
            return None
        return Refresh(reference=reference[:REFERENCE_CHARS], base=_stated_base(document))
    return None


def _is_for_others(meta: Element) -> bool:
    """Whether it stands in `noscript`, or in no document: the content of a `template`."""
    above = meta.parent
    while isinstance(above, Element) and above.tag != "noscript":
        above = above.parent
    return not isinstance(above, Document)


def _reference_in(rest: str) -> str:
    """The text after `url=` and between quotes, both of which may be missing."""
    named = _REFRESH_URL.match(rest)
    text = rest[named.end() :] if named is not None else rest
    if text[:1] in {"'", '"'}:
        text = text[1:].partition(text[0])[0]
    return text.strip(_SPACE)


def _stated_base(document: Document) -> str | None:
    base = document.select_one("base[href]")
    href = base.attr("href") if base is not None else None
    return None if href is None else href.strip(_SPACE)[:REFERENCE_CHARS]


def canonical_of(document: Document, base: str) -> str | None:
    """What the page says is its address; reported, never trusted."""
    link = document.select_one("link[rel~=canonical i][href]")
    return absolute(link.attr("href"), base) if link is not None else None


def absolute(href: str | None, base: str) -> str | None:
    """*href* as an absolute http(s) address, or None."""
    try:
        joined = urljoin(base, (href or "").strip()[:_URL_CHARS])
    except ValueError:
        return None
    return joined.translate(_ESCAPES) if joined.lower().startswith(_WEB) else None


def make_links_absolute(root: Element | Document, base: str) -> None:
    """Resolve every link and image under *root*; targets that lead nowhere outside are dropped."""
    try:
        root.resolve_links(base)
    except ValueError:
        return
    elements = root.select("a[href]")
    if not _are_plain([element.attr("href") or "" for element in elements]):
        for element in elements:
            _keep_or_drop(element, "href", _KEPT_SCHEMES)
    for image in root.select("img"):
        _keep_image(image)


def _are_plain(targets: list[str]) -> bool:
    """Whether all of them can stay as they are: the common case, in a few passes over one text."""
    joined = "".join(targets)
    return (
        joined.isascii()
        and len(joined.encode().translate(None, _NEEDS_A_LOOK)) == len(joined)
        # A list, for it is the faster of the two and the common case looks at every one.
        and all([target.startswith(_WEB) for target in targets])  # noqa: C419
        and max(map(len, targets), default=0) <= _URL_CHARS
    )


def _keep_or_drop(element: Element, name: str, schemes: tuple[str, ...]) -> bool:
    href = element.attr(name) or ""
    if not href.startswith(schemes):
        href = href.strip()
        if not href[:8].lower().startswith(schemes):
            del element.attrs[name]
            return False
    safe = href.translate(_ESCAPES) if _UNSAFE.search(href) else href
    if len(safe) > _URL_CHARS or ("[" in safe and not _can_be_split(safe)):
        del element.attrs[name]
        return False
    if safe is not href and safe != element.attr(name):
        element.attrs[name] = safe
    return True


def _can_be_split(url: str) -> bool:
    """Whether brackets stand where they may: around an IPv6 host."""
    try:
        urlsplit(url)
    except ValueError:
        return False
    return True


def _keep_image(image: Element) -> None:
    """An image stays with its address and alternative text; decoration and trackers go."""
    alt = image.attr("alt")
    source = image.attr("src") or ""
    decorative = alt is not None and not alt.strip()
    if decorative or not source or not _keep_or_drop(image, "src", _WEB):
        if alt and alt.strip() and not decorative:
            image.replace_with(_text(alt))
        else:
            image.extract()
        return
    tidy = " ".join((alt or "").split())
    if tidy != alt:
        image.attrs["alt"] = tidy


def _text(data: str) -> Text:
    return Text(" ".join(data.split()))
