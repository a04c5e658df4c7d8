"""The systems that are compared: which packages they are, and how the model asks each of them for children.

The model server reads this table, so it needs none of the libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

CLUTCH: Final = "clutch"
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Delegate:
    """The tool call by which a parent's model starts one child. `then` is called after all of them, if given."""

    tool: str
    argument: str = "task"
    fixed: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    then: str | None = None
    resumed_by: str | None = (
        None  #: the argument that resumes a child whose report says that it was cancelled
    )


@dataclass(frozen=True, slots=True)
class Peer:
    """`packages`: the distributions whose versions are reported. `is_ours`: runs in our own environment."""

    name: str
    packages: tuple[str, ...]
    delegate: Delegate
    children: str  #: how its children run, for the page
    is_ours: bool = False
    backend: str = "sqlite"


_SPAWN: Final = Delegate("sessions_spawn", then="sessions_yield")
PEERS: Final[Mapping[str, Peer]] = {
    peer.name: peer
    for peer in (
        Peer(CLUTCH, ("clutch-agents",), _SPAWN, "background tasks", is_ours=True),
        Peer("clutch_direct", ("clutch-agents",), _SPAWN, "background tasks", is_ours=True),
        Peer(
            "langgraph",
            ("langgraph", "langgraph-checkpoint-sqlite", "langchain-openai"),
            Delegate("survey"),
            "subgraphs started by `Send`; the parent's next step waits for all",
        ),
        Peer(
            "deepagents",
            ("deepagents", "langgraph", "langgraph-checkpoint-sqlite"),
            Delegate("task", "description", {"subagent_type": "surveyor"}),
            "`task` tool; the parent's turn waits for all",
        ),
        Peer(
            "openai_agents",
            ("openai-agents",),
            Delegate("survey"),
            "runs in a tool, one session each; the parent's turn waits for all",
        ),
        Peer(
            "pydantic_ai",
            ("pydantic-ai-slim", "dbos"),
            Delegate("survey"),
            "DBOS workflows started by a tool; the parent's turn waits for all",
        ),
        Peer(
            "pydantic_ai_harness",
            ("pydantic-ai-harness", "pydantic-ai-slim"),
            Delegate(
                "delegate_task", fixed={"agent_name": "surveyor", "background": True}, resumed_by="resume"
            ),
            "background tasks of `SubAgents`",
        ),
        Peer(
            "agno",
            ("agno",),
            Delegate("delegate_task_to_member", fixed={"member_id": "surveyor"}),
            "team member; the leader's turn waits for all",
        ),
        Peer(
            "nanobot",
            ("nanobot-ai",),
            Delegate("spawn"),
            "background subagents of the `spawn` tool",
            backend="files",
        ),
    )
}
