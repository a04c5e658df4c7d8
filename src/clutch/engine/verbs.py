"""Every verb for every door: tools of agents, the Python API, slash commands, command line, HTTP, MCP.

Each takes a `Caller` that was made on the server's side and the number of a session (a task has the number of
its session). The one guard is asked in the same transaction in which the verb acts. Whoever loses the
connection asks again with the same key. Raises Forbidden, NotFound, NotPossible, InvalidInput, RateLimited,
PlanChanged; what a kill could not do is part of its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from clutch.core.authority import AgentCaller, Caller, Verb
from clutch.core.events import Verdict
from clutch.core.model import Task
from clutch.core.pins import HOUSE
from clutch.engine import spawning
from clutch.engine.insisting import surely
from clutch.engine.kit import Kit
from clutch.errors import InvalidInput, StoreError
from clutch.protocol import control, peers, pins, questions
from clutch.protocol.control import Held, KillReport, Steered, StopReport
from clutch.protocol.guarding import guarded
from clutch.protocol.questions import Decision
from clutch.store.door import Tx

T = TypeVar("T")

log = logging.getLogger(__name__)

REASON_CHARS_MAX = 500
ELSEWHERE = "it ran in another process, which was told and has not said that it stopped"


class SendStatus(StrEnum):
    OK = "ok"  #: it has replied
    ACCEPTED = "accepted"  #: on disk; nobody waited
    TIMEOUT = "timeout"  #: on disk; no reply within the time


@dataclass(frozen=True, slots=True)
class Sent:
    status: SendStatus
    reply: str | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """`status`: approved, revising or ended. `round`: how often a plan was sent back."""

    status: str
    task_id: int
    round: int


class Verbs:
    def __init__(self, kit: Kit) -> None:
        self._kit = kit

    # ---- ending --------------------------------------------------------------------------------------

    async def kill(self, caller: Caller, task_id: int, reason: str = "killed") -> KillReport:
        """The task and everything below it. Back when nothing of it runs here any more, or says what still does."""
        check_text("reason", reason, REASON_CHARS_MAX)
        try:
            known = (self._kit.policy, task_id, reason, caller.actor, self._kit.ids.nonce())
            report = await self._surely(caller, Verb.KILL, task_id, control.kill, *known)
        except StoreError as error:
            return KillReport(not_stopped=((task_id, str(error)),))
        return await self._at_rest(report)

    async def kill_all(self, caller: Caller, task_ids: Sequence[int], reason: str = "killed") -> KillReport:
        """One after the other: whatever fails for one, the others are stopped."""
        reports = [await self.kill(caller, task_id, reason) for task_id in task_ids]
        return KillReport(
            tuple(one for report in reports for one in report.stopped),
            tuple(one for report in reports for one in report.already_finished),
            tuple(one for report in reports for one in report.not_stopped),
        )

    async def stop(self, caller: Caller, session_id: int, reason: str = "stopped") -> StopReport:
        """The session's own run and everything below it."""
        report = await self._act(caller, Verb.KILL, session_id, control.stop, reason)
        await self._at_rest(KillReport((session_id, *report.stopped)))
        return report

    async def halt(self, caller: Caller, session_id: int) -> bool:
        """The turn of a main session; its children go on. False: there was none."""
        was_running = await self._act(caller, Verb.KILL, session_id, control.halt)
        await self._at_rest(KillReport((session_id,)))
        return was_running

    async def _at_rest(self, report: KillReport) -> KillReport:
        """The commit has cancelled their turns; a tool may need a moment to end its processes."""
        late = await self._late_here(report.stopped) | await self._late_elsewhere(report.held)
        return KillReport(
            tuple(one for one in report.stopped if one not in late),
            report.already_finished,
            (*report.not_stopped, *sorted(late.items())),
        )

    async def _late_here(self, stopped: Sequence[int]) -> dict[int, str]:
        turns = {one: turn for one in stopped if (turn := self._kit.turns.get(one)) is not None}
        if turns:
            await asyncio.wait(turns.values(), timeout=self._kit.policy.work.tool_grace_s)
        return {one: "a tool of it has not ended yet" for one, turn in turns.items() if not turn.done()}

    async def _late_elsewhere(self, held: Sequence[Held]) -> dict[int, str]:
        """Another process was told with the commit, and says when its turn has ended; one that is dead says nothing."""
        kit, changes = self._kit, self._kit.changes
        waits = [one for one in held if one.worker_id != kit.worker_id]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(kit.policy.work.tool_grace_s):
                while self._silent(waits):
                    await changes.until(changes.next_change)
        silent = self._silent(waits)
        dead = await kit.lives.dead([one.worker_id for one in silent]) if silent and kit.lives else []
        return {one.task_id: ELSEWHERE for one in silent if one.worker_id not in dead}

    def _silent(self, held: Sequence[Held]) -> list[Held]:
        return [one for one in held if (one.task_id, one.fence) not in self._kit.rested]

    # ---- words ---------------------------------------------------------------------------------------

    async def steer(self, caller: Caller, task_id: int, text: str, key: str | None = None) -> Steered:
        """A new instruction takes the place of what runs now."""
        check_text("text", text, self._kit.policy.control.steer_chars_max)
        return await self._act(
            caller, Verb.STEER, task_id, control.steer, self._key("steer", task_id, key), text
        )

    async def send(
        self,
        caller: Caller,
        session_id: int,
        text: str,
        wait_s: float | None = None,
        key: str | None = None,
    ) -> Sent:
        """A follow-up. `wait_s`: for the reply; 0 = don't wait, None = as long as the policy says, which is the most
        that anybody is made to wait: models ask for more than they need."""
        check_text("text", text, self._kit.policy.limits.task_bytes_max)
        idem = self._key("send", session_id, key)
        if isinstance(caller, AgentCaller):  # to a stranger it is the beginning of a talk
            known = (self._kit.policy, session_id, idem, text, caller.session_id, caller.actor)
            await self._surely(caller, Verb.SEND, session_id, peers.send, *known)
        else:
            await self._act(caller, Verb.SEND, session_id, control.send, idem, text)
        wait_max_s = self._kit.policy.control.send_wait_s
        wait_s = wait_max_s if wait_s is None else min(wait_s, wait_max_s)
        if wait_s <= 0:
            return Sent(SendStatus.ACCEPTED)
        reply = await self._reply(idem, wait_s)
        return Sent(SendStatus.TIMEOUT if reply is None else SendStatus.OK, reply)

    async def _reply(self, idem: str, wait_s: float) -> str | None:
        changes = self._kit.changes
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    change = changes.next_change
                    reply = await self._kit.door.read(control.heard, idem)
                    if reply is not None:
                        return reply
                    await changes.until(change)
        except TimeoutError:
            return None

    # ---- pausing and trying again --------------------------------------------------------------------

    async def pause(self, caller: Caller, task_id: int) -> tuple[int, ...]:
        """The task and everything below it stop at their next step and free their slots. Those that changed."""
        return await self._act(caller, Verb.PAUSE, task_id, control.pause)

    async def resume(self, caller: Caller, task_id: int) -> tuple[int, ...]:
        return await self._act(caller, Verb.RESUME, task_id, control.resume)

    async def retry(self, caller: Caller, task_id: int, text: str = "", key: str | None = None) -> Task:
        """A finished task starts anew from an empty transcript."""
        return await self._again(caller, Verb.RETRY, task_id, text, key)

    async def continue_(self, caller: Caller, task_id: int, text: str = "", key: str | None = None) -> Task:
        """A finished task goes on in its transcript."""
        return await self._again(caller, Verb.CONTINUE, task_id, text, key)

    async def _again(self, caller: Caller, verb: Verb, task_id: int, text: str, key: str | None) -> Task:
        if text:
            check_text("text", text, self._kit.policy.limits.task_bytes_max)
        idem = self._key(verb.value, task_id, key)
        return await self._act(caller, verb, task_id, control.again, verb.value, idem, text)

    async def remove(self, caller: Caller, task_id: int) -> Task:
        """A finished, delivered record is archived and leaves the quota of its requester; its files go."""
        task = await self._act(caller, Verb.REMOVE, task_id, control.remove)
        await spawning.drop(self._kit, [task_id])
        return task

    async def delete(
        self, caller: Caller, session_id: int, *, force: bool = False, keep_transcript: bool = False
    ) -> None:
        """The session with its transcript; `force` although nobody has heard its result, which is kept."""
        await self._act(caller, Verb.DELETE, session_id, control.delete, force, keep_transcript)
        await spawning.drop(self._kit, [session_id])

    # ---- deciding ------------------------------------------------------------------------------------

    async def approve(self, caller: Caller, task_id: int, plan_hash: str, text: str = "") -> Decided:
        return await self._decide(caller, Verb.APPROVE, task_id, Verdict.APPROVE, plan_hash, text)

    async def reject(
        self, caller: Caller, task_id: int, plan_hash: str, reason: str, then: Verdict | None = None
    ) -> Decided:
        """`then`: REVISE for another round, END for good; None = as the policy says."""
        verdict = then or Verdict(self._kit.policy.life.on_reject)
        return await self._decide(caller, Verb.REJECT, task_id, verdict, plan_hash, reason)

    async def _decide(
        self, caller: Caller, verb: Verb, task_id: int, verdict: Verdict, plan_hash: str, text: str
    ) -> Decided:
        if text:
            check_text("text", text, self._kit.policy.control.steer_chars_max)
        task = await self._act(caller, verb, task_id, control.decide, verdict, plan_hash, text)
        return _decided(task, verdict)

    async def decide_by_words(self, caller: AgentCaller, task_id: int, message: str) -> Decided | None:
        """`APPROVED: …` or `REJECTED: …` to a child whose plan waits. None: it is a message like any other."""
        spoken = control.spoken_verdict(message, self._kit.policy)
        if spoken is None:
            return None
        verb = Verb.APPROVE if spoken[0] is Verdict.APPROVE else Verb.REJECT
        known = (self._kit.policy, task_id, caller.session_id, message, caller.actor)
        task = await self._surely(caller, verb, task_id, control.decide_as_read, *known)
        return None if task is None else _decided(task, spoken[0])

    async def answer(
        self, caller: Caller, question_id: int, decision: Decision, text: str, seen_hash: str
    ) -> int:
        """The session whose question it was; its run goes on by itself. `HOUSE`: it was about a tool of all."""
        session_id = await self._kit.door.read(questions.asker, question_id)
        if session_id == HOUSE:
            said = (question_id, decision, text, seen_hash, caller.actor)
            return await self._surely(caller, Verb.ANSWER, HOUSE, pins.answer, *said)
        return await self._surely(
            caller, Verb.ANSWER, session_id, questions.answer,
            self._kit.policy, question_id, decision, text, seen_hash, caller.actor,
        )  # fmt: skip

    # ---- dead letters --------------------------------------------------------------------------------

    async def redeliver(self, caller: Caller, task_id: int) -> Task:
        return await self._act(caller, Verb.REDELIVER, task_id, control.redeliver)

    async def dismiss(self, caller: Caller, task_id: int) -> Task:
        return await self._act(caller, Verb.DISMISS, task_id, control.dismiss)

    # ---- around it -----------------------------------------------------------------------------------

    async def _act(
        self, caller: Caller, verb: Verb, session_id: int, fn: Callable[..., Tx[T]], *args: Any
    ) -> T:
        return await self._surely(
            caller, verb, session_id, fn, self._kit.policy, session_id, *args, caller.actor
        )

    async def _surely(
        self, caller: Caller, verb: Verb, session_id: int, fn: Callable[..., Tx[T]], *args: Any
    ) -> T:
        door = self._kit.door
        return await surely(
            self._kit.policy.work.tick_s,
            lambda: door.alone(guarded, caller, verb, session_id, fn, *args),
        )

    def _key(self, verb: str, session_id: int, key: str | None) -> str:
        return f"{verb}:{session_id}:{key or self._kit.ids.uuid4()}"


def _decided(task: Task, verdict: Verdict) -> Decided:
    goes_on = "approved" if verdict is Verdict.APPROVE else "revising"
    return Decided(goes_on if task.outcome is None else "ended", task.id, task.plan_round)


def check_text(field: str, text: object, chars_max: int) -> None:
    """What strangers give as text: raises InvalidInput."""
    if not isinstance(text, str):
        raise InvalidInput(field, "must be text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(field, "must be valid Unicode text") from error
    if not text.strip():
        raise InvalidInput(field, "must not be blank")
    if "\0" in text:
        raise InvalidInput(field, "must not contain NUL")
    if len(text) > chars_max:
        raise InvalidInput(field, f"has {len(text)} characters, at most {chars_max} are allowed")
