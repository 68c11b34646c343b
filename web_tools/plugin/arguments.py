"""The arguments of `search` and `search_url` become a call, or one error that names every fault. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import attrs

from web_tools._fields import Fields, Refused, query_of, text_of
from web_tools.plugin.bounds import MAX_QUERY_CHARS, MAX_URL_CHARS, MAX_URLS
from web_tools.plugin.capability import Entry

__all__ = ("SCHEMAS", "ModelSearch", "PluginCall", "UrlSearch", "parse_plugin_arguments")

_MODEL: Final = "model"
_URL: Final = "url"


@attrs.frozen(kw_only=True)
class ModelSearch:
    """`mode: "model"`: one question to the model that searches."""

    query: str


@attrs.frozen(kw_only=True)
class UrlSearch:
    """`mode: "url"`, and `search_url`: pages to be read and summed up.

    Attributes:
        urls: As they were written, 1 to 32.
        query: What the summaries are to tell of; None for what the pages say.
    """

    urls: tuple[str, ...]
    query: str | None = None


PluginCall: TypeAlias = ModelSearch | UrlSearch

_QUERY: Final[Mapping[str, Any]] = {"type": "string", "minLength": 1, "maxLength": MAX_QUERY_CHARS}
_URLS: Final[Mapping[str, Any]] = {
    "type": "array",
    "description": "The pages to read and sum up: http or https, without credentials.",
    "items": {"type": "string", "minLength": 1, "maxLength": MAX_URL_CHARS},
    "minItems": 1,
    "maxItems": MAX_URLS,
}
_FOCUS: Final = "What the summaries are to tell of."


def _schema(properties: Mapping[str, Any], *required: str) -> Mapping[str, Any]:
    return MappingProxyType(
        {
            "type": "object",
            "properties": properties,
            "required": list(required),
            "additionalProperties": False,
        }
    )


SCHEMAS: Final[Mapping[Entry, Mapping[str, Any]]] = MappingProxyType(
    {
        Entry.SEARCH: _schema(
            {
                "mode": {
                    "type": "string",
                    "description": "model: search the web for `query`. url: read `urls` and sum them up.",
                    "enum": [_MODEL, _URL],
                },
                "query": {
                    **_QUERY,
                    "description": f"With mode model, what to search for. With mode url: {_FOCUS}",
                },
                "urls": _URLS,
            },
            "mode",
        ),
        Entry.SEARCH_URL: _schema(
            {"urls": _URLS, "query": {**_QUERY, "description": _FOCUS}},
            "urls",
        ),
    }
)
"""JSON Schema of the arguments. What each mode needs is checked by `parse_plugin_arguments`."""


def parse_plugin_arguments(entry: Entry, raw: object) -> PluginCall:
    """The call that *raw* asks for.

    Whether a text is a URL that we accept is not decided here: that is told page by page.

    Raises:
        WebToolError: WEB_INVALID_INPUT with the path of every fault.
    """
    fields = Fields(raw, SCHEMAS[entry]["properties"])
    mode = _URL if entry is Entry.SEARCH_URL else fields.required("mode", _mode)
    query = (fields.required if mode == _MODEL else fields.optional)("query", query_of)
    if mode == _MODEL:
        fields.optional("urls", _none_here)
    urls = fields.required("urls", _urls) if mode == _URL else None
    fields.refuse_if_faulty()
    if mode == _MODEL:
        return ModelSearch(query=query or "")
    return UrlSearch(urls=urls or (), query=query)


def _mode(value: object) -> str:
    if value in (_MODEL, _URL) and isinstance(value, str):
        return value
    raise Refused(f"must be {_MODEL} or {_URL}")


def _none_here(_: object) -> None:
    raise Refused(f"belongs to mode {_URL}")


def _urls(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_URLS:
        raise Refused(f"must be a list of 1 to {MAX_URLS} addresses")
    return tuple(_one(each) for each in value)


def _one(value: object) -> str:
    text = text_of(value, MAX_URL_CHARS)
    if not text or any("\ud800" <= character <= "\udfff" for character in text):
        raise Refused("must be a list of addresses")
    return text
