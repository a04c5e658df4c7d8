"""`/subagents …`: every verb and every look at the children of a chat, in one line of words."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping

from clutch.core import keys
from clutch.core.authority import Verb
from clutch.core.shown import visible
from clutch.core.wording.lists import log_text
from clutch.engine.verbs import REASON_CHARS_MAX, Decided, SendStatus
from clutch.errors import NotFound
from clutch.gateway import reads
from clutch.gateway.chat import Chat, Command, Usage, first_word, named, nothing, only_word
from clutch.gateway.desk import EVERYBODY
from clutch.protocol import history, lists, needs_you, views
from clutch.protocol.control import KillReport, NotPossible
from clutch.protocol.questions import Decision

_OPTION = re.compile(r"\s--(model|thinking)(?:=|\s+)(\S+)")


# ---- looking -----------------------------------------------------------------------------------------


async def show_list(chat: Chat, text: str) -> str:
    nothing(text)
    policy = chat.kit.policy
    return await chat.look(
        Verb.LIST, chat.session_id, lists.children, policy, chat.who.viewer, chat.session_id
    )


async def show_tree(chat: Chat, text: str) -> str:
    nothing(text)
    policy = chat.kit.policy
    return await chat.look(Verb.LIST, chat.session_id, lists.tree, policy, chat.who.viewer, chat.session_id)


async def log(chat: Chat, text: str) -> str:
    target, rest = first_word(text)
    rules = chat.kit.policy.history
    count, with_tools = rules.log, False
    for word in rest.split():
        if word == "tools":
            with_tools = True
        elif re.fullmatch(r"[0-9]{1,9}", word) and int(word):
            count = min(int(word), rules.limit_max)
        else:
            raise Usage
    task = await chat.task(target)
    shown = await chat.look(Verb.READ, task, history.history, task, rules, count, None, with_tools)
    return log_text(shown)


async def info(chat: Chat, text: str) -> str:
    task = await chat.task(only_word(text))
    return await chat.look(Verb.READ, task, lists.about, chat.kit.policy, task)


async def why(chat: Chat, text: str) -> str:
    target = only_word(text)
    task = await chat.task(target)
    found = await chat.look(Verb.READ, task, reads.why, chat.who, target)
    return str(found["text"])


# ---- acting ------------------------------------------------------------------------------------------


async def kill(chat: Chat, text: str) -> str:
    target, reason = first_word(text)
    reason = reason[:REASON_CHARS_MAX] or "killed"
    if target == EVERYBODY:
        alive = await chat.kit.door.read(lists.alive, chat.session_id)
        return killed(await chat.verbs.kill_all(chat.caller, alive, reason))
    return killed(await chat.verbs.kill(chat.caller, await chat.task(target), reason))


def killed(report: KillReport) -> str:
    lines = [
        f"Stopped {len(report.stopped)}: {named(report.stopped)}." if report.stopped else "Nothing to stop."
    ]
    if report.already_finished:
        lines.append(f"Already finished: {named(report.already_finished)}.")
    lines += [f"Not stopped: {keys.task_id(task)} ({why})." for task, why in report.not_stopped]
    return "\n".join(lines if report.stopped or len(lines) == 1 else lines[1:])


async def send(chat: Chat, text: str) -> str:
    target, words = _with_words(text)
    task = await chat.task(target)
    sent = await chat.verbs.send(chat.caller, task, words, None, chat.key)
    match sent.status:
        case SendStatus.OK:
            return f"{keys.task_id(task)} replies: {sent.reply}"
        case SendStatus.ACCEPTED:
            return f"Sent to {keys.task_id(task)}."
        case SendStatus.TIMEOUT:
            return f"Sent to {keys.task_id(task)}; no reply yet."


async def steer(chat: Chat, text: str) -> str:
    target, words = _with_words(text)
    task = await chat.task(target)
    await chat.verbs.steer(chat.caller, task, words, chat.key)
    return f"Steered {keys.task_id(task)}."


def _with_words(text: str) -> tuple[str, str]:
    target, words = first_word(text)
    if not words:
        raise Usage
    return target, words


async def spawn(chat: Chat, text: str) -> str:
    options = dict(_OPTION.findall(text))
    agent_id, task = first_word(_OPTION.sub("", text))
    if not task:
        raise Usage
    wanted = {"task": task, "agentId": agent_id, "idempotencyKey": chat.key, **options}
    said = await chat.gateway.spawn(wanted, chat.session_key, "reject")
    if said["status"] != "accepted":
        return f"Not spawned: {said['error']}"
    return "\n".join([f"Spawned {said['taskId']}: {visible(said['label'], 200)}.", *said.get("warnings", ())])


async def pause(chat: Chat, text: str) -> str:
    changed = await chat.verbs.pause(chat.caller, await chat.task(only_word(text)))
    return f"Paused: {named(changed)}." if changed else "Nothing to pause."


async def resume(chat: Chat, text: str) -> str:
    changed = await chat.verbs.resume(chat.caller, await chat.task(only_word(text)))
    return f"Resumed: {named(changed)}." if changed else "Nothing was paused."


async def retry(chat: Chat, text: str) -> str:
    target, words = first_word(text)
    task = await chat.verbs.retry(chat.caller, await chat.task(target), words, chat.key)
    return f"{keys.task_id(task.id)} starts anew."


async def continue_(chat: Chat, text: str) -> str:
    target, words = first_word(text)
    task = await chat.verbs.continue_(chat.caller, await chat.task(target), words, chat.key)
    return f"{keys.task_id(task.id)} goes on."


async def approve(chat: Chat, text: str) -> str:
    target, words = first_word(text)
    if (question := keys.parse_question_id(target)) is not None:
        return await _answer(chat, question, Decision.APPROVE, words)
    task = await chat.task(target)
    return _decided(await chat.verbs.approve(chat.caller, task, await _plan(chat, Verb.APPROVE, task), words))


async def reject(chat: Chat, text: str) -> str:
    target, words = first_word(text)
    if (question := keys.parse_question_id(target)) is not None:
        return await _answer(chat, question, Decision.REJECT, words)
    task = await chat.task(target)
    return _decided(await chat.verbs.reject(chat.caller, task, await _plan(chat, Verb.REJECT, task), words))


async def _plan(chat: Chat, verb: Verb, task: int) -> str:
    """Of the plan as it is when the command is read: there is no room for a hash in a chat."""
    view = await chat.look(verb, task, views.one, task)
    if view is None:
        raise NotFound(f"there is no task {keys.task_id(task)}")
    if view.plan is None or view.plan.hash is None:
        raise NotPossible(f"{keys.task_id(task)} has no plan that waits for a decision")
    return view.plan.hash


async def _answer(chat: Chat, question: int, decision: Decision, words: str) -> str:
    """Something else of the inbox, as it is when the command is read: a call, a budget, a tool that changed."""
    name = keys.question_id(question)
    items = await chat.kit.door.read(needs_you.waiting, reads.own_root(chat.who))
    seen = next((item.hash for item in items if item.id == name), None)
    if seen is None:
        raise NotFound(f"nothing in the inbox is called {name}")
    await chat.verbs.answer(chat.caller, question, decision, words, seen)
    return f"{name}: {'approved' if decision is Decision.APPROVE else 'rejected'}."


def _decided(decided: Decided) -> str:
    task = keys.task_id(decided.task_id)
    words = {"approved": "goes on as planned", "revising": "plans again", "ended": "was ended"}
    return f"{task} {words[decided.status]}."


async def redeliver(chat: Chat, text: str) -> str:
    task = await chat.verbs.redeliver(chat.caller, await chat.task(only_word(text)))
    return f"The result of {keys.task_id(task.id)} is told again."


async def dismiss(chat: Chat, text: str) -> str:
    task = await chat.verbs.dismiss(chat.caller, await chat.task(only_word(text)))
    return f"The result of {keys.task_id(task.id)} need not be told."


async def remove(chat: Chat, text: str) -> str:
    task = await chat.verbs.remove(chat.caller, await chat.task(only_word(text)))
    return f"Removed {keys.task_id(task.id)}."


async def show_help(chat: Chat, text: str) -> str:
    del chat
    nothing(text)
    return "\n".join(dict.fromkeys(command.usage for command in ACTIONS.values()))


def _command(usage: str, run: Callable[[Chat, str], Awaitable[str]]) -> Command:
    return Command(f"/subagents {usage}", run)


ACTIONS: Mapping[str, Command] = {
    "list": _command("[list]", show_list),
    "tree": _command("tree", show_tree),
    "kill": _command("kill <target|all> [reason]", kill),
    "stop": _command("kill <target|all> [reason]", kill),
    "log": _command("log <target> [n] [tools]", log),
    "info": _command("info <target>", info),
    "why": _command("why <target>", why),
    "send": _command("send <target> <text>", send),
    "steer": _command("steer <target> <text>", steer),
    "spawn": _command("spawn <agent> <task> [--model m] [--thinking level]", spawn),
    "approve": _command("approve <target> [text]", approve),
    "reject": _command("reject <target> [text]", reject),
    "pause": _command("pause <target>", pause),
    "resume": _command("resume <target>", resume),
    "retry": _command("retry <target> [text]", retry),
    "continue": _command("continue <target> [text]", continue_),
    "redeliver": _command("redeliver <target>", redeliver),
    "dismiss": _command("dismiss <target>", dismiss),
    "remove": _command("remove <target>", remove),
    "help": _command("help", show_help),
}


async def subagents(chat: Chat, text: str) -> str:
    word, _, rest = text.partition(" ")
    action = ACTIONS.get(word or "list")
    if action is None:
        near = keys.nearest(word, ACTIONS)
        hint = f" Did you mean {near}?" if near else ""
        return f"There is no /subagents {visible(word, 40)}.{hint}\n{await show_help(chat, '')}"
    return await action.answer(chat, rest)
