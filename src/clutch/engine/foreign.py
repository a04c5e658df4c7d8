"""A run that somebody else's code works on. We begin and end it; in between it is theirs.

Nothing of it is journaled, so a crash or a steer starts it again from the beginning, under the same key.
"""

from __future__ import annotations

from clutch.core.messages import Answer, Input, Results
from clutch.engine.asking import may_start
from clutch.engine.open_run import OpenRun
from clutch.ports import RuntimeJob

ERROR_CHARS_MAX = 500


async def work_elsewhere(run: OpenRun) -> Answer | None:
    """Its last word, not committed yet. None: it failed or may not be made, and that is committed."""
    runtime = run.kit.runtimes.get(run.about.runtime)
    if runtime is None:
        known = ", ".join(sorted(run.kit.runtimes)) or "none is registered here"
        error = f"there is no runtime {run.about.runtime!r} in this process; known: {known}"
    elif run.is_budgeted and not await may_start(run):
        return None
    else:
        try:
            return await runtime.run(_job(run))
        except Exception as failure:  # noqa: BLE001 - foreign code: what it raises is the run's error
            error = f"{type(failure).__name__}: {failure}"[:ERROR_CHARS_MAX]
    await run.fail(error, is_final=False)
    return None


def _job(run: OpenRun) -> RuntimeJob:
    return RuntimeJob(
        text=_told(run),
        transcript=tuple(entry for entry in run.transcript if isinstance(entry, Input | Answer | Results)),
        session_key=run.about.session_key,
        workspace=run.about.workspace or ".",
        key=f"{run.about.session_key}:{run.head}",
        model=run.about.model,
        files=run.files,
        say=lambda text: run.tell("assistant:text", text),
    )


def _told(run: OpenRun) -> str:
    """What came since its last answer."""
    new: list[str] = []
    for entry in reversed(run.transcript):
        if isinstance(entry, Answer):
            break
        if isinstance(entry, Input):
            new.append(entry.text)
    return "\n\n".join(reversed(new))
