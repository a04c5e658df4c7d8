"""A transcript holds what its letters say, once: checked at the commit that writes it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from clutch.core import ids
from clutch.testing.invariants.history import Change, LetterShot
from clutch.testing.invariants.registry import CheckContext, invariant
from clutch.transactions import turn

#: transactions that take letters, and those that file the results of calls
READING: Final = frozenset({"begin", "results", "yields", "delegate"})
WORKING: Final = frozenset({"results", "yields", "delegate"})

_BLOCK = re.compile(r"^task: (t_[0-9a-z]+) session: ", re.MULTILINE)
_LINE = re.compile(r'^\| "(t_[0-9a-z]+) ', re.MULTILINE)
_OLDER = "Older results, one line each"


@invariant("N12", READING, "a letter is put into the transcript once, in the commit that takes it")
def _appended_once(change: Change, context: CheckContext) -> Iterator[str]:
    for session_id, old_head, head in _grown(change, READING):
        yield from _compare(change, context, session_id, old_head, head)


def _compare(
    change: Change, context: CheckContext, session_id: int, old_head: int, head: int
) -> Iterator[str]:
    rows = context.disk.query(
        "SELECT body FROM messages WHERE session_id = ? AND seq > ? AND seq <= ? AND kind = 'input'",
        session_id,
        old_head,
        head,
    )
    inputs = [json.loads(body) for (body,) in rows]
    new = [after for before, after in change.letters.values() if _is_taken_now(before, after, session_id)]
    told = Counter(
        task_id for message in inputs if message["source"] == "announce" for task_id in _told(message["text"])
    )
    wanted = Counter(
        ids.task_id(letter.task_id or 0) for letter in new if letter.kind == "announce" and not letter.silent
    )
    if told != wanted:
        yield f"session {session_id} took letters of {sorted(wanted)} and reads of {sorted(told)}"
    said = Counter(message["source"] for message in inputs if message["source"] != "announce")
    urgent = Counter(letter.kind for letter in new if letter.kind != "announce")
    if said != urgent:
        yield f"session {session_id} took {dict(urgent)} and reads {dict(said)}"
    misplaced = [letter.id for letter in new if not old_head < (letter.taken_seq or 0) <= head + 1]
    if misplaced:
        yield f"session {session_id}: letters {misplaced} do not stand where they say"


@invariant("N12", "letters", "a letter that stands in a transcript keeps its place there")
def _keeps_its_place(change: Change, context: CheckContext) -> Iterator[str]:
    """Until the transcript begins anew or is deleted; and one that rises to another session is written there, too."""
    for before, after in change.letters.values():
        if before is None or before.taken_seq is None or before.taken_seq == after.taken_seq:
            continue
        session = context.history.session(after.session_id)
        is_there = session is not None and session.base < before.taken_seq <= session.head
        if before.session_id == after.session_id and is_there:
            yield f"letter {after.id} stood at {before.taken_seq} and stands at {after.taken_seq}"


def _is_taken_now(before: LetterShot | None, after: LetterShot, session_id: int) -> bool:
    was_taken = before is not None and before.taken_seq is not None
    return after.session_id == session_id and after.taken_seq is not None and not was_taken


def _told(text: str) -> Iterator[str]:
    blocks, _, older = text.partition(_OLDER)
    yield from _BLOCK.findall(blocks)
    yield from _LINE.findall(older)


@invariant("T11", READING, "results are delivered in the order in which the model asked for them")
def _in_spawn_order(change: Change, context: CheckContext) -> Iterator[str]:
    for session_id, text in _announcements(change, context):
        told = [ids.parse_task_id(found) for found in _BLOCK.findall(text.partition(_OLDER)[0])]
        orders = {
            row[0]: row[1]
            for row in context.disk.query(
                "SELECT id, spawn_order FROM tasks WHERE id IN (SELECT value FROM json_each(?))",
                json.dumps(told),
            )
        }
        placed = [orders[task_id] for task_id in told if task_id in orders]
        if placed != sorted(placed):
            yield f"session {session_id} reads {told}, whose calls were {placed}"


def _announcements(change: Change, context: CheckContext) -> Iterator[tuple[int, str]]:
    for session_id, old_head, head in _grown(change, READING):
        rows = context.disk.query(
            "SELECT body FROM messages WHERE session_id = ? AND seq > ? AND seq <= ? AND kind = 'input'",
            session_id,
            old_head,
            head,
        )
        for (body,) in rows:
            message = json.loads(body)
            if message["source"] == "announce":
                yield session_id, message["text"]


def _grown(change: Change, names: frozenset[str]) -> Iterator[tuple[int, int, int]]:
    """Sessions whose transcript one of these transactions made longer: where it ended, where it ends."""
    for made in change.made:
        if made.name in names and made.written:
            before, after = change.sessions.get(made.session_id, (None, None))
            if before is not None and after is not None:
                yield after.id, before.head, after.head


def _results(change: Change, context: CheckContext) -> Iterator[tuple[int, str]]:
    for session_id, old_head, head in _grown(change, WORKING):
        for (body,) in context.disk.query(
            "SELECT body FROM messages WHERE session_id = ? AND seq > ? AND seq <= ? AND kind = 'results'",
            session_id,
            old_head,
            head,
        ):
            yield session_id, body


@invariant("N16", WORKING, "a session that waits for its children is on hold, from that commit on")
def _held_as_told(change: Change, context: CheckContext) -> Iterator[str]:
    for session_id, body in _results(change, context):
        if json.dumps(turn.YIELDED) not in body:
            continue
        session = context.history.session(session_id)
        if session is None or not session.hold or session.run_id is not None:
            yield f"session {session_id} was shown that it waits and is not on hold"


@invariant("N1", WORKING, "`accepted` is said only of a task that is on disk")
def _accepted_is_durable(change: Change, context: CheckContext) -> Iterator[str]:
    for session_id, body in _results(change, context):
        for task_id in _accepted(body):
            if not context.disk.query("SELECT 1 FROM tasks WHERE id = ?", task_id):
                yield f"session {session_id} was shown that {task_id} is accepted, and there is no such task"


def _accepted(body: str) -> Iterator[int]:
    if "accepted" not in body:
        return
    for result in json.loads(body)["results"]:
        if result["name"] == "sessions_spawn" and '"accepted"' in result["text"]:
            yield ids.parse_task_id(json.loads(result["text"])["taskId"]) or 0
