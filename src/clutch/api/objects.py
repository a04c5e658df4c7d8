"""Every JSON object that a surface answers with, declared once.

Names are camelCase, times RFC 3339 text, money decimal text, and an unknown value is null. Fields may be added, never
renamed. `api/views.py` and the actions build the objects as plain dicts, which mypy checks against these classes;
`surfaces/http/routes.py` makes the schemas of OpenAPI and MCP from them. Only those schemas need this module at run
time. A class whose noun the rules use already ends in `Object`; its schema is published without that ending."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from clutch.api.forecast_objects import SpawnForecast as SpawnForecast
from clutch.api.schedule_objects import ScheduleObject as ScheduleObject
from clutch.api.schedule_objects import ScheduleRemoved as ScheduleRemoved
from clutch.api.schedule_objects import ScheduleRun as ScheduleRun
from clutch.api.schedule_objects import Schedules as Schedules
from clutch.api.schedule_objects import SlotObject as SlotObject
from clutch.api.schema import (
    ActivityName,
    CheckStateName,
    ContextName,
    DeliveryName,
    DeliveryStatusName,
    GateName,
    GroupName,
    MaybeText,
    ModeName,
    OutcomeName,
    PathName,
    PhaseName,
    PriorityName,
    SchemaNote,
    StatusName,
    ThinkingName,
)

Money: TypeAlias = str | None  #: a decimal; None = not known
Moment: TypeAlias = str  #: RFC 3339, UTC


# ---- one task ----------------------------------------------------------------------------------------


class Use(TypedDict):
    input: int
    output: int
    cacheRead: int
    cacheWrite: int
    calls: int
    usd: Money
    unpricedCalls: int


class Uses(TypedDict):
    own: Use
    subtree: Use


class Tool(TypedDict):
    name: str
    arg: str | None
    since: Moment | None


class Sum(TypedDict):
    tokens: int | None
    usd: Money


class BudgetAnswer(TypedDict):
    tokens: int | None
    usd: Money
    spent: Sum
    reserved: Sum


class DeliveryAnswer(TypedDict):
    state: DeliveryName
    status: DeliveryStatusName | None  #: what users see of `state`; null before there is a result
    text: str  #: `status` with its reason; empty before there is a result
    path: PathName | None
    reason: str | None
    attempts: int
    nextAt: Moment | None
    at: Moment | None


class PlanObject(TypedDict):
    state: str
    hash: str | None
    round: int


class EvidenceAnswer(TypedDict):
    toolCalls: int
    filesTouched: list[str]
    childrenJoined: int
    childrenMissing: list[str]
    stopReason: str | None


class CheckObject(TypedDict):
    name: str
    state: CheckStateName
    detail: str | None  #: what is wrong


class ChecksAnswer(TypedDict):
    passed: int
    total: int
    text: str  #: `checked 4/4`
    results: list[CheckObject]  #: of those that have started


class Children(TypedDict):
    active: int
    total: int


class SegmentObject(TypedDict):
    activity: ActivityName
    start: float  #: seconds since the task was created
    end: float | None  #: null: it lasts


class TaskObject(TypedDict):
    taskId: str
    runId: str | None
    sessionKey: str | None
    requesterKey: str | None
    rootKey: str | None
    parentTaskId: str | None
    depth: int
    role: str | None
    agentId: str | None
    label: str
    status: StatusName  #: the state that every surface shows
    doingNow: str  #: one line, never empty: `thinking · step 4`, `waiting for 3 of 8 subagents`, an error
    doingSince: Moment | None  #: when that began; surfaces show the time since then beside it
    group: GroupName  #: who has to act
    activity: ActivityName | None  #: null: nothing any more
    phase: PhaseName
    reason: str | None
    outcome: OutcomeName | None
    error: str | None
    errorText: str | None  #: `error` in one line
    modelRequested: str | None
    model: str | None
    share: str | None  #: null: the default share
    priority: PriorityName
    generation: int
    attempt: int
    step: int
    resumes: int
    currentTool: Tool | None
    createdAt: Moment
    startedAt: Moment | None
    endedAt: Moment | None
    lastProgressAt: Moment | None
    deadlineAt: Moment | None
    pausedUntil: Moment | None
    usage: Uses
    budget: BudgetAnswer | None
    delivery: DeliveryAnswer
    plan: PlanObject | None
    evidence: EvidenceAnswer | None
    checks: ChecksAnswer | None  #: null: no checks have run for this result
    workerId: str | None
    children: Children


# ---- many tasks --------------------------------------------------------------------------------------


class SummaryObject(TypedDict):
    running: int
    queued: int
    waiting: int
    needsYou: int
    done: int
    failed: int
    timeout: int
    killed: int
    lost: int
    undelivered: int
    delivering: int  #: ended tasks whose result is on its way; they are counted as ended, too
    replies: int
    repliesIn: list[str]
    unsent: int
    usd: Money
    text: str  #: the counts in one line, without those that are zero


class ListedTask(TaskObject):
    segments: NotRequired[list[SegmentObject]]  #: what its time went into; with `include=segments`


class TaskList(TypedDict):
    cursor: str  #: where the stream of events continues after this page
    tasks: list[ListedTask]
    summary: SummaryObject
    next: str | None


class Tasks(TaskList):
    stalledAfterSeconds: float


class Node(TypedDict):
    task: TaskObject
    nodes: list[Node]


class Tree(TypedDict):
    root: Node


# ---- a task in full: result, transcript, why ---------------------------------------------------------


class File(TypedDict):
    name: str
    bytes: int
    sha256: str


class FileContent(TypedDict):
    name: str
    content: str  #: base64


class LateObject(TypedDict):
    text: str
    at: Moment


class ResultObject(TypedDict):
    taskId: str
    outcome: OutcomeName | None
    text: str | None
    value: Any
    bytes: int | None
    sha256: str | None
    truncated: bool
    generation: int
    frozenAt: Moment | None
    files: list[File]
    late: LateObject | None


class Waited(TypedDict):
    status: Literal["done", "pending", "needs_you"]
    task: TaskObject
    result: ResultObject | None


class Message(TypedDict):
    seq: int
    at: Moment
    runId: str | None
    kind: str
    body: Any


class Messages(TypedDict):
    messages: list[Message]
    next: int | None


Happened = TypedDict(
    "Happened",
    {
        "seq": int, "at": Moment, "actor": str | None, "event": str, "from": str, "to": str, "reason": str | None,
        "text": str, "late": bool,
    },
)  # fmt: skip


class Tried(TypedDict):
    path: str
    left: str | None


class Attempt(TypedDict):
    key: str
    toSession: str | None
    toDepth: int | None
    why: str | None
    routeMode: str | None
    tried: list[Tried]
    path: str | None
    attempt: int
    at: Moment | None
    nextAt: Moment | None
    outcome: str | None
    reason: str | None
    runId: str | None
    transcriptSeq: int | None


class Stuck(TypedDict):
    gate: GateName
    text: str  #: what blocks the task, and what unblocks it
    since: Moment | None
    waitingFor: list[str]
    opensWhen: str
    command: str | None


class Unsent(TypedDict):
    """A message to a channel that is not sent again by itself."""

    id: str
    key: str
    sessionKey: str | None
    taskId: str | None
    channel: str
    target: str
    text: str
    outcome: Annotated[str, SchemaNote(enum=["failed", "refused", "unsure"])]
    error: str
    attempts: int
    triedAt: Moment | None


class WhyObject(TypedDict):
    task: TaskObject | None  #: null: a main session
    timeline: list[Happened]
    deliveries: list[Attempt]
    stuck: Stuck | None
    messages: list[Unsent]
    text: str


class WhyDocument(WhyObject):
    schema: str
    ok: bool


class Step(TypedDict):
    n: int
    at: Moment | None
    kind: str
    seq: int | None
    runId: str | None
    text: str
    detail: dict[str, Any]


class Journal(TypedDict):
    steps: list[Step]
    next: int | None


# ---- the gateway -------------------------------------------------------------------------------------


_SUBJECTS = "`config-loaded`, `mcp NAME`, `import-path`, `planted-file`, `unread-instructions`"


class HealthNotice(TypedDict):
    subject: Annotated[str, SchemaNote(description=f"Stable name of what it is about: {_SUBJECTS}.")]
    detail: Annotated[str, SchemaNote(description="What is wrong, in one sentence.")]
    remedy: Annotated[str, SchemaNote(description="What the operator can do about it.")]
    isError: Annotated[
        bool, SchemaNote(description="False: everything works, and the setting is probably a mistake.")
    ]


class Overview(TypedDict):
    """The event `overview` of a stream with `include=overview`."""

    summary: SummaryObject
    inbox: list[str]  #: id and hash of each item
    problems: list[HealthNotice]
    model: str | None
    isDemo: bool
    mainCalls: int  #: model calls of main agents in this process; a change says that the ledger has changed


class StreamChanged(TypedDict):
    status: Literal["changed"]


class Swept(TypedDict):
    dryRun: bool
    archived: list[str]
    forgotten: list[str]
    transcriptBytes: int


class WaitedFor(TypedDict):
    taskId: str | None
    sessionKey: str
    label: str | None
    phase: PhaseName | None


class Ending(TypedDict):
    status: Literal["stopping", "draining"]
    pid: int
    waitingFor: NotRequired[Annotated[list[WaitedFor], SchemaNote(default=[])]]


class Document(TypedDict):
    openapi: str
    paths: dict[str, Any]
    components: dict[str, Any]


# ---- sessions ----------------------------------------------------------------------------------------


class Session(TypedDict):
    sessionKey: str
    kind: str
    agentId: str
    depth: int
    lastProgressAt: Moment | None
    task: TaskObject | None


class Sessions(TypedDict):
    sessions: list[Session]


class Deleted(TypedDict):
    status: Literal["archived", "deleted"]
    sessionKey: str


class LetterObject(TypedDict):
    letterId: str


class NextWords(TypedDict):
    id: int | None
    reply: str | None
    quiet: bool


class Halted(TypedDict):
    stopped: bool


class CommandText(TypedDict):
    text: str


class Notified(TypedDict):
    isNew: bool


class Woken(TypedDict):
    status: Literal["accepted"]


class Settled(TypedDict):
    settled: bool


# ---- what actions answer -----------------------------------------------------------------------------


class Spawned(TypedDict):
    status: Literal["accepted"]
    taskId: str | None
    runId: str | None
    childSessionKey: str | None
    label: str
    mode: ModeName
    model: str | None
    thinking: ThinkingName | None
    context: ContextName
    note: str
    warnings: list[str]
    forecast: NotRequired[SpawnForecast]  #: of a dry run


class StartedAgain(Spawned):
    generation: int


class SpawnRefusedObject(TypedDict):
    status: Literal["forbidden", "error"]
    error: str
    code: NotRequired[MaybeText]
    field: NotRequired[MaybeText]
    limit: NotRequired[Annotated[dict[str, Any] | None, SchemaNote(default=None)]]


class NotStopped(TypedDict):
    taskId: str
    why: str


class KilledObject(TypedDict):
    stopped: list[str]
    stillStopping: list[NotStopped]
    alreadyFinished: list[str]
    notStopped: list[NotStopped]
    dryRun: NotRequired[Literal[True]]  #: nothing was stopped; the lists say what a kill would do


class SteeredObject(TypedDict):
    status: Literal["accepted"]
    taskId: str
    runId: str | None
    supersedes: str | None


class Sent(TypedDict):
    status: Literal["ok", "accepted", "timeout"]
    reply: NotRequired[MaybeText]


class ReceiptObject(TypedDict):
    status: Literal["sent", "seen", "acted on", "not acted on"]
    step: int | None  #: at which the task read the message
    text: str


class Changed(TypedDict):
    changed: list[str]


class DecidedObject(TypedDict):
    status: Literal["approved", "revising", "ended"]
    taskId: str
    runId: str | None
    round: int


class MessageDecided(TypedDict):
    """What becomes of a message that was not sent, or may not have arrived."""

    status: Literal["sending", "dismissed"]
    id: str


class Answered(TypedDict):
    status: Literal["answered", "approved", "revising", "ended"]
    taskId: str | None


# --------------------------------------------------------------------------------------------------
# The inbox: what waits for a decision of the user.


class PathPart(TypedDict):
    """A session above the one that asks, or itself."""

    sessionKey: str
    taskId: str | None
    label: str | None


class Item(TypedDict):
    id: str
    kind: str
    status: StatusName
    taskId: str | None
    sessionKey: str | None
    agentId: str | None
    label: str | None
    depth: int
    path: list[PathPart]  #: who asks, from the top of the tree; empty: the gateway asks
    text: str
    detail: Mapping[str, Any]
    choices: list[str]  #: the only answers that are accepted; empty: any text
    directory: str | None  #: where an approved command starts
    isSandboxed: (
        bool | None
    )  #: whether an approved command runs in the sandbox; null: no command, or not known
    budget: BudgetAnswer | None  #: the exhausted budget as it is now
    consequences: Mapping[str, str]  #: what each decision does, in one sentence, by decision
    hash: str
    askedAt: Moment


class Inbox(TypedDict):
    items: list[Item]
    replies: int
    repliesIn: list[str]
    unsent: list[Unsent]
