"""When an agent looks up by itself, and what of its last words is worth telling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.agents import ActiveHours, Heartbeat, Pulse, alert, pulse

RULES = Heartbeat()
OFFICE = Heartbeat(active_hours=ActiveHours("09:00", "17:00"))
NIGHT, NOON = 3 * 3600.0, 12 * 3600.0  # of the first day there was


def test_a_pulse_beats_for_a_reason_and_comes_back_after_a_while() -> None:
    assert pulse(RULES, now=100.0, has_reason=True) == Pulse(True, 1900.0)
    assert pulse(RULES, now=100.0, has_reason=False) == Pulse(False, 1900.0)


def test_without_a_schedule_it_beats_when_woken_and_then_sleeps() -> None:
    assert pulse(RULES, now=100.0, has_reason=True, is_regular=False) == Pulse(True, None)


def test_a_busy_session_is_tried_again_after_a_second_or_when_it_may_be_free() -> None:
    assert pulse(RULES, now=100.0, has_reason=True, free_at=100.0) == Pulse(False, 101.0)
    assert pulse(RULES, now=100.0, has_reason=True, free_at=160.0) == Pulse(False, 160.0)


@pytest.mark.scenario(151)
def test_outside_its_hours_a_pulse_is_deferred_to_their_start_or_for_ever() -> None:
    assert pulse(OFFICE, now=NIGHT, has_reason=True) == Pulse(False, 9 * 3600.0)
    assert pulse(OFFICE, now=NOON, has_reason=True) == Pulse(True, NOON + 1800)
    never = Heartbeat(active_hours=ActiveHours("09:00", "09:00"))
    assert pulse(never, now=NOON, has_reason=True) == Pulse(False, None)


@given(
    now=st.floats(0, 2e9),
    has_reason=st.booleans(),
    free_at=st.none() | st.floats(0, 2e9),
    rules=st.sampled_from([RULES, OFFICE]),
)
def test_the_next_look_always_lies_ahead(
    now: float, has_reason: bool, free_at: float | None, rules: Heartbeat
) -> None:
    found = pulse(rules, now=now, has_reason=has_reason, free_at=free_at)
    assert found.next_at is None or found.next_at > now
    assert not (found.beats and free_at is not None)


# ---- HEARTBEAT_OK ----------------------------------------------------------------------------------------


@pytest.mark.scenario(152)
@pytest.mark.parametrize(
    "reply",
    [
        "HEARTBEAT_OK",
        " HEARTBEAT_OK.\n",
        "HEARTBEAT_OK all is quiet",
        "all is quiet HEARTBEAT_OK",
        "**HEARTBEAT_OK**",
        "<b>HEARTBEAT_OK</b>",
        "`HEARTBEAT_OK` &nbsp;",
        "HEARTBEAT_OK\n" + "x" * 300,
        "x" * 300 + "\nHEARTBEAT_OK!",
        "HEARTBEAT_OK nothing HEARTBEAT_OK",
        "",
        "  \n",
        "NO_REPLY",
        "ANNOUNCE_SKIP",
    ],
)
def test_nothing_to_tell_is_told_to_nobody(reply: str) -> None:
    assert alert(reply, 300) is None


@pytest.mark.scenario(152)
@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ("the disk is full", "the disk is full"),
        (
            "it said HEARTBEAT_OK and then the disk was full",
            "it said HEARTBEAT_OK and then the disk was full",
        ),
        ("HEARTBEAT_OKAY then", "HEARTBEAT_OKAY then"),
        ("MY_HEARTBEAT_OK", "MY_HEARTBEAT_OK"),
        ("HEARTBEAT_OK\n" + "x" * 301, "x" * 301),
        ("x" * 301 + " HEARTBEAT_OK", "x" * 301),
        ("*HEARTBEAT_OK*\n- " + "x" * 301, "- " + "x" * 301),
    ],
)
def test_an_alert_is_told_without_the_token_at_its_ends(reply: str, told: str) -> None:
    assert alert(reply, 300) == told


@given(st.text(max_size=400))
def test_words_without_the_token_are_told_as_they_are(said: str) -> None:
    told = alert(said, 300)
    assert told is None or told == said.strip()
