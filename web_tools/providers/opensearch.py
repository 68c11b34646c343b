"""OpenSearch or Elasticsearch over an index of the operator's, with the fields of `docs/backends.md`.

`multi_match` reads no operators. An answer with failed shards, or one that timed out, is partial:
a failure. The highlighter escapes what stands around its tags.
"""

import re
from typing import Any, Final

from web_tools.contract.provider import SearchProvider, SearchRow
from web_tools.errors import InvalidSetup, ProviderFault, SearchProviderError
from web_tools.providers._ask import Adapter, Outgoing, Question, Rows, items, make_provider, member
from web_tools.providers._dates import as_is
from web_tools.providers._text import BREAK, text

__all__ = ("create_opensearch_provider",)

# Source: the restrictions on index names of the create-index API.
_INDEX: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,254}")


def create_opensearch_provider(*, base_url: str, index: str, **wiring: Any) -> SearchProvider:
    """The index as a back end; `search.apiKey` is what stands after ``Basic`` (base64).

    Raises:
        InvalidSetup: A part is not of its form.
    """
    if _INDEX.fullmatch(index) is None:
        raise InvalidSetup("index", "is no name of an index")
    return make_provider(
        Adapter(
            name="opensearch",
            base_url=base_url,
            ask=lambda question: _ask(question, index),
            read=_read,
            key_header=("Authorization", "Basic {}"),
            # A request of ours that it cannot parse is no fault of the query's.
            statuses={400: ProviderFault.BAD_ANSWER},
        ),
        **wiring,
    )


def _ask(question: Question, index: str) -> Outgoing:
    options = question.options
    filters: list[dict[str, Any]] = []
    if options.site is not None:
        # A prefix also finds com.example.docsearch; the tool matches on label boundaries.
        reversed_host = ".".join(reversed(options.site.split(".")))
        filters.append({"prefix": {"host_reversed": reversed_host}})
    if options.freshness is not None:
        filters.append({"range": {"published": {"gte": options.freshness.since}}})
    match = {"multi_match": {"query": question.query, "fields": ["title^3", "body"]}}
    body = {
        "size": options.count,
        "_source": ["title", "url", "published"],
        "query": {"bool": {"must": [match], "filter": filters}},
        "highlight": {
            "encoder": "html",
            "fields": {"body": {"fragment_size": 200, "number_of_fragments": 2}},
        },
    }
    return Outgoing(path=f"/{index}/_search", json=body)


def _read(document: Any, _: Outgoing) -> Rows:
    if member(document, "timed_out") is not False or member(document, "_shards", "failed") != 0:
        raise SearchProviderError(ProviderFault.UNAVAILABLE, "a partial answer")
    return [_row(hit) for hit in items(document, "hits", "hits")]


def _row(hit: dict[str, Any]) -> SearchRow:
    source = hit.get("_source")
    fields = source if isinstance(source, dict) else {}
    light = hit.get("highlight")
    passages = light.get("body") if isinstance(light, dict) else None
    found = passages if isinstance(passages, list) else []
    return SearchRow(
        title=text(fields.get("title")),
        url=fields.get("url") or "",
        snippet=BREAK.join(each for each in found if isinstance(each, str)),
        published_at=as_is(fields.get("published")),
    )
