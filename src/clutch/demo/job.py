"""The work of one demo, kept in its state directory, so that a worker or a later command can resume it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from clutch.core.messages import Answer, Call, Input, Message, Results, Transcript
from clutch.errors import InvalidInput
from clutch.ports import ModelRequest, Models, OnDelta, ToolContext
from clutch.surfaces import discovery
from clutch.surfaces.discovery import default_state_directory
from clutch.wiring import Clutch

QUESTION = "Survey the folder: what is in it, and what deserves attention?"
SESSION = "agent:main:main"

FRESH = "clutch-demo-"  #: prefix of state directories without --state
REPORT = "report.json"  #: written last: a demo that has it is finished
_JOB, _LOCK = "demo.json", "demo.lock"

PACE_S = 0.3  #: of one model call: a user can still follow
SLOW = 4.0  #: factor for the subagent that takes its time
KILLS_MAX = 60  #: a bound for "until the work is done" on a machine that is too slow


@dataclass(frozen=True, slots=True)
class DemoJob:
    """The worker is killed `kills` times: in the middle of the work, or in chaos about every second."""

    state: Path
    folder: Path
    seed: int = 0
    kills: int = 1
    is_chaos: bool = False
    pace_s: float = PACE_S
    slow: float = SLOW
    is_fresh: bool = False  #: created without --state; the next demo may remove it

    @property
    def is_finished(self) -> bool:
        return (self.state / REPORT).exists()

    def save(self) -> None:
        write_private(self.state / _JOB, json.dumps(asdict(self), default=str))


def chaos_pace_s(kills: int | None) -> float:
    """Return a pace at which the work outlasts the kills; a call longer than a worker's life would never end."""
    return 0.5 if kills is None else min(0.8, 0.3 + 0.025 * kills)


def load(state: Path) -> DemoJob | None:
    """Return the job kept in a state directory, or None. Raises InvalidInput for a damaged one."""
    try:
        read: dict[str, Any] = json.loads((state / _JOB).read_text())
        return DemoJob(**{**read, "state": state, "folder": Path(read["folder"])})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidInput("--state", f"{state / _JOB} is damaged; start a new demo") from error


def places() -> tuple[Path, Path]:
    """Return where state directories without --state are: the second is for a survey of the first."""
    return Path(tempfile.gettempdir()).resolve(), default_state_directory().resolve() / "demos"


def kept() -> list[DemoJob]:
    """Return the demos of this user that were started without --state, the newest first."""
    found: list[tuple[float, DemoJob]] = []
    for path in (path for place in places() for path in place.glob(f"{FRESH}*")):
        # Another user may have made it. A damaged demo is left as it is.
        with suppress(OSError, InvalidInput):
            about, job = path.lstat(), load(path)
            if job is not None and job.is_fresh and about.st_uid == os.getuid() and S_ISDIR(about.st_mode):
                found.append((about.st_mtime, job))
    return [job for _, job in sorted(found, key=lambda one: -one[0])]


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Hold the demo's lock, so that one command at a time runs it.

    The gateway's lock is free between two workers, so the demo needs one of its own. The gateway's lock must be free
    too, because a worker outlives a killed command for a moment."""
    lock = os.open(state / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _take(lock, state)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def _take(lock: int, state: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise _in_use(state, f"another process (pid {owner})") from error
    if discovery.is_owned(state):
        raise _in_use(state, "a gateway")


def _in_use(state: Path, owner: str) -> InvalidInput:
    return InvalidInput("--state", f"{state} is in use by {owner}: stop it, or wait until it has ended")


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
NOTE = "note"  #: the name of that tool
#: A line of the runtime. A subagent's text cannot imitate it: inside a fence each line begins with a bar.
_DELIVERED = re.compile(r"(?m)^task: (t_\w+) session: ")


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
        delivered = Counter(_delivered(request.transcript))
        self._log.write(key=request.key, accepted=accepted, delivered=delivered)
        bare = replace(
            request,
            transcript=tuple(map(_without_notes, request.transcript)),
            tools=[spec for spec in request.tools if spec.name != NOTE],
        )
        return _with_note(await self._models.ask(bare, on_delta), request)


def _with_note(answer: Answer, request: ModelRequest) -> Answer:
    """Add a note to an answer with tool calls, except for spawns and waits, which are recorded elsewhere."""
    is_work = answer.calls and not any(call.name.startswith("sessions_") for call in answer.calls)
    if not is_work or NOTE not in {spec.name for spec in request.tools}:
        return answer
    step = sum(isinstance(message, Answer) for message in request.transcript) + 1
    return replace(answer, calls=(*answer.calls, Call(NOTE, {"text": f"step {step}: {answer.text}"})))


def _without_notes(message: Message) -> Message:
    """Remove the note, which is the last call of an answer: no other call changes its index."""
    match message:
        case Answer(calls=calls):
            return replace(message, calls=tuple(call for call in calls if call.name != NOTE))
        case Results(results=results):
            return Results(tuple(result for result in results if result.name != NOTE))
        case Input():
            return message


def _accepted(transcript: Transcript) -> Iterator[str]:
    for message in transcript:
        if isinstance(message, Results):
            for result in message.results:
                if result.name == "sessions_spawn" and not result.failed:
                    yield json.loads(result.text)["taskId"]


def _delivered(transcript: Transcript) -> Iterator[str]:
    for message in transcript:
        if isinstance(message, Input) and message.source == "announce":
            yield from _DELIVERED.findall(message.text)


def add_journal(clutch: Clutch, state: Path, pause_s: float) -> None:
    """Add a tool whose effect cannot be undone. Its answer takes `pause_s` seconds."""
    log = Log(state / _NOTES)

    @clutch.tool()
    async def note(text: str, context: ToolContext) -> str:
        """Write one line into the journal of this run."""
        log.write(session=context.session_key, text=text)
        await asyncio.sleep(pause_s)
        return "noted"


# --- afterwards -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Account:
    accepted: frozenset[str]  #: task ids that a model saw as accepted
    delivered: Mapping[str, int]  #: task id → how often a model saw its result
    repeated_calls: int  #: model calls with a key that was used before
    repeated_notes: int  #: repeated calls of the unsafe tool


def account_of(state: Path) -> Account:
    calls, notes = lines(state / _CALLS), lines(state / _NOTES)
    shown: dict[tuple[str, str], int] = {}
    for call in calls:
        session = call["key"].rpartition(":")[0]
        for task_id, count in call["delivered"].items():
            shown[session, task_id] = max(count, shown.get((session, task_id), 0))
    delivered: Counter[str] = Counter()
    for (_, task_id), count in shown.items():
        delivered[task_id] += count
    return Account(
        accepted=frozenset(task_id for call in calls for task_id in call["accepted"]),
        delivered=delivered,
        repeated_calls=len(calls) - len({call["key"] for call in calls}),
        repeated_notes=len(notes) - len({(note["session"], note["text"]) for note in notes}),
    )
