"""Each vendor's adapter against the vendor's shapes: what is sent, what is read, what fails."""

import asyncio
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape

import attrs
import pytest

from egress.request import Wires
from web_tools.arguments import Recency, SearchRequest, WebToolCaps
from web_tools.contract.pack_port import as_web_search_provider
from web_tools.contract.provider import SEARCH_CREDENTIAL_NAME, SearchProvider
from web_tools.contract.tool import WebSearchAnswer, create_web_search_tool
from web_tools.errors import ProviderFault, WebErrorCode, WebToolError
from web_tools.providers.brave import create_brave_provider
from web_tools.providers.exa import create_exa_provider
from web_tools.providers.kagi import create_kagi_provider
from web_tools.providers.kiwix import create_kiwix_provider
from web_tools.providers.linkup import create_linkup_provider
from web_tools.providers.mediawiki import create_mediawiki_provider
from web_tools.providers.meilisearch import create_meilisearch_provider
from web_tools.providers.mojeek import create_mojeek_provider
from web_tools.providers.opensearch import create_opensearch_provider
from web_tools.providers.perplexity import create_perplexity_provider
from web_tools.providers.searxng import create_searxng_provider
from web_tools.providers.serper import create_serper_provider
from web_tools.providers.tavily import create_tavily_provider
from web_tools.providers.you import create_you_provider
from web_tools.search import run_search
from web_tools.testing import ApiAnswer, ScriptedApi, Sent, VendorRow, check_search_provider

SHAPES = Path(__file__).resolve().parents[2] / "cases" / "provider_shapes"
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
KEY = "k3y-SENTINEL/+=xyzzy"
SITE = "docs.example.com"


class Desk:
    """Gives one key for the one name; a back end that needs none must not ask."""

    def __init__(self, key: str = KEY) -> None:
        self.key = key
        self.asked: list[str] = []

    async def get(self, name: str, *, agent: str) -> str:
        assert (SEARCH_CREDENTIAL_NAME, "ava") == (name, agent)
        self.asked.append(name)
        return self.key


@attrs.frozen(kw_only=True)
class Row:
    """One vendor: how its back end is made, what its shape's request asks for, how rows look."""

    make: Callable[..., SearchProvider]
    shape: str
    query: str = "copper kettle"
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    rows: Callable[[Sent, Sequence[VendorRow]], Any]
    urls: tuple[str, ...]
    dates: tuple[str | None, ...]
    keyed: bool = True


def iso(row: VendorRow) -> str | None:
    return None if row.published is None else row.published.strftime("%Y-%m-%dT%H:%M:%SZ")


def naive(row: VendorRow) -> str | None:
    return None if row.published is None else row.published.strftime("%Y-%m-%dT%H:%M:%S")


def day(row: VendorRow) -> str | None:
    return None if row.published is None else row.published.strftime("%Y-%m-%d")


def http_date(row: VendorRow) -> str | None:
    return None if row.published is None else row.published.strftime("%a, %d %b %Y %H:%M:%S GMT")


def feed(_: Sent, rows: Sequence[VendorRow]) -> str:
    items = "".join(
        f"<item><title>{escape(r.title)}</title><link>{r.url.partition('.com')[2]}</link>"
        f"<description>{escape(r.snippet)}</description></item>"
        for r in rows
    )
    return f"<?xml version='1.0'?><rss><channel>{items}</channel></rss>"


def marked(text: str) -> str:
    """As a vendor that answers with HTML writes it."""
    return escape(text)


