"""Where a requester's reply goes: the bound thread, else what a hook says, else the route captured at spawn.

A route is stored as text, `channel:target`; the target is the plain `to`, or JSON when there is more to say. Two
letters share a turn only if their texts are the same, so the reply to one never reaches the other's people.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from functools import lru_cache

from clutch.core.model import Route

COUNTER = "api"  #: the channel of whoever talks through a gateway: words wait in the outbox until they are asked for
#: Nobody outside listens there, so a hook cannot send a reply to them.
INTERNAL_CHANNELS = frozenset({COUNTER, "internal", "hook"})
CHANNEL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
CHAT = "chat"  #: the thread of a chat in which its person types


class RouteMode(StrEnum):
    """In the words of a delivery trace: how was the route found?"""

    BOUND = "bound"
    HOOK = "hook"
    FALLBACK = "fallback"


def to_text(route: Route) -> str:
    return f"{route.channel}:{target(route)}"


def target(route: Route) -> str:
    """What a channel is given as the address."""
    plain = route.to or ""
    if route.account is None and route.thread is None and not plain.startswith("{"):
        return plain
    known = {"account": route.account, "to": route.to, "thread": route.thread}
    return json.dumps({name: part for name, part in known.items() if part is not None}, ensure_ascii=False)


@lru_cache(maxsize=1024)  # every turn of a session asks for the same few
def from_text(text: str) -> Route:
    channel, _, address = text.partition(":")
    if address.startswith("{"):
        return Route(channel, **json.loads(address))
    return Route(channel, to=address or None)


def at_counter(chat: str, name: str = CHAT) -> Route:
    """A thread of a chat, which is named by its session key. Neither a key nor a name has a slash in it."""
    return Route(COUNTER, thread=f"{chat}/{name}")


def chat_of(route: Route) -> str | None:
    """The session key of the chat that has this thread. None: another channel has it, or it is no thread."""
    if route.channel != COUNTER or route.thread is None:
        return None
    return route.thread.partition("/")[0]


def merged(captured: Route | None, current: Route | None) -> Route | None:
    """Missing parts of the captured route come from the current one, but only within the same channel."""
    if captured is None:
        return current
    if current is None or current.channel != captured.channel:
        return captured
    if captured.account is not None and captured.account != current.account:
        return captured
    return Route(
        captured.channel,
        captured.account or current.account,
        captured.to or current.to,
        captured.thread or (current.thread if captured.to in (None, current.to) else None),
    )


def choose(
    *, bound: Route | None, hook: Route | None, captured: Route | None, current: Route | None
) -> tuple[Route | None, RouteMode]:
    """`bound`: the thread of the child; `captured`: when it was spawned; `current`: of its requester, now."""
    if bound is not None:
        return merged(bound, captured), RouteMode.BOUND
    if hook is not None and hook.channel not in INTERNAL_CHANNELS:
        return hook, RouteMode.HOOK
    return merged(captured, current), RouteMode.FALLBACK
