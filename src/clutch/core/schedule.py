"""Schedules: which slots there are, and what becomes of each.

A *slot* is the nominal moment of one run, in whole seconds since 1970. The contract:

- Every slot after the creation of its schedule either starts one task or is skipped with a reason.
- A slot is *missed* if it is found more than LATE_S late, or if a later one is due as well. `missed` says what becomes
  of missed slots. A slot that passed while the schedule was paused is always skipped.
- `overlap` says what becomes of a slot whose predecessor still runs. Two runs of a schedule never work at once.
- One step starts at most one task, so that catching up is never a burst.

A clock that is set back repeats nothing: slots are decided in their order, each once."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from clutch.core import ids
from clutch.core.validation import check
from clutch.errors import InvalidInput

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
CATCH_UP_MAX = (
    100  # missed slots that may run after a pause of the gateway; more are a backlog that helps no user
)
QUEUED_MAX = CATCH_UP_MAX  # slots that wait for the end of a run; older ones are skipped
EVERY_MIN_S, EVERY_MAX_S = 1, 366 * 86400
JITTER_MAX_S = 86400
LATE_S = 60  # up to here a slot is on time: a start of the gateway, a failover and a busy database take less
LOOK_S = 5.0  # until the end of the previous run is looked for again, while slots wait for it
SCAN_MAX = 1000  # cron slots that one step goes through; after a longer time the next step continues
CRON_CHARS_MAX = 200
CRON_FIELDS = 5
ALONE = "at, every, cron"


class Missed(StrEnum):
    """What becomes of missed slots."""

    SKIP = "skip"  #: none of them runs
    ONCE = "once"  #: the latest slot stands for them all
    ALL = "all"  #: the latest `catch_up` of them run, one after the other


class Overlap(StrEnum):
    """What becomes of a slot whose predecessor still runs."""

    SKIP = "skip"  #: it does not run
    QUEUE = "queue"  #: it runs when the predecessor has ended
    REPLACE = "replace"  #: the predecessor is killed


class SkipReason(StrEnum):
    MISSED = "missed"
    OVERLAP = "overlap"
    PAUSED = "paused"
    QUEUE_FULL = "queue_full"
    MAX_RUNS = "max_runs"
    REFUSED = "refused"  #: the spawn was refused, by a limit or a budget; the detail says which


#: What a user reads.
SKIP_TEXTS = {
    SkipReason.MISSED: "missed: no gateway was running, or a later slot was due, too",
    SkipReason.OVERLAP: "the previous run had not ended",
    SkipReason.PAUSED: "the schedule was paused",
    SkipReason.QUEUE_FULL: "too many slots waited for the previous run",
    SkipReason.MAX_RUNS: "the schedule has had all of its runs",
    SkipReason.REFUSED: "the spawn was refused",
}


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """When a schedule runs. Exactly one of `at`, `every_s` and `cron` is set."""

    name: str  #: Name of the schedule: a-z, 0-9, _ and -.
    #: One moment, e.g. 2026-12-24T18:00: local time in `timezone`, or with an offset of its own.
    at: str | None = None
    #: Interval, in whole seconds. Slots are counted from 1970-01-01 00:00 UTC, whatever the time zone.
    every_s: float | None = None
    cron: str | None = None  #: Five fields: minute, hour, day of the month, month, day of the week.
    timezone: str = "UTC"  #: Time zone of `cron` and `at`, such as Europe/Berlin.
    #: Delay of every run, between 0 and this, always the same for a name: many schedules do not start at once.
    jitter_s: float = 0.0
    #: Slots missed while no gateway ran: skip, once (the latest runs), or all (the latest `catchUp` run).
    missed: Missed = Missed.ONCE
    catch_up: int = 10  #: Missed slots that run at most with missed "all".
    #: A slot whose previous run has not ended: skip, queue, or replace (the previous run is killed).
    overlap: Overlap = Overlap.SKIP
    max_runs: int | None = None  #: Runs after which the schedule ends. None = no limit.
    task: str = ""  #: What each run has to do, in full.
    session: str = "agent:main:main"  #: The main or chat session in whose name the runs are spawned.
    label: str | None = None  #: Label of the runs. None = the name of the schedule.
    agent_id: str | None = None  #: Agent that works on the runs. None = that of the session.
    model: str | None = None  #: Model of the runs. None = that of the agent.
    run_timeout_s: float | None = None  #: Time limit of one run. None = as subagents have it.
    notify_parent: bool = False  #: The parent agent has a turn with each result.
    run_tokens: int | None = None  #: Budget of each run, in tokens.
    run_usd: Decimal | None = None  #: Budget of each run, in dollars.
    total_tokens: int | None = None  #: Budget of all runs together, in tokens.
    total_usd: Decimal | None = None  #: Budget of all runs together, in dollars.

    def __post_init__(self) -> None:
        try:
            check(self)
        except InvalidInput as error:
            raise InvalidInput(_said(error.field.rpartition(".")[2]), error.rule) from error
        _check_when(self)
        _check_rules(self)

    @property
    def delay_s(self) -> int:
        """Return by how much every slot of this schedule is delayed."""
        if not self.jitter_s:
            return 0
        digest = hashlib.sha256(self.name.encode()).digest()
        return int.from_bytes(digest[:8], "big") % (int(self.jitter_s) + 1)

    @property
    def session_agent(self) -> str:
        """Raises InvalidInput."""
        parsed = ids.parse_session_key(self.session)
        if isinstance(parsed, ids.BadKey):
            raise InvalidInput("session", parsed.message)
        if parsed.kind is ids.KeyKind.SUBAGENT:
            raise InvalidInput("session", "must be a main or chat session")
        return parsed.agent_id

    @property
    def zone(self) -> tzinfo:
        return UTC if self.timezone == "UTC" else ZoneInfo(self.timezone)


def _said(name: str) -> str:
    """The field as users write it: `catch_up` is `catchUp`, `every_s` is `every`."""
    first, *rest = name.replace("timeout_s", "timeout_seconds").removesuffix("_s").split("_")
    return first + "".join(map(str.capitalize, rest))


def _refuse(field: str, rule: str) -> None:
    raise InvalidInput(field, rule)


def _check_when(schedule: ScheduleSpec) -> None:
    if not NAME.fullmatch(schedule.name):
        _refuse(
            "name", f"{schedule.name[:64]!r} must be 1 to 64 of a-z 0-9 _ -, beginning with a letter or digit"
        )
    try:
        _ = schedule.zone
    except (KeyError, ValueError, OSError):
        _refuse(
            "timezone", f"there is no time zone {schedule.timezone[:64]!a}; write for example Europe/Berlin"
        )
    given = [one for one in (schedule.at, schedule.every_s, schedule.cron) if one is not None]
    if len(given) != 1:
        _refuse("cron", f"exactly one of {ALONE} must be given, not {len(given)}")
    if schedule.every_s is not None and not (
        EVERY_MIN_S <= schedule.every_s <= EVERY_MAX_S and schedule.every_s == int(schedule.every_s)
    ):
        _refuse("every", f"must be whole seconds, from {EVERY_MIN_S} s to 366 days")
    if schedule.at is not None:
        _moment(schedule)
    if schedule.cron is not None:
        _check_cron(schedule)


def _check_rules(schedule: ScheduleSpec) -> None:
    _ = schedule.session_agent
    if not 0 <= schedule.jitter_s <= JITTER_MAX_S:
        _refuse("jitter", "must be between 0 and 24 hours")
    if not 1 <= schedule.catch_up <= CATCH_UP_MAX:
        _refuse("catchUp", f"must be between 1 and {CATCH_UP_MAX}")
    if schedule.missed is Missed.ALL and schedule.overlap is not Overlap.QUEUE:
        _refuse("overlap", 'must be "queue" with missed "all": the missed slots run one after the other')
    for name in ("run_tokens", "run_usd", "total_tokens", "total_usd"):
        if getattr(schedule, name) == 0:
            _refuse(_said(name), "must be more than 0; leave it out for no limit")
    if schedule.max_runs is not None and schedule.max_runs < 1:
        _refuse("maxRuns", "must be at least 1")
    if not schedule.task.strip():
        _refuse("task", "is missing: say what each run has to do")


def _check_cron(schedule: ScheduleSpec) -> None:
    from cronsim import CronSimError

    text = schedule.cron or ""
    if len(text) > CRON_CHARS_MAX or len(text.split()) != CRON_FIELDS:
        _refuse(
            "cron",
            f"{text[:64]!r} must have five fields, such as 30 2 * * 1-5 (minute hour day month weekday)",
        )
    try:
        if next(slots(schedule, 0), None) is None:
            _refuse("cron", f"{text!r} never occurs")
    except CronSimError as error:
        raise InvalidInput(
            "cron", f"{text!r}: {str(error).lower()}; write for example 30 2 * * 1-5"
        ) from error


def _moment(schedule: ScheduleSpec) -> int:
    """The slot of `at`. A local time that occurs twice is the first of the two."""
    text = schedule.at or ""
    try:
        said = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput("at", f"{text[:64]!r} must be a moment such as 2026-12-24T18:00") from None
    if not 1970 < said.year < 9999:  # the first and last year do not exist in every zone, nor with a delay
        _refuse("at", f"{text[:64]!r} must be in a year from 1971 to 9998")
    moment = said if said.tzinfo is not None else said.replace(tzinfo=schedule.zone)
    if moment.astimezone(UTC).astimezone(moment.tzinfo).replace(tzinfo=None) != said.replace(tzinfo=None):
        _refuse("at", f"{text} does not exist in {schedule.timezone}: the clock is put forward over it")
    return math.floor(moment.timestamp())


# ---- slots -------------------------------------------------------------------------------------------


def slots(schedule: ScheduleSpec, after: int) -> Iterator[int]:
    """The slots later than `after`, in their order.

    On the day on which the clock is put forward, a fixed time within the missing hour is its end. On the day on which
    it is put back, a fixed time that occurs twice is its first occurrence; every n-th minute or hour runs in both."""
    if schedule.at is not None:
        yield from (one for one in (_moment(schedule),) if one > after)
    elif schedule.every_s is not None:
        step_s = int(schedule.every_s)
        slot = after // step_s * step_s
        while True:
            slot += step_s
            yield slot
    else:
        yield from _cron_slots(schedule, after)


def _cron_slots(schedule: ScheduleSpec, after: int) -> Iterator[int]:
    from cronsim import CronSim  # only where there is a schedule

    last = after
    for moment in CronSim(schedule.cron or "", datetime.fromtimestamp(after, schedule.zone)):
        slot = math.floor(moment.timestamp())
        # Two times of a missing hour are one moment, and the library may begin with the first of two equal local times.
        if slot > last:
            last = slot
            yield slot


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Slots one after the other."""

    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True)
