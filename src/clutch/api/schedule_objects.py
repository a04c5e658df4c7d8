"""The JSON objects of schedules. Rules as in `api/objects.py`."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class SlotObject(TypedDict):
    """What became of a slot, or of several in a row that were skipped for one reason."""

    slot: str  #: in the time zone of the schedule; of a run beside the slots its start
    until: str  #: the last one
    slots: int
    state: Literal["started", "skipped", "manual"]
    reason: str | None  #: why it was skipped
    detail: str | None  #: ... in words
    taskId: str | None
    outcome: str | None  #: of the task; null while it works, and when it is no longer kept


class ScheduleObject(TypedDict):
    name: str
    owner: Literal["user", "config"]
    status: Literal["active", "paused", "ended"]
    when: str
    timezone: str
    nextTimes: list[str]  #: with the offset of the time zone at that moment
    waitingSlots: list[str]  #: until the previous run has ended
    missed: Literal["skip", "once", "all"]
    catchUp: int
    overlap: Literal["skip", "queue", "replace"]
    delaySeconds: int  #: by which jitter delays every run
    maxRuns: int | None
    runs: int
    task: str
    session: str
    label: str
    agentId: str | None
    model: str | None
    lastTaskId: str | None
    history: list[SlotObject]  #: the newest first; of a list the newest ten


class Schedules(TypedDict):
    schedules: list[ScheduleObject]


class ScheduleRemoved(TypedDict):
    removed: str


class ScheduleRun(TypedDict):
    """A run beside the slots."""

    schedule: str
    taskId: str
    childSessionKey: str
    label: str
