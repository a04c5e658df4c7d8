"""The actions on tasks, for all surfaces: tools of agents, the Python API, slash commands, command line, HTTP, MCP.

Each takes a `Caller` that the server made and the number of a session (a task has the number of its session). The guard
(`transactions.authority`) is asked in the transaction in which the action runs. A caller that loses the connection asks
again with the same key. Raises Forbidden, NotFound, NotPossible, InvalidInput, RateLimited, PlanChanged; what a kill
could not stop is part of its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from clutch.core.authority import AgentCaller, Caller, Verb
from clutch.core.events import PlanVerdict
from clutch.core.model import NO_SESSION, Task
from clutch.core.policy import Policy
from clutch.core.questions import Decision
from clutch.core.session_tools import is_silent
from clutch.engine.services import Services, surely
from clutch.engine.task_files import drop
from clutch.errors import InvalidInput, StoreError
from clutch.store.transaction import P, T, Tx, TxFunction
from clutch.transactions import control, delivery, mcp_tools, messages, questions, retention
from clutch.transactions.authority import guarded
from clutch.transactions.control import Held, KillReport, StopReport
from clutch.transactions.messages import SteerResult
from clutch.transactions.read.inbox import sender

#: A transaction (now, policy, target, actor).
SimpleAction: TypeAlias = Callable[[float, Policy, int, str], Tx[T]]

REASON_CHARS_MAX = 500
STILL_RUNS = "a tool or model call of this task has not ended yet"
ELSEWHERE = "it ran in another process, which has not confirmed yet that it stopped"


class SendStatus(StrEnum):
    OK = "ok"  #: read and answered; without a reply the agent chose silence
    ACCEPTED = "accepted"  #: on disk; the caller did not wait
    TIMEOUT = "timeout"  #: on disk; no reply within the time


@dataclass(frozen=True, slots=True)
class SendResult:
    status: SendStatus
    reply: str | None = None


@dataclass(frozen=True, slots=True)
class PlanDecision:
    """What was decided about a plan. `round`: how often a plan was sent back."""

    status: Literal["approved", "revising", "ended"]
    task_id: int
    round: int


class TaskActions:
    def __init__(self, services: Services) -> None:
        self._services = services

    # ---- ending --------------------------------------------------------------------------------------

    async def kill(self, caller: Caller, task_id: int, reason: str = "killed") -> KillReport:
        """Kill the task and all tasks below it. Returns when their turns have ended, or reports which still run."""
        check_text("reason", reason, REASON_CHARS_MAX)
        try:
            known, nonce = (self._policy, task_id, reason, caller.actor), self._services.ids.nonce()
            report = await self._act(caller, Verb.KILL, task_id, control.kill, *known, nonce=nonce)
        except StoreError as error:
            return KillReport(not_stopped=((task_id, str(error)),))
        return await self._at_rest(report)

    async def kill_all(self, caller: Caller, task_ids: Sequence[int], reason: str = "killed") -> KillReport:
        """Kill one after the other; a failure of one does not keep the others from being killed."""
        reports = [await self.kill(caller, task_id, reason) for task_id in task_ids]
        return KillReport(
            tuple(one for report in reports for one in report.stopped),
            tuple(one for report in reports for one in report.already_finished),
            tuple(one for report in reports for one in report.not_stopped),
            tuple(one for report in reports for one in report.still_stopping),
        )

    async def stop(self, caller: Caller, session_id: int, reason: str = "stopped") -> StopReport:
        """Stop the session's own run and all of its descendants."""
        report = await self._act(
            caller, Verb.KILL, session_id, control.stop, self._policy, session_id, reason, caller.actor
        )
        await self._at_rest(KillReport((session_id, *report.stopped)))
        return report

    async def cancel(self, caller: Caller, session_id: int, letter: str) -> None:
        """Cancel a user's message, and the work on its answer."""
        known = (self._policy, session_id, letter, caller.actor)
        stopped = await self._act(caller, Verb.KILL, session_id, messages.cancel, *known)
        await self._at_rest(KillReport(stopped))

    async def halt(self, caller: Caller, session_id: int) -> bool:
        """Stop the turn of a main session; its children continue. False: no turn was open."""
        was_running = await self._act_on(caller, Verb.KILL, session_id, control.halt)
        await self._at_rest(KillReport((session_id,)))
        return was_running

    async def _at_rest(self, report: KillReport) -> KillReport:
        """Wait for the turns that the commit has cancelled: a tool may need a moment to end its processes."""
        late = await self._late_here(report.stopped) | await self._late_elsewhere(report.held)
        return KillReport(
            tuple(one for one in report.stopped if one not in late),
            report.already_finished,
            report.not_stopped,
            tuple(sorted(late.items())),
        )

    async def _late_here(self, stopped: Sequence[int]) -> dict[int, str]:
        turns = {one: turn for one in stopped if (turn := self._services.turns.get(one)) is not None}
        if turns:
            await asyncio.wait(turns.values(), timeout=self._policy.work.tool_grace_s)
        return {one: STILL_RUNS for one, turn in turns.items() if not turn.done()}

    async def _late_elsewhere(self, held: Sequence[Held]) -> dict[int, str]:
        """The tasks whose worker in another process has not reported the end of their turn. A dead process reports
        nothing, and is not waited for."""
        services, changes = self._services, self._services.changes
        waits = [one for one in held if one.worker_id != services.worker_id]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(services.policy.work.tool_grace_s):
                while self._silent(waits):
                    await changes.until(changes.next_change)
        silent = self._silent(waits)
        dead: list[int] = []
        if silent and services.lives is not None:
            # The kill is committed: a lost connection leaves open only whether their process is dead.
            with contextlib.suppress(StoreError):
                dead = await services.lives.dead([one.worker_id for one in silent])
        return {one.task_id: ELSEWHERE for one in silent if one.worker_id not in dead}

    def _silent(self, held: Sequence[Held]) -> list[Held]:
        return [one for one in held if (one.task_id, one.fence) not in self._services.rested]

    # ---- messages ----------------------------------------------------------------------------------------

    async def steer(self, caller: Caller, task_id: int, text: str, key: str | None = None) -> SteerResult:
        """Replace the work that runs now by a new instruction."""
        check_text("text", text, self._policy.control.steer_chars_max)
        known = (self._policy, task_id, self._key("steer", task_id, key), text)
        return await self._act(caller, Verb.STEER, task_id, messages.steer, *known, actor=caller.actor)

    async def send(
        self,
        caller: Caller,
        session_id: int,
        text: str,
        wait_s: float | None = None,
        key: str | None = None,
    ) -> SendResult:
        """Send a follow-up. `wait_s`: seconds to wait for the reply; 0 does not wait, None waits as long as the policy
        allows, which is also the maximum: models ask for more than they need."""
        check_text("text", text, self._policy.limits.task_bytes_max)
        idem = self._key("send", session_id, key)
        known = (self._policy, session_id, idem, text)
        if isinstance(caller, AgentCaller):  # to an agent of another tree it begins an exchange
            exchange, asker = messages.send_to_session, caller.session_id
            await self._act(
                caller, Verb.SEND, session_id, exchange, *known, sender_id=asker, actor=caller.actor
            )
        else:
            await self._act(caller, Verb.SEND, session_id, messages.send, *known, actor=caller.actor)
        wait_max_s = self._policy.control.send_wait_s
        wait_s = wait_max_s if wait_s is None else min(wait_s, wait_max_s)
        if wait_s <= 0:
            return SendResult(SendStatus.ACCEPTED)
        reply = await self._reply(idem, wait_s)
        if reply is None:
            return SendResult(SendStatus.TIMEOUT)
        return SendResult(SendStatus.OK, None if is_silent(reply) else reply)

    async def _reply(self, idem: str, wait_s: float) -> str | None:
        changes = self._services.changes
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    change = changes.next_change
                    reply = await self._services.db.read(messages.heard, idem)
                    if reply is not None:
                        return reply
                    await changes.until(change)
        except TimeoutError:
            return None

    # ---- pausing and trying again --------------------------------------------------------------------

    async def pause(self, caller: Caller, task_id: int) -> tuple[int, ...]:
        """Pause the task and its descendants at their next step; they free their slots. Return those that changed."""
        return await self._act_on(caller, Verb.PAUSE, task_id, control.pause)

    async def resume(self, caller: Caller, task_id: int) -> tuple[int, ...]:
        return await self._act_on(caller, Verb.RESUME, task_id, control.resume)

    async def retry(self, caller: Caller, task_id: int, text: str = "", key: str | None = None) -> Task:
        """Start a finished task again with an empty transcript."""
        return await self._again(caller, Verb.RETRY, task_id, text, key)

    async def continue_(self, caller: Caller, task_id: int, text: str = "", key: str | None = None) -> Task:
        """Continue a finished task in its transcript."""
        return await self._again(caller, Verb.CONTINUE, task_id, text, key)

    async def _again(self, caller: Caller, verb: Verb, task_id: int, text: str, key: str | None) -> Task:
        if text:
            check_text("text", text, self._policy.limits.task_bytes_max)
        known = (self._policy, task_id, verb.value, self._key(verb.value, task_id, key))
        return await self._act(caller, verb, task_id, control.again, *known, text=text, actor=caller.actor)

    async def remove(self, caller: Caller, task_id: int) -> Task:
        """Archive a finished, delivered task: it leaves the quota of its parent, and its files are removed."""
        task = await self._act_on(caller, Verb.REMOVE, task_id, control.remove)
        await drop(self._services, [task_id])
        return task

    async def delete(
        self, caller: Caller, session_id: int, *, force: bool = False, keep_transcript: bool = False
    ) -> None:
        """Delete the session with its transcript. `force`: also before its result is delivered; the result is kept."""
        await self._act(
            caller, Verb.DELETE, session_id, retention.delete, self._policy, session_id,
            force=force, keep_transcript=keep_transcript, actor=caller.actor,
        )  # fmt: skip
        await drop(self._services, [session_id])

    # ---- deciding ------------------------------------------------------------------------------------

    async def approve(self, caller: Caller, task_id: int, plan_hash: str, text: str = "") -> PlanDecision:
        return await self._decide(caller, task_id, PlanVerdict.APPROVE, plan_hash, text)

    async def reject(
        self, caller: Caller, task_id: int, plan_hash: str, reason: str, then: PlanVerdict | None = None
    ) -> PlanDecision:
        """`then`: REVISE asks for another plan, END ends the task; None follows the policy."""
        verdict = then or PlanVerdict(self._policy.life.on_reject)
        return await self._decide(caller, task_id, verdict, plan_hash, reason)

    async def _decide(
        self, caller: Caller, task_id: int, verdict: PlanVerdict, plan_hash: str, text: str
    ) -> PlanDecision:
        if text:
            check_text("text", text, self._policy.control.steer_chars_max)
        known, actor = (self._policy, task_id, verdict, plan_hash), caller.actor
        task = await self._act(
            caller, _verb(verdict), task_id, messages.decide, *known, text=text, actor=actor
        )
        return _decided(task, verdict)

    async def decide_by_words(self, caller: AgentCaller, task_id: int, message: str) -> PlanDecision | None:
        """`APPROVED: …` or `REJECTED: …` to a child whose plan waits. None: it is a message like any other."""
        spoken = messages.spoken_verdict(message, self._policy)
        if spoken is None:
            return None
        known, verb = (self._policy, task_id, caller.session_id, message), _verb(spoken[0])
        task = await self._act(caller, verb, task_id, messages.decide_as_read, *known, actor=caller.actor)
        return None if task is None else _decided(task, spoken[0])

    async def answer(
        self, caller: Caller, question_id: int, decision: Decision, text: str, seen_hash: str
    ) -> int:
        """Answer a question; its run resumes by itself. Return the session that asked, or NO_SESSION for a question
        about a tool of all sessions."""
        if text.strip():  # whether it may be blank depends on the question
            check_text("text", text, self._policy.control.steer_chars_max)
        session_id = await self._services.db.read(questions.asker, question_id)
        if session_id == NO_SESSION:
            said, pin = (question_id, decision, text, seen_hash), mcp_tools.answer_pin
            return await self._act(caller, Verb.ANSWER, NO_SESSION, pin, *said, actor=caller.actor)
        known, seen = (self._policy, question_id, decision, text), seen_hash
        return await self._act(
            caller, Verb.ANSWER, session_id, messages.answer, *known, seen_hash=seen, actor=caller.actor
        )

    # ---- dead letters --------------------------------------------------------------------------------

    async def redeliver(self, caller: Caller, task_id: int) -> Task:
        return await self._act_on(caller, Verb.REDELIVER, task_id, control.redeliver)

    async def dismiss(self, caller: Caller, task_id: int) -> Task:
        return await self._act_on(caller, Verb.DISMISS, task_id, control.dismiss)

    async def redeliver_message(self, caller: Caller, message_id: int) -> None:
        """Send a message to a channel again that was not sent, or of which it is not known whether it arrived."""
        await self._on_message(caller, Verb.REDELIVER, message_id, delivery.resend)

    async def dismiss_message(self, caller: Caller, message_id: int) -> None:
        await self._on_message(caller, Verb.DISMISS, message_id, delivery.dismiss)

    async def _on_message(self, caller: Caller, verb: Verb, message_id: int, fn: SimpleAction[None]) -> None:
        session_id = await self._services.db.read(sender, message_id)
        await self._act(caller, verb, session_id, fn, self._policy, message_id, caller.actor)

    # ---- the guarded transaction ---------------------------------------------------------------------

    @property
    def _policy(self) -> Policy:
        """The present one: a reload of the config replaces it."""
        return self._services.policy

    async def _act_on(self, caller: Caller, verb: Verb, session_id: int, fn: SimpleAction[T]) -> T:
        """Run an action that needs nothing but its target and the name of the caller."""
        return await self._act(caller, verb, session_id, fn, self._policy, session_id, caller.actor)

    async def _act(
        self,
        caller: Caller,
        verb: Verb,
        session_id: int,
        fn: TxFunction[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run `fn` if the caller may do this to the session; a lost connection is answered with a second try."""
        db = self._services.db
        return await surely(
            self._policy.work.tick_s,
            lambda: db.alone(guarded, caller, verb, session_id, fn, *args, **kwargs),
        )

    def _key(self, verb: str, session_id: int, key: str | None) -> str:
        return f"{verb}:{session_id}:{key or self._services.ids.uuid4()}"


def _verb(verdict: PlanVerdict) -> Verb:
    return Verb.APPROVE if verdict is PlanVerdict.APPROVE else Verb.REJECT


def _decided(task: Task, verdict: PlanVerdict) -> PlanDecision:
    if task.outcome is not None:
        return PlanDecision("ended", task.id, task.plan_round)
    return PlanDecision(
        "approved" if verdict is PlanVerdict.APPROVE else "revising", task.id, task.plan_round
    )


def check_text(field: str, text: object, chars_max: int) -> None:
    """Check a text from outside. Raises InvalidInput."""
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
