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
from clutch.core.definitions import FileTrust
from clutch.core.fair_share import ANY_SHARE, SHARE, WEIGHT_MAX
from clutch.core.model import Hook, Lane, Outcome
from clutch.core.text.tasks import RESULT_BYTES_MIN, PayloadMode
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
    """What becomes of a result when the parent agent is idle."""

    TURN = "turn"  #: its model writes the message to the user
    SEND = "send"  #: the person reads it as it is; no model turn


class IdleWake(StrEnum):
    """What a result is to an idle main agent."""

    TURN = "turn"  #: a reason for a turn, at any hour
    HEARTBEAT = "heartbeat"  #: within its active hours; the model may find it not worth telling


@dataclass(frozen=True, slots=True)
class Limits:
    """`agents.defaults.subagents.*`: how far delegation may go."""

    #: Active children of one parent. More than a model can keep track of is usually a mistake.
    children_max: int = 5
    depth_max: int = 1  #: How deep subagents may spawn subagents. 1 = only main agents spawn.
    descendants_max: int = 50  #: Active tasks below one root session, at any depth.
    retained_max: int = 15  #: Active and finished tasks kept per parent; archived tasks do not count.
    evicts_delivered: bool = True  #: At maxRetained: archive the oldest delivered task, or refuse the spawn.
    undelivered_max: int = 50  #: Dead letters of one root session at which new work is refused. 0 = no limit.
    #: Time for the preparation of a spawn (files, thread, worktree); then it is rolled back.
    reservation_s: float = 30.0
    #: Other agents that an agent may spawn. "*" = every configured one.
    allow_agents: frozenset[str] = frozenset()
    require_agent_id: bool = False  #: A spawn must name its agent.
    #: Size of the instruction of a task. Send longer documents as attachments.
    task_bytes_max: int = 64 * 1024
    label_max: int = 200  #: Characters of a label.
    label_from_task: int = 72  #: Characters of the task that become its label if none is given.
    attachments: AttachmentRules = field(default_factory=AttachmentRules)
    #: What happens to children when their parent ends by timeout, error or lost: continue (default) or kill.
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

    #: Time in which a steer can still resume a failed run before its error is final.
    error_grace_s: float = 15.0
    wrap_up_at: float = 0.8  #: Share of the time limit after which the agent is asked to finish.
    #: Crashes of the process during its tool calls, without progress, after which a task fails.
    crash_limit: int = 3
    result_bytes_max: int = 100 * 1024  #: Size of a result; a longer one is cut.
    #: Time without progress of its subagents after which a parent stops waiting; missing results are named.
    settle_expiry_s: float = 1800.0
    #: Whether that time counts from their last progress, or from the end of the parent.
    settle_expiry_from: ExpiryFrom = ExpiryFrom.PROGRESS
    steps_max: int = 200  #: Steps of one run; then it ends.
    same_call_warn: int = 4  #: Identical tool calls in one run after which the model gets a warning.
    same_call_max: int = 8  #: Identical tool calls in one run after which the run ends.
    #: Time without progress after which a task is shown as stalled. It is not stopped.
    stalled_s: float = 300.0
    #: What a rejected plan means if the rejection does not say: a new plan, or the end of the task.
    on_reject: OnReject = OnReject.REVISE
    plan_rounds_max: int = 3  #: Rejections of a plan before the task ends.
    plan_expiry_s: float = 0.0  #: Time a plan waits for a decision. 0 = without limit.
    #: Delays before the retries of a failed model call.
    provider_retries_s: tuple[float, ...] = (1.0, 4.0, 15.0)
    provider_idle_s: float = 120.0  #: A model call that receives no data for this time is cut and retried.
    #: Longest time that a run waits for a provider's rate limit, per call. 0 = without limit.
    quota_wait_max_s: float = 900.0

    def __post_init__(self) -> None:
        check(self)
        at_least(self, crash_limit=1, steps_max=1, same_call_warn=1, same_call_max=1)
        at_least(self, result_bytes_max=RESULT_BYTES_MIN)
        require(
            "Life.wrap_up_at", "must be a share of the run's time, at most 1", is_kept=self.wrap_up_at <= 1
        )
        require("Life.provider_idle_s", "must be more than 0", is_kept=self.provider_idle_s > 0)

    @property
    def rejections_max(self) -> int:
        """Return how many rejections without a verdict a plan survives."""
        return self.plan_rounds_max if self.on_reject is OnReject.REVISE else 0


