"""What a task did, by the ledger and not by its own account: written down when its outcome is fixed.

It goes with the outcome because the transcript may be gone when somebody asks. That of an older generation
says nothing about a newer one, so the generation is part of what is stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from clutch.core.messages import Answer, Entry, Results
from clutch.core.model import EXPIRED, Outcome, Task

WRITING_TOOLS = ("edit", "write")  # what a shell command changes, nobody can tell
FILES_MAX = 100  # a list for people; whoever touches more has a version control


@dataclass(frozen=True, slots=True)
class Evidence:
    tool_calls: int = 0
    files_touched: tuple[str, ...] = ()
    children_joined: int = 0  #: whose findings it has heard
    children_missing: tuple[str, ...] = ()  #: labels of those still out, in spawn order
    stop_reason: str | None = None

    def to_text(self, generation: int) -> str:
        """By hand: the encoder cost as much as the two statements around it."""
        return (
            f'{{"generation": {generation:d}, "toolCalls": {self.tool_calls:d},'
            f' "filesTouched": {_listed(self.files_touched)}, "childrenJoined": {self.children_joined:d},'
            f' "childrenMissing": {_listed(self.children_missing)}, "stopReason": {json.dumps(self.stop_reason)}}}'
        )


def _listed(texts: Sequence[str]) -> str:
    return json.dumps(texts) if texts else "[]"


def evidence_of(text: str | None, generation: int) -> Evidence | None:
    known: Mapping[str, Any] = json.loads(text) if text else {}
    if known.get("generation") != generation:
        return None
    return Evidence(
        known["toolCalls"],
        tuple(known["filesTouched"]),
        known["childrenJoined"],
        tuple(known["childrenMissing"]),
        known["stopReason"],
    )


#: Quotes inside a text are escaped, so no label can pose as this.
_NOBODY_MISSING = '"childrenMissing": []'


def children_missing(text: str | None, generation: int) -> tuple[str, ...]:
    """Asked for every result that is told, and nearly always nobody is."""
    if text is None or _NOBODY_MISSING in text:
        return ()
    known = evidence_of(text, generation)
    return () if known is None else known.children_missing


def stop_reason(task: Task) -> str:
    """Why its last run stopped. Of an ended task."""
    if task.outcome is Outcome.OK:
        return EXPIRED if task.reason == EXPIRED else "end"
    if task.outcome is Outcome.ERROR and task.error:
        return task.error
    return str(task.outcome)


def files_touched(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Of answers, each followed by its results: what was really written, in the order it first was."""
    found: dict[str, None] = {}
    for said, gave in pairwise(entries):
        if isinstance(said, Answer) and isinstance(gave, Results):
            failed = {result.index for result in gave.results if result.failed}
            for place, call in enumerate(said.calls):
                path = call.args.get("path")
                if call.name in WRITING_TOOLS and place not in failed and isinstance(path, str):
                    found[path] = None
    return tuple(found)[:FILES_MAX]
