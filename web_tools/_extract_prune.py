"""Which part of a page is its content: chrome and link farms go, then a root is chosen.

Works on a tree without scripts, styles and hidden text. Nothing is removed that holds most of the
page. Measuring an element walks what is below it, so the number of measurements is bounded by the
size of the page (`Scale`): a page of nested `nav` costs no more than an honest one.
"""

import re

import attrs

from web_tools._extract_dom import Document, Element
from web_tools._extract_hidden import ink
from web_tools._extract_names import APART, chrome_words, opens_tail, words_present

_NEVER_TEXT = (
    "script, style, template, svg, canvas, iframe, frame, frameset, noframes, object, embed, applet, audio, video, "
    "select, datalist, textarea, option, progress, meter, map, head, dialog"
)
_MARKS_OF_PLACES = (
    "td.linenos, td.gutter, td.rouge-gutter, .line-numbers-rows, .linenodiv, span.lineno, span.linenos, "
    "td.blob-num, .hljs-ln-numbers, "
    "a.headerlink, a.anchorjs-link, a.hash-link, a.heading-anchor, a.header-anchor, a.octicon-link, "
    ".mw-editsection"
)
_CHROME_TAGS = (
    "nav, footer, aside, header, form, button, menu, label, fieldset, address, "
    "[role], [aria-hidden=true], [aria-modal=true]"
)
_CONTENT_TAGS = frozenset({"html", "body", "main", "article"})
_CHROME_ROLES_WORDS = """
    navigation banner contentinfo search complementary dialog alertdialog menu menubar toolbar tablist
"""
_CHROME_ROLES = frozenset(_CHROME_ROLES_WORDS.split())
_ROLELESS = frozenset(
    {"nav", "footer", "aside", "header", "form", "button", "menu", "label", "fieldset", "address"}
)
_CORE = "h1, main, article, [role=main]"
_PROSE = (
    "p, pre, blockquote, dd, li, td, "
    "div:not(:has(> div, > p, > ul, > ol, > table, > section, > article, > h2))"
)
_MARK = "x-drop"
_HEADING = re.compile("h[1-6]")

_MEASURED_NODES = 100_000_000
_MEASUREMENTS = 4_000
_LEFT_OVER = 600
"""Characters that must remain when something large is dropped for being nothing but chrome."""
_ADVICE = 300
"""Characters beyond which a `noscript` is more than a request to switch scripts on."""
_PROSE_BLOCKS = 150
_PROSE_LEVELS = 64
_SHARE, _LEAST = 85, 35
"""Percent of the page's prose, and of its text, that an element needs to be taken for the content."""
_CLOSE_SHARE, _CLOSE_LEAST = 60, 10
"""The same of an article: of the prose of what is around it, and of the page's text."""
_DESCENT = 256
_SIBLINGS = 200
_TAILS = 40


