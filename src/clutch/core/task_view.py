"""A task as everybody sees it: what lists, trees, `why`, programs and models are shown, and nothing else.

Plain data, read from the store by `protocol.views`; the words for it are in `wording`, its JSON form in
`gateway.objects`. None means that nobody knows, or that there is no such thing yet; never zero in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from clutch.core.attachments import StoredFile
from clutch.core.budget import Purse
from clutch.core.evidence import Evidence
from clutch.core.model import Delivery, Outcome, Path, Phase, Wait


@dataclass(frozen=True, slots=True)
class Tally:
    """Model calls that were made and what they used. `unpriced` of them have no known price."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    calls: int = 0
    usd: Decimal | None = None  #: of those with a price; None = of none of them
    unpriced: int = 0

    @property
    def tokens(self) -> int:
        return self.input + self.output

    def __add__(self, other: Tally) -> Tally:
        prices = [usd for usd in (self.usd, other.usd) if usd is not None]
        return Tally(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.calls + other.calls,
            sum(prices, Decimal(0)) if prices else None,
            self.unpriced + other.unpriced,
        )


NOTHING_USED = Tally()


@dataclass(frozen=True, slots=True)
class CurrentTool:
    """The first call of the answer whose results are awaited."""

    name: str
    arg: str  #: the argument that tells most, in one short line
    since: float


@dataclass(frozen=True, slots=True)
class Telling:
    """How far the requester has heard of it."""

    state: Delivery
    path: Path | None = None
    reason: str | None = None
    attempts: int = 0  #: made so far, the one that succeeded included
    next_at: float | None = None
    at: float | None = None  #: when it was delivered


@dataclass(frozen=True, slots=True)
class PlanView:
    state: str  #: drafting, awaiting_approval or approved
    hash: str | None  #: of the plan that awaits a decision
    round: int  #: how often it was sent back


@dataclass(frozen=True, slots=True)
class TaskView:
    """Numbers are row numbers; `core.keys` prints them. Keys are None once their session was deleted."""

    task_id: int
    requester_id: int
    root_id: int
    session_key: str | None
    requester_key: str | None
    root_key: str | None
    depth: int
    role: str | None
    agent_id: str | None
    label: str
    phase: Phase
    reason: str
    outcome: Outcome | None
    error: str | None
    generation: int
    created_at: float
    started_at: float | None
    ended_at: float | None
    progress_at: float | None
    deadline_at: float | None
    delivery: Telling
    run_id: int | None = None  #: the open run, else the last one
    attempt: int = 0  #: runs so far
    step: int | None = None
    resumes: int = 0
    parked_until: float | None = None
    model_requested: str | None = None
    model: str | None = None  #: that answered last, by its own name
    current_tool: CurrentTool | None = None
    own: Tally = NOTHING_USED
    subtree: Tally = NOTHING_USED  #: with its own
    budget: Purse | None = None
    plan: PlanView | None = None
    evidence: Evidence | None = None
    worker_id: int | None = None
    children_active: int = 0
    children_total: int = 0
    worked_s: float | None = None  #: of all its runs together; None: nobody has seen it work

    @property
    def parent_task_id(self) -> int | None:
        """A root is never a task, and everybody else is."""
        return None if self.requester_id == self.root_id else self.requester_id

    @property
    def paused_until(self) -> float | None:
        """Where a moment ends the wait, and not a person or a child."""
        is_timed = self.phase is Phase.PAUSED and self.reason in (Wait.QUOTA, Wait.PROVIDER)
        return self.parked_until if is_timed else None


@dataclass(frozen=True, slots=True)
class Summary:
    """How many tasks of a listing stand where."""

    running: int = 0
    queued: int = 0
    waiting: int = 0  #: for a quota, for children, to be told
    needs_you: int = 0
    done: int = 0  #: ended well; how the others ended is counted below
    failed: int = 0
    timeout: int = 0
    killed: int = 0
    lost: int = 0
    undelivered: int = 0
    replies: int = 0  #: words of main agents that wait for somebody to attach
    speakers: tuple[str, ...] = ()  #: … and whose they are
    unsent: int = 0  #: … that no channel took
    usd: Decimal | None = None


@dataclass(frozen=True, slots=True)
class ResultView:
    """What a task left behind, by value. `late`: what came after it was over, and when."""

    task_id: int
    phase: Phase
    outcome: Outcome | None
    text: str | None
    value: str | None  #: JSON, if a form was asked for
    sha256: str | None
    generation: int
    frozen_at: float | None
    late: tuple[str, float] | None = None
    files: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a transcript as it is stored."""

    seq: int
    at: float
    run_id: int
    kind: str
    body: str


@dataclass(frozen=True, slots=True)
class Transcript:
    lines: tuple[Line, ...] = ()
    next: int | None = None  #: go on after this one; None = that was all
