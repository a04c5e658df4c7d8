"""nanobot: the agent loop behind its message bus, as `nanobot agent` runs it, sessions in its workspace.

The `spawn` tool starts children in the background; each result comes to the parent as a message. Children are asyncio
tasks in memory. Resume: the session is loaded and the user says to go on; no child that was at work is started again.
The two tools are a plugin found by its entry point, `nanobot.tools`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from loguru import logger
from nanobot import Nanobot
from nanobot.agent.tools.base import Tool
from nanobot.bus.events import InboundMessage

from benchmarks import w_job
from benchmarks.peers import job
from benchmarks.peers.worker import Job, serve

_STEPS_MAX: Final = 10_000  # the default of 200 would end a long walk
_LOOK_S: Final = 0.02  # how often the adapter looks whether all work is done
_ENTRY_POINTS: Final = "[nanobot.tools]\nlook_up = __main__:LookUp\nrecord = __main__:Record\n"
_CONTEXT_TOKENS: Final = 10_000_000  # so that no history is shortened, as in the other systems


class _SurveyTool(Tool):
    """A tool of `w_job`, for the parent and for children."""

    work: ClassVar[w_job.Work] = w_job.Work()
    _scopes: ClassVar[set[str]] = {"core", "subagent"}
    _plugin_discoverable = False
    tool: ClassVar[tuple[str, str, dict[str, str]]]

    @property
    def name(self) -> str:
        return self.tool[0]

    @property
    def description(self) -> str:
        return self.tool[1]

    @property
    def parameters(self) -> dict[str, Any]:
        properties = {name: {"type": kind} for name, kind in self.tool[2].items()}
        return {"type": "object", "properties": properties, "required": list(properties)}

    async def execute(self, **arguments: Any) -> str:
        return self.work.run(self.name, arguments)


class LookUp(_SurveyTool):
    tool = ("look_up", "What is known of an item.", {"item": "integer"})
    _plugin_discoverable = True


class Record(_SurveyTool):
    tool = ("record", "Keep a note on an item.", {"item": "integer", "text": "string"})
    _plugin_discoverable = True


class NanobotAdapter:
    def __init__(self, bot: Nanobot) -> None:
        self._loop = bot._loop  # the facade runs single turns only; the bus is behind it

    async def fan_out(self, session: str, count: int) -> str:
        return await self._say(session, w_job.fan_out(count))

    async def resume(self, session: str, count: int) -> str:
        del count
        return await self._say(session, "Go on.")

    async def walk(self, session: str, steps: int) -> str:
        return await self._say(session, job.walk(steps))

    async def _say(self, session: str, text: str) -> str:
        """Return when no message, no turn and no child is left."""
        bus, loop = self._loop.bus, self._loop
        await bus.publish_inbound(InboundMessage("cli", "user", session, text))
        answer = (await bus.consume_outbound()).content
        while (
            loop.subagents.get_running_count()
            or bus.inbound.qsize()
            or loop._active_tasks
            or bus.outbound.qsize()
        ):
            with suppress(TimeoutError):
                answer = (await asyncio.wait_for(bus.consume_outbound(), _LOOK_S)).content or answer
        return str(answer)


def _settings(known: Job) -> Path:
    defaults = {
        "workspace": str(known.state / "workspace"),
        "model": w_job.MODEL,
        "provider": "custom",
        "contextWindowTokens": _CONTEXT_TOKENS,
        "maxConcurrentSubagents": known.children,
        "maxToolIterations": _STEPS_MAX,
    }
    provider = {"apiKey": "none", "apiBase": known.url}
    file = known.state / "config.json"
    file.write_text(json.dumps({"agents": {"defaults": defaults}, "providers": {"custom": provider}}))
    return file


def _install_tools(known: Job) -> None:
    """As an installed package would name them."""
    package = known.state / "plugins" / "survey_tools-1.0.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: survey-tools\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(_ENTRY_POINTS)
    sys.path.append(str(package.parent))
    _SurveyTool.work = known.tools()


@asynccontextmanager
async def opened(known: Job) -> AsyncIterator[NanobotAdapter]:
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    _install_tools(known)
    bot = Nanobot.from_config(_settings(known))
    working = asyncio.create_task(bot._loop.run())
    try:
        yield NanobotAdapter(bot)
    finally:
        working.cancel()


if __name__ == "__main__":
    serve(opened)
