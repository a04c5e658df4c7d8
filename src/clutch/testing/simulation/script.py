"""What the simulated agents do. Decided from the transcript alone, so that another process can resume.

A job is a small JSON text in a task or a message. Its `steps` are played one per model answer; then comes
its `end`. The final text of an answer carries a mark that no other answer has, so that the observer can count
where they turn up.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from clutch.core.messages import Answer, Call, Input, Transcript, Usage
from clutch.ports import ModelRequest

MARK: Final = "JOB"
SOURCES: Final = frozenset({"user", "task", "instruction"})
MODEL: Final = "simulated"
OTHER_MODEL: Final = "simulated-too"
USAGE: Final = Usage(10, 5)

#: Longer than what an announce carries in full and than what a simulated result may keep.
HUGE: Final = "all work and no play " * 250


def words(job: dict[str, Any]) -> str:
    return MARK + json.dumps(job, separators=(",", ":"))


@lru_cache(maxsize=4096)
def _job(text: str) -> dict[str, Any] | None:
    at = text.find(MARK + "{")
    return None if at < 0 else json.loads(text[at + len(MARK) :])


# ---- playing ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scene:
    """Where the talk stands: the newest job and how many answers it has had."""

    job: dict[str, Any]
    played: int
    is_drafting: bool


def scene(transcript: Transcript) -> Scene:
    """An approved plan is played from its approval on; a rejected one is drafted again."""
    played, approved_after = 0, None
    for message in reversed(transcript):
        if isinstance(message, Answer):
            played += 1
        if not isinstance(message, Input):
            continue
        if message.source == "decision" and approved_after is None and message.text.startswith("APPROVED"):
            approved_after = played
        job = _job(message.text) if message.source in SOURCES else None
        if job is not None:
            is_drafting = bool(job.get("plan")) and approved_after is None
            return Scene(job, played if approved_after is None else approved_after, is_drafting)
    return Scene({}, played, is_drafting=False)


def decide(request: ModelRequest) -> Answer:
    now = scene(request.transcript)
    steps = now.job.get("steps", ())
    if now.is_drafting:
        if now.played == 0:
            return _calls(Call("echo", {"n": 0}))
        return _says(f"plan of {now.job.get('name')}: {_mark(request)}")
    if now.played < len(steps):
        return _step(steps[now.played], request)
    return _end(now.job, request)


def _step(step: dict[str, Any], request: ModelRequest) -> Answer:
    calls = [Call("sessions_spawn", spawn_arguments(child)) for child in step.get("spawn", ())]
    calls += [_call(name, _mark(request)) for name in step.get("do", ())]
    calls += [Call("subagents", {"action": action, **args}) for action, args in step.get("act", ())]
    calls += [Call("sessions_yield", {})] if "yield" in step else []
    return _calls(*calls)


def _call(name: str, mark: str) -> Call:
    return Call(name, {"question": f"and now? {mark}"} if name == "ask_human" else {"at": mark})


def spawn_arguments(child: dict[str, Any]) -> dict[str, Any]:
    return {
        "task": words(child),
        "label": child["name"],
        "run_timeout_s": child.get("timeout"),
        "plan_mode": bool(child.get("plan")),
        "expects_completion": not child.get("lazy"),
        "cleanup": bool(child.get("delete")),
        "isolated": bool(child.get("isolated")),
        "given": bool(child.get("given")),
        "tokens": child.get("tokens"),
        "model": child.get("model"),
    }


def _end(job: dict[str, Any], request: ModelRequest) -> Answer:
    said = f"{job.get('name', 'nobody')} is done {_mark(request)}"
    match job.get("end", "text"):
        case "skip":
            return _says("ANNOUNCE_SKIP")
        case "silent":
            return _says(" no_reply ")
        case "empty":
            return _says("")
        case "huge":
            return _says(f"{HUGE}\nSUMMARY: {said}")
        case "cut":
            return Answer(said, (), USAGE, MODEL, "length")
        case _:
            return _says(said)


def _mark(request: ModelRequest) -> str:
    return f"<{request.key.rsplit(':', 2)[-2][-12:]}:{request.key.rsplit(':', 1)[-1]}>"


def _says(text: str) -> Answer:
    return Answer(text, (), USAGE, MODEL)


def _calls(*calls: Call) -> Answer:
    return Answer("", calls, USAGE, MODEL, "tools")


# ---- writing ------------------------------------------------------------------------------------------

DOINGS: Final = (["echo"], ["echo"], ["slow"], ["once"], ["echo", "once"], ["fail"], ["slow", "echo", "once"])
NEEDS_PEOPLE: Final = (
    ["risky"],
    ["ask_human"],
    ["risky", "echo"],
    ["ask_human", "once"],
    ["risky", "ask_human"],
)
BESIDE: Final[tuple[dict[str, Any], ...]] = ({}, {}, {"do": ["echo"]}, {"do": ["slow"]}, {"yield": 1})
#: What an agent does with its children between two steps; a target that fits no session is an answer like any other.
ACTS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("list", {}),
    ("steer", {"target": "last", "text": "rather look at the other end"}),
    ("send", {"target": "last", "text": "and one more thing", "timeoutSeconds": 0}),
    ("pause", {"target": "1"}),
    ("resume", {"target": "1"}),
    ("kill", {"target": "last"}),
    ("kill", {"target": "c2"}),  # most often the child of another session
    ("steer", {"target": "c5", "text": "listen to me instead"}),
    ("retry", {"target": "last"}),
    ("continue", {"target": "last", "text": "continue"}),
    ("remove", {"target": "last"}),
)
ENDS: Final = ("text",) * 12 + ("huge", "huge", "skip", "silent", "empty", "cut")


class Author:
    """Invents jobs. `depth_left`: how many levels of children the job may have.

    `asks`: how many of its steps need a person; `thrift`: how many children have a budget of their own."""

    def __init__(self, rng: random.Random, children: int, asks: float, thrift: float) -> None:
        self._rng, self._children, self._asks, self._thrift = rng, children, asks, thrift
        self._named = 0

    def main_job(self, depth_left: int) -> dict[str, Any]:
        steps = [self._fan_out(depth_left), *self._acts()]
        if self._rng.random() < 0.75:
            steps.append({"yield": 1})
        if self._rng.random() < 0.2:
            steps += [self._fan_out(depth_left - 1), {"yield": 1}]
        return {"name": self._name("m"), "steps": steps, "end": "text"}

    def small_job(self) -> dict[str, Any]:
        """Something a person says in between."""
        return {"name": self._name("u"), "steps": self._work(), "end": self._rng.choice(("text", "silent"))}

    def child_job(self, depth_left: int) -> dict[str, Any]:
        rng = self._rng
        job: dict[str, Any] = {"name": self._name("c"), "steps": self._work(), "end": rng.choice(ENDS)}
        if depth_left > 0 and rng.random() < 0.4:
            job["steps"] = [self._fan_out(depth_left), *self._acts(), *job["steps"]]
            if rng.random() < 0.6:
                job["steps"].append({"yield": 1})
        if rng.random() < 0.15:
            job["timeout"] = rng.choice((3.0, 8.0, 20.0))
        if rng.random() < 0.1:
            job["model"] = OTHER_MODEL
        if rng.random() < self._thrift:
            job["tokens"] = rng.choice((30, 90, 200))
        for trait, chance in (
            ("plan", 0.08),
            ("lazy", 0.1),
            ("delete", 0.2),
            ("isolated", 0.08),
            ("given", 0.12),
        ):
            if rng.random() < chance:
                job[trait] = 1
        return job

    def _fan_out(self, depth_left: int) -> dict[str, Any]:
        """Alone, beside other calls or with the yield in the same answer: each is committed in its own way."""
        count = self._rng.randint(1, self._children)
        step: dict[str, Any] = {"spawn": [self.child_job(depth_left - 1) for _ in range(count)]}
        return step | self._rng.choice(BESIDE)

    def _acts(self) -> list[dict[str, Any]]:
        """What it does with the children it has just made."""
        if self._rng.random() > 0.3:
            return []
        return [{"act": self._rng.sample(ACTS, self._rng.choice((1, 1, 2)))}]

    def _work(self) -> list[dict[str, Any]]:
        return [{"do": self._doing()} for _ in range(self._rng.choice((0, 1, 1, 2, 3)))]

    def _doing(self) -> list[str]:
        return self._rng.choice(NEEDS_PEOPLE if self._rng.random() < self._asks else DOINGS)

    def _name(self, prefix: str) -> str:
        self._named += 1
        return f"{prefix}{self._named}"
