"""Slash commands: a line that a user types in any chat, and the text that answers it.

They run the same actions under the same rules as every other surface. What goes wrong is said in the answer; only a
store that fails is left to the surface."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from clutch.api import actions, reads
from clutch.api.actions import ALL_TASKS, ActionCall, Actions, ApiAction, B
from clutch.core import delivery, ids
from clutch.core.authority import EVERY_SCOPE, OperatorCaller, Verb
from clutch.core.model import Route
from clutch.core.questions import Decision, Operators, within
from clutch.core.text.format import UNKNOWN, counted, tokens, visible
from clutch.core.text.tasks import log_text
from clutch.core.views import Tally
from clutch.engine.actions import REASON_CHARS_MAX, PlanDecision, SendStatus, TaskActions
from clutch.engine.services import Services
from clutch.errors import (
    AmbiguousTarget,
    ClutchError,
    Forbidden,
    IdempotencyConflict,
    InvalidInput,
    NotFound,
    StoreError,
)
from clutch.ports import Channel, Operated
from clutch.store.transaction import Tx, TxFunction
from clutch.transactions import control, idempotency, messages, sessions, wake
from clutch.transactions.authority import guarded
from clutch.transactions.control import NotPossible
from clutch.transactions.read import status as status_reads
from clutch.transactions.read import targets, tasks
from clutch.transactions.read import transcripts as session_reads
from clutch.transactions.read.targets import Standpoint
from clutch.transactions.sessions import Bound

if TYPE_CHECKING:
    from clutch.api import objects
    from clutch.api.gateway import Gateway

# --------------------------------------------------------------------------------------------------
# A user at a chat: who writes, where, and how the text of a command is read.

T = TypeVar("T")
P = ParamSpec("P")

MAIN_SESSION = "agent:main:main"  #: the session of a message that names none

_WORD = re.compile(r'\s*(?:"([^"]*)"|(\S+))')


class CommandUsageError(Exception):
    """The text does not fit the command; the answer shows its usage."""


@dataclass(frozen=True, slots=True)
class Chat:
    """`key`: of this message; a message that is sent again acts once."""

    gateway: Gateway
    caller: OperatorCaller
    session_key: str
    session_id: int
    agent_id: str
    key: str
    thread: Route  #: in which the line was written

    @property
    def services(self) -> Services:
        return self.gateway.services

    @property
    def task_actions(self) -> TaskActions:
        return TaskActions(self.services)

    @property
    def who(self) -> Standpoint:
        return Standpoint(self.caller, f"chat:{self.session_id}", self.session_id, self.agent_id)

    async def task(self, text: str) -> int:
        return await self.services.db.read(targets.task, text, self.who)

    async def look(
        self, verb: Verb, session_id: int, fn: TxFunction[P, T], *args: P.args, **named: P.kwargs
    ) -> T:
        """Run a read, or a write of what belongs to this chat alone, if the caller may."""

        def act(now: float) -> Tx[T]:
            return fn(now, *args, **named)

        return await self.services.db.alone(guarded, self.caller, verb, session_id, act)


@dataclass(frozen=True, slots=True)
class Command:
    """`usage` begins with its name."""

    usage: str
    run: Callable[[Chat, str], Awaitable[str]]

    async def answer(self, chat: Chat, text: str) -> str:
        try:
            return await self.run(chat, text.strip())
        except CommandUsageError:
            return f"Usage: {self.usage}"


def first_word(text: str) -> tuple[str, str]:
    """Return a word, or several in double quotes, and the rest. Raises CommandUsageError when there is none."""
    found = _WORD.match(text)
    word = "" if found is None else found[1] if found[1] is not None else found[2]
    if found is None or not word:
        raise CommandUsageError
    return word, text[found.end() :].strip()


def only_word(text: str) -> str:
    word, rest = first_word(text)
    if rest:
        raise CommandUsageError
    return word


def nothing(text: str) -> None:
    if text:
        raise CommandUsageError


# --------------------------------------------------------------------------------------------------
# `/subagents …`: every action and every read on the children of a chat, in one line.

_OPTION = re.compile(r"\s--(model|thinking|share|priority)(?:=|\s+)(\S+)")


def _command(usage: str, run: Callable[[Chat, str], Awaitable[str]]) -> Command:
    return Command(f"/subagents {usage}", run)


# ---- looking -----------------------------------------------------------------------------------------


async def show_list(chat: Chat, text: str) -> str:
    nothing(text)
    own = chat.session_id
    return await chat.look(Verb.LIST, own, status_reads.children, chat.services.policy, chat.who.viewer, own)


async def show_tree(chat: Chat, text: str) -> str:
    nothing(text)
    own = chat.session_id
    return await chat.look(Verb.LIST, own, status_reads.tree, chat.services.policy, chat.who.viewer, own)


async def log(chat: Chat, text: str) -> str:
    target, rest = first_word(text)
    rules = chat.services.policy.history
    count, with_tools = rules.log, False
    for word in rest.split():
        if word == "tools":
            with_tools = True
        elif re.fullmatch(r"[0-9]{1,9}", word) and int(word):
            count = min(int(word), rules.limit_max)
        else:
            raise CommandUsageError
    task = await chat.task(target)
    shown = await chat.look(
        Verb.READ, task, session_reads.history, task, rules, limit=count, with_tools=with_tools
    )
    return log_text(shown)


async def info(chat: Chat, text: str) -> str:
    task = await chat.task(only_word(text))
    return await chat.look(Verb.READ, task, status_reads.about, chat.services.policy, task)


async def why(chat: Chat, text: str) -> str:
    target = only_word(text) if text.strip() else chat.session_key
    session = (await chat.services.db.read(reads.session, chat.who, target)).session_id
    found = await chat.look(Verb.READ, session, reads.why, chat.who, target)
    return str(found["text"])


# ---- acting ------------------------------------------------------------------------------------------


def _acting(
    action: ApiAction[B], say: Callable[[str, Any], str], name: str = "", target: str = "<target>"
) -> Command:
    """The command of a declared action: the rest of the line is the text of its body, if it has one."""
    asked = next(iter(fields(action.body)), None)
    needs_text = asked is not None and asked.default is MISSING

    async def run(chat: Chat, line: str) -> str:
        meant, text = first_word(line)
        if (text and asked is None) or (needs_text and not text):
            raise CommandUsageError
        # A long reason is cut: it is a remark in the timeline. A long message is refused by the action.
        text = text[:REASON_CHARS_MAX] if action is actions.KILL else text
        body = action.body(**({asked.name: text} if asked is not None and text else {}))
        caller = chat.caller
        if meant == ALL_TASKS and action is actions.KILL:
            caller = replace(caller, within=chat.session_id)
        else:
            meant = ids.task_id(await chat.task(meant))
        return say(meant, await action.run(Actions(chat.services), ActionCall(caller, meant, body, chat.key)))

    shown = "" if asked is None else f" <{asked.name}>" if needs_text else f" [{asked.name}]"
    return _command(f"{name or action.name} {target}{shown}", run)


def _killed(_: str, done: objects.KilledObject) -> str:
    lines = [f"Already finished: {', '.join(done['alreadyFinished'])}."] if done["alreadyFinished"] else []
    lines += [f"Still stopping: {one['taskId']} ({one['why']})." for one in done["stillStopping"]]
    lines += [f"Not stopped: {one['taskId']} ({one['why']})." for one in done["notStopped"]]
    stopped = done["stopped"]
    if stopped:
        lines.insert(0, f"Stopped {len(stopped)}: {', '.join(stopped)}.")
    return "\n".join(lines) or "Nothing to stop."


def _sent(task: str, done: objects.Sent) -> str:
    match SendStatus(done["status"]):
        case SendStatus.OK:
            reply = done.get("reply")
            return f"{task} has read it and did not reply." if reply is None else f"{task} replies: {reply}"
        case SendStatus.ACCEPTED:
            return f"Sent to {task}."
        case SendStatus.TIMEOUT:
            return f"Sent to {task}; no reply yet."


def _paused(_: str, done: objects.Changed) -> str:
    return f"Paused: {', '.join(done['changed'])}." if done["changed"] else "Nothing to pause."


def _resumed(_: str, done: objects.Changed) -> str:
    return f"Resumed: {', '.join(done['changed'])}." if done["changed"] else "Nothing was paused."


async def spawn(chat: Chat, text: str) -> str:
    options = dict(_OPTION.findall(text))
    agent_id, task = first_word(_OPTION.sub("", text))
    if not task:
        raise CommandUsageError
    wanted = {"task": task, "agentId": agent_id, "idempotencyKey": chat.key, "notifyParent": True, **options}
    said = await chat.gateway.spawn(wanted, chat.session_key, "reject")
    if said["status"] != "accepted":
        return f"Not spawned: {said['error']}"
    return "\n".join([f"Spawned {said['taskId']}: {visible(said['label'], 200)}.", *said.get("warnings", ())])


async def decide(chat: Chat, text: str, decision: Decision) -> str:
    """Not through the declared actions: they take the hash that a client has shown, and require a reason."""
    target, message = first_word(text)
    try:
        item = await chat.services.db.read(reads.inbox_item, chat.who, target)
    except NotFound:
        if ids.parse_question_id(target) is not None:
            raise
    else:
        if (question := ids.parse_question_id(item["id"])) is not None:
            await chat.task_actions.answer(chat.caller, question, decision, message, item["hash"])
            return f"{item['id']}: {'approved' if decision is Decision.APPROVE else 'rejected'}."
    task = await chat.task(target)
    if decision is Decision.APPROVE:
        seen = await _plan(chat, Verb.APPROVE, task)
        return _decided(await chat.task_actions.approve(chat.caller, task, seen, message))
    seen = await _plan(chat, Verb.REJECT, task)
    return _decided(await chat.task_actions.reject(chat.caller, task, seen, message))


async def _plan(chat: Chat, verb: Verb, task: int) -> str:
    """Return the hash of the plan as it is when the command is read: a user does not type a hash in a chat."""
    view = await chat.look(verb, task, tasks.one, task)
    if view is None:
        raise NotFound(f"there is no task {ids.task_id(task)}")
    if view.plan is None or view.plan.hash is None:
        raise NotPossible(f"{ids.task_id(task)} has no plan that waits for a decision")
    return view.plan.hash


def _decided(decided: PlanDecision) -> str:
    task = ids.task_id(decided.task_id)
    said = {"approved": "continues with its plan", "revising": "revises its plan", "ended": "was ended"}
    return f"{task} {said[decided.status]}."


async def show_help(chat: Chat, text: str) -> str:
    del chat
    nothing(text)
    return "\n".join(dict.fromkeys(command.usage for command in ACTIONS.values()))


_KILL = _acting(actions.KILL, _killed, target="<target|all>")
_SEND = _acting(actions.SEND, _sent)
_STEER = _acting(actions.STEER, lambda task, _: f"Steered {task}.")
_ARCHIVE = _acting(actions.REMOVE, lambda task, _: f"Archived {task}.", "archive")

ACTIONS: Mapping[str, Command] = {
    "list": _command("[list]", show_list),
    "tree": _command("tree", show_tree),
    "kill": _KILL,
    "stop": _KILL,
    "log": _command("log <target> [n] [tools]", log),
    "info": _command("info <target>", info),
    "why": _command("why [target]", why),
    "send": _SEND,
    "steer": _STEER,
    "spawn": _command(
        "spawn <agent> <task> [--model m] [--thinking level] [--share key] [--priority level]", spawn
    ),
    "approve": _command("approve <target> [text]", partial(decide, decision=Decision.APPROVE)),
    "reject": _command("reject <target> [text]", partial(decide, decision=Decision.REJECT)),
    "pause": _acting(actions.PAUSE, _paused),
    "resume": _acting(actions.RESUME, _resumed),
    "retry": _acting(actions.RETRY, lambda task, _: f"Retried {task}."),
    "continue": _acting(actions.CONTINUE, lambda task, _: f"Continued {task}."),
    "redeliver": _acting(actions.REDELIVER, lambda task, _: f"Delivering the result of {task} again."),
    "dismiss": _acting(
        actions.DISMISS, lambda task, _: f"Discarded the result of {task}; it stays readable."
    ),
    "archive": _ARCHIVE,
    "remove": _ARCHIVE,
    "help": _command("help", show_help),
}


async def subagents(chat: Chat, text: str) -> str:
    word, _, rest = text.partition(" ")
    action = ACTIONS.get(word or "list")
    if action is None:
        near = ids.nearest(word, ACTIONS)
        hint = f" Did you mean {near}?" if near else ""
        return f"There is no /subagents {visible(word, 40)}.{hint}\n{await show_help(chat, '')}"
    return await action.answer(chat, rest)


CHAT_OPERATOR = OperatorCaller(EVERY_SCOPE, "chat")
BINDS = "focus"  #: the command that binds a thread to a session
ACTOR_CHARS_MAX = 200
#: `/etc/passwd` is no command, and neither is `/ hello`.
_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)


def is_command(text: str) -> bool:
    return _COMMAND.fullmatch(text.strip()) is not None


async def run_command(
    gateway: Gateway,
    session_key: str,
    line: str,
    caller: OperatorCaller = CHAT_OPERATOR,
    key: str | None = None,
) -> str:
    """Run a command. The same line and `key` act once and get the same answer. Raises IdempotencyConflict."""
    found = _COMMAND.fullmatch(line.strip())
    command = None if found is None else COMMANDS.get(found[1])
    if found is None or command is None:
        return _unknown(line)
    session_id, agent_id = await gateway.session(session_key)
    own_key = key or gateway.services.ids.uuid4()
    chat = Chat(
        gateway, caller, session_key, session_id, agent_id, own_key, delivery.local_route(session_key)
    )
    answer = partial(_answered, command, chat, found[2])
    return await answer() if key is None else await _once(chat, line, answer)


async def run_in_thread(gateway: Gateway, line: str, thread: Route, caller: OperatorCaller, key: str) -> str:
    """A command that arrived through a channel, for the session of the thread. Raises NotFound for a thread that is
    bound to no session, Forbidden for a sender that is not named."""
    db = gateway.services.db
    found = _COMMAND.fullmatch(line.strip())
    bound = await db.read(sessions.in_thread, *sessions.name(thread))
    caller = admitted(
        gateway.services.channels, thread, bound, caller, binds=found is not None and found[1] == BINDS
    )
    command = None if found is None else COMMANDS.get(found[1])
    if found is None or command is None:
        return _unknown(line)
    session_id = (await gateway.session(MAIN_SESSION))[0] if bound is None else bound.session_id
    place = thread if bound is None else replace(thread, account=bound.account or None)
    about = await db.read(status_reads.status, session_id)
    chat = Chat(gateway, caller, about.key, session_id, about.agent_id, key, place)
    return await _once(chat, line, partial(_answered, command, chat, found[2]))


def admitted(
    channels: Mapping[str, Channel],
    thread: Route,
    bound: Bound | None,
    caller: OperatorCaller,
    *,
    binds: bool,
) -> OperatorCaller:
    """Return the caller of a command in this thread: the sender, within the scopes of the token that brought it.

    Only `/focus` (`binds`) of a named operator needs no bound thread. The chat at the gateway has no senders beside its
    caller, who holds a token."""
    channel, account, name = sessions.name(thread)
    named = channels.get(channel)
    operators = Operators(named.operators, named.approvers) if isinstance(named, Operated) else Operators()
    if bound is None and not (binds and operators.names(account)):
        raise messages.unbound(channel, name)
    if channel == delivery.LOCAL_CHANNEL:
        return caller
    rights = operators.rights(account, None if bound is None else bound.account)
    if not rights:
        who = f"account {account[:80]!r}" if account else "a message without an account"
        fix = f"name it in channels.{channel}.operators, or send commands from the account of the thread"
        raise Forbidden("sender", f"{who} may not give commands in channel {channel!r}: {fix}")
    return replace(
        caller, scopes=within(rights, caller.scopes), actor=f"{channel}:{account}"[:ACTOR_CHARS_MAX]
    )


async def _once(chat: Chat, line: str, answer: Callable[[], Awaitable[str]]) -> str:
    """Two at the same moment: the second waits for the answer of the first. At two gateways both may act, which each
    action permits under one key; the answer that was kept first is the answer of both."""
    db, key = chat.services.db, f"command:{chat.key}"
    asked = hashlib.sha256(line.encode("utf-8", "surrogatepass")).hexdigest()
    async with chat.gateway.under_way.setdefault(key, asyncio.Lock()):
        kept = await db.read(idempotency.kept_reply, key)
        if kept is None:
            kept = await db.alone(idempotency.keep, key, asked, 200, await answer())
    if kept.request != asked:
        raise IdempotencyConflict()
    return kept.body


async def _answered(command: Command, chat: Chat, message: str | None) -> str:
    try:
        return await command.answer(chat, message or "")
    except StoreError:
        raise
    except (NotFound, AmbiguousTarget) as error:
        return "\n".join((f"{error}", *(f"  {one}" for one in error.candidates)))
    except ClutchError as error:
        return str(error)


def _unknown(line: str) -> str:
    word = line.strip().split(maxsplit=1)[0].removeprefix("/") if line.strip() else ""
    near = ids.nearest(word, COMMANDS)
    hint = f" Did you mean /{near}?" if near else ""
    return f"There is no command /{visible(word, 40)}.{hint} There are: {', '.join(f'/{name}' for name in COMMANDS)}"


# ---- this session --------------------------------------------------------------------------------------


async def stop(chat: Chat, text: str) -> str:
    """Stop this turn and every subagent of the session; `all` means the same."""
    if text != "all":
        nothing(text)
    report = await chat.task_actions.stop(chat.caller, chat.session_id)
    subagents = counted(len(report.stopped), "subagent")
    own = "Stopped this turn and" if report.own_run else "No turn was running here; stopped"
    return f"{own} {subagents}."


async def begin_anew(chat: Chat, text: str) -> str:
    nothing(text)
    await chat.look(Verb.SEND, chat.session_id, control.begin_anew, chat.services.policy, chat.session_id)
    return "New conversation. Subagents keep running."


async def compact(chat: Chat, text: str) -> str:
    nothing(text)
    await chat.look(Verb.SEND, chat.session_id, control.want_summary, chat.session_id)
    return "The conversation is summarised before the next turn."


def _used(used: Tally) -> str:
    if used.calls and not used.tokens:
        return UNKNOWN
    return f"{tokens(used.tokens)} (in {tokens(used.input)} / out {tokens(used.output)})"


async def model(chat: Chat, text: str) -> str:
    if not text:
        about = await chat.look(Verb.READ, chat.session_id, status_reads.status, chat.session_id)
        return f"Model: {about.model or chat.services.policy.model_of(chat.agent_id)}"
    wanted = only_word(text)
    if chat.services.check_model is not None:
        chat.services.check_model(wanted)
        wanted = chat.services.whole_model(wanted)
    await chat.look(Verb.SEND, chat.session_id, control.use_model, chat.session_id, wanted)
    return f"Model: {wanted}, from the next turn on."


async def queue(chat: Chat, text: str) -> str:
    try:
        wanted = delivery.parse(text)
    except ValueError as error:
        raise InvalidInput("queue", str(error)) from error
    await chat.look(Verb.SEND, chat.session_id, wake.set_queue, chat.services.policy, chat.session_id, wanted)
    return f"Queue: {text}"


async def agents(chat: Chat, text: str) -> str:
    nothing(text)
    policy = chat.services.policy
    known = dict.fromkeys((chat.agent_id, *sorted(policy.agents)))
    return "\n".join(f"{one} · {policy.model_of(one)}" for one in known)


async def status(chat: Chat, text: str) -> str:
    nothing(text)
    about = await chat.look(Verb.READ, chat.session_id, status_reads.status, chat.session_id)
    used = about.used
    return "\n".join(
        (
            f"Session: {about.key}",
            f"Model: {about.model or chat.services.policy.model_of(about.agent_id)}",
            f"State: {'running' if about.is_running else 'idle'}, {counted(about.waiting, 'message')} waiting",
            f"Subagents: {about.children_active} active, {about.children_total} in all",
            f"Tokens: {_used(used)}, {counted(used.calls, 'call')}",
            *(
                f"Problem: {one.detail}. Remedy: {one.remedy}"
                for one in chat.services.problems()
                if one.is_error
            ),
        )
    )


async def focus(chat: Chat, text: str) -> str:
    task = await chat.task(only_word(text))
    await chat.look(
        Verb.SEND, task, messages.focus, chat.services.policy, task, chat.thread, chat.caller.actor
    )
    return f"Messages here go to {ids.task_id(task)} now; /unfocus ends that."


async def unfocus(chat: Chat, text: str) -> str:
    nothing(text)
    owner = await chat.services.db.read(sessions.session_of, *sessions.name(chat.thread))
    if owner is None:
        return "Messages here go to no subagent."
    await chat.look(Verb.SEND, owner, messages.unfocus, chat.services.policy, chat.thread, chat.caller.actor)
    return "Messages here no longer go to a subagent."


COMMANDS: Mapping[str, Command] = {
    "subagents": Command("/subagents [action] …", subagents),
    "kill": Command("/kill <target|all> [reason]", _KILL.run),
    "steer": Command("/steer <target> <text>", _STEER.run),
    "tell": Command("/tell <target> <text>", _SEND.run),
    "stop": Command("/stop [all]", stop),
    "new": Command("/new", begin_anew),
    "reset": Command("/reset", begin_anew),
    "compact": Command("/compact", compact),
    "model": Command("/model [name]", model),
    "queue": Command(delivery.USAGE, queue),
    "agents": Command("/agents", agents),
    "focus": Command("/focus <target>", focus),
    "unfocus": Command("/unfocus", unfocus),
    "status": Command("/status", status),
}
