"""A run that somebody else's code works on. We begin and end it; in between it is theirs.

Nothing of it is journaled, so a crash or a steer starts it again from the beginning, under the same key.
"""

from __future__ import annotations

from clutch.core.messages import Answer, Input, Results
from clutch.engine.open_run import OpenRun
from clutch.errors import InvalidInput
from clutch.ports import RuntimeJob


async def work_elsewhere(run: OpenRun) -> Answer:
    runtime = run.kit.runtimes.get(run.about.runtime)
    if runtime is None:
        known = ", ".join(sorted(run.kit.runtimes)) or "none is registered here"
        raise InvalidInput("runtime", f"there is no {run.about.runtime!r} in this process; known: {known}")
    job = RuntimeJob(
        text=_told(run),
        transcript=tuple(entry for entry in run.transcript if isinstance(entry, Input | Answer | Results)),
        session_key=run.about.session_key,
        workspace=run.about.workspace or ".",
        key=f"{run.about.session_key}:{run.head}",
        model=run.about.model,
        say=lambda text: run.tell("assistant:text", text),
    )
    return await runtime.run(job)


def _told(run: OpenRun) -> str:
    """What came since its last answer."""
    new: list[str] = []
    for entry in reversed(run.transcript):
        if isinstance(entry, Answer):
            break
        if isinstance(entry, Input):
            new.append(entry.text)
    return "\n\n".join(reversed(new))
