"""What the paths answer, as models: what an OpenAPI document and the tools of MCP promise.

No answer is made from them: `gateway/objects.py` does that, for everybody. Real answers are held against them in the
tests. Fields may be added, so what is not named here is no error to a reader.
"""

from __future__ import annotations

from clutch.surfaces.http.answers.acting import (
    Answered,
    Changed,
    Decided,
    Inbox,
    Killed,
    Sent,
    Spawned,
    SpawnRefused,
    Steered,
)
from clutch.surfaces.http.answers.base import Answer, ProblemAnswer
from clutch.surfaces.http.answers.gateway import (
    Agents,
    Code,
    Document,
    Ending,
    Health,
    LetIn,
    Spending,
    Swept,
)
from clutch.surfaces.http.answers.openai import Completion, Models
from clutch.surfaces.http.answers.reading import (
    FileContent,
    Journal,
    Messages,
    Result,
    Tasks,
    Tree,
    Waited,
    Why,
)
from clutch.surfaces.http.answers.sessions import (
    CommandText,
    Deleted,
    Halted,
    Letter,
    NextWords,
    Notified,
    Sessions,
    Settled,
    Woken,
)
from clutch.surfaces.http.answers.task import Task

__all__ = [
    "Agents", "Answer", "Answered", "Changed", "Code", "CommandText", "Completion", "Decided", "Deleted",
    "Document", "Ending", "FileContent", "Halted", "Health", "Inbox", "Journal", "Killed", "LetIn",
    "Letter", "Messages", "Models", "NextWords", "Notified", "ProblemAnswer", "Result", "Sent",
    "Sessions", "Settled", "SpawnRefused", "Spawned", "Spending", "Steered", "Swept", "Task", "Tasks",
    "Tree", "Waited", "Why", "Woken",
]  # fmt: skip
