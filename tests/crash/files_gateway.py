"""A gateway in a process of its own, whose children have files. It spawns one such child, and ends with its stdin."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from clutch import Clutch, Sandbox, ToolSettings
from tests.crash.limited_gateway import provider


def gateway(dsn: str, state: str, url: str) -> Clutch:
    work = Path(state).parent / "work"
    work.mkdir(exist_ok=True)
    return Clutch(
        state,
        database=dsn,
        model="here:small",
        providers=[provider(url, 10)],
        workspace=work,
        settings=ToolSettings(sandbox=Sandbox.ON),
        serve=False,
    )


async def main(dsn: str, state: str, url: str) -> None:
    async with gateway(dsn, state, url) as here:
        task = await here.spawn("write", workspace="isolated", attachments={"given.md": "given at home"})
        print(task.id, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
