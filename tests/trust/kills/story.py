"""The job that victims of `kill -9` work on: small, nested, deterministic, with every kind of ending.

    two mains "gather"  spawn five children in one answer, yield, hear all of them at once
    one main "trickle"  spawns three and ends its turn; results come back whenever they are ready
    a client            spawns two more in the trickle's name, steers the slow child, kills the doomed one

The model decides from the transcript alone, so a repeated call gets the same answer in any process. What it
was asked and shown goes to its own log, the tasks it was told are accepted to the client outside, and the mark
of a tool to a file of marks: they outlive the process, and are what judges go by.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from clutch.core.attachments import SPAWN
from clutch.core.messages import Answer, Call, Entry, Input, Message, Results, Usage
from clutch.core.model import Lane
from clutch.core.policy import Announcing, Life, Limits, Policy, Work
from clutch.core.text.tasks import parse_fences
from clutch.engine.tool_calls import YIELD
from clutch.ports import ModelError, ModelRequest, OnDelta, ToolContext, Trouble
from clutch.tools.arguments import Arguments
from clutch.tools.registry import Tools, standard_tools
from tests.trust.kills.client import Teller

MAINS: Final = {"one": "JOB gather", "two": "JOB gather", "three": "JOB trickle"}
#: what the client wants, under the keys that make a repeated try find the first one
CLIENT_JOBS: Final = {"client:0": "JOB leaf c0", "client:1": "JOB leaf c1"}
CHILDREN: Final = {
    "gather": ("leaf g0", "nest g1", "flaky g2", "fail g3", "slow g4"),
    "trickle": ("leaf t0", "flaky t1", "doomed t2"),
    "nest": ("leaf n0", "leaf n1"),
}
#: how each kind of child ends; one that waits for the client may be too quick for it
OUTCOMES: Final = {
    "leaf": {"ok"}, "nest": {"ok"}, "flaky": {"ok"}, "fail": {"error"}, "slow": {"ok"}, "doomed": {"killed", "ok"},
}  # fmt: skip
NOTES: Final = "notes.txt"
EFFECTS: Final = "effects.log"
ASKED: Final = "model.log"
STEERED: Final = "leave it and report"

#: as long as a child waits to be steered or killed; then it answers as if nobody had come
PATIENCE_S: Final = 1.5
LATENCY_S: Final = 0.003

_JOB: Final = re.compile(r"JOB (\w+)(?: (\w+))?$")
_TOLD: Final = re.compile(r"^task: (t_\w+) session: ", re.MULTILINE)

#: Short times, so that every timer of the product rings within a story. No crash loop: the harness kills
#: the same run far more often than any machine would.
POLICY: Final = Policy(
    limits=Limits(depth_max=2),
    life=Life(error_grace_s=0.01, provider_retries_s=(0.004,) * 100, crash_limit=1_000_000),
    announcing=Announcing(debounce_s=0.005, first_s=0.01, fast_max_s=0.05, slow_first_s=0.05, slow_max_s=0.1),
    work=Work(lanes={Lane.MAIN: 4, Lane.SUBAGENT: 8}, lease_s=1.0, tick_s=0.05, stop_s=1.0),
)


class Log:
    """Lines of JSON to a file or to whoever survives. A write that returned is not lost by a kill."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @staticmethod
    def append(file: Path) -> Log:
        return Log(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))

    def say(self, **what: object) -> None:
        try:
            os.write(self._descriptor, (json.dumps(what, separators=(",", ":")) + "\n").encode())
        except BrokenPipeError:
            os._exit(1)  # without a witness there is no reason to live

    def dying(self, point: str) -> None:
        self.say(dying=point)


@dataclass(slots=True)
class Wishes:
    """What the client is to do next: filled by the model when a child is ready for it."""

    waiting: asyncio.Queue[tuple[str, str]] = field(default_factory=asyncio.Queue)


