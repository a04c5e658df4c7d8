"""A gateway whose main agent delegates to two children, each with one tool call. Also runs as a process of its own:

python -m tests.observability.program STATE CONFIG say|finish [DATABASE]
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from clutch import Clutch
from clutch.core.messages import Answer, Call, Results, Usage
from clutch.ports import ModelRequest, OnDelta
from tests.observability.collector import Collector
from tests.policies import QUICK

SECRET = "the content of a prompt"
KEY = "sk-abcdefghijklmnop1234"


class Delegating:
    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        has_results = any(isinstance(one, Results) for one in request.transcript)
        used = Usage(10, 5)
        calls: tuple[Call, ...]
        if "subagent" in request.key:
            calls = () if has_results else (Call("count", {"what": SECRET}),)
        else:
            spawn = {"task": f"Count {SECRET}"}
            calls = () if has_results else (Call("sessions_spawn", spawn), Call("sessions_spawn", spawn))
        return Answer("" if calls else f"done with {SECRET}", calls, used, "small-2026")


def gateway(state: Path, config: Path, database: str | None = None) -> Clutch:
    workspace = state.with_name("workspace")
    workspace.mkdir(exist_ok=True)
    c = Clutch(
        state,
        models=Delegating(),
        model="tested:small",
        policy=QUICK,
        workspace=workspace,
        config=config,
        database=database,
        serve=False,
    )

    @c.tool(name="count")
    async def count(what: str) -> str:
        """Count."""
        return f"counted {what} with {KEY}"

    return c


def configured(folder: Path, collector: Collector, **more: object) -> Path:
    path = folder / "traced.json"
    path.write_text(json.dumps({"otel": {"endpoint": collector.url, "every": "50ms", **more}}))
    path.chmod(0o600)  # headers are secrets
    return path


async def main(state: str, config: str, act: str, database: str | None = None) -> None:
    async with gateway(Path(state), Path(config), database) as c:
        if act == "say":
            await c.say("delegate")
            await asyncio.Event().wait()
        await c.wait_idle()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
