"""Agents as the config describes them: `agents.list[]`, and `agents.defaults` for what none of them says.

Plain data and its rules. What of it a child gets is decided in `core.spawn`, and so is who may spawn whom,
what the rights amount to in `authority`. An agent that is not listed has the defaults."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from zoneinfo import ZoneInfo

from clutch.core import ids
from clutch.core.authority import ToolPolicy
from clutch.core.model import Thinking, Workspace
from clutch.core.text.tasks import silence
from clutch.core.validation import check, require
from clutch.errors import InvalidInput

# --------------------------------------------------------------------------------------------------
# When to try again, and whether it is the hour for it.
#
# Two curves and a clock face. Knows no current time: an attempt number or a minute of the day comes in,
# a delay or a yes comes out. Jitter is drawn from (seed, attempt) by a hash, so that the same letter waits
# the same time in every process and in every replay.

MINUTES_PER_DAY = 24 * 60
_HH_MM = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
# Beyond this every curve has long reached its maximum; a larger power would overflow.
_DOUBLINGS_MAX = 64


def next_delay(
    attempt: int,
    *,
    fast_tries: int = 3,
    first_s: float = 1.0,
    fast_max_s: float = 8.0,
    slow: bool = True,
    slow_first_s: float = 15.0,
    slow_max_s: float = 300.0,
    until_s: float = 1800.0,
    jitter: float = 0.2,
    seed: int = 0,
) -> float | None:
    """Seconds to wait after failed attempt number `attempt` (from 1); None = give up.

    `fast_tries` quick tries have one wait less between them; then the slow curve, if there is one. It
    gives up when the waits handed out so far and this one would exceed `until_s`: only failures count, so
    a letter that is deferred for a day in between loses nothing.
    """
    if attempt < 1 or first_s <= 0 or slow_first_s <= 0 or not 0 <= jitter < 1:
        raise ValueError("attempts count from 1, delays are positive and jitter is a fraction below 1")
    delay_s = waited_s = 0.0
    for number in range(1, attempt + 1):
        if number < fast_tries:
            delay_s = _doubled(first_s, number - 1, fast_max_s)
        elif slow:
            delay_s = _doubled(slow_first_s, number - max(fast_tries, 1), slow_max_s)
            delay_s *= 1 + jitter * _swing(seed, number)
        else:
            return None
        waited_s += delay_s
        if waited_s > until_s:
            return None
    return delay_s


def _doubled(first_s: float, times: int, max_s: float) -> float:
    return min(first_s * 2.0 ** min(times, _DOUBLINGS_MAX), max_s)


def _swing(seed: int, attempt: int) -> float:
    """Evenly spread over -1 … 1."""
    digest = hashlib.sha256(f"{seed}:{attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**63 - 1


def parse_minute(text: str, field: str, *, is_end: bool = False) -> int:
    """`HH:MM` as minute of the day. `24:00` is the end of a day and never the start of anything."""
    if is_end and text == "24:00":
        return MINUTES_PER_DAY
    matched = _HH_MM.fullmatch(text)
    if matched is None:
        allowed = "00:00 to 24:00" if is_end else "00:00 to 23:59"
        raise ValueError(f"{field}: {text[:40]!a} is not a time; write HH:MM, {allowed}")
    return int(matched[1]) * 60 + int(matched[2])


def is_active(minute: int, start: int, end: int) -> bool:
    """Start inclusive, end exclusive; over midnight when start is later than end; equal = never."""
    if start <= end:
        return start <= minute < end
    return minute >= start or minute < end


def minutes_until_active(minute: int, start: int, end: int) -> int | None:
    """0 when active now, None when never."""
    if is_active(minute, start, end):
        return 0
    return None if start == end else (start - minute) % MINUTES_PER_DAY


def opens_at(moment: float, zone: tzinfo, start: int, end: int) -> float | None:
    """`moment` when it is the hour there; else the next moment when it is. None = never."""
    local = datetime.fromtimestamp(moment, zone)
    minute = local.hour * 60 + local.minute
    wait = minutes_until_active(minute, start, end)
    if not wait:
        return None if wait is None else moment
    opens = local.replace(hour=start // 60, minute=start % 60, second=0, microsecond=0)
    if minute >= start:
        opens = (opens + timedelta(days=1)).replace(fold=0)
    return opens.timestamp()


MAIN = "main"  #: there is always one of this name
SKILL_TOOL = "skill"  #: the tool that loads a skill
OFFLINE = "offline"  #: the demo model; it needs no provider and no API key
MODEL_CHARS_MAX = 200
#: Of an agent or a skill. Every system prompt of an agent that may spawn repeats it.
DESCRIPTION_CHARS_MAX = 1024
#: Of the instructions of an agent. Every request of a subagent of it carries them.
INSTRUCTIONS_CHARS_MAX = 32 * 1024
HEARTBEAT_PROMPT = (
    "This is a heartbeat. Look at the system events and at HEARTBEAT.md of the workspace, if there is one, and do "
    "what they ask for. If nothing needs attention, reply HEARTBEAT_OK."
)


class OnInvalidModel(StrEnum):
    """What a spawn does with a model there is not."""

    ERROR = "error"
    FALLBACK = "fallback"  #: continues with the next in order, and says so


class OnFull(StrEnum):
    """What a spawn does at a limit that frees a place by itself."""

    REJECT = "reject"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class ActiveHours:
    """HH:MM; start inclusive, end exclusive, over midnight when start is later, equal = never."""

    start: str  #: Begin of the active hours as HH:MM, inclusive.
    end: str  #: End of the active hours as HH:MM, exclusive. 24:00 is the end of the day.
    timezone: str = "UTC"  #: Time zone of the active hours, such as Europe/Berlin.

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
            parse_minute(self.start, "activeHours.start"),
            parse_minute(self.end, "activeHours.end", is_end=True),
        )

    def _zone(self) -> tzinfo:
        return UTC if self.timezone == "UTC" else ZoneInfo(self.timezone)  # some machines have no other zones

    def opens_at(self, moment: float) -> float | None:
        """`moment` when it is the hour, else when it will be; None = never."""
        return opens_at(moment, self._zone(), *self._minutes())


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`heartbeat.*`: an agent that has one gets a turn at this interval."""

    every_s: float = 1800.0  #: Time between two turns that the agent starts by itself.
    prompt: str = HEARTBEAT_PROMPT  #: Message that starts such a turn.
    #: Where the reply goes: last (the last conversation), none, or a route such as ops:night.
    target: str = "last"
    active_hours: ActiveHours | None = None  #: Hours in which the agent wakes by itself. None = always.
    #: Characters beside HEARTBEAT_OK up to which a reply counts as "nothing to report".
    ack_chars_max: int = 300
    coalesce_s: float = 0.25  #: Wakes within this time are one turn.
    busy_retry_s: float = 1.0  #: Delay before a heartbeat tries again when the agent was busy.
    dedupe_s: float = 24 * 3600.0  #: The same alert is sent only once within this time.
    events_max: int = 20  #: System events kept for the next turn; the newest stay.

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

    #: Other agents that this agent may spawn. Empty = those of the defaults.
    allow_agents: frozenset[str] = frozenset()
    model: str | None = None  #: Model of its subagents. None = that of the defaults.
    thinking: Thinking | None = None  #: Thinking level of its subagents. None = that of the defaults.
    #: A spawn by this agent must name its agent. None = as in the defaults.
    require_agent_id: bool | None = None
    #: Directory of this agent as a subagent: inherit or isolated. None = as in the defaults.
    workspace: Workspace | None = None

    def __post_init__(self) -> None:
        check(self)
        check_allowed("Delegation.allow_agents", self.allow_agents)
        check_model("Delegation.model", self.model)


