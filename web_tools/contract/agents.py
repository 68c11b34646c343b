"""What each agent may use: its tools and its credentials, by name and by glob. Pure.

Two gates, and one does not open the other: `tools: [web.*]` gives no credential. An agent without
a profile may use nothing.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from web_tools.errors import InvalidSetup, RefusalReason, SearchRefused

__all__ = ("AgentProfile", "AgentProfiles", "parse_agent_profile")

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_GLOB: Final = re.compile(r"[A-Za-z0-9_.:*-]{1,128}")
_KEYS: Final = frozenset({"id", "tools", "credentials"})


@attrs.frozen(kw_only=True)
class AgentProfile:
    """One agent: `*` in a name stands for any characters, so `web.*` covers `web.search`.

    Raises:
        InvalidSetup: The id or a name is not of its form.
    """

    id: str
    tools: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        """Refuse what could never match, or would match by accident."""
        if not isinstance(self.id, str) or _ID.fullmatch(self.id) is None:
            raise InvalidSetup("id", "must be letters, digits, dots, dashes and underscores")
        for field in ("tools", "credentials"):
            names = getattr(self, field)
            if not isinstance(names, tuple | list):
                raise InvalidSetup(field, "must be a list of names")
            for name in names:
                if not isinstance(name, str) or _GLOB.fullmatch(name) is None:
                    raise InvalidSetup(field, f"{name!r:.80} is no name and no glob of *")
            object.__setattr__(self, field, tuple(names))

    def may_use(self, tool: str) -> bool:
        """Whether *tool* is one of its tools."""
        return _matches(self.tools, tool)

    def may_have(self, credential: str) -> bool:
        """Whether *credential* is one of its credentials."""
        return _matches(self.credentials, credential)


class AgentProfiles:
    """The agents of an installation, by id.

    Raises:
        InvalidSetup: Two profiles have one id.
    """

    def __init__(self, profiles: Iterable[AgentProfile]) -> None:
        self._by_id: dict[str, AgentProfile] = {}
        for profile in profiles:
            if profile.id in self._by_id:
                raise InvalidSetup("id", f"two agents are called {profile.id}")
            self._by_id[profile.id] = profile

    def require_tool(self, agent: str, tool: str) -> None:
        """Pass when the agent may use the tool.

        Raises:
            SearchRefused: It may not; an agent that is not known may use none.
        """
        profile = self._by_id.get(agent)
        if profile is None or not profile.may_use(tool):
            text = f"Agent {agent} is not allowed to use tool: {tool}"
            raise SearchRefused(RefusalReason.TOOL_NOT_ALLOWED, text)

    def may_have(self, agent: str, credential: str) -> bool:
        """Whether the agent may have the credential."""
        profile = self._by_id.get(agent)
        return profile is not None and profile.may_have(credential)


def parse_agent_profile(text: str) -> AgentProfile:
    """The profile that a TOML text says: `id`, `tools`, `credentials`, and nothing else.

    Raises:
        InvalidSetup: It is no TOML, has another key, or a value is not of its form.
    """
    try:
        body: Mapping[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetup("profile", f"is not TOML: {error}") from error
    unknown = sorted(body.keys() - _KEYS)
    if unknown:
        told = f"is no key of a profile; there are: {', '.join(sorted(_KEYS))}"
        raise InvalidSetup(unknown[0], told)
    if "id" not in body:
        raise InvalidSetup("id", "is missing")
    return AgentProfile(
        id=body["id"], tools=body.get("tools", ()), credentials=body.get("credentials", ())
    )


def _matches(globs: Iterable[str], name: str) -> bool:
    patterns = (".*".join(map(re.escape, glob.split("*"))) for glob in globs)
    return any(re.fullmatch(pattern, name, re.DOTALL) for pattern in patterns)
