"""A conversation with a model without an engine: real file tools, children by recursion, real wording."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from clutch.core.messages import Answer, Call, Input, Message, Result, Results
from clutch.core.text.announce import Absent, AnnouncedResult, Audience, announcement
from clutch.core.text.prompts import first_message
from clutch.models.demo_model import OfflineModel
from clutch.ports import ModelRequest, ToolContext, ToolFailed, ToolSpec
from clutch.tools.registry import standard_tools

NONCE = "0123456789abcdef" * 2
TOOLS = standard_tools()
SEEN: dict[tuple[str, str, str], str] = {}
LEAF_TOOLS = ("read", "list", "search", "write")


async def seen(call: Call, context: ToolContext) -> str:
    """Each search starts a process, and many conversations look at the same folders, which never change."""
    if call.name == "write":
        return await TOOLS.run(call.name, call.args, context)
    key = (context.workspace, call.name, json.dumps(dict(call.args)))
    if key not in SEEN:
        SEEN[key] = await TOOLS.run(call.name, call.args, context)
    return SEEN[key]


async def no_sleep(_: float) -> None:
    return


@dataclass(slots=True)
class Child:
    task_id: str
    label: str
    task: str
    text: str | None = None


@dataclass(slots=True)
class Conversation:
    """`fates` gives a child, by label, another end than its own: killed, error, missing, refused."""

    workspace: Path
    job: Input
    depth: int = 0
    depth_max: int = 2
    fates: dict[str, str] = field(default_factory=dict)
    has_yield: bool = True
    one_by_one: bool = False
    system: str = ""
    transcript: list[Message] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)
    told: int = 0
    conversations: list[Conversation] = field(default_factory=list)

    async def run(self) -> str:
        self.transcript = self.transcript or [self.job]
        for _ in range(30):
            answer = await self.ask()
            self.transcript.append(answer)
            if not answer.calls:
                if self.told == len(self.children) or self.has_yield:
                    return answer.text
                await self.announce()
                continue
            await self.answer(answer)
        raise AssertionError("the model does not come to an end")

    async def ask(self) -> Answer:
        request = ModelRequest(
            "offline", self.system, tuple(self.transcript), self.specs(), f"s:{len(self.transcript)}"
        )
        return await OfflineModel(lambda _: 0.0, no_sleep).ask(request, lambda _: None)

    def specs(self) -> Sequence[ToolSpec]:
        allowed = [*LEAF_TOOLS]
        if self.depth < self.depth_max:
            allowed += ["sessions_spawn", *(["sessions_yield"] if self.has_yield else [])]
        return [spec for spec in TOOLS.specs() if spec.name in allowed]

    async def answer(self, answer: Answer) -> None:
        calls = [self.carry_out(index, call) for index, call in enumerate(answer.calls)]
        results = await asyncio.gather(*calls)
        self.transcript.append(Results(tuple(results)))
        if any(call.name == "sessions_yield" for call in answer.calls):
            await self.announce()

    async def carry_out(self, index: int, call: Call) -> Result:
        result = Result(index, call.name, "waiting for children")
        if call.name == "sessions_yield":
            return result
        if call.name == "sessions_spawn":
            return replace(result, text=json.dumps(self.spawn(call)))
        try:
            context = ToolContext(str(self.workspace), "agent:main:main", "key")
            return replace(result, text=await seen(call, context))
        except ToolFailed as error:
            return replace(result, text=str(error), failed=True)

    def spawn(self, call: Call) -> dict[str, str]:
        request = TOOLS.spawn_request(call.args)
        label = request.label or ""
        if self.fates.get(label) == "refused":
            return {"status": "forbidden", "error": "limit reached: 5/5 (maxChildrenPerAgent)"}
        self.children.append(Child(f"t_{self.depth}{len(self.children)}", label, request.task))
        return {"status": "accepted", "taskId": self.children[-1].task_id}

    async def announce(self) -> None:
        """Tell of the next child, or of all."""
        ready = self.children[self.told :][: 1 if self.one_by_one else None]
        self.told += len(ready)
        findings: list[AnnouncedResult] = []
        absent: list[Absent] = []
        for child in ready:
            match self.fates.get(child.label, "ok"):
                case "missing":
                    continue
                case "killed":
                    absent.append(Absent(child.label, child.task_id, "killed"))
                case outcome:
                    child.text = await self.work(child) if outcome == "ok" else None
                    error = "boom" if outcome == "error" else None
                    key = "agent:main:subagent:x"
                    findings.append(
                        AnnouncedResult(child.label, child.task_id, key, outcome, error, child.text)
                    )
        text = announcement(findings, Audience.WAITING_PERSON, NONCE, absent=absent)
        self.transcript.append(Input(text, "announce"))

    async def work(self, child: Child) -> str:
        job = Input(first_message(child.task, self.depth + 1, self.depth_max), "task")
        own = Conversation(self.workspace, job, self.depth + 1, self.depth_max)
        self.conversations.append(own)
        return await own.run()

    def everybody(self) -> list[Conversation]:
        return [self, *(one for child in self.conversations for one in child.everybody())]
