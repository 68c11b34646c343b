"""Which part of a page is its content: chrome and link farms go, then a root is chosen.

Works on a tree without scripts, styles and hidden text. Nothing is removed that holds most of the
page. Effort is bounded: text is measured only for candidates, and only up to a budget.
"""

import re

from web_tools._extract_dom import Document, Element
from web_tools._extract_hidden import ink

_NEVER_TEXT = (
    "script, style, template, svg, canvas, iframe, frame, frameset, noframes, object, embed, applet, audio, video, "
    "select, datalist, textarea, option, progress, meter, map, head, dialog, noscript"
)
_CHROME_TAGS = (
    "nav, footer, aside, header, form, button, menu, [role=navigation], [role=banner], [role=contentinfo], "
    "[role=search], [role=complementary], [role=dialog], [role=alertdialog], [role=menu], [role=menubar], "
    "[role=toolbar], [role=tablist], [aria-hidden=true], [aria-modal=true]"
)
_CHROME_NAMES = re.compile(
    r"(?:^|[\s_-])(?:nav|navbar|navigation|menu|submenu|topbar|toolbar|breadcrumbs?|crumbs?|sidebar|side-bar|"
    r"footer|site-?header|masthead|cookies?|consent|gdpr|newsletter|subscri(?:be|ption)|sign-?up|"
    r"share|sharing|social|socials|related|recommend(?:ed|ations?)?|promo|adverts?|ads?|advertisement|sponsored?|"
    r"popup|modal|overlay|banner|skip-?(?:link|nav|to)|pagination|pager|widget|tags?-?(?:list|cloud)|"
    r"comment-?form|login|search-?(?:form|box|bar)|toc|table-of-contents|print-?only|sr-only|screen-reader-text|"
    r"visually-?hidden|outbrain|taboola|disqus|dropdown|mega-?menu|off-?canvas|drawer|copyright|legal)"
    r"(?:$|[\s_-])",
    re.IGNORECASE,
)
_BLOCKS = "div, section, ul, ol, table, p, dl, span"
_MARK = "x-drop"
_NAME_CHARS = 256


def remove_machinery(document: Document) -> None:
    """Take out what never shows as text: scripts, styles, templates, embedded media, choices."""
    document.remove(_NEVER_TEXT)


def prune(document: Document) -> None:
    """Take out navigation, banners and link farms that hold less than most of the text."""
    total = ink(document.text)
    budget = 40 * total + 10_000
    for candidates in (_chrome(document), _farms(document)):
        marked = False
        for element in candidates:
            size = ink(element.text)
            budget -= size
            if budget < 0:
                break
            if size * 2 < total:
                element.attrs[_MARK] = ""
                marked = True
        if marked:
            document.remove(f"[{_MARK}]")


def _chrome(document: Document) -> list[Element]:
    found = document.select(_CHROME_TAGS)
    verdicts: dict[tuple[str | None, str | None], bool] = {}
    for element in document.select("body [class], body [id]"):
        key = (element.attr("class"), element.attr("id"))
        verdict = verdicts.get(key)
        if verdict is None:
            verdict = verdicts[key] = any(
                name is not None and _CHROME_NAMES.search(name[:_NAME_CHARS]) is not None
                for name in key
            )
        if verdict:
            found.append(element)
    return found


def _farms(document: Document) -> list[Element]:
    del document
    return []


def choose_root(document: Document) -> Element | None:
    """The deepest element that holds nearly all of the remaining text."""
    node = document.select_one("body")
    if node is None:
        return document.root
    total = ink(node.text)
    for _ in range(256):
        inner = _dominant_child(node, total)
        if inner is None:
            return node
        node = inner
    return node


def _dominant_child(node: Element, total: int) -> Element | None:
    children = [child for child in node.children if isinstance(child, Element)]
    if len(children) > 200:
        return None
    for child in children:
        if ink(child.text) * 10 >= total * 9:
            return child
    return None
