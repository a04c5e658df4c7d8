"""Witnesses outside of the product: what a model was really asked, and what a tool really did.

They stand where the engine meets the world and write a line before anything is done, to files that nobody
of the engine reads. So what the report says about lost, doubled and repeated things does not come from the
code it is about.

    model calls   their key; the tasks this model was told are accepted; whose results it was shown, how often
    notes         one line per act of the one tool that must never act twice
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clutch.core.admission import SpawnRequest
from clutch.core.messages import Answer, Call, Input, Message, Results, Transcript
from clutch.core.session_calls import SessionCall
from clutch.ports import HumanQuestion, ModelRequest, Models, OnDelta, Toolbox, ToolContext, ToolSpec

_CALLS, _NOTES = "model-calls.jsonl", "journal.jsonl"
#: A line of the runtime. Text of a child cannot pose as one: inside a fence each line begins with a bar.
_TOLD = re.compile(r"(?m)^task: (t_\w+) session: ")

NOTE = ToolSpec(
    name="note",
    description="Write one line into the journal of this run.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    replay_safe=False,
    read_only=False,
)


class Log:
    """Append-only lines. Each is on disk before `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, **fields: object) -> None:
        os.write(self._file, json.dumps(fields).encode() + b"\n")
        os.fsync(self._file)


def lines(path: Path) -> list[dict[str, Any]]:
    """A last line without an end was never written."""
    if not path.exists():
        return []
    *whole, _ = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in whole]


# --- in the worker ----------------------------------------------------------------------------------------


class WatchedModels:
    """Writes down each call, and has every step of work noted in the journal.

    The notes are this wrapper's, so the model behind it sees neither them nor what became of them."""

    def __init__(self, models: Models, state: Path) -> None:
        self._models = models
        self._log = Log(state / _CALLS)

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        accepted = list(_accepted(request.transcript))
        told = Counter(_told(request.transcript))
        self._log.write(key=request.key, accepted=accepted, told=told)
        bare = replace(
            request,
            transcript=tuple(map(_without_notes, request.transcript)),
            tools=[spec for spec in request.tools if spec.name != NOTE.name],
        )
        return _with_note(await self._models.ask(bare, on_delta), request)


def _with_note(answer: Answer, request: ModelRequest) -> Answer:
    """Reading a folder is worth a note; starting children and waiting has its own record."""
    is_work = answer.calls and not any(call.name.startswith("sessions_") for call in answer.calls)
    if not is_work or NOTE.name not in {spec.name for spec in request.tools}:
        return answer
    step = sum(isinstance(message, Answer) for message in request.transcript) + 1
    return replace(answer, calls=(*answer.calls, Call(NOTE.name, {"text": f"step {step}: {answer.text}"})))


def _without_notes(message: Message) -> Message:
    """The note is the last call of an answer, so no other call changes its place."""
    match message:
        case Answer(calls=calls):
            return replace(message, calls=tuple(call for call in calls if call.name != NOTE.name))
        case Results(results=results):
            return Results(tuple(result for result in results if result.name != NOTE.name))
        case Input():
            return message


def _accepted(transcript: Transcript) -> Iterator[str]:
    for message in transcript:
        if isinstance(message, Results):
            for result in message.results:
                if result.name == "sessions_spawn" and not result.failed:
                    yield json.loads(result.text)["taskId"]


def _told(transcript: Transcript) -> Iterator[str]:
    for message in transcript:
        if isinstance(message, Input) and message.source == "announce":
            yield from _TOLD.findall(message.text)


class Journal:
    """A toolbox with one tool more, whose act cannot be taken back. `pause_s`: how long its answer takes."""

    def __init__(self, toolbox: Toolbox, state: Path, pause_s: float) -> None:
        self._toolbox, self._pause_s = toolbox, pause_s
        self._log = Log(state / _NOTES)

    def specs(self) -> Sequence[ToolSpec]:
        return [*self._toolbox.specs(), NOTE]

    async def run(self, name: str, args: Mapping[str, Any], context: ToolContext) -> str:
        if name != NOTE.name:
            return await self._toolbox.run(name, args, context)
        self._log.write(key=context.key, session=context.session_key, text=str(args["text"]))
        await asyncio.sleep(self._pause_s)
        return "noted"

    def human_question(self, args: Mapping[str, Any]) -> HumanQuestion:
        return self._toolbox.human_question(args)

    def spawn_request(self, args: Mapping[str, Any]) -> SpawnRequest:
        return self._toolbox.spawn_request(args)

    def session_call(self, name: str, args: Mapping[str, Any]) -> SessionCall:
        return self._toolbox.session_call(name, args)


# --- afterwards -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Account:
    accepted: frozenset[str]  #: task ids that a model was told are accepted
    told: Mapping[str, int]  #: task id → how often its result stands before a model
    repeated_calls: int  #: model calls that had been made before, by their key
    repeated_notes: int  #: acts of the unsafe tool that had been done before


def account_of(state: Path) -> Account:
    calls, notes = lines(state / _CALLS), lines(state / _NOTES)
    shown: dict[tuple[str, str], int] = {}
    for call in calls:
        session = call["key"].rpartition(":")[0]
        for task_id, count in call["told"].items():
            shown[session, task_id] = max(count, shown.get((session, task_id), 0))
    told: Counter[str] = Counter()
    for (_, task_id), count in shown.items():
        told[task_id] += count
    return Account(
        accepted=frozenset(task_id for call in calls for task_id in call["accepted"]),
        told=told,
        repeated_calls=len(calls) - len({call["key"] for call in calls}),
        repeated_notes=len(notes) - len({(note["session"], note["text"]) for note in notes}),
    )