class DueSlots:
    """`early`: too many to run one by one. `late`: the newest, each. `is_more`: there are more, and later ones."""

    early: SlotRange | None
    late: tuple[int, ...]
    is_more: bool = False


def due(schedule: ScheduleSpec, after: int, until: int) -> DueSlots:
    """The slots later than `after`, up to `until`."""
    keep = CATCH_UP_MAX + 1
    if schedule.every_s is not None:
        step_s = int(schedule.every_s)
        count = max(0, until // step_s - after // step_s)
        newest = tuple((until // step_s - back) * step_s for back in reversed(range(min(count, keep))))
        if count <= keep:
            return DueSlots(None, newest)
        return DueSlots(SlotRange((after // step_s + 1) * step_s, newest[0] - step_s, count - keep), newest)
    found = tuple(islice(takewhile(lambda slot: slot <= until, slots(schedule, after)), SCAN_MAX))
    early, late = found[:-keep], found[-keep:]
    crowd = SlotRange(early[0], early[-1], len(early)) if early else None
    # Later ones may be due as well: which of these are the newest, the next step says.
    return DueSlots(crowd, (), is_more=True) if len(found) == SCAN_MAX else DueSlots(crowd, late)


# ---- one step ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """`cursor`: every slot up to it is decided or waits in `queue`. `resumed_at`: undecided slots up to it passed in a
    pause."""

    cursor: int
    queue: tuple[int, ...] = ()
    runs: int = 0
    resumed_at: int = 0


@dataclass(frozen=True, slots=True)
class SkippedSlots:
    slots: SlotRange
    reason: SkipReason


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """What is to be done now: `start` this slot, after a kill of the previous run if `replaces`."""

    state: ScheduleState
    start: int | None = None
    replaces: bool = False
    skipped: tuple[SkippedSlots, ...] = ()
    next_at: float | None = None  #: of the next step; None: the schedule has ended


def step(schedule: ScheduleSpec, state: ScheduleState, now: float, *, is_busy: bool) -> ScheduleStep:
    """Decide every slot that is due. `is_busy`: the task of the last run has not ended."""
    until = math.floor(now - schedule.delay_s)
    skipped: list[SkippedSlots] = []
    cursor = state.cursor
    if state.resumed_at > cursor:
        paused = due(schedule, cursor, min(until, state.resumed_at))
        skipped += _skipped(paused.early, SkipReason.PAUSED) + _each(paused.late, SkipReason.PAUSED)
        cursor = _last(paused, cursor)
        if paused.is_more:
            return ScheduleStep(replace(state, cursor=cursor), skipped=tuple(skipped), next_at=now)
    found = due(schedule, cursor, until)
    skipped += _skipped(found.early, SkipReason.MISSED)
    cursor = _last(found, cursor)
    if found.is_more:
        return ScheduleStep(replace(state, cursor=cursor), skipped=tuple(skipped), next_at=now)
    wanted, missed = _chosen(schedule, found.late, until)
    skipped += _each(missed, SkipReason.MISSED)
    decided = _started(schedule, replace(state, cursor=cursor), (*state.queue, *wanted), is_busy=is_busy)
    left = decided.state
    return replace(
        decided, skipped=(*skipped, *decided.skipped), next_at=_next_at(schedule, left, now, decided.start)
    )


def _chosen(
    schedule: ScheduleSpec, found: tuple[int, ...], until: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The slots that are to run, and those that are missed for good."""
    on_time = 1 if found and until - found[-1] <= LATE_S else 0
    missed = found[: len(found) - on_time]
    # With "once" a slot that is on time stands for the missed ones, too.
    kept = {Missed.SKIP: 0, Missed.ONCE: 1 - on_time, Missed.ALL: schedule.catch_up}[schedule.missed]
    run = missed[len(missed) - min(kept, len(missed)) :]
    return (*run, *found[len(missed) :]), missed[: len(missed) - len(run)]


def _started(
    schedule: ScheduleSpec, state: ScheduleState, wanted: tuple[int, ...], *, is_busy: bool
) -> ScheduleStep:
    if schedule.max_runs is not None and state.runs >= schedule.max_runs:
        return ScheduleStep(replace(state, queue=()), skipped=_each(wanted, SkipReason.MAX_RUNS))
    if not wanted:
        return ScheduleStep(state)
    if schedule.overlap is Overlap.QUEUE:
        first, waiting = (None, wanted) if is_busy else (wanted[0], wanted[1:])
        excess = waiting[: max(0, len(waiting) - QUEUED_MAX)]
        state = replace(state, queue=waiting[len(excess) :], runs=state.runs + (first is not None))
        return ScheduleStep(state, first, skipped=_each(excess, SkipReason.QUEUE_FULL))
    # Slots wait here only if the policy was "queue" before: of them, too, only the newest is of use.
    older = _each(wanted[:-1], SkipReason.OVERLAP)
    state = replace(state, queue=())
    if is_busy and schedule.overlap is Overlap.SKIP:
        return ScheduleStep(state, skipped=(*older, *_each(wanted[-1:], SkipReason.OVERLAP)))
    return ScheduleStep(replace(state, runs=state.runs + 1), wanted[-1], replaces=is_busy, skipped=older)


def _next_at(schedule: ScheduleSpec, state: ScheduleState, now: float, start: int | None) -> float | None:
    if state.queue:
        return now + LOOK_S
    if schedule.max_runs is not None and state.runs >= schedule.max_runs and start is None:
        return None
    return first_at(schedule, state.cursor)


def first_at(schedule: ScheduleSpec, cursor: int) -> float | None:
    """When the first slot after `cursor` is due."""
    following = next(slots(schedule, cursor), None)
    return None if following is None else float(following + schedule.delay_s)


def _each(slots: tuple[int, ...], reason: SkipReason) -> tuple[SkippedSlots, ...]:
    return tuple(SkippedSlots(SlotRange(slot, slot, 1), reason) for slot in slots)


def _skipped(crowd: SlotRange | None, reason: SkipReason) -> tuple[SkippedSlots, ...]:
    return () if crowd is None else (SkippedSlots(crowd, reason),)


def _last(found: DueSlots, otherwise: int) -> int:
    if found.late:
        return found.late[-1]
    return otherwise if found.early is None else found.early.last


# ---- as it is stored ---------------------------------------------------------------------------------


def dump(schedule: ScheduleSpec) -> str:
    """As JSON: what differs from the defaults."""
    said = {one.name: getattr(schedule, one.name) for one in fields(schedule)}
    return json.dumps({name: _plain(value) for name, value in said.items() if value != _DEFAULTS.get(name)})


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Decimal) else value


@lru_cache(maxsize=256)  # a worker reads the same few again and again
def load(text: str) -> ScheduleSpec:
    known: dict[str, Any] = json.loads(text)
    kinds = {"missed": Missed, "overlap": Overlap, "run_usd": Decimal, "total_usd": Decimal}
    return ScheduleSpec(
        **{name: kinds[name](value) if name in kinds else value for name, value in known.items()}
    )


_DEFAULTS = {one.name: one.default for one in fields(ScheduleSpec)}


# ---- what users read ---------------------------------------------------------------------------------

NEXT_SHOWN = 3
_KEY = re.compile(r"schedule:([a-z0-9_-]+):\d+:(.+)")


def slot_key(name: str, schedule_id: int, slot: int) -> str:
    """The idempotency key of the task of a slot. The id keeps a schedule apart from an earlier one of its name."""
    return f"schedule:{name}:{schedule_id}:{datetime.fromtimestamp(slot, UTC):%Y-%m-%dT%H:%M:%SZ}"


def manual_key(name: str, schedule_id: int, nonce: str) -> str:
    """The key of a run beside the slots."""
    return f"schedule:{name}:{schedule_id}:by hand {nonce}"


def origin(key: str) -> tuple[str, str] | None:
    """The schedule and the slot that started the task of this key; None: another origin."""
    found = _KEY.fullmatch(key)
    return None if found is None else (found[1], found[2])


def local(schedule: ScheduleSpec, slot: float) -> str:
    """A moment in the zone of the schedule, with its offset: 2026-12-24T18:00:00+01:00."""
    return datetime.fromtimestamp(slot, schedule.zone).isoformat(timespec="seconds")


def next_times(schedule: ScheduleSpec, after: float, count: int = NEXT_SHOWN) -> list[str]:
    upcoming = islice(slots(schedule, math.floor(after - schedule.delay_s)), count)
    return [local(schedule, slot + schedule.delay_s) for slot in upcoming]


def rhythm(schedule: ScheduleSpec) -> str:
    """When it runs, in the words of the command: `cron 30 2 * * *, Europe/Berlin`."""
    if schedule.every_s is not None:
        return f"every {_interval(int(schedule.every_s))}"
    when = f"at {schedule.at}" if schedule.at is not None else f"cron {schedule.cron}"
    return f"{when}, {schedule.timezone}"


def _interval(seconds: int) -> str:
    """The shortest text that `--every` reads as these seconds: 30m, 1h30m, 7d."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return "".join(
        f"{count}{unit}" for count, unit in zip((days, hour, minute, second), "dhms", strict=True) if count
    )
