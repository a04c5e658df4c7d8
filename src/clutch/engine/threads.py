"""Others who have a say: hooks may veto a spawn or bring a thread, a channel may open one, hooks may route a reply."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from clutch.core import keys, routes
from clutch.core.hooks import Hook
from clutch.core.model import Route
from clutch.engine.kit import Kit
from clutch.ports import HookFailed, Threaded, ThreadFailed
from clutch.protocol import preparing
from clutch.protocol import routes as routing
from clutch.protocol.preparing import Newcomer
from clutch.protocol.spawn import Accepted, Order

log = logging.getLogger(__name__)

VETO = "a hook does not allow it"


@dataclass(frozen=True, slots=True)
class Said:
    """What the spawning hooks had to say."""

    veto: str | None = None
    thread: Route | None = None
    warnings: tuple[str, ...] = ()


NOTHING_SAID: Final = Said()


async def ask_hooks(kit: Kit, order: Order, answer: Accepted) -> Said:
    """A hook that fails or takes too long is a warning, never a veto."""
    if kit.hooks is None or not order.request.is_asked_about:
        return NOTHING_SAID
    child = await _newcomer(kit, answer)
    heard = await kit.hooks.ask(Hook.SPAWNING, _told(order, answer, child))
    failures = [f"hook {Hook.SPAWNING}: {one}" for one in heard if isinstance(one, HookFailed)]
    for failure in failures:
        log.warning("hook failed", extra={"task": answer.task_id, "error": failure})
    answers = [one for one in heard if isinstance(one, Mapping)]
    veto = next((str(one.get("error") or VETO) for one in answers if one.get("ok") is False), None)
    brought = (_route(one.get("thread")) for one in answers)
    thread = next((found for found in brought if found is not None and found.thread is not None), None)
    return Said(veto, thread, tuple(failures))


async def thread_for(kit: Kit, order: Order, answer: Accepted, said: Said) -> Route | None:
    """What a hook brought, else the channel of the requester is asked. Raises ThreadFailed."""
    if not order.request.thread:
        return None
    if not kit.policy.threads.enabled:
        raise ThreadFailed("thread: threads are switched off (session.threadBindings.enabled)")
    if said.thread is not None:
        return said.thread
    child = await _newcomer(kit, answer)
    route = routes.from_text(child.route) if child.route else None
    if route is not None and route.channel == routes.COUNTER and route.to:
        return routes.at_counter(route.to, keys.task_id(answer.task_id))
    channel = None if route is None else kit.channels.get(route.channel)
    if route is None or not isinstance(channel, Threaded):
        where = "no channel" if route is None else f"the channel {route.channel!r}"
        raise ThreadFailed(f"thread: {where} of the requester has no threads, and no hook has brought one")
    patience_s = kit.policy.limits.reservation_s
    try:
        async with asyncio.timeout(patience_s):
            name = await channel.open_thread(routes.target(route), child.label, f"thread:{answer.task_id}")
    except TimeoutError as error:
        rule = f"thread: the channel {route.channel!r} has made none within {patience_s:g} s"
        raise ThreadFailed(rule) from error
    return Route(route.channel, route.account, None, name)


async def ask_targets(kit: Kit, session_id: int) -> None:
    """Before a main session reads results: where should its reply to each go? Asked once for each."""
    if kit.hooks is None or Hook.DELIVERY_TARGET not in kit.policy.hooks:
        return
    for letter in await kit.door.read(routing.unrouted, session_id):
        told = {
            "task": keys.task_id(letter.task_id),
            "session": letter.session_key,
            "requester": letter.requester_key,
            "route": letter.captured,
        }
        heard = await kit.hooks.ask(Hook.DELIVERY_TARGET, told)
        found = next((route for one in heard if (route := _route(one)) is not None), None)
        text = "" if found is None else routes.to_text(found)
        await kit.door.tx(session_id, routing.hooked, session_id, letter.letter_id, text)


async def _newcomer(kit: Kit, answer: Accepted) -> Newcomer:
    child = await kit.door.read(preparing.newcomer, answer.task_id)
    if child is None:
        raise ThreadFailed("the spawn was given up meanwhile")
    return child


def _told(order: Order, answer: Accepted, child: Newcomer) -> dict[str, Any]:
    return {
        "task": keys.task_id(answer.task_id),
        "session": child.session_key,
        "requester": child.requester_key,
        "agentId": child.agent_id,
        "label": child.label,
        "mode": order.request.mode,
        "threadRequested": order.request.thread,
        "route": child.route,
    }


def _route(said: object) -> Route | None:
    """`{channel, account?, to?, thread?}` as a stranger wrote it."""
    if not isinstance(said, Mapping):
        return None
    channel, *rest = (said.get(name) for name in ("channel", "account", "to", "thread"))
    if not isinstance(channel, str) or not all(
        part is None or (part and isinstance(part, str)) for part in rest
    ):
        return None
    return Route(channel, *rest) if channel and any(rest) else None
