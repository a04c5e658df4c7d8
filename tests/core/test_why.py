"""A timeline in plain words, each attempt to tell, and what to type when it is stuck."""

from __future__ import annotations

import pytest

from clutch.core.diagnosis import Blocker, BlockingSession, Gate
from clutch.core.model import WAITS, Phase, Reason
from clutch.core.text.why import DeliveryAttempt, TimelineEntry, happening, why_text


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
        (move(Phase.SPAWNING, Phase.QUEUED, Reason.ADMITTED), "spawned", "accepted; waits in the queue"),
        (move(Phase.RUNNING, Phase.RUNNING, Reason.RESUMED, "14"), "resumed", "another one went on at step 14"),
        (move(Phase.RUNNING, Phase.PAUSED, Reason.QUOTA), "parked", "rate limited"),
        (move(Phase.RUNNING, Phase.PAUSED, Reason.PAUSE, actor="person"), "parked", "paused by person"),
        (move(Phase.PAUSED, Phase.QUEUED, Reason.UNPAUSED, actor="person"), "unpaused", "resumed by person"),
        (move(Phase.ENDING, Phase.ANNOUNCING, Reason.OK, outcome="ok"), "announced", "the outcome is fixed (ok)"),
        (move(Phase.ANNOUNCING, Phase.ANNOUNCING, Reason.ATTEMPT, "2 failed: 429"), "attempt", "attempt 2 failed: 429"),
        (move(Phase.ANNOUNCING, Phase.CLEANUP_PENDING, Reason.DELIVERED, "direct"), "delivered", "answered the result"),
        (move(Phase.CLEANUP_PENDING, Phase.COMPLETED, Reason.DELIVERED, "direct"), "cleaned", "nothing is left to do"),
        (
            move(Phase.ANNOUNCING, Phase.CLEANUP_PENDING, Reason.UNDELIVERED, "expiry"), "undelivered",
            "kept as a dead letter",
        ),
        (
            move(Phase.RUNNING, Phase.CLEANUP_PENDING, Reason.KILLED, "enough", actor="api"), "killed",
            "killed by api: enough",
        ),
        (move(Phase.RUNNING, Phase.ENDING, Reason.ERROR, "broken"), "failed", "the run failed: broken"),
        (move(Phase.COMPLETED, Phase.COMPLETED, Reason.LATE, "but still"), "late", "kept: but still"),
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
    text = why_text(
        't_2 "survey": done',
        [move(Phase.QUEUED, Phase.RUNNING, Reason.STARTED)],
        [failed],
        stuck,
        "t_2",
        3620.0,
    )
    assert text.splitlines() == [
        't_2 "survey": done',
        "  00:00:00 UTC  a run started",
        "Telling:",
        "  01:00:00 UTC  attempt 1 to agent:main:main (main; bubbled from t_9, route fallback): failed (overloaded);"
        " next 01:00:01 UTC",
        "    left steer-primary: turn ended",
        "Waits at the gate paused since 00:58:20 UTC (2m00s).",
        "It opens when somebody resumes t_2.",
        "  clutch resume t_2",
    ]


def test_a_moment_of_another_day_says_which() -> None:
    stuck = Blocker(Gate.DEAD_LETTER, 3500.0, BlockingSession(2, "k"), until=3500.0 + 7 * 86_400)
    text = why_text("t_2", [move(Phase.QUEUED, Phase.RUNNING, Reason.STARTED)], [], stuck, "t_2", 90_000.0)
    assert "  1970-01-01 00:00:00 UTC  a run started" in text
    assert "it expires at 1970-01-08 00:58:20 UTC" in text


def test_a_letter_within_the_tree_has_no_route_to_speak_of() -> None:
    told = DeliveryAttempt(
        "k", "agent:a", 1, "requester", "", (), Reason.QUEUED, "queued", 1, 0.0, None, "delivered", "", 5, 7
    )
    assert "(nested; requester): delivered" in why_text("t_2", [], [told], None, "t_2", 0.0)
