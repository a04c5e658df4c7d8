"""The JSON objects about the gateway as a whole: costs, health, devices; and the timeline of a tree.
Rules as in `api/objects.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

from clutch.api.forecast_objects import HeadingObject
from clutch.api.objects import Children, HealthNotice, Moment, Money, SegmentObject, TaskObject, Use
from clutch.api.schema import (
    ActivityName,
    DeliveryStatusName,
    GroupName,
    OutcomeName,
    SchemaNote,
    StatusName,
    ThinkingName,
)

# ---- costs ---------------------------------------------------------------------------------------------


class NamedUse(Use):
    name: str
    taskId: str | None  # noqa: N815  #: by tree: its first task; null: calls of the main session itself
    sessionKey: str | None  # noqa: N815  #: by tree and root: the main session; null where it was deleted


class CostBar(Use):
    start: Moment


class CostTimeline(TypedDict):
    unit: Literal["5 minutes", "hour", "day"]
    bars: list[CostBar]  #: oldest first, also empty ones; the last one lasts; at most 92


class UnpricedCalls(TypedDict):
    model: str
    calls: int
    tokens: int  #: as far as the provider reported them


class BurnRate(TypedDict):
    minutes: int
    calls: int
    usdPerHour: Money  #: of the calls with a known price; null: there were none
    tokensPerHour: int
    unpricedCalls: int


class BudgetMeasure(TypedDict):
    measure: Literal["tokens", "usd"]
    limit: str
    spent: str
    reserved: str
    percent: int  #: spent
    heading: HeadingObject | None  #: null: no open task draws on it


class BudgetReport(TypedDict):
    name: str
    kind: Literal["task", "root", "day", "schedule"]
    taskId: str | None
    label: str | None
    sessionKey: str | None
    measures: list[BudgetMeasure]
    state: Literal["ok", "warning", "exhausted"]
    unpricedCalls: int  #: more than 0: the dollars spent are a lower bound
    exhaustedAt: Moment | None  #: at the burn rate of its own calls; null: not at this rate
    atLimit: str | None  #: what happens then; null where no gateway knows the policy


class Spending(TypedDict):
    by: Literal["root", "agent", "model", "day", "tree"]
    usage: list[NamedUse]  #: by day: oldest first; else the dearest first
    since: Moment | None  #: null: all time
    until: Moment
    utcOffsetMinutes: int  #: of the time zone whose days and hours are counted
    total: Use
    timeline: CostTimeline
    unpriced: list[UnpricedCalls]
    burn: BurnRate
    budgets: list[BudgetReport]


# ---- health --------------------------------------------------------------------------------------------


class Health(TypedDict):
    status: Literal["ok", "draining"]
    version: str
    schema: int
    database: Literal["sqlite", "postgresql"]
    workers: int
    running: int
    queued: int
    undelivered: int
    model: str | None  #: of the main agent; None: a program that embeds Clutch brings its own
    problems: Annotated[
        list[HealthNotice],
        SchemaNote(
            description="What the gateway knows to be wrong now: a config file that is not loaded (`config-loaded`),"
            " MCP servers that do not start. Empty: nothing."
        ),
    ]


class HealthDocument(Health):
    pulses: dict[str, Any]


class WorkerObject(TypedDict):
    name: str  #: host:pid/number
    workerId: str
    host: str
    pid: int
    version: str
    startedAt: Moment
    leaseUntil: Moment | None  #: null: SQLite has one owner, who needs no lease
    sessions: int  #: that it works on
    isStale: bool  #: no longer alive: its sessions are released and resumed by another
    isHere: bool  #: the process that answers
    seenAt: Moment | None  #: its last heartbeat; null: of an older version
    clockOffsetSeconds: float | None  #: how far the clock of its machine is ahead of the database's
    isDraining: bool  #: it claims nothing and hands over what it runs


class Nodes(TypedDict):
    at: Moment
    nodes: list[WorkerObject]


class LaneObject(TypedDict):
    name: str
    running: int
    limit: int
    queued: int  #: sessions that are due and wait for a place


class Queues(TypedDict):
    lanes: list[LaneObject]
    deferred: int  #: results whose delivery waits for the parent
    undelivered: int
    outbox: int  #: messages to channels and hooks that are to be sent
    unsent: int  #: messages that are not sent again by themselves


class ProviderHoldObject(TypedDict):
    until: Moment
    reason: str


class BreakerObject(ProviderHoldObject):
    times: int  #: it opened in a row
    isProbing: bool  #: one call tests whether the provider answers again


class ProviderLimitObject(TypedDict):
    provider: str
    inUse: int
    concurrencyMax: int | None  #: null: no limit of ours
    waiting: int  #: calls that have a place in the line
    tokensPerMinute: int | None
    tokensBooked: int | None  #: of those of the present minute
    secondsBetweenCalls: float  #: learned from refusals; 0: none
    closed: ProviderHoldObject | None  #: the provider refused calls: none is sent until then
    breaker: BreakerObject | None  #: the circuit breaker is open


class LoopObject(TypedDict):
    name: str
    at: Moment
    everySeconds: float
    isLate: bool


class GatewayProcess(TypedDict):
    version: str
    pid: int
    startedAt: Moment | None
    database: Literal["sqlite", "postgresql"]
    databaseBytes: int
    memoryBytes: int
    loops: list[LoopObject]


class ConfigSettingObject(TypedDict):
    key: str
    value: str  #: in force, as it would be written; a secret is masked
    default: str
    needsRestart: bool  #: a change of it is loaded at a start only


class ConfigFindingObject(TypedDict):
    key: str | None
    state: Literal["invalid", "refused", "needs restart", "not loaded"]
    detail: str
    inForce: str | None
    inFile: str | None
    remedy: str


class ConfigObject(TypedDict):
    file: str
    exists: bool
    settings: list[ConfigSettingObject]  #: those that differ from their defaults
    findings: list[ConfigFindingObject]  #: what of the file is not in force; empty: all of it is
    fromProgram: list[str]  #: arguments of the program that runs the gateway; they win over the file


class HealthReport(TypedDict):
    at: Moment
    gateway: GatewayProcess
    workers: list[WorkerObject]
    queues: Queues
    providers: list[ProviderLimitObject]
    config: ConfigObject | None  #: null: this process does not know a config
    problems: list[HealthNotice]


class InvariantObject(TypedDict):
    invariant: str
    promise: str
    state: Literal["ok", "violated", "not checked"]
    examples: list[str]


class Invariants(TypedDict):
    checkedAt: Moment
    tookSeconds: float
    invariants: list[InvariantObject]


# --------------------------------------------------------------------------------------------------
# Devices: browsers and phones that are signed in, and how one is signed in.


class Code(TypedDict):
    code: str
    expiresInSeconds: float


class LetIn(TypedDict):
    status: Literal["open"]
    expiresInSeconds: float
    pageKey: str  #: stays in the page, which proves with it that the cookie is its own


class GatewayProof(TypedDict):
    run: str  #: the name of this gateway process
    proof: (
        str  #: HMAC-SHA256 of `gateway NONCE RUN`; its key is the SHA-256 of `pageKey`, in hexadecimal digits
    )


class DeviceObject(TypedDict):
    id: str  #: for `revoke`; it opens nothing
    name: str  #: the family of the browser and its system
    hasPush: bool  #: it is notified
    isPhone: bool  #: paired with `clutch open --phone`
    isThis: bool  #: the caller's own
    pairedAt: Moment
    seenAt: Moment
    expiresAt: Moment


class ReachObject(TypedDict):
    hosts: list[str]  #: `gateway.allowedHosts`
    addresses: list[str]  #: where the gateway listens
    port: int


class Devices(TypedDict):
    devices: list[DeviceObject]
    reach: ReachObject


class PushKeyObject(TypedDict):
    publicKey: str  #: for `applicationServerKey` of a browser, in base64url


class PushState(TypedDict):
    status: Literal["on", "off", "queued"]


class Revoked(TypedDict):
    status: Literal["revoked"]
    id: str


# --------------------------------------------------------------------------------------------------
# The timeline of a tree: its lanes, the state of each task at every moment, the way of each result to the parent, and
# the critical path.


class LaneState(TypedDict):
    """What the task showed from `at` on, until the next state."""

    at: Moment
    status: StatusName
    doingNow: str
    doingSince: Moment | None
    group: GroupName
    activity: ActivityName | None
    outcome: OutcomeName | None
    generation: int
    step: int
    startedAt: Moment | None
    endedAt: Moment | None
    deliveryStatus: DeliveryStatusName | None
    deliveryText: str
    children: Children


class ToolTick(TypedDict):
    at: Moment
    end: Moment | None  #: null: it lasts
    text: str  #: the call in words
    message: int  #: the number of the answer in the transcript


class TimelineLane(TypedDict):
    task: TaskObject
    segments: list[SegmentObject]
    states: list[LaneState]  #: oldest first; before the first one the task did not exist
    tools: list[ToolTick]


class ArrowState(TypedDict):
    at: Moment
    status: DeliveryStatusName
    text: str  #: the status with its reason


class DeliveryArrow(TypedDict):
    """The way of the result of one attempt to the parent agent."""

    taskId: str
    generation: int
    endedAt: Moment
    toTask: str | None  #: the parent, if it is a task
    toSession: str | None
    message: int | None  #: its number in the transcript of the parent
    readAt: Moment | None  #: when the parent got that message
    deliveredAt: Moment | None  #: when its model had answered it
    states: list[ArrowState]


class CriticalStage(TypedDict):
    taskId: str
    start: Moment
    end: Moment
    activity: ActivityName | None


class TreeTimeline(TypedDict):
    root: str
    at: Moment  #: when this was read
    cursor: str  #: where the stream of events continues after this answer
    lanes: list[TimelineLane]
    deliveries: list[DeliveryArrow]
    criticalPath: list[CriticalStage]
    total: int  #: tasks of the tree
    notice: str | None  #: what was left out, if anything was


# ---- agents --------------------------------------------------------------------------------------


class AgentAnswer(TypedDict):
    agentId: str
    model: str
    workspace: str | None
    description: str
    source: Annotated[str, SchemaNote(description="config, user or workspace")]
    file: Annotated[str | None, SchemaNote(description="null: the config defines it, or nothing")]
    instructions: str
    thinking: ThinkingName | None
    maxTurns: int
    toolsAllowed: Annotated[list[str] | None, SchemaNote(description="null: all that its parent has")]
    toolsDenied: list[str]
    skills: Annotated[list[str] | None, SchemaNote(description="null: all")]


class FileNotice(TypedDict):
    line: int
    text: str


class DefinitionFile(TypedDict):
    kind: Annotated[str, SchemaNote(description="agent or skill")]
    name: str
    description: str
    source: Annotated[str, SchemaNote(description="agent, user or workspace")]
    owner: Annotated[str | None, SchemaNote(description="the workspace or agent of a skill")]
    state: Annotated[str, SchemaNote(description="active, proposed, rejected, invalid or overridden")]
    file: str
    problems: list[FileNotice]
    notes: list[FileNotice]
    question: Annotated[str | None, SchemaNote(description="the item of the inbox that decides about it")]


class Agents(TypedDict):
    agents: list[AgentAnswer]
    files: list[DefinitionFile]
