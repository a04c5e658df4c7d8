"""Agents as the config describes them: `agents.list[]`, and `agents.defaults` for what none of them says.

Plain data and its rules. What of it a child gets is decided in `choosing`, who may spawn whom in `admission`,
what the rights amount to in `authority`. An agent that is not listed has the defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from zoneinfo import ZoneInfo

from clutch.core import hours, keys
from clutch.core.authority import ToolPolicy
from clutch.core.checks import check, require
from clutch.core.model import Thinking, Workspace
from clutch.errors import InvalidInput

MAIN = "main"  #: there is always one of this name
OFFLINE = "offline"  #: the scripted model; it needs no provider and no key
MODEL_CHARS_MAX = 200
HEARTBEAT_PROMPT = (
    "This is a heartbeat. Look at the system events and at HEARTBEAT.md of the workspace, if there is one, and do "
    "what they ask for. If nothing needs attention, reply HEARTBEAT_OK."
)


class OnInvalidModel(StrEnum):
    """What a spawn does with a model there is not."""

    ERROR = "error"
    FALLBACK = "fallback"  #: goes on with the next in order, and says so


class OnFull(StrEnum):
    """What a spawn does at a limit that has room again by itself."""

    REJECT = "reject"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class ActiveHours:
    """HH:MM; start inclusive, end exclusive, over midnight when start is later, equal = never."""

    start: str  #: HH:MM, inclusive
    end: str  #: HH:MM, exclusive; 24:00 is the end of the day
    timezone: str = "UTC"  #: a name like Europe/Berlin

    def __post_init__(self) -> None:
        check(self)
        try:
            self._minutes()
        except ValueError as error:
            name, _, rule = str(error).partition(": ")
            raise InvalidInput(name, rule) from error
        try:
            self._zone()
        except (KeyError, ValueError, OSError) as error:  # OSError: the name of a directory
            rule = f"there is no time zone {self.timezone[:64]!a}; write for example Europe/Berlin"
            raise InvalidInput("activeHours.timezone", rule) from error

    def _minutes(self) -> tuple[int, int]:
        return (
            hours.parse_minute(self.start, "activeHours.start"),
            hours.parse_minute(self.end, "activeHours.end", is_end=True),
        )

    def _zone(self) -> tzinfo:
        return UTC if self.timezone == "UTC" else ZoneInfo(self.timezone)  # some machines have no other zones

    def opens_at(self, moment: float) -> float | None:
        """`moment` when it is the hour, else when it will be; None = never."""
        return hours.opens_at(moment, self._zone(), *self._minutes())


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`heartbeat.*`: an agent that has one is woken now and then."""

    every_s: float = 1800.0  #: between two looks: often enough to be useful, seldom enough to be cheap
    prompt: str = HEARTBEAT_PROMPT  #: what it is told when it is woken
    target: str = "last"  #: where its reply goes: last, none, or a route
    active_hours: ActiveHours | None = None  #: None = always
    ack_chars_max: int = 300  #: beside HEARTBEAT_OK: more is something to say
    coalesce_s: float = 0.25  #: wakes that come together are one
    busy_retry_s: float = 1.0  #: when it was working at the time
    dedupe_s: float = 24 * 3600.0  #: the same alert is not repeated within
    events_max: int = 20  #: the newest; an agent that was away needs no more to catch up

    def __post_init__(self) -> None:
        check(self)
        require(
            "Heartbeat.every_s",
            "must be at least 1; leave the heartbeat out for none",
            is_kept=self.every_s >= 1,
        )
        require("Heartbeat.target", "must be last, none or a route", is_kept=bool(self.target.strip()))


@dataclass(frozen=True, slots=True)
class Delegation:
    """`agents.list[].subagents`: what holds when this agent spawns (the lists), or is spawned (model, thinking)."""

    allow_agents: frozenset[str] = frozenset()  #: others than itself; empty = those of the defaults
    model: str | None = None  #: of its children
    thinking: Thinking | None = None  #: of its children
    require_agent_id: bool | None = None  #: None = as the defaults say

    def __post_init__(self) -> None:
        check(self)
        check_allowed("Delegation.allow_agents", self.allow_agents)
        check_model("Delegation.model", self.model)