@dataclass(frozen=True, slots=True)
class Agent:
    """`agents.list[]`. None = as the defaults say."""

    id: str  #: Name of the agent: a-z, 0-9, _ and -. The agent "main" always exists.
    model: str | None = None  #: Model of this agent, as provider:model. None = that of the defaults.
    thinking: Thinking | None = None  #: Thinking level of this agent. None = that of the defaults.
    #: What the agent is for. Agents that may start it see this text when they choose whom to start.
    description: str = ""
    #: Who the agent is, for the system prompt of its main and chat sessions; subagents do not get it.
    identity: str = ""
    #: Role of the agent as a subagent: part of its system prompt when it is spawned. Its main sessions do not get it.
    instructions: str = ""
    workspace: str | None = None  #: Directory of its file tools. None = that of the defaults.
    heartbeat: Heartbeat | None = None  #: Heartbeat of this agent. None = that of the defaults.
    #: Settings for when this agent spawns or is spawned.
    subagents: Delegation = field(default_factory=Delegation)
    #: Whether its commands and file tools run in the sandbox. None = as sandbox.mode says.
    sandbox: bool | None = None
    network: bool = True  #: Its commands may use the network, if sandbox.network allows it.
    tools: ToolPolicy = field(default_factory=ToolPolicy)  #: Upper limit of its tools, however it is started.
    models: frozenset[str] | None = None  #: Patterns of the models it may use. None = all.
    max_turns: int | None = None  #: Model calls of one run of this agent. None = maxSteps of the defaults.
    skills: frozenset[str] | None = None  #: Skills that this agent may use, by name. None = all.

    def __post_init__(self) -> None:
        check(self)
        problem = ids.agent_id_problem(self.id)
        require("Agent.id", problem or "", is_kept=problem is None)
        check_model(f"agent {self.id!r}, model", self.model)
        require(
            "Agent.max_turns", "must be at least 1", is_kept=self.max_turns is None or self.max_turns >= 1
        )
        for name, most in (("description", DESCRIPTION_CHARS_MAX), ("instructions", INSTRUCTIONS_CHARS_MAX)):
            is_kept = len(getattr(self, name)) <= most
            require(f"Agent.{name}", f"must have at most {most} characters", is_kept=is_kept)


