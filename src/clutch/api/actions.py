"""What every surface does for whoever asks: wait, and act. The answers are the objects everybody is given.

HTTP, MCP and programs ask here, so that they cannot disagree. Who may do what to which task is asked of the
one guard, with the caller that the door has made.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, assert_never

from clutch.api import reads, views
from clutch.api.spawn import OnFullWord
from clutch.api.views import Object
from clutch.core import ids
from clutch.core.authority import Caller
from clutch.core.events import Verdict
from clutch.core.model import Phase
from clutch.core.questions import Decision
from clutch.core.text import prompts
from clutch.core.views import TaskView
from clutch.engine.actions import PlanDecision, TaskActions, check_text
from clutch.engine.worker import Sweeper
from clutch.errors import InvalidInput
from clutch.store.transaction import Tx
from clutch.transactions import messages, retention
from clutch.transactions.read import status, tasks
from clutch.transactions.read.inbox import is_asking

if TYPE_CHECKING:
    from clutch.api import objects
    from clutch.api.gateway import TaskGateway

ALL_TASKS = "all"  #: as a target of kill
PAUSE_S = 0.05  # between two looks: under load every commit is a change
DONE = (Phase.COMPLETED, Phase.COMPLETED_GIVEUP)
BEGIN_S = 1.0  #: so long an answer waits for the id of the run that was asked for
PUT_AWAY = frozenset({Phase.CLEANUP_PENDING})


class Until(StrEnum):
    ENDED = "ended"  #: it has its outcome
    DELIVERED = "delivered"  #: ... and that was told, or could not be
    SETTLED = "settled"  #: ... and nothing is left to do anywhere below it


class Actions:
    def __init__(self, gateway: TaskGateway) -> None:
        self._gateway = gateway

    @property
    def _verbs(self) -> TaskActions:
        return TaskActions(self._gateway.services)

    async def _number(self, caller: Caller, target: str) -> int:
        return await self._gateway.services.db.read(reads.task_number, reads.standpoint(caller), target)

    # ---- acting --------------------------------------------------------------------------------------

    async def spawn(
        self, args: Mapping[str, Any], session: str, on_full: OnFullWord | None, key: str | None
    ) -> Object:
        """The parameters and answers of `sessions_spawn`."""
        named = {} if key is None else {"idempotencyKey": key}
        return await self._gateway.spawn(named | dict(args), session, on_full)

    async def kill(self, caller: Caller, target: str, reason: str) -> objects.KilledObject:
        if target == ALL_TASKS:
            root = reads.own_root(reads.standpoint(caller))
            alive = await self._gateway.services.db.read(status.alive, root)
            return views.killed(await self._verbs.kill_all(caller, alive, reason))
        return views.killed(await self._verbs.kill(caller, await self._number(caller, target), reason))

    async def steer(
        self, caller: Caller, target: str, text: str, key: str | None = None
    ) -> objects.SteeredObject:
        done = await self._verbs.steer(caller, await self._number(caller, target), text, key)
        return views.steered(done, await self._begun(int(done.task.id), done.task.generation))

    async def _begun(self, number: int, generation: int) -> int | None:
        """The run of this generation: it begins within a moment, unless there is no slot or it is held up."""
        db, changes = self._gateway.services.db, self._gateway.services.changes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_S):
                while True:
                    change = changes.next_change
                    if (run_id := await db.read(messages.run_of, number, generation)) is not None:
                        return run_id
                    await changes.until(change)
        return None

    async def send(
        self, caller: Caller, target: str, text: str, wait_s: float | None = None, key: str | None = None
    ) -> objects.Sent:
        sent = await self._verbs.send(caller, await self._number(caller, target), text, wait_s, key)
        return (
            {"status": sent.status.value}
            if sent.reply is None
            else {"status": sent.status.value, "reply": sent.reply}
        )

    async def pause(self, caller: Caller, target: str) -> objects.Changed:
        return {"changed": views.ids(await self._verbs.pause(caller, await self._number(caller, target)))}

    async def resume(self, caller: Caller, target: str) -> objects.Changed:
        return {"changed": views.ids(await self._verbs.resume(caller, await self._number(caller, target)))}

    async def retry(
        self, caller: Caller, target: str, text: str, key: str | None = None
    ) -> objects.StartedAgain:
        number = await self._number(caller, target)
        await self._moved_on(number, PUT_AWAY)
        await self._verbs.retry(caller, number, text, key)
        return await self._started_again(number)

    async def continue_(
        self, caller: Caller, target: str, text: str, key: str | None = None
    ) -> objects.StartedAgain:
        number = await self._number(caller, target)
        await self._moved_on(number, PUT_AWAY)
        await self._verbs.continue_(caller, number, text, key)
        return await self._started_again(number)

    async def _moved_on(self, number: int, moving: frozenset[Phase]) -> None:
        """A moment for what a task that has ended is about to do by itself; what then stands in the way is said. It is
        not waited for a next try that comes later than that."""
        db, changes = self._gateway.services.db, self._gateway.services.changes
        wait_s = self._gateway.services.policy.control.send_wait_s
        until = str(views.moment(time.time() + wait_s))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while True:
                    change = changes.next_change
                    task = await db.read(reads.known, number)
                    next_try = task["delivery"]["nextAt"]  # as a text, which is in the order of time
                    if task["phase"] not in moving or (next_try is not None and next_try > until):
                        return
                    await changes.until(change)

    async def _started_again(self, number: int) -> objects.StartedAgain:
        """In the words of a spawn."""
        found = await self._gateway.services.db.read(tasks.info, number)
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
            "note": prompts.spawn_note(expects_completion=contract.expects_completion, plan_mode=is_planning),
            "generation": view.generation,
            "warnings": [],
        }

    async def remove(self, caller: Caller, target: str) -> objects.TaskObject:
        number = await self._number(caller, target)
        await self._moved_on(number, PUT_AWAY | {Phase.ANNOUNCING})
        return await self._task((await self._verbs.remove(caller, number)).id)

    async def redeliver(self, caller: Caller, target: str) -> objects.TaskObject:
        return await self._task((await self._verbs.redeliver(caller, await self._number(caller, target))).id)

    async def dismiss(self, caller: Caller, target: str) -> objects.TaskObject:
        return await self._task((await self._verbs.dismiss(caller, await self._number(caller, target))).id)

    async def redeliver_message(self, caller: Caller, message: str) -> objects.MessageDecided:
        await self._verbs.redeliver_message(caller, reads.message_number(message))
        return {"status": "sending", "id": message}

    async def dismiss_message(self, caller: Caller, message: str) -> objects.MessageDecided:
        await self._verbs.dismiss_message(caller, reads.message_number(message))
        return {"status": "dismissed", "id": message}

    async def delete(
        self, caller: Caller, target: str, *, kills: bool, force: bool, keep_transcript: bool
    ) -> objects.Deleted:
        """The session of a target. `kills`: first whatever works in it or below it."""
        found = await self._gateway.services.db.read(reads.session, reads.standpoint(caller), target)
        if kills:
            await self._verbs.stop(caller, found.session_id)
        await self._verbs.delete(caller, found.session_id, force=force, keep_transcript=keep_transcript)
        return {
            "status": "archived" if keep_transcript else "deleted",
            "sessionKey": found.session_key or target,
        }

    async def halt(self, caller: Caller, session: str) -> bool:
        """The turn of a main session. False: there was none."""
        number, _ = await self._gateway.session(session)
        return await self._verbs.halt(caller, number)

    async def sweep(self, *, is_dry: bool) -> objects.Swept:
        """What the sweeper would take away now; unless it is only asked, it does."""
        services = self._gateway.services
        found = await services.db.read(retention.waste, services.policy)
        if not is_dry:
            await Sweeper(services, time.time).sweep()
        return {
            "dryRun": is_dry,
            "archived": views.ids(found.archived),
            "forgotten": views.ids(found.forgotten),
            "transcriptBytes": found.transcript_bytes,
        }

    async def _task(self, number: int) -> objects.TaskObject:
        return await self._gateway.services.db.read(reads.known, number)

    # ---- deciding ------------------------------------------------------------------------------------

    async def approve(self, caller: Caller, target: str, plan_hash: str, text: str) -> objects.DecidedObject:
        return _decided(
            await self._verbs.approve(caller, await self._number(caller, target), plan_hash, text)
        )

    async def reject(
        self, caller: Caller, target: str, plan_hash: str, reason: str, then: Verdict | None = None
    ) -> objects.DecidedObject:
        """Without a reason there is nothing to do better. `then`: None = as the policy says."""
        check_text("reason", reason, self._gateway.services.policy.control.steer_chars_max)
        return _decided(
            await self._verbs.reject(caller, await self._number(caller, target), plan_hash, reason, then)
        )

    async def answer(
        self, caller: Caller, item: str, decision: Decision, text: str, seen_hash: str
    ) -> objects.Answered | objects.DecidedObject:
        """Of the inbox: a question by its id, a plan by its task."""
        number = ids.parse_question_id(item)
        if number is not None:
            session = await self._verbs.answer(caller, number, decision, text, seen_hash)
            return {
                "status": "answered",
                "taskId": await self._gateway.services.db.read(reads.task_of, session),
            }
        match decision:
            case Decision.APPROVE:
                return await self.approve(caller, item, seen_hash, text)
            case Decision.REJECT:
                check_text("text", text, self._gateway.services.policy.control.steer_chars_max)
                return await self.reject(caller, item, seen_hash, text)
            case _:
                await self._number(caller, item)  # of what there is not, nothing else is worth saying
                raise InvalidInput("decision", "a plan is approved or rejected")

    # ---- waiting -------------------------------------------------------------------------------------

    async def wait(
        self, caller: Caller, target: str, timeout_s: float, until: Until, closing: asyncio.Event
    ) -> objects.Waited:
        """Never changes the task. `pending` after the time, or when the gateway stops."""
        db, changes = self._gateway.services.db, self._gateway.services.changes
        number = await self._number(caller, target)
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
