"""A timeline in plain words, each attempt to tell, and what to type when it is stuck."""

from __future__ import annotations

import pytest

from clutch.core.diagnosis import Blocker, BlockingSession, Gate
from clutch.core.model import WAITS, Phase, Reason
from clutch.core.text.why import DeliveryAttempt, TimelineEntry, blocked_text, happening, why_lines


def move(
    came: Phase,
    went: Phase,
    reason: Reason,
    detail: str = "",
    *,
    actor: str = "clutch",
    outcome: str | None = None,
) -> TimelineEntry:
    return TimelineEntry(1, 0.0, actor, came, went, reason, 1, outcome, detail)


@pytest.mark.parametrize(
    ("line", "word", "text"),
    [
        (move(Phase.SPAWNING, Phase.QUEUED, Reason.ADMITTED), "spawned", "Accepted and queued."),
        (
            move(Phase.RUNNING, Phase.RUNNING, Reason.RESUMED, "14"), "resumed",
            "Its worker was lost. Resumed at step 14.",
        ),
        (move(Phase.RUNNING, Phase.PAUSED, Reason.QUOTA), "parked", "Rate limited"),
        (move(Phase.RUNNING, Phase.PAUSED, Reason.PAUSE, actor="person"), "parked", "Paused by person."),
        (move(Phase.PAUSED, Phase.QUEUED, Reason.UNPAUSED, actor="person"), "unpaused", "Resumed by person."),
        (
            move(Phase.ENDING, Phase.ANNOUNCING, Reason.OK, outcome="ok"), "announced",
            "Completed: ok. Result sent to the parent agent.",
        ),
        (
            move(Phase.ANNOUNCING, Phase.ANNOUNCING, Reason.ATTEMPT, "2 failed: 429"), "attempt",
            "Delivery attempt 2 failed: 429.",
        ),
        (
            move(Phase.ANNOUNCING, Phase.CLEANUP_PENDING, Reason.DELIVERED, "direct"), "delivered",
            "Delivered to the parent agent.",
        ),
        (move(Phase.CLEANUP_PENDING, Phase.COMPLETED, Reason.DELIVERED, "direct"), "cleaned", "Cleanup finished."),
        (
            move(Phase.ANNOUNCING, Phase.CLEANUP_PENDING, Reason.UNDELIVERED, "expiry"), "undelivered",
            "Undelivered: retries expired. Kept in the dead-letter queue.",
        ),
        (
            move(Phase.RUNNING, Phase.CLEANUP_PENDING, Reason.KILLED, "enough", actor="api"), "killed",
            "Killed by api: enough.",
        ),
        (move(Phase.RUNNING, Phase.ENDING, Reason.ERROR, "broken"), "failed", "Run failed: broken."),
        (
            move(Phase.COMPLETED, Phase.COMPLETED, Reason.LATE, "but still"), "late",
            "Arrived after the end, and kept: but still",
        ),
        (move(Phase.RUNNING, Phase.RUNNING, Reason.NOTE, "something new"), "note", "something new"),
        (move(Phase.COMPLETED, Phase.QUEUED, Reason.NOTE, "something new"), "moved", "something new"),
    ],
)  # fmt: skip
def test_each_line_has_a_fixed_word_and_a_sentence(line: TimelineEntry, word: str, text: str) -> None:
    said = happening(line)
    assert said[0] == word
    assert text in said[1]


@pytest.mark.parametrize("wait", sorted(WAITS))
def test_every_wait_has_a_sentence(wait: Reason) -> None:
    assert happening(move(Phase.RUNNING, Phase.PAUSED, wait))[0] == "parked"


def test_foreign_words_cannot_begin_a_line_of_their_own() -> None:
    evil = move(
        Phase.RUNNING,
        Phase.CLEANUP_PENDING,
        Reason.KILLED,
        "x\n  00:00:01 UTC  all is well",
        actor="a\nb {rest}",
    )
    assert "\n" not in happening(evil)[1]


@pytest.mark.scenario(202)
def test_each_attempt_is_printed_with_target_depth_route_paths_number_and_next_try() -> None:
    failed = DeliveryAttempt(
        "announce:v1:k:1", "agent:main:main", 0, "bubbled from t_9", "fallback", (("steer-primary", "turn ended"),),
        Reason.FAILED, "queued", 1, 3600.0, 3601.0, "failed", "overloaded", 5, 7,
    )  # fmt: skip
    stuck = Blocker(Gate.PAUSED, 3500.0, BlockingSession(2, "k"))
    lines = why_lines(
        [move(Phase.QUEUED, Phase.RUNNING, Reason.STARTED)],
        [failed],
        stuck,
        "t_2",
        now=3620.0,
    )
    assert list(lines) == [
        "  00:00:00 UTC  Started.",
        "Delivery:",
        "  01:00:00 UTC  attempt 1 to agent:main:main (main; bubbled from t_9, route fallback): failed (overloaded);"
        " next 01:00:01 UTC",
        "    left steer-primary: turn ended",
        "Blocked: t_2 is paused. It resumes when a user resumes it.",
        "  since 00:58:20 UTC (2m00s) -> clutch resume t_2",
    ]


def test_a_moment_of_another_day_says_which() -> None:
    stuck = Blocker(Gate.DEAD_LETTER, 3500.0, BlockingSession(2, "k"), until=3500.0 + 7 * 86_400)
    started = move(Phase.QUEUED, Phase.RUNNING, Reason.STARTED)
    text = "\n".join(why_lines([started], [], stuck, "t_2", now=90_000.0))
    assert "  1970-01-01 00:00:00 UTC  Started." in text
    assert "it expires at 1970-01-08 00:58:20 UTC" in text


def test_a_delivery_names_the_session_that_it_reached() -> None:
    line = move(Phase.ANNOUNCING, Phase.CLEANUP_PENDING, Reason.DELIVERED, "direct")
    reached = DeliveryAttempt(
        "k",
        "agent:main:main",
        0,
        "requester",
        "",
        (),
        Reason.DIRECT,
        "direct",
        1,
        0.0,
        None,
        "delivered",
        "",
        5,
        7,
    )
    assert "  00:00:00 UTC  Delivered to agent:main:main." in list(
        why_lines([line], [reached], None, "t_2", now=0.0)
    )


def test_a_busy_parent_is_named_as_what_blocks_the_delivery() -> None:
    busy = Blocker(Gate.REQUESTER_BUSY, 0.0, BlockingSession(1, "agent:main:main", is_task=False))
    assert blocked_text(busy) == (
        "Blocked: the parent agent is busy. The result is delivered when its current turn ends."
    )
    deferred = move(Phase.ANNOUNCING, Phase.ANNOUNCING, Reason.DEFERRED, Reason.BUSY)
    assert happening(deferred) == ("deferred", "Deferred: the parent agent is busy.")


def test_a_letter_within_the_tree_has_no_route_to_speak_of() -> None:
    told = DeliveryAttempt(
        "k", "agent:a", 1, "requester", "", (), Reason.QUEUED, "queued", 1, 0.0, None, "delivered", "", 5, 7
    )
    assert "(nested; parent): delivered" in "\n".join(why_lines([], [told], None, "t_2", now=0.0))