class StoryModel:
    def __init__(self, log: Log, client: Teller, wishes: Wishes) -> None:
        self._log, self._client, self._wishes = log, client, wishes
        self._stumbled: set[str] = set()

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        del on_delta
        said = request.transcript
        fresh = [(place, message) for place, message in enumerate(said) if place > last_answer(said)]
        self._log.say(asked=request.key, at=time.monotonic(), shown=findings(fresh))
        self._client.accepted(request.key, accepted(fresh))
        session_key = request.key.rpartition(":")[0]
        await asyncio.sleep(LATENCY_S)
        return await self._answer(job_of(said), said, session_key)

    async def _answer(self, job: str, said: Sequence[Message], session_key: str) -> Answer:
        match job:
            case "slow" if not _is_steered(said):
                return await self._wait_for("steer", session_key)
            case "doomed":
                return await self._wait_for("kill", session_key)
            case "fail":
                # A defect and not an answer of a provider: only then does the task wait for its error grace.
                raise RuntimeError("no model for this job")
            case "flaky" if session_key not in self._stumbled:
                self._stumbled.add(session_key)
                self._log.say(stumbled=session_key)
                raise ModelError(Trouble.NETWORK, "the wire was cut")
            case "gather" | "trickle" | "nest":
                return _delegate(job, said, session_key)
            case _:
                return _work(said, session_key)

    async def _wait_for(self, verb: str, session_key: str) -> Answer:
        self._wishes.waiting.put_nowait((verb, session_key))
        await asyncio.sleep(PATIENCE_S)
        return _say(f"nobody came to {verb} {session_key}")


def _delegate(job: str, said: Sequence[Message], session_key: str) -> Answer:
    answers = sum(isinstance(message, Answer) for message in said)
    if answers == 0:
        jobs = [f"JOB {child}" for child in CHILDREN[job]]
        return _call(*(Call(SPAWN, {"task": one, "label": one.split()[-1]}) for one in jobs))
    if answers == 1 and job != "trickle":
        return _call(Call(YIELD, {}))
    return _say(f"heard so far: {session_key} {answers}")


def _work(said: Sequence[Message], session_key: str) -> Answer:
    """Read, then leave a mark that must not be made twice, then report."""
    answers = sum(isinstance(message, Answer) for message in said)
    if answers == 0:
        return _call(Call("read", {"path": NOTES}), Call("mark", {}))
    if answers == 1:
        return _call(Call("mark", {}))
    return _say(f"finding of {session_key}")


def _say(text: str) -> Answer:
    return Answer(text, usage=Usage(10, 5), model="story")


def _call(*calls: Call) -> Answer:
    return Answer("", calls, Usage(10, 5), "story", "tools")


def job_of(said: Sequence[Message]) -> str:
    return next(
        (job for message in said if isinstance(message, Input) and (job := kind_of(message.text))), ""
    )


def kind_of(task: str) -> str:
    found = _JOB.search(task)
    return found[1] if found else ""


def last_answer(said: Sequence[Message]) -> int:
    return max((place for place, message in enumerate(said) if isinstance(message, Answer)), default=-1)


def _is_steered(said: Sequence[Message]) -> bool:
    return any(isinstance(message, Input) and STEERED in message.text for message in said)


def findings(fresh: Sequence[tuple[int, Entry]]) -> list[tuple[str, int, str | None]]:
    """(task, place in the transcript, text) of every result among these messages."""
    found: list[tuple[str, int, str | None]] = []
    for place, message in fresh:
        if isinstance(message, Input):
            blocks = re.split(_TOLD, message.text)
            for task_id, rest in zip(blocks[1::2], blocks[2::2], strict=True):
                fences = parse_fences(rest)
                found.append((task_id, place, fences[0].text if fences else None))
    return found


def accepted(fresh: Sequence[tuple[int, Entry]]) -> list[str]:
    """The tasks this model was told are accepted."""
    texts = [
        result.text
        for _, message in fresh
        if isinstance(message, Results)
        for result in message.results
        if result.name == SPAWN and not result.failed
    ]
    return [json.loads(text)["taskId"] for text in texts]


# ---- tools -------------------------------------------------------------------------------------------


class MarkArguments(Arguments):
    """Nothing to say: the mark is the key of the call."""


async def mark(arguments: MarkArguments, context: ToolContext) -> str:
    """Leave a mark."""
    del arguments
    effects = Path(context.workspace).parent / EFFECTS
    file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{context.key}\n".encode())
    os.close(file)
    await asyncio.sleep(LATENCY_S)
    return f"marked {context.key}"


@functools.cache
def story_tools() -> Tools:
    """The file tools, and one that must not run twice: it appends the key of its call to a file.

    Made once, before victims are forked: describing tools takes longer than anything else in a life."""
    tools = standard_tools(POLICY.limits)
    tools.add(mark, arguments=MarkArguments)
    return tools