@dataclass(frozen=True, slots=True)
class Agent:
    """`agents.list[]`. None = as the defaults say."""

    id: str  #: a-z, 0-9, _ and -; `main` is always there
    model: str | None = None  #: provider:model
    thinking: Thinking | None = None  #: how much it may think before it answers
    identity: str = ""  #: its own words about itself; only its main and chat sessions get them
    workspace: str | None = None  #: where its file tools work
    heartbeat: Heartbeat | None = None  #: it looks up by itself
    subagents: Delegation = field(default_factory=Delegation)  #: what holds when it spawns or is spawned
    sandbox: bool | None = None  #: its file tools and commands run boxed
    network: bool = True  #: its commands may reach the network, if the tools let any
    tools: ToolPolicy = field(default_factory=ToolPolicy)  #: what it has at most, whoever starts it
    models: frozenset[str] | None = None  #: patterns; None = any

    def __post_init__(self) -> None:
        check(self)
        problem = keys.agent_id_problem(self.id)
        require("Agent.id", problem or "", is_kept=problem is None)
        check_model(f"agent {self.id!r}, model", self.model)


@dataclass(frozen=True, slots=True)
class Subagents:
    """`agents.defaults.subagents.*`: what a child gets where neither its spawn nor an agent says. See `Limits` too."""

    model: str | None = None  #: of children; None = their parent's
    thinking: Thinking | None = None  #: of children; None = their parent's
    run_timeout_s: float = 0.0  #: 0 = none: a deadline nobody asked for would cut good work
    workspace: Workspace = Workspace.INHERIT  #: where children work
    on_invalid_model: OnInvalidModel = OnInvalidModel.ERROR  #: what a spawn does with a model there is not
    #: of programs. Agents are refused at once: one that waited would hold a turn
    on_full: OnFull = OnFull.QUEUE

    def __post_init__(self) -> None:
        check(self)
        check_model("Subagents.model", self.model)


@dataclass(frozen=True, slots=True)
class AgentDefaults:
    """`agents.defaults.*`"""

    model: str = OFFLINE  #: provider:model, or the offline script
    thinking: Thinking | None = None  #: None = as the model does by itself
    workspace: str | None = None  #: where the file tools of new sessions work; None = here
    heartbeat: Heartbeat | None = None  #: of every listed agent that has none of its own
    sandbox: bool = False
    subagents: Subagents = field(default_factory=Subagents)

    def __post_init__(self) -> None:
        check(self)
        check_model("AgentDefaults.model", self.model)


Roster = Mapping[str, Agent]
NOBODY: Roster = MappingProxyType({})


def roster(agents: Iterable[Agent]) -> Roster:
    """By id. Raises InvalidInput for two of one id."""
    listed: dict[str, Agent] = {}
    for agent in agents:
        require("agents", f"must be Agent(…), not {type(agent).__name__}", is_kept=isinstance(agent, Agent))
        require("agents", f"there are two agents {agent.id!r}", is_kept=agent.id not in listed)
        listed[agent.id] = agent
    return MappingProxyType(listed)


@lru_cache(maxsize=256)  # asked for every child
def unlisted(agent_id: str) -> Agent:
    return Agent(agent_id)


def check_allowed(field_name: str, allowed: frozenset[str]) -> None:
    """An id that could never be an agent's is a mistake: nobody would ever be allowed by it."""
    for agent_id in allowed - {"*"}:
        problem = keys.agent_id_problem(agent_id)
        require(field_name, problem or "", is_kept=problem is None)


def check_model(field_name: str, model: str | None) -> None:
    is_name = model is None or (bool(model.strip()) and model.isprintable() and len(model) <= MODEL_CHARS_MAX)
    require(field_name, f"must be a name of at most {MODEL_CHARS_MAX} printable characters", is_kept=is_name)
