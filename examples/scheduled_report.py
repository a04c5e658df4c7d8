"""A report for every time slot, exactly one per slot, however often the program restarts.

    python scheduled_report.py --every 10 --count 3     # every 10 seconds, three slots, then exit
    python scheduled_report.py --every 86400 --at 25200 # every day at 07:00 UTC (25,200 seconds after midnight)

    slot 2026-01-01T07:00:00Z: t_1000002 ok, 7 lines

Clutch has no scheduler of its own: this loop is plain asyncio, and the program must run, for example under systemd.
The idempotency key names the slot. Started twice, or killed and restarted within a slot, it gets the same task again:
no second report, no second model call. A report that was interrupted resumes. Slots that passed while the program was
not running are not made up for, except for the latest one.
"""

from __future__ import annotations

import argparse
import asyncio
from datetime import UTC, datetime, timedelta

from clutch import Clutch


def slot_at(now: datetime, every: timedelta, at: timedelta) -> datetime:
    """Return the start of the slot that `now` is in. Slots are counted from the epoch, so restarts do not move them."""
    zero = datetime.fromtimestamp(0, UTC) + at
    return zero + (now - zero) // every * every


async def report(clutch: Clutch, slot: datetime) -> None:
    name = f"{slot:%Y-%m-%dT%H:%M:%SZ}"
    task = await clutch.spawn(
        "Report on this folder.\nquestion: sizes",  # the second line tells the demo model what to do
        label=f"report {name}",
        idempotency_key=f"report:{name}",
    )
    result = await task
    print(
        f"slot {name}: {task.id} {result.outcome}, {len((result.text or '').splitlines())} lines", flush=True
    )


async def main(every: timedelta, at: timedelta, count: int | None) -> None:
    # The demo model answers. A real model: Clutch("report-state", model="anthropic:claude-sonnet-4-5")
    async with Clutch("report-state") as clutch:
        while count is None or count > 0:
            slot = slot_at(datetime.now(UTC), every, at)
            await report(clutch, slot)
            if count is not None:
                count -= 1
            if count != 0:
                await asyncio.sleep(max(0.0, (slot + every - datetime.now(UTC)).total_seconds()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One report per time slot.")
    parser.add_argument("--every", type=float, default=3600, help="length of a slot in seconds")
    parser.add_argument(
        "--at", type=float, default=0, help="seconds after midnight UTC at which a slot starts"
    )
    parser.add_argument("--count", type=int, help="stop after so many slots; default: never")
    given = parser.parse_args()
    asyncio.run(main(timedelta(seconds=given.every), timedelta(seconds=given.at), given.count))
