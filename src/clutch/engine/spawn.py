"""Spawning, for all surfaces: the order, the transaction, the side work, the answer.

With side work the task is reserved, its files are made, then it is queued; or all of it is undone.
Contents of attachments live in the spawn call until they are on disk: an agent's call is in its transcript, and the
worker that resumes its run after a crash writes them again; a program that got no answer still has its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias, TypeGuard

from clutch.core import delivery
from clutch.core import ids as ids_rules
from clutch.core.attachments import FileVersion, receipt
from clutch.core.forecast import BudgetLeft, Forecast, plain
from clutch.core.model import Hook, Phase, Route, Workspace
from clutch.core.spawn import SpawnRefusal, SpawnRequest
from clutch.core.text import prices as text
from clutch.core.text import prompts
from clutch.engine.services import Services
from clutch.engine.task_files import drop
from clutch.errors import InvalidInput
from clutch.logs import logger
from clutch.ports import (
    FilesFailed,
    HookFailed,
    SideWorkFailed,
    Threaded,
    ThreadFailed,
    WorkspaceFailed,
)
from clutch.transactions import inbox, task_files
from clutch.transactions.sessions import ThreadTaken
from clutch.transactions.spawn import Accepted, ChildRequest, spawn
from clutch.transactions.task_files import Newcomer

# --------------------------------------------------------------------------------------------------
# Hooks may veto a spawn, bring a thread or route a reply; a channel may open a thread.

log = logger(__name__)

VETO = "a hook does not allow it"


@dataclass(frozen=True, slots=True)
class HookReply:
    """The joined answers of the hooks `spawning`."""

    veto: str | None = None
    thread: Route | None = None
    warnings: tuple[str, ...] = ()


NOTHING_SAID: Final = HookReply()


async def ask_hooks(services: Services, order: ChildRequest, answer: Accepted) -> HookReply:
    """A hook that fails or takes too long is a warning, never a veto."""
    if services.hooks is None or not order.request.is_asked_about:
        return NOTHING_SAID
    child = await _newcomer(services, answer)
    heard = await services.hooks.ask(Hook.SPAWNING, _told(order, answer, child))
    failures = [f"hook {Hook.SPAWNING}: {one}" for one in heard if isinstance(one, HookFailed)]
    for failure in failures:
        log.warning(
            "Spawn of %s continues although a hook failed: %s", ids_rules.task_id(answer.task_id), failure
        )
    answers = [one for one in heard if isinstance(one, Mapping)]
    veto = next((str(one.get("error") or VETO) for one in answers if one.get("ok") is False), None)
    brought = (_route(one.get("thread")) for one in answers)
    thread = next((found for found in brought if found is not None and found.thread is not None), None)
    return HookReply(veto, thread, tuple(failures))


async def thread_for(
    services: Services, order: ChildRequest, answer: Accepted, said: HookReply
) -> Route | None:
    """The thread that a hook brought, else one that the channel of the parent opens. Raises ThreadFailed."""
    if not order.request.thread:
        return None
    if not services.policy.threads.enabled:
        raise ThreadFailed("thread: threads are switched off (session.threadBindings.enabled)")
    if said.thread is not None:
        return said.thread
    child = await _newcomer(services, answer)
    route = delivery.from_text(child.route) if child.route else None
    if route is not None and route.channel == delivery.LOCAL_CHANNEL and route.to:
        return delivery.local_route(route.to, ids_rules.task_id(answer.task_id))
    channel = None if route is None else services.channels.get(route.channel)
    if route is None or not isinstance(channel, Threaded):
        where = "no channel" if route is None else f"the channel {route.channel!r}"
        raise ThreadFailed(f"thread: {where} of the requester has no threads, and no hook has brought one")
    patience_s = services.policy.limits.reservation_s
    try:
        async with asyncio.timeout(patience_s):
            name = await channel.open_thread(delivery.target(route), child.label, f"thread:{answer.task_id}")
    except TimeoutError as error:
        rule = f"thread: the channel {route.channel!r} has made none within {patience_s:g} s"
        raise ThreadFailed(rule) from error
    return Route(route.channel, route.account, None, name)


async def ask_targets(services: Services, session_id: int) -> None:
    """Before a main session reads results: ask the hooks where its reply to each goes. Asked once for each result."""
    if services.hooks is None or Hook.DELIVERY_TARGET not in services.policy.hooks:
        return
    for letter in await services.db.read(inbox.unrouted, session_id):
        told = {
            "task": ids_rules.task_id(letter.task_id),
            "session": letter.session_key,
            "requester": letter.requester_key,
            "route": letter.captured,
        }
        heard = await services.hooks.ask(Hook.DELIVERY_TARGET, told)
        found = next((route for one in heard if (route := _route(one)) is not None), None)
        text = "" if found is None else delivery.to_text(found)
        await services.db.tx(session_id, inbox.hooked, session_id, letter.letter_id, text)


async def _newcomer(services: Services, answer: Accepted) -> Newcomer:
    child = await services.db.read(task_files.newcomer, answer.task_id)
    if child is None:
        raise ThreadFailed("the spawn was given up meanwhile")
    return child


def _told(order: ChildRequest, answer: Accepted, child: Newcomer) -> dict[str, Any]:
    return {
        "task": ids_rules.task_id(answer.task_id),
        "session": child.session_key,
        "requester": child.requester_key,
        "agentId": child.agent_id,
        "label": child.label,
        "mode": order.request.mode,
        "threadRequested": order.request.thread,
        "route": child.route,
    }


def _route(said: object) -> Route | None:
    """Parse `{channel, account?, to?, thread?}` as a hook wrote it."""
    if not isinstance(said, Mapping):
        return None
    channel, *rest = (said.get(name) for name in ("channel", "account", "to", "thread"))
    if not isinstance(channel, str) or not all(
        part is None or (part and isinstance(part, str)) for part in rest
    ):
        return None
    return Route(channel, *rest) if channel and any(rest) else None


#: A text: the side work failed and nothing is left of the spawn.
Spawned: TypeAlias = Accepted | SpawnRefusal | str
NO_WORKSPACES = "workspace: no directory for isolated workspaces is configured here"
NO_FILES = "attachments: no directory for files is configured here"
STILL_SPAWNING = "idempotencyKey: a spawn with this key is still under way; ask again"
PAUSE_S = 0.05
LATE_TICKS = 10  # a reservation that ran out is undone by the next worker that looks at the alarms


def order(services: Services, request: SpawnRequest, key: str, place: int = 0) -> ChildRequest:
    """`key`: of this call. A key that the caller chose replaces it, and is the same on all surfaces."""
    chosen = request.idempotency_key
    return ChildRequest(
        key if chosen is None else f"key:{chosen}", services.ids.next(), services.ids.uuid4(), request, place
    )


def named_anew(services: Services, wanted: ChildRequest) -> ChildRequest:
    return replace(wanted, child_id=services.ids.next(), uuid=services.ids.uuid4())


async def spawn_all(
    services: Services, session_id: int, root_id: int, fence: int | None, orders: Sequence[ChildRequest]
) -> list[Spawned]:
    """All spawns of one answer in one transaction, then the side work of each that has some."""
    answers = await services.db.tx(
        (root_id, session_id), spawn, services.policy, session_id, root_id, orders, fence=fence
    )
    if not any(map(_is_unfinished, answers)):
        return list(answers)
    pairs = zip(orders, answers, strict=True)
    again = partial(spawn_all, services, session_id, root_id, fence)
    return list(
        await asyncio.gather(*(_brought_about(services, one, answer, again) for one, answer in pairs))
    )


def _is_unfinished(answer: Accepted | SpawnRefusal) -> TypeGuard[Accepted]:
    """Whether side work is left. Most spawns have none, and their answer is complete."""
    return isinstance(answer, Accepted) and answer.is_spawning


async def _brought_about(
    services: Services,
    wanted: ChildRequest,
    answer: Accepted | SpawnRefusal,
    again: Callable[[Sequence[ChildRequest]], Awaitable[list[Spawned]]],
) -> Spawned:
    if not _is_unfinished(answer):
        return answer
    if answer.is_new or not wanted.request.digest:
        return await _prepared(services, wanted, answer)
    # The first user of a key that a caller chose may be alive and at work. The first user of a call's own key is dead,
    # or this worker is not the owner of the run.
    phase = await _left_to_others(services, answer.task_id)
    if phase is None:
        return (await again([named_anew(services, wanted)]))[0]
    return STILL_SPAWNING if phase is Phase.SPAWNING else answer._replace(is_spawning=False)


async def finish(services: Services, wanted: ChildRequest, answer: Accepted | SpawnRefusal) -> None:
    """The side work of a spawn that another transaction made."""
    if _is_unfinished(answer):
        await _prepared(services, wanted, answer)


async def _left_to_others(services: Services, task_id: int) -> Phase | None:
    """The phase that another process brought the task to. None: its alarm undid the spawn, and the task is gone."""
    patience_s = services.policy.limits.reservation_s + LATE_TICKS * services.policy.work.tick_s
    for _ in range(math.ceil(patience_s / PAUSE_S)):
        phase = await services.db.read(task_files.phase_of, task_id)
        if phase is not Phase.SPAWNING:
            return phase
        await asyncio.sleep(PAUSE_S)
    return Phase.SPAWNING


async def _prepared(services: Services, wanted: ChildRequest, answer: Accepted) -> Spawned:
    try:
        said = await ask_hooks(services, wanted, answer)
        if said.veto is not None:
            await undo(services, answer.task_id, said.veto)
            return SpawnRefusal(said.veto)
        path = await _side_work(services, wanted, answer)
        thread = await thread_for(services, wanted, answer, said)
    except Exception as error:  # noqa: BLE001 - whatever failed, nothing of the spawn may stay
        is_told = isinstance(error, SideWorkFailed)
        why = str(error) if is_told else f"side work: {type(error).__name__}: {error}"
        await undo(services, answer.task_id, why)
        return why
    known = (services.policy, answer.task_id, path, thread)
    try:
        files = services.session_files
        place = None if files is None else files.place
        is_wanted = await services.db.tx(answer.task_id, task_files.ready, *known, place=place)
    except ThreadTaken as error:
        await undo(services, answer.task_id, str(error), has_thread=True)
        return str(error)
    if not is_wanted:
        await drop(services, [answer.task_id])
        return "the spawn was given up before its files were made"
    return answer._replace(warnings=(*answer.warnings, *said.warnings)) if said.warnings else answer


async def _side_work(services: Services, wanted: ChildRequest, answer: Accepted) -> str | None:
    """The path of its own workspace, if it has one."""
    if wanted.request.attachments:
        if services.files is None:
            raise FilesFailed(NO_FILES)
        await services.files.put(FileVersion(answer.task_id), wanted.request.attachments)
    if wanted.request.workspace is not Workspace.ISOLATED:
        return None
    if services.workspaces is None:
        raise WorkspaceFailed(NO_WORKSPACES)
    return await services.workspaces.make(answer.task_id, answer.workspace or ".")


async def undo(services: Services, task_id: int, why: str, *, has_thread: bool = False) -> None:
    """The row goes first: a process that still makes the files learns from it that they are not wanted any more."""
    if await services.db.alone(task_files.undo, services.policy, task_id, why, has_thread):
        await drop(services, [task_id])


def wrong(error: InvalidInput) -> dict[str, object]:
    """The answer to arguments that make no sense."""
    return {"status": "error", "error": str(error), "code": "invalid_input", "field": error.field}


def answer(wanted: ChildRequest, got: Spawned) -> dict[str, object]:
    """The answer of `sessions_spawn`, as all surfaces return it."""
    if isinstance(got, str):
        return {"status": "error", "error": got}
    if isinstance(got, SpawnRefusal):
        if got.is_conflict:
            return {"status": "error", "error": got.error, "code": "idempotency_conflict"}
        return {"status": "forbidden", "error": got.error} | ({"limit": dict(got.limit)} if got.limit else {})
    request = wanted.request
    note = prompts.spawn_note(
        expects_completion=request.expects_completion,
        plan_mode=request.plan_mode,
        notify_parent=request.notify_parent,
    )
    ids: dict[str, object] = {
        "taskId": ids_rules.task_id(got.task_id),
        "runId": ids_rules.run_id(got.task_id),  # of its first run, see `turn_begin.begin`
        "childSessionKey": got.session_key,
    }
    if got.is_dry:
        ids, note = {"dryRun": True, **dict.fromkeys(ids)}, "This would be accepted now. Nothing was started."
    said = {
        "status": "accepted",
        **ids,
        "label": got.label,
        "mode": request.mode,
        "model": got.model,
        "thinking": got.thinking,
        "context": got.context,
        "note": note,
        "warnings": list(got.warnings),
    }
    if got.price is not None:
        said["forecast"] = _forecast(*got.price)
    if request.attachments:
        said["attachments"] = receipt(file.stored for file in request.attachments)
    return said


def _forecast(price: Forecast, left: BudgetLeft) -> dict[str, object]:
    """What such tasks cost; null where it is not known, or where there is no limit."""
    return {
        "basis": price.basis,
        "samples": price.samples,
        "count": price.count,
        "tokens": None
        if price.tokens is None
        else {"median": int(price.tokens.median), "p90": int(price.tokens.p90)},
        "usd": None
        if price.usd is None
        else {"median": plain(price.usd.median), "p90": plain(price.usd.p90)},
        "budgetLeft": {"tokens": left.tokens, "usd": None if left.usd is None else plain(left.usd)},
        "text": " ".join(filter(None, (text.price(price), text.left(left)))),
    }
