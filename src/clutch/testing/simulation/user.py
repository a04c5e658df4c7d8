"""The user of a simulated world: writes, halts, kills, steers, pauses, decides, answers, goes, comes back.

Every request goes through some gateway. If that one dies or loses its store on the way, the user asks another one
with the same key: what was done already must be found, not done twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from clutch.core.authority import AgentGrant, root_rights
from clutch.core.authority import to_text as rights_text
from clutch.core.events import PlanVerdict
from clutch.core.ids import plan_hash
from clutch.core.model import LetterKind
from clutch.core.policy import Policy
from clutch.core.questions import Decision, QuestionChanged, QuestionKind
from clutch.core.spawn import SpawnRequest
from clutch.engine.services import Services
from clutch.engine.spawn import Spawned, spawn_all
from clutch.engine.task_files import drop
from clutch.errors import ClutchError, InvalidInput, StoreError
from clutch.store.transaction import Tx
from clutch.testing.simulation import script
from clutch.testing.simulation.agents import spawn_request
from clutch.testing.simulation.faults import Dead, Fault
from clutch.testing.simulation.gateway import Gateway, sim_uuid4
from clutch.transactions import control, inbox, messages, sessions, usage
from clutch.transactions.spawn import Accepted, ChildRequest

if TYPE_CHECKING:
    from clutch.testing.simulation.world import World

#: How often the user does what, relative to each other.
VERBS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "say": 5,
        "spawn": 4,
        "kill": 6,
        "steer": 7,
        "send": 6,
        "stop": 1,
        "halt": 3,
        "remove": 2,
        "pause": 3,
        "resume": 3,
        "decide": 5,
        "answer": 8,
        "retry": 5,
        "continue": 5,
        "redeliver": 4,
        "dismiss": 1,
        "come_back": 2,
    }
)


#: What the user kills: anything, but rather what has others below it or stands between two phases.
ANY_LIVING: Final = "phase NOT IN ('completed', 'completed_giveup')"
UNSETTLED: Final = "phase IN ('spawning', 'announce_deferred')"
HAS_CHILDREN: Final = (
    "phase NOT IN ('completed', 'completed_giveup')"
    " AND id IN (SELECT requester_id FROM tasks WHERE outcome IS NULL)"
)

#: What a user tries again is mostly what ended just now; and what has just ended is still moving.
JUST_ENDED: Final = (
    "id IN (SELECT id FROM tasks WHERE outcome IS NOT NULL AND has_cleanup >= ?"
    " ORDER BY ended_at DESC, id LIMIT 3)"
)


Decided = tuple[Decision, str, str]  #: with its text and the hash of the item that was shown


def _answer(
    now: float, policy: Policy, question_id: int, mistakes: Sequence[Decided], meant: Decided
) -> Tx[Decided | None]:
    """Decide, after every mistake a surface could let through. Returns the mistake that was taken."""
    for said in (*mistakes, meant):
        decision, text, seen = said
        with suppress(*(() if said is meant else (QuestionChanged, InvalidInput))):
            yield from messages.answer(
                now, policy, question_id, decision, text, seen_hash=seen, actor="person"
            )
            return None if said is meant else said
    raise AssertionError("what was meant ends the loop")


class SimUser:
    def __init__(self, world: World) -> None:
        self._world, self._rng = world, world.rng
        self.mains: list[int] = []
        self.counted: Counter[str] = Counter()
        self._wishes = 0
        self._thought_of: set[int] = set()

    async def arrive(self, count: int, depth_left: int) -> None:
        """Open the main sessions and give each its first job."""
        rights = rights_text(root_rights(AgentGrant(depth_max=self._world.policy.limits.depth_max)))
        for number in range(count):
            key = f"agent:main:chat:m{number}"
            made = sessions.NewMain(self._new_id(), key, "main", rights, f"terminal:{number}", ".")
            if self._rng.random() < self._world.setting.thrift:
                opened = await self.surely(None, usage.open_root, self._world.policy, made)
            else:
                opened = await self.surely(None, sessions.open_session, made)
            self.mains.append(opened)
            await self._tell(self.mains[-1], script.words(self._world.author.main_job(depth_left)))
            await asyncio.sleep(self._rng.random())

    async def meddle(self, pause_s: float) -> None:
        """For ever: do something, wait a while."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / pause_s))
            if not self.mains:
                continue
            verb = self._rng.choices(list(VERBS), weights=list(VERBS.values()))[0]
            await self._do(verb)

    async def wander(self, pause_s: float) -> None:
        """For ever: leave some main session, come back to some."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / pause_s))
            await self.go_away()
            await asyncio.sleep(self._rng.expovariate(1 / pause_s))
            await self._come_back()

    async def help_out(self, pause_s: float) -> None:
        """For ever: give a session that waits for its children one more child, which may fail to start."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / pause_s))
            asleep = self._world.disk.query(
                "SELECT id FROM sessions WHERE is_task = 0 AND hold = 1 ORDER BY id"
            )
            if asleep:
                job = {**self._world.author.small_job(), "isolated": 1}
                await self._spawn_in(self._rng.choice(asleep)[0], job)

    async def tidy(self, pause_s: float) -> None:
        """For ever: throw away what is over, and want it after all."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / pause_s))
            await self._do(self._rng.choice(("remove", "remove", "kill", "retry", "continue")))

    async def _do(self, verb: str) -> None:
        try:
            done = await getattr(self, f"_{verb}")()
        except ClutchError as error:
            self._world.tell(f"person {verb}: {type(error).__name__}")
            return
        if done is not False:
            self.counted[verb] += 1

    # ---- asking --------------------------------------------------------------------------------------

    async def surely(self, key: int | None, fn: Callable[..., Any], *args: Any, **named: Any) -> Any:
        def call(gateway: Gateway) -> Awaitable[Any]:
            db = gateway.db
            return db.alone(fn, *args, **named) if key is None else db.tx(key, fn, *args, **named)

        return await self._somewhere(call, fn.__name__)

    async def _somewhere(self, call: Callable[[Gateway], Awaitable[Any]], what: str) -> Any:
        while True:
            gateway = self._somebody()
            if gateway is not None:
                try:
                    return await call(gateway)
                except (StoreError, Dead) as error:
                    self._world.tell(f"person asks again: {type(error).__name__} {what}")
            await asyncio.sleep(0.2)

    async def _served_by(self, call: Callable[[Services], Coroutine[Any, Any, Any]], what: str) -> Any:
        return await self._somewhere(lambda gateway: self._served(call(gateway.worker.services)), what)

    async def _served(self, call: Coroutine[Any, Any, Any]) -> Any:
        """The gateway continues when the user does not wait any more."""
        serving = self._world.loop.create_task(call)
        serving.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return await asyncio.shield(serving)

    def _somebody(self) -> Gateway | None:
        up = [gateway for gateway in self._world.gateways if gateway.is_up]
        return self._rng.choice(up) if up else None

    def _new_id(self) -> int:
        self._wishes += 1
        return self._wishes

    def key(self, verb: str) -> str:
        return f"{verb}:{self._new_id()}"

    def _one(self, where: str, *parameters: Any) -> tuple[Any, ...] | None:
        """Some task, as it is now."""
        rows = self._world.disk.query(
            f"SELECT id, result, generation FROM tasks WHERE {where} ORDER BY id",  # noqa: S608 (constant words)
            *parameters,
        )
        return self._rng.choice(rows) if rows else None

    # ---- the verbs -----------------------------------------------------------------------------------

    async def _tell(self, session_id: int, text: str) -> None:
        key = self.key("say")
        place = self._rng.choice(("", f"web:{session_id}"))  # people write from here and from there
        await self.surely(session_id, inbox.post, session_id, key, LetterKind.USER, text, route=place)
        self._world.observer.said(session_id, key, text)

    async def _say(self) -> None:
        author = self._world.author
        # One whose children know from where it came.
        job = author.small_job() if self._rng.random() < 0.6 else author.main_job(1)
        text = script.words(job) if self._rng.random() < 0.5 else f"by the way, {job['name']}"
        await self._tell(self._rng.choice(self.mains), text)

    async def _spawn(self) -> bool:
        job = self._world.author.child_job(self._world.policy.limits.depth_max - 1)
        return await self._spawn_in(self._rng.choice(self.mains), job)

    async def _spawn_in(self, session_id: int, job: dict[str, Any]) -> bool:
        request = spawn_request(script.spawn_arguments(job))
        return isinstance(await self.spawn_for(session_id, request), Accepted)

    async def spawn_for(self, session_id: int, request: SpawnRequest) -> Spawned:
        idem = self.key("person")

        def ask(services: Services) -> Coroutine[Any, Any, list[Spawned]]:
            order = ChildRequest(idem, self._new_id(), sim_uuid4(self._rng), request, 0)
            return spawn_all(services, session_id, session_id, None, [order])

        answer: Spawned
        (answer,) = await self._served_by(ask, "spawn")
        if isinstance(answer, Accepted):
            self._world.observer.accepted(idem, answer.task_id)
        return answer

    async def _kill(self) -> bool:
        wanted = self._rng.choice((UNSETTLED, UNSETTLED, HAS_CHILDREN, ANY_LIVING))
        chosen = self._one(wanted)
        chosen = chosen or self._one(ANY_LIVING)
        if chosen is None:
            return False
        report = await self.surely(None, control.kill, self._world.policy, chosen[0], "enough", "person")
        return bool(report.stopped)

    async def _steer(self) -> bool:
        chosen = self._one("phase NOT IN ('completed', 'completed_giveup', 'awaiting_approval')")
        if chosen is None:
            return False
        job = self._world.author.small_job()
        text = script.words(job) if self._rng.random() < 0.5 else f"rather {job['name']}"
        await self.surely(
            None, messages.steer, self._world.policy, chosen[0], self.key("steer"), text, actor="person"
        )
        return True

    async def _send(self) -> bool:
        """Also to one that is about to end, and to one that has just ended and refuses."""
        chosen = self._one("phase NOT IN ('completed', 'completed_giveup')")
        if chosen is None:
            return False
        job = self._world.author.small_job()
        text = script.words(job) if self._rng.random() < 0.3 else f"and {job['name']}"
        await self.surely(
            None, messages.send, self._world.policy, chosen[0], self.key("send"), text, actor="person"
        )
        return True

    async def _stop(self) -> bool:
        """What was said to it and not read is over, too."""
        session_id = self._rng.choice(self.mains)
        self._world.observer.closed.add(session_id)
        report = await self.surely(None, control.stop, self._world.policy, session_id, "enough", "person")
        return report.own_run or bool(report.stopped)

    async def _halt(self) -> bool:
        """Only its turn, rather while there is one: what it has read is over, what it has not is read later."""
        busy = self._world.disk.query("SELECT id FROM sessions WHERE is_task = 0 AND owner > 0 ORDER BY id")
        session_id = self._rng.choice(busy)[0] if busy else self._rng.choice(self.mains)
        self._world.observer.halted.add(session_id)
        done: bool = await self.surely(None, control.halt, self._world.policy, session_id, "person")
        return done

    async def _remove(self) -> bool:
        """As the verb does it, the row and then the files; and perhaps one thinks better of it meanwhile."""
        chosen = self._one(
            "phase = 'completed' AND archived_at IS NULL AND (files IS NOT NULL) >= ?",
            self._rng.choice((0, 1)),
        )
        if chosen is None:
            return False
        task_id = chosen[0]
        await self.surely(None, control.remove, self._world.policy, task_id, "person")
        removing = self._served_by(lambda services: drop(services, [task_id]), "drop")
        await asyncio.gather(
            removing, self._regret(task_id) if self._rng.random() < 0.7 else asyncio.sleep(0)
        )
        return True

    async def _regret(self, task_id: int) -> None:
        await asyncio.sleep(self._rng.random() * 0.15)
        words = script.words(self._world.author.small_job())
        await self._peacefully(
            control.again, task_id, "continue", self.key("continue"), text=words, actor="person"
        )

    async def _pause(self) -> bool:
        chosen = self._one("phase NOT IN ('completed', 'completed_giveup')")
        return await self._on_task(control.pause, chosen)

    async def _resume(self) -> bool:
        chosen = self._one("id IN (SELECT id FROM sessions WHERE paused = 1)")
        return await self._on_task(control.resume, chosen)

    async def _on_task(self, fn: Callable[..., Any], chosen: tuple[Any, ...] | None) -> bool:
        if chosen is None:
            return False
        await self.surely(None, fn, self._world.policy, chosen[0], "person")
        return True

    async def _decide(self) -> bool:
        chosen = self._one("phase = 'awaiting_approval'")
        if chosen is None:
            return False
        verdict = self._rng.choice(
            (PlanVerdict.APPROVE, PlanVerdict.APPROVE, PlanVerdict.REVISE, PlanVerdict.END)
        )
        await self._verdict(chosen, verdict)
        return True

    async def _verdict(self, chosen: tuple[Any, ...], verdict: PlanVerdict) -> None:
        task_id, plan, _ = chosen
        seen = plan_hash(plan or "")
        await self.surely(
            None, messages.decide, self._world.policy, task_id, verdict, seen, text="so be it", actor="person"
        )

    async def _answer(self) -> bool:
        waiting = self._questions()
        if waiting:
            await self._say_about(*self._rng.choice(waiting))
        return bool(waiting)

    def _questions(self) -> list[tuple[Any, ...]]:
        """The needs-you inbox."""
        return self._world.disk.query(
            "SELECT id, kind, hash FROM questions WHERE answered_at IS NULL ORDER BY id"
        )

    async def _say_about(self, question_id: int, kind: str, seen: str) -> None:
        yes = Decision.ANSWER if kind == QuestionKind.QUESTION else Decision.APPROVE
        decision = yes if self._rng.random() < 0.7 else Decision.REJECT
        self._world.observer.decided(question_id, decision)
        mistakes = [(decision, "", plan_hash("what stood there before"))]
        if kind == QuestionKind.QUESTION:
            mistakes.append((Decision.ANSWER, " \n", seen))
        taken = await self.surely(
            None, _answer, self._world.policy, question_id, mistakes, (decision, "as you like", seen)
        )
        self._world.observer.mistaken(question_id, taken)

    async def _retry(self) -> bool:
        return await self._again("retry")

    async def _continue(self) -> bool:
        return await self._again("continue")

    async def _again(self, how: str) -> bool:
        chosen = self._one("phase = 'completed_giveup'") if self._rng.random() < 0.3 else None
        chosen = chosen or self._one(JUST_ENDED, self._rng.choice((0, 1)))
        if chosen is None:
            return False
        text = "" if how == "retry" else script.words(self._world.author.small_job())
        await self.surely(
            None, control.again, self._world.policy, chosen[0], how, self.key(how), text=text, actor="person"
        )
        return True

    async def _redeliver(self) -> bool:
        return await self._on_task(control.redeliver, self._one("delivery = 'undelivered'"))

    async def _dismiss(self) -> bool:
        return await self._on_task(control.dismiss, self._one("delivery = 'undelivered'"))

    async def go_away(self) -> None:
        """A main session is closed while its children work."""
        open_ones = self._world.disk.query(
            "SELECT id FROM sessions WHERE is_task = 0 AND closed = 0 ORDER BY id"
        )
        if open_ones:
            session_id = self._rng.choice(open_ones)[0]
            self._world.dice.note(Fault.REQUESTER_GONE, session_id)
            self._world.observer.closed.add(session_id)
            await self.surely(None, control.close_main, self._world.policy, session_id)

    async def _come_back(self) -> bool:
        closed = self._world.disk.query(
            "SELECT id FROM sessions WHERE is_task = 0 AND closed = 1 ORDER BY id"
        )
        if not closed:
            return False
        await self.surely(None, control.open_main, self._world.policy, self._rng.choice(closed)[0])
        return True

    async def put_right(self) -> None:
        """Leave nothing waiting for a person: resume what is paused, decide what asks, answer every question."""
        for (task_id,) in self._world.disk.query(
            "SELECT id FROM sessions WHERE paused = 1 ORDER BY depth, id"
        ):
            await self._peacefully(control.resume, task_id, "person")
        for chosen in self._world.disk.query(
            "SELECT id, result, generation FROM tasks WHERE phase = 'awaiting_approval' ORDER BY id"
        ):
            try:
                await self._verdict(chosen, PlanVerdict.APPROVE)
            except ClutchError as error:
                self._world.tell(f"person cannot decide: {type(error).__name__}")
        for question in self._questions():
            try:
                await self._say_about(*question)
            except ClutchError as error:
                self._world.tell(f"person cannot answer: {type(error).__name__}")

    async def thinks_again(self) -> bool:
        """About a dead letter, once for each: tell it again, forget it, have it done again, or leave it."""
        rows = self._world.disk.query(
            "SELECT id, root_id FROM tasks WHERE delivery = 'undelivered' ORDER BY id"
        )
        new = [row for row in rows if row[0] not in self._thought_of]
        for task_id, root_id in new:
            self._thought_of.add(task_id)
            what = self._rng.choice(("redeliver", "redeliver", "dismiss", "retry", "leave"))
            self.counted[what] += 1
            match what:
                case "redeliver":
                    await self._peacefully(control.redeliver, task_id, "person")
                case "dismiss":
                    await self._peacefully(control.dismiss, task_id, "person")
                case "retry":
                    await self._peacefully(control.open_main, root_id)
                    await self._peacefully(
                        control.again, task_id, "retry", self.key("retry"), text="", actor="person"
                    )
                case _:
                    pass
        return bool(new)

    async def _peacefully(self, fn: Callable[..., Any], *args: Any, **named: Any) -> None:
        try:
            await self.surely(None, fn, self._world.policy, *args, **named)
        except ClutchError as error:
            self._world.tell(f"person cannot {fn.__name__}: {type(error).__name__}")
