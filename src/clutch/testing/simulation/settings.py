"""The kinds of simulated worlds: how many gateways and main sessions, which limits, how much goes wrong.

Times are shorter than the product's defaults, so that every timer rings within a few virtual minutes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from clutch.core.model import Lane, Outcome
from clutch.core.policy import (
    Announcing,
    Budgets,
    Direct,
    Drop,
    ExpiryFrom,
    Keeping,
    Life,
    Limits,
    OnBudget,
    Policy,
    QueueMode,
    Threads,
    Work,
)


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    about: str
    gateways: int = 3
    mains: int = 8
    children: int = 4  #: in one answer, at most
    depth_max: int = 2
    severity: float = 1.0  #: of the faults; 0 = none
    nemesis_s: float = 5.0  #: between two visits
    meddle_s: float = 2.5  #: between two wishes of the person; 0 = it only starts things
    storm_s: float = 30.0
    leaves_s: float = (
        0.0  #: between a main session's leaving and coming back; 0 = only when the nemesis says so
    )
    rolls_s: float = 0.0  #: between two processes that are stopped in good order; 0 = only by the nemesis
    tidies_s: float = 0.0  #: between two times that something is thrown away, or wanted after all; 0 = seldom
    provider: float = 1.0  #: how much sicker than usual
    is_lockstep: bool = False
    is_tight: bool = False
    has_modes: bool = False
    asks: float = 0.02  #: of the steps: they need a person
    thrift: float = 0.05  #: of the main sessions and of the children: they have a budget
    company_s: float = 0.0  #: between two doings of agents and people that talk to each other; 0 = they don't


HEALTHY: Final = 5.0  #: how sick a provider may be so that most results are delivered in the end


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        setting.name: setting
        for setting in (
            Setting("calm", "nothing goes wrong and no user meddles", severity=0.0, meddle_s=0.0, gateways=2),
            Setting(
                "crash", "processes die and freeze, stores fail", severity=2.0, nemesis_s=3.0, meddle_s=0.0
            ),
            Setting("busy", "a person who cannot sit still", severity=0.4, meddle_s=1.2),
            Setting("storm", "everything at once"),
            Setting("tight", "small limits and full lanes", is_tight=True, meddle_s=2.0, children=5),
            Setting("modes", "every way to queue, drop and end", has_modes=True, gateways=2),
            Setting("deep", "children of children of children", depth_max=3, children=3, mains=6, gateways=2),
            Setting(
                "gone",
                "requesters leave and come back",
                leaves_s=3.0,
                severity=2.0,
                nemesis_s=8.0,
                meddle_s=1.5,
            ),
            Setting(
                "upgrade",
                "processes are stopped in good order, one after the other, whatever they are doing",
                rolls_s=2.0,
                severity=0.5,
                provider=4.0,
                nemesis_s=10.0,
            ),
            Setting("tidy", "what is over is thrown away, and wanted after all", tidies_s=0.5, gateways=2),
            Setting("sick", "a provider that fails all the time", provider=6.0, severity=0.7, gateways=2),
            Setting(
                "thrift",
                "small budgets, and much to ask people",
                asks=0.12,
                thrift=0.4,
                meddle_s=1.2,
                severity=0.8,
                gateways=2,
            ),
            Setting("lockstep", "everything at once, in batches without isolation", is_lockstep=True),
            Setting(
                "company", "agents gossip, threads stay, things happen", company_s=0.7, mains=5, gateways=2
            ),
        )
    }
)


def policy_of(setting: Setting, rng: random.Random) -> Policy:
    return Policy(
        limits=_limits(setting, rng),
        life=_life(rng),
        announcing=_announcing(setting, rng),
        work=_work(setting),
        keeping=_keeping(rng),
        budgets=_budgets(setting, rng),
        threads=Threads(idle_s=20.0, age_max_s=rng.choice((0.0, 40.0))) if setting.company_s else Threads(),
    )


def _limits(setting: Setting, rng: random.Random) -> Limits:
    kills = MappingProxyType(dict.fromkeys((Outcome.TIMEOUT, Outcome.ERROR), "kill"))
    return Limits(
        children_max=2 if setting.is_tight else rng.choice((3, 5)),
        depth_max=setting.depth_max,
        descendants_max=4 if setting.is_tight else 12,
        retained_max=4 if setting.is_tight else 15,
        undelivered_max=2 if setting.is_tight else 50,
        reservation_s=10.0,
        on_parent_end=kills if setting.has_modes and rng.random() < 0.5 else MappingProxyType({}),
    )


def _budgets(setting: Setting, rng: random.Random) -> Budgets:
    """A root's is given to some main sessions only; a day's is everybody's."""
    return Budgets(
        root_tokens=rng.choice((150, 400, 900)),
        day_tokens=rng.choice((500, 1500)) if setting.thrift > rng.random() * 2 else None,
        on_budget=rng.choice((OnBudget.ASK, OnBudget.ASK, OnBudget.WRAP_UP, OnBudget.END)),
        output_tokens=10,
    )


def _life(rng: random.Random) -> Life:
    return Life(
        error_grace_s=rng.choice((1.0, 5.0)),
        result_bytes_max=4096,
        settle_expiry_s=rng.choice((15.0, 50.0)),
        settle_expiry_from=rng.choice((ExpiryFrom.PROGRESS, ExpiryFrom.PROGRESS, ExpiryFrom.END)),
        provider_retries_s=(1.0, 3.0),
        quota_wait_max_s=60.0,
        plan_rounds_max=2,
        plan_expiry_s=rng.choice((0.0, 0.0, 15.0)),
    )


def _announcing(setting: Setting, rng: random.Random) -> Announcing:
    # With a provider that fails all the time, half of the worlds give up after the first try.
    gives_up = setting.provider > HEALTHY and rng.random() < 0.5
    return Announcing(
        fast_tries=1 if gives_up else 3,
        slow=not gives_up,
        inline_chars_max=600,
        mode=rng.choice(list(QueueMode)) if setting.has_modes else QueueMode.AUTO,
        drop=rng.choice(list(Drop)) if setting.has_modes else Drop.SUMMARIZE,
        cap=2 if setting.has_modes or setting.is_tight else 20,
        debounce_s=rng.choice((0.2, 1.0)),
        fast_max_s=4.0,
        slow_first_s=5.0,
        slow_max_s=15.0,
        until_s=rng.choice((20.0, 60.0)),
        until_no_completion_s=15.0,
        send_timeout_s=5.0,
        direct=rng.choice(list(Direct)) if setting.has_modes else Direct.TURN,
        dead_letter_days=rng.choice((7.0, 20.0 / 86_400)),
    )


def _keeping(rng: random.Random) -> Keeping:
    archive_after_s = rng.choice((0.0, 20.0, 60.0))
    transcript_after_s = rng.choice((None, None, 0.0, 15.0))
    return Keeping(
        archive_after_s=archive_after_s,
        transcript_after_s=transcript_after_s,
        timeline_after_s=transcript_after_s,
        sweep_s=10.0,
        cleanup_first_s=10.0,
        cleanup_max_s=30.0,
    )


def _work(setting: Setting) -> Work:
    lanes = {Lane.MAIN: 2, Lane.SUBAGENT: 3} if setting.is_tight else {Lane.MAIN: 5, Lane.SUBAGENT: 14}
    return Work(lanes=MappingProxyType(lanes), lease_s=10.0, tick_s=2.0, stop_s=4.0, tool_grace_s=1.0)