OPTIONS = {"site": SITE, "freshness": "P7D"}
VENDORS = {
    "brave": Row(
        make=create_brave_provider,
        shape="brave",
        query='copper "kettle',
        arguments={"count": 50, **OPTIONS},
        rows=lambda _, rows: {
            "type": "search",
            "web": {
                "results": [
                    {"title": marked(r.title), "url": r.url, "description": marked(r.snippet), "page_age": naive(r)}
                    for r in rows
                ]
            },
        },
        urls=("https://docs.example.com/copper", "https://docs.example.com/undated"),
        dates=("2026-11-28T00:00:00.000Z", None),
    ),
    "exa": Row(
        make=create_exa_provider,
        shape="exa",
        arguments=OPTIONS,
        rows=lambda _, rows: {
            "results": [
                {"title": r.title, "url": r.url, "highlights": [r.snippet], "publishedDate": iso(r)} for r in rows
            ]
        },
        urls=("https://docs.example.com/copper", "https://docs.example.com/undated"),
        dates=("2026-11-28T07:15:00.000Z", None),
    ),
    "searxng": Row(
        make=lambda **w: create_searxng_provider(base_url="http://127.0.0.1:8888", naive_dates="utc", **w),
        shape="searxng",
        query="!!g kettle",
        arguments={"freshness": "P7D"},
        rows=lambda sent, rows: {
            "query": sent.fields["q"],
            "results": [
                {"title": r.title, "url": r.url, "content": r.snippet, "publishedDate": naive(r)} for r in rows
            ],
            "unresponsive_engines": [],
        },
        urls=(
            "http://127.0.0.1:8001/python/library/asyncio-task.html",
            "http://127.0.0.1:8002/wiki/Kettle",
        ),
        dates=(None, "2026-09-01T00:00:00.000Z"),
        keyed=False,
    ),
    "mediawiki": Row(
        make=lambda **w: create_mediawiki_provider(
            api_url="https://docs.example.com/w/api.php", article_url="https://docs.example.com/wiki/", **w
        ),
        shape="mediawiki",
        query="intitle:x kettle",
        rows=lambda _, rows: {
            "batchcomplete": True,
            "query": {
                "search": [{"title": r.title, "snippet": marked(r.snippet), "timestamp": iso(r)} for r in rows]
            },
        },
        urls=("https://docs.example.com/wiki/Kettle",),
        dates=("2026-09-12T02:00:00.000Z",),
        keyed=False,
    ),
    "tavily": Row(
        make=lambda **w: create_tavily_provider(topic="news", **w),
        shape="tavily",
        arguments=OPTIONS,
        rows=lambda _, rows: {
            "results": [
                {"title": r.title, "url": r.url, "content": r.snippet, "published_date": http_date(r)} for r in rows
            ]
        },
        urls=("https://docs.example.com/copper", "https://elsewhere.example.net/k"),
        dates=("2026-11-28T07:15:00.000Z", None),
    ),
    "perplexity": Row(
        make=create_perplexity_provider,
        shape="perplexity_search",
        arguments=OPTIONS,
        rows=lambda _, rows: {
            "results": [{"title": r.title, "url": r.url, "snippet": r.snippet, "date": day(r)} for r in rows]
        },
        urls=("https://docs.example.com/copper",),
        dates=("2026-11-28T00:00:00.000Z",),
    ),
    "opensearch": Row(
        make=lambda **w: create_opensearch_provider(base_url="http://127.0.0.1:9200", index="docs", **w),
        shape="opensearch",
        query="title:x OR -y",
        arguments=OPTIONS,
        rows=lambda _, rows: {
            "timed_out": False,
            "_shards": {"failed": 0},
            "hits": {
                "hits": [
                    {
                        "_source": {"title": r.title, "url": r.url, "published": iso(r)},
                        "highlight": {"body": [marked(r.snippet)]},
                    }
                    for r in rows
                ]
            },
        },
        urls=("http://127.0.0.1:8001/kettle.html",),
        dates=("2026-11-28T07:15:00.000Z",),
    ),
    "kiwix": Row(
        make=lambda **w: create_kiwix_provider(base_url="https://docs.example.com", book="pydoc", **w),
        shape="kiwix",
        query="task group",
        rows=feed,
        urls=("https://docs.example.com/pydoc/library/asyncio-task.html",),
        dates=(None,),
        keyed=False,
    ),
    "you": Row(
        make=create_you_provider,
        shape="you",
        arguments=OPTIONS,
        rows=lambda _, rows: {
            "results": {
                "web": [{"title": r.title, "url": r.url, "snippets": [r.snippet], "page_age": naive(r)} for r in rows]
            }
        },
        urls=("https://docs.example.com/copper", "https://news.example.com/k"),
        dates=("2026-11-28T00:00:00.000Z", "2026-11-27T00:00:00.000Z"),
    ),
    "kagi": Row(
        make=create_kagi_provider,
        shape="kagi",
        arguments={"freshness": "P7D"},
        rows=lambda _, rows: {
            "meta": {"id": "m"},
            "data": {
                "search": [
                    {"title": r.title, "url": r.url, "snippet": marked(r.snippet), "time": iso(r)} for r in rows
                ]
            },
        },
        urls=("https://docs.example.com/copper",),
        dates=("2026-11-28T07:15:00.000Z",),
    ),
    "mojeek": Row(
        make=create_mojeek_provider,
        shape="mojeek",
        arguments=OPTIONS,
        rows=lambda _, rows: {
            "response": {
                "status": "OK",
                "results": [
                    {
                        "title": r.title,
                        "url": r.url,
                        "desc": r.snippet,
                        "pdate": r.published and int(r.published.timestamp()),
                    }
                    for r in rows
                ],
            }
        },
        urls=("https://docs.example.com/copper",),
        dates=("2026-11-27T07:15:00.000Z",),
    ),
    "linkup": Row(
        make=create_linkup_provider,
        shape="linkup",
        arguments={"site": SITE},
        rows=lambda _, rows: {
            "results": [{"type": "text", "name": r.title, "url": r.url, "content": r.snippet} for r in rows]
        },
        urls=("https://docs.example.com/copper",),
        dates=(None,),
    ),
    "serper": Row(
        make=create_serper_provider,
        shape="serper",
        rows=lambda _, rows: {
            "searchParameters": {},
            "organic": [{"title": r.title, "link": r.url, "snippet": r.snippet, "date": "2 days ago"} for r in rows],
        },
        urls=("https://docs.example.com/copper", "https://www.example.org/k"),
        dates=(None, None),
    ),
    "meilisearch": Row(
        make=lambda **w: create_meilisearch_provider(base_url="http://127.0.0.1:7700", index="docs", **w),
        shape="meilisearch",
        query="kettle",
        arguments=OPTIONS,
        rows=lambda _, rows: {
            "hits": [
                {"title": r.title, "url": r.url, "published": iso(r), "_formatted": {"body": r.snippet}} for r in rows
            ]
        },
        urls=("http://127.0.0.1:8001/kettle.html",),
        dates=("2026-11-28T00:00:00.000Z",),
    ),
}  # fmt: skip
EVERY_VENDOR = pytest.mark.parametrize("row", VENDORS.values(), ids=VENDORS.keys())
KEYED = {name: row for name, row in VENDORS.items() if row.keyed}
EVERY_KEYED = pytest.mark.parametrize("row", KEYED.values(), ids=KEYED.keys())


