"""The process that `boot` starts: an engine over what a dead one left, with a model that answers at once.

Prints one line when every session is owned again, and dies on the spot like its predecessor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.unfinished import not_owned_yet
from clutch.core.messages import Answer, Usage
from clutch.core.model import Lane
from clutch.core.policy import Policy, Work
from clutch.core.session_tools import SessionCall
from clutch.core.spawn import SpawnRequest
from clutch.ports import HumanQuestion, ModelRequest, OnDelta, ToolContext, ToolSpec
from clutch.tools.session_tools import session_call
from clutch.wiring import running_engine

_LANE_CAP: Final = 100_000
POLICY: Final = replace(
    Policy(), work=Work(lanes={Lane.MAIN: _LANE_CAP, Lane.SUBAGENT: _LANE_CAP}, sessions_max=2 * _LANE_CAP)
)
RAISED: Final = {
    "worker.lanes": {"main": _LANE_CAP, "subagent": _LANE_CAP},
    "worker.sessionsMax": 2 * _LANE_CAP,
}
_LOOK_S: Final = 0.05


class Script:
    """Model and tools at once: answers whatever it is asked, and remembers when that was for the first time."""

    def __init__(self) -> None:
        self.first_at: float | None = None

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        del request, on_delta
        self._note()
        return Answer("It filters tokens.", (), Usage(900, 60), "bench")

    def specs(self) -> Sequence[ToolSpec]:
        return [ToolSpec("read", "Read a file.", {}, replay_safe=True, read_only=True)]

    async def run(self, name: str, args: Mapping[str, Any], context: ToolContext) -> str:
        del name, args, context
        self._note()
        return "def part(): ..."

    def human_question(self, args: Mapping[str, Any]) -> HumanQuestion:
        return HumanQuestion(**args)

    def spawn_request(self, args: Mapping[str, Any]) -> SpawnRequest:
        return SpawnRequest(**args)

    def session_call(self, name: str, args: Mapping[str, Any]) -> SessionCall:
        return session_call(name, args)

    def _note(self) -> None:
        if self.first_at is None:
            self.first_at = time.time()


async def main(state: Path | None, database: str | None, started: float) -> None:
    script = Script()
    async with running_engine(
        state=state, database=database, policy=POLICY, models=script, toolbox=script
    ) as engine:
        while await engine.db.read(not_owned_yet) or script.first_at is None:  # noqa: ASYNC110 - asks a database
            await asyncio.sleep(_LOOK_S)
        measured = {
            "first_resumed_s": round(script.first_at - started, 3),
            "all_owned_s": round(time.time() - started, 3),
            "cpu_s": round(time.process_time(), 3),
        }
        print(json.dumps(measured), flush=True)
        os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.boot_worker", description=__doc__)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--database")
    parser.add_argument("--started", type=float, required=True)
    options = parser.parse_args()
    asyncio.run(main(options.state, options.database, options.started))
