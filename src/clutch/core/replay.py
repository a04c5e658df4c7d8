"""A task's journal as one story: letters, phases, words, calls and results, each where it happened.

What one transaction wrote has one time; within it the order is the one in which it came about: what arrived, that
the run began, what was said and done, what became of the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from clutch.core import keys, messages
from clutch.core.messages import Answer, Input, Results, Summary
from clutch.core.model import Phase
from clutch.core.task_view import Line
from clutch.core.wording.calls import in_words, main_argument
from clutch.core.wording.why import Happened, happening

_ARRIVED, _BEGAN, _SAID, _BECAME = range(4)


@dataclass(frozen=True, slots=True)
class Arrived:
    """A letter of the task's inbox."""

    id: int
    at: float
    kind: str
    body: str
    sender: int | None  #: the task whose result it brings
    taken_seq: int | None  #: where it stands in the transcript; None: it was never read


@dataclass(frozen=True, slots=True)
class Step:
    """`kind`: letter, phase, input, answer, call, result or summary. `detail`: all of it, for programs."""

    at: float
    kind: str
    text: str
    seq: int | None = None
    run_id: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


def steps(timeline: Sequence[Happened], letters: Sequence[Arrived], lines: Sequence[Line]) -> list[Step]:
    """Sorting keeps the order of each of the three where time and place are the same."""
    placed = [
        *((letter.at, _ARRIVED, _letter(letter)) for letter in letters),
        *((line.at, _rank(line), _phase(line)) for line in timeline),
        *((line.at, _SAID, step) for line in lines for step in _said(line)),
    ]
    return [step for _, _, step in sorted(placed, key=lambda one: one[:2])]


def _rank(line: Happened) -> int:
    return _BEGAN if line.to_phase is Phase.RUNNING or line.reason.startswith("admitted") else _BECAME


def _letter(letter: Arrived) -> Step:
    text = letter.body if letter.sender is None else f"the result of {keys.task_id(letter.sender)}"
    read = "never read" if letter.taken_seq is None else f"read as #{letter.taken_seq}"
    detail = {"kind": letter.kind, "takenSeq": letter.taken_seq}
    return Step(letter.at, "letter", f"{letter.kind} ({read}): {text}", detail=detail)


def _phase(line: Happened) -> Step:
    word, text = happening(line)
    detail = {"event": word, "from": line.from_phase.value, "to": line.to_phase.value, "reason": line.reason}
    return Step(line.at, "phase", text, line.seq, detail=detail | {"actor": line.actor})


def _said(line: Line) -> Iterator[Step]:
    run_id = line.run_id or None
    match messages.load(line.kind, line.body):
        case Input(text, source):
            yield Step(line.at, "input", text, line.seq, run_id, {"source": source})
        case Answer(text, calls, _, model, stop):
            if text or not calls:
                yield Step(line.at, "answer", text, line.seq, run_id, {"model": model, "stop": stop})
            for place, call in enumerate(calls):
                detail = {"index": place, "name": call.name, "args": dict(call.args)}
                words = in_words(call.name, main_argument(call.args))
                yield Step(line.at, "call", words, line.seq, run_id, detail)
        case Results(results):
            for result in results:
                detail = {"index": result.index, "name": result.name, "failed": result.failed}
                yield Step(line.at, "result", result.text, line.seq, run_id, detail)
        case Summary(text, upto):
            yield Step(line.at, "summary", text, line.seq, run_id, {"upto": upto})
        case never:
            assert_never(never)