def shape(row: Row) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((SHAPES / f"{row.shape}.json").read_text())
    return body


def search(
    provider: SearchProvider, wires: Wires, query: str, desk: Desk | None = None, **arguments: Any
) -> WebSearchAnswer:
    tool = create_web_search_tool(
        provider=provider,
        config={"allowedHosts": ["127.0.0.1"]},
        credentials=desk or Desk(),
        clock=lambda: NOW,
        wires=wires,
    )
    return asyncio.run(tool.run({"query": query, **arguments}, agent="ava"))


def failure(provider: SearchProvider, answer: ApiAnswer, query: str = "kettle") -> WebToolError:
    with pytest.raises(WebToolError) as caught:
        search(provider, ScriptedApi([answer]).wires, query)
    assert caught.value.code is WebErrorCode.SEARCH_PROVIDER_ERROR
    return caught.value


def body_of(row: Row) -> Any:
    """The answer of the shape; kiwix's is drawn as JSON there, and XML on the wire."""
    if row.shape == "meilisearch":
        # The marks that our request asks for, where the shape has the vendor's default ones.
        marked_up = json.dumps(shape(row)["response"]["body"])
        marks = marked_up.replace("<em>", "\\ue0a1").replace("</em>", "\\ue0a2")
        return json.loads(marks)
    if row.shape != "kiwix":
        return shape(row)["response"]["body"]
    (item,) = shape(row)["response"]["body"]["xml"]["rss"]["channel"]["item"]
    return (
        f"<rss><channel><item><title>{item['title']}</title><link>{item['link']}</link>"
        f"<description>{item['description']}</description></item></channel></rss>"
    )


# What an adapter sends beside what a shape shows: its own marks around what it will escape.
_MORE = {"meilisearch": {"highlightPreTag": "\ue0a1", "highlightPostTag": "\ue0a2"}}
# What the shape's request is a picture of, and the linkup shape's date, which no row has.
_LESS = {"linkup": ("fromDate",), "serper": ("tbs",)}


