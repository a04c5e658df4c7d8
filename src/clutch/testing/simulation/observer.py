"""An observer outside of the product: accepted ids, messages sent, models asked, tools run.

The checker reads the tables. What the tables record consistently but wrongly is found only here.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from clutch.core import lifecycle
from clutch.core.attachments import FileVersion, Side
from clutch.core.events import Move
from clutch.core.messages import Answer
from clutch.core.model import Outcome, Phase, Reason
from clutch.core.questions import Decision
from clutch.core.workers import beat_s
from clutch.ports import ModelRequest, ToolContext
from clutch.testing.clock import FakeClock
from clutch.testing.simulation.disk import SimDisk
from clutch.testing.simulation.workspaces import Directory, path_of
from clutch.transactions.read import status

if TYPE_CHECKING:
    from clutch.testing.simulation.gateway import Gateway

OBSERVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "constraint": "no transaction is held up only by the tables themselves",
        "N1": "what was accepted exists, under the number that was answered",
        "N5": "the text of a run that has lost its task is reported as late",
        "N10": "once all is over, no session is said to have letters that wait",
        "N12": "a user's message is read once",
        "T8": "a process that is asked to stop does so in time, and keeps nothing",
        "T19": "no worker is declared dead while it beats, whatever happens to locks, connections and clocks",
        "N22": "a model is asked about what is on disk, and not again about what it has answered",
        "N23": "a tool that must not run twice does not",
        "T10": "the timeline reduces to the row",
        "T14": "nothing is cleaned up before its task is delivered, given up or killed",
        "N31": "a tool that needs a person's word has it, and a decision is about what was shown",
        "T16": "every model call has its row, and within a budget its reservation, before it is sent",
        "N34": "a message that may have been read is not sent again by itself, once that was noted",
        "T20": "every slot of a schedule runs exactly once, or is skipped with a reason",
        "T18": "every outside effect has a stable key: a tool call that of its call, a message that of its row",
    }
)


STOPS_WITHIN_S: Final = (
    4.0  #: beyond the time that turns are given: a tick after a store error, a tool that is cut
)

_BOOKED: Final = (
    "SELECT COUNT(u.call_no), COALESCE(MAX(u.state = 0 AND u.call_no = (SELECT MAX(n.call_no) FROM usage n"
    " WHERE n.session_id = s.id)), 0), s.purses = '' OR COALESCE(MAX(u.state = 0 AND u.reserved_tokens > 0), 0)"
    " FROM sessions s LEFT JOIN usage u ON u.session_id = s.id WHERE s.id = ?"
)


class Observer:
    """`report` is called with the name of the violated invariant and what was seen."""

    def __init__(
        self,
        disk: SimDisk,
        directories: Mapping[int, Directory],
        files: Mapping[FileVersion, Collection[Side]],
        tell: Callable[[str], None],
        report: Callable[[str, str], None],
    ) -> None:
        self._disk, self._directories, self._tell, self._report = disk, directories, tell, report
        self._files = files
        self.evaluations: Counter[str] = Counter()
        self._told: dict[str, int] = {}
        self._said: dict[str, tuple[int, str]] = {}
        self._unsafe: Counter[str] = Counter()
        self._sent: dict[str, tuple[str, str]] = {}
        self._unanswered: dict[str, tuple[object, ...]] = {}
        self._asked: Counter[int] = Counter()
        #: virtual time of the last heartbeat, and how often it comes, by worker
        self._beats: dict[int, tuple[float, float]] = {}
        self._approved: set[int] = set()
        self._late: dict[
            tuple[int, str], tuple[Gateway, int]
        ] = {}  #: texts to be reported, and by which life
        self.closed: set[int] = set()  #: sessions whose person went away at some time
        self.halted: set[int] = set()  #: sessions whose turn a person has stopped at some time

    def beat(self, worker_id: int, at: float, lease_s: float) -> None:
        self._beats[worker_id] = at, beat_s(lease_s)

    def buried(self, worker_id: int, at: float) -> None:
        """Also one that is dead may not be buried before it has missed two heartbeats: no process can tell."""
        beat_at, every_s = self._beats.get(worker_id, (0.0, 0.0))
        silent_s = at - beat_at
        wrong = None if silent_s > 1.9 * every_s else f"worker {worker_id} beat {silent_s:.3f} s ago"
        self._judge("T19", wrong)

    def _judge(self, invariant: str, wrong: str | None) -> None:
        self.evaluations[invariant] += 1
        if wrong is not None:
            self._report(invariant, f"{OBSERVED[invariant]}: {wrong}")

    # ---- as it happens -------------------------------------------------------------------------------

    def accepted(self, idem: str, task_id: int) -> None:
        self._told[idem] = task_id

    def said(self, session_id: int, key: str, text: str) -> None:
        self._said[key] = (session_id, text)

    def asked(self, gateway: Gateway, request: ModelRequest) -> None:
        self._tell(f"{gateway.name} asks {request.key}")
        key, _, head = request.key.rpartition(":")
        ((session_id, owner, real_head, base),) = self._disk.query(
            "SELECT id, owner, head, base FROM sessions WHERE key = ?", key
        )
        self._asked[session_id] += 1
        held = gateway.worker.turns.get(session_id)
        is_current = held is not None and held[1] is asyncio.current_task() and owner == gateway.worker.id
        self._judge("T16", self._unbooked(session_id, is_current))
        if not is_current:
            return  # it lost the session and has not noticed yet; its next write will
        is_right = real_head == int(head) and len(request.transcript) == real_head - base
        self._judge("N22", None if is_right else f"{request.key} was asked at head {real_head}")
        is_answered = bool(request.transcript) and isinstance(request.transcript[-1], Answer)
        self._judge("N22", f"{request.key} ends with the model's own answer" if is_answered else None)

    def answered_anyway(self, gateway: Gateway, request: ModelRequest, answer: Answer) -> Answer:
        """A call that was cancelled. If that is because its run has lost the task, its text must be reported."""
        key = request.key.rpartition(":")[0]
        rows = self._disk.query("SELECT id, owner, fence, is_task FROM sessions WHERE key = ?", key)
        if not rows or answer.calls or not answer.text:
            return answer
        session_id, owner, fence, is_task = rows[0]
        held = gateway.worker.turns.get(session_id)
        is_here = held is not None and held[1] is asyncio.current_task()
        is_lost = held is not None and (owner != gateway.worker.id or fence != held[0].fence)
        if is_task and is_here and is_lost and gateway.is_up:
            self._late[session_id, answer.text] = (gateway, gateway.life)
        return answer

    def reported_late(self, session_id: int, text: str) -> None:
        if self._late.pop((session_id, text), None) is not None:
            self._judge("N5", None)

    def _unbooked(self, session_id: int, is_current: bool) -> str | None:
        """A worker that lost the session has a row, too, but its successor has given that call up."""
        ((rows, is_open, is_reserved),) = self._disk.query(_BOOKED, session_id)
        if rows < self._asked[session_id]:
            return f"session {session_id} made {self._asked[session_id]} calls and has {rows} rows"
        if is_current and not (is_open and is_reserved):
            return f"session {session_id} makes call {rows}, open {is_open}, reserved {is_reserved}"
        return None

    def stopped(self, gateway: Gateway, took_s: float, was_hurt: bool) -> None:
        """In good order. `was_hurt`: something went wrong meanwhile, so others may have to free what it had."""
        kept = self._disk.query("SELECT id FROM sessions WHERE owner = ?", gateway.worker.id)
        is_late = took_s > gateway.world.policy.work.stop_s + STOPS_WITHIN_S
        is_wrong = is_late or (kept and not was_hurt)
        self._judge("T8", f"{gateway.name} took {took_s:.1f} s and keeps {kept}" if is_wrong else None)

    def decided(self, question_id: int, decision: Decision) -> None:
        """A person is about to say so."""
        if decision is Decision.APPROVE:
            self._approved.add(question_id)

    def mistaken(self, question_id: int, taken: tuple[Decision, str, str] | None) -> None:
        """`taken`: a decision about an item that was not shown, or an empty answer, that was accepted."""
        self._judge("N31", None if taken is None else f"question {question_id} took {taken}")

    def runs_tool(self, name: str, context: ToolContext, is_unsafe: bool) -> None:
        session_id, seq, place = context.key.split(":")
        rows = self._disk.query(
            "SELECT name FROM calls WHERE session_id = ? AND seq = ? AND idx = ?", session_id, seq, place
        )
        is_gone = not self._disk.query("SELECT 1 FROM messages WHERE session_id = ? LIMIT 1", session_id)
        # It was killed and deleted while the process that runs the tool was frozen: nothing could stop that.
        self._judge("T18", None if rows == [(name,)] or is_gone else f"{name} runs under {context.key}")
        if name == "risky":
            asked = self._disk.query(
                "SELECT id FROM questions WHERE session_id = ? AND seq = ? AND idx = ?",
                session_id,
                seq,
                place,
            )
            is_approved = any(row[0] in self._approved for row in asked)
            self._judge("N31", None if is_approved else f"{context.key} was not approved")
        if is_unsafe:
            self._unsafe[context.key] += 1
            self._judge(
                "N23", None if self._unsafe[context.key] == 1 else f"{name} ran twice as {context.key}"
            )

    def sends(self, target: str, body: str, key: str) -> None:
        """To people. Again perhaps, but then the same words to the same place, and never other words beside them."""
        rows = self._disk.query("SELECT target, body FROM outbox WHERE idem = ?", key)
        before = self._sent.setdefault(key, (target, body))
        is_known = before == (target, body) and rows == [(target, body)]
        self._judge("T18", None if is_known else f"{key} was {before}, is {rows}, and goes out as {body!r}")

    def tries(self, key: str) -> None:
        """A channel is asked to send it. After an attempt without an answer, this is only right where the process died
        before it noted that."""
        if (before := self._unanswered.pop(key, None)) is not None:
            noted = self._noted(key)
            self._judge("N34", None if noted == before else f"{key} is sent again after {noted}")

    def unanswered(self, key: str) -> None:
        """It was read, and the sender does not learn of it."""
        self._unanswered[key] = self._noted(key)

    def _noted(self, key: str) -> tuple[object, ...]:
        (row,) = self._disk.query("SELECT outcome, error, tried_at FROM outbox WHERE idem = ?", key)
        return tuple(row)

    def removes_files(self, shelf: FileVersion, sides: Collection[Side]) -> None:
        """Just now, what was there. What was given is needed until the task is over; what it hands over, as long as
        a session may read it."""
        task_id = shelf.task_id
        rows = self._disk.query(
            "SELECT t.phase, t.outcome, t.archived_at, t.started_at, s.deleted_at, t.spec, t.delivery FROM tasks t"
            " LEFT JOIN sessions s ON s.id = t.id WHERE t.id = ? AND t.shelf = ?",
            *shelf,
        )
        if not rows:
            return self._judge("T14", None)
        phase, outcome, archived_at, started_at, deleted_at, spec, delivery = rows[0]
        is_over = phase in ("cleanup_pending", "completed", "completed_giveup")
        is_wanted = json.loads(spec).get("cleanup") != "delete" or delivery == "undelivered"
        is_free = (
            outcome in ("killed", "lost") or archived_at or deleted_at or started_at is None or not is_wanted
        )
        is_wrong = not is_over or (Side.OUT in sides and not is_free)
        self._judge("T14", f"task {task_id} is {rows[0]} and loses {sorted(sides)}" if is_wrong else None)

    def removes(self, task_id: int) -> None:
        """Check, at this moment, that no session needs the workspace."""
        rows = self._disk.query(
            "SELECT t.phase FROM tasks t JOIN sessions s ON s.id = t.id WHERE t.id = ? AND s.workspace = ?"
            " AND t.phase NOT IN ('cleanup_pending', 'completed', 'completed_giveup')",
            task_id,
            path_of(task_id),
        )
        is_needed = bool(rows) and self._directories.get(task_id) is Directory.MADE
        self._judge("T14", f"task {task_id} is {rows} and loses its files" if is_needed else None)

    # ---- at the end ----------------------------------------------------------------------------------

    def check_end(self, bases: Mapping[int, Collection[int]]) -> None:
        """`bases`: after which messages the transcript of each session began anew."""
        for task_id in self._directories:
            rows = self._disk.query("SELECT 1 FROM tasks WHERE id = ?", task_id)
            self._judge("T14", None if rows else f"files are left of {task_id}, whose spawn was undone")
        for shelf in self._files:
            rows = self._disk.query("SELECT 1 FROM tasks WHERE id = ? AND shelf = ?", *shelf)
            self._judge("T14", None if rows else f"files are left on {shelf}, which no task uses")
        for (session_id, text), (gateway, life) in self._late.items():
            is_alive = gateway.is_up and gateway.life == life
            self._judge("N5", f"task {session_id} said {text[:40]!r}" if is_alive else None)
        for session_id, asked in self._asked.items():
            ((rows,),) = self._disk.query("SELECT COUNT(*) FROM usage WHERE session_id = ?", session_id)
            self._judge(
                "T16", None if rows >= asked else f"session {session_id} lost calls: {rows} of {asked}"
            )
        for idem, task_id in self._told.items():
            rows = self._disk.query("SELECT id FROM tasks WHERE idem = ?", idem)
            self._judge("N1", None if rows == [(task_id,)] else f"{idem} was {task_id} and is {rows}")
        for key, (session_id, text) in self._said.items():
            self._judge("N12", self._misheard(key, session_id, text))
        for (task_id,) in self._disk.query("SELECT id FROM tasks ORDER BY id"):
            self._judge("T10", self._broken_timeline(task_id))
        for (session_id,) in self._disk.query("SELECT id FROM sessions WHERE closed = 0 ORDER BY id"):
            waiting = self._disk.look(status.status, (session_id,), FakeClock()).waiting
            self._judge("N10", f"session {session_id}: {waiting} letters wait" if waiting else None)
        for (session_id,) in self._disk.query("SELECT id FROM sessions ORDER BY id"):
            for wrong in self._broken_transcript(session_id, bases.get(session_id, ())):
                self._judge("N22", wrong)

    def _misheard(self, key: str, session_id: int, text: str) -> str | None:
        """Void only what was said to a session without a listener."""
        rows = self._disk.query("SELECT state FROM inbox WHERE idem = ?", key)
        bodies = self._disk.query(
            "SELECT body FROM messages WHERE session_id = ? AND kind = 'input'", session_id
        )
        read = sum(json.loads(body)["text"] == text for (body,) in bodies)
        match rows:
            case [(1,)] if read == 1:
                return None
            case [(3,)] if read == 1 and session_id in self.halted:
                return None
            case [(3,)] if read <= 1 and session_id in self.closed:
                return None
            case [(0,)] if session_id in self.closed:
                return None
        return f"{key} to session {session_id} has state {rows} and was read {read} times"

    def _broken_timeline(self, task_id: int) -> str | None:
        rows = self._disk.query(
            "SELECT from_phase, to_phase, reason, generation, outcome, seq FROM events WHERE task_id = ? ORDER BY seq",
            task_id,
        )
        if rows and rows[-1][-1] > len(rows):
            return None  # its beginning was deleted; N25 says whether it may be
        moves = [
            Move(
                Phase(before),
                Phase(after),
                Reason(reason),
                generation,
                None if outcome is None else Outcome(outcome),
            )
            for before, after, reason, generation, outcome, _ in rows
        ]
        (row,) = self._disk.query("SELECT phase, generation, outcome FROM tasks WHERE id = ?", task_id)
        try:
            folded = lifecycle.fold(moves)
        except AssertionError as error:
            return f"task {task_id}: {error}"
        return None if folded == row else f"task {task_id} is {row}, its timeline says {folded}"

    def _broken_transcript(self, session_id: int, bases: Collection[int]) -> Iterator[str | None]:
        rows = self._disk.query(
            "SELECT seq, kind, body FROM messages WHERE session_id = ? ORDER BY seq", session_id
        )
        called: list[int] = []
        for seq, kind, body in rows:
            message = json.loads(body)
            if seq - 1 in bases:
                called = []
            if kind == "results":
                given = [result["index"] for result in message["results"]]
                yield None if given == called else f"session {session_id}.{seq} answers {given} of {called}"
            elif called:
                yield f"session {session_id}.{seq}: calls {called} were never answered"
            called = list(range(len(message["calls"]))) if kind == "answer" else []
