"""Which web tools an agent's profile gives it, asked before a call. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime_pack.catalog import Executed
from runtime_pack.errors import CallCode
from runtime_pack.machine import refusal
from web_tools.errors import SearchRefused

if TYPE_CHECKING:
    from runtime_pack.catalog import ToolOutput
    from web_tools.contract.agents import AgentProfiles

__all__ = ("agent_refusal",)


def agent_refusal(agents: AgentProfiles | None, agent: str, tool: str) -> ToolOutput | None:
    """The refusal of a tool that is not the agent's; None where it is, or nobody gave profiles.

    The name is asked for as it was called: no glob of one name opens the other.
    """
    if agents is None:
        return None
    try:
        agents.require_tool(agent, tool)
    except SearchRefused as refused:
        return refusal(
            CallCode.POLICY_DENIED,
            str(refused),
            executed=Executed.NO,
            details={"detail": str(refused.reason)},
        )
    return None
