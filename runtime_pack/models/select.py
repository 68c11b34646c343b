"""A model by its word: `openai:NAME`, `anthropic:NAME`, `openai-compatible:NAME@URL`, `extractive`.

Reading a word needs no SDK and no network. The key of a provider is taken from its environment
variable, by name, when the model is opened; a server of one's own needs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import attrs

from runtime_pack.errors import ContractError
from runtime_pack.models.extractive import ExtractiveModel
from runtime_pack.ports import Model

if TYPE_CHECKING:
    from egress.policy import EgressPolicy

__all__ = ("ModelChoice", "Provider", "key_variable", "open_model", "parse_model")


class Provider(StrEnum):
    """Whose protocol a model speaks. The words are those before the colon."""

    EXTRACTIVE = "extractive"
    OPENAI = "openai"
    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    OPENAI_COMPATIBLE = "openai-compatible"
    ANTHROPIC = "anthropic"


_KEYS: Final[Mapping[Provider, str]] = {
    Provider.OPENAI: "OPENAI_API_KEY",
    Provider.OPENAI_CHAT: "OPENAI_API_KEY",
    Provider.OPENAI_RESPONSES: "OPENAI_API_KEY",
    Provider.ANTHROPIC: "ANTHROPIC_API_KEY",
}
# Only this one: the key of OpenAI is not for whoever runs another server.
_KEY_OF_COMPATIBLE: Final = "OPENAI_COMPATIBLE_API_KEY"
_FORMS: Final = "extractive, openai:NAME, openai-chat:NAME, openai-responses:NAME, anthropic:NAME or openai-compatible:NAME@URL"


def key_variable(provider: Provider) -> tuple[str | None, str]:
    """The variable that holds a provider's key, and the name of that credential in a policy file."""
    if provider is Provider.EXTRACTIVE:
        return None, ""
    owner = "openai" if _KEYS.get(provider) == "OPENAI_API_KEY" else str(provider)
    return _KEYS.get(provider, _KEY_OF_COMPATIBLE), f"{owner}.apiKey"


@attrs.frozen(kw_only=True)
class ModelChoice:
    """A model as it was named.

    Attributes:
        provider: Whose protocol it speaks.
        name: The name of the model there; empty for the built-in one.
        url: The base URL of a server of one's own, else None.
    """

    provider: Provider
    name: str = ""
    url: str | None = None

    @property
    def word(self) -> str:
        """The text that names it; reading it gives this choice again."""
        if self.provider is Provider.EXTRACTIVE:
            return str(self.provider)
        return f"{self.provider}:{self.name}" + ("" if self.url is None else f"@{self.url}")


def parse_model(word: str) -> ModelChoice:
    """The model that a word names.

    A name may hold `:` and `@` (`llama3:8b`); the URL is what stands after the last `@`.

    Raises:
        ContractError: it is none of the forms.
    """
    if word == Provider.EXTRACTIVE:
        return ModelChoice(provider=Provider.EXTRACTIVE)
    kind, _, name = word.partition(":")
    if kind not in set(Provider) or kind == Provider.EXTRACTIVE:
        raise ContractError("model", f"{word[:80]!a} is not {_FORMS}")
    provider = Provider(kind)
    if provider is Provider.OPENAI_COMPATIBLE:
        return _compatible(name)
    return ModelChoice(provider=provider, name=_named(name, word))


def _named(name: str, word: str) -> str:
    if not name or not name.isprintable() or name != name.strip():
        raise ContractError("model", f"{word[:80]!a} names no model")
    return name


def _compatible(named: str) -> ModelChoice:
    from egress.errors import UrlRejected
    from egress.url import parse_target

    name, at, url = named.rpartition("@")
    if not at:
        raise ContractError("model", "openai-compatible:NAME@URL needs the server's base URL")
    try:
        parse_target(url)
    except UrlRejected as error:
        raise ContractError("model", f"the server's base URL is refused: {error}") from error
    if "?" in url or "#" in url:
        # Paths are added at its end; a key in it would stand in logs.
        raise ContractError("model", "the server's base URL has no query and no fragment")
    return ModelChoice(provider=Provider.OPENAI_COMPATIBLE, name=_named(name, named), url=url)


def open_model(
    choice: ModelChoice | str,
    *,
    environment: Mapping[str, str],
    reachable: Sequence[str] = (),
) -> Model:
    """The model, ready to take turns.

    Args:
        choice: What `parse_model` gave, or its text.
        environment: Where the key is looked up, usually `os.environ`.
        reachable: More entries for the operator's list of model endpoints: an address inside that
            a server's name may lead to, as `10.0.0.5:8000`.

    Raises:
        ContractError: it names no model, its key or its SDK is missing, or an entry is malformed.
    """
    chosen = parse_model(choice) if isinstance(choice, str) else choice
    if chosen.provider is Provider.EXTRACTIVE:
        return ExtractiveModel()
    return _over_an_sdk(chosen, _key(chosen.provider, environment), tuple(reachable))


def _key(provider: Provider, environment: Mapping[str, str]) -> str | None:
    name = _KEYS.get(provider)
    if name is None:
        return environment.get(_KEY_OF_COMPATIBLE) or None
    key = environment.get(name, "").strip()
    if not key:
        raise ContractError("model", f"{provider} needs its key in the variable {name}")
    return key


def _over_an_sdk(chosen: ModelChoice, key: str | None, reachable: tuple[str, ...]) -> Model:
    from runtime_pack.models.anthropic_messages import ANTHROPIC_URL, AnthropicMessagesModel
    from runtime_pack.models.openai_chat import OPENAI_URL, OpenAIChatModel
    from runtime_pack.models.openai_responses import OpenAIResponsesModel

    match chosen.provider:
        case Provider.ANTHROPIC:
            policy = _policy(ANTHROPIC_URL, reachable)
            return AnthropicMessagesModel(chosen.name, api_key=key, policy=policy)
        case Provider.OPENAI_CHAT:
            policy = _policy(OPENAI_URL, reachable)
            return OpenAIChatModel(chosen.name, api_key=key, policy=policy)
        case Provider.OPENAI_COMPATIBLE:
            url = chosen.url or ""
            return OpenAIChatModel(
                chosen.name,
                api_key=key,
                base_url=url,
                compatible=True,
                policy=_policy(url, reachable),
            )
        case _:
            policy = _policy(OPENAI_URL, reachable)
            return OpenAIResponsesModel(chosen.name, api_key=key, policy=policy)


def _policy(url: str, reachable: tuple[str, ...]) -> EgressPolicy | None:
    """The endpoint, and what the operator adds; None for exactly the endpoint."""
    from egress.allowlist import entry_for, parse_allowlist
    from egress.errors import EgressError
    from egress.policy import EgressPolicy
    from egress.url import parse_target

    if not reachable:
        return None
    try:
        entries = [entry_for(parse_target(url)), *reachable]
        return EgressPolicy(allowlist=parse_allowlist(entries))
    except EgressError as error:
        raise ContractError("model", str(error)) from error