@EVERY_VENDOR
def test_what_is_sent_is_the_vendors_request(row: Row) -> None:
    """Method, path, every field with its option's value, and the key where it belongs."""
    asked = shape(row)["request"]
    api = ScriptedApi([ApiAnswer(status=500)])
    desk = Desk()
    with pytest.raises(WebToolError):
        search(row.make(), api.wires, row.query, desk, **row.arguments)

    (sent,) = api.sent
    drop = _LESS.get(row.shape, ())
    expected = {k: v for k, v in asked.get("json", {}).items() if k not in drop}
    expected |= _MORE.get(row.shape, {})
    fields = {k: v.replace("<search.apiKey>", KEY) for k, v in asked.get("query", {}).items()}
    assert (asked["method"], asked["path"]) == (sent.method, sent.path)
    assert fields == sent.fields
    assert (expected or None) == _without_numbers_rounded(sent.json, expected)
    for name, value in asked.get("headers", {}).items():
        if name == "User-Agent":
            continue
        assert value.replace("<search.apiKey>", KEY) == sent.headers[name.lower()]
    assert row.keyed == bool(desk.asked)


def _without_numbers_rounded(body: Any, expected: Mapping[str, Any]) -> Any:
    """The shape of meilisearch shows another instant than this call's; the field is the same."""
    filters = (body or {}).get("filter")
    if filters is not None and "published_ts" in str(filters):
        assert "published_ts >= 1795435200" == filters[1]
    return body if body is None or body != expected else expected


@EVERY_VENDOR
def test_what_is_read_are_the_vendors_rows(row: Row) -> None:
    """URLs in order, dates by the table, nothing of the vendor's markup."""
    api = ScriptedApi([ApiAnswer(body=body_of(row))])
    found = search(row.make(), api.wires, row.query).envelope["results"]

    assert list(row.urls) == [each["url"] for each in found]
    assert list(row.dates) == [each.get("publishedAt") for each in found]
    # The page behind this one of meilisearch's writes about a tag.
    told = str(found).replace("a <b>raw</b> tag", "")
    assert not any(mark in told for mark in ("<strong>", "<em>", "<b>", "&amp;", "&quot;"))


@EVERY_VENDOR
def test_the_packs_door_works_over_every_vendor(row: Row) -> None:
    """`web:search` gets the same rows as plain hits, and a failure as its own."""
    api = ScriptedApi([ApiAnswer(body=body_of(row)), ApiAnswer(status=500, body=KEY)])
    tool = create_web_search_tool(
        provider=row.make(),
        config={"allowedHosts": ["127.0.0.1"]},
        credentials=Desk(),
        clock=lambda: NOW,
        wires=api.wires,
    )
    port = as_web_search_provider(tool, agent="ava")
    request = SearchRequest(query=row.query, limit=10, recency=Recency.WEEK)
    asked = partial(run_search, port, request, WebToolCaps(), clock=lambda: NOW)
    found = asyncio.run(asked())
    with pytest.raises(WebToolError) as caught:
        asyncio.run(asked())

    assert list(row.urls) == [result.url for result in found.results]
    assert not any(mark in found.results[0].snippet for mark in ("<strong>", "<em>", "&amp;"))
    assert ProviderFault.UNAVAILABLE == caught.value.detail
    assert KEY not in "".join(traceback.format_exception(caught.value)) + caught.value.cause


@EVERY_VENDOR
def test_every_failure_of_the_shape_is_a_failure(row: Row) -> None:
    """Each documented error, those with status 200 among them; "nothing found" is none."""
    for error in shape(row)["errors"]:
        headers = tuple((k.lower(), v) for k, v in error.get("headers", {}).items())
        answer = ApiAnswer(status=error["status"], headers=headers, body=error["body"])
        if "NO_RESULT" in str(error["body"]):
            assert [] == search(row.make(), ScriptedApi([answer]).wires, "k").envelope["results"]
            continue
        told = failure(row.make(), answer)

        assert told.detail is not None
        assert "invented" not in f"{told}{told.cause}"


@EVERY_VENDOR
def test_every_adapter_passes_the_kit(row: Row) -> None:
    """All rules of the contract, with an answer of the vendor's form; none is failed."""
    report = asyncio.run(
        check_search_provider(
            row.make, vendor=lambda sent, rows: ApiAnswer(body=row.rows(sent, rows))
        )
    )

    report.assert_conforms()
    assert sum(each.verdict == "passed" for each in report.rules) >= 14


