"""Runs of schedules: from a stored schedule to the arguments of a spawn, and to the transaction that decides."""

from __future__ import annotations

from typing import Any

from clutch.core import ids
from clutch.core import schedule as rules
from clutch.core.schedule import ScheduleSpec
from clutch.core.spawn import SpawnRefusal, spawnable
from clutch.engine import spawn
from clutch.engine.live import SKIPPED, Live
from clutch.engine.services import Services
from clutch.errors import InvalidInput
from clutch.logs import logger
from clutch.transactions import schedules
from clutch.transactions.schedules import PlannedRun, ScheduleStepped, StoredSchedule

log = logger(__name__)


def arguments(schedule: ScheduleSpec) -> dict[str, Any]:
    """The arguments of a spawn, as an agent would write them."""
    budget = {"tokens": schedule.run_tokens, "usd": schedule.run_usd}
    said = {
        "task": schedule.task,
        "label": schedule.label or schedule.name,
        "agentId": schedule.agent_id,
        "model": schedule.model,
        "runTimeoutSeconds": schedule.run_timeout_s,
        "notifyParent": schedule.notify_parent,
        "budget": {name: _number(value) for name, value in budget.items() if value is not None} or None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _number(value: object) -> object:
    return value if isinstance(value, int) else str(value)


async def check(services: Services, schedule: ScheduleSpec) -> None:
    """Whether its runs would be accepted, whatever the limits are then. Raises InvalidInput."""
    await services.wanted_anew(arguments(schedule))
    own, asked = schedule.session_agent, schedule.agent_id
    if asked is not None and asked != own and asked not in (known := spawnable(services.policy, own)):
        rule = f"there is no agent {asked!r} that {own!r} may start{ids.hint(asked, known)}"
        raise InvalidInput("agentId", f"{rule}; `clutch agents list` shows all")


async def _planned(services: Services, found: StoredSchedule) -> PlannedRun:
    """What cannot be spawned under the present config is a refusal, which skips the slot."""
    schedule = found.schedule
    main = services.new_main(schedule.session, schedule.session_agent)
    try:
        request = await services.wanted_anew(arguments(schedule))
    except InvalidInput as error:
        return PlannedRun(found.id, rules.dump(schedule), main, SpawnRefusal(str(error)))
    return PlannedRun(
        found.id, rules.dump(schedule), main, spawn.order(services, request, f"schedule:{found.id}")
    )


async def run_due(services: Services, found: StoredSchedule) -> None:
    """Decide the slots of a schedule that are due, and start the run of one at most."""
    planned = await _planned(services, found)
    done = await services.db.alone(schedules.run_due, services.policy, planned, services.ids.nonce())
    await _follow(services, found, planned, done)


async def run_now(services: Services, found: StoredSchedule) -> ScheduleStepped | None:
    """Start a run beside the slots. Raises NotPossible while the last run works."""
    planned = await _planned(services, found)
    done = await services.db.alone(schedules.run_now, services.policy, planned, services.ids.nonce())
    await _follow(services, found, planned, done)
    return done


async def _follow(
    services: Services, found: StoredSchedule, planned: PlannedRun, done: ScheduleStepped | None
) -> None:
    """Tell watchers what was skipped, and ask the hooks about a run that is to be asked about."""
    if done is None:
        return
    for slots, reason in done.skipped:
        first, last = rules.local(found.schedule, slots.first), rules.local(found.schedule, slots.last)
        said = {"schedule": done.name, "first": first, "last": last, "slots": slots.count, "reason": reason}
        log.info("Schedule %s: %d slots skipped from %s on (%s)", done.name, slots.count, first, reason)
        services.bus.publish(Live(SKIPPED, 0, 0, said, is_task=False))
    if done.answer is not None and not isinstance(planned.order, SpawnRefusal):
        await spawn.finish(services, planned.order, done.answer)
