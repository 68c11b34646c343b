"""One page, from a URL to text that a model can use.

The order is fixed: the guarded fetch (every hop checked), the status, extraction (which
refuses what is not text, JSON or XML), a meta refresh as one more hop through the same
checks, the cut, the citation. What comes out is plain text; the fence is put on by who
shows it to a model.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final, Protocol

import attrs

from citations.citation import KnowledgeCitation
from citations.digests import document_id, revision_id
from egress.chain import Hop
from egress.client import Fetched
from egress.errors import (
    DeadlineExceeded,
    EgressError,
    TooManyRedirects,
    UrlRejected,
)
from egress.ports import FetchLimits
from egress.url import Target, parse_target, resolve_location
from web_tools.arguments import ReadRequest
from web_tools.errors import WebErrorCode, WebToolError, error_from_egress, is_retryable_status
from web_tools.extract import (
    Detail,
    Extracted,
    ExtractionFailed,
    FeedEntry,
    TextOrigin,
    UnsupportedContent,
)
from web_tools.hops import HopAttendant
from web_tools.paging import FromOffset, Outlining, Part, View, list_of, view_of
from web_tools.robots import RobotsDisallowed, RobotsUnreachable

__all__ = ("Client", "Page", "PageReader", "TextExtractor")

_MAX_RETRY_AFTER_CHARS: Final = 64
_PDF: Final = "application/pdf"
_MARKDOWN: Final = frozenset({"text/markdown", "text/x-markdown"})
# A text of this size is looked through beside the loop and not in it.
_MANY_CHARS: Final = 32_768


class Client(Protocol):
    """What fetches; `egress.client.GuardedClient` is one."""

    async def fetch(self, url: str | Target, *, limits: FetchLimits | None = None) -> Fetched:
        """The final answer to a GET of *url*, every hop checked."""
        ...


class TextExtractor(Protocol):
    """What makes text of a body; `web_tools.extract.Extractor` is one."""

    async def extract(self, body: bytes, *, content_type: str | None, url: str) -> Extracted:
        """Readable text of a response body."""
        ...


@attrs.frozen(kw_only=True)
class Page:
    """What one read gives. Plain values: nothing here is fenced.

    Attributes:
        url: The canonical form of the URL that was asked for.
        final_url: The canonical URL that the text came from.
        content_type: Media type without parameters.
        text: Of the extracted text what the request asks for, cut to its `max_bytes`.
        bytes: Bytes of UTF-8 in `text`.
        total_bytes: Bytes of UTF-8 in the whole extracted text.
        total_chars: Characters in the whole extracted text.
        truncated: Something was dropped: of the body, of the extracted text, or by the cut.
        fetched_at: When the final answer had arrived.
        citation: Its revision is the digest of the whole extracted text.
        detail: ``empty_content`` or ``interstitial``; the read succeeded all the same.
        hops: The answered requests before the final one, meta refreshes included.
        downgraded: Whether some hop went from https to http.
        hidden_chars: Characters that a person looking at the page would not have seen.
        whole: The extracted text before the cut: what the citation digests.
        view: What `text` is of `whole`, and where reading goes on.
        author: As `published` and `modified`, the page's own word about itself, as data.
        coverage: Percent of the visible text that was kept; None where nothing was chosen.
        entries: Of a feed.
    """

    url: str
    final_url: str
    content_type: str
    text: str = attrs.field(repr=False)
    bytes: int
    total_bytes: int
    total_chars: int
    truncated: bool
    fetched_at: datetime
    citation: KnowledgeCitation
    detail: Detail | None
    hops: tuple[Hop, ...]
    downgraded: bool
    status: int
    title: str | None
    language: str | None
    charset: str
    charset_source: str
    hidden_chars: int
    whole: str = attrs.field(repr=False)
    view: View = attrs.field(repr=False)
    author: str | None = None
    published: str | None = None
    modified: str | None = None
    canonical: str | None = None
    coverage: int | None = None
    entries: tuple[FeedEntry, ...] = attrs.field(default=(), repr=False)

    @property
    def left_chars(self) -> int:
        """Characters after what is shown of a text that is read from one place on."""
        ends = [piece.end for piece in self.view.ranges]
        return self.total_chars - ends[0] if self.view.next_offset is not None and ends else 0


class PageReader:
    """Reads pages for one run through its guarded client.

    Args:
        client: Fetches; belongs to the caller, who closes it.
        extractor: Makes text; belongs to the caller, who closes it.
        clock: Gives the time of day, aware.
        follow: Is asked before a meta refresh is followed, with the page and where it leads; what
            it raises stops the read. Redirects are the client's to ask about.
        hops: The attendant of the client, when it has one: settles what the cache held.

    A request brings the bounds of its read: redirects and seconds count over all of its
    fetches, meta refreshes included, and the seconds over the extraction of each page as well.
    """

    def __init__(
        self,
        client: Client,
        extractor: TextExtractor,
        *,
        clock: Callable[[], datetime],
        follow: Callable[[Target, Target], None] | None = None,
        hops: HopAttendant | None = None,
    ) -> None:
        self._client = client
        self._extractor = extractor
        self._clock = clock
        self._follow = follow
        self._hops = hops

    async def read(self, request: ReadRequest) -> Page:
        """The page that *request* names.

        Raises:
            WebToolError: WEB_URL_NOT_ALLOWED, WEB_EGRESS_DENIED (with the one violation),
                WEB_HTTP_ERROR, WEB_FETCH_FAILED, WEB_TOO_MANY_REDIRECTS or
                WEB_CONTENT_TYPE_UNSUPPORTED, as the table of codes says.
        """
        asked = _parse(request.url)
        if self._hops is not None:
            self._hops.begin()
        trail = _Trail(
            target=asked,
            max_redirects=request.max_redirects,
            until=asyncio.get_running_loop().time() + request.timeout_seconds,
        )
        while True:
            fetched, trail = await self._fetch(trail)
            fetched_at = self._clock()
            _require_success(fetched)
            extracted = await self._extract(fetched, trail)
            following = trail.refreshed(fetched, extracted)
            if following is None:
                view = await _viewed(extracted, request)
                return _page(asked, fetched, extracted, trail, view, fetched_at)
            if self._follow is not None:
                self._follow(fetched.final, following.target)
            trail = following

    async def _fetch(self, trail: "_Trail") -> tuple[Fetched, "_Trail"]:
        """The answer at the end of the redirects from where *trail* stands."""
        try:
            limits = trail.limits(asyncio.get_running_loop().time())
            fetched = await self._client.fetch(trail.target, limits=limits)
        except EgressError as error:
            raise error_from_egress(error, before=trail.before) from error
        except RobotsDisallowed as error:
            raise _disallowed(error) from error
        except RobotsUnreachable as error:
            raise _unreachable(error) from error
        if self._hops is not None:
            fetched = await self._hops.settle(fetched)
        return fetched, trail.answered(fetched)

    async def _extract(self, fetched: Fetched, trail: "_Trail") -> Extracted:
        """The text of an answer, in what is left of the read's seconds."""
        deadline = asyncio.timeout_at(trail.until)
        try:
            async with deadline:
                return await self._text_of(fetched)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            late = DeadlineExceeded(host=fetched.final.host, hop=len(trail.hops))
            raise error_from_egress(late, before=trail.before) from error

    async def _text_of(self, fetched: Fetched) -> Extracted:
        try:
            return await self._extractor.extract(
                fetched.body, content_type=fetched.header("content-type"), url=fetched.final.url
            )
        except UnsupportedContent as error:
            raise WebToolError(
                WebErrorCode.CONTENT_TYPE_UNSUPPORTED,
                _unsupported(error),
                detail="unsupported_content_type",
                cause=str(error),
            ) from error
        except ExtractionFailed as error:
            raise WebToolError(
                WebErrorCode.FETCH_FAILED,
                "No text could be made of the page.",
                detail="extraction_failed",
                cause=str(error),
            ) from error


