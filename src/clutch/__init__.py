"""Durable background subagents for Python. Importing this package has no side effects.

The public names are loaded when first used: a program that only asks for the version loads nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clutch.api.handles import (
        Event,
        KillResult,
        Question,
        ScheduleHandle,
        Task,
        TaskResult,
        as_completed,
        gather,
    )
    from clutch.api.task_info import (
        BlockedOn,
        BudgetInfo,
        CheckInfo,
        CheckOutcome,
        ChildCount,
        DeliveryInfo,
        DeliveryTry,
        Expense,
        PlanInfo,
        RunningTool,
        SkippedPath,
        TaskInfo,
        TaskUsage,
        TimelineEvent,
        TokenCount,
        UnsentNotice,
        Why,
        WorkEvidence,
    )
    from clutch.core.agents import (
        ActiveHours,
        Agent,
        AgentDefaults,
        Delegation,
        Heartbeat,
        OnFull,
        OnInvalidModel,
        Subagents,
    )
    from clutch.core.attachments import AttachmentRules, StoredFile
    from clutch.core.authority import Peers, ToolPolicy, Visibility
    from clutch.core.checks import CheckState, TaskCheck
    from clutch.core.compaction import ContextLimits
    from clutch.core.definitions import FileTrust
    from clutch.core.messages import Answer, Call, Usage
    from clutch.core.model import DeliveryStatus, Hook, Lane, Outcome, TaskStatus, Thinking, Workspace
    from clutch.core.policy import (
        Announcing,
        Budgets,
        Control,
        Direct,
        Drop,
        ExpiryFrom,
        IdleWake,
        Keeping,
        LateResult,
        Life,
        Limits,
        Notify,
        OnBudget,
        OnOrphan,
        OnReject,
        Policy,
        QueueMode,
        Serving,
        Taint,
        Threads,
        Work,
    )
    from clutch.core.questions import QuestionKind
    from clutch.core.text.tasks import PayloadMode
    from clutch.core.views import HistoryLimits
    from clutch.errors import (
        ClutchError,
        ConfigInvalid,
        DiskFull,
        Forbidden,
        IdempotencyConflict,
        InvalidInput,
        NoGateway,
        NotFound,
        RateLimited,
        SchemaTooNew,
        SpawnRefused,
        StateDirectoryInUse,
        StoreBusy,
        StoreError,
        StoreLost,
        TaskFailed,
        UnsafeStateDirectory,
        UnsupportedStore,
    )
    from clutch.ports import (
        Channel,
        Delta,
        DeltaKind,
        HumanQuestion,
        ModelError,
        ModelRequest,
        Models,
        Runtime,
        RuntimeJob,
        Toolbox,
        ToolContext,
        ToolSpec,
        Trouble,
        Verdict,
    )
    from clutch.transactions.control import NotPossible, PlanChanged, UnknownTask
    from clutch.transactions.questions import UnknownQuestion
    from clutch.wiring import (
        AcpAgent,
        AdapterKind,
        Clutch,
        McpServer,
        Provider,
        Sandbox,
        ToolSettings,
        Webhook,
    )

__all__ = [
    "AcpAgent",
    "ActiveHours",
    "AdapterKind",
    "Agent",
    "AgentDefaults",
    "Announcing",
    "Answer",
    "AttachmentRules",
    "BlockedOn",
    "BudgetInfo",
    "Budgets",
    "Call",
    "Channel",
    "CheckInfo",
    "CheckOutcome",
    "CheckState",
    "ChildCount",
    "Clutch",
    "ClutchError",
    "ConfigInvalid",
    "ContextLimits",
    "Control",
    "Delegation",
    "DeliveryInfo",
    "DeliveryStatus",
    "DeliveryTry",
    "Delta",
    "DeltaKind",
    "Direct",
    "DiskFull",
    "Drop",
    "Event",
    "Expense",
    "ExpiryFrom",
    "FileTrust",
    "Forbidden",
    "Heartbeat",
    "HistoryLimits",
    "Hook",
    "HumanQuestion",
    "IdempotencyConflict",
    "IdleWake",
    "InvalidInput",
    "Keeping",
    "KillResult",
    "Lane",
    "LateResult",
    "Life",
    "Limits",
    "McpServer",
    "ModelError",
    "ModelRequest",
    "Models",
    "NoGateway",
    "NotFound",
    "NotPossible",
    "Notify",
    "OnBudget",
    "OnFull",
    "OnInvalidModel",
    "OnOrphan",
    "OnReject",
    "Outcome",
    "PayloadMode",
    "Peers",
    "PlanChanged",
    "PlanInfo",
    "Policy",
    "Provider",
    "Question",
    "QuestionKind",
    "QueueMode",
    "RateLimited",
    "RunningTool",
    "Runtime",
    "RuntimeJob",
    "Sandbox",
    "ScheduleHandle",
    "SchemaTooNew",
    "Serving",
    "SkippedPath",
    "SpawnRefused",
    "StateDirectoryInUse",
    "StoreBusy",
    "StoreError",
    "StoreLost",
    "StoredFile",
    "Subagents",
    "Taint",
    "Task",
    "TaskCheck",
    "TaskFailed",
    "TaskInfo",
    "TaskResult",
    "TaskStatus",
    "TaskUsage",
    "Thinking",
    "Threads",
    "TimelineEvent",
    "TokenCount",
    "ToolContext",
    "ToolPolicy",
    "ToolSettings",
    "ToolSpec",
    "Toolbox",
    "Trouble",
    "UnknownQuestion",
    "UnknownTask",
    "UnsafeStateDirectory",
    "UnsentNotice",
    "UnsupportedStore",
    "Usage",
    "Verdict",
    "Visibility",
    "Webhook",
    "Why",
    "Work",
    "WorkEvidence",
    "Workspace",
    "__version__",
    "as_completed",
    "gather",
]

__version__ = "0.1.0"

#: Where the public names are defined; what is not here is an error of `clutch.errors`.
_PUBLIC: dict[str, str] = {
    "clutch.api.handles": "Event KillResult Question ScheduleHandle Task TaskResult as_completed gather",
    "clutch.api.task_info": (
        "BlockedOn BudgetInfo CheckInfo CheckOutcome ChildCount DeliveryInfo DeliveryTry Expense PlanInfo RunningTool "
        "SkippedPath TaskInfo TaskUsage TimelineEvent TokenCount UnsentNotice Why WorkEvidence"
    ),
    "clutch.core.agents": (
        "ActiveHours Agent AgentDefaults Delegation Heartbeat OnFull OnInvalidModel Subagents"
    ),
    "clutch.core.attachments": "AttachmentRules StoredFile",
    "clutch.core.authority": "Peers ToolPolicy Visibility",
    "clutch.core.checks": "CheckState TaskCheck",
    "clutch.core.compaction": "ContextLimits",
    "clutch.core.definitions": "FileTrust",
    "clutch.core.messages": "Answer Call Usage",
    "clutch.core.model": "DeliveryStatus Hook Lane Outcome TaskStatus Thinking Workspace",
    "clutch.core.policy": (
        "Announcing Budgets Control Direct Drop ExpiryFrom IdleWake Keeping LateResult Life Limits "
        "Notify OnBudget OnOrphan OnReject Policy QueueMode Serving Taint Threads Work"
    ),
    "clutch.core.questions": "QuestionKind",
    "clutch.core.text.tasks": "PayloadMode",
    "clutch.core.views": "HistoryLimits",
    "clutch.ports": (
        "Channel Delta DeltaKind HumanQuestion ModelError ModelRequest Models Runtime RuntimeJob ToolContext "
        "ToolSpec Toolbox Trouble Verdict"
    ),
    "clutch.transactions.control": "NotPossible PlanChanged UnknownTask",
    "clutch.transactions.questions": "UnknownQuestion",
    "clutch.wiring": "AcpAgent AdapterKind Clutch McpServer Provider Sandbox ToolSettings Webhook",
}
_ELSEWHERE = {name: module for module, names in _PUBLIC.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ELSEWHERE.get(name, "clutch.errors")), name)


def __dir__() -> list[str]:
    return __all__
