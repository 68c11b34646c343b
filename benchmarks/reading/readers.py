"""The readers that are measured: ours, and those of other people that are installed.

`pip install trafilatura lxml_html_clean readability-lxml markdownify resiliparse html2text`
installs them all; one that is missing is named and left out. Each gets bytes and an address, and
gives text.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from web_tools._extract_page import extract_page  # the path is set above

Reader = Callable[[bytes, str], str]


def _ours() -> Reader:
    return lambda body, url: extract_page(body, "text/html", url).text


def _turbohtml() -> Reader:
    parse = _module("turbohtml").parse
    return lambda body, _: parse(_decoded(body)).main_text()


def _trafilatura() -> Reader:
    extract = _module("trafilatura").extract
    return lambda body, url: extract(_decoded(body), url=url, include_comments=False) or ""


def _readability() -> Reader:
    document, markdown = _module("readability").Document, _module("markdownify").markdownify
    return lambda body, _: markdown(document(_decoded(body)).summary())


def _markdownify() -> Reader:
    markdown = _module("markdownify").markdownify
    return lambda body, _: markdown(_decoded(body), strip=["script", "style"])


def _resiliparse() -> Reader:
    extract = _module("resiliparse.extract.html2text").extract_plain_text
    return lambda body, _: extract(_decoded(body), main_content=True)


def _html2text() -> Reader:
    convert = _module("html2text").html2text
    return lambda body, _: convert(_decoded(body))


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _decoded(body: bytes) -> str:
    return body.decode("utf-8", "replace")


MAKERS: dict[str, Callable[[], Reader]] = {
    "ours": _ours,
    "turbohtml": _turbohtml,
    "trafilatura": _trafilatura,
    "readability": _readability,
    "markdownify": _markdownify,
    "resiliparse": _resiliparse,
    "html2text": _html2text,
}
"""Name -> what loads a reader; `ImportError` when it is not installed."""


def installed() -> tuple[dict[str, Reader], list[str]]:
    """The readers that can be loaded, and the names of the others."""
    found, missing = {}, []
    for name, make in MAKERS.items():
        try:
            found[name] = make()
        except ImportError:
            missing.append(name)
    return found, missing
