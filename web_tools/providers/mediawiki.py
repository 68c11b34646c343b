"""A MediaWiki through its own API: one wiki, so another site than its host finds nothing.

Every token goes out as a phrase, so that `intitle:` and the like are words. Errors come with
status 200. The date is that of the last edit. Snippets are HTML; titles are text.
"""

from typing import Any, Final
from urllib.parse import quote

from egress.url import Target
from web_tools.contract.provider import SearchProvider, SearchRow
from web_tools.contract.sites import is_under
from web_tools.errors import InvalidSetup, ProviderFault, SearchProviderError
from web_tools.providers._ask import (
    Adapter,
    Outgoing,
    Question,
    Rows,
    bad_shape,
    base_url_of,
    items,
    make_provider,
    refused_query,
)
from web_tools.providers._dates import as_is
from web_tools.providers._literal import quote_all
from web_tools.providers._text import text

__all__ = ("create_mediawiki_provider",)

_MAX_COUNT: Final = 50
_API: Final = "/api.php"
_FAULTS: Final = {
    "maxlag": ProviderFault.UNAVAILABLE,
    "readonly": ProviderFault.UNAVAILABLE,
    "search-error": ProviderFault.UNAVAILABLE,
    "ratelimited": ProviderFault.RATE_LIMITED,
    "nosrsearch": ProviderFault.QUERY_REFUSED,
}


def create_mediawiki_provider(
    *, api_url: str, article_url: str | None = None, contact: str | None = None, **wiring: Any
) -> SearchProvider:
    """The wiki whose API is at *api_url* as a back end. It needs no credential.

    Args:
        api_url: Such as ``https://en.wikipedia.org/w/api.php``.
        article_url: What a page's title is added to, such as ``https://en.wikipedia.org/wiki/``;
            by default the wiki's own ``index.php?title=``.
        contact: How its operator can reach yours, for the User-Agent, as big wikis ask.
        wiring: A limiter and clocks of tests.

    Raises:
        InvalidSetup: *api_url* is no URL that ends in api.php.
    """
    target = base_url_of(api_url)
    if not target.path_query.endswith(_API):
        raise InvalidSetup("api_url", "must end in api.php")
    base = api_url.removesuffix(_API)
    articles = article_url or f"{target.url.removesuffix(_API)}/index.php?title="
    agent = {} if contact is None else {"User-Agent": f"agent-runtime-pack ({contact})"}
    return make_provider(
        Adapter(
            name="mediawiki",
            base_url=base or target.origin,
            ask=lambda question: _ask(question, base_url_of(articles.partition("?")[0]), agent),
            read=lambda document, _: _read(document, articles),
        ),
        **wiring,
    )


def _ask(question: Question, wiki: Target, headers: dict[str, str]) -> Outgoing | None:
    options = question.options
    if options.site is not None and not is_under(options.site, wiki):
        return None
    sought = quote_all(question.query)
    if not sought:
        raise refused_query("nothing but quotes")
    # It cannot filter by date, so as many as there may be are asked for and filtered here.
    count = _MAX_COUNT if options.freshness is not None else min(options.count, _MAX_COUNT)
    fields = [
        ("action", "query"),
        ("list", "search"),
        ("format", "json"),
        ("formatversion", "2"),
        ("srsearch", sought),
        ("srwhat", "text"),
        ("srlimit", str(count)),
        ("sroffset", "0"),
        ("srprop", "snippet|timestamp"),
        ("srenablerewrites", "0"),
        ("maxlag", "5"),
    ]
    return Outgoing(path=_API, fields=fields, headers=headers)


def _read(document: Any, articles: str) -> Rows:
    told = document.get("error") if isinstance(document, dict) else None
    if isinstance(told, dict):
        code = told.get("code")
        fault = _FAULTS.get(code) if isinstance(code, str) else None
        raise SearchProviderError(fault or ProviderFault.BAD_ANSWER, "an error with status 200")
    if isinstance(document, dict) and document.get("warnings"):
        raise bad_shape("a warning: an option was not honoured")
    return [
        SearchRow(
            title=text(row.get("title")),
            url=_page(articles, row.get("title")),
            snippet=row.get("snippet"),
            published_at=as_is(row.get("timestamp")),
        )
        for row in items(document, "query", "search")
    ]


def _page(articles: str, title: Any) -> str:
    return articles + quote(title.replace(" ", "_"), safe="/:") if isinstance(title, str) else ""
