"""One response body to readable text: the whole order of a page, without I/O or clock.

Runs inside a worker, or in the host for bodies that `is_small` bounds.
Source: the rules page, "A page: from bytes to text".
"""

import re
from typing import Any

import attrs

from web_tools import _extract_links as links
from web_tools import _extract_media as media
from web_tools import _extract_thin as thin
from web_tools._extract_about import About, about_of, linked_data
from web_tools._extract_article import declared_body, declares_article, without_captions
from web_tools._extract_bounds import bound, cut_text
from web_tools._extract_dom import Document, Element, parse_page
from web_tools._extract_feed import feed_of
from web_tools._extract_hidden import has_ink, ink, remove_hidden, show_waiting
from web_tools._extract_markdown import to_markdown
from web_tools._extract_prune import choose_root, prose_ink, prune, remove_machinery
from web_tools._extract_result import Detail, Extracted, TextOrigin, UnsupportedContent
from web_tools._extract_strip import strip_markup
from web_tools.charset import Decoded, decode

_SURROGATES = re.compile("[\ud800-\udfff]")
_LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,8}(?:[-_][A-Za-z0-9]{1,8}){0,4}")
_TITLE_CHARS = 500
_NO_BREAK = re.compile(r"&(?:nbsp|#160|#[xX][aA]0);")


@attrs.frozen(kw_only=True)
class _Opened:
    """A body whose kind is known: its type, its text and whether its end was cut off."""

    media_type: str
    decoded: Decoded
    truncated: bool

    @property
    def is_html(self) -> bool:
        return self.media_type in {media.HTML, media.XHTML}


@attrs.frozen(kw_only=True)
class _Read:
    """Markdown of a page, and where it was taken from."""

    text: str
    origin: TextOrigin
    hidden_chars: int
    coverage: int | None = None


def extract_page(body: bytes, content_type: str | None, url: str) -> Extracted:
    """Readable text of a response body.

    Raises:
        UnsupportedContent: The type or the first bytes are not text, JSON or XML.
    """
    opened = _open(body, content_type)
    return _from_html(opened, url) if opened.is_html else _from_text(opened, url)


def strip_page(body: bytes, content_type: str | None) -> Extracted:
    """As `extract_page`, without a parser: tags are cut away and everything between them kept.

    Raises:
        UnsupportedContent: As `extract_page`.
    """
    opened = _open(body, content_type)
    if not opened.is_html:
        return _from_text(opened)
    return _result(opened, strip_markup(opened.decoded.text), origin=TextOrigin.STRIPPED)


def _open(body: bytes, content_type: str | None) -> _Opened:
    stated = media.parse_content_type(content_type)
    kind = media.kind_of(stated.essence)
    if kind is None:
        raise UnsupportedContent(stated.essence or media.UNKNOWN)
    undecided = kind is media.Kind.UNDECIDED
    found = media.binary_content(body, declared_text=not undecided)
    if found is not None:
        raise UnsupportedContent(stated.essence or media.UNKNOWN, found=found)
    bounded = bound(body, is_html=kind is not media.Kind.TEXT)
    decoded = decode(
        bounded.body,
        header_charset=stated.charset,
        is_html=kind is not media.Kind.TEXT,
    )
    essence = stated.essence if not undecided else None
    return _Opened(
        media_type=essence or media.sniffed_type(decoded.text),
        decoded=decoded,
        truncated=bounded.truncated,
    )


def _from_text(opened: _Opened, url: str = "") -> Extracted:
    result = _result(opened, opened.decoded.text, origin=TextOrigin.DECODED)
    feed = feed_of(opened.decoded.text, url) if media.may_be_feed(opened.media_type) else None
    return result if feed is None else attrs.evolve(result, title=feed.title, entries=feed.entries)


def _result(
    opened: _Opened, text: str, *, origin: TextOrigin, detail: Detail | None = None
) -> Extracted:
    kept, dropped = cut_text(text)
    if detail is None and not kept.strip():
        detail = Detail.EMPTY_CONTENT
    return Extracted(
        text="" if detail is Detail.EMPTY_CONTENT else kept,
        media_type=opened.media_type,
        charset=opened.decoded.charset,
        charset_source=opened.decoded.source,
        detail=detail,
        truncated=opened.truncated or dropped,
        origin=origin,
    )