class LateResult(StrEnum):
    """What becomes of a text that a killed task wrote anyway."""

    KEEP = "keep"  #: stored and shown
    DELIVER = "deliver"  #: and delivered to the parent


@dataclass(frozen=True, slots=True)
class Control:
    """`control.*` and `kill.*`: what others may do to a task that works."""

    steer_chars_max: int = 4000  #: Characters of one steer instruction.
    steer_interval_s: float = 2.0  #: Time between two steers of one task by one caller.
    send_wait_s: float = 30.0  #: Longest time that send waits for a reply.
    announces_kill: bool = False  #: Notify the parent agent when a task is killed.
    #: Text that a killed task still produced: keep it, or deliver it to the parent.
    late_result: LateResult = LateResult.KEEP

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Announcing:
    """`announce.*`: how results come back."""

    #: How a result is delivered: in full, as a summary, or in full up to inlineMaxChars (auto).
    payload: PayloadMode = PayloadMode.AUTO
    inline_chars_max: int = 4000  #: Characters up to which auto delivers a result in full.
    summary_chars_max: int = 200  #: Characters of a summary that the subagent did not write itself.
    mode: QueueMode = QueueMode.AUTO  #: How results reach a busy parent agent.
    debounce_s: float = 1.0  #: Time to wait for further results before a turn reads them together.
    debounce_restarts: int = 10  #: How often a further result restarts that wait.
    cap: int = 20  #: Results shown in full in one turn.
    #: What happens to more results than cap: one line each, or the oldest or newest become dead letters.
    drop: Drop = Drop.SUMMARIZE
    #: Result for an idle main agent: a model turn, or sent to the person as it is.
    direct: Direct = Direct.TURN
    #: What a result does to an idle main agent: start a turn, or wait for its heartbeat.
    idle_wake: IdleWake = IdleWake.TURN
    fast_tries: int = 3  #: Quick retries of a failed delivery.
    first_s: float = 1.0  #: Delay before the first quick retry; doubled each time.
    fast_max_s: float = 8.0  #: Longest delay of a quick retry.
    slow: bool = True  #: Continue with slow retries after the quick ones.
    slow_first_s: float = 15.0  #: Delay before the first slow retry; doubled each time.
    slow_max_s: float = 300.0  #: Longest delay of a slow retry.
    #: Random share of each delay, so that retries after an outage do not come all at once.
    jitter: float = 0.2
    until_s: float = 1800.0  #: Time spent on retries; then the result is a dead letter.
    until_no_completion_s: float = 300.0  #: The same for an optional result.
    #: Time a dead letter stays listed. 0 = until it is redelivered or discarded.
    dead_letter_days: float = 7.0
    send_timeout_s: float = 120.0  #: Time limit of one message to a channel.

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

    #: Sessions that run at once, of main agents and of subagents. A waiting session does not count.
    lanes: Mapping[Lane, int] = field(
        default_factory=lambda: MappingProxyType({Lane.MAIN: 4, Lane.SUBAGENT: 8})
    )
    #: Time without a sign of life after which another process takes over the runs of a process.
    lease_s: float = 5.0
    tick_s: float = 1.0  #: Time between two checks for work that no notification announced.
    #: Time a stop waits for tools that may not run twice. Model calls and the other tools are cancelled at once.
    stop_s: float = 10.0
    tool_grace_s: float = 5.0  #: Time a running tool gets to end when its run is stopped or steered.
    held_s: float = 900.0  #: Time an external program that waits for a person is kept running.
    sessions_max: int = 1000  #: Sessions that one process runs at once.
    claim_first: int = 16  #: Sessions that a process claims first when it starts.
    #: Weights of the shares (`share` of a spawn) that free slots are divided between. "*": each share without its own.
    shares: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        check(self)
        above_zero(self, "lease_s", "tick_s")
        at_least(self, claim_first=1)
        for share, weight in self.shares.items():
            is_share = share == ANY_SHARE or SHARE.fullmatch(share) is not None
            require("Work.shares", f"must name shares, e.g. tenant-a, or *: {share!r}", is_kept=is_share)
            is_kept = 1 <= weight <= WEIGHT_MAX
            require(
                "Work.shares", f"must have weights from 1 to {WEIGHT_MAX}: {share}: {weight}", is_kept=is_kept
            )
        require("Work.lanes", "must name main and subagent", is_kept=set(self.lanes) == set(Lane))


