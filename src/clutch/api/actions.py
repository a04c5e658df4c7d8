"""The actions on tasks, messages and items of the inbox, each declared once: see `ApiAction`, at the end.

HTTP paths, MCP tools, slash commands, Python handles and their remote client are made from the declarations, so a new
verb needs its transaction, its method here and one line. The parameters of an action are the fields of its body, its
answer is the return type of `run`, its description the docstring of `run`. Who may do what to which task is decided by
`core/authority.py` inside the transaction; `scope` only says what a token needs to be asked at all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, assert_never, cast

from clutch.api import reads, schedules, views
from clutch.core import ids
from clutch.core.agents import MAIN
from clutch.core.authority import Caller, Scope
from clutch.core.events import PlanVerdict
from clutch.core.model import Phase
from clutch.core.questions import Decision
from clutch.core.spawn import SpawnRefusal
from clutch.core.text import prompts
from clutch.core.views import TaskView
from clutch.engine import schedules as schedule_runs
from clutch.engine.actions import PlanDecision, TaskActions, check_text
from clutch.engine.services import Services, surely
from clutch.engine.task_files import Sweeper
from clutch.errors import InvalidInput, NotFound, SpawnRefused
from clutch.store.transaction import Tx
from clutch.transactions import control, messages, retention
from clutch.transactions import schedules as schedules_tx
from clutch.transactions.read import status, tasks
from clutch.transactions.read.inbox import is_asking

if TYPE_CHECKING:
    from clutch.api import objects

KEY_CHARS_MAX = 200  #: of an idempotency key
ALL_TASKS = "all"  #: as a target of kill
MAIN_SESSION = str(ids.main_key(MAIN))
PAUSE_S = 0.05  # between two looks: under load every commit is a change
DONE = (Phase.COMPLETED, Phase.COMPLETED_GIVEUP)
BEGIN_S = 1.0  #: how long an answer waits for the id of the run that was asked for
PUT_AWAY = frozenset({Phase.CLEANUP_PENDING})


class Until(StrEnum):
    ENDED = "ended"  #: the task has its outcome
    DELIVERED = "delivered"  #: ... and its result was delivered, or could not be
    SETTLED = "settled"  #: ... and all work below it is finished


# ---- what an action is given -------------------------------------------------------------------------


@cache
def camel(name: str) -> str:
    """Spell a Python name as JSON objects do."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def check_key(key: object) -> None:
    """Check an idempotency key. None: the caller has none, and one is made."""
    if key is None:
        return
    check_text("idempotency_key", key, KEY_CHARS_MAX)
    if not str(key).isprintable():
        raise InvalidInput("idempotency_key", "must be printable")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionBody:
    """The parameters of an action; this class is for those that have none.

    HTTP and MCP refuse unknown fields and convert no types."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "extra": "forbid",
        "strict": True,
        "alias_generator": camel,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Killing(ActionBody):
    reason: str = "killed"
    dry_run: bool = False  #: list what would stop, and stop nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Words(ActionBody):
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage(Words):
    files: bool = False


# A message in a thread of a channel is no action, but it is checked and sent as one.
@dataclass(frozen=True, slots=True, kw_only=True)
class InThread(Words):
    channel: str
    thread: str
    account: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaybeWords(ActionBody):
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending(ActionBody):
    text: str
    #: At most `control.sendWaitSeconds`, however much is asked for.
    wait_seconds: float | None = field(default=None, metadata={"ge": 0, "strict": False})


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval(ActionBody):
    plan_hash: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection(ActionBody):
    plan_hash: str
    reason: str
    then: Literal["revise", "end"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering(ActionBody):
    decision: Literal["approve", "reject", "answer"]
    text: str = ""
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule(ActionBody):
    """What each means: `core.schedule.ScheduleSpec`. Exactly one of `at`, `every_seconds` and `cron`."""

    task: str
    at: str | None = None
    every_seconds: float | None = field(default=None, metadata={"ge": 0, "strict": False})
    cron: str | None = None
    timezone: str = "UTC"
    jitter_seconds: float = field(default=0.0, metadata={"ge": 0, "strict": False})
    missed: Literal["skip", "once", "all"] = "once"
    catch_up: int = 10
    overlap: Literal["skip", "queue", "replace"] = "skip"
    max_runs: int | None = None
    session: str = MAIN_SESSION
    label: str | None = None
    agent_id: str | None = None
    model: str | None = None
    run_timeout_seconds: float | None = field(default=None, metadata={"ge": 0, "strict": False})
    notify_parent: bool = False
    run_tokens: int | None = None  #: budget of each run
    run_usd: str | None = None
    total_tokens: int | None = None  #: budget of all runs together
    total_usd: str | None = None


B = TypeVar("B", bound=ActionBody)


@dataclass(frozen=True, slots=True)
class ActionCall(Generic[B]):
    """`target`: the task, message or item, as the caller wrote it. `key`: what is done under it is done once."""

    caller: Caller
    target: str
    body: B
    key: str | None = None


def json_of(body: ActionBody) -> dict[str, Any]:
    """Return the parameters as a request carries them."""
    return {camel(name): value for name, value in asdict(body).items() if value is not None}


# ---- how it runs -------------------------------------------------------------------------------------


class Actions:
    """What each action does. Clients read the docstring of a method that an `ApiAction` names as its description."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tasks = TaskActions(services)

    async def kill(self, call: ActionCall[Killing]) -> objects.KilledObject:
        """Stop a task and all of its descendants. Its result is never delivered. `dryRun` only lists them."""
        caller, reason = call.caller, call.body.reason
        if call.target == ALL_TASKS:
            root = reads.own_root(reads.standpoint(caller))
            alive = await self._services.db.read(status.alive, root)
            if call.body.dry_run:
                return await self._would_stop(alive)
            return views.killed(await self._tasks.kill_all(caller, alive, reason))
        if call.body.dry_run:
            return await self._would_stop([await self._number(call)])
        return views.killed(await self._tasks.kill(caller, await self._number(call), reason))

    async def _would_stop(self, numbers: Sequence[int]) -> objects.KilledObject:
        found = await self._services.db.read(control.would_stop, numbers)
        return {**views.killed(found), "dryRun": True}

    async def steer(self, call: ActionCall[Words]) -> objects.SteeredObject:
        """A new instruction takes the place of what the task does now."""
        done = await self._tasks.steer(call.caller, await self._number(call), call.body.text, call.key)
        return views.steered(done, await self._begun(int(done.task.id), done.task.generation))

    async def send(self, call: ActionCall[Sending]) -> objects.Sent:
        """A follow-up message to a task; waits for its first new words."""
        number, body = await self._number(call), call.body
        sent = await self._tasks.send(call.caller, number, body.text, body.wait_seconds, call.key)
        if sent.reply is None:
            return {"status": sent.status.value}
        return {"status": sent.status.value, "reply": sent.reply}

    async def pause(self, call: ActionCall[ActionBody]) -> objects.Changed:
        """A task and everything below it stop at their next step, until `resume`."""
        return {"changed": views.ids(await self._tasks.pause(call.caller, await self._number(call)))}

    async def resume(self, call: ActionCall[ActionBody]) -> objects.Changed:
        """Resume a paused task and all of its descendants."""
        return {"changed": views.ids(await self._tasks.resume(call.caller, await self._number(call)))}

    async def retry(self, call: ActionCall[MaybeWords]) -> objects.Spawned:
        """Start a finished task again from an empty transcript; `text` is added to it."""
        number = await self._number(call)
        await self._moved_on(number, PUT_AWAY)
        await self._tasks.retry(call.caller, number, call.body.text, call.key)
        return await self._started_again(number)

    async def continue_(self, call: ActionCall[MaybeWords]) -> objects.Spawned:
        """Resume a finished task in its transcript; `text` says what to do next."""
        number = await self._number(call)
        await self._moved_on(number, PUT_AWAY)
        await self._tasks.continue_(call.caller, number, call.body.text, call.key)
        return await self._started_again(number)

    async def remove(self, call: ActionCall[ActionBody]) -> objects.TaskObject:
        """Archive a finished, delivered task: it leaves the lists and the limit of its parent."""
        number = await self._number(call)
        await self._moved_on(number, PUT_AWAY | {Phase.ANNOUNCING})
        return await self._task((await self._tasks.remove(call.caller, number)).id)

    async def redeliver(self, call: ActionCall[ActionBody]) -> objects.TaskObject:
        """Deliver an undelivered result again."""
        return await self._task((await self._tasks.redeliver(call.caller, await self._number(call))).id)

    async def dismiss(self, call: ActionCall[ActionBody]) -> objects.TaskObject:
        """Discard an undelivered result; it stays readable."""
        return await self._task((await self._tasks.dismiss(call.caller, await self._number(call))).id)

    async def redeliver_message(self, call: ActionCall[ActionBody]) -> objects.MessageDecided:
        """Send a message to a channel again that was not sent or may not have arrived; it may then arrive twice."""
        await self._tasks.redeliver_message(call.caller, reads.message_number(call.target))
        return {"status": "sending", "id": call.target}

    async def dismiss_message(self, call: ActionCall[ActionBody]) -> objects.MessageDecided:
        """Discard a message to a channel that was not sent or may not have arrived."""
        await self._tasks.dismiss_message(call.caller, reads.message_number(call.target))
        return {"status": "dismissed", "id": call.target}

    # ---- decisions -----------------------------------------------------------------------------------

    async def approve(self, call: ActionCall[Approval]) -> objects.DecidedObject:
        """Approve the plan of a task; `planHash` is that of the plan as it was shown."""
        number, body = await self._number(call), call.body
        return _decided(await self._tasks.approve(call.caller, number, body.plan_hash, body.text))

    async def reject(self, call: ActionCall[Rejection]) -> objects.DecidedObject:
        """Send the plan of a task back with a reason, or end the task; without `then` what `plan.onReject` says."""
        body = call.body
        # Without a reason there is nothing to improve.
        check_text("reason", body.reason, self._services.policy.control.steer_chars_max)
        number, then = await self._number(call), None if body.then is None else PlanVerdict(body.then)
        return _decided(await self._tasks.reject(call.caller, number, body.plan_hash, body.reason, then))

    async def answer(self, call: ActionCall[Answering]) -> objects.Answered:
        """Decide on an item of the inbox; `hash` is that of the item as it was shown."""
        body, decision = call.body, Decision(call.body.decision)
        target = await self._item(call)
        number = ids.parse_question_id(target)
        if number is None:  # a plan is known by its task
            call = ActionCall(call.caller, target, body)
            return cast("objects.Answered", await self._decide_plan(call, decision))
        session = await self._tasks.answer(call.caller, number, decision, body.text, body.hash)
        return {"status": "answered", "taskId": await self._services.db.read(reads.task_of, session)}

    async def _item(self, call: ActionCall[Answering]) -> str:
        """Return the id of the item that the target names. A task with nothing to decide: its own id, so that the
        decision is refused with the state of its plan."""
        if ids.parse_question_id(call.target) is not None:
            return call.target
        try:
            who = reads.standpoint(call.caller)
            return (await self._services.db.read(reads.inbox_item, who, call.target))["id"]
        except NotFound:
            return ids.task_id(await self._number(call))

    async def _decide_plan(self, call: ActionCall[Answering], decision: Decision) -> objects.DecidedObject:
        body = call.body
        match decision:
            case Decision.APPROVE:
                approval = Approval(plan_hash=body.hash, text=body.text)
                return await self.approve(ActionCall(call.caller, call.target, approval))
            case Decision.REJECT:
                check_text("text", body.text, self._services.policy.control.steer_chars_max)
                rejection = Rejection(plan_hash=body.hash, reason=body.text)
                return await self.reject(ActionCall(call.caller, call.target, rejection))
            case _:
                raise InvalidInput(
                    "decision", f"{call.target} has no open question; a plan is approved or rejected"
                )

    # ---- schedules -----------------------------------------------------------------------------------

    async def add_schedule(self, call: ActionCall[NewSchedule]) -> objects.ScheduleObject:
        """Add a schedule: each of its slots starts a task, once. The same schedule again changes nothing."""
        services, spec = self._services, schedules.spec_of(call.target, asdict(call.body))
        await schedule_runs.check(services, spec)
        number = services.ids.next()
        await surely(services.policy.work.tick_s, lambda: services.db.alone(schedules_tx.add, number, spec))
        return await self._schedule(call)

    async def pause_schedule(self, call: ActionCall[ActionBody]) -> objects.ScheduleObject:
        """Pause a schedule: slots that pass until `resume` are skipped. A run that works continues."""
        await self._services.db.alone(schedules_tx.pause, call.target)
        return await self._schedule(call)

    async def resume_schedule(self, call: ActionCall[ActionBody]) -> objects.ScheduleObject:
        """Resume a paused schedule with the slots after now."""
        await self._services.db.alone(schedules_tx.resume, call.target)
        return await self._schedule(call)

    async def run_schedule(self, call: ActionCall[ActionBody]) -> objects.ScheduleRun:
        """Start a run of a schedule now, beside its slots; refused while the last run works."""
        found = await self._services.db.read(schedules_tx.find, call.target)
        done = await schedule_runs.run_now(self._services, found)
        if done is None:
            raise NotFound(f"the schedule {call.target!r} was changed in this moment; ask again")
        if isinstance(done.answer, SpawnRefusal):
            raise SpawnRefused(done.answer.error, dict(done.answer.limit))
        assert done.answer is not None
        started = done.answer
        return {
            "schedule": done.name,
            "taskId": ids.task_id(started.task_id),
            "childSessionKey": started.session_key,
            "label": started.label,
        }

    async def remove_schedule(self, call: ActionCall[ActionBody]) -> objects.ScheduleRemoved:
        """Remove a schedule and its history. Its runs stay. One of the config is removed there."""
        await self._services.db.alone(schedules_tx.remove, call.target)
        return {"removed": call.target}

    async def _schedule(self, call: ActionCall[Any]) -> objects.ScheduleObject:
        return await self._services.db.read(schedules.one, call.target)

    # ---- sessions and the gateway --------------------------------------------------------------------

    async def delete(
        self, caller: Caller, target: str, *, kills: bool, force: bool, keep_transcript: bool
    ) -> objects.Deleted:
        """Delete the session of a target. `kills`: first stop all work in it and below it."""
        found = await self._services.db.read(reads.session, reads.standpoint(caller), target)
        if kills:
            await self._tasks.stop(caller, found.session_id)
        await self._tasks.delete(caller, found.session_id, force=force, keep_transcript=keep_transcript)
        return {
            "status": "archived" if keep_transcript else "deleted",
            "sessionKey": found.session_key or target,
        }

    async def halt(self, caller: Caller, session_id: int) -> objects.Halted:
        """Stop the turn of a main session, if there is one."""
        return {"stopped": await self._tasks.halt(caller, session_id)}

    async def sweep(self, *, is_dry: bool) -> objects.Swept:
        """Report what the sweeper would remove now, and remove it unless this is a dry run."""
        services = self._services
        found = await services.db.read(retention.waste, services.policy)
        if not is_dry:
            await Sweeper(services, services.now).sweep()
        return {
            "dryRun": is_dry,
            "archived": views.ids(found.archived),
            "forgotten": views.ids(found.forgotten),
            "transcriptBytes": found.transcript_bytes,
        }

    # ---- waiting -------------------------------------------------------------------------------------

    async def wait(
        self, caller: Caller, target: str, timeout_s: float, until: Until, closing: asyncio.Event
    ) -> objects.Waited:
        """Wait for a task; never changes it. `pending` after the time, or when the gateway stops."""
        db, changes = self._services.db, self._services.changes
        number = await db.read(reads.task_number, reads.standpoint(caller), target)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            change = changes.next_change
            shown, status = await db.read(_looked, number, until)
            if status != "pending" or closing.is_set() or loop.time() >= deadline:
                result = await db.read(reads.result_if_any, number)
                return {"status": status, "task": views.task(_top(shown, number)), "result": result}
            await asyncio.sleep(PAUSE_S)
            await changes.until(change)

    # ---- what they have in common --------------------------------------------------------------------

    async def _number(self, call: ActionCall[Any]) -> int:
        return await self._services.db.read(reads.task_number, reads.standpoint(call.caller), call.target)

    async def _task(self, number: int) -> objects.TaskObject:
        return await self._services.db.read(reads.known, number)

    async def _begun(self, number: int, generation: int) -> int | None:
        """Return the run of this generation. It begins within a moment, unless it waits for a slot or is held up."""
        db, changes = self._services.db, self._services.changes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_S):
                while True:
                    change = changes.next_change
                    if (run_id := await db.read(messages.run_of, number, generation)) is not None:
                        return run_id
                    await changes.until(change)
        return None

    async def _moved_on(self, number: int, moving: frozenset[Phase]) -> None:
        """Wait a moment for a task that is about to leave a phase by itself, so that a verb is not refused for it. A
        next delivery attempt that comes later than that is not waited for."""
        db, changes = self._services.db, self._services.changes
        wait_s = self._services.policy.control.send_wait_s
        until = views.moment(self._services.now() + wait_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while True:
                    change = changes.next_change
                    task = await db.read(reads.known, number)
                    next_try = task["delivery"]["nextAt"]  # text of this form sorts by time
                    if task["phase"] not in moving or (next_try is not None and next_try > until):
                        return
                    await changes.until(change)

    async def _started_again(self, number: int) -> objects.StartedAgain:
        """Return the answer of a spawn for a task that starts again."""
        found = await self._services.db.read(tasks.info, number)
        if found is None:
            raise reads.unknown(number)
        view, contract = found.view, found.contract
        run_id = await self._begun(number, view.generation)
        is_planning = view.plan is not None and view.plan.state != "approved"
        return {
            "status": "accepted",
            "taskId": ids.task_id(number),
            "runId": None if run_id is None else ids.run_id(run_id),
            "childSessionKey": view.session_key,
            "label": view.label,
            "mode": contract.mode,
            "model": view.model_requested,
            "thinking": contract.thinking,
            "context": contract.context,
            "note": prompts.spawn_note(
                expects_completion=contract.expects_completion,
                plan_mode=is_planning,
                notify_parent=contract.notify_parent,
            ),
            "generation": view.generation,
            "warnings": [],
        }


def _decided(done: PlanDecision) -> objects.DecidedObject:
    return {"status": done.status, "taskId": ids.task_id(done.task_id), "runId": None, "round": done.round}


def _top(shown: list[TaskView], number: int) -> TaskView:
    for view in shown:
        if view.task_id == number:
            return view
    raise reads.unknown(number)


def _looked(
    now: float, number: int, until: Until
) -> Tx[tuple[list[TaskView], Literal["done", "pending", "needs_you"]]]:
    shown = yield from tasks.tree(now, number)
    if _is_reached(shown, _top(shown, number), until):
        return shown, "done"
    asks = yield from is_asking(now, [view.task_id for view in shown])
    return shown, "needs_you" if asks else "pending"


def _is_reached(shown: list[TaskView], top: TaskView, until: Until) -> bool:
    match until:
        case Until.ENDED:
            return top.outcome is not None
        case Until.DELIVERED:
            return top.phase in DONE
        case Until.SETTLED:
            return all(view.phase in DONE for view in shown)
        case _:
            assert_never(until)


# ---- the declarations --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ApiAction(Generic[B]):
    """`is_tool`: MCP clients have it, too. `status`: of the HTTP answer. `at`: the path of what is no task."""

    name: str
    run: Callable[[Actions, ActionCall[B]], Awaitable[Mapping[str, Any]]]
    body: type[B]
    scope: Scope = Scope.WRITE
    is_tool: bool = True
    status: int = 200
    at: str = ""

    @property
    def path(self) -> str:
        """The HTTP path; its only parameter is the target."""
        return self.at or f"/v1/tasks/{{target}}/{self.name}"


KILL = ApiAction("kill", Actions.kill, Killing)
STEER = ApiAction("steer", Actions.steer, Words)
SEND = ApiAction("send", Actions.send, Sending)
PAUSE = ApiAction("pause", Actions.pause, ActionBody)
RESUME = ApiAction("resume", Actions.resume, ActionBody)
RETRY = ApiAction("retry", Actions.retry, MaybeWords, is_tool=False, status=201)
CONTINUE = ApiAction("continue", Actions.continue_, MaybeWords, is_tool=False, status=201)
REMOVE = ApiAction("remove", Actions.remove, ActionBody, is_tool=False)
REDELIVER = ApiAction("redeliver", Actions.redeliver, ActionBody, is_tool=False)
DISMISS = ApiAction("dismiss", Actions.dismiss, ActionBody, is_tool=False)
REDELIVER_MESSAGE = ApiAction(
    "redeliver", Actions.redeliver_message, ActionBody, is_tool=False, at="/v1/messages/{id}/redeliver"
)
DISMISS_MESSAGE = ApiAction(
    "dismiss", Actions.dismiss_message, ActionBody, is_tool=False, at="/v1/messages/{id}/dismiss"
)
APPROVE = ApiAction("approve", Actions.approve, Approval, Scope.APPROVE)
REJECT = ApiAction("reject", Actions.reject, Rejection, Scope.APPROVE)
ANSWER = ApiAction("answer", Actions.answer, Answering, Scope.APPROVE, at="/v1/inbox/{id}")
_SCHEDULE = "/v1/schedules/{name}"
ADD_SCHEDULE = ApiAction(
    "add_schedule", Actions.add_schedule, NewSchedule, Scope.ADMIN, is_tool=False, status=201, at=_SCHEDULE
)
PAUSE_SCHEDULE, RESUME_SCHEDULE, RUN_SCHEDULE, REMOVE_SCHEDULE = (
    ApiAction(f"{name}_schedule", run, ActionBody, Scope.ADMIN, is_tool=False, at=f"{_SCHEDULE}/{name}")
    for name, run in {
        "pause": Actions.pause_schedule, "resume": Actions.resume_schedule, "run": Actions.run_schedule,
        "remove": Actions.remove_schedule,
    }.items()
)  # fmt: skip

ACTIONS: tuple[ApiAction[Any], ...] = (
    KILL, STEER, SEND, PAUSE, RESUME, RETRY, CONTINUE, REMOVE, REDELIVER, DISMISS, REDELIVER_MESSAGE, DISMISS_MESSAGE,
    APPROVE, REJECT, ANSWER, ADD_SCHEDULE, PAUSE_SCHEDULE, RESUME_SCHEDULE, RUN_SCHEDULE, REMOVE_SCHEDULE,
)  # fmt: skip
