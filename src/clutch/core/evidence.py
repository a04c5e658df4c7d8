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
        return json.dumps(
            {
                "generation": generation,
                "toolCalls": self.tool_calls,
                "filesTouched": self.files_touched,
                "childrenJoined": self.children_joined,
                "childrenMissing": self.children_missing,
                "stopReason": self.stop_reason,
            }
        )


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
