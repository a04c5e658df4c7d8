"""A gateway whose tasks ask for every kind of decision, and whose main agent can be made to fail."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from clutch.core.messages import Answer, Call, Input, Results, Usage
from clutch.core.model import ToolOffer
from clutch.ports import ModelError, ModelRequest, OnDelta, Trouble
from clutch.tools.registry import ToolSettings
from clutch.tools.sandbox.policy import Sandbox
from clutch.transactions import mcp_tools
from tests.surfaces.served import Served, served
from tests.surfaces.test_dashboard import DEEP, Families
from tests.surfaces.test_page import spawned

#: A turn of the main agent that fails makes its results undelivered at once.
IMPATIENT = replace(DEEP, announcing=replace(DEEP.announcing, fast_tries=1, slow=False))


class Asking(Families):
    """`call {…}` makes these calls, `[{"tool": …, "args": …}]`, before it answers. A main agent fails while
    `is_broken`. Every answer costs 100 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = False

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        opening = next(one for one in request.transcript if isinstance(one, Input))
        if opening.source != "task" and self.is_broken:
            raise ModelError(Trouble.AUTH, "no such key")
        first = opening.text.rpartition("\n")[2]
        if first.startswith("call ") and not any(isinstance(one, Results) for one in request.transcript):
            calls = json.loads(first.removeprefix("call "))
            return Answer("", tuple(Call(one["tool"], one["args"]) for one in calls), Usage(90, 10))
        return replace(await super().ask(request, on_delta), usage=Usage(90, 10))


@contextmanager
def asking(home: Path, **options: Any) -> Iterator[Served]:
    settings = ToolSettings(sandbox=Sandbox.OFF, shell_needs_approval=True)
    with served(home, **{"models": Asking(), "policy": IMPATIENT, "settings": settings, **options}) as here:
        yield here


def calls(db: Served, label: str, *made: Mapping[str, Any], **options: Any) -> str:
    """Start a task that makes these calls at once."""
    return spawned(db, f"call {json.dumps(made)}", label, **options)


def asks(db: Served, label: str, question: str, *choices: str, **options: Any) -> str:
    args = {"question": question, **({"choices": list(choices)} if choices else {})}
    return calls(db, label, {"tool": "ask_human", "args": args}, **options)


def runs(db: Served, label: str, command: str, **args: Any) -> str:
    return calls(db, label, {"tool": "shell", "args": {"command": command, **args}})


def plans(db: Served, label: str, plan: str) -> str:
    """The model says its task again, which so becomes the plan."""
    return spawned(db, plan, label, planMode=True)


def exhausts(db: Served, label: str) -> str:
    """Its first call uses more than its budget, and it wants to make a second one."""
    look = {"tool": "list", "args": {}}
    return calls(db, label, look, budget={"tokens": 50})


def offers_tool(db: Served, text: str = "the description changed") -> None:
    """An MCP server that was seen offers another definition of its tool."""

    async def offer() -> None:
        services = db.clutch.services
        before, after = {"description": "search the web"}, {"description": text}
        await services.db.alone(mcp_tools.see, "search", {"find": before})
        change = ToolOffer("find", before, after, text)
        await services.db.alone(mcp_tools.ask_pin, services.policy, "search", [change], [services.ids.next()])

    db.run(offer())


def loses(db: Served, label: str, text: str = "the finding") -> str:
    """Start a task whose result cannot be delivered."""
    db.models.is_broken = True
    return spawned(db, f"x\n{text}", label, notifyParent=True)
