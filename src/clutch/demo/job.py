"""The work of one demo, kept in its state directory, so that a worker or a later command can resume it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from clutch.core.messages import Answer, Call, Input, Message, Results, Transcript
from clutch.core.session_tools import SessionCall
from clutch.core.spawn import SpawnRequest
from clutch.errors import InvalidInput
from clutch.ports import HumanQuestion, ModelRequest, Models, OnDelta, Toolbox, ToolContext, ToolSpec

QUESTION = "Survey the folder: what is in it, and what deserves attention?"
SESSION = "agent:main:main"

_JOB, _POINTER = "demo.json", "last-demo"
_COMMAND_LOCK, _GATEWAY_LOCK = "demo.lock", "lock"

PACE_S = 0.3  #: of one model call: a user can still follow
SLOW = 4.0  #: factor for the child that takes its time
CHAOS_PACE_S = 0.5  #: about the life of a worker, so that most kills hit a call in flight
CHAOS_PACE_MAX_S = 0.8


@dataclass(frozen=True, slots=True)
class DemoJob:
    """`kills`: how often the worker is killed at work; None: never, 0: until the work is done."""

    state: Path
    folder: Path
    seed: int = 0
    kills: int | None = None
    pace_s: float = PACE_S
    slow: float = SLOW
    is_fresh: bool = False  #: created without --state; the next demo may remove it

    @property
    def is_chaos(self) -> bool:
        return self.kills is not None

    def save(self) -> None:
        written = {**asdict(self), "state": str(self.state), "folder": str(self.folder)}
        write_private(self.state / _JOB, json.dumps(written))


def chaos_pace_s(kills: int) -> float:
    """Return a pace at which the work outlasts the kills; a call longer than a worker's life would never end."""
    return min(CHAOS_PACE_MAX_S, 0.3 + 0.025 * kills) if kills else CHAOS_PACE_S


def load(state: Path) -> DemoJob | None:
    """Return the job kept in a state directory, or None. Raises InvalidInput for a damaged one."""
    try:
        read: dict[str, Any] = json.loads((state / _JOB).read_text())
        return DemoJob(**{**read, "state": state, "folder": Path(read["folder"])})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidInput("--state", f"{state / _JOB} is damaged; start a new demo") from error


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Hold the demo's lock, so that one command at a time runs it.

    The gateway's lock is free between two workers, so the demo needs one of its own. The gateway's lock must be free
    too, because a worker outlives a killed command for a moment."""
    lock = os.open(state / _COMMAND_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _take(lock, state)
        _must_be_free(state)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def _must_be_free(state: Path) -> None:
    try:
        lock = os.open(state / _GATEWAY_LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _take(lock, state)
    finally:
        os.close(lock)


def _take(lock: int, state: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise InvalidInput(
            "--state",
            f"{state} is in use by another process (pid {owner}); stop it, or wait until it is done",
        ) from error


def remember(home: Path, state: Path) -> None:
    """Keep the state directory for `--resume` without --state."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(home / _POINTER, str(state))


def remembered(home: Path) -> Path | None:
    try:
        return Path((home / _POINTER).read_text())
    except FileNotFoundError:
        return None


def write_private(path: Path, text: str) -> None:
    """Write the file atomically, for its owner only."""
    made = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)


# --------------------------------------------------------------------------------------------------
# Records outside of the product: what a model was asked, and what a tool did.
#
# They are written at the ports, before the call, to files that the engine does not read. So the report's counts of
# lost, doubled and repeated work do not come from the code under test.
#
#     model calls   their key; the task ids that the model saw as accepted; whose results it saw, and how often
#     notes         one line per call of the one tool that must never run twice

_CALLS, _NOTES = "model-calls.jsonl", "journal.jsonl"
#: A line of the runtime. A child's text cannot imitate it: inside a fence each line begins with a bar.
_TOLD = re.compile(r"(?m)^task: (t_\w+) session: ")

NOTE = ToolSpec(
    name="note",
    description="Write one line into the journal of this run.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    replay_safe=False,
    read_only=False,
)


class Log:
    """An append-only file. Each line is on disk before `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, **fields: object) -> None:
        os.write(self._file, json.dumps(fields).encode() + b"\n")
        os.fsync(self._file)


def lines(path: Path) -> list[dict[str, Any]]:
    """Read a log. A last line without a newline was not written completely and is left out."""
    if not path.exists():
        return []
    *whole, _ = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in whole]


# --- in the worker ----------------------------------------------------------------------------------------


class WatchedModels:
    """Records each call, and adds a note about each step of work to the journal.

    The model behind this wrapper sees neither the notes nor their results."""

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
    """Add a note to an answer with tool calls, except for spawns and waits, which are recorded elsewhere."""
    is_work = answer.calls and not any(call.name.startswith("sessions_") for call in answer.calls)
    if not is_work or NOTE.name not in {spec.name for spec in request.tools}:
        return answer
    step = sum(isinstance(message, Answer) for message in request.transcript) + 1
    return replace(answer, calls=(*answer.calls, Call(NOTE.name, {"text": f"step {step}: {answer.text}"})))


def _without_notes(message: Message) -> Message:
    """Remove the note, which is the last call of an answer: no other call changes its index."""
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


class JournalToolbox:
    """Adds a tool whose effect cannot be undone. Its answer takes `pause_s` seconds."""

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
    accepted: frozenset[str]  #: task ids that a model saw as accepted
    told: Mapping[str, int]  #: task id → how often a model saw its result
    repeated_calls: int  #: model calls with a key that was used before
    repeated_notes: int  #: repeated calls of the unsafe tool


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
