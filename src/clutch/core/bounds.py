"""What bounds a run from inside: the same call again and again, and an answer that must have a form.

Looks at the transcript of the run only; the caller acts. The number of steps, the deadline and the budget
have places of their own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum

from clutch.core.messages import Answer, Call, Entry, Input, Results
from clutch.core.model import LetterKind
from clutch.core.policy import Life

SUBMIT = "submit_result"
ACCEPTED = "accepted: this is your result; the task is done"
#: source of the note that asks for the form; it is said once
FORM_NOTE = "form"
#: Inputs that are the runtime's own words
NOTES = frozenset({FORM_NOTE, LetterKind.NOTE.value})


class Loop(StrEnum):
    NONE = "none"
    WARNED = "warned"
    ENDED = "ended"


def loop(transcript: Sequence[Entry], answer: Answer, life: Life) -> Loop:
    """Does this answer (the last of the transcript or about to be) repeat a call too often?

    Only without a person's or a parent's words in between: these may well ask for the same thing again."""
    made = [call for said in _since_told(transcript) if isinstance(said, Answer) for call in said.calls]
    if len(made) < life.same_call_warn:
        return Loop.NONE
    times = Counter(map(_name, made))
    most = max((times[_name(call)] for call in answer.calls), default=0)
    if most >= life.same_call_max:
        return Loop.ENDED
    return Loop.WARNED if most >= life.same_call_warn else Loop.NONE


def _since_told(transcript: Sequence[Entry]) -> Iterator[Entry]:
    """Back to the last words from outside."""
    for entry in reversed(transcript):
        if isinstance(entry, Input) and entry.source not in NOTES:
            return
        yield entry


def _name(call: Call) -> tuple[str, str]:
    return call.name, json.dumps(dict(call.args), sort_keys=True)


def submitted(transcript: Sequence[Entry]) -> Call | None:
    """The call whose value was accepted as the result, if the run is at that point.

    A note of the runtime that came with the results asks for nothing that could change it."""
    said = [entry for entry in transcript[-8:] if not (isinstance(entry, Input) and entry.source in NOTES)]
    if len(said) < 2:
        return None
    answer, results = said[-2], said[-1]
    if not isinstance(answer, Answer) or not isinstance(results, Results):
        return None
    for result in results.results:
        if result.name == SUBMIT and not result.failed:
            return answer.calls[result.index]
    return None


def form_errors(transcript: Sequence[Entry]) -> int:
    """How often the result had the wrong form or none since the last words from outside."""
    count = 0
    for message in reversed(transcript):
        if isinstance(message, Input):
            if message.source not in NOTES:
                break
            count += message.source == FORM_NOTE
        if isinstance(message, Results):
            count += any(result.name == SUBMIT and result.failed for result in message.results)
    return count
