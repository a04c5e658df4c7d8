"""May this session spawn that child? One function for every surface: tool, API, command line, MCP.

The caller counts (in the transaction that will insert, with the parent locked) and asks; nothing here
looks anything up. A refusal names the config key and both numbers, so that a model or a person knows
what to change."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any

from clutch.core import attachments, ids
from clutch.core.agents import MAIN
from clutch.core.attachments import Attachment
from clutch.core.authority import canonical
from clutch.core.checks import TaskCheck
from clutch.core.fair_share import PRIORITIES, RANKS, Priority, Queue
from clutch.core.model import Thinking, Workspace
from clutch.core.policy import DEPTH_MAX, Limits, Policy
from clutch.errors import InvalidInput

OWN_RUNTIME = "subagent"


class CleanupPolicy(StrEnum):
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
    cleanup: CleanupPolicy = CleanupPolicy.KEEP
    plan_mode: bool = False
    expects_completion: bool = True
    notify_parent: bool = True  #: False: no turn of the parent is started for its result, plan or questions
    thinking: Thinking | None = None
    context: Context = Context.ISOLATED
    workspace: Workspace | None = None
    cwd: str | None = None  #: beneath the workspace
    tools: frozenset[str] | None = None  #: patterns; can only remove
    needs_sandbox: bool = False
    budget: BudgetRequest | None = None
    output_schema: str | None = None  #: as JSON text
    checks: tuple[TaskCheck, ...] = ()  #: before its result counts as done
    runtime: str = OWN_RUNTIME
    attachments: tuple[Attachment, ...] = field(default=(), repr=False)
    mode: Mode = Mode.RUN
    thread: bool = False  #: a thread of a channel is bound to it
    share: str | None = None  #: that its slot belongs to
    priority: Priority | None = None  #: inside its share
    dry_run: bool = False  #: says what would be accepted and what it would cost, and writes nothing
    count: int = 1  #: tasks like this one in the forecast of a dry run
    idempotency_key: str | None = None
    digest: str = ""  #: of the whole request, if the caller chose the key and may use it again
    warnings: tuple[str, ...] = ()  #: what was not taken as it was said
    is_asked_about: bool = False  #: a hook may veto it

    @property
    def has_side_work(self) -> bool:
        """Return whether files or a thread are created, or a hook is asked, before the task is queued."""
        is_made = self.workspace is Workspace.ISOLATED or self.thread or bool(self.attachments)
        return is_made or self.is_asked_about


@dataclass(frozen=True, slots=True)
class SpawnCounts:
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
    has_own_list: bool = False  #: its own allowAgents is in force, not that of the defaults


@dataclass(frozen=True, slots=True)
class SpawnAdmission:
    agent_id: str
    depth: int
    label: str
    evict: int  #: how many delivered records leave the quota to make room


@dataclass(frozen=True, slots=True)
class SpawnRefusal:
    """`limit` carries the key and the numbers for machines; `error` the same in words."""

    error: str
    limit: Mapping[str, object] = field(default_factory=dict)
    is_conflict: bool = False  #: not a limit: the key was used for something else


KEY = "agents.defaults.subagents."
OWN_LIST = "agents.list[].subagents.allowAgents"


def admit(request: SpawnRequest, census: SpawnCounts, limits: Limits) -> SpawnAdmission | SpawnRefusal:
    agent_id = request.agent_id or census.agent_id
    refusal = (
        _dead_parent(census)
        or _attachments(request, limits)
        or _agent(request, census, limits, agent_id)
        or _reviewers(request, census, limits)
        or _over("maxSpawnDepth", census.depth, min(census.depth_max, limits.depth_max))
        or _over("maxChildrenPerAgent", census.children, limits.children_max)
        or _over("maxDescendants", census.descendants, limits.descendants_max)
        or _retained(census, limits)
        or _backlog(census, limits)
    )
    if refusal:
        return refusal
    return SpawnAdmission(
        agent_id=agent_id,
        depth=census.depth + 1,
        label=label_of(request, limits),
        evict=max(0, census.retained + 1 - limits.retained_max),
    )


def label_of(request: SpawnRequest, limits: Limits) -> str:
    return (request.label or " ".join(request.task.split())[: limits.label_from_task]).strip()


def _dead_parent(census: SpawnCounts) -> SpawnRefusal | None:
    if census.is_closed:
        return SpawnRefusal("the spawning session was ended or killed; a dead parent cannot spawn")
    return None


def _attachments(request: SpawnRequest, limits: Limits) -> SpawnRefusal | None:
    if limits.attachments.enabled or not request.attachments:
        return None
    key = f"{attachments.KEY}enabled"
    return SpawnRefusal(
        f"{attachments.AttachmentErrorCode.DISABLED}: files cannot be given here ({key})", {"key": key}
    )


def _agent(request: SpawnRequest, census: SpawnCounts, limits: Limits, agent_id: str) -> SpawnRefusal | None:
    if limits.require_agent_id and request.agent_id is None:
        return SpawnRefusal(f"agentId is required ({KEY}requireAgentId)", {"key": f"{KEY}requireAgentId"})
    if agent_id == census.agent_id:
        return None
    allowed, configured = limits.allow_agents, census.configured_agents
    if allowed & {agent_id, "*"} and agent_id in configured:
        return None
    hint = ids.hint(agent_id, configured)
    if agent_id in allowed - {"*"}:
        error = f"agent {agent_id[:64]!r} is allowed, but not configured: add it to agents.list{hint}"
        return SpawnRefusal(error, {"key": "agents.list"})
    hint = ""
    if agent_id not in configured:  # its file may wait for approval
        hint = (
            ids.hint(agent_id, configured | allowed - {"*"}) + "; `clutch agents list` shows agents and files"
        )
    key = OWN_LIST if census.has_own_list else f"{KEY}allowAgents"
    whose = f" of agent {census.agent_id!r}" if census.has_own_list else ""
    error = f"agent {agent_id[:64]!r} is not in {key}{whose} {sorted(allowed)}{hint}"
    return SpawnRefusal(error, {"key": key})


def _reviewers(request: SpawnRequest, census: SpawnCounts, limits: Limits) -> SpawnRefusal | None:
    """An agent that reviews costs as much as one that works, so the same list allows it."""
    for number, check in enumerate(request.checks):
        asked = replace(request, agent_id=check.agent)
        if check.agent is not None and (refused := _agent(asked, census, limits, check.agent)):
            return replace(refused, error=f"checks[{number}].agent: {refused.error}")
    return None


def _over(name: str, used: int, allowed: int) -> SpawnRefusal | None:
    if used < allowed:
        return None
    return SpawnRefusal(
        f"limit reached: {used}/{allowed} ({KEY}{name})", {"key": KEY + name, "used": used, "max": allowed}
    )


def _retained(census: SpawnCounts, limits: Limits) -> SpawnRefusal | None:
    """The quota may evict records of delivered results, and no others."""
    if limits.evicts_delivered and census.retained - census.evictable < limits.retained_max:
        return None
    return _over("maxRetained", census.retained, limits.retained_max)


def _backlog(census: SpawnCounts, limits: Limits) -> SpawnRefusal | None:
    if not limits.undelivered_max:
        return None
    return _over("undeliveredBacklog", census.undelivered, limits.undelivered_max)


def counting(census: SpawnCounts, more: int = 1) -> SpawnCounts:
    """The counts after more children: several spawns of one answer are admitted one after the other."""
    if not more:
        return census
    return replace(
        census,
        children=census.children + more,
        descendants=census.descendants + more,
        retained=census.retained + more,
    )


# --------------------------------------------------------------------------------------------------
# What a child gets where several could say: the spawn, its agent, the defaults, its caller.
#
#     model, thinking   spawn → agent's `subagents` → agent's own, if another agent than the caller
#                       → defaults for subagents → the caller's, if the same agent → agent's own → defaults
#     time              spawn → defaults for subagents → none
#     directory         the caller's; another agent's own
#     a role            the same, but its own model before that of the defaults, and else all as its caller has it
#
# `check` finds what is wrong with a request before anything is counted or written; `settled` fills in what depends on
# the policy alone; `terms` chooses for one caller, under its lock. Every surface goes through all three.

ACP = "acp"  #: the runtimes `acp` and `acp:NAME` are programs of others
# Of tools in an error, which a model reads.
NAMES_SHOWN_MAX = 40


@dataclass(frozen=True, slots=True)
class Spawner:
    """Who spawns, as its session was set up. None = as its agent is."""

    agent_id: str
    model: str | None = None
    thinking: Thinking | None = None
    workspace: str | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    model: str
    thinking: Thinking | None  #: None = whatever the provider does by itself
    directory: str | None  #: where it works, or what its own directory is made from


def check(
    request: SpawnRequest, policy: Policy, tools: Iterable[str] | None, runtimes: Collection[str]
) -> None:
    """Raise InvalidInput that names what exists instead. `tools`: None = not all of them are known yet."""
    if request.agent_id is not None:
        problem = ids.agent_id_problem(request.agent_id)
        if problem is not None:
            raise InvalidInput("agentId", problem + ids.hint(request.agent_id, known_agents(policy)))
    if request.runtime != OWN_RUNTIME and request.runtime not in runtimes:
        known = ", ".join(sorted({OWN_RUNTIME, *runtimes}))
        raise InvalidInput("runtime", f"there is no {request.runtime[:64]!r} here; known: {known}")
    if request.context is Context.FORK and _is_acp(request.runtime) and not policy.acp_forks:
        rule = (
            f"fork gives the conversation to another program, runtime {request.runtime[:64]!r}: use isolated, or set"
            " acp.allowFork"
        )
        raise InvalidInput("context", rule)
    if request.tools is not None and tools is not None:
        _check_tools(request.tools, frozenset(tools))
    for number, one in enumerate(request.checks):
        problem = None if one.agent is None else ids.agent_id_problem(one.agent)
        if problem is not None:
            field = f"checks[{number}].agent"
            raise InvalidInput(field, problem + ids.hint(one.agent or "", known_agents(policy)))


def _is_acp(runtime: str) -> bool:
    return runtime.partition(":")[0] == ACP


def _check_tools(asked: Iterable[str], known: frozenset[str]) -> None:
    """A pattern may be meant for tools that are still to come; a plain name is one there is, or a mistake."""
    for name in sorted(asked):
        if "*" not in name and canonical(name) not in known:
            shown = ", ".join(sorted(known)[:NAMES_SHOWN_MAX])
            raise InvalidInput(
                "tools", f"there is no tool {name[:64]!r}{ids.hint(name, known)} (known: {shown})"
            )


def digest(request: SpawnRequest) -> str:
    """The same for the same wishes, in every process and whatever else can be wished for one day."""
    said = [
        (one.name, getattr(request, one.name)) for one in fields(request) if one.name not in _NOT_DIGESTED
    ]
    plain = [
        (name, sorted(value) if isinstance(value, frozenset) else value)
        for name, value in said
        if value != getattr(_NOTHING_SAID, name)
    ]
    return hashlib.sha256(repr(plain).encode()).hexdigest()[:16]


_NOTHING_SAID = SpawnRequest("")
#: Who is notified is not what is done. A key that was stored before a request could say it stays valid.
_NOT_DIGESTED = frozenset({"idempotency_key", "notify_parent"})


def known_agents(policy: Policy) -> frozenset[str]:
    return frozenset({*policy.agents, *policy.roles, MAIN})


def spawnable(policy: Policy, agent_id: str) -> frozenset[str]:
    """The other agents that this one may spawn: allowed, and defined in the config or a file."""
    allowed, known = policy.limits_of(agent_id).allow_agents, frozenset({*policy.agents, *policy.roles})
    return (known if "*" in allowed else known & allowed) - {agent_id}


def settled(request: SpawnRequest, policy: Policy) -> SpawnRequest:
    """With the defaults that need no look at the caller. What a person may still want to read is kept."""
    defaults, changes = policy.defaults.subagents, dict[str, Any]()
    if request.run_timeout_s is None and defaults.run_timeout_s:
        changes["run_timeout_s"] = defaults.run_timeout_s
    own = None if request.agent_id is None else policy.agent(request.agent_id).subagents.workspace
    if request.workspace is None and (own or defaults.workspace) is not Workspace.INHERIT:
        changes["workspace"] = own or defaults.workspace
    if request.cleanup is not CleanupPolicy.KEEP and (request.plan_mode or request.mode is Mode.SESSION):
        changes["cleanup"] = CleanupPolicy.KEEP
    return replace(request, **changes) if changes else request


def queue_of(request: SpawnRequest, caller: Queue, *, is_agent: bool) -> Queue | SpawnRefusal:
    """Return the share and priority of a child, by default those of its parent.

    An agent takes slots from no other share and lets no child overtake what is as urgent as itself: only programs and
    users choose another share or a higher priority."""
    share = request.share or caller.share
    rank = caller.rank if request.priority is None else RANKS[request.priority]
    if is_agent and share != caller.share:
        return SpawnRefusal(
            f"share {share!r} is not that of this session, {caller.share!r}: leave share out; programs choose it",
            {"key": "share"},
        )
    if is_agent and rank < caller.rank:
        return SpawnRefusal(
            f"priority {PRIORITIES[rank]} is above that of this session, {PRIORITIES[caller.rank]}: leave priority out,"
            " or choose a lower one",
            {"key": "priority"},
        )
    return Queue(rank, share)


def terms(request: SpawnRequest, agent_id: str, caller: Spawner, policy: Policy) -> Terms:
    """`agent_id`: whose child it is to be."""
    agent, defaults, own = policy.agent(agent_id), policy.defaults, policy.agent(agent_id).subagents
    common = defaults.subagents
    if agent_id == caller.agent_id:
        model = request.model or own.model or common.model or caller.model or agent.model
        thinking = request.thinking or own.thinking or common.thinking or caller.thinking or agent.thinking
        directory = caller.workspace
    elif policy.is_role(agent_id):
        player = policy.agent(caller.agent_id)
        model = request.model or agent.model or common.model or caller.model or player.model
        thinking = request.thinking or agent.thinking or common.thinking or caller.thinking or player.thinking
        directory = caller.workspace or policy.workspace_of(caller.agent_id)
    else:
        model = request.model or own.model or agent.model or common.model
        thinking = request.thinking or own.thinking or agent.thinking or common.thinking
        directory = policy.workspace_of(agent_id)
    return Terms(model or defaults.model, thinking or defaults.thinking, directory)
