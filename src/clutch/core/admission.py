"""May this session spawn that child? One function for every door: tool, API, command line, MCP.

The caller counts (in the transaction that will insert, with the parent locked) and asks; nothing here
looks anything up. A refusal names the config key and both numbers, so that a model or a person knows
what to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum

from clutch.core import attachments, keys
from clutch.core.attachments import Attachment
from clutch.core.model import Thinking, Workspace
from clutch.core.policy import DEPTH_MAX, Limits

OWN_RUNTIME = "subagent"


class Cleanup(StrEnum):
    KEEP = "keep"
    DELETE = "delete"


class Mode(StrEnum):
    RUN = "run"
    SESSION = "session"  #: stays for what is said in its thread


class Context(StrEnum):
    """What a child knows of its caller's talk."""

    ISOLATED = "isolated"
    FORK = "fork"  #: a copy of the caller's transcript


@dataclass(frozen=True, slots=True)
class BudgetRequest:
    """For the child and its whole subtree; it gets at most what its parent has left."""

    tokens: int | None = None
    usd: Decimal | None = None


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """What the caller asked for, already checked for form. None = not said, so that defaults can apply."""

    task: str
    label: str | None = None
    agent_id: str | None = None
    model: str | None = None
    run_timeout_s: float | None = None
    cleanup: Cleanup = Cleanup.KEEP
    plan_mode: bool = False
    expects_completion: bool = True
    thinking: Thinking | None = None
    context: Context = Context.ISOLATED
    workspace: Workspace | None = None
    cwd: str | None = None  #: beneath the workspace
    tools: frozenset[str] | None = None  #: patterns; can only remove
    needs_sandbox: bool = False
    budget: BudgetRequest | None = None
    output_schema: str | None = None  #: as JSON text
    runtime: str = OWN_RUNTIME
    attachments: tuple[Attachment, ...] = field(default=(), repr=False)
    mode: Mode = Mode.RUN
    thread: bool = False  #: a thread of a channel is bound to it
    dry_run: bool = False  #: says what would be accepted, and writes nothing
    idempotency_key: str | None = None
    digest: str = ""  #: of all that was asked for, if somebody chose the key and may use it again
    warnings: tuple[str, ...] = ()  #: what was not taken as it was said
    is_asked_about: bool = False  #: somebody may veto it

    @property
    def has_side_work(self) -> bool:
        """Files or a thread are made, or somebody is asked, before the task may be queued."""
        is_made = self.workspace is Workspace.ISOLATED or self.thread or bool(self.attachments)
        return is_made or self.is_asked_about


@dataclass(frozen=True, slots=True)
class Census:
    """What the store counted, under the caller's lock."""

    agent_id: str
    depth: int
    depth_max: int = DEPTH_MAX  #: of the session: raising the limit later does not raise it
    is_closed: bool = False
    children: int = 0  #: active children; an ended one with live descendants still counts
    descendants: int = 0  #: alive below the same root
    retained: int = 0  #: active + finished-not-removed of this requester
    evictable: int = 0  #: of those, delivered ones that may leave the quota
    undelivered: int = 0  #: dead letters of the root
    repeated: int = 0  #: of those that are wanted now: there are such tasks already
    configured_agents: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Admitted:
    agent_id: str
    depth: int
    label: str
    evict: int  #: how many delivered records leave the quota to make room


@dataclass(frozen=True, slots=True)
class Refused:
    """`limit` carries the key and the numbers for machines; `error` the same in words."""

    error: str
    limit: Mapping[str, object] = field(default_factory=dict)
    is_conflict: bool = False  #: not a limit: the key was used for something else


KEY = "agents.defaults.subagents."


def admit(request: SpawnRequest, census: Census, limits: Limits) -> Admitted | Refused:
    agent_id = request.agent_id or census.agent_id
    refusal = (
        _dead_parent(census)
        or _attachments(request, limits)
        or _agent(request, census, limits, agent_id)
        or _over("maxSpawnDepth", census.depth, min(census.depth_max, limits.depth_max))
        or _over("maxChildrenPerAgent", census.children, limits.children_max)
        or _over("maxDescendants", census.descendants, limits.descendants_max)
        or _retained(census, limits)
        or _backlog(census, limits)
    )
    if refusal:
        return refusal
    return Admitted(
        agent_id=agent_id,
        depth=census.depth + 1,
        label=label_of(request, limits),
        evict=max(0, census.retained + 1 - limits.retained_max),
    )


def label_of(request: SpawnRequest, limits: Limits) -> str:
    return (request.label or " ".join(request.task.split())[: limits.label_from_task]).strip()


def _dead_parent(census: Census) -> Refused | None:
    if census.is_closed:
        return Refused("the spawning session was ended or killed; a dead parent cannot spawn")
    return None


def _attachments(request: SpawnRequest, limits: Limits) -> Refused | None:
    if limits.attachments.enabled or not request.attachments:
        return None
    key = f"{attachments.KEY}enabled"
    return Refused(f"{attachments.Code.DISABLED}: files cannot be given here ({key})", {"key": key})


def _agent(request: SpawnRequest, census: Census, limits: Limits, agent_id: str) -> Refused | None:
    if limits.require_agent_id and request.agent_id is None:
        return Refused(f"agentId is required ({KEY}requireAgentId)", {"key": f"{KEY}requireAgentId"})
    if agent_id == census.agent_id:
        return None
    allowed = limits.allow_agents
    if agent_id in allowed - {"*"} or ("*" in allowed and agent_id in census.configured_agents):
        return None
    known = census.configured_agents | allowed - {"*"}
    hint = "" if agent_id in known else keys.hint(agent_id, known)
    error = f"agent {agent_id[:64]!r} is not in {KEY}allowAgents {sorted(allowed)}{hint}"
    return Refused(error, {"key": f"{KEY}allowAgents"})


def _over(name: str, used: int, allowed: int) -> Refused | None:
    if used < allowed:
        return None
    return Refused(
        f"limit reached: {used}/{allowed} ({KEY}{name})", {"key": KEY + name, "used": used, "max": allowed}
    )


def _retained(census: Census, limits: Limits) -> Refused | None:
    """Records that were told may be forgotten by the quota; those nobody heard may not."""
    if limits.evicts_delivered and census.retained - census.evictable < limits.retained_max:
        return None
    return _over("maxRetained", census.retained, limits.retained_max)


def _backlog(census: Census, limits: Limits) -> Refused | None:
    if not limits.undelivered_max:
        return None
    return _over("undeliveredBacklog", census.undelivered, limits.undelivered_max)


def counting(census: Census, more: int = 1) -> Census:
    """The census after more children: several spawns of one answer are admitted one after the other."""
    if not more:
        return census
    return replace(
        census,
        children=census.children + more,
        descendants=census.descendants + more,
        retained=census.retained + more,
    )
