"""Who may do what: the tools a session has, the rights of a new child, and the one guard for actions.

`role_filter` names the tools that a role never gets; `child_rights` derives a child's rights from its
parent's; `can(caller, verb, target)` allows or denies an action. Nothing here reads the database, and
the caller's identity always comes from the server-side run, never from a parameter."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import TypeVar, assert_never, cast

from clutch.core.validation import check
from clutch.errors import InvalidInput

# --------------------------------------------------------------------------------------------------
# Tool names: aliases, `*` patterns, filters that can only narrow, and what each role gets.
#
# A filter is a set of allow-lists and one deny-list. A tool passes when every allow-list has a pattern for
# it and no denial does. Putting two filters together unites both parts, so the result passes at most what
# each of them passes: there is no operation that adds a tool back.

#: Accepted spellings. Resolved before any rule is asked, so that a denial cannot be walked around.
ALIASES = {"spawn_subagent": "sessions_spawn", "subagent_spawn": "sessions_spawn", "bash": "shell"}

_SPELLINGS = {
    meant: (meant, *(alias for alias in ALIASES if ALIASES[alias] == meant)) for meant in ALIASES.values()
}

SESSION_TOOLS = frozenset(
    {
        "sessions_spawn",
        "subagents",
        "sessions_list",
        "sessions_history",
        "sessions_yield",
        "sessions_subagent_remove",
    }
)
#: The only ones of them that `alsoAllow` can give to a leaf.
LEAF_READS = frozenset({"sessions_list", "sessions_history"})
#: Reserved names: no child has them, even if a tool of that name is registered.
NEVER_FOR_CHILDREN = frozenset({"gateway", "cron", "agents_list", "session_status", "sessions_send"})


class Role(StrEnum):
    MAIN = "main"
    ORCHESTRATOR = "orchestrator"
    LEAF = "leaf"


def role(depth: int, depth_max: int) -> Role:
    """Asked once, at spawn, and stored: raising the limit later changes no existing session."""
    if depth == 0:
        return Role.MAIN
    return Role.ORCHESTRATOR if depth < depth_max else Role.LEAF


def canonical(name: str) -> str:
    return ALIASES.get(name, name)


def matches(pattern: str, name: str) -> bool:
    """`*` stands for any characters; everything else for itself. No pattern takes long to answer."""
    if "*" not in pattern:
        return pattern == name
    first, *middle, last = pattern.split("*")
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for piece in middle:
        found = name.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def any_matches(patterns: Iterable[str], name: str) -> bool:
    return any(matches(pattern, name) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class ToolFilter:
    """Without anything in it, it lets everything through."""

    allow: frozenset[frozenset[str]] = frozenset()
    deny: frozenset[str] = frozenset()

    def permits(self, name: str) -> bool:
        name = canonical(name)
        # A denial also hits by a tool's other spellings; `deny: ["bash"]` means the shell.
        if any(any_matches(self.deny, spelling) for spelling in _SPELLINGS.get(name, (name,))):
            return False
        return all(any_matches(map(canonical, patterns), name) for patterns in self.allow)

    def and_also(self, other: ToolFilter) -> ToolFilter:
        return ToolFilter(self.allow | other.allow, self.deny | other.deny)


EVERY_TOOL = ToolFilter()


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """`tools.subagents.tools` of the config. `allow` None = not set; set, it is the whole list."""

    #: The only tools, by name or pattern. None = all that are not denied.
    allow: frozenset[str] | None = None
    #: Tools in addition to these; for subagents that cannot spawn also session tools that read.
    also_allow: frozenset[str] = frozenset()
    deny: frozenset[str] = frozenset()  #: Tools that are never available; overrides the other lists.

    def __post_init__(self) -> None:
        check(self)

    @property
    def filter(self) -> ToolFilter:
        """The same as patterns."""
        return _filter(self)


@lru_cache(maxsize=256)  # asked for every child
def _filter(policy: ToolPolicy) -> ToolFilter:
    allow = frozenset() if policy.allow is None else frozenset({policy.allow | policy.also_allow})
    return ToolFilter(allow, policy.deny)


def role_filter(of: Role, policy: ToolPolicy) -> ToolFilter:
    """What a session of this role passes at most. The config is for children; a main session has all."""
    if of is Role.MAIN:
        return EVERY_TOOL
    return policy.filter.and_also(ToolFilter(deny=NEVER_FOR_CHILDREN | _withheld(of, policy)))


def _withheld(of: Role, policy: ToolPolicy) -> frozenset[str]:
    if of is not Role.LEAF:
        return frozenset()
    return SESSION_TOOLS - {name for name in LEAF_READS if any_matches(policy.also_allow, name)}


# --------------------------------------------------------------------------------------------------
# One guard for every verb on every target: `can(caller, verb, target)`.
#
# For an agent:
# - itself it may list and read, nothing more: no session steers itself;
# - its descendants it may list, read and control, unless it is a leaf or sees only itself;
# - a plan is decided by the parent alone, or by the session that receives the result in its place;
# - what is not below it, it may at most list, read and write to, if the config made that visible; control
#   over others cannot be configured;
# - some verbs are for people only.
# Operators may act on anything their scopes cover; one that speaks from a session, on that and what is below it.
#
# Asked after aliases and targets are resolved, with ids taken from the store.


class Verb(StrEnum):
    LIST = "list"
    READ = "read"  #: history, log, info, why, result, wait
    SEND = "send"
    STEER = "steer"
    KILL = "kill"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    CONTINUE = "continue"
    REMOVE = "remove"
    APPROVE = "approve"
    REJECT = "reject"
    ANSWER = "answer"
    REDELIVER = "redeliver"
    DISMISS = "dismiss"
    DELETE = "delete"


class Scope(StrEnum):
    READ = "read"
    WRITE = "write"
    APPROVE = "approve"
    ADMIN = "admin"  #: includes the others


class Visibility(IntEnum):
    """What an agent may see, narrow to wide."""

    SELF = 0
    TREE = 1
    AGENT = 2
    ALL = 3


class Rule(StrEnum):
    """Which rule denied."""

    SELF = "self"
    LEAF = "leaf"
    VISIBILITY = "visibility"
    NOT_DESCENDANT = "not-descendant"
    NOT_REQUESTER = "not-requester"
    AGENT_TO_AGENT = "agent-to-agent"
    OPERATORS_ONLY = "operators-only"
    SCOPE = "scope"


READ_VERBS = frozenset({Verb.LIST, Verb.READ})
DECIDING = frozenset({Verb.APPROVE, Verb.REJECT})
OPERATORS_ONLY = frozenset({Verb.ANSWER, Verb.REDELIVER, Verb.DISMISS, Verb.DELETE})


@dataclass(frozen=True, slots=True)
class Peers:
    """`tools.agentToAgent`: both agents must be on the list."""

    enabled: bool = False  #: Agents may send messages to sessions of other agents.
    allow: frozenset[str] = frozenset()  #: Agents that take part; both sides must be listed. "*" = all.
    turns_max: int = 5  #: Replies that two agents exchange after the first message.

    def __post_init__(self) -> None:
        if self.turns_max not in range(6):
            raise InvalidInput("Peers.turns_max", f"must be 0 to 5, not {self.turns_max!r}")

    def connect(self, one: str, other: str) -> bool:
        """Return whether these two agents may write to each other."""
        return self.enabled and any_matches(self.allow, one) and any_matches(self.allow, other)


@dataclass(frozen=True, slots=True)
class AgentCaller:
    session_id: int
    agent_id: str
    role: Role
    visibility: Visibility = Visibility.TREE
    is_sandboxed: bool = False
    peers: Peers = Peers()
    session_key: str = ""
    fence: int | None = None  #: of the run that speaks: one that lost its session has no say any more

    @property
    def actor(self) -> str:
        return self.session_key


@dataclass(frozen=True, slots=True)
class OperatorCaller:
    """A person at a surface, or a token. Scopes live on the server, never in the request."""

    scopes: frozenset[Scope]
    actor: str = "person"  #: who or what it is in timelines: "api", "cli", the name of a token
    within: int | None = None  #: a main session; nothing but it and what is below it is there for this caller


EVERY_SCOPE = frozenset(Scope)
Caller = AgentCaller | OperatorCaller


@dataclass(frozen=True, slots=True)
class Target:
    session_id: int
    agent_id: str
    ancestors: tuple[int, ...] = ()  #: parent first, then its parent, up to the root
    controller_id: int | None = None  #: set when the requester is gone and results go further up

    @property
    def decider_id(self) -> int | None:
        if self.controller_id is not None:
            return self.controller_id
        return self.ancestors[0] if self.ancestors else None


@dataclass(frozen=True, slots=True)
class Allowed:
    pass


@dataclass(frozen=True, slots=True)
class Denied:
    rule: Rule
    reason: str


def can(caller: Caller, verb: Verb, target: Target) -> Allowed | Denied:
    match caller:
        case OperatorCaller():
            return _operator_can(caller, verb, target)
        case AgentCaller():
            return _agent_can(caller, verb, target)
        case _:
            assert_never(caller)


def _operator_can(caller: OperatorCaller, verb: Verb, target: Target) -> Allowed | Denied:
    needed = _scope(verb)
    if not caller.scopes & {needed, Scope.ADMIN}:
        return Denied(Rule.SCOPE, f"{verb} needs the scope {needed}")
    if caller.within is not None and caller.within not in (target.session_id, *target.ancestors):
        return Denied(Rule.NOT_DESCENDANT, "the target is not a descendant of this session")
    return Allowed()


def _scope(verb: Verb) -> Scope:
    if verb in READ_VERBS:
        return Scope.READ
    if verb in DECIDING or verb is Verb.ANSWER:
        return Scope.APPROVE
    return Scope.ADMIN if verb is Verb.DELETE else Scope.WRITE


def _agent_can(caller: AgentCaller, verb: Verb, target: Target) -> Allowed | Denied:
    if verb in OPERATORS_ONLY:
        return Denied(Rule.OPERATORS_ONLY, f"only a person may {verb}")
    if target.session_id == caller.session_id:
        return Allowed() if verb in READ_VERBS else Denied(Rule.SELF, f"a session cannot {verb} itself")
    if caller.role is Role.LEAF and verb not in READ_VERBS:
        return Denied(Rule.LEAF, "a leaf subagent controls no session")
    if caller.session_id in target.ancestors:
        return _descendant(caller, verb, target)
    return _stranger(caller, verb, target)


def _descendant(caller: AgentCaller, verb: Verb, target: Target) -> Allowed | Denied:
    if caller.visibility is Visibility.SELF:
        return Denied(Rule.VISIBILITY, "tools.sessions.visibility is self")
    if verb in DECIDING and target.decider_id != caller.session_id:
        return Denied(Rule.NOT_REQUESTER, "only the requester or a person decides on a plan")
    return Allowed()


def _stranger(caller: AgentCaller, verb: Verb, target: Target) -> Allowed | Denied:
    # No child has sessions_send, so only a main session can write to what is not below it.
    reaches = verb in READ_VERBS or (verb is Verb.SEND and caller.role is Role.MAIN)
    visibility = min(caller.visibility, Visibility.TREE) if caller.is_sandboxed else caller.visibility
    is_same_agent = caller.agent_id == target.agent_id
    wanted = Visibility.AGENT if is_same_agent else Visibility.ALL
    if not reaches or visibility < wanted:
        return Denied(Rule.NOT_DESCENDANT, "the target is not a descendant of this session")
    if not is_same_agent and not caller.peers.connect(caller.agent_id, target.agent_id):
        return Denied(Rule.AGENT_TO_AGENT, "tools.agentToAgent does not connect these two agents")
    return Allowed()


# --------------------------------------------------------------------------------------------------
# The rights of a session: made once at spawn, stored with its row, never changed.
#
#     child = parent ∩ target agent ∩ what this spawn asked for ∩ what the child's role gets
#
# Every field can only shrink on the way down: allow-lists and denials are added, never taken away; a
# sandbox is never left, a network never gained, a depth never raised. Plan mode is a filter over them
# (`under_plan`), lifted by approval; what is spawned meanwhile starts with it and keeps it.
#
# Budgets shrink the same way but have their own arithmetic, see `budget`.

JSON_VERSION = 1
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rights:
    role: Role
    depth: int
    depth_max: int  #: sessions below this one are at most this deep
    tools: ToolFilter = EVERY_TOOL
    models: frozenset[frozenset[str]] = frozenset()  #: allow-lists, each must have the model; none = any
    sandbox: bool = False  #: its tools run in the sandbox
    network: bool = True  #: sandboxed tools may reach the network
    read_only: bool = False  #: only tools that change nothing

    def permits_tool(self, name: str, *, is_read_only: bool) -> bool:
        return (is_read_only or not self.read_only) and self.tools.permits(name)

    def permits_model(self, name: str) -> bool:
        return all(any_matches(patterns, name) for patterns in self.models)

    @property
    def may_spawn(self) -> bool:
        return self.depth < self.depth_max and self.tools.permits("sessions_spawn")


@dataclass(frozen=True, slots=True)
class AgentGrant:
    """What the config gives to an agent, however it is started."""

    depth_max: int
    tools: ToolFilter = EVERY_TOOL
    models: frozenset[str] | None = None
    sandbox: bool = False
    network: bool = True
    #: A role, which is sandboxed whenever its parent is; other agents in that place are refused.
    follows_parent: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What one spawn asked for. It can only remove."""

    tools: frozenset[str] | None = None
    models: frozenset[str] | None = None
    depth_max: int | None = None
    sandbox: bool = False  #: `sandbox: "require"`
    network: bool = True
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class NoSandbox:
    """Refused: the child must run in the sandbox, which is off for the target agent."""

    reason: str


