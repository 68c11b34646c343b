"""Words in class names, ids and headings by which pages mark what is not their content.

Measured on the labelled pages: a word is listed when elements so named hold next to none of the
wanted text over many unrelated sites.
"""

import re

_CHROME_WORDS = """
    accounts ads advert advertisement adverts announcement bio branding breadcrumb breadcrumbs burger byline captcha
    cart close colophon commentform compare consent contact contentinfo cookie cookies copyright crumb cta currency
    disqus drawer dropdown feedback filters flyout follow footer gdpr hamburger jetpack jp legal login logo
    mainmenu mainnav masthead megamenu menu menubar menuitem menus meta metadata modal nav navbar navigation
    newsletter nocontent notification offcanvas optin outbrain pager pagination paywall picker policies popover
    popular popup preferences prev print privacy profile promo radio reactions register related respond rss search
    share sharedaddy sharing shop shopping sidebar signin signup skip social sponsor sponsored sponsors stats subheader
    submenu subnav subscribe subscription switcher tabs taboola tags taxonomy teaser toolbar topbar topnav trending
    utility vcard visually weather wishlist
"""
CHROME = frozenset(_CHROME_WORDS.split())
"""Around the content: dropped unless it reads like prose."""

_APART_WORDS = """
    comments consent cookie cookies copyright crosssell disclaimer disqus footer gdpr modal newsletter outbrain popup
    recommendations recommended related reviews sidebar taboola testimonials trending upsell
"""
APART = frozenset(_APART_WORDS.split())
"""Prose of its own beside the content: dropped even when it is prose."""

_NAMED = CHROME | APART
_NONE: frozenset[str] = frozenset()
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_QUALIFIED = re.compile(
    r"(?:^|[-_])(?:has|with|without|no|is|not)[-_]|results|(?:post|product|woocommerce)[-_]?(?:tabs|summary)"
    r"|tabs?[-_](?:content|panel|pane)|:",
    re.IGNORECASE,
)
"""`has-sidebar` is about the element's surroundings, `search-results` is content, `md:menu` styling."""
_NAME_CHARS = 256

_SUBJECT = (
    r"posts?|articles?|stor(?:y|ies)|products?|items?|news|reading|content|topics?|links|videos?|from|for you|in|"
    r"like this|discussions?|questions|resources|searches|pages"
)
_TAIL = re.compile(
    r"you (?:may|might) (?:also )?(?:like|enjoy|be interested)"
    rf"|(?:related|recommended|similar|popular|trending|more|latest|recent|other|featured) (?:\w{{1,30}} ){{0,2}}(?:{_SUBJECT})"
    r"|related|recommended|read (?:more|next|also)|see also|share this|customer (?:reviews|also)|customers (?:also|who)"
    r"|reviews?$|comments?(?: \(?\d{1,6}\)?)?$|\d{1,6} (?:comments|responses|replies|reviews)|leave a (?:reply|comment)"
    r"|post a comment|join the (?:conversation|discussion)|recently viewed|frequently bought|people also"
    r"|most (?:read|popular|viewed)|sign up|subscribe|newsletter|follow us|about the author"
    r"|stay (?:connected|informed|updated)|up next|what['\u2019]s (?:next|new)|explore more|keep reading"
    r"|don['\u2019]t miss|advertisement|sponsored|top stories|get the latest",
    re.IGNORECASE,
)
_TAIL_FIRST_WORDS = """
    about advertisement comment comments customer customers don't don\u2019t explore featured follow frequently get join
    keep latest leave more most newsletter other people popular post read recently recent recommended related review
    reviews see share sign similar sponsored stay subscribe top trending up what's what\u2019s you
"""
_TAIL_FIRST = frozenset(_TAIL_FIRST_WORDS.split())
"""Every first word of `_TAIL`: most headings are told apart by it alone."""
_TAIL_CHARS = 60


def words_present(names: list[str]) -> frozenset[str]:
    """The listed words that occur in any of these class lists and ids: of most pages a few."""
    joined = " ".join([name[:_NAME_CHARS] for name in names])
    return _NAMED.intersection(map(str.lower, set(_WORD.findall(joined))))


def chrome_words(*names: str | None, present: frozenset[str]) -> frozenset[str]:
    """The listed words in an element's class list and id, of those *present* on its page."""
    spelled = " ".join([name[:_NAME_CHARS] for name in names if name])
    lowered = spelled.lower()
    # A list, for it is the faster of the two and most names have none of them.
    if not any([word in lowered for word in present]):  # noqa: C419
        return _NONE
    words = (
        word.lower()
        for part in spelled.split()
        if _QUALIFIED.search(part) is None
        for word in _WORD.findall(part)
    )
    return present.intersection(words)


def opens_tail(heading: str) -> bool:
    """Whether a heading announces what follows the content: related pages, comments, offers."""
    words = heading.split(None, 9)
    if not words or (words[0].lower() not in _TAIL_FIRST and not words[0].isdigit()):
        return False
    text = " ".join(words)
    return len(text) <= _TAIL_CHARS and _TAIL.match(text) is not None
