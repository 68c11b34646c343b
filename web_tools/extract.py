"""Readable text of a response body, made where a hostile page cannot hurt the host.

`Extractor` sends pages to worker processes that can be killed. Only bodies whose cost is bounded by
a linear scan are read in the host itself, so the event loop is never held for long.
"""

import asyncio
import importlib
import sys
from types import TracebackType
from typing import Self

import attrs

from web_tools._extract_bounds import MAX_INPUT_BYTES, MAX_TEXT_BYTES, is_small
from web_tools._extract_pool import Job, Pool, PoolLimits
from web_tools._extract_result import (
    Detail,
    Extracted,
    ExtractError,
    ExtractionFailed,
    FailureReason,
    FeedEntry,
    TextOrigin,
    UnsupportedContent,
)
from web_tools.charset import CharsetSource

__all__ = (
    "MAX_INPUT_BYTES",
    "MAX_TEXT_BYTES",
    "CharsetSource",
    "Detail",
    "ExtractError",
    "ExtractLimits",
    "Extracted",
    "ExtractionFailed",
    "Extractor",
    "FailureReason",
    "FeedEntry",
    "TextOrigin",
    "UnsupportedContent",
)


_PAGE_MODULE = "web_tools._extract_page"


@attrs.frozen(kw_only=True)
class ExtractLimits:
    """What extraction may take.

    `inline` False sends every page to a worker; True reads small, bounded ones in the host.
    `strip_seconds` is for the answer of last resort after a page ran out of `page_seconds`.
    """

    workers: int = 2
    pages_per_worker: int = 300
    page_seconds: float = 5.0
    strip_seconds: float = 2.0
    inline: bool = True


class Extractor:
    """Owner of the worker processes; an async context manager for one event loop.

    Workers are started by the first page that needs one. After `aclose` none is left, and
    every further page fails as closed.
    """

    def __init__(self, limits: ExtractLimits | None = None) -> None:
        self._limits = limits or ExtractLimits()
        self._pool = Pool(
            PoolLimits(workers=self._limits.workers, pages_per_worker=self._limits.pages_per_worker)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Kill the workers and wait until they are gone; twice is as good as once."""
        await self._pool.aclose()

    async def extract(self, body: bytes, *, content_type: str | None, url: str) -> Extracted:
        """Readable text of a response body.

        Args:
            body: The decoded (uncompressed) body or its beginning.
            content_type: The header's value as sent, or None.
            url: Absolute http(s) address of the final response; links are resolved against it.

        Returns:
            The text and what is known about it; `origin` says when it is only a stripped page.

        Raises:
            UnsupportedContent: The body is not text, JSON or XML.
            ExtractionFailed: No text could be made of this page; the next one is not affected.
        """
        if self._pool.closed:
            raise ExtractionFailed(FailureReason.CLOSED)
        if self._limits.inline and _is_bounded(body, content_type):
            await _load_parser()
            return _extract_here(body, content_type, url)
        return await self._extract_in_worker(body[: MAX_INPUT_BYTES + 1], content_type, url)

    async def _extract_in_worker(
        self, body: bytes, content_type: str | None, url: str
    ) -> Extracted:
        page = Job(
            mode="page",
            body=body,
            content_type=content_type,
            url=url,
            seconds=self._limits.page_seconds,
        )
        try:
            return await self._pool.run(page)
        except ExtractionFailed as failure:
            if failure.reason is not FailureReason.TIMEOUT:
                raise
        strip = attrs.evolve(page, mode="strip", seconds=self._limits.strip_seconds)
        return await self._pool.run(strip)


async def _load_parser() -> None:
    """Import the parser off the loop, once: it takes tens of milliseconds."""
    if _PAGE_MODULE not in sys.modules:
        await asyncio.to_thread(importlib.import_module, _PAGE_MODULE)
        await asyncio.to_thread(importlib.import_module, "turbohtml.detect")


def _is_bounded(body: bytes, content_type: str | None) -> bool:
    from web_tools._extract_media import may_be_html

    return is_small(body, is_html=may_be_html(content_type))


def _extract_here(body: bytes, content_type: str | None, url: str) -> Extracted:
    from web_tools._extract_page import extract_page

    try:
        return extract_page(body, content_type, url)
    except ExtractError:
        raise
    # The boundary of a page, as in a worker: a parser's fault is a failure of this page.
    except Exception as error:
        raise ExtractionFailed(FailureReason.PARSER_FAULT) from error
