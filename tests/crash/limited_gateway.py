"""A gateway in a process of its own, with one provider that allows a few calls at once. Ends with its stdin."""

from __future__ import annotations

import asyncio
import sys

from clutch import Clutch
from clutch.models.provider import AdapterKind, Provider


def provider(url: str, concurrency: int, tokens_per_minute: int | None = None) -> Provider:
    return Provider(
        "here",
        url,
        "key",
        adapter=AdapterKind.DIRECT,
        concurrency_max=concurrency,
        tokens_per_minute=tokens_per_minute,
    )


def gateway(dsn: str, state: str, url: str, concurrency: int) -> Clutch:
    return Clutch(
        state,
        database=dsn,
        model="here:small",
        providers=[provider(url, concurrency)],
        concurrency=100,
        serve=False,
        headless=True,
    )


async def main(dsn: str, state: str, url: str, concurrency: str) -> None:
    async with gateway(dsn, state, url, int(concurrency)):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
