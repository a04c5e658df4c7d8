"""Clutch: background tasks, state on SQLite, the model adapter that it has by default.

Resume: opening the state directory. Nothing else is called; the adapter waits until no work is left.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from benchmarks import w_job, w_worker
from benchmarks.peers import job
from benchmarks.peers.worker import Job, serve
from clutch.models.provider import AdapterKind
from clutch.wiring import Clutch

_MANY: Final = 100_000


class ClutchAdapter:
    def __init__(self, clutch: Clutch) -> None:
        self._clutch = clutch

    async def fan_out(self, session: str, count: int) -> str:
        return await self._say(session, w_job.fan_out(count))

    async def resume(self, session: str, count: int) -> str:
        del count
        answer = await self._clutch.reply(session=_key(session))
        await self._clutch.wait_idle(session=_key(session))
        return answer

    async def walk(self, session: str, steps: int) -> str:
        return await self._say(session, job.walk(steps))

    async def _say(self, session: str, text: str) -> str:
        await self._clutch.say(text, session=_key(session))
        return await self._clutch.reply(session=_key(session))


def _key(session: str) -> str:
    return f"agent:main:chat:{session}"


@asynccontextmanager
async def opened(known: Job, adapter: AdapterKind = AdapterKind.LIBRARY) -> AsyncIterator[ClutchAdapter]:
    said = argparse.Namespace(
        state=known.state / "clutch", url=known.url, system=adapter, effects=known.effects, lane=_MANY
    )
    said.state.mkdir(mode=0o700, exist_ok=True)
    async with w_worker.clutch_of(said) as clutch:
        yield ClutchAdapter(clutch)


if __name__ == "__main__":
    serve(opened)
