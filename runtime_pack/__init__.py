"""agent-runtime-pack: a governed agent loop.

Import the names below from here. `import runtime_pack` loads no HTTP client: what needs one is
loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from egress import AddressPolicy
    from runtime_pack.agent import create_agent_runtime
    from runtime_pack.approvals import ApprovalRequest, Decision, Remember, Verdict, parse_decision
    from runtime_pack.audit import AuditLog, LogHead, Verification, verify_log
    from runtime_pack.catalog import CatalogTool, Effects, Executed, ToolOutput, ToolSpec
    from runtime_pack.cited import CitationCheck, cite_saved_run, collect_evidence
    from runtime_pack.credentials import EncryptedCredentials
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
    from runtime_pack.host_tools import ToolFailure, catalog_tool
    from runtime_pack.identity import RunIdentity
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
        KeptItem,
        SystemMessage,
        ToolCall,
        ToolMessage,
        Turn,
        TurnStatus,
        Usage,
        UserMessage,
    )
    from runtime_pack.policy import ApprovalClass, PolicyLayer, TaskContract, ToolPolicy, ToolRule
    from runtime_pack.policy_file import (
        CredentialSource,
        PolicyFile,
        PolicyFileRefused,
        parse_policy,
        read_policy,
    )
    from runtime_pack.ports import (
        Answer,
        Approver,
        Clock,
        Emitter,
        ExecutionContext,
        InputGuard,
        Model,
        OutputCheck,
        Scanner,
        SleepingClock,
        Summariser,
        Summary,
        ToolRuntime,
        TurnRequest,
    )
    from runtime_pack.prices import ModelPrice, PriceTable
    from runtime_pack.prices_genai import price_table_from_genai_prices
    from runtime_pack.records import StepRecord
    from runtime_pack.remembered import RememberedRule
    from runtime_pack.revisions import DirectoryRevisionStore
    from runtime_pack.seal import Seal, check_request
    from runtime_pack.search_backends import SearchBackend, load_search_backend
    from runtime_pack.shapes import Between, Sized
    from runtime_pack.signals import RunSignal
    from runtime_pack.stores import (
        DirectoryRunStore,
        MemoryRunStore,
        RunStore,
        SavedRun,
        SharedRunStore,
    )
    from runtime_pack.stores.sqlite import SQLiteRunStore
    from runtime_pack.sub_agents import SubAgent, sub_agent_tool
    from runtime_pack.threads import Threads
    from runtime_pack.web_catalog import build_web_tool_catalog, create_web_tool_runtime, web_usage
    from runtime_pack.web_plugin import search_plugin_tool
    from runtime_pack.web_search import web_search_tool
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

# Every name is loaded when it is first asked for, and with it what it needs and no more.
_NAMES: Final[Mapping[str, str]] = {
    "egress": "AddressPolicy",
    "runtime_pack.agent": "create_agent_runtime",
    "runtime_pack.approvals": "ApprovalRequest Decision Remember Verdict parse_decision",
    "runtime_pack.audit": "AuditLog LogHead Verification verify_log",
    "runtime_pack.catalog": "CatalogTool Effects Executed ToolOutput ToolSpec",
    "runtime_pack.cited": "CitationCheck cite_saved_run collect_evidence",
    "runtime_pack.credentials": "EncryptedCredentials",
    "runtime_pack.errors": (
        "CallCode ContractError ModelFault ModelRequestError RuntimePackError StopCode"
    ),
    "runtime_pack.events": "Event EventCode EventType",
    "runtime_pack.grants": "Grant parse_grant",
    "runtime_pack.guard": "AgentTaskRun GuardedRuntime create_agent_task_run",
    "runtime_pack.host_tools": "ToolFailure catalog_tool",
    "runtime_pack.identity": "RunIdentity",
    "runtime_pack.kill_switch": "KillSwitch",
    "runtime_pack.label_table": "LabelPreset SideEffect",
    "runtime_pack.labels": "Confidentiality Integrity Label",
    "runtime_pack.ledger": "LedgerView UNLIMITED",
    "runtime_pack.loop": (
        "cancel_saved_run resume_governed_agent_loop resume_governed_agent_loop_sync "
        "run_governed_agent_loop run_governed_agent_loop_sync stream_governed_agent_loop "
        "stream_governed_agent_loop_sync stream_resumed_agent_loop "
        "stream_resumed_agent_loop_sync"
    ),
    "runtime_pack.loop.results": (
        "ApprovalRequired Cancelled Completed LoopError LoopResult Suspended TurnInput"
    ),
    "runtime_pack.loop.stream": (
        "ApprovalRequested BudgetWarning CallAdmitted CallFinished CallRefused CallStarted "
        "Finished LoopEvent TextDelta TurnFinished TurnLost TurnStarted ViolationReported"
    ),
    "runtime_pack.messages": (
        "AssistantMessage FinishReason KeptItem SystemMessage ToolCall ToolMessage Turn TurnStatus "
        "Usage UserMessage"
    ),
    "runtime_pack.policy": "ApprovalClass PolicyLayer TaskContract ToolPolicy ToolRule",
    "runtime_pack.policy_file": (
        "CredentialSource PolicyFile PolicyFileRefused parse_policy read_policy"
    ),
    "runtime_pack.ports": (
        "Answer Approver Clock Emitter ExecutionContext InputGuard Model OutputCheck Scanner "
        "SleepingClock Summariser Summary ToolRuntime TurnRequest"
    ),
    "runtime_pack.prices": "ModelPrice PriceTable",
    "runtime_pack.prices_genai": "price_table_from_genai_prices",
    "runtime_pack.records": "StepRecord",
    "runtime_pack.remembered": "RememberedRule",
    "runtime_pack.revisions": "DirectoryRevisionStore",
    "runtime_pack.seal": "Seal check_request",
    "runtime_pack.search_backends": "SearchBackend load_search_backend",
    "runtime_pack.shapes": "Between Sized",
    "runtime_pack.signals": "RunSignal",
    "runtime_pack.stores.files": "DirectoryRunStore",
    "runtime_pack.stores.memory": "MemoryRunStore",
    "runtime_pack.stores.port": "RunStore SavedRun SharedRunStore",
    "runtime_pack.stores.sqlite": "SQLiteRunStore",
    "runtime_pack.sub_agents": "SubAgent sub_agent_tool",
    "runtime_pack.threads": "Threads",
    "runtime_pack.web_catalog": "build_web_tool_catalog create_web_tool_runtime web_usage",
    "runtime_pack.web_plugin": "search_plugin_tool",
    "runtime_pack.web_search": "web_search_tool",
    "runtime_pack.workflow": "Branch BranchState BranchStatus Continuation Workflow",
    "runtime_pack.workflow_drive": (
        "BranchRun WorkflowResult WorkflowStatus resume_workflow run_workflow"
    ),
    "web_tools.arguments": "SearchRequest WebToolCaps",
    "web_tools.errors": "WebErrorCode",
    "web_tools.search": "SearchHit WebSearchProvider create_fixture_web_search_provider",
}
_HOME: Final = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = (
    "UNLIMITED",
    "AddressPolicy",
    "AgentTaskRun",
    "Answer",
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
    "CitationCheck",
    "Clock",
    "Completed",
    "Confidentiality",
    "Continuation",
    "ContractError",
    "CredentialSource",
    "Decision",
    "DirectoryRevisionStore",
    "DirectoryRunStore",
    "Effects",
    "Emitter",
    "EncryptedCredentials",
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
    "KeptItem",
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
    "OutputCheck",
    "PolicyFile",
    "PolicyFileRefused",
    "PolicyLayer",
    "PriceTable",
    "Remember",
    "RememberedRule",
    "RunIdentity",
    "RunSignal",
    "RunStore",
    "RuntimePackError",
    "SQLiteRunStore",
    "SavedRun",
    "Scanner",
    "Seal",
    "SearchBackend",
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
    "Summary",
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
    "cite_saved_run",
    "collect_evidence",
    "create_agent_runtime",
    "create_agent_task_run",
    "create_fixture_web_search_provider",
    "create_web_tool_runtime",
    "load_search_backend",
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
    "search_plugin_tool",
    "stream_governed_agent_loop",
    "stream_governed_agent_loop_sync",
    "stream_resumed_agent_loop",
    "stream_resumed_agent_loop_sync",
    "sub_agent_tool",
    "verify_log",
    "web_search_tool",
    "web_usage",
)


if not TYPE_CHECKING:
    # Hidden from type checkers: to them a name that is not above does not exist.
    def __getattr__(name: str) -> Any:
        if name == "runs":
            return importlib.import_module("runtime_pack.runs")
        module = _HOME.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(module), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
