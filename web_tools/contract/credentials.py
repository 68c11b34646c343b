"""Where credentials come from, and who gets them.

A source knows names and values; a `CredentialDesk` hands a value to an agent whose profile names
it. Values appear in no repr, no message and no log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, Protocol

from web_tools.contract.agents import AgentProfiles
from web_tools.errors import CredentialMissing, CredentialRefused, InvalidSetup

__all__ = (
    "CredentialDesk",
    "CredentialSource",
    "EnvironmentCredentials",
    "KeyringCredentials",
    "check_credential",
    "check_name",
)

# As in a policy file.
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_CHARACTERS: Final = 8192
_PREFIX: Final = "RUNTIME_PACK_CREDENTIAL_"
_SERVICE: Final = "agent-runtime-pack"


class CredentialSource(Protocol):
    """A place where credentials are kept."""

    def find(self, name: str) -> str | None:
        """The credential, or None when it is not kept here. May block for a short time."""
        ...


def check_name(name: object) -> str:
    """*name*, when it can name a credential.

    Raises:
        InvalidSetup: It cannot.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidSetup("name", "must be letters, digits, dots, dashes and underscores")
    return name


def check_credential(value: object) -> str:
    """*value*, when it can be sent in a header.

    Raises:
        InvalidSetup: It is empty, too long, or holds what no header can; it is not repeated.
    """
    if not isinstance(value, str) or not value or len(value) > _MAX_CHARACTERS:
        raise InvalidSetup("credential", f"must be a text of 1 to {_MAX_CHARACTERS} characters")
    if not (value.isascii() and value.isprintable() and value.strip() == value):
        raise InvalidSetup("credential", "holds characters that no header can hold")
    return value


class EnvironmentCredentials:
    """Credentials in variables: `search.apiKey` is RUNTIME_PACK_CREDENTIAL_SEARCH_APIKEY."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    @staticmethod
    def variable(name: str) -> str:
        """The variable of a credential."""
        return _PREFIX + re.sub(r"[^A-Z0-9]", "_", name.upper())

    def find(self, name: str) -> str | None:
        """The variable's value; an empty one is none."""
        return self._environment.get(self.variable(name)) or None

    def __repr__(self) -> str:
        return "EnvironmentCredentials()"


class KeyringCredentials:
    """Credentials in the keyring of the desktop or the system (extra `keyring`).

    Args:
        backend: What keeps them; the package `keyring` by default.

    Raises:
        InvalidSetup: The package is not installed.
    """

    def __init__(self, backend: Any = None) -> None:
        self._backend = _keyring() if backend is None else backend

    def find(self, name: str) -> str | None:
        """The password of the user *name* of the service `agent-runtime-pack`."""
        return self._backend.get_password(_SERVICE, check_name(name)) or None

    def __repr__(self) -> str:
        return "KeyringCredentials()"


def _keyring() -> Any:
    try:
        return import_module("keyring")
    except ImportError as error:
        told = "the package keyring is not installed: pip install 'agent-runtime-pack[keyring]'"
        raise InvalidSetup("keyring", told) from error


class CredentialDesk:
    """Hands credentials to agents.

    Args:
        sources: Where they are looked for, in order; the first that has one gives it.
        agents: Who may have which. None is a host without agents: its own code decides whom it
            gives this desk.
    """

    def __init__(
        self, sources: Iterable[CredentialSource], *, agents: AgentProfiles | None = None
    ) -> None:
        self._sources: Sequence[CredentialSource] = tuple(sources)
        self._agents = agents

    async def get(self, name: str, *, agent: str) -> str:
        """The credential *name* for *agent*.

        Raises:
            CredentialRefused: The agent's profile does not name it; nothing was looked for.
            CredentialMissing: No source has it.
            InvalidSetup: What a source has cannot be sent.
        """
        check_name(name)
        if self._agents is not None and not self._agents.may_have(agent, name):
            raise CredentialRefused(agent, name)
        for source in self._sources:
            value = source.find(name)
            if value:
                return check_credential(value)
        raise CredentialMissing(name)

    def __repr__(self) -> str:
        return f"CredentialDesk(sources={len(self._sources)})"
