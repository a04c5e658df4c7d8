"""Tasks, in the process that has the engine: how they are spawned, found, awaited and decided on.

Every verb goes through the desk, like those of all surfaces. Every write carries a key, so when the store loses the
connection and the commit is in doubt, asking again finds what was written instead of doing it twice.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from clutch.core import authority, keys
from clutch.core.admission import Refused
from clutch.core.authority import EVERY_SCOPE, OperatorCaller, root_rights
from clutch.core.choosing import known_agents
from clutch.core.keys import SessionKey
from clutch.core.messages import Usage
from clutch.core.routes import COUNTER
from clutch.engine import spawning
from clutch.engine.insisting import surely
from clutch.engine.kit import Kit
from clutch.errors import InvalidInput, NotFound
from clutch.gateway import reads
from clutch.gateway.checks import main_session, task_number
from clutch.gateway.desk import Desk
from clutch.gateway.doors import Known
from clutch.gateway.handles import Event, Question, TaskResult, item_of, question_of
from clutch.gateway.leaving import Leaving
from clutch.gateway.objects import Object
from clutch.gateway.reads import Filter
from clutch.gateway.spawns import OnFullWord, Spawns, check_on_full
from clutch.gateway.waiting import Waiting
from clutch.ports import FilesFailed
from clutch.protocol import control, heartbeat, preparing, queries, results, usage
from clutch.protocol.questions import Decision
from clutch.protocol.targets import Standpoint
from clutch.store.door import Keys, Tx

T = TypeVar("T")

PROGRAM = OperatorCaller(EVERY_SCOPE, "api")  #: whoever embeds Clutch may do everything
AS_PROGRAM = Standpoint(PROGRAM, "api")


class Tasks:
    def __init__(self, kit: Kit, waiting: Waiting, leaving: Leaving | None = None) -> None:
        self.kit, self.leaving = kit, leaving
        self._waiting = waiting
        self._spawns = Spawns(kit, waiting, self._surely)
        self._sessions: dict[str, int] = {}

    # ---- one -----------------------------------------------------------------------------------------

    async def ended(self, task_id: str) -> TaskResult[Any]:
        ended = await self._waiting.end_of(task_number(task_id))
        value = None if ended.value is None else json.loads(ended.value)
        return TaskResult(ended.outcome, ended.text, ended.error, value, ended.files)

    async def known(self, task_id: str) -> Known:
        number = task_number(task_id)
        found = await self.kit.door.read(results.known, number)
        if found is None:
            raise NotFound(f"there is no task {task_id}")
        return Known(keys.task_id(number), *found)

    async def info(self, task_id: str) -> Object:
        return await self.kit.door.read(reads.known, task_number(task_id))

    async def why(self, task_id: str) -> Object:
        return await self.kit.door.read(reads.why, AS_PROGRAM, task_id)

    async def read_file(self, task_id: str, name: str) -> bytes:
        try:
            if self.kit.files is not None:
                shelf = await self.kit.door.read(preparing.shelf_of, task_number(task_id))
                return await self.kit.files.read(shelf, name)
        except FilesFailed as error:
            raise NotFound(f"{name[:80]!r} of {task_id}: {error}") from error
        raise NotFound("no files are kept here")

    async def act(self, verb: str, task_id: str, **said: Any) -> Object:
        done: Object = await getattr(Desk(self), verb)(PROGRAM, task_id, **said)
        return done

    # ---- many ----------------------------------------------------------------------------------------

    async def spawn(self, args: Mapping[str, Any], session: str, on_full: OnFullWord | None = None) -> Object:
        """Whether the session is still there is asked only after a refusal."""
        check_on_full(on_full)
        self._check_accepts()
        known = self._known(session)
        try:
            request = await self._spawns.wanted(args)
        except InvalidInput as error:
            return spawning.wrong(error)
        known = known or await self._number(session)
        order, got = await self._spawns.spawn(known, request, on_full)
        if isinstance(got, Refused) and not await self.kit.door.read(queries.is_open, known):
            order, got = await self._spawns.spawn(await self._number(session), request, on_full)
        return spawning.answer(order, got)

    async def tasks(self, asked: Filter) -> list[Known]:
        found = await self.kit.door.read(reads.found, AS_PROGRAM, asked)
        return [Known(keys.task_id(one.task_id), one.label, one.session_key or "") for one in found]

    async def events(self) -> AsyncGenerator[Event, None]:
        bus = self.kit.bus
        watcher = bus.watch()
        try:
            async for live in watcher:
                data = live.data if isinstance(live.data, (str, Usage)) else None
                task = keys.task_id(live.session_id) if live.is_task else None
                yield Event(live.name, task, data, keys.run_id(live.run_id), live.session_key, live.seq)
        finally:
            bus.leave(watcher)

    async def questions(self) -> list[Question]:
        return [question_of(item) for item in (await self.kit.door.read(reads.inbox, AS_PROGRAM))["items"]]

    async def answer(self, question: Question, decision: Decision, text: str) -> None:
        await Desk(self).answer(PROGRAM, item_of(question), decision, text, question.hash)

    # ---- the sessions they work for ------------------------------------------------------------------

    async def session(self, session: str) -> tuple[int, str]:
        """The number of a main session, made if it is not there, and its agent."""
        return await self._number(session), self._parsed(session).agent_id

    async def _number(self, session: str) -> int:
        known = self._known(session)
        if known is None or not await self.kit.door.read(queries.is_open, known):
            known = self._sessions[session] = await self._opened(session)
        return known

    def _known(self, session: str) -> int | None:
        """Raises InvalidInput for what is no main session."""
        return self._sessions.get(str(self._parsed(session)))

    def _parsed(self, session: str) -> SessionKey:
        return main_session(session, known_agents(self.kit.policy))

    async def _opened(self, session: str) -> int:
        """One that was deleted begins anew; one that was archived comes back with what was said in it. Raises
        InvalidInput for a new one of an agent that is not configured: it is a slip of the pen."""
        kit, parsed = self.kit, self._parsed(session)
        number, agent_id, agents = kit.ids.next(), parsed.agent_id, known_agents(kit.policy)
        if agent_id not in agents and not await kit.door.read(queries.is_known, session):
            raise InvalidInput("session", f"there is no agent {agent_id!r}{keys.hint(agent_id, agents)}")
        rights = authority.to_text(root_rights(kit.policy.grant(agent_id)))
        route, workspace = f"{COUNTER}:{parsed}", kit.policy.workspace_of(agent_id) or "."
        opened = await self._alone(
            usage.open_root, kit.policy, number, session, agent_id, rights, route, workspace
        )
        if kit.policy.heartbeat_of(agent_id) is not None:
            await self._alone(heartbeat.arm, kit.policy)
        await self._alone(control.open_main, kit.policy, opened)
        return opened

    # ---- how it is written ---------------------------------------------------------------------------

    def _check_accepts(self) -> None:
        """Raises Draining."""
        if self.leaving is not None:
            self.leaving.check_open()

    async def _tx(self, written: Keys, fn: Callable[..., Tx[T]], *args: Any) -> T:
        return await self._surely(lambda: self.kit.door.tx(written, fn, *args))

    async def _alone(self, fn: Callable[..., Tx[T]], *args: Any) -> T:
        return await self._surely(lambda: self.kit.door.alone(fn, *args))

    async def _surely(self, ask: Callable[[], Awaitable[T]]) -> T:
        return await surely(self.kit.policy.work.tick_s, ask)
