"""The arguments of `web.search` become options, or one error that names every fault. Pure.

Strict throughout: a field that is not known is refused by name, for a misspelt `freshness` that
is dropped runs an unrestricted search, after which the agent says that the answer is recent.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import attrs

from web_tools._fields import MAX_QUERY_CHARS, Fields, Refused, query_of, whole_number
from web_tools.contract.freshness import Freshness, freshness_of
from web_tools.contract.sites import site_of
from web_tools.errors import Fault, WebErrorCode, WebToolError

__all__ = (
    "DEFAULT_COUNT",
    "MAX_COUNT",
    "OPTIONS",
    "WEB_SEARCH_SCHEMA",
    "SearchCall",
    "SearchOptions",
    "parse_web_search_arguments",
)

DEFAULT_COUNT: Final = 10
MAX_COUNT: Final = 50
OPTIONS: Final = ("count", "site", "freshness")
"""What a back end may declare that it cannot honour."""

WEB_SEARCH_SCHEMA: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "description": "What to search for, as literal text: there are no operators.",
                "minLength": 1,
                "maxLength": MAX_QUERY_CHARS,
            },
            "count": {
                "type": "integer",
                "description": f"The most results to return; {DEFAULT_COUNT} when absent.",
                "minimum": 1,
                "maximum": MAX_COUNT,
            },
            "site": {
                "type": "string",
                "description": "Only results of this host and of those below it: example.com.",
                "minLength": 1,
            },
            "freshness": {
                "type": "string",
                "description": "Only results at most this old, as a duration: P7D, P4W, PT12H.",
                "minLength": 1,
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    }
)
"""JSON Schema of the arguments."""


@attrs.frozen(kw_only=True)
class SearchOptions:
    """What a back end is asked to honour; what it returns is held to it all the same.

    Attributes:
        count: The most results, 1 to 50.
        site: One canonical host, or None.
        freshness: The oldest a result may be, or None.
    """

    count: int = DEFAULT_COUNT
    site: str | None = None
    freshness: Freshness | None = None


@attrs.frozen(kw_only=True)
class SearchCall:
    """One call: the literal query and its options."""

    query: str
    options: SearchOptions


def parse_web_search_arguments(
    raw: object, *, now: datetime, unsupported: Collection[str] = (), provider: str = ""
) -> SearchCall:
    """The call that *raw* asks for.

    Args:
        raw: The arguments as the model wrote them.
        now: When the call was made; freshness is resolved against it once.
        unsupported: Options that the back end cannot honour: a call with one is refused.
        provider: Its name, for the refusal.

    Raises:
        WebToolError: WEB_INVALID_INPUT with the path of every fault.
    """
    fields = Fields(raw, WEB_SEARCH_SCHEMA["properties"])
    query = fields.required("query", query_of)
    count = fields.optional("count", _count)
    site = fields.optional("site", site_of)
    freshness = fields.optional("freshness", partial(freshness_of, now=now))
    fields.refuse_if_faulty()
    _refuse_unsupported(raw, unsupported, provider)
    options = SearchOptions(
        count=DEFAULT_COUNT if count is None else count, site=site, freshness=freshness
    )
    return SearchCall(query=query or "", options=options)


def _refuse_unsupported(raw: object, unsupported: Collection[str], provider: str) -> None:
    asked = raw if isinstance(raw, Mapping) else {}
    named = [option for option in OPTIONS if option in unsupported and option in asked]
    if named:
        told = f"The search provider {provider} does not support: {', '.join(named)}."
        faults = tuple(
            Fault(path=f"/{option}", problem="is not supported by this provider")
            for option in named
        )
        raise WebToolError(WebErrorCode.INVALID_INPUT, told, faults=faults)


def _count(value: object) -> int:
    whole = whole_number(value)
    if whole is None:
        raise Refused("must be an integer")
    if not 1 <= whole <= MAX_COUNT:
        raise Refused(f"must be from 1 to {MAX_COUNT}")
    return whole
