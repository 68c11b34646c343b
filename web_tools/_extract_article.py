"""Whether a page says of itself that it is one article, and where it says its text is.

Only what the page declares counts here, and it decides no more than how much beside the article is
taken for side matter: a page that lies about itself loses its own.
"""

from collections.abc import Set as AbstractSet
from typing import Final

from web_tools._extract_dom import Document, Element
from web_tools._extract_hidden import ink

_DECLARED: Final = (
    "meta[property='article:published_time' i], meta[name='article:published_time' i], "
    "[itemtype$='Article' i], [itemtype$='BlogPosting' i]"
)
_OPEN_GRAPH: Final = "meta[property='og:type' i][content='article' i]"
_TYPES: Final = frozenset(
    [
        "AnalysisNewsArticle",
        "Article",
        "BlogPosting",
        "NewsArticle",
        "OpinionNewsArticle",
        "Report",
        "ReportageNewsArticle",
        "ReviewNewsArticle",
        "ScholarlyArticle",
        "TechArticle",
    ]
)
_OTHERS: Final = frozenset(
    [
        "CollectionPage",
        "DiscussionForumPosting",
        "ItemList",
        "Product",
        "ProductGroup",
        "QAPage",
        "SearchResultsPage",
    ]
)
"""Types of pages that hold more than one text, whatever else they are declared as."""
_BODIES: Final = "[itemprop~=articleBody], [property~='schema:articleBody'], [property=articleBody]"
_MAX_BODIES: Final = 20
_FEW_ARTICLES: Final = 3
"""Site software declares every page as an article; one of many `article` elements is a list."""
_BODY_INK: Final = 250
_BODY_SHARE: Final = 6
_CAPTIONS: Final = "figcaption, [class*=caption i]"
_PICTURES: Final = "img, picture, video, iframe"
_MAX_CAPTIONS: Final = 200
"""So many are looked at: each is measured, and they can be nested."""
_CAPTION_INK: Final = 600


def declares_article(document: Document, types: AbstractSet[str]) -> bool:
    """Whether the page is declared as one article: by its metadata, or by the types of its JSON-LD."""
    if not _OTHERS.isdisjoint(types):
        return False
    if not _TYPES.isdisjoint(types) or document.select_one(_DECLARED) is not None:
        return True
    if document.select_one(_OPEN_GRAPH) is None:
        return False
    return len(document.select("article")) <= _FEW_ARTICLES


def declared_body(document: Document, *, total: int) -> Element | None:
    """The element that is marked as the article's text, if one alone has a good part of *total*."""
    least = max(_BODY_INK, total // _BODY_SHARE)
    bodies = [
        body
        for body in document.select(_BODIES)[:_MAX_BODIES]
        if body.tag not in {"meta", "link", "html", "body"} and ink(body.text) >= least
    ]
    return bodies[0] if len(bodies) == 1 else None


def without_captions(root: Element) -> Element:
    """*root* without what stands under its pictures, which are kept with their alternative text."""
    for caption in root.select(_CAPTIONS)[:_MAX_CAPTIONS]:
        if ink(caption.text) <= _CAPTION_INK and _is_of_a_picture(caption):
            caption.extract()
    return root


def _is_of_a_picture(caption: Element) -> bool:
    """Whether it captions a picture: that of a table or of code is content."""
    if caption.tag != "figcaption":
        return caption.tag != "caption"
    figure = caption.parent
    return isinstance(figure, Element) and figure.select_one(_PICTURES) is not None
