"""Every number, once, with its reason. Each is a default and a config key of the same (camelCase) name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType

from clutch.core.agents import (
    NO_AGENTS,
    ActiveHours,
    Agent,
    AgentDefaults,
    Heartbeat,
    check_allowed,
    next_delay,
    unlisted,
)
from clutch.core.attachments import AttachmentRules
from clutch.core.authority import AgentGrant, Peers, ToolPolicy, Visibility
from clutch.core.compaction import ContextLimits
from clutch.core.model import Hook, Lane, Outcome
from clutch.core.text.results import RESULT_BYTES_MIN, PayloadMode
from clutch.core.validation import above_zero, at_least, check, require
from clutch.core.views import HistoryLimits


class QueueMode(StrEnum):
    """How results reach a parent that is in a turn."""

    AUTO = "auto"  #: collect; steer when no completion is expected
    COLLECT = "collect"  #: all that wait in one turn, after the debounce
    STEER = "steer"  #: into the running turn, at its next step
    FOLLOWUP = "followup"  #: one turn for each, in order
    STEER_BACKLOG = "steer-backlog"  #: steer, and a turn of its own only if it was not taken
    INTERRUPT = "interrupt"  #: the running turn ends at its next step, never one that a person started


class Drop(StrEnum):
    """What becomes of more results than one turn takes."""

    SUMMARIZE = "summarize"  #: the older ones are one line each
    OLD = "old"  #: the older ones become dead letters
    NEW = "new"  #: the newer ones become dead letters


DEPTH_MAX = 5
#: How a parent's run can end by itself. Killing it takes its children along in any case.
ENDS = frozenset({Outcome.TIMEOUT, Outcome.ERROR, Outcome.LOST})
ON_PARENT_END = frozenset({"kill", "continue"})


class ExpiryFrom(StrEnum):
    """Where the wait for descendants is measured from."""

    PROGRESS = "progress"  #: the last sign of life of any of them; it stands while a person is asked
    END = "end"  #: the parent's end, whatever happens below


class Direct(StrEnum):
    """What becomes of a result when its requester is idle."""

    TURN = "turn"  #: its model writes the message to the user
    SEND = "send"  #: the person reads it as it is; no model turn


class IdleWake(StrEnum):
    """What a result is to an idle main agent."""

    TURN = "turn"  #: a reason for a turn, at any hour
    HEARTBEAT = "heartbeat"  #: within its active hours; the model may find it not worth telling


@dataclass(frozen=True, slots=True)
class Limits:
    """`agents.defaults.subagents.*`: how far delegation may go."""

    children_max: int = 5  #: active per requester: more than a model can keep in mind is a fan-out gone wrong
    depth_max: int = 1  #: no nesting unless asked for; runaway recursion is the commonest bill shock
    descendants_max: int = 50  #: alive at once below one root, any depth
    retained_max: int = 15  #: active + finished-not-removed per requester
    evicts_delivered: bool = True  #: the oldest delivered leaves the quota instead of refusing a spawn
    undelivered_max: int = 50  #: dead letters of one root before new work is refused; 0 = off
    reservation_s: float = 30.0  #: side work of a spawn that takes longer is rolled back
    allow_agents: frozenset[str] = frozenset()  #: others than oneself; "*" = any configured
    require_agent_id: bool = False  #: a spawn must say which agent
    task_bytes_max: int = 64 * 1024  #: a task is an instruction, not a document; documents are attachments
    label_max: int = 200  #: characters
    label_from_task: int = 72  #: one line of a terminal
    attachments: AttachmentRules = field(default_factory=AttachmentRules)
    #: "kill" or "continue" (the default) for timeout, error and lost
    on_parent_end: Mapping[Outcome, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        check(self)
        at_least(self, children_max=1, depth_max=1, descendants_max=1, retained_max=1)
        check_allowed("Limits.allow_agents", self.allow_agents)
        deep = f"must be at most {DEPTH_MAX}: what nests deeper is a loop"
        require("Limits.depth_max", deep, is_kept=self.depth_max <= DEPTH_MAX)
        for outcome, what in self.on_parent_end.items():
            require(
                "Limits.on_parent_end",
                f"knows timeout, error and lost, not {outcome}",
                is_kept=outcome in ENDS,
            )
            require(
                "Limits.on_parent_end",
                f'must be "kill" or "continue", not {what!r}',
                is_kept=what in ON_PARENT_END,
            )


class OnReject(StrEnum):
    """What a rejection is that does not say it itself."""

    REVISE = "revise"  #: another round, with the reason
    END = "end"  #: the end of the task


@dataclass(frozen=True, slots=True)
class Life:
    """How a run may end and what then."""

    error_grace_s: float = 15.0  #: external runtimes report an error and continue; less ended good runs
    wrap_up_at: float = 0.8  #: of the run's time: late enough to have worked, early enough to write it down
    crash_limit: int = 3  #: deaths while its tool ran, without progress; more would wedge every boot
    result_bytes_max: int = 100 * 1024  #: a result is delivered and kept by value; longer ones are cut
    settle_expiry_s: float = 1800.0  #: without any progress below; with progress the wait continues
    settle_expiry_from: ExpiryFrom = ExpiryFrom.PROGRESS  #: where that wait is measured from
    steps_max: int = 200  #: of one run: a bound for loops that nothing else sees
    same_call_warn: int = 4  #: the same call with the same arguments: the model gets a warning
    same_call_max: int = 8  #: ... and then ended: it will not find its way out by itself
    stalled_s: float = 300.0  #: without progress; only shown, nothing is done about it
    on_reject: OnReject = OnReject.REVISE  #: what a rejection of a plan is that does not say it itself
    plan_rounds_max: int = 3  #: plans a person may send back before the task ends
    plan_expiry_s: float = 0.0  #: 0 = a plan waits for ever
    provider_retries_s: tuple[float, ...] = (1.0, 4.0, 15.0)  #: before a failed model call is tried again
    provider_idle_s: float = 120.0  #: a model call that brings no byte for so long is cut and tried again
    quota_wait_max_s: float = 900.0  #: parked for a provider's limit, per call; 0 = for ever

    def __post_init__(self) -> None:
        check(self)
        at_least(self, crash_limit=1, steps_max=1, same_call_warn=1, same_call_max=1)
        at_least(self, result_bytes_max=RESULT_BYTES_MIN)
        require(
            "Life.wrap_up_at", "must be a share of the run's time, at most 1", is_kept=self.wrap_up_at <= 1
        )
        require("Life.provider_idle_s", "must be more than 0", is_kept=self.provider_idle_s > 0)


class LateResult(StrEnum):
    """What becomes of words that a killed task said anyway."""

    KEEP = "keep"  #: stored and shown
    DELIVER = "deliver"  #: and delivered to the parent


@dataclass(frozen=True, slots=True)
class Control:
    """`control.*` and `kill.*`: what others may do to a task that works."""

    steer_chars_max: int = 4000  #: an instruction, not a document
    steer_interval_s: float = 2.0  #: per caller and child: each steer cuts a model call that was paid for
    send_wait_s: float = 30.0  #: for a reply, at most; a model call rarely takes longer
    announces_kill: bool = False  #: the caller of a kill knows; the parent is not notified
    late_result: LateResult = LateResult.KEEP  #: what becomes of words that a killed task said anyway

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Announcing:
    """`announce.*`: how results come back."""

    payload: PayloadMode = PayloadMode.AUTO  #: auto: in full up to the limit below, else a summary
    inline_chars_max: int = 4000  #: about a screen of text; longer results come as a summary and a handle
    summary_chars_max: int = 200  #: of a summary that the child did not write itself
    mode: QueueMode = QueueMode.AUTO  #: how results reach a requester that is busy
    debounce_s: float = 1.0  #: children of one fan-out end close together
    debounce_restarts: int = 10  #: a steady trickle must not postpone the turn for ever
    cap: int = 20  #: blocks in full in one turn
    drop: Drop = Drop.SUMMARIZE  #: what becomes of more than that
    direct: Direct = Direct.TURN  #: what becomes of a result when its requester is idle
    idle_wake: IdleWake = IdleWake.TURN  #: what a result is to an idle main agent
    fast_tries: int = 3  #: quick tries to tell it
    first_s: float = 1.0  #: wait after the first, then doubled
    fast_max_s: float = 8.0  #: the longest of the quick waits
    slow: bool = True  #: continue slowly after them
    slow_first_s: float = 15.0  #: first slow wait, then doubled
    slow_max_s: float = 300.0  #: the longest slow wait
    jitter: float = 0.2  #: so that a provider's outage does not end in a stampede
    until_s: float = 1800.0  #: of waiting for tries, then it is a dead letter
    until_no_completion_s: float = 300.0  #: the same where no parent waits for it
    dead_letter_days: float = 7.0  #: listed so long; 0 = until it is redelivered or discarded
    send_timeout_s: float = 120.0  #: one send to an outside channel

    def __post_init__(self) -> None:
        check(self)
        above_zero(self, "first_s", "slow_first_s")
        require("Announcing.jitter", "must be a share below 1", is_kept=self.jitter < 1)

    def delay_s(self, attempts: int, *, seed: int, expects_completion: bool = True) -> float | None:
        """How long to wait after so many failed attempts; None = give up."""
        return next_delay(
            attempts,
            fast_tries=self.fast_tries,
            first_s=self.first_s,
            fast_max_s=self.fast_max_s,
            slow=self.slow,
            slow_first_s=self.slow_first_s,
            slow_max_s=self.slow_max_s,
            until_s=self.until_s if expects_completion else self.until_no_completion_s,
            jitter=self.jitter,
            seed=seed,
        )


@dataclass(frozen=True, slots=True)
class Work:
    """`worker.*`: who runs what, and how soon a dead worker is noticed."""

    #: turns at once of main agents and of children; a waiting session holds no place
    lanes: Mapping[Lane, int] = field(
        default_factory=lambda: MappingProxyType({Lane.MAIN: 4, Lane.SUBAGENT: 8})
    )
    lease_s: float = 5.0  #: a pause of the machine longer than this hands its runs to others
    tick_s: float = 1.0  #: the backstop for lost hints
    stop_s: float = 10.0  #: how long a stop waits for the next boundary
    tool_grace_s: float = 5.0  #: what a running tool gets when its run is superseded
    held_s: float = 900.0  #: a foreign program that waits for a person is kept so long, then started again
    sessions_max: int = 1000  #: turns one process runs at once
    claim_first: int = 16  #: sessions in a first claim: these are at work while the rest is claimed

    def __post_init__(self) -> None:
        check(self)
        above_zero(self, "lease_s", "tick_s")
        at_least(self, claim_first=1)
        require("Work.lanes", "must name main and subagent", is_kept=set(self.lanes) == set(Lane))


@dataclass(frozen=True, slots=True)
class Threads:
    """`session.threadBindings`: threads of a channel that belong to a child."""

    enabled: bool = True  #: children may have a thread of their own
    idle_s: float = 24 * 3600.0  #: a thread without a message for a day is forgotten by its users, too
    age_max_s: float = 0.0  #: 0 = none

    def __post_init__(self) -> None:
        check(self)
        above_zero(self, "idle_s")


class OnOrphan(StrEnum):
    """A task whose session is gone and that had no result yet."""

    LOST = "lost"  #: ends so, and the parent is notified
    PRUNE = "prune"  #: ends so, without a notification


@dataclass(frozen=True, slots=True)
class Keeping:
    """`archive.*` and `recovery.*`: how long what is over stays."""

    archive_after_s: float = 3600.0  #: hidden and out of the quota; 0 = never
    transcript_after_s: float | None = None  #: after archiving; 0 = with it, None = never
    sweep_s: float = 60.0  #: what is over may wait as long
    cleanup_first_s: float = 60.0  #: until a cleanup that failed is tried again, then twice as long each time
    cleanup_max_s: float = 3600.0  #: the longest of these waits
    on_orphan: OnOrphan = OnOrphan.LOST  #: a task whose session is gone and that had no result yet

    def __post_init__(self) -> None:
        check(self)
        above_zero(self, "sweep_s", "cleanup_first_s")

    def cleanup_delay_s(self, failed: int) -> float:
        """Return how long to wait after so many failed cleanups."""
        return min(self.cleanup_max_s, self.cleanup_first_s * 2.0 ** min(failed, 32))


class OnBudget(StrEnum):
    """What happens at 100 %; nothing of it ever makes another call."""

    ASK = "ask"  #: a person may raise the limit; without one as wrap-up
    WRAP_UP = "wrap-up"  #: the call that may use up the rest answers with what there is; then as end
    END = "end"  #: the run ends with what it has said


@dataclass(frozen=True, slots=True)
class Budgets:
    """`budget.*`: what may be spent. None = no limit."""

    root_tokens: int | None = None  #: one root session and everything below it, for its whole life
    root_usd: Decimal | None = None  #: the same in dollars
    day_tokens: int | None = None  #: all roots together, a day in UTC
    day_usd: Decimal | None = None  #: the same in dollars
    on_budget: OnBudget = OnBudget.ASK  #: what happens at 100 %
    output_tokens: int = 8192  #: reserved for each answer, and all it may have: more could overspend

    def __post_init__(self) -> None:
        check(self)

    @property
    def has_day(self) -> bool:
        """Whether there is a limit per day."""
        return self.day_tokens is not None or self.day_usd is not None

    @property
    def has_root(self) -> bool:
        """Whether there is a limit per main session."""
        return self.root_tokens is not None or self.root_usd is not None


class Taint(StrEnum):
    """What a turn that has read untrusted text may do with its shell and beyond the workspace."""

    OFF = "off"  #: what its rights permit
    ASK = "ask"  #: only what a person approves, each time


@dataclass(frozen=True, slots=True)
class Serving:
    """`gateway.*`: a gateway as a program of its own."""

    idle_exit_s: float | None = 1800.0  #: of one that a command started; None, 0 = never
    drain_ahead_s: float = 5.0  #: what is due so soon is waited for, so that no debounce is cut in two
    log_bytes_max: int = 4 * 1024 * 1024  #: weeks of warnings; as much again of the file before
    requests_per_s: float = 200.0  #: of one token, on average; a loop gone wrong must not starve the others
    requests_burst: int = 1000  #: ... and at once: a fan-out is no attack
    code_s: float = 30.0  #: a one-time code for a browser: long enough to open it
    browser_s: float = 12 * 3600.0  #: a signed-in browser: a day's work

    def __post_init__(self) -> None:
        check(self)


class Notify(StrEnum):
    """What the user is notified of: by a bell, on a desktop, through a webhook."""

    NEEDS_ME = "needs_me"
    ALL_DONE = "all_done"


@dataclass(frozen=True, slots=True)
class Policy:
    """Every limit, timeout, retry and right of a gateway, with its default."""

    limits: Limits = field(default_factory=Limits)
    life: Life = field(default_factory=Life)
    control: Control = field(default_factory=Control)
    announcing: Announcing = field(default_factory=Announcing)
    work: Work = field(default_factory=Work)
    keeping: Keeping = field(default_factory=Keeping)
    tools: ToolPolicy = field(default_factory=ToolPolicy)
    visibility: Visibility = Visibility.TREE  #: what an agent sees of other sessions
    taint: Taint = Taint.OFF  #: asked for each call, it is for those who let strangers write to their agents
    peers: Peers = field(default_factory=Peers)  #: agents that may write to each other
    threads: Threads = field(default_factory=Threads)
    budgets: Budgets = field(default_factory=Budgets)
    serving: Serving = field(default_factory=Serving)
    context: ContextLimits = field(default_factory=ContextLimits)
    history: HistoryLimits = field(default_factory=HistoryLimits)
    agents: Mapping[str, Agent] = field(default_factory=lambda: NO_AGENTS)  #: by id; others have the defaults
    defaults: AgentDefaults = field(default_factory=AgentDefaults)
    list_recent_s: float = 1800.0  #: lists show what ended since: half an hour is one sitting
    notify: frozenset[Notify] = frozenset(Notify)  #: what the user is notified of
    hooks: frozenset[Hook] = frozenset()  #: those that have a listener; the others cost nothing
    acp_forks: bool = False  #: a spawn with `context: "fork"` may give the conversation to an ACP program
    is_headless: bool = False  #: no user is present: what needs one is denied at once

    def __post_init__(self) -> None:
        check(self)
        for agent_id, agent in self.agents.items():
            require("Policy.agents", f"{agent_id!r} is the agent {agent.id!r}", is_kept=agent_id == agent.id)

    def agent(self, agent_id: str) -> Agent:
        """One that is not listed has the defaults and nothing else."""
        return self.agents.get(agent_id) or unlisted(agent_id)

    def limits_of(self, agent_id: str) -> Limits:
        """For what this agent spawns: its own lists come before those of the defaults."""
        own = self.agent(agent_id).subagents
        if not own.allow_agents and own.require_agent_id is None:
            return self.limits
        required = self.limits.require_agent_id if own.require_agent_id is None else own.require_agent_id
        allowed = own.allow_agents or self.limits.allow_agents
        return replace(self.limits, allow_agents=allowed, require_agent_id=required)

    def model_of(self, agent_id: str) -> str:
        """Return the model of this agent, or that of the defaults."""
        return self.agent(agent_id).model or self.defaults.model

    def workspace_of(self, agent_id: str) -> str | None:
        """Return the workspace of this agent, or that of the defaults."""
        return self.agent(agent_id).workspace or self.defaults.workspace

    def heartbeat_of(self, agent_id: str) -> Heartbeat | None:
        """None: it never looks up by itself."""
        agent = self.agents.get(agent_id)
        return None if agent is None else agent.heartbeat or self.defaults.heartbeat

    def waking_hours(self, agent_id: str, depth: int) -> ActiveHours | None:
        """When results may start a turn of such a session. None: at any hour."""
        if depth or self.announcing.idle_wake is IdleWake.TURN:
            return None
        rules = self.heartbeat_of(agent_id)
        return None if rules is None else rules.active_hours

    def grant(self, agent_id: str) -> AgentGrant:
        """What the config gives to this agent, however it is started."""
        agent = self.agent(agent_id)
        is_boxed = self.defaults.sandbox if agent.sandbox is None else agent.sandbox
        return AgentGrant(self.limits.depth_max, agent.tools.filter, agent.models, is_boxed, agent.network)


def with_concurrency(policy: Policy, children: int) -> Policy:
    """Return the policy with slots for so many children at once. One parent may have all of them: its limits are raised
    where they are lower, never lowered."""
    limits, work = policy.limits, policy.work
    return replace(
        policy,
        work=replace(work, lanes={**work.lanes, Lane.SUBAGENT: children}),
        limits=replace(
            limits,
            children_max=max(limits.children_max, children),
            descendants_max=max(limits.descendants_max, children),
            retained_max=max(limits.retained_max, children),
        ),
    )