@attrs.frozen(kw_only=True)
class _Trail:
    """Where a read stands: what to request next, what was requested before, and until when."""

    target: Target
    max_redirects: int
    until: float
    hops: tuple[Hop, ...] = ()
    downgraded: bool = False

    @property
    def before(self) -> tuple[Target, ...]:
        return tuple(hop.target for hop in self.hops)

    def limits(self, now: float) -> FetchLimits:
        """What is left of the read's redirects and, at the loop's time *now*, of its seconds."""
        if now >= self.until:
            raise DeadlineExceeded(host=self.target.host, hop=len(self.hops))
        return FetchLimits(
            max_redirects=self.max_redirects - len(self.hops), timeout_seconds=self.until - now
        )

    def answered(self, fetched: Fetched) -> "_Trail":
        """After a fetch."""
        return attrs.evolve(
            self,
            target=fetched.final,
            hops=(*self.hops, *fetched.hops),
            downgraded=self.downgraded or fetched.downgraded,
        )

    def refreshed(self, fetched: Fetched, extracted: Extracted) -> "_Trail | None":
        """After a page that sends its reader on: one more hop, with the same cap (R12).

        None when it does not, or only to itself.
        """
        if extracted.refresh is None:
            return None
        host, hop = fetched.final.host, len(self.hops)
        try:
            target = _refresh_target(fetched.final, extracted.refresh, extracted.refresh_base)
            if target == fetched.final:
                return None
            if hop >= self.max_redirects:
                raise TooManyRedirects(host=host, hop=hop, detail=f"more than {self.max_redirects}")
        except EgressError as error:
            before = (*self.before, fetched.final)
            raise error_from_egress(error, before=before) from error
        return attrs.evolve(
            self,
            target=target,
            hops=(*self.hops, Hop(target=fetched.final, status=fetched.status)),
            downgraded=self.downgraded
            or (fetched.final.scheme == "https" and target.scheme == "http"),
        )


