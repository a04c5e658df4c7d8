"""The process that does the work of a demo: `python -m clutch.demo.worker STATE`.

An ordinary program around the embedded API. It asks its question with an idempotency key, so that there is one survey
however often it is killed and started again. It ends when the work is done, and stops in order when its standard input
is closed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import zlib
from pathlib import Path

from clutch.core.messages import Input
from clutch.core.policy import Life, Limits, Policy, Work
from clutch.demo import job as jobs
from clutch.demo.job import QUESTION, SESSION, DemoJob, WatchedModels, add_journal
from clutch.ports import ModelRequest
from clutch.wiring import Clutch, Sandbox, ToolSettings, can_sandbox_files, offline_model

STOPPED = 3  #: exit code: asked to stop before the work was done
NOTE_PAUSE_S = 0.1  #: between the effect of the unsafe tool and its answer


def policy_for(job: DemoJob) -> Policy:
    """Return the policy: two levels of subagents, and no limit of crashes where the demo itself kills the worker."""
    life = Life(crash_limit=1_000_000) if job.is_chaos else Life()
    return Policy(limits=Limits(depth_max=2), life=life, work=Work(stop_s=1.0))


def latency_of(job: DemoJob, request: ModelRequest) -> float:
    """Return 0.8 to 1.2 of the pace, the same for the same question at the same step."""
    first = next((one.text for one in request.transcript if isinstance(one, Input)), "")
    dice = zlib.crc32(f"{job.seed}:{len(request.transcript)}:{first}".encode()) % 400
    slow = job.slow if "\npace: slow" in first else 1.0
    return job.pace_s * slow * (0.8 + dice / 1000)


async def work(job: DemoJob) -> None:
    # Where no sandbox is possible, e.g. in a container, the demo still shows its work: it only reads.
    sandbox = Sandbox.ON if can_sandbox_files() else Sandbox.OFF
    clutch = Clutch(
        state=job.state,
        policy=policy_for(job),
        models=WatchedModels(offline_model(lambda request: latency_of(job, request)), job.state),
        settings=ToolSettings(sandbox=sandbox),
        workspace=job.folder,
    )
    add_journal(clutch, job.state, NOTE_PAUSE_S if job.pace_s else 0.0)
    async with clutch:
        await clutch.say(QUESTION, session=SESSION, idempotency_key="survey")
        await clutch.wait_idle(session=SESSION)


async def work_while_wanted(job: DemoJob) -> bool:
    """Work until the job is done. False: standard input was closed first."""
    loop, working = asyncio.get_running_loop(), asyncio.current_task()
    assert working is not None
    loop.add_reader(sys.stdin.fileno(), lambda: os.read(sys.stdin.fileno(), 1) or working.cancel())
    try:
        await work(job)
    except asyncio.CancelledError:
        return False
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return True


def main() -> int:
    job = jobs.load(Path(sys.argv[1]))
    assert job is not None, "the supervisor writes the job before it starts a worker"
    return 0 if asyncio.run(work_while_wanted(job)) else STOPPED


if __name__ == "__main__":
    sys.exit(main())
