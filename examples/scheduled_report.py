"""A report at every slot of a schedule, exactly one per slot, however often the program restarts.

    python scheduled_report.py --every 10 --count 3                 # every 10 seconds, three slots, then exit
    python scheduled_report.py --cron "0 7 * * *" --tz Europe/Berlin  # every day at seven

    slot 2026-01-01T07:00:00+01:00: t_1000002 ok, 7 lines

The schedule is in the state directory. Killed and restarted, the program finds it again: a report that was interrupted
resumes, and of the slots that passed meanwhile the latest one runs.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from clutch import Clutch

LOOK_S = 0.2


async def main(when: dict[str, Any], count: int | None) -> None:
    # The demo model answers. A real model: Clutch("report-state", model="anthropic:claude-sonnet-4-5")
    async with Clutch("report-state") as clutch:
        # The second line tells the demo model what to do.
        task = "Report on this folder.\nquestion: sizes"
        schedule = await clutch.schedule("report", task, **when, overlap="queue")
        seen: set[str] = set()
        while count is None or len(seen) < count:
            for slot in reversed((await schedule.info())["history"]):
                if slot["taskId"] is not None and slot["taskId"] not in seen:
                    seen.add(slot["taskId"])
                    report = await (await clutch.get(slot["taskId"]))
                    lines = len((report.text or "").splitlines())
                    print(
                        f"slot {slot['slot']}: {slot['taskId']} {report.outcome}, {lines} lines", flush=True
                    )
            await asyncio.sleep(LOOK_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One report per slot of a schedule.")
    parser.add_argument("--every", type=float, help="seconds between two slots")
    parser.add_argument(
        "--cron", default="0 7 * * *", help="minute, hour, day, month and weekday of the slots"
    )
    parser.add_argument("--tz", default="UTC", help="time zone of --cron")
    parser.add_argument("--count", type=int, help="stop after so many reports; default: never")
    given = parser.parse_args()
    every = {"every_seconds": given.every}
    asyncio.run(main(every if given.every else {"cron": given.cron, "timezone": given.tz}, given.count))
