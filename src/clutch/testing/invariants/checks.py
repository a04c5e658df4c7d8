"""Checks: a result that failed one is never shown as checked, and a child may correct its work once."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from clutch.core.messages import Answer, Call, Input, Results, Usage
from clutch.core.run import CHECK_NOTE
from clutch.ports import ModelRequest, OnDelta
from clutch.testing.invariants.probes import Probe

_PATIENCE_S = 20.0


class _Child:
    """Claims to be done without a tool call. `honest` calls the tool when the checks ask it to."""

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        del on_delta
        told = [entry for entry in request.transcript if isinstance(entry, Input)]
        is_asked = told[-1].source == CHECK_NOTE and not isinstance(request.transcript[-1], Results)
        if is_asked and "honest" in told[0].text:
            return Answer("", (Call("look", {}),), Usage(1, 1), "probe", "tools")
        return Answer("done", usage=Usage(1, 1), model="probe")


def _story() -> Iterator[str]:
    yield from asyncio.run(_played())


async def _played() -> list[str]:
    from clutch import Clutch, Outcome, TaskCheck

    with tempfile.TemporaryDirectory(prefix="clutch-probe-") as folder:
        clutch = Clutch(state=Path(folder) / "state", workspace=folder, models=_Child(), serve=False)

        @clutch.tool()
        async def look() -> str:
            """Look."""
            return "seen"

        async with asyncio.timeout(_PATIENCE_S), clutch:
            checks = [TaskCheck(calls="look")]
            liar = await clutch.spawn("liar", checks=checks)
            honest = await clutch.spawn("honest", checks=checks)
            lied, worked = await liar, await honest
            wrong = []
            if lied.outcome is not Outcome.ERROR or (await liar.info()).doing_now.startswith("checked"):
                wrong.append("a result that failed its check is shown as checked")
            if worked.outcome is not Outcome.OK:
                wrong.append(f"a child that corrected its work failed: {worked.error}")
            return wrong


PROBE = Probe("checked-results", "a result that failed a check is never shown as checked", _story)