def _refresh_target(page: Target, reference: str, base: str | None) -> Target:
    """What a refresh of *page* names, by the rules of a `Location` and no others.

    The page's base is read by the same rules, and a base that they refuse refuses the refresh.
    """
    return resolve_location(page if base is None else resolve_location(page, base), reference)


def _parse(url: str) -> Target:
    try:
        return parse_target(url)
    except UrlRejected as error:
        raise error_from_egress(error) from error


def _unsupported(error: UnsupportedContent) -> str:
    """What the page is, in our words: a type that a server made up is not repeated."""
    found = "PDF" if error.media_type == _PDF else error.found
    what = "" if found is None else f" It is {found}."
    return f"The page is not text, JSON or XML.{what}"


def _disallowed(error: RobotsDisallowed) -> WebToolError:
    return WebToolError(
        WebErrorCode.URL_NOT_ALLOWED,
        "The site asks in its robots.txt that this page is not read.",
        detail="robots_disallowed",
        cause=f"robots.txt of {error}",
    )


def _unreachable(error: RobotsUnreachable) -> WebToolError:
    return WebToolError(
        WebErrorCode.FETCH_FAILED,
        "What the site's robots.txt says could not be learned.",
        retryable=True,
        detail="robots_unreachable",
        cause=f"robots.txt of {error}",
    )


def _require_success(fetched: Fetched) -> None:
    """Refuse every final answer but 2xx; the words of its body are nobody's text."""
    status = fetched.status
    if 200 <= status <= 299:
        return
    raise WebToolError(
        WebErrorCode.HTTP_ERROR,
        f"The server answered with status {status}.",
        retryable=is_retryable_status(status),
        detail=f"http_{status}",
        retry_after=_retry_after(fetched),
        cause=f"status {status} from {fetched.final.origin}",
    )


def _retry_after(fetched: Fetched) -> str | None:
    value = fetched.header("retry-after")
    if value is None or not (value.isascii() and value.isprintable()):
        return None
    return value[:_MAX_RETRY_AFTER_CHARS]


def _page(
    asked: Target,
    fetched: Fetched,
    extracted: Extracted,
    trail: _Trail,
    view: View,
    fetched_at: datetime,
) -> Page:
    return Page(
        url=asked.document_url,
        final_url=fetched.final.document_url,
        content_type=extracted.media_type,
        text=view.text,
        bytes=len(view.text.encode()),
        total_bytes=len(extracted.text.encode()),
        total_chars=len(extracted.text),
        truncated=view.cut or fetched.truncated or extracted.truncated,
        fetched_at=fetched_at,
        citation=_cite(fetched.final, extracted.text, fetched_at),
        detail=extracted.detail,
        hops=trail.hops,
        downgraded=trail.downgraded,
        status=fetched.status,
        title=extracted.title,
        language=extracted.language,
        charset=extracted.charset,
        charset_source=extracted.charset_source.value,
        hidden_chars=extracted.hidden_chars,
        whole=extracted.text,
        view=view,
        author=extracted.author,
        published=extracted.published,
        modified=extracted.modified,
        canonical=extracted.canonical,
        coverage=extracted.coverage,
        entries=extracted.entries,
    )


async def _viewed(extracted: Extracted, request: ReadRequest) -> View:
    """What the request asks for of a text; what walks through a long one does so in a thread."""
    part, text = request.part, extracted.text
    if part is None or isinstance(part, FromOffset) or len(text) <= _MANY_CHARS:
        return _view(extracted, part, request.max_bytes)
    return await asyncio.to_thread(_view, extracted, part, request.max_bytes)


def _view(extracted: Extracted, part: Part | None, most: int) -> View:
    if isinstance(part, Outlining) and extracted.entries:
        return list_of([_listed(entry) for entry in extracted.entries], most=most)
    marked_up = extracted.media_type in _MARKDOWN or extracted.origin in {
        TextOrigin.MAIN,
        TextOrigin.STREAMED,
        TextOrigin.FULL_PAGE,
    }
    return view_of(extracted.text, part, most=most, marked_up=marked_up)


def _listed(entry: FeedEntry) -> str:
    told = (entry.published, entry.title or entry.summary, entry.url)
    return "- " + " ".join(filter(None, told))


def _cite(final: Target, text: str, fetched_at: datetime) -> KnowledgeCitation:
    url = final.document_url
    return KnowledgeCitation(
        source_id=final.host,
        document_id=document_id(url),
        path=url,
        revision_id=revision_id(text),
        retrieved_at=fetched_at,
    )
