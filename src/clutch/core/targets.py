"""What a person may type to point at a task, and which candidate it means.

Knows no store: the caller brings the candidates it may see, so nothing can be found here that the caller was not
allowed to see.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

from clutch.core import ids
from clutch.core.ids import SessionKey

CANDIDATES_MAX = 10


# --- targets: what was typed ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FullKey:
    key: SessionKey


@dataclass(frozen=True, slots=True)
class TaskRef:
    id: int


@dataclass(frozen=True, slots=True)
class RunRef:
    id: int


@dataclass(frozen=True, slots=True)
class Numbered:
    number: int
    text: str  # as typed: `007` may also be the beginning of a label


class Keyword(StrEnum):
    """What depends on who types it."""

    LAST = "last"
    MAIN = "main"
    CURRENT = "current"


@dataclass(frozen=True, slots=True)
class TargetText:
    """The beginning of an id or key, a label, or the beginning of a label."""

    text: str


Target = FullKey | TaskRef | RunRef | Numbered | Keyword | TargetText

# What no database keeps, and so nobody is called: NUL, and half a surrogate pair.
_NOBODYS = re.compile("[\x00\ud800-\udfff]")

# Longer numbers than anybody was ever shown are words; int() of a very long one would raise.
_NUMBERED = re.compile(r"#?([0-9]{1,9})")


def parse_target(text: str) -> Target:
    text = text.strip()
    key = ids.parse_session_key(text)
    if isinstance(key, SessionKey):
        return FullKey(key)
    if (task := ids.parse_task_id(text)) is not None:
        return TaskRef(task)
    if (run := ids.parse_run_id(text)) is not None:
        return RunRef(run)
    if numbered := _NUMBERED.fullmatch(text):
        return Numbered(int(numbered[1]), text)
    return Keyword(text) if text in set(Keyword) else TargetText(text)


# --- targets: what was meant ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """One session the caller may see. A main session has neither task nor label."""

    session_key: str
    task_id: int | None = None
    run_id: int | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Viewpoint:
    """What the words that depend on the caller mean for this caller."""

    numbering: Mapping[int, int] = field(default_factory=dict)  # number last shown -> task
    last_task_id: int | None = None
    main_key: str | None = None
    current_key: str | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    text: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Ambiguous:
    text: str
    candidates: tuple[Candidate, ...]
    total: int


Found = Candidate | Unknown | Ambiguous
_Test = Callable[[Candidate], bool]


def resolve(target: Target, candidates: Sequence[Candidate], viewpoint: Viewpoint) -> Found:
    """The first of these that finds anything decides: the exact meaning (key, id, number, keyword), the
    beginning of an id or key, the exact label, the beginning of a label. Two finds are Ambiguous.

    Numbers and keywords come before labels on purpose. Labels are written by models; a child called
    "last resort" or "main" must not catch what was meant for `last` or `main`.
    """
    text = target_text(target)
    for test in (_exactly(target, viewpoint), _id_starting(text), _label_equal(text), _label_starting(text)):
        found = tuple(candidate for candidate in candidates if test(candidate))
        if len(found) == 1:
            return found[0]
        if found:
            return Ambiguous(text, found[:CANDIDATES_MAX], len(found))
    return Unknown(text, tuple(candidates[:CANDIDATES_MAX]))


@dataclass(frozen=True, slots=True)
class WaitingItem:
    """One item of the inbox: its id, and the session that asks."""

    id: str
    asker: Candidate


def items_meant(text: str, items: Sequence[WaitingItem], viewpoint: Viewpoint) -> list[WaitingItem]:
    """Return the items that a text names: by the id of a question or a beginning of it, else by their task or session.

    Only sessions that ask are looked at: a finished task with the same label makes nothing ambiguous."""
    text = text.strip()
    if named := [item for item in items if _is_question(text) and item.id == text]:
        return named
    if named := [item for item in items if _is_question(text) and item.id.startswith(text)]:
        return named
    match resolve(parse_target(text), list(dict.fromkeys(item.asker for item in items)), viewpoint):
        case Candidate() as asker:
            return [item for item in items if item.asker == asker]
        case Ambiguous(_, askers):
            return [item for item in items if item.asker in askers]
        case Unknown():
            return []


def _is_question(text: str) -> bool:
    return len(text) > 2 and text.startswith("q_")


def target_text(target: Target) -> str:
    match target:
        case FullKey(key):
            return str(key)
        case TaskRef(number):
            return ids.task_id(number)
        case RunRef(number):
            return ids.run_id(number)
        case Numbered(_, text) | TargetText(text):
            return text
        case Keyword():
            return target.value
        case _:
            assert_never(target)


def can_be_a_name(text: str) -> bool:
    return bool(text) and not _NOBODYS.search(text)


def _exactly(target: Target, viewpoint: Viewpoint) -> _Test:
    match target:
        case FullKey(key):
            return _key_is(str(key))
        case TaskRef(number):
            return _task_is(number)
        case RunRef(number):
            return lambda candidate: candidate.run_id == number
        case Numbered(number, _):
            return _task_is(viewpoint.numbering.get(number))
        case Keyword.LAST:
            return _task_is(viewpoint.last_task_id)
        case Keyword.MAIN:
            return _key_is(viewpoint.main_key)
        case Keyword.CURRENT:
            return _key_is(viewpoint.current_key)
        case TargetText(_):
            return _nothing
        case _:
            assert_never(target)


def _nothing(_: Candidate) -> bool:
    return False


def _task_is(number: int | None) -> _Test:
    return lambda candidate: number is not None and candidate.task_id == number


def _key_is(key: str | None) -> _Test:
    return lambda candidate: candidate.session_key == key


def _id_starting(text: str) -> _Test:
    # At least one digit, or the whole first word of a key: `t` or `a` alone is no way to point at anything.
    if text.startswith("agent:"):
        return lambda candidate: candidate.session_key.startswith(text)
    if len(text) > 2 and text.startswith("t_"):
        return lambda candidate: (
            candidate.task_id is not None and ids.task_id(candidate.task_id).startswith(text)
        )
    if len(text) > 2 and text.startswith("r_"):
        return lambda candidate: (
            candidate.run_id is not None and ids.run_id(candidate.run_id).startswith(text)
        )
    return _nothing


def _label_equal(text: str) -> _Test:
    return lambda candidate: text != "" and candidate.label == text


def _label_starting(text: str) -> _Test:
    return lambda candidate: text != "" and candidate.label is not None and candidate.label.startswith(text)
