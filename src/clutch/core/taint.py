"""Whether a turn has read what somebody outside wrote: a page, an answer of a server, the words of another agent.

Such text may try to give orders. What a tainted turn does beyond the workspace, or with a shell, a person should see
first (`tools.taint`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from clutch.core.bounds import FORM_NOTE
from clutch.core.messages import Answer, Entry, Input, Results
from clutch.core.model import LetterKind

SHELL = "shell"
#: Letters with words of another agent in them.
_FOREIGN = frozenset({LetterKind.ANNOUNCE, LetterKind.PLAN, LetterKind.NEWS, LetterKind.PEER})
#: What a model may be told after words that were not its last. It may also begin a turn: then that one is wary too.
_GOING_ON = frozenset({FORM_NOTE, LetterKind.INSTRUCTION})


def is_tainted(transcript: Sequence[Entry], ours: Collection[str]) -> bool:
    """Of the turn at the end of the transcript. `ours`: the tools whose answers are nobody else's words; what a tool
    said that is not known any more may have come from anywhere."""
    goes_on = False
    for entry in reversed(transcript):
        match entry:
            case Answer(calls=()) if not goes_on:
                return False  # the last words of the turn before
            case Answer():
                goes_on = False
            case Input(source=source) if source in _FOREIGN:
                return True
            case Input(source=source):
                goes_on |= source in _GOING_ON
            case Results(results) if any(result.name not in ours for result in results):
                return True
    return False


def is_dangerous(name: str, *, is_outward: bool) -> bool:
    """What it takes away or brings about cannot be undone here."""
    return is_outward or name == SHELL
