"""Whether a turn has read what somebody outside wrote: a page, an answer of a server, the words of another agent.

Such text may try to give orders. What a tainted turn does beyond the workspace, or with a shell, a person should see
first (`tools.taint`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from clutch.core.messages import Answer, Entry, Input, Results
from clutch.core.model import LetterKind

SHELL = "shell"
#: Letters with words of another agent in them.
_FOREIGN = frozenset({LetterKind.ANNOUNCE, LetterKind.PLAN, LetterKind.NEWS, LetterKind.PEER})


def is_tainted(transcript: Sequence[Entry], outward: Collection[str]) -> bool:
    """Of the turn at the end of the transcript. `outward`: the tools whose answers come from outside."""
    for entry in reversed(transcript):
        match entry:
            case Answer(calls=()):
                return False  # the last words of the turn before
            case Input(source=source) if source in _FOREIGN:
                return True
            case Results(results) if any(result.name in outward for result in results):
                return True
    return False


def is_dangerous(name: str, *, is_outward: bool) -> bool:
    """What it takes away or brings about cannot be undone here."""
    return is_outward or name == SHELL
