"""The bounds of one call. Pure. Source: the search plugin text, section Bounds."""

from __future__ import annotations

from typing import Final

import attrs

from web_tools.errors import InvalidSetup

__all__ = ("MAX_QUERY_CHARS", "MAX_URLS", "MAX_URL_CHARS", "PluginBounds")

MAX_URLS: Final = 32
MAX_URL_CHARS: Final = 2048
MAX_QUERY_CHARS: Final = 2000


@attrs.frozen(kw_only=True)
class PluginBounds:
    """What one call may take; a host can only lower it.

    Attributes:
        page_bytes: Of one response as received.
        call_bytes: Of all responses of a call.
        text_bytes: Of the text of one page.
        input_bytes: Of what a model is asked to sum up; of a longer text the beginning.
        summary_bytes: Of one summary.
        output_tokens: Of one answer of a model.
        fetches: At one time.
        url_seconds: For one page, from its first request to its text.
        total_seconds: For all pages of a call, and again for all its answers of models.

    Raises:
        InvalidSetup: A bound is no number above 0, or is raised.
    """

    page_bytes: int = 8 << 20
    call_bytes: int = 128 << 20
    text_bytes: int = 4 << 20
    input_bytes: int = 512 << 10
    summary_bytes: int = 16 << 10
    output_tokens: int = 8192
    fetches: int = 8
    url_seconds: float = 20.0
    total_seconds: float = 120.0

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(PluginBounds):
            value: object = getattr(self, field.name)
            most: float = field.default or 0
            allowed = int if isinstance(most, int) else int | float
            if isinstance(value, bool) or not isinstance(value, allowed) or not 0 < value <= most:
                raise InvalidSetup(field.name, f"must be above 0 and at most {most}")
