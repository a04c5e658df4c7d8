"""Settings: what breaks a rule cannot be made, and the error names the field and the rule in the program's words."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from clutch.core.agents import (
    ActiveHours,
    Agent,
    AgentDefaults,
    Delegation,
    Heartbeat,
    OnFull,
    Subagents,
    roster,
)
from clutch.core.authority import ToolPolicy
from clutch.core.compaction import ContextLimits
from clutch.core.model import Outcome, Thinking
from clutch.core.policy import Announcing, Budgets, Life, Limits, Policy, Work
from clutch.errors import InvalidInput

ANYTHING: Any = "5"


@pytest.mark.parametrize(
    ("make", "field", "rule"),
    [
        (lambda: Limits(children_max=ANYTHING), "Limits.children_max", "must be a whole number, not '5'"),
        (lambda: Limits(children_max=True), "Limits.children_max", "must be a whole number, not True"),
        (lambda: Limits(children_max=-1), "Limits.children_max", "must not be negative"),
        (lambda: Limits(depth_max=6), "Limits.depth_max", "must be at most 5"),
        (lambda: Limits(reservation_s=float("nan")), "Limits.reservation_s", "without end"),
        (lambda: Limits(allow_agents={"a"}), "Limits.allow_agents", "must be a frozenset, each text"),  # type: ignore[arg-type]
        (lambda: Limits(allow_agents=frozenset({"A"})), "Limits.allow_agents", "agent id 'A' is not valid"),
        (lambda: Limits(on_parent_end={Outcome.OK: "kill"}), "Limits.on_parent_end", "timeout, error and lost"),
        (lambda: Limits(on_parent_end={Outcome.LOST: "die"}), "Limits.on_parent_end", '"kill" or "continue"'),
        (lambda: Life(wrap_up_at=1.5), "Life.wrap_up_at", "at most 1"),
        (lambda: Life(provider_retries_s=(1, "2")), "Life.provider_retries_s", "a tuple, each a number"),  # type: ignore[arg-type]
        (lambda: Announcing(mode="steer"), "Announcing.mode", "one of QueueMode.AUTO"),  # type: ignore[arg-type]
        (lambda: Announcing(jitter=1), "Announcing.jitter", "below 1"),
        (lambda: Work(lanes={}), "Work.lanes", "main and subagent"),
        (lambda: Work(lanes=8), "Work.lanes", "a mapping from one of Lane.MAIN"),  # type: ignore[arg-type]
        (lambda: Budgets(day_usd=20), "Budgets.day_usd", "a Decimal or None"),  # type: ignore[arg-type]
        (lambda: Budgets(day_usd=Decimal(-1)), "Budgets.day_usd", "must not be negative"),
        (lambda: ContextLimits(window_tokens="128k"), "ContextLimits.window_tokens", "a whole number"),  # type: ignore[arg-type]
        (lambda: ToolPolicy(deny=["shell"]), "ToolPolicy.deny", "a frozenset"),  # type: ignore[arg-type]
        (lambda: Policy(limits=5), "Policy.limits", "must be a Limits(…), not 5"),  # type: ignore[arg-type]
        (lambda: Policy(is_headless=1), "Policy.is_headless", "True or False"),  # type: ignore[arg-type]
        (lambda: Policy(agents={"a": Agent("b")}), "Policy.agents", "'a' is the agent 'b'"),
        (lambda: Policy(agents=[Agent("a")]), "Policy.agents", "a mapping from text to an Agent(…)"),  # type: ignore[arg-type]
        (lambda: Agent("Research"), "Agent.id", "agent id 'Research' is not valid"),
        (lambda: Agent("a" * 65), "Agent.id", "at most 64"),
        (lambda: Agent("a", model=" "), "agent 'a', model", "must be a name"),
        (lambda: Agent("a", thinking="high"), "Agent.thinking", "Thinking.HIGH"),  # type: ignore[arg-type]
        (lambda: Agent("a", sandbox="off"), "Agent.sandbox", "True or False or None"),  # type: ignore[arg-type]
        (lambda: Delegation(allow_agents=frozenset({"x/y"})), "Delegation.allow_agents", "'x/y' is not valid"),
        (lambda: AgentDefaults(model=5), "AgentDefaults.model", "must be text, not 5"),  # type: ignore[arg-type]
        (lambda: Subagents(run_timeout_s=-1), "Subagents.run_timeout_s", "must not be negative"),
        (lambda: Subagents(on_full="wait"), "Subagents.on_full", "OnFull.REJECT"),  # type: ignore[arg-type]
        (lambda: Heartbeat(every_s=0), "Heartbeat.every_s", "leave the heartbeat out"),
        (lambda: Heartbeat(target=" "), "Heartbeat.target", "last, none or a route"),
        (lambda: roster([Agent("a"), Agent("a")]), "agents", "there are two agents 'a'"),
        (lambda: roster(["a"]), "agents", "must be Agent(…), not str"),  # type: ignore[list-item]
    ],
)  # fmt: skip
def test_a_setting_that_breaks_a_rule_cannot_be_made(
    make: Callable[[], object], field: str, rule: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        make()
    assert error.value.field == field
    assert rule in error.value.rule


def test_an_error_repeats_only_the_beginning_of_a_value() -> None:
    with pytest.raises(InvalidInput) as error:
        Limits(children_max="x" * 10_000)  # type: ignore[arg-type]
    assert len(str(error.value)) < 200


def test_an_agent_that_is_not_listed_has_the_defaults() -> None:
    policy = Policy(
        agents=roster([Agent("a", model="p:a", workspace="/a")]),
        defaults=AgentDefaults(model="p:m", workspace="/m"),
    )
    assert (policy.model_of("a"), policy.workspace_of("a")) == ("p:a", "/a")
    assert (policy.model_of("b"), policy.workspace_of("b")) == ("p:m", "/m")


def test_what_the_config_gives_an_agent() -> None:
    agent = Agent(
        "a",
        sandbox=False,
        network=False,
        tools=ToolPolicy(deny=frozenset({"shell"})),
        models=frozenset({"p:*"}),
    )
    policy = Policy(Limits(depth_max=2), agents=roster([agent]), defaults=AgentDefaults(sandbox=True))
    given = policy.grant("a")
    assert (given.depth_max, given.sandbox, given.network, given.models) == (
        2,
        False,
        False,
        frozenset({"p:*"}),
    )
    assert not given.tools.permits("shell")
    assert policy.grant("b").sandbox
    assert policy.grant("b").tools.permits("shell")


def test_defaults_are_those_of_the_documents() -> None:
    assert Subagents() == Subagents(None, None, 0.0, on_full=OnFull.QUEUE)
    beat = Heartbeat()
    assert (beat.every_s, beat.ack_chars_max, beat.coalesce_s, beat.busy_retry_s) == (1800, 300, 0.25, 1)
    assert (beat.dedupe_s, beat.events_max, beat.target) == (86_400, 20, "last")
    assert Agent("a", thinking=Thinking.LOW).heartbeat is None


# ---- active hours ------------------------------------------------------------------------------------


@pytest.mark.scenario(151)
@pytest.mark.parametrize(
    ("start", "end", "timezone", "field"),
    [
        ("9:00", "17:00", "UTC", "activeHours.start"),
        ("24:00", "17:00", "UTC", "activeHours.start"),
        ("09:00", "25:00", "UTC", "activeHours.end"),
        ("09:00", "17:00", "Mars/Base", "activeHours.timezone"),
        ("09:00", "17:00", "../etc/passwd", "activeHours.timezone"),
        ("09:00", "17:00", "", "activeHours.timezone"),
        ("09:00", "17:00", "Europe", "activeHours.timezone"),
    ],
)
def test_hours_that_make_no_sense_are_refused_when_they_are_made(
    start: str, end: str, timezone: str, field: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        ActiveHours(start, end, timezone)
    assert error.value.field == field


def at(hour: int, minute: int = 0) -> float:
    return datetime(2026, 7, 1, hour, minute, tzinfo=UTC).timestamp()


@pytest.mark.scenario(151)
@pytest.mark.parametrize(
    ("start", "end", "timezone", "moment", "minutes"),
    [
        ("09:00", "17:00", "UTC", at(9), 0),
        ("09:00", "17:00", "UTC", at(17), 16 * 60),
        ("09:00", "24:00", "UTC", at(23, 59), 0),
        ("22:00", "06:00", "UTC", at(5, 59), 0),
        ("22:00", "06:00", "UTC", at(6), 16 * 60),
        ("09:00", "09:00", "UTC", at(9), None),
        ("09:00", "17:00", "Europe/Berlin", at(7), 0),
        ("09:00", "17:00", "Europe/Berlin", at(6, 30), 30),
    ],
)
def test_outside_its_hours_an_agent_waits_for_their_start(
    start: str, end: str, timezone: str, moment: float, minutes: int | None
) -> None:
    opens = None if minutes is None else moment + 60 * minutes
    assert ActiveHours(start, end, timezone).opens_at(moment) == opens
