"""One guard for every verb on every target: `can(caller, verb, target)`.

For an agent:
- itself it may list and read, nothing more: nobody steers itself;
- its descendants it may list, read and control, unless it is a leaf or sees only itself;
- a plan is decided by the requester alone, or whoever its result would reach in the requester's place;
- what is not below it, it may at most list, read and write to, if the config made that visible; control
  over others cannot be configured;
- some verbs are for people only.
Operators may act on anything their scopes cover; one that speaks from a session, on that and what is below it.

Asked after aliases and targets are resolved, with ids taken from the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import assert_never

from clutch.core.authority.tools import Role, any_matches
from clutch.errors import InvalidInput


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


LOOKING = frozenset({Verb.LIST, Verb.READ})
DECIDING = frozenset({Verb.APPROVE, Verb.REJECT})
OPERATORS_ONLY = frozenset({Verb.ANSWER, Verb.REDELIVER, Verb.DISMISS, Verb.DELETE})


@dataclass(frozen=True, slots=True)
class Peers:
    """`tools.agentToAgent`: both agents must be on the list."""

    enabled: bool = False  #: agents may write to each other's sessions
    allow: frozenset[str] = frozenset()  #: agents that take part, "*" = all; both sides must be listed
    turns_max: int = 5  #: replies to and fro after the first: two models can be polite to each other for ever

    def __post_init__(self) -> None:
        if self.turns_max not in range(6):
            raise InvalidInput("Peers.turns_max", f"must be 0 to 5, not {self.turns_max!r}")

    def connect(self, one: str, other: str) -> bool:
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
    if verb in LOOKING:
        return Scope.READ
    if verb in DECIDING or verb is Verb.ANSWER:
        return Scope.APPROVE
    return Scope.ADMIN if verb is Verb.DELETE else Scope.WRITE


def _agent_can(caller: AgentCaller, verb: Verb, target: Target) -> Allowed | Denied:
    if verb in OPERATORS_ONLY:
        return Denied(Rule.OPERATORS_ONLY, f"only a person may {verb}")
    if target.session_id == caller.session_id:
        return Allowed() if verb in LOOKING else Denied(Rule.SELF, f"a session cannot {verb} itself")
    if caller.role is Role.LEAF and verb not in LOOKING:
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
    reaches = verb in LOOKING or (verb is Verb.SEND and caller.role is Role.MAIN)
    visibility = min(caller.visibility, Visibility.TREE) if caller.is_sandboxed else caller.visibility
    is_same_agent = caller.agent_id == target.agent_id
    wanted = Visibility.AGENT if is_same_agent else Visibility.ALL
    if not reaches or visibility < wanted:
        return Denied(Rule.NOT_DESCENDANT, "the target is not a descendant of this session")
    if not is_same_agent and not caller.peers.connect(caller.agent_id, target.agent_id):
        return Denied(Rule.AGENT_TO_AGENT, "tools.agentToAgent does not connect these two agents")
    return Allowed()
