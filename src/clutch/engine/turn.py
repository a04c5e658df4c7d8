"""One run: the agent loop.

    begin → ask the model → respond → tools → results → ask … → finish

A plain function over the transcript. Every model response and every tool result is committed before the
next step, so going on after a crash is the same code as going on: look at the last message.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from clutch.core import keys, wording
from clutch.core.admission import Refused
from clutch.core.authority import under_plan
from clutch.core.messages import Answer, Message, Result, Results
from clutch.core.model import Plan
from clutch.core.policy import Policy
from clutch.engine.bus import Bus, Live
from clutch.engine.ids import Ids
from clutch.errors import InvalidInput
from clutch.ports import (
    Delta,
    DeltaKind,
    Lives,
    ModelError,
    ModelRequest,
    Models,
    Toolbox,
    ToolContext,
    ToolFailed,
    ToolSpec,
    Trouble,
)
from clutch.protocol import queries, turns
from clutch.protocol.queries import Briefing
from clutch.protocol.sessions import Stale
from clutch.protocol.spawn import Accepted, Order, spawn
from clutch.protocol.turns import Begun, Boundary
from clutch.protocol.workers import Claimed
from clutch.store.door import Door, Tx

T = TypeVar("T")

SPAWN, YIELD = "sessions_spawn", "sessions_yield"
RETRYABLE = frozenset({Trouble.RATE_LIMIT, Trouble.OVERLOADED, Trouble.NETWORK, Trouble.MALFORMED})
COMPLETE = frozenset({"end", "tools"})
MAIN_PROMPT = (
    "You are the main agent. You may delegate work to background subagents with `sessions_spawn`; their results "
    "are pushed to you as messages. Call `sessions_yield` to sleep until all of them have reported."
)


@dataclass(slots=True)
class Kit:
    """What every turn of one worker shares."""

    door: Door
    models: Models
    toolbox: Toolbox
    policy: Policy
    ids: Ids
    bus: Bus
    default_model: str = "offline"
    lives: Lives | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)


class Turn:
    def __init__(self, kit: Kit, claimed: Claimed) -> None:
        self.kit = kit
        self.session_id, self.fence = claimed.session_id, claimed.fence
        self.transcript: list[Message] = []

    async def run(self) -> None:
        begun = await self._begin()
        if begun is None:
            return
        self.run_id, self.head = begun.run_id, begun.head
        self.is_unanswered, self.senders = begun.is_unanswered, begun.senders
        self.briefing = await self.kit.door.read(queries.briefing, self.session_id)
        if self.briefing.fence != self.fence:
            # Somebody took over since: what is read here may be theirs, and their calls are not ours to run.
            raise Stale(f"session {self.session_id} is owned by somebody else now")
        self.transcript, self.steps = list(self.briefing.transcript), self.briefing.steps
        self.specs = tools_for(self.briefing, self.kit.toolbox.specs())
        self.allowed = frozenset(spec.name for spec in self.specs)
        self.replay_safe = frozenset(spec.name for spec in self.specs if spec.replay_safe)
        self._tell("lifecycle:start")
        await self._steps(begun.is_resumed)
        self._tell("lifecycle:end")

    async def _begin(self) -> Begun | None:
        kit = self.kit
        known = (kit.policy, self.session_id, self.fence, kit.ids.next(), kit.ids.nonce())
        if kit.policy.limits.on_parent_end:
            return await kit.door.alone(turns.begin, *known)  # a crash loop may kill the children
        return await kit.door.tx(self.session_id, turns.begin, *known)

    async def _steps(self, is_resumed: bool) -> None:
        """`interrupted`: the calls of the last answer may have been started by somebody who is dead now."""
        interrupted = is_resumed
        while True:
            answer = self._open_answer()
            if answer is None:
                interrupted = False
                if self.kit.stopping.is_set():
                    return await self._hand_over()
                answer = await self._ask()
                if answer is None:
                    return
            boundary = await self._tools(answer, interrupted)
            if not boundary.goes_on:
                return
            self.transcript.extend(boundary.inputs)
            self.head += 1 + len(boundary.inputs)
            self.is_unanswered, self.senders = boundary.is_unanswered, boundary.senders

    def _open_answer(self) -> Answer | None:
        last = self.transcript[-1] if self.transcript else None
        return last if isinstance(last, Answer) and last.calls else None

    # ---- the model -----------------------------------------------------------------------------------

    async def _ask(self) -> Answer | None:
        """An answer with calls, committed. None: the run is over, parked or failed."""
        limit = self.kit.policy.life.steps_max
        if self.steps >= limit:
            await self._fail(f"step limit of {limit} reached", is_final=True)
            return None
        try:
            answer = await self.kit.models.ask(self._request(), self._on_delta)
        except ModelError as error:
            await self._stumble(error)
            return None
        self._tell("usage", answer.usage)
        return await self._heard(answer)

    async def _heard(self, answer: Answer) -> Answer | None:
        is_complete = answer.stop in COMPLETE
        if is_complete and not answer.calls:
            await self._finish(answer)
            return None
        if not is_complete:
            error = f"the provider cut the answer ({answer.stop})"
            self._tell("lifecycle:error", error)
            await self._tx(turns.fail, error, False, answer, self.is_unanswered, with_senders=True)
            return None
        await self._respond(answer)
        return answer

    def _request(self) -> ModelRequest:
        model = self.briefing.model or self.kit.default_model
        key = f"{self.briefing.session_key}:{self.head}"
        return ModelRequest(model, self._system(), tuple(self.transcript), self.specs, key)

    def _on_delta(self, delta: Delta) -> None:
        if delta.kind is not DeltaKind.CALL:
            self._tell(f"assistant:{delta.kind}", delta.text)

    async def _stumble(self, error: ModelError) -> None:
        self._tell("lifecycle:error", str(error))
        is_retryable = error.trouble in RETRYABLE
        await self._tx(turns.stumble, str(error), is_retryable, error.retry_at, with_senders=True)

    async def _fail(self, error: str, is_final: bool) -> None:
        self._tell("lifecycle:error", error)
        await self._tx(turns.fail, error, is_final, with_senders=True)

    async def _finish(self, answer: Answer) -> None:
        try:
            await self._tx(turns.finish, answer, self.is_unanswered, with_senders=True)
        except Stale:
            await self.kit.door.tx(self.session_id, turns.late, self.kit.policy, self.session_id, answer.text)
            raise

    async def _respond(self, answer: Answer) -> None:
        flags = [call.name in self.replay_safe for call in answer.calls]
        self.head = await self._tx(turns.respond, answer, flags, self.is_unanswered, with_senders=True)
        self.transcript.append(answer)
        self.steps += 1
        self.is_unanswered, self.senders = False, ()

    async def _hand_over(self) -> None:
        kit = self.kit
        await kit.door.tx(self.session_id, turns.hand_over, kit.policy, self.session_id, self.fence)

    # ---- the tools -----------------------------------------------------------------------------------

    async def _tools(self, answer: Answer, interrupted: bool) -> Boundary:
        """All calls of one answer at once; one commit for what they gave."""
        wanted = {place: call.name for place, call in enumerate(answer.calls) if call.name in self.allowed}
        spawns = [place for place, name in wanted.items() if name == SPAWN]
        sleeps = [place for place, name in wanted.items() if name == YIELD]
        rest = [place for place in range(len(answer.calls)) if place not in spawns + sleeps]
        gave, orders = self._orders(answer, spawns)
        nonce = self.kit.ids.nonce()
        if orders and not rest:
            outcome, boundary = await self._delegate(orders, gave, sleeps, nonce)
            self.transcript.append(outcome)
            return boundary
        gave += await self._spawn(orders)  # at once: the children need not wait for the other tools
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(self._call(answer, place, interrupted)) for place in rest]
        outcome = turns.in_order([*gave, *(task.result() for task in running)])
        if sleeps:
            boundary = await self._tx(turns.yields, outcome, sleeps, nonce)
            outcome = turns.with_yields(outcome, sleeps, turns.NO_CHILD)
        else:
            boundary = await self._tx(turns.results, outcome, nonce)
        self.transcript.append(outcome)
        return boundary

    async def _call(self, answer: Answer, place: int, interrupted: bool) -> Result:
        call = answer.calls[place]
        if interrupted and call.name not in self.replay_safe:
            return Result(place, call.name, wording.OUTCOME_UNKNOWN, failed=True)
        if call.name not in self.allowed:
            return Result(place, call.name, f"there is no tool {call.name[:64]!r} for you", failed=True)
        self._tell("tool:start", call.name)
        key = f"{self.session_id}:{self.head}:{place}"
        context = ToolContext(self.briefing.workspace or ".", self.briefing.session_key, key)
        try:
            text, failed = await self.kit.toolbox.run(call.name, call.args, context), False
        except ToolFailed as error:
            text, failed = str(error), True
        except Exception as error:  # noqa: BLE001 - a tool is foreign code; what it breaks, the model should read
            text, failed = f"{call.name} failed: {type(error).__name__}: {error}"[:2000], True
        self._tell("tool:end", call.name)
        return Result(place, call.name, text, failed)

    def _orders(self, answer: Answer, places: Sequence[int]) -> tuple[list[Result], list[Order]]:
        """What is wrong with some of the spawn calls, and what the others ask for."""
        wrong: list[Result] = []
        orders: list[Order] = []
        for place in places:
            try:
                request = self.kit.toolbox.spawn_request(answer.calls[place].args)
            except InvalidInput as error:
                wrong.append(_said(place, {"status": "error", "error": str(error)}, failed=True))
                continue
            ids = self.kit.ids
            key = f"{self.session_id}:{self.head}:{place}"
            orders.append(Order(key, ids.next(), ids.uuid4(), request, place))
        return wrong, orders

    async def _spawn(self, orders: Sequence[Order]) -> list[Result]:
        if not orders:
            return []
        root, known = self.briefing.root_id, (self.kit.policy, self.session_id)
        answers = await self.kit.door.tx((root, self.session_id), spawn, *known, root, self.fence, orders)
        return [_answer(order, got) for order, got in zip(orders, answers, strict=True)]

    async def _delegate(
        self, orders: Sequence[Order], wrong: Sequence[Result], sleeps: Sequence[int], nonce: str
    ) -> tuple[Results, Boundary]:
        """Children, results and sleep in one commit."""
        kit, root = self.kit, self.briefing.root_id
        return await kit.door.tx(
            (root, self.session_id), turns.delegate, kit.policy, self.session_id, self.fence, self.run_id, root,
            orders, wrong, sleeps, nonce, _answer,
        )  # fmt: skip

    # ---- around it ------------------------------------------------------------------------------------

    def _system(self) -> str:
        about: Briefing = self.briefing
        if not about.depth:
            return MAIN_PROMPT
        brief = wording.ChildBrief(
            label=about.label or "",
            session_key=about.session_key,
            requester=about.requester_key or "",
            depth=about.depth,
            depth_max=about.rights.depth_max,
            may_spawn=about.rights.may_spawn,
            plan_mode=about.plan == Plan.DRAFTING,
        )
        return wording.system_prompt(brief)

    async def _tx(self, fn: Callable[..., Tx[T]], *args: Any, with_senders: bool = False) -> T:
        """`with_senders`: the transaction also steps the tasks whose letters this run has read."""
        door, policy = self.kit.door, self.kit.policy
        known = (policy, self.session_id, self.fence, self.run_id, *args)
        if with_senders and policy.limits.on_parent_end:
            return await door.alone(fn, *known)  # it may kill the children
        keys = (self.session_id, *self.senders) if with_senders else self.session_id
        return await door.tx(keys, fn, *known)

    def _tell(self, name: str, data: object = None) -> None:
        self.kit.bus.publish(Live(name, self.session_id, self.run_id, data))


def tools_for(about: Briefing, specs: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """What the session's stored rights permit; a plan is made with tools that only read."""
    rights = under_plan(about.rights) if about.plan == Plan.DRAFTING else about.rights
    return tuple(spec for spec in specs if rights.permits_tool(spec.name, is_read_only=spec.read_only))


def _said(place: int, body: dict[str, object], *, failed: bool) -> Result:
    return Result(place, SPAWN, json.dumps(body, ensure_ascii=False), failed)


def _answer(order: Order, got: Accepted | Refused) -> Result:
    """The answer of `sessions_spawn`, in the words of the surfaces."""
    if isinstance(got, Refused):
        body: dict[str, object] = {"status": "forbidden", "error": got.error}
        if got.limit:
            body["limit"] = dict(got.limit)
        return _said(order.place, body, failed=True)
    request = order.request
    note = wording.spawn_note(expects_completion=request.expects_completion, plan_mode=request.plan_mode)
    accepted: dict[str, object] = {
        "status": "accepted",
        "taskId": keys.task_id(got.task_id),
        "childSessionKey": got.session_key,
        "label": got.label,
        "note": note,
    }
    return _said(order.place, accepted, failed=False)
