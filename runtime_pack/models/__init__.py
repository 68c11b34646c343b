"""Models: two built-in ones that need no key, and adapters over the official SDKs (extras).

An adapter, and with it the policy of egress, loads when it is first asked for; its SDK when one is
made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runtime_pack.models.extractive import ExtractiveModel
from runtime_pack.models.gullible import GullibleModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime_pack.models.anthropic_messages import AnthropicMessagesModel
    from runtime_pack.models.openai_chat import OpenAIChatModel
    from runtime_pack.models.openai_responses import OpenAIResponsesModel
    from runtime_pack.models.select import ModelChoice, open_model, parse_model

__all__ = (
    "AnthropicMessagesModel",
    "ExtractiveModel",
    "GullibleModel",
    "ModelChoice",
    "OpenAIChatModel",
    "OpenAIResponsesModel",
    "open_model",
    "parse_model",
)

_LATE: Final[Mapping[str, str]] = {
    "AnthropicMessagesModel": "runtime_pack.models.anthropic_messages",
    "ModelChoice": "runtime_pack.models.select",
    "OpenAIChatModel": "runtime_pack.models.openai_chat",
    "OpenAIResponsesModel": "runtime_pack.models.openai_responses",
    "open_model": "runtime_pack.models.select",
    "parse_model": "runtime_pack.models.select",
}

# Hidden from type checkers: they would take any name of this module for granted.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _LATE:
            raise AttributeError(f"module 'runtime_pack.models' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_LATE[name]), name)
