"""A client of the OpenAI SDK that takes nothing from the environment and never asks twice."""

from __future__ import annotations

from typing import Any

import httpx2
import openai

from runtime_pack.models._guarded_http import PLACEHOLDER

__all__ = ("openai_client",)


def openai_client(http: httpx2.AsyncClient, base_url: str) -> Any:
    """The client over *http*, which sets the key."""
    return openai.AsyncOpenAI(
        api_key=PLACEHOLDER,
        base_url=base_url,
        max_retries=0,
        timeout=http.timeout,
        http_client=http,
    )
