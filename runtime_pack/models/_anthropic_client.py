"""A client of the Anthropic SDK that never asks twice and reports to nobody."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2

from runtime_pack.models._guarded_http import PLACEHOLDER

__all__ = ("anthropic_client",)


def anthropic_client(http: httpx2.AsyncClient, base_url: str) -> Any:
    """The client over *http*, which sets the key."""
    return anthropic.AsyncAnthropic(
        api_key=PLACEHOLDER,
        base_url=base_url,
        max_retries=0,
        timeout=http.timeout,
        http_client=http,
        # Spans of the SDK can hold the conversation, and an exporter would carry it elsewhere.
        open_telemetry=False,
    )
