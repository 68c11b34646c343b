"""What to do with a page whose content came out as almost nothing."""

import re
from collections.abc import Iterator
from typing import Any

from web_tools._extract_hidden import has_ink, ink
from web_tools._extract_result import Detail
from web_tools._extract_strip import strip_markup

THIN_INK = 200
STRUCTURED_MARK = "[From the page's structured data, not from its visible text]"

_LD_NODES = 20_000

_INTERSTITIAL_TITLES = re.compile(
    r"just a moment|attention required!|checking your browser|ddos-guard|pardon our interruption|"
    r"are you (?:a )?(?:human|robot)|verify(?:ing)? (?:that )?you are (?:a )?human|human verification|"
    r"robot check|security check(?:point)?$|one moment, please|please wait\s?\.\.\.|access to this page has been denied|"
    r"vercel security checkpoint|un momento|nur einen moment|un instant|только минуту|请稍候|しばらくお待ちください",
    re.IGNORECASE,
)
_INTERSTITIAL_MARKS = (
    "_cf_chl_opt", "/cdn-cgi/challenge-platform/", "cf-browser-verification", "captcha-delivery.com", "px-captcha",
    "_Incapsula_Resource", "gokuProps", "sucuri_cloudproxy_js", "/.well-known/ddos-guard", "vercel/security",
)  # fmt: skip
_INTERSTITIAL_INK = 1_000
_LOADER_WORDS = frozenset(
    [
        "loading",
        "load",
        "please",
        "wait",
        "enable",
        "javascript",
        "js",
        "is",
        "required",
        "to",
        "run",
        "this",
        "app",
        "view",
        "site",
        "page",
        "website",
        "use",
        "your",
        "browser",
        "and",
        "reload",
        "you",
        "need",
        "for",
        "the",
        "in",
        "it",
        "a",
        "an",
        "of",
        "without",
        "disabled",
        "doesn't",
        "work",
        "properly",
        "we're",
        "sorry",
        "but",
    ]
)
_WORD = re.compile(r"[^\W_]+")


def article_body(linked: list[Any]) -> str:
    """The longest `articleBody` of a page's JSON-LD, without markup, or ''."""
    best = max(_bodies(linked), key=len, default="")
    return strip_markup(best) if "<" in best or "&" in best else best.strip()


def detail_of(text: str, title: str | None, markup: str) -> Detail | None:
    """What is to be said of a page that gave *text*."""
    if has_ink(text, _INTERSTITIAL_INK):
        return None
    size = ink(text)
    if _is_interstitial(title, markup):
        return Detail.INTERSTITIAL
    if size == 0:
        return Detail.EMPTY_CONTENT
    return Detail.EMPTY_CONTENT if size < THIN_INK and _says_nothing(text, title) else None


def _is_interstitial(title: str | None, markup: str) -> bool:
    if title is not None and _INTERSTITIAL_TITLES.match(title[:200].strip()) is not None:
        return True
    return any(mark in markup for mark in _INTERSTITIAL_MARKS)


def _says_nothing(text: str, title: str | None) -> bool:
    """Whether a text is only the page's own name or an app's loading notice."""
    words = set(_WORD.findall(text.lower()))
    known = set(_WORD.findall((title or "").lower()))
    return words <= known or words <= _LOADER_WORDS


def _bodies(value: Any) -> Iterator[str]:
    """Every `articleBody` in parsed JSON-LD; walks a bounded number of nodes, without recursion."""
    waiting = [value]
    for _ in range(_LD_NODES):
        if not waiting:
            return
        node = waiting.pop()
        if isinstance(node, dict):
            body = node.get("articleBody")
            if isinstance(body, str):
                yield body
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