def root_rights(agent: AgentGrant) -> Rights:
    return Rights(
        role=Role.MAIN,
        depth=0,
        depth_max=agent.depth_max,
        tools=agent.tools,
        models=_lists(agent.models),
        sandbox=agent.sandbox,
        network=agent.network,
    )


def child_rights(
    parent: Rights, target: AgentGrant, request: Request, policy: ToolPolicy
) -> Rights | NoSandbox:
    is_sandboxed = target.sandbox or (target.follows_parent and parent.sandbox)
    if (parent.sandbox or request.sandbox) and not is_sandboxed:
        who = "the requester is sandboxed" if parent.sandbox else "sandbox is required"
        return NoSandbox(f"{who} and the target agent is not")
    depth = parent.depth + 1
    depth_max = min(parent.depth_max, target.depth_max)
    if request.depth_max is not None:
        depth_max = min(depth_max, request.depth_max)
    child_role = role(depth, depth_max)
    asked = ToolFilter(_lists(request.tools))
    return Rights(
        role=child_role,
        depth=depth,
        depth_max=depth_max,
        tools=parent.tools.and_also(target.tools).and_also(asked).and_also(role_filter(child_role, policy)),
        models=parent.models | _lists(target.models) | _lists(request.models),
        sandbox=is_sandboxed,  # a parent or a request that needs one was refused above without it
        network=parent.network and target.network and request.network,
        read_only=parent.read_only or request.read_only,
    )


