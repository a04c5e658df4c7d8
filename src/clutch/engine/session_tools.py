"""The session tools of an agent: a call becomes an action, a list or a read, and its answer becomes text.

The caller is the open run, never a parameter. The one guard (`transactions.authority`) decides what it may do. A call
that acts carries the key of its place in the transcript, so that a repeated call acts once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never

from clutch.core import ids
from clutch.core.authority import Verb
from clutch.core.messages import Call
from clutch.core.schedule import rhythm
from clutch.core.session_tools import (
    ALL_CHILDREN,
    Act,
    Action,
    ChangeSchedule,
    ListAgents,
    ListSessions,
    ReadHistory,
    ScheduleAction,
    SendTo,
    SessionCall,
    ShowStatus,
)
from clutch.core.spawn import known_agents, spawnable
from clutch.core.views import HistoryEntry
from clutch.engine import schedules as schedule_runs
from clutch.engine.actions import PlanDecision, SendResult, TaskActions
from clutch.engine.open_run import OpenRun
from clutch.errors import AmbiguousTarget, ClutchError, Forbidden, NotFound, StoreError
from clutch.store.transaction import P, T, TxFunction
from clutch.transactions import schedules
from clutch.transactions.authority import guarded
from clutch.transactions.control import KillReport
from clutch.transactions.read import status, targets, transcripts
from clutch.transactions.read.targets import ResolvedTarget
from clutch.transactions.schedules import StoredSchedule
from clutch.transactions.sessions import Stale

Body = Mapping[str, Any]


async def use(run: OpenRun, call: Call, place: int) -> tuple[str, bool]:
    """The text for the model, and whether it failed."""
    try:
        asked = run.services.toolbox.session_call(call.name, call.args)
        said = await _Tools(run, f"{run.session_id}:{run.head}:{place}").carry_out(asked)
    except (Stale, StoreError):
        raise
    except Forbidden as error:
        return _json({"status": "forbidden", "error": str(error), "rule": error.rule}), True
    except (NotFound, AmbiguousTarget) as error:
        return _json({"status": "error", "error": str(error), "candidates": list(error.candidates)}), True
    except ClutchError as error:
        return _json({"status": "error", "error": str(error)}), True
    return said if isinstance(said, str) else _json(said), False


class _Tools:
    def __init__(self, run: OpenRun, key: str) -> None:
        self._run, self._key = run, key
        self._db, self._policy = run.services.db, run.policy
        self._caller = run.caller
        self._who = targets.of_agent(self._caller)
        self._actions = TaskActions(run.services)

    async def carry_out(self, asked: SessionCall) -> str | Body:
        match asked:
            case Act(Action.LIST):
                return await self._db.alone(
                    status.children, self._policy, self._who.viewer, self._run.session_id
                )
            case Act():
                return await self._act(asked)
            case SendTo():
                return await self._send_to(asked)
            case ListSessions():
                return await self._sessions(asked)
            case ReadHistory():
                return await self._history(asked)
            case ListAgents():
                return self._agents()
            case ShowStatus(target):
                return await self._status(target)
            case ChangeSchedule():
                return await self._change_schedule(asked)
            case _:
                assert_never(asked)

    # ---- acting --------------------------------------------------------------------------------------

    async def _act(self, asked: Act) -> Body:
        if asked.target == ALL_CHILDREN:
            below = await self._db.read(status.alive, self._run.session_id)
            return _killed(await self._actions.kill_all(self._caller, below, asked.text or "killed"))
        task = await self._db.read(targets.task, asked.target, self._who)
        actions, who, text = self._actions, self._caller, asked.text
        match asked.action:
            case Action.KILL:
                return _killed(await actions.kill(who, task, text or "killed"))
            case Action.STEER:
                steered = await actions.steer(who, task, text, self._key)
                return {**_accepted(task), "supersedes": _run_id(steered.supersedes)}
            case Action.SEND:
                return _sent(await actions.send(who, task, text, asked.wait_s, self._key))
            case Action.APPROVE:
                return _decided(await actions.approve(who, task, asked.plan_hash, text))
            case Action.REJECT:
                return _decided(await actions.reject(who, task, asked.plan_hash, text))
            case Action.PAUSE:
                return {"changed": _ids(await actions.pause(who, task))}
            case Action.RESUME:
                return {"changed": _ids(await actions.resume(who, task))}
            case Action.RETRY:
                await actions.retry(who, task, text, self._key)
            case Action.CONTINUE:
                await actions.continue_(who, task, text, self._key)
            case Action.REMOVE:
                await actions.remove(who, task)
            case Action.LIST:
                raise AssertionError("a list has no target")
            case _:
                assert_never(asked.action)
        return _accepted(task)

    async def _send_to(self, asked: SendTo) -> Body:
        found = await self._found(asked)
        if found.task_id is not None:
            decided = await self._actions.decide_by_words(self._caller, found.task_id, asked.text)
            if decided is not None:
                return _decided(decided)
        return _sent(
            await self._actions.send(self._caller, found.session_id, asked.text, asked.wait_s, self._key)
        )

    async def _found(self, asked: SendTo) -> ResolvedTarget:
        if asked.label is None:
            return await self._db.read(status.meant, asked.target or "", self._who)
        agent_id = asked.agent_id or self._caller.agent_id
        return await self._db.read(status.labelled, asked.label, agent_id, self._who)

    async def _change_schedule(self, asked: ChangeSchedule) -> Body:
        """An agent changes the schedules of its session only; which of them it added does not matter."""
        own, services = self._run.about.session_key, self._run.services
        if asked.spec is not None:
            spec = replace(asked.spec, session=own)
            await schedule_runs.check(services, spec)
            return self._schedule(await self._db.alone(schedules.add, services.ids.next(), spec))
        if asked.name not in {one.name for one in await self._schedules_of(own)}:
            raise NotFound(f"this session has no schedule {asked.name[:64]!r}; session_status lists them")
        return self._schedule(await self._db.alone(_CHANGES[asked.action], asked.name))

    def _schedule(self, found: StoredSchedule) -> Body:
        return {
            "name": found.name,
            "when": rhythm(found.schedule),
            "paused": found.paused,
            "nextTimes": found.next_times(self._run.services.now()),
            "task": found.schedule.task,
        }

    async def _schedules_of(self, session_key: str) -> list[StoredSchedule]:
        found = await self._db.read(schedules.listed)
        return [one for one in found if one.schedule.session == session_key]

    # ---- looking -------------------------------------------------------------------------------------

    async def _sessions(self, asked: ListSessions) -> Body:
        found = await self._db.read(
            transcripts.sessions, self._caller, self._policy.history, kinds=asked.kinds, limit=asked.limit,
            active_s=asked.active_s, message_limit=asked.message_limit,
        )  # fmt: skip
        return {"sessions": [_line(one) for one in found]}

    async def _history(self, asked: ReadHistory) -> Body:
        found = await self._db.read(status.meant, asked.target, self._who)
        session_id, rules = found.session_id, self._policy.history
        if asked.of_result:
            shown = await self._read(session_id, transcripts.result, session_id, rules, asked.offset)
        else:
            shown = await self._read(
                session_id, transcripts.history, session_id, rules, limit=asked.limit, before=asked.before,
                with_tools=asked.with_tools, offset=asked.offset,
            )  # fmt: skip
        return {
            "sessionKey": found.session_key,
            "messages": [_entry(said) for said in shown.entries],
            "truncated": shown.is_cut,
            "droppedMessages": shown.is_dropped,
            "contentRedacted": shown.is_redacted,
            "before": shown.before,
        }

    async def _read(self, session_id: int, fn: TxFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._db.read(guarded, self._caller, Verb.READ, session_id, fn, *args, **kwargs)

    def _agents(self) -> Body:
        own, policy = self._caller.agent_id, self._policy
        allowed = policy.limits_of(own).allow_agents
        known = spawnable(policy, own) | (allowed - {"*"})
        named = [own, *sorted(known - {own})]
        return {
            "requester": own,
            "allowAny": "*" in allowed,
            "agents": [
                {
                    "id": one,
                    "model": policy.model_of(one),
                    "configured": one in known_agents(policy),
                    **({"description": text} if (text := policy.agent(one).description) else {}),
                }
                for one in named
            ],
        }

    async def _status(self, target: str) -> Body:
        found = await self._db.read(status.meant, target, self._who)
        about = await self._db.read(
            guarded, self._caller, Verb.READ, found.session_id, status.status, found.session_id
        )
        used = about.used
        problems = [one for one in self._run.services.problems() if one.is_error]
        planned = [self._schedule(one) for one in await self._schedules_of(about.key)]
        return {
            "sessionKey": about.key,
            "agentId": about.agent_id,
            "depth": about.depth,
            "role": about.role,
            "model": about.model or self._policy.model_of(about.agent_id),
            "thinking": about.thinking,
            "phase": about.phase,
            "running": about.is_running,
            "waitingLetters": about.waiting,
            "children": {"active": about.children_active, "total": about.children_total},
            "usage": {
                "input": used.input,
                "output": used.output,
                "calls": used.calls,
                "usd": None if used.usd is None else format(used.usd, "f"),
            },
            **(
                {"problems": [{"detail": one.detail, "remedy": one.remedy} for one in problems]}
                if problems
                else {}
            ),
            **({"schedules": planned} if planned else {}),
        }


_CHANGES = {
    ScheduleAction.PAUSE: schedules.pause,
    ScheduleAction.RESUME: schedules.resume,
    ScheduleAction.REMOVE: schedules.remove,
}


# ---- as text -----------------------------------------------------------------------------------------


def _json(body: Body) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def _ids(numbers: tuple[int, ...]) -> list[str]:
    return [ids.task_id(number) for number in numbers]


def _run_id(number: int | None) -> str | None:
    return None if number is None else ids.run_id(number)


def _accepted(task_id: int) -> dict[str, Any]:
    return {"status": "accepted", "taskId": ids.task_id(task_id)}


def _killed(report: KillReport) -> Body:
    return {
        "stopped": _ids(report.stopped),
        "stillStopping": _reasons(report.still_stopping),
        "alreadyFinished": _ids(report.already_finished),
        "notStopped": _reasons(report.not_stopped),
    }


def _reasons(tasks: Sequence[tuple[int, str]]) -> list[Body]:
    return [{"taskId": ids.task_id(one), "why": why} for one, why in tasks]


def _sent(sent: SendResult) -> Body:
    return {"status": sent.status} if sent.reply is None else {"status": sent.status, "reply": sent.reply}


def _decided(decided: PlanDecision) -> Body:
    return {"status": decided.status, "taskId": ids.task_id(decided.task_id), "round": decided.round}


def _line(one: transcripts.SessionLine) -> Body:
    line: dict[str, Any] = {"sessionKey": one.key, "kind": one.kind, "agentId": one.agent_id}
    if one.task is not None:
        line |= {
            "taskId": ids.task_id(one.task.task_id),
            "label": one.task.label,
            "phase": one.task.phase,
            "outcome": one.task.outcome,
        }
    if one.last:
        line["messages"] = [_entry(said) for said in one.last]
    return line


def _entry(said: HistoryEntry) -> Body:
    entry: dict[str, Any] = {"seq": said.seq, "kind": said.kind, "text": said.text}
    if said.source:
        entry["source"] = said.source
    if said.calls:
        entry["calls"] = list(said.calls)
    if said.next_offset is not None:
        entry["nextOffset"] = said.next_offset
    return entry
