"""What a commit may change and SQL alone cannot see: hashes, and what the transaction that made it was for.

Each check is a generator over one `Change` that says what is wrong; silence is good news.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from clutch.core.model import RunState
from clutch.core.text.tasks import freeze
from clutch.testing.invariants.history import Change
from clutch.testing.invariants.registry import CheckContext, invariant


@invariant("T9", "tasks", "the hash of a result is its own")
def _own_hash(change: Change, context: CheckContext) -> Iterator[str]:
    for before, after in change.tasks.values():
        if after.result_sha is None or (before is not None and before.result_sha == after.result_sha):
            continue
        ((text,),) = context.disk.query("SELECT result FROM tasks WHERE id = ?", after.id)
        if hashlib.sha256(text.encode()).hexdigest() != after.result_sha:
            yield f"task {after.id}: the hash is not that of the result"


@invariant("N22", "runs", "a run that was parked in good order is not counted as crashed")
def _parks_are_no_crashes(change: Change, context: CheckContext) -> Iterator[str]:
    del context
    for before, after in change.runs.values():
        if before is not None and after.crashes > before.crashes and before.state != RunState.RUNNING:
            yield f"run {after.id} was parked, and its next start counted as crash {after.crashes}"


@invariant("N22", "runs", "a run that waited for its model is not blamed for the death of its process")
def _bystanders_are_not_blamed(change: Change, context: CheckContext) -> Iterator[str]:
    for before, after in change.runs.values():
        if before is None or after.crashes <= before.crashes:
            continue
        if not context.count(
            "SELECT COUNT(*) FROM sessions s JOIN calls c ON c.session_id = s.id AND c.seq = s.head WHERE s.run_id = ?",
            after.id,
        ):
            yield f"run {after.id} had no call under way and was counted as crash {after.crashes}"


@invariant(
    "N22", frozenset({"claim"}), "a run that was executing at two deaths of its process is claimed alone"
)
def _suspects_are_claimed_alone(change: Change, context: CheckContext) -> Iterator[str]:
    taken = [
        after
        for before, after in change.sessions.values()
        if before is not None and after.owner != before.owner
    ]
    for made in change.made:
        together = [one.id for one in taken if made.name == "claim" and one.owner == made.args[0]]
        for session_id in together if len(together) > 1 else ():
            if context.count(
                "SELECT COUNT(*) FROM runs r JOIN sessions s ON s.run_id = r.id WHERE s.id = ? AND r.crashes > 0"
                " AND r.progress_head = s.head",
                session_id,
            ):
                yield f"session {session_id} is a suspect and was claimed together with {together}"


@invariant("N19", "sessions", "after a kill the session of the task says nothing more")
def _the_dead_are_silent(change: Change, context: CheckContext) -> Iterator[str]:
    for before, after in change.sessions.values():
        if before is None or after.head <= before.head:  # its words may go, later
            continue
        task = context.history.task(after.id)
        pair = change.tasks.get(after.id)
        was = pair[0] if pair is not None else task
        if was is not None and was.outcome == "killed" and (task is None or task.outcome == "killed"):
            yield f"session {after.id} was killed and wrote message {after.head}"


@invariant("N19", "tasks", "a dead parent has no children")
def _born_alive(change: Change, context: CheckContext) -> Iterator[str]:
    for before, after in change.tasks.values():
        if before is None:
            parent = context.history.session(after.requester_id)
            if parent is None or parent.closed:
                yield f"task {after.id} was spawned below {after.requester_id}, which is closed"


@invariant("N19", frozenset({"kill"}), "no result is delivered that a kill has made pointless")
def _skipped_by_kill(change: Change, context: CheckContext) -> Iterator[str]:
    if not any(made.name == "kill" for made in change.made):
        return
    for _, after in change.tasks.values():
        if after.outcome == "killed" and context.count(
            "SELECT COUNT(*) FROM inbox WHERE session_id = ? AND state = 0 AND kind = 'announce' AND silent = 0",
            after.id,
        ):
            yield f"task {after.id} was killed, and results for it still wait"


@invariant(
    "N5", frozenset({"late_in_turn"}), "what a killed or timed out task says afterwards is kept as late"
)
def _late_text_is_kept(change: Change, context: CheckContext) -> Iterator[str]:
    for made in change.made:
        if made.name != "late_in_turn" or ("tasks", made.session_id) not in made.written:
            continue
        task_id, text = made.session_id, made.args[1]
        rows = context.disk.query("SELECT outcome, late_text FROM tasks WHERE id = ?", task_id)
        if rows and rows[0][0] in ("killed", "timeout") and freeze(text).text and rows[0][1] is None:
            yield f"task {task_id} is {rows[0][0]} and said {text[:40]!r}, which is nowhere"


@invariant("N20", frozenset({"steer"}), "an instruction is in the inbox when the steer is answered")
def _instruction_kept(change: Change, context: CheckContext) -> Iterator[str]:
    for made in change.made:
        if made.name == "steer" and not context.disk.query(
            "SELECT 1 FROM inbox WHERE idem = ?", made.args[2]
        ):
            yield f"the instruction {made.args[2]} is nowhere"


@invariant("N20", frozenset({"finish", "submit"}), "a child reads what was sent to it before it ends")
def _read_before_the_end(change: Change, context: CheckContext) -> Iterator[str]:
    for before, after in change.tasks.values():
        if before is None or before.outcome is not None or after.outcome != "ok":
            continue
        if context.count(
            "SELECT COUNT(*) FROM inbox WHERE session_id = ? AND state = 0 AND kind = 'instruction'"
            " AND taken_seq IS NULL",
            after.id,
        ):
            yield f"task {after.id} has ended and left words unread"


@invariant(
    "N22", frozenset({"hand_over"}), "what is given back in good order is free, continues, and has not failed"
)
def _given_back_whole(change: Change, context: CheckContext) -> Iterator[str]:
    for made in change.made:
        before, after = (
            change.sessions.get(made.args[1], (None, None)) if made.name == "hand_over" else (None, None)
        )
        if before is None or after is None:
            continue
        parked = "SELECT COUNT(*) FROM runs WHERE id = ? AND state NOT IN ('running', 'ended')"
        has_run = before.run_id is None or (
            after.run_id == before.run_id and context.count(parked, before.run_id)
        )
        if after.owner is not None or not has_run:
            yield f"session {after.id} has owner {after.owner} and run {after.run_id}"
        was, task = change.tasks.get(after.id, (None, None))
        if was is not None and task is not None and was.outcome != task.outcome:
            yield f"task {after.id} became {task.outcome}"


@invariant("N12", frozenset({"unconfirmed"}), "a message that may have been read is not sent again")
def _not_sent_again(change: Change, context: CheckContext) -> Iterator[str]:
    for made in change.made:
        # Otherwise another process owns it.
        if made.name == "unconfirmed" and ("outbox", made.args[2].id) in made.written:
            rows = context.disk.query("SELECT due, owner, done_at FROM outbox WHERE id = ?", made.args[2].id)
            if rows[0][0] is not None:
                yield f"parcel {made.args[2].key} is due again: {rows}"


_SENDING = frozenset({"unconfirmed", "failed", "claim", "free", "bury", "leave", "begin"})


@invariant("N34", _SENDING, "a message with an unsure outcome is neither due nor being sent")
def _unsure_stays(change: Change, context: CheckContext) -> Iterator[str]:
    del change
    rows = context.disk.query(
        "SELECT idem, due, owner FROM outbox WHERE outcome = 'unsure' AND (due IS NOT NULL OR owner IS NOT NULL)"
    )
    for row in rows:
        yield f"message {row}"


@invariant("N19", frozenset({"halt"}), "a halt ends one turn, and the children continue")
def _only_the_turn(change: Change, context: CheckContext) -> Iterator[str]:
    del context
    for made in change.made:
        if made.name != "halt" or not made.value:
            continue
        _, session = change.sessions[made.args[1]]
        if session.owner is not None or session.run_id is not None:
            yield f"session {session.id} was halted and continues"
        ended = [task.id for was, task in change.tasks.values() if was and was.outcome != task.outcome]
        if ended:
            yield f"session {session.id} was halted, and with it {ended}"


@invariant("N19", frozenset({"stop"}), "after a stop no task below works")
def _all_below_is_stopped(change: Change, context: CheckContext) -> Iterator[str]:
    for made in change.made:
        if made.name == "stop":
            below = context.count(
                "SELECT COUNT(*) FROM tasks WHERE root_id = ? AND outcome IS NULL", made.args[1]
            )
            if below:
                yield f"session {made.args[1]} was stopped and {below} below it work"
