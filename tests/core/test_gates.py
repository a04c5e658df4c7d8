"""The gate a task waits at: each is decided from the rows alone, and each names what opens it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clutch.core.diagnosis import BlockingSession, Facts, Gate, gate_of, session_gate, unserved
from clutch.core.model import Delivery, Phase, Reason
from clutch.core.text.why import blocked_text, command, waiting_for

OWN = BlockingSession(2, "agent:main:subagent:x", due=90.0)
MAIN = BlockingSession(1, "agent:main:main", is_task=False, lane="main", due=90.0)
FREE = {"main": (0, 4), "subagent": (0, 8)}
FULL = {"main": (4, 4), "subagent": (8, 8)}
AT = Facts(100.0, 2, Phase.QUEUED, Reason.NONE, Delivery.NONE, 50.0, OWN, lanes=FREE, workers=1, reader=MAIN)
TELLING = replace(AT, phase=Phase.ANNOUNCING, delivery=Delivery.WAITING, ready_at=80.0)
PAUSED = replace(AT, phase=Phase.PAUSED)


def parked(reason: Reason, until: float | None) -> Facts:
    return replace(PAUSED, reason=reason, own=replace(OWN, due=until, has_run=True, parked_until=until))


def told(**reader: object) -> Facts:
    return replace(TELLING, reader=replace(MAIN, **reader))  # type: ignore[arg-type]


CASES = [
    ("queue is full", replace(AT, lanes=FULL), Gate.LANE_FULL, "all 8 concurrency slots are", "ps --phase running"),
    ("no worker at all", replace(AT, workers=0), Gate.LEASE, "when a gateway is started", "serve"),
    (
        "its worker is dead",
        replace(AT, phase=Phase.RUNNING, own=replace(OWN, is_owned=True, lease_until=99.0)),
        Gate.LEASE, "Another worker takes over", "why t_2",
    ),
    (
        "its worker is gone",
        replace(AT, phase=Phase.RUNNING, workers=0, own=replace(OWN, is_owned=True)),
        Gate.LEASE, "when a gateway is started", "serve",
    ),
    ("freed, and the lane full", replace(AT, phase=Phase.RUNNING, lanes=FULL), Gate.LANE_FULL, "all 8", "ps"),
    (
        "queued under a clock that was ahead",
        replace(AT, since=86_490.0, own=replace(OWN, due=86_500.0)),
        Gate.BACKOFF, "retried at", "logs t_2",
    ),
    (
        "suspected of crashes",
        replace(AT, phase=Phase.RUNNING, own=replace(OWN, suspected=2)),
        Gate.CRASHES, "crashed 2 times while it was executing. It is executed alone", "logs t_2",
    ),
    (
        "ended before its children",
        replace(
            AT, phase=Phase.ANNOUNCE_DEFERRED, reason=Reason.DESCENDANTS, own=replace(OWN, working=(3, 4)),
            wake_at=200.0,
        ),
        Gate.DESCENDANTS_ACTIVE, "for 2 subagents. It resumes when the last of them has finished, at 00:03", "why t_3",
    ),
    (
        "yielded",
        replace(PAUSED, reason=Reason.CHILDREN, own=replace(OWN, working=(3,), hold_until=160.0)),
        Gate.DESCENDANTS_ACTIVE, "at 00:02:40", "why t_3",
    ),
    (
        "told when its siblings have settled",
        told(is_held=True, working=(5,)),
        Gate.DESCENDANTS_ACTIVE, "waiting for 1 subagent.", "why t_5",
    ),
    (
        "requester in a turn",
        told(is_owned=True, lease_until=200.0),
        Gate.REQUESTER_BUSY, "The result is delivered when its current turn ends.", "tree agent:main:main",
    ),
    ("requester has it", replace(TELLING, is_taken=True), Gate.REQUESTER_BUSY, "the parent agent is busy", "tree"),
    ("requester is parked", told(has_run=True), Gate.REQUESTER_BUSY, "the parent agent is busy", "tree"),
    (
        "requester is a task",
        replace(TELLING, reader=replace(OWN, id=9, is_owned=True)),
        Gate.REQUESTER_BUSY, "the parent agent is busy", "why t_9",
    ),
    (
        "nobody is there",
        replace(TELLING, phase=Phase.ANNOUNCE_DEFERRED, reason=Reason.MISSING, wake_at=300.0),
        Gate.REQUESTER_MISSING, "when it is back, or given up at 00:05:00", "tree agent:main:main",
    ),
    ("requester closed", told(is_closed=True), Gate.REQUESTER_MISSING, "the parent agent is gone", "tree"),
    ("requester deleted", replace(TELLING, reader=None), Gate.REQUESTER_MISSING, "the parent agent is", "tree t_2"),
    ("an attempt failed", replace(TELLING, ready_at=130.0), Gate.BACKOFF, "retried at 00:02:10", "logs t_2"),
    ("error grace", replace(AT, phase=Phase.ENDING, wake_at=110.0), Gate.BACKOFF, "00:01:50", "logs t_2"),
    ("cleanup failed", replace(AT, phase=Phase.CLEANUP_PENDING, wake_at=110.0), Gate.BACKOFF, "00:01:50", "logs"),
    ("provider trouble", parked(Reason.PROVIDER, 104.0), Gate.BACKOFF, "00:01:44", "logs t_2"),
    (
        "plan awaits",
        replace(AT, phase=Phase.AWAITING_APPROVAL, plan_hash="ab12"),
        Gate.NEEDS_YOU, "a user must decide", "approve t_2 --hash ab12",
    ),
    (
        "asked a person",
        replace(parked(Reason.NEEDS_YOU, None), questions=("q_7",)),
        Gate.NEEDS_YOU, "a user must decide", "inbox",
    ),
    (
        "answered, and no worker at all",
        replace(PAUSED, reason=Reason.NEEDS_YOU, own=replace(OWN, due=0.0, has_run=True, is_answered=True), workers=0),
        Gate.LEASE, "when a gateway is started", "serve",
    ),
    ("quota", parked(Reason.QUOTA, 400.0), Gate.QUOTA, "accepts calls again at 00:06:40", "logs t_2"),
    ("budget", parked(Reason.BUDGET, 130.0), Gate.BUDGET, "is raised, and is retried at 00:02:10", "logs t_2"),
    ("paused", replace(PAUSED, reason=Reason.PAUSE), Gate.PAUSED, "t_2 is paused", "resume t_2"),
    (
        "parked and then paused",
        replace(PAUSED, reason=Reason.QUOTA, own=replace(OWN, is_paused=True, parked_until=400.0)),
        Gate.PAUSED, "t_2 is paused", "resume t_2",
    ),
    (
        "requester paused",
        replace(TELLING, reader=replace(OWN, id=9, is_paused=True)),
        Gate.PAUSED, "t_9 is paused. It resumes when a user resumes it.", "resume t_9",
    ),
    (
        "never awake",
        replace(told(due=None), put_off=Reason.QUIET_HOURS),
        Gate.QUIET_HOURS, "when its active hours begin.", "tree",
    ),
    (
        "asleep until the morning",
        replace(told(due=700.0), put_off=Reason.QUIET_HOURS),
        Gate.QUIET_HOURS, "begin at 00:11:40", "tree agent:main:main",
    ),
    ("collected for minutes", told(due=700.0), Gate.BACKOFF, "retried at 00:11:40", "logs t_2"),
    (
        "dead letter",
        replace(AT, phase=Phase.COMPLETED_GIVEUP, delivery=Delivery.UNDELIVERED, wake_at=7 * 86_400.0),
        Gate.DEAD_LETTER, "redeliver or discard it; it expires at 1970-01-08 00:00:00", "redeliver t_2",
    ),
    ("letter due, main lane full", replace(TELLING, lanes=FULL), Gate.LANE_FULL, "all 4 concurrency slots", "ps"),
    ("nobody carries letters", replace(TELLING, is_seen=False, workers=0), Gate.LEASE, "no worker is running", "serve"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "gate", "opens", "typed"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_each_gate_is_named_with_what_opens_it_and_what_to_type(
    facts: Facts, gate: Gate, opens: str, typed: str
) -> None:
    stuck = gate_of(facts)
    assert stuck is not None
    assert stuck.gate is gate
    assert opens in blocked_text(stuck)
    assert command(stuck, "t_2")[0].isalpha()
    assert typed in " ".join(command(stuck, "t_2"))
    assert stuck.since <= facts.at


def test_where_nobody_works_the_rows_of_the_dead_do_not_count() -> None:
    alive = replace(AT, phase=Phase.RUNNING, own=replace(OWN, is_owned=True, lease_until=1e12, due=None))
    assert gate_of(alive) is None
    stuck = gate_of(unserved(alive))
    assert stuck is not None
    assert (stuck.gate, command(stuck, "t_2")) == (Gate.LEASE, ("serve",))
    reading = gate_of(unserved(replace(TELLING, is_taken=True)))
    assert reading is not None
    assert reading.gate is Gate.LEASE
    paused = gate_of(unserved(replace(PAUSED, reason=Reason.PAUSE)))
    assert paused is not None
    assert paused.gate is Gate.PAUSED


def test_every_gate_has_a_case() -> None:
    assert {case[2] for case in CASES} == set(Gate)


@pytest.mark.parametrize(
    "facts",
    [
        AT,  # about to be claimed
        replace(AT, lanes=FULL, own=replace(OWN, due=101.0)),
        replace(AT, phase=Phase.RUNNING, own=replace(OWN, is_owned=True, lease_until=105.0)),
        replace(AT, phase=Phase.SPAWNING),
        replace(AT, phase=Phase.COMPLETED, delivery=Delivery.DELIVERED),
        replace(AT, phase=Phase.COMPLETED_GIVEUP, delivery=Delivery.SKIPPED),
        parked(Reason.QUOTA, 99.0),  # its time has come
        parked(Reason.RESTART, 90.0),
        replace(PAUSED, reason=Reason.CHILDREN),  # they have settled
        TELLING,
        replace(TELLING, is_seen=False),
        told(due=110.0),  # letters are being collected
        replace(TELLING, ready_at=None),
    ],
)
def test_whoever_works_or_is_about_to_waits_at_no_gate(facts: Facts) -> None:
    assert gate_of(facts) is None


def test_what_is_waited_for_is_named_by_ids() -> None:
    by_name = {case[0]: gate_of(case[1]) for case in CASES}

    def named(case: str) -> tuple[str, ...]:
        stuck = by_name[case]
        assert stuck is not None
        return waiting_for(stuck)

    assert named("ended before its children") == ("t_3", "t_4")
    assert named("asked a person") == ("q_7",)
    assert named("requester in a turn") == ("agent:main:main",)
    assert named("requester is a task") == ("t_9",)
    assert named("quota") == ()


@pytest.mark.parametrize(
    ("room", "questions", "gate"),
    [
        (MAIN, (), None),
        (replace(MAIN, is_held=True, working=(3, 4)), (), Gate.DESCENDANTS_ACTIVE),
        (replace(MAIN, is_held=True, working=(3,), has_run=True, is_owned=True, lease_until=120.0), (), None),
        (replace(MAIN, is_paused=True), ("q_1",), Gate.PAUSED),
        (replace(MAIN, has_run=True), ("q_1",), Gate.NEEDS_YOU),
        (replace(MAIN, is_owned=True, lease_until=10.0), (), Gate.LEASE),
    ],
)
def test_a_main_session_is_blocked_by_its_row_and_its_run(
    room: BlockingSession, questions: tuple[str, ...], gate: Gate | None
) -> None:
    stuck = session_gate(replace(AT, own=room, questions=questions))
    assert (None if stuck is None else stuck.gate) is gate
