"""What one gateway shows while a small tree works in it: the export of the tree, events with their fields, metrics."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import tempfile
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clutch import Answer, Call, Usage
from clutch.core.messages import Input
from clutch.core.model import Hook
from clutch.ports import Delta, DeltaKind, ModelRequest, OnDelta
from clutch.surfaces.http_client import GatewayClient, task_path
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_http_tasks import ended, seen, spawned
from tests.surfaces.typed import typed

Fields = Mapping[str, set[str]]

DEEP = replace(FAST, limits=replace(FAST.limits, depth_max=2))
_CALLS = {
    "survey": (Call("sessions_spawn", {"task": "count", "label": "counter"}), Call("sessions_yield", {})),
    "count": (Call("list", {}),),
    "ask": (Call("ask_human", {"question": "Which one?"}),),
}
#: What differs from run to run, and what stands for it.
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|(?<=runtime )\S+")
_RANDOM = re.compile(
    r"\bt_[0-9a-z]+|\br_[0-9a-z]+|\bw_?[0-9]+\b|[0-9a-f]{8}-[0-9a-f-]{27}|\b[0-9a-f]{64}\b|\b[0-9a-f]{32}\b"
)


class Scripted:
    """Makes the calls of `_CALLS`, one per answer. The child waits until its parent has yielded (`go`)."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        first = next(one.text for one in request.transcript if isinstance(one, Input)).split("\n")[-1]
        step = sum(isinstance(one, Answer) for one in request.transcript)
        if first == "count":
            await self.go.wait()
        if step < len(calls := _CALLS.get(first, ())):
            return Answer("", (calls[step],), Usage(10, 5), "scripted", "tools")
        on_delta(Delta(DeltaKind.THINKING, "hm"))
        on_delta(Delta(DeltaKind.TEXT, f"answer {step} to {first}"))
        return Answer(f"answer {step} to {first}", (), Usage(10, 5), "scripted")


@functools.cache
def _observed() -> tuple[str, Fields, str]:
    """Return the export, the fields of each event by its name, and the metrics."""
    fields: defaultdict[str, set[str]] = defaultdict(set)
    is_watched = threading.Event()

    def watch(client: GatewayClient) -> None:
        for name, data in client.events():
            fields[name] |= set(data)
            is_watched.set()

    with tempfile.TemporaryDirectory() as place:
        with served(Path(place) / "state", Scripted(), DEEP) as here:
            watching = threading.Thread(target=watch, args=(here.client,))
            watching.start()
            assert is_watched.wait(20)
            _play(here)
            exported = typed("export", "surveyor", "--tree", state=here.home).out
            metrics = here.raw("GET", "/metrics").raw.decode()
        watching.join()
    return exported.replace(place, "<place>"), fields, metrics


def _play(here: Served) -> None:
    client = here.client
    surveyor = spawned(client, "survey", label="surveyor", notifyParent=True)
    seen(client, surveyor, lambda one: one["reason"] == "children")
    here.let_go()
    ended(client, surveyor, "delivered")
    seen(client, spawned(client, "ask", label="asking"), lambda one: one["reason"] == "needs-you")
    client.post(task_path("asking", "kill"), {})
    planned = spawned(client, "plan it", label="planned", planMode=True)
    seen(client, planned, lambda one: one["phase"] == "awaiting_approval")


def exported_tree() -> str:
    known: dict[str, str] = {}
    text = _TIME.sub("<time>", _observed()[0])
    text = _RANDOM.sub(lambda found: known.setdefault(found[0], f"<{len(known) + 1}>"), text)
    lines = [json.loads(line) for line in text.splitlines()]
    return json.dumps(lines, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def events() -> str:
    _, fields, metrics = _observed()
    told = [f"{name}: {', '.join(sorted(fields[name]))}" for name in sorted(fields.keys() - {"here"})]
    return "\n".join(
        ("# events", *told, "", "# hooks", *sorted(Hook), "", "# metrics", *_metrics(metrics), "")
    )


def _metrics(text: str) -> list[str]:
    kinds: dict[str, Any] = dict(re.findall(r"(?m)^# TYPE (\w+) (\w+)$", text))
    labels: defaultdict[str, set[str]] = defaultdict(set)
    for name, inner in re.findall(r"(?m)^(\w+)\{(.*)\} ", text):
        labels[name] |= set(re.findall(r'(\w+)="', inner))
    return [f"{name} {kinds[name]} {' '.join(sorted(labels[name]))}".rstrip() for name in sorted(kinds)]