SPELLINGS = (
    KEY, quote(KEY), quote(KEY, safe=""), quote_plus(KEY), quote(KEY, safe="").lower(),
    "".join(f"%{byte:02x}" for byte in KEY.encode()), quote(quote(KEY, safe=""), safe=""),
)  # fmt: skip
FAILURES = (
    *(
        ApiAnswer(status=status, body=f"<p>{spelling}</p>")
        for status in (200, 401, 429, 500)
        for spelling in SPELLINGS
    ),
    *(ApiAnswer(error=OSError(f"GET https://x/?k={spelling}")) for spelling in SPELLINGS),
    ApiAnswer(status=302, headers=(("location", f"https://x/?k={KEY}"),)),
)  # fmt: skip


@EVERY_KEYED
def test_a_sentinel_key_is_in_nothing(row: Row, caplog: pytest.LogCaptureFixture) -> None:
    """Not in the error, its causes, a traceback or a log, however a failure repeats it."""
    caplog.set_level(0)
    for answer in FAILURES:
        told = failure(row.make(), answer)
        shown = "".join(traceback.format_exception(told)) + told.cause + caplog.text

        assert not any(spelling in shown for spelling in SPELLINGS)


@pytest.mark.parametrize(
    ("name", "asked", "wire"),
    [
        ("brave", 12, 12), ("brave", 50, 20), ("exa", 50, 25), ("tavily", 12, 12), ("tavily", 50, 20),
        ("mediawiki", 50, 50), ("perplexity", 50, 20), ("you", 50, 50), ("serper", 12, 12),
    ],
)  # fmt: skip
def test_count_goes_out_as_far_as_the_vendor_takes_it(name: str, asked: int, wire: int) -> None:
    """A default of the vendor's never stands in its place (29)."""
    api = ScriptedApi([ApiAnswer(status=500)])
    with pytest.raises(WebToolError):
        search(VENDORS[name].make(), api.wires, "k", count=asked)

    sent = api.sent[0]
    told = {**sent.fields, **(sent.json or {})}
    numbers = [
        told[key] for key in ("count", "numResults", "max_results", "srlimit", "num") if key in told
    ]
    assert [str(wire)] == [str(number) for number in numbers]


@pytest.mark.parametrize("name", ["brave", "exa", "tavily", "you", "serper", "kagi", "searxng"])
def test_a_soft_site_filter_is_made_hard(name: str) -> None:
    """Rows of other hosts are dropped on label boundaries, and the query holds no `site:` (4)."""
    row = VENDORS[name]
    hosts = ("docs.example.com", "notdocs.example.com", "a.docs.example.com", "example.com")
    rows = [
        VendorRow(title="t", url=f"https://{host}/", snippet="s", published=None) for host in hosts
    ]
    api = ScriptedApi(lambda sent: ApiAnswer(body=row.rows(sent, rows)))
    found = search(row.make(), api.wires, "kettle", site=SITE).envelope["results"]

    assert ["https://docs.example.com/", "https://a.docs.example.com/"] == [r["url"] for r in found]
    assert "site:" not in (api.sent[0].body or b"").decode() + str(api.sent[0].fields)


@pytest.mark.parametrize("name", ["tavily", "you", "kagi", "mojeek", "serper", "kiwix"])
def test_a_query_that_is_only_an_operator_is_a_phrase(name: str) -> None:
    """It is quoted, and a refusal of it is told without it (6)."""
    query = "site:figma.com"
    api = ScriptedApi([ApiAnswer(status=400, body=f'{{"message": "{query}"}}')])
    with pytest.raises(WebToolError) as caught:
        search(VENDORS[name].make(), api.wires, query)

    told = "".join(traceback.format_exception(caught.value)) + caught.value.cause
    assert f'"{query}"' in str([*api.sent[0].fields.values(), *(api.sent[0].json or {}).values()])
    assert query not in told


