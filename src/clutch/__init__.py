"""Durable background subagents for Python. Importing this package has no side effects.

The public names are loaded when first used: a program that only asks for the version loads nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clutch.api.handles import Event, KillResult, Question, Task, TaskResult, as_completed, gather
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
    from clutch.core.authority import Peers, ToolPolicy, Visibility
    from clutch.core.messages import Answer, Call, Usage
    from clutch.core.model import Outcome, Thinking, Workspace
    from clutch.core.policy import (
        Announcing,
        Budgets,
        Control,
        IdleWake,
        LateResult,
        Life,
        Limits,
        OnBudget,
        Policy,
    )
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
        UnsafeStateDirectory,
        UnsupportedStore,
    )
    from clutch.ports import RuntimeJob, ToolContext, Verdict
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
    "Budgets",
    "Call",
    "Clutch",
    "ClutchError",
    "ConfigInvalid",
    "Control",
    "Delegation",
    "DiskFull",
    "Event",
    "Forbidden",
    "Heartbeat",
    "IdempotencyConflict",
    "IdleWake",
    "InvalidInput",
    "KillResult",
    "LateResult",
    "Life",
    "Limits",
    "McpServer",
    "NoGateway",
    "NotFound",
    "NotPossible",
    "OnBudget",
    "OnFull",
    "OnInvalidModel",
    "Outcome",
    "Peers",
    "PlanChanged",
    "Policy",
    "Provider",
    "Question",
    "RateLimited",
    "RuntimeJob",
    "Sandbox",
    "SchemaTooNew",
    "SpawnRefused",
    "StateDirectoryInUse",
    "StoreBusy",
    "StoreError",
    "StoreLost",
    "Subagents",
    "Task",
    "TaskResult",
    "Thinking",
    "ToolContext",
    "ToolPolicy",
    "ToolSettings",
    "UnknownQuestion",
    "UnknownTask",
    "UnsafeStateDirectory",
    "UnsupportedStore",
    "Usage",
    "Verdict",
    "Visibility",
    "Webhook",
    "Workspace",
    "__version__",
    "as_completed",
    "gather",
]

__version__ = "0.1.0"

_ELSEWHERE = {
    "AcpAgent": "clutch.wiring",
    "ActiveHours": "clutch.core.agents",
    "AdapterKind": "clutch.wiring",
    "Agent": "clutch.core.agents",
    "AgentDefaults": "clutch.core.agents",
    "Announcing": "clutch.core.policy",
    "Answer": "clutch.core.messages",
    "Budgets": "clutch.core.policy",
    "Call": "clutch.core.messages",
    "Clutch": "clutch.wiring",
    "Control": "clutch.core.policy",
    "Delegation": "clutch.core.agents",
    "Event": "clutch.api.handles",
    "Heartbeat": "clutch.core.agents",
    "IdleWake": "clutch.core.policy",
    "KillResult": "clutch.api.handles",
    "LateResult": "clutch.core.policy",
    "Life": "clutch.core.policy",
    "Limits": "clutch.core.policy",
    "McpServer": "clutch.wiring",
    "NotPossible": "clutch.transactions.control",
    "OnBudget": "clutch.core.policy",
    "OnFull": "clutch.core.agents",
    "OnInvalidModel": "clutch.core.agents",
    "Outcome": "clutch.core.model",
    "Peers": "clutch.core.authority",
    "PlanChanged": "clutch.transactions.control",
    "Policy": "clutch.core.policy",
    "Provider": "clutch.wiring",
    "Question": "clutch.api.handles",
    "RuntimeJob": "clutch.ports",
    "Sandbox": "clutch.wiring",
    "Subagents": "clutch.core.agents",
    "Task": "clutch.api.handles",
    "TaskResult": "clutch.api.handles",
    "Thinking": "clutch.core.model",
    "ToolContext": "clutch.ports",
    "ToolPolicy": "clutch.core.authority",
    "ToolSettings": "clutch.wiring",
    "UnknownQuestion": "clutch.transactions.questions",
    "UnknownTask": "clutch.transactions.control",
    "Usage": "clutch.core.messages",
    "Verdict": "clutch.ports",
    "Visibility": "clutch.core.authority",
    "Webhook": "clutch.wiring",
    "Workspace": "clutch.core.model",
    "as_completed": "clutch.api.handles",
    "gather": "clutch.api.handles",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ELSEWHERE.get(name, "clutch.errors")), name)


def __dir__() -> list[str]:
    return __all__