@attrs.define(kw_only=True)
class Scale:
    """Measures text, a bounded number of times."""

    left: int

    @classmethod
    def of(cls, nodes: int) -> "Scale":
        """A scale for a page of about *nodes* nodes."""
        return cls(left=min(_MEASUREMENTS, _MEASURED_NODES // max(nodes, 1)))

    @property
    def is_spent(self) -> bool:
        """Whether the rest of the page is to be taken as it is."""
        return self.left <= 0

    def size(self, element: Element) -> int:
        """Characters of an element, without white space."""
        self.left -= 1
        return ink(element.text)

    def linked(self, element: Element) -> int:
        """As `size`, of the links in it."""
        self.left -= 2
        return sum(ink(link.text) for link in element.select("a"))

    def holds(self, element: Element, selector: str) -> bool:
        """Whether anything below an element matches."""
        self.left -= 1
        return element.select_one(selector) is not None


def remove_machinery(document: Document) -> None:
    """Take out what never shows as text: scripts, styles, templates, embedded media, choices.

    The numbers of code lines and the marks that link to headings go with them.
    """
    for shadow in document.select("template[shadowrootmode]"):
        shadow.unwrap()
    document.remove(f"{_NEVER_TEXT}, {_MARKS_OF_PLACES}")
    if document.select_one("noscript") is not None:
        _settle_noscript(document)


def _settle_noscript(document: Document) -> None:
    """A `noscript` that holds the page is the page; any other is advice about scripts."""
    total = ink(document.text)
    for element in document.select("noscript")[:20]:
        size = ink(element.text)
        if size > _ADVICE and size * 2 > total:
            element.unwrap()
    document.remove("noscript")


def prune(document: Document, *, total: int, nodes: int, thorough: bool = True) -> int:
    """Take out navigation, banners and what stands beside the content.

    Args:
        document: The tree; changed.
        total: How much text it has, as `ink` counts.
        nodes: About how many nodes it has.
        thorough: Whether names and headings count, or only elements and roles.

    Returns:
        How much text is left.
    """
    scale = Scale.of(nodes)
    total = _drop(document, _chrome(document, total, scale), total)
    if thorough:
        total = _drop(document, _named(document, total, scale), total)
        total = _drop(document, _tails(document, total, scale), total)
    return total


def prose_ink(document: Document) -> int:
    """Characters of the page outside links."""
    return ink(document.text) - sum(ink(link.text) for link in document.select("a"))


def _drop(document: Document, elements: list[Element], total: int) -> int:
    """What is left of *total* without these elements; nested ones are no matter."""
    if not elements:
        return total
    for element in elements:
        element.attrs[_MARK] = ""
    document.remove(f"[{_MARK}]")
    return ink(document.text)


def _chrome(document: Document, total: int, scale: Scale) -> list[Element]:
    found = []
    for element in document.select(_CHROME_TAGS):
        if scale.is_spent:
            break
        if not _is_chrome(element) or _is_heading_part(element, scale):
            continue
        size = scale.size(element)
        is_rest = element.tag in {"nav", "footer"} and total - size > _LEFT_OVER
        if size * 2 < total or is_rest:
            found.append(element)
    return found


def _is_chrome(element: Element) -> bool:
    """Whether the tag or the role says so; a role on an element of another kind has its say."""
    role = element.attr("role")
    if element.tag in _CONTENT_TAGS:
        return False
    if role is None or element.tag in _ROLELESS or role in _CHROME_ROLES:
        return True
    return element.attr("aria-hidden") == "true" or element.attr("aria-modal") == "true"


def _is_heading_part(element: Element, scale: Scale) -> bool:
    """A button that is a heading's text, or an article's own header with its title."""
    if element.tag == "button":
        parent = element.parent
        return isinstance(parent, Element) and _HEADING.fullmatch(parent.tag) is not None
    if element.tag != "header" or not scale.holds(element, "h1"):
        return False
    return _inside_article(element)


def _inside_article(element: Element) -> bool:
    node: object = element.parent
    for _ in range(_PROSE_LEVELS):
        if not isinstance(node, Element):
            return False
        if node.tag in {"article", "main"} or node.attr("role") == "main":
            return True
        node = node.parent
    return False


def _named(document: Document, total: int, scale: Scale) -> list[Element]:
    named = [(e, e.attr("class"), e.attr("id")) for e in document.select("[class], [id]")]
    present = words_present([name for _, *names in named for name in names if name])
    if not present:
        return []
    found = []
    verdicts: dict[tuple[str | None, str | None], frozenset[str]] = {}
    for element, *names in named:
        key = (names[0], names[1])
        words = verdicts.get(key)
        if words is None:
            words = verdicts[key] = chrome_words(*key, present=present)
        if words and _is_beside(element, words, total, scale):
            found.append(element)
    return found


def _is_beside(element: Element, words: frozenset[str], total: int, scale: Scale) -> bool:
    if scale.is_spent or element.tag in _CONTENT_TAGS:
        return False
    size = scale.size(element)
    if scale.holds(element, _CORE):
        return False
    short = 400
    linked = scale.linked(element) if size > short else size
    if size * 3 >= total and not (linked * 5 > size * 3 and total - size > _LEFT_OVER):
        return False
    is_prose = size > short and linked * 4 < size
    return not is_prose or not words.isdisjoint(APART)


def _tails(document: Document, total: int, scale: Scale) -> list[Element]:
    found: list[Element] = []
    headings = [h for h in document.select("h2, h3, h4, h5, h6") if opens_tail(h.text[:200])]
    for heading in headings[:_TAILS]:
        if scale.is_spent:
            break
        section = _section_of(heading, total, scale)
        found.extend([section] if section is not heading else _run_of(heading, total, scale))
    return found


def _section_of(heading: Element, total: int, scale: Scale) -> Element:
    """The largest element that the heading opens and that is not most of the page."""
    node = heading
    for _ in range(6):
        parent = node.parent
        if not isinstance(parent, Element) or parent.tag in {"body", "main", "article"}:
            return node
        if not _is_first(node) or scale.size(parent) * 2 >= total:
            return node
        node = parent
    return node


def _is_first(node: Element) -> bool:
    """Whether no text stands before *node* in its parent."""
    before = node.previous_sibling
    for _ in range(10):
        if before is None:
            return True
        if before.text.strip():
            return False
        before = before.previous_sibling
    return False


def _run_of(heading: Element, total: int, scale: Scale) -> list[Element]:
    """The heading and what follows it up to the next one of its rank."""
    found = [heading]
    node = heading.next_sibling
    for _ in range(40):
        if node is None:
            break
        if isinstance(node, Element):
            is_next = _HEADING.fullmatch(node.tag) is not None and node.tag <= heading.tag
            if is_next or scale.size(node) * 2 >= total:
                break
            found.append(node)
        node = node.next_sibling
    return found


def choose_root(
    document: Document, *, total: int, nodes: int, closely: bool = False
) -> Element | None:
    """The deepest element that holds nearly all prose, or all text where there is little prose.

    *closely* is for a page of one article: what holds most of the prose is it, the rest is beside.
    """
    body = document.select_one("body")
    if body is None:
        return document.root
    prose = _Prose.of(body, nodes)
    whole = prose.below.get(body, 0)
    node = body
    share, least = (_CLOSE_SHARE, _CLOSE_LEAST) if closely else (_SHARE, _LEAST)
    while whole * prose.stride * 4 >= total:
        inner = max(prose.inside.get(node, ()), key=prose.below.__getitem__, default=None)
        if inner is None:
            break
        around = prose.below[node] if closely else whole
        if prose.below[inner] * 100 < around * share or ink(inner.text) * 100 < total * least:
            break
        node = inner
    return _only_inner(node, total)


@attrs.frozen(kw_only=True)
class _Prose:
    """How much prose is below each element, by an even sample: every *stride*-th block."""

    stride: int
    below: dict[Element, int] = attrs.field(factory=dict)
    inside: dict[Element, list[Element]] = attrs.field(factory=dict)
    """Of each element, the children that hold prose."""

    @classmethod
    def of(cls, body: Element, nodes: int) -> "_Prose":
        """The prose of a page."""
        blocks = body.select(_PROSE)
        most = max(min(_PROSE_BLOCKS, _MEASURED_NODES // max(nodes, 1)), 1)
        prose = cls(stride=-(-len(blocks) // most) or 1)
        for block in blocks[:: prose.stride]:
            if weight := _prose_of(block):
                prose.add(block, weight)
        return prose

    def add(self, block: Element, weight: int) -> None:
        """Count *weight* for every element around *block*."""
        inner, inner_is_new, node = block, False, block.parent
        for _ in range(_PROSE_LEVELS):
            if not isinstance(node, Element):
                return
            known = node in self.below
            if inner_is_new:
                self.inside.setdefault(node, []).append(inner)
            self.below[node] = self.below.get(node, 0) + weight
            inner, inner_is_new, node = node, not known, node.parent


def _prose_of(block: Element) -> int:
    size = ink(block.text)
    if size < 25:
        return 0
    linked = sum(ink(link.text) for link in block.select("a"))
    if linked * 2 > size:
        return 0
    if block.tag in {"li", "td"} and block.select_one("p, div") is not None:
        return 0
    weight = size - linked
    return weight * 2 if block.tag == "p" and size > 80 else weight


def _only_inner(node: Element, total: int) -> Element:
    """From *node* down, as long as one child holds nearly everything."""
    for _ in range(_DESCENT):
        if len(node) > 2 * _SIBLINGS:
            return node
        children = [child for child in node.children if isinstance(child, Element)]
        if not 0 < len(children) <= _SIBLINGS or node.tag in {"table", "ul", "ol", "dl", "pre"}:
            return node
        inner = max(children, key=lambda child: len(child.text))
        if ink(inner.text) * 10 < total * 9 or inner.tag in {"p", "li", "td", "tr", "tbody"}:
            return node
        node = inner
    return node
