"""Planted bugs in the rules: the state machine, admission, and what a run takes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import wraps
from typing import Any

from clutch.core import events as fx
from clutch.core.events import Ended, Move, Woke
from clutch.core.model import LetterKind, Phase, Reason
from tests.trust.mutants.mutant import STORMS, Mutant

RUN, DELIVERY = "clutch.core.lifecycle_run", "clutch.core.lifecycle_delivery"


def _ignoring(key: str) -> Any:
    def plant(over: Any) -> tuple[Any, ...]:
        @wraps(over)
        def bug(name: str, used: int, allowed: int) -> Any:
            return None if name == key else over(name, used, allowed)

        return (bug,)

    return plant


def _no_depth(over: Any, tools_for: Any) -> tuple[Any, ...]:
    (ignoring,) = _ignoring("maxSpawnDepth")(over)

    @wraps(tools_for)
    def all_tools(about: Any, specs: Any) -> Any:
        del about
        return tuple(specs)

    return ignoring, all_tools


def _dead_parents_may(dead_parent: Any) -> tuple[Any, ...]:
    return (wraps(dead_parent)(lambda _: None),)


def _no_deferral(ended: Any) -> tuple[Any, ...]:
    @wraps(ended)
    def bug(story: Any, event: Ended) -> None:
        ended(story, replace(event, untold=0))

    return (bug,)


def _steer_keeps_generation(new_generation: Any) -> tuple[Any, ...]:
    @wraps(new_generation)
    def bug(story: Any, reason: Reason, **changes: Any) -> None:
        kept = {"generation": story.task.generation} if reason is Reason.STEERED else {}
        new_generation(story, reason, **(changes | kept))

    return (bug,)


def _steer_keeps_run(supersede: Any) -> tuple[Any, ...]:
    @wraps(supersede)
    def bug(story: Any) -> None:
        supersede(story)
        story.effects[:] = [effect for effect in story.effects if not isinstance(effect, fx.Stop)]

    return (bug,)


def _deferral_burns(requester_gone: Any) -> tuple[Any, ...]:
    @wraps(requester_gone)
    def bug(story: Any, event: Any) -> None:
        requester_gone(story, event)
        if story.moves:
            story.change(attempts=story.task.attempts + 1)

    return (bug,)


def _rings_for_nobody(alarm_rings: Any) -> tuple[Any, ...]:
    @wraps(alarm_rings)
    def bug(story: Any, event: Woke) -> None:
        alarm_rings(story, replace(event, is_owned=True))

    return (bug,)


def _forgets_result(delivered: Any) -> tuple[Any, ...]:
    @wraps(delivered)
    def bug(story: Any, event: Any) -> None:
        delivered(story, event)
        if story.moves:
            story.change(result=f"{story.task.result} (told)")

    return (bug,)


def _never_cuts(freeze: Any) -> tuple[Any, ...]:
    return (wraps(freeze)(lambda text, bytes_max=0: freeze(text, max(bytes_max, 10**9))),)


def _unchecked(story: Any, phase: Phase, reason: Reason, changes: dict[str, Any]) -> None:
    before = story.task
    story.task = after = before._replace(phase=phase, reason=reason, seq=before.seq + 1, **changes)
    story.moves.append(Move(before.phase, phase, reason, after.generation, after.outcome))


def _skips_ending(settle: Any) -> tuple[Any, ...]:
    """A shortcut: running → announcing, with the check of edges switched off for it."""

    @wraps(settle)
    def bug(story: Any, *args: Any, **kwargs: Any) -> None:
        to = story.to
        story.to = lambda phase, reason, **changes: (
            None if phase is Phase.ENDING else _unchecked(story, phase, reason, changes)
        )
        try:
            settle(story, *args, **kwargs)
        finally:
            story.to = to

    return (bug,)


def _background_first(choose: Any) -> tuple[Any, ...]:
    @wraps(choose)
    def bug(letters: Any, point: Any, **rules: Any) -> Any:
        others = [letter for letter in letters if letter.kind is not LetterKind.USER]
        return choose(others, point, **rules) or choose(letters, point, **rules)

    return (bug,)


def _old_error_stays(new_generation: Any) -> tuple[Any, ...]:
    @wraps(new_generation)
    def bug(story: Any, reason: Reason, **changes: Any) -> None:
        new_generation(story, reason, **({"error": story.task.error} | changes))

    return (bug,)


def _first_commit_wins(in_core: Any, in_protocol: Any, ring: Any) -> tuple[Any, ...]:
    """The alarm comes a little late, as in a process that is held up: by itself that does no harm."""

    @wraps(in_core)
    def never(deadline: float | None, at: float) -> bool:
        del deadline, at
        return False

    @wraps(ring)
    async def held_up(services: Any, alarms: Any) -> bool:
        if alarms:
            await asyncio.sleep(2.0)
        return bool(await ring(services, alarms))

    return never, wraps(in_protocol)(never), held_up


def _times_out_when_seen(time_out: Any) -> tuple[Any, ...]:
    @wraps(time_out)
    def bug(story: Any, partial: str | None) -> None:
        story.change(deadline_at=story.at)
        time_out(story, partial)

    return (bug,)


MUTANTS = (
    Mutant(
        "late_answer_is_ok",
        (f"{RUN}.is_past", "clutch.transactions.turn.is_past", "clutch.engine.worker.ring"),
        frozenset({"T6"}),
        ("sick", "deep", "storm"),
        _first_commit_wins,
        "an answer that arrives after the deadline counts if it is committed before the alarm rings",
    ),
    Mutant(
        "timeout_recorded_when_seen",
        (f"{RUN}.time_out",),
        frozenset({"T6"}),
        ("sick", "deep", "crash"),
        _times_out_when_seen,
        "a timeout is recorded when it is noticed, however late",
    ),
    Mutant(
        "children_not_counted",
        ("clutch.core.spawn._over",),
        frozenset({"T3"}),
        ("tight", "storm"),
        _ignoring("maxChildrenPerAgent"),
        "the limit of active children is not asked",
    ),
    Mutant(
        "depth_not_checked",
        ("clutch.core.spawn._over", "clutch.engine.open_run.tools_for"),
        frozenset({"N4"}),
        ("tight",),
        _no_depth,
        "a leaf has the spawn tool and nobody asks how deep it is",
    ),
    Mutant(
        "dead_parent_spawns",
        ("clutch.core.spawn._dead_parent",),
        frozenset({"N19"}),
        ("gone", "busy"),
        _dead_parents_may,
        "a closed session may have children",
    ),
    Mutant(
        "no_deferral",
        (f"{RUN}.ended",),
        frozenset({"N18"}),
        STORMS,
        _no_deferral,
        "a parent is announced while its children work",
    ),
    Mutant(
        "steer_keeps_generation",
        (f"{RUN}.new_generation",),
        frozenset({"T12", "T2", "N5"}),
        ("busy",),
        _steer_keeps_generation,
        "a steered run makes its result under the old name",
    ),
    Mutant(
        "steer_keeps_old_run",
        (f"{RUN}.supersede",),
        frozenset({"T12"}),
        ("busy",),
        _steer_keeps_run,
        "the superseded run is not stopped",
    ),
    Mutant(
        "deferral_burns_attempt",
        (f"{DELIVERY}.requester_gone",),
        frozenset({"T13"}),
        STORMS,
        _deferral_burns,
        "waiting for a requester counts as a failed try",
    ),
    Mutant(
        "deadline_without_owner",
        (f"{RUN}.alarm_rings",),
        frozenset({"T6"}),
        ("sick", "deep", "crash"),
        _rings_for_nobody,
        "a run times out while nobody works on it",
    ),
    Mutant(
        "result_changed_after_delivery",
        (f"{DELIVERY}.delivered",),
        frozenset({"T9"}),
        STORMS,
        _forgets_result,
        "telling a result edits it",
    ),
    Mutant(
        "result_not_cut",
        (f"{RUN}.freeze",),
        frozenset({"T9"}),
        STORMS,
        _never_cuts,
        "a result may have any size",
    ),
    Mutant(
        "illegal_edge",
        (f"{RUN}.settle",),
        frozenset({"T10"}),
        STORMS,
        _skips_ending,
        "a task goes from running straight to announcing",
    ),
    Mutant(
        "person_waits_for_announces",
        ("clutch.transactions.delivery.choose",),
        frozenset({"N17"}),
        ("busy",),
        _background_first,
        "background letters go before a person's words",
    ),
    Mutant(
        "again_with_the_old_error",
        (f"{RUN}.new_generation",),
        frozenset({"N5"}),
        ("busy", "sick"),
        _old_error_stays,
        "what is tried again still says why it failed",
    ),
)
