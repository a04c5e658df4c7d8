"""A model whose trees have results in every state: delivered, deferred while the parent works, skipped, undelivered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from clutch.core.messages import Answer, Call, Input, Results
from clutch.ports import ModelError, ModelRequest, OnDelta, Trouble
from clutch.tools.registry import ToolSettings
from clutch.tools.sandbox.policy import Sandbox
from tests.surfaces.served import Served, served
from tests.surfaces.test_dashboard import DEEP, Families
from tests.surfaces.test_page import spawned

#: A delivery that fails is given up at once.
GIVES_UP = replace(DEEP, announcing=replace(DEEP.announcing, fast_tries=1, first_s=0.01, slow=False))
KNOWN = ("family ", "busy ", "look", "slow", "quick", "silent", "write ", "ask ", "run ", "say ")


class TreeModels(Families):
    """`busy NAME=TASK` works on, until it is let go, while its subagent ends. `look` calls two tools. `silent` reports
    nothing. `say …` says it again.

    Every other request is of the main agent, which has no model: a result for it is undelivered."""

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        first = next(one.text for one in request.transcript if isinstance(one, Input))
        task = first.partition("\n\n")[2] or first
        steps = sum(isinstance(one, Results) for one in request.transcript)
        if not task.startswith(KNOWN):
            raise ModelError(Trouble.AUTH, "no model")
        if task.startswith("busy ") and steps == 0:
            name, _, given = task.removeprefix("busy ").partition("=")
            return Answer("", (Call("sessions_spawn", {"task": given, "label": name}),), model="trees")
        if task.startswith("busy "):
            await self.go.wait()
            return Answer("Done with it.", model="trees")
        if task.startswith("look") and steps < 2:
            return Answer("", (Call("list", {}), Call("list", {"path": "."})), model="trees")
        if task.startswith("silent"):
            return Answer("ANNOUNCE_SKIP", model="trees")
        if task.startswith("say "):
            return Answer(task.removeprefix("say "), model="trees")
        return await super().ask(request, on_delta)


@contextmanager
def trees_served(home: Path) -> Iterator[Served]:
    settings = ToolSettings(sandbox=Sandbox.OFF, shell_needs_approval=True)
    with served(home, models=TreeModels(), policy=GIVES_UP, settings=settings) as here:
        yield here


def planted(db: Served) -> str:
    """A tree that works until `let_go`: then all results are delivered but that of its top."""
    parts = ("reader=look around", "writer=busy helper=quick", "quiet one=silent", "last one=slow work")
    return spawned(db, f"family {'; '.join(parts)}", "the tree", notifyParent=True)
