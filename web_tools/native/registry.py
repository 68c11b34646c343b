"""Which protocols there is a codec of, by the name that a model card declares."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from web_tools.native.anthropic_messages import AnthropicMessages
from web_tools.native.chat_search import OpenRouter, Perplexity
from web_tools.native.gemini import Gemini
from web_tools.native.openai_responses import OpenAIResponses
from web_tools.native.values import Codec

__all__ = ("PROTOCOLS",)

PROTOCOLS: Final[Mapping[str, Codec]] = MappingProxyType(
    {
        "anthropic": AnthropicMessages(),
        "gemini": Gemini(),
        "openai_responses": OpenAIResponses(),
        "openrouter": OpenRouter(),
        "perplexity": Perplexity(),
    }
)