@dataclass(frozen=True, slots=True)
class Subagents:
    """`agents.defaults.subagents.*`: what a child gets where neither its spawn nor an agent says. See `Limits` too."""

    model: str | None = None  #: Model of subagents. None = that of their parent.
    thinking: Thinking | None = None  #: Thinking level of subagents. None = that of their parent.
    run_timeout_s: float = 0.0  #: Time limit of one run of a subagent. 0 = none.
    #: Directory of subagents: the parent's (inherit), or one of their own (isolated).
    workspace: Workspace = Workspace.INHERIT
    #: What a spawn with an unknown model does: fail, or use the next configured one and say so.
    on_invalid_model: OnInvalidModel = OnInvalidModel.ERROR
    #: What a program's spawn does at a limit: wait ("queue") or fail ("reject"). Agents always fail at once.
    on_full: OnFull = OnFull.QUEUE

    def __post_init__(self) -> None:
        check(self)
        check_model("Subagents.model", self.model)


@dataclass(frozen=True, slots=True)
class AgentDefaults:
    """`agents.defaults.*`"""

    model: str = OFFLINE  #: Model of agents that name none, as provider:model. "offline" is the demo model.
    thinking: Thinking | None = None  #: Thinking level of the model. None = the model's own default.
    #: Directory of the file tools of new sessions. None = where the process was started.
    workspace: str | None = None
    #: Heartbeat of every listed agent that has none of its own. None = none.
    heartbeat: Heartbeat | None = None
    sandbox: bool = False
    subagents: Subagents = field(default_factory=Subagents)

    def __post_init__(self) -> None:
        check(self)
        check_model("AgentDefaults.model", self.model)


Roster = Mapping[str, Agent]
NO_AGENTS: Roster = MappingProxyType({})


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
    """An id that could never be an agent's is a mistake: it would allow no agent."""
    for agent_id in allowed - {"*"}:
        problem = ids.agent_id_problem(agent_id)
        require(field_name, problem or "", is_kept=problem is None)


def check_model(field_name: str, model: str | None) -> None:
    is_name = model is None or (bool(model.strip()) and model.isprintable() and len(model) <= MODEL_CHARS_MAX)
    require(field_name, f"must be a name of at most {MODEL_CHARS_MAX} printable characters", is_kept=is_name)


# --------------------------------------------------------------------------------------------------
# When an agent looks up by itself, and whether what it then says is worth telling.
#
# A heartbeat is a turn without a message: the timer of a main session fires (every so often, or because
# of `wake`), and if there is a reason (something happened, or its workspace has a checklist) it reads
# its own prompt. `HEARTBEAT_OK` is its word for "nothing to tell".

ALL_QUIET = "HEARTBEAT_OK"
CHECKLIST = "HEARTBEAT.md"  #: in the workspace; without it only an event is a reason
LAST, NO_TARGET = "last", "none"  #: targets; anything else is a route
LOOKS_AGAIN_S = 60.0  # at a session that waits for a user, for an unknown time


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a ringing timer comes to. `next_at`: None = it does not ring again by itself."""

    beats: bool
    next_at: float | None


def pulse(
    rules: Heartbeat, *, now: float, has_reason: bool, free_at: float | None = None, is_regular: bool = True
) -> Pulse:
    """`free_at`: it is in a turn, and may be free then; None = no worker is at work on it.

    `is_regular`: the agent has a heartbeat; one that has none gets a turn only when another session asks for it."""
    opens_at = now if rules.active_hours is None else rules.active_hours.opens_at(now)
    if opens_at is None or opens_at > now:
        return Pulse(False, opens_at)
    if free_at is not None:
        return Pulse(False, max(free_at, now + rules.busy_retry_s))
    return Pulse(has_reason, now + rules.every_s if is_regular else None)


#: What a model puts before and after a word of its own: spaces, Markdown, tags, a full stop.
_BEFORE = re.compile(r"(?:[\s*_`~#>\"'-]|<[^<>]*>|&nbsp;)*")
_AFTER = re.compile(r"(?:[\s*_`~.!\"']|<[^<>]*>|&nbsp;)*")


def alert(reply: str, ack_chars_max: int) -> str | None:
    """What of a heartbeat's final text is sent to the user; None = nothing.

    The token counts at either end only; in the middle of a text it is part of the text."""
    if silence(reply) is not None or not reply.strip():
        return None
    rest = _without_last(_without_first(reply)).strip()
    if len(rest) < len(reply.strip()) and len(rest) <= ack_chars_max:
        return None
    return rest


def _without_first(text: str) -> str:
    begins = _matched(_BEFORE, text, 0)
    ends = begins + len(ALL_QUIET)
    if not text.startswith(ALL_QUIET, begins) or text[ends : ends + 1].isalnum():
        return text
    return text[_matched(_AFTER, text, ends) :]


def _without_last(text: str) -> str:
    begins = text.rfind(ALL_QUIET)
    ends = begins + len(ALL_QUIET)
    if begins < 0 or _matched(_AFTER, text, ends) < len(text):
        return text
    rest = text[:begins]
    is_end_of_a_word = rest.rstrip("_")[-1:].isalnum()
    return text if is_end_of_a_word else rest.rstrip("*_`~ \n")


def _matched(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at