@pytest.mark.parametrize(
    ("query", "sent"),
    [("kettle", "kettle"), ("!!g kettle", '"!!g" kettle'), (":de x", '":de" x'), ("<3 x", '"<3" x'),
     ("a !b c", 'a "!b" c'), ("a  b", "a b"), ("what? ok", "what? ok")],
)  # fmt: skip
def test_searxng_gets_no_bang_and_checks_the_echo(query: str, sent: str) -> None:
    """Tokens that it would read are quoted, and an echo that lacks something fails the call."""
    make = VENDORS["searxng"].make
    api = ScriptedApi(lambda s: ApiAnswer(body={"query": s.fields["q"], "results": []}))
    search(make(), api.wires, query)
    told = failure(make(), ApiAnswer(body={"query": "x", "results": []}), query)

    assert sent == api.sent[0].fields["q"]
    assert ProviderFault.BAD_ANSWER == told.detail


def test_searxng_without_an_answering_engine_has_failed() -> None:
    """200, no rows and unresponsive engines is no empty answer; 302 and a 403 page are none."""
    make = VENDORS["searxng"].make
    broken = {"query": "kettle", "results": [], "unresponsive_engines": [["other", "timeout"]]}
    bang = ApiAnswer(status=302, headers=(("location", "https://www.google.com/"),))

    assert ProviderFault.UNAVAILABLE == failure(make(), ApiAnswer(body=broken)).detail
    assert ProviderFault.UNAVAILABLE == failure(make(), bang).detail
    assert ProviderFault.UNAVAILABLE == failure(make(), ApiAnswer(status=403, body="<p>no")).detail


@pytest.mark.parametrize(
    ("name", "answer", "fault", "retryable"),
    [
        ("brave", ApiAnswer(status=401), ProviderFault.UNAUTHORIZED, False),
        ("brave", ApiAnswer(status=429, headers=(("x-ratelimit-remaining", "0, 5"), ("x-ratelimit-reset", "1, 9"))), ProviderFault.RATE_LIMITED, True),
        ("tavily", ApiAnswer(status=432), ProviderFault.QUOTA, False),
        ("you", ApiAnswer(status=402), ProviderFault.QUOTA, False),
        ("linkup", ApiAnswer(status=429, body={"error": {"code": "INSUFFICIENT_FUNDS_CREDITS"}}), ProviderFault.QUOTA, False),
        ("serper", ApiAnswer(status=400, body={"message": "Not enough credits"}), ProviderFault.QUOTA, False),
        ("mojeek", ApiAnswer(body={"response": {"status": "ERROR: Daily Limit Reached"}}), ProviderFault.QUOTA, False),
        ("mediawiki", ApiAnswer(body={"error": {"code": "maxlag"}}), ProviderFault.UNAVAILABLE, True),
        ("opensearch", ApiAnswer(body={"timed_out": True, "_shards": {"failed": 0}, "hits": {"hits": []}}), ProviderFault.UNAVAILABLE, True),
        ("opensearch", ApiAnswer(body={"timed_out": False, "_shards": {"failed": 1}, "hits": {"hits": []}}), ProviderFault.UNAVAILABLE, True),
        ("kagi", ApiAnswer(body={"data": [{"t": 0, "url": "https://a.example/"}]}), ProviderFault.BAD_ANSWER, False),
        ("brave", ApiAnswer(status=500), ProviderFault.UNAVAILABLE, True),
        ("brave", ApiAnswer(status=404), ProviderFault.UNAVAILABLE, False),
        ("brave", ApiAnswer(body={"type": "search", "query": {"search_operators": {"applied": True}}}), ProviderFault.BAD_ANSWER, False),
    ],
)  # fmt: skip
def test_what_went_wrong_has_its_word(
    name: str, answer: ApiAnswer, fault: ProviderFault, retryable: bool
) -> None:
    """The model learns which kind of failure it was, and whether to try again."""
    told = failure(VENDORS[name].make(), answer)

    assert (fault, retryable) == (told.detail, told.retryable)


@pytest.mark.parametrize("query", ["k" * 401, "k " * 51])
def test_brave_and_tavily_refuse_what_the_vendor_would(query: str) -> None:
    """Nothing is sent for a query beyond the vendor's limits."""
    api = ScriptedApi([])
    makers = (
        [create_brave_provider] if " " in query else [create_brave_provider, create_tavily_provider]
    )
    for make in makers:
        with pytest.raises(WebToolError) as caught:
            search(make(), api.wires, query)

        assert (ProviderFault.QUERY_REFUSED, []) == (caught.value.detail, api.sent)


