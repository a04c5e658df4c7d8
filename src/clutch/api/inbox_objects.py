"""The JSON objects of the inbox: what waits for a decision of the user. Rules as in `api/objects.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import TypedDict

from clutch.api.objects import BudgetAnswer, Moment, Unsent
from clutch.api.schema import StatusName


class PathPart(TypedDict):
    """A session above the one that asks, or itself."""

    sessionKey: str
    taskId: str | None
    label: str | None


class Item(TypedDict):
    id: str
    kind: str
    status: StatusName
    taskId: str | None
    sessionKey: str | None
    agentId: str | None
    label: str | None
    depth: int
    path: list[PathPart]  #: who asks, from the top of the tree; empty: the gateway asks
    text: str
    detail: Mapping[str, Any]
    choices: list[str]  #: the only answers that are accepted; empty: any text
    directory: str | None  #: where an approved command starts
    isSandboxed: (
        bool | None
    )  #: whether an approved command runs in the sandbox; null: no command, or not known
    budget: BudgetAnswer | None  #: the exhausted budget as it is now
    consequences: Mapping[str, str]  #: what each decision does, in one sentence, by decision
    hash: str
    askedAt: Moment


class Inbox(TypedDict):
    items: list[Item]
    replies: int
    repliesIn: list[str]
    unsent: list[Unsent]
