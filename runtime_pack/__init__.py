"""agent-runtime-pack: a governed agent loop.

Import the names below from here. `import runtime_pack` loads no HTTP client: what needs one is
loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from runtime_pack.agent import create_agent_runtime
from runtime_pack.approvals import ApprovalRequest, Decision, Remember, Verdict, parse_decision
from runtime_pack.audit import AuditLog, LogHead, Verification, verify_log
from runtime_pack.catalog import CatalogTool, Effects, Executed, ToolOutput, ToolSpec
from runtime_pack.errors import (
    CallCode,
    ContractError,
    ModelFault,
    ModelRequestError,
    RuntimePackError,
    StopCode,
)
from runtime_pack.events import Event, EventCode, EventType
from runtime_pack.grants import Grant, parse_grant
from runtime_pack.guard import AgentTaskRun, GuardedRuntime, create_agent_task_run
from runtime_pack.kill_switch import KillSwitch
from runtime_pack.label_table import LabelPreset, SideEffect
from runtime_pack.labels import Confidentiality, Integrity, Label
from runtime_pack.ledger import UNLIMITED, LedgerView
from runtime_pack.loop import (
    ApprovalRequested,
    ApprovalRequired,
    BudgetWarning,
    CallAdmitted,
    CallFinished,
    CallRefused,
    CallStarted,
    Cancelled,
    Completed,
    Finished,
    LoopError,
    LoopEvent,
    LoopResult,
    Suspended,
    TextDelta,
    TurnFinished,
    TurnInput,
    TurnLost,
    TurnStarted,
    ViolationReported,
    cancel_saved_run,
    resume_governed_agent_loop,
    resume_governed_agent_loop_sync,
    run_governed_agent_loop,
    run_governed_agent_loop_sync,
    stream_governed_agent_loop,
    stream_governed_agent_loop_sync,
    stream_resumed_agent_loop,
    stream_resumed_agent_loop_sync,
)
from runtime_pack.messages import (
    AssistantMessage,
    FinishReason,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Turn,
    TurnStatus,
    Usage,
    UserMessage,
)
from runtime_pack.policy import ApprovalClass, PolicyLayer, TaskContract, ToolPolicy, ToolRule
from runtime_pack.ports import (
    Approver,
    Clock,
    Emitter,
    ExecutionContext,
    InputGuard,
    Model,
    SleepingClock,
    Summariser,
    ToolRuntime,
    TurnRequest,
)
from runtime_pack.prices import ModelPrice, PriceTable
from runtime_pack.records import StepRecord
from runtime_pack.remembered import RememberedRule
from runtime_pack.seal import Seal, check_request
from runtime_pack.stores import (
    DirectoryRunStore,
    MemoryRunStore,
    RunStore,
    SavedRun,
    SharedRunStore,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from egress import AddressPolicy
    from runtime_pack.host_tools import ToolFailure, catalog_tool
    from runtime_pack.policy_file import (
        CredentialSource,
        PolicyFile,
        PolicyFileRefused,
        parse_policy,
        read_policy,
    )
    from runtime_pack.prices_genai import price_table_from_genai_prices
    from runtime_pack.shapes import Between, Sized
    from runtime_pack.stores.sqlite import SQLiteRunStore
    from runtime_pack.sub_agents import SubAgent, sub_agent_tool
    from runtime_pack.threads import Threads
    from runtime_pack.web_catalog import build_web_tool_catalog, create_web_tool_runtime, web_usage
    from runtime_pack.workflow import Branch, BranchState, BranchStatus, Continuation, Workflow
    from runtime_pack.workflow_drive import (
        BranchRun,
        WorkflowResult,
        WorkflowStatus,
        resume_workflow,
        run_workflow,
    )
    from web_tools.arguments import SearchRequest, WebToolCaps
    from web_tools.errors import WebErrorCode
    from web_tools.search import (
        SearchHit,
        WebSearchProvider,
        create_fixture_web_search_provider,
    )

# Loaded on first use: these bring in the web side, or a database.
_LATER: Final[Mapping[str, str]] = {
    "SubAgent": "runtime_pack.sub_agents",
    "sub_agent_tool": "runtime_pack.sub_agents",
    "CredentialSource": "runtime_pack.policy_file",
    "PolicyFile": "runtime_pack.policy_file",
    "PolicyFileRefused": "runtime_pack.policy_file",
    "parse_policy": "runtime_pack.policy_file",
    "read_policy": "runtime_pack.policy_file",
    "Branch": "runtime_pack.workflow",
    "BranchState": "runtime_pack.workflow",
    "BranchStatus": "runtime_pack.workflow",
    "Continuation": "runtime_pack.workflow",
    "Workflow": "runtime_pack.workflow",
    "BranchRun": "runtime_pack.workflow_drive",
    "WorkflowResult": "runtime_pack.workflow_drive",
    "WorkflowStatus": "runtime_pack.workflow_drive",
    "resume_workflow": "runtime_pack.workflow_drive",
    "run_workflow": "runtime_pack.workflow_drive",
    "AddressPolicy": "egress",
    "SQLiteRunStore": "runtime_pack.stores.sqlite",
    "Between": "runtime_pack.shapes",
    "SearchHit": "web_tools.search",
    "SearchRequest": "web_tools.arguments",
    "Sized": "runtime_pack.shapes",
    "Threads": "runtime_pack.threads",
    "ToolFailure": "runtime_pack.host_tools",
    "WebErrorCode": "web_tools.errors",
    "WebSearchProvider": "web_tools.search",
    "WebToolCaps": "web_tools.arguments",
    "catalog_tool": "runtime_pack.host_tools",
    "build_web_tool_catalog": "runtime_pack.web_catalog",
    "create_fixture_web_search_provider": "web_tools.search",
    "create_web_tool_runtime": "runtime_pack.web_catalog",
    "web_usage": "runtime_pack.web_catalog",
    "price_table_from_genai_prices": "runtime_pack.prices_genai",
}

__all__ = (
    "UNLIMITED",
    "AddressPolicy",
    "AgentTaskRun",
    "ApprovalClass",
    "ApprovalRequest",
    "ApprovalRequested",
    "ApprovalRequired",
    "Approver",
    "AssistantMessage",
    "AuditLog",
    "Between",
    "Branch",
    "BranchRun",
    "BranchState",
    "BranchStatus",
    "BudgetWarning",
    "CallAdmitted",
    "CallCode",
    "CallFinished",
    "CallRefused",
    "CallStarted",
    "Cancelled",
    "CatalogTool",
    "Clock",
    "Completed",
    "Confidentiality",
    "Continuation",
    "ContractError",
    "CredentialSource",
    "Decision",
    "DirectoryRunStore",
    "Effects",
    "Emitter",
    "Event",
    "EventCode",
    "EventType",
    "Executed",
    "ExecutionContext",
    "FinishReason",
    "Finished",
    "Grant",
    "GuardedRuntime",
    "InputGuard",
    "Integrity",
    "KillSwitch",
    "Label",
    "LabelPreset",
    "LedgerView",
    "LogHead",
    "LoopError",
    "LoopEvent",
    "LoopResult",
    "MemoryRunStore",
    "Model",
    "ModelFault",
    "ModelPrice",
    "ModelRequestError",
    "PolicyFile",
    "PolicyFileRefused",
    "PolicyLayer",
    "PriceTable",
    "Remember",
    "RememberedRule",
    "RunStore",
    "RuntimePackError",
    "SQLiteRunStore",
    "SavedRun",
    "Seal",
    "SearchHit",
    "SearchRequest",
    "SharedRunStore",
    "SideEffect",
    "Sized",
    "SleepingClock",
    "StepRecord",
    "StopCode",
    "SubAgent",
    "Summariser",
    "Suspended",
    "SystemMessage",
    "TaskContract",
    "TextDelta",
    "Threads",
    "ToolCall",
    "ToolFailure",
    "ToolMessage",
    "ToolOutput",
    "ToolPolicy",
    "ToolRule",
    "ToolRuntime",
    "ToolSpec",
    "Turn",
    "TurnFinished",
    "TurnInput",
    "TurnLost",
    "TurnRequest",
    "TurnStarted",
    "TurnStatus",
    "Usage",
    "UserMessage",
    "Verdict",
    "Verification",
    "ViolationReported",
    "WebErrorCode",
    "WebSearchProvider",
    "WebToolCaps",
    "Workflow",
    "WorkflowResult",
    "WorkflowStatus",
    "build_web_tool_catalog",
    "cancel_saved_run",
    "catalog_tool",
    "check_request",
    "create_agent_runtime",
    "create_agent_task_run",
    "create_fixture_web_search_provider",
    "create_web_tool_runtime",
    "parse_decision",
    "parse_grant",
    "parse_policy",
    "price_table_from_genai_prices",
    "read_policy",
    "resume_governed_agent_loop",
    "resume_governed_agent_loop_sync",
    "resume_workflow",
    "run_governed_agent_loop",
    "run_governed_agent_loop_sync",
    "run_workflow",
    "runs",
    "stream_governed_agent_loop",
    "stream_governed_agent_loop_sync",
    "stream_resumed_agent_loop",
    "stream_resumed_agent_loop_sync",
    "sub_agent_tool",
    "verify_log",
    "web_usage",
)


if not TYPE_CHECKING:
    # Hidden from type checkers: to them a name that is not above does not exist.
    def __getattr__(name: str) -> Any:
        if name == "runs":
            return importlib.import_module("runtime_pack.runs")
        module = _LATER.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