def test_a_self_hosted_back_end_needs_its_host_named() -> None:
    """The refusal names the setting; other private addresses stay closed all the same (19)."""
    rows = [
        {"url": "http://10.0.0.1/", "title": "t", "content": "c"},
        {"url": "http://127.0.0.1:8001/", "title": "t", "content": "c"},
    ]
    api = ScriptedApi(lambda sent: ApiAnswer(body={"query": sent.fields["q"], "results": rows}))
    provider = create_searxng_provider(base_url="http://127.0.0.1:8888")
    tool = create_web_search_tool(provider=provider, config={}, wires=api.wires)
    with pytest.raises(WebToolError) as caught:
        asyncio.run(tool.run({"query": "kettle"}))

    assert (ProviderFault.NOT_REACHABLE, []) == (caught.value.detail, api.sent)
    assert "allowedHosts" in caught.value.message
    found = search(provider, api.wires, "kettle").envelope["results"]
    assert ["http://127.0.0.1:8001/"] == [row["url"] for row in found]


def test_one_wiki_knows_no_other_site() -> None:
    """Another host finds nothing and costs no request; its own, and what stands above it, do."""
    make = VENDORS["mediawiki"].make
    api = ScriptedApi([ApiAnswer(body={"query": {"search": []}})])

    assert [] == search(make(), api.wires, "k", site="example.org").envelope["results"]
    assert [] == api.sent
    search(make(), api.wires, "k", site="example.com", freshness="P1D", count=3)
    # It cannot filter by date, so more is asked for and filtered here.
    assert ["50"] == [sent.fields["srlimit"] for sent in api.sent]


@pytest.mark.parametrize("name", ["brave", "exa", "tavily", "searxng", "meilisearch"])
def test_a_list_without_a_single_object_is_no_list_of_rows(name: str) -> None:
    """Nothing found and nothing understood are different answers; one odd row is left out."""
    row = VENDORS[name]
    good = [VendorRow(title="t", url="https://a.example/", snippet="s", published=None)]

    def answer(sent: Sent, *, odd_only: bool) -> ApiAnswer:
        body = json.loads(json.dumps(row.rows(sent, good)))
        rows = body["web"]["results"] if name == "brave" else body.get("results", body.get("hits"))
        rows[:] = [7, None] if odd_only else [7, None, *rows]
        return ApiAnswer(body=body)

    found = search(row.make(), ScriptedApi(partial(answer, odd_only=False)).wires, "kettle")
    with pytest.raises(WebToolError) as caught:
        search(row.make(), ScriptedApi(partial(answer, odd_only=True)).wires, "kettle")

    assert 1 == len(found.envelope["results"])
    assert ProviderFault.BAD_ANSWER == caught.value.detail


def test_an_answer_beyond_2_mib_is_refused_for_its_size() -> None:
    """Whether or not it would be JSON where it is cut."""
    body = '{"type": "search"}' + " " * (2 * 1024 * 1024)

    assert "2 MiB" in failure(create_brave_provider(), ApiAnswer(body=body)).cause


def test_a_key_is_not_sent_without_tls() -> None:
    """Over plain HTTP only to a host that the operator has named."""
    api = ScriptedApi([])
    provider = create_brave_provider(base_url="http://api.example.org")
    with pytest.raises(WebToolError) as caught:
        search(provider, api.wires, "k")

    assert (ProviderFault.NOT_REACHABLE, []) == (caught.value.detail, api.sent)


def test_a_feed_that_declares_entities_is_refused() -> None:
    """No entity is ever expanded."""
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa">]><rss><channel><item><title>&a;</title></item></channel></rss>'

    assert ProviderFault.BAD_ANSWER == failure(VENDORS["kiwix"].make(), ApiAnswer(body=bomb)).detail


def test_meilisearch_marks_what_it_escapes() -> None:
    """A tag of the page is text, and the highlight is gone without a space."""
    hit = {
        "title": "t",
        "url": "https://a.example/",
        "_formatted": {"body": "un\ue0a1ex\ue0a2pected <b>raw</b>"},
    }
    found = search(
        VENDORS["meilisearch"].make(), ScriptedApi([ApiAnswer(body={"hits": [hit]})]).wires, "k"
    )

    assert "unexpected <b>raw</b>" == found.envelope["results"][0]["snippet"]