@dataclass(frozen=True, slots=True)
class Threads:
    """`session.threadBindings`: threads of a channel that belong to a child."""

    enabled: bool = True  #: Subagents may have a thread of their own in a channel.
    idle_s: float = 24 * 3600.0  #: Time without a message after which a thread is released.
    age_max_s: float = 0.0  #: Age at which a thread is released. 0 = never.

    def __post_init__(self) -> None:
        check(self)
        above_zero(self, "idle_s")


class OnOrphan(StrEnum):
    """A task whose session is gone and that had no result yet."""

    LOST = "lost"  #: ends so, and the parent is notified
    PRUNE = "prune"  #: ends so, without a notification


DAY_S = 86_400.0  #: longer than any client repeats a request, or a collector of traces is away


@dataclass(frozen=True, slots=True)
class Keeping:
    """`archive.*` and `recovery.*`: how long what is over stays."""

    archive_after_s: float = 3600.0  #: Time from delivery until a task leaves lists and quotas. 0 = never.
    #: Time from archiving until the transcript is deleted. None = never.
    transcript_after_s: float | None = None
    #: Time from archiving until most entries of the timeline and failed deliveries are deleted. None = never.
    timeline_after_s: float | None = None
    #: Age at which messages that were sent to channels and hooks are deleted; results stay. None = never.
    sent_after_s: float | None = None
    #: Age at which model calls are added up, per session, model and quarter of an hour. None = never.
    usage_after_s: float | None = None
    sweep_s: float = 60.0  #: Time between two cleanup sweeps.
    cleanup_first_s: float = 60.0  #: Delay before a failed cleanup is retried; doubled each time.
    cleanup_max_s: float = 3600.0  #: Longest delay of a cleanup retry.
    #: Task without session and result: outcome lost and a notification, or no notification (prune).
    on_orphan: OnOrphan = OnOrphan.LOST

    def __post_init__(self) -> None:
        check(self)
        above_zero(self, "sweep_s", "cleanup_first_s")
        if self.sent_after_s is not None:
            at_least(self, sent_after_s=DAY_S)
        if self.usage_after_s is not None:
            at_least(self, usage_after_s=DAY_S)

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

    root_tokens: int | None = None  #: Tokens of one root session and everything below it. None = no limit.
    root_usd: Decimal | None = None  #: The same in dollars.
    day_tokens: int | None = None  #: Tokens of all root sessions together per day (UTC). None = no limit.
    day_usd: Decimal | None = None  #: The same in dollars.
    #: What happens at 100 %: ask a person, finish with what there is, or end.
    on_budget: OnBudget = OnBudget.ASK
    output_tokens: int = 8192  #: Tokens reserved for each answer, which is also the limit of the answer.

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

    #: Time without requests and work after which a gateway that a command started exits. 0 = never.
    idle_exit_s: float | None = 1800.0
    drain_ahead_s: float = 5.0  #: Work that is due within this time is finished by drain.
    log_bytes_max: int = 4 * 1024 * 1024  #: Size of gateway.log; one older file is kept.
    requests_per_s: float = 200.0  #: Requests per second of one token, on average.
    requests_burst: int = 1000  #: Requests of one token at once.
    code_s: float = 30.0  #: Validity of a one-time link for a browser.
    browser_s: float = 12 * 3600.0  #: Time a browser stays signed in.
    phone_code_s: float = 600.0  #: Validity of a one-time link for a phone.
    phone_s: float = 30 * 86400.0  #: Time a phone stays signed in.
    #: Push services besides those with a public name and TLS, each host:port. For a push service of your own.
    push_hosts: frozenset[str] = frozenset()
    #: Address of the operator for push services: mailto: or https:.
    push_contact: str = "mailto:clutch@example.org"

    def __post_init__(self) -> None:
        check(self)