def under_plan(rights: Rights) -> Rights:
    """What holds until the plan is approved. The stored rights stay as they are."""
    return replace(rights, read_only=True)


def _lists(patterns: frozenset[str] | None) -> frozenset[frozenset[str]]:
    return frozenset() if patterns is None else frozenset({patterns})


# --- as stored --------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def to_text(rights: Rights) -> str:
    return json.dumps(to_json(rights))


@lru_cache(maxsize=1024)
def from_text(stored: str) -> Rights:
    return from_json(json.loads(stored))


def to_json(rights: Rights) -> dict[str, object]:
    """A plain dict; the same rights always give the same text."""
    return {
        "v": JSON_VERSION,
        "role": str(rights.role),
        "depth": rights.depth,
        "depth_max": rights.depth_max,
        "tools_allow": _dump(rights.tools.allow),
        "tools_deny": sorted(rights.tools.deny),
        "models": _dump(rights.models),
        "sandbox": rights.sandbox,
        "network": rights.network,
        "read_only": rights.read_only,
    }


def from_json(stored: Mapping[str, object]) -> Rights:
    """Raises ValueError for anything `to_json` does not write: rights are not guessed."""
    if stored.get("v") != JSON_VERSION or set(stored) != _FIELDS:
        raise ValueError(f"these are not rights of version {JSON_VERSION}")
    return Rights(
        role=Role(_read(stored, "role", str)),
        depth=_read(stored, "depth", int),
        depth_max=_read(stored, "depth_max", int),
        tools=ToolFilter(_read_lists(stored, "tools_allow"), _strings(stored["tools_deny"])),
        models=_read_lists(stored, "models"),
        sandbox=_read(stored, "sandbox", bool),
        network=_read(stored, "network", bool),
        read_only=_read(stored, "read_only", bool),
    )


def _dump(lists: frozenset[frozenset[str]]) -> list[list[str]]:
    return sorted(sorted(patterns) for patterns in lists)


def _read(stored: Mapping[str, object], field: str, kind: type[T]) -> T:
    value = stored[field]
    if type(value) is not kind:  # exactly: True is no depth
        raise ValueError(f"stored rights: {field} is not a {kind.__name__}")
    return value


def _read_lists(stored: Mapping[str, object], field: str) -> frozenset[frozenset[str]]:
    return frozenset(_strings(patterns) for patterns in _read(stored, field, list))


def _strings(value: object) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("stored rights: not a list of patterns")
    return frozenset(cast("list[str]", value))


_FIELDS = frozenset(to_json(Rights(Role.MAIN, 0, 0)))
