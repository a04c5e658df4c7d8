"""What a stopped run leaves behind: its partial words, and what came after it had lost its session."""

from __future__ import annotations

from clutch.core import events as ev
from clutch.core import messages, wording
from clutch.core.messages import Answer, Results
from clutch.core.model import Outcome
from clutch.core.policy import LateResult, Policy
from clutch.protocol import news, sessions, tasks
from clutch.protocol.redacting import reword
from clutch.protocol.turns import writing
from clutch.store.door import Tx


def partial(session_id: int, run_id: int) -> Tx[str]:
    """The last words of this run; without any, how far it came."""
    rows = yield (
        "SELECT body FROM messages WHERE session_id = ? AND run_id = ? AND kind = 'answer' ORDER BY seq DESC LIMIT 20",
        (session_id, run_id),
    )
    for (body,) in rows:
        said = messages.load("answer", body)
        if isinstance(said, Answer) and said.text.strip() and wording.silence(said.text) is None:
            return said.text
    calls = yield (
        "SELECT name FROM calls WHERE session_id = ? AND run_id = ? ORDER BY seq DESC, idx DESC",
        (session_id, run_id),
    )
    return wording.partial_progress(len(calls), calls[0][0]) if calls else ""


def late(now: float, policy: Policy, session_id: int, text: str, nonce: str = "") -> Tx[None]:
    """A run that lost its session still said something: kept in the timeline, and it changes no outcome."""
    session = yield from sessions.lock(session_id)
    if session is None or not session.is_task:
        return
    task = yield from tasks.record(now, policy, session, ev.Late(now, text))
    kept = wording.freeze(text, policy.life.result_bytes_max).text
    if task.outcome is not Outcome.KILLED or kept is None:
        return
    yield "UPDATE tasks SET late_text = ?, late_at = ? WHERE id = ?", (kept, now, session_id)
    if policy.control.late_result is LateResult.DELIVER:
        yield from news.tell(now, policy.announcing, session, task, kept, nonce, late=True)


def leave(
    now: float,
    policy: Policy,
    session_id: int,
    run_id: int,
    head: int,
    outcome: Results,
    instead: Answer | None = None,
) -> Tx[bool]:
    """What the calls of a superseded run gave in the time they had. False: the next run went on without.

    `instead`: as in `results`."""
    session = yield from sessions.lock(session_id)
    if session is None or session.closed or session.owner is not None or session.head != head:
        return False
    if instead is not None:
        yield from reword(session, instead)
    yield writing.MESSAGE, writing.line(now, session, run_id, outcome)
    yield (
        "UPDATE inbox SET ready_at = ? WHERE session_id = ? AND state = 0 AND kind = 'instruction' AND ready_at > ?",
        (now, session_id, now),
    )
    yield from sessions.save(now, policy, session)
    return True
