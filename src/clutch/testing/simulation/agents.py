"""The provider and the tools of a simulated gateway: they play a script, slowly, and fail as the dice say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from clutch.core.attachments import Attachment, Side
from clutch.core.messages import Answer, Usage
from clutch.core.model import Workspace
from clutch.core.session_tools import SessionCall
from clutch.core.spawn import BudgetRequest, CleanupPolicy, SpawnRequest
from clutch.ports import (
    HumanQuestion,
    ModelError,
    ModelRequest,
    OnDelta,
    ToolContext,
    ToolFailed,
    ToolSpec,
    Trouble,
)
from clutch.testing.simulation import script
from clutch.testing.simulation.faults import Fault
from clutch.testing.simulation.files import shelf_at
from clutch.tools.session_tools import session_call

if TYPE_CHECKING:
    from clutch.testing.simulation.gateway import Gateway

THINKS_S: Final = (0.02, 0.1, 0.5, 1.5, 4.0)
HANGS_S: Final = 15.0
BUSY_S: Final = 18.0
ENDS_ANYWAY: Final = 0.9  # of the calls that are cancelled, so many end with their answer all the same

_TROUBLES: Final = (
    (Fault.PROVIDER_OVERLOADED, Trouble.OVERLOADED, "529"),
    (Fault.PROVIDER_CUT_STREAM, Trouble.MALFORMED, "the stream ended early"),
    (Fault.PROVIDER_AUTH, Trouble.AUTH, "401"),
)

_NOTHING: Final[Mapping[str, Any]] = {}
TOOLS: Final = (
    ToolSpec("echo", "", _NOTHING, replay_safe=True, read_only=True),
    ToolSpec("slow", "", _NOTHING, replay_safe=True),
    ToolSpec("once", "", _NOTHING, replay_safe=False),
    ToolSpec("fail", "", _NOTHING, replay_safe=True),
    ToolSpec("risky", "", _NOTHING, needs_approval=True),
    ToolSpec("ask_human", "", _NOTHING, replay_safe=True),
    ToolSpec("sessions_spawn", "", _NOTHING, read_only=True),
    ToolSpec("sessions_yield", "", _NOTHING, replay_safe=True, read_only=True),
    ToolSpec("subagents", "", _NOTHING, replay_safe=True),
)


class SimModel:
    """The answer is a function of the transcript. What happens on the way is not."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._world = gateway, gateway.world

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        del on_delta
        world = self._world
        world.observer.asked(self._gateway, request)
        await self._trouble(request)
        answer = script.decide(request)
        try:
            await asyncio.sleep(world.rng.choice(THINKS_S))
        except asyncio.CancelledError:
            if world.rng.random() < ENDS_ANYWAY:
                return world.observer.answered_anyway(self._gateway, request, answer)
            raise
        if answer.calls or not world.dice.is_hot:
            return answer
        if world.dice.strikes(Fault.PROVIDER_EMPTY, request.key):
            return replace(answer, text="")
        if world.dice.strikes(Fault.PROVIDER_CUT_ANSWER, request.key):
            return replace(answer, text=answer.text[:10], stop="length")
        return answer

    async def _trouble(self, request: ModelRequest) -> None:
        world, dice = self._world, self._world.dice
        if not dice.is_hot:
            return
        if request.key.startswith("agent:main:chat") and dice.strikes(Fault.REQUESTER_BUSY, request.key):
            await asyncio.sleep(BUSY_S)
        if dice.strikes(Fault.PROVIDER_HANG, request.key):
            await asyncio.sleep(HANGS_S)
            raise ModelError(Trouble.NETWORK, "no byte came")
        if dice.strikes(Fault.PROVIDER_RATE_LIMIT, request.key):
            wait_s = world.rng.choice((0.0, 3.0, 10.0, 1000.0))
            raise ModelError(Trouble.RATE_LIMIT, "429", self._gateway.clock.now() + wait_s)
        for fault, trouble, words in _TROUBLES:
            if dice.strikes(fault, request.key):
                raise ModelError(trouble, words)


class SimPrices:
    """Every call takes about as much, and less than was reserved for it; dollars are not simulated here."""

    def cost(self, model: str, usage: Usage) -> Decimal | None:
        del model, usage
        return None

    def tokens(self, request: ModelRequest) -> int:
        return script.USAGE.input + len(request.transcript) % 7

    def window(self, model: str) -> int | None:
        del model
        return None


class SimToolbox:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._world = gateway, gateway.world

    def specs(self) -> Sequence[ToolSpec]:
        return TOOLS

    async def run(self, name: str, args: Mapping[str, Any], context: ToolContext) -> str:
        world = self._world
        world.observer.runs_tool(name, context, is_unsafe=name in ("once", "risky"))
        if name == "slow":
            await asyncio.sleep(world.rng.choice((0.5, 2.0, 5.0)))
        elif world.rng.random() < 0.5:
            await asyncio.sleep(world.rng.random())
        if name == "fail" or world.dice.strikes(Fault.TOOL_FAILED, context.key):
            raise ToolFailed(f"{name} does not work today")
        if name == "once" and context.files is not None:
            world.files.setdefault(shelf_at(context.files), set()).add(Side.OUT)
        return f"{name} did {args.get('at', '')}"

    def human_question(self, args: Mapping[str, Any]) -> HumanQuestion:
        return HumanQuestion(**args)

    def spawn_request(self, args: Mapping[str, Any]) -> SpawnRequest:
        return spawn_request(args)

    def session_call(self, name: str, args: Mapping[str, Any]) -> SessionCall:
        return session_call(name, args)


def spawn_request(args: Mapping[str, Any]) -> SpawnRequest:
    return SpawnRequest(
        args["task"],
        label=args["label"],
        model=args["model"],
        run_timeout_s=args["run_timeout_s"],
        plan_mode=args["plan_mode"],
        expects_completion=args["expects_completion"],
        cleanup=CleanupPolicy.DELETE if args["cleanup"] else CleanupPolicy.KEEP,
        workspace=Workspace.ISOLATED if args["isolated"] else Workspace.INHERIT,
        budget=BudgetRequest(args["tokens"]) if args["tokens"] else None,
        attachments=(Attachment("given", b"x"),) if args["given"] else (),
    )