def _from_html(opened: _Opened, url: str) -> Extracted:
    markup = _with_plain_spaces(opened.decoded.text)
    document = parse_page(markup)
    base = links.base_of(document, url)
    title = _title_of(document)
    linked = linked_data(document) if "ld+json" in markup else []
    about = about_of(document, linked)
    language = _language_of(document)
    canonical = links.canonical_of(document, base)
    refresh = links.refresh_of(document)
    read = _read(document, markup, base, linked, about)
    text = _without_surrogates(read.text)
    detail = thin.detail_of(text, title, markup)
    result = _result(opened, text, origin=read.origin, detail=detail)
    return attrs.evolve(
        result,
        title=title,
        language=language,
        canonical=canonical,
        author=_printable(about.author),
        published=about.published,
        modified=about.modified,
        coverage=read.coverage,
        refresh=_without_surrogates(refresh.reference) if refresh is not None else None,
        refresh_base=_without_surrogates(refresh.base)
        if refresh is not None and refresh.base is not None
        else None,
        hidden_chars=read.hidden_chars,
    )


def _read(document: Document, markup: str, base: str, linked: list[Any], about: About) -> _Read:
    """The page's content; when that is thin, the first richer reading of the same page."""
    is_article = declares_article(document, about.types)
    read = _main(markup, document, base, TextOrigin.MAIN, is_article=is_article)
    if has_ink(read.text, thin.THIN_INK):
        return read
    streamed = parse_page(markup)
    if show_waiting(streamed, at_least=thin.THIN_INK):
        again = _main(markup, streamed, base, TextOrigin.STREAMED)
        if ink(again.text) >= thin.THIN_INK:
            return again
    structured = thin.article_body(linked)
    if ink(structured) >= thin.THIN_INK:
        text = f"{thin.STRUCTURED_MARK}\n\n{structured}"
        return attrs.evolve(read, text=text, origin=TextOrigin.STRUCTURED_DATA, coverage=None)
    whole = _whole(parse_page(markup), base)
    return whole if ink(whole.text) > ink(read.text) else read


def _main(
    markup: str, document: Document, base: str, origin: TextOrigin, *, is_article: bool = False
) -> _Read:
    nodes = 2 * markup.count("<")
    remove_machinery(document)
    hidden = remove_hidden(document)
    before = ink(document.text)
    left = prune(document, total=before, nodes=nodes)
    if left * 2 < before:
        document, left = _unless_misled(markup, document, left, origin)
    root = _root_of(document, left, nodes, is_article=is_article)
    shown = ink(root.text) if root is not None else 0
    return _Read(
        text=_markdown(root, base),
        origin=origin,
        hidden_chars=hidden,
        coverage=min(100 * shown // before, 100) if before else None,
    )


def _root_of(document: Document, total: int, nodes: int, *, is_article: bool) -> Element | None:
    """What is taken of a pruned page: of an article its text, of any other page nearly all of it."""
    if not is_article:
        return choose_root(document, total=total, nodes=nodes)
    root = declared_body(document, total=total)
    if root is None:
        root = choose_root(document, total=total, nodes=nodes, closely=True)
    return None if root is None else without_captions(root)


def _unless_misled(
    markup: str, pruned: Document, left: int, origin: TextOrigin
) -> tuple[Document, int]:
    """*pruned*, or the page pruned less if most of its prose went with its chrome; and its size.

    A page's content can bear a word that elsewhere means chrome.
    """
    document = parse_page(markup)
    if origin is TextOrigin.STREAMED:
        show_waiting(document, at_least=thin.THIN_INK)
    remove_machinery(document)
    remove_hidden(document)
    if prose_ink(pruned) * 10 >= prose_ink(document) * 3:
        return pruned, left
    total, nodes = ink(document.text), 2 * markup.count("<")
    return document, prune(document, total=total, nodes=nodes, thorough=False)


def _whole(document: Document, base: str) -> _Read:
    remove_machinery(document)
    hidden = remove_hidden(document)
    text = _markdown(document.select_one("body"), base)
    return _Read(text=text, origin=TextOrigin.FULL_PAGE, hidden_chars=hidden, coverage=100)


def _markdown(root: Element | None, base: str) -> str:
    if root is None:
        return ""
    links.make_links_absolute(root, base)
    return to_markdown(root)


def _with_plain_spaces(markup: str) -> str:
    """No-break spaces as spaces: the writer would spell them as references, and marks beside them as tags."""
    if "\xa0" in markup:
        markup = markup.replace("\xa0", " ")
    return _NO_BREAK.sub(" ", markup) if "&" in markup else markup


def _printable(text: str | None) -> str | None:
    return None if text is None else _without_surrogates(text)


def _without_surrogates(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text)
    return text


def _title_of(document: Document) -> str | None:
    for selector in ("head > title", "body > title", "h1"):
        found = document.select_one(selector)
        if found is not None and (title := " ".join(found.text.split())):
            return _without_surrogates(title[:_TITLE_CHARS])
    return None


def _language_of(document: Document) -> str | None:
    root = document.select_one("html")
    match = _LANGUAGE_TAG.match((root.attr("lang") if root is not None else None) or "")
    return match[0].replace("_", "-") if match else None