class Notify(StrEnum):
    """What the user is notified of: by a bell, on a desktop, through a webhook."""

    ATTENTION_REQUIRED = "attention_required"
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
    #: Sessions an agent can see: itself, its descendants, its agent's, or all.
    visibility: Visibility = Visibility.TREE
    #: Ask a person before a turn that has read untrusted text uses a shell or the network.
    taint: Taint = Taint.OFF
    peers: Peers = field(default_factory=Peers)  #: agents that may write to each other
    threads: Threads = field(default_factory=Threads)
    budgets: Budgets = field(default_factory=Budgets)
    serving: Serving = field(default_factory=Serving)
    context: ContextLimits = field(default_factory=ContextLimits)
    history: HistoryLimits = field(default_factory=HistoryLimits)
    #: Agents that differ from the defaults, each with an id.
    agents: Mapping[str, Agent] = field(default_factory=lambda: NO_AGENTS)
    #: Agents that files define: parts that an agent's subagents play, with at most the rights of that agent.
    roles: Mapping[str, Agent] = field(default_factory=lambda: NO_AGENTS)
    defaults: AgentDefaults = field(default_factory=AgentDefaults)
    #: Agent files and skills in the workspace: used once a person has approved them, trusted as they are, or not read.
    file_trust: FileTrust = FileTrust.ASK
    list_recent_s: float = 1800.0  #: Lists show tasks that ended within this time.
    notify: frozenset[Notify] = frozenset(Notify)  #: Events of which the terminal and the desktop notify you.
    hooks: frozenset[Hook] = frozenset()  #: those that have a listener; the others cost nothing
    acp_forks: bool = False  #: A spawn with context "fork" may give the conversation to an ACP agent.
    is_headless: bool = False  #: No person is present: what needs approval or an answer is denied at once.

    def __post_init__(self) -> None:
        check(self)
        for agent_id, agent in self.agents.items():
            require("Policy.agents", f"{agent_id!r} is the agent {agent.id!r}", is_kept=agent_id == agent.id)

    def agent(self, agent_id: str) -> Agent:
        """The config comes before a file. One that neither defines has the defaults and nothing else."""
        return self.agents.get(agent_id) or self.roles.get(agent_id) or unlisted(agent_id)

    def is_role(self, agent_id: str) -> bool:
        """Return whether a file defines this agent, and not the config."""
        return agent_id in self.roles and agent_id not in self.agents

    def limits_of(self, agent_id: str) -> Limits:
        """For what this agent spawns: its own lists come before those of the defaults. Where no list names an agent,
        it may spawn roles: they have no right that a child of its own would not have."""
        own = self.agent(agent_id).subagents
        allowed = own.allow_agents or self.limits.allow_agents or frozenset(self.roles)
        if allowed == self.limits.allow_agents and own.require_agent_id is None:
            return self.limits
        required = self.limits.require_agent_id if own.require_agent_id is None else own.require_agent_id
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
        is_sandboxed = self.defaults.sandbox if agent.sandbox is None else agent.sandbox
        return AgentGrant(
            self.limits.depth_max,
            agent.tools.filter,
            agent.models,
            is_sandboxed,
            agent.network,
            follows_parent=self.is_role(agent_id),
        )

    def steps_max(self, agent_id: str) -> int:
        """Return how many model calls one run of this agent may make. An agent can only lower the common limit."""
        own = self.agent(agent_id).max_turns
        return self.life.steps_max if own is None else min(own, self.life.steps_max)


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
