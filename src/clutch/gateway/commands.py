"""Slash commands: a line that a person types in any chat, and the text that answers it.

They run through the same verbs and the same guard as every other door. Whatever goes wrong is said in the
answer; only a store that fails is the surface's to handle.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from clutch.core import keys, queueing, routes
from clutch.core.authority import EVERY_SCOPE, OperatorCaller, Verb
from clutch.core.model import Route
from clutch.core.shown import tokens, visible
from clutch.errors import (
    AmbiguousTarget,
    ClutchError,
    IdempotencyConflict,
    InvalidInput,
    NotFound,
    StoreError,
)
from clutch.gateway import subagent_commands
from clutch.gateway.chat import Chat, Command, nothing, only_word
from clutch.protocol import bindings, control, inbox, lists, replies, threads

if TYPE_CHECKING:
    from clutch.gateway.local import Gateway

PERSON = OperatorCaller(EVERY_SCOPE, "chat")
#: `/etc/passwd` is no command, and neither is `/ hello`.
_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)


def is_command(text: str) -> bool:
    return _COMMAND.fullmatch(text.strip()) is not None


async def run_command(
    gateway: Gateway, session_key: str, line: str, caller: OperatorCaller = PERSON, key: str | None = None
) -> str:
    """`key`: the same line with the same key acts once, and is answered the same. Raises IdempotencyConflict."""
    found = _COMMAND.fullmatch(line.strip())
    command = None if found is None else COMMANDS.get(found[1])
    if found is None or command is None:
        return _unknown(line)
    session_id, agent_id = await gateway.session(session_key)
    own_key = key or gateway.kit.ids.uuid4()
    chat = Chat(gateway, caller, session_key, session_id, agent_id, own_key, routes.at_counter(session_key))
    answer = partial(_answered, command, chat, found[2])
    return await answer() if key is None else await _once(chat, line, answer)


async def run_in_thread(
    gateway: Gateway, session_key: str, line: str, thread: Route, caller: OperatorCaller, key: str
) -> str:
    """The chat is the session that has the thread; if none has, `session_key`."""
    found = _COMMAND.fullmatch(line.strip())
    command = None if found is None else COMMANDS.get(found[1])
    if found is None or command is None:
        return _unknown(line)
    door = gateway.kit.door
    bound = await door.read(bindings.session_of, *bindings.name(thread))
    session_id = (await gateway.session(session_key))[0] if bound is None else bound
    about = await door.read(lists.status, session_id)
    chat = Chat(gateway, caller, about.key, session_id, about.agent_id, key, thread)
    return await _once(chat, line, partial(_answered, command, chat, found[2]))


async def _once(chat: Chat, line: str, answer: Callable[[], Awaitable[str]]) -> str:
    """Two at the same moment: the second waits for the answer of the first."""
    door, key = chat.kit.door, f"command:{chat.key}"
    asked = hashlib.sha256(line.encode("utf-8", "surrogatepass")).hexdigest()
    async with chat.gateway.under_way.setdefault(key, asyncio.Lock()):
        kept = await door.read(replies.kept, key)
        if kept is None:
            said = await answer()
            await door.alone(replies.keep, key, asked, 200, said)
            return said
    if kept.request != asked:
        raise IdempotencyConflict()
    return kept.body


async def _answered(command: Command, chat: Chat, words: str | None) -> str:
    try:
        return await command.answer(chat, words or "")
    except StoreError:
        raise
    except (NotFound, AmbiguousTarget) as error:
        return "\n".join((f"{error}", *(f"  {one}" for one in error.candidates)))
    except ClutchError as error:
        return str(error)


def _unknown(line: str) -> str:
    word = line.strip().split(maxsplit=1)[0].removeprefix("/") if line.strip() else ""
    near = keys.nearest(word, COMMANDS)
    hint = f" Did you mean /{near}?" if near else ""
    return f"There is no command /{visible(word, 40)}.{hint} There are: {', '.join(f'/{name}' for name in COMMANDS)}"


# ---- this session --------------------------------------------------------------------------------------


async def stop(chat: Chat, text: str) -> str:
    nothing(text)
    report = await chat.verbs.stop(chat.caller, chat.session_id)
    own = "Stopped this turn" if report.own_run else "No turn was running here"
    return f"{own} and {len(report.stopped)} subagents."


async def begin_anew(chat: Chat, text: str) -> str:
    nothing(text)
    await chat.look(Verb.SEND, chat.session_id, control.begin_anew, chat.kit.policy, chat.session_id)
    return "A new talk begins. Subagents go on."


async def compact(chat: Chat, text: str) -> str:
    nothing(text)
    await chat.look(Verb.SEND, chat.session_id, control.want_summary, chat.session_id)
    return "What was said so far is summarised before the next turn."


async def model(chat: Chat, text: str) -> str:
    if not text:
        about = await chat.look(Verb.READ, chat.session_id, lists.status, chat.session_id)
        return f"Model: {about.model or chat.kit.policy.model_of(chat.agent_id)}"
    wanted = only_word(text)
    if chat.kit.check_model is not None:
        chat.kit.check_model(wanted)
    await chat.look(Verb.SEND, chat.session_id, control.use_model, chat.session_id, wanted)
    return f"Model: {wanted}, from the next turn on."


async def queue(chat: Chat, text: str) -> str:
    try:
        wanted = queueing.parse(text)
    except ValueError as error:
        raise InvalidInput("queue", str(error)) from error
    await chat.look(Verb.SEND, chat.session_id, inbox.set_queue, chat.kit.policy, chat.session_id, wanted)
    return f"Queue: {text}"


async def agents(chat: Chat, text: str) -> str:
    nothing(text)
    policy = chat.kit.policy
    known = dict.fromkeys((chat.agent_id, *sorted(policy.agents)))
    return "\n".join(f"{one} · {policy.model_of(one)}" for one in known)


async def status(chat: Chat, text: str) -> str:
    nothing(text)
    about = await chat.look(Verb.READ, chat.session_id, lists.status, chat.session_id)
    used = about.used
    return "\n".join(
        (
            f"Session: {about.key}",
            f"Model: {about.model or chat.kit.policy.model_of(about.agent_id)}",
            f"State: {'in a turn' if about.is_running else 'idle'}, {about.waiting} letters wait",
            f"Subagents: {about.children_active} active, {about.children_total} in all",
            f"Tokens: {tokens(used.tokens)} (in {tokens(used.input)} / out {tokens(used.output)}), {used.calls} calls",
        )
    )


async def focus(chat: Chat, text: str) -> str:
    task = await chat.task(only_word(text))
    await chat.look(Verb.SEND, task, threads.focus, chat.kit.policy, task, chat.thread, chat.caller.actor)
    return f"What is written here goes to {keys.task_id(task)} now; /unfocus takes it back."


async def unfocus(chat: Chat, text: str) -> str:
    nothing(text)
    owner = await chat.kit.door.read(bindings.session_of, *bindings.name(chat.thread))
    if owner is None:
        return "What is written here goes to no subagent."
    await chat.look(Verb.SEND, owner, threads.unfocus, chat.kit.policy, chat.thread, chat.caller.actor)
    return "What is written here goes to no subagent any more."


COMMANDS: Mapping[str, Command] = {
    "subagents": Command("/subagents [action] …", subagent_commands.subagents),
    "kill": Command("/kill <target|all> [reason]", subagent_commands.kill),
    "steer": Command("/steer <target> <text>", subagent_commands.steer),
    "tell": Command("/tell <target> <text>", subagent_commands.send),
    "stop": Command("/stop", stop),
    "new": Command("/new", begin_anew),
    "reset": Command("/reset", begin_anew),
    "compact": Command("/compact", compact),
    "model": Command("/model [name]", model),
    "queue": Command(queueing.USAGE, queue),
    "agents": Command("/agents", agents),
    "focus": Command("/focus <target>", focus),
    "unfocus": Command("/unfocus", unfocus),
    "status": Command("/status", status),
}
